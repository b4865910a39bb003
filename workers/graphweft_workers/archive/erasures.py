"""The erasures of an app, as the archive records them: begun, ended, and whether one runs now.

A record says when, and not whom: of an erasure that was cut off it keeps a hash of the user's id, until the erasure is
given again and ends. Each record raises the app's ``count``, so a graph or a snapshot with an older count was made of
what has been erased since.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from graphweft_contracts import BusUnavailable
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.support.tasks import end_tasks
from graphweft_workers.support.timing import TIMING, ArchiveTiming

_FOLDER: Final = "erasures"
_RUNNING: Final = "erasing"


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


@contextlib.asynccontextmanager
async def alone(
    blobs: BlobStore, app_id: str, *, clock: Clock = SYSTEM_CLOCK, timing: ArchiveTiming = TIMING.archive
) -> AsyncGenerator[None]:
    """Let one erasure of an app run at a time. Raises ``BusUnavailable`` while another one runs.

    A process that was killed holds others up for ``ArchiveTiming.stale_s``. If this process is taken for killed, the
    body is cancelled and ``BusUnavailable`` is raised.
    """
    own = f"{_RUNNING}/{app_id}/{uuid4().hex}"
    await blobs.put(own, _beat(0, asks=True))
    try:
        await _wait_for_others(blobs, app_id, own, clock, timing)
        await blobs.put(own, _beat(0, asks=False))
        body = asyncio.current_task()
        assert body is not None
        lost = asyncio.Event()

        async def live() -> None:
            number = 0
            while True:
                await clock.sleep(timing.beat_s)
                if own not in await blobs.names(f"{_RUNNING}/{app_id}/"):
                    lost.set()
                    body.cancel()
                    return
                number += 1
                with contextlib.suppress(BusUnavailable):
                    await blobs.put(own, _beat(number, asks=False))

        beating = asyncio.create_task(live(), name="graphweft-erasure")
        try:
            yield
        except asyncio.CancelledError:
            if not lost.is_set():
                raise
            body.uncancel()
            raise BusUnavailable(
                f"another process has taken over the erasure of {app_id!r}, because this one was interrupted for long"
            ) from None
        finally:
            await end_tasks(beating)
    finally:
        await blobs.delete([own])


async def _wait_for_others(blobs: BlobStore, app_id: str, own: str, clock: Clock, timing: ArchiveTiming) -> None:
    """Return when no other process erases; delete the signs of those that were killed.

    A process that waits gives signs of life too. Of two that wait, the one with the smaller name goes on.
    """
    seen: dict[str, tuple[bytes, float]] = {}
    number = 0
    while True:
        names = await blobs.names(f"{_RUNNING}/{app_id}/")
        others = [name for name in names if name != own]
        for name in others:
            data = await blobs.get(name)
            if data is None:
                continue
            before, since = seen.setdefault(name, (data, clock.monotonic()))
            if data == before:
                if clock.monotonic() - since >= timing.stale_s:
                    await blobs.delete([name])
            elif name < own or not _asks(data):
                raise BusUnavailable(
                    f"another erasure of the app {app_id!r} runs: wait until it has ended, then give the command again"
                )
            else:
                seen[name] = (data, clock.monotonic())
        if own not in names:
            raise BusUnavailable(f"another process has taken this erasure of {app_id!r} for killed: try again")
        if not others:
            return
        number += 1
        await blobs.put(own, _beat(number, asks=True))
        await clock.sleep(timing.beat_s / 4)


def _asks(sign: bytes) -> bool:
    """Tell whether a process only waits for others."""
    try:
        body: Any = json.loads(sign)
        return bool(body["asks"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def _name(app_id: str, number: int, kind: str) -> str:
    return f"{_FOLDER}/{app_id}/{number:06}.{kind}"


def _body(clock: Clock, **more: str) -> bytes:
    return json.dumps({"time": clock.now().isoformat(), **more}).encode()


def _beat(number: int, *, asks: bool) -> bytes:
    return json.dumps({"beat": number, "asks": asks}).encode()
