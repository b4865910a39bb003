"""Memory and knowledge for agents of Microsoft Agent Framework: found before a run, remembered behind it.

Its options are those of the ``Neo4jContextProvider`` that its users know. Rejected: a driver of its own, as that one
has. It searches and remembers over the bus, within the budget of a turn, so an agent's process needs neither a password
of the graph's nor an embedder, and a graph that is away costs a run its memories and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self, cast

from graphweft.adapters.agent_framework import AgentFrameworkAdapter, FrameworkProvider
from graphweft.adapters.sending import no_context
from graphweft.client import Client
from graphweft.memory import MemoryClient
from graphweft.searching import check_retrieval_query, make_query
from graphweft_contracts import ContextReply
from graphweft_contracts.search import IndexType, query_text

__all__ = ("GraphContextProvider",)

_ADD: Final = "memory.add"
_MEMORIES: Final = "memories"
_SCOPED_CLIENTS: Final = 10_000
"""Scopes of which it is kept what was written last; the one that was quiet longest goes first."""
_CONFIRM_S: Final = 5.0
"""How long the position of what was written is waited for, in the background."""
_ORIGIN: Final = """
RETURN coalesce(node.text, node.fact) AS text, score, labels(node) AS labels, node.role AS role,
       node.author_name AS author_name,
       coalesce(node.timestamp, node.valid_from, node.stated_at, node.valid_at) AS timestamp,
       node.message_id AS message_id
ORDER BY score DESC, timestamp DESC
"""
_KINDS: Final = {"Fact": "fact", "Relation": "fact", "Preference": "preference", "ConversationSummary": "summary"}
"""Label of a node -> name of its row in the prompt. Memories have no name here: they show their role."""
_ELSEWHERE: Final = {
    "uri": "the graph's address is the responder's and the workers': set GRAPHWEFT_GRAPH_URL or NEO4J_URI there",
    "username": "the graph's user is the responder's and the workers': set NEO4J_USERNAME there",
    "password": "the graph's password is the responder's and the workers': set NEO4J_PASSWORD there",
    "embedder": "texts become vectors in the responder and the memory worker: set GRAPHWEFT_EMBEDDER there",
}


type _Place = tuple[str, str | None]
"""The app, and the thread where each run has its own: what tells the memories of one provider apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    agent: str
    text: str
    app_id: str
    place: _Place | None
    """Of the memories; None where none are searched."""
    deadline_s: float


@dataclass(slots=True)
class _Memories:
    """The client of one scope, used in the adapter's thread alone, and what it is writing."""

    client: MemoryClient
    writing: asyncio.Task[Any] | None = None


