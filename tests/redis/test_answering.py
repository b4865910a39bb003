"""Answers from the cache, from versions and from a graph in trouble, against the real servers."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import neo4j
import pytest
import pytest_asyncio
from tests.services.buses import applied
from tests.services.layouts import spread
from tests.services.rules import load_rules
from tests.services.virtual_time import VirtualClock
from tests.services.waiting import turns, until
from tests.services.workers import working

from graphweft import Client, Event
from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest, GraphUnavailable, QueryFailed
from graphweft_contracts.prompt_text import inside
from graphweft_rules import RuleSet
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.kafka.bus import kafka_bus
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition, Entry, EventLog
from graphweft_workers.ports.graph_store import START, Checkpoint, GraphStore, Table, Write
from graphweft_workers.support.timing import ContextTiming, Timing

pytestmark = pytest.mark.integration
APP = "shop"
RULES = """
version: "1.0"
injection_rules:
  - name: counter
    agents: [Counter, Both]
    queries:
      - {id: n, cypher: "MATCH (c:Counter) RETURN c.n AS n, c.all AS all", inject_as: n, format: single}
  - name: echo
    agents: [Echo]
    queries:
      - id: v
        cypher: "MATCH (c:Counter) RETURN c.n AS n, $v AS v"
        params: {v: $context.v}
        inject_as: v
        format: single
  - name: slow
    agents: [Slow, Both]
    queries:
      - id: slow
        cypher: "UNWIND range(1, 100000) AS a UNWIND range(1, 100000) AS b RETURN count(*) AS i"
        inject_as: slow
  - name: impatient
    agents: [Impatient]
    timeout_ms: 50
    queries:
      - id: slow
        cypher: "UNWIND range(1, 100000) AS a UNWIND range(1, 100000) AS b RETURN count(*) AS i"
        inject_as: slow
  - name: broken
    agents: [Broken]
    queries:
      - {id: broken, cypher: "RETURN 1 / $v AS n", params: {v: $context.v}, inject_as: broken, format: single}
  - name: sources
    agents: [Sources]
    queries:
      - id: facts
        cypher: "MATCH (f:Fact) RETURN f.text AS text, f, f.event_id, f.event_ids AS event_ids ORDER BY f.text"
        inject_as: facts
        max_results: 1
mutation_rules:
  - name: count
    events: [item.counted]
    mutations:
      - id: add
        cypher: "MERGE (c:Counter {id: 1}) ON CREATE SET c.n = 1, c.all = [1] ON MATCH SET c.n = c.n + 1"
"""


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop" / "graph_injection.yaml").write_text(RULES)
    return load_rules(tmp_path)


def request(agent: str = "Counter", *, budget_ms: int = 120_000, **fields: Any) -> ContextRequest:
    values: dict[str, Any] = {
        "id": uuid4().hex,
        "app_id": APP,
        "workflow": "Shop",
        "agent": agent,
        "chat_id": "c1",
        "deadline_ms": int(time.time() * 1000) + budget_ms,
    }
    return ContextRequest(**values | fields)


LONG_WAY_BACK = Timing(context=ContextTiming(reserve=0.5, most_reserve_s=10.0))
"""Half of each budget is kept back, so that a busy machine answers in time too."""


def in_time(asked: ContextRequest) -> bool:
    return time.time() * 1000 < asked.deadline_ms


class Watched:
    """A real store whose reads are counted, and can be held back, before or after they happen, or made to fail."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.settle_s: float = graph.settle_s
        self.without_turn: Counter[str] = graph.without_turn
        self.dialect = graph.dialect
        self.reads = 0
        self.marked = 0
        self.limits: list[float] = []
        self.holding = False
        """Whether what the server has answered is held back."""
        self.before: Callable[[], Awaitable[None]] | None = None
        self.after: Callable[[], Awaitable[None]] | None = None
        self.before_marks: Callable[[], Awaitable[None]] | None = None
        self.after_marks: Callable[[], Awaitable[None]] | None = None

    async def read(self, *given: Any, timeout_s: float, **options: Any) -> Table:
        self.reads += 1
        self.limits.append(timeout_s)
        if self.before:
            await self.before()
        after = self.after
        table: Table = await self.graph.read(*given, timeout_s=timeout_s, **options)
        if after:
            self.holding = True
            await after()
        return table

    async def checkpoints(self, app_id: str, *, timeout_s: float) -> Mapping[int, Checkpoint]:
        self.marked += 1
        if self.before_marks:
            await self.before_marks()
        after = self.after_marks
        checkpoints: Mapping[int, Checkpoint] = await self.graph.checkpoints(app_id, timeout_s=timeout_s)
        if after:
            self.holding = True
            await after()
        return checkpoints


