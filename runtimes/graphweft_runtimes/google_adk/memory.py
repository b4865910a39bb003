"""Memories for agents of Google ADK: a memory service that remembers and searches over the bus.

A memory is shared by all sessions of a user. The agent's process needs neither a password for the graph nor an
embedder, and without the graph, runs continue without memories.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final, TypeAlias

from graphweft.adapters.core import Adapter
from graphweft.argument_checks import check_budget
from graphweft.client import Client
from graphweft.memory import MemoryClient
from graphweft.timing import CLIENT_TIMING
from graphweft_contracts import ContextReply
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.prompt_text import harmless
from graphweft_runtimes.google_adk.texts import text_of

_ADD: Final = "memory.add"
_MEMORIES: Final = "memories"
_MAX_USERS: Final = 10_000
"""Users whose memory clients are kept."""
_ROWS: Final = """
RETURN coalesce(node.text, node.fact) AS text, score, node.role AS role, node.author_name AS author_name,
       coalesce(node.timestamp, node.valid_from, node.stated_at, node.valid_at) AS timestamp,
       node.message_id AS message_id
ORDER BY score DESC, timestamp DESC
"""

_User: TypeAlias = tuple[str, str]
"""The app and the user."""


@dataclass(slots=True)
class _Memories:
    """The client of one user, used only in the adapter's thread, and its latest write."""

    client: MemoryClient
    writing: asyncio.Task[Any] | None = None


def memory_service(core: Adapter, *, top_k: int, budget_ms: int | None) -> Any:
    """Return a memory service of ADK's base class; see ``GoogleADKAdapter.memory_service``."""
    if budget_ms is not None:
        check_budget(budget_ms)
    base: Any = importlib.import_module("google.adk.memory.base_memory_service")
    kind: Any = type("GraphMemoryService", (_Service, base.BaseMemoryService), {})
    service: _Service = kind()
    service.core, service.top_k = core, top_k
    service.budget_ms = core.budget_ms if budget_ms is None else budget_ms
    service.response = base.SearchMemoryResponse
    service.entry = importlib.import_module("google.adk.memory.memory_entry").MemoryEntry
    service.types = importlib.import_module("google.genai").types
    service.users = BoundedDict(_MAX_USERS)
    return service


class _Service:
    """The methods of ADK's ``BaseMemoryService``; a subclass adds that class. Failures are counted and not raised."""

    core: Adapter
    top_k: int
    budget_ms: int
    response: Any
    entry: Any
    types: Any
    users: BoundedDict[_User, _Memories]

    async def add_session_to_memory(self, session: Any) -> None:
        """Remember what was said in the session, in the background. What is remembered already stays as it is."""
        self._add(session.app_name, session.user_id, _said(session.events, session.id))

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Any],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember what the events say."""
        self._add(app_name, user_id, _said(events, session_id or "events"))

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[Any],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember these texts."""
        found = [
            {
                "role": "assistant" if one.content.role == "model" else "user",
                "text": text_of(one.content) or "",
                "message_id": one.id,
                "author_name": one.author,
            }
            for one in memories
        ]
        self._add(app_name, user_id, [found])

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> Any:
        """Return what the user's memories hold for the query, within the budget; nothing if that takes longer."""
        rows: list[dict[str, Any]] = []
        with self.core.guarded("search_memory"):
            user = self._user(app_name, user_id) if self.core.context_on else None
            if user is not None:
                deadline_s = SYSTEM_CLOCK.monotonic() + self.budget_ms / 1000
                work = partial(self._search, user, query, deadline_s)
                found = await self.core.asearch([_MEMORIES], work, who="memory service", budget_ms=self.budget_ms)
                rows = found[_MEMORIES].results
        return self.response(memories=[self._entry(row) for row in rows if row.get("text")])

    def _add(self, app_name: str, user_id: str, groups: Iterable[list[dict[str, Any]]]) -> None:
        with self.core.guarded("memory service"):
            user = self._user(app_name, user_id) if self.core.capture_on else None
            if user is not None:
                for messages in groups:
                    self.core.submit(partial(self._remember, user, messages))

    def _user(self, app_name: str, user_id: str) -> _User | None:
        variables = {"app_id": app_name, "user_id": user_id, "chat_id": user_id}
        chat = self.core.chat(variables)
        return None if chat is None else (chat.app_id, str(user_id))

    def _entry(self, row: Mapping[str, Any]) -> Any:
        text = harmless(str(row["text"]))
        role = "model" if row.get("role") == "assistant" else "user"
        return self.entry(
            content=self.types.Content(role=role, parts=[self.types.Part(text=text)]),
            author=row.get("author_name") or row.get("role"),
            timestamp=None if row.get("timestamp") is None else str(row["timestamp"]),
            id=row.get("message_id"),
        )

    # In the adapter's thread

    async def _search(
        self, user: _User, query: str, deadline_s: float, replies: dict[str, ContextReply], client: Client
    ) -> None:
        shown = self.core.redacted_request({"agent_name": _MEMORIES, "query": query, "context": {}})
        if isinstance(shown, ContextReply):
            replies[_MEMORIES] = shown
            return
        memories = self._memories(client, user)
        if memories.writing is not None and not memories.writing.done():
            await asyncio.wait({memories.writing}, timeout=_left_ms(deadline_s) / 2000)
        replies[_MEMORIES] = await memories.client.recall(
            str(shown.get("query") or ""),
            top_k=self.top_k,
            index_type="vector",
            without_embedder="latest",  # memories by meaning, or else the latest
            retrieval_query=_ROWS,
            budget_ms=_left_ms(deadline_s),
        )

    async def _remember(self, user: _User, messages: list[dict[str, Any]], client: Client) -> None:
        shown = self.core.redacted(_ADD, {"messages": messages, "context": {}})
        if shown is not None:
            memories = self._memories(client, user)
            memories.writing = asyncio.current_task()
            await memories.client.remember(shown["messages"], wait_s=CLIENT_TIMING.adapters.confirm_s)

    def _memories(self, client: Client, user: _User) -> _Memories:
        found = self.users.get(user)
        if found is None:
            app_id, user_id = user
            kept = self.core.keep_reasoning
            found = _Memories(
                MemoryClient(client, app_id=app_id, user_id=user_id, read_own_writes=True, keep_reasoning=kept)
            )
        self.users[user] = found
        return found


def _said(events: Iterable[Any], session_id: str) -> list[list[dict[str, Any]]]:
    """Return the messages of each invocation: one event for each, with an id that a repetition has too."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        text = None if event.partial else text_of(event.content)
        if text:
            groups.setdefault(str(event.invocation_id), []).append(
                {
                    "role": "user" if event.author == "user" else "assistant",
                    "text": text,
                    "message_id": f"{session_id}/{event.id}",
                    "author_name": None if event.author == "user" else str(event.author),
                    "time": datetime.fromtimestamp(event.timestamp, timezone.utc),
                }
            )
    return list(groups.values())


def _left_ms(deadline_s: float) -> int:
    return int(max(0.0, deadline_s - SYSTEM_CLOCK.monotonic()) * 1000)
