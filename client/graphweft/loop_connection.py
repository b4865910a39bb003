"""What a client has for one event loop: its connections, and the events that the bus has not confirmed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from graphweft.outbox import Outbox, PartitionQueue, PendingEvent
from graphweft.refusal_log import RefusalLog
from graphweft.time_limit import time_limit
from graphweft.timing import ClientTiming
from graphweft.token_bucket import TokenBucket
from graphweft.tracing import task_apart
from graphweft_contracts.clock import Clock
from graphweft_contracts.errors import BusUnavailable, InvalidEvent, PartitionRefused
from graphweft_contracts.plurals import counted

if TYPE_CHECKING:
    # The models take most of the time of an import. The class does not need them, only a client does.
    from graphweft.transport import Outcome, PartitionedTransport, Transport

logger = logging.getLogger("graphweft.client")

_BATCH: Final = 500
"""Events per round trip. A larger batch gains nothing and delays the confirmation of its first event."""
_MOST_CAUSES: Final = 10
"""Limit of the warnings of one outage."""
_LAST_CLOSE_S: Final = 1.0
"""The longest that the end of an event loop waits for connections to close."""


@dataclass(slots=True)
class ClientStats:
    """Counts of the events passed to ``emit``. Each is sent, buffered, dropped or rejected."""

    sent: int = 0
    buffered: int = 0
    dropped: int = 0
    """Events that did not fit into the buffer, or were still buffered when the client closed."""
    rejected: int = 0
    """Events that are invalid, not JSON or too large, or whose partition the bus refuses; the log names the reason."""
    retries: int = 0
    paced: int = 0
    """How often buffered events waited because of ``max_events_per_s`` or ``max_bytes_per_s``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingLimits:
    """What a client may keep and send. The buckets are those of all its event loops together."""

    buffer: int
    buffer_bytes: int
    events: TokenBucket | None = None
    bytes: TokenBucket | None = None


