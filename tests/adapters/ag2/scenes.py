"""Conversations of real AG2 1.x agents with a scripted model, run in an environment that has AG2.

``python tests/adapters/ag2/scenes.py NAME …`` prints the result of a scene as JSON, in its last line.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from ag2 import Agent, Context, MemoryStream, Plugin, tool
from ag2.context import ConversationContext
from ag2.events import BaseEvent, HumanInputRequest, ModelMessageChunk, ModelRequest, ToolCallEvent, ToolErrorEvent
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
from kit import CONCURRENT, IDS, PROMPTS, Scene, cancel, main, outcome, timed

from graphweft_runtimes.ag2 import AG2Adapter

LONG_S = 30.0
"""Nothing here takes so long, unless something hangs."""


def said(event: BaseEvent) -> dict[str, str]:
    """Return an event of a history as a message."""
    if isinstance(event, ModelRequest):
        return {"role": "user", "content": "\n".join(str(getattr(part, "content", part)) for part in event.parts)}
    return {"role": type(event).__name__, "content": ""}


class Model(TestConfig):
    """A model of AG2's own tests, whose prompts are kept."""

    def __init__(self, name: str, *script: Any, raising: bool = False) -> None:
        super().__init__(*script, model="fake", raise_tool_errors=raising)
        self.name = name
        self.asked = asyncio.Event()
        self.second_after: asyncio.Event | None = None
        """What the second answer waits for."""
        self._client: Any = None

    def create(self) -> Any:
        self._client = self._client or super().create()  # one script, however many turns

        async def ask(messages: Sequence[BaseEvent], context: Context, **named: Any) -> Any:
            system = [{"role": "system", "content": part} for part in context.prompt]
            PROMPTS.append((self.name, [*system, *(said(each) for each in messages)]))
            if self.second_after is not None and self.asked.is_set():
                await self.second_after.wait()
            self.asked.set()
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
    """Hand over to the writer."""
    return Handoff(target="Writer", reason="the plan stands")


@tool
async def to_other(channel: ChannelInject) -> str:
    """Let the agent continue that the workflow names."""
    await set_context(channel, "city", "Oslo")
    return "passed on"


def agent_of(name: str, *script: Any, raising: bool = False, **named: Any) -> Agent:
    """Return an agent with a scripted model."""
    return Agent(name, f"You are {name}.", config=Model(name, *script, raising=raising), **named)


class Ends(BaseHubListener):
    """Notes that a channel is over or a turn in it has failed, like an application's own listener."""

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
    """Run the two in a workflow channel that a person opens, and return its messages and errors."""
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
    return said, "; ".join(f"{type(one).__name__}: {one}" for one in ends.failures) or None


def conversation(scene: Scene, attaching: str = "plugin", where: str = "variables", failing: str = "") -> Any:
    """The planner calls two tools, one of which fails, and hands over to the writer, whose model may fail."""
    adapter = scene.adapter()
    static = "to_other" if attaching == "static" else ""
    plugins = [adapter.plugin()] if scene.attached and attaching != "attach" else []
    planner = agent_of(
        "Planner",
        *(call("weather", "t1", city="Oslo"), call("book", "t2", room="7"), call(static or "to_writer", "t3")),
        "Over to you.",
        tools=[weather, book, to_writer, to_other],
        plugins=plugins,
    )
    writer = agent_of("Writer", ConnectionError("no model") if failing else "Draft done.", plugins=plugins)
    if attaching in {"attach", "both"}:
        adapter.attach(planner, writer)
        adapter.attach(planner, writer)  # a second time does nothing
    hub = adapter if scene.attached else None
    said, error = asyncio.run(workflow(hub, planner, writer, static=static, where=where))
    return {"answers": said, "error": error}


