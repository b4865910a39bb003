"""Options that several commands share, and how a command body runs."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from graphweft_contracts import GraphweftError, InvalidSettings, NotRunning
from graphweft_contracts.events import APP_ID_PATTERN
from graphweft_workers.cli.output import any_text, fail
from graphweft_workers.embedded import ping
from graphweft_workers.settings import Settings

__all__ = ("App", "Data", "Json", "Rules", "check_app", "command", "require_running")

Data = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of the embedded server.", envvar="GRAPHWEFT_DATA", show_default=".graphweft"),
]
Rules = Annotated[
    Path | None,
    typer.Option("--rules", help="Folder of workflows.", envvar="GRAPHWEFT_RULES", show_default="workflows"),
]
App = Annotated[str, typer.Option("--app", help="The app (tenant).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def command[**P](body: Callable[P, Coroutine[Any, Any, int | None]]) -> Callable[P, None]:
    """Run an asynchronous command body; its number is the exit code, and our own errors end it with a message."""

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        any_text()
        try:
            for name, value in kwargs.items():
                _check_text(name, value)
            code = asyncio.run(body(*args, **kwargs))
        except GraphweftError as error:
            fail(error)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        if code:
            raise SystemExit(code)

    return run


async def require_running(settings: Settings, answers: Callable[[str], Awaitable[bool]] = ping) -> None:
    """Raise ``NotRunning`` with the next step when bus or graph server does not answer."""
    if not await answers(settings.bus):
        raise NotRunning(
            f"nothing runs on the data folder {str(settings.data)!r}: start `graphweft up --data {settings.data}`, or "
            "set GRAPHWEFT_DATA to the folder of a running one"
            if settings.embedded
            else "nothing answers where GRAPHWEFT_BUS_URL points; `graphweft doctor` tells more"
        )
    if settings.graph != settings.bus and not await answers(settings.graph):
        raise NotRunning(
            "GRAPHWEFT_BUS_URL is set and GRAPHWEFT_GRAPH_URL is not, and no embedded server runs on the data folder "
            f"{str(settings.data)!r}: set GRAPHWEFT_GRAPH_URL too"
            if settings.graph_url is None
            else "nothing answers where GRAPHWEFT_GRAPH_URL points; `graphweft doctor` tells more"
        )


def check_app(app: str) -> None:
    """Raise ``InvalidSettings`` for a name that no app can have: it would read as an app without data."""
    if not re.fullmatch(APP_ID_PATTERN, app):
        raise InvalidSettings(f"--app {app!r}: an app's name is 1 to 64 of A-Z, a-z, 0-9, _ and -")


def _check_text(name: str, value: object) -> None:
    """Refuse bytes that are no UTF-8, which Python hands on as surrogates, before they fail half-way."""
    for item in value if isinstance(value, list) else [value]:  # pyright: ignore[reportUnknownVariableType]
        if isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError as error:
                raise InvalidSettings(f"{name} {item!r}: not UTF-8; pass it as UTF-8") from error
