"""``graphweft order``."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Literal

import typer

from graphweft_contracts import InvalidSettings, NotRunning
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.options import Data, Json, check_app, command, words
from graphweft_workers.cli.output import show
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.reports.report import Part, PlainReport, TextTable
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.running import running_bus


@command
async def order(
    app: Annotated[str | None, typer.Argument(help="The app; '*' is all without an order of their own.")] = None,
    order: Annotated[
        Literal["app", "chat", "own"] | None,
        typer.Argument(**words("app", "chat", "own"), help="Its new order; own: in a partition of its own, for good."),
    ] = None,
    data: Data = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Change it although events are not applied yet, or, with own, the app is new or has dead letters.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show in which order events take effect, or change it: all events of an app in log order, or those of a chat.

    With 'own', an app gets a partition and a queue of context requests of its own, where the bus can have them. Its
    user may then append nowhere else: `graphweft acl PRODUCT --role tenant --app APP --partition N`.
    """
    if app is not None and app != ALL_APPS:
        check_app(app)
    settings = Settings.load(data=data)
    async with running_bus(settings) as bus:
        layout = await bus.partitions.layout()
        if app is not None and order is not None:
            if order == "own" and app == ALL_APPS:
                raise InvalidSettings("'own' is the order of one app, not of all: name the app")
            if app in layout.own and order != "own":
                raise InvalidSettings(
                    f"{app!r} has partition {layout.own[app].number} of its own and keeps it: its events are there"
                )
            numbers = range(layout.partitions) if app == ALL_APPS else layout.partitions_of(app)
            lag = sum(each.lag for each in await bus.partitions.status() if each.id in numbers)
            if lag and not force:
                raise NotRunning(
                    f"{counted(lag, 'event is', 'events are')} not applied yet in the partitions that hold this app's "
                    "events; events after the change could overtake them. Stop the app's producers, wait until "
                    "`graphweft status` shows no lag, then repeat this"
                )
            if order == "own":
                if app not in layout.own and not force:
                    await _check_moves(settings, bus, app)
                layout = await bus.partitions.give_partition(app, least=await _archived_count(bus))
            else:
                await bus.partitions.store_order(app, order)
                layout = await bus.partitions.layout()
    own = {name: each.number for name, each in layout.own.items()}
    orders = {ALL_APPS: layout.order, **layout.exceptions, **dict.fromkeys(own, "own")}
    shown = {app: orders.get(app, layout.order)} if app is not None else orders
    named = {name: own[name] for name in shown if name in own}
    rows = [(name, f"own, partition {own[name]}" if name in own else each) for name, each in shown.items()]
    parts: list[Part] = [TextTable(("app", "order"), rows)]
    if order is not None:
        parts.append("producers follow within 30 s")
    if order == "own" and app is not None:
        parts.append(f"the rights of its user: graphweft acl PRODUCT --role tenant --app {app} --partition {own[app]}")
    found = {"partitions": layout.partitions, "orders": shown, **({"own": named} if named else {})}
    show(PlainReport(found, parts), json=json)


async def _check_moves(settings: Settings, bus: Bus, app: str) -> None:
    """Refuse what is for good and looks like a mistake. Raises ``InvalidSettings`` and ``NotRunning``."""
    from graphweft_workers.wiring.apps import apps_of_graphs
    from graphweft_workers.wiring.connections import make_graph

    async with aclosing(make_graph(settings)) as graph:
        if app not in await apps_of_graphs(graph):
            raise InvalidSettings(
                f"{app!r} has no graph yet, and a partition is given for good: check the name, or add --force for a "
                "new app"
            )
    if letters := await letter_count(bus.dead_letters, app):
        raise NotRunning(
            f"{counted(letters, 'dead letter is', 'dead letters are')} there of this app, and can be neither "
            f"retried nor dropped after the change: `graphweft dlq retry --app {app}` or `graphweft dlq drop` first"
        )


async def _archived_count(bus: Bus) -> int:
    """Return the number of partitions that the archive knows: a bus that lost its end may know fewer."""
    if bus.archive is None:
        return 0
    from graphweft_workers.archive.state import ArchivedState

    layout = await ArchivedState(bus.archive).known_layout()
    return 0 if layout is None else layout.count
