"""Runs plans against the graph, and moves rows that cannot be applied to dead letters.

A query with many rows fails as a whole, so its rows are split until the failing row is alone. One write to the graph
drops that row and notes it; then its dead letter is written. After a crash between the two, the next owner finds the
note and writes the dead letter; the row does not run again.

A mutation whose rows fail one after the other is put in quarantine: its rows are dropped together into one dead letter,
and from time to time one row is tried. For rows that run into the time limit, two are enough.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import batched
from typing import Final, NamedTuple

from graphweft_contracts import DeadLetter, DeadLetterReason, GraphUnavailable, GraphweftError, QueryFailed, wire
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules import BoundMutation
from graphweft_workers.engine.arrangers import Arrangers
from graphweft_workers.engine.history import in_order
from graphweft_workers.engine.letter_payloads import LetterPayloads
from graphweft_workers.engine.memory_quota import MemoryQuota
from graphweft_workers.engine.name_quota import NameQuota
from graphweft_workers.engine.order import MOST_ROWS, Arranger, Step
from graphweft_workers.engine.plan import FailedRows, Plan, Row, resumed, rows_of, rules_of, steps_of, unwritten
from graphweft_workers.engine.plan_run import Careful, PlanRun, statement_of, suspected
from graphweft_workers.engine.read import MatchedEvent, defect_of, internal_error, letter_for
from graphweft_workers.engine.skips import MOST_OFFSETS
from graphweft_workers.engine.suspects import Suspects
from graphweft_workers.engine.write_budget import WriteBudget
from graphweft_workers.ports.dead_letters import DeadLetters, letter_with
from graphweft_workers.ports.event_log import EventLog
from graphweft_workers.ports.graph_store import Applied, Checkpoint, GraphWrites, Progress, Write, WriteLimit
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, Timing

logger = get_logger("graphweft.mutation")

FAILURES_TO_QUARANTINE: Final = 20
"""Failed rows in a row of one mutation in one app. Rows with an invalid value do not count."""
CHATS_TO_QUARANTINE: Final = 5
"""Chats that these rows must belong to at least: what one chat says switches a mutation off for no other."""
TIMEOUTS_TO_QUARANTINE: Final = 2
"""The same for rows that run into the time limit, and for their chats: each costs a graph server seconds."""
STRIKES: Final = 3
"""How often the server may not answer one write, while it answers others, before the row is dropped."""
_MOST_AHEAD: Final = 64
"""Apps of a partition whose next rows are arranged before they are applied."""
_LETTERS: Final = 100
"""Dead letters that are written at once."""
_MOST_COUNTED: Final = 10_000
"""Mutations whose failures are counted; beyond that only those in quarantine are."""

_NO_ANSWER: Final = "unresponsive"
_UNRESPONSIVE: Final = (
    f"the graph server did not answer this mutation {STRIKES} times, but answered others: make the query cheaper or "
    "the event smaller, then retry this dead letter"
)
_REASONS: Final[dict[str, DeadLetterReason]] = {
    "timeout": "timeout",
    _NO_ANSWER: "unresponsive",
    "internal_error": "internal_error",
}
"""By code of ``QueryFailed``; other codes are a ``query_error``."""

type _Broken = tuple[str, str | None, str, str, int]
"""App, workflow, rule, mutation, and the identity of the rules: other rules are tried anew."""


@dataclass(slots=True, kw_only=True)
class _Failures:
    """The failures of a mutation in one app since it last took effect."""

    rows: int = 0
    chats: set[str] = field(default_factory=set[str])
    """Chats of these rows, up to ``CHATS_TO_QUARANTINE``."""
    quarantined: bool = False
    timeouts: int = 0
    """Rows that ran into the time limit, one after the other."""
    probe_at: float = 0.0
    probe_after_s: float
    letters: dict[int, DeadLetter] = field(default_factory=dict[int, DeadLetter])
    """By partition: the last dead letter of rows that were dropped in quarantine."""


class _Ahead(NamedTuple):
    """Events whose rows are arranged."""

    events: Sequence[MatchedEvent]
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
        self._budget = WriteBudget(clock, timing.writes) if quarantine else None
        self._names = names
        self._memory = memory
        self._quarantine = quarantine
        self._clock = clock
        self._timing = timing
        self._log = log
        self._letters = letters
        self._graph = graph
        self._arrangers = arrangers
        self._failures: dict[_Broken, _Failures] = {}
        self._most: dict[str, int] = {}
        """By statement: rows of one query, after a query with more rows timed out or took long."""
        self._noted: BoundedDict[tuple[int, str], str] = BoundedDict()
        """By partition and app: the digest of the rules in the graph's note."""
        self._logged: BoundedDict[tuple[str, ...], int] = BoundedDict()
        self._suspects = Suspects()
        self._payloads = LetterPayloads()
        self._ahead: dict[int, BoundedDict[int, _Ahead]] = {}
        """By partition, and identity of the first event, which the value keeps."""

    async def apply(
        self, partition: int, app_id: str, checkpoint: Checkpoint, events: Sequence[MatchedEvent], *, strikes: int = 0
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
            _log_defect(error, app_id)
            return await self._apply_singly(partition, app_id, checkpoint, events)
        run = PlanRun(partition=partition, app_id=app_id, plan=plan, apart=ahead.suspects)
        if ahead.changes != self._suspects.changes and not strikes:
            run.isolate(self._suspects)
        reached = await self._run(run, strikes)
        self._noted[partition, app_id] = plan.rules
        return reached

    async def prepare(self, partition: int, events: Sequence[MatchedEvent]) -> None:
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

    def _taken_ahead(self, partition: int, events: Sequence[MatchedEvent]) -> _Ahead | None:
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

    async def _arranged(self, events: Sequence[MatchedEvent]) -> _Ahead:
        known = self._arrangers.known
        arranger = await self._arrangers.of(events)
        rows, changes = rows_of(events), self._suspects.changes
        suspects = suspected(rows, self._suspects, are_new=True)
        return _Ahead(events, arranger, steps_of(rows, arranger, suspects.keys()), known, suspects, changes)

    def opened(self, partition: int, app_id: str, progress: Progress) -> None:
        """Remember what the graph's note says: other workers may have written it."""
        self._noted[partition, app_id] = rules_of(progress)

    async def resume(
        self, partition: int, app_id: str, progress: Progress, events: Sequence[MatchedEvent], *, strikes: int = 0
    ) -> Checkpoint:
        """Continue the graph's unfinished plan; ``events`` must reach at least to its end."""
        failed = unwritten(progress)
        plan, gone = resumed(progress, events, await self._arrangers.of(events))
        if failed or gone:  # if another worker goes on with the plan, these letters are its own
            await self._move(app_id, partition, Write(before=progress.checkpoint, after=progress.checkpoint))
        if failed:
            await self._write_letters(partition, failed, events)
            there = {event.entry.offset for event in events}
            rows = [(offset, *failed.name) for offset in failed.offsets if offset not in there]
            await self._write_letters_of_gone(partition, rows, failed)
        await self._write_letters_of_gone(partition, gone)
        run = PlanRun(partition=partition, app_id=app_id, plan=plan)
        if not strikes:
            run.isolate(self._suspects)
        return await self._run(run, strikes)

    async def _apply_singly(
        self, partition: int, app_id: str, checkpoint: Checkpoint, events: Sequence[MatchedEvent]
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
                    await self._put_letters([_letter(partition, event, names, "internal_error", internal_error(error))])
                else:
                    sound.append(bound)
            if sound:
                plan = Plan.of(checkpoint, [replace(event, mutations=tuple(sound))], arranger)
                checkpoint = await self._run(PlanRun(partition=partition, app_id=app_id, plan=plan), 0)
        return checkpoint

    async def refuse(self, partition: int, events: Sequence[MatchedEvent], failure: QueryFailed) -> None:
        """Write dead letters for the events of an app that has no graph."""
        names = [(event, (bound.mutation.rule, bound.mutation.id)) for event in events for bound in event.mutations]
        await self._put_letters([_letter(partition, event, name, "query_error", str(failure)) for event, name in names])

    async def _run(self, run: PlanRun, strikes: int) -> Checkpoint:
        end, singly = run.plan.end, bool(strikes)  # whether writes are sent one at a time
        limit = partial(self._limit, run.app_id)
        if strikes and run.plan.rows:
            run.careful = Careful(statement_of(run.row), 1)
            if strikes >= STRIKES:
                await self._drop_row(run, QueryFailed(_UNRESPONSIVE, code=_NO_ANSWER))
        if self._memory is not None and (why := await self._memory.refusal(run.app_id)) is not None:
            rows = [row for row in run.left if not row.event.rules.erases(row.event.event.type)]
            await self._drop_over_quota(run, rows, lambda _: why)
        if self._names is not None:
            await self._drop_new_names(run)
        while True:
            if self._failures:
                await self._drop_quarantined(run)
                run.careful = run.careful or self._probing(run)
            writes = run.writes(self._most_rows, limit, suspects_first=self._graph.runs_again)[: 1 if singly else None]
            if run.plan.failed is not None and not writes[-1].after.plan:
                await self._tell_skipped(run)  # the last write of a plan removes its note
                continue
            applied = await self._send_when_due(run.app_id, run.partition, writes)
            if applied is None:
                singly = True
                continue
            cleared = self._took(run, writes[: applied.count])
            if applied.failure is not None:
                await self._failure(run, writes[applied.count], applied.failure)
            elif applied.count == len(writes) and writes[-1].after.offset == end and not writes[-1].after.plan:
                return writes[-1].after
            elif cleared:
                run.isolate(self._suspects)  # rows that are no suspects any more share queries again

    # Time of the graph server

    async def _send_when_due(self, app_id: str, partition: int, writes: Sequence[Write]) -> Applied | None:
        """Apply writes, and charge the app for their time; see ``_send`` for None, and ``_rest``."""
        if self._budget is None:
            return self._charged(app_id, writes, await self._send(app_id, partition, writes))
        await self._rest(self._budget, app_id)
        if (turn := self._budget.turn(app_id)) is None:
            return self._charged(app_id, writes, await self._send(app_id, partition, writes))
        async with turn:
            await self._rest(self._budget, app_id)  # another partition of the app may have written meanwhile
            return self._charged(app_id, writes, await self._send(app_id, partition, writes))

    async def _rest(self, budget: WriteBudget, app_id: str) -> None:
        """Let an app rest whose writes took long. Raises ``SlowWrites`` if that is not over soon."""
        left = budget.rest_s(app_id)
        if left > self._timing.writes.short_rest_s:
            raise budget.slow_writes(app_id)
        if left:
            await self._clock.sleep(left)

    def _limit(self, app_id: str, statement: str) -> WriteLimit:
        """Return how long a row of a statement may take that is alone."""
        return "full" if self._budget is None else self._budget.limit(app_id, statement)

    def _charged(self, app_id: str, writes: Sequence[Write], applied: Applied | None) -> Applied | None:
        """Count for how long writes kept the server from other work; fit the size of the next queries to that."""
        if applied is None:
            return None
        timing = self._timing.writes
        for number, (write, held_s) in enumerate(zip(writes, applied.held_s, strict=False)):
            rows = len(write.rows)
            if write.query is None or not rows:
                continue
            statement, took_effect = write.query.statement, number < applied.count
            if rows > 1 and took_effect and held_s > timing.query_s:
                self._most[statement] = max(1, int(rows * timing.query_s / held_s))
            elif took_effect and held_s < timing.query_s / 2 and rows == self._most.get(statement):
                if 2 * rows < MOST_ROWS:
                    self._most[statement] = 2 * rows
                else:
                    del self._most[statement]
            if self._budget is not None and (rows == 1 or not took_effect):
                self._budget.charge(app_id, held_s)
                if took_effect and write.limit == "long" and held_s < timing.long_s:
                    self._budget.was_quick(app_id, statement)
        return applied

    def _most_rows(self, statement: str) -> int:
        return self._most.get(statement, MOST_ROWS)

    def _took(self, run: PlanRun, writes: Sequence[Write]) -> bool:
        """Count rows that took effect; tell whether one was a suspect."""
        cleared = False
        for write in writes:
            if self._failures:
                self._succeeded(run.app_id, run.left[: len(write.rows)])
            if (suspect := run.took(write)) is not None:
                self._suspects.clear(statement_of(suspect), suspect.bound.params)
                cleared = True
        if run.careful and run.careful.size >= MOST_ROWS:
            run.careful = None
        return cleared

    async def _failure(self, run: PlanRun, write: Write, failure: QueryFailed) -> None:
        """Find, drop or skip the row that failed; ``write`` is the first one without an effect."""
        if write.query is None:
            # The write holds nothing of a rule, so the failure is the server's.
            raise GraphUnavailable(f"the graph's checkpoint cannot be written: {failure}")
        row, timed_out = run.row, failure.code == "timeout"
        if id(row) in run.apart and not timed_out:
            broken = _broken(run.app_id, row)
            failures = self._failures.get(broken)
            if failures is not None and not failures.quarantined and run.is_amid():
                del self._failures[broken]  # suspects run one after the other, but they need not be so in the log
            failed = self._failed_row(run.app_id, row, failure)
            if not run.skip(failed):
                await self._tell_skipped(run)
                run.skip(failed)
            return
        sound = [each.bound.params for each in run.plan.rows[: run.done] if statement_of(each) == statement_of(row)]
        if run.plan.failed is not None:
            await self._tell_skipped(run)
        statement, size = write.query.statement, len(write.rows)
        if size > 1:
            if timed_out:
                run.careful = Careful(statement, max(1, size // 4))
                self._most[statement] = run.careful.size
            elif self._suspects and run.isolate(self._suspects):
                run.careful = None
            else:
                run.careful = Careful.within(statement, size)
            return
        if timed_out:
            run.careful = Careful(statement, 1)
            # Try it once more: the time limit includes the wait for other writers.
            if self._budget is not None:
                if self._budget.timed_out(run.app_id, statement, write.limit):
                    raise self._budget.slow_writes(run.app_id)
            elif run.alone is not row:
                run.alone = row
                return
        else:
            self._suspects.add(statement, row.bound.params, sound)
            run.careful = (run.careful or Careful(statement, 1)).after_failure()
        await self._drop_row(run, failure)

    async def _send(self, app_id: str, partition: int, writes: Sequence[Write]) -> Applied | None:
        """Apply writes; None if an unexpected error may be the fault of any of several writes."""
        try:
            return await self._graph.apply(app_id, partition, writes)
        except GraphweftError:
            raise
        except Exception as error:  # noqa: BLE001 - a row that cannot be sent is found like a failing one
            _log_defect(error, app_id)
            if len(writes) > 1:
                return None
            return Applied(count=0, failure=QueryFailed(internal_error(error), code="internal_error"))

    async def _tell_skipped(self, run: PlanRun) -> None:
        """Write the dead letters of skipped rows, once the graph's note lists these rows."""
        plan = run.plan
        assert plan.failed is not None
        if not run.done:
            await self._open(run)
        await self._write_letters(run.partition, plan.failed, run.skipped)
        run.letters_written()

    async def _drop_row(self, run: PlanRun, failure: QueryFailed) -> None:
        await self._drop(run, self._failed_row(run.app_id, run.row, failure))

    def _failed_row(self, app_id: str, row: Row, failure: QueryFailed) -> FailedRows:
        """Count a failed row; return the content of its dead letter."""
        mutation = row.bound.mutation
        failed = FailedRows(
            rule=mutation.rule,
            mutation=mutation.id,
            offsets=(row.event.entry.offset,),
            reason="invalid_value" if failure.of_value else _REASONS.get(failure.code, "query_error"),
            message=str(failure),
        )
        if not failure.of_value:
            self._failed(app_id, row, str(failure), timed_out=failure.code == "timeout")
        return failed

    async def _drop(self, run: PlanRun, failed: FailedRows) -> None:
        events = [row.event for row in run.plan.rows]
        run.drop(failed, self._suspects)
        await self._open(run)
        await self._write_letters(run.partition, failed, events)
        run.go_on(run.plan.reported())

    async def _open(self, run: PlanRun) -> None:
        """Store the note of a plan of which no row has taken effect."""
        await self._move(run.app_id, run.partition, run.plan.opening())

    async def _move(self, app_id: str, partition: int, write: Write) -> None:
        """Move the graph's checkpoint, or only check that no other worker has moved it: then it raises ``Fenced``."""
        moved = await self._graph.apply(app_id, partition, [write])
        if moved.failure is not None:
            raise GraphUnavailable(f"the graph's checkpoint cannot be written: {moved.failure}")

    async def _drop_new_names(self, run: PlanRun) -> None:
        """Drop the rows that would bring more names of properties than the app's graph may have."""
        assert self._names is not None
        naming = [row for step in run.plan.steps if self._names.concerns(step.mutation) for row in step.rows]
        if not naming:
            return
        refused = await self._names.refused(run.app_id, [row.bound for row in naming])
        rows = [row for row in naming if id(row.bound) in refused]
        await self._drop_over_quota(run, rows, lambda row: refused[id(row.bound)])

    async def _drop_over_quota(self, run: PlanRun, rows: Sequence[Row], message: Callable[[Row], str]) -> None:
        """Drop rows that would bring the app's graph beyond a quota."""
        by_mutation: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            by_mutation.setdefault((row.bound.mutation.rule, row.bound.mutation.id), []).append(row)
        for (rule, mutation), some in by_mutation.items():
            failed = FailedRows(
                rule=rule,
                mutation=mutation,
                offsets=tuple(row.event.entry.offset for row in sorted(some, key=lambda row: row.number)),
                reason="over_quota",
                message=message(some[0]),
            )
            await self._drop(run, failed)

    # Quarantine

    async def _drop_quarantined(self, run: PlanRun) -> None:
        """Drop the rows of mutations in quarantine."""
        out: dict[_Broken, list[Row]] = {}
        for row in run.left if self._has_quarantine() else ():
            broken = _broken(run.app_id, row)
            failures = self._failures.get(broken)
            if failures is not None and failures.quarantined and self._clock.monotonic() < failures.probe_at:
                out.setdefault(broken, []).append(row)
        if out and run.plan.failed is not None:
            await self._tell_skipped(run)
        for broken, rows in out.items():
            failures = self._failures[broken]
            mutation = rows[0].bound.mutation
            what = "ran into the time limit" if failures.timeouts else "failed"
            message = (
                f"{failures.rows} events in a row {what}, so the mutation of {mutation.place} is in quarantine until "
                "it works again: fix the rule, push it, then retry this dead letter"
            )
            failed = FailedRows(
                rule=mutation.rule,
                mutation=mutation.id,
                offsets=tuple(row.event.entry.offset for row in sorted(rows, key=lambda row: row.number)),
                reason="quarantined",
                message=message,
                extends=letter.id if (letter := failures.letters.get(run.partition)) else None,
            )
            await self._drop(run, failed)

    def _probing(self, run: PlanRun) -> Careful | None:
        """Send one row alone that tries whether a mutation in quarantine works again."""
        for row in run.left if self._has_quarantine() else ():
            failures = self._failures.get(_broken(run.app_id, row))
            if failures is not None and failures.quarantined:
                return Careful(statement_of(row), 1)
        return None

    def _has_quarantine(self) -> bool:
        return any(failures.quarantined for failures in self._failures.values())

    def _failed(self, app_id: str, row: Row, message: str, *, timed_out: bool = False) -> None:
        if len(self._failures) >= _MOST_COUNTED:
            self._failures = {broken: failures for broken, failures in self._failures.items() if failures.quarantined}
        failures = self._failures.setdefault(
            _broken(app_id, row), _Failures(probe_after_s=self._timing.quarantine.first_probe_s)
        )
        failures.rows += 1
        if len(failures.chats) < CHATS_TO_QUARANTINE:
            failures.chats.add(row.event.event.chatid)
        failures.timeouts = failures.timeouts + 1 if timed_out else 0
        enough = failures.rows >= FAILURES_TO_QUARANTINE and len(failures.chats) >= CHATS_TO_QUARANTINE
        slow = failures.timeouts >= TIMEOUTS_TO_QUARANTINE and len(failures.chats) >= TIMEOUTS_TO_QUARANTINE
        if not self._quarantine or not (enough or slow):
            return
        if failures.quarantined:
            failures.probe_after_s = min(failures.probe_after_s * 2, self._timing.quarantine.last_probe_s)
        else:
            mutation = row.bound.mutation
            logger.error(
                "mutation_quarantined", app_id=app_id, rule=mutation.rule, mutation=mutation.id,
                place=str(mutation.place), failures=failures.rows, message=message,
                next="fix the rule and run: graphweft rules push; then: graphweft dlq retry --all",
            )  # fmt: skip
        failures.quarantined = True
        rest_s = self._budget.rest_s(app_id) if self._budget is not None else 0.0
        failures.probe_at = self._clock.monotonic() + rest_s + failures.probe_after_s

    def _succeeded(self, app_id: str, rows: Sequence[Row]) -> None:
        for row in rows:
            if not self._failures:
                return
            failures = self._failures.pop(_broken(app_id, row), None)
            if failures is not None and failures.quarantined:
                mutation = row.bound.mutation
                logger.info("quarantine_ended", app_id=app_id, rule=mutation.rule, mutation=mutation.id)

    # Dead letters

    async def _write_letters(self, partition: int, failed: FailedRows, events: Sequence[MatchedEvent]) -> None:
        """Write the dead letters of failed rows; idempotent."""
        by_offset = {event.entry.offset: event for event in events}
        there = [by_offset[offset] for offset in failed.offsets if offset in by_offset]
        if failed.reason != "quarantined":
            letters = [_letter(partition, event, failed.name, failed.reason, failed.message) for event in there]
            await self._put_letters(letters)
        elif there:
            await self._write_quarantined(partition, failed, there)

    async def _write_letters_of_gone(
        self, partition: int, rows: Sequence[tuple[str, str, str]], failed: FailedRows | None = None
    ) -> None:
        """Write the dead letters of rows of an unfinished plan that the rules no longer have; idempotent.

        With ``failed``, the rows failed before, and the letters say so.
        """
        if not rows:
            return
        offsets = in_order({offset for offset, _, _ in rows})
        entries = {entry.offset: entry for entry in await self._log.entries(partition, offsets)}
        for offset, rule, mutation in rows:
            entry = entries.get(offset)
            reason: DeadLetterReason = "missing_rule"
            message = (
                f"the rules changed while this event was half applied: {rule}/{mutation} no longer exists or no longer "
                "matches the event; restore it, then retry this dead letter"
            )
            if failed is not None:
                reason, message = failed.reason, failed.message
            if entry is None:
                logger.error("event_gone", position=f"{partition}:{offset}", rule=rule, mutation=mutation)
                continue
            event = wire.decode(entry.fields, received=entry.received)
            letter = letter_for(partition, entry, reason, message, event=event, rule=rule, mutation=mutation)
            await self._put_letters([letter])

    async def _write_quarantined(self, partition: int, failed: FailedRows, events: Sequence[MatchedEvent]) -> None:
        first = events[0]
        offsets = tuple(event.entry.offset for event in events)
        letter = _letter(partition, first, failed.name, failed.reason, failed.message)
        letter = letter.of_entries(offsets)
        while failed.extends and (earlier := await letter_with(self._letters, failed.extends)) is not None:
            if earlier.reason != "quarantined" or len(earlier.offsets) >= MOST_OFFSETS:
                break
            known = set(earlier.offsets)
            fresh = tuple(offset for offset in offsets if offset not in known)
            longer = earlier.of_entries((*earlier.offsets, *fresh))
            if not fresh or await self._letters.extend(earlier, longer):
                self._remember(partition, first, failed, longer)
                return
        await self._letters.put([letter])
        self._remember(partition, first, failed, letter)

    def _remember(self, partition: int, event: MatchedEvent, failed: FailedRows, letter: DeadLetter) -> None:
        about = event.event
        failures = self._failures.get((about.appid, about.workflow, failed.rule, failed.mutation, id(event.rules)))
        if failures is not None:
            failures.letters[partition] = letter

    async def _put_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Write the dead letters of single rows, many at once."""
        for some in batched(letters, _LETTERS):
            await self._letters.put([self._payloads.once(letter) for letter in some])
        for letter in letters:
            cause = (str(letter.rule), str(letter.mutation), letter.reason)
            times = self._logged[cause] = self._logged.get(cause, 0) + 1
            # Only the 1st, 10th, 100th … of a cause is an error: a broken rule must not flood the log.
            level = logger.error if str(times).strip("0") == "1" else logger.debug
            level(
                "mutation_buried", times=times, rule=letter.rule, mutation=letter.mutation, place=letter.place,
                reason=letter.reason, message=letter.message, event_id=letter.event_id, position=letter.position,
            )  # fmt: skip


def _letter(
    partition: int, event: MatchedEvent, name: tuple[str, str], reason: DeadLetterReason, message: str
) -> DeadLetter:
    found = (bound.mutation for bound in event.mutations)
    place = next((str(each.place) for each in found if (each.rule, each.id) == name), None)
    return letter_for(
        partition, event.entry, reason, message, event=event.event, rule=name[0], mutation=name[1], place=place
    )


def _broken(app_id: str, row: Row) -> _Broken:
    return (app_id, row.event.event.workflow, row.bound.mutation.rule, row.bound.mutation.id, id(row.event.rules))


def _log_defect(error: Exception, app_id: str) -> None:
    defect = defect_of(error)
    logger.error("defect", app_id=app_id, error=defect.kind, frames=defect.frames)
