"""Reading one's own writes: waits until an app's graph holds the effect of an event."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from graphweft_contracts import BusUnavailable, GraphUnavailable, InvalidEvent, QueryFailed, wire
from graphweft_rules import Ruleset
from graphweft_workers.bus.log import Bus, Entry
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.versions import Version, Versions

__all__ = ("InvalidPosition", "Position", "Positions", "Reached")

_FIRST_PAUSE_S: Final = 0.002
_LAST_PAUSE_S: Final = 0.02
_MOST: Final = 100
"""Events in front of a position that are looked at."""
_CHUNK: Final = 10
"""Events that are decoded, in 50 us each, before others have their turn."""
_LOOKS: Final = 8
"""Looks at the log under way at once; a request beyond that goes by the marks alone."""
_LOOK_S: Final = 1.0


class InvalidPosition(ValueError):
    """The position cannot be one of this bus; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place on the bus."""

    partition: int
    offset: str


@dataclass(slots=True, kw_only=True)
class Reached:
    """How waiting ended."""

    version: Version | None
    """The last that was read; None when there was none."""
    behind: asyncio.Task[int] | None = None
    """None: the graph holds all. Else counts the events up to the position that it did not hold yet, at least 1."""


@dataclass(slots=True, kw_only=True)
class _Look:
    """What the log says of a position."""

    holds: bool = False
    """Nothing up to the position is still to change the app's graph."""
    changes: bool = False
    """Some event does, if it has not yet; this never turns."""


@dataclass(slots=True)
class Positions:
    """Knows where events stand, and whether graphs hold them.

    A graph's mark moves with the events that change it. So the log tells, too: an event that changes nothing, and one
    that the workers have committed without a mark (a copy, one that went to the dead letters), is waited for in vain.
    """

    bus: Bus
    versions: Versions
    rules: Ruleset
    background: Background
    _looks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_LOOKS))

    async def read(self, text: str, until: float) -> Position:
        """Return the position that a client names. Raises ``InvalidPosition``.

        It is not known to be one of the bus when the bus does not say so by the monotonic time ``until``.
        """
        number, _, offset = text.partition(":")
        try:
            self.bus.is_after(offset, "")
        except ValueError:
            raise InvalidPosition(f"{text!r} is no position on this bus: give one as `emit` returned it") from None
        with contextlib.suppress(BusUnavailable, TimeoutError):
            async with asyncio.timeout(until - time.monotonic()):
                count = await self.bus.partitions()
            if int(number) >= count:
                raise InvalidPosition(f"{text!r} names partition {number}, and the bus has {count}, from 0 on")
        return Position(partition=int(number), offset=offset)

    async def reach(self, app_id: str, position: Position, until: float) -> Reached:
        """Wait until the app's graph holds everything up to ``position``, to the monotonic time ``until`` at most."""
        version: Version | None = None
        look = _Look()
        looking: asyncio.Task[None] | None = None
        reached_at: float | None = None
        pause_s = _FIRST_PAUSE_S
        settle_s = self.versions.graph.settle_s
        while True:
            holds = look.holds  # before the version is read, which then is of a graph that holds all
            reading = self.versions.read(app_id)
            await asyncio.wait([reading], timeout=max(0.0, until - time.monotonic()))
            if not reading.done():
                break
            try:
                version = reading.result()
            except (GraphUnavailable, QueryFailed, asyncio.CancelledError):
                break
            if holds:
                return Reached(version=version)
            mark = version.marks.get(position.partition)
            now = time.monotonic()
            if mark is not None and not self.bus.is_after(position.offset, mark.offset):
                reached_at = reached_at or now
                if settle_s == 0 or now >= min(reached_at, version.seen) + settle_s:
                    return Reached(version=version)
            if now >= until:
                break
            if looking is None or looking.done():
                # A mark that may be seen before its effects is no proof; what is committed has taken effect.
                marked = mark.offset if mark and settle_s == 0 else ""
                looking = self.background.start(self._look(app_id, position, marked, look))
            await asyncio.wait([looking], timeout=min(pause_s, until - now))
            if not look.holds and (rest_s := min(pause_s, until - time.monotonic())) > 0:
                await asyncio.sleep(rest_s)
            pause_s = min(pause_s * 1.5, _LAST_PAUSE_S)
        seen = version.marks.get(position.partition) if version else None
        return Reached(
            version=version, behind=self.background.start(self._count(app_id, position, seen.offset if seen else ""))
        )

    async def _look(self, app_id: str, position: Position, marked: str, look: _Look) -> None:
        """Ask the log; without an answer in time ``look`` stays as it is."""
        if self._looks.locked():
            return
        try:
            async with self._looks, asyncio.timeout(_LOOK_S):
                done = await self._done(position.partition, marked)
                if not self.bus.is_after(position.offset, done):
                    look.holds = True
                    return
                if look.changes:
                    return
                entries = await self.bus.before(position.partition, position.offset, limit=_MOST)
                # Where the event itself is not, the log was trimmed or made anew, and says nothing.
                look.changes = (
                    not entries
                    or entries[-1].offset != position.offset
                    or (len(entries) == _MOST and self.bus.is_after(entries[0].offset, done))
                    or await self._changing(app_id, entries, done, most=1) > 0
                )
                look.holds = not look.changes
        except (BusUnavailable, TimeoutError):
            return

    async def _count(self, app_id: str, position: Position, marked: str) -> int:
        if self._looks.locked():
            return 1
        try:
            async with self._looks, asyncio.timeout(_LOOK_S):
                done = await self._done(position.partition, marked)
                entries = await self.bus.before(position.partition, position.offset, limit=_MOST)
                return max(1, await self._changing(app_id, entries, done, most=_MOST))
        except (BusUnavailable, TimeoutError):
            return 1

    async def _done(self, partition: int, marked: str) -> str:
        """Return the offset up to which everything has taken effect in the app's graph."""
        committed = (await self.bus.committed(partition)).offset
        return committed if self.bus.is_after(committed, marked) else marked

    async def _changing(self, app_id: str, entries: Sequence[Entry], done: str, *, most: int) -> int:
        """Return how many of the entries behind ``done`` change the app's graph, from the last one back."""
        count = 0
        for number, entry in enumerate(reversed(entries), 1):
            if count == most or not self.bus.is_after(entry.offset, done):
                break
            count += self._changes(app_id, entry)
            if number % _CHUNK == 0:
                await asyncio.sleep(0)
        return count

    def _changes(self, app_id: str, entry: Entry) -> bool:
        try:
            event = wire.decode(entry.fields, received=entry.received)
        except InvalidEvent:
            return False
        if event.appid != app_id:
            return False
        return wire.RETRY in entry.fields or bool(self.rules.match_event(event).mutations)
