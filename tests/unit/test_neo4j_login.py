"""A login that Neo4j refuses: who may ask again, when, and with which password."""

from __future__ import annotations

import asyncio
import gc
import itertools
from pathlib import Path

import pytest
from neo4j.exceptions import Neo4jError
from tests.services.virtual_time import VirtualClock

from graphweft_contracts import GraphUnavailable
from graphweft_workers.drivers.neo4j.errors import USER_LOCKED, translate
from graphweft_workers.drivers.neo4j.login import Login, shared_login
from graphweft_workers.drivers.neo4j.timing import NEO4J_TIMING
from graphweft_workers.drivers.neo4j.url import Neo4jUrl, split_neo4j_url
from graphweft_workers.settings.settings import Settings

WRONG = "Neo.ClientError.Security.Unauthorized"


class Server:
    """Takes one password, counts the logins, and may lock the user."""

    def __init__(self, password: str) -> None:
        self.password = password
        self.locked = False
        self.asked = 0

    async def connect(self, login: Login) -> str:
        """Open a connection in a task of its own, as a request does; return what was refused."""

        async def open_it() -> str:
            try:
                with login.session():
                    login.resolve("host")
                    login.resolve("host")  # a routing driver
                    self.asked += 1
                    await asyncio.sleep(0)
                    if self.locked or (await login.get_auth())[1] != self.password:
                        error = Neo4jError._hydrate_neo4j(code=USER_LOCKED if self.locked else WRONG, message="no")
                        raise translate(error) from error
            except GraphUnavailable as error:
                return str(error)
            return ""

        return await asyncio.create_task(open_it())


def made(clock: VirtualClock, password: str = "old", file: str = "") -> Login:
    url = Neo4jUrl(uri="bolt://h", user="me", password=password, password_file=file)
    return Login(url, clock=clock, timing=NEO4J_TIMING)


async def test_a_refused_login_is_tried_ever_more_seldom() -> None:
    clock, server = VirtualClock(), Server("new")
    login = made(clock)
    asked: list[float] = []
    while clock.elapsed_s < 1_800:
        before = server.asked
        said = await server.connect(login)
        assert "refuses the login (no)" in said
        assert "start the process again" in said
        if server.asked > before:
            asked.append(clock.elapsed_s)
        clock.advance(0.5)
    waits = [after - before for before, after in itertools.pairwise(asked)]
    for wait, least in zip(waits, [15, 30, 60, 120, 240, 300, 300], strict=False):
        assert least <= wait <= 1.2 * least + 1
    server.password = "old"
    clock.advance(360)
    assert not await server.connect(login)
    assert not await server.connect(login)


async def test_of_many_that_wait_one_asks() -> None:
    clock, server = VirtualClock(), Server("new")
    login = made(clock)
    assert all(await asyncio.gather(*(server.connect(login) for _ in range(20))))
    clock.advance(18.5)
    server.asked = 0
    assert all(await asyncio.gather(*(server.connect(login) for _ in range(20))))
    assert server.asked == 1
    clock.advance(29)  # the wait has doubled once, although 20 were refused at first
    assert await server.connect(login)
    assert server.asked == 1
    clock.advance(7.5)
    server.password = "old"
    assert not await server.connect(login)
    assert not any(await asyncio.gather(*(server.connect(login) for _ in range(20))))


async def test_one_that_got_no_answer_leaves_the_question_to_the_next() -> None:
    clock, server = VirtualClock(), Server("new")
    login = made(clock)
    assert await server.connect(login)
    clock.advance(18.5)

    async def lost() -> None:
        with login.session():
            login.resolve("host")
            raise GraphUnavailable("the connection was lost")

    with pytest.raises(GraphUnavailable, match="was lost"):
        await asyncio.create_task(lost())
    server.asked = 0
    server.password = "old"
    assert "refuses the login" in await server.connect(login)
    clock.advance(1)
    assert not await server.connect(login)
    assert server.asked == 1


