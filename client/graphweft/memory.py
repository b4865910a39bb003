"""Memories of an agent: remember messages within a scope, recall, list, update and forget them.

Remembering and erasing publish events. The chat of an event is the first of ``thread_id``, ``user_id``, ``agent_id``
and ``application_id`` that the scope has; events of one chat keep their order. Erasing uses the chat of the user.

A call that writes returns when the bus has its events. If they are refused for good, it raises the reason, an
``InvalidEvent`` or a ``PartitionRefused``; if the buffer is full or the client is closed, ``BusUnavailable``. An
event that waits for the bus is the position None of ``remember``, ``update`` and ``pin``. ``forget`` and ``erase_user``
raise ``BusUnavailable`` for it: nobody should take it for done.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, TypeVar
from uuid import uuid4

from pydantic import ValidationError
from typing_extensions import Unpack

from graphweft import tracing
from graphweft.chat_formats import without_reasoning
from graphweft.chat_formats.messages import ROLES
from graphweft.chat_formats.parts import read_content
from graphweft.client import Client
from graphweft.searching import faults, make_scope
from graphweft.sync import SyncClient
from graphweft.transport import Outcome
from graphweft_contracts import (
    BusUnavailable,
    ContextReply,
    Event,
    InvalidEvent,
    MemoryErase,
    MemoryMessage,
    MemoryScope,
    MemoryUpdate,
    PartitionRefused,
    Permanent,
    Transient,
)
from graphweft_contracts.argument_names import takes_synonyms
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.memory import MEMORY_ROLES, SCOPES, check_end, derived_id, meant_field, unknown_field
from graphweft_contracts.plurals import counted
from graphweft_contracts.search import (
    Fill,
    IndexType,
    MemoryFilters,
    MemorySelection,
    Searched,
    WithoutEmbedder,
    query_text,
)

_C = TypeVar("_C", bound=Client | SyncClient)
_P = ParamSpec("_P")
_T = TypeVar("_T")

__all__ = (
    "SOURCE", "ForgottenMemory", "MemoryClient", "SyncMemoryClient", "UnknownMemory", "add_event", "chat_of",
    "erase_event", "update_event",
)  # fmt: skip

logger = logging.getLogger("graphweft.memory")

SOURCE: Final = "/graphweft/memory"
"""The default ``source`` of the events."""
_FIELDS: Final = ("time", "message_id", "author_name")
_LABELS: Final = ("tags", "metadata", "expires_at")
"""Read from maps only: objects of runtimes have attributes of these names for other things."""
_ACCEPTED: Final = frozenset({"role", "text", "content", *_FIELDS, *_LABELS})
"""The fields of a message that is a map."""
_CHAT_ORDER: Final = tuple(reversed(SCOPES))
_LISTING_MS: Final = 2_000
"""The smallest budget of a list or a look-up, unless the call gives one: no turn waits for it."""
_PAGE: Final = 1_000
"""Memories that are looked up at once; the limit of an event and of a search."""
_FORGETTING: Final = tuple(name for name in MemorySelection.model_fields if name != "ids")
"""The filters of what is to be forgotten."""
_FORGETTABLE: Final = frozenset({"memory", "statement"})
_REMEMBERED: Final = "the messages are not remembered"
_CHANGED: Final = "the memory is not changed"
_ERASED: Final = "the memories of the user are not erased"
_WHETHER_ERASED: Final = "the memories of the user are erased"
_REFUSALS: Final = frozenset({"disabled", "invalid_request"})
"""Reasons why the same listing has no answer later either."""
_Rows = list[dict[str, Any]]


class UnknownMemory(ValueError):
    """The scope has no memory with the id that is to be changed."""


class ForgottenMemory(ValueError):
    """Of the memory that is to be changed, only a statement is left."""


class _Refused(ValueError):
    """A message has a field that memory does not keep, or an end that is none: it would be remembered for too long."""


class _Memories(Generic[_C]):
    """The part that both kinds of client share: scopes, and the events and searches within them."""

    @takes_synonyms
    def __init__(
        self,
        client: _C,
        *,
        app_id: str | None = None,
        application_id: str | None = None,
        agent_id: str | None = None,
        user_id: str | None = None,
        thread_id: str | None = None,
        scope_to_per_operation_thread_id: bool = False,
        memory_roles: Sequence[str] = ("user", "assistant"),
        message_history_count: int = 10,
        read_own_writes: bool = True,
        keep_reasoning: bool = False,
        source: str = SOURCE,
    ) -> None:
        app_id = app_id if app_id is not None else client.app_id
        if app_id is None:
            raise ValueError("app_id is required: pass it here, or to the client")
        if isinstance(memory_roles, str) or not memory_roles or not set(memory_roles) <= set(MEMORY_ROLES):
            raise ValueError(f"memory_roles must be one or more of {', '.join(MEMORY_ROLES)}")
        self._client = client
        self._per_operation = scope_to_per_operation_thread_id
        self._scopes = {"application_id": application_id, "agent_id": agent_id, "user_id": user_id}
        self._thread_id = None if scope_to_per_operation_thread_id else thread_id
        # Fail now for invalid scopes, even if the thread id is not known yet.
        make_scope(**self._scopes, thread_id="any" if self._per_operation else thread_id)
        query_text((), message_history_count)
        self._app_id = app_id
        self._roles = frozenset(memory_roles)
        self._message_history_count = message_history_count
        self._read_own_writes = read_own_writes
        self._keep_reasoning = keep_reasoning
        self._left_out: set[str] = set()
        self._source = source
        self._position: str | None = None
        self._lock = threading.Lock()
        erase_event(app_id, "any", source=source)  # fail now for an invalid app_id or source

    @property
    def scope(self) -> MemoryScope:
        """The scope of these memories. Raises ``ValueError`` while its thread id is not known."""
        if self._per_operation and self._thread_id is None:
            raise ValueError("scope_to_per_operation_thread_id requires a thread id: call thread_created first")
        return make_scope(**self._scopes, thread_id=self._thread_id)

    @property
    def position(self) -> str | None:
        """The position of the last event that this object has sent, for the ``after`` of other requests."""
        return self._position

    def thread_created(self, thread_id: str | None) -> None:
        """Set the thread id of this operation. Ignored without ``scope_to_per_operation_thread_id``, and for None.

        Raises ``ValueError`` for a second, different id, so that messages of one thread are not remembered in another:
        use one memory client for each thread.
        """
        if not self._per_operation or thread_id is None:
            return
        make_scope(thread_id=thread_id)
        with self._lock:
            if self._thread_id not in {None, thread_id}:
                raise ValueError(
                    "the thread id is set already: with scope_to_per_operation_thread_id these memories belong to one "
                    "thread; make one memory client for each thread"
                )
            self._thread_id = thread_id

    def _remembered(
        self,
        messages: Iterable[Any],
        time: datetime | None,
        tags: Sequence[str],
        metadata: Mapping[str, Any] | None,
        expires_at: datetime | str | None,
    ) -> Event | None:
        """Return the event, or None if no message qualifies or the messages cannot be read."""
        scope = self.scope
        labels = _labels(tags, metadata, expires_at)
        said = time or SYSTEM_CLOCK.now()
        if isinstance(messages, str | bytes | Mapping):
            raise ValueError("messages must be a list of messages, each with role and text")
        try:
            return add_event(
                self._app_id,
                scope,
                [
                    _labelled(found, labels, said)
                    for message in messages
                    if (found := self._message(message)) is not None
                ],
                source=self._source,
                time=time,
            )
        except _Refused:
            raise
        except ValueError as error:  # without their texts; the turn continues
            logger.error("messages are not remembered: %s", error)
        except Exception:  # user code of a message object
            logger.exception("messages cannot be read, so they are not remembered")
        return None

    def _message(self, message: Any) -> MemoryMessage | None:
        """Return the message to remember, or None for another role or without text."""
        _refuse_misspelt(message)
        role = _role(_of(message, "role"))
        content = read_content(_of(message, "text") or _of(message, "content"))
        if role not in self._roles:
            if _of(message, "role") is None and "role" not in self._left_out:
                self._left_out.add("role")
                logger.warning("a message without a role is not remembered: write its role, such as user or assistant")
            return None
        for form in sorted(set(content.unread) - self._left_out):
            self._left_out.add(form)
            logger.warning("parts of messages of the form %s are not remembered: only text is", form)
        text = content.text or ""
        if role == "assistant" and not self._keep_reasoning:
            text = without_reasoning(text)
        return _checked(message, role, text) if text.strip() else None

    def _erased(self, user_id: str | None, before: datetime | None) -> Event:
        user = self._scopes["user_id"] if user_id is None else user_id
        if user is None:
            raise ValueError("user_id is required: name the user whose memories to erase")
        return erase_event(self._app_id, user, before=before, source=self._source)

    def _searched(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the client's ``search``. Raises ``ValueError`` while the thread id is not known."""
        return {
            **options,
            "memory": self.scope,
            "message_history_count": self._message_history_count,
            "app_id": self._app_id,
            "after": self._position if self._read_own_writes else None,
        }

    def _written(self, outcomes: Sequence[Outcome | None], fault: str) -> str | None:
        """Return the position of the last event, None while it waits. Raises the error of an event that is not sent."""
        positions = [outcome for outcome in outcomes if isinstance(outcome, str)]
        if positions:
            self._position = positions[-1]
        for kind in (PartitionRefused, InvalidEvent, BusUnavailable):  # what is refused for good comes first
            for outcome in outcomes:
                if isinstance(outcome, kind):
                    raise kind(f"{fault}: {outcome}")
        return None if None in outcomes or not positions else positions[-1]

    def _deleted(self, outcomes: Sequence[Outcome | None], fault: str, question: str) -> str:
        """Do the same, and raise ``BusUnavailable`` for events that wait: they must not look like a success."""
        position = self._written(outcomes, fault)
        if position is None:
            raise BusUnavailable(
                f"it is not known whether {question}: the bus has not confirmed it in time. It is sent as soon as the "
                "bus takes it; call again until it is confirmed"
            )
        return position

    def _forgets(self, outcomes: Sequence[Outcome | None], events: Sequence[Event]) -> None:
        """Raise an error, as ``_deleted`` does, unless the bus has all events that forget memories."""
        sizes = [len(event.data["memory_ids"]) for event in events]
        left = sum(size for size, outcome in zip(sizes, outcomes, strict=True) if not isinstance(outcome, str))
        some = f"{left} of {counted(sum(sizes), 'memory', 'memories')}"
        if left:
            is_one = "is" if left == 1 else "are"
            self._deleted(outcomes, f"{some} {is_one} not forgotten", f"{some} {is_one} forgotten")
        else:
            self._written(outcomes, "")

    def _listed(
        self, limit: int, budget_ms: int | None, of: Searched, filters: MemoryFilters
    ) -> tuple[str, dict[str, Any]]:
        """Return the query and the arguments of the search for the latest records."""
        if filters.get("min_score") is not None:
            raise ValueError("min_score is for `recall` with a query: the latest records have no score")
        budget = max(_LISTING_MS, self._client.budget_ms) if budget_ms is None else budget_ms
        options: dict[str, Any] = {"of": of, "top_k": limit, "budget_ms": budget}
        return "", self._searched({**options, **filters})

    def _updated(self, row: Mapping[str, Any] | None, memory_id: str, changes: Mapping[str, Any]) -> Event:
        """Return the event that changes a memory, in the chat in which it was added."""
        if row is None or not row.get("chat_id"):
            raise UnknownMemory(f"the scope has no memory {memory_id!r}: `list` shows the ids of its memories")
        if row["kind"] != "memory":
            raise ForgottenMemory(f"{memory_id!r} is left of a forgotten memory: forget it, and remember what holds")
        return update_event(
            self._app_id, row["id"], chat_id=row["chat_id"], user_id=self._scopes["user_id"],
            author_name=row["author_name"], changes=changes, source=self._source,
        )  # fmt: skip

    def _forgotten(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Event]:
        """Return the events that forget memories, one for each chat: only there they have an order."""
        chats: dict[str, dict[str, None]] = {}
        for row in rows:  # a statement goes by the memory that it is left of
            chats.setdefault(row["chat_id"], {})[row.get("memory_id") or row["id"]] = None
        return [
            _event("memory.forget", self._app_id, chat_id, None, {"memory_ids": [*ids]}, source=self._source)
            for chat_id, ids in chats.items()
        ]


