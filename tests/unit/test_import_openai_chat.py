"""Recorded chat-completion runs become events: what becomes what, stability, and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import runpy
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.declared_fields import check_declared

from graphweft.adapters.values import error_in
from graphweft_contracts import Event
from graphweft_workers.imports import (
    ChatImportOptions,
    ImportProblem,
    RecordedRun,
    events_of,
    events_of_runs,
    read_runs,
)
from graphweft_workers.imports.files import runs_of_json, runs_of_lines, runs_of_stream

HERE = Path(__file__).parents[1]
FIXTURES = HERE / "fixtures" / "imports"
AIRLINE = HERE.parent / "examples" / "airline" / "data" / "tau-airline-gpt4o.jsonl.gz"
OPTIONS = ChatImportOptions(app_id="demo", workflow="Support")

Json = dict[str, Any]


def user(text: Any = "hi") -> Json:
    return {"role": "user", "content": text}


def said(text: Any = "hello", **fields: Any) -> Json:
    return {"role": "assistant", "content": text, **fields}


def calling(*calls: tuple[str, str], arguments: Any = "{}") -> Json:
    return said(
        None,
        tool_calls=[
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}} for id, name in calls
        ],
    )


def result(id: str, text: Any = "ok") -> Json:
    return {"role": "tool", "tool_call_id": id, "content": text}


def run(*messages: Any, number: int = 0, **fields: Any) -> RecordedRun:
    return RecordedRun(place="runs.jsonl:7", number=number, messages=messages, fields={"chat_id": "c"} | fields)


def imported(*messages: Any, options: ChatImportOptions = OPTIONS, **fields: Any) -> tuple[Event, ...]:
    events = events_of(run(*messages, **fields), options)
    check_declared(events)
    return events


def of_type(events: tuple[Event, ...], type: str) -> list[Json]:
    return [event.data for event in events if event.type == type]


def tool_calls(*messages: Any) -> list[Json]:
    return of_type(imported(*messages), "tool.call_complete")


def turns(*messages: Any, options: ChatImportOptions = OPTIONS) -> list[tuple[str, Any, Any]]:
    events = imported(*messages, options=options)
    return [(turn["agent_name"], turn["response"], turn["success"]) for turn in of_type(events, "agent.turn_complete")]


def lines(events: Iterator[Event]) -> list[str]:
    return [event.model_dump_json(exclude_none=True) for event in events]


# --- the whole of it


def test_a_file_becomes_these_events_to_the_byte() -> None:
    expected = (FIXTURES / "support.events.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines(events_of_runs(read_runs(FIXTURES / "support.jsonl"), OPTIONS)) == expected


def test_the_airline_runs_give_the_counts_that_reading_their_messages_gives() -> None:
    counts = runpy.run_path(str(HERE / "oracle" / "airline_counts.py"))["counts"](AIRLINE)
    options = ChatImportOptions(app_id="airline", workflow="AirlineSupport", chat_id="task{task_id}-trial{trial}")
    events = list(events_of_runs(read_runs(AIRLINE), options))

    assert Counter(event.type for event in events) == {
        "agent.turn_start": counts["turns"],
        "agent.turn_complete": counts["turns"],
        "tool.call_complete": 572,
        "workflow.complete": counts["journeys"],
    }
    assert len({event.identity for event in events}) == len(events)
    calls = [event.data for event in events if event.type == "tool.call_complete"]
    assert Counter(call["tool_name"] for call in calls) == counts["calls"]
    assert Counter(call["tool_name"] for call in calls if call["success"] is False) == counts["failures"]
    unanswered = [event for event in events if event.type == "agent.turn_complete" and not event.data["success"]]
    assert counts["turns"] - len(unanswered) == counts["answers"]
    # Two recordings stop in the middle of the work: no answer, no hand-over.
    assert [event.chatid for event in unanswered] == ["task33-trial0", "task2-trial1"]


def test_the_oracle_has_a_query_for_every_count() -> None:
    queries = json.loads((HERE / "oracle" / "queries.json").read_text(encoding="utf-8"))
    assert queries.keys() == runpy.run_path(str(HERE / "oracle" / "airline_counts.py"))["counts"](AIRLINE).keys()


# --- turns


def test_a_turn_lasts_from_the_first_assistant_message_to_the_one_without_tool_calls() -> None:
    events = imported(user(), calling(("1", "look")), result("1"), said("done"), user(), said("bye"))
    assert [(event.type, event.id) for event in events] == [
        ("agent.turn_start", "c/1/start"),
        ("tool.call_complete", "c/1/tool/1"),
        ("agent.turn_complete", "c/1/complete"),
        ("agent.turn_start", "c/2/start"),
        ("agent.turn_complete", "c/2/complete"),
        ("workflow.complete", "c/end"),
    ]
    assert [event.data.get("turn_number") for event in events] == [1, 1, 1, 2, 2, None]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([user(), said("yes")], [("assistant", "yes", True)], id="answered"),
        pytest.param([said("welcome"), user()], [("assistant", "welcome", True)], id="assistant opens"),
        pytest.param([said("a"), said("b")], [("assistant", "a", True), ("assistant", "b", True)], id="speaks twice"),
        pytest.param([user(), said(None, refusal="no")], [("assistant", "no", True)], id="a refusal is an answer"),
        pytest.param([user(), said("")], [("assistant", None, False)], id="empty text is no answer"),
        pytest.param(
            [user(), calling(("1", "look")), result("1")], [("assistant", None, False)], id="recording stops early"
        ),
        pytest.param(
            [user(), calling(("1", "look")), user("hurry"), said("yes")],
            [("assistant", None, False), ("assistant", "yes", True)],
            id="the user interrupts",
        ),
        pytest.param(
            [user(), calling(("1", "look")), result("1"), user("a picture of it"), said("yes")],
            [("assistant", "yes", True)],
            id="the agent adds to a result",
        ),
        pytest.param(
            [user(), calling(("1", "transfer_to_human")), result("1")], [("assistant", None, True)], id="hand-over"
        ),
        pytest.param(
            [user(), calling(("1", "transfer_to_human"))], [("assistant", None, True)], id="hand-over without result"
        ),
        pytest.param(
            [user(), calling(("1", "transfer_to_human")), result("1", "Error: nobody there")],
            [("assistant", None, False)],
            id="hand-over failed",
        ),
        pytest.param(
            [user(), calling(("1", "look")), result("1"), {"role": "system", "content": "be kind"}, said("yes")],
            [("assistant", "yes", True)],
            id="a system message does not end a turn",
        ),
        pytest.param(
            [user(), calling(("1", "transfer_to_b")), result("1"), said("I am B", name="B")],
            [("assistant", None, True), ("B", "I am B", True)],
            id="another agent goes on",
        ),
        pytest.param([user()], [], id="nobody answers"),
    ],
)
def test_how_turns_end(messages: list[Json], expected: list[tuple[str, Any, Any]]) -> None:
    assert turns(*messages) == expected


def test_the_agent_option_names_every_turn() -> None:
    options = ChatImportOptions(app_id="demo", workflow="Support", agent="Desk")
    assert turns(user(), said("a", name="A"), said("b"), options=options) == [("Desk", "a", True), ("Desk", "b", True)]


def test_hand_over_tools_are_a_choice() -> None:
    options = ChatImportOptions(app_id="demo", workflow="Support", handover_tools=("escalate",))
    assert turns(user(), calling(("1", "escalate")), result("1"), options=options) == [("assistant", None, True)]
    assert turns(user(), calling(("1", "transfer_to_human")), result("1"), options=options)[0][2] is False


# --- tool calls


def test_results_match_their_calls_whatever_their_order() -> None:
    calls = tool_calls(calling(("a", "look"), ("b", "measure")), result("b", "2"), result("a", "1"), said())
    assert [(call["tool_name"], call["result"]) for call in calls] == [("look", "1"), ("measure", "2")]


def test_an_id_that_comes_back_belongs_to_the_message_before() -> None:
    calls = tool_calls(calling(("a", "look")), result("a", "1"), calling(("a", "look")), result("a", "2"), said())
    assert [call["result"] for call in calls] == ["1", "2"]


def test_a_result_never_goes_to_an_older_call_that_nobody_answered() -> None:
    calls = tool_calls(calling(("a", "look")), calling(("a", "look")), result("a", "2"), said())
    assert [(call["result"], call["success"]) for call in calls] == [(None, None), ("2", True)]


def test_an_id_used_twice_in_one_message_is_answered_in_order() -> None:
    calls = tool_calls(calling(("a", "look"), ("a", "look")), result("a", "1"), result("a", "2"), said())
    assert [call["result"] for call in calls] == ["1", "2"]


def test_a_call_without_a_result_is_neither_success_nor_failure() -> None:
    (call,) = tool_calls(calling(("a", "look")))
    assert (call["result"], call["success"]) == (None, None)


def test_an_empty_result_is_a_result() -> None:
    for text in ("", None):
        (call,) = tool_calls(calling(("a", "look")), result("a", text))
        assert (call["result"], call["success"]) == ("", True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"n": 1}', {"n": 1}), ({"n": 1}, {"n": 1}), ("[1]", "[1]"), ("{broken", "{broken"), ("", ""), (None, None)],
)
def test_arguments_are_an_object_if_they_can_be(arguments: Any, expected: Any) -> None:
    (call,) = tool_calls(calling(("a", "look"), arguments=arguments))
    assert call["arguments"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"n": 1}', {"n": 1}),
        (' [1, "2"]', [1, "2"]),
        ("255.0", "255.0"),
        ("true", "true"),
        ("[x", "[x"),
        ('{"n": NaN}', '{"n": NaN}'),
        ('{"n": 1e400}', '{"n": 1e400}'),
        ([{"type": "text", "text": "[1"}, {"type": "text", "text": "]"}], [1]),
    ],
)
def test_results_are_objects_and_arrays_if_they_can_be(text: Any, expected: Any) -> None:
    (call,) = tool_calls(calling(("a", "look")), result("a", text))
    assert call["result"] == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Error: no seats", "Error: no seats"),
        ("error", "error"),
        ('{"error": "no seats"}', "no seats"),
        ('{"error": {"message": "no seats", "code": 7}}', "no seats"),
        ('{"error": {"code": 7}}', "error"),
        ('{"isError": true}', "error"),
        ('{"is_error": true}', "error"),
        ("Errors: 0", None),
        ("error-free", None),
        ('{"error": null}', None),
        ('{"error": ""}', None),
        ('{"isError": false}', None),
        ("[]", None),
    ],
)
def test_success_comes_from_the_result(text: str, error: str | None) -> None:
    (call,) = tool_calls(calling(("a", "look")), result("a", text))
    assert (call["success"], call.get("error")) == (error is None, error)


def test_the_deprecated_form_is_read_too() -> None:
    call = {"name": "recall", "arguments": '{"year": 2023}'}
    (data,) = tool_calls(
        user(), said(None, function_call=call), {"role": "function", "name": "recall", "content": "42"}, said()
    )
    assert (data["tool_name"], data["arguments"], data["result"], data["call_id"]) == (
        "recall",
        {"year": 2023},
        "42",
        None,
    )


# --- context, outputs, ids


def test_every_event_carries_user_chat_and_the_latest_user_message() -> None:
    options = ChatImportOptions(app_id="demo", workflow="Support", context_fields=("plan", "profile"))
    events = imported(
        user("one"), said(), user("two"), said(), options=options, user_id=7, plan="gold", profile={"vip": True}
    )
    common = {"plan": "gold", "profile": {"vip": True}, "user_id": "7", "chat_id": "c"}
    assert [event.context for event in events] == [
        common | {"last_user_message": text} for text in ("one", "one", "two", "two", "two")
    ]
    assert {event.userid for event in events} == {"7"}


def test_outputs_are_the_scalar_fields_that_are_not_used_otherwise() -> None:
    events = imported(said(), user_id="u", created=10**9, reward=0.5, note=None, tags=["a"])
    assert events[-1].data["outputs"] == {"reward": 0.5, "note": None}
    assert events[-1].data["status"] == "COMPLETE"


@pytest.mark.parametrize(
    ("fields", "template", "expected"),
    [
        ({"chat_id": "x", "id": "y"}, None, "x"),
        ({"chat_id": None, "conversation_id": "x", "session_id": "y"}, None, "x"),
        ({"chat_id": None, "session_id": "x"}, None, "x"),
        ({"chat_id": None, "id": 12}, None, "12"),
        ({"task": 3, "trial": 1}, "task{task:03d}-{trial}", "task003-1"),
    ],
)
def test_where_the_chat_id_comes_from(fields: Json, template: str | None, expected: str) -> None:
    options = ChatImportOptions(app_id="demo", workflow="Support", chat_id=template)
    assert imported(said(), options=options, **fields)[0].chatid == expected


def test_without_any_id_the_messages_make_one() -> None:
    one, again, other = (imported(said(text), chat_id=None)[0].chatid for text in ("a", "a", "b"))
    assert one == again != other


def test_ids_of_different_chats_never_meet() -> None:
    chats = ("a", "a/1", "a/1/start", "a/1/tool", "a/end", "a/1/complete")
    messages = (user(), calling(("1", "look")), result("1"), said())
    events = [event for chat in chats for event in imported(*messages, chat_id=chat)]
    assert len({event.identity for event in events}) == len(events)


def test_other_apps_and_workflows_are_other_sources() -> None:
    options = (
        OPTIONS,
        ChatImportOptions(app_id="b", workflow="Support"),
        ChatImportOptions(app_id="demo", workflow="Other"),
    )
    assert len({imported(said(), options=option)[0].identity for option in options}) == 3


# --- time


@pytest.mark.parametrize(
    "field",
    [
        {"created": 1714557600},
        {"created_at": "2024-05-01T10:00:00Z"},
        {"timestamp": "2024-05-01T12:00:00+02:00"},
        {"created": None, "timestamp": "2024-05-01 10:00"},
    ],
)
def test_a_record_may_tell_its_time(field: Json) -> None:
    assert imported(said(), **field)[0].time == datetime(2024, 5, 1, 10, tzinfo=UTC)


def test_otherwise_the_nth_run_starts_n_hours_later() -> None:
    events = events_of(run(said(), number=3), OPTIONS)
    assert events[0].time == datetime(2024, 1, 1, 3, tzinfo=UTC)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run on a machine whose clock shows New York's time."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
def test_a_time_without_a_zone_is_utc_wherever_it_is_imported() -> None:
    noon = datetime.fromisoformat("2024-05-01T12:00:00")
    options = ChatImportOptions(app_id="demo", workflow="Support", start=noon)
    assert imported(said(), options=options)[0].time == noon.replace(tzinfo=UTC)
    assert imported(said(), created_at="2024-05-01T12:00:00")[0].time == noon.replace(tzinfo=UTC)
    assert imported(said(), created=1714557600)[0].time == datetime(2024, 5, 1, 10, tzinfo=UTC)
    assert imported(said(), created=1714557600000)[0].time == datetime(2024, 5, 1, 10, tzinfo=UTC)


# --- files


def _plain(content: bytes) -> bytes:
    return content


@pytest.mark.parametrize(("suffix", "packed"), [("", _plain), (".gz", gzip.compress)])
@pytest.mark.parametrize("layout", ["lines", "array", "object", "messages"])
def test_the_same_runs_from_every_kind_of_file(
    tmp_path: Path, layout: str, suffix: str, packed: Callable[[bytes], bytes]
) -> None:
    record = {"chat_id": "c", "messages": [user("ü"), said()]}
    records = [record, record | {"chat_id": "d"}]
    name, content = {
        "lines": ("runs.jsonl", "\ufeff" + "\n\n".join(map(json.dumps, records))),
        "array": ("runs.json", json.dumps(records, indent=1)),
        "object": ("runs.json", json.dumps(record, indent=1, ensure_ascii=False)),
        "messages": ("runs.json", json.dumps(record["messages"], indent=1)),
    }[layout]
    path = tmp_path / (name + suffix)
    path.write_bytes(packed(content.encode()))

    runs = list(read_runs(path))
    assert [run.number for run in runs] == list(range(2 if layout in {"lines", "array"} else 1))
    assert all(list(run.messages) == record["messages"] for run in runs)
    piped = list(runs_of_stream(io.BytesIO(path.read_bytes()), file="<stdin>"))
    assert [(run.messages, run.fields) for run in piped] == [(run.messages, run.fields) for run in runs]


def test_half_an_emoji_does_not_stop_an_import() -> None:
    (found,) = runs_of_lines(iter([rb'[{"role": "user", "content": "cut \ud83d"}]']), file="f")
    assert found.messages == (user("cut \ufffd"),)
    (found,) = runs_of_lines(iter([rb'[{"role": "user", "content": "\ud83d\ude00"}]']), file="f")
    assert found.messages == (user("\U0001f600"),)


# --- what is left out, and counted


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user(), result("x"), said()], {"result without a call": 1}),
        ([calling(("a", "look")), result("a"), result("a"), said()], {"result without a call": 1}),
        ([calling(("a", "look")), result("b"), said()], {"result without a call": 1}),
        ([said(None, tool_calls=[{"id": "1"}])], {"tool_calls without a name": 1}),
        ([user([{"type": "image_url", "image_url": {"url": "x"}}]), said()], {"image_url": 1}),
        ([user([{"type": "novel", "x": 1}, {"y": 2}]), said()], {"novel": 1, "y": 1}),
        ([calling(("a", "look")), user("hurry"), result("a"), said()], {}),
    ],
)
def test_parts_without_an_event_are_counted_by_what_they_are(messages: list[Json], expected: Json) -> None:
    skipped: Counter[str] = Counter()
    assert events_of(run(*messages), OPTIONS, skipped)
    assert skipped == expected


def test_what_a_model_thinks_aloud_is_no_answer_unless_it_is_kept() -> None:
    messages = [user(), said("<think>They want tea.</think>\n\nTea?")]
    assert turns(*messages) == [("assistant", "Tea?", True)]
    kept = ChatImportOptions(app_id="demo", workflow="Support", keep_reasoning=True)
    assert turns(*messages, options=kept)[0][1].startswith("<think>")


# --- what is refused, and where it says that the fault is


@pytest.mark.parametrize(
    ("messages", "fields", "options", "parts"),
    [
        ([user(), {"role": "robot"}], {}, {}, ("runs.jsonl:7, messages[1]", "'robot'", "assistant")),
        ([user(), 3], {}, {}, ("messages[1]", "int")),
        ([said()], {}, {"chat_id": "{run}"}, ("runs.jsonl:7", "'run'", "'chat_id', 'order'")),
        ([said()], {}, {"chat_id": "{order.real}"}, ("'order.real'",)),
        ([said()], {}, {"chat_id": "{order"}, ("'{order'", "invalid chat id template")),
        ([said()], {}, {"chat_id": "x" * 201}, ("201 characters",)),
        ([said()], {}, {"context_fields": ("plan",)}, ("'plan'", "'chat_id', 'order'")),
        ([said()], {"created": "soon"}, {}, ("'created'", "'soon'")),
        ([said()], {"created": 2024}, {}, ("'created'", "seconds since 1970")),
        ([said()], {"created": True}, {}, ("'created'",)),
        ([said()], {"user_id": ["u"]}, {}, ("'user_id'", "['u']")),
        ([said(name="n" * 257)], {}, {}, ("agent_name",)),
        ([said()], {}, {"app_id": "no spaces"}, ("appid",)),
        ([said()], {}, {"start": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)}, ()),
    ],
)
def test_problems_name_the_place_and_the_value(
    messages: list[Any], fields: Json, options: Json, parts: tuple[str, ...]
) -> None:
    chosen: Json = {"app_id": "demo", "workflow": "Support"} | options
    all_fields: Json = {"chat_id": "c", "order": 1} | fields
    found = RecordedRun(place="runs.jsonl:7", number=1, messages=tuple(messages), fields=all_fields)
    with pytest.raises(ImportProblem) as caught:
        events_of(found, ChatImportOptions(**chosen))
    assert str(caught.value).startswith("runs.jsonl:7")
    for part in parts:
        assert part in str(caught.value)


def test_two_records_of_one_chat_are_refused_with_both_places(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    record = json.dumps({"id": "c", "messages": [said()]})
    path.write_text(f"{record}\n\n{record}\n")
    with pytest.raises(ImportProblem) as caught:
        list(events_of_runs(read_runs(path), OPTIONS))
    assert f"{path}:3" in str(caught.value)
    assert f"{path}:1" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.jsonl", b"[]\n", ()),
        ("a.jsonl", b'{"messages": []}\n', (":1", "no messages")),
        ("a.jsonl", b'\n{"message": [1]}\n', (":2", "'message'")),
        ("a.jsonl", b'\n{"messages": \n', (":2", "invalid JSON", ".json")),
        ("a.jsonl", b'{"n": NaN, "messages": [1]}', (":1", "NaN")),
        ("a.jsonl", b'{"n": -1e400, "messages": [1]}', (":1", "1.8e308")),
        ("a.jsonl", b'\n"\xff"', (":2", "0xff", "UTF-8")),
        ("a.jsonl", b"[" * 200_000, (":1", "deep")),
        ("a.jsonl", b"7", (":1", "int")),
        ("a.json", b'[{"messages": [1]}, 5]', ("record 2", "int")),
        ("a.json", b'{"messages": [1]}\n{"messages": [1]}', (".jsonl",)),
        ("a.jsonl.gz", b"plain", ("gzip",)),
        ("a.jsonl.gz", gzip.compress(b"[1]\n" * 99, mtime=0)[:-9], ("gzip",)),
        ("a.csv", b"", (".jsonl",)),
        ("absent/a.jsonl", None, ("No such file",)),
    ],
)
def test_files_that_cannot_be_read_say_why(
    tmp_path: Path, name: str, content: bytes | None, parts: tuple[str, ...]
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    if not parts:
        assert list(read_runs(path)) == []
        return
    with pytest.raises(ImportProblem) as caught:
        list(read_runs(path))
    assert str(caught.value).startswith(str(path))
    for part in parts:
        assert part in str(caught.value)


# --- laws

TEXTS = st.one_of(st.none(), st.sampled_from(["", "yes", "Error: no", '{"a": 1}', "[1]", "{"]))
NAMES = st.sampled_from(["look", "measure", "transfer_to_human"])


@st.composite
def recordings(draw: st.DrawFn) -> list[Json]:
    """Lawful runs: results follow the message that calls, some are absent, ids come back."""
    messages: list[Json] = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["user", "system", "said", "calling"]))
        if kind == "calling":
            calls = draw(st.lists(st.tuples(st.sampled_from("ab"), NAMES), min_size=1, max_size=3))
            answered = draw(st.permutations(calls))[: draw(st.integers(0, len(calls)))]
            messages += [calling(*calls), *(result(id, draw(TEXTS)) for id, _ in answered)]
        elif kind == "said":
            messages.append(said(draw(TEXTS), name=draw(st.sampled_from([None, "A", "B"]))))
        else:
            messages.append({"role": kind, "content": draw(TEXTS)})
    return messages


@settings(deadline=None)
@given(recordings())
def test_laws_of_an_import(messages: list[Json]) -> None:
    events = imported(*messages)
    assert lines(iter(events)) == lines(iter(imported(*json.loads(json.dumps(messages)))))
    assert len({event.identity for event in events}) == len(events)
    times = [event.time for event in events]
    assert all(earlier < later for earlier, later in pairwise(times))
    assert times[-1] - times[0] < timedelta(seconds=5 * len(messages))

    types = Counter(event.type for event in events)
    assert types["agent.turn_start"] == types["agent.turn_complete"]
    assert types["tool.call_complete"] == sum(len(message.get("tool_calls") or ()) for message in messages)
    assert types["workflow.complete"] == 1
    answered = sum(call["success"] is not None for call in of_type(events, "tool.call_complete"))
    assert answered == sum(message["role"] == "tool" for message in messages)
    # Starts, calls and completions nest: a turn is over before the next one starts.
    open_turn = 0
    for event in events:
        number = event.data.get("turn_number")
        if event.type == "agent.turn_start":
            assert open_turn == 0
            open_turn = number or 0
        elif event.type != "workflow.complete":
            assert number == open_turn
            open_turn = 0 if event.type == "agent.turn_complete" else open_turn
    assert open_turn == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "messages", "tool_calls", "name", "id", "created", "user_id"]),
            inner | st.sampled_from(["user", "assistant", "tool"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


def outcome(read: Callable[[], object]) -> str:
    """Return what an import says when it refuses, or the file's name; anything else that is raised goes through."""
    try:
        read()
    except ImportProblem as problem:
        return str(problem)
    return "any.json"


