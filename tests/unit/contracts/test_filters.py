"""Filters of a search and fields of messages: what limits nothing is refused, and an empty selection is one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from graphweft_contracts import MemoryMessage, MemoryUpdate, SearchQuery
from graphweft_contracts.memory import MemoryScope

ANN = MemoryScope(user_id="ann")


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"ids": ["a\0b"]}, "ids.0"),
        ({"ids": [""]}, "ids.0"),
        ({"tags": []}, "tags is empty"),
        ({"metadata": {}}, "metadata is empty"),
        ({"metadata": {"a": {"b": 1}}}, "expected a text of at most 1,024 characters, a number, true or false"),
    ],
)
def test_a_filter_that_limits_nothing_or_is_no_value_is_refused(filters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SearchQuery(memory=ANN, **filters)


def test_no_ids_are_sent_as_a_selection_and_absent_filters_are_not() -> None:
    assert SearchQuery(memory=ANN, ids=[]).sent["ids"] == ()  # type: ignore[arg-type]
    absent = SearchQuery(memory=ANN, ids=None, tags=None, metadata=None, any_of=()).sent
    assert not {"ids", "tags", "metadata", "any_of"} & absent.keys()
    with pytest.raises(ValidationError, match="ids is for what is remembered"):
        SearchQuery(index_name="i", ids=())


@pytest.mark.parametrize(
    "more",
    [
        {"text": "x"}, {"index_type": "fulltext"}, {"fill": "latest"}, {"ids": ["a"]}, {"since": "2026-01-01"},
        {"until": "2026-01-01"}, {"min_score": 0.5}, {"any_of": [ANN]}, {"retrieval_query": "RETURN 1"},
        {"memory": MemoryScope(agent_id="a")},
    ],
)  # fmt: skip
def test_a_profile_is_of_one_user_and_read_as_a_whole(more: dict[str, Any]) -> None:
    asked = {"memory": ANN, "of": "profile", "top_k": 3, "as_of": "2026-01-01", "text": " "}
    known = SearchQuery.model_validate(asked)
    assert known.finds_memory
    with pytest.raises(ValidationError, match=r"read as a whole: leave|of one user"):
        SearchQuery.model_validate({"memory": ANN, "of": "profile", **more})


@pytest.mark.parametrize("pinned", ["yes", 1, "true"])
def test_only_true_and_false_pin(pinned: Any) -> None:
    with pytest.raises(ValidationError, match="pinned"):
        MemoryUpdate(memory_id="m", pinned=pinned)


def test_a_day_is_a_time_of_a_message() -> None:
    message = MemoryMessage.model_validate({"role": "user", "text": "tea", "time": "2026-03-01"})
    assert message.model_dump(mode="json")["time"] == "2026-03-01T00:00:00Z"
