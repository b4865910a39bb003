"""Conversations are condensed, forgotten and erased: by events, once, and a replay needs no model for it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.declared_fields import check_declared
from tests.redis.test_memory_worker import rows, working
from tests.services.buses import applied
from tests.services.layouts import spread
from tests.services.models import Failure, ModelServer
from tests.services.neo4j import Neo4jServer
from tests.services.rules import rule_set
from tests.services.waiting import looks, until

from graphweft import Event
from graphweft.transport import Outgoing, Transport
from graphweft_contracts import channels, wire
from graphweft_contracts.memory import MemoryScope, memory_id
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.job_worker import JobWorker
from graphweft_workers.engine.log.read import letter_for
from graphweft_workers.engine.plan.digest import Digest, read_digest
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.features.memory.consolidation import ConsolidationJob
from graphweft_workers.features.memory.extractive_summariser import ExtractiveSummariser
from graphweft_workers.features.memory.graph_progress import MutationsBehind
from graphweft_workers.features.memory.retention import Retention
from graphweft_workers.features.memory.summariser import MemoryText, Summary
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count, retry_entry
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.job import AppWait, JobEvent

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]  # Neo4j starts, and compiles long statements

T0 = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
APP = "shop"
PARTITIONS = 2
NO_RULES = rule_set()


def add(
    number: int, *texts: str, chat: str = "c1", role: str = "user", at: datetime | None = None, **scope: str
) -> Event:
    return Event.create(
        "memory.add",
        app_id=APP,
        chat_id=chat,
        data={"messages": [{"role": role, "text": text} for text in texts], **(scope or {"user_id": "u1"})},
        id=f"e{number}",
        source="/test",
        time=at or T0 + timedelta(minutes=number),
    )


def other(type: str, id: str, data: dict[str, Any], *, chat: str, at: datetime) -> Event:
    return Event.create(type, app_id=APP, chat_id=chat, data=data, id=id, source="/test", time=at)


def conversation() -> list[Event]:
    """60 messages in 3 threads of one user, who moves; each thread is a chat of its own."""
    said = {
        3: "My name is Ann and I live in Oslo.",
        7: "I prefer tea to coffee.",
        30: "I just moved to Rome!",
        32: "I am allergic to peanuts",
        33: "I'm allergic to cats",
    }
    return [
        add(
            number, said.get(number, f"Message {number} is about the train to Bergen."), chat=f"c{number % 3}",
            role="assistant" if number not in said and number % 2 else "user", user_id="u1", thread_id=f"t{number % 3}",
        )
        for number in range(60)
    ]  # fmt: skip


async def put(transport: Transport, events: Sequence[Event]) -> None:
    await transport.append([Outgoing(key=event.key, fields=wire.encode(event)) for event in events])


async def put_at_their_times(url: str, bus: Bus, events: Sequence[Event]) -> None:
    """Let the log take events at their own times: whoever adds an entry may choose its id on Redis."""
    layout = await bus.partitions.layout()
    async with Redis.from_url(url) as client:
        for each in events:
            stream = channels.events_stream(layout.partition_of(each.key))
            await client.xadd(stream, {**wire.encode(each)}, id=f"{int(each.time.timestamp() * 1000)}-*")


async def put_again(transport: Transport, events: Sequence[Event], recorded: datetime) -> None:
    """Retry events that the log had taken at ``recorded`` and that had failed."""
    entries: list[Outgoing] = []
    for number, each in enumerate(events):
        failed = Entry(offset=f"1-{number}", fields=wire.encode(each), received=recorded)
        letter = letter_for(0, failed, "query_error", "x", event=each, rule="memory.add", mutation="add")
        entries.append(Outgoing(key=each.key, fields=retry_entry(letter)))
    await transport.append(entries)


@pytest.fixture
async def job_bus(url: str) -> AsyncIterator[Bus]:
    made = redis_bus(url, new=spread(PARTITIONS), group=channels.CONSOLIDATION_GROUP)
    yield made
    await made.aclose()


@pytest.fixture(params=["falkordb", "neo4j"])
async def store(request: pytest.FixtureRequest, url: str) -> AsyncIterator[GraphStore]:
    if request.param == "falkordb":
        driver: GraphStore = FalkorDBStore(url)
    else:
        server: Neo4jServer = request.getfixturevalue("neo4j_server")
        server.empty()
        driver = Neo4jStore(server.uri)
    yield driver
    await driver.aclose()


class Inventive(ExtractiveSummariser):
    """Says something else each time; waits while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.open = asyncio.Event()
        self.open.set()

    async def summarise(self, messages: Sequence[MemoryText], *, scope: MemoryScope) -> Summary:
        self.asked += 1
        text = f"summary number {self.asked}, of {len(messages)}"
        await self.open.wait()
        return Summary(text=text, model="inventive")


