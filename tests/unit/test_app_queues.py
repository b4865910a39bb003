"""A parked app reads again all of its events that the reader took from the window, wherever the others are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from graphweft_workers.engine.app_queue import AppQueue
from graphweft_workers.engine.app_queues import AppQueues
from graphweft_workers.engine.position_note import PositionNote
from graphweft_workers.engine.skips import Skips
from graphweft_workers.ports.event_log import Committed


def is_after(offset: str, other: str) -> bool:
    return int(offset or 0) > int(other or 0)


class Writer:
    """Reads the events of an app again in steps of 20; none of them has rows."""

    number = 0
    log = SimpleNamespace(is_after=is_after)

    def __init__(self) -> None:
        self.ranges: list[tuple[str, str]] = []

    async def reread(self, queue: AppQueue, given: Committed) -> Committed:
        assert queue.behind is not None
        self.ranges.append((queue.behind.offset, given.offset))
        await asyncio.sleep(0)
        return at(min(int(queue.behind.offset) + 20, int(given.offset)))

    async def apply(self, queue: AppQueue) -> None: ...

    def forget_strikes(self, app_id: str) -> None: ...


def at(place: int) -> Committed:
    return Committed(offset=str(place), count=place)


async def test_a_parked_app_reads_again_what_was_taken_beyond_the_position_of_all() -> None:
    writer: Any = Writer()
    queues = AppQueues(
        writer, run="", skips=Skips(0, is_after), position=at(0), before=PositionNote(), progressed=lambda: None
    )
    queues.park("p")
    # Another app's entries still wait in the window, so the position of all stands at 5.
    queues.give({}, {}, at(5), {"p": at(50), "q": at(60)}, {"p"})
    assert queues.floor.offset == "0"
    await queues.drain()
    assert writer.ranges == [("0", "50"), ("20", "50"), ("40", "50")]
    assert queues.floor.offset == "5"
    # It begins anew where it has got to, not where all apps are.
    queues.park("p")
    queues.give({}, {}, at(70), {"p": at(65)}, {"p"})
    await queues.drain()
    assert writer.ranges[3:] == [("50", "70")]
    await queues.aclose()
