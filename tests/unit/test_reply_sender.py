"""A reply that does not arrive is sent again, up to the deadline of its request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest
from tests.services.virtual_time import VirtualClock

from graphweft_contracts import ContextReply, channels
from graphweft_workers.injection.reply_sender import ReplySender
from graphweft_workers.ports.request_queue import Requester, RequestQueue


@dataclass
class Deaf:
    """A queue whose requesters do not listen."""

    clock: VirtualClock
    sent: list[float] = field(default_factory=list[float])
    """When each reply was sent."""

    async def reply(self, channel: str, reply: ContextReply) -> bool:
        self.sent.append(self.clock.now().timestamp())
        return False


@pytest.mark.parametrize("budget_s", [0.48, 3.02])
async def test_a_reply_is_sent_again_until_the_deadline_and_not_after_it(clock: VirtualClock, budget_s: float) -> None:
    queue, deadline_s = Deaf(clock), clock.now().timestamp() + budget_s
    sender = ReplySender(cast("RequestQueue", queue), asyncio.Event(), clock=clock)
    reply_to = channels.context_replies("me", "shop")
    asked = Requester(id="1", deadline_ms=round(deadline_s * 1000), reply_to=reply_to)
    async with asyncio.TaskGroup() as tasks:
        await sender.send(tasks, asked, ContextReply(id="1"))
    assert len(queue.sent) > 5
    assert max(queue.sent) < deadline_s
