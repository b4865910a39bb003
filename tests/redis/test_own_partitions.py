"""An app with a partition and requests of its own: what its user does to them concerns nobody else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pytest
import redis.asyncio as redis
from structlog.testing import capture_logs
from tests.services.buses import applied
from tests.services.rules import PACKS
from tests.services.waiting import until

from graphweft import Client, Event
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import ContextReply, ContextRequest, DeadLetter, Layout, PartitionRefused, channels, wire
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import StoredRules, digest_of
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis import streams
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.drivers.redis.timing import RedisBusTiming
from graphweft_workers.drivers.rights import PASSWORD, commands
from graphweft_workers.engine.job_worker import JobWorker
from graphweft_workers.engine.log.placed_bus import placed
from graphweft_workers.engine.usage.app_use import PARTITION
from graphweft_workers.engine.usage.partition_usage import PartitionUsage
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.job import JobEvent
from graphweft_workers.rule_sets.active_rules import LoggedRules
from graphweft_workers.support.timing import TIMING, Timing

pytestmark = pytest.mark.integration
PARTITIONS = 4
NEW = Layout(partitions=PARTITIONS)
LAST = "18446744073709551615-18446744073709551615"
FOR_EVER_S = 3600.0
BUDGET_MS = 30_000
BUS_TIMING = RedisBusTiming(stream_s=0.05)
SOON = replace(TIMING, leases=replace(TIMING.leases, look_s=0.05))
RULES = """
version: "1.0"
mutation_rules:
  - name: notes
    events: ["note.made"]
    mutations:
      - id: note
        cypher: "MERGE (n:Note {{n: $n}}) SET n.by = '{by}'"
        params: {{n: $event.n}}
