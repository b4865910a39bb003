"""What rules make of the log of one app, without a graph: the mutations of each event, and the skips."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from graphweft_workers.active_rules import ActiveRules
from graphweft_workers.engine.compile_ahead import read_compiled
from graphweft_workers.engine.duplicates import RecentEvents
from graphweft_workers.engine.passed_over import PassedOver
from graphweft_workers.engine.read import Range
from graphweft_workers.ports.bus import Bus

_PAGE: Final = 1_000


async def matched_log(
    bus: Bus, rules: ActiveRules, app_id: str, partition: int, passed_over: PassedOver, *, to: str
) -> AsyncIterator[Range]:
    """Yield what rules make of the events of an app in a partition up to ``to``, range by range, as a replay does.

    The last range may be empty. Raises ``BusUnavailable``.
    """
    recent, offset = RecentEvents(), ""
    await rules.refresh()
    cursor = rules.cursor(partition, "")
    while page := await bus.after(partition, offset, limit=_PAGE):
        wanted = [entry for entry in page if not bus.is_after(entry.offset, to)]
        if not wanted:
            return
        await rules.refresh(wanted)
        yield await read_compiled(partition, wanted, cursor, recent, only=app_id, passed_over=passed_over)
        offset = wanted[-1].offset
