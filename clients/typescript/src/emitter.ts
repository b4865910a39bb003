/** Sends events until the gateway has taken them, with the same ids in each attempt. */

import { ChatOrder } from "./chat-order.js";
import { type GraphweftError, InvalidEvent, ProblemError, Unavailable } from "./errors.js";
import type { CloudEvent } from "./events.js";
import { type Answer, type Connection, fields, unlessAborted } from "./http.js";
import { stringify } from "./json.js";
import { after, checkMs } from "./timers.js";
import { currentTrace, type Trace } from "./trace.js";

const MOST_EVENTS = 500;
const MOST_BYTES = 3_900_000;
/** Values of one request: the gateway takes 300,000. */
const MOST_VALUES = 250_000;
const MOST_PENDING = 10_000;
const ATTEMPT_MS = 15_000;
const FIRST_RETRY_MS = 100;
const LAST_RETRY_MS = 2_000;
const [COMMA, BRACKET, BRACE] = [44, 91, 123] as const;
const BATCH = "application/cloudevents-batch+json";

/** Options of `emit` and `emitAll`. */
export interface EmitOptions {
  /** How long to go on trying, in milliseconds; 30,000 without it. */
  timeoutMs?: number | undefined;
  signal?: AbortSignal | undefined;
}

interface Encoded {
  readonly text: string;
  readonly bytes: number;
  /** An upper bound of the values in it. */
  readonly values: number;
}

/** Counts of events. Each is sent, pending or failed. */
export interface EmitStats {
  sent: number;
  pending: number;
  /** Events whose `emit` has thrown: refused, or not confirmed in time. */
  failed: number;
  /** Attempts beyond the first. */
  retries: number;
}

export class Emitter {
  readonly stats: EmitStats = { sent: 0, pending: 0, failed: 0, retries: 0 };
  readonly #connection: Connection;
  readonly #order = new ChatOrder();

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** Send the events in order, after all earlier events of their chats. */
  async emit(events: readonly CloudEvent[], options: EmitOptions): Promise<string[]> {
    if (events.length === 0) return [];
    let deadline: number;
    let encoded: Encoded[];
    try {
      deadline = performance.now() + checkMs(options.timeoutMs ?? 30_000, "timeoutMs");
      const trace = currentTrace();
      encoded = events.map((event) => encode(event, trace));
      if (this.stats.pending > 0 && this.stats.pending + events.length > MOST_PENDING) {
        const step = "wait for earlier calls of emit, or send less";
        throw new Unavailable("too-many-pending", `more than ${MOST_PENDING} events are pending`, step);
      }
    } catch (error) {
      this.stats.failed += events.length;
      throw error;
    }
    this.stats.pending += events.length;
    const chats = events.map((event) => `${event.appid ?? ""}/${event.chatid}`);
    const positions: string[] = [];
    const work = this.#order.run(chats, () => this.#sendAll(encoded, positions, deadline, options.signal));
    try {
      await unlessAborted(work, options.signal);
    } catch (error) {
      this.stats.failed += events.length - positions.length;
      throw error;
    } finally {
      this.stats.pending -= events.length;
      this.stats.sent += positions.length;
    }
    return positions;
  }

  async #sendAll(
    encoded: readonly Encoded[],
    positions: string[],
    deadline: number,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    for (const batch of batches(encoded)) {
      try {
        positions.push(...(await this.#deliver(batch, deadline, signal)));
      } catch (error) {
        if (error instanceof ProblemError || error instanceof Unavailable) tellPositions(error, positions, encoded.length);
        throw error;
      }
    }
  }

  async #deliver(batch: readonly Encoded[], deadline: number, signal?: AbortSignal): Promise<string[]> {
    const body = `[${batch.map((event) => event.text).join(",")}]`;
    let retryMs = FIRST_RETRY_MS;
    for (let attempt = 0; ; attempt += 1) {
      const leftMs = deadline - performance.now();
      let error: Unavailable | ProblemError;
      if (leftMs <= 0) {
        signal?.throwIfAborted();
        const step = "emit the same events again: they take effect once";
        throw new Unavailable("timeout", "there was no time left to send the events", step);
      }
      try {
        const limits = { timeoutMs: Math.min(leftMs, ATTEMPT_MS), signal };
        const answer = await this.#connection.post("/v1/events", body, BATCH, limits);
        const taken = positionsOf(answer, batch.length);
        if (answer.status === 202 && taken?.every((position) => position !== null)) return taken as string[];
        error = this.#connection.errorOf(answer);
        error.positions = taken ?? [];
      } catch (thrown) {
        if (!(thrown instanceof Unavailable)) throw thrown;
        error = thrown;
      }
      const waitMs = Math.max(retryMs * (0.5 + Math.random() / 2), waitOf(error));
      if (!error.retryable || performance.now() + waitMs >= deadline) throw error;
      this.stats.retries += 1;
      await sleep(waitMs, signal);
      retryMs = Math.min(retryMs * 2, LAST_RETRY_MS);
    }
  }
}

/** Return the event as it is sent: with the trace, unless it names one. */
function encode(event: CloudEvent, trace: Trace | undefined): Encoded {
  if (fields(event)["specversion"] !== "1.0") {
    throw new InvalidEvent("this is not an event", "make it with createEvent, and keep it for a retry");
  }
  const text = stringify(trace === undefined || event.traceparent ? event : { ...event, ...trace }, "the event");
  return { text, bytes: new TextEncoder().encode(text).length, values: signsIn(text) };
}

/** Return how many signs there are that begin a value; those in texts count too. */
function signsIn(text: string): number {
  let count = 1;
  for (let at = 0; at < text.length; at += 1) {
    const sign = text.charCodeAt(at);
    if (sign === COMMA || sign === BRACKET || sign === BRACE) count += 1;
  }
  return count;
}

function* batches(encoded: readonly Encoded[]): Generator<readonly Encoded[]> {
  let batch: Encoded[] = [];
  let bytes = 0;
  let values = 0;
  for (const event of encoded) {
    const full = batch.length >= MOST_EVENTS || bytes + event.bytes > MOST_BYTES || values + event.values > MOST_VALUES;
    if (batch.length > 0 && full) {
      yield batch;
      batch = [];
      bytes = 0;
      values = 0;
    }
    batch.push(event);
    bytes += event.bytes + 1;
    values += event.values;
  }
  yield batch;
}

function positionsOf(answer: Answer, count: number): (string | null)[] | null {
  const found = fields(answer.body)["positions"];
  if (!Array.isArray(found) || found.length !== count) return null;
  return found.map((position: unknown) => (typeof position === "string" ? position : null));
}

function tellPositions(error: GraphweftError, before: readonly string[], count: number): void {
  const known = [...before, ...error.positions].slice(0, count);
  error.positions = [...known, ...Array<null>(count - known.length).fill(null)];
}

function waitOf(error: Unavailable | ProblemError): number {
  return error instanceof ProblemError ? (error.retryAfterMs ?? 0) : 0;
}

async function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const slept = new Promise<void>((resolve) => {
    timer = after(ms, resolve);
  });
  try {
    await unlessAborted(slept, signal);
  } finally {
    clearTimeout(timer);
  }
}
