"""Conversations of real agents of Microsoft Agent Framework with a scripted model, run in an environment that has it.

``python tests/adapters/agent_framework/scenes.py NAME …`` prints what came of one as JSON, in its last line.
"""

import asyncio
import gc
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from agent_framework import (
    Agent,
    AgentContext,
    AgentMiddleware,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    ContextProvider,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    UsageDetails,
    tool,
    workflow,
)
from agent_framework.orchestrations import ConcurrentBuilder, HandoffBuilder, SequentialBuilder
from kit import IDS, PROMPTS, Bus, play, result, settings_of

from graphweft.adapters.agent_framework import AgentFrameworkAdapter
from graphweft.adapters.agent_framework.memory import GraphContextProvider
from graphweft_contracts import ContextReply, ContextRequest
from graphweft_contracts.context import Block

ORIGINS: list[Any] = []
"""Of each message that the model was asked with: the other sessions that it is from."""


class Fake(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):  # type: ignore[misc]
    """A model that says what its script says: a text, a tool call, an error, or an event to wait for."""

    def __init__(self, name: str, script: Sequence[Any] | Callable[[Sequence[Message]], Any]) -> None:
        super().__init__()
        self.name, self.script = name, script if callable(script) else list(script)

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **more: Any
    ) -> Any:
        system = [{"role": "system", "content": options.get("instructions")}]
        ORIGINS.extend(one.additional_properties.get("_attribution", {}).get("origin_session_ids") for one in messages)
        PROMPTS.append((self.name, [*system, *({"role": str(one.role), "content": one.text} for one in messages)]))
        step = self.script(messages) if callable(self.script) else self.script.pop(0)

        def contents() -> list[Content]:
            if isinstance(step, BaseException):
                raise step
            return [Content.from_text(step) if isinstance(step, str) else step]

        if stream:

            async def pieces() -> AsyncIterator[ChatResponseUpdate]:
                if isinstance(step, str):
                    yield ChatResponseUpdate(role="assistant", contents=[Content.from_text("")], response_id="r")
                if isinstance(step, asyncio.Event):
                    await step.wait()
                yield ChatResponseUpdate(role="assistant", contents=contents(), model="fake", response_id="r")

            return ResponseStream(pieces(), finalizer=ChatResponse.from_updates)

        async def whole() -> ChatResponse:
            if isinstance(step, asyncio.Event):
                await step.wait()
            usage = UsageDetails(input_token_count=7, output_token_count=2)
            return ChatResponse(
                messages=[Message("assistant", contents())], model="fake", usage_details=usage, response_id="r"
            )

        return whole()


def call(name: str, call_id: str, **arguments: Any) -> Content:
    """Return a model's call of one tool."""
    return Content.from_function_call(call_id=call_id, name=name, arguments=json.dumps(arguments))


@tool(approval_mode="never_require")
def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


@tool(approval_mode="never_require")
def book(room: str) -> str:
    """Book a room."""
    raise RuntimeError(f"{room} is taken")


def agent_of(name: str, *script: Any, **named: Any) -> Agent:
    """Return an agent with a scripted model."""
    return Agent(Fake(name, script), f"You are {name}.", name=name, **named)


def crew(ending: Any = "Draft done.") -> tuple[Agent, Agent]:
    """Return two agents: the planner calls a tool that works and one that fails, then hands over to the writer."""
    planner = agent_of(
        "Planner",
        call("weather", "t1", city="Oslo"),
        call("book", "t2", room="7"),
        call("handoff_to_Writer", "t3"),
        tools=[weather, book],
        require_per_service_call_history_persistence=True,
    )
    return planner, agent_of("Writer", ending, require_per_service_call_history_persistence=True)


def flow_of(planner: Agent, writer: Agent) -> Any:
    """Return a hand-off workflow of the two that the planner begins, and that ends with the draft."""
    return (
        HandoffBuilder(participants=[planner, writer])
        .with_start_agent(planner)
        .with_termination_condition(lambda said: any(one.text == "Draft done." for one in said))
        .build()
    )


def adapter_of(bus: Bus, **settings: Any) -> AgentFrameworkAdapter:
    """Return an adapter with a client of its own on the bus."""
    return AgentFrameworkAdapter(**settings_of(bus, **settings))


