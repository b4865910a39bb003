"""Facts in answers: what rules ask for by ``graphrag:``, with what is missing said."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from tests.neo4j.test_memory_events import APP, add, event, write
from tests.redis.test_answering import ended
from tests.services.rules import load_rules

from graphweft_contracts import ContextReply, ContextRequest, GraphUnavailable, QueryFailed
from graphweft_contracts.prompt_text import inside
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.features.graphrag.retriever import HybridRetriever
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.ports.graph_store import GraphStore, Table

pytestmark = pytest.mark.integration

RULES = """
version: "1.0"
injection_rules:
  - name: Named
    agents: [Asker]
    queries:
      - id: facts
        graphrag: {query: $context.question, memory: {user_id: $context.user_id}}
        inject_as: graphrag
  - name: Seeded
    agents: [Seeded]
    queries:
      - id: facts
        graphrag: {query: $context.question, seeds: $context.recalled}
        inject_as: graphrag
        format: list
        max_results: 1
  - name: Searching
    agents: [Searcher]
    queries:
      - id: facts
        graphrag:
          query: $context.question
          memory: {user_id: $context.user_id}
          search: {index_type: fulltext, top_k: 3}
        inject_as: graphrag
  - name: Beside
    agents: [Beside]
    queries:
      - id: facts
        graphrag: {query: $context.question}
        inject_as: graphrag
      - id: count
        cypher: MATCH (e:Entity) RETURN count(e) AS entities
        inject_as: count
"""
OWNS = "Ann owns the shop"


class Spy:
    """A graph store that counts, and fails when it is told to; else it is the real one."""

    def __init__(self, graph: GraphStore) -> None:
        self._graph = graph
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.from_question = 0
        """How many are answered before the error."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def read(self, app_id: str, statement: str, params: Mapping[str, Any], **more: Any) -> Table:
        self.asked.append(statement)
        if self.error is not None and len(self.asked) > self.from_question:
            raise self.error
        return await self._graph.read(app_id, statement, params, **more)


@pytest.fixture
async def spy(url: str, graph: FalkorDBStore) -> Spy:
    people = [{"type": "Person", "name": "Ann"}, {"type": "Shop", "name": "Tea House"}]
    owns = {"type": "OWNS", "source": "Ann", "target": "Tea House", "fact": OWNS}
    known = {"entities": people, "relations": [owns]}
    episodes = [
        event("episode.add", 1, {"content": known, "episode_type": "json", "user_id": "u1"}),
        event("episode.add", 2, {"content": {"entities": [{"type": "Person", "name": "Eve", "description": "is u2's"}]},
                                 "episode_type": "json", "user_id": "u2"}),
        add(3, "The Tea House opens at nine", user_id="u1"),
    ]  # fmt: skip
    await write(url, graph, episodes)
    return Spy(graph)


@pytest.fixture
async def pipeline(tmp_path: Path, spy: Any) -> AsyncIterator[ContextPipeline]:
    (tmp_path / "W").mkdir()
    (tmp_path / "W/graph_injection.yaml").write_text(RULES)
    made = ContextPipeline(load_rules(tmp_path), spy, facts=HybridRetriever(spy, enabled=True))
    yield made
    await made.aclose()


async def ask(pipeline: ContextPipeline, agent: str = "Asker", *, budget_s: float = 5.0, **fields: Any) -> ContextReply:
    request = {
        "id": "r", "app_id": APP, "workflow": "W", "agent": agent, "chat_id": "c",
        "context": {"user_id": "u1", "question": "What does Ann own?"},
        "deadline_ms": int((time.time() + budget_s) * 1000),
    } | fields  # fmt: skip
    return await pipeline.answer(ContextRequest.model_validate(request))


async def warmed(pipeline: ContextPipeline) -> None:
    """Ask once, and wait for the queries that the first question of an app starts in the background."""
    await ask(pipeline)
    await ended(pipeline)


async def test_a_rule_brings_facts_of_what_the_question_names(pipeline: ContextPipeline) -> None:
    reply = await ask(pipeline, explain=True)
    [block] = reply.blocks
    assert (block.name, block.format, reply.missing) == ("graphrag", "facts", ())
    assert OWNS in block.value
    lines = inside(reply.text).splitlines()
    assert (lines[0], lines[1], lines[-1]) == (
        "## Graphrag", "GRAPHRAG_CONTEXT_BLOCK_START", "GRAPHRAG_CONTEXT_BLOCK_END",
    )  # fmt: skip
    assert block.explanation is not None
    assert block.explanation.params == {"query": "What does Ann own?", "seeds": 0, "memory": {"user_id": "u1"}}


