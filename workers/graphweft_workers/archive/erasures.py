"""The erasures of an app, as the archive records them: begun and ended.

A record says when, and not whom: of an erasure that was cut off it keeps a hash of the user's id, until the erasure is
given again and ends. Each record raises the app's ``count``, so a graph or a snapshot with an older count was made of
what has been erased since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.blobs import BlobStore

_FOLDER: Final = "erasures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasures:
    """What is recorded of an app."""

    count: int = 0
    """Records: two for each erasure that has ended."""
    open: Mapping[int, str] | None = None
    """Numbers of erasures that were begun and have not ended, each with the hash of whom it erases; None: none."""


async def erasures_in(blobs: BlobStore, app_id: str) -> Erasures:
    """Return the erasures of an app. Raises ``ArchiveUnavailable``."""
    names = await blobs.names(f"{_FOLDER}/{app_id}/")
    parts = [name.rpartition("/")[2].partition(".") for name in names]
    ended = {number for number, _, kind in parts if kind == "ended"}
    found: dict[int, str] = {}
    for number, _, kind in parts:
        if kind == "begun" and number not in ended:
            data = await blobs.get(_name(app_id, int(number), "begun"))
            try:
                body: Any = json.loads(data or b"{}")
                found[int(number)] = str(body.get("who", ""))
            except (ValueError, AttributeError):
                found[int(number)] = ""
    return Erasures(count=len(names), open=found or None)


async def begin_erasure(
    blobs: BlobStore, app_id: str, user_id: str | None, *, clock: Clock = SYSTEM_CLOCK
) -> tuple[int, bool]:
    """Record that an erasure begins; return its number, and whether it goes on with one that was cut off."""
    who = hashlib.sha256(json.dumps([app_id, user_id]).encode()).hexdigest()
    found = await erasures_in(blobs, app_id)
    for number, other in (found.open or {}).items():
        if other == who:
            return number, True
    names = await blobs.names(f"{_FOLDER}/{app_id}/")
    last = max((int(name.rpartition("/")[2].partition(".")[0]) for name in names), default=0)
    await blobs.put(_name(app_id, last + 1, "begun"), _body(clock, who=who))
    return last + 1, False


async def end_erasure(blobs: BlobStore, app_id: str, number: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """Record that an erasure has ended; nothing names its user any more."""
    await blobs.put(_name(app_id, number, "ended"), _body(clock))
    await blobs.put(_name(app_id, number, "begun"), _body(clock))


def _name(app_id: str, number: int, kind: str) -> str:
    return f"{_FOLDER}/{app_id}/{number:06}.{kind}"


def _body(clock: Clock, **more: str) -> bytes:
    return json.dumps({"time": clock.now().isoformat(), **more}).encode()
