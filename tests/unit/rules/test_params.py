from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from graphweft_contracts import ContextRequest, Event
from graphweft_rules.matching.parameters import Absent, ParamError, Scope, compile_param

EVENT = Event.create(
    "agent.turn_complete",
    app_id="app",
    chat_id="chat",
    workflow="Flow",
    user_id="user",
    id="e1",
    source="/here",
    time=datetime(2026, 2, 1, 10, tzinfo=UTC),
    data={"agent_name": "A", "success": None, "result": {"name": "r", "tags": ["x", {"deep": 1}]}},
    context={"user": {"id": 7}, "chat_id": "own", "nothing": None, "items": [{"name": "first"}]},
)
BARE = Event.create("order.paid", app_id="app", chat_id="chat", data={"id": "payload"})
REQUEST = ContextRequest(
    id="r", app_id="app", workflow="Flow", agent="B", chat_id="chat", context={"phase": "x"}, deadline_ms=0
)


def resolve(value: Any, scope: Scope) -> Any:
    return compile_param(value).resolve(scope)


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ("active", "active"),
        (123, 123),
        (True, True),
        (None, None),
        ("", ""),
        ("price: $context.x", "price: $context.x"),
        ("$$5", "$5"),
        ("$$context.user", "$context.user"),
        (date(2026, 2, 1), "2026-02-01"),
        ("$context.user.id", 7),
        ("$context.user", {"id": 7}),
        ("$context.nothing", None),
        ("$context.items.0.name", "first"),
        ("$context.chat_id", "own"),
        ("$context.user_id", "user"),
        ("$context.app_id", "app"),
        ("$context.workflow_name", "Flow"),
        ("$context.agent_name", "A"),
        ("$event.success", None),
        ("$event.result.tags.1.deep", 1),
        ("$event.context.user.id", 7),
        ("$event.id", "e1"),
        ("$event.source", "/here"),
        ("$event.type", "agent.turn_complete"),
        ("$event.time", "2026-02-01T10:00:00.000000Z"),
        ("$event.timestamp", "2026-02-01T10:00:00.000000Z"),
        ("$workflow.name", "Flow"),
        ("$workflow.chat_id", "chat"),
        ("$workflow.app_id", "app"),
        ("$workflow.user_id", "user"),
        ({"a": ["$context.user.id", {"b": "$event.agent_name"}], "c": 1}, {"a": [7, {"b": "A"}], "c": 1}),
    ],
)
def test_what_values_become(value: Any, resolved: Any) -> None:
    assert resolve(value, Scope.of_event(EVENT)) == resolved


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("$context.none", "$context.none"),
        ("$context.user.none", "$context.user.none"),
        ("$context.user.id.deeper", "$context.user.id.deeper"),
        ("$context.nothing.deeper", "$context.nothing.deeper"),
        ("$context.items.1", "$context.items.1"),
        ("$context.items.name", "$context.items.name"),
        ("$context.items.99999999999999999999", "$context.items.99999999999999999999"),
        ("$event.none", "$event.none"),
        ("$event.subject", "$event.subject"),
        ([1, {"a": "$event.none"}], "$event.none"),
        ({"a": ["$context.none"]}, "$context.none"),
    ],
)
def test_what_leads_nowhere_says_so(value: Any, name: str) -> None:
    assert resolve(value, Scope.of_event(EVENT)) == Absent(name=name)


def test_the_payload_goes_before_the_envelope() -> None:
    assert resolve("$event.id", Scope.of_event(BARE)) == "payload"


@pytest.mark.parametrize("name", ["$workflow.name", "$workflow.user_id", "$context.user_id", "$context.agent_name"])
def test_an_empty_envelope_gives_nothing(name: str) -> None:
    assert resolve(name, Scope.of_event(BARE)) == Absent(name=name)


def test_a_request_has_no_event_but_knows_who_asks() -> None:
    scope = Scope.of_request(REQUEST)
    assert resolve("$event.agent_name", scope) == "B"
    assert resolve("$event.id", scope) == Absent(name="$event.id")
    assert resolve("$event.time", scope) == Absent(name="$event.time")
    assert resolve("$context.phase", scope) == "x"
    assert resolve("$context.agent_name", scope) == "B"
    assert resolve("$workflow.name", scope) == "Flow"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("$contxt.a.b", "did you mean '$context.a.b'?"),
        ("$5.00", "is written with '$$'"),
        ("$", "'$context'"),
        ("$context", "write for example '$context.user_id'"),
        ("$workflow.chatid", "did you mean '$workflow.chat_id'?"),
        ("$workflow.name.first", "does not exist"),
        ("$workflow.zzz", "'$workflow.user_id'"),
        ("$context..a", "''"),
        ("$context.user id", "'user id'"),
        ("$context.items[0]", "'items[0]'"),
        ([{"a": "$evnt.x"}], "did you mean '$event.x'?"),
        (b"bytes", "b'bytes'"),
    ],
)
def test_mistakes_show_before_the_first_event(value: Any, hint: str) -> None:
    with pytest.raises(ParamError) as caught:
        compile_param(value)
    assert hint in str(caught.value)
