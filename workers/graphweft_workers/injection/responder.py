"""The injection responder: takes requests from a queue, limits concurrent work, and sends the replies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Final

from pydantic import ValidationError

from graphweft.transport import MAX_BUDGET_MS
from graphweft_contracts import ContextReply, ContextRequest, RefusedEvent, Transient, wire
from graphweft_contracts.channels import app_of_replies
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.injection.clock_skew import ClockSkew
from graphweft_workers.injection.context_metrics import count_answer, count_expired, count_refusal
from graphweft_workers.injection.reply_sender import ReplySender
from graphweft_workers.ports.request_queue import PendingRequest, Requester, RequestQueue, read_requester
from graphweft_workers.support.backoff import backoff_s
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_context import LogIds
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.support.tasks import begun, end_tasks
from graphweft_workers.support.timing import TIMING, ContextTiming
from graphweft_workers.telemetry import tracing_spans

logger = get_logger("graphweft.injection")

_LOOK_AT: Final = 64
_WAITING_PER_SLOT: Final = 16
"""Requests that may wait for each one in progress."""
_SHARED_FROM: Final = 8
"""With fewer slots one app may use all of them."""
_IDLE_APPS: Final = 1_000
"""With more apps, those without requests are forgotten."""
_SMOOTHING: Final = 0.1
_MOST_NAME: Final = 64
_MOST_DETAIL: Final = 1_000
"""Characters of an error about an invalid request."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Request:
    """A valid request."""

    token: str
    content: ContextRequest
    app: _App
    taken_over: bool = False

    def left_s(self, clock: Clock) -> float:
        """Return the seconds to its deadline."""
        return self.content.deadline_ms / 1000 - clock.now().timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """A request that is refused, with its reply."""

    token: str
    requester: ContextRequest | Requester
    reply: ContextReply


@dataclass(slots=True, eq=False)
class _App:
    """The requests of one app."""

    begun: dict[_Request, float] = field(default_factory=dict[_Request, float])
    """Requests in progress, oldest first, with the time at which each began."""
    waiting: int = 0
    service_s: float = 0.0
    """Moving average of the time that a request takes."""


_WITHOUT_ANSWER: Final = ("expired", "refused", "shed")
"""Counts of requests that got no context."""


def _app_of(requester: ContextRequest | Requester) -> str:
    """Return the app that a request names, which may be none of a valid form."""
    return requester.app_id if isinstance(requester.app_id, str) else ""