def delegated(scene: Scene, mode: str = "tool", failing: str = "") -> Any:
    """The planner lets the writer work within a tool, in one of the ways that AG2 has for that."""
    adapter = scene.adapter()
    plugins = [adapter.plugin()] if scene.attached else []
    writer = agent_of("Writer", ConnectionError("no model") if failing else "Draft done.", plugins=plugins)

    @tool
    async def ask_writer() -> str:
        """Let the writer work, without the adapter's help."""
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
        "Planner", call(name, "t1", **arguments), "Plan done.", "Plan done.",
        tools=[] if used is None else [used], plugins=plugins,
    )  # fmt: skip

    if mode == "background":  # one that begins after the planner's turn has a run of its own
        planner.config.second_after = writer.config.asked

    async def work() -> Any:
        hub = await Hub.open(MemoryKnowledgeStore(), ttl_sweep_interval=0)
        if mode == "network":
            if scene.attached:
                adapter.attach(hub)
            await hub.register(planner)
            await hub.register(writer)
        reply = await planner.ask("plan a trip", variables=dict(IDS))
        await asyncio.gather(*(task for task in asyncio.all_tasks() if "_run_and_deliver" in repr(task)))
        events = await reply.context.stream.history.get_events()
        await hub.close()
        return reply.body, dict(reply.context.variables), kinds_of(events)

    answers, error = outcome(lambda: asyncio.run(work()))
    return {"answers": answers, "error": error}


def kinds_of(events: Iterable[BaseEvent]) -> list[Any]:
    """Return a history without the ids, times and places of errors, which differ in each run."""
    return [
        [type(event).__name__, "" if isinstance(event, ToolErrorEvent) else getattr(event, "content", "")]
        for event in events
    ]


def asked(scene: Scene, mode: str = "ask", failing: str = "") -> Any:
    """One agent alone answers twice, in the ways that AG2 has for that."""
    ending = ConnectionError("no model") if failing else "Sunny."
    agent = agent_of(
        "Planner", call("weather", "t1", city="Oslo"), ModelMessageChunk("Sun"), ending, "Still sunny.",
        tools=[weather], plugins=[scene.adapter().plugin()] if scene.attached else [],
    )  # fmt: skip
    kinds: list[str] = []
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

    async def look() -> Any:
        reply = await work()
        history = kinds_of(await reply.context.stream.history.get_events())
        return [history, dict(reply.context.variables), reply.context.prompt]

    answers, error = outcome(lambda: asyncio.run(look()))
    return {"answers": [answers, kinds], "error": error, "instructions": answers and answers[-1], "kinds": kinds}


def own_config(scene: Scene) -> Any:
    """A model raises the error of a tool, as AG2's own model for tests does by default."""
    agent = agent_of("Planner", call("book", "t1", room="7"), "never", tools=[book], raising=True)
    scene.adapter().attach(agent)
    return {"error": outcome(lambda: asyncio.run(agent.ask("book room 7", variables=dict(IDS))))[1]}


def person(scene: Scene, way: str = "answers") -> Any:
    """A tool asks a person: one that answers, cannot be reached, or never answers."""
    adapter = scene.adapter()
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

    async def work() -> None:
        turn = asyncio.create_task(agent.ask("go", variables=dict(IDS)))
        await asyncio.wait_for(asked_for.wait(), LONG_S)
        if way == "never":
            scene.wait()  # an open tool call has more time than that
            scene.wait(12)
            turn.cancel()
        await asyncio.gather(turn)

    return {"error": outcome(lambda: asyncio.run(work()))[1]}


def left(scene: Scene, way: str = "cancelled") -> Any:
    """The caller gives up a run while the model works: it cancels its task, or leaves the block that reads it."""
    adapter = scene.adapter()
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

    async def work() -> str | None:
        if way == "left":
            async with agent.run("how is it?", variables=dict(IDS)) as run:
                with run.stream.join() as events:
                    run.start()
                    async for event in events:
                        if isinstance(event, ModelMessageChunk):
                            break
                await asyncio.wait_for(at_work.wait(), LONG_S)
            return None
        turn = asyncio.create_task(agent.ask("how is it?", variables=dict(IDS)))
        await asyncio.wait_for(at_work.wait(), LONG_S)
        return await cancel(turn)

    error = asyncio.run(work())
    [context] = contexts
    return {"error": error, "instructions": context.prompt}


