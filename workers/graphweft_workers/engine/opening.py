"""Where a worker begins with a partition: behind what the graphs hold, which may be before the position on the bus."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from graphweft_contracts import InvalidEvent, QueryFailed
from graphweft_workers.engine.apply.log_misfit import lost_entries
from graphweft_workers.engine.apply.older_graph import is_graph_behind
from graphweft_workers.engine.failures.set_aside import counted_letter
from graphweft_workers.engine.log.duplicates import REACH, RecentEvents
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.log.history import known_before
from graphweft_workers.engine.log.ledger_reader import ledger_as_lived
from graphweft_workers.engine.log.read import letter_of_new_log
from graphweft_workers.engine.log.series_store import read_marks
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import GraphStore, PositionMove
from graphweft_workers.ports.offsets import is_after, later
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.mutation")

_RECENT: Final = 500
"""Of the last entries, some may have a trace in the graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What is known of a partition when a worker begins with it."""

    run: str
    """The run of the graph server; a later run may have lost unsaved writes."""
    start: CommittedPosition
    """Where reading begins."""
    again: str
    """Up to this offset, events may take effect again: the graph was older than the log."""
    kept: CommittedPosition | None
    """What the graph server says of the partition; None if its store keeps no positions."""
    committed: CommittedPosition
    """The position on the bus."""
    before: PositionNote
    """The note of the last owner."""
    recent: RecentEvents
    passed_over: EffectLedger
    reached: Mapping[str, str] | None
    """By app: the offset that its graph has reached; None if the store keeps no positions."""


class PartitionOpening:
    """Opens partitions. The creator closes ``bus`` and ``graph``."""

    def __init__(self, bus: Bus, graph: GraphStore, *, checkpoints_s: float) -> None:
        """``checkpoints_s`` limits the query for the checkpoints of a graph."""
        self._bus = bus
        self._graph = graph
        self._checkpoints_s = checkpoints_s

    async def open(self, number: int, run: str) -> Opening:
        """Read what is known of a partition; ``run`` is that of the graph server."""
        committed = await self._bus.partitions.committed(number)
        before = PositionNote.decode(committed.note)
        start, again, kept = await self._place(number, run, committed, before)
        recent = await self._recent(number, start.offset, before, again)
        aside = await counted_letter(self._bus, self._graph, number, committed.offset, timeout_s=self._checkpoints_s)
        return Opening(
            run=run,
            start=start,
            again=again,
            kept=kept,
            committed=committed,
            before=before,
            recent=recent,
            passed_over=(
                await ledger_as_lived(self._bus, number, after=start)
                if again
                else EffectLedger.of_set_aside(number, aside)
            ),
            reached=None if kept is None else await self._graph.reached(number),
        )

    async def _recent(self, number: int, offset: str, before: PositionNote, again: str) -> RecentEvents:
        """Return the events before an offset, whose copies are to be dropped."""
        reach = REACH if again else before.reach  # how far windows reach back from there is not known
        stored = await read_marks(self._bus.series)
        records = None if stored is None else stored.get(number, ())
        recent = await known_before(self._bus.log, number, offset, reach=reach, records=records)
        if before.reach > REACH:
            logger.warning(
                "copies_forgotten", partition=number, entries=before.reach, read_back=REACH,
                message="apps that sent little lie further back than is read: if they repeat an event from there, it "
                "takes effect again",
            )  # fmt: skip
        return recent

    async def _place(
        self, number: int, run: str, committed: CommittedPosition, before: PositionNote
    ) -> tuple[CommittedPosition, str, CommittedPosition | None]:
        """Return ``Opening.start``, ``again`` and ``kept``."""
        positions = await self._graph.positions()
        if positions is None:
            return committed, "", None
        kept = positions.get(number)
        held = CommittedPosition() if kept is None else kept
        again = before.again
        at = before.at or committed.offset
        start = held if is_after(at, held.offset) else replace(committed, note="")
        if is_graph_behind(committed.offset, before, kept):
            again = later(again, later(at, before.done))
        if kept is None:
            if await self._may_trust(number, start, committed):
                start, again = replace(committed, note=""), before.again
            # At once: who finds nothing later knows that the server has lost it.
            await self._graph.durable(run, PositionMove(partition=number, before=None, after=start))
            held = start
        if again and not is_after(again, start.offset):
            again = ""
        await self._report_new_log(number, held, committed)
        if is_after(at, start.offset):
            logger.warning(
                "graph_is_behind", partition=number, graph=start.offset, position=committed.offset,
                entries=committed.count - start.count,
                message="the graph server was restored, emptied or replaced, or GRAPHWEFT_GRAPH_TEMPLATE was changed: "
                "the events between the two are read again, and those that its graphs hold are passed over",
            )  # fmt: skip
        return start, again, held

    async def _report_new_log(self, number: int, kept: CommittedPosition, committed: CommittedPosition) -> None:
        """Write a dead letter if the log lacks entries that the graph server holds the effects of.

        With an archive, what the bus lost can be put back; ``continuation`` tells.
        """
        if self._bus.archive is not None or not is_after(kept.offset, committed.offset):
            return
        lost = await lost_entries(self._bus, self._graph, number, kept)
        if (missing := lost.number) > 0:
            letter = letter_of_new_log(number, kept.offset, missing, exact=lost.exact)
            await self._bus.dead_letters.put([letter])
            logger.error("log_recreated", partition=number, at=kept.offset, missing=missing, message=letter.message)

    async def _may_trust(self, number: int, start: CommittedPosition, committed: CommittedPosition) -> bool:
        """Tell whether to take graphs for complete although the graph server says nothing of a partition.

        It is new or was emptied, or its graphs were made by an earlier version or a rebuild. To read everything again
        is right in any case. Where the log does not reach back so far, graphs with recent events are complete as far
        as can be told.
        """
        if not is_after(committed.offset, start.offset) or not (await self._bus.log.read(number, start, limit=1)).lost:
            return False
        page = await self._bus.log.before(number, committed.offset, limit=_RECENT)
        apps: set[str] = set()
        for entry in page:
            with contextlib.suppress(InvalidEvent):
                apps.add(entry.event().appid)
        for app_id in apps:
            with contextlib.suppress(QueryFailed):
                found = await self._graph.checkpoints(app_id, timeout_s=self._checkpoints_s)
                if number in found and not is_after(page[0].offset, found[number].offset):
                    return True
        return False
