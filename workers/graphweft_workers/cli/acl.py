"""``graphweft acl``."""

from __future__ import annotations

from typing import Annotated

import typer

from graphweft_workers.cli.options import Json, check_app, command
from graphweft_workers.cli.output import show
from graphweft_workers.reports.report import PlainReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rights import RightsRole


@command
async def acl(
    server: Annotated[str, typer.Argument(help="The kind of the bus or of the graph server.")],
    role: Annotated[RightsRole, typer.Option("--role", help="What the user is for.")],
    app: Annotated[str | None, typer.Option("--app", help="tenant: the app whose user it is.")] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", min=0, help="tenant: the partition of its app, if `graphweft order` shows one."),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="Name of the user.", show_default="the role, for a tenant with its app")
    ] = None,
    json: Json = False,
) -> None:
    """Print what gives a user of a server exactly the rights of a role. It changes nothing."""
    from graphweft_workers.wiring.rights import commands

    if app is not None:
        check_app(app)
    name = user or (f"{role}-{app}" if app else role)
    template = Settings.load().graph_template
    found = commands(server, role, app_id=app, user=name, graph_template=template, own=partition)
    show(PlainReport({"user": name, "commands": found}, found), json=json)
