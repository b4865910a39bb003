"""What a health check makes of heartbeat files: its own, other processes', and what is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.services.fixtures import Logs

from graphweft_contracts import InvalidRules
from graphweft_workers.processes import heartbeat

MUTATION = ("mutation", "worker")


@pytest.fixture(autouse=True)
def folder(beats: Path) -> Path:
    beats.mkdir()
    return beats


def put(folder: Path, role: str, *, pid: int | None = None, age_s: float = 0.0, **changed: Any) -> Path:
    pid = os.getpid() if pid is None else pid
    content = {"role": role, "pid": pid, "state": "running", "monotonic": time.monotonic() - age_s, "error": ""}
    path = folder / f"{role}-{pid}.json"
    path.write_text(json.dumps(content | changed))
    return path


def gone() -> int:
    """Return the id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def look(name: str, **given: Any) -> tuple[list[str], str]:
    """Return the states that are found, and all that is said."""
    findings = heartbeat.examine(name, **given)
    for one in findings:
        assert one.keys() == {"check", "state", "found", "advice"}
        assert bool(one["advice"]) == (one["state"] != "ok")
    return [one["state"] for one in findings], "\n".join(" ".join(one.values()) for one in findings)


@pytest.mark.parametrize("name", [*heartbeat.ROLES, heartbeat.ANY_ROLE])
def test_no_process_is_a_failure_that_says_what_to_start(folder: Path, name: str) -> None:
    for there in (True, False):
        if not there:
            folder.rmdir()
        states, said = look(name)
        assert states == ["fail"]
        assert f"graphweft run {heartbeat.ROLES.get(name, 'ROLE')}" in said
        assert str(folder) in said


def test_only_the_role_that_is_asked_for_counts(folder: Path) -> None:
    put(folder, "mutation")
    put(folder, "injection", age_s=60)
    for name in MUTATION:
        assert look(name)[0] == ["ok"]
    assert look("responder")[0] == ["fail"]
    assert look("gateway")[0] == ["fail"]
    assert sorted(look("any")[0]) == ["fail", "ok"]


def test_a_process_that_hangs_is_found_beside_one_that_works(folder: Path) -> None:
    put(folder, "mutation")
    put(folder, "mutation", pid=os.getppid(), age_s=60)
    states, said = look("worker")
    assert sorted(states) == ["fail", "ok"]
    assert f"{os.getppid()} fail it hangs" in said
    assert "60 s" in said


def test_a_process_that_is_gone_is_a_failure(folder: Path) -> None:
    pid = gone()
    put(folder, "mutation", pid=pid)
    states, said = look("worker")
    assert states == ["fail"]
    assert f"{pid} fail it ended without" in said
    assert "graphweft run mutation" in said


def test_the_age_that_counts_as_hanging_can_be_chosen(folder: Path) -> None:
    put(folder, "memory", age_s=5)
    assert look("memory", max_age_s=10)[0] == ["ok"]
    assert look("memory", max_age_s=3)[0] == ["fail"]


def test_a_process_that_still_loads_is_not_healthy_and_does_not_hang(folder: Path) -> None:
    for age_s in (0, 60):
        put(folder, "mutation", age_s=age_s, state="starting")
        states, said = look("worker")
        assert states == ["fail"]
        assert "still loading its rules" in said


def test_a_beat_from_before_a_restart_of_the_machine_is_old(folder: Path) -> None:
    put(folder, "memory", age_s=-1000)
    states, said = look("memory")
    assert states == ["fail"]
    assert "before this machine" in said


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", "3", "{}", '{"role": "mutation"}', "\x00\xff",
        *(
            json.dumps({"role": "mutation", "pid": 1, "state": "running", "monotonic": 1.0, "error": ""} | wrong)
            for wrong in (
                {"pid": "x"}, {"pid": None}, {"pid": 0}, {"pid": -1}, {"pid": 10**30}, {"pid": float("inf")},
                {"monotonic": "now"}, {"monotonic": None}, {"monotonic": float("nan")},
            )
        ),
    ],
)  # fmt: skip
def test_what_is_no_heartbeat_is_never_healthy(folder: Path, content: str) -> None:
    (folder / "mutation-1.json").write_text(content)
    assert look("worker")[0] == ["fail"]


def test_what_is_no_text_is_never_healthy(folder: Path) -> None:
    (folder / "mutation-1.json").write_bytes(b"\xff\xfe\x00")
    (folder / "injection-1.json").mkdir()
    assert look("any")[0] == ["fail", "fail"]


