"""Waiting for tasks that say themselves that they end."""

from __future__ import annotations

import asyncio

from graphweft_workers.injection.countdown import Countdown


async def test_it_waits_for_the_last_end() -> None:
    countdown = Countdown(2)
    waits = asyncio.create_task(countdown.wait(60))
    await asyncio.sleep(0)
    countdown.end()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waits.done()
    countdown.end()
    await waits


async def test_it_waits_no_longer_than_said() -> None:
    countdown = Countdown(1)
    await countdown.wait(0)
    countdown.end()  # too late, which is nobody's fault


async def test_without_anything_open_it_does_not_wait() -> None:
    ended = Countdown(1)
    ended.end()
    for countdown in (Countdown(0), ended):
        waits = asyncio.create_task(countdown.wait(60))
        await asyncio.sleep(0)
        assert waits.done()


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    countdown = Countdown(1)
    waits = asyncio.create_task(countdown.wait(60))
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.wait([waits])
    countdown.end()
