"""Which rows of a mutation may share a query on FalkorDB (4.22), and the text of that query.

FalkorDB runs a query clause by clause: all rows go through MERGE before the first goes through SET, and MERGE takes
them from the last to the first. Rows of events must take effect one after the other. So a query is accepted as
``ordered`` only where no clause can see what another clause writes for another row; then only the order inside each SET
matters, and ``ORDER BY`` the row's number gives it. Three forms are rewritten to fit: ON CREATE and ON MATCH, a
condition before the last SET, and a conditional FOREACH, each into CASE.

The items of one UNWIND take effect in the order of their list. The server alone takes them in an order of its own that
depends on what is there; so a row whose query has UNWIND runs by the form even when it is alone. There each value of
the row has a variable that is carried on only as far as it is used: WITH copies lists, the row is one, and copying it
for each item would take time that grows with the square of the items.

Two nodes of a query may be one and the same, unless their labels say that they are not: what no rule puts on one node
(``shared`` has all other labels) is on two.

The rules are strict on purpose: whatever is not known to be safe is refused, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from graphweft_rules.batching import ROW, BatchForm
from graphweft_rules.clauses import Outline, Words, outline
from graphweft_rules.patterns import (
    CallPart,
    DeletePart,
    ExpressionPart,
    ForeachPart,
    Item,
    NodePattern,
    Part,
    PathPattern,
    PatternError,
    PatternPart,
    ProjectionPart,
    Property,
    RelationshipPattern,
    RemovePart,
    SetItem,
    SetPart,
    UnionPart,
    UnwindPart,
    Uses,
    literal_map,
    read_parts,
    uses,
)

_OWN: Final = "__gw_"
_NUMBER: Final = f"{_OWN}no"
_VALUE: Final = f"{_OWN}p"
_OWN_NAME: Final = re.compile(rf"\b{_OWN}[a-z]+[0-9]*")
_AGGREGATES: Final = frozenset(
    {*("avg", "collect", "count", "max", "min", "percentilecont", "percentiledisc", "stdev", "stdevp", "sum")}
)
_FUNCTIONS: Final = frozenset(
    {
        *(
            "abs",
            "all",
            "any",
            "ceil",
            "coalesce",
            "date",
            "duration",
            "floor",
            "head",
            "last",
            "left",
            "localdatetime",
        ),
        *("localtime", "ltrim", "none", "point", "range", "replace", "reverse", "right", "round", "rtrim", "sign"),
        *("single", "size", "split", "substring", "tail", "toboolean", "tofloat", "tointeger", "tolower", "tostring"),
        *("toupper", "trim", "vecf32"),
    }
)
"""Functions whose result depends on their arguments alone."""

_Kind = Literal["node", "relationship", "value"]


class _Refused(Exception):
    """The query does not fit; the text says why, for the rule's author."""


@dataclass(frozen=True, slots=True)
class _Signature:
    """By what a clause finds or makes a node."""

    labels: frozenset[str]
    keys: frozenset[str]
    alone: bool
    """No relationship leads to it."""
    merged: bool


@dataclass(frozen=True, slots=True)
class _Access:
    """A read or write of a property by one variable."""

    kind: _Kind
    variable: str
    name: str
    relationship_type: str
    own: bool = False
    """A read for the same variable's own new value: each row sees what the row before it wrote, as it should."""
    at_creation: bool = False
    """A constant that a new node or relationship begins with."""
    labels: frozenset[str] = frozenset()
    """What the pattern of a node says; none: it may have any."""

    def meets(self, other: _Access, shared: frozenset[str] | None) -> bool:
        """Tell whether both may be the same property of the same thing."""
        if self.kind != other.kind or self.name != other.name:
            return False
        if self.kind == "relationship":
            return self.relationship_type == other.relationship_type
        return not _differ(self.labels, other.labels, shared)


def _differ(labels: frozenset[str], others: frozenset[str], shared: frozenset[str] | None) -> bool:
    """Tell whether no node has both these labels and those."""
    if shared is None or not labels or not others:
        return False
    return labels.isdisjoint(others) and shared.isdisjoint(labels | others)


