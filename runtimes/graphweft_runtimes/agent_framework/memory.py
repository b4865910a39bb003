"""Memory and knowledge for agents of Microsoft Agent Framework: searched before a run, remembered after it.

The options follow the graph context provider that users of the framework know. Rejected: a connection to the graph, as
that provider has. This one searches and remembers over the bus, within the budget of a turn. So an agent's process
needs neither a password for the graph nor an embedder, and without the graph, runs continue without memories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, cast

from typing_extensions import Self

from graphweft.adapters.sender import no_context
from graphweft.argument_checks import check_budget
from graphweft.client import Client
from graphweft.memory import MemoryClient
from graphweft.searching import check_retrieval_query, make_query
from graphweft.timing import CLIENT_TIMING
from graphweft_contracts import ContextReply
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.prompt_text import enclose, harmless
from graphweft_contracts.search import IndexType, query_text
from graphweft_runtimes.agent_framework.adapter import AgentFrameworkAdapter, FrameworkProvider, asked_messages

__all__ = ("GraphContextProvider",)

_ADD: Final = "memory.add"
_MEMORIES: Final = "memories"
_MAX_CLIENTS: Final = 10_000
"""Scopes whose memory clients are kept."""
_ORIGIN: Final = """
RETURN coalesce(node.text, node.fact) AS text, score, labels(node) AS labels, node.role AS role,
       node.author_name AS author_name,
       coalesce(node.timestamp, node.valid_from, node.stated_at, node.valid_at) AS timestamp,
       node.message_id AS message_id
ORDER BY score DESC, timestamp DESC
"""
_KINDS: Final = {"Fact": "fact", "Relation": "fact", "Preference": "preference", "ConversationSummary": "summary"}
"""Names of rows in the prompt by the label of the node. Memories show their role instead."""
_REMOTE_OPTIONS: Final = {
    "uri": "set GRAPHWEFT_GRAPH_URL where the responder and the workers run",
    "username": "set the graph's user in the settings of the responder and the workers",
    "password": "set the graph's password in the settings of the responder and the workers",
    "embedder": "set GRAPHWEFT_EMBEDDER where the responder and the memory worker run",
}


_ScopeKey: TypeAlias = tuple[str, str | None]
"""The app, and with ``scope_to_per_operation_thread_id`` the thread of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    agent: str
    text: str
    app_id: str
    scope: _ScopeKey | None
    """None if no memories are searched."""
    deadline_s: float


@dataclass(slots=True)
class _Memories:
    """The client of one scope, used only in the adapter's thread, and its latest write."""

    client: MemoryClient
    writing: asyncio.Task[Any] | None = None


