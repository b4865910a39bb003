"""Connections to a Redis server, for clients and workers."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import redis.asyncio as redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    ClusterDownError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)
from redis.sentinel import MasterNotFoundError

from graphweft.transports.access import file_stamp
from graphweft.transports.redis.timing import REDIS_TIMING
from graphweft.transports.redis.url import NO_CLUSTER, RedisUrl, split_redis_url
from graphweft_contracts import InvalidSettings

Command: TypeAlias = tuple[Any, ...]

_OUT_OF_MEMORY: Final = (
    "it is out of memory (maxmemory). Archive and trim it: `graphweft archive now`, then `graphweft trim`, or run the "
    "archive role with GRAPHWEFT_ARCHIVE_TRIM=true. Or raise maxmemory"
)

_CONNECT_STEPS: Final = 20
"""Steps of the time in which a connection must open. One in which the event loop was busy for longer counts as one."""
_CERTIFICATES: Final = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_FREE: Final = frozenset(
    ("db", "username", "password", "client_name", "socket_timeout", "socket_connect_timeout", "socket_keepalive",
     "health_check_interval", "retry_on_timeout")
)  # fmt: skip
"""Options of a URL that change nothing of what is read or written."""
_TLS: Final = _CERTIFICATES | {
    "ssl_ca_data", "ssl_ca_path", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers", "ssl_password"
}  # fmt: skip
_CHOSEN: Final = {
    "protocol": ("2",),
    "decode_responses": (),
    "encoding": ("utf-8",),
    "encoding_errors": ("strict",),
    "max_connections": (),
    "retry_on_error": (),
    "socket_read_size": (),
}
"""Options that graphweft chooses, with the values that change nothing. Others of redis-py take no text."""
_CONNECTIONS: Final = 1_024
"""The default of redis-py is 100, and the next call fails. Each partition that waits for events holds one."""


def connect(
    url: str, *, io_timeout_s: float | None, decode: bool = False, repeats: int = 0,
    connect_s: float = REDIS_TIMING.connect_s,
) -> Any:  # fmt: skip
    """Return a client that connects at its first use. With ``io_timeout_s`` None it waits for replies forever.

    By default redis-py repeats a command up to ten times, which writes an entry twice if a reply was lost. This client
    repeats ``repeats`` times; once covers connections that were idle while the server restarted. The protocol is RESP2,
    which falkordb requires. The result is untyped, because redis-py's types promise a value or an awaitable for every
    command. ``socket_timeout`` in the URL is ignored: it would end reads that wait for events. Raises
    ``InvalidSettings`` for other options of the URL that change what is read or written.

    Behind Sentinel, each connection that opens asks for the master. One whose server became a replica breaks.
    """
    parts = split_redis_url(url)
    check_options(parts.server)
    client: Any = _Client.from_url(  # pyright: ignore[reportUnknownMemberType]
        parts.server,
        retry=Retry(NoBackoff(), repeats),
        socket_connect_timeout=connect_s,
        socket_timeout=io_timeout_s,
        max_connections=_CONNECTIONS,
        protocol=2,
        decode_responses=decode,
        driver_info=_driver_info(),
    )
    if parts.sentinels:
        client = _behind_sentinel(client, parts, connect_s)
    pool = client.connection_pool
    pool.connection_kwargs["socket_timeout"] = io_timeout_s  # options of a URL come before arguments
    if pool.connection_class is redis.UnixDomainSocketConnection:
        pool.connection_class = _TrustedSocket
        # A unix socket opens without an answer of the server. A time limit would only measure how busy the event loop
        # is, for example while it opens the connections of all partitions.
        pool.connection_kwargs["socket_connect_timeout"] = None
    else:
        kinds = (_Managed, _ManagedTls) if parts.sentinels else (_Patient, _PatientTls)
        pool.connection_class = kinds[issubclass(pool.connection_class, redis.SSLConnection)]
    for name in _CERTIFICATES & pool.connection_kwargs.keys():  # else the first connection fails without naming it
        if not os.path.isfile(file := pool.connection_kwargs[name]):
            raise InvalidSettings(f"the file of certificates {file!r} does not exist")
    return client


@cache
def _driver_info() -> DriverInfo:
    """Return the name that connections give to the server. By default redis-py reads its own metadata for each of them,
    which takes 5 ms of CPU: the first request of a process, which opens several, would be late.
    """
    return DriverInfo()


class _Client(redis.Redis):
    """A client whose pipelines leave the errors of the server as they are.

    redis-py puts the command in front of them, with the event in it, and wraps it like prose: 80 ms for a large one.
    """

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Any:
        pipeline: Any = super().pipeline(transaction, shard_hint)
        pipeline.annotate_exception = _leave
        return pipeline

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        sentinel: Sentinel | None = getattr(self.connection_pool, "sentinel_manager", None)
        for each in () if sentinel is None else sentinel.sentinels:  # Sentinel has no ``aclose`` in redis 7
            await each.aclose()


def _behind_sentinel(client: Any, parts: RedisUrl, connect_s: float) -> Any:
    """Return a client like this one, to the master of a service."""
    options: dict[str, Any] = dict(client.connection_pool.connection_kwargs)
    kind = client.connection_pool.connection_class
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    if issubclass(kind, redis.SSLConnection):
        tls["ssl"] = True
    make_sentinel: Any = _Sentinel  # both have no types
    make_pool: Any = SentinelConnectionPool
    sentinel = make_sentinel(
        parts.sentinels,
        sentinel_kwargs={
            **tls, **parts.sentinel_login, "retry": Retry(NoBackoff(), 0), "protocol": 2,
            "socket_connect_timeout": connect_s, "socket_timeout": connect_s,
        },
    )  # fmt: skip
    for each in sentinel.sentinels if "ssl" in tls else ():
        each.connection_pool.connection_class = _FileTls
    for name in ("host", "port", "max_connections"):
        options.pop(name, None)
    pool = make_pool(parts.service, sentinel, connection_class=kind, max_connections=_CONNECTIONS, **options)
    return _Client.from_pool(pool)


class _Sentinel(Sentinel):
    """Asks Sentinels for the master. One that does not answer, or is none, leaves the question to the others."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the address of the master. The error of redis-py shows objects, and does not say what to do."""
        asked: list[Any] = self.sentinels
        silent, known = list[str](), set[str]()
        for number, each in enumerate(asked):
            try:
                masters: dict[str, Any] = await each.sentinel_masters()
            except (RedisError, OSError) as error:
                silent.append(_why_silent(each, error))
                continue
            known |= masters.keys()
            state = masters.get(service_name)
            if state and self.check_master_state(state, service_name):  # pyright: ignore[reportUnknownMemberType]
                asked[0], asked[number] = each, asked[0]  # it is asked first from now on
                return state["ip"], state["port"]
        if len(silent) == len(asked):
            raise MasterNotFoundError(f"no Sentinel answers: {'; '.join(silent)}")
        if service_name in known:
            raise MasterNotFoundError(f"the master of {service_name!r} is down, and no replica has taken over yet")
        names = ", ".join(map(repr, sorted(known))) or "none"
        raise MasterNotFoundError(
            f"Sentinel knows no master of the name {service_name!r}: the name behind / in the URL must be that of "
            f"`sentinel monitor`; known: {names}"
        )


