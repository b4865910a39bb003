"""One way to connect to a Redis server, for everything that talks to one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

__all__ = ("Command", "Together", "connect")

type Command = tuple[Any, ...]

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
    meanwhile goes together with the next, and one that is under way goes on when who waits for it is cancelled, as the
    server does. The client is its creator's to close.
    """

    def __init__(self, client: Any, *, connections: int) -> None:
        self._client = client
        self._free = asyncio.Semaphore(connections)
        self._batch: list[tuple[Sequence[Command], asyncio.Future[list[Any]]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def execute(self, *command: Any) -> Any:
        """Return what the server answers to ``command``. Raises ``RedisError`` or ``OSError``."""
        [answer] = await self.execute_all([command])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def execute_all(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers to commands that go one after the other over one connection, refusals among them.

        Raises ``RedisError`` or ``OSError`` when the connection is lost.
        """
        answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._batch.append((commands, answers))
        if len(self._batch) == 1:
            task = asyncio.create_task(self._send())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await answers

    async def aclose(self) -> None:
        """End what is under way; who waits for it gets a ``RedisError``."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        _end(self._batch)  # of a task that had not begun
        self._batch = []

    async def _send(self) -> None:
        async with self._free:
            # What was cancelled in time is not sent.
            batch, self._batch = [each for each in self._batch if not each[1].done()], []
            try:
                answers = iter(await self._answers([command for commands, _ in batch for command in commands]))
            except asyncio.CancelledError:  # closed
                _end(batch)
                raise
            except Exception as error:  # noqa: BLE001 - a defect, too, must end who waits with its error
                for _, waiter in batch:
                    if not waiter.done():
                        waiter.set_exception(error)
                return
            for commands, waiter in batch:
                own = list(itertools.islice(answers, len(commands)))
                if not waiter.done():  # who asked may have given up
                    waiter.set_result(own)

    async def _answers(self, commands: Sequence[Command]) -> list[Any]:
        if len(commands) == 1:
            try:
                return [await self._client.execute_command(*commands[0])]
            except ResponseError as error:
                return [error]
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers


def _end(batch: Sequence[tuple[Sequence[Command], asyncio.Future[list[Any]]]]) -> None:
    for _, waiter in batch:
        if not waiter.done():
            waiter.set_exception(redis.ConnectionError("the client is closed"))
