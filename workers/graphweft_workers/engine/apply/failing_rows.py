"""Finds the rows of a plan that fail, and drops them into dead letters.

A query with many rows fails as a whole, so its rows are split until the failing row is alone. One write to the graph
drops that row and notes it; then its dead letter is written. After a crash between the two, the next owner finds the
note and writes the dead letter; the row does not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from graphweft_contracts import DeadLetterReason, GraphUnavailable, QueryFailed
from graphweft_workers.engine.apply.paced_writes import PacedWrites
from graphweft_workers.engine.failures.quarantine import Quarantine
from graphweft_workers.engine.failures.row_letters import RowLetters
from graphweft_workers.engine.plan.order import MOST_ROWS
from graphweft_workers.engine.plan.plan import FailedRows, Row
from graphweft_workers.engine.plan.plan_run import Careful, PlanRun, statement_of
from graphweft_workers.engine.plan.suspects import Suspects
from graphweft_workers.engine.usage.memory_quota import MemoryQuota
from graphweft_workers.engine.usage.name_quota import NameQuota
from graphweft_workers.ports.graph_store import Write, WriteResult

STRIKES: Final = 3
"""How often the server may not answer one write, while it answers others, before the row is dropped."""
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


class FailingRows:
    """What becomes of rows that fail, or may not be applied now, in plans of any app."""

    def __init__(
        self,
        writes: PacedWrites,
        letters: RowLetters,
        quarantine: Quarantine,
        suspects: Suspects,
        *,
        names: NameQuota | None,
        memory: MemoryQuota | None,
    ) -> None:
        """Rows over a quota are dropped as well."""
        self._writes = writes
        self._letters = letters
        self._quarantine = quarantine
        self._suspects = suspects
        self._names = names
        self._memory = memory

    async def begin(self, run: PlanRun, strikes: int) -> None:
        """Drop the rows that may not be applied, and the first one if the server did not answer it too often."""
        if strikes:
            run.singly = True
            if run.plan.rows:
                run.careful = Careful(statement_of(run.row), 1)
                if strikes >= STRIKES:
                    await self._drop_row(run, QueryFailed(_UNRESPONSIVE, code=_NO_ANSWER))
        if self._memory is not None and (why := await self._memory.refusal(run.app_id)) is not None:
            rows = [row for row in run.left if not row.event.rules.erases(row.event.plain.type)]
            await self._drop_over_quota(run, rows, lambda _: why)
        if self._names is not None:
            await self._drop_new_names(run, self._names)

    async def leave_out(self, run: PlanRun) -> None:
        """Drop the rows of mutations in quarantine, but for one that is to be tried alone."""
        if not self._quarantine:
            return
        dropped = self._quarantine.dropped(run.partition, run.app_id, run.left)
        if dropped and run.plan.failed is not None:
            await self.write_skipped(run)
        for failed in dropped:
            await self._drop(run, failed)
        if run.careful is None and (row := self._quarantine.probe(run.app_id, run.left)) is not None:
            run.careful = Careful(statement_of(row), 1)

    def took(self, run: PlanRun, writes: Sequence[Write], applied: WriteResult) -> None:
        """Count rows that took effect, of which some may have been suspected or in quarantine."""
        cleared = False
        for write in writes[: applied.count]:
            if self._quarantine:
                self._quarantine.succeeded(run.app_id, run.left[: len(write.rows)])
            if (suspect := run.took(write)) is not None:
                self._suspects.clear(statement_of(suspect), suspect.bound.params)
                cleared = True
        if run.careful and run.careful.size >= MOST_ROWS:
            run.careful = None
        if cleared and applied.failure is None and run.left:
            run.isolate(self._suspects)  # rows that are no suspects any more share queries again

    async def failed(self, run: PlanRun, write: Write, failure: QueryFailed) -> None:
        """Find, drop or skip the row that failed; ``write`` is the first one without an effect."""
        if write.query is None:
            # The write holds nothing of a rule, so the failure is the server's.
            raise GraphUnavailable(f"the graph's checkpoint cannot be written: {failure}")
        row, timed_out = run.row, failure.code == "timeout"
        if id(row) in run.apart and not timed_out:
            if self._quarantine and run.is_amid():
                # Suspects run one after the other, but they need not be so in the log.
                self._quarantine.forget_failures(run.app_id, row)
            failed = self._failed_row(run.app_id, row, failure)
            if not run.skip(failed):
                await self.write_skipped(run)
                run.skip(failed)
            return
        sound = [each.bound.params for each in run.plan.rows[: run.done] if statement_of(each) == statement_of(row)]
        if run.plan.failed is not None:
            await self.write_skipped(run)
        statement, size = write.query.statement, len(write.rows)
        if size > 1:
            if timed_out:
                run.careful = Careful(statement, max(1, size // 4))
                self._writes.at_most(statement, run.careful.size)
            elif self._suspects and run.isolate(self._suspects):
                run.careful = None
            else:
                run.careful = Careful.within(statement, size)
            return
        if timed_out:
            run.careful = Careful(statement, 1)
            # Try it once more: the time limit includes the wait for other writers.
            budget = self._writes.budget
            if budget is not None:
                if budget.timed_out(run.app_id, statement, write.limit):
                    raise budget.slow_writes(run.app_id)
            elif run.alone is not row:
                run.alone = row
                return
        else:
            self._suspects.add(statement, row.bound.params, sound)
            run.careful = (run.careful or Careful(statement, 1)).after_failure()
        await self._drop_row(run, failure)

    async def write_skipped(self, run: PlanRun) -> None:
        """Write the dead letters of skipped rows, once the graph's note lists these rows."""
        plan = run.plan
        assert plan.failed is not None
        if not run.done:
            await self._open(run)
        await self._letters.write(run.partition, plan.failed, run.skipped)
        run.letters_written()

    async def _drop_row(self, run: PlanRun, failure: QueryFailed) -> None:
        await self._drop(run, self._failed_row(run.app_id, run.row, failure))

    def _failed_row(self, app_id: str, row: Row, failure: QueryFailed) -> FailedRows:
        """Count a failed row; return the content of its dead letter."""
        if not failure.of_value:
            budget = self._writes.budget
            self._quarantine.failed(
                app_id, row, str(failure), timed_out=failure.code == "timeout",
                rest_s=budget.rest_s(app_id) if budget is not None else 0.0,
            )  # fmt: skip
        reason = "invalid_value" if failure.of_value else _REASONS.get(failure.code, "query_error")
        return FailedRows.of([row], reason, str(failure))

    async def _drop(self, run: PlanRun, failed: FailedRows) -> None:
        events = [row.event for row in run.plan.rows]
        run.drop(failed, self._suspects)
        await self._open(run)
        await self._letters.write(run.partition, failed, events)
        run.go_on(run.plan.reported())

    async def _open(self, run: PlanRun) -> None:
        """Store the note of a plan of which no row has taken effect."""
        await self._writes.move(run.app_id, run.partition, run.plan.opening())

    async def _drop_new_names(self, run: PlanRun, names: NameQuota) -> None:
        """Drop the rows that would bring more names of properties than the app's graph may have."""
        naming = [row for step in run.plan.steps if names.concerns(step.mutation) for row in step.rows]
        if not naming:
            return
        refused = await names.refused(run.app_id, [row.bound for row in naming])
        rows = [row for row in naming if id(row.bound) in refused]
        await self._drop_over_quota(run, rows, lambda row: refused[id(row.bound)])

    async def _drop_over_quota(self, run: PlanRun, rows: Sequence[Row], message: Callable[[Row], str]) -> None:
        """Drop rows that would bring the app's graph beyond a quota."""
        by_mutation: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            by_mutation.setdefault((row.bound.mutation.rule, row.bound.mutation.id), []).append(row)
        for some in by_mutation.values():
            await self._drop(run, FailedRows.of(some, "over_quota", message(some[0])))
