"""What a model thinks aloud before its answer, in the text of the answer itself.

Servers that do not know the form of a model leave its reasoning in the content: https://github.com/langgenius/dify,
issue 21130. The first mark may be missing, because a template has written it, and the last one if the answer was cut.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence
from typing import Final, NamedTuple

_MARKS: Final = tuple(
    (re.compile(re.escape(first), re.IGNORECASE), re.compile(re.escape(last), re.IGNORECASE))
    for first, last in (
        *((f"<{name}>", f"</{name}>") for name in ("think", "thinking", "thought", "reasoning", "seed:think")),
        ("[THINK]", "[/THINK]"),
        ("◁think▷", "◁/think▷"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
    )
)
"""The marks around a reasoning, of DeepSeek, Qwen, Gemma, Seed, Magistral, Kimi and Command."""
_HARMONY: Final = re.compile(r"<\|channel\|>analysis<\|message\|>.*?(?:<\|end\|>|$)", re.DOTALL)
_HARMONY_MARK: Final = re.compile(
    r"<\|start\|>assistant|<\|channel\|>(?:final|commentary)[^<]*|<\|(?:message|return|end)\|>"
)
"""What gpt-oss writes around its reasoning, and around the answer."""
_QUOTES: Final = ("`", "'", '"', "“", "\u2018")


def without_reasoning(text: str) -> str:
    """Return an answer without the reasoning in it; an empty text if nothing else was said.

    Marks in quotes or code are part of an answer about them.
    """
    kept = text
    for first, last in _MARKS:
        if last.search(kept) or first.search(kept):
            kept = _without(kept, first, last)
    if "<|channel|>" in kept:
        kept = _HARMONY_MARK.sub("", _HARMONY.sub("", kept))
    return text if kept == text else kept.strip()


class _Mark(NamedTuple):
    start: int
    end: int
    step: int
    """1 for a first mark, -1 for a last one."""


def _without(text: str, first: re.Pattern[str], last: re.Pattern[str]) -> str:
    marks = sorted(
        [_Mark(*found.span(), 1) for found in first.finditer(text)]
        + [_Mark(*found.span(), -1) for found in last.finditer(text)]
    )
    fences = [found.start() for found in re.finditer("```", text)]
    kept: list[str] = []
    at = number = 0
    if marks[0].step < 0 and not _is_quoted(text, marks[0], fences):
        at, number = marks[0].end, 1  # its first mark is missing
    while number < len(marks):
        begun = marks[number]
        number += 1
        if begun.step < 0 or _is_quoted(text, begun, fences):
            continue
        closing = _closing(marks, number)
        if closing is None and text[at : begun.start].rpartition("\n")[2].strip():
            break  # a mark in the middle of a sentence
        kept.append(text[at : begun.start])
        at = len(text) if closing is None else marks[closing].end
        number = len(marks) if closing is None else closing + 1
    return "".join([*kept, text[at:]])


def _is_quoted(text: str, mark: _Mark, fences: Sequence[int]) -> bool:
    return text[max(0, mark.start - 1) : mark.start] in _QUOTES or bisect(fences, mark.start) % 2 == 1


def _closing(marks: Sequence[_Mark], number: int) -> int | None:
    """Return which mark ends a reasoning that has begun, with those inside it; None if it was cut."""
    depth, final = 1, None
    for place in range(number, len(marks)):
        depth += marks[place].step
        final = place if marks[place].step < 0 else final
        if not depth:
            break
    return final  # a first mark that is only mentioned inside makes the depth too large: then the last mark ends it
