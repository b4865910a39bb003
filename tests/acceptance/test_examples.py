"""The examples print what their pages say. All run beside one ``graphweft up``, whose folder has the files of all."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.adapters.runner import SOURCES
from tests.edges.test_cli_memory import Up
from tests.services.environment import clean_environment
from tests.services.runtime_environments import RUNTIME_ENVIRONMENT_S
from tests.services.waiting import until_sync

from graphweft_rules import lint
from graphweft_workers.drivers import dialects
from graphweft_workers.features.episodes.ontologies import apart, lint_ontologies
from graphweft_workers.new_project import default_rule_files

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("crm-episodes", "hand-over", "openai-loop", "opentelemetry", "support-desk")
MOST_LINES = 120


def page(name: str) -> str:
    return (EXAMPLES / name / "README.md").read_text("utf-8")


def block(name: str, language: str, starts: str = "") -> str:
    [text] = re.findall(rf"```{language}\n({re.escape(starts)}.*?)```", page(name), re.DOTALL)
    return str(text)


def command(name: str, program: str) -> list[str]:
    """Return the arguments of the one line of a page that runs a program, without its comment."""
    [line] = re.findall(rf"(?m)^{program} (.*?)(?: *#.*)?$", page(name))
    return str(line).split()


def undated(text: str) -> str:
    """Return the text without what differs in each run: times, days and digests."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"(?<=data-)[0-9a-f]{16}|[A-Z][a-z]+day \d{4}-\d\d-\d\d", "X", text)
    return re.sub(r"(since|last:) \d{4}-\d\d-\d\d", r"\1 X", text)


def picture(text: str) -> list[str]:
    """Return the nodes and relationships of Mermaid text, by captions and in order: numbers differ in each run."""
    nodes = dict(re.findall(r'(?m)^  (n\d+)\["(.*)"\]$', text))
    drawn = re.findall(r'(?m)^  (n\d+) -- "(.*)" --> (n\d+)$', text)
    assert len(nodes) + len(drawn) == text.count("\n") - 1
    return sorted([*nodes.values(), *(f"{nodes[start]} {type} {nodes[end]}" for start, type, end in drawn)])


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("examples")
    for name in NAMES:
        for part in ("workflows", "ontologies"):
            if (EXAMPLES / name / part).is_dir():
                shutil.copytree(EXAMPLES / name / part, folder / part, dirs_exist_ok=True)
    for name, data in default_rule_files().items():  # what `graphweft up` uses where an example has no rules
        (folder / "workflows" / name).parent.mkdir()
        (folder / "workflows" / name).write_bytes(data)
    model = subprocess.Popen(
        [sys.executable, EXAMPLES / "crm-episodes/model.py", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert model.stdout is not None
        address = model.stdout.readline().strip()
        running = Up(folder, GRAPHWEFT_EXTRACTOR="graphiti:stand-in", GRAPHWEFT_EXTRACTOR_URL=address)
        try:
            yield running
        finally:
            running.stop()
    finally:
        model.terminate()
        model.communicate(timeout=120)


def run(up: Up, *command: str | Path, **more: str) -> str:
    done = subprocess.run(
        command, cwd=up.folder, env=clean_environment(GRAPHWEFT_DATA=str(up.folder / ".graphweft")) | more,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def shown(up: Up, name: str) -> list[str]:
    """Return the picture, as soon as it is that of the page: the last events of an example may still be under way."""
    wanted = picture(block(name, "mermaid"))
    return until_sync(lambda: picture(up.ok("show", *command(name, "graphweft show"))), lambda found: found == wanted)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "opentelemetry"])
def test_an_example_prints_what_its_page_says(up: Up, name: str) -> None:
    [*_, script] = re.findall(r"(?m)^python (\S+)", page(name))
    assert undated(run(up, sys.executable, EXAMPLES / name / script)) == undated(block(name, "text"))
    assert shown(up, name) == picture(block(name, "mermaid"))
    assert up.ok("dlq", "list", "--app", command(name, "graphweft show")[1]) == "no dead letters\n"


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)
def test_an_agent_is_captured_without_code(up: Up, runtime_python: Callable[[str], Path]) -> None:
    python = runtime_python("otel")
    lines = re.findall(r"(?m)^export (.*?)(?: *#.*)?$", page("opentelemetry"))
    settings = dict(each.split("=", 1) for line in lines for each in line.split())
    printed = run(
        up, python.with_name("opentelemetry-instrument"), python, EXAMPLES / "opentelemetry/agent.py",
        **SOURCES, **settings,
    )  # fmt: skip
    assert f'prints "{printed.strip()}"' in page("opentelemetry")
    asked = command("opentelemetry", "graphweft context")
    # On a busy machine an answer may take longer than its budget: then the command says so, and is tried again.
    text = until_sync(lambda: up.run("context", *asked).stdout, lambda text: "Tools That Failed" in text)
    assert text == block("opentelemetry", "text")
    assert shown(up, "opentelemetry") == picture(block("opentelemetry", "mermaid"))


@pytest.mark.parametrize("name", [name for name in NAMES if (EXAMPLES / name / "workflows").is_dir()])
def test_the_rules_of_an_example_have_no_findings(name: str) -> None:
    rules, ontologies = apart([EXAMPLES / name / "workflows"])
    found = (*lint(rules, dialects()), *lint_ontologies(ontologies))
    assert [str(finding) for finding in found] == []


def test_each_example_is_short_and_listed() -> None:
    listed = set(re.findall(r"\]\(([\w-]+)(?:/[^)]*)?\)", (EXAMPLES / "README.md").read_text("utf-8")))
    assert listed >= {"airline", *NAMES}
    for name in NAMES:
        for file in (EXAMPLES / name).rglob("*.*"):
            if file.suffix in {".py", ".yaml"}:
                assert len(file.read_text("utf-8").splitlines()) <= MOST_LINES, file
