"""The asynchronous client: publish events and request context without disturbing the runtime."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from graphweft import tracing
from graphweft.background_loop import renew_after_fork
from graphweft.loop_connection import ClientStats, LoopConnection, SendingLimits
from graphweft.outbox import EncodedEvent, PendingEvent
from graphweft.refusal_log import RefusalLog
from graphweft.time_limit import time_limit
from graphweft.timing import CLIENT_TIMING, DEFAULT_BUDGET_MS, ClientTiming
from graphweft.token_bucket import TokenBucket
from graphweft_contracts.argument_names import takes_synonyms
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.errors import BusUnavailable, InvalidEvent, InvalidSettings

if TYPE_CHECKING:
    # The models take most of the time of an import. The class does not need them, only a client does.
    from typing_extensions import Self, Unpack

    from graphweft.transport import Outcome, Transport
    from graphweft.turns import Turn, Turns
    from graphweft_contracts.context import ContextReply, ContextRequest
    from graphweft_contracts.events import Event
    from graphweft_contracts.memory import MemoryScope
    from graphweft_contracts.search import Fill, IndexType, MemoryFilters, Searched, SearchQuery, WithoutEmbedder

logger = logging.getLogger("graphweft.client")

_SEARCH: Final = "search"
"""Agent, chat and workflow of a search outside of a turn."""
_ONE_LOOP: Final = (
    "the transport that this client was given belongs to another event loop: make a client in each loop, or give it "
    "the URL of the bus in place of a transport"
)
_OF_PARENT: Final[list[object]] = []
"""What the parent of a forked process has. It is never collected: that would close what the parent still uses."""


class Client:
    """Publishes events and requests context. Its calls never raise into an agent's turn.

    Use it as an asynchronous context manager, or call ``aclose`` at the end. Synchronous callers use ``SyncClient``. A
    client serves several event loops, one after the other or at once in several threads, and forked processes: each
    loop has connections and a buffer of its own, except with a ``transport``, which belongs to one loop. What a loop
    has not sent when it ends, the next one sends. ``bus_url`` is the URL of the bus. Without it the client reads
    ``GRAPHWEFT_GATEWAY_URL``, ``GRAPHWEFT_BUS_URL`` or ``GRAPHWEFT_DATA``. ``app_id`` and ``workflow`` are the defaults
    of ``context``, and ``budget_ms`` is that of ``context`` and ``search``. ``signing_key`` (``id:secret``) signs
    events and requests; without it the client reads ``GRAPHWEFT_SIGNING_KEY``. A gateway signs itself. Raises
    ``InvalidSettings`` for settings that cannot work.

    While the bus is unavailable, up to ``buffer`` events with at most ``buffer_bytes`` bytes are kept. They are sent in
    order when the bus is back. Further events are dropped and counted in ``stats``. Each partition of the bus has a
    queue of its own: while one is unavailable, its events wait in half of the buffer, and those of the others go on.
    If a partition takes no events until an operator mends it, its events are rejected, and the log names the command.

    ``max_events_per_s`` and ``max_bytes_per_s`` limit what the client sends; None does not. Events above a limit wait
    in the same buffer, in order. Until it is empty ``emit`` returns at once, as while the bus is unavailable.
    """

    @takes_synonyms
    def __init__(
        self,
        bus_url: str | None = None,
        *,
        app_id: str | None = None,
        workflow: str | None = None,
        buffer: int = 10_000,
        buffer_bytes: int = 64 * 1024**2,
        budget_ms: int = DEFAULT_BUDGET_MS,
        signing_key: str | None = None,
        max_events_per_s: float | None = None,
        max_bytes_per_s: float | None = None,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
        timing: ClientTiming = CLIENT_TIMING,
    ) -> None:
        from graphweft import client_messages
        from graphweft.argument_checks import check_app, check_budget
        from graphweft.settings import ClientSettings
        from graphweft.transports.registry import make_transport
        from graphweft_contracts.signatures import SigningKey

        check_app(app_id)
        check_budget(budget_ms)
        self._encode = client_messages.encoded
        self._no_event = client_messages.no_event
        self._request_of = client_messages.request_of
        self._empty = client_messages.empty_reply
        self._failed = client_messages.failed_reply
        self._milliseconds = client_messages.milliseconds
        self._budget_form = client_messages.BUDGET_FORM
        self._is_unwritable = client_messages.is_unwritable
        self._json_context = client_messages.json_context
        self._has_repaired = False
        settings = ClientSettings.from_environment()
        key = signing_key or settings.signing_key

        def connected() -> Transport:
            if not bus_url and (gateway := settings.gateway()) is not None:
                if signing_key is not None:
                    raise InvalidSettings("signing_key has no effect with a gateway, which signs itself: leave it out")
                return gateway
            return make_transport(
                bus_url or settings.bus_url, signing_key=None if key is None else SigningKey.parse(key)
            )

        if bus_url and "://" not in bus_url:  # it may hold a password, so it is not quoted
            raise InvalidSettings(
                "invalid bus URL: it has no scheme; expected one with `scheme://host`. For the name "
                "of an app write app_id=…; without a URL the client takes that of the settings"
            )
        if transport is not None and signing_key is not None:
            raise InvalidSettings("signing_key has no effect with a transport: give it to the transport")
        self._is_own = transport is None
        self._make_transport = connected if transport is None else lambda: transport
        self._transport = connected() if transport is None else transport
        self._system: str = getattr(self._transport, "system", "other")
        self._unused: Transport | None = self._transport
        """The transport of the first event loop, until then."""
        self._connections: dict[asyncio.AbstractEventLoop, LoopConnection] = {}
        self._process = os.getpid()
        self._lock = threading.Lock()
        renew_after_fork(self, threading.Lock)
        self._clock = clock
        self._timing = timing
        self._context_on = settings.context
        self._capture_on = settings.capture
        self._turns: Turns | None = None
        self._app_id = app_id
        self._workflow = workflow
        self._budget_ms = budget_ms
        self._limits = SendingLimits(
            buffer=buffer,
            buffer_bytes=buffer_bytes,
            events=_bucket("max_events_per_s", max_events_per_s, clock),
            bytes=_bucket("max_bytes_per_s", max_bytes_per_s, clock),
        )
        self._closed = False
        self._refusals = RefusalLog(logger)
        self.stats = ClientStats()

    @property
    def app_id(self) -> str | None:
        """The default app."""
        return self._app_id

    @property
    def workflow(self) -> str | None:
        """The default workflow."""
        return self._workflow

    @property
    def refusals(self) -> Mapping[int, str]:
        """Why partitions of the bus refused the last of their events of this client, by partition."""
        found: dict[int, str] = {}
        for connection in list(self._connections.values()):
            found |= connection.outbox.refusals
        return found

    @property
    def budget_ms(self) -> int:
        """The default budget."""
        return self._budget_ms

    if not TYPE_CHECKING:  # a type checker finds the missing methods itself

        def __enter__(self) -> None:
            """Refuse ``with``, which cannot wait."""
            raise TypeError("Client is asynchronous: write `async with`, or use SyncClient for `with`")

        def __exit__(self, *_: object) -> None:
            """``with`` looks for it first."""

    async def __aenter__(self) -> Self:
        """Return the client itself; connections open at first use."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send buffered events, then close."""
        await self.aclose()

    async def emit(self, event: Event, *, wait_s: float = 1.0) -> str | None:
        """Publish ``event``; return its position (``partition:offset``), or None without confirmation in ``wait_s``.

        Never raises. An unconfirmed event stays in the buffer and is sent as soon as the bus accepts it, in order and
        with effect once. While the bus is known to be unavailable, the call returns at once.
        """
        return (await self.emit_all((event,), wait_s=wait_s))[0]

    async def emit_all(self, events: Sequence[Event], *, wait_s: float = 1.0) -> list[str | None]:
        """Publish ``events`` in order; return their positions as ``emit`` does. Never raises.

        If the buffer has no room for all of them, none is accepted, so that a retry cannot reorder them.
        """
        outcomes = await self.emit_each(events, wait_s=wait_s)
        return [outcome if isinstance(outcome, str) else None for outcome in outcomes]

    async def emit_each(self, events: Sequence[Event | EncodedEvent], *, wait_s: float = 1.0) -> list[Outcome | None]:
        """Do the same as ``emit_all``, and return an error for each event that is not sent; None for one that waits.

        The error of an event that is refused for good is an ``InvalidEvent`` or a ``PartitionRefused``. It is a
        ``BusUnavailable`` if the buffer is full or the client is closed. Events that are encoded already
        (``client_messages.encoded_event``) take no time of the event loop for it.
        """
        with tracing.sending(events, self._system):
            taken = self._accept(events)
            waiting = [each.position for each in taken if isinstance(each, PendingEvent) and not _is_held(each)]
            if waiting and not self._connected().at_once:
                await asyncio.wait(waiting, timeout=wait_s)
            return [_known(each) for each in taken]

    @takes_synonyms
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

        Without an answer in time, or after a failure, the reply has no blocks, an empty ``text`` and a ``reason``. If
        only some blocks are missing, ``partial`` is true and ``missing`` holds a reason for each. With
        ``GRAPHWEFT_CONTEXT=off`` the call returns at once with the reason ``disabled``.

        The call returns before the budget ends: it gives up 2 % early, at least 2 ms and at most 5 ms. Budgets above
        ten minutes count as ten minutes. ``context`` holds JSON values. Encoding it is part of the budget but cannot
        be interrupted: seven megabytes of small values take a few tenths of a second. What JSON cannot represent is
        sent as null (NaN), with ``?`` (half a character) or as the name of its type, and a warning names it once.

        ``max_tokens`` limits the text. ``after`` is a position that ``emit`` returned: the reply reflects that event,
        or ``stale_by`` says that the budget ended first. None does not wait. ``explain`` adds to each block how it was
        made. With ``search`` the responder runs only that search and no rules; see the method ``search``.
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
        return await self._request(fields, budget_ms, self._clock.monotonic())

    @takes_synonyms
    @contextlib.asynccontextmanager
    async def turn(
        self,
        *,
        agent: str,
        chat: str,
        user: str | None = None,
        message: str | None = None,
        app: str | None = None,
        workflow: str | None = None,
        context: Mapping[str, Any] | None = None,
        budget_ms: int | None = None,
        max_tokens: int | None = None,
    ) -> AsyncGenerator[Turn]:
        """Run a block as one turn of ``agent``: with its context, and events of its start, its tools and its end.

        The block gets a ``Turn``. Its ``context`` reflects, if it arrives within ``budget_ms``, the turns before it
        that this client ran in the chat or for the user. If the block raises, the turn has failed, and the error passes
        through. The events are sent in the background; nothing else raises.

        ``message`` is what the user says. Then rules find it as ``$context.messages``, and it is remembered with the
        answer, for the user and the chat. ``context`` holds further context variables. ``workflow`` selects the rules,
        by default the client's or else those of ``default``.
        """
        turn = self.turns.turn(
            agent, chat, app=self._app_of(app), user=user, workflow=workflow or self._workflow, message=message,
            context=context,
        )  # fmt: skip
        await turn.start(_at_once, budget_ms=self._budget_ms if budget_ms is None else budget_ms, max_tokens=max_tokens)
        try:
            yield turn
        except BaseException as error:
            turn.fail(error)
            raise
        turn.end()

    @property
    def turns(self) -> Turns:
        """The turns of this client; their ``stats`` count events and requests."""
        if self._turns is None:
            from graphweft.turns import Turns

            self._turns = Turns(
                self, self._positions, capture=self._capture_on, clock=self._clock, timing=self._timing.adapters
            )
        return self._turns

    @takes_synonyms
    async def search(
        self,
        query: str | Iterable[Any],
        *,
        memory: MemoryScope | None = None,
        of: Searched = "all",
        index_type: IndexType | None = None,
        without_embedder: WithoutEmbedder | None = None,
        fill: Fill | None = None,
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
        **filters: Unpack[MemoryFilters],
    ) -> ContextReply:
        """Search the memories of a scope, or an index of the graph, within ``budget_ms`` milliseconds.

        ``query`` is a text or messages: maps or objects with ``role``, and ``text`` or ``content``. From messages, the
        texts of the last ``message_history_count`` user and assistant messages are joined. Pass either ``memory`` or
        ``index_name``:

        - ``memory`` is a scope. Its memories, facts, preferences and summaries are searched together. ``of`` narrows
          the search to one kind (``memories``, currently valid ``facts``, ``preferences``, ``summaries``), or to the
          entities or the episodes of ``episode.add``. Without ``index_type`` the search is by words, and also by vector
          if the responder has an embedder; only memories have vectors. An empty query returns the latest rows, with
          None as score. If the responder has no embedder, ``without_embedder="latest"`` returns the latest memories
          for any query, alternating with the word matches of the other kinds, all without a score. With
          ``fill="latest"`` the latest rows of the scope come behind those that fit the query, up to ``top_k``.
        - ``index_name`` is an index of the graph.

        Filters of a scope apply before ``top_k``: ``tags`` (all of them), ``metadata`` (all entries), ``ids``,
        ``since`` and ``until`` (when it was said; the second excluded), ``as_of`` (search as at that time),
        ``min_score`` (0 to 1, of the default ranking) and ``any_of`` (further scopes beside ``memory``). With
        ``include_ended`` also what has ended is found.

        ``retrieval_query`` is Cypher that continues from ``node`` and ``score``, with ``params``. It returns at least
        ``text`` and ``score``, best first. It runs once for each kind, and the rows are merged by score.

        The reply has the rows in ``results``, each with its ``kind``, and the lines for the agent in ``text``. The
        other arguments and fields are as in ``context``. Raises ``ValueError`` for a search that can never work, such
        as a hybrid search without ``fulltext_index_name``. Never raises for failures of the bus, the graph or a model.
        """
        from graphweft.searching import make_query, text_of

        started = self._clock.monotonic()
        known = make_query(
            memory=memory,
            of=of,
            index_type=index_type,
            without_embedder=without_embedder,
            fill=fill,
            index_name=index_name,
            fulltext_index_name=fulltext_index_name,
            top_k=top_k,
            retrieval_query=retrieval_query,
            filter_stop_words=filter_stop_words,
            message_history_count=message_history_count,
            **filters,
        )
        try:
            text = text_of(query, message_history_count)
        except Exception as error:  # noqa: BLE001 - user code of a message object; the turn continues
            detail = f"query: expected a text or a list of messages; reading it failed with {type(error).__name__}"
            return self._empty(uuid4().hex, "invalid_request", detail)
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
        return await self._request(fields, budget_ms, started)

    async def _request(self, fields: Mapping[str, Any], budget_ms: int | None, started: float) -> ContextReply:
        """Send a request with these fields; the budget began at ``started``."""
        with tracing.asking(fields, self._app_of(fields["app_id"])) as span:
            reply = await self._sent(fields, budget_ms, started)
            span.replied(reply)
            return reply

    async def _sent(self, fields: Mapping[str, Any], budget_ms: int | None, started: float) -> ContextReply:
        budget = self._milliseconds(self._budget_ms if budget_ms is None else budget_ms)
        request_id = uuid4().hex
        if self._closed:
            from graphweft.transport import CLOSED

            return self._empty(request_id, "bus_unavailable", CLOSED)
        if self._is_of_another_loop():
            return self._empty(request_id, "internal_error", _ONE_LOOP)
        if not self._context_on:
            from graphweft.settings import CONTEXT_VARIABLE

            return self._empty(request_id, "disabled", f"{CONTEXT_VARIABLE} is off in this process")
        if budget is None:
            return self._empty(request_id, "invalid_request", self._budget_form)
        try:
            spent_ms = (self._clock.monotonic() - started) * 1000
            own: dict[str, Any] = {
                "id": request_id,
                "app_id": self._app_of(fields["app_id"]) or "",
                "workflow": fields["workflow"] or self._workflow or (_SEARCH if fields["search"] else ""),
                "deadline_ms": int(self._clock.now().timestamp() * 1000 - spent_ms) + budget,
            }
            if (trace := tracing.current_trace()) is not None:
                own |= trace._asdict()
            request = self._request_of({**fields, **own})
            async with time_limit(max(0.0, budget - self._timing.reserve_ms(budget) - spent_ms) / 1000):
                reply = await self._asked(request)
        except Exception as error:  # noqa: BLE001 - the agent continues whatever happens here
            reply = self._failed(request_id, error, budget_ms=budget, is_search=fields["search"] is not None)
        elapsed_ms = (self._clock.monotonic() - started) * 1000
        if reply.reason is not None:
            logger.debug("no context for %s: %s (%s)", fields["agent"], reply.reason, reply.detail)
        return reply.model_copy(update={"elapsed_ms": round(elapsed_ms, 3)})

    async def _asked(self, request: ContextRequest) -> ContextReply:
        """Return the reply to a request, without values in its context that JSON cannot represent."""
        transport = self._connected().transport
        outcome: ContextReply | Exception
        try:
            outcome = await transport.request(request)
        except Exception as error:  # noqa: BLE001 - it is raised again
            outcome = error
        if self._is_unwritable(outcome) and (repaired := self._repaired(request)) is not None:
            return await transport.request(repaired)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _repaired(self, request: ContextRequest) -> ContextRequest | None:
        """Return the request with a context that JSON can represent; None if it has one. Logs the names once."""
        found = None if request.search is not None else self._json_context(request.context)
        if found is None:
            return None
        if not self._has_repaired:
            self._has_repaired = True
            logger.warning(
                "context variables are not JSON and are sent as null or as the name of their type: %s; pass only "
                "texts, numbers, lists and maps",
                ", ".join(found.names),
            )
        return request.model_copy(update={"context": found.values})

    async def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all events that are buffered now are on the bus; return False if that takes longer than
        ``timeout_s``. Events that are emitted meanwhile are not waited for.
        """
        return True if self._closed else await self._connected().flush(timeout_s)

    async def aclose(self, drain_s: float = 2.0) -> None:
        """Send buffered events for at most ``drain_s`` seconds, and close. A second call does nothing."""
        if self._closed:
            return
        with self._lock:
            self._renew_after_fork()
        if any(loop.is_closed() and each.outbox.count for loop, each in self._connections.items()):
            self._connected()  # takes them over
        self._closed = True
        here = self._connections.pop(asyncio.get_running_loop(), None)
        others = [
            asyncio.wrap_future(asyncio.run_coroutine_threadsafe(each.aclose(drain_s), loop))
            for loop, each in self._connections.items()
            if loop.is_running()
        ]
        try:
            if here is not None:
                await here.aclose(drain_s)
        finally:
            if others:
                await asyncio.wait(others, timeout=drain_s)
            if self._unused is not None:
                await self._unused.aclose()

    def _connected(self) -> LoopConnection:
        """Return what the client has for the running event loop, made at the first call in it.

        A loop that has ended leaves its unsent events to the next one. After a fork nothing is left: the parent sends
        its own events.
        """
        loop = asyncio.get_running_loop()
        found = self._connections.get(loop)
        if found is not None and self._process == os.getpid():
            return found
        with self._lock:
            self._renew_after_fork()
            found = self._connections.get(loop)
            if found is None:
                transport, self._unused = self._unused or self._make_transport(), None
                found = LoopConnection(
                    transport, limits=self._limits, stats=self.stats, refusals=self._refusals,
                    closes_with_loop=self._is_own, clock=self._clock, timing=self._timing,
                )  # fmt: skip
                for ended in [each for each in self._connections if each.is_closed()]:
                    found.take_over(self._connections.pop(ended))
                self._connections[loop] = found
        return found

    def _renew_after_fork(self) -> None:
        """Leave what the parent has to the parent: closing it here would touch the sockets that both share."""
        if self._process != os.getpid():
            _OF_PARENT.append(self._connections)
            self._connections, self._process = {}, os.getpid()
            self.stats = ClientStats()

    def _app_of(self, app: str | None) -> str | None:
        """Return the app of a call. An empty one is unknown, and never the default: that is another tenant."""
        return self._app_id if app is None else app

    def _is_of_another_loop(self) -> bool:
        """Return whether the caller gave the transport and another event loop uses it, so that this one must not."""
        return not self._is_own and self._unused is None and asyncio.get_running_loop() not in self._connections

    def _accept(self, events: Sequence[Event | EncodedEvent]) -> list[PendingEvent | InvalidEvent | BusUnavailable]:
        """Put the events into the outbox, all or none; return them, or an error for one that is not taken."""
        if self._closed or self._is_of_another_loop():
            from graphweft.transport import CLOSED

            why = CLOSED if self._closed else _ONE_LOOP
            self.stats.rejected += len(events)
            for event in events:
                self._refusals.note(getattr(event, "id", None), why)
            return [BusUnavailable(why)] * len(events)
        taken = [self._taken(event) for event in events]
        fresh = [each for each in taken if isinstance(each, PendingEvent)]
        if self._connected().add(fresh):
            return [*taken]
        full = (
            f"the buffer of {self._limits.buffer} events or {self._limits.buffer_bytes} bytes is full: send it again "
            "when the bus takes events"
        )
        return [each if isinstance(each, InvalidEvent) else BusUnavailable(full) for each in taken]

    def _positions(self, events: Sequence[Event]) -> list[asyncio.Future[str | None] | None]:
        """Put the events into the outbox; return their positions, None for one that is refused."""
        return [each.position if isinstance(each, PendingEvent) else None for each in self._accept(events)]

    def _taken(self, given: Event | EncodedEvent) -> PendingEvent | InvalidEvent:
        """Return the encoded event, or an error, which is counted, if it is invalid or not JSON."""
        event = given.event if isinstance(given, EncodedEvent) else given
        try:
            outgoing = given.outgoing if isinstance(given, EncodedEvent) else self._encode(event)
            size = len(outgoing.key) + sum(map(len, outgoing.fields.values()))
            return PendingEvent(event_id=event.id, outgoing=outgoing, size=size)
        except InvalidEvent as error:
            self.stats.rejected += 1
            self._refusals.note(event.id, error)
            return error
        except Exception as error:  # noqa: BLE001 - encoding may run user code; the turn continues
            self.stats.rejected += 1
            if (fault := self._no_event(event)) is not None:
                self._refusals.note("without an id", fault)
                return InvalidEvent(fault)
            self._refusals.note(getattr(event, "id", None), f"it cannot be encoded as JSON: {error}")
            return InvalidEvent("the event cannot be encoded as JSON")


def _is_held(pending: PendingEvent) -> bool:
    return pending.queue is not None and pending.queue.held


def _known(taken: PendingEvent | InvalidEvent | BusUnavailable) -> Outcome | None:
    """Return what is known of an event by now; None for one that waits."""
    if not isinstance(taken, PendingEvent):
        return taken
    return (taken.position.result() if taken.position.done() else None) or taken.refusal


def _at_once(work: Callable[[], None]) -> None:
    work()


def _bucket(name: str, per_s: float | None, clock: Clock) -> TokenBucket | None:
    if per_s is None:
        return None
    if not per_s > 0:
        raise InvalidSettings(f"invalid {name} {per_s!r}: expected a number above 0, or None for no limit")
    return TokenBucket(per_s, clock.monotonic())
