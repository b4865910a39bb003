"""What has ended is directly behind what ended it."""

from __future__ import annotations

from graphweft_workers.retrieval.ended import ValidityEnd, current_first, read_ended
from graphweft_workers.retrieval.ranking import Hit

type Place = tuple[int, str]


def shown(scores: dict[str, float], ended_by: dict[str, str]) -> list[tuple[str, float]]:
    hits = [Hit(key, key, score) for key, score in scores.items()]
    by: dict[Place, Place] = {(0, one): (0, other) for one, other in ended_by.items()}
    found = current_first(hits, by, lambda at, near: Hit(at[1], at[1], near.score, at[0]))
    return [(hit.key, hit.score) for hit in found]


def test_what_ended_something_takes_its_place() -> None:
    assert shown({"oslo": 0.9, "tea": 0.5, "bergen": 0.1}, {"oslo": "bergen"}) == [
        ("bergen", 0.9), ("oslo", 0.9), ("tea", 0.5),
    ]  # fmt: skip


def test_what_ended_something_is_found_if_it_was_no_hit() -> None:
    assert shown({"oslo": 0.9}, {"oslo": "bergen", "bergen": "rome"}) == [("rome", 0.9), ("bergen", 0.9), ("oslo", 0.9)]


def test_each_is_shown_once_and_a_circle_ends() -> None:
    assert [key for key, _ in shown({"a": 0.9, "b": 0.8, "c": 0.7}, {"a": "c", "b": "c"})] == ["c", "a", "b"]
    assert sorted(key for key, _ in shown({"a": 0.9, "b": 0.8}, {"a": "b", "b": "a"})) == ["a", "b"]


def test_a_memory_has_ended_if_all_that_it_tells_has() -> None:
    rows = [
        ("one", True, "2026-03", "m1", "s1"), ("two", True, "2026-03", "m1", "s1"), ("two", True, None, None, None),
        ("three", False, "2026-03", "m1", "s1"), ("four", True, "2026-02", "m1", "s1"),
        ("four", True, "2026-03", None, "s2"),
    ]  # fmt: skip
    assert read_ended(rows, "2026-04") == {
        "one": ValidityEnd(until="2026-03", by_memory="m1", by_statement="s1"),
        "four": ValidityEnd(until="2026-03", by_memory=None, by_statement="s2"),
    }


def test_a_statement_with_a_time_to_come_ends_nothing_yet() -> None:
    rows = [("one", True, "2026-03-05T10:00:00", "m1", "s1")]
    assert read_ended(rows, "2026-03-05T09:59:59") == {}
    assert list(read_ended(rows, "2026-03-05T10:00:00")) == ["one"]
