"""Conversations of real LangChain agents and LangGraph graphs with a scripted model, run in an environment with both.

``python tests/adapters/langchain/scenes.py NAME …`` prints what came of one as JSON, in its last line. Annotations are
evaluated here, for tools read theirs.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from kit import IDS, PROMPTS, Bus, play, result, settings_of
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

from graphweft.adapters.langchain import LangChainAdapter

CONTEXT = {name: value for name, value in IDS.items() if name != "chat_id"}
"""The chat's id is the thread's."""
CONFIG = {"configurable": {"thread_id": IDS["chat_id"]}}
START_WITH = {"messages": [("user", "plan a trip")]}


class Scripted(GenericFakeChatModel):
    """A model that says what its script says: a text, a message that calls tools, or an error."""

    model_name: str = "fake"
    agent: str = ""

    def bind_tools(self, tools: Any, **named: Any) -> Any:
        """Its script knows which tools there are."""
        return self

    def _generate(self, messages: list[BaseMessage], *arguments: Any, **named: Any) -> Any:
        PROMPTS.append((self.agent, [{"role": one.type, "content": one.content} for one in messages]))
        return super()._generate(messages, *arguments, **named)


class Steps:
    """A model's script. A generator that has raised would be over, and LangChain may ask once more."""

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
    """Return a model for the agent: a step may also be what makes one when its time has come."""
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
    """Let the writer go on."""
    told = ToolMessage("over to you", tool_call_id=tool_call_id)
    return Command(goto="Writer", graph=Command.PARENT, update={"messages": [told]})


class Forgiving(AgentMiddleware):
    """Tells the model what a tool failed with, as agents of their own do; without it the run ends."""

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


def adapter_of(bus: Bus, **settings: Any) -> LangChainAdapter:
    """Return an adapter with a client of its own on the bus."""
    return LangChainAdapter(**settings_of(bus, **settings))


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


def conversation(mode: str, way: str = "works", failing: str = "", attached: str = "attached") -> dict[str, Any]:
    """The planner's two tool calls, of which one fails, and its hand-over to the writer, whose model may fail."""
    bus, saver = Bus(way), InMemorySaver()
    adapter = adapter_of(bus)
    mine = None if way == "none" else adapter
    graph = crew(mine, ConnectionError("no model") if failing else "Draft done.", saver)
    if mine is not None and attached == "attached":
        graph = adapter.attach(graph)
    error, history, chunks = None, None, []
    try:
        if mode == "sync":
            state = graph.invoke(START_WITH, CONFIG, context=CONTEXT)
        elif mode == "async":
            state = asyncio.run(graph.ainvoke(START_WITH, CONFIG, context=CONTEXT))
        elif mode == "stream":
            chunks = list(graph.stream(START_WITH, CONFIG, context=CONTEXT, stream_mode="values"))
            state = chunks[-1]
        else:

            async def read() -> list[Any]:
                return [one async for one in graph.astream(START_WITH, CONFIG, context=CONTEXT, stream_mode="values")]

            chunks = asyncio.run(read())
            state = chunks[-1]
        history = said_in(state["messages"])
    except ConnectionError as raised:
        error = f"{type(raised).__name__}: {raised}"
    adapter.close(0.1)
    return result(
        adapter.core, bus, error=error, history=history, chunks=len(chunks), kept="block" in kept(saver),
        runs=len(adapter.runs),
    )  # fmt: skip


