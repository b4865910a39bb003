"""A bounded dictionary keeps its newest keys."""

from __future__ import annotations

from graphweft_contracts.bounded_dict import BoundedDict


def test_a_new_key_beyond_the_limit_removes_the_oldest() -> None:
    kept: BoundedDict[str, int] = BoundedDict(2)
    for number, key in enumerate("abc"):
        kept[key] = number
    assert [*kept] == ["b", "c"]


def test_assigning_makes_a_key_the_newest_and_reading_does_not() -> None:
    kept: BoundedDict[str, int] = BoundedDict(2)
    kept["a"], kept["b"] = 1, 2
    assert kept["a"] == 1
    kept["b"] = 3
    kept["a"] = 4
    kept["c"] = 5
    assert [*kept.items()] == [("a", 4), ("c", 5)]


def test_what_setdefault_and_update_add_is_bounded_too() -> None:
    kept: BoundedDict[str, int] = BoundedDict(2)
    kept.update(a=1, b=2, c=3)
    assert kept.setdefault("d", 4) == 4
    assert [*kept] == ["c", "d"]
