"""A provider of memory and knowledge that cannot work: counted by reason, and said once with what to do.

The providers are called as Microsoft Agent Framework calls them; tests with the real one need an environment of theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.neo4j.test_search_kinds import write
from tests.services.neo4j import Neo4jServer
from tests.services.rules import rule_set

from graphweft import Client
from graphweft.adapters.core import Adapter
from graphweft_contracts import Event
from graphweft_contracts.memory import memory_id
from graphweft_contracts.prompt_text import inside
from graphweft_runtimes import agent_framework
from graphweft_runtimes.agent_framework.memory import GraphContextProvider
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.ports.graph_store import GraphStore

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BUDGET_MS = 120_000
START = datetime(2026, 2, 1, 10, tzinfo=UTC)
BROKEN: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "index": (
        {"index_name": "nowhere", "index_type": "fulltext"},
        "query_error", "unknown fulltext index 'nowhere'", "correct the query or the index",
    ),
    "embedder": (
        {"index_name": "chunks"},
        "invalid_request", "embedder is required when index_type='vector'", "set GRAPHWEFT_EMBEDDER where the",
    ),
    "cypher": (
        {"index_name": "chunks", "index_type": "fulltext", "retrieval_query": "RETURN nod.text AS text, score, }"},
        "invalid_request", "retrieval_query, line 1", "correct the value named here",
    ),
}  # fmt: skip
"""Options, the reason, and what the log says of it and of what to do."""


class ContextProvider:
    """What the framework's class has that ours builds on."""

    def __init__(self, source_id: str) -> None:
        self.source_id = source_id


@pytest.fixture(autouse=True)
def framework(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType("agent_framework")
    module.__version__ = "1.23.0"  # type: ignore[attr-defined]
    module.ContextProvider = ContextProvider  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agent_framework", module)
    for name in ("GRAPHWEFT_CONTEXT", "GRAPHWEFT_CAPTURE"):
        monkeypatch.delenv(name, raising=False)
    agent_framework.adapter._as_provider.cache_clear()
    yield
    agent_framework.adapter._as_provider.cache_clear()


@pytest.fixture(params=["falkordb", "neo4j"])
async def store(request: pytest.FixtureRequest, url: str) -> AsyncIterator[GraphStore]:
    if request.param == "neo4j":
        server: Neo4jServer = request.getfixturevalue("neo4j_server")
        server.empty()
        made: GraphStore = Neo4jStore(server.uri)
    else:
        made = FalkorDBStore(url, write_timeout_ms=5_000)
    async with contextlib.aclosing(made):
        await made.progress("shop", 0)
        yield made


@asynccontextmanager
async def responding(url: str, store: GraphStore, embedder: Embedder | None = None) -> AsyncIterator[None]:
    async with (
        contextlib.aclosing(
            ContextPipeline(rule_set(), store, embedder=embedder, query_timeout_s=BUDGET_MS / 1000)
        ) as pipeline,
        contextlib.aclosing(RedisRequestQueue(url, consumer="r")) as queue,
    ):
        responder = InjectionResponder(queue, pipeline.answer)
        running = asyncio.create_task(responder.run())
        try:
            yield
        finally:
            responder.stop()
            await running


@asynccontextmanager
async def adapting(url: str, **settings: Any) -> AsyncIterator[Any]:
    """Lend what a provider needs of the framework's adapter."""
    core = Adapter(Client(url), app_id="shop", **{"budget_ms": BUDGET_MS, **settings})
    yield SimpleNamespace(core=core, variables=lambda session: {"chat_id": session}, message=str)
    await core.aclose(0.1)


async def run(*providers: GraphContextProvider, times: int = 3) -> list[str]:
    """Ask as before a run of an agent, and return what was added."""
    added: list[str] = []
    for _ in range(times):
        for provider in providers:
            context = SimpleNamespace(
                get_messages=lambda sources: [],
                input_messages=[SimpleNamespace(role="user", text="Which secret cake?")],
                session_id="c1",
                extend_messages=lambda _, messages, **__: added.extend(messages),
            )
            agent = SimpleNamespace(name="Baker", context_providers=[provider])
            await provider.before_run(agent=agent, session="c1", context=context, state={})
    return added


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "graphweft.adapters"]


async def test_what_a_provider_cannot_search_is_counted_and_said_once(
    url: str, store: GraphStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "graphweft.adapters")
    async with responding(url, store), adapting(url) as adapter, adapting(url) as other:
        for number, one in enumerate((adapter, other), 1):
            caplog.clear()
            made = {name: GraphContextProvider(one, source_id=name, **BROKEN[name][0]) for name in BROKEN}
            twin = GraphContextProvider(one, source_id="twin", **BROKEN["index"][0])
            again = GraphContextProvider(one, source_id="twin", **BROKEN["index"][0])
            assert await run(*made.values(), twin, again) == [], number
            said = warnings(caplog)
            assert len(said) == 4, "once for each provider and reason, and equal providers are one"
            for _, reason, detail, step in BROKEN.values():
                [first, *_] = [line for line in said if detail in line]
                assert f"have no answer: {reason} (" in first
                assert step in first
            assert "secret" not in str(said)
            stats = one.core.stats
            assert stats.searches == 15
            assert stats.missing_results == {"query_error": 9, "invalid_request": 6}
            assert (stats.errors, stats.asked, stats.without_context) == (0, 0, 0)


