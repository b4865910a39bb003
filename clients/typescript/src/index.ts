export { Client, type ClientOptions } from "./client.js";
export type {
  Block,
  ContextOptions,
  ContextReply,
  MemoryFilters,
  MemoryScope,
  Message,
  Missing,
  Reason,
  RequestOptions,
  SearchOptions,
} from "./context.js";
export type * from "./contracts.js";
export type { EmitOptions, EmitStats } from "./emitter.js";
export {
  AccessDenied,
  type Fault,
  GraphweftError,
  InvalidEvent,
  InvalidSettings,
  OverLimit,
  ProblemError,
  Refused,
  ServerTrouble,
  TooLarge,
  Unavailable,
} from "./errors.js";
export { type CloudEvent, createEvent, type DataOf, type EventFields, type EventType } from "./events.js";
export type { TokenSource } from "./http.js";
export {
  type MemoryChanges,
  MemoryClient,
  type MemoryOptions,
  type MemoryRecord,
  type Metadata,
  type RecallOptions,
  type RememberedMessage,
} from "./memory.js";
