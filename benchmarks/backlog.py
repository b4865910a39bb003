"""How long consumers take for a backlog, from their first read to the last effect, and what it costs them.

A worker reads and decodes a window of each partition before its first effect. So a clock that starts with the first
effect leaves the decoding of these windows out, which on a short backlog is nearly all of it. Here the consumers run
and have nothing to do, are stopped while the backlog is published, and go on when the clock starts.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.harness import Died
from benchmarks.processes import count, cpu_s, waited_s
from benchmarks.services import PARTITIONS, Graph, GraphProbe
from graphweft_contracts import BusUnavailable
from graphweft_workers.engine.log.reading_window import MOST_ENTRIES
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus

WINDOWS: Final = PARTITIONS * MOST_ENTRIES
"""The events that the windows of all partitions hold at most."""
BACKLOG: Final = 150_000
"""More than three times the windows, so most of it is read while other events are written."""
WARM_UP: Final[Mapping[Graph, int]] = {"falkordb": 2_000, "neo4j": 20_000}
"""Events before the clock starts, for whoever is measured. Neo4j plans and compiles the queries of each."""
LEASE_S: Final = 120.0
"""A worker that is stopped while the backlog is published keeps its partitions."""
_LONGEST_S: Final = 300.0
_POLL_S: Final = 0.1
_SETTLE_S: Final = 120.0

type _Process = asyncio.subprocess.Process


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a backlog took."""

    per_s: float
    """Events a second."""
    cpu_us: float
    """CPU time of the consumers for each event, without their start."""
    waited_us: float
    """How long their threads were ready and waited for a processor, for each event: it says what other load did."""


async def settled(settings: Settings, running: Sequence[_Process]) -> str:
    """Wait until the workers share all partitions and nothing is left to do; return how many each of them has."""
    log = make_bus(settings)
    owners: dict[str, int] = {}
    try:
        async with asyncio.timeout(_SETTLE_S):
            while True:
                try:
                    parts = await log.partitions.status()
                except BusUnavailable:  # the first worker has not made the topic yet
                    parts = []
                names = [part.owner for part in parts]
                owners = {name: names.count(name) for name in names if name is not None}
                held = None not in names and parts and not any(part.lag for part in parts)
                if held and len(owners) == len(running):
                    return "+".join(map(str, owners.values()))
                _check_running(running)
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise Died(f"the workers did not take the partitions and what was left: {owners}") from None
    finally:
        await log.aclose()


async def applied_up_to(running: Sequence[_Process], probe: GraphProbe, applied: str, total: int) -> None:
    """Wait until so many events have taken effect."""
    begun = time.monotonic()
    while (seen := await count(probe, applied)) < total:
        _check_running(running)
        if time.monotonic() - begun > _LONGEST_S:
            raise Died(f"applied {seen} events of {total} in {_LONGEST_S:.0f} s")
        await asyncio.sleep(_POLL_S)
    if seen > total:
        raise Died(f"applied {seen} events of {total}")


async def cost_of_backlog(
    running: Sequence[_Process], probe: GraphProbe, applied: str, publish: Callable[[], Awaitable[None]], size: int
) -> Cost:
    """Return what ``size`` events, which ``publish`` puts on the bus, cost consumers that have nothing to do before."""
    pids = [each.pid for each in running]
    for each in running:
        each.send_signal(signal.SIGSTOP)
    before = await count(probe, applied)
    await publish()
    used_s, stood_s = sum(map(cpu_s, pids)), sum(map(waited_s, pids))
    begun = time.monotonic()
    for each in running:
        each.send_signal(signal.SIGCONT)
    await applied_up_to(running, probe, applied, before + size)
    seconds = time.monotonic() - begun
    used_s, stood_s = sum(map(cpu_s, pids)) - used_s, sum(map(waited_s, pids)) - stood_s
    return Cost(per_s=size / seconds, cpu_us=used_s / size * 1e6, waited_us=stood_s / size * 1e6)


def note(costs: Mapping[str, Sequence[Cost]]) -> str:
    """Return the CPU times and waiting times of contenders for a line of the table."""
    return "; ".join(
        f"{name}: {statistics.median(each.cpu_us for each in found):.0f} µs of CPU for each event, "
        f"{statistics.median(each.waited_us for each in found):.0f} µs waiting for a processor"
        for name, found in costs.items()
        if found
    )


def _check_running(running: Sequence[_Process]) -> None:
    for each in running:
        if each.returncode is not None:
            raise Died(f"ended with {each.returncode}")
