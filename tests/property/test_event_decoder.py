"""Workers decode the entries of the log by a shorter way than ``wire.decode``, and nobody can tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphweft_contracts import LIFECYCLE, Event, InvalidEvent, wire
from graphweft_contracts.events import Payload, payload_of, registered_payloads
from graphweft_workers.ports import event_decoder

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLAIN: Final[dict[str, Any]] = {
    "specversion": "1.0",
    "id": "e1",
    "source": "/tests",
    "type": "tool.call_complete",
    "time": "2026-02-01T10:00:00Z",
    "appid": "app",
    "chatid": "chat",
    "data": {"tool_name": "search", "success": True},
}
PAYLOADS: Final[dict[str, dict[str, Any]]] = {
    "tool.call_complete": {"tool_name": "search", "success": True, "result": {"items": [1, 2.5, None]}},
    "tool.call_start": {"tool_name": "search"},
    "agent.turn_start": {"agent_name": "Planner", "turn_number": 3},
    "agent.turn_complete": {"agent_name": "Planner", "turn_number": 0, "response": [{}], "success": False},
    "workflow.phase_complete": {"phase_name": "plan", "next_phase": None},
    "workflow.complete": {"status": "done", "duration": 1.5, "outputs": {}},
    "workflow.error": {"error_type": "Timeout", "error_message": "late"},
    "workflow.start": {},
    "model.call_complete": {"agent_name": "Planner"},
    "memory.add": {"user_id": "u1", "messages": [{"role": "user", "text": "ünï"}]},
    "memory.update": {"memory_id": "m1", "text": "ünï", "tags": ["a"]},
    "memory.forget": {"memory_ids": ["m1"]},
    "order.paid": {"anything": {"goes": [True]}},
}
TIMES: Final = (
    "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456Z", "2026-01-01T00:00:00.1234567Z",
    "2026-01-01T00:00:00.9999999Z", "9999-12-31T23:59:59.999999999Z", "2026-01-01T00:00:00.12345678+0530",
    "2026-01-01T00:00:00.1234567+0530", "2026-01-01T00:00:00.123456+05:30", "2026-01-01T00:00:00.123456789+05:30",
    "2026-01-01T00:00:00", "2026-01-01 00:00:00Z", "2026-01-01t00:00:00z", "2026-01-01T00:00Z",
    "2026-01-01T00:00:00+23:59", "2026-01-01T00:00:00-00:00", "2026-01-01T00:00:00+24:00", "2026-01-01T24:00:00Z",
    "2026-01-01T00:00:60Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+10:00", "2026-02-29T00:00:00Z",
    "2026-W01-1T00:00:00Z", "20260101T000000Z", "2026-01-01T00:00:00,5Z", "2026-01-01_00:00:00Z", "2026-01-01",
    "1767225600", "", " 2026-01-01T00:00:00Z", "2026-01-01T00:00:00.Z", "2026-01-01T00:00:00\u221205:00",
)  # fmt: skip
RAW: Final = (
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "-0", "-0.0", "1.0", "1E5", "01", "1.", "+1", ".5",
    "1" * 30, "1" * 400, "-" + "1" * 4300, "1" * 5000, "9223372036854775808", "18446744073709551616", "1e23",
    "0.1000000000000000055511151231257827", "123456789012345678901234567890e0", "true", "false", "null", "nul",
    '"\\ud800"', '"\\udc00"', '"\\ud83d\\ude00"', '"\\ud83d\\u0041"', '"\\u0000"', '"\\x"', '"\x7f"', '"\x01"', '"a',
    "{}", "[]", '""', '"3"', '"x"', '"1.0"', "3", "0", "-1", '{"a":1,"a":2}', '{"a":{"a":null},"\\u0061":1}', "[1,]",
    "[" * 190 + "]" * 190, "[" * 199 + "]" * 199, "[" * 250 + "]" * 250, '{"a":' * 197 + "1" + "}" * 197,
    "[" + "[]," * 300 + "[]]", '"' + "x" * 256 + '"', '"' + "x" * 257 + '"', '"' + "\U0001f600" * 256 + '"',
)  # fmt: skip
"""JSON, and what is none."""
NAMES: Final = (
    *Event.model_fields,
    "context",
    "tool_name",
    "success",
    "call_id",
    "traceid",
    "Upper",
    "ext-name",
    "x" * 21,
)


def outcome(decode: Any, fields: Mapping[bytes, bytes]) -> object:
    """Return the error, or all that an event holds, so that 1, 1.0 and True differ."""
    try:
        event: Event = decode(fields, received=NOW)
    except InvalidEvent as error:
        return type(error), str(error)
    values = {
        name: (value.isoformat(), value.timestamp() if value.year > 1 else 0) if isinstance(value, datetime) else value
        for name, value in event.__dict__.items()
    }
    return list(values.items()).__repr__(), event.model_extra, event.model_dump_json(exclude_none=True)


def decoded(fields: Mapping[bytes, bytes], received: datetime) -> Event:
    return event_decoder.whole(event_decoder.decode(fields, received))


def same(fields: Mapping[bytes, bytes]) -> None:
    assert outcome(decoded, fields) == outcome(wire.decode, fields)


def structured(data: bytes, content_type: bytes = wire.STRUCTURED) -> dict[bytes, bytes]:
    return {wire.CONTENT_TYPE: content_type, wire.DATA: data}


def written(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in pairs) + "}"


values = st.sampled_from(RAW) | st.sampled_from(TIMES).map(json.dumps) | st.text(max_size=8).map(json.dumps)
pairs = st.tuples(st.sampled_from(NAMES), values)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """A structured event of any type with a few attributes and payload fields that are replaced, doubled or missing."""
    type = draw(st.sampled_from(list(PAYLOADS)))
    attributes = [(name, json.dumps(value)) for name, value in (PLAIN | {"type": type}).items() if name != "data"]
    data = [(name, json.dumps(value)) for name, value in PAYLOADS[type].items()]
    fields = [*LIFECYCLE.get(type, Payload).model_fields, "free", "context"]
    data += draw(st.lists(st.tuples(st.sampled_from(fields), values), max_size=2))
    attributes.append(("data", draw(st.just(written(data)) | values) if draw(st.booleans()) else written(data)))
    attributes += draw(st.lists(pairs, max_size=2))
    without = draw(st.sampled_from([None, None, None, *PLAIN]))
    return written([each for each in draw(st.permutations(attributes)) if each[0] != without])


@given(documents())
def test_an_entry_gives_the_same_event_or_error(document: str) -> None:
    same(structured(document.encode(errors="surrogatepass")))


@given(documents(), st.integers(0, 600), st.binary(max_size=3))
def test_a_damaged_entry_gives_the_same_event_or_error(document: str, at: int, damage: bytes) -> None:
    data = document.encode(errors="surrogatepass")
    same(structured(data[:at] + damage + data[at + len(damage) :]))
    same(structured(data[:at]))


@pytest.mark.parametrize("raw", RAW)
@pytest.mark.parametrize("place", ["event", "data", "context", "free", "nested", "tool_name", "success", "userid"])
def test_hostile_json_gives_the_same_event_or_error_everywhere(raw: str, place: str) -> None:
    plain = json.dumps(PLAIN)
    document = {
        "event": raw,
        "data": plain.replace(json.dumps(PLAIN["data"]), raw),
        "context": plain.replace('"success": true', f'"context": {raw}'),
        "free": plain.replace('"success": true', f'"free": {raw}'),
        "nested": plain.replace('"success": true', f'"result": {{"a": [{raw}]}}'),
        "tool_name": plain.replace('"search"', raw),
        "success": plain.replace("true", raw),
        "userid": plain.replace('"chatid"', f'"userid": {raw}, "chatid"'),
    }[place]
    same(structured(document.encode(errors="surrogatepass")))


@pytest.mark.parametrize("time", [*TIMES, None, 1767225600, 1767225600.5, True, [], "x" * 50])
@pytest.mark.parametrize("name", ["time", "recordedtime"])
def test_times_give_the_same_event_or_error(name: str, time: object) -> None:
    same(structured(json.dumps({**PLAIN, name: time}).encode()))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("appid", "a" * 65), ("appid", ""), ("appid", "app\n"), ("appid", "äpp"), ("type", "nodot"), ("type", "a.b\n"),
        ("type", "A.b"), ("type", "a." + "b" * 126), ("type", "a." + "b" * 127), ("type", "a..b"), ("chatid", ""),
        ("specversion", "1.1"), ("datacontenttype", "text/plain"), ("data", None), ("data", []), ("dataschema", ""),
        ("specversion", None), ("workflow", ""), ("workflow", None), ("traceid", "x"), ("traceid", None),
        ("no-name", 1), ("type", "memory.add"), ("type", "memory.forget"), ("type", "workflow.error"),
    ],
)  # fmt: skip
def test_attributes_give_the_same_event_or_error(name: str, value: object) -> None:
    same(structured(json.dumps({**PLAIN, name: value}).encode()))


@pytest.mark.parametrize("chat", ["chat", " chat", "chat\t", "c\x00t"])
@pytest.mark.parametrize("type", sorted(PAYLOADS))
def test_chats_give_the_same_event_or_error(type: str, chat: str) -> None:
    event = {**PLAIN, "type": type, "data": PAYLOADS[type], "chatid": chat}
    same(structured(json.dumps(event).encode()))


@pytest.mark.parametrize(
    "content_type",
    [
        b"application/cloudevents+json; charset=utf-8",
        b"Application/CloudEvents+JSON",
        b"application/json",
        b"",
        b"\xff",
    ],
)
def test_content_types_give_the_same_event_or_error(content_type: bytes) -> None:
    same(structured(json.dumps(PLAIN).encode(), content_type))
    same({**structured(b"{}", content_type), b"ce_id": b"1"})
    same({wire.DATA: json.dumps(PLAIN).encode()})
    same({wire.CONTENT_TYPE: content_type})


@pytest.mark.parametrize("type", sorted(PAYLOADS))
def test_plain_events_take_the_shorter_way(type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    event = Event.model_validate({**PLAIN, "type": type, "data": PAYLOADS[type]})
    fields = wire.encode(event)
    monkeypatch.setattr(wire, "decode", None)
    assert decoded(fields, NOW) == event


def test_a_model_whose_fields_are_checked_alone_has_no_validator() -> None:
    assert registered_payloads().keys() >= LIFECYCLE.keys()
    for model in {Payload, payload_of("order.paid"), *LIFECYCLE.values()}:
        found: Any = model.__pydantic_decorators__
        assert found == type(found)()
        assert model.chat_pattern is None


def test_the_event_that_is_decoded_is_a_whole_model() -> None:
    event = decoded(wire.encode(Event.model_validate(PLAIN)), NOW)
    changed = event.model_copy(update={"id": "e2"})
    assert (changed.id, event.id) == ("e2", "e1")
    assert event.model_copy(deep=True) == event == Event.model_validate(event.model_dump())
    assert event.model_fields_set == set(Event.model_fields) == set(event.__dict__)
    assert event.agent is None
    with pytest.raises(ValueError, match="frozen"):
        event.id = "e3"  # type: ignore[misc]


@given(st.binary(max_size=40))
@example(b"")
def test_any_bytes_give_the_same_error(data: bytes) -> None:
    same(structured(data))
