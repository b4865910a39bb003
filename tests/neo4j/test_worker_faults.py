"""Whatever fails on the way, the graphs end as one plain serial pass over the log leaves them.

Random rules and events, with second copies and broken entries among them, go through the real worker while replies get
lost, calls fail before or after their effect, workers are cancelled anywhere, and two of one name work at once. The
reference runs each mutation as a query of its own, first copies only, and passes over what the server refuses. In the
last tests, a write of a former owner arrives before, between and after those of the next one.
``GRAPHWEFT_FAULT_SEEDS`` is the number of runs on FalkorDB, ``GRAPHWEFT_SEED`` the first of their seeds. Neo4j gets a
quarter of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from structlog.testing import capture_logs
from tests.chaos.random_rules import PARAMS, TEXTS, TYPES, some_texts
from tests.chaos.serial import Content, FalkorDBReference, Neo4jReference, Query, Reference, query_of
from tests.services.buses import applied
from tests.services.layouts import spread
from tests.services.neo4j import Neo4jServer, sharing
from tests.services.rules import load_rules
from tests.services.waiting import looks, turns, until

from graphweft import Event
from graphweft_contracts import BusUnavailable, Fenced, GraphUnavailable, GraphweftError, InvalidEvent, channels, wire
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.failures import quarantine
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dialect import GraphDialect
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, Write, WriteResult

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]

PARTITIONS = 2
FIRST_SEED = int(os.environ.get("GRAPHWEFT_SEED", "0"))
RUNS = int(os.environ.get("GRAPHWEFT_FAULT_SEEDS", "2"))
BROKEN = (
    {b"x": b"y"},
    {wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: b"{"},
    {wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: b"{}"},
)
Fields = dict[bytes, bytes]


@pytest.fixture(autouse=True)
def no_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A serial pass knows nothing of mutations that are left out because earlier events made them fail."""
    monkeypatch.setattr(quarantine, "FAILURES_TO_QUARANTINE", 10**9)


def bundle(rng: random.Random, texts: Sequence[str]) -> dict[str, Any]:
    rules: list[dict[str, Any]] = []
    for number in range(rng.randint(3, 6)):
        mutations = [
            {"id": f"m{index}", "cypher": text, "params": {k: v for k, v in PARAMS.items() if f"${k}" in text}}
            for index, text in enumerate(rng.sample(texts, rng.randint(1, 5)))
        ]
        rule: dict[str, Any] = {"name": f"r{number}", "events": rng.sample(TYPES, rng.randint(1, 2))}
        if rng.random() < 0.2:
            rule["condition"] = "$event.n > 1"
        rules.append({**rule, "mutations": mutations})
    return {"version": "1.0", "mutation_rules": rules}


def entry(rng: random.Random, number: int, chats: Sequence[tuple[str, str]]) -> tuple[int, Fields]:
    """Return the partition and the fields of a random entry."""
    if rng.random() < 0.04:
        return rng.randrange(PARTITIONS), rng.choice(BROKEN)
    app, chat = rng.choice(chats)
    data: dict[str, Any] = {
        "name": f"e{number}",
        "k": rng.choice(["x", "y", "z"]),
        "j": rng.choice(["x", "y", 1]),
        "n": rng.choice([0, 1, 2, 3, 4, None]),
        "xs": [rng.choice("pqr") for _ in range(rng.randint(0, 3))],
        "m": rng.choice([{}, {"n": 1}, {"n": None, "list": [1, 2]}, {"text": {"no": "map"}}]),
        "s": rng.choice(["ü", "", None]),
    }
    if rng.random() < 0.08:
        data["k"] = None
    if rng.random() < 0.05:
        del data["k"]
    event = Event.create(
        rng.choice(TYPES), app_id=app, chat_id=chat, workflow="W", id=f"e{number}", source="/test", data=data
    )
    return channels.partition_of(event.key, PARTITIONS), wire.encode(event)


def chats_of(app: str, partition: int, count: int) -> list[tuple[str, str]]:
    """Order holds within a partition, so an app's chats share one, and the serial pass has one order to compare."""
    names = (f"c{number}" for number in range(1_000))
    return [(app, chat) for chat in names if channels.partition_of(f"{app}/{chat}", PARTITIONS) == partition][:count]


