"""Spans of OpenInference, OpenLLMetry and the Vercel AI SDK become the events that GenAI spans become."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graphweft.adapters.genai import Span, events_of
from graphweft_workers.gateway.limits import GatewayLimits
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.gateway.traces import JSON, Traces, read_traces

MS = 1_000_000
AGENT: dict[str, dict[str, Any]] = {
    "OpenInference": {
        "openinference.span.kind": "AGENT", "session.id": "c1", "user.id": "ada", "output.value": "Oslo",
    },
    "OpenLLMetry": {
        "traceloop.span.kind": "agent", "traceloop.entity.name": "Planner",
        "traceloop.entity.output": '{"outputs": "Oslo"}',
        "traceloop.association.properties.session_id": "c1", "traceloop.association.properties.user_id": "ada",
    },
    "AI SDK": {
        "ai.operationId": "ai.generateText", "ai.telemetry.functionId": "Planner", "ai.response.text": "Oslo",
        "ai.telemetry.metadata.chatId": "c1", "ai.telemetry.metadata.userId": "ada",
    },
}  # fmt: skip
TOOL: dict[str, dict[str, Any]] = {
    "OpenInference": {
        "openinference.span.kind": "TOOL", "tool.name": "weather", "input.value": '{"city": "Oslo"}',
        "output.value": "rain", "tool_call.id": "t1",
    },
    "OpenLLMetry": {
        "traceloop.span.kind": "tool", "traceloop.entity.name": "weather", "traceloop.entity.input": '{"city": "Oslo"}',
        "traceloop.entity.output": "rain",
    },
    "AI SDK": {
        "ai.operationId": "ai.toolCall", "ai.toolCall.name": "weather", "ai.toolCall.args": '{"city": "Oslo"}',
        "ai.toolCall.result": "rain", "ai.toolCall.id": "t1",
    },
}  # fmt: skip
MODEL: dict[str, dict[str, Any]] = {
    "OpenInference": {
        "openinference.span.kind": "LLM", "llm.model_name": "m", "llm.token_count.prompt": 5,
        "llm.token_count.completion": 7,
    },
    "OpenLLMetry": {
        "llm.request.type": "chat", "gen_ai.request.model": "m", "gen_ai.usage.prompt_tokens": 5,
        "gen_ai.usage.completion_tokens": 7,
    },
    "AI SDK": {
        "ai.operationId": "ai.generateText.doGenerate", "ai.model.id": "m", "ai.usage.promptTokens": 5,
        "ai.usage.completionTokens": 7,
    },
}  # fmt: skip


def span(id: str, attributes: dict[str, Any], parent: str | None = None, name: str = "Planner") -> Span:
    order = int(id, 16) * MS
    return Span(
        trace_id="1" * 32, span_id=id * 16, parent_id=parent and parent * 16, name=name, start_ns=order,
        end_ns=30 * MS - order, attributes=attributes,
    )  # fmt: skip


@pytest.mark.parametrize("convention", AGENT)
def test_spans_of_other_conventions_become_events(convention: str) -> None:
    spans = [
        span("1", AGENT[convention]),
        span("2", TOOL[convention], "1", "run"),
        span("3", MODEL[convention], "1", "call"),
    ]
    found = {event.type: event for event in events_of(spans)}
    assert found.keys() == {
        "agent.turn_start", "agent.turn_complete", "tool.call_start", "tool.call_complete", "model.call_complete",
    }  # fmt: skip
    assert {(event.place.chat_id, event.place.user_id, event.place.agent) for event in found.values()} == {
        ("c1", "ada", "Planner")
    }
    assert found["agent.turn_complete"].data["response"] == "Oslo"
    call = found["tool.call_start"].data
    assert (call["tool_name"], call["arguments"]) == ("weather", {"city": "Oslo"})
    assert found["tool.call_complete"].data["result"] == "rain"
    model = found["model.call_complete"].data
    assert (model["model"], model["input_tokens"], model["output_tokens"]) == ("m", 5, 7)


def test_what_a_span_says_in_the_genai_conventions_counts_first() -> None:
    both = AGENT["OpenInference"] | {"gen_ai.agent.name": "Writer", "gen_ai.conversation.id": "c2"}
    place = events_of([span("1", both)])[0].place
    assert (place.agent, place.chat_id) == ("Writer", "c2")


def test_a_span_that_arrives_without_its_parents_names_its_agent_itself() -> None:
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather", "gen_ai.agent.name": "Planner"}
    assert {event.place.agent for event in events_of([span("2", tool, "1")])} == {"Planner"}
    above = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "Team"}
    agents = {event.type: event.data["agent_name"] for event in events_of([span("1", above), span("2", tool, "1")])}
    assert agents["tool.call_complete"] == "Planner"
    assert agents["agent.turn_complete"] == "Team"


def traces(body: Any) -> Traces:
    return read_traces(JSON, json.dumps(body).encode(), app_id="acme", limits=GatewayLimits())


RAW = {
    "name": "execute_tool weather", "attributes": [{"key": "gen_ai.tool.name", "value": {"stringValue": "weather"}}],
    "startTimeUnixNano": "1769904000000000000", "endTimeUnixNano": "1769904001000000000",
}  # fmt: skip


def test_the_names_of_the_proto_are_read() -> None:
    camel = {"traceId": "1" * 32, "spanId": "2" * 16, **RAW}
    snake = {"trace_id": "1" * 32, "span_id": "2" * 16, **RAW}
    one = traces({"resourceSpans": [{"scopeSpans": [{"spans": [camel]}]}]})
    two = traces({"resource_spans": [{"scope_spans": [{"spans": [snake]}]}]})
    assert [event.id for event in one.events] == [event.id for event in two.events]
    assert len(two.events) == 2


@pytest.mark.parametrize("body", [{"spans": []}, {"resourceLogs": []}, {"ResourceSpans": []}])
def test_a_body_that_holds_no_traces_is_refused(body: Any) -> None:
    with pytest.raises(Problem) as refused:
        traces(body)
    assert refused.value.status == 422


def test_an_empty_request_is_fine() -> None:
    assert (traces({}).events, traces({"resourceSpans": []}).rejected) == ([], 0)


def test_ignored_spans_are_counted_by_library_and_reason() -> None:
    other = {"traceId": "1" * 32, "spanId": "3" * 16, **RAW, "name": "GET /x", "attributes": []}
    embed = {**other, "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "embeddings"}}]}
    spans = [{"scope": {"name": "http"}, "spans": [other, other, embed]}, {"spans": [other]}]
    assert dict(traces({"resourceSpans": [{"scopeSpans": spans}]}).ignored) == {
        ("http", "no_operation"): 2, ("http", "other_operation"): 1, ("(no name)", "no_operation"): 1
    }  # fmt: skip
