"""Counts the steps of a search with a pattern, as a matcher that tries one way after the other takes them.

So a test can say that a pattern is linear without a clock. It compiles a pattern as ``re`` parses it to a program of a
few instructions, and runs that with a stack of other ways, as ``re`` does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from re import _constants as ops  # type: ignore[attr-defined]  # the parser has no public name
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any


class TooManySteps(AssertionError):
    """A search takes more steps than it may."""


@dataclass(slots=True)
class _Program:
    """Instructions are ``(name, argument, argument)``; ways are tried in order."""

    flags: int
    code: list[tuple[str, Any, Any]] = field(default_factory=list[tuple[str, Any, Any]])

    def add(self, name: str, first: Any = None, second: Any = None) -> int:
        self.code.append((name, first, second))
        return len(self.code) - 1

    def compile(self, items: Any) -> None:
        for op, given in items:
            getattr(self, f"_{str(op).lower()}", self._one)(given, op)

    def sub(self, items: Any) -> _Program:
        program = _Program(self.flags)
        program.compile(items)
        program.add("end")
        return program

    def _one(self, given: Any, op: Any) -> None:
        """Add what reads one character."""
        item, flags = (op, given), self.flags
        pattern = re.compile(_source(item), flags & (re.ASCII | re.IGNORECASE | re.DOTALL))
        known: dict[str, bool] = {}

        def reads(char: str) -> bool:
            if char not in known:
                known[char] = pattern.fullmatch(char) is not None
            return known[char]

        self.add("char", reads)

    def _branch(self, given: Any, op: Any) -> None:
        ends: list[int] = []
        for items in given[1]:
            split = self.add("split")
            self.compile(items)
            ends.append(self.add("jump"))
            self.code[split] = ("split", split + 1, len(self.code))
        self.add("fail")
        for end in ends:
            self.code[end] = ("jump", len(self.code), None)

    def _subpattern(self, given: Any, op: Any) -> None:
        group, more, less, items = given
        before, self.flags = self.flags, (self.flags | more) & ~less
        self.add("save", f"{group}<")
        self.compile(items)
        self.add("save", f"{group}>")
        self.flags = before

    def _repeat(self, given: Any, *, lazy: bool) -> None:
        least, most, items = given
        for _ in range(least):
            self.compile(items)
        if most is ops.MAXREPEAT:
            place = f"at{len(self.code)}"
            split = self.add("split")
            self.add("save", place)
            self.compile(items)
            self.add("moved", place)
            self.add("jump", split)
            self._ways(split, lazy=lazy)
            return
        splits = []
        for _ in range(most - least):
            splits.append(self.add("split"))
            self.compile(items)
        for split in splits:
            self._ways(split, lazy=lazy)

    def _ways(self, split: int, *, lazy: bool) -> None:
        ways = (split + 1, len(self.code))
        self.code[split] = ("split", *(reversed(ways) if lazy else ways))

    def _max_repeat(self, given: Any, op: Any) -> None:
        self._repeat(given, lazy=False)

    def _min_repeat(self, given: Any, op: Any) -> None:
        self._repeat(given, lazy=True)

    def _possessive_repeat(self, given: Any, op: Any) -> None:
        self.add("atomic", self.sub([(ops.MAX_REPEAT, given)]))

    def _atomic_group(self, given: Any, op: Any) -> None:
        self.add("atomic", self.sub(given))

    def _assert(self, given: Any, op: Any) -> None:
        ahead, items = given
        self.add("look", self.sub(items), 0 if ahead > 0 else items.getwidth()[0])

    def _assert_not(self, given: Any, op: Any) -> None:
        ahead, items = given
        self.add("not", self.sub(items), 0 if ahead > 0 else items.getwidth()[0])

    def _at(self, given: Any, op: Any) -> None:
        self.add("place", str(given))

    def _groupref(self, given: Any, op: Any) -> None:
        self.add("again", given)

    def _groupref_exists(self, given: Any, op: Any) -> None:
        group, then, other = given
        test = self.add("exists")
        self.compile(then)
        jump = self.add("jump")
        self.code[test] = ("exists", group, len(self.code))
        self.compile(other or ())
        self.code[jump] = ("jump", len(self.code), None)

    def _failure(self, given: Any, op: Any) -> None:
        self.add("fail")


def _source(item: tuple[Any, Any]) -> str:
    """Write what reads one character as a pattern again."""
    op, given = item
    match op:
        case ops.LITERAL:
            return re.escape(chr(given))
        case ops.NOT_LITERAL:
            return f"[^{re.escape(chr(given))}]"
        case ops.ANY:
            return "."
        case ops.IN:
            parts = [(each, value) for each, value in given if each is not ops.NEGATE]
            return f"[{'^' if len(parts) < len(given) else ''}{''.join(map(_in_set, parts))}]"
        case _:
            raise NotImplementedError(op)


def _in_set(item: tuple[Any, Any]) -> str:
    op, given = item
    if op is ops.LITERAL:
        return re.escape(chr(given))
    if op is ops.RANGE:
        return f"{re.escape(chr(given[0]))}-{re.escape(chr(given[1]))}"
    letter = {"WORD": "w", "DIGIT": "d", "SPACE": "s"}[str(given).removeprefix("CATEGORY_").removeprefix("NOT_")]
    return "\\" + (letter.upper() if "NOT_" in str(given) else letter)


@functools.cache
def _program(pattern: re.Pattern[str]) -> _Program:
    """Return a pattern's program, made once: for some patterns that takes a second."""
    program = _Program(pattern.flags)
    program.compile(parser.parse(pattern.pattern, pattern.flags))
    program.add("end")
    return program


