"""The text of a message of Google ADK."""

from __future__ import annotations

from typing import Any


def text_of(content: Any) -> str | None:
    """Return the text of a message, without thoughts, or None if it has none or calls tools."""
    parts: list[Any] = getattr(content, "parts", None) or []
    if any(part.function_call for part in parts):
        return None
    return "".join(part.text for part in parts if part.text and not part.thought) or None
