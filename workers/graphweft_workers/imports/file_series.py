"""Numbers the events of a file, so that workers know a copy of it however long it is; see ``engine.series``.

A file is read once. Its events are numbered in blocks of a few megabytes, each a series of its own, whose name is a
digest of the identities of all events up to the end of the block. So a number stands for one event; a file that was
changed, or to which lines were added, has the same numbers in all blocks before the first changed one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from pydantic_core import to_json

from graphweft_contracts import Event

BLOCK_BYTES: Final = 8 * 1024**2
"""A block is held in memory. An app keeps the marks of 1,000 series, so it knows the copies of 8 GB for good."""
_OTHER_BYTES: Final = 500
"""About the bytes of an event without its data."""
_PREFIX: Final = "file-"
_DIGEST: Final = 12


def numbered_blocks(events: Iterable[Event], *, block_bytes: int = BLOCK_BYTES) -> Iterator[list[Event]]:
    """Yield the events of a file in their order, with their numbers. A number of another kind stays."""
    digest = hashlib.blake2b(digest_size=_DIGEST)
    number = 0
    for block in _blocks(events, block_bytes):
        for event in block:
            digest.update(to_json([event.appid, *event.identity]))
        name = f"{_PREFIX}{digest.hexdigest()}"
        yield [_numbered(event, f"{name}/{place:010}") for place, event in enumerate(block, start=number + 1)]
        number += len(block)


def _blocks(events: Iterable[Event], block_bytes: int) -> Iterator[list[Event]]:
    """Yield the events in blocks, whose ends depend on the events alone."""
    block: list[Event] = []
    size = 0
    for event in events:
        block.append(event)
        size += _OTHER_BYTES + len(to_json(event.data))
        if size >= block_bytes:
            yield block
            block, size = [], 0
    if block:
        yield block


def _numbered(event: Event, sequence: str) -> Event:
    if event.sequence is None or event.sequence.startswith(_PREFIX):  # of a file it was part of before
        return event.model_copy(update={"sequence": sequence})
    return event
