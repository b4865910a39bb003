"""Finds out which events wrote a node: from the log alone, or exactly by a replay into a graph for the time.

1. ``find`` reads the log as it was lived and asks of each row whether it may write the node. It needs no graph.
2. ``record`` replays the events on whose effects the node depends. Rows that may write it run alone, with a look at the
   node before and after.

Both stop where the live graph stands.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, override

from msgspec.structs import replace

from graphweft_rules.cypher.mutation_summary import EMPTY, MutationSummary
from graphweft_rules.cypher.node_writes import NodeTarget, NodeWriters, Slice
from graphweft_rules.cypher.query import Cypher
from graphweft_rules.cypher.read_write_sets import summary_of
from graphweft_workers.archive.log_gaps import LogGap, check_accepted, log_gaps
from graphweft_workers.engine.log.duplicates import Identity, RecentEvents
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.log.ledger_reader import ledger_as_lived
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.log.series import SeriesPlace
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.offsets import is_after, offset_order
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.matched_log import RulesReader
from graphweft_workers.replay.node_state import NodeReader, State, alike
from graphweft_workers.replay.recording import Recording, RecordResult, Writer, writer_of
from graphweft_workers.rule_sets.active_rules import LoggedRules

MOST_SINGLE: Final = 20_000
"""Rows that run alone, the newest ones: each takes about a millisecond."""

type Progress = Callable[[str, int], None]
"""Gets what is done, and the number of entries."""


@dataclass(slots=True, kw_only=True)
class LogFindings:
    """What ``find`` found in the log."""

    entries: int = 0
    rows: int = 0
    """Rows that may have written the target."""
    newest: deque[Writer] = field(default_factory=deque[Writer])
    gaps: Sequence[LogGap] = ()
    """Entries of the log that can no longer be read."""
    ends: Mapping[int, str] = field(default_factory=dict[int, str])
    """Where the live graph stands."""


class Why:
    """Answers for one app. The creator closes the bus and the store."""

    def __init__(
        self,
        log: AppLog,
        rules: LoggedRules,
        *,
        limit: int,
        tell: Progress = lambda _what, _entries: None,
    ) -> None:
        """``limit`` is the number of rows to keep, the newest ones."""
        self._log = log
        self._rules = rules
        self._app_id = log.app_id
        self._limit = limit
        self._tell = tell
        self._summary: MutationSummary = EMPTY
        self._statements: dict[str, int] = {}
        self._cyphers: dict[str, Cypher] = {}
        self._signatures: dict[frozenset[int], int] = {}
        """Statements of the mutations of an event -> their number."""
        self._offsets: dict[int, tuple[list[str], array[int]]] = {}
        """By partition: the events of the app, and the number of the signature of each."""
        self._candidates: set[str] = set()
        """Statements of rows that may write the target."""
        self._singles: deque[tuple[int, str]] = deque(maxlen=MOST_SINGLE)
        """Partition and offset of these rows."""
        self._passed_over: dict[int, EffectLedger] = {}

    async def keys(self) -> frozenset[tuple[str, str]]:
        """Return the (label, property) by which the rules of the log look nodes up."""
        await self._rules.refresh()
        found = frozenset[tuple[str, str]]()
        for each in (self._rules.none, *self._rules.sets.values()):
            found |= each.keys.union(*(part.cypher.keys for pack in each.packs for part in pack.mutations))
        return found

    async def find(self, target: NodeTarget, *, exact: bool) -> LogFindings:
        """Read the log up to where the live graph stands.

        With ``exact``, raise ``InvalidSettings`` if the log lacks entries, unless somebody has accepted that they are
        lost. Raises ``BusUnavailable`` and ``GraphUnavailable``.
        """
        await self._rules.refresh()
        writers = self._writers(target)
        found = LogFindings(ends=await self._ends(), newest=deque(maxlen=self._limit))
        found.gaps = await log_gaps(self._log.bus, found.ends)
        if exact:
            impossible = "no replay can tell what the node was. Give --fast for the events that may have written it"
            check_accepted(found.gaps, impossible, archived=self._log.bus.archive is not None)
        for partition, end in found.ends.items():
            passed_over = self._passed_over[partition] = await ledger_as_lived(self._log.bus, partition)
            reader = RulesReader(partition=partition, app_id=self._app_id, rules=self._rules, passed_over=passed_over)
            async for page in self._log.pages(partition, to=end):
                read = await reader.read(page)
                for event in read.apps.get(self._app_id, ()):
                    self._add(found, partition, event, writers)
                found.entries += len(page)
                self._tell("read", found.entries)
        return found

    def _writers(self, target: NodeTarget) -> NodeWriters:
        packs = [part.cypher for pack in self._rules.none.packs for part in pack.mutations]
        self._summary = self._rules.summary | summary_of(packs)
        return NodeWriters(target, self._summary)

    def _add(self, found: LogFindings, partition: int, event: LoggedEvent, writers: NodeWriters) -> None:
        signature = frozenset(self._number(bound.mutation.cypher) for bound in event.mutations)
        offsets, signatures = self._offsets.setdefault(partition, ([], array("l")))
        offsets.append(event.entry.offset)
        signatures.append(self._signatures.setdefault(signature, len(self._signatures)))
        for bound in event.mutations:
            reason = writers.reason(bound.mutation.cypher, bound.params)
            if reason:
                found.rows += 1
                found.newest.append(writer_of(partition, event, bound, reason))
                self._candidates.add(bound.mutation.cypher.statement)
                self._singles.append((partition, event.entry.offset))

    def _number(self, cypher: Cypher) -> int:
        self._cyphers.setdefault(cypher.statement, cypher)
        return self._statements.setdefault(cypher.statement, len(self._statements))

    async def record(self, target: NodeTarget, graph: GraphStore, found: LogFindings) -> RecordResult:
        """Replay into ``graph``, which is empty, and record the changes of the target.

        ``found`` is what ``find`` found with ``exact``. Raises ``BusUnavailable`` and ``GraphUnavailable``.
        """
        result = RecordResult(newest=deque(maxlen=self._limit))
        result.unseen = max(0, found.rows - len(self._singles))
        keys = await self.keys()
        reader = NodeReader(target, keys, graph, self._app_id)
        statements = Slice(self._cyphers, self._summary).of(self._candidates)
        work = Recording(
            self._log.bus, graph, self._rules, app_id=self._app_id, reader=reader, writers=self._writers(target),
            result=result,
        )  # fmt: skip
        for partition in found.ends:
            needed = self._needed(partition, statements)
            if needed:
                await self._replay(partition, needed, statements, work)
        result.letters = list(work.letters.found.values())
        result.state = await reader.read()
        result.like_live = await self._like_live(target, result.state, found.ends)
        return result

    def _needed(self, partition: int, statements: Collection[str]) -> set[str]:
        """Return the offsets of the events that must be replayed: none after the last row that may write."""
        last = self._singles[-1] if self._singles else (-1, "")
        numbers = {self._statements[each] for each in statements}
        signatures = {number for each, number in self._signatures.items() if not numbers.isdisjoint(each)}
        offsets, given = self._offsets.get(partition, ([], array("l")))
        found = {offset for offset, number in zip(offsets, given, strict=True) if number in signatures}
        if partition < last[0]:
            return found
        return {each for each in found if partition == last[0] and not is_after(each, last[1])}

    async def _replay(
        self, partition: int, needed: Collection[str], statements: Collection[str], work: Recording
    ) -> None:
        passed_over = self._passed_over[partition]
        reader = RulesReader(
            partition=partition, app_id=self._app_id, rules=self._rules, passed_over=passed_over, recent=_Distinct()
        )
        first = self._singles[0] if self._singles else None
        work.open(partition, passed_over)
        last = max(needed, key=offset_order, default="")
        async for page in self._log.pages(partition, to=last):
            read = await reader.read([entry for entry in page if entry.offset in needed])
            events = [
                replace(event, mutations=kept)
                for event in read.apps.get(self._app_id, ())
                if (kept := tuple(each for each in event.mutations if each.mutation.cypher.statement in statements))
            ]
            for event in events:
                is_old = first is not None and (
                    partition < first[0] or (partition == first[0] and is_after(first[1], event.entry.offset))
                )
                await work.add(event, may_record=not is_old)
            await work.flush()
            self._tell("replayed", work.result.events)

    async def _ends(self) -> dict[int, str]:
        """Return where the live graph stands; for a graph that was lost, how far workers are."""
        ends = {number: each.offset for number, each in (await self._log.marks()).items()}
        if not ends:
            committed = self._log.bus.partitions.committed
            ends = {each: (await committed(each)).offset for each in await self._log.partitions()}
        return {partition: ends[partition] for partition in sorted(ends) if ends[partition]}

    async def _like_live(self, target: NodeTarget, state: State, ends: Mapping[int, str]) -> bool | None:
        before = await self._log.marks()
        there = {number: each.offset for number, each in before.items() if each.offset}
        if there != ends or any(each.plan for each in before.values()):
            return None
        live = await NodeReader(target, await self.keys(), self._log.live, self._app_id).read()
        if await self._log.marks() != before:
            return None
        return alike(state, live)


class _Distinct(RecentEvents):
    """For events that are known to be no copies."""

    @override
    def is_copy(self, identity: Identity | None, number: SeriesPlace | None = None, offset: str = "") -> bool:
        return False
