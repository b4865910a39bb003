/** Sends the events of turns, and counts what happens to them. Nothing here throws into the caller. */

import type { Client } from "./client.js";
import type { Reason } from "./context.js";
import { type CloudEvent, createEvent } from "./events.js";
import { nameOf } from "./http.js";
import type { Emitted, Place } from "./turn-events.js";
import { plainCopy } from "./values.js";

const MOST_KEPT = 10_000;

/** Returns the data to send, or null to withhold it. If it throws, nothing is sent. */
export type Redact = (type: string, data: Record<string, unknown>) => Record<string, unknown> | null;

/** Settings of a recorder. */
export interface RecorderSettings {
  client: Client;
  source: string;
  remember: boolean;
  budgetMs: number;
  maxTokens: number | undefined;
  readOwnWrites: boolean;
  context: Readonly<Record<string, unknown>>;
  redact: Redact | undefined;
  idleMs: number;
  emitMs: number;
  onWarning: (message: string) => void;
  waitUntil: ((work: Promise<unknown>) => void) | undefined;
}

/** Counts of turns, events and failures. */
export interface RecorderStats {
  /** Events that the bus has. */
  published: number;
  /** Events that were refused, or not confirmed in time. */
  failed: number;
  /** Events and requests that `redact` withheld. */
  withheld: number;
  /** Events and requests that were not sent because `redact` threw. */
  redactionFailures: number;
  /** Model calls without a chat: no events and no context. */
  unplaced: number;
  /** Context requests. */
  asked: number;
  /** Turns without context, or with a block missing, by reason. */
  missingContext: Partial<Record<Reason, number>>;
  /** Model calls that the provider took only without context. */
  refusedContext: number;
  /** Failures inside the recorder. */
  errors: number;
}

export class TurnSender {
  readonly stats: RecorderStats = {
    published: 0,
    failed: 0,
    withheld: 0,
    redactionFailures: 0,
    unplaced: 0,
    asked: 0,
    missingContext: {},
    refusedContext: 0,
    errors: 0,
  };
  readonly #settings: RecorderSettings;
  readonly #positions = new Map<string, { count: number; position: Promise<string | undefined> }>();
  readonly #sending = new Set<Promise<unknown>>();
  readonly #warned = new Set<string>();
  #sent = 0;

  constructor(settings: RecorderSettings) {
    this.#settings = settings;
  }

  /** Send events of a turn, and keep their position. Failures are counted. */
  emit(place: Place, emitted: readonly Emitted[]): void {
    const { client, source } = this.#settings;
    const variables = this.variables(place);
    const events: CloudEvent[] = [];
    for (const [type, data] of emitted) {
      const shown = this.redacted(type, { ...data, context: variables });
      if (!shown) continue;
      const { chatId, workflow, userId } = place;
      events.push(createEvent(type, { chatId, workflow, userId, source, data: shown }) as CloudEvent);
    }
    if (events.length === 0) return;
    const sending = client.emitAll(events, { timeoutMs: this.#settings.emitMs }).then(
      (positions) => {
        this.stats.published += positions.length;
        return positions.at(-1);
      },
      (error: unknown) => {
        this.stats.failed += events.length;
        this.warnOnce("graphweft: events were not taken", error instanceof Error ? error.message : nameOf(error));
        return undefined;
      },
    );
    this.#sending.add(sending);
    void sending.then(() => this.#sending.delete(sending));
    this.guarded("waitUntil", () => this.#settings.waitUntil?.(sending));
    this.#sent += 1;
    for (const key of positionKeys(place)) bound(this.#positions, key, { count: this.#sent, position: sending });
  }

  /** The position of the latest events of the chat, or of its user in any chat. */
  positionBefore(place: Place): Promise<string | undefined> | undefined {
    const known = positionKeys(place).flatMap((key) => this.#positions.get(key) ?? []);
    return known.sort((one, other) => other.count - one.count)[0]?.position;
  }

  /** The context variables of a place. */
  variables(place: Place): Record<string, unknown> {
    const ids = { chat_id: place.chatId, workflow_name: place.workflow };
    return { ...this.#settings.context, ...ids, ...(place.userId && { user_id: place.userId }) };
  }

  /** Return a copy of data as it may be sent, or null to send nothing. */
  redacted(type: string, data: Record<string, unknown>): Record<string, unknown> | null {
    const copied = plainCopy(data) as Record<string, unknown>;
    const { redact } = this.#settings;
    if (!redact) return copied;
    try {
      const shown = redact(type, copied);
      if (shown === null) this.stats.withheld += 1;
      return shown === null ? null : { context: {}, ...shown };
    } catch (error) {
      this.stats.redactionFailures += 1;
      this.warnOnce(`graphweft: redact failed with ${nameOf(error)}, so nothing was sent`);
      return null;
    }
  }

  /** Run a part, and count its failure; the agent continues. */
  guarded(where: string, part: () => void): void {
    try {
      part();
    } catch (error) {
      this.failure(where, error);
    }
  }

  /** Count a failure here. */
  failure(where: string, error: unknown): void {
    this.stats.errors += 1;
    this.warnOnce(`graphweft failed in ${where} with ${nameOf(error)}; the agent continues`);
  }

  warnOnce(message: string, detail = ""): void {
    if (this.#warned.has(message) || this.#warned.size >= 1_000) return;
    this.#warned.add(message);
    try {
      this.#settings.onWarning(detail ? `${message} (${detail})` : message);
    } catch {
      // the agent continues
    }
  }

  /** Wait until all events so far are on the bus, or have failed. */
  async flush(): Promise<void> {
    while (this.#sending.size > 0) await Promise.all(this.#sending);
  }
}

function positionKeys(place: Place): string[] {
  return [`chat ${place.chatId}`, ...(place.userId ? [`user ${place.userId}`] : [])];
}

/** Set an entry, and forget the oldest beyond the limit. */
export function bound<T>(map: Map<string, T>, key: string, value: T): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > MOST_KEPT) {
    const [oldest] = map.keys();
    if (oldest !== undefined) map.delete(oldest);
  }
}