class LoopConnection:
    """Sends events over a transport, in order, and keeps those that are not confirmed. Belongs to one event loop.

    ``closes_with_loop``: when the loop ends and cancels its tasks, as ``asyncio.run`` does, the connections are closed.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        limits: SendingLimits,
        stats: ClientStats,
        refusals: RefusalLog,
        closes_with_loop: bool,
        clock: Clock,
        timing: ClientTiming,
    ) -> None:
        from graphweft.transport import PartitionedTransport

        self.transport = transport
        self.outbox = Outbox(limits.buffer, limits.buffer_bytes)
        self._partitioned: PartitionedTransport | None = (
            transport if isinstance(transport, PartitionedTransport) else None
        )
        self._limits = limits
        self._stats = stats
        self._refusals = refusals
        self._clock = clock
        self._timing = timing
        self._pacing = False
        """Whether events in the buffer wait, or waited, because of a rate."""
        self._arrived = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._holding: set[asyncio.Task[None]] = set()
        """The tasks that send queues that are held."""
        self._bus_unavailable = False
        self._causes = set[str]()
        """Why the bus is unavailable, as logged in this outage."""
        self._cause = ""
        """Why it was unavailable the last time."""
        self._closing = False
        self._keeper: asyncio.Task[None] | None = None
        if closes_with_loop:
            self._keeper = task_apart(self._close_with_loop(), name="graphweft-client")

    @property
    def at_once(self) -> bool:
        """Whether a caller need not wait: the bus is known to be unavailable, or a rate lets events wait."""
        return self._bus_unavailable or self._pacing

    def add(self, events: Sequence[PendingEvent]) -> bool:
        """Send these events, all or none; return False, and count them as dropped, if there is no room for them."""
        if not self.outbox.add(events, sharing=not self._bus_unavailable):
            self._drop(len(events))
            return False
        if events:
            self._stats.buffered += len(events)
            self._wake()
            if self._sender is None or self._sender.done():
                self._sender = task_apart(self._send(), name="graphweft-emit")
        return True

    def take_over(self, other: LoopConnection) -> None:
        """Send the events of a connection whose event loop has ended. The bus drops what it has already."""
        waiting = sorted(other.outbox.pending(), key=lambda pending: pending.number)
        for pending in waiting:
            self._stats.buffered -= 1
            again = PendingEvent(event_id=pending.event_id, outgoing=pending.outgoing, size=pending.size)
            self.add([again])

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all events that are buffered now are on the bus, or are refused; return False if that takes longer
        than ``timeout_s``, or the client closes first.
        """
        waiting = list(self.outbox.pending())
        if waiting:
            await asyncio.wait([pending.position for pending in waiting], timeout=timeout_s)
        return all(pending.settled and not isinstance(pending.refusal, BusUnavailable) for pending in waiting)

    async def aclose(self, drain_s: float) -> None:
        """Send buffered events for at most ``drain_s`` seconds, and close."""
        self._closing = True
        try:
            await self.flush(drain_s)
        finally:  # also if the caller is cancelled while it waits
            tasks = [*self._holding, *(each for each in (self._sender, self._keeper) if each is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.drop_pending()
            await self.transport.aclose()

    async def _close_with_loop(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()  # for ever
        finally:
            if not self._closing:
                with contextlib.suppress(Exception):  # the loop ends in any case
                    async with time_limit(_LAST_CLOSE_S):
                        await self.transport.aclose()

    async def _send(self) -> None:
        """Send the events of all queues that are not held."""
        retry_s = self._timing.first_retry_s
        most = _BATCH
        while True:
            await self._arrived.wait()
            await self._pace()
            batch: Sequence[PendingEvent] = ()
            try:
                if self._partitioned is not None:
                    self.outbox.use(await self._partitioned.layout())
                batch = self._within_rates(self.outbox.first(most))
                await self._deliver(batch)
            except Exception as error:  # noqa: BLE001 - the buffer must survive any failure of the bus
                self._note_outage(error)
                await self._clock.sleep(retry_s * random.uniform(0.5, 1.0))
                retry_s = min(retry_s * 2, self._timing.last_retry_s)
                most = max(1, (len(batch) or most) // 2)  # a bus that is nearly full takes a few
                continue
            self._wake()
            retry_s = self._timing.first_retry_s
            most = min(_BATCH, most * 2)

    async def _send_held(self, queue: PartitionQueue) -> None:
        """Send the events of a queue that is held until its partition takes them."""
        retry_s = self._timing.first_retry_s
        most = max(1, len(queue.events) // 2)
        while queue.events:
            await self._clock.sleep(retry_s * random.uniform(0.5, 1.0))
            await self._pace()
            batch = self._within_rates(queue.first(min(most, _BATCH)))
            try:
                held = await self._deliver(batch)
            except Exception as error:  # noqa: BLE001 - the buffer must survive any failure of the bus
                self._note_outage(error)
                held = {queue}
            if queue not in held:
                break
            retry_s = min(retry_s * 2, self._timing.last_retry_s)
            most = max(1, len(batch) // 2)
        queue.held = False
        self._wake()
        logger.warning("partition %d of the bus takes events again", queue.partition)

    async def _deliver(self, batch: Sequence[PendingEvent]) -> set[PartitionQueue]:
        """Append events, and settle those that the bus has or refuses; return the queues that are held by now.

        Raises what concerns all partitions, after the events with a known outcome are settled.
        """
        held: set[PartitionQueue] = set()
        alone: list[PendingEvent] = []
        for pending, outcome in zip(batch, await self._append(batch), strict=True):
            queue = pending.queue
            if isinstance(outcome, InvalidEvent) and len(batch) > 1:
                alone.append(pending)
            elif isinstance(outcome, BusUnavailable) and queue is not None:
                held.add(queue)
                self._hold(queue, outcome)
            else:
                self._settle(pending, outcome)
        for pending in alone:  # to find the invalid one, or because all together were too many
            if pending.queue not in held:
                held |= await self._deliver([pending])
        return held

    async def _append(self, batch: Sequence[PendingEvent]) -> Sequence[Outcome]:
        """Append events, and return the outcome of each. Raises what concerns all partitions."""
        events = [pending.outgoing for pending in batch]
        try:
            if self._partitioned is not None:
                outcomes: Sequence[Outcome] = await self._partitioned.append_each(events)
            else:
                outcomes = await self.transport.append(events)
        except (InvalidEvent, PartitionRefused) as error:
            if len(batch) > 1:  # of a transport that does not say which
                return [InvalidEvent(str(error))] * len(batch)
            outcomes = [error]
        if self._bus_unavailable:
            logger.warning(
                "the bus is available again; %s",
                counted(self.outbox.count, "event was buffered", "events were buffered"),
            )
        self._bus_unavailable = False
        self._causes.clear()
        return outcomes

    def _note_outage(self, error: Exception) -> None:
        text = self._cause = str(error)
        if text not in self._causes and len(self._causes) < _MOST_CAUSES:
            self._causes.add(text)
            if "`graphweft " in text:  # who refuses the events says what to do
                logger.warning("events are not taken, and are buffered: %s", text)
            else:
                logger.warning(
                    "the bus is unavailable, events are buffered: %s; `graphweft doctor` checks it",
                    text.removesuffix("."),
                )
        self._bus_unavailable = True
        self._stats.retries += 1

    def _hold(self, queue: PartitionQueue, error: BusUnavailable) -> None:
        """Let the events of a queue wait, and send them apart from the others."""
        self._stats.retries += 1
        if queue.held:
            return
        queue.held = True
        logger.warning("partition %d of the bus is unavailable, its events are buffered: %s", queue.partition, error)
        task = task_apart(self._send_held(queue), name="graphweft-emit-held")
        self._holding.add(task)
        task.add_done_callback(self._holding.discard)
        self._wake()

    def _wake(self) -> None:
        """Let the sender run exactly while it has something to send."""
        if self.outbox.ready:
            self._arrived.set()
        else:
            self._arrived.clear()

    async def _pace(self) -> None:
        """Wait until the rates allow to send something."""
        waited = False
        while True:
            now = self._clock.monotonic()
            wait_s = max((bucket.wait_s(now) for bucket in self._rates()), default=0.0)
            if not wait_s:
                break
            if not waited and not self._stats.paced:
                logger.warning("more events than max_events_per_s or max_bytes_per_s allow: they wait in the buffer")
            self._stats.paced += not waited
            self._pacing = waited = True
            await self._clock.sleep(wait_s)

    def _within_rates(self, batch: list[PendingEvent]) -> list[PendingEvent]:
        """Return the first events of a batch that the rates allow now, at least one."""
        if self._limits.events is not None:
            batch = batch[: max(1, int(self._limits.events.left))]
        if self._limits.bytes is not None and batch:
            left, count = self._limits.bytes.left - batch[0].size, 1
            while count < len(batch) and left >= batch[count].size:
                left -= batch[count].size
                count += 1
            batch = batch[:count]
        return batch

    def _rates(self) -> Iterable[TokenBucket]:
        return (bucket for bucket in (self._limits.events, self._limits.bytes) if bucket is not None)

    def _drop(self, events: int) -> None:
        before = self._stats.dropped
        self._stats.dropped += events
        if before == 0 or before // 1000 != self._stats.dropped // 1000:
            logger.error(
                "the buffer of %d events or %d bytes is full: %d dropped so far",
                self.outbox.limit, self.outbox.limit_bytes, self._stats.dropped,
            )  # fmt: skip

    def _settle(self, pending: PendingEvent, outcome: Outcome) -> None:
        """Remove an event from the outbox with its position, or with the error for which the bus refuses it."""
        queue = pending.queue
        if isinstance(outcome, str):
            self._stats.sent += 1
            if self._limits.events is not None:
                self._limits.events.take(1)
            if self._limits.bytes is not None:
                self._limits.bytes.take(pending.size)
            if queue is not None and queue.refusal:
                self._refusals.clear(queue.refusal)
                queue.refusal = ""
        elif not isinstance(outcome, BusUnavailable):
            self._stats.rejected += 1
            pending.refusal = outcome
            self._refusals.note(pending.event_id, outcome)
            if isinstance(outcome, PartitionRefused) and queue is not None:
                queue.refusal = str(outcome)
        self._stats.buffered -= not pending.settled
        self.outbox.settle(pending, outcome if isinstance(outcome, str) else None)
        self._wake()
        if not self.outbox.count:
            self._pacing = False

    def drop_pending(self) -> None:
        """Count the events that are not sent as dropped."""
        if not self.outbox.count:
            return
        why = f" ({self._cause})" if self._cause else ""
        logger.error("closed with %s not sent: the bus did not accept them%s", counted(self.outbox.count, "event"), why)
        self._stats.dropped += self.outbox.count
        self._stats.buffered -= self.outbox.count
        for pending in self.outbox.pending():
            pending.refusal = BusUnavailable(f"the client closed before it was sent{why}")
            self.outbox.settle(pending, None)
