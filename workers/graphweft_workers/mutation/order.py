"""The order in which the rows of a batch run: as few queries as can be, with the result of the log's own order.

A query with many rows costs little more than one with a single row, but rows of one mutation rarely stand next to each
other in the log. So rows move: one joins the first step of its mutation that it can reach without passing a row that
touches what it touches. Rows that touch the same thing keep the order of the log, whatever chat they are from, and
rows that do not may change places without any effect. What a mutation touches is its ``Footprint``; one whose query
cannot be understood keeps its place, and everything else keeps its side of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, cast

from graphweft_rules import BoundMutation, Ruleset
from graphweft_rules.batching import BatchForm, Dialect
from graphweft_rules.cypher import Cypher
from graphweft_rules.footprint import Footprint, Key, Resource, Touch, commute, footprints, shared_labels

MOST_ROWS: Final = 1_000
"""Rows of one query. More gain nothing, and a query must stay far below the server's time limit."""

type _Kind = type[int] | type[str] | type[object] | None
"""Integers, text, anything else, or not a single value."""
_Value = Any
_NEVER: Final = ("", -1)
_ANY: Final = object()
"""In place of a key's value: the row may touch any of the resource's entities."""


@dataclass(slots=True, kw_only=True)
class Step[Row]:
    """Rows of one mutation that run one after the other, in one query where the form allows it."""

    mutation: BoundMutation
    """The first row's; the others differ in their parameters only."""
    form: BatchForm | None = None
    rows: list[Row] = field(default_factory=list[Row])
    kinds: tuple[_Kind, ...] = ()
    """Of the values by which the server looks entities up, all of one kind within a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mutation:
    """What ordering needs to know of a mutation, worked out once."""

    form: BatchForm
    keys: tuple[tuple[str, ...], ...]
    """The form's keys, each as the way to it."""
    opaque: bool
    touches: tuple[Touch, ...]
    """Only those that another mutation, or another row of this one, may stand in the way of."""
    exclusive: bool
    """Whether rows that touch something in common may not share a step."""
    shares: bool
    """Whether rows may share a step at all."""


@dataclass(slots=True)
class _Resource:
    """Which step touched a resource last, by access; the lists are numbered as ``Arranger._accesses`` has them."""

    everywhere: list[int]
    anywhere: list[int]
    """Where any entity may have been meant."""
    by_value: dict[_Value, list[int]]
    """Where the entity was meant that has this value as its key."""
    ensured: dict[_Value, tuple[str, int]]
    """The first step that made sure of an entity that has not been written since: doing so again changes nothing."""


class _Probe(NamedTuple):
    """A touch in numbers: this is looked at for every row."""

    resource: int
    access: int
    slot: int
    """Which of the row's keys; -1 for any entity."""
    against: tuple[int, ...]
    """The accesses that it may not pass."""
    shape: str
    """What a MERGE merges; empty for other accesses."""
    finds: str
    certain: bool
    undoes: bool
    """Whether it may make or change an entity that was made sure of."""
    if_created: bool


type _Touched = tuple[_Resource, _Probe, _Value, list[int] | None]
"""What a row touched: the steps of the entity with its key as they were known before, if they were."""


class _Compiled(NamedTuple):
    mutation: _Mutation
    slots: tuple[Key, ...]
    probes: tuple[_Probe, ...]


class Arranger:
    """Puts rows into steps for one set of rules and one kind of server.

    What a mutation may stand in the way of depends on all the others. Most batches hold none of a pack, and those are
    not to be slower because of what packs might do.
    """

    def __init__(self, rules: Ruleset, dialect: Dialect) -> None:
        packed = [part.cypher for pack in rules.packs for part in pack.mutations]
        self._packed = frozenset(map(id, packed))
        self._kept = packed  # known by their id(), so they must live
        ruled = [part.cypher for part in rules.mutations]
        self._of_rules = _Arranger(ruled, dialect)
        self._of_all = _Arranger([*ruled, *packed], dialect) if packed else self._of_rules

    def arrange[Row](self, rows: Iterable[tuple[BoundMutation, Row]]) -> list[Step[Row]]:
        """Return the steps of rows that are given in the log's order."""
        given = list(rows)
        packed = self._packed
        if any(id(bound.mutation.cypher) in packed for bound, _ in given):
            return self._of_all.arrange(given)
        return self._of_rules.arrange(given)


