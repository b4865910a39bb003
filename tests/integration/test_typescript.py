"""The TypeScript client: its types, its package, and its tests against a gateway as users run it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final, cast

import pytest
from tests.services.environment import clean_environment
from tests.services.node import CLIENT, NODE_S, ROOT, npm

from graphweft.memory import add_event
from graphweft_contracts import MemoryMessage, MemoryScope
from graphweft_contracts import typescript as generator
from graphweft_workers.gateway.tokens import new_token, sha256_of
from graphweft_workers.new_project import default_rule_files

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(NODE_S)]

RULES: Final = """
version: "1.0"
mutation_rules:
  - name: notes
    events: ["note.made"]
    mutations:
      - id: write
        cypher: |
          MERGE (n:Note {topic: $topic, text: $text})
          ON CREATE SET n.times = 1, n.number = $number
          ON MATCH SET n.times = n.times + 1, n.number = $number
        params: {topic: $event.topic, text: $event.text, number: $event.number}
injection_rules:
  - name: notes
    agents: ["*"]
    queries:
      - id: notes
        cypher: "MATCH (n:Note {topic: $topic}) RETURN n.text AS text, n.times AS times, n.number AS number"
        params: {topic: $context.topic}
        inject_as: notes
        format: list
"""
MESSAGES: Final = [
    {"role": "user", "text": "My cat is called Tom. 日本🙂", "messageId": "m1"},
    {"role": "assistant", "text": "None", "messageId": "None"},
]


@dataclass
class Stack:
    folder: Path
    environment: dict[str, str]

    @contextmanager
    def run(self, *arguments: str, until: str, **environment: str) -> Iterator[str]:
        """Run a command until the block ends; gives the line with ``until``."""
        process = subprocess.Popen(
            [sys.executable, "-m", "graphweft_workers.cli", *arguments],
            env=self.environment | environment, cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            line = cast("IO[str]", process.stdout).readline()
            assert until in line, cast("IO[str]", process.stderr).read()
            yield line
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


@dataclass
class Gateway:
    url: str
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def gateway(built_client: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """``graphweft up`` and ``graphweft run gateway``, with tokens and a quota."""
    folder = tmp_path_factory.mktemp("typescript-stack")
    rules = folder / "workflows"
    (rules / "Notes").mkdir(parents=True)
    (rules / "Notes/graph_injection.yaml").write_text(RULES)
    for name, content in default_rule_files().items():
        (rules / name).parent.mkdir(exist_ok=True)
        (rules / name).write_bytes(content)
    tokens, lines = {}, []
    for name, app, roles in (
        ("acme", "acme", ["emit", "read", "erase"]),
        ("reader", "acme", ["read"]),
        ("limited", "limited", ["emit", "read"]),
    ):
        tokens[name] = new_token()
        lines.append({"sha256": sha256_of(tokens[name]), "app_id": app, "name": name, "roles": roles})
    (folder / "tokens.yaml").write_text(json.dumps({"tokens": lines}))
    (folder / "apps.yaml").write_text(json.dumps({"apps": {"limited": {"quotas": {"events_per_s": 10}}}}))
    stack = Stack(folder, clean_environment(GRAPHWEFT_DATA=str(folder / "data"), GRAPHWEFT_LOG_LEVEL="warning"))
    with ExitStack() as ends:
        ends.enter_context(stack.run("up", until="graphweft is up"))
        settings = {"GRAPHWEFT_GATEWAY_TOKENS": "tokens.yaml", "GRAPHWEFT_APPS": "apps.yaml"}
        line = ends.enter_context(stack.run("run", "gateway", "--port", "0", until="answers on", **settings))
        yield Gateway(line.split()[-1], tokens)


@pytest.fixture
def node(built_client: Path) -> Callable[..., str]:
    """Run a program of JavaScript beside the client; return what it prints."""

    def run(*arguments: str, folder: Path = built_client, **environment: str) -> str:
        done = subprocess.run(
            ["node", *arguments], cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False,
            timeout=NODE_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        return done.stdout

    return run


@pytest.mark.parametrize("module", sorted(path.name for path in CLIENT.glob("test/*.test.mjs")))
def test_the_tests_of_the_client_pass(module: str, gateway: Gateway, node: Callable[..., str]) -> None:
    said = [MemoryMessage(role="user", text=MESSAGES[0]["text"], message_id="m1")]
    said.append(MemoryMessage(role="assistant", text="None", message_id="None"))
    event = add_event("acme", MemoryScope(user_id="ada", thread_id="日本🙂"), said, time=datetime.now(UTC))
    assert event is not None
    given = {"url": gateway.url, "tokens": gateway.tokens, "derived": {"messages": MESSAGES, "id": event.id}}
    node("--test", "--test-reporter=tap", f"test/{module}", GRAPHWEFT_TEST=json.dumps(given))


def test_the_package_holds_what_runs_and_nothing_else(built_client: Path, node: Callable[..., str]) -> None:
    [packed] = json.loads(npm(built_client, "pack", "--dry-run", "--ignore-scripts", "--json"))
    names = {each["path"] for each in packed["files"]}
    modules = {path.stem for path in CLIENT.glob("src/*.ts")}
    expected = {f"dist/{module}{end}" for module in modules for end in (".js", ".d.ts")}
    assert names == {*expected, "package.json", "README.md", "LICENSE"}
    package = json.loads((CLIENT / "package.json").read_text())
    assert packed["name"] == "graphweft"
    assert package["license"] == "Apache-2.0"
    assert "dependencies" not in package
    project = re.search(r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text())
    assert project is not None
    assert package["version"] == project[1]


def test_the_pins_name_no_registry() -> None:
    pins: dict[str, Any] = json.loads((CLIENT / "package-lock.json").read_text())["packages"]
    assert all("resolved" not in each for each in pins.values())
    assert all("integrity" in each for name, each in pins.items() if name)


def test_the_types_of_the_contracts_are_current() -> None:
    assert (ROOT / generator.FILE).read_text() == generator.render()
