"""Runs a job on the log: reads a partition in order, appends the job's events to the bus, then commits the position.

The position is committed only after the bus has confirmed the events. An interruption between the two repeats events
with equal ids: the mutation worker drops them as copies, or they set the same values again. A repeated dead letter
replaces the first one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import batched
from typing import Final, Self

from graphweft.tracing import with_trace
from graphweft.transport import Outgoing, Transport
from graphweft_contracts import BusUnavailable, DeadLetter, Event, InvalidEvent, PartitionRefused, Transient, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.job_progress import JobProgress, WaitingApp
from graphweft_workers.engine.log.duplicates import RecentEvents, identity_of
from graphweft_workers.engine.log.leases import LEASE_S, Lease, LeaseHolder
from graphweft_workers.engine.log.turns import TurnClock
from graphweft_workers.engine.usage.job_account import WHAT_WAITS, JobAccount, WaitKey
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.ports.job import AppWait, Job, JobEvent, JobOutcome, JobSkip
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.support.backoff import backoff_s
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, Timing
from graphweft_workers.telemetry import tracing_spans
from graphweft_workers.telemetry.metrics import BUS_DURATION, DEAD_LETTERS_WRITTEN, JOB_EVENTS

_BATCH_EVENTS: Final = 200
"""Also the most entries whose work is repeated after an interruption."""
_APPEND_AT_ONCE: Final = 100


class JobWorker:
    """Leases as many partitions as no other worker of the job's group holds; runs the job on them until ``stop``."""

    def __init__(
        self,
        bus: Bus,
        transport: Transport,
        job: Job,
        *,
        name: str,
        batch_events: int = _BATCH_EVENTS,
        lease_s: float = LEASE_S,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = TIMING,
    ) -> None:
        """``bus`` is open for ``job.group``. The worker closes none of its arguments."""
        self._bus = bus
        self._transport = transport
        self._job = job
        self._batch_events = batch_events
        self._clock = clock
        self._timing = timing.jobs
        self._logger = get_logger("graphweft.memory").bind(group=job.group)
        self._leases = LeaseHolder(
            bus, name=name, lease_s=lease_s, logger=self._logger, clock=clock, timing=timing.leases
        )
        self.account = JobAccount(bus.usage, job.group, name=name, logger=self._logger, clock=clock, timing=timing.jobs)
        """What the job waits for, and what it left out."""
        self._tick_at: dict[int, float] = {}
        """By partition: when its tick is due. One that comes back keeps its turn, and a new one has it at once."""
        self.emitted: int = 0
        """Events appended to the bus, repeated ones included."""

    @property
    def interrupted(self) -> Collection[int]:
        """See ``LeaseHolder.interrupted``."""
        return self._leases.interrupted

    def stop(self) -> None:
        """Make ``run`` return after the batch in hand, or after 5 s."""
        self._leases.stop()

    async def run(self) -> None:
        """Work until ``stop``. Waits while the bus, or a server that the job needs, is unavailable; raises defects."""
        if await self._leases.run(self._work):
            self._logger.info("worker_stopped", worker=self._leases.name, emitted=self.emitted)

    async def _work(self, lease: Lease) -> None:
        await self.account.begin()
        try:
            await self._work_on(lease)
        finally:
            keys: list[WaitKey] = [(lease.number, what) for what in WHAT_WAITS]
            await self.account.leaves(*keys)

    async def _work_on(self, lease: Lease) -> None:
        number = lease.number
        progress = JobProgress(await self._bus.partitions.committed(number))
        # A copy of an event from before the position is handled again; its results are copies too.
        recent = RecentEvents()
        await self._job.begin(number)
        tick_at, failed = self._tick_at.setdefault(number, self._clock.monotonic()), 0
        async with _Trial() as trial:
            while await lease.goes_on():
                left_s = tick_at - self._clock.monotonic() if self._job.tick_s else math.inf
                moved = await self._read_on(lease, progress, recent, trial, most_s=left_s)
                again = None if moved is None else await self._try_again(lease, progress, trial)
                if moved is None or again is None:
                    return
                if moved or again:
                    await self._bus.partitions.commit(number, progress.committed())
                    lease.progressed = True
                if self._job.tick_s and self._clock.monotonic() >= tick_at:
                    failed, wait_s = await self._tick(lease, failed)
                    tick_at = self._tick_at[number] = self._clock.monotonic() + wait_s

    async def _read_on(
        self, lease: Lease, progress: JobProgress, recent: RecentEvents, trial: _Trial, *, most_s: float
    ) -> bool | None:
        """Handle the next events of apps that do not wait. Return whether there were entries; None: see ``_handle``."""
        at, due = progress.position, progress.due()
        if trial.task is not None:
            most_s = min(most_s, self._timing.trial_look_s)
        elif due is not None:
            most_s = min(most_s, due[1].due - self._clock.monotonic())
        batch = await lease.read(at, limit=self._batch_events, most_s=most_s, quiet=True)
        await self._report_lost(lease.number, at, batch)
        seen = [
            each
            for each in await self._seen(lease.number, batch.entries, recent)
            if each.event.appid not in progress.waiting and not progress.is_done(each.event.appid, each.offset)
        ]
        end = _behind(at, batch)
        failed = await self._handle(lease, seen, progress, end)
        if failed is None:
            return None
        progress.position = end
        for app_id, error in failed.items():
            progress.waiting[app_id] = app = WaitingApp(
                at=at, end=end, seen=[each for each in seen if each.event.appid == app_id],
                since=int(self._clock.now().timestamp()),
            )  # fmt: skip
            await self._wait(lease.number, app, error)
        return bool(batch.lost or batch.entries or batch.stepped)

    async def _try_again(self, lease: Lease, progress: JobProgress, trial: _Trial) -> bool | None:
        """Handle events of the waiting app whose turn it is. Return whether they are done; None: see ``_handle``.

        A try that takes longer goes on beside the reads, for it may be a model that hangs. Its result counts at a later
        call, so that an app does not stop waiting while a batch without its events is in hand.
        """
        if trial.task is None:
            due = progress.due()
            if due is None or due[1].due > self._clock.monotonic():
                return False
            trial.app_id, app = due
            await self._read_again(lease.number, trial.app_id, app, progress)
            trial.task = asyncio.create_task(self._try(lease, app.seen, progress))
            await asyncio.wait([trial.task], timeout=self._timing.trial_look_s)
        if not trial.task.done():
            return False
        task, trial.task = trial.task, None
        failed, app_id = task.result(), trial.app_id
        if failed is None:
            return None
        if app_id in failed:
            await self._wait(lease.number, progress.waiting[app_id], failed[app_id])
            return False
        progress.go_on(app_id, self._clock.monotonic())
        if not progress.waiting:
            await self.account.goes_on((lease.number, "apps"))
        return True

    async def _read_again(self, number: int, app_id: str, app: WaitingApp, progress: JobProgress) -> None:
        """Read the next events of a waiting app, unless it has some in hand."""
        if app.seen:
            return
        limit = self._batch_events * len(progress.waiting)  # others' entries are among them
        batch = await self._bus.log.read(number, app.at, limit=limit)
        entries = [each for each in batch.entries if not is_after(each.offset, progress.position.offset)]
        await self._report_lost(number, app.at, batch, app_id)
        app.end = _behind(app.at, replace(batch, entries=entries)) if entries else progress.position
        app.seen = [
            each
            for each in await self._seen(number, entries, RecentEvents())
            if each.event.appid == app_id and not progress.is_done(app_id, each.offset)
        ]

    async def _wait(self, number: int, app: WaitingApp, error: Transient) -> None:
        app.attempt += 1
        wait_s = self._wait_s(error, app.attempt)
        app.due = self._clock.monotonic() + wait_s
        await self.account.waits((number, "apps"), error, wait_s)

    async def _report_lost(self, number: int, at: CommittedPosition, batch: Batch, app_id: str = "") -> None:
        if batch.lost:
            self._logger.error(
                "events_lost", partition=number, events=batch.lost, after=at.offset,
                message="the bus trimmed these events before they were read: their results are missing",
            )  # fmt: skip
            await self.account.skips(Counter({(app_id, "events_lost"): batch.lost}))

    async def _seen(self, number: int, entries: Iterable[Entry], recent: RecentEvents) -> list[JobEvent]:
        """Return the events for the job. The mutation worker reports entries that are not valid events."""
        found: list[JobEvent] = []
        turns = TurnClock(self._clock)
        for entry in entries:
            await turns.rest()
            try:
                event = entry.event()
                copy = recent.is_copy(identity_of(entry, event))
            except InvalidEvent:
                recent.is_copy(None)
                continue
            if event.type in self._job.types and not copy:
                position = f"{number}:{entry.offset}"
                retried = wire.retry_of(entry.fields)
                found.append(JobEvent(event=event, position=position, retried=retried, entry=entry))
        return found

    async def _handle(
        self, lease: Lease, seen: Sequence[JobEvent], progress: JobProgress, end: CommittedPosition
    ) -> Mapping[str, Transient] | None:
        """Run the job on events up to ``end``, again and again; return the apps for which it fails, with the reasons.

        They wait here for a moment, and for as long as no more apps may wait behind the position. If the job does not
        say for which app it fails, each is tried alone, in turn: if none goes on, all wait here for longer, because it
        is likely to be an outage. None if the events are left to the next owner.
        """
        key: WaitKey = (lease.number, "events")
        attempt, waited_s, together, others_go_on = 0, 0.0, True, len({each.event.appid for each in seen}) == 1
        failed: dict[str, Transient] = {}
        given = seen
        while given:
            found = await self._try(lease, given, progress)
            if found is None:
                return None
            for app_id in {each.event.appid for each in given}:
                failed.pop(app_id, None)
            failed |= found
            attempt = attempt + 1 if found else 0
            together = together and found.together
            others_go_on = others_go_on or together or not found
            if found:
                error = next(iter(found.values()))
                wait_s = self._wait_s(error, attempt)
                waited_s += wait_s
                most_s = self._timing.shown_s if others_go_on else self._timing.last_wait_s
                if waited_s >= most_s and progress.room(failed, end):
                    break
                await self.account.waits(key, error, wait_s)
                if await lease.finish(self._clock.sleep(wait_s)) is None:
                    return None
            in_turn = set(failed if together else [*failed][:1])
            given = [each for each in seen if each.event.appid in in_turn]
        if failed:
            await self.account.leaves(key)
        elif seen:
            await self.account.goes_on(key)
        return failed

    async def _try(self, lease: Lease, seen: Sequence[JobEvent], progress: JobProgress) -> _Failed | None:
        """Run the job once on those of the events that are not done; None if they are left to the next owner.

        An app whose results the bus has not taken yet gets a turn once it takes them.
        """
        failed = _Failed(progress.unsent)
        await self._leave_out_erased(lease.number, [each for each in seen if each.tried and not each.done])
        if all(each.done for each in seen) and progress.unsent.keys().isdisjoint(each.event.appid for each in seen):
            return failed
        try:
            with tracing_spans.handled(lease.number, self._job.group, seen):
                running = self._run(seen, failed)
                if await lease.finish(running, grace_s=self._timing.grace_s) is None:
                    return None
        except BusUnavailable:
            raise
        except Transient as error:
            failed.update((each.event.appid, error) for each in seen if not each.done)
            failed.together = False
        for each in seen:
            each.done |= each.event.appid not in failed
        return failed

    async def _run(self, seen: Sequence[JobEvent], failed: _Failed) -> None:
        for app_id in {each.event.appid for each in seen} & failed.unsent.keys():
            for event in failed.unsent.pop(app_id):  # each alone: those that are taken are not sent again
                await self._append([event], failed)
        seen = [each for each in seen if not each.done and each.event.appid not in failed]
        for each in seen:
            each.tried = True
        if seen:
            await self._append_all(self._job.handle(seen), failed)

    async def _leave_out_erased(self, number: int, seen: Sequence[JobEvent]) -> None:
        """Mark events as done of which the log holds no content any more: an erasure may not wait for a job."""
        if not seen:
            return
        entries = await self._bus.log.entries(number, [each.offset for each in seen])
        there = {entry.offset: entry.erased for entry in entries}
        for each in seen:
            each.done = there.get(each.offset, True)
        lost = Counter(each.event.appid for each in seen if each.offset not in there)
        if lost:
            self._logger.error(
                "events_lost", partition=number, events=lost.total(),
                message="they left the bus while the job waited, and no archive holds them: their results are missing",
            )  # fmt: skip
            await self.account.skips(Counter({(app_id, "events_lost"): events for app_id, events in lost.items()}))

    def _wait_s(self, error: Transient, attempt: int) -> float:
        """Return how long to wait after a failure: never less than the server asks for."""
        return backoff_s(error.retry_after_s, attempt, longest_s=self._timing.last_wait_s, spread=(1.0, 1.2))

    async def _tick(self, lease: Lease, failed: int) -> tuple[int, float]:
        """Run the job's tick, which has failed so many times in a row. Return that number, and when the next is due."""
        key: WaitKey = (lease.number, "tick")
        outcomes = self._job.tick(lease.number, await self._bus.partitions.count())
        try:
            await lease.finish(self._append_all(outcomes), grace_s=self._timing.grace_s)
        except BusUnavailable:
            raise
        except Transient as error:
            wait_s = backoff_s(error.retry_after_s, failed + 1, longest_s=self._timing.last_wait_s)
            wait_s = min(wait_s, self._job.tick_s)
            await self.account.waits(key, error, wait_s)
            return failed + 1, wait_s
        await self.account.leaves(key)
        return 0, self._job.tick_s

    async def _append_all(self, outcomes: AsyncGenerator[Sequence[JobOutcome]], failed: _Failed | None = None) -> None:
        """Put on the bus what a job yields; ``failed`` gets the apps that wait, and is None for a tick."""
        async with contextlib.aclosing(outcomes):
            async for each in outcomes:
                for events in batched((one for one in each if isinstance(one, Event)), _APPEND_AT_ONCE):
                    await self._append(events, failed)
                letters = [one for one in each if isinstance(one, DeadLetter)]
                if letters:
                    await self._bus.dead_letters.put(letters)
                for letter in letters:
                    DEAD_LETTERS_WRITTEN.add(1, letter.reason, app=letter.app_id or "")
                await self.account.skips(Counter((one.app_id, one.reason) for one in each if isinstance(one, JobSkip)))
                if failed is not None:
                    failed.update((one.app_id, one.error) for one in each if isinstance(one, AppWait))

    async def _append(self, events: Sequence[Event], failed: _Failed | None) -> None:
        """Append events to the bus; an event that the bus refuses is logged and dropped.

        If their partition takes none until it is mended, ``failed`` keeps them, so that no model is asked again, and
        gets their app. Later events of the app follow them. Without ``failed``, raises ``Transient``.
        """
        if failed is not None:
            for event in events:
                if event.appid in failed.unsent:
                    failed.unsent[event.appid].append(event)
            events = [event for event in events if event.appid not in failed.unsent]
        if not events:
            return
        try:
            outgoing = [Outgoing(key=event.key, fields=wire.encode(with_trace(event))) for event in events]
            with BUS_DURATION.timed("append", clock=self._clock):
                await self._transport.append(outgoing)
        except (InvalidEvent, PartitionRefused) as error:
            if len(events) > 1:  # append each alone to find the refused one
                for event in events:
                    await self._append([event], failed)
                return
            [event] = events
            if isinstance(error, InvalidEvent):
                self._logger.error("event_refused", event_id=event.id, event_type=event.type, error=str(error))
                await self.account.skips(Counter({(event.appid, "event_refused"): 1}))
                return
            refused = Transient(str(error), retry_after_s=self._timing.refused_s)
            if failed is None:
                raise refused from error
            failed[event.appid] = refused
            failed.unsent[event.appid] = [event]
            return
        self.emitted += len(events)
        JOB_EVENTS.add(len(events), self._job.group)


@dataclass(slots=True)
class _Trial:
    """The try of a waiting app that is under way; the end of the block cancels it."""

    app_id: str = ""
    task: asyncio.Task[_Failed | None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


class _Failed(dict[str, Transient]):
    """By app: why the job fails for events of it."""

    together = True
    """Whether the apps may be tried together again, because the job says for which it fails."""

    def __init__(self, unsent: dict[str, list[Event]]) -> None:
        super().__init__()
        self.unsent = unsent
        """See ``JobProgress.unsent``."""


def _behind(at: CommittedPosition, batch: Batch) -> CommittedPosition:
    """Return the position behind a batch that was read after ``at``."""
    last = batch.entries[-1].offset if batch.entries else at.offset
    return CommittedPosition(offset=last, count=at.count + batch.lost + len(batch.entries))