class Writer:
    """Counts up in the app's graph, as a worker would, in one query per call."""

    def __init__(self, graph: GraphStore, app: str = APP, partition: int = 0) -> None:
        self.graph = graph
        self.app = app
        self.partition = partition
        self.checkpoint = START
        self.n = 0

    async def add(self) -> int:
        self.n += 1
        after = Checkpoint(offset=f"{self.n}-0")
        text = "MERGE (c:Counter {id: 1}) SET c.n = $n, c.all = [$n]"
        write = Write(query=parse(text, role="mutation"), rows=({"n": self.n},), before=self.checkpoint, after=after)
        applied = await self.graph.apply(self.app, self.partition, [write])
        assert applied.count == 1
        self.checkpoint = after
        return self.n


async def writer_on(graph: GraphStore, app: str = APP, partition: int = 0) -> Writer:
    await graph.prepare(app, [])
    await graph.progress(app, partition)
    writer = Writer(graph, app, partition)
    await writer.add()
    return writer


@asynccontextmanager
async def answering(rules: RuleSet, graph: Any, **options: Any) -> AsyncIterator[ContextPipeline]:
    pipeline = ContextPipeline(rules, graph, timing=LONG_WAY_BACK, **options)
    try:
        yield pipeline
    finally:
        await pipeline.aclose()


async def warm(pipeline: ContextPipeline, agent: str = "Counter", **fields: Any) -> ContextReply:
    """Ask until the answer comes from the cache."""
    async with asyncio.timeout(120):
        while True:
            hits = pipeline.cache.hits
            reply = await pipeline.answer(request(agent, **fields))
            if pipeline.cache.hits > hits:
                return reply


async def ended(pipeline: ContextPipeline) -> None:
    """Wait until nothing is left of earlier requests."""
    await until(lambda: not len(pipeline._background))


@pytest.fixture(params=["falkordb", "neo4j"])
def made(request: pytest.FixtureRequest) -> GraphStore:
    """A store on an empty server."""
    if request.param == "falkordb":
        return FalkorDBStore(request.getfixturevalue("url"), write_timeout_ms=3_000)
    server = request.getfixturevalue("neo4j_server")
    with neo4j.GraphDatabase.driver(server.uri) as driver, driver.session() as session:
        session.run("MATCH (n) DETACH DELETE n").consume()
    return Neo4jStore(server.uri, write_timeout_ms=3_000)


@pytest_asyncio.fixture
async def store(made: GraphStore) -> AsyncIterator[GraphStore]:
    yield made
    await made.aclose()


# The cache


@pytest.mark.soak("neo4j")
async def test_the_same_question_is_asked_once(store: GraphStore, rules: RuleSet) -> None:
    await writer_on(store)
    watched = Watched(store)
    async with answering(rules, watched) as pipeline:
        reply = await warm(pipeline)
        reads = watched.reads
        replies = [await pipeline.answer(request()) for _ in range(5)]
        assert [each.injected for each in replies] == [{"n": {"n": 1, "all": [1]}}] * 5 == [reply.injected] * 5
        assert (watched.reads, pipeline.cache.hits, pipeline.cache.entries) == (reads, 6, 1)
        assert pipeline.cache.bytes > 0
        assert len({each.context_id for each in replies}) == 5


async def test_another_value_or_app_is_another_question(url: str, graph: FalkorDBStore, rules: RuleSet) -> None:
    bank = Writer(graph, "bank")
    for app in (APP, "bank"):
        await graph.prepare(app, [])
        await graph.progress(app, 0)
    await (await writer_on(graph)).add()
    await bank.add()
    async with answering(rules, graph) as pipeline:
        for value in (1, 1.0, True, "1", None, [1], [True]):
            reply = await warm(pipeline, "Echo", context={"v": value})
            [found] = [block.value["v"] for block in reply.blocks]
            assert (type(found), found) == (type(value), value)
        assert (await warm(pipeline, app_id="bank")).injected["n"]["n"] == 1
        assert (await warm(pipeline)).injected["n"]["n"] == 2


async def test_who_changes_an_answer_changes_no_other(graph: FalkorDBStore, rules: RuleSet) -> None:
    await writer_on(graph)
    async with answering(rules, graph) as pipeline:
        for _ in range(3):
            reply = await warm(pipeline)
            assert reply.injected == {"n": {"n": 1, "all": [1]}}
            reply.injected["n"]["all"].append(2)
            reply.injected["n"]["n"] = 7


@pytest.mark.soak("neo4j")
async def test_a_write_is_seen_by_the_next_request(store: GraphStore, rules: RuleSet) -> None:
    """Others keep asking meanwhile, so that the cache is filled at every moment of a write."""
    writer = await writer_on(store)
    stop = asyncio.Event()
    async with answering(rules, store) as cached, answering(rules, store, cache_bytes=0) as plain:
        # Where versions settle slowly the cache would stay empty; it has to be right all the same at a tenth of that.
        cached._versions.graph = Watched(store)
        cached._versions.graph.settle_s = store.settle_s / 50

        async def ask() -> None:
            while not stop.is_set():
                await cached.answer(request())

        asking = [asyncio.create_task(ask()) for _ in range(3)]
        try:
            for number in range(150):
                n = await writer.add()
                for _ in range(1 + number % 3):
                    reply = await cached.answer(request())
                    assert reply.injected["n"] == {"n": n, "all": [n]}
                    assert (await plain.answer(request())).injected == reply.injected
                if number % 5 == 0:  # so often as not the next write meets a full cache
                    hits = cached.cache.hits
                    await until(lambda hits=hits: cached.cache.hits > hits)
        finally:
            stop.set()
            await asyncio.gather(*asking)
        assert cached.cache.hits > 100
        assert (plain.cache.hits, plain.cache.entries) == (0, 0)


