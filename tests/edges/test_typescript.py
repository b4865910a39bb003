"""The TypeScript client: its types, its package, and its tests against a gateway as users run it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final, cast

import pytest
from tests.services.environment import clean_environment
from tests.services.node import CLIENT, NODE_S, ROOT, npm

from graphweft.memory import add_event
from graphweft_contracts import MemoryMessage, MemoryScope
from graphweft_contracts.events import registered_payloads
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
PAGE: Final = (ROOT / "docs/runtimes/typescript.md").read_text("utf-8")
PARTS: Final = """
import {{ type Client, type CloudEvent, createEvent }} from "graphweft";
export async function page(client: Client, another: CloudEvent, signal: AbortSignal, position: string) {{
  const used: unknown[] = [signal, position, another];
{}
  return used;
}}
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
            process.communicate(timeout=120)


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
    (rules / "Support").mkdir()
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (rules / "Support/graph_injection.yaml").write_text(example)
    for name, content in default_rule_files().items():
        (rules / name).parent.mkdir(exist_ok=True)
        (rules / name).write_bytes(content)
    tokens: dict[str, str] = {}
    lines: list[dict[str, object]] = []
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


@pytest.mark.long("attack.test")
@pytest.mark.parametrize("module", sorted(path.name for path in CLIENT.glob("test/*.test.mjs")))
def test_the_tests_of_the_client_pass(module: str, gateway: Gateway, node: Callable[..., str]) -> None:
    said = [MemoryMessage(role="user", text=MESSAGES[0]["text"], message_id="m1")]
    said.append(MemoryMessage(role="assistant", text="None", message_id="None"))
    event = add_event("acme", MemoryScope(user_id="ada", thread_id="日本🙂"), said, time=datetime.now(UTC))
    assert event is not None
    derived = {"messages": MESSAGES, "id": event.id}
    declared = {type: list(model.model_fields) for type, model in registered_payloads().items()}
    given = {"url": gateway.url, "tokens": gateway.tokens, "derived": derived, "declared": declared}
    node("--test", "--test-reporter=tap", f"test/{module}", GRAPHWEFT_TEST=json.dumps(given))


@pytest.fixture(scope="module")
def installed(built_client: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the packed client is installed, beside its packages of the tests."""
    folder = tmp_path_factory.mktemp("typescript-user")
    [packed] = json.loads(npm(built_client, "pack", "--ignore-scripts", "--json", "--pack-destination", str(folder)))
    packages = folder / "node_modules"
    packages.mkdir()
    for each in (built_client / "node_modules").iterdir():
        (packages / each.name).symlink_to(each)
    with tarfile.open(folder / packed["filename"]) as archive:
        archive.extractall(folder, filter="data")
    (folder / "package").rename(packages / "graphweft")
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def test_the_package_holds_what_runs_and_nothing_else(installed: Path) -> None:
    package = installed / "node_modules/graphweft"
    names = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    modules = {path.stem for path in CLIENT.glob("src/*.ts")}
    expected = {f"dist/{module}{end}" for module in modules for end in (".js", ".d.ts")}
    assert names == {*expected, "package.json", "README.md", "LICENSE"}


@pytest.mark.parametrize("program", ["refund.ts", "chat.ts"])
def test_the_examples_of_the_page_compile_and_print_what_it_says(
    program: str, installed: Path, gateway: Gateway, node: Callable[..., str]
) -> None:
    found = re.search(rf"```ts\n(// {program}\n.*?)```.*?```text\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    (installed / program).write_text(found[1])
    (installed / "parts.ts").write_text(PARTS.format("".join(f"{{{each}}}\n" for each in parts())))
    options = json.loads((CLIENT / "tsconfig.json").read_text())["compilerOptions"]
    # The types of the package itself are checked, but not those of the AI SDK.
    options |= {"outDir": "built", "rootDir": ".", "declaration": False, "noUnusedLocals": False}
    options |= {"skipLibCheck": program != "refund.ts"}
    (installed / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": [program, "parts.ts"]}))
    npm(installed, "exec", "--no", "--", "tsc", "-p", ".")
    environment = {"GRAPHWEFT_GATEWAY_URL": gateway.url, "GRAPHWEFT_GATEWAY_TOKEN": gateway.tokens["acme"]}
    printed = node(f"built/{Path(program).stem}.js", folder=installed, **environment)
    assert shown(printed) == shown(found[2])


def parts() -> list[str]:
    """Return what the page shows beside its programs and imports."""
    blocks = re.findall(r"```ts\n(.*?)```", PAGE, re.DOTALL)
    return [block for block in blocks if not block.startswith(("// ", "import "))]


def shown(text: str) -> str:
    """Return a text without what differs from run to run."""
    text = re.sub(r"data-[0-9a-f]{16}|[A-Z][a-z]+day \d{4}-\d\d-\d\d(?:, [^,\n]+(?=:))?", "…", text)
    text = re.sub(r"(?<=since )\d{4}-\d\d-\d\d", "…", text)
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]{4}-[0-9-]{5}T[0-9:.]+Z|0\.[0-9]{3}", "…", text)
