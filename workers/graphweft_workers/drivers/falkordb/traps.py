"""Problems of rule queries on FalkorDB 4.22: it runs them without an error and gets them wrong, or wears out on them.

A check reports only what is certain: after one false warning nobody reads the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from graphweft_rules.cypher.clauses import Clause, Outline, QueryWords
from graphweft_rules.cypher.expressions import uses
from graphweft_rules.cypher.part_parser import read_parts
from graphweft_rules.cypher.parts import (
    ExpressionPart,
    ForeachPart,
    NodePattern,
    Part,
    PathPattern,
    PatternError,
    PatternPart,
    ProjectionPart,
    RelationshipPattern,
    SetPart,
    UnwindPart,
)
from graphweft_rules.cypher.problems import QueryProblem, Role
from graphweft_workers.drivers.falkordb.late_work import late_work


def falkordb_problems(query: Outline, role: Role) -> Iterator[QueryProblem]:
    """Yield the problems of a query, all of them warnings: see ``Dialect.problems``."""
    for name, start in filtered_optionals(query):
        message = (
            f"{name!r} comes from OPTIONAL MATCH as the first clause, and FalkorDB lets its null pass this condition: "
            "put a MATCH or UNWIND before it"
        )
        yield QueryProblem("warning", "optional-first", message, start)
    for text, start in maps_in_patterns(query):
        message = (
            f"{text!r} is a map of a parameter in a pattern, which FalkorDB refuses each time: "
            "name the properties, as in (n:City {name: $map.name})"
        )
        yield QueryProblem("warning", "map-in-pattern", message, start)
    if role == "injection":
        return
    for kind, start in repeated_merges(query):
        message = f"{kind!r} is merged twice, and FalkorDB creates one edge or two: use two mutations"
        yield QueryProblem("warning", "two-merges-one-type", message, start)
    for label, start in path_merges(query):
        message = f"MERGE of a path with {label!r} after UNWIND loses rows on FalkorDB: merge the nodes first"
        yield QueryProblem("warning", "path-merge-many", message, start)
    for name, start in copied_writes(query):
        message = (
            f"{name!r} is copied and overwritten by one SET over several rows, and FalkorDB copies a wrong value: "
            "use two mutations"
        )
        yield QueryProblem("warning", "copy-and-write", message, start)
    for name, start in old_reads(query):
        message = f"{name!r} still has its value from before this SET: repeat the expression, or use two mutations"
        yield QueryProblem("warning", "set-reads-old", message, start)
    for what, start in late_work(query):
        message = (
            f"this {what} after the first write, and until the mutation ends FalkorDB does nothing else, for any app: "
            "do it before the first write"
        )
        yield QueryProblem("warning", "work-after-write", message, start)
    for text, start in names_from_data(query):
        message = (
            f"{text!r} turns keys of the data into property names, of which a FalkorDB graph holds 65,535 and never "
            "removes one, and each new one delays all apps: name the properties, as in SET n.city = $map.city"
        )
        yield QueryProblem("warning", "names-from-data", message, start)


def repeated_merges(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield (relationship type, offset) for each type that an earlier MERGE has merged already.

    The server creates one edge or two, depending on the variables that later clauses use.
    """
    seen: set[str] = set()
    words = query.words
    for clause in query.clauses:
        if clause.keyword != "MERGE":
            continue
        for index in clause.words:
            if words.text(index) != "[" or words.text(index - 1) != "-":
                continue
            colon = index + 2 if words.identifier(index + 1) else index + 1
            kind = words.identifier(colon + 1) if words.text(colon) == ":" else ""
            if kind and kind in seen:
                yield kind, words.tokens[colon + 1].start
            seen.add(kind)