async def test_rows_of_a_query_that_saw_a_write_half_way_are_not_those_of_later_versions(
    graph: FalkorDBStore, rules: RuleSet
) -> None:
    """The query runs before the write and its rows come back after it, and after somebody has seen the new marks."""
    writer = await writer_on(graph)
    watched = Watched(graph)
    held = asyncio.Event()
    async with answering(rules, watched) as pipeline:
        await warm(pipeline)
        await writer.add()
        await pipeline.answer(request("Echo", context={"v": 1}))  # the new version is known
        watched.after = held.wait
        late = asyncio.create_task(pipeline.answer(request()))
        await until(lambda: watched.holding)
        watched.after = None
        n = await writer.add()
        await pipeline.answer(request("Echo", context={"v": 1}))
        held.set()
        assert (await late).injected["n"]["n"] == n - 1
        for _ in range(3):
            assert (await pipeline.answer(request())).injected["n"]["n"] == n


async def test_rows_are_kept_when_all_of_a_write_has_had_time_to_show(graph: FalkorDBStore, rules: RuleSet) -> None:
    """Some servers show a mark before the rest of its transaction."""
    writer = await writer_on(graph)
    watched = Watched(graph)
    watched.settle_s = 0.3
    async with answering(rules, watched) as pipeline:
        await warm(pipeline)
        n = await writer.add()
        until = time.monotonic() + 0.3
        await pipeline.answer(request())
        await ended(pipeline)
        hits, joined = pipeline.cache.hits, pipeline.cache.joined
        while time.monotonic() < until:
            replies = await asyncio.gather(*[pipeline.answer(request()) for _ in range(3)])
            assert {reply.injected["n"]["n"] for reply in replies} == {n}
            assert time.monotonic() > until or (pipeline.cache.hits, pipeline.cache.joined) == (hits, joined)
        assert (await warm(pipeline)).injected["n"]["n"] == n


async def test_a_graph_that_no_worker_writes_is_always_asked(url: str, graph: FalkorDBStore, rules: RuleSet) -> None:
    async with answering(rules, graph) as pipeline:
        assert (await pipeline.answer(request())).injected == {"n": None}
        for n in range(1, 4):
            await graph._redis.execute_command("GRAPH.QUERY", f"mozaiks_{APP}", f"MERGE (c:Counter) SET c.n = {n}")
            assert (await pipeline.answer(request())).injected["n"]["n"] == n
        assert pipeline.cache.hits == 0


async def test_without_a_cache_nobody_asks_for_marks(graph: FalkorDBStore, rules: RuleSet) -> None:
    await writer_on(graph)
    watched = Watched(graph)
    async with answering(rules, watched, cache_bytes=0) as pipeline:
        for _ in range(3):
            assert (await pipeline.answer(request())).injected["n"]["n"] == 1
    assert (watched.reads, watched.marked) == (3, 0)


async def test_equal_questions_at_once_are_one_query(graph: FalkorDBStore, rules: RuleSet) -> None:
    await writer_on(graph)
    watched = Watched(graph)
    async with answering(rules, watched) as pipeline:
        await warm(pipeline, "Echo", context={"v": 1})  # the version is known
        reads, marked = watched.reads, watched.marked
        replies = await asyncio.gather(*[pipeline.answer(request()) for _ in range(30)])
        assert [reply.injected["n"]["n"] for reply in replies] == [1] * 30
        # The first asks at once; who comes behind it reads the version, and then waits for the first or takes its rows.
        assert watched.reads == reads + 1
        assert watched.marked - marked <= 2
        assert pipeline.cache.joined + pipeline.cache.hits >= 29


async def test_nobody_waits_for_a_query_that_began_before_a_write(graph: FalkorDBStore, rules: RuleSet) -> None:
    writer = await writer_on(graph)
    watched = Watched(graph)
    held = asyncio.Event()
    async with answering(rules, watched) as pipeline:
        await warm(pipeline, "Echo", context={"v": 1})
        watched.after = held.wait
        first = asyncio.create_task(pipeline.answer(request()))
        await until(lambda: watched.holding)
        watched.after = None
        n = await writer.add()
        assert (await pipeline.answer(request())).injected["n"]["n"] == n
        held.set()
        assert (await first).injected["n"]["n"] == n - 1


