"""Reads ranges of the log in turns: other partitions, leases and health checks run between two turns.

A turn ends with the event after which its time is over. How long one event may take is bounded elsewhere: by the limits
of terms and of conditions. An event that may take longer than a turn is matched in a thread: the loop runs between two
of its conditions.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Final

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.active_rules import RulesCursor
from graphweft_workers.engine.app_costs import AppCosts
from graphweft_workers.engine.duplicates import RecentEvents
from graphweft_workers.engine.passed_over import NOTHING, PassedOver
from graphweft_workers.engine.read import Decoded, Range, decode_range, match_range
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.timing import TIMING

LARGE: Final = 16 * 1024
"""Bytes of an event that is matched in a thread: what its conditions, terms and facts take follows its contents."""


async def decode_in_turns(
    entries: Sequence[Entry], rules: RulesCursor, *, turns: TurnClock | None = None
) -> list[Decoded]:
    """Return the same as ``decode_range``."""
    found: list[Decoded] = []
    turns = turns or TurnClock()
    left = deque(entries)
    while left:
        found += decode_range(turns.one(left), rules)
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
    costs: AppCosts | None = None,
) -> Range:
    """Return the same as ``match_range``.

    With ``costs``, apps are charged for the time of their events, and those that have taken too much are left out from
    then on: see ``Range.dear``.
    """
    found = Range()
    turns = turns or TurnClock()
    out = {*without}
    matching = partial(
        match_range, partition, recent=recent, only=only, without=out, passed_over=passed_over, into=found
    )

    def leave_out(left: Iterable[Decoded]) -> None:
        if costs is not None and (over := costs.over()):
            dear = {each.event.appid for each in left if each.event is not None and each.event.appid in over} - out
            found.dear.update(dear)
            out.update(dear)

    def may_take_long(each: Decoded) -> bool:
        event = each.event
        if each.size > LARGE:
            return True
        if event is None or each.rules is None or event.appid in out or only not in (None, event.appid):
            return False
        return each.rules.may_take_long(event, each.size)

    for is_long, some in groupby(entries, may_take_long):
        left = deque(some)
        while left:
            leave_out(left)
            turn = turns.one(left, costs)
            if is_long:
                await _aside(partial(matching, turn))
            else:
                matching(turn)
            await turns.rest()
    return found


async def _aside(work: Callable[[], object]) -> None:
    """Do work in a thread; if it is cancelled, wait for its end, because it changes what its caller has."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class TurnClock:
    """Gives the event loop a turn when the last one was long ago."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, turn_s: float = TIMING.turn_s) -> None:
        self._clock = clock
        self._turn_s = turn_s
        self._since = clock.monotonic()

    def one[T: Entry | Decoded](self, left: deque[T], costs: AppCosts | None = None) -> Iterator[T]:
        """Take from the left until the turn is over: the clock is read after each, which takes 0.1 us.

        ``costs`` are told of events that take long.
        """
        monotonic, end = self._clock.monotonic, self._since + self._turn_s
        least_s = math.inf if costs is None else costs.least_s
        now = monotonic()
        while left:
            each = left.popleft()
            yield each
            before, now = now, monotonic()
            if now - before >= least_s and costs is not None and isinstance(each, Decoded) and each.event is not None:
                costs.charge(each.event.appid, now - before)
            if now > end:
                return

    async def rest(self) -> None:
        """Let others run if it is time."""
        if self._clock.monotonic() > self._since + self._turn_s:
            await asyncio.sleep(0)
            self._since = self._clock.monotonic()
