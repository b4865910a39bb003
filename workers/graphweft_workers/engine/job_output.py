"""What a job makes of events: puts it on the bus, or keeps it while the bus does not take it.

Nothing is put on the bus after an erasure of its app was announced that the job did not know when it began: it may be
made of what was erased. The try fails then, and the next one begins with what is left.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Sequence
from itertools import batched
from typing import Any, Final

from graphweft.tracing import with_trace
from graphweft.transport import Outgoing, Transport
from graphweft_contracts import DeadLetter, Event, InvalidEvent, PartitionRefused, Transient, wire
from graphweft_contracts.clock import Clock
from graphweft_workers.engine.log.known_erasures import KnownErasures
from graphweft_workers.engine.usage.job_account import JobAccount, LossReason
from graphweft_workers.ports.dead_letters import DeadLetters
from graphweft_workers.ports.job import AppWait, JobOutcome, JobSkip, SkipReason
from graphweft_workers.support.timing import JobTiming
from graphweft_workers.telemetry.metrics import BUS_DURATION, DEAD_LETTERS_WRITTEN, JOB_EVENTS

_APPEND_AT_ONCE: Final = 100

type Unsent = dict[str, list[Event]]
"""By app: events that the bus has not taken yet, in their order."""


class ErasedMeanwhile(Transient):
    """Something of an app was erased while a job worked on it."""


class FailedApps(dict[str, Transient]):
    """By app: why a try of a job fails for events of it."""

    together = True
    """Whether the apps may be tried together again, because the job says for which it fails."""


class JobOutput:
    """Puts on the bus what one job makes."""

    def __init__(
        self, transport: Transport, letters: DeadLetters, erasures: KnownErasures, group: str, account: JobAccount, *,
        logger: Any, clock: Clock, timing: JobTiming,
    ) -> None:  # fmt: skip
        self._transport = transport
        self._letters = letters
        self._erasures = erasures
        self._group = group
        self._account = account
        self._logger = logger
        self._clock = clock
        self._timing = timing
        self.appended: int = 0
        """Events appended to the bus, repeated ones included."""

    async def put(
        self, outcomes: AsyncGenerator[Sequence[JobOutcome]], known: int, unsent: Unsent, failed: FailedApps
    ) -> None:
        """Put on the bus what a try yields, which began when the erasures up to ``known`` were known.

        ``unsent`` gets what the bus does not take, and ``failed`` the apps of it, and those that wait. Raises
        ``ErasedMeanwhile``.
        """
        async with contextlib.aclosing(outcomes):
            async for each in outcomes:
                for events in batched((one for one in each if isinstance(one, Event)), _APPEND_AT_ONCE):
                    await self._append(events, known, unsent, failed)
                await self._put_letters([one for one in each if isinstance(one, DeadLetter)], known)
                await self._account.skips(Counter((one.app_id, one.reason) for one in each if isinstance(one, JobSkip)))
                failed.update((one.app_id, one.error) for one in each if isinstance(one, AppWait))

    async def put_unsent(self, app_id: str, known: int, unsent: Unsent, failed: FailedApps) -> None:
        """Try again to append what the bus did not take of an app: each alone, so that none is sent twice."""
        events = unsent.pop(app_id, [])
        try:
            for event in events:
                await self._append([event], known, unsent, failed)
        except ErasedMeanwhile:
            unsent[app_id] = events  # the next try drops them, and has them made anew
            raise

    async def put_due(self, outcomes: AsyncGenerator[Sequence[JobOutcome]]) -> None:
        """Put on the bus what is due by time alone. Raises ``Transient`` if the bus does not take some of it."""
        failed = FailedApps()
        await self._erasures.follow()
        known = self._erasures.number

        async def until_refused() -> AsyncGenerator[Sequence[JobOutcome]]:
            async with contextlib.aclosing(outcomes):
                async for each in outcomes:
                    yield each
                    for error in failed.values():
                        raise error

        await self.put(until_refused(), known, {}, failed)

    async def _append(self, events: Sequence[Event], known: int, unsent: Unsent, failed: FailedApps) -> None:
        """Append events; one that the bus refuses is logged and dropped.

        If their partition takes none until it is mended, ``unsent`` keeps them, so that no model is asked again. Later
        events of the app follow them.
        """
        for event in events:
            if event.appid in unsent:
                unsent[event.appid].append(event)
        events = [event for event in events if event.appid not in unsent]
        if not events:
            return
        await self._check({event.appid for event in events}, known)
        try:
            outgoing = [Outgoing(key=event.key, fields=wire.encode(with_trace(event))) for event in events]
            with BUS_DURATION.timed("append", clock=self._clock):
                await self._transport.append(outgoing)
        except (InvalidEvent, PartitionRefused) as error:
            if len(events) > 1:  # append each alone to find the refused one
                for event in events:
                    await self._append([event], known, unsent, failed)
                return
            [event] = events
            if isinstance(error, InvalidEvent):
                self._logger.error("event_refused", event_id=event.id, event_type=event.type, error=str(error))
                await self._account.skips(Counter({(event.appid, "event_refused"): 1}))
                return
            failed[event.appid] = Transient(str(error), retry_after_s=self._timing.refused_s)
            unsent[event.appid] = [event]
            return
        self.appended += len(events)
        JOB_EVENTS.add(len(events), self._group)
        await self._look_back([event.appid for event in events], known)

    async def _put_letters(self, letters: Sequence[DeadLetter], known: int) -> None:
        if not letters:
            return
        await self._check({letter.app_id or "" for letter in letters}, known)
        await self._letters.put(letters)
        for letter in letters:
            DEAD_LETTERS_WRITTEN.add(1, letter.reason, app=letter.app_id or "")

    async def _check(self, apps: Collection[str], known: int) -> None:
        await self._erasures.follow()
        for app_id in sorted(apps):
            if self._erasures.has_later(app_id, known):
                raise ErasedMeanwhile(
                    f"something of {app_id!r} was erased while the job worked on the app: it begins again with what "
                    "is left",
                    retry_after_s=0.0,
                )

    async def _look_back(self, apps: Sequence[str], known: int) -> None:
        """Report what was put on the bus while an erasure ended, which then may not have found it."""
        await self._erasures.follow()
        late: Counter[tuple[str, SkipReason | LossReason]] = Counter(
            (app_id, "made_of_erased") for app_id in apps if self._erasures.has_later(app_id, known)
        )
        if late:
            self._logger.error(
                "made_of_erased", apps=sorted({app_id for app_id, _ in late}), results=late.total(),
                message="an erasure ended while these results were put on the bus, and may not have found them: give "
                "the same `graphweft erase` again",
            )  # fmt: skip
            await self._account.skips(late)
