"""uvicorn's HTTP protocol, stricter: a proxy and the gateway must see the same requests in the same bytes.

uvicorn parses with h11, which is lenient where RFC 9112 allows it. A proxy that reads such bytes otherwise would take a
part of one client's request for the request of another client.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from typing import Any, Final, override

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.gateway")

HEAD_S: Final = 10.0
"""The time limit for the head of a request; the body has the same."""
UNREAD_S: Final = 30.0
"""So long a client may take no byte of an answer that waits for it."""
_LENIENT: Final = re.compile(rb"(?<!\r)\n|\r(?!\n)|\n[ \t]")
"""A line end other than CR LF, or a header that goes on in the next line."""
_IPV6_PREFIX: Final = 64
"""One customer of a provider has at least so many addresses, so they count as one."""
_TOO_MANY: Final = (
    b"this address has too many connections: use fewer, or have the operator raise GRAPHWEFT_GATEWAY_CONNECTIONS\n"
)
_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s"
) % (len(_TOO_MANY), _TOO_MANY)


class StrictConnection(h11.Connection):
    """Refuses what RFC 9112 lets a server refuse, because readers differ about it.

    These are lines that end otherwise than in CR LF, headers over several lines, a Content-Length beside a
    Transfer-Encoding, and trailers.
    """

    @override
    def next_event(self) -> Any:
        """Return the next event. Raises ``RemoteProtocolError`` for a refused one."""
        before = self.trailing_data[0]
        event = super().next_event()
        if isinstance(event, h11.Request | h11.EndOfMessage):
            left = len(self.trailing_data[0])
            if _LENIENT.search(before, 0, len(before) - left):
                raise h11.RemoteProtocolError("a line does not end in CR LF, or a header has several lines")
            names = {name for name, _ in event.headers}
            if isinstance(event, h11.EndOfMessage):
                if names:
                    raise h11.RemoteProtocolError("a body with trailers")
            elif {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("a Content-Length beside a Transfer-Encoding")
        return event


class ConnectionLimit:
    """Limits the open connections of each address; ``most=0`` does not limit them.

    With ``newest_first`` it limits those of all addresses together, and takes each new one: the oldest idle one gives
    way, so nobody keeps others out by holding connections.
    """

    def __init__(self, most: int, *, newest_first: bool = False) -> None:
        self.most = most
        self._newest_first = newest_first
        self._open: dict[str, dict[GatewayProtocol, None]] = {}

    def enter(self, address: str, connection: GatewayProtocol) -> bool:
        """Count a connection, and return whether it may be open."""
        if not self.most:
            return True
        known = self._open.setdefault(self._key(address), {})
        if len(known) >= self.most:
            if not self._newest_first:
                return False
            oldest = next((each for each in known if each.is_idle), next(iter(known)))
            del known[oldest]
            oldest.give_way()
        known[connection] = None
        return True

    def leave(self, address: str, connection: GatewayProtocol) -> None:
        """Count a connection that entered no longer."""
        key = self._key(address)
        known = self._open.get(key, {})
        known.pop(connection, None)
        if not known:
            self._open.pop(key, None)

    def _key(self, address: str) -> str:
        return "" if self._newest_first else _network(address)


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))


class GatewayProtocol(H11Protocol):
    """uvicorn's protocol with ``StrictConnection``, a time limit for the head, and a limit of each address.

    ``limit`` is shared by all connections of a class: see ``protocol_of``.
    """

    limit = ConnectionLimit(0)
    _closing: asyncio.TimerHandle | None = None
    """The timer that runs while no request is being answered."""
    _unread: asyncio.TimerHandle | None = None
    """The timer that runs while an answer waits for the client to read."""
    _entered: str | None = None
    """The address that was counted."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        most = self.config.h11_max_incomplete_event_size
        self.conn = StrictConnection(h11.SERVER) if most is None else StrictConnection(h11.SERVER, most)

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if self.limit.enter(address, self):
            self._entered = address
            self._watch()
            return
        logger.warning(
            "connection_refused", address=address, most=self.limit.most, next="further ones of it are closed too"
        )
        transport.write(_REFUSAL)
        transport.close()

    @override
    def data_received(self, data: bytes) -> None:
        if self._entered is None:
            return
        super().data_received(data)
        self._watch()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_watching()
        self._stop_waiting()
        if self._entered is not None:
            self.limit.leave(self._entered, self)
            self._entered = None

    @override
    def pause_writing(self) -> None:
        """Stop the answer until the client has read some of it; hang up if it does not."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    @override
    def send_400_response(self, msg: str) -> None:
        """Answer, unless the answer to the request has begun: then only close the connection."""
        try:
            if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                super().send_400_response(msg)
        except h11.LocalProtocolError:  # the answer to HEAD has no body, but uvicorn sends one
            logger.debug("body_of_head_left_out", status=400)
        finally:
            self.transport.close()

    @property
    def is_idle(self) -> bool:
        """Whether no request of it is being answered."""
        # None before the first request, whatever the types say.
        return not self.cycle or self.cycle.response_complete

    def give_way(self) -> None:
        """Close it at once, so that another one can be open."""
        logger.warning(
            "connection_gave_way", address=self._entered, most=self.limit.most, next="so do further ones of any address"
        )
        self.transport.abort()

    def _watch(self) -> None:
        if not self.is_idle:
            self._stop_watching()
        elif self._closing is None:
            self._closing = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_watching(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


def protocol_of(most_connections: int, *, newest_first: bool = False) -> type[GatewayProtocol]:
    """Return the protocol of one server; its arguments are those of ``ConnectionLimit``."""

    class LimitedProtocol(GatewayProtocol):
        limit = ConnectionLimit(most_connections, newest_first=newest_first)

    return LimitedProtocol
