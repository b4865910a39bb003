"""Reads ranges of the log in turns: other partitions, leases and health checks run between two turns.

A turn is a few events. How long one event may take is bounded elsewhere: by the limits of terms and of conditions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.active_rules import RulesCursor
from graphweft_workers.engine.duplicates import RecentEvents
from graphweft_workers.engine.passed_over import NOTHING, PassedOver
from graphweft_workers.engine.read import Decoded, Range, decode_range, match_range
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.timing import TIMING

TURN_BYTES: Final = 64 * 1024
"""Limit of bytes of a turn, unless it is one event."""
TURN_EVENTS: Final = 50


async def decode_in_turns(
    entries: Sequence[Entry], rules: RulesCursor, *, turns: TurnClock | None = None
) -> list[Decoded]:
    """Return the same as ``decode_range``."""
    found: list[Decoded] = []
    turns = turns or TurnClock()
    start = 0
    for end in _turns(sum(map(len, entry.fields.values())) for entry in entries):
        found += decode_range(entries[start:end], rules)
        start = end
        await turns.rest()
    return found


async def match_in_turns(
    partition: int,
    entries: Sequence[Decoded],
    recent: RecentEvents,
    *,
    only: str | None = None,
    without: Collection[str] = (),
    passed_over: PassedOver = NOTHING,
    turns: TurnClock | None = None,
) -> Range:
    """Return the same as ``match_range``."""
    found = Range()
    turns = turns or TurnClock()
    start = 0
    for end in _turns(each.size for each in entries):
        some = entries[start:end]
        match_range(partition, some, recent, only=only, without=without, passed_over=passed_over, into=found)
        start = end
        await turns.rest()
    return found


def _turns(sizes: Iterable[int]) -> Iterator[int]:
    """Yield where each turn ends, given the bytes of entries."""
    start = at = size = 0
    for more in sizes:
        if at - start == TURN_EVENTS or (size + more > TURN_BYTES and at > start):
            yield at
            start, size = at, 0
        size += more
        at += 1
    if at > start:
        yield at


class TurnClock:
    """Gives the event loop a turn when the last one was long ago."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, turn_s: float = TIMING.turn_s) -> None:
        self._clock = clock
        self._turn_s = turn_s
        self._since = clock.monotonic()

    async def rest(self) -> None:
        """Let others run if it is time."""
        if self._clock.monotonic() > self._since + self._turn_s:
            await asyncio.sleep(0)
            self._since = self._clock.monotonic()
