"""Batch queries on FalkorDB (checked on 4.22): which rows of a mutation may share a query, and its text.

FalkorDB runs a query clause by clause: all rows go through MERGE before the first row goes through SET, and MERGE takes
the rows from last to first. Rows must take effect one after the other, so rows may share a query only if no clause can
see what another clause writes for another row. Then only the order inside each SET matters, and ``ORDER BY`` the row's
number sets it. Two forms are rewritten to fit, both into CASE: ON CREATE and ON MATCH, and a condition before the last
SET.

The items of an UNWIND take effect in list order. Left alone, the server takes them in an order that depends on the
graph, so a query with UNWIND runs as a batch query even for one row. In it, each value of the row has a variable that
is carried only as far as it is used: WITH copies lists, and carrying the whole row would take time quadratic in the
number of items.

Two nodes of a query may be the same node unless their labels differ and are not in ``shared``.

The checks are strict: whatever is not known to be safe is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from graphweft_rules.cypher.batch_query import BatchQuery
from graphweft_rules.cypher.clauses import Outline
from graphweft_rules.cypher.expressions import uses
from graphweft_rules.cypher.part_parser import read_parts
from graphweft_rules.cypher.parts import (
    DeletePart,
    ForeachPart,
    Part,
    PatternError,
    PatternPart,
    ProjectionPart,
    RemovePart,
    SetPart,
    UnwindPart,
)
from graphweft_workers.drivers.falkordb.batch_effects import RowsRefused
from graphweft_workers.drivers.falkordb.batch_source import OWN, BatchSource, column_path, elements
from graphweft_workers.drivers.falkordb.batch_text import BatchText


def falkordb_batch_query(query: Outline, columns: Sequence[str], *, shared: frozenset[str] | None = None) -> BatchQuery:
    """Return how rows of a statement run on FalkorDB: see ``Dialect.batch_query``. Never raises."""
    columns = tuple(columns)
    keys: tuple[str, ...] = ()
    try:
        source = BatchSource(query=query, columns={name: n + 1 for n, name in enumerate(columns)})
        parts = read_parts(query)
        keys = tuple(dict.fromkeys(_keys(source, parts)))  # also of rows that run one by one
        parts = _without_return(query, parts)
        _check_names(query)
        unwinds = any(isinstance(part, UnwindPart) for part in parts)
        text = BatchText(source=replace(source, bound=unwinds), parts=parts, shared=shared).text()
    except PatternError as error:
        word = query.words.text(error.place)
        reason = f"{error.message}, at {word!r}" if word else error.message
    except RowsRefused as refused:
        reason = str(refused)
    else:
        return BatchQuery(mode="ordered", statement=text, columns=columns, keys=keys, always=unwinds)
    return BatchQuery(mode="single", statement=query.text, columns=columns, keys=keys, reason=reason)


def _check_names(query: Outline) -> None:
    own = next((word.identifier for word in query.words.tokens if _is_own(word.kind, word.identifier)), "")
    if own:
        raise RowsRefused(f"the name {own!r} is reserved for graphweft")


def _is_own(kind: str, name: str) -> bool:
    return kind in ("name", "quoted") and name.startswith(OWN)


def _without_return(query: Outline, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the parts without a final RETURN, if that has no effect and cannot fail. Raises ``RowsRefused`` otherwise.

    A RETURN of a relationship has an effect: the server tells parallel relationships apart only if they are used.
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
        raise RowsRefused("RETURN may fail or aggregate: remove it, because a mutation's result is dropped")
    return parts[:-1]


def _keys(source: BatchSource, parts: tuple[Part, ...]) -> Iterator[str]:
    """Yield ``BatchQuery.keys``."""
    lists: dict[str, str] = {}
    for part in parts:
        if isinstance(part, UnwindPart):
            path = column_path(source.words, part.expression, lists)
            if path:
                lists[part.variable] = path
        elif isinstance(part, PatternPart) and part.keyword != "CREATE":
            for pattern in part.paths:
                for element in elements(pattern):
                    for entry in element.properties:
                        yield from _key_columns(source, entry.value, lists)


def _key_columns(source: BatchSource, span: range, lists: dict[str, str]) -> Iterator[str]:
    whole = column_path(source.words, span, lists)
    if whole:
        yield whole
        return
    used = uses(source.query, span)
    yield from (name for name, _ in used.parameters)
    for read in used.reads:
        if read.variable in lists:
            yield f"{lists[read.variable]}.{read.name}"
    yield from (lists[use.variable] for use in used.variables if use.variable in lists)
