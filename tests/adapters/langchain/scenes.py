"""Conversations of real LangChain agents and LangGraph graphs with a scripted model, run in an environment with both.

``python tests/adapters/langchain/scenes.py NAME …`` prints the result of a scene as JSON, in its last line.
Annotations are evaluated here: tools read theirs.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from kit import CONCURRENT, IDS, PROMPTS, Result, Scene, cancel, main, timed
from kit import outcome as outcome_of
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRetryMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from graphweft_runtimes.langchain import LangChainAdapter

CONTEXT = {name: value for name, value in IDS.items() if name != "chat_id"}
"""The chat's id is the thread's."""
CONFIG = {"configurable": {"thread_id": IDS["chat_id"]}}
START_WITH = {"messages": [("user", "plan a trip")]}


class Scripted(GenericFakeChatModel):
    """A model that answers by its script: a text, a message that calls tools, or an error."""

    model_name: str = "fake"
    agent: str = ""

    def bind_tools(self, tools: Any, **named: Any) -> Any:
        """Its script knows which tools there are."""
        return self

    def _generate(self, messages: list[BaseMessage], *arguments: Any, **named: Any) -> Any:
        PROMPTS.append((self.agent, [{"role": one.type, "content": one.content} for one in messages]))
        return super()._generate(messages, *arguments, **named)


class Steps:
    """A model's script. A generator would end when it raises, and LangChain may call the model again."""

    def __init__(self, script: Sequence[Any]) -> None:
        self.left = list(script)

    def __iter__(self) -> "Steps":
        return self

    def __next__(self) -> Any:
        step = self.left.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step() if callable(step) else step


def model(agent: str, *script: Any) -> Scripted:
    """Return a model for the agent. A step may also be a function that returns one."""
    return Scripted(messages=Steps(script), agent=agent)


def call(name: str, call_id: str, **arguments: Any) -> AIMessage:
    """Return a model's message that calls one tool."""
    return calls((name, call_id, arguments))


def calls(*these: tuple[str, str, dict[str, Any]]) -> AIMessage:
    """Return a model's message that calls tools."""
    return AIMessage("", tool_calls=[{"name": name, "id": key, "args": args} for name, key, args in these])


@tool
def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


@tool
def book(room: str) -> str:
    """Book a room."""
    raise RuntimeError(f"{room} is taken")


