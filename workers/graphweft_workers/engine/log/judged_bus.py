"""A bus whose entries are judged by a keyring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import override

from graphweft_contracts import BusUnavailable, DeadLetter
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.log.keyring import Keyring
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import DeadLetters, LettersAround
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry, EventLog


def judged(bus: Bus, keyring: Keyring, clock: Clock = SYSTEM_CLOCK) -> Bus:
    """Return the bus; each of its entries is judged by ``keyring`` when it is read as an event."""
    letters = SignedLetters(bus.dead_letters, keyring, clock)
    return replace(bus, log=JudgedLog(bus.log, keyring), dead_letters=letters, judge=keyring)


class JudgedLog:
    """``EventLog`` that marks entries with their judge."""

    def __init__(self, log: EventLog, keyring: Keyring) -> None:
        self._log = log
        self._keyring = keyring

    async def read(self, partition: int, after: CommittedPosition, *, limit: int, wait_s: float | None = None) -> Batch:
        """See ``EventLog.read``."""
        batch = await self._log.read(partition, after, limit=limit, wait_s=wait_s)
        self._mark(batch.entries)
        return batch

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        """See ``EventLog.entries``."""
        return self._mark(await self._log.entries(partition, offsets))

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.after``."""
        return self._mark(await self._log.after(partition, offset, limit=limit))

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.before``."""
        return self._mark(await self._log.before(partition, offset, limit=limit))

    def _mark(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        for entry in entries:
            # They are new and nobody else's. A copy of each would cost more than everything else here.
            entry.judge = self._keyring
        return entries


class SignedLetters(LettersAround):
    """``DeadLetters`` whose retries and drops are signed by a worker's key. So check the original entries first."""

    def __init__(self, letters: DeadLetters, keyring: Keyring, clock: Clock) -> None:
        super().__init__(letters)
        self._keyring = keyring
        self._clock = clock

    @override
    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        signed: Sequence[Mapping[bytes, bytes]] = entries
        if entries:
            key = self._keyring.own_key("worker", self._clock.now())
            if key is None:
                raise BusUnavailable(
                    "the dead letter stays: the file of GRAPHWEFT_SIGNING_KEYS has no worker's key that is valid now. "
                    "Add one: `graphweft key new --role worker`"
                )
            signed = [key.signed(entry) for entry in entries]
        return await super().requeue(letter, signed, rest)
