"""What Neo4j does that a store must not trust: a red test here says that a newer server does otherwise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import neo4j
import pytest
from neo4j.exceptions import Neo4jError
from tests.services.neo4j import Neo4jServer

pytestmark = pytest.mark.integration
WRITERS = 4
ROUNDS = 40


@pytest.fixture
def driver(neo4j_server: Neo4jServer) -> Iterator[neo4j.Driver]:
    with neo4j.GraphDatabase.driver(neo4j_server.uri, notifications_min_severity="OFF") as driver:
        execute(driver, "MATCH (n) DETACH DELETE n")
        for name, *_ in execute(driver, "SHOW CONSTRAINTS YIELD name WHERE NOT name STARTS WITH 'graphweft'"):
            execute(driver, f"DROP CONSTRAINT `{name}`")
        yield driver


def execute(driver: neo4j.Driver, statement: str, **params: Any) -> list[list[Any]]:
    with driver.session() as session:
        return session.run(statement, params).values()


def refusal(driver: neo4j.Driver, statement: str, **params: Any) -> str:
    with pytest.raises(Neo4jError) as caught:
        execute(driver, statement, **params)
    return f"{caught.value.code} {caught.value.message}"


def at_once(work: Any) -> None:
    threads = [threading.Thread(target=work) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_reading_the_position_before_the_lock_doubles(driver: neo4j.Driver) -> None:
    """Two writers read the same position; the lock that both take afterwards only puts them in a row."""
    execute(driver, "CREATE (:P {pos: 0, effects: 0})")
    one, other = driver.session(), driver.session()
    with one, other:
        first, second = one.begin_transaction(), other.begin_transaction()
        seen = [t.run("MATCH (p:P) RETURN p.pos").values()[0][0] for t in (first, second)]
        for transaction, pos in zip((first, second), seen, strict=True):
            values = transaction.run("MATCH (p:P) SET p.lock = true RETURN p.pos").values()
            assert values in ([[0]], [[1]])  # behind the lock the truth could be read
            transaction.run("MATCH (p:P) SET p.effects = p.effects + 1, p.pos = $pos", pos=pos + 1).consume()
            transaction.commit()
    assert execute(driver, "MATCH (p:P) RETURN p.pos, p.effects") == [[1, 2]]


def test_reading_the_position_behind_the_lock_is_exact(driver: neo4j.Driver) -> None:
    execute(driver, "CREATE (:P {pos: 0, effects: 0})")

    def work() -> None:
        with driver.session() as session:
            for _ in range(ROUNDS):
                with session.begin_transaction(timeout=30) as transaction:
                    [[pos]] = transaction.run("MATCH (p:P) SET p.lock = true WITH p RETURN p.pos").values()
                    values = {"pos": pos + 1}
                    transaction.run("MATCH (p:P) SET p.effects = p.effects + 1, p.pos = $pos", values).consume()

    at_once(work)
    assert execute(driver, "MATCH (p:P) RETURN p.pos, p.effects") == [[WRITERS * ROUNDS, WRITERS * ROUNDS]]


def merge_twice(driver: neo4j.Driver) -> int:
    merge = "MERGE (m:Merged {id: 1})"
    one, other = driver.session(), driver.session()
    second = threading.Thread(target=lambda: other.run(merge).consume())
    with one, other:
        first = one.begin_transaction()
        first.run(merge).consume()
        second.start()
        second.join(1)  # it either ends, or waits for the first
        first.commit()
        second.join()
    return len(execute(driver, "MATCH (m:Merged) RETURN m"))


def test_merge_without_a_constraint_makes_two(driver: neo4j.Driver) -> None:
    assert merge_twice(driver) == 2


def test_merge_with_a_constraint_makes_one(driver: neo4j.Driver) -> None:
    execute(driver, "CREATE CONSTRAINT merged FOR (m:Merged) REQUIRE m.id IS UNIQUE")
    assert merge_twice(driver) == 1


COUNTING = "MERGE (n:N {id: $id}) WITH n MATCH (m:N) WITH n, count(m) AS c SET n.c = c"


def test_rows_without_a_subquery_are_not_in_order(driver: neo4j.Driver) -> None:
    """Each clause runs for all rows before the next one does, so the first row sees what the last one wrote."""
    execute(driver, f"UNWIND [1, 2, 3] AS id {COUNTING.replace('$id', 'id').replace('WITH n MATCH', 'WITH n MATCH')}")
    assert execute(driver, "MATCH (n:N) RETURN n.c ORDER BY n.id") == [[3], [3], [3]]


def test_rows_of_a_subquery_are_in_order(driver: neo4j.Driver) -> None:
    execute(driver, f"UNWIND [1, 2, 3] AS id CALL (id) {{ {COUNTING.replace('$id', 'id')} }}")
    assert execute(driver, "MATCH (n:N) RETURN n.c ORDER BY n.id") == [[1], [2], [3]]


DELETED = [
    "MATCH (a:Trap {k: 1}) SET a:Hot",
    "MATCH (a:Hot {k: 1}) DETACH DELETE a",
    "MERGE (a:Hot {k: 1})",
]


def test_a_deleted_node_is_found_by_the_index_entry_that_it_got(driver: neo4j.Driver) -> None:
    for label in ("Trap", "Hot"):
        execute(driver, f"CREATE INDEX IF NOT EXISTS FOR (n:{label}) ON (n.k)")
    execute(driver, "CALL db.awaitIndexes(30)")
    execute(driver, "CREATE (:Trap {k: 1})")
    with driver.session() as session, session.begin_transaction() as transaction:
        for statement in DELETED:
            transaction.run(statement).consume()
        transaction.commit()
    assert execute(driver, "MATCH (a:Hot) RETURN count(a)") == [[0]]
    execute(driver, "CREATE (:Trap {k: 1})")
    for statement in DELETED:
        execute(driver, statement)
    assert execute(driver, "MATCH (a:Hot) RETURN count(a)") == [[1]]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("MATCH (n:A) WITH n LIMIT $p SET n.x = 1", "refer to variables in LIMIT"),
        ("MATCH (n:A) WITH n SKIP $p SET n.x = 1", "refer to variables in SKIP"),
        ("CREATE (n:L $p)", "expected a parameter"),
        ("MATCH (n:A) WITH count(*) + $p AS c CREATE (:C {c: c})", "implicit grouping"),
        ("MATCH (n:A) CALL (n) { SET n.x = $p }", "not defined"),
        ("MATCH (n:A) CALL { WITH n SET n.x = $p }", "not defined"),
        ("CREATE (n:A {x: $p}) RETURN n.x", "must be aliased"),
        ("CREATE (n:A {x: $p}) RETURN *", "already declared"),
    ],
)
def test_what_takes_a_parameter_may_refuse_a_variable(driver: neo4j.Driver, statement: str, said: str) -> None:
    execute(driver, f"EXPLAIN {statement}")
    assert said in refusal(driver, f"EXPLAIN UNWIND $rows AS p CALL (p) {{ {statement.replace('$p', 'p')} }} FINISH")


def test_a_query_that_returns_cannot_end_in_its_subquery(driver: neo4j.Driver) -> None:
    wrapped = "UNWIND [1] AS p CALL (p) { CREATE (n:A {x: p}) RETURN n }"
    assert "SyntaxError" in refusal(driver, f"EXPLAIN {wrapped}")
    for end in ("FINISH", "RETURN count(*)"):
        execute(driver, f"EXPLAIN {wrapped} {end}")


def test_a_time_limit_has_three_codes(driver: neo4j.Driver) -> None:
    """Which one depends on what the transaction does when its time is over: none of them is retried by the driver."""
    codes = set()
    for statement in (
        "UNWIND range(1, 100000000) AS i CREATE (:Flood {i: i})",
        "UNWIND range(1, 1000000000) AS i WITH i WHERE i < 0 RETURN i",
    ):
        with driver.session() as session, pytest.raises(Neo4jError) as caught:
            session.run(neo4j.Query(statement, timeout=0.3)).consume()
        assert not caught.value.is_retryable()
        codes.add(caught.value.code)
    assert codes <= {
        "Neo.ClientError.Transaction.LockClientStopped",
        "Neo.ClientError.Transaction.TransactionTimedOut",
        "Neo.ClientError.Transaction.TransactionTimedOutClientConfiguration",
    }
    assert execute(driver, "MATCH (f:Flood) RETURN count(f)") == [[0]]


def test_whoever_waits_for_a_lock_beyond_his_time_is_not_told_so(driver: neo4j.Driver) -> None:
    """It is the code that a query gets that is slow itself: so the lock has a statement of its own."""
    execute(driver, "CREATE (:P {pos: 0})")
    with driver.session() as one, driver.session() as other:
        holder = one.begin_transaction(timeout=30)
        holder.run("MATCH (p:P) SET p.lock = true").consume()
        with pytest.raises(Neo4jError) as caught:
            other.run(neo4j.Query("MATCH (p:P) SET p.lock = true", timeout=0.3)).consume()
        holder.rollback()
    assert caught.value.code == "Neo.ClientError.Transaction.LockClientStopped"


def test_the_type_of_a_parameter_is_a_matter_of_syntax(driver: neo4j.Driver) -> None:
    """So EXPLAIN without parameters says whether a query compiles at all, and not whether it does with these."""
    statement = "CREATE (:N {x: $p - 1})"
    execute(driver, f"EXPLAIN {statement}")
    assert "SyntaxError" in refusal(driver, statement, p="text")


def test_an_explained_statement_keeps_its_plan_only_with_its_parameters(neo4j_server: Neo4jServer) -> None:
    """So a statement that is explained and then run is planned once."""
    statement = "EXPLAIN CALL () { UNWIND $p.rows AS row CREATE (:N {x: row}) FINISH } FINISH"
    with neo4j.GraphDatabase.driver(neo4j_server.uri) as driver, driver.session() as session:
        said = [
            {each.gql_status for each in session.run(statement, given).consume().gql_status_objects}
            for given in ({}, {"p": {}})
        ]
    assert ["01N60" in statuses for statuses in said] == [True, False]  # "The query plan cannot be cached"


def test_errors_quote_what_is_private(driver: neo4j.Driver) -> None:
    execute(driver, "CREATE CONSTRAINT one FOR (n:One) REQUIRE n.id IS UNIQUE")
    execute(driver, "CREATE (:One {id: 'private'})")
    for statement, value in (
        ("CREATE (:One {id: $p})", "private"),
        ("CREATE (:N {x: $p})", {"a": "private"}),
        ("CREATE (:N {x: date($p)})", "private"),
    ):
        assert "private" in refusal(driver, statement, p=value)


def test_a_constraint_that_is_there_is_not_made_again(driver: neo4j.Driver) -> None:
    for _ in range(2):
        execute(driver, "CREATE CONSTRAINT merged IF NOT EXISTS FOR (m:Merged) REQUIRE m.id IS UNIQUE")


def test_community_has_one_database(driver: neo4j.Driver) -> None:
    assert execute(driver, "CALL dbms.components() YIELD edition") == [["community"]]
    assert "Unsupported administration command" in refusal(driver, "CREATE DATABASE other IF NOT EXISTS")
    with driver.session(database="other") as session, pytest.raises(Neo4jError) as caught:
        session.run("RETURN 1").consume()
    assert caught.value.code == "Neo.ClientError.Database.DatabaseNotFound"


def test_a_native_time_compares_with_no_text_but_its_milliseconds_do(driver: neo4j.Driver) -> None:
    """What ``lint`` advises (``text-time``): in rules ``datetime()`` is text, and ``timestamp()`` a number."""
    execute(driver, "CREATE (:Doc {valid_at: datetime('2026-02-01T10:00:00+01:00')})")
    now = {"text": "2026-02-01T09:00:00.000000Z", "ms": 1_769_936_400_000}
    assert execute(driver, "MATCH (f:Doc) WHERE f.valid_at <= $text OR f.valid_at >= $text RETURN f", **now) == []
    found = "MATCH (f:Doc) WHERE f.valid_at.epochMillis <= $ms RETURN count(f)"
    assert execute(driver, found, **now) == [[1]]
    assert execute(driver, found, ms=now["ms"] - 1) == [[0]]
