"""``graphweft events show`` and ``why``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

import typer

from graphweft_contracts import InvalidSettings, NotRunning
from graphweft_workers.cli.options import MOST_SCANNED, Data, Json, Scan, Since, check_app, command, since_time
from graphweft_workers.cli.output import show, tell_progress, warn
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.reports.event import EntryFate, EventReport, fate_of, find_entry
from graphweft_workers.reports.scan import Decoder, ScanLimits
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.printable import printable
from graphweft_workers.wiring.running import running_bus, running_graph

Target = Annotated[
    str, typer.Argument(metavar="ID|PARTITION:OFFSET", help="The event's id, or its position from `events tail`.")
]
OfApp = Annotated[str | None, typer.Option("--app", help="The event is of this app: only its partition is searched.")]


@command
async def events_show(
    target: Target,
    app: OfApp = None,
    since: Since = None,
    scan: Scan = MOST_SCANNED,
    data: Data = None,
    json: Json = False,
) -> None:
    """Show one event as a whole, where it lies, whether it took effect, and its copies and retries."""
    limits = ScanLimits(entries=scan, since=since_time(since), on_progress=tell_progress)
    async with _event_fate(Settings.load(data=data), target, app, limits) as (bus, _, fate):
        report = await EventReport.read(bus, fate)
    show(report, json=json)


@command
async def events_why(
    target: Target,
    app: OfApp = None,
    since: Since = None,
    scan: Scan = MOST_SCANNED,
    data: Data = None,
    json: Json = False,
) -> None:
    """Explain what an event did and why: the active rules, which match and which do not, skips and dead letters."""
    from graphweft_workers.reports.reasons import explain
    from graphweft_workers.wiring.rules import rules_maker

    limits = ScanLimits(entries=scan, since=since_time(since), on_progress=tell_progress)
    settings = Settings.load(data=data)
    async with _event_fate(settings, target, app, limits) as (bus, decoder, fate):
        report = await explain(bus, decoder, fate, make=rules_maker(settings))
    show(report, json=json)


@asynccontextmanager
async def _event_fate(
    settings: Settings, target: str, app: str | None, limits: ScanLimits
) -> AsyncGenerator[tuple[Bus, Decoder, EntryFate]]:
    """Yield what became of the event that the user means. Raises ``InvalidSettings`` unless it is exactly one."""
    if app is not None:
        check_app(app)
    async with running_bus(settings) as bus:
        decoder = await Decoder.of(bus)
        seen, elsewhere = await find_entry(bus, decoder, target, app, limits)
        async with _graph(settings) as graph:
            fate = await fate_of(bus, decoder, graph, seen, limits, elsewhere=elsewhere)
        if fate.effect.graph_fault:
            warn(printable(f"the graph does not say how far it is: {fate.effect.graph_fault}"))
        yield bus, decoder, fate


@asynccontextmanager
async def _graph(settings: Settings) -> AsyncGenerator[GraphStore | None]:
    """Yield the graph store; None, with a warning, while there is none that answers."""
    async with AsyncExitStack() as stack:
        graph: GraphStore | None = None
        try:
            graph = await stack.enter_async_context(running_graph(settings))
        except (NotRunning, InvalidSettings) as error:
            warn(f"without the graph's checkpoint: {error}")
        yield graph
