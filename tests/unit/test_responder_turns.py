"""What others do while a responder begins many requests that arrive together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import ContextReply, ContextRequest
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.ports.request_queue import PendingRequest


class OneBatch:
    """A ``RequestQueue`` that gives its requests at once, and no others."""

    def __init__(self, requests: Sequence[PendingRequest]) -> None:
        self._requests = list(requests)
        self._stopped = asyncio.Event()

    async def next(self, limit: int, *, wait: bool = True) -> Sequence[PendingRequest]:
        given, self._requests = self._requests, []
        if not given:
            await self._stopped.wait()
        return given

    def wake(self) -> None:
        self._stopped.set()

    async def reply(self, channel: str, reply: ContextReply) -> bool:
        return True

    async def age_s(self, token: str) -> float | None:
        return None

    def done(self, token: str) -> None:
        pass

    async def leave(self) -> Sequence[PendingRequest]:
        return []

    async def aclose(self) -> None:
        pass


async def test_others_run_between_the_first_steps_of_requests() -> None:
    begun: list[int] = []
    turn = 0

    async def answer(request: ContextRequest) -> ContextReply:
        VIRTUAL.advance(0.01)  # what the first step of a request takes
        begun.append(turn)
        await asyncio.sleep(0)
        return ContextReply(id=request.id)

    deadline = int(VIRTUAL.now().timestamp() * 1_000) + 60_000
    requests = [
        ContextRequest(id=f"r{number}", app_id="a", chat_id="c", workflow="W", agent="A", deadline_ms=deadline)
        for number in range(20)
    ]
    queue = OneBatch([PendingRequest(token=each.id, body=each.model_dump_json().encode()) for each in requests])
    responder = InjectionResponder(queue, answer, clock=VIRTUAL)
    running = asyncio.create_task(responder.run())
    while responder.answered < len(requests):
        await asyncio.sleep(0)
        turn += 1
    responder.stop()
    await running
    assert len(begun) == len(set(begun)) == 20  # none in the turn of another one
