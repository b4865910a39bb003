"""The toy driver, for the suites of the ports: it is known by its URL alone."""

from __future__ import annotations

from tests.ports import toy
from tests.services.waiting import turns

from graphweft_workers.drivers import bus_driver
from graphweft_workers.ports.request_queue import RequestQueue
from graphweft_workers.testing.suites.request_kit import RequestKit

__all__ = ("ToyRequestKit",)


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
