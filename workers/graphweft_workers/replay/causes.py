"""Which events are behind the differences of two graphs: those whose rows differ and name the nodes by their keys.

Only values that are known before a query runs are seen. A difference that comes from an earlier one may have no event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from graphweft_rules import BoundMutation
from graphweft_rules.cypher.merge_keys import looked_up
from graphweft_workers.engine.digest import canonical
from graphweft_workers.engine.read import MatchedEvent
from graphweft_workers.replay.graph_diff import Example

_MOST: Final = 5
"""Events of one example."""

type Side = Literal["before", "after"]
type _Named = tuple[str, str, str]
"""Label, property and canonical value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One row that only one side has, or that differs."""

    side: Side
    source: str
    id: str
    type: str
    position: str
    """``partition:offset``."""
    rule: str
    mutation: str


class Causes:
    """Collects the events behind examples."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.found: list[list[Cause]] = [[] for _ in examples]
        """For each example, up to five rows in log order."""
        self._needs: list[frozenset[_Named]] = []
        self._wanted: dict[_Named, list[int]] = {}
        for number, example in enumerate(examples):
            needs = frozenset(
                (end.label, name, canonical(value)) for end in example.ends for name, value in end.key.items()
            )
            self._needs.append(needs if all(end.key for end in example.ends) else frozenset())
            for need in self._needs[-1]:
                self._wanted.setdefault(need, []).append(number)

    def see(self, partition: int, before: Iterable[MatchedEvent], after: Iterable[MatchedEvent]) -> None:
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
        self, position: str, side: Side, event: MatchedEvent, others: Mapping[tuple[str, str], BoundMutation]
    ) -> None:
        for bound in event.mutations:
            mutation = bound.mutation
            other = others.get((mutation.rule, mutation.id))
            if other is not None and _is_equal(bound, other):
                continue
            for number in self._examples_of(bound):
                if len(self.found[number]) < _MOST:
                    self.found[number].append(
                        Cause(
                            side=side,
                            source=event.event.source,
                            id=event.event.id,
                            type=event.event.type,
                            position=position,
                            rule=mutation.rule,
                            mutation=mutation.id,
                        )
                    )

    def _examples_of(self, bound: BoundMutation) -> Iterator[int]:
        named: set[_Named] = set()
        for label, name, key in looked_up(bound.mutation.cypher.statement):
            value = key.of(bound.params)
            if value is not None:
                named.add((label, name, canonical(value)))
        for number in sorted({each for name in named for each in self._wanted.get(name, ())}):
            if self._needs[number] <= named:
                yield number


def _rows(event: MatchedEvent | None) -> dict[tuple[str, str], BoundMutation]:
    return {} if event is None else {(each.mutation.rule, each.mutation.id): each for each in event.mutations}


def _is_equal(one: BoundMutation, other: BoundMutation) -> bool:
    same = one.mutation.cypher.statement == other.mutation.cypher.statement
    return same and canonical(one.params) == canonical(other.params)
