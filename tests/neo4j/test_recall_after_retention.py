"""What was promised stays found: after consolidation and retention, by every way of asking, within the scope only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.neo4j.test_consolidation import a_job, put, replayed, worker_of
from tests.redis.test_memory_worker import rows, working
from tests.services.buses import applied
from tests.services.layouts import spread
from tests.services.neo4j import Neo4jServer
from tests.services.planted_statements import among_small_talk, remembered
from tests.services.probes import ADA, BEN, START, Planted, conversation, within_reach
from tests.services.rules import load_rules, rule_set

from graphweft import Client, MemoryClient
from graphweft.transport import Transport
from graphweft_contracts import Event, MemoryScope, channels
from graphweft_contracts.memory import memory_id
from graphweft_contracts.search import READ, SEARCHED, SearchQuery
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.features.memory.extractive_summariser import ExtractiveSummariser
from graphweft_workers.features.memory.retention import Retention
from graphweft_workers.gateway.fact_search import FactsQuestion, find_facts
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.mcp.access import McpScope
from graphweft_workers.mcp.tools import Tools
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.search import Searcher

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

APP = "shop"
AFTER, KEEP, NEWEST = 30, 6, 15


@pytest.fixture
async def job_bus(url: str) -> AsyncIterator[Bus]:
    made = redis_bus(url, new=spread(2), group=channels.CONSOLIDATION_GROUP)
    yield made
    await made.aclose()


@pytest.fixture(params=["falkordb", "neo4j"])
async def store(request: pytest.FixtureRequest, url: str) -> AsyncIterator[GraphStore]:
    if request.param == "falkordb":
        driver: GraphStore = FalkorDBStore(url, write_timeout_ms=5_000)
    else:
        server: Neo4jServer = request.getfixturevalue("neo4j_server")
        server.empty()
        driver = Neo4jStore(server.uri)
    yield driver
    await driver.aclose()


async def found(store: GraphStore, text: str, scope: dict[str, str], **more: Any) -> list[dict[str, Any]]:
    query = SearchQuery.model_validate({"text": text, "memory": scope} | more)
    table = (await Searcher(store).search(APP, query, timeout_s=120)).table
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


async def answered(
    store: GraphStore, planted: Sequence[Planted], user: str, *, in_chat: bool, others: Sequence[Planted], k: int = 5
) -> dict[str, bool]:
    """Return which questions are answered among ``k`` results, none of which is another user's."""
    texts: dict[str, list[str]] = {}
    for each in planted:
        scope = {"user_id": user} | ({"thread_id": each.chat} if in_chat else {})
        texts[each.question] = [row["text"] for row in await found(store, each.question, scope, top_k=k)]
        foreign = [other.said for other in others]
        assert not [text for text in texts[each.question] for said in foreign if said in text], each
    return within_reach(planted, texts)


@asynccontextmanager
async def kept(
    url: str, bus: Bus, job_bus: Bus, store: GraphStore, transport: Transport,
    talks: Sequence[Sequence[Event]], between: Callable[[], Any] | None = None,
    after: int = AFTER, keep: int = KEEP, newest: int = NEWEST,
) -> AsyncIterator[None]:  # fmt: skip
    """Remember conversations, condense them and let go of the messages; a mutation worker runs on inside."""
    retention = Retention(store, keep_count=newest, condensed=True)
    retention.note([APP])
    async with working(MutationWorker(bus, store, rule_set(), name="m", lease_s=1)):
        await put(transport, [event for talk in talks for event in talk])
        await applied(bus)
        if between is not None:
            await between()
        job = a_job(url, store, ExtractiveSummariser(), after=after, keep=keep)
        async with working(worker_of(job, job_bus, transport)):
            await applied(bus, job_bus)
        await job.aclose()
        if between is not None:
            await between()
        await put(transport, [event async for some in retention.due(START) for event in some])
        await applied(bus)
        yield


