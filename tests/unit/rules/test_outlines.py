"""Each text is divided into words once, however many analyses read it, and in whatever order."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from graphweft_contracts.search import SearchQuery
from graphweft_rules.cypher import clauses, part_parser
from graphweft_rules.cypher.clauses import Outline, once, outline
from graphweft_rules.cypher.given_names import name_sources
from graphweft_rules.cypher.merge_keys import looked_up, merge_keys
from graphweft_rules.cypher.named_calls import named_calls
from graphweft_rules.cypher.node_labels import shared_labels
from graphweft_rules.cypher.parts import Part
from graphweft_rules.cypher.query import parse, rule_outline
from graphweft_rules.cypher.read_write_sets import read_write_sets, summary_of
from graphweft_rules.matching.searches import parse_retrieval
from graphweft_rules.text_limits import QUERY, RETRIEVAL
from graphweft_workers.drivers import dialects
from graphweft_workers.drivers.falkordb.late_work import works_late
from graphweft_workers.drivers.falkordb.statements import spares_checkpoints
from graphweft_workers.drivers.neo4j.namespaces import LIVE, refusal
from graphweft_workers.injection.match import bind_search
from graphweft_workers.retrieval.search import _ordered

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the texts that are divided into words, and those whose parts are read."""
    found: Counter[str] = Counter()
    tokenize, parts = clauses.tokenize, part_parser._parts

    def counted(text: str) -> list[Any]:
        found[f"words of {text}"] += 1
        return tokenize(text)

    def counted_parts(query: Outline) -> tuple[Part, ...]:
        found[f"parts of {query.text}"] += 1
        return parts(query)

    monkeypatch.setattr(clauses, "tokenize", counted)
    monkeypatch.setattr(part_parser, "_parts", counted_parts)
    return found


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("MERGE (o:Once {id: $id}) SET o.x = $x", "MERGE (o:Once {id: $id}) SET o.x = $x"),
        ("MERGE (o:Once {id: $id}) SET o.at = datetime();", "MERGE (o:Once {id: $id}) SET o.at = $__datetime"),
        ("MATCH (o:Once) WHERE (o)-->() SET o.x = 1", "MATCH (o:Once) WHERE (o)-->() SET o.x = 1"),
    ],
)
def test_a_rule_reads_each_text_once(read: Counter[str], text: str, statement: str) -> None:
    for _ in range(2):  # the checks of a rule file, and the compiler
        cypher = parse(text, role="mutation", dialects=dialects())
        assert cypher.statement == statement
        shared = shared_labels([cypher])
        summary_of([cypher])
        read_write_sets([cypher])
        for dialect in dialects():
            cypher.batch_query(dialect, shared)
        for analysis in (name_sources, merge_keys, looked_up, works_late, spares_checkpoints, refusal):
            analysis(cypher.outline)
        LIVE.query(cypher)
    wanted = {f"{what} of {each}" for what in ("words", "parts") for each in (text, statement)}
    assert read.keys() <= wanted
    assert set(read.values()) == {1}


def test_a_request_reads_its_query_once(read: Counter[str]) -> None:
    text = "MATCH (node)-[:ONCE]->(m) RETURN m.text AS text, score ORDER BY score DESC"
    for _ in range(3):
        bound = bind_search(SearchQuery(text="x", index_name="i", retrieval_query=text), NOW)
        assert not isinstance(bound, str)
        assert _ordered(text)
        refused = bind_search(SearchQuery(text="x", index_name="i", retrieval_query=f"{text} USE g"), NOW)
        assert isinstance(refused, str)
    assert read[f"parts of {text}"] == 1
    assert sum(read.values()) <= 6  # by the search as well, which has only the text


def test_texts_beyond_the_limits_are_not_kept() -> None:
    for read, limits in ((parse_retrieval, RETRIEVAL), (rule_outline, QUERY)):
        short = "MATCH (node)-[:KEPT]->(m) RETURN m.text AS text, score ORDER BY score DESC"
        long = f"{short} // {limits.characters * 'x'}"
        assert read(short) is read(short)
        assert read(long) is not read(long)


def test_an_outline_keeps_what_an_analysis_finds() -> None:
    seen: list[str] = []

    @once
    def count(query: Outline) -> None:
        seen.append(query.text)

    one, equal = outline("RETURN 1"), outline("RETURN 1")
    for query in (one, one, equal):
        assert count(query) is None
    assert seen == ["RETURN 1", "RETURN 1"]
    assert one == equal
    assert hash(one) == hash(equal)
    assert one != outline("RETURN 2")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("RETURN size(x) + Apoc . `text` . join(a, toUpper(b))", ["size", "Apoc.text.join", "toUpper"]),
        ("RETURN [(a).b(1), $p.c(1), [1][0].d(1), x.e]", []),
        ("MATCH (n) WHERE (n) RETURN `a.b`(", ["MATCH", "WHERE", "a.b"]),
        ("CALL db.labels() YIELD label RETURN 'f(1)' // g(1)", ["db.labels"]),
    ],
)
def test_calls_are_found_in_any_text(text: str, names: list[str]) -> None:
    assert [call.name for call in named_calls(outline(text))] == names


@pytest.mark.timeout(60)
@pytest.mark.parametrize("statement", [
    "MERGE (p:P {id: $id}) WITH p, p.x. AS a SET p.y = a",
    "MATCH (p:P) WITH (p). AS a, [p][0]. AS b SET a.x = p.y.",
    "MERGE (p:P {id: $id.}) SET p.x = $a. + p.",
])  # fmt: skip
def test_a_dot_without_a_name_ends_an_analysis(statement: str) -> None:
    """What lint refuses, or the server, is still analysed, and every analysis ends."""
    cypher = parse(statement, role="mutation")
    assert read_write_sets([cypher])
    shared_labels([cypher])
