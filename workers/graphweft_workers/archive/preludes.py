"""Preludes: what an app has lived through before its events on this bus, restored from an export.

A prelude is an archive of its own, in a folder of the bus's archive: entries of one app, rule sets, activations and
dead letters. It never changes, except when entries are erased. A graph has checkpoints of its partitions, under numbers
that no partition of a bus has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from graphweft_contracts import DeadLetter
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.archive.archive_bus import archive_bus
from graphweft_workers.archive.blobs import ArchiveUnavailable
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.offsets import offset_order

FOLDER: Final = "preludes"
_FIRST: Final = 1_000_000
"""Partitions of the first prelude begin here, of the second one at twice the number."""
NO_OFFSET: Final = 9_000_000_000_000_000_000
"""No entry has an offset from here on: dead letters that came with a prelude have them."""
_LETTERS_EACH: Final = 1_000_000
_OWNERS: Final = 200_000_000_000
"""The largest offset fits into 64 bits."""
_RESTORED: Final = "restored.json"
"""Written last: without it, a restore has not finished."""
_UNFINISHED: Final = "unfinished.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prelude:
    """One history of an app before its events on the bus."""

    number: int
    """Counts from 1; lower ones come first."""
    app_id: str
    """The app in the entries: another one if the app was restored under another name."""
    blobs: BlobStore
    """The archive of the prelude."""
    restored: datetime
    """When it became part of the log."""

    @property
    def bus(self) -> Bus:
        """A bus that reads it."""
        return archive_bus(self.blobs)


def checkpoint_number(prelude: int, partition: int) -> int:
    """Return the number under which a graph keeps the checkpoint of a partition of a prelude."""
    return prelude * _FIRST + partition


def free_offset(app_id: str, export: str, number: int) -> int:
    """Return an offset that no entry has, and no dead letter of another app or of another export."""
    own = int.from_bytes(hashlib.sha256(f"{app_id}/{export}".encode()).digest()[:8], "big") % _OWNERS
    return NO_OFFSET + own * _LETTERS_EACH + number


def came_with_prelude(letter: DeadLetter) -> bool:
    """Tell whether a dead letter on the bus came with a prelude: no entry of the bus has its offset."""
    return offset_order(letter.offset)[:1] >= (NO_OFFSET,)


def is_of_prelude(number: int) -> bool:
    """Tell whether a checkpoint with this number is for a prelude's partition."""
    return number >= _FIRST


def prelude_of(number: int) -> int:
    """Return the number of the prelude of a checkpoint."""
    return number // _FIRST


def folder_of(app_id: str, number: int) -> str:
    """Return the folder of a prelude in the archive."""
    return f"{FOLDER}/{app_id}/{number:04}"


async def preludes_in(blobs: BlobStore, app_id: str) -> list[Prelude]:
    """Return the preludes of an app in an archive, in order. Raises ``ArchiveUnavailable``."""
    data = await blobs.get(f"{FOLDER}/{app_id}/{_RESTORED}")
    if data is None:
        return []
    try:
        body: Any = json.loads(data)
        apps, restored = [str(each) for each in body["apps"]], datetime.fromisoformat(body["time"])
    except (ValueError, LookupError, TypeError) as error:
        raise ArchiveUnavailable(f"the archive is damaged: {FOLDER}/{app_id}/{_RESTORED}") from error
    return [
        Prelude(number=number, app_id=name, blobs=blobs.below(folder_of(app_id, number)), restored=restored)
        for number, name in enumerate(apps, 1)
    ]


async def restored_apps(blobs: BlobStore) -> list[str]:
    """Return the apps that have preludes, in order. Raises ``ArchiveUnavailable``."""
    names = await blobs.names(f"{FOLDER}/")
    return sorted({name.split("/")[1] for name in names if name.endswith(f"/{_RESTORED}")})


async def is_unfinished(blobs: BlobStore, app_id: str) -> bool:
    """Tell whether a restore of the app has begun and not ended."""
    return await blobs.get(f"{FOLDER}/{app_id}/{_UNFINISHED}") is not None


async def begin(blobs: BlobStore, app_id: str, export: str) -> None:
    """Record that a restore of the app has begun, and delete what an interrupted one has left."""
    await blobs.put(f"{FOLDER}/{app_id}/{_UNFINISHED}", json.dumps({"export": export}).encode())
    names = await blobs.names(f"{FOLDER}/{app_id}/")
    await blobs.delete([name for name in names if not name.endswith(f"/{_UNFINISHED}")])


async def finish(
    blobs: BlobStore, app_id: str, export: str, apps: Iterable[str], *, clock: Clock = SYSTEM_CLOCK
) -> None:
    """Record that the restore has ended: from now on the preludes are part of the app's log."""
    body = {"export": export, "apps": list(apps), "time": clock.now().isoformat()}
    await blobs.put(f"{FOLDER}/{app_id}/{_RESTORED}", json.dumps(body).encode())
    await blobs.delete([f"{FOLDER}/{app_id}/{_UNFINISHED}"])


async def remove(blobs: BlobStore, app_id: str) -> int:
    """Delete the preludes of an app; return how many files there were."""
    names = await blobs.names(f"{FOLDER}/{app_id}/")
    await blobs.delete(names)
    return len(names)
