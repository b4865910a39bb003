"""The ASGI application: events and OTLP spans in, context out, the routes of Graphiti's server, and whether it works.

Starlette and a document of our own, not FastAPI: a CloudEvent comes in three forms, which parameters of a function
cannot say, the size of a body is checked before it is read, and a validation error is a problem (RFC 9457). Each of the
three would replace what FastAPI does for a route. Litestar brings 20 packages for two routes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from graphweft import Client
from graphweft.transport import Transport
from graphweft_contracts import Event, Permanent, Transient
from graphweft_workers.gateway.cloud_events import read_events
from graphweft_workers.gateway.document import ContextQuestion, document
from graphweft_workers.gateway.facts import FactsQuestion, find_facts
from graphweft_workers.gateway.limits import Gate, Limits, encoding_of, media_type, read_body, read_json
from graphweft_workers.gateway.messages import Refusal, read_messages
from graphweft_workers.gateway.problems import Problem, faults_of
from graphweft_workers.gateway.replies import without_addresses
from graphweft_workers.gateway.tokens import Tokens
from graphweft_workers.gateway.traces import JSON, PROTOBUF, Traces, read_traces, unpacked

logger = logging.getLogger("graphweft.gateway")

_RETRY_S: Final = 2
_PROBE_MS: Final = 500
_PROBE_KEPT_S: Final = 1.0
"""Anybody may ask whether the gateway is ready, so the bus is not asked each time."""
_PROBE: Final = "graphweft-readyz"
_REACH_S: Final = 2.0
_LOOPBACK: Final = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.IGNORECASE | re.ASCII)


def make_app(
    client: Client,
    *,
    connect: Callable[[], Transport],
    tokens: Tokens | None = None,
    insecure_app: str | None = None,
    limits: Limits | None = None,
    refusal: Refusal | None = None,
    schema_ids: Sequence[str] | None = None,
) -> Starlette:
    """Return the application; it closes ``client`` at its end.

    ``connect`` makes a transport to the bus of ``client``, by which it is seen whether the bus is there. ``refusal``
    says why a message would have no effect; without it, such ones become dead letters. ``schema_ids`` are the
    ontologies that the document names; None: it names none.

    Requests are of the app of their token. Without ``tokens`` they are of ``insecure_app`` and have to be addressed to
    this machine by name, so that no web page in a browser here can send them. Raises ``ValueError`` unless exactly one
    of the two is given.
    """
    if (tokens is None) == (insecure_app is None):
        raise ValueError("give either tokens or insecure_app")
    gateway = _Gateway(
        client,
        connect=connect,
        tokens=tokens,
        insecure_app=insecure_app or "",
        limits=limits or Limits(),
        refusal=refusal,
        schema_ids=schema_ids,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        await client.aclose()

    app = Starlette(
        routes=[
            Route("/v1/events", gateway.events, methods=["POST"]),
            Route("/v1/context", gateway.context, methods=["POST"]),
            Route("/v1/traces", gateway.traces, methods=["POST"]),
            Route("/messages", gateway.messages, methods=["POST"]),
            Route("/search", gateway.search, methods=["POST"]),
            Route("/healthcheck", gateway.healthcheck),
            Route("/healthz", gateway.health),
            Route("/readyz", gateway.readiness),
            Route("/openapi.json", gateway.openapi),
        ],
        exception_handlers={Problem: _problem, HTTPException: _http, ClientDisconnect: _gone, Exception: _defect},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


class _Gateway:
    def __init__(
        self,
        client: Client,
        *,
        connect: Callable[[], Transport],
        tokens: Tokens | None,
        insecure_app: str,
        limits: Limits,
        refusal: Refusal | None,
        schema_ids: Sequence[str] | None,
    ) -> None:
        self._client = client
        self._connect = connect
        self._tokens = tokens
        self._insecure_app = insecure_app
        self._limits = limits
        self._gate = Gate(limits)
        self._refusal = refusal
        self._document = document(limits, secured=tokens is not None, schema_ids=schema_ids)
        self._probing = asyncio.Lock()
        self._probed: tuple[float, dict[str, str] | None] = (-_PROBE_KEPT_S, None)

    async def events(self, request: Request) -> Response:
        """Answer when the bus has the events."""
        limits = self._limits
        app_id = self._app_of(request)
        with self._gate.enter(app_id):
            kind = media_type(request)
            body = await read_body(request, most=limits.events_bytes, seconds=limits.body_s)
            events = await self._gate.read(
                app_id, body, lambda body: read_events(kind, request.headers, body, app_id=app_id, limits=limits)
            )
            positions = await self._published(events)
        return JSONResponse({"positions": positions}, 202)

    async def messages(self, request: Request) -> Response:
        """Answer when the bus has an episode for each message."""
        limits = self._limits
        app_id = self._app_of(request)
        with self._gate.enter(app_id):
            _check_json(request)
            body = await read_body(request, most=limits.events_bytes, seconds=limits.body_s)
            events = await self._gate.read(
                app_id,
                body,
                lambda body: read_messages(body, app_id=app_id, limits=limits, refusal=self._refusal),
            )
            positions = await self._published(events)
        said = {"message": "the bus has the messages", "success": True, "positions": positions}
        return JSONResponse(said, 202)

    async def traces(self, request: Request) -> Response:
        """Answer when the bus has the events of all spans that give some."""
        limits = self._limits
        app_id = self._app_of(request)
        with self._gate.enter(app_id):
            kind = media_type(request)
            if kind not in {PROTOBUF, JSON}:
                raise Problem(415, "unsupported-media-type", f"send OTLP as {PROTOBUF} or {JSON}")
            encoding = encoding_of(request)
            body = await read_body(request, most=limits.events_bytes, seconds=limits.body_s, gzip=True)

            def read(body: bytes) -> Traces:
                plain = unpacked(encoding, body, most=limits.unpacked_bytes)
                return read_traces(kind, plain, app_id=app_id, limits=limits)

            found = await self._gate.read(app_id, body, read, packed=encoding == "gzip")
            await self._published(found.events)
        if found.rejected:
            logger.warning("%d spans of app %s give no event: %s", found.rejected, app_id, "; ".join(found.reasons))
        return Response(found.answer(kind), media_type=kind)

    async def search(self, request: Request) -> Response:
        """Answer with the facts of some groups, or with why they are not known."""
        limits = self._limits
        app_id = self._app_of(request)
        with self._gate.enter(app_id):
            _check_json(request)
            body = await read_body(request, most=limits.context_bytes, seconds=limits.body_s)
            try:
                question = await self._gate.read(
                    app_id, body, lambda body: FactsQuestion.model_validate(read_json(body))
                )
            except ValidationError as error:
                raise _invalid_question(error) from None
            budget_ms = round(limits.search_s * 1000)
            found = await find_facts(self._client, app_id, question, budget_ms=budget_ms)
        return Response(found.model_dump_json(), media_type="application/json")

    async def healthcheck(self, _: Request) -> Response:
        """Answer: the process does, in the words of Graphiti's server."""
        return JSONResponse({"status": "healthy"})

    async def context(self, request: Request) -> Response:
        """Answer with what is ready, always with 200."""
        app_id = self._app_of(request)
        with self._gate.enter(app_id):
            _check_json(request)
            body = await read_body(request, most=self._limits.context_bytes, seconds=self._limits.body_s)
            try:
                question = await self._gate.read(
                    app_id, body, lambda body: ContextQuestion.model_validate(read_json(body))
                )
            except ValidationError as error:
                raise _invalid_question(error) from None
            if question.app_id not in {None, app_id}:
                fault = {"pointer": "#/app_id", "detail": "leave it out, or name the app of the token"}
                raise Problem(403, "other-app", "the token is of another app", faults=[fault])
            reply = await self._client.context(
                agent=question.agent,
                chat_id=question.chat_id,
                app_id=app_id,
                workflow=question.workflow,
                user_id=question.user_id,
                context=question.context,
                budget_ms=question.budget_ms,
                max_tokens=question.max_tokens,
                after=question.after,
                explain=question.explain,
                search=question.search,
            )
        return Response(without_addresses(reply).model_dump_json(), media_type="application/json")

    async def health(self, _: Request) -> Response:
        """Answer: the process does."""
        return JSONResponse({"process": "ok"})

    async def readiness(self, _: Request) -> Response:
        """Ask for context that no rules have, and the bus itself when that is not answered."""
        async with self._probing:
            at, state = self._probed
            if time.monotonic() - at >= _PROBE_KEPT_S:
                state = await self._probe()
                self._probed = (time.monotonic(), state)
        if state is None:
            raise Problem(
                503,
                "bus-unavailable",
                "the bus does not answer",
                headers={"Retry-After": str(_RETRY_S)},
            )
        return JSONResponse(state)

    async def openapi(self, _: Request) -> Response:
        """Return the OpenAPI document."""
        return JSONResponse(self._document)

    async def _published(self, events: Sequence[Event]) -> list[str]:
        """Return the positions of all events on the bus. Raises ``Problem``, which says which of them it confirmed."""
        positions = await self._client.emit_all(events, wait_s=self._limits.emit_s)
        confirmed = [position for position in positions if position is not None]
        if len(confirmed) < len(positions):
            logger.warning("the bus did not confirm %d of %d events in time", positions.count(None), len(positions))
            raise Problem(
                503,
                "bus-unavailable",
                "the bus did not confirm all events in time; those without a position may still take effect. Send the "
                "same request again until it is taken: what is on the bus already has no second effect",
                headers={"Retry-After": str(_RETRY_S)},
                positions=positions,
            )
        return confirmed

    async def _probe(self) -> dict[str, str] | None:
        reply = await self._client.context(
            agent=_PROBE, chat_id=_PROBE, app_id=_PROBE, workflow=_PROBE, budget_ms=_PROBE_MS
        )
        match reply.reason:
            case "disabled" if reply.context_id:  # a responder wrote it
                return {"bus": "ok", "responder": "context is off"}
            case "disabled":
                responder = "not asked: context is off here"
            case "timeout" | "bus_unavailable" | "internal_error":
                responder = "no answer"
            case _:
                return {"bus": "ok", "responder": "ok"}
        return {"bus": "ok", "responder": responder} if await self._reached() else None

    async def _reached(self) -> bool:
        """Return whether the bus takes events: appending none, by a new transport, asks for its partitions."""
        try:
            async with aclosing(self._connect()) as transport, asyncio.timeout(_REACH_S):
                await transport.append(())
        except (TimeoutError, Transient, Permanent) as error:
            logger.debug("the bus is not reached: %s", error)
            return False
        return True

    def _app_of(self, request: Request) -> str:
        """Return whose the request is. Raises ``Problem`` without a token that is known."""
        if self._tokens is None:
            if not _LOOPBACK.fullmatch(request.headers.get("host", "")):
                raise Problem(403, "other-host", "without tokens the gateway answers to 127.0.0.1 and localhost only")
            return self._insecure_app
        scheme, _, presented = request.headers.get("authorization", "").partition(" ")
        token = self._tokens.find(presented.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise Problem(
                401,
                "no-token",
                "send the header `Authorization: Bearer TOKEN`; `graphweft token new --app APP` makes a token",
                headers={"WWW-Authenticate": 'Bearer realm="graphweft"'},
            )
        return token.app_id


def _check_json(request: Request) -> None:
    if media_type(request) != "application/json":
        raise Problem(415, "unsupported-media-type", "send the body as application/json")


def _invalid_question(error: ValidationError) -> Problem:
    return Problem(422, "invalid-question", "the question breaks the contract", faults=faults_of(error))


type _Handler = Callable[[Request, Any], Awaitable[Response]]


async def _problem(_: Request, problem: Any) -> Response:
    return problem.response()  # type: ignore[no-any-return]


async def _http(_: Request, error: Any) -> Response:
    code, detail = {
        404: ("not-found", "nothing is here; /openapi.json says what there is"),
        405: ("method-not-allowed", "the header Allow says which methods there are"),
    }.get(error.status_code, ("http", error.detail))
    return Problem(error.status_code, code, detail, headers=error.headers).response()


async def _gone(_: Request, error: Any) -> Response:
    return Response(status_code=400)  # nobody reads it


async def _defect(_: Request, error: Any) -> Response:
    # Starlette raises it again behind the answer, and the server logs it.
    return Problem(
        500, "defect", "the gateway has a defect, which its log names; nothing is known to be taken"
    ).response()
