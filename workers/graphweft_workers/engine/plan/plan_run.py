"""How far a plan is, and how its next rows are sent: pure, without bus or graph.

A query with many rows fails as a whole. Two things find the failing row. A row that looks like one that failed before,
a suspect, runs alone, at its place in the log's order. Otherwise the rows of the failed query are divided into parts
that are sent at once, until a part has one row.

The order of the other rows holds whether a suspect takes effect or not. So a suspect that fails is skipped, and the
rows after it stay as they are: a batch with many failing rows is arranged once, and has one write of dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from graphweft_rules import BoundMutation
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.plan.order import MOST_ROWS, Step
from graphweft_workers.engine.plan.plan import FailedRows, Plan, Row
from graphweft_workers.engine.plan.suspects import Suspects
from graphweft_workers.ports.graph_store import Checkpoint, Write, WriteLimit

_PARTS: Final = 10
"""Into how many parts a failed query is divided."""
_PARTS_AFTER: Final = 3
"""Queries that are sent at once after a failed row was dropped, the first with one row."""


@dataclass(slots=True)
class Careful:
    """How many rows of a statement share a query during the search for the failing one."""

    statement: str
    size: int
    queries: int = 1
    """How many queries of the statement are sent at once."""
    growth: int = 1
    """How many times more rows each of these has than the one before."""

    @classmethod
    def within(cls, statement: str, rows: int) -> Careful:
        """Search a failed query with so many rows."""
        return cls(statement, -(-rows // _PARTS), queries=_PARTS)

    def after_failure(self) -> Careful:
        """Go on after a failed row. Where one fails after the other, no others are sent in vain."""
        again = self.growth > 1 and self.size == 1
        return Careful(self.statement, 1, queries=1 if again else _PARTS_AFTER, growth=_PARTS)


@dataclass(slots=True, kw_only=True)
class PlanRun:
    """A plan of one app, and the number of its rows that have taken effect."""

    partition: int
    app_id: str
    plan: Plan
    done: int = 0
    careful: Careful | None = None
    singly: bool = False
    """Whether writes are sent one at a time."""
    alone: Row | None = None
    """The row that timed out alone."""
    apart: Mapping[int, Row] = field(default_factory=dict[int, Row])
    """By ``id``: suspects, each in a step of its own."""
    skipped: list[LoggedEvent] = field(default_factory=list[LoggedEvent])
    """Events of suspects that failed and whose dead letters are not written yet; the rows are in ``plan.failed``."""
    _among: Sequence[Row] = field(init=False)
    """The rows that were arranged together with ``apart``."""
    _amid: set[int] | None = field(init=False, default=None)
    """See ``is_amid``; None until it is asked for."""

    def __post_init__(self) -> None:
        self._among = self.plan.rows

    @property
    def row(self) -> Row:
        """The next row."""
        return self.plan.rows[self.done]

    @property
    def left(self) -> Sequence[Row]:
        """The rows that have not taken effect."""
        return self.plan.rows[self.done :]

    def is_end(self, checkpoint: Checkpoint) -> bool:
        """Tell whether the plan is done where the graph stands at a checkpoint."""
        return checkpoint.offset == self.plan.end and not checkpoint.plan

    def go_on(self, plan: Plan) -> None:
        """Continue with the plan that replaces the present one."""
        self.plan, self.done = plan, 0

    def writes(
        self, most: Callable[[str], int], limit: Callable[[str], WriteLimit], *, suspects_first: bool
    ) -> list[Write]:
        """Return the next writes, at least one. Those after a failing one have no effect, so suspects are the last.

        ``most`` says how many rows of a statement may share a query, and ``limit`` how long one may take. With
        ``suspects_first`` no other write is sent together with a suspect.
        """
        careful = self.careful
        size = careful.size if careful else 0

        def most_of(bound: BoundMutation) -> int:
            nonlocal size
            statement = bound.mutation.cypher.statement
            if careful is None or careful.statement != statement:
                return most(statement)
            found, size = size, min(size * careful.growth, MOST_ROWS)
            return found

        coming = self.plan.writes(self.done, most_of, limit)
        if careful:
            writes = _of_search(coming, careful)
        else:
            writes = self._to_suspect(coming, alone=suspects_first) if self.apart else list(coming)
        return writes[:1] if self.singly else writes

    def _to_suspect(self, coming: Iterable[Write], *, alone: bool) -> list[Write]:
        """Return the writes up to the first suspect, with it; those before it only, if it is to be sent ``alone``."""
        writes: list[Write] = []
        first = self.done
        for write in coming:
            if write.rows and id(self.plan.rows[first]) in self.apart:
                return writes if writes and alone else [*writes, write]
            writes.append(write)
            first += len(write.rows)
        return writes

    def took(self, write: Write) -> Row | None:
        """Count the rows of a write that took effect; return the suspect that it held."""
        suspect = self.apart.get(id(self.row)) if self.apart and write.rows else None
        self.done += len(write.rows)
        careful = self.careful
        if careful and write.query and write.query.statement == careful.statement:
            careful.size *= max(2, careful.growth)
        return suspect

    def isolate(self, suspects: Suspects) -> bool:
        """Put the suspects among the rows that are left, and no others, in steps of their own.

        Return False, and change nothing, if they are already.
        """
        rows = self.left
        found = suspected(rows, suspects, self.apart)
        if found.keys() == {id(row) for row in rows if id(row) in self.apart}:
            return False
        self._go_on_apart(self.plan.isolating(self.done, found.keys()), found)
        return True

    def drop(self, failed: FailedRows, suspects: Suspects) -> None:
        """Leave out rows that failed; arrange those that are left, with the suspects among them apart."""
        apart = suspected(self.left, suspects, self.apart)
        self._go_on_apart(self.plan.without(self.done, failed, apart.keys()), apart)

    def _go_on_apart(self, plan: Plan, apart: Mapping[int, Row]) -> None:
        """Continue with a plan in which other suspects have steps of their own."""
        self.go_on(plan)
        self.apart, self._among, self._amid = apart, plan.rows, None

    def is_amid(self) -> bool:
        """Tell whether the next row, a suspect, follows a row of its mutation that is none, in the log's order."""
        if self._amid is None:
            self._amid = amid(self._among, self.apart)
        return id(self.row) in self._amid

    def skip(self, failed: FailedRows) -> bool:
        """Leave out the next row, a suspect that failed. Return False if the rows skipped before must be told first.

        Those of one mutation that failed for one reason are told together.
        """
        if (before := self.plan.failed) is not None:
            if replace(before, offsets=()) != replace(failed, offsets=()):
                return False
            failed = replace(failed, offsets=(*before.offsets, *failed.offsets))
        self.skipped.append(self.row.event)
        self.go_on(self._rest(self.done, self.done + 1, failed))
        return True

    def letters_written(self) -> None:
        """Go on when the dead letters of skipped rows are written, and before that the plan's note, if it was not."""
        self.skipped.clear()
        if self.done:
            self.go_on(self._rest(self.done, self.done, None))
        else:
            self.go_on(self.plan.reported())

    def _rest(self, done: int, first: int, failed: FailedRows | None) -> Plan:
        """Return the plan that replaces the present one after ``done`` rows, with the rows from ``first`` on."""
        steps: list[Step[Row]] = []
        for step in self.plan.steps:
            if first >= len(step.rows):
                first -= len(step.rows)
                continue
            steps.append(replace(step, rows=step.rows[first:]) if first else step)
            first = 0
        return replace(self.plan, before=self.plan.checkpoint(done), steps=steps, failed=failed, events=None)


