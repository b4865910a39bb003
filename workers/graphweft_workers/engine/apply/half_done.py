"""Plans that a graph holds half done: another worker began them, or this one before an interruption."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from graphweft_contracts import GraphUnavailable, QueryFailed, wire
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_workers.engine.apply.older_graph import OlderGraphs
from graphweft_workers.engine.apply.worker_state import WorkerState
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.history import in_order
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.log.turns import read_in_turns
from graphweft_workers.engine.plan.graph_marks import has_plan, is_sealed
from graphweft_workers.engine.plan.plan import begun_events, planned_end
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import Progress
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import pages
from graphweft_workers.rule_sets.lost_rules import MissingRules, RulesLost


class HalfDonePlans:
    """The unfinished plans in the graphs of the apps of one partition."""

    def __init__(self, state: WorkerState, number: int, older: OlderGraphs) -> None:
        self._state = state
        self._number = number
        self._older = older
        self._has_rules: BoundedDict[str, None] = BoundedDict()
        """Apps whose graph holds no unfinished plan for rules that are not loaded."""

    async def may_hold(self, app_id: str) -> bool:
        """Tell whether an app's graph may hold an unfinished plan: its events then wait for the plan's rules."""
        if app_id in self._has_rules:
            return False
        try:
            checkpoint = (await self._state.graph.checkpoints(app_id, timeout_s=self._state.timing.checkpoints_s)).get(
                self._number
            )
        except QueryFailed:
            checkpoint = None
        except GraphUnavailable:
            return True  # its own queue waits until the graph answers
        if checkpoint is not None and (has_plan(checkpoint) or is_sealed(checkpoint)):
            return True
        self._has_rules[app_id] = None
        return False

    async def check_rules(self, app_id: str, progress: Progress) -> None:
        """Raise if the graph holds an unfinished plan for a workflow whose rules are not loaded."""
        rules = self._state.rules.cursor(self._number, "")
        begun = in_order({*begun_events(progress)})
        for entry in await self._state.log.entries(self._number, begun):
            event = wire.decode(entry.fields, received=entry.received)
            active = rules.at(event.appid, entry.offset)
            if isinstance(active, MissingRules):
                raise RulesLost(active.digest)
            if event.workflow is not None and not active.is_compiled(event.workflow):
                await asyncio.to_thread(active.compile, [event.workflow])
            if not active.knows(event):
                raise GraphUnavailable(
                    f"the graph of {app_id!r} holds a half-done batch of events of the workflow "
                    f"{event.workflow!r}, whose rules are not loaded: start a worker with the rules that it began with",
                    retry_after_s=5.0,
                )
        self._has_rules[app_id] = None

    async def events_after(
        self, app_id: str, events: Sequence[LoggedEvent], progress: Progress
    ) -> Sequence[LoggedEvent]:
        """Return the events of the graph's unfinished plan after ``events``, read from the log."""
        end, last = planned_end(progress), events[-1].entry.offset
        if end is None or not is_after(end, last):
            return ()
        planned = {*begun_events(progress)}
        unread = pages(self._state.log, self._number, last, to=end)
        entries: list[Entry] = [entry async for page in unread for entry in page if entry.offset in planned]
        # No search for copies: a plan names its events, and a copy has no rows.
        read = await read_in_turns(
            self._number,
            entries,
            self._state.rules.cursor(self._number, last),
            RecentEvents(),
            only=app_id,
            passed_over=self._older.passed_over,
        )
        read.check_rules(app_id)
        return read.apps.get(app_id, [])
