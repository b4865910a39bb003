/**
 * A middleware for the language models of the AI SDK (`ai` 5 and later): the context of each turn in its prompts, and
 * events of turns, model calls, tools and answers.
 */

import { type Client, DEFAULT_BUDGET_MS } from "./client.js";
import { InvalidSettings } from "./errors.js";
import { fields } from "./http.js";
import { checkMs } from "./timers.js";
import type { Asked, Exchange, ModelAnswer, Place, ToolCall, ToolResult } from "./turn-events.js";
import type { RecorderStats, Redact } from "./turn-sender.js";
import { Recorder } from "./turns.js";

export type { RecorderStats, Redact } from "./turn-sender.js";

export interface MiddlewareOptions {
  client: Client;
  /** The chat. A call can name its own: `providerOptions: { graphweft: { chatId, userId, agent, workflow } }`. */
  chatId?: string | undefined;
  userId?: string | undefined;
  /** The agent's name in events and rules; `assistant` without it. */
  agent?: string | undefined;
  /** The workflow that selects the rules; `default` without it. */
  workflow?: string | undefined;
  /** Whether the user's messages and the answers become memories; true without it. */
  remember?: boolean | undefined;
  /**
   * Where the context stands: `last_message`, below the last message of the user, `own_message`, in a message of the
   * user behind it, or `instructions`, below the first system message; `last_message` without it.
   */
  contextPlace?: ContextPlace | undefined;
  /** The longest that a turn waits for its context, in milliseconds; 200 without it. */
  budgetMs?: number | undefined;
  /** The most tokens of the context. */
  maxTokens?: number | undefined;
  /** The context waits, within the budget, for what this middleware published for the chat or its user before. */
  readOwnWrites?: boolean | undefined;
  /** Further context variables: `$context.*` in rules. All events have them. */
  context?: Record<string, unknown> | undefined;
  /** Sees each event and each request (`context.request`) before it is sent. */
  redact?: Redact | undefined;
  /** A turn that waits for the results of tools is abandoned after so long without any; 3,600,000 without it. */
  idleMs?: number | undefined;
  /** How long to go on trying to send the events of one step, in milliseconds; 10,000 without it. */
  emitTimeoutMs?: number | undefined;
  /** Gets each kind of warning once; `console.warn` without it. */
  onWarning?: ((message: string) => void) | undefined;
  /** Keeps a serverless function alive until events are sent, such as `waitUntil` of `@vercel/functions`. */
  waitUntil?: ((work: Promise<unknown>) => void) | undefined;
}

export type ContextPlace = "last_message" | "own_message" | "instructions";

const PLACES: readonly string[] = ["last_message", "own_message", "instructions"] satisfies ContextPlace[];
/** Statuses by which providers refuse a request: invalid, too long, invalid for servers that check types. */
const REFUSED: readonly number[] = [400, 413, 422];
/** Causes of an error that are looked at. */
const MAX_CAUSES = 8;
const REPORTED = "the model reports an error";

/** What a call of a model needs to have for this middleware; the types of all versions of the AI SDK fit. */
interface CallOptions {
  readonly prompt: readonly unknown[];
  readonly providerOptions?: unknown;
  readonly abortSignal?: AbortSignal | undefined;
}

/** The middleware. Pass it to `wrapLanguageModel`. */
export interface GraphweftMiddleware {
  /** The version of the model's specification. A type for all versions; the value does not matter to the AI SDK. */
  readonly specificationVersion: never;
  readonly transformParams: <P extends CallOptions>(call: { params: P }) => Promise<P>;
  readonly wrapGenerate: <R>(call: {
    doGenerate: () => PromiseLike<R>;
    params: CallOptions;
    model: { doGenerate: (options: never) => PromiseLike<R> };
  }) => Promise<R>;
  readonly wrapStream: <R>(call: {
    doStream: () => PromiseLike<R>;
    params: CallOptions;
    model: { doStream: (options: never) => PromiseLike<R> };
  }) => Promise<R>;
  /** Counts of turns, events and failures. */
  readonly stats: RecorderStats;
  /** Wait until all events so far are on the bus, or have failed. */
  readonly flush: () => Promise<void>;
  /** End open turns as abandoned, and wait as `flush` does. */
  readonly close: () => Promise<void>;
}

