"""How the events of a range become writes, and how a half-done range is taken up again: pure, no bus and no graph.

A plan is the rows of one app in a range of one partition, in the order in which they run. The graph's mark counts
them: ``Mark(offset, plan, done)`` says that all events up to ``offset`` are in, and of the named plan the first
``done`` rows. The plan's note, which its first write puts beside the mark, lists the rows by event, rule and mutation.
So whoever comes next goes on from the same place in the same order, with other rules or another version of us just as
well, and without a row that is done or left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from graphweft_contracts import DeadLetterReason, GraphUnavailable
from graphweft_rules import BoundMutation
from graphweft_workers.graph.store import Mark, Progress, Write
from graphweft_workers.mutation.order import Arranger, Step
from graphweft_workers.mutation.reading import EventWork

_MOST_ITEMS: Final = 10_000
"""Items of the lists of one query's rows: FalkorDB serves nobody else meanwhile, for a quarter of a second."""
_FORMAT: Final = 1
"""Of the note. A reader that does not know a note's format must not guess."""


@dataclass(slots=True, eq=False)  # not frozen: that doubles the cost of making one
class Row:
    """One mutation for one event."""

    work: EventWork
    bound: BoundMutation
    number: int
    """Its place in the log's order."""

    @property
    def name(self) -> tuple[str, str, str]:
        """What it is called in notes: offset, rule, mutation."""
        return (self.work.entry.offset, self.bound.mutation.rule, self.bound.mutation.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Rows of one mutation that were left out of the graph, and of which a dead letter is to tell.

    It stands in the note from the moment on at which they are passed over, until the letter is written: whoever takes
    over in between writes it.
    """

    rule: str
    mutation: str
    offsets: tuple[str, ...]
    reason: DeadLetterReason
    message: str
    extends: str | None = None
    """The id of the letter that these rows are added to."""


@dataclass(slots=True, kw_only=True)
class Plan:
    """The rows that lead from one mark to the next."""

    before: Mark
    """Where the graph stands when no row is done: behind a whole plan, or within one that this takes over from."""
    end: str
    """The offset of the mark behind the last row."""
    steps: Sequence[Step[Row]]
    left_out: LeftOut | None = None
    rows: Sequence[Row] = field(init=False)
    note: str = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.rows = [row for step in self.steps for row in step.rows]
        self.note = _note(self)
        self.name = hashlib.blake2s(self.note.encode(), digest_size=8).hexdigest()

    @classmethod
    def of(cls, mark: Mark, works: Sequence[EventWork], arranger: Arranger) -> Plan:
        """Return the plan for works in the order of the log, all of them behind ``mark`` and at least one."""
        return cls(before=mark, end=works[-1].entry.offset, steps=_arranged(arranger, _rows(works)))

    def without(self, done: int, why: LeftOut, arranger: Arranger) -> Plan:
        """Return the plan that takes over when ``done`` rows are done and those that ``why`` names are left out.

        The others are put in order anew: where an entity was to be made by a row that failed, later rows of the log
        must not have gone in front of those that stood between.
        """
        gone = {(offset, why.rule, why.mutation) for offset in why.offsets}
        rest = sorted((row for row in self.rows[done:] if row.name not in gone), key=lambda row: row.number)
        return Plan(before=self.mark(done), end=self.end, steps=_arranged(arranger, rest), left_out=why)

    def told(self) -> Plan:
        """Return the plan that takes over when the dead letter of what is left out has been written."""
        return Plan(before=self.opening().after, end=self.end, steps=self.steps)

    def mark(self, done: int) -> Mark:
        """Return where the graph stands when that many rows are done."""
        if done == 0:
            return self.before
        if done == len(self.rows):
            return Mark(offset=self.end)
        return Mark(offset=self.before.offset, plan=self.name, done=done)

    def opening(self) -> Write:
        """Return the write that puts the plan in the place of the one before it, with no row done."""
        return Write(before=self.before, after=Mark(offset=self.before.offset, plan=self.name), note=self.note)

    def writes(self, done: int, most: Callable[[BoundMutation], int]) -> list[Write]:
        """Return the writes for the rows behind the first ``done``; of a mutation ``most`` rows share a query."""
        found: list[Write] = []
        total = len(self.rows)
        position = 0
        for step in self.steps:
            end = position + len(step.rows)
            first = max(position, done)
            while first < end:
                last = min(first + max(1, most(step.mutation)), end)
                if step.form is not None and step.form.always:  # it has UNWIND
                    last = first + _light(step.rows[first - position : last - position])
                note = None
                if last == total:
                    note = "" if first or self.before.plan else None
                elif not first:
                    note = self.note
                found.append(
                    Write(
                        query=step.mutation.mutation.cypher,
                        form=step.form,
                        rows=[row.bound.params for row in step.rows[first - position : last - position]],
                        before=self.mark(first),
                        after=self.mark(last),
                        note=note,
                    )
                )
                first = last
            position = end
        if not total:
            found.append(Write(before=self.before, after=Mark(offset=self.end), note=""))
        return found


def _light(rows: Sequence[Row]) -> int:
    """Return how many of the first rows have few enough items together to share a query; the first one always does."""
    items = 0
    for number, row in enumerate(rows):
        lists: list[list[Any]] = [value for value in row.bound.params.values() if type(value) is list]
        items += max(map(len, lists), default=0)
        if number and items > _MOST_ITEMS:
            return number
    return len(rows)


def planned_end(progress: Progress) -> str | None:
    """Return the last offset of the plan under way; None when none is."""
    return _read(progress)["end"] if progress.mark.plan else None


def planned_events(progress: Progress) -> Sequence[str]:
    """Return the offsets of the events in the plan under way; none when none is."""
    return cast("Sequence[str]", _read(progress)["events"]) if progress.mark.plan else ()


def unwritten(progress: Progress) -> LeftOut | None:
    """Return the rows that were left out and of which no dead letter may have been written yet."""
    told = _read(progress)["left_out"] if progress.mark.plan else None
    if not told:
        return None
    return LeftOut(
        rule=told["rule"],
        mutation=told["mutation"],
        offsets=tuple(told["offsets"]),
        reason=told["reason"],
        message=told["message"],
        extends=told["extends"],
    )


def resumed(progress: Progress, works: Sequence[EventWork]) -> tuple[Plan, Sequence[tuple[str, str, str]]]:
    """Return the rest of the plan under way, its rows taken from ``works``, which hold its events.

    A row whose event is gone from the log, or whose mutation is gone from the rules, is passed over: the names of these
    rows (offset, rule, mutation) are returned too.
    """
    note = _read(progress)
    by_name = {row.name: row for row in _rows(works)}
    events: list[str] = note["events"]
    planned: list[tuple[str, str, list[int]]] = note["steps"]
    steps: list[Step[Row]] = []
    gone: list[tuple[str, str, str]] = []
    done = progress.mark.done
    for rule, mutation, numbers in planned:
        left, done = numbers[done:], max(0, done - len(numbers))
        names = [(events[number], rule, mutation) for number in left]
        rows = [by_name[name] for name in names if name in by_name]
        gone += [name for name in names if name not in by_name]
        if rows:
            # Rows share a query only as the form of today allows, whatever it was when the plan was made.
            steps.extend(Step(mutation=row.bound, rows=[row]) for row in rows)
    return Plan(before=progress.mark, end=note["end"], steps=steps), gone


def _rows(works: Iterable[EventWork]) -> list[Row]:
    pairs = ((work, bound) for work in works for bound in work.mutations)
    return [Row(work, bound, number) for number, (work, bound) in enumerate(pairs)]


def _arranged(arranger: Arranger, rows: Iterable[Row]) -> Sequence[Step[Row]]:
    return arranger.arrange((row.bound, row) for row in rows)


def _note(plan: Plan) -> str:
    events: dict[str, int] = {}
    steps: list[tuple[str, str, list[int]]] = []
    for step in plan.steps:
        for row in step.rows:
            offset, rule, mutation = row.name
            number = events.setdefault(offset, len(events))
            if steps and steps[-1][0] == rule and steps[-1][1] == mutation:
                steps[-1][2].append(number)
            else:
                steps.append((rule, mutation, [number]))
    left_out = plan.left_out
    body = {
        "format": _FORMAT,
        "end": plan.end,
        "events": list(events),
        "steps": steps,
        "left_out": left_out
        and {
            "rule": left_out.rule,
            "mutation": left_out.mutation,
            "offsets": left_out.offsets,
            "reason": left_out.reason,
            "message": left_out.message,
            "extends": left_out.extends,
        },
    }
    return json.dumps(body, separators=(",", ":"))


def _read(progress: Progress) -> Mapping[str, Any]:
    try:
        note = cast("Mapping[str, Any]", json.loads(progress.note))
    except ValueError as error:
        raise GraphUnavailable(
            "the note of a half-done batch in the graph was overwritten: rebuild this graph from the log",
            retry_after_s=5.0,
        ) from error
    if note.get("format") != _FORMAT:
        raise GraphUnavailable(
            "the graph holds a half-done batch of another version of graphweft: let that version finish it first",
            retry_after_s=5.0,
        )
    return note