class InjectionResponder:
    """Answers requests from a queue, ``max_requests`` at a time, until ``stop``.

    With 8 slots or more, one app gets at most half of them, and at most three quarters of the waiting requests; beyond
    that its requests are treated as if all slots were taken. A free slot goes to the app with the fewest requests in
    progress. If too many requests wait, the app with the most loses one to an app with fewer.

    A full replica still takes requests that no other replica takes. A request that can meet its deadline waits, up to
    16 for each one in progress; others get the reply ``overloaded`` at once. A request after its deadline is dropped.
    An invalid request gets the reply ``invalid_request`` if it names its requester.

    If ``run`` is cancelled, other replicas take over the requests in progress.
    """

    def __init__(
        self,
        queue: RequestQueue,
        answer: Callable[[ContextRequest], Awaitable[ContextReply]],
        *,
        max_requests: int = 64,
        more_counts: Callable[[], Mapping[str, int]] = dict,
        check: Callable[[str, bytes, bytes, datetime], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        timing: ContextTiming = TIMING.context,
    ) -> None:
        """``answer`` must return before the deadline of its request, and should not raise.

        ``check`` is called with app, body and signature of each request, and the time; it raises ``RefusedEvent`` for
        one that is not the app's.
        ``counts`` includes ``more_counts()``. The responder does not close ``queue``.
        """
        self._queue = queue
        self._clock = clock
        self._timing = timing
        self._more_counts = more_counts
        self._check = check
        self._give = answer
        self._slots = max_requests
        self._free = max_requests
        self._freed = asyncio.Event()
        shared = max_requests >= _SHARED_FROM
        self._share = max_requests // 2 if shared else max_requests
        """Slots for one app."""
        self._most_waiting = max_requests * _WAITING_PER_SLOT
        self._waiting_share = self._most_waiting * 3 // 4 if shared else self._most_waiting
        """Waiting requests of one app."""
        self._apps: dict[str, _App] = {}
        self._begun: dict[_Request, float] = {}
        """Requests in progress of all apps, oldest first, with the time at which each began."""
        self._waiting: list[_Request] = []
        self._tasks: asyncio.TaskGroup
        self._serving: set[asyncio.Task[None]] = set()
        """The tasks of requests in progress, which never raise."""
        self._service_s = 0.0
        """Moving average of the time that a request takes, over all apps."""
        self._stopping = asyncio.Event()
        self._reported: dict[str, int] = {}
        self._lines = LogLimit(clock=clock)
        self._clock_skew = ClockSkew(queue, clock, timing.skew_ms)
        self._sender = ReplySender(queue, self._stopping, clock=clock, timing=timing)
        self.answered = 0
        self.expired = 0
        self.shed = 0
        self.refused = 0
        self.taken_over = 0
        """Requests that another responder had, or would have had, before."""
        self.won = 0
        """Of these, the ones that this responder answered before their deadline. The other one may have done so too."""
        self._refusals = LogLimit(clock=clock)
        """Of its own: whoever may ask can name any app and channel, and must not hide other lines."""

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return len(self._waiting)

    @property
    def interrupted(self) -> Collection[int]:
        """None: a responder holds no partitions."""
        return ()

    def stop(self) -> None:
        """Make ``run`` return after the requests in hand are answered."""
        self._stopping.set()
        self._freed.set()
        self._queue.wake()

    async def run(self) -> None:
        """Answer requests until ``stop``; wait while the bus is unavailable."""
        reporting = asyncio.create_task(self._report(), name="graphweft-responder-report")
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._take_all()
                await self._take(await self._queue.leave())
                while self._serving:  # the end of one may begin another
                    await asyncio.wait(self._serving)
        finally:
            await end_tasks(reporting, *self._serving)
        self._report_left_out()
        logger.info("responder_stopped", **self.counts())

    async def _take_all(self) -> None:
        attempt = 0
        while not self._stopping.is_set():
            try:
                if self._free and not self._waiting:
                    found = await self._queue.next(self._free)
                else:
                    await self._slot_or_look()
                    found = await self._queue.next(_LOOK_AT, wait=False)
            except Transient as error:
                self._lines.warn(logger, "requests_interrupted", error)  # each cause, and again each minute
                attempt += 1
                with contextlib.suppress(TimeoutError):
                    wait_s = backoff_s(self._timing.first_retry_s, attempt, longest_s=self._timing.last_retry_s)
                    async with asyncio.timeout(wait_s):
                        await self._stopping.wait()
                continue
            if attempt:
                logger.info("requests_resumed")
            attempt = 0
            await self._take(found)

    async def _slot_or_look(self) -> None:
        """Wait for a free slot, but no longer than until the next look for requests that no other replica takes."""
        self._freed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.look_s):
                await self._freed.wait()

    async def _take(self, found: Sequence[PendingRequest]) -> None:
        """Begin requests, let them wait, or refuse them."""
        refusals: list[_Refusal] = []
        since = self._clock.monotonic()
        for one in found:
            # A request begins with its rules, up to its first wait.
            if self._clock.monotonic() - since > self._timing.begin_s:
                await asyncio.sleep(0)
                since = self._clock.monotonic()
            request = self._read(one)
            self.taken_over += one.taken_over
            if request is None:
                self._queue.done(one.token)
            elif isinstance(request, _Refusal):
                refusals.append(request)
            elif self._free and len(request.app.begun) < self._share:
                self._begin(request)
            elif self._can_meet(request) and (self._has_room(request) or self._make_room(request, refusals)):
                request.app.waiting += 1
                self._waiting.append(request)
            else:
                refusals.append(self._overloaded(request))
        for request in self._late():
            self._end_waiting(request)
            refusals.append(self._overloaded(request))
        if refusals:
            await asyncio.gather(*(self._refuse(refusal) for refusal in refusals))

    def _read(self, pending: PendingRequest) -> _Request | _Refusal | None:
        """Return a request or its refusal; None if it is past its deadline or names no requester."""
        requester: ContextRequest | Requester | None
        fault = ""
        try:
            requester = ContextRequest.model_validate_json(pending.body)
        except ValidationError as error:
            fault = wire.explain(error).removeprefix("event: ")[:_MOST_DETAIL]
            if (left_out := self._lines.admit("request_invalid")) is not None:
                logger.warning("request_invalid", error=fault, left_out=left_out)
            requester = read_requester(pending.body)
            if requester is None:
                count_refusal("", "invalid_request")
                return None
        now_ms = int(self._clock.now().timestamp() * 1000)
        if requester.deadline_ms <= now_ms:
            self.expired += 1
            count_expired(_app_of(requester))
            self._tasks.create_task(self._clock_skew.check(pending.token, requester.deadline_ms))
            return None
        if pending.only_app not in (None, requester.app_id):
            fault = f"it came by the requests of {pending.only_app!r}, and names another app"
            self._drop(pending.only_app or "", "foreign_app", fault)
            return None  # a refusal would go to the other app
        if requester.deadline_ms > now_ms + MAX_BUDGET_MS:
            requester = requester.model_copy(update={"deadline_ms": now_ms + MAX_BUDGET_MS})
        if (channel_of := app_of_replies(requester.reply_to)) not in ("", requester.app_id):
            named = requester.app_id if isinstance(requester, ContextRequest) else channel_of[:_MOST_NAME]
            self._drop(named, "reply_channel", "the reply would go to a channel of another app")
            return None  # a refusal would go there too
        if isinstance(requester, ContextRequest):
            if fault := self._fault_of(requester, pending):
                reply = ContextReply(id=requester.id, reason="invalid_request", detail=fault, partial=True)
                return _Refusal(token=pending.token, requester=requester, reply=reply)
            app = self._app(requester.app_id)
            return _Request(token=pending.token, content=requester, app=app, taken_over=pending.taken_over)
        detail = f"invalid request; do client and responder run the same version? {fault}"
        reply = ContextReply(id=requester.id, reason="invalid_request", detail=detail, partial=True)
        return _Refusal(token=pending.token, requester=requester, reply=reply)

    def _fault_of(self, request: ContextRequest, pending: PendingRequest) -> str:
        """Return why a request is not its app's; empty if it is."""
        if self._check is None:
            return ""
        try:
            self._check(request.app_id, pending.body, pending.signature, self._clock.now())
        except RefusedEvent as error:
            self._count_refused(request.app_id, error.reason, str(error))
            return f"refused: {error}"
        return ""

    def _drop(self, app_id: str, reason: str, fault: str) -> None:
        """Note a refused request that gets no reply."""
        self._count_refused(app_id, reason, fault)
        count_refusal(app_id, reason)

    def _count_refused(self, app_id: str, reason: str, fault: str) -> None:
        self.refused += 1
        if (left_out := self._refusals.admit((app_id, reason))) is not None:
            logger.warning("request_refused", app_id=app_id, reason=reason, error=fault, left_out=left_out)

    def _app(self, app_id: str) -> _App:
        app = self._apps.get(app_id)
        if app is None:
            if len(self._apps) >= _IDLE_APPS:
                self._apps = {name: each for name, each in self._apps.items() if each.begun or each.waiting}
            app = self._apps[app_id] = _App()
        return app

    def _has_room(self, request: _Request) -> bool:
        return len(self._waiting) < self._most_waiting and request.app.waiting < self._waiting_share

    def _make_room(self, request: _Request, refusals: list[_Refusal]) -> bool:
        """Refuse the last request of the app with the most waiting ones, for a request of an app with fewer."""
        most = max(self._apps.values(), key=lambda app: app.waiting)
        if request.app.waiting + 1 >= most.waiting:
            return False
        last = next(each for each in reversed(self._waiting) if each.app is most)
        self._end_waiting(last)
        refusals.append(self._overloaded(last))
        return True

    def _can_meet(self, request: _Request) -> bool:
        """Tell whether a request would be answered in time after the requests that are begun before it."""
        app = request.app
        takes_s = self._takes_s(app)
        before, slots = app.waiting, self._share
        if len(app.begun) < self._share:
            # Requests of each other app that begin until that app has as many slots as this one will have.
            turn = len(app.begun) + app.waiting + 1
            others = (each for each in self._apps.values() if each is not app)
            before += sum(min(other.waiting, max(0, turn - len(other.begun))) for other in others)
            slots = self._slots
        return request.left_s(self._clock) > (before + 1) / slots * takes_s + takes_s

    def _takes_s(self, app: _App) -> float:
        """Return how long the requests take that hold the app's next slots: on average, or those in progress so far."""
        if len(app.begun) >= self._share:
            return max(app.service_s, self._median_age_s(app.begun))
        return max(self._service_s, self._median_age_s(self._begun))

    def _late(self) -> list[_Request]:
        """Return the waiting requests that will not be answered in time."""
        takes_s = {app: self._takes_s(app) for app in {request.app for request in self._waiting}}
        return [request for request in self._waiting if request.left_s(self._clock) < takes_s[request.app]]

    def _overloaded(self, request: _Request) -> _Refusal:
        self.shed += 1
        reply = ContextReply(
            id=request.content.id,
            reason="overloaded",
            detail=f"{self._slots - self._free} requests are in progress, {len(request.app.begun)} of them for "
            f"{request.content.app_id!r}, and {len(self._waiting)} wait: run more responders, or raise "
            "GRAPHWEFT_MAX_REQUESTS",
            partial=True,
        )
        return _Refusal(token=request.token, requester=request.content, reply=reply)

    async def _refuse(self, refusal: _Refusal) -> None:
        count_refusal(_app_of(refusal.requester), refusal.reply.reason or "")
        try:
            await self._sender.send(self._tasks, refusal.requester, refusal.reply)
        except Exception:  # one request must not end the responder
            logger.exception("request_failed")
        self._queue.done(refusal.token)

    def _begin(self, request: _Request) -> None:
        self._free -= 1
        self._begun[request] = request.app.begun[request] = self._clock.monotonic()
        serving = begun(self._serve(request))  # its query is sent before the next requests are asked for
        if not serving.done():
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)

    async def _serve(self, request: _Request) -> None:
        started, left_s = self._clock.monotonic(), request.left_s(self._clock)
        asked = request.content
        ids = {"app_id": asked.app_id, "chat_id": asked.chat_id, "request_id": asked.id}
        try:
            with tracing_spans.answered(asked) as span, LogIds(**ids):
                reply = await self._answer(asked)
                tracing_spans.replied(span, reply)
                took_s = self._clock.monotonic() - started
                count_answer(asked.app_id, reply, took_s=took_s, left_s=left_s)
                self._service_s += _SMOOTHING * (took_s - self._service_s)
                request.app.service_s += _SMOOTHING * (took_s - request.app.service_s)
                await self._sender.send(self._tasks, asked, reply)
            self.answered += 1
            self.won += request.taken_over and request.left_s(self._clock) > 0
        except Exception:  # one request must not end the responder
            logger.exception("request_failed")
        # Not after a cancellation: then other replicas take this request and the waiting ones.
        self._queue.done(request.token)
        self._free += 1
        del self._begun[request], request.app.begun[request]
        self._freed.set()
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Give free slots to waiting requests, first to the app with the fewest requests in progress."""
        while self._free:
            able = [request for request in self._waiting if len(request.app.begun) < self._share]
            if not able:
                return
            request = min(able, key=lambda each: len(each.app.begun))
            self._end_waiting(request)
            if request.left_s(self._clock) > 0:
                self._begin(request)
            else:
                self.expired += 1
                count_expired(request.content.app_id)
                self._queue.done(request.token)

    def _end_waiting(self, request: _Request) -> None:
        self._waiting.remove(request)
        request.app.waiting -= 1

    async def _answer(self, request: ContextRequest) -> ContextReply:
        try:
            reply = await self._give(request)
        except Exception as error:  # a defect must not cost the caller its whole budget
            logger.exception("answer_failed", workflow=request.workflow, agent=request.agent)
            return ContextReply(id=request.id, reason="internal_error", detail=type(error).__name__, partial=True)
        for item in reply.missing:
            left_out = self._lines.admit(("block_missing", request.app_id, item.rule, item.query, item.reason))
            if left_out is not None:
                logger.warning(
                    "block_missing", rule=item.rule, query=item.query, reason=item.reason, detail=item.detail,
                    app_id=request.app_id, workflow=request.workflow, agent=request.agent, left_out=left_out,
                )  # fmt: skip
        return reply

    async def _report(self) -> None:
        while True:
            await self._clock.sleep(self._timing.report_s)
            self._report_left_out()
            counts = self.counts()
            if counts != self._reported and any(counts.values()):
                worse = any(counts[name] != self._reported.get(name, 0) for name in _WITHOUT_ANSWER)
                self._reported = counts
                log = logger.info if worse else logger.debug
                log("responder_counts", **counts)

    def _report_left_out(self) -> None:
        if left_out := self._lines.take_left_out() + self._refusals.take_left_out():
            logger.warning("log_lines_left_out", count=left_out)

    def counts(self) -> dict[str, int]:
        """Return the numbers of requests by outcome, and ``more_counts``.

        They are logged at the end and each minute: at level info if further requests were not answered.
        """
        return {
            **self._more_counts(),
            "answered": self.answered,
            "expired": self.expired,
            "refused": self.refused,
            "shed": self.shed,
            "taken_over": self.taken_over,
            "won": self.won,
        }

    def _median_age_s(self, begun: Mapping[_Request, float]) -> float:
        """Return the median age of requests in progress, which are in the order of their begin; 0 without any."""
        now = self._clock.monotonic()
        return next((now - at for at in islice(begun.values(), len(begun) // 2, None)), 0.0)
