"""The hybrid contract through Agent Zero's extensions: cases A, B and C with graphweft's own processes.

A stand-in (``tests/services/agent_zero.py``) takes the place of Agent Zero; ``test_agent_zero_runtime.py`` uses its own
code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.edges.test_cli_memory import Up
from tests.services.agent_zero import Agent, Tool, make_root, running
from tests.services.agent_zero_page import BLOCK, COMMANDS, FACTS, KNOWN, QUESTION, RULES, plain
from tests.services.buses import applied
from tests.services.commands import inside
from tests.services.environment import clean_environment
from tests.services.maven import free_port
from tests.services.roles import Responder, counted, role

from graphweft import Client, Event
from graphweft.adapters import agent_zero
from graphweft.adapters.agent_zero.installation import install
from graphweft_rules import lint
from graphweft_workers.drivers import dialects
from graphweft_workers.drivers.redis.bus import redis_bus

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

RECALLED = "Ann said on Monday that she prefers tea"
ANSWER = Tool("response", {}, "done")
APP = str(agent_zero.DEFAULTS["app_id"])


@dataclass
class Zero:
    """An Agent Zero in a folder; each turn is a chat of its own."""

    root: Path
    printed: list[str]
    agent: Agent | None = None
    chats: int = 0

    async def turn(self, said: str) -> dict[str, bool]:
        """Return what the model has seen."""
        self.agent = Agent(self.root, [ANSWER], recalls=(RECALLED, "none"))
        self.chats += 1
        self.agent.context.id = f"chat-{self.chats}"
        assert await self.agent.monologue(said) == "done"
        seen = str(self.agent.prompts[0])
        return {"memory_seen": RECALLED in seen, "graphrag_seen": "GRAPHRAG_CONTEXT_BLOCK_START" in seen}

    async def until(self, marker: str, said: str, responder: Responder) -> dict[str, bool]:
        """Return what the model saw in the first turn that printed the marker; the processes start meanwhile."""
        async with asyncio.timeout(60):
            while True:
                assert responder.process.returncode is None, responder.log.read_text()
                self.printed.clear()
                seen = await self.turn(said)
                if any(marker in line for line in self.printed):
                    return seen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the rules of the page."""
    rules = tmp_path / "workflows" / "AgentZero" / "graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text(RULES)
    assert [str(finding) for finding in lint([tmp_path / "workflows"], dialects())] == []
    return tmp_path


@pytest.fixture
def zero(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Zero]:
    for name in ("GRAPHWEFT_CONTEXT", "GRAPHWEFT_CAPTURE", "GRAPH_RAG_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRAPHWEFT_BUS_URL", url)
    monkeypatch.setenv("GRAPHRAG_ENABLED", "true")
    root = make_root(tmp_path / "a0")
    install(root)
    printed: list[str] = []
    plugin = agent_zero.AgentZeroPlugin()
    monkeypatch.setattr(agent_zero, "plugin", plugin)
    with running(root, monkeypatch, printed, budget_ms=3_000):
        yield Zero(root, printed)
        plugin.close(0.0)


async def all_applied(url: str) -> None:
    """Wait until the worker has applied what was emitted."""
    async with aclosing(redis_bus(url)) as bus:
        await applied(bus)


async def test_case_a_graph_context_is_off(zero: Zero, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHRAG_ENABLED", "false")
    with counted() as (port, came):
        monkeypatch.setenv("GRAPHWEFT_BUS_URL", f"redis://127.0.0.1:{port}")
        assert await zero.turn(QUESTION) == {"memory_seen": True, "graphrag_seen": False}
        assert came == []  # not even a connection
    assert zero.printed == ["GRAPHRAG_EXTENSION_EXECUTED"]


async def test_case_b_the_graph_is_available(zero: Zero, url: str, folder: Path) -> None:
    graph = {"GRAPHWEFT_GRAPH_URL": url}
    episode = Event.model_validate_json(KNOWN)
    async with Client(url, app_id=APP) as client, role("mutation", folder, url, **graph):
        assert await client.emit_all([episode], wait_s=30)
        await all_applied(url)  # or a part of the episode would be seen
        async with role("injection", folder, url, **graph, GRAPHRAG_ENABLED="true") as responder:
            seen = await zero.until("GRAPHRAG_CONTEXT_INJECTED", QUESTION, responder)
            assert seen == {"memory_seen": True, "graphrag_seen": True}
            assert zero.printed[0] == "GRAPHRAG_EXTENSION_EXECUTED"
            assert zero.agent is not None
            extras = zero.agent.prompts[0]
            assert list(extras) == ["memories", "solutions", "graphrag", "current_datetime"]
            assert FACTS in extras["graphrag"]
            # What was recalled leads there, although the question names nothing.
            assert (await zero.until("GRAPHRAG_CONTEXT_INJECTED", "and what else?", responder))["graphrag_seen"]
    assert "GRAPHRAG_CONTEXT_INJECTED" in responder.markers()


async def test_case_c_the_graph_is_unavailable(zero: Zero, url: str, folder: Path) -> None:
    settings = {"NEO4J_URI": f"bolt://127.0.0.1:{free_port()}", "GRAPHRAG_ENABLED": "true"}
    async with role("injection", folder, url, **settings) as responder:
        seen = await zero.until("GRAPHRAG_NOOP_NEO4J_DOWN reason=graph_unavailable", QUESTION, responder)
        assert seen == {"memory_seen": True, "graphrag_seen": False}
        assert zero.agent is not None
        assert list(zero.agent.prompts[0]) == ["memories", "solutions", "current_datetime"]
    assert "GRAPHRAG_NOOP_NEO4J_DOWN" in responder.markers()


async def test_without_a_bus_the_agent_continues(zero: Zero, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEFT_BUS_URL", f"redis://127.0.0.1:{free_port()}")
    assert await zero.turn(QUESTION) == {"memory_seen": True, "graphrag_seen": False}
    assert zero.printed[1].startswith("GRAPHRAG_NOOP_NEO4J_DOWN reason=")


@pytest.mark.slow
async def test_the_example_of_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installs, ups, emits = COMMANDS
    assert (installs[0], ups, emits[0]) == (
        "/opt/venv-a0/bin/graphweft", ["GRAPHRAG_ENABLED=true", "graphweft", "up", "&"], "graphweft",
    )  # fmt: skip
    (tmp_path / "known.jsonl").write_text(KNOWN)
    root = make_root(tmp_path / "a0")
    for command in ([str(root) if part == "/a0" else part for part in installs[1:]], ["test"]):
        done = await asyncio.to_thread(inside, command, clean_environment(), folder=tmp_path)
        assert done.code == 0, done.out + done.err
    up = Up(tmp_path, GRAPHRAG_ENABLED="true")
    try:
        up.ok(*emits[1:], apart=True)
        for name in ("GRAPHWEFT_CONTEXT", "GRAPHWEFT_CAPTURE", "GRAPHWEFT_BUS_URL", "GRAPH_RAG_ENABLED"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("GRAPHRAG_ENABLED", "true")
        monkeypatch.setenv("GRAPHWEFT_DATA", str(tmp_path / ".graphweft"))
        plugin = agent_zero.AgentZeroPlugin()
        monkeypatch.setattr(agent_zero, "plugin", plugin)
        with running(root, monkeypatch, [], budget_ms=30_000):
            agent = Agent(root, [ANSWER], recalls=(RECALLED, "none"))
            assert await agent.monologue(QUESTION) == "done"
        plugin.close()
        assert plain(agent.prompts[0]["graphrag"]) == plain(BLOCK)
    finally:
        up.stop()
