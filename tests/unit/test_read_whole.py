"""Files and standard input that are read whole into memory have a bound."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graphweft_workers.imports import ImportProblem, read_runs
from graphweft_workers.imports import files as read_files
from graphweft_workers.imports.files import runs_of_stream

RULES = Path(__file__).parents[2] / "examples" / "airline" / "workflows"
RUN = b'[{"role": "user", "content": "' + b"a" * 2_000 + b'"}]'


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.json", RUN, ""),
        ("a.json.gz", gzip.compress(RUN), ""),
        ("a.jsonl", b"[]\n" + RUN, ":2"),
        ("a.jsonl.gz", gzip.compress(b"[]\n" + RUN), ":2"),
    ],
    ids=["document", "packed document", "lines", "packed lines"],
)
def test_an_import_refuses_a_file_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, place: str
) -> None:
    (path := tmp_path / name).write_bytes(content)
    assert list(read_runs(path))
    monkeypatch.setattr(read_files, "MOST_BYTES", 1_000)
    with pytest.raises(ImportProblem, match=r"more than 1,000 bytes.* split it") as caught:
        list(read_runs(path))
    assert str(caught.value).startswith(f"{path}{place}: ")


@pytest.mark.parametrize("content", [RUN, gzip.compress(RUN)], ids=["plain", "gzip"])
def test_an_import_refuses_a_stream_that_is_too_large(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    assert list(runs_of_stream(io.BytesIO(content), file="<stdin>"))
    monkeypatch.setattr(read_files, "MOST_BYTES", 1_000)
    with pytest.raises(ImportProblem, match=r"^<stdin>: it has more than 1,000 bytes"):
        list(runs_of_stream(io.BytesIO(content), file="<stdin>"))


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["import", "openai-chat", "-", "--app", "a", "--workflow", "w"], "<stdin>"),
        (["memory", "add", "--app", "a", "--user", "u", "--file", "-"], "standard input"),
        (["memory", "add", "--app", "a", "--user", "u", "--file", "/dev/zero"], "/dev/zero"),
        (["try", "/dev/zero", "--rules", str(RULES)], "/dev/zero"),
    ],
)
def test_commands_refuse_input_without_end(arguments: list[str], place: str) -> None:
    code = (
        "from graphweft_workers.imports import files; files.MOST_BYTES = 1_000_000\n"
        f"from graphweft_workers.cli import app; app({arguments!r})"
    )

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 * 1024**3, 2 * 1024**3))

    with Path("/dev/zero").open("rb") as zeros:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=zeros,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            preexec_fn=limit_memory,
        )
    assert f"{place}: it has more than 1,000,000 bytes" in done.stderr
    assert done.returncode in {1, 2}


@pytest.mark.long("empty lines")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\n" * 8_000_000, "it holds no event"),
        (b"y\n" * 5_000, "at least 1,000 events"),
        (b"[" * 200_000, "1 event is"),
    ],
    ids=["empty lines", "lines of text", "deep JSON"],
)
def test_trying_a_hostile_file_takes_little_memory(tmp_path: Path, content: bytes, said: str) -> None:
    (file := tmp_path / "events.jsonl").write_bytes(content)

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (600 * 1024**2, 600 * 1024**2))

    done = subprocess.run(
        [sys.executable, "-m", "graphweft_workers.cli", "try", str(file), "--rules", str(RULES)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=limit_memory,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert f"{file}: {said}" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["emit"],
        ["try", "--rules", str(RULES)],
        ["coverage", "--rules", str(RULES)],
        ["memory", "add", "--app", "a", "--user", "u", "--file"],
    ],
    ids=["emit", "try", "coverage", "memory add"],
)
def test_a_pipe_that_never_ends_can_be_interrupted(tmp_path: Path, arguments: list[str]) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    command = [sys.executable, "-m", "graphweft_workers.cli", *arguments, str(pipe)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running, pipe.open("wb"):
        running.send_signal(signal.SIGINT)
        try:
            assert running.wait(timeout=120) == 130
        finally:
            running.kill()
        assert running.stderr is not None
        said = running.stderr.read()
        assert not said or said.startswith("interrupted: the bus has taken 0 events; it is safe to run again"), said


def emit(
    given: str, megabytes: int, *, command: str = "emit", most_written: int = 1 << 30
) -> subprocess.CompletedProcess[str]:
    """Send a file while there is no bus, with so much memory, and so many bytes of a file that it may write."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 1024**2, megabytes * 1024**2))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_written, most_written))

    return subprocess.run(
        ["bash", "-c", f"exec {sys.executable} -m graphweft_workers.cli {command} {given} --give-up-after 0"],
        env=os.environ | {"GRAPHWEFT_BUS_URL": "redis://127.0.0.1:1", "GRAPHWEFT_GRAPH_URL": "redis://127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=limit,
    )


def events(file: Path, count: int, data: str) -> None:
    names = '"specversion": "1.0", "source": "/s", "type": "order.paid", "appid": "a", "chatid": "c"'
    file.write_text("".join(f'{{{names}, "id": "{number}", "data": {data}}}\n' for number in range(count)))


def test_emit_does_not_hold_all_events_of_a_file(tmp_path: Path) -> None:
    events(file := tmp_path / "events.jsonl", 300, f'{{"x": [{", ".join(["{}"] * 30_000)}]}}')
    done = emit(str(file), 650)
    assert "sent before: 0 events" in done.stderr, done.stderr[-2_000:]
    assert done.returncode == 1


def test_emit_reads_a_pipe_once_and_writes_no_copy_of_it(tmp_path: Path) -> None:
    events(file := tmp_path / "events.jsonl", 3, "{}")
    assert "sent before: 0 events" in emit(f"<(cat {file})", 2_000, most_written=0).stderr
    file.write_text(file.read_text() + "{")
    assert "1 line is invalid: correct it; nothing was sent" in emit(f"<(cat {file})", 2_000).stderr


def test_a_named_pipe_of_runs_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "runs.jsonl")
    (file := tmp_path / "runs").write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    with subprocess.Popen(["cp", file, pipe]) as writing:
        done = emit(f"{pipe} --app a --workflow W", 2_000, command="import openai-chat", most_written=0)
    assert writing.returncode == 0
    assert "sent before: 0 events" in done.stderr


