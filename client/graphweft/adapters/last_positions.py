"""The latest event of each chat and of each user, whose effect the next context shall reflect."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from graphweft.adapters.turn_book import Chat
from graphweft_contracts.bounded_dict import BoundedDict

P = TypeVar("P")

_MAX_KEYS: Final = 20_000
"""Chats and users whose latest position is kept."""


class LastPositions(Generic[P]):
    """Keeps the positions of the latest events. Not thread-safe."""

    def __init__(self) -> None:
        self._known: BoundedDict[tuple[str, ...], tuple[int, P]] = BoundedDict(_MAX_KEYS)
        self._count = 0

    def note(self, chat: Chat, position: P) -> None:
        """Keep the position of an event of a chat."""
        self._count += 1
        for key in _keys(chat):
            self._known[key] = (self._count, position)

    def before(self, chat: Chat) -> P | None:
        """Return the position of the latest event of the chat, or of its user in any chat.

        The events of an app are in one partition, unless its order is ``chat``, so the latest covers the others.
        """
        known = [found for key in _keys(chat) if (found := self._known.get(key)) is not None]
        return max(known, key=lambda found: found[0])[1] if known else None


def _keys(chat: Chat) -> list[tuple[str, ...]]:
    of_user = [] if chat.user_id is None else [("user", chat.app_id, chat.user_id)]
    return [("chat", *chat.key), *of_user]
