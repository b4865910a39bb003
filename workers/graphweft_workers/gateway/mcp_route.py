"""``/mcp``: what a gateway checks before a service of MCP answers."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from graphweft.searching import make_scope
from graphweft_contracts import MemoryScope
from graphweft_contracts.memory import SCOPES
from graphweft_workers.gateway.access import RequestRights
from graphweft_workers.gateway.problems import Problem


class McpService(Protocol):
    """Answers requests of MCP, each for itself."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Run the service until the block ends."""
        ...

    async def answer(self, request: Request, body: bytes, rights: RequestRights, scope: MemoryScope) -> Response:
        """Answer a request with this body, within the rights of its token and the scope of its address."""
        ...


def scope_of(request: Request) -> MemoryScope:
    """Return the scope that the address of a request names. Raises ``Problem`` for anything else in its query."""
    given = request.query_params.multi_items()
    names = [name for name, _ in given]
    if not set(names) <= set(SCOPES) or len(names) != len(set(names)):
        raise _no_scope("its query has each of these names at most once, and no other")
    try:
        return make_scope(**dict(given))
    except ValueError as error:  # without the values
        raise _no_scope(str(error)) from None


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
