"""What a runtime holds: publish events, ask for context, and never be disturbed by either."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, cast
from uuid import uuid4

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from graphweft.drivers import make_transport
from graphweft.searching import make_query, text_of
from graphweft.settings import CONTEXT_VARIABLE, ClientSettings
from graphweft.transport import MAX_BUDGET_MS, Outgoing, Transport
from graphweft_contracts import (
    ContextReply,
    ContextRequest,
    Event,
    InvalidEvent,
    MemoryScope,
    Permanent,
    ReasonCode,
    SearchQuery,
    Transient,
    wire,
)
from graphweft_contracts.admission import check_admission
from graphweft_contracts.search import IndexType, Searched, WithoutEmbedder

__all__ = ("Client", "ClientStats")

logger = logging.getLogger("graphweft.client")

_BATCH: Final = 500
"""Events per round trip. Above this a batch gains nothing and delays the first event's confirmation."""
_SEARCH: Final = "search"
"""Who asks, where no agent's turn is named."""
_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 2.0
_RESERVE_SHARE: Final = 0.02
_RESERVE_MS: Final = (2.0, 5.0)
"""A call gives up before its budget is over by this share of it, within these bounds, and by no more than a half.
Timers are never early and up to 1 ms late, for the event loop waits in whole milliseconds, and then the call has still
to return: with 1 ms about half of the calls came back too late.
"""


@dataclass(slots=True)
class ClientStats:
    """What became of the events given to ``emit``: every one is sent, buffered, dropped or rejected."""

    sent: int = 0
    buffered: int = 0
    dropped: int = 0
    """Buffer full: the bus was away for longer than the buffer lasts."""
    rejected: int = 0
    """Not an event that JSON can carry, or too large for the bus; the log names the reason."""
    retries: int = 0


