"""Connections that carry commands without redis-py's client: replies belong to their commands, whatever breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio as redis
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as LateConnection
from tests.services.waiting import turns, until

from graphweft.transports.redis.connection import Command, CommandBatcher, connect
from graphweft.transports.redis.lines import Lines

pytestmark = pytest.mark.integration


@pytest_asyncio.fixture
async def lines(url: str) -> AsyncIterator[Lines]:
    async with contextlib.aclosing(Lines(url, io_timeout_s=20)) as made:
        yield made


@pytest_asyncio.fixture
async def raw(url: str) -> AsyncIterator[Any]:
    async with redis.Redis.from_url(url, decode_responses=True) as client:
        yield client


async def blocked(raw: Any) -> list[str]:
    return [each["id"] for each in await raw.client_list() if each["cmd"] == "blpop"]


async def test_replies_come_in_order_and_an_error_is_one_of_them(lines: Lines) -> None:
    one, error, two, three = await lines.exchange(
        [("ECHO", "a"), ("NOTHING",), ("ECHO", "b" * 100_000), ("ECHO", b"\xff")]
    )
    assert (one, two, three) == (b"a", b"b" * 100_000, b"\xff")
    assert isinstance(error, ResponseError)
    with pytest.raises(ResponseError):
        await lines.execute("NOTHING")
    assert await lines.execute("ECHO", "c") == b"c"


async def test_a_connection_is_used_again_and_there_are_as_many_as_concurrent_calls(lines: Lines) -> None:
    assert await lines.execute("CLIENT", "ID") == await lines.execute("CLIENT", "ID")
    assert len(set(await asyncio.gather(*(lines.execute("CLIENT", "ID") for _ in range(5))))) == 5
    assert len({await lines.execute("CLIENT", "ID") for _ in range(20)}) == 1


async def test_a_cancelled_call_ends_at_the_server_and_leaves_no_reply(lines: Lines, raw: Any) -> None:
    call = asyncio.create_task(lines.execute("BLPOP", "lines", 0))
    [number] = await until(lambda: blocked(raw))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: gone(raw, number))
    await raw.rpush("lines", "for nobody")
    assert await lines.execute("ECHO", "mine") == b"mine"
    assert await raw.lpop("lines") == "for nobody"


async def test_the_time_limit_is_for_each_reply(url: str) -> None:
    """A round trip of many slow queries may take longer than one of them may."""
    async with contextlib.aclosing(Lines(url, io_timeout_s=2)) as lines:
        assert await lines.exchange([("BLPOP", "lines", 0.8)] * 3) == [None] * 3


async def test_a_late_reply_is_not_taken_for_the_next_one(url: str, raw: Any) -> None:
    async with contextlib.aclosing(Lines(url, io_timeout_s=0.3)) as lines:
        with pytest.raises(LateConnection):  # not the built-in error, which ends a caller's own time
            await lines.execute("BLPOP", "lines", 0)
        await raw.rpush("lines", "late")
        assert await lines.execute("ECHO", "mine") == b"mine"
    await raw.delete("lines")


async def test_a_connection_that_the_server_has_closed_meanwhile_is_opened_again(lines: Lines, raw: Any) -> None:
    number = await lines.execute("CLIENT", "ID")
    await raw.execute_command("CLIENT KILL", "ID", number)
    assert await lines.execute("CLIENT", "ID") != number


@pytest.mark.parametrize("repeats", [0, 1])
async def test_a_call_whose_connection_breaks_is_repeated_as_often_as_said(url: str, raw: Any, repeats: int) -> None:
    async with contextlib.aclosing(Lines(url, io_timeout_s=20, repeats=repeats)) as lines:
        call = asyncio.create_task(CommandBatcher(lines, connections=1).execute("BLPOP", "lines", 0))
        for _ in range(repeats + 1):
            [number] = await until(lambda: blocked(raw))
            await raw.execute_command("CLIENT KILL", "ID", number)
            await until(lambda number=number: gone(raw, number))
        with pytest.raises(RedisError):
            await call
        assert await lines.execute("ECHO", "next") == b"next"


async def test_a_first_command_is_sent_at_once_and_the_next_ones_go_together(lines: Lines) -> None:
    sent: list[int] = []

    class Counted:
        async def exchange(self, commands: Sequence[Command]) -> list[Any]:
            sent.append(len(commands))
            return await lines.exchange(commands)

    together = CommandBatcher(Counted(), connections=8, at_once=lambda: True)
    first = together.execute("ECHO", "0")
    with contextlib.suppress(StopIteration):
        first.send(None)
    assert sent == [1]
    first.close()
    answers = await asyncio.gather(*(together.execute("ECHO", str(number)) for number in range(16)))
    assert answers == [str(number).encode() for number in range(16)]
    assert sent == [1, 1, 15]


async def test_a_command_sent_at_once_counts_among_the_round_trips() -> None:
    running: list[int] = []
    most: list[int] = []

    class Counted:
        async def exchange(self, commands: Sequence[Command]) -> list[Any]:
            running.append(len(commands))
            most.append(len(running))
            await turns(3)
            running.pop()
            return list(commands)

    together = CommandBatcher(Counted(), connections=1, at_once=lambda: True)
    await asyncio.gather(*(together.execute("ECHO", str(number)) for number in range(16)))
    assert max(most) == 1


async def test_a_cancelled_command_that_was_sent_at_once_leaves_no_reply(lines: Lines, raw: Any) -> None:
    together = CommandBatcher(lines, connections=8, at_once=lambda: True)
    call = asyncio.create_task(together.execute("BLPOP", "lines", 0))
    await until(lambda: blocked(raw))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await together.execute("ECHO", "mine") == b"mine"


async def gone(raw: Any, number: str) -> bool:
    return number not in await blocked(raw)


async def test_a_server_that_is_not_there_is_an_error_each_time() -> None:
    async with contextlib.aclosing(Lines("unix:///nonexistent/redis.sock", io_timeout_s=5, repeats=1)) as lines:
        for _ in range(3):
            with pytest.raises((RedisError, OSError)):
                await lines.execute("PING")


async def test_a_unix_socket_opens_however_busy_the_event_loop_is(url: str) -> None:
    """A worker opens the connections of all its partitions at once, which may take longer than a network may."""
    client = connect(url, io_timeout_s=20, connect_s=1e-6)
    try:
        assert all(await asyncio.gather(*(client.ping() for _ in range(32))))
    finally:
        await client.aclose()


async def test_a_connection_that_opens_while_all_are_closed_is_closed_too(url: str) -> None:
    for count in range(8):
        lines = Lines(url, io_timeout_s=5)
        asked = asyncio.create_task(lines.execute("PING"))
        await turns(count)
        await lines.aclose()
        await asyncio.gather(asked, return_exceptions=True)
        assert not [line for line in lines._idle if line.is_connected]


async def test_the_timeout_of_a_url_does_not_end_reads_that_wait(url: str) -> None:
    client = connect(f"{url}?socket_timeout=0.05", io_timeout_s=5.0)
    assert await client.execute_command("BLPOP", "nothing", "0.3") is None
    await client.aclose()


async def test_a_connection_that_is_late_to_close_is_no_error(url: str) -> None:
    client = connect(url, io_timeout_s=20)
    await client.ping()
    [line] = client.connection_pool._available_connections
    transport = line._writer.transport
    line.socket_connect_timeout = 0  # as if it took longer than allowed
    await client.aclose()
    assert not line.is_connected
    assert transport.is_closing()
