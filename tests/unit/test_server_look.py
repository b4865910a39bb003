"""What a role says of its servers: as states for probes and metrics, and in the log when they change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.services.fixtures import Logs
from tests.services.virtual_time import VirtualClock

from graphweft_contracts import BusUnavailable
from graphweft_workers.processes.server_look import ServerLook


class Partitions:
    """Answers unless ``error`` is set."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def layout(self) -> None:
        if self.error is not None:
            raise self.error


async def test_a_server_that_goes_and_comes_back_is_logged_once(clock: VirtualClock, logs: Logs) -> None:
    partitions = Partitions()
    look = ServerLook(cast("Any", SimpleNamespace(partitions=partitions)), None, {}, clock)
    gone = BusUnavailable("the bus is unavailable: connection refused")
    for error in (None, gone, gone, None, None):
        partitions.error = error
        await clock.sleep(2)
        assert await look.look() == {"bus": error is None}
    assert [(entry["event"], entry["log_level"], entry["server"]) for entry in logs] == [
        ("server_unavailable", "warning", "bus"),
        ("server_available", "info", "bus"),
    ]
    assert logs[0]["error"] == str(gone)
