"""The parts of a condition, as far as its cost depends on them.

The library gives away no syntax tree. This one has the order of operators and where each part stands, and is made of
valid expressions only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

LOOPS: Final = ("all", "exists", "exists_one", "filter", "map")
LITERAL: Final = r"""
    [rR]'''.*?''' | [rR]\"\"\".*?\"\"\" | [rR]'[^'\n]*' | [rR]"[^"\n]*"
  | '''(?:[^\\]|\\.)*?''' | \"\"\"(?:[^\\]|\\.)*?\"\"\"
  | '(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*"
"""
"""A text of CEL, for a verbose regular expression."""
_TOKEN: Final = re.compile(
    rf"""
      (?P<text>[bB]?(?:{LITERAL}))
    | (?P<comment>//[^\n]*)
    | (?P<name>[^\W\d]\w*)
    | (?P<number>\d\w*(?:\.\d\w*)?(?:(?<=[eE])[+-]\d+)?)
    | (?P<sign>&&|\|\||[=!<>]=|\S)
    """,
    re.VERBOSE | re.DOTALL,
)
_LEVELS: Final = {
    sign: level
    for level, signs in enumerate(
        (("||",), ("&&",), ("<", "<=", ">", ">=", "==", "!=", "in"), ("+", "-"), ("*", "/", "%"))
    )
    for sign in signs
}
"""Operators, from those that bind least to those that bind most."""
_CONSTANTS: Final = frozenset({"true", "false", "null"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConditionPart:
    """A part of a condition."""

    kind: str
    """``constant``, ``text``, ``name``, ``list``, ``map``, ``field``, ``index``, ``call``, ``loop``, ``choice``, or an
    operator; ``+`` stands for a chain of ``+`` and ``-``, ``<`` for comparisons, ``*`` for the rest of arithmetic."""
    start: int
    end: int
    name: str = ""
    """The name, the function, the variable of a loop, or the literal's text."""
    parts: tuple[ConditionPart, ...] = ()
    """Operands; of a call the receiver, if any, and arguments; of a loop its range, and what each item is asked."""
    loop: str = ""
    """Which loop it is."""
    is_method: bool = False


class SyntaxProblem(ValueError):
    """The expression has a form that is not known here."""


def parts_of(expression: str) -> ConditionPart:
    """Return the tree of a valid expression. Raises ``SyntaxProblem``, or ``RecursionError`` if it is too deep."""
    reader = _Reader(expression)
    found = reader.expression()
    if reader.kind:
        raise SyntaxProblem(f"{reader.text!r} is not known here")
    return found


def within(part: ConditionPart) -> Iterator[ConditionPart]:
    """Yield the part and all parts in it, outer ones before their inner ones."""
    left = [part]
    while left:
        each = left.pop()
        yield each
        left += reversed(each.parts)


class _Reader:
    def __init__(self, expression: str) -> None:
        self._tokens = [match for match in _TOKEN.finditer(expression) if match.lastgroup != "comment"]
        self._at = -1
        self.kind = self.text = ""
        self._start = self._end = self._last_end = 0
        self._next()

    def _next(self) -> str:
        """Go to the next token; return the text of the last one."""
        last, self._last_end = self.text, self._end
        self._at += 1
        if self._at < len(self._tokens):
            match = self._tokens[self._at]
            self.kind, self.text, self._start, self._end = match.lastgroup or "", match[0], match.start(), match.end()
        else:
            self.kind = self.text = ""
        return last

    def _is_next(self, text: str) -> bool:
        """Go on if the token is this sign."""
        if self.text != text or self.kind == "text":
            return False
        self._next()
        return True

    def _expect(self, text: str) -> None:
        if not self._is_next(text):
            raise SyntaxProblem(f"{self.text!r} is not {text!r}")

    def expression(self) -> ConditionPart:
        start = self._start
        pieces = [self._chain(0)]
        while self._is_next("?"):
            pieces.append(self.expression())
            self._expect(":")
            pieces.append(self._chain(0))
        if len(pieces) == 1:
            return pieces[0]
        return ConditionPart(kind="choice", start=start, end=self._last_end, parts=tuple(pieces))

    def _chain(self, least: int) -> ConditionPart:
        """Read operators of this level and of those that bind more."""
        start, found = self._start, self._unary()
        while (level := self._level()) >= least:
            operands, signs = [found], set[str]()
            while self._level() == level:
                signs.add(self._next())
                operands.append(self._chain(level + 1))
            kind = "in" if "in" in signs else next(iter(signs & {"||", "&&", "+"}), ("<", "-", "*")[level - 2])
            found = ConditionPart(kind=kind, start=start, end=self._last_end, parts=tuple(operands))
        return found

    def _level(self) -> int:
        return -1 if self.kind == "text" else _LEVELS.get(self.text, -1)

    def _unary(self) -> ConditionPart:
        start, sign = self._start, ""
        while self.kind != "text" and self.text in ("!", "-"):
            sign = self._next()
        found = self._member()
        return ConditionPart(kind=sign, start=start, end=self._last_end, parts=(found,)) if sign else found

    def _member(self) -> ConditionPart:
        start, found = self._start, self._primary()
        while True:
            if self._is_next("."):
                name = self._name()
                if self._is_next("("):
                    found = self._called(start, name, found)
                else:
                    found = ConditionPart(kind="field", start=start, end=self._last_end, parts=(found,))
            elif self._is_next("["):
                index = self.expression()
                self._expect("]")
                found = ConditionPart(kind="index", start=start, end=self._last_end, parts=(found, index))
            else:
                return found

    def _called(self, start: int, name: str, receiver: ConditionPart) -> ConditionPart:
        arguments = self._list(")")
        if name in LOOPS and len(arguments) in (2, 3) and arguments[0].kind == "name":
            return ConditionPart(
                kind="loop",
                loop=name,
                name=arguments[0].name,
                start=start,
                end=self._last_end,
                parts=(receiver, *arguments[1:]),
            )
        return ConditionPart(
            kind="call", name=name, start=start, end=self._last_end, parts=(receiver, *arguments), is_method=True
        )

    def _name(self) -> str:
        if self.kind != "name":
            raise SyntaxProblem(f"{self.text!r} is not a name")
        return self._next()

    def _list(self, end: str) -> list[ConditionPart]:
        found: list[ConditionPart] = []
        while not self._is_next(end):
            found.append(self.expression())
            if end == "}" and self._is_next(":"):
                found.append(self.expression())
            if not self._is_next(","):
                self._expect(end)
                break
        return found

    def _primary(self) -> ConditionPart:
        start = self._start
        if self.kind == "text":
            return ConditionPart(kind="text", name=self._next(), start=start, end=self._last_end)
        if self._is_next("("):
            found = self.expression()
            self._expect(")")
            return found
        for begin, end, kind in (("[", "]", "list"), ("{", "}", "map")):
            if self._is_next(begin):
                return ConditionPart(kind=kind, parts=tuple(self._list(end)), start=start, end=self._last_end)
        self._is_next(".")
        if self.kind == "number":
            return ConditionPart(kind="constant", name=self._next(), start=start, end=self._last_end)
        name = self._name()
        if self._is_next("("):
            return ConditionPart(kind="call", name=name, parts=tuple(self._list(")")), start=start, end=self._last_end)
        return ConditionPart(
            kind="constant" if name in _CONSTANTS else "name", name=name, start=start, end=self._last_end
        )