@pytest.mark.soak("neo4j")
async def test_every_question_is_answered_as_well_as_before(
    url: str, bus: Bus, job_bus: Bus, store: GraphStore, transport: Transport
) -> None:
    """Two users who say the contrary of everything, in two chats each; none of the messages that said it is left."""
    asked: list[dict[tuple[str, bool], dict[str, bool]]] = []

    async def ask() -> None:
        asked.append(
            {
                (user, in_chat): await answered(store, planted, user, in_chat=in_chat, others=others)
                for user, planted, others in (("ada", ADA, BEN), ("ben", BEN, ADA))
                for in_chat in (False, True)
            }
        )

    talks = [conversation(APP, "ada", ADA), conversation(APP, "ben", BEN)]
    async with kept(url, bus, job_bus, store, transport, talks, ask):
        await ask()
        said = [each.said for each in (*ADA, *BEN)]
        left = "MATCH (m:Memory) WHERE m.text IN [" + ", ".join(f'"{text}"' for text in said) + "] RETURN m.text"
        assert await rows(store, left) == []
        # 24 of the 45 messages of each chat are condensed; the others are in no summary yet, and stay.
        assert await rows(store, "MATCH (m:Memory) RETURN m.thread_id, count(m) ORDER BY m.thread_id") == [
            (chat, 21) for chat in ("a1", "a2", "b1", "b2")
        ]
        for user, planted in (("ada", ADA), ("ben", BEN)):
            for each in planted:
                for chat in {other.chat for other in (*ADA, *BEN)} - {each.chat}:
                    elsewhere = await found(store, each.question, {"user_id": user, "thread_id": chat}, top_k=20)
                    assert not [row for row in elsewhere if each.said in row["text"]], (each, chat)
    before, condensed, after = asked
    for who, questions in before.items():
        assert all(questions.values()), (who, questions)
        assert condensed[who] == questions, "what is kept twice crowds nothing out"
        assert after[who] == questions
    assert await replayed(url) == await read_digest(store, APP)


@pytest.mark.soak("neo4j")
async def test_an_erased_user_has_nothing_left_to_find(
    url: str, bus: Bus, job_bus: Bus, store: GraphStore, transport: Transport
) -> None:
    talks = [conversation(APP, "ada", ADA), conversation(APP, "ben", BEN)]
    async with kept(url, bus, job_bus, store, transport, talks):
        for text in ("train to Bergen, allergic to peanuts, the window", ""):
            kinds = {row["kind"] for row in await found(store, text, {"user_id": "ada"}, top_k=50)}
            assert kinds == {"memory", "fact", "preference", "statement", "summary"}
        at = START + timedelta(days=1)
        erase = Event.create(
            "memory.erase", app_id=APP, chat_id="ada", data={"user_id": "ada"}, id="x", source="/probe", time=at
        )
        await put(transport, [erase])
        await applied(bus)
        assert await found(store, "", {"user_id": "ada"}, of="profile", top_k=50) == []
        for of in (each for each in SEARCHED if each not in READ):
            for text in ("peanuts allergic window coriander dentist", ""):
                for scope in ({"user_id": "ada"}, {"thread_id": "a1"}):
                    assert await found(store, text, scope, of=of, top_k=50) == [], (of, text, scope)
        assert await rows(store, "MATCH (n) WHERE n.user_id = 'ada' RETURN labels(n)") == [(["UserProfile"],)]
        still = await answered(store, BEN, "ben", in_chat=False, others=ADA)
        assert all(still.values()), still


def summarised(
    number: int, scope: dict[str, str], *, facts: Sequence[dict[str, Any]] = (), preferences: Sequence[str] = ()
) -> list[Event]:
    """Return a message, and what a summariser makes of it."""
    chat, time = "c", START + timedelta(minutes=number)
    said = Event.create(
        "memory.add", app_id=APP, chat_id=chat, id=f"m{number}", source="/probe", time=time,
        data={"messages": [{"role": "user", "text": f"message {number}"}], **scope},
    )  # fmt: skip
    made = Event.create(
        "memory.summarized", app_id=APP, chat_id=chat, id=f"s{number}", source="/probe", time=time,
        data={
            "summary": f"summary {number}", "memory_ids": [memory_id("/probe", f"m{number}", 0)], "model": "x",
            "facts": list(facts), "preferences": [{"text": text} for text in preferences], **scope,
        },
    )  # fmt: skip
    return [said, made]


