"""Putting many events on the bus, through its outages, without losing or doubling one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import batched
from typing import Final

from graphweft.transport import Outgoing, Transport
from graphweft_contracts import BusUnavailable, DeadLetter, Event, wire
from graphweft_workers.bus.log import Bus, PartitionStatus
from graphweft_workers.dead_letter_counts import SKIPS, Cause, count_causes
from graphweft_workers.mutation.duplicates import WINDOW
from graphweft_workers.mutation.history import copies
from graphweft_workers.mutation.position_note import PositionNote

_BATCH: Final = 500
_RETRY_S: Final = 0.5
_POLL_S: Final = 0.05
_UNKNOWN: Final[tuple[PartitionStatus, ...]] = ()


@dataclass(slots=True)
class Sent:
    """How many events the bus has, and for each partition that got some the last offset and their number."""

    events: int = 0
    last: dict[int, str] = field(default_factory=dict[int, str])
    counts: Counter[int] = field(default_factory=Counter[int])
    apps: set[str] = field(default_factory=set[str])
    positions: set[str] | None = None
    """`partition:offset` of every event, where somebody wants to know what became of each."""

    @property
    def repeatable(self) -> bool:
        """Whether all of these can be sent again now and have no effect: workers know the first copies yet."""
        return max(self.counts.values(), default=0) <= WINDOW


async def send(
    transport: Transport,
    events: Iterable[Event],
    *,
    sent: Sent | None = None,
    give_up_s: float | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
    on_outage: Callable[[BusUnavailable], None] = lambda _: None,
) -> Sent:
    """Append all events in order. A batch whose answer was lost is appended again: workers drop second copies.

    ``sent`` is what an earlier call returned, where this one carries on.
    Keeps trying through an outage; raises ``BusUnavailable`` when one lasts longer than ``give_up_s``.
    """
    sent = sent or Sent()
    for batch in batched(events, _BATCH):
        outgoing = [Outgoing(key=event.key, fields=wire.encode(event)) for event in batch]
        away_since: float | None = None
        while True:
            try:
                positions = await transport.append(outgoing)
                break
            except BusUnavailable as error:
                now = time.monotonic()
                if away_since is None:
                    away_since = now
                    on_outage(error)
                if give_up_s is not None and now - away_since >= give_up_s:
                    raise BusUnavailable(f"{error} (sent before: {sent.events} events; {_again(sent)})") from error
                await asyncio.sleep(_RETRY_S)
        sent.apps.update(event.appid for event in batch)
        if sent.positions is not None:
            sent.positions.update(positions)
        for position in positions:
            partition, _, offset = position.partition(":")
            sent.last[int(partition)] = offset
            sent.counts[int(partition)] += 1
        sent.events += len(batch)
        on_progress(len(batch))
    return sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of events: each counts once, as the worst that happened to any of its mutations."""

    applied: int
    """Everything that the rules say of the event is in the graph, which may be nothing."""
    skipped: int
    """A value, or the rules, were missing for at least one mutation."""
    dead_lettered: int
    """At least one mutation failed, or the event as a whole."""
    repeated: int = 0
    """The bus had them before, so they have no effect again, whatever became of the first copies."""
    causes: Sequence[Cause] = ()

    @property
    def complete(self) -> bool:
        """Whether all events that the bus did not have before were applied."""
        return not self.skipped and not self.dead_lettered


async def outcome_of(bus: Bus, sent: Sent) -> Outcome:
    """Return, through outages, what became of events that the workers are done with, by the dead letters."""
    while True:
        try:
            return await _outcome_of(bus, sent)
        except BusUnavailable:
            await asyncio.sleep(_POLL_S)


async def _outcome_of(bus: Bus, sent: Sent) -> Outcome:
    assert sent.positions is not None
    skipped: set[str] = set()
    failed: set[str] = set()
    mine: list[DeadLetter] = []
    count = await bus.dead_letter_count()
    for letter in await bus.dead_letters(limit=count) if count else ():
        if letter.reason == "trimmed":  # it stands in front of what it tells of
            continue
        offsets = letter.offsets or (letter.offset,)
        hit = [place for offset in offsets if (place := f"{letter.partition}:{offset}") in sent.positions]
        if hit:
            (skipped if letter.reason in SKIPS else failed).update(hit)
            only = tuple(place.partition(":")[2] for place in hit)
            mine.append(letter.of_entries(only) if letter.offsets else letter)
    skipped -= failed
    repeated = await _repeated(bus, sent) - skipped - failed
    return Outcome(
        applied=sent.events - len(skipped) - len(failed) - len(repeated),
        skipped=len(skipped),
        dead_lettered=len(failed),
        repeated=len(repeated),
        causes=count_causes(mine),
    )


async def _repeated(bus: Bus, sent: Sent) -> set[str]:
    """Return where events stand that the workers pass over, since they know them already."""
    assert sent.positions is not None
    mine: dict[int, list[str]] = {}
    for place in sent.positions:
        name, _, at = place.partition(":")
        mine.setdefault(int(name), []).append(at)
    found: set[str] = set()
    for partition, offsets in mine.items():
        first = last = offsets[0]
        for offset in offsets:
            first = offset if bus.is_after(first, offset) else first
            last = offset if bus.is_after(offset, last) else last
        found.update([f"{partition}:{offset}" async for offset in copies(bus, partition, first, last)])
    return found & sent.positions


async def wait_until_applied(
    bus: Bus,
    last: dict[int, str],
    *,
    apps: Iterable[str] | None = None,
    timeout_s: float | None = None,
    on_lag: Callable[[int], None] = lambda _: None,
) -> bool:
    """Wait, through outages, until every partition is committed up to ``last``; False after ``timeout_s``.

    ``apps`` are the apps of the events: others that are parked are not waited for.
    """
    mine = None if apps is None else frozenset(apps)
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            status = await bus.status()
        except BusUnavailable:
            status = _UNKNOWN
        if status:
            on_lag(sum(partition.lag for partition in status))
            behind = (bus.is_after(last[part.id], _done(bus, part, mine)) for part in status if part.id in last)
            if not any(behind):
                return True
        if until is not None and time.monotonic() > until:
            return False
        await asyncio.sleep(_POLL_S)


def _done(bus: Bus, partition: PartitionStatus, apps: Set[str] | None) -> str:
    """Return up to where the events of these apps took effect."""
    note = PositionNote.decode(partition.note)
    if apps is None or not note.parked or not apps.isdisjoint(note.parked):
        return partition.position
    return note.done if bus.is_after(note.done, partition.position) else partition.position


def _again(sent: Sent) -> str:
    if not sent.events:
        return "it is safe to run again"
    if sent.repeatable:
        return f"it is safe to run again until a partition has got {WINDOW:,} newer entries"
    return (
        f"send only what comes behind them: events that have {WINDOW:,} newer ones in their partition would count twice"
    )
