"""Orders the rows of a batch into few steps, with the same result as applying them in log order.

A query for many rows costs little more than a query for one row, but rows of one mutation are rarely adjacent in the
log. So a row joins the first step of its mutation that it can reach without passing a row that touches the same data.
Rows that touch the same data keep log order, even across chats; other rows can be reordered without an effect. The
``ReadWriteSet`` of a mutation tells which data it touches. An opaque mutation keeps its place, and all other rows stay
before or after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import batched, product
from typing import Any, Final, NamedTuple, cast

from graphweft_rules import BoundMutation, RuleSet
from graphweft_rules.cypher.accesses import LookupKey, ReadWriteSet, Resource, ResourceAccess, commute
from graphweft_rules.cypher.batch_query import BatchQuery, Dialect
from graphweft_rules.cypher.mutation_summary import MutationSummary
from graphweft_rules.cypher.query import Cypher
from graphweft_rules.cypher.read_write_sets import read_write_sets, summary_of
from graphweft_workers.engine.plan.columns import Column, Probe, are_in_order, single_kind

MOST_ROWS: Final = 1_000
"""Limit of rows in a query. More rows gain nothing, and a query must stay far below the server's time limit."""

type _Kind = type[int] | type[str] | type[object] | None
"""Integers, text, other values, or no value at all."""
_Value = Any
_ANY: Final = object()
"""In place of a key's value: the row may touch any entity of the group."""
_NOTHING: Final[list[_Touched]] = []
_PLAIN: Final[Mapping[tuple[type[Any], ...], tuple[_Kind, ...]]] = {
    kinds: kinds for count in range(4) for kinds in product((str, int), repeat=count)
}
"""The kinds of keys whose values are text and integers: always the same objects, which compare quickly."""
_SHAPE: Final = 0
"""Where a list of ``_Group`` holds the number of the shape of a MERGE that has made the entity, if it is unchanged.

Another MERGE of this shape finds the entity then. 0: there was none.
"""
_MADE: Final = 1
"""Where it holds the first step of such a MERGE."""
_FIRST_COLUMN: Final = 2


