"""The progress of a replay on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.output import stderr

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_workers.replay.replay import ReplayStep

_TELL_S: Final = 2.0

type Tell = Callable[[Mapping[Any, ReplayStep]], None]


class ReplayProgress:
    """The progress of one replay. ``total`` is the number of entries to read; None if it is unknown."""

    def __init__(self, title: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.total: int | None = None
        self._clock = clock
        self.title = title
        self._began: float | None = None  # of the first batch: some work comes before it
        self._last = 0.0

    def line(self, done: Mapping[Any, ReplayStep], now: float) -> str:
        """Return the progress as one line."""
        entries, events = counts(done)
        rate = entries / max(now - (self._began or 0.0), 0.001)
        read = f"{counted(entries, 'entry')} read, {counted(events, 'event')} applied"
        text = f"{self.title}: {read}, {rate:,.0f} entries/s"
        if not self.total:
            return text
        left_s = max(0, self.total - entries) / rate if rate else 0.0
        return f"{text}, {min(1.0, entries / self.total):.0%}, {timedelta(seconds=round(left_s))} left"

    def tell(self, done: Mapping[Any, ReplayStep]) -> None:
        """Print the progress, every two seconds."""
        now = self._clock.monotonic()
        if self._began is None:
            self._began = self._last = now
        if now - self._last >= _TELL_S:
            self._last = now
            sys.stderr.write(self.line(done, now) + "\n")
            sys.stderr.flush()


def counts(done: Mapping[Any, ReplayStep]) -> tuple[int, int]:
    """Return the numbers of entries that were read and of events that were applied."""
    return sum(each.entries for each in done.values()), sum(each.events for each in done.values())


@contextmanager
def replay_progress(title: str, *, clock: Clock = SYSTEM_CLOCK) -> Generator[tuple[Tell, Callable[[int | None], None]]]:
    """Yield a function that shows the progress, and one that sets the number of entries to read."""
    lines = ReplayProgress(title, clock=clock)

    def expect(total: int | None) -> None:
        lines.total = total

    if not stderr().is_terminal:
        yield lines.tell, expect
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TextColumn("{task.completed:,} entries", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr(), transient=True) as progress:
        task = progress.add_task(title, total=None)

        def tell(done: Mapping[Any, ReplayStep]) -> None:
            progress.update(task, completed=counts(done)[0], total=lines.total)

        yield tell, expect
