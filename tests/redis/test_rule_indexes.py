"""A search index that a rule names is in every graph of the app, however the graph came to be."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import neo4j
import pytest
import redis.asyncio as redis
from tests.chaos.serial import Neo4jReference
from tests.edges.test_cli import Call, call
from tests.redis.test_rebuild import App
from tests.services.neo4j import Neo4jServer

from graphweft_contracts import Event, QueryFailed
from graphweft_contracts.search import SearchQuery
from graphweft_workers.retrieval.search import Searcher
from graphweft_workers.support.timing import TIMING
from graphweft_workers.testing.suites.search_kit import OneVector
from graphweft_workers.testing.waiting import until

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

WRITES = """
version: "1.0"
mutation_rules:
  - name: filed
    events: ["doc.filed"]
    mutations:
      - id: doc
        cypher: "MERGE (d:Doc {id: $id}) SET d.text = $text, d.vector = vecf32($vector)"
        params: {id: $event.id, text: $event.text, vector: $event.vector}
"""
SEARCHES = """
injection_rules:
  - name: documents
    agents: ["*"]
    queries:
      - id: words
        search: {index_name: Doc.text, index_type: fulltext, query: $context.question}
        inject_as: WORDS
      - id: near
        search: {index_name: Doc.vector, dimensions: 2, query: $context.question}
        inject_as: NEAR
