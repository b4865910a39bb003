"""(a), (b) and (f) Events a second on a backlog, all contenders of a bus and a graph in turn.

(a) compares the engine with a plain FastStream subscriber, (b) with hand-written UNWIND queries that need no bus
(``ceiling``), (f) two worker processes with one.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers
from typing import Final

from tests.services.rules import load_rules

from benchmarks.harness import Bench, Contender, Died, Result, ratio
from benchmarks.processes import ENGINE, NAIVE, UNWIND, count, events_per_second, process
from benchmarks.services import Bus, Graph, GraphProbe, Services, publish, publish_plain
from benchmarks.workload import CALLS, ROOT, Workload
from graphweft_workers.roles.connections import make_bus
from graphweft_workers.roles.settings import Settings

_ENGINE_PER_S: Final = 20_000
_ENGINE_LEAST: Final = 24_000
"""Six batches of each partition. Two of each are in hand when the first change shows; a rate needs more behind them."""
_UNWIND_PER_S: Final = 25_000
_LEASE_S: Final = 3.0
_SHARED_S: Final = 60.0
_POLL_S: Final = 0.05
_runs = numbers(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured with what, whoever does the work."""

    bench: Bench
    services: Services
    settings: Settings
    bus: Bus
    graph: Graph
    workload: Workload

    async def cleared(self) -> GraphProbe:
        """Empty graph and bus; return what looks at the graph."""
        await self.services.clear(self.bus, self.graph)
        return await self.services.probe(self.graph)

    async def prepared(self) -> GraphProbe:
        """Empty graph and bus, and make the indexes that the engine makes by itself."""
        probe = await self.cleared()
        await probe.index(load_rules(self.workload.rules).keys)
        return probe


async def run(bus: Bus, graph: Graph, workload: Workload, bench: Bench, services: Services) -> list[Result]:
    """Measure what the rows that are asked for need, the engine once for all of them."""
    where = f"{bus} x {graph}"
    settings = await services.settings(bus, graph, workload.rules)
    case = Case(bench=bench, services=services, settings=settings, bus=bus, graph=graph, workload=workload)
    naive = partial(_naive_rate, case)
    held: list[str] = []
    subscribers: dict[str, Contender] = {"naive, batch=True": partial(naive, ("--batch",), 3_000)}
    if workload is CALLS:  # the recorded runs say the same thing, so there the stronger one is enough
        subscribers["naive"] = partial(naive, (), 1_500)
    against: Mapping[str, Mapping[str, Contender]] = {
        "a": subscribers,
        "b": {"UNWIND": partial(_unwind_rate, case)},
        "f": {"two": partial(_two_rate, case, held)},
    }
    contenders: dict[str, Contender] = {"engine": partial(engine_rate, case)}
    for row in bench.rows:
        contenders |= against[row]
    values = await bench.interleave(f"{where}, {workload.name}", contenders)
    compare = partial(ratio, values=values, unit="events/s")
    results: list[Result] = []
    if "a" in bench.rows:
        results += [
            compare("a", f"engine / {name}, {where}, {workload.name}", of="engine", to=name) for name in against["a"]
        ]
    if "b" in bench.rows:
        title = f"engine / hand-written UNWIND, {where}"
        results.append(compare("b", title, of="engine", to="UNWIND", note="3 mutations an event"))
    if "f" in bench.rows:
        note = f"partitions each held, by round: {', '.join(held)}"
        results.append(compare("f", f"two workers / one, {where}", of="two", to="engine", note=note))
    return results


async def engine_rate(case: Case, _round: int = 0) -> float:
    """Return the events a second of one worker process that starts on a backlog."""
    settings, workload = case.settings, case.workload
    probe = await case.cleared()
    left, size = await _left(case), _backlog(case.bench)
    await publish(settings, workload.outgoing(size, _run_name()))
    async with process(ENGINE, settings, kill=_may_kill(case.bus)) as engine:
        return await events_per_second(engine, probe, workload.applied, left + size, limit_s=case.bench.seconds)


