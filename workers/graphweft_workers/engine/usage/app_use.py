"""What each app uses: the sum of all records of usage, beside its quotas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import to_json

from graphweft_workers.apps import QUOTAS, AppPolicies, QuotaName, Quotas
from graphweft_workers.engine.usage.partition_usage import RECENT_S, GraphMeasure, PartitionUsage
from graphweft_workers.ports.dead_letters import LettersOfApp
from graphweft_workers.ports.records import read_record

PARTITION: Final = "partition:"
"""Begins the name of the record of a partition."""
GATEWAY: Final = "gateway:"
RESPONDER: Final = "responder:"
WITHOUT_TURN: Final = "without_turn"
"""What a responder counts in its record: queries that are slow and got no turn."""
SPANS: Final = "spans:"
"""Begins what a gateway counts of spans that gave no event; the reason follows."""
FORGOTTEN_S: Final = 7 * 24 * 3600.0
"""The record of a gateway or a responder that has not been written for so long is removed."""
LETTERS: Final = "letters"
"""Name of the record with the dead letters of each app, for processes that do not count them."""


def forgotten(records: Mapping[str, bytes], kind: str, now: float) -> list[str]:
    """Return the reporters of a kind, ``GATEWAY`` or ``RESPONDER``, whose records are to be removed."""
    return [
        name
        for name, record in records.items()
        if name.startswith(kind) and refusals_of(record).time < now - FORGOTTEN_S
    ]


@dataclass(slots=True, kw_only=True)
class Refusals:
    """The record of a gateway or a responder: by app, requests refused by quota and ``SPANS``, or ``WITHOUT_TURN``."""

    time: float
    apps: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])

    def encode(self) -> bytes:
        """Return the record."""
        return to_json(self)


def refusals_of(record: bytes | None) -> Refusals:
    """Return the content of a record; for anything else, one without content and time."""
    try:
        return Refusals(time=0.0) if record is None else read_record(Refusals, record)
    except ValueError:
        return Refusals(time=0.0)


def encode_letters(letters: Mapping[str, LettersOfApp]) -> bytes:
    """Return the record of dead letters."""
    return to_json({app_id: [each.count, each.size] for app_id, each in sorted(letters.items())})


def decode_letters(record: bytes) -> dict[str, LettersOfApp]:
    """Return the content of a record of dead letters. Raises ``ValueError`` for anything else."""
    found = read_record(dict[str, tuple[int, int]], record)
    return {app_id: LettersOfApp(count=count, size=size) for app_id, (count, size) in found.items()}


@dataclass(slots=True, kw_only=True)
class AppUse:
    """What one app uses."""

    app_id: str
    events_per_s: float = 0.0
    """Over the last minute, as workers read them."""
    stored_bytes: int = 0
    """About the bytes of its events and dead letters on the bus."""
    dead_letters: int = 0
    graph_bytes: int | None = None
    """None if no worker has measured the graph, or the graph server does not tell."""
    property_names: int | None = None
    """None if no worker has counted them, or the graph server does not limit them."""
    refused: Counter[str] = field(default_factory=Counter[str])
    """Requests that gateways refused, by quota."""
    spans: Counter[str] = field(default_factory=Counter[str])
    """Spans that gave no event, by reason."""
    without_turn: int = 0
    """Queries of responders that ended because they are slow and got no turn."""
    copies: int = 0
    """Events that had no effect because they had come before."""
    without_payload: int = 0
    """Dead letters that were kept without their event."""
    quotas: Quotas = field(default_factory=Quotas)

    def used(self, quota: QuotaName) -> float:
        """Return the use that a quota limits. Bytes a second are not counted."""
        match quota:
            case "bytes_per_s":
                return 0
            case "property_names":
                return self.property_names or 0
            case "graph_bytes":
                return self.graph_bytes or 0
            case _:
                return float(getattr(self, quota))

    def shares(self) -> dict[QuotaName, float]:
        """Return which part of each quota is used; above 1 the app is over it."""
        return {
            quota: self.used(quota) / limit
            for quota in QUOTAS
            if quota != "bytes_per_s" and (limit := self.quotas.limit(quota)) is not None
        }

    @property
    def highest(self) -> float:
        """The highest share of a quota."""
        return max(self.shares().values(), default=0.0)


def read_uses(
    records: Mapping[str, bytes],
    policies: AppPolicies,
    now: float,
    *,
    letters: Mapping[str, LettersOfApp] | None = None,
) -> tuple[list[AppUse], list[str]]:
    """Return what each app uses, those nearest to a quota first, and the names of records that cannot be read.

    ``letters`` are the dead letters as the bus counts them now; without them those of the record count.
    """
    uses: dict[str, AppUse] = {}
    unread: list[str] = []

    def of(app_id: str) -> AppUse:
        found = uses.get(app_id)
        if found is None:
            found = uses[app_id] = AppUse(app_id=app_id, quotas=policies.of(app_id).quotas)
        return found

    graphs: dict[str, GraphMeasure] = {}
    for reporter, record in records.items():
        try:
            if reporter.startswith(PARTITION):
                _add_partition(PartitionUsage.decode(record), now, of, graphs)
            elif reporter.startswith(GATEWAY):
                for app_id, counts in read_record(Refusals, record).apps.items():
                    use = of(app_id)
                    for name, number in counts.items():
                        if name.startswith(SPANS):
                            use.spans[name.removeprefix(SPANS)] += number
                        else:
                            use.refused[name] += number
            elif reporter.startswith(RESPONDER):
                for app_id, counts in read_record(Refusals, record).apps.items():
                    of(app_id).without_turn += counts[WITHOUT_TURN]
            elif reporter == LETTERS and letters is None:
                letters = decode_letters(record)
        except ValueError:
            unread.append(reporter)
    for app_id, measured in graphs.items():
        use = of(app_id)
        use.property_names, use.graph_bytes = measured.names, measured.memory
    for app_id, each in (letters or {}).items():
        if app_id:
            use = of(app_id)
            use.dead_letters += each.count
            use.stored_bytes += each.size
    return sorted(uses.values(), key=lambda use: (-use.highest, -use.stored_bytes, use.app_id)), unread


def _add_partition(usage: PartitionUsage, now: float, of: Any, graphs: dict[str, GraphMeasure]) -> None:
    for app_id, size in usage.stored().items():
        of(app_id).stored_bytes += size
    for app_id, events in usage.recent(now).items():
        of(app_id).events_per_s += events / RECENT_S
    for app_id, measured in usage.graphs.items():
        known = graphs.get(app_id)
        if known is None or measured.time >= known.time:
            graphs[app_id] = measured
    for app_id, (number, _) in usage.copies.items():
        of(app_id).copies += number
    for app_id, number in usage.without_payload.items():
        of(app_id).without_payload += number
