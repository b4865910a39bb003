from __future__ import annotations

import pytest

from graphweft_rules.cypher.clauses import Outline, outline
from graphweft_rules.cypher.expressions import uses
from graphweft_rules.cypher.part_parser import literal_map, read_parts
from graphweft_rules.cypher.parts import NodePattern, PatternError, PatternPart, ProjectionPart, SetPart


def text(query: Outline, span: range | None) -> str | None:
    return None if span is None else " ".join(query.words.text(index) for index in span)


def used(expression: str) -> dict[str, list[str]]:
    query = outline(f"RETURN {expression}")
    found = uses(query, range(1, len(query.words.tokens)))
    return {
        name: values
        for name, values in {
            "reads": [f"{read.variable}.{read.name}" for read in found.reads],
            "variables": [use.variable for use in found.variables],
            "labels": [f"{test.variable}:{'|'.join(test.labels)}" for test in found.labels],
            "calls": [call.name for call in found.calls],
            "parameters": [name for name, _ in found.parameters],
            "subqueries": [query.words.text(place) for place in found.subqueries],
        }.items()
        if values
    }


def node(pattern: str) -> tuple[Outline, NodePattern]:
    query = outline(f"MATCH {pattern} RETURN 1")
    part = read_parts(query)[0]
    assert isinstance(part, PatternPart)
    return query, part.paths[0].nodes[0]


@pytest.mark.parametrize(
    ("pattern", "labels", "alternatives", "excluding"),
    [
        ("(n)", (), (), False),
        ("(:A)", ("A",), (), False),
        ("(n:A:B)", ("A", "B"), (), False),
        ("(n:A&B)", ("A", "B"), (), False),
        ("(n:A|B)", (), ("A", "B"), False),
        ("(n:A|:B)", (), ("A", "B"), False),
        ("(n:!A)", (), (), True),
        ("(n:A&(B|C))", (), (), True),
        ("(n:%)", (), (), True),
        ("(n:`a b` {x: 1})", ("a b",), (), False),
    ],
)
def test_labels(pattern: str, labels: tuple[str, ...], alternatives: tuple[str, ...], excluding: bool) -> None:
    _, found = node(pattern)
    assert (found.labels, found.alternatives, found.excluding) == (labels, alternatives, excluding)


def test_a_node_has_its_map_its_parameter_and_its_condition() -> None:
    query, found = node("(n:A {id: $id, k: m.x + 1} WHERE n.x > 2)")
    assert [(each.name, text(query, each.value)) for each in found.properties] == [("id", "$id"), ("k", "m . x + 1")]
    assert text(query, found.where) == "n . x > 2"
    assert node("(n:A $all)")[1].map_parameter == "all"
    assert node("({id: 1})")[1].variable == ""


@pytest.mark.parametrize(
    ("arrow", "types", "direction", "many", "turned"),
    [
        ("-->", (), "right", False, False),
        ("<--", (), "left", False, True),
        ("--", (), "both", False, False),
        ("-[r:R]->", ("R",), "right", False, False),
        ("<-[:R|S]-", ("R", "S"), "left", False, True),
        ("-[:R|:S]-", ("R", "S"), "both", False, False),
        ("-[:R*]->", ("R",), "right", True, False),
        ("-[r*1..3 {x: 1}]->", (), "right", True, False),
        ("-[:!R]->", (), "right", False, False),
        ("<-[:R]->", ("R",), "both", False, False),
    ],
)
def test_relationships(arrow: str, types: tuple[str, ...], direction: str, many: bool, turned: bool) -> None:
    part = read_parts(outline(f"MATCH p = (a){arrow}(b) RETURN 1"))[0]
    assert isinstance(part, PatternPart)
    [path] = part.paths
    [found] = path.relationships
    assert (found.types, found.direction, found.many, path.variable) == (types, direction, many, "p")
    assert (found.start.variable, found.end.variable) == (("b", "a") if turned else ("a", "b"))


