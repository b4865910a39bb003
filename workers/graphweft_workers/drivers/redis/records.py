"""Records by key on Redis: a hash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

from graphweft_workers.ports.records import Records


class RedisRecords:
    """``RecordLog`` of records that are always read whole."""

    def __init__(self, call: Callable[..., Awaitable[Any]], name: str) -> None:
        """``call`` runs a command and raises ``BusUnavailable``; ``name`` is the key of the hash."""
        self._call = call
        self._name = name

    async def put(self, key: str, record: bytes | None) -> None:
        """See ``RecordLog.put``."""
        if record is None:
            await self._call("HDEL", self._name, key)
        else:
            await self._call("HSET", self._name, key, record)

    async def after(self, mark: int | None) -> Records:
        """See ``RecordLog.after``."""
        found = pairs(await self._call("HGETALL", self._name))
        return Records(found={name.decode(): record for name, record in found}, mark=0)


def pairs(reply: Any) -> Iterable[tuple[bytes, bytes]]:
    """Return the fields of a hash, which are a list or a map by the version of the protocol."""
    if isinstance(reply, dict):
        return cast("dict[bytes, bytes]", reply).items()
    return zip(reply[::2], reply[1::2], strict=True)
