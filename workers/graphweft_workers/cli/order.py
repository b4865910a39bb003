"""``graphweft order``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from graphweft_contracts import NotRunning
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.options import Data, Json, check_app, command, words
from graphweft_workers.cli.output import print_json, print_table, say
from graphweft_workers.roles.running import running_bus
from graphweft_workers.roles.settings import Settings


@command
async def order(
    app: Annotated[str | None, typer.Argument(help="The app; '*' is all without an order of their own.")] = None,
    order: Annotated[
        Literal["app", "chat"] | None,
        typer.Argument(**words("app", "chat"), help="Its new order."),
    ] = None,
    data: Data = None,
    force: Annotated[bool, typer.Option("--force", help="Change it although events are not applied yet.")] = False,
    json: Json = False,
) -> None:
    """Show in which order events take effect, or change it: all events of an app in log order, or those of a chat."""
    if app is not None and app != ALL_APPS:
        check_app(app)
    async with running_bus(Settings.load(data=data)) as bus:
        layout = await bus.partitions.layout()
        if app is not None and order is not None:
            numbers = range(layout.partitions) if app == ALL_APPS else layout.partitions_of(app)
            lag = sum(each.lag for each in await bus.partitions.status() if each.id in numbers)
            if lag and not force:
                raise NotRunning(
                    f"{counted(lag, 'event is', 'events are')} not applied yet in the partitions that hold this app's "
                    "events; events after the change could overtake them. Stop the app's producers, wait until "
                    "`graphweft status` shows no lag, then repeat this"
                )
            await bus.partitions.store_order(app, order)
            layout = await bus.partitions.layout()
    orders = {ALL_APPS: layout.order, **layout.exceptions}
    shown = {app: layout.order_of(app)} if app is not None else orders
    if json:
        print_json({"partitions": layout.partitions, "orders": shown})
        return
    print_table(("app", "order"), list(shown.items()))
    if order is not None:
        say("producers follow within 30 s")
