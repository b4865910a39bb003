"""Patterns of texts in a body, each with an error text, so that no error quotes a regular expression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graphweft_contracts.episodes import TYPE_PATTERN
from graphweft_contracts.events import APP_ID_PATTERN
from graphweft_contracts.memory import SCOPE_PATTERN

NO_NUL: Final = r"^[^\x00]*$"
"""No graph stores NUL."""
LINE: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
"""No control characters, and no line end in any of its forms: the text stays on one line."""
POSITION: Final = r"^[0-9]+:[0-9]+(-[0-9]+)?$"
_UNSEEN: Final = (
    r"\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f"
    r"\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0"
)
"""Invisible characters: blanks, joiners, marks of direction and of variants."""
GROUP: Final = rf"^([{_UNSEEN}][{_UNSEEN} ]*)?[^\x00-\x20\x7f{_UNSEEN}]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?$"
"""``SCOPE_PATTERN`` with at least one visible character."""

ERRORS: Final[Mapping[str, str]] = {
    APP_ID_PATTERN: "expected 1 to 64 letters (A to Z, a to z), digits, '_' and '-'",
    SCOPE_PATTERN: "expected no control characters and no blank at either end",
    TYPE_PATTERN: "expected a letter, then letters, digits and underscores, at most 64 characters",
    NO_NUL: "expected no NUL character",
    LINE: "expected one line without control characters",
    POSITION: "expected a position as /v1/events returns it",
    GROUP: "expected a visible character, no control characters, and no blank at either end",
}
"""The error text of each pattern."""
