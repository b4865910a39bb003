"""``up`` says that it is up when its roles serve, and health checks see their own process: with real processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs
from tests.edges.test_cli import (
    ASK,
    Call,
    Deployment,
    call,
    checks,
    clean_environment,
    deployed,
    inside,
    rules,
    turn,
)
from tests.services.waiting import until, until_sync
from tests.unit.test_settings import SERVICES, link_variables, service_variables

from graphweft.transports.embedded import embedded_url
from graphweft_contracts import channels
from graphweft_workers.drivers.embedded.server import DataFolder, EmbeddedServer, ping
from graphweft_workers.processes.supervisor import Supervisor
from graphweft_workers.settings.settings import Settings

__all__ = ("call", "rules")  # fixtures

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PARTITIONS = range(64)
AIRLINE = Path(__file__).parents[2] / "examples/airline"


@pytest.fixture(autouse=True)
def beats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of heartbeats that no other process of this machine writes to."""
    folder = tmp_path / "beats"
    monkeypatch.setenv("GRAPHWEFT_HEARTBEAT_DIR", str(folder))
    return folder


def kept(deployment: Deployment, beats: Path) -> Deployment:
    deployment.environment["GRAPHWEFT_HEARTBEAT_DIR"] = str(beats)
    return deployment


@contextmanager
def process(role: str, *arguments: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """Run a role as a deployment does; its log goes to the file ``log`` in its heartbeat folder."""
    folder = Path(settings["GRAPHWEFT_HEARTBEAT_DIR"])
    folder.mkdir(exist_ok=True)
    with (folder / "log").open("w") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", "graphweft_workers.cli", "run", role, *arguments],
            env=clean_environment(**settings), stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True,
        )  # fmt: skip
        try:
            yield started
        finally:
            with suppress(ProcessLookupError):
                os.kill(started.pid, signal.SIGCONT)
            started.terminate()
            started.wait(timeout=120)