def sessions_of(flow: Any) -> list[Any]:
    """Return what the sessions of a workflow's agents would be stored as."""
    return [executor._session.to_dict() for executor in flow.executors.values()]


def conversation(mode: str, way: str = "works", failing: str = "", attached: str = "workflow") -> dict[str, Any]:
    """The planner's two tool calls, of which one fails, and its hand-over to the writer, whose model may fail."""
    bus = Bus(way)
    adapter = adapter_of(bus)
    planner, writer = crew(ConnectionError("no model") if failing else "Draft done.")
    if way != "none" and attached == "agents":
        adapter.attach(planner, writer)
    flow = flow_of(planner, writer)
    if way != "none":
        adapter.attach(flow)
        adapter.attach(flow, planner)  # a second time does nothing
    answers: list[str] = []

    async def run() -> None:
        if mode == "streamed":
            stream = flow.run("plan a trip", stream=True, function_invocation_kwargs=dict(IDS))
            answers.extend([event.type async for event in stream])
            answers.extend(str(one) for one in (await stream.get_final_response()).get_outputs())
        else:
            done = await flow.run("plan a trip", function_invocation_kwargs=dict(IDS))
            answers.extend(str(one) for one in done.get_outputs())

    error = None
    try:
        asyncio.run(run())
    except ConnectionError as raised:
        error = f"{type(raised).__name__}: {raised}"
    adapter.close(0.1)
    sessions = str(sessions_of(flow))
    return result(adapter.core, bus, answers=answers, error=error, sessions=sessions)


def streamed(ending: str) -> dict[str, Any]:
    """One agent's answer as a stream: read, failing, closed in the middle, forgotten in the middle, or final only."""
    bus, now_s = Bus(), [0.0]
    adapter = adapter_of(bus, idle_s=10, clock=lambda: now_s[0])
    last = ConnectionError("no model") if ending == "fails" else "Sunny."
    agent = agent_of("Planner", call("weather", "t1", city="Oslo"), last, tools=[weather])
    adapter.attach(agent)
    said, error = "", None

    async def read() -> str:
        stream = agent.run("how is it?", stream=True, session=session_of("c1"))
        if ending == "final":
            return str((await stream.get_final_response()).text)
        pieces = ""
        async for update in stream:
            pieces += update.text
            if update.role == "tool" and ending in {"closed", "forgotten"}:
                if ending == "closed":
                    await stream.close()
                break
        return pieces

    try:
        said = asyncio.run(read())
    except ConnectionError as raised:
        error = str(raised)
    gc.collect()
    adapter.core.flush()
    before = len(bus.events)
    now_s[0] = 11.0
    adapter.core.tick()
    adapter.core.flush()
    found = result(adapter.core, bus, said=said, error=error, before_the_timer=before)
    adapter.close()
    return found


def session_of(chat_id: str) -> AgentSession:
    """Return a session with the context variables of a chat, whose id is its own."""
    session = AgentSession(session_id=chat_id)
    session.state["graphweft"] = {name: value for name, value in IDS.items() if name != "chat_id"}
    return session


def repeated(parts: str = "attach", way: str = "works") -> dict[str, Any]:
    """Three runs of one session: by attachment, by the parts at construction, or by the provider alone."""
    bus = Bus(way)
    adapter = adapter_of(bus)
    script = [step for number in range(3) for step in (call("weather", f"t{number}", city="Oslo"), "Sunny.")]
    named: dict[str, Any] = {}
    if parts in {"parts", "provider", "messages"}:
        named = {"context_providers": [adapter.provider(as_messages=parts == "messages")]}
    if parts == "parts":
        named["middleware"] = [adapter.middleware()]
    agent = agent_of("Planner", *script, tools=[weather], **named)
    if parts in {"attach", "parts"}:
        adapter.attach(agent)
    session = session_of("c1")

    async def run() -> list[str]:
        return [(await agent.run("how is it?", session=session)).text for _ in range(3)]

    answers = asyncio.run(run())
    adapter.close(0.1)
    return result(adapter.core, bus, answers=answers, session=session.to_dict())