/** Return a middleware. It never throws into a call, and a turn waits at most `budgetMs` for its context. */
export function graphweftMiddleware(options: MiddlewareOptions): GraphweftMiddleware {
  if (!options.client) throw new InvalidSettings("there is no client", "pass a Client of graphweft as `client`");
  const contextPlace = options.contextPlace ?? "last_message";
  if (!PLACES.includes(contextPlace)) {
    throw new InvalidSettings(`the contextPlace ${JSON.stringify(contextPlace)} is unknown`, `use one of ${PLACES.join(", ")}`);
  }
  const recorder = new Recorder({
    client: options.client,
    source: "/graphweft/ai-sdk",
    remember: options.remember ?? true,
    budgetMs: checkMs(options.budgetMs ?? DEFAULT_BUDGET_MS, "budgetMs"),
    maxTokens: options.maxTokens,
    readOwnWrites: options.readOwnWrites ?? true,
    context: options.context ?? {},
    redact: options.redact,
    idleMs: checkMs(options.idleMs ?? 3_600_000, "idleMs"),
    emitMs: checkMs(options.emitTimeoutMs ?? 10_000, "emitTimeoutMs"),
    onWarning: options.onWarning ?? ((message) => console.warn(message)),
    waitUntil: options.waitUntil,
  });
  const exchanges = new WeakMap<object, Exchange>();
  /** The calls that have context, as they are without it. */
  const plain = new WeakMap<Exchange, CallOptions>();

  /** Call the model, and once more without context if its provider refuses that. */
  async function asked<R>(exchange: Exchange, call: () => PromiseLike<R>, again: (options: never) => PromiseLike<R>): Promise<R> {
    try {
      return await call();
    } catch (error) {
      const without = plain.get(exchange);
      if (!without || !isRefusal(error)) throw error;
      const result = await again(without as never);
      recorder.guarded("reporting a refusal", () => recorder.refused(exchange, error));
      return result;
    }
  }

  return {
    specificationVersion: "v3" as never,
    stats: recorder.stats,
    flush: () => recorder.flush(),
    close: () => recorder.close(),

    async transformParams({ params }) {
      let changed = params;
      try {
        changed = withoutOwnOptions(params);
        const place = placeOf(options, params);
        if (!place) {
          recorder.stats.unplaced += 1;
          const step = "pass chatId to the middleware, or to the call as providerOptions.graphweft.chatId";
          recorder.warnOnce(`graphweft: a call names no chat, so it has no events and no context: ${step}`);
          return changed;
        }
        const exchange = recorder.begin(place, readPrompt(params.prompt), params.abortSignal);
        const text = await recorder.context(exchange);
        if (text) {
          plain.set(exchange, changed);
          changed = { ...changed, prompt: withContext(changed.prompt, text, contextPlace) };
        }
        if (changed === params) changed = { ...params };
        exchanges.set(changed, exchange);
      } catch (error) {
        recorder.failure("reading a request", error);
      }
      return changed;
    },

    async wrapGenerate({ doGenerate, params, model }) {
      const exchange = exchanges.get(params);
      if (!exchange) return doGenerate();
      try {
        const result = await asked(exchange, doGenerate, (without) => model.doGenerate(without));
        recorder.guarded("reading an answer", () => {
          if (finishOf(fields(result)) === "error") recorder.failed(exchange, REPORTED);
          else recorder.answered(exchange, readResult(result));
        });
        return result;
      } catch (error) {
        recorder.guarded("reading an error", () => recorder.failed(exchange, error));
        throw error;
      }
    },

    async wrapStream({ doStream, params, model }) {
      const exchange = exchanges.get(params);
      if (!exchange) return doStream();
      try {
        const result = await asked(exchange, doStream, (without) => model.doStream(without));
        const { stream } = fields(result);
        // Of any realm: some models bring their own class of streams.
        if (typeof fields(stream)["getReader"] === "function") {
          return { ...result, stream: watched(stream as ReadableStream<unknown>, recorder, exchange) };
        }
        recorder.guarded("reading a stream", () => recorder.abandoned(exchange));
        return result;
      } catch (error) {
        recorder.guarded("reading an error", () => recorder.failed(exchange, error));
        throw error;
      }
    },
  };
}

