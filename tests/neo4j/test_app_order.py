"""Events of an app take effect in the order of its log, whatever chats they belong to and however many workers run.

Random rules, whose effects depend on the order, run on real servers: two workers share the partitions of a Redis bus,
and some are killed. The graph must equal that of one query per mutation in the order of the log.
``GRAPHWEFT_EXAMPLES`` is the number of random examples.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import batched, zip_longest
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.chaos.random_rules import TYPES, Example, examples
from tests.chaos.serial import Content, FalkorDBReference, Neo4jReference, Query, queries_of
from tests.neo4j.test_serial_equality import entries_of, rules_of, write_rules
from tests.services.buses import applied
from tests.services.neo4j import Neo4jServer, sharing
from tests.services.rules import load_rules
from tests.services.waiting import looks

from graphweft import Event
from graphweft.transport import Outgoing
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import Layout, wire
from graphweft_contracts.rules_log import Activation, StoredRules
from graphweft_rules import RuleSet
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.failures import quarantine
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.replay.replay import Replay
from graphweft_workers.rule_sets.active_rules import FixedRules, LoggedRules

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3_600)]

APPS = ("acme", "globex")
_APPS_AT_ONCE = 30
LAYOUT = Layout(partitions=8)
LEASE_S = 0.5
type _RulesOf = Callable[[Bus], RuleSet | LoggedRules]
type _StoreOf = Callable[[], GraphStore]
_EXAMPLES = os.environ.get("GRAPHWEFT_EXAMPLES")
_checked = settings(
    deadline=None,
    print_blob=True,
    derandomize=_EXAMPLES is None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@pytest.fixture(scope="module", autouse=True)
def no_quarantine() -> Iterator[None]:
    """A serial pass knows nothing of mutations that are left out because earlier events made them fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quarantine, "FAILURES_TO_QUARANTINE", 10**9)
        yield


