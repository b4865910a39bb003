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
