"""Runs scenes: conversations with the real runtime of an adapter, in the runtime's own environment.

A program ``tests/adapters/RUNTIME/scenes.py`` has the scenes; ``tests/adapters/shared/kit.py`` makes their results.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import pytest
from tests.services.runtime_environments import ROOT, adapter_tests

__all__ = ("SOURCES", "RunScene", "SceneRunner", "event_lines", "page_block", "run_with_services", "scene_runner")


class RunScene(Protocol):
    """Runs a scene, and returns its result."""

    def __call__(self, scene: str, /, **options: str) -> dict[str, Any]:
        """``scene`` has the name and positional arguments; options are named arguments, without empty ones."""
        ...


type SceneRunner = Callable[[str], RunScene]
"""Takes an extra."""

_FOLDERS: Final = ("client", "contracts", "runtimes", "tests/adapters/shared")
SOURCES: Final = {"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in _FOLDERS)}
"""The adapter that is tested is the one of this tree, whatever the environment was made from."""
_SHOWN: Final = (
    "phase_name", "next_phase", "agent_name", "turn_number", "success", "tool_name", "outcome", "error_type",
)  # fmt: skip


@pytest.fixture(scope="session")
def scene_runner(runtime_python: Callable[[str], Path]) -> Iterator[SceneRunner]:
    """Return a function that runs the scenes of an extra in its environment, each scene once.

    The program runs once a session and imports its runtime; each scene is a fork of it.
    """
    with contextlib.ExitStack() as stack:

        @functools.cache
        def made(extra: str) -> RunScene:
            return stack.enter_context(_running(runtime_python(extra), adapter_tests(extra) / "scenes.py"))

        yield made


@contextlib.contextmanager
def _running(python: Path, script: Path) -> Iterator[RunScene]:
    with (
        tempfile.TemporaryDirectory(prefix="graphweft-scenes-") as folder,
        subprocess.Popen(
            [str(python), str(script)],
            cwd=ROOT, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as program,
    ):  # fmt: skip

        @functools.cache
        def run(*command: str) -> dict[str, Any]:
            where = Path(tempfile.mkdtemp(dir=folder))
            assert program.stdin is not None
            assert program.stdout is not None
            print(json.dumps([command, str(where)]), file=program.stdin, flush=True)
            code = program.stdout.readline()
            assert code, f"{script} has ended"
            assert code == "0\n", (where / "errors").read_text()[-3000:]
            found: dict[str, Any] = json.loads((where / "output").read_text().splitlines()[-1])
            return found

        def run_scene(scene: str, /, **options: str) -> dict[str, Any]:
            return run(*scene.split(), *(f"{name}={value}" for name, value in sorted(options.items()) if value))

        yield run_scene  # leaving the block closes its input, which ends it


def event_lines(found: dict[str, Any]) -> list[str]:
    """Return the events of a scene as lines: the type and the fields that distinguish them."""
    return [
        " ".join([event["type"], *(str(event[name]) for name in _SHOWN if name in event)]) for event in found["events"]
    ]


def page_block(page: str, language: str, first_line: str = "") -> str:
    """Return the one block of a language on a page of ``docs/runtimes``."""
    text = (ROOT / f"docs/runtimes/{page}.md").read_text("utf-8")
    [block] = re.findall(rf"```{language}\n({re.escape(first_line)}.*?)```", text, re.DOTALL)
    return str(block)


def run_with_services(folder: Path, python: Path, script: str, **more: str) -> str:
    """Run a script of ``folder`` beside bus, graph, worker and responder, and return what it printed.

    ``more`` are further environment variables of the script.
    """
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
            cwd=folder, env=_environment() | more, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout
    finally:
        up.terminate()
        up.wait(timeout=60)
        assert up.stdout is not None
        up.stdout.close()


def _environment(path: str | None = SOURCES["PYTHONPATH"]) -> dict[str, str]:
    """Return the environment without settings of graphweft."""
    left = {name: value for name, value in os.environ.items() if not name.startswith("GRAPHWEFT_")}
    return left | ({} if path is None else {"PYTHONPATH": path})
