"""Reading one's own writes: waits until an app's graph holds the effect of an event."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

from graphweft_contracts import BusUnavailable, GraphUnavailable, InvalidEvent, QueryFailed, wire
from graphweft_rules import Ruleset
from graphweft_workers.bus.log import Bus, Entry
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.versions import Version, Versions

_FIRST_PAUSE_S: Final = 0.002
_LAST_PAUSE_S: Final = 0.02
_MOST: Final = 100
"""Events in front of a position that are looked at."""
_PAGE: Final = 10
"""Events that are read at once: each may have a megabyte."""
_TURN_S: Final = 0.001
"""How long events are decoded, in 50 us each if they are small, before others have their turn."""
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
                if int(number) >= count:  # it may have been added
                    count = await self.bus.partitions(fresh=True)
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
                count, known = await self._changing(app_id, position, done, most=1)
                look.changes = count > 0 or not known
                look.holds = not look.changes
        except (BusUnavailable, TimeoutError):
            return

    async def _count(self, app_id: str, position: Position, marked: str) -> int:
        if self._looks.locked():
            return 1
        try:
            async with self._looks, asyncio.timeout(_LOOK_S):
                done = await self._done(position.partition, marked)
                count, _ = await self._changing(app_id, position, done, most=_MOST)
                return max(1, count)
        except (BusUnavailable, TimeoutError):
            return 1

    async def _done(self, partition: int, marked: str) -> str:
        """Return the offset up to which everything has taken effect in the app's graph."""
        committed = (await self.bus.committed(partition)).offset
        return committed if self.bus.is_after(committed, marked) else marked

    async def _changing(self, app_id: str, position: Position, done: str, *, most: int) -> tuple[int, bool]:
        """Return how many events behind ``done`` change the app's graph, up to ``most``, and whether all are known."""
        count = looked = 0
        there = False
        turn_at = time.monotonic()
        async with contextlib.aclosing(self._back(position)) as entries:
            async for entry in entries:
                # Where the event itself is not, the log was trimmed or made anew, and says nothing.
                there = there or entry.offset == position.offset
                if not self.bus.is_after(entry.offset, done):
                    return count, there
                looked += 1
                count += self._changes(app_id, entry)
                if count == most:
                    return count, there
                if time.monotonic() > turn_at + _TURN_S:
                    await asyncio.sleep(0)
                    turn_at = time.monotonic()
        return count, there and looked < _MOST

    async def _back(self, position: Position) -> AsyncGenerator[Entry]:
        """Give the last entries up to a position, from it back."""
        last = ""
        given = 0
        while given < _MOST:
            page = await self.bus.before(position.partition, last or position.offset, limit=_PAGE)
            entries = [entry for entry in page if entry.offset != last]
            if not entries:
                return
            for entry in reversed(entries[given - _MOST :]):
                yield entry
            given += len(entries)
            last = entries[0].offset

    def _changes(self, app_id: str, entry: Entry) -> bool:
        try:
            event = wire.decode(entry.fields, received=entry.received)
        except InvalidEvent:
            return False
        if event.appid != app_id:
            return False
        return wire.RETRY in entry.fields or bool(self.rules.match_event(event).mutations)
