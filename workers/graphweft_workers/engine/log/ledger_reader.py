"""Reads from a bus what has no effect in a partition: its dead letters, then its entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from graphweft_workers.engine.log.effect_ledger import EffectLedger, is_of_rules
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition, Entry
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import pages, what_is_there

_MOST_LETTERS: Final = 1_000_000

type Watch = Callable[[Sequence[Entry]], None]
"""Gets the entries that are read, in order."""


async def ledger_as_lived(
    bus: Bus, partition: int, *, after: CommittedPosition | None = None, watch: Watch = lambda _: None
) -> EffectLedger:
    """Return what had no effect in a partition up to now. Reads it to its end. Raises ``BusUnavailable``.

    With ``after``, only what is behind that position, as far as it is there; without it, no entry may be missing.

    Retries before the place up to which an app's past is restated have none: the restatement included their rows.
    """
    until = {
        app_id: activation.positions.get(partition, "")
        for activation in await bus.rules.activations()
        if (app_id := activation.restates) is not None
    }
    ledger = EffectLedger(partition, lambda app_id, offset: app_id in until and is_after(until[app_id], offset))
    # Letters first: one that is retried meanwhile has an entry that is read below.
    for letter in await bus.dead_letters.read(limit=_MOST_LETTERS, whole=False):
        ledger.add_letter(letter)
    return await _with_entries(ledger, bus, partition, after, watch)


async def ledger_by_other_rules(bus: Bus, partition: int) -> EffectLedger:
    """Return what has no effect in a partition by other rules than those it was lived with; see the other one."""
    ledger = EffectLedger(partition, lambda _app_id, _offset: True)
    for letter in await bus.dead_letters.read(limit=_MOST_LETTERS, whole=False):
        if not is_of_rules(letter):
            ledger.add_letter(letter)
    return await _with_entries(ledger, bus, partition, None, lambda _: None)


async def _with_entries(
    ledger: EffectLedger, bus: Bus, partition: int, after: CommittedPosition | None, watch: Watch
) -> EffectLedger:
    found = pages(bus.log, partition) if after is None else what_is_there(bus.log, partition, after)
    async for page in found:
        ledger.add_entries(page)
        watch(page)
    ledger.close()
    return ledger