def failing(parts: str) -> dict[str, Any]:
    """A model that fails at once, behind the provider alone."""
    bus = Bus()
    adapter = adapter_of(bus)
    agent = agent_of("Planner", ConnectionError("no model"), context_providers=[adapter.provider()])
    error = None
    try:
        if parts == "streamed":
            asyncio.run(agent.run("hi", session=session_of("c1"), stream=True).get_final_response())
        else:
            asyncio.run(agent.run("hi", session=session_of("c1")))
    except ConnectionError as raised:
        error = str(raised)
    adapter.close()
    return result(adapter.core, bus, error=error)


class Broken(ContextProvider):
    """A context provider of somebody else's that fails before or behind the model."""

    def __init__(self, where: str) -> None:
        super().__init__("broken")
        self.where = where

    async def before_run(self, **_: Any) -> None:
        if self.where == "before":
            raise ValueError("no memory")

    async def after_run(self, **_: Any) -> None:
        if self.where == "after":
            raise ValueError("no memory")


def broken(where: str) -> dict[str, Any]:
    """What fails beside the model: another provider, before it or behind it."""
    bus = Bus()
    adapter = adapter_of(bus)
    agent = agent_of("Planner", "Sunny.", context_providers=[Broken(where)])
    adapter.attach(agent)
    error = None
    try:
        asyncio.run(agent.run("how is it?", session=session_of("c1")))
    except ValueError as raised:
        error = str(raised)
    adapter.close()
    return result(adapter.core, bus, error=error)


def cancelled() -> dict[str, Any]:
    """A run that its caller gives up while the model is at work."""
    bus = Bus()
    adapter = adapter_of(bus)
    agent = agent_of("Planner", asyncio.Event())
    adapter.attach(agent)

    async def give_up() -> None:
        running = asyncio.ensure_future(agent.run("how is it?", session=session_of("c1")))
        while not PROMPTS:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(give_up())
    adapter.close()
    return result(adapter.core, bus)


def together(parts: str) -> dict[str, Any]:
    """Two chats and, in one of them, two runs, all of one agent at the same time."""
    bus = Bus()
    adapter = adapter_of(bus)
    gate, arrived = asyncio.Event(), list[str]()

    @tool(approval_mode="never_require")
    async def meet(who: str) -> str:
        """Wait for the others."""
        arrived.append(who)
        if len(arrived) == 3:
            gate.set()
        await gate.wait()
        return who

    def script(messages: Sequence[Message]) -> Any:
        who = next(message.text for message in reversed(messages) if message.role == "user")
        return f"for {who}" if messages[-1].role == "tool" else call("meet", f"t{who}", who=who)

    providers = [adapter.provider()] if parts == "provider" else []
    agent = Agent(Fake("Planner", script), "You plan.", name="Planner", tools=[meet], context_providers=providers)
    if parts == "attach":
        adapter.attach(agent)

    async def run() -> list[str]:
        shared, other = session_of("c1"), session_of("c2")
        runs = [agent.run(who, session=chat) for who, chat in (("a", shared), ("b", shared), ("c", other))]
        return [answer.text for answer in await asyncio.gather(*runs)]

    answers = asyncio.run(run())
    adapter.close()
    chats = [(event.chatid, event.data.get("response")) for event in bus.events if event.type == "agent.turn_complete"]
    found = result(adapter.core, bus, answers=answers, chats=sorted(chats))
    found["prompts"] = [prompt[0]["content"] for _, prompt in PROMPTS]
    return found


def nested() -> dict[str, Any]:
    """An agent that is another one's tool: its turn is one of the same chat."""
    bus = Bus()
    adapter = adapter_of(bus)
    expert = agent_of("Expert", "It rains.")
    planner = agent_of("Planner", call("Expert", "t1", task="weather?"), "Umbrella.", tools=[expert.as_tool()])
    adapter.attach(planner, expert)
    answer = asyncio.run(planner.run("how is it?", session=session_of("c1"))).text
    adapter.close()
    return result(adapter.core, bus, answer=answer)


class Again(AgentMiddleware):
    """Runs an agent twice."""

    async def process(self, context: AgentContext, call_next: Any) -> None:
        await call_next()
        await call_next()


