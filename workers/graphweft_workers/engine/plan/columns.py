"""Tells whether each mutation of a batch may run as one step: all its rows, then all rows of the next mutation.

Nearly all batches may: events of one kind have the same mutations, and what an event touches is its own, or was made by
an earlier event. That is a property of the mutations and of the values by which they look entities up, so it is decided
once for all rows of two mutations, by a few look-ups in tables of these values. Where it may not be, or is not known,
``order`` places row by row. Up to ``MOST_ROWS`` rows of a mutation, both give the same steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import ge, le, lt
from typing import Any, Final, NamedTuple

from graphweft_rules.cypher.accesses import LookupKey

_KEYS: Final = frozenset({str, int})
"""The types of values that name one entity: servers compare them as Python does."""


class Probe(NamedTuple):
    """The accesses of a mutation to the entity with one key, in numbers, because every row checks them."""

    group: int
    key: LookupKey | None
    """None: any entity."""
    parameter: str
    """The parameter that is the key, if it is one itself."""
    against: tuple[int, ...]
    """The columns that it must not pass."""
    notes: tuple[int, ...]
    """The columns of its accesses."""
    shape: int = 0
    """The number of the shape of a MERGE; 0 for other accesses."""
    found_against: tuple[int, ...] = ()
    """``against`` of a MERGE that finds its entity."""
    found_notes: tuple[int, ...] = ()
    finds: int = 0
    """The number of the shape of a MERGE that makes what it needs."""
    certain: bool = False
    undoes: bool = False
    """Whether it may create or change an entity that a MERGE has made."""
    if_created: bool = False

    def passes(self, other: Probe) -> bool:
        """Tell whether rows with these accesses to one entity may be swapped, whatever the entity is."""
        mine, others = {*self.notes, *self.found_notes}, {*other.notes, *other.found_notes}
        return mine.isdisjoint((*other.against, *other.found_against)) and others.isdisjoint(
            (*self.against, *self.found_against)
        )

    def passes_found(self, other: Probe) -> bool:
        """Tell the same of a MERGE where the entity is there, as its own shape has made it."""
        found = other.shape == self.shape
        notes = other.found_notes if found else other.notes
        against = other.found_against if found else other.against
        return set(notes).isdisjoint(self.found_against) and set(against).isdisjoint(self.found_notes)


@dataclass(slots=True, eq=False)
class Column:
    """The rows of one mutation."""

    probes: Sequence[Probe]
    numbers: Sequence[int]
    """Of its rows, in the log's order."""
    params: Sequence[Mapping[str, Any]]
    """Of its rows."""
    _values: dict[str, Sequence[Any] | None] = field(default_factory=dict[str, "Sequence[Any] | None"])
    _first: dict[str, dict[Any, int]] = field(default_factory=dict[str, dict[Any, int]])

    def values(self, parameter: str) -> Sequence[Any] | None:
        """Return the values of a parameter; None unless each of them names one entity."""
        if parameter not in self._values:
            found = [row.get(parameter) for row in self.params]
            self._values[parameter] = found if _KEYS.issuperset(map(type, found)) else None
        return self._values[parameter]

    def first(self, parameter: str) -> Mapping[Any, int]:
        """Return, by value of a parameter, the number of the first row with it."""
        found = self._first.get(parameter)
        if found is None:
            values = self.values(parameter) or ()
            found = self._first[parameter] = dict(zip(reversed(values), reversed(self.numbers), strict=True))
        return found


class _Use(NamedTuple):
    """A probe of all rows of a column."""

    column: Column
    probe: Probe

    @property
    def first(self) -> Mapping[Any, int] | None:
        """By value of the key, the number of the first row with it; None if a row's key may be of any entity."""
        name = self.probe.parameter
        return self.column.first(name) if name and self.column.values(name) is not None else None

    @property
    def last(self) -> Mapping[Any, int]:
        """The same for the last row."""
        values = self.column.values(self.probe.parameter) or ()
        return dict(zip(values, self.column.numbers, strict=True))


type _Group = Sequence[_Use]
"""The probes of one kind of entity, in the columns' order."""


def are_in_order(columns: Sequence[Column]) -> bool:
    """Tell whether columns may run one after the other, given in the order of their first rows."""
    groups: dict[int, list[_Use]] = {}
    for column in columns:
        for probe in column.probes:
            groups.setdefault(probe.group, []).append(_Use(column, probe))
    return all(
        use.column is later.column or use.probe.passes(later.probe) or _stays_before(use, later, groups)
        for group in groups.values()
        for number, use in enumerate(group)
        for later in group[number + 1 :]
    )


def _stays_before(use: _Use, later: _Use, groups: Mapping[int, _Group]) -> bool:
    """Tell whether no row of the first column comes after one of the other, in the log, that it may not pass."""
    made, first = use.first, later.first
    if made is None or first is None:
        return False
    last = use.last
    if all(map(ge, map(first.get, last, last.values()), last.values())):
        return True
    if not (use.probe.shape and use.probe.passes_found(later.probe) and _makes(use, groups)):
        return False
    return all(map(le, map(made.get, first, first.values()), first.values()))


def _makes(use: _Use, groups: Mapping[int, _Group], asked: frozenset[int] = frozenset()) -> bool:
    """Tell whether a MERGE makes sure of its entity with the first row of each value, and nothing undoes it.

    ``asked`` are kinds of entities for which that is not known yet: none of them may depend on itself.
    """
    if use.probe.group in asked:
        return False
    group, asked = groups[use.probe.group], asked | {use.probe.group}
    shapes = {(each.probe.shape, each.probe.certain) for each in group if each.probe.shape}
    return (
        shapes == {(use.probe.shape, True)}
        and not any(each.probe.undoes for each in group)
        and all(each.first is not None and _is_sure(each, groups, asked) for each in group if each.probe.shape)
    )


def _is_sure(use: _Use, groups: Mapping[int, _Group], asked: frozenset[int]) -> bool:
    """Tell whether each row of a column reaches the clause of a probe: it finds what the clauses before it look for."""
    before = takewhile(lambda each: each is not use.probe, use.column.probes)
    return all(_finds(_Use(use.column, each), groups, asked) for each in before if each.finds)


def _finds(use: _Use, groups: Mapping[int, _Group], asked: frozenset[int]) -> bool:
    """Tell whether an earlier row of the batch has made what each row looks for."""
    maker = next((each for each in groups[use.probe.group] if each.probe.shape == use.probe.finds), None)
    values = use.column.values(use.probe.parameter) if use.probe.parameter else None
    if values is None or maker is None or maker.column is use.column or not _makes(maker, groups, asked):
        return False
    made = maker.first or {}
    numbers = use.column.numbers
    return all(map(lt, map(made.get, values, numbers), numbers))


def single_kind(column: Column, keys: Collection[str]) -> tuple[type[Any], ...] | None:
    """Return the kinds of the key columns if each is of text only, or of integers only."""
    kinds: list[type[Any]] = []
    for name in keys:
        values = column.values(name)
        found = {*map(type, values)} if values is not None else ()
        if len(found) != 1:
            return None
        kinds += found
    return tuple(kinds)
