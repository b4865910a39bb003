"""The reading queries of a search: text and parameters, nothing else.

Names of ours begin with ``__gw_``, so none meets one of a retrieval query. A node is returned as its handle, by which
it is fetched later, and its key, which orders what is equal otherwise; the last columns are these two, or a single one
that is both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graphweft_workers.retrieval.dialects import Language
from graphweft_workers.retrieval.ranking import Hit
from graphweft_workers.retrieval.target import Target, TextSide, VectorSide

GRID: Final = 100_000
"""Scores of vectors come as whole numbers of this many. Servers work them out with 32-bit numbers, each in its own way,
and differ in the seventh decimal; so what is equal to five is ordered by key."""
LONG: Final = 1_000
"""Terms. Of a longer text the server counts those that are asked for, so that no reply becomes very large."""
_LONGEST: Final = 50_000
"""Characters of a property that we take the terms from ourselves; what is behind them is not weighed."""
_KEY: Final = "coalesce(toStringOrNull(n.id), '')"
"""Of nodes that are not ours, which have an id or not. The server's own numbers say nothing on another server."""
_HITS: Final = "UNWIND $__gw_hits AS __gw_hit MATCH"


@dataclass(frozen=True, slots=True)
class Statement:
    """A reading query with the values of its parameters."""

    text: str
    params: dict[str, Any]


def size(language: Language, target: Target) -> Statement:
    """How many texts there are, and how many terms they have together: 0 where no property says it."""
    source, params = _scoped(language, target)
    length = target.text.length if target.text else None
    total = f"sum(n.{language.quoted(length)})" if length else "0"
    return Statement(f"{source} RETURN count(n), {total}", params)


def counts(language: Language, target: Target, terms: Sequence[str]) -> Statement:
    """For each term how many nodes hold it; terms that none holds are left out."""
    text = _text_side(target)
    each = [[term, language.question(text, target.scope, [term])] for term in terms]
    call = language.holding(text, target).replace("$__gw_question", "__gw_term[1]")
    source = _where(f"UNWIND $__gw_terms AS __gw_term {call}", _held(language, target))
    return Statement(f"{source} RETURN __gw_term[0], count(n)", {"__gw_terms": each, **_values(target)})


def candidates(
    language: Language,
    target: Target,
    *,
    found_by: Sequence[str],
    limit: int | None = None,
) -> Statement:
    """What holds one of ``found_by``: what the counts of terms are taken from, handle, key.

    The first is the length and the terms, which are null for long texts (see ``long_counts``), or else a list of texts.
    With ``limit`` it is the latest ones, where there is no time the first ones by key.
    """
    text = _text_side(target)
    source = _where(language.holding(text, target), _held(language, target))
    params: dict[str, Any] = {"__gw_question": language.question(text, target.scope, found_by), **_values(target)}
    if limit is not None:
        time = f"n.{language.quoted(target.time)} DESC, " if target.time else ""
        source += f" WITH n ORDER BY {time}{_order(language, target)} LIMIT $__gw_limit"
        params["__gw_limit"] = limit
    if text.terms and text.length:
        held, length = f"n.{language.quoted(text.terms)}", f"n.{language.quoted(text.length)}"
        shown = f"{length}, CASE WHEN {length} > {LONG} THEN null ELSE {held} END"
    else:
        texts = ", ".join(_cut(f"toStringOrNull(n.{language.quoted(name)})") for name in text.properties)
        shown = f"[{texts}]"
    return Statement(f"{source} RETURN {shown}, {_identity(language, target)}", params)


def long_counts(language: Language, target: Target, keys: Sequence[str], terms: Sequence[str]) -> Statement:
    """How often each term is in long texts: key, the counts in the order of the terms, joined by blanks.

    The server counts, so that no reply becomes very large. It takes its time for that, even for texts that it is not
    asked to count in; so these have a query of their own.
    """
    text = _text_side(target)
    assert text.terms is not None
    assert target.key is not None
    counted = (
        "reduce(__gw_all = '', __gw_term IN $__gw_terms | __gw_all + ' ' + toString("
        f"size(split(' ' + replace(n.{language.quoted(text.terms)}, ' ', '  ') + ' ', ' ' + __gw_term + ' ')) - 1))"
    )
    source = (
        f"UNWIND $__gw_keys AS __gw_key MATCH (n:{language.label(target)} {{{language.quoted(target.key)}: __gw_key}})"
    )
    return Statement(f"{source} RETURN __gw_key, {counted}", {"__gw_keys": list(keys), "__gw_terms": list(terms)})


def nearest(language: Language, target: Target, vector: Sequence[float], *, model: str, limit: int) -> Statement:
    """The nodes of the scope that are nearest to a vector, exactly: score in units of ``GRID``, handle, key."""
    side = _vector_side(target)
    source, params = language.within(target)
    conditions = _conditions(language, target, "n")
    params |= _values(target) | {"__gw_vector": list(vector), "__gw_limit": limit}
    if side.model:
        conditions.append(f"n.{language.quoted(side.model)} = $__gw_model")
        params["__gw_model"] = model
    conditions.append(f"n.{language.quoted(side.property)} IS NOT NULL")
    return Statement(_best(language, target, side, _where(source, conditions)), params)


