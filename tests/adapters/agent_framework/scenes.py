"""Conversations of real agents of Microsoft Agent Framework with a scripted model, run in an environment that has it.

``python tests/adapters/agent_framework/scenes.py NAME …`` prints the result of a scene as JSON, in its last line.
"""

import asyncio
import gc
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal

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
from kit import CONCURRENT, IDS, PROMPTS, Bus, Result, Scene, cancel, main, outcome, settings_of, timed

from graphweft_contracts import ContextReply, ContextRequest
from graphweft_contracts.context import Block
from graphweft_runtimes.agent_framework import AgentFrameworkAdapter
from graphweft_runtimes.agent_framework.memory import GraphContextProvider

ORIGINS: list[Any] = []
"""For each message of a prompt, the other sessions that it comes from."""


class Fake(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):  # type: ignore[misc]
    """A model that answers by its script: a text, a tool call, an error, or an event to wait for."""

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


def sessions_of(flow: Any) -> list[Any]:
    """Return the sessions of a workflow's agents as they would be stored."""
    return [executor._session.to_dict() for executor in flow.executors.values()]


def conversation(scene: Scene, mode: str, attached: str = "workflow", failing: str = "") -> dict[str, Any]:
    """The planner calls two tools, one of which fails, and hands over to the writer, whose model may fail."""
    adapter = scene.adapter()
    planner, writer = crew(ConnectionError("no model") if failing else "Draft done.")
    if scene.attached and attached == "agents":
        adapter.attach(planner, writer)
    flow = flow_of(planner, writer)
    if scene.attached:
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

    _, error = outcome(lambda: asyncio.run(run()))
    return {"answers": answers, "error": error, "kept": str(sessions_of(flow))}


def streamed(scene: Scene, ending: str) -> dict[str, Any]:
    """One agent's answer as a stream: read, failing, closed in the middle, forgotten in the middle, or final only."""
    last = ConnectionError("no model") if ending == "fails" else "Sunny."
    agent = agent_of("Planner", call("weather", "t1", city="Oslo"), last, tools=[weather])
    adapter = scene.adapter()
    adapter.attach(agent)

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

    said, error = outcome(lambda: asyncio.run(read()))
    gc.collect()
    adapter.core.flush()
    before = len(scene.bus.events)
    scene.wait()
    scene.stop_recording()
    return {"said": said, "error": error, "before_the_timer": before}


def session_of(chat_id: str) -> AgentSession:
    """Return a session with the context variables of a chat, whose id is its own."""
    session = AgentSession(session_id=chat_id)
    session.state["graphweft"] = {name: value for name, value in IDS.items() if name != "chat_id"}
    return session


def repeated(scene: Scene, parts: str = "attach") -> dict[str, Any]:
    """Three runs of one session: by attachment, by the parts at construction, or by the provider alone."""
    adapter = scene.adapter()
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

    return {"answers": asyncio.run(run()), "kept": session.to_dict()}


def pictured(scene: Scene) -> dict[str, Any]:
    """A question that ends with a picture."""
    agent = agent_of("Planner", "A cat.")
    scene.adapter().attach(agent)
    picture = Content.from_uri("data:image/png;base64,AA==", media_type="image/png")
    question = Message("user", [Content.from_text("What is it?"), picture])
    return {"answers": asyncio.run(agent.run(question, session=session_of("c1"))).text, "kept": str(question)}


def failing(scene: Scene, mode: str) -> dict[str, Any]:
    """A model that fails at once, with the provider alone."""
    agent = agent_of("Planner", ConnectionError("no model"), context_providers=[scene.adapter().provider()])

    async def run() -> None:
        if mode == "streamed":
            await agent.run("hi", session=session_of("c1"), stream=True).get_final_response()
        else:
            await agent.run("hi", session=session_of("c1"))

    return {"error": outcome(lambda: asyncio.run(run()))[1]}


class Broken(ContextProvider):
    """Another context provider, which fails before or after the model."""

    def __init__(self, where: str) -> None:
        super().__init__("broken")
        self.where = where

    async def before_run(self, **_: Any) -> None:
        if self.where == "before":
            raise ValueError("no memory")

    async def after_run(self, **_: Any) -> None:
        if self.where == "after":
            raise ValueError("no memory")


