"""What queries touch, what makes them opaque, and which labels a set of rules puts on one node."""

from __future__ import annotations

import pytest

from graphweft_rules.cypher.accesses import LookupKey, ReadWriteSet, ResourceAccess, commute
from graphweft_rules.cypher.node_labels import shared_labels
from graphweft_rules.cypher.query import parse
from graphweft_rules.cypher.read_write_sets import read_write_sets

WORLD = ("MERGE (s:Session {id: $s})", "MERGE (u:User {id: $u})", "MERGE (t:Tool {name: $t})")
"""Queries that make ``id`` the key of sessions and users, and ``name`` that of tools."""


def touched(text: str, *others: str) -> ReadWriteSet:
    """Return the footprint of a query among others."""
    cyphers = [parse(each, role="mutation") for each in (*WORLD, *others, text)]
    return read_write_sets(cyphers)[cyphers[-1].statement]


def lines(read_write_set: ReadWriteSet) -> list[str]:
    """Return one line a touch: access, resource, and the key's value in brackets, ``*`` for any."""
    return [
        f"{touch.access} {'.'.join(touch.resource)} [{named(touch.key)}]"
        + (" if created" if touch.if_created else "")
        + (" certain" if touch.certain else "")
        for touch in read_write_set.touches
    ]


def named(key: LookupKey | None) -> str:
    if key is None:
        return "*"
    return ".".join((f"${key.parameter}", *key.path)) if key.parameter else repr(key.literal)


def conflict(one: str, other: str, params: dict[str, object], others: dict[str, object], *more: str) -> bool:
    """Tell whether a row of one query must keep its place before a row of the other."""
    first, second = touched(one, other, *more), touched(other, one, *more)
    if first.opaque or second.opaque:
        return True
    return any(
        a.resource == b.resource and not commute(a.access, b.access) and meets(a, b, params, others)
        for a in first.touches
        for b in second.touches
    )


def meets(one: ResourceAccess, other: ResourceAccess, params: dict[str, object], others: dict[str, object]) -> bool:
    if one.key is None or other.key is None:
        return True
    return one.key.of(params) == other.key.of(others)


TOUCHES = {
    "MERGE (s:Session {id: $s}) SET s.seen = $v": [
        "ensure Session id node.Session [$s] certain",
        "read node property.Session.id [$s]",
        "read label.Session [*]",
        "write node property.Session.seen [$s]",
    ],
    "MERGE (s:Session {id: $s}) ON CREATE SET s.at = $v": [
        "merge Session id node.Session [$s] certain",
        "read node property.Session.id [$s]",
        "read label.Session [*]",
        "write node property.Session.at [$s] if created",
    ],
    "MERGE (s:Session {id: $s}) ON MATCH SET s.at = $v": [
        "merge Session id node.Session [$s] certain",
        "read node property.Session.id [$s]",
        "read label.Session [*]",
        "write node property.Session.at [$s]",
    ],
    "MATCH (s:Session {id: 'a'}) SET s.n = s.n + 1": [
        "read node.Session ['a']",
        "read node property.Session.id ['a']",
        "read label.Session [*]",
        "write node property.Session.n ['a']",
        "read node property.Session.n ['a']",
    ],
    "MATCH (s:Session {id: toUpper($s)}) REMOVE s.n": [
        "read node.Session [*]",
        "read node property.Session.id [*]",
        "read label.Session [*]",
        "write node property.Session.n [*]",
    ],
    "MATCH (s:Session {id: $s}) SET s.id = $v": [
        "read node.Session [$s]",
        "read node property.Session.id [$s]",
        "read label.Session [*]",
        "write node property.Session.id [*]",
        "write node.Session [*]",
    ],
    "CREATE (s:Session {id: $item.id})": ["create node.Session [$item.id]"],
    "MATCH (s:Session {id: $s})-[r:USED]->(t:Tool) SET r.n = 1": [
        "read node property.Session.id [$s]",
        "read label.Session [*]",
        "read label.Tool [*]",
        "read relationship.USED [$s]",
        "write relationship property.USED.n [$s]",
    ],
    "MATCH (s:Session {id: $s})<-[r:USED]-(t:Tool) DELETE r": [
        "read node property.Session.id [$s]",
        "read label.Session [*]",
        "read label.Tool [*]",
        "read relationship.USED [*]",
        "write relationship.USED [*]",
        "write relationship property.USED.* [*]",
    ],
}