def test_a_folder_of_somebody_else_is_not_believed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GRAPHWEFT_HEARTBEAT_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    theirs = tmp_path / "graphweft-4711"
    theirs.mkdir()
    put(theirs, "mutation")
    states, said = look("worker")
    assert states == ["fail"]
    assert "another user" in said
    heartbeat.Heartbeat("injection").beat()  # it only warns: a role works on
    assert [path.name for path in theirs.iterdir()] == [f"mutation-{os.getpid()}.json"]
    with pytest.raises(PermissionError, match="another user"):
        heartbeat.check_folder()


async def test_a_process_beats_until_it_ends(folder: Path) -> None:
    left_over = put(folder, "mutation", pid=gone())
    other = put(folder, "injection", pid=gone())
    living = put(folder, "mutation", pid=os.getppid())
    async with heartbeat.beating("mutation") as own:
        assert not left_over.exists()
        assert other.exists()
        assert living.exists()
        beat = heartbeat.read("mutation", os.getpid())
        assert beat is not None
        assert (beat.role, beat.pid, beat.state) == ("mutation", os.getpid(), "starting")
        own.begin()
        beat = heartbeat.read("mutation", os.getpid())
        assert beat is not None
        assert beat.state == "running"
    assert heartbeat.read("mutation", os.getpid()) is None
    assert living.exists()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidRules("the rules are wrong"), "the rules are wrong"),
        (ValueError("a private value"), "ValueError"),
        (ExceptionGroup("of a task", [ValueError("a private value")]), "ValueError"),
        (ExceptionGroup("of a task", [InvalidRules("the rules are wrong")]), "the rules are wrong"),
    ],
)
async def test_what_ended_a_process_stays_in_its_file(error: Exception, said: str) -> None:
    with pytest.raises(type(error)):
        async with heartbeat.beating("gateway"):
            raise error
    states, told = look("gateway")
    assert states == ["fail"]
    assert f"it ended: {said}" in told
    assert "private" not in told


async def test_a_role_works_on_where_no_heartbeat_can_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("GRAPHWEFT_HEARTBEAT_DIR", str(folder / "file" / "below"))
    async with heartbeat.beating("gateway") as own:
        own.begin()
    [entry] = logs
    assert "set GRAPHWEFT_HEARTBEAT_DIR" in entry["next"]


def test_the_folder_comes_back_when_it_was_removed(folder: Path) -> None:
    own = heartbeat.Heartbeat("memory")
    own.begin()
    (folder / f"memory-{os.getpid()}.json").unlink()
    folder.rmdir()
    own.beat()
    assert look("memory")[0] == ["ok"]


PROBE = """
import sys
from graphweft_workers.main import main
try:
    main()
except SystemExit as end:
    names = {"asyncio", "pydantic", "typer", "redis", "yaml", "graphweft", "graphweft_contracts.events"}
    heavy = names & sys.modules.keys()
    sys.exit(f"it loaded {heavy}" if heavy else end.code)
"""


@pytest.mark.parametrize(
    "arguments", [("--role", "worker"), ("--role=mutation", "--json"), ("--json", "--max-age=5", "--role", "any")]
)
def test_a_health_check_loads_next_to_nothing(folder: Path, arguments: tuple[str, ...]) -> None:
    def probe() -> subprocess.CompletedProcess[str]:
        # Neither a mistake in the settings nor a server that is away is the matter of a health check.
        broken = os.environ | {"GRAPHWEFT_PARTITIONS": "none", "GRAPHWEFT_UNKNOWN": "1"}
        call = [sys.executable, "-c", PROBE, "doctor", *arguments]
        return subprocess.run(call, env=broken, capture_output=True, text=True, timeout=120, check=False)

    put(folder, "mutation")
    done = probe()
    assert (done.returncode, done.stderr) == (0, "")
    if "--json" in arguments:
        assert [one["state"] for one in json.loads(done.stdout)] == ["ok"]
    put(folder, "mutation", age_s=60)
    assert (probe().returncode, probe().stderr) == (1, "")


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("doctor",), ("doctor", "--json"), ("doctor", "--role"), ("doctor", "--role", "wroker"),
        ("status", "--role"),
        ("doctor", "--role", "worker", "--help"), ("doctor", "--role", "worker", "--max-age", "x"),
        ("doctor", "--role", "worker", "--max-age", "nan"), ("doctor", "--role", "worker", "--max-age", "0"),
        ("doctor", "--role", "worker", "--data", "x"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_other_command_lines_are_left_to_the_command(arguments: tuple[str, ...]) -> None:
    assert heartbeat.main(arguments) is None
