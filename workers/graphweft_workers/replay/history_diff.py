"""What other rules would have made of the history of an app: two graphs from one log, compared.

Both graphs are built at the same place of the log, one after the other, beside the live one. The log is read twice
more, for the counts and for the events behind the examples. Nothing is written but the two graphs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Literal

from graphweft_contracts import DeadLetter
from graphweft_rules import RuleSet
from graphweft_rules.cypher.clauses import Outline
from graphweft_rules.cypher.merge_keys import merge_keys
from graphweft_workers.engine.failures.dead_letter_counts import SKIPS
from graphweft_workers.engine.log.ledger_reader import ledger_as_lived, ledger_by_other_rules
from graphweft_workers.engine.log.read import Range
from graphweft_workers.ports.dead_letters import all_letters
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.causes import Causes, MutationDifference, Side
from graphweft_workers.replay.graph_diff import GraphComparison, GraphDiff
from graphweft_workers.replay.matched_log import Matcher, matched_log
from graphweft_workers.replay.replay import Replay, ReplayStep
from graphweft_workers.rule_sets.active_rules import ActiveRules, FixedRules

type Outcome = Literal["applied", "skipped", "failed"]
type RuleName = tuple[str | None, str | None, str | None]
"""Workflow, rule and mutation."""
type Scratch = Callable[[Side], AbstractAsyncContextManager[GraphStore]]
type Tell = Callable[[Side, Mapping[int, ReplayStep]], None]


@dataclass(slots=True, kw_only=True)
class HistoryDiff:
    """The difference, at ``ends``."""

    ends: Mapping[int, str]
    graphs: GraphDiff = field(default_factory=GraphDiff)
    rules: dict[RuleName, dict[Side, Counter[Outcome]]] = field(
        default_factory=dict[RuleName, dict[Side, Counter[Outcome]]]
    )
    """The rows of each mutation."""
    failures: dict[tuple[RuleName, str], int] = field(default_factory=dict[tuple[RuleName, str], int])
    """Rows that fail by the other rules, by mutation and message."""
    causes: list[list[MutationDifference]] = field(default_factory=list[list[MutationDifference]])
    """For each example of ``graphs``, the events behind it."""

    @property
    def events(self) -> bool:
        """Whether any mutation of any event matched."""
        return bool(self.rules)

    def count(self, name: RuleName, side: Side, outcome: Outcome, number: int = 1) -> None:
        """Add to the rows of a mutation."""
        self.rules.setdefault(name, {"before": Counter(), "after": Counter()})[side][outcome] += number


class HistoryComparison:
    """Compares what the log's own rules and ``given`` make of an app's history. The creator closes the bus."""

    def __init__(self, log: AppLog, rules: ActiveRules, given: RuleSet, ends: Mapping[int, str], *, limit: int) -> None:
        """``ends`` has an offset for each partition to read; ``limit`` is the number of examples of each sort."""
        self._log = log
        self._matchers: dict[Side, Matcher] = {
            "before": (rules, ledger_as_lived),
            "after": (FixedRules(given), ledger_by_other_rules),
        }
        self._app_id = log.app_id
        self._limit = limit
        self._found = HistoryDiff(ends=ends)
        self._queries: set[Outline] = set()

    async def run(self, scratch: Scratch, tell: Tell = lambda _side, _done: None) -> HistoryDiff:
        """Compare. ``scratch`` gives the store of an empty graph, which is in use until its context is left.

        Raises ``BusUnavailable`` and ``GraphUnavailable``.
        """
        await self._count_rows()
        comparison = GraphComparison({key for query in self._queries for key in merge_keys(query)}, limit=self._limit)
        await self._count_failures("before", await self._build("before", scratch, tell, comparison))
        comparison.turn()
        await self._count_failures("after", await self._build("after", scratch, tell, comparison))
        self._found.graphs = comparison.result()
        causes = Causes(self._found.graphs.examples)
        if self._found.graphs.examples:
            for partition in self._found.ends:
                async for before, after in self._ranges(partition):
                    causes.see(partition, before.apps.get(self._app_id, ()), after.apps.get(self._app_id, ()))
        self._found.causes = causes.found
        return self._found

    async def _build(
        self, side: Side, scratch: Scratch, tell: Tell, comparison: GraphComparison
    ) -> Mapping[str, DeadLetter]:
        """Build the graph of one side and give it to the comparison; return what failed."""
        app_id, done = self._app_id, dict[int, ReplayStep]()
        letters: Mapping[str, DeadLetter] = {}
        rules, passed_over = self._matchers[side]
        async with scratch(side) as graph:
            replay = Replay(self._log.bus, graph, rules, app_id, passed_over=passed_over)
            for partition, end in self._found.ends.items():
                async with aclosing(replay.run(partition, to=end)) as steps:
                    async for step in steps:
                        done[partition] = step
                        letters = step.letters
                        tell(side, done)
            await asyncio.sleep(graph.settle_s)
            async for node in graph.whole.nodes(app_id):
                (comparison.before if side == "before" else comparison.after)(node)
            if side == "after":
                comparison.pair()
            async for edge in graph.whole.edges(app_id):
                (comparison.before_edge if side == "before" else comparison.after_edge)(edge)
        return letters

    def _ranges(self, partition: int) -> AsyncIterator[tuple[Range, ...]]:
        """Yield what both sides make of the same ranges of a partition."""
        return matched_log(self._log, self._matchers.values(), partition, to=self._found.ends[partition])

    async def _count_rows(self) -> None:
        for partition in self._found.ends:
            async for before, after in self._ranges(partition):
                sides: tuple[tuple[Side, Range], ...] = (("before", before), ("after", after))
                for side, read in sides:
                    self._count_range(side, read)

    def _count_range(self, side: Side, read: Range) -> None:
        rows: Counter[RuleName] = Counter()
        for event in read.apps.get(self._app_id, ()):
            for bound in event.mutations:
                packed = event.rules.is_packed(bound.mutation.rule, bound.mutation.id)
                workflow = None if packed else event.event.workflow
                rows[workflow, bound.mutation.rule, bound.mutation.id] += 1
                self._queries.add(bound.mutation.cypher.outline)
        for name, number in rows.items():
            self._found.count(name, side, "applied", number)
        for skip in read.skips:
            self._found.count((skip.event.workflow, skip.rule, skip.mutation), side, "skipped")

    async def _count_failures(self, side: Side, letters: Mapping[str, DeadLetter]) -> None:
        """Count what failed in a replay; for the first side also what had no effect when the log was lived."""
        for letter in letters.values():
            name = self._name_of(letter)
            self._found.count(name, side, "failed", letter.count)
            if letter.rule is not None and letter.mutation is not None:  # its row matched, and was counted
                self._found.count(name, side, "applied", -letter.count)
            if side == "after":
                cause = (name, letter.message)
                self._found.failures[cause] = self._found.failures.get(cause, 0) + letter.count
        if side == "after":
            return
        for letter in await all_letters(self._log.bus.dead_letters):
            end = self._found.ends.get(letter.partition)
            if letter.app_id != self._app_id or end is None or letter.reason == "trimmed" or letter.id in letters:
                continue
            offsets = letter.entries
            number = sum(not is_after(offset, end) for offset in offsets)
            if number:
                self._found.count(
                    self._name_of(letter), side, "skipped" if letter.reason in SKIPS else "failed", number
                )

    def _name_of(self, letter: DeadLetter) -> RuleName:
        known = (None, letter.rule, letter.mutation)
        return known if known in self._found.rules else (letter.workflow, letter.rule, letter.mutation)
