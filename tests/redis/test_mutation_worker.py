"""The mutation worker against the real server: order, exactly once, isolation, dead letters, outages."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import batched
from pathlib import Path
from typing import Any, cast, override

import pytest
import redis.asyncio as redis
from structlog.testing import capture_logs
from tests.services.buses import applied
from tests.services.layouts import spread
from tests.services.rules import load_rules
from tests.services.waiting import until
from tests.services.workers import running as working

from graphweft import Client, Event
from graphweft_contracts import BusUnavailable, DeadLetter, GraphUnavailable, channels, wire
from graphweft_rules import RuleSet
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.drivers.redis.event_log import RedisEventLog
from graphweft_workers.engine.apply import apply as applying
from graphweft_workers.engine.failures.letter_payloads import payload_of
from graphweft_workers.engine.failures.quarantine import FAILURES_TO_QUARANTINE, USERS_TO_QUARANTINE
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.engine.log.duplicates import WINDOW
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import LettersAround, letter_count
from graphweft_workers.ports.event_log import Batch, CommittedPosition, EventLog
from graphweft_workers.ports.graph_store import PositionMove, Write, WriteResult
from graphweft_workers.support.timing import TIMING, QueueTiming, Timing, WriteTiming

pytestmark = pytest.mark.integration
APP = "shop"
RULES = """
version: "1.0"
mutation_rules:
  - name: count_tools
    events: ["tool.call_complete"]
    mutations:
      - id: tool
        cypher: |
          MERGE (t:Tool {name: $tool}) ON CREATE SET t.calls = 1 ON MATCH SET t.calls = t.calls + 1
        params: {tool: $event.tool_name}
      - id: trace
        cypher: |
          MERGE (j:Journey {id: $chat}) SET j.trace = coalesce(j.trace, '') + $tool + ',', j.at = datetime()
        params: {tool: $event.tool_name, chat: $workflow.chat_id}
  - name: divide
    events: ["order.split"]
    mutations:
      - id: first
        cypher: "MERGE (c:Step {id: 'first'}) ON CREATE SET c.n = 1 ON MATCH SET c.n = c.n + 1"
      - id: fragile
        cypher: "MERGE (s:Share {id: $id}) SET s.part = 100 / $parts"
        params: {id: $event.id, parts: $event.parts}
      - id: last
        cypher: "MERGE (c:Step {id: 'last'}) ON CREATE SET c.n = 1 ON MATCH SET c.n = c.n + 1"
"""


@pytest.fixture(autouse=True)
async def _two_partitions(bus: Bus) -> None:
    """Make the bus before a client does, which would make 64: a busy machine takes seconds to open as many."""
    await bus.partitions.count()


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    folder = tmp_path / "Shop"
    folder.mkdir()
    (folder / "graph_injection.yaml").write_text(RULES)
    return load_rules(tmp_path)


@asynccontextmanager
async def running(
    bus: Bus, graph: Any, rules: RuleSet, name: str = "w", batch_events: int = 50
) -> AsyncIterator[MutationWorker]:
    async with working(MutationWorker(bus, graph, rules, name=name, batch_events=batch_events)) as worker:
        yield worker


def tool(name: str, chat: str = "c1", **more: Any) -> Event:
    return Event.create(
        "tool.call_complete", app_id=APP, chat_id=chat, workflow="Shop", data={"tool_name": name}, **more
    )


def split(parts: int, order: str, chat: str = "c1") -> Event:
    return Event.create(
        "order.split", app_id=APP, chat_id=chat, workflow="Shop", data={"parts": parts, "id": order}, id=order
    )


async def column(graph: FalkorDBStore, statement: str, app: str = APP) -> list[Any]:
    return [row[0] for row in (await graph.read(app, statement, {}, timeout_s=120)).rows]


async def test_events_take_effect_in_order(url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet) -> None:
    async with Client(url) as client:
        for number in range(60):
            assert await client.emit(tool(f"t{number}", chat=f"c{number % 3}"), wait_s=120)
    async with running(bus, graph, rules):
        await applied(bus)
    for chat in range(3):
        expected = ",".join(f"t{number}" for number in range(chat, 60, 3)) + ","
        assert await column(graph, f"MATCH (j:Journey {{id: 'c{chat}'}}) RETURN j.trace") == [expected]


async def test_rows_of_a_backlog_are_arranged_while_the_graph_applies_those_before(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of, ahead = applying.rows_of, asyncio.Event()
    sizes: list[int] = []

    def noted(events: Sequence[LoggedEvent]) -> Any:
        sizes.append(len(events))
        if len(sizes) == 2:
            ahead.set()
        return rows_of(events)

    class Waiting:
        def __getattr__(self, name: str) -> Any:
            return getattr(graph, name)

        async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
            async with asyncio.timeout(120):
                await ahead.wait()
            return await graph.apply(app_id, partition, writes)

    monkeypatch.setattr(applying, "rows_of", noted)
    timing = Timing(queues=QueueTiming(batch_s=60.0))  # nobody gives the second batch before the first is applied
    async with Client(url) as client:
        for number in range(200):
            assert await client.emit(tool(f"t{number}"), wait_s=120)
    async with working(MutationWorker(bus, Waiting(), rules, name="w", batch_events=100, timing=timing)):  # type: ignore[arg-type]
        await applied(bus)
    assert sizes == [100, 100]
    expected = ",".join(f"t{number}" for number in range(200)) + ","
    assert await column(graph, "MATCH (j:Journey {id: 'c1'}) RETURN j.trace") == [expected]


@pytest.mark.long(keep=("read", "graph"))
@pytest.mark.parametrize("where", ["claim", "read", "commit", "release", "graph"])
async def test_a_cancellation_by_a_driver_ends_no_partition(
    where: str, url: str, rules: RuleSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that ends by one that nobody asked for ends without a word, and its partition lies unread."""
    left = [asyncio.CancelledError() for _ in range(3)]
    owner, name = (FalkorDBStore, "apply") if where == "graph" else (RedisEventLog, where)
    plain = getattr(owner, name)

    async def cancelled(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise left.pop()
        return await plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, cancelled)
    async with (
        contextlib.aclosing(redis_bus(url)) as bus,
        contextlib.aclosing(FalkorDBStore(url)) as graph,
        Client(url) as client,
    ):
        for number in range(20):
            assert await client.emit(tool(f"t{number}", chat=f"c{number % 4}"), wait_s=120)
        async with running(bus, graph, rules):
            await applied(bus)
        async with running(bus, graph, rules, name="other"):  # nothing is held for ever
            for number in range(20):
                assert await client.emit(tool(f"s{number}", chat=f"c{number % 4}"), wait_s=120)
            await applied(bus)
        assert sum(await column(graph, "MATCH (j:Journey) RETURN size(split(j.trace, ',')) - 1")) == 40
    assert not left


