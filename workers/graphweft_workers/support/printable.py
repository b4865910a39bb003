"""Texts of others on a terminal, which obeys no character of them."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Final

_UNPRINTABLE: Final = re.compile(r"[^ -~]+")
"""Characters that may be unprintable."""


def printable(text: str) -> str:
    """Return text on one line in which each character that is not printable is escaped, so a terminal obeys none."""
    return text if text.isprintable() else _UNPRINTABLE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Return text like ``printable``, with its line breaks and tabs."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def _escaped(found: re.Match[str]) -> str:
    return "".join(
        char if char.isprintable() or unicodedata.category(char) == "Zs" else json.dumps(char)[1:-1]
        for char in found[0]
    )
