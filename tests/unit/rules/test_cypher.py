from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from graphweft_rules.cypher.clauses import outline
from graphweft_rules.cypher.query import Cypher, Role, parse
from graphweft_rules.matching.clock import clock_values, utc_text, uuid_values
from graphweft_workers.drivers import dialects
from graphweft_workers.drivers.falkordb.late_work import late_work, works_late

CONTRACT = Path(__file__).parents[2] / "fixtures" / "contract"
WHEN = datetime(2026, 2, 1, 11, 0, tzinfo=timezone(timedelta(hours=1)))


def codes(text: str, role: Role = "mutation") -> list[str]:
    return [problem.code for problem in parse(text, role=role, dialects=dialects()).problems]


def statement(text: str, role: Role = "mutation") -> str:
    return parse(text, role=role).statement


def contract_queries() -> list[tuple[str, Role]]:
    found: list[tuple[str, Role]] = []
    for file in sorted(CONTRACT.glob("*/*.yaml")):
        rules: dict[str, Any] = yaml.safe_load(file.read_text())
        found += [(q["cypher"], "injection") for rule in rules.get("injection_rules", ()) for q in rule["queries"]]
        found += [(m["cypher"], "mutation") for rule in rules.get("mutation_rules", ()) for m in rule["mutations"]]
    return found


@pytest.mark.parametrize(("text", "role"), contract_queries())
def test_the_contracts_examples_have_no_problem(text: str, role: Role) -> None:
    cypher = parse(text, role=role, dialects=dialects())
    assert cypher.problems == ()
    assert cypher.writes == (role == "mutation")
    assert cypher.returns == (role == "injection")


def test_a_contract_mutation_in_full() -> None:
    text = (
        "MERGE (p:Pattern {name: $pattern_name})\nMERGE (j:Journey {id: $chat_id})\n"
        "MERGE (p)-[r:SELECTED_IN]->(j)\nSET r.timestamp = datetime(),\n    r.context = $context_summary\n"
    )
    assert parse(text, role="mutation") == Cypher(
        text=text,
        outline=outline(text.replace("datetime()", "$__datetime").rstrip()),
        params=frozenset({"pattern_name", "chat_id", "context_summary"}),
        clock=frozenset({"__datetime"}),
        uuids=0,
        writes=True,
        deletes=False,
        returns=False,
        keys=frozenset({("Pattern", "name"), ("Journey", "id")}),
        names=frozenset({("label", "Pattern"), ("label", "Journey"), ("type", "SELECTED_IN")}),
        problems=(),
    )


@pytest.mark.parametrize(
    "text",
    [
        "MATCH (o:D {k: $k}) MATCH (t:T {k: $k}) SET t:Case DELETE o",
        "MATCH (n:A) WITH n, 1 AS in DELETE n CREATE (:B)",
        "MATCH (n:A) FOREACH (x IN [n] | DETACH DELETE x)",
        "MATCH (n:A) CALL { WITH n DELETE n } RETURN 1",
    ],
)
def test_what_deletes_is_known(text: str) -> None:
    assert parse(text, role="mutation").deletes


@pytest.mark.parametrize(
    ("text", "labels", "types"),
    [
        ("MERGE (a:A:B {id: $x})-[:R]->(:C)<-[r:S|T*1..3 {k: b}]-(d:`D d`)", "A,B,C,D d", "R,S,T"),
        ("MATCH (n) WHERE n:X AND [x IN nodes(p) WHERE x:Y | x.v] = [] SET n:Z:W", "W,X,Y,Z", ""),
        ("MATCH (n:!(A|B)&C)-[:R|:Q]-() RETURN n[1..2], {a: b}", "A,B,C", "Q,R"),
        ("MATCH (n) FOREACH (x IN [1] | SET n:K) RETURN [(a)-[:R]->(b:L) | b.x]", "K,L", "R"),
        ("MATCH (a) WHERE EXISTS { MATCH (a)<-[:IN]-(:Q {z: y}) } RETURN a", "Q", "IN"),
        ("CALL { WITH a MATCH (m:M) RETURN m } RETURN CASE WHEN m:N THEN {t: u} END", "M,N", ""),
        ("MATCH (n:$x)-[:", "", ""),
        (":", "", ""),
    ],
)
def test_labels_and_types_are_named(text: str, labels: str, types: str) -> None:
    names = parse(text, role="mutation").names
    assert ",".join(sorted(name for kind, name in names if kind == "label")) == labels
    assert ",".join(sorted(name for kind, name in names if kind == "type")) == types


