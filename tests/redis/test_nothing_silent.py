"""What has no effect is counted and comes back; what is slow or poisonous harms its own app only."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.chaos.serial import Neo4jReference
from tests.services.buses import applied
from tests.services.fixtures import empty_kafka
from tests.services.kafka import KafkaServer
from tests.services.layouts import spread
from tests.services.rules import load_rules
from tests.services.waiting import until
from tests.services.workers import working

from graphweft import Event
from graphweft.transport import Outgoing, Transport
from graphweft.transports.registry import make_transport
from graphweft_contracts import GraphUnavailable, channels, wire
from graphweft_rules import RuleSet
from graphweft_rules.matching.pack import LogTime
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.kafka.bus import kafka_bus
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.failures.dead_letter_counts import count_causes
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.engine.failures.set_aside import set_aside
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count, letter_with
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import GraphStore, Write, WriteResult
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.reports.delivery import SentEvents, outcome_of
from graphweft_workers.support.timing import QueueTiming, Timing

pytestmark = pytest.mark.integration
PARTITIONS = 2
RULES = """
version: "1.0"
mutation_rules:
  - name: order
    events: ["order.placed"]
    mutations:
      - id: count
        cypher: "MERGE (c:Count {k: 'all'}) SET c.n = coalesce(c.n, 0) + 1"
      - id: item
        cypher: "MERGE (o:Order {id: $id}) SET o.n = coalesce(o.n, 0) + 1"
        params: {id: "$event.ORDER"}
