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

from benchmarks.backlog import LEASE_S
from benchmarks.harness import Bench, Contender, Died, Result, ratio
from benchmarks.processes import ENGINE, cpu_s, process
from benchmarks.services import Services, publish
from benchmarks.workload import APP, CALLS, CHATS
from graphweft.transport import Outgoing
from graphweft_contracts import channels, wire
from graphweft_contracts.plurals import counted
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.settings.settings import Settings

ROW: Final = "s"
APPS: Final = 1_000
EVENTS: Final[Mapping[int, int]] = {1: 4, 4: 1, 24: 1}
"""Events of each app in a backlog, and how many backlogs are one measurement: a small one takes little time."""
_MANY: Final = f"{APPS:,} apps"
_ONE: Final = "one app"
_LONGEST_S: Final = 120.0
_POLL_S: Final = 0.05
_runs = numbers(1)


async def run(bench: Bench, services: Services) -> list[Result]:
    """Measure both in turn, with one worker."""
    await services.clear("redis", "falkordb")
    settings = await services.settings("redis", "falkordb", CALLS.rules)
    settings = settings.model_copy(update={"lease_s": LEASE_S})
    many = [f"app-{number}" for number in range(APPS)]
    results: list[Result] = []
    async with process(ENGINE, settings, kill=True) as engine:
        await _apply(settings, engine, outgoing(many, APPS))
        for each, times in EVENTS.items():
            case = _Case(settings, engine, services.redis_pid or 0, many, each, times)
            contenders: Mapping[str, Contender] = {name: partial(case.measured, name) for name in (_MANY, _ONE)}
            values = await bench.interleave(f"CPU for an event, {each} an app", contenders)
            note = "; ".join(
                f"{name}: {statistics.median(case.worker[name]):.0f} µs worker, "
                f"{statistics.median(case.server[name]):.0f} µs server"
                for name in values
            )
            title = f"CPU for an event, {counted(each, 'event')} of each of {_MANY} / of one app, redis x falkordb"
            results.append(ratio(ROW, title, values, of=_MANY, to=_ONE, unit="µs", note=note))
    return results


class _Case:
    """One number of events of each app in a backlog."""

    def __init__(
        self, settings: Settings, engine: asyncio.subprocess.Process, server: int, many: Sequence[str], each: int,
        times: int,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._engine = engine
        self._pids = engine.pid, server
        self._many = many
        self._each = each
        self._times = times
        self.worker: dict[str, list[float]] = {_MANY: [], _ONE: []}
        self.server: dict[str, list[float]] = {_MANY: [], _ONE: []}

    async def measured(self, name: str, round_number: int) -> float:
        """Return the microseconds of CPU of worker and server together for an event."""
        apps = self._many
        if name == _ONE:  # a new one: what an event costs grows with the graph
            apps = [f"one-{self._each}-{round_number}"]
            await _apply(self._settings, self._engine, outgoing(apps, CHATS))
        used_s = [0.0, 0.0]
        for _ in range(self._times):
            found = await self._backlog(apps)
            used_s = [sum(both) for both in zip(used_s, found, strict=True)]
        of_worker, of_server = [cpu / (APPS * self._each * self._times) * 1e6 for cpu in used_s]
        self.worker[name].append(of_worker)
        self.server[name].append(of_server)
        return of_worker + of_server

    async def _backlog(self, apps: Sequence[str]) -> list[float]:
        """Return the seconds of CPU that worker and server take for a backlog of these apps, from the first read on."""
        size = APPS * self._each
        self._engine.send_signal(signal.SIGSTOP)
        before = await _applied(self._settings, apps)
        await publish(self._settings, outgoing(apps, size))
        used_s = [cpu_s(pid) for pid in self._pids]
        self._engine.send_signal(signal.SIGCONT)
        await _wait(self._settings, self._engine)
        found = [cpu_s(pid) - cpu for pid, cpu in zip(self._pids, used_s, strict=True)]
        if (applied := await _applied(self._settings, apps) - before) != size:
            raise Died(f"applied {applied} events of {size}")
        return found


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