class MemoryClient(_Memories[Client]):
    """Remembers and recalls messages within one scope, through an asynchronous client.

    The scope is the combination of ``application_id``, ``agent_id``, ``user_id`` and ``thread_id``; at least one is
    required. It limits both what is remembered and what is recalled. With ``scope_to_per_operation_thread_id`` the
    thread is the one that you pass to ``thread_created``, and ``thread_id`` is ignored. ``app_id`` defaults to the
    client's. Only messages with a role in ``memory_roles`` are remembered. ``recall`` searches by the last
    ``message_history_count`` messages. What a model thinks aloud in its answer, as in ``<think>…</think>``, is not
    remembered, unless ``keep_reasoning``. It waits, within its budget, until the graph holds what this object last
    remembered or changed, unless ``read_own_writes`` is false: a reply without it has ``stale_by``. Raises
    ``ValueError`` for settings that cannot work.
    """

    async def remember(
        self,
        messages: Iterable[Any],
        *,
        time: datetime | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        expires_at: datetime | str | None = None,
        wait_s: float = 1.0,
    ) -> str | None:
        """Publish the messages to remember as one event; return its position, or None while it waits for the bus.

        A message is a map or an object with ``role``, ``text`` or ``content`` (a text, or parts of which some have
        text), and optionally ``message_id``, ``author_name``, ``time``, ``tags``, ``metadata`` and ``expires_at``. The
        call's ``time``, by default now, ``tags``, ``metadata`` and ``expires_at`` apply to messages without their own.
        From ``expires_at`` on, which is after its time, a memory is found only by questions about the past, by its id,
        and with ``include_ended``. Messages with another role or
        without text are skipped; if none is left, nothing is sent and the position is None. Parts without text are left
        out; a warning names each form once. If each message has a ``message_id``, remembering the same messages again
        has no effect within the next 10,000 events of the app, and recreates the same memories afterwards. Otherwise it
        creates new ones.

        Raises ``ValueError``, and sends nothing, if ``messages`` is not a list, if a map has a field that memory does
        not keep (None counts as absent), if an ``expires_at`` is no time after that of its message, or while the scope
        has no thread id. Other faults of a message are logged,
        without its text, and None is returned. Raises ``InvalidEvent`` or ``PartitionRefused`` if the event is refused
        for good, and ``BusUnavailable`` if it is not kept either.
        """
        event = self._remembered(messages, time, tags, metadata, expires_at)
        if event is None:
            return None
        with _changing(event):
            return self._written(await self._client.emit_each([event], wait_s=wait_s), _REMEMBERED)

    async def recall(
        self,
        query: str | Iterable[Any] = "",
        *,
        of: Searched = "all",
        top_k: int = 5,
        index_type: IndexType | None = None,
        without_embedder: WithoutEmbedder | None = None,
        fill: Fill | None = None,
        retrieval_query: str | None = None,
        params: Mapping[str, Any] | None = None,
        filter_stop_words: bool = True,
        budget_ms: int | None = None,
        max_tokens: int | None = None,
        explain: bool = False,
        **filters: Unpack[MemoryFilters],
    ) -> ContextReply:
        """Return what the scope holds for ``query``, a text or messages. See ``Client.search`` for the arguments.

        ``of`` selects the kind: by default memories, facts, preferences and summaries together. For a prompt pass
        ``fill="latest"``: a question such as "What do you know about me?" fits no row, and a small scope is then shown
        whole.
        """
        options: dict[str, Any] = {
            "of": of,
            "top_k": top_k,
            "index_type": index_type,
            "without_embedder": without_embedder,
            "fill": fill,
            "retrieval_query": retrieval_query,
            "params": params,
            "filter_stop_words": filter_stop_words,
            "budget_ms": budget_ms,
            "max_tokens": max_tokens,
            "explain": explain,
        }
        return await self._client.search(query, **self._searched({**options, **filters}))

    async def get(self, memory_id: str, *, budget_ms: int | None = None) -> dict[str, Any] | None:
        """Return a record of the scope by its id: a memory, fact, preference or summary; None if there is none.

        Raises ``Transient`` without an answer, and ``Permanent`` if it is refused.
        """
        found = await self.list(limit=1, of="all", budget_ms=budget_ms, ids=[memory_id])
        return found[0] if found else None

    async def list(
        self,
        *,
        limit: int = 100,
        of: Searched = "memories",
        budget_ms: int | None = None,
        **filters: Unpack[MemoryFilters],
    ) -> _Rows:
        """Return the latest records of the scope that pass the filters of ``recall``, at most ``limit``.

        Earlier ones follow with ``until``, the ``timestamp`` of the last row. Raises ``Transient`` without an answer,
        and ``Permanent`` if it is refused.
        """
        query, options = self._listed(limit, budget_ms, of, filters)
        return _rows(await self._client.search(query, **options))

    async def update(
        self,
        memory_id: str,
        *,
        text: str | None = None,
        content: str | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        pinned: bool | None = None,
        expires_at: datetime | str | None = None,
        time: datetime | None = None,
        wait_s: float = 1.0,
    ) -> str | None:
        """Change a memory of the scope: what is not given stays. Return a position, and raise, as ``remember`` does.

        A new ``text`` (or ``content``) holds from ``time`` on, by default now. A search ``as_of`` an earlier time finds
        what the memory said before. A ``pinned`` memory is in each block with the latest rows, and is never summarized
        or forgotten by age or number. From ``expires_at`` on the memory has ended, see ``remember``; "never" takes its
        end back. Raises ``ValueError`` if the scope has no such memory, or nothing changes, and
        the errors of ``get``.
        """
        changes = _changes(text, content, tags=tags, metadata=metadata, pinned=pinned, expires_at=expires_at, time=time)
        event = self._updated(await self.get(memory_id), memory_id, changes)
        with _changing(event):
            return self._written(await self._client.emit_each([event], wait_s=wait_s), _CHANGED)

    async def pin(self, memory_id: str, *, pinned: bool = True, wait_s: float = 1.0) -> str | None:
        """Pin a memory, or with ``pinned=False`` unpin it. See ``update``."""
        return await self.update(memory_id, pinned=pinned, wait_s=wait_s)

    async def forget(
        self, memory_ids: str | Sequence[str] | None = None, *, wait_s: float = 1.0, **filters: Unpack[MemoryFilters]
    ) -> Sequence[str]:
        """Forget memories of the scope, with all that they said before: by ids, by filters of ``recall``, or both.

        An id may also be that of a statement that is left of a forgotten memory: all that are left of it go. Return the
        ids of those that were found, of an empty list of ids none, when the bus has the events that forget them. Facts,
        preferences and summaries from them stay. Raises ``ValueError`` without ids and filters, for an empty filter,
        and for ``any_of``, which is none; the errors of ``list``; and those of ``erase_user``, which say how many of
        the memories are not forgotten.
        """
        of, wanted = _forgetting(memory_ids, filters)
        forgotten: dict[str, None] = {}
        while some := _further(await self.list(limit=_PAGE, of=of, **wanted), forgotten):
            forgotten.update(dict.fromkeys(some))
            events = self._forgotten(await self.list(limit=_PAGE, of=of, ids=some))
            with tracing.changing_memory("delete_memory", self._app_id, len(some)):
                self._forgets(await self._client.emit_each(events, wait_s=wait_s), events)
        return tuple(forgotten)

    @takes_synonyms
    async def erase_user(
        self, user_id: str | None = None, *, before: datetime | None = None, wait_s: float = 1.0
    ) -> str:
        """Erase the memories of a user, by default the scope's: all that the log has before the erasure.

        With ``before``, only what the log took up to this time. The times of events do not count.

        This covers all scopes of the app, and every later replay. Returns the position of the event when the bus has
        it. The event log and the dead letters keep the texts until they are trimmed. Raises ``ValueError`` without a
        user, and for a ``before`` that lies in the future or has no time zone; ``InvalidEvent`` or
        ``PartitionRefused`` if the erasure is refused for good; and ``BusUnavailable`` if the bus does not confirm it
        within ``wait_s``. Then it may still be sent.
        """
        event = self._erased(user_id, before)
        with _changing(event):
            return self._deleted(await self._client.emit_each([event], wait_s=wait_s), _ERASED, _WHETHER_ERASED)