async def test_datetime_is_the_time_of_the_event(url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet) -> None:
    event = tool("t")
    async with Client(url) as client, running(bus, graph, rules):
        await client.emit(event)
        await applied(bus)
    assert await column(graph, "MATCH (j:Journey) RETURN j.at") == [event.time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")]


async def test_the_second_copy_of_an_event_has_no_effect(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    events = [tool("t", id=f"e{number}") for number in range(20)]
    async with Client(url) as client:
        for event in [*events, *events]:
            await client.emit(event)
        async with running(bus, graph, rules):
            await applied(bus)
        # A new worker knows what an earlier one has seen.
        for event in events:
            await client.emit(event)
        async with running(bus, graph, rules):
            await applied(bus)
        await client.emit(tool("t", id="e0").model_copy(update={"appid": "other"}))
        async with running(bus, graph, rules):
            await applied(bus)
    assert await column(graph, "MATCH (t:Tool) RETURN t.calls") == [20]
    # Another tenant's event of the same name is another event.
    assert await column(graph, "MATCH (t:Tool) RETURN t.calls", "other") == [1]


def noise(number: int, type: str = "noise.made", **data: Any) -> Event:
    return Event.create(type, app_id="globex", chat_id="n", workflow="Shop", id=f"n{number}", data=data)


async def flood(url: str, bus: Bus, chat: str, events: Sequence[Event]) -> None:
    """Append events of another app to the partition of a chat of the app."""
    number = (await bus.partitions.layout()).partition_of(tool("t", chat).key)
    async with redis.Redis.from_url(url) as server:
        for some in batched(events, 1_000):
            pipeline = server.pipeline(transaction=False)
            for event in some:
                pipeline.xadd(channels.events_stream(number), wire.encode(event))  # type: ignore[arg-type]
            await pipeline.execute()


async def test_events_of_another_app_push_no_copy_out_of_the_window(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    async with Client(url) as client:
        async with running(bus, graph, rules, batch_events=1_000):
            await client.emit(tool("t", id="order"))
            await flood(url, bus, "c1", [noise(number) for number in range(WINDOW + 500)])
            await client.emit(tool("t", id="order"))
            await applied(bus)
            assert await column(graph, "MATCH (t:Tool) RETURN t.calls") == [1]
        await client.emit(tool("t", id="order"))
        async with running(bus, graph, rules):  # the note of the position says how far to read back
            await applied(bus)
    assert await column(graph, "MATCH (t:Tool) RETURN t.calls") == [1]


class Watching:
    """A graph store that counts the rows that each app had when an app got its first one."""

    def __init__(self, graph: FalkorDBStore) -> None:
        self._graph = graph
        self.rows: Counter[str] = Counter()
        self.before: dict[str, Counter[str]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def apply(self, app_id: str, partition: int, writes: list[Write]) -> WriteResult:
        self.before.setdefault(app_id, self.rows.copy())
        applied = await self._graph.apply(app_id, partition, writes)
        self.rows[app_id] += sum(len(write.rows) for write in writes[: applied.count])
        return applied


ORDER_RULES = """
mutation_rules:
- name: order
  events: [order.seen]
  mutations:
  - id: count
    cypher: |
      MERGE (s:Seen {k: 1}) SET s.gaps = coalesce(s.gaps, 0) + CASE WHEN coalesce(s.n, 0) = $n THEN 0 ELSE 1 END,
      s.n = coalesce(s.n, 0) + 1
    params: {n: $event.n}
"""
SEEN = "MATCH (s:Seen) RETURN [s.n, s.gaps]"


@pytest.mark.parametrize("heavy", [False, True])
async def test_an_event_behind_the_backlog_of_another_app_waits_for_a_batch_at_most(
    url: str, bus: Bus, graph: FalkorDBStore, tmp_path: Path, heavy: bool
) -> None:
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop/graph_injection.yaml").write_text(ORDER_RULES)
    rules = load_rules(tmp_path)
    # Either many events, or few large ones, whose cost counts: one of them is a batch.
    count, size = (12, 900_000) if heavy else (4_000, 1)
    watching = Watching(graph)
    async with Client(url) as client:
        await flood(url, bus, "c1", [noise(each, "order.seen", n=each, x="x" * size) for each in range(count)])
        await client.emit(tool("t").model_copy(update={"type": "order.seen", "data": {"n": 0}}))
        async with running(bus, watching, rules, batch_events=200):
            await applied(bus)
    assert await column(graph, SEEN) == [[1, 0]]
    assert await column(graph, SEEN, "globex") == [[count, 0]]  # in order
    # A neighbour waits for the batches that are in hand when its event is read.
    assert watching.before[APP]["globex"] <= (4 if heavy else 2 * 200)


class Gated:
    """A graph store in which one app's writes wait."""

    def __init__(self, graph: FalkorDBStore, app_id: str) -> None:
        self._graph = graph
        self._app_id = app_id
        self.gate = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def apply(self, app_id: str, partition: int, writes: list[Write]) -> WriteResult:
        if app_id == self._app_id:
            await self.gate.wait()
        return await self._graph.apply(app_id, partition, writes)


@pytest.mark.parametrize("killed", [False, True])
async def test_a_parked_app_misses_nothing_that_was_read_ahead_of_it(
    url: str, bus: Bus, graph: FalkorDBStore, tmp_path: Path, killed: bool
) -> None:
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop/graph_injection.yaml").write_text(ORDER_RULES)
    rules = load_rules(tmp_path)
    backlog = [noise(each, "order.seen", n=each) for each in range(2_000)]
    mine = [tool("t").model_copy(update={"type": "order.seen", "data": {"n": each}}) for each in range(400)]
    mixed = [*backlog[:1_200], *(each for pair in zip(mine, backlog[1_200:1_600], strict=True) for each in pair)]
    gated = Gated(graph, "globex")

    async def parked() -> bool:
        return await column(graph, SEEN) == [[400, 0]]

    with capture_logs() as logs:
        await flood(url, bus, "c1", mixed)
        worker = MutationWorker(bus, gated, rules, name="w", batch_events=100, lease_s=1.0)  # type: ignore[arg-type]
        task = asyncio.create_task(worker.run())
        await until(parked)
        if killed:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        gated.gate.set()
        await flood(url, bus, "c1", [*backlog[1_600:], *mine[:100], *backlog[:50]])  # new ones, and copies
        if not killed:
            await applied(bus)
            worker.stop()
            await task
        async with running(bus, graph, rules, name="other"):
            await applied(bus)
    assert "app_parked" in {log["event"] for log in logs}
    assert await column(graph, SEEN) == [[400, 0]]
    assert await column(graph, SEEN, "globex") == [[2_000, 0]]


class Breaking:
    """A graph store that fails once, after a write took effect, as a dying server or worker would: after a number of
    writes, or after the one that brings the graph to the last event. How many writes there are depends on its pace.
    """

    def __init__(self, graph: FalkorDBStore, after: int, last: str) -> None:
        self._graph = graph
        self._left = after
        self._last = last
        self.broke = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def apply(self, app_id: str, partition: int, writes: list[Write]) -> WriteResult:
        if self.broke.is_set():
            return await self._graph.apply(app_id, partition, writes)
        part = writes[: self._left]
        self._left -= len(part)
        applied = await self._graph.apply(app_id, partition, part)
        if self._left > 0 and part[-1].after.offset != self._last:
            return applied
        self.broke.set()
        # The reply is lost: the writes are done, but the worker is not told.
        raise GraphUnavailable("connection lost", retry_after_s=0.01)


@pytest.mark.long(keep=("1-50", "2-1", "7-1", "10-50"))
@pytest.mark.parametrize("batch_events", [1, 50])
@pytest.mark.parametrize("after", [1, 2, 3, 7, 10])
async def test_whatever_is_interrupted_goes_on_where_it_stood(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet, after: int, batch_events: int
) -> None:
    last = ""
    async with Client(url) as client:
        for number in range(10):
            last = await client.emit(tool(f"t{number}"), wait_s=120) or ""
    breaking = Breaking(graph, after, last.partition(":")[2])
    async with running(bus, breaking, rules, batch_events=batch_events):
        await applied(bus)
    assert breaking.broke.is_set()
    assert await column(graph, "MATCH (t:Tool) RETURN sum(t.calls)") == [10]
    expected = ",".join(f"t{number}" for number in range(10)) + ","
    assert await column(graph, "MATCH (j:Journey) RETURN j.trace") == [expected]


async def test_two_workers_at_once_double_nothing(url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet) -> None:
    async with Client(url) as client:
        for number in range(300):
            await client.emit(tool(f"t{number % 7}", chat=f"c{number % 5}"), wait_s=0)
        assert await client.flush(30)
        # The same name holds the same lease, so both read and write every partition at the same time.
        async with running(bus, graph, rules, "twin", 20), running(bus, graph, rules, "twin", 33):
            await applied(bus)
    assert await column(graph, "MATCH (t:Tool) RETURN sum(t.calls)") == [300]


async def test_a_second_worker_waits_for_the_lease(url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet) -> None:
    class Claims:
        """Leases that count the claims."""

        count = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(bus.leases, name)

        async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
            taken = await bus.leases.claim(partition, owner, ttl_s)
            self.count += 1
            return taken

    async def owners() -> set[str | None]:
        return {partition.owner for partition in await bus.partitions.status()}

    async with contextlib.aclosing(redis_bus(url)) as other:
        count = await other.partitions.count()
        assert all([await other.leases.claim(partition, "one", 60.0) for partition in range(count)])
        claims = Claims()
        worker = MutationWorker(replace(bus, leases=claims), graph, rules, name="two", lease_s=0.4)
        async with working(worker):
            await until(lambda: claims.count, lambda found: found >= 3 * count, why="the worker asks again and again")
            assert await owners() == {"one"}
            for partition in range(count):
                await other.leases.release(partition, "one")
            await until(owners, lambda found: found == {"two"}, why="the worker takes what is free")
    assert await owners() == {None}


async def test_a_mutation_that_fails_is_buried_and_hurts_no_other(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    async with Client(url) as client:
        for number, parts in enumerate([2, 0, 4, 0, 5]):
            await client.emit(split(parts, f"o{number}"))
        async with running(bus, graph, rules):
            await applied(bus)
    assert sorted(await column(graph, "MATCH (s:Share) RETURN s.id")) == ["o0", "o2", "o4"]
    assert await column(graph, "MATCH (c:Step) RETURN c.n") == [5, 5]
    letters = await bus.dead_letters.read(limit=10)
    assert [letter.event_id for letter in letters] == ["o1", "o3"]
    first = letters[0]
    assert (first.reason, first.rule, first.mutation, first.app_id) == ("query_error", "divide", "fragile", APP)
    assert first.place is not None
    assert first.place.endswith(":20:9")
    assert "Division by zero" in first.message
    assert wire.decode(wire.unpack(first.fields)).id == "o1"


async def test_a_retry_runs_only_what_failed_and_once(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet, tmp_path: Path
) -> None:
    async with Client(url) as client:
        await client.emit(split(0, "o1"))
        async with running(bus, graph, rules):
            await applied(bus)
    [letter] = await bus.dead_letters.read(limit=10)
    file = tmp_path / "Shop" / "graph_injection.yaml"
    file.write_text(RULES.replace("100 / $parts", "100 / (CASE WHEN $parts = 0 THEN 1 ELSE $parts END)"))
    assert await retry(bus, letter)
    assert not (await retry(bus, letter)).events
    async with running(bus, graph, load_rules(tmp_path)):
        await applied(bus)
    assert await column(graph, "MATCH (s:Share) RETURN s.part") == [100]
    assert await column(graph, "MATCH (c:Step) RETURN c.n") == [1, 1]
    assert await letter_count(bus.dead_letters) == 0


async def test_a_retry_that_fails_again_is_buried_again(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    async with Client(url) as client:
        await client.emit(split(0, "o1"))
        async with running(bus, graph, rules):
            await applied(bus)
            [letter] = await bus.dead_letters.read(limit=10)
            await retry(bus, letter)
            await applied(bus)
    [again] = await bus.dead_letters.read(limit=10)
    assert again.id != letter.id
    assert (again.rule, again.mutation, again.event_id) == ("divide", "fragile", "o1")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({b"data": b"{not json", b"content-type": wire.STRUCTURED}, "cannot be decoded"),
        ({b"data": b"\xff\xfe", b"content-type": wire.STRUCTURED}, "cannot be decoded"),
        ({b"hello": b"world"}, "no field 'data'"),
        ({b"data": b"{}", b"content-type": wire.STRUCTURED}, "appid: Field required"),
        ({b"data": b"[1]", b"content-type": wire.STRUCTURED}, "not a JSON object"),
        ({b"data": b"{}"}, "neither structured mode"),
    ],
)
async def test_a_broken_entry_is_buried_with_its_bytes(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet, fields: dict[bytes, bytes], expected: str
) -> None:
    await bus.partitions.count()
    async with redis.Redis.from_url(url) as raw:
        partition = channels.partition_of(f"{APP}/c1", 2)
        await raw.xadd(channels.events_stream(partition), fields)
    async with Client(url) as client, running(bus, graph, rules):
        await client.emit(tool("after"))
        await applied(bus)
    [letter] = await bus.dead_letters.read(limit=10)
    assert letter.reason == "invalid_event"
    assert expected in letter.message
    kept = wire.unpack(letter.fields)
    assert kept.pop(wire.RECORDED)  # when the log took it
    assert kept == fields
    assert await column(graph, "MATCH (t:Tool) RETURN t.name") == ["after"]


async def test_a_message_with_an_unknown_field_is_a_dead_letter_that_names_it(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    await bus.partitions.count()
    async with redis.Redis.from_url(url) as raw:
        for app in ("shop", "shop2"):
            for number, more in enumerate(({"mood": {"now": "secret"}}, {}, {"secret words": 1})):
                message = {"role": "user", "text": f"secret {number}", **more}
                event = {
                    "specversion": "1.0", "id": f"e{number}", "source": "/t", "type": "memory.add", "appid": app,
                    "chatid": "c", "data": {"user_id": "ada", "messages": [message]},
                }  # fmt: skip
                fields: Any = {wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: json.dumps(event).encode()}
                await raw.xadd(channels.events_stream(channels.partition_of(f"{app}/c", 2)), fields)
    async with running(bus, graph, rules):
        await applied(bus)
    letters = await bus.dead_letters.read(limit=10)
    assert [letter.reason for letter in letters] == ["invalid_event"] * 4
    kept = "a message has role, text, time, message_id, author_name, tags, metadata"
    for said in ("messages.0: unknown field 'mood': ", "messages.0: an unknown field: "):
        assert len([letter for letter in letters if letter.message.startswith(said + kept)]) == 2
    assert "secret" not in str([letter.message for letter in letters])
    for app in ("shop", "shop2"):
        assert await column(graph, "MATCH (m:Memory) RETURN m.text", app) == ["secret 1"]


async def test_an_app_id_that_names_another_tenants_graph_is_refused(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    body = json.loads(wire.encode(tool("t"))[wire.DATA])
    body["appid"] = "../other"
    async with redis.Redis.from_url(url) as raw:
        await bus.partitions.count()
        await raw.xadd(
            channels.events_stream(0), {b"content-type": wire.STRUCTURED, b"data": json.dumps(body).encode()}
        )
    async with running(bus, graph, rules):
        await applied(bus)
    [letter] = await bus.dead_letters.read(limit=10)
    assert "appid" in letter.message


async def test_a_missing_parameter_skips_that_mutation_and_warns_once(
    url: str, bus: Bus, graph: FalkorDBStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "Shop"
    folder.mkdir()
    (folder / "graph_injection.yaml").write_text(RULES.replace("$event.tool_name, chat", "$context.absent, chat"))
    async with Client(url) as client, running(bus, graph, load_rules(tmp_path)):
        for number in range(3):
            await client.emit(tool(f"t{number}"))
        await applied(bus)
    assert await column(graph, "MATCH (t:Tool) RETURN count(t)") == [3]
    assert await column(graph, "MATCH (j:Journey) RETURN count(j)") == [0]
    [letter] = await bus.dead_letters.read(limit=10)
    assert (letter.reason, letter.rule, letter.mutation, letter.count) == ("skipped", "count_tools", "trace", 3)


async def test_positions_are_seen_by_redis_itself(url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet) -> None:
    async with Client(url) as client:
        position = await client.emit(tool("t"), wait_s=120)
        assert position is not None
        partition = int(position.partition(":")[0])
        await bus.partitions.committed(partition)
        before = (await bus.partitions.status())[partition]
        assert (before.lag, before.position) == (1, "")
        async with running(bus, graph, rules):
            await applied(bus)
    after = (await bus.partitions.status())[partition]
    assert f"{partition}:{after.position}" == position
    assert after.end == after.position


@pytest.mark.parametrize("retry", [b"x", b"\xff\xfe", b'["a", "b"]', b'["a", "b", 1]'])
async def test_a_foreign_retry_field_is_buried_and_stops_nothing(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet, retry: bytes
) -> None:
    fields = {**wire.encode(tool("odd")), wire.RETRY: retry}
    async with redis.Redis.from_url(url) as raw:
        await bus.partitions.count()
        await raw.xadd(channels.events_stream(channels.partition_of(f"{APP}/c1", 2)), fields)  # type: ignore[arg-type]
    async with Client(url) as client, running(bus, graph, rules):
        await client.emit(tool("after"))
        await applied(bus)
    [letter] = await bus.dead_letters.read(limit=10)
    assert letter.reason == "invalid_event"
    kept = wire.unpack(letter.fields)
    assert kept.pop(wire.RECORDED)  # when the log took it
    assert kept == fields
    assert await column(graph, "MATCH (t:Tool) RETURN t.name") == ["after"]
    async with running(bus, graph, rules):  # and a worker that reads the window back gets past it
        await applied(bus)


async def test_rules_that_change_within_an_event_touch_that_event_only(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet, tmp_path: Path
) -> None:
    class Killed(BaseException):
        pass

    class Half:
        def __getattr__(self, name: str) -> Any:
            return getattr(graph, name)

        async def apply(self, app_id: str, partition: int, writes: list[Write]) -> WriteResult:
            await graph.apply(app_id, partition, writes[:1])
            raise Killed

    async with Client(url) as client:
        await client.emit(Event.create("order.seen", app_id=APP, chat_id="c1", workflow="Shop"))  # no rule is about it
        await client.emit(split(1, "o1"))
    with pytest.raises(BaseExceptionGroup):
        await MutationWorker(bus, Half(), rules, name="w").run()  # type: ignore[arg-type]
    more = """  - name: late
    events: ["order.seen"]
    mutations:
      - {id: late, cypher: "MERGE (:Late {id: 1})"}
"""
    (tmp_path / "Shop" / "graph_injection.yaml").write_text(RULES + more)
    async with running(bus, graph, load_rules(tmp_path)):
        await applied(bus)
    assert await column(graph, "MATCH (c:Step) RETURN c.n") == [1, 1]


async def test_an_app_whose_graph_is_none_does_not_hold_up_the_others(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    chat = next(f"c{n}" for n in range(99) if channels.partition_of(f"bad/c{n}", 2) == channels.partition_of(APP, 2))
    near = next(f"c{n}" for n in range(99) if channels.partition_of(f"{APP}/c{n}", 2) == channels.partition_of(APP, 2))
    async with redis.Redis.from_url(url) as raw:
        await raw.set(channels.graph_name("bad"), 1)
        await bus.partitions.count()
        async with Client(url) as client:
            await client.emit(tool("t", chat=chat).model_copy(update={"appid": "bad"}))
            await client.emit(tool("t", chat=near))
            async with running(bus, graph, rules, batch_events=1):
                await applied(bus)
                assert await column(graph, "MATCH (t:Tool) RETURN t.calls") == [1]
                # It may also happen under a running worker.
                await raw.delete(channels.graph_name(APP))
                await raw.set(channels.graph_name(APP), 1)
                await client.emit(tool("u", chat=near))
                await client.emit(tool("u", chat=chat).model_copy(update={"appid": "third"}))
                await applied(bus)
    letters = await bus.dead_letters.read(limit=10)
    assert {(letter.app_id, letter.mutation) for letter in letters} == {
        ("bad", "tool"), ("bad", "trace"), (APP, "tool"), (APP, "trace"),
    }  # fmt: skip
    assert await column(graph, "MATCH (t:Tool) RETURN t.name", "third") == ["u"]


async def test_a_server_that_takes_no_writes_is_waited_out(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet, tmp_path: Path
) -> None:
    other = EmbeddedServer(tmp_path / "graph")
    await other.start()
    raw = redis.Redis.from_url(f"unix://{other.socket}")
    store = FalkorDBStore(f"unix://{other.socket}")
    try:
        with capture_logs() as logs:
            async with Client(url) as client, running(bus, store, rules) as worker:  # type: ignore[arg-type]
                await client.emit(tool("t"))
                await applied(bus)
                await raw.config_set("min-replicas-to-write", 1)  # answers NOREPLICAS, as a full disk answers MISCONF
                await client.emit(tool("t"))
                await until(lambda: [each for each in logs if "NOREPLICAS" in str(each)])
                assert await letter_count(bus.dead_letters) == 0
                await raw.config_set("min-replicas-to-write", 0)
                await applied(bus)
                assert worker
        assert (await store.read(APP, "MATCH (t:Tool) RETURN t.calls", {}, timeout_s=120)).rows == ((2,),)
    finally:
        await store.aclose()
        await raw.aclose()
        await other.stop()


async def test_a_graph_that_was_deleted_gets_its_indexes_again(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    async with redis.Redis.from_url(url) as raw, Client(url) as client, running(bus, graph, rules):
        await client.emit(tool("t"))
        await applied(bus)
        before = await column(graph, "CALL db.indexes() YIELD label RETURN label ORDER BY label")
        await raw.execute_command("GRAPH.DELETE", channels.graph_name(APP))  # type: ignore[no-untyped-call]
        await client.emit(tool("t"))
        await applied(bus)
    assert before
    assert await column(graph, "CALL db.indexes() YIELD label RETURN label ORDER BY label") == before


async def test_slow_queries_of_some_chats_do_not_time_out_quick_ones_of_others(
    url: str, graph: FalkorDBStore, tmp_path: Path
) -> None:
    folder = tmp_path / "Shop"
    folder.mkdir()
    slow = "MERGE (s:Slow {id: 1}) WITH s UNWIND range(0, $n) AS a UNWIND range(0, 1000) AS b WITH s, max(a * b) AS m "
    (folder / "graph_injection.yaml").write_text(
        RULES + "  - name: slow\n    events: ['order.slow']\n    mutations:\n"
        f"      - {{id: slow, cypher: '{slow} SET s.m = m, s.n = coalesce(s.n, 0) + 1', params: {{n: $event.n}}}}\n"
    )
    began = asyncio.get_running_loop().time()
    measured = "UNWIND range(0, 500) AS a UNWIND range(0, 1000) AS b RETURN max(a * b)"
    await graph._graph("measured").query(measured)
    size = int(500 * 0.3 / (asyncio.get_running_loop().time() - began))  # 0.3 s of 0.5 s that a query may take
    async with contextlib.aclosing(redis_bus(url, new=spread(4))) as bus:
        await bus.partitions.count()
        chats = {channels.partition_of(f"{APP}/c{number}", 4): f"c{number}" for number in range(100)}
        async with Client(url) as client:
            for _ in range(6):
                for partition in range(3):
                    event = Event.create(
                        "order.slow", app_id=APP, chat_id=chats[partition], workflow="Shop", data={"n": size}
                    )
                    await client.emit(event)
            for _ in range(20):
                await client.emit(tool("t", chat=chats[3]))
            never = replace(TIMING, writes=WriteTiming(again_s=0.0, rest=0.0, long_rest=0.0))
            async with (
                contextlib.aclosing(FalkorDBStore(url, write_timeout_ms=500)) as hasty,
                working(MutationWorker(bus, hasty, load_rules(tmp_path), name="w", batch_events=50, timing=never)),
            ):

                async def idle() -> bool:
                    return sum(partition.lag for partition in await bus.partitions.status()) == 0

                await until(idle)
        letters = await bus.dead_letters.read(limit=100)
    assert [letter.mutation for letter in letters if letter.mutation != "slow"] == []
    assert await column(graph, "MATCH (t:Tool) RETURN t.calls") == [20]


async def test_a_worker_that_starts_reads_the_window_back_in_pages(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    events = [tool("t", id=f"e{number}") for number in range(250)]
    async with Client(url) as client:
        for event in events:
            await client.emit(event, wait_s=0)
        assert await client.flush(30)
        async with running(bus, graph, rules):
            await applied(bus)
        for event in events:
            await client.emit(event, wait_s=0)
        assert await client.flush(30)

    class Counting:
        largest = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(bus.log, name)

        async def before(self, partition: int, offset: str, *, limit: int) -> Any:
            page = await bus.log.before(partition, offset, limit=limit)
            self.largest = max(self.largest, len(page))
            return page

    counting = Counting()
    async with running(replace(bus, log=counting), graph, rules):
        await applied(bus)
    assert 0 < counting.largest <= 500
    assert await column(graph, "MATCH (t:Tool) RETURN t.calls") == [250]


async def rules_of(folder: Path, *mutations: tuple[str, str]) -> RuleSet:
    lines = ["mutation_rules:"]
    for number, (event, cypher) in enumerate(mutations):
        lines += [f"- name: rule{number}", f"  events: [{event}]", "  mutations:"]
        names = [name for name in ("id", "n") if f"${name}" in cypher]
        params = ", ".join(f"{name}: $event.{name}" for name in names)
        lines += [f"  - {{id: m, cypher: {json.dumps(cypher)}, params: {{{params}}}}}"]
    (folder / "Shop").mkdir(exist_ok=True)
    (folder / "Shop/graph_injection.yaml").write_text("\n".join(lines))
    return load_rules(folder)


def plain(kind: str) -> Event:
    return Event.create(kind, app_id=APP, chat_id="c1", workflow="Shop")


async def test_a_mutation_may_begin_with_with(url: str, bus: Bus, graph: FalkorDBStore, tmp_path: Path) -> None:
    rules = await rules_of(
        tmp_path, ("a.b", "WITH 1 AS k MERGE (n:N {id: k})"), ("a.b", "with count(*) AS c CREATE (:M {c: c})")
    )
    async with Client(url) as client:
        await client.emit(plain("a.b"))
    async with running(bus, graph, rules):
        await applied(bus)
    assert await bus.dead_letters.read(limit=10) == []
    assert await column(graph, "MATCH (n:N) RETURN n.id") == [1]
    assert await column(graph, "MATCH (n:M) RETURN n.c") == [1]


async def test_a_limit_above_the_servers_is_lowered(url: str, bus: Bus, rules: RuleSet) -> None:
    graph = FalkorDBStore(url, write_timeout_ms=600_000)
    try:
        async with Client(url) as client:
            await client.emit(tool("a"))
        async with running(bus, graph, rules):
            await applied(bus)
        assert await bus.dead_letters.read(limit=10) == []
        assert (await graph.read(APP, "MATCH (t:Tool) RETURN t.calls", {}, timeout_s=600)).rows == ((1,),)
    finally:
        await graph.aclose()


async def test_a_late_commit_does_not_set_the_position_back(url: str, bus: Bus) -> None:
    async with Client(url) as client:
        for number in range(3):
            await client.emit(tool(f"t{number}"))
    partition = next(part.id for part in await bus.partitions.status() if part.end)
    await bus.partitions.committed(partition)
    offsets = [
        entry.offset for entry in (await bus.log.read(partition, CommittedPosition(), limit=10, wait_s=0)).entries
    ]
    await bus.partitions.commit(partition, CommittedPosition(offset=offsets[2], count=3))
    await bus.partitions.commit(partition, CommittedPosition(offset=offsets[0], count=1))
    assert await bus.partitions.committed(partition) == CommittedPosition(offset=offsets[2], count=3)


class SlowDisk:
    """The real graph, whose disk takes until ``written`` is set."""

    def __init__(self, graph: FalkorDBStore) -> None:
        self._graph = graph
        self.asked = asyncio.Event()
        self.written = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def durable(self, run: str, move: PositionMove | None = None) -> None:
        if move is None or move.before is not None:  # the first one of a partition says where reading begins
            self.asked.set()
            await self.written.wait()
        await self._graph.durable(run, move)


async def test_nothing_is_committed_before_the_graph_has_it_on_disk(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    slow = SlowDisk(graph)
    async with Client(url) as client, running(bus, slow, rules) as worker:
        for number in range(20):
            await client.emit(tool(f"t{number}"))

        async def are_counted() -> bool:
            return worker.applied_events == 20  # applying waits for no disk

        await until(are_counted)
        await slow.asked.wait()
        assert sum(partition.lag for partition in await bus.partitions.status()) == 20
        slow.written.set()
        await applied(bus)


class TwoEntries:
    """The real log, whose reads never end behind the second entry of a partition."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def read(self, partition: int, after: CommittedPosition, *, limit: int, wait_s: float | None = None) -> Batch:
        if self._read >= 2:
            await asyncio.Event().wait()
        batch = await self._log.read(partition, after, limit=limit, wait_s=wait_s)
        self._read += len(batch.entries)
        return batch


async def test_what_took_effect_beside_a_commit_is_committed_without_a_further_event(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    slow = SlowDisk(graph)
    held = replace(bus, log=cast(EventLog, TwoEntries(bus.log)))
    async with Client(url) as client, running(held, slow, rules):
        await client.emit(tool("first"))
        await slow.asked.wait()
        await client.emit(tool("second"))

        async def is_applied() -> bool:
            return bool((await graph.read(APP, "MATCH (t:Tool {name: 'second'}) RETURN t", {}, timeout_s=600)).rows)

        await until(is_applied)
        slow.written.set()
        await applied(bus)


@pytest.mark.parametrize("batch_events", [1, 100])
@pytest.mark.parametrize("end", ["DETACH DELETE n", "SET n.done = 'yes'"], ids=["deleted", "overwritten"])
async def test_a_rule_that_takes_the_mark_away_stops_nobody(
    url: str,
    bus: Bus,
    graph: FalkorDBStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
    batch_events: int,
) -> None:
    monkeypatch.setattr("graphweft_rules.cypher.problems.bare_nodes", lambda _: ())  # which would refuse the rule
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop/graph_injection.yaml").write_text(f"""
mutation_rules:
  - name: count
    events: ["a.count"]
    mutations:
      - {{id: m, cypher: "MERGE (n:N {{id: 1}}) SET n.c = coalesce(n.c, 0) + 1"}}
  - name: take
    events: ["a.take"]
    mutations:
      - {{id: m, cypher: "OPTIONAL MATCH (x:X {{n: 1}}) WITH 1 AS one MATCH (n) WHERE NOT n:N {end}"}}
""")
    rules = load_rules(tmp_path)
    async with Client(url) as client, running(bus, graph, rules, batch_events=batch_events):
        for kind in ("a.count", "a.take", "a.count", "a.count", "a.take", "a.count"):
            await client.emit(Event.create(kind, app_id=APP, chat_id="c1", workflow="Shop"))
        await applied(bus)
    assert await bus.dead_letters.read(limit=10) == []
    assert await column(graph, "MATCH (n:N) RETURN n.c") == [4]


class Counting:
    """The real graph; counts the queries that it was handed."""

    def __init__(self, graph: FalkorDBStore) -> None:
        self._graph = graph
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        self.sent += len(writes)
        return await self._graph.apply(app_id, partition, writes)


async def test_a_rule_that_always_fails_is_put_in_quarantine_and_comes_back_whole(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet, tmp_path: Path
) -> None:
    counting = Counting(graph)
    layout = await bus.partitions.layout()
    chats = [chat for chat in (f"c{number}" for number in range(100)) if not layout.partition_of(f"{APP}/{chat}")][:5]
    async with Client(url, app_id=APP) as client:
        with capture_logs() as logs:
            for number in range(60):
                assert await client.emit(split(0, f"o{number}", chats[number % 5]), wait_s=120)
            async with running(bus, counting, rules, batch_events=200):
                await applied(bus)
                for number in range(60, 120):
                    assert await client.emit(split(0, f"o{number}", chats[number % 5]), wait_s=120)
                await client.emit(split(0, "o119", chats[119 % 5]))  # a copy
                await client.emit(tool("t"))  # of another rule
                await applied(bus)
    assert await column(graph, "MATCH (c:Step) RETURN c.n ORDER BY c.id") == [120, 120]
    letters = await bus.dead_letters.read(limit=1_000)
    assert [letter.reason for letter in letters] == ["query_error"] * FAILURES_TO_QUARANTINE + ["quarantined"]
    whole = letters[-1]
    assert (whole.rule, whole.mutation, whole.count) == ("divide", "fragile", 120 - FAILURES_TO_QUARANTINE)
    assert counting.sent < 360
    [said] = [log for log in logs if log["event"] == "mutation_quarantined"]
    assert (said["log_level"], said["rule"]) == ("error", "divide")

    file = tmp_path / "Shop" / "graph_injection.yaml"
    file.write_text(RULES.replace("100 / $parts", "100 / (CASE WHEN $parts = 0 THEN 1 ELSE $parts END)"))
    assert sum([(await retry(bus, letter)).events for letter in letters]) == 120
    assert not (await retry(bus, whole)).events
    async with running(bus, graph, load_rules(tmp_path)):
        await applied(bus)
    expected = [(f"o{number}", 1) for number in range(120)]
    found = await graph.read(APP, "MATCH (s:Share) RETURN s.id, count(s) AS n", {}, timeout_s=120)
    assert sorted(found.rows) == sorted(expected)
    assert await column(graph, "MATCH (c:Step) RETURN c.n ORDER BY c.id") == [120, 120]
    assert await letter_count(bus.dead_letters) == 0


async def test_failures_of_few_chats_put_nothing_in_quarantine(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    failing = 2 * FAILURES_TO_QUARANTINE
    async with Client(url, app_id=APP) as client:
        for number in range(failing):
            assert await client.emit(split(0, f"o{number}", f"c{number % (USERS_TO_QUARANTINE - 1)}"), wait_s=120)
        assert await client.emit(split(4, "good", "c9"), wait_s=120)
    async with running(bus, graph, rules, batch_events=200):
        await applied(bus)
    letters = await bus.dead_letters.read(limit=1_000)
    assert [letter.reason for letter in letters] == ["query_error"] * failing
    assert await column(graph, "MATCH (s:Share) RETURN s.id") == ["good"]


async def test_a_rule_that_fails_now_and_then_is_not_put_in_quarantine(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    async with Client(url, app_id=APP) as client:
        for number in range(4 * FAILURES_TO_QUARANTINE):
            assert await client.emit(split(number % 4 // 3, f"o{number}"), wait_s=120)
    with capture_logs() as logs:
        async with running(bus, graph, rules, batch_events=200):
            await applied(bus)
    letters = await bus.dead_letters.read(limit=1_000)
    assert [letter.reason for letter in letters] == ["query_error"] * (3 * FAILURES_TO_QUARANTINE)
    assert len(await column(graph, "MATCH (s:Share) RETURN s.id")) == FAILURES_TO_QUARANTINE
    buried = [log for log in logs if log["event"] == "mutation_buried" and log["log_level"] == "error"]
    assert [log["times"] for log in buried] == [1, 10]


@pytest.mark.parametrize("trimmed", [False, True])
async def test_the_letters_of_one_event_keep_it_once_and_are_all_retried(
    url: str, bus: Bus, graph: FalkorDBStore, tmp_path: Path, trimmed: bool
) -> None:
    bad = "MERGE (s:Share {id: $id}) SET s.part = 100 / $n"
    rules = await rules_of(tmp_path, *((("order.split", bad.replace("Share", f"Share{n}"))) for n in range(4)))
    event = split(0, "o1").model_copy(update={"data": {"id": "o1", "n": 0, "x": "secret" * 1_000}})
    async with Client(url) as client:
        await client.emit(event)
    async with running(bus, graph, rules):
        await applied(bus)
    letters = await bus.dead_letters.read(limit=10)
    assert [(letter.rule, letter.count) for letter in letters] == [(f"rule{n}", 1) for n in range(4)]
    assert [bool(letter.fields) for letter in letters] == [True, False, False, False]
    assert [await payload_of(bus, letter) == letters[0].fields for letter in letters] == [True] * 4
    if trimmed:
        await bus.partitions.trim(letters[0].partition, letters[0].offset)
        assert [await payload_of(bus, letter) == letters[0].fields for letter in letters] == [True] * 4
    good = await rules_of(tmp_path, *((("order.split", f"MERGE (s:Share{n} {{id: 1}})")) for n in range(4)))
    for letter in reversed(letters):
        assert (await retry(bus, letter)).events == 1
        assert not (await retry(bus, letter)).events
    async with running(bus, graph, good):
        await applied(bus)
    assert await letter_count(bus.dead_letters) == 0
    assert await column(graph, "MATCH (s) WHERE NOT s:__Progress RETURN count(s)") == [4]


@pytest.mark.parametrize("stop", ["left out, not told", "told"])
async def test_a_worker_that_dies_while_it_leaves_a_row_out_loses_and_doubles_nothing(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet, tmp_path: Path, stop: str
) -> None:
    class Dying(LettersAround):
        broke = False

        @override
        async def put(self, letters: Sequence[DeadLetter]) -> None:
            if stop == "told" or self.broke:
                await super().put(letters)
            if not self.broke:
                self.broke = True
                raise BusUnavailable("the bus went away", retry_after_s=0.01)

    async with Client(url) as client:
        for parts in (2, 0, 5):
            await client.emit(split(parts, f"o{parts}"))
    dying = Dying(bus.dead_letters)
    mended = RULES.replace("100 / $parts", "100 / (CASE WHEN $parts = 0 THEN 1 ELSE $parts END)")
    first = MutationWorker(replace(bus, dead_letters=dying), graph, rules, name="w")
    running_first = asyncio.create_task(first.run())

    async def broke() -> bool:
        return dying.broke

    await until(broke)
    running_first.cancel()
    await asyncio.gather(running_first, return_exceptions=True)
    # Whoever goes on has other rules, by which the row would not fail. It has been given up, and stays so.
    (tmp_path / "Shop" / "graph_injection.yaml").write_text(mended)
    async with running(bus, graph, load_rules(tmp_path)):
        await applied(bus)
    assert sorted(await column(graph, "MATCH (s:Share) RETURN s.id")) == ["o2", "o5"]
    [letter] = await bus.dead_letters.read(limit=10)
    assert letter.event_id == "o0"
    assert (await retry(bus, letter)).events == 1
    async with running(bus, graph, load_rules(tmp_path)):
        await applied(bus)
    assert sorted(await column(graph, "MATCH (s:Share) RETURN s.id")) == ["o0", "o2", "o5"]
    assert await column(graph, "MATCH (c:Step) RETURN c.n ORDER BY c.id") == [3, 3]
