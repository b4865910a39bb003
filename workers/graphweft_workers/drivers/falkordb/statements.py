"""The statements of the store: writes with their guards, checkpoints and indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

from graphweft_contracts import QueryFailed
from graphweft_rules.cypher.batch_query import ROW, BatchQuery
from graphweft_rules.cypher.clauses import Outline, once
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.cypher.problems import bare_nodes
from graphweft_rules.cypher.query import Cypher
from graphweft_rules.cypher.tokens import tokenize
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.falkordb.errors import (
    POSITION,
)
from graphweft_workers.drivers.falkordb.literals import header, literal
from graphweft_workers.ports.graph_store import Checkpoint, Write

# The sum keeps indexes out, which earlier versions made: see ``index_repair``.
GUARD: Final = (
    "MATCH (__gw:__Progress) WHERE __gw.partition + 0 = $__gw_partition AND "
    "__gw.pos = $__gw_pos AND __gw.plan = $__gw_plan AND __gw.done = $__gw_done "
)
_MOVE: Final = "SET __gw.pos = $__gw_next_pos, __gw.plan = $__gw_next_plan, __gw.done = $__gw_next_done"
_NOTE: Final = ", __gw.note = $__gw_note"
_ROWS: Final = "__gw_rows"
_ONE_ROW: Final = "UNWIND [0] AS __gw_one "
"""A first WITH in a subquery imports variables. After this row it means what it means in the rule."""
_MADE: Final = (
    "OPTIONAL MATCH (q:__Progress) WHERE q.partition + 0 = $__gw_partition WITH count(q) AS there "
    "FOREACH (one IN CASE there WHEN 0 THEN [0] ELSE [] END | "
    "CREATE (:__Progress {partition: $__gw_partition, pos: '', plan: '', done: 0, note: '', app: $__gw_app})) "
    "WITH there MATCH (p:__Progress) WHERE p.partition + 0 = $__gw_partition "
)
RESTORE_CHECKPOINT: Final = (
    f"{_MADE}SET p.pos = $__gw_next_pos, p.plan = $__gw_next_plan, p.done = $__gw_next_done, p.note = $__gw_note"
)
_MOVED: Final = " WITH __gw.done AS __gw_moved"
_CARRIED: Final = "WITH __gw "
_CALL: Final = "CALL { "
LIST_SCHEMA_INDEXES: Final = "CALL db.indexes() YIELD label, types, entitytype RETURN label, types, entitytype"
LIST_CONSTRAINTS: Final = (
    "CALL db.constraints() YIELD type, label, properties, entitytype RETURN type, label, properties, entitytype"
)
LIST_INDEXES: Final = "CALL db.indexes() YIELD label, status, types RETURN label, status, types"
_KEY_BYTES: Final = 4_096
"""Bytes of the longest text that an index finds (4.22)."""
_SINGLE: Final = frozenset({str, int, type(None)})
_BLANKS: Final = " \t\n\v\f\r"
"""Characters that indexes strip at both ends of a text; they keep other blanks of Unicode."""
LIST_NAMES: Final[Mapping[Literal["label", "type"], str]] = {
    "label": "CALL db.labels() YIELD label RETURN label",
    "type": "CALL db.relationshipTypes() YIELD relationshipType RETURN relationshipType",
}
LIST_PROPERTY_NAMES: Final = "CALL db.propertyKeys() YIELD propertyKey RETURN propertyKey"
READ_CHECKPOINT: Final = (
    "MATCH (p:__Progress) WHERE p.partition + 0 = $__gw_partition RETURN p.pos, p.plan, p.done ORDER BY p.pos DESC"
)
READ_CHECKPOINTS: Final = "MATCH (p:__Progress) RETURN p.partition, p.pos, p.plan, p.done, p.app"
"""With the app whose graph it is; checkpoints of earlier versions say none."""
MAKE_CHECKPOINT: Final = (
    f"{_MADE}FOREACH (one IN CASE WHEN p.app IS NULL THEN [0] ELSE [] END | SET p.app = $__gw_app) "
    "RETURN p.pos, p.plan, p.done, p.note ORDER BY p.pos DESC"
)
DROP_COPIES: Final = (
    "MATCH (p:__Progress) WHERE p.partition + 0 = $__gw_partition WITH p ORDER BY p.pos DESC "
    "WITH collect(p) AS copies UNWIND copies[1..] AS copy DELETE copy"
)
"""Leaves the checkpoint that has moved: copies were made where the server did not find it."""


def guarded(partition: int, writes: Sequence[Write]) -> str:
    """Return the query that runs writes in order and moves the checkpoint, if the checkpoint has the expected value.

    Of several writes each has a batch query of the mode ``ordered``.
    """
    values, move = _moving(partition, writes)
    single = are_single(writes)
    params: dict[str, Any] = {}
    rows: dict[str, list[list[Any]]] = {}
    work: list[tuple[Cypher, BatchQuery]] = []
    for number, write in enumerate(writes):
        batch_query = write.batch_query_for(FALKORDB)
        if write.query is None or batch_query is None:
            return f"{header({}, given=values)}{GUARD}{move}{_MOVED} RETURN __gw_moved"
        _check_keys(batch_query.keys, write.rows)
        found = write.numbered_rows(batch_query.columns)
        if single:
            names = _names(number, batch_query.columns) if len(writes) > 1 else batch_query.columns
            params.update(zip(names, found[0][1:], strict=True))
        else:
            rows[f"{_ROWS}{number}"] = found
        work.append((write.query, batch_query))
    if not single:
        text = with_rows(tuple(batch_query.statement for _, batch_query in work), move)
    elif len(work) == 1:
        text = with_rule(work[0][0], move)
    else:
        text = _with_rules(tuple((query.outline, batch_query.columns) for query, batch_query in work), move)
    return header(params, rows, given=values) + text


def are_single(writes: Sequence[Write]) -> bool:
    """Tell whether each write has one row that can take the place of the parameters in the rule's text.

    That takes a quarter less of the server's time than lists of one row (4.22). A rule that returns rows would end the
    query of several writes if it returned none; its batch query returns nothing.
    """
    for write in writes:
        batch_query = write.batch_query_for(FALKORDB)
        if len(write.rows) != 1 or batch_query is None or batch_query.always:
            return False
        if len(writes) > 1 and write.query is not None and write.query.returns:
            return False
    return True


def with_rule(query: Cypher, move: str = _MOVE) -> str:
    """Return a rule's query, for one row, within its guard.

    The checkpoint moves last: from its first write on, a query blocks the server's main thread (4.22), so a query that
    searches for long before it writes blocks nobody. A query that returns rows may return none, and a move after it
    would not run; there the checkpoint moves first.
    """
    text = _as_subquery(query.outline)
    if query.returns:
        return f"{GUARD}{move}{_MOVED} {_CALL}{text}\n}} RETURN count(*)"
    return _in_guard([text], move)


@lru_cache(maxsize=128)  # its texts have up to some 100 kB
def with_rows(statements: Sequence[str], move: str = _MOVE) -> str:
    """Return batch queries, each with a list of rows, within one guard."""
    return _in_guard([f"UNWIND ${_ROWS}{number} AS {ROW} {text}" for number, text in enumerate(statements)], move)


@lru_cache(maxsize=128)
def _with_rules(queries: Sequence[tuple[Outline, Sequence[str]]], move: str) -> str:
    """Return the queries of rules, each for one row, within one guard. They come with their parameters."""
    texts: list[str] = []
    for number, (query, columns) in enumerate(queries):
        names = dict(zip(columns, _names(number, columns), strict=True))
        tokens = tokenize(_as_subquery(query))
        texts.append("".join(f"${names[each.identifier]}" if each.kind == "param" else each.text for each in tokens))
    return _in_guard(texts, move)


def _names(number: int, columns: Sequence[str]) -> list[str]:
    """Return the parameters of a rule among others, which may have equal ones."""
    return [f"__gw_{number}_{column}" for column in range(len(columns))]


def _in_guard(subqueries: Sequence[str], move: str) -> str:
    # The line break ends a comment on a rule's last line.
    calls = " ".join([f"{_CALL}{text}\n}}" for text in subqueries])
    return f"{GUARD}{_CARRIED}{calls} {move}"


def guard_values(partition: int, before: Checkpoint) -> str:
    """Return the values of ``GUARD``, for ``header``: what follows it happens only at this checkpoint."""
    return (
        f"`__gw_partition`={partition} `__gw_pos`={literal(before.offset)} `__gw_plan`={literal(before.plan)} "
        f"`__gw_done`={before.done} "
    )


def _moving(partition: int, writes: Sequence[Write]) -> tuple[str, str]:
    """Return the values, for ``header``, and the clause that move the checkpoint over writes."""
    before, after = writes[0].before, writes[-1].after
    values = (
        f"{guard_values(partition, before)}`__gw_next_pos`={literal(after.offset)} "
        f"`__gw_next_plan`={literal(after.plan)} `__gw_next_done`={after.done} "
    )
    note = next((write.note for write in reversed(writes) if write.note is not None), None)
    if note is None:
        return values, _MOVE
    return f"{values}`__gw_note`={literal(note)} ", _MOVE + _NOTE


def _check_keys(keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse key values that FalkorDB's indexes do not find: MERGE would create a new node each time.

    An empty text in a list crashes the server (4.22).
    """
    for key in keys:
        if len(rows) == 1 and type(text := rows[0].get(key)) is str and _is_found(text):
            continue
        name, *way = key.split(".")
        found = [row.get(name) for row in rows]
        if way or not set(map(type, found)) <= _SINGLE:
            found = _ends(found, way)
        texts = [value for value in found if isinstance(value, str)]
        # These look at all texts at once. They may refuse more than the server, never less.
        if all(texts) and texts == list(map(str.strip, texts)) and max(map(len, texts), default=0) <= _KEY_BYTES // 4:
            continue
        for text in texts:
            if not text or text[0] in _BLANKS or text[-1] in _BLANKS:
                raise QueryFailed(
                    f"the parameter {name!r} looks up an entity, and FalkorDB finds no text that is empty, or "
                    "begins or ends with a blank: trim it, or leave such events out by a condition"
                )
            if len(text.encode(errors="surrogatepass")) > _KEY_BYTES:
                raise QueryFailed(
                    f"the parameter {name!r} looks up an entity by a text of {len(text.encode()):,} bytes, and "
                    f"FalkorDB finds none above {_KEY_BYTES:,}: look it up by a shorter one, such as a hash"
                )


