"""What ``graphweft status`` shows of the use and the quotas of apps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from graphweft_contracts import InvalidSettings
from graphweft_workers.apps import QUOTAS, AppPolicies, read_policies
from graphweft_workers.cli.output import print_table, say, warn
from graphweft_workers.engine.app_use import AppUse, read_uses
from graphweft_workers.ports.bus import Bus
from graphweft_workers.roles.settings import Settings

_MOST: Final = 20
"""Apps of the table."""


@dataclass(slots=True, kw_only=True)
class AppUses:
    """The use of all apps, those nearest to a quota first, and what hinders the look at it."""

    apps: Sequence[AppUse]
    notes: Sequence[str] = field(default_factory=list[str])

    def to_json(self) -> list[dict[str, Any]]:
        """Return all apps as plain values."""
        return [
            {
                "app_id": use.app_id,
                "events_per_s": round(use.events_per_s, 3),
                "stored_bytes": use.stored_bytes,
                "dead_letters": use.dead_letters,
                "property_names": use.property_names,
                "quotas": {quota: limit for quota in QUOTAS if (limit := use.quotas.limit(quota)) is not None},
                "use_percent": {quota: round(share * 100, 1) for quota, share in use.shares().items()},
                "over_quota": sorted(quota for quota, share in use.shares().items() if share > 1),
                "refused_requests": dict(use.refused),
                "dead_letters_without_event": use.without_payload,
            }
            for use in self.apps
        ]

    def show(self) -> None:
        """Print a table of the first apps, and what is over a quota."""
        if self.apps:
            print_table(
                ("app", "events/s", "stored", "dead letters", "names", "highest use", "refused"),
                [_row(use) for use in self.apps[:_MOST]],
                title="Use",
            )
        if len(self.apps) > _MOST:
            say(f"and {len(self.apps) - _MOST} other apps; `graphweft status --json` shows all")
        for use in self.apps[:_MOST]:
            if use.without_payload:
                letters = f"{use.without_payload:,} dead letters above the quota keep no event"
                say(f"{use.app_id}: {letters}; a retry reads it from the log")
        for note in self.notes:
            warn(note)


async def app_uses(settings: Settings, bus: Bus) -> AppUses:
    """Return the use of all apps; it reads a few records, however many apps there are. Raises ``BusUnavailable``."""
    notes: list[str] = []
    policies = AppPolicies()
    if settings.apps is not None:
        try:
            policies = read_policies(settings.apps)
        except InvalidSettings as error:
            notes.append(f"the quotas of apps are not known: {error}")
    records, letters = await bus.usage(), await bus.letters_by_app()
    apps, unread = read_uses(records, policies, time.time(), letters=letters)
    if unread:
        notes.append(f"records of another version, or of somebody else, are not counted: {', '.join(unread)}")
    return AppUses(apps=apps, notes=notes)


def _row(use: AppUse) -> tuple[str, ...]:
    shares = use.shares()
    highest = ""
    if shares and use.highest >= 0.0005:
        quota = max(shares, key=lambda name: shares[name])
        highest = f"{shares[quota]:.1%} of {quota}" + (" (over)" if shares[quota] > 1 else "")
    return (
        use.app_id,
        f"{use.events_per_s:.1f}",
        _bytes(use.stored_bytes),
        f"{use.dead_letters:,}",
        "" if use.property_names is None else f"{use.property_names:,}",
        highest,
        ", ".join(f"{number:,} {quota}" for quota, number in sorted(use.refused.items())),
    )


def _bytes(number: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"
