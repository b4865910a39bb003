"""A graph that lacks events which had taken effect: an older copy, that of another server, or a lost one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from graphweft_contracts import GraphUnavailable
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.offsets import is_after, later
from graphweft_workers.ports.position_note import PositionNote

type Obstacle = Callable[[str, int], Awaitable[str]]
"""Returns why the log alone does not bring the graph of an app, in a partition, to where it was, and what to do; empty:
it does."""


class OlderGraph(Exception):
    """The graph of an app lacks events that had taken effect in it: they are to be read again."""


class NeedsRebuild(GraphUnavailable):
    """The log alone does not bring the graph of an app to where it was."""


class NotItsGraph(GraphUnavailable):
    """The graph under the name of an app is another app's."""


async def no_obstacle(app_id: str, partition: int) -> str:
    """Say that the log is enough."""
    return ""


class OlderGraphs:
    """The graphs of a partition's apps that lack events, and what is passed over when events are read again."""

    def __init__(
        self,
        number: int,
        passed_over: EffectLedger,
        obstacle: Obstacle,
        *,
        reached: Mapping[str, str] | None = None,
        as_lived: Callable[[], Awaitable[EffectLedger]] | None = None,
        again: str = "",
    ) -> None:
        """``reached`` says which checkpoints the graphs of apps have reached, and ``as_lived`` returns what had no
        effect, for an app whose graph has not. Events up to ``again`` may take effect again.
        """
        self.passed_over: EffectLedger = passed_over
        self._number = number
        self._obstacle = obstacle
        self._reached = dict(reached or {})
        self._as_lived = as_lived
        self._again = again
        self._apps: set[str] = set()
        """Apps whose events are read again since their graph was lost."""
        self._without_obstacle: BoundedDict[str, None] = BoundedDict()

    def __contains__(self, app_id: str) -> bool:
        """Tell whether the events of an app are read again."""
        return app_id in self._apps

    @property
    def reached(self) -> Mapping[str, str]:
        """By app: the offset that the checkpoint of its graph has reached, as far as that is known."""
        return self._reached

    def reach(self, app_id: str, offset: str) -> None:
        """Note that the graph of an app stands at an offset."""
        self._reached[app_id] = offset

    def check(self, app_id: str, offset: str) -> None:
        """Raise ``OlderGraph`` if a graph, which stands at an offset, has not reached what it had."""
        if is_after(self._reached.get(app_id, ""), offset):
            raise self.lost(app_id, offset)

    def lost(self, app_id: str, offset: str) -> OlderGraph:
        """Note that a graph, which stands at an offset, has not reached what it had; return the error that says so."""
        reached = self._reached.pop(app_id, "")
        self._apps.add(app_id)
        return OlderGraph(
            f"the graph of {app_id!r} stands at {offset or 'the start'} of partition {self._number} and was at "
            f"{reached}: it was deleted or replaced by an older one. All events of the app are read again"
        )

    async def check_obstacle(self, app_id: str, events: Sequence[LoggedEvent]) -> None:
        """Raise ``NeedsRebuild`` if events are to take effect again, and the log alone does not bring them all back."""
        if app_id in self._without_obstacle or not (self._again or app_id in self._apps):
            return
        if app_id in self._apps or any(not is_after(event.entry.offset, self._again) for event in events):
            reason = await self._obstacle(app_id, self._number)
            if reason:
                raise NeedsRebuild(reason, retry_after_s=5.0)
            self._without_obstacle[app_id] = None

    async def pass_over_as_lived(self) -> None:
        """From now on pass over what had no effect before, too: events may be applied that took effect before."""
        if self._as_lived is not None:
            self.passed_over = await self._as_lived()


def is_graph_behind(position: str, note: PositionNote, kept: CommittedPosition | None) -> bool:
    """Tell whether the bus has seen more events take effect than the graph server holds.

    The graph server is told first, so this is never so while it keeps its data. ``kept`` is what it says of the
    partition, with the offset of ``PositionNote.done`` as its note.
    """
    held = "" if kept is None else later(kept.offset, kept.note)
    return is_after(later(note.at or position, note.done), held)