async def test_a_password_in_a_file_is_read_again_and_used_at_once(tmp_path: Path) -> None:
    clock, server, file = VirtualClock(), Server("new"), tmp_path / "password"
    file.write_text("old\n")
    login = made(clock, file=str(file))
    assert "goes on by itself" in await server.connect(login)
    server.asked = 0
    for content in (None, "", "old\r\n"):
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        assert await server.connect(login)
    assert server.asked == 0
    file.write_text("wrong\n")
    assert await server.connect(login)
    assert await server.connect(login)
    assert server.asked == 1
    file.write_text("new\n")
    assert not await server.connect(login)


async def test_the_password_in_hand_stays_until_it_is_refused(tmp_path: Path) -> None:
    """The file may be replaced before the server knows the password."""
    clock, server, file = VirtualClock(), Server("old"), tmp_path / "password"
    file.write_text("new\n")
    login = made(clock, file=str(file))
    assert not await server.connect(login)
    server.password = "new"
    assert await server.connect(login)
    assert not await server.connect(login)


async def test_a_locked_user_with_the_right_password_waits_for_the_lock_only() -> None:
    clock, server = VirtualClock(), Server("old")
    login = made(clock)
    for _ in range(4):
        server.locked = True
        assert "look for a process that still has an old one" in await server.connect(login)
        clock.advance(4.9)
        server.locked = False
        assert await server.connect(login)
        clock.advance(1.2)
        assert not await server.connect(login)


async def test_the_stores_of_a_process_share_one_login() -> None:
    clock = VirtualClock()
    url = Neo4jUrl(uri="bolt://h", user="me", password="old")

    def login(of: Neo4jUrl, uri: str = "bolt://h") -> Login:
        return shared_login(of, uri, clock=clock, timing=NEO4J_TIMING)

    first, server = login(url), Server("new")
    assert login(url) is first
    assert login(url, "bolt://other") is not first
    assert await server.connect(first)
    assert await server.connect(login(Neo4jUrl(uri="bolt://h", user="me", password="old", database="db")))
    assert server.asked == 1
    assert not await server.connect(login(Neo4jUrl(uri="bolt://h", user="me", password="new")))
    del first
    gc.collect()
    assert await server.connect(login(url))
    assert server.asked == 3


@pytest.mark.parametrize("named", ["variable", "settings file", "NEO4J_PASSWORD_FILE"])
def test_the_file_of_the_password_reaches_the_driver_and_child_processes(
    named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pass word"
    file.write_text("s:cret\n")
    if named == "NEO4J_PASSWORD_FILE":
        monkeypatch.setenv("NEO4J_URI", "neo4j://h?policy=eu")
        monkeypatch.setenv("NEO4J_PASSWORD_FILE", "pass word")
    else:
        monkeypatch.setenv("GRAPHWEFT_GRAPH_URL", "neo4j://h?policy=eu")
        monkeypatch.setenv("GRAPHWEFT_GRAPH_USER", "neo4j")
    if named == "variable":
        monkeypatch.setenv("GRAPHWEFT_GRAPH_PASSWORD_FILE", "pass word")
    if named == "settings file":
        (tmp_path / "graphweft.yaml").write_text("graph_password_file: pass word\n")
    settings = Settings.load()
    expected = ("neo4j://h?policy=eu", "neo4j", "s:cret", str(file))
    found = split_neo4j_url(settings.graph)
    assert (found.uri, found.user, found.password, found.password_file) == expected
    child = settings.as_environment()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for name, value in child.items():
        if name.startswith("GRAPHWEFT_"):
            monkeypatch.setenv(name, value)
    found = split_neo4j_url(Settings.load().graph)
    assert (found.uri, found.user, found.password, found.password_file) == expected


def test_only_a_driver_that_reads_the_file_again_is_told_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    monkeypatch.setenv("GRAPHWEFT_GRAPH_PASSWORD_FILE", str(tmp_path / "password"))
    assert Settings.load(graph_url="redis://h").graph == "redis://:secret@h"
    assert "password_file" not in Settings.load(graph_url="neo4j://u:p@h").graph
