"""Apps that take much of the graph server, or of the worker: what it costs them, and what their neighbour notices."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, override

import pytest
from tests.services.buses import applied
from tests.services.layouts import spread
from tests.services.rules import load_rules
from tests.services.waiting import until
from tests.services.workers import working

from graphweft import Client, Event
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.shared_queries import SharedQueries, WriteQuery
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import Write, WriteLimit, WriteResult
from graphweft_workers.ports.position_note import ParkedApp, PositionNote
from graphweft_workers.support.timing import Timing, WriteTiming

pytestmark = pytest.mark.integration
SLOW, QUIET = "slow", "quiet"
ENDLESS = "UNWIND range(1, 100000) AS x UNWIND range(1, 100000) AS y WITH s, count(*) AS n SET s.n = n"
RULES = f"""
mutation_rules:
  - name: slow
    events: [slow.event]
    mutations:
      - {{id: endless, cypher: "MERGE (s:Slow {{id: $id}}) WITH s {ENDLESS}", params: {{id: $event.id}}}}
  - name: visits
    events: [shop.visit]
    mutations:
      - {{id: count, cypher: "MERGE (v:Visit {{id: 1}}) SET v.n = coalesce(v.n, 0) + 1"}}
  - name: lists
    events: [shop.list]
    mutations:
      - id: items
        cypher: "UNWIND $ids AS id MERGE (a:Item {{id: id}}) MERGE (b:Copy {{id: id}})"
        params: {{ids: $event.ids}}
"""
_DEAR = "$event.a.exists(x, $event.b.exists(y, y == x + {number}))"
DEAR = 10
DEAR_RULES = "".join(
    f"""
  - name: dear{number}
    events: [dear.event]
    condition: "{_DEAR.format(number=number)}"
    mutations:
      - {{id: never, cypher: "MERGE (n:Never {{id: 1}}) SET n.x = 1"}}
"""
    for number in range(DEAR)
)
COUNT_DEAR = """
  - name: counted
    events: [dear.event]
    mutations:
      - {id: count, cypher: "MERGE (v:Visit {id: 1}) SET v.n = coalesce(v.n, 0) + 1, v.last = $id",
         params: {id: $event.id}}
"""


class Counting(FalkorDBStore):
    """Keeps the rows and the limit of each write that ran into it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.tries: list[tuple[int, WriteLimit]] = []

    @override
    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        found = await super().apply(app_id, partition, writes)
        if found.failure is not None and found.failure.code == "timeout":
            failed = writes[found.count]
            self.tries.append((len(failed.rows), failed.limit))
            assert found.held_s[-1] > 0
        return found


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop/graph_injection.yaml").write_text(RULES + DEAR_RULES + COUNT_DEAR)
    return load_rules(tmp_path)


@pytest.fixture
async def one_partition(url: str) -> AsyncIterator[Bus]:
    """All apps share a partition, so one that is waited for holds up the others."""
    async with contextlib.aclosing(redis_bus(url, new=spread(1))) as bus:
        await bus.partitions.count()
        yield bus


def event(app: str, type: str, number: int = 0, **data: object) -> Event:
    return Event.create(
        type,
        app_id=app,
        chat_id=f"c{number % 6}",
        workflow="Shop",
        id=f"{app}-{type}-{number}",
        data={"id": number, **data},
    )


async def visits(graph: FalkorDBStore, app: str) -> Any:
    return (await graph.read(app, "MATCH (v:Visit) RETURN sum(v.n)", {}, timeout_s=120)).rows


async def parked(bus: Bus) -> dict[str, ParkedApp]:
    return {
        app: each
        for partition in await bus.partitions.status()
        for app, each in PositionNote.decode(partition.note).parked.items()
    }


async def test_a_neighbour_goes_on_while_an_app_rests_after_a_slow_write(
    url: str, one_partition: Bus, rules: RuleSet
) -> None:
    bus = one_partition
    async with contextlib.aclosing(Counting(url)) as graph, Client(url) as client:
        async with working(bus, graph, rules, timing=Timing(writes=WriteTiming(again_s=3_600.0))):
            for number in range(12):
                await client.emit(event(SLOW, "slow.event", number))
            await until(lambda: parked(bus), lambda found: SLOW in found, why="the app with slow writes rests")
            for number in range(50):
                await client.emit(event(QUIET, "shop.visit", number))
            await until(
                lambda: visits(graph, QUIET), lambda found: found == ((50,),), why="the neighbour's events count"
            )
            found = await parked(bus)
        assert len(graph.tries) == 1  # and it has the short limit, or many rows
    assert found.keys() == {SLOW}
    assert found[SLOW].why == "slow_writes"
    assert [each.lag for each in await bus.partitions.status()] != [0]


