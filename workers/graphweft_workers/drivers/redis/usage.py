"""What apps use, on Redis: a hash of records, and counts of dead letters by app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

from graphweft_contracts import channels
from graphweft_workers.ports.usage import LettersOfApp


class RedisUsageLog:
    """``UsageLog`` on one Redis server; ``call`` runs a command and raises ``BusUnavailable``."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    async def put_usage(self, reporter: str, record: bytes | None) -> None:
        """See ``UsageLog.put_usage``."""
        if record is None:
            await self._call("HDEL", channels.USAGE, reporter)
        else:
            await self._call("HSET", channels.USAGE, reporter, record)

    async def usage(self) -> Mapping[str, bytes]:
        """See ``UsageLog.usage``."""
        return {name.decode(): record for name, record in _pairs(await self._call("HGETALL", channels.USAGE))}

    async def letters_by_app(self) -> Mapping[str, LettersOfApp]:
        """See ``UsageLog.letters_by_app``."""
        counts = await self._call("HGETALL", channels.LETTERS_OF_APPS)
        read = {name.decode(): int(value) for name, value in _pairs(counts)}
        return {
            name[2:]: LettersOfApp(count=value, size=read.get(f"b:{name[2:]}", 0))
            for name, value in read.items()
            if name.startswith("n:")
        }


def _pairs(reply: Any) -> Iterable[tuple[bytes, bytes]]:
    """Return the fields of a hash, which are a list or a map by the version of the protocol."""
    if isinstance(reply, dict):
        return cast("dict[bytes, bytes]", reply).items()
    return zip(reply[::2], reply[1::2], strict=True)
