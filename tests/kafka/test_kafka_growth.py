"""A topic of events that gets more partitions: all are read, once and in order, and no chat moves."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, override

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewPartitions, NewTopic
from structlog.testing import capture_logs
from tests.services.fixtures import Logs
from tests.services.kafka_admin import administrator
from tests.services.layouts import spread
from tests.services.rules import load_rules
from tests.services.waiting import until

from graphweft import Client
from graphweft.transport import Outgoing
from graphweft.transports.kafka.connection import record_of, servers
from graphweft.transports.kafka.layout import agreed_layout, store_order, stored_layout
from graphweft.transports.kafka.transport import KafkaTransport
from graphweft_contracts import BusUnavailable, DeadLetter, Event, Layout, Order, channels, wire
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.kafka import doctor as kafka_cluster
from graphweft_workers.drivers.kafka.bus import kafka_bus
from graphweft_workers.drivers.kafka.event_log import KafkaEventLog
from graphweft_workers.drivers.kafka.timing import KafkaBusTiming
from graphweft_workers.drivers.redis import doctor as redis_servers
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.job_worker import JobWorker
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.injection.positions import InvalidPosition, Position, Positions
from graphweft_workers.injection.versions import GraphVersions
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch
from graphweft_workers.ports.graph_store import PositionMove
from graphweft_workers.ports.job import Job, JobEvent
from graphweft_workers.processes.hosting import mutation_app
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.timing import LeaseTiming, Timing

pytestmark = pytest.mark.integration

APPS = ("shop", "bank")
CHATS = tuple(f"c{number}" for number in range(6))
POISON = 7
RULES = """\
version: "1.0"
mutation_rules:
  - name: journeys
    events: ["tool.call_complete"]
    mutations:
      - id: trace
        cypher: "MERGE (j:Journey {id: $chat}) SET j.trace = coalesce(j.trace, '') + $tool + ','"
        params: {tool: $event.tool_name, chat: $workflow.chat_id}
      - id: total
        cypher: "MERGE (t:Total) SET t.calls = coalesce(t.calls, 0) + 1"
      - id: fragile
        cypher: "MERGE (s:Share) SET s.n = coalesce(s.n, 0) + 1, s.sum = 100 / $parts"
        params: {parts: $event.arguments.parts}