async def events(bus: Bus, type: str) -> list[Event]:
    entries = [entry for number in range(PARTITIONS) for entry in await bus.log.after(number, "", limit=10_000)]
    found = [wire.decode(entry.fields, received=entry.received) for entry in entries]
    check_declared(found)
    return [event for event in found if event.type == type]


async def replayed(url: str, graph: GraphStore | None = None) -> Digest:
    """Return the digest of a graph that a fresh worker makes of the log."""
    bus = redis_bus(url, new=spread(PARTITIONS), group="graphweft-again")
    again = graph or FalkorDBStore(url, graph_template="again_{app_id}")
    try:
        async with working(MutationWorker(bus, again, NO_RULES, name="again", batch_events=7)):
            await applied(bus)
        return await read_digest(again, APP)
    finally:
        await bus.aclose()
        if graph is None:
            await again.aclose()


def a_job(url: str, graph: GraphStore, summariser: Any = None, **options: Any) -> ConsolidationJob:
    bus = redis_bus(url, new=spread(PARTITIONS))
    return ConsolidationJob(graph, bus, summariser, **{"after": 12, "keep": 4} | options)


def worker_of(job: ConsolidationJob, bus: Bus, transport: Transport, name: str = "j") -> JobWorker:
    return JobWorker(bus, transport, job, name=name, lease_s=1)


def mutations(bus: Bus, graph: GraphStore) -> MutationWorker:
    return MutationWorker(bus, graph, NO_RULES, name="m", lease_s=1)


@pytest.mark.long("neo4j")
async def test_conversations_become_summaries_facts_and_preferences(
    url: str, bus: Bus, job_bus: Bus, store: GraphStore, transport: Transport
) -> None:
    job = a_job(url, store, ExtractiveSummariser())
    async with working(mutations(bus, store), worker_of(job, job_bus, transport)):
        await put(transport, conversation())
        await applied(bus, job_bus)
    await job.aclose()
    # 20 messages a thread, 8 at a time while there are 12 without: 8 + 8, and 4 are left.
    assert await rows(
        store,
        "MATCH (s:ConversationSummary)-[:SUMMARIZES]->(m:Memory)-[:PART_OF]->(s) "
        "RETURN s.thread_id, s.from, count(m) ORDER BY s.thread_id, s.from",
    ) == [
        (f"t{thread}", f"2026-02-01T10:{minute + thread:02}:00.000000Z", 8) for thread in range(3) for minute in (0, 24)
    ]
    kept = await rows(store, "MATCH (m:Memory) WHERE NOT (m)-[:PART_OF]->() RETURN m.timestamp ORDER BY m.timestamp")
    assert [row[0][14:16] for row in kept] == [str(minute) for minute in range(48, 60)]
    facts = await rows(store, "MATCH (f:Fact) RETURN f.predicate, f.object, f.valid_from, f.valid_to")
    assert sorted(facts, key=lambda fact: (fact[2], fact[0])) == [
        ("is called", "Ann", "2026-02-01T10:03:00.000000Z", None),
        ("lives in", "Oslo", "2026-02-01T10:03:00.000000Z", "2026-02-01T10:30:00.000000Z"),
        ("lives in", "Rome", "2026-02-01T10:30:00.000000Z", None),
        ("is allergic to peanuts", "yes", "2026-02-01T10:32:00.000000Z", None),
        ("is allergic to cats", "yes", "2026-02-01T10:33:00.000000Z", None),
    ]
    assert await rows(
        store,
        "MATCH (u:UserProfile)-[:HAS_PREFERENCE]->(p:Preference)-[:EXTRACTED_FROM]->(m:Memory) "
        "RETURN u.user_id, p.text, m.text",
    ) == [("u1", "prefers tea to coffee", "I prefer tea to coffee.")]
    assert await letter_count(bus.dead_letters) == 0
    assert await replayed(url) == await read_digest(store, APP)


