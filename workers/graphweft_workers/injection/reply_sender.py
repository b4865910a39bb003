"""Sends replies, and sends them again while the bus is unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from graphweft_contracts import ContextReply, ContextRequest, Transient
from graphweft_workers.lazy_logger import get_logger
from graphweft_workers.ports.request_queue import Requester, RequestQueue

logger = get_logger("graphweft.injection")

_RESEND_S: Final = 0.05
_RESENT_AT_ONCE: Final = 256
_RESEND_LIMIT_S: Final = 5.0


class ReplySender:
    """Sends replies. A reply that does not arrive is sent again in ``tasks`` until its deadline, or ``stopping``."""

    def __init__(self, queue: RequestQueue, stopping: asyncio.Event) -> None:
        self._queue = queue
        self._stopping = stopping
        self._resending = 0

    async def send(self, tasks: asyncio.TaskGroup, requester: ContextRequest | Requester, reply: ContextReply) -> None:
        """Send a reply; returns after one attempt."""
        try:
            if await self._queue.reply(requester.reply_to, reply):
                return
        except Transient as error:
            logger.debug("reply_delayed", error=str(error))
        if self._resending < _RESENT_AT_ONCE:
            self._resending += 1
            tasks.create_task(self._send_again(requester, reply))
        else:
            logger.warning("reply_lost", error="too many replies wait for the bus")

    async def _send_again(self, requester: ContextRequest | Requester, reply: ContextReply) -> None:
        left_s = requester.deadline_ms / 1000 - time.time()
        until = time.monotonic() + min(left_s, _RESEND_LIMIT_S) - _RESEND_S
        try:
            while time.monotonic() < until and not self._stopping.is_set():
                await asyncio.sleep(_RESEND_S)
                with contextlib.suppress(Transient):
                    if await self._queue.reply(requester.reply_to, reply):
                        return
            logger.debug("reply_lost", error="the requester no longer listens")
        except Exception:  # one request must not end the responder
            logger.exception("request_failed")
        finally:
            self._resending -= 1
