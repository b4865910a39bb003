"""The logs of services: structlog events on standard error, for people or as JSON lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog
from rich.console import Console

from graphweft.transports import NOISY_LOGGERS
from graphweft_workers.support.log_context import with_ids
from graphweft_workers.support.log_limit import LimitedLines
from graphweft_workers.support.printable import printable, printable_lines
from graphweft_workers.telemetry.metrics import LOG_ENTRIES, OTHER

_OWN: Final = frozenset({"event", "level", "timestamp"})
"""What the renderer shows as text, whatever it holds."""
_LINES: Final = frozenset({"exception", "stack"})
"""What the renderer shows as lines."""


_COUNTED: Final = frozenset({"warning", "error", "critical"})
"""Levels that are counted."""


class _StandardError(logging.StreamHandler[TextIO]):
    """The handler that this module makes."""


class _ShownValue:
    """A value as the renderer shows it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _escape(_logger: object, _name: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape what is not printable in an entry, so that no text of others controls a terminal or forges a line."""
    for name in [name for name in entry if not name.isprintable()]:
        entry[printable(name)] = entry.pop(name)
    for name, value in entry.items():
        if name in _LINES:
            entry[name] = printable_lines(str(value))
        elif name in _OWN:
            entry[name] = printable(str(value))
        elif isinstance(value, str):
            entry[name] = value if value.isprintable() else _ShownValue(printable(value))
        elif not isinstance(value, int | float | None):
            entry[name] = _ShownValue(printable(repr(value)))
    return entry


def _count(_logger: object, _name: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Count a warning or an error: whatever a role logs, its metrics have, too."""
    if (level := entry["level"]) in _COUNTED:
        record: logging.LogRecord | None = entry.get("_record")  # of a library
        event = str(entry["event"]) if record is None else record.name
        LOG_ENTRIES.add(1 + entry.get("left_out", 0), level, event if record or event.isidentifier() else OTHER)
    return entry


def send_along(library: str, level: int) -> None:
    """Send what a library logs from a level on to graphweft's log alone."""
    logger = logging.getLogger(library)
    logger.handlers, logger.propagate = list(logging.getLogger("graphweft").handlers), False
    logger.setLevel(level)


def set_up_logs(level: str, style: Literal["console", "json"]) -> None:
    """Send structlog and standard logging to standard error in one form. A command calls it once."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        with_ids,
        structlog.stdlib.add_log_level,
        _count,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    terminal = Console(stderr=True)  # it knows NO_COLOR
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.JSONRenderer()]  # JSON escapes all beyond ASCII
        if style == "json"
        else [
            _escape,
            structlog.dev.ConsoleRenderer(
                colors=terminal.is_terminal and not terminal.no_color,
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    )
    structlog.configure(
        processors=[
            *shared,
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        # A line below the level costs next to nothing: a worker has one at the level debug for each skip.
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        cache_logger_on_first_use=True,
    )
    handler = _StandardError(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            # Format tracebacks as text: a renderer's own traceback shows local variables, which hold private data.
            foreign_pre_chain=[*shared, structlog.processors.format_exc_info],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    handler.addFilter(LimitedLines(libraries=NOISY_LOGGERS))
    # What libraries and asyncio log would go to standard error in a form of their own.
    others = logging.getLogger()
    others.handlers = [*(each for each in others.handlers if not isinstance(each, _StandardError)), handler]
    root = logging.getLogger("graphweft")
    root.handlers = [handler]
    root.setLevel(level.upper())
    root.propagate = False
