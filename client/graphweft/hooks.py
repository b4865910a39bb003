"""Hooks for runtimes that call functions before a turn and after an event.

The hooks publish events and request context from a responder, so a slow or unavailable graph cannot delay a turn. The
ids of each event are the context variables ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id``, unless you pass
them to the hooks.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from pydantic import ValidationError

from graphweft.argument_checks import check_app, check_budget, check_max_tokens
from graphweft.client import Client
from graphweft.json_copy import json_copy
from graphweft.refusal_log import RefusalLog
from graphweft_contracts import Event, wire
from graphweft_contracts.argument_names import takes_synonyms
from graphweft_contracts.bounded_dict import BoundedDict

__all__ = (
    "GraphInjectionHooks",
    "InjectionHook",
    "MutationHook",
    "create_graph_injection_hook",
    "create_graph_mutation_hook",
)

logger = logging.getLogger("graphweft.hooks")

_MAX_CHATS: Final = 10_000
"""Chats whose last position, and agents whose last context, are kept."""

InjectionHook: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""``await hook(agent_name, context)`` returns the context of the turn, by ``inject_as``."""


class MutationHook(Protocol):
    """``await hook(event, context, event_data, agent_name=None)``."""

    async def __call__(
        self, event: str, context: dict[str, Any], event_data: dict[str, Any], agent_name: str | None = None
    ) -> None:
        """See ``GraphInjectionHooks.on_event``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ids:
    app_id: str
    chat_id: str
    workflow: str | None
    user_id: str | None


class GraphInjectionHooks:
    """Before-turn and after-event hooks. They never raise, and never wait longer than their budget.

    ``max_tokens`` limits the text of each context. With ``read_own_writes`` the context of a turn waits, within its
    budget, until the graph holds the events that ``on_event`` published for the chat before. An
    ``agent.turn_complete`` gets the ``context_id`` of the agent's last context in that chat, unless its data has one.
    Raises ``InvalidSettings`` for arguments that cannot work.
    """

    @takes_synonyms
    def __init__(
        self,
        client: Client | None = None,
        *,
        app_id: str | None = None,
        chat_id: str | None = None,
        workflow_name: str | None = None,
        user_id: str | None = None,
        budget_ms: int | None = None,
        max_tokens: int | None = None,
        read_own_writes: bool = False,
        source: str = "/graphweft/hooks",
    ) -> None:
        check_app(app_id)
        if budget_ms is not None:
            check_budget(budget_ms)
        check_max_tokens(max_tokens)
        self._client = client or Client()
        self._refusals = RefusalLog(logger)
        self._fixed = {"app_id": app_id, "chat_id": chat_id, "workflow_name": workflow_name, "user_id": user_id}
        self._budget_ms = budget_ms
        self._max_tokens = max_tokens
        self._read_own_writes = read_own_writes
        self._source = source
        # All events of a chat are in one partition, so its last position covers the earlier ones.
        self._positions: BoundedDict[tuple[str, str], str] = BoundedDict(_MAX_CHATS)
        self._context_ids: BoundedDict[tuple[str, str, str], str] = BoundedDict(_MAX_CHATS)

    async def before_agent_turn(self, agent_name: str, context: dict[str, Any]) -> dict[str, Any]:
        """Return the context of this turn: formatted values by ``inject_as``. Empty without context."""
        try:
            ids, variables = self._ids(context), json_copy(context)
        except Exception:  # user code of a context variable; the turn continues
            logger.exception("the context variables cannot be read, so %s gets no context", agent_name)
            return {}
        if ids is None:
            return {}
        if ids.workflow is None:
            logger.warning("workflow_name is required: pass it to the hooks, or as a context variable")
            return {}
        reply = await self._client.context(
            agent=agent_name,
            chat_id=ids.chat_id,
            app_id=ids.app_id,
            workflow=ids.workflow,
            user_id=ids.user_id,
            context=variables,
            budget_ms=self._budget_ms,
            max_tokens=self._max_tokens,
            after=self._positions.get((ids.app_id, ids.chat_id)),
        )
        if reply.context_id:
            self._context_ids[ids.app_id, ids.chat_id, agent_name] = reply.context_id
        if reply.reason is not None:
            logger.warning("no context for %s: %s (%s)", agent_name, reply.reason, reply.detail)
        return reply.injected

    async def on_event(
        self,
        event: str,
        context: dict[str, Any],
        event_data: dict[str, Any],
        agent_name: str | None = None,
    ) -> None:
        """Publish the event. The workers apply the mutations that match it."""
        try:
            ids = self._ids(context)
            if ids is None:
                return
            data = json_copy(event_data)
            if agent_name is not None:
                data["agent_name"] = agent_name
            if event == "agent.turn_complete" and "context_id" not in data:
                given = self._context_ids.pop((ids.app_id, ids.chat_id, str(data.get("agent_name"))), None)
                if given is not None:
                    data["context_id"] = given
            message = Event.create(
                event,
                app_id=ids.app_id,
                chat_id=ids.chat_id,
                workflow=ids.workflow,
                user_id=ids.user_id,
                data=data,
                context=json_copy(context),
                source=self._source,
            )
        except ValidationError as error:
            self._refusals.note(event, f"it violates the contract: {wire.explain(error)}")
            return
        except Exception:  # user code of a context variable; the turn continues
            logger.exception("the context or data of event %s cannot be read, so it is not sent", event)
            return
        position = await self._client.emit(message)
        if self._read_own_writes and position is not None:
            self._positions[ids.app_id, ids.chat_id] = position

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.aclose()

    def _ids(self, context: Mapping[str, Any]) -> _Ids | None:
        def text(name: str) -> str | None:
            value = self._fixed[name] or context.get(name)
            return (str(value) or None) if value is not None else None  # runtimes write "" for unknown

        app_id, chat_id = text("app_id"), text("chat_id")
        if not app_id or not chat_id:
            logger.warning("app_id and chat_id are required: pass them to the hooks, or as context variables")
            return None
        return _Ids(app_id=app_id, chat_id=chat_id, workflow=text("workflow_name"), user_id=text("user_id"))


def create_graph_injection_hook(client: Client | None = None, **settings: Any) -> InjectionHook:
    """Return ``before_agent_turn`` of new ``GraphInjectionHooks`` with these settings."""
    return GraphInjectionHooks(client, **settings).before_agent_turn


def create_graph_mutation_hook(client: Client | None = None, **settings: Any) -> MutationHook:
    """Return ``on_event`` of new ``GraphInjectionHooks`` with these settings."""
    return GraphInjectionHooks(client, **settings).on_event
