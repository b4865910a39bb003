"""Ranking of hits by one measure: BM25 over terms, or cosines. ``scope_ranking`` ranks by several.

The inputs are equal on every graph server, so the order is too: term counts, and cosines but for their fifth decimal.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

GRID: Final = 100_000
"""Scores by vector are whole numbers of 1 / GRID. Who computes them, a server or an index, does so in 32 bits: of 200
scores about one differs by 1."""

type Handle = str | int
"""Fetches a node."""

K1: Final = 1.2
B: Final = 0.75
"""The defaults of Lucene, not tuned."""


class Hit(NamedTuple):
    """A node that a search found. Ties go by target, then by ``place``, then by ``key``.

    A search makes hundreds, so it is a tuple: a frozen dataclass takes four times as long.
    """

    handle: Handle
    key: str
    score: float
    of: int = 0
    """Index of the target; a handle is unique within its target only."""
    place: int = sys.maxsize
    """Number of the node among those of its target that words find, the latest first; the last if words do not."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that may hold terms of the question."""

    handle: Handle
    key: str
    length: int
    """Number of terms of its text, with repetitions."""
    counts: Mapping[str, int]
    """Term of the question -> how often the node holds it; 0 may be missing."""
    of: int = 0
    """See ``Hit.of``."""
    place: int = 0
    """See ``Hit.place``."""


def ranked(hits: Iterable[Hit]) -> list[Hit]:
    """Return the hits, best first; ties by target, place, key and handle, ascending."""
    return sorted(hits, key=lambda hit: (-hit.score, hit.of, hit.place, hit.key, hit.handle))


def bm25(
    candidates: Iterable[Candidate],
    terms: Sequence[str],
    *,
    total: int,
    mean_length: float,
    holding: Mapping[str, int] | None = None,
) -> list[Hit]:
    """Return the candidates that hold a term, best first, with BM25 scores by Lucene's formula.

    ``total`` and ``mean_length`` are of all searched texts. ``holding`` maps each term to the number of texts that hold
    it; None: the candidates are all of these.
    """
    found = [each for each in candidates if any(each.counts.values())]
    if holding is None:
        holding = {term: sum(each.counts.get(term, 0) > 0 for each in found) for term in terms}
    weights = {term: idf(total, holding.get(term, 0)) for term in terms}
    mean_length = mean_length or 1.0
    hits: list[Hit] = []
    for each in found:
        norm = K1 * (1 - B + B * each.length / mean_length)
        # In the order of the terms: equal counts give equal sums.
        parts = (weights[term] * count / (count + norm) for term in terms if (count := each.counts.get(term, 0)))
        hits.append(Hit(each.handle, each.key, sum(parts), each.of, each.place))
    return ranked(hits)


def idf(total: int, holding: int) -> float:
    """Return the weight of a term that ``holding`` of ``total`` texts hold."""
    # The counts come from two queries, and the graph may change between them.
    return math.log(1 + (max(total, holding) - holding + 0.5) / (holding + 0.5))


def fused(vector: Sequence[Hit], words: Sequence[Hit], *, all_near: bool = False) -> list[Hit]:
    """Return the hits of two searches of an index, best first, with scores in [0, 1].

    Each list is scaled to 1 for its best hit and 0 for its last (min-max); a hit that a list lacks has 0 in it. The
    score is the mean of both. Vectors that are all equally near tell nothing apart: each counts as its cosine.

    With ``all_near`` (all vectors are in ``vector``), a hit without a vector is not compared by it: its score is its
    part of the best.
    """
    near = dict(zip([hit.handle for hit in vector], _relative(vector, lambda hit: cosine(hit.score)), strict=True))
    said = dict(zip([hit.handle for hit in words], _relative(words, lambda _: 1.0), strict=True))
    best = max((hit.score for hit in words), default=0.0) or 1.0
    found: list[Hit] = []
    for hit in words:
        alone = all_near and hit.handle not in near
        score = hit.score / best if alone else (said[hit.handle] + near.get(hit.handle, 0.0)) / 2
        found.append(hit._replace(score=score))
    found += [hit._replace(score=near[hit.handle] / 2) for hit in vector if hit.handle not in said]
    return ranked(found)


def _relative(hits: Sequence[Hit], if_equal: Callable[[Hit], float]) -> list[float]:
    """Return the scores scaled to [0, 1]; if all are equal, what ``if_equal`` gives."""
    if not hits:
        return []
    low, high = min(hit.score for hit in hits), max(hit.score for hit in hits)
    return [(hit.score - low) / (high - low) if high > low else if_equal(hit) for hit in hits]


def beside(near: Sequence[Hit], words: Sequence[Hit]) -> list[Hit]:
    """Return the hits of two searches that find different kinds, best first, with scores in [0, 1].

    By vector, the score is the cosine; by words, its part of the best.
    """
    best = max((hit.score for hit in words), default=0.0) or 1.0
    return ranked(
        [
            *(hit._replace(score=cosine(hit.score)) for hit in near),
            *(hit._replace(score=hit.score / best) for hit in words),
        ]
    )


def cosine(score: float) -> float:
    """Return the cosine of a score by vector, which is (1 + cosine) / 2; 0 for a negative one."""
    return max(0.0, 2 * score - 1)


def falling(hits: Sequence[Hit]) -> list[Hit]:
    """Return the hits with strictly falling scores: an equal score loses one unit in the last place.

    So ``ORDER BY score DESC`` in a retrieval query keeps the order of the hits. Scores are 0 or more; 0 stays 0.
    """
    result: list[Hit] = []
    last = math.inf
    for hit in hits:
        last = min(hit.score, math.nextafter(last, 0.0))
        result.append(hit._replace(score=last))
    return result
