// The types of the contracts, generated from the models of graphweft.
// Do not change them here: renew them with `make generate`.

/** `agent.turn_start`: an agent is about to process. */
export interface AgentTurnStart {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  agent_name: string;
  /** The turn of the agent, from 1 within the chat. */
  turn_number?: number | null | undefined;
  /** The runtime's own id of the agent. */
  agent_id?: string | null | undefined;
  [field: string]: unknown;
}

/** `agent.turn_complete`: an agent has responded, or failed to (`success` false). */
export interface AgentTurnComplete {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  agent_name: string;
  /** The turn of the agent, from 1 within the chat. */
  turn_number?: number | null | undefined;
  response?: unknown;
  success?: boolean | null | undefined;
  /** Name of the context that the agent was given. */
  context_id?: string | null | undefined;
  /** How the turn ended; `success` is true for `completed` and `handed_off`. */
  outcome?: "completed" | "failed" | "handed_off" | "abandoned" | null | undefined;
  duration_ms?: number | null | undefined;
  /** The agent that works on. */
  handed_to?: string | null | undefined;
  /** The runtime's own id of the agent. */
  agent_id?: string | null | undefined;
  /** The kind of error, if the turn failed. */
  error_type?: string | null | undefined;
  error_message?: string | null | undefined;
  [field: string]: unknown;
}

/** `workflow.phase_complete`: the workflow goes over from one phase to the next. */
export interface WorkflowPhaseComplete {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  /** The agent whose turn the event belongs to. */
  agent_name?: string | null | undefined;
  /** The turn of the agent, from 1 within the chat. */
  turn_number?: number | null | undefined;
  phase_name: string;
  next_phase?: string | null | undefined;
  [field: string]: unknown;
}

/** `workflow.complete`: the workflow has finished. */
export interface WorkflowComplete {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  /** The agent whose turn the event belongs to. */
  agent_name?: string | null | undefined;
  /** The turn of the agent, from 1 within the chat. */
  turn_number?: number | null | undefined;
  status?: string | null | undefined;
  /** Seconds from the workflow's start to its end. */
  duration?: number | null | undefined;
  outputs?: unknown;
  [field: string]: unknown;
}

/** `workflow.error`: the workflow failed. */
export interface WorkflowError {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  /** The agent whose turn the event belongs to. */
  agent_name?: string | null | undefined;
  /** The turn of the agent, from 1 within the chat. */
  turn_number?: number | null | undefined;
  error_type: string;
  error_message?: string | null | undefined;
  [field: string]: unknown;
}

/** `tool.call_complete`: a tool has returned or failed. */
export interface ToolCallComplete {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  /** The agent whose turn the event belongs to. */
  agent_name?: string | null | undefined;
  /** The turn of the agent, from 1 within the chat. */
  turn_number?: number | null | undefined;
  tool_name: string;
  result?: unknown;
  success?: boolean | null | undefined;
  /** The id of the call, as at its start. */
  call_id?: string | null | undefined;
  /** Only of an imported run, which has no event of the start. */
  arguments?: unknown;
  /** The text of the error, if the tool failed. */
  error?: string | null | undefined;
  duration_ms?: number | null | undefined;
  [field: string]: unknown;
}

/** `workflow.start`: a run of the workflow begins. */
export interface WorkflowStart {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  /** The agent whose turn the event belongs to. */
  agent_name?: string | null | undefined;
  /** The turn of the agent, from 1 within the chat. */
  turn_number?: number | null | undefined;
  /** Why the session of a coding agent begins. */
  reason?: string | null | undefined;
  [field: string]: unknown;
}

/** `tool.call_start`: a tool is about to be called. */
export interface ToolCallStart {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  /** The agent whose turn the event belongs to. */
  agent_name?: string | null | undefined;
  /** The turn of the agent, from 1 within the chat. */
  turn_number?: number | null | undefined;
  tool_name: string;
  /** Unique within the turn, or the chat. */
  call_id?: string | null | undefined;
  arguments?: unknown;
  [field: string]: unknown;
}

/** `model.call_complete`: a model has answered, or failed to (`success` false). */
export interface ModelCallComplete {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  agent_name?: string | null | undefined;
  /** The turn of the agent, from 1 within the chat. */
  turn_number?: number | null | undefined;
  success?: boolean | null | undefined;
  /** The call, from 1 within the turn. */
  call_number?: number | null | undefined;
  duration_ms?: number | null | undefined;
  model?: string | null | undefined;
  input_tokens?: number | null | undefined;
  output_tokens?: number | null | undefined;
  /** The kind of error, if the call failed. */
  error_type?: string | null | undefined;
  [field: string]: unknown;
}

