"""Plans the writes for a range of events, and resumes unfinished plans: pure, without bus or graph.

A plan is the rows of one app in a range of one partition, in the order in which they run. The graph's checkpoint counts
them: ``Checkpoint(offset, plan, done)`` says that all events up to ``offset`` are in the graph, and so are the first
``done`` rows of the named plan. The plan's note, which its first write stores beside the checkpoint, lists the rows by
event, rule and mutation. So the next owner continues at the same row in the same order, even with other rules or
another version of graphweft, and repeats no row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

from msgspec import Struct

from graphweft_contracts import DeadLetterReason
from graphweft_rules import BoundMutation
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.plan.entry_mark import EntryMark, in_note
from graphweft_workers.engine.plan.graph_marks import has_plan
from graphweft_workers.engine.plan.order import Arranger, Step
from graphweft_workers.engine.plan.plan_note import PlanNote, compact
from graphweft_workers.ports.graph_store import Checkpoint, Progress, Write, WriteLimit

_MOST_ITEMS: Final = 10_000
"""Items of the lists of one query's rows; a server that runs one query at a time takes 0.25 s for them."""


class Row(Struct, eq=False, gc=False):  # a dataclass would triple the cost
    """One mutation for one event."""

    event: LoggedEvent
    bound: BoundMutation
    number: int
    """Its index in the log's order."""

    @property
    def name(self) -> tuple[str, str, str]:
        """Offset, rule and mutation, as in notes."""
        return (self.event.entry.offset, self.bound.mutation.rule, self.bound.mutation.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRows:
    """Rows of one mutation that a plan drops, with the content of their dead letter.

    The note holds them from the write that drops the rows until the dead letter is written, so a new owner can write
    it.
    """

    rule: str
    mutation: str
    offsets: tuple[str, ...]
    reason: DeadLetterReason
    message: str
    extends: str | None = None
    """The id of the dead letter that gets these rows."""

    @classmethod
    def of(
        cls, rows: Sequence[Row], reason: DeadLetterReason, message: str, *, extends: str | None = None
    ) -> FailedRows:
        """Return rows of one mutation with the content of their dead letter."""
        mutation = rows[0].bound.mutation
        return cls(
            rule=mutation.rule,
            mutation=mutation.id,
            offsets=tuple(row.event.entry.offset for row in sorted(rows, key=attrgetter("number"))),
            reason=reason,
            message=message,
            extends=extends,
        )

    @property
    def name(self) -> tuple[str, str]:
        """Rule and mutation."""
        return (self.rule, self.mutation)


class RestNote(NamedTuple):
    """The note that a finished plan leaves behind: by which rules the graph got there, and from which log."""

    rules: str = ""
    """The digest of the rules; empty if it is unknown or they have no files."""
    entry: EntryMark | None = None
    """Of an entry that had taken effect, not always the last one."""

    def encode(self) -> str:
        """Return the text for the graph."""
        return _of_rules(self.rules) if self.entry is None else compact(_rules_body(self.rules) | in_note(self.entry))

    @classmethod
    def of(cls, progress: Progress) -> RestNote:
        """Read the note of a graph; that of a plan says the same."""
        try:
            note: Any = json.loads(progress.note)
        except ValueError:
            return cls()
        if not isinstance(note, dict):
            return cls()
        body = cast("Mapping[str, Any]", note)
        return cls(str(body.get("rules", "")), EntryMark.of_note(body))


def _full(_: str) -> WriteLimit:
    return "full"


@dataclass(slots=True, kw_only=True)
class Plan:
    """The rows between two checkpoints."""

    before: Checkpoint
    """Where the graph stands before the first row: after a whole plan, or within the plan that this one replaces."""
    end: str
    """The offset of the checkpoint after the last row."""
    steps: Sequence[Step[Row]]
    arranger: Arranger
    """Arranges the rest of the rows when some are dropped."""
    failed: FailedRows | None = None
    rules: str = ""
    """The digest of the rule set of all rows; empty for rules without files."""
    events: Sequence[LoggedEvent] | None = None
    """The events of all rows, in the log's order; None: those of the rows."""
    entry: EntryMark | None = None
    """Of the last event."""
    is_noted: bool = False
    """Whether the graph's note says enough, if no plan is under way; a plan of one write then needs no note."""
    rows: Sequence[Row] = field(init=False)
    note: str = field(init=False)
    last_note: str = field(init=False)
    """The note that the last write stores."""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.rows = [row for step in self.steps for row in step.rows]
        self.note = _note(self)
        self.last_note = RestNote(self.rules, self.entry).encode()
        self.name = hashlib.blake2s(self.note.encode(), digest_size=8).hexdigest()

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        events: Sequence[LoggedEvent],
        arranger: Arranger,
        *,
        steps: Sequence[Step[Row]] | None = None,
        noted: RestNote | None = None,
    ) -> Plan:
        """Return the plan for events in the log's order, all of them after ``checkpoint`` and at least one.

        ``steps`` are those of ``arranged``, if they are known already. ``noted`` is the graph's note, if it is known.
        """
        steps = arranged(events, arranger) if steps is None else steps
        rules, entry = events[-1].rules.digest, EntryMark.of(events[-1].entry)
        return cls(
            before=checkpoint,
            end=events[-1].entry.offset,
            steps=steps,
            arranger=arranger,
            rules=rules,
            events=[event for event in events if event.mutations],
            entry=entry,
            is_noted=(
                noted is not None and noted.rules == rules and not (entry is not None and entry.is_due(noted.entry))
            ),
        )

    def without(self, done: int, failed: FailedRows, apart: Collection[int] = frozenset()) -> Plan:
        """Return the plan that replaces this one after ``done`` rows and drops the rows of ``failed``.

        The remaining rows are arranged again. If a failed row should have created an entity, later rows must not stay
        before the rows between them. ``apart``: see ``Arranger.arrange``.
        """
        gone = {(offset, failed.rule, failed.mutation) for offset in failed.offsets}
        rest = [row for row in self.rows[done:] if row.name not in gone]
        return replace(self._again(done, rest, apart), failed=failed)

    def isolating(self, done: int, apart: Collection[int]) -> Plan:
        """Return the plan that replaces this one after ``done`` rows, with other rows in steps of their own."""
        return self._again(done, self.rows[done:], apart)

    def _again(self, done: int, rows: Sequence[Row], apart: Collection[int]) -> Plan:
        in_order = sorted(rows, key=attrgetter("number"))
        return replace(self, before=self.checkpoint(done), steps=steps_of(in_order, self.arranger, apart), events=None)

    def reported(self) -> Plan:
        """Return the plan that replaces this one when the dead letter of ``failed`` is written."""
        return replace(self, before=self.opening().after, failed=None)

    def checkpoint(self, done: int) -> Checkpoint:
        """Return where the graph stands after ``done`` rows."""
        if done == 0:
            return self.before
        if done == len(self.rows):
            return Checkpoint(offset=self.end)
        return Checkpoint(offset=self.before.offset, plan=self.name, done=done)

    def opening(self) -> Write:
        """Return the write that replaces the plan before this one, with no row done."""
        return Write(before=self.before, after=Checkpoint(offset=self.before.offset, plan=self.name), note=self.note)

    def writes(
        self, done: int, most: Callable[[BoundMutation], int], limit: Callable[[str], WriteLimit] = _full
    ) -> Iterator[Write]:
        """Yield the writes for the rows after the first ``done``; up to ``most(mutation)`` rows share a query.

        ``limit`` says for a statement how long a row that is alone may take.
        """
        total = len(self.rows)
        position = 0
        for step in self.steps:
            end = position + len(step.rows)
            first = max(position, done)
            while first < end:
                last = min(first + max(1, most(step.mutation)), end)
                if step.batch_query is not None and step.batch_query.always:  # it has UNWIND
                    last = first + _light(step.rows[first - position : last - position])
                note = None
                if last == total:
                    note = None if self.is_noted and not first and not self.before.plan else self.last_note
                elif not first:
                    note = self.note
                yield Write(
                    query=step.mutation.mutation.cypher,
                    batch_query=step.batch_query,
                    rows=[row.bound.params for row in step.rows[first - position : last - position]],
                    before=self.checkpoint(first),
                    after=self.checkpoint(last),
                    note=note,
                    limit=limit(step.mutation.mutation.cypher.statement),
                )
                first = last
            position = end
        if not total:
            yield Write(before=self.before, after=Checkpoint(offset=self.end), note=self.last_note)


