"""Keeps the arrangers of a worker: each is for the workflows that an app uses, and is made in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_rules import RuleSet
from graphweft_rules.cypher.batch_query import Dialect
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.plan.order import Arranger
from graphweft_workers.rule_sets.active_rules import ActiveRules

_FEW_WORKFLOWS: Final = 4
"""Rules with at most so many workflows are compiled before an event uses one."""
_MOST_WORKFLOWS: Final = 32
"""An arranger grows with the workflows that its app uses, up to this number."""

type _Key = tuple[int, int, frozenset[str]]
"""The identity of the rules, the number of rule sets that have been active, and the workflows."""


class Arrangers:
    """Gives the arranger for events. Apps that use the same workflows share one."""

    def __init__(self, rules: ActiveRules, dialect: Dialect) -> None:
        self._rules = rules
        self._dialect = dialect
        self._of_app: BoundedDict[tuple[str, int], tuple[_Key, Arranger]] = BoundedDict()
        self._made: WeakValueDictionary[_Key, Arranger] = WeakValueDictionary()
        self._making: dict[_Key, asyncio.Task[Arranger]] = {}
        """Many apps begin at the same time, and wait for one arranger."""

    @property
    def known(self) -> int:
        """How many rule sets have been active: an arranger of before may not know what the graph holds now."""
        return self._rules.known

    async def of(self, events: Sequence[LoggedEvent]) -> Arranger:
        """Return an arranger for the rows of events of one app, ready to arrange them."""
        app_id, rules = events[0].plain.appid, events[0].rules
        known = self._rules.known
        workflows = {event.plain.workflow for event in events}
        used = frozenset(name for name in workflows if name is not None and name in rules.workflows)
        place = (app_id, id(rules))
        kept = self._of_app.get(place)
        if kept is not None and kept[0][1] == known:
            if used <= kept[0][2]:
                return await self._prepared(kept[1], events)
            if len(used | kept[0][2]) <= _MOST_WORKFLOWS:
                used |= kept[0][2]
        key = (id(rules), known, used)
        arranger = self._made.get(key)
        if arranger is None:
            making = self._making.get(key)
            if making is None:
                making = self._making[key] = asyncio.create_task(asyncio.to_thread(self._make, rules, used))
                making.add_done_callback(lambda _: self._making.pop(key, None))
            arranger = self._made[key] = await asyncio.shield(making)
        self._of_app[place] = (key, arranger)
        return await self._prepared(arranger, events)

    async def warm(self, app_id: str) -> None:
        """Do what the first event of an app with the rules of ``app_id`` would wait for, half a second in all.

        What is found out about the mutations of packs is kept with them. So is a workflow that is compiled; of many
        workflows, none is compiled, because few may be used.
        """
        rules = self._rules.current(app_id)
        workflows = frozenset(rules.workflows if len(rules.workflows) <= _FEW_WORKFLOWS else ())
        await asyncio.to_thread(self._make, rules, workflows)

    def _make(self, rules: RuleSet, workflows: frozenset[str]) -> Arranger:
        return Arranger(rules, self._dialect, workflows=workflows, summary=self._rules.summary)

    @staticmethod
    async def _prepared(arranger: Arranger, events: Sequence[LoggedEvent]) -> Arranger:
        cyphers = {id(bound.mutation.cypher): bound.mutation.cypher for event in events for bound in event.mutations}
        if not arranger.is_prepared(cyphers):
            await asyncio.to_thread(arranger.prepare, cyphers)
        return arranger
