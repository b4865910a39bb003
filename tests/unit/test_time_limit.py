"""A test that reaches its time limit closes what it has opened: a run of pytest over a small suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITE = """
import asyncio, os, pytest

@pytest.fixture
async def opened():
    made = ["server", "client"]
    yield made
    print("at the end there is", made)

@pytest.mark.timeout(0.5)
async def test_of_a_loop(opened):
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        opened.remove("client")

@pytest.mark.timeout(0.5)
def test_without_a_loop():
    read, _ = os.pipe()
    os.read(read, 1)

@pytest.mark.timeout(60)
async def test_that_ends():
    await asyncio.sleep(0)
"""


def test_a_test_that_takes_too_long_closes_what_it_has_opened(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.services.time_limit"]')
    (tmp_path / "test_it.py").write_text(SUITE)
    options = ["-p", "no:schemathesis", "-p", "no:hypothesispytest", "-p", "no:randomly", "-o", "asyncio_mode=auto"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "--rootdir", str(tmp_path), *options, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "at the end there is ['server']" in done.stdout, done.stdout
    assert "the test took longer than 0.5 s" in done.stdout
    assert "Failed: Timeout" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("========================= 2 failed, 1 passed"), done.stdout
