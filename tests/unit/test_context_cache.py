"""The cache of injection rows by itself: what is one query, what it holds, and the breaker beside it."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.virtual_time import VirtualClock

from graphweft_rules import BoundQuery, InjectionQuery, Place
from graphweft_rules.cypher.query import parse
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.injection.cache import Cache, Key, key_of
from graphweft_workers.injection.versions import Version
from graphweft_workers.ports.graph_store import Checkpoint, Table

PLACE = Place(file=Path("rules.yaml"), line=1, column=1)
VERSION = Version(checkpoints={0: Checkpoint(offset="1-0")}, seen=0.0)


def bound(cypher: str = "RETURN $v", **params: Any) -> BoundQuery:
    query = InjectionQuery(id="q", cypher=cypher, inject_as="q", place=PLACE)
    return BoundQuery(rule="r", query=query, cypher=parse(cypher, role="injection"), params=params)


def key(value: Any) -> Key:
    made = key_of("shop", bound(v=value))
    assert made is not None
    return made


def table(*cells: Any) -> Table:
    return Table(columns=("v",), rows=tuple((cell,) for cell in cells))


LOOKALIKES = [
    None, False, True, 0, 1, 0.0, -0.0, 1.0, "", "1", "true", "null", [], {}, [1], [1.0], [True], ["1"], [[1]],
    {"a": 1}, {"a": 1.0}, {"b": 1}, ["a", 1], [["a", 1]], ["i", 1], ["l"], ["m"], {"m": []}, float("nan"), 2**63,
]  # fmt: skip


def test_values_that_are_not_the_same_are_not_equal() -> None:
    assert len({key(value) for value in LOOKALIKES}) == len(LOOKALIKES)


def test_the_same_value_is_found_again() -> None:
    for value in LOOKALIKES:
        assert key(value) == key(json.loads(json.dumps(value)))


def test_long_values_make_no_key() -> None:
    assert key_of("shop", bound(v=[[1]] * 20_000)) is None
    assert key_of("shop", bound(v="a" * 20_001)) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_keys_are_equal_exactly_for_the_same_json(one: Any, other: Any) -> None:
    assert (key(one) == key(other)) == (json.dumps(one) == json.dumps(other))


def test_app_and_statement_are_part_of_the_key() -> None:
    keys = [key_of("shop", bound(v=1)), key_of("bank", bound(v=1)), key_of("shop", bound("RETURN $v AS v", v=1))]
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    "cypher",
    [
        "RETURN datetime()",
        "RETURN timestamp() - 1",
        "RETURN rand()",
        "MATCH (n) RETURN n ORDER BY rand ( ) LIMIT 1",
        "RETURN randomUUID()",
        "RETURN datetime.realtime()",
    ],
)
def test_what_differs_each_time_has_no_key(cypher: str) -> None:
    assert key_of("shop", bound(cypher)) is None


@pytest.mark.parametrize("cypher", ["RETURN date()", "MATCH (b:Brand) RETURN b.brand", "RETURN $rand + 1"])
def test_what_does_not_has_one(cypher: str) -> None:
    assert key_of("shop", bound(cypher)) is not None


def test_values_of_unknown_types_have_no_key() -> None:
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    assert [key_of("shop", bound(v=value)) for value in (object(), {1, 2}, [object()], deep)] == [None] * 4


def test_it_holds_no_more_than_its_bytes_and_drops_what_was_used_longest_ago() -> None:
    cache = Cache(20_000)
    for number in range(100):
        cache.put(key(number), table("x" * 1_000), VERSION, 0.0)
        cache.get(key(0))
        assert cache.bytes <= 20_000
    assert 5 < cache.entries < 20
    assert cache.get(key(0)) is not None
    assert cache.get(key(1)) is None
    assert cache.get(key(99)) is not None


@pytest.mark.parametrize(("entries", "size"), [(500, 100), (20, 12_000), (1, 18_000)])
def test_an_app_with_many_or_large_rows_pushes_out_none_of_another_one(entries: int, size: int) -> None:
    cache = Cache(20_000)
    quiet, loud = (
        [made for number in range(count) if (made := key_of(app, bound(v=number))) is not None]
        for app, count in (("quiet", 5), ("loud", entries))
    )
    for each in quiet:
        cache.put(each, table("x" * 500), VERSION, 0.0)
    assert cache.bytes < 10_000
    for each in loud:
        cache.put(each, table("x" * size), VERSION, 0.0)
        assert cache.bytes <= 20_000
    assert [each for each in quiet if cache.get(each) is None] == []
    if size < 10_000:
        assert cache.get(loud[-1]) is not None, "its own, used longest ago, went"
    cache.purge_app("loud")
    assert cache.entries == len(quiet)
    cache.purge_app("quiet")
    assert cache.bytes == 0


def test_what_is_larger_than_all_of_it_is_not_kept() -> None:
    cache = Cache(10_000)
    cache.put(key(1), table("small"), VERSION, 0.0)
    cache.put(key(2), table("x" * 20_000), VERSION, 0.0)
    assert (cache.get(key(1)) is None, cache.get(key(2))) == (False, None)
    cache.put(key(1), table("x" * 20_000), VERSION, 1.0)
    assert (cache.entries, cache.bytes) == (0, 0)


def test_long_values_count_too() -> None:
    cache = Cache(10_000)
    cache.put(key("x" * 20_000), table(1), VERSION, 0.0)
    assert cache.entries == 0


def test_older_rows_do_not_take_the_place_of_newer_ones() -> None:
    cache = Cache(10_000)
    cache.put(key(1), table("new"), VERSION, 2.0)
    cache.put(key(1), table("old"), None, 1.0)
    entry = cache.get(key(1))
    assert entry is not None
    assert (entry.table, entry.version) == (table("new"), VERSION)


def test_a_cache_of_nothing_keeps_nothing() -> None:
    cache = Cache(0)
    cache.put(key(1), table(1), VERSION, 0.0)
    assert (cache.on, cache.entries, cache.bytes) == (False, 0, 0)


def rows_of(kind: str, number: int) -> Table:
    cells: dict[str, Any] = {
        "text": f"a text of some length {number}" * 5,
        "number": 10**6 + number,
        "map": {"name": f"n{number}", "price": number / 7, "tags": [f"t{number}", f"u{number}"]},
    }
    return Table(columns=("v",), rows=tuple((json.loads(json.dumps(cells[kind])),) for _ in range(20)))


@pytest.mark.parametrize("kind", ["text", "number", "map"])
def test_the_bytes_are_near_to_what_python_takes(kind: str) -> None:
    cache = Cache(10**9)
    rows_of(kind, 0)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(200):
            cache.put(key(number), rows_of(kind, number), VERSION, 0.0)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.6 < cache.bytes / taken < 2.5


def test_the_breaker_opens_at_the_fifth_failure_in_a_row() -> None:
    breaker = Breaker(VirtualClock())
    for _ in range(4):
        breaker.failed("shop")
    breaker.succeeded("shop")
    for _ in range(4):
        breaker.failed("shop")
    assert breaker.enter("shop") == "closed"
    breaker.failed("shop")
    assert (breaker.enter("shop"), breaker.enter("bank")) == ("open", "closed")


def test_one_at_a_time_tries_and_waits_longer_each_time() -> None:
    clock = VirtualClock()
    breaker = Breaker(clock)
    for _ in range(5):
        breaker.failed("shop")
    for wait_s in (0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        clock.advance(wait_s - 0.01)
        assert breaker.enter("shop") == "open"
        clock.advance(0.02)
        assert (breaker.enter("shop"), breaker.enter("shop")) == ("trial", "open")
        breaker.failed("shop")
        clock.advance(10)
        assert breaker.enter("shop") == "open"
        breaker.leave("shop")
    clock.advance(5.01)
    assert breaker.enter("shop") == "trial"
    breaker.succeeded("shop")
    breaker.leave("shop")
    assert [breaker.enter("shop") for _ in range(3)] == ["closed"] * 3


def test_a_trial_without_a_word_from_the_server_is_none() -> None:
    clock = VirtualClock()
    breaker = Breaker(clock)
    for _ in range(5):
        breaker.failed("shop")
    clock.advance(1)
    assert breaker.enter("shop") == "trial"
    breaker.leave("shop")
    assert breaker.enter("shop") == "open"
    clock.advance(1)
    assert breaker.enter("shop") == "trial"
