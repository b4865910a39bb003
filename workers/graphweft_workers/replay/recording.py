"""Applies events in log order to a graph of its own, and records what single rows change in one node."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, override

from graphweft_contracts import DeadLetter, Event, wire
from graphweft_rules import BoundMutation
from graphweft_rules.cypher.node_writes import ENSURES, NodeWriters
from graphweft_workers.engine.apply.apply import Applier
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.partition import AppWriter
from graphweft_workers.engine.plan.arrangers import Arrangers
from graphweft_workers.engine.plan.order import Arranger, Step
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphWrites, PartitionGraph, Write, WriteResult
from graphweft_workers.replay.memory_letters import MemoryLetters
from graphweft_workers.replay.node_state import Change, NodeReader, State, changes
from graphweft_workers.replay.replay import replay_state
from graphweft_workers.rule_sets.active_rules import ActiveRules

_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A row that wrote the target, or may have."""

    partition: int
    offset: str
    received: datetime
    event: Event
    retried: bool
    """Whether the entry is the retry of a dead letter."""
    rule: str
    mutation: str
    place: str
    """File and line of the mutation."""
    rules: str
    """The hash of the rule set."""
    reason: str
    """Why the row may write the target."""
    changes: tuple[Change, ...] = ()
    """Empty unless it was recorded."""


@dataclass(slots=True, kw_only=True)
class RecordResult:
    """What ``record`` saw."""

    events: int = 0
    """Events that were replayed."""
    changed: int = 0
    """Rows that changed the target."""
    newest: deque[Writer] = field(default_factory=deque[Writer])
    unseen: int = 0
    """Rows that may have written the target and ran in batches: they are older than the recorded ones."""
    letters: Sequence[DeadLetter] = ()
    """Rows that failed now and had not failed live."""
    state: State = field(default_factory=dict[Any, Any])
    like_live: bool | None = None
    """Whether the live graph has the same content; None if it changed meanwhile."""


class Recording:
    """Applies events in log order; rows that may write the target run alone, and their changes are recorded."""

    def __init__(
        self,
        bus: Bus,
        graph: PartitionGraph,
        rules: ActiveRules,
        *,
        app_id: str,
        reader: NodeReader,
        writers: NodeWriters,
        result: RecordResult,
    ) -> None:
        """``graph`` is empty, and nobody else writes to it; ``reader`` reads it. ``result`` gets what is seen."""
        self.letters = MemoryLetters()
        self.result = result
        self._reader = reader
        self._writers = writers
        self._app_id = app_id
        self._watched = _WatchedWrites(graph, self._look)
        index_keys = frozenset((reader.target.label, name) for name in reader.target.keys)
        self._state = replay_state(bus, graph, rules, self.letters, batch_events=_BATCH, index_keys=index_keys)
        self._arrangers = _SwitchedArrangers(rules, graph.dialect)
        self._state.applier = Applier(bus.log, self.letters, self._watched, self._arrangers, quarantine=False)
        self._batch: list[LoggedEvent] = []
        self._single: dict[tuple[str, int], Writer] = {}
        """By statement and identity of the parameters of a row."""
        self._seen: State | None = None

    def open(self, partition: int, passed_over: EffectLedger) -> None:
        """Go on with another partition."""
        self._partition = partition
        self._writer = AppWriter(self._state, partition, passed_over)

    async def add(self, event: LoggedEvent, *, may_record: bool) -> None:
        """Apply an event, after those before it."""
        reasons = {id(each): self._writers.reason(each.mutation.cypher, each.params) for each in event.mutations}
        self.result.events += 1
        there = bool(self._seen) and self._reader.target.relationship is None
        if not may_record or not any(each and not (there and each is ENSURES) for each in reasons.values()):
            self._batch.append(event)
            return
        await self.flush()
        if self._seen is None:
            self._seen = await self._reader.read()
        self._single = {
            (each.mutation.cypher.statement, id(each.params)): writer_of(
                self._partition, event, each, reasons[id(each)]
            )
            for each in event.mutations
            if reasons[id(each)]
        }
        self._batch, self._arrangers.singly, self._watched.watching = [event], True, True
        await self.flush()
        self._arrangers.singly = self._watched.watching = False
        self._single = {}

    async def flush(self) -> None:
        """Apply the events that wait."""
        if self._batch:
            events, self._batch = self._batch, []
            await self._writer.apply(self._app_id, events)

    async def _look(self, write: Write) -> None:
        writer = self._single.get((write.query.statement, id(write.rows[0]))) if write.query and write.rows else None
        if writer is None:
            return
        before, self._seen = self._seen or {}, await self._reader.read()
        found = tuple(changes(before, self._seen, self._reader.target.property))
        if found:
            self.result.changed += 1
            self.result.newest.append(replace(writer, changes=found))


class _WatchedWrites:
    """Writes that are applied one by one while they are watched, with a look after each."""

    def __init__(self, graph: GraphWrites, look: Callable[[Write], Awaitable[None]]) -> None:
        self._graph = graph
        self._look = look
        self.runs_again = graph.runs_again
        self.watching = False

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        """See ``GraphWrites.apply``."""
        if not self.watching:
            return await self._graph.apply(app_id, partition, writes)
        for number, write in enumerate(writes):
            applied = await self._graph.apply(app_id, partition, [write])
            if not applied.count:
                return WriteResult(count=number, failure=applied.failure)
            await self._look(write)
        return WriteResult(count=len(writes))


class _SwitchedArrangers(Arrangers):
    """Puts each row into a step of its own while ``singly`` is set."""

    singly = False

    @override
    async def of(self, events: Sequence[LoggedEvent]) -> Arranger:
        return _RowArranger() if self.singly else await super().of(events)


class _RowArranger(Arranger):
    def __init__(self) -> None:
        """Know nothing about rules."""

    @override
    def arrange[Row](self, rows: Any, apart: Collection[int] = frozenset()) -> list[Step[Row]]:
        return [Step(mutation=bound, rows=[row]) for bound, row in rows]


def writer_of(partition: int, event: LoggedEvent, bound: BoundMutation, reason: str) -> Writer:
    """Return a row with what is known about its event."""
    return Writer(
        partition=partition,
        offset=event.entry.offset,
        received=event.entry.received,
        event=event.event,
        retried=wire.RETRY in event.entry.fields,
        rule=bound.mutation.rule,
        mutation=bound.mutation.id,
        place=str(bound.mutation.place),
        rules=event.rules.digest,
        reason=reason,
    )
