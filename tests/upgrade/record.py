"""Writes ``tests/upgrade/recorded``: the data folder of an embedded server as the version that runs this leaves it.

Run it with the Python of an earlier version, in a checkout of that version or any other folder::

    /path/to/earlier/.venv/bin/python tests/upgrade/record.py "0.1.0.dev0 of 2026-11-28"

It uses commands alone, so it works with each version that has them. The data holds what a deployment has after a while:
two rule sets and one of an app's own, events that are in the archive only, a copy, a skip and a dead letter, memories
with vectors, an erased user, and events that no worker has applied. ``recorded/expected.json`` is what the version said
of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
GRAPHWEFT = Path(sys.executable).with_name("graphweft")
SETTINGS = """\
partitions: 2
embedder: hash:8
archive_every_s: 3600
memory_keep_count: 50
graph_template: "graph_{app_id}"
"""
FIRST = """\
version: "1.0"
injection_rules:
  - name: tools
    agents: ["*"]
    queries:
      - id: tools
        cypher: "MATCH (t:Tool) RETURN t.name AS name, t.calls AS calls ORDER BY name"
        inject_as: tools
        format: list
mutation_rules:
  - name: tools
    events: ["tool.call_complete"]
    mutations:
      - id: calls
        cypher: |
          MERGE (t:Tool {name: $tool}) ON CREATE SET t.calls = 1 ON MATCH SET t.calls = t.calls + 1
        params: {tool: $event.tool_name}
      - id: trace
        cypher: |
          MERGE (c:Chat {id: $chat}) SET c.trace = coalesce(c.trace, '') + $tool + ',', c.at = datetime()
        params: {tool: $event.tool_name, chat: $workflow.chat_id}
  - name: shares
    events: ["order.split"]
    mutations:
      - id: share
        cypher: "MERGE (s:Share {id: $id}) SET s.part = 100 / $parts, s.key = randomUUID()"
        params: {id: $event.id, parts: $event.parts}