@pytest.mark.soak("neo4j")
async def test_a_search_that_finds_nothing_says_nothing(
    url: str, store: GraphStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "graphweft.adapters")
    async with responding(url, store), adapting(url) as adapter:
        for user in ("u1", "u2"):
            provider = GraphContextProvider(adapter, memory_enabled=True, user_id=user, read_own_writes=False)
            assert await run(provider) == []
        assert (adapter.core.stats.searches, adapter.core.stats.missing_results) == (6, {})
    assert warnings(caplog) == []


@pytest.mark.soak("neo4j-None")
@pytest.mark.parametrize("embedder", [None, HashingEmbedder(64)])
async def test_a_run_gets_memories_and_what_was_taken_from_them(
    url: str, store: GraphStore, embedder: HashingEmbedder | None
) -> None:
    """Memories that share no word with the question come where nothing can say what they mean: the latest."""

    def event(user: str, type: str, **data: Any) -> Event:
        return Event.create(
            type, app_id="shop", chat_id=user, data={"user_id": user, **data}, id=type, source=f"/{user}", time=START
        )

    events: list[Event] = []
    for user, verb in (("u1", "loves"), ("u2", "hates")):
        said = [{"role": "user", "text": f"{user} went to Oslo"}, {"role": "assistant", "text": f"Noted, {user}"}]
        facts = [{"subject": user, "predicate": verb, "object": "plum cake"}]
        stated = {"type": "MAKES", "source": user, "target": "tart", "fact": f"{user} {verb} to make a cake"}
        people = [{"type": "Thing", "name": name} for name in (user, "tart")]
        events += [
            event(user, "memory.add", messages=said),
            event(
                user, "memory.summarized", memory_ids=[memory_id(f"/{user}", "memory.add", 0)], model="x",
                summary=f"{user} spoke of Bergen", facts=facts, preferences=[{"text": f"{user} {verb} every cake"}],
            ),
            event(user, "episode.add", content={"entities": people, "relations": [stated]}, episode_type="json"),
        ]  # fmt: skip
    await write(store, "shop", events)
    async with responding(url, store, embedder), adapting(url) as adapter:
        for user, verb in (("u1", "loves"), ("u2", "hates")):
            provider = GraphContextProvider(adapter, memory_enabled=True, user_id=user, read_own_writes=False, top_k=9)
            [added] = await run(provider, times=1)
            lines = inside(added.split("\n\n", 1)[1]).splitlines()
            taken = [
                f"- fact, 2026-02-01: {user} {verb} plum cake",
                f"- fact, 2026-02-01: {user} {verb} to make a cake",
                f"- preference, 2026-02-01: {user} {verb} every cake",
            ]
            assert {*taken} <= {*lines}
            said = [f"- assistant, 2026-02-01: Noted, {user}", f"- user, 2026-02-01: {user} went to Oslo"]
            assert sorted({*lines} - {*taken}) == ([] if embedder else said)


async def test_searches_without_an_answer_are_told_apart(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "graphweft.adapters")
    for address, reason, step in (
        (url, "timeout", "is a responder running? `graphweft up` and `graphweft run injection` start one"),
        ("redis://127.0.0.1:1", "bus_unavailable", "start the bus, or correct GRAPHWEFT_BUS_URL"),
    ):
        caplog.clear()
        async with adapting(address, budget_ms=300) as adapter:
            provider = GraphContextProvider(adapter, index_name="chunks", memory_enabled=True, user_id="u1")
            assert await run(provider) == []
            assert adapter.core.stats.missing_results == {reason: 6}
            said = warnings(caplog)
            assert [line.partition(" (")[0] for line in said] == [
                f"searches of the index 'chunks' have no answer: {reason}",
                f"searches of memories have no answer: {reason}",
            ]
            assert step in said[0]
    closed = adapter.core.stats.missing_results
    assert await run(provider, times=1) == []
    assert closed == {"bus_unavailable": 8}, "a closed adapter is counted, too"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retrieval_query": " // nothing"}, "retrieval_query is empty"),
        ({"retrieval_query": "THIS IS NOT CYPHER"}, "retrieval_query does not return text and score"),
        ({"retrieval_query": "RETURN node.text AS text"}, "retrieval_query does not return score"),
        ({"retrieval_query": "SET node.text = '' RETURN node.text AS text, score"}, "remove SET"),
        ({"retrieval_query": "MATCH (node)\nDETACH DELETE node RETURN 1 AS text, 2 AS score"}, "remove DETACH"),
        ({"retrieval_query": "CALL db.labels() YIELD label RETURN label AS text, score"}, "remove CALL"),
        ({"index_name": None, "retrieval_query": "RETURN node.text AS text, score"}, "require an index"),
        ({"index_type": "graph"}, "index_type"),
        ({"index_type": "hybrid"}, "fulltext_index_name is required"),
    ],
)
def test_what_can_never_work_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    given = {"index_name": "chunks", "memory_enabled": True, "user_id": "u1", **options}
    with pytest.raises(ValueError, match=said):
        GraphContextProvider(SimpleNamespace(), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "retrieval_query",
    [
        "MATCH (node)-[:CREATE|SET]->(m:Merge) RETURN node.text AS text, score, m.a AS delete ORDER BY delete DESC",
        "// SET x.y = 1\nRETURN node.text AS text, score, 'DELETE node' AS a, \"MERGE (a)\" AS b, node.`SET a.b` AS c",
        "CALL (node) { MATCH (node)--(m) RETURN count(m) AS n } RETURN node.text AS text, score, n;",
        "with node, score, {set: 1, create: 2} as set return node.text as text, score, set.create as created",
    ],
)
def test_a_retrieval_query_that_reads_is_taken(retrieval_query: str) -> None:
    GraphContextProvider(SimpleNamespace(), index_name="chunks", retrieval_query=retrieval_query)  # type: ignore[arg-type]
