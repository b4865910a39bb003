"""The transport through a gateway, against servers that answer anything."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.services.certificates import Authority, Certificate

from graphweft import Client, Event
from graphweft.settings import ClientSettings
from graphweft.transport import Outgoing
from graphweft.transports.gateway import exchange
from graphweft.transports.gateway.exchange import MAX_ANSWER
from graphweft.transports.gateway.transport import GatewayTransport
from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest, InvalidEvent, InvalidSettings, wire

TOKEN = "gw_secret-token"


@dataclass
class Server:
    """Answers each connection with the next bytes, and keeps the requests. ``b""`` never answers."""

    answers: list[bytes]
    url: str = ""
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        [length] = [int(line.split()[1]) for line in head.splitlines() if line.lower().startswith("content-length:")]
        self.heads.append(head)
        self.bodies.append(await reader.readexactly(length))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer:
            writer.write(answer)
        else:
            await reader.read()  # until the client goes
        writer.close()

    def transport(self) -> GatewayTransport:
        return GatewayTransport(self.url, token=TOKEN)


@asynccontextmanager
async def answering(*answers: bytes, certificate: Certificate | None = None) -> AsyncIterator[Server]:
    made = Server(list(answers))
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.cert, certificate.key)
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=context) as server:
        made.url = f"http{'s' * bool(context)}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


def http(status: int, body: object, *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return "\r\n".join([f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", *headers, "", ""]).encode() + content


def problem(status: int, code: str, detail: str = "it went wrong", **more: object) -> bytes:
    return http(status, {"type": f"urn:graphweft:problem:{code}", "status": status, "detail": detail, **more})


def event(text: str = "private words") -> Event:
    return Event.create("note.made", app_id="acme", chat_id="c", data={"text": text})


def outgoing(event: Event) -> Outgoing:
    return Outgoing(key=event.key, fields=wire.encode(event))


def request(budget_ms: int = 10_000) -> ContextRequest:
    return ContextRequest(
        id="r1", app_id="acme", workflow="W", agent="A", chat_id="c", deadline_ms=int(time.time() * 1000) + budget_ms
    )


def reply(**more: object) -> dict[str, object]:
    return {"id": "of the gateway", "text": "hello", **more}


async def failure_of(transport: GatewayTransport, *events: Event) -> Exception:
    with pytest.raises((BusUnavailable, InvalidEvent)) as caught:
        await transport.append([outgoing(each) for each in events or (event(),)])
    return caught.value


async def test_events_go_in_their_order_with_the_token() -> None:
    async with answering(http(202, {"positions": ["1:1", "1:2"]})) as server:
        one, two = event("one"), event("two")
        assert await server.transport().append([outgoing(one), outgoing(two)]) == ["1:1", "1:2"]
        assert await server.transport().append([]) == []
        [sent] = map(json.loads, server.bodies)
        assert [each["id"] for each in sent] == [one.id, two.id]
        [head] = server.heads
        assert head.startswith("POST /v1/events HTTP/1.1\r\n")
        assert f"\r\nAuthorization: Bearer {TOKEN}\r\n" in head


async def test_more_than_a_request_may_have_goes_in_several() -> None:
    events = [event("x" * 900_000) for _ in range(6)]
    async with answering(http(202, {"positions": ["1:0"] * 4}), http(202, {"positions": ["1:1"] * 2})) as server:
        assert await server.transport().append(list(map(outgoing, events))) == ["1:0"] * 4 + ["1:1"] * 2
        sent = [each["id"] for body in server.bodies for each in json.loads(body)]
        assert sent == [each.id for each in events]
        assert max(map(len, server.bodies)) < 4_000_000


async def test_a_reply_in_chunks_is_the_reply_of_the_request() -> None:
    content = json.dumps(reply()).encode()
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in (content[:9], content[9:]))
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with answering(head + chunks + b"0\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n" + content) as server:
        for _ in range(2):
            found = await server.transport().request(request())
            assert (found.id, found.text, found.reason) == ("r1", "hello", None)
        asked = json.loads(server.bodies[0])
        assert asked["agent"] == "A"
        assert 1 <= asked["budget_ms"] <= 9_950  # the answer has to come back too
        assert asked.keys() & {"id", "deadline_ms", "reply_to"} == set()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 202 OK\r\nContent-Length: 99\r\n\r\n{",
        b"HTTP/1.1 202 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 202 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_ANSWER + 1),
        b"HTTP/1.1 202 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 202 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        b"HTTP/1.1 202 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 202 OK\r\nX: " + b"x" * 200_000,
        b"HTTP/1.1 202 OK\r\n\r\n" + b" " * (MAX_ANSWER + 1),
        http(202, b"<html>"),
        http(202, {"positions": []}),
        http(202, {"positions": [None]}),
        http(200, {"positions": ["1:1"]}),
        http(404, b"nothing here"),
        http(500, {"type": "about:blank", "detail": TOKEN}),
    ],
)
async def test_what_is_not_a_gateway_takes_nothing_and_is_told(answer: bytes) -> None:
    async with answering(answer) as server:
        error = await failure_of(server.transport())
        assert isinstance(error, BusUnavailable)  # the events stay in the buffer
        assert f"the gateway {server.url} " in str(error)
        assert "check GRAPHWEFT_GATEWAY_URL" in str(error)
        assert TOKEN not in str(error)
        async with Client(transport=server.transport(), app_id="acme") as client:
            found = await client.context(agent="A", workflow="W", chat_id="c", budget_ms=120_000)
        assert found.reason == "bus_unavailable"
        assert "check GRAPHWEFT_GATEWAY_URL" in found.detail
        assert TOKEN not in found.detail


async def test_a_redirect_gets_no_token() -> None:
    async with answering(http(202, {"positions": ["1:1"]})) as target:
        async with answering(http(307, b"", f"Location: {target.url}")) as server:
            assert "307, a redirect, which is not followed" in str(await failure_of(server.transport()))
            found = await server.transport().request(request())
            assert found.reason == "bus_unavailable"
        assert target.heads == []


async def test_refusals_say_what_the_gateway_says_and_never_the_token() -> None:
    said = f"you sent Bearer {TOKEN}\r\n\x1b[31m" + "x" * 2_000
    for status, kind, reason in (
        (401, BusUnavailable, "invalid_request"),
        (403, InvalidEvent, "invalid_request"),
        (422, InvalidEvent, "invalid_request"),
        (429, BusUnavailable, "overloaded"),
        (503, BusUnavailable, "bus_unavailable"),
    ):
        faults = [{"pointer": "#/0/type", "detail": TOKEN}]
        async with answering(problem(status, "some-code", said, errors=faults)) as server:
            error = await failure_of(server.transport())
            found = await server.transport().request(request())
        assert type(error) is kind
        assert found.reason == reason
        for text in (str(error), found.detail):
            assert f"answers {status}: some-code; you sent Bearer [REDACTED]" in text
            assert TOKEN not in text
            assert text.isprintable()
            assert len(text) < 400


async def test_one_refused_event_does_not_take_the_others_with_it() -> None:
    refused = problem(422, "invalid-event")
    taken = [http(202, {"positions": [position]}) for position in ("1:1", "1:2")]
    async with answering(refused, taken[0], refused, taken[1]) as server:
        client = Client(transport=server.transport(), app_id="acme")
        assert await client.emit_all([event("one"), event("two"), event("three")]) == ["1:1", None, "1:2"]
        assert (client.stats.sent, client.stats.rejected) == (2, 1)
        await client.aclose()


async def test_a_gateway_that_never_answers_ends_with_the_budget() -> None:
    async with answering(b"") as server, Client(transport=server.transport(), app_id="acme") as client:
        found = await client.context(agent="A", workflow="W", chat_id="c", budget_ms=50)
        assert found.reason == "timeout"
        assert await client.emit(event(), wait_s=0.05) is None
        await client.aclose(drain_s=0)
        assert client.stats.dropped == 1


async def test_the_certificate_of_a_gateway_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    exchange._trusted.cache_clear()  # pyright: ignore[reportPrivateUsage]
    try:
        for certificate, said in (
            (authority.sign("gateway"), None),
            (authority.sign("other", "elsewhere.example"), "its certificate is not valid here"),
            (Authority(tmp_path, "stranger").sign("third"), "its certificate is not valid here"),
        ):
            async with answering(http(202, {"positions": ["1:1"]}), certificate=certificate) as server:
                if said is None:
                    assert await server.transport().append([outgoing(event())]) == ["1:1"]
                else:
                    assert said in str(await failure_of(server.transport()))
                    assert server.heads == []  # the token was not sent
    finally:
        exchange._trusted.cache_clear()  # pyright: ignore[reportPrivateUsage]


async def test_plain_text_where_tls_is_expected_is_told() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")  # as servers of HTTP do for a greeting of TLS
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        transport = GatewayTransport(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", token=TOKEN)
        assert "there is no connection" in str(await failure_of(transport))


async def test_a_request_that_need_not_be_sent_is_not_sent() -> None:
    async with answering(http(200, reply())) as server:
        found = await server.transport().request(request(budget_ms=-1))
        assert isinstance(found, ContextReply)
        assert found.reason == "timeout"
        assert server.heads == []


@pytest.mark.parametrize(
    "url",
    ["", "gateway:8765", "redis://h", "http://", "http://h:0", "http://h:x", "http://[::1", "https://u:p@h", "http://h/?a=1",
     "http://h/#a", "http://h\r\nX: y", "http://ä"],
)  # fmt: skip
def test_urls_that_are_none_are_refused_without_quoting_them(url: str) -> None:
    with pytest.raises(InvalidSettings, match="expected http://host:port") as caught:
        GatewayTransport(url)
    assert "u:p@h" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: y", "ä", "x" * 5_000])
def test_tokens_that_are_none_are_refused_without_quoting_them(token: str) -> None:
    with pytest.raises(InvalidSettings, match="is not a token") as caught:
        GatewayTransport("http://h", token=token)
    assert not token or token not in str(caught.value)


def test_the_settings_name_a_gateway_or_a_bus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    url = {"GRAPHWEFT_GATEWAY_URL": "https://memory.example/graph/"}
    made = ClientSettings.from_environment({**url, "GRAPHWEFT_GATEWAY_TOKEN_FILE": str(file)})
    assert made.gateway_token == TOKEN
    assert TOKEN not in repr(made)
    assert made.gateway() is not None
    assert ClientSettings.from_environment({}).gateway() is None
    with pytest.raises(InvalidSettings, match="are both set: keep one"):
        ClientSettings.from_environment({**url, "GRAPHWEFT_BUS_URL": "redis://h"}).gateway()
    monkeypatch.setenv("GRAPHWEFT_GATEWAY_URL", "https://memory.example")
    monkeypatch.setenv("GRAPHWEFT_BUS_URL", "redis://127.0.0.1:1")
    with pytest.raises(InvalidSettings, match="are both set: keep one"):
        Client(app_id="acme")
    Client("redis://127.0.0.1:1", app_id="acme")  # what the caller names wins
