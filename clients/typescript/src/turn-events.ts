/** Turns, and the events that stand for what happens in them. */

const LONGEST_MEMORY = 100_000;

/** The chat of a turn. */
export interface Place {
  chatId: string;
  userId: string | undefined;
  agent: string;
  workflow: string;
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

/** A turn that began. */
export interface Turn {
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

/** An event before it is redacted. */
export type Emitted = readonly [type: string, data: Record<string, unknown>];

/** One model call. Report its end once; further reports have no effect. */
export interface Exchange {
  readonly turn: Turn;
  startedMs: number;
  ended: boolean;
}

/** Return the event of a tool's end; the call is no longer open. */
export function toolEnd(turn: Turn, result: ToolResult): Emitted {
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

/** Return the events of a turn's end: its open calls end without a result. */
export function turnEnd(turn: Turn, outcome: string, more: Record<string, unknown>): Emitted[] {
  const open = [...turn.calls].map(([id, call]): Emitted => {
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

/** Return the event that remembers what was said in a turn; none if there is no text. */
export function memoryOf(turn: Turn, answer: string | undefined): Emitted[] {
  const said = [
    { role: "user", text: turn.message },
    { role: "assistant", text: answer },
  ];
  const messages = said.flatMap(({ role, text }) => {
    const kept = text?.replaceAll("\0", "").trim().slice(0, LONGEST_MEMORY);
    return kept ? [{ role, text: kept }] : [];
  });
  if (messages.length === 0) return [];
  const { chatId, userId } = turn.place;
  return [["memory.add", { thread_id: chatId, ...(userId && { user_id: userId }), messages }]];
}

/** Return what every event of a turn says. */
export function of(turn: Turn): Record<string, unknown> {
  return { agent_name: turn.place.agent, turn_number: turn.number };
}

/** Return what is told of a call of the model. */
export function about(exchange: Exchange, answer: ModelAnswer | undefined): Record<string, unknown> {
  const { turn } = exchange;
  const told = { model: answer?.model, input_tokens: answer?.inputTokens, output_tokens: answer?.outputTokens };
  const known = Object.entries(told).filter(([, value]) => value !== undefined);
  return { ...of(turn), call_number: turn.modelCalls, duration_ms: since(exchange.startedMs), ...Object.fromEntries(known) };
}

function since(startedMs: number): number {
  return Math.round((performance.now() - startedMs) * 1000) / 1000;
}
