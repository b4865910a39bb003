"""The transport over Redis: streams for events, and a request stream and a reply channel for context.

Replies use Pub/Sub: a client that no longer listens has reached its deadline, so no reply needs to be kept or cleaned
up. One subscription serves all requests of a process; a subscription for each request costs two to three times the
latency. It reads a channel for each app, so that the server can allow a tenant its own channels only.

What the server must allow a client is in ``graphweft_workers.drivers.redis.rights``; a test has no more than that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final
from uuid import uuid4

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from graphweft.time_limit import time_limit
from graphweft.transport import (
    CLOSED,
    MAX_BUDGET_MS,
    Outcome,
    Outgoing,
    check_sizes,
    encoded,
    positions_of,
    read_reply,
    seconds_left,
)
from graphweft.transports.redis.connection import CommandBatcher, connect
from graphweft.transports.redis.layout import agreed_layout, requests_of, stored_layout, stream_of
from graphweft.transports.redis.lines import Lines
from graphweft.transports.redis.refusals import bus_errors, is_general, refusal_of, request_refusal
from graphweft.transports.redis.timing import REDIS_TIMING, RedisTiming
from graphweft.transports.redis.url import split_redis_url
from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest, Layout, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.layout import NEW_LAYOUT
from graphweft_contracts.signatures import SIGNATURE, SigningKey

logger = logging.getLogger("graphweft.client")

BUDGET: Final = b"budget_ms"
"""The field of a request with the rest of its budget. If its responder is silent for a share of that, another one takes
the request."""
_NOT_TAKEN: Final = "the bus did not accept the events"
_REQUESTS_KEPT: Final = 10_000
"""The approximate limit of the request stream; answered requests are not needed."""
_REQUESTS_KEPT_MS: Final = MAX_BUDGET_MS
"""The maximum age of requests. Responders remove the requests that they read, so this applies without any."""
_REQUEST_CONNECTIONS: Final = 8
"""Concurrent round trips that send requests."""


@dataclass(eq=False, slots=True)
class _Inbox:
    """The reply channel for the requests of one app."""

    channel: str
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it is known whether the channel works. If it does not, ``unavailable`` says why."""
    unavailable: str | None = None
    subscriber: Any = None
    """The subscription that was asked for it last."""

    def settle(self, unavailable: str | None = None) -> None:
        self.unavailable = unavailable
        self.settled.set()


