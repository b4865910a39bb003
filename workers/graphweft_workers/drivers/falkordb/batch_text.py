"""The text of a batch query on FalkorDB, written clause by clause; see ``batch_query`` for the method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from graphweft_rules.cypher.expressions import Uses, uses
from graphweft_rules.cypher.part_parser import literal_map
from graphweft_rules.cypher.parts import (
    DeletePart,
    ExpressionPart,
    NodePattern,
    Part,
    PathPattern,
    PatternPart,
    ProjectionItem,
    ProjectionPart,
    Property,
    RelationshipPattern,
    RemovePart,
    SetItem,
    SetPart,
    UnwindPart,
)
from graphweft_workers.drivers.falkordb.batch_effects import (
    ClauseEffect,
    Kind,
    NodePatternKey,
    PropertyAccess,
    RowsRefused,
    check_effects,
    check_function,
    misfit,
)
from graphweft_workers.drivers.falkordb.batch_pieces import Cut, TextPiece, join_pieces
from graphweft_workers.drivers.falkordb.batch_source import (
    OWN,
    Assignment,
    BatchSource,
    assignments,
    column_path,
    conditions,
    elements,
)


@dataclass(slots=True, kw_only=True)
class BatchText:
    """Writes the batch query of a statement; see ``text``."""

    source: BatchSource
    parts: tuple[Part, ...]
    shared: frozenset[str] | None
    kinds: dict[str, Kind] = field(default_factory=dict[str, Kind])
    types: dict[str, str] = field(default_factory=dict[str, str])
    """Variable of a relationship -> its type."""
    labels: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Variable of a node -> the labels in its pattern."""
    optional: set[str] = field(default_factory=set[str])
    matched_relationships: set[str] = field(default_factory=set[str])
    keyed: set[str] = field(default_factory=set[str])
    bindings: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    """For each matched pattern element: its variable, then those that determine which entity it is."""
    derived: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Variable of WITH -> the variables whose properties it is computed from."""
    order: list[str] = field(default_factory=list[str])
    lists: dict[str, str] = field(default_factory=dict[str, str])
    """Variable of a list inside a value of the row -> its place there."""
    effects: list[ClauseEffect] = field(default_factory=list[ClauseEffect])
    pieces: list[TextPiece | Cut] = field(default_factory=list["TextPiece | Cut"])
    markers: int = 0

    def text(self) -> str:
        """Return the text behind ``UNWIND $rows AS __gw_row``. Raises ``RowsRefused`` or ``PatternError``."""
        if not self.parts:
            raise RowsRefused("the query changes nothing")
        position = 0
        while position < len(self.parts):
            position = self._part(position)
        check_effects(self.effects, self.shared)
        return join_pieces(self.pieces, self.source, {**self.source.values, **self.lists}, self.order)

    def _part(self, position: int) -> int:
        """Write one clause and those that belong to it; return the position of the next."""
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
            case _:
                raise RowsRefused(misfit(part))
        return position + 1

    def _uses(self, span: range, known: frozenset[int] = frozenset()) -> Uses:
        """Return the uses of an expression. Raises ``RowsRefused`` unless each row is known to have its own value.

        ``known``: places of variables of which the caller knows what of them is read.
        """
        used = uses(self.source.query, span)
        if used.subqueries:
            raise RowsRefused(f"`{self.source.words.text(used.subqueries[0])} {{…}}` reads the whole graph")
        for test in used.labels:
            raise RowsRefused(f"`{test.variable}:{':'.join(test.labels)}` tests a label, which another row may set")
        for call in used.calls:
            check_function(call.name)
        for use in used.variables:
            kind = self.kinds.get(use.variable)
            if kind is None:
                raise RowsRefused(f"`{use.variable}` is not known here")
            whole = self.source.words.keyword(use.place + 1) != "IS" and use.place not in known
            if kind != "value" and whole:
                raise RowsRefused(f"`{use.variable}` is used as a whole")
        for read in used.reads:
            if read.variable and read.variable not in self.kinds:
                raise RowsRefused(f"`{read.variable}` is not known here")
        return used

    def _reads(self, used: Uses) -> list[PropertyAccess]:
        return [
            self._access(read.variable, read.name)
            for read in used.reads
            if read.variable and self.kinds[read.variable] != "value"
        ]

    def _access(self, variable: str, name: str, *, own: bool = False, at_creation: bool = False) -> PropertyAccess:
        kind = self.kinds[variable]
        return PropertyAccess(
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

    def _pattern(self, part: PatternPart, position: int) -> int:
        effect = ClauseEffect()
        self.effects.append(effect)
        names: set[str] = set()
        for path in part.paths:
            self._path(part, path, effect)
            names |= {element.variable for element in elements(path)}
            for element in elements(path):
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
        piece = TextPiece(text, frozenset(names - {""}))
        if following:
            self._on(part.paths[0], following, effect, piece)
        else:
            self.pieces.append(piece)
        return position

    def _path(self, part: PatternPart, path: PathPattern, effect: ClauseEffect) -> None:
        if path.variable or path.function:
            raise RowsRefused("a path is given a name")
        if part.keyword == "MERGE" and len(path.relationships) > 1:
            raise RowsRefused("MERGE of several relationships at once")
        alone = not path.relationships
        new_names = [node.variable for node in path.nodes if node.variable and node.variable not in self.kinds]
        if len(set(new_names)) < len(new_names):
            raise RowsRefused(f"`{new_names[0]}` appears twice in one path")
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

    def _node(self, part: PatternPart, node: NodePattern, effect: ClauseEffect, *, alone: bool) -> None:
        if node.alternatives or node.excluding or node.map_parameter or node.where is not None:
            raise RowsRefused(f"the pattern of `{node.variable or '( )'}` has more than labels and a map")
        self._key_reads(part, node.properties, effect)
        if node.variable in self.kinds:
            if node.labels or node.properties or alone or self.kinds[node.variable] != "node":
                raise RowsRefused(f"`{node.variable}` is described a second time")
            return
        if alone and not node.labels:
            raise RowsRefused("a lone node pattern has no label")
        if not alone and part.keyword == "MERGE":
            raise RowsRefused("MERGE of a path may create its nodes: merge the nodes first")
        if part.keyword != "CREATE":
            self.bindings.append((node.variable,))
        names = frozenset(entry.name for entry in node.properties)
        labels = frozenset(node.labels)
        signature = NodePatternKey(labels, names, alone, part.keyword == "MERGE")
        if part.keyword != "CREATE":
            effect.node_reads.append(signature)
            effect.reads += (PropertyAccess("node", node.variable, name, "", labels=labels) for name in names)
        if part.keyword in ("MERGE", "CREATE"):
            effect.node_writes.append(signature)

    def _relationship(self, part: PatternPart, pattern: RelationshipPattern, effect: ClauseEffect) -> None:
        if pattern.many:
            raise RowsRefused("a relationship of variable length")
        if pattern.direction == "both":
            raise RowsRefused("a relationship without direction")
        if len(pattern.types) != 1:
            raise RowsRefused("a relationship without exactly one type")
        if pattern.map_parameter or pattern.where is not None:
            raise RowsRefused("the pattern of a relationship has more than a type and a map")
        if pattern.variable in self.kinds:
            raise RowsRefused(f"`{pattern.variable}` is described a second time")
        kind = pattern.types[0]
        if part.keyword != "CREATE":
            self.bindings.append((pattern.variable, pattern.start.variable, pattern.end.variable))
        self._key_reads(part, pattern.properties, effect)
        if part.keyword != "CREATE":
            effect.type_reads.append(kind)
            effect.reads += (
                PropertyAccess("relationship", pattern.variable, entry.name, kind) for entry in pattern.properties
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
        """Raise ``RowsRefused`` if a name meant another entity before a WITH: all knowledge is kept by name."""
        if variable in self.labels or variable in self.types:
            raise RowsRefused(f"`{variable}` has two meanings")

    def _is_determined(self, variable: str) -> bool:
        """Tell whether one row has at most one record for each entity of the variable."""
        known = {variable}
        for binding in self.bindings:
            if binding[0] == variable:
                known |= set(binding)
        return "" not in known and not self.order and all(binding[0] in known for binding in self.bindings)

    def _key_reads(self, part: PatternPart, entries: tuple[Property, ...], effect: ClauseEffect) -> None:
        for entry in entries:
            used = self._uses(entry.value)
            reads = self._reads(used)
            derived = any(self.derived.get(use.variable) for use in used.variables)
            if (reads or derived) and part.keyword == "MERGE":
                raise RowsRefused(f"MERGE takes the key {entry.name!r} from a property, whose type is not known")
            effect.reads += reads

    def _on(self, path: PathPattern, parts: list[SetPart], effect: ClauseEffect, merge: TextPiece) -> None:
        """Write ON CREATE and ON MATCH of a MERGE."""
        target = path.relationships[0].variable if path.relationships else path.nodes[0].variable
        given = [(part.on, assignment) for part in parts for item in part.items for assignment in self._on_items(item)]
        for _, assignment in given:
            if not target or assignment.variable != target:
                raise RowsRefused(f"ON sets a property of `{assignment.variable}`, which this MERGE does not create")
        self._check_maps(item for part in parts for item in part.items)
        effect.on_create = True
        if all(on == "CREATE" and self._constant(assignment.value) for on, assignment in given):
            effect.writes += (self._access(target, assignment.name, at_creation=True) for _, assignment in given)
            items = ", ".join(f"{each.target} = {self.source.text(each.value)}" for _, each in given)
            self.pieces.append(TextPiece(f"{merge.text} ON CREATE SET {items}", merge.names))
            return
        written = self.source.words.text(parts[0].items[0].place)
        marker = f"{written}.{OWN}new{self.markers}"
        self.markers += 1
        self.pieces.append(TextPiece(f"{merge.text} ON CREATE SET {marker} = true", merge.names))
        self.pieces.append(self._cut())
        values: dict[tuple[str, str], str] = {}
        targets: dict[str, str] = {}
        sets = ClauseEffect()
        self.effects.append(sets)
        for on, assignment in given:
            if (on, assignment.name) in values:
                raise RowsRefused(f"ON {on} sets {assignment.name!r} twice")
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
        self.pieces.append(TextPiece(f"SET {items}, {marker} = NULL", names))

    def _on_items(self, item: SetItem) -> Iterator[Assignment]:
        if item.kind == "label":
            raise RowsRefused(f"ON sets a label of `{item.variable}`")
        return assignments(self.source, item)

    def _constant(self, span: range) -> bool:
        used = self._uses(span)
        return not (used.parameters or used.reads or used.variables)

    def _own_reads(self, assignment: Assignment, condition: range | None, effect: ClauseEffect) -> None:
        """Note the reads for the new value of a property: only values and properties of the same variable may occur."""
        reads = [
            (read, read.place in conditions(self.source.words, assignment.value))
            for read in self._uses(assignment.value).reads
        ]
        if condition is not None:
            reads += ((read, True) for read in self._uses(condition).reads)
        copied = {read.name for read, decides in reads if not decides}
        for use in self._uses(assignment.value).variables:
            for source in self.derived.get(use.variable, frozenset()) - {assignment.variable}:
                raise RowsRefused(
                    f"`{assignment.target}` is computed from `{use.variable}`, which comes from `{source}`"
                )
        for read, _ in reads:
            if not read.variable or self.kinds[read.variable] == "value":
                continue
            if read.variable != assignment.variable:
                message = f"`{assignment.target}` depends on `{read.variable}.{read.name}`, which another row may write"
                raise RowsRefused(message)
            own = read.name == assignment.name or read.name not in copied
            effect.reads.append(self._access(read.variable, read.name, own=own))

    def _set(self, items: tuple[SetItem, ...], condition: range | None = None) -> None:
        """Write the items of a SET, under a condition if there is one."""
        effect = ClauseEffect()
        self.effects.append(effect)
        seen: set[tuple[str, str]] = set()
        texts: list[str] = []
        names: set[str] = set(self._names(condition) if condition else ())
        for item in items:
            self._target(item)
            names.add(item.variable)
            if item.kind == "label":
                if condition is not None:
                    raise RowsRefused(f"a label of `{item.variable}` is set under a condition")
                effect.labels += item.names
                texts.append(self.source.text(range(item.place, item.place + 1 + 2 * len(item.names))))
                continue
            for assignment in assignments(self.source, item):
                if (assignment.variable, assignment.name) in seen:
                    raise RowsRefused(f"`{assignment.target}` is set twice")
                seen.add((assignment.variable, assignment.name))
                self._own_reads(assignment, condition, effect)
                effect.writes.append(self._access(assignment.variable, assignment.name))
                value = self.source.text(assignment.value)
                names |= self._names(assignment.value)
                if condition is not None:
                    value = f"CASE WHEN ({self.source.text(condition)}) THEN ({value}) ELSE {assignment.target} END"
                if item.kind == "property" or condition is not None:
                    texts.append(f"{assignment.target} = {value}")
            if item.kind == "update" and item.value is not None and condition is None:
                # Not expanded: later items see what += writes, and do not see what = writes.
                texts.append(self.source.text(range(item.place, item.value.stop)))
        self._check_condition(condition, effect)
        if condition is not None:
            self._check_maps(items)
        self.pieces.append(self._cut())
        self.pieces.append(TextPiece(f"SET {', '.join(texts)}", frozenset(names)))

    def _check_maps(self, items: Iterable[SetItem]) -> None:
        """Raise ``RowsRefused`` if ``+=`` cannot be expanded, because items read what other items write."""
        taken = list(items)
        if any(item.kind == "update" for item in taken) and any(
            self._reads(self._uses(item.value)) for item in taken if item.value is not None
        ):
            raise RowsRefused("SET has `+=` beside items that read properties")

    def _check_condition(self, condition: range | None, effect: ClauseEffect) -> None:
        """Raise ``RowsRefused`` if a condition may give another answer after a record of the same row took effect."""
        if condition is None:
            return
        read = {(each.variable, each.name) for each in uses(self.source.query, condition).reads}
        for written in effect.writes:
            if (written.variable, written.name) in read and not self._is_determined(written.variable):
                raise RowsRefused(
                    f"a condition reads `{written.variable}.{written.name}`, and a row may set it more than once"
                )

    def _target(self, item: SetItem) -> None:
        if self.kinds.get(item.variable, "value") == "value":
            raise RowsRefused(f"`{item.variable}` is not a node or relationship")
        if item.variable in self.optional:
            raise RowsRefused(f"`{item.variable}` of OPTIONAL MATCH may be null where it is set")

    def _remove(self, part: RemovePart) -> None:
        effect = ClauseEffect()
        self.effects.append(effect)
        for item in part.items:
            self._target(item)
            if item.kind != "property":
                raise RowsRefused(f"a label of `{item.variable}` is removed")
            effect.writes.append(self._access(item.variable, item.names[0]))
        text = f"REMOVE {self.source.text(self.source.clause(part))}"
        self.pieces += (
            self._cut(),
            TextPiece(text, frozenset(item.variable for item in part.items)),
        )

    def _delete(self, part: DeletePart, position: int) -> None:
        first = self.parts[0]
        others = all(isinstance(other, ExpressionPart) for other in self.parts[1:position])
        alone = isinstance(first, PatternPart) and first.keyword == "MATCH" and len(first.paths) == 1
        last = position == len(self.parts) - 1
        name = part.items[0].alias if len(part.items) == 1 else ""
        if not (isinstance(first, PatternPart) and others and alone and last and name):
            raise RowsRefused("DELETE is not the last clause after one MATCH of the entity that it deletes")
        path = first.paths[0]
        node = not path.relationships and path.nodes[0].variable == name
        edge = len(path.relationships) == 1 and path.relationships[0].variable == name
        if not (node or edge):
            raise RowsRefused(f"DELETE of `{name}`, which is only a part of the matched path")
        text = (
            f"DETACH DELETE {name}" if node and part.detach else f"DELETE {self.source.text(part.items[0].expression)}"
        )
        self.pieces.append(TextPiece(text, frozenset({name})))

    def _with(self, part: ProjectionPart) -> None:
        if part.distinct:
            raise RowsRefused("DISTINCT compares all rows")
        effect = ClauseEffect()
        self.effects.append(effect)
        kinds: dict[str, Kind] = dict(self.kinds) if part.star else {}
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
                raise RowsRefused("an item of WITH has no name")
            if item.alias in self.kinds:
                raise RowsRefused(f"WITH gives the name `{item.alias}` a new meaning")
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
        piece = (
            TextPiece(f"WITH {text}", frozenset(names))
            if part.star
            else TextPiece(text, frozenset(names), carries=True)
        )
        self.pieces.append(piece)

    def _where(self, part: ExpressionPart) -> None:
        effect = ClauseEffect()
        self.effects.append(effect)
        span = part.items[0].expression
        effect.reads += self._reads(self._uses(span))
        names = self._names(span)
        for name in names & self.optional:
            raise RowsRefused(f"WHERE tests `{name}` of OPTIONAL MATCH")
        self.pieces.append(TextPiece(f"WHERE {self.source.text(span)}", names))

    def _moved_condition(self, position: int) -> ExpressionPart | None:
        """Return the condition at the position, or after a WITH there, if it may move into the SET that follows.

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

    def _renames(self, item: ProjectionItem) -> bool:
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
            raise RowsRefused(f"WHERE tests `{name}` of OPTIONAL MATCH")
        if isinstance(last, SetPart):
            self._set(last.items, span)
        return position + 1

    def _unwind(self, part: UnwindPart) -> None:
        path = column_path(self.source.words, part.expression, {})
        if not path:
            raise RowsRefused("UNWIND takes a list that is not a parameter")
        if part.variable in self.kinds:
            raise RowsRefused(f"UNWIND gives the name `{part.variable}` a new meaning")
        self.effects.append(ClauseEffect())
        index = f"{OWN}i{len(self.order)}"
        values = self.source.text(part.expression)
        if len(part.expression) > 1:  # each access to a map copies the list
            self.lists[f"{OWN}l{len(self.order)}"] = replace(self.source, bound=False).text(part.expression)
            values = f"{OWN}l{len(self.order)}"
        written = self.source.words.text(part.expression.stop + 1)
        # The index gives each item a number, by which items are put back into list order.
        text = f"UNWIND range(0, coalesce(size({values}), 0) - 1) AS {index} UNWIND [{values}[{index}]] AS {written}"
        self.order.append(index)
        self.kinds[part.variable] = "value"
        self.pieces.append(TextPiece(text, frozenset({part.variable}), index=index))

    def _cut(self) -> Cut:
        return Cut(tuple(self.kinds), tuple(self.order))
