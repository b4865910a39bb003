/**
 * Turns of agents with a model client: their context, and the events of what happens in them.
 *
 * A turn begins with a message of the user and ends with an answer that calls no tool. A request with results of tools
 * that the model's last answer called continues the turn of that answer. Nothing here throws into the caller.
 */

import type { Client } from "./client.js";
import type { Reason } from "./context.js";
import { type CloudEvent, createEvent } from "./events.js";
import { nameOf } from "./http.js";
import { after } from "./timers.js";
import { plainCopy } from "./values.js";

const MOST_KEPT = 10_000;
const LONGEST_MEMORY = 100_000;

/** Returns the data to send, or null to withhold it. If it throws, nothing is sent. */
export type Redact = (type: string, data: Record<string, unknown>) => Record<string, unknown> | null;

/** The chat of a turn. */
export interface Place {
  chatId: string;
  userId: string | undefined;
  agent: string;
  workflow: string;
}

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
  /** Failures inside the recorder. */
  errors: number;
}

export interface ToolResult {
  callId: string;
  result: unknown;
  error: string | undefined;
}

export interface ToolCall {
  id: string;
  name: string;
  arguments: unknown;
  /** The result, of a tool that the provider has run. */
  ended?: ToolResult;
}

/** What a request says: the last message of the user, and the results of tools behind the model's last message. */
export interface Asked {
  message: string | undefined;
  results: readonly ToolResult[];
}

export interface ModelAnswer {
  text: string | undefined;
  calls: readonly ToolCall[];
  model: string | undefined;
  inputTokens: number | undefined;
  outputTokens: number | undefined;
}

interface Turn {
  place: Place;
  number: number;
  message: string | undefined;
  startedMs: number;
  modelCalls: number;
  calls: Map<string, { tool: string; startedMs: number }>;
  context: Promise<string> | undefined;
  contextId: string;
  timer: ReturnType<typeof setTimeout> | undefined;
  ended: boolean;
}

type Emitted = readonly [type: string, data: Record<string, unknown>];

/** One model call. Report its end once; further reports have no effect. */
export interface Exchange {
  readonly turn: Turn;
  startedMs: number;
  ended: boolean;
}

export class Recorder {
  readonly stats: RecorderStats = {
    published: 0,
    failed: 0,
    withheld: 0,
    redactionFailures: 0,
    unplaced: 0,
    asked: 0,
    missingContext: {},
    errors: 0,
  };
  readonly #settings: RecorderSettings;
  readonly #waiting = new Map<string, Turn>();
  readonly #numbers = new Map<string, number>();
  readonly #positions = new Map<string, { count: number; position: Promise<string | undefined> }>();
  readonly #open = new Set<Turn>();
  readonly #sending = new Set<Promise<unknown>>();
  readonly #warned = new Set<string>();
  #sent = 0;

  constructor(settings: RecorderSettings) {
    this.#settings = settings;
  }

  /** Report the results of tools in a request, and start a turn if it does not continue one. */
  begin(place: Place, asked: Asked, signal: AbortSignal | undefined): Exchange {
    let turn: Turn | undefined;
    for (const result of asked.results) {
      const key = keyOf(place, result.callId);
      const found = this.#waiting.get(key);
      if (!found || found.ended) continue;
      this.#waiting.delete(key);
      turn = found;
      this.#emit(found, [this.#endTool(found, result)]);
    }
    turn ??= this.#start(place, asked.message, signal);
    clearTimeout(turn.timer); // it runs while the turn waits for tools, and not during a call of the model
    return { turn, startedMs: performance.now(), ended: false };
  }

  /** Return the context of the call's turn; empty without one. */
  async context(exchange: Exchange): Promise<string> {
    const text = (await exchange.turn.context) ?? "";
    exchange.startedMs = performance.now();
    return text;
  }

