"""The ASGI application of the console: its page, its questions, and their limits.

Each question is a POST with a JSON body, so that ids of users are in no URL, and needs a token in the Authorization
header. A browser sends that header for no other site, so no other page can ask in the name of a user.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graphweft_contracts import (
    BusUnavailable,
    GraphUnavailable,
    InvalidEvent,
    InvalidRules,
    InvalidSettings,
    QueryFailed,
    Transient,
)
from graphweft_workers.console.access import Viewer, check_host, check_origin, check_viewer
from graphweft_workers.console.assets import Assets
from graphweft_workers.console.questions import Question, slow
from graphweft_workers.console.sources import Sources
from graphweft_workers.gateway.access import MayUse, find_access
from graphweft_workers.gateway.audit import AuditLog, AuditMiddleware, note_app, note_token, note_users
from graphweft_workers.gateway.limits import GatewayLimits, RequestLimiter, media_type, read_json
from graphweft_workers.gateway.problems import Problem, error_handlers, faults_of
from graphweft_workers.gateway.tokens import Tokens
from graphweft_workers.rule_sets.lost_rules import RulesLost
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.console")

LIMITS: Final = GatewayLimits(context_bytes=500_000, values=50_000, requests=64, requests_per_app=16)
_ANSWER_BYTES: Final = 4_000_000
_JSON: Final = "application/json"
_POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final[Mapping[bytes, bytes]] = {
    b"content-security-policy": _POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
}

type Answer = Callable[[Sources, Viewer, Any], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One question that the console answers."""

    path: str
    question: type[Question]
    answer: Answer
    seconds: float = 5.0
    """The answer ends after this time."""
    user: Callable[[Any], str | None] = lambda _: None
    """The user whose data a question names, for the audit log."""


def make_app(
    sources: Sources,
    pages: tuple[Page, ...],
    *,
    tokens: Callable[[], Tokens],
    may_use: MayUse = lambda app_id, workflow: True,
    audit: AuditLog | None = None,
    limits: GatewayLimits = LIMITS,
) -> Starlette:
    """Return the application. ``tokens`` returns the valid tokens; the settings say whether anything may be written.

    ``audit`` gets a line for each question.
    """
    console = _Console(sources=sources, tokens=tokens, may_use=may_use, limits=limits)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield

    paths = frozenset(page.path for page in pages)
    return Starlette(
        routes=[
            *(Route(page.path, console.answering(page), methods=["POST"]) for page in pages),
            Route("/healthz", console.health, methods=["GET"]),
            Route("/{path:path}", console.asset, methods=["GET"]),
        ],
        exception_handlers=error_handlers("the console has a defect; its log has the details"),
        lifespan=lifespan,
        middleware=[
            Middleware(_HostGuard, names=sources.settings.console_names),
            *([] if audit is None else [Middleware(AuditMiddleware, log=audit, paths=paths)]),
        ],
    )


class _HostGuard:
    """ASGI middleware: the headers of every answer, and the check of the host of every request."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *_HEADERS.items()]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                message["headers"] = headers
            await send(message)

        request = Request(scope)
        host = request.headers.get("host", "")
        try:
            check_host(host, self._names)
            site = None if _is_visit(request) else request.headers.get("sec-fetch-site")
            check_origin(request.headers.get("origin"), site, host)
        except Problem as problem:
            await problem.response()(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


@dataclass(kw_only=True, eq=False)
class _Console:
    sources: Sources
    tokens: Callable[[], Tokens]
    may_use: MayUse
    limits: GatewayLimits
    assets: Assets = field(default_factory=Assets)

    def __post_init__(self) -> None:
        self.limiter = RequestLimiter(self.limits, name="console")
        self.operators = RequestLimiter(self.limits, name="console")
        """Of their own: whatever apps leave open, operators can look."""

    def answering(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a question."""

        async def handle(request: Request) -> Response:
            viewer = self._viewer(request)
            limiter = self.operators if viewer.all_apps else self.limiter
            with limiter.enter(viewer.scope):
                question = await self._question(request, viewer, page.question, limiter)
                named = getattr(question, "app", None) or viewer.token.app_id
                if viewer.all_apps:
                    note_app(request, getattr(question, "app", None))
                note_users(request, named, [page.user(question)])
                try:
                    async with asyncio.timeout(page.seconds):
                        found = await page.answer(self.sources, viewer, question)
                except TimeoutError:
                    raise Problem(504, "too-slow", slow(page.seconds)) from None
                except QueryFailed as error:
                    if error.code == "timeout":
                        raise Problem(504, "too-slow", slow(page.seconds)) from None
                    raise Problem(422, "query-failed", str(error)) from None
                except RulesLost as error:
                    raise Problem(422, "refused", str(error)) from None
                except (BusUnavailable, GraphUnavailable) as error:
                    logger.info("question_not_answered", error=str(error))
                    name = "bus" if isinstance(error, BusUnavailable) else "graph server"
                    detail = f"The {name} does not answer: try again later. `graphweft doctor` says more."
                    raise Problem(503, "unavailable", detail, headers={"Retry-After": "2"}) from None
                except Transient as error:
                    logger.info("question_not_answered", error=str(error))
                    raise Problem(503, "unavailable", "Try again later.", headers={"Retry-After": "2"}) from None
                except (InvalidSettings, InvalidRules, InvalidEvent) as error:
                    raise Problem(422, "refused", str(error)) from None
                return await asyncio.to_thread(_answer, found)

        return handle

    async def health(self, _: Request) -> Response:
        """Answer as long as the process runs."""
        return Response(b'{"process":"ok"}', media_type=_JSON)

    async def asset(self, request: Request) -> Response:
        """Return a file of the page; it needs no token, because it holds no data."""
        found = self.assets.get(request.path_params["path"])
        if found is None:
            raise HTTPException(404)
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers={"ETag": found.etag, "Cache-Control": "no-cache"})
        headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
        return Response(found.content, media_type=found.media_type, headers=headers)

    def _viewer(self, request: Request) -> Viewer:
        token = find_access(self.tokens(), request, self.may_use, partial(note_token, request)).token
        check_viewer(token)
        writes = self.sources.settings.console_write and "admin" in token.roles
        return Viewer(token=token, may_write=writes, may_use=self.may_use)

    async def _question[Q: Question](
        self, request: Request, viewer: Viewer, model: type[Q], limiter: RequestLimiter
    ) -> Q:
        if media_type(request) != _JSON:
            raise Problem(415, "unsupported-media-type", f"send the body as {_JSON}")
        body = await limiter.receive(viewer.scope, request, limit=self.limits.context_bytes)
        try:
            return await limiter.read(
                viewer.scope,
                body,
                # Strict models take a list from JSON and not from Python, so the text is validated once it is bounded.
                lambda body: (read_json(body, values=self.limits.values), model.model_validate_json(body))[1],
            )
        except ValidationError as error:
            raise Problem(
                422, "invalid-question", "the question is not valid", faults=faults_of(error, model=model)
            ) from None


def _is_visit(request: Request) -> bool:
    """Tell whether a user follows a link, also one of another site: the page holds no data, and no frame shows it."""
    modes = (request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest"))
    return request.method in ("GET", "HEAD") and modes == ("navigate", "document")


def _answer(found: Mapping[str, Any]) -> Response:
    content = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(content) > _ANSWER_BYTES:
        raise Problem(413, "answer-too-large", f"the answer has more than {_ANSWER_BYTES:,} bytes: ask for less")
    return Response(content, media_type=_JSON)