@pytest.mark.parametrize("text", TOUCHES)
def test_touches(text: str) -> None:
    assert lines(touched(text)) == TOUCHES[text]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("MATCH (s:Session {id: $s}) DETACH DELETE s", "deleting a node"),
        ("MATCH (s:Session {id: $s})-[r]->(u:User) SET r.n = 1", "any type"),
        ("MATCH (s:Session {id: $s})-[:USED*]->(u:User) CALL { WITH u RETURN 1 AS x } SET s.n = 1", "CALL"),
        ("MATCH (s:Session {id: $s}) WHERE EXISTS { MATCH (s)-[:USED]->(:Tool) } SET s.n = 1", "subquery"),
        ("MERGE (s:Session {id: $s}) RETURN 1 AS x UNION MERGE (u:User {id: $s}) RETURN 1 AS x", "RETURN"),
        ("MATCH p = (s:Session {id: $s})-[:USED]->(t:Tool) SET s.n = 1", "paths"),
        ("MATCH (s:Session {id: $s}) SET s.all = keys(s)", "as a whole"),
        ("MATCH (s:Session&!User {id: $s}) SET s.n = 1", "label"),
        ("MATCH (s:Session {id: $s})-[:USED]->(x) SET x.n = 1", "without a label"),
        ("MATCH (s:Session {id: $s})-[:USED]->(x) WHERE NOT x:Tool SET x.n = 1", "without a label"),
        ("MATCH (s:Session {id: $s})-[:USED]->(x) SET x:Tool", "without a label"),
        ("MATCH (s:Session {id: $s})-[:USED]->(x) SET x:Tool, x.n = 1", "without a label"),
        ("hello", "clause"),
    ],
)
def test_opaque(text: str, why: str) -> None:
    assert why in touched(text).opaque


NOTED = "MATCH (s:Session {id: $s})-[:USED]->(n:Note) WITH n SET n += $map"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # A node gets the key by which another row looks: it stays in front, whether a relationship leads on or not.
        ("MATCH (s:Session {id: $s}) SET s.id = $v", "MATCH (s:Session {id: $s})-[r:USED]->(:Tool) SET r.n = 1"),
        ("MATCH (s:Session {id: $s}) SET s += $map", "MATCH (s:Session {id: $s})-[r:USED]->(:Tool) SET r.n = 1"),
        # A node without a key, which both rows may come to, and properties that no query names.
        ("MATCH (s:Session {id: $s})-[:USED]->(n:Note) SET n += $map", NOTED),
        ("MATCH (s:Session {id: $s})-[:USED]->(n:Note) SET n = $map", NOTED),
        ("MATCH (s:Session {id: $s})-[:USED]->(n:Note) SET n.x = $v", NOTED),
        # What is written before the pattern that has the key is any node's.
        (
            "MATCH (s:Session) SET s.n = 1 WITH s MATCH (s:Session {id: $s}) SET s.m = 2",
            "MATCH (s:Session {id: $s}) SET s.n = 3",
        ),
    ],
)
def test_rows_with_different_keys_that_meet_all_the_same(one: str, other: str) -> None:
    assert conflict(one, other, {"s": "a", "v": "b"}, {"s": "b"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # The first to come makes the node, and then the other one matches.
        ("MERGE (s:Session {id: $s}) ON MATCH SET s.n = 1", "MERGE (s:Session {id: $s})"),
        ("MERGE (s:Session {id: $s}) ON CREATE SET s.n = 1", "MERGE (s:Session {id: $s})"),
        ("CREATE (s:Session {id: $s})", "MERGE (s:Session {id: $s})"),
        ("MATCH (s:Session {id: $s}) SET s.n = 1", "MATCH (s:Session {id: $s}) SET s.m = s.n"),
        ("MATCH (s:Session {id: $s}) SET s.n = 1", "MATCH (s:Session {n: $s}) SET s.m = 1"),
        ("MATCH (s:Session {id: $s}) REMOVE s:Session", "MATCH (s:Session {id: $s}) SET s.n = 1"),
        ("MATCH (:Session {id: $s})-[r:USED]->(:Tool) DELETE r", "MATCH (:Session)-[r:USED]->(:Tool) SET r.n = 1"),
        (
            "MATCH (:Session {id: $s})-[r:USED]->(:Tool) SET r += $map",
            "MATCH (:Session {id: $s})-[r:USED]->(:Tool) WITH r SET r = $map",
        ),
    ],
)
def test_rows_with_one_key_that_may_not_change_places(one: str, other: str) -> None:
    assert conflict(one, other, {"s": "a"}, {"s": "a"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("MATCH (s:Session {id: $s}) SET s.n = 1", "MATCH (u:User {id: $s}) SET u.n = 2"),
        ("MATCH (s:Session {id: $s}) SET s.n = 1", "MATCH (s:Session {id: $s}) SET s.m = 2"),
        ("MERGE (s:Session {id: $s}) SET s.n = 1", "MERGE (s:Session {id: $s}) SET s.m = 2"),
        ("CREATE (s:Session {id: $s, a: 1})", "CREATE (s:Session {id: $s, b: 1})"),
        ("MATCH (:Session {id: $s})-[r:USED]->(:Tool) SET r.n = 1", "MATCH (:Session)-[r:MADE]->(:Tool) SET r.n = 2"),
    ],
)
def test_rows_that_may_change_places(one: str, other: str) -> None:
    assert not conflict(one, other, {"s": "a"}, {"s": "a"})


