"""A stream that takes no entries any more: the events of its partition are refused, and all others go on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
import redis.asyncio as redis

from graphweft import Client, Event
from graphweft.transport import Outgoing
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import Layout, PartitionRefused, channels, wire
from graphweft_workers.gateway.app import make_app
from graphweft_workers.gateway.cloud_events import BATCH
from graphweft_workers.gateway.limits import GatewayLimits

pytestmark = pytest.mark.integration
LAYOUT = Layout()
BAD = "bad"
STREAM = channels.events_stream(LAYOUT.partition_of(f"{BAD}/c"))
OTHERS = [
    name
    for name in (f"app{number}" for number in range(9))
    if channels.events_stream(LAYOUT.partition_of(f"{name}/c")) != STREAM
]
LAST = "18446744073709551615-18446744073709551615"
FOR_EVER_S = 3600.0

WAYS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "the largest id": (("XADD", STREAM, LAST, "a", "b"),),
    "the largest id behind events": (("XADD", STREAM, "*", "a", "b"), ("XADD", STREAM, LAST, "a", "b")),
    "the largest id of an event": (("XADD", STREAM, LAST, "data", "{}"),),
    "the largest id, trimmed": (("XADD", STREAM, "MAXLEN", "0", LAST, "a", "b"),),
    "XSETID": (("XADD", STREAM, "*", "a", "b"), ("XSETID", STREAM, LAST)),
    "a text": (("SET", STREAM, "x"),),
    "a list": (("RPUSH", STREAM, "x"),),
    "a set": (("SADD", STREAM, "x"),),
    "a map": (("HSET", STREAM, "x", "y"),),
    "a sorted set": (("ZADD", STREAM, "1", "x"),),
}


def note(app_id: str, number: int) -> Event:
    return Event.create("note.made", app_id=app_id, chat_id="c", data={"n": number}, id=f"{app_id}-{number}")


@pytest_asyncio.fixture
async def raw(url: str) -> AsyncIterator[Any]:
    async with redis.Redis.from_url(url) as connection:
        yield connection


async def numbers(raw: Any, app_id: str) -> list[int]:
    stream = channels.events_stream(LAYOUT.partition_of(f"{app_id}/c"))
    return [event.data["n"] for _, fields in await raw.xrange(stream) if (event := wire.decode(fields)).appid == app_id]


@pytest.mark.parametrize("way", WAYS)
async def test_a_stream_that_takes_nothing_stops_only_its_own_events(url: str, raw: Any, way: str) -> None:
    async with Client(url) as client:
        assert await client.emit(note(OTHERS[0], 0), wait_s=FOR_EVER_S)
        for command in WAYS[way]:
            await raw.execute_command(*command)
        mixed = [note(app_id, number) for number in range(1, 4) for app_id in (BAD, *OTHERS)]
        outcomes = await client.emit_each(mixed, wait_s=FOR_EVER_S)
        [alone] = await client.emit_each([note(BAD, 4)], wait_s=FOR_EVER_S)
        assert await client.emit(note(OTHERS[1], 4), wait_s=FOR_EVER_S)
    for event, outcome in zip(mixed, outcomes, strict=True):
        assert isinstance(outcome, PartitionRefused if event.appid == BAD else str), outcome
    partition = STREAM.rpartition(":")[2]
    assert f"partition {partition}" in str(alone)
    assert f"`graphweft bus mend {partition}`" in str(alone)
    assert await numbers(raw, OTHERS[0]) == [0, 1, 2, 3], "each was written once"
    assert await numbers(raw, OTHERS[1]) == [1, 2, 3, 4]
    assert (client.stats.rejected, client.stats.retries) == (4, 0)


async def test_a_mended_stream_takes_events_again(url: str, raw: Any) -> None:
    async with Client(url) as client:
        await raw.set(STREAM, "x")
        assert await client.emit(note(BAD, 1), wait_s=FOR_EVER_S) is None
        await raw.delete(STREAM)
        assert await client.emit(note(BAD, 2), wait_s=FOR_EVER_S)
    assert await numbers(raw, BAD) == [2]


async def limited(raw: Any, url: str, *rules: str) -> str:
    await raw.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">p", *rules)
    return url.replace("unix://", "unix://limited:p@")


async def test_a_stream_that_a_user_may_not_write_stops_only_its_own_events(url: str, raw: Any) -> None:
    async with contextlib.aclosing(RedisTransport(url)) as first:
        await first.append([])
    allowed = [f"%W~{channels.events_stream(LAYOUT.partition_of(f'{app_id}/c'))}" for app_id in OTHERS]
    rights = ("%R~*", "+get", "+hgetall", "+multi", "+exec", "+xadd", "+client|setinfo")
    try:
        async with Client(await limited(raw, url, *rights, *allowed)) as client:
            mixed = [note(app_id, number) for number in range(1, 4) for app_id in (BAD, *OTHERS)]
            outcomes = await client.emit_each(mixed, wait_s=FOR_EVER_S)
    finally:
        await raw.execute_command("ACL", "DELUSER", "limited")
    for event, outcome in zip(mixed, outcomes, strict=True):
        assert isinstance(outcome, PartitionRefused if event.appid == BAD else str), outcome
    assert "`graphweft acl redis`" in str(outcomes[0])
    assert "note.made" not in str(outcomes[0]), "errors hold no content of events"
    assert await numbers(raw, OTHERS[0]) == [1, 2, 3]


async def test_a_user_who_may_write_no_event_waits_for_the_right(url: str, raw: Any) -> None:
    async with contextlib.aclosing(RedisTransport(url)) as first:
        await first.append([])
    rights = ("~*", "+get", "+hgetall", "+multi", "+exec", "+client|setinfo")
    try:
        async with Client(await limited(raw, url, *rights)) as client:
            assert await client.emit(note(BAD, 1), wait_s=0.1) is None
            assert await client.emit_each([note(OTHERS[0], 1)], wait_s=0.1) == [None]
            await raw.execute_command("ACL", "SETUSER", "limited", "+xadd")
            assert await client.flush(120)
    finally:
        await raw.execute_command("ACL", "DELUSER", "limited")
    assert (client.stats.sent, client.stats.rejected) == (2, 0)


async def test_the_transport_raises_the_refusal(url: str, raw: Any) -> None:
    await raw.set(STREAM, "x")
    async with contextlib.aclosing(RedisTransport(url)) as transport:
        events = [note(app_id, 1) for app_id in (OTHERS[0], BAD)]
        outgoing = [Outgoing(key=event.key, fields=wire.encode(event)) for event in events]
        with pytest.raises(PartitionRefused, match="WRONGTYPE"):
            await transport.append(outgoing)


@pytest.mark.parametrize("way", ["the largest id", "a list"])
async def test_the_gateway_refuses_one_partition_and_serves_all_others(url: str, raw: Any, way: str) -> None:
    for command in WAYS[way]:
        await raw.execute_command(*command)
    for app_id, status in ((BAD, 507), (OTHERS[0], 202), (BAD, 507), (OTHERS[1], 202)):
        client = Client(url)
        app = make_app(
            client, connect=lambda: RedisTransport(url), insecure_app=app_id, limits=GatewayLimits(emit_s=60)
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as gateway:
            body = [
                {
                    "id": f"{n}",
                    "source": "/s",
                    "type": "note.made",
                    "chatid": "c",
                    "data": {"n": n},
                    "specversion": "1.0",
                    "appid": app_id,
                }
                for n in (1, 2)
            ]
            answer = await gateway.post("/v1/events", json=body, headers={"content-type": BATCH})
        await client.aclose()
        assert answer.status_code == status, answer.text
        if status == 507:
            assert answer.json()["type"] == "urn:graphweft:problem:partition-refused"
            assert answer.json()["positions"] == [None, None]
            assert "graphweft bus mend" in answer.json()["detail"]


@pytest.mark.parametrize("command", [("XADD", LAST, "a", "b"), ("SET", "x"), ("RPUSH", "x")])
async def test_a_request_says_that_its_stream_has_ended(url: str, raw: Any, command: tuple[str, ...]) -> None:
    await raw.execute_command(command[0], channels.CONTEXT_REQUESTS, *command[1:])
    async with Client(url, app_id=BAD, workflow="W") as client:
        reply = await client.context(agent="a", chat_id="c", budget_ms=60_000)
    assert reply.reason == "bus_unavailable"
    assert "`graphweft bus mend requests`" in (reply.detail or "")
