"""``graphweft erase``."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from graphweft_contracts import InvalidSettings
from graphweft_workers.cli.command_logs import set_up_command_logs
from graphweft_workers.cli.options import App, Data, Json, command, number
from graphweft_workers.cli.output import show, warn
from graphweft_workers.reports.remains import ErasureReport, RemainsReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import judged_bus, make_archive, make_bus
from graphweft_workers.wiring.rules import logged_rules
from graphweft_workers.wiring.running import running_bus, running_graph
from graphweft_workers.wiring.second_graph import SCRATCH_SUFFIXES, second_place


@command
async def erase(
    app: App,
    user: Annotated[
        str | None, typer.Option("--user", help="Erase this user only.", show_default="the whole app")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Only list where data is; erase nothing.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Only list what remains; erase nothing, and exit with 1 if anything does.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    wait_s: Annotated[
        float, typer.Option("--wait-s", parser=number(0), metavar="SECONDS", help="Longest wait for the workers.")
    ] = 60.0,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Erase a user, or a whole app, from the log, the archive, dead letters, snapshots, the graph and caches.

    No replay brings it back. Events that arrive later are not erased.
    """
    settings = Settings.load(data=data)
    if user == "":
        raise InvalidSettings("invalid --user '': name the user, or leave --user out to erase the whole app")
    # With an archive whose name is misspelt, the real one would keep everything.
    blobs = make_archive(settings, existing=settings.archive_url is not None)
    set_up_command_logs(settings)
    what = f"the user {user!r} of the app {app!r}" if user is not None else f"the whole app {app!r}"
    report = report or verify
    if not report and not yes:
        if not sys.stdin.isatty():
            raise InvalidSettings(f"this erases {what} for good: give --yes, or --report to see first where data is")
        if not typer.confirm(f"Erase {what} for good?"):
            return 1
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running_bus(settings))
        alone = await stack.enter_async_context(contextlib.aclosing(make_bus(settings, archived=False)))
        live = await stack.enter_async_context(running_graph(settings))
        beside, kept, *scratch = [
            await stack.enter_async_context(running_graph(second_place(settings, app, suffix=suffix), live=settings))
            for suffix in (".erased", ".rebuilt", *SCRATCH_SUFFIXES)
        ]
        from graphweft_workers.archive.subject import Subject
        from graphweft_workers.replay.erase import Erasure
        from graphweft_workers.replay.no_graph import store_to_erase

        live, beside, kept, *scratch = [await store_to_erase(each, app) for each in (live, beside, kept, *scratch)]
        one_place = await kept.whole.place(app) == await live.whole.place(app)
        work = Erasure(
            alone,
            blobs,
            live,
            beside,
            rules=logged_rules(settings, alone, without_lost=True),
            subject=Subject(app_id=app, user_id=user),
            kept=() if one_place else (kept, *scratch),
            wait_s=wait_s,
            judge=lambda bus: judged_bus(settings, bus),
            tell=lambda step: None if json else warn(f"{step} …"),
        )
        places = await (work.report() if report else work.run())
    show(RemainsReport(what=what, places=places) if report else ErasureReport(what=what, places=places), json=json)
    if report:
        return 1 if verify and any(place.left for place in places) else None
    return 1 if any(place.unfinished for place in places) else None
