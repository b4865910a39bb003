"""What texts of a body may look like, and how that is said: whoever sends one need not read a regular expression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graphweft_contracts.episodes import TYPE_PATTERN
from graphweft_contracts.events import APP_ID_PATTERN
from graphweft_contracts.memory import SCOPE_PATTERN

NO_NUL: Final = r"^[^\x00]*$"
"""No graph keeps NUL."""
LINE: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
"""No line end, in any of its forms, by which a text could begin a line of its own."""
POSITION: Final = r"^[0-9]+:[0-9]+(-[0-9]+)?$"
_UNSEEN: Final = (
    r"\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f"
    r"\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0"
)
"""Characters that show nothing by themselves: blanks, joiners, marks of direction and of variants."""
GROUP: Final = rf"^([{_UNSEEN}][{_UNSEEN} ]*)?[^\x00-\x20\x7f{_UNSEEN}]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?$"
"""What ``SCOPE_PATTERN`` admits, if something of it can be seen."""

IN_WORDS: Final[Mapping[str, str]] = {
    APP_ID_PATTERN: "it is made of 1 to 64 letters (A to Z, a to z), digits, '_' and '-'",
    SCOPE_PATTERN: "no control characters are admitted, and no blank at either end",
    TYPE_PATTERN: "it is a letter, then letters, digits and underscores, 64 at most",
    NO_NUL: "no NUL character is admitted",
    LINE: "no line ends and no control characters are admitted",
    POSITION: "it is a position as /v1/events returns it",
    GROUP: "it has a character that can be seen, no control characters, and no blank at either end",
}
"""What each pattern admits."""
