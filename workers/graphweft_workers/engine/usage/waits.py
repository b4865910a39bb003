"""The records of workers that wait for something, or left something out, as ``status`` reads them.

A worker puts its record on the bus while it waits, renews it, and removes it when it goes on. What it left out of an
app is shown for a week after the last time, and is removed with the app's erasure: a worker follows that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from heapq import nlargest
from typing import Final, Self

from pydantic_core import to_json

from graphweft_workers.engine.usage.app_use import FORGOTTEN_S
from graphweft_workers.ports.records import RecordLog, read_record

CLOCK: Final = "clock:"
"""Begins the key of the record of a process whose clock differs from that of the bus; its role and name follow."""
CLOCK_SHOWN_S: Final = 120.0
"""Such a process writes its record each half minute, by the time of the bus."""
EFFECTS: Final = "effects:"
"""Begins the key of the record of a worker that cannot write the effects stream; its name follows."""
JOB: Final = "job:"
"""Begins the key of the record of a worker of a job; the group of the job and the worker's name follow."""
EFFECTS_SHOWN_S: Final = 60.0
"""A worker that could not write the effects stream in this time is named."""
JOB_SHOWN_S: Final = 300.0
"""The same of a job, which writes its record again at least every 72 s, and the time that its model takes to fail."""
_LONGEST: Final = 300
_MOST_APPS: Final = 1_000
"""Apps of a record, those of which most was left out: who may name any app could fill it."""


@dataclass(slots=True, kw_only=True)
class WaitRecord:
    """What a worker waits for; of a job also what it left out."""

    at: float
    """The Unix time at which it was written."""
    since: float = 0.0
    """The Unix time since when it waits; 0: it does not wait."""
    error: str = ""
    partitions: int = 0
    """How many partitions of a job wait."""
    skipped: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    """By app, or "" for what is of no app: how much was left out, by reason."""
    skipped_at: dict[str, float] = field(default_factory=dict[str, float])
    """By app: the Unix time of the last time."""

    def recent(self, now: float) -> dict[str, Counter[str]]:
        """Return what was left out of apps that had some of it in the last week: of many apps, of those with most."""
        found = {
            app_id: counts
            for app_id, counts in self.skipped.items()
            if self.skipped_at.get(app_id, self.at) >= now - FORGOTTEN_S
        }
        if len(found) <= _MOST_APPS:
            return found

        def rank(item: tuple[str, Counter[str]]) -> tuple[int, float]:
            app_id, counts = item
            return counts.total(), self.skipped_at.get(app_id, self.at)

        return dict(nlargest(_MOST_APPS, found.items(), key=rank))

    def encode(self) -> bytes:
        """Return the record."""
        error = self.error[:_LONGEST].encode("utf-8", "backslashreplace").decode()  # a model's answer may be in it
        return to_json(replace(self, error=error))

    @classmethod
    def decode(cls, record: bytes) -> Self:
        """Return the content of a record. Raises ``ValueError`` for anything else."""
        found = read_record(cls, record)
        found.error = found.error[:_LONGEST]
        try:
            found.since_text()
        except (OverflowError, OSError) as error:  # a time beyond all calendars
            raise ValueError("the value is not a record of a wait") from error
        return found

    def waits(self, now: float, within_s: float) -> bool:
        """Return whether the worker waited when it wrote the record, in the last ``within_s`` seconds."""
        return self.since > 0 and now - self.at < within_s

    def since_text(self) -> str:
        """Return since when it waits, for people."""
        return f"{datetime.fromtimestamp(self.since, UTC):%Y-%m-%d %H:%M:%SZ}"


def wait_records(records: Mapping[str, bytes], kind: str) -> Iterator[tuple[str, WaitRecord]]:
    """Yield the records whose key begins with ``kind``, with the rest of the key; what cannot be read is left out."""
    for key, body in records.items():
        if key.startswith(kind):
            try:
                yield key.removeprefix(kind), WaitRecord.decode(body)
            except ValueError:
                continue


def old_records(records: Mapping[str, bytes], kind: str, before: float) -> list[str]:
    """Return the keys of a kind whose records were written before a Unix time, or cannot be read."""
    newer = {f"{kind}{name}" for name, record in wait_records(records, kind) if record.at >= before}
    return [key for key in records if key.startswith(kind) and key not in newer]


def wrong_clocks(records: Mapping[str, bytes], now: float) -> list[str]:
    """Return in words whose clock differs from that of the bus, and by how much."""
    found = wait_records(records, CLOCK)
    return sorted(f"{name}: {each.error}" for name, each in found if each.waits(now, CLOCK_SHOWN_S))


async def count_skips(records: RecordLog, app_id: str) -> int:
    """Return how much jobs say that they left out of an app. Raises ``BusUnavailable``."""
    found = wait_records((await records.after(None)).found, JOB)
    return sum(record.skipped[app_id].total() for _, record in found if app_id in record.skipped)


async def forget_skips(records: RecordLog, app_id: str) -> None:
    """Remove from all records what jobs left out of an app. Raises ``BusUnavailable``."""
    for name, record in wait_records((await records.after(None)).found, JOB):
        if record.skipped.pop(app_id, None) is not None:
            # Never removed as a whole: its worker would not see that.
            await records.put(f"{JOB}{name}", record.encode())
