"""What a graph store promises (``GraphStore``'s docstring), against the real server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import pytest
import redis.asyncio as redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.services.fixtures import Logs
from tests.services.virtual_time import VirtualClock
from tests.services.waiting import turns, until

from graphweft.transports.redis.connection import connect
from graphweft_contracts import Fenced, GraphUnavailable, QueryFailed, channels
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_rules.cypher.clauses import outline
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.falkordb import store as store_module
from graphweft_workers.drivers.falkordb import write_times
from graphweft_workers.drivers.falkordb.long_writes import LongWrite, LongWrites
from graphweft_workers.drivers.falkordb.read_turns import ReadTurns
from graphweft_workers.drivers.falkordb.rights import rules_of
from graphweft_workers.drivers.falkordb.statements import guarded
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.falkordb.timing import FalkorDBTiming
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import START, Checkpoint, PositionMove, Write, WriteResult

pytestmark = pytest.mark.integration
APP = "shop"
COUNT = "MERGE (c:Counter {id: 1}) ON CREATE SET c.n = 1 ON MATCH SET c.n = c.n + 1"


def chain(*statements: str, start: Checkpoint = START, **params: Any) -> list[Write]:
    """Writes of one event each, at offsets 1-0, 2-0, …"""
    writes: list[Write] = []
    before = start
    for number, statement in enumerate(statements, start=1):
        after = Checkpoint(offset=f"{number}-0")
        writes.append(Write(query=parse(statement, role="mutation"), rows=[params], before=before, after=after))
        before = after
    return writes


async def value(graph: FalkorDBStore, statement: str) -> Any:
    rows = (await graph.read(APP, statement, {}, timeout_s=120)).rows
    return rows[0][0] if rows else None


async def test_writes_take_effect_in_order_and_move_the_mark(graph: FalkorDBStore) -> None:
    assert (await graph.progress(APP, 0)).checkpoint == START
    writes = chain("MERGE (a:A {id: $id}) SET a.x = 1", "MATCH (a:A {id: $id}) SET a.x = a.x + 10", id="k")
    assert (await graph.apply(APP, 0, writes)).count == 2
    assert await value(graph, "MATCH (a:A) RETURN a.x") == 11
    assert (await graph.progress(APP, 0)).checkpoint == Checkpoint(offset="2-0")


async def test_applying_again_changes_nothing(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    writes = chain(COUNT, COUNT)
    await graph.apply(APP, 0, writes)
    # The graph stands where the writes lead to, so there is nothing to complain about either.
    assert (await graph.apply(APP, 0, writes)).count == 2
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 2


async def test_what_is_known_of_apps_is_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apps come and go, and a store lives for months. Those that were written last are known."""
    monkeypatch.setattr(store_module, "BoundedDict", lambda: BoundedDict[Any, Any](2), raising=False)
    async with contextlib.aclosing(FalkorDBStore(url)) as store:
        for app, partition in (("one", 0), ("two", 0), ("one", 1), ("three", 0)):
            await store.progress(app, partition)
            assert await store.apply(app, partition, chain(COUNT)) == WriteResult(count=1)
        assert list(store._named) == list(store._senders) == ["one", "three"]
        assert list(store._notes) == [("one", 1), ("three", 0)]
        await store.progress("two", 1)
        assert await store.apply("two", 1, chain(COUNT)) == WriteResult(count=1)


async def test_the_note_of_an_app_that_is_written_is_not_forgotten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BoundedDict", lambda: BoundedDict[Any, Any](2))
    async with contextlib.aclosing(FalkorDBStore(url)) as store:
        for app in ("used", "idle"):
            await store.progress(app, 0)
        assert await store.apply("used", 0, chain(COUNT)) == WriteResult(count=1)
        await store.progress("new", 0)
        assert list(store._notes) == [("used", 0), ("new", 0)]


REFUSED = "MERGE (a:A {id: 1}) SET a.x = 100 / $n"


