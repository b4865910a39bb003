"""The tests of a runtime run again when what they try has changed, and only then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.adapters.trials import RUNTIMES, state_of, unchanged_since
from tests.services.runtime_environments import ROOT

PLACES = ("client/graphweft/adapters", "runtimes/graphweft_runtimes", "tests/adapters", "docs/runtimes")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for place in PLACES:
        shutil.copytree(ROOT / place, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "seen"),
    [
        ("runtimes/graphweft_runtimes/crewai/adapter.py", True),
        ("runtimes/graphweft_runtimes/chat_runs.py", True),
        ("client/graphweft/adapters/core.py", True),
        ("tests/adapters/crewai/scenes.py", True),
        ("tests/adapters/crewai/requirements.txt", True),
        ("tests/adapters/shared/kit.py", True),
        ("tests/adapters/contract.py", True),
        ("docs/runtimes/crewai.md", True),
        ("runtimes/graphweft_runtimes/langchain/adapter.py", False),
        ("tests/adapters/langchain/scenes.py", False),
        ("docs/runtimes/langchain.md", False),
    ],
)
def test_a_change_of_what_a_runtime_has_is_seen(tree: Path, file: str, seen: bool) -> None:
    before = state_of("crewai", tree)
    with (tree / file).open("a") as changed:
        changed.write("\n")
    assert (state_of("crewai", tree) != before) == seen


def test_every_runtime_has_an_adapter_and_a_page_of_that_state() -> None:
    assert len({state_of(folder) for folder in RUNTIMES}) == len(RUNTIMES) > 10
    places = (ROOT / "client/graphweft/adapters", ROOT / "runtimes/graphweft_runtimes")
    assert [each for each in RUNTIMES if not any((place / each).is_dir() for place in places)] == []


def test_a_runtime_is_unchanged_since_the_day_of_its_state(tmp_path: Path) -> None:
    tried = tmp_path / "tried.json"
    assert unchanged_since("ag2", tried) == ""
    tried.write_text(
        json.dumps(
            {"ag2": {"day": "2026-01-02", "files": state_of("ag2")}, "otel": {"day": "2026-01-02", "files": "x"}}
        )
    )
    assert unchanged_since("ag2", tried) == "2026-01-02"
    assert unchanged_since("otel", tried) == ""
    assert unchanged_since("crewai", tried) == ""