def outcome(run: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return the messages of the state that a run ends with, and what it raises."""
    try:
        return said_in(run()["messages"]), None
    except (ConnectionError, RuntimeError, ValueError) as raised:
        return None, f"{type(raised).__name__}: {raised}"


def fails(how: str, attached: str = "attached") -> dict[str, Any]:
    """An agent that fails, or whose failure is handled."""
    bus = Bus()
    adapter = adapter_of(bus)
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
    history, error = outcome(lambda: agent.invoke(START_WITH, config, context=CONTEXT))
    adapter.close()
    return result(adapter.core, bus, history=history, error=error, runs=len(adapter.runs))


def cancelled() -> dict[str, Any]:
    """A run that its caller gives up while the model is at work."""
    bus, asked, done = Bus(), threading.Event(), threading.Event()
    adapter = adapter_of(bus)

    def slow() -> str:
        asked.set()
        done.wait(30)
        return "too late"

    agent = adapter.attach(agent_of(adapter, "Planner", [slow]))

    async def give_up() -> bool:
        run = asyncio.create_task(agent.ainvoke(START_WITH, CONFIG, context=CONTEXT))
        await asyncio.to_thread(asked.wait, 30)
        run.cancel()
        [raised] = await asyncio.gather(run, return_exceptions=True)
        done.set()
        return isinstance(raised, asyncio.CancelledError)

    gave_up = asyncio.run(give_up())
    adapter.close()
    return result(adapter.core, bus, cancelled=gave_up, runs=len(adapter.runs))


def abandoned(mode: str) -> dict[str, Any]:
    """A stream that nobody reads on after the first tool call: closed, or not."""
    bus, now_s = Bus(), [0.0]
    adapter = adapter_of(bus, idle_s=10, clock=lambda: now_s[0])
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
    now_s[0] = 11.0
    adapter.core.tick()
    adapter.core.flush()
    found = result(adapter.core, bus)
    adapter.close()
    return found


def waits(how: str, mode: str = "sync") -> dict[str, Any]:
    """An agent, perhaps within a graph, that waits for a person, and goes on with the same thread."""
    bus, saver = Bus(), InMemorySaver()
    adapter = adapter_of(bus)
    before: list[str] = []

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

    def invoke(what: Any) -> Any:
        if mode == "async":
            return asyncio.run(agent.ainvoke(what, CONFIG, context=CONTEXT))
        return agent.invoke(what, CONFIG, context=CONTEXT)

    invoke(START_WITH)
    adapter.core.flush()
    before = [event.type for event in bus.events]
    if how == "again":
        history, error = outcome(lambda: invoke(START_WITH))
    else:
        history, error = outcome(lambda: invoke(None if how == "before" else Command(resume="yes")))
    adapter.close()
    return result(
        adapter.core, bus, before=before, history=history, error=error, kept="block" in kept(saver),
        runs=len(adapter.runs),
    )  # fmt: skip


def repeated() -> dict[str, Any]:
    """Three runs of one chat with a checkpointer: the blocks of earlier turns are gone in later ones."""
    bus, saver = Bus(), InMemorySaver()
    adapter = adapter_of(bus)
    script = [step for n in range(3) for step in (call("weather", f"t{n}", city="Oslo"), "Sunny.")]
    agent = agent_of(adapter, "Planner", script, [weather], checkpointer=saver)
    agent = adapter.attach(adapter.attach(agent))  # a second time changes nothing
    for _ in range(3):
        agent.invoke(START_WITH, {**CONFIG, "callbacks": adapter.callbacks}, context=CONTEXT)
    adapter.close()
    return result(adapter.core, bus, kept="block" in kept(saver))


def together(how: str) -> dict[str, Any]:
    """Two runs at the same time, of one chat or of two; each waits for the other one in its first model call."""
    bus, meet = Bus(), threading.Barrier(2)
    adapter = adapter_of(bus)

    def first() -> AIMessage:
        meet.wait(30)
        return call("weather", "", city="Oslo")

    def last() -> str:
        meet.wait(30)
        return "Sunny."

    agents = [adapter.attach(agent_of(adapter, "Planner", [first, last], [weather])) for _ in range(2)]

    async def both() -> None:
        names = ["c1", "c1" if how == "one" else "c2"]
        await asyncio.gather(
            *(
                agent.ainvoke(START_WITH, {"configurable": {"thread_id": name}}, context=CONTEXT)
                for agent, name in zip(agents, names, strict=True)
            )
        )

    asyncio.run(both())
    adapter.close()
    chats = [event.chatid for event in bus.events]
    return result(adapter.core, bus, chats=chats, runs=len(adapter.runs))


def side_by_side() -> dict[str, Any]:
    """A graph whose two agents work at the same time, and a third one after them."""
    bus, meet = Bus(), threading.Barrier(2)
    adapter = adapter_of(bus)

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
    adapter.close()
    return result(adapter.core, bus)


def parallel(mode: str, last: str = "answers") -> dict[str, Any]:
    """A model that calls three tools at once, of which one fails; the third one may hand over."""
    bus = Bus()
    adapter = adapter_of(bus)

    @tool("weather")
    def later(city: str) -> str:
        """Tell the weather in a city, once the writer was told to go on."""
        ends_s = time.monotonic() + 30
        while time.monotonic() < ends_s and not any(
            (event.type, event.data.get("call_id")) == ("tool.call_complete", "t3") for event in bus.events
        ):
            time.sleep(0.01)
        return f"sunny in {city}"

    forecast = later if last == "hands_over" else weather
    third = ("to_writer", "t3", {}) if last == "hands_over" else ("weather", "t3", {"city": "Bergen"})
    step = calls(third, ("weather", "t1", {"city": "Oslo"}), ("book", "t2", {"room": "7"}))
    graph = StateGraph(MessagesState)
    tools = [forecast, book, to_writer]
    graph.add_node("Planner", agent_of(adapter, "Planner", [step, "Sunny."], tools, [Forgiving()]))
    graph.add_node("Writer", agent_of(adapter, "Writer", ["Draft done."]))
    graph.add_edge(START, "Planner")
    crew = adapter.attach(graph.compile(name="Crew"))
    if mode == "sync":
        crew.invoke(START_WITH, CONFIG, context=CONTEXT)
    else:
        asyncio.run(crew.ainvoke(START_WITH, CONFIG, context=CONTEXT))
    adapter.close()
    return result(adapter.core, bus)


def supervisor(mode: str, failing: str = "") -> dict[str, Any]:
    """An agent whose tool is another agent: a turn within a turn."""
    bus = Bus()
    adapter = adapter_of(bus)
    inner = agent_of(adapter, "Planner", [ConnectionError("no model")] if failing else ["A plan."])

    if mode == "sync":

        @tool
        def ask_planner(task: str) -> str:
            """Let the planner work."""
            return str(inner.invoke({"messages": [("user", task)]})["messages"][-1].text)
    else:

        @tool
        async def ask_planner(task: str) -> str:
            """Let the planner work."""
            return str((await inner.ainvoke({"messages": [("user", task)]}))["messages"][-1].text)

    outer = adapter.attach(
        agent_of(adapter, "Supervisor", [call("ask_planner", "t1", task="plan"), "Done."], [ask_planner])
    )
    if mode == "sync":
        history, error = outcome(lambda: outer.invoke(START_WITH, CONFIG, context=CONTEXT))
    else:
        history, error = outcome(lambda: asyncio.run(outer.ainvoke(START_WITH, CONFIG, context=CONTEXT)))
    adapter.close()
    return result(adapter.core, bus, history=history, error=error, runs=len(adapter.runs))


def graph(mode: str, way: str = "works", failing: str = "") -> dict[str, Any]:
    """A graph without agents of LangChain's: nodes that ask for context, a model and a tool node."""
    bus, saver = Bus(way), InMemorySaver()
    adapter = adapter_of(bus)
    mine = way != "none"
    asked = model("Planner", calls(("weather", "t1", {"city": "Oslo"}), ("book", "t2", {"room": "7"})), "I know.")
    writes = model("Writer", ConnectionError("no model") if failing else "Draft done.")

    def prompt(state: Any, block: str) -> list[Any]:
        return [SystemMessage(f"You.\n\n{block}" if block else "You."), *state["messages"]]

    async def aplan(state: MessagesState, config: RunnableConfig) -> Any:
        block = (await adapter.context_for(config, agent="Planner")).text if mine else ""
        return {"messages": [await asked.ainvoke(prompt(state, block))]}

    async def awrite(state: MessagesState, config: RunnableConfig) -> Any:
        block = (await adapter.context_for(config, agent="Writer")).text if mine else ""
        return {"messages": [await writes.ainvoke(prompt(state, block))]}

    def plan(state: MessagesState, config: RunnableConfig) -> Any:
        block = adapter.context_for_sync(config, agent="Planner").text if mine else ""
        return {"messages": [asked.invoke(prompt(state, block))]}

    def write(state: MessagesState, config: RunnableConfig) -> Any:
        block = adapter.context_for_sync(config, agent="Writer").text if mine else ""
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
    config = {"configurable": {"thread_id": "c1"}}
    if mode == "sync":
        history, error = outcome(lambda: flow.invoke(START_WITH, config, context=CONTEXT))
    else:
        history, error = outcome(lambda: asyncio.run(flow.ainvoke(START_WITH, config, context=CONTEXT)))
    adapter.close(0.1)
    return result(
        adapter.core, bus, history=history, error=error, kept="block" in kept(saver), runs=len(adapter.runs)
    )  # fmt: skip


def structured() -> dict[str, Any]:
    """An agent that answers by a schema."""

    class Plan(BaseModel):
        steps: list[int]

    bus = Bus()
    adapter = adapter_of(bus)
    agent = agent_of(adapter, "Planner", [call("Plan", "t1", steps=[1])], response_format=Plan)
    state = adapter.attach(agent).invoke(START_WITH, CONFIG, context=CONTEXT)
    adapter.close()
    return result(adapter.core, bus, answer=state["structured_response"].steps)


def own() -> dict[str, Any]:
    """Events of the runtime's own, within a tool and outside of all runs; a prompt of several parts."""
    bus = Bus()
    adapter = adapter_of(bus)

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
    adapter.publish({"configurable": IDS}, "agent.structured_output", {"structured_data": [1]}, agent="Chief")
    adapter.publish({}, "agent.structured_output", {})
    adapter.close()
    return result(adapter.core, bus)


def turns(way: str, count: str) -> dict[str, Any]:
    """Turns of an agent without tools, and how long each took."""
    bus = Bus(way)
    adapter = adapter_of(bus, budget_ms=50)
    agent = agent_of(None if way == "none" else adapter, "Planner", ["Done."] * int(count))
    if way != "none":
        agent = adapter.attach(agent)
    times: list[float] = []
    for _ in range(int(count)):
        started_s = time.perf_counter()
        agent.invoke(START_WITH, CONFIG, context=CONTEXT)
        times.append((time.perf_counter() - started_s) * 1000)
    adapter.close(0.1)
    return {"ms": times}


if __name__ == "__main__":
    play(
        abandoned, cancelled, conversation, fails, graph, own, parallel, repeated, side_by_side, structured, supervisor,
        together, turns, waits,
    )  # fmt: skip
