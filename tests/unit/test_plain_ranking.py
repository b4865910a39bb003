"""The ranking by columns against the same one by loops, on random memories of several kinds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final

import pytest
from tests.unit.plain_ranking import PlainRanking

from graphweft_rules.matching.clock import utc_text
from graphweft_workers.retrieval.questions import read_question
from graphweft_workers.retrieval.scope_index import IndexedNode, ScopeIndex
from graphweft_workers.retrieval.scope_ranking import rank
from graphweft_workers.retrieval.signals import KindIndex, Near
from graphweft_workers.text.terms import terms

WORDS: Final = [
    "lamp",
    "cat",
    "tom",
    "oslo",
    "blue",
    "seven",
    "yesterday",
    "live",
    "moved",
    "name",
    "job",
    "work",
    "like",
    "prefer",
    "car",
    "red",
    "green",
    "dinner",
    "eat",
    "where",
    "tea",
    "coffee",
    "dog",
    "school",
    "2024",
    "music",
]
REPLIES: Final = (
    "No, it's May 5th.", "Sorry, I meant Bergen.", "Blue.", "I do not know.", "Thanks!",
    "My lamp is blue until Friday.", "My mum lives in Oslo.", "From December my cat is blue.",
    "I live in Oslo this week.",
)  # fmt: skip
ASKED: Final = (
    "Where does my {} live", "What {}", "When did I {} on 5 July 2026?", "How many {} do I like?",
    "Where do I live {}", "Is my {} blue?",
    "what did I {} last month", "Tell Tom about {} in July",
)  # fmt: skip
START: Final = datetime(2026, 7, 1, tzinfo=UTC)
ROUNDING: Final = 1e-9
"""Sums that differ by less are equal: they are added up in another order."""


def nodes_of(rnd: random.Random, count: int, *, are_turns: bool) -> list[IndexedNode]:
    nodes: list[IndexedNode] = []
    for place in range(count):
        text = " ".join(rnd.choices(WORDS, k=rnd.choice([1, 2, 3, 5, 9, 20, 120, 300]))) + rnd.choice([".", "?", "!"])
        if rnd.random() < 0.1:
            text = rnd.choice(REPLIES)
        who, role = rnd.choice(["", "Ann", "Bob", "Tom"]), rnd.choice(["user", "assistant"])
        minutes = rnd.randrange(60 * 24 * 60) if rnd.random() < 0.3 else 7 * place
        found = terms(f"{who}: {text}" if who else text)
        is_limited = rnd.random() < 0.3
        nodes.append(IndexedNode(
            f"{place:05}", utc_text(START + timedelta(minutes=minutes)), " ".join(found), len(found),
            "2026-07-05" if is_limited else None, "2026-10-01" if is_limited and rnd.random() < 0.5 else None,
            thread=rnd.choice("abcde") if are_turns else "", who=(who or role) if are_turns else "",
            role=role if are_turns else "", said=text if are_turns and len(text) <= 300 else "",
        ))  # fmt: skip
    return nodes


def index_of(nodes: Sequence[IndexedNode]) -> ScopeIndex:
    index = ScopeIndex(nodes)
    while not index.read(1_000):
        pass
    return index


@pytest.mark.long(keep=("0", "3"))
@pytest.mark.parametrize("seed", range(12))
def test_the_order_is_that_of_the_plain_ranking(seed: int) -> None:
    rnd = random.Random(seed)
    counts = [rnd.choice([0, 1, 5, 50, 250, 700]) for _ in range(rnd.choice([1, 2, 4]))]
    nodes = [nodes_of(rnd, count, are_turns=not place or not seed % 3) for place, count in enumerate(counts)]
    indexes = [index_of(each) for each in nodes]
    at = rnd.choice([None, "2026-11-01"])
    parts = [
        KindIndex(of=place, index=index, valid=index.valid(at), condenses=place == 2, of_another=place == 1)
        for place, index in enumerate(indexes)
    ]
    records = [(place, number) for place, count in enumerate(counts) for number in range(count)]
    for _ in range(4):
        asked = read_question(
            rnd.choice(ASKED).format(" ".join(rnd.choices(WORDS, k=rnd.randint(1, 5)))), today=date(2026, 8, 20)
        )
        some = rnd.sample(records, min(len(records), rnd.choice([0, 30])))
        near = Near(
            cosines={each: rnd.uniform(-0.3, 0.9) for each in some if parts[each[0]].valid is None},
            parts=frozenset({0}), is_all=rnd.random() < 0.5,
        )  # fmt: skip
        limit = rnd.choice([100, 150, 400, 1_000])
        plain, sums = PlainRanking(asked, parts, nodes, near).found(limit)
        found = [(hit.of, indexes[hit.of].numbers[hit.key]) for hit in rank(asked, parts, near, limit=limit)]
        assert len(found) == len(plain)
        assert found[len(sums) :] == plain[len(sums) :]
        of_plain = dict(zip(plain, sums, strict=False))
        for ours, theirs in zip(found, plain[: len(sums)], strict=False):
            assert ours == theirs or abs(of_plain[ours] - of_plain[theirs]) < ROUNDING
