"""What rules make of the log of one app, without a graph: the mutations of each event, and the skips."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.log.read import Range
from graphweft_workers.engine.log.turns import read_in_turns
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.rule_sets.active_rules import ActiveRules, RulesCursor

type Matcher = tuple[ActiveRules, Callable[[Bus, int], Awaitable[EffectLedger]]]
"""Rules, and a function that returns which entries of a partition have no effect by them."""


@dataclass(slots=True, kw_only=True)
class RulesReader:
    """Reads the events of one app in one partition by rules. Whoever goes through a log again reads by this."""

    partition: int
    app_id: str
    rules: ActiveRules
    passed_over: EffectLedger
    recent: RecentEvents = field(default_factory=RecentEvents)
    """What was read before ``after``."""
    after: str = ""
    """The offset behind which it begins."""
    _cursor: RulesCursor = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the rules of the place. They have been refreshed."""
        self._cursor = self.rules.cursor(self.partition, self.after)

    async def read(self, entries: Sequence[Entry]) -> Range:
        """Return what the rules make of the next entries, without entries of other apps.

        Raises ``BusUnavailable``, and so ``RulesLost`` if an event of the app needs a lost rule set.
        """
        await self.rules.refresh(entries)
        found = await read_in_turns(
            self.partition, entries, self._cursor, self.recent, only=self.app_id, passed_over=self.passed_over
        )
        found.check_rules(self.app_id)
        return found


async def matched_log(
    log: AppLog, matchers: Iterable[Matcher], partition: int, *, to: str
) -> AsyncIterator[tuple[Range, ...]]:
    """Yield what each matcher makes of the same ranges of a partition up to ``to``, as a replay does.

    Raises like ``RulesReader.read``.
    """
    readers: list[RulesReader] = []
    for rules, passed_over in matchers:
        await rules.refresh()
        ledger = await passed_over(log.bus, partition)
        readers.append(RulesReader(partition=partition, app_id=log.app_id, rules=rules, passed_over=ledger))
    async for page in log.pages(partition, to=to):
        yield tuple([await each.read(page) for each in readers])