@tool
def to_writer(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
    """Hand over to the writer."""
    answer = ToolMessage("over to you", tool_call_id=tool_call_id)
    return Command(goto="Writer", graph=Command.PARENT, update={"messages": [answer]})


class Forgiving(AgentMiddleware):
    """Passes a tool's error to the model, as many agents do; without it the run ends."""

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """See LangChain."""
        try:
            return handler(request)
        except RuntimeError as error:
            return ToolMessage(f"Error: {error}", tool_call_id=request.tool_call["id"], status="error")

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """See LangChain."""
        try:
            return await handler(request)
        except RuntimeError as error:
            return ToolMessage(f"Error: {error}", tool_call_id=request.tool_call["id"], status="error")


def agent_of(
    adapter: LangChainAdapter | None,
    name: str,
    script: Sequence[Any],
    tools: Sequence[Any] = (),
    others: Sequence[Any] = (),
    **named: Any,
) -> Any:
    """Return an agent, with the adapter's middleware where there is one."""
    mine = [] if adapter is None else [adapter.middleware()]
    return create_agent(
        model(name, *script), list(tools), system_prompt=f"You are {name}.", middleware=[*others, *mine], name=name,
        **named,
    )  # fmt: skip


def crew(adapter: LangChainAdapter | None, ending: Any = "Draft done.", saver: Any = None) -> Any:
    """Return a graph of two agents: the planner calls a tool that works and one that fails, then hands over."""
    script = [call("weather", "t1", city="Oslo"), call("book", "t2", room="7"), call("to_writer", "t3")]
    planner = agent_of(adapter, "Planner", script, [weather, book, to_writer], [Forgiving()])
    writer = agent_of(adapter, "Writer", [ending])
    graph = StateGraph(MessagesState)
    graph.add_node("Planner", planner)
    graph.add_node("Writer", writer)
    graph.add_edge(START, "Planner")
    graph.add_edge("Writer", END)
    return graph.compile(name="Crew", checkpointer=saver)


def kept(saver: Any) -> str:
    """Return all that a checkpointer holds, as it would be stored."""
    return str([saver.storage, saver.writes, saver.blobs])


def said_in(messages: Sequence[Any]) -> list[tuple[str, str]]:
    """Return the messages of a state in short."""
    return [(one.type, str(one.text)) for one in messages]


def invoke(agent: Any, mode: str, what: Any = START_WITH, config: Any = CONFIG) -> Any:
    """Return the state that a run ends with, and the number of chunks where it is streamed."""
    options: dict[str, Any] = {"config": config, "context": CONTEXT}
    if mode == "sync":
        return agent.invoke(what, **options), 0
    if mode == "stream":
        chunks = list(agent.stream(what, **options, stream_mode="values"))
        return chunks[-1], len(chunks)

    async def run() -> Any:
        if mode == "async":
            return await agent.ainvoke(what, **options), 0
        chunks = [one async for one in agent.astream(what, **options, stream_mode="values")]
        return chunks[-1], len(chunks)

    return asyncio.run(run())


def outcome(run: Callable[[], Any]) -> dict[str, Any]:
    """Return the messages and the number of chunks of a run, and its error."""
    found, error = outcome_of(run)
    return {"answers": found and [said_in(found[0]["messages"]), found[1]], "error": error}


def conversation(scene: Scene, mode: str, attached: str = "attached", failing: str = "") -> Result:
    """The planner calls two tools, one of which fails, and hands over to the writer, whose model may fail."""
    saver, adapter = InMemorySaver(), scene.adapter()
    graph = crew(adapter if scene.attached else None, ConnectionError("no model") if failing else "Draft done.", saver)
    if scene.attached and attached == "attached":
        graph = adapter.attach(graph)
    found = outcome(lambda: invoke(graph, mode))
    return lambda: {**found, "kept": kept(saver), "runs": len(adapter.runs)}


def fails(scene: Scene, how: str, attached: str = "attached") -> Result:
    """An agent that fails, or whose failure is handled."""
    adapter = scene.adapter()
    config: dict[str, Any] = dict(CONFIG)
    others: list[Any] = []
    tools: list[Any] = [book, weather]
    script = [call("book", "t1", room="7"), "Never."]
    if how == "handled":

        @tool("book")
        def asked(room: str) -> str:
            """Book a room."""
            raise ToolException(f"{room} is taken")

        asked.handle_tool_error = True
        tools = [asked]
    elif how == "unknown":
        script = [call("fly", "t1", to="Oslo"), "Never."]
    elif how == "arguments":
        script = [call("book", "t1"), "Never."]
    elif how == "retried":
        others, script = [ModelRetryMiddleware(initial_delay=0.0, jitter=False)], [ConnectionError("no model"), "Done."]
    elif how == "limit":
        config, script = {**CONFIG, "recursion_limit": 4}, [call("weather", f"t{n}", city="Oslo") for n in range(9)]
    elif how == "before":

        class Strict(AgentMiddleware):
            def before_model(self, state: Any, runtime: Any) -> None:
                raise ValueError("not allowed")

        others = [Strict()]
    agent = agent_of(adapter, "Planner", script, tools, others)
    if attached == "attached":
        agent = adapter.attach(agent)
    found = outcome(lambda: invoke(agent, "sync", config=config))
    return lambda: {**found, "runs": len(adapter.runs)}


def cancelled(scene: Scene) -> Result:
    """The caller gives up a run while the model works."""
    asked, done = threading.Event(), threading.Event()
    adapter = scene.adapter()

    def slow() -> str:
        asked.set()
        done.wait(30)
        return "too late"

    agent = adapter.attach(agent_of(adapter, "Planner", [slow]))

    async def give_up() -> str:
        run = asyncio.create_task(agent.ainvoke(START_WITH, CONFIG, context=CONTEXT))
        await asyncio.to_thread(asked.wait, 30)
        raised = await cancel(run)
        done.set()
        return raised

    error = asyncio.run(give_up())
    return lambda: {"error": error, "runs": len(adapter.runs)}


def abandoned(scene: Scene, mode: str) -> None:
    """A stream that nobody reads after the first tool call: closed, or not."""
    adapter = scene.adapter()
    agent = adapter.attach(agent_of(adapter, "Planner", [call("weather", "t1", city="Oslo"), "Sunny."], [weather]))

    def is_tool(chunk: Any) -> bool:
        return "tools" in chunk

    async def read() -> None:
        stream = agent.astream(START_WITH, CONFIG, context=CONTEXT, stream_mode="updates")
        async for chunk in stream:
            if is_tool(chunk):
                break
        await stream.aclose()

    if mode == "async":
        asyncio.run(read())
    else:
        stream = agent.stream(START_WITH, CONFIG, context=CONTEXT, stream_mode="updates")
        while not is_tool(next(stream)):
            pass
        if mode == "sync":
            stream.close()
    scene.wait()
    scene.stop_recording()


def waits(scene: Scene, how: str, mode: str = "sync") -> Result:
    """An agent, perhaps within a graph, waits for a person, and continues with the same thread."""
    saver, adapter = InMemorySaver(), scene.adapter()

    @tool("book")
    def confirmed(room: str) -> str:
        """Book a room, if a person agrees."""
        return f"{room}: {interrupt('really?')}"

    named: dict[str, Any] = {"interrupt_before": ["tools"]} if how == "before" else {}
    tools: list[Any] = [weather] if how == "before" else [confirmed]
    script = [call(tools[0].name, "t1", **({"city": "Oslo"} if how == "before" else {"room": "7"})), "Done."]
    inside = how == "inside"
    agent = agent_of(adapter, "Planner", script, tools, checkpointer=None if inside else saver, **named)
    if inside:
        graph = StateGraph(MessagesState)
        graph.add_node("Planner", agent)
        graph.add_edge(START, "Planner")
        agent = graph.compile(name="Crew", checkpointer=saver)
    agent = adapter.attach(agent)
    invoke(agent, mode)
    adapter.core.flush()
    before = [event.type for event in scene.bus.events]
    resume = {"again": START_WITH, "before": None}.get(how, Command(resume="yes"))
    found = outcome(lambda: invoke(agent, mode, resume))
    return lambda: {**found, "before": before, "kept": kept(saver), "runs": len(adapter.runs)}


def repeated(scene: Scene) -> dict[str, Any]:
    """Three runs of one chat with a checkpointer: the blocks of earlier turns are gone in later ones."""
    saver, adapter = InMemorySaver(), scene.adapter()
    script = [step for n in range(3) for step in (call("weather", f"t{n}", city="Oslo"), "Sunny.")]
    agent = agent_of(adapter, "Planner", script, [weather], checkpointer=saver)
    agent = adapter.attach(adapter.attach(agent))  # a second time changes nothing
    for _ in range(3):
        agent.invoke(START_WITH, {**CONFIG, "callbacks": adapter.callbacks}, context=CONTEXT)
    return {"kept": kept(saver)}


def together(scene: Scene) -> Result:
    """Runs of several chats, and two of one chat, at the same time: each waits for the others in its model calls."""
    adapter, everyone = scene.adapter(), threading.Barrier(len(CONCURRENT))

    def after_all(step: Any) -> Callable[[], Any]:
        def answer() -> Any:
            everyone.wait(30)
            return step

        return answer

    async def talk(chat: str, city: str) -> str:
        script = [after_all(call("weather", "", city=city)), after_all(city)]
        agent = adapter.attach(agent_of(adapter, "Planner", script, [weather]))
        config = {"configurable": {"thread_id": chat}}
        return str((await agent.ainvoke(START_WITH, config, context=CONTEXT))["messages"][-1].text)

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(talk(*run) for run in CONCURRENT))

    answers = asyncio.run(all_of_them())
    return lambda: {"answers": answers, "runs": len(adapter.runs)}


