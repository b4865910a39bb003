"""The order of what is found, without a server."""

from __future__ import annotations

import math
import random

import pytest

from graphweft_workers.retrieval.fulltext import Selection, select
from graphweft_workers.retrieval.ranking import Candidate, Hit, beside, bm25, falling, fused, ranked


def hits(**scores: float) -> list[Hit]:
    return ranked(Hit(name, name, score) for name, score in scores.items())


def names(found: list[Hit]) -> list[object]:
    return [hit.handle for hit in found]


def test_bm25_is_lucenes() -> None:
    found = bm25(
        [Candidate("a", "a", 4, {"tea": 2}), Candidate("b", "b", 8, {"tea": 1, "oslo": 1}), Candidate("c", "c", 3, {})],
        ["tea", "oslo"],
        total=10,
        mean_length=5,
    )
    tea, oslo = math.log(1 + 8.5 / 2.5), math.log(1 + 9.5 / 1.5)
    long, short = 1.2 * (0.25 + 0.75 * 8 / 5), 1.2 * (0.25 + 0.75 * 4 / 5)
    assert [(hit.handle, pytest.approx(hit.score)) for hit in found] == [
        ("b", tea / (1 + long) + oslo / (1 + long)),
        ("a", tea * 2 / (2 + short)),
    ]


def test_a_rare_word_counts_for_more_than_a_frequent_one_and_a_short_text_for_more_than_a_long_one() -> None:
    def best(*candidates: Candidate) -> object:
        return bm25(candidates, ["x", "y"], total=100, mean_length=10, holding={"x": 50, "y": 2})[0].handle

    assert best(Candidate("x", "x", 10, {"x": 1}), Candidate("y", "y", 10, {"y": 1})) == "y"
    assert best(Candidate("long", "a", 30, {"x": 1}), Candidate("short", "b", 5, {"x": 1})) == "short"
    assert best(Candidate("once", "a", 10, {"x": 1}), Candidate("twice", "b", 10, {"x": 2})) == "twice"


def test_what_is_equal_goes_by_its_key() -> None:
    candidates = [Candidate(name, name, 5, {"x": 1}) for name in "cadb"]
    assert names(bm25(candidates, ["x"], total=9, mean_length=5)) == ["a", "b", "c", "d"]
    assert names(ranked([Hit(2, "", 1.0), Hit(1, "", 1.0), Hit(3, "", 2.0)])) == [3, 1, 2]


def test_counts_that_were_taken_at_different_moments_give_scores_all_the_same() -> None:
    found = bm25([Candidate("a", "a", 5, {"x": 1})], ["x"], total=1, mean_length=0, holding={"x": 3})
    assert found[0].score > 0


def test_a_fused_score_is_between_0_and_1() -> None:
    rnd = random.Random(1)
    for _ in range(300):
        vector = hits(**{str(n): rnd.choice([0.5, 0.7, rnd.random()]) for n in range(rnd.randrange(6))})
        words = hits(**{str(n): rnd.random() * 20 for n in range(3, 3 + rnd.randrange(6))})
        found = fused(vector, words)
        assert {hit.handle for hit in found} == {hit.handle for hit in (*vector, *words)}
        assert all(0 <= hit.score <= 1 for hit in found)
        assert found == ranked(found)


def test_what_both_searches_put_first_has_the_score_1() -> None:
    assert fused(hits(a=0.9, b=0.6), hits(a=7.0, c=2.0))[0] == Hit("a", "a", 1.0)


def test_what_only_one_search_finds_can_come_first() -> None:
    near, said = hits(n=0.95, a=0.60, b=0.55), hits(s=9.0, a=2.5, b=2.0)
    assert names(fused(near, said))[:2] == ["n", "s"]
    assert names(fused(near, []))[0] == "n"
    assert names(fused([], said))[0] == "s"


def test_kinds_that_only_words_find_stand_beside_those_that_vectors_find() -> None:
    facts = [Hit("f", "f", 7.0, of=1), Hit("g", "g", 3.5, of=1)]
    near = hits(a=0.85, b=0.55)
    assert [(hit.handle, pytest.approx(hit.score)) for hit in beside(near, facts)] == [
        ("f", 1.0), ("a", 0.7), ("g", 0.5), ("b", 0.1),
    ]  # fmt: skip


def test_a_node_without_a_vector_is_not_compared_by_it() -> None:
    near, said = hits(a=0.58, b=0.55, c=0.54), hits(x=7.0, y=6.5)
    assert names(fused(near, said, all_near=True))[:2] == ["x", "y"]
    assert names(fused(near, said))[:3] == ["a", "x", "b"], "it may be far away"


def test_vectors_that_are_equally_near_tell_nothing_apart() -> None:
    near = hits(a=0.5, b=0.5, c=0.5)  # a cosine of 0
    found = fused(near, hits(b=2.0))
    assert [(hit.handle, hit.score) for hit in found] == [("b", 0.5), ("a", 0.0), ("c", 0.0)]
    assert fused(hits(a=0.95), [])[0].score == pytest.approx(0.45), "one vector alone counts by its cosine"


def test_of_equal_hits_the_newest_is_first() -> None:
    candidates = [Candidate(name, name, 5, {"x": 1}, place=place) for place, name in enumerate("cadb")]
    assert names(bm25(candidates, ["x"], total=9, mean_length=5)) == ["c", "a", "d", "b"]


def test_scores_that_fall_keep_an_order_that_others_sort_by() -> None:
    found = falling([Hit(n, "", score) for n, score in enumerate([1.0, 1.0, 1.0, 0.4, 0.4, 0.0, 0.0])])
    scores = [hit.score for hit in found]
    assert scores[:5] == sorted(set(scores[:5]), reverse=True)
    assert scores == pytest.approx([1.0, 1.0, 1.0, 0.4, 0.4, 0.0, 0.0])
    assert min(scores) == 0.0
    assert max(scores) == 1.0


@pytest.mark.parametrize(
    ("holding", "selection"),
    [
        ({"a": 4, "b": 2, "c": 3}, Selection(("b", "c", "a"))),
        ({"a": 4, "b": 2, "c": 5}, Selection(("b", "a"), "c", 4)),
        ({"b": 6, "a": 6}, Selection(("a",), "b", 4)),
        ({"a": 20, "b": 30}, Selection((), "a", 10)),
        ({"a": 10, "b": 30}, Selection(("a",))),
        ({"a": 0}, Selection(())),
    ],
)
def test_the_rarest_terms_are_weighed_first(holding: dict[str, int], selection: Selection) -> None:
    assert select(holding, 10) == selection