def _is_found(text: str) -> bool:
    """Tell whether indexes certainly find a text."""
    return 0 < len(text) <= _KEY_BYTES // 4 and text[0] not in _BLANKS and text[-1] not in _BLANKS


def _ends(values: list[Any], way: Sequence[str]) -> list[Any]:
    """Return the values at the end of a path of keys; a list stands for all its items."""
    values = _items(values)
    for name in way:
        values = _items([value.get(name) for value in values if isinstance(value, Mapping)])  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return values


def _items(values: list[Any]) -> list[Any]:
    while any(isinstance(value, list | tuple) for value in values):
        values = [item for value in values for item in (value if isinstance(value, list | tuple) else (value,))]  # pyright: ignore[reportUnknownVariableType]
    return values


@once
def _as_subquery(query: Outline) -> str:
    """Insert ``_ONE_ROW`` before each WITH that begins a branch of a UNION, or the statement."""
    parts: list[str] = []
    position = 0
    for clause in query.clauses:
        first = clause.words[0]
        begins = first == 0 or query.words.keyword(first - 1) in ("UNION", "ALL")
        if clause.keyword == "WITH" and clause.depth == 0 and begins:
            start = query.words.tokens[first].start
            parts += (query.text[position:start], _ONE_ROW)
            position = start
    return "".join(parts) + query.text[position:]