def side_by_side(scene: Scene) -> None:
    """A graph whose two agents work at the same time, and a third one after them."""
    adapter, meet = scene.adapter(), threading.Barrier(2)

    def answers(text: str) -> Callable[[], str]:
        def answer() -> str:
            meet.wait(30)
            return text

        return answer

    graph = StateGraph(MessagesState)
    graph.add_node("Left", agent_of(adapter, "Left", [answers("left")]))
    graph.add_node("Right", agent_of(adapter, "Right", [answers("right")]))
    graph.add_node("Writer", agent_of(adapter, "Writer", ["Both."]))
    graph.add_edge(START, "Left")
    graph.add_edge(START, "Right")
    graph.add_edge("Left", "Writer")
    graph.add_edge("Right", "Writer")
    asyncio.run(adapter.attach(graph.compile(name="Crew")).ainvoke(START_WITH, CONFIG, context=CONTEXT))


def parallel(scene: Scene, mode: str, last: str = "answers") -> None:
    """A model calls three tools at once, one of which fails; the third one may hand over."""
    adapter = scene.adapter()

    @tool("weather")
    def later(city: str) -> str:
        """Tell the weather in a city, after the hand-over."""

        def is_handed_over() -> bool:
            seen = [(event.type, event.data.get("call_id")) for event in scene.bus.events]
            return ("tool.call_complete", "t3") in seen

        with scene.bus.changed:
            scene.bus.changed.wait_for(is_handed_over, 60)
        return f"sunny in {city}"

    forecast = later if last == "hands_over" else weather
    third = ("to_writer", "t3", {}) if last == "hands_over" else ("weather", "t3", {"city": "Bergen"})
    step = calls(third, ("weather", "t1", {"city": "Oslo"}), ("book", "t2", {"room": "7"}))
    graph = StateGraph(MessagesState)
    tools = [forecast, book, to_writer]
    graph.add_node("Planner", agent_of(adapter, "Planner", [step, "Sunny."], tools, [Forgiving()]))
    graph.add_node("Writer", agent_of(adapter, "Writer", ["Draft done."]))
    graph.add_edge(START, "Planner")
    invoke(adapter.attach(graph.compile(name="Crew")), mode)