def looped() -> dict[str, Any]:
    """An agent that a middleware runs twice within one run."""
    bus = Bus()
    adapter = adapter_of(bus)
    agent = agent_of("Planner", "Draft.", "Better.", middleware=[Again()])
    adapter.attach(agent)
    answer = asyncio.run(agent.run("write", session=session_of("c1"))).text
    adapter.close()
    return result(adapter.core, bus, answer=answer)


def orchestrated(kind: str) -> dict[str, Any]:
    """Two agents, one after the other behind one agent, or side by side, without ids: the workflow is the chat."""
    bus = Bus()
    adapter = adapter_of(bus, app_id="shop")
    agents = [agent_of("Planner", "Plan."), agent_of("Writer", "Draft.")]
    builder: Any = SequentialBuilder if kind == "sequential" else ConcurrentBuilder
    flow = builder(participants=agents).build()
    crew = flow.as_agent("crew") if kind == "sequential" else flow
    adapter.attach(crew)

    async def run() -> None:
        await crew.run("go")

    asyncio.run(run())
    adapter.close()
    found = result(adapter.core, bus)
    found["chats"] = [chat == flow.id for _, chat, *_ in found["ids"]]
    return found


def functional() -> dict[str, Any]:
    """A workflow that is a function, run twice."""
    bus = Bus()
    adapter = adapter_of(bus, app_id="shop")
    agent = agent_of("Planner", "Plan.", "Another.")

    @workflow
    async def plan(text: str) -> str:
        return str((await agent.run(text)).text)

    flow = plan.build()
    adapter.attach(agent, flow)

    async def run() -> list[Any]:
        first = (await flow.run("go")).get_outputs()
        stream = flow.run("go", stream=True)
        return [*first, *(await stream.get_final_response()).get_outputs()]

    answers = asyncio.run(run())
    adapter.close()
    found = result(adapter.core, bus, answers=answers)
    found["chats"] = len({chat for _, chat, *_ in found["ids"]})
    return found


def paused() -> dict[str, Any]:
    """A hand-off workflow that asks its user in the middle: one run, in two calls."""
    bus = Bus()
    adapter = adapter_of(bus)
    planner, writer = crew()
    planner.client.script.insert(0, "Where to?")
    flow = flow_of(planner, writer)
    adapter.attach(flow)

    async def run() -> None:
        first = await flow.run("plan a trip", function_invocation_kwargs=dict(IDS))
        [request] = first.get_request_info_events()
        answer = {request.request_id: [Message("user", ["Oslo"])]}
        await flow.run(responses=answer, function_invocation_kwargs=dict(IDS))

    asyncio.run(run())
    adapter.close()
    return result(adapter.core, bus)


def unplaced() -> dict[str, Any]:
    """Runs without a session: each is a chat of its own; and one without an app: nothing is told."""
    bus = Bus()
    adapter = adapter_of(bus, app_id="shop", workflow_name="Sales")
    agent = agent_of("Planner", "One.", "Two.")
    adapter.attach(agent)

    async def run() -> None:
        await agent.run("go")
        await agent.run("go")

    asyncio.run(run())
    adapter.close()
    found = result(adapter.core, bus, chats=len({event.chatid for event in bus.events}))
    nowhere = adapter_of(Bus())
    agent = agent_of("Planner", "One.")
    nowhere.attach(agent)
    asyncio.run(agent.run("go"))
    nowhere.close()
    return {**found, "nowhere": nowhere.core.stats.unplaced, "told_nowhere": nowhere.core.stats.published}


def secrets(carried: str) -> dict[str, Any]:
    """Arguments for tools may be secrets: only ids go to the bus, and what is named."""
    bus = Bus()
    adapter = adapter_of(bus, carried=["tier"] if carried == "named" else None)
    agent = agent_of("Planner", "One.")
    adapter.attach(agent)
    arguments = {**IDS, "token": "hunter2", "tier": "gold"}
    asyncio.run(agent.run("go", function_invocation_kwargs=arguments))
    adapter.close()
    contexts = [event.context for event in bus.events]
    return result(adapter.core, bus, contexts=[*contexts, *(request.context for request in bus.requests)])


