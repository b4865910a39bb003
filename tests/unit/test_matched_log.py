"""Whoever goes through the log of an app again reads it by one reader."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from graphweft_contracts import Event, wire
from graphweft_rules import RuleSet
from graphweft_workers.engine.log.effect_ledger import NOTHING
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.replay.matched_log import RulesReader
from graphweft_workers.rule_sets.active_rules import FixedRules

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def entry(number: int) -> Entry:
    event = Event.create("order.placed", app_id="acme", chat_id="c", data={"order": number}, id=str(number), time=NOW)
    return Entry(offset=str(number), fields=wire.encode(event), received=NOW)


async def test_others_run_while_a_page_of_the_log_is_read_again() -> None:
    """A page takes much longer than a turn: without turns, no page of the console would be answered meanwhile."""
    reader = RulesReader(partition=0, app_id="acme", rules=FixedRules(RuleSet({})), passed_over=NOTHING)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    try:
        await reader.read([entry(number) for number in range(1, 3_001)])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert turns > 1
