"""The nodes that an index finds by vector, and its size, without a server."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Callable, Mapping, Sequence

import pytest

from graphweft_workers.retrieval.scope_index import IndexedNode, ScopeIndex, Unfit, Vectors, node_of

COUNT = 10
_CALLS = 3


def index_of(vectors: Mapping[str, Sequence[float]]) -> ScopeIndex:
    index = ScopeIndex([IndexedNode(key, "2026-02-01T10:00:00Z", "dog", 1) for key in vectors])
    while not index.read(1_000):
        pass
    index.vectors = Vectors(len(vectors))
    index.vectors.add([(number, vectors[key]) for number, key in enumerate(index.keys)])
    return index


def nearest(vectors: Mapping[str, Sequence[float]], question: Sequence[float]) -> list[tuple[float, str]]:
    """Return score and key of the first nodes as a server orders them: by the rounded score, then by key."""

    def score(vector: Sequence[float]) -> int:
        cosine = math.sumprod(vector, question) / math.hypot(*vector) / math.hypot(*question)
        return round((1 + cosine) / 2 * 100_000)

    found = {key: score(vector) for key, vector in vectors.items()}
    return [(found[key] / 100_000, key) for key in sorted(found, key=lambda key: (-found[key], key))[:COUNT]]


def sparse(rnd: random.Random, size: int, most: int) -> list[float]:
    vector = [0.0] * size
    for place in rnd.sample(range(size), rnd.randint(1, most)):
        vector[place] = rnd.choice([1.0, -1.0, 0.5, rnd.gauss(0, 1), 3e-5])
    return vector


@pytest.mark.parametrize("seed", range(5))
def test_the_nearest_have_the_scores_of_a_server_and_ties_go_by_key(seed: int) -> None:
    rnd = random.Random(seed)
    vectors = {f"{rnd.randrange(10**9):09}": sparse(rnd, 64, 3) for _ in range(400)}
    index = index_of(vectors)
    for _ in range(30):
        question = sparse(rnd, 64, 4)
        assert index.near(question, COUNT) == nearest(vectors, question)


def test_few_vectors_are_all_near() -> None:
    vectors: dict[str, Sequence[float]] = {"b": [1.0, 0.0], "a": [1.0, 0.0], "c": [0.0, -1.0]}
    assert index_of(vectors).near([0.0, 2.0], COUNT) == [(0.5, "a"), (0.5, "b"), (0.0, "c")]


def test_vectors_that_come_later_are_compared_too() -> None:
    rnd = random.Random(1)
    vectors = {f"a{number:03}": sparse(rnd, 16, 4) for number in range(90)}
    index = index_of(dict(list(vectors.items())[:1]))
    assert index.vectors is not None
    before = index.vectors.bytes
    index.keys = list(vectors)
    for number in range(1, 90):
        index.vectors.add([(number, vectors[index.keys[number]])])
    assert index.near([1.0] * 16, COUNT) == nearest(vectors, [1.0] * 16)
    assert index.vectors.bytes > before


@pytest.mark.parametrize("value", [1e308, 1e-320, 5e-324])
def test_the_server_finds_what_is_near_an_extreme_vector(value: float) -> None:
    """The sums of its numbers overflow or vanish. Only a broken model returns such a vector."""
    vectors = {f"a{number:02}": [1.0, 0.5] for number in range(50)}
    assert index_of(vectors).near([value, 0.0], COUNT) is None
    with pytest.raises(Unfit):
        Vectors(1).add([(0, [value, 0.0])])


TEXTS = {
    "ascii": ("m", "dog"),
    "latin": ("m", "größe"),
    "greek": ("αλφα", "σκύλος"),
    "emoji": ("🐕" * 200, "🐕🐈"),
    "long": ("m" * 256, "w" * 50),
    "long emoji": ("🐕" * 250, "🐕" * 60),
}


def measured[Made](make: Callable[[], Made]) -> tuple[Made, int]:
    """Return what is made, and the bytes that it keeps.

    The least of some calls: what the first one keeps for later ones does not count, nor what other threads of the tests
    allocate meanwhile.
    """
    sizes: list[int] = []
    while True:
        tracemalloc.start()
        try:
            made = make()
            sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        if len(sizes) == _CALLS:
            return made, min(sizes)


@pytest.mark.long("-20-", "-3000-False")
@pytest.mark.parametrize("validity", [False, True])
@pytest.mark.parametrize("terms", [1, 20, 3_000])
@pytest.mark.parametrize("text", TEXTS)
def test_an_index_is_no_larger_than_it_says(text: str, terms: int, validity: bool) -> None:
    """``terms`` is the number of different terms: each is in all nodes, in some or in one."""
    key, term = TEXTS[text]
    rnd = random.Random(1)

    def make() -> ScopeIndex:
        nodes = [
            IndexedNode(
                f"{key}{number}",
                f"2026-02-01T10:00:00.{number:06}Z",
                " ".join(f"{term}{rnd.randrange(terms)}" for _ in range(20)),
                20,
                f"{number}{key}" if validity else None,
                f"{number}" if validity and number % 2 else None,
            )
            for number in range(200)
        ]
        index = ScopeIndex(nodes)
        while not index.read(50):
            pass
        return index

    index, size = measured(make)
    assert size <= index.bytes <= 2 * size


@pytest.mark.parametrize(("count", "dimensions"), [(1, 3), (100, 3), (30, 384), (500, 64)])
def test_vectors_are_no_larger_than_they_say(count: int, dimensions: int) -> None:
    rnd = random.Random(1)

    def make() -> Vectors:
        vectors = Vectors(count)
        for number in range(count):
            vectors.add([(number, [rnd.gauss(0, 1) for _ in range(dimensions)])])
        return vectors

    vectors, size = measured(make)
    assert size <= vectors.bytes <= 2 * size + 5_000


def test_an_index_without_nodes_has_a_size_too() -> None:
    index, size = measured(lambda: ScopeIndex([]))
    assert size <= index.bytes


@pytest.mark.parametrize("length", [-1, 2**32, True, 1.0, None])
def test_a_length_that_is_no_count_is_refused(length: object) -> None:
    """A rule may write anything, and an error of Python would be logged as a defect with each build."""
    with pytest.raises(Unfit, match="length"):
        node_of(["key", "2026", length, "word", None, None])
