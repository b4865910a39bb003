"""Ontologies: which one an episode goes by, what it lets through, and what is wrong with those that users write."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphweft_contracts.episodes import EpisodeAdd, Structure
from graphweft_rules import RulesError
from graphweft_workers.features.episodes.ontologies import (
    Ontologies,
    Ontology,
    OntologyError,
    apart,
    lint_ontologies,
    load_ontologies,
    resolve_ontology,
)
from graphweft_workers.features.episodes.ontologies.agent_memory_v1 import ONTOLOGY
from graphweft_workers.features.episodes.ontologies.ontology import type_model

_DIGEST = "736156daf6874b0533bd0e34adee164e081f4616fa3c3a5613f736cee8e48111"
"""Of ``agent_memory_v1``."""
TAGGED = 'Remember: <graphiti_episode type="preference">tabs</graphiti_episode>'

TEAM = Ontology(
    schema_id="team_v1",
    entity_types={"Person": type_model("Person", "A human."), "Secret": type_model("Secret", "A key.")},
    edge_types={"KNOWS": type_model("KNOWS", "Has met."), "HAS": type_model("HAS", "Holds.")},
    edge_type_map={("Person", "Person"): ("KNOWS",), ("Person", "Entity"): ("HAS",)},
    excluded_entity_types=("Secret",),
)
ALL = Ontologies([TEAM])


# --- which one ---


@pytest.mark.parametrize("content", ["plain", TAGGED])  # what is said wins over what is guessed
@pytest.mark.parametrize("ontology", [TEAM, ONTOLOGY], ids=lambda ontology: ontology.schema_id)
def test_an_explicit_schema_id_wins(ontology: Ontology, content: str) -> None:
    assert resolve_ontology(ontology.schema_id, content, ALL) is ontology


@pytest.mark.parametrize("content", [TAGGED, "<graphiti_episode", "x\n<graphiti_episode>"])
def test_without_one_a_content_with_the_tag_goes_by_agent_memory_v1(content: str) -> None:
    assert resolve_ontology(None, content) is resolve_ontology(None, content, ALL) is ONTOLOGY


@pytest.mark.parametrize("content", ["", "plain", "graphiti_episode", "<graphiti episode>", "<GRAPHITI_EPISODE>"])
def test_without_both_there_is_no_ontology(content: str) -> None:
    assert resolve_ontology(None, content, ALL) is None


@pytest.mark.parametrize("content", ["plain", TAGGED])
@pytest.mark.parametrize("schema_id", ["agent_memory_v9", "", "Agent_Memory_V1"])
def test_a_schema_that_does_not_exist_is_refused_with_those_that_do(schema_id: str, content: str) -> None:
    said = r"unknown schema_id.*: use agent_memory_v1, or leave it out;.*after a restart"
    with pytest.raises(OntologyError, match=said):
        resolve_ontology(schema_id, content)
    with pytest.raises(OntologyError, match="use agent_memory_v1, team_v1"):
        resolve_ontology(schema_id, content, ALL)


def test_a_slip_in_a_schema_id_is_told() -> None:
    with pytest.raises(OntologyError, match=r"\(did you mean 'agent_memory_v1'\?\)"):
        resolve_ontology("agent_memry_v1", "")


def test_a_new_meaning_is_a_new_id_beside_the_old_one() -> None:
    v2 = replace(TEAM, schema_id="team_v2", excluded_entity_types=())
    both = ALL.extended([v2])
    assert both.ids == ("agent_memory_v1", "team_v1", "team_v2")
    assert (both.resolve("team_v1", ""), both.resolve("team_v2", "")) == (TEAM, v2)
    secret = said(("Secret", "x"))
    assert (TEAM.check(secret).entities, v2.check(secret)) == ((), secret)


def test_an_id_never_changes_its_meaning() -> None:
    assert ALL.ids == ("agent_memory_v1", "team_v1")
    same = replace(TEAM, entity_types=dict(sorted(TEAM.entity_types.items(), reverse=True)))
    assert ALL.extended([same]).get("team_v1") is TEAM
    for changed in (
        replace(TEAM, excluded_entity_types=()),
        replace(TEAM, edge_type_map={}),
        replace(TEAM, entity_types={**TEAM.entity_types, "Person": type_model("Person", "A man or a woman.")}),
    ):
        with pytest.raises(ValueError, match=r"'team_v1': choose a new id.*'team_v2'"):
            ALL.extended([changed])
    with pytest.raises(ValueError, match="'agent_memory_v2'"):
        Ontologies([replace(TEAM, schema_id="agent_memory_v1")])


def test_agent_memory_v1_stays_as_it_is_for_ever() -> None:
    assert ONTOLOGY.digest == _DIGEST, "make an agent_memory_v2 instead: episodes of years ago are read by this one"


def test_agent_memory_v1_is_whole_and_has_no_fields() -> None:
    for name, model in (*ONTOLOGY.entity_types.items(), *ONTOLOGY.edge_types.items()):
        assert (model.__doc__ or "").strip(), name
        assert model.model_fields == {}, name
    assert {name for ends in ONTOLOGY.edge_type_map for name in ends} <= set(ONTOLOGY.entity_types)
    assert {name for names in ONTOLOGY.edge_type_map.values() for name in names} == set(ONTOLOGY.edge_types)
    assert set(ONTOLOGY.excluded_entity_types) < set(ONTOLOGY.entity_types)
    assert not set(ONTOLOGY.excluded_entity_types) & {name for ends in ONTOLOGY.edge_type_map for name in ends}


@pytest.mark.parametrize(
    ("source", "relation", "target"),
    [
        ("Person", "PREFERS", "Preference"),  # preferences
        ("Term", "MEANS", "Component"),  # terminology
        ("Team", "OWNS", "Component"),  # ownership
        ("Project", "HAS_STATUS", "Status"),  # the state of projects
        ("Task", "BLOCKS", "Project"),
    ],
)
def test_agent_memory_v1_says_what_it_is_for(source: str, relation: str, target: str) -> None:
    assert relation in ONTOLOGY.edge_types_between(source, target)


# --- what it lets through ---


def said(*entities: tuple[str, str], relations: tuple[tuple[str, Any, Any], ...] = ()) -> Structure:
    return Structure.model_validate(
        {
            "entities": [{"type": type, "name": name} for type, name in entities],
            "relations": [{"type": type, "source": a, "target": b} for type, a, b in relations],
        }
    )


def test_what_fits_is_let_through_as_it_is() -> None:
    whole = said(("Person", "Ann"), ("Entity", "x"), relations=(("HAS", "Ann", "x"), ("KNOWS", "Ann", "Ann")))
    assert TEAM.check(whole) == whole


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        (
            said(("Person", "Ann"), ("Persn", "Bob")),
            r"entities\[1\].type: team_v1 has no type 'Persn' \(did you mean 'Person'\?\): use Person, Secret, Entity",
        ),
        (
            said(relations=(("HAS", {"type": "Dog", "name": "x"}, {"type": "Entity", "name": "y"}),)),
            r"relations\[0\].source.type: team_v1 has no type 'Dog': use Person, Secret, Entity",
        ),
        (
            said(("Person", "Ann"), relations=(("KNOW", "Ann", "Ann"),)),
            r"relations\[0\].type: team_v1 has no type 'KNOW' \(did you mean 'KNOWS'\?\): use KNOWS, HAS",
        ),
        (
            said(("Person", "Ann"), ("Entity", "x"), relations=(("KNOWS", "Ann", "x"),)),
            r"relations\[0\].type: team_v1 has no 'KNOWS' from 'Person' to 'Entity'; its `edge_type_map` allows HAS",
        ),
        (
            said(("Person", "Ann"), ("Entity", "x"), relations=(("KNOWS", "x", "Ann"),)),
            "its `edge_type_map` allows no relations between them",
        ),
    ],
)
def test_other_types_are_refused_with_those_that_are_allowed(structure: Structure, message: str) -> None:
    with pytest.raises(OntologyError, match=message) as caught:
        TEAM.check(structure)
    assert "after a restart" in str(caught.value), "no push of rules makes a changed ontology count"


def test_what_is_excluded_is_left_out_with_its_relations() -> None:
    whole = said(
        ("Person", "Ann"),
        ("Secret", "s"),
        relations=(("HAS", "Ann", "s"), ("KNOWS", "s", "s"), ("KNOWS", "Ann", "Ann")),
    )
    assert TEAM.check(whole) == said(("Person", "Ann"), relations=(("KNOWS", "Ann", "Ann"),))
    only = replace(TEAM, excluded_entity_types=("Entity",))
    assert only.check(said(("Entity", "x"))) == said()


def test_what_a_model_invents_is_fitted_and_not_refused() -> None:
    invented = said(
        ("Dog", "Rex"), ("Person", "Ann"), ("Secret", "s"), relations=(("WALKS", "Ann", "Rex"), ("HAS", "Ann", "s"))
    )
    fitted = TEAM.fit(invented)
    assert fitted.entities == said(("Entity", "Rex"), ("Person", "Ann")).entities
    [walks] = fitted.relations
    assert (walks.type, walks.source, walks.target) == (
        "WALKS", fitted.entity(walks.source), fitted.entity(walks.target),
    )  # fmt: skip
    assert fitted.entity(walks.target).type == "Entity"
    assert replace(TEAM, excluded_entity_types=("Entity",)).fit(invented).relations[0].type == "HAS"


def test_a_name_of_an_excluded_type_is_left_out_of_what_a_model_says() -> None:
    texts = ["Ann knows S3 cret.", "it is s3-CRET", "the s3cret", "Ann knows the s3", "it is s\u200b3-cr\u00ade\u034ft"]
    whole = Structure.model_validate(
        {
            "entities": [
                {"type": "Secret", "name": "s3-cret"},
                {"type": "Secret", "name": "***"},
                {"type": "Secret", "name": "\u5bc6\u7801\u4e00"},
                {"type": "Person", "name": "Ann"},
                {"type": "Person", "name": "S3 Cret"},
                {"type": "Person", "name": "Ann of s3-cret"},
                {"type": "Dog", "name": "a s3 cret"},
                {"type": "Entity", "name": "***"},
            ],
            "relations": [
                *({"type": "KNOWS", "source": "Ann", "target": "Ann", "fact": each} for each in texts),
                {"type": "KNOWS", "source": "Ann", "target": "Ann", "fact": "\u6211\u7684\u5bc6\u7801\u4e00\u662f"},
                {"type": "KNOWS", "source": "S3 Cret", "target": "Ann"},
            ],
        }
    )
    fitted = TEAM.fit(whole)
    assert [entity.name for entity in fitted.entities] == ["Ann", "Ann of s3-cret"]
    assert [relation.fact for relation in fitted.relations] == texts[2:4]
    assert replace(TEAM, excluded_entity_types=()).fit(whole).entities[3:] == (
        *whole.entities[3:6], whole.entities[6].model_copy(update={"type": "Entity"}), whole.entities[7],
    )  # fmt: skip


def test_ontologies_are_asked_about_the_text_of_json_too() -> None:
    add = EpisodeAdd.model_validate({"content": {"said": TAGGED}, "episode_type": "json", "user_id": "u"})
    assert resolve_ontology(add.schema_id, add.text) is ONTOLOGY


# --- those that users write ---

GOOD = """\
entity_types:
  Person: A human.
  Secret: A key.
