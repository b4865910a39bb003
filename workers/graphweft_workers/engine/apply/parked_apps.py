"""Reads the events of parked apps from the log again, page by page."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from graphweft_contracts import QueryFailed
from graphweft_workers.engine.apply.app_queue import Parking, QueuedBatch, RereadPage, size_of
from graphweft_workers.engine.apply.half_done import HalfDonePlans
from graphweft_workers.engine.apply.older_graph import OlderGraphs
from graphweft_workers.engine.apply.worker_state import WorkerState
from graphweft_workers.engine.log.duplicates import REACH, RecentEvents, identity_of
from graphweft_workers.engine.log.history import known_before
from graphweft_workers.engine.log.read import LoggedEvent, Range, ReadEntry, letter_of_lost
from graphweft_workers.engine.log.turns import TurnClock, decode_in_turns, match_in_turns
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.rule_sets.lost_rules import MissingRules, RulesLost
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.mutation")

_REREAD_BYTES: Final = 1024**2
"""Of the entries that are decoded and matched at once for one app, while the others wait."""


class ParkedApps:
    """The parked apps of one partition."""

    def __init__(
        self,
        state: WorkerState,
        number: int,
        older: OlderGraphs,
        half_done: HalfDonePlans,
        recent: RecentEvents | None = None,
    ) -> None:
        """``recent`` are the recent events of the partition at the place of its reader."""
        self._state = state
        self._number = number
        self._older = older
        self._half_done = half_done
        self._recent = recent

    async def reread(self, app_id: str, parking: Parking, given: CommittedPosition) -> RereadPage:
        """Return the next events of a parked app, up to ``given`` at most.

        Skips and dead letters that are written already are not written again. Raises ``RulesLost`` if the next event
        needs a lost rule set.
        """
        log, position = self._state.log, parking.position
        if parking.recent is None:
            with contextlib.suppress(QueryFailed):  # the app has no graph: ``apply`` refuses its events
                await self._half_done.check_rules(app_id, await self._state.graph.progress(app_id, self._number))
        batch = await log.read(self._number, position, limit=min(parking.page, parking.most))
        entries = [entry for entry in batch.entries if not is_after(entry.offset, given.offset)]
        entries = _bounded(parking, entries)
        if batch.lost:
            await self._report_lost(app_id, position.offset, batch)
        decoded = await decode_in_turns(entries, self._state.rules.cursor(self._number, position.offset))
        if (found := self._first_lost(app_id, decoded)) is not None:
            number, digest = found
            if not number and not self._may_be_copy(parking, decoded[0]):
                raise RulesLost(digest)
            entries, decoded = entries[: number or 1], decoded[: number or 1]
            if not number:
                parking.page = 1  # each of the copies ends a page
        before = position.count + batch.lost
        end = CommittedPosition(offset=entries[-1].offset, count=before + len(entries)) if entries else given
        if parking.recent is None:
            if not any(_may_concern(app_id, each) for each in decoded):
                return RereadPage(None, end)  # any number of apps may wait for a lost rule set: none reads back for it
            reach = REACH if self._recent is None else self._recent.reach
            records = () if self._recent is None else self._recent.records
            parking.recent = await known_before(
                log, self._number, position.offset, reach=reach, only=app_id, records=records
            )
        read = await self._matched(app_id, decoded, parking.recent)
        read.check_rules(app_id)  # it was no copy
        if read.entries < len(entries):
            parking.page = read.entries
            end = CommittedPosition(offset=entries[read.entries - 1].offset, count=before + read.entries)
        letters = [letter for letter in read.letters if letter.app_id == app_id]
        letters = [letter for letter in letters if is_after(letter.offset, parking.reported)]
        if letters:
            await self._state.letters.put(letters)
        skips = [skip for skip in read.skips if is_after(skip.entry.offset, parking.reported)]
        events = read.apps.get(app_id, [])
        return RereadPage(QueuedBatch(start=position, events=events, skips=skips) if events or skips else None, end)

    async def _matched(self, app_id: str, decoded: Sequence[ReadEntry], recent: RecentEvents) -> Range:
        """Match events of a parked app, as many as fit a page; one app of the worker does so after the other."""
        costs, timing = self._state.costs, self._state.timing
        async with costs.pace.turn():
            return await match_in_turns(
                self._number,
                decoded,
                recent,
                only=app_id,
                passed_over=self._older.passed_over,
                turns=TurnClock(self._state.clock, timing.turn_s),
                costs=costs,
                most_s=timing.costs.page_s,
            )

    def _first_lost(self, app_id: str, entries: Sequence[ReadEntry]) -> tuple[int, str] | None:
        """Return the number of the app's first entry that needs a lost rule set, and the digest; None without one."""
        for number, each in enumerate(entries):
            if not isinstance(each, LoggedEvent):
                continue
            if isinstance(each.rules, MissingRules) and each.plain.appid == app_id:
                offset = each.entry.offset
                if not self._older.passed_over.unread(offset, app_id) and not self._older.passed_over.event(
                    offset, app_id
                ):
                    return number, each.rules.digest
        return None

    def _may_be_copy(self, parking: Parking, each: ReadEntry) -> bool:
        """Tell whether an event that needs a lost rule set may be a copy: one has no effect, so it needs no rules.

        Without the app's recent events, only an event that the reader has met twice may be one: to read back for each
        would take too long.
        """
        if parking.recent is not None:
            return True
        if self._recent is None or not isinstance(each, LoggedEvent):
            return False
        return self._recent.is_repeated(identity_of(each.entry, each.plain))

    async def _report_lost(self, app_id: str, after: str, batch: Batch) -> None:
        next_offset = batch.entries[0].offset if batch.entries else None
        letter = letter_of_lost(
            self._number, after, batch.lost, next_offset, app_id=app_id, again=app_id in self._older
        )
        await self._state.letters.put([letter])
        logger.error("events_lost", partition=self._number, app_id=app_id, message=letter.message)


def _may_concern(app_id: str, each: ReadEntry) -> bool:
    """Tell whether an entry is an event of an app, or one that cannot be decoded."""
    return each.plain.appid == app_id if isinstance(each, LoggedEvent) else each.error is not None


def _bounded(parking: Parking, entries: list[Entry]) -> list[Entry]:
    """Return the first entries up to ``_REREAD_BYTES``, at least one, and fit the next page to their size."""
    size = 0
    for number, entry in enumerate(entries):
        size += size_of((entry,))
        if size > _REREAD_BYTES:
            parking.page = max(1, number)
            return entries[: max(1, number)]
    parking.page = min(parking.most, 2 * parking.page)
    return entries
