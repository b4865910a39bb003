"""A graph that lacks events which had taken effect: an older copy, that of another server, or a lost one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from graphweft_contracts import GraphUnavailable
from graphweft_workers.engine.position_note import PositionNote
from graphweft_workers.ports.event_log import Committed
from graphweft_workers.ports.offsets import is_after, later

type Obstacle = Callable[[str, int], Awaitable[str]]
"""Returns why the log alone does not bring the graph of an app, in a partition, to where it was; empty: it does."""


class OlderGraph(Exception):
    """The graph of an app lacks events that had taken effect in it: they are to be read again."""


class NeedsRebuild(GraphUnavailable):
    """The log alone does not bring the graph of an app to where it was."""


async def no_obstacle(app_id: str, partition: int) -> str:
    """Say that the log is enough."""
    return ""


def is_graph_behind(position: str, note: PositionNote, kept: Committed | None) -> bool:
    """Tell whether the bus has seen more events take effect than the graph server holds.

    The graph server is told first, so this is never so while it keeps its data. ``kept`` is what it says of the
    partition, with the offset of ``PositionNote.done`` as its note.
    """
    held = "" if kept is None else later(kept.offset, kept.note)
    return is_after(later(note.at or position, note.done), held)