def _same_parameters(
    method: Callable[Concatenate[MemoryClient, _P], Coroutine[Any, Any, _T]],
) -> Callable[[Callable[..., _T]], Callable[Concatenate[SyncMemoryClient, _P], _T]]:
    """Declare that a synchronous method takes the parameters of ``method``."""
    return functools.wraps(method)


class SyncMemoryClient(_Memories[SyncClient]):
    """``MemoryClient`` without ``await``, through a synchronous client. Thread-safe."""

    def remember(
        self,
        messages: Iterable[Any],
        *,
        time: datetime | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        expires_at: datetime | str | None = None,
        wait_s: float = 1.0,
    ) -> str | None:
        """See ``MemoryClient.remember``."""
        event = self._remembered(messages, time, tags, metadata, expires_at)
        if event is None:
            return None
        with _changing(event):
            return self._written(self._client.emit_each([event], wait_s=wait_s), _REMEMBERED)

    @_same_parameters(MemoryClient.recall)
    def recall(self, query: str | Iterable[Any] = "", **options: Any) -> ContextReply:
        """See ``MemoryClient.recall``."""
        return self._client.search(query, **self._searched(options))

    def get(self, memory_id: str, *, budget_ms: int | None = None) -> dict[str, Any] | None:
        """See ``MemoryClient.get``."""
        found = self.list(limit=1, of="all", budget_ms=budget_ms, ids=[memory_id])
        return found[0] if found else None

    def list(
        self,
        *,
        limit: int = 100,
        of: Searched = "memories",
        budget_ms: int | None = None,
        **filters: Unpack[MemoryFilters],
    ) -> _Rows:
        """See ``MemoryClient.list``."""
        query, options = self._listed(limit, budget_ms, of, filters)
        return _rows(self._client.search(query, **options))

    def update(
        self,
        memory_id: str,
        *,
        text: str | None = None,
        content: str | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        pinned: bool | None = None,
        expires_at: datetime | str | None = None,
        time: datetime | None = None,
        wait_s: float = 1.0,
    ) -> str | None:
        """See ``MemoryClient.update``."""
        changes = _changes(text, content, tags=tags, metadata=metadata, pinned=pinned, expires_at=expires_at, time=time)
        event = self._updated(self.get(memory_id), memory_id, changes)
        with _changing(event):
            return self._written(self._client.emit_each([event], wait_s=wait_s), _CHANGED)

    def pin(self, memory_id: str, *, pinned: bool = True, wait_s: float = 1.0) -> str | None:
        """See ``MemoryClient.pin``."""
        return self.update(memory_id, pinned=pinned, wait_s=wait_s)

    def forget(
        self, memory_ids: str | Sequence[str] | None = None, *, wait_s: float = 1.0, **filters: Unpack[MemoryFilters]
    ) -> Sequence[str]:
        """See ``MemoryClient.forget``."""
        of, wanted = _forgetting(memory_ids, filters)
        forgotten: dict[str, None] = {}
        while some := _further(self.list(limit=_PAGE, of=of, **wanted), forgotten):
            forgotten.update(dict.fromkeys(some))
            events = self._forgotten(self.list(limit=_PAGE, of=of, ids=some))
            with tracing.changing_memory("delete_memory", self._app_id, len(some)):
                self._forgets(self._client.emit_each(events, wait_s=wait_s), events)
        return tuple(forgotten)

    @takes_synonyms
    def erase_user(self, user_id: str | None = None, *, before: datetime | None = None, wait_s: float = 1.0) -> str:
        """See ``MemoryClient.erase_user``."""
        event = self._erased(user_id, before)
        with _changing(event):
            return self._deleted(self._client.emit_each([event], wait_s=wait_s), _ERASED, _WHETHER_ERASED)