@dataclass(slots=True, kw_only=True)
class _Pending:
    event_id: str
    outgoing: Outgoing
    size: int
    position: asyncio.Future[str | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Client:
    """Publishes events and asks for context, without ever raising into an agent's turn.

    Use it as an asynchronous context manager, or call ``aclose`` at the end. One client belongs to one event loop;
    ``SyncClient`` serves synchronous callers. ``bus_url`` is a Redis URL, or ``kafka://host:port[,host:port…]``.
    Without it the settings come from ``GRAPHWEFT_BUS_URL`` or ``GRAPHWEFT_DATA``. ``app_id`` and ``workflow`` are the
    defaults of ``context``. Raises ``InvalidSettings`` for settings that cannot work.

    While the bus is away up to ``buffer`` events, of ``buffer_bytes`` together, are kept and sent in order when it is
    back; beyond that new ones are dropped and counted in ``stats``.
    """

    def __init__(
        self,
        bus_url: str | None = None,
        *,
        app_id: str | None = None,
        workflow: str | None = None,
        buffer: int = 10_000,
        buffer_bytes: int = 64 * 1024**2,
        budget_ms: int = 500,
        transport: Transport | None = None,
    ) -> None:
        settings = ClientSettings.from_environment()
        self._transport = transport or make_transport(bus_url or settings.bus_url)
        self._context_on = settings.context
        self._app_id = app_id
        self._workflow = workflow
        self._buffer = buffer
        self._buffer_bytes = buffer_bytes
        self._budget_ms = budget_ms
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self._arrived = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._sender: asyncio.Task[None] | None = None
        self._bus_away = False
        self._closed = False
        self.stats = ClientStats()

    @property
    def app_id(self) -> str | None:
        """The app that is meant where none is named."""
        return self._app_id

    @property
    def workflow(self) -> str | None:
        """The workflow that is meant where none is named."""
        return self._workflow

    async def __aenter__(self) -> Self:
        """Return the client itself; connections open at first use."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what is buffered, then close."""
        await self.aclose()

    async def emit(self, event: Event, *, wait_s: float = 1.0) -> str | None:
        """Publish ``event``; return its position on the bus, or None when it is not confirmed within ``wait_s``.

        Never raises. An unconfirmed event stays in the buffer and is sent as soon as the bus takes it, in order and
        with effect once. While the bus is known to be away the call returns at once.
        """
        return (await self.emit_all((event,), wait_s=wait_s))[0]

    async def emit_all(self, events: Sequence[Event], *, wait_s: float = 1.0) -> list[str | None]:
        """Publish ``events`` in their order; return their positions, each as ``emit`` does. Never raises.

        A buffer that has no room for all of them takes none, so that a repetition cannot put them in another order.
        """
        if self._closed:
            self.stats.rejected += len(events)
            for event in events:
                logger.warning("event %s came after the client was closed and is not sent", getattr(event, "id", None))
            return [None] * len(events)
        taken = [self._encoded(event) for event in events]
        fresh = [pending for pending in taken if pending is not None]
        size = sum(pending.size for pending in fresh)
        if len(self._pending) + len(fresh) > self._buffer or self._pending_bytes + size > self._buffer_bytes:
            self._drop(len(fresh))
            return [None] * len(events)
        if fresh:
            self._pending.extend(fresh)
            self._pending_bytes += size
            self.stats.buffered = len(self._pending)
            self._drained.clear()
            self._arrived.set()
            if self._sender is None or self._sender.done():
                self._sender = asyncio.create_task(self._send(), name="graphweft-emit")
            if not self._bus_away:
                await asyncio.wait([pending.position for pending in fresh], timeout=wait_s)
        return [p.position.result() if p is not None and p.position.done() else None for p in taken]

    async def context(
        self,
        *,
        agent: str,
        chat_id: str,
        app_id: str | None = None,
        workflow: str | None = None,
        user_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        budget_ms: int | None = None,
        max_tokens: int | None = None,
        after: str | None = None,
        explain: bool = False,
        search: SearchQuery | None = None,
    ) -> ContextReply:
        """Return the context for ``agent``'s next turn within ``budget_ms`` milliseconds. Never raises.

        When nothing came in time, or something is wrong, the reply has no blocks, an empty ``text`` and a ``reason``;
        a reply with some blocks missing has ``partial`` set and says why for each. With ``GRAPHWEFT_CONTEXT=off`` it
        comes back at once, with the reason ``disabled``.

        The budget holds for the caller: the call gives up by 2 % of it, at least 2 and at most 5 ms, before its end.
        More than ten minutes count as ten minutes. Writing ``context``, which holds what JSON can say, is a part of it
        that nothing interrupts: seven megabytes of small values take a few tenths of a second.

        The text has at most ``max_tokens`` tokens. ``after`` is a position that ``emit`` returned (None waits for
        nothing): the answer holds that event's effect, or says in ``stale_by`` that the budget was over before.
        ``explain`` tells of each block how it came about. With ``search`` no rules are asked, only that; ``search`` of
        this class says it more briefly.
        """
        fields: dict[str, Any] = {
            "app_id": app_id,
            "workflow": workflow,
            "agent": agent,
            "chat_id": chat_id,
            "user_id": user_id,
            "context": {} if context is None else context,
            "max_tokens": max_tokens,
            "after": after,
            "explain": explain,
            "search": search,
        }
        return await self._ask(fields, budget_ms, time.perf_counter())

    async def search(
        self,
        query: str | Iterable[Any],
        *,
        memory: MemoryScope | None = None,
        of: Searched = "all",
        index_type: IndexType | None = None,
        without_embedder: WithoutEmbedder | None = None,
        index_name: str | None = None,
        fulltext_index_name: str | None = None,
        top_k: int = 5,
        retrieval_query: str | None = None,
        params: Mapping[str, Any] | None = None,
        filter_stop_words: bool = True,
        message_history_count: int = 10,
        app_id: str | None = None,
        budget_ms: int | None = None,
        max_tokens: int | None = None,
        after: str | None = None,
        explain: bool = False,
    ) -> ContextReply:
        """Search what is remembered within a scope, or an index of the graph, within ``budget_ms`` milliseconds.

        ``query`` is a text, or messages (maps or objects with ``role`` and ``text`` or ``content``): then the texts of
        the last ``message_history_count`` of user and assistant are searched for together. With ``memory`` the
        memories, facts, preferences and summaries of that scope are searched together: as ``index_type`` says, and
        without it by words, and by vector too where the responder has an embedder. Without a text the latest are taken,
        and their score is None. ``without_embedder="latest"`` takes the latest memories for any text where the
        responder has no embedder, in turns with what is found by words of the other kinds, all without a score. ``of``
        narrows a search to one kind (``memories``, ``facts`` that hold now, ``preferences``, ``summaries``), or names
        the entities or the episodes of ``episode.add``. Only memories have vectors. A row says its ``kind``. Without
        ``memory``, ``index_name`` names what is searched. ``retrieval_query`` is Cypher that goes on from ``node`` and
        ``score``, with ``params``, and returns at least ``text`` and ``score``, best first; for several kinds it runs
        once for each, and the rows are put together by score.

        ``results`` of the reply has the rows, ``text`` the lines that an agent reads. What else is in it, and the other
        arguments, are as ``context`` has them. Raises ``ValueError`` for a search that can never work, such as a hybrid
        one without ``fulltext_index_name``; nothing else raises, whatever happens to the bus, the graph or a model.
        """
        started = time.perf_counter()
        known = make_query(
            memory=memory,
            of=of,
            index_type=index_type,
            without_embedder=without_embedder,
            index_name=index_name,
            fulltext_index_name=fulltext_index_name,
            top_k=top_k,
            retrieval_query=retrieval_query,
            filter_stop_words=filter_stop_words,
            message_history_count=message_history_count,
        )
        try:
            text = text_of(query, message_history_count)
        except Exception as error:  # noqa: BLE001 - a foreign object's own code; the turn goes on
            wanted = "query: a text or a list of messages is wanted"
            return _empty(uuid4().hex, "invalid_request", f"{wanted}, and reading it failed: {type(error).__name__}")
        fields: dict[str, Any] = {
            "app_id": app_id,
            "workflow": None,
            "agent": _SEARCH,
            "chat_id": _SEARCH,
            "max_tokens": max_tokens,
            "after": after,
            "explain": explain,
            "search": {**dict(known), "text": text, "params": {} if params is None else params},
        }
        return await self._ask(fields, budget_ms, started)

    async def _ask(self, fields: Mapping[str, Any], budget_ms: int | None, started: float) -> ContextReply:
        """Return the answer to a request of ``fields`` within the budget, which began at ``started``."""
        budget = _milliseconds(self._budget_ms if budget_ms is None else budget_ms)
        request_id = uuid4().hex
        if self._closed:
            return _empty(request_id, "bus_unavailable", "the client is closed")
        if not self._context_on:
            return _empty(request_id, "disabled", f"{CONTEXT_VARIABLE} is off in this process")
        if budget is None:
            return _empty(request_id, "invalid_request", "budget_ms: a number of milliseconds is wanted")
        try:
            spent_ms = (time.perf_counter() - started) * 1000
            own: dict[str, Any] = {
                "id": request_id,
                "app_id": fields["app_id"] or self._app_id or "",
                "workflow": fields["workflow"] or self._workflow or (_SEARCH if fields["search"] else ""),
                "deadline_ms": int(time.time() * 1000 - spent_ms) + budget,
            }
            request = ContextRequest(**{**fields, **own})
            async with asyncio.timeout(max(0.0, budget - _reserve_ms(budget) - spent_ms) / 1000):
                reply = await self._transport.request(request)
        except TimeoutError:
            reply = _empty(
                request_id,
                "timeout",
                f"no answer within {budget} ms; is a responder running (`graphweft run injection`)?",
            )
        except (Transient, Permanent) as error:
            reply = _empty(request_id, "bus_unavailable", str(error))
        except ValidationError as error:
            reply = _empty(request_id, "invalid_request", wire.explain(error))
        except PydanticSerializationError as error:  # its text names types, never values
            what = "context" if fields["search"] is None else "context or params"
            reply = _empty(request_id, "invalid_request", f"{what} is no JSON: {error}")
        except Exception as error:  # the agent's turn goes on whatever happens here
            logger.exception("asking for context failed")
            reply = _empty(request_id, "internal_error", f"{type(error).__name__}: {error}")
        elapsed_ms = (time.perf_counter() - started) * 1000
        if reply.reason is not None:
            logger.debug("no context for %s: %s (%s)", fields["agent"], reply.reason, reply.detail)
        return reply.model_copy(update={"elapsed_ms": round(elapsed_ms, 3)})

    async def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all buffered events are on the bus; return False when that takes longer than ``timeout_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._drained.wait()
        return self._drained.is_set()

    async def aclose(self, drain_s: float = 2.0) -> None:
        """Send what is buffered, for at most ``drain_s`` seconds, and close. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            await self.flush(drain_s)
        finally:  # a caller that is cancelled while it waits leaves nothing behind either
            if self._sender is not None:
                self._sender.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._sender
            self._drop_pending()
            await self._transport.aclose()

    async def _send(self) -> None:
        retry_s = _FIRST_RETRY_S
        singly = 0
        while True:
            await self._arrived.wait()
            batch = [self._pending[index] for index in range(min(1 if singly else _BATCH, len(self._pending)))]
            try:
                positions = await self._transport.append([pending.outgoing for pending in batch])
            except InvalidEvent as error:
                if len(batch) > 1:  # which one it is shows when each is sent alone
                    singly = len(batch)
                    continue
                singly = max(0, singly - 1)
                self.stats.rejected += 1
                logger.error("event %s is not sent: %s", batch[0].event_id, error)
                self._settle(batch, [None])
                continue
            except Exception as error:  # noqa: BLE001 - the buffer must survive whatever the bus does
                if not self._bus_away:
                    logger.warning("the bus is away, events are buffered: %s", error)
                self._bus_away = True
                self.stats.retries += 1
                await asyncio.sleep(retry_s * random.uniform(0.5, 1.0))
                retry_s = min(retry_s * 2, _LAST_RETRY_S)
                continue
            if self._bus_away:
                logger.warning("the bus is back, %d events were buffered", len(self._pending))
            self._bus_away = False
            retry_s = _FIRST_RETRY_S
            singly = max(0, singly - 1)
            self.stats.sent += len(batch)
            self._settle(batch, positions)

    def _encoded(self, event: Event) -> _Pending | None:
        """Return the event as it goes to the bus; None, counted, for one that is refused or that JSON cannot say."""
        try:
            check_admission(event)
            outgoing = Outgoing(key=event.key, fields=wire.encode(event))
            size = len(outgoing.key) + sum(map(len, outgoing.fields.values()))
            return _Pending(event_id=event.id, outgoing=outgoing, size=size)
        except InvalidEvent as error:
            self.stats.rejected += 1
            logger.error("event %s is not sent: %s", event.id, error)
            return None
        except Exception as error:  # noqa: BLE001 - whatever a foreign object does in encoding, the turn goes on
            self.stats.rejected += 1
            logger.error("event %s cannot be written as JSON and is not sent: %s", getattr(event, "id", None), error)
            return None

    def _drop(self, events: int) -> None:
        before = self.stats.dropped
        self.stats.dropped += events
        if before == 0 or before // 1000 != self.stats.dropped // 1000:
            logger.error(
                "the buffer of %d events or %d bytes is full: %d dropped so far",
                self._buffer, self._buffer_bytes, self.stats.dropped,
            )  # fmt: skip

    def _settle(self, batch: Sequence[_Pending], positions: Sequence[str | None]) -> None:
        """Take the first events off the buffer and tell who waits for them."""
        for pending, position in zip(batch, positions, strict=True):
            self._pending_bytes -= self._pending.popleft().size
            if not pending.position.done():
                pending.position.set_result(position)
        self.stats.buffered = len(self._pending)
        if not self._pending:
            self._arrived.clear()
            self._drained.set()

    def _drop_pending(self) -> None:
        if not self._pending:
            return
        logger.error("closed with %d events not sent: the bus did not take them", len(self._pending))
        self.stats.dropped += len(self._pending)
        self.stats.buffered = 0
        for pending in self._pending:
            if not pending.position.done():
                pending.position.set_result(None)
        self._pending.clear()
        self._pending_bytes = 0


def _milliseconds(budget: object) -> int | None:
    """Return a budget within its bounds, or None for what is no number: callers may have no types."""
    if not issubclass(type(budget), int | float):
        return None
    number = cast("float", budget)
    return None if number != number else int(min(max(number, 0), MAX_BUDGET_MS))  # noqa: PLR0124 - so is NaN only


def _reserve_ms(budget_ms: int) -> float:
    least, most = _RESERVE_MS
    return min(max(budget_ms * _RESERVE_SHARE, least), most, budget_ms / 2)


def _empty(request_id: str, reason: ReasonCode, detail: str) -> ContextReply:
    return ContextReply(id=request_id, reason=reason, detail=detail, partial=True)