def broken(scene: Scene, where: str) -> dict[str, Any]:
    """Another provider fails, before the model or after it."""
    agent = agent_of("Planner", "Sunny.", context_providers=[Broken(where)])
    scene.adapter().attach(agent)
    return {"error": outcome(lambda: asyncio.run(agent.run("how is it?", session=session_of("c1"))))[1]}


def cancelled(scene: Scene) -> dict[str, Any]:
    """The caller gives up a run while the model works."""
    asked = asyncio.Event()

    class Never(asyncio.Event):
        """Says when somebody begins to wait for it."""

        async def wait(self) -> Literal[True]:
            asked.set()
            return await super().wait()

    agent = agent_of("Planner", Never())
    scene.adapter().attach(agent)

    async def give_up() -> str:
        running = asyncio.ensure_future(agent.run("how is it?", session=session_of("c1")))
        await asked.wait()
        return await cancel(running)

    return {"error": asyncio.run(give_up())}


def together(scene: Scene, parts: str) -> dict[str, Any]:
    """Runs of several chats, and two of one chat, all of one agent at the same time: each waits for the others."""
    adapter = scene.adapter()
    everyone = asyncio.Barrier(len(CONCURRENT))

    @tool(name="weather", approval_mode="never_require")
    async def meet(city: str) -> str:
        """Tell the weather once all ask for it."""
        await everyone.wait()
        return f"sunny in {city}"

    def script(messages: Sequence[Message]) -> Any:
        city = next(message.text[0] for message in reversed(messages) if message.role == "user")
        return city if messages[-1].role == "tool" else call("weather", f"t-{city}", city=city)

    providers = [adapter.provider()] if parts == "provider" else []
    agent = Agent(Fake("Planner", script), "You plan.", name="Planner", tools=[meet], context_providers=providers)
    if parts == "attach":
        adapter.attach(agent)

    async def run() -> list[str]:
        sessions = {chat: session_of(chat) for chat, _ in CONCURRENT}
        runs = [agent.run(city, session=sessions[chat]) for chat, city in CONCURRENT]
        return [answer.text for answer in await asyncio.gather(*runs)]

    return {"answers": asyncio.run(run())}


def nested(scene: Scene) -> dict[str, Any]:
    """An agent is another one's tool."""
    writer = agent_of("Writer", "Draft done.")
    planner = agent_of("Planner", call("Writer", "t1", task="write"), "Plan done.", tools=[writer.as_tool()])
    scene.adapter().attach(planner, writer)
    return {"answers": asyncio.run(planner.run("plan a trip", session=session_of("c1"))).text}


class Again(AgentMiddleware):
    """Runs an agent twice."""

    async def process(self, context: AgentContext, call_next: Any) -> None:
        await call_next()
        await call_next()


def looped(scene: Scene) -> dict[str, Any]:
    """An agent that a middleware runs twice within one run."""
    agent = agent_of("Planner", "Draft.", "Better.", middleware=[Again()])
    scene.adapter().attach(agent)
    return {"answers": asyncio.run(agent.run("write", session=session_of("c1"))).text}


def orchestrated(scene: Scene, kind: str) -> dict[str, Any]:
    """Two agents, one after the other behind one agent, or side by side, without ids: the workflow is the chat."""
    adapter = scene.adapter(app_id="shop")
    agents = [agent_of("Planner", "Plan."), agent_of("Writer", "Draft.")]
    builder: Any = SequentialBuilder if kind == "sequential" else ConcurrentBuilder
    flow = builder(participants=agents).build()
    crew = flow.as_agent("crew") if kind == "sequential" else flow
    adapter.attach(crew)

    async def run() -> None:
        await crew.run("go")

    asyncio.run(run())
    return {"flow": flow.id}


def functional(scene: Scene) -> dict[str, Any]:
    """A workflow that is a function, run twice."""
    adapter = scene.adapter(app_id="shop")
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

    return {"answers": asyncio.run(run())}


def paused(scene: Scene) -> None:
    """A hand-off workflow that asks its user in the middle: one run, in two calls."""
    adapter = scene.adapter()
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


def unplaced(scene: Scene) -> dict[str, Any]:
    """Runs without a session: each is a chat of its own; and one without an app, which emits nothing."""
    adapter = scene.adapter(app_id="shop", workflow_name="Sales")
    agent = agent_of("Planner", "One.", "Two.")
    adapter.attach(agent)

    async def run() -> None:
        await agent.run("go")
        await agent.run("go")

    asyncio.run(run())
    nowhere = AgentFrameworkAdapter(**settings_of(Bus()))
    agent = agent_of("Planner", "One.")
    nowhere.attach(agent)
    asyncio.run(agent.run("go"))
    nowhere.close()
    return {"nowhere": [nowhere.core.stats.unplaced, nowhere.core.stats.published]}


