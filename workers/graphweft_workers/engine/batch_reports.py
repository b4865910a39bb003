"""Writes the dead letters of a batch, and counts its skips: before, or together with, its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import batched
from typing import Final

from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_rules.matching.explain import named
from graphweft_workers.engine.apply.app_queues import AppQueues
from graphweft_workers.engine.apply.half_done import HalfDonePlans
from graphweft_workers.engine.apply.worker_state import WorkerState
from graphweft_workers.engine.failures.skips import Skips
from graphweft_workers.engine.log.read import Range, Skip
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_limit import LogLimit

logger = get_logger("graphweft.mutation")

_LETTERS_AT_ONCE: Final = 500

type Warned = BoundedDict[tuple[str | None, ...], None]
"""Rules and causes of skips of which a warning is logged."""


class BatchReports:
    """The reports of one partition."""

    def __init__(
        self,
        state: WorkerState,
        number: int,
        queues: AppQueues,
        half_done: HalfDonePlans,
        skips: Skips,
        *,
        before: PositionNote,
        warned: Warned,
        lines: LogLimit,
    ) -> None:
        """``before`` is the note of the last owner, which says what it has reported.

        ``lines`` limits the lines that the senders of events can cause at will.
        """
        self._state = state
        self._number = number
        self._queues = queues
        self._half_done = half_done
        self._skips = skips
        self._before = before
        self._warned = warned
        self._lines = lines

    async def report(self, read: Range) -> tuple[frozenset[str], Mapping[str, Sequence[Skip]]]:
        """Write dead letters and count skips, except those that the last owner has reported.

        Return the parked apps, which are not included since they read the batch again; and, by app, the skips to count
        after the app's events.
        """
        queues = self._queues
        await self._park(read)
        parked = queues.parked
        letters = [
            letter for letter in read.letters
            if letter.app_id not in parked and self._is_new(letter.app_id, letter.offset)
        ]  # fmt: skip
        for some in batched(letters, _LETTERS_AT_ONCE):
            await self._state.letters.put(some)
        for letter in letters:
            self._say(
                logger.error, "dead_letter", letter.app_id, letter.reason,
                position=letter.position, reason=letter.reason, message=letter.message,
            )  # fmt: skip
        for defect in read.defects:
            self._say(
                logger.error, "defect", defect.kind, defect.frames,
                partition=self._number, error=defect.kind, frames=defect.frames,
            )  # fmt: skip
        later: dict[str, list[Skip]] = {}
        for skip in read.skips:
            app_id = skip.event.appid
            if app_id not in parked and self._is_new(app_id, skip.entry.offset):
                self._warn(skip)
                if app_id in read.apps or app_id in later or queues.is_busy(app_id):
                    later.setdefault(app_id, []).append(skip)
                else:
                    self._skips.add(skip)
        return parked, later

    async def _park(self, read: Range) -> None:
        """Park the apps whose events cannot be applied beside those of others."""
        queues = self._queues
        for app_id in read.lost:
            queues.park(app_id)
        for app_id in read.dear:
            queues.park_dear(app_id)
        for app_id in {skip.event.appid for skip in read.skips if skip.reason == "no_rules"} - queues.parked:
            if await self._half_done.may_hold(app_id):
                queues.park(app_id)

    def _is_new(self, app_id: str | None, offset: str) -> bool:
        return is_after(offset, self._before.reported_of(app_id))

    def _warn(self, skip: Skip) -> None:
        """Log a skip as a warning once per rule and cause: a rule usually lacks the same value in every event.

        The names of workflows are the senders' choice, so of an app those without rules are at most one a minute.
        """
        event = skip.event
        if skip.reason == "no_rules":
            cause: tuple[str | None, ...] = (event.workflow,)
            known = named(self._state.rules.current(event.appid).workflows)
            fields: dict[str, object] = {"workflow": event.workflow, "known": known}
        else:
            cause = (event.workflow, skip.rule, skip.mutation, skip.message)
            fields = {"rule": skip.rule, "mutation": skip.mutation, "place": skip.place}
        fields |= {
            "detail": skip.message,
            "event_id": event.id,
            "event_type": event.type,
            "next": "`graphweft status` counts them; after a fix run: graphweft rules push, graphweft dlq retry --all",
        }
        name = "workflow_without_rules" if skip.reason == "no_rules" else "mutation_skipped"
        if cause in self._warned:
            logger.debug(name, **fields)
        elif skip.reason != "no_rules" or event.workflow is None:
            logger.warning(name, **fields)
        elif not self._say(logger.warning, name, event.appid, **fields):
            return  # the next event of this workflow is another chance
        self._warned[cause] = None

    def _say(self, level: Callable[..., None], name: str, *kind: str | None, **fields: object) -> bool:
        """Log a line that senders can cause at will, at level debug if one of its kind was logged lately.

        Return whether it was logged as what it is.
        """
        left_out = self._lines.admit((name, *kind))
        if left_out is None:
            logger.debug(name, **fields)
            return False
        level(name, **fields, **({"left_out": left_out} if left_out else {}))
        return True
