"""Commands name the extra that brings what they need."""

from __future__ import annotations

import subprocess
import sys

import pytest


# `graphweft[embedded]` lacks these two; it has the gateway's others for the console.
@pytest.mark.parametrize("missing", ["google.protobuf", "opentelemetry.proto"])
def test_the_gateway_names_its_extra_for_each_package(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from graphweft_workers.cli import main; main()"
    done = subprocess.run(  # a process of its own, because modules stay imported
        [sys.executable, "-c", code, "run", "gateway", "--insecure-app", "acme"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert f"`run gateway` needs the Python package '{missing}" in done.stderr
    assert "pip install 'graphweft[gateway]'" in done.stderr
    assert "Traceback" not in done.stderr
