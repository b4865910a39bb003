"""Puts a rebuilt graph in the place of the live one while workers and readers go on.

A seal in the live graph stops its writers. Then the new graph is brought to the same place of the log, and one step
exchanges the two.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import ChainMap
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from itertools import count
from typing import Final
from uuid import uuid4

from graphweft_contracts import Fenced, GraphUnavailable, InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.archive.preludes import is_of_prelude
from graphweft_workers.engine.plan.graph_marks import has_plan, is_sealed, of_generation, sealed
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, Write
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, Timing

logger = get_logger("graphweft.rebuild")

_SWAPS: Final = 5
"""Attempts to swap."""


class GraphSwap:
    """Exchanges the live graph of one app and a new one. The creator closes the bus and the stores."""

    def __init__(
        self,
        log: AppLog,
        graph: GraphStore,
        *,
        run_id: str,
        apply: Callable[[Mapping[int, str]], Awaitable[None]],
        sealed: Callable[[int], Awaitable[None]],
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = TIMING,
    ) -> None:
        """``run_id`` comes from ``graph.check``; ``apply`` brings the new graph to an offset of each partition.

        ``sealed`` is called with a partition while nobody writes to the live graph, and raises to give up the swap.
        """
        self._log = log
        self._live = log.live
        self._graph = graph
        self._app_id = log.app_id
        self._run_id = run_id
        self._apply = apply
        self._sealed = sealed
        self._clock = clock
        self._seal_s = timing.seal_s
        self._timing = timing.replay

    async def run(self) -> None:
        """Swap. Raises like ``apply``, and ``GraphUnavailable`` if the live graph kept changing."""
        for _ in range(_SWAPS):
            await self._approach()
            if await self._swap_once():
                return
        raise GraphUnavailable(f"the live graph of {self._app_id!r} kept changing: swap again with --resume --swap")

    async def _approach(self) -> None:
        """Bring the new graph to where the live one is, so that workers wait for the last few events only."""
        rounds = int(self._timing.workers_s / self._timing.rest_s)
        for _ in range(rounds):
            ends = await self._ends(await self._log.partitions())
            ahead: list[int] = []
            for partition, end in ends.items():
                place = (await self._graph.progress(self._app_id, partition)).checkpoint.offset
                if is_after(place, end):
                    ahead.append(partition)
            await self._apply({partition: end for partition, end in ends.items() if partition not in ahead})
            if not ahead:
                return
            await self._clock.sleep(self._timing.rest_s)
        raise InvalidSettings(
            f"the new graph of {self._app_id!r} is ahead of the live one: start the workers, wait until `graphweft "
            "status` shows no lag, and swap with --resume --swap"
        )

    async def _ends(self, partitions: Collection[int]) -> dict[int, str]:
        """Return the offsets up to which events have taken effect in the live graph; if it was lost, had taken.

        Where the live graph stands at an entry that the log has lost, the new one must not: workers would take events
        up to there for applied.
        """
        ends = await self._log.done(partitions)  # further, if the last events have no mutations
        for partition in partitions:
            live = (await self._live.progress(self._app_id, partition)).checkpoint.offset
            if is_after(live, ends.get(partition, "")) and await self._log.bus.log.entries(partition, [live]):
                ends[partition] = live
        return ends

    async def _swap_once(self) -> bool:
        app_id, name = self._app_id, uuid4().hex
        before: dict[int, Checkpoint] = {}
        seals: dict[int, Checkpoint] = {}
        swapped = False
        try:
            for partition in await self._log.partitions():
                before[partition], seals[partition] = await self._seal(partition, name)
            await self._sealed(min(seals))
            async with self._renewed(before, seals, name):
                ends = await self._ends(seals)
                await self._apply(ends)
                for partition, end in ends.items():
                    place = (await self._graph.progress(app_id, partition)).checkpoint
                    # Further than its last write, where the live graph dropped rows that failed: nobody tries them
                    # again.
                    reached = replace(place, offset=end) if is_after(end, place.offset) else place
                    await move(self._graph, self._app_id, partition, place, of_generation(reached, name))
                await self._graph.durable(self._run_id)
                restored = {number: each for number, each in (await self._log.marks()).items() if is_of_prelude(number)}
                expected = ChainMap(seals, restored)
                swapped = await self._live.whole.exchange(app_id, await self._graph.whole.graph_id(app_id), expected)
        finally:
            if not swapped:
                await asyncio.shield(self._lift(before, seals))
        return swapped

    @contextlib.asynccontextmanager
    async def _renewed(
        self, before: Mapping[int, Checkpoint], seals: dict[int, Checkpoint], name: str
    ) -> AsyncGenerator[None]:
        """Show that this rebuild is alive: ``seals`` become other ones, before workers lift them."""

        moving = asyncio.Lock()

        async def renew() -> None:
            for number in count(1):
                await self._clock.sleep(self._seal_s / 4)
                async with moving:
                    for partition, seal in [*seals.items()]:
                        seals[partition] = sealed(before[partition], name, number)
                        try:
                            await move(self._live, self._app_id, partition, seal, seals[partition])
                        except GraphUnavailable:
                            seals[partition] = seal  # or not: then the exchange finds another one, and is tried again
                        except Fenced:  # the graphs are exchanged, or a worker has lifted it
                            seals[partition] = seal
                            return

        renewing = asyncio.create_task(renew(), name="graphweft-seals")
        try:
            yield
        finally:
            async with moving:
                renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _seal(self, partition: int, name: str) -> tuple[Checkpoint, Checkpoint]:
        """Stop writes to the live graph as soon as it holds no unfinished plan; return its checkpoints."""
        until = self._clock.monotonic() + self._timing.plan_s
        old, since = "", 0.0
        while self._clock.monotonic() < until:
            found = (await self._live.progress(self._app_id, partition)).checkpoint
            if is_sealed(found):
                until = self._clock.monotonic() + self._timing.plan_s
                if found.plan != old:
                    old, since = found.plan, self._clock.monotonic()
                    logger.warning(
                        "swap_waits", app_id=self._app_id,
                        message="another rebuild is swapping graphs, or one was killed: its seal is lifted after "
                        f"{self._seal_s:.0f} s",
                    )  # fmt: skip
                elif self._clock.monotonic() - since >= self._seal_s:
                    with contextlib.suppress(Fenced):
                        await move(self._live, self._app_id, partition, found, of_generation(found))
                    continue
                await self._clock.sleep(self._timing.rest_s)
                continue
            if not has_plan(found):
                with contextlib.suppress(Fenced):
                    await move(self._live, self._app_id, partition, found, sealed(found, name))
                    return found, sealed(found, name)
            await self._clock.sleep(self._timing.plan_step_s)
        raise GraphUnavailable(
            f"the live graph of {self._app_id!r} holds an unfinished batch of partition {partition}: start the workers "
            "and swap with --resume --swap"
        )

    async def _lift(self, before: Mapping[int, Checkpoint], seals: Mapping[int, Checkpoint]) -> None:
        for partition, seal in seals.items():
            with contextlib.suppress(Fenced):  # a worker has lifted it
                await move(self._live, self._app_id, partition, seal, before[partition])


async def move(graph: GraphStore, app_id: str, partition: int, before: Checkpoint, after: Checkpoint) -> None:
    """Move a checkpoint. Raises ``Fenced`` if it is not ``before``."""
    await graph.apply(app_id, partition, [Write(before=before, after=after)])
