"""A search gives the event loop back after so many terms, however many one memory has."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.ports.dialect import SearchTarget, TextSide
from graphweft_workers.ports.graph_store import Table
from graphweft_workers.retrieval.fulltext import by_words
from graphweft_workers.retrieval.scope_index import IndexedNode, ScopeIndex
from graphweft_workers.retrieval.scope_indexes import read_index
from graphweft_workers.retrieval.statements import Statement


async def turns_of(work: Coroutine[Any, Any, Any]) -> int:
    """Return how often the event loop had its turn during some work."""
    turns = 0
    task = asyncio.ensure_future(work)
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    await task
    return turns


def words(count: int, number: int = 0) -> str:
    return " ".join(f"w{number}x{place % 1_500}" for place in range(count))


@pytest.mark.parametrize(("nodes", "terms"), [(200, 2_000), (5, 20_000), (2_000, 20)])
async def test_an_index_for_one_search_is_read_in_steps(nodes: int, terms: int) -> None:
    rows = [[f"k{place}", f"2026-02-01T10:{place}", terms, words(terms), None, None] for place in range(nodes)]
    assert await turns_of(read_index(rows)) >= nodes * terms // 1_000


async def test_texts_without_stored_terms_are_read_in_steps() -> None:
    target = SearchTarget(labels=("Note",), key="id", text=TextSide(index="notes", properties=("text",)))

    async def ask(asked: Statement) -> Table:
        if "count(" in asked.text:
            return Table(columns=("count", "length"), rows=((40, None),))
        rows = tuple(([words(3_000)], f"k{each}") for each in range(40))
        return Table(columns=("texts", "handle"), rows=rows)

    assert await turns_of(by_words(ask, FALKORDB, [target], ["w0x1"], limit=5, indexes={})) >= 40


def node(place: int, terms: str, *, after: int = 0) -> IndexedNode:
    time = f"2026-02-0{1 + after}T10:00:{place:02}.000000Z"
    return IndexedNode(f"k{after}{place}", time, terms, len(terms.split()), thread="t", who="user", role="user")


def whole(index: ScopeIndex, step: int) -> ScopeIndex:
    before = len(index.sequences)
    while not index.read(step):
        assert len(index.sequences) - before <= step
        before = len(index.sequences)
    return index


def content(index: ScopeIndex) -> dict[str, Any]:
    return {name: value for name, value in vars(index).items() if name not in {"_waiting", "_unread", "vectors"}}


FIRST = [node(place, words(count, place % 2)) for place, count in enumerate([0, 3, 40, 7, 0, 25, 1])]
LATER = [node(place, words(count, place % 2), after=1) for place, count in enumerate([9, 0, 30, 2])]


@pytest.mark.parametrize("step", [11, 15, 30, 1_000_000])
def test_steps_of_any_size_read_the_same(step: int) -> None:
    once, index = whole(ScopeIndex(FIRST), 1_000_000), whole(ScopeIndex(FIRST), step)
    assert content(index) == content(once)
    for each in (once, index):
        each.add(LATER)
    assert content(whole(index, step)) == content(whole(once, 1_000_000))
    assert index.keys == [each.key for each in (*FIRST, *LATER)]


def test_what_is_added_is_seen_node_by_node() -> None:
    index = whole(ScopeIndex(FIRST), 1_000_000)
    index.add(LATER)
    assert len(index.keys) == len(FIRST)
    seen: list[int] = []
    while not index.read(30):
        known = len(index.keys)
        assert [len(each) for each in (index.lengths, index.flags, index.before, index.sessions)] == [known] * 4
        assert len(index.sequences) == index.starts[-1] == index.total_length
        seen.append(known)
    assert seen == [9, 10]
