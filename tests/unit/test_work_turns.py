"""Turns of long work in a responder: one piece at a time, apps in turn, and a rest for all others."""

from __future__ import annotations

import asyncio

from tests.services.virtual_time import VIRTUAL

from graphweft_workers.injection.work_turns import WorkTurns
from graphweft_workers.support.timing import ContextTiming

TIMING = ContextTiming(begin_s=0.005, most_rest_s=0.05)


async def test_one_piece_runs_at_a_time_and_apps_take_turns() -> None:
    turns = WorkTurns(VIRTUAL, TIMING)
    order: list[str] = []
    running = 0

    async def work(app_id: str, pieces: int) -> None:
        nonlocal running
        for _ in range(pieces):
            async with turns.turn(app_id):
                running += 1
                order.append(app_id)
                await asyncio.sleep(0)  # as if in a thread
                assert running == 1
                running -= 1

    loud = [asyncio.create_task(work("loud", 5)) for _ in range(10)]
    await asyncio.sleep(0)
    await work("quiet", 3)
    waited = order.count("loud")
    await asyncio.gather(*loud)
    assert waited <= 4  # one that ran, and one before each piece of the quiet app
    assert order.count("loud") == 50


async def test_others_run_as_long_as_the_work_took() -> None:
    turns = WorkTurns(VIRTUAL, TIMING)
    for took_s, rest_s in ((0.004, 0.0), (0.02, 0.02), (1.0, 0.05)):
        begun = VIRTUAL.monotonic()
        async with turns.turn("a"):
            VIRTUAL.advance(took_s)
        assert round(VIRTUAL.monotonic() - begun - took_s, 6) == rest_s


async def test_what_is_given_up_while_it_waits_takes_no_turn() -> None:
    turns = WorkTurns(VIRTUAL, TIMING)

    async def wait() -> None:
        async with turns.turn("a"):
            raise AssertionError

    async with turns.turn("a"):
        waiting = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    async with turns.turn("a"):
        pass
    assert all(task.cancelled() for task in waiting)
