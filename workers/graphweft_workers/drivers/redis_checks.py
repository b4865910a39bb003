"""The doctor's checks that every Redis server needs, whatever it holds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from graphweft.transports.redis.connection import check_options, connect, is_of_login
from graphweft.transports.redis.url import NO_CLUSTER, split_redis_url
from graphweft_contracts import InvalidSettings
from graphweft_workers.ports.check import Check

ANSWER_S: Final = 5.0
WARN_FROM: Final = 0.8
"""Share of maxmemory from which ``memory`` warns."""
FAIL_FROM: Final = 0.95
_FREE: Final = "free space on the disk of the server, and look into its log. Nothing is lost, and it goes on by itself"


def check_redis_url(url: str) -> None:
    """Raise ``ValueError`` for an invalid Redis URL; the message does not quote it."""
    from redis.asyncio import ConnectionPool

    pool: Any = ConnectionPool
    try:
        server = split_redis_url(url).server
        check_options(server)
        pool.from_url(server).make_connection()  # connects only when it is used
    except InvalidSettings as error:
        raise ValueError(str(error)) from None
    except (ValueError, TypeError, RedisError):  # their texts quote the URL
        msg = (
            "invalid Redis URL: expected redis://[[user:]password@]host[:port][/db], rediss://… or unix:///path; write "
            "%2F for / in a password, and the like"
        )
        raise ValueError(msg) from None


async def examine_server(
    name: str, url: str, advice: str, more: Callable[[Any], Awaitable[list[Check]]]
) -> list[Check]:
    """Return whether the server answers, and then the checks of ``more``, which is given a client."""
    client = connect(url, io_timeout_s=ANSWER_S, decode=True)
    try:
        try:
            told = await client.info("server")
            version = f" {told['redis_version']}" if "redis_version" in told else ""
            if told.get("redis_mode") == "cluster":
                return [Check(name=name, state="fail", found=f"a node of a Redis{version} Cluster", advice=NO_CLUSTER)]
        except NoPermissionError:
            version = ""  # a user of few rights
            await client.ping()
        found = Check(name=name, state="ok", found=f"Redis{version} answers")
        try:
            return [found, *await more(client)]
        except ResponseError as error:
            return [found, not_shown(name, error)]
    except (RedisError, OSError) as error:
        if is_of_login(error):
            setting = f"GRAPHWEFT_{name.upper()}"
            login = (
                f"set {setting}_PASSWORD or {setting}_PASSWORD_FILE, and {setting}_USER unless it is the default user, "
                f"or the login in {setting}_URL"
            )
            return [Check(name=name, state="fail", found=f"it answers, and refuses the login: {error}", advice=login)]
        tls = "; with rediss://, that it speaks TLS at this port" if url.startswith("rediss") else ""
        return [Check(name=name, state="fail", found=f"no answer: {error}", advice=advice + tls)]
    finally:
        await client.aclose()


async def write_fault(client: Any) -> str:
    """Return why the server refuses writes because of its disk; empty if it takes them, or this user may not ask."""
    try:
        found = await client.info("persistence")
        if found.get("aof_last_write_status") == "err":
            return f"it cannot write its append-only file, and refuses all writes until it can: {_FREE}"
        if found.get("rdb_last_bgsave_status") == "err":
            settings = {**await client.config_get("save"), **await client.config_get("stop-writes-on-bgsave-error")}
            if settings.get("save") and settings.get("stop-writes-on-bgsave-error") == "yes":
                return f"it cannot write its snapshot, and refuses all writes until it can: {_FREE}"
    except ResponseError:
        pass  # a managed server, or a user of few rights
    return ""


async def write_fault_at(url: str) -> str:
    """Return ``write_fault`` of the server at a URL. Raises ``RedisError`` and ``OSError``."""
    client = connect(url, io_timeout_s=ANSWER_S, decode=True)
    try:
        return await write_fault(client)
    finally:
        await client.aclose()


def not_shown(name: str, error: ResponseError) -> Check:
    """Return the check of a managed server, which hides CONFIG and MODULE."""
    advice = "nothing, if its operator sees to memory policy, append-only file and modules"
    return Check(name=f"{name} settings", state="warn", found=f"not shown: {error}", advice=advice)


async def used_memory(client: Any) -> tuple[int, int] | None:
    """Return the bytes that the server uses, and its limit, which is 0 for none; None if it does not say."""
    info = await client.info("memory")
    if not {"used_memory", "maxmemory"} <= info.keys():
        return None
    return int(info["used_memory"]), int(info["maxmemory"])


async def memory(client: Any, name: str, advice: str) -> Check:
    """Return how full the server is; with all of its memory in use, it refuses writes."""
    found_memory = await used_memory(client)
    if found_memory is None:
        return Check(name=f"{name} memory", state="warn", found="the server does not say how much it uses")
    used, most = found_memory
    if not most:
        return Check(name=f"{name} memory", state="ok", found=f"{_mb(used)} used, no maxmemory")
    found = f"{_mb(used)} of maxmemory {_mb(most)} used, {used * 100 // most} %"
    if used < most * WARN_FROM:
        return Check(name=f"{name} memory", state="ok", found=found)
    return Check(
        name=f"{name} memory", state="fail" if used >= most * FAIL_FROM else "warn", found=found, advice=advice
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


async def append_only(client: Any, name: str) -> Check:
    """Return whether the server writes changes to disk."""
    if fault := await write_fault(client):
        found, _, advice = fault.partition(": ")
        return Check(name=f"{name} disk", state="fail", found=found, advice=advice)
    settings = await client.config_get("append*")
    if settings.get("appendonly") == "yes":
        return Check(name=f"{name} disk", state="ok", found=f"append-only file, fsync {settings.get('appendfsync')}")
    advice = "start the server with --appendonly yes: without it a crash loses what the server holds"
    return Check(name=f"{name} disk", state="warn", found="no append-only file", advice=advice)