@pytest.mark.parametrize(
    ("call", "replacement"),
    [
        ("datetime()", "$__datetime"),
        ("DateTime ( )", "$__datetime"),
        ("datetime.transaction()", "$__datetime"),
        ("datetime . Statement /* now */ ()", "$__datetime"),
        ("timestamp()", "$__timestamp"),
        ("timestamp// now\n()", "$__timestamp"),
        ("date()", "date($__date)"),
        ("date.realtime()", "date($__date)"),
        ("date.`realtime`()", "date($__date)"),
        ("localdatetime . `Statement`()", "localdatetime($__localdatetime)"),
        ("`date`()", "date($__date)"),
        ("localdatetime()", "localdatetime($__localdatetime)"),
        ("localtime()", "localtime($__localtime)"),
        ("time()", "$__time"),
    ],
)
@pytest.mark.parametrize("role", ["injection", "mutation"])
def test_clock_calls_become_parameters(call: str, replacement: str, role: Role) -> None:
    cypher = parse(f"MATCH (n {{at: {call}}}) SET n.x = 1", role=role)
    assert cypher.statement == f"MATCH (n {{at: {replacement}}}) SET n.x = 1"
    assert len(cypher.clock) == 1
    assert next(iter(cypher.clock)) in replacement
    assert cypher.params == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        "MATCH (n:date {timestamp: 1, date: $d}) SET n.datetime = n.timestamp",
        "MATCH (n:A) SET n.a = 'datetime()', n.b = \"date()\", n.`time()` = 1",
        "MATCH (date:A) SET date.x = 1",
        "MATCH (n:A) SET n.x = date('2026-01-01'), n.y = localdatetime($x)",
        "MATCH (n:A) SET n.x = vec.date()",
    ],
)
def test_names_like_clock_functions_are_left_alone(text: str) -> None:
    assert statement(text) == text
    assert codes(text) == []


def test_random_ids_become_parameters_in_mutations_only() -> None:
    text = "CREATE (a:A {id: randomUUID()}) CREATE (b:B {id: randomuuid ( )})"
    assert statement(text) == "CREATE (a:A {id: $__uuid0}) CREATE (b:B {id: $__uuid1})"
    assert parse(text, role="mutation").uuids == 2
    assert codes(text) == []
    reading = "RETURN randomUUID() AS id, rand() AS r"
    assert (statement(reading, "injection"), parse(reading, role="injection").uuids) == (reading, 0)


@pytest.mark.parametrize(
    "text",
    [
        "MERGE (a:A {id: $id}) SET a.x = ^1",
        "MERGE (a:A {at: datetime()}) SET a.x = ^1",
        "MERGE (a:A {at: datetime.transaction(), on: date(), u: randomUUID()}) // é\nSET a.t = time(), a.x = ^1;",
        "/* two\nlines */ MERGE (a:A {id: $id}) /* 😀 */ SET a.x = ^1 // the end",
        "MERGE (a:A {id: $id}) SET a.t = ^datetime(/* now */), a.x = 1",
        "^MERGE (a:A {id: $id}) SET a.x = timestamp() ; ;",
    ],
)
def test_a_place_in_the_statement_is_found_in_the_text(text: str) -> None:
    before, after = text.split("^")
    cypher = parse(before + after, role="mutation")
    marker = "$__datetime, a.x" if after.startswith("datetime") else "1" if after.startswith("1") else "MERGE"
    offset = cypher.statement.rindex(marker)
    line = cypher.statement.count("\n", 0, offset) + 1
    column = offset - cypher.statement.rfind("\n", 0, offset)
    assert cypher.origin(line, column) == (before.count("\n") + 1, len(before) - before.rfind("\n"))


