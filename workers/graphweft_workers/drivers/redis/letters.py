"""Reads dead letters on Redis: a hash of letters, their order, and the bytes and the app of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from graphweft_contracts import DeadLetter, channels

_PAGE: Final = 1_000
"""Dead letters of which app and size are read at once."""


class RedisLetters:
    """The dead letters of one Redis server; ``call`` runs a command and raises ``BusUnavailable``."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    async def first(self, limit: int, app_id: str | None, size: int | None) -> Sequence[DeadLetter]:
        """See ``DeadLetters.dead_letters``."""
        if app_id is None and size is None:
            return await self._read(await self._call("ZRANGE", channels.DEAD_LETTER_ORDER, 0, limit - 1))
        found = await self._read(await self._chosen(limit, app_id, size))
        return [letter for letter in found if app_id in (None, letter.app_id)]

    async def _chosen(self, limit: int, app_id: str | None, size: int | None) -> list[bytes]:
        """Return the ids of the first letters that are counted for an app, or not counted at all."""
        chosen: list[bytes] = []
        start = total = 0
        while len(chosen) < limit:
            ids = await self._call("ZRANGE", channels.DEAD_LETTER_ORDER, start, start + _PAGE - 1)
            if not ids:
                break
            start += len(ids)
            counted = await self._call("HMGET", channels.COUNTED_LETTERS, *ids)
            for letter_id, each in zip(ids, counted, strict=True):
                bytes_, _, app = (each or b"0 ").decode(errors="replace").partition(" ")
                if each is not None and app_id not in (None, app):  # older versions did not count letters
                    continue
                total += int(bytes_)
                if len(chosen) == limit or (chosen and size is not None and total > size):
                    return chosen
                chosen.append(letter_id)
        return chosen

    async def _read(self, ids: Sequence[bytes]) -> list[DeadLetter]:
        if not ids:
            return []
        bodies = await self._call("HMGET", channels.DEAD_LETTERS, *ids)
        return [DeadLetter.model_validate_json(body) for body in bodies if body is not None]