def arranged(events: Sequence[LoggedEvent], arranger: Arranger) -> Sequence[Step[Row]]:
    """Return the rows of events in the order in which they run; it does not depend on the graph."""
    return steps_of(rows_of(events), arranger)


def steps_of(rows: Iterable[Row], arranger: Arranger, apart: Collection[int] = frozenset()) -> Sequence[Step[Row]]:
    """Return rows, given in the log's order, in the order in which they run; ``apart``: see ``Arranger.arrange``."""
    return arranger.arrange([(row.bound, row) for row in rows], apart)


def _light(rows: Sequence[Row]) -> int:
    """Return how many of the first rows have few enough list items to share a query, at least 1."""
    items = 0
    for number, row in enumerate(rows):
        lists: list[list[Any]] = [value for value in row.bound.params.values() if type(value) is list]
        items += max(map(len, lists), default=0)
        if number and items > _MOST_ITEMS:
            return number
    return len(rows)


def planned_end(progress: Progress) -> str | None:
    """Return the last offset of the graph's unfinished plan; None without one."""
    return PlanNote.decode(progress.note).end if has_plan(progress.checkpoint) else None


def planned_events(progress: Progress) -> Sequence[str]:
    """Return the offsets of the events in the graph's unfinished plan."""
    return PlanNote.decode(progress.note).events if has_plan(progress.checkpoint) else ()


