"""The doctor's checks of a bus on Redis Streams."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from graphweft.transports.redis.connection import connect
from graphweft.transports.redis.refusals import bus_errors
from graphweft.transports.redis.url import split_redis_url
from graphweft_contracts import Layout, channels
from graphweft_contracts.plurals import counted
from graphweft_workers.drivers.redis.rights import may_append_to_shared, missing, own_partition
from graphweft_workers.drivers.redis.short_connection import short_connection
from graphweft_workers.drivers.redis_checks import (
    ANSWER_S,
    append_only,
    examine_server,
    memory,
    not_shown,
    used_memory,
    write_fault_at,
)
from graphweft_workers.ports.check import Check, layout_checks

_MEMORY_HELP: Final = (
    "archive and trim the log: `graphweft archive now`, then `graphweft trim`, or run the archive role with "
    "GRAPHWEFT_ARCHIVE_TRIM=true; or raise maxmemory. A full bus refuses events"
)
_ALIVE_MS: Final = 5_000
"""A responder asks for requests once a second."""


async def examine(url: str, advice: str, *, new: Layout, asked: Collection[str] = ()) -> list[Check]:
    """See ``BusDriver.examine``."""
    more = functools.partial(_bus, new=new, asked=asked, waits=split_redis_url(url).wait_replicas)
    return await examine_server("bus", url, advice, more)


async def examine_rights(url: str, role: str, *, app_id: str | None, user: str) -> list[Check]:
    """See ``BusDriver.examine_rights``."""
    try:
        async with contextlib.aclosing(connect(url, io_timeout_s=ANSWER_S, decode=True)) as client:
            lacking = await missing(client, role, app_id)
            own = await own_partition(client, app_id)
            shared = own is not None and await may_append_to_shared(client)
    except (RedisError, OSError) as error:
        return [Check(name="bus rights", state="fail", found=f"not known: {error}", advice="allow MULTI and DISCARD")]
    line = f"graphweft acl redis --role {role}"
    line += "" if app_id is None else f" --app {app_id}"
    line += "" if own is None else f" --partition {own}"
    if not lacking and shared:
        found = f"it may append to the streams of other apps too, and its app has partition {own} of its own"
        return [Check(name="bus rights", state="warn", found=found, advice=line)]
    if not lacking:
        return [Check(name="bus rights", state="ok", found=f"those of a {role}")]
    rules = " ".join(dict.fromkeys(rule for rule, _ in lacking))
    said = "; ".join(dict.fromkeys(text for _, text in lacking))
    if own is not None:
        found = f"its app has partition {own} of its own, where a {role} needs {rules}: {said}"
        return [Check(name="bus rights", state="fail", found=found, advice=line)]
    advice = f"ACL SETUSER {user} {rules} -- and the keys that `{line}` names"
    return [Check(name="bus rights", state="fail", found=f"a {role} needs {rules}: {said}", advice=advice)]


async def responders(url: str) -> list[str]:
    """See ``BusDriver.responders``."""
    async with short_connection(url, io_timeout_s=ANSWER_S, decode=True) as client:
        try:
            consumers: list[Any] = await client.xinfo_consumers(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP)
        except ResponseError as error:
            if "no such key" in str(error) or str(error).startswith("NOGROUP"):
                return []  # no responder was ever there
            raise
    return [consumer["name"] for consumer in consumers if int(consumer["idle"]) < _ALIVE_MS]


async def memory_ratio(url: str) -> float | None:
    """See ``BusDriver.memory_ratio``."""
    async with short_connection(url, io_timeout_s=ANSWER_S, decode=True) as client:
        used, most = await used_memory(client) or (0, 0)
    return used / most if most else None


async def write_fault(url: str) -> str:
    """See ``BusDriver.write_fault``."""
    with bus_errors():
        return await write_fault_at(url)


async def _bus(client: Any, *, new: Layout, asked: Collection[str], waits: int) -> list[Check]:
    written = await client.get(channels.PARTITION_COUNT)
    orders = await client.hgetall(channels.ORDERS)
    checks = layout_checks(Layout.of_stored(int(written), orders), new, asked) if written else []
    try:
        checks += [await _copies(client, waits)] if waits else []
        checks += await _settings(client)
    except ResponseError as error:
        checks.append(not_shown("bus", error))
    return checks


async def _copies(client: Any, waits: int) -> Check:
    """Return whether as many replicas follow as an event waits for."""
    found = await client.info("replication")
    states = [found[f"slave{number}"].get("state") for number in range(int(found.get("connected_slaves", 0)))]
    there = states.count("online")
    said = f"{counted(there, 'replica')} follow{'s' * (there == 1)} the server"
    if there >= waits:
        return Check(name="bus replicas", state="ok", found=f"{said}, and each event waits for {waits}")
    advice = (
        f"start replicas of this server (`replicaof`), or lower wait_replicas={waits} in the URLs of all clients and "
        "workers"
    )
    found_text = f"{said}, but wait_replicas={waits} is in the URL: no event is accepted"
    return Check(name="bus replicas", state="fail", found=found_text, advice=advice)


async def _settings(client: Any) -> list[Check]:
    policy = (await client.config_get("maxmemory-policy")).get("maxmemory-policy", "")
    checks: list[Check] = []
    if policy != "noeviction":
        advice = "set maxmemory-policy noeviction: with any other policy the server may drop unread events"
        checks.append(Check(name="bus memory", state="fail", found=f"maxmemory-policy {policy}", advice=advice))
    else:
        checks.append(await memory(client, "bus", _MEMORY_HELP))
    checks.append(await append_only(client, "bus"))
    return checks