"""
WORDS = SearchQuery(text="tea", index_name="Doc.text", index_type="fulltext")
NEAR = SearchQuery(text="tea", index_name="Doc.vector", index_type="vector")


class Docs(App):
    """An app whose documents are searched."""

    async def push_docs(self, rules: str) -> None:
        file = self.folder / "rules/Docs/graph_injection.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(rules)
        done = await self.run("rules", "push", str(self.folder / "rules"))
        assert done.code == 0, done.err

    async def file(self, *texts: str, size: int = 2) -> None:
        await self._append(
            Event.create(
                "doc.filed", app_id="shop", chat_id="c", workflow="Docs", id=text, source="/test",
                data={"id": text, "text": text, "vector": [1.0, *[0.5] * (size - 1)]},
            )
            for text in texts
        )  # fmt: skip
        async with self.worker():
            await self.applied()

    async def change(self, *statements: str) -> None:
        """Change the live graph by hand."""
        if self.url.startswith("bolt"):
            with neo4j.GraphDatabase.driver(self.url) as driver:
                for statement in statements:
                    driver.execute_query(statement)
            return
        async with redis.Redis.from_url(self.url) as client:
            for statement in statements:
                await client.execute_command("GRAPH.QUERY", "mozaiks_shop", statement)

    async def make_words(self, label: str, name: str) -> None:
        """Make a fulltext index by hand."""
        await self.change(
            f"CREATE FULLTEXT INDEX by_hand FOR (n:{label}) ON EACH [n.{name}]"
            if self.url.startswith("bolt")
            else f"CALL db.idx.fulltext.createNodeIndex('{label}', '{name}')"
        )

    async def found(self, query: SearchQuery, *, beside: str | None = None, size: int = 2) -> list[Any]:
        """Search a graph of the app in a new process."""
        async with contextlib.aclosing(self.store(beside)) as store:
            searcher = Searcher(store, OneVector(*([1.0] * size)))
            table = (await searcher.search("shop", query, timeout_s=60)).table
        return sorted(row[0] for row in table.rows)

    async def finds(self, *texts: str, beside: str | None = None) -> None:
        """Wait until both indexes find these documents: Neo4j fills a new index behind the commit."""
        for query in (WORDS, NEAR):

            async def found(query: SearchQuery = query) -> list[Any] | str:
                try:
                    return await self.found(query, beside=beside)
                except QueryFailed as error:
                    return str(error)

            await until(found, lambda found: found == sorted(texts), why=f"{query.index_name} finds {texts}")


@pytest.fixture(params=["falkordb", "neo4j"])
async def docs(request: pytest.FixtureRequest, url: str, call: Call, tmp_path: Path) -> AsyncIterator[Docs]:
    graph_url: str | None = None
    if request.param == "neo4j":
        server: Neo4jServer = request.getfixturevalue("neo4j_server")
        graph_url = server.uri
        async with contextlib.aclosing(Neo4jReference(graph_url)) as reference:
            await reference.clear()
        drop_indexes(graph_url)
    async with contextlib.aclosing(Docs(url, call, tmp_path, graph_url=graph_url)) as app:
        await app.bus.partitions.count()
        yield app
    if graph_url is not None:
        drop_indexes(graph_url)


def drop_indexes(uri: str) -> None:
    with neo4j.GraphDatabase.driver(uri) as driver:
        names = driver.execute_query(
            "SHOW INDEXES YIELD name, type WHERE type IN ['FULLTEXT', 'VECTOR'] RETURN name"
        ).records
        for [name] in names:
            driver.execute_query(f"DROP INDEX `{name}` IF EXISTS")


async def test_the_indexes_that_rules_name_come_with_the_first_event(docs: Docs) -> None:
    await docs.push_docs(WRITES + SEARCHES)
    await docs.file("green tea", "black tea")
    await docs.finds("green tea", "black tea")


async def test_rules_that_name_them_later_get_them_at_the_next_event(docs: Docs) -> None:
    await docs.push_docs(WRITES)
    await docs.file("green tea")
    with pytest.raises(QueryFailed, match=r"unknown fulltext index 'Doc\.text'; the graph has: .*a rule names as"):
        await docs.found(WORDS)
    await docs.push_docs(WRITES + SEARCHES)
    await docs.file("black tea")
    await docs.finds("green tea", "black tea")


@pytest.mark.long("neo4j")
async def test_a_rebuilt_graph_has_them_beside_after_a_swap_and_after_a_rollback(docs: Docs) -> None:
    await docs.push_docs(WRITES + SEARCHES)
    await docs.file("green tea")
    code, found = await docs.rebuild("--app", "shop")
    assert code == 0, found
    if not docs.url.startswith("bolt"):  # there, nobody searches in a second graph
        await docs.finds("green tea", beside="mozaiks_{app_id}.rebuilt")
    code, found = await docs.rebuild("--app", "shop", "--swap", "--resume")
    assert (code, found["swapped"]) == (0, True)
    await docs.finds("green tea")
    await docs.file("black tea")
    await docs.finds("green tea", "black tea")
    assert (await docs.run("rollback", "--app", "shop")).code == 0
    await docs.finds("green tea", "black tea")


async def test_a_graph_that_is_made_anew_after_a_loss_has_them(docs: Docs) -> None:
    await docs.push_docs(WRITES + SEARCHES)
    await docs.file("green tea")
    if docs.url.startswith("bolt"):
        await docs.change("MATCH (n) DETACH DELETE n")
        drop_indexes(docs.url)
    else:
        async with redis.Redis.from_url(docs.url) as client:
            await client.execute_command("GRAPH.DELETE", "mozaiks_shop")
    await docs.file("black tea")
    await docs.finds("green tea", "black tea")


async def test_vectors_of_another_length_get_another_index(docs: Docs) -> None:
    await docs.push_docs(WRITES + SEARCHES)
    await docs.file("green tea")
    await docs.push_docs(WRITES + SEARCHES.replace("dimensions: 2", "dimensions: 3"))
    await docs.file("black tea", size=3)

    async def found() -> list[Any] | str:
        try:
            return await docs.found(NEAR, size=3)
        except QueryFailed as error:
            return str(error)

    await until(found, lambda found: found == ["black tea"])
    with pytest.raises(QueryFailed, match=r"holds vectors of 3 numbers.*or write dimensions: 2 in the rule that names"):
        await docs.found(NEAR)


async def test_a_responder_lists_the_indexes_again_before_it_says_that_a_length_is_wrong(docs: Docs) -> None:
    await docs.push_docs(WRITES + SEARCHES)
    await docs.file("green tea")
    async with contextlib.aclosing(docs.store(None)) as store:

        async def found(searcher: Searcher) -> list[Any] | str:
            try:
                rows = (await searcher.search("shop", NEAR, timeout_s=60)).table.rows
            except QueryFailed as error:
                return str(error)
            return [row[0] for row in rows]

        changed, same = OneVector(1.0, 1.0), OneVector(1.0, 1.0)
        timing = replace(TIMING.retrieval, names_s=3_600.0)
        searchers = [Searcher(store, each, timing=timing) for each in (changed, same)]
        for searcher in searchers:
            await until(partial(found, searcher), lambda rows: rows == ["green tea"])
        await docs.push_docs(WRITES + SEARCHES.replace("dimensions: 2", "dimensions: 3"))
        await docs.file("black tea", size=3)
        changed.vector = [1.0, 1.0, 1.0]
        await until(partial(found, searchers[0]), lambda rows: rows == ["black tea"])
        await until(partial(found, searchers[1]), lambda rows: "holds vectors of 3 numbers" in rows)


async def test_an_app_without_a_graph_is_said_to_have_none(docs: Docs) -> None:
    async with contextlib.aclosing(docs.store(None)) as store:
        for query in (WORDS, NEAR):
            with pytest.raises(QueryFailed, match=r"^the app 'acm' has no graph: check its name"):
                await Searcher(store, OneVector(1.0, 1.0)).search("acm", query, timeout_s=60)


@pytest.mark.long("neo4j")
async def test_a_rebuild_names_what_the_log_does_not_make(docs: Docs) -> None:
    await docs.push_docs(WRITES + SEARCHES)
    await docs.file("green tea", "black tea")
    code, found = await docs.rebuild("--app", "shop", "--swap")
    assert (code, found["lacks"]) == (0, {"schema": [], "nodes": {}}), found
    await docs.change(
        "CREATE (:Person {name: 'Ada'}), (:Person:Doc {id: 'by hand'})", "CREATE INDEX FOR (n:Person) ON (n.name)"
    )
    await docs.make_words("Person", "about")
    assert (await docs.run("rebuild", "--app", "shop", "--drop")).code == 0
    done = await docs.run("rebuild", "--app", "shop", "--swap")
    assert done.code == 0, done.err
    assert "the graph of 'shop' that was live until now has what the new one lacks" in done.err
    assert "1 with the label Doc; 2 with the label Person" in done.err
    if docs.url.startswith("bolt"):  # indexes are of the database
        assert "index on" not in done.err
        return
    assert "fulltext index on Person.about; range index on Person.name; " in done.err
    done = await docs.run("rollback", "--app", "shop", "--json")
    assert json.loads(done.out.splitlines()[-1])["lacks"] == {"schema": [], "nodes": {}}
    assert (await docs.run("rebuild", "--app", "shop", "--drop")).code == 0
    code, found = await docs.rebuild("--app", "shop")
    assert found["lacks"] == {
        "schema": ["fulltext index on Person.about", "range index on Person.name"], "nodes": {"Person": 2},
    }  # fmt: skip


FACTS = """
version: "1.0"
mutation_rules:
  - name: filed
    events: ["doc.filed"]
    mutations:
      - id: doc
        cypher: "MERGE (d:Doc {KEY: $id}) SET d.text = $text"
        params: {id: $event.id, text: $event.text}