def lives_in(where: str) -> dict[str, Any]:
    return {"subject": "user", "predicate": "lives in", "object": where}


@pytest.mark.soak("neo4j")
async def test_only_what_holds_now_is_a_fact_also_in_its_thread(
    bus: Bus, store: GraphStore, transport: Transport
) -> None:
    """The same said again elsewhere ends nothing for the thread in which it was said first; something else does."""
    allergic = {"subject": "user", "predicate": "is allergic to peanuts", "object": "yes"}
    first, second = {"user_id": "u", "thread_id": "t1"}, {"user_id": "u", "thread_id": "t2"}
    events = [
        *summarised(1, first, facts=[lives_in("Oslo"), allergic]),
        *summarised(2, second, facts=[lives_in("Rome"), allergic]),
        *summarised(3, first, facts=[allergic]),
        *summarised(4, {"user_id": "u"}, facts=[lives_in("Paris") | {"valid_from": "2999-01-01T00:00:00Z"}]),
    ]
    async with working(MutationWorker(bus, store, rule_set(), name="m", lease_s=1)):
        await put(transport, events)
        await applied(bus)
    for of, scope, objects in (
        ("all", {"user_id": "u"}, ["Rome", "yes"]),
        ("all", first, ["yes"]),
        ("all", second, ["Rome", "yes"]),
        ("all", {"user_id": "v"}, []),
        # Asked for by name they are known beyond the thread, and stand there as they stand for the user.
        ("facts", first, ["Rome", "yes"]),
        ("facts", {"thread_id": "t1"}, ["yes"]),
    ):
        for text in ("lives Oslo Rome Paris peanuts", ""):
            facts = [row for row in await found(store, text, scope, of=of, top_k=9) if row["kind"] == "fact"]
            assert sorted(row["object"] for row in facts) == objects, (of, scope, text)


@pytest.mark.soak("neo4j")
async def test_without_a_user_threads_say_nothing_about_each_other(
    bus: Bus, store: GraphStore, transport: Transport
) -> None:
    """Customers of one application who are known by their threads only."""
    scopes = [{"application_id": "desk", "thread_id": f"customer-{number}"} for number in range(2)]
    events = [
        *summarised(1, scopes[0], facts=[lives_in("Oslo")]),
        *summarised(2, scopes[1], facts=[lives_in("Rome")]),
    ]
    async with working(MutationWorker(bus, store, rule_set(), name="m", lease_s=1)):
        await put(transport, events)
        await applied(bus)
    for of in ("all", "facts"):
        for scope, where in zip(scopes, ("Oslo", "Rome"), strict=True):
            facts = await found(store, "Where does the user live?", scope, of=of)
            assert [row["object"] for row in facts if row["kind"] == "fact"] == [where], (of, scope)


@pytest.mark.soak("neo4j")
async def test_each_kind_can_be_asked_for_alone_and_the_latest_come_first(
    bus: Bus, store: GraphStore, transport: Transport
) -> None:
    scope = {"user_id": "u", "thread_id": "t"}
    events = [event for number in range(1, 4) for event in summarised(
        number, scope, facts=[{"subject": f"s{number}", "predicate": "is", "object": "red"}],
        preferences=[f"likes tea {number}"],
    )]  # fmt: skip
    async with working(MutationWorker(bus, store, rule_set(), name="m", lease_s=1)):
        await put(transport, events)
        await applied(bus)
    last = {
        "memories": "message 3", "facts": "s3 is red", "preferences": "likes tea 3", "summaries": "summary 3",
    }  # fmt: skip
    for of, text in last.items():
        assert [row["text"] for row in await found(store, "", scope, of=of, top_k=1)] == [text]
        assert {row["kind"] for row in await found(store, "3 tea red", scope, of=of)} <= {
            {"memories": "memory", "facts": "fact", "preferences": "preference", "summaries": "summary"}[of]
        }
    newest = await found(store, "", scope, top_k=4)
    assert sorted(row["text"] for row in newest) == sorted(last.values())
    assert [row["score"] for row in newest] == [None] * 4
    query = "RETURN node.text AS text, score, labels(node)[0] AS label ORDER BY score DESC"
    enriched = await found(store, "3", scope, retrieval_query=query)
    assert {row["label"] for row in enriched} >= {"Memory", "ConversationSummary", "Preference"}
    assert [row["score"] for row in enriched] == sorted((row["score"] for row in enriched), reverse=True)


