"""TLS, certificates and logins on real servers: who has them gets in, and who has not is told what to do."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.services.certificates import Authority
from tests.services.fixtures import SecureKafka
from tests.services.neo4j import Neo4jServer
from tests.services.tls_proxy import tls_proxy

from graphweft import Client
from graphweft.transports.access import ServerLogin, tls_context
from graphweft_contracts import BusUnavailable, Event, GraphUnavailable, InvalidSettings, channels
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import examine_bus, examine_rights

pytestmark = pytest.mark.integration


def event() -> Event:
    return Event.create("order.paid", app_id="acme", chat_id="c", data={"order": 1})


async def test_redis_over_tls_needs_the_authority_and_the_certificate(
    server: EmbeddedServer, url: str, tmp_path: Path
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    own, foreign = authority.sign("client"), stranger.sign("foreign")

    async def open_socket() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(server.socket)

    async with tls_proxy(open_socket, authority.sign("server"), clients=authority.file) as port:
        address = f"rediss://127.0.0.1:{port}"
        good = ServerLogin(ca=str(authority.file), cert=str(own.cert), cert_key=str(own.key))
        async with Client(good.applied(address, "bus")) as client:
            assert await client.emit(event(), wait_s=120)
        store = FalkorDBStore(ServerLogin(ca=str(authority.file), cert=str(own.both)).applied(address, "bus"))
        await store.check()
        await store.aclose()
        for access in (
            ServerLogin(ca=str(authority.file)),
            ServerLogin(ca=str(stranger.file), cert=str(own.both)),
            ServerLogin(ca=str(authority.file), cert=str(foreign.both)),
            ServerLogin(cert=str(own.both)),
        ):
            bus = redis_bus(access.applied(address, "bus"))
            with pytest.raises(BusUnavailable):
                await bus.partitions.layout()
            await bus.aclose()
        with pytest.raises(InvalidSettings, match="no-such-file"):
            redis_bus(ServerLogin(ca="/no-such-file").applied(address, "bus"))


async def test_neo4j_over_tls_needs_the_authority(neo4j_server: Neo4jServer, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    where = urlsplit(neo4j_server.uri)

    async def open_bolt() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(where.hostname, where.port)

    async with tls_proxy(open_bolt, authority.sign("server")) as port:
        for file, answers in ((authority.file, True), (stranger.file, False)):
            store = Neo4jStore(ServerLogin(ca=str(file)).applied(f"bolt+s://127.0.0.1:{port}", "graph"))
            if answers:
                await store.check()
            else:
                with pytest.raises(GraphUnavailable):
                    await store.check()
            await store.aclose()


def replace_files(folder: Path, authority: Authority, name: str) -> ServerLogin:
    """Write the files of a client, as whoever renews certificates does; they keep their names."""
    made = authority.sign(name)
    for source, to in ((authority.file, "ca"), (made.cert, "cert"), (made.key, "key")):
        (folder / f"{to}.new").write_bytes(source.read_bytes())
        (folder / f"{to}.new").rename(folder / to)
    return ServerLogin(ca=str(folder / "ca"), cert=str(folder / "cert"), cert_key=str(folder / "key"))


async def test_certificates_that_were_replaced_are_used_for_the_next_connection(
    server: EmbeddedServer, neo4j_server: Neo4jServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    login = replace_files(tmp_path, old, "first")
    where = urlsplit(neo4j_server.uri)

    async def open_socket() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(server.socket)

    async def open_bolt() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(where.hostname, where.port)

    async def shake_hands(context: ssl.SSLContext, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"PING\r\n")
        assert await reader.readline() == b"+PONG\r\n"
        writer.close()

    async with contextlib.AsyncExitStack() as stack:
        async with (
            tls_proxy(open_socket, old.sign("one"), clients=old.file) as redis_port,
            tls_proxy(open_bolt, old.sign("two")) as bolt_port,
        ):
            bus = redis_bus(login.applied(f"rediss://127.0.0.1:{redis_port}", "bus"))
            stack.push_async_callback(bus.aclose)
            graph = Neo4jStore(ServerLogin(ca=login.ca).applied(f"bolt+s://127.0.0.1:{bolt_port}", "graph"))
            stack.push_async_callback(graph.aclose)
            context = tls_context(login.ca, login.cert, login.cert_key)
            await bus.partitions.layout()
            await graph.check()
            await shake_hands(context, redis_port)
        replace_files(tmp_path, new, "second")
        async with (
            tls_proxy(open_socket, new.sign("three"), clients=new.file, port=redis_port),
            tls_proxy(open_bolt, new.sign("four"), port=bolt_port),
        ):
            await bus.partitions.count(fresh=True)
            await graph.check()
            await shake_hands(context, redis_port)
            (tmp_path / "key").unlink()
            await shake_hands(context, redis_port)
            [warning] = [each.getMessage() for each in caplog.records if each.name == "graphweft.client"]
            assert str(tmp_path / "key") in warning
            assert "those that were read before are used" in warning


@pytest.mark.parametrize("sasl", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_login_on_kafka_is_checked(
    secure_kafka: SecureKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sasl: str
) -> None:
    """The settings that name users and files are those of a user: variables, with the password in a file."""
    password = tmp_path / "password"
    password.write_text("secret\n")
    variables = {
        "URL": f"kafka+ssl://{secure_kafka.server.bootstrap}", "USER": "nobody" if sasl == "PLAIN" else "scram",
        "PASSWORD_FILE": str(password), "SASL": sasl, "CA": str(secure_kafka.authority),
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(f"GRAPHWEFT_BUS_{name}", value)
    [answers, *_] = await examine_bus(Settings.load(), "advice")
    assert answers.state == "ok"
    # The broker gives nobody a right that was not given.
    [rights] = await examine_rights(Settings.load(), "gateway", None)
    assert rights.state == "fail"
    user = variables["USER"]
    assert f"--allow-principal User:{user} --operation Write --topic {channels.EVENTS_TOPIC}" in rights.advice
    assert f"--operation Read --topic {channels.CONTEXT_REPLIES_TOPIC}" in rights.advice
    password.write_text("wrong-1\n")
    [refused, *_] = await examine_bus(Settings.load(), "advice")
    assert refused.state == "fail"
    assert "uthentication" in refused.found
    assert "wrong-1" not in refused.found
    password.write_text("secret\n")
    monkeypatch.setenv("GRAPHWEFT_BUS_CA", str(Authority(tmp_path, "stranger").file))
    [untrusted, *_] = await examine_bus(Settings.load(), "advice")
    assert "certificate verify failed" in untrusted.found
