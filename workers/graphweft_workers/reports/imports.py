"""What became of the items of another store that were imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from graphweft_contracts.plurals import counted
from graphweft_workers.imports.report import MOST_LISTED, ImportReport
from graphweft_workers.reports.delivery import DeliveryOutcome
from graphweft_workers.reports.report import Notice, Part

_MOST_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreImport:
    """The items of a file, and the outcome of their events if it was waited for."""

    items: ImportReport
    dry_run: bool = False
    outcome: DeliveryOutcome | None = None
    without_outcome: bool = False
    """Whether the outcome was waited for and cannot be known."""

    @property
    def exit_code(self) -> int | None:
        """The exit code of a command: 2 for items that are refused or missing, 1 unless all events are applied."""
        if self.items.refused or self.items.missing:
            return 2
        return 1 if self.without_outcome or (self.outcome is not None and not self.outcome.complete) else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        items = self.items
        found: dict[str, Any] = {
            "dry_run": self.dry_run,
            "events": dict(items.events),
            "refused": items.refused,
            "reasons": dict(items.reasons.most_common()),
            "refused_items": [{"place": place, "reason": reason} for place, reason in items.listed],
            "repeated_in_file": items.repeated,
            "left_out": dict(items.left_out),
            "times_without_zone": items.without_zone,
            "missing": items.missing or None,
            "first": items.first,
            "last": items.last,
        }
        return found if self.outcome is None else found | self.outcome.to_dict()

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        items = self.items
        for place, reason in items.listed[:_MOST_SHOWN]:
            yield Notice(f"{place}: {reason}", is_error=True)
        if items.refused > _MOST_SHOWN:
            yield Notice(f"{items.refused:,} items are refused in all (--json lists the first {MOST_LISTED}):")
            for reason, number in items.reasons.most_common():
                yield Notice(f"  {number:,} x {reason}")
        kinds = ", ".join(f"{kind}: {number:,}" for kind, number in items.events.items())
        total = counted(items.events.total(), "event") + (f" ({kinds})" if kinds else "")
        yield f"{'would send' if self.dry_run else 'sent'} {total}, refused {counted(items.refused, 'item')}"
        if items.first is not None and items.last is not None:
            yield f"times: {items.first:%Y-%m-%dT%H:%M:%SZ} to {items.last:%Y-%m-%dT%H:%M:%SZ}"
        if items.repeated:
            yield f"repeated in the file: {items.repeated:,}"
        if items.without_zone:
            yield f"times without a zone, read as UTC: {items.without_zone:,}"
        if items.left_out:
            yield "left out: " + ", ".join(f"{name} ({number:,})" for name, number in items.left_out.most_common())
        if items.missing:
            yield Notice(items.missing)
        if self.outcome is not None:
            yield from self.outcome.parts()