class RedisTransport:
    """The ``Transport`` over Redis. Connections open at the first use, and again after they break."""

    system: Final = "redis"
    """The product, as spans name it."""

    def __init__(
        self,
        url: str,
        *,
        new: Layout = NEW_LAYOUT,
        signing_key: SigningKey | None = None,
        clock: Clock = SYSTEM_CLOCK,
        timing: RedisTiming = REDIS_TIMING,
    ) -> None:
        """``new`` is the layout of a new bus. ``signing_key`` signs events and requests."""
        self._clock = clock
        self._timing = timing
        self._redis = connect(url, io_timeout_s=timing.io_s)
        self._replicas = split_redis_url(url).wait_replicas
        """How many replicas must have an event before it is accepted."""
        self._adding = Lines(url, io_timeout_s=timing.io_s) if self._replicas else None
        # A repeated request is answered twice, and the second reply is ignored.
        self._repeating = Lines(url, io_timeout_s=timing.io_s, repeats=1)
        self._requests = CommandBatcher(self._repeating, connections=_REQUEST_CONNECTIONS, at_once=self._is_alone)
        self._replies = connect(url, io_timeout_s=None)  # a subscription is silent between replies
        self._new = new
        self._layout: Layout | None = None
        self._layout_at = 0.0
        self._requests_at = -math.inf
        """When the layout was last looked at for requests."""
        self._looking = asyncio.Lock()
        self._newest_ms = 0
        """The server's time of our last request."""
        self._trim_at: dict[str, float] = {}
        """By stream: when requests are removed by their age next."""
        self._signing_key = signing_key
        self._name = uuid4().hex
        self._inboxes: dict[str, _Inbox] = {}
        """By app: its reply channel."""
        self._subscriber: Any = None
        """The subscription that works, while there is one."""
        self._asked: deque[_Inbox] = deque()
        """Whose subscription the server has still to confirm, in order."""
        self._in_order = asyncio.Lock()
        self._asking: set[asyncio.Task[None]] = set()
        self._pending: dict[str, asyncio.Future[bytes | BusUnavailable]] = {}
        self._listener: asyncio.Task[None] | None = None

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """See ``Transport.append``."""
        if not events:
            await self._ask_for_room()
        return positions_of(await self.append_each(events))

    async def layout(self) -> Layout:
        """See ``PartitionedTransport.layout``."""
        with bus_errors(_NOT_TAKEN, role="tenant"):
            return await self._current_layout()

    async def append_each(self, events: Sequence[Outgoing]) -> list[Outcome]:
        """See ``PartitionedTransport.append_each``."""
        check_sizes(events)
        layout = await self.layout()
        numbers = [layout.partition_of(event.key) for event in events]
        with bus_errors(_NOT_TAKEN, role="tenant"):
            answers = await self._add(numbers, events, layout.partitions)
        return [
            refusal_of(number, stream_of(number, layout.partitions), answer)
            if isinstance(answer, ResponseError)
            else f"{number}:{answer.decode()}"
            for number, answer in zip(numbers, answers, strict=True)
        ]

    async def _ask_for_room(self) -> None:
        """Raise ``BusUnavailable`` if the server takes no writes, as with a full disk."""
        stream = stream_of(0, (await self.layout()).partitions)
        with bus_errors(_NOT_TAKEN, role="tenant"):
            try:  # no stream takes an entry with this id, but a server that refuses all writes says so first
                await self._redis.xadd(stream, {b"data": b""}, id="0-0", nomkstream=True)
            except ResponseError as error:
                if is_general(error):
                    raise

    async def _add(
        self, numbers: Sequence[int], events: Sequence[Outgoing], shared: int
    ) -> Sequence[bytes | ResponseError]:
        """Add the events to the streams of partitions; return their ids, or errors that concern one stream."""
        # All or nothing: without a transaction the server may refuse one event (out of memory, still loading) and
        # accept the next of the same chat, and a retry would then reorder them.
        added = [(stream_of(number, shared), event.signed(self._signing_key))
                 for number, event in zip(numbers, events, strict=True)]  # fmt: skip
        answers: list[bytes | ResponseError]
        try:
            if self._adding is None:
                pipeline = self._redis.pipeline(transaction=len(events) > 1)
                for stream, fields in added:
                    pipeline.xadd(stream, fields)
                answers = await pipeline.execute(raise_on_error=False)
            else:
                commands = [("XADD", stream, "*", *chain.from_iterable(fields.items())) for stream, fields in added]
                answers = await self._adding.replicated(
                    commands, replicas=self._replicas, wait_s=self._timing.replicas_s
                )
        except ResponseError as error:  # before the transaction ran: nothing is written
            if is_general(error):
                raise
            if len(set(numbers)) == 1:
                return [error] * len(events)
            return await self._add_apart(numbers, events, shared)
        for answer in answers:
            if isinstance(answer, Exception) and is_general(answer):
                raise answer
        return answers

    async def _add_apart(
        self, numbers: Sequence[int], events: Sequence[Outgoing], shared: int
    ) -> Sequence[bytes | ResponseError]:
        """Add the events of each partition in a transaction of its own: the server refused one for all."""
        answers: list[bytes | ResponseError] = [b""] * len(events)
        for number in dict.fromkeys(numbers):
            places = [place for place, each in enumerate(numbers) if each == number]
            own = await self._add([number] * len(places), [events[place] for place in places], shared)
            for place, answer in zip(places, own, strict=True):
                answers[place] = answer
        return answers

    async def request(self, request: ContextRequest) -> ContextReply:
        """See ``Transport.request``."""
        inbox = self._inboxes.get(request.app_id)
        if inbox is None:
            inbox = self._inboxes[request.app_id] = _Inbox(channels.context_replies(self._name, request.app_id))
        message = encoded(request, inbox.channel)
        if isinstance(message, ContextReply):
            return message
        signature = () if self._signing_key is None else (SIGNATURE, self._signing_key.of_request(message))
        future: asyncio.Future[bytes | BusUnavailable] = asyncio.get_running_loop().create_future()
        self._pending[request.id] = future
        stream = channels.CONTEXT_REQUESTS
        try:
            async with time_limit(seconds_left(request, self._clock)):
                self._subscribe(inbox)
                await inbox.settled.wait()
                if inbox.unavailable is not None:
                    raise BusUnavailable(inbox.unavailable)
                stream = await self._stream_of_requests(request.app_id)
                budget_ms = int(seconds_left(request, self._clock) * 1000)
                added: bytes = await self._requests.execute(
                    "XADD", stream, *self._trim(stream), "*", b"data", message, BUDGET, budget_ms, *signature
                )
                self._newest_ms = int(added.partition(b"-")[0])
                outcome = await future
                if isinstance(outcome, BusUnavailable):
                    raise outcome
                return read_reply(request, outcome, self._clock)
        except (RedisError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise BusUnavailable(f"the bus did not accept the request: {request_refusal(error, stream)}") from error
        finally:
            self._pending.pop(request.id, None)

    async def aclose(self) -> None:
        """See ``Transport.aclose``."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None
        self._fail_all(CLOSED)
        await self._replies.aclose()
        await self._requests.aclose()
        await self._repeating.aclose()
        if self._adding is not None:
            await self._adding.aclose()
        await self._redis.aclose()

    def _is_alone(self) -> bool:
        """Tell whether no other request is under way, which could go together with this one."""
        return len(self._pending) <= 1

    def _trim(self, stream: str) -> tuple[str, str, int]:
        """Return the trim arguments of XADD: usually by number, every few seconds by age."""
        now = self._clock.monotonic()
        if not self._newest_ms or now < self._trim_at.get(stream, 0.0):
            return ("MAXLEN", "~", _REQUESTS_KEPT)
        self._trim_at[stream] = now + self._timing.trim_s
        return ("MINID", "=", max(0, self._newest_ms - _REQUESTS_KEPT_MS))

    async def _current_layout(self) -> Layout:
        now = self._clock.monotonic()
        if self._layout is None or self._is_old(self._layout_at):
            self._layout = await agreed_layout(self._redis, self._new)
            self._layout_at = now
        return self._layout

    async def _stream_of_requests(self, app_id: str) -> str:
        """Return the stream of context requests of an app. It gives a new bus no layout: that needs a right."""
        if self._is_old(self._requests_at):
            async with self._looking:  # one call looks for hundreds
                if self._is_old(self._requests_at):
                    await self._look_for_requests()
        return channels.CONTEXT_REQUESTS if self._layout is None else requests_of(self._layout, app_id)

    async def _look_for_requests(self) -> None:
        now = self._clock.monotonic()
        if self._layout is None or self._is_old(self._layout_at):
            with contextlib.suppress(NoPermissionError):  # of a user who may do nothing but ask
                self._layout = await stored_layout(self._redis)
                self._layout_at = now
        self._requests_at = now

    def _is_old(self, at: float) -> bool:
        """Tell whether what was read of the layout at a time may have changed since."""
        return self._clock.monotonic() > at + self._timing.layout_s

    def _subscribe(self, inbox: _Inbox) -> None:
        """Let the listener read a reply channel too."""
        if self._listener is None or self._listener.done():
            self._subscriber = None
            for each in self._inboxes.values():
                each.settled.clear()
                each.unavailable = None
            self._listener = asyncio.create_task(self._listen(), name="graphweft-context-replies")
        elif self._subscriber is not None and inbox.subscriber is not self._subscriber:
            task = asyncio.create_task(self._ask(self._subscriber, inbox))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, subscriber: Any, inbox: _Inbox) -> None:
        """Subscribe to a reply channel, one after the other: a refusal does not name its channel."""
        async with self._in_order:
            if inbox.subscriber is subscriber:
                return
            inbox.subscriber = subscriber
            self._asked.append(inbox)
            with contextlib.suppress(RedisError, OSError):  # the listener sees the broken connection too
                await subscriber.subscribe(inbox.channel)

    async def _listen(self) -> None:
        while True:
            subscriber = self._replies.pubsub()
            subscribed, started = False, self._clock.monotonic()
            self._asked.clear()
            try:
                await subscriber.connect()
                while fresh := [each for each in self._inboxes.values() if each.subscriber is not subscriber]:
                    for inbox in fresh:
                        await self._ask(subscriber, inbox)
                self._subscriber = subscriber
                pinged = False
                while True:
                    try:
                        message = await subscriber.get_message(timeout=self._timing.silence_s)
                    except NoPermissionError as error:
                        self._refused(error)
                        continue
                    if message is None:
                        if pinged:
                            raise RedisError("the reply channel is silent")
                        await subscriber.ping()
                        pinged = True
                        continue
                    pinged = False
                    if message["type"] == "subscribe":
                        subscribed = True
                        self._asked.popleft().settle()
                    elif message["type"] == "message":
                        self._deliver(message["data"])
            except (RedisError, OSError) as error:
                logger.debug("context replies interrupted: %s", error)
                if subscribed:  # after a broken connection, try once more before failing
                    for inbox in self._inboxes.values():
                        inbox.settled.clear()
                else:
                    self._fail_all(f"the bus is unavailable: {error}")
            finally:
                self._subscriber = None
                with contextlib.suppress(RedisError, OSError):
                    await subscriber.aclose()
            pause_s = self._timing.reconnect_s
            await self._clock.sleep(max(0.0, started + pause_s - self._clock.monotonic()) if subscribed else pause_s)

    def _refused(self, error: NoPermissionError) -> None:
        """Fail the requests of the app whose reply channel the server refused; the next one tries again."""
        if not self._asked:
            raise error
        inbox = self._asked.popleft()
        for app_id in [app_id for app_id, each in self._inboxes.items() if each is inbox]:
            del self._inboxes[app_id]
        inbox.settle(
            f"the bus does not allow this user to read {inbox.channel}: {error}; `graphweft acl` prints the "
            "rights that it needs"
        )

    def _fail_all(self, why: str) -> None:
        """Fail all pending requests, and new ones until the next subscription, as unavailable."""
        for inbox in self._inboxes.values():
            inbox.settle(why)
        for future in self._pending.values():
            if not future.done():
                future.set_result(BusUnavailable(why))

    def _deliver(self, data: bytes) -> None:
        # The id precedes the JSON, so a reply without a pending request is not parsed.
        request_id, _, body = data.partition(b"\n")
        future = self._pending.get(request_id.decode(errors="replace"))
        if future is not None and not future.done():
            future.set_result(body)
