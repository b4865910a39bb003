"""``graphweft export``."""

from __future__ import annotations

import contextlib
from importlib import metadata
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from graphweft_contracts import InvalidSettings
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.command_logs import set_up_command_logs
from graphweft_workers.cli.options import App, Data, Json, command, number
from graphweft_workers.cli.output import show, warn
from graphweft_workers.reports.report import PlainReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.running import running_app_log


@command
async def export(
    app: App,
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.", show_default=False)],
    wait_s: Annotated[
        float,
        typer.Option("--wait-s", parser=number(0), metavar="SECONDS", help="Longest wait until the app is at rest."),
    ] = 60.0,
    data: Data = None,
    json: Json = False,
) -> None:
    """Write one app into a file: its events, rule sets and dead letters, and the digest of its graph.

    The file holds nothing of other apps. `graphweft restore` brings the app back from it.
    """
    settings = Settings.load(data=data)
    if file.exists() or not file.parent.is_dir():
        reason = "it exists" if file.exists() else "its folder does not exist"
        raise InvalidSettings(f"invalid FILE {str(file)!r}: {reason}; give the path of a new file")
    set_up_command_logs(settings)
    partial = file.with_name(f".{file.name}.{uuid4().hex[:8]}.partial")
    async with running_app_log(settings, app) as log:
        from graphweft_workers.archive.log_gaps import without
        from graphweft_workers.replay.export import Export

        work = Export(
            log, version=metadata.version("graphweft"), wait_s=wait_s,
            tell=lambda step: None if json else warn(f"{step} …"),
        )  # fmt: skip
        try:
            with partial.open("xb") as made:
                done = await work.write(made)
            if done.gaps:
                warn(without(done.gaps))
            partial.rename(file)
        except OSError as error:
            raise InvalidSettings(f"cannot write {str(file)!r}: {error.strerror}: give another FILE") from error
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
    manifest = done.manifest
    entries = sum(each.entries for each in manifest.histories)
    letters = sum(each.dead_letters for each in manifest.histories)
    graph = manifest.graph
    size = f"{counted(graph.nodes, 'node')}, {counted(graph.relationships, 'relationship')}"
    said = (
        f"{counted(entries, 'entry')} and {counted(letters, 'dead letter')} of {manifest.app!r} written to {file}",
        f"digest of the live graph: {graph.sha256} ({size})",
    )
    body = manifest.model_dump(mode="json", exclude={"members"})
    found = {"file": str(file), "id": done.sha256, "bytes": file.stat().st_size, **body}
    show(PlainReport(found, said), json=json)