class Servers:
    """A bus and a graph on one embedded server, with one event loop for all examples."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self.runner = runner
        self.url = url

    async def compare(self, rules: RuleSet, events: Sequence[Event], kill_after: Sequence[int]) -> None:
        async with contextlib.AsyncExitStack() as stack:
            bus, log = await self.fill(stack, events)
            used: dict[str, set[int]] = {}
            for number, entries in enumerate(log):
                for entry in entries:
                    used.setdefault(wire.decode(entry.fields, received=entry.received).appid, set()).add(number)
            numbers = {app: number for app, [number] in used.items()}  # each app has a single partition
            with capture_logs():
                await self.work(lambda _: rules, bus, kill_after)
            graph = await stack.enter_async_context(contextlib.aclosing(FalkorDBStore(self.url)))
            reference = await stack.enter_async_context(contextlib.aclosing(FalkorDBReference(self.url)))
            for app, number in numbers.items():
                queries: list[Query] = [
                    query
                    for event in queries_of(log[number], rules, graph.dialect, app, partition=number)
                    for query in event
                ]
                expected, _ = await reference.run(queries, rules.keys)
                found = await Content.of(graph, app)
                assert found.digest == expected.digest, found.against(expected)

    async def fill(self, stack: contextlib.AsyncExitStack, events: Sequence[Event]) -> tuple[Bus, list[list[Entry]]]:
        """Return an emptied bus that holds the events, and its log."""
        raw = await stack.enter_async_context(redis.Redis.from_url(self.url))
        await raw.flushall()
        bus = await stack.enter_async_context(contextlib.aclosing(redis_bus(self.url, new=LAYOUT)))
        transport = await stack.enter_async_context(contextlib.aclosing(RedisTransport(self.url, new=LAYOUT)))
        await transport.append([Outgoing(key=e.key, fields=wire.encode(e)) for e in events])
        return bus, await self.log(bus)

    async def log(self, bus: Bus) -> list[list[Entry]]:
        return [list(await bus.log.after(number, "", limit=10_000)) for number in range(LAYOUT.partitions)]

    async def work(self, rules: _RulesOf, bus: Bus, kill_after: Sequence[int], store: _StoreOf | None = None) -> None:
        """Run two workers until all events are applied; kill the first one after some looks, again and again."""
        async with self._worker(rules, "steady", store):
            for count in kill_after:
                async with self._worker(rules, "killed", store):
                    await looks(bus.partitions.status, count)
            await applied(bus)

    @contextlib.asynccontextmanager
    async def _worker(self, rules: _RulesOf, name: str, store: _StoreOf | None) -> AsyncIterator[None]:
        """Run a worker, and end it as a crash would: it releases nothing."""
        bus = redis_bus(self.url, new=LAYOUT)
        graph = store() if store is not None else FalkorDBStore(self.url)
        worker = MutationWorker(bus, graph, rules(bus), name=name, lease_s=LEASE_S, batch_events=7)
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            running.cancel()
            results = await asyncio.gather(running, return_exceptions=True)
            await bus.aclose()
            await graph.aclose()
            if isinstance(results[0], Exception):
                raise results[0]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with tempfile.TemporaryDirectory(prefix="graphweft-order-") as folder, asyncio.Runner() as runner:
        server = EmbeddedServer(Path(folder), fsync="everysec")
        runner.run(server.start())
        yield Servers(runner, f"unix://{server.socket}")
        runner.run(server.stop())


@settings(_checked, max_examples=int(_EXAMPLES or 3))
@given(example=examples(events=40), kill_after=st.lists(st.integers(0, 300), max_size=2))
def test_the_graph_equals_a_serial_pass_over_the_log(servers: Servers, example: Example, kill_after: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rules = rules_of(example, Path(folder))
    events = [
        wire.decode(entry.fields, received=entry.received).model_copy(update={"appid": app})
        for entry in entries_of(example, ["any"])
        for app in APPS
    ]
    servers.runner.run(servers.compare(rules, events, kill_after))


class Round:
    """Many apps at once on one bus, each with a random example; the rules of every second app change midway."""

    def __init__(self, servers: Servers, examples: Sequence[Example]) -> None:
        self.servers = servers
        self.sets: dict[str, RuleSet] = {}
        self.apps = {f"app{number}": example for number, example in enumerate(examples)}

    def _rules(self, example: Example) -> RuleSet:
        with tempfile.TemporaryDirectory() as folder:
            rules = rules_of(example, Path(folder))
        return self.sets.setdefault(rules.digest, rules)

    def _active(self, bus: Bus) -> LoggedRules:
        by_files = {frozenset(each.files.items()): each for each in self.sets.values()}
        none = RuleSet({})
        return LoggedRules(bus.rules, lambda stored: by_files.get(frozenset(stored.files.items()), none), none=none)

    async def run(self, kill_after: Sequence[int]) -> None:
        url = self.servers.url
        async with contextlib.AsyncExitStack() as stack:
            raw = await stack.enter_async_context(redis.Redis.from_url(url))
            await raw.flushall()
            bus = await stack.enter_async_context(contextlib.aclosing(redis_bus(url, new=LAYOUT)))
            transport = await stack.enter_async_context(contextlib.aclosing(RedisTransport(url, new=LAYOUT)))
            changes = await self._fill(bus, transport)
            log = await self.servers.log(bus)
            with capture_logs():
                await self.servers.work(self._active, bus, kill_after)
            stores = [FalkorDBStore(url), FalkorDBStore(url, graph_template="{app_id}-again")]
            live, again = [await stack.enter_async_context(contextlib.aclosing(store)) for store in stores]
            reference = await stack.enter_async_context(contextlib.aclosing(FalkorDBReference(url)))
            for app, example in self.apps.items():
                number, before, at, after = changes[app]
                entries = log[number]
                early = [entry for entry in entries if not is_after(entry.offset, at)]
                late = [entry for entry in entries if is_after(entry.offset, at)]
                queries = [
                    query
                    for some, rules in ((early, before), (late, after))
                    for event in queries_of(some, rules, live.dialect, app, partition=number)
                    for query in event
                ]
                expected, _ = await reference.run(queries, before.keys | after.keys)
                found = await Content.of(live, app)
                assert found.digest == expected.digest, (example, found.against(expected))
                replay = Replay(bus, again, self._active(bus), app, batch_events=example.batch)
                with capture_logs():
                    async for _ in replay.run(number):
                        pass
                replayed = await Content.of(again, app)
                assert replayed.digest == expected.digest, (example, replayed.against(expected))

    async def _fill(self, bus: Bus, transport: RedisTransport) -> dict[str, tuple[int, RuleSet, str, RuleSet]]:
        """Push the rules, append the events of all apps in turn, and return each app's partition and change of rules.

        The change is the rules before it, its offset, and the rules after it.
        """
        events = {
            app: [wire.decode(entry.fields, received=entry.received).model_copy(update={"appid": app})
                  for entry in entries_of(example, ["any"])]
            for app, example in self.apps.items()
        }  # fmt: skip
        before = {app: self._rules(example) for app, example in self.apps.items()}
        after = dict(zip(self.apps, [*list(before.values())[1:], before["app0"]], strict=True))
        await bus.partitions.count()
        for app, rules in before.items():
            await self._push(bus, app, rules)
        await self._append(transport, [each for app in self.apps for each in events[app][::2]])
        changes: dict[str, tuple[int, RuleSet, str, RuleSet]] = {}
        for number, app in enumerate(self.apps):
            last = after[app] if number % 2 else before[app]
            [(partition, offset)] = (await self._push(bus, app, last)).positions.items()
            changes[app] = (partition, before[app], offset, last)
        await self._append(transport, [each for app in self.apps for each in events[app][1::2]])
        return changes

    async def _push(self, bus: Bus, app: str, rules: RuleSet) -> Activation:
        await bus.rules.store(rules.digest, StoredRules(files=rules.files))
        return await bus.rules.activate(app, rules.digest)

    async def _append(self, transport: RedisTransport, events: Sequence[Event]) -> None:
        await transport.append([Outgoing(key=each.key, fields=wire.encode(each)) for each in events])


def _some_examples(number: int) -> list[Example]:
    """Return that many random examples: the same in every run, unless ``GRAPHWEFT_EXAMPLES`` is set."""
    found: list[Example] = []

    @settings(_checked, max_examples=number, phases=[Phase.generate], database=None)
    @given(example=examples(events=14))
    def collect(example: Example) -> None:
        found.append(example)

    collect()
    return found


@pytest.mark.long
def test_live_graphs_replays_and_serial_passes_are_equal_for_many_apps(servers: Servers) -> None:
    """Many examples: two workers, some killed, rules that change, each app beside others of its partition."""
    everything = _some_examples(max(30, int(_EXAMPLES or 0)))
    waits = random.Random(1)
    for some in batched(everything, _APPS_AT_ONCE):
        kill_after = [waits.randrange(200) for _ in range(waits.randrange(3))]
        servers.runner.run(Round(servers, some).run(kill_after))


def _beside(examples: Sequence[Example], folder: Path, app: str) -> tuple[RuleSet, list[Event]]:
    """Put examples into one app, each with a workflow and labels of its own; their events come in turn."""
    events: list[list[Event]] = []
    for number, example in enumerate(examples):
        own = rf":X{number}\1"
        rules = [(types, [re.sub(":([A-Z])", own, text) for text in texts]) for types, texts in example.rules]
        write_rules(replace(example, rules=rules), folder / f"W{number}")
        decoded = [wire.decode(entry.fields, received=entry.received) for entry in entries_of(example, ["any"])]
        changed = [{"appid": app, "id": f"{number}-{each.id}", "workflow": f"W{number}"} for each in decoded]
        events.append([each.model_copy(update=change) for each, change in zip(decoded, changed, strict=True)])
    return load_rules(folder), [each for some in zip_longest(*events) for each in some if each is not None]


_IN_ORDER = Example(
    rules=[
        ([*TYPES], ["MERGE (a:A {k: $k}) SET a.n = $n", "MERGE (b:B {k: $k}) SET b.ns = coalesce(b.ns, []) + [$n]"])
    ],
    events=[(TYPES[number % 2], {"k": "ab"[number % 2], "n": number}, number % 3) for number in range(40)],
    batch=40,
    ended=[],
)
"""Each event but the last shows when it takes effect in another order."""


@pytest.mark.soak
def test_live_graphs_replays_and_serial_passes_are_equal_on_neo4j(
    servers: Servers, neo4j_server: Neo4jServer, tmp_path: Path
) -> None:
    """5 examples, two workers, one of them killed. The database holds one app, so it has all examples."""
    app = "acme"
    rules, events = _beside([_IN_ORDER, *_some_examples(max(2, int(_EXAMPLES or 0)))], tmp_path, app)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            reference = await stack.enter_async_context(contextlib.aclosing(Neo4jReference(neo4j_server.uri)))
            await reference.clear()
            bus, log = await servers.fill(stack, events)
            [number] = [number for number, entries in enumerate(log) if entries]
            with capture_logs():
                await servers.work(lambda _: rules, bus, [700, 300], lambda: sharing(Neo4jStore(neo4j_server.uri), 2))
            store = await stack.enter_async_context(contextlib.aclosing(Neo4jStore(neo4j_server.uri)))
            live = await Content.of(store, app)
            await reference.clear()
            again = await stack.enter_async_context(contextlib.aclosing(Neo4jStore(neo4j_server.uri)))
            with capture_logs():
                async for _ in Replay(bus, again, FixedRules(rules), app, batch_events=100).run(number):
                    pass
            replayed = await Content.of(again, app)
            await reference.clear()
            read = queries_of(log[number], rules, store.dialect, app, partition=number)
            queries = [query for event in read for query in event]
            expected, _ = await reference.run(queries, rules.keys)
            await reference.clear()
            assert len(expected.nodes) > 4, "more than those of the first example"
            assert live.digest == expected.digest, live.against(expected)
            assert replayed.digest == expected.digest, replayed.against(expected)

    servers.runner.run(run())


README_RULE = """
version: "1.0"
mutation_rules:
  - name: failed_tools
    events: ["tool.call_complete"]
    mutations:
      - id: count
        cypher: |
          MERGE (u:User {id: $user})
          MERGE (t:Tool {name: $tool})
          MERGE (u)-[f:FAILED_WITH]->(t)
          SET f.times = coalesce(f.times, 0) + 1, f.last = datetime(), f.chat = $chat
        params: {user: $context.user_id, tool: $event.tool_name, chat: $workflow.chat_id}
