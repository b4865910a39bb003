"""The text that lets rows of a mutation share a query on Neo4j. Whether the server takes it: test_neo4j_store.py."""

from __future__ import annotations

import pytest

from graphweft_rules.cypher.clauses import outline
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.neo4j.batch_query import neo4j_batch_query


def ordered(text: str) -> str:
    """Return what stands in the subquery of the statement's form."""
    query = parse(text, role="mutation")
    form = neo4j_batch_query(query.outline, query.columns)
    assert (form.mode, form.reason, form.columns) == ("ordered", "", query.columns)
    values = [f"__gw_p{number}" for number in range(len(query.columns))]
    bound = ", ".join(f"__gw_row[{number}] AS {value}" for number, value in enumerate(values, start=1))
    head = f"{f'WITH {bound} ' if bound else ''}CALL ({', '.join(values)}) {{ "
    assert form.statement.startswith(head)
    assert form.statement.endswith("\n}")
    return form.statement[len(head) : -2]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("MERGE (n:N {id: $id}) SET n.x = $x", "MERGE (n:N {id: __gw_p0}) SET n.x = __gw_p1"),
        ("MERGE (n:N {id: $b, a: $a, c: $b})", "MERGE (n:N {id: __gw_p1, a: __gw_p0, c: __gw_p1})"),
        ("CREATE (:N {x: 1})", "CREATE (:N {x: 1})"),
        ("WITH $a AS a MERGE (n:N {id: a})", "WITH __gw_p0 AS a MERGE (n:N {id: a})"),
        ("MERGE (n:N {x: '$a', y: $a}) // $a", "MERGE (n:N {x: '$a', y: __gw_p0})"),
        ("MERGE (n:`$a` {x: $ a, y: $`a`})", "MERGE (n:`$a` {x: __gw_p0, y: __gw_p0})"),
        ("CREATE (n:N) SET n = $p", "CREATE (n:N) SET n = __gw_p0"),
        ("CREATE (n:N) SET n += $p.more", "CREATE (n:N) SET n += __gw_p0.more"),
        ("CREATE (:N {x: (NOT $p)})", "CREATE (:N {x: (NOT __gw_p0)})"),
        ("FOREACH (x IN $l | CREATE (:N {x: x, p: $p}))", "FOREACH (x IN __gw_p0 | CREATE (:N {x: x, p: __gw_p1}))"),
        # subqueries see what they name
        ("MATCH (n:N) CALL (n) { SET n.x = $p }", "MATCH (n:N) CALL (n, __gw_p0) { SET n.x = __gw_p0 }"),
        ("CALL () { CREATE (:N {x: $p}) }", "CALL (__gw_p0) { CREATE (:N {x: __gw_p0}) }"),
        ("CALL { CREATE (:N {x: $p}) }", "CALL (__gw_p0) { CREATE (:N {x: __gw_p0}) }"),
        ("MATCH (n:N) CALL (*) { SET n.x = $p }", "MATCH (n:N) CALL (*) { SET n.x = __gw_p0 }"),
        ("CALL { WITH 1 AS x CREATE (:N {x: x}) } CREATE (:M)", "CALL { WITH 1 AS x CREATE (:N {x: x}) } CREATE (:M)"),
        (
            "CALL () { CALL () { CREATE (:N {x: $b}) } CREATE (:M {x: $a}) }",
            "CALL (__gw_p1, __gw_p0) { CALL (__gw_p1) { CREATE (:N {x: __gw_p1}) } CREATE (:M {x: __gw_p0}) }",
        ),
        # results have the names that the server would give them
        ("CREATE (n:N) RETURN n", "CREATE (n:N) RETURN n"),
        ("CREATE (n:N) RETURN n.x", "CREATE (n:N) RETURN n.x AS `n.x`"),
        ("CREATE (n:N) RETURN $p", "CREATE (n:N) RETURN __gw_p0 AS `$p`"),
        ("CREATE (n:N) RETURN n { .* }, null", "CREATE (n:N) RETURN n { .* }, null AS `null`"),
        ("CREATE (n:N) RETURN DISTINCT n.`a`, 1 AS x", "CREATE (n:N) RETURN DISTINCT n.`a` AS `n.``a```, 1 AS x"),
        (
            "CREATE (n:N) RETURN max([n.x, 1]), {a: 1, b: 2} ORDER BY n.x LIMIT 1",
            "CREATE (n:N) RETURN max([n.x, 1]) AS `max([n.x, 1])`, {a: 1, b: 2} AS `{a: 1, b: 2}` ORDER BY n.x LIMIT 1",
        ),
        (
            "CREATE (n:N) RETURN 1 UNION CREATE (n:M) RETURN 1",
            "CREATE (n:N) RETURN 1 AS `1` UNION CREATE (n:M) RETURN 1 AS `1`",
        ),
        ("CREATE (n:N {x: $x}) RETURN *", "CREATE (n:N {x: __gw_p0}) FINISH"),
        ("CREATE (n:N) RETURN DISTINCT *", "CREATE (n:N) FINISH"),
        # counting
        ("MATCH (n) WITH $p AS p, count(n) AS c SET p.x = c", "MATCH (n) WITH __gw_p0 AS p, count(n) AS c SET p.x = c"),
        (
            "MATCH (n:N) WITH sum(n.x * $p) + 1 AS c CREATE (:C {c: c})",
            "MATCH (n:N) WITH sum(n.x * __gw_p0) + 1 AS c CREATE (:C {c: c})",
        ),
    ],
)  # fmt: skip
def test_values_take_the_place_of_parameters(text: str, inside: str) -> None:
    assert ordered(text) == inside


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("MATCH (n:N) WITH n LIMIT $p SET n.x = 1", "LIMIT $p"),
        ("MATCH (n:N) WITH n SKIP toInteger($p) SET n.x = 1", "SKIP $p"),
        ("CREATE (n:N $p)", "SET n = $p"),
        ("CREATE (:N:M $p)", "SET n = $p"),
        ("MATCH (n:N) CREATE (n)-[:R $p]->(n)", "SET n = $p"),
        ("CREATE (n $p)", "SET n = $p"),
        ("MATCH (n:N) WITH count(*) + $p AS c CREATE (:C {c: c})", "then use $p"),
        ("MATCH (n:N) WITH `count`(*) + $p AS c CREATE (:C {c: c})", "then use $p"),
        ("MATCH (n:N) WITH {a: $p, c: Collect(n.x)} AS m CREATE (:C {c: m.c})", "then use $p"),
        ("MATCH (n:N) SET n.x = 1 RETURN max(n.x) > $p", "then use $p"),
        ("MATCH (n:N) CALL { WITH n SET n.x = $p }", "CALL (n) { … }"),
        ("CREATE (n:N {x: $p}) RETURN * UNION CREATE (n:M) RETURN *", "RETURN *"),
        ("CREATE (n:N {x: $p}) RETURN * LIMIT 1", "RETURN *"),
        ("CREATE (n:N {x: $p}) RETURN *, 1 AS x", "RETURN *"),
    ],
)
def test_what_a_variable_cannot_stand_in_goes_row_by_row(text: str, reason: str) -> None:
    query = parse(text, role="mutation")
    form = neo4j_batch_query(query.outline, query.columns)
    assert (form.mode, form.statement, form.columns) == ("single", query.statement, query.columns)
    assert reason in form.reason


@pytest.mark.parametrize(
    "text", ["", "$", "RETURN", "CALL", "CALL (", "MATCH (n", "}", "RETURN *", "CREATE (n:N $p", "'"]
)
def test_no_text_is_too_odd(text: str) -> None:
    neo4j_batch_query(outline(text), ("p",))


def test_a_parameter_without_a_value_is_not_replaced() -> None:
    assert neo4j_batch_query(outline("CREATE (:N {x: $p})"), ()).mode == "single"
