"""The probes of roles: what each says while servers come and go, with real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import redis.asyncio as redis
from faststream import FastStream
from tests.edges.test_hosting import INJECTION, running
from tests.services.fixtures import Logs, events_of
from tests.services.rules import TURNS, rules_folder
from tests.services.waiting import until

from graphweft import Client, Event
from graphweft_contracts import InvalidSettings
from graphweft_workers.doctor import Check, examine
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.processes.hosting import archive_app, injection_app, memory_app, mutation_app
from graphweft_workers.processes.run import run_gateway
from graphweft_workers.processes.supervisor import Supervisor
from graphweft_workers.settings.settings import Settings

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("beats")]

PATHS = ("/livez", "/startupz", "/readyz")
Builder = Callable[[Settings], FastStream]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return rules_folder(tmp_path, TURNS)


def settings_at(url: str, rules: Path, **more: Any) -> Settings:
    return Settings.load(bus_url=url, graph_url=url, rules=rules, partitions=2, probe_address="127.0.0.1:0", **more)


def asked(url: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(Request(url, method=method), timeout=120) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"{}")


async def ask(url: str, path: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
    return await asyncio.to_thread(asked, url + path, method)


async def address(logs: Logs, task: asyncio.Task[None]) -> str:
    await until(lambda: events_of(logs), lambda said: "probes_listen" in said, beside=task)
    return next(str(entry["url"]) for entry in logs if entry["event"] == "probes_listen")


@asynccontextmanager
async def probed(app: FastStream, logs: Logs) -> AsyncIterator[str]:
    async with running(app) as task:
        yield await address(logs, task)


async def until_status(url: str, path: str, status: int) -> dict[str, Any]:
    async def answer() -> tuple[int, dict[str, Any]]:
        return await ask(url, path)

    return (await until(answer, lambda found: found[0] == status))[1]


@pytest.mark.parametrize(
    ("build", "role", "more", "servers"),
    [
        (mutation_app, "mutation", {}, {"bus", "graph"}),
        (injection_app, "injection", {}, {"bus", "graph"}),
        (memory_app, "memory", {"embedder": "hash:32"}, {"bus", "graph"}),
        (archive_app, "archive", {"archive_url": "archive"}, {"bus", "archive"}),
    ],
)
async def test_a_role_that_works_is_live_started_and_ready(
    url: str, rules: Path, tmp_path: Path, logs: Logs, build: Builder, role: str, more: dict[str, Any],
    servers: set[str],
) -> None:  # fmt: skip
    if "archive_url" in more:
        more = {"archive_url": str(tmp_path / "archive")}
    async with probed(build(settings_at(url, rules, **more)), logs) as at:
        await until_status(at, "/startupz", 200)
        status, told = await ask(at, "/livez")
        assert (status, told["role"]) == (200, role)
        assert told["turn_age_s"] >= 0
        assert await ask(at, "/readyz") == (200, {"role": role, "state": "running", **dict.fromkeys(servers, "ok")})


async def test_a_role_is_live_and_not_ready_while_its_servers_are_away(tmp_path: Path, rules: Path, logs: Logs) -> None:
    server = EmbeddedServer(tmp_path / "late")
    (rules / "Support/graph_injection.yaml").write_text(INJECTION)
    async with probed(injection_app(settings_at(f"unix://{server.socket}", rules)), logs) as at:
        told = await until_status(at, "/readyz", 503)
        assert told["bus"] == told["graph"] == "unavailable"
        assert (await ask(at, "/livez"))[0] == 200
        await server.start()
        try:
            told = await until_status(at, "/readyz", 200)
            assert told["bus"] == told["graph"] == "ok"
        finally:
            await server.stop()
        assert (await until_status(at, "/readyz", 503))["state"] == "running"
        assert (await ask(at, "/livez"))[0] == (await ask(at, "/startupz"))[0] == 200


async def test_an_archive_that_cannot_be_written_is_told_by_the_probe_and_by_doctor(
    url: str, rules: Path, tmp_path: Path, logs: Logs
) -> None:
    folder = tmp_path / "archive"
    settings = settings_at(url, rules, archive_url=str(folder), archive_every_s=0.05)
    in_the_way = folder / "segments"
    await asyncio.to_thread(folder.mkdir)
    await asyncio.to_thread(in_the_way.touch)
    async with probed(archive_app(settings), logs) as at, Client(url) as client:
        await until_status(at, "/readyz", 200)
        await client.emit(Event.create("order.paid", app_id="shop", chat_id="c", source="/test", data={}))
        await client.flush()
        assert (await until_status(at, "/readyz", 503))["archive"] == "unavailable"

        async def examined() -> Check:
            return next(check for check in await examine(settings) if check.name == "archive")

        found = await until(examined, lambda check: check.state == "fail")
        assert "1 entry behind" in found.found
        assert f"the archive {folder} does not work" in found.found
        await asyncio.to_thread(in_the_way.unlink)
        assert (await until_status(at, "/readyz", 200))["archive"] == "ok"
        assert (await until(examined, lambda check: check.state == "ok")).found.startswith("archive: up to date")


async def test_the_gateway_answers_probes_beside_its_own_port(url: str, rules: Path, logs: Logs) -> None:
    gateway: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(
        run_gateway(settings_at(url, rules), host="127.0.0.1", port=0, insecure_app="shop", ready=gateway.set_result)
    )
    try:
        at = await address(logs, running)
        assert await until_status(at, "/readyz", 200) == {"role": "gateway", "state": "running", "bus": "ok"}
        assert at != await gateway
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_gateway_that_is_cancelled_leaves_no_connection(url: str, rules: Path) -> None:
    gateway: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    event = {"specversion": "1.0", "type": "user.message", "source": "/t", "id": "1", "chatid": "c", "data": {}}
    headers = {"content-type": "application/cloudevents+json"}
    async with redis.Redis.from_url(url) as server:

        async def connections() -> set[str]:
            return {each["id"] for each in await server.client_list()}

        before = await connections()
        settings = settings_at(url, rules).model_copy(update={"probe_address": None})
        running = asyncio.create_task(
            run_gateway(settings, host="127.0.0.1", port=0, insecure_app="shop", ready=gateway.set_result)
        )
        request = Request(await gateway + "/v1/events", json.dumps(event).encode(), headers)
        with await asyncio.to_thread(urlopen, request, timeout=120) as answer:
            assert answer.status == 202
        assert await connections() - before
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert await until(connections, lambda found: found <= before) <= before


async def test_other_paths_and_methods_are_refused(url: str, rules: Path, logs: Logs) -> None:
    async with probed(mutation_app(settings_at(url, rules)), logs) as at:
        status, told = await ask(at, "/metrix")
        assert status == 404
        assert "/livez, /startupz, /readyz" in told["error"]
        for path in PATHS:
            assert (await ask(at, path, "POST"))[0] == 405
            assert (await ask(at, path, "HEAD"))[1] == {}


async def test_idle_connections_keep_no_probe_out(url: str, rules: Path, logs: Logs) -> None:
    async with probed(mutation_app(settings_at(url, rules)), logs) as at, contextlib.AsyncExitStack() as held:
        await until_status(at, "/readyz", 200)
        host, _, port = at.removeprefix("http://").partition(":")
        for number in range(300):
            _, writer = await asyncio.open_connection(host, int(port))
            held.callback(writer.close)
            if number % 2:
                writer.write(b"GET /livez HTTP/1.1\r\n")
        for path in PATHS:
            assert (await ask(at, path))[0] == 200


async def test_an_address_that_is_taken_ends_the_role_and_says_what_to_set(url: str, rules: Path) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = settings_at(url, rules).model_copy(update={"probe_address": f"127.0.0.1:{port}"})
    async with server:
        with pytest.raises(InvalidSettings, match=r"probes cannot listen .* set GRAPHWEFT_PROBE_ADDRESS to another"):
            await mutation_app(settings).run()


async def test_the_roles_of_up_share_no_address(
    tmp_path: Path, rules: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GRAPHWEFT_") and "HEARTBEAT" not in name]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GRAPHWEFT_PROBE_ADDRESS", "127.0.0.1:0")
    log = tmp_path / "roles.log"
    settings = Settings.load(data=tmp_path / "data", rules=rules, log_format="json")
    up = Supervisor(settings, lambda _: None, log=log)
    await up.run(up.stop)
    assert events_of(logs).count("probes_off") == 1
    assert "probes_listen" not in log.read_text()
