"""The place of an app's log at a time of the past, and its graph as it was there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from graphweft_contracts import InvalidSettings
from graphweft_rules import RuleSet
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.moments import places_at
from graphweft_workers.rule_sets.active_rules import ActiveRules

type Position = tuple[int, str]
"""Partition and offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Places in all partitions that may hold events of an app."""

    offsets: Mapping[int, str]
    """By partition: the last offset that counts; empty before the first entry."""
    time: datetime
    """The time that was asked for, or at which the server took the entry at the position that was asked for."""
    home: int
    """The partition of the position, or one that the app's events use."""

    @property
    def positions(self) -> list[str]:
        """The places as ``PARTITION:OFFSET``, of partitions that have entries there."""
        return [f"{partition}:{offset}" for partition, offset in sorted(self.offsets.items()) if offset]

    def rules(self, rules: ActiveRules, app_id: str) -> RuleSet:
        """Return the rules that were active there."""
        offset = self.offsets[self.home]
        return rules.cursor(self.home, offset).at(app_id, offset)


async def find_past(log: AppLog, when: datetime | Position) -> Past:
    """Return the places of a time, or of a position.

    The other partitions of an app with several ones are taken at the time at which the server took the entry at the
    position. Raises ``BusUnavailable`` and ``GraphUnavailable``, and ``InvalidSettings`` if the position is none.
    """
    bus, partitions = log.bus, await log.partitions()
    if isinstance(when, datetime):
        home = (await bus.partitions.layout()).partitions_of(log.app_id)[0]
        return Past(offsets=await places_at(bus, partitions, when), time=when, home=home)
    partition, offset = when
    entry = await _time_of(bus, partition, offset)
    offsets = await places_at(bus, partitions, entry) | {partition: offset}
    return Past(offsets=offsets, time=entry, home=partition)


async def _time_of(bus: Bus, partition: int, offset: str) -> datetime:
    given = f"{partition}:{offset}"
    status = {each.id: each for each in await bus.partitions.status()}
    if partition not in status:
        raise InvalidSettings(f"invalid position {given!r}: the bus has the partitions 0 to {max(status)}")
    if not bus.offsets.accepts(offset):
        raise InvalidSettings(f"invalid position {given!r}: an offset of this bus has another form")
    if is_after(offset, status[partition].end):
        raise InvalidSettings(f"invalid position {given!r}: the partition ends at {status[partition].end or 'nothing'}")
    found = await bus.log.before(partition, offset, limit=1)
    if not found:
        raise InvalidSettings(f"invalid position {given!r}: the log has no entry there or before")
    return found[0].received
