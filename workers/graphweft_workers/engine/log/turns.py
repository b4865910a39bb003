"""Reads ranges of the log in turns: other partitions, leases and health checks run between two turns.

A turn ends with the event after which its time is over. How long one event may take is bounded elsewhere: by the limits
of terms and of conditions. An event that may take longer than a turn is matched in a thread: the loop runs between two
of its conditions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules import RuleSet
from graphweft_rules.matching.condition_cost import MOST_STEPS
from graphweft_rules.matching.workflow import Candidates
from graphweft_workers.engine.log.app_costs import AppCosts
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.effect_ledger import NOTHING, EffectLedger
from graphweft_workers.engine.log.read import LoggedEvent, Range, ReadEntry, VoidEntry, decode_range, match_range
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.rule_sets.active_rules import RulesCursor
from graphweft_workers.support.timing import TIMING

LARGE: Final = 16 * 1024
"""Bytes of an event that is matched in a thread: what its conditions, terms and facts take follows its contents."""


async def decode_in_turns(
    entries: Sequence[Entry], rules: RulesCursor, *, turns: TurnClock | None = None
) -> list[ReadEntry]:
    """Return the same as ``decode_range``."""
    found: list[ReadEntry] = []
    turns = turns or TurnClock()
    left = deque(entries)
    while left:
        found += decode_range(turns.one(left), rules)
        await turns.rest()
    return found


async def read_in_turns(
    partition: int,
    entries: Sequence[Entry],
    rules: RulesCursor,
    recent: RecentEvents,
    *,
    only: str | None = None,
    passed_over: EffectLedger = NOTHING,
) -> Range:
    """Return the same as ``read_range``."""
    decoded = await decode_in_turns(entries, rules)
    return await match_in_turns(partition, decoded, recent, only=only, passed_over=passed_over)


async def match_in_turns(
    partition: int,
    entries: Sequence[ReadEntry],
    recent: RecentEvents,
    *,
    only: str | None = None,
    without: Collection[str] = (),
    passed_over: EffectLedger = NOTHING,
    turns: TurnClock | None = None,
    costs: AppCosts | None = None,
    most_s: float | None = None,
) -> Range:
    """Return the same as ``match_range``; the workflows of the events are compiled first.

    With ``costs``, apps are charged for the time of their events. Of several apps, those that have taken too much are
    left out from then on, and those with an event that may take too much altogether: see ``Range.dear``. With
    ``most_s``, it ends with the entry with which so much time is over: see ``Range.entries``.
    """
    found = Range()
    out = {*without}
    events = [
        each for each in entries
        if isinstance(each, LoggedEvent) and each.plain.appid not in out and only in (None, each.plain.appid)
    ]  # fmt: skip
    await _look_up(events)
    largest = max(map(attrgetter("size"), entries), default=0)
    may_be_long = largest > LARGE or max(map(attrgetter("steps"), entries), default=0) > MOST_STEPS
    turns = turns or TurnClock()
    shared = costs if only is None else None
    matching = partial(
        match_range, partition, recent=recent, only=only, without=out, passed_over=passed_over, into=found
    )

    def leave_out(apps: Collection[str]) -> None:
        found.dear.update(apps)
        out.update(apps)

    if shared is not None and may_be_long:
        leave_out({
            each.plain.appid for each in events
            if each.steps > MOST_STEPS and shared.may_be_dear(each.plain.appid, each.steps)
        })  # fmt: skip

    def is_long(each: ReadEntry) -> bool:
        return each.size > LARGE or each.steps > MOST_STEPS

    for aside, some in groupby(entries, is_long) if may_be_long else [(False, entries)]:
        left = deque(some)
        while left:
            if most_s is not None and found.entries and turns.is_over(most_s):
                return found
            if shared is not None and (over := shared.over()):
                apps = {each.plain.appid for each in left if isinstance(each, LoggedEvent)}
                leave_out(apps.intersection(over) - out)
            turn = turns.one(left, costs)
            if aside:
                await _aside(partial(matching, turn))
            else:
                matching(turn)
            await turns.rest()
    return found


async def _look_up(events: Sequence[LoggedEvent]) -> None:
    """Look up the rules of events and the steps of their conditions.

    Workflows are compiled in a thread: one takes up to 0.1 s, and many would let the leases expire.
    """
    wanted: dict[RuleSet, set[str]] = {}
    for active, workflow in {(each.rules, each.plain.workflow) for each in events}:
        if workflow is not None and not active.is_compiled(workflow):
            wanted.setdefault(active, set()).add(workflow)
    for active, names in wanted.items():
        await asyncio.to_thread(active.compile, sorted(names))
    known: dict[tuple[RuleSet, str | None, str, str | None], Candidates] = {}
    for each in events:
        plain = each.plain
        kind = (each.rules, plain.workflow, plain.type, plain.agent)
        candidates = known.get(kind)
        if candidates is None:
            candidates = known[kind] = each.rules.candidates(plain)
        each.candidates = candidates
        if candidates.have_steps:
            each.steps = candidates.steps(each.size)


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
        self._begun = self._since = clock.monotonic()

    def is_over(self, seconds: float) -> bool:
        """Tell whether so much time has passed since the first turn began."""
        return self._clock.monotonic() - self._begun > seconds

    def one[T: Entry | LoggedEvent | VoidEntry](self, left: deque[T], costs: AppCosts | None = None) -> Iterator[T]:
        """Take from the left until the turn is over: the clock is read after each, which takes 0.1 us.

        ``costs`` are told of events that take long, or might have.
        """
        monotonic, end = self._clock.monotonic, self._since + self._turn_s
        begun = now = monotonic()
        cpu = 0.0 if costs is None else self._clock.cpu()
        while left:
            each = left.popleft()
            yield each
            before, now = now, monotonic()
            if costs is None or not isinstance(each, LoggedEvent):
                pass
            elif now - before >= costs.least_s or each.steps > MOST_STEPS:
                # Reading the time of the processor takes 1 us. What came before took no more than the clock says.
                last, cpu = cpu, self._clock.cpu()
                costs.charge(each.plain.appid, max(0.0, cpu - last - (before - begun)), each.steps)
                begun = now
            if now > end:
                return

    async def rest(self) -> None:
        """Let others run if it is time."""
        if self._clock.monotonic() > self._since + self._turn_s:
            await asyncio.sleep(0)
            self._since = self._clock.monotonic()