/** Return a stream with the same parts, which reports what is read from it. */
function watched(stream: ReadableStream<unknown>, recorder: Recorder, exchange: Exchange): ReadableStream<unknown> {
  const reader = stream.getReader();
  const answer = new StreamedAnswer();
  return new ReadableStream<unknown>(
    {
      async pull(controller) {
        try {
          const { done, value } = await reader.read();
          if (done) {
            recorder.guarded("reading a stream", () => {
              if (answer.error !== undefined) recorder.failed(exchange, answer.error);
              else if (answer.finished) recorder.answered(exchange, answer.read());
              else recorder.abandoned(exchange);
            });
            controller.close();
            return;
          }
          recorder.guarded("reading a stream", () => answer.feed(value));
          controller.enqueue(value);
        } catch (error) {
          recorder.guarded("reading a stream", () => recorder.failed(exchange, error));
          controller.error(error);
        }
      },
      async cancel(reason) {
        recorder.guarded("reading a stream", () => {
          if (answer.finished && answer.error === undefined) recorder.answered(exchange, answer.read());
          else recorder.abandoned(exchange);
        });
        await reader.cancel(reason);
      },
    },
    { highWaterMark: 0 },
  );
}

class StreamedAnswer {
  finished = false;
  error: unknown = undefined;
  #text = "";
  readonly #content: unknown[] = [];
  #model: unknown = undefined;
  #usage: unknown = undefined;

  feed(value: unknown): void {
    const part = fields(value);
    switch (part["type"]) {
      case "text-delta":
        this.#text += typeof part["delta"] === "string" ? part["delta"] : "";
        break;
      case "tool-call":
      case "tool-result":
        this.#content.push(part);
        break;
      case "response-metadata":
        this.#model = part["modelId"];
        break;
      case "error":
        this.error = part["error"] ?? "error";
        break;
      case "finish":
        this.finished = true;
        this.#usage = part["usage"];
        if (finishOf(part) === "error") this.error ??= REPORTED;
        break;
      default:
        break;
    }
  }

