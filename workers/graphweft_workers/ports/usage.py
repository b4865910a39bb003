"""The port of usage: small records in which processes say how much each app uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersOfApp:
    """How many dead letters an app has, and their bytes as they are stored."""

    count: int = 0
    size: int = 0


class UsageLog(Protocol):
    """The records of all reporters, and the counts of dead letters. Every method raises ``BusUnavailable``."""

    async def put_usage(self, reporter: str, record: bytes | None) -> None:
        """Replace the record of a reporter; None removes it. At most 900,000 bytes."""
        ...

    async def usage(self) -> Mapping[str, bytes]:
        """Return all records, by reporter."""
        ...

    async def letters_by_app(self) -> Mapping[str, LettersOfApp]:
        """Return the dead letters of each app, and of no app under "", without reading them.

        Letters that versions before this method wrote may be missing.
        """
        ...