  /** Report an answer. Its turn ends, unless the model calls tools. */
  answered(exchange: Exchange, answer: ModelAnswer): void {
    if (!end(exchange)) return;
    const { turn } = exchange;
    turn.modelCalls += 1;
    const events: Emitted[] = [["model.call_complete", { ...about(exchange, answer), success: true }]];
    let waits = false;
    for (const call of answer.calls) {
      turn.calls.set(call.id, { tool: call.name, startedMs: performance.now() });
      events.push(["tool.call_start", { tool_name: call.name, call_id: call.id, arguments: call.arguments, ...of(turn) }]);
      if (call.ended) {
        events.push(this.#endTool(turn, call.ended));
      } else {
        waits = true;
        bound(this.#waiting, keyOf(turn.place, call.id), turn);
      }
    }
    this.#emit(turn, events);
    if (waits) {
      this.#wait(turn);
      return;
    }
    const ended = this.#end(turn, "completed", { response: answer.text ?? null });
    this.#emit(turn, ended);
    if (this.#settings.remember) this.#remember(turn, answer.text);
  }

  /** Report that the call failed; its turn fails. */
  failed(exchange: Exchange, error: unknown): void {
    if (!end(exchange)) return;
    const { turn } = exchange;
    turn.modelCalls += 1;
    const type = error instanceof Error ? error.name : "Error";
    const text = error instanceof Error ? error.message : typeof error === "string" ? error : "";
    const failure = { error_type: type, ...(text && { error_message: text }) };
    this.#emit(turn, [
      ["model.call_complete", { ...about(exchange, undefined), success: false, error_type: type }],
      ...this.#end(turn, "failed", { response: null, ...failure }),
      ["workflow.error", { ...failure, ...of(turn) }],
    ]);
  }

  /** Report that the caller reads no more of the answer, which abandons the turn. */
  abandoned(exchange: Exchange): void {
    if (end(exchange)) this.#emit(exchange.turn, this.#end(exchange.turn, "abandoned", { response: null }));
  }

  /** Run a part of the recorder, and count its failure; the agent continues. */
  guarded(where: string, part: () => void): void {
    try {
      part();
    } catch (error) {
      this.failure(where, error);
    }
  }

  /** Count a failure of the recorder. */
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

  /** End open turns as abandoned, and wait until all events are on the bus, or have failed. */
  async close(): Promise<void> {
    for (const turn of [...this.#open]) this.#emit(turn, this.#end(turn, "abandoned", { response: null }));
    await this.flush();
  }

  #start(place: Place, message: string | undefined, signal: AbortSignal | undefined): Turn {
    const number = (this.#numbers.get(place.chatId) ?? 0) + 1;
    bound(this.#numbers, place.chatId, number);
    const turn: Turn = {
      place,
      number,
      message,
      startedMs: performance.now(),
      modelCalls: 0,
      calls: new Map(),
      context: undefined,
      contextId: "",
      timer: undefined,
      ended: false,
    };
    const before = this.#positionBefore(place);
    this.#open.add(turn);
    this.#emit(turn, [["agent.turn_start", of(turn)]]);
    turn.context = this.#ask(turn, before, signal).catch((error: unknown) => {
      if (!signal?.aborted) this.failure("the request of context", error);
      return "";
    });
    return turn;
  }

  async #ask(turn: Turn, before: Promise<string | undefined> | undefined, signal?: AbortSignal): Promise<string> {
    const { client, budgetMs, maxTokens, readOwnWrites } = this.#settings;
    const { place, message } = turn;
    const started = performance.now();
    const asked = message === undefined ? {} : { messages: [{ role: "user", text: message }] };
    const data = this.#redacted("context.request", {
      agent_name: place.agent,
      context: { ...this.#variables(place), ...asked },
    });
    if (!data) return "";
    const position = readOwnWrites && before ? await within(before, budgetMs / 2) : undefined;
    this.stats.asked += 1;
    const reply = await client.context({
      ...place,
      context: data["context"] as Record<string, unknown>,
      budgetMs: budgetMs - (performance.now() - started),
      maxTokens,
      after: position,
      signal,
    });
    turn.contextId = reply.contextId;
    const missing = reply.reason === null ? reply.missing : [{ reason: reply.reason, detail: reply.detail }];
    for (const { reason, detail } of missing) {
      this.stats.missingContext[reason] = (this.stats.missingContext[reason] ?? 0) + 1;
      this.warnOnce(`graphweft: turns without context, or with a part missing: ${reason}`, detail);
    }
    return reply.text;
  }

