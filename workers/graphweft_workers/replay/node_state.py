"""The content of one node, or of its relationships, and how it differs from an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final, Literal, cast

from graphweft_contracts import InvalidSettings, QueryFailed
from graphweft_rules.cypher.node_writes import NodeTarget
from graphweft_workers.ports.graph_store import INTERNAL_PREFIX, GraphStore
from graphweft_workers.support.timing import TIMING

_INDEXED: Final = 1_000
"""Characters of a text that an index surely finds."""

type Kind = Literal["created", "deleted", "property", "labels"]
type Arrow = tuple[str, str, str]
"""Type, direction seen from the node, and the node at the other end as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference that a mutation made.

    ``before`` and ``after`` are values of a property, labels, or all properties of what was created or deleted; None
    for none.
    """

    kind: Kind
    name: str = ""
    """The property."""
    labels: tuple[str, ...] = ()
    relationship: Arrow | None = None
    """The relationship that changed; None for the node."""
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A node, or a relationship of it."""

    labels: tuple[str, ...] = ()
    arrow: Arrow | None = None
    properties: Mapping[str, Any] = field(default_factory=dict[str, Any])


type State = Mapping[tuple[Any, ...], Thing]
"""The nodes that a target names, or their relationships, by the server's ids."""


class NodeReader:
    """Reads the state of a target."""

    def __init__(self, target: NodeTarget, keys: Collection[tuple[str, str]], graph: GraphStore, app_id: str) -> None:
        """``keys`` are the (label, property) by which nodes at the other end are named.

        Raises ``InvalidSettings`` for a name that no query can hold.
        """
        self.target = target
        self._keys = keys
        self._graph = graph
        self._app_id = app_id
        self._queries = list(self._statements())

    async def read(self) -> State:
        """Return the present state. Raises ``GraphUnavailable``, and ``InvalidSettings`` if it is too large."""
        found: dict[tuple[Any, ...], Thing] = {}
        for statement, params, out in self._queries:
            try:
                table = await self._graph.read(self._app_id, statement, params, timeout_s=TIMING.replay.query_s)
            except QueryFailed as error:
                raise InvalidSettings(f"the node or its relationships cannot be read: {error}") from error
            for row in table.rows:
                if out is None:
                    found[row[0],] = Thing(labels=tuple(sorted(row[1])), properties=row[2])
                else:
                    other = self._node_text(row[3], row[4])
                    arrow = (str(self.target.relationship), "out" if out else "in", other)
                    found[row[0], row[1], out] = Thing(arrow=arrow, properties=row[2])
        return found

    def _statements(self) -> Iterator[tuple[str, dict[str, Any], bool | None]]:
        target, quoted, id_of = self.target, self._quoter(), self._graph.dialect.node_id
        for values in product(*target.keys.values()):
            params: dict[str, Any] = {f"v{number}": value for number, value in enumerate(values)}
            pairs = zip(target.keys, params, strict=True)
            tests = " AND ".join(_test(quoted(name), each, params[each]) for name, each in pairs)
            node = f"(n:{quoted(target.label)})"
            if target.relationship is None:
                yield f"MATCH {node} WHERE {tests} RETURN {id_of('n')}, labels(n), properties(n)", params, None
                continue
            for out in (True, False):
                arrow = f"-[r:{quoted(target.relationship)}]-"
                path = f"{node}{arrow}>(m)" if out else f"{node}<{arrow}(m)"
                yield (
                    f"MATCH {path} WHERE {tests} RETURN {id_of('n')}, {id_of('r')}, properties(r), labels(m), "
                    "properties(m)",
                    params,
                    out,
                )

    def _quoter(self) -> Callable[[str], str]:
        target = self.target
        for name in (target.label, *target.keys, target.relationship or "x"):
            if not name or "`" in name or not name.isprintable():
                raise InvalidSettings(f"invalid name {name!r}: expected a label, property or type without backticks")
        if target.label.startswith(INTERNAL_PREFIX):
            raise InvalidSettings(
                f"invalid --label {target.label!r}: labels with {INTERNAL_PREFIX} are graphweft's own"
            )
        return self._graph.dialect.quoted

    def _node_text(self, labels: Sequence[str], properties: Mapping[str, Any]) -> str:
        for label, name in sorted(self._keys):
            if label in labels and name in properties:
                return f"(:{label} {{{name}: {properties[name]!r}}})"
        return f"({''.join(f':{label}' for label in sorted(labels))})"


def changes(before: State, after: State, property: str | None) -> Iterator[Change]:
    """Yield what differs between two states; with ``property``, only its values."""
    for id in (*before, *(id for id in after if id not in before)):
        old, new = before.get(id), after.get(id)
        there = new or old
        assert there is not None
        if property is None and (old is None or new is None):
            yield Change(
                kind="created" if old is None else "deleted", labels=there.labels, relationship=there.arrow,
                before=old and dict(old.properties), after=new and dict(new.properties),
            )  # fmt: skip
            continue
        was: Mapping[str, Any] = {} if old is None else old.properties
        now: Mapping[str, Any] = {} if new is None else new.properties
        names = sorted({*was, *now}) if property is None else [property]
        for name in names:
            if not same(was.get(name), now.get(name)):
                yield Change(
                    kind="property", name=name, relationship=there.arrow, before=was.get(name), after=now.get(name)
                )
        if property is None and old is not None and new is not None and old.labels != new.labels:
            yield Change(kind="labels", before=list(old.labels), after=list(new.labels))


def alike(state: State, other: State) -> bool:
    """Tell whether two states of different graphs have the same content."""
    rest = list(other.values())
    for thing in state.values():
        match = next((each for each in rest if _is_equal(thing, each)), None)
        if match is None:
            return False
        rest.remove(match)
    return not rest


def _is_equal(thing: Thing, other: Thing) -> bool:
    return (thing.labels, thing.arrow) == (other.labels, other.arrow) and same(
        dict(thing.properties), dict(other.properties)
    )


def same(value: Any, other: Any) -> bool:
    """Return whether two values of properties are equal: 1 and True are not, 1 and 1.0 are not, NaN and NaN are."""
    if type(value) is not type(other):
        return False
    if isinstance(value, list):
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return len(items) == len(other) and all(map(same, items, other))
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        return fields.keys() == other.keys() and all(same(fields[name], other[name]) for name in fields)
    return bool(value == other) or (value != value and other != other)  # noqa: PLR0124


def _test(name: str, parameter: str, value: Any) -> str:
    # The indexes of a server may not find text that is empty, is long, or has blanks at its ends.
    plain = not isinstance(value, str) or (0 < len(value) <= _INDEXED and value == value.strip())
    return f"n.{name} = ${parameter}" if plain else f"coalesce(n.{name}, 0) = ${parameter}"
