"""One event in a hundred is broken, each in another way: the others take effect, and the worker goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from structlog.testing import capture_logs
from tests.services.rules import load_rules
from tests.services.waiting import until

from graphweft import Event
from graphweft.transport import Outgoing
from graphweft_contracts import wire
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import Progress, Write, WriteResult

from .serial import Neo4jReference, patiently
from .servers import Servers
from .stack import Stack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="session"),
]

PAIRS = [("redis", "falkordb"), ("redis", "neo4j"), ("kafka", "falkordb"), ("kafka", "neo4j")]
EVENTS = 1_300
CHATS = ("c1", "c2", "c3")
RULES = """
version: "1.0"
mutation_rules:
  - name: chat
    events: ["order.seen"]
    mutations:
      - id: list
        cypher: "MERGE (c:Chat {k: $chat}) SET c.names = coalesce(c.names, []) + [$name]"
        params: {chat: "$workflow.chat_id", name: "$event.name"}
  - name: item
    events: ["order.seen"]
    mutations:
      - id: item
        cypher: "MERGE (i:Item {k: $k}) SET i.v = $v, i.share = 100 / $n, i.count = coalesce(i.count, 0) + 1"
        params: {k: "$event.k", v: "$event.v", n: "$event.n"}
"""
Fields = Mapping[bytes, bytes]


def order(app: str, name: str, chat: str, **data: Any) -> Event:
    payload = {"name": name, "k": "shoe", "v": "red", "n": 4, **data}
    return Event.create("order.seen", app_id=app, chat_id=chat, workflow="Shop", id=name, data=payload)


def raw(event: Event, **changes: Any) -> Fields:
    """Return the event with attributes changed, or taken away by None, as no client of ours would write it."""
    body = json.loads(wire.encode(event)[wire.DATA])
    body = {name: value for name, value in {**body, **changes}.items() if value is not None}
    return {wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: json.dumps(body).encode()}


def structured(data: bytes) -> Callable[[Event], Fields]:
    return lambda event: {wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: data}


NO_EVENT: dict[str, Callable[[Event], Fields]] = {
    "bytes": structured(b"\xff\xfe\x00"),
    "json": structured(b'{"specversion": "1.0", "id": '),
    "nesting": structured(b"[" * 20_000),
    "no-app": lambda event: raw(event, appid=None),
    "wrong-type": lambda event: raw(event, chatid=["c1"]),
    "payload": lambda event: raw(event, type="tool.call_complete", data={"tool_name": 5}),
    "mode": lambda event: {**raw(event), wire.CONTENT_TYPE: b"application/cloudevents-batch+json"},
    "retry": lambda event: {**raw(event), wire.RETRY: b"\xff["},
}
"""Buried as a whole, as ``invalid_event``."""
REFUSED: dict[str, dict[str, Any]] = {
    "null-key": {"k": None},
    "map": {"v": {"no": "property"}},
    "division": {"n": 0},
    "big-integer": {"v": 2**63},
    "text-for-number": {"n": "four"},
    "long-key": {"k": "k" * 40_000},  # too long for an index
}
"""Payloads that ``item`` cannot take: it is buried, while ``chat`` takes them."""
OF_VALUE = {"null-key", "map", "big-integer", "text-for-number", "nul"}
"""Those that are buried as ``invalid_value``; the others as ``query_error``, but for the long key on Neo4j."""
HOSTILE = [f"hostile-{kind}-{number}" for kind in ("map", "division") for number in range(25)]
"""Events of one chat in a row that are refused: no mutation is switched off for the other chats."""
ONLY_ON: dict[str, tuple[str, dict[str, Any]]] = {
    "nul": ("falkordb", {"v": "a\0b"}),
}
"""The same, on one of the graphs; the other one takes them."""


async def caught_up(bus: Bus, running: asyncio.Task[None]) -> None:
    await until(
        lambda: patiently(bus.partitions.status), lambda status: not any(part.lag for part in status), beside=running,
        why="all events are applied",
    )  # fmt: skip


class Watching:
    """A graph store that notes how many rows an app had when each app began, and when each got its first one."""

    def __init__(self, graph: Any, app_id: str) -> None:
        self._graph = graph
        self._app_id = app_id
        self.rows = 0
        self.begun: dict[str, int] = {}
        self.before: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def prepare(self, app_id: str, *what: Any) -> None:
        self.begun.setdefault(app_id, self.rows)
        await self._graph.prepare(app_id, *what)

    async def progress(self, app_id: str, partition: int) -> Progress:
        self.begun.setdefault(app_id, self.rows)
        progress: Progress = await self._graph.progress(app_id, partition)
        return progress

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        self.before.setdefault(app_id, self.rows)
        applied: WriteResult = await self._graph.apply(app_id, partition, writes)
        if app_id == self._app_id:
            self.rows += sum(len(write.rows) for write in writes[: applied.count])
        return applied


@pytest.mark.soak("kafka")
@pytest.mark.parametrize(("bus_name", "graph_name"), [("redis", "falkordb"), ("kafka", "falkordb")])
async def test_a_neighbour_is_neither_delayed_nor_forgotten(
    servers: Servers, tmp_path: Path, bus_name: str, graph_name: str
) -> None:
    """An app sends many events; the events of others behind them are applied soon, and their copies have no effect."""
    stack = await Stack.of(servers, bus_name, graph_name)
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop/graph_injection.yaml").write_text(RULES)
    rules = load_rules(tmp_path)
    many = 3_000
    async with (
        contextlib.aclosing(stack.transport()) as transport,
        stack.bus() as bus,
        stack.bus(as_worker=True) as worker_bus,
        stack.graph(as_worker=True) as graph,
    ):
        layout = await bus.partitions.layout()
        loud = f"loud{uuid4().hex[:8]}"
        at = layout.partition_of(f"{loud}/c")
        names = (f"quiet{uuid4().hex[:8]}" for _ in range(10_000))
        beside = (name for name in names if layout.partition_of(f"{name}/c") == at)
        quiet, new = next(beside), next(beside)
        backlog = [order(loud, f"e{number}", "c", k=f"k{number % 9}") for number in range(many)]
        behind = [order(new, "one", "c"), order(quiet, "one", "c")]
        events = [*backlog, *behind, *backlog[-10:], *behind]
        watching = Watching(graph, loud)
        # A new app is begun as soon. Making its graph takes it several queries, in which the others get on.
        for sent, store in (([order(quiet, "first", "c"), order(loud, "first", "c")], graph), (events, watching)):
            await transport.append([Outgoing(key=event.key, fields=wire.encode(event)) for event in sent])
            worker = MutationWorker(worker_bus, store, rules, name="w", batch_events=100)  # type: ignore[arg-type]
            with capture_logs():
                running = asyncio.create_task(worker.run())
                try:
                    await caught_up(bus, running)
                finally:
                    worker.stop()
                    await running
        counted = "MATCH (i:Item) RETURN sum(i.count)"
        found = [(await graph.read(app, counted, {}, timeout_s=120)).rows[0][0] for app in (new, quiet, loud)]
    assert found == [1, 2, many + 1]
    # Two mutations; two batches in hand, and one that begins while the graphs of the others are opened. All are 6,000.
    most = 2 * 3 * 100
    assert watching.before[quiet] <= most
    assert watching.begun[new] <= most


@pytest.mark.long("kafka-neo4j")
@pytest.mark.soak("redis-neo4j", "kafka-falkordb")
@pytest.mark.parametrize(("bus_name", "graph_name"), PAIRS)
async def test_broken_events_hold_up_nothing(servers: Servers, tmp_path: Path, bus_name: str, graph_name: str) -> None:
    stack = await Stack.of(servers, bus_name, graph_name)
    if graph_name == "neo4j":
        async with stack.reference() as reference:
            assert isinstance(reference, Neo4jReference)
            await reference.clear()
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop/graph_injection.yaml").write_text(RULES)
    rules = load_rules(tmp_path)
    app = f"poison{uuid4().hex[:8]}"
    rng = random.Random(5)
    poisons = [*NO_EVENT, *REFUSED, *ONLY_ON]
    places = dict(zip(rng.sample(range(EVENTS), len(poisons)), poisons, strict=True))
    expected: dict[str, list[str]] = {chat: [] for chat in CHATS}
    reasons: dict[str, str] = {}
    outgoing: list[Outgoing] = []
    placed: list[str | None] = []
    items = 0

    def refuse(name: str, kind: str) -> None:
        of_value = kind in OF_VALUE or (kind, graph_name) == ("long-key", "neo4j")
        reasons[name] = "invalid_value" if of_value else "query_error"

    for number in range(EVENTS):
        if number == EVENTS // 2:
            for name in HOSTILE:
                kind = name.split("-")[1]
                event = order(app, name, "c1", **REFUSED[kind])
                outgoing.append(Outgoing(key=event.key, fields=wire.encode(event)))
                placed.append(name)
                expected["c1"].append(name)
                refuse(name, kind)
        poison = places.get(number)
        placed.append(poison)
        name, chat = poison or f"e{number}", rng.choice(CHATS)
        event = order(app, name, chat, **REFUSED.get(name, {}), **ONLY_ON.get(name, ("", {}))[1])
        outgoing.append(Outgoing(key=event.key, fields=NO_EVENT.get(name, wire.encode)(event)))
        if name in NO_EVENT:
            reasons[name] = "invalid_event"
            continue
        expected[chat].append(name)
        if name in REFUSED or ONLY_ON.get(name, ("",))[0] == graph_name:
            refuse(name, name)
        else:
            items += 1
    async with (
        contextlib.aclosing(stack.transport()) as transport,
        stack.bus() as bus,
        stack.bus(as_worker=True) as worker_bus,
        stack.graph(as_worker=True) as graph,
    ):
        before = {letter.id for letter in await patiently(lambda: bus.dead_letters.read(limit=10_000))}
        positions = await transport.append(outgoing)
        proxies = (stack.bus_server.workers, stack.graph_server.workers)
        began = sum(proxy.requests for proxy in proxies)
        worker = MutationWorker(worker_bus, graph, rules, name="w", batch_events=200)
        with capture_logs():
            running = asyncio.create_task(worker.run())
            try:
                await caught_up(bus, running)
                requests = sum(proxy.requests for proxy in proxies) - began
                # The worker goes on with what comes behind.
                last = order(app, "last", "c1")
                await transport.append([Outgoing(key=last.key, fields=wire.encode(last))])
                await caught_up(bus, running)
            finally:
                worker.stop()
                await running
        expected["c1"].append("last")
        letters = [letter for letter in await bus.dead_letters.read(limit=10_000) if letter.id not in before]
        table = await graph.read(app, "MATCH (c:Chat) RETURN c.k, c.names", {}, timeout_s=120)
        [[counted]] = (await graph.read(app, "MATCH (i:Item) RETURN sum(i.count)", {}, timeout_s=120)).rows
    assert {row[0]: row[1] for row in table.rows} == expected
    assert counted == items + 1
    by_position = dict(zip(positions, placed, strict=True))
    found = {by_position[letter.position]: letter.reason for letter in letters}
    assert found == reasons
    assert len(letters) == len(reasons)
    assert {letter.mutation for letter in letters if letter.reason != "invalid_event"} == {"item"}
    # Each broken event may cost some calls to find it and to bury it, but not one for each event of the log.
    assert requests < EVENTS + 10 * len(HOSTILE), requests