  read(): ModelAnswer {
    return { ...readContent(this.#content), ...readUsage(this.#usage), text: this.#text || undefined, model: textOf(this.#model) };
  }
}

function withoutOwnOptions<P extends CallOptions>(params: P): P {
  if (fields(params.providerOptions)["graphweft"] === undefined) return params;
  const { graphweft: _ours, ...others } = fields(params.providerOptions);
  return { ...params, providerOptions: others };
}

function placeOf(options: MiddlewareOptions, params: CallOptions): Place | undefined {
  const own = fields(fields(params.providerOptions)["graphweft"]);
  const chatId = textOf(own["chatId"]) ?? options.chatId;
  if (!chatId) return undefined;
  return {
    chatId,
    userId: textOf(own["userId"]) ?? options.userId,
    agent: textOf(own["agent"]) ?? options.agent ?? "assistant",
    workflow: textOf(own["workflow"]) ?? options.workflow ?? "default",
  };
}

function readPrompt(prompt: readonly unknown[]): Asked {
  const messages = prompt.map(fields);
  const user = messages[questionIn(messages)];
  const lastAnswer = messages.findLastIndex((message) => message["role"] === "assistant");
  const behind = lastAnswer < 0 ? [] : messages.slice(lastAnswer + 1);
  const results = behind.flatMap((message) => (message["role"] === "tool" ? partsOf(message) : []));
  return { message: user && textIn(partsOf(user)), results: results.flatMap(readToolResult) };
}

function readToolResult(part: Readonly<Record<string, unknown>>): ToolResult[] {
  const callId = textOf(part["toolCallId"]);
  if (part["type"] !== "tool-result" || callId === undefined) return [];
  const output = fields(part["output"]);
  const result = "value" in output ? output["value"] : part["output"];
  switch (output["type"]) {
    case "error-text":
    case "error-json":
      return [{ callId, result, error: textOf(result) ?? "error" }];
    case "execution-denied":
      return [{ callId, result: null, error: textOf(output["reason"]) ?? "execution denied" }];
    default:
      return [{ callId, result, error: undefined }];
  }
}

/** Return the prompt with the context at its place, or below the instructions without a message of the user. */
function withContext<M>(prompt: readonly M[], text: string, place: ContextPlace): M[] {
  const at = place === "instructions" ? -1 : questionIn(prompt.map(fields));
  const question = fields(prompt[at]);
  if (at >= 0 && place === "own_message") {
    return [...prompt.slice(0, at + 1), { role: "user", content: [{ type: "text", text }] } as M, ...prompt.slice(at + 1)];
  }
  if (at >= 0 && Array.isArray(question["content"])) {
    return [...prompt.slice(0, at), { ...question, content: below(question["content"], text) } as M, ...prompt.slice(at + 1)];
  }
  const [first, ...others] = prompt;
  const { role, content } = fields(first);
  if (role === "system" && typeof content === "string") {
    return [{ ...first, content: content ? `${content}\n\n${text}` : text } as M, ...others];
  }
  return [{ role: "system", content: text } as M, ...prompt];
}

/** Return the place of the user's last message that is not behind the result of a tool, or -1. */
function questionIn(messages: readonly Readonly<Record<string, unknown>>[]): number {
  let found = -1;
  let behindResult = false;
  messages.forEach(({ role }, at) => {
    if (role === "user" && !behindResult) found = at;
    behindResult = role === "tool" || (behindResult && role !== "assistant");
  });
  return found;
}

/** Return the parts of a message with a text below the last of them. */
function below(content: readonly unknown[], text: string): unknown[] {
  const last = fields(content.at(-1));
  if (last["type"] !== "text" || typeof last["text"] !== "string") return [...content, { type: "text", text }];
  return [...content.slice(0, -1), { ...last, text: last["text"] ? `${last["text"]}\n\n${text}` : text }];
}

/** Return whether a provider refused a request for what it holds. The first error with a status decides. */
function isRefusal(error: unknown): boolean {
  let cause = error;
  for (let count = 0; count < MAX_CAUSES && cause; count += 1) {
    const { statusCode, status, cause: inner } = fields(cause);
    const found = statusCode ?? status;
    if (typeof found === "number") return REFUSED.includes(found);
    cause = inner;
  }
  return false;
}

function readResult(result: unknown): ModelAnswer {
  const found = fields(result);
  const content = Array.isArray(found["content"]) ? found["content"] : [];
  const model = textOf(fields(found["response"])["modelId"]);
  return { ...readContent(content), ...readUsage(found["usage"]), model };
}

function readContent(content: readonly unknown[]): Pick<ModelAnswer, "text" | "calls"> {
  const parts = content.map(fields);
  const results = new Map(
    parts.filter((part) => part["type"] === "tool-result").map((part) => [textOf(part["toolCallId"]), part]),
  );
  const calls = parts.flatMap((part): ToolCall[] => {
    const id = textOf(part["toolCallId"]);
    const name = textOf(part["toolName"]);
    if (part["type"] !== "tool-call" || id === undefined || name === undefined) return [];
    const result = results.get(id);
    if (!result && part["providerExecuted"] !== true) return [{ id, name, arguments: parsedInput(part["input"]) }];
    const error = result?.["isError"] === true ? (textOf(result["result"]) ?? "error") : undefined;
    const ended = { callId: id, result: result?.["result"] ?? null, error };
    return [{ id, name, arguments: parsedInput(part["input"]), ended }];
  });
  return { text: textIn(parts), calls };
}

function readUsage(value: unknown): Pick<ModelAnswer, "inputTokens" | "outputTokens"> {
  const usage = fields(value);
  // A number, or since version 6 of the AI SDK an object with the total.
  const count = (found: unknown): number | undefined => {
    const total = typeof found === "object" ? fields(found)["total"] : found;
    return typeof total === "number" ? total : undefined;
  };
  return { inputTokens: count(usage["inputTokens"]), outputTokens: count(usage["outputTokens"]) };
}

function finishOf(value: Readonly<Record<string, unknown>>): unknown {
  const reason = value["finishReason"];
  return typeof reason === "object" ? fields(reason)["unified"] : reason;
}

function parsedInput(input: unknown): unknown {
  if (typeof input !== "string") return input;
  try {
    return JSON.parse(input) as unknown;
  } catch {
    return input;
  }
}

function partsOf(message: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>>[] {
  const { content } = message;
  if (typeof content === "string") return [{ type: "text", text: content }];
  return Array.isArray(content) ? content.map(fields) : [];
}

function textIn(parts: readonly Readonly<Record<string, unknown>>[]): string | undefined {
  const texts = parts.flatMap((part) => (part["type"] === "text" && typeof part["text"] === "string" ? [part["text"]] : []));
  return texts.join("\n") || undefined;
}

function textOf(value: unknown): string | undefined {
  return typeof value === "string" && value ? value : undefined;
}
