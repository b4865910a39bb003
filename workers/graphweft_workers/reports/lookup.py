"""Finds an event by its position or its id, and its copies and retries."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from graphweft_workers.engine.failures.corrections import CORRECTS
from graphweft_workers.engine.log.duplicates import REACH, WINDOW, Identity, identity_of
from graphweft_workers.engine.log.read import row_id
from graphweft_workers.engine.log.series import number_of
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import backwards, forwards, size_of
from graphweft_workers.reports.entries import DecodedEntry
from graphweft_workers.reports.scan import Decoder, ScanLimits, newest_first

_POSITION: Final = re.compile(r"[0-9]{1,9}:[0-9]{1,18}(-[0-9]{1,18})?", re.ASCII)
_REPORT: Final = 10_000


async def at_position(bus: Bus, decoder: Decoder, text: str, ends: Mapping[int, str]) -> DecodedEntry | None:
    """Return the entry at ``partition:offset``; None for text of another form, and without such an entry."""
    if not _POSITION.fullmatch(text):
        return None
    number, _, offset = text.partition(":")
    partition = int(number)
    if partition not in ends or not bus.offsets.accepts(offset) or is_after(offset, ends[partition]):
        return None
    entries = await bus.log.entries(partition, [offset])
    return await decoder.see(partition, entries[0]) if entries else None


async def with_id(
    bus: Bus, decoder: Decoder, event_id: str, ends: Mapping[int, str], limits: ScanLimits, *, app_id: str | None
) -> list[DecodedEntry]:
    """Return the entries of events with an id, the newest first; of one app, or of all."""
    found: list[DecodedEntry] = []
    async for partition, entry in limits.within(newest_first(bus.log, ends)):
        seen = await decoder.see(partition, entry)
        if seen.event is not None and seen.event.id == event_id and app_id in (None, seen.event.appid):
            found.append(seen)
    return found


@dataclass(slots=True, kw_only=True)
class Relatives:
    """The copies, retries, corrections and drops of an event in its partition."""

    copy_of: str | None = None
    """The position of the earliest entry of the same event, if it lies within the window of copies."""
    copies: list[str] = field(default_factory=list[str])
    """Positions of later entries of the event that have no effect."""
    repeats: list[str] = field(default_factory=list[str])
    """Positions of later entries that take effect again, because the entry before lies outside the window of copies."""
    retries: list[DecodedEntry] = field(default_factory=list[DecodedEntry])
    corrections: list[DecodedEntry] = field(default_factory=list[DecodedEntry])
    """Entries of other events that take its place, each for one mutation."""
    drops: list[DecodedEntry] = field(default_factory=list[DecodedEntry])
    """Entries that record a dropped dead letter of the event."""
    searched: int = 0
    """Entries after the event that were read."""
    complete: bool = True
    """Whether all entries were read that may be its copies and retries."""


async def relatives_of(
    bus: Bus, decoder: Decoder, seen: DecodedEntry, ends: Mapping[int, str], limits: ScanLimits
) -> Relatives:
    """Return the copies, retries and drops of an event, in as many entries after it as ``limits`` allow."""
    found = Relatives()
    own = _identity(seen)
    if own is None:
        return found
    distance = entries = read = 0
    async for entry in backwards(bus.log, seen.partition, seen.entry.offset):
        if entry.offset != seen.entry.offset:
            earlier = await decoder.see(seen.partition, entry)
            identity = _identity(earlier)
            distance += identity is not None and identity[0] == own[0]
            entries += 1
            if distance > WINDOW or entries > REACH:
                break
            read += size_of(entry.fields)
            if limits.size is not None and read > limits.size:
                found.complete = False
                break
            if identity == own:
                found.copy_of = earlier.position
    numbered = seen.event is not None and number_of(seen.entry, seen.event) is not None
    last = distance = read = 0
    async for entry in forwards(bus.log, seen.partition, seen.entry.offset, ends.get(seen.partition, "")):
        if found.searched == limits.entries or (limits.size is not None and read > limits.size):
            found.complete = False
            break
        found.searched += 1
        read += size_of(entry.fields)
        if found.searched % _REPORT == 0:
            limits.on_progress(found.searched)
        later = await decoder.see(seen.partition, entry)
        identity = _identity(later)
        distance += identity is not None and identity[0] == own[0]
        if identity == own:
            (found.copies if numbered or distance - last <= WINDOW else found.repeats).append(later.position)
            last = distance
        elif _retries(later, seen):
            found.retries.append(later)
        elif corrects(later, seen):
            found.corrections.append(later)
        elif _drops(later, seen):
            found.drops.append(later)
    return found


async def copies_among(
    bus: Bus, decoder: Decoder, entries: Collection[DecodedEntry], limits: ScanLimits
) -> dict[str, str]:
    """Return the positions of those entries that are copies, each with the position of an earlier entry of its event.

    A copy is known if the earlier entry is among as many entries before the newest as ``limits`` allow.
    """
    wanted = {(seen.partition, _identity(seen)) for seen in entries if _identity(seen) is not None}
    newest: dict[int, str] = {}
    for seen in entries:
        if is_after(seen.entry.offset, newest.get(seen.partition, "")):
            newest[seen.partition] = seen.entry.offset
    later: dict[tuple[int, Identity | None], list[str]] = {}
    found: dict[str, str] = {}
    async for partition, entry in limits.within(newest_first(bus.log, newest if wanted else {})):
        seen = await decoder.see(partition, entry)
        own = (partition, _identity(seen))
        if own in wanted:
            found |= dict.fromkeys(later.setdefault(own, []), seen.position)
            later[own].append(seen.position)
    return {seen.position: found[seen.position] for seen in entries if seen.position in found}


def rows_of(seen: DecodedEntry, names: Collection[tuple[str, str]]) -> list[str]:
    """Return the ids that dead letters of this entry may have: one for the whole entry, and one for each mutation."""
    offset = seen.entry.offset
    return [row_id(seen.partition, offset, None, None), *(row_id(seen.partition, offset, *name) for name in names)]


def _retries(later: DecodedEntry, seen: DecodedEntry) -> bool:
    """Tell whether an entry retries an event. Anybody may write the field, so the event must be the same too."""
    if later.retry is None or later.event is None or seen.event is None or seen.retry is not None:
        return False
    same = (later.event.appid, *later.event.identity) == (seen.event.appid, *seen.event.identity)
    letter, own = later.retry.letter, seen.position
    return same and (letter == own or letter.startswith(f"{own}:"))


def corrects(later: DecodedEntry, seen: DecodedEntry) -> bool:
    """Tell whether an entry holds the event that takes the place of another one, for one mutation.

    Anybody may write the fields of its entry, so it must be of the same app, and name the old event.
    """
    if later.retry is None or later.event is None or seen.event is None or not later.retry.corrects:
        return False
    same = later.event.appid == seen.event.appid and (later.event.model_extra or {}).get(CORRECTS) == seen.event.id
    return same and later.retry.letter.startswith(f"{seen.position}:")


def _drops(later: DecodedEntry, seen: DecodedEntry) -> bool:
    dropped = later.dropped
    return dropped is not None and dropped.app_id in (None, seen.app_id) and seen.entry.offset in dropped.offsets


def _identity(seen: DecodedEntry) -> Identity | None:
    if seen.event is None or seen.kind == "activation":
        return None
    return identity_of(seen.entry, seen.event)
