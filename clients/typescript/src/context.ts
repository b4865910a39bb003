/** Requests for context, and their replies. */

import type { Format, IndexType, Reason as ContractReason, Searched } from "./contracts.js";
import { type GraphweftError, InvalidEvent } from "./errors.js";
import { fields } from "./http.js";
import { printable, wellFormed } from "./values.js";

/** Why a block, or a whole reply, is missing. `gateway_unavailable` means that no gateway answered. */
export type Reason = ContractReason | "gateway_unavailable";

/** Whose memories: at least one of the four, and all that are given apply. */
export interface MemoryScope {
  applicationId?: string | undefined;
  agentId?: string | undefined;
  userId?: string | undefined;
  threadId?: string | undefined;
}

/** Limits of one request, for context or for a search. */
export interface RequestOptions {
  /** The longest that the call takes, in milliseconds: 1 to 10,000; 500 without it. */
  budgetMs?: number | undefined;
  /** The most tokens of the text. */
  maxTokens?: number | undefined;
  /** A position that `emit` returned: the reply reflects that event, or `staleBy` says that the budget ended first. */
  after?: string | undefined;
  /** Add to each block how it was made. */
  explain?: boolean | undefined;
  /** The token's app without it. Another app is refused. */
  appId?: string | undefined;
  signal?: AbortSignal | undefined;
}

export interface ContextOptions extends RequestOptions {
  agent: string;
  chatId: string;
  /** The client's workflow without it, or else `default`. */
  workflow?: string | undefined;
  userId?: string | undefined;
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
}

/** Which records of a scope are meant. Filters apply before `topK`. */
export interface MemoryFilters {
  ids?: readonly string[] | undefined;
  /** Only memories with all of these tags. */
  tags?: readonly string[] | undefined;
  /** Only memories with all of these values. */
  metadata?: Readonly<Record<string, string | number | boolean>> | undefined;
  /** Only what was said from this time on. */
  since?: Date | undefined;
  /** Only what was said before this time. */
  until?: Date | undefined;
  /** As at this time: what was said later is not found, and what has ended since is. */
  asOf?: Date | undefined;
  /** Of a search with a query: only rows with at least this score of the default ranking, from 0 to 1. */
  minScore?: number | undefined;
  /** Further scopes beside `memory`, such as that of a team: a record of any of them is found. */
  anyOf?: readonly MemoryScope[] | undefined;
  /** Also what has ended, each with its end in `invalid_at`; `ids` find it without. */
  includeEnded?: boolean | undefined;
}

export interface SearchOptions extends RequestOptions, MemoryFilters {
  /** Search what is remembered in this scope. Pass either this or `indexName`. */
  memory?: MemoryScope | undefined;
  of?: Searched | undefined;
  indexType?: IndexType | undefined;
  withoutEmbedder?: "latest" | undefined;
  /** `latest`: the latest rows of the scope come behind those that fit the query, up to `topK`. */
  fill?: "latest" | undefined;
  indexName?: string | undefined;
  fulltextIndexName?: string | undefined;
  topK?: number | undefined;
  filterStopWords?: boolean | undefined;
  /** How many of the last messages make the text of the search; 10 without it. */
  messageHistoryCount?: number | undefined;
}

/** The result of one query of the rules. */
export interface Block {
  readonly name: string;
  readonly format: Format;
  readonly value: unknown;
  readonly rows: number;
  readonly rule: string;
  readonly query: string;
  readonly tokens: number;
  readonly cut: number;
  readonly ageMs: number | null;
  readonly explanation: Readonly<Record<string, unknown>> | null;
}

/** A block that is missing, and why. */
export interface Missing {
  readonly name: string;
  readonly rule: string;
  readonly query: string;
  readonly reason: Reason;
  readonly detail: string;
}

/** The context that is ready. `partial` says that something is missing; `reason` is set when nothing came. */
export interface ContextReply {
  readonly id: string;
  /** Put it into the data of the turn's `agent.turn_complete` as `context_id`. */
  readonly contextId: string;
  readonly blocks: readonly Block[];
  readonly missing: readonly Missing[];
  /** The blocks for the prompt, between tags that say that they are data. */
  readonly text: string;
  readonly tokens: number;
  readonly staleBy: number | null;
  readonly partial: boolean;
  readonly reason: Reason | null;
  readonly detail: string;
  readonly elapsedMs: number;
  readonly rules: string;
  /** The values of the blocks by name. */
  readonly injected: Readonly<Record<string, unknown>>;
  /** The rows of a search, best first. */
  readonly results: readonly Readonly<Record<string, unknown>>[];
  /** The error behind the reason, if the request did not reach a responder. */
  readonly error: GraphweftError | null;
}

/** A message, as a search and memories read it. */
export interface Message {
  role: string;
  text?: string | undefined;
  content?: unknown;
}

