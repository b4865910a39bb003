"""A command that the tests start by fork is a child like any other, and begins as a new process does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.services.environment import clean_environment
from tests.services.waiting import until_sync

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux" or os.environ.get("GRAPHWEFT_TESTS_FORK") == "0", reason="no forks"),
]

COMMAND = (sys.executable, "-m", "graphweft_workers.cli")


def program(pid: int) -> str:
    """Return the command line of the program that a process runs; while that begins, it is empty."""
    return until_sync(Path(f"/proc/{pid}/cmdline").read_text, bool, why="the program has begun")


def tail(tmp_path: Path, **options: Any) -> subprocess.Popen[str]:
    """Start a command that waits for its input."""
    process: subprocess.Popen[str] = subprocess.Popen(
        [*COMMAND, "emit", "--bus", "redis://127.0.0.1:1", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        **options,
    )  # fmt: skip
    return process


def test_it_is_a_child_with_its_own_id_signals_and_code(tmp_path: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        with tail(tmp_path) as process:
            assert "fork_server" in program(process.pid)
            assert Path(f"/proc/{process.pid}/cwd").readlink() == tmp_path
            stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            assert int(stat[1]) == os.getpid()
            process.send_signal(number)
            assert process.wait(timeout=120) != 0


async def test_asyncio_gets_output_and_code() -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "nonsense", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert b"No such command" in errors


def test_environment_folder_and_input_are_those_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "workflows").mkdir()
    done = subprocess.run(
        [*COMMAND, "lint", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env=clean_environment(GRAPHWEFT_RULES=str(tmp_path / "none")),
    )  # fmt: skip
    assert str(tmp_path / "none") in done.stdout + done.stderr
    assert done.returncode != 0


def test_a_new_session_is_one(tmp_path: Path) -> None:
    with tail(tmp_path, start_new_session=True) as process:
        until_sync(lambda: os.getsid(process.pid), lambda found: found == process.pid, why="it leads a session")
        process.kill()


@pytest.mark.parametrize("variable", ["PYTHONUTF8", "LC_ALL", "OTEL_SDK_DISABLED"])
def test_what_is_read_at_a_start_starts_it_for_real(tmp_path: Path, variable: str) -> None:
    with tail(tmp_path, env={**os.environ, variable: "1" if variable != "LC_ALL" else "C"}) as process:
        assert "graphweft_workers.cli" in program(process.pid)
        process.kill()


def test_others_than_the_command_are_started_for_real() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(len(sys.modules))"], capture_output=True, check=True
    )
    assert int(done.stdout) < 100


def test_orphans_are_no_children_of_the_tests(tmp_path: Path) -> None:
    """Nobody would wait for them, and a process that has ended would stay in the list of processes."""
    with tail(tmp_path) as process:
        process.kill()
    line = "import os, subprocess; print(subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3).pid)"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    orphan = int(done.stdout)
    try:
        stat = Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[1]) != os.getpid()
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_up_starts_its_roles_by_fork_and_is_their_parent(tmp_path: Path) -> None:
    data = tmp_path / "data"
    up = subprocess.Popen(
        [*COMMAND, "up", "--data", str(data)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=clean_environment(GRAPHWEFT_HEARTBEAT_DIR=str(tmp_path / "beats")),
    )  # fmt: skip
    try:
        assert up.stdout is not None
        assert "graphweft is up" in up.stdout.readline()
        roles = {name: pid for name, pid in json.loads((data / "processes.json").read_text()).items() if name != "up"}
        children = Path(f"/proc/{up.pid}/task/{up.pid}/children").read_text().split()
        assert set(map(str, roles.values())) <= set(children)
        assert all("fork_server" in program(roles[name]) for name in ("mutation", "injection"))
        up.kill()
        up.wait(timeout=120)
        until_sync(
            lambda: [pid for pid in roles.values() if Path(f"/proc/{pid}/exe").exists()],
            lambda alive: not alive,
            why="the roles end with their parent",
        )
    finally:
        up.kill()
        up.communicate(timeout=120)
