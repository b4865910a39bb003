"""Putting what dead letters stand for back on the bus, once each."""

from __future__ import annotations

from collections.abc import Mapping

from graphweft_contracts import DeadLetter, InvalidEvent, wire
from graphweft_workers.bus.log import Bus, Entry, retry_entry
from graphweft_workers.mutation.duplicates import RecentEvents
from graphweft_workers.mutation.history import between, known_before
from graphweft_workers.mutation.reading import identity_of

__all__ = ("retry",)


async def retry(bus: Bus, letter: DeadLetter) -> int:
    """Put the events of a letter back on their partition; return how many, 0 when the letter or its events are gone.

    Of each event only the letter's mutation runs again. A letter that stands for a range shrinks page by page, so an
    interruption leaves one for the rest. Raises ``BusUnavailable``.
    """
    if letter.reason == "trimmed":
        return 0
    if letter.until is None:
        return int(await bus.requeue(letter, [retry_entry(letter)]))
    number, first = _split(letter.position)
    last = _split(letter.until)[1]
    before = await bus.before(number, first, limit=2)
    start = before[0].offset if len(before) == 2 else ""
    recent = await known_before(bus, number, start)
    count = 0
    entries: list[Mapping[bytes, bytes]] = []
    async for page in between(bus, number, start, last):
        if entries:
            rest = letter.model_copy(update={"position": f"{number}:{page[0].offset}"})
            if not await bus.requeue(letter, entries, rest):
                return count
            count, letter = count + len(entries), rest
        entries = [
            again
            for entry in page
            if (again := _again(letter, entry, recent)) is not None and not bus.is_after(first, entry.offset)
        ]
    return count + len(entries) * await bus.requeue(letter, entries)


def _again(letter: DeadLetter, entry: Entry, recent: RecentEvents) -> dict[bytes, bytes] | None:
    """Return the entry as it is to run again for a letter of a range; None when the letter is not about it."""
    try:
        event = wire.decode(entry.fields, received=entry.received)
        retried = wire.retry_of(entry.fields)
        copy = recent.is_copy(identity_of(entry, event))
    except InvalidEvent:
        recent.is_copy(None)
        return None
    if (
        copy
        or event.appid != letter.app_id
        or event.workflow != letter.workflow
        or not letter.rule
        or not letter.mutation
    ):
        return None
    if retried is not None and (retried.rule, retried.mutation) != (letter.rule, letter.mutation):
        return None
    again = wire.Retry(
        f"{letter.id}@{entry.offset}", letter.rule, letter.mutation, asks=retried is None or retried.asks
    )
    return {**entry.fields, wire.RETRY: again.encode()}


def _split(position: str) -> tuple[int, str]:
    number, _, offset = position.partition(":")
    return int(number), offset
