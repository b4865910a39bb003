"""Places of the log: its apps, the partitions of one, and where these were at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final

from graphweft_contracts import InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.plurals import counted
from graphweft_workers.archive.app_part import is_event
from graphweft_workers.archive.archived_bus import missing_entries
from graphweft_workers.archive.preludes import is_of_prelude
from graphweft_workers.engine.position_note import PositionNote
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import pages
from graphweft_workers.replay.moments import places_at
from graphweft_workers.timing import TIMING

LACKING: Final = (
    "entry: it was trimmed and is not in an archive",
    "entries: they were trimmed and are not in an archive",
)


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


async def has_events(bus: Bus, partition: int, app_id: str, *, after: str = "") -> bool:
    """Tell whether a partition holds events of an app after an offset. Raises ``BusUnavailable``."""
    async for page in pages(bus.log, partition, after):
        if any(is_event(entry, app_id) for entry in page):
            return True
    return False


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
            found[status.id] = PositionNote.decode(status.note).applied(status.position, [app_id])
    return found


async def until_applied(
    bus: Bus, ends: Mapping[int, str], app_id: str, *, limit_s: float, step_s: float, clock: Clock = SYSTEM_CLOCK
) -> list[int]:
    """Wait until workers have applied the events of an app up to ``ends``, whatever other apps wait for.

    Return the partitions in which they have not within ``limit_s``; none if they have. ``bus`` is opened for the group
    of the workers. Raises ``BusUnavailable``.
    """
    until = clock.monotonic() + limit_s
    while True:
        done = await done_of(bus, ends.keys(), app_id)
        behind = [number for number, end in ends.items() if is_after(end, done.get(number, ""))]
        if not behind or clock.monotonic() > until:
            return behind
        await clock.sleep(step_s)


async def check_complete(bus: Bus, partitions: Iterable[int], app_id: str) -> None:
    """Raise ``InvalidSettings`` if entries of a partition can no longer be read."""
    for partition, missing in (await missing_entries(bus, partitions)).items():
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
