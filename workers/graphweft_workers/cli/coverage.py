"""``graphweft coverage``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphweft_contracts.plurals import counted
from graphweft_workers.cli.options import MOST_SCANNED, Data, Json, Since, check_app, command, number, since_time
from graphweft_workers.cli.output import print_error, show, tell_progress, warn
from graphweft_workers.cli.publishing import interruptible
from graphweft_workers.imports.event_lines import LineFaults, events_of_file
from graphweft_workers.reports.coverage import coverage_of_events, coverage_of_log
from graphweft_workers.reports.scan import ScanLimits
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rules import load_rules, rules_maker
from graphweft_workers.wiring.running import running_bus


@command
async def coverage(
    log: Annotated[
        str | None, typer.Argument(metavar="LOG", help="File with one event on each line.", show_default="the bus")
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option("--rules", help="Judge by the rules in this folder.", show_default="see the page on commands"),
    ] = None,
    app: Annotated[str | None, typer.Option("--app", help="Only events of this app.")] = None,
    since: Since = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Of the bus, the newest entries.")] = MOST_SCANNED,
    fail_under: Annotated[
        float | None,
        typer.Option("--fail-under", parser=number(0, 100), metavar="PERCENT", help="Exit with 1 below this share."),
    ] = None,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Count which events match no rule, which mutations never match, and which are skipped.

    Events of a file are judged by the rules of the folder; events of the bus by the rules that were active at their
    place, or by those of --rules. Copies and retries are not counted as events.
    """
    if app is not None:
        check_app(app)
    oldest = since_time(since)
    settings = Settings.load(data=data, rules=rules)
    if log is not None:
        with interruptible():
            found = coverage_of_events(events_of_file(log, LineFaults(print_error, warn)), load_rules(settings), app)
    else:
        async with running_bus(settings) as bus:
            limits = ScanLimits(entries=limit, since=oldest, on_progress=tell_progress)
            given = None if rules is None else load_rules(settings)
            found = await coverage_of_log(bus, app, limits, given=given, make=rules_maker(settings))
        if limits.cut:
            warn(f"only the newest {counted(limit, 'entry was', 'entries were')} read: see --limit")
    show(found, json=json)
    percent = found.percent
    return 1 if fail_under is not None and (percent is None or percent < fail_under) else None