class GraphContextProvider(FrameworkProvider):
    """Adds knowledge and memories to a run as messages, and remembers its messages afterwards.

    With ``index_name``, that index is searched for the last ``message_history_count`` messages. ``index_type`` is
    "vector", "fulltext", or "hybrid" with ``fulltext_index_name``; ``retrieval_query`` is Cypher that continues from
    ``node`` and ``score``. With ``memory_enabled``, the scope is searched at the same time: memories by vector, and
    facts, preferences and summaries by words. Without an embedder in the responder, the latest memories are used.
    Messages with a role in ``memory_roles`` are remembered after each successful run; those of a repeated run once. The
    prompt shows at most ``top_k`` results of each search, below ``context_prompt`` and ``memory_prompt``.

    The scope is the combination of ``application_id``, ``agent_id``, ``user_id`` and ``thread_id``; at least one is
    required. With ``scope_to_per_operation_thread_id`` the thread is the session of each run. ``app_id`` is that of the
    adapter or the session. Both searches together take at most ``budget_ms``, by default the adapter's. Failures never
    reach the run: they are counted by reason in the adapter's ``stats`` (``searches``, ``missing_results``), and logged
    once for each provider and reason.

    Raises ``ValueError`` for settings that cannot work, such as a ``retrieval_query`` that writes, and for options that
    belong to the responder.
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
            if name in _REMOTE_OPTIONS:
                raise ValueError(f"unknown option {name!r}: {_REMOTE_OPTIONS[name]}")
            raise TypeError(f"unknown option {name!r} of GraphContextProvider")
        if index_name is None and not memory_enabled:
            raise ValueError("nothing to search: set index_name or memory_enabled")
        if memory_label != "Memory":
            raise ValueError("memory_label is always 'Memory': leave it out")
        if budget_ms is not None:
            check_budget(budget_ms)
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
        make_query(index_name=index_name or "any", **self._query)
        if retrieval_query is not None:
            check_retrieval_query(retrieval_query)
        if index_name is None and (retrieval_query is not None or fulltext_index_name is not None):
            raise ValueError("retrieval_query and fulltext_index_name require an index: set index_name")
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
            MemoryClient(cast("Client", None), app_id="any", **self._scope)  # fails now for an invalid scope
        self._thread_id: str | None = None
        self._budget_ms = budget_ms
        self._memories: BoundedDict[_ScopeKey, _Memories] = BoundedDict(_MAX_CLIENTS)

    async def __aenter__(self) -> Self:
        """Return the provider itself; the adapter has the connections."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing; close the adapter instead."""

    def thread_created(self, thread_id: str | None) -> None:
        """Bind the provider to one session: runs of other sessions get and leave no memories.

        Ignored without ``scope_to_per_operation_thread_id``, and for None. Raises ``ValueError`` for a second id.
        """
        if not self._per_operation or thread_id is None:
            return
        if self._thread_id not in {None, thread_id}:
            raise ValueError(
                "the thread id is set already: with scope_to_per_operation_thread_id these memories belong to one "
                "thread; make one provider for each thread"
            )
        self._thread_id = thread_id

    async def before_run(self, *, agent: Any, session: Any, context: Any, state: dict[str, Any]) -> None:
        """Search, and add the results."""
        core = self._adapter.core
        with core.guarded("before_run of the memory provider"):
            asked = asked_messages(agent, context)
            text = query_text(asked, self._query["message_history_count"])
            chat = core.chat(self._adapter.variables(session)) if text and core.context_on else None
            if chat is None:
                return
            budget_ms = core.budget_ms if self._budget_ms is None else self._budget_ms
            question = _Question(
                agent=str(agent.name),
                text=text,
                app_id=chat.app_id,
                scope=self._scope_key(chat.app_id, context.session_id),
                deadline_s=SYSTEM_CLOCK.monotonic() + budget_ms / 1000,
            )
            searched = [*([self._index] if self._index else []), *([_MEMORIES] if question.scope else [])]
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
                self._add(context, f"{self._prompts[1]}\n\n{enclose(lines)}", _origins(rows, context.session_id))

    async def after_run(self, *, agent: Any, session: Any, context: Any, state: dict[str, Any]) -> None:
        """Remember the messages of the run in the background."""
        core = self._adapter.core
        with core.guarded("after_run of the memory provider"):
            chat = core.chat(self._adapter.variables(session)) if self._enabled and core.capture_on else None
            scope = None if chat is None else self._scope_key(chat.app_id, context.session_id)
            if scope is None:
                return
            # A run repeated from the same session state gets the same number.
            number = context.metadata.setdefault(self.source_id, int(state.get("runs", 0)) + 1)
            state["runs"] = number
            asked: list[Any] = []
            for message in context.input_messages:  # earlier messages of a history are remembered already
                asked = [] if message.role == "assistant" else [*asked, message]
            answers: list[Any] = [] if context.response is None else context.response.messages
            named = f"{context.session_id}/{number}"
            # Two events, so that the question keeps its event id when a repeated run answers differently.
            for part, found in (("in", asked), ("out", answers)):
                messages = [_message(one, f"{named}.{part}{index}") for index, one in enumerate(found)]
                core.submit(partial(self._remember, scope, messages))

    def _scope_key(self, app_id: str, session_id: str) -> _ScopeKey | None:
        """Return the scope of a run's memories, or None if it has none."""
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
            if asked.scope is None:
                return
            scoped = self._scoped(client, asked.scope)
            if scoped.writing is not None and not scoped.writing.done():
                await asyncio.wait({scoped.writing}, timeout=_left_ms(asked.deadline_s) / 2000)
            replies[_MEMORIES] = await scoped.client.recall(
                text,
                top_k=self._query["top_k"],
                index_type="vector",
                without_embedder="latest",  # memories by meaning, or else the latest
                retrieval_query=_ORIGIN,
                filter_stop_words=self._query["filter_stop_words"],
                budget_ms=_left_ms(asked.deadline_s),
            )

        await asyncio.gather(knowledge(), memories())

    async def _remember(self, scope: _ScopeKey, messages: list[dict[str, Any]], client: Client) -> None:
        shown = self._adapter.core.redacted(_ADD, {"messages": messages, "context": {}})
        if shown is not None:
            scoped = self._scoped(client, scope)
            scoped.writing = asyncio.current_task()
            await scoped.client.remember(shown["messages"], wait_s=CLIENT_TIMING.adapters.confirm_s)

    def _scoped(self, client: Client, scope: _ScopeKey) -> _Memories:
        scoped = self._memories.get(scope)
        if scoped is None:
            app_id, thread_id = scope
            kept = self._adapter.core.keep_reasoning
            scoped = _Memories(MemoryClient(client, app_id=app_id, keep_reasoning=kept, **self._scope))
            scoped.client.thread_created(thread_id)
        self._memories[scope] = scoped
        return scoped


def _left_ms(deadline_s: float) -> int:
    return int(max(0.0, deadline_s - SYSTEM_CLOCK.monotonic()) * 1000)


def _message(message: Any, name: str) -> dict[str, Any]:
    """Return the fields of a message to remember; its id begins with that of its session."""
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
    return harmless(f"- {who}, {str(row.get('timestamp'))[:10]}: {text}")


def _origins(rows: Sequence[Mapping[str, Any]], session_id: str) -> list[str]:
    """Return the other sessions that the memories come from."""
    found = (str(row.get("message_id") or "").rpartition("/")[0] for row in rows)
    return [session for session in dict.fromkeys(found) if session not in {"", session_id}]
