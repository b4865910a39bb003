"""Builds an app's graph again from the log, beside the live one, and compares the two.

The live graph is only read, unless the two are swapped. The new one follows the rules that were active at each place
of the log; see ``replay``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from graphweft_contracts import Fenced, GraphUnavailable, InvalidSettings
from graphweft_workers.active_rules import ActiveRules
from graphweft_workers.engine.digest import Digest, read_digest
from graphweft_workers.engine.graph_marks import has_plan, is_sealed, of_generation, sealed
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, Write
from graphweft_workers.replay.replay import Replay, Replayed

_TIMEOUT_S: Final = 60.0
_ROUNDS: Final = 20
"""Attempts to find the live graph at rest."""
_PAUSE_S: Final = 0.5
_SWAPS: Final = 5
"""Attempts to swap."""
_SEAL_ATTEMPTS: Final = 2_000
_SEAL_PAUSE_S: Final = 0.005
_WAIT_S: Final = 60.0
"""How long a swap waits until the live graph is as far as the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The digests of both graphs at the same place of the log."""

    live: Digest
    rebuilt: Digest


class Rebuild:
    """Rebuilds one app's graph. The creator closes ``bus``, ``live`` and ``graph``."""

    def __init__(
        self,
        bus: Bus,
        live: GraphStore,
        graph: GraphStore,
        rules: ActiveRules,
        app_id: str,
        *,
        tell: Callable[[Replayed], None] = lambda _: None,
    ) -> None:
        """``graph`` is the store of the new graph; ``tell`` gets the progress after each batch."""
        self._bus = bus
        self._live = live
        self._graph = graph
        self._app_id = app_id
        self._tell = tell
        self._replay = Replay(bus, graph, rules, app_id)
        self._run_id = ""
        self.done: dict[int, Replayed] = {}
        """How far each partition is. The counts are those of all runs."""

    async def begin(self, *, resume: bool, swap: bool = False) -> None:
        """Check that the log is complete and that the new graph is new; with ``resume``, that it is not the live one.

        With ``swap``, check that the server can swap them. Raises ``InvalidSettings`` otherwise, ``BusUnavailable`` and
        ``GraphUnavailable``.
        """
        app_id = self._app_id
        self._run_id = await self._graph.check()
        if swap and not (self._live.can_exchange and self._graph.can_exchange):
            raise InvalidSettings(
                "--swap: a database of this graph server cannot take the place of another one. Rebuild --into another "
                "server, and start workers and responders with its URL as GRAPHWEFT_GRAPH_URL"
            )
        if swap and self._run_id != await self._live.check():
            raise InvalidSettings("--swap: both graphs must be on one server: leave out --into")
        for partition in await self._partitions():
            missing = await self._bus.missing(partition)
            if missing:
                raise InvalidSettings(
                    f"partition {partition} of the log lacks {missing:,} entries: they were trimmed and are not in an "
                    f"archive, so the graph of {app_id!r} cannot be rebuilt. If there is an archive, set "
                    "GRAPHWEFT_ARCHIVE_URL"
                )
        there = await self._graph.graph_id(app_id)
        if there and there == await self._live.graph_id(app_id):
            raise InvalidSettings(
                f"this place is that of the live graph of {app_id!r}: give --graph-template for another name, or "
                "--into for another server"
            )
        if not resume and (await self._graph.checkpoints(app_id, timeout_s=_TIMEOUT_S) or await self._has_nodes()):
            raise InvalidSettings(
                f"a graph of {app_id!r} exists at the place of the new one: give --resume to continue an interrupted "
                "rebuild, --graph-template for another name, or --into for another server"
            )
        found = await self._graph.checkpoints(app_id, timeout_s=_TIMEOUT_S)
        for partition, checkpoint in found.items():
            if is_sealed(checkpoint):  # it was the live graph before a swap
                await self._move(self._graph, partition, checkpoint, replace(checkpoint, plan=""))

    async def run(self, to: Mapping[int, str] | None = None) -> None:
        """Apply the log up to an offset for each partition, or to its end. A further call continues.

        Raises like ``Replay.run``, and ``InvalidSettings`` if the new graph is beyond an offset.
        """
        for partition in await self._partitions() if to is None else sorted(to):
            end = None if to is None else to[partition]
            place = (await self._graph.progress(self._app_id, partition)).checkpoint.offset
            if end is not None and self._bus.is_after(place, end):
                raise InvalidSettings(
                    f"the new graph is at {partition}:{place}, after {partition}:{end}: give --graph-template for "
                    "another one"
                )
            known = self.done.get(partition, Replayed())
            async for step in self._replay.run(partition, to=end):
                self.done[partition] = Replayed(
                    offset=step.offset,
                    entries=known.entries + step.entries,
                    events=known.events + step.events,
                    skips=known.skips + step.skips,
                    letters=step.letters,
                )
                self._tell(self.done[partition])

    async def compare(self) -> Compared | None:
        """Bring the new graph to the place of the live one and return both digests.

        None: the live graph changed during each attempt. Raises like ``run``.
        """
        for attempt in range(_ROUNDS):
            if attempt:
                await asyncio.sleep(_PAUSE_S)
            place = await self._live.checkpoints(self._app_id, timeout_s=_TIMEOUT_S)
            if any(has_plan(each) or is_sealed(each) for each in place.values()):
                continue
            await self.run({partition: each.offset for partition, each in place.items()})
            await asyncio.sleep(self._live.settle_s)
            live = await read_digest(self._live, self._app_id)
            if place == await self._live.checkpoints(self._app_id, timeout_s=_TIMEOUT_S):
                return Compared(live=live, rebuilt=await read_digest(self._graph, self._app_id))
        return None

    async def swap(self) -> None:
        """Put the new graph in the place of the live one, which gets the place of the new one.

        Workers of the app wait for a moment, those of other apps do not. If it is killed, workers go on with the live
        graph after a minute, or with the new one if that is in its place. Raises like ``run``; then the live graph
        is in its place and workers go on.
        """
        for _ in range(_SWAPS):
            await self._approach()
            if await self._swap_once():
                return
        raise GraphUnavailable(f"the live graph of {self._app_id!r} kept changing: swap again with --resume --swap")

    async def _approach(self) -> None:
        """Bring the new graph to where the live one is, so that workers wait for the last few events only."""
        rounds = int(_WAIT_S / _PAUSE_S)
        for _ in range(rounds):
            ends = {partition: await self._end(partition) for partition in await self._partitions()}
            ahead: list[int] = []
            for partition, end in ends.items():
                place = (await self._graph.progress(self._app_id, partition)).checkpoint.offset
                if self._bus.is_after(place, end):
                    ahead.append(partition)
            await self.run({partition: end for partition, end in ends.items() if partition not in ahead})
            if not ahead:
                return
            await asyncio.sleep(_PAUSE_S)
        raise InvalidSettings(
            f"the new graph of {self._app_id!r} is ahead of the live one: start the workers, wait until `graphweft "
            "status` shows no lag, and swap with --resume --swap"
        )

    async def _end(self, partition: int) -> str:
        """Return how far the live graph is; for a graph that was lost, how far it was."""
        live = (await self._live.progress(self._app_id, partition)).checkpoint.offset
        return live or (await self._bus.committed(partition)).offset

    async def _swap_once(self) -> bool:
        app_id, name = self._app_id, uuid4().hex
        before: dict[int, Checkpoint] = {}
        seals: dict[int, Checkpoint] = {}
        swapped = False
        try:
            for partition in await self._partitions():
                before[partition], seals[partition] = await self._seal(partition, name)
            ends = {partition: await self._end(partition) for partition in seals}
            await self.run(ends)
            for partition, end in ends.items():
                place = (await self._graph.progress(app_id, partition)).checkpoint
                # Further than its last write, where the live graph dropped rows that failed: nobody tries them again.
                reached = replace(place, offset=end) if self._bus.is_after(end, place.offset) else place
                await self._move(self._graph, partition, place, of_generation(reached, name))
            await self._graph.durable(self._run_id)
            swapped = await self._live.exchange(app_id, await self._graph.graph_id(app_id), seals)
        finally:
            if not swapped:
                await asyncio.shield(self._lift(before, seals))
        return swapped

    async def _seal(self, partition: int, name: str) -> tuple[Checkpoint, Checkpoint]:
        """Stop writes to the live graph as soon as it holds no unfinished plan; return its checkpoints."""
        for _ in range(_SEAL_ATTEMPTS):
            found = (await self._live.progress(self._app_id, partition)).checkpoint
            if is_sealed(found):
                raise InvalidSettings(
                    f"another rebuild of {self._app_id!r} is swapping graphs, or one was killed: a running worker goes "
                    "on after a minute at its next event; then swap with --resume --swap"
                )
            if not has_plan(found):
                with contextlib.suppress(Fenced):
                    await self._move(self._live, partition, found, sealed(found, name))
                    return found, sealed(found, name)
            await asyncio.sleep(_SEAL_PAUSE_S)
        raise GraphUnavailable(
            f"the live graph of {self._app_id!r} holds an unfinished batch of partition {partition}: start the workers "
            "and swap with --resume --swap"
        )

    async def _lift(self, before: Mapping[int, Checkpoint], seals: Mapping[int, Checkpoint]) -> None:
        for partition, seal in seals.items():
            with contextlib.suppress(Fenced):  # a worker has lifted it
                await self._move(self._live, partition, seal, before[partition])

    async def _move(self, graph: GraphStore, partition: int, before: Checkpoint, after: Checkpoint) -> None:
        await graph.apply(self._app_id, partition, [Write(before=before, after=after)])

    async def _partitions(self) -> list[int]:
        """Return the partitions that may hold events of the app: now, before its order changed, of other producers."""
        layout = await self._bus.layout()
        found = {*layout.partitions_of(self._app_id), *range(layout.partitions, await self._bus.partitions(fresh=True))}
        return sorted(found | {*await self._live.checkpoints(self._app_id, timeout_s=_TIMEOUT_S)})

    async def _has_nodes(self) -> bool:
        async for _ in self._graph.nodes(self._app_id):
            return True
        return False