def begun_events(progress: Progress) -> Sequence[str]:
    """Return the offsets of the events in the graph's unfinished plan, with those of dead letters yet to be written."""
    failed = unwritten(progress)
    return (*planned_events(progress), *(failed.offsets if failed is not None else ()))


def planned_rows(progress: Progress) -> Sequence[tuple[str, str, str, bool]]:
    """Return offset, rule and mutation of each row in the graph's unfinished plan, and whether the graph has it."""
    if not has_plan(progress.checkpoint):
        return ()
    note = PlanNote.decode(progress.note)
    rows = [(note.events[number], rule, mutation) for rule, mutation, numbers in note.steps for number in numbers]
    return [(*row, number < progress.checkpoint.done) for number, row in enumerate(rows)]


def unwritten(progress: Progress) -> FailedRows | None:
    """Return the failed rows whose dead letter may not be written yet."""
    failed = PlanNote.decode(progress.note).left_out if has_plan(progress.checkpoint) else None
    if not failed:
        return None
    kept: dict[str, Any] = {**failed, "offsets": tuple(failed["offsets"])}
    return FailedRows(**kept)


def resumed(
    progress: Progress, events: Sequence[LoggedEvent], arranger: Arranger
) -> tuple[Plan, Sequence[tuple[str, str, str]]]:
    """Return the rest of the graph's unfinished plan, with rows from ``events``, which hold the plan's events.

    Rows whose event the log no longer has, or whose mutation the rules no longer have, are dropped. Their names
    (offset, rule, mutation) are returned too.
    """
    note = PlanNote.decode(progress.note)
    by_name = {row.name: row for row in rows_of(events)}
    steps: list[Step[Row]] = []
    gone: list[tuple[str, str, str]] = []
    done = progress.checkpoint.done
    for rule, mutation, numbers in note.steps:
        left, done = numbers[done:], max(0, done - len(numbers))
        names = [(note.events[number], rule, mutation) for number in left]
        gone += [name for name in names if name not in by_name]
        # One row per step: today's rules may not allow the batch query that the plan was made for.
        steps += [Step(mutation=by_name[name].bound, rows=[by_name[name]]) for name in names if name in by_name]
    plan = Plan(
        before=progress.checkpoint, end=note.end, steps=steps, arranger=arranger, rules=note.rules, entry=note.entry
    )  # fmt: skip
    return plan, gone


def rows_of(events: Iterable[LoggedEvent]) -> list[Row]:
    """Return the rows of events, given in the log's order."""
    pairs = [(event, bound) for event in events for bound in event.mutations]
    return [Row(event, bound, number) for number, (event, bound) in enumerate(pairs)]


def _rules_body(digest: str) -> dict[str, Any]:
    return {"rules": digest} if digest else {}


@lru_cache(maxsize=64)
def _of_rules(digest: str) -> str:
    return compact(_rules_body(digest)) if digest else ""


def _note(plan: Plan) -> str:
    with_rows = plan.events
    if with_rows is None:
        in_order = plan.rows if len(plan.steps) == 1 else sorted(plan.rows, key=attrgetter("number"))
        with_rows = list(dict.fromkeys([row.event for row in in_order]))
    numbers = dict(zip(with_rows, range(len(with_rows)), strict=True))
    steps: list[tuple[str, str, list[int]]] = []
    for step in plan.steps:
        for mutation, some in groupby(step.rows, attrgetter("bound.mutation")):
            if not steps or steps[-1][:2] != (mutation.rule, mutation.id):
                steps.append((mutation.rule, mutation.id, []))
            steps[-1][2].extend([numbers[row.event] for row in some])
    left_out = asdict(plan.failed) if plan.failed is not None else None
    events = [event.entry.offset for event in with_rows]
    return PlanNote(
        end=plan.end, events=events, steps=steps, left_out=left_out, rules=plan.rules, entry=plan.entry
    ).encode()