def nearest_by_index(
    language: Language, target: Target, vector: Sequence[float], *, wide: int, limit: int
) -> Statement:
    """The nodes that are nearest to a vector among about ``wide`` that the index finds: as ``nearest``."""
    side = _vector_side(target)
    source, params = language.near(target, side)
    params |= {"__gw_vector": list(vector), "__gw_wide": wide, "__gw_limit": limit}
    return Statement(_best(language, target, side, source), params)


def latest(language: Language, target: Target, limit: int) -> Statement:
    """The latest nodes of the scope: time, handle, key."""
    source, params = _scoped(language, target)
    time = f"n.{language.quoted(target.time)}" if target.time else "null"
    order = f"WITH n ORDER BY {f'{time} DESC, ' if target.time else ''}{_order(language, target)} LIMIT $__gw_limit"
    return Statement(f"{source} {order} RETURN {time}, {_identity(language, target)}", params | {"__gw_limit": limit})


def rows(language: Language, target: Target, hits: Sequence[Hit]) -> Statement:
    """What is shown of the hits: handle, the first 50,000 characters of the text, the columns ``target.shown``."""
    source, params = _fetched(language, target, hits)
    text = ", ".join(f"node.{language.quoted(name)}" for name in target.texts)
    shown = "".join(f", {target.expressions.get(name) or f'node.{language.quoted(name)}'}" for name in target.shown)
    return Statement(f"{source} {target.joined} RETURN __gw_hit[0], {_cut(f'coalesce({text})')}{shown}", params)


def enriched(
    language: Language,
    target: Target,
    hits: Sequence[Hit],
    *,
    retrieval_query: str,
    values: Mapping[str, Any],
) -> Statement:
    """What a retrieval query makes of the hits, which it gets as ``node`` and ``score`` in their order."""
    source, params = _fetched(language, target, hits)
    text = f"{source} WITH node, __gw_hit[1] AS score ORDER BY score DESC\n{retrieval_query.rstrip('; \t\n')}"
    return Statement(text, {**values, **params})


def _scoped(language: Language, target: Target) -> tuple[str, dict[str, Any]]:
    source, params = language.within(target)
    return _where(source, _conditions(language, target, "n")), {**params, **_values(target)}


def _best(language: Language, target: Target, side: VectorSide, source: str) -> str:
    # A vector of zeros has no direction, and its score is no number.
    names = "handle" if target.key else "key, handle"
    return (
        f"{source} WITH n, {language.score(side)} AS score WHERE score >= 0.0 "
        f"WITH toInteger(round(score * {GRID})) AS score, {_identity(language, target)} "
        f"ORDER BY score DESC, {names} LIMIT $__gw_limit RETURN score, handle{'' if target.key else ', key'}"
    )


def _fetched(language: Language, target: Target, hits: Sequence[Hit]) -> tuple[str, dict[str, Any]]:
    """Bind ``node`` and ``__gw_hit`` for what is still there and still in the scope."""
    params: dict[str, Any] = {"__gw_hits": [[hit.handle, hit.score] for hit in hits], **_values(target)}
    label = language.label(target)
    conditions = _conditions(language, target, "node")
    if target.key:
        return _where(f"{_HITS} (node:{label} {{{language.quoted(target.key)}: __gw_hit[0]}})", conditions), params
    handle = language.handle.replace("(n)", "(node)")
    return _where(f"{_HITS} (node:{label})", [f"{handle} = __gw_hit[0]", *conditions]), params


def _identity(language: Language, target: Target) -> str:
    if target.key:
        return f"n.{language.quoted(target.key)} AS handle"
    return f"{language.handle} AS handle, {_KEY} AS key"


def _order(language: Language, target: Target) -> str:
    return f"n.{language.quoted(target.key)}" if target.key else f"{_KEY}, {language.handle}"


def _held(language: Language, target: Target) -> list[str]:
    return [*language.sure(target), *_conditions(language, target, "n")]


def _conditions(language: Language, target: Target, variable: str) -> list[str]:
    found = [language.equal(f"{variable}.{language.quoted(name)}", f"$__gw_{name}") for name in target.scope]
    if target.known_by is not None:
        found.append(f"{variable}.{language.quoted(target.known_by)} IS NOT NULL")
    if target.valid_at is not None:
        for name, holds in zip(target.validity, ("<=", ">"), strict=True):
            found.append(f"({variable}.{name} IS NULL OR {variable}.{name} {holds} $__gw_valid_at)")
    if target.origin_scope:
        wanted = ", ".join(f"{language.quoted(name)}: $__gw_{name}" for name in target.origin_scope)
        found.append(target.origin.format(node=variable, scope=f"{{{wanted}}}"))
    return found


def _values(target: Target) -> dict[str, Any]:
    values: dict[str, Any] = {f"__gw_{name}": value for name, value in {**target.origin_scope, **target.scope}.items()}
    return values if target.valid_at is None else values | {"__gw_valid_at": target.valid_at}


def _where(source: str, conditions: Sequence[str]) -> str:
    return f"{source} WHERE {' AND '.join(conditions)}" if conditions else source


def _text_side(target: Target) -> TextSide:
    assert target.text is not None
    return target.text


def _vector_side(target: Target) -> VectorSide:
    assert target.vector is not None
    return target.vector


def _cut(text: str) -> str:
    """Return a text's first 50,000 characters. FalkorDB's ``left`` reads past the end of one that has fewer of them but
    more bytes."""
    return f"CASE WHEN size({text}) > {_LONGEST} THEN left({text}, {_LONGEST}) ELSE {text} END"
