"""Reads dead letters on Redis: a hash of letters, their order, and the bytes and the app of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from graphweft_contracts import DeadLetter, channels
from graphweft_workers.ports.dead_letters import FIELDS, NO_FIELDS

_PAGE: Final = 1_000
"""Dead letters of which app and size are read at once."""
_CUT: Final = 100
_CUT_BYTES: Final = 4 * 1024**2
"""Dead letters, and their bytes, whose entries a script cuts off at once: it blocks the server."""
# The entry is the last part of a letter. No text of the parts before it contains the mark: it has quotes.
_WITHOUT_FIELDS: Final = f"""
local found = {{}}
for i = 1, #ARGV do
  local body = redis.call('HGET', KEYS[1], ARGV[i])
  if body then
    local at = string.find(body, '{FIELDS.decode()}', 1, true)
    if at then body = string.sub(body, 1, at - 1) .. '{NO_FIELDS.decode()}' end
    found[#found + 1] = body
  end
end
return found
"""


class RedisLetters:
    """The dead letters of one Redis server; ``call`` runs a command and raises ``BusUnavailable``."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    async def first(
        self, limit: int, app_id: str | None, size: int | None, *, whole: bool = True
    ) -> Sequence[DeadLetter]:
        """See ``DeadLetters.dead_letters``."""
        if app_id is None and size is None and whole:
            return await self._read(await self._call("ZRANGE", channels.DEAD_LETTER_ORDER, 0, limit - 1))
        chosen = await self._chosen(limit, app_id, size)
        found = await (self._read([letter_id for letter_id, _ in chosen]) if whole else self._read_cut(chosen))
        return [letter for letter in found if app_id in (None, letter.app_id)]

    async def _chosen(self, limit: int, app_id: str | None, size: int | None) -> list[tuple[bytes, int]]:
        """Return id and bytes of the first letters that are counted for an app, or not counted at all."""
        chosen: list[tuple[bytes, int]] = []
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
                chosen.append((letter_id, int(bytes_)))
        return chosen

    async def _read(self, ids: Sequence[bytes]) -> list[DeadLetter]:
        if not ids:
            return []
        bodies = await self._call("HMGET", channels.DEAD_LETTERS, *ids)
        return [DeadLetter.model_validate_json(body) for body in bodies if body is not None]

    async def _read_cut(self, chosen: Sequence[tuple[bytes, int]]) -> list[DeadLetter]:
        """Return the letters without their entries, which stay on the server."""
        found: list[DeadLetter] = []
        page: list[bytes] = []
        total = 0
        for letter_id, bytes_ in chosen:
            if page and (len(page) == _CUT or total + bytes_ > _CUT_BYTES):
                found += await self._cut(page)
                page, total = [], 0
            page.append(letter_id)
            total += bytes_
        return found + (await self._cut(page) if page else [])

    async def _cut(self, ids: Sequence[bytes]) -> list[DeadLetter]:
        bodies = await self._call("EVAL_RO", _WITHOUT_FIELDS, 1, channels.DEAD_LETTERS, *ids)
        return [DeadLetter.model_validate_json(body) for body in bodies]