"""


def rules_of(folder: Path, field: str = "order_id", workflows: Sequence[str] = ("Shop",)) -> RuleSet:
    for name in workflows:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "graph_injection.yaml").write_text(RULES.replace("ORDER", field))
    return load_rules(folder)


def placed(number: int, app: str = "a", workflow: str | None = "Shop", chat: str | None = None) -> Event:
    return Event.create(
        "order.placed", app_id=app, chat_id=chat or f"c{number % 8}", workflow=workflow, id=f"{app}{number}",
        data={"order_id": f"o{number}"},
    )  # fmt: skip


async def put(transport: Transport, events: Sequence[Event]) -> Sequence[str]:
    return await transport.append([Outgoing(key=event.key, fields=wire.encode(event)) for event in events])


async def value(graph: GraphStore, app: str, statement: str) -> Any:
    rows = (await graph.read(app, statement, {}, timeout_s=120)).rows
    return rows[0][0] if rows else None


ORDERS = "MATCH (o:Order) RETURN sum(o.n)"
COUNT = "MATCH (c:Count) RETURN c.n"


async def test_a_skipped_mutation_is_counted_once_and_comes_back(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    typo, mended = rules_of(tmp_path / "typo", "order_idd"), rules_of(tmp_path / "mended")
    positions = await put(transport, [placed(number, app) for number in range(50) for app in ("a", "b")])
    async with working(bus, graph, typo, batch_events=7):
        await applied(bus)
    # The next worker reads a part again, and counts nothing twice.
    for partition in range(PARTITIONS):
        at = await bus.partitions.committed(partition)
        async with _rewound(bus, partition, at):
            pass
    async with working(bus, graph, typo, batch_events=7):
        await applied(bus)
    letters = await bus.dead_letters.read(limit=100)
    assert {(letter.app_id, letter.reason, letter.rule, letter.mutation) for letter in letters} == {
        ("a", "skipped", "order", "item"),
        ("b", "skipped", "order", "item"),
    }
    assert len({(letter.partition, letter.app_id) for letter in letters}) == len(letters)
    [one, other] = count_causes(letters)
    assert (one.events, other.events) == (50, 50)
    assert "$event.order_idd" in one.message
    assert "graph_injection.yaml:" in str(one.place)
    outcome = await outcome_of(bus, SentEvents(events=100, positions=set(positions)))
    assert (outcome.applied, outcome.skipped, outcome.dead_lettered) == (0, 100, 0)
    async with working(bus, graph, mended):
        for letter in letters:
            assert (await retry(bus, letter)).events == letter.count
        await applied(bus)
    for app in ("a", "b"):
        assert [await value(graph, app, ORDERS), await value(graph, app, COUNT)] == [50, 50]
    assert await letter_count(bus.dead_letters) == 0


async def test_what_is_sent_again_does_not_count_as_applied(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    events = [placed(number, app) for number in range(20) for app in ("a", "b")]
    async with working(bus, graph, rules_of(tmp_path / "typo", "order_idd")):
        first = await put(transport, events)
        await applied(bus)
        again = await put(transport, [*events, placed(20, "a"), placed(20, "a")])
        await applied(bus)
    outcome = await outcome_of(bus, SentEvents(events=40, positions=set(first)))
    assert (outcome.applied, outcome.skipped, outcome.repeated) == (0, 40, 0)
    outcome = await outcome_of(bus, SentEvents(events=42, positions=set(again)))
    assert (outcome.applied, outcome.skipped, outcome.repeated) == (0, 1, 41)


@asynccontextmanager
async def _rewound(bus: Bus, partition: int, at: CommittedPosition) -> AsyncIterator[None]:
    """Set the position back, as a crash before its commit leaves it; the note stays."""
    entries = await bus.log.before(partition, at.offset, limit=5)
    await bus.log._redis.execute_command(  # pyright: ignore[reportPrivateUsage]
        "XGROUP", "SETID", channels.events_stream(partition), channels.MUTATION_GROUP, entries[0].offset,
        "ENTRIESREAD", at.count - 4,
    )  # fmt: skip
    yield


async def test_a_letter_of_skips_that_is_full_is_followed_by_another(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphweft_workers.engine.failures.skips.MOST_OFFSETS", 8)
    await put(transport, [placed(number, chat="one") for number in range(30)])
    async with working(bus, graph, rules_of(tmp_path / "typo", "order_idd"), batch_events=5):
        await applied(bus)
    letters = await bus.dead_letters.read(limit=100)
    assert sorted(letter.count for letter in letters) == [6, 8, 8, 8]
    async with working(bus, graph, rules_of(tmp_path / "mended")):
        assert sum([(await retry(bus, letter)).events for letter in letters]) == 30
        await applied(bus)
    assert await value(graph, "a", ORDERS) == 30


async def test_events_of_a_workflow_whose_rules_come_later_are_kept(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    rules = rules_of(tmp_path)
    await put(transport, [placed(number, workflow=name) for number, name in enumerate(("Shop", "Late", "Later") * 4)])
    async with working(bus, graph, rules):
        await applied(bus)
    letters = [letter for letter in await bus.dead_letters.read(limit=100) if letter.workflow == "Late"]
    assert {letter.reason for letter in letters} == {"no_rules"}
    assert sum(letter.count for letter in letters) == 4
    assert await value(graph, "a", ORDERS) == 4
    async with working(bus, graph, rules_of(tmp_path, workflows=("Shop", "Late"))):
        for letter in letters:
            await retry(bus, letter)
        await applied(bus)
    assert await value(graph, "a", ORDERS) == 8
    assert {letter.workflow for letter in await bus.dead_letters.read(limit=100)} == {"Later"}


async def test_a_retry_whose_events_left_the_bus_keeps_its_letter(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    positions = await put(transport, [placed(number, chat="one") for number in range(10)])
    async with working(bus, graph, rules_of(tmp_path / "typo", "order_idd")):
        await applied(bus)
    [letter] = await bus.dead_letters.read(limit=10)
    await bus.log._redis.xtrim(  # pyright: ignore[reportPrivateUsage]
        channels.events_stream(letter.partition), minid=positions[4].partition(":")[2], approximate=False
    )
    told = await retry(bus, letter)
    assert (told.events, "4 of its 10 events" in str(told.kept)) == (0, True)
    assert await bus.dead_letters.read(limit=10) == [letter]
    async with working(bus, graph, rules_of(tmp_path / "mended")):
        assert (await retry(bus, letter, partial=True)).events == 6
        await applied(bus)
    assert await value(graph, "a", ORDERS) == 6
    [rest] = await bus.dead_letters.read(limit=10)
    assert (rest.reason, rest.count) == ("trimmed", 4)


# Apps that are slow


class Over:
    """A graph of which one method does something else."""

    def __init__(self, graph: GraphStore, about: str) -> None:
        self._graph = graph
        self._about = about
        """The app, or the order, at which it does."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)


