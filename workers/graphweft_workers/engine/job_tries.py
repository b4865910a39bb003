"""Tries a job on events until it is done with them, or some of their apps have to wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphweft_contracts import BusUnavailable, Transient
from graphweft_contracts.clock import Clock
from graphweft_workers.engine.job_output import FailedApps, JobOutput
from graphweft_workers.engine.job_progress import JobProgress
from graphweft_workers.engine.job_reader import JobReader
from graphweft_workers.engine.log.known_erasures import KnownErasures
from graphweft_workers.engine.log.leases import Lease
from graphweft_workers.engine.usage.job_account import JobAccount, WaitKey
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.job import Job, JobEvent
from graphweft_workers.support.backoff import backoff_s
from graphweft_workers.support.timing import JobTiming
from graphweft_workers.telemetry import tracing_spans


class JobTries:
    """The tries of one job."""

    def __init__(
        self, job: Job, reader: JobReader, output: JobOutput, erasures: KnownErasures, account: JobAccount, *,
        clock: Clock, timing: JobTiming,
    ) -> None:  # fmt: skip
        self._job = job
        self._reader = reader
        self._output = output
        self._erasures = erasures
        self._account = account
        self._clock = clock
        self._timing = timing

    async def until_done(
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
            found = await self.once(lease, given, progress)
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
                wait_s = self.wait_s(error, attempt)
                waited_s += wait_s
                most_s = self._timing.shown_s if others_go_on else self._timing.last_wait_s
                if waited_s >= most_s and progress.room(failed, end):
                    break
                await self._account.waits(key, error, wait_s)
                if await lease.finish(self._clock.sleep(wait_s)) is None:
                    return None
            in_turn = set(failed if together else [*failed][:1])
            given = [each for each in seen if each.event.appid in in_turn]
        if failed:
            await self._account.leaves(key)
        elif seen:
            await self._account.goes_on(key)
        return failed

    async def once(self, lease: Lease, seen: Sequence[JobEvent], progress: JobProgress) -> FailedApps | None:
        """Run the job once on those of the events that are not done; None if they are left to the next owner.

        An app whose results the bus has not taken yet gets a turn once it takes them.
        """
        failed = FailedApps()
        known = await self._follow_erasures(lease.number, seen, progress)
        if all(each.done for each in seen) and progress.unsent.keys().isdisjoint(each.event.appid for each in seen):
            return failed
        try:
            with tracing_spans.handled(lease.number, self._job.group, seen):
                running = self._run(seen, known, progress, failed)
                if await lease.finish(running, grace_s=self._timing.grace_s) is None:
                    return None
        except BusUnavailable:
            raise
        except Transient as error:
            failed.update((each.event.appid, error) for each in seen if not each.done)
            for app_id in progress.unsent.keys() & {each.event.appid for each in seen}:
                failed.setdefault(app_id, error)
            failed.together = False
        for each in seen:
            each.done |= each.event.appid not in failed
        return failed

    def wait_s(self, error: Transient, attempt: int) -> float:
        """Return how long to wait after a failure: never less than the server asks for."""
        return backoff_s(error.retry_after_s, attempt, longest_s=self._timing.last_wait_s, spread=(1.0, 1.2))

    async def _run(self, seen: Sequence[JobEvent], known: int, progress: JobProgress, failed: FailedApps) -> None:
        for app_id in {each.event.appid for each in seen} & progress.unsent.keys():
            await self._output.put_unsent(app_id, known, progress.unsent, failed)
        given = [each for each in seen if not each.done and each.event.appid not in failed]
        for each in given:
            each.tried = True
        if given:
            await self._output.put(self._job.handle(given), known, progress.unsent, failed)

    async def _follow_erasures(self, number: int, seen: Sequence[JobEvent], progress: JobProgress) -> int:
        """Leave out events that are gone, and return the last erasure that is known.

        If something of an app was erased since its events were read, it begins again with what is left: what the bus
        has not taken is dropped, and made anew.
        """
        await self._erasures.follow()
        known = self._erasures.number
        older = [each for each in seen if self._erasures.has_later(each.event.appid, each.erasures)]
        unsent = progress.unsent.keys() & {each.event.appid for each in older}
        for app_id in unsent:
            del progress.unsent[app_id]
        for each in older:
            if each.event.appid in unsent:
                each.done = False
                each.parts.clear()
        apps = {each.event.appid for each in older}
        await self._reader.leave_out_gone(
            number, [each for each in seen if not each.done and (each.tried or each.event.appid in apps)]
        )
        for each in seen:
            each.erasures = known
        return known
