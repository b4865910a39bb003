"""A file of up to 1 MB from outside is refused or read with little memory and in little time, whatever it holds."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import zstandard
from tests.services.environment import PEAK_KB, clean_environment
from tests.unit.test_export_file import NOW, entry, export

from graphweft_contracts import DeadLetter
from graphweft_workers.archive import segments

MEGABYTE = 1_000_000
MEMORY = 300 * 1024**2
CPU_S = 10
"""Seconds of the processor that a command has; its own start takes about one of them."""


def run(code: str, *arguments: str, given: bytes = b"") -> tuple[int, str]:
    """Run code with limits of memory and processor time; return its exit code and what it said."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 * MEMORY, 3 * MEMORY))  # an address is not yet memory
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))

    told = f"import atexit, sys\natexit.register(lambda: sys.stderr.write('\\nPEAK ' + {PEAK_KB}))\n"
    done = subprocess.run(
        [sys.executable, "-c", told + code, *arguments], input=given, capture_output=True, check=False,
        preexec_fn=limit, env=clean_environment(GRAPHWEFT_BUS_URL="redis://127.0.0.1:1"),
    )  # fmt: skip
    said = done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
    assert "PEAK" in said, (done.returncode, said[-2_000:])
    said, _, peak = done.stderr.decode(errors="replace").rpartition("\nPEAK ")
    assert int(peak) * 1024 <= MEMORY, f"{int(peak):,} kB"
    assert "Traceback" not in said, said[-2_000:]
    return done.returncode, said


