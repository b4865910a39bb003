"""What an ontology says of types of relations: how files are read, and how episodes are stored by it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from graphweft_contracts.episodes import Structure
from graphweft_workers.features.edge_rules import EdgeRule, ends_of, level_of
from graphweft_workers.features.episodes.ontologies import Ontologies, Ontology
from graphweft_workers.features.episodes.ontologies.files import read_ontology

HEAD = """\
entity_types: {Person: A human.}
edge_types: {LIVES_IN: a, MOVED_TO: b, WORKS_FOR: c, EMPLOYS: d, MARRIED_TO: e, SITS_IN: f, USES: g}
edge_rules:
"""
LIFE = """\
  - {type: LIVES_IN, single_valued: true, aliases: RESIDES_IN}
  - {type: MOVED_TO, transition: LIVES_IN}
  - {type: EMPLOYS, inverse_of: WORKS_FOR}
  - {type: MARRIED_TO, symmetric: true, single_valued: true}
  - {type: SITS_IN, depends_on: WORKS_FOR}
  - {type: USES, depends_on: SITS_IN, when_ended: mark}
"""


def ontology(rules: str = LIFE) -> Ontology:
    found, findings = read_ontology((HEAD + rules).encode(), Path("life_v1.yaml"))
    assert findings == ()
    assert found is not None
    return found


def chain(*types: str) -> str:
    return "\n".join(f"  - {{type: {name}, depends_on: {above}}}" for name, above in pairwise(types))


def said(*relations: str) -> Structure:
    names = sorted({name for each in relations for name in each.split()[::2]})
    return Structure.read({
        "entities": [{"type": "Person", "name": name} for name in names],
        "relations": [dict(zip(("source", "type", "target"), each.split(), strict=True)) for each in relations],
    })  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "finding"),
    [
        ("  - {type: LIVES, single_valued: true}", "4:12: error unknown-type: type names the edge type 'LIVES'"),
        ("  - {type: USES, depends_on: WORK_FOR}", "4:30: error unknown-type: depends_on names the edge type "
         "'WORK_FOR', which edge_types does not have (did you mean 'WORKS_FOR'?): write that, or add it there"),
        ("  - {type: USES, depends_on: TEACHES_AT}", "which edge_types does not have: add it there"),
        ("  - {type: USES}", "4:5: error missing-key: an item of edge_rules needs one of single_valued, symmetric"),
        ("  - {type: USES, single: true}", "4:18: error unknown-key: an item of edge_rules has no key 'single'"),
        ("  - {type: USES, single_valued: 1}", "4:33: error wrong-type: single_valued is 1: it must be true or false"),
        ("  - {type: USES, aliases: [LIVES_IN]}", "4:28: error duplicate-name: 'LIVES_IN' is a type of edge_types"),
        ("  - {type: USES, aliases: [A]}\n  - {type: SITS_IN, aliases: [A]}", "5:31: error duplicate-name: 'A' is"),
        ("  - {type: USES, aliases: [no-type]}", "4:28: error bad-name: invalid type name 'no-type'"),
        ("  - {type: USES, depends_on: USES}", "4:30: error circular-types: 'USES' depends on itself: name another"),
        ("  - {type: USES, depends_on: SITS_IN}\n  - {type: SITS_IN, depends_on: USES}",
         "4:30: error circular-types: 'USES' → 'SITS_IN' → 'USES' is a circle: remove one depends_on"),
        ("  - {type: LIVES_IN, depends_on: USES}\n  - {type: USES, depends_on: SITS_IN}\n"
         "  - {type: SITS_IN, depends_on: USES}", "circular-types: 'USES' → 'SITS_IN' → 'USES' is a circle"),
        (chain(*["LIVES_IN", "MOVED_TO", "WORKS_FOR", "EMPLOYS", "MARRIED_TO", "SITS_IN"]),
         "4:34: error circular-types: 'LIVES_IN' depends on a chain of 5 types, and at most 4 may follow"),
        ("  - {type: USES, inverse_of: USES}", "4:30: error conflicting-keys: 'USES' names itself: name the type"),
        ("  - {type: USES, inverse_of: SITS_IN}\n  - {type: SITS_IN, inverse_of: WORKS_FOR}",
         "4:30: error conflicting-keys: 'SITS_IN' is an inverse itself"),
        ("  - {type: USES, inverse_of: SITS_IN, single_valued: true}", "4:39: error conflicting-keys: 'USES' is"),
        ("  - {type: USES, symmetric: true, depends_on: SITS_IN}", "4:35: error conflicting-keys: 'USES' is symmetric"),
        ("  - {type: USES, transition: USES}", "4:30: error conflicting-keys: a transition cannot lead to its own"),
        ("  - {type: USES, transition: SITS_IN}\n  - {type: SITS_IN, transition: WORKS_FOR}",
         "4:30: error conflicting-keys: a transition cannot lead to a type that has a transition, as 'SITS_IN' has"),
        ("  - {type: EMPLOYS, inverse_of: WORKS_FOR}\n  - {type: USES, depends_on: EMPLOYS}",
         "5:30: error conflicting-keys: 'EMPLOYS' is stored as 'WORKS_FOR'"),
        ("  - {type: USES, single_valued: true, when_ended: end}", "error conflicting-keys: 'when_ended' goes with"),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_hold_is_an_error_with_its_place(rules: str, finding: str) -> None:
    found, findings = read_ontology((HEAD + rules + "\n").encode(), Path("life_v1.yaml"))
    assert found is None
    assert any(finding in str(each) for each in findings)


def test_a_misspelt_key_is_not_reported_as_missing_too() -> None:
    _, findings = read_ontology((HEAD + "  - {type: USES, dependson: SITS_IN}\n").encode(), Path("life_v1.yaml"))
    assert [each.code for each in findings] == ["unknown-key"]
    assert "did you mean 'depends_on'?" in str(findings[0])


def test_relations_are_stored_once_under_one_name_and_direction() -> None:
    given = said("ada RESIDES_IN oslo", "acme EMPLOYS ada", "eva MARRIED_TO ada", "ada USES desk")
    stored = ontology().check(given)
    assert [(each.source, each.type, each.target) for each in stored.relations] == [
        ("ada", "LIVES_IN", "oslo"), ("ada", "WORKS_FOR", "acme"), ("ada", "MARRIED_TO", "eva"),
        ("ada", "USES", "desk"),
    ]  # fmt: skip
    assert ontology().stored(stored) == stored


def test_a_move_begins_a_home_at_its_time() -> None:
    at = datetime(2026, 2, 1, tzinfo=UTC)
    whole = ontology().whole(said("ada MOVED_TO oslo"), at)
    assert [(each.type, each.valid_from) for each in whole.relations] == [("MOVED_TO", None), ("LIVES_IN", at)]


def test_types_that_depend_on_others_have_levels_and_others_have_no_ends() -> None:
    ends = ontology().ends
    assert {name: each.level for name, each in ends.items()} == {
        "LIVES_IN": 0, "MARRIED_TO": 0, "WORKS_FOR": 0, "SITS_IN": 1, "USES": 2,
    }  # fmt: skip
    of_all = Ontologies([ontology()]).ends
    assert of_all.changed("WORKS_FOR") == [(0, "WORKS_FOR"), (1, "WORKS_FOR"), (2, "SITS_IN")]
    assert of_all.reaches_others("MARRIED_TO")
    assert not of_all.reaches_others("WORKS_FOR")
    assert "MOVED_TO" not in of_all
    circle = {"A": EdgeRule(depends_on="B"), "B": EdgeRule(depends_on="A")}
    assert level_of("A", circle) == 5
    assert ends_of({}) == {}


def test_rules_change_the_digest_of_an_ontology() -> None:
    assert ontology().digest != ontology(LIFE.replace("mark", "end")).digest
    assert ontology().digest == ontology().digest
