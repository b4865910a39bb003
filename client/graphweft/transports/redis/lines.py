"""Connections that carry commands without the layers of redis-py's client.

A command through the client takes twice the processor time: it takes a connection out of the pool and puts it back,
sets two timers, and counts for metrics. Here a connection stays out of the pool, and one timer is for the round trip,
or for each further reply if it has several. Commands are packed in C, in a fifth of the time; the words of a name such
as ``XINFO GROUPS`` are arguments of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType]
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as LateConnection

from graphweft.time_limit import time_limit
from graphweft.transports.redis.connection import Command, connect

_pack = cast("Callable[[Command], bytes]", pack_command)

_LOST: Final = (LostConnection, LateConnection, OSError)


class TooFewReplicas(RedisError):
    """What was written may be lost if the master fails now."""


class Lines:
    """Connections to one server, as many as there are concurrent calls.

    They open at the first use, and again after errors.
    A command whose connection breaks is sent again up to ``repeats`` times: it may have run. The protocol is RESP2.
    """

    def __init__(self, url: str, *, io_timeout_s: float, decode: bool = False, repeats: int = 0) -> None:
        self._client = connect(url, io_timeout_s=None, decode=decode)
        self._io_timeout_s = io_timeout_s
        self._repeats = repeats
        self._idle: list[Any] = []
        self._closed = False

    async def execute(self, *command: Any) -> Any:
        """Return the server's reply. Raises ``RedisError`` or ``OSError``."""
        [answer] = await self.exchange([command])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Run the commands in order over one connection, and return their replies, which may be errors.

        Raises ``RedisError`` or ``OSError`` if the connection is lost, and redis-py's ``TimeoutError`` if the server
        gives no reply, or none after the last one, within ``io_timeout_s``. If the caller is cancelled, the connection
        is closed.
        """
        for attempt in range(self._repeats + 1):
            try:
                return await self._exchange(commands)
            except TimeoutError as error:  # not to be taken for the end of the caller's own time
                if attempt == self._repeats:
                    raise LateConnection(f"no answer within {self._io_timeout_s:g} s") from error
            except _LOST:
                if attempt == self._repeats:
                    raise
        raise AssertionError

    async def replicated(self, commands: Sequence[Command], *, replicas: int, wait_s: float) -> list[Any]:
        """Run the commands as one transaction, and wait until so many replicas have all that it wrote or saw.

        The commands must write. Returns their replies, which may be errors. Raises ``ResponseError`` if the server
        refused all of them, and ``TooFewReplicas`` if fewer had it in time: then it has happened, and may be lost. All
        of it goes over one connection, so a server that is replaced in between does not answer for the other one.
        """
        wait = ("WAIT", replicas, max(1, int(wait_s * 1000)))
        _, *queued, answers, there = await self.exchange([("MULTI",), *commands, ("EXEC",), wait])
        for each in (*queued, answers, there):
            if isinstance(each, Exception):
                raise each
        if there < replicas:
            raise TooFewReplicas(
                f"{there} of {replicas} replicas have it (wait_replicas in the URL): see that they run and follow the "
                "master"
            )
        found: list[Any] = answers
        return found

    async def aclose(self) -> None:
        """Close all connections; a second call does nothing."""
        self._idle, self._closed = [], True
        await self._client.aclose()

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        answers: list[Any] = []
        line: Any = self._idle.pop() if self._idle else None
        try:
            async with time_limit(self._io_timeout_s):
                if line is None:
                    line = await self._client.connection_pool.get_connection()
                if line.is_connected and await _is_stale(line):
                    await line.disconnect()
                await line.send_packed_command(list(map(_pack, commands)), check_health=False)
                if commands:
                    answers.append(await _reply(line))
            while len(answers) < len(commands):
                async with time_limit(self._io_timeout_s):
                    answers.append(await _reply(line))
        except BaseException:  # what is still to come must not be taken for a later reply
            if line is not None:
                await line.disconnect(nowait=True)
            raise
        finally:
            if line is not None and not self._closed:
                self._idle.append(line)
            elif self._closed:  # a connection may have opened while all were closed, also one that nobody waits for
                await self._client.connection_pool.disconnect()
        return answers


async def _reply(line: Any) -> Any:
    try:
        return await line.read_response()
    except ResponseError as error:
        return error


async def _is_stale(line: Any) -> bool:
    """Tell whether the server has closed the connection, or has sent a reply to no command."""
    look = getattr(line, "can_read", None) or line.can_read_destructive
    try:
        return bool(await look())
    except (RedisError, OSError):
        return True