def _why_silent(sentinel: Any, error: Exception) -> str:
    options = sentinel.connection_pool.connection_kwargs
    why = str(error) or type(error).__name__
    if isinstance(error, ResponseError) and why.startswith("unknown command"):  # it has no class of its own
        why = "this address is of a Redis server, not of a Sentinel, whose port is usually 26379"
    return f"{options['host']}:{options['port']}: {why}"


def _leave(exception: Exception, number: int, command: object) -> None:
    """Change nothing."""


def check_options(url: str) -> None:
    """Raise ``InvalidSettings`` for options of a Redis URL that graphweft chooses, or that no server has."""
    parts = urlsplit(url)
    for name, value in parse_qsl(parts.query):
        if name in _TLS:
            if parts.scheme != "rediss":
                raise InvalidSettings(
                    f"the URL of a Redis server sets {name}, but only rediss:// uses TLS: use that, or leave it out"
                )
            continue
        if name in _FREE or value in _CHOSEN.get(name, ()):
            continue
        if name in _CHOSEN:
            raise InvalidSettings(f"the URL of a Redis server sets {name}, which graphweft chooses: leave it out")
        # Not named: it may be a part of a password.
        raise InvalidSettings(
            "the URL of a Redis server has an unknown option: expected wait_replicas, db, client_name, "
            "health_check_interval, socket_connect_timeout, socket_keepalive, those of TLS, such as ssl_ca_certs, or "
            "behind Sentinel sentinel_username and sentinel_password; write %3F for ? in a password"
        )


