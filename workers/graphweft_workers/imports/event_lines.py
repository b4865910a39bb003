"""Events in files: one CloudEvent as JSON on each line. Lines that are invalid are counted and reported by kind."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, BinaryIO, Final

from graphweft.transport import MAX_EVENT_BYTES, Outgoing, check_sizes
from graphweft_contracts import Event, InvalidEvent, MalformedEvent, wire
from graphweft_contracts.admission import decode_given, hints_of
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.plurals import counted

MOST_FAULTS: Final = 1_000
"""After as many invalid lines, the rest of a file is not read."""
_DIGITS: Final = re.compile(r"\d+")
_LARGE: Final = MAX_EVENT_BYTES // 4
"""Bytes of a line whose event may be too large: an event is written with other escapes and spaces than its line."""
_MOST_NAMES: Final = 1_000
LONGEST_LINE: Final = 16_000_000
"""Bytes of a line: more than an event can have, however its text is escaped."""


@dataclass(slots=True)
class LineFaults:
    """Counts invalid lines, and reports the first line of each kind of fault, for at most ``MOST_FAULTS`` kinds.

    Faults are of one kind if their texts differ in numbers only.
    """

    report: Callable[[InvalidEvent], None]
    hint: Callable[[str], None] = lambda _: None
    """Called once for each attribute or type of events that is probably misspelt."""
    count: int = 0
    of_form: bool = False
    """Whether a line was not a JSON object."""
    unreported: int = 0
    """Lines with a fault of a kind beyond the limit."""
    _kinds: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    """By kind: the place of the first line, and the number of lines."""
    _names: set[str] = field(default_factory=set[str])
    """Unknown attributes and types that were looked at."""

    def add(self, place: str, error: InvalidEvent) -> None:
        """Count the fault of a line, and report it if it is the first of its kind."""
        self.count += 1
        self.of_form = self.of_form or isinstance(error, MalformedEvent)
        text = str(error)
        kind = _DIGITS.sub("0", text)
        if kind not in self._kinds and len(self._kinds) >= MOST_FAULTS:
            self.unreported += 1
            return
        first, number = self._kinds.get(kind, (place, 0))
        self._kinds[kind] = (first, number + 1)
        if not number:
            self.report(InvalidEvent(f"{place}: {text}"))

    def report_repeats(self) -> None:
        """Report of each kind with several lines how many there are."""
        for place, number in self._kinds.values():
            if number > 1:
                self.report(InvalidEvent(f"{place}: {number:,} lines have this fault; this is the first"))
        if self.unreported:
            self.report(InvalidEvent(f"and {counted(self.unreported, 'line')} with other faults"))

    def text(self, one: str, several: str) -> str:
        """Return how many there are, or at least are if ``MOST_FAULTS`` ended the reading."""
        return ("at least " if self.count == MOST_FAULTS else "") + counted(self.count, one, several)

    def look_at(self, place: str, event: Event) -> None:
        """Give a hint at what is probably misspelt in an event: an attribute, or the type."""
        for _, hint in hints_of(event, self._names, most=_MOST_NAMES):
            self.hint(f"{place}: {hint}")


def values_of_lines[Value](
    lines: Iterable[tuple[int, bytes]],
    name: str,
    faults: LineFaults,
    decode: Callable[[bytes], Value],
    *,
    most: int | None = MOST_FAULTS,
) -> Iterator[tuple[str, Value]]:
    """Yield the place and the value of each numbered line that is not empty. It ends after ``most`` faults.

    A line for which ``decode`` raises ``InvalidEvent`` is added to ``faults``.
    """
    for number, raw in lines:
        line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        if not line.strip():
            continue
        try:
            value = decode(line)
        except InvalidEvent as error:
            faults.add(f"{name}:{number}", error)
            if faults.count == most:
                return
        else:
            yield f"{name}:{number}", value


def events_of_lines(
    lines: Iterable[tuple[int, bytes]], name: str, faults: LineFaults, *, most: int | None = MOST_FAULTS
) -> Iterator[Event]:
    """Yield the events of numbered lines; add those that are invalid to ``faults``. It ends after ``most`` faults."""
    for place, event in values_of_lines(lines, name, faults, _event, most=most):
        faults.look_at(place, event)
        yield event


def events_of_file(name: str, faults: LineFaults) -> Iterator[Event]:
    """Yield the events of a file. Raises ``InvalidEvent`` as ``open_file`` and ``checked`` do."""
    with open_file(name) as stream:
        yield from checked(events_of_lines(numbered_lines(stream, name), name, faults), name, faults)


def checked(events: Iterable[Event], name: str, faults: LineFaults) -> Iterator[Event]:
    """Yield the events of a file; raise ``InvalidEvent`` at its end if lines were invalid, or there is no event."""
    found = False
    for event in events:
        found = True
        yield event
    if faults.count:
        faults.report_repeats()
        raise InvalidEvent(f"{name}: {faults.text('event is invalid: correct it', 'events are invalid: correct them')}")
    if not found:
        raise InvalidEvent(f"{name}: it holds no event")


def _event(line: bytes) -> Event:
    # CloudEvents makes the time optional; the time of an event without one is now.
    event = decode_given(line, SYSTEM_CLOCK.now())
    if len(line) > _LARGE:
        check_sizes([Outgoing(key=event.key, fields=wire.encode(event))])
    return event


def open_file(name: str) -> BinaryIO:
    """Open a file of events. Raises ``InvalidEvent`` if that fails."""
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise InvalidEvent(f"{name}: {error.strerror}") from error


def numbered_lines(stream: IO[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers, from 1.

    Raises ``InvalidEvent`` at a line without an end, and if the file cannot be read.
    """
    for number in count(1):
        try:
            line = stream.readline(LONGEST_LINE + 1)
        except OSError as error:
            raise InvalidEvent(f"{name}: {error.strerror}") from error
        check_length(line, name, number)
        if not line:
            return
        yield number, line


def check_length(line: bytes, name: str, number: int, *, before: str = "") -> None:
    """Raise ``InvalidEvent`` for a line that is too long; ``before`` says what became of those before it."""
    if len(line) > LONGEST_LINE:
        raise InvalidEvent(
            f"{name}:{number}: the line has more than {LONGEST_LINE:,} bytes, and an event has at most "
            f"{MAX_EVENT_BYTES:,}; {before}pass one event on each line"
        )
