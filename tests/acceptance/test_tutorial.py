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
            cwd=self.folder, env=ENVIRONMENT, input=stdin, capture_output=True, text=True, check=True, timeout=120,
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
        up.communicate(timeout=120)


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
    """The commands of the guide print what it says, with the files that it shows."""
    files = dict(
        zip(
            ("ada.json", "ada.jsonl", "notes.jsonl"),
            re.findall(r"```json\n(.*?)```", MIGRATION, re.DOTALL),
            strict=True,
        )
    )
    for name, text in files.items():
        (project.folder / name).write_text(text, "utf-8")
    steps = [
        step.partition("\n")
        for block in re.findall(r"```console\n(.*?)```", MIGRATION, re.DOTALL)
        for step in re.split(r"(?m)^\$ ", block)[1:]
    ]
    imports = []
    for command, _, output in steps:
        words = shlex.split(command)[1:]
        done = project.graphweft(*words)
        assert without_tags(done.err + done.out) == without_tags(output), command
        assert done.code == (2 if "error:" in output else 0)
        if words[0] == "import" and "--wait" in words:
            imports.append(words)
    assert len(imports) == 3
    digest = project.graphweft("digest", "--app", "moved").out
    for words in imports:
        again = json.loads(project.graphweft(*words, "--json").out)
        assert again["applied"] == 0
        assert again["repeated"] == sum(again["events"].values()) > 0
    assert project.graphweft("digest", "--app", "moved").out == digest, "a second import changes nothing"
    rebuilt = project.graphweft("rebuild", "--app", "moved", "--verify", "--json")
    assert (rebuilt.code, json.loads(rebuilt.out)["same"]) == (0, True)


def without_tags(text: str) -> str:
    """Return what a search prints, without tags, ids, its own time, today's date and the time of the import."""
    lines = [line for line in text.splitlines() if not re.match(r"<|Retrieved data|Today is|.* ms\b", line)]
    dated = re.sub(r"created_at: [^]]+", "created_at: T", "\n".join(lines))
    return masked(re.sub(r"(?<=\d, )[^,\n]+ ago(?=:)", "long ago", dated))