def test_statements_lose_semicolons_and_comments_but_no_line() -> None:
    assert statement("MATCH (n:A) // all; of them\nSET n.x = '//;' /* a\nb */ ; ; // end") == (
        "MATCH (n:A)  \nSET n.x = '//;'"
    )
    assert statement("MATCH (n)/* a\nb */SET n.x = 1") == "MATCH (n)\nSET n.x = 1"


@pytest.mark.parametrize(
    ("text", "writes", "returns"),
    [
        ("MATCH (n:Set {create: 1}) WHERE n.delete = 'SET' RETURN n.merge", False, True),
        ("MATCH (set:A) RETURN set", False, True),
        ("WITH 1 AS set RETURN set", False, True),
        ("WITH 1 AS x, 2 AS create RETURN x + create AS delete ORDER BY delete LIMIT 3", False, True),
        ("MATCH (n)-[:CREATE|SET]->() WHERE n.name STARTS WITH 'a' RETURN n {.set, create: 1}", False, True),
        ("RETURN CASE WHEN true THEN 1 END AS `MERGE`", False, True),
        ("MATCH (n) // SET n.x = 1\nRETURN n", False, True),
        ("MATCH (n) WHERE EXISTS { MATCH (n)-[:R]->() } RETURN n", False, True),
        ("MATCH (n) RETURN n UNION MATCH (n) RETURN n", False, True),
        ("MATCH (n:A) CALL { WITH n RETURN 1 AS x } SET n.x = x", True, False),
        ("MATCH (n:A) WITH * SET n.x = 1", True, False),
        ("MATCH (n:A) CALL { WITH n CREATE (m:B) RETURN m } RETURN m", True, True),
        ("FOREACH (x IN [a IN [1] | a] | MERGE (:A {id: x}))", True, False),
        ("MATCH (n:A) DETACH DELETE n", True, False),
        ("MATCH (n) REMOVE n.x RETURN n", True, True),
        ("MATCH (n:A) CALL { WITH n CREATE (m:B) RETURN m }", True, False),
        ("WITH 2 AS set RETURN 2 * set", False, True),
        ("MATCH (n:A) RETURN n.name STARTS WITH 'a' AS x", False, True),
        ("MATCH (n), (create) WHERE n.name STARTS WITH create.name RETURN n", False, True),
        ("merge (n:A {id: 1}) on create set n.x = 1", True, False),
    ],
)
def test_clauses_are_told_from_names(text: str, writes: bool, returns: bool) -> None:
    cypher = parse(text, role="mutation")
    assert (cypher.writes, cypher.returns) == (writes, returns)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("MATCH (u:User {id: $x})-[:R {k: 1}]->(:B {`b c`: 2}) SET u.x = 1", {("User", "id"), ("B", "b c")}),
        ("OPTIONAL MATCH (a:A:B {x: {y: 1, z: [2, 3]}, w: f(1, 2)}) SET a.q = 1", {("A", "x"), ("A", "w")}),
        ("MERGE (:`My Label` {id: 1})", {("My Label", "id")}),
        ("MATCH p = shortestPath((a:A {id: 1})-[*]-(b:B {id: 2})) SET a.x = 1", {("A", "id"), ("B", "id")}),
        ("FOREACH (x IN [1] | MERGE (:A {id: x}))", {("A", "id")}),
        ("MATCH (n:A) CALL { MATCH (a:A {id: 1}) RETURN a } SET a.x = 1", {("A", "id")}),
        ("CREATE (a:A {id: 1})", set()),
        ("MATCH (a:A) WHERE a.id = 1 AND (a)--(:B {id: 1}) SET a.x = {y: 1}", set()),
        ("MATCH (a {id: 1}), (b:B $props) SET a.x = 1", set()),
    ],
)
def test_keys_are_what_nodes_are_looked_up_by(text: str, keys: set[tuple[str, str]]) -> None:
    assert parse(text, role="mutation").keys == keys


