"""Memories of an agent: remember what was said, within a scope, and find it again.

What is remembered and what is erased goes to the bus as events, in the chat ``thread_id``, or without one ``user_id``,
``agent_id``, ``application_id``: within one chat the order is kept. Erasing goes to the chat of the user.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from pydantic import ValidationError

from graphweft.client import Client
from graphweft.searching import faults, make_scope
from graphweft.sync import SyncClient
from graphweft_contracts import ContextReply, Event, MemoryErase, MemoryMessage, MemoryScope
from graphweft_contracts.memory import MEMORY_ROLES, SCOPES, derived_id, unknown_field
from graphweft_contracts.search import IndexType, Searched, WithoutEmbedder, query_text

__all__ = ("SOURCE", "MemoryClient", "SyncMemoryClient", "add_event", "chat_of", "erase_event")

logger = logging.getLogger("graphweft.memory")

SOURCE: Final = "/graphweft/memory"
"""``source`` of the events, unless another one is given."""
_FIELDS: Final = ("time", "message_id", "author_name")
_TAKEN: Final = frozenset({"role", "text", "content", *_FIELDS})
"""What a message that is a map may have."""
_CHAT_ORDER: Final = tuple(reversed(SCOPES))


class _UnknownField(ValueError):
    """A message has a field that memory does not keep."""


class _Memories:
    """What both kinds of client share: scopes, and the events and searches within them."""

    def __init__(
        self,
        *,
        app_id: str | None,
        application_id: str | None,
        agent_id: str | None,
        user_id: str | None,
        thread_id: str | None,
        scope_to_per_operation_thread_id: bool,
        memory_roles: Sequence[str],
        message_history_count: int,
        read_own_writes: bool,
        source: str,
    ) -> None:
        if app_id is None:
            raise ValueError("app_id is needed: give it here, or to the client")
        if isinstance(memory_roles, str) or not memory_roles or not set(memory_roles) <= set(MEMORY_ROLES):
            raise ValueError(f"memory_roles must be some of {', '.join(MEMORY_ROLES)}")
        self._per_operation = scope_to_per_operation_thread_id
        self._scopes = {"application_id": application_id, "agent_id": agent_id, "user_id": user_id}
        self._thread_id = None if scope_to_per_operation_thread_id else thread_id
        # Whatever the thread will be called: what is wrong with the others is wrong now.
        make_scope(**self._scopes, thread_id="any" if self._per_operation else thread_id)
        query_text((), message_history_count)
        self._app_id = app_id
        self._roles = frozenset(memory_roles)
        self._message_history_count = message_history_count
        self._read_own_writes = read_own_writes
        self._source = source
        self._position: str | None = None
        self._lock = threading.Lock()
        erase_event(app_id, "any", source=source)  # the same for names of apps and sources

    @property
    def scope(self) -> MemoryScope:
        """Whose memories these are. Raises ``ValueError`` while the thread id that it needs is not known."""
        if self._per_operation and self._thread_id is None:
            raise ValueError(
                "scope_to_per_operation_thread_id needs a thread id: call thread_created before memories are used"
            )
        return make_scope(**self._scopes, thread_id=self._thread_id)

    def thread_created(self, thread_id: str | None) -> None:
        """Take the id of the thread of this operation; without ``scope_to_per_operation_thread_id`` it does not count.

        The first one stays, and None says nothing. Raises ``ValueError`` for another one later, so that what is said in
        one thread is not remembered in another: make one of these for each thread.
        """
        if not self._per_operation or thread_id is None:
            return
        make_scope(thread_id=thread_id)
        with self._lock:
            if self._thread_id not in {None, thread_id}:
                raise ValueError(
                    "another thread id came before: with scope_to_per_operation_thread_id these memories belong to one "
                    "thread at a time; make one memory client for each thread"
                )
            self._thread_id = thread_id

    def _remembered(self, messages: Iterable[Any], time: datetime | None) -> Event | None:
        """Return the event; None when nothing of the messages is to be remembered, or they cannot be read."""
        scope = self.scope
        if isinstance(messages, str | bytes | Mapping):
            raise ValueError("messages: a list of messages is wanted, each with role and text")
        try:
            return add_event(
                self._app_id,
                scope,
                [said for message in messages if (said := _said(message, self._roles)) is not None],
                source=self._source,
                time=time,
            )
        except _UnknownField:
            raise
        except ValueError as error:  # without their texts; the turn goes on
            logger.error("messages are not remembered: %s", error)
        except Exception:  # a foreign object's own code
            logger.exception("messages cannot be read, so they are not remembered")
        return None

    def _erased(self, user_id: str | None, before: datetime | None) -> Event:
        user = self._scopes["user_id"] if user_id is None else user_id
        if user is None:
            raise ValueError("user_id is needed: name the user whose memories are to be erased")
        return erase_event(self._app_id, user, before=before, source=self._source)

    def _searched(
        self,
        top_k: int,
        index_type: IndexType | None,
        retrieval_query: str | None,
        params: Mapping[str, Any] | None,
        filter_stop_words: bool,
        *,
        of: Searched,
        without_embedder: WithoutEmbedder | None,
    ) -> dict[str, Any]:
        """Return the arguments of ``search`` of a client. Raises ``ValueError`` while the thread id is not known."""
        return {
            "memory": self.scope,
            "of": of,
            "top_k": top_k,
            "index_type": index_type,
            "without_embedder": without_embedder,
            "retrieval_query": retrieval_query,
            "params": params,
            "filter_stop_words": filter_stop_words,
            "message_history_count": self._message_history_count,
            "app_id": self._app_id,
            "after": self._position if self._read_own_writes else None,
        }

    def _written(self, position: str | None) -> str | None:
        if position is not None:
            self._position = position
        return position


class MemoryClient(_Memories):
    """Remembers and recalls within one scope, by an asynchronous client.

    At least one of ``application_id``, ``agent_id``, ``user_id`` and ``thread_id`` limits it, or
    ``scope_to_per_operation_thread_id``: then the thread is the one that ``thread_created`` names, and ``thread_id``
    does not count. All that are given apply to what is remembered and to what is found. Raises ``ValueError`` without
    any, and for what can never work; ``app_id`` is by default the client's. Only messages with ``memory_roles`` are
    remembered. ``recall`` searches for the last ``message_history_count`` messages. With ``read_own_writes`` it waits,
    within its budget, until the graph holds what was last remembered or erased here.
    """

    def __init__(
        self,
        client: Client,
        *,
        app_id: str | None = None,
        application_id: str | None = None,
        agent_id: str | None = None,
        user_id: str | None = None,
        thread_id: str | None = None,
        scope_to_per_operation_thread_id: bool = False,
        memory_roles: Sequence[str] = ("user", "assistant"),
        message_history_count: int = 10,
        read_own_writes: bool = False,
        source: str = SOURCE,
    ) -> None:
        super().__init__(
            app_id=app_id if app_id is not None else client.app_id,
            application_id=application_id,
            agent_id=agent_id,
            user_id=user_id,
            thread_id=thread_id,
            scope_to_per_operation_thread_id=scope_to_per_operation_thread_id,
            memory_roles=memory_roles,
            message_history_count=message_history_count,
            read_own_writes=read_own_writes,
            source=source,
        )
        self._client = client

    async def remember(
        self, messages: Iterable[Any], *, time: datetime | None = None, wait_s: float = 1.0
    ) -> str | None:
        """Publish the messages that are to be remembered as one event; return its position as ``Client.emit`` does.

        A message is a map or an object with ``role``, ``text`` (or ``content``), and perhaps ``message_id``,
        ``author_name`` and ``time``; without a time it was said at ``time``, by default now. Those of other roles and
        those without text are left out, and without any left nothing is sent: the position is None. Where each message
        has a ``message_id``, remembering the same ones again has no effect within the next 10,000 events of the
        partition, and afterwards makes the same memories; otherwise it makes new ones.

        Raises ``ValueError`` for what is no list of messages, for a map with a field that memory does not keep (None
        counts as absent), and while the scope has no thread id yet; then nothing is sent. What else is wrong with a
        message is logged, without its text.
        """
        event = self._remembered(messages, time)
        return None if event is None else self._written(await self._client.emit(event, wait_s=wait_s))

    async def recall(
        self,
        query: str | Iterable[Any] = "",
        *,
        of: Searched = "all",
        top_k: int = 5,
        index_type: IndexType | None = None,
        without_embedder: WithoutEmbedder | None = None,
        retrieval_query: str | None = None,
        params: Mapping[str, Any] | None = None,
        filter_stop_words: bool = True,
        budget_ms: int | None = None,
        max_tokens: int | None = None,
        explain: bool = False,
    ) -> ContextReply:
        """Return what of the scope fits ``query``, a text or messages; see ``Client.search``.

        ``of`` says what: memories, facts, preferences and summaries by default, one of these kinds, or the entities or
        episodes of ``episode.add``.
        """
        arguments = self._searched(
            top_k,
            index_type,
            retrieval_query,
            params,
            filter_stop_words,
            of=of,
            without_embedder=without_embedder,
        )
        return await self._client.search(
            query, budget_ms=budget_ms, max_tokens=max_tokens, explain=explain, **arguments
        )

    async def erase_user(
        self, user_id: str | None = None, *, before: datetime | None = None, wait_s: float = 1.0
    ) -> str | None:
        """Erase what was remembered of a user, by default the scope's, up to ``before``, by default now.

        This holds for the whole app, in all scopes, and for every later replay. Returns the position as ``Client.emit``
        does. The log of events and the dead letters still hold the texts until they are trimmed. Raises ``ValueError``
        without a user, and for a ``before`` without a zone.
        """
        return self._written(await self._client.emit(self._erased(user_id, before), wait_s=wait_s))


class SyncMemoryClient(_Memories):
    """``MemoryClient`` without ``await``, by a synchronous client; safe to share between threads."""

    def __init__(
        self,
        client: SyncClient,
        *,
        app_id: str | None = None,
        application_id: str | None = None,
        agent_id: str | None = None,
        user_id: str | None = None,
        thread_id: str | None = None,
        scope_to_per_operation_thread_id: bool = False,
        memory_roles: Sequence[str] = ("user", "assistant"),
        message_history_count: int = 10,
        read_own_writes: bool = False,
        source: str = SOURCE,
    ) -> None:
        super().__init__(
            app_id=app_id if app_id is not None else client.app_id,
            application_id=application_id,
            agent_id=agent_id,
            user_id=user_id,
            thread_id=thread_id,
            scope_to_per_operation_thread_id=scope_to_per_operation_thread_id,
            memory_roles=memory_roles,
            message_history_count=message_history_count,
            read_own_writes=read_own_writes,
            source=source,
        )
        self._client = client

    def remember(self, messages: Iterable[Any], *, time: datetime | None = None, wait_s: float = 1.0) -> str | None:
        """See ``MemoryClient.remember``."""
        event = self._remembered(messages, time)
        return None if event is None else self._written(self._client.emit(event, wait_s=wait_s))

    def recall(
        self,
        query: str | Iterable[Any] = "",
        *,
        of: Searched = "all",
        top_k: int = 5,
        index_type: IndexType | None = None,
        without_embedder: WithoutEmbedder | None = None,
        retrieval_query: str | None = None,
        params: Mapping[str, Any] | None = None,
        filter_stop_words: bool = True,
        budget_ms: int | None = None,
        max_tokens: int | None = None,
        explain: bool = False,
    ) -> ContextReply:
        """See ``MemoryClient.recall``."""
        arguments = self._searched(
            top_k,
            index_type,
            retrieval_query,
            params,
            filter_stop_words,
            of=of,
            without_embedder=without_embedder,
        )
        return self._client.search(query, budget_ms=budget_ms, max_tokens=max_tokens, explain=explain, **arguments)

    def erase_user(
        self, user_id: str | None = None, *, before: datetime | None = None, wait_s: float = 1.0
    ) -> str | None:
        """See ``MemoryClient.erase_user``."""
        return self._written(self._client.emit(self._erased(user_id, before), wait_s=wait_s))


def chat_of(scope: MemoryScope) -> str:
    """Return the chat to which the events of a scope go: the narrowest of its scopes."""
    return next(scope.given[name] for name in _CHAT_ORDER if name in scope.given)


def add_event(
    app_id: str,
    scope: MemoryScope,
    messages: Sequence[MemoryMessage],
    *,
    source: str = SOURCE,
    time: datetime | None = None,
) -> Event | None:
    """Return the ``memory.add`` event of messages, None without any.

    Its id derives from scope and messages where each of them has a ``message_id``, and is random otherwise. Raises
    ``ValueError`` for what breaks the contract, without quoting the messages.
    """
    if not messages:
        return None
    id = str(uuid4())
    if all(message.message_id for message in messages):
        named = [part for message in messages for part in (message.message_id, message.role, message.text)]
        id = derived_id("memory.add", *(scope.given.get(name, "") for name in SCOPES), *named)
    said = [
        (message if time is None or message.time else message.model_copy(update={"time": time})).model_dump(
            mode="json", exclude_none=True
        )
        for message in messages
    ]
    data = {**scope.given, "messages": said}
    # The event's own time is now, whenever it was said: an erasure goes by when something was recorded.
    return _event("memory.add", app_id, chat_of(scope), scope.user_id, data, id=id, source=source)


def erase_event(app_id: str, user_id: str, *, before: datetime | None = None, source: str = SOURCE) -> Event:
    """Return the ``memory.erase`` event of a user. Raises ``ValueError`` for what breaks the contract."""
    try:
        erase = MemoryErase(user_id=user_id, before=before)
        if erase.before is not None and erase.before > datetime.now(UTC):
            raise ValueError("before lies in the future: what is still to come cannot be erased now")
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


def _said(message: Any, roles: frozenset[str]) -> MemoryMessage | None:
    """Return what is to be remembered of a message; None for another role, and for one without text."""
    role, text = getattr(_of(message, "role"), "value", _of(message, "role")), _of(message, "text")
    text = text or _of(message, "content")
    if not isinstance(role, str) or role not in roles or not isinstance(text, str) or not text.strip():
        return None
    _refuse_unknown(message)
    least = {"role": role, "text": text.replace("\0", "")}  # no graph keeps NUL, and it would cost all the others
    try:
        return MemoryMessage.model_validate(least | {name: _of(message, name) for name in _FIELDS})
    except ValidationError as error:
        logger.warning("of a message only role and text are remembered: %s", faults(error))
    try:
        return MemoryMessage.model_validate(least)
    except ValidationError as error:
        logger.error("a message is not remembered: %s", faults(error))
        return None


def _refuse_unknown(message: Any) -> None:
    """Raise for a map with a field that would be lost; objects of runtimes have many attributes of their own."""
    if isinstance(message, Mapping):
        fields: Mapping[Any, Any] = message  # pyright: ignore[reportUnknownVariableType]
        for name, value in fields.items():
            if name not in _TAKEN and value is not None:
                raise _UnknownField(f"messages: {unknown_field(name, also=('content',))}")


def _of(message: Any, name: str) -> Any:
    if isinstance(message, Mapping):
        return message.get(name)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return getattr(message, name, None)
