"""The measures of answers to questions: shares with their uncertainty, and the comparison of two runs. Pure.

An answer has rows, best first, or only a text. What answers a question are items: messages, or words. The share of a
question is macro: each question counts the same, however many items it has.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DEPTHS: Final = (5, 10, 20)
"""Among how many first rows evidence is looked for."""
_RESAMPLES: Final = 500
_SEED: Final = 1
_OUTSIDE: Final = 0.025
"""The part of the resamples on each side of an interval: 95 % are within."""
_DIFFERENT: Final = 0.05
"""The probability of a difference by chance below which it counts as one."""


def recall_of[Item](evidence: Collection[Item], rows: Sequence[Collection[Item]]) -> dict[int, float]:
    """Return the share of the evidence among the first rows, by their number."""
    return {depth: share_found(evidence, rows[:depth]) for depth in DEPTHS}


def share_found[Item](evidence: Collection[Item], rows: Iterable[Collection[Item]]) -> float:
    """Return the share of the evidence, of which there is some, that rows hold; each row is the items that it holds."""
    wanted = set(evidence)
    found = {item for row in rows for item in row if item in wanted}
    return len(found) / len(wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one way of asking gave for one question. None: the question, or the way, says nothing of that."""

    recall: Mapping[int, float] | None = None
    """By depth: the share of the evidence among so many first rows."""
    block: float | None = None
    """The share of the evidence in the agent's text."""
    empty: bool | None = None
    """Whether a question with an answer got an empty text."""
    stale: bool | None = None
    """Whether what is outdated came first."""
    nothing: bool | None = None
    """Whether a question without an answer in the memory was answered so."""
    tokens: int = 0
    labels: float | None = None
    """The share of the text that nobody said: headings, days, names, scores, ids."""
    ms: float = 0.0
    fault: str = ""
    """Why there was no answer."""

    @property
    def quality(self) -> float:
        """One number for comparisons: the evidence among ten rows, or in the text; 1 less if stale came first."""
        if self.nothing is not None:
            good = float(self.nothing)
        else:
            good = (self.recall[10] if self.recall is not None else self.block) or 0.0
        return good - bool(self.stale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number about all questions of a run."""

    read: Callable[[Score], float | None]
    meaning: str
    less_is_better: bool = False
    percentile: int | None = None
    """Which one of the values; None: their mean."""

    def of(self, values: Sequence[float]) -> float:
        """Return the number of at least one value."""
        if self.percentile is None:
            return statistics.fmean(values)
        return sorted(values)[min(len(values) * self.percentile // 100, len(values) - 1)]


def _at(depth: int) -> Measure:
    return Measure(
        read=lambda score: None if score.recall is None else score.recall[depth],
        meaning=f"evidence in the first {depth} rows",
    )


METRICS: Final[Mapping[str, Measure]] = {
    **{f"recall@{depth}": _at(depth) for depth in DEPTHS},
    "block": Measure(read=lambda score: score.block, meaning="evidence in the agent's text"),
    "empty": Measure(
        read=lambda score: None if score.empty is None else float(score.empty),
        meaning="empty texts",
        less_is_better=True,
    ),
    "stale": Measure(
        read=lambda score: None if score.stale is None else float(score.stale),
        meaning="something outdated came first",
        less_is_better=True,
    ),
    "nothing": Measure(
        read=lambda score: None if score.nothing is None else float(score.nothing),
        meaning="nothing shown where there is no answer",
    ),
    "tokens": Measure(read=lambda score: score.tokens, meaning="tokens of the text", less_is_better=True),
    "labels": Measure(
        read=lambda score: score.labels, meaning="part of the text that nobody said", less_is_better=True
    ),
    "p50_ms": Measure(
        read=lambda score: None if score.fault else score.ms,
        meaning="milliseconds within which 50 % of replies came",
        less_is_better=True,
        percentile=50,
    ),
    "p99_ms": Measure(
        read=lambda score: None if score.fault else score.ms,
        meaning="milliseconds within which 99 % of replies came",
        less_is_better=True,
        percentile=99,
    ),
}
"""All metrics by name, in the order in which people read them."""
SHARES: Final = frozenset({name for name in METRICS if "@" in name} | {"block", "empty", "stale", "nothing", "labels"})
"""Metrics from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A metric of a run. ``low`` and ``high`` enclose it with 95 %, by a bootstrap over the questions."""

    value: float
    questions: int
    low: float | None = None
    high: float | None = None

    def to_dict(self) -> dict[str, float | int | None]:
        """Return it as plain values, for JSON."""
        return {"value": self.value, "low": self.low, "high": self.high, "questions": self.questions}


def figures_of(scores: Sequence[Score]) -> dict[str, Figure]:
    """Return each metric by name that at least one question says something of. Equal scores give equal figures."""
    found: dict[str, Figure] = {}
    for name, metric in METRICS.items():
        values = [value for score in scores if (value := metric.read(score)) is not None]
        if not values:
            continue
        low, high = (None, None) if metric.percentile is not None else interval(values)
        found[name] = Figure(value=metric.of(values), questions=len(values), low=low, high=high)
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of the mean of at least one value: 95 % of the means of random samples are within."""
    chance = random.Random(_SEED)
    count = len(values)
    means = sorted(math.fsum(chance.choices(values, k=count)) / count for _ in range(_RESAMPLES))
    outside = int(_RESAMPLES * _OUTSIDE)
    return means[outside], means[-1 - outside]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs of the same questions: how many were answered better or worse, and whether that may be chance."""

    better: int
    worse: int
    same: int

    @property
    def chance(self) -> float:
        """The probability that fair coins differ as much: an exact sign test with two sides."""
        count = self.better + self.worse
        tails = sum(math.comb(count, at) for at in range(min(self.better, self.worse) + 1))
        return float(min(1.0, 2 * tails / 2**count))

    @property
    def verdict(self) -> str:
        """The comparison in words: ``better 14, worse 9: may be chance``."""
        said = "may be chance" if self.better or self.worse else "no difference"
        if self.chance < _DIFFERENT:
            said = "better" if self.better > self.worse else "worse"
        return f"better {self.better}, worse {self.worse}: {said}"

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values, for JSON."""
        return {
            "better": self.better,
            "worse": self.worse,
            "same": self.same,
            "chance": self.chance,
            "verdict": self.verdict,
        }


def compare(pairs: Iterable[tuple[float, float]]) -> RunComparison:
    """Compare the qualities of questions: each before and now."""
    changes = [now - before for before, now in pairs]
    better, worse = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    return RunComparison(better=better, worse=worse, same=len(changes) - better - worse)