@pytest.mark.parametrize(
    ("code", "role", "text", "place"),
    [
        ("empty", "mutation", " // nothing\n", (1, 1)),
        ("unterminated", "injection", "RETURN\n 'abc", (2, 2)),
        ("unterminated", "injection", "RETURN 1 /* abc", (1, 10)),
        ("unterminated", "injection", "RETURN `abc", (1, 8)),
        ("unbalanced", "injection", "MATCH (n RETURN n", (1, 7)),
        ("unbalanced", "injection", "RETURN [1)", (1, 10)),
        ("several-statements", "injection", "RETURN 1;\nRETURN 2", (2, 1)),
        ("write-in-injection", "injection", "MATCH (n)\n  SET n.x = 1 RETURN n", (2, 3)),
        ("no-write", "mutation", "MATCH (n:A) RETURN n", (1, 1)),
        ("reserved-name", "mutation", "MATCH (__n:A) SET __n.x = 1", (1, 8)),
        ("reserved-name", "injection", "MATCH (n:`__Progress`) RETURN n", (1, 10)),
        ("reserved-name", "injection", "RETURN $__x", (1, 8)),
        ("reserved-name", "injection", "MATCH (n) RETURN n.__x", (1, 20)),
        ("cypher-prefix", "injection", "CYPHER x=1 RETURN $x", (1, 1)),
        ("cypher-prefix", "injection", "explain RETURN 1", (1, 1)),
        ("admin", "mutation", "CREATE INDEX FOR (n:A) ON (n.x)", (1, 1)),
        ("admin", "injection", "DROP INDEX ON :A(x)", (1, 1)),
        ("admin", "mutation", "CREATE VECTOR INDEX FOR (n:A) ON (n.x)", (1, 1)),
        ("admin", "injection", "LOAD CSV FROM 'file://x' AS row RETURN row", (1, 1)),
        ("admin", "injection", "CALL db.idx.fulltext.createNodeIndex('A', 'x')", (1, 1)),
        ("param-as-label", "injection", "MATCH (n:$x) RETURN n", (1, 10)),
        ("param-as-label", "mutation", "MATCH (n:A) SET n:$x", (1, 19)),
        ("param-as-label", "mutation", "MATCH (n:A) SET n:$($x)", (1, 19)),
        ("param-as-label", "injection", "MATCH (n:$all($x)) RETURN n", (1, 10)),
        ("param-as-label", "injection", "MATCH (a:A)-[:$any(['R'])]->() RETURN a", (1, 15)),
        ("procedure", "injection", "CALL apoc.load.json('http://x') YIELD value RETURN value", (1, 6)),
        ("procedure", "injection", "CALL `apoc`.load . /* */ `json`($x) YIELD value RETURN value", (1, 6)),
        ("procedure", "mutation", "MATCH (n:A) CALL apoc.cypher.doIt($x, {}) YIELD value SET n.x = 1", (1, 18)),
        ("procedure", "mutation", "MATCH (n:A) CALL apoc.create.addLabels(n, [$x]) YIELD node SET n.x = 1", (1, 18)),
        ("procedure", "injection", "CALL dbms.listConfig YIELD name RETURN name", (1, 6)),
        ("procedure", "injection", "MATCH (n:A) CALL { CALL tx.setMetaData({}) RETURN 1 AS x } RETURN x", (1, 25)),
        ("function", "injection", "RETURN apoc.cypher.runFirstColumnSingle($x, {})", (1, 8)),
        ("function", "injection", "RETURN `apoc`.`load`.`x` ($x)", (1, 8)),
        ("use", "injection", "CALL { USE graph.byName($x) MATCH (n:A) RETURN n } RETURN n", (1, 8)),
        ("use", "injection", "MATCH (n:A) CALL (n) { USE other MATCH (m:A) RETURN m } RETURN m", (1, 24)),
        ("use", "injection", "MATCH (n:A) RETURN n NEXT USE other MATCH (m:A) RETURN m", (1, 27)),
        ("escaped-character", "mutation", "MERGE (n:`\\u005fProgress` {id: 1}) SET n.x = 1", (1, 11)),
        ("escaped-character", "injection", "MATCH (n:A) WHERE n.x = '\\u0027 OR true' RETURN n", (1, 26)),
        ("nondeterministic", "mutation", "MATCH (n:A) SET n.x = rand()", (1, 23)),
        ("no-datetime", "injection", "RETURN datetime('2026-01-01')", (1, 8)),
        ("no-datetime", "injection", "RETURN datetime().year", (1, 8)),
        ("no-datetime", "injection", "RETURN datetime.fromEpoch(1)", (1, 8)),
        ("no-datetime", "injection", "RETURN datetime() - duration('P1D')", (1, 8)),
        ("uuid-per-row", "mutation", "UNWIND $l AS x CREATE (:A {id: randomUUID()})", (1, 1)),
        (
            "two-merges-one-type",
            "mutation",
            "MATCH (a:A), (b:B)\nMERGE (a)-[:R]->(b) MERGE (b)-[x:R {k: 1}]->(a)",
            (2, 34),
        ),
        ("set-reads-old", "mutation", "MATCH (n:A) SET n.c = 1 SET n.d = n.c", (1, 35)),
        ("bare-node", "mutation", "MATCH (n) DETACH DELETE n", (1, 7)),
        ("bare-node", "mutation", "MATCH (t {id: $x, done: 0}) SET t.done = 1", (1, 7)),
        ("bare-node", "mutation", "MATCH (a:A), (b) CREATE (a)-[:R]->(b)", (1, 14)),
        ("bare-node", "mutation", "OPTIONAL MATCH () WITH count(*) AS c MERGE (:S {n: c})", (1, 16)),
        ("bare-node", "mutation", "MATCH (n {}) SET n = {}", (1, 7)),
        ("bare-node", "mutation", "MATCH (n {note: $x}) REMOVE n.pos", (1, 7)),
        ("bare-node", "mutation", "MATCH (n)-[r*0..1]-(m) SET n.x = 1", (1, 7)),
        ("bare-node", "mutation", "MATCH (a:A {n: 1}) MATCH (n) SET n.x = 1", (1, 26)),
        ("bare-node", "mutation", "MATCH (n:!A) DETACH DELETE n", (1, 7)),
        ("bare-node", "mutation", "MATCH (n:A|!(B|C) {app: $x}) SET n.x = 1", (1, 7)),
        ("bare-node", "mutation", "MATCH (n IS %) SET n.x = 1", (1, 7)),
        ("bare-node", "mutation", "MATCH (n WHERE n.x = 1) DELETE n", (1, 7)),
        ("bare-node", "mutation", "MATCH ((n)) DELETE n", (1, 8)),
        ("bare-node", "mutation", "MATCH p = shortestPath((n)-[*0..3]-(m)) DELETE n", (1, 24)),
        ("bare-node", "mutation", "MATCH (n)-[:R]->{0,3}(m) SET m.x = 1", (1, 7)),
        ("bare-node", "mutation", "MATCH (n)-->*(m) SET m.x = 1", (1, 7)),
        ("set-reads-old", "mutation", "MATCH (n:A) SET n.c = 1, n.d = n.c + 1", (1, 32)),
        ("names-from-data", "mutation", "MERGE (n:A {id: $i}) SET n.c = 1, n += $map", (1, 35)),
        ("names-from-data", "mutation", "MERGE (n:A {id: $i}) SET n = $map.inside", (1, 26)),
        ("names-from-data", "mutation", "UNWIND $rows AS r MERGE (n:A {id: r.id}) SET n += r.said", (1, 46)),
        ("map-in-pattern", "mutation", "CREATE (n:A $map)", (1, 8)),
        ("map-in-pattern", "injection", "MATCH (n:A $map) RETURN n.x", (1, 7)),
        (
            "work-after-write",
            "mutation",
            "MERGE (s:S {id: $id}) WITH s UNWIND range(1, 100000) AS x WITH s, count(x) AS n SET s.n = n",
            (1, 30),
        ),
        (
            "work-after-write",
            "mutation",
            "MERGE (s:S {id: $id}) WITH s UNWIND $xs AS x UNWIND $ys AS y CREATE (:P {x: x, y: y})",
            (1, 46),
        ),
        ("work-after-write", "mutation", "CREATE (s:S) WITH s MATCH (b:B) SET s.n = b.n", (1, 21)),
        ("work-after-write", "mutation", "CREATE (s:S) WITH s MATCH (b:B)-[:R]->(c:C) SET s.n = b.n", (1, 21)),
        ("work-after-write", "mutation", "MERGE (s:S {id: $id}) WITH s OPTIONAL MATCH (b:B) SET s.n = b.n", (1, 39)),
        ("work-after-write", "mutation", "FOREACH (x IN range(1, 50000) | CREATE (:N {x: x}))", (1, 1)),
        ("map-in-pattern", "mutation", "MATCH (a:A), (b:B) CREATE (a)-[:R $map]->(b)", (1, 30)),
    ],
)
def test_problems_have_a_code_and_a_place(code: str, role: Role, text: str, place: tuple[int, int]) -> None:
    problems = parse(text, role=role, dialects=dialects()).problems
    assert [(problem.code, problem.line, problem.column) for problem in problems if problem.code == code] == [
        (code, *place)
    ]
    assert [problem.code for problem in problems if problem.level == "error" and problem.code != code] == []


