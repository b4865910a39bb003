"""The tools of MCP at ``/mcp`` of a gateway: streamable HTTP, each request for itself."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, override

from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message

from graphweft import Client
from graphweft.client_messages import encoded_event
from graphweft.outbox import EncodedEvent
from graphweft.transport import Outcome, Transport
from graphweft_contracts import BusUnavailable, Event
from graphweft_workers.gateway.access import RequestRights
from graphweft_workers.gateway.mcp_route import McpAddress
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.gateway.quotas import QuotaLimiter
from graphweft_workers.mcp.access import McpScope
from graphweft_workers.mcp.tools import Tools
from graphweft_workers.processes.mcp import make_server
from graphweft_workers.support.logs import send_along
from graphweft_workers.telemetry.metrics import EVENTS_RECEIVED

_TOOLS: Final = "graphweft.tools"
_MOST_KEPT: Final = 1_000
"""Addresses whose tools are kept, with the position of the last event: a search then waits for it."""


class GatewayMcp:
    """An ``McpService`` that writes to the bus by a transport of its own, within the quotas of a gateway."""

    def __init__(self, transport: Transport, quotas: QuotaLimiter) -> None:
        send_along("mcp", logging.ERROR)  # clients get its warnings as errors
        self._client = _MeteredClient(transport, quotas)
        self._kept: OrderedDict[_ToolsKey, Tools] = OrderedDict()
        self._manager = StreamableHTTPSessionManager(make_server(_tools_of), json_response=True, stateless=True)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """See ``McpService.running``."""
        try:
            async with self._manager.run():
                yield
        finally:
            await self._client.aclose()

    async def answer(self, request: Request, body: bytes, rights: RequestRights, address: McpAddress) -> Response:
        """See ``McpService.answer``."""
        bodies = iter([body])
        sent: list[Message] = []

        async def receive() -> Message:
            if (whole := next(bodies, None)) is not None:
                return {"type": "http.request", "body": whole, "more_body": False}
            return await request.receive()

        async def send(message: Message) -> None:
            sent.append(message)

        await self._manager.handle_request({**request.scope, _TOOLS: self._tools(rights, address)}, receive, send)
        if not sent:
            raise ClientDisconnect
        start, *parts = sent
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
        return Response(b"".join(part.get("body", b"") for part in parts), start["status"], headers)

    def _tools(self, rights: RequestRights, address: McpAddress) -> Tools:
        """Return the tools that the rights allow at an address; those of an earlier request, if they are kept."""
        key = (rights.app_id, address, rights.token.has("emit"), rights.token.has("erase"))
        tools = self._kept.pop(key, None)
        if tools is None:
            access = McpScope(
                app_id=rights.app_id, scope=address.scope, any_of=address.any_of, workflow=address.workflow,
                agents=address.agents, chat_id=address.chat_id, writes=key[2], erases=key[3],
            )  # fmt: skip
            tools = Tools(self._client, access)
        self._kept[key] = tools
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return tools


type _ToolsKey = tuple[str, McpAddress, bool, bool]
"""An app, an address within it, and whether a token may write and erase."""


class _MeteredClient(Client):
    """A client whose events count against the quotas of their apps."""

    def __init__(self, transport: Transport, quotas: QuotaLimiter) -> None:
        super().__init__(transport=transport)
        self._quotas = quotas

    @override
    async def emit_each(self, events: Sequence[Event | EncodedEvent], *, wait_s: float = 1.0) -> list[Outcome | None]:
        encoded = [each if isinstance(each, EncodedEvent) else encoded_event(each) for each in events]
        for app_id in dict.fromkeys(each.event.appid for each in encoded):
            own = [each for each in encoded if each.event.appid == app_id]
            EVENTS_RECEIVED.add(len(own), app=app_id)
            try:
                self._quotas.take(app_id, own)
            except Problem as problem:
                raise BusUnavailable(problem.detail) from None
        return await super().emit_each(encoded, wait_s=wait_s)


def _tools_of(context: ServerRequestContext[Any, Any]) -> Tools:
    assert context.request is not None
    tools: Tools = context.request.scope[_TOOLS]
    return tools
