"""Erases a user, or all, from what was restored of an app: entries and dead letters of its preludes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from graphweft_contracts import DeadLetter, wire
from graphweft_workers.archive.erasure import count_entries, erase_entries, learn
from graphweft_workers.archive.preludes import Prelude, preludes_in, remove
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.archive.subject import Subject
from graphweft_workers.ports.blobs import BlobStore


async def learn_restored(blobs: BlobStore, subject: Subject) -> None:
    """Let the subject see the preludes of its app. Raises ``ArchiveUnavailable``."""
    async for reader, number, own in _partitions(blobs, subject):
        await learn(reader, number, own)


async def count_restored(blobs: BlobStore, subject: Subject) -> int:
    """Return how many entries of the subject are in the preludes of its app. Raises ``ArchiveUnavailable``."""
    return sum([await count_entries(*each) async for each in _partitions(blobs, subject)])


async def erase_restored(blobs: BlobStore, subject: Subject) -> int:
    """Erase the subject from the preludes of its app; return how many entries it had there now.

    Without a user, the preludes are deleted. After an interruption a further call goes on. Raises
    ``ArchiveUnavailable``.
    """
    if subject.user_id is None:
        found = await count_restored(blobs, subject)
        await remove(blobs, subject.app_id)
        return found
    erased = 0
    async for each in _partitions(blobs, subject):
        erased += (await erase_entries(*each)).entries
    for prelude in await preludes_in(blobs, subject.app_id):
        await _erase_letters(prelude)
    return erased


async def _partitions(blobs: BlobStore, subject: Subject) -> AsyncIterator[tuple[ArchiveReader, int, Subject]]:
    for prelude in await preludes_in(blobs, subject.app_id):
        reader = ArchiveReader(prelude.blobs)
        own = replace(subject, app_id=prelude.app_id)  # it shares what is known of chats and memories
        for number in await reader.partitions():
            yield reader, number, own


async def _erase_letters(prelude: Prelude) -> None:
    """Cut dead letters to the entries that are not erased."""
    reader, state = ArchiveReader(prelude.blobs), ArchivedState(prelude.blobs)
    before = await state.dead_letters()
    kept: list[DeadLetter] = []
    for letter in before:
        offsets = letter.entries
        there = [each for each in await reader.entries(letter.partition, offsets) if not each.erased]
        if len(there) == len(offsets):
            kept.append(letter)
        elif there:
            rest = letter.of_entries(tuple(each.offset for each in there))
            kept.append(rest.model_copy(update={"fields": wire.pack(there[0].fields)}))
    if kept != list(before):
        await state.replace_letters(kept)
