"""The memory of a turn: the user's message and the agent's answer, as data of a ``memory.add`` event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MEMORY_ADD: Final = "memory.add"
"""The type of the event."""
_MAX_CHARACTERS: Final = 100_000
"""Characters kept of each text."""


def memory_of(scope: Mapping[str, str], message: str | None, answer: str | None) -> dict[str, Any] | None:
    """Return the data of the event, or None if both texts are empty."""
    texts = (("user", message), ("assistant", answer))
    messages = [
        {"role": role, "text": kept[:_MAX_CHARACTERS]}
        for role, text in texts
        if text is not None and (kept := text.replace("\0", "").strip())  # graphs reject NUL
    ]
    return {**scope, "messages": messages} if messages else None
