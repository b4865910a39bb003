"""Names with characters beyond ASCII, where Python reads names as ASCII: an error says so, without a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.services.environment import clean_environment

from graphweft_rules.files.findings import RulesError
from graphweft_rules.files.loader import discover

ROOT = Path(__file__).parents[2]
ADVICE = "set PYTHONUTF8=1"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(LC_ALL="C", PYTHONUTF8="0")
    environment.pop("PYTHONIOENCODING", None)
    return subprocess.run(
        [sys.executable, "-m", "graphweft_workers.cli", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with rules, also below another name that is not ASCII, and a file of one event."""
    found = tmp_path / "ünï"
    for name in ("workflows/support", "wörkflows/flöw"):
        shutil.copytree(ROOT / "workers/graphweft_workers/new_project/template/workflows/support", found / name)
    (found / "é.jsonl").write_text(
        '{"specversion": "1.0", "id": "1", "source": "/t", "type": "a.b", "appid": "a", "chatid": "c"}'
    )
    return found


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("status",), 2, ADVICE),  # the data folder lies in the folder
        (("status", "--data", "dätä"), 2, ADVICE),
        (("emit", "é.jsonl"), 2, ADVICE),
        (("rules", "push", "wörkflows"), 2, ADVICE),
        (("up", "--rules", "workflows"), 2, ADVICE),
        (("lint", "wörkflows"), 2, ADVICE),
        (("try", "é.jsonl", "--rules", "workflows"), 1, "nothing"),
        (("query", "--app", "a", "RETURN 'ü'"), 2, ADVICE),
    ],
)
def test_no_name_ends_a_command_with_a_traceback(
    folder: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = run(folder, *arguments)
    assert "Traceback" not in done.stderr
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr


def test_a_workflow_whose_name_is_not_text_is_refused(tmp_path: Path) -> None:
    workflow = Path(os.fsdecode(os.fsencode(tmp_path) + b"/fl\xf6w"))
    workflow.mkdir()
    assert discover(tmp_path) == {}
    (workflow / "graph_injection.yaml").write_text("version: '1.0'")
    with pytest.raises(RulesError, match=r"the name of the folder is not UTF-8: rename it$"):
        discover(tmp_path)
