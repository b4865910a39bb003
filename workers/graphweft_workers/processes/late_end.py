"""The end of a process whose servers keep it from ending: it says which one it waits for, and ends all the same."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.processes.server_look import looking_at_servers
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, EndTiming

logger = get_logger("graphweft.hosting")

type Look = Callable[[], Awaitable[Mapping[str, bool]]]
"""Returns by name whether each server answers."""


async def end_late(
    ends: asyncio.Event,
    look: Look,
    *,
    clock: Clock = SYSTEM_CLOCK,
    timing: EndTiming = TIMING.end,
    leave: Callable[[int], object] = os._exit,
) -> None:
    """From ``ends`` on, end the process if it has not ended by itself in time. Cancel this when it has.

    What is cut off then is what a kill cuts off: checkpoints say how far graphs are, and other processes go on there.
    """
    await ends.wait()
    await clock.sleep(timing.said_s)
    looking = asyncio.ensure_future(look())
    try:
        await clock.sleep(timing.look_s)
        answers: Mapping[str, bool] = {}
        if looking.done() and looking.exception() is None:
            answers = looking.result()
        left_s = timing.most_s - timing.said_s - timing.look_s
        logger.warning(
            "role_ends_late", waits_for=[name for name, answered in answers.items() if not answered],
            next=f"it finishes its work first; it ends in {left_s:.0f} s at the latest",
        )  # fmt: skip
        await clock.sleep(left_s)
        logger.error(
            "role_cut_off", after_s=timing.most_s,
            message="the work in hand is not finished: other processes, or the next start, go on from the checkpoints",
        )  # fmt: skip
        sys.stdout.flush()
        sys.stderr.flush()
        leave(1)
    finally:
        looking.cancel()


async def look_at_servers(settings: Settings, role: str) -> Mapping[str, bool]:
    """Return by name whether each server of a role answers."""
    async with looking_at_servers(settings, role) as servers:
        return await servers.look()
