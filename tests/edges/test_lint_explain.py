from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

RULES = """\
version: "1.0"
mutation_rules:
  - name: totals
    events: [a.b]
    mutations:
      - id: keep
        cypher: "MERGE (n:A {id: $id})"
        params: {id: "$event.id"}
      - id: count
        cypher: "MATCH (n:A) WITH count(n) AS c MERGE (t:Total {id: 1}) SET t.count = c"
        params: {}
"""


def lint(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "graphweft_workers.cli", "lint", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_lint_explain_says_how_each_mutation_runs_on_each_kind_of_server(tmp_path: Path) -> None:
    file = tmp_path / "graph_injection.yaml"
    file.write_text(RULES)
    done = lint("--explain", str(file))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1:4] for line in lines[:-2]] == [
        ["totals/keep", "falkordb", "ordered"],
        ["totals/keep", "neo4j", "ordered"],
        ["totals/count", "falkordb", "single"],
        ["totals/count", "neo4j", "ordered"],
    ]
    assert lines[0].startswith(f"{file}:6:9 ")
    assert lines[-2].startswith("2 queries were not checked by a graph server")
    assert "`count(…)` aggregates over all rows" in lines[2]
    found = json.loads(lint("--explain", "--json", str(file)).stdout)
    assert [(each["line"], each["mode"]) for each in found["mutations"]][:2] == [(6, "ordered"), (6, "ordered")]
    assert found["findings"] == []


def test_lint_explain_leaves_out_rules_that_do_not_load(tmp_path: Path) -> None:
    file = tmp_path / "graph_injection.yaml"
    file.write_text(RULES.replace("events:", "event:"))
    done = lint("--explain", "--json", str(file))
    assert done.returncode == 1
    assert json.loads(done.stdout)["mutations"] == []


def test_lint_checks_the_form_of_rule_tests(tmp_path: Path) -> None:
    """In a folder as well as given one by one, and by the same findings as ``graphweft test``."""
    folder = tmp_path / "workflows" / "W"
    folder.mkdir(parents=True)
    (folder / "graph_injection.yaml").write_text(RULES)
    good, broken = folder / "good_test.yaml", folder / "x_test.yaml"
    good.write_text("tests: [{name: c, events: [{type: a.b}], dead_letters: []}]\n")
    for given in (tmp_path / "workflows", folder, good):
        assert (lint(str(given)).returncode, given) == (0, given)
    broken.write_text("tests:\n  - name: c\n    event: []\n")
    for given in (tmp_path / "workflows", folder, broken):
        done = lint("--json", str(given))
        assert done.returncode == 1
        found = json.loads(done.stdout)
        assert {each["file"] for each in found} == {str(broken)}
        assert "unknown-key" in {each["code"] for each in found}
