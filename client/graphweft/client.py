"""The asynchronous client: publish events and request context without disturbing the runtime."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from graphweft.outbox import EncodedEvent, Outbox, PartitionQueue, Pending
from graphweft.time_limit import time_limit
from graphweft.timing import CLIENT_TIMING, ClientTiming
from graphweft.token_bucket import TokenBucket
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.errors import BusUnavailable, InvalidEvent, InvalidSettings, PartitionRefused
from graphweft_contracts.plurals import counted

if TYPE_CHECKING:
    # The models take most of the time of an import. The class does not need them, only a client does.
    from typing_extensions import Self

    from graphweft.transport import Outcome, PartitionedTransport, Transport
    from graphweft.turns import Turn, Turns
    from graphweft_contracts.context import ContextReply
    from graphweft_contracts.events import Event
    from graphweft_contracts.memory import MemoryScope
    from graphweft_contracts.search import IndexType, Searched, SearchQuery, WithoutEmbedder

logger = logging.getLogger("graphweft.client")

_BATCH: Final = 500
"""Events per round trip. A larger batch gains nothing and delays the confirmation of its first event."""
_LOG_EVERY: Final = 1_000
"""Of the events that one partition refuses, every so many are logged."""
_SEARCH: Final = "search"
"""Agent, chat and workflow of a search outside of a turn."""


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


class Client:
    """Publishes events and requests context. Its calls never raise into an agent's turn.

    Use it as an asynchronous context manager, or call ``aclose`` at the end. One client belongs to one event loop;
    synchronous callers use ``SyncClient``. ``bus_url`` is the URL of the bus. Without it the client reads
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

    def __init__(
        self,
        bus_url: str | None = None,
        *,
        app_id: str | None = None,
        workflow: str | None = None,
        buffer: int = 10_000,
        buffer_bytes: int = 64 * 1024**2,
        budget_ms: int = 500,
        signing_key: str | None = None,
        max_events_per_s: float | None = None,
        max_bytes_per_s: float | None = None,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
        timing: ClientTiming = CLIENT_TIMING,
    ) -> None:
        from graphweft import client_messages
        from graphweft.settings import ClientSettings
        from graphweft.transport import PartitionedTransport
        from graphweft.transports.registry import make_transport
        from graphweft_contracts.signatures import SigningKey

        self._encode = client_messages.encoded
        self._request_of = client_messages.request_of
        self._empty = client_messages.empty_reply
        self._failed = client_messages.failed_reply
        self._milliseconds = client_messages.milliseconds
        settings = ClientSettings.from_environment()
        if transport is None and not bus_url:
            transport = settings.gateway()
        if transport is None:
            key = signing_key or settings.signing_key
            transport = make_transport(
                bus_url or settings.bus_url, signing_key=None if key is None else SigningKey.parse(key)
            )
        elif signing_key is not None:
            raise InvalidSettings("signing_key has no effect with a transport: give it to the transport")
        self._transport = transport
        self._partitioned: PartitionedTransport | None = (
            transport if isinstance(transport, PartitionedTransport) else None
        )
        self._clock = clock
        self._timing = timing
        self._context_on = settings.context
        self._capture_on = settings.capture
        self._turns: Turns | None = None
        self._app_id = app_id
        self._workflow = workflow
        self._budget_ms = budget_ms
        self._events_left = _bucket("max_events_per_s", max_events_per_s, clock)
        self._bytes_left = _bucket("max_bytes_per_s", max_bytes_per_s, clock)
        self._pacing = False
        """Whether events in the buffer wait, or waited, because of a rate."""
        self._outbox = Outbox(buffer, buffer_bytes)
        self._arrived = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._sender: asyncio.Task[None] | None = None
        self._holding: set[asyncio.Task[None]] = set()
        """The tasks that send queues that are held."""
        self._bus_unavailable = False
        self._closed = False
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
        return self._outbox.refusals

    @property
    def budget_ms(self) -> int:
        """The default budget."""
        return self._budget_ms

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

    async def emit_each(
        self, events: Sequence[Event | EncodedEvent], *, wait_s: float = 1.0
    ) -> list[str | InvalidEvent | PartitionRefused | None]:
        """Do the same as ``emit_all``, and return an error in place of None for each event that is refused for good.

        Events that are encoded already (``client_messages.encoded_event``) take no time of the event loop for it.
        """
        taken = self._accept(events)
        if not (self._bus_unavailable or self._pacing):
            waiting = [each.position for each in taken if isinstance(each, Pending) and not _is_held(each)]
            if waiting:
                await asyncio.wait(waiting, timeout=wait_s)
        return [_known(each) for each in taken]

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
        be interrupted: seven megabytes of small values take a few tenths of a second.

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
            agent, chat, app=app or self._app_id, user=user, workflow=workflow or self._workflow, message=message,
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
        """Search the memories of a scope, or an index of the graph, within ``budget_ms`` milliseconds.

        ``query`` is a text or messages: maps or objects with ``role``, and ``text`` or ``content``. From messages, the
        texts of the last ``message_history_count`` user and assistant messages are joined. Pass either ``memory`` or
        ``index_name``:

        - ``memory`` is a scope. Its memories, facts, preferences and summaries are searched together. ``of`` narrows
          the search to one kind (``memories``, currently valid ``facts``, ``preferences``, ``summaries``), or to the
          entities or the episodes of ``episode.add``. Without ``index_type`` the search is by words, and also by vector
          if the responder has an embedder; only memories have vectors. An empty query returns the latest rows, with
          None as score. If the responder has no embedder, ``without_embedder="latest"`` returns the latest memories
          for any query, alternating with the word matches of the other kinds, all without a score.
        - ``index_name`` is an index of the graph.

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
            index_name=index_name,
            fulltext_index_name=fulltext_index_name,
            top_k=top_k,
            retrieval_query=retrieval_query,
            filter_stop_words=filter_stop_words,
            message_history_count=message_history_count,
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
        budget = self._milliseconds(self._budget_ms if budget_ms is None else budget_ms)
        request_id = uuid4().hex
        if self._closed:
            from graphweft.transport import CLOSED

            return self._empty(request_id, "bus_unavailable", CLOSED)
        if not self._context_on:
            from graphweft.settings import CONTEXT_VARIABLE

            return self._empty(request_id, "disabled", f"{CONTEXT_VARIABLE} is off in this process")
        if budget is None:
            return self._empty(request_id, "invalid_request", "budget_ms: expected a number of milliseconds")
        try:
            spent_ms = (self._clock.monotonic() - started) * 1000
            own: dict[str, Any] = {
                "id": request_id,
                "app_id": fields["app_id"] or self._app_id or "",
                "workflow": fields["workflow"] or self._workflow or (_SEARCH if fields["search"] else ""),
                "deadline_ms": int(self._clock.now().timestamp() * 1000 - spent_ms) + budget,
            }
            request = self._request_of({**fields, **own})
            async with time_limit(max(0.0, budget - self._timing.reserve_ms(budget) - spent_ms) / 1000):
                reply = await self._transport.request(request)
        except Exception as error:  # noqa: BLE001 - the agent continues whatever happens here
            reply = self._failed(request_id, error, budget_ms=budget, is_search=fields["search"] is not None)
        elapsed_ms = (self._clock.monotonic() - started) * 1000
        if reply.reason is not None:
            logger.debug("no context for %s: %s (%s)", fields["agent"], reply.reason, reply.detail)
        return reply.model_copy(update={"elapsed_ms": round(elapsed_ms, 3)})

    async def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all buffered events are on the bus; return False if that takes longer than ``timeout_s``."""
        with contextlib.suppress(TimeoutError):
            async with time_limit(timeout_s):
                await self._drained.wait()
        return self._drained.is_set()

    async def aclose(self, drain_s: float = 2.0) -> None:
        """Send buffered events for at most ``drain_s`` seconds, and close. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            await self.flush(drain_s)
        finally:  # also if the caller is cancelled while it waits
            tasks = [*self._holding, *([] if self._sender is None else [self._sender])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._drop_pending()
            await self._transport.aclose()

    async def _send(self) -> None:
        """Send the events of all queues that are not held."""
        retry_s = self._timing.first_retry_s
        most = _BATCH
        while True:
            await self._arrived.wait()
            await self._pace()
            batch: Sequence[Pending] = ()
            try:
                if self._partitioned is not None:
                    self._outbox.use(await self._partitioned.layout())
                batch = self._within_rates(self._outbox.first(most))
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

    async def _deliver(self, batch: Sequence[Pending]) -> set[PartitionQueue]:
        """Append events, and settle those that the bus has or refuses; return the queues that are held by now.

        Raises what concerns all partitions, after the events with a known outcome are settled.
        """
        held: set[PartitionQueue] = set()
        alone: list[Pending] = []
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

    async def _append(self, batch: Sequence[Pending]) -> Sequence[Outcome]:
        """Append events, and return the outcome of each. Raises what concerns all partitions."""
        events = [pending.outgoing for pending in batch]
        try:
            if self._partitioned is not None:
                outcomes: Sequence[Outcome] = await self._partitioned.append_each(events)
            else:
                outcomes = await self._transport.append(events)
        except (InvalidEvent, PartitionRefused) as error:
            if len(batch) > 1:  # of a transport that does not say which
                return [InvalidEvent(str(error))] * len(batch)
            outcomes = [error]
        if self._bus_unavailable:
            logger.warning("the bus is available again, %d events were buffered", self._outbox.count)
        self._bus_unavailable = False
        return outcomes

    def _note_outage(self, error: Exception) -> None:
        if not self._bus_unavailable:
            logger.warning("the bus is unavailable, events are buffered: %s; `graphweft doctor` checks it", error)
        self._bus_unavailable = True
        self.stats.retries += 1

    def _hold(self, queue: PartitionQueue, error: BusUnavailable) -> None:
        """Let the events of a queue wait, and send them apart from the others."""
        self.stats.retries += 1
        if queue.held:
            return
        queue.held = True
        logger.warning("partition %d of the bus is unavailable, its events are buffered: %s", queue.partition, error)
        task = asyncio.create_task(self._send_held(queue), name="graphweft-emit-held")
        self._holding.add(task)
        task.add_done_callback(self._holding.discard)
        self._wake()

    def _wake(self) -> None:
        """Let the sender run exactly while it has something to send."""
        if self._outbox.ready:
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
            if not waited and not self.stats.paced:
                logger.warning("more events than max_events_per_s or max_bytes_per_s allow: they wait in the buffer")
            self.stats.paced += not waited
            self._pacing = waited = True
            await self._clock.sleep(wait_s)

    def _within_rates(self, batch: list[Pending]) -> list[Pending]:
        """Return the first events of a batch that the rates allow now, at least one."""
        if self._events_left is not None:
            batch = batch[: max(1, int(self._events_left.left))]
        if self._bytes_left is not None and batch:
            left, count = self._bytes_left.left - batch[0].size, 1
            while count < len(batch) and left >= batch[count].size:
                left -= batch[count].size
                count += 1
            batch = batch[:count]
        return batch

    def _rates(self) -> Iterable[TokenBucket]:
        return (bucket for bucket in (self._events_left, self._bytes_left) if bucket is not None)

    def _accept(self, events: Sequence[Event | EncodedEvent]) -> list[Pending | InvalidEvent | None]:
        """Put the events into the outbox, all or none; return them, or an error or None for one that is refused."""
        if self._closed:
            self.stats.rejected += len(events)
            for event in events:
                logger.warning("event %s is not sent: the client is closed", getattr(event, "id", None))
            return [None] * len(events)
        taken = [self._taken(event) for event in events]
        fresh = [each for each in taken if isinstance(each, Pending)]
        if not self._outbox.add(fresh, sharing=not self._bus_unavailable):
            self._drop(len(fresh))
            return [None] * len(events)
        if fresh:
            self.stats.buffered = self._outbox.count
            self._drained.clear()
            self._wake()
            if self._sender is None or self._sender.done():
                self._sender = asyncio.create_task(self._send(), name="graphweft-emit")
        return [*taken]

    def _positions(self, events: Sequence[Event]) -> list[asyncio.Future[str | None] | None]:
        """Put the events into the outbox; return their positions, None for one that is refused."""
        return [each.position if isinstance(each, Pending) else None for each in self._accept(events)]

    def _taken(self, given: Event | EncodedEvent) -> Pending | InvalidEvent:
        """Return the encoded event, or an error, which is counted, if it is invalid or not JSON."""
        event = given.event if isinstance(given, EncodedEvent) else given
        try:
            outgoing = given.outgoing if isinstance(given, EncodedEvent) else self._encode(event)
            size = len(outgoing.key) + sum(map(len, outgoing.fields.values()))
            return Pending(event_id=event.id, outgoing=outgoing, size=size)
        except InvalidEvent as error:
            self.stats.rejected += 1
            logger.error("event %s is not sent: %s", event.id, error)
            return error
        except Exception as error:  # noqa: BLE001 - encoding may run user code; the turn continues
            self.stats.rejected += 1
            logger.error("event %s cannot be encoded as JSON and is not sent: %s", getattr(event, "id", None), error)
            return InvalidEvent("the event cannot be encoded as JSON")

    def _drop(self, events: int) -> None:
        before = self.stats.dropped
        self.stats.dropped += events
        if before == 0 or before // 1000 != self.stats.dropped // 1000:
            logger.error(
                "the buffer of %d events or %d bytes is full: %d dropped so far",
                self._outbox.limit, self._outbox.limit_bytes, self.stats.dropped,
            )  # fmt: skip

    def _settle(self, pending: Pending, outcome: Outcome) -> None:
        """Remove an event from the outbox with its position, or with the error for which the bus refuses it."""
        queue = pending.queue
        if isinstance(outcome, str):
            self.stats.sent += 1
            if self._events_left is not None:
                self._events_left.take(1)
            if self._bytes_left is not None:
                self._bytes_left.take(pending.size)
            if queue is not None:
                queue.refused = 0
                queue.refusal = ""
        elif not isinstance(outcome, BusUnavailable):
            self.stats.rejected += 1
            pending.refusal = outcome
            if isinstance(outcome, InvalidEvent) or queue is None:
                logger.error("event %s is not sent: %s", pending.event_id, outcome)
            else:
                if queue.refused % _LOG_EVERY == 0:
                    before = f", nor {queue.refused} before it" if queue.refused else ""
                    logger.error("event %s is not sent%s: %s", pending.event_id, before, outcome)
                queue.refused += 1
                queue.refusal = str(outcome)
        self._outbox.settle(pending, outcome if isinstance(outcome, str) else None)
        self.stats.buffered = self._outbox.count
        self._wake()
        if not self._outbox.count:
            self._pacing = False
            self._drained.set()

    def _drop_pending(self) -> None:
        if not self._outbox.count:
            return
        logger.error("closed with %s not sent: the bus did not accept them", counted(self._outbox.count, "event"))
        self.stats.dropped += self._outbox.count
        self.stats.buffered = 0
        for pending in self._outbox.pending():
            self._outbox.settle(pending, None)


def _is_held(pending: Pending) -> bool:
    return pending.queue is not None and pending.queue.held


def _known(taken: Pending | InvalidEvent | None) -> str | InvalidEvent | PartitionRefused | None:
    """Return what is known of an event by now; None for one that waits, or was dropped."""
    if not isinstance(taken, Pending):
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
