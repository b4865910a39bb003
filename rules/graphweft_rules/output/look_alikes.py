"""Characters that look like others, or like nothing: secrets and roles are also found in such a disguise. Pure."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

_LOOK_ALIKES: Final = str.maketrans(
    "аАеЕоОрРсСхХуУкКмМтТвВнНіІїЇѕЅјЈԁԛԝһҺΑαΒΕΖΗΙΚκΜΝΟοΡρΤτΥυΧχνιεıɑɡℓ\u04cf\u2044\u2215\u2236\ua789\u02d0\u02f8\u201a\u201e\u2212",
    "aAeEoOpPcCxXyYkKmMtTbBhHiIiIsSjJdqwhHAaBEZHIKkMNOoPpTtYuXxvieiagll//::::'\"-",
)


def is_invisible(char: str) -> bool:
    """Tell whether a character shows nothing and is not white space."""
    return char in "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0" or unicodedata.category(char) in {
        "Cf", "Cs", "Co", "Cn",
    }  # fmt: skip


@lru_cache(maxsize=4_096)
def plain(char: str) -> str:
    """Return the ASCII characters that a character looks like, or its own base letter; empty if it is invisible."""
    category = unicodedata.category(char)
    if char in "\u2028\u2029\u0085" or char.isspace():
        return char if char.isascii() else " " if category == "Zs" else "\n"
    if category == "Cc" or is_invisible(char):
        return ""
    if category in {"Pd", "Pi", "Pf"}:
        return "-" if category == "Pd" else "'" if char in "\u2018\u2019\u201b" else '"'
    parts = unicodedata.normalize("NFKD", char.translate(_LOOK_ALIKES))
    parts = parts if len(parts) <= 6 else char
    return "".join(part for part in parts if unicodedata.category(part) not in {"Mn", "Me"}).translate(_LOOK_ALIKES)
