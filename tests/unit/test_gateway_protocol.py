"""What the gateway's HTTP server takes from a connection, byte by byte."""

from __future__ import annotations

import h11
import pytest

from graphweft_workers.gateway.protocol import ConnectionLimit, StrictConnection

HEAD = b"POST /v1/events HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def events(data: bytes, *, at_once: bool = True) -> list[str]:
    """Return the names of the events; ``RemoteProtocolError`` ends them."""
    connection = StrictConnection(h11.SERVER)
    found: list[str] = []
    for part in [data] if at_once else [data[at : at + 1] for at in range(len(data))]:
        connection.receive_data(part)
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError:
                return [*found, "refused"]
            if event is h11.NEED_DATA or event is h11.PAUSED:
                break
            if not isinstance(event, h11.Data):
                found.append(type(event).__name__)
    return found


REFUSED = {
    "both lengths": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, other order": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "line feeds alone": b"GET / HTTP/1.1\nHost: x\n\n",
    "a line feed in the head": b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    "a line feed at the end of the head": b"GET / HTTP/1.1\r\nHost: x\r\n\n",
    "a header of two lines": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "a header of two lines, by a tab": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n\tc\r\n\r\n",
    "a carriage return alone": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n",
    "an empty line first": b"\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length with a sign": HEAD + b"Content-Length: +1\r\n\r\na",
    "a blank before the colon": HEAD + b"Content-Length : 1\r\n\r\na",
    "another encoding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}
REFUSED_LATER = {
    "a chunk size with a sign": CHUNKED + b"+5\r\nhello\r\n0\r\n\r\n",
    "a chunk that ends otherwise": CHUNKED + b"5\r\nhelloXX0\r\n\r\n",
    "trailers": CHUNKED + b"0\r\nA: b\r\n\r\n",
    "trailers with line feeds": CHUNKED + b"0\r\nA: b\n\n",
    "a line feed after the last chunk": CHUNKED + b"0\r\n\n",
}


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_head_that_readers_differ_about_is_refused(name: str, at_once: bool) -> None:
    assert events(REFUSED[name], at_once=at_once) == ["refused"]


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("name", REFUSED_LATER)
def test_a_body_that_readers_differ_about_is_refused(name: str, at_once: bool) -> None:
    assert events(REFUSED_LATER[name], at_once=at_once) == ["Request", "refused"]


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "byte by byte"])
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        HEAD + b"Content-Length: 7\r\n\r\na\nb\n c\r",
        CHUNKED + b"7\r\na\nb\n c\r\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 3\r\n\r\na\nbGET / HTTP/1.1\nHost: y\n\n",  # the next request is not read yet
    ],
)
def test_line_feeds_in_a_body_are_data(data: bytes, at_once: bool) -> None:
    assert events(data, at_once=at_once) == ["Request", "EndOfMessage"]


class Open:
    """A connection, which may be idle."""

    def __init__(self, *, is_idle: bool = True) -> None:
        self.is_idle = is_idle
        self.gone = False

    def give_way(self) -> None:
        self.gone = True


def test_the_connections_of_an_address_are_limited() -> None:
    limit = ConnectionLimit(2)
    first = Open()
    assert [limit.enter("192.0.2.1", each) for each in (first, Open(), Open())] == [True, True, False]
    assert limit.enter("192.0.2.2", Open())
    limit.leave("192.0.2.1", first)
    assert limit.enter("192.0.2.1", Open())
    assert not limit.enter("::ffff:192.0.2.1", Open()), "the same address"


def test_the_oldest_idle_connection_gives_way_to_a_new_one() -> None:
    limit = ConnectionLimit(3, newest_first=True)
    busy, first, second = Open(is_idle=False), Open(), Open(is_idle=False)
    more = [Open(is_idle=False) for _ in range(2)]
    assert all(limit.enter(f"192.0.2.{number}", each) for number, each in enumerate((busy, first, second)))
    assert limit.enter("192.0.2.1", more[0])
    assert [each.gone for each in (busy, first, second)] == [False, True, False]
    limit.leave("192.0.2.1", first)  # its end comes later, and frees no place
    assert limit.enter("192.0.2.1", more[1])
    assert [each.gone for each in (busy, second, *more)] == [True, False, False, False], "if all are busy, the oldest"


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    limit = ConnectionLimit(2)
    assert [limit.enter(each, Open()) for each in ("2001:db8::1", "2001:db8::2", "2001:db8::3")] == [True, True, False]
    assert limit.enter("2001:db8:0:1::1", Open())


def test_a_limit_of_zero_is_none() -> None:
    limit = ConnectionLimit(0)
    assert all(limit.enter("192.0.2.1", Open()) for _ in range(10_000))