async def test_what_belongs_to_others_is_no_fact(pipeline: ContextPipeline) -> None:
    question = {"question": "Who are Ann and Eve?"}
    theirs = await ask(pipeline, context={"user_id": "u2", **question})
    assert ("Eve" in theirs.text, OWNS in theirs.text) == (True, False)
    mine = await ask(pipeline, context={"user_id": "u1", **question})
    assert ("Eve" in mine.text, OWNS in mine.text) == (False, True)
    nobodys = await ask(pipeline, "Beside", context=question)
    assert [block.rows for block in nobodys.blocks] == [0, 1]
    missing = await ask(pipeline, context=question)
    assert (missing.reason, missing.text) == ("missing_param", "")


async def test_the_seeds_of_a_runtime_lead_there(pipeline: ContextPipeline, url: str, graph: FalkorDBStore) -> None:
    async with redis.Redis.from_url(url) as raw:
        await raw.execute_command(
            "GRAPH.QUERY", f"mozaiks_{APP}",
            "CREATE (:Document {id: 'd1', name: 'Plan'})-[:MENTIONS]->(:Entity {id: 'e1', name: 'Harbour', "
            "description: 'A place'})",
        )  # fmt: skip
    context = {"question": "and now?", "recalled": [{"id": "d1", "text": "the plan", "score": 0.9}, "d1"]}
    [block] = (await ask(pipeline, "Seeded", context=context)).blocks
    assert (block.rows, list(block.value[0])) == (1, ["fact"])
    assert "Harbour" in str(block.value)


async def test_what_a_search_finds_are_seeds(pipeline: ContextPipeline) -> None:
    reply = await ask(pipeline, "Searcher", context={"user_id": "u1", "question": "when does it open?"}, explain=True)
    [block] = reply.blocks
    # The memory that is found names the house.
    assert OWNS in block.value
    assert block.explanation is not None
    assert block.explanation.params["search"]["memory"] == {"user_id": "u1"}


async def test_when_it_is_off_the_graph_is_not_asked(tmp_path: Path, spy: Any) -> None:
    (tmp_path / "W").mkdir()
    (tmp_path / "W/graph_injection.yaml").write_text(RULES)
    pipeline = ContextPipeline(load_rules(tmp_path), spy)
    for agent in ("Asker", "Searcher"):
        reply = await ask(pipeline, agent)
        assert [(missing.reason, reply.blocks) for missing in reply.missing] == [("disabled", ())]
        assert "GRAPHRAG_ENABLED" in reply.detail
    assert spy.asked == []
    reply = await ask(pipeline, "Beside")
    assert [block.name for block in reply.blocks] == ["count"]
    await pipeline.aclose()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (GraphUnavailable("away"), "graph_unavailable"),
        (QueryFailed("slow", code="timeout"), "timeout"),
        (QueryFailed("wrong"), "query_error"),
        (RuntimeError("a defect"), "query_error"),
    ],
)
async def test_why_there_are_no_facts(pipeline: ContextPipeline, spy: Spy, error: Exception, reason: str) -> None:
    await warmed(pipeline)
    spy.error = error
    reply = await ask(pipeline, budget_s=2.0)
    assert [(missing.name, missing.reason) for missing in reply.missing] == [("graphrag", reason)]
    assert reply.blocks == ()


async def test_what_was_found_before_the_graph_went_away_is_there(pipeline: ContextPipeline, spy: Spy) -> None:
    await warmed(pipeline)
    spy.error, spy.from_question = GraphUnavailable("away"), 2
    spy.asked.clear()
    reply = await ask(pipeline)
    assert OWNS in reply.text
    assert [missing.reason for missing in reply.missing] == ["graph_unavailable"]


async def test_facts_are_cut_behind_whole_ones(pipeline: ContextPipeline) -> None:
    whole = await ask(pipeline)
    cut = await ask(pipeline, max_tokens=whole.tokens - 1)
    assert cut.tokens < whole.tokens
    lines = cut.text.splitlines()
    assert not lines or (lines[-1] == "GRAPHRAG_CONTEXT_BLOCK_END" and set(lines) < set(whole.text.splitlines()))