/** Return the reply in an answer, or null if it is none. */
export function readReply(body: unknown, elapsedMs: number): ContextReply | null {
  const reply = fields(body);
  if (typeof reply["id"] !== "string" || typeof reply["text"] !== "string") return null;
  if (!Array.isArray(reply["blocks"]) || !Array.isArray(reply["missing"])) return null;
  const blocks = reply["blocks"].map(fields).map(
    (block): Block => ({
      name: text(block["name"]),
      format: text(block["format"]) as Format,
      value: block["value"],
      rows: number(block["rows"]),
      rule: text(block["rule"]),
      query: text(block["query"]),
      tokens: number(block["tokens"]),
      cut: number(block["cut"]),
      ageMs: typeof block["age_ms"] === "number" ? block["age_ms"] : null,
      explanation: block["explanation"] == null ? null : fields(block["explanation"]),
    }),
  );
  const missing = reply["missing"].map(fields).map(
    (part): Missing => ({
      name: text(part["name"]),
      rule: text(part["rule"]),
      query: text(part["query"]),
      reason: text(part["reason"]) as Reason,
      detail: printable(text(part["detail"])),
    }),
  );
  return {
    id: reply["id"],
    contextId: text(reply["context_id"]),
    blocks,
    missing,
    text: reply["text"],
    tokens: number(reply["tokens"]),
    staleBy: typeof reply["stale_by"] === "number" ? reply["stale_by"] : null,
    partial: reply["partial"] === true,
    reason: typeof reply["reason"] === "string" ? (reply["reason"] as Reason) : null,
    detail: printable(text(reply["detail"])),
    elapsedMs,
    rules: text(reply["rules"]),
    ...valuesOf(blocks),
    error: null,
  };
}

/** Return the reply without context. */
export function emptyReply(
  id: string,
  reason: Reason,
  detail: string,
  elapsedMs = 0,
  error: GraphweftError | null = null,
): ContextReply {
  return {
    id,
    contextId: "",
    blocks: [],
    missing: [],
    text: "",
    tokens: 0,
    staleBy: null,
    partial: true,
    reason,
    detail,
    elapsedMs,
    rules: "",
    ...valuesOf([]),
    error,
  };
}

/** Return the scope in the words of the wire, narrowest last. Throws `InvalidEvent` without any id. */
export function wireScope(scope: MemoryScope): Record<string, string> {
  const given = {
    application_id: scope.applicationId,
    agent_id: scope.agentId,
    user_id: scope.userId,
    thread_id: scope.threadId,
  };
  const found = Object.fromEntries(Object.entries(given).filter((entry): entry is [string, string] => !!entry[1]));
  if (Object.keys(found).length === 0) {
    throw new InvalidEvent("a memory needs a scope", "give applicationId, agentId, userId or threadId");
  }
  return found;
}

/** Return filters in the words of the wire. Throws `InvalidEvent` for what is no time, or no scope. */
export function wireFilters(filters: MemoryFilters): Record<string, unknown> {
  return {
    ids: filters.ids,
    tags: filters.tags,
    metadata: filters.metadata,
    since: isoTime("since", filters.since),
    until: isoTime("until", filters.until),
    as_of: isoTime("asOf", filters.asOf),
    min_score: filters.minScore,
    any_of: filters.anyOf?.map(wireScope),
    include_ended: filters.includeEnded,
  };
}

/** Return a time in the words of the wire. Throws `InvalidEvent` for what is none: callers without types pass texts. */
export function isoTime(name: string, time: Date | null | undefined): string | undefined {
  if (time == null) return undefined;
  if (time instanceof Date && !Number.isNaN(time.getTime())) return time.toISOString();
  throw new InvalidEvent(`${name} is not a valid Date`, 'pass one, such as new Date("2026-02-01")');
}

/** Return the text of a search: `query` itself, or the texts of the last messages of user and assistant. */
export function queryText(query: string | readonly Message[], messageHistoryCount = 10): string {
  if (typeof query === "string") return wellFormed(query);
  if (!(messageHistoryCount >= 1)) throw new InvalidEvent("messageHistoryCount is below 1", "pass at least 1");
  const texts = query.flatMap((message) => {
    const said = message.text ?? message.content;
    const counts = message.role === "user" || message.role === "assistant";
    return counts && typeof said === "string" && said.trim() ? [said] : [];
  });
  return wellFormed(texts.slice(-messageHistoryCount).join("\n"));
}

function valuesOf(blocks: readonly Block[]): Pick<ContextReply, "injected" | "results"> {
  const injected = Object.fromEntries(blocks.map((block) => [block.name, block.value]));
  const found = blocks.find((block) => block.name === "search")?.value;
  return { injected, results: Array.isArray(found) ? (found as Record<string, unknown>[]) : [] };
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function number(value: unknown): number {
  return typeof value === "number" ? value : 0;
}