def _rows(reply: ContextReply) -> _Rows:
    """Return the rows of a reply.

    Raises ``Permanent`` for a refusal, and ``Transient`` if there is no answer, or one without own writes.
    """
    if "search" not in reply.injected:
        why = reply.missing[0] if reply.missing else reply
        kind = Permanent if why.reason in _REFUSALS else Transient
        raise kind(f"the memories were not read ({why.reason}): {why.detail}")
    if reply.stale_by is not None:
        raise Transient("the graph does not hold yet what was written before: call again, or give a larger budget_ms")
    return reply.results


def _changes(text: str | None, content: str | None, **others: Any) -> dict[str, Any]:
    """Return what an update changes. Raises ``ValueError`` for a text under two names."""
    if text is not None and content is not None:
        raise ValueError("text and content are two names of one argument: give one of them")
    said = content if text is None else text
    return {**others, "text": None if said is None else said.replace("\0", "")}  # graphs reject NUL


def _forgetting(
    memory_ids: str | Sequence[str] | None, filters: MemoryFilters
) -> tuple[Literal["all", "memories"], MemoryFilters]:
    """Return the kinds and the filters of what is to be forgotten. Raises ``ValueError`` if there are none."""
    for name in filters:
        if name not in _FORGETTING:
            raise ValueError(
                f"{name} is no filter of what to forget: give ids as memory_ids, or {', '.join(_FORGETTING)}"
            )
    given: MemoryFilters = {name: value for name, value in filters.items() if value is not None}  # type: ignore[assignment]
    if memory_ids is not None:
        return "all", {**given, "ids": [memory_ids] if isinstance(memory_ids, str) else list(memory_ids)}
    if not given:
        raise ValueError("give memory_ids or a filter; `erase_user` erases all that is remembered of a user")
    return "memories", {**given, "include_ended": True}