"""
type TextPlace = dict[tuple[str, str], list[str]]
"""App and chat -> tools, in the order of their writing."""


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    folder = tmp_path / "Shop"
    folder.mkdir()
    (folder / "graph_injection.yaml").write_text(RULES)
    return load_rules(tmp_path)


OFTEN = Timing(leases=LeaseTiming(look_s=0.1))
OFTEN_ON_KAFKA = KafkaBusTiming(metadata_ms=200)


def tool(app: str, chat: str, name: str, *, parts: int = 2) -> Event:
    data = {"tool_name": name, "arguments": {"parts": parts}}
    return Event.create("tool.call_complete", app_id=app, chat_id=chat, workflow="Shop", data=data)


def outgoing(key: str) -> Outgoing:
    return Outgoing(key=key, fields={wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: b"{}"})


async def grow(url: str, partitions: int) -> None:
    """Give the events more partitions, as an operator does, and wait until the brokers say so."""
    async with administrator(url) as admin:
        await admin.create_partitions({channels.EVENTS_TOPIC: NewPartitions(partitions)})

        async def leaders() -> list[int]:
            described = {topic["topic"]: topic["partitions"] for topic in await admin.describe_topics()}
            return [part["leader"] for part in described[channels.EVENTS_TOPIC]]

        await until(leaders, lambda found: len(found) == partitions and min(found) >= 0)


async def put(url: str, topic: str, records: Sequence[tuple[int, bytes | None, Mapping[str, bytes]]]) -> None:
    """Write as another producer does: partition, value and headers."""
    producer = AIOKafkaProducer(bootstrap_servers=url.removeprefix("kafka://"), enable_idempotence=True)
    await producer.start()
    try:
        for partition, value, headers in records:
            await producer.send(topic, value, partition=partition, headers=[*headers.items()])
        await producer.flush()
    finally:
        await producer.stop()


async def write_foreign(url: str, partitions: Sequence[int], written: TextPlace, *, count: int = 15) -> None:
    """Put events of both apps onto partitions, with chats of their own for each."""
    records: list[tuple[int, bytes | None, Mapping[str, bytes]]] = []
    for number in range(count):
        for partition in partitions:
            for app in APPS:
                event = tool(app, f"foreign{partition}", f"f{number}", parts=number % POISON)
                written[app, f"foreign{partition}"].append(f"f{number}")
                value, headers = record_of(wire.encode(event))
                records.append((partition, value, dict(headers)))
    await put(url, channels.EVENTS_TOPIC, records)


class Load:
    """Emits events of both apps, chat after chat, until it is left."""

    def __init__(self, url: str, written: TextPlace, places: dict[tuple[str, str], set[str]]) -> None:
        self._url = url
        self._written = written
        self._places = places
        self.rounds = 0
        self._over = asyncio.Event()

    async def __aenter__(self) -> Load:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._task

    async def more(self, rounds: int = 5) -> None:
        """Wait until so many more rounds are written."""
        goal = self.rounds + rounds
        await until(lambda: self.rounds, lambda rounds: rounds >= goal, beside=self._task)

    async def _run(self) -> None:
        async with Client(self._url) as client:
            while not self._over.is_set():
                keys = [(app, chat) for chat in CHATS for app in APPS]
                for key in keys:
                    self._written[key].append(f"t{len(self._written[key])}")
                emitting = [
                    client.emit(tool(*key, self._written[key][-1], parts=self.rounds % POISON), wait_s=120)
                    for key in keys
                ]
                for key, position in zip(keys, await asyncio.gather(*emitting), strict=True):
                    assert position is not None
                    self._places[key].add(position.partition(":")[0])
                self.rounds += 1


@asynccontextmanager
async def workers(url: str, graph: FalkorDBStore, rules: RuleSet) -> AsyncIterator[list[MutationWorker]]:
    """Two mutation workers, each with its own member of the group."""
    async with AsyncExitStack() as stack:
        made: list[MutationWorker] = []
        tasks: list[asyncio.Task[None]] = []
        for name in ("one", "two"):
            bus = await stack.enter_async_context(
                aclosing(kafka_bus(url, new=spread(4), session_s=6.0, timing=OFTEN_ON_KAFKA))
            )
            made.append(MutationWorker(bus, graph, rules, name=name, batch_events=50, lease_s=1.0, timing=OFTEN))
            tasks.append(asyncio.create_task(made[-1].run()))
        try:
            yield made
        finally:
            for worker in made:
                worker.stop()
            await asyncio.gather(*tasks)


async def read_up(bus: Bus, partitions: int) -> None:
    """Wait until all partitions have an owner and nothing is left on them."""
    await until(
        bus.partitions.status,
        lambda status: len(status) >= partitions and all(part.owner and not part.lag for part in status),
    )
    assert len(await bus.partitions.status()) == partitions


async def check_graphs(graph: FalkorDBStore, bus: Bus, written: TextPlace) -> None:
    """Every event took effect once, in the order of its chat; mutations that fail are dead letters, once."""
    left_out: Counter[str | None] = Counter()
    for letter in await bus.dead_letters.read(limit=10_000):
        assert (letter.reason, letter.mutation) in {("query_error", "fragile"), ("quarantined", "fragile")}
        left_out[letter.app_id] += letter.count
    for app in APPS:
        found = await graph.read(app, "MATCH (j:Journey) RETURN j.id, j.trace", {}, timeout_s=120)
        expected = {chat: ",".join(tools) + "," for (of, chat), tools in written.items() if of == app}
        assert {row[0]: row[1] for row in found.rows} == expected
        events = sum(len(tools) for (of, _), tools in written.items() if of == app)
        table = await graph.read(app, "MATCH (t:Total), (s:Share) RETURN t.calls, s.n", {}, timeout_s=120)
        assert [*map(list, table.rows)] == [[events, events - left_out[app]]]
        assert left_out[app] > 0


async def test_added_partitions_are_read_and_no_chat_moves(
    kafka_url: str, url: str, graph: FalkorDBStore, rules: RuleSet
) -> None:
    written: TextPlace = defaultdict(list)
    places: dict[tuple[str, str], set[str]] = defaultdict(set)
    async with aclosing(kafka_bus(kafka_url, new=spread(4))) as bus:
        with capture_logs() as logs:
            async with workers(kafka_url, graph, rules):
                await read_up(bus, 4)
                async with Load(kafka_url, written, places) as load:
                    await load.more()
                    await grow(kafka_url, 6)
                    await write_foreign(kafka_url, (4, 5), written)
                    # A client that starts now finds six partitions, and one that hashes over them moves chats.
                    await load.more()
                async with Load(kafka_url, written, places) as load:
                    await load.more()
                    await write_foreign(kafka_url, (4, 5), written)
                await read_up(bus, 6)
        # At a restart, with what was added while nobody ran.
        await grow(kafka_url, 7)
        await write_foreign(kafka_url, (4, 6), written)
        async with workers(kafka_url, graph, rules):
            async with Load(kafka_url, written, places) as load:
                await load.more()
            await read_up(bus, 7)
        await check_graphs(graph, bus, written)
    assert places == {(app, chat): {str(channels.partition_of(f"{app}/{chat}", 4))} for app in APPS for chat in CHATS}
    added = [
        (entry["worker"], entry["partitions"], entry["keyed"]) for entry in logs if entry["event"] == "partitions_added"
    ]
    assert sorted(added) == [("one", [4, 5], 4), ("two", [4, 5], 4)]


class Noting(Job):
    """Notes what it sees, and emits nothing."""

    group = channels.MEMORY_GROUP
    types = frozenset({"tool.call_complete"})
    tick_s = 0.1

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self.ticks: set[tuple[int, int]] = set()

    @override
    async def handle(self, seen: Sequence[JobEvent]) -> Any:
        for each in seen:
            self.seen.append((each.position.partition(":")[0], each.event.appid, each.event.data["tool_name"]))
        for event in ():
            yield event

    @override
    async def tick(self, partition: int, partitions: int) -> Any:
        self.ticks.add((partition, partitions))
        for event in ():
            yield event


async def test_a_job_of_memory_takes_up_added_partitions(kafka_url: str) -> None:
    job = Noting()
    written: TextPlace = defaultdict(list)
    async with (
        aclosing(kafka_bus(kafka_url, new=spread(2), group=job.group, session_s=6.0, timing=OFTEN_ON_KAFKA)) as bus,
        aclosing(KafkaTransport(kafka_url)) as transport,
    ):
        worker = JobWorker(bus, transport, job, name="one", lease_s=1.0, timing=OFTEN)
        running = asyncio.create_task(worker.run())
        try:
            await read_up(bus, 2)
            await grow(kafka_url, 3)
            await write_foreign(kafka_url, (2,), written, count=5)
            await read_up(bus, 3)
            await until(lambda: {*job.ticks}, lambda ticks: ticks >= {(number, 3) for number in range(3)})
        finally:
            worker.stop()
            await running
    for app in APPS:
        assert [name for place, of, name in job.seen if of == app and place == "2"] == [f"f{n}" for n in range(5)]


async def test_a_topic_from_before_keeps_the_partitions_it_is_first_seen_with(kafka_url: str) -> None:
    async with administrator(kafka_url) as admin:
        await admin.create_topics([NewTopic(channels.EVENTS_TOPIC, 3, 1)])
    keys = [f"app/chat-{number}" for number in range(30)]
    places: list[list[int]] = []
    for partitions in (3, 5, 8):
        if partitions > 3:
            await grow(kafka_url, partitions)
        async with aclosing(KafkaTransport(kafka_url, new=spread(8))) as transport:
            positions = await transport.append([outgoing(key) for key in keys])
        places.append([int(position.partition(":")[0]) for position in positions])
        async with aclosing(kafka_bus(kafka_url, new=spread(2))) as bus:
            assert ((await bus.partitions.layout()).partitions, await bus.partitions.count()) == (3, partitions)
    assert places == [[channels.partition_of(key, 3) for key in keys]] * 3


async def test_of_first_processes_at_once_one_wins_and_all_obey(kafka_url: str) -> None:
    brokers = servers(kafka_url)
    async with administrator(kafka_url) as admin:
        await admin.create_topics([NewTopic(channels.EVENTS_TOPIC, 6, 1), NewTopic(channels.PARTITIONS_TOPIC, 1, 1)])
        # Some have seen the topic before it grew to six partitions.
        wanted: list[tuple[int, Order]] = [(4, "app"), (6, "chat"), (4, "chat"), (6, "app"), (6, "chat")]
        agreed = await asyncio.gather(*(agreed_layout(brokers, admin, present, order) for present, order in wanted))
        assert agreed == agreed[:1] * 5
        assert (agreed[0].partitions, agreed[0].order) in wanted
        await grow(kafka_url, 8)
        other: Order = "chat" if agreed[0].order == "app" else "app"
        assert await agreed_layout(brokers, admin, 8, other) == agreed[0] == await stored_layout(brokers)
        await store_order(brokers, "acme", other)
        stored = await stored_layout(brokers)
        assert stored is not None
        assert (stored.order_of("acme"), stored.order_of("globex")) == (other, agreed[0].order)


@pytest.mark.parametrize(
    "strange",
    [
        b"",
        b"8",
        b"[8]",
        b'{"partitions": 0}',
        b'{"partitions": "8"}',
        b'{"partitions": true}',
        b"\xff",
        b"[" * 9_000,
    ],
)
async def test_records_of_others_do_not_set_the_number(
    kafka_url: str, strange: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = servers(kafka_url)
    async with administrator(kafka_url) as admin:
        await admin.create_topics([NewTopic(channels.EVENTS_TOPIC, 3, 1), NewTopic(channels.PARTITIONS_TOPIC, 1, 1)])
        await put(kafka_url, channels.PARTITIONS_TOPIC, [(0, strange, {})])
        assert (await agreed_layout(brokers, admin, 3, "app")).partitions == 3
        assert "ignored a foreign record" in caplog.text
        await put(kafka_url, channels.PARTITIONS_TOPIC, [(0, b'{"partitions": 1}', {})])
        assert await agreed_layout(brokers, admin, 3, "chat") == Layout(partitions=3, order="app")


async def test_events_made_anew_with_fewer_partitions_are_refused_with_the_next_step(kafka_url: str) -> None:
    async with aclosing(kafka_bus(kafka_url, new=spread(4))) as bus:
        await bus.partitions.count()
    async with administrator(kafka_url) as admin:
        await admin.delete_topics([channels.EVENTS_TOPIC])
        await until(admin.list_topics, lambda names: channels.EVENTS_TOPIC not in names)
        await admin.create_topics([NewTopic(channels.EVENTS_TOPIC, 2, 1)])
    async with (
        aclosing(kafka_bus(kafka_url, new=spread(4))) as bus,
        aclosing(KafkaTransport(kafka_url)) as transport,
    ):
        with pytest.raises(BusUnavailable, match=r"has 2 partitions.*says 4.*delete graphweft\.partitions too"):
            await bus.partitions.count()
        with pytest.raises(BusUnavailable, match=r"delete graphweft\.partitions too"):
            await transport.append([outgoing("k")])
    found = {check.name: check for check in await kafka_cluster.examine(kafka_url, "", new=spread(4))}
    assert found["bus partitions"].state == "fail"


async def test_positions_on_added_partitions_are_known(
    kafka_url: str, url: str, graph: FalkorDBStore, rules: RuleSet
) -> None:
    """A responder that runs since before the growth."""
    async with aclosing(kafka_bus(kafka_url, new=spread(2))) as bus, aclosing(Background()) as background:
        assert await bus.partitions.count() == 2
        positions = Positions(bus, GraphVersions(graph, Breaker(), background), rules, background)
        soon = time.monotonic() + 20
        with pytest.raises(InvalidPosition, match="partitions 0 to 1"):
            await positions.read("2:0", soon)
        await grow(kafka_url, 3)
        # A bus that was never told anew can still say where the group stands.
        assert (await bus.partitions.committed(2)).count == 0
        assert await positions.read("2:0", soon) == Position(partition=2, offset="0")
        with pytest.raises(InvalidPosition, match="partitions 0 to 2"):
            await positions.read("3:0", soon)
        assert [part.id for part in await bus.partitions.status()] == [0, 1, 2]


async def test_a_dead_letter_of_an_added_partition_goes_back_there(kafka_url: str) -> None:
    async with aclosing(kafka_bus(kafka_url, new=spread(2))) as bus:
        await bus.partitions.count()
        await grow(kafka_url, 3)
        fields = wire.encode(tool("shop", "c", "t"))
        letter = DeadLetter.model_validate(
            {"id": "one", "reason": "query_error", "message": "no", "position": "2:0", "time": "2026-01-01T00:00:00Z",
             "fields": wire.pack(fields)}
        )  # fmt: skip
        await bus.dead_letters.put([letter])
        assert await bus.dead_letters.requeue(letter, [fields])
        (entry,) = await bus.log.after(2, "", limit=10)
        assert entry.fields[wire.DATA] == fields[wire.DATA]
        assert [part.lag for part in await bus.partitions.status()][:2] == [0, 0]


async def warnings_of_a_start(settings: Settings, logs: Logs) -> list[str]:
    """Connect the app of a worker, as its start does; return what it warns of its partitions."""
    logs.clear()
    app: Any = mutation_app(settings)
    try:
        await app._start_broker()
    finally:
        await app.broker.stop()
    return [f"{entry['found']}: {entry['next']}" for entry in logs if entry["event"] == "layout_differs"]


@pytest.mark.parametrize("kind", ["redis", "kafka"])
async def test_a_setting_of_other_partitions_is_reported(
    kind: str,
    request: pytest.FixtureRequest,
    url: str,
    rules: RuleSet,
    tmp_path: Path,
    logs: Logs,
) -> None:
    if kind == "kafka":
        kafka: Any = request.getfixturevalue("kafka")
        from tests.services.fixtures import empty_kafka

        await empty_kafka(kafka)
        bus_url, bus = kafka.url, kafka_bus(kafka.url, new=spread(4))
    else:
        bus_url, bus = url, redis_bus(url, new=spread(4))
    async with aclosing(bus):
        await bus.partitions.count()
    if kind == "kafka":
        await grow(bus_url, 6)

    async def advised(asked: int | None) -> list[tuple[str, str]]:
        new, given = spread(asked or 4), {"partitions"} if asked else set[str]()
        examine = kafka_cluster.examine if kind == "kafka" else redis_servers.examine
        checks = await examine(bus_url, "", new=new, asked=given)
        return [(each.found, each.advice) for each in checks if each.name == "bus partitions" and each.state == "warn"]

    for asked in (None, 4, 6):
        given = {"partitions": asked} if asked else {}
        settings = Settings.load(bus_url=bus_url, graph_url=url, rules=tmp_path, **given)
        warned = await warnings_of_a_start(settings, logs)
        found = await advised(asked)
        if asked == 6:
            (line,) = warned
            assert "GRAPHWEFT_PARTITIONS 6 has no effect" in line
            assert "set GRAPHWEFT_PARTITIONS to 4" in line
            ((said, advice),) = found
            assert "GRAPHWEFT_PARTITIONS 6 has no effect" in said
            assert "set GRAPHWEFT_PARTITIONS to 4" in advice
        else:
            assert (warned, found) == ([], [])


async def test_doctor_says_that_added_partitions_move_no_chat(kafka_url: str) -> None:
    async with aclosing(kafka_bus(kafka_url, new=spread(2))) as bus:
        await bus.partitions.count()
    await grow(kafka_url, 3)
    found = {check.name: check for check in await kafka_cluster.examine(kafka_url, "", new=spread(4))}
    assert "first 2 of 3" in found["bus partitions"].found
    assert found["bus partitions"].state == "ok"
    assert "partitions topic" not in found


async def test_doctor_finds_a_number_that_would_be_dropped_by_age(kafka_url: str) -> None:
    topics = [NewTopic(channels.PARTITIONS_TOPIC, 1, 1, topic_configs={"retention.ms": "3600000"})]
    async with administrator(kafka_url) as admin:
        await admin.create_topics(topics)
    found = {check.name: check for check in await kafka_cluster.examine(kafka_url, "", new=spread(4))}
    assert found["partitions topic"].state == "fail"
    assert "retention.ms=-1" in found["partitions topic"].advice


async def abort_one(url: str, partition: int, transaction: str) -> None:
    """Write a record in a transaction that is aborted: it and Kafka's mark take offsets, and nobody reads either."""
    producer = AIOKafkaProducer(bootstrap_servers=url.removeprefix("kafka://"), transactional_id=transaction)
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait(channels.EVENTS_TOPIC, b"never", partition=partition)
        await producer.abort_transaction()
    finally:
        await producer.stop()