class _Arranger:
    """Puts rows of some mutations into steps."""

    def __init__(self, cyphers: Sequence[Cypher], dialect: Dialect) -> None:
        self._dialect: Dialect = dialect
        self._footprints = footprints(cyphers)
        self._shared: frozenset[str] | None = shared_labels(cyphers)
        exclusive = {each.statement for each in cyphers if each.form(dialect, self._shared).mode == "disjoint"}
        self._contended = _contended(self._footprints, exclusive)
        self._compiled: dict[int, _Compiled] = {}
        self._numbers: dict[Resource, int] = {}
        self._accesses: list[list[str]] = []
        """By the resource's number: what anybody does to it."""
        for footprint in self._footprints.values():
            for touch in footprint.touches:
                number = self._numbers.setdefault(touch.resource, len(self._numbers))
                if number == len(self._accesses):
                    self._accesses.append(["read"])
                if touch.access not in self._accesses[number]:
                    self._accesses[number].append(touch.access)
        self._kept = cyphers  # known by their id(), so they must live

    def arrange[Row](self, rows: Iterable[tuple[BoundMutation, Row]]) -> list[Step[Row]]:
        """Return the steps of rows that are given in the log's order."""
        steps: list[Step[Row]] = []
        places: dict[int, list[int]] = {}
        resources: list[_Resource | None] = [None] * len(self._accesses)
        barrier = 0  # everything goes at or behind this step
        for bound, row in rows:
            cypher = bound.mutation.cypher
            compiled = self._compiled.get(id(cypher)) or self._compile(cypher)
            mutation = compiled.mutation
            params = bound.params
            earliest = barrier
            touched: list[_Touched] = []
            if mutation.opaque:
                earliest = max(len(steps) - 1, 0)
            elif compiled.probes:
                earliest, touched = self._look(compiled, params, resources, steps, barrier)
            kinds = _kinds(params, mutation.keys)
            number = _place(steps, places.setdefault(id(mutation.form), []), earliest, kinds, shares=mutation.shares)
            if number < len(steps):
                steps[number].rows.append(row)
                if None in kinds or None in steps[number].kinds:
                    steps[number].kinds = tuple(map(_known, steps[number].kinds, kinds))
            else:
                places[id(mutation.form)].append(number)
                steps.append(Step(mutation=bound, form=mutation.form, rows=[row], kinds=kinds))
            if mutation.opaque:
                # Whatever follows goes behind it, and what was known of entities holds no longer.
                barrier = number
                resources = [None] * len(self._accesses)
            for resource, probe, value, mine in touched:
                _note(resource, probe, value, mine, number)
        return steps

    def _look[Row](
        self,
        compiled: _Compiled,
        params: Mapping[str, Any],
        resources: list[_Resource | None],
        steps: Sequence[Step[Row]],
        barrier: int,
    ) -> tuple[int, list[_Touched]]:
        """Return the first step that a row may join as to what it touches, and what to note once it has one."""
        exclusive = compiled.mutation.exclusive
        earliest = barrier
        touched: list[_Touched] = []
        values = [_value(key, params) for key in compiled.slots]
        made = True  # whether the last MERGE may make its entity
        sure = True  # whether the row comes to its end
        for probe in compiled.probes:
            if probe.if_created and not made:
                continue
            resource = resources[probe.resource]
            if resource is None:
                resource = resources[probe.resource] = self._untouched(probe.resource)
            value = values[probe.slot] if probe.slot >= 0 else _ANY
            if probe.shape:
                made = True
                if not exclusive:
                    shape, step = resource.ensured.get(value, _NEVER)
                    if shape == probe.shape:
                        made = False
                        earliest = max(earliest, step)
                        # It finds the entity, and that is to stay in front of what changes it.
                        mine = resource.by_value.get(value)
                        touched.append((resource, probe._replace(access=0, certain=False, shape=""), value, mine))
                        continue
            mine = resource.everywhere if value is _ANY else resource.by_value.get(value)
            if probe.finds and resource.ensured.get(value, _NEVER)[0] != probe.finds:
                sure = False
            kept = probe if sure or not probe.certain else probe._replace(certain=False)
            touched.append((resource, kept, value, mine))
            behind = _behind(resource.anywhere, mine, probe.against)
            if behind >= earliest:
                own = exclusive and steps[behind].form is compiled.mutation.form
                earliest = behind + 1 if own else behind
        return earliest, touched

    def _untouched(self, number: int) -> _Resource:
        never = [-1] * len(self._accesses[number])
        return _Resource(never.copy(), never, {}, {})

    def _compile(self, cypher: Cypher) -> _Compiled:
        mutation = self._learn(cypher)
        slots = tuple(dict.fromkeys(touch.key for touch in mutation.touches if touch.key is not None))
        probes: list[_Probe] = []
        for touch in mutation.touches:
            number = self._numbers[touch.resource]
            accesses = self._accesses[number]
            against = tuple(
                place
                for place, other in enumerate(accesses)
                if not commute(touch.access, other) or (mutation.exclusive and touch.access != "read")
            )
            probes.append(
                _Probe(
                    resource=number,
                    access=accesses.index(touch.access),
                    slot=-1 if touch.key is None else slots.index(touch.key),
                    against=against,
                    shape=touch.access.partition(" ")[2],
                    finds=touch.finds,
                    certain=touch.certain,
                    undoes=touch.access in ("create", "write"),
                    if_created=touch.if_created,
                )
            )
        compiled = self._compiled[id(cypher)] = _Compiled(mutation, slots, tuple(probes))
        return compiled

    def _learn(self, cypher: Cypher) -> _Mutation:
        form = cypher.form(self._dialect, self._shared)
        keys = tuple(tuple(name.split(".")) for name in form.keys)
        footprint = self._footprints.get(cypher.statement)
        if footprint is None or footprint.opaque:
            return _Mutation(
                form=form, keys=keys, opaque=True, touches=(), exclusive=False, shares=form.mode == "ordered"
            )
        touches: list[Touch] = []
        sure = True
        for touch in footprint.touches:
            if touch.resource in self._contended:
                touches.append(touch if sure else replace(touch, certain=False))
            elif touch.finds:
                sure = False  # nobody notes there what has been made sure of
        return _Mutation(
            form=form,
            keys=keys,
            opaque=False,
            touches=tuple(touches),
            exclusive=form.mode == "disjoint",
            shares=form.mode != "single",
        )


