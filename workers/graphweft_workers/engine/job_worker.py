"""Runs a job on the log: reads a partition in order, appends the job's events to the bus, then commits the position.

The position is committed only after the bus has confirmed the events. An interruption between the two repeats events
with equal ids: the mutation worker drops them as copies, or they set the same values again. A repeated dead letter
replaces the first one.

``JobReader`` reads the events, ``JobTries`` runs the job on them, and ``JobOutput`` puts on the bus what it makes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Self

from graphweft.transport import Transport
from graphweft_contracts import BusUnavailable, Transient
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.failures.letters_after_erasures import LettersAfterErasures
from graphweft_workers.engine.job_output import FailedApps, JobOutput
from graphweft_workers.engine.job_progress import JobProgress, WaitingApp
from graphweft_workers.engine.job_reader import JobReader
from graphweft_workers.engine.job_tries import JobTries
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.known_erasures import KnownErasures
from graphweft_workers.engine.log.leases import LEASE_S, Lease, LeaseHolder
from graphweft_workers.engine.usage.job_account import WHAT_WAITS, JobAccount, WaitKey
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.job import Job
from graphweft_workers.support.backoff import backoff_s
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, Timing

_BATCH_EVENTS: Final = 200
"""Also the most entries whose work is repeated after an interruption."""


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
        self._job = job
        self._clock = clock
        self._timing = timing.jobs
        self._logger = logger = get_logger("graphweft.memory").bind(group=job.group)
        self._leases = LeaseHolder(bus, name=name, lease_s=lease_s, logger=logger, clock=clock, timing=timing.leases)
        self.account = account = JobAccount(
            bus.usage, job.group, name=name, logger=logger, clock=clock, timing=timing.jobs
        )
        """What the job waits for, and what it left out."""
        self._erasures = erasures = KnownErasures(bus.purges)
        self._reader = JobReader(bus, job, erasures, account, batch_events=batch_events, logger=logger, clock=clock)
        self._letters = LettersAfterErasures(bus)
        self._output = JobOutput(
            transport, self._letters, erasures, job.group, account,
            logger=logger, clock=clock, timing=timing.jobs,
        )  # fmt: skip
        self._tries = JobTries(job, self._reader, self._output, erasures, account, clock=clock, timing=timing.jobs)
        self._tick_at: dict[int, float] = {}
        """By partition: when its tick is due. One that comes back keeps its turn, and a new one has it at once."""

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
            self._logger.info("worker_stopped", worker=self._leases.name, emitted=self._output.appended)

    async def _work(self, lease: Lease) -> None:
        await self.account.begin()
        try:
            await self._work_on(lease)
        finally:
            keys: list[WaitKey] = [(lease.number, what) for what in WHAT_WAITS]
            await self.account.leaves(*keys)

    async def _work_on(self, lease: Lease) -> None:
        number = lease.number
        await self._erasures.follow()
        await self._letters.begin()
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
        """Handle the next events of apps that do not wait. Return whether there were any; None: see ``JobTries``."""
        due = progress.due()
        if trial.task is not None:
            most_s = min(most_s, self._timing.trial_look_s)
        elif due is not None:
            most_s = min(most_s, due[1].due - self._clock.monotonic())
        batch = await self._reader.next(lease, progress, recent, most_s=most_s)
        failed = await self._tries.until_done(lease, batch.events, progress, batch.end)
        if failed is None:
            return None
        progress.position = batch.end
        for app_id, error in failed.items():
            progress.waiting[app_id] = app = WaitingApp(
                at=batch.at, end=batch.end, seen=[each for each in batch.events if each.event.appid == app_id],
                since=int(self._clock.now().timestamp()),
            )  # fmt: skip
            await self._wait(lease.number, app, error)
        return batch.moved

    async def _try_again(self, lease: Lease, progress: JobProgress, trial: _Trial) -> bool | None:
        """Handle events of the waiting app whose turn it is. Return whether they are done; None: see ``JobTries``.

        A try that takes longer goes on beside the reads, for it may be a model that hangs. Its result counts at a later
        call, so that an app does not stop waiting while a batch without its events is in hand.
        """
        if trial.task is None:
            due = progress.due()
            if due is None or due[1].due > self._clock.monotonic():
                return False
            trial.app_id, app = due
            await self._reader.again(lease.number, trial.app_id, app, progress)
            trial.task = asyncio.create_task(self._tries.once(lease, app.seen, progress))
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

    async def _wait(self, number: int, app: WaitingApp, error: Transient) -> None:
        app.attempt += 1
        wait_s = self._tries.wait_s(error, app.attempt)
        app.due = self._clock.monotonic() + wait_s
        await self.account.waits((number, "apps"), error, wait_s)

    async def _tick(self, lease: Lease, failed: int) -> tuple[int, float]:
        """Run the job's tick, which has failed so many times in a row. Return that number, and when the next is due."""
        key: WaitKey = (lease.number, "tick")
        outcomes = self._job.tick(lease.number, await self._bus.partitions.count())
        try:
            await lease.finish(self._output.put_due(outcomes), grace_s=self._timing.grace_s)
        except BusUnavailable:
            raise
        except Transient as error:
            wait_s = backoff_s(error.retry_after_s, failed + 1, longest_s=self._timing.last_wait_s)
            wait_s = min(wait_s, self._job.tick_s)
            await self.account.waits(key, error, wait_s)
            return failed + 1, wait_s
        await self.account.leaves(key)
        return 0, self._job.tick_s


@dataclass(slots=True)
class _Trial:
    """The try of a waiting app that is under way; the end of the block cancels it."""

    app_id: str = ""
    task: asyncio.Task[FailedApps | None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
