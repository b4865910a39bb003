"""What a mutation reads and writes, so that rows that have nothing to do with each other may change places.

A footprint is a list of touches. A touch names a resource (the nodes of some labels, a property of theirs, the
relationships of a type, …), says what is done to it, and, where the query looks it up by one property with a value from
the parameters, which of its entities is meant. Two rows may change places when no touch of one stands against a touch
of the other. Everything here errs to one side: what is not understood makes the query opaque, and an opaque query
touches everything.

Labels that any rule of the set puts on one node belong to one class of nodes; labels of different classes are taken to
be on different nodes. A query counts here even when it is opaque. Relationships are told apart by the node that they
start from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from graphweft_rules.clauses import Outline, Words, outline
from graphweft_rules.cypher import Cypher
from graphweft_rules.patterns import (
    CallPart,
    DeletePart,
    ExpressionPart,
    ForeachPart,
    NodePattern,
    Part,
    PathPattern,
    PatternError,
    PatternPart,
    ProjectionPart,
    RelationshipPattern,
    RemovePart,
    SetItem,
    SetPart,
    UnionPart,
    UnwindPart,
    literal_map,
    read_parts,
    uses,
)

type Resource = tuple[str, ...]
"""``("node", class)``, ``("property", class, name)``, ``("label", name)``, ``("relationship", type)`` or
``("relationship property", type, name)``."""

_ANYTHING: Final = "*"
"""As a property's name: whatever properties there are. It is a resource too: some may be named by no query."""
_READING: Final = ("db.", "dbms.", "algo.")
"""How the names of procedures begin that put no labels on nodes."""
_FIXED: Final = frozenset({"MERGE", "CREATE"})
_PICKS: Final = frozenset({"collect", "head", "last"})
"""Functions whose answer depends on the order in which the server finds things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Where the value comes from by which a query looks an entity up: a literal, or a parameter and a way into it."""

    literal: str | int | None = None
    parameter: str = ""
    path: tuple[str, ...] = ()

    def of(self, params: Mapping[str, Any]) -> Any:
        """Return the value; None when it is null or not there."""
        if not self.parameter:
            return self.literal
        value: Any = params.get(self.parameter)
        for name in self.path:
            value = value.get(name) if isinstance(value, Mapping) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return value  # pyright: ignore[reportUnknownVariableType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """One thing that a query does to a resource."""

    resource: Resource
    access: str
    """``read``; ``create``, a new entity; ``ensure …``, MERGE of what the rest names; ``merge …``, the same with ON
    CREATE or ON MATCH, which must know who comes first; ``write``, anything else."""
    key: Key | None = None
    """None: any entity of the resource."""
    certain: bool = False
    """Of MERGE: whether the query comes to it for every row, so that the entity is there afterwards.

    Where the touches in front of it have ``finds``, that holds only for rows that surely find all of those.
    """
    finds: str = ""
    """Of MATCH: what a MERGE makes sure of under that name, it finds; see ``access``."""
    if_created: bool = False
    """Done only when the MERGE in front of it in the list makes its entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a query touches; with ``opaque``, which says why, it may touch everything."""

    touches: tuple[Touch, ...] = ()
    opaque: str = ""


def commute(access: str, other: str) -> bool:
    """Return whether two accesses to one entity may change places."""
    return access == other and access != "write" and not access.startswith("merge")


def footprints(cyphers: Iterable[Cypher]) -> dict[str, Footprint]:
    """Return the footprint of every query of a set of rules, by its ``statement``."""
    readers: dict[str, _Reader | str] = {}
    given: list[_Labels] = []
    for statement in dict.fromkeys(cypher.statement for cypher in cyphers):
        query = outline(statement)
        given.append(_labels(query))
        try:
            reader = _Reader(query)
            reader.read()
            readers[statement] = reader
        except (PatternError, _Opaque) as error:
            readers[statement] = str(error)
    clear = [reader for reader in readers.values() if isinstance(reader, _Reader)]
    world = _World(clear, given)
    found: dict[str, Footprint] = {}
    for statement, read in readers.items():
        if isinstance(read, str):
            found[statement] = Footprint(opaque=read)
            continue
        try:
            found[statement] = Footprint(touches=tuple(dict.fromkeys(world.touches(read))))
        except _Opaque as error:
            found[statement] = Footprint(opaque=str(error))
    return found


