"""Tells the effects stream what took effect: one message for each app and commit.

A worker adds events when they have taken effect, takes what there is before it asks the graph to have all on disk, and
writes the messages of that when it has, before it commits the position. So after a crash the next owner reads the same
events again, and writes them again.

A bus that refuses the stream stops nothing: what was to be said is added up, and is said together later. Meanwhile a
record on the bus says so for ``status``. If the worker ends before that, these messages are missing, and the next
worker that starts removes the record.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, override

from graphweft_contracts import DeadLetter, Transient
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.effects import Effects
from graphweft_rules.matching.mutation import CompiledMutation
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.usage.waits import EFFECTS, EFFECTS_SHOWN_S, WaitRecord, old_records
from graphweft_workers.ports.dead_letters import DeadLetters, LettersAround
from graphweft_workers.ports.effects import EffectStream
from graphweft_workers.ports.offsets import is_after, later
from graphweft_workers.ports.records import RecordLog
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.support.timing import TIMING, EffectTiming
from graphweft_workers.telemetry.metrics import EFFECTS_FAILED, EFFECTS_LOST, EFFECTS_WRITTEN

logger = get_logger("graphweft.mutation")

_MOST_APPS: Final = 10_000
"""Apps of a partition that are kept while the bus refuses the stream."""
_MOST_NAMES: Final = 200
"""Mutations, and labels, of one message: those with the most rows."""


@dataclass(slots=True)
class _Rows:
    """The rows of one mutation."""

    mutation: CompiledMutation
    number: int = 0


@dataclass(slots=True)
class Account:
    """What is to be said of one app."""

    first: str = ""
    last: str = ""
    events: int = 0
    rows: dict[int, _Rows] = field(default_factory=dict[int, _Rows])
    """By the identity of the mutation: its hash would cost more than all the rest."""
    without_effect: Counter[str] = field(default_factory=Counter[str])

    def reach(self, first: str, last: str) -> None:
        """Extend the offsets to these."""
        self.first = first if not self.first or is_after(self.first, first) else self.first
        self.last = later(self.last, last)

    def add(self, events: Sequence[LoggedEvent]) -> None:
        """Add events that took effect, in log order."""
        self.reach(events[0].entry.offset, events[-1].entry.offset)
        self.events += len(events)
        rows = self.rows
        for event in events:
            for bound in event.mutations:
                key = id(bound.mutation)
                if (found := rows.get(key)) is None:
                    found = rows[key] = _Rows(bound.mutation)
                found.number += 1

    def join(self, newer: Account) -> None:
        """Add what an account says that began after this one."""
        self.reach(newer.first, newer.last)
        self.events += newer.events
        for key, rows in newer.rows.items():
            self.rows.setdefault(key, _Rows(rows.mutation)).number += rows.number
        self.without_effect += newer.without_effect

    def message(self, app_id: str, partition: int, time: datetime) -> Effects:
        """Return it as a message."""
        mutations, labels = Counter[str](), Counter[str]()
        for rows in self.rows.values():
            mutations[f"{rows.mutation.rule}/{rows.mutation.id}"] += rows.number
            for _, name in rows.mutation.cypher.names:
                labels[name] += rows.number
        return Effects(
            app_id=app_id, partition=partition, first=self.first, last=self.last, events=self.events,
            mutations=dict(mutations.most_common(_MOST_NAMES)), labels=dict(labels.most_common(_MOST_NAMES)),
            without_effect=dict(self.without_effect), time=time,
        )  # fmt: skip


class EffectReporter:
    """Keeps the accounts of a worker's partitions, and writes them. No method raises on account of the bus."""

    def __init__(
        self, stream: EffectStream, records: RecordLog, *, name: str, keep: int, clock: Clock = SYSTEM_CLOCK,
        timing: EffectTiming = TIMING.effects,
    ) -> None:  # fmt: skip
        """``name`` is the worker's, ``keep`` the number of messages that the bus keeps."""
        self._stream = stream
        self._records = records
        self._name = name
        self._keep = keep
        self._clock = clock
        self._timing = timing
        self._accounts: dict[int, dict[str, Account]] = {}
        """What took effect and may not be on disk, by partition and app."""
        self._due: dict[int, dict[str, Account]] = {}
        """What is on disk and not written, because the bus refused it, by partition and app."""
        self._lines = LogLimit(clock=clock)
        self._writing = asyncio.Lock()
        self._again_at = 0.0
        """Until then, on the monotonic clock, nothing is tried: the bus has refused the stream."""
        self._since = 0.0
        """The Unix time of the first refusal; 0 while the bus takes it."""

    def applied(self, partition: int, app_id: str, batches: Iterable[Sequence[LoggedEvent]]) -> None:
        """Add the events of an app that took effect."""
        for events in batches:
            if events:
                self._account(partition, app_id).add(events)

    def counting(self, letters: DeadLetters) -> DeadLetters:
        """Return dead letters around others that are counted here when they are written."""
        return _CountedLetters(letters, self._without_effect)

    def _without_effect(self, letter: DeadLetter, number: int, first: str) -> None:
        if letter.app_id is not None and number > 0:
            account = self._account(letter.partition, letter.app_id)
            account.reach(first, letter.offsets[-1] if letter.offsets else letter.offset)
            account.without_effect[letter.reason] += number

    def _account(self, partition: int, app_id: str) -> Account:
        return self._account_in(self._accounts.setdefault(partition, {}), app_id)

    def take(self, partition: int) -> dict[str, Account]:
        """Take what took effect in a partition until now: it is to be written once it is on disk, and dropped if that
        fails, since then its events are read again.
        """
        return self._accounts.pop(partition, {})

    async def write(self, partition: int, taken: dict[str, Account]) -> None:
        """Write what was taken of a partition, and was refused before; what the bus refuses is kept, and said later."""
        self._keep_for_later(partition, taken)
        if partition not in self._due or self._clock.monotonic() < self._again_at:
            return
        async with self._writing:
            if self._clock.monotonic() < self._again_at:  # another partition was refused meanwhile
                return
            accounts = self._due.pop(partition, {})
            now = self._clock.now()
            try:
                async with asyncio.timeout(self._timing.write_s):
                    messages = [account.message(app_id, partition, now) for app_id, account in accounts.items()]
                    await self._stream.append(messages, keep=self._keep)
            except BaseException as error:
                self._put_back(partition, accounts)
                if not isinstance(error, (Transient, TimeoutError)):
                    raise
                await self._note_refusal(error)
            else:
                EFFECTS_WRITTEN.add(len(messages))
                await self._taken()

    def forget(self, partition: int) -> None:
        """Drop what is not written of a partition that another worker will hold.

        It reads these events again, unless the position behind them is committed, as it may be of refused ones.
        """
        self._accounts.pop(partition, None)
        if left := self._due.pop(partition, None):
            self._lost(len(left), "the bus refused them, and this worker gave the partition up")

    async def run(self) -> None:
        """Write what the bus had refused, until cancelled; remove the records of workers that ended before."""
        await self._remove_records()
        while True:
            await self._clock.sleep(self._timing.again_s)
            if self._since:
                for partition in list(self._due):
                    await self.write(partition, {})

    def _keep_for_later(self, partition: int, newer: dict[str, Account]) -> None:
        """Add accounts to what is to be written of a partition; of too many apps, drop the oldest."""
        if not newer:
            return
        accounts = self._due.setdefault(partition, {})
        for app_id, account in newer.items():
            self._account_in(accounts, app_id).join(account)

    def _put_back(self, partition: int, older: dict[str, Account]) -> None:
        """Put back what could not be written, before what was added meanwhile."""
        newer = self._due.pop(partition, {})
        self._due[partition] = older
        self._keep_for_later(partition, newer)

    def _account_in(self, accounts: dict[str, Account], app_id: str) -> Account:
        """Return the account of an app, which is made if there is none; of too many, the oldest is dropped."""
        if app_id not in accounts and len(accounts) >= _MOST_APPS:
            accounts.pop(next(iter(accounts)))
            self._lost(1, f"more than {_MOST_APPS:,} apps of a partition wait to be written")
        return accounts.setdefault(app_id, Account())

    def _lost(self, messages: int, why: str) -> None:
        EFFECTS_LOST.add(messages)
        if (left_out := self._lines.admit(why)) is not None:
            logger.warning(
                "effects_lost", messages=messages, error=why, left_out=left_out,
                next="readers of the effects stream ask the graph what it holds",
            )  # fmt: skip

    async def _note_refusal(self, error: Exception) -> None:
        EFFECTS_FAILED.add(1)
        now = self._clock.now().timestamp()
        self._again_at = self._clock.monotonic() + self._timing.again_s
        if not self._since:
            self._since = now
            logger.warning(
                "effects_refused", error=str(error) or type(error).__name__,
                message="the bus refuses the effects stream; events are applied as before, and what took effect is "
                "said when the bus takes it",
            )  # fmt: skip
        await self._say(WaitRecord(since=self._since, at=now, error=str(error) or type(error).__name__))

    async def _taken(self) -> None:
        if self._since:
            self._since = 0.0
            await self._say(None)

    async def _remove_records(self) -> None:
        with contextlib.suppress(Transient, TimeoutError):
            async with asyncio.timeout(self._timing.write_s):
                records = (await self._records.after(None)).found
                old = old_records(records, EFFECTS, self._clock.now().timestamp() - EFFECTS_SHOWN_S)
                for key in {*old, f"{EFFECTS}{self._name}"} & records.keys():
                    await self._records.put(key, None)

    async def _say(self, record: WaitRecord | None) -> None:
        with contextlib.suppress(Transient, TimeoutError):
            async with asyncio.timeout(self._timing.write_s):
                await self._records.put(f"{EFFECTS}{self._name}", None if record is None else record.encode())


class _CountedLetters(LettersAround):
    def __init__(self, letters: DeadLetters, count: Callable[[DeadLetter, int, str], None]) -> None:
        super().__init__(letters)
        self._count = count

    @override
    async def put(self, letters: Sequence[DeadLetter]) -> None:
        await super().put(letters)
        for letter in letters:
            self._count(letter, letter.count, letter.offset)

    @override
    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        done = await super().extend(letter, longer)
        if done:
            before = 0 if letter is None else letter.count
            first = longer.offsets[before] if len(longer.offsets) > before else longer.offset
            self._count(longer, longer.count - before, first)
        return done
