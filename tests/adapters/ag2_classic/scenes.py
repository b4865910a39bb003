"""Conversations of real AG2 agents with a scripted model, run in an environment that has AG2.

``python tests/adapters/ag2_classic/scenes.py NAME …`` prints the result of a scene as JSON, in its last line.
Annotations are evaluated here: AG2 does not resolve those of tools otherwise.
"""

import asyncio
import gc
import json
import threading
from collections.abc import Sequence
from typing import Any

from autogen import ConversableAgent
from autogen.agentchat import a_initiate_group_chat, a_run_group_chat, initiate_group_chat, run_group_chat_iter
from autogen.agentchat.group import AgentTarget, ContextVariables, ReplyResult
from autogen.agentchat.group.context_condition import ExpressionContextCondition
from autogen.agentchat.group.context_expression import ContextExpression
from autogen.agentchat.group.on_context_condition import OnContextCondition
from autogen.agentchat.group.patterns import DefaultPattern, RoundRobinPattern
from autogen.agentchat.group.targets.transition_target import TerminateTarget
from autogen.io.base import IOStream
from kit import IDS, PROMPTS, Scene, cancel, main, outcome, timed

from graphweft_runtimes.ag2_classic import AG2ClassicAdapter, create_graph_injection_hook, create_graph_mutation_hook

LLM = {"config_list": [{"model": "fake", "model_client_cls": "Fake", "api_key": "none"}], "cache_seed": None}


class Quiet:
    """AG2 prints every message; standard output is for the result."""

    def send(self, message: Any) -> None:
        pass

    def print(self, *objects: Any, **named: Any) -> None:
        pass

    def input(self, prompt: str = "", *, password: bool = False) -> str:
        return ""


class Scripted(ConversableAgent):
    """An agent whose model answers by its script: a text, a tool call, or an error.

    A model client that is registered does not survive the set-up of a group chat, so this is where a script can stand.
    """

    script: list[Any]

    def __init__(self, name: str, script: Sequence[Any], **named: Any) -> None:
        super().__init__(name, f"You are {name}.", llm_config=LLM, human_input_mode="NEVER", **named)
        self.script = list(script)

    def _generate_oai_reply_from_client(self, llm_client: Any, messages: Any, cache: Any, **named: Any) -> Any:
        PROMPTS.append((self.name, [{"role": one.get("role"), "content": one.get("content")} for one in messages]))
        step = self.script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


