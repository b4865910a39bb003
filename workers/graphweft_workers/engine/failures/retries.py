"""Retries of dead letters: appends their events to the bus again, once each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import batched
from typing import Final

from graphweft_contracts import DeadLetter, InvalidEvent, RefusedEvent, wire
from graphweft_contracts.dead_letters import REFUSED
from graphweft_contracts.errors import MisplacedEvent
from graphweft_contracts.signatures import SIGNATURE
from graphweft_contracts.wire import WHOLE
from graphweft_workers.engine.failures.letter_payloads import payload_of
from graphweft_workers.engine.log.read import row_id
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import drop_entry, retry_entry
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import size_of

_AT_ONCE: Final = 200
_BYTES_AT_ONCE: Final = 4 * 1024**2
"""Roughly the most that one call appends: the server does nothing else meanwhile."""
_TOOK_EFFECT: Final = (
    "a worker reached it before it knew of the letter, so it has taken effect or has a letter of its own: drop this one"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryResult:
    """The result of a retry."""

    events: int = 0
    """Events that were appended to the bus again."""
    kept: str | None = None
    """Why the dead letter, or one for the rest of its events, is still there."""


_NO_KEYS: Final = (
    "its event is signed, and this process has no keys, so workers with keys would refuse the retry for good: set "
    "GRAPHWEFT_SIGNING_KEYS as for the workers. If they have none, `graphweft dlq retry --without-keys` retries it"
)


async def retry(bus: Bus, letter: DeadLetter, *, partial: bool = False, without_keys: bool = False) -> RetryResult:
    """Append the events of a dead letter to their partition again; only the letter's mutation runs for them.

    If the bus no longer holds all of them, nothing is appended and the dead letter stays. With ``partial`` the others
    are appended, and a dead letter for the missing ones stays. A dead letter with many events shrinks page by page, so
    after an interruption it holds the rest. Raises ``BusUnavailable``.

    A signed event stays if nobody signs its retry here, unless ``without_keys`` says that workers check no signatures.
    """
    if letter.reason == "trimmed":
        return RetryResult(kept=letter.message)  # which says what can be done instead
    if not without_keys and bus.judge is None and SIGNATURE in wire.unpack(await payload_of(bus, letter)):
        return RetryResult(kept=_NO_KEYS)
    if not letter.offsets:
        if letter.count > 1:
            return RetryResult(
                kept="another version of graphweft wrote this dead letter without the offsets of its events"
            )
        if letter.reason == "unreadable":
            return await _retry_unread(bus, letter)
        if fault := await _refused(bus, letter):
            return RetryResult(kept=fault)
        if await bus.dead_letters.requeue(letter, [retry_entry(letter)]):
            return RetryResult(events=1)
        return RetryResult(kept="the dead letter has changed; retry it again")
    if await _is_ahead(bus, letter):
        return RetryResult(kept="workers have not read past all of its events: restart them, then retry it again")
    there = {entry.offset: _fault(entry) for page in batched(letter.offsets, _AT_ONCE)
             for entry in await bus.log.entries(letter.partition, page)}  # fmt: skip
    refused = {offset: fault for offset, fault in there.items() if fault}
    refused |= dict.fromkeys(_unheeded(letter), _TOOK_EFFECT)
    gone = tuple(offset for offset in letter.offsets if offset not in there and offset not in refused)
    if (
        gone
        and letter.count == 1
        and not letter.fields
        and _was_checked(bus, letter)
        and (fields := await payload_of(bus, letter))
    ):  # a letter beside it has kept the event
        row = row_id(letter.partition, letter.offset, letter.rule, letter.mutation)
        if await bus.dead_letters.requeue(
            letter, [retry_entry(letter.model_copy(update={"id": row, "fields": fields}))]
        ):
            return RetryResult(events=1)
        return RetryResult(kept="the dead letter has changed; retry it again")
    if gone and not partial:
        return RetryResult(
            kept=f"the bus no longer holds {len(gone)} of its {letter.count} events, so none was retried; "
            "`graphweft dlq retry --partial` retries the others"
        )
    good = [offset for offset in letter.offsets if offset in there and offset not in refused]
    if refused:
        return await _requeue_but(bus, letter, good, refused)
    missing = _of_missing(letter, gone) if gone else None
    return await _requeue(bus, letter, good, missing)


async def _retry_unread(bus: Bus, letter: DeadLetter) -> RetryResult:
    """Retry an event whose record nobody could read: only the bus has it."""
    found = await bus.log.entries(letter.partition, [letter.offset])
    if not found:
        return RetryResult(kept="the bus no longer holds the event: emit it again, and drop this letter")
    entry = found[0]
    if wire.UNREADABLE in entry.fields:
        return RetryResult(kept=f"{letter.message}: it still cannot; emit the event again, and drop this letter")
    if fault := _fault(entry):
        return RetryResult(kept=fault)
    if await bus.dead_letters.requeue(letter, [_again(letter, entry)]):
        return RetryResult(events=1)
    return RetryResult(kept="the dead letter has changed; retry it again")


async def _refused(bus: Bus, letter: DeadLetter) -> str:
    """Return why the event of a letter may not be signed by a worker's key; empty if it may."""
    found = await bus.log.entries(letter.partition, [letter.offset])
    if found:
        return _fault(found[0])
    if letter.reason in REFUSED or not _was_checked(bus, letter):
        return (
            "the bus no longer holds the event, so its signature cannot be checked: emit it again, and drop this letter"
        )
    return ""


