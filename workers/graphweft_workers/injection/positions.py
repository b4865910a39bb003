"""Read your own writes: waits until an app's graph holds the effects of an event."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Final

from graphweft_contracts import BusUnavailable, GraphUnavailable, InvalidEvent, QueryFailed, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.versions import GraphVersions, Version
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.offsets import is_after, later
from graphweft_workers.ports.pages import backwards
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.rule_sets.active_rules import ActiveRules
from graphweft_workers.rule_sets.lost_rules import MissingRules
from graphweft_workers.support.timing import TIMING, ContextTiming

_MOST: Final = 100
"""Events before a position that are examined."""
_PAGE: Final = 10
"""Events read at once: each may have a megabyte."""
_LOOKS: Final = 8
"""Reads of the log at the same time; further requests rely on the checkpoints alone."""


class InvalidPosition(ValueError):
    """The text is not a position on this bus; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position on the bus."""

    partition: int
    offset: str


@dataclass(slots=True, kw_only=True)
class WaitResult:
    """The result of a wait."""

    version: Version | None
    """The last version that was read, if any."""
    behind: asyncio.Task[int] | None = None
    """None if the graph holds all events up to the position; else a task that counts those it lacks, at least 1."""


@dataclass(slots=True, kw_only=True)
class _Look:
    """What the log says about a position."""

    holds: bool = False
    """No event up to the position will still change the app's graph."""
    changes: bool = False
    """Some event up to the position changes the app's graph, now or earlier; once true, always true."""


@dataclass(slots=True)
class Positions:
    """Waits for positions.

    A graph's checkpoint moves only with events that change the graph. Events that change nothing, copies and dead
    letters never move it, so the log and the committed position are read too.
    """

    bus: Bus
    versions: GraphVersions
    rules: ActiveRules
    background: Background
    clock: Clock = SYSTEM_CLOCK
    timing: ContextTiming = TIMING.context
    _looks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_LOOKS))

    async def read(self, text: str, until: float) -> Position:
        """Return the position that a client names. Raises ``InvalidPosition``.

        If the bus does not answer by the monotonic time ``until``, the partition is not checked.
        """
        number, _, offset = text.partition(":")
        if not self.bus.offsets.accepts(offset):
            raise InvalidPosition(f"invalid position {text!r}: pass a position that `emit` returned")
        with contextlib.suppress(BusUnavailable, TimeoutError):
            async with asyncio.timeout(until - self.clock.monotonic()):
                count = await self.bus.partitions.count()
                if int(number) >= count:  # it may be a new one
                    count = await self.bus.partitions.count(fresh=True)
            if int(number) >= count:
                raise InvalidPosition(f"invalid position {text!r}: the bus has the partitions 0 to {count - 1}")
        return Position(partition=int(number), offset=offset)

    async def reach(self, app_id: str, position: Position, until: float) -> WaitResult:
        """Wait until the app's graph holds all events up to ``position``, or until the monotonic time ``until``."""
        version: Version | None = None
        look = _Look()
        looking: asyncio.Task[None] | None = None
        reached_at: float | None = None
        pause_s = self.timing.first_step_s
        settle_s = self.versions.graph.settle_s
        while True:
            holds = look.holds  # taken before the version is read, so that version includes all events
            reading = self.versions.read(app_id)
            await asyncio.wait([reading], timeout=max(0.0, until - self.clock.monotonic()))
            if not reading.done():
                break
            try:
                version = reading.result()
            except (GraphUnavailable, QueryFailed, asyncio.CancelledError):
                break
            if holds:
                return WaitResult(version=version)
            checkpoint = version.checkpoints.get(position.partition)
            now = self.clock.monotonic()
            if checkpoint is not None and not is_after(position.offset, checkpoint.offset):
                reached_at = reached_at or now
                if settle_s == 0 or now >= min(reached_at, version.seen) + settle_s:
                    return WaitResult(version=version)
            if now >= until:
                break
            if looking is None or looking.done():
                # A checkpoint that may be seen before its effects proves nothing; committed events have taken effect.
                applied = checkpoint.offset if checkpoint and settle_s == 0 else ""
                looking = self.background.start(self._look(app_id, position, applied, look))
            await asyncio.wait([looking], timeout=min(pause_s, until - now))
            if not look.holds and (rest_s := min(pause_s, until - self.clock.monotonic())) > 0:
                await self.clock.sleep(rest_s)
            pause_s = min(pause_s * 1.5, self.timing.last_step_s)
        seen = version.checkpoints.get(position.partition) if version else None
        return WaitResult(
            version=version, behind=self.background.start(self._count(app_id, position, seen.offset if seen else ""))
        )

    async def _look(self, app_id: str, position: Position, applied: str, look: _Look) -> None:
        """Update ``look`` from the log; without an answer in time it stays as it is."""
        if self._looks.locked():
            return
        try:
            async with self._looks, asyncio.timeout(self.timing.log_s):
                done = await self._done(app_id, position.partition, applied)
                if not is_after(position.offset, done):
                    look.holds = True
                    return
                if look.changes:
                    return
                count, known = await self._changing(app_id, position, done, most=1)
                look.changes = count > 0 or not known
                look.holds = not look.changes
        except (BusUnavailable, TimeoutError):
            return

    async def _count(self, app_id: str, position: Position, applied: str) -> int:
        if self._looks.locked():
            return 1
        try:
            async with self._looks, asyncio.timeout(self.timing.log_s):
                done = await self._done(app_id, position.partition, applied)
                count, _ = await self._changing(app_id, position, done, most=_MOST)
                return max(1, count)
        except (BusUnavailable, TimeoutError):
            return 1

    async def _done(self, app_id: str, partition: int, applied: str) -> str:
        """Return the offset up to which all events have taken effect in the app's graph."""
        committed = await self.bus.partitions.committed(partition)
        return later(PositionNote.decode(committed.note).applied(committed.offset, (app_id,)), applied)

    async def _changing(self, app_id: str, position: Position, done: str, *, most: int) -> tuple[int, bool]:
        """Return how many events after ``done`` change the app's graph, up to ``most``, and whether all were read."""
        count = looked = 0
        there = False
        turn_at = self.clock.monotonic()
        back = backwards(self.bus.log, position.partition, position.offset, most=_PAGE)
        async with contextlib.aclosing(back) as entries:
            async for entry in entries:
                # Without the event itself, the log was trimmed or recreated, and proves nothing.
                there = there or entry.offset == position.offset
                if not is_after(entry.offset, done):
                    return count, there
                if looked == _MOST:
                    return count, False
                looked += 1
                count += await self._changes(app_id, entry)
                if count == most:
                    return count, there
                if self.clock.monotonic() > turn_at + self.timing.turn_s:
                    await asyncio.sleep(0)
                    turn_at = self.clock.monotonic()
        return count, there

    async def _changes(self, app_id: str, entry: Entry) -> bool:
        try:
            event = entry.event()
        except InvalidEvent:
            return False
        if event.appid != app_id:
            return False
        if wire.RETRY in entry.fields:
            return True
        rules = self.rules.current(app_id)
        if isinstance(rules, MissingRules):
            return True
        if event.workflow is not None and not rules.is_compiled(event.workflow):
            await asyncio.to_thread(rules.compile, [event.workflow])
        if rules.is_of_packs(event.type):  # the first event makes the mutations of its pack
            return bool((await asyncio.to_thread(rules.match_event, event)).mutations)
        return bool(rules.match_rules(event).mutations)
