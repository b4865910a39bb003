"""A partition whose work fails again and again: `doctor` and `status` say so from any machine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace

import pytest
from tests.services.rules import rule_set
from tests.services.waiting import until
from tests.services.workers import working

from graphweft_contracts import channels
from graphweft_workers.doctor import Check, examine
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.timing import TIMING
from graphweft_workers.wiring.status import read_status

pytestmark = pytest.mark.integration
QUICK = replace(TIMING, defect_s=0.01, jobs=replace(TIMING.jobs, shown_s=0.0))


class Defective(FalkorDBStore):
    """A store with a defect, until it is mended."""

    mended = False

    async def positions(self) -> Mapping[int, CommittedPosition] | None:
        if not self.mended:
            raise ZeroDivisionError
        return await super().positions()


async def test_a_partition_that_fails_again_and_again_is_told(url: str, bus: Bus) -> None:
    settings = Settings.load(bus_url=url, graph_url=url)

    async def checks() -> list[Check]:
        return [check for check in await examine(settings) if check.name == "partition"]

    async with aclosing(Defective(url)) as graph, working(bus, graph, rule_set(), timing=QUICK):
        found = await until(checks, bool, why="the worker says that it does not go on")
        assert [check.state for check in found] == ["fail"]
        assert "of worker w failed again and again since" in found[0].found
        assert "ZeroDivisionError" in found[0].found
        [job] = [each for each in (await read_status(settings, bus)).jobs if each.group == channels.MUTATION_GROUP]
        assert [(each.worker, each.reason[:9]) for each in job.waits] == [("w", "partition")]
        assert found[0].advice == job.waits[0].next
        graph.mended = True
        await until(checks, lambda now: not now, why="the worker goes on")
