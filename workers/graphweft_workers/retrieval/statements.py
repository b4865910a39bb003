"""The read queries of a search, as text and parameters.

Variables begin with ``__gw_``, so none collides with one of a retrieval query. The last columns of a row are the node's
handle, which fetches it, and its key, which breaks ties; one column if both are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from graphweft_workers.ports.dialect import GraphDialect, SearchTarget, TextSide, VectorSide
from graphweft_workers.retrieval.ranking import GRID, Hit

LONG: Final = 1_000
"""Terms of a text; the server counts those of longer texts, which bounds the reply."""
_SHORT: Final = 300
"""Characters of a turn that may tell nothing: see ``empty_turns``."""
_LONGEST: Final = 50_000
"""Characters of a property that are read for terms."""
_KEY: Final = "coalesce(toStringOrNull(n.id), '')"
"""The key of nodes that rules wrote; a server's own node numbers differ between servers."""
_HITS: Final = "UNWIND $__gw_hits AS __gw_hit MATCH"


@dataclass(frozen=True, slots=True)
class Statement:
    """A read query and its parameters."""

    text: str
    params: dict[str, Any]


def size(dialect: GraphDialect, target: SearchTarget, *, whole: bool = False) -> Statement:
    """Return the number of texts and the sum of their terms (0 if no property stores it); ``whole``: at any time."""
    source, params = _scoped(dialect, replace(target, valid_at=None) if whole else target)
    length = target.text.length if target.text else None
    total = f"sum(n.{dialect.quoted(length)})" if length else "0"
    return Statement(f"{source} RETURN count(n), {total}", params)


def size_of_nodes(dialect: GraphDialect, target: SearchTarget) -> Statement:
    """Return one row: the number of nodes, the sum of their terms, and the characters of these and of their ids."""
    source, params = _scoped(dialect, replace(target, valid_at=None))
    text = _text_side(target)
    assert text.length
    names = (text.terms, target.key)
    sizes = " + ".join(f"size(coalesce(n.{dialect.quoted(name)}, ''))" for name in names if name)
    return Statement(f"{source} RETURN count(n), sum(n.{dialect.quoted(text.length)}), sum({sizes})", params)


def counts(dialect: GraphDialect, target: SearchTarget, terms: Sequence[str]) -> Statement:
    """Return each term that a node holds, and the number of these nodes."""
    text = _text_side(target)
    each = [[term, dialect.question(text, target.scope, [term])] for term in terms]
    call = dialect.holding(text, target).replace("$__gw_question", "__gw_term[1]")
    source = _where(f"UNWIND $__gw_terms AS __gw_term {call}", _held(dialect, target))
    return Statement(f"{source} RETURN __gw_term[0], count(n)", {"__gw_terms": each, **_values(target)})


def candidates(
    dialect: GraphDialect,
    target: SearchTarget,
    *,
    found_by: Sequence[str],
    limit: int | None = None,
) -> Statement:
    """Return the nodes that hold one of ``found_by``: length, terms and time, or a list of texts; then handle and key.

    Terms of long texts are null: see ``long_counts``. ``limit`` keeps the latest nodes, or the first by key if nodes
    have no time.
    """
    text = _text_side(target)
    source = _where(dialect.holding(text, target), _held(dialect, target))
    params: dict[str, Any] = {"__gw_question": dialect.question(text, target.scope, found_by), **_values(target)}
    if limit is not None:
        time = f"n.{dialect.quoted(target.time)} DESC, " if target.time else ""
        source += f" WITH n ORDER BY {time}{_order(dialect, target)} LIMIT $__gw_limit"
        params["__gw_limit"] = limit
    if text.terms and text.length:
        held, length = f"n.{dialect.quoted(text.terms)}", f"n.{dialect.quoted(text.length)}"
        time = f"n.{dialect.quoted(target.time)}" if target.time else "null"
        shown = f"{length}, CASE WHEN {length} > {LONG} THEN null ELSE {held} END, {time}"
    else:
        texts = ", ".join(_cut(f"toStringOrNull(n.{dialect.quoted(name)})") for name in text.properties)
        shown = f"[{texts}]"
    return Statement(f"{source} RETURN {shown}, {_identity(dialect, target)}", params)


