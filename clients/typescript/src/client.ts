/** The client of a graphweft gateway. */

import {
  type ContextOptions,
  type ContextReply,
  emptyReply,
  type Message,
  queryText,
  readReply,
  type Reason,
  type RequestOptions,
  type SearchOptions,
  wireFilters,
  wireScope,
} from "./context.js";
import { type EmitOptions, type EmitStats, Emitter } from "./emitter.js";
import { AccessDenied, GraphweftError, InvalidEvent, OverLimit, ProblemError, Unavailable } from "./errors.js";
import type { CloudEvent } from "./events.js";
import { type Answer, Connection, nameOf, type TokenSource } from "./http.js";
import { newId } from "./ids.js";
import { stringify } from "./json.js";
import { currentTrace } from "./trace.js";

const JSON_TYPE = "application/json";
const MAX_BUDGET_MS = 10_000;
/** How long a context may take unless the caller says otherwise. Python clients have the same default. */
export const DEFAULT_BUDGET_MS = 500;

export interface ClientOptions {
  /** The gateway's address, such as `http://127.0.0.1:8765`. */
  url: string | URL;
  /** The token, or a function that returns it. Leave it out for a gateway with `--insecure-app`. */
  token?: TokenSource | undefined;
  /** The default workflow of `context`; `default` without it. */
  workflow?: string | undefined;
  /** The default budget of `context` and `search`, in milliseconds: 1 to 10,000; 500 without it. */
  budgetMs?: number | undefined;
  /** The `fetch` to use. */
  fetch?: typeof fetch | undefined;
}

/**
 * Publishes events and requests context over HTTP. It opens nothing and needs no end.
 *
 * `emit` returns when the bus has the events, and throws a `GraphweftError` otherwise. `context` and `search` never
 * throw for failures: the reply has a reason.
 */
export class Client {
  readonly #connection: Connection;
  readonly #emitter: Emitter;
  readonly #workflow: string;
  readonly #budgetMs: number;

  constructor(options: ClientOptions) {
    this.#connection = new Connection(options.url, options.token, options.fetch);
    this.#emitter = new Emitter(this.#connection);
    this.#workflow = options.workflow ?? "default";
    this.#budgetMs = options.budgetMs ?? DEFAULT_BUDGET_MS;
  }

  /** Counts of the events that were passed to `emit` and `emitAll`. */
  get stats(): Readonly<EmitStats> {
    return { ...this.#emitter.stats };
  }

  /**
   * Publish an event, and return its position when the bus has it.
   *
   * Until `timeoutMs` it tries again after failures that may pass, with the same id, and waits as long as the gateway
   * asks for. Events of a chat are sent in the order of the calls. Throws a `GraphweftError`; if it is `retryable`, the
   * event may have been taken, and it is safe to emit the same event again: it takes effect once.
   */
  async emit(event: CloudEvent, options: EmitOptions = {}): Promise<string> {
    const [position] = await this.emitAll([event], options);
    return position as string;
  }

  /**
   * Publish events in order, and return their positions when the bus has all of them.
   *
   * More than 500 events, or 3.9 MB, go in several requests. If one fails, `positions` of the error says which events
   * the bus has confirmed.
   */
  emitAll(events: readonly CloudEvent[], options: EmitOptions = {}): Promise<string[]> {
    return this.#emitter.emit(events, options);
  }

  /**
   * Return the context of an agent's next turn within the budget. Rejects only when `signal` is aborted.
   *
   * Without an answer in time, or after a failure, the reply has no blocks, an empty `text` and a `reason`.
   */
  async context(options: ContextOptions): Promise<ContextReply> {
    const { agent, chatId, workflow, userId, context } = options;
    return this.#request(options, () => ({
      agent,
      chat_id: chatId,
      workflow: workflow ?? this.#workflow,
      user_id: userId,
      context,
    }));
  }

  /**
   * Search the memories of a scope, or an index of the graph, within the budget. Rejects only when `signal` is aborted.
   *
   * `query` is a text or messages. The reply has the rows in `results`, and the lines for the agent in `text`.
   */
  async search(query: string | readonly Message[], options: SearchOptions): Promise<ContextReply> {
    return this.#request(options, () => {
      if (!options.memory && !options.indexName) {
        throw new InvalidEvent("the search has no memory and no indexName", "pass a scope as `memory`, or name an index");
      }
      const search = {
        text: queryText(query, options.messageHistoryCount),
        memory: options.memory && wireScope(options.memory),
        of: options.of,
        index_type: options.indexType,
        without_embedder: options.withoutEmbedder,
        fill: options.fill,
        ...wireFilters(options),
        index_name: options.indexName,
        fulltext_index_name: options.fulltextIndexName,
        top_k: options.topK,
        filter_stop_words: options.filterStopWords,
      };
      return { agent: "search", workflow: "search", chat_id: "search", search };
    });
  }

  async #request(options: RequestOptions, question: () => Record<string, unknown>): Promise<ContextReply> {
    options.signal?.throwIfAborted();
    const started = performance.now();
    const elapsed = (): number => Math.round((performance.now() - started) * 1000) / 1000;
    const id = newId();
    const wanted = options.budgetMs ?? this.#budgetMs;
    if (typeof wanted !== "number" || Number.isNaN(wanted)) {
      return emptyReply(id, "invalid_request", "budgetMs: expected a number of milliseconds");
    }
    const budgetMs = Math.min(Math.max(wanted, 1), MAX_BUDGET_MS);
    // The gateway gets a little less, so that its answer, even a partial one, arrives within the budget.
    const gatewayMs = Math.max(1, Math.floor(budgetMs - Math.min(50, Math.max(5, budgetMs / 10))));
    try {
      const limits = {
        app_id: options.appId,
        budget_ms: gatewayMs,
        max_tokens: options.maxTokens,
        after: options.after,
        explain: options.explain,
      };
      const body = stringify({ ...question(), ...limits }, "the request");
      const trace = currentTrace();
      const ask = (): Promise<Answer> => {
        const left = { timeoutMs: budgetMs - elapsed(), signal: options.signal };
        return this.#connection.post("/v1/context", body, JSON_TYPE, left, { ...trace });
      };
      // A connection that was kept may be closed just when it is used again.
      const answer = await ask().catch((error: unknown) => {
        if (error instanceof Unavailable && error.code === "no-connection") return ask();
        throw error;
      });
      const reply = answer.status === 200 ? readReply(answer.body, elapsed()) : null;
      if (reply) return reply;
      throw this.#connection.errorOf(answer);
    } catch (error) {
      options.signal?.throwIfAborted();
      if (error instanceof GraphweftError) {
        return emptyReply(id, reasonOf(error), error.message, elapsed(), error);
      }
      return emptyReply(id, "internal_error", `the client failed with ${nameOf(error)}`, elapsed());
    }
  }
}

function reasonOf(error: GraphweftError): Reason {
  if (error instanceof Unavailable) return error.code === "timeout" ? "timeout" : "gateway_unavailable";
  if (error instanceof OverLimit || error.code === "overloaded") return "overloaded";
  if (error instanceof AccessDenied) return "invalid_request";
  if (error instanceof ProblemError && error.code === "no-gateway") return "gateway_unavailable";
  if (error instanceof ProblemError && error.status >= 500) return "gateway_unavailable";
  return "invalid_request";
}
