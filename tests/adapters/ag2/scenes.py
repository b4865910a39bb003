"""Conversations of real AG2 1.x agents with a scripted model, run in an environment that has AG2.

``python tests/adapters/ag2/scenes.py NAME …`` prints what came of one as JSON, in its last line.
"""

import asyncio
import json
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ag2 import Agent, Context, MemoryStream, Plugin, tool
from ag2.context import ConversationContext
from ag2.events import BaseEvent, HumanInputRequest, ModelMessageChunk, ToolCallEvent, ToolErrorEvent
from ag2.exceptions import HumanInputError
from ag2.knowledge import MemoryKnowledgeStore
from ag2.middleware import Middleware
from ag2.middleware.base import BaseMiddleware
from ag2.network import (
    AgentTarget,
    ChannelInject,
    FromSpeaker,
    Handoff,
    Hub,
    HubClient,
    LocalLink,
    Passport,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
)
from ag2.network.hub.listener import BaseHubListener
from ag2.network.workflow_helpers import set_context
from ag2.policies import TokenBudgetPolicy
from ag2.testing import TestConfig
from ag2.tools.subagents import background_agent_tool
from kit import IDS, PROMPTS, Bus, play, result, settings_of

from graphweft.adapters.ag2 import AG2Adapter

LONG_S = 30.0
"""Nothing here takes so long, unless something hangs."""


class Model(TestConfig):
    """A model of AG2's own tests, whose prompts are kept."""

    def __init__(self, name: str, *script: Any, raising: bool = False) -> None:
        super().__init__(*script, model="fake", raise_tool_errors=raising)
        self.name = name
        self._client: Any = None

    def create(self) -> Any:
        self._client = self._client or super().create()  # one script, however many turns

        async def ask(messages: Sequence[BaseEvent], context: Context, **named: Any) -> Any:
            PROMPTS.append((self.name, list(context.prompt)))
            return await self._client(messages, context, **named)

        return ask


def call(tool: str, call_id: str, **arguments: Any) -> ToolCallEvent:
    """Return a model's call of one tool."""
    return ToolCallEvent(tool, arguments=json.dumps(arguments), id=call_id)


@tool
async def weather(city: str, ctx: Context) -> str:
    """Tell the weather in a city."""
    ctx.variables["city"] = city
    return f"sunny in {city}"


@tool
def book(room: str) -> str:
    """Book a room."""
    raise RuntimeError(f"{room} is taken")


@tool
def to_writer() -> Handoff:
    """Let the writer go on."""
    return Handoff(target="Writer", reason="the plan stands")


@tool
async def to_other(channel: ChannelInject) -> str:
    """Let whoever the workflow says go on."""
    await set_context(channel, "city", "Oslo")
    return "passed on"


def adapter_of(bus: Bus, **settings: Any) -> AG2Adapter:
    """Return an adapter with a client of its own on the bus."""
    return AG2Adapter(**settings_of(bus, **settings))


def agent_of(name: str, *script: Any, raising: bool = False, **named: Any) -> Agent:
    """Return an agent with a scripted model."""
    return Agent(name, f"You are {name}.", config=Model(name, *script, raising=raising), **named)


def working(*last: Any) -> list[Any]:
    """Return the script of the planner: a tool that works, one that fails, and then what is last."""
    return [call("weather", "t1", city="Oslo"), call("book", "t2", room="7"), *last]


