"""Logins and certificates of settings become parts of URLs, and secrets may lie in files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.services.certificates import Authority

from graphweft.settings import ClientSettings
from graphweft.transports.access import ServerLogin
from graphweft.transports.kafka.url import split_kafka_url
from graphweft.transports.redis.connection import connect
from graphweft_contracts import InvalidSettings
from graphweft_workers.drivers.neo4j.url import split_neo4j_url, tls_options
from graphweft_workers.drivers.redis_checks import check_redis_url, examine_server, memory
from graphweft_workers.ports.check import Check
from graphweft_workers.settings.settings import Settings

LOGIN = ServerLogin(user="u@x", password="p/w")


@pytest.mark.parametrize(
    ("access", "url", "found"),
    [
        (ServerLogin(), "redis://h", "redis://h"),
        (LOGIN, "redis://h:1/0", "redis://u%40x:p%2Fw@h:1/0"),
        (LOGIN, "unix:///a/b.sock?db=1", "unix://u%40x:p%2Fw@/a/b.sock?db=1"),
        (LOGIN, "kafka://a:1,b:2", "kafka://u%40x:p%2Fw@a:1,b:2"),
        (LOGIN, "redis://me:own@h", "redis://me:own@h"),
        (ServerLogin(ca="/c a.pem"), "rediss://h", "rediss://h?ssl_ca_certs=/c%20a.pem"),
        (ServerLogin(ca="/ca.pem"), "bolt+s://h/db?x=1", "bolt+s://h/db?x=1&ca=/ca.pem"),
        (ServerLogin(ca="/ca.pem"), "kafka+ssl://h?ca=/own.pem", "kafka+ssl://h?ca=/own.pem"),
        (ServerLogin(cert="/c", cert_key="/k", sasl="PLAIN", user="u", password="p"), "kafka+ssl://h",
         "kafka+ssl://u:p@h?sasl=PLAIN&cert=/c&key=/k"),
        (ServerLogin(ca="/ca.pem"), "sqlite://file", "sqlite://file?ca=/ca.pem"),
    ],
)  # fmt: skip
def test_a_url_gets_login_and_certificates(access: ServerLogin, url: str, found: str) -> None:
    assert access.applied(url, "bus") == found


@pytest.mark.parametrize(
    "option",
    ["protocol=3", "decode_responses=true", "encoding=latin-1", "encoding_errors=ignore", "max_connections=1",
     "socket_read_size=0", "retry_on_error=x"],
)  # fmt: skip
async def test_a_url_cannot_change_the_form_of_replies(option: str) -> None:
    await connect("redis://h?protocol=2&socket_timeout=7&encoding=utf-8&client_name=me", io_timeout_s=None).aclose()
    with pytest.raises(InvalidSettings, match=f"{option.partition('=')[0]}.*leave it out") as error:
        connect(f"redis://u:password@h?{option}", io_timeout_s=None)
    assert "password" not in str(error.value)
    with pytest.raises(ValueError, match="leave it out"):
        check_redis_url(f"redis://h?{option}")


@pytest.mark.parametrize("option", ["pass/word=1", "parser_class=x", "connection_class=x", "host=other", "ssl_x=1"])
def test_an_unknown_option_of_a_url_is_refused_without_its_name(option: str) -> None:
    with pytest.raises(InvalidSettings, match="has an unknown option") as error:
        connect(f"redis://h?{option}", io_timeout_s=None)
    assert option.partition("=")[0] not in str(error.value)
    with pytest.raises(ValueError, match="has an unknown option"):
        check_redis_url(f"redis://h?{option}")


@pytest.mark.parametrize("url", ["redis://u:secret@h", "unix:///a.sock"])
@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_cert_reqs"])
async def test_options_of_tls_need_a_url_of_tls(url: str, option: str) -> None:
    await connect("rediss://h?ssl_cert_reqs=none&ssl_check_hostname=false", io_timeout_s=None).aclose()
    with pytest.raises(InvalidSettings, match=f"{option}, but only rediss:// uses TLS") as error:
        connect(f"{url}?{option}=none", io_timeout_s=None)
    assert "secret" not in str(error.value)
    check_redis_url("rediss://h?ssl_cert_reqs=none")
    with pytest.raises(ValueError, match=f"{option}, but only rediss:// uses TLS"):
        check_redis_url(f"{url}?{option}=none")


@pytest.mark.parametrize(
    ("access", "url", "said"),
    [
        (ServerLogin(ca="/ca.pem"), "redis://h", "bus_ca has no effect with redis://; TLS needs rediss://"),
        (ServerLogin(cert="/c"), "kafka://h", "bus_cert has no effect with kafka://; TLS needs kafka+ssl://"),
        (ServerLogin(sasl="PLAIN"), "rediss://h", "bus_sasl has no effect with rediss://"),
        (ServerLogin(cert="/c"), "neo4j+s://h", "bus_cert has no effect with neo4j+s://"),
    ],
)
def test_what_a_server_cannot_have_is_refused(access: ServerLogin, url: str, said: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        access.applied(url, "bus")
    assert str(refused.value) == said


def test_a_kafka_url_holds_login_and_files() -> None:
    found = split_kafka_url("kafka+ssl://u%40x:p%2Fw@a:1,b?sasl=PLAIN&ca=/c%20a")
    assert (found.hosts, found.tls, found.user, found.password) == ("a:1,b", True, "u@x", "p/w")
    assert (found.sasl, found.ca, found.cert) == ("PLAIN", "/c a", None)
    assert split_kafka_url("kafka://u:p@a").sasl == "SCRAM-SHA-512"
    assert "p/w" not in repr(found)
    for wrong in (
        "kafka://h?ca=/x",
        "kafka://h?sasl=PLAIN",
        "kafka://u:secret@h?sasl=NO",
        "kafka+ssl://u@h",
        "kafka://h?x",
    ):
        with pytest.raises(InvalidSettings) as refused:
            split_kafka_url(wrong)
        assert "secret" not in str(refused.value)


def test_neo4j_takes_an_own_authority_without_the_scheme_of_tls(tmp_path: Path) -> None:
    file = Authority(tmp_path, "c a").file
    found = split_neo4j_url(f"neo4j+s://u:p@h:7/db?policy=x&ca={quote(str(file))}")
    assert (found.uri, found.ca) == ("neo4j+s://h:7?policy=x", str(file))
    uri, options = tls_options(found, found.uri)
    assert uri == "neo4j://h:7?policy=x"
    assert options["ssl_context"].check_hostname
    assert tls_options(split_neo4j_url("bolt+s://h"), "bolt+s://h") == ("bolt+s://h", {})
    with pytest.raises(InvalidSettings, match="/no-such-file"):
        tls_options(split_neo4j_url("bolt+s://h?ca=/no-such-file"), "bolt+s://h")
    with pytest.raises(InvalidSettings):
        split_neo4j_url("bolt://h?ca=/x")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    import os

    for name in [name for name in os.environ if name.startswith(("GRAPHWEFT_", "NEO4J_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_secrets_may_lie_in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("\ufeffpass word\r\n", "utf-8")
    (tmp_path / "key").write_text("acme-1:" + "k" * 40 + "\n")
    (tmp_path / "graphweft.yaml").write_text("graph_url: redis://g\ngraph_user: you\ngraph_password_file: password\n")
    variables = {
        "GRAPHWEFT_BUS_URL": "redis://h", "GRAPHWEFT_BUS_USER": "me", "GRAPHWEFT_BUS_PASSWORD_FILE": "password",
        "GRAPHWEFT_SIGNING_KEY_FILE": "key",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings, client = Settings.load(), ClientSettings.from_environment()
    assert settings.bus == client.bus_url == "redis://me:pass%20word@h"
    assert settings.graph == "redis://you:pass%20word@g"
    assert client.signing_key == "acme-1:" + "k" * 40
    assert settings.signing_key is not None
    assert settings.signing_key.get_secret_value() == client.signing_key
    for shown in (repr(settings), repr(client)):
        assert "pass" not in shown.replace("password", "")
        assert "kkkk" not in shown
    child = settings.as_environment()
    assert child["GRAPHWEFT_BUS_PASSWORD"] == "pass word"
    assert "GRAPHWEFT_BUS_PASSWORD_FILE" not in child


@pytest.mark.parametrize("fault", ["both", "missing", "empty", "binary", "both in the file"])
def test_a_file_without_a_secret_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str) -> None:
    file = tmp_path / "password"
    monkeypatch.setenv("GRAPHWEFT_BUS_URL", "redis://h")
    monkeypatch.setenv("GRAPHWEFT_BUS_PASSWORD_FILE", str(file))
    match fault:
        case "both":
            file.write_text("sesame")
            monkeypatch.setenv("GRAPHWEFT_BUS_PASSWORD", "sesame")
        case "empty":
            file.write_text("\n")
        case "binary":
            file.write_bytes(b"\xffsesame")
        case "both in the file":
            file.write_text("sesame")
            monkeypatch.delenv("GRAPHWEFT_BUS_PASSWORD_FILE")
            (tmp_path / "graphweft.yaml").write_text("bus_password: sesame\nbus_password_file: password\n")
        case _:
            pass
    makers = [Settings.load] if "in the file" in fault else [Settings.load, ClientSettings.from_environment]
    for make in makers:
        with pytest.raises(InvalidSettings) as refused:
            make()
        assert "password" in str(refused.value).lower()
        assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    "told", ["", "# Server\r\n", "redis_version:8\r\n", "# Memory\r\nused_memory:1\r\n", "maxmemory:0\r\n", "nothing"]
)  # fmt: skip
async def test_a_server_that_says_little_is_examined(told: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (line := await reader.readline()).startswith(b"*"):
            words = [(await reader.readline(), await reader.readline())[1].strip() for _ in range(int(line[1:]))]
            writer.write(b"$%d\r\n%b\r\n" % (len(told), told.encode()) if words[0] == b"INFO" else b"+OK\r\n")
        writer.close()

    async def more(client: Any) -> list[Check]:
        return [await memory(client, "bus", "")]

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        first, second = await examine_server("bus", f"redis://127.0.0.1:{port}", "", more)
    assert (first.state, second.state) == ("ok", "warn")
    assert first.found == ("Redis 8 answers" if "version" in told else "Redis answers")


@pytest.mark.parametrize("refusal", ["WRONGPASS invalid username-password pair", "NOAUTH Authentication required."])
async def test_a_refused_login_names_its_settings(refusal: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (line := await reader.readline()).startswith(b"*"):
            for _ in range(int(line[1:]) * 2):
                await reader.readline()
            writer.write(b"-%b\r\n" % refusal.encode())
        writer.close()

    async def more(client: Any) -> list[Check]:
        return []

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        [found] = await examine_server("graph", f"redis://me:wrong@127.0.0.1:{port}", "is it there?", more)
    assert found.state == "fail"
    assert found.found.startswith("it answers, and refuses the login: ")
    assert "GRAPHWEFT_GRAPH_PASSWORD or GRAPHWEFT_GRAPH_PASSWORD_FILE" in found.advice
