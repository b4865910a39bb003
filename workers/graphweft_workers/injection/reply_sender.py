"""Sends replies, and sends them again while the bus is unavailable."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Final

from graphweft_contracts import ContextReply, ContextRequest, Transient
from graphweft_contracts.channels import app_of_replies
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.request_queue import Requester, RequestQueue
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, ContextTiming

logger = get_logger("graphweft.injection")

_RESENT_AT_ONCE: Final = 256
"""One app, or one channel of all apps, may take half of these: else nobody else's replies would be sent again."""


class ReplySender:
    """Sends replies. A reply that does not arrive is sent again in ``tasks`` until its deadline, or ``stopping``."""

    def __init__(
        self, queue: RequestQueue, stopping: asyncio.Event, *, clock: Clock = SYSTEM_CLOCK,
        timing: ContextTiming = TIMING.context,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._stopping = stopping
        self._clock = clock
        self._timing = timing
        self._resending: Counter[str] = Counter()

    async def send(self, tasks: asyncio.TaskGroup, requester: ContextRequest | Requester, reply: ContextReply) -> None:
        """Send a reply; returns after one attempt."""
        try:
            if await self._queue.reply(requester.reply_to, reply):
                return
        except Transient as error:
            logger.debug("reply_delayed", error=str(error))
        owner = app_of_replies(requester.reply_to) or requester.reply_to
        if self._resending.total() < _RESENT_AT_ONCE and self._resending[owner] < _RESENT_AT_ONCE // 2:
            self._resending[owner] += 1
            tasks.create_task(self._send_again(owner, requester, reply))
        else:
            logger.warning("reply_lost", error="too many replies wait for the bus")

    async def _send_again(self, owner: str, requester: ContextRequest | Requester, reply: ContextReply) -> None:
        left_s = requester.deadline_ms / 1000 - self._clock.now().timestamp()
        until = self._clock.monotonic() + min(left_s, self._timing.resend_limit_s) - self._timing.resend_s
        try:
            while self._clock.monotonic() < until and not self._stopping.is_set():
                await self._clock.sleep(self._timing.resend_s)
                with contextlib.suppress(Transient):
                    if await self._queue.reply(requester.reply_to, reply):
                        return
            logger.debug("reply_lost", error="the requester no longer listens")
        except Exception:  # one request must not end the responder
            logger.exception("request_failed")
        finally:
            self._resending[owner] -= 1
            self._resending += Counter()  # drops those of which none is left
