"""The text of a statement for one of several graphs in a database. That the server keeps them apart: test_erase.py."""

from __future__ import annotations

import pytest
from tests.services.rules import PACKS

from graphweft_contracts import InvalidSettings
from graphweft_rules.cypher.clauses import outline
from graphweft_rules.cypher.query import parse
from graphweft_rules.matching.pack import Pack
from graphweft_workers.drivers.neo4j.namespaces import LIVE, Namespace, refusal

SECOND = Namespace("s")
MARK = "`__s`"


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("MATCH (n:N {id: $id}) SET n.x = 1", "MATCH (n:`__s N` {id: $id}) SET n.x = 1"),
        ("MATCH (n:A:B)", "MATCH (n:`__s A`:`__s B`)"),
        ("MATCH (:`A b`|C)-->(x)", "MATCH (:`__s A b`|`__s C`)-->(x:`__s`)"),
        ("MATCH (n:!N)", "MATCH (n:(!`__s N`)&`__s`)"),
        ("MATCH (n:N&!M {id: 1})", "MATCH (n:(`__s N`&!`__s M`)&`__s` {id: 1})"),
        ("MATCH (n:%)", "MATCH (n:(%)&`__s`)"),
        ("MATCH (n) WHERE n.id = $id", "MATCH (n:`__s`) WHERE n.id = $id"),
        ("MATCH (n {id: {a: 1}.a})", "MATCH (n:`__s` {id: {a: 1}.a})"),
        ("MATCH (n WHERE n.x)", "MATCH (n:`__s` WHERE n.x)"),
        ("MATCH ()-[r:R]->()", "MATCH (:`__s`)-[r:R]->(:`__s`)"),
        ("MATCH (a:A), (b) MERGE (a)-[:R {x: 1}]->(b)", "MATCH (a:`__s A`), (b:`__s`) MERGE (a)-[:R {x: 1}]->(b)"),
        ("MERGE (n:N {id: 1})", "MERGE (n:`__s N`:`__s`:__Beside {id: 1})"),
        ("CREATE (n:A&B)", "CREATE (n:`__s A`&`__s B`&`__s`&__Beside)"),
        ("CREATE (n)", "CREATE (n:`__s`:__Beside)"),
        ("MATCH (a:A) CREATE (a)-[:R]->()", "MATCH (a:`__s A`) CREATE (a)-[:R]->(:`__s`:__Beside)"),
        ("UNWIND $l AS x CREATE (n:N $x)", "UNWIND $l AS x CREATE (n:`__s N`:`__s`:__Beside $x)"),
        ("MATCH (n:N) SET n:M:O REMOVE n:P", "MATCH (n:`__s N`) SET n:`__s M`:`__s O` REMOVE n:`__s P`"),
        ("MATCH (n:N) WHERE n:M OR n:O&P", "MATCH (n:`__s N`) WHERE n:`__s M` OR n:`__s O`&`__s P`"),
        ("MATCH (n:N) WHERE NOT (n)-[:R]->(:M)", "MATCH (n:`__s N`) WHERE NOT (n:`__s`)-[:R]->(:`__s M`)"),
        ("RETURN [(a)<-[:R]-(b:B) | b.x]", "RETURN [(a:`__s`)<-[:R]-(b:`__s B`) | b.x]"),
        ("RETURN [x IN l WHERE x:A | x.b]", "RETURN [x IN l WHERE x:`__s A` | x.b]"),
        (
            "RETURN EXISTS { (n)-->(:A) }, COUNT { (b) }",
            "RETURN EXISTS { (n:`__s`)-->(:`__s A`) }, COUNT { (b:`__s`) }",
        ),
        ("MATCH p = shortestPath((a:A)-[*..3]-(b))", "MATCH p = shortestPath((a:`__s A`)-[*..3]-(b:`__s`))"),
        ("FOREACH (x IN l | MERGE (:A {id: x}))", "FOREACH (x IN l | MERGE (:`__s A`:`__s`:__Beside {id: x}))"),
        (
            "RETURN labels(n)",
            'RETURN [__gw_label IN labels(n) WHERE __gw_label STARTS WITH "__s " | substring(__gw_label, 4)]',
        ),
        # Nothing of these is a label or a node.
        ("RETURN {a: b, c: {d: e}}, n {.x, y: z}", "RETURN {a: b, c: {d: e}}, n {.x, y: z}"),
        ("RETURN x IS :: STRING NOT NULL", "RETURN x IS :: STRING NOT NULL"),
        ("RETURN count(n), (a) - (b), (a) < -1, ':A (n)'", "RETURN count(n), (a) - (b), (a) < -1, ':A (n)'"),
        ("MATCH (:A)-[:R|S]->(:B)", "MATCH (:`__s A`)-[:R|S]->(:`__s B`)"),
    ],
)
def test_a_query_stays_in_a_second_graph(text: str, there: str) -> None:
    assert SECOND.statement(text) == there


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("MATCH (n) RETURN count(n)", "MATCH (n:!__Beside) RETURN count(n)"),
        ("MATCH ()-[r:R]->() DELETE r", "MATCH (:!__Beside)-[r:R]->() DELETE r"),
        ("MATCH (n {id: 1})", "MATCH (n:!__Beside {id: 1})"),
        ("MATCH (n:!N)", "MATCH (n:(!N)&!__Beside)"),
        ("RETURN COUNT { ()-->() }", "RETURN COUNT { (:!__Beside)-->() }"),
        # A label, or a node that was found before, is enough for a whole path.
        ("MATCH (a)-->(b)-->(:C)", "MATCH (a)-->(b)-->(:C)"),
        ("MATCH (a:A) MATCH (a)-->(b) SET b.x = 1", "MATCH (a:A) MATCH (a)-->(b) SET b.x = 1"),
        ("MATCH (a:A), (a)-->(b)", "MATCH (a:A), (a)-->(b)"),
        ("UNWIND $nodes AS n MATCH (n)-->(m)", "UNWIND $nodes AS n MATCH (n)-->(m)"),
        ("CREATE (n)", "CREATE (n)"),
    ],
)
def test_only_a_path_without_a_label_leaves_second_graphs_out(text: str, there: str) -> None:
    assert LIVE.statement(text) == there


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("MERGE (n {id: 1})", "MERGE without a label"),
        ("MERGE (a)-[:R]->(b)", "MERGE without a label"),
        ("CALL db.index.fulltext.queryNodes('x', 'y') YIELD node SET node.x = 1", "calls a procedure"),
        ("MATCH (n:N) SET n.x = apoc.node.labels(n)", "calls apoc.node.labels"),
    ],
)
def test_what_may_find_nodes_of_both_graphs_is_refused(text: str, why: str) -> None:
    assert why in refusal(outline(text))
    with pytest.raises(InvalidSettings, match=why):
        SECOND.statement(text)


def test_a_query_keeps_its_columns_and_a_label_its_name() -> None:
    query = parse("MERGE (n:N {id: $id}) SET n.at = datetime() // MATCH (m)", role="mutation")
    there = SECOND.query(query)
    assert (there.columns, there.keys) == (query.columns, query.keys)
    assert SECOND.plain(SECOND.stored(["N", "M"])) == ("N", "M")
    assert SECOND.plain(["N", "__Beside", "__t N"]) == ()
    assert LIVE.query(query) is query


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: type(pack).__name__)
def test_own_mutations_stay_in_a_second_graph(pack: Pack) -> None:
    for mutation in pack.mutations:
        assert refusal(mutation.cypher.outline) == "", mutation.cypher.statement
        assert SECOND.prefix in SECOND.query(mutation.cypher).statement
