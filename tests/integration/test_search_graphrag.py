"""Searches of named indexes through neo4j-graphrag's retrievers, beside our own."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import neo4j
import pytest
from tests.services.memories import empty_neo4j
from tests.services.neo4j import Neo4jServer

from graphweft_contracts import InvalidSettings, QueryFailed
from graphweft_contracts.search import SearchQuery
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.graph.neo4j import Neo4jStore
from graphweft_workers.retrieval.search import Found, Searcher

pytest.importorskip("neo4j_graphrag", reason="the extra graphrag is not installed")
from graphweft_workers.retrieval.graphrag import GraphragSearcher

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    # Its own, about a column that nobody here reads.
    pytest.mark.filterwarnings("ignore:The default returned 'id' field:DeprecationWarning"),
]

INDEXES = ("grChunks", "grTexts")


class Angle(HashingEmbedder):
    """Turns a text of one number into the direction of that angle."""

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[math.cos(float(text)), math.sin(float(text))] for text in texts]


@pytest.fixture
async def url(neo4j_server: Neo4jServer) -> AsyncIterator[str]:
    empty_neo4j(neo4j_server.uri)
    rnd = random.Random(1)
    rows = [
        {"id": f"{n:03}", "x": rnd.random() * 3, "text": f"number {n} " + rnd.choice(["tea", "coffee milk", "oslo"])}
        for n in range(200)
    ]
    # With quantization, which is the default, the index gives scores that are off in the third decimal.
    options = (
        "OPTIONS {indexConfig: {`vector.dimensions`: 2, `vector.similarity_function`: 'cosine', "
        "`vector.quantization.enabled`: false}}"
    )
    with neo4j.GraphDatabase.driver(neo4j_server.uri) as driver:
        driver.execute_query(f"CREATE VECTOR INDEX grChunks IF NOT EXISTS FOR (n:Chunk) ON (n.embedding) {options}")
        driver.execute_query("CREATE FULLTEXT INDEX grTexts IF NOT EXISTS FOR (n:Chunk) ON EACH [n.text]")
        driver.execute_query(
            "UNWIND $rows AS row CREATE (:Chunk {id: row.id, text: row.text, embedding: [cos(row.x), sin(row.x)]})",
            rows=rows,
        )
        driver.execute_query("CALL db.awaitIndexes(60)")
        yield neo4j_server.uri
        for name in INDEXES:
            driver.execute_query(f"DROP INDEX {name} IF EXISTS")


def asked(text: str, index_type: str | None = None, k: int = 5, **more: Any) -> SearchQuery:
    names = {"index_name": "grTexts" if index_type == "fulltext" else "grChunks"}
    if index_type == "hybrid":
        names["fulltext_index_name"] = "grTexts"
    return SearchQuery(text=text, index_type=index_type, top_k=k, **names, **more)  # type: ignore[arg-type]


RETRIEVAL = "RETURN node.text AS text, score, node.id AS id, $more AS more ORDER BY score DESC"


def firm(found: Found) -> set[str]:
    """Return the texts that are not just as near as the last one."""
    rows = found.table.rows
    return {row[0] for row in rows if row[1] > rows[-1][1] + 2e-5}


@pytest.fixture
async def ours(url: str) -> AsyncIterator[Searcher]:
    store = Neo4jStore(url)
    await store.prepare("shop", ())
    yield Searcher(store, Angle(8))
    await store.aclose()


async def test_our_vector_search_finds_what_vector_retriever_finds(url: str, ours: Searcher) -> None:
    async with GraphragSearcher(url, Angle(8)) as theirs:
        for number in range(20):
            query = asked(str(number / 7), k=10)
            one = await ours.search("shop", query, timeout_s=20)
            other = await theirs.search(query, timeout_s=20)
            assert [row[1] for row in one.table.rows] == pytest.approx([row[1] for row in other.table.rows], abs=1e-5)
            assert firm(one) == firm(other)
            assert len(firm(one)) > 3
            assert one.table.columns == other.table.columns == ("text", "score")


async def test_each_kind_of_search_has_its_retriever(url: str) -> None:
    async with GraphragSearcher(url, Angle(8)) as searcher:
        for kind, text in (("vector", "1"), ("hybrid", "17"), ("fulltext", "the tea? AND (oslo")):
            plain = await searcher.search(asked(text, kind, 6), timeout_s=20)
            query = asked(text, kind, 6, retrieval_query=RETRIEVAL, params={"more": 1})
            enriched = await searcher.search(query, timeout_s=20)
            assert len(plain.table.rows) == 6
            assert enriched.table.columns == ("text", "score", "id", "more")
            assert [row[1] for row in enriched.table.rows] == pytest.approx([row[1] for row in plain.table.rows])
            scores = [row[1] for row in plain.table.rows]
            assert scores == sorted(scores, reverse=True)
        found = await searcher.search(asked("tea", "fulltext"), timeout_s=20)
        assert all("tea" in row[0] for row in found.table.rows)


async def test_it_only_reads_and_ends_in_time(url: str) -> None:
    async with GraphragSearcher(url, Angle(8), threads=2) as searcher:
        write = asked("1", retrieval_query="SET node.text = 'x' RETURN node.text AS text, score")
        with pytest.raises(QueryFailed, match="read"):
            await searcher.search(write, timeout_s=20)
        slow = asked(
            "1",
            retrieval_query="UNWIND range(1, 100000) AS a UNWIND range(1, 100000) AS b "
            "WITH node, score, max(a * b) AS c RETURN node.text AS text, score",
        )
        for _ in range(2):
            with pytest.raises(QueryFailed) as failed:
                await searcher.search(slow, timeout_s=1.0)
            assert failed.value.code == "timeout"
        # The server has let go of these, so the threads are free again.
        async with asyncio.timeout(20):
            found = await searcher.search(asked("1"), timeout_s=20)
        assert len(found.table.rows) == 5


async def test_what_cannot_work_is_said(url: str) -> None:
    async with GraphragSearcher(url) as searcher:
        with pytest.raises(InvalidSettings, match="embedder is required when index_type='vector'"):
            await searcher.search(asked("1"), timeout_s=20)
        with pytest.raises(QueryFailed, match="no memory"):
            await searcher.search(SearchQuery(text="x", memory={"user_id": "u"}), timeout_s=20)  # type: ignore[arg-type]
    async with GraphragSearcher(url, Angle(8)) as searcher:
        with pytest.raises(QueryFailed, match="nope"):
            await searcher.search(SearchQuery(text="1", index_name="nope"), timeout_s=20)
        with pytest.raises(QueryFailed, match="must return text"):
            await searcher.search(asked("1", retrieval_query="RETURN node.id AS id, score"), timeout_s=20)
    with pytest.raises(InvalidSettings):
        GraphragSearcher("neo4j://{app_id}.example:7687")