@pytest.mark.parametrize(
    "text",
    [
        "MATCH (n:A) SET n.s = 'caf\\u00e9', n.t = date.truncate('day', n.d), n.u = apoc.text.clean($x)",
        "CALL db.index.fulltext.queryNodes('i', $x) YIELD node MATCH (node)--(m:A) SET m.use = node.use",
        "MATCH (n:A) CALL algo.BFS(n, 2, 'R') YIELD nodes UNWIND nodes AS use SET use.x = 1",
        "MATCH (n {id: $x}) SET n.done = 1",
        "MATCH (n:A), (m:B) SET n += {a: $a, b: $map.b}, n = properties(m), n += m",
        "MERGE (o:Order {id: $id}) WITH o UNWIND $items AS i MERGE (p:P {id: i.id}) MERGE (o)-[:HAS]->(p)",
        "MERGE (o:Order {id: $id}) WITH o UNWIND $xs AS x UNWIND x.tags AS y MERGE (p:P {y: y})",
        "MERGE (s:S {id: $id}) WITH s UNWIND range(0, 6) AS x CREATE (s)-[:DAY]->(:Day {x: x})",
        "MERGE (s:S {id: $id}) WITH s MATCH (s)-[:R]->(b:B) SET b.x = 1",
        "MERGE (s:S {id: $id}) WITH s MATCH (b:B) WHERE b.id = s.b MERGE (s)-[:R]->(b)",
        "UNWIND range(1, 100000) AS x WITH count(x) AS n MERGE (s:S {id: $id}) SET s.n = n",
        "MATCH (n:A) SET n += CASE WHEN $x THEN {a: 1} ELSE {} END",
        "MATCH (n)-[:R*1..2]-(m) SET n.x = 1",
        "MATCH (n)-[:R]->{1,2}(m) SET n.x = 1",
        "MATCH (n:A&!B) SET n.x = 1",
        "MATCH (n:!!A) SET n.x = 1",
        "MATCH (n:A WHERE n.y = 1), (m:!(A|%)), (o:!A {id: $x}) SET n.x = (m IS NOT NULL)",
        "MATCH (n)--(m) WITH n AS k MATCH (k) SET k.x = 1",
        "MATCH (n:Case) SET n:In DELETE n",
        "MATCH (n:A) WHERE n:Case DELETE n",
        "MATCH (n:A) WITH n, 1 AS in DELETE n",
        "MATCH (a:A)-[:R]->(b {done: 0}), (b) SET b.done = 1",
        "CREATE (index:Index {load: 1})",
        "CREATE index = (:A)",
        "MATCH (n:A {id: $x}) SET n.m = {k: $y}, n.s = [1, 2][0..$z]",
        "MATCH (n:A) SET n.c = coalesce(n.c, 0) + 1, n.d = 2 SET n.e = m.c",
        "MATCH (n:A) SET n.c = 1 WITH n SET n.d = n.c",
        "MERGE (n:A {id: 1}) ON CREATE SET n.c = 1 ON MATCH SET n.d = n.c",
        "MERGE (n:A {id: 1}) ON CREATE SET n.c = 1 SET n.d = n.c",
        "MATCH (n:A) SET n.c = 1, n.c = 2, n.d = m.n.c",
        "UNWIND $l AS x CREATE (:A {id: x})",
        "MATCH (a:A), (b:B) MERGE (a)-[:R]->(b) MERGE (a)-[:S]->(b)",
        "MATCH (n:A) SET n.x = toString(datetime())",
        "MATCH (n:A) WHERE n.at < datetime() SET n.x = n.rand",
    ],
)
def test_no_false_alarm(text: str) -> None:
    assert codes(text) == []


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("// of an order\n match (o:Order {id: $id}) SET o.late = true", True),
        ("MATCH(o:Order {id: $id}) DETACH DELETE o", True),
        ("MERGE (o:Order {id: $id}) WITH o MATCH (c:Customer {id: $c}) MERGE (c)-[:HAS]->(o)", False),
        ("OPTIONAL MATCH (o:Order {id: $id}) MERGE (c:Customer {id: $c})", False),
    ],
)
def test_what_begins_with_a_match_changes_nothing_without_a_hit(text: str, needs: bool) -> None:
    assert parse(text, role="mutation").needs_match is needs


