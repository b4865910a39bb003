"""Commands name the extra that brings what they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.services.environment import clean_environment


# `graphweft[embedded]` lacks these two; it has the gateway's others for the console.
@pytest.mark.parametrize("missing", ["google.protobuf", "opentelemetry.proto"])
def test_the_gateway_names_its_extra_for_each_package(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from graphweft_workers.cli import main; main()"
    done = subprocess.run(  # a process of its own, because modules stay imported
        [sys.executable, "-c", code, "run", "gateway", "--insecure-app", "acme"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert f"`run gateway` needs the Python package '{missing}" in done.stderr
    assert "pip install 'graphweft[gateway]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["pytest", "pytest_asyncio", "hypothesis"])
def test_the_suites_of_the_ports_name_their_extra(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import graphweft.testing, graphweft_workers.testing  # need neither\n"
        "try: graphweft_workers.testing.BusSuite\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert f"a suite of the ports needs the Python package '{missing}'" in done.stdout, done.stderr
    assert "pip install 'graphweft[testing]'" in done.stdout


@pytest.mark.long(keep=("command0-EMBEDDER", "command0-SUMMARISER", "command1-JUDGE"))
@pytest.mark.parametrize("variable", ["JUDGE", "SUMMARISER", "EMBEDDER"])
@pytest.mark.parametrize("command", [["run", "memory"], ["doctor", "--json"]])
def test_a_model_names_its_extra(variable: str, command: list[str], tmp_path: Path) -> None:
    """`graphweft[embedded]` lacks httpx."""
    code = (
        "import sys, importlib.util; found = importlib.util.find_spec; sys.modules['httpx'] = None\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'httpx' else found(name, *more)\n"
        "from graphweft_workers.cli import main; main()"
    )
    environment = clean_environment() | {
        f"GRAPHWEFT_{variable}": "openai:m",
        f"GRAPHWEFT_{variable}_API_KEY": "k",
        "GRAPHWEFT_MEMORY_SUMMARISE_AFTER": "60",
        "GRAPHWEFT_BUS_URL": "redis://127.0.0.1:1",
        "GRAPHWEFT_GRAPH_URL": "redis://127.0.0.1:1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        capture_output=True, text=True, timeout=120, check=False, env=environment, cwd=tmp_path,
    )  # fmt: skip
    said = done.stderr + done.stdout
    assert done.returncode == (2 if command[0] == "run" else 1), said
    assert f"the {variable.lower()} 'openai:m' needs the Python package 'httpx'" in said
    assert "pip install 'graphweft[openai-compatible]'" in said
    assert "Traceback" not in said
