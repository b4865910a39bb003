"""Options that several commands share, and the decorator that turns an asynchronous function into a command."""

from __future__ import annotations

import asyncio
import errno
import functools
import inspect
import json
import logging
import math
import re
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict, get_type_hints

import typer

from graphweft.transports import NOISY_LOGGERS
from graphweft_contracts import GraphweftError, InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.events import APP_ID_PATTERN
from graphweft_contracts.utf8 import utf8_fault
from graphweft_workers.cli.output import drop_output, escape_unprintable, fail
from graphweft_workers.support.lazy_logger import before_next_entry
from graphweft_workers.text.iso_time import in_utc, iso_time

if TYPE_CHECKING:
    from graphweft_contracts import MemoryScope

MAX_BUDGET_MS: Final = 3_600_000

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
ArchiveOnly = Annotated[
    bool, typer.Option("--archive-only", help="Read the archive without the bus, such as after the bus was lost.")
]
Params = Annotated[list[str] | None, typer.Option("--param", help="Query parameter: k=text, or k:=JSON; repeatable.")]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="Ask the graph as it was: an ISO time, an age such as 2h, or PARTITION:OFFSET.",
        show_default="now",
    ),
]
Into = Annotated[
    str | None,
    typer.Option("--into", metavar="URL", help="Graph server for the graph of --as-of.", show_default="same"),
]
BudgetMs = Annotated[
    int, typer.Option("--budget-ms", min=1, max=MAX_BUDGET_MS, help="Maximum time for the reply, in milliseconds.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", min=1, help="Maximum number of tokens in the text.", show_default="no limit"),
]
After = Annotated[
    str | None,
    typer.Option(
        "--after", metavar="POSITION", help="Wait, within the budget, until the graph holds the event at POSITION."
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Show how each block was made.")]

AnyOf = Annotated[
    list[str] | None,
    typer.Option(
        "--any-of",
        metavar="SCOPE",
        help="Another scope that is read beside it, such as application=team or user=bob,chat=trip; repeatable.",
    ),
]

Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Read no older entries: 30s, 90m, 24h, 7d, or an ISO time."),
]
Scan = Annotated[int, typer.Option("--scan", min=1, help="Read at most this number of the newest entries.")]
MOST_SCANNED: Final = 100_000

_POSITION: Final = r"[0-9]{1,9}:[0-9]+(-[0-9]+)?"
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_CLOCKS_DIFFER: Final = timedelta(minutes=1)
_SILENT: Final = logging.NullHandler()


def command(body: Callable[..., Coroutine[Any, Any, int | None]]) -> Callable[..., None]:
    """Make a command of an asynchronous function. Its result is the exit code; a ``GraphweftError`` exits with 1 or 2.

    A parameter whose type is a dataclass stands for several options, one for each field.
    """
    parameters = inspect.signature(body, eval_str=True).parameters
    groups: dict[str, Any] = {name: each.annotation for name, each in parameters.items() if _is_group(each)}

    def run(**values: Any) -> None:
        escape_unprintable()
        before_next_entry(_warn_on_standard_error)
        for name in NOISY_LOGGERS:
            logging.getLogger(name).addHandler(_SILENT)
        try:
            for name, value in values.items():
                _check_text(name, value)
            for name, parameter in parameters.items():
                if parameter.annotation is App:
                    check_app(values[name])
            for name, group in groups.items():
                values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
            code = asyncio.run(_until_terminated(body(**values)))
        except GraphweftError as error:
            fail(error)
        except asyncio.CancelledError:
            raise SystemExit(128 + signal.SIGTERM) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            drop_output()
            fail(InvalidSettings(f"the output or a file cannot be written: {error.strerror}: free some space"))
        if code:
            raise SystemExit(code)

    functools.update_wrapper(run, body)
    run.__signature__ = inspect.Signature(list(_options(parameters.values())))  # type: ignore[attr-defined]
    return run


def _warn_on_standard_error() -> None:
    """Set up the logs of a command that has not: structlog would write to standard output, which is for results."""
    import structlog

    from graphweft_workers.support.logs import set_up_logs

    if not structlog.is_configured():
        set_up_logs("warning", "console")


async def _until_terminated(work: Coroutine[Any, Any, int | None]) -> int | None:
    """Do the work of a command; SIGTERM cancels it, so that it tidies up as after Ctrl-C.

    A command that runs until a signal comes replaces the handler.
    """
    task = asyncio.current_task()
    if task is not None and threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def check_app(app: str) -> None:
    """Raise ``InvalidSettings`` unless ``app`` can be the name of an app."""
    if not re.fullmatch(APP_ID_PATTERN, app):
        raise InvalidSettings(f"invalid --app {app!r}: expected 1 to 64 characters from A-Z, a-z, 0-9, '_' and '-'")


def check_after(after: str | None) -> None:
    """Raise ``InvalidSettings`` unless ``after`` is a position, or None."""
    if after is not None and not re.fullmatch(_POSITION, after, re.ASCII):
        raise InvalidSettings(f"invalid --after {after!r}: expected PARTITION:OFFSET, as `graphweft emit` prints it")


def since_time(text: str | None, now: datetime | None = None) -> datetime | None:
    """Return the time that ``--since`` names. Raises ``InvalidSettings``."""
    return None if text is None else _time(text, "--since", now or SYSTEM_CLOCK.now())


def past_time(text: str, option: str) -> datetime | tuple[int, str]:
    """Return the time, or the partition and offset, that an option names. Raises ``InvalidSettings``.

    A time is an age, or an ISO time, and not in the future.
    """
    if re.fullmatch(_POSITION, text, re.ASCII):
        partition, _, offset = text.partition(":")
        return int(partition), offset
    now = SYSTEM_CLOCK.now()
    found = _time(text, option, now)
    if found > now + _CLOCKS_DIFFER:
        raise InvalidSettings(f"invalid {option} {text!r}: the time lies in the future")
    return found


def _time(text: str, option: str, now: datetime) -> datetime:
    try:
        if found := re.fullmatch(r"([0-9]{1,9})([smhd])", text):
            return now - timedelta(seconds=int(found[1]) * _UNITS[found[2]])
        return in_utc(iso_time(text))
    except (ValueError, OverflowError) as error:
        raise InvalidSettings(
            f"invalid {option} {text!r}: expected a number with s, m, h or d, or a time such as 2026-02-01T10:00:00Z"
            + ("" if option == "--since" else ", or PARTITION:OFFSET, as `graphweft emit` prints it")
        ) from error


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser of one of these words, which names the nearest one if another is given."""

    def parse(word: str) -> str:
        if word in choices:
            return word
        from graphweft_contracts.wire import did_you_mean  # for a misspelt word only

        raise typer.BadParameter(f"{word!r} is not one of {', '.join(choices)}{did_you_mean(word, choices)}")

    return parse


class Choice(TypedDict):
    """Arguments of typer for an option, or an argument, that is one of some words."""

    parser: Callable[[str], str]
    metavar: str


def words(*choices: str) -> Choice:
    """Return the parser ``one_of`` these words, and their list for the help."""
    return {"parser": one_of(*choices), "metavar": f"[{'|'.join(choices)}]"}


def number(least: float, most: float = math.inf, *, whole: bool = False) -> Callable[[str], Any]:
    """Return a parser of a finite number within bounds: typer's own parsers let NaN and infinity pass."""

    def parse(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value) and least <= value <= most:
            return value
        bounds = f"of at least {least:,.12g}" if math.isinf(most) else f"from {least:,.12g} to {most:,.12g}"
        raise typer.BadParameter(f"{text!r} is not a {'whole ' if whole else ''}number {bounds}")

    return parse


def check_as_of(as_of: str | None, into: str | None) -> None:
    """Raise ``InvalidSettings`` for ``--into`` without ``--as-of``."""
    if into is not None and as_of is None:
        raise InvalidSettings("--into is the server for the graph of --as-of: give --as-of too")


def assignments(given: list[str], option: str) -> dict[str, Any]:
    """Return the values of ``name=text`` and ``name:=JSON``. Raises ``InvalidSettings`` for anything else."""
    values: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.rstrip(":"):
            raise InvalidSettings(f"invalid {option} {text!r}: expected name=text or name:=JSON")
        if name.endswith(":"):
            try:
                values[name[:-1]] = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise InvalidSettings(f"invalid JSON in {option} {text[:200]!r}: {error}") from error
        else:
            values[name] = value
    return values


def scopes_of(given: list[str] | None) -> tuple[MemoryScope, ...]:
    """Return the scopes that ``--any-of`` names. Raises ``InvalidSettings``."""
    from graphweft.searching import read_scope
    from graphweft_contracts.search import MOST_SCOPES

    if len(given or ()) > MOST_SCOPES:
        raise InvalidSettings(f"--any-of is given {len(given or ())} times: give it at most {MOST_SCOPES} times")
    found: list[MemoryScope] = []
    for text in given or ():
        try:
            found.append(read_scope(text))
        except ValueError as error:
            raise InvalidSettings(f"invalid --any-of {text!r}: {error}") from None
    return tuple(found)


def _is_group(parameter: inspect.Parameter) -> bool:
    return is_dataclass(parameter.annotation)


def _options(parameters: Iterable[inspect.Parameter]) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each option, with the fields of a dataclass in place of the parameter that holds it."""
    for parameter in parameters:
        group = parameter.annotation
        if not _is_group(parameter):
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        hints = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
            )


def _check_text(name: str, value: object) -> None:
    """Refuse bytes that are not UTF-8: Python passes them on as surrogates, which fail later."""
    for item in value if isinstance(value, list) else [value]:  # pyright: ignore[reportUnknownVariableType]
        if isinstance(item, str) and (fault := utf8_fault(item, "pass it as UTF-8")):
            raise InvalidSettings(f"{name} {item!r} is {fault}")
