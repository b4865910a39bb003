"""``graphweft up`` brings the default rules: they are active and visible until there is a workflow of their name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.runner import SOURCES
from tests.services.commands import inside
from tests.services.runtime_environments import RUNTIME_ENVIRONMENT_S

from graphweft import SyncClient
from graphweft.transports.embedded import embedded_url
from graphweft_workers.new_project import default_rule_files

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GRAPHWEFT_")}
BUDGET_MS = 120_000
OWN = 'version: "1.0"\nmutation_rules: []\n'


OLDER = """
import asyncio, json, logging, sys
from graphweft import Client, SyncClient
from graphweft.adapters.core import Adapter

logging.disable()
with SyncClient(app_id="acme", budget_ms=120_000) as client:
    for chat in ("c1", "c2"):
        with client.turn(agent="assistant", chat=chat, user="ada", message="Where is my lamp?") as turn:
            turn.answer("I will look.")

async def more():
    async with Client(app_id="acme", budget_ms=1) as client, client.turn(agent="assistant", chat="c3") as short:
        short.tool("refund")
    async with Client("redis://127.0.0.1:1", app_id="acme", budget_ms=5_000) as client:
        async with client.turn(agent="assistant", chat="c4") as away:
            away.answer("Hello.")
        await client.aclose(drain_s=0)
    return short.context.reason, away.context.reason

