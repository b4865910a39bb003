"""Putting many events on the bus, through its outages, without losing or doubling one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import batched
from typing import Final

from graphweft.transport import Outgoing, Transport
from graphweft_contracts import BusUnavailable, Event, wire
from graphweft_workers.bus.log import Bus, PartitionStatus
from graphweft_workers.mutation.duplicates import WINDOW

__all__ = ("Sent", "send", "wait_until_applied")

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
        for position in positions:
            partition, _, offset = position.partition(":")
            sent.last[int(partition)] = offset
            sent.counts[int(partition)] += 1
        sent.events += len(batch)
        on_progress(len(batch))
    return sent


async def wait_until_applied(
    bus: Bus, last: dict[int, str], *, timeout_s: float | None = None, on_lag: Callable[[int], None] = lambda _: None
) -> bool:
    """Wait, through outages, until every partition is committed up to ``last``; False after ``timeout_s``."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            status = await bus.status()
        except BusUnavailable:
            status = _UNKNOWN
        if status:
            on_lag(sum(partition.lag for partition in status))
            behind = (bus.is_after(last[part.id], part.position) for part in status if part.id in last)
            if not any(behind):
                return True
        if until is not None and time.monotonic() > until:
            return False
        await asyncio.sleep(_POLL_S)


def _again(sent: Sent) -> str:
    if not sent.events:
        return "it is safe to run again"
    if sent.repeatable:
        return f"it is safe to run again until a partition has got {WINDOW:,} newer entries"
    return (
        f"send only what comes behind them: events that have {WINDOW:,} newer ones in their partition would count twice"
    )
