"""Ontologies: which one an episode goes by, what it lets through, and what is wrong with those that users write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphweft_contracts.episodes import EpisodeAdd, Structure
from graphweft_rules import RulesError
from graphweft_rules.ontologies import (
    Ontologies,
    Ontology,
    OntologyError,
    lint_ontologies,
    load_ontologies,
    resolve_ontology,
)
from graphweft_rules.ontologies.agent_memory_v1 import ONTOLOGY
from graphweft_rules.ontologies.ontology import type_model

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


@pytest.mark.parametrize(
    ("schema_id", "content", "expected"),
    [
        ("team_v1", "plain", TEAM),
        ("team_v1", TAGGED, TEAM),  # what is said wins over what is guessed
        ("agent_memory_v1", "plain", ONTOLOGY),
        (None, TAGGED, ONTOLOGY),
        (None, "<graphiti_episode", ONTOLOGY),
        (None, "graphiti_episode", None),
        (None, "<graphiti episode>", None),
        (None, "", None),
    ],
)
def test_the_schema_named_wins_then_the_tag_then_there_is_none(
    schema_id: str | None, content: str, expected: Ontology | None
) -> None:
    assert resolve_ontology(schema_id, content, ALL) is expected


@pytest.mark.parametrize("content", ["plain", TAGGED])
@pytest.mark.parametrize("schema_id", ["agent_memory_v9", "", "Agent_Memory_V1"])
def test_a_schema_that_does_not_exist_is_refused_with_those_that_do(schema_id: str, content: str) -> None:
    with pytest.raises(OntologyError, match=r"schema_id names no ontology.*: use agent_memory_v1, or leave it out"):
        resolve_ontology(schema_id, content)
    with pytest.raises(OntologyError, match="use agent_memory_v1, team_v1"):
        resolve_ontology(schema_id, content, ALL)


def test_a_slip_in_a_schema_id_is_told() -> None:
    with pytest.raises(OntologyError, match=r"\(did you mean 'agent_memory_v1'\?\)"):
        resolve_ontology("agent_memry_v1", "")


def test_an_id_never_changes_its_meaning() -> None:
    assert ALL.ids == ("agent_memory_v1", "team_v1")
    same = replace(TEAM, entity_types=dict(sorted(TEAM.entity_types.items(), reverse=True)))
    assert ALL.extended([same]).get("team_v1") is TEAM
    for changed in (
        replace(TEAM, excluded_entity_types=()),
        replace(TEAM, edge_type_map={}),
        replace(TEAM, entity_types={**TEAM.entity_types, "Person": type_model("Person", "A man or a woman.")}),
    ):
        with pytest.raises(ValueError, match=r"'team_v1' exists and means something else.*'team_v2'"):
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
            r"relations\[0\].type: team_v1 has no 'KNOWS' from 'Person' to 'Entity'; between these it has HAS",
        ),
        (
            said(("Person", "Ann"), ("Entity", "x"), relations=(("KNOWS", "x", "Ann"),)),
            "between these it has no relations",
        ),
    ],
)
def test_other_types_are_refused_with_those_that_are_allowed(structure: Structure, message: str) -> None:
    with pytest.raises(OntologyError, match=message):
        TEAM.check(structure)


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
    with pytest.raises(RulesError, match="this is no folder"):
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
