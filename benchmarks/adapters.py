"""(j) What an adapter adds to an agent's turn: while the bus answers at once, and while it hangs.

Real runtimes with a model that answers at once, each in the environment that the tests have made for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
from pathlib import Path
from typing import Final

from tests.services.runtime_environments import adapter_tests, make, ready

from benchmarks.harness import Bench, Died, Result, Skip, Spread, in_turn
from benchmarks.services import Services

ROW: Final = "j"
ROOT: Final = Path(__file__).parents[1]
RUNTIMES: Final = (
    "ag2-classic", "ag2", "agent-framework", "crewai", "google-adk", "langchain", "llama-index", "openai-agents",
    "pydantic-ai",
)  # fmt: skip
"""The extras, each with an environment and a program with scenes."""
BUDGET_MS: Final = 50
TURNS: Final = 40
_SOURCES: Final = [str(ROOT / part) for part in ("client", "contracts", "runtimes", "tests/adapters/shared")]
_WAYS: Final = ("none", "works", "hangs")
_WARM: Final = 3
"""Turns at the beginning that do not count: they import, and open what is opened once."""


async def run(bench: Bench, services: Services) -> list[Result]:
    """Return two lines for each runtime whose environment is there."""
    found = {extra: make(extra) for extra in RUNTIMES if ready(extra)}
    if not found:
        raise Skip("no runtime is installed: python -m tests.services.runtime_environments ag2-classic makes one")
    return [line for extra, python in found.items() for line in await _measured(bench, extra, python)]


async def _measured(bench: Bench, extra: str, python: Path) -> list[Result]:
    times: dict[str, list[list[float]]] = {way: [] for way in _WAYS}
    for number in bench.turns(extra):
        for way in in_turn(_WAYS, number):
            times[way].append(await _turns(extra, python, way))
        shown = ", ".join(f"{way} {statistics.median(rounds[-1]):.2f}" for way, rounds in times.items())
        bench.say(f"  [dim]{extra} {number + 1}/{bench.rounds}[/] {shown} ms a turn")
    medians = {way: [statistics.median(turns) for turns in rounds] for way, rounds in times.items()}
    longest = {way: [max(turns) for turns in rounds] for way, rounds in times.items()}
    return [
        Result(
            row=ROW,
            title=f"{extra}: added by the adapter, bus answers at once / budget of {BUDGET_MS} ms",
            ratio=Spread.of([(b - a) / BUDGET_MS for a, b in zip(medians["none"], medians["works"], strict=True)]),
            of=("turn with", Spread.of(medians["works"])),
            to=("turn without", Spread.of(medians["none"])),
            unit="ms",
            note=f"median of {TURNS} turns a round",
        ),
        Result(
            row=ROW,
            title=f"{extra}: added at most, bus hangs / budget of {BUDGET_MS} ms",
            ratio=Spread.of([(b - a) / BUDGET_MS for a, b in zip(medians["none"], longest["hangs"], strict=True)]),
            of=("longest turn with", Spread.of(longest["hangs"])),
            to=("turn without", Spread.of(medians["none"])),
            unit="ms",
            note=f"longest of {TURNS} turns a round; half of them took {statistics.median(medians['hangs']):.1f} ms",
        ),
    ]


async def _turns(extra: str, python: Path, way: str) -> list[float]:
    """Return the milliseconds of each turn of an agent whose adapter has a bus of that way."""
    process = await asyncio.create_subprocess_exec(
        "env", f"PYTHONPATH={os.pathsep.join(_SOURCES)}", "GRAPHWEFT_CONTEXT=on", "GRAPHWEFT_CAPTURE=on",
        str(python), str(adapter_tests(extra) / "scenes.py"), "turns", f"way={way}", f"count={TURNS + _WARM}",
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await process.communicate()
    if process.returncode != 0:
        raise Died(f"{extra}: {errors.decode(errors='replace')[-500:]}")
    times: list[float] = json.loads(output.splitlines()[-1])["ms"]
    return times[_WARM:]
