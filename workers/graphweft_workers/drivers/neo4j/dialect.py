"""The Cypher of Neo4j (checked on 5.26)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, override

from graphweft_rules.cypher.batch_query import BatchQuery
from graphweft_rules.cypher.clauses import Outline
from graphweft_workers.drivers.neo4j.batch_query import neo4j_batch_query
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


def quoted(name: str) -> str:
    """Return a name, quoted."""
    # The server reads \u0060 as a backtick before it looks for the end of a name, so each backslash is written so too.
    return "`" + name.replace("\\", "\\u005c").replace("`", "``") + "`"


class Neo4jDialect(GraphDialect):
    """The Cypher of Neo4j."""

    name = "neo4j"
    title = "Neo4j"
    list_indexes = (
        "SHOW INDEXES YIELD name, type, entityType, labelsOrTypes, properties, options, state "
        "WHERE entityType = 'NODE' AND type IN ['FULLTEXT', 'VECTOR'] "
        "RETURN name, type, labelsOrTypes, properties, options, state"
    )
    # A query is planned anew, in half a second, when a parameter is null for once, or a list or a text has ten times
    # the size. The server does not look into maps for that.
    one_parameter = True
    # Each row is a message of its own, which the driver waits for, reads and unpacks by itself.
    one_row = True
    no_node = "4:00000000-0000-0000-0000-000000000000:0"

    @override
    def batch_query(self, query: Outline, params: Iterable[str], *, shared: frozenset[str] | None = None) -> BatchQuery:
        return neo4j_batch_query(query, tuple(params))

    @override
    def read_indexes(self, rows: Iterable[Sequence[Any]]) -> list[ListedIndex]:
        found: list[ListedIndex] = []
        for name, kind, labels, properties, options, state in rows:
            said: Mapping[str, Any] = options["indexConfig"]
            found.append(
                ListedIndex(
                    kind="vector" if kind == "VECTOR" else "fulltext",
                    name=name,
                    labels=tuple(labels),
                    properties=tuple(properties),
                    dimensions=said.get("vector.dimensions"),
                    similarity=similarity_of(said.get("vector.similarity_function")),
                    is_built=state == "ONLINE",
                )
            )
        return found

    @override
    def node_id(self, variable: str) -> str:
        return f"elementId({variable})"

    @override
    def is_node_id(self, value: object) -> bool:
        return type(value) is str and value != ""

    @override
    def short_text(self, value: str, limit: int) -> str:
        return f"CASE WHEN {value} IS :: STRING OR {value} IS :: INTEGER THEN left(toString({value}), {limit}) END"

    @override
    def first_text(self, values: Sequence[str]) -> str:
        is_text = "IS :: STRING NOT NULL OR {0} IS :: INTEGER NOT NULL"
        cases = " ".join(f"WHEN {value} {is_text.format(value)} THEN {value}" for value in values)
        return f"toString(CASE {cases} ELSE '' END)"

    @override
    def cut_text(self, text: str, limit: int) -> str:
        return f"left({text}, {limit})"

    @override
    def subquery(self, parts: Sequence[str], imported: Sequence[str]) -> str:
        return f"CALL ({', '.join(imported)}) {{ {' UNION ALL '.join(parts)} }}"

    @override
    def quoted(self, name: str) -> str:
        return quoted(name)

    @override
    def within(self, target: SearchTarget) -> Fragment:
        return f"MATCH (n:{self.label(target)})", {}

    @override
    def holding(self, text: TextSide, target: SearchTarget) -> str:
        return f"CALL db.index.fulltext.queryNodes({string(text.index)}, $__gw_question) YIELD node AS n"

    @override
    def question(self, text: TextSide, scope: Mapping[str, str], terms: Sequence[str]) -> str:
        if text.terms:
            scopes = [f'{text.scopes}:"{scope_term(name, value)}"' for name, value in scope.items()]
            return " AND ".join((f"{text.terms}:({' '.join(map(phrase, terms))})", *scopes))
        words: dict[str, None] = {}
        for term in terms:
            words[phrase(term)] = None
            if start := self.beginnings(term):
                words[f"{start}*"] = None
        return " ".join(f"{escaped(name)}:({' '.join(words)})" for name in text.properties)

    @override
    def sure(self, target: SearchTarget) -> list[str]:
        # A fulltext index may cover several labels.
        return [] if target.key else [f"n:{self.label(target)}"]

    @override
    def near(self, target: SearchTarget, vector: VectorSide) -> Fragment:
        call = "CALL db.index.vector.queryNodes($__gw_index, $__gw_wide, $__gw_vector) YIELD node AS n"
        return call, {"__gw_index": vector.index}

    @override
    def score(self, vector: VectorSide) -> str:
        return f"vector.similarity.{vector.similarity}(n.{self.quoted(vector.property)}, $__gw_vector)"


NEO4J: Final = Neo4jDialect()
