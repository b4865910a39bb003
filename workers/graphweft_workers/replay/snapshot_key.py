"""What a replayed graph follows from: the log, the rules and what was passed over, up to a place.

Two replays with the same key give equal graphs. Of entries behind the place, only those count that
say that an event before it had no effect.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import Activation, newest, restated_scope
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.log.ledger_reader import ledger_as_lived
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.offsets import is_after

_START: Final = bytes(32)


class LogHash:
    """A hash of the entries of a partition up to the last one that was added."""

    def __init__(self, value: bytes = _START) -> None:
        self.value = value

    def add(self, entry: Entry) -> None:
        """Add the next entry."""
        found = hashlib.sha256(self.value)
        found.update(f"{entry.offset} {entry.received.timestamp()} {len(entry.fields)}".encode())
        for name, content in sorted(entry.fields.items()):
            found.update(b"%d %d " % (len(name), len(content)))
            found.update(name)
            found.update(content)
        self.value = found.digest()


class Scan:
    """One partition, read to its end: what was passed over, and the hash of the log at some offsets."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.end = ""
        """The last entry up to the end that was given."""
        self.passed_over = EffectLedger(partition)
        self._hashes: dict[str, bytes] = {"": _START}

    @classmethod
    async def of(cls, bus: Bus, partition: int, offsets: Collection[str], *, end: str | None = None) -> Scan:
        """Read a partition; keep the hashes at ``offsets``, and at the last entry up to ``end``."""
        scan, log, at_end = cls(partition), LogHash(), _START

        def watch(page: Sequence[Entry]) -> None:
            nonlocal at_end
            for entry in page:
                log.add(entry)
                if end is None or not is_after(entry.offset, end):
                    scan.end, at_end = entry.offset, log.value
                if entry.offset in offsets:
                    scan._hashes[entry.offset] = log.value

        scan.passed_over = await ledger_as_lived(bus, partition, watch=watch)
        scan._hashes[scan.end] = at_end
        return scan

    def hash_at(self, offset: str) -> bytes | None:
        """Return the hash at an offset that was given, if there is an entry."""
        return self._hashes.get(offset)

    def passed(self, app_id: str, offset: str) -> list[tuple[str, ...]]:
        """Return what was passed over of an app up to an offset."""
        return self.passed_over.of_app(app_id, lambda at: not is_after(at, offset))

    def active(self, activations: Iterable[Activation], offset: str) -> list[tuple[str, str, str]]:
        """Return place, scope and rules of the activations up to an offset."""
        places = ((each.positions.get(self.partition), each) for each in activations)
        return [(at, each.scope, each.digest) for at, each in places if at is not None and not is_after(at, offset)]


def snapshot_key(
    scan: Scan,
    app_id: str,
    offset: str,
    log_hash: bytes,
    activations: Sequence[Activation],
    *,
    before: str,
    code: str,
) -> str:
    """Return a hash of all that an app's graph follows from at an offset of a partition.

    ``before`` is the key of the partitions that were replayed before, and ``code`` stands for the version, the
    built-in mutations and the kind of graph.
    """
    mine = [each for each in activations if each.scope in (app_id, ALL_APPS)]
    restated = newest(activations, restated_scope(app_id))  # it is about events before it
    past = None if restated is None else [restated.number, restated.digest, restated.positions.get(scan.partition)]
    first = mine[0].digest if mine else None  # it applies before the first activation too
    place = [before, scan.partition, offset, log_hash.hex()]
    parts = [code, app_id, *place, scan.passed(app_id, offset), scan.active(mine, offset), first, past]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
