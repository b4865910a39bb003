"""Follows partitions of a topic over one consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from graphweft.transports.kafka.connection import Servers, bus_errors, is_of_content
from graphweft_contracts import BusUnavailable
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.drivers.kafka.careful_reader import read_carefully
from graphweft_workers.drivers.kafka.gaps import until_gone
from graphweft_workers.drivers.kafka.reader import open_consumer, stop_consumer
from graphweft_workers.drivers.kafka.timing import KAFKA_BUS_TIMING, KafkaBusTiming
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.support.tasks import end_tasks

_FETCH_BYTES: Final = 1024**2
"""Of one partition in one response. Up to two responses of each partition wait in memory."""
_FETCH_WAIT_MS: Final = 50
"""How long the broker keeps a request without new records. A partition whose records have just been taken is not in the
request that is under way, and waits for the next one: at most this long.
"""
_QUIET_WAIT_MS: Final = 500
"""The same while no records come, so that no partition is missing. Each answer costs some milliseconds, as it names
all partitions."""


class _Followed:
    """A partition that is read, and its records that are fetched and not yet taken."""

    def __init__(self, number: TopicPartition) -> None:
        self.number: Any = number
        self.records: list[Any] = []
        self.next: int | None = None
        """The offset after the records that were taken; None: unknown."""
        self.fetched: int | None = None
        """The offset after ``records``."""
        self.error: Exception | None = None
        self.changed = asyncio.Event()
        self.paused = True
        self.asked = self.heard = 0.0
        """When the records were last asked for, and when the broker was last known to have answered."""
        self.before: int | None = None
        """The time of the broker's last response before the last read."""
        self.last: int | None = None
        """The time of the broker's last response that was noticed."""


