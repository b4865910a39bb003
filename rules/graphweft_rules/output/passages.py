"""Passages of long texts, for a block that has no room for the whole of them."""

from __future__ import annotations

from typing import Final

_BACK: Final = 4
"""A passage begins or ends up to this part of its size earlier, so that it cuts no word."""
_GAP: Final = "…"


def passage(text: str, size: int, start: int = 0) -> str:
    """Return about ``size`` characters of a text from ``start`` on, between whole words where there are blanks.

    An ellipsis stands for what is left out before and after. A text that is no longer than ``size`` stays whole.
    """
    if len(text) <= size:
        return text
    room = size // _BACK
    end = min(start + size, len(text))
    start = min(start, len(text) - size)
    if start:
        before = _last_blank(text, start - room, start)
        start = start if before is None else before + 1
    if end < len(text):
        end = start + size
        before = _last_blank(text, end - room, end + 1)
        end = end if before is None else before
    return f"{_GAP if start else ''}{text[start:end].strip()}{_GAP if end < len(text) else ''}"


def _last_blank(text: str, start: int, stop: int) -> int | None:
    return next((place for place in range(stop - 1, max(0, start) - 1, -1) if text[place].isspace()), None)