def long_counts(dialect: GraphDialect, target: SearchTarget, keys: Sequence[str], terms: Sequence[str]) -> Statement:
    """Return the key of each long text, and how often it holds each term, as numbers joined by blanks.

    A query of its own, because a server takes long to count, also in texts that a condition skips.
    """
    text = _text_side(target)
    assert text.terms is not None
    assert target.key is not None
    counted = (
        "reduce(__gw_all = '', __gw_term IN $__gw_terms | __gw_all + ' ' + toString("
        f"size(split(' ' + replace(n.{dialect.quoted(text.terms)}, ' ', '  ') + ' ', ' ' + __gw_term + ' ')) - 1))"
    )
    source = (
        f"UNWIND $__gw_keys AS __gw_key MATCH (n:{dialect.label(target)} {{{dialect.quoted(target.key)}: __gw_key}})"
    )
    source = _where(source, _conditions(dialect, target, "n"))
    params = {"__gw_keys": list(keys), "__gw_terms": list(terms), **_values(target)}
    return Statement(f"{source} RETURN __gw_key, {counted}", params)


def nearest(
    dialect: GraphDialect, target: SearchTarget, vector: Sequence[float], *, model: str, limit: int
) -> Statement:
    """Return the nodes of the scope nearest to a vector, exactly: score in units of 1 / ``GRID``, handle, key."""
    side = _vector_side(target)
    source, params = dialect.within(target)
    conditions, values = _with_vector(dialect, target, side, model=model, size=len(vector))
    params |= values | {"__gw_vector": list(vector), "__gw_limit": limit}
    return Statement(_best(dialect, target, side, _where(source, conditions)), params)


def nodes(dialect: GraphDialect, target: SearchTarget, *, after: str, limit: int) -> Statement:
    """Return nodes of the scope at any time, by key: key, time, length, terms, begin and end of their validity.

    Turns of conversations also have their conversation, role, author, and the text if it is short.
    """
    assert target.key is not None
    text, key = _text_side(target), f"n.{dialect.quoted(target.key)}"
    whole = replace(target, valid_at=None)
    source, params = dialect.within(whole)
    # An expression avoids the index of keys: a server may walk through the keys of all scopes, 5 seconds for a million.
    source = _where(source, [*_conditions(dialect, whole, "n"), f"coalesce({key}, '') > $__gw_after"])
    values = {**_values(whole), "__gw_after": after, "__gw_limit": limit}
    shown = _indexed(dialect, target, text)
    return Statement(f"{source} WITH n ORDER BY {key} LIMIT $__gw_limit RETURN {key}, {shown}", params | values)


def later(dialect: GraphDialect, target: SearchTarget, *, after: str, limit: int) -> Statement:
    """Like ``nodes``, of the nodes of the scope that are later than a time, in any order."""
    assert target.key is not None
    assert target.time is not None
    whole = replace(target, valid_at=None)
    source, params = dialect.within(whole)
    time = f"coalesce(n.{dialect.quoted(target.time)}, '')"  # an expression: the index of the scope finds fewer nodes
    source = _where(source, [*_conditions(dialect, whole, "n"), f"{time} > $__gw_after"])
    values = {**_values(whole), "__gw_after": after, "__gw_limit": limit}
    shown = _indexed(dialect, target, _text_side(target))
    key = f"n.{dialect.quoted(target.key)}"
    return Statement(f"{source} WITH n LIMIT $__gw_limit RETURN {key}, {shown}", params | values)


def nodes_of(
    dialect: GraphDialect, target: SearchTarget, keys: Sequence[str], *, model: str | None = None
) -> Statement:
    """Like ``nodes``, of the nodes of the scope with one of the keys, in any order.

    With a model, the last column is the vector of the model that a node has, or null.
    """
    assert target.key is not None
    key, whole = dialect.quoted(target.key), replace(target, valid_at=None)
    source = f"UNWIND $__gw_keys AS __gw_key MATCH (n:{dialect.label(target)} {{{key}: __gw_key}})"
    source = _where(source, _conditions(dialect, whole, "n"))
    shown = _indexed(dialect, target, _text_side(target))
    params = {"__gw_keys": list(keys), **_values(whole)}
    if model is not None:
        side = _vector_side(target)
        vector = f"n.{dialect.quoted(side.property)}"
        if side.model:
            vector = f"CASE WHEN n.{dialect.quoted(side.model)} = $__gw_model THEN {vector} ELSE null END"
            params["__gw_model"] = model
        shown += f", {vector} AS __gw_vector"
    return Statement(f"{source} RETURN n.{key}, {shown}", params)


def _indexed(dialect: GraphDialect, target: SearchTarget, text: TextSide) -> str:
    """Return what an index holds of a node beside its key."""
    names = (target.time, text.length, text.terms, *(target.validity if target.valid_at is not None else (None, None)))
    parts = [f"n.{dialect.quoted(name)}" if name else "null" for name in names]
    if target.turn:
        says = f"n.{dialect.quoted(target.says)}"
        parts += [*target.turn, f"CASE WHEN size({says}) <= {_SHORT} THEN {says} ELSE '' END"]
    return ", ".join(f"{part} AS __gw_{place}" for place, part in enumerate(parts))


