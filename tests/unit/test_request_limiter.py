"""Open requests of one app and of all apps, and bodies that never end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from starlette.requests import Request
from starlette.types import Message

from graphweft_workers.console.app import LIMITS
from graphweft_workers.gateway.limits import GatewayLimits, RequestLimiter
from graphweft_workers.gateway.problems import Problem


class Sender:
    """Opens requests of an app whose bodies never end."""

    def __init__(self, limiter: RequestLimiter, app_id: str) -> None:
        self._limiter = limiter
        self._app_id = app_id
        self.open: list[asyncio.Task[bytes]] = []

    async def fill(self, most: int = 600) -> None:
        """Open as many requests as the app may have."""
        for _ in range(most):
            task = asyncio.create_task(self._send())
            await asyncio.sleep(0)
            if task.done():
                assert isinstance(task.exception(), Problem)
                return
            self.open.append(task)

    async def _send(self) -> bytes:
        async def arrives() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        with self._limiter.enter(self._app_id):
            request = Request({"type": "http", "method": "POST", "headers": []}, arrives)
            return await self._limiter.receive(self._app_id, request, limit=10)

    async def end(self) -> list[int]:
        """End what is open; return the status codes of those that were given up before."""
        for task in self.open:
            task.cancel()
        ended = await asyncio.gather(*self.open, return_exceptions=True)
        return [each.status for each in ended if isinstance(each, Problem)]


@pytest.fixture
async def senders() -> AsyncIterator[list[Sender]]:
    async with AsyncExitStack() as held:
        made: list[Sender] = []
        yield made
        for each in made:
            held.push_async_callback(each.end)


@pytest.mark.parametrize("limits", [GatewayLimits(), LIMITS], ids=["gateway", "console"])
@pytest.mark.parametrize("hogs", [1, 4, 5, 16, 24])
async def test_bodies_that_never_end_shut_out_nobody(limits: GatewayLimits, hogs: int, senders: list[Sender]) -> None:
    limiter = RequestLimiter(limits)
    for number in range(hogs):
        senders.append(Sender(limiter, f"hog{number}"))
        await senders[-1].fill()
    for app_id in ("quiet", "other"):
        with limiter.enter(app_id), limiter.enter(app_id):
            pass
    for each in senders[:1]:  # nor does the app that was given up for others come back into their places
        await each.fill(1)
    with limiter.enter("quiet"):
        pass


async def test_the_app_with_the_most_gives_up_its_oldest(senders: list[Sender]) -> None:
    limiter = RequestLimiter(GatewayLimits(requests=3, requests_per_app=2))
    hog, other = Sender(limiter, "hog"), Sender(limiter, "other")
    await hog.fill(2)
    await other.fill(1)
    with limiter.enter("quiet"):
        [given_up] = (await asyncio.wait(hog.open, return_when=asyncio.FIRST_COMPLETED))[0]
        assert given_up is hog.open[0]
        with pytest.raises(Problem, match="needed its place"):
            await given_up
        with pytest.raises(Problem) as refused, limiter.enter("other"):
            pass
        assert refused.value.status == 503
    assert await other.end() == []
    assert await hog.end() == [408]


async def test_whose_body_has_arrived_is_not_given_up() -> None:
    limiter = RequestLimiter(GatewayLimits(requests=2, requests_per_app=2))
    with limiter.enter("mine"), limiter.enter("mine"):
        with pytest.raises(Problem) as one, limiter.enter("mine"):
            pass
        with pytest.raises(Problem) as all_apps, limiter.enter("theirs"):
            pass
    assert (one.value.status, all_apps.value.status) == (429, 503)
    with limiter.enter("theirs"):
        pass