RULES = """\
version: "1.0"
injection_rules:
  - name: known
    agents: ["*"]
    queries:
      - id: known
        search: {memory: {user_id: $workflow.user_id}, query: $context.question}
        inject_as: known
"""


@pytest.mark.long
async def test_every_way_of_asking_finds_what_is_left(
    url: str, bus: Bus, job_bus: Bus, graph: FalkorDBStore, transport: Transport,
    tmp_path: Path,
) -> None:  # fmt: skip
    folder = tmp_path / "Travel"
    folder.mkdir()
    (folder / "graph_injection.yaml").write_text(RULES)
    question = "Am I allergic to peanuts?"
    talks = [conversation(APP, "ada", ADA), conversation(APP, "ben", BEN)]
    async with kept(url, bus, job_bus, graph, transport, talks):
        pipeline = ContextPipeline(load_rules(tmp_path), graph)
        queue = RedisRequestQueue(url, consumer="r")
        responder = InjectionResponder(queue, pipeline.answer)
        task = asyncio.create_task(responder.run())
        try:
            async with Client(url, app_id=APP) as client:
                recalled = await MemoryClient(client, user_id="ada").recall(question, budget_ms=120_000)
                turn = await client.context(
                    workflow="Travel", agent="any", chat_id="c", user_id="ada", context={"question": question},
                    budget_ms=120_000,
                )  # fmt: skip
                tools = Tools(client, McpScope(app_id=APP, scope=MemoryScope(user_id="ada"), budget_ms=120_000))
                answer = await tools.call("memory_search", {"query": question})
                asked = FactsQuestion(group_ids=["ada"], query=question, max_facts=3)
                facts = await find_facts(client, APP, asked, budget_ms=120_000)
        finally:
            responder.stop()
            await task
            await queue.aclose()
            await pipeline.aclose()
    for text in (recalled.text, turn.text, answer.text, facts.facts[0].fact):
        assert "The user is allergic to peanuts" in text
        assert "not allergic to peanuts" not in text
    assert "- The user is allergic to peanuts (since " in recalled.text
    assert facts.facts[0].name == "is allergic to peanuts"
    assert facts.facts[0].valid_at is not None


@pytest.mark.long
@pytest.mark.soak("neo4j")
async def test_a_hundred_statements_of_five_hundred_turns_are_found_as_before(
    url: str, bus: Bus, job_bus: Bus, store: GraphStore, transport: Transport
) -> None:
    """All but the newest turns are condensed and let go of: statements are found among 1, 5 and 10 rows as before."""
    planted = remembered()
    talk = [
        Event.create(
            "memory.add", app_id=APP, chat_id="c", id=f"turn {number}", source="/probe",
            time=START + timedelta(minutes=number),
            data={"user_id": "ada", "thread_id": "c", "messages": [{"role": role, "text": text}]},
        )
        for number, (role, text) in enumerate(among_small_talk(planted))
    ]  # fmt: skip
    seen: list[list[int]] = []

    async def ask() -> None:
        rows_of = [await found(store, each.question, {"user_id": "ada"}, top_k=10) for each in planted]
        texts = [(each.answer, [row["text"] for row in of_one]) for each, of_one in zip(planted, rows_of, strict=True)]
        seen.append([sum(any(answer in text for text in of_one[:k]) for answer, of_one in texts) for k in (1, 5, 10)])

    async with kept(url, bus, job_bus, store, transport, [talk], ask, after=60, keep=20, newest=60):
        await ask()
        left = await rows(store, "MATCH (m:Memory) RETURN count(m)")
    first, last = seen[0], seen[-1]
    assert len(planted) == 100
    assert left[0][0] < 120
    print("FIGURES", first, last)
    assert all(after >= before for before, after in zip(first, last, strict=True)), (first, last)