async def test_workers_step_over_marks_of_transactions(
    kafka_url: str, url: str, rules: RuleSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they come while a worker is idle, while its commit is slow, or in front of a new worker."""
    begun, go_on, stepped = asyncio.Event(), asyncio.Event(), asyncio.Event()
    go_on.set()
    read = KafkaEventLog.read

    async def noted(log: KafkaEventLog, *arguments: Any, **options: Any) -> Batch:
        batch = await read(log, *arguments, **options)
        if batch.stepped:
            stepped.set()
        return batch

    monkeypatch.setattr(KafkaEventLog, "read", noted)

    class Store(FalkorDBStore):
        @override
        async def durable(self, run: str, move: PositionMove | None = None) -> None:
            begun.set()
            await go_on.wait()
            await super().durable(run, move)

    async with aclosing(kafka_bus(kafka_url, new=spread(4))) as watch, aclosing(Store(url)) as graph:
        count = await watch.partitions.count()
        async with workers(kafka_url, graph, rules):
            await read_up(watch, count)
            for partition in range(count):
                await abort_one(kafka_url, partition, f"idle{partition}")
            await read_up(watch, count)
            go_on.clear()
            begun.clear()
            async with Client(kafka_url) as client:
                await asyncio.gather(*(client.emit(tool("shop", chat, "t"), wait_s=120) for chat in CHATS))
            await begun.wait()
            stepped.clear()
            await abort_one(kafka_url, 0, "slow")
            await stepped.wait()
            go_on.set()
            await read_up(watch, count)
        await abort_one(kafka_url, 1, "nobody")
        async with workers(kafka_url, graph, rules):
            await read_up(watch, count)
