"""Numbers by which a source tells its events apart, so that a copy is known however many events lie between.

The attribute ``sequence`` of an event is the number of the event in its source, or ``NAME/NUMBER`` in the series
``NAME``. A series belongs to an app. Within a series a number is never given to another event, and the numbers rise in
the log: an event may come at most a window (see ``duplicates``) of its app later than one with a higher number. Gaps
are allowed. Retries are not numbered: they are events of their own.

An event has no effect if its number is not above the mark of its series: the highest number among the entries that have
left the window of the app. So within the window, identities decide in whatever order the numbers come.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from pydantic_core import from_json, to_json

from graphweft_contracts import Event, wire
from graphweft_workers.ports.event_decoder import PlainEvent
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.offsets import is_after

MOST_SERIES: Final = 1_000
"""Of one app in a partition; beyond that, those whose last event is the oldest are forgotten."""
_DIGITS: Final = 18
_LONGEST: Final = 256
_BLOCK: Final = 500
"""Numbered entries that became part of the marks and are kept as one."""
_DIGEST: Final = 9
_NEVER: Final = str(2**64 - 1)
"""An offset that no entry has."""


class SeriesPlace(NamedTuple):
    """The place of an event in its series."""

    series: str
    number: int


def number_of(entry: Entry, event: Event | PlainEvent) -> SeriesPlace | None:
    """Return the place of the event of an entry in its series; None without a number, and for a retry."""
    text = event.sequence
    if text is None or wire.RETRY in entry.fields:
        return None
    name, slash, digits = text.rpartition("/")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > _DIGITS or len(name) > _LONGEST:
        return None
    # A digest: names may be long, and the source of an event may name a person.
    of = f"/{name}" if slash else f" {event.source}"
    return SeriesPlace(hashlib.blake2b(of.encode(), digest_size=_DIGEST).hexdigest(), int(digits))


@dataclass(slots=True)
class _Block:
    """Numbered entries in the order of the log."""

    first: str
    """The offset of the first one."""
    index: int
    """The number of the last one among the entries of the app."""
    last: str
    highest: dict[str, int]
    """By series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMarks:
    """The marks of an app at a position of its partition: a function of the log up to there."""

    floor: str
    """The position. A reader that begins before it must not use the marks."""
    marks: Mapping[str, int]
    """By series, in the order of their last entries: the marks, or lower ones."""
    rest: Mapping[str, int] = field(default_factory=dict[str, int])
    """The highest numbers of the other entries up to ``floor``."""
    first: str = ""
    """The offset of the first numbered entry that ``marks`` lack; empty if they have all that the reader had read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppRecord:
    """What is stored about an app: the marks at the last position, and at the one before that.

    It is stored before the position is committed. So one of the two is right for a reader that begins where the last
    one stopped, wherever that was interrupted.
    """

    app_id: str
    last: StoredMarks
    before: StoredMarks | None = None

    @classmethod
    def of_changed_log(cls, app_id: str) -> Self:
        """Return the record that fits no position: the log has changed, and who needs marks reads the numbers in it."""
        return cls(app_id=app_id, last=StoredMarks(floor=_NEVER, marks={}))

    @property
    def is_of_changed_log(self) -> bool:
        """Whether it was made by ``of_changed_log``."""
        return self.last.floor == _NEVER

    def at(self, offset: str) -> StoredMarks | None:
        """Return the marks for a reader that begins after an offset; None if neither fits."""
        for marks in (self.last, self.before):
            if marks is not None and not is_after(marks.floor, offset):
                return marks
        return None

    def encode(self) -> bytes:
        """Return the record as ``decode`` reads it."""
        return to_json([self.app_id, *map(_plain, (self.last, self.before))])

    @classmethod
    def decode(cls, record: bytes) -> Self:
        """Return the record that ``encode`` wrote. Raises ``ValueError``."""
        try:
            app_id, last, before = from_json(record)
            read = _marks(last)
            assert read is not None
            return cls(app_id=str(app_id), last=read, before=_marks(before))
        except (TypeError, AttributeError, AssertionError) as error:
            raise ValueError("it is no record of marks") from error


def _plain(marks: StoredMarks | None) -> Any:
    return None if marks is None else [marks.floor, marks.marks, marks.rest, marks.first]


def _marks(read: Any) -> StoredMarks | None:
    if read is None:
        return None
    floor, marks, rest, first = read
    return StoredMarks(
        floor=str(floor), first=str(first),
        marks={str(name): int(number) for name, number in marks.items()},
        rest={str(name): int(number) for name, number in rest.items()},
    )  # fmt: skip


class SeriesMarks:
    """The marks of the series of one app in one partition, and the numbers of the entries in its window."""

    __slots__ = ("_in_window", "_is_stored", "_latest", "_left", "_settled", "_stored_at", "marks")

    def __init__(self, marks: Mapping[str, int] | None = None) -> None:
        self.marks: dict[str, int] = dict(marks or {})
        """By series; that with the oldest last entry comes first."""
        self._in_window: deque[tuple[int, str, SeriesPlace]] = deque()
        """Number among the entries of the app, offset, place in the series."""
        self._left: deque[_Block] = deque()
        """Entries that have left the window of the reader, but perhaps not that of its position."""
        self._settled: dict[str, int] = dict(marks or {})
        """The marks at the last position for which they were stored."""
        self._latest = ""
        """The series of the last entry that has left the window."""
        self._stored_at = 0
        """Entries of the app before the marks were last stored."""
        self._is_stored = False
        """Whether all numbered entries were part of the marks then, and none has come since."""

    def is_below(self, place: SeriesPlace) -> bool:
        """Tell whether the series is past a number."""
        return place.number <= self.marks.get(place.series, -1)

    def add(self, index: int, offset: str, place: SeriesPlace) -> None:
        """Add the next numbered entry of the app, which is number ``index`` of its entries."""
        self._in_window.append((index, offset, place))
        self._is_stored = False

    def is_due(self, seen: int, least: int) -> bool:
        """Tell whether to store the marks, at least so many entries of the app after the last time."""
        return not self._is_stored and seen - self._stored_at >= least

    def leave(self, index: int) -> None:
        """Note that entry ``index`` of the app has left the window."""
        if not self._in_window or self._in_window[0][0] != index:
            return
        _, offset, place = self._in_window.popleft()
        block = self._left[-1] if self._left else None
        if block is None or block.index // _BLOCK != index // _BLOCK:
            block = _Block(offset, index, offset, {})
            self._left.append(block)
        block.index, block.last = index, offset
        series, number = place
        if series == self._latest and series in block.highest:  # nearly always: it is the last one in both
            self.marks[series] = max(number, self.marks[series])
            block.highest[series] = max(number, block.highest[series])
        else:
            self._latest = series
            raise_marks(self.marks, (place,))
            raise_marks(block.highest, (place,))

    def stored(self, floor: str, settled: int, seen: int) -> StoredMarks:
        """Return the marks at a position, when the reader has read ``seen`` entries of the app.

        Those up to number ``settled`` had left its window at the position. Positions must not go back.
        """
        while self._left and self._left[0].index <= settled:
            raise_marks(self._settled, self._left.popleft().highest.items())
        rest: dict[str, int] = {}
        for block in self._left:
            if is_after(block.last, floor):
                break
            raise_marks(rest, block.highest.items())
        for _, offset, place in self._in_window:
            if is_after(offset, floor):
                break
            raise_marks(rest, (place,))
        first = self._left[0].first if self._left else self._in_window[0][1] if self._in_window else ""
        self._stored_at, self._is_stored = seen, not first
        return StoredMarks(floor=floor, marks=dict(self._settled), rest=rest, first=first)


def raise_marks(marks: dict[str, int], numbers: Iterable[tuple[str, int]]) -> None:
    """Raise marks to numbers of entries that follow in the log; the oldest series go where there are too many."""
    for series, number in numbers:
        marks[series] = max(number, marks.pop(series, -1))
        if len(marks) > MOST_SERIES:
            del marks[next(iter(marks))]