class Steps:
    """Searches as ``finditer`` does, and counts."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._program = _program(pattern)
        self.count = 0
        self._most = 0

    def match(self, text: str, *, most: int) -> int | None:
        """Return the end of a match at the beginning, or None. Raises ``TooManySteps`` beyond ``most``."""
        self.count, self._most = 0, most
        return self._run(self._program, text, 0, {})

    def spans(self, text: str, *, most: int) -> Iterator[tuple[int, int]]:
        """Yield the span of each match. Raises ``TooManySteps`` beyond ``most``."""
        self.count, self._most = 0, most
        at = 0
        while at <= len(text):
            end = self._run(self._program, text, at, {})
            if end is None:
                at += 1
                continue
            yield at, end
            at = end if end > at else at + 1

    def _run(self, program: _Program, text: str, at: int, groups: dict[Any, int]) -> int | None:
        ways: list[tuple[int, int, dict[Any, int]]] = [(0, at, groups)]
        code = program.code
        while ways:
            step, at, groups = ways.pop()
            while True:
                self.count += 1
                if self.count > self._most:
                    raise TooManySteps(f"more than {self._most:,} steps for {len(text):,} characters")
                name, first, second = code[step]
                step += 1
                if name == "char":
                    if at >= len(text) or not first(text[at]):
                        break
                    at += 1
                elif name == "split":
                    ways.append((second, at, groups))
                    step = first
                elif name == "jump":
                    step = first
                elif name == "save":
                    groups = {**groups, first: at}
                elif name == "end":
                    self._groups = groups
                    return at
                elif not self._holds(name, first, second, text, at, groups):
                    if name == "exists":
                        step = second
                    else:
                        break
                elif name == "again":
                    at += groups[f"{first}>"] - groups[f"{first}<"]
                elif name == "atomic":
                    at, groups = self._end, self._groups
                elif name == "look":
                    groups = self._groups
        return None

    def _holds(self, name: str, first: Any, second: Any, text: str, at: int, groups: dict[Any, int]) -> bool:
        match name:
            case "look" | "not":
                found = None if at < second else self._run(first, text, at - second, groups)
                return (found is None) == (name == "not")
            case "atomic":
                end = self._run(first, text, at, groups)
                self._end = at if end is None else end
                return end is not None
            case "moved":
                return at > groups[first]
            case "exists":
                return f"{first}>" in groups
            case "again":
                return f"{first}>" in groups and text.startswith(text[groups[f"{first}<"] : groups[f"{first}>"]], at)
            case "place":
                return _PLACES[first](text, at)
            case _:
                return False


def _is_word(char: str) -> bool:
    return re.fullmatch(r"\w", char) is not None


def _at_boundary(text: str, at: int) -> bool:
    before, after = text[at - 1 : at] if at else "", text[at : at + 1]
    return (before != "" and _is_word(before)) != (after != "" and _is_word(after))


_PLACES: dict[str, Callable[[str, int], bool]] = {
    "AT_BOUNDARY": _at_boundary,
    "AT_NON_BOUNDARY": lambda text, at: not _at_boundary(text, at),
    "AT_END_STRING": lambda text, at: at == len(text),
    "AT_BEGINNING_STRING": lambda text, at: at == 0,
    "AT_BEGINNING": lambda text, at: at == 0,
    "AT_END": lambda text, at: at == len(text) or text[at:] == "\n",
}