def old_reads(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield (``variable.property``, offset) for each read of a property that the same run of SET wrote before.

    The server runs adjacent SET clauses as one and evaluates each right side with the values from before all of them.
    """
    words = query.words
    written: set[tuple[str, str]] = set()
    previous: Clause | None = None
    for clause in query.clauses:
        if clause.keyword != "SET" or clause.conditional:
            continue
        adjacent = previous and previous.depth == clause.depth and previous.words[-1] + 1 == clause.words[0]
        if not adjacent:
            written.clear()
        previous = clause
        for item in _items(words, clause):
            target = (words.identifier(item[0]), words.identifier(item[0] + 2))
            assigns = words.text(item[0] + 1) == "." and words.text(item[0] + 3) == "="
            for index in item[4:] if assigns else item[1:]:
                read = (words.identifier(index), words.identifier(index + 2))
                is_property = (
                    words.text(index + 1) == "." and words.text(index - 1) != "." and words.text(index + 3) != "("
                )
                if is_property and read in written:
                    yield ".".join(read), words.tokens[index].start
            if assigns:
                written.add(target)


def filtered_optionals(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield (variable, offset of the condition) where ``WITH … WHERE`` tests a variable of a leading OPTIONAL MATCH.

    The server passes on the row of nulls although the condition is false.
    """
    parts = _parts(query)
    if not parts or not isinstance(parts[0], PatternPart) or parts[0].keyword != "OPTIONAL MATCH":
        return
    found = {node.variable for path in parts[0].paths for node in path.nodes} - {""}
    for before, part in pairwise(parts[:3]):
        filters = isinstance(before, ProjectionPart) and isinstance(part, ExpressionPart) and part.keyword == "WHERE"
        if not filters or not isinstance(part, ExpressionPart):
            continue
        used = _uses(query, part.items[0].expression)
        for name in sorted(found & used):
            yield name, query.words.tokens[part.clause.words[0]].start


def path_merges(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield (label, offset) for each MERGE of a path that may create its nodes, after UNWIND.

    If an index finds one of these nodes, the server loses rows, and with them the effect of later clauses.
    """
    many = False
    bound: set[str] = set()
    for part in _parts(query):
        many = many or isinstance(part, UnwindPart)
        if not isinstance(part, PatternPart):
            continue
        for path in part.paths:
            free = [node for node in path.nodes if node.variable not in bound and node.labels and node.properties]
            if many and part.keyword == "MERGE" and path.relationships and free:
                yield free[0].labels[0], query.words.tokens[path.place].start
            bound |= _variables(path)


def copied_writes(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield (``variable.property``, offset) for each copy of a property that the same SET overwrites, after UNWIND.

    Over several rows of one node, the server stores whatever the memory of the copied text holds by then.
    """
    many = False
    for part in _parts(query):
        many = many or isinstance(part, UnwindPart | ForeachPart)
        if not isinstance(part, SetPart) or not many:
            continue
        written = {(item.variable, name) for item in part.items for name in item.names if item.kind == "property"}
        for item in part.items:
            if item.kind != "property" or item.value is None or len(item.value) != 3:
                continue
            words = query.words
            start = item.value.start
            copied = (words.identifier(start), words.identifier(start + 2))
            if words.text(start + 1) == "." and copied in written - {(item.variable, item.names[0])}:
                yield ".".join(copied), words.tokens[start].start


def maps_in_patterns(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield (excerpt, offset) for each pattern whose properties are a parameter."""
    for part in _parts(query):
        if not isinstance(part, PatternPart):
            continue
        for path in part.paths:
            elements: tuple[NodePattern | RelationshipPattern, ...] = (*path.nodes, *path.relationships)
            for each in elements:
                if each.map_parameter:
                    yield f"${each.map_parameter}", query.words.tokens[each.place].start


def names_from_data(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield (excerpt, offset) for each SET of a map of parameters, whose keys become property names."""
    words = query.words
    items: set[str] = set()
    """Variables of UNWIND and FOREACH over parameters."""
    for part in _parts(query):
        if isinstance(part, UnwindPart | ForeachPart) and _is_data(words, part.expression, items):
            items.add(part.variable)
        elif isinstance(part, SetPart):
            for item in part.items:
                if item.kind in ("update", "replace") and item.value and _is_data(words, item.value, items):
                    sign = "+=" if item.kind == "update" else "="
                    yield f"{item.variable} {sign} …", words.tokens[item.place].start


def _is_data(words: QueryWords, span: range, items: set[str]) -> bool:
    """Tell whether an expression is a parameter or an item, or a field of one: ``$p``, ``$p.a``, ``x.a``."""
    if not span or any(words.text(index) != "." for index in span[1::2]) or len(span) % 2 == 0:
        return False
    return words.tokens[span.start].kind == "param" or words.identifier(span.start) in items


def _parts(query: Outline) -> tuple[Part, ...]:
    try:
        return read_parts(query)
    except PatternError:
        return ()


def _uses(query: Outline, span: range) -> set[str]:
    try:
        used = uses(query, span)
    except PatternError:
        return set()
    return {use.variable for use in used.variables} | {read.variable for read in used.reads}


def _variables(path: PathPattern) -> set[str]:
    names = {node.variable for node in path.nodes} | {each.variable for each in path.relationships}
    return names - {""}


def _items(words: QueryWords, clause: Clause) -> Iterator[list[int]]:
    """Yield the words of each item of a SET."""
    item: list[int] = []
    depth = 0
    for index in clause.words[1:]:
        text = words.text(index)
        if text == "," and depth == 0:
            if item:
                yield item
            item = []
            continue
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
        item.append(index)
    if item:
        yield item
