"""Keeps what apps use of a worker's partitions in records on the bus.

The records are for operators and for the gateway. A worker that cannot write them goes on: nothing that it applies
depends on them. After a crash, the events of the last seconds may not be counted.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from graphweft_contracts import GraphweftError, Transient
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.log.read import LoggedEvent, ReadEntry
from graphweft_workers.engine.usage.app_use import LETTERS, PARTITION, encode_letters
from graphweft_workers.engine.usage.partition_usage import GraphMeasure, PartitionUsage, loads_of
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import LettersOfApp
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING

logger = get_logger("graphweft.mutation")

_MOST_MEASURED: Final = 50
"""Graphs that are measured at one time."""
_QUIET_REPORTS: Final = 12
"""While no events come, every so many reports ask the bus what was trimmed: it tells it of all partitions together."""


@runtime_checkable
class MeasuredGraphs(Protocol):
    """A graph store whose server holds graphs in memory, with room for a limited number of names of properties."""

    async def property_names(self, app_id: str) -> frozenset[str]:
        """Return the names of all properties that the app's graph has ever had; none without a graph."""
        ...

    async def memory_of(self, app_id: str) -> int:
        """Return about the bytes that the app's graph takes in the server; 0 without a graph."""
        ...


class UsageReporter:
    """Counts for a worker, and reports every few seconds while ``run`` runs."""

    def __init__(
        self, bus: Bus, graph: MeasuredGraphs | None, *, clock: Clock = SYSTEM_CLOCK, every_s: float = TIMING.usage_s
    ) -> None:
        """``graph`` is None for a store whose graphs are not measured."""
        self._bus = bus
        self._graph = graph
        self._clock = clock
        self._every_s = every_s
        self._look_at = 0.0
        """When to ask what was trimmed, on the monotonic clock, although no events come."""
        self._partitions: dict[int, PartitionUsage] = {}
        self._changed: set[int] = set()
        self._seen: dict[str, int] = {}
        """By app: the partition of events that were read since the last report."""
        self._unmeasured: dict[str, int] = {}
        """By app: the partition of earlier events, which the graph has by now. It is still to be measured."""
        self._letters: Mapping[str, LettersOfApp] = {}
        self._since: Counter[str] = Counter()
        """By app: dead letters that this worker wrote since they were counted."""
        self._bytes_since: Counter[str] = Counter()
        self._written: bytes = b""

    async def open(self, partition: int) -> None:
        """Go on counting where the last owner of a partition stopped."""
        usage = PartitionUsage()
        with contextlib.suppress(Transient, ValueError):
            record = (await self._bus.usage.after(None)).found.get(f"{PARTITION}{partition}")
            if record is not None:
                usage = PartitionUsage.decode(record)
        self._partitions[partition] = usage
        if partition == 0 or not self._letters:
            await self._count_letters()

    def add(self, partition: int, entries: Sequence[ReadEntry], start: int, end: int) -> None:
        """Count entries; ``start`` and ``end`` are the numbers of entries before and up to them."""
        usage = self._partitions.get(partition)
        if usage is None or end <= usage.end:
            return
        fresh = entries[usage.end - start :] if usage.end > start else entries
        loads = loads_of([(app_id, each.size) for each in fresh if (app_id := _app_of(each)) is not None])
        usage.add(loads, start, end, self._clock.now().timestamp())
        self._changed.add(partition)
        self._seen.update(dict.fromkeys(loads, partition))

    def add_copies(self, partition: int, copied: Sequence[tuple[str, str]]) -> None:
        """Count copies, each by its app and its offset; those that were counted before count no more."""
        usage = self._partitions.get(partition)
        if copied and usage is not None and usage.add_copies(copied):
            self._changed.add(partition)

    def letters_of(self, app_id: str) -> int:
        """Return the dead letters of an app, as far as they are counted."""
        counted = self._letters.get(app_id)
        return (counted.count if counted else 0) + self._since[app_id]

    def letter_bytes_of(self, app_id: str) -> int:
        """Return about the bytes of the dead letters of an app, as far as they are counted."""
        counted = self._letters.get(app_id)
        return (counted.size if counted else 0) + self._bytes_since[app_id]

    def add_letter(self, partition: int, app_id: str, *, size: int, payload: bool) -> None:
        """Count a dead letter that was written, its bytes, and whether it keeps its event."""
        self._since[app_id] += 1
        self._bytes_since[app_id] += size
        usage = self._partitions.get(partition)
        if usage is not None and not payload:
            usage.without_payload[app_id] += 1
            self._changed.add(partition)

    async def close(self, partition: int) -> None:
        """Report a partition for the last time, before another worker opens it."""
        self._unmeasured |= self._seen
        await self._measure(partition)
        await self._write(partition)
        self._partitions.pop(partition, None)
        self._changed.discard(partition)

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._clock.sleep(self._every_s)
            await self.report()

    async def report(self) -> None:
        """Report once. Never raises on account of the bus or the graph."""
        if not self._partitions:
            return
        if self._changed or self._seen or self._clock.monotonic() >= self._look_at:
            try:
                await self._look_for_trimmed()
            except Transient as error:
                logger.debug("usage_not_reported", error=str(error))
                return
        await self._count_letters()
        await self._measure()
        self._unmeasured |= self._seen
        self._seen = {}
        for partition in sorted(self._changed):
            await self._write(partition)

    async def _look_for_trimmed(self) -> None:
        for status in await self._bus.partitions.status():
            usage = self._partitions.get(status.id)
            if usage is not None and usage.set_trimmed(status.trimmed):
                self._changed.add(status.id)
        self._look_at = self._clock.monotonic() + _QUIET_REPORTS * self._every_s

    async def _count_letters(self) -> None:
        with contextlib.suppress(Transient):
            self._letters = await self._bus.dead_letters.by_app()
            self._since.clear()
            self._bytes_since.clear()
            record = encode_letters(self._letters)
            if 0 in self._partitions and record != self._written:
                await self._bus.usage.put(LETTERS, record)
                self._written = record

    async def _measure(self, only: int | None = None) -> None:
        if self._graph is None:
            self._unmeasured.clear()
            return
        due = [(app_id, partition) for app_id, partition in self._unmeasured.items() if only in (None, partition)]
        due = due[:_MOST_MEASURED]
        for app_id, _ in due:  # before the graph is asked: partitions close while another report is under way
            del self._unmeasured[app_id]
        for app_id, partition in due:
            with contextlib.suppress(GraphweftError):
                found = GraphMeasure(
                    names=len(await self._graph.property_names(app_id)),
                    memory=await self._graph.memory_of(app_id),
                    time=int(self._clock.now().timestamp()),
                )
                usage = self._partitions.get(partition)
                if usage is not None and not found.equals(usage.graphs.get(app_id)):
                    usage.graphs[app_id] = found
                    self._changed.add(partition)

    async def _write(self, partition: int) -> None:
        usage = self._partitions.get(partition)
        if usage is None or partition not in self._changed:
            return
        self._changed.discard(partition)
        try:
            await self._bus.usage.put(f"{PARTITION}{partition}", usage.encode(self._clock.now().timestamp()))
        except Transient as error:
            self._changed.add(partition)
            logger.debug("usage_not_reported", partition=partition, error=str(error))


def _app_of(decoded: ReadEntry) -> str | None:
    """Return the app for which an entry counts; what is no event counts for the app that owns the partition."""
    if isinstance(decoded, LoggedEvent):
        return decoded.plain.appid
    return None if decoded.error is None else decoded.entry.owner