class Ends(BaseHubListener):
    """Says when a channel is over, or a turn in it has failed, as an application's own listener would."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.failures: list[BaseException] = []

    async def on_channel_event(self, channel_id: str, kind: str, payload: dict[str, Any]) -> None:
        if kind in {"closed", "expired"}:
            self.over.set()

    async def on_turn_failed(self, channel_id: str, agent_id: str, envelope_id: str, exc: BaseException) -> None:
        self.failures.append(exc)
        self.over.set()


async def workflow(
    adapter: AG2Adapter | None, planner: Agent, writer: Agent, *, static: str = "", where: str = "variables"
) -> tuple[list[Any], str | None]:
    """Run the two in a workflow channel that a person opens, and return what was said there, and what failed."""
    hub = await Hub.open(MemoryKnowledgeStore(), ttl_sweep_interval=0)
    ends = Ends()
    if adapter is not None:
        adapter.attach(hub)
        adapter.attach(hub)  # a second time does nothing
    hub.register_listener(ends)
    first, second = await hub.register(planner), await hub.register(writer)
    person = await HubClient(LocalLink(hub), hub=hub).register_human(Passport(name="Ada", kind="human"))
    transitions = [Transition(FromSpeaker(person.agent_id), AgentTarget(first.agent_id))]
    if static:
        transitions.append(Transition(ToolCalled(static), AgentTarget(second.agent_id)))
    transitions.append(Transition(FromSpeaker(second.agent_id), TerminateTarget()))
    graph = TransitionGraph(initial_speaker=person.agent_id, transitions=transitions)
    knobs: dict[str, Any] = {"graph": graph.to_dict()}
    ids: dict[str, Any] = {"context_vars": IDS} if where == "variables" else {}
    channel = await person.open(
        type="workflow", target=["Planner", "Writer"], knobs=knobs | ids, labels=IDS if where == "labels" else None
    )
    await channel.send("plan a trip")
    await asyncio.wait_for(ends.over.wait(), LONG_S)
    said = [envelope.event_data for envelope in await hub.read_wal(channel.channel_id)][-3:]
    for one in said:
        one.pop("knobs", None)
        one.pop("channel_id", None)
        one.get("routing", {}).pop("target", None)
    if not (await channel.info()).is_terminal():
        await channel.close()
    await hub.close()
    return said, str([f"{type(one).__name__}: {one}" for one in ends.failures]) if ends.failures else None


def conversation(way: str = "works", failing: str = "", attaching: str = "plugin", where: str = "variables") -> Any:
    """The planner's two tool calls, of which one fails, and its hand-over to the writer, whose model may fail."""
    bus = Bus(way)
    adapter = adapter_of(bus)
    static = "to_other" if attaching == "static" else ""
    plugins = [adapter.plugin()] if way != "none" and attaching != "attach" else []
    planner = agent_of(
        "Planner",
        *working(call(static or "to_writer", "t3"), "Over to you."),
        tools=[weather, book, to_writer, to_other],
        plugins=plugins,
    )
    writer = agent_of("Writer", ConnectionError("no model") if failing else "Draft done.", plugins=plugins)
    if attaching in {"attach", "both"}:
        adapter.attach(planner, writer)
        adapter.attach(planner, writer)  # a second time does nothing
    hub = None if way == "none" else adapter
    said, error = asyncio.run(workflow(hub, planner, writer, static=static, where=where))
    adapter.close(0.1)
    return result(adapter.core, bus, error=error, said=said)


def delegated(mode: str = "tool", way: str = "works", failing: str = "") -> Any:
    """The planner lets the writer work within a tool of its own, in one of the ways that AG2 has for that."""
    bus = Bus(way)
    adapter = adapter_of(bus)
    plugins = [adapter.plugin()] if way != "none" else []
    writer = agent_of("Writer", ConnectionError("no model") if failing else "Draft done.", plugins=plugins)

    @tool
    async def ask_writer() -> str:
        """Let the writer work, with nothing of ours."""
        return str((await writer.ask("write")).body)

    behind = background_agent_tool(writer, description="writes", name="background")
    tools = {
        "tool": ("task_Writer", writer.as_tool(description="writes"), {"objective": "write"}),
        "own": ("ask_writer", ask_writer, {}),
        "background": ("background", behind, {"objective": "write"}),
        "network": ("delegate", None, {"target": "Writer", "prompt": "write"}),
    }  # fmt: skip
    name, used, arguments = tools[mode]
    planner = agent_of(
        "Planner", *working(call(name, "t3", **arguments), "Plan done.", "Plan done."),
        tools=[weather, book, *([] if used is None else [used])], plugins=plugins,
    )  # fmt: skip

    async def work() -> tuple[Any, Any, Any]:
        hub = await Hub.open(MemoryKnowledgeStore(), ttl_sweep_interval=0)
        if mode == "network":
            if way != "none":
                adapter.attach(hub)
            await hub.register(planner)
            await hub.register(writer)
        reply = await planner.ask("plan a trip", variables=dict(IDS))
        await asyncio.gather(*(task for task in asyncio.all_tasks() if "_run_and_deliver" in repr(task)))
        events = await reply.context.stream.history.get_events()
        await hub.close()
        return reply.body, dict(reply.context.variables), kinds_of(events)

    body, variables, history = asyncio.run(work())
    adapter.close(0.1)
    return result(adapter.core, bus, body=body, variables=variables, history=history)