class _Closable(AbstractConnection):
    """A connection that raises no error when it is closed, even if the server does not agree in time."""

    async def disconnect(self, *arguments: Any, **options: Any) -> None:
        writer: Any = self._writer
        try:
            await super().disconnect(*arguments, **options)
        except redis.TimeoutError:
            # A caller that closes its client has done its work, and must not fail by this.
            if writer is not None:
                writer.transport.abort()


class _TrustedSocket(_Closable, redis.UnixDomainSocketConnection):
    """A connection to a unix socket whose server may be trusted: anybody may put a socket into a shared folder."""

    async def on_connect(self) -> None:
        """Look who is there before anything is sent, even the password."""
        writer: Any = self._writer
        peer = peer_uid(writer.get_extra_info("socket"))
        if peer is not None and peer not in (0, os.geteuid(), os.stat(os.path.dirname(self.path) or ".").st_uid):
            writer.close()
            raise redis.ConnectionError(
                f"the server on {self.path} is run by the user with the number {peer}, who is neither you nor the "
                "owner of its folder: nothing was sent to it"
            )
        await super().on_connect()


async def opened(opening: Coroutine[Any, Any, None], limit_s: float) -> None:
    """Wait for a connection to open. Raises ``TimeoutError`` after ``limit_s`` in which the event loop was free.

    A plain time limit would also count how long the loop was busy, for example while it opens the connections of all
    partitions: then it says that a server is unavailable that has answered.
    """
    task = asyncio.ensure_future(opening)
    step_s = limit_s / _CONNECT_STEPS
    try:
        for _ in range(_CONNECT_STEPS):
            await asyncio.wait([task], timeout=step_s)
            if task.done():
                return task.result()
        raise asyncio.TimeoutError  # in Python 3.10 this is not the built-in TimeoutError
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # also if both ended at once: asyncio warns of unread errors


class _Patient(_Closable, redis.Connection):
    """A connection over TCP; see ``opened``."""

    async def connect_check_health(self, *arguments: Any, **options: Any) -> None:
        if self.is_connected:
            return
        limit_s, self.socket_connect_timeout = self.socket_connect_timeout, None
        try:
            opening: Any = super().connect_check_health  # redis-py does not say what it returns
            await opened(opening(*arguments, **options), REDIS_TIMING.connect_s if limit_s is None else limit_s)
        except asyncio.TimeoutError as error:
            await self.disconnect(nowait=True)
            raise redis.TimeoutError("Timeout connecting to server") from error
        finally:
            self.socket_connect_timeout = limit_s


class _FileTls(redis.SSLConnection):
    """TLS by the files that are there when it opens; redis-py keeps for a connection what it read for it first."""

    _stamp: Any = None

    def _connection_arguments(self) -> Any:
        read: Any = self.ssl_context
        if (stamp := file_stamp(read.ca_certs, read.certfile, read.keyfile)) != self._stamp:
            read.context, self._stamp = None, stamp
        above: Any = super()  # redis-py has no types for the arguments
        return above._connection_arguments()


class _PatientTls(_Patient, _FileTls):
    """The same over TLS."""


