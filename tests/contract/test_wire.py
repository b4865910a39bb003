"""Events survive the wire, and what is broken is refused with a reason that quotes no payload."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from graphweft_contracts import LIFECYCLE, MEMORY, Event, InvalidEvent
from graphweft_contracts.events import ToolCallStart
from graphweft_contracts.memory import SCOPE_PATTERN
from graphweft_contracts.wire import CONTENT_TYPE, DATA, STRUCTURED, decode, encode, explain

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
STANDARD = frozenset(Event.model_fields)

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
app_ids = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
times = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=zones)
extension_names = st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True).filter(lambda name: name not in STANDARD)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
REQUIRED = {"agent_name": "Planner", "phase_name": "planning", "error_type": "Timeout", "tool_name": "search"}
FREE = ("order.paid", "episode.begun", "a.b.c_1")
MEMORIES: dict[str, dict[str, Any]] = {
    "memory.add": {"user_id": "u1", "messages": [{"role": "user", "text": "ünï", "time": "2026-01-01T00:00:00+01:00"}]},
    "memory.embedded": {"memory_id": "m1", "model": "m", "embedding": [0.1, -1e-8, 3]},
    "memory.summarized": {"thread_id": "t", "summary": "They talked.", "memory_ids": ["m1"], "model": "m"},
    "memory.forget": {"memory_ids": ["m1"]},
    "memory.erase": {"user_id": "u1", "before": "2026-01-01T00:00:00Z"},
}


@st.composite
def events(draw: st.DrawFn) -> Event:
    type = draw(st.sampled_from([*LIFECYCLE, *MEMORIES, *FREE]))
    free = text.filter(lambda key: key not in {"context", "turn_number", "success", "duration", "status", "next_phase"})
    data: dict[str, Any] = draw(st.dictionaries(free, values, max_size=3))
    if type in LIFECYCLE:
        data.pop("error_message", None)
        data |= {key: value for key, value in REQUIRED.items() if key in LIFECYCLE[type].model_fields}
    if type in MEMORIES:
        data = {key: value for key, value in data.items() if key not in MEMORY[type].model_fields} | MEMORIES[type]
    if draw(st.booleans()):
        data["context"] = draw(st.dictionaries(text, values, max_size=3))
    optional: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "workflow": names,
                "userid": names,
                "subject": names,
                "sequence": text,
                "traceparent": text,
                "recordedtime": times,
                "dataref": text,
            },
        )
    )
    extensions = draw(st.dictionaries(extension_names, text, max_size=3))
    return Event(
        id=draw(names),
        source=draw(names),
        type=type,
        time=draw(times),
        appid=draw(app_ids),
        chatid=draw(names.filter(lambda name: type not in MEMORY or re.fullmatch(SCOPE_PATTERN, name))),
        data=data,
        **optional,
        **extensions,
    )


def binary_form(event: Event) -> dict[bytes, bytes]:
    """Write what the Kafka binding of CloudEvents writes: attributes as headers, the payload by itself."""
    attributes = event.model_dump(mode="json", exclude={"data", "datacontenttype"}, exclude_none=True)
    return {
        CONTENT_TYPE: b"application/json; charset=utf-8",
        **{f"ce_{name}".encode(): str(value).encode() for name, value in attributes.items()},
        DATA: to_json(event.data),
    }


@given(events())
@settings(deadline=None)
def test_structured_mode_gives_the_event_back(event: Event) -> None:
    assert decode(encode(event)) == event


@given(events())
@settings(deadline=None)
def test_binary_mode_gives_the_event_back(event: Event) -> None:
    assert decode(binary_form(event)) == event


@given(events())
def test_an_event_without_time_takes_the_log_s_and_the_same_one_each_time(event: Event) -> None:
    for fields in (encode(event), binary_form(event)):
        if fields[CONTENT_TYPE] == STRUCTURED:
            raw = json.loads(fields[DATA])
            del raw["time"]
            fields[DATA] = json.dumps(raw).encode()
        else:
            del fields[b"ce_time"]
        first = decode(fields, received=NOW)
        assert first.time == NOW
        assert decode(fields, received=NOW) == first
        with pytest.raises(InvalidEvent, match="time"):
            decode(fields)


@given(events())
def test_the_event_s_own_time_wins_over_the_log_s(event: Event) -> None:
    assert decode(encode(event), received=NOW).time == event.time


@given(name=extension_names, value=text | st.integers() | st.booleans())
@settings(deadline=None)
def test_unknown_extensions_are_kept(name: str, value: str | int | bool) -> None:
    event = decode(structured(**{name: value}))
    assert event.model_extra == {name: value}
    again = decode(encode(event))
    assert again == event
    assert type((again.model_extra or {})[name]) is type(value)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=25))
@settings(deadline=None)
def test_attribute_names_outside_cloudevents_are_refused(name: str) -> None:
    assume(not (1 <= len(name) <= 20 and name.isascii() and name.isalnum() and name == name.lower()))
    with pytest.raises(InvalidEvent):
        decode(structured(**{name: "x"}))


@given(st.text(max_size=70))
@settings(deadline=None)
def test_bad_app_ids_are_refused_in_both_modes(app_id: str) -> None:
    lawful = 1 <= len(app_id) <= 64 and all(c.isascii() and (c.isalnum() or c in "_-") for c in app_id)
    assume(not lawful)
    with pytest.raises(InvalidEvent):
        decode(structured(appid=app_id))
    with pytest.raises(InvalidEvent):
        decode(binary(ce_appid=app_id.encode(errors="surrogatepass")))


@given(
    st.dictionaries(st.sampled_from([CONTENT_TYPE, DATA, b"ce_id", b"ce_type", b"ce_\xff"]) | st.binary(), st.binary())
)
@settings(deadline=None)
def test_rubbish_is_refused_and_nothing_else_is_raised(fields: dict[bytes, bytes]) -> None:
    with pytest.raises(InvalidEvent):
        decode(fields)


@given(st.binary(max_size=50))
@settings(deadline=None)
def test_rubbish_in_a_structured_entry_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidEvent):
        decode({CONTENT_TYPE: STRUCTURED, DATA: data})


def structured(**changes: Any) -> dict[bytes, bytes]:
    event = {
        "specversion": "1.0",
        "id": "1",
        "source": "/test",
        "type": "order.paid",
        "time": "2026-03-01T12:00:00Z",
        "appid": "shop",
        "chatid": "c1",
        "data": {},
        **changes,
    }
    return {CONTENT_TYPE: STRUCTURED, DATA: json.dumps(event).encode()}


def binary(**changes: bytes) -> dict[bytes, bytes]:
    fields = {
        "ce_specversion": b"1.0",
        "ce_id": b"1",
        "ce_source": b"/test",
        "ce_type": b"order.paid",
        "ce_time": b"2026-03-01T12:00:00Z",
        "ce_appid": b"shop",
        "ce_chatid": b"c1",
        "data": b"{}",
        **changes,
    }
    return {name.encode(): value for name, value in fields.items()}


def test_the_written_form_is_structured_json_without_unset_attributes() -> None:
    event = Event.create("order.paid", app_id="shop", chat_id="c1", id="1", time=NOW, data={"amount": None})
    fields = encode(event)
    assert set(fields) == {CONTENT_TYPE, DATA}
    assert fields[CONTENT_TYPE] == b"application/cloudevents+json"
    assert json.loads(fields[DATA]) == {
        "specversion": "1.0",
        "id": "1",
        "source": "/graphweft",
        "type": "order.paid",
        "time": "2026-03-01T12:00:00Z",
        "appid": "shop",
        "chatid": "c1",
        "datacontenttype": "application/json",
        "data": {"amount": None},
    }


@pytest.mark.parametrize(
    "content_type", [b"application/cloudevents+json; charset=UTF-8", b"Application/CloudEvents+JSON"]
)
def test_the_content_type_is_read_as_media_types_are(content_type: bytes) -> None:
    assert decode({**structured(), CONTENT_TYPE: content_type}).id == "1"


def test_binary_mode_without_payload_is_an_empty_one() -> None:
    assert decode(binary(data=b"")).data == {}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "no field 'data'"),
        ({b"payload": b"{}"}, "'payload'"),
        ({DATA: b"{}"}, "neither structured mode"),
        ({CONTENT_TYPE: STRUCTURED, DATA: b"[1]"}, "not a JSON object"),
        ({CONTENT_TYPE: STRUCTURED, DATA: b"{"}, "cannot be decoded"),
        (structured(time="2026-03-01T12:00:00"), "time: .*timezone"),
        (structured(type="paid"), "type: "),
        (structured(type="agent.turn_start"), "agent_name: Field required"),
        (structured(**{"tenant\n": "x"}), "not a CloudEvents attribute name"),
        (structured(tenant=[1]), "'tenant' must be a string"),
        (binary(data=b"[1]"), "data: "),
        (binary(ce_specversion=b"0.3"), "specversion: "),
    ],
)
def test_the_reason_names_what_is_wrong(fields: dict[bytes, bytes], reason: str) -> None:
    with pytest.raises(InvalidEvent, match=reason):
        decode(fields)


@pytest.mark.parametrize(
    ("field", "written", "hint"),
    [
        ("appid", "app_id", "appid: Field required (you wrote 'app_id': did you mean 'appid'?)"),
        ("appid", "app", "appid: Field required (you wrote 'app': did you mean 'appid'?)"),
        ("chatid", "chatId", "chatid: Field required (you wrote 'chatId': did you mean 'chatid'?)"),
        ("type", "tpye", "type: Field required (you wrote 'tpye': did you mean 'type'?)"),
        ("appid", "tenant", "appid: Field required"),
        (
            None,
            "user_id",
            "event: Value error, 'user_id' is not a CloudEvents attribute name (did you mean 'userid'?): ",
        ),
        (None, "trace_id", "event: Value error, 'trace_id' is not a CloudEvents attribute name: use 1 to 20 of a-z "),
    ],
)
def test_a_misspelt_attribute_is_named_with_the_right_one(field: str | None, written: str, hint: str) -> None:
    attributes = json.loads(structured()[DATA])
    attributes[written] = "x" if field is None else attributes.pop(field)
    with pytest.raises(InvalidEvent) as caught:
        decode({CONTENT_TYPE: STRUCTURED, DATA: json.dumps(attributes).encode()})
    assert str(caught.value).startswith(hint)
    assert ("did you mean" in str(caught.value)) == ("did you mean" in hint)


def test_a_misspelt_field_of_the_data_is_named_with_the_right_one() -> None:
    with pytest.raises(
        InvalidEvent, match=r"^tool_name: Field required \(you wrote 'tool_nam': did you mean 'tool_name'"
    ):
        decode(structured(type="tool.call_start", data={"tool_nam": "refund"}))


def test_many_faults_have_no_hints_because_these_cost_time() -> None:
    adapter = TypeAdapter(list[ToolCallStart])
    for count, hints in ((2, 2), (30, 0)):
        with pytest.raises(ValidationError) as caught:
            adapter.validate_python([{"tool_nam": "refund"}] * count)
        assert explain(caught.value).count("did you mean 'tool_name'?") == hints


@pytest.mark.parametrize(
    "changes",
    [
        {"appid": "hunter2 hunter2"},
        {"data": "hunter2"},
        {"data": {"context": "hunter2"}},
        {"type": "agent.turn_start", "data": {"agent_name": ["hunter2"]}},
        {"type": "agent.turn_start", "data": {"password": "hunter2"}},
        {"tenant": ["hunter2"]},
        {"time": "hunter2"},
    ],
)
def test_the_reason_quotes_no_payload(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent) as caught:
        decode(structured(**changes))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", [object(), "\ud800", b"\xff"], ids=["object", "surrogate", "bytes"])
def test_data_that_json_cannot_say_is_refused_at_the_writer(value: object) -> None:
    event = Event.create("order.paid", app_id="shop", chat_id="c1", data={"x": value})
    with pytest.raises(InvalidEvent, match=r"'order\.paid'"):
        encode(event)


def test_numbers_that_json_does_not_know_become_null() -> None:
    event = Event.create("order.paid", app_id="shop", chat_id="c1", data={"x": float("nan"), "y": float("inf")})
    assert decode(encode(event)).data == {"x": None, "y": None}