async def test_endless_writes_are_tried_a_few_times_and_the_rest_of_the_app_goes_on(
    url: str, one_partition: Bus, rules: RuleSet
) -> None:
    bus = one_partition
    async with contextlib.aclosing(Counting(url)) as graph, Client(url) as client:
        for number in range(12):
            await client.emit(event(SLOW, "slow.event", number))
            await client.emit(event(SLOW, "shop.visit", number))
        async with working(bus, graph, rules, timing=Timing(writes=WriteTiming(again_s=0.0, long_rest=0.0))):
            await applied(bus)
        letters = await bus.dead_letters.read(limit=100)
        assert await visits(graph, SLOW) == ((12,),)
        # The first event has a second try, with more time; two that ran into that put the mutation in quarantine.
        assert graph.tries.count((1, "long")) <= 2
        assert graph.tries.count((1, "short")) == 1
        assert len(graph.tries) <= 5  # rows that shared a query at first
    assert {letter.mutation for letter in letters} == {"endless"}
    assert {letter.reason for letter in letters} == {"timeout", "quarantined"}
    assert len({each for letter in letters for each in letter.offsets or (letter.offset,)}) == 12


async def test_a_large_event_takes_effect_as_a_whole_or_becomes_a_dead_letter(
    url: str, one_partition: Bus, rules: RuleSet
) -> None:
    bus = one_partition
    ids = [f"id{number:06}" for number in range(60_000)]
    async with contextlib.aclosing(Counting(url)) as graph, Client(url) as client:
        await client.emit(event(SLOW, "shop.list", ids=ids))
        await client.emit(event(SLOW, "shop.visit"))
        async with working(bus, graph, rules, timing=Timing(writes=WriteTiming(again_s=0.0, long_rest=0.0))):
            await applied(bus)
        statement = "MATCH (n) WHERE n:Item OR n:Copy RETURN count(n)"
        [[found]] = (await graph.read(SLOW, statement, {}, timeout_s=120)).rows
        letters = [letter.reason for letter in await bus.dead_letters.read(limit=10)]
        assert (found, letters) in ((120_000, []), (0, ["timeout"]))  # the latter on a machine that is too busy
        assert await visits(graph, SLOW) == ((1,),)
        assert len(graph.tries) <= 2


async def test_long_lists_become_text_in_a_thread(
    url: str, one_partition: Bus, rules: RuleSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, aside = one_partition, set[tuple[int, bool]]()
    queries = SharedQueries.queries

    def noted(self: SharedQueries, partition: int, writes: Sequence[Write], **named: Any) -> Iterator[WriteQuery]:
        ids = [len(row["ids"]) for write in writes for row in write.rows if "ids" in row]
        aside.add((sum(ids), threading.current_thread() is not threading.main_thread()))
        return queries(self, partition, writes, **named)

    monkeypatch.setattr(SharedQueries, "queries", noted)
    async with contextlib.aclosing(Counting(url)) as graph, Client(url) as client:
        async with working(bus, graph, rules):
            for number, length in enumerate((0, 100, 2_000)):
                ids = [f"id{number:05}" for number in range(length)]
                await client.emit(event(QUIET, "shop.list", number, ids=ids) if ids else event(QUIET, "shop.visit"))
                await applied(bus)
        [[found]] = (await graph.read(QUIET, "MATCH (n:Item) RETURN count(n)", {}, timeout_s=120)).rows
    assert found == 2_000
    assert aside == {(0, False), (100, False), (2_000, True)}


async def test_a_backlog_of_dear_events_delays_its_app_alone(url: str, one_partition: Bus, rules: RuleSet) -> None:
    bus = one_partition
    lists = {"a": [*range(1_000, 1_100)], "b": [*range(100)]}  # about 5 ms for each rule
    async with contextlib.aclosing(Counting(url)) as graph, Client(url) as client:
        for number in range(40):
            await client.emit(event(SLOW, "dear.event", number, **lists))
        for number in range(10):
            await client.emit(event(QUIET, "shop.visit", number))
        async with working(bus, graph, rules, timing=Timing(writes=WriteTiming())):
            await until(
                lambda: visits(graph, QUIET), lambda found: found == ((10,),), why="the neighbour's events count"
            )
            [[done]] = await visits(graph, SLOW)
            assert done < 40  # else the neighbour has waited for all of them
            found = await until(lambda: parked(bus), lambda found: SLOW in found, why="the position says who is parked")
            assert found[SLOW].why == "dear_events"
            await applied(bus)
        assert await visits(graph, SLOW) == ((40,),)
        assert (await graph.read(SLOW, "MATCH (v:Visit) RETURN v.last", {}, timeout_s=120)).rows == ((39,),)
        assert await bus.dead_letters.read(limit=10) == []
