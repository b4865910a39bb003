"""Processes that handle many events search for garbage less often."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from typing import Literal

import pytest

from graphweft_workers.cli import main
from graphweft_workers.processes import hosting
from graphweft_workers.processes import run as roles
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.garbage_collection import collect_less_often, leave_out_the_start


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


def test_garbage_is_searched_less_often_and_not_among_old_objects() -> None:
    frozen = gc.get_freeze_count()
    collect_less_often()
    assert gc.get_threshold()[0] > 10_000
    assert gc.get_freeze_count() > frozen + 1_000


def test_a_second_call_keeps_newer_objects_in_the_search() -> None:
    collect_less_often()
    frozen = gc.get_freeze_count()
    newer = [list[int]() for _ in range(5_000)]
    collect_less_often()
    assert gc.get_freeze_count() <= frozen
    assert len(newer) == 5_000


def test_what_a_start_makes_after_that_is_not_searched_either() -> None:
    collect_less_often()
    frozen = gc.get_freeze_count()
    loaded = [list[int]() for _ in range(5_000)]
    leave_out_the_start()
    assert gc.get_freeze_count() >= frozen + len(loaded)
    assert gc.get_count()[0] < len(loaded)


def test_a_process_that_searches_often_keeps_to_that() -> None:
    frozen = gc.get_freeze_count()
    leave_out_the_start()
    assert gc.get_freeze_count() <= frozen


def test_a_command_leaves_no_objects_to_search_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = gc.get_freeze_count()
    monkeypatch.setattr(sys, "argv", ["graphweft", "--version"])
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    with pytest.raises(SystemExit):
        main()
    assert gc.get_freeze_count() > frozen + 1_000


class Process:
    """A role that notes the settings of its process, instead of running."""

    def __init__(self, settings: object) -> None:
        self.found: tuple[float, int] = (0.0, 0)
        self.ends = asyncio.Event()

    async def run(self, **_: object) -> None:
        self.found = sys.getswitchinterval(), gc.get_threshold()[0]


@pytest.mark.parametrize("role", ["mutation", "injection", "memory"])
async def test_a_thread_of_a_role_soon_gives_way_to_its_event_loop(
    role: Literal["mutation", "injection", "memory"], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, process = sys.getswitchinterval(), Process(None)
    monkeypatch.setattr(hosting, "role_app", lambda *_: process)
    sys.setswitchinterval(0.005)  # Python's default
    try:
        await roles.run_service(role, Settings())
    finally:
        sys.setswitchinterval(before)
    assert process.found[0] <= 0.001
    assert process.found[1] > 10_000
