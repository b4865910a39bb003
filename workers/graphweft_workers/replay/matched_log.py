"""What rules make of the log of one app, without a graph: the mutations of each event, and the skips."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.log.read import Range
from graphweft_workers.engine.log.turns import read_in_turns
from graphweft_workers.ports.bus import Bus
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.rule_sets.active_rules import ActiveRules, RulesCursor

type Matcher = tuple[ActiveRules, Callable[[Bus, int], Awaitable[EffectLedger]]]
"""Rules, and a function that returns which entries of a partition have no effect by them."""


async def matched_log(
    log: AppLog, matchers: Iterable[Matcher], partition: int, *, to: str
) -> AsyncIterator[tuple[Range, ...]]:
    """Yield what each matcher makes of the same ranges of a partition up to ``to``, as a replay does.

    Raises ``BusUnavailable``, and so ``RulesLost`` if an event of the app needs a lost rule set.
    """
    ways: list[tuple[ActiveRules, RulesCursor, RecentEvents, EffectLedger]] = []
    for rules, passed_over in matchers:
        await rules.refresh()
        ways.append((rules, rules.cursor(partition, ""), RecentEvents(), await passed_over(log.bus, partition)))
    async for page in log.pages(partition, to=to):
        found: list[Range] = []
        for rules, cursor, recent, out in ways:
            await rules.refresh(page)
            read = await read_in_turns(partition, page, cursor, recent, only=log.app_id, passed_over=out)
            read.check_rules(log.app_id)
            found.append(read)
        yield tuple(found)
