"""The account of a job: what it waits for and since when, and what it left out.

One call for each fact: it logs, counts, and keeps a record on the bus, which ``status`` reads. A short wait, such as
one for a graph that is behind for a moment, is neither recorded nor warned of. The counts of a worker go on after a
restart under the same name; its record is removed a week after it was last written.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal

from graphweft_contracts import Transient
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.usage.app_use import FORGOTTEN_S
from graphweft_workers.engine.usage.waits import JOB, WaitRecord, old_records, wait_records
from graphweft_workers.ports.job import SkipReason
from graphweft_workers.ports.records import RecordLog
from graphweft_workers.support.timing import TIMING, JobTiming
from graphweft_workers.telemetry.metrics import JOB_SKIPPED

_MOST_REASONS: Final = 20
"""Limit of the warnings of one outage."""
_NUMBERS: Final = re.compile(r"\b[0-9]+[:-][0-9:-]+")
"""Positions on the log, which differ from wait to wait."""

type WhatWaits = Literal["events", "apps", "tick"]
"""The events in hand, apps that wait while others go on, or the call for what is due by time alone."""
type LossReason = Literal["event_refused", "events_lost", "made_of_erased"]
"""Why a worker of a job leaves something out, or puts on the bus what it should not."""
type WaitKey = tuple[int, WhatWaits]
"""A partition, and what of it waits."""

WHAT_WAITS: Final[tuple[WhatWaits, ...]] = ("events", "apps", "tick")


@dataclass(slots=True)
class _Wait:
    since: float
    """On the monotonic clock."""
    error: str


class JobAccount:
    """The account of one worker of a job. No method raises on account of the bus."""

    def __init__(
        self, records: RecordLog, group: str, *, name: str, logger: Any, clock: Clock = SYSTEM_CLOCK,
        timing: JobTiming = TIMING.jobs,
    ) -> None:  # fmt: skip
        """``name`` is the worker's."""
        self._records = records
        self._group = group
        self._key = f"{JOB}{group}:{name}"
        self._logger = logger
        self._clock = clock
        self._timing = timing
        self._reasons: set[str] = set()
        """Why the job waits, as warned of in this outage."""
        self._waits: dict[WaitKey, _Wait] = {}
        self._skipped: dict[str, Counter[str]] = {}
        self._skipped_at: dict[str, float] = {}
        self._unwritten: set[str] = set()
        """Apps of which something was left out since the record was written."""
        self._mark: int | None = None
        self._begun = False
        self._written: float | None = None
        """When the record on the bus was written, on the monotonic clock; None: there is none."""
        self._refused = False
        """Whether the bus did not take the last record."""
        self._writing = asyncio.Lock()

    @property
    def waiting_s(self) -> float:
        """For how long the job has waited in the partition that waits longest; 0 if it does not."""
        now = self._clock.monotonic()
        return max((now - each.since for each in self._waits.values()), default=0.0)

    async def begin(self) -> None:
        """Go on with the counts of an earlier worker of this name. Call it once the bus answers."""
        async with self._writing:
            if self._begun:
                return
            self._begun = True
            try:
                async with asyncio.timeout(self._timing.record_s):
                    await self._read()
            except (Transient, TimeoutError) as error:
                self._note_refusal(error)
        if self._written is not None:  # it may say that the earlier worker waits
            await self._write()

    async def _read(self) -> None:
        kind = f"{JOB}{self._group}:"
        found = await self._records.after(None)
        records, self._mark = found.found, found.mark
        for name, record in wait_records(records, kind):
            if f"{kind}{name}" == self._key:
                self._written = self._clock.monotonic()
                for app_id, counts in record.recent(self._clock.now().timestamp()).items():
                    self._skipped.setdefault(app_id, Counter()).update(counts)
                    self._skipped_at.setdefault(app_id, record.skipped_at.get(app_id, record.at))
        for key in old_records(records, kind, self._clock.now().timestamp() - FORGOTTEN_S):
            await self._records.put(key, None)

    async def waits(self, key: WaitKey, error: Transient, wait_s: float) -> None:
        """Note that the job tries again in ``wait_s`` seconds. Each reason of a wait that is not short is warned of
        once in an outage, whatever number of partitions it stops: a graph behind is another one than a wrong key.
        """
        self._warn(error, is_shown=self._is_shown(key, wait_s))
        await self.keep(key, error, wait_s)

    async def keep(self, key: WaitKey, error: Transient, wait_s: float) -> None:
        """Note a wait that somebody else logs."""
        now = self._clock.monotonic()
        wait = self._waits.setdefault(key, _Wait(now, ""))
        changed = wait.error != str(error)
        wait.error = str(error)
        if not self._is_shown(key, wait_s):
            return
        if self._written is None or changed or now - self._written >= self._timing.renew_s:
            await self._write()

    async def goes_on(self, key: WaitKey) -> None:
        """Note that a call has succeeded. The outage ends with the last wait: other partitions may wait still."""
        await self.leaves(key)
        if self._reasons and not self._waits:
            self._reasons.clear()
            self._logger.info("job_goes_on")

    async def leaves(self, *keys: WaitKey) -> None:
        """Note that calls wait no longer, because they succeeded or because another worker gets the partition."""
        left = [self._waits.pop(key) for key in keys if key in self._waits]
        if left or self._refused:
            await self._write()

    async def skips(self, skipped: Counter[tuple[str, SkipReason | LossReason]]) -> None:
        """Count what was left out, by app, or "" for what is of no app, and reason. Whoever leaves it out logs it."""
        for (app_id, reason), number in skipped.items():
            self._skipped.setdefault(app_id, Counter())[reason] += number
            self._skipped_at[app_id] = self._clock.now().timestamp()
            self._unwritten.add(app_id)
            JOB_SKIPPED.add(number, self._group, reason, app=app_id)
        if skipped:
            await self._write()

    def _is_shown(self, key: WaitKey, wait_s: float) -> bool:
        """Tell whether a wait is not short, so that the log and ``status`` tell of it."""
        wait = self._waits.get(key)
        lasted_s = 0.0 if wait is None else self._clock.monotonic() - wait.since
        return lasted_s + wait_s >= self._timing.shown_s

    def _warn(self, error: Transient, *, is_shown: bool) -> None:
        reason = _NUMBERS.sub("", str(error))
        is_new = is_shown and reason not in self._reasons and len(self._reasons) < _MOST_REASONS
        if is_new:
            self._reasons.add(reason)
        level = self._logger.warning if is_new else self._logger.debug
        level("job_waits", error=str(error))

    def _record(self) -> WaitRecord | None:
        """Return the record; None if there is nothing to say."""
        now = self._clock.now().timestamp()
        record = WaitRecord(at=now, skipped=self._skipped, skipped_at=self._skipped_at)
        self._keep_only(record.recent(now).keys())
        if not self._waits and not self._skipped:
            return None
        if self._waits:
            longest = min(self._waits.values(), key=lambda each: each.since)
            record.since = now - (self._clock.monotonic() - longest.since)
            record.error, record.partitions = longest.error, len({number for number, _ in self._waits})
        return record

    def _keep_only(self, apps: Collection[str]) -> None:
        for app_id in [each for each in self._skipped if each not in apps]:
            del self._skipped[app_id]
            del self._skipped_at[app_id]

    async def _follow_erasures(self) -> None:
        """Forget apps that an erasure took out of the record on the bus."""
        changed = await self._records.after(self._mark)
        self._mark = changed.mark
        for name, record in wait_records(changed.found, JOB):
            if f"{JOB}{name}" == self._key and self._written is not None:
                self._keep_only(record.skipped.keys() | self._unwritten)

    async def _write(self) -> None:
        async with self._writing:
            if not self._waits and not self._skipped and self._written is None and not self._refused:
                return
            unwritten: set[str] = set()
            try:
                async with asyncio.timeout(self._timing.record_s):
                    await self._follow_erasures()
                    record, unwritten = self._record(), self._unwritten
                    self._unwritten = set()
                    await self._records.put(self._key, None if record is None else record.encode())
            except (Transient, TimeoutError) as error:
                self._unwritten |= unwritten
                self._note_refusal(error)
            else:
                self._refused = False
                self._written = None if record is None else self._clock.monotonic()

    def _note_refusal(self, error: Exception) -> None:
        level = self._logger.debug if self._refused else self._logger.warning
        level(
            "job_account_not_kept", error=str(error) or type(error).__name__,
            advice="`graphweft status` does not show what this job waits for and leaves out; metrics and this log do",
        )  # fmt: skip
        self._refused = True
