"""The apps of one partition. Each has a queue of its own, so a slow or failing app does not hold up the others.

A queue applies its events in order, several batches together if they have piled up. The partition gives the next batch
when an app of the last one is done. It waits a little for an app that is half a batch of events behind:
others would take the server from it. If too many events pile up for an app that is slow, it is *parked*: its events are
dropped from memory and read from the log again when the queue reaches them.

The position that may be committed is the smallest one of all queues.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from typing import Final

from graphweft_contracts import GraphUnavailable
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.apply.app_queue import REREAD_EVENTS, AppQueue, QueuedBatch, State, size_of
from graphweft_workers.engine.apply.app_troubles import TROUBLES, AppTroubles, QueueWriter
from graphweft_workers.engine.apply.applied_metrics import count_applied
from graphweft_workers.engine.failures.skips import Skips
from graphweft_workers.engine.log.read import LoggedEvent, Skip
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.position_note import MOST_PARKED, ParkedApp, PositionNote
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.tasks import is_being_cancelled
from graphweft_workers.support.timing import TIMING, QueueTiming

logger = get_logger("graphweft.mutation")

_APPS_AT_ONCE: Final = 16
_WAITING_BYTES: Final = 16 * 1024**2
"""Of the events that wait in queues; beyond that, or beyond one batch of events, the partition waits.

