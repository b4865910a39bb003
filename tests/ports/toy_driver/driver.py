"""What the entry points name."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection
from typing import Final, override

from graphweft_contracts import BusUnavailable, InvalidSettings, Layout
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.check import Check, layout_checks
from graphweft_workers.ports.driver import BusDriver, BusOptions
from graphweft_workers.ports.request_queue import RequestQueue

from .bus import sqlite_bus
from .file import SqliteFile, layout_of, path_of
from .requests import SqliteRequestQueue


class SqliteDriver(BusDriver):
    """A SQLite file as the bus."""

    @override
    def check_url(self, url: str) -> None:
        try:
            path_of(url)
        except InvalidSettings as error:
            raise ValueError(str(error)) from None

    @override
    def make_bus(self, url: str, options: BusOptions) -> Bus:
        return sqlite_bus(url, new=options.new, group=options.group)

    @override
    def make_request_queue(self, url: str, *, name: str, partitions: int) -> RequestQueue:
        return SqliteRequestQueue(url, name=name)

    @override
    async def examine(self, url: str, advice: str, *, new: Layout, asked: Collection[str]) -> list[Check]:
        file = SqliteFile(url, durable=True)
        try:
            stored = await file.write(lambda db: layout_of(db, new))
        except BusUnavailable as error:
            return [Check(name="bus", state="fail", found=str(error), advice=advice)]
        finally:
            await file.aclose()
        checks = [
            Check(name="bus", state="ok", found=f"SQLite {sqlite3.sqlite_version}, {stored.partitions} partitions")
        ]
        return [*checks, *layout_checks(stored, new, asked)]

    @override
    async def responders(self, url: str) -> list[str]:
        file = SqliteFile(url, durable=True)
        alive = "SELECT name FROM replicas WHERE until >= ? ORDER BY name"
        try:
            rows = await file.read(lambda db: db.execute(alive, (time.time(),)).fetchall())
            return [name for (name,) in rows]
        finally:
            await file.aclose()


DRIVER: Final = SqliteDriver()