def vectors(dialect: GraphDialect, target: SearchTarget, keys: Sequence[str], *, model: str) -> Statement:
    """Return the vectors of the model that nodes of the scope with one of the keys have at any time: key, vector."""
    side = _vector_side(target)
    assert target.key is not None
    key, whole = dialect.quoted(target.key), replace(target, valid_at=None)
    source = f"UNWIND $__gw_keys AS __gw_key MATCH (n:{dialect.label(target)} {{{key}: __gw_key}})"
    conditions = _conditions(dialect, whole, "n")
    params: dict[str, Any] = {"__gw_keys": list(keys), **_values(whole)}
    if side.model:
        conditions.append(f"n.{dialect.quoted(side.model)} = $__gw_model")
        params["__gw_model"] = model
    vector = f"n.{dialect.quoted(side.property)}"
    return Statement(f"{_where(source, [*conditions, f'{vector} IS NOT NULL'])} RETURN n.{key}, {vector}", params)


def of_another_size(dialect: GraphDialect, target: SearchTarget, vector: Sequence[float], *, model: str) -> Statement:
    """Return a row if the scope has a vector of the model that has another length than ``vector``."""
    side = _vector_side(target)
    assert side.model
    assert side.size
    source, params = dialect.within(target)
    params |= _values(target) | {"__gw_model": model, "__gw_size": len(vector)}
    conditions = [
        *_conditions(dialect, target, "n"),
        f"n.{dialect.quoted(side.model)} = $__gw_model",
        f"n.{dialect.quoted(side.size)} <> $__gw_size",
    ]
    return Statement(f"{_where(source, conditions)} RETURN 1 LIMIT 1", params)


def nearest_by_index(
    dialect: GraphDialect, target: SearchTarget, vector: Sequence[float], *, wide: int, limit: int
) -> Statement:
    """Return the nodes nearest to a vector among about ``wide`` that the index finds: columns as ``nearest``."""
    side = _vector_side(target)
    source, params = dialect.near(target, side)
    params |= {"__gw_vector": list(vector), "__gw_wide": wide, "__gw_limit": limit}
    return Statement(_best(dialect, target, side, source), params)


def latest(dialect: GraphDialect, target: SearchTarget, limit: int) -> Statement:
    """Return the latest nodes of the scope: time, handle, key."""
    source, params = _scoped(dialect, target)
    time = f"n.{dialect.quoted(target.time)}" if target.time else "null"
    order = f"WITH n ORDER BY {f'{time} DESC, ' if target.time else ''}{_order(dialect, target)} LIMIT $__gw_limit"
    return Statement(f"{source} {order} RETURN {time}, {_identity(dialect, target)}", params | {"__gw_limit": limit})


def latest_and_some(
    dialect: GraphDialect, target: SearchTarget, limit: int, some: SearchTarget, most: int
) -> Statement:
    """Return the latest nodes as ``latest`` does, and the latest ``most`` of a part of the target: with whether it is.

    ``some`` is the target with one more filter.
    """
    whole, part = latest(dialect, target, limit), latest(dialect, some, most)
    text = part.text.replace("$__gw_limit", "$__gw_most")
    return Statement(
        f"{text}, true AS __gw_part UNION ALL {whole.text}, false AS __gw_part",
        {**part.params, **whole.params, "__gw_most": most},
    )


def rows(dialect: GraphDialect, target: SearchTarget, hits: Sequence[Hit]) -> Statement:
    """Return the hits' handle, the first 50,000 characters of their text, and the columns ``target.shown``."""
    source, params = _fetched(dialect, target, [hit.handle for hit in hits], "__gw_hit")
    text = ", ".join(f"node.{dialect.quoted(name)}" for name in target.texts)
    parts = [target.expressions.get(name) or f"node.{dialect.quoted(name)}" for name in target.shown]
    shown = "".join(f", {part} AS __gw_{place}" for place, part in enumerate(parts))  # two may be null
    return Statement(f"{source} {target.joined} RETURN __gw_hit, {_cut(f'coalesce({text})')}{shown}", params)


def enriched(
    dialect: GraphDialect,
    target: SearchTarget,
    hits: Sequence[Hit],
    *,
    retrieval_query: str,
    values: Mapping[str, Any],
) -> Statement:
    """Return the rows of a retrieval query, which gets the hits as ``node`` and ``score``, in order."""
    source, params = _fetched(dialect, target, [[hit.handle, hit.score] for hit in hits], "__gw_hit[0]")
    text = f"{source} WITH node, __gw_hit[1] AS score ORDER BY score DESC\n{retrieval_query.rstrip('; \t\n')}"
    return Statement(text, {**values, **params})


