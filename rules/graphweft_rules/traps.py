"""Queries that FalkorDB 4.22 runs without complaint and gets wrong, or that wear it out, told from their outline.

Each check is kept simple enough to be sure: a warning that is wrong once is not read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from graphweft_rules.clauses import Clause, Outline, Words
from graphweft_rules.patterns import (
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
    read_parts,
    uses,
)

_OWN_PROPERTIES: Final = frozenset({"partition", "pos", "plan", "done", "note", "app_id", "only", "lock"})


def bare_nodes(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield (clause, offset) for each node pattern that stands alone and may mean graphweft's own nodes.

    It has no label, and no properties either, or one that those nodes have: they say what has taken effect.
    """
    words = query.words
    seen: set[str] = set()
    for clause in query.clauses:
        for index in clause.words:
            name = words.identifier(index + 1)
            end = index + 2 if name else index + 1
            alone = (
                clause.keyword in ("MATCH", "MERGE")
                and words.text(index) == "("
                and (words.keyword(index - 1) in ("MATCH", "MERGE") or words.text(index - 1) in (",", "="))
                and (words.text(end) == ")" or _own_map(words, end))
                and not _leads_away(words, words.closing(index) + 1)
            )
            if alone and name not in seen:
                yield clause.keyword, words.tokens[index].start
            if words.identifier(index) and _names_variable(words, index, clause):
                seen.add(words.identifier(index))


def _own_map(words: Words, brace: int) -> bool:
    """Tell whether a map begins at the index that is empty or names a property that graphweft's own nodes have."""
    inside = range(brace + 1, words.closing(brace))
    return words.text(brace) == "{" and (
        not inside
        or any(words.identifier(index) in _OWN_PROPERTIES and words.text(index + 1) == ":" for index in inside)
    )


def _leads_away(words: Words, index: int) -> bool:
    """Tell whether a relationship that the node must have begins at the index; graphweft's own nodes have none."""
    if words.text(index) in ("--", "<--", "-->"):
        return True
    if words.text(index) not in ("-", "<", "<-", "->"):
        return False
    bracket = next((place for place in range(index, index + 3) if words.text(place) == "["), None)
    if bracket is None:
        return True
    end = words.closing(bracket)
    # A path of length 0 is the node itself.
    return not any(
        words.text(place) == "*" and words.text(place + 1).startswith("0") for place in range(bracket + 1, end)
    )


def _names_variable(words: Words, index: int, clause: Clause) -> bool:
    """Tell whether the name at the index is a variable, where it may be one, a label, a key of a map or a property."""
    before = words.text(index - 1)
    return before in ("(", "[") or words.keyword(index - 1) in ("AS", "YIELD") or clause.keyword in ("WITH", "YIELD")


def repeated_merges(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield (relationship type, offset) for each type that a MERGE before has merged already.

    The server makes one edge or two, depending on what later clauses use.
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
    """Yield (``variable.property``, offset) for each read of what an item before in the same run of SET has written.

    The server runs adjacent SET clauses as one and gives each right side the values from before all of them.
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
    """Yield (variable, offset of the condition) where ``WITH … WHERE`` tests what OPTIONAL MATCH found as first clause.

    The server passes on the row of nulls although the condition does not hold.
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
    """Yield (label, offset) for each MERGE of a path that may create its nodes, behind UNWIND.

    Where an index helps to find one of these nodes, the server loses rows, and with them what later clauses do.
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
    """Yield (``variable.property``, offset) for each copy of a property that the same SET overwrites, behind UNWIND.

    Over several rows of one node the server stores what the copied text's memory holds by then.
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


def names_from_data(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield (what stands there, offset) for each map of parameters whose keys become names of properties."""
    words = query.words
    items: set[str] = set()
    """Variables of UNWIND and FOREACH that run over parameters."""
    for part in _parts(query):
        if isinstance(part, UnwindPart | ForeachPart) and _is_data(words, part.expression, items):
            items.add(part.variable)
        elif isinstance(part, PatternPart) and part.keyword in ("CREATE", "MERGE"):
            for path in part.paths:
                elements: tuple[NodePattern | RelationshipPattern, ...] = (*path.nodes, *path.relationships)
                for each in elements:
                    if each.map_parameter:
                        yield f"${each.map_parameter}", words.tokens[each.place].start
        elif isinstance(part, SetPart):
            for item in part.items:
                if item.kind in ("update", "replace") and item.value and _is_data(words, item.value, items):
                    sign = "+=" if item.kind == "update" else "="
                    yield f"{item.variable} {sign} …", words.tokens[item.place].start


def _is_data(words: Words, span: range, items: set[str]) -> bool:
    """Tell whether an expression is a parameter or one of the items, or inside it: ``$p``, ``$p.a``, ``x.a``."""
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


def _items(words: Words, clause: Clause) -> Iterator[list[int]]:
    """Yield the words between the commas of a SET."""
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
