"""(s) CPU of the worker and of the server for an event, for events of 1,000 apps in turn and for the same of one app.

Each app has a graph of its own, and so a write of its own. One worker runs through all rounds; the graphs exist before
the backlog does, so what the first event of an app costs is not measured here. The server is bus and graph in one.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count as numbers
from itertools import cycle
from typing import Any, Final

import redis.asyncio as redis

from benchmarks.harness import Bench, Contender, Died, Result, ratio
from benchmarks.processes import ENGINE, cpu_s, process
from benchmarks.services import Services, publish
from benchmarks.workload import APP, CALLS, CHATS
from graphweft.transport import Outgoing
from graphweft_contracts import channels, wire
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.roles.settings import Settings

ROW: Final = "s"
APPS: Final = 1_000
_EVENTS: Final = 24_000
_QUICK_EVENTS: Final = 8_000
_MANY: Final = f"{APPS:,} apps"
_ONE: Final = "one app"
_LONGEST_S: Final = 120.0
_POLL_S: Final = 0.05
_runs = numbers(1)


async def run(bench: Bench, services: Services) -> list[Result]:
    """Measure both in turn, with one worker."""
    await services.clear("redis", "falkordb")
    settings = await services.settings("redis", "falkordb", CALLS.rules)
    size = _QUICK_EVENTS if bench.quick else _EVENTS
    worker: dict[str, list[float]] = {_MANY: [], _ONE: []}
    server: dict[str, list[float]] = {_MANY: [], _ONE: []}
    many = [f"app-{number}" for number in range(APPS)]
    async with process(ENGINE, settings, kill=True) as engine:
        pids = engine.pid, services.redis_pid or 0
        await _apply(settings, engine, outgoing(many, APPS))

        async def measured(name: str, round_number: int) -> float:
            apps = many
            if name == _ONE:  # a new one: what an event costs grows with the graph
                apps = [f"one-{round_number}"]
                await _apply(settings, engine, outgoing(apps, CHATS))
            engine.send_signal(signal.SIGSTOP)
            before = await _applied(settings, apps)
            await publish(settings, outgoing(apps, size))
            used = [cpu_s(pid) for pid in pids]
            engine.send_signal(signal.SIGCONT)
            await _wait(settings, engine)
            of_worker, of_server = [(cpu_s(pid) - cpu) / size * 1e6 for pid, cpu in zip(pids, used, strict=True)]
            if (applied := await _applied(settings, apps) - before) != size:
                raise Died(f"applied {applied} events of {size}")
            worker[name].append(of_worker)
            server[name].append(of_server)
            return of_worker + of_server

        contenders: Mapping[str, Contender] = {name: partial(measured, name) for name in (_MANY, _ONE)}
        values = await bench.interleave("CPU for an event", contenders)
    note = "; ".join(
        f"{name}: {statistics.median(worker[name]):.0f} µs worker, {statistics.median(server[name]):.0f} µs server"
        for name in values
    )
    title = f"CPU for an event, events of {_MANY} in turn / of one app, redis x falkordb"
    return [ratio(ROW, title, values, of=_MANY, to=_ONE, unit="µs", note=note)]


def outgoing(apps: Sequence[str], size: int) -> Iterator[Outgoing]:
    """Yield events of apps in turn, with ids that no earlier ones had."""
    for app_id, each in zip(cycle(apps), CALLS.outgoing(size, f"apps{next(_runs)}"), strict=False):
        data = each.fields[wire.DATA].replace(b'"appid":"%s"' % APP.encode(), b'"appid":"%s"' % app_id.encode(), 1)
        key = f"{app_id}/{each.key.partition('/')[2]}"
        yield Outgoing(key=key, fields={**each.fields, wire.DATA: data})


async def _apply(settings: Settings, engine: asyncio.subprocess.Process, events: Iterator[Outgoing]) -> None:
    await publish(settings, events)
    await _wait(settings, engine)


async def _wait(settings: Settings, engine: asyncio.subprocess.Process) -> None:
    """Wait until the worker has committed all events."""
    log = redis_bus(settings.bus)
    try:
        async with asyncio.timeout(_LONGEST_S):
            while any(part.lag for part in await log.partitions.status()):
                if engine.returncode is not None:
                    raise Died(f"ended with {engine.returncode}")
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise Died(f"did not apply all events in {_LONGEST_S:.0f} s") from None
    finally:
        await log.aclose()


async def _applied(settings: Settings, apps: Sequence[str]) -> int:
    """Return how many events have taken effect in the graphs of apps."""
    client: Any = redis.Redis.from_url(settings.graph, protocol=2)
    try:
        pipeline = client.pipeline(transaction=False)
        for app_id in apps:
            pipeline.execute_command("GRAPH.RO_QUERY", channels.graph_name(app_id), CALLS.applied)
        return sum(int(rows[0][0] or 0) for _, rows, _ in await pipeline.execute())
    finally:
        await client.aclose()
