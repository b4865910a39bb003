"""What the events of memory are turned into, before any graph."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.services.rules import rule_set

from graphweft_contracts import Event
from graphweft_contracts.memory import MEMORY, memory_id, version_of
from graphweft_rules.cypher.node_labels import shared_labels
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers import dialects
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.neo4j.batch_query import with_plain_vectors
from graphweft_workers.drivers.neo4j.dialect import NEO4J
from graphweft_workers.features.edge_rules import EdgeRule
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.retrieval.scope_marks import MARK

T0 = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
PACK = MemoryMutations()


def event(type: str, data: dict[str, Any], workflow: str | None = None) -> Event:
    return Event.create(type, app_id="a", chat_id="c", workflow=workflow, data=data, id="e", source="/s", time=T0)


def said(type: str, data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {mutation.id: params for mutation, params in PACK.match(event(type, data))}


ADD = {"messages": [{"role": "user", "text": "two dogs"}], "user_id": "u"}


def test_each_kind_of_event_has_its_mutations() -> None:
    assert {mutation.rule for mutation in PACK.mutations} == set(MEMORY) == PACK.types
    assert list(PACK.match(event("order.paid", {}))) == []
    names = [(mutation.rule, mutation.id) for mutation in PACK.mutations]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("mutation", PACK.mutations, ids=lambda mutation: mutation.id)
def test_its_cypher_has_nothing_that_the_linter_would_say(mutation: Any) -> None:
    problems = parse(mutation.cypher.text, role="mutation", dialects=dialects()).problems
    assert [each for each in problems if MARK not in each.message] == []


@pytest.mark.parametrize("name", ["add_unowned", "embed", "mark"])
def test_what_comes_often_shares_queries_on_both_servers(name: str) -> None:
    cypher = next(mutation.cypher for mutation in PACK.mutations if mutation.id == name)
    assert [cypher.batch_query(dialect).mode for dialect in (FALKORDB, NEO4J)] == ["ordered", "ordered"]


def test_memories_of_different_users_share_queries_on_both_servers() -> None:
    cypher = next(mutation.cypher for mutation in PACK.mutations if mutation.id == "add")
    shared = shared_labels(mutation.cypher for mutation in PACK.mutations)
    assert [cypher.batch_query(dialect, shared).mode for dialect in (FALKORDB, NEO4J)] == ["ordered", "ordered"]


def test_a_memory_of_nobody_asks_for_no_owner() -> None:
    assert said("memory.add", ADD).keys() == {"add"}
    assert said("memory.add", {**ADD, "user_id": None, "thread_id": "t"}).keys() == {"add_unowned"}


def test_ids_times_and_terms_come_from_the_event() -> None:
    [message] = said("memory.add", ADD)["add"]["messages"]
    assert message == {
        "id": memory_id("/s", "e", 0),
        "text": "two dogs",
        "role": "user",
        "timestamp": "2026-02-01T10:00:00.000000Z",
        "message_id": None,
        "author_name": None,
        "terms": "two dog",
        "length": 2,
        "stated": None,
        "unsearched": None,
        "tags": None,
        "metadata": None,
        "metadata_terms": None,
        "expires_at": None,
    }


def test_what_ends_makes_no_statement_and_an_end_takes_those_away() -> None:
    lasting = {"role": "user", "text": "I live in Oslo"}
    ending = {**lasting, "expires_at": "2026-03-01"}
    made = said("memory.add", {"user_id": "u", "messages": [ending, lasting]})
    assert [message["expires_at"] for message in made["add"]["messages"]] == ["2026-03-01T00:00:00.000000Z", None]
    assert [each["memory_id"] for each in made["state"]["statements"]] == [memory_id("/s", "e", 1)]
    gone = {"leave_updated", "recount_updated", "revive_updated", "forget_updated"}
    ended = said("memory.update", {"memory_id": "m", "expires_at": "2026-03-01"})
    assert ended.keys() == {*gone, "renew", "end"}
    assert ended["end"]["expires_at"] == "2026-03-01T00:00:00.000000Z"
    lasts = said("memory.update", {"memory_id": "m", "expires_at": "never"})
    assert (lasts.keys(), lasts["end"]["expires_at"]) == ({"renew", "end"}, None)
    both = said("memory.update", {"memory_id": "m", "text": "x", "expires_at": "2026-03-01"})
    assert both.keys() == {*gone, "update", "end"}


def test_how_claims_end_without_others_has_one_text_whatever_removes_them() -> None:
    """Neo4j plans each text anew."""
    dependent = {"works as": EdgeRule(depends_on="works for"), "is managed by": EdgeRule(depends_on="works as")}
    texts = {each.id: each.cypher.statement for each in MemoryMutations(dependent).mutations}
    for alike in (
        ("recount_forgotten", "recount_updated", "recount_erased"),
        ("revive_statements", "revive_updated", "erase_ends"),
        ("follow_forgotten_1", "follow_updated_1", "follow_erased_1"),
        ("follow_forgotten_2", "follow_updated_2", "follow_erased_2"),
    ):
        assert len({texts[id] for id in alike}) == 1
    ending = {text for text in texts.values() if "SET claim.until" in text and "followed = followed" not in text}
    assert len(ending) == 4  # by what is added, what is named, a verdict, and without what is removed


def test_an_update_names_its_version_and_leaves_out_what_stays() -> None:
    made = said("memory.update", {"memory_id": "m", "text": "two dogs", "author_name": "Ann"})
    assert made.keys() == {
        "leave_updated", "recount_updated", "revive_updated", "forget_updated", "update",
    }  # fmt: skip
    assert {name: value for name, value in made["update"].items() if not name.startswith("mark")} == {
        "memory_id": "m",
        "chat_id": "c",
        "text": "two dogs",
        "author_name": "Ann",
        "terms": "ann two dog",
        "length": 3,
        "unsearched": None,
        "at": "2026-02-01T10:00:00.000000Z",
        "version": version_of("/s", "e", "c", "m"),
    }
    labels = said("memory.update", {"memory_id": "m", "tags": ["b", "a", "b"], "metadata": {"n": 1.0, "b": True}})
    assert labels == {
        "label": {
            "memory_id": "m", "chat_id": "c", "tags": ["b", "a"], "metadata": '{"b": true, "n": 1.0}',
            "metadata_terms": ["b=true", "n=1"], "pinned": None,
        },
    }  # fmt: skip


def test_facts_are_of_whoever_the_scope_names_beyond_the_thread() -> None:
    fact = {"subject": "Ann", "predicate": "Lives in", "object": "Oslo"}
    base = {"summary": "s", "memory_ids": ["1"], "model": "m", "facts": [fact]}

    def key(**scope: str) -> str:
        return str(said("memory.summarized", {**base, **scope})["facts"]["facts"][0]["key"])

    assert key(user_id="u", thread_id="t1") == key(user_id="u", thread_id="t2") == key(user_id="u")
    assert len({key(user_id="u"), key(user_id="v"), key(agent_id="u"), key(thread_id="u"), key(thread_id="v")}) == 5


def test_preferences_need_a_user() -> None:
    base = {"summary": "s", "memory_ids": ["1"], "model": "m", "preferences": [{"text": "tea"}]}
    assert "preferences" in said("memory.summarized", {**base, "user_id": "u"})
    assert "preferences" not in said("memory.summarized", {**base, "thread_id": "t"})


def test_every_set_of_rules_knows_them_whatever_the_workflow() -> None:
    rules = rule_set()
    for workflow in (None, "Unknown"):
        added = event("memory.add", ADD, workflow)
        assert rules.knows(added)
        matched = rules.match_event(added)
        assert [(bound.mutation.rule, bound.mutation.id) for bound in matched.mutations] == [("memory.add", "add")]
        again = rules.bind_one(added, "memory.add", "add")
        assert again == matched.mutations[0]
    assert not rules.knows(event("order.paid", {}))
    assert [pack.types for pack in rules.packs_for(["order.paid", "memory.add"])] == [PACK.types]
    assert rules.packs_for(["order.paid"]) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SET m.e = vecf32($v)", "SET m.e =       ($v)"),
        ("RETURN 'vecf32(x)', VecF32 ([1])", "RETURN 'vecf32(x)',        ([1])"),
        ("RETURN m.vecf32", "RETURN m.vecf32"),
        ("MATCH (n) RETURN n", "MATCH (n) RETURN n"),
    ],
)
def test_neo4j_has_no_word_for_vectors(text: str, expected: str) -> None:
    assert with_plain_vectors(text) == expected


WORDS = [f"{number:05x}zq" for number in range(30_000)]
"""Different words: each must be stemmed."""


def test_an_event_has_terms_for_20000_different_words() -> None:
    texts = [" ".join(WORDS[start : start + 1_000]) for start in range(0, 30_000, 1_000)]
    given = {"messages": [{"role": "user", "text": text} for text in texts], "user_id": "u"}
    found = said("memory.add", given)["add"]["messages"]
    assert [each["length"] for each in found] == [1_000] * 20 + [0] * 10
    assert [each["unsearched"] for each in found] == [None] * 20 + [len(text) for text in texts[20:]]
    assert found == said("memory.add", given)["add"]["messages"]  # a replay finds the same


def test_a_summary_with_too_many_words_in_its_facts_is_refused() -> None:
    facts = [
        {"subject": "it", "predicate": "is", "object": "so", "text": " ".join(WORDS[start : start + 500])}
        for start in range(0, 21_000, 500)
    ]
    given = {"memory_ids": ["m"], "summary": "x", "model": "m", "user_id": "u", "facts": facts}
    refused = event("memory.summarized", given)
    assert list(PACK.match(refused)) == []
    assert "more than 20000 different words" in (PACK.refusal(refused) or "")
    assert PACK.refusal(event("memory.summarized", given | {"facts": facts[:40]})) is None


def test_a_nul_in_one_text_costs_no_neighbour() -> None:
    messages = [{"role": "user", "text": "two\0 dogs", "author_name": "A\0da"}, {"role": "user", "text": "one cat"}]
    two, one = said("memory.add", {**ADD, "messages": messages})["add"]["messages"]
    assert (two["text"], two["author_name"], two["terms"], one["text"]) == ("two dogs", "Ada", "ada two dog", "one cat")
    [only] = said("memory.add", {**ADD, "messages": [{"role": "user", "text": "\0"}]})["add"]["messages"]
    assert only["text"] == "\ufffd"


def test_a_nul_in_a_summary_costs_no_fact() -> None:
    fact = {"subject": "Ada\0", "predicate": "owns", "object": "a do\0g", "memory_ids": ["m"]}
    data = {"summary": "Ada\0 and a dog", "memory_ids": ["m"], "facts": [fact], "user_id": "u", "model": "x"}
    found = said("memory.summarized", data)
    assert found["summarize"]["text"] == "Ada and a dog"
    assert [(each["subject"], each["object"]) for each in found["facts"]["facts"]] == [("Ada", "a dog")]
