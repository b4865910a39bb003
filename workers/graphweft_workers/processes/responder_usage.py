"""The responder's part in the use of apps: it reports the queries that are slow and got no turn."""

from __future__ import annotations

from collections import Counter
from typing import Final

from graphweft_contracts import Transient
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.usage.app_use import RESPONDER, WITHOUT_TURN, Refusals, forgotten
from graphweft_workers.ports.records import RecordLog
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.injection")

_EVERY_S: Final = 10.0
_MOST_APPS: Final = 1_000
"""Apps in a record, those with the most queries."""


class ResponderUsage:
    """Writes the record of one responder. ``name`` is its own, and ``without_turn`` counts its queries by app."""

    def __init__(self, log: RecordLog, without_turn: Counter[str], *, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._log = log
        self._without_turn = without_turn
        self._reporter = f"{RESPONDER}{name}"
        self._clock = clock
        self._written = 0
        self._failed = False

    async def run(self) -> None:
        """Write what is new every few seconds, until cancelled."""
        while True:
            await self.report()
            await self._clock.sleep(_EVERY_S)

    async def report(self) -> None:
        """Write the record if it has changed. A bus that is unavailable, or refuses, is logged once."""
        total = self._without_turn.total()
        if total == self._written:
            return
        try:
            await self._write()
        except Transient as error:
            if not self._failed:
                logger.warning(
                    "usage_not_reported", error=str(error), without_turn=total,
                    advice="`graphweft status` does not show these queries; `graphweft acl` prints the rights",
                )  # fmt: skip
            self._failed = True
        else:
            self._written = total
            self._failed = False

    async def _write(self) -> None:
        now = self._clock.now().timestamp()
        if not self._written:
            for reporter in forgotten((await self._log.after(None)).found, RESPONDER, now):
                await self._log.put(reporter, None)
        apps = {app_id: Counter({WITHOUT_TURN: n}) for app_id, n in self._without_turn.most_common(_MOST_APPS)}
        await self._log.put(self._reporter, Refusals(time=now, apps=apps).encode())