def shared_labels(cyphers: Iterable[Cypher]) -> frozenset[str] | None:
    """Return the labels that may stand on a node beside another label, by a set of rules; None: any may.

    A label that is not in it may stand beside one that is. Two that are not in it are on different nodes.
    """
    found: set[str] = set()
    for statement in dict.fromkeys(cypher.statement for cypher in cyphers):
        given = _labels(outline(statement))
        if given.dynamic:
            return None
        found |= given.shared
    return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Labels:
    """Which labels a query puts, or asks for, on one node; known of opaque queries too."""

    shared: frozenset[str] = frozenset()
    """Those that may stand beside another label."""
    groups: tuple[frozenset[str], ...] = ()
    """Those that stand on one node."""
    anywhere: bool = False
    """A label is put on nodes that may have any other."""
    dynamic: bool = False
    """Which labels are put is known only when the query runs."""


def _labels(query: Outline) -> _Labels:
    """Return which labels a query puts on one node; of a query that cannot be read, more than it may."""
    words = query.words
    for index, word in enumerate(words.tokens):
        computed = word.kind == "param" or (word.text == "$" and words.text(index + 1) == "(")
        if computed and index - 1 not in query.in_map and words.text(index - 1) in (":", "&", "|"):
            return _Labels(anywhere=True, dynamic=True)
    try:
        reader = _LabelReader(query)
        for part in read_parts(query):
            reader.read(part)
        return reader.labels()
    except PatternError:
        names = frozenset(word.identifier for word in words.tokens if word.kind in ("name", "quoted"))
        calls = any(clause.keyword == "CALL" for clause in query.clauses)
        sets = any(clause.keyword in ("SET", "CREATE", "MERGE") for clause in query.clauses)
        return _Labels(shared=names, groups=(names,), anywhere=calls or sets, dynamic=calls)


