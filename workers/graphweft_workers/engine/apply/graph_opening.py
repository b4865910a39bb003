"""Opens the graphs of apps: at the first events of an app, and after a call that failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from graphweft_contracts import QueryFailed
from graphweft_workers.engine.apply.half_done import HalfDonePlans
from graphweft_workers.engine.apply.log_misfit import misfit_of
from graphweft_workers.engine.apply.older_graph import NeedsRebuild, NotItsGraph, OlderGraphs
from graphweft_workers.engine.apply.worker_state import WorkerState
from graphweft_workers.engine.log.read import LoggedEvent, letter_of_gap
from graphweft_workers.engine.plan.graph_marks import has_plan
from graphweft_workers.ports.graph_store import Checkpoint, OtherGraph, Progress
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.mutation")


class OpenedGraph(NamedTuple):
    """Where a graph stands, without an unfinished plan."""

    checkpoint: Checkpoint
    strikes: int
    """How often the server did not answer the first write after it."""
    events: Sequence[LoggedEvent]
    """Those to apply, with those of the plan that the graph held; some may be in the graph."""


class GraphOpening:
    """Opens the graphs of the apps of one partition."""

    def __init__(self, state: WorkerState, number: int, older: OlderGraphs, half_done: HalfDonePlans) -> None:
        self._state = state
        self._number = number
        self._older = older
        self._half_done = half_done

    async def open(
        self,
        app_id: str,
        events: Sequence[LoggedEvent],
        prepare: Callable[[str, Sequence[LoggedEvent]], Awaitable[None]],
    ) -> OpenedGraph | None:
        """Return where the graph of an app stands, after the rest of a plan that it holds.

        None if the app has no graph: then there are dead letters for the events. ``prepare`` is called before events
        of a plan are applied. Raises ``NotItsGraph`` if the graph under its name is another app's: then nothing was
        written to it. Raises ``NeedsRebuild`` for a graph that the log alone does not bring to where it was.
        """
        state, number, applier = self._state, self._number, self._state.applier
        try:
            state.indexes.forget(app_id)
            await state.indexes.prepare(app_id, events)
            progress = await state.graph.progress(app_id, number)
        except OtherGraph as error:
            raise NotItsGraph(str(error), retry_after_s=5.0) from error
        except QueryFailed as failure:  # no graph, and so no checkpoint
            await applier.refuse(number, events, failure)
            return None
        checkpoint = progress.checkpoint
        await state.seals.check(number, app_id, checkpoint)
        if why := await state.older(app_id, number):
            raise NeedsRebuild(why, retry_after_s=5.0)
        self._older.check(app_id, checkpoint.offset)
        await self._check_log(app_id, progress, events[-1].entry.offset)
        await self._half_done.check_rules(app_id, progress)
        events = [*events, *await self._half_done.events_after(app_id, events, progress)]
        applier.opened(number, app_id, progress)
        strikes = state.strikes.of(number, app_id, checkpoint)
        if not has_plan(checkpoint):
            return OpenedGraph(checkpoint, strikes, events)
        await prepare(app_id, events)
        return OpenedGraph(await applier.resume(number, app_id, progress, events, strikes=strikes), 0, events)

    async def _check_log(self, app_id: str, progress: Progress, last: str) -> None:
        """Raise if a graph stands at an entry that the log has surely lost, with its end or as a whole.

        Other events would count as applied, up to ``last``, or come behind effects that the log does not hold. An entry
        that was removed from between others gets a dead letter and stops nothing.
        """
        state, number, offset = self._state, self._number, progress.checkpoint.offset
        if offset == last and "-" in offset:
            return
        misfit = await misfit_of(state.log, state.partitions, number, progress, last=last)
        if misfit is not None and misfit.removed:
            await self._report_gap(app_id, offset)
        elif misfit is not None:
            raise NeedsRebuild(
                f"the graph of {app_id!r} stands at {offset} of partition {number}, {misfit.why}. Restore the log, or "
                f"rebuild the graph from it: `graphweft rebuild --app {app_id} --swap`",
                retry_after_s=5.0,
            )

    async def _report_gap(self, app_id: str, offset: str) -> None:
        letter = letter_of_gap(self._number, offset, app_id, clock=self._state.clock)
        await self._state.letters.put([letter])
        logger.warning("log_gap", partition=self._number, app_id=app_id, at=offset, message=letter.message)
