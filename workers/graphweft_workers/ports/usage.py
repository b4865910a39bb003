"""The port of usage: small records in which processes say how much each app uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class UsageLog(Protocol):
    """The records of all reporters. Every method raises ``BusUnavailable``."""

    async def put(self, reporter: str, record: bytes | None) -> None:
        """Replace the record of a reporter; None removes it. At most 900,000 bytes."""
        ...

    async def records(self) -> Mapping[str, bytes]:
        """Return all records, by reporter."""
        ...
