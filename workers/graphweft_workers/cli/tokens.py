"""``graphweft token new``."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from graphweft_workers.cli.options import App, Json, command
from graphweft_workers.cli.output import print_json, say


@command
async def token_new(
    app: App,
    name: Annotated[str, typer.Option("--name", help="A note for the file: what the token is for.")] = "",
    json: Json = False,
) -> None:
    """Make a token for one app. Prints it once, with the line for the file of GRAPHWEFT_GATEWAY_TOKENS."""
    from graphweft_workers.gateway.tokens import new_token, sha256_of

    token = new_token()
    entry = {"sha256": sha256_of(token), "app_id": app, "name": name}
    if json:
        print_json({"token": token, "entry": entry})
        return
    say(f"token: {token}")
    say("Keep it: it is shown only now. Add this line below `tokens:` in the file that GRAPHWEFT_GATEWAY_TOKENS names:")
    say(f"  - {json_module.dumps(entry, ensure_ascii=False)}")
