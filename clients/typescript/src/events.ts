/** Events: CloudEvents 1.0 in JSON. */

import type { EventData } from "./contracts.js";
import { InvalidEvent } from "./errors.js";
import { newId } from "./ids.js";

/** The types of the contracts. Any other dotted lower-case name is a type of your own. */
export type EventType = keyof EventData;

/** The data of an event type: free fields for a type of your own. */
export type DataOf<T extends string> = T extends EventType ? EventData[T] : Record<string, unknown>;

/** An event as it goes over HTTP. `source` and `id` together identify it for ever. */
export interface CloudEvent<T extends string = string> {
  readonly specversion: "1.0";
  readonly id: string;
  readonly source: string;
  readonly type: T;
  readonly time: string;
  readonly chatid: string;
  readonly appid?: string;
  readonly workflow?: string;
  readonly userid?: string;
  readonly traceparent?: string;
  readonly tracestate?: string;
  readonly data: DataOf<T>;
}

/** What `createEvent` takes beside the type. */
export interface EventFields<T extends string> {
  /** The chat. Events of a chat keep their order. */
  chatId: string;
  data?: DataOf<T> | undefined;
  /** Context variables: `$context.*` in rules. They become `data.context`. */
  context?: Record<string, unknown> | undefined;
  workflow?: string | undefined;
  userId?: string | undefined;
  /** A random UUID without it. Pass one if the same event may be reported twice. */
  id?: string | undefined;
  /** What emits the event; `/graphweft` without it. */
  source?: string | undefined;
  /** When it happened; now without it. */
  time?: Date | undefined;
  /** The token's app without it. Another app is refused. */
  appId?: string | undefined;
  /** The trace that the event belongs to (W3C). */
  traceparent?: string | undefined;
  tracestate?: string | undefined;
}

const TYPE = /^[a-z0-9_]+(\.[a-z0-9_]+)+$/;

/** Create an event. Keep it and emit it again after an error: it has its id, and so it takes effect once. */
export function createEvent<const T extends string>(type: T, fields: EventFields<T>): CloudEvent<T> {
  if (!TYPE.test(type)) throw new InvalidEvent("invalid event type", "use a dotted lower-case name such as order.paid");
  if (!fields.chatId) throw new InvalidEvent("the event has no chatId", "pass the chat that it belongs to");
  const time = fields.time ?? new Date();
  if (Number.isNaN(time.getTime())) throw new InvalidEvent("time is an invalid date", "pass a valid Date, or none");
  const data = { ...named(fields.data, "data") };
  if (fields.context !== undefined) data["context"] = { ...named(fields.context, "context") };
  return {
    specversion: "1.0",
    id: fields.id ?? newId(),
    source: fields.source ?? "/graphweft",
    type,
    time: time.toISOString(),
    chatid: fields.chatId,
    ...(fields.appId && { appid: fields.appId }),
    ...(fields.workflow && { workflow: fields.workflow }),
    ...(fields.userId && { userid: fields.userId }),
    ...(fields.traceparent && { traceparent: fields.traceparent }),
    ...(fields.tracestate && { tracestate: fields.tracestate }),
    data: data as DataOf<T>,
  };
}

/** Return an object with named fields. Anything else would become one silently, with its characters or items. */
function named(value: unknown, what: string): Record<string, unknown> {
  if (value === null || value === undefined) return {};
  if (typeof value === "object" && !Array.isArray(value)) return value as Record<string, unknown>;
  throw new InvalidEvent(`${what} is not an object`, "pass an object with named fields");
}