def nested(scene: Scene, mode: str, failing: str = "") -> Result:
    """An agent's tool is another agent."""
    adapter = scene.adapter()
    writer = agent_of(adapter, "Writer", [ConnectionError("no model") if failing else "Draft done."])

    if mode == "sync":

        @tool
        def ask_writer(task: str) -> str:
            """Let the writer work."""
            return str(writer.invoke({"messages": [("user", task)]})["messages"][-1].text)
    else:

        @tool
        async def ask_writer(task: str) -> str:
            """Let the writer work."""
            return str((await writer.ainvoke({"messages": [("user", task)]}))["messages"][-1].text)

    script = [call("ask_writer", "t1", task="write"), "Plan done."]
    planner = adapter.attach(agent_of(adapter, "Planner", script, [ask_writer]))
    found = outcome(lambda: invoke(planner, mode))
    return lambda: {**found, "runs": len(adapter.runs)}


def graph(scene: Scene, mode: str, failing: str = "") -> Result:
    """A graph without agents of LangChain's: nodes that request context, a model and a tool node."""
    saver, adapter = InMemorySaver(), scene.adapter()
    mine = scene.attached
    asked = model("Planner", calls(("weather", "t1", {"city": "Oslo"}), ("book", "t2", {"room": "7"})), "I know.")
    writes = model("Writer", ConnectionError("no model") if failing else "Draft done.")

    def prompt(state: Any, block: str) -> list[Any]:
        return [SystemMessage(f"You.\n\n{block}" if block else "You."), *state["messages"]]

    async def aplan(state: MessagesState, config: RunnableConfig) -> Any:
        block = (await adapter.context_for(config, agent="Planner", messages=state["messages"])).text if mine else ""
        return {"messages": [await asked.ainvoke(prompt(state, block))]}

    async def awrite(state: MessagesState, config: RunnableConfig) -> Any:
        block = (await adapter.context_for(config, agent="Writer", messages=state["messages"])).text if mine else ""
        return {"messages": [await writes.ainvoke(prompt(state, block))]}

    def plan(state: MessagesState, config: RunnableConfig) -> Any:
        block = adapter.context_for_sync(config, agent="Planner", messages=state["messages"]).text if mine else ""
        return {"messages": [asked.invoke(prompt(state, block))]}

    def write(state: MessagesState, config: RunnableConfig) -> Any:
        block = adapter.context_for_sync(config, agent="Writer", messages=state["messages"]).text if mine else ""
        return {"messages": [writes.invoke(prompt(state, block))]}

    def route(state: MessagesState) -> str:
        return "tools" if state["messages"][-1].tool_calls else "write"

    made = StateGraph(MessagesState)
    made.add_node("plan", plan if mode == "sync" else aplan)
    made.add_node("tools", ToolNode([weather, book], handle_tool_errors=True))
    made.add_node("write", write if mode == "sync" else awrite)
    made.add_edge(START, "plan")
    made.add_conditional_edges("plan", route, ["tools", "write"])
    made.add_edge("tools", "plan")
    made.add_edge("write", END)
    flow = made.compile(name="Flow", checkpointer=saver)
    if mine:
        flow = adapter.attach(flow)
    found = outcome(lambda: invoke(flow, mode))
    return lambda: {**found, "kept": kept(saver), "runs": len(adapter.runs)}


