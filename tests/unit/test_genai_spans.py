"""GenAI spans as events: what each operation gives, whose it is, its id and its order."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.declared_fields import undeclared

from graphweft.adapters.genai import Conversations, Span, SpanEvent, events_of, time_of
from graphweft_contracts import LIFECYCLE

TRACE = f"{7:032x}"
SECOND = 10**9


def span(number: int, operation: str | None, start: int, end: int, above: int = 0, **more: Any) -> Span:
    """Return a span by its number, with times in seconds; keywords with ``__`` are attributes of the conventions."""
    named = {key: value for key, value in more.items() if key in Span.__dataclass_fields__}
    attributes = {f"gen_ai.{key.replace('__', '.')}": value for key, value in more.items() if key not in named}
    own = {} if operation is None else {"gen_ai.operation.name": operation}
    return Span(
        **{
            "trace_id": TRACE,
            "span_id": f"{number:016x}",
            "parent_id": f"{above:016x}" if above else None,
            "start_ns": start * SECOND,
            "end_ns": end * SECOND,
            **named,
            "attributes": {**own, **attributes, **named.get("attributes", {})},
        }
    )


def said(events: list[SpanEvent]) -> list[str]:
    assert [fault for one in events for fault in undeclared(one.type, one.data)] == []
    shown = ("agent_name", "tool_name", "success")
    return [" ".join([one.type, *(str(one.data[name]) for name in shown if name in one.data)]) for one in events]


def run() -> list[Span]:
    return [
        span(1, "invoke_workflow", 0, 9, workflow__name="Trip"),
        span(2, None, 1, 8, 1, name="executor.process"),
        span(3, "invoke_agent", 1, 8, 2, agent__name="Planner", conversation__id="c1"),
        span(4, "chat", 2, 3, 3, response__model="m-1", usage__input_tokens=5, usage__output_tokens=7),
        span(5, "execute_tool", 4, 6, 3, tool__name="ask", tool__call__id="t1"),
        span(6, "invoke_agent", 4, 5, 5, agent__name="Helper"),
        span(7, "generate_content", 4, 5, 6, request__model="m-2", attributes={"error.type": "Timeout"}),
        span(8, "text_completion", 7, 8, 3),
        span(9, "embeddings", 7, 8, 3),
    ]


def test_a_run_gives_its_events_by_time_whatever_the_order_of_the_spans() -> None:
    expected = [
        "workflow.start",
        "agent.turn_start Planner",
        "model.call_complete Planner True",
        "tool.call_start Planner ask",
        "agent.turn_start Helper",
        "model.call_complete Helper False",
        "agent.turn_complete Helper True",
        "tool.call_complete Planner ask True",
        "model.call_complete Planner True",
        "agent.turn_complete Planner True",
        "workflow.complete",
    ]
    assert said(events_of(run())) == expected
    for seed in range(20):
        shuffled = run() + run()[:3]  # some stand there twice
        random.Random(seed).shuffle(shuffled)
        assert said(events_of(shuffled)) == expected


def test_every_event_holds_to_its_contract_and_has_an_id_of_its_own() -> None:
    events = events_of(run())
    for event in events:
        LIFECYCLE[event.type].model_validate(event.data)
    assert len({event.id for event in events}) == len(events)
    assert events[1].id == f"{TRACE}-{3:016x}-start"
    assert (events[-1].id, events[-1].time_ns) == (f"{TRACE}-{1:016x}-end", 9 * SECOND)
    assert [event.id for event in events_of(run())] == [event.id for event in events]


def test_what_events_hold() -> None:
    texts = [
        {"type": kind, "content": text} for kind, text in (("reasoning", "hm"), ("text", "It "), ("text", "rains."))
    ]
    messages = [{"role": "assistant", "parts": texts}, {"role": "tool", "parts": []}]
    look = {"tool__name": "look", "tool__call__arguments": '{"city": "Oslo"}', "tool__call__result": "sunny"}
    book = {"name": "execute_tool book", "tool__call__arguments": "{broken", "failed": True, "status_message": "taken"}
    chat = {"response__model": "m-1", "request__model": "m", "usage__input_tokens": 5, "usage__output_tokens": 7}
    events = events_of(
        [
            span(1, "invoke_agent", 0, 3, agent__name="A", agent__id="a-1", output__messages=json.dumps(messages)),
            span(2, "execute_tool", 0, 1, 1, **look),
            span(3, "execute_tool", 1, 1, 1, **book),
            span(4, "chat", 1, 2, 1, **chat),
        ]
    )
    agent, called = {"agent_name": "A"}, {"tool_name": "look", "call_id": f"{2:016x}", "agent_name": "A"}
    broken = {"tool_name": "book", "call_id": f"{3:016x}", "agent_name": "A"}
    assert [event.data for event in events] == [
        agent | {"agent_id": "a-1"},
        called | {"arguments": {"city": "Oslo"}},
        called | {"result": "sunny", "success": True, "duration_ms": 1000.0},
        broken | {"arguments": "{broken"},
        broken | {"result": None, "success": False, "duration_ms": 0.0, "error": "taken"},
        agent | {"success": True, "duration_ms": 1000.0, "model": "m-1", "input_tokens": 5, "output_tokens": 7},
        agent
        | {"agent_id": "a-1", "success": True, "outcome": "completed", "response": "It rains.", "duration_ms": 3000.0},
    ]


def test_an_error_is_told_once_in_its_trace_whoever_passes_it_on() -> None:
    def failing(number: int, operation: str, above: int, **more: Any) -> Span:
        return span(
            number, operation, number, 9, above, failed=True, exception_message="no model",
            attributes={"error.type": "ConnectionError"}, **more,
        )  # fmt: skip

    spans = [
        failing(1, "invoke_workflow", 0, workflow__name="Trip"),
        failing(2, "invoke_agent", 1, agent__name="A"),
        failing(3, "chat", 2),
    ]
    *_, model, turn, error, again = events_of(spans)
    assert (model.data["error_type"], model.data["success"]) == ("ConnectionError", False)
    assert (turn.data["outcome"], turn.data["error_message"]) == ("failed", "no model")
    about = {"error_type": "ConnectionError", "error_message": "no model"}
    assert (error.type, error.data) == ("workflow.error", {**about, "agent_name": "A"})
    assert (again.type, again.data) == ("workflow.error", about)
    assert error.id == again.id, "the bus drops the second one"
    [_, _, other] = events_of([span(5, "invoke_agent", 1, 2, agent__name="A", attributes={"error.type": "Timeout"})])
    assert other.id != error.id


@pytest.mark.parametrize(
    ("attributes", "more", "kind", "message"),
    [
        ({"error.type": "_OTHER"}, {"exception_type": "KeyError", "exception_message": "'x'"}, "KeyError", "'x'"),
        ({}, {"failed": True, "status_message": "gone"}, "Error", "gone"),
        ({"error.type": "500"}, {}, "500", None),
    ],
)
def test_what_an_error_is_called(attributes: Any, more: Any, kind: str, message: str | None) -> None:
    *_, error = events_of([span(1, "invoke_agent", 0, 1, agent__name="A", attributes=attributes, **more)])
    assert (error.data["error_type"], error.data.get("error_message")) == (kind, message)


def test_a_chat_is_that_of_the_span_then_of_its_trace_then_the_trace() -> None:
    spans = [
        span(1, "invoke_agent", 0, 9, agent__name="A"),
        span(2, "chat", 1, 2, 1, conversation__id="c2"),
        span(3, "invoke_agent", 3, 8, 1, agent__name="B", conversation__id="c3"),
        span(4, "execute_tool", 4, 5, 3, tool__name="t"),
        span(5, "chat", 4, 5, trace_id=f"{8:032x}"),
        span(6, "chat", 4, 5, trace_id=f"{9:032x}"),
    ]
    known = Conversations()
    known.add("app", f"{8:032x}", "c8")
    events = events_of(spans, lambda trace_id: known.find("app", trace_id))
    chats = {int(event.span.span_id, 16): event.place.chat_id for event in events}
    assert chats == {1: "c2", 2: "c2", 3: "c3", 4: "c3", 5: "c8", 6: f"{9:032x}"}


def test_conversations_are_few_and_each_is_of_one_app() -> None:
    known = Conversations(limit=2)
    for number in range(3):
        known.add("app", str(number), f"c{number}")
    known.add("app", "2", "another")
    assert [known.find("app", str(number)) for number in range(3)] == [None, "c1", "c2"]
    assert known.find("other", "2") is None


def test_workflow_and_user_are_those_around_a_span_unless_the_resource_says() -> None:
    spans = [
        span(1, "invoke_workflow", 0, 9, workflow__name="Trip", attributes={"enduser.id": "ada"}),
        span(2, "invoke_workflow", 1, 8, 1, workflow__name="Part"),
        span(3, "chat", 2, 3, 2),
    ]
    events = events_of(spans)
    assert said(events) == ["workflow.start", "model.call_complete True", "workflow.complete"]
    assert {(event.place.workflow, event.place.user_id) for event in events} == {("Trip", "ada")}
    resource = {"graphweft.workflow_name": "Sales", "user.id": "bob"}
    [event] = events_of([span(1, "chat", 0, 1, resource=resource)])
    assert (event.place.workflow, event.place.user_id) == ("Sales", "bob")


@pytest.mark.parametrize(
    ("given", "types"),
    [
        (span(1, None, 0, 1, name="invoke_agent Planner"), ["agent.turn_start", "agent.turn_complete"]),
        (span(1, None, 0, 1, name="execute_tool book"), ["tool.call_start", "tool.call_complete"]),
        (span(1, None, 0, 1, name="invoke_workflow Trip"), ["workflow.start", "workflow.complete"]),
        (span(1, None, 0, 1, name="workflow.run", attributes={"workflow.id": "w"}),
         ["workflow.start", "workflow.complete"]),
        (span(1, None, 0, 1, name="workflow.run"), []),
        (span(1, None, 0, 1, name="chat with us"), []),
        (span(1, None, 0, 1, name="GET /"), []),
        (span(1, "embeddings", 0, 1, name="invoke_agent x"), []),
        (span(1, "invoke_agent", 0, 1), ["agent.turn_start", "agent.turn_complete"]),
    ],
)  # fmt: skip
def test_spans_are_known_by_their_operation_or_by_their_name(given: Span, types: list[str]) -> None:
    events = events_of([given])
    assert [event.type for event in events] == types
    for event in events:
        LIFECYCLE[event.type].model_validate(event.data)


@pytest.mark.parametrize(
    "messages",
    ["[", "[1]", "{}", '[{"role": "assistant"}]', 5, '[{"role":"assistant","parts":[5]}]', "[" + " " * 300_000 + "]"],
)
def test_messages_that_are_not_understood_are_no_answer(messages: Any) -> None:
    *_, done = events_of([span(1, "invoke_agent", 0, 1, agent__name="A", output__messages=messages)])
    assert done.data["response"] is None


def test_parents_that_are_deep_missing_or_in_a_circle_lose_nothing() -> None:
    deep = [span(number, "chat", number, 20_001, number - 1) for number in range(1, 20_001)]
    assert len(events_of(deep)) == 20_000
    circle = [span(1, "chat", 0, 1, 2), span(2, "chat", 0, 1, 1), span(3, "chat", 0, 1, 3), span(4, "chat", 0, 1, 99)]
    assert len(events_of(circle)) == 4


def test_times_are_exact_to_the_microsecond() -> None:
    assert time_of(1_700_000_000_123_456_789) == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    with pytest.raises(OverflowError):
        time_of(2**64 - 1 << 8)


def test_the_same_failure_in_two_conversations_of_one_trace_is_two_events() -> None:
    """One id would have the second dropped as a copy of the first, wherever both are in one partition."""
    failing = {"attributes": {"error.type": "Timeout"}}
    told = events_of(
        [
            span(1, None, 0, 9, name="batch"),
            span(2, "invoke_agent", 1, 2, 1, agent__name="A", conversation__id="c1", **failing),
            span(3, "invoke_agent", 3, 4, 1, agent__name="A", conversation__id="c2", **failing),
        ]
    )
    errors = {(one.place.chat_id, one.id) for one in told if one.type == "workflow.error"}
    assert {chat for chat, _ in errors} == {"c1", "c2"}
    assert len({id for _, id in errors}) == 2
