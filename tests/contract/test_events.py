"""The envelope, the payloads of the lifecycle events, and the names on the bus."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SkipValidation, ValidationError

from graphweft_contracts import LIFECYCLE, AgentTurnComplete, Event, Layout, Permanent, Transient, channels, errors
from graphweft_contracts.events import data_of, known
from graphweft_contracts.wire import decode, encode
from graphweft_workers.ports import event_decoder

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def event(type: str = "order.paid", **changes: Any) -> Event:
    return Event.create(type, **{"app_id": "shop", "chat_id": "c1", **changes})


def test_the_lifecycle_types_are_those_of_the_rule_contract_and_three_more() -> None:
    assert set(LIFECYCLE) == {
        "agent.turn_start",
        "agent.turn_complete",
        "workflow.phase_complete",
        "workflow.complete",
        "workflow.error",
        "tool.call_complete",
        "workflow.start",
        "tool.call_start",
        "model.call_complete",
    }


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("agent.turn_start", {"agent_name": "Planner", "turn_number": 3}),
        ("agent.turn_complete", {"agent_name": "Planner", "response": {"text": "hi"}, "success": True}),
        ("workflow.phase_complete", {"phase_name": "planning", "next_phase": "building"}),
        ("workflow.complete", {"status": "COMPLETE", "duration": 12.5, "outputs": [1]}),
        ("workflow.error", {"error_type": "Timeout", "error_message": "too late"}),
        ("tool.call_complete", {"tool_name": "search", "result": [{"a": 1}], "success": False}),
        ("workflow.start", {}),
        ("tool.call_start", {"tool_name": "search", "arguments": {"q": 1}}),
        ("model.call_complete", {"agent_name": "Planner", "success": True, "duration_ms": 5}),
    ],
)
def test_payloads_carry_the_fields_of_the_rule_contract_and_free_ones(type: str, data: dict[str, Any]) -> None:
    assert event(type, data={**data, "own": 1}).data == {**data, "own": 1}


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("agent.turn_start", {}),
        ("agent.turn_start", {"agent_name": ""}),
        ("agent.turn_start", {"agent_name": "Planner", "turn_number": -1}),
        ("agent.turn_complete", {"agent_name": "Planner", "success": "perhaps"}),
        ("workflow.phase_complete", {"next_phase": "building"}),
        ("workflow.complete", {"duration": "long"}),
        ("workflow.error", {"error_message": "too late"}),
        ("tool.call_complete", {"result": 1}),
        ("tool.call_start", {"arguments": {}}),
        ("model.call_complete", {"success": "perhaps"}),
        ("order.paid", {"context": []}),
    ],
)
def test_broken_payloads_are_refused(type: str, data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        event(type, data=data)


@pytest.mark.parametrize(
    "changes",
    [
        {"app_id": "a/b"},
        {"app_id": "shop\n"},
        {"chat_id": ""},
        {"chat_id": "c" * 257},
        {"type": "paid"},
        {"type": "order.paid\n"},
        {"id": ""},
        {"source": ""},
        {"workflow": ""},
        {"time": datetime(2026, 3, 1)},
    ],
)
def test_broken_attributes_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        event(**changes)


@pytest.mark.parametrize("type", sorted(LIFECYCLE))
def test_fields_that_were_declared_later_hold_any_value(type: str) -> None:
    model = LIFECYCLE[type]
    later = {
        name: ["of", {"another": "type"}]
        for name, field in model.model_fields.items()
        if any(isinstance(each, SkipValidation) for each in field.metadata)
    }
    required = {name: "x" for name, field in model.model_fields.items() if field.is_required()}
    read = decode(encode(event(type, data={**required, **later})))
    assert read.data == {**required, **later}
    assert event_decoder.whole(event_decoder.decode(encode(read), NOW)) == read


def test_data_holds_the_given_fields_in_their_order_without_unknown_ones() -> None:
    data = data_of(AgentTurnComplete, success=True, agent_name="Planner", response=None, handed_to=known(None))
    assert list(data.items()) == [("success", True), ("agent_name", "Planner"), ("response", None)]


def test_an_event_gets_an_id_and_a_time_that_knows_its_zone() -> None:
    first, second = event(), event()
    assert first.id != second.id
    assert first.time.tzinfo is not None
    assert event(id="7", source="/me", time=NOW).identity == ("/me", "7")


def test_key_agent_and_context() -> None:
    turn = event("agent.turn_start", data={"agent_name": "Planner"}, context={"user": {"id": "u1"}})
    assert turn.key == "shop/c1"
    assert turn.agent == "Planner"
    assert turn.context == {"user": {"id": "u1"}}
    assert turn.data["context"] == turn.context
    assert event().agent is None
    assert event(data={"agent_name": 5}).agent is None
    assert event().context == {}


def test_creating_an_event_leaves_the_given_data_alone() -> None:
    data: dict[str, Any] = {"amount": 1}
    event(data=data, context={"a": 1})
    assert data == {"amount": 1}


def test_an_event_is_frozen() -> None:
    with pytest.raises(ValidationError):
        event().id = "other"  # type: ignore[misc]


@given(key=st.text(), partitions=st.integers(1, 256))
@settings(deadline=None)
def test_a_key_has_one_partition_within_range(key: str, partitions: int) -> None:
    try:
        key.encode()
    except UnicodeEncodeError:  # no event has such a key: its attributes are checked
        return
    number = channels.partition_of(key, partitions)
    assert 0 <= number < partitions
    assert channels.partition_of(key, partitions) == number


def test_partitions_do_not_change_between_versions() -> None:
    # Recorded: another hash would send the events of a running chat to another stream, and lose their order.
    keys = ("shop/c1", "shop/c2", "büro/ж")
    assert [channels.partition_of(key, 256) for key in keys] == [124, 198, 54]


def test_an_app_has_one_partition_unless_its_order_is_by_chat() -> None:
    layout = Layout(partitions=256, exceptions={"busy": "chat"})
    keys = [f"{app}/c{number}" for app in ("shop", "busy") for number in range(40)]
    found = {app: {layout.partition_of(key) for key in keys if key.startswith(app)} for app in ("shop", "busy")}
    assert len(found["shop"]) == 1
    assert found["shop"] == set(layout.partitions_of("shop"))
    assert len(found["busy"]) > 30
    assert found["busy"] < set(layout.partitions_of("busy"))
    # Recorded: another number would send an app's next events to another partition.
    assert (layout.partition_of("shop/c1"), layout.partition_of("busy/c1")) == (162, 74)


def test_a_bus_of_an_earlier_version_keeps_its_order() -> None:
    assert Layout.of_stored(4, {}) == Layout(partitions=4, order="chat")
    assert Layout.of_stored(4, {"*": "app", "busy": "chat"}) == Layout(partitions=4, exceptions={"busy": "chat"})


def test_names_on_the_bus_do_not_collide() -> None:
    names = [
        channels.events_stream(0),
        channels.events_stream(1),
        channels.lease(0),
        channels.context_replies("a"),
        channels.PARTITION_COUNT,
        channels.WORKERS,
        channels.lease(0, channels.MEMORY_GROUP),
        channels.lease(0, channels.CONSOLIDATION_GROUP),
        channels.lease(0, channels.EPISODES_GROUP),
        channels.workers(channels.MEMORY_GROUP),
        channels.workers(channels.CONSOLIDATION_GROUP),
        channels.workers(channels.EPISODES_GROUP),
        channels.CONTEXT_REQUESTS,
        channels.DEAD_LETTERS,
        channels.DEAD_LETTER_ORDER,
    ]
    assert len(set(names)) == len(names)
    assert channels.graph_name("shop") == "mozaiks_shop"
    assert channels.graph_name("shop", "g-{app_id}") == "g-shop"


def test_every_error_is_either_permanent_or_transient() -> None:
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert len(kinds) > 10
    for name, kind in kinds.items():
        if kind not in (errors.GraphweftError, Permanent, Transient):
            assert issubclass(kind, Permanent) != issubclass(kind, Transient), name
    assert errors.GraphUnavailable("gone", retry_after_s=2).retry_after_s == 2
    assert errors.QueryFailed("late", code="timeout").code == "timeout"
