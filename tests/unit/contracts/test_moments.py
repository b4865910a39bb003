"""Times from outside: a year, or a date without dashes, is never seconds since 1970."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from graphweft_contracts import Event, InvalidEvent, wire
from graphweft_contracts.episodes import Structure
from graphweft_workers.engine.log.key_file import _Entry
from graphweft_workers.imports.item_fields import Fields
from graphweft_workers.imports.report import ImportReport, RefusedItem
from graphweft_workers.ports import event_decoder

NOW = datetime(2026, 2, 1, tzinfo=UTC)
MEANT_AS_DATES: list[Any] = [
    10**400,
    "2026",
    2026,
    "20260201",
    20260201,
    " 2026 ",
    "+2026",
    "2026.0",
    2026.5,
    "1e3",
    202602011000,
    "0",
    0,
]
SECONDS = 1769904000
"""2026-02-01."""


def entry(**attributes: Any) -> dict[bytes, bytes]:
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "a.b", "appid": "a", "chatid": "c", **attributes}
    return {wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: json.dumps(event).encode()}


def fact(time: Any) -> dict[str, Any]:
    ends = {"source": "Ada", "target": "Oslo"}
    return {
        "entities": [{"type": "Person", "name": "Ada"}, {"type": "City", "name": "Oslo"}],
        "relations": [{"type": "LIVES_IN", "fact": "Ada lives in Oslo", "valid_from": time, **ends}],
    }


@pytest.mark.parametrize("time", MEANT_AS_DATES)
@pytest.mark.parametrize("name", ["time", "recordedtime"])
def test_the_time_of_an_event_is_no_year(name: str, time: Any) -> None:
    fields = entry(**{name: time})
    with pytest.raises(InvalidEvent, match=f"{name}: .*RFC 3339"):
        wire.decode(fields, received=NOW)
    with pytest.raises(InvalidEvent, match=f"{name}: .*RFC 3339"):
        event_decoder.decode(fields, NOW)


@pytest.mark.parametrize("time", MEANT_AS_DATES)
def test_the_time_of_a_relation_is_no_year(time: Any) -> None:
    with pytest.raises(InvalidEvent, match=r"valid_from.*2026-02-01T10:00:00Z"):
        Structure.read(fact(time))


@pytest.mark.parametrize("time", MEANT_AS_DATES)
@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("memory.add", {"messages": [{"role": "user", "content": "x", "time": None}], "scope": {"user_id": "u"}}),
        ("episode.add", {"content": "x", "reference_time": None, "scope": {"user_id": "u"}}),
        ("memory.forget", {"before": None, "scope": {"user_id": "u"}}),
    ],
)
def test_the_times_in_data_are_no_years(type: str, data: dict[str, Any], time: Any) -> None:
    text = json.dumps(data).replace("null", json.dumps(time))
    with pytest.raises(InvalidEvent):
        wire.decode(entry(type=type, data=json.loads(text)), received=NOW)


@pytest.mark.parametrize(
    "time", [SECONDS, SECONDS * 1000, float(SECONDS), "2026-02-01T00:00:00Z", "2026-02-01 01:00+01:00"]
)
def test_plain_times_are_read(time: Any) -> None:
    assert wire.decode(entry(time=time), received=NOW).time == NOW
    (relation,) = Structure.read(fact(time)).relations
    assert relation.valid_from == NOW


def test_a_key_is_not_valid_since_a_year_in_1970() -> None:
    with pytest.raises(ValidationError, match="2026-02-01T10:00:00Z"):
        _Entry.model_validate({"id": "k", "app_id": "a", "secret": "s" * 43, "from": 2026})


@pytest.mark.parametrize("time", [2026, 20260201, 202602011000, 2026.5])
def test_an_imported_time_is_no_year(time: Any) -> None:
    with pytest.raises(RefusedItem, match="seconds since 1970"):
        Fields({"at": time}, ImportReport(), now=NOW).time("at", past=False)


def test_an_event_that_is_made_here_takes_a_datetime() -> None:
    assert Event.create("a.b", app_id="a", chat_id="c", time=NOW).time == NOW
