"""The effects stream on Redis: a stream that is trimmed by its length."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from graphweft_contracts import channels
from graphweft_contracts.effects import EFFECTS_DATA, Effects

_APPEND: Final = """
for at = 3, #ARGV do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', ARGV[2], ARGV[at])
end
"""
_AT_ONCE: Final = 200
"""Messages of one call, which holds the server meanwhile."""


class RedisEffects:
    """``EffectStream`` on Redis; ``call`` runs a command and raises ``BusUnavailable``."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    async def append(self, messages: Sequence[Effects], *, keep: int) -> None:
        """See ``EffectStream.append``."""
        for start in range(0, len(messages), _AT_ONCE):
            bodies = [each.model_dump_json() for each in messages[start : start + _AT_ONCE]]
            await self._call("EVAL", _APPEND, 1, channels.EFFECTS, keep, EFFECTS_DATA, *bodies)
