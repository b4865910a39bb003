"""What a regular expression of ``matches`` costs, estimated from its text: the library compiles it at each call."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_PART: Final = re.compile(
    r"(?P<many>\\(?:[wW]|[pP](?:\{[^}]*\})?))"
    r"|(?P<some>\\(?:[dDsS]|[bB](?:\{[a-z-]+\})?)|\.)"
    r"|(?P<escape>\\(?:[xuU](?:\{[^}]*\}|[0-9A-Fa-f]+)|.|\Z))"
    r"|(?P<flags>\(\?[A-Za-z-]+\))"
    r"|(?P<open>\((?:\?(?:P?<\w*>|[A-Za-z-]*:))?)"
    r"|(?P<close>\))"
    r"|(?P<class>\[)"
    r"|(?P<times>\{\s*[0-9]*\s*(?:,\s*[0-9]*\s*)?\}\??)"
    r"|(?P<sign>[*+?|])"
    r"|(?P<plain>.)",
    re.DOTALL,
)
_IN_CLASS: Final = re.compile(r"(?P<first>\[\^?\]?)|\\.|(?P<end>\])|.", re.DOTALL)
_IGNORES_CASE: Final = re.compile(r"\(\?[A-Za-z]*i")
_NUMBER: Final = re.compile(r"[0-9]+")
_BASE: Final = 10
_MANY: Final = 500
"""Steps to compile a class of Unicode, such as ``\\w``: 0.23 ms."""
_SOME: Final = 80
_RANGE: Final = 16
_LONG_RANGE: Final = 4_000
"""Steps of a range beyond ASCII, if letters of both cases match."""
_GROUP: Final = 8
_ANY_CASE: Final = 12
"""Steps of a letter, if letters of both cases match."""
_STATE: Final = 16
"""What a part counts that may be tried together with others at each character; a plain character counts 1."""
_CHARACTERS: Final = 512
"""Characters, times what their pattern counts, that are matched in the time of a step, at worst."""
_MOST: Final = 1_000_000_000
_LONGEST: Final = 2_000
"""A longer pattern is not read: it costs too much."""


@dataclass(frozen=True, slots=True)
class PatternCost:
    """The cost of one pattern."""

    compiling: int
    """Steps to compile it."""
    states: int
    """What it counts at each character of a text."""

    def matching(self, characters: int) -> int:
        """Return the steps that a text of this length takes, at most."""
        return self.compiling + characters * self.states // _CHARACTERS

    def __add__(self, other: PatternCost) -> PatternCost:
        return PatternCost(min(_MOST, self.compiling + other.compiling), min(_MOST, self.states + other.states))

    def times(self, number: int) -> PatternCost:
        """Return the cost of as many copies."""
        return PatternCost(min(_MOST, self.compiling * number + 1), min(_MOST, max(_STATE, self.states) * number))


_NOTHING: Final = PatternCost(0, 0)


@lru_cache(maxsize=1_024)
def pattern_cost(pattern: str) -> PatternCost:
    """Return the cost of a pattern, rather too large than too small."""
    if len(pattern) > _LONGEST:
        return PatternCost(_MOST, _MOST)
    letter = _ANY_CASE if _IGNORES_CASE.search(pattern) else 1
    fixed = {
        "many": PatternCost(_MANY, _STATE),
        "some": PatternCost(_SOME, _STATE),
        "sign": PatternCost(4, _STATE),
        "flags": _NOTHING,
    }
    plain = PatternCost(letter, 1)
    groups: list[PatternCost] = []  # what stands before each open group
    before, last = _NOTHING, _NOTHING  # what a repetition does not repeat, and what it repeats
    at = 0
    while match := _PART.match(pattern, at):
        kind, at = match.lastgroup or "", match.end()
        if kind == "times":
            last = last.times(_most(match[0]))
        elif kind == "open":
            groups.append(before + last)
            before, last = _NOTHING, _NOTHING
        elif kind == "close" and groups:
            last = before + last + PatternCost(_GROUP, 0)
            before = groups.pop()
        else:
            before = before + last
            if kind == "class":
                at = _end_of_class(pattern, match.start())
                last = PatternCost(_class_steps(pattern[match.start() : at], letter), _STATE)
            else:
                last = fixed.get(kind, plain)
    total = before + last
    for outer in groups:
        total += outer
    return PatternCost(_BASE, _STATE) + total


def _most(repetition: str) -> int:
    """Return how often ``{2,5}`` repeats at most; without an end, once more than at least."""
    numbers = _NUMBER.findall(repetition)
    number = int(numbers[-1]) if numbers and len(numbers[-1]) < 10 else _MOST * bool(numbers)
    return max(1, number + repetition.rstrip("?} ").endswith(","))


def _end_of_class(pattern: str, start: int) -> int:
    depth = 0
    for match in _IN_CLASS.finditer(pattern, start):
        depth += (match["first"] is not None) - (match["end"] is not None)
        if depth == 0:
            return match.end()
    return len(pattern)


def _class_steps(text: str, letter: int) -> int:
    many = len(re.findall(r"\\[pPwW]", text))
    is_long = letter > 1 and ("\\" in text or not text.isascii())
    each = _LONG_RANGE if is_long else _RANGE * letter
    some = len(re.findall(r"\\[dDsS]|\[:|\[\^", text))
    return min(_MOST, _MANY * many + _SOME * some + text.count("-") * each + len(text) * letter)