class Slow(Over):
    """A graph in which the writes of one app take long, as a query does that runs into its time limit."""

    def __init__(self, graph: GraphStore, app: str) -> None:
        super().__init__(graph, app)
        self.free = asyncio.Event()
        self.waits = asyncio.Event()

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        if app_id == self._about and not self.free.is_set():
            self.waits.set()
            await self.free.wait()
        return await self._graph.apply(app_id, partition, writes)


@pytest.mark.parametrize("batch_events", [4, 1_000])
async def test_a_slow_app_does_not_hold_up_its_neighbours(
    bus: Bus,
    graph: FalkorDBStore,
    transport: Transport,
    tmp_path: Path,
    batch_events: int,
) -> None:
    rules, timing = rules_of(tmp_path), Timing(queues=QueueTiming(park_s=0.3))
    slow = Slow(graph, "slow")
    await put(transport, [placed(number, app) for number in range(10) for app in ("slow", "quick")])
    with capture_logs() as logs:
        async with working(bus, slow, rules, batch_events=batch_events, timing=timing):
            await slow.waits.wait()
            for start in range(10, 60, 10):
                await put(transport, [placed(number, app) for number in range(start, start + 10)
                                      for app in ("slow", "quick")])  # fmt: skip

                async def neighbour(done: int = start + 10) -> bool:
                    return bool(await value(graph, "quick", ORDERS) == done)

                await until(neighbour)
            assert not await value(graph, "slow", ORDERS)

            async def shown() -> bool:
                parked = [PositionNote.decode(part.note).parked for part in await bus.partitions.status()]
                return any("slow" in apps for apps in parked) and not any("quick" in apps for apps in parked)

            await until(shown)
            assert sum(part.lag for part in await bus.partitions.status()) > 0
            slow.free.set()
            await applied(bus)
            assert all(not PositionNote.decode(part.note).parked for part in await bus.partitions.status())
    assert any(log["event"] == "app_parked" for log in logs) == (batch_events == 4)
    for app in ("slow", "quick"):
        assert [await value(graph, app, ORDERS), await value(graph, app, COUNT)] == [60, 60]
    assert await letter_count(bus.dead_letters) == 0