def health(role: str, folder: Path, max_age_s: float = 15.0) -> tuple[int, str]:
    """Ask as the health check of a container does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHWEFT_HEARTBEAT_DIR", str(folder))
        done = inside(("doctor", "--role", role, "--max-age", str(max_age_s), "--json"), dict(os.environ))
    return done.code, " ".join(one["found"] for one in json.loads(done.out))


def until_it_runs(role: str, folder: Path, started: subprocess.Popen[str]) -> None:
    def said() -> str:
        assert started.poll() is None, (folder / "log").read_text()
        return health(role, folder)[1]

    until_sync(said, lambda text: "it runs" in text, why="the health check says that it runs")


# up


def test_up_is_up_when_its_roles_serve(tmp_path: Path, rules: Path, beats: Path) -> None:
    with deployed(tmp_path / "data", rules) as up:
        kept(up, beats).start()
        with redis.Redis.from_url(embedded_url(up.data), decode_responses=True) as client:
            held = [client.get(channels.lease(number, channels.MUTATION_GROUP)) for number in PARTITIONS]
            readers = client.xinfo_consumers(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP)
        assert set(held) == {"up-mutation"}
        assert len(readers) == 1
        found = checks(inside(("doctor", "--json"), up.environment))
        assert {check["state"] for check in found.values()} == {"ok"}, found
        assert health("any", beats)[0] == health("worker", beats)[0] == health("responder", beats)[0] == 0
        # The very first request of each of two apps, and the first event.
        for app in ("shop", "bank"):
            assert json.loads(up.ok(*ASK, "--app", app, "--var", "name=Ann", "--json"))["reason"] is None
        up.emit(turn("1", app="shop"))
        assert up.stop() == (0, "")
    assert list(beats.iterdir()) == []


@pytest.mark.long
async def test_what_an_earlier_process_left_on_the_bus_is_not_taken_for_a_role(
    tmp_path: Path, rules: Path, beats: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    server = EmbeddedServer(data)
    await server.start()
    with redis.Redis.from_url(embedded_url(data), decode_responses=True) as client:
        client.set(channels.PARTITION_COUNT, len(PARTITIONS))
        for number in PARTITIONS:
            client.set(channels.lease(number, channels.MUTATION_GROUP), "killed", px=6_000)
        client.xgroup_create(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP, id="0", mkstream=True)
        client.xgroup_createconsumer(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP, "killed")
    await server.stop()
    with deployed(data, rules) as up:
        kept(up, beats).start()
        with redis.Redis.from_url(embedded_url(data), decode_responses=True) as client:
            held = {client.get(channels.lease(number, channels.MUTATION_GROUP)) for number in PARTITIONS}
        assert held == {"up-mutation"}


def test_up_does_not_claim_to_be_up_when_a_role_dies(tmp_path: Path, rules: Path) -> None:
    # Only the responder counts tokens, so nothing before it finds the mistake.
    settings = clean_environment(GRAPHWEFT_TOKEN_COUNTER="tiktoken:nothing", GRAPHWEFT_RULES=str(rules))
    done = subprocess.run(
        [sys.executable, "-m", "graphweft_workers.cli", "up", "--data", str(tmp_path / "data")],
        env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: graphweft is not up: injection ended 3 times before everything was ready")
    assert "tiktoken" in last  # the role's own error
    assert done.stderr.count("service_ended") == 3
    assert not (tmp_path / "data/processes.json").exists()
    # The folder is free again, and no server is left on it.
    folder = DataFolder(tmp_path / "data")
    folder.acquire()
    with (folder.path / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    folder.release()


@pytest.mark.long
def test_a_demo_keeps_the_logs_of_its_roles_in_a_file_and_names_it_if_it_fails(tmp_path: Path) -> None:
    data = tmp_path / "data"
    done = subprocess.run(
        [sys.executable, "-m", "graphweft_workers.cli", "demo", "--data", str(data), "--example", str(AIRLINE)],
        env=clean_environment(GRAPHWEFT_TOKEN_COUNTER="tiktoken:nothing"),
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, f"Starting a server, a worker and a responder on {data}.\n")
    log = data / "services.log"
    own = log.read_text()
    assert "tiktoken" in own
    assert set(own.splitlines()) & set(done.stderr.splitlines()) == set()
    assert f"\nthe logs of the worker and the responder are in {log}\n" in done.stderr


async def test_what_is_waited_for_is_told_and_up_goes_on(
    tmp_path: Path, rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GRAPHWEFT_") and "HEARTBEAT" not in name]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    running = Supervisor(Settings.load(data=tmp_path / "data", rules=rules), unready_s=0.0)
    told: list[Any] = []
    with capture_logs() as logs:

        def ready() -> None:
            told.extend(logs)
            running.stop()

        await running.run(ready)
    names = [entry["event"] for entry in told]
    assert "starting" in names
    late = [entry for entry in told if entry["event"] == "not_ready"]
    assert late
    assert late[0]["log_level"] == "warning"
    assert set(late[0]) >= {"mutation", "injection", "after_s"}


async def test_up_tries_again_until_its_server_starts(
    tmp_path: Path, rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GRAPHWEFT_") and "HEARTBEAT" not in name]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    running = Supervisor(Settings.load(data=data, rules=rules), lambda _: None)
    files, aside = data / "appendonlydir", tmp_path / "aside"
    with capture_logs() as logs:

        async def ready() -> None:
            files.rename(aside)
            files.touch()  # no server starts on it
            os.kill(json.loads((data / "processes.json").read_text())["server"], signal.SIGKILL)

            def refused() -> list[str]:
                return [entry["error"] for entry in logs if entry["event"] == "server_not_started"]

            assert "its last words" in (await until(refused))[0]
            files.unlink()
            aside.rename(files)
            await until(partial(ping, embedded_url(data)), why="the server answers")
            running.stop()

        await running.run(ready)


def test_up_says_when_heartbeats_have_no_place(tmp_path: Path, rules: Path, beats: Path) -> None:
    beats.write_text("a file")
    done = subprocess.run(
        [sys.executable, "-m", "graphweft_workers.cli", "up", "--data", str(tmp_path / "data"), "--rules", str(rules)],
        env=clean_environment(GRAPHWEFT_HEARTBEAT_DIR=str(beats)), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "set GRAPHWEFT_HEARTBEAT_DIR" in done.stderr
    assert not (tmp_path / "data").exists()


# doctor


@pytest.mark.soak
def test_doctor_fails_without_a_worker_and_without_a_responder(
    call: Call, url: str, rules: Path, tmp_path: Path
) -> None:
    servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url, "GRAPHWEFT_RULES": str(rules)}

    def failing() -> set[str]:
        done = call("doctor", "--json", **servers)
        found = checks(done)
        failed = {name for name, check in found.items() if check["state"] == "fail"}
        assert done.code == (1 if failed else 0)
        for name, role in (("workers", "mutation"), ("responders", "injection")):
            assert name not in failed or found[name]["advice"] == f"start `graphweft run {role}`"
        return failed

    worker, responder = tmp_path / "worker", tmp_path / "responder"
    assert failing() == {"workers", "responders"}
    with process("mutation", **servers, GRAPHWEFT_HEARTBEAT_DIR=str(worker)) as first:
        until_it_runs("worker", worker, first)
        while failing() != {"responders"}:
            assert first.poll() is None
        with process("injection", **servers, GRAPHWEFT_HEARTBEAT_DIR=str(responder)) as second:
            until_it_runs("responder", responder, second)
            while failing():
                assert second.poll() is None
    with process("injection", **servers, GRAPHWEFT_HEARTBEAT_DIR=str(responder)) as second:
        until_it_runs("responder", responder, second)
        while failing() != {"workers"}:
            assert second.poll() is None


def test_a_worker_that_hangs_is_unhealthy_and_its_neighbour_is_not(url: str, rules: Path, tmp_path: Path) -> None:
    servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url, "GRAPHWEFT_RULES": str(rules)}
    folders = [tmp_path / name for name in ("one", "two")]
    with (
        process("mutation", **servers, GRAPHWEFT_HEARTBEAT_DIR=str(folders[0])) as one,
        process("mutation", **servers, GRAPHWEFT_HEARTBEAT_DIR=str(folders[1])) as two,
    ):
        until_it_runs("worker", folders[0], one)
        until_it_runs("mutation", folders[1], two)
        assert [health("worker", folder)[0] for folder in folders] == [0, 0]
        one.send_signal(signal.SIGSTOP)
        until_sync(lambda: health("worker", folders[0], max_age_s=3)[0], why="the worker is unhealthy")
        assert "its event loop has not turned" in health("worker", folders[0], max_age_s=3)[1]
        assert health("worker", folders[1])[0] == 0
        one.send_signal(signal.SIGCONT)
        until_sync(lambda: health("worker", folders[0])[0], lambda code: code == 0, why="the worker is healthy again")
        assert one.poll() is None
        two.kill()
        two.wait(timeout=120)
        assert health("worker", folders[1]) == (1, "it ended without an error message: killed, or out of memory")
        assert health("worker", folders[0])[0] == 0


def test_a_role_that_waits_for_its_bus_is_healthy(rules: Path, tmp_path: Path) -> None:
    away = {"GRAPHWEFT_BUS_URL": "redis://127.0.0.1:1", "GRAPHWEFT_GRAPH_URL": "redis://127.0.0.1:1"}
    folder = tmp_path / "worker"
    with process("mutation", **away, GRAPHWEFT_RULES=str(rules), GRAPHWEFT_HEARTBEAT_DIR=str(folder)) as worker:
        until_it_runs("worker", folder, worker)
        # With rules it asks the graph server first, which is away as well.
        until_sync((folder / "log").read_text, lambda text: "query_check_waits" in text)
        assert worker.poll() is None
        assert health("worker", folder)[0] == 0


def test_a_role_that_cannot_start_says_why_to_the_health_check(url: str, rules: Path, tmp_path: Path) -> None:
    folder = tmp_path / "responder"
    servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url, "GRAPHWEFT_RULES": str(rules)}
    with process(
        "injection", **servers, GRAPHWEFT_HEARTBEAT_DIR=str(folder), GRAPHWEFT_TOKEN_COUNTER="tiktoken:nothing"
    ) as responder:
        assert responder.wait(timeout=120) == 2
        code, said = health("responder", folder)
    assert code == 1
    assert said.startswith("it ended: ")
    assert "nothing" in said


# variables of others


@pytest.mark.long
def test_every_role_starts_beside_variables_of_others(url: str, rules: Path, tmp_path: Path) -> None:
    injected: Mapping[str, str] = {
        name: value
        for alias, prefix in SERVICES.items()
        for name, value in (service_variables(prefix) | link_variables(prefix, alias)).items()
    }
    servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url, "GRAPHWEFT_RULES": str(rules)}
    more = {"memory": {"GRAPHWEFT_EMBEDDER": "hash:32"}}
    arguments = {"gateway": ("--port", "0", "--insecure-app", "shop")}
    mistaken = {"GRAPHWEFT_PARTITONS": "5", "GRAPHWEFT_ZZZ": "private"}
    for role in ("mutation", "injection", "memory", "gateway"):
        folder = tmp_path / role
        settings = {**injected, **servers, **mistaken, **more.get(role, {}), "GRAPHWEFT_HEARTBEAT_DIR": str(folder)}
        with process(role, *arguments.get(role, ()), **settings) as started:
            until_it_runs(role, folder, started)
        assert started.returncode == 0
        log = (folder / "log").read_text()
        assert log.count("unknown environment variable 'GRAPHWEFT_PARTITONS' is ignored; did you mean") == 1
        assert log.count("unknown environment variable 'GRAPHWEFT_ZZZ' is ignored") == 1
        assert log.count("is ignored") == 2
        assert "private" not in log
    # Elsewhere a mistake ends the command, as it did.
    done = inside(("status",), clean_environment(**injected, **servers, **mistaken))
    assert done.code == 2
    assert "did you mean 'GRAPHWEFT_PARTITIONS'?" in done.err
    assert inside(("status",), clean_environment(**injected, **servers)).code == 0


def test_the_version_is_told(call: Call) -> None:
    done = call("--version")
    assert done.code == 0
    assert done.out.startswith("graphweft 0.")
