"""The hybrid contract end to end: a runtime with a memory of its own, graphweft's processes, and a stub of a model.

Case A: graphrag is off. Case B: it is on, and the graph is there. Case C: it is on, and the graph is away. In all three
what the runtime recalls reaches the model, untouched.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.services.maven import free_port
from tests.services.memories import empty_neo4j
from tests.services.models import ModelServer
from tests.services.roles import Responder, counted, role

from graphweft import Client, Event
from graphweft_contracts import ContextReply
from graphweft_contracts.episodes import EpisodeAdd

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

APP = "agentzero"
USER = "u1"
RULES = """\
version: "1.0"
injection_rules:
  - name: Hybrid
    agents: ["*"]
    queries:
      - id: graphrag
        graphrag:
          query: $context.user_message
          seeds: $context.recalled
          memory: {user_id: $context.user_id}
        inject_as: graphrag
"""
KNOWN = {
    "entities": [
        {"type": "Person", "name": "Ann", "description": "Looks after payments"},
        {"type": "Project", "name": "Checkout"},
        {"type": "Project", "name": "Ledger"},
    ],
    "relations": [
        {"type": "OWNS", "source": "Ann", "target": "Checkout", "fact": "Ann owns the checkout service"},
        {"type": "DEPENDS_ON", "source": "Checkout", "target": "Ledger", "fact": "Checkout writes to the ledger"},
    ],
}
RECALLED = "Ann said on Monday that she prefers tea"
SENTINEL = "GRAPHRAG_CONTEXT_BLOCK_START"


@dataclass
class Runtime:
    """An agent runtime in the way of the contract: it recalls, then adds what the graph knows, then asks the model."""

    client: Client
    model: ModelServer
    extras: dict[str, str] = field(default_factory=dict[str, str])

    async def turn(self, said: str, *, recalled: Sequence[Any] = ()) -> dict[str, bool]:
        """Return what the model has seen."""
        self.extras = {"memories": f"# Memories\n{RECALLED}", "solutions": "# Solutions\nnone"}
        reply = await self.client.context(
            workflow="Zero",
            agent="Agent 0",
            chat_id="c",
            context={"user_id": USER, "user_message": said, "recalled": list(recalled)},
            budget_ms=60_000,
        )
        self.reply: ContextReply = reply
        if reply.text:
            self.extras["graphrag"] = reply.text
        assert list(self.extras)[:2] == ["memories", "solutions"]
        messages = [{"role": "system", "content": "\n\n".join(self.extras.values())}, {"role": "user", "content": said}]
        async with httpx.AsyncClient(timeout=120) as http:
            answer = await http.post(f"{self.model.url}/chat/completions", json={"model": "stub", "messages": messages})
        return json.loads(answer.json()["choices"][0]["message"]["content"])


def look(messages: list[dict[str, Any]]) -> str:
    """Answer as the model: what of the two is in the prompt."""
    prompt = messages[0]["content"]
    return json.dumps({"memory_seen": RECALLED in prompt, "graphrag_seen": SENTINEL in prompt})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "workflows" / "Zero").mkdir(parents=True)
    (tmp_path / "workflows" / "Zero" / "graph_injection.yaml").write_text(RULES)
    return tmp_path


@pytest.fixture
async def runtime(url: str, model_server: ModelServer) -> AsyncIterator[Runtime]:
    model_server.answer = look
    async with Client(url, app_id=APP) as client:
        yield Runtime(client, model_server)


@pytest.fixture
def graph_settings(request: pytest.FixtureRequest) -> dict[str, str]:
    """How a graph that is there is named: FalkorDB, or Neo4j by its own variables."""
    if request.param == "falkordb":
        return {"GRAPHWEFT_GRAPH_URL": request.getfixturevalue("url")}
    uri = request.getfixturevalue("neo4j_server").uri
    empty_neo4j(uri)
    return {"NEO4J_URI": uri, "NEO4J_USERNAME": "neo4j", "NEO4J_PASSWORD": "none"}


async def until_answered(
    runtime: Runtime, responder: Responder, said: str = "What does Ann own?", **more: Any
) -> dict[str, bool]:
    """Return what the model saw when the responder was there; the processes start meanwhile."""
    async with asyncio.timeout(120):
        while True:
            assert responder.process.returncode is None, responder.log.read_text()
            seen = await runtime.turn(said, **more)
            if runtime.reply.missing or runtime.reply.reason is None:
                return seen


async def test_case_a_off(runtime: Runtime, url: str, folder: Path) -> None:
    with counted() as (port, came):
        async with role("injection", folder, url, NEO4J_URI=f"bolt://127.0.0.1:{port}") as responder:
            assert await until_answered(runtime, responder) == {"memory_seen": True, "graphrag_seen": False}
        assert "graphrag" not in runtime.extras
        assert [missing.reason for missing in runtime.reply.missing] == ["disabled"]
        assert set(responder.markers()) == {"GRAPHRAG_EXTENSION_EXECUTED"}
        assert came == []  # not even a connection


@pytest.mark.soak("neo4j")
@pytest.mark.parametrize(
    ("graph_settings", "variable"),
    [("falkordb", "GRAPHRAG_ENABLED"), ("neo4j", "GRAPH_RAG_ENABLED")],
    indirect=["graph_settings"],
)
async def test_case_b_on_and_up(
    runtime: Runtime, url: str, folder: Path, graph_settings: dict[str, str], variable: str
) -> None:
    event = Event.create(
        "episode.add", app_id=APP, chat_id="c", data={"content": KNOWN, "episode_type": "json", "user_id": USER}
    )
    assert EpisodeAdd.model_validate(event.data).structure is not None
    async with role("mutation", folder, url, **graph_settings):
        assert await runtime.client.emit_all([event], wait_s=120)
        async with role("injection", folder, url, **graph_settings, **{variable: "true"}) as responder:
            async with asyncio.timeout(120):
                while "Checkout writes to the ledger" not in runtime.extras.get("graphrag", ""):  # two hops away
                    seen = await until_answered(runtime, responder)
            assert seen == {"memory_seen": True, "graphrag_seen": True}
            assert list(runtime.extras) == ["memories", "solutions", "graphrag"]
            assert "Ann owns the checkout service" in runtime.extras["graphrag"]
            assert runtime.reply.missing == ()
            # Path A: what was recalled leads there, although the question names nothing.
            recalled = [{"id": "doc-1", "text": RECALLED, "score": 0.9}]
            seen = await runtime.turn("and what else?", recalled=recalled)
            assert seen == {"memory_seen": True, "graphrag_seen": True}
            # What nobody asks for, and what is somebody else's, is not there.
            assert not (await runtime.turn("and what else?"))["graphrag_seen"]
        markers = responder.markers()
    assert {"GRAPHRAG_EXTENSION_EXECUTED", "GRAPHRAG_CONTEXT_INJECTED"} <= set(markers)


async def test_case_c_on_and_down(runtime: Runtime, url: str, folder: Path) -> None:
    settings = {"NEO4J_URI": f"bolt://127.0.0.1:{free_port()}", "GRAPHRAG_ENABLED": "true"}
    async with role("injection", folder, url, **settings) as responder:
        assert await until_answered(runtime, responder) == {"memory_seen": True, "graphrag_seen": False}
        for _ in range(8):  # the breaker opens, and says it all the same
            assert (await runtime.turn("What does Ann own?"))["memory_seen"]
            assert [missing.reason for missing in runtime.reply.missing] == ["graph_unavailable"]
    markers = responder.markers()
    assert set(markers) == {"GRAPHRAG_EXTENSION_EXECUTED", "GRAPHRAG_NOOP_NEO4J_DOWN"}
    assert markers.count("GRAPHRAG_NOOP_NEO4J_DOWN") == markers.count("GRAPHRAG_EXTENSION_EXECUTED") >= 9


@pytest.mark.long
async def test_a_graph_that_hangs_is_away_too(runtime: Runtime, url: str, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        address = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        settings = {"GRAPHWEFT_GRAPH_URL": address, "GRAPHRAG_ENABLED": "true"}
        async with role("injection", folder, url, **settings) as responder:
            seen = await until_answered(runtime, responder)
            assert seen == {"memory_seen": True, "graphrag_seen": False}
    assert "GRAPHRAG_NOOP_NEO4J_DOWN" in responder.markers()
