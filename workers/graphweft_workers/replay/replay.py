"""Applies the log of one app again, to a graph of its own, so that the result equals the live graph.

Each event follows the rules that were active at its place, and what had no effect then is passed over; see
``passed_over``. The graph's checkpoint says how far a replay is, so it continues after an interruption.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from graphweft_contracts import DeadLetter
from graphweft_workers.engine.apply.worker_state import WorkerState
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.log.history import known_before
from graphweft_workers.engine.log.ledger_reader import ledger_as_lived
from graphweft_workers.engine.log.read import Range
from graphweft_workers.engine.partition import AppWriter
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import PartitionGraph
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.replay.matched_log import RulesReader
from graphweft_workers.replay.memory_letters import MemoryLetters
from graphweft_workers.replay.restoring import SnapshotSource
from graphweft_workers.rule_sets.active_rules import ActiveRules
from graphweft_workers.support.tasks import end_tasks

type Cause = tuple[str | None, str | None, str]
"""Rule, mutation and message of a skip."""


@dataclass(slots=True, kw_only=True)
class ReplayStep:
    """How far a replay of one partition is. Counts begin anew when it is continued after an interruption."""

    offset: str = ""
    """All events up to here have taken effect."""
    entries: int = 0
    """Entries that were read, of all apps."""
    events: int = 0
    """Events of the app that have mutations."""
    skips: Counter[Cause] = field(default_factory=Counter[Cause])
    """Skips that the live graph did not have."""
    letters: Mapping[str, DeadLetter] = field(default_factory=dict[str, DeadLetter])
    """Dead letters by id: what failed now and had not failed when the log was lived."""


def failed_letters(done: Iterable[ReplayStep]) -> list[DeadLetter]:
    """Return what failed in replays and had not failed live, by id."""
    found = {letter.id: letter for each in done for letter in each.letters.values()}
    return [found[letter_id] for letter_id in sorted(found)]


def replay_state(
    bus: Bus,
    graph: PartitionGraph,
    rules: ActiveRules,
    letters: MemoryLetters,
    *,
    batch_events: int,
    index_keys: frozenset[tuple[str, str]] = frozenset(),
) -> WorkerState:
    """Return the state of a worker that writes to ``graph`` and its ``letters`` alone, and gives up no mutation."""
    return WorkerState(
        log=bus.log,
        partitions=bus.partitions,
        letters=letters,
        graph=graph,
        rules=rules,
        batch_events=batch_events,
        index_keys=index_keys,
        quarantine=False,
    )


type _Page = tuple[Sequence[Entry], Range]
"""At least one entry of the log, and what the rules make of these."""


class Replay:
    """Replays the events of one app. The creator closes ``bus`` and ``graph``."""

    def __init__(
        self,
        bus: Bus,
        graph: PartitionGraph,
        rules: ActiveRules,
        app_id: str,
        *,
        batch_events: int = 1_000,
        passed_over: Callable[[Bus, int], Awaitable[EffectLedger]] = ledger_as_lived,
        restoring: SnapshotSource | None = None,
    ) -> None:
        """Only the replay writes to ``graph``. It only reads the bus. ``restoring``, with snapshots, is for it alone.

        ``passed_over`` returns what has no effect in a partition; ``ledger_by_other_rules`` is for other rules than
        those of the log, and takes no snapshots.
        """
        self._bus = bus
        self._graph = graph
        self._app_id = app_id
        self._batch_events = batch_events
        self._passed_over = passed_over
        self._letters = MemoryLetters()
        self._state = replay_state(bus, graph, rules, self._letters, batch_events=batch_events)
        self._restoring = restoring

    async def restore(self, ends: Mapping[int, str | None]) -> int:
        """Begin a new graph with the newest usable snapshot; return its number of events with mutations, or 0.

        ``ends`` are the places of the partitions that ``run`` will be called for, in order. Raises ``BusUnavailable``
        and ``GraphUnavailable``.
        """
        return 0 if self._restoring is None else await self._restoring.restore(ends)

    async def finish(self) -> None:
        """Keep a snapshot of the end, if it saves the next replay some work. Raises ``GraphUnavailable``."""
        if self._restoring is not None:
            await self._restoring.finish(self._state.indexes)

    async def run(self, partition: int, *, to: str | None = None, counted: str = "") -> AsyncGenerator[ReplayStep]:
        """Apply the partition up to the offset ``to``, or to its end; yield the progress after each batch.

        Entries and skips up to the offset ``counted`` do not count: an earlier call has read them, behind the last
        effect in the graph.

        Raises ``BusUnavailable`` and ``GraphUnavailable``; a further call continues. Raises ``QueryFailed`` if the app
        cannot have a graph.
        """
        app_id = self._app_id
        await self._state.rules.refresh()
        start = (await self._graph.progress(app_id, partition)).checkpoint.offset
        if self._restoring is None:
            passed_over = await self._passed_over(self._bus, partition)
        else:
            passed_over, start = await self._restoring.open(partition, start, to)
        recent = await known_before(self._bus.log, partition, start, passed_over, only=app_id, records=None)
        writer = AppWriter(self._state, partition, passed_over, recent)
        done = ReplayStep(offset=start, letters=self._letters.found)
        reader = RulesReader(
            partition=partition,
            app_id=app_id,
            rules=self._state.rules,
            passed_over=passed_over,
            recent=recent,
            after=start,
        )
        async with contextlib.aclosing(self._pages(reader, start, to)) as pages:
            async for entries, read in pages:
                events = read.apps.get(app_id, [])
                await self._letters.put([letter for letter in read.letters if letter.app_id == app_id])
                if events:
                    await writer.apply(app_id, events)
                done.offset = entries[-1].offset
                again = self._read_again(entries, counted)
                done.entries += len(entries) - len(again)
                done.events += len(events)
                done.skips.update(
                    (skip.rule, skip.mutation, skip.message) for skip in read.skips if skip.entry.offset not in again
                )
                if self._restoring is not None:
                    whole = not self._letters.found
                    await self._restoring.applied(partition, entries, len(events), self._state.indexes, whole=whole)
                yield done

    def _read_again(self, entries: Sequence[Entry], counted: str) -> set[str]:
        """Return the offsets of the entries up to ``counted``."""
        if not counted or is_after(entries[0].offset, counted):
            return set()
        return {each.offset for each in entries if not is_after(each.offset, counted)}

    async def _pages(self, reader: RulesReader, start: str, to: str | None) -> AsyncGenerator[_Page]:
        """Yield the rest of the partition, in order. While the graph applies a page, the next one is read."""
        ahead = asyncio.create_task(self._page(reader, start, to))
        try:
            while (page := await ahead) is not None:
                ahead = asyncio.create_task(self._page(reader, page[0][-1].offset, to))
                yield page
        finally:
            await end_tasks(ahead)

    async def _page(self, reader: RulesReader, after: str, to: str | None) -> _Page | None:
        """Read the next entries and match their events; None at the end."""
        entries = await self._bus.log.after(reader.partition, after, limit=self._batch_events)
        if to is not None and entries and is_after(entries[-1].offset, to):
            entries = [entry for entry in entries if not is_after(entry.offset, to)]
        if not entries:
            return None
        read = await reader.read(entries)
        await self._state.applier.prepare(reader.partition, read.apps.get(self._app_id, []))
        return entries, read