def own() -> dict[str, Any]:
    """Events of the runtime's own, within a run and outside."""
    bus = Bus()
    adapter = adapter_of(bus)
    session = session_of("c1")

    @tool(approval_mode="never_require")
    def approve() -> str:
        """Ask somebody."""
        adapter.publish(agent, session, "ui_tool.call_complete", {"tool_name": "approve"})
        return "yes"

    agent = agent_of("Planner", call("approve", "t1"), "Done.", tools=[approve])
    adapter.attach(agent)
    asyncio.run(agent.run("go", session=session))
    adapter.publish(agent, session, "agent.structured_output", {"model_name": "Plan", "structured_data": {}})
    adapter.publish(agent, session, "No Event", {})
    adapter.close()
    return result(adapter.core, bus)


class Graph(Bus):
    """A bus that answers searches: an index by one row, memories by what was remembered within the same scope."""

    async def request(self, request: ContextRequest) -> ContextReply:
        """Answer as a responder does."""
        reply = await super().request(request)
        search = request.search
        if search is None or self.way != "works":
            return reply
        if search.memory is None:
            rows, text = [{"text": "cakes", "score": 1.0}], "[Score: 1.000]\ncakes"
        else:
            scope = search.memory.given
            said = [
                {**message, "score": 0.5, "timestamp": "2026-02-01T10:00:00.000000Z"}
                for event in self.events
                if event.type == "memory.add" and {name: event.data.get(name) for name in scope} == scope
                for message in event.data["messages"]
            ]
            rows, text = said[: search.top_k], "not as an agent reads it"
        block = Block(name="search", format="results", value=rows, rows=len(rows), rule="search", query="search")
        return reply.model_copy(update={"blocks": (block,), "text": text if rows else ""})


def provided(adapter: AgentFrameworkAdapter, *script: Any, **options: Any) -> Agent:
    """Return an agent with memories, to which the adapter is attached."""
    memories = GraphContextProvider(adapter, **{"memory_enabled": True, "user_id": "u1", **options})
    agent = agent_of("Baker", *script, context_providers=[memories])
    adapter.attach(agent)
    return agent


def remembered(bus: Bus, adapter: AgentFrameworkAdapter, **more: Any) -> dict[str, Any]:
    """Return what is to be looked at of memories."""
    events = [event for event in bus.events if event.type == "memory.add"]
    return result(
        adapter.core,
        bus,
        memories=[
            {**{name: value for name, value in event.data.items() if name != "context"}, "id": event.id}
            for event in events
        ],
        searches=[request.search.model_dump(mode="json") for request in bus.requests if request.search],
        **more,
    )


def recalled(way: str = "works", what: str = "") -> dict[str, Any]:
    """What is said in one session and asked for in another one; an index is searched at the same time."""
    bus = Graph(way)
    if what == "off":
        os.environ["GRAPHWEFT_CAPTURE"] = "off"

    def redact(type: str, data: dict[str, Any]) -> dict[str, Any] | None:
        if what == "withheld":
            return None
        if type == "memory.add":
            data["messages"] = [{**one, "text": one["text"].replace("nuts", "***")} for one in data["messages"]]
        if "query" in data:
            data["query"] = data["query"].replace("cake", "***")
        return data

    adapter = adapter_of(bus, redact=redact if what in {"redacted", "withheld"} else None)
    options = {"index_name": "chunks", "index_type": "fulltext", "top_k": 3}
    agent = (
        provided(adapter, "Noted.", "Plum cake.", **options)
        if way != "none"
        else agent_of("Baker", "Noted.", "Plum cake.")
    )
    first, second = session_of("c1"), session_of("c2")

    async def run() -> list[str]:
        said = await agent.run("I am allergic to nuts.", session=first)
        return [said.text, (await agent.run("Which cake?", session=second)).text]

    answers = asyncio.run(run())
    adapter.close(0.1)
    states = [first.to_dict()["state"], second.to_dict()["state"]]
    return remembered(bus, adapter, answers=answers, states=states, origins=ORIGINS)


