"""How much one request, one app and all of them may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import from_json, to_json
from starlette.requests import Request

from graphweft_workers.gateway.problems import Problem, pointer

_INFINITY: Final = b"Infinity"
_AT_ONCE_BYTES: Final = 32_768
"""A body up to this size is read where it is: in a few milliseconds, the time of some changes of threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of what a gateway takes."""

    events_bytes: int = 4_000_000
    """Body of ``/v1/events``, ``/messages`` and ``/v1/traces``. One event has the bus's own limit besides."""
    unpacked_bytes: int = 16_000_000
    """Body of ``/v1/traces`` when it is unpacked."""
    context_bytes: int = 1_000_000
    """Body of ``/v1/context`` and ``/search``: a Kafka broker takes little more in one record."""
    body_s: float = 10.0
    """Longest that a body may take to arrive."""
    events: int = 500
    """Events of one batch, messages of one request: as many as go to the bus in one round trip."""
    spans: int = 10_000
    """Spans of one request."""
    span_events: int = 5_000
    """Events that the spans of one request give: half of what a client keeps for the bus."""
    emit_s: float = 5.0
    """Longest wait for the bus to confirm."""
    search_s: float = 5.0
    """Longest wait for the facts of ``/search``."""
    requests: int = 512
    requests_per_app: int = 128


@dataclass(slots=True)
class _App:
    open: int = 0
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class Gate:
    """Counts the requests that are worked on, and reads their bodies so that no app holds up the others."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open = 0
        self._apps: dict[str, _App] = {}

    @contextmanager
    def enter(self, app_id: str) -> Generator[None]:
        """Count one request of an app while the block runs. Raises ``Problem`` when there are too many."""
        app = self._apps.get(app_id) or _App()
        if app.open >= self._limits.requests_per_app:
            raise Problem(
                429,
                "too-many-requests",
                f"this app has {self._limits.requests_per_app} requests open here already; nothing of this one was "
                "taken: send it again when others are answered",
                headers={"Retry-After": "1"},
            )
        if self._open >= self._limits.requests:
            raise Problem(
                503,
                "overloaded",
                "the gateway has as many requests as it takes; nothing of this one was taken: send it again",
                headers={"Retry-After": "1"},
            )
        self._apps[app_id] = app
        app.open += 1
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            app.open -= 1
            if not app.open:
                del self._apps[app_id]

    async def read[T](self, app_id: str, body: bytes, reader: Callable[[bytes], T], *, packed: bool = False) -> T:
        """Return what ``reader`` makes of the body of an app that has entered.

        It runs in a thread for large bodies, of an app one after the other: four megabytes take most of a second. How
        large one is that is ``packed`` shows when it is unpacked only.
        """
        if len(body) <= _AT_ONCE_BYTES and not packed:
            return reader(body)
        async with self._apps[app_id].reading:
            return await asyncio.to_thread(reader, body)


def media_type(request: Request) -> str:
    """Return the media type of the body in lower case, "" without one. Raises ``Problem`` unless its text is UTF-8."""
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in {"utf-8", "utf8"}:
            raise Problem(415, "unsupported-media-type", "send JSON as UTF-8, or without a charset")
    return kind.strip().lower()


def encoding_of(request: Request) -> str:
    """Return the content encoding of the body in lower case, ``identity`` without one."""
    return request.headers.get("content-encoding", "identity").strip().lower()


async def read_body(request: Request, *, most: int, seconds: float, gzip: bool = False) -> bytes:
    """Return the body as it comes, which may be packed with ``gzip`` only.

    Raises ``Problem`` when it is larger than ``most`` bytes, packed otherwise, or slow to come.
    """
    if encoding_of(request) not in ({"identity", "gzip"} if gzip else {"identity"}):
        how = "as it is, or with gzip" if gzip else "as it is, without a Content-Encoding"
        raise Problem(415, "unsupported-media-type", f"send the body {how}")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise Problem(408, "slow-body", f"the body did not arrive within {seconds:g} s; send it again") from None
    return bytes(body)


def read_json(body: bytes) -> Any:
    """Parse a body. Raises ``Problem`` when it is no JSON (RFC 8259: UTF-8, no NaN, no infinity)."""
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:  # its text names line and column and quotes nothing
        raise _no_json(str(error)) from None
    if _INFINITY in (text := to_json(value)):  # 1e999 is read as one
        try:
            from_json(text, allow_inf_nan=False)
        except ValueError:
            raise _no_json("a number is larger than JSON's readers take: at most about 1.8e308") from None
    return value


def whole(value: Any) -> Any:
    """Return 2 for 2.0, which JSON Schema counts as an integer, and everything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _no_json(detail: str) -> Problem:
    return Problem(400, "no-json", "the body is no JSON", faults=[{"pointer": pointer(), "detail": detail}])


def _too_large(most: int) -> Problem:
    return Problem(413, "body-too-large", f"a body has at most {most:,} bytes here: send less at a time")
