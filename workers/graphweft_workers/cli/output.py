"""How commands print: tables for people, JSON for scripts, errors with the next step.

``rich`` takes a third of a command's start, so it is imported on first use.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from graphweft_contracts import GraphweftError, InvalidSettings, Transient
from graphweft_contracts.plurals import counted
from graphweft_workers.reports.report import Notice, Report, TextTable
from graphweft_workers.reports.short_texts import plain
from graphweft_workers.support.printable import printable, printable_lines

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

INVALID_LINES: Final = ("line is invalid: correct it", "lines are invalid: correct them")
_LEAST_COLUMN: Final = 10
"""Characters that a column of texts needs. One of single words, such as ids, needs its longest."""
_BORDER: Final = 3


@dataclass(slots=True)
class _Errors:
    as_json: bool = False


_errors: Final = _Errors()


@cache
def stdout() -> Console:
    """Return the console of standard output. It prints text unchanged: ":warning:" does not become a picture."""
    from rich.console import Console

    return Console(highlight=False, emoji=False)


@cache
def stderr() -> Console:
    """Return the console of standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False)


def escape_unprintable() -> None:
    """Make standard output and error escape characters that they cannot encode, so that printing never fails."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Write nothing more to standard output, which is on a full disk: Python would fail again at its end."""
    with contextlib.suppress(OSError, ValueError):  # no descriptor, or it is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(report: Report, *, json: bool) -> None:
    """Print what an ability found: as one JSON document, or for people."""
    if json:
        print_json(report.to_dict())
        return
    for part in report.parts():
        match part:
            case TextTable():
                print_table(part.columns, part.rows, title=part.title)
            case Notice(is_error=True):
                print_error(part.text)
            case Notice():
                warn(part.text)
            case str():
                say(part)


def say(text: str) -> None:
    """Print text for people. A terminal obeys no character of it: see ``printable_lines``."""
    sys.stdout.write(printable_lines(text) + "\n")
    sys.stdout.flush()


def warn(text: str) -> None:
    """Print a warning or a hint in yellow on standard error."""
    stderr().print(printable_lines(text), style="yellow", markup=False, soft_wrap=True)


def warn_all(texts: Iterable[str]) -> None:
    """Print warnings: those that a reader of JSON gets too."""
    for text in texts:
        warn(text)


def write_page(file: Path, text: str) -> None:
    """Write a file that an option names. Raises ``InvalidSettings`` if it cannot be written."""
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise InvalidSettings(f"{file} cannot be written: {error.strerror}") from error


def tell_progress(entries: int) -> None:
    """Say on standard error how many entries were read."""
    sys.stderr.write(f"{counted(entries, 'entry')} read\n")
    sys.stderr.flush()


def aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return a line for each row, however wide the terminal is, so that ``grep`` works on it."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def print_json(value: Any) -> None:
    """Print one JSON document on one line. NaN and infinities, which JSON does not have, become null.

    Characters that are not printable are escaped, so that text of others cannot control a terminal.
    """
    sys.stdout.write(_in_json(value, sys.stdout) + "\n")


def _in_json(value: Any, stream: TextIO) -> str:
    text = printable(json.dumps(_finite(value), default=plain, ensure_ascii=False))
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text))
    return text


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table. Columns of numbers are aligned to the right. No id is broken, so that it can be copied.

    A narrow terminal gets one line for each value.
    """
    from rich.markup import escape
    from rich.table import Table

    lines = [tuple(row) for row in rows]
    cells = [[printable_lines(_cell(value)) for value in row] for row in lines]
    if cells and _is_too_narrow(stdout().width, columns, cells):
        if title:
            say(title)
        for row in cells:
            values = [cell.replace("\n", "\n  ") for cell in row]  # so that no line of a value looks like another one
            say("".join(f"{name}: {value}\n" for name, value in zip(columns, values, strict=True) if name or value))
        return
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(columns):
        numeric = bool(lines) and all(isinstance(row[index], int | float) for row in lines)
        words = not any(_has_blank(row[index]) for row in cells)
        table.add_column(escape(name), justify="right" if numeric else "left", overflow="fold", no_wrap=words)
    for row in cells:
        table.add_row(*map(escape, row))
    stdout().print(table)


def _is_too_narrow(width: int, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether a column of single words would not have its width, or one of texts not ``_LEAST_COLUMN``."""
    from rich.cells import cell_len

    needed = 1
    for name, *cells in zip(columns, *rows, strict=True):
        longest = max(cell_len(line) for cell in (name, *cells) for line in cell.split("\n"))
        needed += _BORDER + (min(_LEAST_COLUMN, longest) if any(map(_has_blank, cells)) else longest)
    return needed > width


def _has_blank(cell: str) -> bool:
    return any(map(str.isspace, cell))


def print_errors_as_json(as_json: bool) -> None:
    """Let ``print_error`` print JSON, or text for people, in this process."""
    _errors.as_json = as_json


def print_error(error: BaseException | str, *, exit_code: int | None = None) -> None:
    """Print an error on standard error: as text for people, or as a JSON object on one line.

    ``exit_code`` is given if the error ends the command.
    """
    if _errors.as_json:
        found: dict[str, Any] = {
            "error": str(error),
            "type": "Error" if isinstance(error, str) else type(error).__name__,
        }
        sys.stderr.write(_in_json(found if exit_code is None else {**found, "exit_code": exit_code}, sys.stderr) + "\n")
        sys.stderr.flush()
        return
    from rich.text import Text

    stderr().print(Text.assemble(("error:", "bold red"), " ", printable_lines(str(error))), soft_wrap=True)


def fail(error: GraphweftError) -> NoReturn:
    """Print the error and exit: with 1 if a later attempt may work, with 2 if you have to change something first."""
    code = 1 if isinstance(error, Transient) else 2
    print_error(error, exit_code=code)
    raise SystemExit(code)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping | list):
        return json.dumps(value, default=plain, ensure_ascii=False)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(plain(value)) if isinstance(value, date | time) else str(value)


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
