"""Searches in answers: from rules and from requests, with what is missing said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.neo4j.test_memory_events import APP, add, event, write
from tests.services.rules import load_rules, rule_set

from graphweft_contracts import ContextReply, ContextRequest, QueryFailed
from graphweft_contracts.memory import MemoryScope, memory_id
from graphweft_contracts.prompt_text import inside
from graphweft_contracts.search import SearchQuery
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.embedding.protocol import EmbedderUnavailable
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.retrieval.search import IndexNames

pytestmark = pytest.mark.integration

RULES = """
version: "1.0"
injection_rules:
  - name: Recall
    agents: ["*"]
    queries:
      - id: memories
        search:
          memory: {user_id: $context.user_id}
          of: memories
          query: $context.messages
          index_type: hybrid
          top_k: 2
        inject_as: MEMORIES
      - id: users
        cypher: "MATCH (u:UserProfile) RETURN u.user_id AS user"
        inject_as: USERS
"""
TEXTS = ["Ann likes green tea", "the tea is cold", "Bob drives a car", "of somebody else: tea"]


class Embedder:
    """The hashing embedder, which fails or hangs when it is told to."""

    def __init__(self) -> None:
        self._inner = HashingEmbedder(64)
        self.model = self._inner.model
        self.error: Exception | None = None
        self.hangs = False

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return await self._inner.embed(texts)

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.fixture
async def embedder(url: str, graph: FalkorDBStore) -> Embedder:
    made = Embedder()
    events = [add(number, text, user_id="u2" if number == 4 else "u1") for number, text in enumerate(TEXTS, 1)]
    for number, text in enumerate(TEXTS[:3], 1):
        [vector] = await made.embed([text])
        data = {"memory_id": memory_id("/test", f"e{number}", 0), "model": made.model, "embedding": vector}
        events.append(event("memory.embedded", 10 + number, data))
    await write(url, graph, events)
    return made


@pytest.fixture
async def pipeline(tmp_path: Path, graph: FalkorDBStore, embedder: Embedder) -> AsyncIterator[ContextPipeline]:
    (tmp_path / "W").mkdir()
    (tmp_path / "W/graph_injection.yaml").write_text(RULES)
    made = ContextPipeline(load_rules(tmp_path), graph, embedder=embedder)
    yield made
    await made.aclose()


async def ask(pipeline: ContextPipeline, *, budget_s: float = 5.0, **fields: Any) -> ContextReply:
    request = {
        "id": "r", "app_id": APP, "workflow": "W", "agent": "A", "chat_id": "c",
        "context": {"user_id": "u1", "messages": [{"role": "user", "content": "What tea does Ann like?"}]},
        "deadline_ms": int((time.time() + budget_s) * 1000),
    } | fields  # fmt: skip
    return await pipeline.answer(ContextRequest.model_validate(request))


def search(**fields: Any) -> SearchQuery:
    return SearchQuery.model_validate({"text": "tea Ann likes", "memory": MemoryScope(user_id="u1"), **fields})


async def test_a_rule_brings_what_is_remembered_within_its_scope(pipeline: ContextPipeline) -> None:
    reply = await ask(pipeline)
    assert reply.missing == ()
    [memories, users] = reply.blocks
    assert (memories.name, memories.format, memories.rows) == ("MEMORIES", "memory", 2)
    lines = memories.value.split("\n")
    assert lines[0].startswith("Today is ")
    assert lines[2:] == [f"- user: {text}" for text in TEXTS[:2]]
    assert users.rows == 2
    assert "Ann likes green tea" in reply.text


async def test_without_its_scope_a_rule_searches_nothing(pipeline: ContextPipeline) -> None:
    reply = await ask(pipeline, context={"messages": []})
    assert [(missing.name, missing.reason) for missing in reply.missing] == [("memories", "missing_param")]
    assert [block.name for block in reply.blocks] == ["USERS"]


@pytest.mark.parametrize("way", ["fails", "hangs", "breaks"])
async def test_without_the_embedder_words_are_searched_and_it_is_said(
    pipeline: ContextPipeline, embedder: Embedder, way: str
) -> None:
    embedder.hangs = way == "hangs"
    embedder.error = EmbedderUnavailable("busy") if way == "fails" else OSError("secret") if way == "breaks" else None
    reply = await ask(pipeline, budget_s=1.0)
    [memories, _] = reply.blocks
    assert (memories.name, memories.rows) == ("MEMORIES", 2)
    [missing] = reply.missing
    assert (missing.name, missing.reason) == ("MEMORIES", "embedder_unavailable")
    assert "secret" not in missing.detail
    assert reply.partial
    # what was found without it is not kept for when it is back
    embedder.hangs, embedder.error = False, None
    assert (await ask(pipeline)).missing == ()


async def test_rows_of_memories_are_not_kept_as_they_end_without_a_write(
    url: str, graph: FalkorDBStore, pipeline: ContextPipeline
) -> None:
    for _ in range(3):
        await ask(pipeline)
    assert pipeline.cache.entries == 1, "those of the other query"
    hits = pipeline.cache.hits
    await write(url, graph, [add(30, "Ann likes black tea, too")])
    reply = await ask(pipeline)
    assert "black tea" in reply.text
    assert pipeline.cache.hits == hits


async def test_a_request_may_bring_a_search_of_its_own(pipeline: ContextPipeline) -> None:
    reply = await ask(pipeline, workflow="none", search=search(top_k=1))
    [block] = reply.blocks
    assert (block.name, block.format) == ("search", "list")
    assert block.value[0]["text"] == TEXTS[0]
    assert block.value[0]["role"] == "user"
    assert inside(reply.text).endswith(f"\n- user: {TEXTS[0]}")
    assert reply.results == block.value


async def test_a_requests_search_is_cut_to_its_tokens(pipeline: ContextPipeline) -> None:
    reply = await ask(pipeline, search=search(top_k=3, index_type="fulltext", text="tea"), max_tokens=45)
    [block] = reply.blocks
    assert block.rows == len(block.value) == 1
    assert block.cut == 1


async def test_a_requests_cypher_goes_on_from_the_hits(pipeline: ContextPipeline) -> None:
    query = "RETURN node.text AS text, score, size(node.text) AS size, $more AS more ORDER BY score DESC"
    reply = await ask(pipeline, search=search(retrieval_query=query, params={"more": 7}, top_k=1))
    assert reply.results[0].keys() == {"text", "score", "size", "more"}
    assert reply.results[0]["more"] == 7


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SET node.text = '' RETURN node.text AS text, score", "SET"),
        ("RETURN node.text AS body, score", "text"),
        ("CALL db.labels() YIELD label RETURN node.text AS text, score", "procedure"),
    ],
)
async def test_a_requests_cypher_may_only_read_on(pipeline: ContextPipeline, query: str, message: str) -> None:
    reply = await ask(pipeline, search=search(retrieval_query=query))
    assert (reply.blocks, reply.reason) == ((), "invalid_request")
    assert message in reply.detail


async def test_where_there_is_no_embedder_vectors_cannot_be_searched(graph: FalkorDBStore, embedder: Embedder) -> None:
    plain = ContextPipeline(rule_set(), graph)
    reply = await ask(plain, search=search(index_type="vector"))
    assert reply.reason == "invalid_request"
    assert "embedder is required when index_type='vector'" in reply.detail
    words = await ask(plain, search=search(top_k=1))
    assert [row["text"] for row in words.results] == [TEXTS[0]]
    recent = await ask(plain, search=search(top_k=1, text=""))
    assert [(row["text"], row["score"]) for row in recent.results] == [(TEXTS[2], None)]
    await plain.aclose()


@pytest.mark.parametrize(
    ("index_type", "names", "meant"),
    [
        (None, IndexNames(), "chunkEmbeddings"),
        ("vector", IndexNames(vector="V"), "V"),
        ("fulltext", IndexNames(), "search_chunks"),
        ("fulltext", IndexNames(index="Any"), "Any"),
    ],
)
async def test_an_index_that_is_not_named_is_that_of_the_settings(
    graph: FalkorDBStore, embedder: Embedder, index_type: Any, names: IndexNames, meant: str
) -> None:
    pipeline = ContextPipeline(rule_set(), graph, embedder=embedder, index_names=names)
    reply = await ask(pipeline, search=search(memory=None, index_type=index_type))
    assert reply.reason == "query_error"
    assert repr(meant) in reply.detail
    await pipeline.aclose()


EVERYTHING = "x`=1 MATCH (node:Memory) WITH node, 1.0 AS score //"


def test_a_parameter_has_a_plain_name() -> None:
    with pytest.raises(ValidationError, match="pattern"):
        search(retrieval_query="RETURN node.text AS text, score", params={EVERYTHING: 1})


async def test_a_parameters_name_is_no_cypher(graph: FalkorDBStore, embedder: Embedder) -> None:
    with pytest.raises(QueryFailed, match="backtick"):
        await graph.read(APP, "RETURN 1", {EVERYTHING: 1}, timeout_s=120)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("WITH node, score, '\\u0027 AS z MATCH (n) RETURN n.text AS text, 1 AS score //' AS q RETURN q", "backslash"),
        ("WITH node, score, '\\U0027 AS z' AS q RETURN q AS text, score", "backslash"),
        ("CALL { USE neo4j MATCH (n) RETURN n LIMIT 1 } RETURN n.text AS text, score", "USE"),
    ],
)
async def test_a_requests_cypher_is_what_it_looks_like(pipeline: ContextPipeline, query: str, message: str) -> None:
    reply = await ask(pipeline, search=search(retrieval_query=query))
    assert (reply.blocks, reply.reason) == ((), "invalid_request")
    assert message in reply.detail


async def test_a_vector_of_another_length_costs_no_scope_its_memory(
    url: str, graph: FalkorDBStore, pipeline: ContextPipeline, embedder: Embedder
) -> None:
    odd = {"memory_id": memory_id("/test", "e2", 0), "model": embedder.model, "embedding": [1.0, 0.5]}
    await write(url, graph, [event("memory.embedded", 40, odd)])
    for index_type in ("vector", "hybrid"):
        reply = await ask(pipeline, search=search(index_type=index_type, top_k=1))
        assert [row["text"] for row in reply.results] == [TEXTS[0]]
        assert reply.missing == ()
