"""An earlier run of the same questions, to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from graphweft_contracts import InvalidSettings
from graphweft_workers.evaluation.asking import QuestionScores, Way
from graphweft_workers.evaluation.measures import RunComparison, compare

type _Key = tuple[str, tuple[tuple[str, str], ...], int]


class _Quality(BaseModel):
    quality: float


class _Question(BaseModel):
    model_config = ConfigDict(extra="ignore")

    question: str
    scope: dict[str, str]
    scores: dict[Way, _Quality]


class Baseline(BaseModel):
    """What ``graphweft eval --json`` wrote."""

    model_config = ConfigDict(extra="ignore")

    questions: list[_Question]


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
    changes: Sequence[AnswerChange]
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
    changes: list[AnswerChange] = []
    for key in now.keys() & before.keys():
        for way, score in now[key].scores.items():
            if way not in before[key].scores:
                continue
            then = before[key].scores[way].quality
            pairs.setdefault(way, []).append((then, score.quality))
            if then != score.quality:
                changes.append(AnswerChange(answered=now[key], way=way, before=then, now=score.quality))
    changes.sort(key=lambda each: (each.way, each.now - each.before, each.answered.question.text))
    return RunChanges(
        ways={way: compare(found) for way, found in sorted(pairs.items())},
        changes=changes,
        new=len(now.keys() - before.keys()),
        gone=len(before.keys() - now.keys()),
    )


def _numbered[T](questions: Iterator[tuple[str, Mapping[str, Any], T]]) -> Iterator[tuple[_Key, T]]:
    counts: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    for text, scope, each in questions:
        key = (text, tuple(sorted(scope.items())))
        number = counts[key] = counts.get(key, 0) + 1
        yield (*key, number), each
