"""The records of workers that wait for something, or left something out, as ``status`` reads them. Pure.

A worker puts its record on the bus while it waits, renews it, and removes it when it goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

from pydantic_core import from_json, to_json

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
"""Apps of a record, those of which most was left out."""


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

    def encode(self) -> bytes:
        """Return the record."""
        most = sorted(self.skipped.items(), key=lambda item: -item[1].total())[:_MOST_APPS]
        return to_json(
            {"at": self.at, "since": self.since, "error": self.error[:_LONGEST], "partitions": self.partitions,
             "skipped": dict(most)}
        )  # fmt: skip

    @classmethod
    def decode(cls, record: bytes) -> Self:
        """Return the content of a record. Raises ``ValueError`` for anything else."""
        try:
            raw: Any = from_json(record)
            skipped = {
                str(app_id): Counter({str(reason): int(number) for reason, number in counts.items()})
                for app_id, counts in raw.get("skipped", {}).items()
            }
            found = cls(
                at=float(raw["at"]), since=float(raw["since"]), error=str(raw["error"])[:_LONGEST],
                partitions=int(raw.get("partitions", 0)), skipped=skipped,
            )  # fmt: skip
            found.since_text()
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
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
