"""``Transport`` on the file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from graphweft.transport import (
    MAX_BUDGET_MS,
    Outgoing,
    check_sizes,
    encoded,
    read_reply,
    seconds_left,
)
from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest, Layout, channels
from graphweft_contracts.layout import NEW_LAYOUT

from .file import POLL_S, SqliteFile, append, layout_of

_KEPT_S: Final = MAX_BUDGET_MS / 1000
"""Age from which on requests that no replica has are dropped: nobody waits for them."""


class SqliteTransport:
    """``Transport`` on the file of a URL."""

    def __init__(self, url: str, *, new: Layout = NEW_LAYOUT) -> None:
        self._events = SqliteFile(url, durable=True)
        self._requests = SqliteFile(url, durable=False)
        self._new = new
        self._channel = channels.context_replies(uuid4().hex)
        self._waiting: dict[str, asyncio.Future[bytes | BusUnavailable]] = {}
        self._listener: asyncio.Task[None] | None = None

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """It puts all of the events on the bus, or none."""
        check_sizes(events)

        def write(db: sqlite3.Connection) -> list[str]:
            layout, now = layout_of(db, self._new), time.time()
            numbers = [layout.partition_of(event.key) for event in events]
            return [
                f"{number}:{offset}"
                for number, event in zip(numbers, events, strict=True)
                for offset in append(db, number, [event.fields], now)
            ]

        return await self._events.write(write)

    async def request(self, request: ContextRequest) -> ContextReply:
        message = encoded(request, self._channel)
        if isinstance(message, ContextReply):
            return message

        def write(db: sqlite3.Connection) -> None:
            now, until = time.time(), request.deadline_ms / 1000
            known = "ON CONFLICT DO UPDATE SET until = max(until, excluded.until)"
            db.execute(f"INSERT INTO clients VALUES (?, ?) {known}", (self._channel, until))
            db.execute("DELETE FROM requests WHERE holder IS NULL AND at < ?", (now - _KEPT_S,))
            db.execute("INSERT INTO requests (body, at, lost) VALUES (?, ?, 0)", (message, now))

        answer: asyncio.Future[bytes | BusUnavailable] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = answer
        try:
            async with asyncio.timeout(seconds_left(request)):
                await self._requests.write(write)
                if self._listener is None or self._listener.done():
                    self._listener = asyncio.create_task(self._listen(), name="sqlite-replies")
                outcome = await answer
                if isinstance(outcome, BusUnavailable):
                    raise outcome
                return read_reply(request, outcome)
        finally:
            del self._waiting[request.id]

    async def aclose(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
            with contextlib.suppress(BusUnavailable):
                await self._requests.write(self._forget)
        self._give_up(BusUnavailable("the client is closed"))
        await self._requests.aclose()
        await self._events.aclose()

    async def _listen(self) -> None:
        """Hand out answers while somebody waits for one."""
        found = "SELECT number, body FROM replies WHERE channel = ? ORDER BY number"
        while self._waiting:
            try:
                rows = await self._requests.read(lambda db: db.execute(found, (self._channel,)).fetchall())
                if rows:
                    await self._drop_replies(rows[-1][0])
            except BusUnavailable as error:
                self._give_up(error)
                return
            for _, body in rows:
                request_id, _, reply = body.partition(b"\n")
                answer = self._waiting.get(request_id.decode())
                if answer is not None and not answer.done():
                    answer.set_result(reply)
            await asyncio.sleep(POLL_S)

    async def _drop_replies(self, last: int) -> None:
        delete = "DELETE FROM replies WHERE channel = ? AND number <= ?"
        await self._requests.write(lambda db: db.execute(delete, (self._channel, last)))

    def _give_up(self, error: BusUnavailable) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(error)

    def _forget(self, db: sqlite3.Connection) -> None:
        for table in ("clients", "replies"):
            db.execute(f"DELETE FROM {table} WHERE channel = ?", (self._channel,))
