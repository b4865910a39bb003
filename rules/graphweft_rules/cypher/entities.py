"""The nodes and relationships of one query, and what the query does to each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from graphweft_rules.cypher.accesses import LookupKey
from graphweft_rules.cypher.clauses import Outline, QueryWords, once
from graphweft_rules.cypher.expressions import uses
from graphweft_rules.cypher.part_parser import literal_map, read_parts
from graphweft_rules.cypher.parts import (
    CallPart,
    DeletePart,
    ExpressionPart,
    ForeachPart,
    NodePattern,
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
)

ANYTHING: Final = "*"
"""In place of a property's name: all properties, named by a query or not."""
_FIXED: Final = frozenset({"MERGE", "CREATE"})
_PICKS: Final = frozenset({"collect", "head", "last"})
"""Functions whose result depends on the order in which the server finds matches."""


class Opaque(Exception):
    """The query may touch anything, for the reason in the message."""


@dataclass(slots=True, kw_only=True)
class Entity:
    """A node or relationship of a query, with all that its occurrences tell."""

    kind: Literal["node", "relationship"]
    names: set[str] = field(default_factory=set[str])
    """The labels that it has, gets or is tested for; for a relationship, its possible types."""
    keys: dict[str, LookupKey] = field(default_factory=dict[str, LookupKey])
    """Property in the first pattern -> value, if the value is known before the query runs."""
    known: bool = True
    """Whether its first pattern has a label; a later label test does not count."""
    start: Entity | None = None
    """The start node of a relationship, if it is certain."""
    ends: tuple[Entity, ...] = ()
    """Both nodes of a relationship, if it is a single one."""
    listed: dict[str, LookupKey] = field(default_factory=dict[str, LookupKey])
    """Like ``keys``, for values that are items of a list: the key stands for the values in all items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One effect of a query on one of its entities."""

    thing: Entity
    access: str
    name: str = ""
    """A property, ``*`` for all properties; empty for the entity itself."""
    label: str = ""
    certain: bool = False
    finds: str = ""
    by_one: bool = False
    """A MERGE of a node by one property, which never creates a second entity for the same value."""
    if_created: bool = False
    value: LookupKey | None = None
    """The value that a property gets, or the map of ``*``, if it is known before the query runs."""


@once
def entities_of(query: Outline) -> EntityReader | str:
    """Return the entities of a query, or why it is opaque. A reader that is returned does not change."""
    reader = EntityReader(query)
    try:
        reader.read()
    except (PatternError, Opaque) as error:
        return str(error)
    return reader