async def _two_rate(case: Case, held: list[str], _round: int) -> float:
    """Return the events a second of two worker processes; ``held`` gets how many partitions each of them has.

    On a short backlog whoever starts first would work alone. So they share the partitions before there is a backlog,
    under short leases so that this takes no long time, and they are stopped while it is published.
    """
    bench, workload = case.bench, case.workload
    probe = await case.cleared()
    size = _backlog(bench)
    settings = case.settings.model_copy(update={"lease_s": _LEASE_S})
    async with AsyncExitStack() as ends:
        both = [await ends.enter_async_context(process(ENGINE, settings, kill=_may_kill(case.bus))) for _ in range(2)]
        held.append(await _shared(settings, len(both)))
        for worker in both:
            worker.send_signal(signal.SIGSTOP)
        before = await count(probe, workload.applied)
        await publish(settings, workload.outgoing(size, _run_name()))
        for worker in both:
            worker.send_signal(signal.SIGCONT)
        return await events_per_second(both[0], probe, workload.applied, size, limit_s=bench.seconds, before=before)


async def _shared(settings: Settings, workers: int) -> str:
    """Wait until so many workers hold all partitions and nothing is left to do; return how many each has."""
    log = make_bus(settings)
    try:
        async with asyncio.timeout(_SHARED_S):
            while True:
                parts = await log.partitions.status()
                owners = Counter(part.owner for part in parts)
                if len(owners) == workers and None not in owners and not any(part.lag for part in parts):
                    return "+".join(map(str, owners.values()))
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise Died(f"two workers did not share the partitions: {parts}") from None
    finally:
        await log.aclose()


async def _left(case: Case) -> int:
    """Return how many events the last worker left on the bus."""
    if case.bus == "redis":  # it has been emptied
        return 0
    log = make_bus(case.settings)
    try:
        return sum(part.lag for part in await log.partitions.status())
    finally:
        await log.aclose()


def _backlog(bench: Bench) -> int:
    return max(_ENGINE_LEAST, int(_ENGINE_PER_S * bench.seconds))


def _may_kill(bus: Bus) -> bool:
    """On Kafka a member that is killed would keep its partitions from the next one for the session timeout."""
    return bus == "redis"


async def _naive_rate(case: Case, options: tuple[str, ...], per_second: int, _round: int) -> float:
    bench, settings, workload = case.bench, case.settings, case.workload
    probe = await case.prepared()
    size, run_name = int(per_second * bench.seconds), _run_name()
    await publish_plain(settings, f"naive-{run_name}", workload.outgoing(size, run_name))
    async with process((*NAIVE, f"naive-{run_name}", *options), settings, kill=True) as naive:
        return await events_per_second(naive, probe, workload.applied, size, limit_s=bench.seconds)


async def _unwind_rate(case: Case, _round: int) -> float:
    await case.cleared()
    seconds = case.bench.seconds
    return await unwind_rate(case.services, case.settings, case.graph, int(_UNWIND_PER_S * seconds), seconds)


async def unwind_rate(services: Services, settings: Settings, graph: Graph, size: int, limit_s: float) -> float:
    """Return the events a second of hand-written queries for the first events of ``CALLS``, on an empty graph."""
    probe = await services.probe(graph)
    await probe.index(load_rules(CALLS.rules).keys)
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, *UNWIND, str(size), str(limit_s)),
        cwd=ROOT,
        env=settings.as_environment(),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await done.communicate()
    if done.returncode != 0:
        raise Died(f"the hand-written queries ended with {done.returncode}")
    found = json.loads(output)
    if (there := await count(probe, CALLS.applied)) != found["events"]:
        raise Died(f"the hand-written queries made {there} events of {found['events']}")
    return float(found["events"] / found["seconds"])


def _run_name() -> str:
    """Return a name that no earlier measurement had."""
    return f"run{next(_runs)}"
