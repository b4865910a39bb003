"""How much of a partition each app takes: a value that a worker counts and keeps in a record on the bus.

The log is counted in pages of consecutive entries. A page that is trimmed counts no more; one that is trimmed in part
counts in part, so the bytes of an app are approximate. Pages are joined when there are many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pydantic_core import from_json, to_json

from graphweft_workers.ports.offsets import is_after

PAGE: Final = 1_000
"""Entries of a new page."""
_MOST_PAGES: Final = 32
_MOST_COUNTS: Final = 20_000
"""Numbers in all pages: a record must fit into one message of the bus."""
WINDOW_S: Final = 10
_WINDOWS: Final = 6
RECENT_S: Final = WINDOW_S * _WINDOWS
"""The time over which events per second are counted."""


@dataclass(slots=True)
class AppLoad:
    """Events of an app, and the bytes of their entries."""

    events: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphMeasure:
    """What a graph had at a time, in seconds since 1970."""

    names: int
    """Names of properties."""
    memory: int
    """Bytes."""
    time: int

    def equals(self, other: GraphMeasure | None) -> bool:
        """Return whether the graph had the same at another time."""
        return other is not None and (self.names, self.memory) == (other.names, other.memory)


@dataclass(slots=True)
class _Page:
    start: int
    """Number of the entries of the partition before it."""
    end: int
    sizes: Counter[str] = field(default_factory=Counter[str])

    def cut(self, trimmed: int) -> None:
        """Forget the entries up to a number: their share of the bytes, as their sizes are not known."""
        if trimmed > self.start:
            share = (self.end - trimmed) / (self.end - self.start)
            self.sizes = Counter({app_id: kept for app_id, size in self.sizes.items() if (kept := round(size * share))})
            self.start = trimmed


@dataclass(slots=True, kw_only=True)
class PartitionUsage:
    """The counts of one partition."""

    end: int = 0
    """The number of entries up to which the partition is counted."""
    trimmed: int = 0
    """Entries that the bus no longer holds."""
    graphs: dict[str, GraphMeasure] = field(default_factory=dict[str, GraphMeasure])
    """By app: what its graph had last."""
    without_payload: Counter[str] = field(default_factory=Counter[str])
    """By app: dead letters that were kept without their event, because of the quota."""
    copies: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """By app: the copies of its events, and the offset of the last one."""
    _pages: list[_Page] = field(default_factory=list[_Page])
    _windows: dict[int, Counter[str]] = field(default_factory=dict[int, Counter[str]])
    """By number of the window: the events of each app."""

    def add(self, loads: Mapping[str, AppLoad], start: int, end: int, now: float) -> bool:
        """Count a range of entries, given by the numbers of entries before and up to it. Return whether it is new.

        A range that ends where the counts already are was counted before, by this worker or another.
        """
        if end <= self.end:
            return False
        if not self._pages or self._pages[-1].end - self._pages[-1].start >= PAGE:
            self._pages.append(_Page(max(start, self.end), end))
        page = self._pages[-1]
        self.end = page.end = end
        window = self._windows.setdefault(int(now) // WINDOW_S, Counter())
        for app_id, load in loads.items():
            page.sizes[app_id] += load.size
            window[app_id] += load.events
        self._join()
        return True

    def add_copies(self, copied: Iterable[tuple[str, str]]) -> bool:
        """Count copies by app and offset, in the order of their apps. Return whether any was not counted before."""
        changed = False
        for app_id, offset in copied:
            number, last = self.copies.get(app_id, (0, ""))
            if is_after(offset, last):
                self.copies[app_id] = (number + 1, offset)
                changed = True
        while len(self.copies) > _MOST_COUNTS // 2:
            del self.copies[next(iter(self.copies))]
        return changed

    def set_trimmed(self, trimmed: int) -> bool:
        """Drop what is trimmed. Return whether anything has changed."""
        changed = trimmed != self.trimmed
        self.trimmed = trimmed
        if changed:
            self._pages = [page for page in self._pages if page.end > trimmed]
            if self._pages:
                self._pages[0].cut(trimmed)
        return changed

    def stored(self) -> Counter[str]:
        """Return about how many bytes of each app the bus holds."""
        found: Counter[str] = Counter()
        for page in self._pages:
            found.update(page.sizes)
        return found

    def recent(self, now: float) -> Counter[str]:
        """Return the events of each app in about the last minute."""
        found: Counter[str] = Counter()
        for number, window in self._windows.items():
            if int(now) // WINDOW_S - _WINDOWS < number <= int(now) // WINDOW_S:
                found.update(window)
        return found

    def encode(self, now: float) -> bytes:
        """Return the record."""
        oldest = int(now) // WINDOW_S - _WINDOWS
        self._windows = {number: window for number, window in self._windows.items() if number > oldest}
        return to_json(
            {
                "end": self.end,
                "trimmed": self.trimmed,
                "pages": [[page.start, page.end, page.sizes] for page in self._pages],
                "windows": list(self._windows.items()),
                "graphs": {app_id: [each.names, each.memory, each.time] for app_id, each in self.graphs.items()},
                "without_payload": self.without_payload,
                "copies": self.copies,
            }
        )

    @classmethod
    def decode(cls, record: bytes) -> Self:
        """Return the counts of a record. Raises ``ValueError`` for anything else."""
        raw: Any = from_json(record)
        try:
            return cls(
                end=int(raw["end"]),
                trimmed=int(raw["trimmed"]),
                graphs={str(app_id): _measured(*each) for app_id, each in raw.get("graphs", {}).items()},
                without_payload=_counts(raw["without_payload"]),
                copies={str(app): (int(number), str(last)) for app, (number, last) in raw.get("copies", {}).items()},
                _pages=[_Page(int(start), int(end), _counts(sizes)) for start, end, sizes in raw["pages"]],
                _windows={int(number): _counts(window) for number, window in raw["windows"]},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("the value is not a record of usage") from error

    def _join(self) -> None:
        """Join pages until there are few: always the two neighbours that hold the fewest entries together."""
        while len(self._pages) > 2 and (
            len(self._pages) > _MOST_PAGES or sum(len(page.sizes) for page in self._pages) > _MOST_COUNTS
        ):
            pairs = range(len(self._pages) - 2)  # the last page is still being filled
            at = min(pairs, key=lambda number: self._pages[number + 1].end - self._pages[number].start)
            first, second = self._pages[at], self._pages[at + 1]
            first.sizes.update(second.sizes)
            first.end = second.end
            del self._pages[at + 1]


def _measured(names: Any, memory: Any, time: Any) -> GraphMeasure:
    return GraphMeasure(names=int(names), memory=int(memory), time=int(time))


def _counts(raw: Any) -> Counter[str]:
    return Counter({str(name): int(number) for name, number in raw.items()})


def loads_of(events: Iterable[tuple[str, int]]) -> dict[str, AppLoad]:
    """Return the load of each app from the apps and the sizes of entries."""
    found: dict[str, AppLoad] = {}
    for app_id, size in events:
        load = found.get(app_id)
        if load is None:
            load = found[app_id] = AppLoad()
        load.events += 1
        load.size += size
    return found
