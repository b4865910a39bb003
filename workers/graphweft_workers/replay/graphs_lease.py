"""Who may make, exchange and delete the graphs of an app: one command at a time.

Each command has a record on the bus and in the archive, as far as it uses them, and renews it. So the next one tells a
command that works from one that was killed, also if one of the two has the archive alone. The records save work and say
who works. What keeps a graph from the writes of two commands is the graph itself: its checkpoints and the mark of a
load, see ``WholeGraphs.load``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, Self
from uuid import uuid4

from pydantic_core import to_json

from graphweft_contracts import BusUnavailable
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.archive.blob_records import BlobRecords
from graphweft_workers.archive.blobs import ArchiveReadOnly
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.records import RecordLog, read_record
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.tasks import end_tasks
from graphweft_workers.support.timing import TIMING, ReplayTiming

logger = get_logger("graphweft.rebuild")

LEASE: Final = "lease:"
"""Begins the key of the record of a command; the app's id and the name of the lease follow, with ``/`` between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """What a command says of itself."""

    command: str
    where: str
    since: str
    asks: bool
    """Whether it only waits for others."""
    over: tuple[str, ...] = ()
    """The leases that it has taken over, because their commands gave no sign of life."""
    beat: int = 0

    def encode(self) -> bytes:
        return to_json(self)


def _decoded(record: bytes) -> _Record:
    """Return the content of a record; of one that cannot be read, that of an unknown command at work."""
    try:
        return read_record(_Record, record)
    except ValueError:
        return _Record(command="an unknown command", where="an unknown host", since="an unknown time", asks=False)