def _further(rows: _Rows, forgotten: Mapping[str, None]) -> list[str]:
    """Return the ids of those of the rows that can be forgotten, and are not yet."""
    return [row["id"] for row in rows if row["kind"] in _FORGETTABLE and row["id"] not in forgotten]


def _labels(
    tags: Sequence[str], metadata: Mapping[str, Any] | None, expires_at: datetime | str | None
) -> dict[str, Any]:
    """Return the tags, the metadata and the end of a call. Raises ``ValueError`` for invalid ones."""
    given: dict[str, Any] = {"tags": tags or None, "metadata": metadata, "expires_at": expires_at}
    if isinstance(tags, str):
        raise ValueError("tags must be a list of texts, not one text")
    try:
        checked = MemoryMessage(role="user", text="any", **given)
    except ValidationError as error:
        raise ValueError(faults(error)) from None
    return {name: getattr(checked, name) for name, value in given.items() if value is not None}


def _labelled(message: MemoryMessage, labels: Mapping[str, Any], said: datetime) -> MemoryMessage:
    """Return a message with the labels that it lacks. Raises ``_Refused`` if it ends before it is said."""
    missing = {name: value for name, value in labels.items() if getattr(message, name) is None}
    labelled = message.model_copy(update=missing) if missing else message
    try:
        check_end(labelled.expires_at, labelled.time or said)
    except ValueError as error:
        raise _Refused(f"messages: {error}") from None
    return labelled


