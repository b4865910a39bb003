"""Events of an app take effect in the order of its log, whatever chats they belong to and however many workers run.

Random rules, whose effects depend on the order, run on real servers: two workers share the partitions of a Redis bus,
and some are killed. The graph must equal that of one query per mutation in the order of the log.
``GRAPHWEFT_EXAMPLES`` is the number of random examples.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.chaos.random_rules import Example, examples
from tests.chaos.serial import Content, FalkorDBReference, Query, queries_of
from tests.integration.test_serial_equality import entries_of, rules_of
from tests.services.rules import load_rules

from graphweft import Event
from graphweft.transport import Outgoing
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import Layout, wire
from graphweft_rules import RuleSet
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.event_log import RedisEventLog
from graphweft_workers.engine import apply as applying
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.event_log import Entry

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3_600)]

APPS = ("acme", "globex")
LAYOUT = Layout(partitions=8)
LEASE_S = 0.5
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
        patch.setattr(applying, "FAILURES_TO_QUARANTINE", 10**9)
        yield


class Servers:
    """A bus and a graph on one embedded server, with one event loop for all examples."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self.runner = runner
        self.url = url

    async def compare(self, rules: RuleSet, events: Sequence[Event], kill_after: Sequence[int]) -> None:
        async with contextlib.AsyncExitStack() as stack:
            raw = await stack.enter_async_context(redis.Redis.from_url(self.url))
            await raw.flushall()
            bus = await stack.enter_async_context(contextlib.aclosing(RedisEventLog(self.url, new=LAYOUT)))
            transport = await stack.enter_async_context(contextlib.aclosing(RedisTransport(self.url, new=LAYOUT)))
            positions = await transport.append([Outgoing(key=e.key, fields=wire.encode(e)) for e in events])
            log = await self._log(bus)
            used: dict[str, set[int]] = {}
            for event, position in zip(events, positions, strict=True):
                used.setdefault(event.appid, set()).add(int(position.partition(":")[0]))
            numbers = {app: number for app, [number] in used.items()}  # each app has a single partition
            with capture_logs():
                await self._work(rules, bus, kill_after)
            graph = await stack.enter_async_context(contextlib.aclosing(FalkorDBStore(self.url)))
            reference = await stack.enter_async_context(contextlib.aclosing(FalkorDBReference(self.url)))
            for app in numbers:
                queries: list[Query] = [
                    query for event in queries_of(log[numbers[app]], rules, graph.dialect, app) for query in event
                ]
                expected, _ = await reference.run(queries, rules.keys)
                found = await Content.of(graph, app)
                assert found.digest == expected.digest, found.against(expected)

    async def _log(self, bus: RedisEventLog) -> list[list[Entry]]:
        return [list(await bus.after(number, "", limit=10_000)) for number in range(LAYOUT.partitions)]

    async def _work(self, rules: RuleSet, bus: RedisEventLog, kill_after: Sequence[int]) -> None:
        """Run two workers until all events are applied; kill the first one after some milliseconds, again and again."""
        async with self._worker(rules, "steady"):
            for milliseconds in kill_after:
                async with self._worker(rules, "killed"):
                    await asyncio.sleep(milliseconds / 1000)
            async with asyncio.timeout(60):
                while sum(each.lag for each in await bus.status()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def _worker(self, rules: RuleSet, name: str) -> AsyncIterator[None]:
        """Run a worker, and end it as a crash would: it releases nothing."""
        bus, graph = RedisEventLog(self.url, new=LAYOUT), FalkorDBStore(self.url)
        worker = MutationWorker(bus, graph, rules, name=name, lease_s=LEASE_S, batch_events=7)
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


@settings(_checked, max_examples=int(_EXAMPLES or 15))
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
            contextlib.aclosing(RedisEventLog(servers.url, new=LAYOUT)) as bus,
        ):
            await raw.flushall()
            await bus.partitions()
            await bus.store_order("acme", "chat")
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
        async with contextlib.aclosing(RedisEventLog(servers.url, new=LAYOUT)) as bus:
            assert await bus.layout() == Layout(partitions=4, order="chat")
            await bus.store_order("*", "app")
            assert await bus.layout() == Layout(partitions=4, order="app")

    servers.runner.run(run())