async def test_a_worker_that_dies_with_a_parked_app_loses_and_doubles_nothing(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    typo, timing = rules_of(tmp_path / "typo", "order_idd"), Timing(queues=QueueTiming(park_s=0.2))
    slow = Slow(graph, "slow")
    await put(transport, [placed(number, app) for number in range(40) for app in ("slow", "quick")])
    worker = MutationWorker(bus, slow, typo, name="w", batch_events=4, timing=timing)  # type: ignore[arg-type]
    first = asyncio.create_task(worker.run())

    async def parked() -> bool:
        notes = [PositionNote.decode(part.note) for part in await bus.partitions.status()]
        return all("slow" in note.parked for note in notes) and await value(graph, "quick", COUNT) == 40

    await until(parked)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    # What was counted of the quick app is not counted again, and the slow one's is counted now.
    async with working(bus, graph, typo):
        await applied(bus)
    letters = await bus.dead_letters.read(limit=100)
    counts = {app: sum(letter.count for letter in letters if letter.app_id == app) for app in ("slow", "quick")}
    assert counts == {"slow": 40, "quick": 40}
    async with working(bus, graph, rules_of(tmp_path / "mended")):
        for letter in letters:
            await retry(bus, letter)
        await applied(bus)
    for app in ("slow", "quick"):
        assert [await value(graph, app, ORDERS), await value(graph, app, COUNT)] == [40, 40]


class Broken(Over):
    """A graph that one app's writes never reach, while the server answers otherwise."""

    def __init__(self, graph: GraphStore, app: str) -> None:
        super().__init__(graph, app)
        self.mended = False
        self.asked = 0

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        if app_id == self._about and not self.mended:
            self.asked += 1
            raise GraphUnavailable("refused", retry_after_s=0.05)
        return await self._graph.apply(app_id, partition, writes)


async def test_an_app_whose_graph_refuses_work_waits_alone(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    broken = Broken(graph, "ill")
    await put(transport, [placed(number, app) for number in range(20) for app in ("ill", "well")])
    async with working(bus, broken, rules_of(tmp_path)):

        async def well() -> bool:
            return bool(await value(graph, "well", ORDERS) == 20)

        await until(well)
        await until(lambda: _true(broken.asked > 4))
        broken.mended = True
        await applied(bus)
    assert await value(graph, "ill", ORDERS) == 20
    assert await letter_count(bus.dead_letters) == 0


async def _true(found: bool) -> bool:
    return found


class Silent(Over):
    """A graph server that stops answering whenever it gets one order, and answers otherwise."""

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        for number, write in enumerate(writes):
            if any(row.get("id") == self._about for row in write.rows):
                if number:
                    await self._graph.apply(app_id, partition, writes[:number])
                raise GraphUnavailable("no answer", retry_after_s=0.01) from TimeoutError()
        return await self._graph.apply(app_id, partition, writes)


async def test_a_write_that_the_server_never_answers_is_cut_and_left_out(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    await put(transport, [placed(number, app, chat="one") for number in range(20) for app in ("a", "b")])
    async with working(bus, Silent(graph, "o7"), rules_of(tmp_path)):
        await applied(bus)
    letters = await bus.dead_letters.read(limit=100)
    assert {(letter.app_id, letter.reason, letter.event_id) for letter in letters} == {
        ("a", "unresponsive", "a7"),
        ("b", "unresponsive", "b7"),
    }
    for app in ("a", "b"):
        assert [await value(graph, app, ORDERS), await value(graph, app, COUNT)] == [19, 20]
    async with working(bus, graph, rules_of(tmp_path)):
        for letter in letters:
            await retry(bus, letter)
        await applied(bus)
    assert [await value(graph, app, ORDERS) for app in ("a", "b")] == [20, 20]


# Poison


def poison(number: int) -> Event:
    """Two messages, at a time that has no later one; read from the log it is the worker's to survive."""
    data = {"user_id": "u", "messages": [{"role": "user", "text": "a"}, {"role": "user", "text": "b"}]}
    return Event.create("memory.add", app_id="evil", chat_id=f"p{number}", id=f"p{number}", data=data)


def last_moment(event: Event) -> Outgoing:
    body = json.loads(wire.encode(event)[wire.DATA])
    body["time"] = "9999-12-31T23:59:59.999999Z"
    return Outgoing(key=event.key, fields={wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: json.dumps(body).encode()})


@pytest.mark.soak("kafka", "neo4j")
@pytest.mark.parametrize("bus_name", ["redis", "kafka"])
@pytest.mark.parametrize("graph_name", ["falkordb", "neo4j"])
async def test_an_event_at_the_end_of_time_stops_nobody(
    request: pytest.FixtureRequest, url: str, tmp_path: Path, bus_name: str, graph_name: str
) -> None:
    bus_url, app = url, "good"
    store: GraphStore = FalkorDBStore(url)
    if bus_name == "kafka":
        kafka: KafkaServer = request.getfixturevalue("kafka")
        await empty_kafka(kafka)
        bus_url = kafka.url
    if graph_name == "neo4j":
        # A database is one app's, so there the other events are of the same one.
        app, uri = "evil", request.getfixturevalue("neo4j_server").uri
        async with contextlib.aclosing(Neo4jReference(uri)) as reference:
            await reference.clear()
        store = Neo4jStore(uri)
    driver: Bus = redis_bus(url, new=spread(PARTITIONS))
    if bus_name == "kafka":
        driver = kafka_bus(bus_url, new=spread(PARTITIONS))
    async with (
        contextlib.aclosing(store) as graph,
        contextlib.aclosing(driver) as bus,
        contextlib.aclosing(make_transport(bus_url, new=spread(PARTITIONS))) as transport,
    ):
        await transport.append([last_moment(poison(number)) for number in range(8)])
        await put(transport, [placed(number, app) for number in range(40)])
        async with working(bus, graph, rules_of(tmp_path)):
            await applied(bus)
        assert [await value(graph, app, ORDERS), await value(graph, app, COUNT)] == [40, 40]
        memories = await value(graph, "evil", "MATCH (m:Memory) RETURN count(m)") or 0
        assert memories + 2 * await letter_count(bus.dead_letters) == 16


class Exploding(MemoryMutations):
    """A pack with a defect: it raises what nobody expects, for one text."""

    def match(self, event: Event, logged: LogTime | None = None) -> Any:
        if "boom" in json.dumps(event.data):
            raise ZeroDivisionError(event.data["messages"][0]["text"])
        yield from super().match(event, logged)


def memory(text: str, app: str, number: int) -> Event:
    data = {"user_id": "u", "messages": [{"role": "user", "text": text}]}
    return Event.create("memory.add", app_id=app, chat_id=f"c{number % 4}", id=f"m{number}", data=data)


async def test_a_defect_becomes_a_letter_and_the_others_go_on(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    rules = rules_of(tmp_path)
    exploding = RuleSet(rules.workflows, packs=(Exploding(),))
    events = [
        memory("boom secret" if number % 5 == 0 else "tea", app, number) for number in range(20) for app in ("a", "b")
    ]
    await put(transport, events)
    with capture_logs() as logs:
        async with working(bus, graph, exploding):
            await applied(bus)
    assert [await value(graph, app, "MATCH (m:Memory) RETURN count(m)") for app in ("a", "b")] == [16, 16]
    letters = await bus.dead_letters.read(limit=100)
    assert {letter.reason for letter in letters} == {"internal_error"}
    assert len(letters) == 8
    defects = [log for log in logs if log["event"] == "defect"]
    assert len(defects) == 8
    assert "test_nothing_silent.py" in defects[0]["frames"]
    assert "secret" not in json.dumps(logs, default=str) + "".join(letter.message for letter in letters)
    async with working(bus, graph, rules):
        assert sum([(await retry(bus, letter)).events for letter in letters]) == 8
        await applied(bus)
    assert [await value(graph, app, "MATCH (m:Memory) RETURN count(m)") for app in ("a", "b")] == [20, 20]


class Unsendable(Over):
    """A store that raises what nobody expects, for one row."""

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        if any(row.get("id") == self._about for write in writes for row in write.rows):
            raise OverflowError("this cannot be written")
        return await self._graph.apply(app_id, partition, writes)


async def test_a_row_that_the_store_chokes_on_is_found_and_left_out(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    await put(transport, [placed(number, app) for number in range(30) for app in ("a", "b")])
    async with working(bus, Unsendable(graph, "o11"), rules_of(tmp_path)):
        await applied(bus)
    letters = await bus.dead_letters.read(limit=100)
    assert {(letter.reason, letter.event_id, letter.mutation) for letter in letters} == {
        ("internal_error", "a11", "item"),
        ("internal_error", "b11", "item"),
    }
    for app in ("a", "b"):
        assert [await value(graph, app, ORDERS), await value(graph, app, COUNT)] == [29, 30]


async def test_a_defect_that_nothing_catches_holds_up_its_partition_until_the_event_is_set_aside(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphweft_workers.engine.log import turns

    real = turns.match_range

    def matching(partition: int, decoded: Any, recent: Any, *, passed_over: Any, **options: Any) -> Any:
        some = list(decoded)
        entries = [each.entry for each in some]
        if any(b"o3" in entry.fields[wire.DATA] and not passed_over.entry(entry.offset) for entry in entries):
            raise KeyError("a defect outside of every net")
        return real(partition, some, recent, passed_over=passed_over, **options)

    monkeypatch.setattr(turns, "match_range", matching)
    events = [placed(number, chat=f"c{number % 4}") for number in range(20)]
    [at] = [position for position, event in zip(await put(transport, events), events, strict=True)
            if event.id == "a3"]  # fmt: skip
    with capture_logs() as logs:
        async with working(bus, graph, rules_of(tmp_path), timing=Timing(defect_s=0.05)):
            held_up = int(at.partition(":")[0])

            async def others() -> bool:
                return all(part.lag == 0 for part in await bus.partitions.status() if part.id != held_up)

            await until(others)
            await until(lambda: _true(any(log["event"] == "partition_failed" for log in logs)))
            letter = await set_aside(bus, at)
            assert (await set_aside(bus, at)).count == 1
            await applied(bus)
    assert await value(graph, "a", ORDERS) == 19
    assert (letter.reason, letter.event_id) == ("set_aside", "a3")
    monkeypatch.setattr(turns, "match_range", real)
    async with working(bus, graph, rules_of(tmp_path)):
        assert (await retry(bus, await letter_with(bus.dead_letters, letter.id) or letter)).events == 1
        await applied(bus)
    assert await value(graph, "a", ORDERS) == 20