def repeated(scene: Scene) -> Any:
    """Three runs of one chat: the blocks of earlier turns are gone in later ones."""
    for number in range(3):
        agent = agent_of("Planner", call("weather", f"t{number}", city="Oslo"), "Sunny.", tools=[weather])
        scene.adapter().attach(agent)
        asyncio.run(agent.ask("how is it?", variables=dict(IDS)))


def together(scene: Scene) -> Any:
    """Runs of several chats, and two of one chat, at the same time: each waits for the others in its tool."""
    everyone = asyncio.Barrier(len(CONCURRENT))
    plugin = scene.adapter().plugin()

    @tool(name="weather")
    async def meet(city: str) -> str:
        """Tell the weather once all ask for it."""
        await everyone.wait()
        return f"sunny in {city}"

    async def work(chat: str, city: str) -> str:
        agent = agent_of("Planner", call("weather", f"t-{city}", city=city), city, tools=[meet], plugins=[plugin])
        return str((await agent.ask("go", variables={**IDS, "chat_id": chat})).body)

    async def works() -> list[str]:
        return await asyncio.gather(*(work(*run) for run in CONCURRENT))

    return {"answers": asyncio.run(works())}


def budgeted(scene: Scene) -> Any:
    """An agent has a policy that keeps prompts short, and a middleware that changes the prompt for good."""

    class Changes(BaseMiddleware):
        async def on_llm_call(self, call_next: Any, events: Any, context: Context) -> Any:
            context.prompt.append("Changed.")
            return await call_next(events, context)

    seen: list[int] = []

    class Counts(TokenBudgetPolicy):
        async def apply(self, prompts: list[str], events: list[BaseEvent], context: Context) -> Any:
            seen.append(str([*prompts, *map(said, events)]).count("block"))
            return await super().apply(prompts, events, context)

    adapter = scene.adapter()
    agent = agent_of(
        "Planner", "One.", "Two.",
        plugins=[*([adapter.plugin()] if scene.attached else []), Plugin(middleware=[Middleware(Changes)])],
        assembly=[Counts(max_tokens=1000)],
    )  # fmt: skip

    async def work() -> list[str]:
        reply = await agent.ask("go", variables=dict(IDS))
        await reply.ask("on")
        return reply.context.prompt

    return {"prompt": asyncio.run(work()), "seen": seen}


def own(scene: Scene) -> Any:
    """The runtime publishes events of its own, within a turn and outside."""
    adapter = scene.adapter()

    @tool
    def approve(ctx: Context) -> str:
        """Show a plan to a person."""
        adapter.publish(ctx, "ui_tool.call_complete", {"tool_name": "approve_plan", "result": {"approved": True}})
        return "approved"

    agent = agent_of("Planner", call("approve", "t1"), "{}", tools=[approve], variables={"ag:secret": "x"})
    adapter.attach(agent)
    reply = asyncio.run(agent.ask("go", variables=dict(IDS)))
    adapter.publish(reply.context, "agent.structured_output", {"model_name": "Plan", "structured_data": {"steps": [1]}})
    adapter.publish(reply.context, "No Event", {})
    adapter.publish(None, "no.context", {})


def ended(scene: Scene, way: str) -> Any:
    """A channel does not end by its last speaker: it expires, is closed, or is closed for an expectation."""
    adapter = scene.adapter()
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


def served(scene: Scene, attaching: str) -> Any:
    """A server of AG2's runs an agent: its context does not name the agent."""
    adapter = scene.adapter()
    agent = agent_of("Planner", "Done.", plugins=[adapter.plugin()] if attaching == "plugin" else [])
    if attaching == "attach":
        adapter.attach(agent)
    context = ConversationContext(MemoryStream(), variables=dict(IDS))
    asyncio.run(agent._ask("go", context=context))


def turns(scene: Scene, count: str) -> Any:
    """Time turns of an agent without tools."""
    adapter = scene.adapter(budget_ms=50)
    agent = agent_of("Planner", *["Done."] * int(count), plugins=[adapter.plugin()] if scene.attached else [])
    with asyncio.Runner() as loop:
        return timed(count, lambda: loop.run(agent.ask("go on", variables=dict(IDS))))


if __name__ == "__main__":
    logging.disable()  # the hub logs the failures of a scene
    main(AG2Adapter, globals())