"""


def rules(by: str) -> StoredRules:
    return StoredRules(files={"W/graph_injection.yaml": RULES.format(by=by).encode()})


async def push(bus: Bus, by: str, scope: str = ALL_APPS) -> None:
    files = rules(by)
    digest = digest_of(files.files)
    await bus.rules.store(digest, files)
    await bus.rules.activate(scope, digest)


def note(number: int, app_id: str = "acme") -> Event:
    return Event.create(
        "note.made", app_id=app_id, chat_id="c", workflow="W", data={"n": number}, id=f"{app_id}-{number}"
    )


@pytest.fixture
async def raw(url: str) -> AsyncIterator[Any]:
    async with redis.Redis.from_url(url) as connection:
        yield connection


@pytest.fixture
async def bus(url: str) -> AsyncIterator[Bus]:
    async with contextlib.aclosing(redis_bus(url, new=NEW)) as opened:
        await push(opened, "v1")
        yield opened


@contextlib.asynccontextmanager
async def working(url: str, *, bus_url: str | None = None, timing: Timing = TIMING) -> AsyncIterator[FalkorDBStore]:
    """Run a worker; yield its graphs."""
    graph = FalkorDBStore(url)
    async with contextlib.aclosing(placed(redis_bus(bus_url or url, new=NEW))) as bus:
        active = LoggedRules(bus.rules, lambda stored: RuleSet.of_stored(stored.files, PACKS))
        worker = MutationWorker(bus, graph, active, name="w", timing=timing)
        task = asyncio.create_task(worker.run())
        try:
            yield graph
        finally:
            worker.stop()
            await task
            await graph.aclose()


@contextlib.asynccontextmanager
async def answering(url: str) -> AsyncIterator[list[str]]:
    """Run a responder; yield the apps that it has answered."""
    apps: list[str] = []

    async def answer(request: Any) -> ContextReply:
        apps.append(request.app_id)
        return ContextReply(id=request.id, text=f"for {request.app_id}")

    queue = RedisRequestQueue(url, consumer="r", timing=BUS_TIMING)
    responder = InjectionResponder(queue, answer)
    task = asyncio.create_task(responder.run())
    try:
        yield apps
    finally:
        responder.stop()
        await task
        await queue.aclose()


@contextlib.asynccontextmanager
async def user(
    raw: Any, url: str, role: str, *, app_id: str | None = None, own: int | None = None
) -> AsyncIterator[str]:
    """Make a user with the rights of a role; yield the URL of the bus for it."""
    name = app_id or role
    for line in commands("redis", role, app_id=app_id, user=name, graph_template="", own=own):
        await raw.execute_command(*line.replace(PASSWORD, "p").split())
    try:
        yield url.replace("unix://", f"unix://{name}:p@")
    finally:
        await raw.execute_command("ACL", "DELUSER", name)


async def notes(graph: FalkorDBStore, app_id: str) -> list[Any]:
    query = "MATCH (n:Note) RETURN n.n AS n, n.by AS by ORDER BY n"
    return [tuple(row) for row in (await graph.read(app_id, query, {}, timeout_s=60)).rows]


def own_number(layout: Layout, app_id: str = "acme") -> int:
    return layout.own[app_id].number


WAYS: Final[dict[str, Sequence[Sequence[str]]]] = {
    "the largest id": [("XADD", "STREAM", LAST, "a", "b")],
    "all is trimmed": [("XADD", "STREAM", "MAXLEN", "0", "*", "a", "b")],
    "trimmed and ended": [("XADD", "STREAM", "MAXLEN", "0", LAST, "a", "b")],
    "deleted": [("DEL", "STREAM")],
    "a text": [("DEL", "STREAM"), ("SET", "STREAM", "x")],
}


@pytest.mark.long("all is trimmed", "a text", "deleted")
@pytest.mark.parametrize("way", WAYS)
async def test_what_a_tenant_does_to_its_own_streams_stops_nobody_else(url: str, raw: Any, bus: Bus, way: str) -> None:
    own = own_number(await bus.partitions.give_partition("acme"))
    async with (
        user(raw, url, "tenant", app_id="acme", own=own) as acme_url,
        user(raw, url, "gateway") as gateway_url,
        user(raw, url, "worker") as worker_url,
        user(raw, url, "responder") as responder_url,
        Client(acme_url, app_id="acme", workflow="W") as acme,
        Client(gateway_url, app_id="globex", workflow="W") as globex,
        working(url, bus_url=worker_url) as graph,
        answering(responder_url) as apps,
    ):
        assert str(await acme.emit(note(1), wait_s=FOR_EVER_S)).startswith(f"{own}:")
        assert await globex.emit(note(1, "globex"), wait_s=FOR_EVER_S)
        for client in (acme, globex):
            found = await client.context(agent="a", chat_id="c", budget_ms=BUDGET_MS)
            assert found.text == f"for {client.app_id}"
        await applied(bus)
        for stream in (channels.own_events_stream(own), channels.own_context_requests("acme")):
            for command in WAYS[way]:
                words = [stream if word == "STREAM" else word for word in command]
                if command[0] == "XADD":  # what its user may do
                    async with redis.Redis.from_url(acme_url) as hostile:
                        await hostile.execute_command(*words)
                else:
                    await raw.execute_command(*words)
        assert await globex.emit(note(2, "globex"), wait_s=FOR_EVER_S)
        assert (await globex.context(agent="a", chat_id="c", budget_ms=BUDGET_MS)).text == "for globex"
        await push(bus, "v2")
        assert await globex.emit(note(3, "globex"), wait_s=FOR_EVER_S)
        await until(lambda: notes(graph, "globex"), lambda found: len(found) == 3)
        assert await notes(graph, "globex") == [(1, "v1"), (2, "v1"), (3, "v2")]
        if way in ("the largest id", "trimmed and ended", "a text"):
            [outcome] = await acme.emit_each([note(4)], wait_s=FOR_EVER_S)
            assert isinstance(outcome, PartitionRefused)
            assert f"graphweft bus mend {own}" in str(outcome)
            faults = {each.id: each.fault for each in await bus.partitions.status() if each.fault}
            assert list(faults) == [own]
            assert channels.own_context_requests("acme") in await streams.request_fault(url)
            assert await streams.mend(url, own)
            assert await streams.mend(url, None)
        assert await acme.emit(note(5), wait_s=FOR_EVER_S)
        async with Client(gateway_url, app_id="acme", workflow="W") as through_a_gateway:
            assert str(await through_a_gateway.emit(note(6), wait_s=FOR_EVER_S)).startswith(f"{own}:")

        async def answered() -> bool:
            return (await acme.context(agent="a", chat_id="c", budget_ms=2_000)).text == "for acme"

        await until(answered)
        await until(lambda: notes(graph, "acme"), lambda found: {(5, "v2"), (6, "v2")} <= {*found})
        assert set(apps) == {"acme", "globex"}


async def letters(bus: Bus) -> dict[str, str]:
    """Return the messages of dead letters by partition and reason."""
    return {f"{each.partition} {each.reason}": each.message for each in await bus.dead_letters.read(limit=100)}


async def test_events_count_only_where_their_app_has_them(url: str, raw: Any, bus: Bus) -> None:
    layout = await bus.partitions.give_partition("acme")
    own = layout.own["acme"]
    stream = channels.own_events_stream(own.number)
    shared = Layout(partitions=PARTITIONS).partition_of("acme/c")
    async with working(url) as graph, Client(url) as client:
        assert await client.emit(note(1), wait_s=FOR_EVER_S)
        await raw.xadd(stream, wire.encode(note(1, "globex")))  # its user says that it is another app
        await raw.xadd(stream, {"a": b"x" * 100_000})
        await raw.xadd(channels.events_stream(shared), wire.encode(note(2)))  # a client that has not read the layout
        since_ms = round(own.since.timestamp() * 1000)
        await raw.xadd(channels.events_stream(shared), wire.encode(note(3)), id=f"{since_ms}-0")  # one that never will
        assert await client.emit(note(4), wait_s=FOR_EVER_S)
        await applied(bus)
        assert [number for number, _ in await notes(graph, "acme")] == [1, 2, 4]
        assert await graph.checkpoints("globex", timeout_s=60) == {}
    found = await letters(bus)
    assert (await bus.dead_letters.by_app())["acme"].count == 2
    used = PartitionUsage.decode((await bus.usage.after(None)).found[f"{PARTITION}{own.number}"]).stored()
    assert used.keys() == {"acme"}
    assert used["acme"] > 100_000
    foreign, late = f"{own.number} invalid_event", f"{shared} invalid_event"
    assert found.keys() == {foreign, late}
    foreign_letters = [each for each in await bus.dead_letters.read(limit=100) if each.partition == own.number]
    assert [each.app_id for each in foreign_letters] == ["acme", "acme"]
    expected = f"partition {own.number} takes events of the app 'acme' only, and this one names 'globex'"
    assert expected in [each.message for each in foreign_letters]
    assert "update its producer" in found[late]


async def test_a_worker_and_a_responder_that_run_already_read_a_new_partition(url: str, bus: Bus) -> None:
    async with (
        Client(url, app_id="acme", workflow="W") as before,
        working(url, timing=SOON) as graph,
        answering(url) as apps,
    ):
        assert str(await before.emit(note(1), wait_s=FOR_EVER_S)).startswith(f"{NEW.partition_of('acme/c')}:")
        await applied(bus)
        own = own_number(await bus.partitions.give_partition("acme"))
        async with Client(url, app_id="acme", workflow="W") as after:
            assert str(await after.emit(note(2), wait_s=FOR_EVER_S)).startswith(f"{own}:")
            await until(lambda: notes(graph, "acme"), lambda found: found == [(1, "v1"), (2, "v1")])

            async def answered() -> bool:
                return (await after.context(agent="a", chat_id="c", budget_ms=2_000)).text == "for acme"

            await until(answered)
    assert set(apps) == {"acme"}


async def test_each_app_gets_a_number_of_its_own_and_keeps_it(raw: Any, bus: Bus, url: str) -> None:
    names = [f"app{number}" for number in range(8)]
    await raw.xadd(channels.own_events_stream(PARTITIONS + 1), {"a": "b"})  # left by a bus that has lost its end
    async with contextlib.aclosing(redis_bus(url)) as other:
        await asyncio.gather(*(each.partitions.give_partition(name) for each in (bus, other) for name in names))
    own = (await bus.partitions.layout()).own
    assert sorted(each.number for each in own.values()) == [PARTITIONS, *range(PARTITIONS + 2, PARTITIONS + 9)]
    again = await bus.partitions.give_partition("app3")
    assert again.own == own
    assert (await bus.partitions.give_partition("last", least=50)).own["last"].number == 50
    assert await bus.partitions.count(fresh=True) == 51


@pytest.mark.parametrize("scope", [ALL_APPS, "acme"])
async def test_rules_that_are_active_stay_active_in_a_new_partition(url: str, bus: Bus, scope: str) -> None:
    await push(bus, "v2", scope)
    await push(bus, "v3", scope)
    own = own_number(await bus.partitions.give_partition("acme"))
    async with working(url) as graph, Client(url) as client:
        await client.emit(note(1), wait_s=FOR_EVER_S)
        await applied(bus)
        await push(bus, "v4", scope)
        await client.emit(note(2), wait_s=FOR_EVER_S)
        await client.emit(note(1, "globex"), wait_s=FOR_EVER_S)
        await applied(bus)
        assert await notes(graph, "acme") == [(1, "v3"), (2, "v4")]
        assert await notes(graph, "globex") == [(1, "v4" if scope == ALL_APPS else "v1")]
    assert own in (await bus.rules.activations())[-1].positions


async def test_rules_are_pushed_while_apps_get_partitions(url: str, bus: Bus) -> None:
    async with contextlib.aclosing(redis_bus(url)) as other:
        for number in range(10):
            await asyncio.gather(push(bus, f"p{number}"), other.partitions.give_partition(f"app{number}"))
    activations = await bus.rules.activations()
    assert [each.number for each in activations] == [*range(1, len(activations) + 1)]
    last = digest_of(rules("p9").files)
    for partition in range(await bus.partitions.count(fresh=True)):
        active = [each.digest for each in activations if partition in each.positions]
        assert active[-1] == last, partition


async def test_a_request_in_the_stream_of_another_app_gets_no_answer(url: str, raw: Any, bus: Bus) -> None:
    await bus.partitions.give_partition("acme")
    async with answering(url) as apps, Client(url, app_id="globex", workflow="W") as client:
        assert (await client.context(agent="a", chat_id="c", budget_ms=BUDGET_MS)).text == "for globex"
        request = ContextRequest(
            id="x", app_id="globex", agent="a", chat_id="c", workflow="W",
            reply_to=channels.context_replies("nobody", "globex"),
            deadline_ms=int(datetime.now(UTC).timestamp() * 1000) + BUDGET_MS,
        )  # fmt: skip
        with capture_logs() as logs:
            await raw.xadd(channels.own_context_requests("acme"), {"data": request.model_dump_json()})
            await until(lambda: raw.xlen(channels.own_context_requests("acme")), lambda left: not left)
        assert apps == ["globex"]
        [refused] = [each for each in logs if each["event"] == "request_refused"]
        assert (refused["app_id"], refused["reason"]) == ("acme", "foreign_app")


async def test_many_first_requests_read_the_layout_once(url: str, raw: Any, bus: Bus) -> None:
    await bus.partitions.give_partition("acme")

    async def reads() -> int:
        return int((await raw.info("commandstats"))["cmdstat_hgetall"]["calls"])

    before = await reads()
    async with contextlib.aclosing(RedisTransport(url)) as transport:
        found = await asyncio.gather(*(transport._stream_of_requests("acme") for _ in range(200)))
    assert {*found} == {channels.own_context_requests("acme")}
    assert await reads() - before == 1


class _Echo:
    """A job that emits an event for each."""

    group = channels.MEMORY_GROUP
    types = frozenset({"note.made"})
    tick_s = 0.0

    async def begin(self, partition: int) -> None:
        """Nothing is to be prepared."""

    async def handle(self, seen: Sequence[JobEvent]) -> AsyncGenerator[Sequence[Event | DeadLetter]]:
        for each in seen:
            yield [each.event.model_copy(update={"id": f"{each.event.id}-echo", "type": "note.echo"})]

    async def tick(self, partition: int, partitions: int) -> AsyncGenerator[Sequence[Event]]:
        for events in ():
            yield events

    async def aclose(self) -> None:
        """There is nothing to close."""


async def test_a_job_goes_on_for_others_when_a_partition_takes_nothing(url: str, raw: Any, bus: Bus) -> None:
    own = own_number(await bus.partitions.give_partition("acme"))
    timing = replace(TIMING, jobs=replace(TIMING.jobs, refused_s=0.05))

    async def echoes(stream: str) -> int:
        return sum(b"note.echo" in fields.get(wire.DATA, b"") for _, fields in await raw.xrange(stream))

    async with (
        contextlib.aclosing(redis_bus(url, group=channels.MEMORY_GROUP)) as reading,
        contextlib.aclosing(RedisTransport(url)) as transport,
        Client(url) as client,
    ):
        await client.emit(note(1), wait_s=FOR_EVER_S)
        stream = channels.own_events_stream(own)
        await raw.xadd(stream, {"a": "b"}, id=LAST)
        worker = JobWorker(reading, transport, _Echo(), name="j", timing=timing)
        running = asyncio.create_task(worker.run())
        with capture_logs() as logs:

            async def waits() -> bool:
                return any(each["event"] == "job_waits" for each in logs)

            await until(waits, beside=running)
        await client.emit(note(1, "globex"), wait_s=FOR_EVER_S)
        shared = channels.events_stream(NEW.partition_of("globex/c"))
        await until(lambda: echoes(shared), lambda found: found == 1, beside=running)
        assert await streams.mend(url, own)
        await until(lambda: echoes(stream), lambda found: found >= 1, beside=running)
        worker.stop()
        await running


async def test_two_apps_with_partitions_of_their_own_do_not_reach_each_other(url: str, raw: Any, bus: Bus) -> None:
    await bus.partitions.give_partition("acme")
    layout = await bus.partitions.give_partition("globex")
    async with (
        user(raw, url, "tenant", app_id="acme", own=own_number(layout)) as acme_url,
        user(raw, url, "tenant", app_id="globex", own=own_number(layout, "globex")) as globex_url,
        Client(acme_url, app_id="acme", workflow="W") as acme,
        Client(globex_url, app_id="globex", workflow="W") as globex,
        answering(url),
    ):
        async with working(url) as graph:
            await acme.emit(note(1), wait_s=FOR_EVER_S)
            await globex.emit(note(1, "globex"), wait_s=FOR_EVER_S)
            await applied(bus)
        [foreign] = await acme.emit_each([note(2, "globex")], wait_s=FOR_EVER_S)
        [stranger] = await acme.emit_each([note(2, "initech")], wait_s=FOR_EVER_S)
        for outcome in (foreign, stranger):
            assert isinstance(outcome, PartitionRefused)
            assert "No permissions to access a key" in str(outcome)
        async with redis.Redis.from_url(acme_url) as hostile:
            await hostile.xadd(channels.own_events_stream(own_number(layout)), {"a": "b"}, id=LAST)
        await globex.emit(note(3, "globex"), wait_s=FOR_EVER_S)
        assert (await globex.context(agent="a", chat_id="c", budget_ms=BUDGET_MS)).text == "for globex"
        async with working(url) as graph:  # started again
            await until(lambda: notes(graph, "globex"), lambda found: [number for number, _ in found] == [1, 3])
            assert await notes(graph, "acme") == [(1, "v1")]
