"""What an ontology says claims of users depend on: how files are read, and which mutations a message has by it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from graphweft_contracts import Event
from graphweft_rules.files.findings import RulesError
from graphweft_workers.features.edge_rules import EdgeRule
from graphweft_workers.features.episodes.ontologies.files import lint_ontologies, load_ontologies, read_ontology
from graphweft_workers.features.memory.english_claims import ENGLISH
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.features.predicates import PREDICATES, is_known

T0 = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
HEAD = "predicate_rules:\n"
LIFE = """\
  - {predicate: works as, depends_on: works for}
  - {predicate: has supervisor, depends_on: works as}
  - {predicate: drives, depends_on: works for, when_ended: mark}
"""


def rules(text: str = LIFE) -> dict[str, EdgeRule]:
    found, findings = read_ontology((HEAD + text).encode(), Path("life_v1.yaml"))
    assert findings == ()
    assert found is not None
    return dict(found.predicate_rules)


def chain(*predicates: str) -> str:
    return "\n".join(f"  - {{predicate: {name}, depends_on: {above}}}" for name, above in pairwise(predicates))


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("  - {predicate: has boss, depends_on: works at}", "2:39: error unknown-type: no claim of users has the "
         "predicate 'works at' (did you mean 'works as'?): use one of lives in, works for"),
        ("  - {predicate: has bos, depends_on: works for}", "2:17: error unknown-type: no claim of users has the "
         "predicate 'has bos' (did you mean 'has boss'?)"),
        ("  - {predicate: has boss, depends_on: likes}", "2:39: error bad-value: a user may have several of 'likes'"),
        ("  - {predicate: has boss}", "2:5: error missing-key: an item of predicate_rules needs the key 'depends_on'"),
        ("  - {predicate: drives, depends_on: drives}", "2:37: error circular-types: 'drives' depends on itself"),
        (chain("drives", "works for", "drives"), "2:37: error circular-types: 'drives' → 'works for' → 'drives' is a "
         "circle: remove one depends_on"),
        (chain("drives", "studies", "works as", "works for", "lives in", "has partner"),
         "2:37: error circular-types: 'drives' depends on a chain of 5 predicates, and at most 4 may follow"),
        ("  - {predicate: drives, depends_on: works for}\n  - {predicate: drives, depends_on: lives in}",
         "3:17: error duplicate-predicate: the predicate 'drives' is used at line 2 of predicate_rules already"),
        ("  - {predicate: drives, depends_on: works for, when_ended: stop}", "2:60: error bad-value: the when_ended "
         "'stop' is unknown: write one of end, mark"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_found_with_its_place(text: str, finding: str) -> None:
    found, findings = read_ontology((HEAD + text).encode(), Path("life_v1.yaml"))
    assert found is None
    assert any(finding in str(each) for each in findings), list(map(str, findings))


def test_an_ontology_may_have_rules_of_predicates_alone() -> None:
    assert rules() == {
        "works as": EdgeRule(depends_on="works for"),
        "has supervisor": EdgeRule(depends_on="works as"),
        "drives": EdgeRule(depends_on="works for", when_ended="mark"),
    }
    assert "needs one of entity_types, predicate_rules" in str(read_ontology(b"{}", Path("life_v1.yaml"))[1])


def test_rules_of_predicates_are_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "a_v1.yaml").write_text(HEAD + LIFE)
    assert load_ontologies(tmp_path).predicate_rules == rules()
    (tmp_path / "b_v1.yaml").write_text("entity_types: {A: b}\n" + HEAD + chain("has boss", "works for"))
    said = f"b_v1.yaml:2:1: error duplicate-name: {tmp_path / 'a_v1.yaml'} has predicate_rules, too: write them all"
    assert [said in str(each) for each in lint_ontologies([tmp_path])] == [True]
    with pytest.raises(RulesError, match="has predicate_rules, too"):
        load_ontologies(tmp_path)


def test_each_predicate_of_a_claim_is_known() -> None:
    assert {form.predicate for form in ENGLISH.patterns if not is_known(form.predicate)} <= {"prefers", "does"}
    assert all(map(is_known, PREDICATES))


def said(text: str, pack: MemoryMutations) -> dict[str, Any]:
    data = {"user_id": "u", "messages": [{"role": "user", "text": text}]}
    event = Event.create("memory.add", app_id="a", chat_id="c", data=data, id="e", source="/s", time=T0)
    return {mutation.id: params for mutation, params in pack.match(event)}


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("I work for Acme.", 2),
        ("I work as a nurse.", 2),
        ("My supervisor is Anna Berg.", 1),
        ("I drive a Volvo.", 1),
        ("I live in Oslo.", 0),
        ("I like tea.", 0),
    ],
)
def test_a_message_looks_at_as_many_levels_as_depend_on_it(text: str, levels: int) -> None:
    found = said(text, MemoryMutations(rules()))
    assert [id for id in found if id.startswith("follow")] == [f"follow_added_{n}" for n in range(1, levels + 1)]


def test_a_claim_has_the_key_of_what_it_depends_on() -> None:
    texts = "I work for Acme. I work as a nurse. I drive a Volvo. I live in Oslo. My mother works as a nurse."
    work, nurse, car, home, mother = said(texts, MemoryMutations(rules()))["state"]["statements"]
    assert (work["follows"], home["follows"]) == (None, None)
    assert nurse["follows"] == car["follows"] == work["key"]
    assert (nurse["marks"], car["marks"]) == (None, 1)
    assert mother["follows"] not in {None, work["key"]}


def test_without_rules_there_are_no_more_mutations() -> None:
    pack = MemoryMutations()
    assert not any(mutation.id.startswith("follow") for mutation in pack.mutations)
    assert said("I work for Acme. My boss is Anna Berg.", pack).keys() == {
        "add", "state", "end_named", "end_statements",
    }  # fmt: skip
    [_, boss] = said("I work for Acme. My boss is Anna Berg.", pack)["state"]["statements"]
    assert (boss["follows"], boss["marks"]) == (None, None)
