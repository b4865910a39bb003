"""What the events of memory leave in the graph, on both kinds of server, through the real bus and worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.services.buses import applied
from tests.services.layouts import spread, spreading
from tests.services.neo4j import Neo4jServer
from tests.services.rules import rule_set
from tests.services.workers import SOON, running

from graphweft_contracts import DeadLetter, Event, Layout, channels, wire
from graphweft_contracts.memory import derived_id, memory_id
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.log.read import letter_for
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import retry_entry
from graphweft_workers.ports.graph_store import GraphStore

pytestmark = pytest.mark.integration
pytest_plugins = ["tests.services.fixtures"]

SPREAD = 11
"""Partitions: each chat of ``life_of_a_user`` has one of its own."""
WRONG = datetime(9998, 1, 1, tzinfo=UTC)
"""What a clock may say."""
T0 = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
APP = "shop"


@pytest.fixture(params=["falkordb", "neo4j"])
async def store(request: pytest.FixtureRequest, url: str) -> AsyncIterator[GraphStore]:
    if request.param == "falkordb":
        driver: GraphStore = FalkorDBStore(url, write_timeout_ms=5_000)
    else:
        server: Neo4jServer = request.getfixturevalue("neo4j_server")
        server.empty()
        driver = Neo4jStore(server.uri, write_timeout_ms=5_000)
    yield driver
    await driver.aclose()


def event(type: str, number: int, data: dict[str, Any], *, chat: str = "c1", at: int | None = None) -> Event:
    return Event.create(
        type,
        app_id=APP,
        chat_id=chat,
        data=data,
        id=f"e{number}",
        source="/test",
        time=T0 + timedelta(seconds=number if at is None else at),
    )


def add(number: int, *texts: str, chat: str = "c1", at: int | None = None, **scope: str) -> Event:
    said = [{"role": "user", "text": text} for text in texts]
    return event("memory.add", number, {"messages": said, **(scope or {"user_id": "u1"})}, chat=chat, at=at)


NO_RULES = rule_set()
"""The packs alone."""


async def worked(bus: Bus, store: Any, rules: RuleSet = NO_RULES) -> list[DeadLetter]:
    """Let a worker come to the end of the log; return the dead letters that there are then."""
    worker = MutationWorker(bus, store, rules, name="w", timing=SOON)
    task = asyncio.create_task(worker.run())
    try:
        await applied(bus)
    finally:
        worker.stop()
        await task
    return list(await bus.dead_letters.read(limit=100))


async def write(url: str, store: GraphStore, events: Sequence[Event], rules: RuleSet = NO_RULES) -> None:
    async with spreading(url) as client:
        assert all(await client.emit_all(events, wait_s=120))
    bus = redis_bus(url, new=spread(2))
    try:
        assert await worked(bus, store, rules) == []
    finally:
        await bus.aclose()


async def check_small_batches(url: str, store: GraphStore, rules: RuleSet) -> None:
    """Fail unless a worker that reads the log again, in small batches, makes the same graph."""
    again = FalkorDBStore(url, graph_template="again_{app_id}")
    bus = redis_bus(url, new=spread(2), group="graphweft-again")
    try:
        async with running(MutationWorker(bus, again, rules, name="again", batch_events=3, timing=SOON)):
            await applied(bus)
        assert (await read_digest(again, APP)).sha256 == (await read_digest(store, APP)).sha256
    finally:
        await bus.aclose()
        await again.aclose()


async def logged(
    url: str, store: GraphStore, events: Sequence[Event], clock: datetime | None = WRONG, rules: RuleSet = NO_RULES
) -> None:
    """Apply events that the log takes at their own times: whoever adds an entry may choose its id on Redis.

    ``clock`` is what the events themselves say then.
    """
    bus, client = redis_bus(url, new=spread(SPREAD)), Redis.from_url(url)
    try:
        layout = await bus.partitions.layout()
        for each in events:
            stream = channels.events_stream(layout.partition_of(each.key))
            fields = {**wire.encode(each.model_copy(update={"time": clock or each.time}))}
            await client.xadd(stream, fields, id=f"{int(each.time.timestamp() * 1000)}-*")
        assert await worked(bus, store, rules) == []
    finally:
        await bus.aclose()
        await client.aclose()


async def rows(store: GraphStore, cypher: str, app_id: str = APP) -> list[tuple[Any, ...]]:
    return list((await store.read(app_id, cypher, {}, timeout_s=120)).rows)


@pytest.mark.soak("neo4j")
async def test_an_event_of_another_chat_with_the_same_id_takes_no_memory_over(url: str, store: GraphStore) -> None:
    layout = spread(2)
    far = next(name for name in (f"x{n}" for n in range(50)) if layout.partition_of(f"{APP}/{name}")
               != layout.partition_of(f"{APP}/c1"))  # fmt: skip
    person = {"type": "Person", "name": "Ann"}

    def episode(user: str, content: str, chat: str) -> Event:
        told = {"entities": [person]}
        data = {"name": content, "content": told, "episode_type": "json", "user_id": user}
        return event("episode.add", 2, data, chat=chat)

    hers = [add(1, "hers", user_id="alice"), episode("alice", "hers", "c1")]
    await write(url, store, hers)
    await write(url, store, [add(1, "his", chat=far, user_id="mallory"), episode("mallory", "his", far)])
    memories = "MATCH (m:Memory) RETURN m.text, m.user_id, m.chat_id, m.id ORDER BY m.text"
    id = memory_id("/test", "e1", 0)
    assert await rows(store, memories) == [("hers", "alice", "c1", id), ("his", "mallory", far, id)]
    episodes = "MATCH (p:Episode)-[:MENTIONS]->(e:Entity) RETURN p.name, p.user_id, e.user_id ORDER BY p.name"
    assert await rows(store, episodes) == [("hers", "alice", "alice"), ("his", "mallory", "mallory")]
    # Nor does it reach the memory by its id.
    await write(url, store, [event("memory.forget", 3, {"memory_ids": [id]}, chat=far)])
    assert await rows(store, memories) == [("hers", "alice", "c1", id)]
    await write(url, store, [event("memory.forget", 4, {"memory_ids": [id]})])
    assert await rows(store, memories) == []


async def test_messages_become_memories_within_their_scope(url: str, store: GraphStore) -> None:
    messages = [
        {"role": "user", "text": "I like dogs", "message_id": "m1", "author_name": "Ann"},
        {"role": "assistant", "text": "So do I", "time": "2026-01-01T00:00:00+01:00"},
    ]
    scope = {"application_id": "a", "agent_id": "g", "user_id": "u1", "thread_id": "t"}
    await write(url, store, [event("memory.add", 1, {"messages": messages, **scope})])
    found = await rows(
        store,
        "MATCH (m:Memory) RETURN m.id, m.text, m.role, m.timestamp, m.message_id, m.author_name, m.application_id, "
        "m.agent_id, m.user_id, m.thread_id, m.event_id, m.terms, m.length ORDER BY m.text",
    )
    assert found == [
        (
            memory_id("/test", "e1", 0), "I like dogs", "user", "2026-02-01T10:00:01.000000Z", "m1", "Ann",
            "a", "g", "u1", "t", "e1", "ann i like dog", 4,
        ),
        (
            memory_id("/test", "e1", 1), "So do I", "assistant", "2025-12-31T23:00:00.000000Z", None, None,
            "a", "g", "u1", "t", "e1", "so do i", 3,
        ),
    ]  # fmt: skip


async def test_a_memory_gets_the_vector_that_a_model_gave(url: str, store: GraphStore) -> None:
    embedding = {"memory_id": memory_id("/test", "e1", 0), "model": "m", "embedding": [0.1, -0.5, 1]}
    await write(url, store, [add(1, "one", "two"), event("memory.embedded", 2, embedding)])
    found = await rows(store, "MATCH (m:Memory) RETURN m.text, m.embedding, m.embedding_model ORDER BY m.text")
    assert found == [("one", [pytest.approx(0.1), -0.5, 1.0], "m"), ("two", None, None)]


def summarized(number: int, *memories: tuple[str, int], chat: str = "c1", **more: Any) -> Event:
    ids = [memory_id("/test", source, place) for source, place in memories]
    data = {"summary": "They talked.", "memory_ids": ids, "model": "m", "user_id": "u1", "thread_id": "t"} | more
    return event("memory.summarized", number, data, chat=chat)


async def test_a_summary_stands_for_its_memories_once(url: str, store: GraphStore) -> None:
    preference = {"text": "prefers tea", "memory_ids": [memory_id("/test", "e1", 0)]}
    fact = {"subject": "Ann", "predicate": "lives in", "object": "Oslo", "memory_ids": [memory_id("/test", "e1", 1)]}
    await write(
        url,
        store,
        [
            add(1, "I prefer tea", "I live in Oslo"),
            summarized(2, ("e1", 0), ("e1", 1), facts=[fact], preferences=[preference]),
            summarized(3, ("e1", 0), ("e1", 1), summary="again"),  # they have one already
            summarized(4, ("e9", 0), summary="of nothing"),
        ],
    )
    assert await rows(
        store,
        "MATCH (s:ConversationSummary)-[:SUMMARIZES]->(m:Memory)-[:PART_OF]->(s) RETURN s.text, m.text ORDER BY m.text",
    ) == [("They talked.", "I live in Oslo"), ("They talked.", "I prefer tea")]
    assert await rows(store, "MATCH (s:ConversationSummary) RETURN count(s)") == [(1,)]
    assert await rows(
        store,
        "MATCH (u:UserProfile)-[:HAS_PREFERENCE]->(p:Preference)-[:EXTRACTED_FROM]->(m:Memory) "
        "RETURN u.user_id, p.text, m.text",
    ) == [("u1", "prefers tea", "I prefer tea")]
    assert await rows(
        store,
        "MATCH (s:ConversationSummary)<-[:EXTRACTED_FROM]-(f:Fact)-[:EXTRACTED_FROM]->(m:Memory) "
        "RETURN f.subject, f.predicate, f.object, f.text, f.valid_from, f.valid_to, m.text",
    ) == [("Ann", "lives in", "Oslo", "Ann lives in Oslo", "2026-02-01T10:00:02.000000Z", None, "I live in Oslo")]


async def test_a_later_fact_ends_the_earlier_ones_validity_whoever_comes_first(url: str, store: GraphStore) -> None:
    def lives(where: str, since: str) -> dict[str, str]:
        return {"subject": "Ann", "predicate": "lives in", "object": where, "valid_from": f"{since}-01-01T00:00:00Z"}

    await write(
        url,
        store,
        [
            add(1, "one", "two"),
            summarized(2, ("e1", 0), facts=[lives("Rome", "2024"), lives("Oslo", "2020")]),
            summarized(3, ("e1", 1), facts=[lives("Bonn", "2022")]),
        ],
    )
    found = await rows(store, "MATCH (f:Fact) RETURN f.object, left(f.valid_to, 4) ORDER BY f.valid_from")
    assert found == [("Oslo", "2022"), ("Bonn", "2024"), ("Rome", None)]


async def test_what_is_forgotten_is_forgotten_in_its_chat_only(url: str, store: GraphStore) -> None:
    ids = [memory_id("/test", f"e{number}", 0) for number in (1, 2)]
    events = [add(1, "one"), add(2, "two", chat="c2"), event("memory.forget", 3, {"memory_ids": ids})]
    await write(url, store, events)
    assert await rows(store, "MATCH (m:Memory) RETURN m.text") == [("two",)]


def life_of_a_user() -> list[list[Event]]:
    """Events of several chats; in each they keep their order."""
    tea = {"text": "prefers tea"}
    fact = {"subject": "Ann", "predicate": "lives in", "object": "Oslo"}
    return [
        [
            add(1, "I prefer tea", chat="c1"),
            summarized(3, ("e1", 0), chat="c1", preferences=[tea], facts=[fact]),
            add(21, "later, in the first chat", chat="c1"),
        ],
        [
            add(2, "I still prefer tea", chat="c2"),
            summarized(22, ("e2", 0), chat="c2", summary="Of what is erased.", preferences=[tea]),
            add(23, "I moved", chat="c2"),
            summarized(24, ("e23", 0), chat="c2", summary="Of later.", facts=[fact | {"object": "Rome"}]),
        ],
        [add(4, "of somebody else", chat="c3", user_id="u2")],
        [event("memory.erase", 20, {"user_id": "u1"}, chat="c9")],
    ]


@pytest.mark.long("order0", "order1")
@pytest.mark.soak("neo4j")
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 0, 1, 2), (0, 3, 2, 1)])
async def test_what_is_erased_stays_out_in_whatever_order_chats_come(
    url: str, store: GraphStore, order: tuple[int, ...]
) -> None:
    chats = life_of_a_user()
    for chat in order:  # a worker for each: so no other order is possible
        await logged(url, store, chats[chat])
    assert await rows(store, "MATCH (m:Memory) RETURN m.text ORDER BY m.text") == [
        ("I moved",), ("later, in the first chat",), ("of somebody else",),
    ]  # fmt: skip
    assert await rows(store, "MATCH (s:ConversationSummary) RETURN s.text") == [("Of later.",)]
    assert await rows(store, "MATCH (f:Fact) RETURN f.object, f.valid_to") == [("Rome", None)]
    assert await rows(store, "MATCH (p:Preference) RETURN p.text") == []


@pytest.mark.soak("neo4j")
@pytest.mark.parametrize("clock", ["0001-01-01T00:00:00Z", "9998-01-01T00:00:00Z", None])
async def test_an_erasure_reaches_what_the_log_has_before_it(url: str, store: GraphStore, clock: str | None) -> None:
    """Whatever the clocks of those say who send events."""

    def clocked(each: Event) -> dict[bytes, bytes]:
        body = json.loads(each.model_dump_json(exclude_none=True))
        if clock is None or each.id in {"e3", "e6"}:
            del body["time"]
        else:
            body["time"] = clock
        return {wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: json.dumps(body).encode()}

    events = [
        add(1, "before"), add(2, "of another user", user_id="u2"), add(3, "before, without a time"),
        event("memory.erase", 4, {"user_id": "u1"}, chat="u1"), add(5, "after"), add(6, "after, without a time"),
    ]  # fmt: skip
    apps = (APP,) if isinstance(store, Neo4jStore) else (APP, "other")  # Neo4j Community has one graph
    bus, client = redis_bus(url, new=Layout(partitions=2)), Redis.from_url(url)
    try:
        layout = await bus.partitions.layout()
        for app in apps:
            async with client.pipeline() as pipe:  # one millisecond of the log may hold all of them
                for each in events:
                    own = each.model_copy(update={"appid": app})
                    pipe.xadd(channels.events_stream(layout.partition_of(own.key)), clocked(own))
                await pipe.execute()
        assert await worked(bus, store) == []
    finally:
        await bus.aclose()
        await client.aclose()
    for app in apps:
        assert await rows(store, "MATCH (m:Memory) RETURN m.text ORDER BY m.text", app) == [
            ("after",), ("after, without a time",), ("of another user",),
        ]  # fmt: skip


@pytest.mark.soak("neo4j")
async def test_a_retry_is_as_old_as_its_event(url: str, store: GraphStore) -> None:
    """A memory that failed before its user was erased stays erased; one that failed later is remembered."""
    bus = redis_bus(url, new=spread(1))
    try:
        entries: list[dict[bytes, bytes]] = []
        for each in (add(1, "before"), event("memory.erase", 2, {"user_id": "u1"}), add(3, "after")):
            entries.append(wire.encode(each))
        client = Redis.from_url(url)
        await bus.partitions.layout()
        await client.xadd(channels.events_stream(0), entries[1])
        assert await worked(bus, store) == []
        [erased] = await bus.log.after(0, "", limit=9)
        for fields, shift in ((entries[0], -1), (entries[2], 1)):
            taken = replace(
                erased, fields=fields, received=erased.received + timedelta(seconds=shift), offset=f"1-{shift + 2}"
            )
            letter = letter_for(
                0, taken, "query_error", "x", event=wire.decode(fields), rule="memory.add", mutation="add"
            )
            await bus.dead_letters.put([letter])
            again = [retry_entry(letter)]
            if shift == 1:  # it cannot have failed in the future
                again[0][wire.RECORDED] = b"9998-01-01T00:00:00+00:00"
            assert await bus.dead_letters.requeue(letter, again)
        assert await worked(bus, store) == []
        # Nor does an erasure that is retried reach what came after it, not even what was retried.
        for mutation in ("mark", "erase"):
            letter = letter_for(0, erased, "timeout", "x", event=erased.event(), rule="memory.erase", mutation=mutation)
            await bus.dead_letters.put([letter])
            assert await bus.dead_letters.requeue(letter, [retry_entry(letter)])
        assert await worked(bus, store) == []
        await client.aclose()
    finally:
        await bus.aclose()
    assert await rows(store, "MATCH (m:Memory) RETURN m.text") == [("after",)]


@pytest.mark.long
async def test_both_servers_end_with_the_same_graph(url: str, neo4j_server: Neo4jServer) -> None:
    digests: list[str] = []
    neo4j_server.empty()
    for store in (FalkorDBStore(url), Neo4jStore(neo4j_server.uri)):
        chats = life_of_a_user()
        vector = {"memory_id": memory_id("/test", "e23", 0), "model": "m", "embedding": [0.1, 0.7, -0.3]}
        chats[1].append(event("memory.embedded", 30, vector, chat="c2"))
        for chat in chats:
            await logged(url, store, chat)
        digests.append((await read_digest(store, APP)).sha256)
        await store.aclose()
        client = Redis.from_url(url)
        await client.flushall()  # the other server gets the same events from the beginning
        await client.aclose()
    assert digests[0] == digests[1]


def test_ids_follow_from_the_event_alone() -> None:
    assert memory_id("/a", "b", 0) == memory_id("/a", "b", 0)
    assert len({derived_id("a", "b\n1 c"), derived_id("a\n1 b", "c"), derived_id("a", "b", "c")}) == 3
    assert derived_id("a", None) != derived_id("a", "None")
    assert derived_id("a", None) == "86536cfb-882b-5fc0-bd23-b655e816ef5e"  # absent parts keep their ids