async def test_nobody_shares_marks_that_were_read_before_a_write(graph: FalkorDBStore, rules: RuleSet) -> None:
    writer = await writer_on(graph)
    watched = Watched(graph)
    held = asyncio.Event()
    async with answering(rules, watched) as pipeline:
        await warm(pipeline)
        watched.after_marks = held.wait
        first = asyncio.create_task(pipeline.answer(request()))
        await until(lambda: watched.holding)
        watched.after_marks = None
        n = await writer.add()
        assert (await pipeline.answer(request())).injected["n"]["n"] == n
        held.set()
        await first
        assert (await pipeline.answer(request())).injected["n"]["n"] == n


async def test_marks_come_in_few_queries_however_many_ask(graph: FalkorDBStore, rules: RuleSet) -> None:
    await writer_on(graph)
    watched = Watched(graph)
    async with answering(rules, watched) as pipeline:
        await warm(pipeline)
        marked = watched.marked
        await asyncio.gather(*[pipeline.answer(request()) for _ in range(200)])
        assert watched.marked - marked <= 2


# One's own writes


def event(type: str = "item.counted", app: str = APP, **more: Any) -> Event:
    return Event.create(type, app_id=app, chat_id="c1", workflow="Shop", data={}, **more)


async def emitted(client: Client, *events: Event) -> str:
    """Publish events and return the position of the last one."""
    positions = [await client.emit(each, wait_s=120) for each in events]
    assert positions[-1]
    return positions[-1]


@pytest.mark.soak("neo4j")
@pytest.mark.parametrize("cache_bytes", [0, 10**6])
async def test_an_answer_waits_for_the_events_before_it(
    url: str, bus: Bus, store: GraphStore, rules: RuleSet, cache_bytes: int
) -> None:
    async with (
        Client(url) as client,
        working(bus, store, rules),
        answering(rules, store, bus=bus, cache_bytes=cache_bytes) as pipeline,
    ):
        for n in range(1, 31):
            after = await emitted(client, event())
            reply = await pipeline.answer(request(after=after))
            assert (reply.injected["n"]["n"], reply.stale_by, reply.partial) == (n, None, False)