MAKE = ("CREATE (s:Session {id: $s, a: 1})", "CREATE (s:Session {id: $s, b: 1})")
LINK = (
    "MATCH (s:Session {id: $s}) MATCH (t:Tool {name: 'a'}) MERGE (s)-[:USED]->(t)",
    "MATCH (s:Session {id: $s}) MATCH (t:Tool {name: 'a'}) CREATE (s)-[:USED {n: 1}]->(t)",
)
ENSURE = ("MERGE (s:Session {id: $s}) SET s.n = 1", "MERGE (s:Session {id: $s}) SET s.m = 2")


@pytest.mark.parametrize(
    ("picking", "pair", "expected"),
    [
        ("MATCH (s:Session) WITH s LIMIT 1 SET s.first = true", MAKE, True),
        ("MATCH (s:Session {id: $s}) WITH s LIMIT 1 SET s.first = true", MAKE, True),
        ("MATCH (s:Session {id: $s}) WITH s LIMIT 1 SET s.first = true", ENSURE, False),
        ("MATCH (u:User {id: $u}) MATCH (s:Session {id: $s}) SET u.a = s.a", MAKE, True),
        ("MATCH (u:User {id: $u}) MATCH (s:Session {id: $s}) WITH u, s.a AS x SET u.a = x", MAKE, True),
        ("MATCH (u:User {id: $u}) MATCH (s:Session {id: $s}) WITH u, s.a AS x WITH u, x AS y SET u.a = y", MAKE, True),
        ("MATCH (u:User {id: $u}) MATCH (s:Session {id: $s}) UNWIND s.list AS x SET u.a = x.b", MAKE, True),
        ("MATCH (s:Session {id: $s})-[:USED]->(t:Tool) WITH s, collect(t.name) AS x SET s.tools = x", LINK, True),
        ("MATCH (s:Session {id: $s}) SET s.n = coalesce(s.n, 0) + 1", MAKE, False),
    ],
)
def test_what_somebody_takes_the_first_of_is_made_in_the_logs_order(
    picking: str, pair: tuple[str, str], expected: bool
) -> None:
    assert conflict(*pair, {"s": "a"}, {"s": "a"}, picking) == expected


