"""Builds an app's graph again from the log, beside the live one, and compares the two.

The live graph is only read. The new one follows the rules that were active at each place of the log; see ``replay``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from graphweft_contracts import InvalidSettings
from graphweft_workers.active_rules import ActiveRules
from graphweft_workers.engine.digest import Digest, read_digest
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Committed
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.replay.replay import Replay, Replayed

_TIMEOUT_S: Final = 60.0
_ROUNDS: Final = 20
"""Attempts to find the live graph at rest."""
_PAUSE_S: Final = 0.5


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
        self.done: dict[int, Replayed] = {}
        """How far each partition is. The counts are those of all runs."""

    async def begin(self, *, resume: bool) -> None:
        """Check that the log is complete and that the new graph is new; with ``resume``, that it is not the live one.

        Raises ``InvalidSettings`` otherwise, ``BusUnavailable`` and ``GraphUnavailable``.
        """
        app_id = self._app_id
        for partition in await self._partitions():
            lost = (await self._bus.reread(partition, Committed(), limit=1)).lost
            if lost:
                raise InvalidSettings(
                    f"partition {partition} of the log lacks its first {lost:,} entries: they were trimmed, so the "
                    f"graph of {app_id!r} cannot be rebuilt from it"
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
            if any(each.plan for each in place.values()):
                continue
            await self.run({partition: each.offset for partition, each in place.items()})
            await asyncio.sleep(self._live.settle_s)
            live = await read_digest(self._live, self._app_id)
            if place == await self._live.checkpoints(self._app_id, timeout_s=_TIMEOUT_S):
                return Compared(live=live, rebuilt=await read_digest(self._graph, self._app_id))
        return None

    async def _partitions(self) -> list[int]:
        """Return the partitions that may hold events of the app: now, before its order changed, of other producers."""
        layout = await self._bus.layout()
        found = {*layout.partitions_of(self._app_id), *range(layout.partitions, await self._bus.partitions(fresh=True))}
        return sorted(found | {*await self._live.checkpoints(self._app_id, timeout_s=_TIMEOUT_S)})

    async def _has_nodes(self) -> bool:
        async for _ in self._graph.nodes(self._app_id):
            return True
        return False