/** One message that is to be remembered. */
export interface MemoryMessage {
  role: "user" | "assistant" | "system";
  text: string;
  /** When it was said; without it, the event's time. */
  time?: string | null | undefined;
  /** The runtime's own name of the message. */
  message_id?: string | null | undefined;
  author_name?: string | null | undefined;
  /** Words by which it is filtered. */
  tags?: readonly string[] | null | undefined;
  /** Names and values by which it is filtered: texts, numbers, true and false. */
  metadata?: Record<string, unknown> | null | undefined;
  /** Its end, after its time: from then on only searches about the past and `include_ended` find it. */
  expires_at?: string | null | undefined;
}

/** `memory.add`: messages are to be remembered, within a scope. */
export interface MemoryAdd {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  application_id?: string | null | undefined;
  agent_id?: string | null | undefined;
  user_id?: string | null | undefined;
  thread_id?: string | null | undefined;
  messages: readonly MemoryMessage[];
  /** What another store kept with an imported memory. Rules read it; memory stores the metadata of messages only. */
  metadata?: Record<string, unknown> | null | undefined;
  [field: string]: unknown;
}

/** `memory.update`: a memory says something else, or is tagged or pinned. Said in the chat in which it was added. */
export interface MemoryUpdate {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  /** What the memory says from now on. */
  text?: string | null | undefined;
  /** Since when it says so; without it, the event's time. */
  time?: string | null | undefined;
  /** All tags from now on; empty: none. */
  tags?: readonly string[] | null | undefined;
  /** All metadata from now on; empty: none. */
  metadata?: Record<string, unknown> | null | undefined;
  /** Whether it is always shown, never summarized, and never forgotten by age or number. */
  pinned?: boolean | null | undefined;
  /** Its end from now on, after the time of the update; `never`: it has none. */
  expires_at?: string | "never" | null | undefined;
  memory_id: string;
  /** Who says so; searches find the text by this name too. */
  author_name?: string | null | undefined;
  [field: string]: unknown;
}

/** `memory.forget`: single memories have outlived their time. Said in the chat in which they were added. */
export interface MemoryForget {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  memory_ids: readonly string[];
  /** What users stated in them stays, sentence by sentence, and is found in their place. */
  keep_statements?: boolean | undefined;
  [field: string]: unknown;
}

/** `memory.erase`: all that is remembered of a user is erased, and what the log has before stays out for ever. */
export interface MemoryErase {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  user_id: string;
  /** Only what the log took up to this time is erased; without it, all that it has before the event. */
  before?: string | null | undefined;
  [field: string]: unknown;
}

/** `statement.unjudged`: a verdict is taken back. Said in the chat of the later statement. */
export interface StatementUnjudged {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  /** The id of the later statement. */
  new: string;
  /** The id of the earlier statement. */
  old: string;
  [field: string]: unknown;
}

/** `episode.add`: an episode is to be remembered, within a scope. */
export interface EpisodeAdd {
  /** Context variables: `$context.*` in rules. */
  context?: Record<string, unknown> | undefined;
  application_id?: string | null | undefined;
  agent_id?: string | null | undefined;
  user_id?: string | null | undefined;
  thread_id?: string | null | undefined;
  name?: string | null | undefined;
  /** A text; of a JSON episode an object, or the text of some JSON. */
  content: string | Record<string, unknown>;
  episode_type?: "text" | "json" | "message" | undefined;
  /** The ontology to go by; without it `agent_memory_v1` for a content with `<graphiti_episode`. */
  schema_id?: string | null | undefined;
  /** The time that the episode is about; without it, the event's time. */
  reference_time?: string | null | undefined;
  source_description?: string | null | undefined;
  /** The runtime's own name of the episode. */
  episode_id?: string | null | undefined;
  [field: string]: unknown;
}

/** The data of the event types of the contracts. */
export interface EventData {
  "agent.turn_start": AgentTurnStart;
  "agent.turn_complete": AgentTurnComplete;
  "workflow.phase_complete": WorkflowPhaseComplete;
  "workflow.complete": WorkflowComplete;
  "workflow.error": WorkflowError;
  "tool.call_complete": ToolCallComplete;
  "workflow.start": WorkflowStart;
  "tool.call_start": ToolCallStart;
  "model.call_complete": ModelCallComplete;
  "memory.add": MemoryAdd;
  "memory.update": MemoryUpdate;
  "memory.forget": MemoryForget;
  "memory.erase": MemoryErase;
  "statement.unjudged": StatementUnjudged;
  "episode.add": EpisodeAdd;
}

/** Why a block, or a whole reply, is missing. */
export type Reason =
  | "bus_unavailable"
  | "condition_error"
  | "disabled"
  | "embedder_unavailable"
  | "graph_unavailable"
  | "internal_error"
  | "invalid_request"
  | "missing_param"
  | "no_rules"
  | "overloaded"
  | "query_error"
  | "timeout"
  | "token_budget";

/** How a search goes. */
export type IndexType = "vector" | "fulltext" | "hybrid";

/** What a search within a scope finds. */
export type Searched = "all" | "memories" | "facts" | "preferences" | "summaries" | "entities" | "episodes" | "profile";

/** The form of a block's value. */
export type Format = "list" | "single" | "json" | "markdown" | "results" | "facts" | "memory";
