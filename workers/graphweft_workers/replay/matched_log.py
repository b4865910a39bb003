"""What rules make of the log of one app, without a graph: the mutations of each event, and the skips."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from graphweft_workers.active_rules import ActiveRules
from graphweft_workers.engine.compile_ahead import read_compiled
from graphweft_workers.engine.duplicates import RecentEvents
from graphweft_workers.engine.passed_over import PassedOver
from graphweft_workers.engine.read import Range
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.pages import pages

type Matcher = tuple[ActiveRules, PassedOver]
"""Rules, and what has no effect by them."""


async def matched_log(
    bus: Bus, matchers: Sequence[Matcher], app_id: str, partition: int, *, to: str
) -> AsyncIterator[tuple[Range, ...]]:
    """Yield what each matcher makes of the same ranges of a partition up to ``to``, as a replay does.

    Raises ``BusUnavailable``, and so ``RulesLost`` if an event of the app needs a lost rule set.
    """
    for rules, _ in matchers:
        await rules.refresh()
    ways = [(rules, rules.cursor(partition, ""), RecentEvents(), passed_over) for rules, passed_over in matchers]
    async for page in pages(bus.log, partition, to=to):
        found: list[Range] = []
        for rules, cursor, recent, passed_over in ways:
            await rules.refresh(page)
            read = await read_compiled(partition, page, cursor, recent, only=app_id, passed_over=passed_over)
            read.check_rules(app_id)
            found.append(read)
        yield tuple(found)
