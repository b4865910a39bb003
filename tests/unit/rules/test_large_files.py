"""A YAML file of a megabyte is refused, or read with little memory, before all of it becomes nodes."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.services.environment import PEAK_KB

MEGABYTE = 1_000_000
MEMORY = 300 * 1024**2
READ = f"""
import sys
from pathlib import Path
from graphweft_rules.files.source import parse
for name in sys.argv[1:]:
    print(*(finding.code for finding in parse(Path(name).read_bytes(), name)[1]))
print({PEAK_KB})
"""
CONTENT = {
    "arrays": (b"[" + b"[]," * MEGABYTE, "yaml-too-large"),
    "mappings": (b"[" + b"{}," * MEGABYTE, "yaml-too-large"),
    "list": (b"- \n" * MEGABYTE, "yaml-too-large"),
    "tags": (b"[" + b"!a x," * MEGABYTE, "yaml-too-large"),
    "keys": (b"".join(b"k%d: 1\n" % number for number in range(100_000)), "yaml-too-large"),
    "levels": (b"[" * MEGABYTE, "yaml-too-deep"),
    "questions": (b"? " * MEGABYTE, "yaml-too-deep"),
    "documents": (b"---\n" * MEGABYTE, "yaml-documents"),
    "one text": (b'"' + "\U0001f600".encode() * 249_999 + b'"', ""),
    "line ends": (b"\n" * MEGABYTE, ""),
}


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (3 * MEMORY, 3 * MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (10 * len(CONTENT), 10 * len(CONTENT)))


SOME = ("arrays", "levels", "documents", "one text")


@pytest.mark.long("others")
@pytest.mark.parametrize("names", [SOME, tuple(CONTENT.keys() - SOME)], ids=["some", "others"])
def test_a_large_file_takes_little_memory(tmp_path: Path, names: Sequence[str]) -> None:
    files: list[str] = []
    for name in names:
        (file := tmp_path / f"{name}.yaml").write_bytes(CONTENT[name][0][:MEGABYTE])
        files.append(str(file))
    done = subprocess.run(
        [sys.executable, "-c", READ, *files], capture_output=True, text=True, check=False, preexec_fn=limit
    )
    assert done.returncode == 0, done.stderr[-500:]
    *found, peak = done.stdout.splitlines()
    assert found == [CONTENT[name][1] for name in names]
    assert int(peak) * 1024 <= MEMORY


@pytest.mark.parametrize("size", [4_000_001, 20_000_000])
def test_a_file_that_is_too_large_is_not_read(size: int) -> None:
    from graphweft_rules.files.source import parse

    assert [each.code for each in parse(b"x" * size, "f")[1]] == ["yaml-too-large"]