class EntityReader:
    """Reads one query into entities and actions."""

    def __init__(self, query: Outline) -> None:
        self.query = query
        self.words: QueryWords = query.words
        self.acts: list[Action] = []
        self.things: list[Entity] = []
        self.picks = False
        """Whether the result depends on the order in which the server finds matches."""
        self.searched: list[Entity] = []
        """Matched entities; one pattern may match several."""
        self._scope: dict[str, Entity | None] = {}
        """Variable -> its entity; None for a plain value."""
        self._derived: dict[str, list[Entity]] = {}
        """Plain value -> the entities whose properties it is computed from."""
        self._certain = True
        """Whether every row gets here, if it finds all that has ``Action.finds``."""
        self._changed: set[str] = set()
        """The properties and labels that the query has written so far: a look-up by them may not find what it would."""
        self._unwound: dict[str, LookupKey] = {}
        """Variable of an UNWIND -> the list, if it is a parameter."""

    def read(self) -> None:
        """Read the query. Raises ``Opaque`` or ``PatternError``."""
        parts = read_parts(self.query)
        outer: list[dict[str, Entity | None]] = []
        merged: Entity | None = None
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
                if (items := self._key(part.expression)) is not None and items.parameter:
                    self._unwound[part.variable] = items
            elif isinstance(part, ForeachPart):
                self._value(part.variable, part.expression)
                outer.append(self._scope)
                self._scope = {**self._scope, part.variable: None}
                self._certain = False
            elif isinstance(part, CallPart):
                raise Opaque("CALL may do anything")
            else:
                assert isinstance(part, UnionPart)
                raise Opaque("the branches of UNION see different graphs")

    def _patterns(self, part: PatternPart, conditional: bool) -> Entity | None:
        """Read a pattern clause; return the node of a MERGE without relationships."""
        merged: Entity | None = None
        if part.keyword not in _FIXED and not (part.keyword == "MATCH" and all(map(self._finds, part.paths))):
            self._certain = False
        for path in part.paths:
            if path.variable or path.function:
                raise Opaque("paths hold nodes as values")
            merged = self._path(path, part.keyword, conditional)
        return merged

    def _path(self, path: PathPattern, keyword: str, conditional: bool) -> Entity | None:
        alone = not path.relationships
        fresh: list[Entity] = []
        nodes: dict[int, Entity] = {}
        merged: Entity | None = None
        for pattern in path.nodes:
            known = self._scope.get(pattern.variable) if pattern.variable else None
            if pattern.variable and pattern.variable in self._scope and known is None:
                raise Opaque(f"{pattern.variable!r} is a value, used as a node")
            thing = known or Entity(kind="node", known=bool(pattern.labels or pattern.alternatives))
            nodes[pattern.place] = thing
            thing.names.update(pattern.labels, pattern.alternatives)
            if known is None:
                self._identify(thing, pattern)
                fresh.append(thing)
                self.things.append(thing)
                if pattern.variable:
                    self._scope = {**self._scope, pattern.variable: thing}
                if pattern.map_parameter and keyword != "CREATE":
                    raise Opaque("the properties of the look-up are known only when the query runs")
            elif pattern.labels or pattern.alternatives or pattern.properties:
                self._certain = False  # it only drops rows whose node is another one
                self._read_map(thing, pattern)
            if known is not None:
                continue
            if keyword == "CREATE":
                self.acts.append(Action(thing=thing, access="create"))
            elif keyword == "MERGE" and alone:
                names = ",".join(sorted(item.name for item in pattern.properties))
                shape = f"{':'.join(sorted(pattern.labels))} {names}"
                access = f"merge {shape}" if conditional else f"ensure {shape}"
                by_one = len(pattern.properties) == 1
                self.acts.append(Action(thing=thing, access=access, certain=self._certain and by_one, by_one=by_one))
                merged = thing
            elif keyword == "MERGE":
                self.acts.append(Action(thing=thing, access="write"))
            else:
                if alone:
                    finds = self._finds(path) if keyword == "MATCH" else ""
                    self.acts.append(Action(thing=thing, access="read", finds=finds))
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
        """Return the shape of a lone node that is looked up by labels and one property only; empty for other paths."""
        [node, *others] = path.nodes
        plain = not (node.alternatives or node.excluding or node.map_parameter or node.where or others)
        if not plain or not node.labels or len(node.properties) != 1 or self._key(node.properties[0].value) is None:
            return ""
        if not self._changed.isdisjoint((ANYTHING, node.properties[0].name, *node.labels)):
            return ""
        return f"{':'.join(sorted(node.labels))} {node.properties[0].name}"

    def _arrow(
        self, pattern: RelationshipPattern, nodes: Mapping[int, Entity], keyword: str, *, idempotent: bool
    ) -> None:
        thing = self._relationship(pattern, nodes)
        if keyword == "CREATE":
            self.acts.append(Action(thing=thing, access="create"))
            return
        names = [item.name for item in pattern.properties]
        if keyword == "MERGE" and idempotent:
            shape = f"{'|'.join(pattern.types)} {pattern.direction} {','.join(sorted(names))}"
            self.acts.append(Action(thing=thing, access=f"ensure {shape}"))
        elif keyword == "MERGE":
            self.acts.append(Action(thing=thing, access="write"))
        else:
            self.acts.append(Action(thing=thing, access="read"))
            self.searched.append(thing)
        self.acts.extend(Action(thing=thing, access="read", name=name) for name in names)

    def _identify(self, thing: Entity, pattern: NodePattern) -> None:
        for item in pattern.properties:
            key = self._key(item.value)
            if key is not None:
                thing.keys[item.name] = key
            elif (listed := self._listed(item.value)) is not None:
                thing.listed[item.name] = listed

    def _read_map(self, thing: Entity, pattern: NodePattern) -> None:
        self.acts.extend(Action(thing=thing, access="read", name=item.name) for item in pattern.properties)
        labels = (*pattern.labels, *pattern.alternatives)
        self.acts.extend(Action(thing=thing, access="read", label=label) for label in labels)
        if pattern.excluding:
            raise Opaque("a label expression excludes labels")

    def _relationship(self, pattern: RelationshipPattern, nodes: Mapping[int, Entity]) -> Entity:
        if pattern.variable and pattern.variable in self._scope:
            known = self._scope[pattern.variable]
            if known is None or known.kind != "relationship":
                raise Opaque(f"{pattern.variable!r} is not a relationship, but is used as one")
            return known
        if not pattern.types:
            raise Opaque("a relationship of any type is matched")
        if pattern.map_parameter:
            raise Opaque("the properties of a relationship are known only when the query runs")
        sure = pattern.direction != "both" and not pattern.many
        thing = Entity(
            kind="relationship",
            names=set(pattern.types),
            start=nodes[pattern.start.place] if sure else None,
            ends=() if pattern.many else (nodes[pattern.start.place], nodes[pattern.end.place]),
        )
        self.things.append(thing)
        if pattern.variable:
            # With a variable length it is a list, whose items are not tracked.
            self._scope = {**self._scope, pattern.variable: thing}
            if pattern.many:
                raise Opaque("the relationships of a path of variable length have a name")
        return thing

    def _set(self, item: SetItem, *, if_created: bool = False) -> None:
        thing = self._scope.get(item.variable)
        if thing is None:
            raise Opaque(f"{item.variable!r} is set, but is not a node or relationship of a pattern")
        if item.kind == "label":
            thing.names.update(item.names)
            self._changed.update(item.names)
            self.acts.extend(Action(thing=thing, access="write", label=label) for label in item.names)
        elif item.kind == "property":
            pairs = [(item.names[0], item.value)]
            self._write(thing, pairs, if_created=if_created)
        else:
            known = literal_map(self.query, item.value) if item.value is not None and item.kind == "update" else None
            pairs = [(ANYTHING, item.value)] if known is None else [(each.name, each.value) for each in known]
            self._write(thing, pairs, if_created=if_created)
        if item.value is not None:
            self._expression(item.value, writing=thing)

    def _write(self, thing: Entity, pairs: Iterable[tuple[str, range | None]], *, if_created: bool) -> None:
        for name, span in pairs:
            value = None if span is None else self._key(span)
            self._changed.add(name)
            self.acts.append(Action(thing=thing, access="write", name=name, if_created=if_created, value=value))

    def _delete(self, part: DeletePart) -> None:
        for item in part.items:
            name = self.words.identifier(item.expression.start) if len(item.expression) == 1 else ""
            thing = self._scope.get(name)
            if thing is None or thing.kind != "relationship":
                raise Opaque("deleting a node also deletes its relationships")
            self.acts.append(Action(thing=thing, access="write"))
            self.acts.append(Action(thing=thing, access="write", name=ANYTHING))

    def _project(self, part: ProjectionPart, *, last: bool) -> None:
        if part.keyword == "RETURN" and last:
            return  # the result is dropped
        if part.keyword != "WITH" or part.clause.depth:
            raise Opaque(f"{part.keyword} inside a query")
        scope = dict(self._scope) if part.star else {}
        carried: set[str] = set(self._unwound) if part.star else set()
        for item in part.items:
            name = self.words.identifier(item.expression.start) if len(item.expression) == 1 else ""
            if name in self._scope:
                scope[item.alias] = self._scope[name]
                self._derived.setdefault(item.alias, []).extend(self._derived.get(name, ()))
                if item.alias != name:
                    self._unwound.pop(item.alias, None)
                carried.add(item.alias)
                continue
            self._value(item.alias, item.expression)
            if item.alias:
                scope[item.alias] = None
        if any(uses(self.query, item.expression).calls for item in part.items):
            self._certain = False  # an aggregate changes the number of rows
        self._scope = scope
        self._unwound = {name: items for name, items in self._unwound.items() if name in carried}

    def _value(self, name: str, expression: range) -> None:
        """Read the expression of a plain value."""
        self._expression(expression)
        self._unwound.pop(name, None)
        found = uses(self.query, expression)
        sources = [thing for read in found.reads if (thing := self._scope.get(read.variable)) is not None]
        for use in found.variables:
            sources += self._derived.get(use.variable, ())
        # Sources under an earlier meaning of the name stay, which errs on the safe side.
        self._derived.setdefault(name, []).extend(sources)

    def _expression(self, expression: range, *, writing: Entity | None = None) -> None:
        found = uses(self.query, expression)
        if found.subqueries:
            raise Opaque("an expression has a subquery")
        counted = {place for call in found.calls if call.name == "count" for place in call.arguments}
        for call in found.calls:
            self.picks |= call.name in _PICKS
        for read in found.reads:
            thing = self._scope.get(read.variable)
            if thing is not None:
                self.acts.append(Action(thing=thing, access="read", name=read.name))
                if writing is not None and thing is not writing:
                    self.picks = True  # the last of several matches wins
        for test in found.labels:
            thing = self._scope.get(test.variable)
            if thing is None:
                raise Opaque("a label test of a value")
            thing.names.update(test.labels)
            self.acts.extend(Action(thing=thing, access="read", label=label) for label in test.labels)
        for name in {*(use.variable for use in found.variables), *(read.variable for read in found.reads)}:
            sources = self._derived.get(name, ()) if self._scope.get(name) is None else ()
            if writing is not None and any(thing is not writing for thing in sources):
                self.picks = True
        for use in found.variables:
            is_null = self.words.keyword(use.place + 1) == "IS"
            thing = self._scope.get(use.variable)
            if thing is not None and use.place not in counted and not is_null:
                raise Opaque(f"{use.variable!r} is used as a whole")

    def _listed(self, value: range) -> LookupKey | None:
        """Return the values of an item of an unwound list, or of a path into it."""
        tokens = [self.words.tokens[index] for index in value]
        items = self._unwound.get(tokens[0].identifier) if tokens and tokens[0].kind in ("name", "quoted") else None
        dots, names = tokens[1::2], tokens[2::2]
        if items is None or len(tokens) % 2 == 0 or any(dot.text != "." for dot in dots):
            return None
        if any(name.kind not in ("name", "quoted") for name in names):
            return None
        return LookupKey(parameter=items.parameter, path=(*items.path, *(name.identifier for name in names)))

    def _key(self, value: range) -> LookupKey | None:
        tokens = [self.words.tokens[index] for index in value]
        first = tokens[0]
        if first.kind == "param" and len(tokens) % 2 == 1:
            dots, names = tokens[1::2], tokens[2::2]
            if all(dot.text == "." for dot in dots) and all(name.kind in ("name", "quoted") for name in names):
                return LookupKey(parameter=first.identifier, path=tuple(name.identifier for name in names))
        if len(tokens) == 1 and first.kind == "string" and "\\" not in first.text:
            return LookupKey(literal=first.text[1:-1])
        if len(tokens) == 1 and first.kind == "number" and first.text.isdigit():
            return LookupKey(literal=int(first.text))
        return None
