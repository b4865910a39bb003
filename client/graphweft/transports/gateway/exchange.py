"""One HTTP request over a connection of its own. The caller limits its time by cancelling it."""

from __future__ import annotations

import asyncio
import functools
import re
import ssl
from dataclasses import dataclass
from typing import Final

from graphweft.transports.access import tls_context
from graphweft.transports.gateway.address import GatewayAddress
from graphweft_contracts.trace_context import TraceContext

_MAX_HEAD: Final = 64 * 1024
MAX_ANSWER: Final = 8_000_000
"""Largest body of an answer in bytes. A reply of a responder has at most 1,000,000."""
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})( [^\r\n]*)?")
_CONTINUES: Final = range(100, 200)


class NoAnswer(Exception):
    """No answer came, or it is not HTTP. The text quotes nothing from the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """An answer. A redirect is an answer like any other: nothing follows it."""

    status: int
    media_type: str
    body: bytes


async def post(
    address: GatewayAddress, path: str, content_type: str, body: bytes, *, trace: TraceContext | None = None
) -> HttpAnswer:
    """Send ``body`` as part of a trace, and return the answer. Raises ``NoAnswer``."""
    try:
        reader, writer = await asyncio.open_connection(
            address.host,
            address.port,
            limit=_MAX_HEAD,
            ssl=_trusted() if address.tls else None,
        )
    except ssl.SSLCertVerificationError as error:
        raise NoAnswer(f"its certificate is not valid here: {error.verify_message}") from None
    except (OSError, UnicodeError) as error:  # ssl.SSLError is an OSError, and a host name may be none
        raise NoAnswer(f"there is no connection ({_named(error)})") from None
    try:
        writer.write(_head(address, path, content_type, len(body), trace) + body)
        # A gateway that refuses a request answers before it has read all of it.
        sending = asyncio.ensure_future(writer.drain())
        try:
            return await _answer(reader)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    except (OSError, EOFError) as error:
        raise NoAnswer(f"the connection ended before the answer did ({_named(error)})") from None
    except (asyncio.LimitOverrunError, ValueError):
        raise NoAnswer("its answer is not one of HTTP") from None
    finally:
        writer.transport.abort()  # an orderly end could wait for the server


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Return the authorities of the system, which take a few milliseconds to read; ``SSL_CERT_FILE`` names others."""
    return tls_context(None, None, None)


def _head(address: GatewayAddress, path: str, content_type: str, length: int, trace: TraceContext | None) -> bytes:
    lines = [
        f"POST {address.path}{path} HTTP/1.1",
        f"Host: {address.authority}",
        f"Content-Type: {content_type}",
        f"Content-Length: {length}",
        "Accept: application/json",
        "Connection: close",
        *([] if address.token is None else [f"Authorization: Bearer {address.token}"]),
        *([] if trace is None else [f"{name}: {value}" for name, value in trace._asdict().items() if value]),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


async def _answer(reader: asyncio.StreamReader) -> HttpAnswer:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
        first, *lines = head.split(b"\r\n")
        found = _STATUS.fullmatch(first)
        if found is None:
            raise ValueError
        if (status := int(found[1])) not in _CONTINUES:
            break
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise ValueError
        headers[name.strip().lower()] = value.strip()
    return HttpAnswer(
        status=status,
        media_type=headers.get(b"content-type", b"").partition(b";")[0].decode("latin-1").strip().lower(),
        body=await _body(reader, headers),
    )


async def _body(reader: asyncio.StreamReader, headers: dict[bytes, bytes]) -> bytes:
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return await _chunks(reader)
    given = headers.get(b"content-length")
    if given is not None:
        return await reader.readexactly(_length(given, 10))
    return await _until_end(reader)


async def _until_end(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    left = MAX_ANSWER
    while part := await reader.read(_MAX_HEAD):
        left -= len(part)
        if left < 0:
            raise ValueError
        parts.append(part)
    return b"".join(parts)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    left = MAX_ANSWER
    while True:
        length = _length((await reader.readuntil(b"\r\n"))[:-2].partition(b";")[0].strip(), 16)
        if length == 0:
            return b"".join(parts)  # trailers say nothing to us
        left -= length
        if left < 0:
            raise ValueError
        parts.append((await reader.readexactly(length + 2))[:-2])


def _length(digits: bytes, base: int) -> int:
    if not re.fullmatch(rb"[0-9A-Fa-f]{1,9}", digits):
        raise ValueError
    length = int(digits, base)
    if length > MAX_ANSWER:
        raise ValueError
    return length


def _named(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or type(error).__name__
