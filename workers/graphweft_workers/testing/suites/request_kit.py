"""What the suite of request queues needs of a driver, and what its tests share."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from graphweft import Client
from graphweft.transport import Transport
from graphweft_contracts import ContextReply, ContextRequest
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.ports.request_queue import PendingRequest, RequestQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFeatures:
    """What a driver may leave out; the tests then expect less."""

    reads_once: bool = True
    """A request that is done is not read again by another replica, also when replicas come and go."""
    tells_age: bool = True
    """A request says since when it waits, so that clocks that differ are noticed."""


class RequestKit(ABC):
    """One empty bus, and what the tests do to it past the driver."""

    features = RequestFeatures()
    url: str
    """The URL by which clients find the bus; its scheme is registered."""

    @abstractmethod
    def queue(self, name: str, *, patient: bool = False) -> RequestQueue:
        """Return the queue of a replica; with ``patient``, none that is slow counts as dead."""

    @abstractmethod
    async def put(self, body: bytes) -> None:
        """Append a request that no client has made."""

    @abstractmethod
    async def restart(self) -> None:
        """End the server and start it again; clients notice."""

    def listening(self, channels: Sequence[str]) -> AbstractAsyncContextManager[Any]:
        """Return a block in which somebody listens on these channels, if the server has channels of any name."""
        return nullcontext()

    def client(self, budget_ms: int = 120_000, app_id: str = "shop") -> Client:
        """Return a client of the bus."""
        return Client(self.url, app_id=app_id, workflow="Shop", budget_ms=budget_ms)


class RequestFixtures:
    """The fixtures of the suite. A driver's tests define ``kit``."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def kit(self) -> RequestKit:
        """Return an empty bus of the driver, which no other test uses at the same time."""
        raise NotImplementedError("define the fixture `kit` in the class of your driver's tests")


def request(budget_ms: int = 120_000, **fields: Any) -> ContextRequest:
    """Return a request with this budget."""
    values: dict[str, Any] = {
        "id": uuid4().hex, "app_id": "shop", "workflow": "Shop", "agent": "One", "chat_id": "c1",
        "deadline_ms": int(SYSTEM_CLOCK.now().timestamp() * 1000) + budget_ms,
    }  # fmt: skip
    return ContextRequest(**values | fields)


def asked(waiting: PendingRequest) -> ContextRequest:
    """Return the request of a queue."""
    return ContextRequest.model_validate_json(waiting.body)


def echo(request: ContextRequest, text: str | None = None) -> ContextReply:
    """Return a reply that quotes a request."""
    return ContextReply(id=request.id, text=text if text is not None else str(request.context.get("n")))


async def take(queue: RequestQueue, count: int) -> list[PendingRequest]:
    """Take exactly ``count`` requests."""
    taken: list[PendingRequest] = []
    async with asyncio.timeout(120):
        while len(taken) < count:
            taken += await queue.next(count - len(taken))
    return taken


async def joined(transport: Transport, queue: RequestQueue) -> None:
    """Wait until ``queue`` gets requests, by a first one."""
    first = asyncio.create_task(transport.request(request()))
    [waiting] = await take(queue, 1)
    await queue.reply(asked(waiting).reply_to, echo(asked(waiting)))
    queue.done(waiting.token)
    await first


@asynccontextmanager
async def responding(
    kit: RequestKit, answer: Callable[[ContextRequest], Awaitable[ContextReply]], name: str = "r", **options: Any
) -> AsyncGenerator[InjectionResponder]:
    """Run a responder on the bus."""
    queue = kit.queue(name)
    responder = InjectionResponder(queue, answer, **options)
    task = asyncio.create_task(responder.run())
    try:
        yield responder
    finally:
        responder.stop()
        await task
        await queue.aclose()


async def at_once(request: ContextRequest) -> ContextReply:
    """Answer a request."""
    return echo(request)


class LateAnswers:
    """Answers when it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = 0

    async def __call__(self, request: ContextRequest) -> ContextReply:
        """Answer a request, when it is time."""
        self.waiting += 1
        await self.open.wait()
        return echo(request)


async def ask_all(
    client: Client, numbers: Sequence[int], into: dict[int, ContextReply] | None = None, **fields: Any
) -> list[ContextReply]:
    """Ask for each number; sixteen callers share them."""
    left = list(reversed(numbers))
    replies = into if into is not None else {}

    async def ask() -> None:
        while left:
            n = left.pop()
            values: dict[str, Any] = {"agent": "One", "chat_id": "c", "context": {"n": n}}
            replies[n] = await client.context(**values | fields)

    await asyncio.gather(*(ask() for _ in range(16)))
    return [replies[n] for n in numbers]


async def nothing_left() -> list[PendingRequest]:
    """Leave nothing."""
    return []


class Newer(ContextRequest):
    """As a client of a later version may send it."""

    mood: str = "good"


def newer(budget_ms: int = 120_000, **fields: Any) -> Newer:
    """Return such a request."""
    return Newer(**request(budget_ms, **fields).model_dump())


async def put(kit: RequestKit, each: ContextRequest) -> None:
    """Append a request that no client has made."""
    await kit.put(each.model_dump_json().encode())