edge_types:
  KNOWS: Has met.
  HAS: Holds.
edge_type_map:
  - source: Person
    target: [Person]
    edges: [KNOWS]
  - {source: [Person], target: Entity, edges: HAS}
excluded_entity_types: [Secret]
"""


def written(folder: Path, text: str, name: str = "team_v1.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_is_an_ontology_whose_name_is_its_id(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    loaded = load_ontologies(tmp_path)
    assert loaded.ids == ("agent_memory_v1", "team_v1")
    assert loaded.get("team_v1").digest == TEAM.digest
    assert lint_ontologies([tmp_path]) == []


def test_without_a_map_all_relations_are_between_all_entities(tmp_path: Path) -> None:
    written(tmp_path, "entity_types: {A: An a.}\nedge_types: {R: Relates., S: Sees.}\n")
    loaded = load_ontologies(tmp_path).get("team_v1")
    assert loaded.edge_types_between("A", "Entity") == ("R", "S")


def test_without_a_folder_there_are_the_built_in_ones(tmp_path: Path) -> None:
    assert load_ontologies(tmp_path / "ontologies").ids == ("agent_memory_v1",)
    with pytest.raises(RulesError, match="not a folder"):
        load_ontologies(written(tmp_path, GOOD))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("excluded_entity_types", "exclude_entity_types", "12:1: error unknown-key"),
        ("entity_types:\n  Person", "entity_typs:\n  Person", "1:1: error unknown-key"),
        ("  Secret: A key.", "  Person: A man.", "3:3: error repeated-key"),
        ("  Secret: A key.", "  PERSON: A man.", "3:3: error duplicate-name"),
        ("  KNOWS:", "  HAS:", "6:3: error repeated-key"),
        ("  Secret: A", "  My-Secret: A", "3:3: error bad-name"),
        ("  Secret: A", "  Entity: A", "3:3: error bad-name"),
        ("  HAS: Holds.", "  '1HAS': Holds.", "6:3: error bad-name"),
        ("target: [Person]", "target: [Persn]", "9:14: error unknown-type"),
        ("source: Person\n", "source: Nobody\n", "8:13: error unknown-type"),
        ("[KNOWS]", "[KNOWN]", "10:13: error unknown-type"),
        ("[Secret]", "[Secrets]", "12:25: error unknown-type"),
        ("Secret: A key.", "Secret:", "3:10: warning empty-description"),
        ("Secret: A key.", "Secret: ' '", "3:11: warning empty-description"),
        ("Secret: A key.", "Secret: 3", "3:11: error wrong-type"),
        ("Secret: A key.", "Secret: {a: b}", "3:11: error wrong-type"),
        ("    edges: [KNOWS]\n", "", "8:5: error missing-key"),
        ("    edges: [KNOWS]\n", "    edges: []\n", "10:12: error empty-list"),
        ("edges: HAS", "edges: KNOWS", "6:3: warning unused-type"),
        ("  - source: Person", "  - sources: Person", "8:5: error unknown-key"),
        ("  Person: A human.\n  Secret: A key.\n", "  {}\n", "2:3: error empty-list"),
        ("[Secret]", "{Secret: 1}", "12:24: error wrong-type"),
        ("  HAS: Holds.", "  HAS Holds.", "7:1: error yaml-syntax"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert GOOD.count(old) == 1
    path = written(tmp_path, GOOD.replace(old, new))
    findings = lint_ontologies([tmp_path])
    assert [str(finding) for finding in findings if f"{finding}".startswith(f"{path}:{expected}:")], findings
    assert findings == lint_ontologies([path])
    if any(finding.level == "error" for finding in findings):
        with pytest.raises(RulesError, match="team_v1"):
            load_ontologies(tmp_path)
    else:
        load_ontologies(tmp_path)


def test_a_slip_in_a_type_is_told(tmp_path: Path) -> None:
    written(tmp_path, GOOD.replace("target: [Person]", "target: [Persn]"))
    [message] = [finding.message for finding in lint_ontologies([tmp_path]) if finding.code == "unknown-type"]
    assert "(did you mean 'Person'?)" in message


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("agent_memory_v1.yaml", "shadowed-ontology"),
        ("Team.yaml", "bad-name"),
        ("my team.yaml", "bad-name"),
        ("team.v1.yaml", "bad-name"),
        ("team_v1.yml", "bad-name"),
    ],
)
def test_a_file_needs_a_name_that_is_an_id_of_its_own(tmp_path: Path, name: str, code: str) -> None:
    path = written(tmp_path, GOOD, name)
    assert [(finding.code, str(finding.place)) for finding in lint_ontologies([tmp_path])] == [(code, f"{path}:1:1")]
    with pytest.raises(RulesError):
        load_ontologies(tmp_path)


@pytest.mark.parametrize("name", ["team_v1.YAML", "team_v1.Yml", "team_v1.json"])
def test_a_file_that_is_not_read_is_told(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, GOOD, name)
    (tmp_path / ".hidden.json").write_text("{}")
    (tmp_path / "notes.md").write_text("x")
    [finding] = lint_ontologies([tmp_path])
    assert (finding.level, finding.code, finding.place.file) == ("warning", "ignored-file", str(path))
    assert load_ontologies(tmp_path).ids == ("agent_memory_v1",)


def test_all_files_are_told_at_once_and_none_that_is_missing_raises(tmp_path: Path) -> None:
    written(tmp_path, "x: 1", "a.yaml")
    written(tmp_path, "", "b.yaml")
    written(tmp_path, "- 1", "c.yaml")
    (tmp_path / "d.yaml").write_bytes(b"\xff")
    (tmp_path / ".hidden.yaml").write_text("x: 1")
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(RulesError) as caught:
        load_ontologies(tmp_path)
    assert {Path(finding.place.file).name for finding in caught.value.findings} == {
        "a.yaml",
        "b.yaml",
        "c.yaml",
        "d.yaml",
    }
    [finding] = lint_ontologies([tmp_path / "e.yaml"])
    assert finding.code == "missing-file"


# --- graphweft lint ---


def deployed(root: Path, text: str) -> Path:
    """Write a folder of workflows and an ontology beside it; return the folder of workflows."""
    rules = root / "workflows/Support/graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text('version: "1.0"\nmutation_rules: []\n')
    (root / "ontologies").mkdir()
    written(root / "ontologies", text)
    return root / "workflows"


def cli(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "graphweft_workers.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=120)


def test_ontologies_are_told_apart_from_rules(tmp_path: Path) -> None:
    rules = deployed(tmp_path, GOOD)
    ontologies = tmp_path / "ontologies"
    for folder in ("Support", ".hidden"):
        (rules / folder).mkdir(exist_ok=True)
        (rules / folder / "ontologies").mkdir()
    workflow = tmp_path / "other/ontologies"  # of this name, and no more than a workflow
    workflow.mkdir(parents=True)
    (workflow / "graph_injection.yaml").write_text('version: "1.0"\n')
    nested, file = rules / "Support/ontologies", ontologies / "team_v1.yaml"
    assert apart([rules]) == ([rules], [ontologies, nested])
    assert apart([rules / "Support"]) == ([rules / "Support"], [nested])
    assert apart([tmp_path]) == ([tmp_path], [ontologies, nested])
    assert apart([ontologies, rules, file]) == ([rules], [ontologies, nested, file])
    assert apart([workflow, tmp_path / "no.yaml"]) == ([workflow, tmp_path / "no.yaml"], [])


def test_lint_checks_the_ontologies_beside_the_rules(tmp_path: Path) -> None:
    deployed(tmp_path, GOOD.replace("target: [Person]", "target: [Persn]"))
    done = cli("lint", "workflows", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    *_, first, last = done.stdout.splitlines()
    assert first.startswith("ontologies/team_v1.yaml:9:14: error unknown-type: target names the entity type 'Persn'")
    assert last == "1 error, 1 warning"  # of KNOWS, which is then between nothing
    *_, finding = json.loads(cli("lint", "--json", "ontologies/team_v1.yaml", cwd=tmp_path).stdout)
    assert {name: finding[name] for name in ("file", "line", "column", "level", "code")} == {
        "file": "ontologies/team_v1.yaml", "line": 9, "column": 14, "level": "error", "code": "unknown-type",
    }  # fmt: skip


def test_lint_of_a_sound_ontology_exits_with_0(tmp_path: Path) -> None:
    deployed(tmp_path, GOOD)
    done = cli("lint", "workflows", "ontologies", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "0 errors, 0 warnings\n")


@pytest.mark.parametrize("command", [("up",), ("run", "mutation")], ids=" ".join)
def test_a_broken_ontology_stops_a_start_with_what_is_wrong(tmp_path: Path, command: tuple[str, ...]) -> None:
    deployed(tmp_path, GOOD.replace("Secret: A key.", "Secret: 3"))
    done = cli(*command, "--rules", "workflows", "--data", "data", cwd=tmp_path)
    assert done.returncode == 2
    assert "ontologies/team_v1.yaml:3:11: error wrong-type: the description of 'Secret' is 3" in done.stderr
