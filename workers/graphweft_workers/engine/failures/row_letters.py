"""Writes the dead letters of single rows: of failed ones, dropped ones, and those that the rules no longer have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import batched
from typing import Final

from graphweft_contracts import DeadLetter, DeadLetterReason, QueryFailed, wire
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_workers.engine.failures.letter_payloads import LetterPayloads
from graphweft_workers.engine.failures.quarantine import Quarantine
from graphweft_workers.engine.failures.skips import MOST_OFFSETS
from graphweft_workers.engine.log.history import in_order
from graphweft_workers.engine.log.read import LoggedEvent, internal_error, letter_for
from graphweft_workers.engine.plan.plan import FailedRows
from graphweft_workers.ports.dead_letters import DeadLetters, letter_with
from graphweft_workers.ports.event_log import EventLog
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.mutation")

_LETTERS: Final = 100
"""Dead letters that are written at once."""


class RowLetters:
    """Writes dead letters of rows; each write is idempotent."""

    def __init__(self, log: EventLog, letters: DeadLetters, quarantine: Quarantine) -> None:
        """Dead letters for rows in quarantine are remembered there."""
        self._log = log
        self._letters = letters
        self._quarantine = quarantine
        self._payloads = LetterPayloads()
        self._logged: BoundedDict[tuple[str, ...], int] = BoundedDict()

    async def write(self, partition: int, failed: FailedRows, events: Sequence[LoggedEvent]) -> None:
        """Write the dead letters of failed rows of events; rows of other events are left out."""
        by_offset = {event.entry.offset: event for event in events}
        there = [by_offset[offset] for offset in failed.offsets if offset in by_offset]
        if failed.reason != "quarantined":
            await self._put([_letter(partition, event, failed.name, failed.reason, failed.message) for event in there])
        elif there:
            await self._write_quarantined(partition, failed, there)

    async def write_refused(self, partition: int, events: Sequence[LoggedEvent], failure: QueryFailed) -> None:
        """Write the dead letters of all rows of events: the app has no graph."""
        names = [(event, (bound.mutation.rule, bound.mutation.id)) for event in events for bound in event.mutations]
        await self._put([_letter(partition, event, name, "query_error", str(failure)) for event, name in names])

    async def write_defect(self, partition: int, event: LoggedEvent, name: tuple[str, str], error: Exception) -> None:
        """Write the dead letter of a row that cannot be planned."""
        await self._put([_letter(partition, event, name, "internal_error", internal_error(error))])

    async def write_gone(
        self, partition: int, rows: Sequence[tuple[str, str, str]], failed: FailedRows | None = None
    ) -> None:
        """Write the dead letters of rows of an unfinished plan that the rules no longer have.

        With ``failed``, the rows failed before, and the letters say so.
        """
        if not rows:
            return
        offsets = in_order({offset for offset, _, _ in rows})
        entries = {entry.offset: entry for entry in await self._log.entries(partition, offsets)}
        for offset, rule, mutation in rows:
            entry = entries.get(offset)
            reason: DeadLetterReason = "missing_rule"
            message = (
                f"the rules changed while this event was half applied: {rule}/{mutation} no longer exists or no longer "
                "matches the event; restore it, then retry this dead letter"
            )
            if failed is not None:
                reason, message = failed.reason, failed.message
            if entry is None:
                logger.error("event_gone", position=f"{partition}:{offset}", rule=rule, mutation=mutation)
                continue
            event = wire.decode(entry.fields, received=entry.received)
            letter = letter_for(partition, entry, reason, message, event=event, rule=rule, mutation=mutation)
            await self._put([letter])

    async def _write_quarantined(self, partition: int, failed: FailedRows, events: Sequence[LoggedEvent]) -> None:
        first = events[0]
        offsets = tuple(event.entry.offset for event in events)
        letter = _letter(partition, first, failed.name, failed.reason, failed.message)
        letter = letter.of_entries(offsets)
        while failed.extends and (earlier := await letter_with(self._letters, failed.extends)) is not None:
            if earlier.reason != "quarantined" or len(earlier.offsets) >= MOST_OFFSETS:
                break
            known = set(earlier.offsets)
            fresh = tuple(offset for offset in offsets if offset not in known)
            longer = earlier.of_entries((*earlier.offsets, *fresh))
            if not fresh or await self._letters.extend(earlier, longer):
                self._quarantine.remember(partition, first, failed, longer)
                return
        await self._letters.put([letter])
        self._quarantine.remember(partition, first, failed, letter)

    async def _put(self, letters: Sequence[DeadLetter]) -> None:
        for some in batched(letters, _LETTERS):
            await self._letters.put([self._payloads.once(letter) for letter in some])
        for letter in letters:
            cause = (str(letter.rule), str(letter.mutation), letter.reason)
            times = self._logged[cause] = self._logged.get(cause, 0) + 1
            # Only the 1st, 10th, 100th … of a cause is an error: a broken rule must not flood the log.
            level = logger.error if str(times).strip("0") == "1" else logger.debug
            level(
                "mutation_buried", times=times, rule=letter.rule, mutation=letter.mutation, place=letter.place,
                reason=letter.reason, message=letter.message, event_id=letter.event_id, position=letter.position,
            )  # fmt: skip


def _letter(
    partition: int, event: LoggedEvent, name: tuple[str, str], reason: DeadLetterReason, message: str
) -> DeadLetter:
    found = (bound.mutation for bound in event.mutations)
    place = next((str(each.place) for each in found if (each.rule, each.id) == name), None)
    return letter_for(
        partition, event.entry, reason, message, event=event.event, rule=name[0], mutation=name[1], place=place
    )
