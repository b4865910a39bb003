"""What is searched within a scope, and what limits it."""

from __future__ import annotations

import pytest

from graphweft_contracts.memory import MemoryScope
from graphweft_contracts.search import SEARCHED, Searched, SearchQuery
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.retrieval import statements
from graphweft_workers.retrieval.targets import is_of_another, memories, scoped, searched

NOW = "2026-02-01T10:00:00.000000Z"
ALL = {"application_id": "p", "agent_id": "a", "user_id": "u", "thread_id": "t"}


@pytest.mark.parametrize("of", [of for of in SEARCHED if of not in {"facts", "entities"}])
@pytest.mark.parametrize("scope", [{name: ALL[name]} for name in ALL] + [ALL, {"user_id": "u", "thread_id": "t"}])
def test_every_kind_is_limited_by_all_of_a_scope(of: Searched, scope: dict[str, str]) -> None:
    for target in scoped(of, scope, now=NOW):
        assert {**target.origin_scope, **target.scope} == scope
        assert target.scope == scope or target.origin_scope == scope, "one origin is in all of the scopes"


@pytest.mark.parametrize(
    ("of", "given", "limits"),
    [
        ("facts", {"user_id": "u", "thread_id": "t"}, [{"user_id"}, {"user_id"}]),
        ("facts", {"agent_id": "a", "thread_id": "t"}, [{"agent_id", "thread_id"}, {"agent_id"}]),
        ("facts", {"thread_id": "t"}, [{"thread_id"}, {"thread_id"}]),
        ("entities", {"agent_id": "a", "user_id": "u", "thread_id": "t"}, [{"agent_id", "user_id"}]),
    ],
)
def test_by_name_facts_and_entities_are_known_beyond_their_thread(
    of: Searched, given: dict[str, str], limits: list[set[str]]
) -> None:
    assert [target.scope.keys() for target in scoped(of, given, now=NOW)] == limits


@pytest.mark.parametrize("of", ["all", "facts"])
@pytest.mark.parametrize("beside", ["application_id", "agent_id", "user_id"])
def test_within_a_thread_no_fact_says_what_put_it_in_doubt(of: Searched, beside: str) -> None:
    def reasons(scope: dict[str, str]) -> list[str]:
        return [each.expressions["doubted_because"] for each in scoped(of, scope, now=NOW) if each.kind == "fact"]

    wide = {beside: ALL[beside]}
    assert set(reasons({**wide, "thread_id": "t"})) == {"null"}
    assert len(set(reasons(wide))) == 2, "without a thread a fact of an episode says it"


def test_pages_of_a_scope_are_not_found_by_the_keys_of_all_scopes() -> None:
    """FalkorDB would combine both indexes, and walk through a million keys for each page."""
    asked = statements.nodes(FALKORDB, memories({"user_id": "u"}, now=""), after="", limit=10)
    assert "coalesce(n.`id`, '') > $__gw_after" in asked.text
    assert "n.`id` > " not in asked.text


@pytest.mark.parametrize(
    ("memory", "others", "named"),
    [
        ({"user_id": "u"}, [], [False]),
        ({"user_id": "u", "thread_id": "t"}, [{"user_id": "u"}], [False, False]),
        ({"user_id": "u"}, [{"user_id": "v"}, {"application_id": "p"}], [False, True, True]),
        ({"application_id": "p"}, [{"user_id": "u"}], [True, True]),
    ],
)
def test_rows_name_the_user_where_it_may_be_another_than_who_asks(
    memory: dict[str, str], others: list[dict[str, str]], named: list[bool]
) -> None:
    scopes = tuple(MemoryScope(**each) for each in others)
    query = SearchQuery(text="lamp", of="memories", memory=MemoryScope(**memory), any_of=scopes)
    found = searched(query, now=NOW, since=NOW)
    assert ["author_name" in target.expressions for target in found] == named
    assert [is_of_another(target, memory.get("user_id")) for target in found] == [
        "user_id" in memory and target.scope.get("user_id") not in {None, "u"} for target in found
    ]
