"""``graphweft diff``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphweft_contracts import InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.cli.command_logs import set_up_command_logs
from graphweft_workers.cli.options import App, ArchiveOnly, Data, Json, command
from graphweft_workers.cli.output import show, warn, write_page
from graphweft_workers.cli.rebuild import check_to, read_to
from graphweft_workers.cli.replay_progress import replay_progress
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rules import checked_rules, load_given_rules, logged_rules
from graphweft_workers.wiring.running import running_app_log
from graphweft_workers.wiring.second_graph import scratch_graph

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_workers.replay.causes import Side
    from graphweft_workers.replay.replay import ReplayStep


@command
async def diff(
    app: App,
    rules: Annotated[Path, typer.Option("--rules", help="Folder of the rules to compare with those of the log.")],
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="POSITION|TIME", help="Compare at this position, or at this time of the log."),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="URL", help="Graph server of the graphs to compare.", show_default="same"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, max=1_000, help="Examples of each sort.")] = 5,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page to this file.")] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if anything differs.")] = False,
    archive_only: ArchiveOnly = False,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Show what other rules would have made of an app's history: nodes, relationships, properties, and failures.

    It builds two graphs beside the live one, as the log was lived and by the rules of the folder, compares them, and
    deletes them. Nothing else is written.
    """
    settings = Settings.load(data=data)
    place = read_to(to or [])
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        why = "it is a folder" if html.is_dir() else f"the folder {str(html.parent)!r} does not exist"
        raise InvalidSettings(f"invalid --html {str(html)!r}: {why}")
    set_up_command_logs(settings)
    given = load_given_rules(settings, rules)
    started = SYSTEM_CLOCK.monotonic()
    async with running_app_log(settings, app, archive_only=archive_only) as log:
        from graphweft_workers.archive.log_gaps import without
        from graphweft_workers.replay.history_diff import HistoryComparison
        from graphweft_workers.reports.diff import DiffReport
        from graphweft_workers.reports.diff_page import page_of

        given = await checked_rules(given, rules, log.bus, app, log.live)
        await log.refuse_preludes()
        await check_to(log.bus, place)
        if gaps := await log.check_complete():
            warn(without(gaps))
        ends = await log.ends(place) if place is None or isinstance(place, datetime) else place
        lived = logged_rules(settings, log.bus, without_lost=True)
        comparison = HistoryComparison(log, lived, given, ends, limit=limit)

        @contextlib.asynccontextmanager
        async def scratch(side: Side) -> AsyncGenerator[GraphStore]:
            ours = given if side == "after" else None
            async with scratch_graph(settings, log, lived, given=ours, into=into) as graph:
                yield graph

        shown: dict[object, ReplayStep] = {}
        with replay_progress("both graphs") as (progress, expect):
            expect(2 * await log.entry_count() if place is None else None)

            def tell(side: Side, done: Mapping[int, ReplayStep]) -> None:
                shown.update(((side, partition), each) for partition, each in done.items())
                progress(shown)

            found = await comparison.run(scratch, tell)
    report = DiffReport(app=app, rules=given.digest, seconds=round(SYSTEM_CLOCK.monotonic() - started, 3), found=found)
    show(report, json=json)
    if html is not None:
        write_page(html, page_of(report))
    if not found.events:
        warn(f"no event of the app {app!r} in the log matches a rule")
    return 1 if exit_code and not report.same else None
