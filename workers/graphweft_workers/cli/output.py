"""What commands print: tables for people, JSON for scripts, errors that say what to do next."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, NoReturn, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from graphweft_contracts import GraphweftError, Transient

# What a graph holds is printed as it is: ":warning:" is a text, not a picture.
console = Console(highlight=False, emoji=False)
stderr = Console(stderr=True, highlight=False, emoji=False)


def any_text() -> None:
    """Let what a terminal or file cannot show be escaped, from here on: printing must not end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Print text for people, as it is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_aligned(rows: Iterable[tuple[str, ...]], *, to: TextIO | None = None) -> None:
    """Print rows one a line whatever the width of the terminal, so that they can be searched."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        (to or sys.stdout).write(text + "\n")


def print_json(value: Any) -> None:
    """Print one JSON document, unwrapped and uncoloured; NaN and infinities, which JSON has not, as null."""
    text = json.dumps(_finite(value), default=_plain, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text))
    sys.stdout.write(text + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table; numbers stand right."""
    lines = [tuple(row) for row in rows]
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(columns):
        numeric = bool(lines) and all(isinstance(row[index], int | float) for row in lines)
        table.add_column(escape(name), justify="right" if numeric else "left", overflow="fold")
    for row in lines:
        table.add_row(*(escape(_cell(value)) for value in row))
    console.print(table)


def print_error(error: BaseException) -> None:
    """Print what went wrong to standard error."""
    stderr.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)


def fail(error: GraphweftError) -> NoReturn:
    """Print the error and end: 1 when trying again later may help, 2 when something has to be changed first."""
    print_error(error)
    raise SystemExit(1 if isinstance(error, Transient) else 2)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping | list):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(_plain(value)) if isinstance(value, date | time) else str(value)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {name: _finite(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_finite(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
