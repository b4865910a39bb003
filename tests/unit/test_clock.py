"""Time is read from the clock that is passed in; and the virtual time in which unit tests run."""

from __future__ import annotations

import ast
import asyncio
import functools
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.services.virtual_time import VirtualClock, run

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock, PastClock

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("contracts/graphweft_contracts", "rules/graphweft_rules", "client/graphweft"),
    *("runtimes/graphweft_runtimes", "workers/graphweft_workers"),
)
CLOCK = "contracts/graphweft_contracts/clock.py"
READS = frozenset({"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns", "process_time"})
DATES = frozenset({"now", "today", "utcnow"})
EDGES = (
    *(f"workers/graphweft_workers/{folder}/" for folder in ("cli", "console", "gateway", "mcp", "processes", "wiring")),
    "client/graphweft/adapters/",  # of callbacks, which come with no clock
    "runtimes/",
    "client/graphweft/memory.py",
    "contracts/graphweft_contracts/",  # the time of what is made now
    "workers/graphweft_workers/imports/",
    "workers/graphweft_workers/testing/",  # waits for real servers
)
"""Where the clock of the machine enters."""


@functools.cache
def times() -> Mapping[str, tuple[list[int], list[int]]]:
    """Return for each module the lines that read a clock, and those that ask the clock of the machine."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
            reads = [getattr(node, "lineno", 0) for node in nodes if reads_time(node)]
            asks = [getattr(node, "lineno", 0) for node in nodes if asks_the_machine(node)]
            found[str(path.relative_to(ROOT))] = (reads, asks)
    return found


def reads_time(node: ast.AST) -> bool:
    """Tell whether a node reads a clock: of the module ``time``, of ``datetime``, or of the event loop."""
    match node:
        case ast.Attribute(value=ast.Name(id="time"), attr=name):
            return name in READS
        case ast.ImportFrom(module="time", names=names):
            return any(each.name in READS for each in names)
        case ast.Attribute(value=ast.Name(id="datetime"), attr=name):
            return name in DATES
        case ast.Call(func=ast.Attribute(attr="time", value=ast.Name(id="loop") | ast.Call()), args=[], keywords=[]):
            return True
        case _:
            return False


def asks_the_machine(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "SYSTEM_CLOCK"


def test_only_the_clock_reads_the_time() -> None:
    found = [f"{name}:{line}" for name, (reads, _) in times().items() if name != CLOCK for line in reads]
    assert found == [], "take a `Clock` as a parameter, with SYSTEM_CLOCK as the default"


def test_only_edges_ask_the_clock_of_the_machine() -> None:
    found = [f"{name}:{line}" for name, (_, asks) in times().items() if not name.startswith(EDGES) for line in asks]
    assert found == [], "use the clock that is passed in"


@pytest.mark.parametrize(
    "text",
    ["time.monotonic()", "f(clock=time.time)", "datetime.now(UTC)", "loop.time()", "asyncio.get_running_loop().time()",
     "from time import perf_counter"],
)  # fmt: skip
def test_each_way_to_read_a_clock_is_found(text: str) -> None:
    assert any(reads_time(node) for node in ast.walk(ast.parse(text)))


async def test_a_wait_takes_no_time_and_ends_in_order(clock: VirtualClock) -> None:
    began, ended = clock.monotonic(), list[float]()

    async def wait(seconds: float) -> None:
        await clock.sleep(seconds)
        ended.append(clock.monotonic() - began)

    await asyncio.gather(*(wait(seconds) for seconds in (3_600.0, 1.0, 86_400.0)))
    assert ended == [1.0, 3_600.0, 86_400.0]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await asyncio.Event().wait()
    assert clock.monotonic() - began == 86_410.0


async def test_time_stands_still_while_a_thread_works(clock: VirtualClock) -> None:
    began, go = clock.monotonic(), threading.Event()
    waiting = asyncio.create_task(asyncio.to_thread(go.wait))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(go.set)
    async with asyncio.timeout(120):
        assert await waiting
    assert clock.monotonic() == began


def test_time_goes_on_where_the_last_loop_stopped(clock: VirtualClock) -> None:
    began = clock.monotonic()
    for _ in range(2):
        run(clock.sleep(5))
    assert clock.monotonic() == began + 10
    assert (clock.now() - VirtualClock().now()).total_seconds() == clock.monotonic()


async def test_the_past_stands_still_and_its_waits_go_on(clock: VirtualClock) -> None:
    past: Clock = PastClock(SYSTEM_CLOCK.now(), clock)
    before, began = past.now(), past.monotonic()
    await past.sleep(5)
    assert (past.now(), past.monotonic() - began) == (before, 5)