def _changing(event: Event) -> AbstractContextManager[object]:
    """Return the span of an event that changes memories."""
    if event.type == "memory.add":
        return tracing.changing_memory("create_memory", event.appid, len(event.data["messages"]))
    if event.type == "memory.update":
        return tracing.changing_memory("update_memory", event.appid, 1)
    return tracing.changing_memory("delete_memory", event.appid)


def chat_of(scope: MemoryScope) -> str:
    """Return the chat of the events of a scope: the id of its narrowest level."""
    return next(scope.given[name] for name in _CHAT_ORDER if name in scope.given)


def add_event(
    app_id: str,
    scope: MemoryScope,
    messages: Sequence[MemoryMessage],
    *,
    source: str = SOURCE,
    time: datetime | None = None,
) -> Event | None:
    """Return the ``memory.add`` event of the messages, or None without messages.

    If each message has a ``message_id``, the event id derives from the scope and the messages; otherwise it is random.
    Raises ``ValueError`` if the contract is violated, without quoting the messages.
    """
    if not messages:
        return None
    id = str(uuid4())
    if all(message.message_id for message in messages):
        named = [part for message in messages for part in (message.message_id, message.role, message.text)]
        id = derived_id("memory.add", *(scope.given.get(name, "") for name in SCOPES), *named)
    texts = [
        (message if time is None or message.time else message.model_copy(update={"time": time})).model_dump(
            mode="json", exclude_none=True
        )
        for message in messages
    ]
    data = {**scope.given, "messages": texts}
    # The event's own time is now, whatever the messages' times: an erasure compares the time of recording.
    return _event("memory.add", app_id, chat_of(scope), scope.user_id, data, id=id, source=source)


