"""Apps that use the same workflows share one arranger, also if all begin at the same time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.services.rules import rules_of_parts

from graphweft_contracts import Event, wire
from graphweft_rules import RuleSet
from graphweft_rules.cypher import entities
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import LoggedEvent, read_range
from graphweft_workers.engine.plan.arrangers import Arrangers
from graphweft_workers.engine.plan.order import Arranger
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.rule_sets.active_rules import FixedRules


def events_of(rules: RuleSet, app_id: str) -> list[LoggedEvent]:
    event = Event.create("x.y", app_id=app_id, chat_id="c", workflow="W", id=app_id, data={"s": "s", "v": 1})
    entry = Entry(offset="1", fields=wire.encode(event), received=datetime(2026, 2, 1, tzinfo=UTC))
    return list(read_range(0, [entry], FixedRules(rules).cursor(0, ""), RecentEvents()).apps[app_id])


async def test_apps_that_begin_together_share_one_arranger(tmp_path: Path) -> None:
    rules = rules_of_parts(tmp_path, {"see": "MERGE (s:Session {id: $s}) SET s.seen = $v"})
    arrangers = Arrangers(FixedRules(rules), FALKORDB)
    given = [events_of(rules, f"app{number}") for number in range(20)]
    first = asyncio.create_task(arrangers.of(given[0]))
    await asyncio.sleep(0)
    first.cancel()  # the others still get what it began
    found = await asyncio.gather(*(arrangers.of(events) for events in given))
    assert len(set(map(id, found))) == 1
    assert isinstance(found[0], Arranger)


async def test_an_arranger_that_could_not_be_made_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = rules_of_parts(tmp_path, {"see": "MERGE (s:Session {id: $s}) SET s.seen = $v"})
    arrangers = Arrangers(FixedRules(rules), FALKORDB)
    given = [events_of(rules, f"app{number}") for number in range(3)]

    def fail(*_: object) -> Arranger:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(arrangers, "_make", fail)
        found = await asyncio.gather(*(arrangers.of(events) for events in given), return_exceptions=True)
    assert all(isinstance(each, MemoryError) for each in found)
    assert isinstance(await arrangers.of(given[0]), Arranger)


async def test_the_first_event_waits_for_nothing_that_could_be_known_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = rules_of_parts(tmp_path, {"see": "MERGE (s:FirstSession {id: $s}) SET s.seen = $v"})
    arrangers = Arrangers(FixedRules(rules), FALKORDB)
    await arrangers.warm("app")
    events = events_of(rules, "app")

    def fail(*_: object) -> None:
        raise AssertionError("the query was read only when an event came")

    monkeypatch.setattr(entities, "read_parts", fail)
    assert isinstance(await arrangers.of(events), Arranger)
