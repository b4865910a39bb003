"""The engine, in batches of its own choice, leaves what one query per mutation in the order of the log leaves.

Rules and events are random: see ``tests/chaos/random_rules.py``. The real worker runs on a log in memory and on real
servers; the reference is as simple as it can be. Without settings the examples are few, and the same in every run.
``GRAPHWEFT_EXAMPLES`` is the number of random examples for each server, ``GRAPHWEFT_SEED`` another pool of queries for
Neo4j.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from structlog.testing import capture_logs
from tests.chaos.memory_bus import memory_bus
from tests.chaos.random_memory import memory_examples
from tests.chaos.random_rules import PARAMS, Example, examples, some_texts
from tests.chaos.serial import Content, FalkorDBReference, Neo4jReference, Query, Reference, queries_of
from tests.services.neo4j import Neo4jServer, sharing
from tests.services.rules import load_rules

from graphweft import Event
from graphweft_contracts import wire
from graphweft_rules import RuleSet
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.engine.failures import quarantine
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import GraphStore, PositionMove, Write, WriteResult

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3_600)]

_EXAMPLES = os.environ.get("GRAPHWEFT_EXAMPLES")
_SEED = int(os.environ.get("GRAPHWEFT_SEED", "1"))
"""Of the queries for Neo4j, which takes long to compile a new one."""
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
_TIMEOUT_S = 120.0
"""A new Neo4j that a busy machine runs takes a minute to compile the queries of memory."""


@pytest.fixture(scope="module", autouse=True)
def no_quarantine() -> Iterator[None]:
    """A serial pass knows nothing of mutations that are left out because earlier events made them fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quarantine, "FAILURES_TO_QUARANTINE", 10**9)
        yield


_checked = settings(
    deadline=None,
    print_blob=True,
    derandomize=_EXAMPLES is None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


def rules_of(example: Example, folder: Path) -> RuleSet:
    write_rules(example, folder / "W")
    return load_rules(folder)


def write_rules(example: Example, folder: Path) -> None:
    """Write the rules of an example into the folder of a workflow."""
    rules = [
        {
            "name": f"r{number}",
            "events": types,
            "mutations": [
                {"id": f"m{index}", "cypher": text, "params": {k: v for k, v in PARAMS.items() if f"${k}" in text}}
                for index, text in enumerate(texts)
            ],
        }
        for number, (types, texts) in enumerate(example.rules)
    ]
    folder.mkdir()
    (folder / "graph_injection.yaml").write_text(json.dumps({"version": "1.0", "mutation_rules": rules}))


def entries_of(example: Example, apps: Sequence[str]) -> list[Entry]:
    """Return the log: chats of all apps interleaved."""
    entries: list[Entry] = []
    for number, (kind, payload, chat) in enumerate(example.events, 1):
        time = _BEGAN + timedelta(seconds=number)
        event = Event.create(
            kind, app_id=apps[chat % len(apps)], chat_id=f"c{chat}", workflow="W", id=f"e{number}", source="/test",
            time=time, data={"name": f"e{number}", **payload},
        )  # fmt: skip
        entries.append(Entry(offset=str(number), fields=wire.encode(event), received=time))
    return entries


class _Ending:
    """A store that stops answering behind a number of writes, as a worker that dies sees nothing any more."""

    def __init__(self, store: GraphStore, writes: int) -> None:
        self._store = store
        self._left = writes
        self.came_to_end = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        if len(writes) <= self._left:
            self._left -= len(writes)
            return await self._store.apply(app_id, partition, writes)
        allowed, self._left = writes[: self._left], 0
        if allowed:
            await self._store.apply(app_id, partition, allowed)
        self.came_to_end.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class Server:
    """A graph server with the engine's store and the reference; one event loop for all examples."""

    def __init__(self, runner: asyncio.Runner, store: GraphStore, reference: Reference) -> None:
        self.runner = runner
        self.store = store
        self.reference = reference
        self.numbers = count()

    async def engine(self, entries: Sequence[Entry], rules: RuleSet, example: Example) -> Bus:
        workers: list[MutationWorker] = []

        def stop() -> None:
            workers[-1].stop()

        bus = memory_bus([entries], stop)
        with capture_logs():
            async with asyncio.timeout(_TIMEOUT_S):
                for batch, writes in example.ended:
                    store = _Ending(self.store, writes)
                    workers.append(MutationWorker(bus, store, rules, name="w", batch_events=batch))  # type: ignore[arg-type]
                    running = asyncio.create_task(workers[-1].run())
                    ending = asyncio.create_task(store.came_to_end.wait())
                    await asyncio.wait([running, ending], return_when=asyncio.FIRST_COMPLETED)
                    ended = running.done()
                    for task in (running, ending):
                        task.cancel()
                    results = await asyncio.gather(running, ending, return_exceptions=True)
                    if isinstance(results[0], Exception):
                        raise results[0]
                    if ended:
                        return bus
                workers.append(MutationWorker(bus, self.store, rules, name="w", batch_events=example.batch))
                await workers[-1].run()
        return bus

    async def compare(self, example: Example, apps: Sequence[str]) -> None:
        """Check that graphs and dead letters are the same."""
        with tempfile.TemporaryDirectory() as folder:
            rules = rules_of(example, Path(folder))
        entries = entries_of(example, apps)
        expected: dict[str, Content] = {}
        letters = 0
        for app in apps:
            events = queries_of(entries, rules, self.store.dialect, app)
            queries: list[Query] = [query for event in events for query in event]
            expected[app], refused = await self.reference.run(queries, rules.keys)
            letters += len(refused)
        bus = await self.engine(entries, rules, example)
        there = await bus.dead_letters.read(limit=100_000)
        buried = sum(letter.count for letter in there if letter.reason != "skipped")
        for app in apps:
            found = await Content.of(self.store, app)
            assert found.digest == expected[app].digest, found.against(expected[app])
        assert buried == letters, [(letter.mutation, letter.message) for letter in there]


class _Quick(FalkorDBStore):
    """Whether an example is on disk does not matter here."""

    async def durable(self, run: str, move: PositionMove | None = None) -> None:
        pass

    async def positions(self) -> None:
        return None


@pytest.fixture(scope="module")
def falkordb() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="graphweft-serial-") as folder, asyncio.Runner() as runner:
        server = EmbeddedServer(Path(folder), fsync="everysec")
        runner.run(server.start())
        url = f"unix://{server.socket}"
        store, reference = _Quick(url), FalkorDBReference(url)
        yield Server(runner, store, reference)
        runner.run(store.aclose())
        runner.run(reference.aclose())
        runner.run(server.stop())


