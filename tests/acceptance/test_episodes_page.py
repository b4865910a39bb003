"""The page about episodes: its example prints what it says, and its ontology and rules are sound."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.edges.test_cli_memory import Up

from graphweft_contracts.episodes import RESERVED_ATTRIBUTES
from graphweft_rules import lint
from graphweft_workers.drivers import dialects
from graphweft_workers.features.episodes.ontologies import apart, lint_ontologies, load_ontologies
from graphweft_workers.features.episodes.ontologies.agent_memory_v1 import ONTOLOGY

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[2] / "docs/episodes.md").read_text("utf-8")
[READING] = re.findall(r"```cypher\n(.*?)```", PAGE, re.DOTALL)
YAML = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
ONTOLOGY_FILES = [text for text in YAML if "entity_types:" in text]
RULES = [text for text in YAML if text not in ONTOLOGY_FILES]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    [(name, script)] = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / name).write_text(script)
    up = Up(tmp_path)
    try:
        done = subprocess.run(
            [sys.executable, name],
            cwd=tmp_path, env=up.environment, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        assert done.stderr == ""
        assert f"```text\n{done.stdout}```" in PAGE
        asked = ("query", "--app", "acme")
        assert up.ok("dlq", "list", "--json") == "[]\n"
        assert up.json(*asked, "MATCH (:Episode)-[:STATES]->(r:Relation) RETURN r.name ORDER BY r.name")["rows"] == [
            {"r.name": "MEMBER_OF"}, {"r.name": "OWNS"},
        ]  # fmt: skip
        assert up.json(*asked, READING)["rows"] == [{"e.name": "Grace", "a.name": "role", "a.value": "lead"}]
    finally:
        up.stop()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_saved_ontology_counts_after_what_up_says(tmp_path: Path) -> None:
    file = tmp_path / "ontologies/plans_v1.yaml"
    file.parent.mkdir()
    text = "entity_types: {Person: a, Plan: b}\nedge_types: {HAS: c}\nedge_type_map:\n"
    file.write_text(f"{text}  - {{source: Plan, target: Plan, edges: [HAS]}}\n")
    structure = {
        "entities": [{"type": "Person", "name": "Ann"}, {"type": "Plan", "name": "Gold"}],
        "relations": [{"type": "HAS", "source": "Ann", "target": "Gold"}],
    }

    def episode(id: str) -> str:
        data = {"user_id": "ann", "episode_type": "json", "schema_id": "plans_v1", "content": structure}
        names = {"specversion": "1.0", "id": id, "source": "/crm", "type": "episode.add"}
        return json.dumps({**names, "appid": "acme", "chatid": "ann", "data": data})

    up = Up(tmp_path)
    try:
        refused = up.run("emit", "-", "--wait", stdin=episode("e1"))
        assert refused.returncode == 1
        assert "its `edge_type_map` allows no relations between them" in refused.stdout
        file.write_text("entity_types: [")
        assert "have errors, so those before go on" in up.said("ontologies")
        file.write_text(f"{text}  - {{source: Person, target: Plan, edges: [HAS]}}\n")
        assert "have started again with them: plans_v1.yaml" in up.said("ontologies have changed")
        up.ok("dlq", "retry", "--all")
        up.ok("emit", "-", "--wait", stdin=episode("e2"))
        assert up.ok("dlq", "list", "--json") == "[]\n"
        assert up.json("query", "--app", "acme", "MATCH (r:Relation) RETURN count(r) AS n")["rows"] == [{"n": 1}]
    finally:
        up.stop()


def test_its_ontology_and_rules_are_sound(tmp_path: Path) -> None:
    (tmp_path / "ontologies").mkdir()
    for text in ONTOLOGY_FILES:
        [name] = re.findall(r"(?m)\A# (\w+\.yaml)$", text)
        (tmp_path / "ontologies" / name).write_text(text)
    for number, text in enumerate(RULES):
        file = tmp_path / f"workflows/Page{number}/graph_injection.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    rules, ontologies = apart([tmp_path / "workflows"])
    assert [str(finding) for finding in (*lint(rules, dialects()), *lint_ontologies(ontologies))] == []
    found = load_ontologies(tmp_path / "ontologies").get("support_v1")
    assert found.edge_types_between("Customer", "Feature") == ("USES", "ASKED_FOR")


def test_it_names_what_exists() -> None:
    assert {"id", "user_id", "scopes", "name_key"} < RESERVED_ATTRIBUTES
    for word in ("Person", "Team", "Project", "Component", "Decision", "Preference", "Term"):
        assert word in ONTOLOGY.entity_types