class TopicFollower:
    """Reads partitions of a topic from any offset, without a group, all over one consumer.

    One task fetches. Records wait in memory until ``read`` takes them; a partition whose records are not taken is
    paused, so that it does not hold up the others.
    """

    def __init__(
        self, servers: Servers, topic: str, *, clock: Clock = SYSTEM_CLOCK, timing: KafkaBusTiming = KAFKA_BUS_TIMING
    ) -> None:
        self._servers = servers
        self._clock = clock
        self._timing = timing
        self._topic = topic
        self._said = LogLimit(clock=clock)
        self._consumer: Any = None
        self._opening = asyncio.Lock()
        self._assigned: frozenset[Any] = frozenset()
        self._followed: dict[int, _Followed] = {}
        self._fetching: asyncio.Task[None] | None = None

    async def read(
        self, number: int, position: int, *, among: int, limit: int, wait_s: float, enough: asyncio.Event
    ) -> tuple[Sequence[Any], int, int]:
        """Return up to ``limit`` records from ``position``, the number of missing ones before, and the next position.

        ``among`` is the known number of partitions. Wait for the first record up to ``wait_s``, or until ``enough`` is
        set; without waiting, allow the broker one response. Raises ``BusUnavailable`` also if the partition ends before
        ``position``.
        """
        followed = await self._follow(number, among)
        lost = 0
        deadline = self._clock.monotonic() + wait_s
        while True:
            if position != followed.next:
                self._seek(followed, position)
            answered = self._answered(followed, position)  # before the records: a response makes both visible at once
            if not followed.records and followed.error is None:
                left_s = deadline - self._clock.monotonic()
                await self._change(
                    followed, left_s if left_s > 0 else 0.0 if answered else self._timing.answer_step_s, enough
                )
                if followed.next is None:  # a new assignment made the consumer forget its position
                    continue
            if not followed.records and followed.error is None:
                await self._drain(followed)  # a response that has come and is not delivered yet
            start = position
            try:
                records, position = await self._take(followed, limit)
            except OffsetOutOfRangeError:
                first = await self._first(followed.number, position)
                lost, position = lost + first - position, first
                continue
            except Exception as error:
                if not is_of_content(error):
                    raise
                with bus_errors("the bus is unavailable"):
                    records, position = await read_carefully(
                        self._servers,
                        followed.number,
                        position,
                        limit=limit,
                        fetch_bytes=_FETCH_BYTES,
                        said=self._said,
                    )
            with bus_errors("the bus is unavailable"):
                records, gone, position = await until_gone(self._consumer, followed.number, start, records, position)
            lost += gone
            if records:
                self._await_answer(followed)
                return records, lost, position
            self._listen(followed)
            now = self._clock.monotonic()
            if enough.is_set() or (now >= deadline and (answered or now > followed.asked + self._timing.first_poll_s)):
                return (), lost, position

    def release(self, number: int) -> None:
        """Stop to fetch a partition, and forget its records."""
        followed = self._followed.pop(number, None)
        if followed is not None and self._consumer is not None and not followed.paused:
            self._consumer.pause(followed.number)

    async def aclose(self) -> None:
        """Close the connection; a later read opens it again."""
        fetching, self._fetching = self._fetching, None
        await end_tasks(fetching)
        consumer, self._consumer = self._consumer, None
        self._followed.clear()
        self._assigned = frozenset()
        if consumer is not None:
            await stop_consumer(consumer)

    async def _follow(self, number: int, among: int) -> _Followed:
        followed = self._followed.get(number)
        if followed is not None and self._fetching is not None and not self._fetching.done():
            return followed
        async with self._opening:
            if self._consumer is None:
                self._consumer = await open_consumer(self._servers, _FETCH_BYTES, fetch_max_wait_ms=_FETCH_WAIT_MS)
            if TopicPartition(self._topic, number) not in self._assigned:
                self._assign(max(among, number + 1))
            if self._fetching is None or self._fetching.done():
                self._fetching = asyncio.create_task(self._fetch(), name="graphweft-kafka-fetch")
            if number not in self._followed:
                self._followed[number] = _Followed(TopicPartition(self._topic, number))
            return self._followed[number]

    def _assign(self, count: int) -> None:
        """Assign all partitions, paused: each assignment makes the consumer forget its positions."""
        wanted = [TopicPartition(self._topic, number) for number in range(count)]
        self._consumer.assign(wanted)
        for partition in wanted:
            self._consumer.seek(partition, 0)
        self._consumer.pause(*wanted)
        self._assigned = frozenset(wanted)
        for followed in self._followed.values():
            followed.records, followed.next, followed.paused = [], None, True
            followed.changed.set()

    async def _fetch(self) -> None:
        """Move records from the consumer to their partitions, for ever."""
        consumer = self._consumer
        while True:
            try:
                found = await consumer.getmany(timeout_ms=self._timing.poll_ms)
                if not found:
                    self._wait_at_broker(_QUIET_WAIT_MS)
            except OffsetOutOfRangeError as error:
                for partition in dict(error.args[0]):
                    self._fail(partition, error)
                continue
            except Exception as error:  # noqa: BLE001 - the readers report it
                if is_of_content(error):
                    for followed in list(self._followed.values()):  # the error does not name its partition
                        await self._drain(followed)
                    continue
                for followed in self._followed.values():
                    followed.error = error
                    followed.changed.set()
                await self._clock.sleep(self._timing.failed_s)
                continue
            await self._deliver(found)
            await asyncio.sleep(0)

    async def _drain(self, followed: _Followed) -> None:
        """Deliver what the consumer has of one partition, without waiting."""
        try:
            found = await self._consumer.getmany(followed.number, timeout_ms=0)
        except OffsetOutOfRangeError as error:
            self._fail(followed.number, error)
        except Exception as error:
            if not is_of_content(error):
                raise
            # The consumer would raise it again and again.
            self._consumer.seek(followed.number, await self._consumer.position(followed.number))
            self._fail(followed.number, error)
        else:
            await self._deliver(found)

    def _wait_at_broker(self, wait_ms: int) -> None:
        """Set how long the broker keeps the next requests. aiokafka reads it for each one and offers no way to set it.

        After records it is called before anything else is awaited, so the request behind them has it already.
        """
        self._consumer._fetcher._fetch_max_wait_ms = wait_ms

    async def _deliver(self, found: Mapping[Any, Sequence[Any]]) -> None:
        if found:
            self._wait_at_broker(_FETCH_WAIT_MS)
        for partition, records in found.items():
            followed = self._followed.get(partition.partition)
            if followed is None or followed.next is None:  # released, or not sought yet
                continue
            if followed.records:  # the last ones are not taken yet
                self._pause(followed)
            followed.records += records
            followed.fetched = await self._consumer.position(partition)
            followed.changed.set()

    def _fail(self, partition: Any, error: Exception) -> None:
        """Give an error to the partition's reader, behind the records that it has not taken."""
        followed = self._followed.get(partition.partition)
        self._consumer.pause(partition)
        if followed is not None:
            followed.paused = True
            followed.error = error
            followed.changed.set()

    def _pause(self, followed: _Followed) -> None:
        if not followed.paused:
            self._consumer.pause(followed.number)
            followed.paused = True

    def _seek(self, followed: _Followed, position: int) -> None:
        followed.records, followed.error = [], None
        followed.next = followed.fetched = position
        self._wait_at_broker(_FETCH_WAIT_MS)
        self._consumer.seek(followed.number, position)
        self._resume(followed)
        self._await_answer(followed)

    def _resume(self, followed: _Followed) -> None:
        if followed.paused:
            self._consumer.resume(followed.number)
            followed.paused = False

    async def _change(self, followed: _Followed, wait_s: float, enough: asyncio.Event) -> None:
        """Wait for records or an error of a partition, or until ``enough``."""
        followed.changed.clear()
        waits = [asyncio.ensure_future(event.wait()) for event in (followed.changed, enough)]
        try:
            await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(*waits)

    async def _take(self, followed: _Followed, limit: int) -> tuple[Sequence[Any], int]:
        """Return the next records, or none, and the position after them. Raises the error that follows them."""
        if followed.records:
            taken, followed.records = followed.records[:limit], followed.records[limit:]
            if followed.records:
                followed.next = taken[-1].offset + 1
            else:
                followed.next = followed.fetched
                if followed.error is None:
                    self._resume(followed)
        elif followed.error is not None:
            error, followed.error, followed.next = followed.error, None, None
            raise error
        else:
            taken = []
            followed.next = followed.fetched = await self._consumer.position(followed.number)
        assert followed.next is not None
        return taken, followed.next

    def _await_answer(self, followed: _Followed) -> None:
        """Forget the broker's last response: only the next one says whether there is more."""
        followed.asked = followed.heard = self._clock.monotonic()
        followed.before = followed.last = self._consumer.last_poll_timestamp(followed.number)

    def _answered(self, followed: _Followed, position: int) -> bool:
        """Return whether the broker has answered that there is nothing after a position."""
        if self._consumer.last_poll_timestamp(followed.number) == followed.before:
            return False
        end = self._consumer.last_stable_offset(followed.number)
        return end is None or position >= end  # else this was the response to a request from before a seek

    def _listen(self, followed: _Followed) -> None:
        """Raise if the broker has not answered for long: aiokafka retries for ever and reports nothing."""
        last = self._consumer.last_poll_timestamp(followed.number)
        if last != followed.last:
            followed.last, followed.heard = last, self._clock.monotonic()
        elif self._clock.monotonic() - followed.heard > self._timing.silence_s:
            raise BusUnavailable(f"Kafka has not answered for {self._timing.silence_s:.0f} s")

    async def _first(self, partition: Any, position: int) -> int:
        with bus_errors("the bus is unavailable"):
            first = (await self._consumer.beginning_offsets([partition]))[partition]
            end = (await self._consumer.end_offsets([partition]))[partition]
        if position > end:
            raise BusUnavailable(
                f"partition {partition.partition} of {partition.topic} ends at {end}, in front of the position "
                f"{position}: the topic was recreated. Reset the group's position and rebuild the graphs"
            )
        return max(position, int(first))
