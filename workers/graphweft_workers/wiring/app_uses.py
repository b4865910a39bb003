"""The use and the quotas of all apps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from graphweft_contracts import InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.apps import QUOTAS, AppPolicies, read_policies
from graphweft_workers.engine.usage.app_use import AppUse, read_uses
from graphweft_workers.engine.usage.waits import EFFECTS, EFFECTS_SHOWN_S, wait_records, wrong_clocks
from graphweft_workers.ports.bus import Bus
from graphweft_workers.settings.settings import Settings


@dataclass(slots=True, kw_only=True)
class AppUses:
    """The use of all apps, and what hinders the look at it.

    First are those of which requests were refused, then those nearest to a quota.
    """

    apps: Sequence[AppUse]
    notes: Sequence[str] = field(default_factory=list[str])
    effects: Sequence[str] = ()
    """Which workers cannot write the effects stream, and why."""
    clocks: Sequence[str] = ()
    """Which processes have a clock that differs from that of the bus, and by how much."""

    def to_json(self) -> list[dict[str, Any]]:
        """Return all apps as plain values."""
        return [
            {
                "app_id": use.app_id,
                "events_per_s": round(use.events_per_s, 3),
                "stored_bytes": use.stored_bytes,
                "dead_letters": use.dead_letters,
                "graph_bytes": use.graph_bytes,
                "property_names": use.property_names,
                "quotas": {quota: limit for quota in QUOTAS if (limit := use.quotas.limit(quota)) is not None},
                "use_percent": {quota: round(share * 100, 1) for quota, share in use.shares().items()},
                "over_quota": sorted(quota for quota, share in use.shares().items() if share > 1),
                "refused_requests": dict(use.refused),
                "spans_without_event": dict(use.spans),
                "without_turn": use.without_turn,
                "copies": use.copies,
                "dead_letters_without_event": use.without_payload,
            }
            for use in self.apps
        ]


async def app_uses(settings: Settings, bus: Bus) -> AppUses:
    """Return the use of all apps; it reads a few records, however many apps there are. Raises ``BusUnavailable``."""
    notes: list[str] = []
    policies = AppPolicies()
    if settings.apps is not None:
        try:
            policies = read_policies(settings.apps)
        except InvalidSettings as error:
            notes.append(f"the quotas of apps are not known: {error}")
    records, letters = (await bus.usage.after(None)).found, await bus.dead_letters.by_app()
    now = SYSTEM_CLOCK.now().timestamp()
    apps, unread = read_uses(records, policies, now, letters=letters)
    if unread:
        notes.append(f"records of another version, or of somebody else, are not counted: {', '.join(unread)}")
    effects = [
        f"worker {name} cannot write the effects stream since {each.since_text()}: {each.error}"
        for name, each in wait_records(records, EFFECTS)
        if each.waits(now, EFFECTS_SHOWN_S)
    ]
    refused_first = sorted(apps, key=lambda use: not any(use.refused.values()))
    return AppUses(apps=refused_first, notes=notes, effects=effects, clocks=wrong_clocks(records, now))