def _with_vector(
    dialect: GraphDialect, target: SearchTarget, side: VectorSide, *, model: str, size: int
) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions that a node belongs to the target and has a vector of the model and size."""
    conditions, params = _conditions(dialect, target, "n"), _values(target)
    if side.model:
        conditions.append(f"n.{dialect.quoted(side.model)} = $__gw_model")
        params["__gw_model"] = model
    conditions.append(f"n.{dialect.quoted(side.property)} IS NOT NULL")
    if side.size:
        params["__gw_size"] = size
        conditions.append(f"coalesce(n.{dialect.quoted(side.size)}, $__gw_size) = $__gw_size")
    return conditions, params


def _scoped(dialect: GraphDialect, target: SearchTarget) -> tuple[str, dict[str, Any]]:
    source, params = dialect.within(target)
    return _where(source, _conditions(dialect, target, "n")), {**params, **_values(target)}


def _best(dialect: GraphDialect, target: SearchTarget, side: VectorSide, source: str) -> str:
    # The score of a zero vector is NaN.
    names = "handle" if target.key else "key, handle"
    return (
        f"{source} WITH n, {dialect.score(side)} AS score WHERE score >= 0.0 "
        f"WITH toInteger(round(score * {GRID})) AS score, {_identity(dialect, target)} "
        f"ORDER BY score DESC, {names} LIMIT $__gw_limit RETURN score, handle{'' if target.key else ', key'}"
    )


def _fetched(
    dialect: GraphDialect, target: SearchTarget, hits: Sequence[Any], handle: str
) -> tuple[str, dict[str, Any]]:
    """Bind ``node`` and ``__gw_hit`` for hits that still exist within the scope; ``handle`` is the handle of a hit."""
    params: dict[str, Any] = {"__gw_hits": hits, **_values(target)}
    label = dialect.label(target)
    conditions = _conditions(dialect, target, "node")
    if target.key:
        return _where(f"{_HITS} (node:{label} {{{dialect.quoted(target.key)}: {handle}}})", conditions), params
    return _where(f"{_HITS} (node:{label})", [f"{dialect.node_id('node')} = {handle}", *conditions]), params


def _identity(dialect: GraphDialect, target: SearchTarget) -> str:
    if target.key:
        return f"n.{dialect.quoted(target.key)} AS handle"
    return f"{dialect.node_id('n')} AS handle, {_KEY} AS key"


def _order(dialect: GraphDialect, target: SearchTarget) -> str:
    return f"n.{dialect.quoted(target.key)}" if target.key else f"{_KEY}, {dialect.node_id('n')}"


def _held(dialect: GraphDialect, target: SearchTarget) -> list[str]:
    return [*dialect.sure(target), *_conditions(dialect, target, "n")]


def _conditions(dialect: GraphDialect, target: SearchTarget, variable: str) -> list[str]:
    found = [dialect.equal(f"{variable}.{dialect.quoted(name)}", f"$__gw_{name}") for name in target.scope]
    if target.known_by is not None:
        found.append(f"{variable}.{dialect.quoted(target.known_by)} IS NOT NULL")
    if target.valid_at is not None:
        for name, holds in zip(target.validity, ("<= $__gw_valid_at", "> $__gw_valid_since"), strict=True):
            found.append(f"({variable}.{name} IS NULL OR {variable}.{name} {holds})")
    for number, (condition, _) in enumerate(target.filters):
        found.append(condition.format(node=variable, value=f"$__gw_filter{number}"))
    if target.origin_scope:
        wanted = ", ".join(f"{dialect.quoted(name)}: $__gw_{name}" for name in target.origin_scope)
        found.append(target.origin.format(node=variable, scope=f"{{{wanted}}}"))
    return found


def _values(target: SearchTarget) -> dict[str, Any]:
    values: dict[str, Any] = {f"__gw_{name}": value for name, value in {**target.origin_scope, **target.scope}.items()}
    values |= {f"__gw_filter{number}": value for number, (_, value) in enumerate(target.filters)}
    if target.valid_at is not None:
        since = target.valid_at if target.valid_since is None else target.valid_since
        values |= {"__gw_valid_at": target.valid_at, "__gw_valid_since": since}
    return values


def _where(source: str, conditions: Sequence[str]) -> str:
    return f"{source} WHERE {' AND '.join(conditions)}" if conditions else source


def _text_side(target: SearchTarget) -> TextSide:
    assert target.text is not None
    return target.text


def _vector_side(target: SearchTarget) -> VectorSide:
    assert target.vector is not None
    return target.vector


def _cut(text: str) -> str:
    """Return a text's first 50,000 characters; some servers' ``left`` reads past the end of shorter multi-byte text."""
    return f"CASE WHEN size({text}) > {_LONGEST} THEN left({text}, {_LONGEST}) ELSE {text} END"