def kinds_of(events: Iterable[BaseEvent]) -> list[Any]:
    """Return a history without what is new in each run: ids, times and places of errors."""
    return [
        [type(event).__name__, "" if isinstance(event, ToolErrorEvent) else getattr(event, "content", "")]
        for event in events
    ]


def asked(mode: str = "ask", way: str = "works", failing: str = "") -> Any:
    """One agent alone, asked and asked again, in the ways that AG2 has for that."""
    bus = Bus(way)
    adapter = adapter_of(bus)
    ending = ConnectionError("no model") if failing else "Sunny."
    agent = agent_of(
        "Planner", call("weather", "t1", city="Oslo"), ModelMessageChunk("Sun"), ending, "Still sunny.",
        tools=[weather], plugins=[adapter.plugin()] if way != "none" else [],
    )  # fmt: skip
    kinds: list[str] = []
    error, history, variables, prompt = None, None, None, None
    ids = {name: value for name, value in IDS.items() if name != "chat_id"}

    async def work() -> Any:
        if mode == "run":
            async with agent.run("how is it?", variables=dict(ids)) as run:
                with run.stream.join() as events:
                    run.start()
                    async for event in events:
                        kinds.append(type(event).__name__)
                        if type(event).__name__ == "ModelResponse" and event.content:
                            break
                return await run.result()
        stream = MemoryStream()
        reply = await agent.ask("how is it?", stream=stream, variables=dict(ids))
        if mode == "again":
            return await agent.ask("and now?", stream=stream, variables=dict(ids))
        return await reply.ask("and now?") if mode == "ask" else reply

    async def look() -> None:
        nonlocal history, variables, prompt
        reply = await work()
        history = kinds_of(await reply.context.stream.history.get_events())
        variables, prompt = dict(reply.context.variables), reply.context.prompt

    try:
        asyncio.run(look())
    except ConnectionError as raised:
        error = f"{type(raised).__name__}: {raised}"
    adapter.close(0.1)
    return result(
        adapter.core, bus, error=error, history=history, variables=variables, prompt=prompt, kinds=kinds
    )  # fmt: skip


def own_config(raising: str = "") -> Any:
    """A model that raises what a tool raised, as AG2's own for tests does unless told otherwise."""
    bus = Bus()
    adapter = adapter_of(bus)
    agent = agent_of("Planner", call("book", "t1", room="7"), "never", tools=[book], raising=True)
    adapter.attach(agent)
    error = None
    try:
        asyncio.run(agent.ask("book room 7", variables=dict(IDS)))
    except RuntimeError as raised:
        error = str(raised)
    adapter.close()
    return result(adapter.core, bus, error=error)