def placed(failure: QueryFailed, write: Write) -> QueryFailed:
    """Translate the server's line and column into the rule's query.

    The text of a batch query differs from the rule's, so its place is dropped.
    """
    around = len(GUARD + _CARRIED + _CALL)
    if write.query is not None and write.query.returns:
        around = len(f"{GUARD}{_MOVE}{_MOVED} {_CALL}") + (len(_NOTE) if write.note is not None else 0)

    def place(found: re.Match[str]) -> str:
        if not are_single((write,)):
            return ""
        line, column = int(found[1]), int(found[2])
        if line == 1:
            moved = write.query is not None and _as_subquery(write.query.outline).startswith(_ONE_ROW)
            column -= around + (len(_ONE_ROW) if moved else 0)
        return f" (line {line}, column {max(1, column)} of the query)"

    return QueryFailed(POSITION.sub(place, str(failure)), code=failure.code, of_value=failure.of_value)


def uses(statement: str, name: str) -> Iterator[int]:
    """Yield the offsets of a name, in any case: servers report functions in lower case."""
    for token in tokenize(statement):
        start = token.start + (token.kind == "quoted")
        end = start + len(name)
        found = token.kind in ("name", "quoted") and statement[start:end].lower() == name.lower()
        if found and not re.match(r"\w", statement[end : end + 1]):
            yield start


