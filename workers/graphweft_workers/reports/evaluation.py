"""How well a memory answers questions, by each way of asking, and compared with an earlier run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from graphweft_contracts.plurals import counted
from graphweft_workers.evaluation.asking import QuestionScores, Way
from graphweft_workers.evaluation.baseline import AnswerChange, RunChanges
from graphweft_workers.evaluation.measures import METRICS, Figure, Score, figures_of
from graphweft_workers.reports.report import Notice, Part, TextTable
from graphweft_workers.reports.short_texts import short

_MOST: Final = 10
_CELL: Final = 80
_WHOLE: Final = frozenset({"tokens", "p50_ms", "p99_ms"})
"""Metrics that are no shares."""
_NOT_ANSWERED: Final = "Not, or not wholly answered (share that was found; 1 less if something outdated came first)"
_BY_TAG: Final = ("recall@10", "block", "stale", "nothing")


@dataclass(frozen=True)
class EvaluationReport:
    """A run of questions."""

    app: str
    answered: Sequence[QuestionScores]
    compared: RunChanges | None = None
    limits: Mapping[str, float] | None = None
    """By metric: a bound of ``--fail-under``."""
    variant: str | None = None
    """The other settings of ``varied``; None: it is compared with an earlier run."""
    varied: Sequence[QuestionScores] = ()
    """The same questions, asked with the other settings."""

    @cached_property
    def figures(self) -> dict[Way, dict[str, Figure]]:
        """The metrics of all questions, by way of asking."""
        return {way: figures_of(self._scores(way)) for way in self._ways}

    @cached_property
    def tags(self) -> dict[str, dict[Way, dict[str, Figure]]]:
        """The metrics of the questions with a tag."""
        tags = dict.fromkeys(tag for each in self.answered for tag in each.question.tags)
        return {tag: {way: figures_of(self._scores(way, tag)) for way in self._ways} for tag in sorted(tags)}

    @cached_property
    def failures(self) -> list[str]:
        """The bounds that are not kept, in words."""
        return [said for name, bound in (self.limits or {}).items() for said in self._failures(name, bound)]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        found: dict[str, Any] = {
            "app": self.app,
            "figures": _plain(self.figures),
            "tags": {tag: _plain(figures) for tag, figures in self.tags.items()},
            "questions": [_question(each) for each in self.answered],
            "failures": self.failures,
        }
        if self.compared is not None:
            found["compared"] = {
                "ways": {way: each.to_dict() for way, each in self.compared.ways.items()},
                "figures": {
                    way: {name: {"before": before, "now": now} for name, (before, now) in figures.items()}
                    for way, figures in self.compared.figures.items()
                },
                "changes": [
                    {
                        "question": each.answered.question.text, "scope": each.answered.question.scope.given,
                        "way": each.way, "before": each.before, "now": each.now,
                    }
                    for each in self.compared.changes
                ],
                "new": self.compared.new,
                "gone": self.compared.gone,
            }  # fmt: skip
        return found

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        yield TextTable(
            ("metric", *self._ways, "meaning"),
            [
                (name, *(_cell(name, self.figures[way].get(name)) for way in self._ways), metric.meaning)
                for name, metric in METRICS.items()
                if any(name in self.figures[way] for way in self._ways)
            ],
            title=f"{counted(len(self.answered), 'question')} to the app {self.app} (in brackets: 95 % intervals)",
        )
        if self.tags:
            yield self._by_tag()
        yield from self._not_found()
        if not any(score.quality > 0 for each in self.answered for score in each.scores.values()):
            yield Notice(
                "nothing that answers a question was found: check --app, and the user, thread, agent or application of "
                "each question, of which `graphweft memory list` shows the latest memories"
            )
        yield from _faults(self.answered, "")
        yield from _faults(self.varied, f" with {self.variant}")
        if self.compared is not None:
            yield from _comparison(self.compared, self.variant)
        for said in self.failures:
            yield Notice(said, is_error=True)

    @property
    def _ways(self) -> list[Way]:
        return _ways_of(self.answered)

    def _scores(self, way: Way, tag: str | None = None) -> list[Score]:
        return [each.scores[way] for each in self.answered if tag is None or tag in each.question.tags]

    def _by_tag(self) -> TextTable:
        columns: list[tuple[Way, str]] = [
            (way, name) for way in self._ways for name in _BY_TAG
            if any(name in figures[way] for figures in self.tags.values())
        ]  # fmt: skip
        rows = [
            (
                tag, sum(tag in each.question.tags for each in self.answered),
                *(f"{figure.value:.2f}" if (figure := figures[way].get(name)) else "" for way, name in columns),
            )
            for tag, figures in self.tags.items()
        ]  # fmt: skip
        return TextTable(
            ("tag", "count", *(name if "@" in name else f"{name} ({way})" for way, name in columns)),
            rows,
            title="By tag",
        )

    def _not_found(self) -> Iterator[Part]:
        found = sorted((each for each in self.answered if _lowest(each) < 1), key=_lowest)
        if found:
            rows = [
                (
                    short(each.question.text, _CELL), "/".join(each.question.scope.given.values()),
                    *(f"{score.quality:.2f}" for score in each.scores.values()),
                )
                for each in found[:_MOST]
            ]  # fmt: skip
            yield TextTable(
                ("question", "asked of", *self._ways),
                rows,
                title=_NOT_ANSWERED,
            )
            if len(found) > _MOST:
                yield f"and {counted(len(found) - _MOST, 'other')}: see --json"

    def _failures(self, name: str, bound: float) -> Iterator[str]:
        metric = METRICS[name]
        values = {way: figures[name].value for way, figures in self.figures.items() if name in figures}
        if not values:
            yield f"--fail-under {name}: no question says anything of it: add one, or leave it out"
        for way, value in values.items():
            if (value > bound) if metric.less_is_better else (value < bound):
                wanted = "at most" if metric.less_is_better else "at least"
                yield f"{name} by {way} is {value:.4g}, and should be {wanted} {bound:g}: {metric.meaning}"


def _ways_of(answered: Sequence[QuestionScores]) -> list[Way]:
    return list(dict.fromkeys(way for each in answered for way in each.scores))


def _faults(answered: Sequence[QuestionScores], how: str) -> Iterator[Part]:
    for way in _ways_of(answered):
        faults = Counter(each.scores[way].fault for each in answered if each.scores[way].fault)
        if faults:
            why = ", ".join(f"{reason} {count:,}" for reason, count in faults.most_common())
            yield Notice(
                f"{counted(faults.total(), 'question')} got no answer, or a part of one, by {way}{how}: {why}. What "
                "came counts. `graphweft doctor` and `graphweft context --explain` say more, and --budget-ms gives "
                "more time"
            )


def _plain(figures: Mapping[Way, Mapping[str, Figure]]) -> dict[str, Any]:
    return {way: {name: figure.to_dict() for name, figure in each.items()} for way, each in figures.items()}


def _question(each: QuestionScores) -> dict[str, Any]:
    question = each.question
    return {
        "question": question.text,
        "scope": question.scope.given,
        "place": str(question.place),
        "tags": list(question.tags),
        "scores": {
            way: {
                "quality": score.quality,
                **_values(score),
                "ms": score.ms,
                "fault": score.fault or None,
            }
            for way, score in each.scores.items()
        },
    }


def _values(score: Score) -> dict[str, float]:
    """Return the metrics of one question; percentiles are of all."""
    found = {name: metric.read(score) for name, metric in METRICS.items() if metric.percentile is None}
    return {name: value for name, value in found.items() if value is not None}


def _lowest(each: QuestionScores) -> float:
    return min(score.quality for score in each.scores.values())


def _cells(name: str, values: tuple[float, float] | None) -> tuple[str, str]:
    """Return a metric before and now."""
    if values is None:
        return "", ""
    before, now = (f"{value:,.{_digits(name)}f}" for value in values)
    return before, now


def _digits(name: str) -> int:
    return 0 if name in _WHOLE else 2


def _cell(name: str, figure: Figure | None) -> str:
    if figure is None:
        return ""
    digits = _digits(name)
    said = f"{figure.value:,.{digits}f}"
    if figure.low is None or figure.high is None:
        return said
    return f"{said} ({figure.low:,.{digits}f} to {figure.high:,.{digits}f})"


def _comparison(compared: RunChanges, variant: str | None) -> Iterator[Part]:
    ways: list[Way] = [*compared.ways]
    if not compared.count:
        yield Notice("nothing is compared: no question, with its scope, is in both runs", is_error=True)
        return
    yield TextTable(
        ("metric", *(f"{way} {when}" for way in ways for when in ("before", "now"))),
        [
            (name, *(text for way in ways for text in _cells(name, compared.figures[way].get(name))))
            for name in METRICS
            if any(name in compared.figures[way] for way in ways)
        ],
        title=f"Of {counted(compared.count, 'question')} that the earlier run had, too"
        if variant is None
        else f"Of {counted(compared.count, 'question')}: before as given, now with {variant}",
    )
    if compared.changes:
        shown = [*compared.changes[:_MOST], *compared.changes[_MOST:][-_MOST:]]
        yield TextTable(("way", "question", "before", "now"), list(map(_change, shown)), title="What changed")
        if len(shown) < len(compared.changes):
            yield f"and {counted(len(compared.changes) - len(shown), 'other')}: see --json"
    for way, each in compared.ways.items():
        chance = (
            f"; coins would differ as much with a probability of {each.chance:.2g}" if each.better or each.worse else ""
        )
        yield f"{way}: {each.verdict} ({each.same:,} the same{chance})"
    if compared.new or compared.gone:
        yield Notice(
            f"not compared: {counted(compared.new, 'question')} that the earlier run did not have, and "
            f"{compared.gone:,} that only it had"
        )


def _change(change: AnswerChange) -> tuple[str, str, str, str]:
    text = short(change.answered.question.text, _CELL)
    return change.way, text, f"{change.before:.2f}", f"{change.now:.2f}"