async def test_a_refused_row_costs_no_look_at_the_checkpoint(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    writes = chain(COUNT, REFUSED, n=0)

    async def looks() -> int:
        return int((await graph._redis.info("commandstats"))["cmdstat_graph.RO_QUERY"]["calls"])

    assert (await graph.apply(APP, 0, writes)).count == 1
    before = await looks()  # new labels are looked up once
    applied = await graph.apply(APP, 0, writes[1:])
    assert applied.count == 0
    assert str(applied.failure) == "Division by zero"
    assert await looks() == before
    assert (await graph.progress(APP, 0)).checkpoint == writes[0].after


@pytest.mark.parametrize("statement", [REFUSED, "MERGE (a:A {id: 1}) SET a.x = no.such(1)"])
async def test_a_displaced_writer_learns_of_it_at_the_next_write(graph: FalkorDBStore, statement: str) -> None:
    """The server refuses the second query before it looks at the guard."""
    await graph.progress(APP, 0)
    await graph.apply(APP, 0, chain(COUNT, COUNT, COUNT))
    with contextlib.suppress(Fenced):
        assert (await graph.apply(APP, 0, chain(statement, n=0))).count == 0
    with pytest.raises(Fenced):
        await graph.apply(APP, 0, [Write(before=START, after=Checkpoint(plan="p"), note="dropped")])
    progress = await graph.progress(APP, 0)
    assert progress.checkpoint == Checkpoint(offset="3-0")
    assert not progress.note


# Each of these writes from no rows, so a guard in front of it, instead of around it, would not hold it back.
WRITES_FROM_NOTHING = [
    "MATCH (n:Nothing) WITH count(n) AS c MERGE (t:Stale {k: c})",
    "UNWIND [1, 2, 3] AS i WITH collect(i) AS all MERGE (t:Stale {k: size(all)})",
    "OPTIONAL MATCH (n:Nothing) MERGE (t:Stale {k: 1})",
    "OPTIONAL MATCH (n:Nothing) WITH n WHERE n IS NULL CREATE (t:Stale)",
    "CALL db.labels() YIELD label WITH count(label) AS c CREATE (:Stale {k: c})",
    "CREATE (t:Stale) RETURN t UNION CREATE (t:Stale) RETURN t",
    "FOREACH (i IN [1, 2] | CREATE (:Stale {k: i}))",
]


@pytest.mark.parametrize("statement", WRITES_FROM_NOTHING)
async def test_a_displaced_writer_changes_nothing(graph: FalkorDBStore, statement: str) -> None:
    await graph.progress(APP, 0)
    await graph.apply(APP, 0, chain(COUNT, COUNT, COUNT))
    with pytest.raises(Fenced):
        await graph.apply(APP, 0, chain(statement))
    assert await value(graph, "MATCH (s:Stale) RETURN count(s)") == 0
    assert (await graph.progress(APP, 0)).checkpoint == Checkpoint(offset="3-0")


@pytest.mark.parametrize("statement", WRITES_FROM_NOTHING)
async def test_the_guard_does_not_change_what_a_query_does(graph: FalkorDBStore, statement: str) -> None:
    await graph.progress(APP, 0)
    await graph.apply(APP, 0, chain(statement, statement))
    guarded = await value(graph, "MATCH (s:Stale) RETURN collect(s.k)")
    await graph._redis.execute_command("GRAPH.QUERY", "mozaiks_plain", statement)
    await graph._redis.execute_command("GRAPH.QUERY", "mozaiks_plain", statement)
    plain = (await graph.read("plain", "MATCH (s:Stale) RETURN collect(s.k)", {}, timeout_s=120)).rows[0][0]
    if "db.labels" not in statement:  # the plain graph has no label of ours to count
        assert guarded == plain


async def test_a_slow_query_leaves_the_server_to_others(graph: FalkorDBStore, url: str) -> None:
    """From its first write on a query holds the server's main thread, so the mark must not be the first."""
    await graph.progress(APP, 0)
    sums = "UNWIND range(1, 100000) AS a UNWIND range(1, 100000) AS b WITH sum(a * b) AS s"
    [write] = chain(f"{sums} MERGE (n:Sum {{k: 1}}) SET n.s = s")
    answered = 0
    async with redis.Redis.from_url(url) as writer, redis.Redis.from_url(url) as neighbour:
        await neighbour.ping()
        command = ("GRAPH.QUERY", channels.graph_name(APP), guarded(0, [write]), "TIMEOUT", 1_000)
        writing = asyncio.create_task(writer.execute_command(*command))
        await until_busy(graph, True)
        while not writing.done():
            await neighbour.ping()
            answered += 1
    assert isinstance(writing.exception(), redis.ResponseError)
    assert answered > 10


async def test_partitions_have_marks_of_their_own(graph: FalkorDBStore) -> None:
    for partition in (0, 1):
        await graph.progress(APP, partition)
        await graph.apply(APP, partition, chain(COUNT))
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 2


async def test_a_write_that_is_cancelled_while_it_waits_for_another_is_not_sent(url: str) -> None:
    async with contextlib.aclosing(FalkorDBStore(url, write_timeout_ms=120_000)) as store:
        for partition in range(3):
            await store.progress(APP, partition)
        await store.apply(APP, 2, chain(COUNT))
        slow = asyncio.create_task(store.apply(APP, 0, chain("UNWIND range(1, 1000000) AS i CREATE (:Flood {i: i})")))
        sender = store._senders[APP]
        async with asyncio.timeout(120):
            while not sender._free.locked():
                await turns()
            waiting = [asyncio.create_task(store.apply(APP, partition, chain(COUNT))) for partition in (1, 2)]
            while len(sender._batch) < 2:
                await turns()
        assert not slow.done()  # else they have waited for nothing
        waiting[0].cancel()
        assert (await slow).count == 1
        assert (await waiting[1]).count == 1
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        assert (await store.progress(APP, 1)).checkpoint == START
        assert await value(store, "MATCH (c:Counter) RETURN c.n") == 1


async def test_a_refused_write_stops_there_and_leaves_no_trace(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    bad = "MERGE (b:Bad {id: 1}) SET b.x = 1 / 0"
    writes = chain(COUNT, bad, COUNT)
    applied = await graph.apply(APP, 0, writes)
    assert applied.count == 1
    assert applied.failure is not None
    assert "Division" in str(applied.failure)
    assert await value(graph, "MATCH (b:Bad) RETURN count(b)") == 0
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 1
    await graph.apply(APP, 0, [Write(before=writes[1].before, after=writes[1].after)])
    assert (await graph.apply(APP, 0, writes[2:])).count == 1
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 2


@pytest.mark.parametrize(
    ("statement", "params", "expected"),
    [
        ("MATCH (n", {}, "Invalid input"),
        ("MERGE (n:N {id: $id})", {"id": None}, "null"),
        ("MERGE (n:N) SET n.m = $m", {"m": {"a": 1}}, ""),
        ("MERGE (n:N {id: $id})", {"id": 2**63}, "64 bits"),
        ("MERGE (n:N {id: $id})", {"id": float("nan")}, ""),
        ("MERGE (n:N {id: $id})", {"id": "a\0b"}, "NUL"),
        ("MERGE (n:N {id: $id})", {"id": "\ud800"}, "parameter"),
        ("MERGE (n:N {id: $id})", {}, "no value for its parameter 'id'"),
    ],
)
async def test_what_cannot_be_applied_is_refused_not_changed(
    graph: FalkorDBStore, statement: str, params: dict[str, Any], expected: str
) -> None:
    await graph.progress(APP, 0)
    first, second, third = chain(COUNT, statement, COUNT)
    applied = await graph.apply(APP, 0, [first, dataclasses.replace(second, rows=[params]), third])
    assert applied.count == 1
    assert applied.failure is not None
    assert expected in str(applied.failure)
    assert await value(graph, "MATCH (n:N) RETURN count(n)") == 0


async def test_a_slow_write_is_aborted_and_rolled_back(url: str, graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    async with contextlib.aclosing(FalkorDBStore(url, write_timeout_ms=500)) as store:
        applied = await store.apply(APP, 0, chain("UNWIND range(1, 10000000) AS i CREATE (:Flood {i: i})"))
    assert applied.failure is not None
    assert applied.failure.code == "timeout"
    assert await value(graph, "MATCH (f:Flood) RETURN count(f)") == 0
    assert (await graph.progress(APP, 0)).checkpoint == START


async def test_reading_cannot_write(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    with pytest.raises(QueryFailed, match="read-only"):
        await graph.read(APP, "CREATE (n:N) RETURN n", {}, timeout_s=1)


async def test_a_missing_graph_has_no_rows_and_is_not_made_by_reading(graph: FalkorDBStore) -> None:
    assert (await graph.read("nobody", "MATCH (n) RETURN n", {}, timeout_s=1)).rows == ()
    assert "mozaiks_nobody" not in await graph._redis.execute_command("GRAPH.LIST")


async def test_a_slow_read_ends_at_its_limit(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    with pytest.raises(QueryFailed) as caught:
        await graph.read(APP, "UNWIND range(1, 100000000) AS i RETURN count(i)", {}, timeout_s=0.05)
    assert caught.value.code == "timeout"


ENDLESS = "UNWIND range(1, 100000) AS a UNWIND range(1, 100000) AS b RETURN count(*)"


async def at_server(graph: FalkorDBStore) -> int:
    """Return how many queries the server works on or has queued."""
    info = await graph._redis.execute_command("GRAPH.INFO", "RunningQueries", "WaitingQueries")
    return sum(len(part) for part in info[1::2])


async def until_busy(graph: FalkorDBStore, busy: bool) -> None:
    await until(lambda: at_server(graph), lambda count: bool(count) is busy, why=f"a query runs: {busy}")


async def threads_of(graph: FalkorDBStore) -> int:
    return int((await graph._redis.execute_command("GRAPH.CONFIG", "GET", "THREAD_COUNT"))[1])


@pytest.mark.long
async def test_reads_that_nobody_waits_for_any_longer_do_not_pile_up_at_the_server(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    threads = await threads_of(graph)
    await until_busy(graph, False)  # with what other tests have left there
    for _ in range(3):
        asked = [asyncio.create_task(graph.read(APP, ENDLESS, {}, timeout_s=1)) for _ in range(10 * threads)]
        await until_busy(graph, True)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    assert await at_server(graph) <= 3 * threads


async def test_slow_reads_of_one_app_leave_the_server_to_others(graph: FalkorDBStore) -> None:
    for app in (APP, "other"):
        await graph.progress(app, 0)
    with pytest.raises(QueryFailed):
        await graph.read(APP, ENDLESS, {}, timeout_s=0.5)  # now it is known as slow
    await until_busy(graph, False)
    asked = [asyncio.create_task(graph.read(APP, ENDLESS, {}, timeout_s=2)) for _ in range(64)]
    await until_busy(graph, True)
    assert await at_server(graph) <= max(1, await threads_of(graph) // 2)
    for number in range(5):
        assert (await graph.read("other", f"RETURN {number}", {}, timeout_s=120)).rows == ((number,),)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.long
async def test_a_write_waits_for_a_slow_read_of_its_graph_without_stopping_the_server(url: str) -> None:
    async with contextlib.AsyncExitStack() as ends:
        reader, writer = FalkorDBStore(url), FalkorDBStore(url)
        for store in (reader, writer):
            await ends.enter_async_context(contextlib.aclosing(store))
        for app in (APP, "other"):
            await writer.progress(app, 0)
        first, second = chain(COUNT, COUNT)
        assert (await writer.apply(APP, 0, [first])).count == 1
        await until_busy(writer, False)
        asked = asyncio.create_task(reader.read(APP, ENDLESS, {}, timeout_s=15))
        await until(  # it was tried as a quick one before
            lambda: writer._redis.zrange(channels.SLOW_READS, 0, -1),
            lambda names: any(name[0] == "r" for name in names),
        )
        await until_busy(writer, True)
        writing = asyncio.create_task(writer.apply(APP, 0, [second]))
        for number in range(20):
            assert (await writer.read("other", "RETURN $n", {"n": number}, timeout_s=120)).rows == ((number,),)
            assert await at_server(writer) == 1  # the server has gone on, and the slow read runs still
        assert not writing.done()
        with pytest.raises(QueryFailed):
            await asked
        assert (await writing).count == 1


async def test_slow_reads_and_writes_of_a_graph_never_run_together(url: str) -> None:
    clients = [connect(url, io_timeout_s=20, decode=True) for _ in range(3)]
    turns = [ReadTurns(client) for client in clients]
    until = time.monotonic() + 120
    running = {"read": 0, "write": 0}
    seen: list[tuple[int, int]] = []

    async def read(number: int) -> None:
        async with turns[number % 3].reading("g", until=until, of_graph=2, of_all=2):
            await run("read")

    async def write(number: int) -> None:
        async with turns[number % 3].writing("g"):
            await run("write")

    async def run(kind: str) -> None:
        running[kind] += 1
        seen.append((running["read"], running["write"]))
        for _ in range(3):
            await clients[0].ping()
        running[kind] -= 1

    async with turns[0].reading("g", until=until, of_graph=2, of_all=2):  # which announces the graph
        pass
    for each in turns:
        each._heeded = frozenset({"g"})
    await asyncio.gather(*(call(number) for number in range(12) for call in (read, write)))
    assert len(seen) == 24
    assert all(not writes or not reads for reads, writes in seen)
    assert max(reads for reads, _ in seen) <= 2
    assert await clients[0].exists(channels.SLOW_READS, channels.SLOW_WRITES) == 0
    for each, client in zip(turns, clients, strict=True):
        await each.aclose()
        await client.aclose()


async def test_a_read_that_waits_for_long_goes_before_writes_that_have_not_begun(url: str) -> None:
    client = connect(url, io_timeout_s=20, decode=True)
    turns, order = ReadTurns(client, timing=FalkorDBTiming(first_ms=0)), list[str]()
    turns._heeded = frozenset({"g"})

    async def read() -> None:
        async with turns.reading("g", until=time.monotonic() + 120, of_graph=1, of_all=1):
            order.append("read")

    async def write() -> None:
        async with turns.writing("g"):
            order.append("write")

    async with turns.writing("g"):
        reading = asyncio.create_task(read())
        await until(lambda: client.zcard(channels.SLOW_READS))
        writing = asyncio.create_task(write())
        for _ in range(20):
            await client.ping()
        assert order == []
    await asyncio.gather(reading, writing)
    assert order == ["read", "write"]
    await turns.aclose()
    await client.aclose()


async def test_reads_that_always_wait_keep_no_write_out(url: str) -> None:
    client = connect(url, io_timeout_s=20, decode=True)
    turns = ReadTurns(client)
    turns._heeded = frozenset({"g"})
    await client.zadd(channels.SLOW_READS, {"w:1:one:g": "+inf"})  # there is always one that has waited for long
    async with asyncio.timeout(120), turns.writing("g"):
        assert await client.zcard(channels.SLOW_WRITES) == 1
    await turns.aclose()
    await client.delete(channels.SLOW_READS)
    await client.aclose()


async def test_what_a_killed_process_has_left_stops_nobody_for_ever(url: str) -> None:
    client = connect(url, io_timeout_s=20, decode=True)
    turns = ReadTurns(client)
    turns._heeded = frozenset({"g"})
    ended = await turns._now_ms() - 1
    await client.zadd(channels.SLOW_READS, {"r:1:dead:g": ended})
    await client.zadd(channels.SLOW_WRITES, {"dead:g": ended})
    async with turns.writing("g"):
        pass
    async with turns.reading("g", until=time.monotonic() + 120, of_graph=1, of_all=1):
        pass
    await turns.aclose()
    await client.aclose()


async def test_writes_ask_nothing_while_no_read_is_slow(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    await graph._redis.config_resetstat()
    for write in chain(COUNT, COUNT, COUNT):
        await graph.apply(APP, 0, [write])
    assert "cmdstat_zadd" not in await graph._redis.info("commandstats")


async def test_a_slow_read_without_a_turn_tells_why_and_is_counted(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    with pytest.raises(QueryFailed):
        await graph.read(APP, ENDLESS, {}, timeout_s=0.1)  # now it is known as slow
    await until_busy(graph, False)
    await graph._redis.zadd(channels.SLOW_WRITES, {f"other:mozaiks_{APP}": "+inf"})
    with pytest.raises(QueryFailed, match="got no turn in time") as caught:
        await graph.read(APP, ENDLESS, {}, timeout_s=1.5)
    assert caught.value.code == "timeout"
    assert graph.without_turn == {APP: 1}
    assert await at_server(graph) == 0
    await graph._redis.delete(channels.SLOW_WRITES)


async def test_a_user_without_the_right_to_take_turns_reads_and_writes_as_before(url: str, logs: Logs) -> None:
    admin = connect(url, io_timeout_s=20, decode=True)
    await admin.execute_command("ACL", "SETUSER", "old", "reset", "on", "nopass", "+ping", "+time", "+zscore", "~shop*")
    client = connect(url, io_timeout_s=20, decode=True)
    client.connection_pool.connection_kwargs |= {"username": "old", "password": "x"}
    clock = VirtualClock()
    turns = ReadTurns(client, clock=clock)
    for _ in range(2):
        async with turns.reading("g", until=clock.monotonic() + 60, of_graph=1, of_all=1):
            await client.ping()
        async with turns.writing("g"):
            await client.ping()
    assert [entry["log_level"] for entry in logs if entry["event"] == "read_turns_off"] == ["warning"]
    await admin.execute_command("ACL", "SETUSER", "old", *rules_of("responder", "mozaiks_{app_id}"))
    clock.advance(60)
    async with turns.reading("g", until=clock.monotonic() + 60, of_graph=1, of_all=1):
        assert await admin.zcard(channels.SLOW_READS) == 1
    turns._heeded = frozenset({"g"})
    async with turns.writing("g"):
        assert await admin.zcard(channels.SLOW_WRITES) == 1
    await turns.aclose()
    for each in (client, admin):
        await each.aclose()


async def test_a_workers_user_keeps_positions_and_one_without_the_rights_works_on(url: str, logs: Logs) -> None:
    admin = connect(url, io_timeout_s=20, decode=True)
    place, user = CommittedPosition(offset="9", count=2), ("on", "nopass")
    move = PositionMove(partition=0, before=None, after=place, reached={APP: "9"})
    rules = rules_of("worker", "mozaiks_{app_id}")
    await admin.execute_command("ACL", "SETUSER", "worker", "reset", *user, *rules)
    await admin.execute_command("ACL", "SETUSER", "old", "reset", *user, *rules, "-eval", "-hgetall")
    address = url.replace("unix://", "unix://old:x@")
    clock = VirtualClock()
    async with contextlib.aclosing(FalkorDBStore(address, clock=clock)) as store:
        await store.durable(await store.check(), move)
        assert await store.positions() is None
        assert await store.reached(0) == {}
        await store.whole.drop(APP)
        further = CommittedPosition(offset="11", count=3)
        await store.durable(await store.check(), PositionMove(partition=0, before=place, after=further))
        assert [entry["log_level"] for entry in logs if entry["event"] == "graph_positions_not_kept"] == ["warning"]
        await admin.execute_command("ACL", "SETUSER", "old", "+hgetall")
        clock.advance(60)
        assert await store.positions() is None  # the other right is refused
        await admin.execute_command("ACL", "SETUSER", "old", "+eval")
        clock.advance(60)
        assert await store.positions() == {0: further}
        assert await store.reached(0) == {APP: "9"}
        again = PositionMove(partition=0, before=further, after=place)
        await store.durable(await store.check(), again)
        await admin.execute_command("ACL", "SETUSER", "old", "-eval")
        await store.durable(await store.check(), again)  # the server says something else, and may not be asked
        await admin.execute_command("ACL", "SETUSER", "old", "+eval")
        clock.advance(60)
        with pytest.raises(GraphUnavailable, match="what it said before"):
            await store.durable(await store.check(), again)
    assert [entry["event"] for entry in logs if "positions" in entry["event"]] == [
        "graph_positions_not_kept", "graph_positions_kept", "graph_positions_not_kept", "graph_positions_kept"
    ]  # fmt: skip
    await admin.delete(channels.graph_positions("mozaiks_{app_id}"))
    async with contextlib.aclosing(FalkorDBStore(address.replace("old", "worker"))) as store:
        await store.durable(await store.check(), move)
        assert await store.positions() == {0: place}
        assert await store.reached(0) == {APP: "9"}
        await store.whole.drop(APP)
        assert await store.reached(0) == {}
    await admin.aclose()


async def test_a_position_moves_while_the_server_is_out_of_memory(graph: FalkorDBStore) -> None:
    run = await graph.check()
    first, second = CommittedPosition(offset="1", count=1), CommittedPosition(offset="2", count=2)
    await graph.durable(run, PositionMove(partition=0, before=None, after=first))
    await graph._redis.config_set("maxmemory", 1)
    try:
        await graph.durable(run, PositionMove(partition=0, before=first, after=second, reached={APP: "2"}))
    finally:
        await graph._redis.config_set("maxmemory", 0)
    assert await graph.positions() == {0: second}


async def test_the_servers_settings_are_asked_once(graph: FalkorDBStore) -> None:
    await graph._redis.config_resetstat()
    await graph.progress(APP, 0)
    await asyncio.gather(*(graph.read(APP, "RETURN 1", {}, timeout_s=120) for _ in range(100)))
    assert (await graph._redis.info("commandstats"))["cmdstat_graph.CONFIG"]["calls"] == 2
    assert graph._places.threads == await threads_of(graph)


async def test_closing_ends_a_read_that_is_under_way(url: str) -> None:
    before = asyncio.all_tasks()
    store = FalkorDBStore(url)
    await store.progress(APP, 0)
    asked = [asyncio.create_task(store.read(APP, ENDLESS, {}, timeout_s=1)) for _ in range(20)]
    await until_busy(store, True)
    await store.aclose()
    assert {type(each) for each in await asyncio.gather(*asked, return_exceptions=True)} == {GraphUnavailable}
    assert asyncio.all_tasks() == before


async def test_a_server_that_is_away_is_transient() -> None:
    async with contextlib.aclosing(FalkorDBStore("unix:///nonexistent/redis.sock")) as graph:
        with pytest.raises(GraphUnavailable):
            await graph.check()
        with pytest.raises(GraphUnavailable):
            await graph.apply(APP, 0, chain(COUNT))


async def test_indexes_are_made_once(graph: FalkorDBStore) -> None:
    keys = [("User", "id"), ("Odd Name", "a b")]
    await graph.prepare(APP, keys)
    await FalkorDBStore.prepare(graph, APP, keys)
    async with contextlib.aclosing(
        FalkorDBStore(f"unix://{graph._redis.connection_pool.connection_kwargs['path']}")
    ) as again:
        await again.prepare(APP, keys)
        rows = await graph.read(
            APP, "CALL db.indexes() YIELD label, properties RETURN label, properties", {}, timeout_s=2
        )
        assert {(label, tuple(names)) for label, names in rows.rows} >= {("User", ("id",)), ("Odd Name", ("a b",))}


async def test_a_label_gets_as_many_indexes_as_the_server_survives(graph: FalkorDBStore) -> None:
    # 344 of them end the server. The rules of each version may have had other keys.
    await graph.prepare(APP, [("Thing", f"p{number:03}") for number in range(64)])
    await graph.prepare(APP, [("Thing", f"p{number:03}") for number in range(400)] + [("Other", "id")])
    rows = await graph.read(APP, "CALL db.indexes() YIELD label, properties RETURN label, properties", {}, timeout_s=60)
    found = {label: sorted(names) for label, names in rows.rows}
    assert found["Thing"] == [f"p{number:03}" for number in range(128)]
    assert found["Other"] == ["id"]


async def test_a_graph_that_is_made_anew_gets_its_indexes_and_names(graph: FalkorDBStore) -> None:
    listing = "CALL db.indexes() YIELD label RETURN label"
    for _ in range(2):
        await graph.prepare(APP, [("User", "id")])
        await graph.progress(APP, 0)
        assert (await graph.apply(APP, 0, chain("MERGE (:User {id: 1})"))).count == 1
        assert {row[0] for row in (await graph.read(APP, listing, {}, timeout_s=120)).rows} >= {"User"}
        assert graph._named
        await graph._redis.execute_command("GRAPH.DELETE", f"mozaiks_{APP}")
    await graph.prepare(APP, [])
    await graph.progress(APP, 0)
    assert not graph._named


async def test_who_waits_for_a_store_that_is_closed_or_defect_is_told(url: str) -> None:
    store = FalkorDBStore(url)
    await store.progress(APP, 0)
    for count in range(4):
        waiting = asyncio.create_task(store.apply(APP, 0, chain(COUNT)))
        await turns(count)
        if store._senders:
            await store._senders[APP].aclose()
        await asyncio.wait([waiting])
    # Half a surrogate cannot be sent, and rules cannot have one: what is not foreseen must not end in silence.
    broken = dataclasses.replace(parse("MATCH (n:A) SET n.x = 1", role="mutation"), outline=outline("\ud800"))
    with pytest.raises(UnicodeEncodeError):
        await store.apply(APP, 0, [Write(query=broken, rows=[{}], before=START, after=Checkpoint(offset="1-0"))])
    await store.aclose()


async def test_durable_returns(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    await graph.apply(APP, 0, chain(COUNT))
    async with asyncio.timeout(120):
        await graph.durable(await graph.check())


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
)
KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0`"), min_size=1, max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_value=VALUES)
async def test_parameters_arrive_as_they_are(graph: FalkorDBStore, given_value: Any) -> None:
    await graph.progress(APP, 0)
    table = await graph.read(APP, "RETURN $v", {"v": given_value}, timeout_s=120)
    assert same(table.rows[0][0], given_value)


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, but for the 15 digits that the server prints of a float."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-14)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


async def test_the_digest_forgets_the_order_of_building(graph: FalkorDBStore) -> None:
    one = [
        "CREATE (:A {id: 1, x: 'a'})",
        "CREATE (:B {id: 2})",
        "MATCH (a:A), (b:B) CREATE (a)-[:R {w: 1.5}]->(b)",
    ]
    other = [
        "CREATE (:B {id: 2})",
        "CREATE (:Gone)",
        "MATCH (g:Gone) DELETE g",
        "CREATE (:A {x: 'a', id: 1})",
        "MATCH (b:B), (a:A) CREATE (a)-[:R {w: 1.5}]->(b)",
    ]
    for app, statements in (("one", one), ("other", other)):
        await graph.progress(app, len(statements))  # our own nodes do not count
        for statement in statements:
            await graph._redis.execute_command("GRAPH.QUERY", f"mozaiks_{app}", statement)
    first, second = await read_digest(graph, "one"), await read_digest(graph, "other")
    assert first == second
    assert (first.nodes, first.relationships) == (2, 1)
    await graph._redis.execute_command("GRAPH.QUERY", "mozaiks_other", "MATCH (a:A) SET a.x = 'b'")
    assert await read_digest(graph, "other") != first


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("MEREG (n:N)", "line 1, column 4"),
        ("WITH 1 AS x MEREG (n:N)", "line 1, column 16"),
        ("MERGE (n:N)\n  STE n.x = 1", "line 2, column 5"),
    ],
)
async def test_a_refusal_says_where_in_the_rules_query(graph: FalkorDBStore, statement: str, place: str) -> None:
    await graph.progress(APP, 0)
    applied = await graph.apply(APP, 0, chain(statement, long="a value that must not move the column"))
    assert f"({place} of the query)" in str(applied.failure)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_values=st.lists(VALUES, min_size=2, max_size=4))
async def test_rows_arrive_as_they_are(graph: FalkorDBStore, given_values: list[Any]) -> None:
    app = "rows"
    await graph.progress(app, 0)
    start = (await graph.progress(app, 0)).checkpoint
    query = parse("MERGE (n:N {id: $id}) SET n.v = $v", role="mutation")
    storable = [value for value in given_values if _storable(value)]
    rows = [{"id": number, "v": value} for number, value in enumerate(storable)]
    if len(rows) < 2:
        return
    await graph._redis.execute_command("GRAPH.QUERY", "mozaiks_rows", "MATCH (n:N) DELETE n")
    after = Checkpoint(offset=f"{int(start.offset or 0) + 1}")
    assert (await graph.apply(app, 0, [Write(query=query, rows=rows, before=start, after=after)])).count == 1
    table = await graph.read(app, "MATCH (n:N) RETURN n.id, n.v", {}, timeout_s=120)
    assert same(dict(table.rows), {row["id"]: row["v"] for row in rows})


def _storable(value: Any) -> bool:
    """Tell whether a value can stand in a property: a node keeps lists of plain values, and no maps."""
    if isinstance(value, list):
        return all(not isinstance(item, dict) and item is not None and _storable(item) for item in value)
    return not isinstance(value, dict) and value is not None


async def test_the_items_of_a_list_take_effect_in_their_order_whatever_shares_the_query(graph: FalkorDBStore) -> None:
    query = parse("UNWIND $items AS m MERGE (b:B {id: m.id}) SET b.v = m.v", role="mutation")
    rows = [{"items": [{"id": key, "v": v} for v in (1, 2, 3)]} for key in (1, 2)]
    await graph.progress(APP, 0)
    first = Write(query=query, rows=rows[:1], before=START, after=Checkpoint(offset="1-0"))
    both = Write(query=query, rows=rows, before=first.after, after=Checkpoint(offset="2-0"))
    assert (await graph.apply(APP, 0, [first])).count == 1
    assert await value(graph, "MATCH (b:B) RETURN collect(b.v)") == [3]
    assert (await graph.apply(APP, 0, [both])).count == 1
    assert await value(graph, "MATCH (b:B) RETURN collect(b.v)") == [3, 3]


@pytest.mark.parametrize("key", ["", " a", "a ", "\ta", "a\n"])
@pytest.mark.parametrize(
    "statement", ["MERGE (n:N {id: $id})", "UNWIND $ids AS id MERGE (n:N {id: id}) ON MATCH SET n.x = 1"]
)
async def test_a_key_that_an_index_never_finds_again_is_refused(graph: FalkorDBStore, statement: str, key: str) -> None:
    await graph.prepare(APP, [("N", "id")])
    await graph.progress(APP, 0)
    applied = await graph.apply(APP, 0, chain(statement, id=key, ids=["b", key, key]))
    assert applied.failure is not None
    assert "begins or ends with a blank" in str(applied.failure)
    assert await value(graph, "MATCH (n:N) RETURN count(n)") == 0


@pytest.mark.parametrize("letter", ["a", "é", "日"])
async def test_a_key_that_is_too_long_for_an_index_is_refused(graph: FalkorDBStore, letter: str) -> None:
    await graph.prepare(APP, [("N", "id")])
    await graph.progress(APP, 0)
    longest = letter * (4_096 // len(letter.encode()))
    writes = chain(*["MERGE (n:N {id: $id})"] * 3, id=longest)
    assert (await graph.apply(APP, 0, writes)).count == 3
    assert await value(graph, "MATCH (n:N) RETURN count(n)") == 1
    query, longer = parse("MERGE (n:N {id: $id})", role="mutation"), {"id": longest + letter}
    more = Write(query=query, rows=[longer], before=writes[-1].after, after=Checkpoint(offset="9-0"))
    applied = await graph.apply(APP, 0, [more])
    assert applied.failure is not None
    assert "finds none above 4,096" in str(applied.failure)


async def test_other_blanks_are_found_again(graph: FalkorDBStore) -> None:
    await graph.prepare(APP, [("N", "id")])
    await graph.progress(APP, 0)
    rows = [{"id": key} for key in ("\u2028", "\xa0a", "a\u3000") for _ in range(3)]
    query = parse("MERGE (n:N {id: $id})", role="mutation")
    await graph.apply(APP, 0, [Write(query=query, rows=rows, before=START, after=Checkpoint(offset="1-0"))])
    assert await value(graph, "MATCH (n:N) RETURN count(n)") == 3


COUNTED = "MERGE (c:Counter {id: $id}) SET c.n = coalesce(c.n, 0) + 1"
DOUBLED = "MATCH (c:Counter {id: $id}) SET c.n = c.n * 2"


def following(writes: Sequence[Write], *statements: str, **params: Any) -> list[Write]:
    """Writes of one event each behind other writes, with the parameters that each of them has."""
    found: list[Write] = []
    before = writes[-1].after
    for statement in statements:
        query = parse(statement, role="mutation")
        after = Checkpoint(offset=f"{int(before.offset[:-2]) + 1}-0")
        row = {name: params[name] for name in query.columns}
        found.append(Write(query=query, rows=[row], before=before, after=after))
        before = after
    return found


async def queries(graph: FalkorDBStore) -> int:
    """Return how many writing queries the server has run."""
    return int((await graph._redis.info("commandstats"))["cmdstat_graph.QUERY"]["calls"])


async def test_small_writes_of_known_mutations_share_a_query(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    writes = chain(COUNTED, DOUBLED, COUNTED, id="k")
    assert (await graph.apply(APP, 0, writes)).count == 3
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 3
    more = following(writes, COUNTED, DOUBLED, COUNTED, id="k")
    before = await queries(graph)
    assert (await graph.apply(APP, 0, more)).count == 3
    assert await queries(graph) - before == 1
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 9
    assert (await graph.progress(APP, 0)).checkpoint == more[-1].after
    # Again, as after a lost reply: the graph stands where they lead to. A displaced writer changes nothing either.
    assert (await graph.apply(APP, 0, more)).count == 3
    with pytest.raises(Fenced):
        await graph.apply(APP, 0, writes)
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 9


async def test_a_refused_write_of_a_shared_query_is_found_and_those_before_it_run_once(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    divided = "MATCH (c:Counter {id: $id}) SET c.n = 6 / $by"
    writes = chain(COUNTED, divided, COUNTED, id="k", by=3)
    assert (await graph.apply(APP, 0, writes)).count == 3
    bad = following(writes, COUNTED, divided, COUNTED, id="k", by=0)
    applied = await graph.apply(APP, 0, bad)
    assert applied.count == 1
    assert applied.failure is not None
    assert "ivision by zero" in str(applied.failure)
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 4
    assert (await graph.progress(APP, 0)).checkpoint == bad[0].after
    # A value that cannot be sent is found in the same way.
    bad = following(bad[:1], COUNTED, divided, id="k", by=2**70)
    for _ in range(2):  # the second time they would share a query
        applied = await graph.apply(APP, 0, bad)
        assert applied.failure is not None
        assert applied.failure.of_value
        assert applied.count == 1
        bad = following(bad[:1], COUNTED, divided, id="k", by=2**70)
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 6


async def test_the_last_note_of_a_shared_query_is_kept(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    writes = chain(COUNTED, COUNTED, id="k")
    await graph.apply(APP, 0, writes)
    more = following(writes, COUNTED, COUNTED, id="k")
    more = [dataclasses.replace(more[0], note="first"), dataclasses.replace(more[1], note="last")]
    await graph.apply(APP, 0, more)
    assert (await graph.progress(APP, 0)).note == "last"
    again = following(more, COUNTED, COUNTED, id="k")
    await graph.apply(APP, 0, again)
    assert (await graph.progress(APP, 0)).note == "last"


async def test_mutations_that_take_long_run_apart(graph: FalkorDBStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared query would block the server while a later mutation searches."""
    monkeypatch.setattr(store_module, "SLOW_MS", 0.0)
    await graph.progress(APP, 0)
    writes = chain(COUNTED, DOUBLED, id="k")
    await graph.apply(APP, 0, writes)
    counts: list[int] = []
    for _ in range(3):
        writes = following(writes, COUNTED, DOUBLED, id="k")
        before = await queries(graph)
        assert (await graph.apply(APP, 0, writes)).count == 2
        counts.append(await queries(graph) - before)
    assert counts == [1, 2, 2]


@pytest.mark.parametrize(
    "statement",
    [
        "MERGE (n:N {id: $id}) SET n.c = coalesce(n.c, 0) + 1",
        "MATCH (n:N {id: $id}) SET n.c = coalesce(n.c, 0) + 1",
        "MATCH (n:N {id: $id}) MERGE (m:M {id: $id}) MERGE (n)-[r:R]->(m) SET r.c = coalesce(r.c, 0) + 1",
    ],
)
async def test_a_lone_row_with_any_key_does_the_same_in_a_shared_query(graph: FalkorDBStore, statement: str) -> None:
    """Rows whose keys are neither integers nor texts never share a query with rows of their mutation."""
    found: list[list[Any]] = []
    for app in ("apart", "shared"):
        await graph.prepare(app, [("N", "id"), ("M", "id")])
        await graph.progress(app, 0)
        name = channels.graph_name(app)
        await graph._redis.execute_command(
            "GRAPH.QUERY", name, "UNWIND [0, 1, 2, '1', 'true', 1.5, 2.0] AS id CREATE (:N {id: id}), (:M {id: id})"
        )
        content: list[Any] = []
        before = START
        for number, key in enumerate([True, False, 0.0, -0.0, 1.0, 1.5, 2.0, [1], [], ["1"], 2.0**60, "1", 1]):
            for each in (key, key):
                query = parse(statement, role="mutation")
                writes: list[Write] = []
                for row in (each, "known"):
                    after = Checkpoint(offset=f"{number}", plan="p", done=before.done + 1)
                    writes.append(Write(query=query, rows=[{"id": row}], before=before, after=after))
                    before = after
                if app == "shared":
                    graph._shared_queries._apart.clear()
                    list(graph._shared_queries.queries(0, writes))  # known from now on
                    assert [each.shared for each in graph._shared_queries.queries(0, writes)] == [True]
                applied = await graph._apply_now(app, 0, writes, share=app == "shared")
                content.append((key, applied.count, applied.failure and str(applied.failure)))
                before = writes[max(0, applied.count - 1)].after if applied.count else writes[0].before
        for listing in (
            "MATCH (n) WHERE NOT n:__Progress RETURN labels(n), typeOf(n.id), n.id, n.c ORDER BY id(n)",
            "MATCH (n)-[r]->(m) RETURN typeOf(n.id), n.id, m.id, r.c ORDER BY id(r)",
        ):
            content.append((await graph._redis.execute_command("GRAPH.QUERY", name, listing))[1])
        found.append(content)
    assert found[0] == found[1]


async def test_a_shared_query_that_times_out_runs_apart_and_once(
    graph: FalkorDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_times, "SHARED_MS", 1)
    many = "UNWIND $ids AS id MERGE (n:N {id: id}) SET n.c = coalesce(n.c, 0) + 1"
    await graph.progress(APP, 0)
    writes = chain(COUNTED, many, id="k", ids=[1])
    assert (await graph.apply(APP, 0, writes)).count == 2
    more = following(writes, COUNTED, many, id="k", ids=list(range(1, 5_001)))
    before = await queries(graph)
    assert await graph.apply(APP, 0, more) == WriteResult(count=2)
    assert await queries(graph) - before == 3  # together, and each by itself
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 2
    assert await value(graph, "MATCH (n:N) RETURN sum(n.c)") == 5_001


LATE = "MERGE (s:Slow {id: 1}) WITH s UNWIND range(1, 100000) AS x UNWIND range(1, 100000) AS y SET s.n = x + y"


async def test_long_writes_of_two_workers_excuse_the_one_that_is_usually_short(url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = [connect(url, io_timeout_s=20, decode=True) for _ in range(2)]
        for client in clients:
            stack.push_async_callback(client.aclose)
        busy, small = (LongWrites(client, timing=FalkorDBTiming(long_look_s=0.0)) for client in clients)
        now = time.monotonic()
        assert await busy.waited_s("busy", now - 0.9, now, [0.8], look=False) == [0.0]
        assert await small.waited_s("small", now - 0.8, now, [0.001, 0.7]) == [pytest.approx(0.8, abs=0.7), 0.0]
        assert await busy.waited_s("busy", now - 0.9, now, [0.8]) == [0.0]
        told = await clients[0].zrange(channels.LONG_WRITES, 0, -1)
        assert sorted(each.rpartition(":")[2] for each in told) == ["busy", "busy", "small", "small"]


async def test_a_write_that_ran_into_its_limit_while_it_waited_counts_as_not_tried(url: str) -> None:
    timing = FalkorDBTiming(long_look_s=0.0)
    async with contextlib.aclosing(FalkorDBStore(url, timing=timing)) as store:
        await store._redis.delete(channels.LONG_WRITES)  # those of other tests excuse it, too
        await store.progress(APP, 0)
        first, slow = chain(COUNT, LATE)
        writes = [first, dataclasses.replace(slow, limit="short")]
        assert await store.apply(APP, 0, writes[:1]) == WriteResult(count=1)
        found = await store.apply(APP, 0, writes[1:])
        assert found.failure is not None
        assert found.failure.code == "timeout"
        assert found.held_s[0] >= 0.2
        ends_ms = time.time() * 1000 + 3_600_000  # another worker's write, of which it takes the server for an hour
        other = LongWrite(graph="mozaiks_busy", began_ms=0.0, ended_ms=ends_ms, usual_s=3_600.0)
        await store._redis.zadd(channels.LONG_WRITES, {other.encode(): ends_ms})
        assert await store.apply(APP, 0, writes[1:]) == WriteResult(count=0)
        assert (await store.apply(APP, 0, writes[1:])).held_s == [pytest.approx(0.0, abs=0.01)]
        assert await value(store, "MATCH (s:Slow) RETURN count(s)") == 0


async def test_a_writer_that_is_displaced_between_two_shared_queries_writes_no_more(
    graph: FalkorDBStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await graph.progress(APP, 0)
    known = chain(*[COUNTED] * 24, id="k")
    await graph.apply(APP, 0, known)
    writes = following(known, *[COUNTED] * 24, id="k")
    send = graph._senders[APP].execute_all
    async with contextlib.aclosing(FalkorDBStore(url)) as other:

        async def meanwhile(commands: Sequence[Any]) -> list[Any]:
            if len(commands) != 2:
                return await send(commands)
            [first] = await send(commands[:1])
            await other.apply(APP, 0, [Write(before=writes[11].after, after=Checkpoint(offset="99-0"))])
            return [first, *await send(commands[1:])]

        monkeypatch.setattr(graph._senders[APP], "execute_all", meanwhile)
        with pytest.raises(Fenced):
            await graph.apply(APP, 0, writes)
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 36
    assert (await graph.progress(APP, 0)).checkpoint.offset == "99-0"


async def test_a_rule_that_deletes_the_checkpoint_between_shared_queries_stops_neither(graph: FalkorDBStore) -> None:
    await graph.progress(APP, 0)
    statements = (COUNTED, COUNTED, "MATCH (n) DETACH DELETE n", COUNTED, COUNTED)
    writes = chain(*statements, id="k")
    for _ in range(2):  # the second time, those around the third one share queries
        done = 0
        while done < len(writes):
            applied = await graph.apply(APP, 0, writes[done:])
            assert applied.failure is None
            assert applied.count
            done += applied.count
        assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 2
        assert (await graph.progress(APP, 0)).checkpoint == writes[-1].after
        writes = following(writes, *statements, id="k")
