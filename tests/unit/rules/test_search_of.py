"""``of`` of a search: what of a scope is searched."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.rules.test_searches import bind, load, one, search

from graphweft_contracts.search import READ, REMEMBERED, SEARCHED, SearchQuery
from graphweft_rules import BoundQuery, InjectionSearch, SkippedQuery
from graphweft_rules.matching.searches import SearchError, compile_search

SCOPE = "memory: {user_id: $context.user_id}"


@pytest.mark.parametrize("of", [each for each in SEARCHED if each not in READ])
def test_a_rule_says_what_of_a_scope_is_searched(tmp_path: Path, of: str) -> None:
    [bound] = bind(load(tmp_path, search(f"{SCOPE}, of: {of}, query: tea")))
    assert isinstance(bound, BoundQuery)
    assert bound.search == SearchQuery.model_validate({"memory": {"user_id": "ada"}, "of": of, "text": "tea"})
    assert bound.query.format == ("memory" if of in REMEMBERED else "results")


def test_a_profile_is_read_without_a_query(tmp_path: Path) -> None:
    [bound] = bind(load(tmp_path, search(f"{SCOPE}, of: profile, top_k: 20, as_of: 2026-02-01")))
    assert isinstance(bound, BoundQuery)
    asked = {"memory": {"user_id": "ada"}, "of": "profile", "top_k": 20, "as_of": "2026-02-01"}
    assert (bound.search, bound.query.format) == (SearchQuery.model_validate(asked), "memory")


def test_a_scope_that_is_not_there_leaves_the_search_out(tmp_path: Path) -> None:
    [skipped] = bind(load(tmp_path, search(f"{SCOPE}, of: facts")), user_id=None)
    assert isinstance(skipped, SkippedQuery)
    assert skipped.reason == "missing_param"


@pytest.mark.parametrize(
    ("marked", "code", "said"),
    [
        (f"{SCOPE}, of: »fact", "bad-value", "the of 'fact' is unknown (did you mean 'facts'?)"),
        (f"{SCOPE}, of: »[facts]", "wrong-type", "of"),
        (f"{SCOPE}, of: facts, »index_type: vector, query: x", "conflicting-keys", "facts have no vectors"),
        (f"{SCOPE}, of: entities, »index_type: hybrid, query: x", "conflicting-keys", "entities have no vectors"),
        (f"{SCOPE}, of: facts, index_type: »[fulltext], query: x", "wrong-type", "index_type is a list"),
        (f"{SCOPE}, of: profile, »query: x", "conflicting-keys", "a profile is read as a whole: remove query"),
        (f"{SCOPE}, of: profile, »fill: latest", "conflicting-keys", "a profile is read as a whole: remove fill"),
        (f"{SCOPE}, of: profile, »tags: [home]", "conflicting-keys", "a profile is read as a whole: remove tags"),
        ("»memory: {agent_id: a}, of: profile", "missing-key", "a profile is of one user"),
        (f"{SCOPE}, of: episodes, »index_name: x", "conflicting-keys", "episodes have indexes of their own"),
    ],
)
def test_what_cannot_work_is_found_by_lint(tmp_path: Path, marked: str, code: str, said: str) -> None:
    level, found, message = one(tmp_path, f"{{id: q, inject_as: x, search: {{{marked}}}}}")
    assert (level, found) == ("error", code)
    assert said in message


def test_without_a_scope_there_is_no_search(tmp_path: Path) -> None:
    query = "{id: q, inject_as: x, search: »{of: facts, index_name: x, query: tea}}"
    level, code, message = one(tmp_path, query)
    assert (level, code) == ("error", "missing-key")
    assert "within a scope only" in message
    with pytest.raises(SearchError, match="within a scope only"):
        compile_search(InjectionSearch(options={"of": "facts"}, query="tea"))


def test_a_profile_is_nothing_to_start_from(tmp_path: Path) -> None:
    query = "{id: q, inject_as: x, graphrag: {query: tea, memory: {user_id: a}, search: {»of: profile}}}"
    level, code, message = one(tmp_path, query)
    assert (level, code) == ("error", "conflicting-keys")
    assert "nothing to start from" in message
