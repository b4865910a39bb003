"""What Agent Zero's extensions do in a monologue: events, facts behind the memories, and nothing while it is off."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.services.agent_zero import Agent, HandledError, Tool, make_root, running

from graphweft import Client
from graphweft.adapters import agent_zero
from graphweft.adapters.agent_zero.installation import install
from graphweft.adapters.core import Adapter
from graphweft.transport import Outgoing
from graphweft_contracts import ContextReply, ContextRequest, Event, wire
from graphweft_contracts.context import Missing

ANSWER = Tool("response", {"text": "done"}, "It is done.")
MEMORIES = "Ann likes tea\n\nCheckout is slow"
SHOWN = ("agent_name", "turn_number", "success", "tool_name", "outcome", "error_type", "error", "model")


@dataclass
class Bus:
    """A transport that keeps what it is given; ``way`` says how it answers."""

    way: str = "text"
    events: list[Event] = field(default_factory=list[Event])
    requests: list[ContextRequest] = field(default_factory=list[ContextRequest])
    text: str = "GRAPHRAG_CONTEXT_BLOCK_START\nAnn OWNS Checkout\nGRAPHRAG_CONTEXT_BLOCK_END"

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        if self.way == "fails":
            raise RuntimeError("the bus is broken")
        first = len(self.events)
        self.events += [wire.decode(event.fields) for event in events]
        return [f"0:{first + number}" for number in range(len(events))]

    async def request(self, request: ContextRequest) -> Any:
        self.requests.append(request)
        match self.way:
            case "fails":
                raise RuntimeError("the bus is broken")
            case "hangs":
                await asyncio.Event().wait()
            case "garbage":
                return 7
            case "off" | "down":
                reason: Any = "disabled" if self.way == "off" else "graph_unavailable"
                missing = (Missing(name="graphrag", rule="Hybrid", query="graphrag", reason=reason),)
                return ContextReply(id=request.id, missing=missing, partial=True)
        return ContextReply(id=request.id, context_id="ctx", text=self.text)

    async def aclose(self) -> None:
        pass


@dataclass
class Scene:
    """An Agent Zero with the plugin, the bus behind that, and what was printed."""

    root: Path
    bus: Bus
    adapter: Adapter
    printed: list[str]

    def agent(
        self, *script: Tool | BaseException, name: str = "A0", recalls: tuple[str, str] = (MEMORIES, "")
    ) -> Agent:
        return Agent(self.root, script, recalls=recalls, name=name)

    @property
    def told(self) -> list[str]:
        assert self.adapter.flush()
        return [
            " ".join([event.type, *(str(event.data[name]) for name in SHOWN if name in event.data)])
            for event in self.bus.events
            if event.type != "memory.add"
        ]

    @property
    def remembered(self) -> list[list[tuple[str, str]]]:
        """The roles and texts of each event of memory, all of which are of the user and the chat."""
        assert self.adapter.flush()
        found = [event for event in self.bus.events if event.type == "memory.add"]
        assert {(event.data["user_id"], event.data["thread_id"]) for event in found} <= {("u1", "chat-1")}
        return [[(each["role"], each["text"]) for each in event.data["messages"]] for event in found]

    @property
    def markers(self) -> list[str]:
        return [line for line in self.printed if line.startswith("GRAPHRAG_")]


class PendingRequest:
    """A tool that waits for good."""

    def __init__(self) -> None:
        self._started = asyncio.Event()

    async def __call__(self, args: dict[str, Any]) -> str:
        self._started.set()
        await asyncio.Event().wait()
        return ""

    async def give_up(self, monologue: Coroutine[Any, Any, str]) -> None:
        """Stop the monologue when it has come to this tool."""
        working = asyncio.create_task(monologue)
        await self._started.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    for name in ("GRAPHWEFT_CONTEXT", "GRAPHWEFT_CAPTURE", "GRAPH_RAG_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRAPHRAG_ENABLED", "true")
    root = make_root(tmp_path)
    install(root)
    bus, printed = Bus(getattr(request, "param", "text")), list[str]()
    budget_ms = 50 if bus.way == "hangs" else 5_000
    adapter = Adapter(Client("redis://127.0.0.1:1", transport=bus), budget_ms=budget_ms, source="/graphweft/agent-zero")
    with ExitStack() as stack:
        stack.callback(adapter.close, 0.0)
        plugin = agent_zero.AgentZeroPlugin(adapter)
        monkeypatch.setattr(agent_zero, "plugin", plugin)
        stack.enter_context(running(root, monkeypatch, printed, app_id="shop", workflow="Zero", user_id="u1"))
        yield Scene(root, bus, adapter, printed)


async def test_facts_stand_behind_memories_and_solutions_in_every_step(scene: Scene) -> None:
    agent = scene.agent(Tool("weather", {"city": "Oslo"}, "rain"), ANSWER, recalls=(MEMORIES, "Restart it"))
    assert await agent.monologue("What does Ann own?") == "It is done."
    for extras in agent.prompts:  # the recall of the second step has put its own anew
        assert list(extras) == ["memories", "solutions", "graphrag", "current_datetime"]
        assert extras["graphrag"].count("GRAPHRAG_CONTEXT_BLOCK_START") == 1
        assert "Ann OWNS Checkout" in extras["graphrag"]
        assert extras["graphrag"].startswith("# Facts of the graph")
    [asked] = scene.bus.requests  # once a turn
    assert asked.context["user_message"] == "What does Ann own?"
    assert asked.context["recalled"] == [{"text": text} for text in ("Ann likes tea", "Checkout is slow", "Restart it")]
    assert (asked.app_id, asked.chat_id, asked.workflow, asked.agent, asked.user_id) == (
        "shop", "chat-1", "Zero", "A0", "u1",
    )  # fmt: skip
    assert scene.markers == ["GRAPHRAG_EXTENSION_EXECUTED", "GRAPHRAG_CONTEXT_INJECTED tokens=0"] * 2


async def test_what_others_keep_stands_behind_the_facts(scene: Scene) -> None:
    agent = scene.agent(Tool("weather"), ANSWER, recalls=(MEMORIES, "Restart it"))
    agent.others = {"project": "CRM"}
    await agent.monologue("What does Ann own?")
    for extras in agent.prompts:
        assert list(extras) == ["memories", "solutions", "graphrag", "project", "current_datetime"]


async def test_a_turn_gives_its_events(scene: Scene) -> None:
    agent = scene.agent(Tool("weather", {"city": "Oslo"}, "rain"), ANSWER)
    await agent.monologue("hello")
    assert scene.told == [
        "agent.turn_start A0 1",
        "model.call_complete A0 1 True scripted",
        "tool.call_start A0 1 weather",
        "tool.call_complete A0 1 True weather",
        "model.call_complete A0 1 True scripted",
        "agent.turn_complete A0 1 True completed",
    ]
    events = [event for event in scene.bus.events if event.type != "memory.add"]
    assert events[-1].data["response"] == "It is done."
    assert (events[2].data["arguments"], events[3].data["result"]) == ({"city": "Oslo"}, "rain")
    assert {event.source for event in events} == {"/graphweft/agent-zero"}
    # What was recalled is in the request for context alone.
    assert all("Ann" not in str(event.data) for event in events)


async def test_what_the_user_says_and_the_agent_answers_is_remembered(scene: Scene) -> None:
    save = Tool("memory_save", {"text": "The printer is on floor 3."}, "saved")
    agent = scene.agent(save, Tool("memory_save", {"text": 5}, "saved"), ANSWER)
    await agent.monologue("I live in Oslo.")
    assert scene.remembered == [
        [("assistant", "The printer is on floor 3.")], [("user", "I live in Oslo."), ("assistant", "It is done.")],
    ]  # fmt: skip


async def test_what_fails_and_what_agents_say_to_each_other_is_not_remembered(scene: Scene) -> None:
    failing = scene.agent(Tool("memory_save", {"text": "wrong"}, RuntimeError("full")))
    with pytest.raises(HandledError):
        await failing.monologue("Remember this.")
    await scene.agent(ANSWER, name="A1").monologue("Look out of the window.")
    assert scene.remembered == []


async def test_nothing_is_remembered_if_the_settings_say_so(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, monkeypatch, [], app_id="shop", user_id="u1", remember=False):
        await scene.agent(ANSWER).monologue("I live in Oslo.")
    assert scene.remembered == []


async def test_a_secret_is_told_neither_on_its_way_in_nor_out(scene: Scene) -> None:
    async def login(args: dict[str, Any]) -> str:
        assert args["key"] == "hunter2"
        return "logged in with hunter2"

    agent = scene.agent(Tool("login", {"key": "§§secret(KEY)"}, login), RuntimeError("hunter2 is wrong"))
    with pytest.raises(HandledError):
        await agent.monologue("log in")
    assert scene.told[-1] == "workflow.error A0 1 RuntimeError"
    assert "§§secret(KEY)" in str(scene.bus.events)
    assert "hunter2" not in str(scene.bus.events)


async def test_a_tool_that_raises_and_is_made_good_fails_alone(scene: Scene) -> None:
    agent = scene.agent(Tool("book", {}, KeyError("no such flight")), ANSWER)
    assert await agent.monologue("book it") == "It is done."
    assert scene.told == [
        "agent.turn_start A0 1",
        "model.call_complete A0 1 True scripted",
        "tool.call_start A0 1 book",
        "tool.call_complete A0 1 False book KeyError",
        "model.call_complete A0 1 True scripted",
        "agent.turn_complete A0 1 True completed",
    ]


async def test_a_model_that_fails_is_told_once(scene: Scene) -> None:
    with pytest.raises(HandledError):
        await scene.agent(ConnectionError("no model")).monologue("hello")
    assert scene.told == [
        "agent.turn_start A0 1",
        "model.call_complete A0 1 False ConnectionError scripted",
        "agent.turn_complete A0 1 False failed ConnectionError",
        "workflow.error A0 1 ConnectionError",
    ]


async def test_what_the_user_says_between_steps_begins_a_turn_of_its_own(scene: Scene) -> None:
    agent = scene.agent(Tool("weather", {}, "rain"), ANSWER)
    agent.interventions = {"between": "What does Ben own?"}
    assert await agent.monologue("What does Ann own?") == "It is done."
    assert [line for line in scene.told if line.startswith(("agent.", "workflow."))] == [
        "agent.turn_start A0 1",
        "agent.turn_complete A0 1 False abandoned",
        "agent.turn_start A0 2",
        "agent.turn_complete A0 2 True completed",
    ]
    said = [asked.context["user_message"] for asked in scene.bus.requests]
    assert said == ["What does Ann own?", "What does Ben own?"]
    assert all("graphrag" in extras for extras in agent.prompts)


async def test_what_the_user_says_within_a_step_goes_on_with_the_turn(scene: Scene) -> None:
    agent = scene.agent(Tool("weather", {}, "rain"), ANSWER)
    agent.interventions = {"tool": "What does Ben own?"}
    assert await agent.monologue("What does Ann own?") == "It is done."
    assert [line for line in scene.told if not line.startswith("model.")] == [
        "agent.turn_start A0 1",
        "tool.call_start A0 1 weather",
        "tool.call_complete A0 1 False weather InterventionError",
        "agent.turn_complete A0 1 True completed",
    ]


async def test_an_answer_that_the_user_interrupts_is_none(scene: Scene) -> None:
    agent = scene.agent(ANSWER, Tool("wait", {}, waiting := PendingRequest()))
    agent.interventions = {"after": "Wait."}
    await waiting.give_up(agent.monologue("hello"))
    assert scene.told[-2:] == [
        "agent.turn_complete A0 1 False failed CancelledError",
        "workflow.error A0 1 CancelledError",
    ]


async def test_an_error_that_is_made_good_goes_on_with_the_turn(scene: Scene) -> None:
    agent = Agent(scene.root, [ConnectionError("no model"), ANSWER], retries=1)
    assert await agent.monologue("hello") == "It is done."
    assert scene.told == [
        "agent.turn_start A0 1",
        "model.call_complete A0 1 False ConnectionError scripted",
        "model.call_complete A0 1 True scripted",
        "agent.turn_complete A0 1 True completed",
    ]


async def test_a_monologue_that_ends_late_leaves_the_next_one_alone(scene: Scene) -> None:
    async def weather(args: dict[str, Any]) -> str:
        agent_zero.plugin.end_turn(agent, loop_data=object())  # of a task that was killed before
        return "rain"

    agent = scene.agent(Tool("weather", {}, weather), ANSWER)
    assert await agent.monologue("hello") == "It is done."
    assert scene.told[-1] == "agent.turn_complete A0 1 True completed"


async def test_a_turn_whose_task_was_killed_is_abandoned_when_the_next_one_begins(scene: Scene) -> None:
    agent = scene.agent(Tool("wait", {}, waiting := PendingRequest()), ANSWER)
    agent.alive = False
    await waiting.give_up(agent.monologue("wait"))
    agent.alive = True
    assert await agent.monologue("hello") == "It is done."
    assert [line for line in scene.told if line.startswith(("agent.", "workflow."))] == [
        "agent.turn_start A0 1",
        "agent.turn_complete A0 1 False abandoned",
        "agent.turn_start A0 2",
        "agent.turn_complete A0 2 True completed",
    ]


async def test_a_subordinate_has_a_turn_within_the_tool_that_calls_it(scene: Scene) -> None:
    async def call(args: dict[str, Any]) -> str:
        return await scene.agent(ANSWER, name="A1").monologue(args["message"])

    agent = scene.agent(Tool("call_subordinate", {"message": "look"}, call), ANSWER)
    await agent.monologue("find out")
    assert [line for line in scene.told if not line.startswith("model.")] == [
        "agent.turn_start A0 1",
        "tool.call_start A0 1 call_subordinate",
        "agent.turn_start A1 2",
        "agent.turn_complete A1 2 True completed",
        "tool.call_complete A0 1 True call_subordinate",
        "agent.turn_complete A0 1 True completed",
    ]
    assert [asked.agent for asked in scene.bus.requests] == ["A0", "A1"]


async def test_an_agent_that_is_stopped_fails_as_such(scene: Scene) -> None:
    agent = scene.agent(Tool("wait", {}, waiting := PendingRequest()))
    await waiting.give_up(agent.monologue("wait"))
    assert scene.told[-3:] == [
        "tool.call_complete A0 1 False wait CancelledError",
        "agent.turn_complete A0 1 False failed CancelledError",
        "workflow.error A0 1 CancelledError",
    ]


@pytest.mark.parametrize(
    ("scene", "reason"),
    [("hangs", "timeout"), ("fails", "internal_error"), ("garbage", "internal_error"), ("down", "graph_unavailable")],
    indirect=["scene"],
)
async def test_a_graph_that_is_away_changes_nothing(scene: Scene, reason: str) -> None:
    agent = scene.agent(ANSWER)
    assert await agent.monologue("hello") == "It is done."
    assert [list(extras) for extras in agent.prompts] == [["memories", "current_datetime"]]
    assert scene.markers == ["GRAPHRAG_EXTENSION_EXECUTED", f"GRAPHRAG_NOOP_NEO4J_DOWN reason={reason}"]


@pytest.mark.parametrize("scene", ["off"], indirect=True)
async def test_a_responder_that_has_it_off_is_named_once(scene: Scene) -> None:
    await scene.agent(Tool("a"), Tool("b"), ANSWER).monologue("hello")
    assert set(scene.markers) == {"GRAPHRAG_EXTENSION_EXECUTED"}
    assert len([line for line in scene.printed if "disabled" in line]) == 1


async def test_a_text_of_the_graph_is_no_template(scene: Scene) -> None:
    scene.bus.text = '{{include "/etc/passwd"}} and {{ include original }}'
    agent = scene.agent(ANSWER)
    await agent.monologue("hello")
    block = agent.prompts[0]["graphrag"]
    assert '{ {include "/etc/passwd"}}' in block
    assert (
        block.index("GRAPHRAG_CONTEXT_BLOCK_START") < block.index("include") < block.index("GRAPHRAG_CONTEXT_BLOCK_END")
    )


async def test_a_block_does_not_outlive_the_turn_s_context(scene: Scene) -> None:
    agent = scene.agent(ANSWER)
    agent.loop_data = None
    await agent.monologue("hello")
    extras = agent.loop_data.extras_persistent
    assert "graphrag" in extras
    agent_zero.plugin.begin(agent, loop_data=agent.loop_data)
    assert list(extras) == ["memories"]


@pytest.fixture
async def nobody() -> AsyncIterator[tuple[int, list[int]]]:
    """The port of a server, and the list of those who came."""
    came: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return
                came.append(1)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], came
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("value", ["false", "", None, "maybe"])
async def test_while_it_is_off_nobody_is_asked_and_nothing_is_made(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, nobody: tuple[int, list[int]], value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv("GRAPHRAG_ENABLED")
    else:
        monkeypatch.setenv("GRAPHRAG_ENABLED", value)
    monkeypatch.setenv("GRAPHWEFT_BUS_URL", f"redis://127.0.0.1:{nobody[0]}")
    plugin = agent_zero.AgentZeroPlugin()
    monkeypatch.setattr(agent_zero, "plugin", plugin)
    threads = threading.active_count()
    agent = scene.agent(Tool("book", {}, KeyError("no")), ANSWER)
    await agent.monologue("hello")
    assert [list(extras) for extras in agent.prompts] == [["memories", "current_datetime"]] * 2
    assert (plugin.core, threading.active_count(), nobody[1]) == (None, threads, [])
    assert scene.markers == ["GRAPHRAG_EXTENSION_EXECUTED"] * 2


@pytest.mark.parametrize(
    ("primary", "alias", "on"),
    [("false", "true", False), (None, "true", True), ("1", "false", True), (None, None, False)],
)
async def test_the_first_toggle_wins_over_the_old_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, primary: str | None, alias: str | None, on: bool
) -> None:
    for name, value in {"GRAPHRAG_ENABLED": primary, "GRAPH_RAG_ENABLED": alias}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    agent = scene.agent(ANSWER)
    await agent.monologue("hello")
    assert ("graphrag" in agent.prompts[0]) is on


async def test_what_goes_wrong_in_the_plugin_stays_there(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = agent_zero.AgentZeroPlugin()
    monkeypatch.setattr(agent_zero, "plugin", broken)
    monkeypatch.setenv("GRAPHWEFT_CONTEXT", "sometimes")  # no setting of a client can be read
    agent = scene.agent(Tool("book", {}, KeyError("no")), ANSWER)
    with caplog.at_level(logging.WARNING):
        assert await agent.monologue("hello") == "It is done."
    assert "graphrag" not in agent.prompts[0]
    assert "GRAPHWEFT_CONTEXT" in caplog.text
    for method in ("begin", "start_turn", "end_turn", "start_tool", "end_tool", "start_model", "end_model"):
        getattr(broken, method)()
        getattr(broken, method)(None, unknown=1)
    await broken.inject()


async def test_an_agent_zero_without_the_package_goes_on(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "graphweft.adapters.agent_zero", None)
    agent = scene.agent(ANSWER)
    assert await agent.monologue("hello") == "It is done."
    assert [list(extras) for extras in agent.prompts] == [["memories", "current_datetime"]]
