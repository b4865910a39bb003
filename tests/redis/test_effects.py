"""The effects stream: what took effect is said once it is on disk, and whatever the stream does stops nothing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from pydantic import SecretStr
from tests.services.buses import applied
from tests.services.fixtures import Logs
from tests.services.layouts import spread
from tests.services.rules import load_rules, rules_folder
from tests.services.waiting import until
from tests.services.workers import working

from graphweft import Client, Event
from graphweft_contracts import BusUnavailable, channels
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.effects import EFFECTS_DATA, Effects
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import PositionMove
from graphweft_workers.reports.report import Notice
from graphweft_workers.reports.status import StatusReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.timing import TIMING, EffectTiming, Timing
from graphweft_workers.wiring.status import read_status

pytestmark = pytest.mark.integration
RULES = """
version: "1.0"
mutation_rules:
  - name: noted
    events: ["note.made"]
    mutations:
      - id: note
        cypher: "MERGE (n:Note {id: $id}) MERGE (c:Chat {id: $chat}) MERGE (n)-[:IN]->(c)"
        params: {id: $event.id, chat: $workflow.chat_id}
      - id: share
        cypher: "MERGE (s:Share {id: $id}) SET s.part = 100 / $parts"
        params: {id: $event.id, parts: $event.parts}
