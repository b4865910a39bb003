"""A bus of another package, installed beside graphweft, from the events of a user to the context of an agent."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from tests.edges.test_cli import SUPPORT, Done, checks, clean_environment, inside, turn
from tests.ports.toy import TOY, install

from graphweft.transports.registry import make_transport
from graphweft_contracts import InvalidSettings
from graphweft_workers.drivers.embedded.server import EmbeddedServer

ROOT = Path(__file__).parents[2]
ALLOWED = ("graphweft_contracts", "graphweft.transport", "graphweft_workers.ports")
ASK = ("context", "--app", "shop", "--workflow", "Support", "--agent", "Ann", "--chat", "c")
SECRET = "hunter2"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of every process: the driver, the bus and rules; no graph yet."""
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")  # for commands in this process
    (tmp_path / "rules/Support").mkdir(parents=True)
    (tmp_path / "rules/Support/graph_injection.yaml").write_text(SUPPORT)
    environment = clean_environment(
        GRAPHWEFT_BUS_URL=f"sqlite://{tmp_path}/bus.sqlite",
        GRAPHWEFT_GRAPH_URL="redis://127.0.0.1:1",
        GRAPHWEFT_RULES=str(tmp_path / "rules"),
        GRAPHWEFT_HEARTBEAT_DIR=str(tmp_path),
        COLUMNS="200",
    )
    environment["PYTHONPATH"] = f"{tmp_path / 'site'}:{environment.get('PYTHONPATH', '')}"
    return environment


@pytest_asyncio.fixture
async def graph_url() -> AsyncIterator[str]:
    """A graph server of the test's own."""
    with tempfile.TemporaryDirectory(prefix="graphweft-test-") as folder:  # a socket's path is short
        server = EmbeddedServer(Path(folder))
        await server.start()
        try:
            yield f"unix://{server.socket}"
        finally:
            await server.stop()


def graphweft(settings: Mapping[str, str], *arguments: str, stdin: str = "") -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "graphweft_workers.cli", *arguments],
        env=settings, input=stdin, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr + done.stdout
    return Done(done.returncode, done.stdout, done.stderr)


@contextmanager
def running(settings: Mapping[str, str], role: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "run", role],
        env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "Traceback" not in output


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_events_become_context_on_a_bus_of_another_package(settings: dict[str, str], graph_url: str) -> None:
    settings["GRAPHWEFT_GRAPH_URL"] = graph_url
    with running(settings, "mutation"), running(settings, "injection"):
        lines = "\n".join(turn(str(number), app="shop") for number in range(3))
        done = graphweft(settings, "emit", "-", "--wait", stdin=lines)
        assert done.out == "3 events sent\n3 applied, 0 skipped, 0 failed\n", done.err
        done = graphweft(settings, *ASK, "--var", "name=Ann", "--budget-ms", "20000")
        assert (done.code, "Ann" in done.out, "3" in done.out) == (0, True, True), done
        found = checks(graphweft(settings, "doctor", "--json"))
        assert {name: check for name, check in found.items() if check["state"] != "ok"} == {}
        assert "SQLite" in found["bus"]["found"]
        status = json.loads(graphweft(settings, "status", "--json").out)
        assert [partition["id"] for partition in status["partitions"]] == list(range(64))
        assert status["lag"] == 0
        assert all(partition["owner"] for partition in status["partitions"])
    found = checks(inside(["doctor", "--json"], settings))
    assert {found["workers"]["state"], found["responders"]["state"]} == {"fail"}
    assert json.loads(inside(["status", "--json"], settings).out)["lag"] == 0


@pytest.mark.parametrize("arguments", [("status",), ("run", "mutation"), ("emit", "-"), ("doctor",)])
def test_an_unknown_scheme_names_the_known_ones(settings: dict[str, str], arguments: tuple[str, ...]) -> None:
    settings["GRAPHWEFT_BUS_URL"] = f"nats://user:{SECRET}@x"
    done = inside(arguments, settings)
    assert (done.code, done.out) == (2, "")
    for scheme in ("redis://", "rediss://", "unix://", "kafka://", "sqlite://"):
        assert scheme in done.err
    assert SECRET not in done.err


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        (f"nats://user:{SECRET}@x", "no transport is installed for the scheme 'nats'"),
        (f"{SECRET}@host", "it has no scheme"),
        (f"user:{SECRET}@redis://host", "it has no scheme"),
        ("", "it has no scheme"),
    ],
)
def test_a_client_names_the_known_schemes(url: str, fault: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        make_transport(url)
    assert str(refused.value).startswith(f"invalid bus URL: {fault}; expected redis://…, ")
    assert "kafka://…" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_the_url_of_another_package_is_checked_by_its_driver(settings: dict[str, str]) -> None:
    settings["GRAPHWEFT_BUS_URL"] = f"sqlite://{SECRET}"
    done = inside(["status"], settings)
    assert done.code == 2
    assert "expected sqlite:///path/of/the/file" in done.err
    assert SECRET not in done.err


@pytest.mark.long
@pytest.mark.integration
def test_the_suites_run_without_the_set_up_of_these_tests(tmp_path: Path) -> None:
    """The author of a driver has another conftest, and pytest-asyncio in its strict mode."""
    tests = (Path(__file__).parent / "test_toy_driver.py").read_text("utf-8")
    (tmp_path / "test_toy_driver.py").write_text(tests.replace("pytestmark = pytest.mark.integration\n", ""))
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers -p no:schemathesis\nfilterwarnings = error\n"
        "asyncio_default_fixture_loop_scope = function\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "commits_go_forward or late_request"],
        cwd=tmp_path, env=clean_environment(PYTHONPATH=str(ROOT)),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_toy_knows_the_ports_only() -> None:
    outside: set[str] = set()
    for path in TOY.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            outside |= {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
    assert outside
    assert not {name for name in outside if not f"{name}.".startswith(tuple(f"{part}." for part in ALLOWED))}


def test_a_scheme_of_graphwefts_own_reads_no_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: str) -> None:
        raise AssertionError

    monkeypatch.setattr("graphweft.transports.registry.entry_points", fail)
    for url in ("redis://h", "rediss://h", "unix:///s", "kafka://h:1"):
        make_transport(url)
