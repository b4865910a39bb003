"""For how long writes held the server, by the times that it reports and what other workers announce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from redis.exceptions import ResponseError
from tests.services.virtual_time import VirtualClock

from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.falkordb.shared_queries import WriteQuery
from graphweft_workers.drivers.falkordb.timing import FalkorDBTiming
from graphweft_workers.drivers.falkordb.write_times import WriteTimes
from graphweft_workers.ports.graph_store import Checkpoint, Write

WRITE = Write(
    query=parse("MERGE (o:Order {id: $id}) SET o.n = 1", role="mutation"),
    rows=[{"id": "a"}],
    before=Checkpoint(),
    after=Checkpoint(offset="1-0"),
    limit="short",
)
TIMED_OUT = ResponseError("Query timed out")


class Announced:
    """What the long writes of other workers explain of the next one."""

    def __init__(self) -> None:
        self.explained_s = 0.0
        self.usual_s: list[float] = []

    async def waited_s(
        self, graph: str, began_s: float, ended_s: float, usual_s: Sequence[float], *, look: bool = True
    ) -> list[float]:
        self.usual_s = list(usual_s)
        return [min(self.explained_s, ended_s - began_s)] * len(usual_s)


class Server:
    """One write after the other, each of which takes as long as is given."""

    def __init__(self) -> None:
        self.clock, self.announced = VirtualClock(), Announced()
        self.times = WriteTimes(cast("Any", self.announced), self.clock, FalkorDBTiming())

    async def write(self, took_s: float, *, explained_s: float = 0.0, limit_s: float = 9.0) -> tuple[float, bool]:
        began_s = self.clock.monotonic()
        self.clock.advance(took_s)
        self.announced.explained_s = explained_s
        said = [[f"Query internal execution time: {took_s * 1000} milliseconds"]]
        reply: Any = TIMED_OUT if took_s > limit_s else said
        queries = [WriteQuery(first=0, end=1, text="")]
        [held_s], has_waited = await self.times.held_s("g", [WRITE], queries, [reply], began_s)
        return held_s, has_waited


@pytest.fixture
async def server() -> Server:
    """A server that knows how quick the statement is."""
    server = Server()
    for _ in range(50):
        assert (await server.write(0.001))[0] == pytest.approx(0.001)
    return server


async def test_what_a_write_waited_for_another_app_does_not_count(server: Server) -> None:
    for _ in range(5):
        assert await server.write(0.9, explained_s=0.88) == (pytest.approx(0.02), False)
        assert server.announced.usual_s[0] < 0.05


async def test_a_write_that_ran_into_its_limit_while_it_waited_is_no_timeout(server: Server) -> None:
    for _ in range(5):
        assert await server.write(0.3, explained_s=0.29, limit_s=0.25) == (pytest.approx(0.01), True)
    assert await server.write(0.5, explained_s=0.1, limit_s=0.25) == (0.0, True)  # the first surprise
    assert await server.write(0.5, explained_s=0.1, limit_s=0.25) == (pytest.approx(0.4), False)


async def test_a_long_time_of_a_quick_statement_counts_when_it_comes_again(server: Server) -> None:
    assert await server.write(0.9) == (0.0, False)
    for _ in range(40):
        await server.write(0.001)
    assert (await server.write(0.9))[0] == pytest.approx(0.9)
    server.clock.advance(61)
    for _ in range(60):
        await server.write(0.001)
    assert await server.write(0.9) == (0.0, False)


async def test_the_first_long_write_of_a_new_statement_counts() -> None:
    server = Server()
    assert (await server.write(0.9))[0] == pytest.approx(0.9)
    assert server.announced.usual_s == [0.1]  # so that it explains the waits of quick ones
    assert (await server.write(0.9))[0] == pytest.approx(0.9)
    assert server.announced.usual_s == [pytest.approx(0.9)]
