"""A bus whose entries are judged by a keyring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from graphweft_contracts import BusUnavailable, DeadLetter
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.keyring import Keyring
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch, Committed, Entry


def judged(bus: Bus, keyring: Keyring) -> Bus:
    """Return the bus; each of its entries is judged by ``keyring`` when it is read as an event."""
    return cast("Bus", JudgedBus(bus, keyring))


def is_judged(bus: Bus) -> bool:
    """Return whether the entries of a bus are judged, and its retries signed."""
    return isinstance(bus, JudgedBus)


class JudgedBus:
    """``Bus`` that marks entries with their judge, and signs what puts dead letters back; all else is the bus's."""

    def __init__(self, bus: Bus, keyring: Keyring, clock: Clock = SYSTEM_CLOCK) -> None:
        """It closes ``bus``."""
        self._bus = bus
        self._keyring = keyring
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def read(self, partition: int, after: Committed, *, limit: int, wait_s: float) -> Batch:
        """See ``EventLog.read``."""
        batch = await self._bus.read(partition, after, limit=limit, wait_s=wait_s)
        self._mark(batch.entries)
        return batch

    async def reread(self, partition: int, after: Committed, *, limit: int) -> Batch:
        """See ``EventLog.reread``."""
        batch = await self._bus.reread(partition, after, limit=limit)
        self._mark(batch.entries)
        return batch

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        """See ``EventLog.entries``."""
        return self._mark(await self._bus.entries(partition, offsets))

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.after``."""
        return self._mark(await self._bus.after(partition, offset, limit=limit))

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.before``."""
        return self._mark(await self._bus.before(partition, offset, limit=limit))

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        """See ``DeadLetters.requeue``. A worker's key signs the entries, so check the original ones first."""
        signed: Sequence[Mapping[bytes, bytes]] = entries
        if entries:
            key = self._keyring.own_key("worker", self._clock.now())
            if key is None:
                raise BusUnavailable(
                    "the dead letter stays: the file of GRAPHWEFT_SIGNING_KEYS has no worker's key that is valid now. "
                    "Add one: `graphweft key new --role worker`"
                )
            signed = [key.signed(entry) for entry in entries]
        return await self._bus.requeue(letter, signed, rest)

    def _mark(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        _mark_all(entries, self._keyring)
        return entries


def _mark_all(entries: Iterable[Entry], keyring: Keyring) -> None:
    for entry in entries:
        # They are new and nobody else's. A copy of each would cost more than everything else here.
        object.__setattr__(entry, "judge", keyring)