  #endTool(turn: Turn, result: ToolResult): Emitted {
    const call = turn.calls.get(result.callId);
    turn.calls.delete(result.callId);
    const data = {
      tool_name: call?.tool ?? "unknown",
      call_id: result.callId,
      result: result.result,
      success: result.error === undefined,
      ...of(turn),
      ...(result.error !== undefined && { error: result.error }),
      ...(call && { duration_ms: since(call.startedMs) }),
    };
    return ["tool.call_complete", data];
  }

  #end(turn: Turn, outcome: string, more: Record<string, unknown>): Emitted[] {
    if (turn.ended) return [];
    turn.ended = true;
    clearTimeout(turn.timer);
    this.#open.delete(turn);
    const open = [...turn.calls].map(([id, call]): Emitted => {
      this.#waiting.delete(keyOf(turn.place, id));
      const data = { tool_name: call.tool, call_id: id, result: null, success: null, ...of(turn) };
      return ["tool.call_complete", { ...data, duration_ms: since(call.startedMs) }];
    });
    const data = {
      ...of(turn),
      success: outcome === "completed",
      outcome,
      duration_ms: since(turn.startedMs),
      ...more,
      ...(turn.contextId && { context_id: turn.contextId }),
    };
    return [...open, ["agent.turn_complete", data]];
  }

  #remember(turn: Turn, answer: string | undefined): void {
    const said = [
      { role: "user", text: turn.message },
      { role: "assistant", text: answer },
    ];
    const messages = said.flatMap(({ role, text }) => {
      const kept = text?.replaceAll("\0", "").trim().slice(0, LONGEST_MEMORY);
      return kept ? [{ role, text: kept }] : [];
    });
    if (messages.length === 0) return;
    const { chatId, userId } = turn.place;
    this.#emit(turn, [["memory.add", { thread_id: chatId, ...(userId && { user_id: userId }), messages }]]);
  }

  /** Keep a turn open for the results of its tools. If none comes for `idleMs`, it is abandoned. */
  #wait(turn: Turn): void {
    turn.timer = after(this.#settings.idleMs, () => {
      this.guarded("a timer", () => this.#emit(turn, this.#end(turn, "abandoned", { response: null })));
    });
    // A process need not stay for it.
    (turn.timer as { unref?: () => void }).unref?.();
  }

  #emit(turn: Turn, emitted: readonly Emitted[]): void {
    const { place } = turn;
    const { client, source } = this.#settings;
    const variables = this.#variables(place);
    const events: CloudEvent[] = [];
    for (const [type, data] of emitted) {
      const shown = this.#redacted(type, { ...data, context: variables });
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
  #positionBefore(place: Place): Promise<string | undefined> | undefined {
    const known = positionKeys(place).flatMap((key) => this.#positions.get(key) ?? []);
    return known.sort((one, other) => other.count - one.count)[0]?.position;
  }

  #variables(place: Place): Record<string, unknown> {
    const ids = { chat_id: place.chatId, workflow_name: place.workflow };
    return { ...this.#settings.context, ...ids, ...(place.userId && { user_id: place.userId }) };
  }

  #redacted(type: string, data: Record<string, unknown>): Record<string, unknown> | null {
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
}

/** End a call, and tell whether it is still open in an open turn. */
function end(exchange: Exchange): boolean {
  const fresh = !exchange.ended && !exchange.turn.ended;
  exchange.ended = true;
  return fresh;
}

function of(turn: Turn): Record<string, unknown> {
  return { agent_name: turn.place.agent, turn_number: turn.number };
}

function about(exchange: Exchange, answer: ModelAnswer | undefined): Record<string, unknown> {
  const { turn } = exchange;
  const told = { model: answer?.model, input_tokens: answer?.inputTokens, output_tokens: answer?.outputTokens };
  const known = Object.entries(told).filter(([, value]) => value !== undefined);
  return { ...of(turn), call_number: turn.modelCalls, duration_ms: since(exchange.startedMs), ...Object.fromEntries(known) };
}

function keyOf(place: Place, callId: string): string {
  return JSON.stringify([place.chatId, callId]);
}

function positionKeys(place: Place): string[] {
  return [`chat ${place.chatId}`, ...(place.userId ? [`user ${place.userId}`] : [])];
}

/** Set an entry, and forget the oldest beyond the limit. */
function bound<T>(map: Map<string, T>, key: string, value: T): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > MOST_KEPT) {
    const [oldest] = map.keys();
    if (oldest !== undefined) map.delete(oldest);
  }
}

function since(startedMs: number): number {
  return Math.round((performance.now() - startedMs) * 1000) / 1000;
}

async function within<T>(work: Promise<T>, ms: number): Promise<T | undefined> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<undefined>((resolve) => {
    timer = after(ms, () => resolve(undefined));
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
