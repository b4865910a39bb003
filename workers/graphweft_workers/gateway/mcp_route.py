"""``/mcp``: what a gateway checks before a service of MCP answers."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import Response

from graphweft.searching import make_scope, read_scope
from graphweft_contracts import MemoryScope
from graphweft_contracts.memory import SCOPES
from graphweft_contracts.search import MOST_SCOPES
from graphweft_workers.gateway.access import RequestRights
from graphweft_workers.gateway.problems import Problem

ADDRESS: Final = {
    **{name: field.description or "" for name, field in MemoryScope.model_fields.items()},
    "any_of": "A further scope that is read, not changed: `application_id=team`, or `user_id=bob,thread_id=trip`.",
    "workflow": "Offer `get_context`, by the rules of this workflow; with `agent`.",
    "agent": "An agent of the workflow whose context can be requested.",
    "chat_id": "The chat of `get_context`; by default that of the scope.",
}
"""What the query of an address may have, and what it means."""
LISTED: Final = frozenset({"any_of", "agent"})
"""What may come more than once."""
_MOST_NAMED: Final = 64
_LONGEST: Final = 256
"""Characters of a name; the contract of requests refuses longer ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpAddress:
    """What the address of a request names: whose memories, and whose context. No argument of a tool extends it."""

    scope: MemoryScope
    any_of: tuple[MemoryScope, ...] = ()
    """Further scopes that can be read."""
    workflow: str | None = None
    agents: tuple[str, ...] = ()
    """Agents of the workflow whose context can be requested."""
    chat_id: str | None = None

    @property
    def users(self) -> list[str | None]:
        """The users whose memories can be reached."""
        return [each.user_id for each in (self.scope, *self.any_of)]


class McpService(Protocol):
    """Answers requests of MCP, each for itself."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Run the service until the block ends."""
        ...

    async def answer(self, request: Request, body: bytes, rights: RequestRights, address: McpAddress) -> Response:
        """Answer a request with this body, within the rights of its token and what its address names."""
        ...


def address_of(request: Request) -> McpAddress:
    """Return what the address of a request names. Raises ``Problem`` for anything else in its query."""
    given = request.query_params.multi_items()
    once = [name for name, _ in given if name not in LISTED]
    if not ADDRESS.keys() >= set(once) or len(once) != len(set(once)) or len(given) > _MOST_NAMED:
        others = [name for name in ADDRESS if name not in SCOPES]
        raise _no_scope(f"its query may also have {', '.join(others)}, and only {' and '.join(sorted(LISTED))} repeat")
    values = dict(given)
    try:
        found = McpAddress(
            scope=make_scope(**{name: values[name] for name in SCOPES if name in values}),
            any_of=tuple(read_scope(value) for name, value in given if name == "any_of"),
            workflow=_name(values.get("workflow")),
            agents=tuple(dict.fromkeys(filter(None, (_name(value) for name, value in given if name == "agent")))),
            chat_id=_name(values.get("chat_id")),
        )
    except ValueError as error:  # without the values
        raise _no_scope(str(error)) from None
    if (found.workflow is None) != (not found.agents) or (found.workflow is None and found.chat_id is not None):
        raise _no_scope("workflow and agent go together, and chat_id only with them")
    if len(found.any_of) > MOST_SCOPES:
        raise _no_scope(f"at most {MOST_SCOPES} any_of")
    return found


def _name(value: str | None) -> str | None:
    if value is not None and not 0 < len(value.strip()) <= _LONGEST:
        raise ValueError(f"workflow, agent and chat_id have 1 to {_LONGEST} characters")
    return value


def check_origin(request: Request) -> None:
    """Raise ``Problem`` for a page of another site, such as one whose name has been bound to this address."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != request.headers.get("host", "").lower():
        raise Problem(403, "other-origin", "a web page of another site sent this request; nothing was taken")


def _no_scope(why: str) -> Problem:
    return Problem(
        400,
        "no-scope",
        f"the address says whose memories these are, such as /mcp?user_id=ada: {', '.join(SCOPES)}; {why}",
    )