def update_event(
    app_id: str,
    memory_id: str,
    *,
    chat_id: str,
    user_id: str | None,
    author_name: str | None,
    changes: Mapping[str, Any],
    source: str = SOURCE,
) -> Event:
    """Return the ``memory.update`` event of a memory, in the chat in which it was added; its author stays.

    Raises ``ValueError`` if the contract is violated.
    """
    author = None if changes.get("text") is None else author_name
    try:
        update = MemoryUpdate(memory_id=memory_id, author_name=author, **changes)
    except ValidationError as error:
        raise ValueError(faults(error)) from None
    data = update.model_dump(mode="json", exclude={"context"}, exclude_none=True)
    return _event("memory.update", app_id, chat_id, user_id, data, source=source)


def erase_event(app_id: str, user_id: str, *, before: datetime | None = None, source: str = SOURCE) -> Event:
    """Return the ``memory.erase`` event of a user. Raises ``ValueError`` if the contract is violated."""
    try:
        erase = MemoryErase(user_id=user_id, before=before)
        if erase.before is not None and erase.before > SYSTEM_CLOCK.now():
            raise ValueError("before lies in the future: erase again then, or leave it out for now")
    except ValidationError as error:
        raise ValueError(faults(error)) from None
    data = erase.model_dump(mode="json", exclude={"context"}, exclude_none=True)
    return _event("memory.erase", app_id, user_id, user_id, data, source=source)