@dataclass(slots=True)
class _Effect:
    """What one clause reads and writes."""

    merges: bool = False
    on_create: bool = False
    node_reads: list[_Signature] = field(default_factory=list[_Signature])
    node_writes: list[_Signature] = field(default_factory=list[_Signature])
    type_reads: list[str] = field(default_factory=list[str])
    type_writes: list[str] = field(default_factory=list[str])
    reads: list[_Access] = field(default_factory=list[_Access])
    writes: list[_Access] = field(default_factory=list[_Access])
    labels: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class _Cut:
    """The place of ``WITH … ORDER BY``: what is visible there, and the ordering variables of UNWIND."""

    visible: tuple[str, ...]
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Text of the result and the variables of the author that it names."""

    text: str
    names: frozenset[str]
    carries: bool = False
    """Whether it is what stands behind a WITH and hides what it does not name."""
    index: str = ""
    """The ordering variable that it makes."""


def falkordb_form(
    statement: str,
    columns: Sequence[str],
    *,
    shared: frozenset[str] | None = None,
) -> BatchForm:
    """Return how rows of a statement run on FalkorDB; never raises, whatever the text.

    ``shared``: see ``batch_form``.
    """
    query = outline(statement)
    columns = tuple(columns)
    try:
        source = _Source(query=query, statement=statement, columns={name: n + 1 for n, name in enumerate(columns)})
        parts = _without_return(query, read_parts(query))
    except PatternError as error:
        word = query.words.text(error.place)
        reason = f"{error.message}, at {word!r}" if word else error.message
        return BatchForm(mode="single", statement=statement, columns=columns, reason=reason)
    except _Refused as refused:
        return BatchForm(mode="single", statement=statement, columns=columns, reason=str(refused))
    try:
        _check_names(query)
        keys = tuple(dict.fromkeys(_keys(source, parts)))
        unwinds = any(isinstance(part, UnwindPart) for part in parts)
        text = _Ordered(source=replace(source, bound=unwinds), parts=parts, shared=shared).text()
        return BatchForm(mode="ordered", statement=text, columns=columns, keys=keys, always=unwinds)
    except (_Refused, PatternError) as refused:
        reason = str(refused)
    try:
        _check_names(query)
        text = _Plain(source=source, parts=parts).text()
        keys = tuple(dict.fromkeys(_keys(source, parts)))
        return BatchForm(mode="disjoint", statement=text, columns=columns, keys=keys, reason=reason)
    except (_Refused, PatternError) as refused:
        reason = reason if reason == str(refused) else f"{reason}; {refused}"
        return BatchForm(mode="single", statement=statement, columns=columns, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The query's text, read."""

    query: Outline
    statement: str
    columns: dict[str, int]
    """Parameter to its index in a row."""
    bound: bool = False
    """Whether the row's values have variables of their own, and the row none."""

    @property
    def words(self) -> Words:
        return self.query.words

    def text(self, span: range) -> str:
        """Return the words as the author wrote them, with the row's values in the place of parameters."""
        tokens = self.words.tokens
        if not span:
            return ""
        parts: list[str] = []
        position = tokens[span.start].start
        for index in span:
            if tokens[index].kind == "param":
                parts += (self.statement[position : tokens[index].start], self.value(tokens[index].identifier))
                position = tokens[index].end
        return "".join(parts) + self.statement[position : tokens[span.stop - 1].end]

    def value(self, parameter: str) -> str:
        """Return the expression of a parameter's value."""
        if parameter not in self.columns:
            raise _Refused(f"the parameter ${parameter} has no value in the rows")
        index = self.columns[parameter]
        return f"{_VALUE}{index - 1}" if self.bound else f"{ROW}[{index}]"

    @property
    def number(self) -> str:
        """The expression of the row's number."""
        return _NUMBER if self.bound else f"{ROW}[0]"

    @property
    def values(self) -> dict[str, str]:
        """Variable of what a row holds to where it stands there; empty unless they are bound."""
        numbered = {f"{_VALUE}{index - 1}": f"{ROW}[{index}]" for index in self.columns.values()}
        return {_NUMBER: f"{ROW}[0]", **numbered} if self.bound else {}

    def clause(self, part: Part) -> range:
        """Return the words of a clause behind its keyword, and of what is inside it."""
        return range(part.clause.words[0] + 1, _end(self.words, part))


def _end(words: Words, part: Part) -> int:
    """Return the index behind the last word of a clause, semicolons aside."""
    stop = part.clause.words[-1] + 1
    while words.text(stop - 1) == ";":
        stop -= 1
    return stop


def _check_names(query: Outline) -> None:
    own = next((word.identifier for word in query.words.tokens if _is_own(word.kind, word.identifier)), "")
    if own:
        raise _Refused(f"the name {own!r} could be one of graphweft's own")


def _is_own(kind: str, name: str) -> bool:
    return kind in ("name", "quoted") and name.startswith(_OWN)


