"""What apps use, on Redis: a hash of records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

from graphweft_contracts import channels


class RedisUsageLog:
    """``UsageLog`` on one Redis server; ``call`` runs a command and raises ``BusUnavailable``."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    async def put(self, reporter: str, record: bytes | None) -> None:
        """See ``UsageLog.put``."""
        if record is None:
            await self._call("HDEL", channels.USAGE, reporter)
        else:
            await self._call("HSET", channels.USAGE, reporter, record)

    async def records(self) -> Mapping[str, bytes]:
        """See ``UsageLog.records``."""
        return {name.decode(): record for name, record in pairs(await self._call("HGETALL", channels.USAGE))}


def pairs(reply: Any) -> Iterable[tuple[bytes, bytes]]:
    """Return the fields of a hash, which are a list or a map by the version of the protocol."""
    if isinstance(reply, dict):
        return cast("dict[bytes, bytes]", reply).items()
    return zip(reply[::2], reply[1::2], strict=True)
