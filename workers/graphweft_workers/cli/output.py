"""What commands print: tables for people, JSON for scripts, errors that say what to do next."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from graphweft_contracts import GraphweftError, Transient

__all__ = ("console", "fail", "print_error", "print_json", "print_table", "say", "stderr")

console = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Print text for people, as it is."""
    console.print(escape(text), soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON document, unwrapped and uncoloured."""
    sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False) + "\n")


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


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
