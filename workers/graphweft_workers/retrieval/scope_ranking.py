"""One ranking of all that a scope holds, by the signals of ``signals``. Pure.

The weights were learned on LoCoMo alone and rounded; ``python -m benchmarks.evidence FILE --learn`` learns them anew.
Each signal says what it measures:

- ``words``: BM25 of the best passage. ``covered``: how much of the question's words it holds. ``pairs``: two words of
  the question next to each other.
- ``window``, ``session``, ``session_best``: BM25 of the turn with its neighbours, of its session, and of the best three
  turns of this session. ``after_question``: BM25 of the question that it answers.
- ``date``, ``when``, ``number``: it is of a day that the question names, or names a time or a number that is asked for.
- ``own``, ``named``: the question is in the first person and it is the user's, or it names its author. The latter
  counts less, because questions name the wrong person, too.
- ``latest``: of all that says as much, the user told it last, or last before the time that is asked about.
- ``over``: by its own words ("until Friday") it does not hold on the days that are asked about.
- ``asks``, ``empty``, ``short``: it ends with a question, tells nothing, or has few words.
- ``condenses``: it is a summary, which repeats the words of many turns: what a user stated in one goes before it.
- ``vector``: it is near by meaning. ``first_hits``: it holds words that the first hits have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from graphweft_workers.retrieval.questions import RankedQuestion
from graphweft_workers.retrieval.ranking import Hit
from graphweft_workers.retrieval.signals import KindIndex, Near, find_signals

WEIGHTS: Final[Mapping[str, float]] = {
    "words": 0.1,
    "covered": 0.25,
    "pairs": 0.2,
    "window": 0.45,
    "session": 0.35,
    "session_best": 0.25,
    "after_question": 0.4,
    "date": 1.0,
    "when": 0.45,
    "number": 0.15,
    "own": 0.45,
    "named": 0.3,
    "latest": 0.6,
    "over": -0.4,
    "asks": -0.2,
    "empty": -0.2,
    "short": -0.2,
    "condenses": -0.3,
    "vector": 0.5,
    "first_hits": 0.1,
}
FITTING: Final = 0.2
"""A score below says that a record hardly fits. The first that tells something has it if any record fits."""
_ABOVE: Final = 1.01 * FITTING
_BELOW: Final = 0.99 * FITTING
LEAST: Final = 1e-6
"""The score of a hit of which more speaks against it than for it: 0 means that it tells nothing."""


def rank(asked: RankedQuestion, parts: Sequence[KindIndex], near: Near, *, limit: int = 100) -> list[Hit]:
    """Return up to ``limit`` records that fit a question, best first; of equal ones the newest is first.

    Scores are above 0 and at most 1. A score counts by what the signals of the
    question could give at most, and by how much of the question its best hit holds. If nothing fits, all are below
    ``FITTING``; else the first hit that tells something has at least that.
    """
    signals = find_signals(asked, parts, near, WEIGHTS, limit=limit)
    if not signals.count:
        return []
    weights = {name: weight for name, weight in WEIGHTS.items() if weight > 0 and name in signals.values}
    speak = np.any([signals.values[name] for name in weights], axis=1)
    most = sum(weight for weight, speaks in zip(weights.values(), speak.tolist(), strict=True) if speaks)
    factor = signals.reach / most if most else 0.0
    values = signals.sums
    best = factor * float(values[signals.values["empty"] == 0].max(initial=-np.inf))
    if best > 0 and (best >= FITTING) != signals.fits:
        factor *= (_ABOVE if signals.fits else _BELOW) / best
    scores = np.clip(values * factor, LEAST, 1.0)
    places, numbers = signals.places, signals.numbers
    order = np.lexsort((-numbers[: signals.count], places[: signals.count], -scores))
    rest = np.arange(signals.count, len(places))
    shown = np.concatenate([order, rest])[:limit]
    scores = np.append(scores, np.full(len(rest), scores[order[-1]]))
    of_parts: list[int] = places[shown].tolist()
    in_parts: list[int] = numbers[shown].tolist()
    hits: list[Hit] = []
    for place, number, score in zip(of_parts, in_parts, scores[shown].tolist(), strict=True):
        part = parts[place]
        key = part.index.keys[number]
        hits.append(Hit(key, key, score, part.of, -number))
    return hits
