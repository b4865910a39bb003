"""An earlier run of the same questions, to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from graphweft_contracts import InvalidSettings
from graphweft_workers.evaluation.asking import QuestionScores, Way
from graphweft_workers.evaluation.measures import METRICS, RunComparison, Score, compare

type _Key = tuple[str, tuple[tuple[str, str], ...], int]


class _Scored(BaseModel):
    """One question by one way of asking; the other values are by the names of metrics."""

    model_config = ConfigDict(extra="allow")

    quality: float
    ms: float | None = None
    fault: str | None = None

    def value(self, name: str) -> float | None:
        """Return the value of a metric, if the earlier run had one."""
        if METRICS[name].percentile is not None:
            return None if self.fault else self.ms
        value = (self.model_extra or {}).get(name)
        return float(value) if isinstance(value, int | float) else None


class _Question(BaseModel):
    model_config = ConfigDict(extra="ignore")

    question: str
    scope: dict[str, str]
    scores: dict[Way, _Scored]


class Baseline(BaseModel):
    """What ``graphweft eval --json`` wrote."""

    model_config = ConfigDict(extra="ignore")

    questions: list[_Question]

    @classmethod
    def of(cls, answered: Sequence[QuestionScores]) -> Self:
        """Return a run that has just ended, without its times: what was asked once is answered faster."""
        return cls(
            questions=[
                _Question(
                    question=each.question.text,
                    scope=each.question.scope.given,
                    scores={
                        way: _Scored(quality=score.quality, fault=score.fault or None, **_values(score))
                        for way, score in each.scores.items()
                    },
                )
                for each in answered
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerChange:
    """A question that is answered better or worse than before."""

    answered: QuestionScores
    way: Way
    before: float
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChanges:
    """A run beside an earlier one."""

    ways: Mapping[Way, RunComparison]
    figures: Mapping[Way, Mapping[str, tuple[float, float]]]
    """Metrics before and now, of the questions that both runs have."""
    changes: Sequence[AnswerChange]
    count: int
    """Questions that both runs have."""
    new: int
    """Questions that the earlier run did not have; the comparison leaves them out."""
    gone: int
    """Questions that only the earlier run had."""


def load_baseline(path: Path) -> Baseline:
    """Return an earlier run. Raises ``InvalidSettings``."""
    try:
        return Baseline.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidSettings(f"--against: {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InvalidSettings(
            f"--against: {path} is not what `graphweft eval --json` writes ({where}: {first['msg']}): write it anew "
            f"with `graphweft eval … --json > {path}`"
        ) from None


def compare_with(baseline: Baseline, answered: Sequence[QuestionScores]) -> RunChanges:
    """Compare each question with the same one of an earlier run: same text and scope, by its number among such."""
    before = dict(_numbered((each.question, each.scope, each) for each in baseline.questions))
    now = dict(_numbered((each.question.text, each.question.scope.given, each) for each in answered))
    pairs: dict[Way, list[tuple[float, float]]] = {}
    values: dict[Way, dict[str, list[tuple[float, float]]]] = {}
    changes: list[AnswerChange] = []
    for key in now.keys() & before.keys():
        for way, score in now[key].scores.items():
            if way not in before[key].scores:
                continue
            earlier = before[key].scores[way]
            pairs.setdefault(way, []).append((earlier.quality, score.quality))
            if earlier.quality != score.quality:
                changes.append(AnswerChange(answered=now[key], way=way, before=earlier.quality, now=score.quality))
            for name, metric in METRICS.items():
                value, value_now = earlier.value(name), metric.read(score)
                if value is not None and value_now is not None:
                    values.setdefault(way, {}).setdefault(name, []).append((value, value_now))
    changes.sort(key=lambda each: (each.way, each.now - each.before, each.answered.question.text))
    return RunChanges(
        ways={way: compare(found) for way, found in sorted(pairs.items())},
        figures={
            way: {
                name: (METRICS[name].of([then for then, _ in some]), METRICS[name].of([value for _, value in some]))
                for name in METRICS
                if (some := values.get(way, {}).get(name))
            }
            for way in sorted(pairs)
        },
        changes=changes,
        count=len(now.keys() & before.keys()),
        new=len(now.keys() - before.keys()),
        gone=len(before.keys() - now.keys()),
    )


def _values(score: Score) -> dict[str, Any]:
    return {name: metric.read(score) for name, metric in METRICS.items() if metric.percentile is None}


def _numbered[T](questions: Iterator[tuple[str, Mapping[str, Any], T]]) -> Iterator[tuple[_Key, T]]:
    counts: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    for text, scope, each in questions:
        key = (text, tuple(sorted(scope.items())))
        number = counts[key] = counts.get(key, 0) + 1
        yield (*key, number), each
