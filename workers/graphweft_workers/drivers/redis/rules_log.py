"""Rules in the log on Redis: a hash of rule sets, and a list of activations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from graphweft_contracts import Layout, channels, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.rules_log import Activation, StoredRules

# The entries and the record are written at once, so that a reader of an entry finds the record.
_ACTIVATE: Final = """
local number = redis.call('LLEN', KEYS[1]) + 1
local entry = cjson.encode({number = number, scope = ARGV[1], rules = ARGV[2]})
local positions = {}
for i = 2, #KEYS do
  positions[ARGV[i + 3]] = redis.call('XADD', KEYS[i], '*', ARGV[4], entry)
end
local record = cjson.encode({number = number, scope = ARGV[1], rules = ARGV[2], time = ARGV[3], positions = positions})
redis.call('RPUSH', KEYS[1], record)
return record
"""


class RedisRulesLog:
    """``RulesLog`` on one Redis server; ``call`` runs a command and raises ``BusUnavailable``."""

    def __init__(
        self,
        call: Callable[..., Awaitable[Any]],
        layout: Callable[[], Awaitable[Layout]],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._call = call
        self._layout = layout
        self._clock = clock

    async def store(self, digest: str, rules: StoredRules) -> None:
        """See ``RulesLog.store``."""
        if await self._call("HSETNX", channels.RULE_SETS, digest, rules.encode()):
            return
        stored = await self.stored(digest)
        updated = rules if stored is None else stored.updated_by(rules)
        if updated is not None:
            await self._call("HSET", channels.RULE_SETS, digest, updated.encode())

    async def stored(self, digest: str) -> StoredRules | None:
        """See ``RulesLog.stored``."""
        body = await self._call("HGET", channels.RULE_SETS, digest)
        try:
            return None if body is None else StoredRules.decode(body)
        except ValueError:  # damaged: the next push of these rules replaces it
            return None

    async def activate(self, scope: str, digest: str) -> Activation:
        """See ``RulesLog.activate``."""
        partitions = (await self._layout()).partitions_of(scope)
        streams = [channels.events_stream(number) for number in partitions]
        keys = (channels.ACTIVATIONS, *streams)
        given = (scope, digest, self._clock.now().isoformat(), wire.ACTIVATION, *partitions)
        return Activation.decode(await self._call("EVAL", _ACTIVATE, len(keys), *keys, *given))

    async def activations(self, *, after: int = 0) -> Sequence[Activation]:
        """See ``RulesLog.activations``."""
        return [Activation.decode(body) for body in await self._call("LRANGE", channels.ACTIVATIONS, after, -1)]