@given(JSON)
def test_any_json_is_imported_or_refused_with_a_place(value: Any) -> None:
    content = json.dumps(value).encode()
    runs = runs_of_json(content, file="any.json")
    assert outcome(lambda: lines(events_of_runs(runs, OPTIONS))).startswith("any.json")


@settings(deadline=None)
@given(st.binary(max_size=40))
@example(b"\x1f\x8b\x08cut off")
@example(gzip.compress(b"[1]", mtime=0)[:-2])
def test_any_bytes_are_read_or_refused_with_a_place(content: bytes) -> None:
    assert outcome(lambda: list(runs_of_lines(iter(content.splitlines()), file="any.json"))).startswith("any.json")
    assert outcome(lambda: list(runs_of_stream(io.BytesIO(content), file="any.json"))).startswith("any.json")


@given(JSON)
def test_error_in_never_fails(value: Any) -> None:
    assert error_in(value) is None or isinstance(error_in(value), str)


def test_a_call_of_type_custom_is_a_tool_call_with_text() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "grep", "input": "TODO"}}
    tools = [
        event
        for event in imported(user(), said(None, tool_calls=[call]), result("c1"), said())
        if "tool_name" in event.data
    ]
    assert [(event.data["tool_name"], event.data["arguments"], event.data["result"]) for event in tools] == [
        ("grep", "TODO", "ok")
    ]
