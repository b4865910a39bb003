/**
 * Turns of agents with a model client: their context, and the events of what happens in them.
 *
 * A turn begins with a message of the user and ends with an answer that calls no tool. A request with results of tools
 * that the model's last answer called continues the turn of that answer. Nothing here throws into the caller.
 */

import { after } from "./timers.js";
import {
  about,
  type Asked,
  type Ending,
  type Exchange,
  memoryOf,
  type ModelAnswer,
  of,
  type Emitted,
  type Outcome,
  type Place,
  toolEnd,
  type Turn,
  turnEnd,
} from "./turn-events.js";
import { bound, type RecorderSettings, type RecorderStats, TurnSender } from "./turn-sender.js";

/** Characters of a provider's refusal that are logged. */
const MAX_REFUSAL = 300;

export class Recorder {
  readonly #settings: RecorderSettings;
  readonly #sender: TurnSender;
  readonly #waiting = new Map<string, Turn>();
  readonly #numbers = new Map<string, number>();
  readonly #open = new Set<Turn>();

  constructor(settings: RecorderSettings) {
    this.#settings = settings;
    this.#sender = new TurnSender(settings);
  }

  get stats(): RecorderStats {
    return this.#sender.stats;
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
      this.#emit(found, [toolEnd(found, result)]);
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

  /** Report that the provider refused the turn's context, and took the call without it: the turn goes on without. */
  refused(exchange: Exchange, error: unknown): void {
    const { turn } = exchange;
    turn.context = Promise.resolve("");
    turn.contextId = "";
    this.stats.refusedContext += 1;
    const step = "choose another contextPlace, or a smaller maxTokens";
    const why = error instanceof Error ? error.message.slice(0, MAX_REFUSAL) : "";
    this.warnOnce(`graphweft: the model's provider refuses requests with context and takes them without: ${step}`, why);
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
        events.push(toolEnd(turn, call.ended));
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
    if (this.#settings.remember) this.#emit(turn, memoryOf(turn, answer.text));
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
    this.#sender.guarded(where, part);
  }

  /** Count a failure of the recorder. */
  failure(where: string, error: unknown): void {
    this.#sender.failure(where, error);
  }

  warnOnce(message: string, detail = ""): void {
    this.#sender.warnOnce(message, detail);
  }

  /** Wait until all events so far are on the bus, or have failed. */
  flush(): Promise<void> {
    return this.#sender.flush();
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
    const before = this.#sender.positionBefore(place);
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
    const said = message === undefined ? {} : { last_message: message, messages: [{ role: "user", text: message }] };
    const data = this.#sender.redacted("context.request", {
      agent_name: place.agent,
      context: { ...said, ...this.#sender.variables(place) },
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

  #end(turn: Turn, outcome: Outcome, more: Ending): Emitted[] {
    if (turn.ended) return [];
    turn.ended = true;
    clearTimeout(turn.timer);
    this.#open.delete(turn);
    for (const id of turn.calls.keys()) this.#waiting.delete(keyOf(turn.place, id));
    return turnEnd(turn, outcome, more);
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
    this.#sender.emit(turn.place, emitted);
  }
}

/** End a call, and tell whether it is still open in an open turn. */
function end(exchange: Exchange): boolean {
  const fresh = !exchange.ended && !exchange.turn.ended;
  exchange.ended = true;
  return fresh;
}

function keyOf(place: Place, callId: string): string {
  return JSON.stringify([place.chatId, callId]);
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
