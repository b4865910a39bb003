"""What ``graphweft doctor`` looks at: each check says what it found and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import redis.asyncio as redis
from redis.exceptions import RedisError, ResponseError

from graphweft_contracts import GraphweftError, InvalidSettings, channels
from graphweft_workers.services import load_rules, make_bus
from graphweft_workers.settings import Settings

__all__ = ("Check", "examine")

_State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding; ``advice`` is empty when nothing has to be done."""

    name: str
    state: _State
    found: str
    advice: str = ""


async def examine(settings: Settings) -> list[Check]:
    """Return all checks in the order in which a fault explains the ones after it."""
    checks = [_python(), _rules(settings)]
    bus, bus_checks = await _connect("bus", settings.bus, settings.bus_url is None, settings, _bus_checks)
    graph, graph_checks = await _connect("graph", settings.graph, settings.graph_url is None, settings, _graph_checks)
    checks += bus_checks + graph_checks
    if bus and graph:
        checks += await _service_checks(settings)
    return checks


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check(name="python", state="ok", found=version)


def _rules(settings: Settings) -> Check:
    try:
        rules = load_rules(settings)
    except InvalidSettings as error:
        advice = "make the folder, or name yours by --rules or GRAPHWEFT_RULES"
        return Check(name="rules", state="fail", found=str(error), advice=advice)
    except GraphweftError as error:
        return Check(name="rules", state="fail", found=str(error), advice=f"graphweft lint {settings.rules}")
    names = ", ".join(sorted(rules.workflows)) or "none"
    if not rules.workflows:
        advice = "put rules into <Workflow>/graph_injection.yaml"
        return Check(name="rules", state="warn", found=f"{settings.rules} holds no workflow", advice=advice)
    return Check(name="rules", state="ok", found=f"{settings.rules}: {names}")


async def _connect(
    name: str, url: str, embedded: bool, settings: Settings, more: Callable[[Any], Awaitable[list[Check]]]
) -> tuple[bool, list[Check]]:
    variable = f"GRAPHWEFT_{name.upper()}_URL"
    client: Any = redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
        url, socket_connect_timeout=2, socket_timeout=5, protocol=2, decode_responses=True
    )
    try:
        info = await client.info("server")
        found = Check(name=name, state="ok", found=f"Redis {info['redis_version']} answers")
        try:
            return True, [found, *await more(client)]
        except ResponseError as error:  # managed servers keep CONFIG and MODULE to themselves
            advice = "nothing, if its operator sees to memory policy, append-only file and modules"
            refused = Check(name=f"{name} settings", state="warn", found=f"not shown: {error}", advice=advice)
            return True, [found, refused]
    except (RedisError, OSError) as error:
        advice = (
            f"start `graphweft up --data {settings.data}`, or set {variable}"
            if embedded
            else f"check {variable} and that the server runs and lets this machine in"
        )
        return False, [Check(name=name, state="fail", found=f"no answer: {error}", advice=advice)]
    finally:
        await client.aclose()


async def _bus_checks(client: Any) -> list[Check]:
    policy = (await client.config_get("maxmemory-policy")).get("maxmemory-policy", "")
    checks: list[Check] = []
    if policy != "noeviction":
        advice = "set maxmemory-policy noeviction: with any other the server may drop events that nobody has read"
        checks.append(Check(name="bus memory", state="fail", found=f"maxmemory-policy {policy}", advice=advice))
    checks.append(await _append_only(client, "bus"))
    return checks


async def _graph_checks(client: Any) -> list[Check]:
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


async def _service_checks(settings: Settings) -> list[Check]:
    bus = make_bus(settings)
    try:
        partitions = await bus.status()
        letters = await bus.dead_letter_count()
    finally:
        await bus.aclose()
    idle = [str(partition.id) for partition in partitions if partition.owner is None]
    lag = sum(partition.lag for partition in partitions)
    checks = [
        Check(name="workers", state="ok", found=f"all {len(partitions)} partitions are read, lag {lag}")
        if not idle
        else Check(
            name="workers",
            state="warn",
            found=f"nobody reads partition {', '.join(idle)}, lag {lag}",
            advice="start `graphweft run mutation`",
        )
    ]
    if letters:
        advice = "graphweft dlq list"
        checks.append(Check(name="dead letters", state="warn", found=f"{letters} wait", advice=advice))
    client: Any = redis.Redis.from_url(settings.bus, socket_timeout=5, protocol=2, decode_responses=True)  # pyright: ignore[reportUnknownMemberType]
    consumers: list[Any] = []
    try:
        groups = await client.xinfo_groups(channels.CONTEXT_REQUESTS)
        if groups:
            consumers = await client.xinfo_consumers(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP)
    except (RedisError, OSError):
        consumers = []  # no request was ever made
    finally:
        await client.aclose()
    # A responder asks for requests once a second.
    alive = [consumer for consumer in consumers if int(consumer["idle"]) < 5_000]
    checks.append(
        Check(name="responders", state="ok", found=f"{len(alive)} answer context requests")
        if alive
        else Check(name="responders", state="warn", found="none answers", advice="start `graphweft run injection`")
    )
    return checks
