"""What goes wrong in a round. A fault strikes while events flow and returns when all that it broke is whole again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .proxy import Proxy
    from .rounds import Round

__all__ = ("FAULTS", "Fault")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``strike`` and how many workers run."""

    strike: Callable[[Round], Awaitable[None]]
    workers: int = 1


async def _worker_killed(round: Round) -> None:
    for _ in range(round.rng.randint(1, 3)):
        worker = round.rng.choice(round.workers)
        worker.kill()
        worker.start()
        await round.some_time(1.5)


async def _one_of_two_killed(round: Round) -> None:
    worker = await round.an_owner()
    worker.kill()
    await round.taken_over(worker)
    if round.rng.random() < 0.5:
        worker.start()


async def _worker_frozen(round: Round) -> None:
    """The frozen worker holds what it has read and half sent; when it goes on, all of that is somebody else's."""
    worker = await round.an_owner()
    worker.freeze()
    await round.taken_over(worker)
    worker.thaw()


async def _graph_killed(round: Round) -> None:
    for _ in range(round.rng.randint(1, 2)):
        await round.stack.graph_server.kill()
        await round.some_time(0.5)
        await round.stack.graph_server.start()
        await round.some_time(1.0)


async def _bus_killed(round: Round) -> None:
    await round.stack.bus_server.kill()
    await round.some_time(0.5)
    await round.stack.bus_server.start()


async def _cut(round: Round, proxy: Proxy, rate: float) -> None:
    proxy.cut_at_random(round.rng, rate)
    await round.some_time(1.5, least=0.5)
    proxy.cut_at_random(round.rng, 0.0)
    proxy.cut_now()


async def _graph_cut(round: Round) -> None:
    await _cut(round, round.stack.graph_server.workers, 0.1)


async def _worker_bus_cut(round: Round) -> None:
    await _cut(round, round.stack.bus_server.workers, 0.05)


async def _producer_cut(round: Round) -> None:
    await _cut(round, round.stack.bus_server.producers, 0.2)


async def _everything(round: Round) -> None:
    """All connections are bad while a worker dies and the graph restarts."""
    stack = round.stack
    proxies = (stack.bus_server.workers, stack.graph_server.workers, stack.bus_server.producers)
    for proxy in proxies:
        proxy.cut_at_random(round.rng, 0.03)
    worker = await round.an_owner()
    worker.kill()
    await round.some_time(0.5)
    await stack.graph_server.kill()
    worker.start()
    await stack.graph_server.start()
    await round.some_time(1.0)
    for proxy in proxies:
        proxy.cut_at_random(round.rng, 0.0)


FAULTS = {
    "worker-killed": Fault(strike=_worker_killed),
    "one-of-two-killed": Fault(strike=_one_of_two_killed, workers=2),
    "worker-frozen": Fault(strike=_worker_frozen, workers=2),
    "graph-killed": Fault(strike=_graph_killed),
    "bus-killed": Fault(strike=_bus_killed),
    "graph-cut": Fault(strike=_graph_cut),
    "worker-bus-cut": Fault(strike=_worker_bus_cut),
    "producer-cut": Fault(strike=_producer_cut),
    "everything": Fault(strike=_everything, workers=2),
}
