"""Limits log lines that a peer can cause at will, or that an outage repeats, so that they cannot flood the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Sequence
from typing import Any, Final, cast, override

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.support.timing import TIMING

_KINDS: Final = 100
_DIGITS: Final = re.compile(r"\d+")


class LogLimit:
    """Admits one line of each kind a minute, and lines of at most 100 kinds; counts the others."""

    def __init__(self, *, every_s: float = TIMING.log_s, kinds: int = _KINDS, clock: Clock = SYSTEM_CLOCK) -> None:
        self._every_s = every_s
        self._kinds = kinds
        self._clock = clock
        self._since: dict[Hashable, float] = {}
        self._left_out: dict[Hashable, int] = {}
        self._others = 0
        """Lines of kinds beyond the limit."""

    def admit(self, kind: Hashable) -> int | None:
        """Return how many lines of a kind were left out before this one; None: leave this one out, too."""
        now = self._clock.monotonic()
        since = self._since.get(kind)
        if since is not None and now - since < self._every_s:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return None
        if since is None and len(self._since) >= self._kinds:
            self._since = {each: at for each, at in self._since.items() if now - at < self._every_s}
            if len(self._since) >= self._kinds:
                self._others += 1
                return None
        self._since[kind] = now
        return self._left_out.pop(kind, 0)

    def warn(self, logger: Any, event: str, error: Exception, **fields: object) -> None:
        """Log a warning with the text of an error; at level debug if one of its kind was logged in the last minute.

        Its kind is the event and the text of the error without numbers, whatever the other fields are.
        """
        left_out = self.admit((event, _DIGITS.sub("0", str(error))))
        if left_out is None:
            logger.debug(event, error=str(error), **fields)
        else:
            logger.warning(event, error=str(error), **fields, **({"left_out": left_out} if left_out else {}))

    def take_left_out(self) -> int:
        """Return how many lines were left out and not yet reported, and forget the number."""
        left_out = sum(self._left_out.values()) + self._others
        self._left_out.clear()
        self._others = 0
        return left_out


class LimitedLines(logging.Filter):
    """A filter for lines that unknown peers can cause, and for those of libraries that repeat them in an outage.

    The kind is the event of an entry of ours, and the text before its arguments are put in of others.
    """

    def __init__(self, limit: LogLimit | None = None, *, libraries: Sequence[str] = ()) -> None:
        """Errors always pass. With ``libraries``, lines of these are limited, errors too, and no others."""
        super().__init__()
        self._limit = limit or LogLimit()
        self._libraries = frozenset(libraries)

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if self._libraries:
            if record.name.partition(".")[0] not in self._libraries:
                return True
        elif record.levelno >= logging.ERROR:
            return True
        given: Any = record.msg
        # Entries of structlog's loggers have their fields here.
        fields = cast("dict[str, Any]", given) if isinstance(given, dict) else None
        left_out = self._limit.admit((record.name, str(record.msg if fields is None else fields["event"])))
        if left_out is None:
            return False
        if left_out and fields is not None:
            record.msg = {**fields, "left_out": left_out}
        elif left_out:
            record.msg = f"{record.getMessage()} ({left_out:,} lines of this kind were left out before)"
            record.args = None
        return True