async def test_a_summary_holds_what_was_said_in_its_thread_only(
    url: str, bus: Bus, job_bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    """Users and threads share a chat here."""
    said = [
        add(number, f"secret{number % 3} of the day", user_id=f"u{number % 3}", agent_id="g") for number in range(60)
    ]  # fmt: skip
    job = a_job(url, graph, ExtractiveSummariser())
    async with working(mutations(bus, graph), worker_of(job, job_bus, transport)):
        await put(transport, said)
        await applied(bus, job_bus)
    await job.aclose()
    found = await rows(graph, "MATCH (s:ConversationSummary) RETURN s.user_id, s.text")
    assert len(found) == 6
    for user, text in found:
        assert {f"secret{number}" in text for number in range(3) if f"u{number}" != user} == {False}


async def test_it_waits_until_the_graph_holds_what_it_is_about(
    url: str, bus: Bus, job_bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    job = a_job(url, graph, ExtractiveSummariser())
    await put(transport, [add(number, f"text {number}") for number in range(12)])
    seen = [
        JobEvent(event=wire.decode(entry.fields, received=entry.received), position=f"{number}:{entry.offset}")
        for number in range(PARTITIONS)
        for entry in await bus.log.after(number, "", limit=100)
    ]
    [waits] = [made async for made in job.handle(seen)]
    assert {type(each.error) for each in waits} == {MutationsBehind}
    assert not any(each.done for each in seen)
    async with working(mutations(bus, graph)):
        await until(lambda: holds(graph, 12))
        [[event]] = [made async for made in job.handle(seen)]
        assert len(event.data["memory_ids"]) == 8
        # It is under way now, whether or not it is seen in the graph.
        assert [made async for made in job.handle(seen)] == []
    await job.aclose()


async def test_an_app_whose_graph_is_behind_keeps_no_other_one_back(
    url: str, bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    async with working(mutations(bus, graph)):
        await put(transport, [add(number, f"text {number}", chat=f"c{number % 2}") for number in range(24)])
        await until(lambda: holds(graph, 24))
    seen = [
        JobEvent(event=entry.event(), position=f"{number}:{entry.offset}")
        for number in range(PARTITIONS)
        for entry in await bus.log.after(number, "", limit=100)
    ]
    late = add(99, "text").model_copy(update={"appid": "slow"})
    seen.insert(0, JobEvent(event=late, position="0:9999999999999-0"))
    made: list[Any] = []
    async with aclosing(a_job(url, graph, ExtractiveSummariser())) as job:
        for _ in range(3):
            async for some in job.handle([each for each in seen if not each.done]):
                made.extend(some)
    assert [each.app_id for each in made if isinstance(each, AppWait)] == ["slow"] * 3
    assert sorted((each.appid, each.chatid) for each in made if isinstance(each, Event)) == [(APP, "c0"), (APP, "c1")]


async def test_an_event_that_changes_nothing_is_not_waited_for(
    url: str, bus: Bus, job_bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    """Such as a copy: no mark of a graph moves for it."""
    said = [add(number, f"text {number}") for number in range(12)]
    async with working(mutations(bus, graph)):
        for more in (said, said[-1:]):
            await put(transport, more)
            job = a_job(url, graph, ExtractiveSummariser())
            async with working(worker_of(job, job_bus, transport)):  # a new one, which does not know the copy
                await applied(bus, job_bus)
            await job.aclose()
    assert await rows(graph, "MATCH (s:ConversationSummary) RETURN count(s)") == [(1,)]


async def holds(graph: GraphStore, memories: int) -> bool:
    return await rows(graph, "MATCH (m:Memory) RETURN count(m)") == [(memories,)]


async def test_two_workers_and_a_repetition_make_one_summary(
    url: str, bus: Bus, job_bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    """The model says something else each time; copies are too far apart to be known as such."""
    await put(transport, [add(number, f"text {number}") for number in range(12)])
    made: list[Event] = []
    async with working(mutations(bus, graph)):
        await until(lambda: holds(graph, 12))
        entries = [
            (number, entry) for number in range(PARTITIONS) for entry in await bus.log.after(number, "", limit=100)
        ]
        seen = [
            JobEvent(event=wire.decode(entry.fields, received=entry.received), position=f"{number}:{entry.offset}")
            for number, entry in entries
        ]
        inventive = Inventive()
        for _ in range(3):
            job = a_job(url, graph, inventive)
            [[event]] = [events async for events in job.handle(seen)]
            made.append(event)
            await job.aclose()
        assert len({event.id for event in made}) == 1
        assert len({event.data["summary"] for event in made}) == 3
        # When the log took the last one of the 8 memories.
        [last] = [entry.received for _, entry in entries if wire.decode(entry.fields).id == "e7"]
        assert {event.time for event in made} == {last}
        fact = {"subject": "user", "predicate": "lives in", "object": "Oslo"}
        await put(transport, made)
        # What the engine would drop as a copy, under another name: as if 10,000 events lay between.
        odd = made[1].model_copy(update={"id": "odd", "data": made[1].data | {"facts": [fact]}})
        await put(transport, [odd])
        await applied(bus)
    assert await rows(graph, "MATCH (s:ConversationSummary) RETURN s.text") == [("summary number 1, of 8",)]
    assert await rows(graph, "MATCH (f:Fact) RETURN f.object") == []
    assert await replayed(url) == await read_digest(graph, APP)


async def test_a_conversation_on_which_the_model_fails_keeps_no_other_one_back(
    url: str, bus: Bus, job_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer,
) -> None:  # fmt: skip
    from graphweft_workers.features.memory.openai_summariser import OpenAISummariser

    model_server.answer = lambda _: json.dumps({"summary": "What the model says."})
    model_server.fails = lambda request: (
        Failure.error(500, headers={"retry-after-ms": "20"})
        if "poison" in request.body["messages"][-1]["content"]
        else None
    )
    async with working(mutations(bus, graph)):
        for user, text in (("a", "text"), ("b", "poison"), ("c", "text")):
            said = [add(number, f"{text} {number}", user_id=user) for number in range(12)]
            await put(transport, [each.model_copy(update={"id": f"{user}-{each.id}", "chatid": user}) for each in said])
        await until(lambda: holds(graph, 36))
        job = a_job(url, graph, OpenAISummariser(model_server.url, "some-model"))
        async with working(worker_of(job, job_bus, transport)):
            await applied(bus, job_bus)
        await job.aclose()
    found = await rows(graph, "MATCH (s:ConversationSummary) RETURN s.user_id, s.text ORDER BY s.user_id")
    assert [(user, text == "What the model says.") for user, text in found] == [("a", True), ("b", False), ("c", True)]
    assert len(model_server.requests) == 2 + 2 * 5, "five tries, each with a test conversation"


async def test_a_summariser_that_is_away_is_waited_for(
    url: str, bus: Bus, job_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer,
) -> None:  # fmt: skip
    from graphweft_workers.features.memory.openai_summariser import OpenAISummariser

    model_server.answer = lambda _: json.dumps({"summary": "What the model says."})
    model_server.fail(Failure.error(503, headers={"retry-after-ms": "20"}), Failure.garbage())
    job = a_job(url, graph, OpenAISummariser(model_server.url, "some-model"))
    async with working(mutations(bus, graph), worker_of(job, job_bus, transport)):
        await put(transport, [add(number, f"text {number}") for number in range(12)])
        await applied(bus, job_bus)
    await job.aclose()
    found = await rows(graph, "MATCH (s:ConversationSummary) RETURN s.text, s.model")
    assert found == [("What the model says.", "some-model")]
    assert len(model_server.requests) == 4, "one with a test conversation"


# forgetting


@pytest.mark.soak("neo4j")
async def test_what_has_outlived_its_time_is_forgotten_once_and_summaries_stay(
    url: str, bus: Bus, job_bus: Bus, store: GraphStore, transport: Transport
) -> None:
    job = a_job(url, store, ExtractiveSummariser())
    retention = Retention(store, keep_days=1)
    retention.note([APP])
    async with working(mutations(bus, store), worker_of(job, job_bus, transport)):
        await put(transport, conversation())
        await put(transport, [add(100, "new", chat="c1", at=T0 + timedelta(days=2), user_id="u1")])
        await applied(bus, job_bus)
        assert [made async for made in retention.due(T0 + timedelta(days=1))] == []
        now = T0 + timedelta(days=2, minutes=5)
        made = [event async for some in retention.due(now) for event in some]
        assert [len(event.data["memory_ids"]) for event in made] == [20, 20, 20]
        repeated = Retention(store, keep_days=1)
        repeated.note([APP])
        assert [event async for some in repeated.due(now) for event in some] == made, "ids follow from the memories"
        assert [event async for some in retention.due(now) for event in some] == [], "they are on the bus"
        await put(transport, made)
        await applied(bus, job_bus)
        assert [event async for some in repeated.due(now) for event in some] == []
    await job.aclose()
    assert await rows(store, "MATCH (m:Memory) RETURN m.text") == [("new",)]
    assert await rows(store, "MATCH (s:ConversationSummary) RETURN count(s)") == [(6,)]
    assert await rows(store, "MATCH (f:Fact) RETURN count(f)") == [(5,)]
    assert await replayed(url) == await read_digest(store, APP)


@pytest.mark.soak("neo4j")
async def test_the_newest_of_each_user_are_kept_and_of_each_thread_without_one(
    url: str, bus: Bus, store: GraphStore, transport: Transport
) -> None:
    said = [add(number, f"text {number}", chat="c5", user_id=f"u{number % 3}", thread_id="t0") for number in range(30)]
    said += [add(number, f"text {number}", chat="c5", thread_id=f"t{number % 2}") for number in range(40, 50)]
    said += [add(number, f"text {number}", chat="c5", agent_id="g") for number in range(50, 53)]
    retention = Retention(store, keep_count=4)
    retention.note([APP])
    async with working(mutations(bus, store)):
        await put(transport, said)
        await applied(bus)
        await put(transport, [event async for some in retention.due(T0) for event in some])
        await applied(bus)
        assert [event async for some in retention.due(T0) for event in some] == []
    found = sorted(int(text.split()[1]) for (text,) in await rows(store, "MATCH (m:Memory) RETURN m.text"))
    assert found == [*range(18, 30), *range(42, 50), *range(50, 53)]


async def test_pinned_memories_are_not_forgotten_by_age_or_number(
    url: str, bus: Bus, job_bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    said = [add(number, f"text {number}", chat="c5", user_id="u") for number in range(12)]
    pin = Event.create(
        "memory.update", app_id=APP, chat_id="c5", id="pin", source="/test", time=T0,
        data={"memory_id": memory_id(said[0].source, said[0].id, 0), "pinned": True},
    )  # fmt: skip
    async with working(mutations(bus, graph)):
        await put(transport, [*said, pin])
        await applied(bus)
        for retention in (Retention(graph, keep_count=4), Retention(graph, keep_days=1)):
            retention.note([APP])
            await put(transport, [event async for some in retention.due(T0 + timedelta(days=9)) for event in some])
            await applied(bus)
        assert await rows(graph, "MATCH (m:Memory) RETURN m.text") == [("text 0",)]


async def test_what_ends_by_itself_is_never_in_a_summary_and_goes_by_age(
    url: str, bus: Bus, job_bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    said = [add(number, f"text {number}", chat="c6", user_id="u") for number in range(12)]
    for number in (0, 1):  # the first has ended, the other not
        ends = {"expires_at": (said[number].time + timedelta(days=number or 0.01) * 9999).isoformat()}
        messages = [each | ends for each in said[number].data["messages"]]
        said[number] = said[number].model_copy(update={"data": said[number].data | {"messages": messages}})
    job = a_job(url, graph, ExtractiveSummariser(), after=8, keep=2)
    async with working(mutations(bus, graph), worker_of(job, job_bus, transport)):
        await put(transport, said)
        await applied(bus, job_bus)
        left = await rows(graph, "MATCH (m:Memory) WHERE m.summary_id IS NULL RETURN m.text ORDER BY m.timestamp")
        assert left == [(f"text {number}",) for number in (0, 1, 8, 9, 10, 11)]
        retention = Retention(graph, keep_days=1)
        retention.note([APP])
        await put(transport, [event async for some in retention.due(T0 + timedelta(days=99)) for event in some])
        await applied(bus)
        assert await rows(graph, "MATCH (m:Memory) RETURN m.text") == []
    await job.aclose()


async def test_ticks_see_to_all_apps_that_have_a_graph(
    url: str, bus: Bus, job_bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    async with working(mutations(bus, graph)):
        await put(transport, [add(1, "old"), add(2, "new", at=datetime.now(UTC))])
        await applied(bus)
        # A job that begins at the end of the log, as after a start long ago.
        for part in await bus.partitions.status():
            await job_bus.partitions.committed(part.id)
            await job_bus.partitions.commit(part.id, await bus.partitions.committed(part.id))
        job = a_job(url, graph, retention=Retention(graph, keep_days=1), tick_s=0.1)
        async with working(worker_of(job, job_bus, transport)):
            await until(lambda: holds(graph, 1))
        await job.aclose()
    assert len(await events(bus, "memory.forget")) == 1


@pytest.mark.soak("neo4j")
async def test_a_memory_that_is_dated_ahead_is_as_old_as_its_entry_in_the_log(
    bus: Bus, store: GraphStore, transport: Transport
) -> None:
    retention = Retention(store, keep_days=1)
    retention.note([APP])
    async with working(mutations(bus, store)):
        await put(
            transport, [add(1, "ahead", at=datetime(9998, 1, 1, tzinfo=UTC)), add(2, "now", at=datetime.now(UTC))]
        )
        await applied(bus)
        assert [made async for made in retention.due(datetime.now(UTC) + timedelta(hours=23))] == []
        now = datetime.now(UTC) + timedelta(hours=25)
        made = [event async for some in retention.due(now) for event in some]
        assert sum(len(event.data["memory_ids"]) for event in made) == 2


# erasing


@pytest.mark.soak("neo4j")
async def test_what_is_erased_is_gone_for_good(
    url: str, bus: Bus, job_bus: Bus, store: GraphStore, transport: Transport
) -> None:
    mine = conversation()
    scope = {"user_id": "u2", "thread_id": "t1"}
    theirs = [
        event.model_copy(update={"id": f"other-{event.id}", "data": event.data | scope}) for event in conversation()
    ]
    both = [event for pair in zip(mine, theirs, strict=True) for event in pair]
    job = a_job(url, store, ExtractiveSummariser())
    everything = "MATCH (n) WHERE n.user_id = '{0}' RETURN labels(n)[0], count(n) ORDER BY labels(n)[0]"
    async with working(mutations(bus, store), worker_of(job, job_bus, transport)):
        await put(transport, both)
        await applied(bus, job_bus)
        before = await rows(store, everything.format("u2"))
        assert await rows(store, everything.format("u1")) == before
        assert [label for label, _ in before] == [
            "ConversationSummary", "Fact", "Memory", "Preference", "Statement", "UserProfile",
        ]  # fmt: skip
        await put(transport, [other("memory.erase", "erase", {"user_id": "u1"}, chat="c9", at=T0)])
        await applied(bus, job_bus)
        [erased] = [
            entry.received
            for number in range(PARTITIONS)
            for entry in await bus.log.after(number, "", limit=10_000)
            if wire.decode(entry.fields).type == "memory.erase"
        ]
        # Retries are as old as what had failed. The times of the events themselves have no part in it.
        ahead = T0 + timedelta(days=9)
        late = [add(200 + number, f"late {number}", chat="c1", at=ahead, user_id="u1") for number in range(12)]
        await put_again(transport, late, erased - timedelta(seconds=1))
        await put(transport, [add(300, "a new life", chat="c1", at=T0 - timedelta(days=9), user_id="u1")])
        await applied(bus, job_bus)
    await job.aclose()
    assert await rows(store, everything.format("u1")) == [("Memory", 1), ("UserProfile", 1)]
    assert await rows(store, everything.format("u2")) == before
    assert await rows(store, "MATCH (m:Memory {user_id: 'u1'}) RETURN m.text") == [("a new life",)]
    assert await replayed(url) == await read_digest(store, APP)


@pytest.mark.soak("neo4j")
async def test_a_summary_that_is_under_way_for_an_erased_user_leaves_nothing(
    url: str, bus: Bus, job_bus: Bus, store: GraphStore, transport: Transport
) -> None:
    inventive = Inventive()
    inventive.open.clear()
    job = a_job(url, store, inventive)
    async with working(mutations(bus, store), worker_of(job, job_bus, transport)):
        await put_at_their_times(url, bus, [add(number, f"text {number}") for number in range(14)])
        await until(lambda: inventive.asked)
        # What the log took until then: all but the last ones, some of which are to be in the summary.
        before = T0 + timedelta(minutes=5)
        data = {"user_id": "u1", "before": before.isoformat()}
        await put(transport, [other("memory.erase", "erase", data, chat="c9", at=T0 + timedelta(hours=1))])
        await applied(bus)
        inventive.open.set()
        await applied(bus, job_bus)
        assert len(await events(bus, "memory.summarized")) == 1
        assert await rows(store, "MATCH (s:ConversationSummary) RETURN s.text") == []
        assert await holds(store, 8)
        # Those that are left belong to the summary that is not: only what is new is condensed.
        await put(transport, [add(number, f"text {number}") for number in range(20, 26)])
        await applied(bus, job_bus)
    await job.aclose()
    found = await rows(store, "MATCH (s:ConversationSummary)-[:SUMMARIZES]->(m) RETURN s.from, count(m)")
    assert found == [("2026-02-01T10:08:00.000000Z", 8)]
    assert await replayed(url) == await read_digest(store, APP)


async def test_forgetting_a_memory_while_it_is_condensed_leaves_no_summary_of_it(
    url: str, bus: Bus, job_bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    inventive = Inventive()
    inventive.open.clear()
    job = a_job(url, graph, inventive)
    async with working(mutations(bus, graph), worker_of(job, job_bus, transport)):
        await put(transport, [add(number, f"text {number}") for number in range(12)])
        await until(lambda: inventive.asked)
        data = {"memory_ids": [memory_id("/test", "e3", 0)]}
        await put(transport, [other("memory.forget", "forget", data, chat="c1", at=T0 + timedelta(hours=1))])
        inventive.open.set()
        await applied(bus, job_bus)
    await job.aclose()
    assert await rows(graph, "MATCH (s:ConversationSummary) RETURN s.text") == []
    assert await holds(graph, 11)
    assert await replayed(url) == await read_digest(graph, APP)


# processes


class Process:
    """One role as a process; what it says goes to a file."""

    def __init__(self, role: str, folder: Path, settings: dict[str, str]) -> None:
        self.role = role
        self.file = folder / f"{role}.log"
        self._settings = settings
        self.start()

    def start(self) -> None:
        self._from = self.file.stat().st_size if self.file.exists() else 0
        with self.file.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "graphweft_workers.cli", "run", self.role],
                env=self._settings, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    @property
    def works(self) -> bool:
        assert self.process.poll() is None, self.file.read_text()
        return b"worker_started" in self.file.read_bytes()[self._from :]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_killed_at_any_moment_every_memory_is_condensed_once_and_a_replay_asks_no_model(
    url: str, bus: Bus, job_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer, tmp_path: Path,
) -> None:  # fmt: skip
    dice = random.Random(int(os.environ.get("GRAPHWEFT_SEED", "0")))
    cleared = ("GRAPHWEFT_", "NEO4J_", "AZURE_")
    settings = {name: value for name, value in os.environ.items() if not name.startswith(cleared)} | {
        "GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url, "GRAPHWEFT_SUMMARISER": "openai:m",
        "GRAPHWEFT_SUMMARISER_URL": model_server.url, "GRAPHWEFT_MEMORY_SUMMARISE_AFTER": "12",
        "GRAPHWEFT_MEMORY_SUMMARISE_KEEP": "4", "GRAPHWEFT_LEASE_S": "1", "GRAPHWEFT_BATCH_EVENTS": "40",
        "GRAPHWEFT_WORKER_NAME": "one", "GRAPHWEFT_PARTITIONS": str(PARTITIONS), "GRAPHWEFT_LOG_FORMAT": "json",
    }  # fmt: skip
    asked = 0

    def answer(_: Any) -> str:
        nonlocal asked
        asked += 1
        fact = {"subject": "user", "predicate": "said", "object": f"thing {asked}", "messages": [1]}
        return json.dumps({"summary": f"summary number {asked}", "facts": [fact]})

    model_server.answer = answer
    model_server.always = Failure(wait_s=0.05)
    said = [add(number, f"private text {number}", chat=f"c{number % 7}") for number in range(7 * 36)]
    processes = {role: Process(role, tmp_path, settings) for role in ("memory", "mutation")}
    kills = dict.fromkeys(processes, 0)
    try:
        written = 0
        while written < len(said):
            await put(transport, said[written : written + 35])
            written += 35
            role = "memory" if kills["memory"] <= 2 * kills["mutation"] else "mutation"
            process = processes[role]
            await until(lambda process=process: process.works)  # type: ignore[misc]
            await looks(bus.partitions.status, dice.randrange(80))
            process.kill()
            kills[role] += 1
            process.start()
        await until(lambda: all(each.works for each in processes.values()))
        await applied(bus, job_bus)
    finally:
        for process in processes.values():
            process.kill()
    log = await events(bus, "memory.summarized")
    print(f"{kills} kills, {len(log)} events of {len({each.id for each in log})}, the model was asked {asked} times")
    texts = "".join(process.file.read_text() for process in processes.values())
    assert "Traceback" not in texts
    assert "private text" not in texts
    # 36 memories a chat: 8 at a time while 12 are without, so 4 summaries, and 4 are left.
    found = await rows(
        graph, "MATCH (s:ConversationSummary)-[:SUMMARIZES]->(m) RETURN s.chat_id, s.text, count(m) ORDER BY s.chat_id"
    )
    assert [(chat, count) for chat, _, count in found] == [(f"c{chat}", 8) for chat in range(7) for _ in range(4)]
    assert await rows(graph, "MATCH (m:Memory)-[:PART_OF]->(s) RETURN count(m), count(DISTINCT m)") == [(224, 224)]
    assert await holds(graph, 252)
    first = {event.id: event.data["summary"] for event in reversed(log)}
    assert sorted(first.values()) == sorted(text for _, text, _ in found), "the first answer is the one that holds"
    assert await rows(graph, "MATCH (f:Fact) RETURN count(f)") == [(28,)]
    assert await letter_count(bus.dead_letters) == 0
    before = asked
    assert await replayed(url) == await read_digest(graph, APP)
    assert asked == before