OF_SESSION, OF_USER = "MATCH (s:Session {id: $s}) SET s.n = 1", "MATCH (u:User {id: $s}) SET u.n = 2"
OF_BOTH = {
    "made": "MERGE (x:Session:User {id: $s})",
    "either": "MATCH (x:Session|User {id: $s}) SET x.m = 1",
    "set": "MATCH (x:Session {id: $s}) SET x:User",
    "renamed": "MATCH (x:Session {id: $s}) WITH x AS y SET y:User",
    "described twice": "MATCH (x:Session {id: $s}) MATCH (x:User) SET x.m = 1",
    "asked": "MATCH (x:Session {id: $s}) WHERE x:User SET x.m = 1",
    "renamed and opaque": "MATCH (x:Session {id: $s}) WITH x AS y SET y:User DETACH DELETE y",
    "set and opaque": "MATCH (x:Session {id: $s}) SET x:User WITH x DETACH DELETE x",
    "set on anything": "MATCH (:Tool)-[:USED]->(x) SET x:User",
    "set on an item": "MATCH (x:Session {id: $s}) WITH collect(x) AS xs FOREACH (y IN xs | SET y:User)",
    "set on a name used twice": "MATCH (x:User) WITH 1 AS one MATCH (:Tool)-[:USED]->(x) SET x:User",
    "set in a subquery": "MATCH (x:User) CALL { MATCH (:Tool)-[:USED]->(x) SET x:User }",
    "set by a procedure": "CALL apoc.create.addLabels([$s], $labels) YIELD node RETURN node",
    "not read": "MATCH (x:Session {id: $s}) SET x[$key] = 1 SET x:User",
}


@pytest.mark.parametrize("other", OF_BOTH)
def test_labels_that_some_rule_puts_on_one_node_are_of_one_class(other: str) -> None:
    assert not conflict(OF_SESSION, OF_USER, {"s": "a"}, {"s": "a"})
    assert conflict(OF_SESSION, OF_USER, {"s": "a"}, {"s": "a"}, OF_BOTH[other])


@pytest.mark.parametrize(
    ("texts", "shared"),
    [
        (WORLD, set()),
        (("MERGE (s:Session {id: $s}) MERGE (u:User {id: $u}) SET s.n = 1, u.n = 2",), set()),
        (("MATCH (s:Session {id: $s}) DETACH DELETE s",), set()),
        (("MATCH (s:Session {id: $s}) WHERE EXISTS { MATCH (s)-[:USED]->(:Tool) } SET s.n = 1",), set()),
        (("MERGE (x:Session:User {id: $s})", WORLD[2]), {"Session", "User"}),
        (("MATCH (x:Session|User {id: $s}) SET x.n = 1",), {"Session", "User"}),
        (("MATCH (x:Session&(User|!Tool) {id: $s}) SET x.n = 1",), {"x", "Session", "User", "Tool", "id"}),
        (("MATCH (x:Session {id: $s}) SET x:Hot",), {"Hot"}),
        (("MATCH (x:Session {id: $s}) REMOVE x:Hot",), set()),
        (("MATCH (:Tool)-[:USED]->(x) SET x:Hot",), {"Hot"}),
        (("MATCH (x:Session {id: $s}) MATCH (x:User) SET x.n = 1",), {"Session", "User"}),
        (("MATCH (x:Session {id: $s}) WHERE x:User SET x.n = 1",), {"Session", "User"}),
        (("MATCH (:Tool)-[:USED]->(x) WHERE x:Hot SET x.n = 1",), {"Hot"}),
        (("MATCH (x:Session {id: $s}) SET x:Hot WITH x DETACH DELETE x",), {"Hot"}),
        (("MATCH (x:`My Label` {id: $s}) SET x:`A b`",), {"A b"}),
        (("CALL db.idx.fulltext.queryNodes('Tool', $t) YIELD node SET node.n = 1",), set()),
        (("CALL apoc.create.addLabels([$s], $labels) YIELD node RETURN node",), None),
        (("MATCH (x:Session {id: $s}) SET x:$($label)",), None),
        (("CREATE (x:$label)", WORLD[0]), None),
    ],
)
def test_which_labels_may_share_a_node(texts: tuple[str, ...], shared: set[str] | None) -> None:
    assert shared_labels(parse(text, role="mutation") for text in texts) == shared


def test_a_query_that_cannot_be_read_shares_all_that_it_names() -> None:
    found = shared_labels([parse("MATCH (x:Session {id: $s}) SET x[$key] = 1 SET x:User", role="mutation")])
    assert found is not None
    assert found >= {"Session", "User"}