def _event(
    type: str,
    app_id: str,
    chat_id: str,
    user_id: str | None,
    data: Mapping[str, Any],
    *,
    id: str | None = None,
    source: str,
) -> Event:
    try:
        return Event.create(type, app_id=app_id, chat_id=chat_id, user_id=user_id, data=data, id=id, source=source)
    except ValidationError as error:
        raise ValueError(faults(error)) from None  # pydantic's text quotes the input


def _role(role: Any) -> str | None:
    """Return the role of a memory that a role of a chat means, such as ``user`` for ``human``."""
    meaning = ROLES.get(str(getattr(role, "value", role)))
    return "system" if meaning == "instructions" else meaning


def _checked(message: Any, role: str, text: str) -> MemoryMessage | None:
    """Return the message to remember, with its other fields if they are valid."""
    _refuse_unknown(message)
    required = {"role": role, "text": text.replace("\0", "")}  # graphs reject NUL, and with it the whole event
    names = (*_FIELDS, *_LABELS) if isinstance(message, Mapping) else _FIELDS
    fields: dict[str, Any] = required | {name: _of(message, name) for name in names}
    try:
        return MemoryMessage.model_validate(fields)
    except ValidationError as error:
        bad = {fault["loc"][0] for fault in error.errors(include_input=False) if fault["loc"]}
        if fields.get("expires_at") is not None and ("expires_at" in bad or not bad):
            raise _Refused(f"messages: {faults(error)}") from None
        if bad & required.keys():
            logger.error("a message is not remembered: %s", faults(error))
            return None
        logger.warning("a message is remembered without %s: %s", " and ".join(sorted(map(str, bad))), faults(error))
    return MemoryMessage.model_validate({name: value for name, value in fields.items() if name not in bad})


def _refuse_unknown(message: Any) -> None:
    """Raise for a map with a field that would be lost. Objects of runtimes may have other attributes."""
    if isinstance(message, Mapping):
        fields: Mapping[Any, Any] = message  # pyright: ignore[reportUnknownVariableType]
        for name, value in fields.items():
            if name not in _ACCEPTED and value is not None:
                raise _Refused(f"messages: {unknown_field(name, also=('content',))}")


def _refuse_misspelt(message: Any) -> None:
    """Raise for a map that is passed over only because its text has another name."""
    if not isinstance(message, Mapping):
        return
    fields: Mapping[Any, Any] = message  # pyright: ignore[reportUnknownVariableType]
    if "text" not in fields and "content" not in fields:
        for name in fields:
            if isinstance(name, str) and meant_field(name, ("text", "content")) in {"text", "content"}:
                raise _Refused(f"messages: {unknown_field(name, also=('content',))}")


def _of(message: Any, name: str) -> Any:
    if isinstance(message, Mapping):
        return message.get(name)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return getattr(message, name, None)
