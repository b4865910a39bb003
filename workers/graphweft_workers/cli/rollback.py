"""``graphweft rollback``."""

from __future__ import annotations

import contextlib

from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.command_logs import set_up_command_logs
from graphweft_workers.cli.options import App, Data, Json, command
from graphweft_workers.cli.output import show, warn, warn_all
from graphweft_workers.cli.rebuild import SecondPlace
from graphweft_workers.cli.replay_progress import replay_progress
from graphweft_workers.reports.rebuild import RebuildReport, losses_of
from graphweft_workers.reports.report import PlainReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rules import logged_rules
from graphweft_workers.wiring.running import running_app_log, running_graph


@command
async def rollback(app: App, place: SecondPlace, data: Data = None, json: Json = False) -> None:
    """Put the graph of before the last swap back in its place, with the events that came since.

    After a swap with `rebuild --rules`, which gives the past other rules, that is refused: rebuild with the rules of
    before instead.

    The graph that was live until then is kept until the next rebuild, so a second rollback undoes the first one.
    """
    settings = Settings.load(data=data)
    other = place.of(settings, app)
    set_up_command_logs(settings)
    report = RebuildReport(app=app, graph=other.graph_template.replace("{app_id}", app), swap=True, resumed=True)
    with replay_progress(app) as (tell, _):
        async with contextlib.AsyncExitStack() as stack:
            log = await stack.enter_async_context(running_app_log(settings, app))
            graph = await stack.enter_async_context(running_graph(other, live=settings))
            from graphweft_workers.replay.graphs_lease import GraphsLease
            from graphweft_workers.replay.rebuild import Rebuild

            lease = GraphsLease.of(log.bus, app, "graphweft rollback")
            await stack.enter_async_context(lease.held())
            rules = logged_rules(settings, log.bus, without_lost=True)
            work = Rebuild(log, graph, rules, tell=tell, lease=lease)
            await work.begin(resume=True, swap=True, kept=True)
            report.gaps = work.gaps
            started = SYSTEM_CLOCK.monotonic()
            await work.swap()
            report.elapsed_s, report.done, report.swapped = SYSTEM_CLOCK.monotonic() - started, work.done, True
            report.losses = await losses_of(graph, log.live, log, rules, fewer=True, warn=warn)
    since = counted(report.events, "event")
    said = (
        f"The graph of {app!r} from before the last swap is live again; {since} came since.",
        f"The other one is {report.graph!r}: `graphweft rollback` puts it back, `graphweft rebuild --drop` deletes it,",
        "and the next rebuild takes its place.",
    )
    show(PlainReport(report.to_dict(), said), json=json)
    warn_all(report.warnings())
