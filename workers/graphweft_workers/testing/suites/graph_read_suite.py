"""What every graph store promises of reads: limits, values as they are, and listings."""

from __future__ import annotations

import contextlib
import math
import re
from datetime import UTC, date, datetime
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphweft_contracts import QueryFailed
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.testing.suites.graph_kit import (
    APP,
    GraphFixtures,
    GraphKit,
    chain,
    value,
)


def columns(count: int) -> str:
    """Return a query of 10,000 rows with so many columns."""
    return "UNWIND range(1, 10000) AS i RETURN " + ", ".join(f"i AS c{number}" for number in range(count))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
)

KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0`"), min_size=1, max_size=8)

VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, but for the digits after the 14th of a float, which a server may round."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-14)
    if isinstance(one, list):
        items: list[Any] = one  # pyright: ignore[reportUnknownVariableType]
        return len(items) == len(other) and all(map(same, items, other))
    if isinstance(one, dict):
        one = cast("dict[str, Any]", one)
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


CONTENT = [
    "CREATE (:A {id: 1, s: 'grüße 🎉 \\u0000', f: 0.1, g: 1e300, b: true, i: 9007199254740993})".replace("\\u0000", ""),
    "CREATE (:A {id: 2, l: ['x', 'y'], n: [1, 2], m: [0.5, 1.25], e: []})",
    "CREATE (:`Odd Label`:B {`a b`: 1, d: date('2024-02-29'), t: localdatetime('2024-02-29T12:30:01')})",
    "CREATE (:B {dur: duration('P1Y2M3DT4H5M6S'), z: -0.0, neg: -1})",
    "MATCH (a:A {id: 1}), (b:A {id: 2}) CREATE (a)-[:R {w: 1}]->(b), (a)-[:R {w: 1}]->(b), (a)-[:R {w: 2}]->(b)",
    "MATCH (a:A {id: 1}), (b:B) CREATE (b)-[:`has been`]->(a), (a)-[:SELF]->(a)",
    "CREATE (:Gone)",
    "MATCH (g:Gone) DELETE g",
]

OF_VALUES = {
    "a map as a property": ("CREATE (a:A {v: 1}) SET a.v = $v", {"no": "property"}),
    "a list of maps": ("CREATE (a:A) SET a.v = $v", [{"no": "property"}]),
    "no key": ("MERGE (a:A {k: $v})", None),
    "text in arithmetic": ("CREATE (a:A) SET a.v = 100 / $v", "four"),
    "a map for an integer": ("CREATE (a:A) SET a.v = abs($v)", {"a": 1}),
    "a map as a key": ("MERGE (a:A {k: $v})", {"a": 1}),
    "a large integer": ("CREATE (a:A) SET a.v = $v", 2**63),
    "a text as a list": ("UNWIND $v AS x CREATE (a:A {v: x.y})", "text"),
    "a text for a number": ("CREATE (a:A) SET a.v = size($v)", 5),
    "a time": ("CREATE (a:A) SET a.v = date($v)", "not a date"),
}

OF_RULES = {
    "a division": ("CREATE (a:A) SET a.v = 100 / $v", 0),
    "an unknown function": ("CREATE (a:A) SET a.v = nosuch($v)", 1),
    "an unknown variable": ("CREATE (a:A) SET b.v = $v", 1),
}

QUOTING = (
    "date({v})", "localtime({v})", "localdatetime({v})", "duration({v})", "datetime({v})", "toInteger({v})",
    "point({v})", "point({{latitude: {v}, longitude: 1}})", "{v}.a", "{v}[0]", "[1][{v}]", "{v} + date()",
    "-{v}", "abs({v})", "1 / {v}", "{v} % 2", "substring('abc', {v})", "left('abc', {v})", "split({v}, 'a')",
    "toUpper({v})", "size({v})", "{v} =~ '('", "'a' =~ {v}",
    "reduce(a = 0, b IN {v} | a + b)", "CASE WHEN {v} THEN 1 END", "NOT {v}", "{v} AND true",
    "any(a IN {v} WHERE a.b > 1)", "keys({v})", "labels({v})", "properties({v})", "toBoolean({v})",
    "date({{year: {v}}})", "duration({{days: {v}}})", "datetime({{year: 2026, timezone: {v}}})",
    "date.truncate({v}, date())", "toFloat({v})", "percentileCont(1, {v})", "round(1.5, 1, {v})",
    "reverse({v})", "startNode({v})", "length({v})", "trim({v})", "vecf32({v})", "intern({v})",
    "vector.similarity.cosine({v}, [1])", "typeOf({v})", "toJSON({v})", "sum({v})",
)  # fmt: skip
"""Expressions that servers refuse for some values, each in words of its own, or do not know."""
PRIVATE: tuple[Any, ...] = ("ZQXsecret", "2026-13-45ZQX", 777555111, -777555111, {"ZQXkey": "ZQXsecret"}, ["ZQXsecret"])


class GraphReadSuite(GraphFixtures):
    """Reads have limits, return plain values and write nothing."""

    async def test_reading_cannot_write(self, graph: GraphStore) -> None:
        for statement in ("CREATE (n:N) RETURN n", "MATCH (n) SET n.x = 1 RETURN n", "MERGE (n:N) RETURN n"):
            with pytest.raises(QueryFailed, match="read"):
                await graph.read(APP, statement, {}, timeout_s=120)
        assert await value(graph, "MATCH (n:N) RETURN count(n)") == 0

    async def test_a_missing_graph_has_no_rows_and_is_not_made_by_reading(self, kit: GraphKit) -> None:
        async with contextlib.aclosing(kit.store()) as store:
            assert (await store.read(APP, "MATCH (n) RETURN n", {}, timeout_s=120)).rows == ()
            assert await store.checkpoints(APP, timeout_s=120) == {}
            assert [node async for node in store.whole.nodes(APP)] == []
            assert [edge async for edge in store.whole.edges(APP)] == []
            assert kit.run("MATCH (n) RETURN n") == []

    async def test_a_slow_read_ends_at_its_limit(self, graph: GraphStore) -> None:
        with pytest.raises(QueryFailed) as caught:
            await graph.read(
                APP, "UNWIND range(1, 100000) AS a UNWIND range(1, 100000) AS b RETURN count(*)", {}, timeout_s=0.05
            )
        assert caught.value.code == "timeout"
        assert await value(graph, "RETURN 1") == 1

    async def test_more_rows_than_anybody_reads_are_refused(self, graph: GraphStore) -> None:
        most = await graph.read(APP, "UNWIND range(1, 10000) AS i RETURN i", {}, timeout_s=120)
        assert most.rows == tuple((number,) for number in range(1, 10_001))
        with pytest.raises(QueryFailed, match=r"^the query returned more than 10,000 rows: add a LIMIT$") as caught:
            await graph.read(APP, "UNWIND range(1, 10001) AS i RETURN i", {}, timeout_s=120)
        assert caught.value.code == "query_error"
        assert await value(graph, "RETURN 1") == 1

    @pytest.mark.parametrize(
        ("statement", "rows"),
        [
            ("UNWIND range(1, 10001) AS i RETURN i", 3),
            ("UNWIND range(1, 10000) AS i RETURN i", 10_000),
            ("UNWIND range(1, 9) AS i RETURN range(1, 30000) AS r", 3),
        ],
    )
    async def test_whom_the_first_rows_are_enough_gets_them_of_more(
        self, graph: GraphStore, statement: str, rows: int
    ) -> None:
        assert len((await graph.read(APP, statement, {}, timeout_s=120, enough=3)).rows) == rows

    async def test_whom_the_first_rows_are_enough_gets_no_more_values_of_them(self, graph: GraphStore) -> None:
        with pytest.raises(QueryFailed, match="200,000 values"):
            await graph.read(APP, "UNWIND range(1, 4) AS i RETURN range(1, 66667)", {}, timeout_s=120, enough=3)

    @pytest.mark.parametrize(
        "statement",
        [
            columns(21),
            "RETURN range(1, 200001)",
            "RETURN {a: [1, {b: range(1, 200001)}]}",
            "MATCH (l:Long) RETURN l",
            "MATCH p = (l:Long)-[:R]->() RETURN p",
        ],
    )
    async def test_more_values_than_anybody_reads_are_refused(
        self, kit: GraphKit, graph: GraphStore, statement: str
    ) -> None:
        kit.run("CREATE (:Long {l: range(1, 200001)})-[:R]->(:Short)")
        with pytest.raises(QueryFailed, match=r"^the query returned more than 200,000 values: return fewer properties"):
            await graph.read(APP, statement, {}, timeout_s=120)
        assert await value(graph, "RETURN 1") == 1

    async def test_as_many_values_as_there_may_be_are_returned(self, graph: GraphStore) -> None:
        assert len((await graph.read(APP, columns(20), {}, timeout_s=120)).rows) == 10_000

    async def test_listings_have_no_end_of_rows(self, kit: GraphKit, graph: GraphStore) -> None:
        kit.run("CREATE (h:Hub) WITH h UNWIND range(1, 10001) AS i CREATE (h)-[:R]->(:P)")
        assert len([edge async for edge in graph.whole.edges(APP)]) == 10_001
        assert len([node async for node in graph.whole.nodes(APP) if node.labels == ("P",)]) == 10_001

    # The classes of several drivers share this method, each with a server of its own.
    @settings(
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(given_value=VALUES)
    async def test_parameters_arrive_as_they_are(self, graph: GraphStore, given_value: Any) -> None:
        table = await graph.read(APP, "RETURN $v", {"v": given_value}, timeout_s=120)
        assert same(table.rows[0][0], given_value)

    async def test_results_are_plain_values(self, graph: GraphStore) -> None:
        await graph.apply(APP, 0, chain("CREATE (:A {x: 1})-[:R {y: 2}]->(:B {l: ['a', 'b']})"))
        table = await graph.read(
            APP,
            "MATCH p = (a:A)-[r:R]->(b:B) RETURN a, r, p, [a, b] AS l, {n: b} AS m, date('2024-02-29') AS d, "
            "localdatetime('2024-02-29T12:30:00') AS t, duration('P1DT2H') AS s, "
            "point({latitude: 1.5, longitude: 2.5}) AS w",
            {},
            timeout_s=5,
        )
        assert table.columns == ("a", "r", "p", "l", "m", "d", "t", "s", "w")
        *rest, span, point = table.rows[0]
        b = {"l": ["a", "b"]}
        assert rest == [
            {"x": 1}, {"y": 2}, [{"x": 1}, b], [{"x": 1}, b], {"n": b}, date(2024, 2, 29),
            datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
        ]  # fmt: skip
        assert span.total_seconds() == 26 * 3600
        assert point == {"latitude": 1.5, "longitude": 2.5}

    async def test_elements_have_ids_labels_and_types(self, kit: GraphKit, graph: GraphStore) -> None:
        await graph.progress(APP, 0)
        kit.run("CREATE (:User {id: 'u'})-[:OWNS {since: 1}]->(:Car {id: 'c'})")
        statement = "MATCH p = (u:User)-[r:OWNS]->(c:Car) RETURN u, r, [c], p"
        [(user, owns, [car], path)] = (await graph.read(APP, statement, {}, timeout_s=120, elements=True)).rows
        assert (user["labels"], user["properties"]) == (["User"], {"id": "u"})
        assert (car["labels"], car["properties"]) == (["Car"], {"id": "c"})
        assert (owns["type"], owns["properties"]) == ("OWNS", {"since": 1})
        assert (owns["start"], owns["end"]) == (user["id"], car["id"])
        assert graph.dialect.is_node_id(user["id"])
        assert path == {"nodes": [user, car], "relationships": [owns]}
        [plain] = (await graph.read(APP, statement, {}, timeout_s=120)).rows
        assert plain == ({"id": "u"}, {"since": 1}, [{"id": "c"}], [{"id": "u"}, {"id": "c"}])

    @pytest.mark.parametrize(
        "change",
        [
            "MATCH (a:A {id: 1}) SET a.s = 'x'", "MATCH (a:A {id: 1}) SET a.new = 1", "MATCH (a:A {id: 1}) REMOVE a.b",
            "MATCH (a:A {id: 1}) SET a:More", "MATCH ()-[r:R {w: 2}]->() DELETE r",
            "MATCH ()-[r:R {w: 2}]->() SET r.w = 1", "MATCH (a:A {id: 2}) SET a.l = ['y', 'x']", "CREATE (:A)",
        ],
    )  # fmt: skip
    async def test_the_digest_sees_every_change(self, kit: GraphKit, graph: GraphStore, change: str) -> None:
        for statement in CONTENT:
            kit.run(statement)
        before = await read_digest(graph, APP)
        kit.run(change)
        assert await read_digest(graph, APP) != before

    @pytest.mark.parametrize(
        ("statement", "place"),
        [
            ("MEREG (n:N)", "line 1, column 1"),
            ("WITH 1 AS x MEREG (n:N)", "line 1, column 13"),
            ("MERGE (n:N)\n  STE n.x = 1", "line 2, column 3"),
        ],
    )
    async def test_a_refusal_says_where_in_the_rules_query(self, graph: GraphStore, statement: str, place: str) -> None:
        applied = await graph.apply(APP, 0, chain(statement, long="a value that must not move the column"))
        said = str(applied.failure)
        line, column = place.split(", column ")
        assert line in said
        assert "of the query" in said
        # Some servers name the end of what they could read.
        assert any(f"column {int(column) + further} of" in said for further in range(4))

    @pytest.mark.parametrize("case", [*OF_VALUES, *OF_RULES])
    async def test_errors_of_values_differ_from_those_of_rules(self, graph: GraphStore, case: str) -> None:
        text, given = (OF_VALUES | OF_RULES)[case]
        done = await graph.apply(APP, 0, chain(text, v=given))
        assert done.failure is not None
        assert done.failure.of_value == (case in OF_VALUES)

    async def test_errors_quote_no_values(self, kit: GraphKit, graph: GraphStore) -> None:
        kit.run("CREATE (:Private {text: 'ZQXsecret', number: 777555111, list: ['ZQXsecret']})")
        refused = 0
        for expression in QUOTING:
            of_value = f"MATCH (p:Private) RETURN {expression.format(v='$v')}"
            asked = [(of_value, {"v": each}) for each in PRIVATE]
            asked += [
                (f"MATCH (p:Private) RETURN {expression.format(v=f'p.{name}')}", {})
                for name in ("text", "number", "list")
            ]
            for statement, params in asked:
                try:
                    await graph.read(APP, statement, params, timeout_s=120)
                except QueryFailed as error:
                    refused += 1
                    said = str(error)
                    assert not re.search("ZQX|777555111|13-45", said), (statement, said)
                    assert len(said) < 600
        assert refused > 100
