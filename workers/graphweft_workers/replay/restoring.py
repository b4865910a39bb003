"""Begins a replay at a snapshot, and takes snapshots on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from graphweft_contracts import QueryFailed
from graphweft_contracts.rules_log import Activation
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_workers.archive.blobs import ArchiveUnavailable
from graphweft_workers.engine.apply.app_indexes import AppIndexes
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.plan.graph_marks import has_plan, loading
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import START, Checkpoint, GraphStore, Write
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.replay.scratch_lease import LEASE_PARTITION
from graphweft_workers.replay.snapshot_file import InvalidSnapshot, Snapshot, SnapshotWriter
from graphweft_workers.replay.snapshot_key import LogHash, Scan, snapshot_key
from graphweft_workers.replay.snapshots import SnapshotName, Snapshots
from graphweft_workers.support.timing import TIMING

_LAST_SHARE: Final = 10
"""At the end of a replay, a snapshot is due after a tenth of the events."""


@dataclass(slots=True)
class _PartitionPlace:
    """How far a partition is."""

    scan: Scan
    offset: str
    log: LogHash


class SnapshotSource:
    """Snapshots for one replay into one graph, which nobody else writes to."""

    def __init__(self, bus: Bus, graph: GraphStore, app_id: str, snapshots: Snapshots) -> None:
        self._bus = bus
        self._graph = graph
        self._app_id = app_id
        self._snapshots = snapshots
        self._activations: Sequence[Activation] = ()
        self._reached: dict[int, _PartitionPlace] = {}
        self._scans: dict[int, Scan] = {}
        """Scans that the search for a snapshot has made, for the first run of their partitions."""
        self._keys: frozenset[tuple[str, str]] = frozenset()
        self._indexes: tuple[SearchIndex, ...] = ()
        self._events = self._since = 0
        self._known: list[SnapshotName] = []
        self._stale: list[SnapshotName] = []
        self._sound = False
        """Whether the graph is known to follow from ``_reached``: not if another process has begun it."""

    @property
    def events(self) -> int:
        """The events with mutations up to the place, with the events of the snapshot."""
        return self._events

    async def restore(self, ends: Mapping[int, str | None]) -> int:
        """Load the newest usable snapshot up to ``ends`` into a new graph; return its number of events, or 0.

        Raises ``BusUnavailable`` and ``GraphUnavailable``.
        """
        self._sound = True
        try:
            self._known = await self._snapshots.stored(self._app_id)
        except ArchiveUnavailable as error:
            self._give_up(f"no snapshots can be read: {error}")
            return 0
        usable = await self._usable(ends)
        for stored, reached in reversed(usable):
            try:
                found = await self._snapshots.get(self._app_id, stored)
            except ArchiveUnavailable as error:
                self._give_up(f"no snapshots can be read: {error}")
                return 0
            if found is None:
                self._stale.append(stored)
            else:
                snapshot, lines = found
                try:
                    await self._load(snapshot, lines)
                except (QueryFailed, InvalidSnapshot, ValueError, LookupError, TypeError, AttributeError) as error:
                    self._snapshots.warn(f"the snapshot {stored.name} is ignored: {error}")
                    await self._graph.whole.drop(self._app_id)
                    continue
                self._reached = reached
                self._events, self._keys, self._indexes = snapshot.events, snapshot.keys, tuple(snapshot.indexes)
                return snapshot.events
        return 0

    async def _usable(self, ends: Mapping[int, str | None]) -> list[tuple[SnapshotName, dict[int, _PartitionPlace]]]:
        """Return the snapshots with the key that this replay would have, the nearest one last."""
        if not self._known:
            return []
        found: list[tuple[SnapshotName, dict[int, _PartitionPlace]]] = []
        self._activations = await self._bus.rules.activations()
        last = max(each.partition for each in self._known)
        before: dict[int, _PartitionPlace] = {}
        for partition, end in sorted(ends.items()):
            if partition > last:
                break
            mine = [each for each in self._known if each.partition == partition]
            scan = await Scan.of(self._bus, partition, {each.offset for each in mine}, end=end)
            self._scans[partition] = scan
            for each in sorted(mine, key=lambda each: each.events):
                at = scan.hash_at(each.offset)
                reached = None if at is None else _PartitionPlace(scan, each.offset, LogHash(at))
                if reached is None or self._key(before, reached) != each.key:
                    self._stale.append(each)
                elif end is None or not is_after(each.offset, end):
                    found.append((each, {**before, partition: reached}))
            at = scan.hash_at(scan.end)
            before[partition] = _PartitionPlace(scan, scan.end, LogHash(at or b""))
        if len(ends) > 1:  # with several partitions, others may be further later on
            self._stale.clear()
        return found

    def _key(self, before: Mapping[int, _PartitionPlace], reached: _PartitionPlace) -> str:
        """Return the key of a partition's place, which follows from the partitions before it."""
        known = ""
        for _, each in sorted((number, each) for number, each in before.items() if number < reached.scan.partition):
            known = self._key_of(each, known)
        return self._key_of(reached, known)

    def _key_of(self, reached: _PartitionPlace, before: str) -> str:
        return snapshot_key(
            reached.scan,
            self._app_id,
            reached.offset,
            reached.log.value,
            self._activations,
            before=before,
            code=self._snapshots.code,
        )

    async def _load(self, snapshot: Snapshot, lines: Iterable[bytes]) -> None:
        graph, app_id = self._graph, self._app_id
        if not snapshot.progress:
            raise InvalidSnapshot("it does not say how far its graph is")
        mark = loading()
        for partition in snapshot.progress:
            await graph.progress(app_id, partition)
            await self._move(partition, START, mark)
        await graph.prepare(app_id, snapshot.keys, snapshot.indexes)
        await graph.whole.load(app_id, lines, partition=min(snapshot.progress), mark=mark)
        for partition, progress in snapshot.progress.items():
            await self._move(partition, mark, progress.checkpoint, progress.note)

    async def _move(self, partition: int, before: Checkpoint, after: Checkpoint, note: str | None = None) -> None:
        await self._graph.apply(self._app_id, partition, [Write(before=before, after=after, note=note)])

    async def open(self, partition: int, offset: str, end: str | None) -> tuple[EffectLedger, str]:
        """Return what to pass over in a partition, and from which offset to go on. The graph is at ``offset``."""
        known = self._reached.get(partition)
        start = known.offset if known is not None and is_after(known.offset, offset) else offset
        scan = self._scans.pop(partition, None)
        at = None if scan is None else scan.hash_at(start)
        if scan is None or at is None:
            scan = await Scan.of(self._bus, partition, {start}, end=end)
            at = scan.hash_at(start)
        self._activations = await self._bus.rules.activations()
        if at is None or (start and known is None):
            self._sound = False
        elif known is not None and scan.passed(self._app_id, start) != known.scan.passed(self._app_id, start):
            self._sound = False  # what was passed over has changed since
        self._reached[partition] = _PartitionPlace(scan, start, LogHash(at or b""))
        return scan.passed_over, start

    async def applied(
        self, partition: int, entries: Sequence[Entry], events: int, made: AppIndexes, *, whole: bool
    ) -> None:
        """Take a snapshot if it is due. ``entries`` have taken effect, with ``events`` that have mutations.

        ``made`` knows the indexes that the replay creates. Without ``whole``, the graph lacks something that the live
        one has.
        """
        reached = self._reached[partition]
        for entry in entries:
            reached.log.add(entry)
        reached.offset = entries[-1].offset
        self._events += events
        self._since += events
        if not whole or any(number > partition for number in self._reached):
            self._sound = False
        if self._since >= self._snapshots.every:
            await self._take(partition, made)

    async def finish(self, made: AppIndexes) -> None:
        """Take a last snapshot, if it is worth it: the next question may be about the same place."""
        near = [each for each in self._known if abs(each.events - self._events) * _LAST_SHARE < self._snapshots.every]
        usable = {each.name for each in near} - {each.name for each in self._stale}
        read = [number for number, reached in self._reached.items() if reached.offset]
        if read and not usable and self._since * _LAST_SHARE >= self._snapshots.every:
            await self._take(max(read), made)

    async def _take(self, partition: int, made: AppIndexes) -> None:
        graph, app_id = self._graph, self._app_id
        if not self._sound:
            return
        marks = await graph.checkpoints(app_id, timeout_s=TIMING.replay.query_s)
        at = {number: each for number, each in marks.items() if number != LEASE_PARTITION}
        if any(has_plan(each) for each in at.values()):
            return
        self._since = 0
        self._activations = await self._bus.rules.activations()
        reached = self._reached[partition]
        keys, indexes = made.made(app_id)
        try:
            writer = SnapshotWriter()
            async for line in graph.whole.dump(app_id):
                writer.add(line)
            progress = {number: await graph.progress(app_id, number) for number in at}
            if at != {number: each.checkpoint for number, each in progress.items()}:
                self._give_up("no snapshots are taken: another command has changed the graph meanwhile")
                return
            snapshot = Snapshot(
                app_id=app_id,
                key=self._key(self._reached, reached),
                events=self._events,
                progress=progress,
                keys=keys | self._keys,
                indexes=tuple(dict.fromkeys((*self._indexes, *indexes))),
            )
            name = await self._snapshots.put(writer, snapshot, partition, reached.offset)
            await self._snapshots.delete([each for each in self._stale if each.name != name])
            self._stale.clear()
        except (ArchiveUnavailable, QueryFailed) as error:
            self._give_up(f"no snapshots are taken: {error}")

    def _give_up(self, why: str) -> None:
        self._sound = False
        self._snapshots.warn(why)