def packed(*parts: tuple[bytes, int]) -> bytes:
    """Return a Zstandard frame of parts, each repeated, without holding them unpacked."""
    packing = zstandard.ZstdCompressor(level=3).compressobj()
    done: list[bytes] = []
    for part, count in parts:
        many = max(1, min(count, (1 << 20) // len(part)))
        done += [packing.compress(part * many) for _ in range(count // many)]
    return b"".join([*done, packing.flush()])


def gzipped(*parts: tuple[bytes, int]) -> bytes:
    made = io.BytesIO()
    with gzip.GzipFile(fileobj=made, mode="wb") as file:
        for part, count in parts:
            many = max(1, min(count, (1 << 20) // len(part)))
            for _ in range(count // many):
                file.write(part * many)
    return made.getvalue()


def under_its_name(stem: str, data: bytes) -> tuple[str, bytes]:
    return f"{stem}_{hashlib.sha256(data).hexdigest()[:20]}.jsonl.zst", data


ONE = "segments/p00000/000000000001-000000000001_1-0_1-0_g0000"
MANY = "segments/p00000/000000000001-000099999999_1-0_99999999-0_g0000"
HEAD, _ = segments.encode(0, 1, [entry(1)])
DESCRIBED = b'{"version":1,"partition":0,"first":1,"last":1,"times":[0,0],"apps":{"shop":1},"erased":0}\n'
EMPTY = b'["1-0",0,null]\n'
FIELDS = b"".join(b'"%06d":"",' % number for number in range(100_000))
SEGMENTS = {
    "arrays in the first line": partial(packed, (b"[", 1), (b"[],", 130_000_000)),
    "objects": partial(packed, (DESCRIBED, 1), (b"[", 1), (b"{},", 20_000_000)),
    "line ends": partial(packed, (DESCRIBED, 1), (b"\n", 300_000_000)),
    "entries": partial(packed, (DESCRIBED, 1), (EMPTY, 4_000_000)),
    "deep": partial(packed, (DESCRIBED, 1), (b"[", 60_000_000)),
    "one text": partial(
        packed, (DESCRIBED, 1), (b'["1-0",0,{"a":"', 1), ("\U0001f600".encode(), 15_000_000), (b'"}]\n', 1),
    ),
    "a text just within a line": partial(
        packed, (DESCRIBED, 1), (b'["1-0",0,{"a":"', 1), ("\U0001f600".encode(), 3_900_000), (b'"}]\n', 1),
    ),
    "short texts": partial(packed, (DESCRIBED, 1), (b'"",', 20_000_000)),
    "fields": partial(packed, *[(b'["1-0",0,{' + FIELDS[:-1] + b"}]\n", 1)] * 60),
    "numbers": partial(packed, (DESCRIBED, 1), (b"1,", 30_000_000)),
    "a window of 2 GB": partial(
        zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=False)
        ).compress,
        b"x",
    ),
    "nothing": bytes,
}  # fmt: skip
RESTORE = """
from pathlib import Path
from tempfile import TemporaryDirectory
from graphweft_contracts import InvalidSettings
from graphweft_workers.cli.restore import _unpacked
with TemporaryDirectory() as folder:
    try:
        _unpacked(Path(sys.argv[1]), Path(folder))
    except InvalidSettings as error:
        print("refused:", str(error)[:300], file=sys.stderr)
"""
VERIFY = """
import asyncio
from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.archive.verify import verify
async def work():
    async for found in verify(open_blobs(sys.argv[1]), None):
        print("refused:", *found.faults, file=sys.stderr)
asyncio.run(work())
"""


@pytest.mark.long(keep=("objects", "line ends", "one text"))
@pytest.mark.parametrize("name", SEGMENTS)
def test_a_hostile_segment_is_refused_by_restore_and_verify(tmp_path: Path, name: str) -> None:
    member, data = under_its_name(MANY if name in ("entries", "line ends") else ONE, SEGMENTS[name]())
    assert len(data) < MEGABYTE
    (file := tmp_path / "x.tar").write_bytes(
        export(lambda parts: parts.update(entries=[], first=[], extra={f"0001/{member}": data}))
    )
    code, said = run(RESTORE, str(file))
    assert (code, "refused: the export" in said) == (0, True), said
    (tmp_path / "archive" / member).parent.mkdir(parents=True)
    (tmp_path / "archive" / member).write_bytes(data)
    code, said = run(VERIFY, str(tmp_path / "archive"))
    assert (code, f"refused: {member}" in said) == (0, name != "a text just within a line"), said


LETTER = DeadLetter(id="0:1-0", reason="skipped", message="", position="0:1-0", time=NOW, app_id="shop", fields={})
LETTERS = {
    "line ends": partial(packed, (b"\n", 500_000_000)),
    "arrays": partial(packed, (b"[", 1), (b"[],", 100_000_000)),
    "letters": partial(packed, (LETTER.model_dump_json(exclude_none=True).encode() + b"\n", 2_000_000)),
    "offsets": partial(packed, (b'{"offsets":[', 1), (b'"1-0",', 90_000_000)),
    "one text": partial(packed, (b'{"message":"', 1), ("\U0001f600".encode(), 90_000_000)),
    "fields": partial(packed, (b'{"fields":{', 1), (b'"a":"",', 20_000_000)),
}


@pytest.mark.long(keep=("letters-letters", "one text"))
@pytest.mark.parametrize("folder", ["letters", pytest.param("pending", marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", LETTERS)
def test_a_hostile_file_of_letters_is_refused(tmp_path: Path, name: str, folder: str) -> None:
    data = LETTERS[name]()
    assert len(data) < MEGABYTE

    def change(parts: dict[str, object]) -> None:
        parts.update(letters=None, extra={f"0001/{folder}/{1:014}_{'0' * 20}.jsonl.zst": data})

    (file := tmp_path / "x.tar").write_bytes(export(change))
    code, said = run(RESTORE, str(file))
    assert (code, "refused: the export" in said) == (0, True), said


SNAPSHOT = """
from pathlib import Path
from graphweft_workers.replay.snapshot_file import InvalidSnapshot, read_snapshot
try:
    print(sum(len(line) for line in read_snapshot(Path(sys.argv[1]).read_bytes())[1]))
except InvalidSnapshot as error:
    print("refused:", error, file=sys.stderr)
"""
GRAPHS = {
    "one line": partial(packed, (b"[", 1), (b"[],", 100_000_000)),
    "lines": partial(packed, (b"\n", 500_000_000)),
    "nodes": partial(packed, (b'["node",1,[],{}]\n', 30_000_000)),
    "one text": partial(packed, (b'["', 1), ("\U0001f600".encode(), 100_000_000)),
    "values in a line": partial(packed, (b"[", 1), (b"{},", 5_000_000), (b"\n", 1)),
    "a window of 2 GB": SEGMENTS["a window of 2 GB"],
}


@pytest.mark.long(keep=("nodes", "one text"))
@pytest.mark.parametrize("name", GRAPHS)
def test_a_hostile_snapshot_is_refused(tmp_path: Path, name: str) -> None:
    header = {"format": 1, "app": "a", "key": "k", "events": 1, "lines": 10**12, "progress": {}, "keys": []}
    body = json.dumps(header | {"indexes": []}).encode() + b"\n" + GRAPHS[name]()
    (file := tmp_path / "snapshot").write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    code, said = run(SNAPSHOT, str(file))
    assert (code, "refused: it is damaged" in said) == (0, True), said


COMMAND = "from graphweft_workers.cli import app; app(sys.argv[1:])"
CONTENT: dict[str, list[tuple[bytes, int]]] = {
    "arrays": [(b"[", 1), (b"[],", 80_000_000)],
    "objects": [(b"[", 1), (b"{},", 80_000_000)],
    "line ends": [(b"\n", 240_000_000)],
    "lines of text": [(b"x\n", 120_000_000)],
    "lines of empty objects": [(b"{}\n", 80_000_000)],
    "one text": [(b'["', 1), ("\U0001f600".encode(), 60_000_000), (b'"]', 1)],
    "short texts": [(b"[", 1), (b'"ab",', 40_000_000)],
    "nested": [(b'{"a":', 40_000_000)],
    "blanks": [(b" ", 240_000_000)],
    "long line": [(b"x", 240_000_000)],
}
IMPORTS = {
    "openai-chat": ["import", "openai-chat", "--app", "a", "--workflow", "w"],
    "mem0": ["import", "mem0", "--app", "a", "--dry-run"],
    "graphiti": ["import", "graphiti", "--app", "a", "--dry-run"],
}
PLAIN = IMPORTS | {
    "emit": ["emit", "--give-up-after", "0"],
    "memory add": ["memory", "add", "--app", "a", "--user", "u", "--file"],
    "try": ["try"],
}


FEW = ("lines of text", "one text")
ALL = pytest.param((*CONTENT,), marks=pytest.mark.soak)
SOME_OR_ALL = pytest.mark.parametrize("names", [FEW, ALL], ids=["few", "all"])


@pytest.mark.long("openai-chat")
@pytest.mark.parametrize("names", [("one text",), ALL], ids=["few", "all"])
@pytest.mark.parametrize(
    ("command", "ending"),
    [
        ("openai-chat", ".json.gz"),
        ("mem0", ".jsonl.gz"),
        *(
            pytest.param(command, ending, marks=pytest.mark.soak)
            for command in IMPORTS
            for ending in (".json.gz", ".jsonl.gz", "-")
        ),
    ],
)
def test_a_packed_file_is_read_within_limits(tmp_path: Path, names: tuple[str, ...], command: str, ending: str) -> None:
    for name in names:
        data = gzipped(*CONTENT[name])
        assert len(data) < MEGABYTE
        (file := tmp_path / f"{name}{ending}").write_bytes(data)
        [kind, *more] = IMPORTS[command]
        given = "-" if ending == "-" else str(file)
        code, said = run(COMMAND, kind, more[0], given, *more[1:], given=data if ending == "-" else b"")
        assert code in {0, 1, 2}, (name, said)
        assert said.strip() or code == 0, name


@SOME_OR_ALL
@pytest.mark.parametrize(
    "command",
    ["emit", "memory add", *(pytest.param(each, marks=pytest.mark.soak) for each in (*IMPORTS, "try"))],
)
def test_a_plain_file_of_a_megabyte_is_read_within_limits(tmp_path: Path, names: tuple[str, ...], command: str) -> None:
    for name in names:
        content = b"".join(part * max(1, min(count, MEGABYTE // len(part))) for part, count in CONTENT[name])
        (file := tmp_path / f"{name.replace(' ', '-')}.jsonl").write_bytes(content[:MEGABYTE])
        words = [*PLAIN[command]]
        at = {"import": 2, "emit": 1}.get(words[0], len(words))
        words[at:at] = [str(file)]
        if command == "try":
            words += ["--rules", str(tmp_path / "none")]
        code, said = run(COMMAND, *words)
        assert code in {0, 1, 2}, (name, said)
        assert said.strip() or code == 0, name