def took_effect(reply: Any) -> bool:
    """Return whether the guard of a write matched: by its statistics it has at least moved the checkpoint."""
    return not isinstance(reply, Exception) and any(
        str(line).startswith(("Properties set:", "Nodes deleted:")) for line in reply[-1]
    )


@once
def spares_checkpoints(query: Outline) -> bool:
    """Return whether a query touches only nodes that it names by a label or a relationship."""
    return not any(bare_nodes(query))


def checkpoint_of(rows: Any) -> Checkpoint | None:
    """Return a checkpoint; None if it is missing or overwritten by a rule."""
    try:
        # Checkpoints of the first version have no plan.
        if not rows or isinstance(rows[0][2], bool):
            return None
        return Checkpoint(offset=str(rows[0][0]), plan=str(rows[0][1] or ""), done=int(rows[0][2]))
    except (TypeError, ValueError):
        return None


def search_index(index: SearchIndex) -> str:
    """Return the statement that makes a fulltext or vector index."""
    if index.kind == "vector":
        return (
            f"CREATE VECTOR INDEX FOR (n:{quoted(index.label)}) ON (n.{quoted(index.properties[0])}) "
            f"OPTIONS {{dimension: {index.dimensions}, similarityFunction: 'cosine'}}"
        )
    # By default the server drops stop words and stems.
    plain = ", stopwords: []" if index.terms else ""
    fields = ", ".join(
        f"{{field: {literal(name)}{', nostem: true' if index.terms else ''}}}" for name in index.properties
    )
    return f"CALL db.idx.fulltext.createNodeIndex({{label: {literal(index.label)}{plain}}}, {fields})"


def drop_vector_index(index: SearchIndex) -> str:
    """Return the statement that drops a vector index."""
    return f"DROP VECTOR INDEX FOR (n:{quoted(index.label)}) ON (n.{quoted(index.properties[0])})"


def quoted(name: str) -> str:
    """Return a name, quoted."""
    if "`" in name:
        raise QueryFailed(f"{name!r} cannot be indexed: FalkorDB cannot escape a backtick")
    return f"`{name}`"


def run_of(server: Any) -> str:
    """Return the id of the server's run from what it says of itself."""
    return str(server.get("run_id", ""))
