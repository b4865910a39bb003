"""Cypher text as tokens, which tell names from strings and comments and keep every character."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from graphweft_rules.text_limits import Piece, PieceKind

Kind = Literal["space", "comment", "string", "quoted", "param", "name", "number", "broken", "punct"]

_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<comment>//[^\r\n]* | /\*.*?\*/)
    | (?P<string>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
    | (?P<quoted>`[^`]*`)
    | (?P<broken>['"`].* | /\*.*)           # unterminated: the rest of the text
    | (?P<param>\$\s*(?:`[^`]*`|\w+))       # servers allow a space after the dollar
    | (?P<name>[^\W\d]\w*)
    | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\w*)
    | (?P<punct>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class CypherToken(NamedTuple):  # a query has hundreds: it is made three times as quickly as a dataclass
    """A piece of the text that begins at the offset ``start``, in characters."""

    kind: Kind
    text: str
    start: int

    @property
    def end(self) -> int:
        """The offset after the last character."""
        return self.start + len(self.text)

    @property
    def keyword(self) -> str:
        """A bare name in upper case; empty for other tokens, because a quoted name is never a keyword."""
        return self.text.upper() if self.kind == "name" else ""

    @property
    def identifier(self) -> str:
        """The name in a bare name, a quoted name or a parameter; empty for other tokens."""
        if self.kind == "name":
            return self.text
        if self.kind == "quoted":
            return self.text[1:-1]
        if self.kind == "param":
            return self.text[1:].strip().strip("`")
        return ""


def tokenize(text: str) -> list[CypherToken]:
    """Split any text into tokens; their texts, joined, equal the text."""
    found = ((match.lastgroup, match[0], match.start()) for match in _TOKEN.finditer(text))
    return list(map(CypherToken._make, found))


_PUNCTUATION: Final[dict[str, PieceKind]] = {
    **dict.fromkeys("([{", "open"),
    **dict.fromkeys(")]}", "close"),
    ",": "comma",
    ";": "end",
}


def pieces_of(tokens: Iterable[CypherToken]) -> Iterator[Piece]:
    """Yield what the limits of texts measure; ``tokens`` are without spaces and comments."""
    for token in tokens:
        match token.kind:
            case "name":
                yield Piece("word", token.text, token.start)
            case "punct":
                yield Piece(_PUNCTUATION.get(token.text, "operator"), token.text, token.start)
            case _:
                yield Piece("operand", "", token.start)
