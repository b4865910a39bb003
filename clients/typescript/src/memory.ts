/** Memories of an agent: remember messages within a scope, recall, list, update and forget them. */

import type { Client } from "./client.js";
import {
  type ContextReply,
  type MemoryFilters,
  type MemoryScope,
  type Message,
  type SearchOptions,
  isoTime,
  wireScope,
} from "./context.js";
import type { MemoryMessage } from "./contracts.js";
import type { EmitOptions } from "./emitter.js";
import { InvalidEvent, Unavailable } from "./errors.js";
import { createEvent } from "./events.js";
import { derivedId } from "./ids.js";
import { wellFormed } from "./values.js";

const SOURCE = "/graphweft/memory";
const ROLES: readonly string[] = ["user", "assistant"];
const KNOWN = new Set(["role", "text", "content", "time", "messageId", "authorName", "tags", "metadata", "expiresAt"]);
/** What may say what is to be forgotten. */
const FORGETTING = new Set(["ids", "tags", "metadata", "since", "until"]);
const FORGETTABLE = new Set(["memory", "statement"]);
const PAGE = 1_000;
const LISTING_MS = 2_000;
const SCOPES = ["application_id", "agent_id", "user_id", "thread_id"] as const;

/** A message to remember. Messages with another role, or without text, are skipped. */
export interface RememberedMessage extends Message {
  /** When it was said. */
  time?: Date | undefined;
  /** The runtime's own id of the message. */
  messageId?: string | undefined;
  authorName?: string | undefined;
  /** Words by which it is filtered. */
  tags?: readonly string[] | undefined;
  metadata?: Metadata | undefined;
  /** Its end, after its time: from then on it is found by questions about the past, by its id, and with `includeEnded`. */
  expiresAt?: Date | undefined;
}

/** Names and values by which memories are filtered. */
export type Metadata = Readonly<Record<string, string | number | boolean>>;

/** What `update` changes; what is not given stays. */
export interface MemoryChanges {
  /** What the memory says from now on. */
  text?: string | undefined;
  /** The same, as chat APIs name it. */
  content?: string | undefined;
  /** Since when it says so; now without it. */
  time?: Date | undefined;
  tags?: readonly string[] | undefined;
  metadata?: Metadata | undefined;
  /** Whether it is always shown, never summarized, and never forgotten by age or number. */
  pinned?: boolean | undefined;
  /** Its end from now on; null: it has none. */
  expiresAt?: Date | null | undefined;
}

/** A row of what is remembered, by the names of its columns. */
export type MemoryRecord = Readonly<Record<string, unknown>>;

export interface MemoryOptions extends MemoryScope {
  /** The roles that are remembered: `user` and `assistant` without it. The gateway takes no other. */
  memoryRoles?: readonly ("user" | "assistant")[] | undefined;
  /** How many of the last messages `recall` searches by; 10 without it. */
  messageHistoryCount?: number | undefined;
  /**
   * Whether reads wait, within their budget, until the graph holds what this object last remembered or changed: true
   * without it. A reply without that has `staleBy`.
   */
  readOwnWrites?: boolean | undefined;
  source?: string | undefined;
}

/** Options of `recall`. */
export type RecallOptions = Omit<SearchOptions, "memory" | "indexName" | "fulltextIndexName" | "messageHistoryCount">;

/** Remembers, recalls and changes messages within one scope. `forget` and `eraseUser` need a token with the role `erase`. */
export class MemoryClient {
  readonly #client: Client;
  readonly #options: MemoryOptions;
  readonly #scope: Readonly<Record<string, string>>;
  readonly #roles: readonly string[];
  #position: string | undefined;

  constructor(client: Client, options: MemoryOptions) {
    this.#client = client;
    this.#options = { ...options };
    this.#scope = wireScope(options);
    this.#roles = options.memoryRoles ?? ROLES;
    if (this.#roles.length === 0 || !this.#roles.every((role) => ROLES.includes(role))) {
      throw new InvalidEvent("memoryRoles has an unknown role", "use user, assistant or both");
    }
  }

