"""Which apps something was erased from for good, as far as this process knows: ``graphweft erase`` announces it."""

from __future__ import annotations

from graphweft_workers.ports.purges import PurgeReader, Purges
from graphweft_workers.ports.records import RecordLog


class KnownErasures:
    """The erasures that were announced up to the last ``follow``, numbered as this process learned of them.

    An erasure is announced once log, archive and graph are without what it erased. So what was read under a number, and
    is put on the bus while no later erasure of its app is known, was made of what is left; or the erasure is not done,
    and finds it on the log.
    """

    def __init__(self, purges: RecordLog) -> None:
        self._purges = PurgeReader(purges, handle=self._number)
        self._last: dict[str, str] = {}
        """By app: the last erasure."""
        self._numbers: dict[str, int] = {}
        """By app: the number of its last erasure."""
        self.number: int = 0
        """The number of the last erasure that is known."""

    async def follow(self) -> None:
        """Learn of all erasures that were announced before this call. Raises ``BusUnavailable``."""
        await self._purges.read()

    def has_later(self, app_id: str | None, number: int) -> bool:
        """Tell whether an erasure of an app, or of any for None, is known that is later than the one with a number."""
        return (self.number if app_id is None else self._numbers.get(app_id, 0)) > number

    def _number(self, purges: Purges) -> None:
        for purge in purges.found:
            if purge.erasure and self._last.get(purge.app_id) != purge.erasure:
                self.number += 1
                self._last[purge.app_id], self._numbers[purge.app_id] = purge.erasure, self.number
