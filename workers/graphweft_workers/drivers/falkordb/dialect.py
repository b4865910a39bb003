"""The Cypher of FalkorDB (checked on 4.22).

Search terms are quoted, because FalkorDB stems a bare word even if the index does not: it finds "on" for "onli".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, override

from graphweft_contracts import QueryFailed
from graphweft_rules.cypher.batch_query import BatchQuery
from graphweft_rules.cypher.clauses import Outline
from graphweft_rules.cypher.problems import QueryProblem, Role
from graphweft_workers.drivers.falkordb.batch_query import falkordb_batch_query
from graphweft_workers.drivers.falkordb.traps import falkordb_problems
from graphweft_workers.drivers.search_text import escaped, phrase, similarity_of, string
from graphweft_workers.ports.dialect import (
    Fragment,
    GraphDialect,
    ListedIndex,
    SearchTarget,
    TextSide,
    VectorSide,
)
from graphweft_workers.text.terms import scope_term

_NARROW: Final = ("thread_id", "user_id", "agent_id", "application_id")
"""Scopes, the most selective first."""
_TEXTS: Final = "['String', 'Integer']"
"""Types of values that are shown as text."""
_BLANKS: Final = " \t\n\v\f\r"
"""Characters that FalkorDB's indexes strip at both ends of a text."""

BUILT: Final = "OPERATIONAL"
"""The status of the indexes of a label of which none is being built."""


class FalkorDBDialect(GraphDialect):
    """The Cypher of FalkorDB."""

    name = "falkordb"
    title = "FalkorDB"
    list_indexes = (
        "CALL db.indexes() YIELD label, types, options, entitytype, status WHERE entitytype = 'NODE' "
        "RETURN label, types, options, status"
    )
    one_parameter = False
    one_row = False
    no_node = 0

    @override
    def batch_query(self, query: Outline, params: Iterable[str], *, shared: frozenset[str] | None = None) -> BatchQuery:
        return falkordb_batch_query(query, tuple(params), shared=shared)

    @override
    def problems(self, query: Outline, role: Role) -> Iterable[QueryProblem]:
        return falkordb_problems(query, role)

    @override
    def read_indexes(self, rows: Iterable[Sequence[Any]]) -> list[ListedIndex]:
        found: list[ListedIndex] = []
        for label, types, options, status in rows:
            built = status == BUILT
            words = tuple(sorted(name for name, kinds in types.items() if "FULLTEXT" in kinds))
            if words:
                found.append(
                    ListedIndex(kind="fulltext", name=label, labels=(label,), properties=words, is_built=built)
                )
            for name in sorted(name for name, kinds in types.items() if "VECTOR" in kinds):
                said: Mapping[str, Any] = options.get(name) or {}
                found.append(
                    ListedIndex(
                        kind="vector",
                        name=f"{label}.{name}",
                        labels=(label,),
                        properties=(name,),
                        dimensions=said.get("dimension"),
                        similarity=similarity_of(said.get("similarityFunction")),
                        is_built=built,
                    )
                )
        return found

    @override
    def node_id(self, variable: str) -> str:
        return f"id({variable})"

    @override
    def is_node_id(self, value: object) -> bool:
        return type(value) is int and value >= 0

    @override
    def short_text(self, value: str, limit: int) -> str:
        return f"CASE WHEN typeOf({value}) IN {_TEXTS} THEN {self.cut_text(f'toStringOrNull({value})', limit)} END"

    @override
    def first_text(self, values: Sequence[str]) -> str:
        # One CASE: the server evaluates all branches of each, also those that it does not take.
        cases = " ".join(f"WHEN typeOf({value}) IN {_TEXTS} THEN {value}" for value in values)
        return f"toString(CASE {cases} ELSE '' END)"

    @override
    def cut_text(self, text: str, limit: int) -> str:
        # `left` and `substring` read past the end of a text with fewer characters, but more bytes, than the limit.
        return f"CASE WHEN size({text}) > {limit} THEN left({text}, {limit}) ELSE {text} END"

    @override
    def subquery(self, parts: Sequence[str], imported: Sequence[str]) -> str:
        return f"CALL {{ {' UNION ALL '.join(f'WITH {", ".join(imported)} {part}' for part in parts)} }}"

    @override
    def quoted(self, name: str) -> str:
        if "`" in name:
            raise QueryFailed(f"{name!r} cannot be searched: FalkorDB cannot escape a backtick")
        return f"`{name}`"

    @override
    def equal(self, found: str, wanted: str) -> str:
        # An expression avoids the index, which does not find values with a blank at either end.
        return f"coalesce({found}, '') = {wanted}"

    @override
    def within(self, target: SearchTarget) -> Fragment:
        scope = target.scope
        # The property's index is the fastest, and does not find values with a blank at either end.
        plain = next((name for name in _NARROW if name in scope and scope[name] == scope[name].strip(_BLANKS)), None)
        if plain is not None and target.key:
            return f"MATCH (n:{self.label(target)} {{{self.quoted(plain)}: $__gw_{plain}}})", {}
        text = target.text
        if not scope or text is None or text.scopes is None:
            return f"MATCH (n:{self.label(target)})", {}
        question = " ".join(self._scopes(text, scope))
        return self.holding(text, target), {"__gw_question": question}

    @override
    def holding(self, text: TextSide, target: SearchTarget) -> str:
        return f"CALL db.idx.fulltext.queryNodes({string(target.labels[0])}, $__gw_question) YIELD node AS n"

    @override
    def question(self, text: TextSide, scope: Mapping[str, str], terms: Sequence[str]) -> str:
        if text.terms:
            return " ".join((f"@{text.terms}:({'|'.join(map(phrase, terms))})", *self._scopes(text, scope)))
        words: dict[str, None] = {}
        for term in terms:
            words[term] = None  # bare, so that it matches stemmed words
            if start := self.beginnings(term):
                words[f"{start}*"] = None
        fields = "|".join(escaped(name) for name in text.properties)
        return f"@{fields}:({'|'.join(words)})"

    @override
    def near(self, target: SearchTarget, vector: VectorSide) -> Fragment:
        names = f"{string(target.labels[0])}, {string(vector.property)}"
        return f"CALL db.idx.vector.queryNodes({names}, $__gw_wide, vecf32($__gw_vector)) YIELD node AS n", {}

    @override
    def score(self, vector: VectorSide) -> str:
        both = f"n.{self.quoted(vector.property)}, vecf32($__gw_vector)"
        if vector.similarity == "euclidean":
            return f"1.0 / (1.0 + vec.euclideanDistance({both}) ^ 2)"
        return f"1.0 - vec.cosineDistance({both}) / 2.0"

    def _scopes(self, text: TextSide, scope: Mapping[str, str]) -> list[str]:
        return [f"@{text.scopes}:({phrase(scope_term(name, value))})" for name, value in scope.items()]


FALKORDB: Final = FalkorDBDialect()
