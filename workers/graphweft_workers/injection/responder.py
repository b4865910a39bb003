"""The injection responder: takes requests from a queue, has them answered, and sends the replies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import structlog
from pydantic import ValidationError

from graphweft.transport import MAX_BUDGET_MS
from graphweft_contracts import ContextReply, ContextRequest, Transient, wire
from graphweft_workers.injection.clocks import Clocks
from graphweft_workers.injection.requests import Asker, RequestQueue, Waiting, read_asker

logger = structlog.get_logger("graphweft.injection")

_FIRST_BACKOFF_S: Final = 0.05
_LAST_BACKOFF_S: Final = 0.5
"""Requests wait meanwhile, and their runtimes do not wait long."""
_LOOK_S: Final = 0.01
"""How often a full replica looks for requests that nobody else takes."""
_LOOK_AT: Final = 64
_WAITING_PER_PLACE: Final = 16
"""Requests that may wait for each one that is worked on."""
_SHARED_FROM: Final = 8
"""With fewer places an app may have them all, and all the room to wait."""
_IDLE_APPS: Final = 1_000
"""Apps without a request that are remembered."""
_SMOOTHING: Final = 0.1
_RESEND_S: Final = 0.05
_RESENT_AT_ONCE: Final = 256
_RESEND_LIMIT_S: Final = 5.0
_MOST_DETAIL: Final = 1_000
"""Characters that are said of what is wrong with a request; it may have many faults, with long names."""
_REPORT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Request:
    """A request in hand."""

    token: str
    content: ContextRequest
    app: _App

    @property
    def left_s(self) -> float:
        """Seconds to its deadline."""
        return _left_s(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """A request that is not worked on, and what is answered."""

    token: str
    asker: ContextRequest | Asker
    reply: ContextReply


@dataclass(slots=True, eq=False)
class _App:
    """What an app has here."""

    begun: dict[_Request, float] = field(default_factory=dict[_Request, float])
    """When work on its requests began, oldest first."""
    waiting: int = 0
    service_s: float = 0.0
    """Moving average of the time that a request of it takes."""


class InjectionResponder:
    """Answers requests from a queue, ``max_requests`` at a time, until ``stop`` is called.

    From 8 places on, one app has half of them at most, and three quarters of the room to wait, so that no app shuts
    out the others; what it asks beyond that is treated as if all places were taken. A place that is free goes to the
    app that has the fewest, and a full room makes room for an app that has less in it than another.

    ``answer`` never raises on account of a request and is back before its deadline. A replica that is full still takes
    what nobody else takes: what it can meet waits, at most 16 requests for each that is worked on, and the others are
    answered ``overloaded`` at once. A request that is late when it comes is dropped; one that breaks the contract is
    answered so, if it says whom to answer.

    When ``run`` is cancelled, what is in hand stays on the queue, for other replicas.
    """

    def __init__(
        self,
        queue: RequestQueue,
        answer: Callable[[ContextRequest], Awaitable[ContextReply]],
        *,
        max_requests: int = 64,
        more_counts: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._queue = queue
        self._more_counts = more_counts
        self._give = answer
        self._places = max_requests
        self._free = max_requests
        self._freed = asyncio.Event()
        shared = max_requests >= _SHARED_FROM
        self._share = max_requests // 2 if shared else max_requests
        """Places that one app may have."""
        self._room = max_requests * _WAITING_PER_PLACE
        self._room_share = self._room * 3 // 4 if shared else self._room
        """Requests of one app that may wait."""
        self._apps: dict[str, _App] = {}
        self._begun: dict[_Request, float] = {}
        """When work began on what is in hand, oldest first."""
        self._waiting: list[_Request] = []
        self._tasks: asyncio.TaskGroup | None = None
        self._resending = 0
        self._service_s = 0.0
        """Moving average of the time that a request takes, of all apps."""
        self._stopping = asyncio.Event()
        self._reported: dict[str, int] = {}
        self._clocks = Clocks(queue)
        self.answered = 0
        self.expired = 0
        self.shed = 0

    def stop(self) -> None:
        """Ask the responder to finish the requests in hand and return from ``run``."""
        self._stopping.set()
        self._freed.set()
        self._queue.wake()

    async def run(self) -> None:
        """Answer until ``stop``. Outages of the bus are waited out."""
        reporting = asyncio.create_task(self._report(), name="graphweft-responder-report")
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._take_all()
                await self._take(await self._queue.leave())
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
        logger.info("responder_stopped", **self.counts())

    async def _take_all(self) -> None:
        pause_s = _FIRST_BACKOFF_S
        away = False
        while not self._stopping.is_set():
            try:
                if self._free and not self._waiting:
                    found = await self._queue.next(self._free)
                else:
                    await self._place_or_look()
                    found = await self._queue.next(_LOOK_AT, wait=False)
            except Transient as error:
                if not away:
                    logger.warning("requests_interrupted", error=str(error))
                away = True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._stopping.wait()
                pause_s = min(pause_s * 2, _LAST_BACKOFF_S)
                continue
            if away:
                logger.info("requests_resumed")
            away, pause_s = False, _FIRST_BACKOFF_S
            await self._take(found)

    async def _place_or_look(self) -> None:
        """Wait until there is a place, or until it is time to look what nobody takes."""
        self._freed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await self._freed.wait()

    async def _take(self, found: Sequence[Waiting]) -> None:
        """Begin with requests, let them wait, or refuse them."""
        refusals: list[_Refusal] = []
        for one in found:
            request = self._read(one)
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
        for request in self._hopeless():
            self._end_waiting(request)
            refusals.append(self._overloaded(request))
        if refusals:
            await asyncio.gather(*(self._refuse(refusal) for refusal in refusals))

    def _read(self, waiting: Waiting) -> _Request | _Refusal | None:
        """Return a request, or why it is not worked on; None when it is late, or does not say whom to answer."""
        asker: ContextRequest | Asker | None
        fault = ""
        try:
            asker = ContextRequest.model_validate_json(waiting.body)
        except ValidationError as error:
            fault = wire.explain(error).removeprefix("event: ")[:_MOST_DETAIL]
            logger.warning("request_invalid", error=fault)
            asker = read_asker(waiting.body)
            if asker is None:
                return None
        now_ms = int(time.time() * 1000)
        if asker.deadline_ms <= now_ms:
            self.expired += 1
            assert self._tasks is not None
            self._tasks.create_task(self._clocks.look(waiting.token, asker.deadline_ms))
            return None
        if asker.deadline_ms > now_ms + MAX_BUDGET_MS:
            asker = asker.model_copy(update={"deadline_ms": now_ms + MAX_BUDGET_MS})
        if isinstance(asker, ContextRequest):
            return _Request(token=waiting.token, content=asker, app=self._app(asker.app_id))
        detail = f"the request breaks the contract; do client and responder run the same version? {fault}"
        reply = ContextReply(id=asker.id, reason="invalid_request", detail=detail, partial=True)
        return _Refusal(token=waiting.token, asker=asker, reply=reply)

    def _app(self, app_id: str) -> _App:
        app = self._apps.get(app_id)
        if app is None:
            if len(self._apps) >= _IDLE_APPS:
                self._apps = {name: each for name, each in self._apps.items() if each.begun or each.waiting}
            app = self._apps[app_id] = _App()
        return app

    def _has_room(self, request: _Request) -> bool:
        return len(self._waiting) < self._room and request.app.waiting < self._room_share

    def _make_room(self, request: _Request, refusals: list[_Refusal]) -> bool:
        """Refuse the last request of the app that has most waiting, for one of an app that has fewer."""
        most = max(self._apps.values(), key=lambda app: app.waiting)
        if request.app.waiting + 1 >= most.waiting:
            return False
        last = next(each for each in reversed(self._waiting) if each.app is most)
        self._end_waiting(last)
        refusals.append(self._overloaded(last))
        return True

    def _can_meet(self, request: _Request) -> bool:
        """Whether a request would be answered in time behind those that are begun before it."""
        app = request.app
        takes_s = self._takes_s(app)
        before, places = app.waiting, self._share
        if len(app.begun) < self._share:
            # Of each other app, what is begun until it has as many places as this one will have.
            turn = len(app.begun) + app.waiting + 1
            others = (each for each in self._apps.values() if each is not app)
            before += sum(min(other.waiting, max(0, turn - len(other.begun))) for other in others)
            places = self._places
        return request.left_s > (before + 1) / places * takes_s + takes_s

    def _takes_s(self, app: _App) -> float:
        """Return how long requests take whose places the app waits for: of late, or already those in hand."""
        if len(app.begun) >= self._share:
            return max(app.service_s, _median_age_s(app.begun))
        return max(self._service_s, _median_age_s(self._begun))

    def _hopeless(self) -> list[_Request]:
        """Return those of the waiting requests that will not be answered in time."""
        takes_s = {app: self._takes_s(app) for app in {request.app for request in self._waiting}}
        return [request for request in self._waiting if request.left_s < takes_s[request.app]]

    def _overloaded(self, request: _Request) -> _Refusal:
        self.shed += 1
        reply = ContextReply(
            id=request.content.id,
            reason="overloaded",
            detail=f"{self._places - self._free} requests are worked on, {len(request.app.begun)} of them for "
            f"{request.content.app_id!r}, and {len(self._waiting)} wait: run more responders, or raise "
            "GRAPHWEFT_MAX_REQUESTS",
            partial=True,
        )
        return _Refusal(token=request.token, asker=request.content, reply=reply)

    async def _refuse(self, refusal: _Refusal) -> None:
        try:
            await self._send(refusal.asker, refusal.reply)
        except Exception:  # one request must not end the responder
            logger.exception("request_failed")
        self._queue.done(refusal.token)

    def _begin(self, request: _Request) -> None:
        assert self._tasks is not None
        self._free -= 1
        self._begun[request] = request.app.begun[request] = time.perf_counter()
        self._tasks.create_task(self._serve(request))

    async def _serve(self, request: _Request) -> None:
        started = time.perf_counter()
        try:
            reply = await self._answer(request.content)
            took_s = time.perf_counter() - started
            self._service_s += _SMOOTHING * (took_s - self._service_s)
            request.app.service_s += _SMOOTHING * (took_s - request.app.service_s)
            await self._send(request.content, reply)
            self.answered += 1
        except Exception:  # one request must not end the responder
            logger.exception("request_failed")
        # Not when it was cancelled: then others take it, and those that wait.
        self._queue.done(request.token)
        self._free += 1
        del self._begun[request], request.app.begun[request]
        self._freed.set()
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Give free places to requests that wait: first to the app that has the fewest."""
        while self._free:
            able = [request for request in self._waiting if len(request.app.begun) < self._share]
            if not able:
                return
            request = min(able, key=lambda each: len(each.app.begun))
            self._end_waiting(request)
            if request.left_s > 0:
                self._begin(request)
            else:
                self.expired += 1
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
            logger.warning(
                "block_missing", rule=item.rule, query=item.query, reason=item.reason, detail=item.detail,
                app_id=request.app_id, workflow=request.workflow, agent=request.agent,
            )  # fmt: skip
        return reply

    async def _send(self, asker: ContextRequest | Asker, reply: ContextReply) -> None:
        """Send a reply. When it does not arrive, for the bus was away, it is sent again until the deadline."""
        try:
            if await self._queue.reply(asker.reply_to, reply):
                return
        except Transient as error:
            logger.debug("reply_delayed", error=str(error))
        if self._resending < _RESENT_AT_ONCE:
            assert self._tasks is not None
            self._resending += 1
            self._tasks.create_task(self._send_again(asker, reply))
        else:
            logger.warning("reply_lost", error="too many replies wait for the bus")

    async def _send_again(self, asker: ContextRequest | Asker, reply: ContextReply) -> None:
        until = time.monotonic() + min(_left_s(asker), _RESEND_LIMIT_S) - _RESEND_S
        try:
            while time.monotonic() < until and not self._stopping.is_set():
                await asyncio.sleep(_RESEND_S)
                with contextlib.suppress(Transient):
                    if await self._queue.reply(asker.reply_to, reply):
                        return
            logger.debug("reply_lost", error="nobody listens any more")
        except Exception:  # one request must not end the responder
            logger.exception("request_failed")
        finally:
            self._resending -= 1

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            counts = self.counts()
            if counts != self._reported and any(counts.values()):
                self._reported = counts
                logger.info("responder_counts", **counts)

    def counts(self) -> dict[str, int]:
        """Return what became of the requests so far, and ``more_counts``. The log has it each minute and at the end."""
        return {
            **self._more_counts(),
            "answered": self.answered,
            "expired": self.expired,
            "shed": self.shed,
            "taken_over": self._queue.taken_over,
        }


def _left_s(asker: ContextRequest | Asker) -> float:
    return asker.deadline_ms / 1000 - time.time()


def _median_age_s(begun: Mapping[_Request, float]) -> float:
    """Return the age of the middle one of requests in the order in which they were begun; 0 without any."""
    return next((time.perf_counter() - at for at in islice(begun.values(), len(begun) // 2, None)), 0.0)
