"""The port of records: small texts by key, of which the bus keeps the last one of each key."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final, Protocol, cast

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records after a mark."""

    found: Mapping[str, bytes]
    """By key, in the order in which they were put."""
    mark: int
    """Where to go on reading."""
    complete: bool = True
    """Whether the log was followed without a gap. If not, it was recreated: there may have been any records."""


def read_record[T](kind: type[T], record: bytes) -> T:
    """Return the content of a record, which was written as JSON. Raises ``ValueError`` for anything else."""
    found: T = _adapter(cast("Hashable", kind)).validate_json(record)
    return found


_adapter: Final = cache(TypeAdapter[Any])


class RecordLog(Protocol):
    """Records that every process may put and read, such as purges or usage. Methods raise ``BusUnavailable``."""

    async def put(self, key: str, record: bytes | None) -> datetime | None:
        """Replace the record with a key; None removes it. At most 900,000 bytes. Every later ``after`` finds it.

        Return the time at which the server took it, by its own clock, if the bus says that.
        """
        ...

    async def after(self, mark: int | None) -> Records:
        """Return at least the records that were put after a mark; for None all of them.

        A record that was removed is in no answer.
        """
        ...
