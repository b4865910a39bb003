"""Putting what dead letters stand for back on the bus, once each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import batched
from typing import Final

from graphweft_contracts import DeadLetter, wire
from graphweft_workers.bus.log import Bus, Entry, retry_entry
from graphweft_workers.mutation.reading import WHOLE, row_id

_AT_ONCE: Final = 200
_BYTES_AT_ONCE: Final = 4 * 1024**2
"""Roughly what one call puts back on the bus: the server does nothing else meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """What became of the retry of a letter."""

    events: int = 0
    """How many events are back on the bus."""
    kept: str | None = None
    """Why the letter, or a letter for the rest, is still there."""


async def retry(bus: Bus, letter: DeadLetter, *, partial: bool = False) -> Retried:
    """Put the events of a letter back on their partition.

    Of each event only the letter's mutation runs again. All entries must still be on the bus: if some are missing,
    nothing is put back and the letter stays, unless ``partial`` is set; then a letter for the missing ones stays. A
    letter for many events shrinks page by page, so an interruption leaves a letter for the rest. Raises
    ``BusUnavailable``.
    """
    if letter.reason == "trimmed":
        return Retried(kept="these events left the bus before they were read: emit them again, or drop the letter")
    if not letter.offsets:
        if letter.count > 1:
            return Retried(kept="another version of graphweft wrote this letter, without the events that it stands for")
        if await bus.requeue(letter, [retry_entry(letter)]):
            return Retried(events=1)
        return Retried(kept="the letter changed meanwhile; retry it again")
    if letter.reason == "set_aside":
        status = next((status for status in await bus.status() if status.id == letter.partition), None)
        if status is None or bus.is_after(letter.offsets[-1], status.position):
            return Retried(kept="workers have not passed over all of its events yet: restart them, and wait for that")
    there = {entry.offset for page in batched(letter.offsets, _AT_ONCE)
             for entry in await bus.entries(letter.partition, page)}  # fmt: skip
    gone = tuple(offset for offset in letter.offsets if offset not in there)
    if gone and not partial:
        return Retried(
            kept=f"{len(gone)} of its {letter.count} events are no longer on the bus, so none was retried; "
            "`graphweft dlq retry --partial` retries those that are there"
        )
    missing = _of_missing(letter, gone) if gone else None
    return await _requeue(bus, letter, [offset for offset in letter.offsets if offset in there], missing)


async def _requeue(bus: Bus, letter: DeadLetter, offsets: Sequence[str], missing: DeadLetter | None) -> Retried:
    done = 0
    while offsets:
        entries: list[Mapping[bytes, bytes]] = []
        size = 0
        for entry in await bus.entries(letter.partition, offsets[:_AT_ONCE]):
            size += sum(len(name) + len(value) for name, value in entry.fields.items())
            if entries and size > _BYTES_AT_ONCE:
                break
            entries.append(_again(letter, entry))
        if not entries:
            return Retried(events=done, kept="its events left the bus meanwhile; retry it again")
        offsets = offsets[len(entries) :]
        rest = letter.of_entries(tuple(offsets)) if offsets else missing
        if not await bus.requeue(letter, entries, rest):
            return Retried(events=done, kept="the letter changed meanwhile; retry it again")
        done += len(entries)
        letter = rest or letter
    if not done and missing is not None:
        await bus.requeue(letter, [], missing)
    kept = None if missing is None else f"{missing.count} of its events are no longer on the bus"
    return Retried(events=done, kept=kept)


def _again(letter: DeadLetter, entry: Entry) -> dict[bytes, bytes]:
    """Return an entry as it is to run again. Its id is that of the row: two retries of a row are copies."""
    if letter.rule is None or letter.mutation is None:
        again = wire.Retry(row_id(letter.partition, entry.offset, None, None), letter.event_type or WHOLE, WHOLE)
    else:
        row = row_id(letter.partition, entry.offset, letter.rule, letter.mutation)
        again = wire.Retry(row, letter.rule, letter.mutation, asks=letter.reason == "skipped")
    return {**entry.fields, wire.RETRY: again.encode()}


def _of_missing(letter: DeadLetter, gone: tuple[str, ...]) -> DeadLetter:
    return letter.of_entries(gone).model_copy(
        update={
            "id": f"{letter.id}:trimmed",
            "reason": "trimmed",
            "message": "these events left the bus before this letter was retried; emit them again, or drop the letter",
            "offsets": (),
        }
    )
