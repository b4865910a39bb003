"""Limits of one request, of one app and of all apps, and the reading of bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import from_json, to_json
from starlette.requests import Request

from graphweft_workers.gateway.problems import Problem, pointer
from graphweft_workers.text.content_limits import count_json

_INFINITY: Final = b"Infinity"
_VALUES: Final = 300_000
_INLINE_BYTES: Final = 32_768
"""A smaller body is read on the event loop: it takes a few milliseconds at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Limits of a gateway."""

    events_bytes: int = 4_000_000
    """Body of ``/v1/events``, ``/messages`` and ``/v1/traces``. The bus also limits the size of one event."""
    unpacked_bytes: int = 4_000_000
    """Decompressed body of ``/v1/traces``."""
    unpacked_ratio: int = 20
    """Decompressed bytes for each compressed one; spans compress to a tenth."""
    unpacked_always: int = 500_000
    """Decompressed bytes that are allowed whatever the ratio: a batch of an exporter has less."""
    values: int = _VALUES
    """Values of a body: those in objects and arrays of JSON included, or the fields of protobuf."""
    values_ratio: int = 10
    """Values for each compressed byte: parsing costs by the value."""
    values_always: int = 20_000
    """Values that are allowed whatever the ratio."""
    context_bytes: int = 1_000_000
    """Body of ``/v1/context`` and ``/search``. Some buses take little more in one record."""
    body_s: float = 10.0
    """Maximum time for a body to arrive."""
    probe_s: float = 1.0
    """Requests for readiness need no token, so the bus is asked at most once in this time."""
    events: int = 500
    """Events of one batch, or messages of one request. So many go to the bus in one round trip."""
    spans: int = 10_000
    """Spans of one request."""
    span_events: int = 5_000
    """Events from the spans of one request: half of the client's buffer."""
    emit_s: float = 5.0
    """Maximum wait for the bus to confirm."""
    search_s: float = 5.0
    """Maximum wait for the facts of ``/search``."""
    requests: int = 512
    requests_per_app: int = 128

    def unpacked_for(self, packed: int) -> int:
        """Return how many bytes a body of so many compressed bytes may have."""
        return min(self.unpacked_bytes, max(self.unpacked_always, packed * self.unpacked_ratio))

    def values_for(self, packed: int) -> int:
        """Return how many values a body of so many compressed bytes may have."""
        return min(self.values, max(self.values_always, packed * self.values_ratio))