def _without_return(query: Outline, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Leave out a RETURN at the end that has no effect and cannot fail.

    A relationship that it names counts: a query that never uses one does not tell parallel relationships apart.
    """
    if not parts or not isinstance(parts[-1], ProjectionPart) or parts[-1].keyword != "RETURN":
        return parts
    last = parts[-1]
    before = parts[-2] if len(parts) > 1 else last
    writes = isinstance(before, SetPart | RemovePart | DeletePart | ForeachPart) or (
        isinstance(before, PatternPart) and before.keyword in ("MERGE", "CREATE")
    )
    plain = writes and not last.star and not last.clause.depth
    known: set[str] = set()
    for part in parts:
        if isinstance(part, PatternPart):
            known |= {node.variable for path in part.paths for node in path.nodes}
        elif isinstance(part, UnwindPart):
            known.add(part.variable)
        elif isinstance(part, ProjectionPart) and part is not last and not part.star:
            known &= {item.alias for item in part.items}
    for item in last.items:
        used = uses(query, item.expression)
        named = {use.variable for use in used.variables} | {read.variable for read in used.reads}
        one = len(used.variables) + len(used.reads) == 1 and not used.subqueries and not used.labels
        counted = {call.name for call in used.calls} <= {"count"}
        length = len(item.expression) - (3 if used.calls else 0)
        if not (one and counted and length in (1, 3) and named <= known):
            plain = False
    if not plain:
        raise _Refused("RETURN may fail or count: a mutation's result is dropped, so leave RETURN out")
    return parts[:-1]


def _keys(source: _Source, parts: tuple[Part, ...]) -> Iterator[str]:
    """Yield the columns that are keys. ``items.id`` is the field of a map, or of the maps of a list, in a column."""
    lists: dict[str, str] = {}
    for part in parts:
        if isinstance(part, UnwindPart | ForeachPart):
            path = _column_path(source.words, part.expression, lists)
            if path:
                lists[part.variable] = path
        elif isinstance(part, PatternPart) and part.keyword != "CREATE":
            for pattern in part.paths:
                for element in _elements(pattern):
                    for entry in element.properties:
                        yield from _key_columns(source, entry.value, lists)


def _key_columns(source: _Source, span: range, lists: dict[str, str]) -> Iterator[str]:
    whole = _column_path(source.words, span, lists)
    if whole:
        yield whole
        return
    used = uses(source.query, span)
    yield from (name for name, _ in used.parameters)
    for read in used.reads:
        if read.variable in lists:
            yield f"{lists[read.variable]}.{read.name}"
    yield from (lists[use.variable] for use in used.variables if use.variable in lists)


def _column_path(words: Words, span: range, lists: dict[str, str]) -> str:
    """Return the path of ``$p``, ``$p.a``, ``x`` and ``x.a`` for an x that runs over a column; else empty."""
    if not span or len(span) % 2 == 0:
        return ""
    token = words.tokens[span.start]
    head = token.identifier if token.kind == "param" else lists.get(words.identifier(span.start), "")
    fields = [words.identifier(index) for index in range(span.start + 2, span.stop, 2)]
    dots = all(words.text(index) == "." for index in range(span.start + 1, span.stop, 2))
    return ".".join((head, *fields)) if head and dots and all(fields) else ""


def _elements(path: PathPattern) -> tuple[NodePattern | RelationshipPattern, ...]:
    return (*path.nodes, *path.relationships)


def _conditions(words: Words, span: range) -> frozenset[int]:
    """Return the words between WHEN and THEN: what is read there decides and is not copied."""
    inside: set[int] = set()
    depth = 0
    for index in span:
        keyword = words.keyword(index)
        depth += keyword == "WHEN"
        depth -= keyword == "THEN" and depth > 0
        if depth:
            inside.add(index)
    return frozenset(inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assignment:
    """``variable.name = value`` of a SET, one entry of a map given to ``+=`` included."""

    variable: str
    name: str
    target: str
    """``variable.name`` as the author wrote it."""
    value: range


def _assignments(source: _Source, item: SetItem) -> Iterator[_Assignment]:
    """Yield the properties that an item of SET gives values. Raises ``_Refused``."""
    words = source.words
    written = words.text(item.place)
    if item.kind == "property" and item.value is not None:
        target = f"{written}.{words.text(item.place + 2)}"
        yield _Assignment(variable=item.variable, name=item.names[0], target=target, value=item.value)
        return
    entries: tuple[Property, ...] | None = None
    if item.kind == "update" and item.value is not None:
        entries = literal_map(source.query, item.value)
    if entries is None:
        form = "=" if item.kind == "replace" else "+="
        raise _Refused(f"`{item.variable} {form} …` writes properties that the text does not name")
    for entry in entries:
        target = f"{written}.{words.text(entry.place)}"
        yield _Assignment(variable=item.variable, name=entry.name, target=target, value=entry.value)


@dataclass(slots=True, kw_only=True)
class _Ordered:
    """The form in which any rows may share a query; ``text`` raises ``_Refused`` or ``PatternError``."""

    source: _Source
    parts: tuple[Part, ...]
    shared: frozenset[str] | None
    kinds: dict[str, _Kind] = field(default_factory=dict[str, _Kind])
    types: dict[str, str] = field(default_factory=dict[str, str])
    """Variable of a relationship to its type."""
    labels: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Variable of a node to what its pattern says."""
    optional: set[str] = field(default_factory=set[str])
    matched_relationships: set[str] = field(default_factory=set[str])
    keyed: set[str] = field(default_factory=set[str])
    bindings: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    """For each pattern element that may be several things: the variables that say which; its own comes first."""
    derived: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Variable of WITH to those whose properties it is made of."""
    order: list[str] = field(default_factory=list[str])
    lists: dict[str, str] = field(default_factory=dict[str, str])
    """Variable of a list that stands inside a value of the row to its place there."""
    effects: list[_Effect] = field(default_factory=list[_Effect])
    pieces: list[_Piece | _Cut] = field(default_factory=list["_Piece | _Cut"])
    markers: int = 0

    def text(self) -> str:
        """Return the statement behind ``UNWIND $rows AS __gw_row``."""
        if not self.parts:
            raise _Refused("the query changes nothing")
        position = 0
        while position < len(self.parts):
            position = self._part(position)
        _check_effects(self.effects, self.shared)
        return self._joined()

    def _part(self, position: int) -> int:
        """Take one clause, and those that belong to it; return the position of the next."""
        part = self.parts[position]
        match part:
            case PatternPart():
                return self._pattern(part, position)
            case SetPart():
                self._set(part.items)
            case RemovePart():
                self._remove(part)
            case DeletePart():
                self._delete(part, position)
            case ProjectionPart(keyword="WITH"):
                condition = self._moved_condition(position)
                if condition is not None:
                    if not part.star:
                        self.kinds = {item.alias: self.kinds[item.alias] for item in part.items}
                    return self._conditional_set(condition, position + 2)
                self._with(part)
            case ExpressionPart(keyword="WHERE"):
                if self._moved_condition(position) is not None:
                    return self._conditional_set(part, position + 1)
                self._where(part)
            case UnwindPart():
                self._unwind(part)
            case ForeachPart():
                return self._foreach(part, position)
            case _:
                raise _Refused(_unfit(part))
        return position + 1

    # --- expressions ---

    def _uses(self, span: range, known: frozenset[int] = frozenset()) -> Uses:
        """Return what an expression uses. Raises ``_Refused`` for what is not known to be each row's own.

        ``known``: places of variables of which the caller knows what of them is read.
        """
        used = uses(self.source.query, span)
        if used.subqueries:
            raise _Refused(f"`{self.source.words.text(used.subqueries[0])} {{…}}` looks at the whole graph")
        for test in used.labels:
            raise _Refused(f"`{test.variable}:{':'.join(test.labels)}` tests a label, which another row may set")
        for call in used.calls:
            if call.name in _AGGREGATES:
                raise _Refused(f"`{call.name}(…)` aggregates over all rows")
            if call.name not in _FUNCTIONS:
                raise _Refused(f"`{call.name}(…)` is not known to depend on its arguments alone")
        for use in used.variables:
            kind = self.kinds.get(use.variable)
            if kind is None:
                raise _Refused(f"`{use.variable}` is not known here")
            whole = self.source.words.keyword(use.place + 1) != "IS" and use.place not in known
            if kind != "value" and whole:
                raise _Refused(f"`{use.variable}` is used as a whole")
        for read in used.reads:
            if read.variable and read.variable not in self.kinds:
                raise _Refused(f"`{read.variable}` is not known here")
        return used

    def _reads(self, used: Uses) -> list[_Access]:
        return [
            self._access(read.variable, read.name)
            for read in used.reads
            if read.variable and self.kinds[read.variable] != "value"
        ]

    def _access(self, variable: str, name: str, *, own: bool = False, at_creation: bool = False) -> _Access:
        kind = self.kinds[variable]
        return _Access(
            kind,
            variable,
            name,
            self.types.get(variable, ""),
            own=own,
            at_creation=at_creation,
            labels=self.labels.get(variable, frozenset()),
        )

    def _names(self, *spans: range) -> frozenset[str]:
        names: set[str] = set()
        for span in spans:
            used = uses(self.source.query, span)
            names |= {use.variable for use in used.variables} | {read.variable for read in used.reads}
        return frozenset(names - {""})

    # --- clauses ---

    def _pattern(self, part: PatternPart, position: int) -> int:
        effect = _Effect(merges=part.keyword == "MERGE")
        self.effects.append(effect)
        names: set[str] = set()
        for path in part.paths:
            self._path(part, path, effect)
            names |= {element.variable for element in _elements(path)}
            for element in _elements(path):
                names |= self._names(*(entry.value for entry in element.properties))
        text = f"{part.keyword} {self.source.text(self.source.clause(part))}"
        following: list[SetPart] = []
        position += 1
        while position < len(self.parts):
            after = self.parts[position]
            if not isinstance(after, SetPart) or not after.on:
                break
            following.append(after)
            position += 1
        piece = _Piece(text, frozenset(names - {""}))
        if following:
            self._on(part.paths[0], following, effect, piece)
        else:
            self.pieces.append(piece)
        return position

    def _path(self, part: PatternPart, path: PathPattern, effect: _Effect) -> None:
        if path.variable or path.function:
            raise _Refused("a path is given a name")
        if part.keyword == "MERGE" and len(path.relationships) > 1:
            raise _Refused("MERGE of several relationships at once")
        alone = not path.relationships
        new_names = [node.variable for node in path.nodes if node.variable and node.variable not in self.kinds]
        if len(set(new_names)) < len(new_names):
            raise _Refused(f"`{new_names[0]}` stands twice in one path")
        for node in path.nodes:
            self._node(part, node, effect, alone=alone)
        for relationship in path.relationships:
            self._relationship(part, relationship, effect)
        for node in path.nodes:
            if node.variable and node.variable not in self.kinds:
                self._new(node.variable)
                self.kinds[node.variable] = "node"
                self.labels[node.variable] = frozenset(node.labels)
                if node.properties:
                    self.keyed.add(node.variable)
                if part.keyword == "OPTIONAL MATCH":
                    self.optional.add(node.variable)

    def _node(self, part: PatternPart, node: NodePattern, effect: _Effect, *, alone: bool) -> None:
        if node.alternatives or node.excluding or node.map_parameter or node.where is not None:
            raise _Refused(f"the pattern of `{node.variable or '( )'}` has more than labels and a map")
        self._key_reads(part, node.properties, effect)
        if node.variable in self.kinds:
            if node.labels or node.properties or alone or self.kinds[node.variable] != "node":
                raise _Refused(f"`{node.variable}` is described a second time")
            return
        if alone and not node.labels:
            raise _Refused("a node pattern that stands alone has no label")
        if not alone and part.keyword == "MERGE":
            raise _Refused("MERGE of a path may create its nodes: merge the nodes first")
        if part.keyword != "CREATE":
            self.bindings.append((node.variable,))
        names = frozenset(entry.name for entry in node.properties)
        labels = frozenset(node.labels)
        signature = _Signature(labels, names, alone, part.keyword == "MERGE")
        if part.keyword != "CREATE":
            effect.node_reads.append(signature)
            effect.reads += (_Access("node", node.variable, name, "", labels=labels) for name in names)
        if part.keyword in ("MERGE", "CREATE"):
            effect.node_writes.append(signature)

    def _relationship(self, part: PatternPart, pattern: RelationshipPattern, effect: _Effect) -> None:
        if pattern.many:
            raise _Refused("a relationship of variable length")
        if pattern.direction == "both":
            raise _Refused("a relationship without direction")
        if len(pattern.types) != 1:
            raise _Refused("a relationship without exactly one type")
        if pattern.map_parameter or pattern.where is not None:
            raise _Refused("the pattern of a relationship has more than a type and a map")
        if pattern.variable in self.kinds:
            raise _Refused(f"`{pattern.variable}` is described a second time")
        kind = pattern.types[0]
        if part.keyword != "CREATE":
            self.bindings.append((pattern.variable, pattern.start.variable, pattern.end.variable))
        self._key_reads(part, pattern.properties, effect)
        if part.keyword != "CREATE":
            effect.type_reads.append(kind)
            effect.reads += (
                _Access("relationship", pattern.variable, entry.name, kind) for entry in pattern.properties
            )
        if part.keyword in ("MERGE", "CREATE"):
            effect.type_writes.append(kind)
        else:
            self.matched_relationships.add(pattern.variable)
        if pattern.variable:
            self._new(pattern.variable)
            self.kinds[pattern.variable] = "relationship"
            self.types[pattern.variable] = kind
            if pattern.properties or part.keyword == "MERGE":
                self.keyed.add(pattern.variable)
            if part.keyword == "OPTIONAL MATCH":
                self.optional.add(pattern.variable)

    def _new(self, variable: str) -> None:
        """Raise ``_Refused`` when a name stood for something else before a WITH: what is known goes by the name."""
        if variable in self.labels or variable in self.types:
            raise _Refused(f"`{variable}` stands for two things")

    def _told_by(self, variable: str) -> bool:
        """Tell whether one row has at most one record for each thing that the variable stands for."""
        known = {variable}
        for binding in self.bindings:
            if binding[0] == variable:
                known |= set(binding)
        return "" not in known and not self.order and all(binding[0] in known for binding in self.bindings)

    def _key_reads(self, part: PatternPart, entries: tuple[Property, ...], effect: _Effect) -> None:
        for entry in entries:
            used = self._uses(entry.value)
            reads = self._reads(used)
            derived = any(self.derived.get(use.variable) for use in used.variables)
            if (reads or derived) and part.keyword == "MERGE":
                raise _Refused(f"MERGE takes the key {entry.name!r} from a property, whose type is not known")
            effect.reads += reads

    def _on(self, path: PathPattern, parts: list[SetPart], effect: _Effect, merge: _Piece) -> None:
        """Take ON CREATE and ON MATCH of a MERGE."""
        target = path.relationships[0].variable if path.relationships else path.nodes[0].variable
        given = [(part.on, assignment) for part in parts for item in part.items for assignment in self._on_items(item)]
        for _, assignment in given:
            if not target or assignment.variable != target:
                raise _Refused(f"ON sets a property of `{assignment.variable}`, which this MERGE does not make")
        self._check_maps(item for part in parts for item in part.items)
        effect.on_create = True
        if all(on == "CREATE" and self._constant(assignment.value) for on, assignment in given):
            effect.writes += (self._access(target, assignment.name, at_creation=True) for _, assignment in given)
            items = ", ".join(f"{each.target} = {self.source.text(each.value)}" for _, each in given)
            self.pieces.append(_Piece(f"{merge.text} ON CREATE SET {items}", merge.names))
            return
        written = self.source.words.text(parts[0].items[0].place)
        marker = f"{written}.{_OWN}new{self.markers}"
        self.markers += 1
        self.pieces.append(_Piece(f"{merge.text} ON CREATE SET {marker} = true", merge.names))
        self.pieces.append(self._cut())
        values: dict[tuple[str, str], str] = {}
        targets: dict[str, str] = {}
        sets = _Effect()
        self.effects.append(sets)
        for on, assignment in given:
            if (on, assignment.name) in values:
                raise _Refused(f"ON {on} sets {assignment.name!r} twice")
            values[on, assignment.name] = f"({self.source.text(assignment.value)})"
            targets[assignment.name] = assignment.target
            self._own_reads(assignment, None, sets)
        sets.writes += (self._access(target, name) for name in targets)
        items = ", ".join(
            f"{written_to} = CASE WHEN {marker} THEN {values.get(('CREATE', name), written_to)} "
            f"ELSE {values.get(('MATCH', name), written_to)} END"
            for name, written_to in targets.items()
        )
        names = self._names(*(assignment.value for _, assignment in given)) | {target}
        self.pieces.append(_Piece(f"SET {items}, {marker} = NULL", names))

    def _on_items(self, item: SetItem) -> Iterator[_Assignment]:
        if item.kind == "label":
            raise _Refused(f"ON sets a label of `{item.variable}`")
        return _assignments(self.source, item)

    def _constant(self, span: range) -> bool:
        used = self._uses(span)
        return not (used.parameters or used.reads or used.variables)

    def _own_reads(self, assignment: _Assignment, condition: range | None, effect: _Effect) -> None:
        """Note what the new value of a property is made of: values, and properties of the same variable."""
        reads = [
            (read, read.place in _conditions(self.source.words, assignment.value))
            for read in self._uses(assignment.value).reads
        ]
        if condition is not None:
            reads += ((read, True) for read in self._uses(condition).reads)
        copied = {read.name for read, decides in reads if not decides}
        for use in self._uses(assignment.value).variables:
            for source in self.derived.get(use.variable, frozenset()) - {assignment.variable}:
                raise _Refused(f"`{assignment.target}` is made of `{use.variable}`, which comes from `{source}`")
        for read, _ in reads:
            if not read.variable or self.kinds[read.variable] == "value":
                continue
            if read.variable != assignment.variable:
                message = f"`{assignment.target}` is made of `{read.variable}.{read.name}`, which another row may write"
                raise _Refused(message)
            own = read.name == assignment.name or read.name not in copied
            effect.reads.append(self._access(read.variable, read.name, own=own))

    def _set(
        self,
        items: tuple[SetItem, ...],
        condition: range | None = None,
        *,
        negated: bool = False,
        loop: str = "",
    ) -> None:
        """Take the items of a SET, under a condition if there is one; ``loop`` is the variable of a FOREACH."""
        effect = _Effect()
        self.effects.append(effect)
        seen: set[tuple[str, str]] = set()
        texts: list[str] = []
        names: set[str] = set(self._names(condition) if condition else ())
        for item in items:
            self._target(item)
            names.add(item.variable)
            if item.kind == "label":
                if condition is not None:
                    raise _Refused(f"a label of `{item.variable}` is set under a condition")
                effect.labels += item.names
                texts.append(self.source.text(range(item.place, item.place + 1 + 2 * len(item.names))))
                continue
            for assignment in _assignments(self.source, item):
                if (assignment.variable, assignment.name) in seen:
                    raise _Refused(f"`{assignment.target}` is set twice")
                seen.add((assignment.variable, assignment.name))
                self._own_reads(assignment, condition, effect)
                effect.writes.append(self._access(assignment.variable, assignment.name))
                value = self.source.text(assignment.value)
                used = self._names(assignment.value)
                if loop in used:
                    raise _Refused(f"FOREACH uses `{loop}`")
                names |= used
                if condition is not None:
                    yes, no = (assignment.target, f"({value})") if negated else (f"({value})", assignment.target)
                    value = f"CASE WHEN ({self.source.text(condition)}) THEN {yes} ELSE {no} END"
                if item.kind == "property" or condition is not None:
                    texts.append(f"{assignment.target} = {value}")
            if item.kind == "update" and item.value is not None and condition is None:
                # Not written out: the server shows what += writes to items behind it, and what = writes it does not.
                texts.append(self.source.text(range(item.place, item.value.stop)))
        self._check_condition(condition, effect)
        if condition is not None:
            self._check_maps(items)
        self.pieces.append(self._cut())
        self.pieces.append(_Piece(f"SET {', '.join(texts)}", frozenset(names)))

    def _check_maps(self, items: Iterable[SetItem]) -> None:
        """Raise ``_Refused`` when ``+=`` cannot be written out, because items read what other items write."""
        taken = list(items)
        if any(item.kind == "update" for item in taken) and any(
            self._reads(self._uses(item.value)) for item in taken if item.value is not None
        ):
            raise _Refused("`+=` stands beside items that read properties")

    def _check_condition(self, condition: range | None, effect: _Effect) -> None:
        """Raise ``_Refused`` when a condition that is asked before all records is not one that is asked in between."""
        if condition is None:
            return
        read = {(each.variable, each.name) for each in uses(self.source.query, condition).reads}
        for written in effect.writes:
            if (written.variable, written.name) in read and not self._told_by(written.variable):
                raise _Refused(
                    f"a condition reads `{written.variable}.{written.name}`, and a row may set it more than once"
                )

    def _target(self, item: SetItem) -> None:
        if self.kinds.get(item.variable, "value") == "value":
            raise _Refused(f"`{item.variable}` is no node or relationship")
        if item.variable in self.optional:
            raise _Refused(f"`{item.variable}` of OPTIONAL MATCH may be null where it is set")

    def _remove(self, part: RemovePart) -> None:
        effect = _Effect()
        self.effects.append(effect)
        for item in part.items:
            self._target(item)
            if item.kind != "property":
                raise _Refused(f"a label of `{item.variable}` is removed")
            effect.writes.append(self._access(item.variable, item.names[0]))
        text = f"REMOVE {self.source.text(self.source.clause(part))}"
        self.pieces += (self._cut(), _Piece(text, frozenset(item.variable for item in part.items)))

    def _delete(self, part: DeletePart, position: int) -> None:
        first = self.parts[0]
        others = all(isinstance(other, ExpressionPart) for other in self.parts[1:position])
        alone = isinstance(first, PatternPart) and first.keyword == "MATCH" and len(first.paths) == 1
        last = position == len(self.parts) - 1
        name = part.items[0].alias if len(part.items) == 1 else ""
        if not (isinstance(first, PatternPart) and others and alone and last and name):
            raise _Refused("DELETE does not stand last behind one MATCH of what it deletes")
        path = first.paths[0]
        node = not path.relationships and path.nodes[0].variable == name
        edge = len(path.relationships) == 1 and path.relationships[0].variable == name
        if not (node or edge):
            raise _Refused(f"DELETE of `{name}`, which is only a part of the path that is matched")
        text = (
            f"DETACH DELETE {name}" if node and part.detach else f"DELETE {self.source.text(part.items[0].expression)}"
        )
        self.pieces.append(_Piece(text, frozenset({name})))

    def _with(self, part: ProjectionPart) -> None:
        if part.distinct:
            raise _Refused("DISTINCT looks at all rows")
        effect = _Effect()
        self.effects.append(effect)
        kinds: dict[str, _Kind] = dict(self.kinds) if part.star else {}
        names: set[str] = set(self.kinds) if part.star else set()
        texts = ["*"] if part.star else []
        for item in part.items:
            text = self.source.text(item.expression)
            if len(item.expression) == 1 and item.alias in self.kinds and not self._renames(item):
                kinds[item.alias] = self.kinds[item.alias]
                names.add(item.alias)
                texts.append(text)
                continue
            if not item.alias:
                raise _Refused("an item of WITH has no name")
            if item.alias in self.kinds:
                raise _Refused(f"WITH gives the name `{item.alias}` a new meaning")
            used = self._uses(item.expression)
            reads = self._reads(used)
            effect.reads += reads
            names |= self._names(item.expression)
            kinds[item.alias] = "value"
            sources = {read.variable for read in reads}
            for use in used.variables:
                sources |= self.derived.get(use.variable, frozenset())
            self.derived[item.alias] = frozenset(sources)
            texts.append(f"{text} AS {self.source.words.text(item.expression.stop + 1)}")
        self.kinds = kinds
        text = ", ".join(texts)
        piece = _Piece(f"WITH {text}", frozenset(names)) if part.star else _Piece(text, frozenset(names), carries=True)
        self.pieces.append(piece)

    def _where(self, part: ExpressionPart) -> None:
        effect = _Effect()
        self.effects.append(effect)
        span = part.items[0].expression
        effect.reads += self._reads(self._uses(span))
        names = self._names(span)
        for name in names & self.optional:
            raise _Refused(f"WHERE tests `{name}` of OPTIONAL MATCH")
        self.pieces.append(_Piece(f"WHERE {self.source.text(span)}", names))

    def _moved_condition(self, position: int) -> ExpressionPart | None:
        """Return the condition at the position, or behind a WITH there, when it may move into the SET behind it.

        That SET is the last clause. The condition reads what it writes, so it must be asked row by row; where it does
        not, it stays where it is and fewer things are touched.
        """
        part = self.parts[position]
        if isinstance(part, ProjectionPart):
            carried = {item.alias for item in part.items if len(item.expression) == 1} | set(
                self.kinds if part.star else ()
            )
            simple = not part.distinct and all(
                len(item.expression) == 1 and item.alias in self.kinds and not self._renames(item)
                for item in part.items
            )
            position += 1
        else:
            carried, simple = set[str](), True
        if not simple or position + 2 != len(self.parts):
            return None
        where, last = self.parts[position], self.parts[position + 1]
        if not (isinstance(where, ExpressionPart) and where.keyword == "WHERE" and isinstance(last, SetPart)):
            return None
        span = where.items[0].expression
        read = {(entry.variable, entry.name) for entry in uses(self.source.query, span).reads}
        targets = {item.variable for item in last.items}
        written = {(item.variable, name) for item in last.items for name in self._written(item)}
        counted = (carried & self.matched_relationships) - targets - {name for name, _ in read}
        return where if read & written and targets <= self.keyed and not counted else None

    def _renames(self, item: Item) -> bool:
        return self.source.words.identifier(item.expression.start) != item.alias

    def _written(self, item: SetItem) -> tuple[str, ...]:
        if item.kind == "property":
            return item.names
        entries = literal_map(self.source.query, item.value) if item.kind == "update" and item.value else None
        return tuple(entry.name for entry in entries or ())

    def _conditional_set(self, where: ExpressionPart, position: int) -> int:
        last = self.parts[position]
        span = where.items[0].expression
        for name in self._names(span) & self.optional:
            raise _Refused(f"WHERE tests `{name}` of OPTIONAL MATCH")
        if isinstance(last, SetPart):
            self._set(last.items, span)
        return position + 1

    def _unwind(self, part: UnwindPart) -> None:
        path = _column_path(self.source.words, part.expression, {})
        if not path:
            raise _Refused("UNWIND takes a list that is no parameter")
        if part.variable in self.kinds:
            raise _Refused(f"UNWIND gives the name `{part.variable}` a new meaning")
        self.effects.append(_Effect())
        index = f"{_OWN}i{len(self.order)}"
        values = self.source.text(part.expression)
        if len(part.expression) > 1:  # each look into a map copies the list as well
            self.lists[f"{_OWN}l{len(self.order)}"] = replace(self.source, bound=False).text(part.expression)
            values = f"{_OWN}l{len(self.order)}"
        written = self.source.words.text(part.expression.stop + 1)
        # Two steps, so that rows can be told apart and put back into the list's order.
        text = f"UNWIND range(0, coalesce(size({values}), 0) - 1) AS {index} UNWIND [{values}[{index}]] AS {written}"
        self.order.append(index)
        self.kinds[part.variable] = "value"
        self.pieces.append(_Piece(text, frozenset({part.variable}), index=index))

    def _foreach(self, part: ForeachPart, position: int) -> int:
        """Take ``FOREACH (x IN CASE WHEN condition THEN [1] ELSE [] END | SET …)``."""
        depth = part.clause.depth + 1
        inner: list[Part] = []
        while position + 1 < len(self.parts) and self.parts[position + 1].clause.depth >= depth:
            position += 1
            inner.append(self.parts[position])
        condition, negated = _one_or_none(self.source.words, part.expression)
        if condition is None or len(inner) != 1 or not isinstance(inner[0], SetPart):
            raise _Refused("FOREACH is more than one SET under CASE WHEN … THEN [1] ELSE [] END")
        for name in self._names(condition) & self.optional:
            raise _Refused(f"FOREACH tests `{name}` of OPTIONAL MATCH")
        self._set(inner[0].items, condition, negated=negated, loop=part.variable)
        return position + 1

    # --- the text ---

    def _cut(self) -> _Cut:
        return _Cut(tuple(self.kinds), tuple(self.order))

    def _joined(self) -> str:
        """Join the pieces; each cut carries on what pieces behind it name, and nothing else.

        A relationship that is carried on but not used would make the server tell parallel ones apart.
        """
        bound = {**self.source.values, **self.lists}
        own = (*bound, *self.order)
        texts: list[str] = []
        later: set[str] = set()
        for piece in reversed(self.pieces):
            carried = [name for name in own if name in later] if bound else [ROW]
            if isinstance(piece, _Piece):
                text = f"WITH {', '.join([*carried, piece.text])}" if piece.carries else piece.text
                later |= piece.names
            else:
                names = [*carried, *(_quoted(name) for name in piece.visible if name in later)]
                text = f"WITH {', '.join(names)} ORDER BY {', '.join([self.source.number, *piece.order])}"
            later.update(_OWN_NAME.findall(text))
            if isinstance(piece, _Piece):
                later.discard(piece.index)
            texts.append(text)
        head = [f"{place} AS {name}" for name, place in bound.items() if name in later]
        if head:
            texts.append(f"WITH {', '.join(head)}")
        return " ".join(reversed(texts))


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f"`{name}`"


def _one_or_none(words: Words, span: range) -> tuple[range | None, bool]:
    """Return the condition of ``CASE WHEN condition THEN [1] ELSE [] END``, and whether the lists stand the other way.

    None for anything else.
    """
    tail = range(span.stop - 8, span.stop)
    texts = ["1" if words.tokens[index].kind == "number" else words.text(index).upper() for index in tail]
    condition = range(span.start + 2, span.stop - 8)
    starts = words.keyword(span.start) == "CASE" and words.keyword(span.start + 1) == "WHEN"
    plain = not {"WHEN", "THEN", "CASE", "ELSE"} & {words.keyword(index) for index in condition}
    if condition and starts and plain and texts == ["THEN", "[", "1", "]", "ELSE", "[", "]", "END"]:
        return condition, False
    if condition and starts and plain and texts == ["THEN", "[", "]", "ELSE", "[", "1", "]", "END"]:
        return condition, True
    return None, False


def _unfit(part: Part) -> str:
    match part:
        case CallPart():
            return "CALL may look at the whole graph"
        case UnionPart():
            return "UNION joins two queries"
        case ProjectionPart():
            return f"{part.keyword} is not the end of the query"
        case ExpressionPart():
            keyword = "ORDER BY" if part.keyword == "ORDER" else part.keyword
            return f"{keyword} looks at all rows"
        case _:
            return f"{part.clause.keyword} does not fit"


def _check_effects(effects: list[_Effect], shared: frozenset[str] | None) -> None:
    """Raise ``_Refused`` when one clause may see what another writes for another row."""
    for first, writer in enumerate(effects):
        for second, reader in enumerate(effects):
            if first != second:
                _check_nodes(writer, reader)
                _check_types(writer, reader)
        for written in writer.writes:
            _check_property(effects, first, written, shared)
        for label in writer.labels:
            patterns = [each for effect in effects for each in (*effect.node_reads, *effect.node_writes)]
            if any(label in pattern.labels for pattern in patterns):
                raise _Refused(f"the label {label!r} is set and stands in a pattern")


def _check_nodes(writer: _Effect, reader: _Effect) -> None:
    for made in writer.node_writes:
        for sought in reader.node_reads:
            if not sought.alone:
                continue  # a relationship leads to it, and the types that the query makes are none that it matches
            same = (made.labels, made.keys) == (sought.labels, sought.keys)
            if same and (writer.on_create or reader.on_create):
                raise _Refused(f"two clauses merge the same kind of node ({_named(made)}), and one has ON")
            if same and made.merged and sought.merged:
                continue
            if sought.labels <= made.labels and sought.keys <= made.keys:
                raise _Refused(f"a node that one clause creates ({_named(made)}) may be matched by another")


def _check_types(writer: _Effect, reader: _Effect) -> None:
    for kind in set(writer.type_writes) & set(reader.type_reads):
        raise _Refused(f"a relationship {kind!r} that one clause creates may be matched by another")


def _check_property(effects: list[_Effect], number: int, written: _Access, shared: frozenset[str] | None) -> None:
    for other_number, other in enumerate(effects):
        for also in other.writes:
            same = (number, written.variable) == (other_number, also.variable)
            begins = (written.at_creation or also.at_creation) and written.variable == also.variable
            if written.meets(also, shared) and not same and not begins:
                raise _Refused(f"the property {written.name!r} is written in two places")
        for read in other.reads:
            own = read.own and read.variable == written.variable and (number == other_number or written.at_creation)
            if written.meets(read, shared) and not own:
                raise _Refused(f"the property {written.name!r} is written in one place and read in another")


def _named(signature: _Signature) -> str:
    return ":".join(("", *sorted(signature.labels))) or "without a label"


@dataclass(slots=True, kw_only=True)
class _Plain:
    """The form for rows that touch nothing in common: the query as it is, with the row's values."""

    source: _Source
    parts: tuple[Part, ...]
    bound: set[str] = field(default_factory=set[str])
    values: set[str] = field(default_factory=set[str])
    """Variables that come from parameters alone."""

    def text(self) -> str:
        """Return the statement; raises ``_Refused`` or ``PatternError``."""
        self._check()
        edits: list[tuple[int, str]] = []
        tokens = self.source.words.tokens
        for part in self.parts:
            if isinstance(part, ProjectionPart) and not part.star:
                edits.append((tokens[part.clause.words[0]].end, f" {ROW},"))
        start = tokens[self.parts[0].clause.words[0]].start
        first = self.source.words.keyword(0)
        if first in ("OPTIONAL", "DETACH"):
            start = tokens[0].start
        end = tokens[max(_end(self.source.words, part) for part in self.parts) - 1].end
        for token in tokens:
            if token.kind == "param" and token.start < end:
                edits.append((token.start, ""))
        return self._edited(start, end, sorted(edits))

    def _edited(self, start: int, end: int, edits: list[tuple[int, str]]) -> str:
        params = {token.start: token for token in self.source.words.tokens if token.kind == "param"}
        parts: list[str] = []
        position = start
        for place, added in edits:
            parts.append(self.source.statement[position:place])
            position = place
            if added:
                parts.append(added)
            else:
                parts.append(self.source.value(params[place].identifier))
                position = params[place].end
        return "".join(parts) + self.source.statement[position:end]

    def _check(self) -> None:
        if not self.parts:
            raise _Refused("the query changes nothing")
        first = self.parts[0]
        if isinstance(first, PatternPart) and first.keyword == "OPTIONAL MATCH":
            raise _Refused("OPTIONAL MATCH is the first clause")
        merged: set[str] = set()
        keys = {
            entry.name
            for part in self.parts
            if isinstance(part, PatternPart) and part.keyword != "CREATE"
            for path in part.paths
            for element in _elements(path)
            for entry in element.properties
        }
        for position, part in enumerate(self.parts):
            match part:
                case PatternPart():
                    self._patterns(part, self.parts[position + 1 : position + 2], merged)
                case SetPart() | RemovePart():
                    for item in part.items:
                        self._expression(item.value)
                        self._keeps(item, keys)
                case DeletePart():
                    pass
                case ProjectionPart(keyword="WITH", distinct=False):
                    for projected in part.items:
                        self._expression(projected.expression)
                        self._bind(projected.alias, projected.expression)
                case ExpressionPart(keyword="WHERE"):
                    self._expression(part.items[0].expression)
                case UnwindPart() | ForeachPart():
                    self._expression(part.expression)
                    self._bind(part.variable, part.expression)
                case ProjectionPart(keyword="WITH"):
                    raise _Refused("DISTINCT looks at all rows")
                case _:
                    raise _Refused(_unfit(part))

    def _expression(self, span: range | None) -> None:
        if span is None:
            return
        used = uses(self.source.query, span)
        for call in used.calls:
            if call.name in _AGGREGATES:
                raise _Refused(f"`{call.name}(…)` aggregates over all rows")
        if used.subqueries:
            raise _Refused(f"`{self.source.words.text(used.subqueries[0])} {{…}}` looks at the whole graph")

    def _keeps(self, item: SetItem, keys: set[str]) -> None:
        """Raise ``_Refused`` when an item may change by what rows are told apart."""
        entries = literal_map(self.source.query, item.value) if item.value is not None else None
        names = set(item.names) if item.kind == "property" else {entry.name for entry in entries or ()}
        for name in names & keys:
            raise _Refused(f"the key {name!r} is written")
        if item.kind == "replace":
            raise _Refused(f"`{item.variable} = …` replaces all properties")

    def _patterns(self, part: PatternPart, after: tuple[Part, ...], merged: set[str]) -> None:
        where = next((each for each in after if isinstance(each, ExpressionPart)), None)
        keyed: set[str] = set(self.bound) | (self._compared(where.items[0].expression) if where else set())
        for path in part.paths:
            for element in _elements(path):
                if element.where is not None or element.map_parameter:
                    raise _Refused("a pattern has more than labels and a map")
                for entry in element.properties:
                    self._expression(entry.value)
            for relationship in path.relationships:
                if relationship.many or path.function:
                    raise _Refused("a path of variable length may touch any node")
                if part.keyword == "MERGE" and merged & set(relationship.types):
                    raise _Refused(f"{relationship.types[0]!r} is merged twice")
                if part.keyword == "MERGE":
                    merged |= set(relationship.types)
            found = any(node.variable in keyed or self._is_keyed(node.properties) for node in path.nodes)
            if part.keyword != "CREATE" and not found:
                raise _Refused(f"{part.keyword} of a path in which no node is found by a parameter")
            self.bound |= {node.variable for node in path.nodes if node.variable}
            self.bound |= {each.variable for each in path.relationships if each.variable}

    def _is_keyed(self, entries: tuple[Property, ...]) -> bool:
        return any(self._is_given(entry.value) for entry in entries)

    def _is_given(self, span: range) -> bool:
        """Tell whether an expression is made of the row's values, and of nothing that the graph says."""
        used = uses(self.source.query, span)
        named = {use.variable for use in used.variables} | {read.variable for read in used.reads}
        return named <= self.values and bool(named or used.parameters)

    def _bind(self, name: str, span: range) -> None:
        if self._is_given(span):
            self.values.add(name)
        self.bound.add(name)

    def _compared(self, span: range) -> set[str]:
        """Return the variables that the condition asks ``variable.name = $parameter`` of, whatever else it asks."""
        words = self.source.words
        if any(words.keyword(index) in ("OR", "XOR", "NOT") for index in span):
            return set()
        return {
            words.identifier(index)
            for index in span
            if words.text(index + 1) == "."
            and words.text(index + 3) == "="
            and index + 4 in span
            and words.tokens[index + 4].kind == "param"
            and (index == span.start or words.keyword(index - 1) == "AND")
            and (index + 5 == span.stop or words.keyword(index + 5) == "AND")
        }
