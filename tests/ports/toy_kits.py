"""The toy driver, for the suites of the ports: it is known by its URL alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from tests.ports import toy
from tests.services.waiting import turns

from graphweft_contracts import Layout, wire
from graphweft_workers.drivers import bus_driver
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.driver import BusOptions
from graphweft_workers.ports.request_queue import RequestQueue
from graphweft_workers.testing import BusFeatures, BusKit, RequestKit

__all__ = ("ToyBusKit", "ToyRequestKit")


class ToyBusKit(BusKit):
    features = BusFeatures(lease_keeper=False, moves_least=False)

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def make_bus(self, new: Layout, group: str, session_s: float) -> Bus:
        return bus_driver(self.url).make_bus(self.url, BusOptions(group=group, new=new, lease_s=session_s))

    async def write(self, partition: int, values: Sequence[bytes]) -> None:
        from toy_driver.file import append  # type: ignore[import-not-found]

        entries = [{wire.DATA: value} for value in values]
        await asyncio.to_thread(toy.execute, self.url, lambda db: append(db, partition, entries, time.time()))

    async def trim(self, partition: int, keep: int) -> None:
        newest = "SELECT last - ? FROM ends WHERE partition = ?"
        delete = f"DELETE FROM events WHERE partition = ? AND number <= ({newest})"
        toy.execute(self.url, lambda db: db.execute(delete, (partition, keep, partition)))

    async def stop(self) -> None:
        toy.stop(self.url)

    async def start(self) -> None:
        toy.start(self.url)


class ToyRequestKit(RequestKit):
    def __init__(self, url: str) -> None:
        self.url = url

    def queue(self, name: str, *, patient: bool = False) -> RequestQueue:
        return bus_driver(self.url).make_request_queue(self.url, name=name, partitions=3)

    async def put(self, body: bytes) -> None:
        toy.put_request(self.url, body)

    async def restart(self) -> None:
        toy.stop(self.url)
        await turns(100)  # clients meet the gap
        toy.start(self.url)
