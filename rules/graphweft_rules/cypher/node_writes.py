"""Which mutations, and which of their rows, may write one node, or relationships of it.

The answer errs on the safe side: a row that may not write the node never does. A row that may write it need not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graphweft_rules.cypher.accesses import LookupKey
from graphweft_rules.cypher.clauses import Outline
from graphweft_rules.cypher.entities import ANYTHING, Action, Entity, EntityReader, entities_of
from graphweft_rules.cypher.mutation_summary import MutationSummary
from graphweft_rules.cypher.node_labels import labels_beside
from graphweft_rules.cypher.query import Cypher
from graphweft_rules.cypher.read_write_sets import read_write_sets

BY_KEY: Final = "it names the key"
ENSURES: Final = "it makes sure that the node exists"
"""A row with this reason changes nothing if the node exists."""
_INDEXED: Final = 1_000
type KeyValue = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTarget:
    """The nodes with a label whose key properties have given values."""

    label: str
    keys: Mapping[str, tuple[KeyValue, ...]]
    """Property -> its values, any of which will do: a command line does not tell the number 7 from the text "7"."""
    property: str | None = None
    """Only writes of this property count."""
    relationship: str | None = None
    """Only writes of relationships of this type, from or to the node, count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """A node that a query writes; it is the target only if all its known keys are."""

    keys: tuple[tuple[str, LookupKey], ...]
    """Key properties of the target, and where the node's values are."""
    unlike: tuple[tuple[str, LookupKey], ...] | None = ()
    """Key properties that the node may get, or maps with them (under ``*``); None if any value is possible."""
    because: str


class NodeWriters:
    """Tells for each row whether it may write a target."""

    def __init__(self, target: NodeTarget, summary: MutationSummary) -> None:
        """``summary`` is of all mutations that may have run, those of packs included."""
        self._target = target
        self._labels = None if summary.anywhere else labels_beside([target.label], summary.groups)
        self._checks: dict[str, Sequence[_Check]] = {}

    def reason(self, cypher: Cypher, params: Mapping[str, Any]) -> str:
        """Return why a row may write the target; empty if it does not."""
        checks = self._checks.get(cypher.statement)
        if checks is None:
            checks = self._checks[cypher.statement] = self._learn(cypher.outline)
        found = ""
        for check in checks:
            if (not found or found is ENSURES) and self._holds(check, params):
                found = check.because
        return found

    def _holds(self, check: _Check, params: Mapping[str, Any]) -> bool:
        keys = self._target.keys
        if not any(_differ(key.all_of(params), keys[name]) for name, key in check.keys):
            return True
        return check.unlike is None or any(self._may_get(name, key, params) for name, key in check.unlike)

    def _may_get(self, name: str, key: LookupKey, params: Mapping[str, Any]) -> bool:
        """Return whether a node may get the key of the target from a value or a map."""
        keys = self._target.keys
        if name != ANYTHING:
            return not _differ(key.all_of(params), keys[name])
        given = list(key.all_of(params))
        if not all(isinstance(each, Mapping) for each in given):
            return True
        return any(part in each and not _differ([each[part]], keys[part]) for part in keys for each in given)

    def _learn(self, query: Outline) -> Sequence[_Check]:
        reader = entities_of(query)
        if isinstance(reader, str):
            return [_Check(keys=(), because=reader)]
        found: list[_Check] = []
        for act in reader.acts:
            if act.access == "read":
                continue
            if act.thing.kind == "node" and self._counts(act):
                found += self._check(reader, act.thing, ensures=self._ensures(act))
            elif act.thing.kind == "relationship" and self._target.relationship in act.thing.names:
                if not act.thing.ends:
                    found.append(_Check(keys=(), because="it writes relationships of the type"))
                for end in act.thing.ends:
                    found += self._check(reader, end)
        return list(dict.fromkeys(found))

    def _counts(self, act: Action) -> bool:
        """Return whether an effect on a node counts: on its content, or on which node the target is."""
        if act.label or act.name in (ANYTHING, *self._target.keys):
            return True
        if self._target.relationship is not None:
            return False
        return self._target.property in (None, act.name) or not act.name

    def _ensures(self, act: Action) -> bool:
        """Return whether an effect is a plain MERGE of the target by its only key, which finds the node if it exists.

        Indexes may not find text that is long or has blanks at its ends, so that MERGE makes the node again.
        """
        if len(self._target.keys) != 1:
            return False
        [(name, (value, *others))] = self._target.keys.items()
        plain = isinstance(value, str) and 0 < len(value) <= _INDEXED and value == value.strip()
        return plain and not others and act.access == f"ensure {self._target.label} {name}"

    def _check(self, reader: EntityReader, node: Entity, *, ensures: bool = False) -> Iterable[_Check]:
        keys = tuple((name, node.keys[name]) for name in self._target.keys if name in node.keys)
        keys += tuple((name, node.listed[name]) for name in self._target.keys if name in node.listed)
        if node.names and node.known and self._labels is not None and self._labels.isdisjoint(node.names):
            return
        given = [
            act for act in reader.acts
            if act.thing is node and act.access == "write" and act.name in (ANYTHING, *self._target.keys)
        ]  # fmt: skip
        sure = all(act.value is not None for act in given)
        because = BY_KEY if len(keys) == len(self._target.keys) and sure else "it finds nodes in another way"
        values = tuple((act.name, act.value) for act in given if act.value is not None) if sure else None
        yield _Check(keys=keys, unlike=values, because=ENSURES if ensures and because is BY_KEY else because)


class Slice:
    """The mutations on whose effects given ones depend; all others can be left out of a replay."""

    def __init__(self, cyphers: Mapping[str, Cypher], summary: MutationSummary) -> None:
        """``cyphers`` are all mutations of the log, by statement."""
        self._statements = frozenset(cyphers)
        self._touched: dict[str, frozenset[tuple[str, ...]]] = {}
        self._written: dict[str, frozenset[tuple[str, ...]]] = {}
        self._opaque = False
        for statement, found in read_write_sets(cyphers.values(), summary).items():
            self._opaque |= bool(found.opaque)
            self._touched[statement] = frozenset(_entity(touch.resource) for touch in found.touches)
            written = (touch for touch in found.touches if touch.access != "read")
            self._written[statement] = frozenset(_entity(touch.resource) for touch in written)

    def of(self, statements: Iterable[str]) -> frozenset[str]:
        """Return the statements with all those that write what they touch, and what these touch in turn."""
        needed = set(statements)
        if needed and self._opaque:
            return self._statements
        while True:
            touched = frozenset[tuple[str, ...]]().union(*(self._touched[each] for each in needed))
            more = {each for each in self._statements - needed if not touched.isdisjoint(self._written[each])}
            if not more:
                return frozenset(needed)
            needed |= more


def _entity(resource: tuple[str, ...]) -> tuple[str, ...]:
    """Return the entities of a resource: a property counts as its node or relationship."""
    return (resource[0].removesuffix(" property"), *resource[1:2])


def _differ(values: Iterable[Any], wanted: Sequence[KeyValue]) -> bool:
    """Return whether each value surely differs from all wanted ones, as graph servers compare."""
    return all(_differs(value, each) for value in values for each in wanted)


def _differs(value: Any, wanted: KeyValue) -> bool:
    if isinstance(value, str) or isinstance(wanted, str):
        return isinstance(value, str | int | float) and value != wanted
    # A server may compare a large integer with a float inexactly.
    return type(value) is int and type(wanted) is int and value != wanted