def call(tool: str, call_id: str, **arguments: Any) -> dict[str, Any]:
    """Return a model's message that calls one tool."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def weather(city: str, context_variables: ContextVariables) -> str:
    """Tell the weather in a city."""
    context_variables["city"] = city
    return f"sunny in {city}"


def book(room: str) -> str:
    """Book a room."""
    raise RuntimeError(f"{room} is taken")


def to_writer() -> ReplyResult:
    """Hand over to the writer."""
    return ReplyResult(message="over to you", target=AgentTarget(WRITERS[-1]))


WRITERS: list[Any] = []


def crew(ending: Any = "Draft done.") -> tuple[Scripted, Scripted]:
    """Return two agents: the planner calls a tool that works and one that fails, then hands over to the writer."""
    planner = Scripted(
        "Planner",
        [call("weather", "t1", city="Oslo"), call("book", "t2", room="7"), call("to_writer", "t3")],
        functions=[weather, book, to_writer],
    )
    writer = Scripted("Writer", [ending])
    WRITERS.append(writer)
    return planner, writer


def pattern_of(planner: Scripted, writer: Scripted) -> DefaultPattern:
    """Return a group chat of the two that the planner begins."""
    return DefaultPattern(
        initial_agent=planner,
        agents=[planner, writer],
        context_variables=ContextVariables(data=dict(IDS)),
        group_manager_args={"llm_config": False},
    )


def conversation(scene: Scene, mode: str, failing: str = "") -> dict[str, Any]:
    """The planner calls two tools, one of which fails, and hands over to the writer, whose model may fail."""
    adapter = scene.adapter()
    planner, writer = crew(ConnectionError("no model") if failing else "Draft done.")
    pattern = pattern_of(planner, writer)
    if scene.attached:
        adapter.attach(pattern)
    options: dict[str, Any] = {"pattern": pattern, "messages": "plan a trip", "max_rounds": 12}

    async def read() -> list[str]:
        response = await a_run_group_chat(**options)
        return [event.type async for event in response.events]

    def run() -> Any:
        if mode == "streamed":
            return asyncio.run(read())
        chat, found, _ = (
            initiate_group_chat(**options) if mode == "sync" else asyncio.run(a_initiate_group_chat(**options))
        )
        return [chat.chat_history, found.to_dict()]

    history, error = outcome(run)
    kept = [str(one) for agent in (planner, writer) for chat in agent.chat_messages.values() for one in chat]
    systems = [agent.system_message for agent in (planner, writer)]
    return {"answers": [history, kept, systems], "error": error, "instructions": systems}


def next_speaker(scene: Scene, how: str, mode: str) -> dict[str, Any]:
    """The planner answers without a tool, and the group chat gives the floor to the writer, or to nobody."""
    planner, writer = Scripted("Planner", ["Plan done."]), Scripted("Writer", ["Draft done."])
    writer.handoffs.set_after_work(TerminateTarget())
    if how == "after_work":
        planner.handoffs.set_after_work(AgentTarget(writer))
    elif how == "condition":
        ready = ExpressionContextCondition(ContextExpression("${chat_id} == 'c1'"))
        planner.handoffs.add_context_condition(OnContextCondition(target=AgentTarget(writer), condition=ready))
    else:
        planner.handoffs.set_after_work(TerminateTarget())
    pattern = pattern_of(planner, writer)
    scene.adapter().attach(pattern)
    options: dict[str, Any] = {"pattern": pattern, "messages": "plan a trip", "max_rounds": 12}
    if mode == "sync":
        initiate_group_chat(**options)
    else:
        asyncio.run(a_initiate_group_chat(**options))
    return {}


def abandoned(scene: Scene) -> None:
    """A stream that nobody reads after the first tool call, and nobody closes: AG2 waits for its reader forever."""
    pattern = pattern_of(*crew())
    scene.adapter().attach(pattern)
    events = iter(run_group_chat_iter(pattern=pattern, messages="plan a trip", max_rounds=12))
    while next(events).type != "tool_call":
        pass
    scene.wait()
    scene.stop_recording()


def repeated(scene: Scene) -> None:
    """Three runs of one chat: the blocks of earlier turns are gone in later ones."""
    adapter = scene.adapter()
    for _ in range(3):
        agent = Scripted("Planner", [call("weather", "", city="Oslo"), "Sunny."], functions=[weather])
        pattern = RoundRobinPattern(
            initial_agent=agent,
            agents=[agent],
            context_variables=ContextVariables(data=dict(IDS)),
            group_manager_args={"llm_config": False},
        )
        adapter.attach(pattern)
        adapter.attach(pattern, agent)  # a second time does nothing
        initiate_group_chat(pattern=pattern, messages="how is it?", max_rounds=4)


def cancelled(scene: Scene) -> dict[str, Any]:
    """The caller gives up a chat while the model works."""
    asked, answer = threading.Event(), threading.Event()

    class Slow(Scripted):
        def _generate_oai_reply_from_client(self, llm_client: Any, messages: Any, cache: Any, **named: Any) -> Any:
            asked.set()
            answer.wait(30)
            return "too late"

    slow = Slow("Planner", [])
    pattern = pattern_of(slow, Scripted("Writer", []))
    scene.adapter().attach(pattern)

    async def give_up() -> str:
        chat = asyncio.create_task(a_initiate_group_chat(pattern=pattern, messages="plan a trip", max_rounds=4))
        await asyncio.to_thread(asked.wait, 30)
        raised = await cancel(chat)
        answer.set()
        return raised

    error = asyncio.run(give_up())
    return {"error": error, "instructions": [slow.system_message]}


def shared(scene: Scene) -> dict[str, Any]:
    """Two chats ask one agent at the same time; the second one begins while the first one's model works."""
    asked, answer, more = threading.Event(), threading.Event(), threading.Event()

    class Slow(Scripted):
        def _generate_oai_reply_from_client(self, llm_client: Any, messages: Any, cache: Any, **named: Any) -> Any:
            said = super()._generate_oai_reply_from_client(llm_client, messages, cache, **named)
            if asked.is_set():
                more.set()
            else:
                asked.set()
                answer.wait(30)
            return said

    slow = Slow("Planner", ["one", "two", "three"])
    scene.adapter(**IDS).attach(slow)

    async def chat(name: str) -> None:
        user = ConversableAgent(name, llm_config=False, human_input_mode="NEVER")
        await user.a_initiate_chat(slow, message=name, max_turns=1)

    async def both() -> None:
        first = asyncio.create_task(chat("First"))
        await asyncio.to_thread(asked.wait, 30)
        second = asyncio.create_task(chat("Second"))
        await asyncio.to_thread(more.wait, 30)
        answer.set()
        await asyncio.gather(first, second)
        await chat("Third")

    asyncio.run(both())
    return {"systems": [slow.system_message]}


