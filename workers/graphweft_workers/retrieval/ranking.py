"""The order of what is found: BM25 over words, and one score out of two.

Both kinds of server give the same numbers here (counts of words, cosines to 5 decimals), so the order is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

type Handle = str | int
"""What a node is fetched by."""

_K1: Final = 1.2
_B: Final = 0.75
"""Lucene's, which nobody has tuned to what is searched here."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A node that was found. Of equal scores the earlier target comes first, then the smaller ``key``."""

    handle: Handle
    key: str
    score: float
    of: int = 0
    """Which of the targets of the search it is one of. A handle says which node only together with this."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that may hold words of the question."""

    handle: Handle
    key: str
    length: int
    """Terms of its text, repetitions included."""
    counts: Mapping[str, int]
    """How often it holds each of the question's terms; those that it does not hold may be missing."""
    of: int = 0
    """See ``Hit.of``."""


def ranked(hits: Iterable[Hit]) -> list[Hit]:
    """Return the hits, best first; ties by target, then by key, ascending, then by handle."""
    return sorted(hits, key=lambda hit: (-hit.score, hit.of, hit.key, hit.handle))


def bm25(
    candidates: Iterable[Candidate],
    terms: Sequence[str],
    *,
    total: int,
    mean_length: float,
    holding: Mapping[str, int] | None = None,
) -> list[Hit]:
    """Return the candidates that hold a term, best first, with their BM25 scores as Lucene works them out.

    ``total`` and ``mean_length`` are of all texts that are searched, whether they hold a term or not. ``holding`` says
    how many of these hold each term; without it the candidates are all that do.
    """
    found = [each for each in candidates if any(each.counts.values())]
    if holding is None:
        holding = {term: sum(each.counts.get(term, 0) > 0 for each in found) for term in terms}
    idf = {term: _idf(total, holding.get(term, 0)) for term in terms}
    mean_length = mean_length or 1.0
    hits: list[Hit] = []
    for each in found:
        norm = _K1 * (1 - _B + _B * each.length / mean_length)
        # Always in the order of the terms, so that equal counts give equal sums.
        parts = (idf[term] * count / (count + norm) for term in terms if (count := each.counts.get(term, 0)))
        hits.append(Hit(each.handle, each.key, sum(parts), each.of))
    return ranked(hits)


def _idf(total: int, holding: int) -> float:
    # What is counted at different moments may not fit together.
    return math.log(1 + (max(total, holding) - holding + 0.5) / (holding + 0.5))


def fused(vector: Sequence[Hit], words: Sequence[Hit]) -> list[Hit]:
    """Return what two searches found, best first, with scores in [0, 1].

    Of each search the best has 1 and the last one 0, what it did not find has 0 too, and the score is the mean of both.
    So the best of either comes to 0.5 by itself, and only what both find comes above it. Cosines lie close together
    and BM25 has no upper end; stretched like this they count alike, and a lead in one of them still shows.

    Chosen among standard ways with their usual constants, by how much of the evidence of 1,531 questions on long
    conversations (LoCoMo, all-MiniLM-L6-v2) stands among the first 5, 10 and 20: this one 0.55, 0.65, 0.72. Words alone
    give 0.53, 0.61, 0.67, vectors alone 0.37, 0.46, 0.55. Rejected: the larger of the scores, each divided by its
    list's highest, as neo4j-graphrag has it (0.49, 0.56, 0.64), for then every cosine is near 1 and beats most words;
    the mean of these (0.52, 0.59, 0.66); reciprocal ranks with 60 (0.48, 0.57, 0.63), where what only one search finds
    comes behind nearly everything that both find, however good it is.
    """
    scores: dict[tuple[int, Handle], float] = {}
    first: dict[tuple[int, Handle], Hit] = {}
    for hits in (vector, words):
        for hit, part in zip(hits, _relative(hits), strict=True):
            which = (hit.of, hit.handle)
            first.setdefault(which, hit)
            scores[which] = scores.get(which, 0.0) + part / 2
    return ranked(replace(hit, score=scores[which]) for which, hit in first.items())


def _relative(hits: Sequence[Hit]) -> list[float]:
    """Return the scores with the highest as 1 and the lowest as 0; where all are equal they are 1."""
    if not hits:
        return []
    low, high = min(hit.score for hit in hits), max(hit.score for hit in hits)
    return [(hit.score - low) / (high - low) if high > low else 1.0 for hit in hits]


def falling(hits: Sequence[Hit]) -> list[Hit]:
    """Return the hits with scores of which each is below the one before: equal ones lose a unit in the last place.

    Then ``ORDER BY score DESC`` of somebody else keeps the order of the hits. Scores are 0 or more; 0 stays 0.
    """
    result: list[Hit] = []
    last = math.inf
    for hit in hits:
        last = min(hit.score, math.nextafter(last, 0.0))
        result.append(replace(hit, score=last))
    return result
