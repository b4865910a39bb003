"""The files and the socket of the embedded server are those of its user alone."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from pathlib import Path

import pytest

from graphweft.transports.embedded import check_own, embedded_socket, runtime_folder
from graphweft.transports.redis import connection
from graphweft.transports.redis.connection import connect, peer_uid
from graphweft_contracts import InvalidSettings
from graphweft_workers.drivers.embedded.server import DataFolder, EmbeddedServer, own_folder

LONG = "a-long-name" * 12


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_data_folder_is_private_also_one_that_was_not(tmp_path: Path) -> None:
    for folder in (tmp_path / "new", tmp_path / "old"):
        if folder.name == "old":
            folder.mkdir(mode=0o755)
        data = DataFolder(folder)
        data.acquire()
        data.release()
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_data_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(InvalidSettings, match=f"belongs to the user with the number {owner}"):
        own_folder(tmp_path)


def test_the_socket_of_a_long_folder_is_in_a_private_folder(temporary: Path) -> None:
    place = embedded_socket(temporary / LONG).parent
    assert place.parent == temporary
    assert not place.exists()  # a client makes nothing
    assert runtime_folder(make=True).stat().st_mode & 0o777 == 0o700
    assert embedded_socket(temporary / LONG) != embedded_socket(temporary / (LONG + "b"))


@pytest.mark.parametrize("fault", ["link", "file", "mode"])
def test_a_folder_of_sockets_that_others_could_fill_is_refused(temporary: Path, fault: str) -> None:
    place = embedded_socket(temporary / LONG).parent
    match fault:
        case "link":
            (temporary / "elsewhere").mkdir(mode=0o700)
            place.symlink_to(temporary / "elsewhere")
        case "file":
            place.touch(mode=0o600)
        case _:
            place.mkdir()
            place.chmod(0o777)
    for make in (False, True):
        with pytest.raises(InvalidSettings, match="socket of the embedded server"):
            runtime_folder(make=make)
    with pytest.raises(InvalidSettings):
        embedded_socket(temporary / LONG)


def test_a_folder_of_sockets_of_another_user_is_refused(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = runtime_folder(make=True)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(InvalidSettings, match="belongs to the user"):
        check_own(place)


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not say who is at the other end")
async def test_nothing_is_sent_to_a_socket_of_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(100))
        writer.close()
        await writer.wait_closed()

    path = tmp_path / "redis.sock"
    server = await asyncio.start_unix_server(serve, path)
    one, other = socket.socketpair()
    with one, other:
        assert peer_uid(one) == os.getuid()
    monkeypatch.setattr(connection, "peer_uid", lambda _: 54_321)
    client = connect(f"unix://me:password@{path}", io_timeout_s=2)
    with pytest.raises(Exception, match="run by the user with the number 54321"):
        await client.ping()
    await client.aclose()
    server.close()
    async with asyncio.timeout(5):
        await server.wait_closed()
    assert received == [b""]


def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    assert server.disk_fault(least_bytes=0) == ""
    assert server.disk_fault(least_bytes=1 << 60).startswith(f"the disk of {str(tmp_path)!r} is full (")
    assert "free space on it" in server.disk_fault(least_bytes=1 << 60)
    assert EmbeddedServer(tmp_path / "missing").disk_fault(least_bytes=1 << 60) == ""
