"""Reads a range of the log, and compiles the workflows of its events in a thread before they are matched.

A workflow takes up to 0.1 s. In the event loop, a range with many of them would let the leases expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from graphweft_rules import RuleSet
from graphweft_workers.engine.app_costs import AppCosts
from graphweft_workers.engine.duplicates import RecentEvents
from graphweft_workers.engine.passed_over import NOTHING, PassedOver
from graphweft_workers.engine.read import Decoded, Range
from graphweft_workers.engine.turns import TurnClock, decode_in_turns, match_in_turns
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.rule_sets.active_rules import RulesCursor


async def read_compiled(
    partition: int,
    entries: Iterable[Entry],
    rules: RulesCursor,
    recent: RecentEvents,
    *,
    only: str | None = None,
    without: Collection[str] = (),
    passed_over: PassedOver = NOTHING,
) -> Range:
    """Return the same as ``read_range``."""
    decoded = await decode_in_turns([*entries], rules)
    return await match_compiled(partition, decoded, recent, only=only, without=without, passed_over=passed_over)


async def match_compiled(
    partition: int,
    decoded: Sequence[Decoded],
    recent: RecentEvents,
    *,
    only: str | None = None,
    without: Collection[str] = (),
    passed_over: PassedOver = NOTHING,
    turns: TurnClock | None = None,
    costs: AppCosts | None = None,
    most_s: float | None = None,
) -> Range:
    """Return the same as ``match_range``; ``costs`` and ``most_s``: see ``match_in_turns``."""
    wanted: dict[RuleSet, set[str]] = {}
    for each in decoded:
        event, active = each.event, each.rules
        if event is None or active is None or event.workflow is None or active.is_compiled(event.workflow):
            continue
        if event.appid not in without and only in (None, event.appid):
            wanted.setdefault(active, set()).add(event.workflow)
    for active, names in wanted.items():
        await asyncio.to_thread(active.compile, sorted(names))
    return await match_in_turns(
        partition, decoded, recent, only=only, without=without, passed_over=passed_over, turns=turns, costs=costs,
        most_s=most_s,
    )  # fmt: skip
