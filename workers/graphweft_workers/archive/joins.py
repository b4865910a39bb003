"""Lets a bus that lost its end go on behind the archive.

After a fail-over the archive holds entries that the bus has not, and the bus new ones under the same numbers. Up to the
*fork* both are the same. The log becomes the archive, and behind it what the bus has after the fork. All readers go
back to the fork, and checkpoints pass over what the graphs hold. A graph that went on with new events meanwhile may
lack lost ones, so it must be built again: the archive keeps the names of these apps until they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from graphweft_contracts import InvalidEvent, InvalidSettings, QueryFailed
from graphweft_workers.archive.archive_bus import archive_bus
from graphweft_workers.archive.continuation import breaks
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.engine.log.duplicates import REACH
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import all_letters, put_letters
from graphweft_workers.ports.driver import BusDriver
from graphweft_workers.ports.event_log import CommittedPosition, Entry
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import PAGE, pages
from graphweft_workers.ports.partitions import status_of
from graphweft_workers.ports.position_note import PositionNote

_FOLDER: Final = "joins/"
_CHECKPOINTS_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """How a partition of the bus goes on behind the archive."""

    lost: int
    """Entries that the archive holds and the bus had lost."""
    kept: int
    """Entries of the bus that follow on the archive."""
    moved: bool
    """Whether these got other offsets, because theirs were not behind the archive's end."""
    apps: Sequence[str]
    """Apps whose graphs must be built again."""


async def join(
    bus: Bus, blobs: BlobStore, graph: GraphStore, partition: int, *, driver: BusDriver, url: str
) -> Join | None:
    """Let a partition of the bus go on behind the archive; None if it does.

    ``bus`` is the bus alone, at ``url``. After a kill, another call goes on. Raises ``InvalidSettings`` while somebody
    reads the partition, or if the bus has other partitions than the archive; ``BusUnavailable``, ``ArchiveUnavailable``
    and ``GraphUnavailable``.
    """
    reader = ArchiveReader(blobs)
    if not await breaks(bus, reader, [partition]):
        return None
    _check_can_join(driver)
    layout, archived = await bus.partitions.layout(), await ArchivedState(blobs).layout()
    if layout.partitions != archived.partitions:
        raise InvalidSettings(
            f"the bus has {layout.partitions} partitions and the archive {archived.partitions}, so the events of an "
            "app are in different ones. Empty the bus, and start it with GRAPHWEFT_PARTITIONS="
            f"{archived.partitions}; or give it an archive of its own (GRAPHWEFT_ARCHIVE_URL)"
        )
    end = await reader.end(partition)
    fork = await _fork(bus, reader, partition, (await status_of(bus.partitions, partition)).trimmed)
    first = await bus.log.after(partition, fork.offset, limit=1)
    moved = bool(first) and not is_after(first[0].offset, end.offset)
    apps: set[str] = set()
    async for page in pages(archive_bus(blobs).log, partition, fork.offset):
        apps |= await _advanced(graph, _apps(page) - apps, partition, end.offset)
    kept = 0
    async for page in pages(bus.log, partition, fork.offset):
        kept += len(page)
        if moved:  # their offsets are to be others, and a graph may hold them
            apps |= await _advanced(graph, _apps(page) - apps, partition, fork.offset)
    await _restore_letters(bus, blobs, partition, fork.offset)
    record = f"{_FOLDER}p{partition:05}_{end.count:012}.json"
    await blobs.put(record, json.dumps(sorted(apps)).encode())
    note = PositionNote(reach=REACH).encode()  # how far the windows of copies reach back is not known
    await driver.join(url, partition, fork=replace(fork, note=note), end=end, moved=moved)
    return Join(lost=end.count - fork.count, kept=kept, moved=moved, apps=sorted(apps))


