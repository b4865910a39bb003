"""What ``graphweft why`` records equals what is seen when the mutations run one by one, in the order of the log.

Rules and events are random; see ``tests/chaos/random_rules.py``. ``GRAPHWEFT_EXAMPLES`` is the number of examples.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError
from structlog.testing import capture_logs
from tests.chaos.memory_bus import memory_bus
from tests.chaos.random_memory import memory_examples
from tests.chaos.random_rules import Example, examples
from tests.chaos.serial import query_of
from tests.neo4j.test_serial_equality import entries_of, rules_of

from graphweft_contracts import wire
from graphweft_rules import RuleSet
from graphweft_rules.cypher.node_writes import NodeTarget
from graphweft_rules.matching.pack import LogTime
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.literals import header
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.engine.failures import quarantine
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import PositionMove
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.node_state import Change, NodeReader, changes
from graphweft_workers.replay.why import Why
from graphweft_workers.rule_sets.active_rules import LoggedRules

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3_600)]

_EXAMPLES = os.environ.get("GRAPHWEFT_EXAMPLES")
_checked = settings(
    deadline=None,
    print_blob=True,
    derandomize=_EXAMPLES is None,
    report_multiple_bugs=False,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
_targets = st.builds(
    NodeTarget,
    label=st.sampled_from(["A", "A", "A", "B", "B", "E", "Hot", "Total"]),
    keys=st.sampled_from(
        [{"k": ("a",)}, {"k": ("a",)}, {"k": ("b",)}, {"k": ("1", 1)}, {"k": ("ü",)}, {"id": ("a",)}, {"n": (2,)}]
    ),
    property=st.sampled_from([None, None, None, "n", "list", "text", "k"]),
    relationship=st.sampled_from([None, None, None, "R", "S"]),
)


class _Quick(FalkorDBStore):
    """Whether an example is on disk does not matter here."""

    async def durable(self, run: str, move: PositionMove | None = None) -> None:
        pass

    async def positions(self) -> None:
        return None


type Row = tuple[str, str, str, tuple[Change, ...]]
"""Offset, rule, mutation and changes."""


class Server:
    """An embedded server; one event loop for all examples."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self.runner = runner
        self.url = url
        self.numbers = count()

    def check(self, example: Example, given: Sequence[NodeTarget] = ()) -> None:
        """Compare for all targets, or for some nodes of memories."""
        self.runner.run(self._check(example, given, f"a{next(self.numbers)}"))

    async def _check(self, example: Example, given: Sequence[NodeTarget], app: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            rules = rules_of(example, Path(folder))
        entries = entries_of(example, [app])
        stores = [_Quick(self.url, graph_template=f"{name}_{{app_id}}") for name in ("live", "serial", "why")]
        live, serial, scratch = stores
        try:
            bus = await self._live(live, entries, rules)
            for target in given or await _memories(live, app):
                logged = LoggedRules(bus.rules, lambda _: rules, none=rules)
                why = Why(AppLog(bus=bus, app_id=app, live=live), logged, limit=10_000)
                keys = await why.keys()
                found = await why.find(target, exact=True)
                recorded = await why.record(target, scratch, found)
                rows = [(each.offset, each.rule, each.mutation, each.changes) for each in recorded.newest]
                reader = NodeReader(target, keys, serial, app)
                assert rows == await self._serial(reader, app, entries, rules)
                assert recorded.like_live or not found.rows
                assert not recorded.letters
                for store in (serial, scratch):
                    await store.whole.drop(app)
        finally:
            for store in stores:
                await store.whole.drop(app)
                await store.aclose()

    async def _live(self, store: FalkorDBStore, entries: Sequence[Entry], rules: RuleSet) -> Bus:
        workers: list[MutationWorker] = []

        def stop() -> None:
            workers[0].stop()

        bus = memory_bus([entries], stop)
        workers.append(MutationWorker(bus, store, rules, name="w", batch_events=7))
        with capture_logs():
            await workers[0].run()
        return bus

    async def _serial(self, reader: NodeReader, app: str, entries: Sequence[Entry], rules: RuleSet) -> list[Row]:
        store = reader._graph  # pyright: ignore[reportPrivateUsage]
        await store.prepare(app, rules.keys)
        found: list[Row] = []
        before = await reader.read()
        for entry in entries:
            event, logged = wire.decode(entry.fields, received=entry.received), LogTime(entry.received, 0)
            for bound in rules.match_event(event, logged).mutations:
                statement, params = query_of(bound, store.dialect)
                try:
                    await _run(store, app, statement, params)
                except ResponseError:
                    continue
                after = await reader.read()
                if seen := tuple(changes(before, after, reader.target.property)):
                    found.append((entry.offset, bound.mutation.rule, bound.mutation.id, seen))
                before = after
        return found


async def _run(store: Any, app: str, statement: str, params: Mapping[str, Any]) -> None:
    await store._redis.execute_command("GRAPH.QUERY", f"serial_{app}", header(params) + statement)


async def _memories(store: FalkorDBStore, app: str) -> list[NodeTarget]:
    """Return the first node of each label of memories, and an erased one if there is none."""
    found: list[NodeTarget] = []
    for label in ("Memory", "Fact", "Summary", "Preference", "UserProfile"):
        table = await store.read(app, f"MATCH (n:{label}) RETURN n.id ORDER BY n.id LIMIT 1", {}, timeout_s=120)
        found += [NodeTarget(label=label, keys={"id": (row[0],)}) for row in table.rows]
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory(prefix="graphweft-why-") as folder,
        asyncio.Runner() as runner,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(quarantine, "FAILURES_TO_QUARANTINE", 10**9)
        embedded = EmbeddedServer(Path(folder), fsync="everysec")
        runner.run(embedded.start())
        yield Server(runner, f"unix://{embedded.socket}")
        runner.run(embedded.stop())


@settings(_checked, max_examples=int(_EXAMPLES or 3))
@given(example=examples(events=25), given=st.lists(_targets, min_size=1, max_size=3))
def test_random_rules(server: Server, example: Example, given: list[NodeTarget]) -> None:
    server.check(example, given)


@settings(_checked, max_examples=int(_EXAMPLES or 3))
@given(example=memory_examples(events=25))
def test_random_memories(server: Server, example: Example) -> None:
    server.check(example)
