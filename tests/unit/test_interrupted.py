"""A worker whose partitions fail again and again is not ready, and is ready again once it reads."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.chaos.memory_bus import memory_bus
from tests.services.rules import rule_set
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import BusUnavailable, GraphUnavailable, channels
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.engine.log.leases import Lease, LeaseHolder
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.processes.heartbeat import Heartbeat
from graphweft_workers.processes.probes import routes
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.wiring.job_states import waits_of

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


async def test_a_worker_says_on_the_bus_which_partitions_do_not_go_on() -> None:
    """So that `doctor` and `status` see it from any machine, until the worker reads again."""
    bus, graph = memory_bus([[]]), SimpleNamespace(dialect=FALKORDB)
    worker = MutationWorker(bus, cast(GraphStore, graph), rule_set(), name="w", clock=VIRTUAL)
    said: list[str] = []

    async def kept() -> str:
        waits = waits_of(Settings.load(unknown=[]), channels.MUTATION_GROUP, (await bus.usage.after(None)).found,
                         clock=VIRTUAL)  # fmt: skip
        return ", ".join(f"{each.worker}: {each.reason}, in {each.partitions}" for each in waits)

    async def work(lease: Lease) -> None:
        said.append(await kept())
        if len(said) < 5:
            raise GraphUnavailable("the graph refuses work", retry_after_s=1.0)
        await lease.read(CommittedPosition(), limit=1)
        said.append(await kept())
        worker.stop()

    with capture_logs():
        await worker._leases.run(work)
    waits = "w: the graph refuses work, in 1"
    assert said == ["", "", waits, waits, waits, ""]


async def test_a_worker_writes_no_record_of_a_bus_that_is_away() -> None:
    """`doctor` and `status` see that themselves."""
    bus, graph = memory_bus([[]]), SimpleNamespace(dialect=FALKORDB)
    worker = MutationWorker(bus, cast(GraphStore, graph), rule_set(), name="w", clock=VIRTUAL)
    calls = 0

    async def work(lease: Lease) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            return worker.stop()
        raise BusUnavailable("a topic is gone")

    with capture_logs():
        await worker._leases.run(work)
    assert dict((await bus.usage.after(None)).found) == {}
