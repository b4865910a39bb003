"""Sends writes to a graph, as many rows at once as fit, and at the pace that the app's budget leaves it."""

from __future__ import annotations

from collections.abc import Sequence

from graphweft_contracts import GraphUnavailable, GraphweftError, QueryFailed
from graphweft_contracts.clock import Clock
from graphweft_workers.engine.apply.write_budget import WriteBudget
from graphweft_workers.engine.log.read import internal_error, log_defect
from graphweft_workers.engine.plan.order import MOST_ROWS
from graphweft_workers.ports.graph_store import GraphWrites, Write, WriteLimit, WriteResult
from graphweft_workers.support.timing import WriteTiming
from graphweft_workers.telemetry import tracing_spans
from graphweft_workers.telemetry.metrics import DB_DURATION, DB_TURN_WAIT


class PacedWrites:
    """Writes of any app. Without a ``budget`` no app rests."""

    def __init__(self, graph: GraphWrites, budget: WriteBudget | None, clock: Clock, timing: WriteTiming) -> None:
        self.graph: GraphWrites = graph
        self.budget: WriteBudget | None = budget
        self._clock = clock
        self._timing = timing
        self._most: dict[str, int] = {}
        """By statement: rows of one query, after a query with more rows timed out or took long."""

    async def send(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult | None:
        """Apply writes when it is the app's turn, and charge the app for their time.

        None if an unexpected error may be the fault of any of several writes. Raises ``SlowWrites`` if the app is to
        rest for long.
        """
        budget = self.budget
        if budget is None:
            return self._charged(app_id, writes, await self._apply(app_id, partition, writes))
        await self._rest(budget, app_id)
        if (turn := budget.turn(app_id)) is None:
            return self._charged(app_id, writes, await self._apply(app_id, partition, writes))
        async with turn:
            await self._rest(budget, app_id)  # another partition of the app may have written meanwhile
            return self._charged(app_id, writes, await self._apply(app_id, partition, writes))

    async def move(self, app_id: str, partition: int, write: Write) -> None:
        """Move the graph's checkpoint, or only check that no other worker has moved it: then it raises ``Fenced``."""
        moved = await self.graph.apply(app_id, partition, [write])
        if moved.failure is not None:
            raise GraphUnavailable(f"the graph's checkpoint cannot be written: {moved.failure}")

    def most_rows(self, statement: str) -> int:
        """Return how many rows of a statement may share a query."""
        return self._most.get(statement, MOST_ROWS)

    def at_most(self, statement: str, rows: int) -> None:
        """Let no more rows of a statement share a query, until queries are quick again."""
        self._most[statement] = rows

    def limit(self, app_id: str, statement: str) -> WriteLimit:
        """Return how long a row of a statement may take that is alone."""
        return "full" if self.budget is None else self.budget.limit(app_id, statement)

    async def _apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult | None:
        try:
            with (
                DB_DURATION.timed("write", clock=self._clock),
                tracing_spans.written(app_id, partition, writes) as span,
            ):
                applied = await self.graph.apply(app_id, partition, writes)
                if applied.failure is not None:
                    span.fail(applied.failure.code)
                return applied
        except GraphweftError:
            raise
        except Exception as error:  # noqa: BLE001 - a row that cannot be sent is found like a failing one
            log_defect(error, app_id)
            if len(writes) > 1:
                return None
            return WriteResult(count=0, failure=QueryFailed(internal_error(error), code="internal_error"))

    async def _rest(self, budget: WriteBudget, app_id: str) -> None:
        """Let an app rest whose writes took long. Raises ``SlowWrites`` if that is not over soon."""
        left = budget.rest_s(app_id)
        if left > self._timing.short_rest_s:
            raise budget.slow_writes(app_id)
        if left:
            await self._clock.sleep(left)
            DB_TURN_WAIT.record(left)

    def _charged(self, app_id: str, writes: Sequence[Write], applied: WriteResult | None) -> WriteResult | None:
        """Count for how long writes kept the server from other work; fit the size of the next queries to that."""
        if applied is None:
            return None
        timing = self._timing
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
            if self.budget is not None and (rows == 1 or not took_effect):
                self.budget.charge(app_id, held_s)
                if took_effect and write.limit == "long" and held_s < timing.long_s:
                    self.budget.was_quick(app_id, statement)
        return applied
