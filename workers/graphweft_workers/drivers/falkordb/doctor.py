"""The doctor's checks of FalkorDB."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from graphweft_contracts import GraphUnavailable
from graphweft_workers.drivers.redis_checks import append_only, examine_server, memory, write_fault_at
from graphweft_workers.ports.check import Check


async def examine(url: str, advice: str) -> list[Check]:
    """See ``GraphDriver.examine``."""
    return await examine_server("graph", url, advice, _graph)


async def write_fault(url: str) -> str:
    """See ``GraphDriver.write_fault``."""
    try:
        return await write_fault_at(url)
    except (RedisError, OSError) as error:
        raise GraphUnavailable(f"the graph server is unavailable: {error}") from error


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
        advice = "start FalkorDB with TIMEOUT_MAX 60000 TIMEOUT_DEFAULT 5000: without them, writes have no time limit"
        checks.append(Check(name="graph time limit", state="warn", found="TIMEOUT_MAX 0", advice=advice))
    checks.append(await memory(client, "graph", "raise maxmemory: a full server refuses writes, and workers wait"))
    checks.append(await append_only(client, "graph"))
    return checks