class GraphContextProvider(FrameworkProvider):
    """Adds what the graph knows of a question, and what was said before, as messages; remembers what is said.

    With ``index_name`` that index is searched, as ``index_type`` says ("vector", "fulltext", or "hybrid" with
    ``fulltext_index_name``), for the last ``message_history_count`` messages; ``retrieval_query`` is Cypher that goes
    on from ``node`` and ``score``. With ``memory_enabled`` the scope is searched at the same time: memories by vector,
    facts, preferences and summaries by words. Without an embedder in the responder, the latest memories are taken.
    Messages of ``memory_roles`` are remembered after each run that succeeds, a repeated one once. The prompt shows at
    most ``top_k`` results of each search, after ``context_prompt`` and ``memory_prompt``.

    The scope is ``application_id``, ``agent_id``, ``user_id`` and ``thread_id``, at least one of them, all that are
    given together; with ``scope_to_per_operation_thread_id`` the thread is the session of each run. ``app_id`` is the
    adapter's, or that of the session. Both searches together take ``budget_ms`` at most, by default the adapter's. A
    run is never disturbed: what goes wrong costs it its memories, is counted by reason in the adapter's ``stats``
    (``searches``, ``missing_results``) and logged as a warning, once for each provider and reason.

    Raises ``ValueError`` for what can never work, such as a ``retrieval_query`` that writes or returns nothing, and for
    options that belong to the responder now.
    """

    def __init__(
        self,
        adapter: AgentFrameworkAdapter,
        *,
        source_id: str = "graphweft-memory",
        index_name: str | None = None,
        index_type: IndexType = "vector",
        fulltext_index_name: str | None = None,
        top_k: int = 5,
        context_prompt: str = "## Context\nUse this if it helps to answer:",
        retrieval_query: str | None = None,
        message_history_count: int = 10,
        filter_stop_words: bool = True,
        memory_enabled: bool = False,
        memory_label: str = "Memory",
        memory_roles: Sequence[str] = ("user", "assistant"),
        memory_prompt: str = "## Memories\nThis was said before:",
        application_id: str | None = None,
        agent_id: str | None = None,
        user_id: str | None = None,
        thread_id: str | None = None,
        scope_to_per_operation_thread_id: bool = False,
        read_own_writes: bool = True,
        budget_ms: int | None = None,
        **elsewhere: Any,
    ) -> None:
        for name in elsewhere:
            if name in _ELSEWHERE:
                raise ValueError(f"{name} is no option here: {_ELSEWHERE[name]}")
            raise TypeError(f"GraphContextProvider has no option {name!r}")
        if index_name is None and not memory_enabled:
            raise ValueError("nothing to search: name an index with index_name, or set memory_enabled")
        if memory_label != "Memory":
            raise ValueError("memory_label: memories are nodes labelled Memory, in every app; leave it out")
        super().__init__(source_id)
        self._adapter = adapter
        self._query: dict[str, Any] = {
            "index_type": index_type,
            "fulltext_index_name": fulltext_index_name,
            "top_k": top_k,
            "retrieval_query": retrieval_query,
            "filter_stop_words": filter_stop_words,
            "message_history_count": message_history_count,
        }
        make_query(memory=None, of="all", index_name=index_name or "any", without_embedder=None, **self._query)
        if retrieval_query is not None:
            check_retrieval_query(retrieval_query)
        if index_name is None and (retrieval_query is not None or fulltext_index_name is not None):
            raise ValueError("retrieval_query and fulltext_index_name go with an index: name it with index_name")
        self._query["index_name"] = index_name
        self._index = f"the index {index_name!r}" if index_name else ""
        self._who = (source_id, memory_enabled, *self._query.values())
        self._prompts = context_prompt, memory_prompt
        self._scope: dict[str, Any] = {
            "application_id": application_id,
            "agent_id": agent_id,
            "user_id": user_id,
            "thread_id": thread_id,
            "scope_to_per_operation_thread_id": scope_to_per_operation_thread_id,
            "memory_roles": tuple(memory_roles),
            "read_own_writes": read_own_writes,
        }
        self._enabled, self._per_operation = memory_enabled, scope_to_per_operation_thread_id
        if memory_enabled:
            MemoryClient(cast("Client", None), app_id="any", **self._scope)  # says what can never work
        self._thread_id: str | None = None
        self._budget_ms = budget_ms
        self._memories: dict[_Place, _Memories] = {}

    async def __aenter__(self) -> Self:
        """Return the provider itself: there is nothing to connect, for the adapter has the connections."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: close the adapter at the end."""

    def thread_created(self, thread_id: str | None) -> None:
        """Bind the provider to one session: runs of others find and leave no memories by it.

        Only with ``scope_to_per_operation_thread_id``; None says nothing. Raises ``ValueError`` for another one later.
        """
        if not self._per_operation or thread_id is None:
            return
        if self._thread_id not in {None, thread_id}:
            raise ValueError(
                "another thread id came before: with scope_to_per_operation_thread_id these memories belong to one "
                "thread at a time; make one provider for each thread"
            )
        self._thread_id = thread_id

    async def before_run(self, *, agent: Any, session: Any, context: Any, state: dict[str, Any]) -> None:
        """Search, and add what was found."""
        core = self._adapter.core
        with core.guarded("before_run of the memory provider"):
            histories = {each.source_id for each in agent.context_providers if hasattr(each, "get_messages")}
            asked = [*context.get_messages(sources=histories), *context.input_messages]
            text = query_text(asked, self._query["message_history_count"])
            chat = core.chat(self._adapter.variables(session)) if text and core.context_on else None
            if chat is None:
                return
            budget_ms = core.budget_ms if self._budget_ms is None else self._budget_ms
            question = _Question(
                agent=str(agent.name),
                text=text,
                app_id=chat.app_id,
                place=self._place(chat.app_id, context.session_id),
                deadline_s=time.monotonic() + budget_ms / 1000,
            )
            searched = [*([self._index] if self._index else []), *([_MEMORIES] if question.place else [])]
            if not searched:
                return
            found = await core.asearch(searched, partial(self._search, question), who=self._who, budget_ms=budget_ms)
            knowledge, memories = found.get(self._index), found.get(_MEMORIES)
            known = {message.text for message in asked}
            rows = [row for row in (memories.results if memories else []) if row.get("text") not in known]
            if knowledge is not None and knowledge.text:
                self._add(context, f"{self._prompts[0]}\n\n{knowledge.text}")
            if rows:
                lines = "\n".join(map(_line, rows))
                self._add(context, f"{self._prompts[1]}\n\n{lines}", _origins(rows, context.session_id))

    async def after_run(self, *, agent: Any, session: Any, context: Any, state: dict[str, Any]) -> None:
        """Have what was said remembered, in the background."""
        core = self._adapter.core
        with core.guarded("after_run of the memory provider"):
            chat = core.chat(self._adapter.variables(session)) if self._enabled and core.capture_on else None
            place = None if chat is None else self._place(chat.app_id, context.session_id)
            if place is None:
                return
            # The same number for a run that is repeated from the same state of its session.
            number = context.metadata.setdefault(self.source_id, int(state.get("runs", 0)) + 1)
            state["runs"] = number
            asked: list[Any] = []
            for message in context.input_messages:  # who hands over a whole history has had it remembered before
                asked = [] if message.role == "assistant" else [*asked, message]
            answers: list[Any] = [] if context.response is None else context.response.messages
            named = f"{context.session_id}/{number}"
            # Two events: an answer differs when a run is repeated, and the question must not be another one by that.
            for part, said in (("in", asked), ("out", answers)):
                messages = [_message(one, f"{named}.{part}{index}") for index, one in enumerate(said)]
                core.submit(partial(self._remember, place, messages))

    def _place(self, app_id: str, session_id: str) -> _Place | None:
        """Return whose memories a run has, or None where it has none."""
        if not self._enabled or (self._per_operation and self._thread_id not in {None, session_id}):
            return None
        return (app_id, session_id if self._per_operation else None)

    def _add(self, context: Any, text: str, origins: Sequence[str] = ()) -> None:
        context.extend_messages(self, [self._adapter.message(text)], origin_session_ids=origins or None)

    # In the adapter's thread

    async def _search(self, asked: _Question, replies: dict[str, ContextReply], client: Client) -> None:
        shown = self._adapter.core.redacted_request({"agent_name": asked.agent, "query": asked.text, "context": {}})
        if isinstance(shown, ContextReply):
            replies |= {self._index: shown, _MEMORIES: shown}
            return
        text = shown.get("query")
        if not isinstance(text, str):
            held = no_context("disabled", "the redaction hook left no text to search for")
            replies |= {self._index: held, _MEMORIES: held}
            return

        async def knowledge() -> None:
            if self._index:
                left_ms = _left_ms(asked.deadline_s)
                replies[self._index] = await client.search(text, app_id=asked.app_id, budget_ms=left_ms, **self._query)

        async def memories() -> None:
            if asked.place is None:
                return
            scoped = self._scoped(client, asked.place)
            if scoped.writing is not None and not scoped.writing.done():
                await asyncio.wait({scoped.writing}, timeout=_left_ms(asked.deadline_s) / 2000)
            replies[_MEMORIES] = await scoped.client.recall(
                text,
                top_k=self._query["top_k"],
                index_type="vector",
                without_embedder="latest",  # as its users know it: memories by meaning, or else the latest
                retrieval_query=_ORIGIN,
                filter_stop_words=self._query["filter_stop_words"],
                budget_ms=_left_ms(asked.deadline_s),
            )

        await asyncio.gather(knowledge(), memories())

    async def _remember(self, place: _Place, messages: list[dict[str, Any]], client: Client) -> None:
        shown = self._adapter.core.redacted(_ADD, {"messages": messages, "context": {}})
        if shown is not None:
            scoped = self._scoped(client, place)
            scoped.writing = asyncio.current_task()
            await scoped.client.remember(shown["messages"], wait_s=_CONFIRM_S)

    def _scoped(self, client: Client, place: _Place) -> _Memories:
        scoped = self._memories.pop(place, None)
        if scoped is None:
            app_id, thread_id = place
            scoped = _Memories(MemoryClient(client, app_id=app_id, **self._scope))
            scoped.client.thread_created(thread_id)
        self._memories[place] = scoped
        if len(self._memories) > _SCOPED_CLIENTS:
            del self._memories[next(iter(self._memories))]
        return scoped


def _left_ms(deadline_s: float) -> int:
    return int(max(0.0, deadline_s - time.monotonic()) * 1000)


def _message(message: Any, name: str) -> dict[str, Any]:
    """Return a message as it is remembered: its id begins with that of its session."""
    session, _, own = name.rpartition("/")
    own = str(message.message_id).replace("/", "-") if message.message_id else own
    return {
        "role": str(message.role),
        "text": message.text,
        "message_id": f"{session}/{own}",
        "author_name": message.author_name,
    }


def _line(row: Mapping[str, Any]) -> str:
    kind = next((_KINDS[label] for label in row.get("labels") or () if label in _KINDS), "unknown")
    who = row.get("author_name") or row.get("role") or kind
    text = str(row.get("text")).strip().replace("\n", "\n  ")
    return f"- {who}, {str(row.get('timestamp'))[:10]}: {text}"


def _origins(rows: Sequence[Mapping[str, Any]], session_id: str) -> list[str]:
    """Return the sessions, other than this one, in which the memories were said."""
    found = (str(row.get("message_id") or "").rpartition("/")[0] for row in rows)
    return [session for session in dict.fromkeys(found) if session not in {"", session_id}]
