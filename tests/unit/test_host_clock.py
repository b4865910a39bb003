"""A role whose clock is wrong says so in its log and on the bus, by the time of the bus."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.services.virtual_time import VirtualClock

from graphweft_contracts import BusUnavailable
from graphweft_workers.engine.usage.host_clock import HostClock
from graphweft_workers.engine.usage.waits import CLOCK, wrong_clocks
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.records import Records


class Server:
    """A bus whose clock is ahead of that of the host, in seconds, and which tells it when asked or with a record."""

    def __init__(self, clock: VirtualClock, *, by_record: bool) -> None:
        self.clock = clock
        self.ahead_s = 0.0
        self.answers_after_s = 0.0
        self.is_away = False
        self.records: dict[str, bytes] = {}
        self.by_record = by_record

    def bus(self) -> Bus:
        made = SimpleNamespace(usage=self, time=None if self.by_record else self.time)
        return cast(Bus, cast(Any, made))

    async def time(self) -> datetime:
        if self.is_away:
            raise BusUnavailable("away")
        told = self.clock.now() + timedelta(seconds=self.ahead_s)
        self.clock.advance(self.answers_after_s)
        return told

    async def put(self, key: str, record: bytes | None) -> datetime | None:
        self.records.pop(key, None)
        if record is not None:
            self.records[key] = record
        return await self.time() if self.by_record else None

    async def after(self, mark: int | None) -> Records:
        return Records(found=dict(self.records), mark=0)

    def said(self) -> list[str]:
        return wrong_clocks(self.records, self.clock.now().timestamp() + self.ahead_s)


@pytest.mark.parametrize("by_record", [False, True])
@pytest.mark.parametrize(("ahead_s", "way"), [(-3_600, "3,600.0 s ahead of"), (3_600, "3,600.0 s behind")])
async def test_a_wrong_clock_is_said_until_it_is_right(by_record: bool, ahead_s: float, way: str) -> None:
    clock = VirtualClock()
    server = Server(clock, by_record=by_record)
    host = HostClock(server.bus(), "gateway", name="one:80", clock=clock)
    with capture_logs() as logs:
        await host.look()
        assert server.said() == []
        server.ahead_s = ahead_s
        for _ in range(3):
            await host.look()
            assert server.said() == [f"gateway one:80: its clock is {way} that of the bus"]
            clock.advance(30)
        server.is_away = True
        for _ in range(2):
            await host.look()
        server.is_away, server.ahead_s = False, 0.0
        await host.look()
        assert server.records == {}
    assert [(log["event"], log.get("ahead_s")) for log in logs] == [
        ("clock_differs", -ahead_s),
        ("clock_not_compared", None),
        ("clock_is_right", None),
    ]


@pytest.mark.parametrize("by_record", [False, True])
async def test_a_slow_answer_is_no_wrong_clock(by_record: bool) -> None:
    server = Server(VirtualClock(), by_record=by_record)
    server.answers_after_s = 20.0
    host = HostClock(server.bus(), "gateway", name="one:80", clock=server.clock)
    with capture_logs() as logs:
        await host.look()
    assert (logs, server.records) == ([], {})


async def test_a_wrong_clock_removes_only_what_is_old_by_the_bus() -> None:
    server = Server(VirtualClock(), by_record=False)
    server.ahead_s = -3_600
    host = HostClock(server.bus(), "responder", name="killed", clock=server.clock)
    await host.look()
    await HostClock(server.bus(), "gateway", name="new", clock=server.clock).look()
    assert server.records.keys() == {f"{CLOCK}responder killed", f"{CLOCK}gateway new"}
    server.clock.advance(600)
    await HostClock(server.bus(), "gateway", name="newer", clock=server.clock).look()
    assert server.records.keys() == {f"{CLOCK}gateway newer"}
    assert len(server.said()) == 1
    server.clock.advance(600)
    assert server.said() == []
