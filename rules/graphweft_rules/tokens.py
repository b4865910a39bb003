"""Cypher text as tokens: enough to tell names from strings and comments, and to put every character back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, cast

Kind = Literal["space", "comment", "string", "quoted", "param", "name", "number", "broken", "punct"]

_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<comment>//[^\r\n]* | /\*.*?\*/)
    | (?P<string>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
    | (?P<quoted>`[^`]*`)
    | (?P<broken>['"`].* | /\*.*)           # a string, name or comment without an end takes the rest of the text
    | (?P<param>\$\s*(?:`[^`]*`|\w+))       # the server allows a space after the dollar
    | (?P<name>[^\W\d]\w*)
    | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\w*)
    | (?P<punct>.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text; ``start`` is its offset in characters."""

    kind: Kind
    text: str
    start: int

    @property
    def end(self) -> int:
        """The offset behind the last character."""
        return self.start + len(self.text)

    @property
    def keyword(self) -> str:
        """The text in upper case for a bare name, and nothing for anything else: quoted names are no keywords."""
        return self.text.upper() if self.kind == "name" else ""

    @property
    def identifier(self) -> str:
        """The name that a bare name, a quoted name or a parameter stands for; empty for other tokens."""
        if self.kind == "name":
            return self.text
        if self.kind == "quoted":
            return self.text[1:-1]
        if self.kind == "param":
            return self.text[1:].strip().strip("`")
        return ""


def tokenize(text: str) -> list[Token]:
    """Split the text; the tokens' texts, joined, give the text back, whatever it is."""
    return [Token(cast("Kind", match.lastgroup), match[0], match.start()) for match in _TOKEN.finditer(text)]
