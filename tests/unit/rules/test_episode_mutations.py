"""What events about episodes may say, and what they are turned into, before any graph."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from graphweft_contracts import Event
from graphweft_contracts.episodes import (
    EPISODES,
    EpisodeAdd,
    EpisodeEntity,
    EpisodeExtracted,
    episode_id,
)
from graphweft_rules import RuleSet
from graphweft_rules.cypher.node_labels import shared_labels
from graphweft_rules.cypher.query import parse
from graphweft_rules.cypher.read_write_sets import read_write_sets
from graphweft_rules.matching.pack import Pack
from graphweft_workers.drivers import dialects
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.neo4j.dialect import NEO4J
from graphweft_workers.engine.plan.order import Arranger
from graphweft_workers.features.declarations import Declarations
from graphweft_workers.features.episodes.mutations import EpisodeMutations, entity_id
from graphweft_workers.features.episodes.ontologies import Ontologies
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.dialect import GraphDialect
from graphweft_workers.retrieval.scope_marks import MARK
from graphweft_workers.text.terms import terms

T0 = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
PACK = EpisodeMutations()
USER = {"user_id": "u"}
ANN = {"type": "Person", "name": "Ann"}
SHOP = {"type": "Project", "name": "Shop"}


def event(type: str, data: dict[str, Any], id: str = "e") -> Event:
    return Event.create(type, app_id="a", chat_id="c", data=data, id=id, source="/s", time=T0)


def add(content: Any, **more: Any) -> dict[str, Any]:
    return {"content": content, "episode_type": "json", **USER, **more}


def said(data: dict[str, Any], type: str = "episode.add") -> dict[str, dict[str, Any]]:
    return {mutation.id: params for mutation, params in PACK.match(event(type, data))}


# --- payloads ---


@pytest.mark.parametrize(
    "data",
    [
        {"content": "x", **USER},
        {"content": "Ann: hello", "episode_type": "message", "thread_id": "t"},
        {"content": "<graphiti_episode>", "name": "n", "schema_id": "agent_memory_v1", "agent_id": "g"},
        {
            "content": "x",
            **USER,
            "reference_time": "2026-01-01T00:00:00Z",
            "source_description": "d",
            "episode_id": "1",
        },
        {"content": '{"any": "json"}', "episode_type": "json", **USER},
        {"content": "[1, 2]", "episode_type": "json", **USER},
    ],
)
def test_other_episodes_than_structured_ones_wait_for_a_model(data: dict[str, Any]) -> None:
    assert EpisodeAdd.model_validate(data).structure is None
    assert said(data).keys() <= {"owner", "add", "add_unowned"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (add("{"), "content: it is no JSON"),
        (add({"entities": {}}), "entities: Input should be a valid tuple"),
        (add({"entities": [], "more": 1}), "^a key is not known here: leave it out$"),
        (
            add({"relations": [{"type": "OWNS", "source": SHOP, "target": SHOP, "more": 1}]}),
            r"^relations\[0\]: a key is not known here: leave it out$",
        ),
        (add({"entities": [{"type": "Person"}]}), r"entities\[0\].name: Field required"),
        (add({"entities": [{"type": "A person", "name": "x"}]}), r"entities\[0\].type: String should match"),
        (add({"entities": [{**ANN, "user_id": "v"}]}), r"entities\[0\]: 'user_id' is a property that every"),
        (add({"entities": [{**ANN, "__x": "v"}]}), r"entities\[0\]: the name of an attribute"),
        (add({"entities": [{**ANN, "a": {}}]}), r"entities\[0\]: attribute 1 beside type and name must be"),
        (add({"entities": [{**ANN, "a": [1]}]}), r"entities\[0\]: attribute 1 beside type and name must be"),
        (add({"entities": [{**ANN, "a": 2**63}]}), r"entities\[0\]: attribute 1 beside type and name must be"),
        (add({"entities": [{**ANN, "a": float("nan")}]}), r"entities\[0\]: attribute 1 beside type and name must be"),
        (add({"entities": [{**ANN, "a": "x" * 4_097}]}), r"entities\[0\]: attribute 1 beside type and name must be"),
        (add({"entities": [{**ANN, **{f"a{n}": 1 for n in range(65)}}]}), "at most 64 attributes"),
        (
            add({"entities": [{**ANN, f"a{n}": 1, f"b{n}": 1} for n in range(101)]}),
            "^the entities have 202 different names of attributes, and an episode has at most 200: give equal things",
        ),
        (
            add({"entities": [{**ANN, **{f"a{n}": 1 for n in range(51)}} for _ in range(197)]}),
            "^the entities have 10,047 attributes, and an episode has at most 10,000 in all: send several episodes$",
        ),
        (
            add({"relations": [{"type": "OWNS", "source": "Ann", "target": SHOP}]}),
            r"relations\[0\].source is the name of no entity of this episode",
        ),
        (
            add(
                {
                    "entities": [ANN, {**ANN, "type": "Team"}],
                    "relations": [{"type": "OWNS", "source": SHOP, "target": "Ann"}],
                }
            ),
            r"relations\[0\].target is the name of several entities",
        ),
        (
            add(
                {
                    "entities": [ANN],
                    "relations": [
                        {
                            "type": "OWNS",
                            "source": "Ann",
                            "target": SHOP,
                            "valid_from": "2026-01-02T00:00:00Z",
                            "valid_to": "2026-01-01T00:00:00Z",
                        }
                    ],
                }
            ),
            "valid_to is before valid_from",
        ),
    ],
)
def test_what_breaks_the_contract_is_refused_with_its_place(data: dict[str, Any], message: str) -> None:
    assert said(data) == {}
    assert re.search(message, PACK.refusal(event("episode.add", data)) or "")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"content": "x"}, "a memory needs a scope"),
        ({"content": "", **USER}, "at least 1 character"),
        ({"content": {"a": 1}, **USER}, "the content of an episode of type 'text' is a text"),
        ({"content": "x", "episode_type": "xml", **USER}, "Input should be 'text', 'json' or 'message'"),
    ],
)
def test_what_the_schema_does_not_admit_is_no_payload(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EpisodeAdd.model_validate(data)
    assert not jsonschema.Draft202012Validator(EpisodeAdd.model_json_schema()).is_valid(data)


def test_times_know_their_zone() -> None:
    with pytest.raises(ValidationError, match="should have timezone info"):
        EpisodeAdd.model_validate({"content": "x", **USER, "reference_time": "2026-01-01T00:00:00"})


@pytest.mark.parametrize(
    "attributes",
    [{"user_id": "v"}, {"__x": 1}, {"a": {}}, {"a": [1]}, {"a": 2**63}, {"a": "x" * 4_097}, {"a b": 1}],
)
def test_the_schema_says_what_attributes_may_be(attributes: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(EpisodeEntity.model_json_schema())
    assert validator.is_valid({**ANN, "role": "lead", "n": 1.5, "tags": ["a"], "none": None})
    assert not validator.is_valid({**ANN, **attributes})
    with pytest.raises(ValidationError):
        EpisodeEntity.model_validate({**ANN, **attributes})


def test_names_and_values_of_an_episode_stay_out_of_errors() -> None:
    bad = add({"entities": [{**ANN, "name": "private"}], "relations": [{"type": "OWNS", "source": "x", "target": "y"}]})
    assert "private" not in str(PACK.refusal(event("episode.add", bad)))


def test_equal_objects_are_equal_texts() -> None:
    one, other = (EpisodeAdd.model_validate(add(content)) for content in ({"b": 1, "a": "ä"}, {"a": "ä", "b": 1}))
    assert one.text == other.text == '{"a":"ä","b":1}'


def test_an_extraction_is_checked_as_an_episode_is() -> None:
    good = {"episode_id": "1", "model": "m", "reference_time": "2026-01-01T00:00:00Z", **USER}
    assert EpisodeExtracted.model_validate(good).structure.entities == ()
    bad = good | {"relations": [{"type": "R", "source": "x", "target": SHOP}]}
    assert "relations[0].source is the name of no entity" in (PACK.refusal(event("episode.extracted", bad)) or "")
    assert said(bad, "episode.extracted") == {}
    with pytest.raises(ValidationError, match="reference_time"):
        EpisodeExtracted.model_validate({"episode_id": "1", "model": "m", **USER})


# --- mutations ---


def test_each_kind_of_event_has_its_mutations() -> None:
    assert {mutation.rule for mutation in PACK.mutations} == {*EPISODES, "memory.erase"} == PACK.types
    assert list(PACK.match(event("order.paid", {}))) == []
    names = [(mutation.rule, mutation.id) for pack in (PACK, MemoryMutations()) for mutation in pack.mutations]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("mutation", PACK.mutations, ids=lambda mutation: f"{mutation.rule}/{mutation.id}")
def test_its_cypher_has_nothing_that_the_linter_would_say(mutation: Any) -> None:
    problems = parse(mutation.cypher.text, role="mutation", dialects=dialects()).problems
    assert [each for each in problems if MARK not in each.message] == []


@pytest.mark.parametrize("pack", [MemoryMutations(), PACK], ids=["memory", "episodes"])
def test_its_cypher_is_what_rules_make_of_the_same_text(pack: Pack) -> None:
    """Only the search for problems is left out."""
    for mutation in pack.mutations:
        assert replace(parse(mutation.cypher.text, role="mutation"), problems=()) == mutation.cypher


def test_mutations_are_made_at_their_first_use_and_once() -> None:
    made: list[str] = []

    def texts() -> Iterator[tuple[str, str, str]]:
        made.append("texts")
        yield "memory.add", "add", "MERGE (:A {id: $id})"

    declared = Declarations("file", texts)
    assert made == []
    with ThreadPoolExecutor(4) as threads:
        found = [each.result() for each in [threads.submit(lambda: declared.mutations) for _ in range(8)]]
    assert made == ["texts"]
    assert all(each is found[0] for each in found)
    assert declared.keys({("B", "id")}, without={("A", "id")}) == {("B", "id")}
    assert made == ["texts"]


@pytest.mark.parametrize("name", ["add", "add_unowned", "extract", "entities", "attributes", "relations"])
def test_what_comes_often_shares_queries_on_both_servers(name: str) -> None:
    found = [mutation.cypher for mutation in PACK.mutations if mutation.id == name]
    shared = shared_labels(mutation.cypher for mutation in PACK.mutations)
    assert {cypher.batch_query(dialect, shared).mode for cypher in found for dialect in (FALKORDB, NEO4J)} == {
        "ordered"
    }


@pytest.mark.parametrize("dialect", [FALKORDB, NEO4J])
def test_episodes_about_the_same_entities_share_queries(dialect: GraphDialect) -> None:
    owns = {"type": "OWNS", "source": ANN, "target": SHOP}
    content = {"entities": [{**ANN, "role": "lead", "city": "Oslo"}, SHOP], "relations": [owns]}
    rules = RuleSet({}, packs=(MemoryMutations(), PACK))
    events = [event("episode.add", add(content)).model_copy(update={"id": f"e{number}"}) for number in range(50)]
    rows = [(bound, number) for number, each in enumerate(events) for bound in rules.match_event(each).mutations]
    steps = Arranger(rules, dialect).arrange(rows)
    assert [(step.mutation.mutation.id, len(step.rows)) for step in steps] == [
        ("add", 50), ("entities", 50), ("attributes", 50), ("relations", 50),
    ]  # fmt: skip


def test_no_query_hides_which_labels_stand_together() -> None:
    assert shared_labels(mutation.cypher for mutation in PACK.mutations) == frozenset()


def test_no_episode_chooses_the_name_of_a_property() -> None:
    """A graph of FalkorDB has 65,535 of them for ever, and all apps wait while it looks one up."""
    known = read_write_sets(mutation.cypher for mutation in PACK.mutations)
    for id in ("add", "add_unowned", "extract", "entities", "attributes", "relations"):
        for mutation in (mutation for mutation in PACK.mutations if mutation.id == id):
            found = known[mutation.cypher.statement]
            assert not found.opaque
            written = {
                touch.resource[2] for touch in found.touches if touch.access == "write" and len(touch.resource) == 3
            }
            assert "*" not in written
    params = said(add({"entities": [{**ANN, "role": "lead", "description": "Tall."}]}))
    [entity], [attribute] = params["entities"]["entities"], params["attributes"]["attributes"]
    assert "role" not in entity
    assert entity["description"] == "Tall."
    assert (attribute["name"], attribute["value"]) == ("role", "lead")


def test_an_episode_is_found_by_what_it_says_and_not_by_how_it_is_written() -> None:
    secret = {"type": "Credential", "name": "hunter"}
    agent = {"type": "Agent", "name": "Helper"}
    relation = {"type": "OWNS", "source": ANN, "target": SHOP, "fact": "She owns it."}
    content = {"entities": [{**agent, "motto": "be kind", "n": 1, "tags": ["late"]}, secret], "relations": [relation]}
    words = said(add(content, schema_id="agent_memory_v1"))["add"]["terms"]
    assert sorted(words.split()) == sorted(terms("She owns it. Ann Shop Helper be kind late"))


def test_mutations_are_for_what_an_episode_says_only() -> None:
    assert list(said(add({"entities": []}))) == ["add"]
    assert list(said(add({"entities": [ANN]}))) == ["add", "entities"]
    assert list(said(add({"entities": [ANN]}, user_id=None, thread_id="t"))) == ["add_unowned", "entities"]
    assert list(said(add({"entities": [{**ANN, "a": None, "b": 1}]}))) == [
        "add", "entities", "attributes",
    ]  # fmt: skip
    assert list(said(add({"relations": [{"type": "OWNS", "source": ANN, "target": SHOP}]}))) == [
        "add", "entities", "relations",
    ]  # fmt: skip


def test_ids_and_times_come_from_the_event() -> None:
    found = said(add({"relations": [{"type": "OWNS", "source": ANN, "target": SHOP}]}))
    assert found["add"]["id"] == found["entities"]["episode"] == episode_id("/s", "e")
    assert found["add"]["reference_time"] == found["add"]["recorded"] == "2026-02-01T10:00:00.000000Z"
    assert [each["id"] for each in found["entities"]["entities"]] == [
        entity_id(USER, "Person", "Ann"), entity_id(USER, "Project", "Shop"),
    ]  # fmt: skip
    [relation] = found["relations"]["relations"]
    assert (relation["fact"], relation["valid_from"], relation["invalid_at"]) == ("Ann owns Shop", None, None)


def test_an_entity_is_one_by_scope_type_and_name() -> None:
    same = {entity_id(USER, "Person", name) for name in ("Ann Lee", "ann  lee", " ANN LEE ", "\uff21nn lee")}
    assert len(same) == 1
    others = [
        entity_id({"user_id": "v"}, "Person", "Ann Lee"),
        entity_id({"agent_id": "u"}, "Person", "Ann Lee"),
        entity_id({"thread_id": "u"}, "Person", "Ann Lee"),
        entity_id(USER, "Team", "Ann Lee"),
        entity_id(USER, "Person", "AnnLee"),
        entity_id({"agent_id": "u"}, "Person", "None"),
        entity_id({"agent_id": "u", "user_id": "None"}, "Person", "None"),
    ]
    assert len({*same, *others}) == 8
    assert entity_id({**USER, "thread_id": "t"}, "Person", "ann lee") in same


def test_of_what_an_episode_says_twice_the_last_counts() -> None:
    twice = [{**ANN, "a": 1, "b": 1}, {**ANN, "name": "ANN", "a": 2}]
    owns = {"type": "OWNS", "source": ANN, "target": SHOP, "fact": "One."}
    ended = {**owns, "fact": " one. ", "valid_to": "2026-01-01T00:00:00Z"}
    found = said(add({"entities": twice, "relations": [owns, ended]}))
    names = [each["name"] for each in found["entities"]["entities"]]
    assert names == ["ANN", "Shop"]
    assert [(each["name"], each["value"]) for each in found["attributes"]["attributes"]] == [("a", 2), ("b", 1)]
    [relation] = found["relations"]["relations"]
    assert (relation["fact"], relation["invalid_at"]) == (" one. ", "2026-01-01T00:00:00.000000Z")


def test_a_relation_is_one_by_ends_type_fact_and_beginning() -> None:
    base = {"type": "OWNS", "source": ANN, "target": SHOP}
    several = [
        base, {**base, "type": "RUNS"}, {**base, "target": ANN}, {**base, "fact": "f"},
        {**base, "valid_from": "2026-01-01T00:00:00Z"}, {**base, "valid_to": "2026-01-01T00:00:00Z"},
    ]  # fmt: skip
    assert len(said(add({"relations": several}))["relations"]["relations"]) == 5


def test_a_structured_episode_is_checked_by_its_ontology() -> None:
    bad = add({"entities": [{"type": "Dog", "name": "Rex"}]})
    assert PACK.refusal(event("episode.add", bad)) is None  # without an ontology any type will do
    assert "entities" in said(bad)
    others: list[dict[str, Any]] = [{"schema_id": "agent_memory_v1"}, {"schema_id": "x"}]
    for more in others:
        refused = event("episode.add", bad | more)
        assert list(PACK.match(refused)) == []
        reason = PACK.refusal(refused) or ""
        assert "use Person, Team" in reason or "use agent_memory_v1" in reason
    tagged = add({"entities": [{"type": "Dog", "name": "<graphiti_episode"}]})
    assert "agent_memory_v1 has no type 'Dog'" in (PACK.refusal(event("episode.add", tagged)) or "")


def test_what_has_no_effect_is_not_another_packs() -> None:
    assert PACK.refusal(event("memory.add", {"messages": [{"role": "user", "text": "x"}], **USER})) is None
    assert PACK.refusal(event("memory.erase", {"user_id": "u"})) is None


def test_it_stands_beside_the_pack_of_memories() -> None:
    rules = RuleSet({}, packs=(MemoryMutations(), EpisodeMutations(Ontologies())))
    matched = rules.match_event(event("memory.erase", {"user_id": "u"}))
    assert [bound.mutation.id for bound in matched.mutations][:3] == ["mark_elsewhere", "mark", "erase"]
    assert "erase_episodes" in [bound.mutation.id for bound in matched.mutations]
    added = event("episode.add", add({"entities": [ANN]}))
    assert rules.knows(added)
    again = rules.bind_one(added, "episode.add", "entities")
    assert again is not None
    assert again in rules.match_event(added).mutations
    # It has no attributes, and a forget is no episode: nobody but the pack knows the parameters.
    assert rules.bind_one(added, "episode.add", "attributes") is None
    assert rules.bind_one(event("memory.forget", {"memory_ids": ["m"]}), "episode.add", "attributes") is None


@pytest.mark.parametrize(("before", "until"), [("2026-02-01T11:00:00Z", 10), ("2026-02-01T09:00:00Z", 9), (None, 10)])
def test_both_packs_erase_up_to_the_same_time(before: str | None, until: int) -> None:
    """They mark the same profile: were one of them further, what is remembered would depend on the order of chats."""
    erased = event("memory.erase", {"user_id": "u"} | ({"before": before} if before else {}))
    matched = RuleSet({}, packs=(MemoryMutations(), PACK)).match_event(erased)
    checkpoints = {bound.params["before"] for bound in matched.mutations if "before" in bound.params}
    assert checkpoints == {f"2026-02-01T{until:02}:00:00.000000Z"}


def test_an_episode_with_too_many_words_in_names_and_facts_is_refused() -> None:
    facts = [" ".join(f"{number:05x}zq" for number in range(start, start + 500)) for start in range(0, 21_000, 500)]
    relations = [{"source": ANN, "target": SHOP, "type": "LIKES", "fact": fact} for fact in facts]
    many = event("episode.add", add({"relations": relations}))
    assert list(PACK.match(many)) == []
    assert "more than 20000 different words" in (PACK.refusal(many) or "")
    few = said(add({"relations": relations[:38]}))
    assert {each["length"] for each in few["relations"]["relations"]} == {500}
