"""``graphweft key new``."""

from __future__ import annotations

import json as json_module
import re
import secrets
from typing import Annotated, Final, Literal

import typer

from graphweft_contracts import InvalidSettings
from graphweft_contracts.signatures import KEY_ID_PATTERN
from graphweft_workers.cli.options import Json, check_app, command, words
from graphweft_workers.cli.output import show
from graphweft_workers.reports.report import PlainReport

_ROLES: Final = ("worker", "gateway")


@command
async def key_new(
    app: Annotated[str | None, typer.Option("--app", help="The app (tenant) whose key it is.")] = None,
    role: Annotated[
        Literal["worker", "gateway"] | None,
        typer.Option("--role", **words(*_ROLES), help="The process whose key it is."),
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The id of the key.", show_default="owner and a number")
    ] = None,
    json: Json = False,
) -> None:
    """Make a key that signs events. Prints it once, with the line for the file of GRAPHWEFT_SIGNING_KEYS."""
    from graphweft_workers.engine.log.key_file import new_entry, new_secret

    if (app is None) == (role is None):
        raise InvalidSettings("give --app or --role: a key is of one app, or of a worker or a gateway")
    if app is not None:
        check_app(app)
    secret = new_secret()
    key_id = id or f"{app or role}-{secrets.token_hex(4)}"
    if not re.fullmatch(KEY_ID_PATTERN, key_id):
        raise InvalidSettings(
            f"invalid --id {key_id!r}: expected 1 to 64 characters from A-Z, a-z, 0-9, '.', '_' and '-'"
        )
    entry = new_entry(key_id, secret, app_id=app, role=role)
    said = (
        f"GRAPHWEFT_SIGNING_KEY={key_id}:{secret}",
        "Keep it: it is shown only now. Add the line below `keys:` to the file that GRAPHWEFT_SIGNING_KEYS names, for "
        "all workers and responders, and restart them; then give the key to the client. If it is the first key of an "
        "app that has clients, set `from` to a time at which all of them will sign: what is not signed is refused from "
        "then on.",
        f"  - {json_module.dumps(entry)}",
    )
    show(PlainReport({"signing_key": f"{key_id}:{secret}", "entry": entry}, said), json=json)