injection_rules:
  - name: facts
    agents: ["*"]
    queries:
      - {id: facts, graphrag: {query: $context.question}, inject_as: FACTS}
"""


@pytest.mark.long("neo4j")
async def test_a_rebuild_makes_the_indexes_of_facts_and_misses_none(docs: Docs) -> None:
    await docs.push_docs(FACTS.replace("KEY", "id"))
    await docs.file("green tea", "black tea")
    async with contextlib.aclosing(docs.store(None)) as store:
        before = await store.whole.schema("shop")
        code, found = await docs.rebuild("--app", "shop", "--swap")
        assert (code, found["lacks"]) == (0, {"schema": [], "nodes": {}}), found
        assert await store.whole.schema("shop") == before
    await docs.push_docs(FACTS.replace("KEY", "name"))
    assert (await docs.run("rebuild", "--app", "shop", "--drop")).code == 0
    async with docs.worker():  # which reads that the past is restated
        code, found = await docs.rebuild("--app", "shop", "--rules", str(docs.folder / "rules"), "--swap")
    assert (code, found["lacks"]) == (0, {"schema": [], "nodes": {}}), found


async def test_constraints_by_hand_are_kept_or_named(docs: Docs) -> None:
    await docs.push_docs(WRITES + SEARCHES)
    await docs.file("green tea")
    on_neo4j = docs.url.startswith("bolt")
    if on_neo4j:
        await docs.change("CREATE CONSTRAINT one FOR (d:Doc) REQUIRE d.text IS UNIQUE")
    else:
        await docs.change("CREATE INDEX FOR (d:Doc) ON (d.text)")
        async with redis.Redis.from_url(docs.url) as client:
            made = ("UNIQUE", "NODE", "Doc", "PROPERTIES", 1, "text")
            await client.execute_command("GRAPH.CONSTRAINT", "CREATE", "mozaiks_shop", *made)
    try:
        await docs.file("black tea")
        code, found = await docs.rebuild("--app", "shop", "--swap")
        assert (code, found["swapped"]) == (0, True), found
        kept = ["range index on Doc.text", "unique constraint on Doc.text"]  # the first is not one of a look-up
        assert found["lacks"] == {"schema": [] if on_neo4j else kept, "nodes": {}}
        await docs.finds("green tea", "black tea")
    finally:
        if on_neo4j:
            await docs.change("DROP CONSTRAINT one IF EXISTS")
