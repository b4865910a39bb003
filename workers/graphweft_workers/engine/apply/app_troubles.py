"""What an app of a partition does when its events cannot be applied now; other apps go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from graphweft_contracts import GraphUnavailable
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import Clock
from graphweft_workers.engine.apply.app_queue import AppQueue, State
from graphweft_workers.engine.apply.older_graph import NeedsRebuild, NotItsGraph, OlderGraph, OlderGraphs
from graphweft_workers.engine.apply.parked_apps import ParkedApps
from graphweft_workers.engine.apply.worker_state import WorkerState
from graphweft_workers.engine.apply.write_budget import SlowWrites
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import Checkpoint
from graphweft_workers.ports.offsets import later
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.rule_sets.lost_rules import RulesLost
from graphweft_workers.support.backoff import backoff_s
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.support.timing import QueueTiming

logger = get_logger("graphweft.mutation")

TROUBLES: Final = (RulesLost, OlderGraph, GraphUnavailable)
"""The errors that concern one app; all others end the partition."""
_STATES: Final[Mapping[type[Exception], State]] = {NeedsRebuild: State.NEEDS_REBUILD, NotItsGraph: State.OTHER_GRAPH}
"""Of an app whose graph gives an error; by default the graph is unavailable."""


class QueueWriter(Protocol):
    """Applies the events of the apps of a partition: an ``AppWriter``."""

    state: WorkerState
    number: int
    older: OlderGraphs
    parked: ParkedApps

    async def apply(self, app_id: str, events: Sequence[LoggedEvent]) -> Checkpoint | None:
        """See ``AppWriter.apply``."""
        ...

    def forget(self, app_id: str) -> None:
        """See ``AppWriter.forget``."""
        ...


class AppTroubles:
    """Lets the apps of one partition wait until they can go on."""

    def __init__(
        self,
        writer: QueueWriter,
        before: PositionNote,
        *,
        run: str,
        check: Callable[[], Awaitable[str]],
        given: Callable[[AppQueue], CommittedPosition],
        changed: Callable[[], None],
        clock: Clock,
        timing: QueueTiming,
    ) -> None:
        """``given`` returns up to where an app got its events; ``changed`` is called when an app is set apart.

        ``run`` is the run of the graph server that ``check`` returned when the partition was opened, with the note
        ``before``.
        """
        self.again: str = ""
        """See ``AppQueues.again``."""
        self._writer = writer
        self._before = before
        self._run = run
        self._check = check
        self._given = given
        self._changed = changed
        self._clock = clock
        self._timing = timing
        self._lines = LogLimit(clock=clock)
        self._restatements: BoundedDict[str, int] = BoundedDict()
        """By app: the last one that was known before it last looked whether its events need lost rules."""

    async def meet(self, queue: AppQueue, error: Exception) -> None:
        """Return when the app may try again. Raises a failure that concerns more than one app."""
        match error:
            case RulesLost():
                await self._await_rules(queue, error)
            case OlderGraph():
                await self._writer.older.pass_over_as_lived()
                self.begin_again(queue, error)
            case SlowWrites():
                await self._rest(queue, error)
            case GraphUnavailable():
                await self._back_off(queue, error)
            case _:
                raise error

    async def _await_rules(self, queue: AppQueue, error: RulesLost) -> None:
        """Wait until a lost rule set is there again, or the app's past is restated.

        Afterwards the app needs a slot: any number of apps may wait for the same rule set.
        """
        rules, app_id = self._writer.state.rules, queue.app_id
        restatement = rules.restatement(app_id)
        if queue.parking is not None:
            queue.parking.recent = None
        if self._restatements.get(app_id, 0) != restatement:
            # It may have been read after the rules of the events were looked up.
            self._restatements[app_id] = restatement
            return
        logger.error("app_waits_for_rules", partition=self._writer.number, app_id=app_id, message=str(error))
        while True:
            self._halt(queue, State.RULES_LOST)
            await self._clock.sleep(backoff_s(self._timing.lost_rules_s, 1))
            await rules.refresh(())
            if error.digest not in rules.lost or rules.restatement(app_id) != restatement:
                break
        queue.rejoin()

    def begin_again(self, queue: AppQueue, error: OlderGraph) -> None:
        """Let an app read all its events again, since its graph lacks some; ``pass_over_as_lived`` was called."""
        logger.warning("graph_is_behind", partition=self._writer.number, app_id=queue.app_id, message=str(error))
        given = self._given(queue)
        queue.begin_again(later(self._before.reported_of(queue.app_id), (queue.floor or given).offset))
        self.again = later(self.again, given.offset)

    async def _rest(self, queue: AppQueue, error: SlowWrites) -> None:
        """Wait until an app may write again, whose writes kept the graph server from others."""
        self._halt(queue, State.RESTING)
        logger.warning(
            "app_rests", partition=self._writer.number, app_id=queue.app_id, message=str(error),
            resumes_after_s=round(error.retry_after_s, 2),
        )  # fmt: skip
        await self._clock.sleep(error.retry_after_s)
        queue.rested()

    async def _back_off(self, queue: AppQueue, error: GraphUnavailable) -> None:
        """Wait for the graph of an app. Raises if the whole server is unavailable or has restarted."""
        number, app_id = self._writer.number, queue.app_id
        self._writer.state.strikes.note(number, app_id, error)
        if await self._check() != self._run:
            raise GraphUnavailable("the graph server restarted: the partition is opened again") from error
        self._halt(queue, _STATES.get(type(error), State.UNAVAILABLE))
        queue.failures += 1
        wait_s = backoff_s(error.retry_after_s, queue.failures)
        self._lines.warn(logger, "app_waits", error, partition=number, app_id=app_id, retry_after_s=round(wait_s, 2))
        await self._clock.sleep(wait_s)

    def _halt(self, queue: AppQueue, state: State) -> None:
        queue.halt(state)
        self._changed()
