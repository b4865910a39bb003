"""``graphweft token``."""

from __future__ import annotations

import json as json_module
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from graphweft_contracts import InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.cli.options import App, Json, command
from graphweft_workers.cli.output import show
from graphweft_workers.reports.report import PlainReport, TextTable
from graphweft_workers.settings.settings import Settings
from graphweft_workers.text.iso_time import iso_time

if TYPE_CHECKING:
    from graphweft_workers.gateway.tokens import AccessToken

_ROLES: Final = ("emit", "read")
_SPAN: Final = re.compile(r"([1-9][0-9]{0,5})([dh])")
_SHOWN: Final = 8
"""Hexadecimal digits of a hash that are shown: enough to tell the entries of a file apart."""


@command
async def token_new(
    app: App,
    name: Annotated[str, typer.Option("--name", help="A note for the file: what the token is for.")] = "",
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            help="What it may do: emit events, read context and memories, erase, admin for all of these, or operator "
            "to see all apps in the console. Repeat it.",
            show_default=", ".join(_ROLES),
        ),
    ] = None,
    workflow: Annotated[
        list[str] | None,
        typer.Option("--workflow", help="A workflow that it may name. Repeat it.", show_default="those of the app"),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", help="When it ends: 90d, 12h, or 2027-01-31T00:00:00Z.", show_default="never"),
    ] = None,
    json: Json = False,
) -> None:
    """Make a token for one app. Prints it once, with the line for the file of GRAPHWEFT_GATEWAY_TOKENS."""
    from graphweft_workers.gateway.tokens import ROLES, new_token, sha256_of

    if unknown := [each for each in role or () if each not in ROLES]:
        raise InvalidSettings(f"--role {unknown[0]!r}: unknown role; known: {', '.join(ROLES)}")
    token = new_token()
    entry: dict[str, Any] = {"sha256": sha256_of(token), "app_id": app, "name": name}
    entry["roles"] = list(dict.fromkeys(role or _ROLES))
    if workflow:
        entry["workflows"] = list(dict.fromkeys(workflow))
    if expires is not None:
        entry["expires"] = _end(expires, SYSTEM_CLOCK.now()).strftime("%Y-%m-%dT%H:%M:%SZ")
    said = (
        f"token: {token}",
        "Keep it: it is shown only now. Add this line below `tokens:` in the file that GRAPHWEFT_GATEWAY_TOKENS names:",
        f"  - {json_module.dumps(entry, ensure_ascii=False)}",
    )
    show(PlainReport({"token": token, "entry": entry}, said), json=json)


@command
async def token_list(json: Json = False) -> None:
    """Show the tokens in the file of GRAPHWEFT_GATEWAY_TOKENS: name, app, roles, workflows and end."""
    from graphweft_workers.gateway.tokens import read_tokens

    path = Settings.load().gateway_tokens
    if path is None:
        raise InvalidSettings(
            "no file of tokens: set GRAPHWEFT_GATEWAY_TOKENS to it; `graphweft token new` makes a token"
        )
    now = SYSTEM_CLOCK.now()
    found = [_token_dict(token, now) for token in read_tokens(path).all]
    table = TextTable(
        ("hash", "name", "app", "roles", "workflows", "expires"),
        [
            (
                each["hash"],
                each["name"],
                each["app_id"],
                ", ".join(each["roles"]),
                "those of the app" if each["workflows"] is None else ", ".join(each["workflows"]),
                f"{each['expires'] or 'never'}{' (expired)' if each['expired'] else ''}",
            )
            for each in found
        ],
    )
    show(PlainReport(found, [table]), json=json)


def _token_dict(token: AccessToken, now: datetime) -> dict[str, Any]:
    from graphweft_workers.gateway.tokens import ROLES

    return {
        "hash": f"{token.sha256.hex()[:_SHOWN]}…",
        "name": token.name,
        "app_id": token.app_id,
        "roles": [role for role in ROLES if role in token.roles],
        "workflows": None if token.workflows is None else sorted(token.workflows),
        "expires": None if token.expires is None else f"{token.expires.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "expired": token.has_expired(now),
    }


def _end(text: str, now: datetime) -> datetime:
    """Return the time that ``--expires`` means. Raises ``InvalidSettings`` for other texts, and for a past time."""
    end: datetime | None
    try:
        if span := _SPAN.fullmatch(text):
            number = int(span[1])
            end = now + (timedelta(days=number) if span[2] == "d" else timedelta(hours=number))
        else:
            given = iso_time(text)
            end = given.astimezone(UTC) if given.tzinfo else None
    except (ValueError, OverflowError):
        end = None
    if end is None:
        raise InvalidSettings(
            f"--expires {text!r}: expected days such as 90d, hours such as 12h, or a time such as 2027-01-31T00:00:00Z"
        )
    if end <= now:
        raise InvalidSettings(f"--expires {text!r} is in the past: give a time in the future")
    return end