@settings(_checked, max_examples=int(_EXAMPLES or 6))
@given(example=examples(events=40))
def test_on_falkordb(falkordb: Server, example: Example) -> None:
    _run_on_falkordb(falkordb, example)


def _run_on_falkordb(falkordb: Server, example: Example) -> None:
    number = next(falkordb.numbers)
    apps = [f"a{number}", f"b{number}"]

    async def run() -> None:
        try:
            await falkordb.compare(example, apps)
        finally:
            await falkordb.reference.drop(f"mozaiks_{app}" for app in apps)

    falkordb.runner.run(run())


_FIRST: dict[str, Any] = {"n": 1, "j": "z", "xs": [], "s": "x"}
_NODES = "UNWIND ['a', 'b'] AS x MERGE (a:A {k: x}) MERGE (n:L) MERGE (a)-[:R]->(n)"
_EDGES = "UNWIND ['a', 'b'] AS x MERGE (a:A {k: x}) MERGE (b:B {k: x}) MERGE (a)-[:R]->(b)"
_NODE = "MATCH (a:A {k: $k})-[:R]->(n:L) "
_EDGE = "MATCH (a:A {k: $k})-[r:R]->(b:B) "


@pytest.mark.parametrize(
    ("made", "one", "two"),
    [
        (_NODES, f"{_NODE}SET n += $m", f"{_NODE}WITH n SET n += $m"),
        (_NODES, f"{_NODE}SET n = $m", f"{_NODE}WITH n SET n += $m"),
        (_NODES, f"{_NODE}SET n += $m", f"{_NODE}SET n += {{v: $n}}"),
        (_EDGES, f"{_EDGE}SET r += $m", f"{_EDGE}WITH r SET r += $m"),
    ],
)
def test_properties_that_no_query_names(falkordb: Server, made: str, one: str, two: str) -> None:
    """The node has no key, and is reached from several that have one."""
    given = [("a.one", "b", 0), ("a.two", "a", 1), ("a.one", "a", 2), ("a.two", "b", 3), ("a.one", "b", 4)]
    events = [(kind, {**_FIRST, "k": k, "m": {"v": v, kind[2:]: v}}, 0) for kind, k, v in given[:3]]
    more = [(kind, {**_FIRST, "k": k, "m": {"v": v}}, 0) for kind, k, v in given]
    rules = [(["a.three"], [made]), (["a.one"], [one]), (["a.two"], [two])]
    for each in (events, more):
        first = ("a.three", {**_FIRST, "k": "a"}, 0)
        _run_on_falkordb(falkordb, Example(rules=rules, events=[first, *each], batch=40, ended=[]))


@settings(_checked, max_examples=int(_EXAMPLES or 4))
@given(example=memory_examples(events=30))
def test_memory_on_falkordb(falkordb: Server, example: Example) -> None:
    _run_on_falkordb(falkordb, example)


@pytest.fixture(scope="module")
def neo4j(neo4j_server: Neo4jServer) -> Iterator[Server]:
    async def connect() -> tuple[Neo4jStore, Neo4jReference]:
        reference = Neo4jReference(neo4j_server.uri)
        await reference.clear()
        return sharing(Neo4jStore(neo4j_server.uri), 2), reference

    with asyncio.Runner() as runner:
        store, reference = runner.run(connect())
        yield Server(runner, store, reference)
        runner.run(reference.clear())
        runner.run(store.aclose())
        runner.run(reference.aclose())


@settings(_checked, max_examples=int(_EXAMPLES or 2))
@given(example=examples(events=12, texts=some_texts(_SEED, 100)))
def test_on_neo4j(neo4j: Server, example: Example) -> None:
    async def run() -> None:
        assert isinstance(neo4j.reference, Neo4jReference)
        await neo4j.reference.clear(keep="__App")  # a database stays its app's
        await neo4j.compare(example, ["only"])

    neo4j.runner.run(run())


@pytest.mark.long
@settings(_checked, max_examples=int(_EXAMPLES or 2))
@given(example=memory_examples(events=12))
def test_memory_on_neo4j(neo4j: Server, example: Example) -> None:
    async def run() -> None:
        assert isinstance(neo4j.reference, Neo4jReference)
        await neo4j.reference.clear(keep="__App")
        await neo4j.compare(replace(example, rules=[]), ["only"])

    neo4j.runner.run(run())