short, away = asyncio.run(more())
adapter = Adapter(app_id="acme", chat_id="c5", workflow_name="default", budget_ms=1)
late = adapter.context({}, "assistant").reason
adapter.close()
print(json.dumps([sys.version_info[:2], turn.context.text, short, late, away]))
"""


@contextmanager
def up(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run ``graphweft up``; gives its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "up", *options],
        cwd=folder, env=ENVIRONMENT | {"GRAPHWEFT_LOG_LEVEL": "warning"}, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline(), process
    finally:
        process.terminate()
        process.communicate(timeout=120)


def told(folder: Path, *words: str) -> Any:
    return json.loads(inside([*words, "--json"], ENVIRONMENT, folder=folder).out)


def talk(folder: Path, message: str, chat: str, user: str = "ada") -> str:
    """Take a turn, and return its context."""
    with SyncClient(embedded_url(folder / ".graphweft"), app_id="acme", budget_ms=BUDGET_MS) as client:
        with client.turn(agent="assistant", chat=chat, user=user, message=message) as turn:
            turn.tool("refund", error="no such order")
            turn.answer("I will look.")
        with client.turn(agent="assistant", chat=f"{chat}-next", user=user, message=message) as turn:
            turn.answer("It is on its way.")
        return turn.context.text


def test_the_first_context_without_any_rules_is_not_empty(tmp_path: Path) -> None:
    with up(tmp_path) as (line, process):
        assert line == (
            "graphweft is up on .graphweft with the default rules of the workflow 'default', because workflows holds "
            "none; Ctrl-C stops it\n"
        )
        text = talk(tmp_path, "Where is my lamp?", "c1")
        for part in ("Where is my lamp?", "I will look.", "**refund**: 1"):
            assert part in text
        assert re.search(r"\d\.\d{6}", text) is None, "no time has microseconds"
        assert "lamp" not in talk(tmp_path, "Where is my desk?", "c2", user="bob")
        assert told(tmp_path, "dlq", "list") == []

        [listed] = told(tmp_path, "rules", "list")
        assert (listed["default"], listed["active"], listed["scope"]) == (True, True, "*")
        assert [each["default"] for each in told(tmp_path, "status")["rules"]] == [True]
        for command in (["rules", "list"], ["status"]):
            assert f"{listed['rules'][:12]} (default rules)" in inside(command, ENVIRONMENT, folder=tmp_path).out

        rules = tmp_path / "workflows/Support/graph_injection.yaml"
        rules.parent.mkdir(parents=True)
        rules.write_text(OWN)
        assert process.stdout is not None
        activated = next(line for line in process.stdout if not line.startswith("console: "))
        assert activated.endswith("are active: Support/graph_injection.yaml\n")
        assert "Where is my lamp?" in talk(tmp_path, "Where is my lamp?", "c9"), "the default rules go on"
        [active] = told(tmp_path, "status")["rules"]
        assert (active["workflows"], active["with_default_rules"], active["default"]) == (
            ["Support", "default"], True, False,
        )  # fmt: skip
        assert "Support, default (default rules)" in inside(["status"], ENVIRONMENT, folder=tmp_path).out
        (tmp_path / "workflows/default").mkdir()
        assert "the default rules are not active any more" in process.stdout.readline()
        assert process.stdout.readline().startswith("rules ")
        (tmp_path / "workflows/default").rmdir()
        assert process.stdout.readline().startswith("rules ")
        assert [each["with_default_rules"] for each in told(tmp_path, "status")["rules"]] == [True]
    with up(tmp_path) as (line, _):
        assert "with the rules of workflows and the default rules of the workflow 'default', because" in line


def test_the_rules_of_a_new_project_are_its_own(tmp_path: Path) -> None:
    """Its folder ``default`` begins as a copy of the default rules."""
    assert inside(["init", "shop"], ENVIRONMENT, folder=tmp_path).code == 0
    with up(tmp_path / "shop") as (line, _):
        assert line == "graphweft is up on .graphweft with the rules of workflows; Ctrl-C stops it\n"


@pytest.mark.long
def test_up_starts_beside_a_file_with_errors_and_says_which(tmp_path: Path) -> None:
    rules = tmp_path / "workflows/Support/graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text("mutation_rules: [")
    with up(tmp_path) as (line, process):  # the first line is about the errors
        assert line == "the rules of Support have errors, and there are none from before:\n"
        assert process.stdout is not None
        assert process.stdout.readline().startswith("workflows/Support/graph_injection.yaml:1:18: error ")
        assert process.stdout.readline().startswith("correct this and save:")
        assert (
            "as far as they have no errors and the default rules of the workflow 'default'" in process.stdout.readline()
        )
        assert "I will look." in talk(tmp_path, "Where is my lamp?", "c1")
        faults = told(tmp_path, "status")["faulty_rules"]
        assert faults[1].startswith("workflows/Support/graph_injection.yaml:1:18: error ")
        rules.write_text(OWN)
        said = next(line for line in process.stdout if not line.startswith("console: "))
        assert said.endswith("are active: Support/graph_injection.yaml\n")
        assert told(tmp_path, "status")["faulty_rules"] == []
        rules.write_text("mutation_rules: [")
        assert "have errors, so the ones before go on" in process.stdout.readline()
    with up(tmp_path) as (line, process):
        assert line.startswith("the rules of workflows have errors, so the ones before go on:")
        assert [each["workflows"] for each in told(tmp_path, "status")["rules"]] == [["Support", "default"]]


def test_a_folder_that_is_named_gets_no_default_rules(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with up(tmp_path, "--rules", "mine") as (line, _):
        assert "with the rules of mine;" in line
        assert told(tmp_path, "rules", "list") == []


def test_the_tests_of_the_default_rules_pass(tmp_path: Path) -> None:
    assert inside(["init"], ENVIRONMENT, folder=tmp_path).code == 0
    done = inside(["test"], ENVIRONMENT, folder=tmp_path)
    assert (done.code, "7 passed" in done.out) == (0, True), done.out
    assert (tmp_path / "workflows/default/graph_injection.yaml").read_bytes() in default_rule_files().values()


@pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)
def test_a_runtime_with_python_3_10_has_turns_context_and_time_limits(tmp_path: Path, old_python: Path) -> None:
    (tmp_path / "loop.py").write_text(OLDER)
    with up(tmp_path):
        done = subprocess.run(
            [str(old_python), "loop.py"],
            cwd=tmp_path, env=ENVIRONMENT | SOURCES, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert done.stderr == ""
    version, text, *reasons = json.loads(done.stdout)
    assert version == [3, 10]
    assert "Where is my lamp?" in text
    assert reasons == ["timeout", "timeout", "bus_unavailable"]
