"""``graphweft archive`` and ``graphweft trim``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncGenerator
from typing import Annotated

import typer

from graphweft_contracts import BusUnavailable, InvalidSettings, channels
from graphweft_contracts.plurals import counted
from graphweft_workers.archive.archived_bus import archived
from graphweft_workers.archive.archiver import archive_now as copy_now
from graphweft_workers.archive.log_gaps import accept_gaps, missing_entries
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.trim import TrimPlace, trim, trim_place
from graphweft_workers.archive.verify import VerifiedPartition, verify, verify_presence, verify_rules
from graphweft_workers.cli.command_logs import set_up_command_logs
from graphweft_workers.cli.options import Data, Json, command
from graphweft_workers.cli.output import show, warn
from graphweft_workers.cli.process_user import UNKNOWN_USER, process_user
from graphweft_workers.ports.bus import Bus
from graphweft_workers.reports.archive import ArchiveCheck, TrimReport
from graphweft_workers.reports.report import PlainReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_archive, make_bus
from graphweft_workers.wiring.running import check_bus


@contextlib.asynccontextmanager
async def _bus_alone(settings: Settings) -> AsyncGenerator[Bus]:
    """Yield the bus without the archive. Raises ``NotRunning`` if it does not answer."""
    await check_bus(settings)
    async with contextlib.aclosing(make_bus(settings, group=channels.ARCHIVE_GROUP, archived=False)) as bus:
        yield bus


@command
async def archive_now(data: Data = None, json: Json = False) -> int | None:
    """Copy all entries that are on the bus now into the archive, and end. `graphweft run archive` goes on."""
    settings = Settings.load(data=data)
    blobs = make_archive(settings)
    set_up_command_logs(settings)
    async with _bus_alone(settings) as bus:
        added, lost = await copy_now(bus, blobs)
    said = f"{counted(added, 'new entry')} archived in {settings.archive}"
    show(PlainReport({"archived": added, "lost": lost}, [said]), json=json)
    if not lost:
        return None
    warn(
        f"{counted(lost, 'entry')} had left the bus before, and this archive lacks {'it' if lost == 1 else 'them'}, so "
        "no graph can be rebuilt. "
        "If another archive holds them, set GRAPHWEFT_ARCHIVE_URL to that one; if none does, accept the loss by "
        "`graphweft archive verify --accept-lost`"
    )
    return 1


@command
async def archive_verify(
    no_bus: Annotated[bool, typer.Option("--no-bus", help="Do not compare the end with the bus.")] = False,
    accept_lost: Annotated[
        bool,
        typer.Option(
            "--accept-lost",
            help="First accept that the entries are lost that neither the bus nor the archive holds: replays and "
            "erasures go on without them. The archive records who has accepted it, and when.",
        ),
    ] = False,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Read the whole archive: hashes, order, gaps, rules, and whether the bus continues it. A fault exits with 1."""
    settings = Settings.load(data=data)
    blobs = make_archive(settings, existing=True)
    if accept_lost and no_bus:
        raise InvalidSettings("--accept-lost asks the bus what it still holds: leave out --no-bus")
    found: list[VerifiedPartition] = []

    def tell(each: VerifiedPartition) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\rpartition {each.partition}: {counted(each.entries, 'entry')} checked \x1b[K")

    async with contextlib.AsyncExitStack() as stack:
        bus = None if no_bus else await stack.enter_async_context(_bus_alone(settings))
        if accept_lost and bus is not None:
            numbers = range(await bus.partitions.count(fresh=True))
            await accept_gaps(archived(bus, blobs), numbers, by=process_user() or UNKNOWN_USER)
        async for each in verify(blobs, bus, tell=tell):
            found.append(each)
        faults = [*await verify_presence(blobs, bus), *await verify_rules(blobs)]
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    faults += [fault for each in found for fault in each.faults]
    show(ArchiveCheck(partitions=found, faults=faults), json=json)
    return 1 if faults else None


@command
async def trim_bus(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how far it would trim.")] = False,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Remove from the bus what is archived and applied. Commands and workers read it from the archive afterwards."""
    settings = Settings.load(data=data)
    reader = ArchiveReader(make_archive(settings, existing=True))
    refused: dict[int, str] = {}
    async with _bus_alone(settings) as bus:
        numbers = range(await bus.partitions.count(fresh=True))
        before = await missing_entries(bus, numbers)
        places: list[TrimPlace] = []
        for number in numbers:
            try:
                places.append(await (trim_place if dry_run else trim)(bus, reader, number))
            except BusUnavailable as error:  # of one partition perhaps: the others go on
                refused[number] = str(error)
        after = await missing_entries(bus, numbers)
        removed = [(place, after[place.partition] - before[place.partition]) for place in places]
    show(TrimReport(places=removed, refused=refused), json=json)
    return 1 if refused else None