"""
QUICK: Timing = replace(TIMING, effects=EffectTiming(again_s=0.05))


class NoCommits:
    """``Partitions`` of a worker that dies before each commit."""

    def __init__(self, partitions: Any) -> None:
        self._partitions = partitions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partitions, name)

    async def commit(self, partition: int, position: CommittedPosition) -> None:
        raise BusUnavailable("killed before the commit")


class Unwritable:
    """``EffectStream`` that takes nothing."""

    async def append(self, messages: Sequence[Effects], *, keep: int) -> None:
        raise BusUnavailable("killed before the write")


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    return load_rules(rules_folder(tmp_path, RULES))


@pytest.fixture
async def bus(url: str) -> AsyncIterator[Bus]:
    bus = redis_bus(url, new=spread(1))
    await bus.partitions.count()
    yield bus
    await bus.aclose()


@pytest.fixture
async def graph(url: str) -> AsyncIterator[FalkorDBStore]:
    graph = FalkorDBStore(url)
    yield graph
    await graph.aclose()


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(url) as client:
        yield client


@pytest.fixture
async def connection(url: str) -> AsyncIterator[Any]:
    async with redis.Redis.from_url(url) as connection:
        yield connection


async def emit(client: Client, number: int, app: str = "acme", **data: Any) -> str:
    event = Event.create(
        "note.made", app_id=app, chat_id="c", workflow="Support", id=f"{app}-{number}", source="/t",
        data={name: value for name, value in {"id": f"n{number}", "parts": 2, **data}.items() if value is not None},
    )  # fmt: skip
    position = await client.emit(event, wait_s=20)
    assert position is not None
    return position.partition(":")[2]


async def said(connection: Any) -> list[Effects]:
    """Return the messages of the stream."""
    entries = await connection.xrange(channels.EFFECTS)
    return [Effects.model_validate_json(fields[EFFECTS_DATA]) for _, fields in entries]


async def test_each_commit_says_what_took_effect(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet, client: Client, connection: Any
) -> None:
    offsets = [await emit(client, 1), await emit(client, 2), await emit(client, 3, parts=0), await emit(client, 4)]
    await emit(client, 1, app="globex")
    await emit(client, 5, parts=None)
    async with working(bus, graph, rules, effects_keep=100):
        await applied(bus)
        messages = await until(
            lambda: said(connection), lambda found: sum(each.events for each in found) == 6, why="all are said"
        )
    acme = [each for each in messages if each.app_id == "acme"]
    assert acme[0].first == offsets[0]
    assert sum(each.events for each in acme) == 5
    rows = {name: sum(each.mutations.get(name, 0) for each in acme) for name in ("noted/note", "noted/share")}
    assert rows == {"noted/note": 5, "noted/share": 4}
    names = {name for each in acme for name in each.labels}
    assert names == {"Note", "Chat", "IN", "Share"}
    without: Counter[str] = Counter()
    for each in acme:
        without.update(each.without_effect)
    assert without == {"skipped": 1, "query_error": 1}
    assert [each.last for each in acme] == sorted((each.last for each in acme), key=lambda last: last.split("-"))
    assert {each.app_id: each.without_effect for each in messages if each.app_id == "globex"} == {"globex": {}}


async def test_nothing_is_written_unless_asked_for(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet, client: Client, connection: Any
) -> None:
    await emit(client, 1)
    async with working(bus, graph, rules):
        await applied(bus)
    assert not await connection.exists(channels.EFFECTS)


async def test_the_stream_keeps_a_number_of_messages(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet, client: Client, connection: Any
) -> None:
    assert bus.effects is not None
    await emit(client, 1)
    async with working(bus, graph, rules, effects_keep=100):
        await applied(bus)
        [message] = await until(lambda: said(connection), bool, why="it is said")
    for _ in range(5):
        await bus.effects.append([message] * 250, keep=100)
    length = await connection.xlen(channels.EFFECTS)
    assert 100 <= length < 500


async def test_a_refused_stream_stops_nothing_and_is_caught_up(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet, client: Client, connection: Any, url: str, tmp_path: Path
) -> None:
    await connection.set(channels.EFFECTS, "a key of another type")
    settings = Settings(bus_url=SecretStr(url), graph_url=SecretStr(url), rules=tmp_path / "workflows")
    async with working(bus, graph, rules, effects_keep=100, timing=QUICK):
        for number in range(3):
            await emit(client, number)
            await applied(bus)
        await until(lambda: bus.usage.after(None), lambda found: "effects:w" in found.found, why="the worker says so")
        status = StatusReport(status=await read_status(settings, bus))
        [refused] = status.to_dict()["effects_refused"]
        assert "worker w cannot write the effects stream" in refused
        assert refused in [part.text for part in status.parts() if isinstance(part, Notice)]
        await connection.delete(channels.EFFECTS)
        messages = await until(lambda: said(connection), bool, why="it is said")
        assert [each.events for each in messages] == [3]
        await until(
            lambda: bus.usage.after(None), lambda found: "effects:w" not in found.found, why="the record is removed"
        )
    assert (await read_status(settings, bus)).to_json()["effects_refused"] == []


async def test_a_worker_that_starts_removes_the_records_of_those_that_ended(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet, client: Client, logs: Logs
) -> None:
    await emit(client, 1)
    async with working(replace(bus, effects=Unwritable()), graph, rules, effects_keep=100):
        await until(lambda: bus.usage.after(None), lambda found: "effects:w" in found.found, why="the worker says so")
    assert [entry["messages"] for entry in logs if entry["event"] == "effects_lost"] == [1]
    now = SYSTEM_CLOCK.now().timestamp()
    await bus.usage.put("effects:long-ended", json.dumps({"since": now - 900, "at": now - 900, "error": "?"}).encode())
    await bus.usage.put("effects:alive", json.dumps({"since": now, "at": now + 900, "error": "?"}).encode())
    async with working(bus, graph, rules, effects_keep=100):
        await until(
            lambda: bus.usage.after(None),
            lambda found: [key for key in found.found if key.startswith("effects:")] == ["effects:alive"],
            why="the records of ended workers are removed",
        )


class SlowDisk:
    """The real graph, whose disk has written when ``written`` is set."""

    def __init__(self, graph: FalkorDBStore) -> None:
        self._graph = graph
        self.asked = asyncio.Event()
        self.written = asyncio.Event()
        self.written.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def durable(self, run: str, move: PositionMove | None = None) -> None:
        await self._graph.durable(run, move)
        if not self.written.is_set():
            self.asked.set()
            await self.written.wait()


async def notes(graph: FalkorDBStore) -> int:
    result = await graph.read("acme", "MATCH (n:Note) RETURN count(n)", {}, timeout_s=60)
    return int(result.rows[0][0]) if result.rows else 0


async def test_what_is_applied_while_the_disk_writes_is_said_with_the_next_commit(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet, client: Client, connection: Any
) -> None:
    slow = SlowDisk(graph)
    async with working(bus, slow, rules, effects_keep=100):
        await emit(client, 1)
        await until(lambda: said(connection), bool, why="the first one is said")
        slow.written.clear()
        second = await emit(client, 2)
        await slow.asked.wait()
        third = await emit(client, 3)
        await until(lambda: notes(graph), lambda found: found == 3, why="applying waits for no disk")
        slow.written.set()
        messages = await until(
            lambda: said(connection), lambda found: sum(each.events for each in found) == 3, why="all are said"
        )
    assert [each.last for each in messages[1:]] == [second, third]


class KilledAfterCommit(NoCommits):
    """``Partitions`` of a worker that dies right after each commit."""

    async def commit(self, partition: int, position: CommittedPosition) -> None:
        await self._partitions.commit(partition, position)
        raise BusUnavailable("killed after the commit")


async def test_a_worker_that_is_killed_after_a_commit_has_said_its_effects(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet, client: Client, connection: Any
) -> None:
    await emit(client, 1)
    killed = replace(bus, partitions=KilledAfterCommit(bus.partitions))
    async with working(killed, graph, rules, effects_keep=100):
        await applied(bus)
    assert sum(each.events for each in await said(connection)) >= 1


async def test_a_killed_worker_leaves_no_effect_unsaid(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet, client: Client, connection: Any
) -> None:
    for number in range(3):
        await emit(client, number)
    partitions = NoCommits(bus.partitions)

    async with working(
        replace(bus, partitions=partitions, effects=Unwritable()), graph, rules, effects_keep=100, timing=QUICK
    ):
        await until(lambda: notes(graph), lambda found: found == 3, why="the graph has the effects")
    assert await said(connection) == []
    async with working(bus, graph, rules, effects_keep=100):
        messages = await until(lambda: said(connection), bool, why="it is said")
    assert sum(each.events for each in messages) == 3