def person(way: str = "answers") -> Any:
    """A tool that asks a person, who answers, or cannot be reached, or never answers."""
    bus, now_s = Bus(), [0.0]
    adapter = adapter_of(bus, idle_s=10, clock=lambda: now_s[0])
    asked_for = asyncio.Event()

    @tool
    async def approve(ctx: Context) -> str:
        """Ask a person."""
        return await ctx.input("Shall I?")

    async def answer(event: HumanInputRequest) -> str:
        asked_for.set()
        if way == "never":
            await asyncio.Event().wait()
        if way == "gone":
            raise ConnectionError("nobody there")
        return "yes"

    agent = agent_of("Planner", call("approve", "t1"), "Done.", tools=[approve], hitl_hook=answer)
    adapter.attach(agent)
    error = None

    async def work() -> None:
        turn = asyncio.create_task(agent.ask("go", variables=dict(IDS)))
        await asyncio.wait_for(asked_for.wait(), LONG_S)
        if way == "never":
            for at_s in (11.0, 121.0):
                now_s[0] = at_s
                adapter.core.tick()
            turn.cancel()
        await asyncio.gather(turn)

    try:
        asyncio.run(work())
    except (HumanInputError, asyncio.CancelledError) as raised:
        error = type(raised).__name__
    adapter.close()
    return result(adapter.core, bus, error=error)


def left(way: str = "cancelled") -> Any:
    """A run that its caller gives up while the model is at work: cancelled, or its block left while it is read."""
    bus = Bus()
    adapter = adapter_of(bus)
    contexts: list[Any] = []
    at_work = asyncio.Event()

    class Slow(Model):
        def create(self) -> Any:
            async def ask(messages: Sequence[BaseEvent], context: Context, **named: Any) -> Any:
                contexts.append(context)
                await context.send(ModelMessageChunk("Sun"))
                at_work.set()
                await asyncio.Event().wait()

            return ask

    agent = Agent("Planner", "You are Planner.", config=Slow("Planner"), plugins=[adapter.plugin()])

    async def work() -> None:
        if way == "left":
            async with agent.run("how is it?", variables=dict(IDS)) as run:
                with run.stream.join() as events:
                    run.start()
                    async for event in events:
                        if isinstance(event, ModelMessageChunk):
                            break
                await asyncio.wait_for(at_work.wait(), LONG_S)
            return
        turn = asyncio.create_task(agent.ask("how is it?", variables=dict(IDS)))
        await asyncio.wait_for(at_work.wait(), LONG_S)
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)

    asyncio.run(work())
    adapter.close()
    return result(adapter.core, bus, kept=[context.prompt for context in contexts])


def repeated() -> Any:
    """Three runs of one chat: the blocks of earlier turns are gone in later ones."""
    bus = Bus()
    adapter = adapter_of(bus)
    for number in range(3):
        agent = agent_of("Planner", call("weather", f"t{number}", city="Oslo"), "Sunny.", tools=[weather])
        adapter.attach(agent)
        asyncio.run(agent.ask("how is it?", variables=dict(IDS)))
    adapter.close()
    return result(adapter.core, bus)


def side_by_side(chats: str = "one") -> Any:
    """Two turns of the same agent at the same time, in one chat or in two."""
    bus = Bus()
    adapter = adapter_of(bus)
    both = asyncio.Barrier(2)

    @tool
    async def meet(who: str) -> str:
        """Wait for the other one."""
        await both.wait()
        return who

    async def work(name: str) -> str:
        script = [call("meet", f"t-{name}", who=name), f"{name} done."]
        agent = agent_of("Planner", *script, tools=[meet], plugins=[plugin])
        ids = {**IDS, "chat_id": name if chats == "two" else "c1"}
        return str((await agent.ask("go", variables=ids)).body)

    async def works() -> list[str]:
        return await asyncio.gather(work("a"), work("b"))

    plugin = adapter.plugin()
    bodies = asyncio.run(works())
    adapter.close()
    return result(adapter.core, bus, bodies=bodies, chats=[(e.chatid, e.type) for e in bus.events])