It parks an app only if those that wait for slow apps are as many."""
_MOST_QUEUES: Final = 10_000
"""Queues to keep; beyond that idle ones are forgotten, with their checkpoints."""


class AppQueues:
    """The queues of one leased partition.

    ``settle`` raises a failure that concerns more than one app; the queues must then be made anew.
    """

    def __init__(
        self,
        writer: QueueWriter,
        *,
        run: str,
        check: Callable[[], Awaitable[str]],
        skips: Skips,
        position: CommittedPosition,
        before: PositionNote,
        progressed: Callable[[], None],
        apps_at_once: int = _APPS_AT_ONCE,
        clock: Clock = SYSTEM_CLOCK,
        timing: QueueTiming = TIMING.queues,
    ) -> None:
        """``run`` is the run of the graph server that ``check`` returned when the partition was opened.

        ``position`` is where reading begins; ``before`` is the note of the partition's last owner.
        ``progressed`` is called when ``floor`` may have moved, and when all are idle again. ``apps_at_once`` limits the
        graphs of the partition that are written at the same time, slow ones not counted.
        """
        self._writer = writer
        self._number = writer.number
        self._skips = skips
        self._before = before
        self._progressed = progressed
        self._clock = clock
        self._timing = timing
        self._queues: dict[str, AppQueue] = {}
        self._busy: dict[str, AppQueue] = {}
        """Checked with every batch, and usually few, while ``_queues`` may hold thousands."""
        self._begun: list[AppQueue] = []
        """Those that were idle when they got events of the last batch."""
        self._given_at = 0.0
        self._events = 0
        """Events that were given to all apps."""
        self._slots = asyncio.Semaphore(apps_at_once)
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._closed = False
        self._troubles = AppTroubles(
            writer, before, run=run, check=check, given=self._given_to, changed=self._changed.set, clock=clock,
            timing=timing,
        )  # fmt: skip
        self._reached: dict[str, str] = {}
        self.given: CommittedPosition = position
        """All events up to this position are in the queues, or were."""

    @property
    def parked(self) -> frozenset[str]:
        """Apps that take no events now: they read them again later."""
        return frozenset(queue.app_id for queue in self._busy.values() if queue.is_parked)

    @property
    def are_idle(self) -> bool:
        """Whether no app has events that have not taken effect, and none has failed."""
        return not self._busy and self._failure is None

    @property
    def floor(self) -> CommittedPosition:
        """The position up to which all events took effect."""
        return self.floor_without(frozenset())

    def floor_without(self, apps: Collection[str]) -> CommittedPosition:
        """Return the position up to which all events took effect in other apps than ``apps``."""
        floor = self.given
        for queue in self._busy.values():
            own = queue.floor if queue.app_id not in apps else None
            if own is not None and is_after(floor.offset, own.offset):
                floor = own
        return floor

    @property
    def again(self) -> str:
        """Up to this offset, events may take effect again: the graph of an app was older than it was."""
        return self._troubles.again

    def take_reached(self) -> dict[str, str]:
        """Return, by app, the offsets that checkpoints have reached since the last call."""
        reached, self._reached = self._reached, {}
        return reached

    def is_busy(self, app_id: str) -> bool:
        """Tell whether an app has events that have not taken effect."""
        return app_id in self._busy

    def status(self) -> dict[str, ParkedApp]:
        """Return the apps that are behind the others, and how far."""
        now = self._clock.monotonic()
        shown = ((queue.app_id, queue.shown(now)) for queue in self._busy.values())
        found = {app_id: each for app_id, each in shown if each is not None}
        if len(found) > MOST_PARKED:  # parked apps first; ``reported_without`` covers those that do not fit
            found = dict(sorted(found.items(), key=lambda item: item[1].reported is None)[:MOST_PARKED])
        return found

    def reported_without(self, apps: Collection[str]) -> str:
        """Return the offset up to which the skips and dead letters of other apps than ``apps`` are written."""
        reported = self.given.offset
        for queue in self._busy.values():
            if queue.is_parked:
                own = queue.reported_of_parked if queue.app_id not in apps else reported
            else:  # skips are counted after the events beside them
                counts_later = any(batch.skips for batch in (*queue.applying, *queue.waiting))
                own = (queue.floor or self.given).offset if counts_later else reported
            if is_after(reported, own):
                reported = own
        return reported

    def give(
        self,
        events: Mapping[str, Sequence[LoggedEvent]],
        skips: Mapping[str, Sequence[Skip]],
        end: CommittedPosition,
        ends: Mapping[str, CommittedPosition],
        without: Set[str] = frozenset(),
    ) -> None:
        """Queue the events of a batch, and the skips beside them.

        With the batch, all entries up to ``end`` were given, and those of single apps up to ``ends``.
        ``without`` are the apps that were parked when the batch was matched or its skips were counted. All of them
        read the batch again, even if they have caught up since, and so does an app that was parked since.
        """
        self._given_at = self._clock.monotonic()
        before, self._events = self._events, self._events + sum(map(len, events.values()))
        for app_id in without:
            self.park(app_id)
        for app_id in dict.fromkeys((*events, *skips)):
            queue = self._queue(app_id)
            if not queue.is_parked:
                if not queue.is_busy:
                    self._begun.append(queue)
                own, skipped = events.get(app_id, ()), skips.get(app_id, ())
                size = sum([each.size for each in own]) + size_of(each.entry for each in skipped)
                queue.give(QueuedBatch(start=self._given_to(queue), events=own, skips=skipped, size=size), before)
                self._start(queue)
            queue.taken = ends.get(app_id, queue.taken)
        for app_id in without:
            queue = self._queue(app_id)
            queue.taken = ends.get(app_id, queue.taken)
        self.given = end
        if len(self._queues) > _MOST_QUEUES:
            self._queues = dict(self._busy)

    def park(self, app_id: str) -> None:
        """Park an app: it reads again the events that it has not begun with, and the next batch."""
        queue = self._queue(app_id)
        if not queue.is_parked:
            queue.park(self._given_to(queue), self._before.reported_of(app_id), self._events)
            self._start(queue)

    async def read_again(self, app_id: str, offset: str) -> None:
        """Let an app that has nothing to do read all its events again: its graph stands at an offset, see ``lost``."""
        await self._writer.older.pass_over_as_lived()
        queue = self._queue(app_id)
        if queue.is_busy or self._closed:
            return
        self._writer.forget(app_id)
        queue.park(self._given_to(queue), self._before.reported_of(app_id), self._events)
        self._troubles.begin_again(queue, self._writer.older.lost(app_id, offset))
        self._start(queue)

    def park_dear(self, app_id: str) -> None:
        """Park an app whose events take much of the worker's time."""
        queue = self._queue(app_id)
        if not queue.is_parked:
            queue.park_dear(self._given_to(queue), self._before.reported_of(app_id), self._events)
            self._log_parked(queue, "it goes on at a pace of its own")
            self._changed.set()
            self._start(queue)

    async def settle(self) -> None:
        """Return when the next batch may be given.

        That is when an app of the last batch is done, or none is to be waited for, and not too many events wait.
        """
        while True:
            self._changed.clear()
            if self._failure is not None:
                raise self._failure
            due = self._due(self._clock.monotonic())
            if due is None:
                self._begun.clear()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.001, due - self._clock.monotonic())):
                    await self._changed.wait()

    async def drain(self) -> None:
        """Wait up to 10 s for the queues that are not slow; the next owner continues with the rest."""
        now = self._clock.monotonic()
        tasks = [queue.task for queue in self._busy.values() if queue.task is not None and not queue.is_apart(now)]
        if tasks and self._failure is None:
            await asyncio.wait(tasks, timeout=self._timing.drain_s)

    async def aclose(self) -> None:
        """Cancel all work; the graphs' checkpoints say how far it got."""
        self._closed = True
        tasks = [queue.task for queue in self._busy.values() if queue.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _queue(self, app_id: str) -> AppQueue:
        queue = self._queues.get(app_id)
        if queue is None:
            queue = AppQueue(app_id=app_id, slots=self._slots, clock=self._clock, timing=self._timing)
            self._queues[app_id] = queue
        return queue

    def _given_to(self, queue: AppQueue) -> CommittedPosition:
        """Return the position up to which the app's events were given to its queue."""
        taken = queue.taken
        return taken if taken is not None and is_after(taken.offset, self.given.offset) else self.given

    def _start(self, queue: AppQueue) -> None:
        self._busy[queue.app_id] = queue
        if queue.task is None:
            queue.task = asyncio.create_task(self._run(queue), name=f"app-{self._number}-{queue.app_id}")

    def _due(self, now: float) -> float | None:
        """Return the time of the next check; None when nothing is to be waited for."""
        busy = [queue for queue in self._busy.values() if queue.is_busy]
        for queue in busy:
            queue.look(now)
        slow = [queue for queue in busy if queue.is_slow]
        while self._are_full(slow):
            longest = max(
                slow, key=lambda each: (each.waiting_bytes >= _WAITING_BYTES, each.waiting_events, each.waiting_bytes)
            )
            if not longest.is_stuck(now) or len(self.parked) >= MOST_PARKED:
                return max(now + self._timing.batch_s, longest.busy_since + self._timing.park_s)
            self.park(longest.app_id)
            self._log_parked(longest, "its events are read again when its graph has caught up")
        if self._are_full(busy):
            return now + self._timing.batch_s
        far = self._events - self._writer.state.batch_events // 2
        behind = [queue for queue in busy if queue.given_before <= far and queue.state is State.APPLYING]
        if behind:
            return min(queue.busy_since for queue in behind) + self._timing.batch_s
        if not self._begun:
            paced = self._given_at + self._timing.pace_s
            return paced if busy and now < paced else None
        if not all(queue.is_busy for queue in self._begun):
            return None
        dues = [
            (now if queue.state is State.WAITING else queue.busy_since) + self._timing.batch_s
            for queue in self._begun
            if not queue.is_slow
        ]
        return min(dues, default=None)

    def _log_parked(self, queue: AppQueue, message: str) -> None:
        log = logger.warning if len(self._queues) > 1 else logger.info  # alone, it is only busy
        log(
            "app_parked", partition=self._number, app_id=queue.app_id, why=queue.why,
            message=f"other apps go on beside this one; {message}",
        )  # fmt: skip

    def _are_full(self, queues: Sequence[AppQueue]) -> bool:
        """Tell whether as many events wait in queues as may wait together."""
        return (
            sum(queue.waiting_events for queue in queues) >= self._writer.state.batch_events
            or sum(queue.waiting_bytes for queue in queues) >= _WAITING_BYTES
        )

    async def _run(self, queue: AppQueue) -> None:
        try:
            while queue.is_busy:
                await queue.wait_for_slot()
                try:
                    await self._take(queue)
                    if queue.applying:
                        await self._apply(queue)
                    self._done(queue)
                except TROUBLES as error:
                    await self._troubles.meet(queue, error)
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            self._failure = self._failure or GraphUnavailable("the graph's driver cancelled a pending call")
        except BaseException as error:  # noqa: BLE001 - ``settle`` raises it, in the partition's own task
            self._failure = self._failure or error
        finally:
            queue.leave_slot()
            queue.task = None
            if not queue.is_busy:
                self._busy.pop(queue.app_id, None)
                if self.are_idle:
                    self._progressed()
            self._changed.set()

    async def _take(self, queue: AppQueue) -> None:
        """Take the next events in hand, unless the last ones failed and are to be tried again."""
        if queue.applying:
            return
        if queue.parking is None:
            queue.take()
        else:
            # Alone it may read as many as a batch has: it was parked to let others pass, and there are none.
            alone = len(self._busy) == 1
            queue.parking.most = max(REREAD_EVENTS, self._writer.state.batch_events) if alone else REREAD_EVENTS
            queue.take_page(await self._writer.parked.reread(queue.app_id, queue.parking, self._given_to(queue)))

    async def _apply(self, queue: AppQueue) -> None:
        events = [event for batch in queue.applying for event in batch.events]
        if not events:  # what a parked app has read again may be skips alone
            return
        reached = await self._writer.apply(queue.app_id, events)
        if reached is not None:
            self._reached[queue.app_id] = reached.offset

    def _done(self, queue: AppQueue) -> None:
        """Go on behind the events in hand, which have taken effect."""
        floor, troubled = queue.floor, queue.behind_since or queue.is_parked
        for skip in (each for batch in queue.applying for each in batch.skips):
            self._skips.add(skip)
        self._writer.state.strikes.forget(self._number, queue.app_id)
        count_applied(queue, self._clock)
        if (effects := self._writer.state.effects) is not None:
            effects.applied(self._number, queue.app_id, (batch.events for batch in queue.applying))
        if queue.done(self._given_to(queue), self._events):
            logger.info("app_caught_up", partition=self._number, app_id=queue.app_id)
        self._changed.set()
        is_last = len(self._busy) == 1 and not queue.is_busy  # then ``_run`` tells, when it has left
        if not is_last and (troubled or self._was_lowest(floor)):
            self._progressed()

    def _was_lowest(self, floor: CommittedPosition | None) -> bool:
        """Tell whether no app is behind a floor that one of them had, nor the reader: else that of all has not moved.

        Most apps of a batch are above it. Those with trouble have positions of their own in the note, so they do not
        count.
        """
        if floor is None:
            return True
        if not is_after(self.given.offset, floor.offset):
            return False
        others = (queue.floor for queue in self._busy.values() if not queue.is_parked and not queue.behind_since)
        return all(own is None or is_after(own.offset, floor.offset) for own in others)
