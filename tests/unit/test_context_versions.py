"""Any interleaving of writes, marks, queries and requests: an answer never lacks what was confirmed before its request.

The graph here is a number. A read of it, or of its mark, is sent at one time, sees the graph at a later one, and
returns at a still later one; hypothesis says when.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from graphweft_rules import BoundQuery, InjectionQuery, Place
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.injection.cache import Cache
from graphweft_workers.injection.fetch import RowFetcher
from graphweft_workers.injection.query_runner import QueryRunner
from graphweft_workers.injection.rows import RequestRows
from graphweft_workers.injection.versions import GraphVersions
from graphweft_workers.ports.graph_store import Checkpoint, Table
from graphweft_workers.retrieval.search import Searcher

QUERY = InjectionQuery(id="q", cypher="RETURN 1", inject_as="q", place=Place(file=Path("r.yaml"), line=1, column=1))
BOUND = BoundQuery(rule="r", query=QUERY, cypher=parse("RETURN 1", role="injection"), params={})


@dataclass(eq=False)
class Call:
    """A read on its way: it has to look, then to return."""

    kind: str
    seen: int | None = None
    looks: asyncio.Event = field(default_factory=asyncio.Event)
    returns: asyncio.Event = field(default_factory=asyncio.Event)


class Graph:
    """A graph that is written at once, and read when it is told to."""

    settle_s = 0.0
    dialect = FALKORDB

    def __init__(self) -> None:
        self.number = 1
        self.calls: list[Call] = []

    async def _call(self, kind: str) -> int:
        call = Call(kind)
        self.calls.append(call)
        await call.returns.wait()
        assert call.seen is not None
        return call.seen

    async def read(self, *_: Any, **__: Any) -> Table:
        return Table(columns=("n",), rows=((await self._call("read"),),))

    async def checkpoints(self, *_: Any, **__: Any) -> Mapping[int, Checkpoint]:
        return {0: Checkpoint(offset=str(await self._call("checkpoints")))}


async def settle() -> None:
    """Let everything run until it waits for the graph."""
    for _ in range(12):
        await asyncio.sleep(0)


async def play(steps: list[tuple[str, int]]) -> tuple[int, int]:
    graph = Graph()
    cache, breaker, background = Cache(10**6), Breaker(), Background()
    versions = GraphVersions(graph, breaker, background)  # type: ignore[arg-type]
    runner = QueryRunner(graph, Searcher(graph), None, background)  # type: ignore[arg-type]
    fetcher = RowFetcher(runner, cache, versions, breaker, background, query_timeout_s=60.0)
    asked: list[tuple[int, asyncio.Task[Any]]] = []
    loop = asyncio.get_running_loop()

    def take(step: str, which: int) -> None:
        if step == "write":
            graph.number += 1
        elif step == "ask":
            rows = fetcher.fetch("shop", [BOUND], loop.time() + 60, None)
            asked.append((graph.number, asyncio.create_task(rows)))
        elif step == "look":
            if waiting := [call for call in graph.calls if call.seen is None]:
                waiting[which % len(waiting)].seen = graph.number
        elif ready := [call for call in graph.calls if call.seen is not None and not call.returns.is_set()]:
            ready[which % len(ready)].returns.set()

    for step, which in steps:
        take(step, which)
        await settle()
    while not all(task.done() for _, task in asked):
        take("look", 0)
        take("return", 0)
        await settle()
    for confirmed, task in asked:
        [rows] = await asyncio.wait_for(task, 5)
        assert isinstance(rows, RequestRows)
        assert rows.table.rows[0][0] >= confirmed
    await background.aclose()
    return cache.hits, cache.joined


steps = st.lists(
    st.tuples(st.sampled_from(["write", "ask", "ask", "look", "look", "return", "return"]), st.integers(0, 3)),
    max_size=40,
)
LATE = [("ask", 0), ("look", 1), ("return", 0)]
"""Asks while the query of somebody else is under way, and gets the marks before that returns."""
COLD = [("ask", 0), ("look", 0), ("look", 0), ("return", 0), ("return", 0)]


# A query sees the graph before a write and returns when the marks behind it are known.
OVERTAKEN = [
    *(("write", 0), ("ask", 0), ("look", 0), ("return", 0), ("look", 0)),
    *(("write", 0), ("ask", 0), ("look", 0), ("return", 1), ("return", 0)),
    *(("ask", 0), ("look", 1), ("return", 0)),
]


@given(steps)
@example(OVERTAKEN)
@example([*COLD, *COLD, ("write", 0), *COLD, ("write", 0), ("ask", 0), ("look", 0), ("write", 0), ("ask", 0)])
def test_an_answer_has_all_that_was_there_when_it_was_asked_for(steps: list[tuple[str, int]]) -> None:
    asyncio.run(play([*COLD, *COLD, *steps]))


def test_the_play_has_hits_and_joins() -> None:
    hits, joined = asyncio.run(play([*COLD * 3, ("ask", 0), ("ask", 0), ("look", 0), ("return", 0)]))
    assert hits >= 3
    assert joined == 0
    _, joined = asyncio.run(play([*COLD * 2, ("write", 0), ("ask", 0), ("look", 0), ("return", 0), *LATE]))
    assert joined == 1


async def test_new_questions_share_one_version_while_it_is_recent() -> None:
    """A question without cached rows costs its own query, and not one of the version each time."""
    graph = Graph()
    cache, breaker, background = Cache(10**6), Breaker(), Background()
    versions = GraphVersions(graph, breaker, background)  # type: ignore[arg-type]
    runner = QueryRunner(graph, Searcher(graph), None, background)  # type: ignore[arg-type]
    fetcher = RowFetcher(runner, cache, versions, breaker, background, query_timeout_s=60.0)
    until = asyncio.get_running_loop().time() + 60
    for number in range(20):
        asked = asyncio.create_task(fetcher.fetch("shop", [replace(BOUND, params={"n": number})], until, None))
        while not asked.done():
            for call in graph.calls:
                call.seen = graph.number
                call.returns.set()
            await asyncio.sleep(0)
        versions._apps["shop"].sent_at = time.monotonic()  # the test may be slow
    kinds = [call.kind for call in graph.calls]
    assert (kinds.count("read"), kinds.count("checkpoints")) == (20, 1)
    versions._apps["shop"].sent_at -= 0.2
    versions.refresh("shop")
    await settle()
    assert [call.kind for call in graph.calls].count("checkpoints") == 2
    await background.aclose()
