"""The log of one app: the partitions that hold its events, how far workers are in them, and what came before them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from graphweft_contracts import GraphUnavailable, InvalidSettings, QueryFailed
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.archive.app_part import is_event
from graphweft_workers.archive.continuation import breaks
from graphweft_workers.archive.erasures import Erasures, erasures_in
from graphweft_workers.archive.log_gaps import LogGap, check_accepted, log_gaps, missing_entries
from graphweft_workers.archive.preludes import Prelude, folder_of, is_of_prelude, prelude_of, preludes_in
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.engine.apply.log_misfit import misfit_of
from graphweft_workers.ports.basis_comparison import BasisComparison
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import pages
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.replay.moments import places_at
from graphweft_workers.support.timing import TIMING


@dataclass(frozen=True, slots=True, kw_only=True)
class AppLog:
    """What a bus says of one app. The creator closes ``bus`` and ``live``.

    Every method raises ``BusUnavailable`` and ``GraphUnavailable``.
    """

    bus: Bus
    """Opened for the group of the workers; with the archive behind it, if there is one."""
    app_id: str
    live: GraphStore
    """The store of the live graph. Its checkpoints name partitions that held the app's events before."""

    async def marks(self) -> Mapping[int, Checkpoint]:
        """Return the checkpoints of the live graph, also for preludes."""
        return await self.live.checkpoints(self.app_id, timeout_s=TIMING.replay.query_s)

    async def older(self) -> str:
        """Return why the app's graph is from before an erasure or a restatement, and what to do; empty: it is not.

        Raises ``BusUnavailable`` and ``GraphUnavailable``.
        """
        try:
            return await BasisComparison(self.live, self.bus.purges).older(self.app_id)
        except QueryFailed as error:
            raise GraphUnavailable(f"the graph of {self.app_id!r} did not say how it was made: {error}") from error

    async def partitions(self) -> list[int]:
        """Return the partitions that may hold events of the app: now, before its order changed, of other producers."""
        layout = await self.bus.partitions.layout()
        others = range(layout.count, await self.bus.partitions.count(fresh=True))
        marked = {number for number in await self.marks() if not is_of_prelude(number)}
        return sorted({*layout.partitions_of(self.app_id), *others, *marked})

    def pages(self, partition: int, after: str = "", *, to: str | None = None) -> AsyncGenerator[Sequence[Entry]]:
        """Yield the entries of a partition, of all apps; see ``ports.pages``."""
        return pages(self.bus.log, partition, after, to=to)

    async def has_events(self, after: Mapping[int, str] | None = None) -> bool:
        """Tell whether there are events of the app, or any after an offset of each partition in ``after``."""
        places = dict.fromkeys(await self.partitions(), "") if after is None else after
        for partition, offset in places.items():
            async for page in self.pages(partition, offset):
                if any(is_event(entry, self.app_id) for entry in page):
                    return True
        return False

    async def entry_count(self) -> int:
        """Return the number of entries in the app's partitions, of all apps."""
        lag = {each.id: each.lag for each in await self.bus.partitions.status()}
        numbers = await self.partitions()
        return sum([(await self.bus.partitions.committed(each)).count + lag.get(each, 0) for each in numbers])

    async def ends(self, at: datetime | None = None) -> dict[int, str]:
        """Return the offset of the last entry of each partition that has one; with ``at``, as it was at a time."""
        partitions = await self.partitions()
        if at is None:
            found = {each.id: each.end for each in await self.bus.partitions.status() if each.id in partitions}
        else:
            found = await places_at(self.bus, partitions, at)
        return {partition: offset for partition, offset in found.items() if offset}

    async def done(self, partitions: Collection[int] | None = None) -> dict[int, str]:
        """Return, by partition, the offset up to which workers are with the app, whatever other apps wait for."""
        wanted = await self.partitions() if partitions is None else partitions
        return {
            each.id: PositionNote.decode(each.note).applied(each.position, [self.app_id])
            for each in await self.bus.partitions.status()
            if each.id in wanted
        }

    async def parked_for(self) -> set[str]:
        """Return why workers have parked the app, as ``status`` says it; none if they have not."""
        notes = [PositionNote.decode(each.note) for each in await self.bus.partitions.status()]
        return {note.parked[self.app_id].why for note in notes if self.app_id in note.parked}

    async def until_applied(
        self, ends: Mapping[int, str], *, limit_s: float, step_s: float, clock: Clock = SYSTEM_CLOCK
    ) -> list[int]:
        """Wait until workers have applied the events of the app up to ``ends``, whatever other apps wait for.

        Return the partitions in which they have not within ``limit_s``; none if they have.
        """
        until = clock.monotonic() + limit_s
        while True:
            done = await self.done(ends.keys())
            behind = [number for number, end in ends.items() if is_after(end, done.get(number, ""))]
            if not behind or clock.monotonic() > until:
                return behind
            await clock.sleep(step_s)

    async def check_complete(self) -> list[LogGap]:
        """Raise ``InvalidSettings`` if entries can no longer be read, unless somebody has accepted that they are lost.

        Also if the bus does not continue its archive: then entries of two logs have the same numbers. Return those that
        were accepted: whoever goes on without them says so.
        """
        partitions = await self.partitions()
        if self.bus.archive is not None and self.bus.unarchived is not None:
            alone = replace(self.bus, log=self.bus.unarchived)
            for broken in (await breaks(alone, ArchiveReader(self.bus.archive), partitions)).values():
                raise InvalidSettings(f"the graph of {self.app_id!r} cannot be rebuilt: {broken}")
        gaps = await log_gaps(self.bus, partitions)
        check_accepted(gaps, f"the graph of {self.app_id!r} cannot be rebuilt", archived=self.bus.archive is not None)
        return gaps

    async def lost_by(self) -> str:
        """Return, in words about the live graph, how the log lacks what made it; empty if that is not known."""
        for number in sorted(await self.marks()):
            if is_of_prelude(number):
                continue
            progress = await self.live.progress(self.app_id, number)
            if misfit := await misfit_of(self.bus.log, self.bus.partitions, number, progress):
                return f"it stands at {progress.checkpoint.offset} of partition {number}, {misfit.why}"
        return ""

    async def erasures(self) -> Erasures:
        """Return the erasures that the archive records; none without an archive."""
        return Erasures() if self.bus.archive is None else await erasures_in(self.bus.archive, self.app_id)

    async def preludes(self) -> list[Prelude]:
        """Return the preludes of the app, in order. Raises ``InvalidSettings`` if one is missing or is not whole."""
        found = await self._archived_preludes()
        for prelude in found:
            partitions = await ArchiveReader(prelude.blobs).partitions()
            for partition, missing in (await missing_entries(prelude.bus, partitions)).items():
                if missing:
                    raise InvalidSettings(
                        f"the restored history of {self.app_id!r} lacks entries of partition {partition}: restore its "
                        f"files below {folder_of(self.app_id, prelude.number)} in the archive"
                    )
        named = {prelude_of(number) for number in await self.marks() if is_of_prelude(number)}
        if named - {prelude.number for prelude in found}:
            raise InvalidSettings(
                f"the graph of {self.app_id!r} was restored from an export, and its history is not in the archive: set "
                "GRAPHWEFT_ARCHIVE_URL to the archive that `graphweft restore` has used"
            )
        return found

    async def refuse_preludes(self) -> None:
        """Raise ``InvalidSettings`` if the app was restored, for a command that reads the log of the bus alone."""
        if await self._archived_preludes() or any(map(is_of_prelude, await self.marks())):
            raise InvalidSettings(
                f"{self.app_id!r} was restored from an export, and this command does not read the history before: use "
                "it on the deployment where the app was exported"
            )

    async def _archived_preludes(self) -> list[Prelude]:
        return [] if self.bus.archive is None else await preludes_in(self.bus.archive, self.app_id)


async def apps_of_log(bus: Bus) -> set[str]:
    """Return the apps that the log holds events of. Reads all of it. Raises ``BusUnavailable``."""
    found: set[str] = set()
    for partition in range(await bus.partitions.count(fresh=True)):
        async for page in pages(bus.log, partition):
            for entry in page:
                try:
                    found.add(entry.event().appid)
                except Exception:  # noqa: BLE001 - what is no event has no app
                    continue
    return found
