"""The tutorial, and the guide for those who come from other memories, followed as they are printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.services.commands import Done, inside

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "tutorial.md").read_text("utf-8")
MIGRATION = (DOCS / "guides/migrate.md").read_text("utf-8").replace("acme", "moved")  # an app of its own
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GRAPHWEFT_")}
RULES = "workflows/support/graph_injection.yaml"
MASKS = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z", "TIME"),
    (r"\d{13}-\d+", "OFFSET"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID"),
    (r"rules [0-9a-f]{12}", "rules HASH"),
    (r"skipped:[0-9a-f]{16}", "skipped:HASH"),
)


def masked(text: str) -> str:
    """Return a text without what differs from run to run."""
    for pattern, name in MASKS:
        text = re.sub(pattern, name, text)
    return text.rstrip()


@dataclass(frozen=True)
class Project:
    """The folder of a project, with ``graphweft up``."""

    folder: Path
    up: subprocess.Popen[str]

    def graphweft(self, *arguments: str) -> Done:
        return inside(arguments, ENVIRONMENT, folder=self.folder)

    def said(self, text: str) -> str:
        """Return the next line of ``up`` with the text."""
        assert self.up.stdout is not None
        while line := self.up.stdout.readline():
            if text in line:
                return line
        raise AssertionError(f"up ended before it said {text!r}")

    def change(self, file: str, old: str, new: str) -> None:
        text = (self.folder / file).read_text("utf-8")
        assert text.count(old) == 1, old
        (self.folder / file).write_text(text.replace(old, new), "utf-8")

    def python(self, file: str, stdin: str = "") -> str:
        done = subprocess.run(
            [sys.executable, file],
            cwd=self.folder, env=ENVIRONMENT, input=stdin, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    parent = tmp_path_factory.mktemp("tutorial")
    wrote = inside(["init", "shop"], ENVIRONMENT, folder=parent).out
    assert f"$ graphweft init shop\n{wrote}```" in TUTORIAL
    up = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "up"],
        cwd=parent / "shop", env=ENVIRONMENT | {"GRAPHWEFT_CONSOLE": "false"},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        project = Project(parent / "shop", up)
        project.said("graphweft is up")
        yield project
    finally:
        up.terminate()
        up.communicate(timeout=60)


def printed() -> Iterator[tuple[str, str]]:
    """Give each command of the tutorial with what it prints."""
    for block in re.findall(r"```console\n(.*?)```", TUTORIAL, re.DOTALL):
        for step in re.split(r"(?m)^\$ ", block)[1:]:
            command, _, output = step.partition("\n")
            if not command.startswith("graphweft init"):
                yield command, output


def test_the_tutorial_prints_what_it_says(project: Project) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", TUTORIAL, re.DOTALL)
    orders, refunds, returned, test, counted = blocks
    [events] = re.findall(r"```json\n(.*?)```", TUTORIAL, re.DOTALL)
    [fault] = re.findall(r"```text\n(.*?)```", TUTORIAL, re.DOTALL)
    mark = "# What to look up before the turn of an agent."
    assert f"`{mark}`" in TUTORIAL
    rules = (project.folder / RULES).read_text("utf-8")
    assert orders in rules
    [returned_before] = re.findall(r"(?m)^ *RETURN order\.id.*\n", rules)
    [set_before] = re.findall(r"(?m)^ *SET order\.item.*\n", rules)

    def follow(command: str, output: str) -> None:
        words = shlex.split(command)
        said = ""
        for _ in range(200 if words[1] == "context" else 1):  # a responder follows new rules a moment later
            said = project.python(words[1]) if words[0] == "python" else project.graphweft(*words[1:]).out
            if masked(said) == masked(output):
                break
        assert masked(said).startswith(masked(output)), command
        if "diff" not in command:
            assert masked(said) == masked(output), command

    steps = printed()
    for _ in range(4):
        follow(*next(steps))
    project.change(RULES, mark, f"{refunds}\n{mark}")
    project.said("are active")
    project.change(RULES, returned_before, returned)
    project.said("are active")
    (project.folder / "refunds.jsonl").write_text(events, "utf-8")
    for _ in range(5):
        follow(*next(steps))
    project.change(RULES, "order.status = 'delayed'", "order.status == 'delayed'")
    first, second = fault.splitlines()
    assert project.said("errors").rstrip() == first
    assert project.said("refuses").startswith(second.rstrip("…"))
    project.change(RULES, "order.status == 'delayed'", "order.status = 'delayed'")
    project.said("no errors any more")
    tests = project.folder / "workflows/support/orders_test.yaml"
    tests.write_text(f"{tests.read_text('utf-8')}\n{test}", "utf-8")
    follow(*next(steps))
    project.change(RULES, set_before, counted)
    project.said("are active")
    diff = next(steps)
    follow(*diff)
    assert "+ orders: 2" in project.graphweft(*shlex.split(diff[0])[1:]).out
    assert "graphweft rebuild --app acme --rules workflows --swap\n" in TUTORIAL
    assert project.graphweft("rebuild", "--app", "acme", "--rules", "workflows", "--swap").code == 0
    for step in steps:
        follow(*step)
    assert project.graphweft("show", "--app", "acme", "--html", "graph.html").code == 0


def test_memories_and_facts_of_others_come_over_as_the_guide_says(project: Project) -> None:
    scripts = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", MIGRATION, re.DOTALL))
    for name, text in scripts.items():
        (project.folder / name).write_text(text, "utf-8")
    memory = {
        "id": "2f6f3f0d-2b11-4c9e-9b0a-3f1c9c1e6f0f", "memory": "Eats no nuts", "hash": "x", "user_id": "ada",
        "created_at": "2026-02-01T02:00:00.123456-08:00", "updated_at": None,
    }  # fmt: skip
    edge = {
        "uuid": "edge-1", "group_id": "ada", "source": "Ada", "target": "Shop", "name": "OWNS",
        "fact": "Ada owns the shop",
    }  # fmt: skip
    (project.folder / "messages.jsonl").write_text(project.python("from_mem0.py", json.dumps(memory)), "utf-8")
    (project.folder / "events.jsonl").write_text(project.python("from_graphiti.py", json.dumps(edge)), "utf-8")
    commands = [each for each in MIGRATION.splitlines() if each.startswith("graphweft ")]
    assert len(commands) == 4
    for command in commands:
        done = project.graphweft(*shlex.split(command)[1:])
        assert done.code == 0, (command, done.err)
        if "What does she eat?" in command:
            assert "Eats no nuts" in done.out
            assert "timestamp: 2026-02-01T10:00:00.123456Z" in done.out
        if "Who owns" in command:
            assert "Ada owns the shop" in done.out
    assert project.graphweft("memory", "add", *shlex.split(commands[0])[3:]).code == 0
    listed = project.graphweft("memory", "list", "--app", "moved", "--user", "ada", "--json")
    assert len(json.loads(listed.out)) == 1, "a second run stores nothing twice"