def again() -> dict[str, Any]:
    """A run that is repeated from a stored session, with another answer; and one whose model fails."""
    bus = Graph()
    adapter = adapter_of(bus)
    agent = provided(adapter, "Noted.", "Got it.", "Fine.", ConnectionError("no model"))
    session = session_of("c1")
    stored = session.to_dict()

    async def run() -> None:
        await agent.run("I am allergic to nuts.", session=session)
        repeated = AgentSession.from_dict(stored)
        await agent.run("I am allergic to nuts.", session=repeated)
        history = [Message("user", ["Before."]), Message("assistant", ["Said."]), Message("user", ["Now."])]
        await agent.run(history, session=repeated)
        await asyncio.gather(agent.run("lost", session=repeated), return_exceptions=True)

    asyncio.run(run())
    adapter.close()
    return remembered(bus, adapter)


def threads(way: str) -> dict[str, Any]:
    """Memories of each session alone; bound to one session, those of no other."""
    bus = Graph()
    adapter = adapter_of(bus)
    memories = GraphContextProvider(adapter, memory_enabled=True, scope_to_per_operation_thread_id=True)
    agent = agent_of("Baker", *"abcd", context_providers=[memories])
    adapter.attach(agent)
    conflict = None
    if way == "bound":
        memories.thread_created("c1")
        memories.thread_created(None)
        memories.thread_created("c1")
        try:
            memories.thread_created("c2")
        except ValueError as error:
            conflict = str(error)

    async def run() -> None:
        async with memories:
            for chat, text in (("c1", "one"), ("c2", "two"), ("c1", "three"), ("c2", "four")):
                await agent.run(text, session=session_of(chat))

    asyncio.run(run())
    adapter.close()
    return remembered(bus, adapter, conflict=conflict)


def refusals() -> dict[str, Any]:
    """Options that can never work, and those that belong elsewhere now."""
    adapter = adapter_of(Bus())
    wrong: list[dict[str, Any]] = [
        {},
        {"index_name": "chunks", "index_type": "hybrid"},
        {"index_name": "chunks", "index_type": "graph"},
        {"index_name": "chunks", "retrieval_query": "THIS IS NOT CYPHER"},
        {"index_name": "chunks", "top_k": 0},
        {"index_name": "chunks", "message_history_count": 0},
        {"memory_enabled": True},
        {"memory_enabled": True, "user_id": ""},
        {"memory_enabled": True, "user_id": "u1", "memory_roles": ("tool",)},
        {"memory_enabled": True, "user_id": "u1", "memory_label": "Note"},
        {"index_name": "chunks", "uri": "bolt://localhost"},
        {"index_name": "chunks", "username": "neo4j"},
        {"index_name": "chunks", "password": "secret"},
        {"index_name": "chunks", "embedder": object()},
        {"index_name": "chunks", "topk": 1},
    ]
    said: list[str] = []
    for options in wrong:
        try:
            GraphContextProvider(adapter, **options)
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    provider = GraphContextProvider(adapter, index_name="chunks")
    return {"said": said, "kinds": [isinstance(provider, kind) for kind in (GraphContextProvider, ContextProvider)]}


def refused() -> dict[str, Any]:
    """What cannot be attached to."""
    adapter = adapter_of(Bus())
    try:
        adapter.attach(Fake("none", []))
    except TypeError as error:
        return {"error": str(error)}
    return {}


def turns(way: str, count: str) -> dict[str, Any]:
    """So many turns of one agent, beside a bus of that way; "none" is without an adapter."""
    bus = Bus(way)
    adapter = adapter_of(bus, budget_ms=50)
    agent = agent_of("Planner", *["Sunny."] * int(count))
    if way != "none":
        adapter.attach(agent)

    async def run() -> list[float]:
        took: list[float] = []
        session = session_of("c1")
        for _ in range(int(count)):
            session.state.pop("in_memory", None)  # the history's own cost is none of ours
            started_s = time.perf_counter()
            await agent.run("how is it?", session=session)
            took.append((time.perf_counter() - started_s) * 1000)
        return took

    took = asyncio.run(run())
    adapter.close(0.1)
    return {"ms": took}


if __name__ == "__main__":
    play(
        again,
        broken,
        cancelled,
        conversation,
        failing,
        functional,
        looped,
        nested,
        orchestrated,
        own,
        paused,
        recalled,
        refusals,
        refused,
        repeated,
        secrets,
        streamed,
        threads,
        together,
        turns,
        unplaced,
    )
