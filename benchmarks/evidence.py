"""``python -m benchmarks.evidence FILE``: the evidence that a ranking finds, and shows in a block, in this process.

The conversations of a file in the format of LoCoMo's ``locomo10.json`` are ranked without servers, as a responder ranks
the memories of a user. ``--learn`` learns the weights of the signals from the same file: a listwise softmax over the
candidates of each question, in two folds, so that no question is scored by weights that know its conversation.
``--vectors`` adds the embedder of ``GRAPHWEFT_EMBEDDER``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from graphweft_rules import AllRows, BoundQuery
from graphweft_rules.files.model import InjectionQuery, Place
from graphweft_rules.matching.clock import utc_text
from graphweft_rules.output.packing import pack
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.evaluation.locomo import Conversation, LocomoQuestion, read
from graphweft_workers.evaluation.measures import DEPTHS, Score, figures_of, recall_of, share_found
from graphweft_workers.retrieval.empty_turns import tells_nothing
from graphweft_workers.retrieval.passages import best_place
from graphweft_workers.retrieval.questions import RankedQuestion, read_question
from graphweft_workers.retrieval.scope_index import IndexedNode, ScopeIndex
from graphweft_workers.retrieval.scope_ranking import WEIGHTS
from graphweft_workers.retrieval.signals import KindIndex, Near, Signals, find_signals, linear
from graphweft_workers.settings.settings import Settings
from graphweft_workers.text.terms import terms
from graphweft_workers.wiring.embedder import make_embedder

_TODAY: Final = date(2026, 11, 28)
_NEAREST: Final = 200
_SHORT: Final = 300
_ROWS: Final = 50
_STEPS: Final = 150
_RATE: Final = 0.03
_NAMES: Final = {**{f"recall@{depth}": f"@{depth}" for depth in DEPTHS}, "block": "in block"}
"""The figures that are printed."""
_PULL: Final = 0.002
"""How much a weight is pulled to its start in each step."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A question with its signals."""

    question: LocomoQuestion
    asked: RankedQuestion
    keys: Sequence[str]
    """The turn of each candidate."""
    signals: Signals
    conversation: Conversation


def main(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="In the format of locomo10.json.")],
    tokens: Annotated[int, typer.Option(help="Tokens of a block.")] = 600,
    learn: Annotated[bool, typer.Option("--learn", help="Learn the weights, in two folds.")] = False,
    vectors: Annotated[bool, typer.Option("--vectors", help="Use GRAPHWEFT_EMBEDDER.")] = False,
) -> None:
    """Print recall among the first 10, and the evidence in a block."""
    try:
        conversations = read(file)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from error
    embedder = make_embedder(Settings.load()) if vectors else None
    began = time.process_time()
    cases = [case for each in conversations for case in _cases(each, embedder)]
    ms = (time.process_time() - began) * 1_000 / len(cases)
    report: dict[str, Any] = {"ms_of_cpu": round(ms, 2), "weights": _figures(cases, lambda _: WEIGHTS, tokens)}
    if learn:
        parity = {each.id: place % 2 for place, each in enumerate(conversations)}
        learned = [_learned([each for each in cases if parity[each.conversation.id] != fold]) for fold in (0, 1)]
        report["two_folds"] = _figures(cases, lambda case: learned[parity[case.conversation.id]], tokens)
        report["learned"] = {name: round(value, 3) for name, value in _learned(cases).items()}
    print(json.dumps(report, indent=1))


def _cases(conversation: Conversation, embedder: Embedder | None) -> Iterator[_Case]:
    texts = {turn.id: f"{turn.speaker}: {turn.text}" for turn in conversation.turns}
    index = ScopeIndex(
        [
            IndexedNode(
                turn.id, utc_text(turn.time), " ".join(found := terms(texts[turn.id])), len(found),
                thread=conversation.id, who=turn.speaker, said=turn.text if len(turn.text) <= _SHORT else "",
                role="user" if turn.speaker == conversation.first else "assistant",
            )
            for turn in conversation.turns
        ]
    )  # fmt: skip
    while not index.read(1_000):
        pass
    of_turns, of_questions = asyncio.run(_embedded(embedder, conversation, [texts[key] for key in index.keys]))
    matrix = np.array(of_turns)
    for place, question in enumerate(conversation.questions):
        near: dict[tuple[int, int], float] = {}
        if of_questions:
            cosines = matrix @ np.array(of_questions[place])
            near = {(0, int(number)): float(cosines[number]) for number in np.argsort(-cosines)[:_NEAREST]}
        asked = read_question(question.text, today=_TODAY)
        signals = find_signals(asked, [KindIndex(of=0, index=index)], Near(cosines=near, parts=frozenset({0})), WEIGHTS)
        keys = [index.keys[number] for _, number in signals.candidates]
        yield _Case(question, asked, keys, signals, conversation)