def test_an_import_of_runs_does_not_hold_all_events_of_a_file(tmp_path: Path) -> None:
    record = json.dumps({"messages": [{"role": "user", "content": "hello"}], "rows": "ROWS"})
    rows = f"[{', '.join(['{}'] * 30_000)}]"
    (file := tmp_path / "runs.jsonl").write_text(
        "".join(record.replace('"ROWS"', rows).replace("{", f'{{"id": "{n}", ', 1) + "\n" for n in range(300))
    )
    arguments = f"{file} --app a --workflow W --context-field rows"
    done = emit(arguments, 650, command="import openai-chat")
    assert "sent before: 0 events" in done.stderr, done.stderr[-2_000:]
    assert done.returncode == 1


def test_a_faulty_run_at_the_end_of_a_file_means_that_nothing_is_sent(tmp_path: Path) -> None:
    good = '{"messages": [{"role": "user", "content": "hello"}]}\n'
    (file := tmp_path / "runs.jsonl").write_text(good + "{}\n")
    done = emit(f"{file} --app a --workflow W", 2_000, command="import openai-chat")
    assert "runs.jsonl:2: the record has no array 'messages'" in done.stderr
    assert ("sent before" in done.stderr, done.returncode) == (False, 2)


def test_a_run_that_the_bus_would_refuse_for_its_size_means_that_nothing_is_sent(tmp_path: Path) -> None:
    said = [*(f"hello {number}" for number in range(600)), "x" * 1_100_000]  # more than a batch before it
    (file := tmp_path / "runs.jsonl").write_text(
        "".join(json.dumps({"messages": [{"role": "user", "content": text}]}) + "\n" for text in said)
    )
    done = emit(f"{file} --app a --workflow W", 2_000, command="import openai-chat")
    assert "more than the limit of 1000000" in done.stderr, done.stderr[:500]
    assert ("trying again" in done.stderr, done.returncode) == (False, 2)
