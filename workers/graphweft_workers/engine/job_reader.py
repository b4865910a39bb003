"""Reads the events of a job, for the first time or again, and looks which of them are gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphweft_contracts import InvalidEvent, wire
from graphweft_contracts.clock import Clock
from graphweft_workers.engine.job_progress import JobProgress, WaitingApp
from graphweft_workers.engine.log.duplicates import RecentEvents, identity_of
from graphweft_workers.engine.log.known_erasures import KnownErasures
from graphweft_workers.engine.log.leases import Lease
from graphweft_workers.engine.log.turns import TurnClock
from graphweft_workers.engine.usage.job_account import JobAccount
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.ports.job import Job, JobEvent
from graphweft_workers.ports.offsets import is_after


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBatch:
    """What was read after a position."""

    events: Sequence[JobEvent]
    """Those for the job, without those of apps that wait."""
    at: CommittedPosition
    end: CommittedPosition
    moved: bool
    """Whether the position has to be committed."""


class JobReader:
    """Reads the events of one job."""

    def __init__(
        self, bus: Bus, job: Job, erasures: KnownErasures, account: JobAccount, *, batch_events: int, logger: Any,
        clock: Clock,
    ) -> None:  # fmt: skip
        self._bus = bus
        self._job = job
        self._erasures = erasures
        self._account = account
        self._batch_events = batch_events
        self._logger = logger
        self._clock = clock

    async def next(self, lease: Lease, progress: JobProgress, recent: RecentEvents, *, most_s: float) -> JobBatch:
        """Return the next events of the partition; none if none arrive within some seconds, ``most_s`` at most."""
        number, at = lease.number, progress.position
        known = self._erasures.number
        batch = await lease.read(at, limit=self._batch_events, most_s=most_s, quiet=True)
        if batch.lost:
            await self._report_lost(number, Counter({"": batch.lost}), "the bus trimmed them before they were read")
        events: list[JobEvent] = []
        for each in await self._events(number, batch.entries, recent, known):
            app_id = each.event.appid
            if progress.is_done(app_id, each.offset):
                continue
            if app_id in progress.waiting:
                progress.waiting[app_id].unread += 1
            else:
                events.append(each)
        moved = bool(batch.lost or batch.entries or batch.stepped)
        return JobBatch(events=events, at=at, end=_behind(at, batch), moved=moved)

    async def again(self, number: int, app_id: str, app: WaitingApp, progress: JobProgress) -> None:
        """Read the next events of a waiting app, unless it has some in hand."""
        if app.seen:
            return
        known = self._erasures.number
        limit = self._batch_events * len(progress.waiting)  # others' entries are among them
        batch = await self._bus.log.read(number, app.at, limit=limit)
        entries = [each for each in batch.entries if not is_after(each.offset, progress.position.offset)]
        app.end = _behind(app.at, replace(batch, entries=entries)) if entries else progress.position
        app.seen = [
            each
            for each in await self._events(number, entries, RecentEvents(), known)
            if each.event.appid == app_id and not progress.is_done(app_id, each.offset)
        ]
        if lost := app.note_read(batch.lost, is_all=not is_after(progress.position.offset, app.end.offset)):
            await self._report_lost(number, Counter({app_id: lost}), "the bus trimmed them while the app waited")

    async def leave_out_gone(self, number: int, seen: Sequence[JobEvent]) -> None:
        """Mark events as done of which the log holds no content any more: an erasure may not wait for a job."""
        if not seen:
            return
        entries = await self._bus.log.entries(number, [each.offset for each in seen])
        erased = {entry.offset: entry.erased for entry in entries}
        for each in seen:
            each.done = erased.get(each.offset, True)
        lost = Counter(each.event.appid for each in seen if each.offset not in erased)
        if lost:
            await self._report_lost(number, lost, "they left the bus while the job waited, and no archive holds them")

    async def _events(self, number: int, entries: Iterable[Entry], recent: RecentEvents, known: int) -> list[JobEvent]:
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
                found.append(JobEvent(event=event, position=position, retried=retried, entry=entry, erasures=known))
        return found

    async def _report_lost(self, number: int, lost: Counter[str], why: str) -> None:
        self._logger.error(
            "events_lost", partition=number, events=lost.total(), app_ids=sorted(filter(None, lost)),
            message=f"{why}: their results are missing",
        )  # fmt: skip
        await self._account.skips(Counter({(app_id, "events_lost"): events for app_id, events in lost.items()}))


def _behind(at: CommittedPosition, batch: Batch) -> CommittedPosition:
    """Return the position behind a batch that was read after ``at``."""
    last = batch.entries[-1].offset if batch.entries else at.offset
    return CommittedPosition(offset=last, count=at.count + batch.lost + len(batch.entries))
