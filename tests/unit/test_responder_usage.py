"""A responder reports the slow queries that got no turn, and `graphweft status` shows them by app."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from tests.chaos.memory_bus import MemoryRecords, memory_bus

from graphweft_contracts import BusUnavailable
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock, PastClock
from graphweft_workers.apps import AppPolicies
from graphweft_workers.apps.quotas import Quotas
from graphweft_workers.engine.usage.app_use import FORGOTTEN_S, AppUse, read_uses
from graphweft_workers.ports.bus import Bus
from graphweft_workers.processes.responder_usage import ResponderUsage
from graphweft_workers.reports.status import use_parts
from graphweft_workers.wiring.app_uses import AppUses

NOW = 1_000_000.0


def at(seconds: float) -> Clock:
    return PastClock(datetime.fromtimestamp(seconds, UTC), SYSTEM_CLOCK)


async def uses(bus: Bus) -> AppUses:
    apps, unread = read_uses((await bus.usage.after(None)).found, AppPolicies(), NOW)
    assert not unread
    return AppUses(apps=sorted(apps, key=lambda use: use.app_id))


async def test_the_queries_of_all_responders_are_added_up_by_app() -> None:
    bus = memory_bus([[]])
    for name, counts in (("r1", Counter(acme=1)), ("r2", Counter(acme=2, other=1)), ("r3", Counter[str]())):
        responder = ResponderUsage(bus.usage, counts, name=name, clock=at(NOW))
        await responder.report()
        counts.update(counts.keys())
        await responder.report()
    assert sorted((await bus.usage.after(None)).found) == ["responder:r1", "responder:r2"], (
        "nothing to report is not reported"
    )
    found = await uses(bus)
    assert {use["app_id"]: use["without_turn"] for use in found.to_json()} == {"acme": 5, "other": 2}
    assert "acme: 5 slow queries got no turn in time: make them quicker, or raise the budget" in [*use_parts(found)]


def test_an_app_without_turns_is_told_beyond_the_table_and_the_rest_is_counted() -> None:
    quiet = [AppUse(app_id=f"quiet{number}", quotas=Quotas()) for number in range(25)]
    found = use_parts(AppUses(apps=[*quiet, AppUse(app_id="last", quotas=Quotas(), without_turn=3)]))
    assert any("last: 3 slow queries got no turn in time" in str(part) for part in found)
    many = AppUses(apps=[AppUse(app_id=f"a{number}", quotas=Quotas(), without_turn=1) for number in range(23)])
    assert "3 more apps have such letters or queries; `graphweft status --json` shows all" in [*use_parts(many)]


async def test_a_report_that_fails_is_made_later() -> None:
    bus = memory_bus([[]], usage=(usage := Refusing()))
    counts = Counter(acme=1)
    responder = ResponderUsage(bus.usage, counts, name="r1", clock=at(NOW))
    await responder.report()
    usage.refuses = False
    await responder.report()
    [use] = (await uses(bus)).apps
    assert use.without_turn == 1


async def test_the_record_of_a_responder_that_is_long_gone_is_removed() -> None:
    bus = memory_bus([[]])
    for name, age_s in (("old", FORGOTTEN_S + 1), ("young", FORGOTTEN_S - 1)):
        await ResponderUsage(bus.usage, Counter(acme=1), name=name, clock=at(NOW - age_s)).report()
    await bus.usage.put("gateway:x", b"{}")
    await ResponderUsage(bus.usage, Counter(acme=1), name="new", clock=at(NOW)).report()
    assert sorted((await bus.usage.after(None)).found) == ["gateway:x", "responder:new", "responder:young"]


class Refusing(MemoryRecords):
    refuses = True

    async def put(self, reporter: str, record: bytes | None) -> None:
        if self.refuses:
            raise BusUnavailable("NOPERM this user has no permissions")
        await super().put(reporter, record)