def test_items_of_set() -> None:
    query = outline("MERGE (n:A) ON MATCH SET n.x = 1 SET n.`y z` = n.x + 1, n:A:B, n += {a: 1, b: [2, 3]}, n = $all")
    _, on, after = read_parts(query)
    assert isinstance(on, SetPart)
    assert isinstance(after, SetPart)
    assert (on.on, after.on) == ("MATCH", "")
    items = [(item.kind, item.names, text(query, item.value)) for item in after.items]
    assert items == [
        ("property", ("y z",), "n . x + 1"),
        ("label", ("A", "B"), None),
        ("update", (), "{ a : 1 , b : [ 2 , 3 ] }"),
        ("replace", (), "$all"),
    ]
    value = after.items[2].value
    assert value is not None
    assert [each.name for each in literal_map(query, value) or ()] == ["a", "b"]


def test_items_of_with() -> None:
    part = read_parts(outline("WITH DISTINCT *, a, a.x AS b, count(*) RETURN 1"))[0]
    assert isinstance(part, ProjectionPart)
    assert (part.distinct, part.star, [item.alias for item in part.items]) == (True, True, ["a", "b", ""])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a.x + b.y.z", {"reads": ["a.x", "b.y", ".z"]}),
        ("$p.x.y", {"parameters": ["p"]}),
        ("n", {"variables": ["n"]}),
        ("n[$k]", {"variables": ["n"], "parameters": ["k"]}),
        ("n {.x, .*, y: m.z, q}", {"reads": ["n.x", "m.z"], "variables": ["n", "q"]}),
        ("n:A|B AND m.x IS NULL", {"labels": ["n:A|B"], "reads": ["m.x"]}),
        ("[x IN xs WHERE x.a > n.b | x.c]", {"reads": [".a", "n.b", ".c"], "variables": ["xs"]}),
        ("[x IN x | 1]", {"variables": ["x"]}),
        ("any(x IN n.l WHERE x > y)", {"reads": ["n.l"], "variables": ["y"], "calls": ["any"]}),
        ("reduce(s = t, x IN n.l | s + x)", {"reads": ["n.l"], "variables": ["t"], "calls": ["reduce"]}),
        ("date.truncate('day', a.z).year", {"reads": ["a.z", ".year"], "calls": ["date.truncate"]}),
        ("nodes(p)[0].x", {"reads": [".x"], "variables": ["p"], "calls": ["nodes"]}),
        ("xs[1..n.e]", {"reads": ["n.e"], "variables": ["xs"]}),
        ("CASE WHEN a.x THEN 1 ELSE b.y END", {"reads": ["a.x", "b.y"]}),
        ("{a: n.x, b: [m, 'a.b']}", {"reads": ["n.x"], "variables": ["m"]}),
        ("EXISTS { MATCH (n)-->(m) } OR n.x", {"reads": ["n.x"], "subqueries": ["EXISTS"]}),
        ("a.x<-1", {"reads": ["a.x"]}),
    ],
)
def test_what_an_expression_uses(expression: str, expected: dict[str, list[str]]) -> None:
    assert used(expression) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "hello",
        "MATCH (a",
        "MATCH ((a)-[:R]->(b)){1,3} RETURN a",
        "MATCH (a)-[:R]->+(b) RETURN a",
        "MATCH SHORTEST 1 (a)-->(b) RETURN a",
        "MATCH (a:A) USING INDEX a:A(x) RETURN a",
        "MATCH (n:$($l)) RETURN n",
        "MATCH (end:A) RETURN 1",
        "MATCH (n) SET n[$k] = 1",
        "MATCH (n) SET (n).x = 1",
        "CREATE INDEX FOR (n:A) ON (n.x)",
        "LOAD CSV FROM 'x' AS row CREATE (:A)",
    ],
)
def test_what_is_not_understood_is_said(statement: str) -> None:
    with pytest.raises(PatternError):
        read_parts(outline(statement))


@pytest.mark.parametrize(
    "expression",
    ["(a)-[:R]->(b)", "[(a)-->(b) | b.x]", "EXISTS { (a)--(b) }", "size((a)<--())", "a.x IS :: INTEGER", "'open"],
)
def test_what_is_not_understood_in_an_expression_is_said(expression: str) -> None:
    with pytest.raises(PatternError):
        used(expression)
