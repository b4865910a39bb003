"""Options that several commands share, and how a command body runs."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from graphweft_contracts import GraphweftError, InvalidSettings
from graphweft_contracts.events import APP_ID_PATTERN
from graphweft_workers.cli.output import any_text, fail

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

_AIOKAFKA: Final = logging.getLogger("aiokafka")
_SILENT: Final = logging.NullHandler()
"""aiokafka warns of what it then raises, at each attempt; without any handler Python would print that."""


def command[**P](body: Callable[P, Coroutine[Any, Any, int | None]]) -> Callable[P, None]:
    """Run an asynchronous command body; its number is the exit code, and our own errors end it with a message."""

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        any_text()
        _AIOKAFKA.addHandler(_SILENT)
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
