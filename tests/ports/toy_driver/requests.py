"""``RequestQueue`` on the file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from graphweft_contracts import BusUnavailable, ContextReply
from graphweft_workers.ports.request_queue import PendingRequest, encode

from .file import POLL_S, SqliteFile

logger = logging.getLogger("toy_driver")

_ALIVE_S: Final = 1.0
"""How long a replica counts as alive after each sign of life."""
_SIGN_S: Final = 0.1
_WAIT_S: Final = 1.0
_HEAD_START_S: Final = 0.05
"""For so long a new request is left to the replicas that wait."""


class SqliteRequestQueue:
    """``RequestQueue`` for the replica ``name``, which must be its own."""

    def __init__(self, url: str, *, name: str) -> None:
        self._file = SqliteFile(url, durable=False)
        self._name = name
        self._ready: deque[PendingRequest] = deque()
        self._done: list[str] = []
        self._woken = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def next(self, limit: int, *, wait: bool = True) -> Sequence[PendingRequest]:
        if self._keeper is None:
            await self._file.write(self._sign)
            self._keeper = asyncio.create_task(self._keep(), name="sqlite-requests")
        self._woken.clear()
        until = time.monotonic() + _WAIT_S
        age_s = 0.0 if wait else _HEAD_START_S
        while not self._ready:
            if await self._file.read(lambda db: _is_free(db, age_s)):
                await self._file.write(lambda db: self._take(db, limit, age_s))
            if self._ready or not wait or self._woken.is_set() or time.monotonic() >= until:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    def wake(self) -> None:
        self._woken.set()

    async def reply(self, channel: str, reply: ContextReply) -> bool:
        message = encode(reply)

        def write(db: sqlite3.Connection) -> bool:
            now = time.time()
            if gone := [name for (name,) in db.execute("SELECT channel FROM clients WHERE until < ?", (now,))]:
                db.executemany("DELETE FROM clients WHERE channel = ?", [(name,) for name in gone])
                db.executemany("DELETE FROM replies WHERE channel = ?", [(name,) for name in gone])
            if db.execute("SELECT 1 FROM clients WHERE channel = ?", (channel,)).fetchone() is None:
                return False
            db.execute("INSERT INTO replies (channel, body) VALUES (?, ?)", (channel, message))
            return True

        return await self._file.write(write)

    async def age_s(self, token: str) -> float | None:
        return time.time() - float(token.partition("@")[2])

    def done(self, token: str) -> None:
        self._done.append(token)

    async def leave(self) -> Sequence[PendingRequest]:
        with contextlib.suppress(BusUnavailable):
            await self._file.read(lambda _: None)  # a call that was cancelled may still be taking some
        rest = list(self._ready)
        self._ready.clear()
        return rest

    async def aclose(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
            with contextlib.suppress(BusUnavailable):
                await self._take_off()
                await self._file.write(lambda db: db.execute("DELETE FROM replicas WHERE name = ?", (self._name,)))
        await self._file.aclose()

    def _take(self, db: sqlite3.Connection, limit: int, age_s: float) -> None:
        """Make free requests ours; they are ready even if the caller that wanted them has gone."""
        oldest = "SELECT token FROM requests WHERE holder IS NULL AND at <= ? ORDER BY token LIMIT ?"
        taken = db.execute(
            f"UPDATE requests SET holder = ? WHERE token IN ({oldest}) RETURNING token || '@' || at, body, lost",
            (self._name, time.time() - age_s, limit),
        ).fetchall()
        self._ready += [PendingRequest(token=token, body=body, taken_over=bool(lost)) for token, body, lost in taken]

    async def _keep(self) -> None:
        """Give signs of life, free what the dead have in hand, take off what is done."""
        while True:
            try:
                await self._take_off()
                await self._file.write(self._sign)
            except BusUnavailable as error:
                logger.debug("requests are not kept: %s", error)
            except Exception:  # without signs of life the others would take all that we have in hand
                logger.exception("requests are not kept")
            await asyncio.sleep(_SIGN_S)

    def _sign(self, db: sqlite3.Connection) -> None:
        now = time.time()
        in_time = "SELECT 1 FROM replicas WHERE name = ? AND until >= ?"
        late = db.execute(in_time, (self._name, now)).fetchone() is None
        db.execute("INSERT OR REPLACE INTO replicas VALUES (?, ?)", (self._name, now + _ALIVE_S))
        if not late:  # where we are late ourselves, the others may be so too, and live
            db.execute("DELETE FROM replicas WHERE until < ?", (now,))
            dead = "holder IS NOT NULL AND holder NOT IN (SELECT name FROM replicas)"
            db.execute(f"UPDATE requests SET holder = NULL, lost = 1 WHERE {dead}")

    async def _take_off(self) -> None:
        tokens = [(int(token.partition("@")[0]),) for token in self._done]
        if tokens:
            await self._file.write(lambda db: db.executemany("DELETE FROM requests WHERE token = ?", tokens))
            del self._done[: len(tokens)]


def _is_free(db: sqlite3.Connection, age_s: float) -> bool:
    free = "SELECT 1 FROM requests WHERE holder IS NULL AND at <= ? LIMIT 1"
    return db.execute(free, (time.time() - age_s,)).fetchone() is not None
