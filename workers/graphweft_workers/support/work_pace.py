"""Long work of one process that shares its event loop: one piece at a time, and then a rest in which others run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from graphweft_contracts.clock import Clock


class WorkPace:
    """Lets pieces of work run one after the other."""

    def __init__(self, clock: Clock, *, least_s: float, rest: float, most_rest_s: float) -> None:
        """A rest is ``rest`` times as long as the work, up to ``most_rest_s``; work up to ``least_s`` needs none."""
        self._clock = clock
        self._least_s = least_s
        self._rest = rest
        self._most_rest_s = most_rest_s
        self._one = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Wait for the turn, work while the block runs, and rest. After an error there is no rest."""
        async with self._one:
            begun = self._clock.monotonic()
            yield
            took_s = self._clock.monotonic() - begun
            if took_s > self._least_s:
                await self._clock.sleep(min(took_s * self._rest, self._most_rest_s))