class _LabelReader:
    """Reads the labels of one query.

    A name has the labels of all its uses, whatever scopes they are in: that errs to the safe side. Whether a node that
    gets a label has one that is known is told scope by scope.
    """

    def __init__(self, query: Outline) -> None:
        self._query = query
        self._patterns: dict[str, set[str]] = {}
        """Variable -> what patterns say of it."""
        self._asked: dict[str, set[str]] = {}
        """Variable -> labels that expressions ask for."""
        self._groups: list[frozenset[str]] = []
        """Labels that one pattern names, or one test."""
        self._sets: dict[str, set[str]] = {}
        """Variable -> labels that it gets."""
        self._bound: set[str] = set()
        """What surely stands for a node with a label of the pattern that it comes from."""
        self._loose: set[str] = set()
        """What may stand for a node with any labels."""
        self._dynamic = False

    def read(self, part: Part) -> None:
        """Read the next part. Raises ``PatternError``."""
        if isinstance(part, PatternPart):
            for path in part.paths:
                self._loose.add(path.variable)
                for node in path.nodes:
                    self._node(node, part)
                elements: tuple[NodePattern | RelationshipPattern, ...] = (*path.nodes, *path.relationships)
                for element in elements:
                    self._expressions(*(entry.value for entry in element.properties), element.where)
        elif isinstance(part, SetPart | RemovePart):
            for item in part.items:
                self._expressions(item.value)
                if item.kind == "label" and isinstance(part, SetPart):
                    self._sets.setdefault(item.variable, set()).update(item.names)
        elif isinstance(part, ProjectionPart):
            self._project(part)
        elif isinstance(part, UnwindPart | ForeachPart):
            self._loose.add(part.variable)
            self._expressions(part.expression)
        elif isinstance(part, CallPart):
            self._bound.clear()
            self._expressions(part.arguments)
            self._dynamic |= bool(part.procedure) and not part.procedure.startswith(_READING)
        elif isinstance(part, UnionPart):
            self._bound.clear()
        else:
            self._expressions(*(each.expression for each in part.items))

    def labels(self) -> _Labels:
        """Return what has been read."""
        variables = self._patterns.keys() | self._asked.keys() | self._sets.keys()
        empty: set[str] = set()
        seen = [self._patterns.get(name, empty) | self._asked.get(name, empty) for name in variables]
        groups = [*self._groups, *map(frozenset, seen)]
        put = [self._sets[name] | self._patterns.get(name, empty) for name in self._sets]
        shared = {label for group in groups if len(group) > 1 for label in group}
        return _Labels(
            shared=frozenset(shared.union(*self._sets.values(), *self._asked.values())),
            groups=(*groups, *map(frozenset, put)),
            anywhere=self._dynamic or any(name in self._loose or name not in self._patterns for name in self._sets),
            dynamic=self._dynamic,
        )

    def _project(self, part: ProjectionPart) -> None:
        self._expressions(*(each.expression for each in part.items))
        before = set[str]() if part.clause.depth else self._bound
        self._bound = set(before) if part.star else set()
        for item in part.items:
            name = self._query.words.identifier(item.expression.start) if len(item.expression) == 1 else ""
            if name in before:
                self._bound.add(item.alias)
                self._patterns.setdefault(item.alias, set()).update(self._patterns.get(name, ()))
            elif item.alias != name:
                self._loose.add(item.alias)

    def _node(self, node: NodePattern, part: PatternPart) -> None:
        names = frozenset((*node.labels, *node.alternatives))
        if node.excluding:
            words = self._query.words
            if part.keyword in ("CREATE", "MERGE"):
                raise PatternError(node.place, "a label expression that makes a node")
            inside = range(node.place + 1, words.closing(node.place))
            self._groups.append(frozenset(filter(None, map(words.identifier, inside))))
        if names:
            self._groups.append(names)
            self._patterns.setdefault(node.variable, set()).update(names if node.variable else ())
            if not part.clause.depth:
                self._bound.add(node.variable)
        elif node.variable not in self._bound:
            self._loose.add(node.variable)

    def _expressions(self, *spans: range | None) -> None:
        for span in spans:
            for test in uses(self._query, span).labels if span else ():
                self._groups.append(frozenset(test.labels))
                self._asked.setdefault(test.variable, set()).update(test.labels)


class _Opaque(Exception):
    """The query may touch anything; the message says why."""