async def join_rules(bus: Bus, blobs: BlobStore, *, driver: BusDriver, url: str) -> int:
    """Give the bus the activations of rules back that it lost, before those that it got since; return how many.

    What they activate is stored too. Raises like ``join``.
    """
    state = ArchivedState(blobs)
    archived, there = await state.activations(), await bus.rules.activations()
    same = next((n for n, (one, other) in enumerate(zip(archived, there, strict=False)) if one != other), None)
    same = min(len(archived), len(there)) if same is None else same
    lost = archived[same:]
    if not lost:
        return 0
    _check_can_join(driver)
    for digest in dict.fromkeys(each.digest for each in lost):
        try:
            stored = await state.stored_rules(digest)
        except ValueError:  # damaged; `archive verify` says so, and its events wait for a push
            stored = None
        if stored is not None:
            await bus.rules.store(digest, stored)
    known = {(each.scope, each.digest, each.time) for each in lost}
    since = [each for each in there[same:] if (each.scope, each.digest, each.time) not in known]
    merged = [*archived, *(replace(each, number=len(archived) + n) for n, each in enumerate(since, 1))]
    await driver.replace_activations(url, there, merged)
    return len(lost)


def _check_can_join(driver: BusDriver) -> None:
    """Raise ``InvalidSettings``, before anything is changed, if this kind of bus cannot go on behind an archive."""
    if driver.no_join:
        raise InvalidSettings(driver.no_join)


async def join_layout(bus: Bus, blobs: BlobStore, *, driver: BusDriver, url: str) -> list[str]:
    """Give apps their own partitions back that the bus has forgotten; return these apps. Raises like ``join``."""
    layout, archived = await bus.partitions.layout(), await ArchivedState(blobs).known_layout()
    if archived is None:
        return []
    if lost := archived.own_lost_in(layout):
        await driver.restore_partitions(url, lost)
    return sorted(lost)


async def to_rebuild(blobs: BlobStore) -> list[str]:
    """Return the apps whose graphs must be built again since a partition was joined, in order."""
    found: set[str] = set()
    for name in await blobs.names(_FOLDER):
        found |= set(json.loads(await blobs.get(name) or b"[]"))
    return sorted(found)


async def has_rebuilt(blobs: BlobStore, app_id: str) -> None:
    """Take an app out of ``to_rebuild``: its graph was built again."""
    for name in await blobs.names(_FOLDER):
        apps: list[str] = json.loads(await blobs.get(name) or b"[]")
        if app_id in apps:
            await blobs.put(name, json.dumps([each for each in apps if each != app_id]).encode())


async def _restore_letters(bus: Bus, blobs: BlobStore, partition: int, fork: str) -> None:
    """Write the dead letters of lost entries again, as far as the archive has them."""
    there = {letter.id for letter in await all_letters(bus.dead_letters)}
    lost = [
        letter for letter in await ArchivedState(blobs).dead_letters()
        if letter.partition == partition and is_after(letter.offset, fork) and letter.id not in there
    ]  # fmt: skip
    await put_letters(bus.dead_letters, lost)


async def _fork(bus: Bus, reader: ArchiveReader, partition: int, trimmed: int) -> CommittedPosition:
    """Return the last entry of the archive that the bus holds, or held before it trimmed it."""
    offset = (await reader.end(partition)).offset
    while page := await reader.before(partition, offset, limit=PAGE):
        found = await bus.log.entries(partition, [entry.offset for entry in page])
        there = {entry.offset: entry for entry in found}
        for entry in reversed(page):
            if entry.offset in there and (entry.erased or there[entry.offset].fields == entry.fields):
                number = await reader.number_of(partition, entry.offset)
                return CommittedPosition(offset=entry.offset, count=number or 0)
        if page[0].offset == offset:
            break
        offset = page[0].offset
    fork = CommittedPosition()
    for piece in await reader.pieces(partition):
        for number, entry in enumerate(await reader.read(piece), piece.first):
            place = CommittedPosition(offset=entry.offset, count=number)
            if bus.offsets.entries_up_to(place) > trimmed:
                return fork
            fork = place
    return fork


def _apps(entries: Iterable[Entry]) -> set[str]:
    found: set[str] = set()
    for entry in entries:
        with suppress(InvalidEvent):
            found.add(entry.event().appid)
    return found


async def _advanced(graph: GraphStore, apps: set[str], partition: int, offset: str) -> set[str]:
    """Return which of these apps have a graph whose checkpoint is behind an offset of the partition."""
    found: set[str] = set()
    for app_id in apps:
        with suppress(QueryFailed):  # no graph is there
            checkpoint = (await graph.checkpoints(app_id, timeout_s=_CHECKPOINTS_S)).get(partition)
            if checkpoint is not None and is_after(checkpoint.offset, offset):
                found.add(app_id)
    return found
