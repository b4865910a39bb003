"""Places of the log: its apps, the partitions of one, and where these were at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

from graphweft_contracts import InvalidSettings
from graphweft_contracts.plurals import counted
from graphweft_workers.archive.archived_bus import missing_entries
from graphweft_workers.archive.preludes import is_of_prelude
from graphweft_workers.engine.position_note import PositionNote
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.replay.moments import places_at
from graphweft_workers.timing import TIMING

LACKING: Final = (
    "entry: it was trimmed and is not in an archive",
    "entries: they were trimmed and are not in an archive",
)
_PAGE: Final = 1_000


async def apps_of_log(bus: Bus) -> set[str]:
    """Return the apps that the log holds events of. Reads all of it. Raises ``BusUnavailable``."""
    found: set[str] = set()
    for partition in range(await bus.partitions.count(fresh=True)):
        offset = ""
        while page := await bus.log.after(partition, offset, limit=_PAGE):
            for entry in page:
                try:
                    found.add(entry.event().appid)
                except Exception:  # noqa: BLE001 - what is no event has no app
                    continue
            offset = page[-1].offset
    return found


async def partitions_of(bus: Bus, live: GraphStore, app_id: str) -> list[int]:
    """Return the partitions that may hold events of an app: now, before its order changed, of other producers.

    Raises ``BusUnavailable`` and ``GraphUnavailable``.
    """
    layout = await bus.partitions.layout()
    found = {*layout.partitions_of(app_id), *range(layout.partitions, await bus.partitions.count(fresh=True))}
    marks = await live.checkpoints(app_id, timeout_s=TIMING.replay.query_s)
    return sorted(found | {number for number in marks if not is_of_prelude(number)})


async def done_of(bus: Bus, partitions: Collection[int], app_id: str) -> dict[int, str]:
    """Return, by partition, the offset up to which workers are with an app, whatever other apps wait for.

    ``bus`` is opened for the group of the workers. Raises ``BusUnavailable``.
    """
    found: dict[int, str] = {}
    for status in await bus.partitions.status():
        if status.id in partitions:
            note = PositionNote.decode(status.note)
            own = note.parked.get(app_id)
            further = own.at if own is not None else note.done
            found[status.id] = further if is_after(further, status.position) else status.position
    return found


async def check_complete(bus: Bus, partitions: Iterable[int], app_id: str) -> None:
    """Raise ``InvalidSettings`` if entries of a partition can no longer be read."""
    for partition in partitions:
        missing = await missing_entries(bus, partition)
        if missing:
            raise InvalidSettings(
                f"partition {partition} of the log lacks {counted(missing, *LACKING)}, "
                f"so the graph of {app_id!r} cannot be rebuilt. If there is an archive, set "
                "GRAPHWEFT_ARCHIVE_URL"
            )


async def offsets_at(bus: Bus, partitions: Iterable[int], time: datetime) -> dict[int, str]:
    """Return the offset of the last entry of each partition that the server took at ``time`` or before.

    Partitions without one are left out. Raises ``BusUnavailable``.
    """
    return {partition: offset for partition, offset in (await places_at(bus, partitions, time)).items() if offset}


async def entries_of(bus: Bus, partitions: Iterable[int]) -> int:
    """Return the number of entries in partitions, of all apps. Raises ``BusUnavailable``."""
    lag = {each.id: each.lag for each in await bus.partitions.status()}
    return sum([(await bus.partitions.committed(each)).count + lag.get(each, 0) for each in partitions])


async def ends_of(bus: Bus, partitions: Collection[int]) -> dict[int, str]:
    """Return the offset of the last entry of each partition that has one. Raises ``BusUnavailable``."""
    return {each.id: each.end for each in await bus.partitions.status() if each.id in partitions and each.end}
