"""The ASGI application of the gateway: its routes and their errors.

It uses Starlette and not FastAPI: a CloudEvent comes in three forms, which function parameters cannot describe, the
size of a body is checked before the body is read, and a validation error is a problem document (RFC 9457).
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import uuid4

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from graphweft import Client
from graphweft.client_messages import encoded_event
from graphweft.outbox import EncodedEvent
from graphweft.transport import Transport
from graphweft_contracts import ContextReply, Event, InvalidEvent, PartitionRefused, Permanent, Transient
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.apps import no_rules
from graphweft_workers.gateway.access import OTHER_WORKFLOW, MayUse, RequestRights, find_access
from graphweft_workers.gateway.audit import AuditLog, AuditMiddleware, name_of, note_events, note_token, note_users
from graphweft_workers.gateway.cloud_events import event_hints, place_of, read_events
from graphweft_workers.gateway.document import document
from graphweft_workers.gateway.fact_search import FactsQuestion, find_facts
from graphweft_workers.gateway.limits import (
    GatewayLimits,
    RequestLimiter,
    encoding_of,
    media_type,
    read_json,
)
from graphweft_workers.gateway.mcp_route import McpService, address_of, check_origin
from graphweft_workers.gateway.messages import Refusal, read_messages
from graphweft_workers.gateway.middleware import RequestMetrics, TraceMiddleware
from graphweft_workers.gateway.problems import Problem, error_handlers, faults_of
from graphweft_workers.gateway.questions import ContextQuestion
from graphweft_workers.gateway.quotas import QuotaLimiter
from graphweft_workers.gateway.redaction import public
from graphweft_workers.gateway.tokens import AccessToken, Role, Tokens
from graphweft_workers.gateway.traces import JSON, PROTOBUF, Traces, decompress, read_traces
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.telemetry.metrics import EVENTS_RECEIVED

logger = get_logger("graphweft.gateway")

_PATHS: Final = (
    "/v1/events", "/v1/context", "/v1/traces", "/messages", "/search", "/mcp", "/healthcheck", "/healthz", "/readyz",
    "/openapi.json",
)  # fmt: skip
_DEFECT: Final = "the gateway has a defect; its log has the details. The request may or may not have been taken"
_WRONG_ADDRESS: Final = {
    404: "this path does not exist; /openapi.json lists the paths",
    405: "the header Allow lists the methods of this path",
}
"""By status, what is said of it."""
_RETRY_S: Final = 2
_PROBE_MS: Final = 500
_PROBE: Final = "graphweft-readyz"
_REACH_S: Final = 2.0
_TRACED: Final = frozenset({"/v1/events", "/v1/context", "/messages", "/search", "/mcp"})
"""Routes whose requests belong to traces. Probes say nothing, and a request with spans must not make further ones."""
_LOOPBACK: Final = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.IGNORECASE | re.ASCII)


def make_app(
    client: Client,
    *,
    connect: Callable[[], Transport],
    tokens: Tokens | Callable[[], Tokens] | None = None,
    insecure_app: str | None = None,
    may_use: MayUse = lambda app_id, workflow: True,
    faults: Callable[[], Mapping[str, str]] = dict,
    audit: AuditLog | None = None,
    limits: GatewayLimits | None = None,
    refusal: Refusal | None = None,
    schema_ids: Sequence[str] | None = None,
    quotas: QuotaLimiter | None = None,
    spans: dict[str, Counter[str]] | None = None,
    mcp: McpService | None = None,
) -> Starlette:
    """Return the application; it closes ``client`` when it shuts down.

    ``connect`` makes a new transport to the bus, to check that the bus answers. ``refusal`` returns the reason why a
    message would have no effect; without it, such messages become dead letters. ``schema_ids`` are the ontologies that
    the OpenAPI document names. ``quotas`` refuses events of apps that are above a quota; without it there are none.
    ``spans`` counts, by app and reason, the spans that gave no event. ``mcp`` answers at ``/mcp``; without it there is
    no such path.

    The token of a request decides its app. A function in place of ``tokens`` gives those of the moment.
    ``may_use(app_id, workflow)`` tells whether an app may use a workflow. ``faults`` are what an operator should see in
    ``/readyz``, and ``audit`` gets a line for each request. Without ``tokens``, every request belongs to
    ``insecure_app`` and must address this machine by name, so that web pages in a local browser cannot send requests.
    Raises ``ValueError`` unless exactly one of ``tokens`` and ``insecure_app`` is given.
    """
    if (tokens is None) == (insecure_app is None):
        raise ValueError("give either tokens or insecure_app")
    limits = limits or GatewayLimits()
    gateway = _Gateway(
        client=client,
        connect=connect,
        tokens=tokens if tokens is None or callable(tokens) else lambda: tokens,
        insecure=AccessToken(app_id=insecure_app or "", name="--insecure-app", sha256=b"", roles=frozenset({"admin"})),
        may_use=may_use,
        faults=faults,
        limits=limits,
        refusal=refusal,
        quotas=quotas,
        spans={} if spans is None else spans,
        document=document(limits, secured=tokens is not None, schema_ids=schema_ids, mcp=mcp is not None),
        open_document=document(limits, secured=tokens is not None, mcp=mcp is not None),
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with nullcontext() if mcp is None else mcp.running():
            yield
        await client.aclose()

    app = Starlette(
        routes=[
            Route("/v1/events", gateway.events, methods=["POST"]),
            Route("/v1/context", gateway.context, methods=["POST"]),
            Route("/v1/traces", gateway.traces, methods=["POST"]),
            Route("/messages", gateway.messages, methods=["POST"]),
            Route("/search", gateway.search, methods=["POST"]),
            *([] if mcp is None else [Route("/mcp", partial(gateway.tools, mcp), methods=["POST"])]),
            Route("/healthcheck", gateway.healthcheck),
            Route("/healthz", gateway.health),
            Route("/readyz", gateway.readiness),
            Route("/openapi.json", gateway.openapi),
        ],
        exception_handlers=error_handlers(_DEFECT, _WRONG_ADDRESS),
        lifespan=lifespan,
        middleware=[
            Middleware(TraceMiddleware, routes=_TRACED),
            Middleware(RequestMetrics, paths=_PATHS),
            *([] if audit is None else [Middleware(AuditMiddleware, log=audit)]),
        ],
    )
    app.router.redirect_slashes = False
    return app


@dataclass(kw_only=True, eq=False)
class _Gateway:
    client: Client
    connect: Callable[[], Transport]
    tokens: Callable[[], Tokens] | None
    insecure: AccessToken
    may_use: MayUse
    faults: Callable[[], Mapping[str, str]]
    limits: GatewayLimits
    refusal: Refusal | None
    quotas: QuotaLimiter | None
    spans: dict[str, Counter[str]]
    document: dict[str, Any]
    open_document: dict[str, Any]
    """What is shown without a token: it names no ontologies."""
    probing: asyncio.Lock = field(default_factory=asyncio.Lock)
    probed: tuple[float, dict[str, str] | None] = (-math.inf, None)

    def __post_init__(self) -> None:
        self.limiter = RequestLimiter(self.limits)
        self._ignored = LogLimit()
        self._expired = LogLimit()

    async def events(self, request: Request) -> Response:
        """Publish CloudEvents. The answer means that the bus has them."""
        access = self._access(request, "emit", "erase")
        app_id = access.app_id
        with self._taking(app_id):
            kind = media_type(request)

            def read(body: bytes) -> tuple[list[EncodedEvent], list[dict[str, str]]]:
                events = read_events(kind, request.headers, body, app_id=app_id, limits=self.limits)
                access.check_events(events, lambda number, attribute: place_of(kind, number, attribute))
                return _encoded(events), event_hints(kind, events)

            events, hints = await self._read(access, request, read, self.limits.events_bytes)
            note_events(request, app_id, [each.event for each in events])
            positions = await self._publish(app_id, events)
        return JSONResponse({"positions": positions, **({"hints": hints} if hints else {})}, 202)

    async def messages(self, request: Request) -> Response:
        """Publish an episode for each message. The answer means that the bus has them."""
        access = self._access(request, "emit")
        app_id = access.app_id
        with self._taking(app_id):
            _check_json(request)

            def read(body: bytes) -> list[EncodedEvent]:
                events = read_messages(body, app_id=app_id, limits=self.limits, refusal=self.refusal)
                return _encoded(events)

            events = await self._read(access, request, read, self.limits.events_bytes)
            note_events(request, app_id, [each.event for each in events])
            positions = await self._publish(app_id, events)
        return JSONResponse({"message": "the bus has the messages", "success": True, "positions": positions}, 202)

    async def traces(self, request: Request) -> Response:
        """Publish the events of spans. The answer means that the bus has them."""
        access = self._access(request, "emit")
        app_id = access.app_id
        with self._taking(app_id):
            kind = media_type(request)
            if kind not in {PROTOBUF, JSON}:
                raise Problem(415, "unsupported-media-type", f"send OTLP as {PROTOBUF} or {JSON}")
            encoding = encoding_of(request)

            def read(body: bytes) -> tuple[Traces, list[EncodedEvent]]:
                plain = decompress(encoding, body, limits=self.limits)
                values = self.limits.values_for(len(body)) if encoding == "gzip" else self.limits.values
                found = read_traces(
                    kind, plain, app_id=app_id, limits=self.limits, values=values, may_use=access.may_use
                )
                return found, _encoded(found.events)

            found, events = await self._read(access, request, read, self.limits.events_bytes, otlp=True)
            note_events(request, app_id, found.events)
            await self._publish(app_id, events)
        counts = self.spans.setdefault(app_id, Counter()) if found.ignored or found.rejected else Counter[str]()
        for (library, reason), spans in found.ignored.items():
            counts[reason] += spans
            if (before := self._ignored.admit((app_id, library, reason))) is not None:
                logger.info(
                    "spans_ignored", app_id=app_id, library=library, reason=reason, spans=spans, requests_before=before,
                    message="they are not about agents, or follow conventions that graphweft does not read",
                )  # fmt: skip
        if found.rejected:
            counts["refused"] += found.rejected
            logger.warning("spans_refused", app_id=app_id, spans=found.rejected, reasons=[*found.reasons])
        return Response(found.answer(kind), media_type=kind)

    async def search(self, request: Request) -> Response:
        """Return facts of some groups. An error means that the search failed, so an empty list means no facts."""
        access = self._access(request, "read")
        app_id = access.app_id
        with self.limiter.enter(app_id):
            question = await self._question(access, request, FactsQuestion)
            note_users(request, app_id, question.group_ids)
            budget_ms = round(self.limits.search_s * 1000)
            found = await find_facts(self.client, app_id, question, budget_ms=budget_ms)
        return Response(found.model_dump_json(), media_type=JSON)

    async def context(self, request: Request) -> Response:
        """Return the context that is ready within the budget, always with status 200."""
        access = self._access(request, "read")
        app_id = access.app_id
        with self.limiter.enter(app_id):
            question = await self._question(access, request, ContextQuestion)
            scopes = () if question.search is None else question.search.scopes
            note_users(request, app_id, [question.user_id, *(scope.get("user_id") for scope in scopes)])
            if question.app_id not in {None, app_id}:
                fault = {"pointer": "#/app_id", "detail": "remove it, or name the app of the token"}
                raise Problem(403, "other-app", "the token belongs to another app", faults=[fault])
            if question.search is None and not access.may_use(question.workflow):
                detail = access.other_workflow(question.workflow) or no_rules(question.workflow)
                return Response(_no_rules(detail).model_dump_json(), media_type=JSON)
            given: dict[str, Any] = {name: getattr(question, name) for name in ContextQuestion.model_fields}
            given["app_id"] = app_id
            reply = await self.client.context(**given)
        return Response(public(reply).model_dump_json(), media_type=JSON)

    async def tools(self, mcp: McpService, request: Request) -> Response:
        """Answer a request of MCP: the app is that of the token, and the address names the scope."""
        rights = self._access(request, "read")
        check_origin(request)
        app_id, address = rights.app_id, address_of(request)
        note_users(request, app_id, address.users)
        if not rights.may_use(address.workflow):
            raise Problem(403, "other-workflow", OTHER_WORKFLOW)
        with self.limiter.enter(app_id):
            _check_json(request)

            def read(body: bytes) -> bytes:
                read_json(body)  # refuses what costs too much
                return body

            body = await self._read(rights, request, read, self.limits.events_bytes)
            return await mcp.answer(request, body, rights, address)

    async def healthcheck(self, _: Request) -> Response:
        """Answer as long as the process runs, as Graphiti's server does."""
        return JSONResponse({"status": "healthy"})

    async def health(self, _: Request) -> Response:
        """Answer as long as the process runs."""
        return JSONResponse({"process": "ok"})

    async def readiness(self, _: Request) -> Response:
        """Check that a responder answers, or at least the bus."""
        async with self.probing:
            at, state = self.probed
            if SYSTEM_CLOCK.monotonic() - at >= self.limits.probe_s:
                state = await self._probe()
                self.probed = (SYSTEM_CLOCK.monotonic(), state)
        if state is None:
            raise Problem(
                503,
                "bus-unavailable",
                "the bus does not answer, or takes no events",
                headers={"Retry-After": str(_RETRY_S)},
            )
        refusals = self.client.refusals
        refused = {"partitions": "; ".join(refusals[number] for number in sorted(refusals))} if refusals else {}
        return JSONResponse({**state, **refused, **self.faults()})

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document; only a valid token sees the ontologies."""
        try:
            self._access(request)
        except Problem:
            return JSONResponse(self.open_document)
        return JSONResponse(self.document)

    async def _read[T](
        self, access: RequestRights, request: Request, reader: Callable[[bytes], T], limit: int, *, otlp: bool = False
    ) -> T:
        """Read the body. Raises ``Problem`` also if the token was revoked, or changed, while it was sent."""
        body = await self.limiter.receive(access.app_id, request, limit=limit, gzip=otlp)
        if self._access(request).token != access.token:
            raise Problem(401, "no-token", "the token was changed while the request was sent: send it again")
        return await self.limiter.read(access.app_id, body, reader, costly=otlp)

    async def _question[Q: BaseModel](self, access: RequestRights, request: Request, model: type[Q]) -> Q:
        _check_json(request)
        try:
            return await self._read(
                access, request, lambda body: model.model_validate(read_json(body)), self.limits.context_bytes
            )
        except ValidationError as error:
            detail = "the question breaks the contract"
            raise Problem(422, "invalid-question", detail, faults=faults_of(error, model=model)) from None

    @contextmanager
    def _taking(self, app_id: str) -> Generator[None]:
        """Count one open request of an app that sends events. Raises ``Problem`` if there are too many, or too much."""
        with self.limiter.enter(app_id):
            if self.quotas is not None:
                self.quotas.check(app_id)  # before the body is read; what it holds is counted later
            yield

    async def _publish(self, app_id: str, events: Sequence[EncodedEvent]) -> list[str]:
        """Publish events and return their positions. Raises ``Problem`` with the positions that the bus confirmed."""
        EVENTS_RECEIVED.add(len(events), app=app_id)
        if self.quotas is not None and events:
            self.quotas.take(app_id, events)
        outcomes = await self.client.emit_each(events, wait_s=self.limits.emit_s)
        confirmed = [outcome for outcome in outcomes if isinstance(outcome, str)]
        refused = [outcome for outcome in outcomes if isinstance(outcome, Permanent)]
        positions = [outcome if isinstance(outcome, str) else None for outcome in outcomes]
        if refused and len(confirmed) + len(refused) == len(outcomes):
            logger.error("events_refused", app_id=app_id, events=len(refused), error=str(refused[0]))
            code = "partition-refused" if isinstance(refused[0], PartitionRefused) else "event-refused"
            raise Problem(507, code, f"{refused[0]}. Events with a position are on the bus", positions=positions)
        if len(confirmed) < len(positions):
            logger.warning("events_not_confirmed", app_id=app_id, events=len(positions), missing=positions.count(None))
            raise Problem(
                503,
                "bus-unavailable",
                "the bus did not confirm all events in time; events without a position may still take effect. Send the "
                "same request again until it is taken: events that are on the bus already have no second effect",
                headers={"Retry-After": str(_RETRY_S)},
                positions=positions,
            )
        return confirmed

    async def _probe(self) -> dict[str, str] | None:
        """Request context that no rule has, and ask the bus itself if no responder answers."""
        reply = await self.client.context(
            agent=_PROBE, chat_id=_PROBE, app_id=_PROBE, workflow=_PROBE, budget_ms=_PROBE_MS
        )
        match reply.reason:
            case "disabled" if reply.context_id:  # only a responder sets it
                return {"bus": "ok", "responder": "context is off"}
            case "disabled":
                responder = "not asked: context is off here"
            case "timeout" | "bus_unavailable" | "internal_error":
                responder = "no answer"
                if reply.reason == "bus_unavailable" and "`graphweft bus mend" in (reply.detail or ""):
                    responder = f"no answer: {reply.detail}"
            case _:
                return {"bus": "ok", "responder": "ok"}
        return {"bus": "ok", "responder": responder} if await self._reached() else None

    async def _reached(self) -> bool:
        """Return whether the bus takes events: a new transport asks, by appending none."""
        try:
            async with aclosing(self.connect()) as transport, asyncio.timeout(_REACH_S):
                await transport.append(())
        except (TimeoutError, Transient, Permanent) as error:
            logger.debug("bus_unavailable", error=str(error))
            return False
        return True

    def _access(self, request: Request, *roles: Role) -> RequestRights:
        """Return what the request may do. Raises ``Problem`` without a valid token, or without one of the roles."""
        if self.tokens is None:
            if not _LOOPBACK.fullmatch(request.headers.get("host", "")):
                raise Problem(403, "other-host", "without tokens the gateway answers to 127.0.0.1 and localhost only")
            access = RequestRights(token=self.insecure, app_may_use=self.may_use)
            note_token(request, access.token)
        else:
            access = find_access(self.tokens(), request, self.may_use, partial(self._found, request))
        if roles:
            access.require(*roles)
        return access

    def _found(self, request: Request, token: AccessToken) -> None:
        """Note whose token a request has; warn of one that has expired, once a minute."""
        note_token(request, token)
        if token.expires is None or not token.has_expired(SYSTEM_CLOCK.now()):
            return
        if (left_out := self._expired.admit(token.sha256)) is not None:
            logger.warning(
                "token_expired", token=name_of(token), app_id=token.app_id, expired=f"{token.expires:%Y-%m-%d %H:%MZ}",
                left_out=left_out, next="its requests are refused: `graphweft token new` makes a new one",
            )  # fmt: skip


def _no_rules(detail: str) -> ContextReply:
    """Return the reply that a responder gives for a workflow that the app may not use, or that does not exist."""
    return ContextReply(id=uuid4().hex, context_id=uuid4().hex, reason="no_rules", detail=detail)


def _encoded(events: Sequence[Event]) -> list[EncodedEvent]:
    """Encode events where their body is read: for a large body that is a thread. Raises ``Problem``."""
    try:
        return [*map(encoded_event, events)]
    except InvalidEvent as error:
        raise Problem(422, "invalid-event", f"an event breaks the contract; nothing was taken: {error}") from None


def _check_json(request: Request) -> None:
    if media_type(request) != JSON:
        raise Problem(415, "unsupported-media-type", f"send the body as {JSON}")
