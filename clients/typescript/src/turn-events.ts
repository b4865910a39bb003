/** Turns, and the events that stand for what happens in them. */

import type { AgentTurnComplete, AgentTurnStart, EventData, ModelCallComplete } from "./contracts.js";

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

/** What the end of a turn says beside its outcome. */
export type Ending = Pick<Declared<AgentTurnComplete>, "response" | "error_type" | "error_message">;

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

/** The fields that the contracts declare, without room for others. */
type Declared<T> = { [K in keyof T as string extends K ? never : K]: T[K] };

/** An event before it is redacted. */
export type Emitted = {
  [T in keyof EventData]: readonly [type: T, data: Declared<EventData[T]>];
}[keyof EventData];

/** How a turn ended. */
export type Outcome = NonNullable<AgentTurnComplete["outcome"]>;

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
  return [
    "tool.call_complete",
    {
      tool_name: call?.tool ?? "unknown",
      call_id: result.callId,
      result: result.result,
      success: result.error === undefined,
      ...of(turn),
      ...(result.error !== undefined && { error: result.error }),
      ...(call && { duration_ms: since(call.startedMs) }),
    },
  ];
}

/** Return the events of a turn's end: its open calls end without a result. */
export function turnEnd(turn: Turn, outcome: Outcome, more: Ending): Emitted[] {
  const open = [...turn.calls].map(([id, call]): Emitted => [
    "tool.call_complete",
    {
      tool_name: call.tool,
      call_id: id,
      result: null,
      success: null,
      ...of(turn),
      duration_ms: since(call.startedMs),
    },
  ]);
  return [
    ...open,
    [
      "agent.turn_complete",
      {
        ...of(turn),
        success: outcome === "completed",
        outcome,
        duration_ms: since(turn.startedMs),
        ...more,
        ...(turn.contextId && { context_id: turn.contextId }),
      },
    ],
  ];
}

/** Return the event that remembers what was said in a turn; none if there is no text. */
export function memoryOf(turn: Turn, answer: string | undefined): Emitted[] {
  const said = [
    { role: "user", text: turn.message },
    { role: "assistant", text: answer },
  ] as const;
  const messages = said.flatMap(({ role, text }) => {
    const kept = text?.replaceAll("\0", "").trim().slice(0, LONGEST_MEMORY);
    return kept ? [{ role, text: kept }] : [];
  });
  if (messages.length === 0) return [];
  const { chatId, userId } = turn.place;
  return [["memory.add", { thread_id: chatId, ...(userId && { user_id: userId }), messages }]];
}

/** Return what every event of a turn says. */
export function of(turn: Turn): Required<Pick<Declared<AgentTurnStart>, "agent_name" | "turn_number">> {
  return { agent_name: turn.place.agent, turn_number: turn.number };
}

/** Return what is told of a call of the model. */
export function about(exchange: Exchange, answer: ModelAnswer | undefined): Declared<ModelCallComplete> {
  const { turn } = exchange;
  return {
    ...of(turn),
    call_number: turn.modelCalls,
    duration_ms: since(exchange.startedMs),
    ...(answer?.model !== undefined && { model: answer.model }),
    ...(answer?.inputTokens !== undefined && { input_tokens: answer.inputTokens }),
    ...(answer?.outputTokens !== undefined && { output_tokens: answer.outputTokens }),
  };
}

function since(startedMs: number): number {
  return Math.round((performance.now() - startedMs) * 1000) / 1000;
}
