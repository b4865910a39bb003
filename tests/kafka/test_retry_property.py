"""Whatever fails or is skipped, for whatever mixture of rules, apps, chats and partitions: a retry after the fix brings
each mutation of each event into the graph exactly once, with quarantine on. What is dropped never gets there. A replay
of the log gives the same graph.

Without ``GRAPHWEFT_EXAMPLES``, which is the number of random examples, they are few, and the same in every run.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.chaos.serial import Content
from tests.services.buses import applied
from tests.services.fixtures import empty_kafka
from tests.services.kafka import KafkaServer
from tests.services.layouts import spread
from tests.services.rules import load_rules

from graphweft import Event
from graphweft.transport import Outgoing, Transport
from graphweft.transports.registry import make_transport
from graphweft_contracts import DeadLetter, wire
from graphweft_rules import RuleSet
from graphweft_rules.cypher.mutation_summary import MutationSummary, union
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.kafka.bus import kafka_bus
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.failures import quarantine
from graphweft_workers.engine.failures.retries import drop, retry
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import PositionMove
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.replay.replay import Replay
from graphweft_workers.rule_sets.active_rules import ActiveRules, FixedRules, RulesCursor
from graphweft_workers.support.timing import QuarantineTiming, Timing

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3_600)]

_EXAMPLES = os.environ.get("GRAPHWEFT_EXAMPLES")
_PARTITIONS = 3
_TYPES = ("a.one", "a.two")
_LONGEST_S = 60.0
_checked = settings(
    deadline=None,
    print_blob=True,
    derandomize=_EXAMPLES is None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)

type Fault = Literal["none", "always", "sometimes", "lacks a value", "undecided condition"]


@dataclass(frozen=True, slots=True)
class Rule:
    types: tuple[str, ...]
    faults: tuple[Fault, ...]
    """Of its mutations."""


@dataclass(frozen=True, slots=True)
class Emitted:
    type: str
    app: int
    chat: int
    workflow: Literal["W", "Late"]
    divisor: int
    has_value: bool


@dataclass(frozen=True, slots=True)
class Example:
    rules: tuple[Rule, ...]
    events: tuple[Emitted, ...]
    batch: int
    failures_to_quarantine: int
    first_probe_s: float
    retried_too_early: bool
    interrupted_after_s: float | None
    drops: int
    """Every so many-th dead letter is dropped instead of retried; 0: none."""


_rules = st.builds(
    Rule,
    types=st.sampled_from([("a.one",), ("a.two",), _TYPES]),
    faults=st.lists(
        st.sampled_from(["none", "always", "always", "sometimes", "lacks a value", "undecided condition"]),
        min_size=1,
        max_size=3,
    ).map(tuple),
)
_events = st.builds(
    Emitted,
    type=st.sampled_from(_TYPES),
    app=st.integers(0, 1),
    chat=st.integers(0, 5),
    workflow=st.sampled_from(["W", "W", "W", "Late"]),
    divisor=st.sampled_from([0, 1, 2]),
    has_value=st.booleans(),
)
_examples = st.builds(
    Example,
    rules=st.lists(_rules, min_size=1, max_size=3).map(tuple),
    events=st.lists(_events, min_size=6, max_size=50).map(tuple),
    batch=st.sampled_from([2, 10, 100]),
    failures_to_quarantine=st.sampled_from([1, 2, 4]),
    first_probe_s=st.sampled_from([0.0, 10.0, 10.0]),
    retried_too_early=st.booleans(),
    interrupted_after_s=st.sampled_from([None, None, 0.02, 0.08]),
    drops=st.sampled_from([0, 2, 3]),
)


def _mutation(number: int, index: int, fault: Fault, *, mended: bool) -> dict[str, Any]:
    name = f"r{number}/m{index}"
    cypher = f"MERGE (t:Ran {{m: '{name}', e: $id}}) SET t.n = coalesce(t.n, 0) + 1"
    params = {"id": "$event.name"}
    if fault == "none":
        cypher += " MERGE (c:Chat {k: $chat}) SET c.names = coalesce(c.names, []) + [$id]"
        params["chat"] = "$workflow.chat_id"
    if fault == "always" and not mended:
        cypher += ", t.x = 1 / $zero"
        params["zero"] = "$event.zero"
    if fault == "sometimes" and not mended:
        cypher += ", t.x = 1 / $divisor"
        params["divisor"] = "$event.divisor"
    if fault == "lacks a value" and not mended:
        params["value"] = "$event.value"
        cypher += ", t.x = $value"
    return {"id": f"m{index}", "cypher": cypher, "params": params}


def rules_of(example: Example, folder: Path, *, mended: bool) -> RuleSet:
    rules: list[dict[str, Any]] = []
    for number, rule in enumerate(example.rules):
        for index, fault in enumerate(rule.faults):
            entry: dict[str, Any] = {
                "name": f"r{number}m{index}",
                "events": list(rule.types),
                "mutations": [_mutation(number, index, fault, mended=mended)],
            }
            if fault == "undecided condition":
                entry["condition"] = "has($event.value)" if mended else "$event.value == 1"
            rules.append(entry)
    for name in ("W", "Late") if mended else ("W",):
        (folder / name).mkdir(parents=True)
        text = json.dumps({"version": "1.0", "mutation_rules": rules})
        (folder / name / "graph_injection.yaml").write_text(text)
    return load_rules(folder)


type Effect = tuple[str, str]
"""Mutation and event."""


def expected_of(example: Example, app: int) -> Counter[Effect]:
    """Return which mutation of which event takes effect in a serial pass with the mended rules."""
    found: Counter[Effect] = Counter()
    for place, event in enumerate(example.events):
        for number, rule in enumerate(example.rules):
            for index, fault in enumerate(rule.faults):
                applies = event.type in rule.types and (fault != "undecided condition" or event.has_value)
                if event.app == app and applies:
                    found[f"r{number}/m{index}", f"e{place}"] += 1
    return found


class _Quick(FalkorDBStore):
    """Whether an example is on disk does not matter here."""

    async def durable(self, run: str, move: PositionMove | None = None) -> None:
        pass

    async def positions(self) -> None:
        return None


@asynccontextmanager
async def working(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet, batch: int, timing: Timing
) -> AsyncIterator[asyncio.Task[None]]:
    worker = MutationWorker(bus, graph, rules, name="w", batch_events=batch, timing=timing)
    task = asyncio.create_task(worker.run())
    try:
        yield task
    finally:
        worker.stop()
        await task


async def letters_of(bus: Bus, apps: Sequence[str]) -> Sequence[DeadLetter]:
    """Return the dead letters of an example: one that failed leaves its own, and the next one must not fail by them."""
    return [letter for letter in await bus.dead_letters.read(limit=100_000) if letter.app_id in apps]


class _Switched(FixedRules):
    """Rules that were switched at one place of each partition."""

    def __init__(self, bus: Bus, broken: RuleSet, mended: RuleSet, ends: Mapping[int, str]) -> None:
        super().__init__(mended)
        self._bus = bus
        self._sets = (broken, mended)
        self._ends = ends

    @property
    def known(self) -> int:
        return 2

    @property
    def summary(self) -> MutationSummary:
        return union(each.summary.mutations for each in self._sets)

    def cursor(self, partition: int, after: str) -> RulesCursor:
        return _SwitchedCursor(self._bus, self._sets, self._ends[partition])


class _SwitchedCursor:
    def __init__(self, bus: Bus, sets: tuple[RuleSet, RuleSet], end: str) -> None:
        self._bus = bus
        self._sets = sets
        self._end = end

    def at(self, app_id: str, offset: str) -> RuleSet:
        return self._sets[is_after(offset, self._end)]

    def knows(self, number: int | None) -> bool:
        return False


async def dropped_effects(bus: Bus, example: Example, letter: DeadLetter) -> set[Effect]:
    """Drop a letter, and return what it stands for."""
    effects: set[Effect] = set()
    for entry in await bus.log.entries(letter.partition, letter.offsets or (letter.offset,)):
        event = wire.decode(entry.fields, received=entry.received)
        assert event.data is not None
        for number, rule in enumerate(example.rules):
            for index in range(len(rule.faults)):
                if letter.rule in (None, f"r{number}m{index}"):
                    effects.add((f"r{number}/m{index}", event.data["name"]))
    assert await drop(bus, letter) is None
    return effects


_numbers = count()
"""Of apps: the two buses share a graph server, and a graph knows the offsets of one."""


class Server:
    """A bus and a graph; one event loop for all examples."""

    def __init__(
        self, runner: asyncio.Runner, bus: Bus, graph: FalkorDBStore, again: FalkorDBStore, transport: Transport
    ) -> None:
        self.runner = runner
        self.again = again
        self.bus = bus
        self.graph = graph
        self.transport = transport

    def check(self, example: Example) -> None:
        apps = [f"a{(number := next(_numbers))}", f"b{number}"]
        with capture_logs(), tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(quarantine, "FAILURES_TO_QUARANTINE", example.failures_to_quarantine)
            patch.setattr(quarantine, "USERS_TO_QUARANTINE", 1)
            broken = rules_of(example, Path(folder, "broken"), mended=False)
            mended = rules_of(example, Path(folder, "mended"), mended=True)
            self.runner.run(self._check(example, apps, broken, mended))

    async def _check(self, example: Example, apps: Sequence[str], broken: RuleSet, mended: RuleSet) -> None:
        bus, timing = self.bus, Timing(quarantine=QuarantineTiming(first_probe_s=example.first_probe_s))
        outgoing: list[Outgoing] = []
        for place, one in enumerate(example.events):
            data = {"name": f"e{place}", "zero": 0, "divisor": one.divisor} | ({"value": 1} if one.has_value else {})
            event = Event.create(
                one.type, app_id=apps[one.app], chat_id=f"c{one.chat}", workflow=one.workflow, data=data
            )
            outgoing.append(Outgoing(key=event.key, fields=wire.encode(event)))
        await self.transport.append(outgoing)
        if example.interrupted_after_s is not None:
            worker = asyncio.create_task(
                MutationWorker(bus, self.graph, broken, name="w", batch_events=example.batch, timing=timing).run()
            )
            await asyncio.wait([worker], timeout=example.interrupted_after_s)
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            for partition in range(_PARTITIONS):
                await bus.leases.release(partition, "w")
        async with working(bus, self.graph, broken, example.batch, timing) as task:
            await applied(bus, worker=task)
            if example.retried_too_early:
                for letter in await letters_of(bus, apps):
                    await retry(bus, letter)
                await applied(bus, worker=task)
        ends = {status.id: status.end for status in await bus.partitions.status()}
        dropped: set[Effect] = set()
        async with working(bus, self.graph, mended, example.batch, timing) as task:
            while letters := await letters_of(bus, apps):
                for number, letter in enumerate(letters):
                    assert letter.count == max(1, len(letter.offsets))
                    if example.drops and number % example.drops == 0:
                        dropped |= await dropped_effects(bus, example, letter)
                        continue
                    done = await retry(bus, letter)
                    assert (done.events, done.kept) == (letter.count, None)
                await applied(bus, worker=task)
        for number, app in enumerate(apps):
            found = await self.graph.read(app, "MATCH (t:Ran) RETURN t.m, t.e, t.n", {}, timeout_s=120)
            expected = expected_of(example, number)
            for effect in dropped:
                expected.pop(effect, None)
            assert Counter({(name, event): times for name, event, times in found.rows}) == expected
            await self._check_order(example, number, app)
            await self._check_replay(app, _Switched(bus, broken, mended, ends))

    async def _check_replay(self, app: str, rules: ActiveRules) -> None:
        replay = Replay(self.bus, self.again, rules, app, batch_events=7)
        for partition in range(_PARTITIONS):
            async for done in replay.run(partition):
                assert (done.skips, dict(done.letters)) == ({}, {})
        live, again = await Content.of(self.graph, app), await Content.of(self.again, app)
        assert live.digest == again.digest, again.against(live)

    async def _check_order(self, example: Example, number: int, app: str) -> None:
        """Events that nothing was wrong with took effect in their order."""
        chats = (await self.graph.read(app, "MATCH (c:Chat) RETURN c.k, c.names", {}, timeout_s=120)).rows
        for chat, names in chats:
            mine = [
                f"e{place}"
                for place, event in enumerate(example.events)
                if (event.app, f"c{event.chat}", event.workflow) == (number, chat, "W")
            ]
            order = {name: place for place, name in enumerate(mine)}
            places = [order[name] for name in names if name in order]
            assert places == sorted(places)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def embedded(runner: asyncio.Runner) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="graphweft-retries-") as folder:
        server = EmbeddedServer(Path(folder), fsync="everysec")
        runner.run(server.start())
        yield f"unix://{server.socket}"
        runner.run(server.stop())


def _serve(runner: asyncio.Runner, bus: Bus, graph_url: str, transport: Transport) -> Iterator[Server]:
    graph, again = _Quick(graph_url), _Quick(graph_url, graph_template="{app_id}-again")
    yield Server(runner, bus, graph, again, transport)
    for each in (graph, again, bus, transport):
        runner.run(each.aclose())


@pytest.fixture(scope="module")
def redis(runner: asyncio.Runner, embedded: str) -> Iterator[Server]:
    bus = redis_bus(embedded, new=spread(_PARTITIONS))
    yield from _serve(runner, bus, embedded, make_transport(embedded, new=spread(_PARTITIONS)))


@pytest.fixture(scope="module")
def on_kafka(runner: asyncio.Runner, embedded: str, kafka: KafkaServer) -> Iterator[Server]:
    async def connect() -> tuple[Bus, Transport]:
        await empty_kafka(kafka)
        return kafka_bus(kafka.url, new=spread(_PARTITIONS)), make_transport(kafka.url, new=spread(_PARTITIONS))

    bus, transport = runner.run(connect())
    yield from _serve(runner, bus, embedded, transport)


@settings(_checked, max_examples=int(_EXAMPLES or 3))
@given(example=_examples)
def test_a_retry_applies_each_mutation_once_on_redis(redis: Server, example: Example) -> None:
    redis.check(example)


@pytest.mark.long
@settings(_checked, max_examples=int(_EXAMPLES or 2))
@given(example=_examples)
def test_a_retry_applies_each_mutation_once_on_kafka(on_kafka: Server, example: Example) -> None:
    # A worker that is cancelled leaves sockets of aiokafka open; test_chaos kills processes instead.
    on_kafka.check(replace(example, interrupted_after_s=None))