def structured(scene: Scene) -> dict[str, Any]:
    """An agent that answers by a schema."""

    class Plan(BaseModel):
        steps: list[int]

    adapter = scene.adapter()
    agent = agent_of(adapter, "Planner", [call("Plan", "t1", steps=[1])], response_format=Plan)
    state = adapter.attach(agent).invoke(START_WITH, CONFIG, context=CONTEXT)
    return {"answers": state["structured_response"].steps}


def own(scene: Scene) -> None:
    """The runtime publishes events of its own, within a turn and outside; the prompt has several parts."""
    adapter = scene.adapter()

    @tool
    def approve(config: RunnableConfig) -> str:
        """Ask a person."""
        adapter.publish(config, "ui_tool.call_complete", {"tool_name": "approve_plan", "result": {"approved": True}})
        return "approved"

    parts = SystemMessage([{"type": "text", "text": "You are Planner."}])
    agent = create_agent(
        model("Planner", call("approve", "t1"), "Done."), [approve], system_prompt=parts,
        middleware=[adapter.middleware("Chief")],
    )  # fmt: skip
    adapter.attach(agent).invoke(START_WITH, CONFIG, context=CONTEXT)
    outside: dict[str, Any] = {"configurable": IDS}
    adapter.publish(outside, "agent.structured_output", {"structured_data": {"steps": [1]}}, agent="Chief")
    adapter.publish(outside, "No Event", {})
    adapter.publish({}, "agent.structured_output", {})


def turns(scene: Scene, count: str) -> dict[str, Any]:
    """Time turns of an agent without tools."""
    adapter = scene.adapter(budget_ms=50)
    agent = agent_of(adapter if scene.attached else None, "Planner", ["Done."] * int(count))
    if scene.attached:
        agent = adapter.attach(agent)
    return timed(count, lambda: agent.invoke(START_WITH, CONFIG, context=CONTEXT))


if __name__ == "__main__":
    main(LangChainAdapter, globals())
