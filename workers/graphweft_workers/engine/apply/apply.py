"""Applies the events of an app to its graph: arranges their rows, plans the writes, and sends them.

What becomes of rows that fail is in ``failing_rows``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from graphweft_contracts import GraphweftError, QueryFailed
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules import BoundMutation
from graphweft_workers.engine.apply.failing_rows import FailingRows
from graphweft_workers.engine.apply.paced_writes import PacedWrites
from graphweft_workers.engine.apply.write_budget import WriteBudget
from graphweft_workers.engine.failures.quarantine import Quarantine
from graphweft_workers.engine.failures.row_letters import RowLetters
from graphweft_workers.engine.log.read import LoggedEvent, log_defect
from graphweft_workers.engine.plan.arrangers import Arrangers
from graphweft_workers.engine.plan.order import Arranger, Step
from graphweft_workers.engine.plan.plan import Plan, RestNote, Row, resumed, rows_of, steps_of, unwritten
from graphweft_workers.engine.plan.plan_run import PlanRun, suspected
from graphweft_workers.engine.plan.suspects import Suspects
from graphweft_workers.engine.usage.memory_quota import MemoryQuota
from graphweft_workers.engine.usage.name_quota import NameQuota
from graphweft_workers.ports.dead_letters import DeadLetters
from graphweft_workers.ports.event_log import EventLog
from graphweft_workers.ports.graph_store import Checkpoint, GraphWrites, Progress, Write
from graphweft_workers.support.timing import TIMING, Timing

_MOST_AHEAD: Final = 64
"""Apps of a partition whose next rows are arranged before they are applied."""


class _Ahead(NamedTuple):
    """Events whose rows are arranged."""

    events: Sequence[LoggedEvent]
    arranger: Arranger
    steps: Sequence[Step[Row]]
    known: int
    """How many rule sets had been active: rows of a newer one may have written meanwhile, from another partition."""
    suspects: Mapping[int, Row]
    """The rows that have steps of their own, by ``id``."""
    changes: int
    """How often the suspected traits had changed."""


class Applier:
    """Applies events of any partition and app. Counts of failures last as long as the process."""

    def __init__(
        self,
        log: EventLog,
        letters: DeadLetters,
        graph: GraphWrites,
        arrangers: Arrangers,
        *,
        quarantine: bool = True,
        names: NameQuota | None = None,
        memory: MemoryQuota | None = None,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = TIMING,
    ) -> None:
        """Without ``quarantine`` no app rests either: a replay has the time of nobody to care for."""
        self._arrangers = arrangers
        self._suspects = Suspects()
        budget = WriteBudget(clock, timing.writes) if quarantine else None
        counts = Quarantine(clock, timing.quarantine, is_off=not quarantine)
        self._letters = RowLetters(log, letters, counts)
        self._writes = PacedWrites(graph, budget, clock, timing.writes)
        self._failing = FailingRows(
            self._writes, self._letters, counts, self._suspects, names=names, memory=memory
        )  # fmt: skip
        self._noted: BoundedDict[tuple[int, str], RestNote] = BoundedDict()
        """By partition and app: what the graph's note says."""
        self._ahead: dict[int, BoundedDict[int, _Ahead]] = {}
        """By partition, and identity of the first event, which the value keeps."""

    async def apply(
        self, partition: int, app_id: str, checkpoint: Checkpoint, events: Sequence[LoggedEvent], *, strikes: int = 0
    ) -> Checkpoint:
        """Apply events after ``checkpoint``, given in the log's order; return where the graph stands afterwards.

        All events have the same rules.
        ``strikes`` is how often the server did not answer the first write after ``checkpoint``. With any, rows are sent
        one by one; with ``STRIKES``, the first row is dropped.
        """
        if not events:
            return checkpoint
        noted = self._noted.pop((partition, app_id), None)  # unknown until all events have taken effect
        try:
            ahead = self._taken_ahead(partition, events) or await self._arranged(events)
            plan = Plan.of(checkpoint, events, ahead.arranger, steps=ahead.steps, noted=noted)
        except GraphweftError:
            raise
        except Exception as error:  # noqa: BLE001 - one event must not stop the others
            log_defect(error, app_id)
            return await self._apply_singly(partition, app_id, checkpoint, events)
        run = PlanRun(partition=partition, app_id=app_id, plan=plan, apart=ahead.suspects)
        if ahead.changes != self._suspects.changes and not strikes:
            run.isolate(self._suspects)
        reached = await self._run(run, strikes)
        self._noted[partition, app_id] = noted if noted and plan.is_noted else RestNote(plan.rules, plan.entry)
        return reached

    async def _run(self, run: PlanRun, strikes: int) -> Checkpoint:
        limit = partial(self._writes.limit, run.app_id)
        await self._failing.begin(run, strikes)
        while True:
            await self._failing.leave_out(run)
            writes = run.writes(self._writes.most_rows, limit, suspects_first=self._writes.graph.runs_again)
            if run.plan.failed is not None and not writes[-1].after.plan:
                await self._failing.write_skipped(run)  # the last write of a plan removes its note
                continue
            applied = await self._writes.send(run.app_id, run.partition, writes)
            if applied is None:
                run.singly = True
                continue
            self._failing.took(run, writes, applied)
            if applied.failure is not None:
                await self._failing.failed(run, writes[applied.count], applied.failure)
            elif applied.count == len(writes) and run.is_end(writes[-1].after):
                return writes[-1].after

    async def prepare(self, partition: int, events: Sequence[LoggedEvent]) -> None:
        """Arrange the rows of events of one app while ``apply`` waits for the graph, which takes those before them.

        It never raises. If ``apply`` then gets other events, it arranges those.
        """
        if events and all(event.rules is events[0].rules for event in events):
            with contextlib.suppress(Exception):  # ``apply`` meets it again
                ahead = await self._arranged(events)
                self._ahead.setdefault(partition, BoundedDict(_MOST_AHEAD))[id(events[0])] = ahead

    def forget(self, partition: int) -> None:
        """Forget what was arranged for a partition: its events come no more."""
        self._ahead.pop(partition, None)

    def _taken_ahead(self, partition: int, events: Sequence[LoggedEvent]) -> _Ahead | None:
        """Return the rows of these events if they are arranged; forget them, and those of single batches of them."""
        ahead = self._ahead.get(partition)
        if not ahead:
            return None
        found = ahead.pop(id(events[0]), None)
        if found is not None and found.events == events and found.known == self._arrangers.known:
            return found
        for event in events:  # several batches have piled up
            ahead.pop(id(event), None)
        return None

    async def _arranged(self, events: Sequence[LoggedEvent]) -> _Ahead:
        known = self._arrangers.known
        arranger = await self._arrangers.of(events)
        rows, changes = rows_of(events), self._suspects.changes
        suspects = suspected(rows, self._suspects, are_new=True)
        return _Ahead(events, arranger, steps_of(rows, arranger, suspects.keys()), known, suspects, changes)

    # Rare cases

    def opened(self, partition: int, app_id: str, progress: Progress) -> None:
        """Remember what the graph's note says: other workers may have written it."""
        self._noted[partition, app_id] = RestNote.of(progress)

    async def resume(
        self, partition: int, app_id: str, progress: Progress, events: Sequence[LoggedEvent], *, strikes: int = 0
    ) -> Checkpoint:
        """Continue the graph's unfinished plan; ``events`` must reach at least to its end."""
        failed = unwritten(progress)
        plan, gone = resumed(progress, events, await self._arrangers.of(events))
        if failed or gone:  # if another worker goes on with the plan, these letters are its own
            await self._writes.move(app_id, partition, Write(before=progress.checkpoint, after=progress.checkpoint))
        if failed:
            await self._letters.write(partition, failed, events)
            there = {event.entry.offset for event in events}
            rows = [(offset, *failed.name) for offset in failed.offsets if offset not in there]
            await self._letters.write_gone(partition, rows, failed)
        await self._letters.write_gone(partition, gone)
        run = PlanRun(partition=partition, app_id=app_id, plan=plan)
        if not strikes:
            run.isolate(self._suspects)
        return await self._run(run, strikes)

    async def _apply_singly(
        self, partition: int, app_id: str, checkpoint: Checkpoint, events: Sequence[LoggedEvent]
    ) -> Checkpoint:
        """Apply event by event; a mutation that cannot be planned becomes a dead letter."""
        for event in events:
            arranger = await self._arrangers.of([event])
            sound: list[BoundMutation] = []
            for bound in event.mutations:
                try:
                    Plan.of(checkpoint, [replace(event, mutations=(bound,))], arranger)
                except Exception as error:  # noqa: BLE001
                    names = (bound.mutation.rule, bound.mutation.id)
                    await self._letters.write_defect(partition, event, names, error)
                else:
                    sound.append(bound)
            if sound:
                plan = Plan.of(checkpoint, [replace(event, mutations=tuple(sound))], arranger)
                checkpoint = await self._run(PlanRun(partition=partition, app_id=app_id, plan=plan), 0)
        return checkpoint

    async def refuse(self, partition: int, events: Sequence[LoggedEvent], failure: QueryFailed) -> None:
        """Write dead letters for the events of an app that has no graph."""
        await self._letters.write_refused(partition, events, failure)
