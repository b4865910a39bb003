"""The cost of loops in conditions (``all``, ``exists``, ``exists_one``, ``filter``, ``map``), counted in steps.

A step is one item that a loop visits, about 0.5 us. The events decide how many items there are: a loop within a loop
over a list of 3,000 items takes 9,000,000 steps. The library cannot stop, so each loop calls back at each item, unless
the values are so small that no order of evaluation could reach the limit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

MOST_STEPS: Final = 500_000
"""Limit of steps of a condition for one event: about 0.2 s."""

LOOPS: Final = ("all", "exists", "exists_one", "filter", "map")
_COPYING: Final = frozenset({"filter", "map"})
"""They copy the list that they have found at each item."""
_TOKEN: Final = re.compile(
    r"""
      [rR]'''.*?''' | [rR]\"\"\".*?\"\"\" | [rR]'[^'\n]*' | [rR]"[^"\n]*"
    | '''(?:[^\\]|\\.)*?''' | \"\"\"(?:[^\\]|\\.)*?\"\"\"
    | '(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*" | //[^\n]*
    | [^\W\d]\w* | \d\w*(?:\.\d\w*)? | \S
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME: Final = re.compile(r"[^\W\d]\w*")
_CHARACTERS: Final = 256
"""Characters of a text that weigh as much as an item of a list."""
_SHARE: Final = 64
"""Items that an operator compares in the time of a step, at least."""
_SHARE_OF_COPIES: Final = 8
"""Items that ``+`` copies in the time of a step."""
_PATTERN_STEPS: Final = 100
"""Steps of ``matches`` with a pattern of the rule: the library compiles it each time."""
_FOREIGN_PATTERN_STEPS: Final = 10_000
"""The same with a pattern that is not a text of the rule: it may take milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop of a condition."""

    name: str
    start: int
    """Where the part begins that is evaluated at each item."""
    end: int
    depth: int
    """1 for a loop that is in no other one."""
    reads: frozenset[str]
    """The condition's variables that are evaluated at each item."""
    fixed: int
    """Steps of each item, whatever the values are."""
    share: int
    """Items that an operator reads in the time of a step."""


def loops_of(expression: str, variables: Collection[str]) -> tuple[Loop, ...]:
    """Return the loops of a valid expression, outer ones before their inner ones."""
    tokens = [match for match in _TOKEN.finditer(expression) if not match[0].startswith("//")]
    texts = [token[0] for token in tokens]
    ends: list[int] = []  # of the loops around the current token
    found: list[Loop] = []
    for at, text in enumerate(texts):
        ends = [end for end in ends if end > at]
        if text not in LOOPS or texts[at - 1 : at] != ["."] or texts[at + 1 : at + 2] != ["("]:
            continue
        if texts[at + 3 : at + 4] != [","] or not _NAME.fullmatch(texts[at + 2]):
            continue
        first, last = _arguments(texts, at + 4)
        body = texts[at + 4 : last]
        ends.append(last)
        found.append(
            Loop(
                name=text,
                start=tokens[at + 4].start(),
                end=tokens[first].start(),
                depth=len(ends),
                reads=frozenset(variables).intersection(body),
                fixed=1 + _pattern_steps(body),
                share=1 if "matches" in body else _SHARE_OF_COPIES if "+" in texts else _SHARE,
            )
        )
    return tuple(found)


def _arguments(texts: list[str], at: int) -> tuple[int, int]:
    """Return the ends of the argument that begins here, and of the last argument."""
    depth, first = 0, None
    for number in range(at, len(texts)):
        text = texts[number]
        if depth == 0 and text in ",)":
            first = number if first is None else first
            if text == ")":
                return first, number
        depth += (text in "([{") - (text in ")]}")
    return len(texts) - 1, len(texts) - 1


def _pattern_steps(body: list[str]) -> int:
    steps = 0
    for at, text in enumerate(body):
        if text == "matches":
            is_literal = body[at + 2 : at + 3] != [] and body[at + 2][-1] in "'\"" and body[at + 3 : at + 4] == [")"]
            steps += _PATTERN_STEPS if is_literal else _FOREIGN_PATTERN_STEPS
    return steps


def with_steps(expression: str, loops: Iterable[Loop], function: str) -> str:
    """Return the expression in which each loop calls ``function`` with its number at each item; it must return true."""
    added: list[tuple[int, str]] = []
    for number, loop in enumerate(loops):
        added += [(loop.start, f"{function}({number}) ? ("), (loop.end, "\n) : false")]  # after a comment
    parts: list[str] = []
    done = 0
    for at, text in sorted(added):
        parts += [expression[done:at], text]
        done = at
    return "".join([*parts, expression[done:]])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCost:
    """What the loops of a condition may cost."""

    loops: tuple[Loop, ...]
    size: int
    """The number of the condition's tokens, which may write a list."""
    small: int
    """Values with up to this many items cannot reach the limit. Less than 0 if that is not known."""

    @classmethod
    def of(cls, expression: str, variables: Collection[str]) -> LoopCost | None:
        """Return the cost of a valid expression; None if its loops take no more steps than its values have items."""
        loops = loops_of(expression, variables)
        if not any(loop.depth > 1 or loop.reads or loop.name in _COPYING or loop.fixed > 1 for loop in loops):
            return None
        size = sum(1 for _ in _TOKEN.finditer(expression))
        known = all(loop.fixed == 1 and loop.share == _SHARE for loop in loops)
        # Each loop visits at most all items, and so does an operator at each of them.
        most = int(MOST_STEPS ** (1 / (1 + max(loop.depth for loop in loops)))) if known else 0
        return cls(loops=loops, size=size, small=most - size)

    @property
    def is_nested(self) -> bool:
        """Whether there is a loop within a loop."""
        return any(loop.depth > 1 for loop in self.loops)

    def is_small(self, values: Iterable[object]) -> bool:
        """Tell whether these values cannot reach the limit, in a time that does not depend on their size."""
        return self.small >= 0 and weight(values, self.small) <= self.small

    def counter(self, values: Mapping[str, object]) -> StepCounter:
        """Return a counter for one evaluation."""
        return StepCounter(self, values)


class StepCounter:
    """Counts the steps of one evaluation."""

    def __init__(self, cost: LoopCost, values: Mapping[str, object]) -> None:
        self._cost = cost
        self._values = values
        self._steps: list[int] = []
        self.spent = 0

    @property
    def is_over(self) -> bool:
        """Whether the condition needs more steps than allowed."""
        return self.spent > MOST_STEPS

    def step(self, loop: int) -> bool | None:
        """Count an item of a loop; beyond the limit return None, which ends the evaluation with an error."""
        if not self._steps:
            self._steps = self._weighed()
        self.spent += self._steps[loop]
        return True if self.spent <= MOST_STEPS else None

    def _weighed(self) -> list[int]:
        """Return the steps of an item of each loop: operators take time in proportion to the values that they read."""
        weights = {name: weight([value]) for name, value in self._values.items()}
        heaviest = max((_heaviest(value) for value in self._values.values()), default=0)
        longest = max((_longest(value) for value in self._values.values()), default=0)
        found: list[int] = []
        for loop in self._cost.loops:
            read = sum(weights.get(name, 0) for name in loop.reads) + (heaviest if loop.depth > 1 else 0)
            copied = max(longest, self._cost.size) // 16 if loop.name in _COPYING else 0
            found.append(loop.fixed + read // loop.share + copied)
        return found


def weight(values: Iterable[object], most: float = float("inf")) -> int:
    """Return the number of items in values, those of inner lists and maps included; stops soon after ``most``."""
    total = 0
    left: list[Iterable[object]] = [values]
    while left and total <= most:
        for item in left.pop():
            total += 1
            if isinstance(item, str):
                total += len(item) // _CHARACTERS
            elif isinstance(item, Mapping):
                left += [item.keys(), item.values()]  # pyright: ignore[reportUnknownMemberType]
            elif isinstance(item, list | tuple):
                left.append(item)  # pyright: ignore[reportUnknownArgumentType]
            if total > most:
                break
    return total


def _items(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()  # pyright: ignore[reportUnknownVariableType]
    return value if isinstance(value, list | tuple) else ()  # pyright: ignore[reportUnknownVariableType]


def _heaviest(value: object) -> int:
    return max((weight([item]) for item in _items(value)), default=0)


def _longest(value: object) -> int:
    """Return the length of the longest list or map in a value."""
    longest = 0
    left = [value]
    while left:
        items = list(_items(left.pop()))
        longest = max(longest, len(items))
        left += [item for item in items if isinstance(item, Mapping | list | tuple)]
    return longest
