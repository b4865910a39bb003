"""``graphweft init``: what it writes and refuses. The project runs in ``tests/acceptance/test_quick_start.py``."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from tests.services.commands import Done, inside

from graphweft_contracts import InvalidSettings
from graphweft_contracts.rules_log import digest_of
from graphweft_rules import RuleSet, lint
from graphweft_rules.json_schemas import schema_text
from graphweft_workers.cli.run import project_near
from graphweft_workers.drivers import dialects
from graphweft_workers.new_project import default_rule_files, is_default, write_project

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GRAPHWEFT_")}
FILES = [
    "agent.py",
    "schemas/rules.json",
    "schemas/test.json",
    "workflows/default/defaults_test.yaml",
    "workflows/default/graph_injection.yaml",
    "workflows/support/graph_injection.yaml",
    "workflows/support/orders_test.yaml",
]


def init(folder: Path, *arguments: str) -> Done:
    return inside(["init", *arguments], ENVIRONMENT, folder=folder)


def written(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()}


def test_a_new_project_is_complete_and_the_next_steps_are_told(tmp_path: Path) -> None:
    done = init(tmp_path, "my graph")
    assert (done.code, done.err) == (0, "")
    assert sorted(written(tmp_path / "my graph")) == FILES
    for name in FILES:
        assert f"wrote my graph/{name}\n" in done.out
    assert re.findall(r"(?m)^  (.*?)(?: +#.*)?$", done.out) == [
        "cd 'my graph'",
        "graphweft test",
        "graphweft up",
        "python agent.py",
    ]


def test_the_rules_have_no_findings_and_name_a_schema_that_they_pass(tmp_path: Path) -> None:
    assert init(tmp_path).code == 0
    assert [str(each) for each in lint([tmp_path / "workflows"], dialects())] == []
    assert [*RuleSet.load(tmp_path / "workflows").workflows] == ["default", "support"]
    for file in (tmp_path / "workflows").glob("*/graph_injection.yaml"):
        named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", file.read_text("utf-8"))
        assert named is not None
        schema = (file.parent / named[1]).read_text("utf-8")
        assert schema == schema_text("rules")
        Draft7Validator(json.loads(schema)).validate(yaml.safe_load(file.read_text("utf-8")))


def test_the_test_file_has_the_events_of_the_rules(tmp_path: Path) -> None:
    assert init(tmp_path).code == 0
    rules = yaml.safe_load((tmp_path / "workflows/support/graph_injection.yaml").read_text("utf-8"))
    cases: list[dict[str, Any]] = yaml.safe_load((tmp_path / "workflows/support/orders_test.yaml").read_text("utf-8"))[
        "tests"
    ]
    assert all(case.keys() <= {"name", "events", "graph", "context"} for case in cases)
    types = {event["type"] for case in cases for event in case["events"]}
    assert types == {type for rule in rules["mutation_rules"] for type in rule["events"]}
    script = (tmp_path / "agent.py").read_text("utf-8")
    assert all(f'"{type}"' in script for type in types)


def test_events_without_a_confirmation_are_not_said_to_be_lost(tmp_path: Path) -> None:
    assert init(tmp_path).code == 0
    done = subprocess.run(
        [sys.executable, "agent.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        env=ENVIRONMENT | {"GRAPHWEFT_BUS_URL": "redis://127.0.0.1:1"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    said = done.stderr.splitlines()[-1]
    assert said.startswith("The events are not confirmed yet.")
    assert "`graphweft events tail` shows" in said


def test_the_default_rules_are_those_that_init_writes(tmp_path: Path) -> None:
    assert init(tmp_path).code == 0
    files = {"default/graph_injection.yaml": (tmp_path / "workflows/default/graph_injection.yaml").read_bytes()}
    assert default_rule_files() == files
    assert is_default(digest_of(files))
    assert not is_default(digest_of({"default/graph_injection.yaml": b""}))


def test_a_workflow_named_default_has_the_example_in_place_of_the_default_rules(tmp_path: Path) -> None:
    assert init(tmp_path, "--workflow", "default").code == 0
    assert "workflows/default/orders_test.yaml" in written(tmp_path)
    assert "workflows/default/defaults_test.yaml" not in written(tmp_path)
    assert "order.placed" in (tmp_path / "workflows/default/graph_injection.yaml").read_text()


def test_a_workflow_may_have_another_name(tmp_path: Path) -> None:
    done = init(tmp_path, "--workflow", "Help_desk-2", "--json")
    assert json.loads(done.out) == {
        "folder": ".",
        "workflow": "Help_desk-2",
        "written": [
            *(name.replace("support", "Help_desk-2") for name in [*FILES[5:], FILES[0]]),
            *(FILES[4], FILES[3], *FILES[1:3]),
        ],
        "next": ["graphweft test", "graphweft up", "python agent.py"],
    }
    found = written(tmp_path)
    assert not any("support" in name + text for name, text in found.items())
    assert 'WORKFLOW = "Help_desk-2"' in found["agent.py"]
    ast.parse(found["agent.py"])


def test_a_second_workflow_is_refused_with_the_way_to_add_it(tmp_path: Path) -> None:
    assert init(tmp_path).code == 0
    again = init(tmp_path)
    assert (again.code, "To add the workflow" in again.err) == (2, False)
    refused = init(tmp_path, "--workflow", "billing")
    assert refused.code == 2
    said = " ".join(refused.err.split())
    assert "To add the workflow 'billing' to this project, run `init` in a new folder" in said


@pytest.mark.parametrize(
    "name",
    ["", " ", ".", "..", "../up", "a/b", "a\\b", "_shared", ".hid", "-x", "2nd", "a b", "ü", "a\n", 'a"', "a" * 65],
)
def test_an_odd_name_of_a_workflow_is_refused(tmp_path: Path, name: str) -> None:
    done = init(tmp_path, f"--workflow={name}")
    assert done.code == 2
    assert "invalid --workflow" in done.err
    assert "expected a letter, then letters, digits, '_' and '-', 64 at most" in " ".join(done.err.split())
    assert written(tmp_path) == {}


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "\udcff"])
def test_a_folder_that_cannot_be_printed_is_refused(tmp_path: Path, name: str) -> None:
    done = init(tmp_path, name)
    assert done.code == 2
    assert "its name has characters that cannot be printed" in done.err
    assert [*tmp_path.iterdir()] == []


def test_nothing_is_overwritten_and_everything_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("mine")
    (tmp_path / "schemas").write_text("a file")
    (tmp_path / "workflows/support").mkdir(parents=True)
    (tmp_path / "workflows/support/orders_test.yaml").symlink_to("nowhere")
    done = init(tmp_path)
    assert done.code == 2
    for name in ("agent.py", "schemas", "workflows/support/orders_test.yaml"):
        assert re.search(rf"(?:^|\s){re.escape(name)}(?:,|\s)", done.err), name
    assert "nothing is overwritten" in done.err
    assert "graph_injection.yaml" not in done.err
    assert (tmp_path / "agent.py").read_text() == "mine"
    assert not (tmp_path / "workflows/support/graph_injection.yaml").exists()


def test_a_second_time_names_all_files(tmp_path: Path) -> None:
    assert init(tmp_path, "a").code == 0
    before = written(tmp_path)
    done = init(tmp_path, "a")
    assert done.code == 2
    assert all(f"a/{name}" in done.err for name in FILES)
    assert written(tmp_path) == before


def test_a_folder_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, said in (("file", "file exist already"), ("file/below", "file exist already"), ("x" * 300, "too long")):
        done = init(tmp_path, name)
        assert done.code == 2
        assert said in done.err
    assert written(tmp_path) == {"file": ""}


def test_a_write_that_fails_half_way_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="too long"):
        write_project(tmp_path / "new", {"first": "text", "below/second": "text", "x" * 300: "text"})
    assert written(tmp_path) == {}


def test_other_workflows_stay_beside_the_new_one(tmp_path: Path) -> None:
    assert init(tmp_path, "--workflow", "one").code == 0
    for name in ("agent.py", "schemas/rules.json", "schemas/test.json"):
        (tmp_path / name).unlink()
    (tmp_path / "workflows/default/defaults_test.yaml").unlink()
    assert init(tmp_path, "--workflow", "two").code == 0
    assert not (tmp_path / "workflows/default/defaults_test.yaml").exists()
    assert [*RuleSet.load(tmp_path / "workflows").workflows] == ["default", "one", "two"]


def test_a_project_in_a_folder_below_is_found(tmp_path: Path) -> None:
    """``up`` names it, if it is started beside the project by mistake."""
    assert project_near(tmp_path, Path("workflows")) is None
    (tmp_path / "notes/workflows").mkdir(parents=True)
    assert project_near(tmp_path, Path("workflows")) is None
    assert init(tmp_path, "shop").code == init(tmp_path, "zoo").code == 0
    assert project_near(tmp_path, Path("workflows")) == Path("shop/workflows")
    assert project_near(tmp_path / "shop", Path("workflows")) is None
    assert project_near(tmp_path, tmp_path / "workflows") is None
    assert project_near(tmp_path, Path("../workflows")) is None


def test_a_project_around_a_folder_is_found(tmp_path: Path) -> None:
    """``up`` names it, if it is started in the folder of the rules by mistake."""
    assert init(tmp_path, "shop").code == 0
    rules = tmp_path / "shop/workflows"
    assert project_near(rules, Path("workflows")) == rules
    assert project_near(rules / "support", Path("workflows")) == rules
    assert project_near(rules, Path("../workflows")) is None
