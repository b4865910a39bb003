"""One way to connect to a Redis server, for everything that talks to one."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

__all__ = ("Together", "connect")

_CONNECT_S: Final = 2.0
_CONNECTIONS: Final = 1_024
"""redis-py gives out 100 and refuses the next call; partitions that wait for events hold one each."""


def connect(url: str, *, io_timeout_s: float | None, decode: bool = False, repeats: int = 0) -> Any:
    """Return a client that connects at its first use. ``io_timeout_s`` None waits for replies without end.

    redis-py repeats a command up to ten times by itself, which writes an entry twice when a reply got lost; this one
    does so ``repeats`` times. Once is enough for connections that lay idle while the server was restarted. The protocol
    is RESP2, which falkordb needs. The result is untyped: redis-py's types promise a value or an awaitable for every
    command.
    """
    return redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
        url,
        retry=Retry(NoBackoff(), repeats),
        socket_connect_timeout=_CONNECT_S,
        socket_timeout=io_timeout_s,
        max_connections=_CONNECTIONS,
        protocol=2,
        decode_responses=decode,
    )


class Together:
    """Sends the commands that come within one turn of the event loop in one round trip.

    A write to a socket costs more than a command. At most ``connections`` round trips are under way; what comes
    meanwhile goes together with the next.
    """

    def __init__(self, client: Any, *, connections: int) -> None:
        self._client = client
        self._free = asyncio.Semaphore(connections)
        self._batch: list[tuple[tuple[Any, ...], asyncio.Future[Any]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def execute(self, *command: Any) -> Any:
        """Return what the server answers to ``command``. Raises ``RedisError`` or ``OSError``."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._batch.append((command, future))
        if len(self._batch) == 1:
            task = asyncio.create_task(self._send())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        answer = await future
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def aclose(self) -> None:
        """End what is under way and close the client."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def _send(self) -> None:
        async with self._free:
            batch, self._batch = self._batch, []
            answers: list[Any]
            try:
                if len(batch) == 1:
                    answers = [await self._client.execute_command(*batch[0][0])]
                else:
                    pipeline = self._client.pipeline(transaction=False)
                    for command, _ in batch:
                        pipeline.execute_command(*command)
                    answers = await pipeline.execute(raise_on_error=False)
            except (RedisError, OSError) as error:
                answers = [error] * len(batch)
            except asyncio.CancelledError:
                for _, future in batch:
                    future.cancel()
                raise
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():  # who asked may have given up
                    future.set_result(answer)
