"""What is refused before it stands on the bus, beyond the contract of events."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from graphweft_contracts import Event, InvalidEvent
from graphweft_contracts.admission import MOST_AHEAD, admission_faults, check_admission

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)


def event(type: str = "order.paid", time: datetime = NOW, **data: Any) -> Event:
    return Event.create(type, app_id="shop", chat_id="c1", time=time, data=data)


@pytest.mark.parametrize(
    ("time", "fault"),
    [
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "it is before 1970-01-01"),
        (datetime(1970, 1, 1, tzinfo=UTC) - MOMENT, "it is before 1970-01-01"),
        (datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=1))), "it is before 1970-01-01"),
        (datetime(1970, 1, 1, tzinfo=UTC), None),
        (NOW, None),
        (NOW + MOST_AHEAD, None),
        (NOW + MOST_AHEAD + MOMENT, "it is more than a day ahead of the clock here, 2026-03-01T12:00Z"),
        (datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))), "it is more than a day ahead"),
    ],
)
def test_times_that_cannot_be_are_refused(time: datetime, fault: str | None) -> None:
    found = list(admission_faults(event(time=time), now=NOW))
    assert [where for where, _ in found] == ([("time",)] if fault else [])
    assert not fault or found[0][1].startswith(fault)


def entities(names: int, of_each: int = 50) -> dict[str, Any]:
    each = ({f"secret{n}": 1 for n in range(start, min(start + of_each, names))} for start in range(0, names, of_each))
    said = [{"type": "T", "name": f"n{number}", **given, "none": None} for number, given in enumerate(each)]
    return {"entities": said, "relations": []}


@pytest.mark.parametrize(
    ("type", "data", "where"),
    [
        ("episode.add", {"episode_type": "json", "content": entities(201)}, "data.content"),
        ("episode.add", {"episode_type": "json", "content": json.dumps(entities(201))}, "data.content"),
        ("episode.extracted", {"episode_id": "e", "reference_time": NOW, "model": "m", **entities(201)}, "data"),
    ],
)
def test_an_episode_with_too_many_names_is_refused_without_quoting_any(type: str, data: Any, where: str) -> None:
    with pytest.raises(InvalidEvent, match=f"^{where}: the entities have 201 different names of attributes") as raised:
        check_admission(event(type, user_id="u", **data), now=NOW)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("type", "data", "where"),
    [
        ("memory.update", {"memory_id": "m", "text": " \n"}, "data.text"),
        (
            "memory.add",
            {"messages": [{"role": "user", "text": "a secret"}, {"role": "user", "text": "\u3000"}]},
            "data.messages.1.text",
        ),
    ],
)
def test_a_memory_that_says_nothing_is_refused(type: str, data: Any, where: str) -> None:
    with pytest.raises(InvalidEvent, match=f"^{where}: expected some text, found only white space") as raised:
        check_admission(event(type, user_id="u", **data), now=NOW)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("memory.update", {"memory_id": "m", "pinned": True}),
        ("episode.add", {"episode_type": "json", "content": entities(200)}),
        ("episode.add", {"episode_type": "json", "content": {"entities": "x", "relations": [1]}}),  # a worker says so
        ("episode.add", {"episode_type": "json", "content": {"entities": [1, None]}}),
        ("episode.add", {"episode_type": "json", "content": "{"}),
        ("episode.add", {"episode_type": "json", "content": "[" * 100_000}),
        ("episode.add", {"content": json.dumps(entities(300))}),  # a text, of which no name is taken
        ("order.paid", {"content": entities(300)}),
    ],
)
def test_what_is_anything_else_is_left_to_the_workers(type: str, data: Any) -> None:
    check_admission(event(type, user_id="u", **data), now=NOW)
