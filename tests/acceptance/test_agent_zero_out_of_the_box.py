"""Agent Zero in an empty folder, as a user begins: install, start, talk, and look at what the next prompt gets.

The three cases of the hybrid contract: A off, B on and up, C on and down. Agent Zero is the stand-in of the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from tests.edges.test_cli_memory import Up
from tests.services.agent_zero import Agent, Tool, make_root, running
from tests.services.commands import Done, inside
from tests.services.environment import clean_environment
from tests.services.maven import free_port
from tests.services.roles import counted, role

from graphweft.adapters import agent_zero
from graphweft.adapters.agent_zero import BLOCK_START, AgentZeroPlugin

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BUDGET_MS: Final = 60_000
RECALLED: Final = "Ann likes tea"
SAVE: Final = Tool("memory_save", {"text": "The printer is on floor 3."}, "saved")
KNOWN: Final = {
    "specversion": "1.0", "id": "known-1", "source": "/me", "type": "episode.add", "time": "2026-01-01T00:00:00Z",
    "appid": "agentzero", "chatid": "known",
    "data": {"episode_type": "json", "user_id": "user", "content": {
        "entities": [{"type": "Service", "name": "Billing"}, {"type": "Service", "name": "Ledger"}],
        "relations": [{"type": "DEPENDS_ON", "source": "Billing", "target": "Ledger", "fact": "it writes there"}],
    }},
}  # fmt: skip

type Talk = Callable[..., Any]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a0").mkdir()
    return make_root(tmp_path / "a0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The empty folder of the user."""
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def install(root: Path, folder: Path) -> Done:
    return inside(["agent-zero", "install", str(root)], clean_environment() | {"COLUMNS": "500"}, folder=folder)


@pytest.fixture
def installed(root: Path, folder: Path) -> Path:
    """The folder with what the installation writes there."""
    assert install(root, folder).code == 0
    return folder


@pytest.fixture
def talk(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Talk]:
    """Let the user say something in a chat of its own, and return the extras of the first prompt."""
    with ExitStack() as stack:
        plugins: list[AgentZeroPlugin] = []
        printed: list[str] = []

        async def say(text: str, *script: Tool, **environment: str) -> dict[str, Any]:
            if not plugins:
                for name, value in environment.items():
                    monkeypatch.setenv(name, value)
                plugins.append(AgentZeroPlugin())
                stack.callback(plugins[0].close, 0.0)
                monkeypatch.setattr(agent_zero, "plugin", plugins[0])
                stack.enter_context(running(root, monkeypatch, printed, budget_ms=BUDGET_MS))
            agent = Agent(root, [*script, Tool("response", {}, "Fine.")], recalls=(RECALLED, ""))
            agent.context.id = f"chat {text}"
            assert await agent.monologue(text) == "Fine."
            core = plugins[0].core
            assert core is None or core.flush(60)
            return {**agent.prompts[0], "printed": [line.split(" ")[0] for line in printed], "core": core}

        yield say


def seen(extras: dict[str, Any]) -> dict[str, bool]:
    return {"memory_seen": RECALLED in extras["memories"], "graphrag_seen": BLOCK_START in str(extras)}


def test_the_rules_come_with_the_plugin_once_and_belong_to_the_user(root: Path, folder: Path) -> None:
    done = install(root, folder)
    assert done.code == 0
    rules = folder / "workflows/AgentZero/graph_injection.yaml"
    assert f"wrote {rules.relative_to(folder)}" in done.out
    for command in (["lint"], ["test"]):
        tried = inside(command, clean_environment(), folder=folder)
        assert tried.code == 0, tried.out + tried.err
    rules.write_text("version: '1.0'\n")
    again = install(root, folder)
    assert "kept the rules in workflows/AgentZero" in again.out
    assert rules.read_text() == "version: '1.0'\n"


async def test_case_a_off(talk: Talk, installed: Path) -> None:
    with counted() as (port, came):
        extras = await talk("Where do I live?", GRAPHWEFT_BUS_URL=f"redis://127.0.0.1:{port}", GRAPHRAG_ENABLED="false")
        assert seen(extras) == {"memory_seen": True, "graphrag_seen": False}
        assert (extras["printed"], extras["core"]) == (["GRAPHRAG_EXTENSION_EXECUTED"], None)
        assert came == []


async def test_case_b_what_is_said_and_saved_is_in_the_next_prompt(talk: Talk, installed: Path) -> None:
    (installed / "known.jsonl").write_text(json.dumps(KNOWN))
    up = Up(installed, GRAPHRAG_ENABLED="true")
    try:
        settings = {"GRAPHWEFT_DATA": str(installed / ".graphweft"), "GRAPHRAG_ENABLED": "true"}
        first = await talk("I live in Oslo. My billing is slow on mondays.", SAVE, **settings)
        assert seen(first) == {"memory_seen": True, "graphrag_seen": False}
        # The next chat has what was said and saved in the first, and later facts of what was mentioned.
        up.ok("emit", "known.jsonl", "--wait", apart=True)
        second = await talk("Is anything slow on that floor?")
        assert seen(second) == {"memory_seen": True, "graphrag_seen": True}
        block = second["graphrag"]
        assert block.index("lives in Oslo") < block.index("Billing (Service) DEPENDS_ON Ledger (Service)")
        assert "My billing is slow on mondays." in block
        assert "The printer is on floor 3." in block
        assert list(second)[:2] == ["memories", "graphrag"]
        assert "GRAPHRAG_CONTEXT_INJECTED" in second["printed"]
        assert "GRAPHRAG_NOOP_NEO4J_DOWN" not in second["printed"]
        assert json.loads(up.ok("dlq", "list", "--json", apart=True)) == []
    finally:
        up.stop()


async def test_case_c_on_and_down(talk: Talk, installed: Path, url: str) -> None:
    settings = {"NEO4J_URI": f"bolt://127.0.0.1:{free_port()}", "GRAPHRAG_ENABLED": "true"}
    async with role("injection", installed, url, **settings) as responder:
        extras = await talk("Where do I live?", GRAPHWEFT_BUS_URL=url, GRAPHRAG_ENABLED="true")
        assert seen(extras) == {"memory_seen": True, "graphrag_seen": False}
        assert extras["printed"][-1] == "GRAPHRAG_NOOP_NEO4J_DOWN"
    assert "GRAPHRAG_NOOP_NEO4J_DOWN" in responder.markers()