"""


@pytest.mark.parametrize("kill_after", [[], [40, 200]], ids=["two-workers", "killed"])
def test_the_last_value_is_that_of_the_last_event(servers: Servers, tmp_path: Path, kill_after: list[int]) -> None:
    (tmp_path / "W").mkdir()
    (tmp_path / "W/graph_injection.yaml").write_text(README_RULE)
    data: dict[str, Any] = {"tool_name": "search", "success": False}
    given: dict[str, Any] = {"workflow": "W", "source": "/test", "user_id": "ann", "data": data}
    events = [
        Event.create("tool.call_complete", app_id=app, chat_id=f"c{number % 23}", id=f"{app}{number}", **given)
        for number in range(400)
        for app in APPS
    ]
    servers.runner.run(servers.compare(load_rules(tmp_path), events, kill_after))


def test_the_other_order_spreads_the_chats_of_an_app(servers: Servers) -> None:
    async def run() -> None:
        async with (
            redis.Redis.from_url(servers.url) as raw,
            contextlib.aclosing(redis_bus(servers.url, new=LAYOUT)) as bus,
        ):
            await raw.flushall()
            await bus.partitions.count()
            await bus.partitions.store_order("acme", "chat")
            async with contextlib.aclosing(RedisTransport(servers.url, new=LAYOUT)) as transport:
                events = [
                    Event.create("a.b", app_id=app, chat_id=f"c{number}", workflow="W", data={})
                    for number in range(50)
                    for app in APPS
                ]
                positions = await transport.append([Outgoing(key=e.key, fields=wire.encode(e)) for e in events])
        found: dict[str, set[str]] = {}
        for event, position in zip(events, positions, strict=True):
            found.setdefault(event.appid, set()).add(position.partition(":")[0])
        assert len(found["globex"]) == 1
        assert len(found["acme"]) == LAYOUT.partitions

    servers.runner.run(run())


def test_a_bus_of_an_earlier_version_goes_on_by_chat(servers: Servers) -> None:
    async def run() -> None:
        async with redis.Redis.from_url(servers.url) as raw:
            await raw.flushall()
            await raw.set("graphweft:partitions", 4)
        async with contextlib.aclosing(redis_bus(servers.url, new=LAYOUT)) as bus:
            assert await bus.partitions.layout() == Layout(partitions=4, order="chat")
            await bus.partitions.store_order("*", "app")
            assert await bus.partitions.layout() == Layout(partitions=4, order="app")

    servers.runner.run(run())
