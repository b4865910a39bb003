"""Retries of dead letters: appends their events to the bus again, once each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import batched
from typing import Final

from graphweft_contracts import DeadLetter, InvalidEvent, RefusedEvent, wire
from graphweft_contracts.dead_letters import REFUSED
from graphweft_contracts.wire import WHOLE
from graphweft_workers.engine.letter_payloads import payload_of
from graphweft_workers.engine.read import row_id
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import drop_entry, retry_entry
from graphweft_workers.ports.event_log import Entry

_AT_ONCE: Final = 200
_BYTES_AT_ONCE: Final = 4 * 1024**2
"""Roughly the most that one call appends: the server does nothing else meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The result of a retry."""

    events: int = 0
    """Events that were appended to the bus again."""
    kept: str | None = None
    """Why the dead letter, or one for the rest of its events, is still there."""


async def retry(bus: Bus, letter: DeadLetter, *, partial: bool = False) -> Retried:
    """Append the events of a dead letter to their partition again; only the letter's mutation runs for them.

    If the bus no longer holds all of them, nothing is appended and the dead letter stays. With ``partial`` the others
    are appended, and a dead letter for the missing ones stays. A dead letter with many events shrinks page by page, so
    after an interruption it holds the rest. Raises ``BusUnavailable``.
    """
    if letter.reason == "trimmed":
        return Retried(kept="the bus trimmed these events before they were read: emit them again, or drop this letter")
    if letter.reason in REFUSED and (fault := await _still_refused(bus, letter)):
        return Retried(kept=fault)
    if not letter.offsets:
        if letter.count > 1:
            return Retried(kept="another version of graphweft wrote this dead letter without the offsets of its events")
        if await bus.requeue(letter, [retry_entry(letter)]):
            return Retried(events=1)
        return Retried(kept="the dead letter has changed; retry it again")
    if await _is_ahead(bus, letter):
        return Retried(kept="workers have not read past all of its events: restart them, then retry it again")
    there = {entry.offset for page in batched(letter.offsets, _AT_ONCE)
             for entry in await bus.entries(letter.partition, page)}  # fmt: skip
    gone = tuple(offset for offset in letter.offsets if offset not in there)
    if (
        gone and not letter.fields and (fields := await payload_of(bus, letter))
    ):  # a letter beside it has kept the event
        if await bus.requeue(letter, [retry_entry(letter.model_copy(update={"fields": fields}))]):
            return Retried(events=1)
        return Retried(kept="the dead letter has changed; retry it again")
    if gone and not partial:
        return Retried(
            kept=f"the bus no longer holds {len(gone)} of its {letter.count} events, so none was retried; "
            "`graphweft dlq retry --partial` retries the others"
        )
    missing = _of_missing(letter, gone) if gone else None
    return await _requeue(bus, letter, [offset for offset in letter.offsets if offset in there], missing)


async def _still_refused(bus: Bus, letter: DeadLetter) -> str:
    """Return why an entry without a valid signature still has none by the keys of now; empty if it has one."""
    found = await bus.entries(letter.partition, [letter.offset])
    if not found:
        return (
            "the bus no longer holds the event, so its signature cannot be checked: emit it again, and drop this letter"
        )
    try:
        found[0].event()
    except RefusedEvent as error:
        return f"its signature is still refused: {error}"
    except InvalidEvent:
        pass  # the worker says what is wrong
    return ""


async def drop(bus: Bus, letter: DeadLetter) -> str | None:
    """Delete a dead letter: what it stands for never takes effect, in a rebuild neither. The log records it.

    Return why the dead letter is still there, or None. Raises ``BusUnavailable``.
    """
    if await _is_ahead(bus, letter):
        return "workers have not read past all of its events: restart them, then drop it again"
    return None if await bus.requeue(letter, [drop_entry(letter)]) else "the dead letter has changed; drop it again"


async def _is_ahead(bus: Bus, letter: DeadLetter) -> bool:
    """Return whether events of the letter are set aside that the workers have still to pass over."""
    if letter.reason != "set_aside":
        return False
    status = next((status for status in await bus.status() if status.id == letter.partition), None)
    return status is None or bus.is_after(letter.offsets[-1], status.position)


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
            return Retried(events=done, kept="the bus has trimmed its events; retry it again")
        offsets = offsets[len(entries) :]
        rest = letter.of_entries(tuple(offsets)) if offsets else missing
        if not await bus.requeue(letter, entries, rest):
            return Retried(events=done, kept="the dead letter has changed; retry it again")
        done += len(entries)
        letter = rest or letter
    if not done and missing is not None:
        await bus.requeue(letter, [], missing)
    kept = None if missing is None else f"the bus no longer holds {missing.count} of its events"
    return Retried(events=done, kept=kept)


def _again(letter: DeadLetter, entry: Entry) -> dict[bytes, bytes]:
    """Return the entry of a retry. Its id is that of the row, so a second retry of the row is a copy."""
    if letter.rule is None or letter.mutation is None:
        again = wire.Retry(row_id(letter.partition, entry.offset, None, None), letter.event_type or WHOLE, WHOLE)
    else:
        row = row_id(letter.partition, entry.offset, letter.rule, letter.mutation)
        again = wire.Retry(row, letter.rule, letter.mutation, asks=letter.reason == "skipped")
    return {**entry.fields, wire.RETRY: again.encode(), **wire.recording(entry.fields, entry.received)}


def _of_missing(letter: DeadLetter, gone: tuple[str, ...]) -> DeadLetter:
    return letter.of_entries(gone).model_copy(
        update={
            "id": f"{letter.id}:trimmed",
            "reason": "trimmed",
            "message": "the bus trimmed these events before they were retried: emit them again, or drop this letter",
            "offsets": (),
        }
    )