"""
SECOND = FIRST.replace("SET c.trace", "SET c.calls = coalesce(c.calls, 0) + 1, c.trace")
OWN = FIRST.replace("MERGE (t:Tool {name: $tool})", "MERGE (t:Tool {name: 'own ' + $tool})")
APPS = ("acme", "globex", "initech")


def event(app: str, number: int, type: str = "tool.call_complete", *, chat: str = "c0", **data: Any) -> dict[str, Any]:
    body = data or {"tool_name": f"t{number % 3}", "success": True}
    return {
        "specversion": "1.0", "id": f"{app}-{number}", "source": "/recorded", "type": type, "chatid": chat,
        "time": f"2026-01-0{1 + number % 9}T10:00:00Z", "datacontenttype": "application/json", "appid": app,
        "workflow": "Support", "userid": f"u{number % 2}", "data": body,
    }  # fmt: skip


class Recording:
    """One data folder, and the commands that fill it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        (folder / "graphweft.yaml").write_text(SETTINGS)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("GRAPHWEFT_", "PYTHON"))
        } | {"GRAPHWEFT_DATA": str(self.data), "GRAPHWEFT_LOG_LEVEL": "warning", "COLUMNS": "200"}

    def rules(self, text: str) -> None:
        file = self.folder / "workflows/Support/graph_injection.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(self, *words: str, codes: tuple[int, ...] = (0,), lines: list[dict[str, Any]] | None = None) -> str:
        """Run a command, and return its standard output."""
        if lines is not None:
            (self.folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = subprocess.run(
            [GRAPHWEFT, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
            timeout=300,
        )  # fmt: skip
        assert done.returncode in codes, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def up(self) -> subprocess.Popen[str]:
        """Start everything, and wait until it is there."""
        running = subprocess.Popen(
            [GRAPHWEFT, "up"], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(600):
            look = subprocess.run(
                [GRAPHWEFT, "status", "--json"], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            if look.returncode == 0 and all(each["owner"] for each in json.loads(look.stdout)["partitions"]):
                return running
        raise AssertionError("not there after 600 looks")


def down(running: subprocess.Popen[str]) -> None:
    running.send_signal(signal.SIGINT)
    assert running.wait(120) in (0, 130), running.returncode


def fill(recording: Recording) -> dict[str, Any]:
    """Fill the folder; return what the version says of it."""
    recording.rules(FIRST)
    running = recording.up()
    try:
        return _fill(recording)
    finally:
        down(running)


def _fill(recording: Recording) -> dict[str, Any]:
    run = recording.run
    run("emit", "events.jsonl", "--wait", lines=[event(app, n, chat=f"c{n % 2}") for app in APPS for n in range(12)])
    run("emit", "events.jsonl", "--wait", codes=(0, 1), lines=[
        event("acme", 20, "order.split", id="s1", parts=4),
        event("acme", 24, "order.split", id="s2", parts=0),  # a dead letter
        event("acme", 22, "order.split", id="s3"),  # a skip
        event("acme", 3, chat="c1"),  # a copy
    ])  # fmt: skip
    scope = ("--app", "acme", "--user", "u0", "--thread", "c0")
    run("memory", "add", *scope, "--wait", "I live in Paris", "I like tea")
    run("memory", "add", "--app", "acme", "--user", "u1", "--wait", "Forget me soon")
    run("archive", "now")
    recording.rules(SECOND)
    run("rules", "push")
    recording.rules(OWN)
    run("rules", "push", "--app", "globex")
    recording.rules(SECOND)
    later = [event(app, n, chat=f"c{n % 2}") for app in APPS for n in range(30, 36)]
    run("emit", "events.jsonl", "--wait", lines=later)
    run("erase", "--app", "acme", "--user", "u1", "--yes")
    run("archive", "now")
    run("trim")
    run("emit", "events.jsonl", "--wait", lines=[event(app, n, chat="c1") for app in APPS for n in range(40, 44)])
    return {
        "digests": {app: json.loads(run("digest", "--app", app, "--json")) for app in APPS},
        "status": json.loads(run("status", "--json")),
        "letters": json.loads(run("dlq", "list", "--json")),
        "rules": json.loads(run("rules", "list", "--json")),
        "memories": json.loads(run("memory", "list", "--app", "acme", "--user", "u0", "--json")),
    }


async def leave_unapplied(recording: Recording) -> None:
    """Let the log hold events that no worker has applied, and make its files small."""
    import redis.asyncio as redis

    from graphweft_workers.drivers.embedded.server import EmbeddedServer

    server = EmbeddedServer(recording.data)
    await server.start()
    try:
        lines = [event(app, n, chat="c0") for app in APPS for n in range(50, 53)]
        await asyncio.to_thread(recording.run, "emit", "events.jsonl", lines=lines)
        client: Any = redis.Redis.from_url(f"unix://{server.socket}")
        await client.bgrewriteaof()
        while not await _is_rewritten(client):  # noqa: ASYNC110 - the server's own work
            await asyncio.sleep(0.1)
        await client.aclose()
    finally:
        await server.stop()


async def _is_rewritten(client: Any) -> bool:
    now = await client.info("persistence")
    return not now["aof_rewrite_in_progress"] and not now["aof_rewrite_scheduled"]


def main(version: str) -> None:
    with tempfile.TemporaryDirectory(prefix="graphweft-recorded-") as folder:
        recording = Recording(Path(folder))
        said = fill(recording)
        asyncio.run(leave_unapplied(recording))
        shutil.rmtree(RECORDED, ignore_errors=True)
        RECORDED.mkdir(parents=True)
        for name in ("appendonlydir", "archive"):
            shutil.copytree(recording.data / name, RECORDED / "data" / name)
        shutil.copytree(recording.folder / "workflows", RECORDED / "workflows")
        shutil.copy(recording.folder / "graphweft.yaml", RECORDED)
        text = json.dumps({"version": version, **said}, indent=1, sort_keys=True)
        (RECORDED / "expected.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main(sys.argv[1])
