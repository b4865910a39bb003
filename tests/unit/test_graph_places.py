"""Places for reading queries: none is lost, and none is given that the rules for them forbid."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import GraphUnavailable
from graphweft_workers.drivers.falkordb import limiter as module
from graphweft_workers.drivers.falkordb.limiter import Places, Query
from graphweft_workers.drivers.falkordb.timing import FALKORDB_TIMING, FalkorDBTiming

QUICK, SLOW = 0.25, 500.0


class Server:
    """A server on which queries end when they are told to."""

    def __init__(self, *, threads: int = 2, timing: FalkorDBTiming = FALKORDB_TIMING) -> None:
        self.places = Places(threads=threads, clock=VIRTUAL, timing=timing)
        self.at: list[tuple[Query, asyncio.Future[float | None]]] = []
        """What it works on."""
        self.begun: list[str] = []

    def ask(self, app: str, statement: str, *, timeout_s: float = 60.0, to_end: bool = False) -> asyncio.Task[str]:
        return asyncio.create_task(self.places.run(app, statement, self._work, timeout_s=timeout_s, to_end=to_end))

    async def _work(self, query: Query) -> str:
        ends: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        self.at.append((query, ends))
        self.begun.append(query.statement)
        try:
            query.took_ms = await ends
        finally:
            self.at.remove((query, ends))
        return query.statement

    def end(self, number: int = 0, took_ms: float | None = None) -> None:
        self.at[number][1].set_result(took_ms)

    async def teach(self, app: str, statement: str, took_ms: float) -> None:
        """Let a statement run until it is known what it needs."""
        for _ in range(30):
            asked = self.ask(app, statement)
            await settle()
            self.end(-1, took_ms)
            await asked

    def count(self, app: str) -> int:
        return sum(query.app_id == app for query, _ in self.at)

    async def drain(self) -> None:
        while self.at:
            self.end()
            await settle()


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def ended(tasks: list[asyncio.Task[str]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


def assert_all_given_back(places: Places) -> None:
    assert not places._lanes
    assert not places._running
    assert places._free == module._ALL


@pytest.mark.parametrize(("threads", "unknown", "slow"), [(1, 2, 1), (2, 4, 1), (3, 6, 1), (8, 16, 4)])
async def test_an_app_gets_places_by_what_its_queries_need(threads: int, unknown: int, slow: int) -> None:
    server = Server(threads=threads)
    await server.teach("a", "quick", QUICK)
    await server.teach("a", "slow", SLOW)
    for statement, expected in (("new", unknown), ("quick", module._ALL), ("slow", slow)):
        asked = [server.ask("a", statement) for _ in range(100)]
        await settle()
        assert len(server.at) == expected
        await server.drain()
        assert await ended(asked) == [statement] * 100
    assert_all_given_back(server.places)


async def test_slow_queries_hold_up_no_quick_ones() -> None:
    server = Server()
    for app in "ab":
        await server.teach(app, "quick", QUICK)
        await server.teach(app, "slow", SLOW)
    slow = [server.ask("a", "slow") for _ in range(50)]
    quick = [server.ask(app, "quick") for app in "ab" for _ in range(20)]
    await settle()
    assert server.begun[-41:] == ["slow"] + ["quick"] * 40
    await server.drain()
    await ended(slow + quick)
    assert_all_given_back(server.places)


async def test_what_turns_out_to_be_slow_counts_for_those_that_wait_already() -> None:
    server = Server()
    asked = [server.ask("a", "new") for _ in range(50)]
    await settle()
    assert len(server.at) == 4
    for left in (4, 3, 2, 1, 1, 1):
        server.end(0, 10_000.0)
        await settle()
        assert len(server.at) == left
    await server.drain()
    assert await ended(asked) == ["new"] * 50
    assert_all_given_back(server.places)


async def test_what_turns_out_to_be_quick_counts_for_those_that_wait_already() -> None:
    server = Server(timing=FalkorDBTiming(slow_s=0.0))
    await server.teach("a", "late", SLOW)
    asked = [server.ask("a", "late") for _ in range(50)]
    for _ in range(40):
        await settle()
        server.end(0, 0.0)
    await settle()
    assert len(server.at) > 1
    await server.drain()
    await ended(asked)
    assert_all_given_back(server.places)


async def test_the_queries_of_an_app_begin_in_their_order() -> None:
    server = Server()
    asked = [server.ask("a", str(number)) for number in range(20)]
    await settle()
    for number in (9, 4, 19):
        asked[number].cancel()
    await server.drain()
    assert server.begun == [str(number) for number in range(20) if number not in (9, 4, 19)]
    await ended(asked)
    assert_all_given_back(server.places)


async def test_apps_take_turns() -> None:
    server = Server()
    for app in "abc":
        await server.teach(app, app, QUICK)
    asked = [server.ask("a", "a") for _ in range(200)]
    await settle()
    asked += [server.ask(app, app) for app in "bbcc"]
    await settle()
    assert server.count("a") == len(server.at) == module._ALL
    begun = len(server.begun)
    for _ in range(7):
        server.end()
        await settle()
    assert server.begun[begun:] == list("abcabca")
    await server.drain()
    await ended(asked)
    assert_all_given_back(server.places)


async def test_a_query_keeps_its_place_when_nobody_waits_for_it_any_longer() -> None:
    server = Server(threads=1)
    first = [server.ask("a", "new", timeout_s=60.0 if number else 0.0) for number in range(2)]
    await settle()
    first[1].cancel()
    assert [type(error) for error in await ended(first)] == [TimeoutError, asyncio.CancelledError]
    assert [query.wanted for query, _ in server.at] == [False, False]
    late = server.ask("a", "new", timeout_s=0.0)
    assert [type(error) for error in await ended([late])] == [TimeoutError]
    next_one = server.ask("a", "new")
    await settle()
    assert len(server.begun) == 2
    server.end()
    await settle()
    assert len(server.begun) == 3
    await server.drain()
    assert await next_one == "new"
    assert_all_given_back(server.places)


async def test_a_query_that_is_aborted_as_a_quick_one_is_asked_again_as_a_slow_one() -> None:
    server = Server()
    asked = server.ask("a", "new")
    await settle()
    first = server.at[0][0]
    assert not first.is_slow
    assert first.limit_s <= FALKORDB_TIMING.try_s
    first.aborted = True
    server.end(0, FALKORDB_TIMING.try_s * 1000)
    await settle()
    second = server.at[0][0]
    assert second.is_slow
    assert second.limit_s > FALKORDB_TIMING.try_s
    second.aborted = True
    server.end(0, 60_000.0)
    assert await asked == "new"  # once only
    assert server.begun == ["new", "new"]
    assert_all_given_back(server.places)


async def test_a_statement_stays_slow_although_its_next_queries_are_quick() -> None:
    server = Server()
    await server.teach("a", "mixed", QUICK)
    asked = server.ask("a", "mixed")
    await settle()
    server.end(0, SLOW)
    await asked
    await server.teach("a", "mixed", QUICK)
    again = server.ask("a", "mixed")
    await settle()
    assert server.at[0][0].is_slow
    await server.drain()
    await again
    assert_all_given_back(server.places)


async def test_what_fails_gives_its_place_back() -> None:
    async def fail(_: Query) -> None:
        raise ValueError("broken")

    places = Places(threads=1)
    for _ in range(100):
        with pytest.raises(ValueError, match="broken"):
            await places.run("a", "q", fail, timeout_s=60.0)
    assert_all_given_back(places)


@pytest.mark.parametrize("turns", range(6))
async def test_closing_ends_what_runs_and_what_waits(turns: int) -> None:
    server = Server()
    asked = [server.ask("a", "new") for _ in range(10)]
    await settle()
    server.end()
    for _ in range(turns):  # for somebody to get its place
        await asyncio.sleep(0)
    asked[6].cancel()
    await server.places.aclose()
    assert server.at == []
    first, *others = await ended(asked)
    assert first == "new" or isinstance(first, GraphUnavailable)
    expected: list[type[BaseException]] = [GraphUnavailable] * 9
    expected[5] = asyncio.CancelledError
    assert [type(each) for each in others] == expected
    await server.places.aclose()
    with pytest.raises(GraphUnavailable):
        await server.ask("a", "new")
    assert_all_given_back(server.places)


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 3)
    server = Server()
    for number in range(10):
        await server.teach(f"app-{number}", "q", SLOW)
    assert [app for app, _ in server.places._needs] == ["app-7", "app-8", "app-9"]
    assert_all_given_back(server.places)


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "end", "end", "cancel", "turn", "threads"]), st.integers(0, 1_000)),
    max_size=120,
)


async def play(steps: list[tuple[str, int]]) -> None:
    server = Server()
    asked: list[asyncio.Task[str]] = []
    for step, number in steps:
        if step == "ask":
            asked.append(server.ask("abc"[number % 3], "xyz"[number // 3 % 3]))
        elif step == "cancel" and asked:
            asked[number % len(asked)].cancel()
        elif step == "end":
            waiting = [ends for _, ends in server.at if not ends.done()]
            if waiting:
                waiting[number % len(waiting)].set_result([None, 0.1, 5.0, 30.0, 2_000.0][number % 5])
        elif step == "threads":
            server.places.threads = 1 + number % 8
        else:
            await asyncio.sleep(0)
        assert 0 <= server.places._free <= module._ALL
    await settle()
    for lane in server.places._lanes.values():
        assert lane.places or not lane.waiting, "nobody would wake these up"
    while server.at or not all(task.done() for task in asked):  # what was cancelled may be at the server still
        assert server.at
        await server.drain()
    assert_all_given_back(server.places)
    again = server.ask("a", "x")
    await settle()
    assert len(server.at) == 1
    await server.drain()
    await again


@given(steps=STEPS)
def test_however_queries_come_and_go_no_place_is_lost(steps: list[tuple[str, int]]) -> None:
    asyncio.run(play(steps))


async def test_a_query_to_its_end_keeps_its_place_after_the_time_of_its_caller() -> None:
    server = Server(threads=2)
    await server.teach("app", "slow", SLOW)  # an app may have one slow query for every second thread
    late = server.ask("app", "slow", timeout_s=0.001, to_end=True)
    await settle()
    waits = server.ask("app", "slow")
    done, _ = await asyncio.wait([late], timeout=0.2)
    assert not done
    assert server.begun.count("slow") == 31
    server.end()
    assert await late == "slow"
    await settle()
    assert server.count("app") == 1
    server.end()
    assert await waits == "slow"
    assert_all_given_back(server.places)


async def test_a_query_to_its_end_that_is_aborted_as_quick_is_asked_again() -> None:
    server = Server()
    asked = server.ask("app", "now slow", to_end=True)
    await settle()
    query, ends = server.at[0]
    query.aborted = True
    ends.set_exception(ValueError("aborted"))
    await settle()
    assert server.begun == ["now slow", "now slow"]
    assert server.at[0][0].is_slow
    server.end()
    assert await asked == "now slow"


async def test_a_query_to_its_end_that_fails_gives_its_place_back() -> None:
    server = Server()
    asked = server.ask("app", "broken", to_end=True)
    await settle()
    server.at[0][1].set_exception(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await asked
    assert_all_given_back(server.places)


async def test_closing_ends_a_query_to_its_end() -> None:
    server = Server()
    asked = server.ask("app", "one", to_end=True)
    await settle()
    await server.places.aclose()
    assert asked.cancelled()
    assert not server.at
