"""A changed name of graphs makes second graphs: `doctor` says so with either name."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from tests.services.buses import applied
from tests.services.rules import rule_set
from tests.services.workers import working

from graphweft import Client, Event
from graphweft_workers.doctor import Check, examine
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.settings.settings import Settings

pytestmark = pytest.mark.integration
FIRST, SECOND = "first_{app_id}", "second_{app_id}"


async def test_graphs_under_two_names_are_told(url: str, bus: Bus) -> None:
    async def names(template: str) -> list[Check]:
        settings = Settings.load(bus_url=url, graph_url=url, graph_template=template)
        return [check for check in await examine(settings) if check.name == "graph names"]

    for number, template in enumerate((FIRST, SECOND)):
        async with aclosing(FalkorDBStore(url, graph_template=template)) as graph, Client(url) as client:
            said = Event.create("note.made", app_id="shop", chat_id="c", id=f"e{number}", source="/t", data={})
            assert await client.emit(said, wait_s=60)
            async with working(bus, graph, rule_set()):
                await applied(bus)
        if template == FIRST:
            assert await names(FIRST) == []
    for template, other in ((FIRST, SECOND), (SECOND, FIRST)):
        [check] = await names(template)
        assert check.state == "warn"
        assert f"graphs named {other};" in check.found