def _contended(known: Mapping[str, Footprint], exclusive: Set[str]) -> frozenset[Resource]:
    """Return the resources on which two rows can meet that may not change places.

    Of several that the same queries touch in the same way, one stands for all.
    """
    users: dict[Resource, dict[str, set[str]]] = {}
    ways: dict[Resource, set[tuple[str, str, Key | None, bool]]] = {}
    for statement, footprint in known.items():
        for touch in footprint.touches:
            users.setdefault(touch.resource, {}).setdefault(touch.access, set()).add(statement)
            ways.setdefault(touch.resource, set()).add((statement, touch.access, touch.key, touch.if_created))
    found: dict[frozenset[Any], Resource] = {}
    for resource, by_access in users.items():
        meets = any(not commute(access, other) for access in by_access for other in by_access)
        if meets or any(statements & exclusive for statements in by_access.values()):
            found.setdefault(frozenset(ways[resource]), resource)
    return frozenset(found.values())


def _value(key: Key, params: Mapping[str, Any]) -> _Value:
    value: Any = key.of(params) if key.path or not key.parameter else params.get(key.parameter)
    # Integers and text are equal exactly when Python says so; of other values servers think differently.
    return value if isinstance(value, str | int) else _ANY


def _place[Row](
    steps: Sequence[Step[Row]], places: Sequence[int], earliest: int, kinds: tuple[_Kind, ...], *, shares: bool
) -> int:
    """Return the first step of a mutation, at or behind ``earliest``, that a row may join; else that of a new one."""
    if shares:
        for number in places[bisect_left(places, earliest) :]:
            if len(steps[number].rows) < MOST_ROWS and _same(steps[number].kinds, kinds):
                return number
    return len(steps)


def _kind(value: Any, way: tuple[str, ...]) -> _Kind:
    """Return of what kind the values at the end of a way are; of lists, those of their items."""
    found: Any = value
    for number, name in enumerate(way):
        found = cast("Mapping[str, Any]", found).get(name) if isinstance(found, Mapping) else None
        if isinstance(found, list):
            kinds = {_kind(item, way[number + 1 :]) for item in cast("Sequence[Any]", found)} - {None}
            return object if len(kinds) > 1 else kinds.pop() if kinds else None
    kind: type[Any] = type(found)  # pyright: ignore[reportUnknownVariableType]
    return kind if kind is int or kind is str else object


def _kinds(params: Mapping[str, Any], keys: Iterable[tuple[str, ...]]) -> tuple[_Kind, ...]:
    kinds: list[_Kind] = []
    for way in keys:
        kind: type[Any] = type(params.get(way[0])) if len(way) == 1 else object  # pyright: ignore[reportUnknownVariableType]
        kinds.append(kind if kind is str or kind is int else _kind(params, way))
    return tuple(kinds)


def _same(kinds: tuple[_Kind, ...], others: tuple[_Kind, ...]) -> bool:
    for kind, other in zip(kinds, others, strict=True):
        if kind is object or other is object or (kind is not other and kind is not None and other is not None):
            return False
    return True


def _known(kind: _Kind, other: _Kind) -> _Kind:
    return other if kind is None else kind


def _behind(anywhere: list[int], mine: list[int] | None, against: tuple[int, ...]) -> int:
    """Return the last step that an access must not come before; -1 for none."""
    behind = -1
    for access in against:
        behind = max(behind, anywhere[access])
        if mine is not None and mine[access] > behind:
            behind = mine[access]
    return behind


def _note(resource: _Resource, probe: _Probe, value: _Value, mine: list[int] | None, step: int) -> None:
    access = probe.access
    resource.everywhere[access] = max(resource.everywhere[access], step)
    if value is _ANY:
        mine = resource.anywhere
    elif mine is None:
        # Two touches of one row may be the first of the same entity.
        mine = resource.by_value.setdefault(value, [-1] * len(resource.everywhere))
    mine[access] = max(mine[access], step)
    if probe.certain and value is not _ANY:
        # Of another shape it may make a second entity for the key: then only what it made sure of is known.
        if resource.ensured.get(value, _NEVER)[0] != probe.shape:
            resource.ensured[value] = (probe.shape, step)
    elif probe.undoes or probe.shape:
        if value is _ANY:
            resource.ensured.clear()
        else:
            resource.ensured.pop(value, None)
