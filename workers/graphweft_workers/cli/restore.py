"""``graphweft restore``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphweft_contracts import BusUnavailable, InvalidSettings, NotRunning
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.command_logs import set_up_command_logs
from graphweft_workers.cli.options import Data, Json, check_app, command
from graphweft_workers.cli.output import show, warn
from graphweft_workers.cli.replay_progress import replay_progress
from graphweft_workers.reports.report import Part
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import has_archive, make_archive
from graphweft_workers.wiring.rules import logged_rules, rules_maker
from graphweft_workers.wiring.running import running_bus, running_graph
from graphweft_workers.wiring.second_graph import second_place

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_workers.archive.export_file import UnpackedExport
    from graphweft_workers.ports.records import RecordLog
    from graphweft_workers.replay.restore import RestoreResult


@command
async def restore(
    file: Annotated[Path, typer.Argument(help="A file of `graphweft export`.", show_default=False)],
    name: Annotated[
        str | None, typer.Option("--as", metavar="APP", help="Another name for the app.", show_default="the same")
    ] = None,
    into: Annotated[
        str | None, typer.Option("--into", metavar="URL", help="Only make the graph, on this graph server.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the file, and whether the app can be restored.")
    ] = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Bring an app back from a file of `graphweft export`, and prove that its graph has the digest in the file.

    The app must have no graph and no events. Its history goes into the archive. A graph with another digest is deleted.
    """
    settings = Settings.load(data=data)
    if name is not None:
        check_app(name)
    blobs = make_archive(settings) if into is None else None
    set_up_command_logs(settings)
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="graphweft-restore-"))
        export = await asyncio.to_thread(_unpacked, file, Path(folder))
        app = name or export.manifest.app
        place = settings if into is None else second_place(settings, app, into=into, suffix="")
        graph = await stack.enter_async_context(running_graph(place))
        from graphweft_workers.archive.archive_bus import archive_bus
        from graphweft_workers.archive.blobs import open_blobs
        from graphweft_workers.replay.graphs_lease import GraphsLease
        from graphweft_workers.replay.restore import Restore

        rules = logged_rules(settings, archive_bus(open_blobs(str(export.folder / "0001"))))
        tell, _ = stack.enter_context(replay_progress(app))
        work = Restore(export, graph, rules, app, make=rules_maker(settings), tell=tell)
        done: RestoreResult | None = None
        if blobs is None:
            await work.check_rules()
            await work.check_graph()
            if not dry_run:
                lease = GraphsLease(*await _places(settings, stack), app_id=app, command="graphweft restore --into")
                await stack.enter_async_context(lease.held())
                await work.check_graph()
                done = await work.run_graph()
        else:
            bus = await stack.enter_async_context(running_bus(settings))
            await work.check(bus, blobs)
            if not dry_run:
                done = await work.run(bus, blobs)
    show(RestoreReport(export=export, app=app, done=done), json=json)


async def _places(settings: Settings, stack: contextlib.AsyncExitStack) -> list[RecordLog]:
    """Return where other commands on the graphs of apps say that they work, of what answers: it needs none of them."""
    from graphweft_workers.archive.blob_records import BlobRecords

    places: list[RecordLog] = []
    try:
        if has_archive(settings):
            archive = BlobRecords(make_archive(settings))
            await archive.after(None)
            places.append(archive)
        places.append((await stack.enter_async_context(running_bus(settings))).usage)
    except (NotRunning, BusUnavailable) as error:
        warn(f"a command of another process on the same graph may not be noticed: {error}")
    return places


def _unpacked(file: Path, folder: Path) -> UnpackedExport:
    from graphweft_workers.archive.export_check import check_export
    from graphweft_workers.archive.export_file import UnpackedExport

    try:
        with file.open("rb") as given:
            export = UnpackedExport.unpack(given, folder)
    except OSError as error:
        raise InvalidSettings(
            f"cannot read {str(file)!r}: {error.strerror}: give a file of `graphweft export`"
        ) from error
    check_export(export)
    return export


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What a file of an export holds, and what was restored of it."""

    export: UnpackedExport
    app: str
    done: RestoreResult | None
    """None if the file was only checked."""

    @property
    def entries(self) -> int:
        """The entries of the log in the file."""
        return sum(each.entries for each in self.export.manifest.histories)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        graph, done = self.export.manifest.graph.model_dump(), self.done
        found = {"app": self.app, "id": self.export.sha256, "entries": self.entries, "graph": graph}
        found["restored"] = done is not None
        if done is not None:
            found |= {"events": done.events, "dead_letters": done.dead_letters, "rules": done.rules}
        return found

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        manifest, app, done = self.export.manifest, self.app, self.done
        if done is None:
            yield f"{counted(self.entries, 'entry')} of {manifest.app!r} can be restored as {app!r}"
            yield f"exported at {manifest.time:%Y-%m-%d %H:%M:%SZ} by graphweft {manifest.graphweft}"
            return
        applied, letters = counted(done.events, "event"), counted(done.dead_letters, "dead letter")
        yield f"{app!r} is restored: {counted(self.entries, 'entry')}, {applied} applied, {letters}"
        yield f"equal to the graph that was exported: {done.digest.sha256}"
        if done.rules:
            yield f"Its rules are active for this app alone: push new ones with `graphweft rules push --app {app}`."
            yield f"`graphweft rules unset --app {app}` makes it follow the rules of all apps instead."