class Faulty:
    """Fails calls at random, before or after their effect, as broken connections do."""

    def __init__(self, inner: Any, rng: random.Random, error: Callable[[], GraphweftError], names: set[str]) -> None:
        self._inner = inner
        self._rng = rng
        self._error = error
        self._names = names
        self.rate = 0.12
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        return self._failing(name, method) if name in self._names else method

    def _failing(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await turns()
            dice = self._rng.random()
            if dice < self.rate / 2:
                self.failed += 1
                raise self._error()
            if dice < self.rate and name == "apply":  # a part took effect, and the reply is lost
                app_id, partition, writes = args
                args = (app_id, partition, writes[: self._rng.randint(1, len(writes))])
            result = await method(*args, **kwargs)
            if dice < self.rate:
                self.failed += 1
                raise self._error()
            return result

        return call


@dataclass(slots=True)
class ExpectedValue:
    """What one app's events do, in order, and for each query the dead letter that it becomes if it is refused."""

    queries: list[Query]
    letters: list[str]


async def read_log(
    bus: Bus, rules: RuleSet, dialect: GraphDialect
) -> tuple[dict[str, ExpectedValue], set[str], list[str]]:
    """Return what the log asks for, for each app, the letters of what is no event, and what is skipped."""
    apps: dict[str, ExpectedValue] = {}
    letters: set[str] = set()
    skips: list[str] = []
    for partition in range(PARTITIONS):
        seen: set[tuple[str, str, str]] = set()
        items: Sequence[Entry] = await bus.log.after(partition, "", limit=10_000)
        for item in items:
            position = f"{partition}:{item.offset}"
            try:
                event = wire.decode(item.fields, received=item.received)
            except InvalidEvent:
                letters.add(position)
                continue
            if (identity := (event.appid, *event.identity)) in seen:
                continue
            seen.add(identity)
            matched = rules.match_event(event)
            skips += [f"{position}:{skip.rule}/{skip.query}" for skip in matched.skipped]
            for bound in matched.mutations:
                expected = apps.setdefault(event.appid, ExpectedValue([], []))
                expected.queries.append(query_of(bound, dialect))
                expected.letters.append(f"{position}:{bound.mutation.rule}/{bound.mutation.id}")
    return apps, letters, skips


async def chaos(rng: random.Random, make: Callable[[], MutationWorker], waits: Sequence[float], times: int) -> None:
    """Run one or two workers of one name at a time and cancel them anywhere."""
    for _ in range(times):
        tasks = [asyncio.create_task(make().run()) for _ in range(rng.randint(1, 2))]
        done, _ = await asyncio.wait(tasks, timeout=rng.choice(waits))
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        defects = [result for result in results if isinstance(result, Exception)]
        assert not defects, defects
        assert not done


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run on one kind of graph."""

    store: GraphStore
    reference: Reference
    texts: Sequence[str]
    chats: Sequence[tuple[str, str]]
    waits: Sequence[float]
    """How long workers live, in seconds."""
    lives: int
    events: int

    async def check(self, url: str, bus: Bus, folder: Path, seed: int) -> None:
        rng = random.Random(seed)
        (folder / "W").mkdir()
        (folder / "W/graph_injection.yaml").write_text(json.dumps(bundle(rng, self.texts)))
        rules = load_rules(folder)
        assert await bus.partitions.count() == PARTITIONS
        raw = redis.Redis.from_url(url)
        graph = Faulty(
            self.store, rng, lambda: GraphUnavailable("cut", retry_after_s=0.001),
            {"apply", "progress", "prepare", "durable", "check"},
        )  # fmt: skip
        faulty = {
            member: Faulty(getattr(bus, member), rng, lambda: BusUnavailable("cut", retry_after_s=0.001), names)
            for member, names in (
                ("dead_letters", {"put", "extend"}),
                ("partitions", {"commit", "committed"}),
                ("leases", {"claim"}),
                ("log", {"read", "before", "after"}),
            )
        }
        faulty_bus = replace(bus, **faulty)

        def make() -> MutationWorker:
            batch = rng.choice([3, 10, 40, 200])
            return MutationWorker(faulty_bus, graph, rules, name="w", batch_events=batch)

        async def produce() -> None:
            written: list[tuple[int, Fields]] = []
            for number in range(self.events):
                copy = written and rng.random() < 0.1
                partition, fields = rng.choice(written) if copy else entry(rng, number, self.chats)
                written.append((partition, fields))
                await raw.xadd(channels.events_stream(partition), fields)  # type: ignore[arg-type]
                if number % 8 == 0:
                    await looks(raw.ping, 40)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(produce())
                group.create_task(chaos(rng, make, self.waits, self.lives))
            assert graph.failed + sum(each.failed for each in faulty.values())
            for each in (graph, *faulty.values()):
                each.rate = 0.0
            last = make()
            task = asyncio.create_task(last.run())
            await applied(bus, worker=task)
            last.stop()
            await task
        finally:
            await raw.aclose()
        apps, letters, skips = await read_log(bus, rules, self.store.dialect)
        assert apps
        for app, expected in sorted(apps.items()):
            found = await Content.of(self.store, app)
            if isinstance(self.reference, Neo4jReference):
                await self.reference.clear()
            serial, refused = await self.reference.run(expected.queries, rules.keys)
            assert found.digest == serial.digest, f"{app}\n{found.against(serial)}"
            letters |= {expected.letters[number] for number in refused}
        found_letters = await bus.dead_letters.read(limit=10_000)
        assert {letter.id for letter in found_letters if letter.reason != "skipped"} == letters
        counted = Counter(
            f"{letter.partition}:{offset}:{letter.rule}/{letter.mutation}"
            for letter in found_letters
            if letter.reason == "skipped"
            for offset in letter.offsets
        )
        assert counted == Counter(skips)


@pytest.fixture
async def falkordb(url: str) -> AsyncIterator[Run]:
    store, reference = FalkorDBStore(url), FalkorDBReference(url)
    yield Run(
        store=store,
        reference=reference,
        texts=[*TEXTS, *some_texts(FIRST_SEED, 40)],
        chats=[*chats_of("a1", 0, 3), *chats_of("a2", 0, 2), *chats_of("a3", 1, 3), *chats_of("a4", 1, 1)],
        waits=(0.01, 0.03, 0.1, 0.3),
        lives=16,
        events=160,
    )
    await store.aclose()
    await reference.aclose()


@pytest.fixture
async def neo4j(neo4j_server: Neo4jServer) -> AsyncIterator[Run]:
    store, reference = sharing(Neo4jStore(neo4j_server.uri), 2), Neo4jReference(neo4j_server.uri)
    await reference.clear()
    yield Run(
        store=store,
        reference=reference,
        texts=TEXTS,  # it takes long to compile a new one
        chats=chats_of("only", 0, 4),  # a database is one app's
        waits=(0.1, 0.3, 1.0),
        lives=8,
        events=50,
    )
    await store.aclose()
    await reference.aclose()


@pytest.mark.long("1")
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RUNS))
async def test_on_falkordb(url: str, bus: Bus, falkordb: Run, tmp_path: Path, seed: int) -> None:
    with capture_logs():
        await falkordb.check(url, bus, tmp_path, seed)


# The driver leaves a socket open when it is cancelled while it connects.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(RUNS // 4, 1)))
async def test_on_neo4j(url: str, bus: Bus, neo4j: Run, tmp_path: Path, seed: int) -> None:
    with capture_logs():
        await neo4j.check(url, bus, tmp_path, seed)


LATE_TEXTS = (
    "MERGE (c:Chat {k: $k}) SET c.names = coalesce(c.names, []) + [$id]",
    "MERGE (i:Item {k: $k}) SET i.share = 100 / $n, i.count = coalesce(i.count, 0) + 1",
)
"""Both show each row that takes effect twice; the second one refuses some."""


def late_entry(number: int, chats: Sequence[tuple[str, str]]) -> tuple[int, Fields]:
    """Return the partition and the fields of an event; every fifth one is refused."""
    app, chat = chats[number % len(chats)]
    data = {"name": f"e{number}", "k": "xyz"[number % 3], "n": number % 5}
    event = Event.create(TYPES[0], app_id=app, chat_id=chat, workflow="W", id=f"e{number}", source="/test", data=data)
    return channels.partition_of(event.key, PARTITIONS), wire.encode(event)


class Standing:
    """The graph of a worker that stands still in a call of ``apply``, after ``free`` calls."""

    def __init__(self, graph: Any, free: int) -> None:
        self._graph = graph
        self._free = free
        self.call: tuple[str, int, Sequence[Write]] | None = None
        self.go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        if not self._free and self.call is None:
            self.call = (app_id, partition, writes)
            await self.go_on.wait()
        self._free = max(0, self._free - 1)
        applied: WriteResult = await self._graph.apply(app_id, partition, writes)
        return applied


class Overtaken:
    """The graph of the next owner: the other one's call arrives before each of its own, but the ``first`` ones."""

    def __init__(self, graph: Any, standing: Standing, first: int) -> None:
        self._graph = graph
        self._standing = standing
        self._first = first
        self.refused = 0
        self.taken: list[Checkpoint] = []
        """Where the graph stood when it took a call that belongs elsewhere; the worker would hide an error."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        if not self._first:
            await self.arrive()
        self._first = max(0, self._first - 1)
        applied: WriteResult = await self._graph.apply(app_id, partition, writes)
        return applied

    async def arrive(self) -> None:
        assert self._standing.call is not None
        app_id, partition, writes = self._standing.call
        here = (await self._graph.progress(app_id, partition)).checkpoint
        try:
            await self._graph.apply(app_id, partition, writes)
        except Fenced:
            self.refused += 1
        else:
            if here not in (writes[0].before, writes[-1].after):
                self.taken.append(here)


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """Two workers, each of which believes that it owns the partitions, on one kind of graph."""

    run: Run
    url: str
    rules: RuleSet

    async def check(self, *, free: int, first: int) -> int | None:
        """Let a call of the first worker arrive late, after ``free`` calls; return how often it was refused.

        None: the first worker made no more calls than these.
        """
        store, raw = self.run.store, redis.Redis.from_url(self.url)
        if isinstance(self.run.reference, Neo4jReference):
            await self.run.reference.clear()
        await raw.flushall()
        bus = redis_bus(self.url, new=spread(PARTITIONS))
        assert await bus.partitions.count() == PARTITIONS
        # A store remembers what it has made in a graph, so each run has another app, where a server may have several.
        chats = chats_of(f"late{free}" if len({app for app, _ in self.run.chats}) > 1 else "only", 0, 2)
        for partition, fields in [late_entry(number, chats) for number in range(17)]:
            await raw.xadd(channels.events_stream(partition), fields)  # type: ignore[arg-type]
        standing = Standing(store, free)
        overtaken = Overtaken(store, standing, first)
        graphs: list[Any] = [standing, overtaken]
        workers = [MutationWorker(bus, graph, self.rules, name="w", batch_events=7) for graph in graphs]
        tasks = [asyncio.create_task(workers[0].run())]
        try:

            async def left() -> Any:
                if standing.call is not None and len(tasks) == 1:
                    tasks.append(asyncio.create_task(workers[1].run()))
                assert not any(task.done() for task in tasks), tasks
                assert not overtaken.taken
                return await self._left(bus)

            async with asyncio.timeout(120):
                await until(left, lambda found: not found)
                if standing.call is not None:
                    await overtaken.arrive()
                    assert not overtaken.taken
                standing.go_on.set()
                for worker in workers[: len(tasks)]:
                    worker.stop()
                await asyncio.gather(*tasks)
            await self._compare(bus)
            return overtaken.refused if standing.call is not None else None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await bus.aclose()
            await raw.aclose()

    async def _left(self, bus: Bus) -> int:
        return sum(partition.lag for partition in await bus.partitions.status())

    async def _compare(self, bus: Bus) -> None:
        apps, letters, _ = await read_log(bus, self.rules, self.run.store.dialect)
        for app, expected in sorted(apps.items()):
            found = await Content.of(self.run.store, app)
            if isinstance(self.run.reference, Neo4jReference):
                await self.run.reference.clear()
            serial, refused = await self.run.reference.run(expected.queries, self.rules.keys)
            assert refused
            assert found.digest == serial.digest, f"{app}\n{found.against(serial)}"
            letters |= {expected.letters[number] for number in refused}
        assert sorted(letter.id for letter in await bus.dead_letters.read(limit=10_000)) == sorted(letters)


async def check_takeovers(run: Run, url: str, folder: Path) -> None:
    """Let every third call of a worker arrive late, with its note, its plan and its dead letters."""
    (folder / "W").mkdir()
    mutations = [
        {"id": f"m{index}", "cypher": text, "params": {k: v for k, v in PARAMS.items() if f"${k}" in text}}
        for index, text in enumerate(LATE_TEXTS)
    ]
    document = {"version": "1.0", "mutation_rules": [{"name": "r", "events": [TYPES[0]], "mutations": mutations}]}
    (folder / "W/graph_injection.yaml").write_text(json.dumps(document))
    takeover = Takeover(run=run, url=url, rules=load_rules(folder))
    free, refused = 0, 0
    with capture_logs():
        while (found := await takeover.check(free=free, first=free % 2)) is not None:
            refused += found
            free += 3
    assert refused > free > 5


async def test_a_write_that_arrives_late_changes_nothing_on_falkordb(url: str, falkordb: Run, tmp_path: Path) -> None:
    await check_takeovers(falkordb, url, tmp_path)


@pytest.mark.long
async def test_a_write_that_arrives_late_changes_nothing_on_neo4j(url: str, neo4j: Run, tmp_path: Path) -> None:
    await check_takeovers(neo4j, url, tmp_path)
