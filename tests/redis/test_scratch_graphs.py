"""The graphs of ``why``, ``diff`` and ``--as-of``: beside the live one, gone afterwards, also after a kill."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.edges.test_cli import Call, call
from tests.redis.test_rebuild import App
from tests.services.virtual_time import VirtualClock

from graphweft_contracts import InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.replay import Replay
from graphweft_workers.replay.scratch_lease import ScratchLease
from graphweft_workers.rule_sets.active_rules import LoggedRules
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.timing import TIMING
from graphweft_workers.wiring.rules import rules_maker
from graphweft_workers.wiring.running import running_graph
from graphweft_workers.wiring.second_graph import SCRATCH, scratch_graph, second_place

__all__ = ("call",)  # a fixture

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    pytest.mark.parametrize("own_graph_url", ["falkordb", "neo4j"], indirect=True),
]
ORDERS = "MATCH (o:Order) RETURN count(o)"


class Scratch:
    """Scratch graphs of one app."""

    def __init__(self, app: App, live: GraphStore) -> None:
        self.settings = Settings.load(bus_url=app.bus_url, graph_url=app.url, unknown=[])
        self.log = AppLog(bus=app.bus, app_id="shop", live=live)
        self.rules = LoggedRules(app.bus.rules, rules_maker(Settings.load(unknown=[])), without_lost=True)

    def graph(self) -> contextlib.AbstractAsyncContextManager[GraphStore]:
        return scratch_graph(self.settings, self.log, self.rules)

    async def fill(self, graph: GraphStore) -> None:
        replay = Replay(self.log.bus, graph, self.rules, "shop")
        for partition in await self.log.partitions():
            async for _ in replay.run(partition):
                pass

    async def leave(self, number: int, clock: Clock) -> None:
        """Make a graph as a command does that is killed at the time of the clock."""
        place = second_place(self.settings, "shop", suffix=f"{SCRATCH}-{number}")
        async with running_graph(place, live=self.settings) as graph:
            assert await ScratchLease(graph, "shop", clock, TIMING).take(only_new=False)
            await self.fill(graph)

    async def there(self) -> list[int]:
        """Return which graphs there are."""
        found: list[int] = []
        for number in range(1, 6):
            place = second_place(self.settings, "shop", suffix=f"{SCRATCH}-{number}")
            async with running_graph(place, live=self.settings) as graph:
                found += [number] if await graph.whole.graph_id("shop") else []
        return found


async def orders(graph: GraphStore) -> int:
    rows = (await graph.read("shop", ORDERS, {}, timeout_s=120)).rows
    return int(rows[0][0]) if rows else 0


@pytest.fixture
async def app(own_graph_url: str | None, url: str, call: Call, tmp_path: Path) -> AsyncIterator[App]:
    async with contextlib.aclosing(App(url, call, tmp_path, graph_url=own_graph_url)) as app:
        await app.bus.partitions.count()
        await app.push("first")
        async with app.worker():
            await app.emit("shop", range(40))
            await app.applied()
        yield app


@pytest.fixture
async def scratch(app: App) -> AsyncIterator[Scratch]:
    async with contextlib.aclosing(app.store()) as live:
        yield Scratch(app, live)


@pytest.mark.long("neo4j")
async def test_a_graph_that_a_killed_command_left_is_deleted_by_the_next(app: App, scratch: Scratch) -> None:
    live = await app.digest("shop")
    for number in (1, 3):
        await scratch.leave(number, VirtualClock())
    assert await scratch.there() == [1, 3]
    async with scratch.graph() as graph:
        assert await orders(graph) == 0
        await scratch.fill(graph)
        assert await orders(graph) == 11
        assert await scratch.there() == [1]
    assert await scratch.there() == []
    assert await app.digest("shop") == live


@pytest.mark.long("neo4j")
async def test_the_graph_of_a_command_that_lives_is_not_taken(app: App, scratch: Scratch) -> None:
    live = await app.digest("shop")
    await scratch.leave(1, SYSTEM_CLOCK)
    async with contextlib.AsyncExitStack() as stack:
        made = [await stack.enter_async_context(scratch.graph()) for _ in range(3)]
        await scratch.fill(made[1])
        assert [await orders(each) for each in made] == [0, 11, 0]
        with pytest.raises(InvalidSettings, match="4 commands replay the log of 'shop' at once: wait"):
            await stack.enter_async_context(scratch.graph())
        assert await scratch.there() == [1, 2, 3, 4]
    assert await scratch.there() == [1]
    assert await app.digest("shop") == live


@pytest.mark.long("neo4j")
async def test_the_commands_need_no_other_server_and_leave_nothing(app: App, scratch: Scratch) -> None:
    live = await app.digest("shop")
    done = await app.run("why", "--app", "shop", "--label", "Order", "--key", "o3", "--property", "times", "--json")
    found = json.loads(done.out)
    assert [each["id"] for each in found["writes"]] == [f"e{number}" for number in range(3, 40, 11)]
    assert found["like_live"] is True
    done = await app.run("query", "--app", "shop", ORDERS, "--as-of", "0s", "--json")
    assert [*json.loads(done.out)["rows"][0].values()] == [11]
    done = await app.run("diff", "--app", "shop", "--rules", str(app.folder / "rules"), "--json")
    assert json.loads(done.out)["same"] is True
    assert await scratch.there() == []
    assert await app.digest("shop") == live
