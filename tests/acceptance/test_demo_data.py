"""The main job on recorded runs, through the command line, with processes killed at will."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.services.commands import inside
from tests.services.maven import unavailable
from tests.services.waiting import until_sync

from graphweft.transports.embedded import embedded_url
from graphweft_contracts import BusUnavailable
from graphweft_workers.drivers.redis.bus import redis_bus

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/airline"
RUNS = EXAMPLE / "data/tau-airline-gpt4o.jsonl.gz"
QUERIES = json.loads((ROOT / "tests/oracle/queries.json").read_text())
IMPORT = ("import", "openai-chat", str(RUNS), "--app", "airline", "--workflow", "AirlineSupport")
IMPORT += ("--agent", "AirlineAgent", "--chat-id", "task{task_id}-trial{trial}")


class Deployment:
    """One ``graphweft up`` on a data folder, and commands that find it through ``GRAPHWEFT_DATA``."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("GRAPHWEFT_")}
        self._environment |= {"GRAPHWEFT_DATA": str(data), "GRAPHWEFT_LOG_LEVEL": "warning"}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "graphweft_workers.cli", "up", "--rules", str(EXAMPLE / "workflows")],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert "graphweft is up" in self._process.stdout.readline()

    def stop(self, number: int = signal.SIGINT) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(timeout=120)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code

    @property
    def running(self) -> bool:
        return self._process is not None

    def command(self, *arguments: str) -> str:
        """Run a command in this process, and return what it printed."""
        done = inside(arguments, self._environment)
        assert done.code == 0, done.err
        return done.out

    def in_background(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "graphweft_workers.cli", *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def json(self, *arguments: str) -> Any:
        return json.loads(self.command(*arguments, "--json"))

    def kill(self, role: str) -> None:
        """End a process as a crash would; waits for it where it is just being started again."""

        def is_killed() -> bool:
            pid = int(json.loads((self.data / "processes.json").read_text())[role])
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
            return False

        until_sync(is_killed)

    def digest(self) -> str:
        return str(self.json("digest", "--app", "airline")["digest"])

    def lag(self) -> int:
        return int(self.json("status")["lag"])

    def down_to(self, left: int, importing: subprocess.Popen[str]) -> bool:
        """Wait until at most ``left`` events are not applied; False when it is over before that was seen."""

        async def lag() -> int | None:
            bus = redis_bus(embedded_url(self.data))
            try:
                status = await bus.partitions.status()
                return sum(part.lag for part in status) if any(part.end for part in status) else None
            except BusUnavailable:
                return None
            finally:
                await bus.aclose()

        while importing.poll() is None:
            found = asyncio.run(lag())
            if found is not None and 0 < found <= left:
                return True
        return False

    def wait_until_applied(self) -> None:
        until_sync(self.lag, lambda lag: lag == 0, why="all events are applied")


@contextmanager
def deployed(data: Path) -> Iterator[Deployment]:
    deployment = Deployment(data)
    deployment.start()
    try:
        yield deployment
    finally:
        if deployment.running:
            deployment.stop()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """An undisturbed import."""
    with deployed(tmp_path_factory.mktemp("reference")) as deployment:
        sent = json.loads(deployment.command(*IMPORT, "--wait", "--json"))["sent"]
        assert sent == 2034
        yield deployment


def test_the_graph_shows_what_the_runs_hold(reference: Deployment) -> None:
    oracle = subprocess.run(
        [sys.executable, str(ROOT / "tests/oracle/airline_counts.py"), str(RUNS)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    expected = json.loads(oracle.stdout)
    assert expected.keys() == QUERIES.keys()
    found: dict[str, Any] = {}
    for name, cypher in QUERIES.items():
        table = reference.json("query", "--app", "airline", cypher)
        rows = [[row[column] for column in table["columns"]] for row in table["rows"]]
        found[name] = {str(key): count for key, count in rows} if len(table["columns"]) == 2 else rows[0][0]
    assert found == expected


@pytest.mark.long
def test_importing_again_changes_nothing(reference: Deployment) -> None:
    before = reference.digest()
    reference.command(*IMPORT, "--wait")
    assert reference.digest() == before
    status = reference.json("status")
    assert status["dead_letters"] == 0
    assert {"id", "position", "end", "lag"} <= status["partitions"][0].keys()


def test_an_agent_turn_gets_its_context(reference: Deployment) -> None:
    asked = ("context", "--app", "airline", "--workflow", "AirlineSupport", "--agent", "AirlineAgent", "--chat", "new")
    reply = reference.json(*asked, "--var", "user_id=sophia_silva_7557", "--budget-ms", "5000")
    assert reply["partial"] is False
    assert reply["reason"] is None
    assert "Sophia Silva" in reply["text"]
    text = reference.command(*asked, "--var", "user_id=sophia_silva_7557", "--budget-ms", "5000")
    assert text.strip() == reply["text"].strip()


def test_data_survives_a_restart(reference: Deployment) -> None:
    before = reference.digest()
    assert reference.stop() == 0
    assert not (reference.data / "processes.json").exists()
    reference.start()
    assert reference.digest() == before


def kill_worker(deployment: Deployment) -> None:
    deployment.kill("mutation")


def kill_server(deployment: Deployment) -> None:
    deployment.kill("server")


def kill_all(deployment: Deployment) -> None:
    deployment.stop(signal.SIGKILL)
    deployment.start()


@pytest.mark.long
@pytest.mark.soak("kill_worker", "kill_server")
@pytest.mark.parametrize("kill", [kill_worker, kill_server, kill_all])
def test_killed_at_any_moment_the_graph_ends_the_same(
    reference: Deployment, tmp_path: Path, kill: Callable[[Deployment], None]
) -> None:
    with deployed(tmp_path / "data") as deployment, deployment.in_background(*IMPORT, "--wait") as importing:
        kills = 0
        for left in (1800, 1200, 600):
            if deployment.down_to(left, importing):
                kill(deployment)
                kills += 1
        # A quick machine is through with the rest before it can be killed again.
        assert kills
        output, errors = importing.communicate(timeout=120)
        assert importing.returncode == 0, errors
        assert "2,034 events sent" in output
        deployment.wait_until_applied()
        assert deployment.digest() == reference.digest()
        assert deployment.json("status")["dead_letters"] == 0


@pytest.mark.long
def test_the_demo_of_the_wheel_shows_how_history_follows_a_changed_rule(tmp_path: Path) -> None:
    """The wheel is built and installed, and the demo runs in an empty folder; only the dependencies are those here."""
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps")
    built = subprocess.run(
        [*pip, "--target", str(tmp_path / "wheel"), str(ROOT)], capture_output=True, text=True, check=False, timeout=120
    )
    if built.returncode != 0:
        unavailable(f"no wheel was built: {built.stderr[-500:]}")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GRAPHWEFT_")}
    environment["PYTHONPATH"] = str(tmp_path / "wheel")
    demo = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "demo", "--keep", "--data", str(tmp_path / "data")],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines: list[str] = []
    with demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        for line in demo.stdout:
            lines.append(line.rstrip("\n"))
            if link := re.fullmatch(r"console: (http://127\.0\.0\.1:\d+/)#token=\S+", lines[-1]):
                with urllib.request.urlopen(link[1], timeout=120) as page:
                    assert page.status == 200
                demo.send_signal(signal.SIGINT)
        errors = demo.stderr.read()
    assert demo.returncode == 0, errors
    assert lines[-1].startswith("console: "), errors
    assert len(lines) <= 60  # a page
    assert (tmp_path / "data/services.log").is_file()  # a busy worker has warnings, which are not for newcomers
    assert errors == ""
    assert "2,034 events of 100 recorded chats are published and applied, in order:" in lines
    shown = "\n".join(lines)
    assert "A rule changes" in shown
    before, after = shown.split("A rule changes", 1)
    problem = "Error: payment amount does not add up"
    assert f"{problem}, total price is" in before
    assert re.search(r"Problem +│ +│ +│ +1 │ +4 │ +0 │", after)  # diff
    assert "2,032 events applied to the graph" in after  # rebuild
    assert f"**book_reservation**: {problem} (times: 8)" in after  # context
    assert "tool.call_complete  /import/openai-chat/airline/AirlineSupport" in after  # why
    assert "AirlineSupport/tool_failed/count_problem" in after
