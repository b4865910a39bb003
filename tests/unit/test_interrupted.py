"""A worker whose partitions fail again and again is not ready, and is ready again once it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.chaos.memory_bus import memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import BusUnavailable
from graphweft_workers.engine.log.leases import Lease, LeaseHolder
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.processes.heartbeat import Heartbeat
from graphweft_workers.processes.probes import routes
from graphweft_workers.support.lazy_logger import get_logger

pytestmark = pytest.mark.usefixtures("beats")


async def test_readiness_names_partitions_whose_work_fails_again_and_again() -> None:
    holder = LeaseHolder(
        memory_bus([[]]), name="w", lease_s=10.0, logger=get_logger("graphweft.mutation"), clock=VIRTUAL
    )
    heartbeat = Heartbeat("mutation")
    heartbeat.begin(lambda: holder.interrupted)
    seen: list[tuple[int, Any]] = []

    async def answers() -> dict[str, bool]:
        return {"bus": True}

    async def ready() -> tuple[int, Any]:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await routes(heartbeat, answers)["/readyz"]({}, None, send)
        return sent[0]["status"], json.loads(sent[1]["body"]).get("interrupted")

    async def work(lease: Lease) -> None:
        seen.append(await ready())
        if len(seen) < 4:
            raise BusUnavailable("a topic is gone")
        await lease.read(CommittedPosition(), limit=1)
        seen.append(await ready())
        holder.stop()

    with capture_logs():
        await holder.run(work)
    assert seen == [(200, None), (200, None), (503, [0]), (503, [0]), (200, None)]
