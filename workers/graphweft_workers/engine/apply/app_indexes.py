"""Creates the indexes of each app's graph: only those for the rules that the app uses."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from graphweft_contracts import QueryFailed
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_rules import RuleSet
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.matching.pack import Pack
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.plan.core_schema import CORE_KEYS, FACT_KEYS
from graphweft_workers.ports.graph_store import PartitionGraph


@dataclass(slots=True)
class _Of:
    """The indexes of one app's graph; the identities are of objects that it keeps."""

    keys: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    search: set[SearchIndex] = field(default_factory=set[SearchIndex])
    """The search indexes that rules name."""
    seen: dict[tuple[int, str | None], RuleSet] = field(default_factory=dict[tuple[int, str | None], RuleSet])
    """Rule sets, and names of their workflows, whose indexes the graph has; None for names that they do not have."""
    packs: set[Pack] = field(default_factory=set[Pack])


class AppIndexes:
    """Creates the indexes for the rules that match the events of apps, at the first event of each workflow.

    A workflow may look up what another one wrote, in an app that sends it no events but requests. So an app also gets
    the indexes of all rules on the labels that its workflows write, and the search indexes that any rule names on them.
    """

    def __init__(self, graph: PartitionGraph, index_keys: frozenset[tuple[str, str]]) -> None:
        """``index_keys`` are for every app, beside those of the core schema."""
        self._graph = graph
        self._index_keys = CORE_KEYS | index_keys
        self._apps: BoundedDict[str, _Of] = BoundedDict()

    def forget(self, app_id: str) -> None:
        """Look again what indexes an app's graph has: it may have been deleted."""
        self._apps.pop(app_id, None)

    def made(self, app_id: str) -> tuple[frozenset[tuple[str, str]], tuple[SearchIndex, ...]]:
        """Return the keys and the search indexes of an app's graph."""
        app = self._apps.get(app_id) or _Of()
        keys = app.keys.union(*(pack.keys for pack in app.packs))
        packed = (index for pack in app.packs for index in pack.indexes)
        return frozenset(keys), (*packed, *sorted(app.search, key=lambda index: index.name))

    async def prepare(self, app_id: str, events: Sequence[LoggedEvent]) -> None:
        """Create the indexes for events of an app. Raises ``QueryFailed`` if the app cannot have a graph."""
        app = self._apps.get(app_id) or _Of()
        used: dict[tuple[int, str | None], RuleSet] = {}
        for (_, name), rules in {(id(each.rules), each.plain.workflow): each.rules for each in events}.items():
            if (id(rules), name) not in app.seen:
                used[id(rules), name if name in rules.workflows else None] = rules
        for place in used.keys() & app.seen:  # workflows without rules are all alike
            del used[place]
        if used:
            wanted = self._index_keys.union(*(self._keys(rules, name) for (_, name), rules in used.items()))
            search = frozenset[SearchIndex]().union(*(self._search(rules, name) for (_, name), rules in used.items()))
            if not (wanted <= app.keys and search <= app.search):
                await self._graph.prepare(app_id, wanted, sorted(search, key=lambda index: index.name))
            app.keys |= wanted
            if search - app.search:
                # One that another rule set gave another length is made anew: then that rule set needs its own again.
                names = {index.name for index in search}
                app.search = {each for each in app.search if each.name not in names} | search
                app.seen.clear()
            app.seen |= used
            self._apps[app_id] = app

    def _keys(self, rules: RuleSet, name: str | None) -> frozenset[tuple[str, str]]:
        facts = FACT_KEYS if rules.asks_for_facts else frozenset[tuple[str, str]]()
        if name is None or rules.problem(name) is not None:
            return facts
        workflow = rules.workflows[name]
        labels = workflow.written_labels
        return facts.union(chain(workflow.keys, (key for key in rules.keys if key[0] in labels)))

    def _search(self, rules: RuleSet, name: str | None) -> frozenset[SearchIndex]:
        if name is None or not rules.search_indexes or rules.problem(name) is not None:
            return frozenset()
        labels = rules.workflows[name].written_labels
        return frozenset(index for index in rules.search_indexes if index.label in labels)

    async def prepare_packs(self, app_id: str, events: Sequence[LoggedEvent]) -> None:
        """Create the indexes of packs in the graphs that need them: few apps do, and an index slows each write."""
        app = self._apps.get(app_id)
        for pack in events[0].rules.packs_for({event.plain.type for event in events}):
            if app is None or pack not in app.packs:
                with contextlib.suppress(QueryFailed):
                    await self._graph.prepare(app_id, pack.keys, pack.indexes)
                if app is not None:
                    app.packs.add(pack)
