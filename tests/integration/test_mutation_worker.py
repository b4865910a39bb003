"""The mutation worker against the real server: order, exactly once, isolation, dead letters, outages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis

from graphweft import Client, Event
from graphweft_contracts import GraphUnavailable, channels, wire
from graphweft_rules import Ruleset
from graphweft_workers.bus.redis_streams import RedisStreamsBus
from graphweft_workers.graph.falkordb import FalkorDBStore
from graphweft_workers.graph.store import Applied, Write
from graphweft_workers.mutation.duplicates import RecentEvents
from graphweft_workers.mutation.worker import MutationWorker

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


@pytest.fixture
def rules(tmp_path: Path) -> Ruleset:
    folder = tmp_path / "Shop"
    folder.mkdir()
    (folder / "graph_injection.yaml").write_text(RULES)
    return Ruleset.load(tmp_path)


@asynccontextmanager
async def running(
    bus: RedisStreamsBus, graph: Any, rules: Ruleset, name: str = "w", batch_events: int = 50
) -> AsyncIterator[MutationWorker]:
    worker = MutationWorker(bus, graph, rules, name=name, batch_events=batch_events)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


async def eventually(condition: Callable[[], Awaitable[bool]], timeout_s: float = 15.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - the server does not tell
            await asyncio.sleep(0.02)


async def caught_up(bus: RedisStreamsBus) -> None:
    async def idle() -> bool:
        return sum(partition.lag for partition in await bus.status()) == 0

    await eventually(idle)


def tool(name: str, chat: str = "c1", **more: Any) -> Event:
    return Event.create(
        "tool.call_complete", app_id=APP, chat_id=chat, workflow="Shop", data={"tool_name": name}, **more
    )


def split(parts: int, order: str) -> Event:
    return Event.create(
        "order.split", app_id=APP, chat_id="c1", workflow="Shop", data={"parts": parts, "id": order}, id=order
    )


async def column(graph: FalkorDBStore, statement: str, app: str = APP) -> list[Any]:
    return [row[0] for row in (await graph.read(app, statement, {}, timeout_s=5)).rows]


async def test_events_take_effect_in_order(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, rules: Ruleset
) -> None:
    async with Client(url) as client:
        for number in range(60):
            assert await client.emit(tool(f"t{number}", chat=f"c{number % 3}"))
    async with running(bus, graph, rules):
        await caught_up(bus)
    for chat in range(3):
        expected = ",".join(f"t{number}" for number in range(chat, 60, 3)) + ","
        assert await column(graph, f"MATCH (j:Journey {{id: 'c{chat}'}}) RETURN j.trace") == [expected]


async def test_datetime_is_the_time_of_the_event(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, rules: Ruleset
) -> None:
    event = tool("t")
    async with Client(url) as client, running(bus, graph, rules):
        await client.emit(event)
        await caught_up(bus)
    assert await column(graph, "MATCH (j:Journey) RETURN j.at") == [event.time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")]


async def test_the_second_copy_of_an_event_has_no_effect(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, rules: Ruleset
) -> None:
    events = [tool("t", id=f"e{number}") for number in range(20)]
    async with Client(url) as client:
        for event in [*events, *events]:
            await client.emit(event)
        async with running(bus, graph, rules):
            await caught_up(bus)
        # A new worker knows what an earlier one has seen.
        for event in events:
            await client.emit(event)
        async with running(bus, graph, rules):
            await caught_up(bus)
        await client.emit(tool("t", id="e0").model_copy(update={"appid": "other"}))
        async with running(bus, graph, rules):
            await caught_up(bus)
    assert await column(graph, "MATCH (t:Tool) RETURN t.calls") == [20]
    # Another tenant's event of the same name is another event.
    assert await column(graph, "MATCH (t:Tool) RETURN t.calls", "other") == [1]


def test_the_window_of_copies_is_counted_in_entries() -> None:
    recent = RecentEvents(window=3)
    seen = [recent.is_copy(name and (name,)) for name in ["a", "b", None, "a", "c", "d", "a", "e", "f", "g", "a"]]
    assert seen == [False, False, False, True, False, False, True, False, False, False, False]


class Breaking:
    """A graph store that fails after a number of writes took effect, as a dying server or worker would."""

    def __init__(self, graph: FalkorDBStore, after: int, *, effect: bool) -> None:
        self._graph = graph
        self._left = after
        self._effect = effect
        self.broke = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def apply(self, app_id: str, partition: int, writes: list[Write]) -> Applied:
        if self._left <= 0:
            return await self._graph.apply(app_id, partition, writes)
        part = writes[: self._left]
        self._left -= len(part)
        applied = await self._graph.apply(app_id, partition, part)
        if self._left > 0:
            return applied
        self.broke.set()
        # The reply is lost: the writes are done, but the worker is not told.
        raise GraphUnavailable("connection lost", retry_after_s=0.01)


@pytest.mark.parametrize("after", [1, 2, 3, 7, 10])
async def test_whatever_is_interrupted_goes_on_where_it_stood(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, rules: Ruleset, after: int
) -> None:
    async with Client(url) as client:
        for number in range(10):
            await client.emit(tool(f"t{number}"))
    breaking = Breaking(graph, after, effect=True)
    async with running(bus, breaking, rules):
        await caught_up(bus)
    assert breaking.broke.is_set()
    assert await column(graph, "MATCH (t:Tool) RETURN sum(t.calls)") == [10]
    expected = ",".join(f"t{number}" for number in range(10)) + ","
    assert await column(graph, "MATCH (j:Journey) RETURN j.trace") == [expected]


async def test_two_workers_at_once_double_nothing(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, rules: Ruleset
) -> None:
    async with Client(url) as client:
        for number in range(300):
            await client.emit(tool(f"t{number % 7}", chat=f"c{number % 5}"), wait_s=0)
        assert await client.flush()
        # The same name holds the same lease, so both read and write every partition at the same time.
        async with running(bus, graph, rules, "twin", 20), running(bus, graph, rules, "twin", 33):
            await caught_up(bus)
    assert await column(graph, "MATCH (t:Tool) RETURN sum(t.calls)") == [300]


async def test_a_second_worker_waits_for_the_lease(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, rules: Ruleset
) -> None:
    async with running(bus, graph, rules, "one"):

        async def owned() -> bool:
            return {partition.owner for partition in await bus.status()} == {"one"}

        await eventually(owned)
        async with running(bus, graph, rules, "two"):
            await asyncio.sleep(0.2)
            assert await owned()
    assert {partition.owner for partition in await bus.status()} == {None}


async def test_a_mutation_that_fails_is_buried_and_hurts_no_other(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, rules: Ruleset
) -> None:
    async with Client(url) as client:
        for number, parts in enumerate([2, 0, 4, 0, 5]):
            await client.emit(split(parts, f"o{number}"))
        async with running(bus, graph, rules):
            await caught_up(bus)
    assert sorted(await column(graph, "MATCH (s:Share) RETURN s.id")) == ["o0", "o2", "o4"]
    assert await column(graph, "MATCH (c:Step) RETURN c.n") == [5, 5]
    letters = await bus.dead_letters(limit=10)
    assert [letter.event_id for letter in letters] == ["o1", "o3"]
    first = letters[0]
    assert (first.reason, first.rule, first.mutation, first.app_id) == ("query_error", "divide", "fragile", APP)
    assert first.place is not None
    assert first.place.endswith(":20:9")
    assert "Division by zero" in first.message
    assert wire.decode(wire.unpack(first.fields)).id == "o1"


async def test_a_retry_runs_only_what_failed_and_once(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, rules: Ruleset, tmp_path: Path
) -> None:
    async with Client(url) as client:
        await client.emit(split(0, "o1"))
        async with running(bus, graph, rules):
            await caught_up(bus)
    [letter] = await bus.dead_letters(limit=10)
    file = tmp_path / "Shop" / "graph_injection.yaml"
    file.write_text(RULES.replace("100 / $parts", "100 / (CASE WHEN $parts = 0 THEN 1 ELSE $parts END)"))
    assert await bus.retry(letter)
    assert not await bus.retry(letter)
    async with running(bus, graph, Ruleset.load(tmp_path)):
        await caught_up(bus)
    assert await column(graph, "MATCH (s:Share) RETURN s.part") == [100]
    assert await column(graph, "MATCH (c:Step) RETURN c.n") == [1, 1]
    assert await bus.dead_letter_count() == 0


async def test_a_retry_that_fails_again_is_buried_again(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, rules: Ruleset
) -> None:
    async with Client(url) as client:
        await client.emit(split(0, "o1"))
        async with running(bus, graph, rules):
            await caught_up(bus)
            [letter] = await bus.dead_letters(limit=10)
            await bus.retry(letter)
            await caught_up(bus)
    [again] = await bus.dead_letters(limit=10)
    assert again.id != letter.id
    assert (again.rule, again.mutation, again.event_id) == ("divide", "fragile", "o1")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({b"data": b"{not json", b"content-type": wire.STRUCTURED}, "cannot be decoded"),
        ({b"data": b"\xff\xfe", b"content-type": wire.STRUCTURED}, "cannot be decoded"),
        ({b"hello": b"world"}, "no field 'data'"),
        ({b"data": b"{}", b"content-type": wire.STRUCTURED}, "appid: Field required"),
        ({b"data": b"[1]", b"content-type": wire.STRUCTURED}, "no JSON object"),
        ({b"data": b"{}"}, "neither structured mode"),
    ],
)
async def test_a_broken_entry_is_buried_with_its_bytes(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, rules: Ruleset, fields: dict[bytes, bytes], expected: str
) -> None:
    await bus.partitions()
    raw = redis.Redis.from_url(url)
    partition = channels.partition_of(f"{APP}/c1", 2)
    await raw.xadd(channels.events_stream(partition), fields)
    await raw.aclose()
    async with Client(url) as client, running(bus, graph, rules):
        await client.emit(tool("after"))
        await caught_up(bus)
    [letter] = await bus.dead_letters(limit=10)
    assert letter.reason == "invalid_event"
    assert expected in letter.message
    assert wire.unpack(letter.fields) == fields
    assert await column(graph, "MATCH (t:Tool) RETURN t.name") == ["after"]


async def test_an_app_id_that_names_another_tenants_graph_is_refused(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, rules: Ruleset
) -> None:
    body = json.loads(wire.encode(tool("t"))[wire.DATA])
    body["appid"] = "../other"
    raw = redis.Redis.from_url(url)
    await bus.partitions()
    await raw.xadd(channels.events_stream(0), {b"content-type": wire.STRUCTURED, b"data": json.dumps(body).encode()})
    await raw.aclose()
    async with running(bus, graph, rules):
        await caught_up(bus)
    [letter] = await bus.dead_letters(limit=10)
    assert "appid" in letter.message


async def test_a_missing_parameter_skips_that_mutation_and_warns_once(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "Shop"
    folder.mkdir()
    (folder / "graph_injection.yaml").write_text(RULES.replace("$event.tool_name, chat", "$context.absent, chat"))
    async with Client(url) as client, running(bus, graph, Ruleset.load(tmp_path)):
        for number in range(3):
            await client.emit(tool(f"t{number}"))
        await caught_up(bus)
    assert await column(graph, "MATCH (t:Tool) RETURN count(t)") == [3]
    assert await column(graph, "MATCH (j:Journey) RETURN count(j)") == [0]
    assert await bus.dead_letter_count() == 0


async def test_positions_are_seen_by_redis_itself(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, rules: Ruleset
) -> None:
    async with Client(url) as client:
        position = await client.emit(tool("t"))
        assert position is not None
        partition = int(position.partition(":")[0])
        await bus.committed(partition)
        before = (await bus.status())[partition]
        assert (before.lag, before.position) == (1, "")
        async with running(bus, graph, rules):
            await caught_up(bus)
    after = (await bus.status())[partition]
    assert f"{partition}:{after.position}" == position
    assert after.end == after.position
