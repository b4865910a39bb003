"""What an ontology says of a type of relations beyond its description: what ends it, and what else it says. Pure.

A relation of a type with one value at a time ends when another one begins. One that depends on another type ends, or is
marked, when the relations of that type end that its source had: they are its supports. A type depends on one other
type, and types never depend on each other in a circle, so each has a level: 0 depends on none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

LEVELS: Final = 4
"""Limit of the types that a chain of dependencies has beside its first: each takes a query of an episode."""

type WhenEnded = Literal["end", "mark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRule:
    """The rules of one type of relations."""

    single_valued: bool = False
    """Whether a source has one target at a time; of a symmetric type, each end has one other end."""
    symmetric: bool = False
    """Whether both directions say the same."""
    inverse_of: str | None = None
    """The type that says the same from the other end, and is stored instead."""
    aliases: tuple[str, ...] = ()
    """Other names of the type in episodes."""
    transition: str | None = None
    """The type of a relation that begins with each one of this type, between the same ends."""
    depends_on: str | None = None
    """The type without which one of this type does not hold."""
    when_ended: WhenEnded = "end"
    """What happens when its supports end."""

    @property
    def written(self) -> list[Any]:
        """The rule as JSON."""
        return [
            self.single_valued, self.symmetric, self.inverse_of, sorted(self.aliases), self.transition,
            self.depends_on, self.when_ended,
        ]  # fmt: skip


NO_RULE: Final = EdgeRule()
NO_RULES: Final[Mapping[str, EdgeRule]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeEnds:
    """How relations of a type end."""

    level: int
    single_valued: bool
    symmetric: bool
    depends_on: str | None
    marks: bool


class EdgeEnds:
    """How relations end by the rules of one ontology, or of several."""

    def __init__(self, of_ontologies: Iterable[Mapping[str, EdgeRule]]) -> None:
        self._levels: dict[str, set[int]] = {}
        self._single: set[str] = set()
        self._symmetric: set[str] = set()
        self._dependents: dict[str, set[str]] = {}
        self._depends_on: dict[str, set[str]] = {}
        for rules in of_ontologies:
            for name, each in ends_of(rules).items():
                self._levels.setdefault(name, set()).add(each.level)
                if each.single_valued:
                    self._single.add(name)
                if each.symmetric:
                    self._symmetric.add(name)
                if each.depends_on is not None:
                    self._dependents.setdefault(each.depends_on, set()).add(name)
                    self._depends_on.setdefault(name, set()).add(each.depends_on)

    def __contains__(self, name: str) -> bool:
        """Tell whether relations of a type may end by a rule, or by whose end others do."""
        return name in self._levels

    def is_single_valued(self, name: str) -> bool:
        """Tell whether a later relation of the type may end an earlier one."""
        return name in self._single

    def is_symmetric(self, name: str) -> bool:
        """Tell whether a relation of the type counts for both of its ends."""
        return name in self._symmetric

    def changed(self, name: str) -> list[tuple[int, str]]:
        """Return the levels whose ends may change with a relation of a type, and the types by which they are found.

        What depends on none is found by its own type, and others by the type on which they depend.
        """
        return sorted(
            {
                (level, found)
                for each in self._reached(name)
                for level in self._levels.get(each, ())
                for found in (self._depends_on[each] if level else (each,))
            }
        )

    def reaches_others(self, name: str) -> bool:
        """Tell whether with a relation of a type ends may change that are of other entities than its own."""
        return any(each in self._symmetric for each in self._reached(name))

    def _reached(self, name: str) -> list[str]:
        """Return a type and those that depend on it, one through the other."""
        found: dict[str, None] = {}
        to_do = [name]
        while to_do:
            each = to_do.pop()
            if each not in found:
                found[each] = None
                to_do += sorted(self._dependents.get(each, ()))
        return list(found)


def ends_of(rules: Mapping[str, EdgeRule]) -> dict[str, TypeEnds]:
    """Return how relations of each type end, without those that never end by a rule, nor support any."""
    needed = {rule.depends_on for rule in rules.values()}
    return {
        name: TypeEnds(
            level=level_of(name, rules),
            single_valued=rule.single_valued,
            symmetric=rule.symmetric,
            depends_on=rule.depends_on,
            marks=rule.when_ended == "mark",
        )
        for name in sorted({*rules, *(each for each in needed if each is not None)})
        for rule in [rules.get(name, NO_RULE)]
        if rule.single_valued or rule.depends_on is not None or name in needed
    }


def level_of(name: str, rules: Mapping[str, EdgeRule]) -> int:
    """Return how many types a type depends on, one through the other; ``LEVELS`` + 1 for more, or a circle."""
    level = 0
    while (above := rules.get(name, NO_RULE).depends_on) is not None and level <= LEVELS:
        name, level = above, level + 1
    return level
