/** Memories of an agent: remember messages within a scope, recall and forget them. */

import type { Client } from "./client.js";
import { type ContextReply, type MemoryScope, type Message, type SearchOptions, wireScope } from "./context.js";
import type { MemoryMessage } from "./contracts.js";
import type { EmitOptions } from "./emitter.js";
import { InvalidEvent } from "./errors.js";
import { createEvent } from "./events.js";
import { derivedId } from "./ids.js";
import { wellFormed } from "./values.js";

const SOURCE = "/graphweft/memory";
const ROLES: readonly string[] = ["user", "assistant"];
const KNOWN = new Set(["role", "text", "content", "time", "messageId", "authorName"]);
const SCOPES = ["application_id", "agent_id", "user_id", "thread_id"] as const;

/** A message to remember. Messages with another role, or without text, are skipped. */
export interface RememberedMessage extends Message {
  /** When it was said. */
  time?: Date | undefined;
  /** The runtime's own id of the message. */
  messageId?: string | undefined;
  authorName?: string | undefined;
}

export interface MemoryOptions extends MemoryScope {
  /** The roles that are remembered: `user` and `assistant` without it. The gateway takes no other. */
  memoryRoles?: readonly ("user" | "assistant")[] | undefined;
  /** How many of the last messages `recall` searches by; 10 without it. */
  messageHistoryCount?: number | undefined;
  /** `recall` waits, within its budget, until the graph holds what this object last remembered, forgot or erased. */
  readOwnWrites?: boolean | undefined;
  source?: string | undefined;
}

/** Options of `recall`. */
export type RecallOptions = Omit<SearchOptions, "memory" | "indexName" | "fulltextIndexName" | "messageHistoryCount">;

/** Remembers and recalls messages within one scope. `forget` and `eraseUser` need a token with the role `erase`. */
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
  async remember(messages: readonly RememberedMessage[], options: EmitOptions & { time?: Date } = {}): Promise<string | null> {
    if (!Array.isArray(messages)) throw new InvalidEvent("messages is not a list", "pass a list of messages");
    const kept = messages.flatMap((message) => wireMessage(message, this.#roles, options.time));
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
      after: readOwnWrites ? this.#position : undefined,
      ...options,
      memory: { applicationId, agentId, userId, threadId },
    });
  }

  /** Forget single memories by their ids, which are the `id` of the rows of `recall`. Returns the event's position. */
  async forget(memoryIds: readonly string[], options: EmitOptions = {}): Promise<string> {
    if (memoryIds.length === 0) throw new InvalidEvent("memoryIds is empty", "name the memories to forget");
    const event = createEvent("memory.forget", { ...this.#fields(), data: { memory_ids: [...memoryIds] } });
    return (this.#position = await this.#client.emit(event, options));
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
  return [
    {
      role: message.role as MemoryMessage["role"],
      text: wellFormed(said.replaceAll("\0", "")), // graphs reject NUL, and with it the whole event
      ...(at && { time: at.toISOString() }),
      ...(message.messageId && { message_id: message.messageId }),
      ...(message.authorName && { author_name: message.authorName }),
    },
  ];
}
