"""Tells whether each mutation of a batch may run as one step: all its rows, then all rows of the next mutation.

Nearly all batches may: events of one kind have the same mutations, and what an event touches is its own, or was made by
an earlier event. That is a property of the mutations and of the values by which they look entities up, so it is decided
once for all rows of two mutations, by a few look-ups in tables of these values. Where it may not be, or would take many
look-ups to know, ``order`` places row by row. Up to ``MOST_ROWS`` rows of a mutation, both give the same steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import ge, le, lt
from typing import Any, Final, NamedTuple

from graphweft_rules.cypher.accesses import LookupKey

_KEYS: Final = frozenset({str, int})
"""The types of values that name one entity: servers compare them as Python does."""
_STEPS: Final = 8
"""Look-ups in tables that the decision may take for each row and each of its probes: as long as placing the row."""
_PAIR: Final = 8
"""Look-ups that take as long as comparing two probes."""


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
    _last: dict[str, dict[Any, int]] = field(default_factory=dict[str, dict[Any, int]])

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

    def last(self, parameter: str) -> Mapping[Any, int]:
        """Return the same for the last row."""
        found = self._last.get(parameter)
        if found is None:
            found = self._last[parameter] = dict(zip(self.values(parameter) or (), self.numbers, strict=True))
        return found


class _Use(NamedTuple):
    """A probe of all rows of a column."""

    column: Column
    probe: Probe
    place: int
    """Of the probe in the column."""

    @property
    def first(self) -> Mapping[Any, int] | None:
        """By value of the key, the number of the first row with it; None if a row's key may be of any entity."""
        name = self.probe.parameter
        return self.column.first(name) if name and self.column.values(name) is not None else None


type _Group = Sequence[_Use]
"""The probes of one kind of entity, in the columns' order."""


def are_in_order(columns: Sequence[Column]) -> bool:
    """Tell whether columns may run one after the other, given in the order of their first rows.

    False also if that would take longer to find out than placing the rows one by one.
    """
    in_turn = all(first.numbers[-1] < second.numbers[0] for first, second in pairwise(columns))
    return in_turn or _Attempt(columns).succeeds()  # in turn already: those of a single event, or of one mutation


class _Attempt:
    """An attempt to show that columns may run one after the other.

    All that it asks must hold, so nothing is asked twice, and what must be known of other entities is asked last.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._left = _STEPS * sum(len(column.numbers) * (1 + len(column.probes)) for column in columns)
        self._groups: dict[int, list[_Use]] = {}
        for column in columns:
            for place, probe in enumerate(column.probes):
                self._groups.setdefault(probe.group, []).append(_Use(column, probe, place))
        self._needed: set[int] = set()
        """The kinds of entities that their MERGE must make with the first row of each value, and nothing undo."""
        self._due: list[int] = []
        """Those of them that are not looked at yet."""
        self._reached: dict[int, int] = {}
        """By column's ``id``: the number of its first probes that are known to find what they look for."""

    def succeeds(self) -> bool:
        """Tell whether it succeeds."""
        if not all(map(self._keep_order, self._groups.values())):
            return False
        while self._due:  # each may need more of them
            if not self._makes(self._groups[self._due.pop()]):
                return False
        return True

    def _need(self, group: int) -> None:
        if group not in self._needed:
            self._needed.add(group)
            self._due.append(group)

    def _spend(self, steps: int) -> bool:
        """Count look-ups in tables; tell whether there may be more."""
        self._left -= steps
        return self._left >= 0

    def _keep_order(self, group: _Group) -> bool:
        """Tell whether no row passes a row of an earlier column that it may not pass, at entities of one kind."""
        noted: dict[int, list[_Use]] = {}
        barred: dict[int, list[_Use]] = {}
        for later in group:
            probe = later.probe
            notes, against = {*probe.notes, *probe.found_notes}, {*probe.against, *probe.found_against}
            lists = [noted.get(access, ()) for access in against] + [barred.get(access, ()) for access in notes]
            if not self._spend(_PAIR * sum(map(len, lists))):
                return False
            met = {id(use): use for uses in lists for use in uses if use.column is not later.column}
            if not all(self._stays_before(use, later) for use in met.values()):
                return False
            for access in notes:
                noted.setdefault(access, []).append(later)
            for access in against:
                barred.setdefault(access, []).append(later)
        return True

    def _stays_before(self, use: _Use, later: _Use) -> bool:
        """Tell whether no row of the first column comes after one of the other, in the log, that it may not pass."""
        made, first = use.first, later.first
        if made is None or first is None:
            return False
        last = use.column.last(use.probe.parameter)
        if not self._spend(len(last)):
            return False
        if all(map(ge, map(first.get, last, last.values()), last.values())):
            return True
        if not (use.probe.shape and use.probe.passes_found(later.probe) and self._spend(len(first))):
            return False
        self._need(use.probe.group)
        return all(map(le, map(made.get, first, first.values()), first.values()))

    def _makes(self, group: _Group) -> bool:
        """Tell whether MERGEs of one shape make sure of each entity with the first row of its value."""
        makers = [use for use in group if use.probe.shape]
        return (
            self._spend(len(group))
            and {(use.probe.shape, use.probe.certain) for use in makers} == {(makers[0].probe.shape, True)}
            and not any(use.probe.undoes for use in group)
            and all(use.first is not None and self._reach(use) for use in makers)
        )

    def _reach(self, use: _Use) -> bool:
        """Tell whether all rows of a column reach the clause of a probe: they find what those before it look for."""
        begin = self._reached.get(id(use.column), 0)
        self._reached[id(use.column)] = max(begin, use.place)
        before = use.column.probes[begin : use.place]
        return all(self._find(use.column, probe) for probe in before if probe.finds)

    def _find(self, column: Column, probe: Probe) -> bool:
        """Tell whether an earlier row has made what each row of a column looks for, if the MERGE of that row makes it.

        So what a MERGE needs was made by an earlier row, and no two of them can need each other.
        """
        group = self._groups[probe.group]
        maker = next((use for use in group if use.probe.shape == probe.finds), None)
        values = column.values(probe.parameter) if probe.parameter else None
        if values is None or maker is None or maker.column is column or maker.first is None:
            return False
        if not self._spend(len(group) + len(values)):
            return False
        self._need(probe.group)
        return all(map(lt, map(maker.first.get, values, column.numbers), column.numbers))


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
