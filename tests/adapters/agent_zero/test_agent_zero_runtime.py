"""Agent Zero's own code with the plugin: the events of scripted conversations, and the prompts of the model.

Agent Zero is in no package registry (the package of its name is something else), and its code is not ours to keep. So
these tests need a checkout of version 1.7, named by ``GRAPHWEFT_AGENT_ZERO``, and are skipped without one, with
``CI=true`` too. All machines test with the stand-in of ``tests/services/agent_zero.py``, which is compared here.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.runner import SOURCES, event_lines
from tests.edges.test_cli_memory import Up
from tests.services.agent_zero import Agent, HandledError, Tool, make_root
from tests.services.agent_zero_page import BLOCK, KNOWN, QUESTION, RULES, plain
from tests.services.maven import free_port
from tests.services.roles import counted, role
from tests.services.runtime_environments import ROOT, RUNTIME_ENVIRONMENT_S

from graphweft.adapters.agent_zero import BLOCK_START

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)]

VARIABLE = "GRAPHWEFT_AGENT_ZERO"
SCENE_S = 600

type Scenes = dict[str, dict[str, Any]]
type Start = Callable[..., dict[str, Any]]

STEP = "model.call_complete A0 1 True"
WEATHER = ["tool.call_start A0 1 weather", "tool.call_complete A0 1 True weather"]
WEATHER_FAILS = ["tool.call_start A0 1 weather", "tool.call_complete A0 1 False weather"]


def turn(*events: str, number: int = 1, ends: str = "True completed") -> list[str]:
    return [f"agent.turn_start A0 {number}", *events, f"agent.turn_complete A0 {number} {ends}"]


@pytest.fixture(scope="module")
def start(runtime_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Start:
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"Agent Zero is no package: set {VARIABLE} to a checkout of github.com/agent0ai/agent-zero, v1.7")
    checkout = Path(named).expanduser().resolve()
    if not (checkout / "agent.py").is_file():
        pytest.fail(f"{VARIABLE}: {checkout} is no Agent Zero, for it has no agent.py", pytrace=False)
    python = runtime_python("agent-zero")

    def run(*arguments: str, **environment: str) -> dict[str, Any]:
        root = tmp_path_factory.mktemp("agent-zero") / "a0"
        shutil.copytree(checkout, root, ignore=shutil.ignore_patterns(".git", "webui", "docs", "usr"))
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GRAPHWEFT_", "GRAPH_", "GRAPHRAG_"))
        }
        done = subprocess.run(
            [str(python), "tests/adapters/agent_zero/scenes.py", str(root), *arguments],
            cwd=ROOT, env=kept | SOURCES | environment, capture_output=True, text=True, timeout=SCENE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


@pytest.fixture(scope="module")
def scenes(start: Start) -> Scenes:
    """All scenes, played in one process."""
    return start()


# --- context --------------------------------------------------------------------------------------------------------


def test_facts_follow_the_memories_once_in_each_prompt(scenes: Scenes) -> None:
    found = scenes["works"]
    assert found["turns"] == [{"answer": "It rains."}]
    assert len(found["prompts"]) == 2
    for prompt in found["prompts"]:
        assert list(prompt["extras"])[:4] == ["memories", "solutions", "graphrag", "current_datetime"]
        assert prompt["extras"]["memories"].endswith("Ann likes tea\n\nCheckout is slow")
        assert prompt["extras"]["solutions"].endswith("Restart it")
        assert prompt["extras"]["graphrag"].startswith(f"# Facts of the graph\n\n{BLOCK_START}\n## Notes\n- block 1\n")
        assert (json.dumps(prompt["extras"]).count(BLOCK_START), prompt["rest"].count(BLOCK_START)) == (1, 0)
        assert prompt["role"] == "human"
    assert found["printed"] == ["GRAPHRAG_EXTENSION_EXECUTED", "GRAPHRAG_CONTEXT_INJECTED tokens=0"] * 2


def test_each_turn_requests_context_once_with_message_and_memories(scenes: Scenes) -> None:
    [asked] = scenes["works"]["asked"]
    assert (asked["agent"], asked["user_message"]) == ("A0", "What does Ann own?")
    assert asked["recalled"] == [{"text": text} for text in ("Ann likes tea", "Checkout is slow", "Restart it")]
    said_by_user = [asked["user_message"] for asked in scenes["two_turns"]["asked"]]
    assert said_by_user == ["What does Ann own?", "And Ben?"]
    blocks = [prompt["extras"]["graphrag"] for prompt in scenes["two_turns"]["prompts"]]
    assert ["- block 1" in blocks[0], "- block 1" in blocks[1], "- block 2" in blocks[1]] == [True, False, True]


def test_no_history_keeps_context(scenes: Scenes) -> None:
    for name, found in scenes.items():
        assert "What does" in found["history"] or name == "stopped"
        assert BLOCK_START not in found["history"]
        assert "- block" not in found["history"]
        assert all(BLOCK_START not in prompt["rest"] for prompt in found["prompts"])


# --- events ---------------------------------------------------------------------------------------------------------

EVENTS = {
    "works": turn(STEP, *WEATHER, STEP),
    "two_turns": [*turn(STEP), *turn("model.call_complete A0 2 True", number=2)],
    "tool_fails": [
        *turn(STEP, *WEATHER_FAILS, STEP, *WEATHER_FAILS, ends="False failed RuntimeError"),
        "workflow.error A0 1 RuntimeError",
    ],
    "tool_is_repaired": turn(STEP, *WEATHER_FAILS, STEP),
    "model_fails": [
        *turn(*["model.call_complete A0 1 False ConnectionError"] * 2, ends="False failed ConnectionError"),
        "workflow.error A0 1 ConnectionError",
    ],
    "model_recovers": turn("model.call_complete A0 1 False ConnectionError", STEP),
    "no_such_tool": turn(
        STEP, "tool.call_start A0 1 whether", "tool.call_complete A0 1 True whether", STEP, STEP
    ),  # Agent Zero has a tool that says so
    "subordinate": turn(
        STEP,
        "tool.call_start A0 1 call_subordinate",
        "agent.turn_start A1 2",
        "model.call_complete A1 2 True",
        "agent.turn_complete A1 2 True completed",
        "tool.call_complete A0 1 True call_subordinate",
        STEP,
    ),
    "interrupted": turn(STEP, *WEATHER_FAILS, STEP),
    "interrupted_between_steps": [
        *turn(STEP, *WEATHER, ends="False abandoned"),
        *turn("model.call_complete A0 2 True", number=2),
    ],
    "stopped": [
        *turn(STEP, "tool.call_start A0 1 weather", "tool.call_complete A0 1 None weather", ends="False abandoned"),
        *turn("model.call_complete A0 2 True", number=2),
    ],
    "secret": turn(STEP, "tool.call_start A0 1 login", "tool.call_complete A0 1 True login", STEP),
    "bus_hangs": [],
    "bus_fails": [],
    "plugin_fails": [],
    "off": [],
    "no_package": [],
}


def test_each_scene_gives_its_events(scenes: Scenes) -> None:
    assert {name: event_lines(found) for name, found in scenes.items()} == EVENTS
    assert [found["ids"] for found in scenes.values() if found["events"]] == [
        [["shop", True, "Zero", "u1", "/graphweft/agent-zero"]]
    ] * len([events for events in EVENTS.values() if events])
    assert not any(found["errors"] for found in scenes.values())


def test_the_plugin_changes_no_answer(scenes: Scenes) -> None:
    fails = {"tool_fails", "model_fails"}
    for name, found in scenes.items():
        last = {"error": "HandledException"} if name in fails else {"answer": "It rains."}
        assert found["turns"][-1] == ({"answer": "Nothing."} if name == "two_turns" else last), name
        assert found["unsaid"] == 0, name
    assert scenes["stopped"]["turns"][0] == {"killed": True}


def test_a_failed_tool_reports_the_kind_of_its_error(scenes: Scenes) -> None:
    for name, kind in {"tool_fails": "RuntimeError", "tool_is_repaired": "RepairableException"}.items():
        ends = [event for event in scenes[name]["events"] if event["type"] == "tool.call_complete"]
        assert {event["error"] for event in ends} == {kind}
        assert "no such city" not in str(ends)


def test_a_subordinate_requests_context_with_its_own_message(scenes: Scenes) -> None:
    found = scenes["subordinate"]
    asked = [(one["agent"], one["user_message"]) for one in found["asked"]]
    assert asked == [("A0", "What does Ann own?"), ("A1", "Look out of the window.")]
    blocks = [(prompt["agent"], prompt["extras"]["graphrag"].split("- block ")[1][0]) for prompt in found["prompts"]]
    assert blocks == [("A0", "1"), ("A1", "2"), ("A0", "1")]


def test_a_message_between_steps_gets_its_own_context(scenes: Scenes) -> None:
    found = scenes["interrupted_between_steps"]
    assert [asked["user_message"] for asked in found["asked"]] == ["What does Ann own?", "What does Ben own?"]
    assert len(scenes["interrupted"]["asked"]) == 1


def test_secrets_are_published_neither_as_input_nor_as_output(scenes: Scenes) -> None:
    found = scenes["secret"]
    assert found["key"] == "hunter2"  # the tool had it
    [start] = [event for event in found["events"] if event["type"] == "tool.call_start"]
    [end] = [event for event in found["events"] if event["type"] == "tool.call_complete"]
    assert start["arguments"] == {"key": "§§secret(KEY)"}
    assert end["result"] == "logged in with §§secret(KEY)"
    assert "hunter2" not in str([found["events"], found["asked"]])


# --- the plugin does not disturb the agent --------------------------------------------------------------------------


def first_extras(found: dict[str, Any]) -> list[list[str]]:
    return [list(prompt["extras"])[:3] for prompt in found["prompts"]]


@pytest.mark.parametrize(
    ("name", "reason"), [("bus_hangs", "timeout"), ("bus_fails", "internal_error"), ("plugin_fails", "internal_error")]
)
def test_an_unavailable_bus_changes_nothing(scenes: Scenes, name: str, reason: str) -> None:
    found = scenes[name]
    assert first_extras(found) == [["memories", "solutions", "current_datetime"]] * 2
    markers = [line for line in found["printed"] if line.startswith("GRAPHRAG")]
    assert markers == ["GRAPHRAG_EXTENSION_EXECUTED", f"GRAPHRAG_NOOP_NEO4J_DOWN reason={reason}"] * 2
    assert len(found["asked"]) == (0 if name == "plugin_fails" else 1)  # once a turn, so it costs its budget once


@pytest.mark.parametrize("name", ["off", "no_package"])
def test_without_graphweft_or_with_it_off_nothing_is_requested(scenes: Scenes, name: str) -> None:
    found = scenes[name]
    assert (found["events"], found["asked"], found["threads"]) == ([], [], 0)
    assert first_extras(found) == [["memories", "solutions", "current_datetime"]] * 2
    if name == "off":
        assert (found["core"], found["printed"]) == (False, ["GRAPHRAG_EXTENSION_EXECUTED"] * 2)
    else:
        [line] = found["printed"]
        assert line.endswith("(ModuleNotFoundError): pip install graphweft")


# --- the stand-in ----------------------------------------------------------------------------------------------------

ANSWER = Tool("response", {}, "It rains.")
RAIN = Tool("weather", {}, "rain")
NO_MODEL = ConnectionError("no model")
NO_CITY = Tool("weather", {}, RuntimeError("no such city"))


@pytest.mark.parametrize(
    ("name", "script", "interventions"),
    [
        ("works", [RAIN, ANSWER], {}),
        ("tool_fails", [NO_CITY, NO_CITY], {}),
        ("tool_is_repaired", [Tool("weather", {}, LookupError()), ANSWER], {}),
        ("model_fails", [NO_MODEL, NO_MODEL], {}),
        ("model_recovers", [NO_MODEL, ANSWER], {}),
        ("interrupted", [RAIN, ANSWER], {"tool": "Look at Oslo."}),
        ("interrupted_between_steps", [RAIN, ANSWER], {"between": "What does Ben own?"}),
    ],
)
async def test_the_stand_in_calls_extensions_like_agent_zero(
    scenes: Scenes, tmp_path: Path, name: str, script: list[Any], interventions: dict[str, str]
) -> None:
    agent = Agent(make_root(tmp_path), script, retries=1)
    agent.interventions = dict(interventions)
    if "answer" in scenes[name]["turns"][0]:
        assert await agent.monologue("What does Ann own?") == "It rains."
    else:
        with pytest.raises(HandledError):
            await agent.monologue("What does Ann own?")
    assert agent.points == scenes[name]["points"]


async def test_a_subordinate_of_the_stand_in_works_like_agent_zeros(scenes: Scenes, tmp_path: Path) -> None:
    root = make_root(tmp_path)

    async def work(args: dict[str, Any]) -> str:
        other = Agent(root, [ANSWER], name="A1")
        other.points = agent.points
        return await other.monologue(args["message"])

    agent = Agent(root, [Tool("call_subordinate", {"message": "Look."}, work), ANSWER])
    await agent.monologue("What does Ann own?")
    assert agent.points == scenes["subordinate"]["points"]


# --- the hybrid contract, with graphweft's own processes -------------------------------------------------------------


def seen(found: dict[str, Any]) -> dict[str, bool]:
    assert found["answer"] == "It rains."
    [prompt] = found["prompts"]
    text = str(prompt["extras"])
    return {"memory_seen": "Ann likes tea" in text, "graphrag_seen": BLOCK_START in text}


def test_case_a_graph_context_is_off(start: Start) -> None:
    with counted() as (port, came):
        bus = f"redis://127.0.0.1:{port}"
        found = start("--ask", "500", QUESTION, GRAPHRAG_ENABLED="false", GRAPHWEFT_BUS_URL=bus)
        assert seen(found) == {"memory_seen": True, "graphrag_seen": False}
        assert came == []


def test_case_b_the_example_of_the_page_runs_as_printed(start: Start, tmp_path: Path) -> None:
    for name, text in {"workflows/AgentZero/graph_injection.yaml": RULES, "known.jsonl": KNOWN}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    up = Up(tmp_path, GRAPHRAG_ENABLED="true")
    try:
        up.ok("emit", "known.jsonl", "--wait")
        data = str(tmp_path / ".graphweft")
        found = start("--ask", "30000", QUESTION, GRAPHRAG_ENABLED="true", GRAPHWEFT_DATA=data)
        assert seen(found) == {"memory_seen": True, "graphrag_seen": True}
        assert plain(found["prompts"][0]["extras"]["graphrag"]) == plain(BLOCK)
        assert "GRAPHRAG_CONTEXT_INJECTED" in found["printed"]
    finally:
        up.stop()


async def test_case_c_the_graph_is_unavailable(start: Start, tmp_path: Path, url: str) -> None:
    rules = tmp_path / "workflows/AgentZero/graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text(RULES)
    settings = {"NEO4J_URI": f"bolt://127.0.0.1:{free_port()}", "GRAPHRAG_ENABLED": "true"}
    async with role("injection", tmp_path, url, **settings) as responder:
        found = await asyncio.to_thread(
            start, "--ask", "30000", QUESTION, GRAPHRAG_ENABLED="true", GRAPHWEFT_BUS_URL=url
        )
    assert seen(found) == {"memory_seen": True, "graphrag_seen": False}
    assert "GRAPHRAG_NOOP_NEO4J_DOWN reason=graph_unavailable" in found["printed"]
    assert "GRAPHRAG_NOOP_NEO4J_DOWN" in responder.markers()


def test_a_hanging_bus_costs_at_most_the_budget(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        bus = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        found = start("--ask", "300", QUESTION, GRAPHRAG_ENABLED="true", GRAPHWEFT_BUS_URL=bus)
    assert seen(found) == {"memory_seen": True, "graphrag_seen": False}
    assert "GRAPHRAG_NOOP_NEO4J_DOWN reason=timeout" in found["printed"]
