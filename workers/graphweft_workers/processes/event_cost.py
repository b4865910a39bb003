"""What events cost on this machine: a worker in this process applies them on an embedded server of its own.

The CPU of both is measured, the worker's in its thread, not the time that passes, so other work on the machine counts
little.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from graphweft import Client
from graphweft_contracts import Event, InvalidEvent
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.ports.bus import Bus
from graphweft_workers.processes.mutation import open_mutation
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.garbage_collection import collect_less_often
from graphweft_workers.wiring.connections import make_bus, make_graph, make_transport

_ONE_APP: Final = 6_000
"""Events of one app: about half a second of CPU of worker and server."""
_APPS: Final = 150
_EACH: Final = 4
"""Events of each of many apps, which fit into one batch: one write for each app."""
_PARTITIONS: Final = 4
_ROUNDS: Final = 3
_POLL_S: Final = 0.05
_FLUSH_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCost:
    """What events cost on a machine, in microseconds of CPU."""

    worker_event: float
    """For an event of a large batch of one app."""
    worker_write: float
    """For each app of a batch."""
    server_event: float
    server_write: float


async def event_cost(settings: Settings, events: Sequence[Event]) -> EventCost:
    """Apply copies of the events by the rules of the settings' folder, and return what they take. It takes seconds.

    Raises ``InvalidEvent`` if the first events have no effect, because nothing would be measured.
    """
    collect_less_often()  # as a worker does
    with tempfile.TemporaryDirectory(prefix="graphweft-capacity-") as folder:
        server = EmbeddedServer(Path(folder), fsync="everysec")
        await server.start()
        try:
            url = SecretStr(f"unix://{server.socket}")
            no_more = dict.fromkeys(("archive_url", "apps", "signing_keys", "worker_name"))
            update = {"bus_url": url, "graph_url": url, "partitions": _PARTITIONS, **no_more}
            own = settings.model_copy(update=update)
            copies = _Copies(events)
            async with open_mutation(own) as service, aclosing(make_bus(own)) as bus:
                working = asyncio.create_task(service.run())
                try:
                    # The first events of an app make its graph and indexes, and open it in the worker.
                    await _spent(own, server, bus, copies.of(2, _APPS), working)
                    await _check_written(own)
                    ones = [await _spent(own, server, bus, copies.of(_ONE_APP, 1), working) for _ in range(_ROUNDS)]
                    many = [await _spent(own, server, bus, copies.of(_EACH, _APPS), working) for _ in range(_ROUNDS)]
                finally:
                    service.stop()
                    await working
        finally:
            await server.stop()
    count = _EACH * _APPS
    # The least of the rounds: other work on the machine only adds.
    worker, of_server = (min(values) / _ONE_APP for values in zip(*ones, strict=True))
    worker_many, server_many = map(min, zip(*many, strict=True))
    return EventCost(
        worker_event=worker,
        worker_write=max(0.0, worker_many - count * worker) / _APPS,
        server_event=of_server,
        server_write=max(0.0, server_many - count * of_server) / _APPS,
    )


async def _check_written(settings: Settings) -> None:
    async with aclosing(make_graph(settings)) as graph:
        # An event without effect makes no checkpoint.
        if not await graph.checkpoints("capacity-0", timeout_s=_FLUSH_S):
            raise InvalidEvent(
                "the events have no effect by these rules, so nothing was measured: give events of --measure that the "
                "workflows of --rules, or the built-in rules of memory, write; `graphweft test` says which do"
            )


class _Copies:
    """Makes copies of events, each with an id of its own."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._made = 0

    def of(self, each: int, apps: int) -> list[Event]:
        """Return so many events of each app, the apps in turn."""
        made: list[Event] = []
        for number in range(each):
            event = self._events[number % len(self._events)]
            for app in range(apps):
                self._made += 1
                update = {"appid": f"capacity-{app}", "id": f"capacity-{self._made}", "sequence": None}
                made.append(event.model_copy(update=update))
        return made


async def _spent(
    settings: Settings, server: EmbeddedServer, bus: Bus, events: Sequence[Event], working: asyncio.Task[None]
) -> tuple[float, float]:
    """Publish the events; return the microseconds of worker and server that applying them takes."""
    # A thread publishes while this one waits, and the worker with it: so it finds all events at once.
    publishing = threading.Thread(target=asyncio.run, args=(_publish(settings, events),))
    publishing.start()
    publishing.join()
    before, server_before = SYSTEM_CLOCK.cpu(), await server.cpu_s()
    while any(each.lag for each in await bus.partitions.status()):
        await asyncio.wait([working], timeout=_POLL_S)
        if working.done():
            await working  # raises what ended it
            break
    taken_s, server_s = SYSTEM_CLOCK.cpu() - before, await server.cpu_s() - server_before
    return taken_s * 1e6, server_s * 1e6


async def _publish(settings: Settings, events: Sequence[Event]) -> None:
    client = Client(transport=make_transport(settings), buffer=len(events) + 1)
    try:
        await client.emit_all(events)
        await client.flush(_FLUSH_S)
    finally:
        await client.aclose()