@dataclass(slots=True, kw_only=True)
class Step[Row]:
    """Rows of one mutation that run one after the other, in one query if the batch query allows it."""

    mutation: BoundMutation
    """The mutation of the first row; other rows differ only in their parameters."""
    batch_query: BatchQuery | None = None
    rows: list[Row] = field(default_factory=list[Row])
    kinds: tuple[_Kind, ...] = ()
    """The kinds of the key columns, equal for all rows of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mutation:
    """What ordering needs to know about a mutation, computed once."""

    batch_query: BatchQuery
    keys: tuple[tuple[str, ...], ...]
    """``BatchQuery.keys``, each split into its path."""
    opaque: bool
    touches: tuple[ResourceAccess, ...]
    """Only accesses that may conflict with another row."""


@dataclass(slots=True)
class _Group:
    """What the rows of a batch did to one kind of entity, its properties included.

    Each list holds ``_SHAPE`` and ``_MADE``, and from ``_FIRST_COLUMN`` the last step of each access, in the order of
    ``_Arranger._columns``; -1 is none.
    """

    never: list[int]
    """The list of an entity that no row has touched."""
    by_value: dict[_Value, list[int]] = field(default_factory=dict[_Value, list[int]])
    """Key value -> steps that touched the entity with this key."""
    anywhere: list[int] | None = None
    """Steps that may have touched any entity; None before the first row that may."""
    everywhere: list[int] | None = None
    """Steps that touched some entity; kept from the first row that may touch any entity."""


type _Touched = tuple[_Group, list[int], tuple[int, ...], int, bool, bool]
"""A probe of a row: the group, the steps that touched the same key before, the columns to note, the shape of a MERGE
that may have created the entity, whether it surely exists now, and ``Probe.undoes``."""


class _Compiled(NamedTuple):
    mutation: _Mutation
    probes: tuple[Probe, ...]
    form: int
    """The identity of the batch query, which the mutation keeps; -1 if each row has a step of its own."""
    keys: tuple[str, ...] | None
    """The key columns, if all of them are parameters themselves."""


class Arranger:
    """Puts rows into steps for one rule set and one kind of server.

    Which rows conflict depends on the mutations of these rows, and on a summary of all mutations that may have written
    what the graph holds. So an arranger may be for the rows of a few workflows only. Batches without mutations of packs
    have an arranger of their own, so they do not pay for conflicts with packs.
    """

    def __init__(
        self,
        rules: RuleSet,
        dialect: Dialect,
        earlier: Iterable[Cypher] = (),
        *,
        workflows: Collection[str] | None = None,
        summary: MutationSummary | None = None,
    ) -> None:
        """Make an arranger for rows of ``workflows``, of all by default. It compiles them.

        The mutations that may have run are those of the rules and ``earlier``, or those that ``summary`` sums up.
        """
        packed = [part.cypher for pack in rules.packs for part in pack.mutations]
        self._packed = frozenset(map(id, packed))
        self._kept = rules  # its mutations and the rules are looked up by id(), so they must stay alive
        if summary is None:
            summary = rules.summary.mutations | summary_of(earlier)
        if workflows is None:
            used = [part.cypher for part in rules.mutations]
        else:
            names = (name for name in sorted(workflows) if name in rules.workflows and rules.problem(name) is None)
            flows = [rules.workflows[name] for name in names]
            used = [part.cypher for flow in flows for rule in flow.mutation_rules for part in rule.parts]
        self._of_rules = _Arranger(used, dialect, summary)
        self._of_all = _Arranger([*used, *packed], dialect, summary) if packed else self._of_rules

    def prepare(self, cyphers: Mapping[int, Cypher]) -> None:
        """Do the slow work of ``arrange`` for the queries of rows, by their ``id``: call it in a thread."""
        self._for(cyphers).prepare(cyphers.values())

    def is_prepared(self, cyphers: Mapping[int, Cypher]) -> bool:
        """Tell whether ``arrange`` has no slow work for rows with these queries."""
        return self._for(cyphers).is_prepared(cyphers.values())

    def arrange[Row](
        self, rows: Iterable[tuple[BoundMutation, Row]], apart: Collection[int] = frozenset()
    ) -> list[Step[Row]]:
        """Return the steps for rows in log order.

        ``apart`` has the ``id`` of rows that may fail. Each has a step of its own, and the order of the others holds
        whether it takes effect or not.
        """
        given = list(rows)
        found: dict[int, list[int]] = {}
        for number, (bound, _) in enumerate(given):
            found.setdefault(id(bound.mutation.cypher), []).append(number)
        arranger = self._for(found)
        columns = None if apart else arranger.in_columns(given, found.values())
        return arranger.arrange(given, apart) if columns is None else columns

    def _for(self, cyphers: Iterable[int]) -> _Arranger:
        return self._of_rules if self._packed.isdisjoint(cyphers) else self._of_all


class _Arranger:
    """Puts rows of given mutations into steps."""

    def __init__(self, cyphers: Sequence[Cypher], dialect: Dialect, summary: MutationSummary) -> None:
        """``summary`` is of all mutations that may have run; the given ones need not be in it."""
        self._dialect = dialect
        self._read_write_sets = read_write_sets(cyphers, summary)
        self._shared = (summary | summary_of(cyphers)).shared
        self._contended = _contended(self._read_write_sets)
        self._compiled: dict[int, _Compiled] = {}
        self._groups: dict[Resource, int] = {}
        self._columns: list[dict[tuple[Resource, str], int]] = []
        """By group: the column of each access to each resource."""
        self._shapes: dict[str, int] = {"": 0}
        """The numbers of the shapes of MERGE."""
        for read_write_set in self._read_write_sets.values():
            for touch in read_write_set.touches:
                for shape in (_shape_of(touch), touch.finds):
                    self._shapes.setdefault(shape, len(self._shapes))
                if touch.resource in self._contended:
                    group = self._groups.setdefault(_group_of(touch.resource), len(self._groups))
                    if group == len(self._columns):
                        self._columns.append({})
                    columns = self._columns[group]
                    for access in (touch.access, "read") if _shape_of(touch) else (touch.access,):
                        columns.setdefault((touch.resource, access), _FIRST_COLUMN + len(columns))
        self._kept = cyphers  # looked up by id(), so they must stay alive

    def prepare(self, cyphers: Iterable[Cypher]) -> None:
        """Compile mutations."""
        for cypher in cyphers:
            if id(cypher) not in self._compiled:
                self._compile(cypher)

    def is_prepared(self, cyphers: Iterable[Cypher]) -> bool:
        """Tell whether mutations are compiled."""
        compiled = self._compiled
        return all(id(cypher) in compiled for cypher in cyphers)

    def arrange[Row](
        self, rows: Iterable[tuple[BoundMutation, Row]], apart: Collection[int] = frozenset()
    ) -> list[Step[Row]]:
        """Return the steps for rows in log order; see ``Arranger.arrange``."""
        steps: list[Step[Row]] = []
        places: defaultdict[int, list[int]] = defaultdict(list)
        alone: defaultdict[int, list[int]] = defaultdict(list)
        """By mutation: the steps with rows that have a query of their own each."""
        groups: list[_Group | None] = [None] * len(self._columns)
        compiled = self._compiled
        barrier = 0  # the first step that rows may join
        for bound, row in rows:
            cypher, params = bound.mutation.cypher, bound.params
            mutation, probes, form, keys = compiled.get(id(cypher)) or self._compile(cypher)
            earliest, touched = barrier, _NOTHING
            if probes:
                earliest, touched = self._look(probes, params, groups, barrier)
            elif mutation.opaque:
                earliest = max(len(steps) - 1, 0)
            plain = None if keys is None else _plain(params, keys)
            kinds = _kinds(params, mutation.keys) if plain is None else plain
            number = len(steps)
            if apart and id(row) in apart:
                mine = alone[id(cypher)]
                if mine and mine[-1] >= earliest:
                    number = mine[-1]
                # If it fails, it has made no entity.
                touched = [_unsure(each) for each in touched]
            else:
                mine = places[form]
                if mine and mine[-1] >= earliest and form >= 0:
                    number = mine[0]
                    if number < earliest or kinds is not (step := steps[number]).kinds or len(step.rows) >= MOST_ROWS:
                        number = _place(steps, mine, earliest, kinds)
            if number < len(steps):
                step = steps[number]
                step.rows.append(row)
                if kinds is not step.kinds and (None in kinds or None in step.kinds):
                    step.kinds = tuple(map(_known, step.kinds, kinds))
            else:
                mine.append(number)
                steps.append(Step(mutation=bound, batch_query=mutation.batch_query, rows=[row], kinds=kinds))
            if mutation.opaque:
                # Later rows stay behind it, and nothing is known about entities any more.
                barrier = number
                groups = [None] * len(self._columns)
            elif touched:
                _note(touched, number)
        if not apart:
            return steps
        each_alone = {number for numbers in alone.values() for number in numbers}
        return [
            part
            for number, step in enumerate(steps)
            for part in ([replace(step, rows=[row]) for row in step.rows] if number in each_alone else [step])
        ]

    def in_columns[Row](
        self, rows: Sequence[tuple[BoundMutation, Row]], numbers: Iterable[Sequence[int]]
    ) -> list[Step[Row]] | None:
        """Return the steps of rows, whose ``numbers`` are given by mutation, if each mutation may have one; else None.

        With more than ``MOST_ROWS`` rows of a mutation it has several, one after the other.
        """
        columns: list[Column] = []
        steps: list[Step[Row]] = []
        forms: set[int] = set()
        for some in numbers:
            first = rows[some[0]][0]
            mutation, probes, form, keys = self._compiled.get(id(first.mutation.cypher)) or self._compile(
                first.mutation.cypher
            )
            if form < 0 or form in forms or mutation.opaque or keys is None:
                return None
            column = Column(probes, some, [rows[number][0].params for number in some])
            kinds = single_kind(column, keys)
            if kinds is None:
                return None
            forms.add(form)
            columns.append(column)
            kinds = _PLAIN.get(kinds, kinds)
            for part in batched(some, MOST_ROWS):
                first, own = rows[part[0]][0], [rows[number][1] for number in part]
                steps.append(Step(mutation=first, batch_query=mutation.batch_query, rows=own, kinds=kinds))
        return steps if are_in_order(columns) else None

    def _look(
        self, probes: Sequence[Probe], params: Mapping[str, Any], groups: list[_Group | None], barrier: int
    ) -> tuple[int, list[_Touched]]:
        """Return the first step that a row may join by its accesses, and the accesses to note for its step."""
        earliest = barrier
        touched: list[_Touched] = []
        made = True  # whether the last MERGE may create its entity
        sure = True  # whether the row reaches every clause
        for probe in probes:
            number, key, name, against, notes, shape, found_against, found_notes, finds, certain, undoes, after = probe
            if after and not made:
                continue
            group = groups[number]
            if group is None:
                group = groups[number] = _Group([0, -1, *[-1] * len(self._columns[number])])
            value = params.get(name) if name else _ANY if key is None else _value(key.of(params))
            if type(value) is not str:  # nearly all are text
                value = _value(value)
            lists = _everywhere(group) if value is _ANY else group.by_value.get(value)
            if lists is None:
                lists = group.by_value[value] = group.never[:]
            if shape:
                made = lists[_SHAPE] != shape
                if made:
                    touched.append((group, lists, notes, shape, certain and sure, undoes))
                else:
                    # It finds the entity, so it must stay before any change of it.
                    against = found_against
                    touched.append((group, lists, found_notes, 0, False, undoes))
                    earliest = max(earliest, lists[_MADE])
            else:
                if finds and lists[_SHAPE] != finds:
                    sure = False
                touched.append((group, lists, notes, 0, certain and sure, undoes))
            for column in against:
                if lists[column] > earliest:  # noqa: PLR1730 - max takes four times as long
                    earliest = lists[column]
            if group.anywhere is not None:
                for column in against:
                    earliest = max(earliest, group.anywhere[column])
        return earliest, touched

    def _compile(self, cypher: Cypher) -> _Compiled:
        mutation = self._learn(cypher)
        query = mutation.batch_query
        keys = tuple(way[0] for way in mutation.keys if len(way) == 1)
        compiled = _Compiled(
            mutation,
            self._probes(mutation.touches),
            form=id(query) if query.mode == "ordered" else -1,
            keys=keys if len(keys) == len(mutation.keys) else None,
        )
        return self._compiled.setdefault(id(cypher), compiled)  # another thread may compile it too

    def _probes(self, touches: Sequence[ResourceAccess]) -> tuple[Probe, ...]:
        """Return the probes of a mutation: all accesses to one entity together, as far as its clauses allow."""
        written = {(touch.resource, touch.key) for touch in touches if touch.access == "write" and not touch.if_created}
        probes: list[Probe] = []
        for touch in touches:
            beside = not _of_entity(touch) and (touch.resource, touch.key) in written
            if beside and (touch.access == "read" or touch.if_created):
                continue  # all that must not pass it must not pass the write either
            number = self._groups[_group_of(touch.resource)]
            columns = self._columns[number]
            against = tuple(
                column
                for (resource, other), column in columns.items()
                if resource == touch.resource and not commute(touch.access, other)
            )
            probe = Probe(
                group=number,
                key=touch.key,
                parameter=touch.key.parameter if touch.key is not None and not touch.key.path else "",
                against=against,
                notes=(columns[touch.resource, touch.access],),
                if_created=touch.if_created,
            )
            if _of_entity(touch):
                shape = self._shapes[_shape_of(touch)]
                probe = probe._replace(
                    shape=shape,
                    found_notes=(columns[touch.resource, "read"],) if shape else (),
                    finds=self._shapes[touch.finds],
                    certain=touch.certain,
                    undoes=touch.access in ("create", "write"),
                )
                probes.append(probe)
                continue
            place = next((place for place, other in enumerate(probes) if _is_beside(other, probe)), None)
            if place is None:
                probes.append(probe)
            else:
                probes[place] = _merged(probes[place], probe)
        return tuple(probes)

    def _learn(self, cypher: Cypher) -> _Mutation:
        batch_query = cypher.batch_query(self._dialect, self._shared)
        keys = tuple(tuple(name.split(".")) for name in batch_query.keys)
        read_write_set = self._read_write_sets.get(cypher.statement)
        if read_write_set is None or read_write_set.opaque:
            return _Mutation(batch_query=batch_query, keys=keys, opaque=True, touches=())
        touches: list[ResourceAccess] = []
        sure = True
        for touch in read_write_set.touches:
            if touch.resource in self._contended:
                touches.append(touch if sure else replace(touch, certain=False))
            elif touch.finds:
                sure = False  # without conflicts, ``ensured`` is not kept
        return _Mutation(batch_query=batch_query, keys=keys, opaque=False, touches=tuple(touches))


def _contended(known: Mapping[str, ReadWriteSet]) -> frozenset[Resource]:
    """Return the resources on which two rows can conflict.

    Of several resources that the same queries touch in the same way, only one is returned.
    """
    accesses: dict[Resource, set[str]] = {}
    ways: dict[Resource, set[tuple[str, str, LookupKey | None, bool]]] = {}
    for statement, read_write_set in known.items():
        for touch in read_write_set.touches:
            accesses.setdefault(touch.resource, set()).add(touch.access)
            ways.setdefault(touch.resource, set()).add((statement, touch.access, touch.key, touch.if_created))
    found: dict[frozenset[Any], Resource] = {}
    for resource, done in accesses.items():
        if any(not commute(access, other) for access in done for other in done):
            found.setdefault(frozenset(ways[resource]), resource)
    return frozenset(found.values())


def _of_entity(touch: ResourceAccess) -> bool:
    """Tell whether an access is to an entity itself, not to a property."""
    return touch.resource[0] in ("node", "relationship", "label")


def _group_of(resource: Resource) -> Resource:
    """Return the entities that a resource belongs to; those of a group are looked up by the same key."""
    kind, name, *_ = resource
    return (kind.removesuffix(" property"), name)


def _shape_of(touch: ResourceAccess) -> str:
    """Return the shape of a MERGE; empty for other accesses."""
    return touch.access.partition(" ")[2]


def _is_beside(probe: Probe, other: Probe) -> bool:
    """Tell whether two probes look at the same entity under the same condition."""
    return (probe.group, probe.key, probe.if_created) == (other.group, other.key, other.if_created)


def _merged(probe: Probe, other: Probe) -> Probe:
    """Return one probe for the accesses of two, the second of which are to properties."""
    return probe._replace(
        against=tuple(dict.fromkeys((*probe.against, *other.against))),
        notes=tuple(dict.fromkeys((*probe.notes, *other.notes))),
        found_against=tuple(dict.fromkeys((*probe.found_against, *other.against))),
        found_notes=tuple(dict.fromkeys((*probe.found_notes, *other.notes))),
    )


def _value(value: Any) -> _Value:
    # Servers compare integers and text as Python does; other values differ, and so do true and 1.
    return value if type(value) is str or type(value) is int else _ANY


def _everywhere(group: _Group) -> list[int]:
    if group.everywhere is None:
        group.anywhere = group.never[:]
        steps = [max(steps) for steps in zip(group.never, *group.by_value.values(), strict=True)]
        group.everywhere = group.never[:_FIRST_COLUMN] + steps[_FIRST_COLUMN:]
    return group.everywhere


def _place[Row](steps: Sequence[Step[Row]], places: Sequence[int], earliest: int, kinds: tuple[_Kind, ...]) -> int:
    """Return the first step of a mutation, at or after ``earliest``, that a row may join; else the number of steps."""
    for place in range(bisect_left(places, earliest) if places[0] < earliest else 0, len(places)):
        step = steps[places[place]]
        if len(step.rows) < MOST_ROWS and _same(step.kinds, kinds):
            return places[place]
    return len(steps)


def _kind(value: Any, way: tuple[str, ...]) -> _Kind:
    """Return the kind of the values at the end of a path; for lists, that of their items."""
    found: Any = value
    for number, name in enumerate(way):
        found = cast("Mapping[str, Any]", found).get(name) if isinstance(found, Mapping) else None
        if isinstance(found, list):
            kinds = {_kind(item, way[number + 1 :]) for item in cast("Sequence[Any]", found)} - {None}
            return object if len(kinds) > 1 else kinds.pop() if kinds else None
    kind: type[Any] = type(found)  # pyright: ignore[reportUnknownVariableType]
    return kind if kind is int or kind is str else object


def _plain(params: Mapping[str, Any], keys: Iterable[str]) -> tuple[_Kind, ...] | None:
    """Return the kinds of keys if all values are text or integers."""
    types: list[type[Any]] = [type(params.get(name)) for name in keys]  # pyright: ignore[reportUnknownVariableType]
    return _PLAIN.get(tuple(types))


def _kinds(params: Mapping[str, Any], keys: Iterable[tuple[str, ...]]) -> tuple[_Kind, ...]:
    kinds: list[_Kind] = []
    for way in keys:
        kind: type[Any] = type(params.get(way[0])) if len(way) == 1 else object  # pyright: ignore[reportUnknownVariableType]
        kinds.append(kind if kind is str or kind is int else _kind(params, way))
    return tuple(kinds)


def _same(kinds: tuple[_Kind, ...], others: tuple[_Kind, ...]) -> bool:
    if kinds == others:
        return object not in kinds
    for kind, other in zip(kinds, others, strict=True):
        if kind is object or other is object or (kind is not other and kind is not None and other is not None):
            return False
    return True


def _known(kind: _Kind, other: _Kind) -> _Kind:
    return other if kind is None else kind


def _unsure(touched: _Touched) -> _Touched:
    group, steps, notes, shape, _, undoes = touched
    return group, steps, notes, shape, False, undoes


def _note(touched: Iterable[_Touched], step: int) -> None:
    """Note the accesses of a row of a step."""
    for group, found, notes, shape, certain, undoes in touched:
        lists, anywhere = found, False
        if group.anywhere is not None and group.everywhere is not None:
            for column in notes:
                group.everywhere[column] = max(group.everywhere[column], step)
            if found is group.everywhere:
                lists, anywhere = group.anywhere, True
        for column in notes:
            if lists[column] < step:  # noqa: PLR1730
                lists[column] = step
        if certain and not anywhere:
            # A MERGE of another shape may create a second entity for the key: only the last shape is known to exist.
            if lists[_SHAPE] != shape:
                lists[_SHAPE], lists[_MADE] = shape, step
        elif undoes or shape:
            for each in group.by_value.values() if anywhere else (lists,):
                each[_SHAPE] = 0