def budgeted(way: str = "works") -> Any:
    """An agent with a policy that keeps prompts short, and a middleware that changes the prompt for good."""

    class Changes(BaseMiddleware):
        async def on_llm_call(self, call_next: Any, events: Any, context: Context) -> Any:
            context.prompt.append("Changed.")
            return await call_next(events, context)

    seen: list[int] = []

    class Counts(TokenBudgetPolicy):
        async def apply(self, prompts: list[str], events: list[BaseEvent], context: Context) -> Any:
            seen.append(sum("block" in prompt for prompt in prompts))
            return await super().apply(prompts, events, context)

    bus = Bus()
    adapter = adapter_of(bus)
    agent = agent_of(
        "Planner", "One.", "Two.",
        plugins=[*([adapter.plugin()] if way == "works" else []), Plugin(middleware=[Middleware(Changes)])],
        assembly=[Counts(max_tokens=1000)],
    )  # fmt: skip

    async def work() -> list[str]:
        reply = await agent.ask("go", variables=dict(IDS))
        await reply.ask("on")
        return reply.context.prompt

    kept = asyncio.run(work())
    adapter.close()
    return result(adapter.core, bus, kept=kept, seen=seen)


def own() -> Any:
    """Events of the runtime's own, within a turn and outside."""
    bus = Bus()
    adapter = adapter_of(bus)

    @tool
    def show(ctx: Context) -> str:
        """Show a plan to a person."""
        adapter.publish(ctx, "ui_tool.call_complete", {"tool_name": "approve_plan", "result": {"approved": True}})
        return "approved"

    agent = agent_of("Planner", call("show", "t1"), "{}", tools=[show], variables={"ag:secret": "x"})
    adapter.attach(agent)
    reply = asyncio.run(agent.ask("go", variables=dict(IDS)))
    adapter.publish(reply.context, "agent.structured_output", {"model_name": "Plan", "structured_data": {"steps": [1]}})
    adapter.publish(reply.context, "No Event", {})
    adapter.publish(None, "no.context", {})
    adapter.close()
    return result(adapter.core, bus)


def ended(way: str) -> Any:
    """A channel whose run ends otherwise than by its last speaker: it expires, or is closed for an expectation."""
    bus = Bus()
    adapter = adapter_of(bus)
    now = ["2026-01-01T00:00:00+00:00"]

    async def work() -> None:
        hub = await Hub.open(MemoryKnowledgeStore(), ttl_sweep_interval=0, clock=lambda: now[0])
        adapter.attach(hub)
        first = await hub.register(agent_of("Planner", plugins=[adapter.plugin()]))
        await hub.register(agent_of("Writer", "Fine.", plugins=[adapter.plugin()]))
        channel = await first.open(type="conversation", target="Writer", labels=IDS, ttl="1h")
        if way == "expired":
            now[0] = "2027-01-01T00:00:00+00:00"
            await hub.expire_due()
        else:
            await channel.close(reason="expectation_violated:turn_within" if way == "violated" else "done")
        await hub.close()

    asyncio.run(work())
    adapter.close()
    return result(adapter.core, bus)


def served(attaching: str) -> Any:
    """An agent that a server of AG2's runs: its context does not say whose it is."""
    bus = Bus()
    adapter = adapter_of(bus)
    agent = agent_of("Planner", "Done.", plugins=[adapter.plugin()] if attaching == "plugin" else [])
    if attaching == "attach":
        adapter.attach(agent)
    context = ConversationContext(MemoryStream(), variables=dict(IDS))
    asyncio.run(agent._ask("go", context=context))
    adapter.close()
    return result(adapter.core, bus)


def turns(way: str, count: str) -> Any:
    """Turns of an agent without tools, and how long each took."""
    bus = Bus(way)
    adapter = adapter_of(bus, budget_ms=50)
    agent = agent_of("Planner", *["Done."] * int(count), plugins=[adapter.plugin()] if way != "none" else [])
    times: list[float] = []

    async def work() -> None:
        for _ in range(int(count)):
            started_s = time.perf_counter()
            await agent.ask("go on", variables=dict(IDS))
            times.append((time.perf_counter() - started_s) * 1000)

    asyncio.run(work())
    adapter.close(0.1)
    return {"ms": times}


if __name__ == "__main__":
    logging.disable()  # the hub logs the failures of a scene
    play(
        asked, budgeted, conversation, delegated, ended, left, own, own_config, person, repeated, served, side_by_side,
        turns,
    )  # fmt: skip
