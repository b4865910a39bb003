"""Unicode normalization in linear time.

``unicodedata.normalize`` sorts each run of combining marks in quadratic time, so no text of strangers may reach it
with a long one.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal

_MOST_MARKS: Final = 30
"""Marks in a row before a joiner parts them, as in the Stream-Safe Text Format of Unicode (UAX 15, section 13)."""
_JOINER: Final = "\u034f"
_RUN: Final = re.compile(rf"(?:[^\w\s]|[\uff9e\uff9f]){{{_MOST_MARKS + 1},}}")
"""A run of characters that may be marks."""
_OTHER_MARKS: Final = frozenset("\u0f73\u0f75\u0f81\uff9e\uff9f")
"""Characters of class 0 that begin with a mark when they are taken apart."""


def normalized(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Return the normal form of a text, with a joiner behind each 30 marks in a row."""
    if text.isascii():
        return text
    return unicodedata.normalize(form, _RUN.sub(_parted, text))


def _parted(run: re.Match[str]) -> str:
    found: list[str] = []
    marks = 0
    for char in run[0]:
        marks = marks + 1 if unicodedata.combining(char) or char in _OTHER_MARKS else 0
        if marks > _MOST_MARKS:
            found.append(_JOINER)
            marks = 1
        found.append(char)
    return "".join(found)
