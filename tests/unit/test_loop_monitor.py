"""The debug switch for event loops: what counts as a hold, and what it says about it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import override

import pytest
from tests.services.loop_holds import check_log

from graphweft_workers.processes.loop_monitor import Hold, LoopMonitor

LIMIT_S = 0.02


class Monitor(LoopMonitor):
    """Says when it has noted a stack, so that a test need not hope that the other thread came in time."""

    noted = False

    @override
    def _note(self) -> None:
        super()._note()
        self.noted = True


def work(seconds: float) -> None:
    """Use the processor for so long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def holds_of(job: Callable[[Monitor], Awaitable[None]]) -> list[Hold]:
    found: list[Hold] = []
    monitor = Monitor(LIMIT_S, found.append)
    with monitor.watching():
        await asyncio.ensure_future(job(monitor))
    return found


async def test_a_step_over_the_limit_is_found_with_its_stack() -> None:
    async def dear_step(monitor: Monitor) -> None:
        while not monitor.noted:
            work(LIMIT_S)
        work(LIMIT_S)

    (hold,) = await holds_of(dear_step)
    assert (hold.kind, hold.cpu_ms > LIMIT_S * 1_000) == ("held", True)
    assert hold.work.endswith("dear_step")
    assert "dear_step" in hold.stack[0]


async def test_a_deep_stack_says_whose_work_it_is_and_where_it_was() -> None:
    def deep(monitor: Monitor, calls: int) -> None:
        if calls:
            deep(monitor, calls - 1)
            return
        while not monitor.noted:
            work(LIMIT_S)

    async def dear_step(monitor: Monitor) -> None:
        deep(monitor, 100)

    (hold,) = await holds_of(dear_step)
    assert "dear_step" in hold.stack[0]
    assert len(hold.stack) < 30
    assert "deep" in hold.stack[-2]


async def test_steps_within_the_limit_are_none_however_many() -> None:
    async def small_steps(_: Monitor) -> None:
        for _ in range(20):
            work(LIMIT_S / 4)
            await asyncio.sleep(0)

    assert await holds_of(small_steps) == []


async def test_waiting_for_a_processor_is_none() -> None:
    async def waits(_: Monitor) -> None:
        await asyncio.to_thread(work, LIMIT_S * 3)

    assert [hold for hold in await holds_of(waits) if hold.kind == "held"] == []


async def test_a_thread_that_keeps_the_interpreter_lock_is_found() -> None:
    text = "[" + "1," * 2_000_000 + "1]"
    found: list[Hold] = []
    with LoopMonitor(LIMIT_S, found.append).watching():
        while not (locked := [hold for hold in found if hold.kind == "locked_out"]):
            await asyncio.to_thread(json.loads, text)
    assert locked[0].work.startswith("asyncio_")
    assert locked[0].cpu_ms > LIMIT_S * 1_000


async def test_nothing_is_measured_after_the_block() -> None:
    async def nothing(_: Monitor) -> None:
        pass

    before = vars(asyncio.Handle)["_run"]
    await holds_of(nothing)
    assert vars(asyncio.Handle)["_run"] is before


def entry(kind: str, *stack: str) -> str:
    return json.dumps({"event": "event_loop_held", "kind": kind, "cpu_ms": 150.0, "stack": "\n".join(stack)})


OURS = "/x/graphweft_workers/engine/worker.py:1 in MutationWorker.run"


@pytest.mark.parametrize(
    ("line", "fails"),
    [
        (entry("held", OURS, "/x/json/decoder.py:3 in decode"), True),
        (entry("held", OURS, "<frozen importlib._bootstrap>:3 in _load"), False),
        (entry("held", "/x/aiokafka/client.py:1 in read"), False),
        (entry("held"), False),
        (entry("garbage"), False),
        (entry("locked_out", OURS), False),
        ("no JSON", False),
    ],
)
def test_which_holds_of_a_log_fail_a_test(line: str, fails: bool, tmp_path: Path) -> None:
    log = tmp_path / "role.log"
    log.write_text(line + "\n")
    if not fails:
        check_log(log)
        return
    with pytest.raises(AssertionError):
        check_log(log)
