"""The place of a turn's context in a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from graphweft.chat_formats.values import items
from graphweft_contracts import InvalidSettings

ContextPlace: TypeAlias = Literal["last_message", "instructions", "own_message"]
"""``last_message``: below the user's question. ``instructions``: below the instructions, or in a system message if
there are none. ``own_message``: in a message behind the question.

Rejected as a default: the instructions. Models of the families Gemma and Mistral take no system message, and providers
cache the longest prefix that a request shares with an earlier one; the context differs from turn to turn.
"""
_REFUSED: Final = frozenset({400, 413, 422})
"""Statuses by which providers refuse a request: invalid, too long, invalid for servers that check types."""


def check_place(place: str) -> None:
    """Raise ``InvalidSettings`` for a place that does not exist."""
    if place not in get_args(ContextPlace):
        raise InvalidSettings(f"invalid context_place {place!r}: expected {', '.join(get_args(ContextPlace))}")


def is_refusal(error: BaseException) -> bool:
    """Return whether a provider refused a request for what it holds."""
    return getattr(error, "status_code", None) in _REFUSED


def joined(text: str | None, block: str) -> str:
    """Return a text with the context below it."""
    return f"{text}\n\n{block}" if text else block


def below(content: Any, block: str, *, kind: str = "text") -> Any:
    """Return a content, a text or a list of parts, with the context below it; None for other contents.

    ``kind`` is the type of a part with text.
    """
    if isinstance(content, str):
        return joined(content, block)
    if isinstance(content, list | tuple):
        return [*items(cast("Sequence[Any]", content)), {"type": kind, "text": block}]
    return None
