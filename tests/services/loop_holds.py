"""What integration tests hold about event loops: no piece of work of ours takes one for long.

The bar is 20 ms on a quiet machine; the benchmark of dear work looks for that. Tests share the processors with each
other, and then the same work takes more processor time (cold caches, shared cores). So a test fails at ten times the
bar, for what certainly is a hold: work whose stack was seen and began in our code, without the import of modules and
the work of commands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from graphweft_workers.processes.loop_monitor import Hold, LoopMonitor

__all__ = ("LIMIT_MS", "SWITCH", "check_log")

LIMIT_MS: Final = 200
SWITCH: Final = {"GRAPHWEFT_LOOP_LIMIT_MS": str(LIMIT_MS)}
"""The debug switch in the environment of a role that a test starts; see ``check_log``."""
_PACKAGES: Final = (
    "/graphweft_contracts/",
    "/graphweft_rules/",
    "/graphweft_workers/",
    "/client/graphweft/",
    "/graphweft_runtimes/",
)
_MAY_HOLD: Final = ("importlib._bootstrap", "/graphweft_workers/cli/", "collect_less_often", "/fork_server.py")
"""Imports; commands, whose loop is their own; the search for cycles at a start, here among all that pytest has; the
wait for a process that the fork server of the tests starts."""
_FOLDERS: Final = ("acceptance", "chaos", "edges", "kafka", "neo4j", "redis")
_MONITOR: Final = pytest.StashKey[list[Hold]]()


def is_ours(kind: str, stack: tuple[str, ...]) -> bool:
    """Tell whether a hold fails a test; the stack of a task begins with the task's coroutine."""
    if kind != "held" or not stack or any(each in line for line in stack for each in _MAY_HOLD):
        return False
    return any(package in stack[0] for package in _PACKAGES)


def check_log(log: Path) -> None:
    """Raise ``AssertionError`` if the log of a role, in JSON, tells of a hold of its event loop."""
    for line in log.read_text("utf-8", "replace").splitlines():
        if '"event_loop_held"' in line:
            entry = json.loads(line)
            assert not is_ours(entry["kind"], tuple(entry["stack"].splitlines())), line


@pytest.fixture(scope="session", autouse=True)
def _monitor(request: pytest.FixtureRequest) -> Iterator[None]:
    found: list[Hold] = []
    request.config.stash[_MONITOR] = found
    with LoopMonitor(LIMIT_MS / 1000, found.append).watching():
        yield


@pytest.fixture(autouse=True)
def _no_holds(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which a task of ours held the loop: workers and responders run in the loop of many tests."""
    found = request.config.stash[_MONITOR]
    found.clear()
    yield
    if request.path.parent.name in _FOLDERS:
        assert not [hold for hold in found if is_ours(hold.kind, hold.stack)]
