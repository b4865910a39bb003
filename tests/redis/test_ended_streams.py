"""A stream that has ended, or whose key holds something else: it is found, and mended without losing an event."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from structlog.testing import capture_logs
from tests.services.buses import applied
from tests.services.environment import clean_environment
from tests.services.rules import load_rules
from tests.services.waiting import until

from graphweft import Client, Event
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import ContextReply, InvalidSettings, channels, wire
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis import streams
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.drivers.redis.timing import REDIS_BUS_TIMING
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.gateway.app import make_app
from graphweft_workers.injection.responder import InjectionResponder

pytestmark = pytest.mark.integration
APP = "shop"
LAST = "18446744073709551615-18446744073709551615"
YEAR_3000_MS = 32_503_680_000_000
FOR_EVER_S = 3600.0
RULES = """
version: "1.0"
mutation_rules:
  - name: notes
    events: ["note.made"]
    mutations:
      - id: note
        cypher: "MERGE (n:Note {n: $n}) ON CREATE SET n.times = 1 ON MATCH SET n.times = n.times + 1"
        params: {n: $event.n}
"""


@pytest.fixture
async def raw(url: str) -> AsyncIterator[Any]:
    async with redis.Redis.from_url(url) as connection:
        yield connection


def note(number: int, app_id: str = APP) -> Event:
    return Event.create(
        "note.made", app_id=app_id, chat_id="c", workflow="Shop", data={"n": number}, id=f"{app_id}-{number}"
    )


def fields(number: int) -> dict[bytes, bytes]:
    return dict(wire.encode(note(number)))


def number_of(found: dict[bytes, bytes]) -> Any:
    return wire.decode(found).data["n"] if wire.DATA in found else found


@contextlib.asynccontextmanager
async def working(url: str, folder: Path) -> AsyncIterator[FalkorDBStore]:
    """Run a worker; yield its graph."""
    (folder / "Shop").mkdir(exist_ok=True)
    (folder / "Shop" / "graph_injection.yaml").write_text(RULES)
    graph = FalkorDBStore(url)
    async with contextlib.aclosing(redis_bus(url)) as bus:
        worker = MutationWorker(bus, graph, load_rules(folder), name="w")
        task = asyncio.create_task(worker.run())
        try:
            yield graph
        finally:
            worker.stop()
            await task
            await graph.aclose()


async def notes(graph: FalkorDBStore) -> list[tuple[int, int]]:
    query = "MATCH (n:Note) RETURN n.n AS n, n.times AS times ORDER BY n"
    return [(row[0], row[1]) for row in (await graph.read(APP, query, {}, timeout_s=60)).rows]


async def end(raw: Any, stream: str, way: str) -> int:
    """End a stream in a way; return how many entries that took."""
    match way:
        case "an empty entry":
            await raw.xadd(stream, {"a": "b"}, id=LAST)
        case "an event":
            await raw.xadd(stream, fields(90), id=LAST)
        case "two events and an entry":
            await raw.xadd(stream, fields(90), id="18446744073709551615-0")
            await raw.xadd(stream, fields(91), id="18446744073709551615-7")
            await raw.xadd(stream, {"a": "b"}, id=LAST)
        case "XSETID":
            await raw.execute_command("XSETID", stream, LAST)
        case "the year 3000":
            await raw.xadd(stream, fields(90), id=f"{YEAR_3000_MS}-5")
    return {"an empty entry": 1, "an event": 1, "two events and an entry": 3, "XSETID": 0, "the year 3000": 1}[way]


@pytest.mark.long(keep=("the year 3000", "two events"))
@pytest.mark.parametrize("way", ["an empty entry", "an event", "two events and an entry", "XSETID", "the year 3000"])
async def test_a_mended_partition_goes_on_and_every_event_takes_effect_once(
    url: str, raw: Any, tmp_path: Path, way: str
) -> None:
    async with contextlib.aclosing(redis_bus(url)) as bus, Client(url) as client, working(url, tmp_path) as graph:
        position = await client.emit(note(0), wait_s=FOR_EVER_S)
        partition = int(str(position).partition(":")[0])
        stream = channels.events_stream(partition)
        await client.emit_all([note(number) for number in range(1, 30)], wait_s=FOR_EVER_S)
        await applied(bus)
        before = await raw.xrange(stream)
        added = await end(raw, stream, way)
        await client.emit(note(30), wait_s=FOR_EVER_S)  # refused, or waits in the year 3000
        faults = {each.id: each.fault for each in await bus.partitions.status() if each.fault}
        assert list(faults) == [partition]
        assert f"`graphweft bus mend {partition}`" in faults[partition]
        layout = await bus.partitions.layout()
        neighbour = next(name for name in map(str, range(99)) if layout.partition_of(f"{name}/c") != partition)
        assert await client.emit(note(0, neighbour), wait_s=FOR_EVER_S), "others go on"
        assert await streams.mend(url, partition)
        assert not [each.fault for each in await bus.partitions.status() if each.fault]
        assert await streams.mend(url, partition) == "", "there is nothing left to do"
        assert await client.emit_all([note(number) for number in range(31, 40)], wait_s=FOR_EVER_S)
        await applied(bus)
        after = await raw.xrange(stream)
        found = await notes(graph)
        [status] = [each for each in await bus.partitions.status() if each.id == partition]
    assert after[:30] == before, "the entries before keep their ids"
    valid = {"an event": [90], "two events and an entry": [90, 91], "the year 3000": [90, 30]}.get(way, [])
    assert [number for _, item in after[30:] if isinstance(number := number_of(item), int)] == [*valid, *range(31, 40)]
    assert found == [(number, 1) for number in [*range(30), *sorted([*valid, *range(31, 40)])]]
    written = 30 + added + (way == "the year 3000") + 9
    assert (status.written, status.trimmed, status.lag) == (written, 0, 0), "numbers stay as they are"


async def test_a_partition_is_mended_while_events_arrive(url: str, raw: Any) -> None:
    async with contextlib.aclosing(redis_bus(url)) as bus, Client(url) as client:
        partition = int(str(await client.emit(note(0), wait_s=FOR_EVER_S)).partition(":")[0])
        stream = channels.events_stream(partition)
        await end(raw, stream, "the year 3000")
        sent = 0
        mending = asyncio.create_task(streams.mend(url, partition))
        while not mending.done():
            sent += 1
            assert await client.emit(note(sent), wait_s=FOR_EVER_S)
        assert await mending
        entries = await bus.log.after(partition, "", limit=10_000)
        [status] = [each for each in await bus.partitions.status() if each.id == partition]
    assert [number_of(dict(entry.fields)) for entry in entries] == [0, 90, *range(1, sent + 1)]
    assert (status.written, status.fault) == (sent + 2, "")


async def test_a_trimmed_partition_is_mended_with_its_numbers(url: str, raw: Any) -> None:
    async with contextlib.aclosing(redis_bus(url)) as bus, Client(url) as client:
        positions = await client.emit_all([note(number) for number in range(20)], wait_s=FOR_EVER_S)
        partition, _, offset = str(positions[9]).partition(":")
        stream = channels.events_stream(int(partition))
        assert (await bus.partitions.committed(int(partition))).count == 0
        await bus.partitions.trim(int(partition), offset)
        await end(raw, stream, "two events and an entry")
        assert await streams.mend(url, int(partition))
        [status] = [each for each in await bus.partitions.status() if each.id == int(partition)]
        assert (status.written, status.trimmed) == (23, 10)
        assert len(await bus.log.after(int(partition), "", limit=99)) == 13


async def test_an_empty_partition_that_has_ended_is_mended(url: str, raw: Any) -> None:
    async with Client(url) as client, contextlib.aclosing(redis_bus(url)) as bus:
        partition = int(str(await client.emit(note(0), wait_s=FOR_EVER_S)).partition(":")[0])
        await raw.xadd(channels.events_stream(partition), {"a": "b"}, id=LAST, maxlen=0)
        assert await client.emit(note(1), wait_s=FOR_EVER_S) is None
        assert await streams.mend(url, partition)
        assert await client.emit(note(2), wait_s=FOR_EVER_S)
        [status] = [each for each in await bus.partitions.status() if each.id == partition]
        assert (status.written, status.trimmed) == (3, 2)


async def test_a_position_behind_the_largest_id_goes_back(url: str, raw: Any) -> None:
    async with contextlib.aclosing(redis_bus(url)) as bus, Client(url) as client:
        positions = await client.emit_all([note(number) for number in range(5)], wait_s=FOR_EVER_S)
        partition, _, offset = str(positions[-1]).partition(":")
        stream = channels.events_stream(int(partition))
        await bus.partitions.committed(int(partition))
        await end(raw, stream, "an event")
        await raw.xgroup_setid(stream, channels.MUTATION_GROUP, LAST, entries_read=6)  # as earlier versions did
        await streams.mend(url, int(partition))
        committed = await bus.partitions.committed(int(partition))
        assert (committed.offset, committed.count) == (offset, 5)
        [entry] = (await bus.log.read(int(partition), committed, limit=10)).entries
        assert number_of(dict(entry.fields)) == 90


@pytest.mark.parametrize("kind", ["set", "rpush", "sadd"])
async def test_a_key_that_holds_no_stream_is_set_aside(url: str, raw: Any, kind: str) -> None:
    async with contextlib.aclosing(redis_bus(url)) as bus, Client(url) as client:
        partition = (await bus.partitions.layout()).partition_of(f"{APP}/c")
        stream = channels.events_stream(partition)
        await raw.execute_command(kind.upper(), stream, "x")
        faults = {each.id: each.fault for each in await bus.partitions.status() if each.fault}
        assert list(faults) == [partition]
        assert "holds no stream" in faults[partition]
        assert "named graphweft:events" in await streams.mend(url, partition)
        assert await raw.exists(f"{stream}") == 0
        assert len(await raw.keys(f"{stream}:aside:*")) == 1
        assert await client.emit(note(1), wait_s=FOR_EVER_S)


async def test_an_id_ahead_of_the_clock_is_told_and_read(url: str, raw: Any) -> None:
    async with contextlib.aclosing(redis_bus(url)) as bus, Client(url) as client:
        partition = (await bus.partitions.layout()).partition_of(f"{APP}/c")
        seconds, _ = await raw.time()
        stream = channels.events_stream(partition)
        await raw.xadd(stream, fields(1), id=f"{(seconds + 60) * 1000}-0")
        assert not [each for each in await bus.partitions.status() if each.fault], "clocks differ by a minute"
        await raw.xadd(stream, fields(2), id=f"{(seconds + 7200) * 1000}-0")
        [fault] = [each.fault for each in await bus.partitions.status() if each.fault]
        assert "2 h ahead of the server's clock" in fault
        assert await client.emit(note(3), wait_s=FOR_EVER_S)
        assert len(await bus.log.after(partition, "", limit=9)) == 3
        assert await streams.mend(url, partition) == ""


async def test_requests_go_on_after_the_clock_was_set_back(url: str, raw: Any) -> None:
    async with contextlib.aclosing(RedisTransport(url)) as transport:
        await transport.append([])
    seconds, _ = await raw.time()
    await raw.xadd(channels.CONTEXT_REQUESTS, {"data": "{}"}, id=f"{(seconds + 7200) * 1000}-0")
    assert await streams.request_fault(url) == ""


async def test_a_partition_that_does_not_exist_is_not_mended(url: str, raw: Any) -> None:
    async with contextlib.aclosing(RedisTransport(url)) as transport:
        await transport.append([])
    with pytest.raises(InvalidSettings, match="no partition 64"):
        await streams.mend(url, 64)


@pytest.mark.parametrize("command", [("XADD", LAST, "a", "b"), ("XADD", f"{YEAR_3000_MS}-0", "a", "b"), ("SET", "x")])
async def test_a_responder_says_that_requests_have_ended_and_goes_on(
    url: str, raw: Any, command: tuple[str, ...]
) -> None:
    async def answer(request: Any) -> ContextReply:
        return ContextReply(id=request.id, text="here")

    timing = replace(REDIS_BUS_TIMING, stream_s=0.05)
    queue = RedisRequestQueue(url, consumer="r", timing=timing)
    responder = InjectionResponder(queue, answer)

    async def answered() -> bool:
        reply = await client.context(agent="a", chat_id="c", budget_ms=2_000)
        return reply.text == "here"

    with capture_logs() as logs:
        task = asyncio.create_task(responder.run())
        async with Client(url, app_id=APP, workflow="W") as client:
            await until(answered)
            if command[0] == "SET":
                await raw.delete(channels.CONTEXT_REQUESTS)
            await raw.execute_command(command[0], channels.CONTEXT_REQUESTS, *command[1:])

            async def told() -> bool:
                return any("graphweft bus mend requests" in str(each.get("error")) for each in logs)

            await until(told)
            assert "`graphweft bus mend requests`" in await streams.request_fault(url)
            assert await streams.mend(url, None)
            await until(answered)
            assert await streams.request_fault(url) == ""
        responder.stop()
        await task
        await queue.aclose()


async def test_readyz_names_what_takes_nothing(url: str, raw: Any) -> None:
    import httpx

    client = Client(url)
    app = make_app(client, connect=lambda: RedisTransport(url), insecure_app=APP)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as gateway:
        position = await client.emit(note(0), wait_s=FOR_EVER_S)
        partition = str(position).partition(":")[0]
        await raw.xadd(channels.events_stream(int(partition)), {"a": "b"}, id=LAST)
        await raw.xadd(channels.CONTEXT_REQUESTS, {"a": "b"}, id=LAST)
        assert await client.emit(note(1), wait_s=FOR_EVER_S) is None
        state = (await gateway.get("/readyz")).json()
        assert f"`graphweft bus mend {partition}`" in state["partitions"]
        assert "`graphweft bus mend requests`" in state["responder"]
        await streams.mend(url, int(partition))
        assert await client.emit(note(2), wait_s=FOR_EVER_S)
        assert "partitions" not in (await gateway.get("/readyz")).json()
    await client.aclose()


def run(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment() | {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url}
    command = [sys.executable, "-P", "-m", "graphweft_workers.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


async def test_commands_find_and_mend(url: str, raw: Any) -> None:
    async with Client(url) as client:
        partition = str(await client.emit(note(0), wait_s=FOR_EVER_S)).partition(":")[0]
    await raw.xadd(channels.events_stream(int(partition)), {"a": "b"}, id=LAST)
    await raw.xadd(channels.CONTEXT_REQUESTS, {"a": "b"}, id=LAST)
    doctor = await asyncio.to_thread(run, url, "doctor")
    assert doctor.returncode == 1
    status = await asyncio.to_thread(run, url, "status")
    for told in (doctor.stdout + doctor.stderr, status.stdout + status.stderr):
        text = " ".join(told.split())
        assert f"graphweft bus mend {partition}" in text
        assert "graphweft bus mend requests" in text
    shown = json.loads((await asyncio.to_thread(run, url, "status", "--json")).stdout)
    assert [str(each["id"]) for each in shown["partitions"] if "fault" in each] == [partition]
    assert "mend requests" in shown["context_requests"]
    for what in (partition, "requests"):
        mended = await asyncio.to_thread(run, url, "bus", "mend", what)
        assert mended.returncode == 0, mended.stderr
    again = await asyncio.to_thread(run, url, "bus", "mend", partition)
    assert "nothing to mend" in again.stdout + again.stderr
    refused = await asyncio.to_thread(run, url, "bus", "mend", "x1")
    assert refused.returncode == 2


LARGEST = 2**64 - 1


@pytest.mark.parametrize("ms", [7_258_118_399_999, None])
async def test_an_entry_right_before_the_limit_ends_no_partition(
    url: str, raw: Any, tmp_path: Path, ms: int | None
) -> None:
    """Whoever follows it gets the next millisecond, which must be read too."""
    async with contextlib.aclosing(redis_bus(url)) as bus, Client(url) as client, working(url, tmp_path) as graph:
        position = await client.emit(note(0), wait_s=FOR_EVER_S)
        partition = int(str(position).partition(":")[0])
        stream = channels.events_stream(partition)
        seconds, _ = await raw.time()
        at_ms = seconds * 1000 + streams.FAR_MS - 1 if ms is None else ms
        await raw.xadd(stream, fields(90), id=f"{at_ms}-{LARGEST}")
        await client.emit_all([note(number) for number in range(1, 5)], wait_s=FOR_EVER_S)
        await until(lambda: notes(graph), lambda found: found == [(number, 1) for number in (0, 1, 2, 3, 4, 90)])
        await raw.xadd(stream, fields(91), id=LAST)
        assert await streams.mend(url, partition)
        await client.emit(note(5), wait_s=FOR_EVER_S)
        await until(lambda: notes(graph), lambda found: len(found) == 8)
        assert await notes(graph) == [(number, 1) for number in (0, 1, 2, 3, 4, 5, 90, 91)]
        await applied(bus)
        [status] = [each for each in await bus.partitions.status() if each.id == partition]
    assert "ahead of the server's clock" in status.fault


async def test_an_entry_that_is_read_soon_keeps_its_id(url: str, raw: Any) -> None:
    """A worker might read it while the copy is made."""
    async with contextlib.aclosing(redis_bus(url)) as bus, Client(url) as client:
        partition = int(str(await client.emit(note(0), wait_s=FOR_EVER_S)).partition(":")[0])
        stream = channels.events_stream(partition)
        seconds, _ = await raw.time()
        soon = f"{seconds * 1000 + streams.FAR_MS + 300_000}-{LARGEST}"
        await raw.xadd(stream, fields(1), id=soon)
        [fault] = [each.fault for each in await bus.partitions.status() if each.fault]
        assert "read within 10 minutes" in fault
        assert await streams.mend(url, partition) == ""
        await raw.xadd(stream, fields(2), id=LAST)
        said = await streams.mend(url, partition)
        assert "But its last id is" in said
        assert "read within 10 minutes" in said
        assert [offset.decode() for offset, _ in await raw.xrange(stream)][1] == soon
        assert len(await bus.log.after(partition, "", limit=10)) == 1


async def test_entries_come_behind_the_position_even_if_all_before_was_trimmed(
    url: str, raw: Any, tmp_path: Path
) -> None:
    async with contextlib.aclosing(redis_bus(url)) as bus, Client(url) as client, working(url, tmp_path) as graph:
        partition = int(str(await client.emit(note(0), wait_s=FOR_EVER_S)).partition(":")[0])
        stream = channels.events_stream(partition)
        seconds, _ = await raw.time()
        ahead = f"{(seconds + 90_000) * 1000}-7"
        await raw.xadd(stream, fields(1), id=ahead)
        await until(lambda: notes(graph), lambda found: len(found) == 2)
        await applied(bus)
        await bus.partitions.trim(partition, ahead)
        await raw.xadd(stream, fields(2), id=LAST)
        assert await streams.mend(url, partition)
        await client.emit(note(3), wait_s=FOR_EVER_S)
        await until(lambda: notes(graph), lambda found: len(found) == 4)


async def test_entries_that_are_not_read_are_not_fetched(url: str, raw: Any) -> None:
    async with contextlib.aclosing(redis_bus(url)) as bus, Client(url) as client:
        partition = int(str(await client.emit(note(0), wait_s=FOR_EVER_S)).partition(":")[0])
        stream = channels.events_stream(partition)
        for number in range(20):
            await raw.xadd(stream, {"a": b"x" * 1_000_000}, id=f"{YEAR_3000_MS}-{number}")
        cursor = await bus.partitions.committed(partition)
        assert len((await bus.log.read(partition, cursor, limit=1000)).entries) == 1
        before = (await raw.info("stats"))["total_net_output_bytes"]
        for _ in range(5):
            assert len((await bus.log.read(partition, cursor, limit=1000)).entries) == 1
        assert (await raw.info("stats"))["total_net_output_bytes"] - before < 1_000_000


async def test_rules_apply_behind_the_last_entry_whatever_its_id(url: str, raw: Any) -> None:
    from graphweft_contracts.rules_log import StoredRules, digest_of

    files = {"Shop/graph_injection.yaml": RULES.encode()}
    digest = digest_of(files)
    async with contextlib.aclosing(redis_bus(url)) as bus, Client(url) as client:
        await bus.rules.store(digest, StoredRules(files=files))
        partition = int(str(await client.emit(note(0), wait_s=FOR_EVER_S)).partition(":")[0])
        stream = channels.events_stream(partition)
        ms = 2_000_000_000_000
        for sequence, behind in (
            ("8", f"{ms}-9"),
            ("99", f"{ms}-100"),
            ("9007199254740993", f"{ms}-9007199254740994"),
            ("18446744073709551599", f"{ms}-18446744073709551600"),
            (str(LARGEST), f"{ms + 1}-0"),
        ):
            await raw.delete(stream)
            await raw.xadd(stream, {"a": "b"}, id=f"{ms}-{sequence}")
            await raw.xadd(stream, {"a": "b"}, id=LAST)
            assert (await bus.rules.activate("*", digest)).positions[partition] == behind
