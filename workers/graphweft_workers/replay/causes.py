"""Which events are behind the differences of two graphs: those whose rows differ and name the nodes by their keys.

Only values that are known before a query runs are seen. A difference that comes from an earlier one may have no event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from graphweft_rules import BoundMutation
from graphweft_rules.cypher.merge_keys import looked_up
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.plan.digest import canonical
from graphweft_workers.replay.graph_diff import Example

_MOST: Final = 5
"""Causes of one example, and positions of one cause."""

type Side = Literal["before", "after"]
type _Named = tuple[str, str, str]
"""Label, property and canonical value."""
type _Effect = tuple[str, str, str, str]
"""Source and id of an event, rule and mutation."""


@dataclass(slots=True, kw_only=True)
class MutationDifference:
    """One mutation of one event that only one side has, or that differs."""

    source: str
    id: str
    type: str
    rule: str
    mutation: str
    sides: list[Side]
    """Which have it: both where it differs."""
    positions: list[str]
    """``partition:offset``; several if the event was retried, or has another chat with the same id."""


class Causes:
    """Collects the events behind examples."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._found: list[dict[_Effect, MutationDifference]] = [{} for _ in examples]
        self._needs: list[frozenset[_Named]] = []
        self._wanted: dict[_Named, list[int]] = {}
        for number, example in enumerate(examples):
            needs = frozenset(
                (end.label, name, canonical(value)) for end in example.ends for name, value in end.key.items()
            )
            self._needs.append(needs if all(end.key for end in example.ends) else frozenset())
            for need in self._needs[-1]:
                self._wanted.setdefault(need, []).append(number)

    @property
    def found(self) -> list[list[MutationDifference]]:
        """For each example, up to five causes in log order. None has the event and the mutation of another one."""
        return [list(each.values()) for each in self._found]

    def see(self, partition: int, before: Iterable[LoggedEvent], after: Iterable[LoggedEvent]) -> None:
        """Take what both sides make of one range of a partition."""
        old, new = {each.entry.offset: each for each in before}, {each.entry.offset: each for each in after}
        for offset in dict.fromkeys((*old, *new)):
            rows: dict[Side, Mapping[tuple[str, str], BoundMutation]] = {
                "before": _rows(old.get(offset)),
                "after": _rows(new.get(offset)),
            }
            for side, event in (("before", old.get(offset)), ("after", new.get(offset))):
                if event is not None:
                    others = rows["after" if side == "before" else "before"]
                    self._see(f"{partition}:{offset}", side, event, others)  # type: ignore[arg-type]

    def _see(
        self, position: str, side: Side, event: LoggedEvent, others: Mapping[tuple[str, str], BoundMutation]
    ) -> None:
        for bound in event.mutations:
            mutation = bound.mutation
            other = others.get((mutation.rule, mutation.id))
            if other is not None and _is_equal(bound, other):
                continue
            for number in self._examples_of(bound):
                self._add(self._found[number], position, side, event, bound)

    def _add(
        self,
        found: dict[_Effect, MutationDifference],
        position: str,
        side: Side,
        event: LoggedEvent,
        bound: BoundMutation,
    ) -> None:
        source, id = event.event.source, event.event.id
        rule, mutation = bound.mutation.rule, bound.mutation.id
        cause = found.get((source, id, rule, mutation))
        if cause is None:
            if len(found) < _MOST:
                found[source, id, rule, mutation] = MutationDifference(
                    source=source, id=id, type=event.event.type, rule=rule, mutation=mutation, sides=[side],
                    positions=[position],
                )  # fmt: skip
            return
        if side not in cause.sides:
            cause.sides.append(side)
        if position not in cause.positions and len(cause.positions) < _MOST:
            cause.positions.append(position)

    def _examples_of(self, bound: BoundMutation) -> Iterator[int]:
        named: set[_Named] = set()
        for label, name, key in looked_up(bound.mutation.cypher.outline):
            value = key.of(bound.params)
            if value is not None:
                named.add((label, name, canonical(value)))
        for number in sorted({each for name in named for each in self._wanted.get(name, ())}):
            if self._needs[number] <= named:
                yield number


def _rows(event: LoggedEvent | None) -> dict[tuple[str, str], BoundMutation]:
    return {} if event is None else {(each.mutation.rule, each.mutation.id): each for each in event.mutations}


def _is_equal(one: BoundMutation, other: BoundMutation) -> bool:
    same = one.mutation.cypher.statement == other.mutation.cypher.statement
    return same and canonical(one.params) == canonical(other.params)
