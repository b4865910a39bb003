"""Jobs and commands that read a graph from before an erasure do nothing with it, and follow erasures meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from tests.chaos.memory_bus import memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft import Client
from graphweft_contracts import BusUnavailable, Event, GraphUnavailable
from graphweft_workers.console.sources import Sources
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.features.memory.consolidation import ConsolidationJob
from graphweft_workers.features.memory.embedding import embed_again
from graphweft_workers.features.memory.graph_progress import GraphProgress
from graphweft_workers.features.memory.retention import Retention
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.ports.basis_comparison import BasisComparison
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_basis import GraphBasis
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, Table
from graphweft_workers.ports.job import JobSkip
from graphweft_workers.ports.purges import Purge, put_purge
from graphweft_workers.ports.records import RecordLog, Records
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.recent_answers import RecentAnswers
from graphweft_workers.support.timing import TIMING

NOW = datetime(2026, 2, 1, tzinfo=UTC)
WHY = "the graph of 'shop' is from before something was erased"


class Graphs:
    """Graphs of two apps; that of ``shop`` says after which erasures it was made, and has two memories."""

    settle_s = 0.0

    def __init__(self, erasures: int = 0) -> None:
        self.erasures = erasures
        self.asked = 0
        self.read_of: set[str] = set()
        self.memories = {"m1": "of ada", "m2": "of bob"}
        self.fails = False
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def apps(self) -> list[str]:
        return ["other", "shop"]

    async def checkpoints(self, app_id: str, *, timeout_s: float) -> Mapping[int, Checkpoint]:
        return {0: Checkpoint(offset="9")}

    async def read(self, app_id: str, statement: str, params: Mapping[str, Any], *, timeout_s: float) -> Table:
        if "__Basis" in statement:
            self.asked += 1
            await self.goes_on.wait()
            if self.fails:
                raise GraphUnavailable("away")
            return Table(columns=(), rows=(("", False, self.erasures, False),))
        self.read_of.add(app_id)
        if "after" not in params:
            return Table(columns=(), rows=())
        rows = [(id, "c", None, "u", "user", text, None) for id, text in self.memories.items() if id > params["after"]]
        return Table(columns=(), rows=tuple(rows))


async def bus_that_needs(erasures: int) -> Bus:
    bus = memory_bus([[]])
    await bus.partitions.commit(0, CommittedPosition(offset="9"))
    await put_purge(bus.purges, Purge(app_id="shop", needed=GraphBasis(erasures=erasures)))
    return bus


def store(graphs: Graphs) -> GraphStore:
    return cast(GraphStore, graphs)


class CountedReads:
    """Purges that count how often they are read."""

    def __init__(self, log: RecordLog) -> None:
        self.log = log
        self.reads = 0

    async def after(self, mark: int | None) -> Records:
        self.reads += 1
        return await self.log.after(mark)


async def test_the_bus_is_asked_once_a_second_for_all_apps() -> None:
    purges = CountedReads((await bus_that_needs(2)).purges)
    compared = BasisComparison(store(Graphs()), cast(RecordLog, purges), clock=VIRTUAL)
    for app in range(100):
        assert not await compared.older(f"app-{app}")
    assert purges.reads == 1
    await VIRTUAL.sleep(TIMING.context.age_recent_s)
    assert WHY in await compared.older("shop")
    assert purges.reads == 2


async def test_a_graph_is_asked_once_a_second_and_for_each_new_need() -> None:
    graphs, bus = Graphs(erasures=2), await bus_that_needs(2)
    compared = BasisComparison(store(graphs), bus.purges, clock=VIRTUAL)
    assert [await compared.older("shop"), await compared.older("shop"), await compared.older("other")] == ["", "", ""]
    assert graphs.asked == 1
    await put_purge(bus.purges, Purge(app_id="shop", needed=GraphBasis(erasures=4)))
    await VIRTUAL.sleep(TIMING.context.age_recent_s)
    assert WHY in await compared.older("shop")
    graphs.erasures = 4
    await VIRTUAL.sleep(TIMING.context.age_recent_s)
    assert (await compared.older("shop"), graphs.asked) == ("", 3)


@pytest.mark.parametrize("fails", [False, True])
async def test_those_who_ask_at_once_share_the_answer_or_its_error(*, fails: bool) -> None:
    graphs = Graphs()
    graphs.fails = fails
    graphs.goes_on.clear()
    compared = BasisComparison(store(graphs), (await bus_that_needs(2)).purges, clock=VIRTUAL)
    asking = [asyncio.create_task(compared.older("shop")) for _ in range(5)]
    await VIRTUAL.sleep(1.0)
    graphs.goes_on.set()
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert graphs.asked == 1
    assert all(isinstance(each, GraphUnavailable) if fails else WHY in str(each) for each in outcomes)


async def test_if_the_one_who_asks_is_cancelled_the_next_one_asks() -> None:
    answers, asked = RecentAnswers[str, int](clock=VIRTUAL, fresh_s=1.0), 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        with answers.asking("key"):
            await VIRTUAL.sleep(0.1)
            answers.note("key", asked)

    first, *others = [asyncio.create_task(answers.get("key", ask)) for _ in range(4)]
    await asyncio.sleep(0)
    first.cancel()
    assert await asyncio.gather(*others) == [2, 2, 2]


async def test_a_job_waits_for_the_app_of_a_graph_from_before_an_erasure() -> None:
    progress = GraphProgress(store(Graphs()), await bus_that_needs(2), clock=VIRTUAL)
    [wait] = await progress.behind({"shop": "0:1", "other": "0:1"})
    assert (wait.app_id, WHY in str(wait.error)) == ("shop", True)


async def test_retention_reads_no_graph_from_before_an_erasure() -> None:
    graphs = Graphs()
    retention = Retention(store(graphs), keep_count=1)
    job = ConsolidationJob(store(graphs), await bus_that_needs(2), None, retention=retention, clock=VIRTUAL)
    found = [one async for some in job.tick(0, 1) for one in some]
    assert found == [JobSkip(app_id="shop", reason="query_failed")]
    assert graphs.read_of == {"other"}


class Erasing(HashingEmbedder):
    """An embedder that something is erased in front of."""

    def __init__(self, erase: Callable[[], Awaitable[None]]) -> None:
        super().__init__(8)
        self.erase = erase

    async def embed(self, texts: Any) -> Any:
        await self.erase()
        return await super().embed(texts)


@pytest.mark.parametrize("when", ["never", "while it embeds", "while it is put", "before"])
async def test_new_vectors_are_of_what_is_left_by_an_erasure(when: str) -> None:
    graphs, bus, erased = Graphs(erasures=2), await bus_that_needs(2), False

    async def erase() -> None:
        nonlocal erased
        if not erased:
            erased = True
            del graphs.memories["m1"]
            await put_purge(bus.purges, Purge(app_id="shop", erasure="1"))

    async def nothing() -> None: ...

    embedder = Erasing(erase if when == "while it embeds" else nothing)
    if when == "before":  # and an older copy came back
        graphs.erasures = 0
    found: list[str] = []

    async def run() -> None:
        async for page in embed_again(store(graphs), bus.purges, "shop", embedder, time=NOW, again=True):
            if when == "while it is put":
                await erase()
            found.extend(str(event.data["memory_id"]) for event in page if isinstance(event, Event))

    match when:
        case "before":
            with pytest.raises(GraphUnavailable, match=WHY):
                await run()
            assert (found, graphs.read_of) == ([], set())
        case "while it is put":
            with pytest.raises(BusUnavailable, match="give the same `graphweft erase` again"):
                await run()
        case _:
            await run()
            assert found == (["m2"] if when == "while it embeds" else ["m1", "m2"])


async def test_the_console_shows_no_graph_from_before_an_erasure() -> None:
    graph, bus = store(Graphs()), await bus_that_needs(2)
    sources = Sources(settings=Settings.load(unknown=[]), bus=bus, graph=graph, client=cast(Client, None))
    assert await sources.graph_of("other") is graph
    with pytest.raises(Problem) as refused:
        await sources.graph_of("shop")
    assert refused.value.status == 503
    assert str(refused.value.detail).startswith("The graph of 'shop' is from before something was erased")