def _of_search(coming: Iterable[Write], careful: Careful) -> list[Write]:
    """Return the writes up to the last query of the search that is sent at once."""
    writes: list[Write] = []
    left = careful.queries
    for write in coming:
        writes.append(write)
        left -= write.query is not None and write.query.statement == careful.statement
        if not left:
            break
    return writes


def suspected(
    rows: Sequence[Row], suspects: Suspects, before: Collection[int] = frozenset(), *, are_new: bool = False
) -> dict[int, Row]:
    """Return the suspects among rows by ``id``. If they are most of the rows, only those of ``before``."""
    if not suspects:
        return {}
    numbers = suspects.among([(row.bound.mutation.cypher.statement, row.bound.params) for row in rows], are_new=are_new)
    found = {id(rows[number]): rows[number] for number in numbers}
    return found if len(found) * 2 <= len(rows) else {each: row for each, row in found.items() if each in before}


def amid(rows: Iterable[Row], suspects: Mapping[int, Row]) -> set[int]:
    """Return the ``id`` of suspects that follow a row of their mutation that is none, in the log's order."""
    found: set[int] = set()
    is_suspect: dict[tuple[str | None, str, str], bool] = {}
    statements = set(map(statement_of, suspects.values()))
    for row in sorted([row for row in rows if statement_of(row) in statements], key=attrgetter("number")):
        mutation = (row.event.plain.workflow, row.bound.mutation.rule, row.bound.mutation.id)
        before = is_suspect.get(mutation, True)
        is_suspect[mutation] = id(row) in suspects
        if not before and is_suspect[mutation]:
            found.add(id(row))
    return found


def statement_of(row: Row) -> str:
    """Return the Cypher of a row."""
    return row.bound.mutation.cypher.statement