def gone(scene: Scene) -> dict[str, Any]:
    """Agents that are made, used with a hook that all of them share, and forgotten."""
    hook = create_graph_injection_hook(scene.adapter())
    left: list[Any] = []
    for _ in range(3):
        agent = Scripted("Planner", ["Done."])
        agent.context_variables = ContextVariables(data=dict(IDS))
        hook(agent, [])
        left.append(agent.system_message)
        del agent
    gc.collect()
    (bases,) = (cell.cell_contents for cell in hook.__closure__ or () if hasattr(cell.cell_contents, "keys"))
    return {"systems": left, "remembered": len(bases)}


def structured(scene: Scene) -> None:
    """An agent answers by a call of AG2's tool for structured output, which nobody runs."""
    planner = Scripted("Planner", [call("__structured_output", "t1", steps=[1])])
    pattern = pattern_of(planner, Scripted("Writer", []))
    scene.adapter().attach(pattern)
    initiate_group_chat(pattern=pattern, messages="plan a trip", max_rounds=3)


def own(scene: Scene) -> None:
    """The runtime publishes events of its own, within a turn and outside."""
    adapter = scene.adapter()
    agent = Scripted("Planner", ["{}"])
    agent.context_variables = ContextVariables(data=dict(IDS))
    adapter.attach(agent)
    adapter.core.start_turn(IDS, "Planner")
    adapter.publish(agent, "ui_tool.call_complete", {"tool_name": "approve_plan", "result": {"approved": True}})
    adapter.core.end_turn(IDS, "Planner")
    adapter.publish(agent, "agent.structured_output", {"model_name": "Plan", "structured_data": {"steps": [1]}})
    adapter.publish(agent, "No Event", {})


def pair(scene: Scene, parts: str = "attach") -> dict[str, Any]:
    """Two agents without a group: one proposes tools, the other one runs them."""
    adapter = scene.adapter()
    planner = Scripted("Planner", [call("book", "t1", room="7"), "Taken.", "Still taken."])
    runner = ConversableAgent("Runner", llm_config=False, human_input_mode="NEVER", default_auto_reply="Again?")
    planner.register_for_llm(description="Book a room.")(book)
    runner.register_for_execution()(book)
    for agent in (planner, runner):
        agent.context_variables = ContextVariables(data=dict(IDS))
    if parts in {"attach", "both"}:
        adapter.attach(planner, runner)
    if parts in {"hooks", "both"}:
        planner.register_hook("update_agent_state", create_graph_injection_hook(adapter))
        planner.register_hook("process_message_before_send", create_graph_mutation_hook(adapter))
    chat = runner.initiate_chat(planner, message="Is room 7 free?", max_turns=3)
    return {"history": chat.chat_history}


def turns(scene: Scene, count: str) -> dict[str, Any]:
    """Time turns of an agent without tools."""
    adapter = scene.adapter(budget_ms=50)
    agent = Scripted("Planner", ["Done."] * int(count))
    agent.context_variables = ContextVariables(data=dict(IDS))
    if scene.attached:
        adapter.attach(agent)
    return timed(count, lambda: agent.generate_reply([{"role": "user", "content": "go on"}]))


if __name__ == "__main__":
    with IOStream.set_default(Quiet()):  # type: ignore[arg-type]
        main(AG2ClassicAdapter, globals())
