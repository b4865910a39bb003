"""Connections to Redis: the time limit is for the network, not for a busy event loop, and errors quote no command."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError
from tests.services.virtual_time import VIRTUAL

from graphweft.transports.redis import connection
from graphweft.transports.redis.connection import connect


def work() -> None:
    """Keep the event loop busy for longer than the network may take."""
    VIRTUAL.advance(0.03)


async def agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer what a client says about itself when it connects."""
    while said := await reader.read(1_000):
        writer.write(b"+OK\r\n" * said.count(b"CLIENT"))
    writer.close()


async def test_a_busy_event_loop_does_not_make_a_server_unavailable() -> None:
    async with await asyncio.start_server(agree, "127.0.0.1", 0) as server:
        client = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", io_timeout_s=None, connect_s=0.01)
        opened = client.connection_pool.make_connection()
        opening = asyncio.create_task(opened.connect())
        for _ in range(5):
            await asyncio.sleep(0)
            work()
        await opening
        assert opened.is_connected
        await opened.disconnect()


async def test_a_host_that_does_not_answer_is_given_up() -> None:
    never = asyncio.Event()
    opening = asyncio.ensure_future(never.wait())

    async def open_it() -> None:
        await opening

    with pytest.raises(asyncio.TimeoutError):
        await connection.opened(open_it(), 0.01)
    assert opening.cancelled()


def test_a_failure_that_nobody_waits_for_any_more_is_no_warning() -> None:
    warnings: list[dict[str, Any]] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: warnings.append(context))
        ready = asyncio.Event()

        async def refused() -> None:
            await ready.wait()
            waiting.cancel()
            raise ConnectionRefusedError

        waiting = asyncio.create_task(connection.opened(refused(), 10))
        await asyncio.sleep(0)
        ready.set()
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    asyncio.run(scene())
    gc.collect()  # asyncio warns when nothing refers to the opening any more
    assert not warnings


REFUSED = b"OOM command not allowed when used memory > 'maxmemory'."


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Refuse each command of a transaction as a full server does."""
    while said := await reader.read(1_000_000):
        writer.write(b"+OK\r\n" * (said.count(b"CLIENT") + said.count(b"MULTI")))
        writer.write((b"-" + REFUSED + b"\r\n") * said.count(b"XADD"))
        writer.write(b"-EXECABORT Transaction discarded\r\n" * said.count(b"EXEC"))
    writer.close()


async def test_the_error_of_a_transaction_does_not_quote_the_event() -> None:
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        client = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", io_timeout_s=None)
        pipeline = client.pipeline(transaction=True)
        pipeline.xadd("events", {"data": "the secret of a user " * 2})
        pipeline.xadd("events", {"data": "another"})
        with pytest.raises(OutOfMemoryError) as caught:
            await pipeline.execute()
        await client.aclose()
    assert str(caught.value) == REFUSED.decode().removeprefix("OOM ")


def test_connections_share_the_name_that_they_give_to_the_server() -> None:
    """By default redis-py reads its own metadata for each connection, which holds the event loop for 5 ms."""
    names: set[int] = set()
    for url in ("redis://127.0.0.1:1", "rediss://127.0.0.1:1", "unix:///tmp/none.sock", "redis+sentinel://127.0.0.1/m"):
        pool = connect(url, io_timeout_s=None).connection_pool
        names |= {id(pool.make_connection().driver_info) for _ in range(3)}
    assert len(names) == 1
