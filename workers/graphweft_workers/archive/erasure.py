"""Erases entries from the archive: segments are rewritten with their content gone.

An erased entry keeps its place, its offset and its time, so numbers, positions and the order of all others stay as they
are. It has no effect in a replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from graphweft_contracts import Event, InvalidEvent, wire
from graphweft_contracts.memory import memory_id
from graphweft_workers.archive import segments as format_
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.segments import Segment
from graphweft_workers.ports.event_log import Entry

_MOST_PASSES: Final = 5


@dataclass(slots=True, kw_only=True)
class Subject:
    """Whose entries are erased: an app's, or those of one user of it."""

    app_id: str
    user_id: str | None = None
    alone: set[str] = field(default_factory=set[str])
    """Chats of the user that no other user has an event in."""
    shared: set[str] = field(default_factory=set[str])
    """Chats in which somebody else has an event."""
    memories: set[str] = field(default_factory=set[str])
    """Ids of the user's memories: events that name them, with vectors and summaries, are the user's too."""

    def learn(self, entries: Iterable[Entry]) -> None:
        """Take note of the chats and memories of the user. Call it with all entries before ``holds``."""
        if self.user_id is None:
            return
        for entry in entries:
            event = event_of(entry)
            if event is None or event.appid != self.app_id:
                continue
            users = _users(event)
            if users and users != {self.user_id}:
                self.shared.add(event.chatid)
            elif users:
                self.alone.add(event.chatid)
            if self.user_id in users:
                self.memories.update(_memories(event))

    def holds(self, entry: Entry) -> bool:
        """Tell whether an entry is to be erased."""
        event = event_of(entry)
        if event is None or event.appid != self.app_id:
            return False
        if self.user_id is None:
            return True
        users = _users(event)
        if users:
            return self.user_id in users
        if event.chatid in self.alone and event.chatid not in self.shared:
            return True
        return not self.memories.isdisjoint(_named_memories(event))


def event_of(entry: Entry) -> Event | None:
    """Return the event of an entry; None for an erased one, a control entry, and what is no event."""
    if entry.erased or wire.DATA not in entry.fields:
        return None
    try:
        return wire.decode(entry.fields, received=entry.received)
    except InvalidEvent:
        return None


def _users(event: Event) -> set[str]:
    data: Mapping[str, Any] = event.data
    context: Any = data.get("context")
    inner: Any = cast("Mapping[str, Any]", context).get("user_id") if isinstance(context, Mapping) else None
    return {each for each in (event.userid, data.get("user_id"), inner) if isinstance(each, str) and each}


def _memories(event: Event) -> Iterable[str]:
    """Return the ids of the memories that an event creates or derives."""
    messages: Any = event.data.get("messages")
    if event.type != "memory.add" or not isinstance(messages, list):
        return ()
    count = len(cast("list[object]", messages))
    return [memory_id(event.source, event.id, number) for number in range(count)]


def _named_memories(event: Event) -> set[str]:
    found: set[str] = set()
    if event.type.startswith("memory."):
        one: Any = event.data.get("memory_id")
        many: Any = event.data.get("memory_ids")
        listed = cast("list[object]", many) if isinstance(many, list) else []
        found.update(each for each in (one, *listed) if isinstance(each, str))
    return found


@dataclass(slots=True, kw_only=True)
class ErasedSegments:
    """What was done to one partition of the archive."""

    entries: int = 0
    """Entries that were erased now."""
    rewritten: int = 0
    """Segments that were rewritten."""
    left: int = 0
    """Entries that still hold something of the subject: 0, unless other processes go on writing old ones."""


async def learn(reader: ArchiveReader, partition: int, subject: Subject) -> None:
    """Let the subject see all entries of a partition."""
    await reader.refresh(partition)
    for piece in await reader.pieces(partition):
        subject.learn(await reader.read(piece))


async def erase_entries(
    reader: ArchiveReader, partition: int, subject: Subject, *, tell: Callable[[int], None] = lambda _: None
) -> ErasedSegments:
    """Erase the subject's entries from all segments of a partition; ``tell`` gets the number of segments looked at.

    A new segment is written before the old one is deleted. After an interruption a further call goes on. Raises
    ``ArchiveUnavailable``.
    """
    done = ErasedSegments()
    found = 0
    for _ in range(_MOST_PASSES):
        await reader.refresh(partition)
        segments = sorted(await reader.segments(partition), key=lambda each: (each.first, each.generation))
        newest, found = max((each.generation for each in segments), default=0), 0
        for number, segment in enumerate(segments, 1):
            entries = await reader.load(segment)
            erased = [_without(entry) if subject.holds(entry) else entry for entry in entries]
            here = sum(one is not other for one, other in zip(entries, erased, strict=True))
            if here:
                found += here
                await _replace(reader, segment, erased, newest + 1)
                done.rewritten += 1
            tell(number)
        done.entries += found
        await _delete_covered(reader, partition)
        if not found:
            break
    else:
        done.left = found
    return done


async def count_entries(reader: ArchiveReader, partition: int, subject: Subject) -> int:
    """Return how many entries of the subject the archive holds, in all segments of a partition."""
    await reader.refresh(partition)
    found = 0
    for segment in await reader.segments(partition):
        found += sum(subject.holds(entry) for entry in await reader.load(segment))
    return found


def _without(entry: Entry) -> Entry:
    return replace(entry, fields={}, erased=True)


async def _replace(reader: ArchiveReader, segment: Segment, entries: Sequence[Entry], generation: int) -> None:
    made, data = await asyncio.to_thread(
        format_.encode, segment.partition, segment.first, entries, generation=generation
    )  # fmt: skip
    await reader.blobs.put(made.name, data)
    await reader.blobs.delete([segment.name])
    reader.forget(segment)


async def _delete_covered(reader: ArchiveReader, partition: int) -> None:
    """Delete segments of which nothing is read, because others hold the same entries."""
    await reader.refresh(partition)
    read = {piece.segment.name for piece in await reader.pieces(partition)}
    await reader.blobs.delete([each.name for each in await reader.segments(partition) if each.name not in read])
    await reader.refresh(partition)