@dataclass(slots=True, kw_only=True)
class _Thing:
    """What is known of a node or relationship of a query, from all places where it stands."""

    kind: Literal["node", "relationship"]
    names: set[str] = field(default_factory=set[str])
    """Labels that it has, gets or is asked for, or the types of which it is one."""
    keys: dict[str, Key] = field(default_factory=dict[str, Key])
    """Property in the first pattern -> value, where the value is known before the query runs."""
    known: bool = True
    """Whether its first pattern says what it is: a label that is asked for later does not."""
    start: _Thing | None = None
    """Of a relationship, when it surely begins there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Act:
    """One thing that a query does to one of its things."""

    thing: _Thing
    access: str
    name: str = ""
    """A property, ``*`` for all of them; empty for the thing itself."""
    label: str = ""
    certain: bool = False
    finds: str = ""
    by_one: bool = False
    """MERGE of a node by one property: there is no second entity that it could make for the same value."""
    if_created: bool = False


class _Reader:
    """Reads one query into things and acts."""

    def __init__(self, query: Outline) -> None:
        self.query = query
        self.words: Words = query.words
        self.acts: list[_Act] = []
        self.things: list[_Thing] = []
        self.picks = False
        """Whether the result depends on the order in which the server finds what matches."""
        self.searched: list[_Thing] = []
        """What is matched and may be several."""
        self._scope: dict[str, _Thing | None] = {}
        """Variable -> its thing; None for plain values."""
        self._derived: dict[str, list[_Thing]] = {}
        """Plain value -> the things whose properties it is made of."""
        self._certain = True

    def read(self) -> None:
        """Read the query. Raises ``_Opaque`` or ``PatternError``."""
        parts = read_parts(self.query)
        outer: list[dict[str, _Thing | None]] = []
        merged: _Thing | None = None
        for number, part in enumerate(parts):
            depth = part.clause.depth
            while len(outer) > depth:
                self._scope = outer.pop()
            if isinstance(part, PatternPart):
                following = parts[number + 1] if number + 1 < len(parts) else None
                merged = self._patterns(part, isinstance(following, SetPart) and bool(following.on))
            elif isinstance(part, SetPart):
                for item in part.items:
                    self._set(item, if_created=part.on == "CREATE" and self._scope.get(item.variable) is merged)
            elif isinstance(part, RemovePart):
                for item in part.items:
                    self._set(item)
            elif isinstance(part, DeletePart):
                self._delete(part)
            elif isinstance(part, ProjectionPart):
                self._project(part, last=number == len(parts) - 1)
            elif isinstance(part, ExpressionPart):
                self._certain = False
                if part.keyword in ("SKIP", "LIMIT"):
                    self.picks = True
                for each in part.items:
                    self._expression(each.expression)
            elif isinstance(part, UnwindPart):
                self._certain = False
                self._value(part.variable, part.expression)
                self._scope = {**self._scope, part.variable: None}
            elif isinstance(part, ForeachPart):
                self._value(part.variable, part.expression)
                outer.append(self._scope)
                self._scope = {**self._scope, part.variable: None}
                self._certain = False
            elif isinstance(part, CallPart):
                raise _Opaque("CALL runs what is not read here")
            else:
                assert isinstance(part, UnionPart)
                raise _Opaque("UNION has branches that see different things")

    def _patterns(self, part: PatternPart, conditional: bool) -> _Thing | None:
        """Read a pattern clause; return the one thing that a MERGE makes by itself."""
        merged: _Thing | None = None
        if part.keyword not in _FIXED and not (part.keyword == "MATCH" and all(map(self._finds, part.paths))):
            self._certain = False
        for path in part.paths:
            if path.variable or path.function:
                raise _Opaque("paths are values that hold nodes")
            merged = self._path(path, part.keyword, conditional)
        return merged

    def _path(self, path: PathPattern, keyword: str, conditional: bool) -> _Thing | None:
        alone = not path.relationships
        fresh: list[_Thing] = []
        nodes: dict[int, _Thing] = {}
        merged: _Thing | None = None
        for pattern in path.nodes:
            known = self._scope.get(pattern.variable) if pattern.variable else None
            if pattern.variable and pattern.variable in self._scope and known is None:
                raise _Opaque(f"{pattern.variable!r} is a value and stands for a node")
            thing = known or _Thing(kind="node", known=bool(pattern.labels or pattern.alternatives))
            nodes[pattern.place] = thing
            thing.names.update(pattern.labels, pattern.alternatives)
            if known is None:
                self._identify(thing, pattern)
                fresh.append(thing)
                self.things.append(thing)
                if pattern.variable:
                    self._scope = {**self._scope, pattern.variable: thing}
                if pattern.map_parameter and keyword != "CREATE":
                    raise _Opaque("which properties are looked up is known only when the query runs")
            elif pattern.labels or pattern.alternatives or pattern.properties:
                self._read_map(thing, pattern)
            if known is not None:
                continue
            if keyword == "CREATE":
                self.acts.append(_Act(thing=thing, access="create"))
            elif keyword == "MERGE" and alone:
                names = ",".join(sorted(item.name for item in pattern.properties))
                shape = f"{':'.join(sorted(pattern.labels))} {names}"
                access = f"merge {shape}" if conditional else f"ensure {shape}"
                by_one = len(pattern.properties) == 1
                self.acts.append(_Act(thing=thing, access=access, certain=self._certain and by_one, by_one=by_one))
                merged = thing
            elif keyword == "MERGE":
                self.acts.append(_Act(thing=thing, access="write"))
            else:
                if alone:
                    finds = self._finds(path) if keyword == "MATCH" else ""
                    self.acts.append(_Act(thing=thing, access="read", finds=finds))
                self.searched.append(thing)
            if keyword != "CREATE":
                self._read_map(thing, pattern)
        for arrow in path.relationships:
            self._arrow(arrow, nodes, keyword, idempotent=not fresh and not conditional)
        parts: tuple[NodePattern | RelationshipPattern, ...] = (*path.nodes, *path.relationships)
        for part in parts:
            for item in part.properties:
                self._expression(item.value)
            if part.where is not None:
                self._expression(part.where)
        return merged

    def _finds(self, path: PathPattern) -> str:
        """Return the shape of a node that is looked up by its labels and one property, and nothing else; or nothing."""
        [node, *others] = path.nodes
        plain = not (node.alternatives or node.excluding or node.map_parameter or node.where or others)
        if not plain or not node.labels or len(node.properties) != 1 or self._key(node.properties[0].value) is None:
            return ""
        return f"{':'.join(sorted(node.labels))} {node.properties[0].name}"

    def _arrow(
        self, pattern: RelationshipPattern, nodes: Mapping[int, _Thing], keyword: str, *, idempotent: bool
    ) -> None:
        thing = self._relationship(pattern, nodes)
        if keyword == "CREATE":
            self.acts.append(_Act(thing=thing, access="create"))
            return
        names = [item.name for item in pattern.properties]
        if keyword == "MERGE" and idempotent:
            shape = f"{'|'.join(pattern.types)} {pattern.direction} {','.join(sorted(names))}"
            self.acts.append(_Act(thing=thing, access=f"ensure {shape}"))
        elif keyword == "MERGE":
            self.acts.append(_Act(thing=thing, access="write"))
        else:
            self.acts.append(_Act(thing=thing, access="read"))
            self.searched.append(thing)
        self.acts.extend(_Act(thing=thing, access="read", name=name) for name in names)

    def _identify(self, thing: _Thing, pattern: NodePattern) -> None:
        for item in pattern.properties:
            key = self._key(item.value)
            if key is not None:
                thing.keys[item.name] = key

    def _read_map(self, thing: _Thing, pattern: NodePattern) -> None:
        self.acts.extend(_Act(thing=thing, access="read", name=item.name) for item in pattern.properties)
        labels = (*pattern.labels, *pattern.alternatives)
        self.acts.extend(_Act(thing=thing, access="read", label=label) for label in labels)
        if pattern.excluding:
            raise _Opaque("a label expression excludes labels")

    def _relationship(self, pattern: RelationshipPattern, nodes: Mapping[int, _Thing]) -> _Thing:
        if pattern.variable and pattern.variable in self._scope:
            known = self._scope[pattern.variable]
            if known is None or known.kind != "relationship":
                raise _Opaque(f"{pattern.variable!r} stands for a relationship and is something else")
            return known
        if not pattern.types:
            raise _Opaque("a relationship of any type is matched")
        if pattern.map_parameter:
            raise _Opaque("which properties a relationship has is known only when the query runs")
        sure = pattern.direction != "both" and not pattern.many
        thing = _Thing(
            kind="relationship", names=set(pattern.types), start=nodes[pattern.start.place] if sure else None
        )
        self.things.append(thing)
        if pattern.variable:
            # A path's relationships are a list, and what is in it cannot be followed.
            self._scope = {**self._scope, pattern.variable: thing}
            if pattern.many:
                raise _Opaque("the relationships of a path of any length are named")
        return thing

    def _set(self, item: SetItem, *, if_created: bool = False) -> None:
        thing = self._scope.get(item.variable)
        if thing is None:
            raise _Opaque(f"{item.variable!r} is set and is no node or relationship of a pattern")
        if item.kind == "label":
            thing.names.update(item.names)
            self.acts.extend(_Act(thing=thing, access="write", label=label) for label in item.names)
        elif item.kind == "property":
            self.acts.append(_Act(thing=thing, access="write", name=item.names[0], if_created=if_created))
        else:
            known = literal_map(self.query, item.value) if item.value is not None and item.kind == "update" else None
            names = [_ANYTHING] if known is None else [each.name for each in known]
            self.acts.extend(_Act(thing=thing, access="write", name=name, if_created=if_created) for name in names)
        if item.value is not None:
            self._expression(item.value, writing=thing)

    def _delete(self, part: DeletePart) -> None:
        for item in part.items:
            name = self.words.identifier(item.expression.start) if len(item.expression) == 1 else ""
            thing = self._scope.get(name)
            if thing is None or thing.kind != "relationship":
                raise _Opaque("deleting a node takes its relationships along")
            self.acts.append(_Act(thing=thing, access="write"))
            self.acts.append(_Act(thing=thing, access="write", name=_ANYTHING))

    def _project(self, part: ProjectionPart, *, last: bool) -> None:
        if part.keyword == "RETURN" and last:
            return  # nobody gets to see it
        if part.keyword != "WITH" or part.clause.depth:
            raise _Opaque(f"{part.keyword} inside a query")
        scope = dict(self._scope) if part.star else {}
        for item in part.items:
            name = self.words.identifier(item.expression.start) if len(item.expression) == 1 else ""
            if name in self._scope:
                scope[item.alias] = self._scope[name]
                self._derived.setdefault(item.alias, []).extend(self._derived.get(name, ()))
                continue
            self._value(item.alias, item.expression)
            if item.alias:
                scope[item.alias] = None
        if any(uses(self.query, item.expression).calls for item in part.items):
            self._certain = False  # an aggregate of no rows is a row, and of many one: let it be
        self._scope = scope

    def _value(self, name: str, expression: range) -> None:
        """Read the expression of a plain value."""
        self._expression(expression)
        found = uses(self.query, expression)
        sources = [thing for read in found.reads if (thing := self._scope.get(read.variable)) is not None]
        for use in found.variables:
            sources += self._derived.get(use.variable, ())
        # What it was made of under another meaning of the name stays: that errs to the safe side.
        self._derived.setdefault(name, []).extend(sources)

    def _expression(self, expression: range, *, writing: _Thing | None = None) -> None:
        found = uses(self.query, expression)
        if found.subqueries:
            raise _Opaque("a subquery stands in an expression")
        counted = {place for call in found.calls if call.name == "count" for place in call.arguments}
        for call in found.calls:
            self.picks |= call.name in _PICKS
        for read in found.reads:
            thing = self._scope.get(read.variable)
            if thing is not None:
                self.acts.append(_Act(thing=thing, access="read", name=read.name))
                if writing is not None and thing is not writing:
                    self.picks = True  # of several matches the last one wins
        for test in found.labels:
            thing = self._scope.get(test.variable)
            if thing is None:
                raise _Opaque("a label is asked of a value")
            thing.names.update(test.labels)
            self.acts.extend(_Act(thing=thing, access="read", label=label) for label in test.labels)
        for name in {*(use.variable for use in found.variables), *(read.variable for read in found.reads)}:
            sources = self._derived.get(name, ()) if self._scope.get(name) is None else ()
            if writing is not None and any(thing is not writing for thing in sources):
                self.picks = True
        for use in found.variables:
            is_null = self.words.keyword(use.place + 1) == "IS"
            thing = self._scope.get(use.variable)
            if thing is not None and use.place not in counted and not is_null:
                raise _Opaque(f"{use.variable!r} is used as a whole")

    def _key(self, value: range) -> Key | None:
        tokens = [self.words.tokens[index] for index in value]
        first = tokens[0]
        if first.kind == "param" and len(tokens) % 2 == 1:
            dots, names = tokens[1::2], tokens[2::2]
            if all(dot.text == "." for dot in dots) and all(name.kind in ("name", "quoted") for name in names):
                return Key(parameter=first.identifier, path=tuple(name.identifier for name in names))
        if len(tokens) == 1 and first.kind == "string" and "\\" not in first.text:
            return Key(literal=first.text[1:-1])
        if len(tokens) == 1 and first.kind == "number" and first.text.isdigit():
            return Key(literal=int(first.text))
        return None


class _World:
    """What can be said only of all queries together: classes of labels, the key of each, whose order matters."""

    def __init__(self, readers: Sequence[_Reader], given: Sequence[_Labels]) -> None:
        self._parent: dict[str, str] = {}
        self._one = any(labels.anywhere for labels in given)
        """Whether all labels are one class."""
        for group in (group for each in given for group in each.groups):
            for label in group:
                self._join(min(group), label)
        for reader in readers:
            for thing in reader.things:
                if thing.kind == "node":
                    labels = sorted(thing.names)
                    for label in labels:
                        self._join(labels[0], label)
        counts: dict[str, Counter[str]] = {}
        self._properties: dict[Resource, set[str]] = {}
        for reader in readers:
            for thing in reader.things:
                if thing.kind == "node" and thing.names and thing.known:
                    counts.setdefault(self._class(thing), Counter()).update(list(thing.keys))
            for act in reader.acts:
                if act.name and act.name != _ANYTHING:
                    for base in self._bases(act.thing):
                        self._properties.setdefault(base, set()).add(act.name)
        self._key_of = {name: min(found, key=lambda key: (-found[key], key)) for name, found in counts.items() if found}
        picked = [
            (base, self._key(thing))
            for reader in readers
            if reader.picks
            for thing in reader.searched
            for base in self._bases(thing)
        ]
        self._ordered = {base for base, key in picked if key is None}
        """Resources of which somebody takes what the server finds first, or last: they are made in the log's order."""
        self._ordered_by_key = {base for base, key in picked if key is not None}
        """The same, of those that have one key."""

    def touches(self, reader: _Reader) -> Iterable[Touch]:
        """Yield what a query touches. Raises ``_Opaque``."""
        sure = True
        for act in reader.acts:
            thing = act.thing
            if act.finds and self._key(thing) is None:
                sure = False
            if act.certain and not sure:
                act = replace(act, certain=False)  # noqa: PLW2901
            if act.label:
                yield Touch(resource=("label", act.label), access=act.access)
                if act.access == "write" and not self._bases(thing):
                    raise _Opaque("a node without a label gets or loses one")
                if act.access == "write":  # what a pattern with the label finds is another set of nodes from here on
                    yield from (Touch(resource=base, access="write") for base in self._bases(thing))
                continue
            key = self._key(thing)
            bases = self._bases(thing)
            if not bases:
                if thing.kind == "node" and not act.name and act.access == "read":
                    raise _Opaque("nodes of any label are matched")
                raise _Opaque("a node without a label is read or written")
            for base in bases:
                if not act.name:
                    yield self._on_entity(act, base, key)
                    continue
                names = {*self._properties.get(base, ()), _ANYTHING} if act.name == _ANYTHING else {act.name}
                by = self._key_name(base)
                rekeys = base[0] == "node" and act.access == "write" and bool(by) and act.name in (_ANYTHING, by)
                key_of_act = None if rekeys else key
                for name in sorted(names):
                    touch = Touch(resource=(f"{base[0]} property", base[1], name), access=act.access, key=key_of_act)
                    yield replace(touch, if_created=act.if_created)
                if rekeys:
                    yield Touch(resource=base, access="write")  # another entity may be meant by a key from here on

    def _on_entity(self, act: _Act, base: Resource, key: Key | None) -> Touch:
        making = act.access.startswith(("create", "ensure", "merge"))
        if making and base in self._ordered:
            return Touch(resource=base, access="write")
        if making and base in self._ordered_by_key and not act.by_one:
            return Touch(resource=base, access="write", key=key)
        certain = act.certain and key is not None
        return Touch(resource=base, access=act.access, key=key, certain=certain, finds=act.finds if key else "")

    def _bases(self, thing: _Thing) -> tuple[Resource, ...]:
        if thing.kind == "relationship":
            return tuple(("relationship", name) for name in sorted(thing.names))
        return (("node", self._class(thing)),) if thing.names and thing.known else ()

    def _key(self, thing: _Thing) -> Key | None:
        node = thing.start if thing.kind == "relationship" else thing
        if node is None or not node.names or not node.known:
            return None
        return node.keys.get(self._key_name(("node", self._class(node))))

    def _key_name(self, base: Resource) -> str:
        return self._key_of.get(base[1], "")

    def _class(self, thing: _Thing) -> str:
        return self._root(min(thing.names))

    def _root(self, label: str) -> str:
        if self._one:
            return _ANYTHING
        while self._parent.get(label, label) != label:
            label = self._parent[label]
        return label

    def _join(self, label: str, other: str) -> None:
        if self._one:
            return
        first, second = sorted((self._root(label), self._root(other)))
        self._parent[second] = first
        self._parent.setdefault(first, first)