@dataclass(slots=True)
class _App:
    open: int = 0
    arriving: list[asyncio.Timeout] = field(default_factory=list[asyncio.Timeout])
    """The limits of time of bodies that arrive, the oldest first."""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class RequestLimiter:
    """Limits the open requests of each app and of all apps, and reads bodies so that no app delays the others."""

    def __init__(self, limits: GatewayLimits, *, name: str = "gateway") -> None:
        """``name`` is what refusals call the server."""
        self._limits = limits
        self._name = name
        self._open = 0
        self._apps: dict[str, _App] = {}

    @contextmanager
    def enter(self, app_id: str) -> Generator[None]:
        """Count one open request of an app while the block runs. Raises ``Problem`` when there are too many.

        While all apps together have too many, a body that still arrives is given up for an app that has fewer: apps
        that send slowly shut out nobody.
        """
        app = self._apps.get(app_id) or _App()
        if app.open >= self._limits.requests_per_app:
            raise Problem(
                429,
                "too-many-requests",
                f"this app already has {self._limits.requests_per_app} open requests; nothing of this one was "
                "taken: send it again when others are answered",
                headers={"Retry-After": "1"},
            )
        if self._open >= self._limits.requests and not self._make_room(app):
            raise Problem(
                503,
                "overloaded",
                f"the {self._name} has too many open requests of all apps; this one was not taken: send it again",
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

    def _make_room(self, app: _App) -> bool:
        """Give up the oldest body of the app with the most that arrive, if it has more open requests than ``app``."""
        slowest = max(self._apps.values(), key=lambda each: len(each.arriving))
        if not slowest.arriving or slowest.open <= app.open:
            return False
        slowest.arriving.pop(0).reschedule(0)  # a moment in the past
        return True

    async def receive(self, app_id: str, request: Request, *, limit: int, gzip: bool = False) -> bytes:
        """Return the body of an app that has entered, as it was sent. ``gzip`` allows that encoding.

        Raises ``Problem`` for a body of more than ``limit`` bytes, for another encoding, and for a body that takes too
        long to arrive.
        """
        arriving = self._apps[app_id].arriving
        try:
            async with asyncio.timeout(self._limits.body_s) as time:
                arriving.append(time)
                try:
                    return await _received(request, limit=limit, gzip=gzip)
                finally:
                    if time in arriving:
                        arriving.remove(time)
        except TimeoutError:
            raise Problem(
                408,
                "slow-body",
                f"the body did not arrive within {self._limits.body_s:g} s, or the {self._name} needed its place "
                "meanwhile; send it again",
            ) from None

    async def read[T](self, app_id: str, body: bytes, reader: Callable[[bytes], T], *, costly: bool = False) -> T:
        """Return the result of ``reader`` for the body of an app that has entered.

        Large bodies are read in a thread, one at a time for each app: four megabytes take most of a second. A
        ``costly`` body takes more time than its size tells, so it counts as large.
        """
        if len(body) <= _INLINE_BYTES and not costly:
            return reader(body)
        async with self._apps[app_id].reading:
            return await asyncio.to_thread(reader, body)


def media_type(request: Request) -> str:
    """Return the media type of the body in lower case, or "". Raises ``Problem`` for a charset other than UTF-8."""
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in {"utf-8", "utf8"}:
            raise Problem(415, "unsupported-media-type", "send JSON as UTF-8, or without a charset")
    return kind.strip().lower()


def encoding_of(request: Request) -> str:
    """Return the content encoding of the body in lower case; the default is ``identity``."""
    return request.headers.get("content-encoding", "identity").strip().lower()


async def _received(request: Request, *, limit: int, gzip: bool) -> bytes:
    if encoding_of(request) not in ({"identity", "gzip"} if gzip else {"identity"}):
        how = "uncompressed or with gzip" if gzip else "uncompressed, without a Content-Encoding"
        raise Problem(415, "unsupported-media-type", f"send the body {how}")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limit:
        raise _too_large(limit, f"this one has {int(length[:20]):,}")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit, "this one has more")
    return bytes(body)


def read_json(body: bytes, *, values: int = _VALUES) -> Any:
    """Parse a body. Raises ``Problem`` unless it is JSON (RFC 8259: UTF-8, no NaN, no infinity).

    A body with more than ``values`` values is refused before it is parsed.
    """
    if (seen := count_json(body, enough=values)) > values:
        raise too_many_values(values, f"{seen:,}")
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:  # its text names line and column and does not quote the body
        raise _no_json(str(error)) from None
    if _INFINITY in (text := to_json(value)):  # 1e999 is parsed as infinity
        try:
            from_json(text, allow_inf_nan=False)
        except ValueError:
            raise _no_json("a number is too large: the maximum is about 1.8e308") from None
    return value


def whole(value: Any) -> Any:
    """Return 2 for 2.0, which is an integer in JSON Schema; return other values unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def too_many_values(limit: int, seen: str) -> Problem:
    """Return the refusal of a body with ``seen`` values, which is more than ``limit``."""
    return Problem(
        422,
        "too-many-values",
        f"a body of this size has at most {limit:,} values, those in objects and arrays included, and this one has "
        f"{seen}: send less at a time; nothing was taken",
    )


def _no_json(detail: str) -> Problem:
    return Problem(400, "no-json", "the body is not valid JSON", faults=[{"pointer": pointer(), "detail": detail}])


def _too_large(limit: int, seen: str) -> Problem:
    return Problem(413, "body-too-large", f"a body has at most {limit:,} bytes, and {seen}: send less at a time")
