"""What the doctor looks at on Redis: the bus on Redis Streams, and FalkorDB."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from graphweft.redis_connection import connect
from graphweft_contracts import channels
from graphweft_workers.doctor.check import Check

_ANSWER_S: Final = 5.0
_ALIVE_MS: Final = 5_000
"""A responder asks for requests once a second."""


async def examine_bus(url: str, advice: str, *, asked: int | None = None) -> list[Check]:
    """Return the checks of a bus.

    ``advice`` is for a server that does not answer; ``asked`` is the number of partitions that the settings name, None
    where they name none.
    """
    return await _connected("bus", url, advice, functools.partial(_bus, asked=asked))


async def examine_graph(url: str, advice: str) -> list[Check]:
    """Return the checks of a graph server; ``advice`` is for one that does not answer."""
    return await _connected("graph", url, advice, _graph)


async def examine_responders(url: str) -> Check:
    """Return whether anybody answers context requests."""
    try:
        alive = await responders(url)
    except (RedisError, OSError) as error:
        advice = "try again; if it stays so, look into the log of the server"
        return Check(name="responders", state="fail", found=f"not known: {error}", advice=advice)
    if alive:
        return Check(name="responders", state="ok", found=f"{len(alive)} answer context requests")
    return Check(name="responders", state="fail", found="none answers", advice="start `graphweft run injection`")


async def responders(url: str) -> list[str]:
    """Return the names of the responders that ask for requests."""
    client = connect(url, io_timeout_s=_ANSWER_S, decode=True)
    try:
        consumers: list[Any] = await client.xinfo_consumers(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP)
    except ResponseError as error:
        if "no such key" in str(error) or str(error).startswith("NOGROUP"):
            return []  # no responder was ever there
        raise
    finally:
        await client.aclose()
    return [consumer["name"] for consumer in consumers if int(consumer["idle"]) < _ALIVE_MS]


def _not_shown(name: str, error: ResponseError) -> Check:
    """Managed servers keep CONFIG and MODULE to themselves."""
    advice = "nothing, if its operator sees to memory policy, append-only file and modules"
    return Check(name=f"{name} settings", state="warn", found=f"not shown: {error}", advice=advice)


async def _connected(name: str, url: str, advice: str, more: Callable[[Any], Awaitable[list[Check]]]) -> list[Check]:
    client = connect(url, io_timeout_s=_ANSWER_S, decode=True)
    try:
        info = await client.info("server")
        found = Check(name=name, state="ok", found=f"Redis {info['redis_version']} answers")
        try:
            return [found, *await more(client)]
        except ResponseError as error:
            return [found, _not_shown(name, error)]
    except (RedisError, OSError) as error:
        return [Check(name=name, state="fail", found=f"no answer: {error}", advice=advice)]
    finally:
        await client.aclose()


async def _bus(client: Any, *, asked: int | None) -> list[Check]:
    written = await client.get(channels.PARTITION_COUNT)
    checks: list[Check] = []
    if written and asked not in {None, int(written)}:
        found = f"GRAPHWEFT_PARTITIONS {asked} has no effect: the bus spreads chats over {written} since its first use"
        advice = f"set GRAPHWEFT_PARTITIONS to {written}, or leave it out"
        checks.append(Check(name="bus partitions", state="warn", found=found, advice=advice))
    try:
        checks += await _bus_settings(client)
    except ResponseError as error:
        checks.append(_not_shown("bus", error))
    return checks


async def _bus_settings(client: Any) -> list[Check]:
    policy = (await client.config_get("maxmemory-policy")).get("maxmemory-policy", "")
    checks: list[Check] = []
    if policy != "noeviction":
        advice = "set maxmemory-policy noeviction: with any other the server may drop events that nobody has read"
        checks.append(Check(name="bus memory", state="fail", found=f"maxmemory-policy {policy}", advice=advice))
    checks.append(await _append_only(client, "bus"))
    return checks


async def _graph(client: Any) -> list[Check]:
    modules = {module["name"]: module["ver"] for module in await client.module_list()}
    if "graph" not in modules:
        advice = "point GRAPHWEFT_GRAPH_URL at a FalkorDB server"
        return [Check(name="graph module", state="fail", found="a Redis without FalkorDB", advice=advice)]
    version = modules["graph"]
    dotted = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    checks = [Check(name="graph module", state="ok", found=f"FalkorDB {dotted}")]
    limit = int((await client.execute_command("GRAPH.CONFIG", "GET", "TIMEOUT_MAX"))[1])
    if limit == 0:
        advice = "start FalkorDB with TIMEOUT_MAX 60000 TIMEOUT_DEFAULT 5000: without, writes know no time limit"
        checks.append(Check(name="graph time limit", state="warn", found="TIMEOUT_MAX 0", advice=advice))
    checks.append(await _append_only(client, "graph"))
    return checks


async def _append_only(client: Any, name: str) -> Check:
    settings = await client.config_get("append*")
    if settings.get("appendonly") == "yes":
        return Check(name=f"{name} disk", state="ok", found=f"append-only file, fsync {settings.get('appendfsync')}")
    advice = "start the server with --appendonly yes: a crash loses what it holds otherwise"
    return Check(name=f"{name} disk", state="warn", found="no append-only file", advice=advice)