class GraphsLease:
    """The lease of one command on all graphs of one app."""

    def __init__(
        self,
        *places: RecordLog,
        app_id: str,
        command: str,
        clock: Clock = SYSTEM_CLOCK,
        timing: ReplayTiming = TIMING.replay,
    ) -> None:
        """See ``of``. ``places`` are those of the record: commands with one in common exclude each other."""
        self._places = list(places)
        self._app_id = app_id
        self._command = command
        self._clock = clock
        self._timing = timing
        self._own = f"{LEASE}{app_id}/{uuid4().hex}"

    @classmethod
    def of(
        cls, bus: Bus, app_id: str, command: str, *, clock: Clock = SYSTEM_CLOCK, timing: ReplayTiming = TIMING.replay
    ) -> Self:
        """Return the lease of a command, named as an operator gives it, such as ``graphweft rebuild``."""
        archive = [] if bus.archive is None else [BlobRecords(bus.archive)]
        places = dict.fromkeys([bus.usage, *archive])  # one, if there is an archive alone
        return cls(*places, app_id=app_id, command=command, clock=clock, timing=timing)

    async def check(self) -> None:
        """Raise ``BusUnavailable`` if another command has taken the lease over: it took this one for killed."""
        if (loss := self._loss(await self._found())) is not None:
            raise loss

    def _loss(self, found: Mapping[str, bytes]) -> BusUnavailable | None:
        """Return the error if the records say that the lease is lost."""
        if not self._places:
            return None
        taker = next((each for each in map(_decoded, found.values()) if self._own in each.over), None)
        return None if self._own in found and taker is None else self._taken(taker)

    def _taken(self, taker: _Record | None = None) -> BusUnavailable:
        name = f"`{taker.command}` ({taker.where})" if taker is not None else "another command"
        return BusUnavailable(
            f"{name} has taken over the graphs of {self._app_id!r}, because this command gave no sign of life for "
            f"{self._timing.lease_s:.0f} s: wait until it has ended, then give this command again if it is still needed"
        )

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Hold the lease for the time of the block.

        Raises ``BusUnavailable``, which names the other command, while that works. One that was killed holds this one
        up for ``ReplayTiming.lease_s``. If this command is taken for killed, the block is cancelled and the error of
        ``check`` is raised.
        """
        record = _Record(
            command=self._command,
            where=f"process {os.getpid()} on {socket.gethostname()}",
            since=f"{self._clock.now():%Y-%m-%d %H:%M:%SZ}",
            asks=True,
        )
        try:
            await self._put_first(record)
            if not self._places:
                yield
                return
            record = await self._wait_for_others(record)
            async with self._renewed(record):
                yield
        finally:
            with contextlib.suppress(BusUnavailable):  # then it ends as that of a killed command does
                await asyncio.shield(self._remove(self._own))

    async def _wait_for_others(self, record: _Record) -> _Record:
        """Return the record of the holder when nobody else has the lease. Of two that wait, the smaller name has it."""
        seen: dict[str, tuple[bytes, float]] = {}
        over: list[str] = []
        while True:
            found = await self._found()
            others = {key: each for key, each in found.items() if key != self._own and key not in over}
            if (loss := self._loss(found)) is not None:
                raise loss
            for key, each in others.items():
                other = _decoded(each)
                if key not in seen:
                    logger.info(
                        "command_waits", app_id=self._app_id,
                        message=f"`{other.command}` ({other.where}, since {other.since}) has the graphs of "
                        f"{self._app_id!r}: if it was killed, this command goes on after {self._timing.lease_s:.0f} s",
                    )  # fmt: skip
                before, since = seen.setdefault(key, (each, self._clock.monotonic()))
                if each != before:
                    if key < self._own or not other.asks:
                        raise self._refusal(other)
                    seen[key] = each, self._clock.monotonic()
                elif self._clock.monotonic() - since >= self._timing.lease_s:
                    over.append(key)
            if others.keys() <= set(over):
                holder = replace(record, asks=False, over=tuple(over))
                await self._put(holder)
                for key in over:
                    await self._remove(key)
                late = [each for key, each in (await self._found()).items() if key != self._own and key not in over]
                if rival := next((each for each in map(_decoded, late) if not each.asks), None):
                    raise self._refusal(rival)
                return holder
            record = replace(record, beat=record.beat + 1)
            await self._put(record)
            await self._clock.sleep(self._timing.lease_beat_s / 4)

    def _refusal(self, other: _Record) -> BusUnavailable:
        return BusUnavailable(
            f"`{other.command}` works on the graphs of {self._app_id!r} since {other.since} ({other.where}): wait "
            "until it has ended, then give this command again if it is still needed"
        )

    @contextlib.asynccontextmanager
    async def _renewed(self, record: _Record) -> AsyncGenerator[None]:
        body = asyncio.current_task()
        assert body is not None
        lost: list[BusUnavailable] = []

        async def renew() -> None:
            for beat in count(record.beat + 1):
                await self._clock.sleep(self._timing.lease_beat_s)
                with contextlib.suppress(BusUnavailable):
                    read = self._clock.monotonic()
                    loss = self._loss(await self._found())
                    if loss is None:
                        await self._put(replace(record, beat=beat))
                        if self._clock.monotonic() - read >= self._timing.lease_s:  # it may have been removed before
                            loss = self._taken()
                    if loss is not None:
                        lost.append(loss)
                        body.cancel()
                        return

        renewing = asyncio.create_task(renew(), name="graphweft-graphs-lease")
        try:
            yield
        except asyncio.CancelledError:
            if not lost:
                raise
            body.uncancel()
            raise lost[0] from None
        finally:
            await end_tasks(renewing)

    async def _put_first(self, record: _Record) -> None:
        """Put the record, and go on without an archive that can only be read, as a copy for a rehearsal."""
        for each in [*self._places]:
            try:
                await each.put(self._own, record.encode())
            except ArchiveReadOnly as error:
                self._places.remove(each)
                logger.warning(
                    "no_lease_in_the_archive", app_id=self._app_id, error=str(error),
                    message=f"a command on the graphs of {self._app_id!r} that has this archive alone does not see "
                    "this one: give none meanwhile",
                )  # fmt: skip

    async def _put(self, record: _Record) -> None:
        for each in self._places:
            await each.put(self._own, record.encode())

    async def _remove(self, key: str) -> None:
        for each in self._places:
            await each.put(key, None)

    async def _found(self) -> Mapping[str, bytes]:
        """Return the records of all places; the own one only if it is in each: another command may see one alone."""
        found, is_there = dict[str, bytes](), True
        for each in self._places:
            records = (await each.after(None)).found
            found |= records
            is_there = is_there and self._own in records
        prefix = f"{LEASE}{self._app_id}/"
        return {
            key: record for key, record in found.items() if key.startswith(prefix) and (is_there or key != self._own)
        }
