"""Lines in the log that senders of events can cause at will are limited, and the number of those left out is said."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import DeadLetter, Event
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_workers.engine.batch_reports import BatchReports
from graphweft_workers.engine.failures.skips import Skips
from graphweft_workers.engine.log.read import Defect, Range, Skip
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.support.log_limit import LogLimit

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Letters:
    async def put(self, letters: Sequence[DeadLetter]) -> None: ...


def reports() -> BatchReports:
    async def may_hold(app_id: str) -> bool:
        return False

    rules = SimpleNamespace(current=lambda app_id: SimpleNamespace(workflows={}))
    queues = SimpleNamespace(parked=frozenset(), park=None, is_busy=lambda app_id: False)
    return BatchReports(
        cast(Any, SimpleNamespace(letters=Letters(), rules=rules)), 0, cast(Any, queues),
        cast(Any, SimpleNamespace(may_hold=may_hold)), Skips(0),
        before=PositionNote(), warned=BoundedDict(), lines=LogLimit(clock=VIRTUAL),
    )  # fmt: skip


def without_rules(number: int, workflow: str, app_id: str = "acme") -> Skip:
    event = Event.create("a.one", app_id=app_id, chat_id="c", source="test", workflow=workflow, data={})
    entry = Entry(offset=str(number), fields={}, received=NOW)
    return Skip(entry=entry, event=event, reason="no_rules", message="no rules")


def letter(number: int, app_id: str) -> DeadLetter:
    return DeadLetter(
        id=f"0:{number}", reason="invalid_event", message="no data", position=f"0:{number}", time=NOW, app_id=app_id,
        fields={},
    )  # fmt: skip


async def lines(made: BatchReports, read: Range) -> list[tuple[str, int]]:
    """Return the lines above level debug: what they are about, and how many were left out before."""
    with capture_logs() as logs:
        await made.report(read)
    above = [entry for entry in logs if entry["log_level"] != "debug"]
    return [
        (entry.get("workflow") or entry.get("position") or entry["error"], entry.get("left_out", 0)) for entry in above
    ]


async def test_names_of_workflows_that_an_app_chooses_do_not_fill_the_log() -> None:
    made = reports()
    many = [without_rules(number, f"w{number}") for number in range(1, 51)]
    others = [without_rules(51, "other", "bell")]
    assert await lines(made, Range(skips=[*many, *others])) == [("w1", 0), ("other", 0)]
    VIRTUAL.advance(120)
    assert await lines(made, Range(skips=[without_rules(52, "w1"), without_rules(53, "w2")])) == [("w2", 49)]


async def test_events_without_an_effect_do_not_fill_the_log() -> None:
    made = reports()
    letters = [*(letter(number, "acme") for number in range(1, 51)), letter(51, "bell")]
    assert await lines(made, Range(letters=letters)) == [("0:1", 0), ("0:51", 0)]
    defects = [Defect(kind="KeyError", frames="here")] * 9 + [Defect(kind="KeyError", frames="there")]
    assert await lines(made, Range(defects=defects)) == [("KeyError", 0), ("KeyError", 0)]
    VIRTUAL.advance(120)
    assert await lines(made, Range(letters=[letter(52, "acme")], defects=defects[:1])) == [
        ("0:52", 49),
        ("KeyError", 8),
    ]