class _Managed(_Patient, SentinelManagedConnection):
    """A connection to the server that Sentinel names as the master, whenever it opens.

    redis-py asks only in ``connect``. A connection that is kept out of the pool opens again in other ways, and would go
    back to a server that is a replica now.
    """

    async def connect(self) -> None:
        await self.connect_check_health(check_health=False)

    async def connect_check_health(self, *arguments: Any, **options: Any) -> None:
        if not self.is_connected:
            own: Any = self  # redis-py says nothing of its pool
            self.host, self.port = await own.connection_pool.get_master_address()
        await super().connect_check_health(*arguments, **options)


class _ManagedTls(_Managed, _FileTls, SentinelManagedSSLConnection):
    """The same over TLS."""


def peer_uid(connection: socket.socket) -> int | None:
    """Return the user who runs the other end of a unix socket; None where the system does not say."""
    option: int | None = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return int(uid)


def reason_of(error: BaseException) -> str:
    """Return an error of the bus as text; for a login, a full server, and a cluster with the next step."""
    if is_of_cluster(error):
        return NO_CLUSTER
    if is_of_login(error):
        return f"it refuses the login: {error}; check GRAPHWEFT_BUS_USER and GRAPHWEFT_BUS_PASSWORD"
    return _OUT_OF_MEMORY if isinstance(error, OutOfMemoryError) else str(error) or type(error).__name__


def is_of_login(error: BaseException) -> bool:
    """Tell whether the server answers and refuses the login; redis-py says so in the cause of a connection's error."""
    return isinstance(error, AuthenticationError) or isinstance(error.__cause__, AuthenticationError)


def is_of_cluster(error: BaseException) -> bool:
    """Tell whether only a node of a Redis Cluster answers so."""
    return isinstance(error, (AskError, ClusterCrossSlotError, ClusterDownError))


class CommandBatcher:
    """Sends all commands of one iteration of the event loop in one round trip, because socket writes are expensive.

    At most ``connections`` round trips run at once; further commands go together with the next. A running round trip
    continues if its callers are cancelled. The creator closes ``client``, which is one of ``connect``, or ``Lines``.

    While ``at_once()`` is true, a command that meets no round trip is sent before the call waits; those that follow in
    the same iteration go together. If its caller is cancelled, this round trip ends, and its connection is closed.
    """

    def __init__(self, client: Any, *, connections: int, at_once: Callable[[], bool] = lambda: False) -> None:
        self._client = client
        self._at_once = at_once
        self._alone = False
        """Whether a command that was sent at once waits for its answer."""
        self._exchange = getattr(client, "exchange", self._answers)
        self._free = asyncio.Semaphore(connections)
        self._batch: list[tuple[Sequence[Command], asyncio.Future[list[Any]]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def execute(self, *command: Any) -> Any:
        """Return the server's reply to ``command``. Raises ``RedisError`` or ``OSError``."""
        [answer] = await self.execute_all([command])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def execute_all(self, commands: Sequence[Command]) -> list[Any]:
        """Run the commands in order over one connection, and return their replies, which may be errors.

        Raises ``RedisError`` or ``OSError`` if the connection is lost.
        """
        if not self._alone and not self._tasks and self._at_once():
            self._alone = True
            try:
                async with self._free:  # it is free: no round trip is under way
                    own: list[Any] = await self._exchange(commands)
                    return own
            finally:
                self._alone = False
        answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._batch.append((commands, answers))
        if len(self._batch) == 1:
            task = asyncio.create_task(self._send())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await answers

    async def aclose(self) -> None:
        """Cancel all commands; their callers get a ``RedisError``."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        _end(self._batch)  # of a task that has not started
        self._batch = []

    async def _send(self) -> None:
        async with self._free:
            # Commands that are cancelled by now are not sent.
            batch, self._batch = [each for each in self._batch if not each[1].done()], []
            try:
                answers = iter(await self._exchange([command for commands, _ in batch for command in commands]))
            except asyncio.CancelledError:  # closed
                _end(batch)
                raise
            except Exception as error:  # noqa: BLE001 - callers must get every error
                for _, waiter in batch:
                    if not waiter.done():
                        waiter.set_exception(error)
                return
            for commands, waiter in batch:
                own = list(itertools.islice(answers, len(commands)))
                if not waiter.done():  # the caller may have given up
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
