"""Lines of JSON become events, as ``graphweft emit`` reads them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from starlette.datastructures import Headers

from graphweft_contracts import Event, InvalidEvent
from graphweft_workers.cli.options import past_time, since_time
from graphweft_workers.cli.rebuild import read_to
from graphweft_workers.gateway.cloud_events import SINGLE, read_events
from graphweft_workers.gateway.limits import GatewayLimits
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.imports.event_lines import LineFaults, events_of_lines
from graphweft_workers.imports.files import runs_of_json
from graphweft_workers.imports.item_fields import Fields
from graphweft_workers.imports.openai_chat import ChatImportOptions, events_of_runs
from graphweft_workers.imports.report import ImportReport


def drop(fault: InvalidEvent) -> None:
    """Drop the report of a fault: the test looks at their number."""


def line(data: str, **attributes: str) -> bytes:
    fields = {"specversion": "1.0", "id": "1", "source": "/s", "type": "order.paid", "appid": "a", "chatid": "c"}
    return f'{json.dumps(fields | attributes)[:-1]}, "data": {data}}}'.encode()


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ('{"total": NaN}', "data.total"),
        ('{"rows": [1, {"x": -Infinity}]}', "data.rows[1].x"),
        ('{"x": 1e400}', "data.x"),
        (f'{{"x": [[1{"0" * 400}.0]]}}', "data.x[0][0]"),
    ],
)
def test_a_number_that_json_does_not_have_is_refused(data: str, place: str) -> None:
    told: list[InvalidEvent] = []
    events = list(
        events_of_lines([(1, line("{}")), (2, line(data)), (3, line("{}"))], "f.jsonl", LineFaults(told.append))
    )
    assert len(events) == 2
    assert [str(fault).startswith(f"f.jsonl:2: {place}: ") for fault in told] == [True]


def test_large_and_small_numbers_stay() -> None:
    data = '{"a": 1.7e308, "b": [1e-400, -5e-324], "c": 100000000000000000000000000, "d": null, "e": "NaN"}'
    faults = LineFaults(drop)
    [event] = events_of_lines([(1, line(data))], "f.jsonl", faults)
    assert not faults.count
    assert event.data == json.loads(data)


def event_with(**attributes: str) -> bytes:
    return line("{}", **attributes)


def test_an_attribute_that_looks_misspelt_is_warned_of_once() -> None:
    hints: list[str] = []
    faults = LineFaults(drop, hints.append)
    lines = [
        event_with(workfow="support"),
        event_with(workfow="support"),
        event_with(workflow="a", workflows="b"),
        event_with(tenant="x"),
    ]
    events = list(events_of_lines(enumerate(lines, 1), "e.jsonl", faults))
    assert (len(events), faults.count) == (4, 0)
    assert hints == ["e.jsonl:1: 'workfow' is not an attribute that graphweft reads (did you mean 'workflow'?)"]
    assert events[0].workflow is None


def test_documented_extensions_are_not_warned_of() -> None:
    hints: list[str] = []
    extensions = {"sequencetype": "Integer", "dataclassification": "x", "expirytime": "x", "sampledrate": "3"}
    assert len(list(events_of_lines([(1, event_with(**extensions))], "e.jsonl", LineFaults(drop, hints.append)))) == 1
    assert hints == []


def test_reading_ends_after_many_faults() -> None:
    faults = LineFaults(drop)
    lines = iter([(number, b"y") for number in range(1, 10)])
    assert list(events_of_lines(lines, "f.jsonl", faults, most=3)) == []
    assert (faults.count, next(lines)) == (3, (4, b"y"))


def test_many_attributes_are_not_all_remembered() -> None:
    hints: list[str] = []
    faults = LineFaults(drop, hints.append)
    names = [f"x{number}" for number in range(1_000)] + ["workfow"]
    lines = enumerate((event_with(**{name: "1"}) for name in names), 1)
    assert sum(1 for _ in events_of_lines(lines, "f.jsonl", faults)) == 1_001
    assert hints == []  # only the first 1,000 are looked at


def test_all_faults_of_an_endless_input_are_counted_and_few_are_kept() -> None:
    told: list[InvalidEvent] = []
    faults = LineFaults(told.append)
    lines = ((number, line("{}", **{_letters(number): "1"})) for number in range(3_000))
    assert list(events_of_lines(lines, "input", faults, most=None)) == []
    assert (faults.count, len(told), faults.unreported) == (3_000, 1_000, 2_000)
    faults.report_repeats()
    assert str(told[-1]) == "and 2,000 lines with other faults"


def _letters(number: int) -> str:
    """Return an attribute name that is invalid and another one for each number."""
    return "X" + "".join(chr(ord("A") + int(digit)) for digit in str(number))


def remembered(*messages: dict[str, str]) -> bytes:
    return line(json.dumps({"user_id": "u", "messages": messages}), type="memory.add")


def test_the_content_of_a_message_is_its_text() -> None:
    told: list[InvalidEvent] = []
    lines = [(1, remembered({"role": "user", "content": "hi"})), (2, line('{"messages": [{"content": "mine"}]}'))]
    first, other = events_of_lines(lines, "f.jsonl", LineFaults(told.append))
    assert (first.data["messages"], told) == ([{"role": "user", "text": "hi"}], [])
    assert other.data["messages"] == [{"content": "mine"}]  # an event type of somebody's own


@pytest.mark.parametrize("name", ["text", "content"])
def test_one_message_may_stand_beside_its_scope_wherever_events_are_taken(name: str) -> None:
    data = {"user_id": "u", name: "hi", "message_id": "7", "tags": ["a"], "mood": "good"}
    given = line(json.dumps(data), type="memory.add")
    [of_file] = events_of_lines([(1, given)], "f.jsonl", LineFaults(drop))
    [over_http] = read_events(SINGLE, Headers(), given, app_id="a", limits=GatewayLimits())
    created = Event.create("memory.add", app_id="a", chat_id="c", data=data)
    message = {"role": "user", "text": "hi", "message_id": "7", "tags": ["a"]}
    for event in (of_file, over_http, created):
        assert event.data == {"user_id": "u", "mood": "good", "messages": [message]}


@pytest.mark.parametrize(
    ("name", "meant"),
    [("txt", "text"), ("contents", "text"), ("speaker", "author_name"), ("created_at", "time"), ("rol", "role")],
)
def test_an_unknown_field_of_a_message_names_the_one_that_is_meant(name: str, meant: str) -> None:
    told: list[InvalidEvent] = []
    assert (
        list(events_of_lines([(1, remembered({"role": "user", name: "x"}))], "f.jsonl", LineFaults(told.append))) == []
    )
    [fault] = map(str, told)
    assert f"did you mean {meant!r}?" in fault
    assert "at least 1 item" not in fault


def test_the_fault_of_a_message_is_not_told_as_a_missing_message_too() -> None:
    told: list[InvalidEvent] = []
    lines = [(1, remembered({"role": "tool", "text": "x"})), (2, remembered())]
    assert list(events_of_lines(lines, "f.jsonl", LineFaults(told.append))) == []
    assert ["at least 1 item" in str(fault) for fault in told] == [False, True]


def test_a_fault_of_many_lines_is_reported_once_with_their_number() -> None:
    told: list[InvalidEvent] = []
    faults = LineFaults(told.append)
    text = '{"user_id": "u", "messages": [{"role": "user", "mood": "x"}]}'
    lines = [(number, line(text, type="memory.add")) for number in range(9, 609)]
    lines += [(number, b"y" * number) for number in range(700, 1_000)] + [(1_000, line('{"total": NaN}'))]
    assert list(events_of_lines(lines, "f.jsonl", faults)) == []
    faults.report_repeats()
    assert [str(each).partition(": ")[0] for each in told] == [
        "f.jsonl:9", "f.jsonl:700", "f.jsonl:1000", "f.jsonl:9", "f.jsonl:700"
    ]  # fmt: skip
    assert str(told[3]) == "f.jsonl:9: 600 lines have this fault; this is the first"
    assert faults.of_form


def test_a_fault_of_a_field_is_not_one_of_the_form() -> None:
    text = line('{"agent_name": ""}', type="agent.turn_start", source="expected JSON in UTF-8 is not a JSON object")
    told: list[InvalidEvent] = []
    faults = LineFaults(told.append)
    assert list(events_of_lines([(1, text)], "f.jsonl", faults)) == []
    assert (faults.count, faults.of_form) == (1, False)
    assert str(told[0]).startswith("f.jsonl:1: ")


def test_an_event_that_the_bus_would_refuse_is_a_fault() -> None:
    told: list[InvalidEvent] = []
    faults = LineFaults(told.append)
    assert list(events_of_lines([(1, line(json.dumps({"x": "y" * 1_000_000})))], "f.jsonl", faults)) == []
    assert "f.jsonl:1: an event of 'a/c' has 1000" in str(told[0])


@pytest.mark.parametrize("name", ["time", "recordedtime"])
@pytest.mark.parametrize(
    "value", [1_769_940_000, 1_769_940_000.5, 1_769_940_000_000, "1769940000", "-5", "1769940000.5"]
)
def test_a_time_that_is_a_number_is_refused_as_by_the_gateway(name: str, value: float | str) -> None:
    told: list[InvalidEvent] = []
    faults = LineFaults(told.append)
    assert list(events_of_lines([(1, line("{}", **{name: value}))], "f.jsonl", faults)) == []  # type: ignore[arg-type]
    assert f"f.jsonl:1: {name}: expected a text such as 2026-02-01T10:00:00Z" in str(told[0])


@pytest.mark.parametrize("text", ["2026-02-01T10:00:00z", "2026-02-01 10:00:00.000Z", "2026-02-01t11:00:00+01:00"])
def test_all_ways_in_read_the_same_times(text: str) -> None:
    at = datetime(2026, 2, 1, 10, tzinfo=UTC)
    [event] = events_of_lines([(1, line("{}", time=text))], "f.jsonl", LineFaults(drop))
    assert event.time == at
    assert (since_time(text), past_time(text, "--as-of"), read_to([text])) == (at, at, at)
    fields = Fields({"time": text}, ImportReport(), now=datetime.now(UTC))
    assert fields.time("time") == at
    [run] = runs_of_json(
        json.dumps({"messages": [{"role": "user", "content": "x"}], "created": text}).encode(), file="f"
    )
    first = next(iter(events_of_runs(iter([run]), ChatImportOptions(app_id="a", workflow="w"))))
    assert first.time == at


@pytest.mark.parametrize("value", ["1769940000", "-5", "1769940000.5"])
def test_the_gateway_refuses_a_number_as_text_for_a_time(value: str) -> None:
    with pytest.raises(Problem) as error:
        read_events(SINGLE, Headers(), line("{}", time=value), app_id="acme", limits=GatewayLimits())
    assert error.value.faults == [
        {"pointer": "#/time", "detail": "expected a text such as 2026-02-01T10:00:00Z, found a number"}
    ]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("appid", "my shop", "appid: expected 1 to 64 characters from A-Z, a-z, 0-9, '_' and '-'"),
        ("type", "OrderPaid", "type: expected words of a-z, 0-9 and '_' with dots in between, such as order.paid"),
    ],
)
def test_the_form_of_a_name_is_said_in_words(name: str, value: str, said: str) -> None:
    told: list[InvalidEvent] = []
    assert list(events_of_lines([(1, line("{}", **{name: value}))], "f.jsonl", LineFaults(told.append))) == []
    assert f"f.jsonl:1: {said}" in str(told[0])
