"""A role whose servers keep it from ending says which one it waits for, and ends all the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs
from tests.services.virtual_time import VIRTUAL

from graphweft_workers.processes.late_end import Look, end_late
from graphweft_workers.support.timing import TIMING

END = TIMING.end


async def hung() -> Mapping[str, bool]:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def look() -> Mapping[str, bool]:
    return {"bus": True, "graph": False}


async def fails() -> Mapping[str, bool]:
    raise OSError("no more descriptors")


async def said(look: Look, ends_after_s: float) -> tuple[list[tuple[str, object]], list[int]]:
    """Return what is said of a role that needs so long to end, and with which codes it is cut off."""
    ends, codes = asyncio.Event(), list[int]()
    with capture_logs() as logs:
        late = asyncio.create_task(end_late(ends, look, clock=VIRTUAL, leave=codes.append))
        await VIRTUAL.sleep(3600)
        assert not late.done()
        ends.set()
        await VIRTUAL.sleep(ends_after_s)
        late.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await late
    return [(entry["event"], entry.get("waits_for")) for entry in logs], codes


async def test_a_role_that_ends_in_time_says_nothing() -> None:
    assert await said(look, END.said_s - 1) == ([], [])


async def test_a_role_that_ends_late_says_what_it_waits_for() -> None:
    assert await said(look, END.most_s - 1) == ([("role_ends_late", ["graph"])], [])


@pytest.mark.parametrize(("question", "waits_for"), [(look, ["graph"]), (hung, []), (fails, [])])
async def test_a_role_is_cut_off_whatever_its_servers_do(question: Look, waits_for: list[str]) -> None:
    found = [("role_ends_late", waits_for), ("role_cut_off", None)]
    assert await said(question, END.most_s + 1) == (found, [1])