  /**
   * Publish the messages as one event, and return its position; null if no message is to be remembered.
   *
   * If each message has a `messageId`, remembering the same messages again has no effect within the next 10,000 events
   * of the app. Throws as `Client.emit` does.
   */
  async remember(
    messages: readonly RememberedMessage[],
    options: EmitOptions & { time?: Date; tags?: readonly string[]; metadata?: Metadata; expiresAt?: Date } = {},
  ): Promise<string | null> {
    if (!Array.isArray(messages)) throw new InvalidEvent("messages is not a list", "pass a list of messages");
    const { tags, metadata, expiresAt } = options;
    const kept = messages.flatMap((message) =>
      wireMessage({ tags, metadata, expiresAt, ...message }, this.#roles, options.time),
    );
    if (kept.length === 0) return null;
    let id: string | undefined;
    if (kept.every((message) => message.message_id)) {
      const scope = SCOPES.map((name) => this.#scope[name] ?? "");
      const named = kept.flatMap((message) => [message.message_id ?? "", message.role, message.text]);
      id = await derivedId("memory.add", ...scope, ...named);
    }
    const event = createEvent("memory.add", { ...this.#fields(), id, data: { ...this.#scope, messages: kept } });
    return (this.#position = await this.#client.emit(event, options));
  }

  /** Return what the scope holds for a text or messages, as `Client.search` does. An empty query finds the latest. */
  recall(query: string | readonly Message[] = "", options: RecallOptions = {}): Promise<ContextReply> {
    const { applicationId, agentId, userId, threadId, messageHistoryCount, readOwnWrites } = this.#options;
    return this.#client.search(query, {
      messageHistoryCount,
      after: readOwnWrites === false ? undefined : this.#position,
      ...options,
      memory: { applicationId, agentId, userId, threadId },
    });
  }

  /** Return a record of the scope by its id, or null. Throws without an answer. */
  async get(memoryId: string): Promise<MemoryRecord | null> {
    return (await this.list({ ids: [memoryId], of: "all", topK: 1 }))[0] ?? null;
  }

  /** Return the latest records of the scope, memories without `of`, at most `topK` (100). Throws without an answer. */
  async list(
    options: MemoryFilters & Pick<RecallOptions, "of" | "topK" | "budgetMs" | "signal"> = {},
  ): Promise<readonly MemoryRecord[]> {
    if (options.minScore !== undefined) {
      throw new InvalidEvent("minScore is for `recall` with a query", "leave it out: the latest records have no score");
    }
    const reply = await this.recall("", { of: "memories", topK: 100, budgetMs: LISTING_MS, ...options });
    if (reply.error) throw reply.error;
    if (!("search" in reply.injected)) {
      const why = reply.missing[0] ?? reply;
      throw new Unavailable("no-answer", `the memories were not read (${why.reason})`, why.detail || "try again");
    }
    if (reply.staleBy !== null) {
      throw new Unavailable("no-answer", "the graph does not hold yet what was written before", "call again");
    }
    return reply.results;
  }

  /**
   * Change a memory of the scope, and return the event's position. A search `asOf` an earlier time finds what the
   * memory said before. Throws `InvalidEvent` if the scope has no such memory.
   */
  async update(memoryId: string, changes: MemoryChanges, options: EmitOptions = {}): Promise<string> {
    const { text: said, content, time, tags, metadata, pinned, expiresAt, ...rest } = changes;
    const text = said ?? content;
    const other = Object.keys(rest)[0];
    if (other !== undefined) {
      throw new InvalidEvent(`an update has no ${other}`, "give text, tags, metadata, pinned, expiresAt or time");
    }
    if (said !== undefined && content !== undefined) {
      throw new InvalidEvent("text and content are two names of one thing", "give one of them");
    }
    if (text !== undefined && !text.trim()) {
      throw new InvalidEvent("nothing is left of the text", "give some text, or `forget` the memory");
    }
    const row = await this.get(memoryId);
    if (row === null || typeof row["chat_id"] !== "string") {
      throw new InvalidEvent("the scope has no such memory", "`list` returns its memories with their ids");
    }
    if (row["kind"] !== "memory") {
      throw new InvalidEvent("this is left of a forgotten memory", "`forget` it, and remember what holds");
    }
    if ([text, tags, metadata, pinned, expiresAt].every((each) => each === undefined)) {
      throw new InvalidEvent("the update changes nothing", "give text, tags, metadata, pinned or expiresAt");
    }
    checkEnd(expiresAt, time);
    const data = {
      memory_id: String(row["id"]),
      ...(text !== undefined && { text: wellFormed(text.replaceAll("\0", "")) }),
      ...(text !== undefined && typeof row["author_name"] === "string" && { author_name: row["author_name"] }),
      ...(time && { time: isoTime("time", time) }),
      ...(tags && { tags: [...tags] }),
      ...(metadata && { metadata }),
      ...(pinned !== undefined && { pinned }),
      ...(expiresAt !== undefined && { expires_at: expiresAt === null ? "never" : isoTime("expiresAt", expiresAt) }),
    };
    const event = createEvent("memory.update", { ...this.#fields(), chatId: row["chat_id"], data });
    return (this.#position = await this.#client.emit(event, options));
  }

  /** Pin a memory, or unpin it: see `update`. */
  pin(memoryId: string, pinned = true, options: EmitOptions = {}): Promise<string> {
    return this.update(memoryId, { pinned }, options);
  }

  /**
   * Forget memories of the scope, by their ids or by `tags`, `metadata`, `since`, `until`, with all that they said
   * before. An id may also be that of a statement that is left of a forgotten memory: all that are left of it go. Returns
   * the ids of those that were found, of an empty list of ids none. Facts, preferences and summaries from them stay.
   */
  async forget(which: readonly string[] | MemoryFilters, options: EmitOptions = {}): Promise<readonly string[]> {
    const filters: MemoryFilters = isList(which) ? { ids: which } : which;
    const given = Object.entries(filters).filter(([, value]) => value != null);
    const other = given.map(([name]) => name).find((name) => !FORGETTING.has(name));
    if (other !== undefined) throw new InvalidEvent(`${other} is no filter of what to forget`, "leave it out");
    if (given.length === 0) throw new InvalidEvent("nothing says what to forget", "give ids or a filter");
    if (filters.ids?.length === 0) return [];
    for (const [name, value] of given) {
      if (value instanceof Date || Object.keys(value as object).length > 0) continue;
      throw new InvalidEvent(`${name} is empty, which limits nothing`, "name at least one, or leave it out");
    }
    const of = filters.ids ? "all" : "memories";
    const forgotten = new Set<string>();
    for (;;) {
      const rows = await this.list({ ...filters, of, topK: PAGE, ...(filters.ids ? {} : { includeEnded: true }) });
      const found = rows.filter((row) => FORGETTABLE.has(String(row["kind"]))).map((row) => String(row["id"]));
      const ids = found.filter((id) => !forgotten.has(id));
      if (ids.length === 0) return [...forgotten];
      const chats = new Map<string, Set<string>>();
      for (const row of await this.list({ ids, of, topK: PAGE })) {
        const chat = String(row["chat_id"]);
        // A statement goes by the memory that it is left of.
        chats.set(chat, (chats.get(chat) ?? new Set()).add(String(row["memory_id"] ?? row["id"])));
      }
      // Only in the chat in which a memory was added, adding and forgetting have an order.
      for (const [chatId, memoryIds] of chats) {
        const event = createEvent("memory.forget", { ...this.#fields(), chatId, data: { memory_ids: [...memoryIds] } });
        this.#position = await this.#client.emit(event, options);
      }
      for (const id of ids) forgotten.add(id);
    }
  }

  /**
   * Erase the memories of a user, by default the scope's, in all scopes of the app and in every later replay.
   *
   * With `before`, only what the log took up to this time. Returns the event's position.
   */
  async eraseUser(userId?: string, options: EmitOptions & { before?: Date } = {}): Promise<string> {
    const user = userId ?? this.#options.userId;
    if (!user) throw new InvalidEvent("there is no user to erase", "pass userId");
    const { before } = options;
    if (before && before.getTime() > Date.now()) {
      throw new InvalidEvent("before lies in the future", "erase again then, or leave it out for now");
    }
    const data = { user_id: user, before: before?.toISOString() };
    const event = createEvent("memory.erase", { ...this.#fields(), chatId: user, userId: user, data });
    return (this.#position = await this.#client.emit(event, options));
  }

  #fields(): { chatId: string; userId: string | undefined; source: string } {
    const chat = [...SCOPES].reverse().find((name) => this.#scope[name]) ?? "user_id";
    return {
      chatId: this.#scope[chat] ?? "",
      userId: this.#options.userId,
      source: this.#options.source ?? SOURCE,
    };
  }
}

function isList(which: readonly string[] | MemoryFilters): which is readonly string[] {
  return Array.isArray(which);
}

function wireMessage(message: RememberedMessage, roles: readonly string[], time: Date | undefined): MemoryMessage[] {
  const said = message.text ?? message.content;
  if (!roles.includes(message.role) || typeof said !== "string" || !said.trim()) return [];
  for (const [name, value] of Object.entries(message)) {
    if (KNOWN.has(name) || value == null) continue;
    // A long name, or one with blanks, may be a misplaced value.
    const told = /^[A-Za-z_][A-Za-z0-9_-]{0,63}$/.test(name) ? `the unknown field ${name}` : "an unknown field";
    const step = "remove it, or store it with an event and a rule of your own";
    throw new InvalidEvent(`a message has ${told}, which would be lost`, step);
  }
  const at = message.time ?? time;
  checkEnd(message.expiresAt, at);
  return [
    {
      role: message.role as MemoryMessage["role"],
      text: wellFormed(said.replaceAll("\0", "")), // graphs reject NUL, and with it the whole event
      ...(at && { time: isoTime("time", at) as string }),
      ...(message.messageId && { message_id: message.messageId }),
      ...(message.authorName && { author_name: message.authorName }),
      ...(message.tags && { tags: [...message.tags] }),
      ...(message.metadata && { metadata: { ...message.metadata } }),
      ...(message.expiresAt && { expires_at: isoTime("expiresAt", message.expiresAt) as string }),
    },
  ];
}

function checkEnd(expiresAt: Date | null | undefined, time: Date | undefined): void {
  isoTime("time", time);
  isoTime("expiresAt", expiresAt);
  if (expiresAt && expiresAt.getTime() <= (time?.getTime() ?? Date.now())) {
    const step = "give a later one, or, of what was said long ago, its time, too";
    throw new InvalidEvent("expiresAt is not after the time at which this is said", step);
  }
}
