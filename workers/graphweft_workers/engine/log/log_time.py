"""The time by which something may be done for good: the clock of this host alone may be wrong.

What a job forgets is in the log, so no later clock brings it back.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from graphweft_contracts import Transient
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.bus import Bus

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0


class ClocksDiffer(Transient):
    """The clocks of this host and of the bus differ, so nobody knows which one is wrong."""


async def log_time(bus: Bus, *, skew_s: float, clock: Clock = SYSTEM_CLOCK) -> datetime:
    """Return a time that is past by the clock of this host and by that of the bus.

    If the bus does not tell its time, it is at most ``skew_s`` after the newest entry of the log: a log that nobody
    writes to stands still. Raises ``ClocksDiffer`` if the clocks differ by more than ``skew_s``, and
    ``BusUnavailable``.
    """
    own = clock.now()
    if bus.time is not None:
        told = await bus.time()
        if abs(told - own) > timedelta(seconds=skew_s):
            raise _differ(own, "the bus", told)
        return min(own, told)
    newest = _EPOCH  # nothing is as old, if no entry is left
    for each in await bus.partitions.status():
        for entry in await bus.log.before(each.id, each.end, limit=1):
            newest = max(newest, entry.received)
    if newest - own > timedelta(seconds=skew_s):
        raise _differ(own, "the newest entry of the log", newest)
    return min(own, newest + timedelta(seconds=skew_s))


def _differ(own: datetime, other: str, told: datetime) -> ClocksDiffer:
    ahead_s = (own - told).total_seconds()
    return ClocksDiffer(
        f"the clock of this host is {_span(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} {other} "
        f"({own:%Y-%m-%d %H:%MZ}, and {told:%Y-%m-%d %H:%MZ}): synchronize the clocks by NTP. Until then, no memory is "
        "forgotten by its age",
        retry_after_s=5.0,
    )


def _span(seconds: float) -> str:
    for unit_s, unit in ((_DAY_S, "days"), (_HOUR_S, "hours")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 60:.0f} minutes"
