"""Conversations of real runtimes: those of a runtime are played in its environment, and give the same events.

A program ``tests/adapters/RUNTIME/scenes.py`` has the scenes; ``tests/adapters/shared/kit.py`` says what comes of one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.services.runtime_environments import ROOT, adapter_tests

__all__ = ("PLANNER", "SOURCES", "WRITER", "WRITER_FAILS", "Play", "Player", "player", "run_beside_up", "said")

type Play = Callable[..., dict[str, Any]]
"""Plays a scene, and returns what came of it."""
type Player = Callable[[str], Play]
"""Takes an extra."""

_FOLDERS: Final = ("client", "contracts", "tests/adapters/shared")
SOURCES: Final = {"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in _FOLDERS)}
"""The adapter that is tested is the one of this tree, whatever the environment was made from."""

PLANNER: Final = (
    "agent.turn_start Planner 1",
    "model.call_complete Planner 1 True",
    "tool.call_start Planner 1 weather",
    "tool.call_complete Planner 1 True weather",
    "model.call_complete Planner 1 True",
    "tool.call_start Planner 1 book",
    "tool.call_complete Planner 1 False book",
    "model.call_complete Planner 1 True",
    "tool.call_start Planner 1 to_writer",
    "tool.call_complete Planner 1 True to_writer",
    "agent.turn_complete Planner 1 True handed_off",
    "workflow.phase_complete Planner Writer",
)
"""The planner's turn: ``weather(city="Oslo")`` returns "sunny in Oslo", ``book(room="7")`` raises "7 is taken", then it
hands over to the writer, by a tool where the runtime does that by tools.
"""
WRITER: Final = (
    "agent.turn_start Writer 2",
    "model.call_complete Writer 2 True",
    "agent.turn_complete Writer 2 True completed",
)
"""The writer answers "Draft done."."""
WRITER_FAILS: Final = (
    "agent.turn_start Writer 2",
    "model.call_complete Writer 2 False ConnectionError",
    "agent.turn_complete Writer 2 False failed ConnectionError",
    "workflow.error Writer 2 ConnectionError",
)
"""The writer's model raises ``ConnectionError("no model")``."""
_SHOWN: Final = (
    "phase_name", "next_phase", "agent_name", "turn_number", "success", "tool_name", "outcome", "error_type",
)  # fmt: skip


@pytest.fixture(scope="session")
def player(runtime_python: Callable[[str], Path]) -> Iterator[Player]:
    """Return what plays the scenes of an extra in its environment, each scene once.

    The program runs once a session and imports its runtime; each scene is a fork of it.
    """
    with contextlib.ExitStack() as stack:

        @functools.cache
        def made(extra: str) -> Play:
            return stack.enter_context(_playing(runtime_python(extra), adapter_tests(extra) / "scenes.py"))

        yield made


@contextlib.contextmanager
def _playing(python: Path, script: Path) -> Iterator[Play]:
    with (
        tempfile.TemporaryDirectory(prefix="graphweft-play-") as folder,
        subprocess.Popen(
            [str(python), str(script)],
            cwd=ROOT, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as stage,
    ):  # fmt: skip

        @functools.cache
        def play(*command: str) -> dict[str, Any]:
            where = Path(tempfile.mkdtemp(dir=folder))
            assert stage.stdin is not None
            assert stage.stdout is not None
            print(json.dumps([command, str(where)]), file=stage.stdin, flush=True)
            code = stage.stdout.readline()
            assert code, f"{script} has ended"
            assert code == "0\n", (where / "errors").read_text()[-3000:]
            found: dict[str, Any] = json.loads((where / "output").read_text().splitlines()[-1])
            return found

        yield play  # leaving the block closes its input, which ends it


def said(found: dict[str, Any]) -> list[str]:
    """Return the events of a scene in short: the type and the fields that tell them apart."""
    return [
        " ".join([event["type"], *(str(event[name]) for name in _SHOWN if name in event)]) for event in found["events"]
    ]


def run_beside_up(folder: Path, python: Path, script: str) -> str:
    """Run a script of ``folder`` beside bus, graph, worker and responder, and return what it printed."""
    up = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "up"],
        cwd=folder, env=_environment(os.environ.get("PYTHONPATH")), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    try:
        assert up.stdout is not None
        assert "graphweft is up" in up.stdout.readline()
        done = subprocess.run(
            [str(python), script],
            cwd=folder, env=_environment(), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout
    finally:
        up.terminate()
        up.wait(timeout=60)
        assert up.stdout is not None
        up.stdout.close()


def _environment(path: str | None = SOURCES["PYTHONPATH"]) -> dict[str, str]:
    """Return the environment without settings of graphweft's."""
    left = {name: value for name, value in os.environ.items() if not name.startswith("GRAPHWEFT_")}
    return left | ({} if path is None else {"PYTHONPATH": path})
