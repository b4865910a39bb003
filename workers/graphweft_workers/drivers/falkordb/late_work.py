"""Work of a mutation after its first write: until the query ends, FalkorDB does nothing else (tried on 4.22).

``MERGE (s:Sum {k: $k}) WITH s UNWIND range(1, 100000) AS x …`` stops the server for all apps. With the work in front of
the first write, others can read and write meanwhile. The rows that reach the first write count as work, too, because
all of them are written at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from graphweft_rules.cypher.clauses import Outline, once
from graphweft_rules.cypher.expressions import AGGREGATES, uses
from graphweft_rules.cypher.named_calls import named_calls
from graphweft_rules.cypher.part_parser import read_parts
from graphweft_rules.cypher.parts import (
    CallPart,
    DeletePart,
    ExpressionPart,
    ForeachPart,
    Part,
    PathPattern,
    PatternError,
    PatternPart,
    ProjectionPart,
    RemovePart,
    SetPart,
    UnionPart,
    UnwindPart,
)

_LISTS: Final = frozenset({"range", "reduce"})
_FEW: Final = 1_000
"""Numbers of a constant ``range()`` that are no work to speak of."""


@once
def works_late(query: Outline) -> bool:
    """Tell whether a mutation may do more than a little work after its first write.

    It does not if all rows before are counted into one, and only plain writes follow. What cannot be read may.
    """
    try:
        return _works_late(query)
    except PatternError:
        return True


def _works_late(query: Outline) -> bool:
    parts = read_parts(query)
    one_row = wrote = False
    for part in parts:
        if isinstance(part, CallPart | ForeachPart | UnionPart):
            return True
        if _writes(part):
            if not one_row:
                return True
            if not wrote:
                wrote = True
                if _has_lists(query, part.clause.words[0]):
                    return True
        elif isinstance(part, PatternPart | UnwindPart):
            if wrote:
                return True
            one_row = False
        elif isinstance(part, ProjectionPart) and not wrote:
            one_row = not part.star and all(_is_aggregate(query, item.expression) for item in part.items)
    return not wrote


def late_work(query: Outline) -> Iterator[tuple[str, int]]:
    """Yield (what it does, offset) for each clause that certainly does much work after the first write.

    Nothing is yielded for what is behind a part that cannot be read, such as a pattern in an expression.
    """
    with suppress(PatternError):
        yield from _late_work(query)


def _late_work(query: Outline) -> Iterator[tuple[str, int]]:
    parts, words = read_parts(query), query.words
    wrote, lists = False, 0
    bound: set[str] = set()
    for number, part in enumerate(parts):
        start = words.tokens[part.clause.words[0]].start
        if isinstance(part, CallPart | UnionPart):
            return  # what is bound behind it is not known
        if isinstance(part, ForeachPart):
            if _is_large_range(query, part.expression):
                yield "writes for each number of a large range()", start
            wrote = True
            bound.add(part.variable)
        elif isinstance(part, UnwindPart):
            used = uses(query, part.expression)
            depends = any(each.variable in bound for each in used.variables)
            depends = depends or any(each.variable in bound for each in used.reads)
            if wrote and _is_large_range(query, part.expression):
                yield "makes a row for each number of a large range()", start
            elif wrote and lists and not depends:
                yield "combines each item of one list with each of another", start
            lists += not depends
            bound.add(part.variable)
        elif isinstance(part, PatternPart):
            reads = part.keyword in ("MATCH", "OPTIONAL MATCH")
            after = parts[number + 1] if number + 1 < len(parts) else None
            filtered = isinstance(after, ExpressionPart) and after.keyword == "WHERE"
            if reads and wrote and not filtered and any(_is_scan(path, bound) for path in part.paths):
                yield "reads all nodes of a label, once for each row", start
            wrote = wrote or not reads
            bound |= _names(part)
        elif isinstance(part, ProjectionPart):
            if not part.star:
                bound = {item.alias for item in part.items}
                lists = 0 if any(_is_aggregate(query, item.expression) for item in part.items) else lists
        elif _writes(part):
            wrote = True


def _writes(part: Part) -> bool:
    if isinstance(part, PatternPart):
        return part.keyword in ("MERGE", "CREATE")
    return isinstance(part, SetPart | RemovePart | DeletePart)


def _is_aggregate(query: Outline, expression: range) -> bool:
    return any(call.name in AGGREGATES for call in uses(query, expression).calls)


def _has_lists(query: Outline, first: int) -> bool:
    """Tell whether the words from ``first`` on make lists or loop over them."""
    loops = any(token.keyword == "IN" for token in query.words.tokens[first:])
    return loops or any(call.place >= first and call.lower in _LISTS for call in named_calls(query))


def _is_large_range(query: Outline, expression: range) -> bool:
    """Tell whether an expression calls ``range()`` for many numbers, as far as they are written there."""
    words = query.words
    for call in named_calls(query):
        if call.lower == "range" and call.place in expression:
            first, comma, last = (words.text(call.opening + number) for number in (1, 2, 3))
            if first.isdigit() and comma == "," and last.isdigit() and int(last) - int(first) > _FEW:
                return True
    return False


def _is_scan(path: PathPattern, bound: set[str]) -> bool:
    """Tell whether no node of a path is known, looked up by a property, or filtered."""
    return not any(
        node.variable in bound or node.properties or node.map_parameter or node.where is not None for node in path.nodes
    ) and not any(
        each.variable in bound or each.properties or each.map_parameter or each.where is not None
        for each in path.relationships
    )


def _names(part: PatternPart) -> set[str]:
    names = {node.variable for path in part.paths for node in path.nodes}
    names |= {each.variable for path in part.paths for each in path.relationships}
    return (names | {path.variable for path in part.paths}) - {""}