async def test_an_answer_waits_for_a_worker_that_comes_late(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    watched = Watched(graph)
    async with Client(url) as client, answering(rules, watched, bus=bus) as pipeline:
        after = await emitted(client, event(), event())
        waiting = asyncio.create_task(pipeline.answer(request(after=after)))
        await until(lambda: watched.marked >= 3)
        assert (watched.reads, waiting.done()) == (0, False)
        async with working(bus, graph, rules):
            reply = await waiting
        assert (reply.injected["n"]["n"], reply.stale_by) == (2, None)


@pytest.mark.parametrize(("left_s", "wait_s"), [(10.0, 9.0), (2.5, 1.5), (1.0, 0.6), (0.05, 0.03), (-1.0, 0.0)])
async def test_a_wait_leaves_a_second_for_the_queries_at_most(
    graph: FalkorDBStore, rules: RuleSet, left_s: float, wait_s: float
) -> None:
    clock = VirtualClock()
    pipeline = ContextPipeline(rules, graph, clock=clock)
    now = clock.monotonic()
    assert max(0.0, pipeline._wait_until(now + left_s, queries=True) - now) == pytest.approx(wait_s)
    assert pipeline._wait_until(now + left_s, queries=False) == now + left_s
    await pipeline.aclose()


async def test_what_is_not_there_in_time_is_counted(url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet) -> None:
    async with Client(url) as client, answering(rules, graph, bus=bus) as pipeline:
        async with working(bus, graph, rules):
            first = await emitted(client, event(), event("item.ignored"), event())
            await applied(bus)
            assert (await pipeline.answer(request(after=first))).stale_by is None
        after = await emitted(client, event(), event("item.ignored"), event(app="bank"), event(), event())
        asked = request(after=after, budget_ms=4_000)
        reply = await pipeline.answer(asked)
        assert in_time(asked)
        assert (reply.injected["n"]["n"], reply.stale_by, reply.reason, reply.missing) == (2, 3, None, ())
        assert (await pipeline.answer(request(after=first))).stale_by is None


async def test_events_that_change_nothing_are_not_waited_for(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    """No worker runs: it would move no mark for these."""
    async with Client(url) as client, answering(rules, graph, bus=bus) as pipeline:
        after = await emitted(client, event("item.ignored"), event(app="bank"), event("item.ignored"))
        reply = await pipeline.answer(request(after=after))
        assert (reply.stale_by, reply.reason, reply.injected) == (None, None, {"n": None})
        after = await emitted(client, event(), event("item.ignored"))
        assert (await pipeline.answer(request(after=after, budget_ms=300))).stale_by == 1


async def test_a_mark_that_shows_before_its_effects_is_not_relied_on(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    watched = Watched(graph)
    watched.settle_s = 60.0
    async with Client(url) as client, answering(rules, watched, bus=bus) as pipeline:
        after = await emitted(client, event())
        partition, _, offset = after.partition(":")
        writer = await writer_on(graph, partition=int(partition))
        move = Write(before=writer.checkpoint, after=Checkpoint(offset=offset))
        assert (await graph.apply(APP, int(partition), [move])).count == 1
        assert (await pipeline.answer(request(after=after, budget_ms=300))).stale_by == 1
        await bus.partitions.committed(int(partition))
        await bus.partitions.commit(int(partition), CommittedPosition(offset=offset, count=1))
        assert (await pipeline.answer(request(after=after))).stale_by is None


async def test_a_copy_of_an_event_is_not_waited_for(url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet) -> None:
    once = event(id="once")
    async with working(bus, graph, rules), answering(rules, graph, bus=bus) as pipeline:
        for _ in range(2):
            async with Client(url) as client:
                after = await emitted(client, once)
            reply = await pipeline.answer(request(after=after))
            assert (reply.stale_by, reply.injected["n"]["n"]) == (None, 1)


class Pages:
    """A real log that notes how many events are read at once."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.largest = 0
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        entries = await self._log.before(partition, offset, limit=limit)
        self.largest = max(self.largest, len(entries))
        self.read += len(entries)
        return entries


async def told(pipeline: ContextPipeline, after: str, expected: int) -> int | None:
    """Return the number that is told; 1 stands for a number that was not known in time, too, so ask a few times."""
    stale_by: int | None = None
    for _ in range(5):
        stale_by = (await pipeline.answer(request(after=after, budget_ms=1_000))).stale_by
        if stale_by == expected:
            break
    return stale_by


async def test_events_before_a_position_are_read_a_few_at_a_time(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    pages = Pages(bus.log)
    async with Client(url) as client, answering(rules, graph, bus=replace(bus, log=pages)) as pipeline:
        ignored = await emitted(client, *[event("item.ignored") for _ in range(35)])
        assert (await pipeline.answer(request(after=ignored))).stale_by is None
        after = await emitted(client, *[event() for _ in range(25)])
        assert await told(pipeline, after, 25) == 25
        await ended(pipeline)
        assert 0 < pages.largest <= 10
        pages.read = 0
        partition, _, offset = ignored.partition(":")
        await bus.partitions.committed(int(partition))
        await bus.partitions.commit(int(partition), CommittedPosition(offset=offset, count=35))
        last = await emitted(client, event())
        assert await told(pipeline, last, 26) == 26
        after = await emitted(client, *[event("item.ignored") for _ in range(100)])
        assert (await pipeline.answer(request(after=after, budget_ms=1_000))).stale_by == 1  # too many to look at
        await ended(pipeline)
        assert pages.largest <= 10


@pytest.mark.soak
async def test_positions_on_kafka(kafka_url: str, graph: FalkorDBStore, rules: RuleSet) -> None:
    bus = kafka_bus(kafka_url, new=spread(2))
    try:
        async with Client(kafka_url) as client, answering(rules, graph, bus=bus) as pipeline:
            after = await emitted(client, event("item.ignored"), event(app="bank"), event("item.ignored"))
            assert (await pipeline.answer(request(after=after))).stale_by is None
            after = await emitted(client, event(), event("item.ignored"), event())
            assert await told(pipeline, after, 2) == 2
            for refused in ("0:1-0", "99:0"):
                assert (await pipeline.answer(request(after=refused))).reason == "invalid_request"
            worker_bus = kafka_bus(kafka_url, new=spread(2))
            async with working(worker_bus, graph, rules):
                for n in range(2, 6):
                    reply = await pipeline.answer(request(after=after))
                    assert (reply.injected["n"]["n"], reply.stale_by) == (n, None)
                    after = await emitted(client, event())
            await worker_bus.aclose()
    finally:
        await bus.aclose()


@pytest.mark.parametrize("after", ["2:1-0", "99:1-0", "0:42"])
async def test_a_position_that_cannot_be_is_refused(bus: Bus, graph: FalkorDBStore, rules: RuleSet, after: str) -> None:
    async with answering(rules, graph, bus=bus) as pipeline:
        reply = await pipeline.answer(request(after=after))
        assert (reply.reason, reply.blocks) == ("invalid_request", ())
        assert after in reply.detail


async def test_a_position_that_is_not_on_the_bus_is_never_reached(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    async with answering(rules, graph, bus=bus) as pipeline:
        reply = await pipeline.answer(request(after="0:99999999999999-0", budget_ms=2_000))
        assert (reply.stale_by, reply.injected) == (1, {"n": None})


async def test_without_the_bus_the_marks_alone_tell(url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet) -> None:
    class Away:
        def __getattr__(self, name: str) -> Any:
            async def fail(*_: Any, **__: Any) -> Any:
                raise BusUnavailable("away")

            return fail

    away: Any = Away()
    writer = await writer_on(graph)
    async with answering(rules, graph, bus=replace(bus, log=away, partitions=away, purges=away)) as pipeline:
        reply = await pipeline.answer(request())  # nobody knows what was erased
        assert (reply.injected, [each.reason for each in reply.missing]) == ({}, ["graph_unavailable"])
    async with answering(rules, graph, bus=replace(bus, log=away, partitions=away)) as pipeline:
        assert (await pipeline.answer(request(after="0:1-0"))).stale_by is None
        asked = request(after="0:2-0", budget_ms=200)
        assert (await pipeline.answer(asked)).stale_by == 1
        await writer.add()
        assert (await pipeline.answer(request(after="0:2-0"))).injected["n"]["n"] == 2


# Time


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.soak("neo4j")
async def test_a_query_that_hangs_costs_its_own_block_only(store: GraphStore, rules: RuleSet) -> None:
    await writer_on(store)
    async with answering(rules, store) as pipeline:
        for _ in range(3):
            asked = request("Both", budget_ms=4_000)
            reply = await pipeline.answer(asked)
            assert in_time(asked)
            assert (list(reply.injected), reply.partial, reply.reason) == (["n"], True, None)
            [missing] = reply.missing
            assert (missing.name, missing.reason) == ("slow", "timeout")
        await ended(pipeline)


@pytest.mark.parametrize("hanging", ["before", "before_marks"])
async def test_a_store_that_hangs_ends_no_request_late(graph: FalkorDBStore, rules: RuleSet, hanging: str) -> None:
    await writer_on(graph)
    watched = Watched(graph)
    async with answering(rules, watched) as pipeline:
        await warm(pipeline)
        await (await writer_on(graph, partition=1)).add()
        setattr(watched, hanging, never)

        async def ask() -> str | None:
            # Marks take half of the time at most; twenty queries have the rest, on a busy machine.
            asked = request(budget_ms=4_000 if hanging == "before" else 12_000)
            reply = await pipeline.answer(asked)
            assert in_time(asked)
            return reply.missing[0].reason if reply.missing else None

        reasons = await asyncio.gather(*[ask() for _ in range(20)])
        # Without marks the graph is asked itself.
        assert set(reasons) == {"timeout" if hanging == "before" else None}
        await until(lambda: len(pipeline._background) < 10)


async def test_a_rule_has_its_own_limit(graph: FalkorDBStore, rules: RuleSet) -> None:
    await writer_on(graph)
    watched = Watched(graph)
    async with answering(rules, watched, query_timeout_s=0.2) as pipeline:
        reply = await pipeline.answer(request("Impatient"))
        assert [missing.reason for missing in reply.missing] == ["timeout"]
        await pipeline.answer(request("Slow"))
        await pipeline.answer(request("Slow", budget_ms=100))
    assert watched.limits[:2] == [pytest.approx(0.05), pytest.approx(0.2)]
    assert watched.limits[2] < 0.1


async def test_a_long_budget_does_not_wait_for_the_query_of_a_short_one(graph: FalkorDBStore, rules: RuleSet) -> None:
    await writer_on(graph)
    watched = Watched(graph)
    held = asyncio.Event()
    async with answering(rules, watched) as pipeline:
        await warm(pipeline, "Echo", context={"v": 1})
        reads = watched.reads
        watched.before = held.wait
        short = asyncio.create_task(pipeline.answer(request(budget_ms=2_000)))
        await until(lambda: watched.reads > reads)
        long = asyncio.create_task(pipeline.answer(request()))
        assert (await short).reason == "timeout"
        held.set()
        assert (await long).injected["n"]["n"] == 1


async def test_a_query_that_has_less_time_is_not_waited_for(graph: FalkorDBStore, rules: RuleSet) -> None:
    await writer_on(graph)
    watched = Watched(graph)
    held = asyncio.Event()
    async with answering(rules, watched, query_timeout_s=60) as pipeline:
        await warm(pipeline, "Echo", context={"v": 1})
        reads = watched.reads
        watched.before = held.wait
        short = asyncio.create_task(pipeline.answer(request(budget_ms=15_000)))
        await until(lambda: watched.reads > reads)
        watched.before = None
        assert (await pipeline.answer(request())).injected["n"]["n"] == 1
        assert not short.done()
        held.set()
        await short


async def test_who_waited_for_a_query_that_gave_up_asks_and_the_others_wait_again(
    graph: FalkorDBStore, rules: RuleSet
) -> None:
    await writer_on(graph)
    watched = Watched(graph)
    held = asyncio.Event()

    async def give_up() -> None:
        await held.wait()
        raise QueryFailed("its time was over", code="timeout")

    async with answering(rules, watched) as pipeline:
        await warm(pipeline, "Echo", context={"v": 1})
        reads = watched.reads
        watched.before = give_up
        first = asyncio.create_task(pipeline.answer(request()))
        await until(lambda: watched.reads > reads)
        watched.before = None
        others = [asyncio.create_task(pipeline.answer(request())) for _ in range(10)]
        await until(lambda: pipeline.cache.joined == 10)
        held.set()
        assert [(await other).injected["n"]["n"] for other in others] == [1] * 10
        assert (await first).reason == "timeout"
        assert watched.reads == reads + 2


# A graph that is away


def away() -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise GraphUnavailable("gone for tea")

    return fail


async def test_the_last_rows_stand_in_while_the_graph_is_away(graph: FalkorDBStore, rules: RuleSet) -> None:
    await writer_on(graph)
    watched = Watched(graph)
    async with answering(rules, watched) as pipeline:
        await pipeline.answer(request())
        watched.before = watched.before_marks = away()
        for _ in range(8):
            reply = await pipeline.answer(request())
            [block] = reply.blocks
            assert block.value == {"n": 1, "all": [1]}
            assert block.age_ms is not None
            assert (reply.partial, reply.reason) == (True, None)
            assert [(missing.name, missing.reason) for missing in reply.missing] == [("n", "graph_unavailable")]
            assert inside(reply.text).startswith("## N")
        other = await pipeline.answer(request("Echo", context={"v": 1}))
        assert (other.reason, other.blocks) == ("graph_unavailable", ())


async def test_the_last_rows_stand_in_for_a_query_that_takes_too_long(graph: FalkorDBStore, rules: RuleSet) -> None:
    writer = await writer_on(graph)
    watched = Watched(graph)
    async with answering(rules, watched) as pipeline:
        await warm(pipeline)
        await writer.add()
        watched.before = never
        reply = await pipeline.answer(request(budget_ms=1_000))
        assert [(block.value["n"], block.age_ms is None) for block in reply.blocks] == [(1, False)]
        assert [missing.reason for missing in reply.missing] == ["timeout"]


async def test_rows_that_are_too_old_do_not(graph: FalkorDBStore, rules: RuleSet) -> None:
    await writer_on(graph)
    watched = Watched(graph)
    async with answering(rules, watched, last_good_s=0.0) as pipeline:
        await pipeline.answer(request())
        watched.before = watched.before_marks = away()
        reply = await pipeline.answer(request())
        assert (reply.blocks, reply.reason) == ((), "graph_unavailable")


async def test_a_refused_query_has_no_last_rows(graph: FalkorDBStore, rules: RuleSet) -> None:
    await writer_on(graph)
    async with answering(rules, graph) as pipeline:
        reply = await pipeline.answer(request("Broken", context={"v": "text"}))
        assert (reply.blocks, reply.reason) == ((), "query_error")


async def test_the_breaker_spares_a_graph_that_is_away_and_finds_it_again(graph: FalkorDBStore, rules: RuleSet) -> None:
    clock = VirtualClock()
    await writer_on(graph)
    watched = Watched(graph)
    async with answering(rules, watched) as pipeline:
        pipeline._breaker.clock = clock
        await pipeline.answer(request())
        await ended(pipeline)
        watched.before = watched.before_marks = away()
        for _ in range(6):
            await pipeline.answer(request())
        await ended(pipeline)
        asked = watched.reads + watched.marked
        replies = [await pipeline.answer(request()) for _ in range(20)]
        assert {reply.missing[0].reason for reply in replies} == {"graph_unavailable"}
        assert watched.reads + watched.marked == asked
        assert (await pipeline.answer(request(after="0:1-0"))).reason == "invalid_request"  # no bus here
        clock.advance(0.25)  # one tries, and no other
        held = asyncio.Event()

        async def fail_later() -> None:
            await held.wait()
            raise GraphUnavailable("still away")

        watched.before = watched.before_marks = fail_later
        trial = asyncio.create_task(pipeline.answer(request("Echo", context={"v": 1})))
        await until(lambda: watched.reads + watched.marked >= asked + 2)
        await pipeline.answer(request())
        assert watched.reads + watched.marked == asked + 2
        held.set()
        await trial
        await ended(pipeline)
        watched.before = watched.before_marks = None
        assert (await pipeline.answer(request())).partial
        clock.advance(0.5)
        assert not (await pipeline.answer(request())).partial
        assert not (await pipeline.answer(request())).partial


async def open_breaker(pipeline: ContextPipeline, watched: Watched) -> None:
    """Let the graph be away until nobody asks it, and then be back."""
    watched.before = watched.before_marks = away()
    for n in range(6):
        await pipeline.answer(request("Echo", context={"v": n}))
    await ended(pipeline)
    watched.before = watched.before_marks = None
    assert (await pipeline.answer(request())).partial


async def test_who_asks_the_graph_nothing_makes_no_trial(graph: FalkorDBStore, rules: RuleSet) -> None:
    clock = VirtualClock()
    await writer_on(graph)
    watched = Watched(graph)
    async with answering(rules, watched) as pipeline:
        pipeline._breaker.clock = clock
        await open_breaker(pipeline, watched)
        clock.advance(0.25)
        for agent in ("Nobody", "Echo"):  # no rules, and a rule whose query has no value
            await pipeline.answer(request(agent))
        assert not (await pipeline.answer(request())).partial


async def test_a_trial_whose_query_is_too_slow_finds_the_server_all_the_same(
    graph: FalkorDBStore, rules: RuleSet
) -> None:
    clock = VirtualClock()
    await writer_on(graph)
    watched = Watched(graph)
    async with answering(rules, watched, cache_bytes=0) as pipeline:  # so no query needs the marks
        pipeline._breaker.clock = clock
        await open_breaker(pipeline, watched)
        clock.advance(0.25)
        assert (await pipeline.answer(request("Impatient"))).reason == "timeout"
        await ended(pipeline)
        assert not (await pipeline.answer(request())).partial


async def test_a_server_that_is_killed_and_comes_back(rules: RuleSet) -> None:
    """No answer is late or fails, and when the server is there again so are the blocks."""
    with tempfile.TemporaryDirectory(prefix="graphweft-test-") as folder:
        server = EmbeddedServer(Path(folder))
        await server.start()
        graph = FalkorDBStore(f"unix://{server.socket}")
        try:
            async with answering(rules, graph) as pipeline:
                await writer_on(graph)
                await warm(pipeline)
                stop = asyncio.Event()
                replies: list[ContextReply] = []

                async def ask() -> None:
                    while not stop.is_set():
                        asked = request("Counter", budget_ms=4_000)
                        replies.append(await pipeline.answer(asked))
                        assert in_time(asked)
                        await turns()

                asking = [asyncio.create_task(ask()) for _ in range(3)]
                server.kill() if hasattr(server, "kill") else await server.stop()
                await until(lambda: any(reply.partial for reply in replies))
                await server.start()
                await until(lambda: not replies[-1].partial)
                stop.set()
                await asyncio.gather(*asking)
                assert all(reply.injected == {"n": {"n": 1, "all": [1]}} for reply in replies)
                for reply in replies:
                    assert {missing.reason for missing in reply.missing} <= {"graph_unavailable", "timeout"}
                    assert (reply.blocks[0].age_ms is not None) == reply.partial
        finally:
            await graph.aclose()
            with contextlib.suppress(Exception):
                await server.stop()


# Switched off, and explained


@pytest.mark.parametrize(
    ("off", "app", "reason"), [("*", APP, "disabled"), (APP, APP, "disabled"), ("bank", APP, None)]
)
async def test_an_app_that_is_switched_off_is_told_so(
    graph: FalkorDBStore, rules: RuleSet, off: str, app: str, reason: str | None
) -> None:
    watched = Watched(graph)
    async with answering(rules, watched, off=frozenset({off})) as pipeline:
        reply = await pipeline.answer(request(app_id=app))
        assert (reply.reason, bool(reply.blocks), bool(watched.reads)) == (reason, reason is None, reason is None)
        assert reply.context_id
        assert reply.rules == ("" if reason else rules.digest)


async def test_a_block_says_how_it_came_about(graph: FalkorDBStore, rules: RuleSet) -> None:
    writer = await writer_on(graph)
    text = (
        "CREATE (:Fact {text: 'a', event_id: 'e1', event_ids: ['e2', 'e1']}), (:Fact {text: 'b', event_id: 'e3'}),"
        " (:Fact {text: 'c', event_ids: []}), (:Fact {text: 'd', event_id: 7})"
    )
    write = Write(
        query=parse(text, role="mutation"), rows=({},), before=writer.checkpoint, after=Checkpoint(offset="9-0")
    )
    assert (await graph.apply(APP, 0, [write])).count == 1
    async with answering(rules, graph) as pipeline:
        plain = await pipeline.answer(request("Sources"))
        assert plain.blocks[0].explanation is None
        explanations = []
        for cached in (False, True):
            if cached:
                await warm(pipeline, "Sources")
            else:
                pipeline.cache.purge()
            reply = await pipeline.answer(request("Sources", explain=True))
            [block] = reply.blocks
            explanation = block.explanation
            assert explanation is not None
            assert explanation.cached == cached
            assert explanation.elapsed_ms > 0
            explanations.append(explanation)
        for explanation in explanations:
            assert explanation.place.endswith("graph_injection.yaml:36:9")
            assert explanation.cypher.startswith("MATCH (f:Fact)")
            assert (explanation.params, explanation.found, explanation.events) == ({}, 4, ("e1", "e2", "e3"))
        echo = await pipeline.answer(request("Echo", context={"v": [1]}, explain=True))
        assert echo.blocks[0].explanation is not None
        assert echo.blocks[0].explanation.params == {"v": [1]}
        assert ContextReply.model_validate_json(reply.model_dump_json()) == reply


async def test_an_explanation_names_so_many_events_and_no_more(graph: FalkorDBStore, rules: RuleSet) -> None:
    writer = await writer_on(graph)
    text = "UNWIND range(1, 500) AS i CREATE (:Fact {text: toString(i), event_id: 'e' + toString(i)})"
    write = Write(
        query=parse(text, role="mutation"), rows=({},), before=writer.checkpoint, after=Checkpoint(offset="9-0")
    )
    assert (await graph.apply(APP, 0, [write])).count == 1
    async with answering(rules, graph) as pipeline:
        reply = await pipeline.answer(request("Sources", explain=True))
        assert reply.blocks[0].explanation is not None
        assert len(reply.blocks[0].explanation.events) == 100