def test_clock_values_are_utc_and_of_one_width() -> None:
    names = frozenset({"__datetime", "__timestamp", "__date", "__localdatetime", "__localtime", "__time"})
    assert clock_values(names, WHEN) == {
        "__datetime": "2026-02-01T10:00:00.000000Z",
        "__timestamp": 1769940000000,
        "__date": "2026-02-01",
        "__localdatetime": "2026-02-01T10:00:00.000000",
        "__localtime": "10:00:00.000000",
        "__time": "10:00:00.000000Z",
    }
    assert clock_values(frozenset({"__date"}), WHEN) == {"__date": "2026-02-01"}
    assert clock_values(frozenset(), WHEN) == {}


def test_times_at_the_ends_of_the_calendar_do_not_raise() -> None:
    assert utc_text(datetime.min.replace(tzinfo=timezone(timedelta(hours=9)))) == "0001-01-01T00:00:00.000000Z"
    assert len(utc_text(datetime.max.replace(tzinfo=timezone(timedelta(hours=-9))))) == 27
    assert utc_text(datetime(1, 1, 2, tzinfo=UTC)) == "0001-01-02T00:00:00.000000Z"


def test_uuids_follow_from_the_seed() -> None:
    first = uuid_values(2, "seed")
    assert first == uuid_values(2, "seed")
    assert list(first) == ["__uuid0", "__uuid1"]
    assert len({*first.values(), *uuid_values(2, "other").values()}) == 4


@pytest.mark.parametrize(
    "statement",
    [
        "MATCH (a:A {id: $id}) WITH a, count((a)-->()) AS n MERGE (b:B {id: $id}) SET b.n = n",
        "MERGE (b:B {id: $id}) WITH b UNWIND [(b)-->(c) | c.id] AS id SET b.last = id",
        "MATCH (a:A) WITH sum(size((a)<-[:R]-())) AS n CREATE (b:B {n: n})",
    ],
)
def test_a_pattern_in_an_expression_counts_as_work_after_a_write_and_is_no_error(statement: str) -> None:
    assert works_late(outline(statement))
    assert list(late_work(outline(statement))) == []