def secrets(scene: Scene, carried: str) -> Result:
    """Arguments for tools may be secrets: only ids and the named ones are published."""
    adapter = scene.adapter(carried=["tier"] if carried == "named" else None)
    agent = agent_of("Planner", "One.")
    adapter.attach(agent)
    arguments = {**IDS, "token": "hunter2", "tier": "gold"}
    asyncio.run(agent.run("go", function_invocation_kwargs=arguments))
    return lambda: {"contexts": [one.context for one in (*scene.bus.events, *scene.bus.requests)]}


def own(scene: Scene) -> None:
    """The runtime publishes events of its own, within a turn and outside."""
    adapter = scene.adapter()
    session = session_of("c1")

    @tool(approval_mode="never_require")
    def approve() -> str:
        """Ask somebody."""
        adapter.publish(agent, session, "ui_tool.call_complete", {"tool_name": "approve_plan"})
        return "yes"

    agent = agent_of("Planner", call("approve", "t1"), "Done.", tools=[approve])
    adapter.attach(agent)
    asyncio.run(agent.run("go", session=session))
    adapter.publish(agent, session, "agent.structured_output", {"structured_data": {"steps": [1]}})
    adapter.publish(agent, session, "No Event", {})


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


def remembered(scene: Scene, **more: Any) -> Result:
    """Return the memories that were emitted, and the searches."""
    return lambda: {
        "memories": [
            {**{name: value for name, value in event.data.items() if name != "context"}, "id": event.id}
            for event in scene.bus.events
            if event.type == "memory.add"
        ],
        "searches": [one.search.model_dump(mode="json") for one in scene.bus.requests if one.search],
        **more,
    }


def recalled(scene: Scene, what: str = "") -> Result:
    """A message of one session is needed in another one; an index is searched at the same time."""
    scene.bus = Graph(scene.way)
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

    adapter = scene.adapter(redact=redact if what in {"redacted", "withheld"} else None)
    options = {"index_name": "chunks", "index_type": "fulltext", "top_k": 3}
    agent = (
        provided(adapter, "Noted.", "Plum cake.", **options)
        if scene.attached
        else agent_of("Baker", "Noted.", "Plum cake.")
    )
    first, second = session_of("c1"), session_of("c2")

    async def run() -> list[str]:
        said = await agent.run("I am allergic to nuts.", session=first)
        return [said.text, (await agent.run("Which cake?", session=second)).text]

    answers = asyncio.run(run())
    states = [first.to_dict()["state"], second.to_dict()["state"]]
    return remembered(scene, answers=answers, states=states, origins=ORIGINS)


def again(scene: Scene) -> Result:
    """A run that is repeated from a stored session, with another answer; and one whose model fails."""
    scene.bus = Graph(scene.way)
    agent = provided(scene.adapter(), "Noted.", "Got it.", "Fine.", ConnectionError("no model"))
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
    return remembered(scene)


def threads(scene: Scene, way: str) -> Result:
    """Memories of each session alone; bound to one session, those of no other."""
    scene.bus = Graph(scene.way)
    adapter = scene.adapter()
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
    return remembered(scene, conflict=conflict)


def refusals(scene: Scene) -> dict[str, Any]:
    """Options that can never work, and those that moved elsewhere."""
    adapter = scene.adapter()
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


def refused(scene: Scene) -> dict[str, Any]:
    """Attach to an object that is no agent."""
    return {"error": outcome(lambda: scene.adapter().attach(Fake("none", [])))[1]}


def turns(scene: Scene, count: str) -> dict[str, Any]:
    """Time turns of one agent without tools."""
    adapter = scene.adapter(budget_ms=50)
    agent = agent_of("Planner", *["Sunny."] * int(count))
    if scene.attached:
        adapter.attach(agent)
    session = session_of("c1")
    with asyncio.Runner() as loop:

        def turn() -> None:
            session.state.pop("in_memory", None)  # the cost of the history is not measured
            loop.run(agent.run("how is it?", session=session))

        return timed(count, turn)


if __name__ == "__main__":
    main(AgentFrameworkAdapter, globals())