async def _embedded(
    embedder: Embedder | None, conversation: Conversation, texts: Sequence[str]
) -> tuple[list[list[float]], list[list[float]]]:
    if embedder is None:
        return [], []
    return await embedder.embed(texts), await embedder.embed([each.text for each in conversation.questions])


def _order(case: _Case, weights: Mapping[str, float]) -> list[str]:
    """Return the turns as a search shows them: those that tell nothing are last."""
    sums = linear(case.signals, weights)
    said = {turn.id: turn for turn in case.conversation.turns}

    def place(at: int) -> tuple[bool, float, int]:
        turn = said[case.keys[at]]
        role = "user" if turn.speaker == case.conversation.first else "assistant"
        return tells_nothing(turn.text, role), -sums[at], -case.signals.candidates[at][1]

    return [case.keys[at] for at in sorted(range(len(sums)), key=place)]


def _figures(cases: Sequence[_Case], weights_of: Any, tokens: int) -> dict[str, Any]:
    groups: dict[str, list[Score]] = {}
    for case in cases:
        order, evidence = _order(case, weights_of(case)), case.question.evidence
        shown = _shown(case, order[:_ROWS], tokens)
        score = Score(
            recall=recall_of(evidence, [[key] for key in order]), block=share_found(evidence, [shown]), empty=not shown
        )
        groups.setdefault("5" if case.question.category == 5 else "1-4", []).append(score)
    found = {
        f"{group} {_NAMES[name]}": round(100 * figure.value, 1)
        for group, scores in sorted(groups.items())
        for name, figure in figures_of(scores).items()
        if name in _NAMES
    }
    return found | {"empty": sum(score.empty for scores in groups.values() for score in scores)}


def _shown(case: _Case, order: Sequence[str], tokens: int) -> Sequence[str]:
    """Return the turns in the block of a search, with ``tokens`` as its limit."""
    said = {turn.id: turn for turn in case.conversation.turns}
    columns = ("text", "score", "kind", "role", "timestamp", "author_name")
    rows = [
        (
            said[key].text, 0.0 if tells_nothing(said[key].text, None) else 0.5, "memory", "user",
            utc_text(said[key].time), said[key].speaker,
        )
        for key in order
    ]  # fmt: skip
    query = InjectionQuery(id="q", inject_as="remembered_of_this_user", format="memory", place=Place(file="rules"))
    found = AllRows(
        bound=BoundQuery(rule="r", query=query, cypher=None, params={}), columns=columns, rows=rows,
        place=lambda text, size: best_place(text, size, case.asked.terms),
    )  # fmt: skip
    packed = pack([found], max_tokens=tokens, enclosed=True, today=_TODAY)
    return [order[place] for place in packed.kept[0]] if packed.text else []


def _learned(cases: Sequence[_Case]) -> dict[str, float]:
    """Return weights under which the evidence of categories 1 to 4 has most of the softmax of its question."""
    names = list(WEIGHTS)
    lists: list[tuple[Any, Any]] = []
    for case in cases:
        wanted = np.array([key in case.question.evidence for key in case.keys], dtype=float)
        if case.question.category == 5 or not wanted.any():
            continue
        columns = [case.signals.values.get(name, np.zeros(len(case.keys))) for name in names]
        lists.append((np.array(columns).T, wanted / wanted.sum()))
    start = np.array([WEIGHTS[name] for name in names])
    weights, scale = start.copy(), 8.0
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, _STEPS + 1):
        slope = _PULL * (weights - start)
        for matrix, wanted in lists:
            sums = scale * (matrix @ weights)
            share = np.exp(sums - sums.max())
            slope += scale * (matrix.T @ (share / share.sum() - wanted)) / len(lists)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        weights -= _RATE * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return dict(zip(names, weights.tolist(), strict=True))


if __name__ == "__main__":
    typer.run(main)