def _was_checked(bus: Bus, letter: DeadLetter) -> bool:
    """Return whether a worker has checked the signature, or nothing checks any: then the letter names a rule."""
    return letter.rule is not None or bus.judge is None


def _fault(entry: Entry) -> str:
    """Return why an entry may not be signed by a worker's key, which would let it through; empty if it may.

    Without keys nothing is signed. A letter says nothing about the signature: an event that was set aside, or that an
    earlier version could not read, was never checked.
    """
    if entry.judge is None:
        return _misplaced(entry)
    try:
        if entry.dropped() is None:
            entry.event()
    except MisplacedEvent as error:
        return str(error)
    except RefusedEvent as error:
        return f"its signature is refused: {error}"
    except InvalidEvent as error:
        return f"its signature cannot be checked, because the event cannot be read: {error}; drop this letter"
    except Exception as error:  # noqa: BLE001 - whatever an entry holds
        return f"its signature cannot be checked ({type(error).__name__}): after an update, retry it again"
    return ""


def _misplaced(entry: Entry) -> str:
    """Return why the partition of an entry takes no events of its app; empty if it does."""
    if entry.place is not None:
        try:
            entry.event()
        except MisplacedEvent as error:
            return str(error)
        except Exception:  # noqa: BLE001 - whatever an entry holds: the retry shows it again
            return ""
    return ""


async def _requeue_but(bus: Bus, letter: DeadLetter, offsets: list[str], refused: Mapping[str, str]) -> RetryResult:
    """Retry the events at ``offsets``, which the bus holds; the letter keeps all its others."""
    done = 0
    others = set(letter.offsets).difference(offsets)
    why = (
        f"{len(refused)} of its events were not retried, the first one at {letter.partition}:{next(iter(refused))}: "
        f"{next(iter(refused.values()))}"
    )
    while offsets:
        page = offsets[:_AT_ONCE]
        entries = _page(letter, await bus.log.entries(letter.partition, page))
        if not entries:
            return RetryResult(events=done, kept="the bus has trimmed its events; retry it again")
        offsets = offsets[len(entries) :]
        kept = others.union(offsets)
        rest = letter.of_entries(tuple(offset for offset in letter.offsets if offset in kept))
        if not await bus.dead_letters.requeue(letter, entries, rest):
            return RetryResult(events=done, kept="the dead letter has changed; retry it again")
        done += len(entries)
        letter = rest
    return RetryResult(events=done, kept=why)


async def drop(bus: Bus, letter: DeadLetter) -> str | None:
    """Delete a dead letter: what it stands for never takes effect, in a rebuild neither. The log records it.

    Return why the dead letter is still there, or None. Raises ``BusUnavailable``.
    """
    if await _is_ahead(bus, letter):
        return "workers have not read past all of its events: restart them, then drop it again"
    if letter.passed_over and bus.gives_partitions:
        own = (await bus.partitions.layout()).own.get(letter.app_id or "")
        if own is not None and own.number != letter.partition:
            return (
                f"the app {letter.app_id!r} has partition {own.number} of its own since, and only there may an entry "
                "of the log drop something of it"
            )
    entries = [drop_entry(letter)] if letter.passed_over else []
    return None if await bus.dead_letters.requeue(letter, entries) else "the dead letter has changed; drop it again"


async def _is_ahead(bus: Bus, letter: DeadLetter) -> bool:
    """Return whether events of the letter are set aside that the workers have still to pass over."""
    if letter.reason != "set_aside":
        return False
    status = next((status for status in await bus.partitions.status() if status.id == letter.partition), None)
    return status is None or is_after(letter.offsets[-1], status.position)


def _unheeded(letter: DeadLetter) -> Iterable[str]:
    """Return the offsets of events that a worker applied, or wrote another letter of, before it knew of this one."""
    return set(letter.offsets).difference(letter.passed_over)


async def _requeue(bus: Bus, letter: DeadLetter, offsets: Sequence[str], missing: DeadLetter | None) -> RetryResult:
    done = 0
    while offsets:
        entries = _page(letter, await bus.log.entries(letter.partition, offsets[:_AT_ONCE]))
        if not entries:
            return RetryResult(events=done, kept="the bus has trimmed its events; retry it again")
        offsets = offsets[len(entries) :]
        rest = letter.of_entries(tuple(offsets)) if offsets else missing
        if not await bus.dead_letters.requeue(letter, entries, rest):
            return RetryResult(events=done, kept="the dead letter has changed; retry it again")
        done += len(entries)
        letter = rest or letter
    if not done and missing is not None:
        await bus.dead_letters.requeue(letter, [], missing)
    kept = None if missing is None else f"the bus no longer holds {missing.count} of its events"
    return RetryResult(events=done, kept=kept)


def _page(letter: DeadLetter, found: Sequence[Entry]) -> list[Mapping[bytes, bytes]]:
    """Return the entries of retries that one call appends: of the first of these entries, at least one."""
    entries: list[Mapping[bytes, bytes]] = []
    size = 0
    for entry in found:
        size += size_of(entry.fields)
        if entries and size > _BYTES_AT_ONCE:
            break
        entries.append(_again(letter, entry))
    return entries


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
