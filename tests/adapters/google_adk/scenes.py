"""Conversations of real ADK agents with a scripted model, run in an environment that has Google's ADK.

``python tests/adapters/google_adk/scenes.py NAME …`` prints the result of a scene as JSON, in its last line.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools import AgentTool, FunctionTool, load_memory
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from kit import CONCURRENT, IDS, PROMPTS, Bus, Result, Scene, cancel, main, outcome, timed
from pydantic import BaseModel, PrivateAttr

from graphweft_contracts import Block, ContextReply, ContextRequest
from graphweft_runtimes.google_adk import GoogleADKAdapter

logging.disable(logging.ERROR)

STATE = {name: IDS[name] for name in ("app_id", "workflow_name")}
"""The state of a session; the other ids are those of the session itself."""
USER, CHAT = IDS["user_id"], IDS["chat_id"]


class Scripted(BaseLlm):
    """Answers by its script: a text, tool calls, or an error. ``waits`` holds up every answer."""

    model: str = "fake"
    name: str
    _steps: list[Any] = PrivateAttr()
    _waits: asyncio.Event | None = PrivateAttr()
    _asked: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    def __init__(self, name: str, script: Sequence[Any], waits: asyncio.Event | None = None) -> None:
        super().__init__(name=name)  # type: ignore[call-arg]
        self._steps, self._waits = list(script), waits

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        paragraphs = [part.strip() for part in str(llm_request.config.system_instruction).split("\n\n")]
        ours = [
            part for part in paragraphs if part.startswith((f"You are {self.name}.", "## Notes"))
        ]  # others are ADK's
        prompt = [{"role": "system", "content": "\n\n".join(ours)}]
        prompt += [{"role": str(content.role), "content": "\n".join(said(content))} for content in llm_request.contents]
        PROMPTS.append((self.name, prompt))
        self._asked.set()
        if self._waits is not None:
            await self._waits.wait()
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        if stream and isinstance(step, str):
            for half in (step[:3], step[3:]):
                yield LlmResponse(content=types.ModelContent(half), partial=True)
        used = types.GenerateContentResponseUsageMetadata(prompt_token_count=5, candidates_token_count=7)
        yield LlmResponse(content=types.ModelContent(step), usage_metadata=used)


def said(content: Any) -> list[str]:
    """Return the parts of a message, without ids."""
    found: list[str] = []
    for part in content.parts if content else ():
        call, response = part.function_call, part.function_response
        if str(part.text).startswith("For context:"):  # how ADK introduces what another agent has said
            continue
        found.append(str(part.text or (call and (call.name, call.args)) or (response and response.response)))
    return found


def agent_of(name: str, script: Sequence[Any], waits: asyncio.Event | None = None, **named: Any) -> LlmAgent:
    """Return an agent with its own scripted model."""
    named = {"instruction": f"You are {name}.", "description": f"{name} works.", **named}
    return LlmAgent(name=name, model=Scripted(name, script, waits), **named)


def asked(agent: Any) -> asyncio.Event:
    """Return the event that an agent's model has been asked."""
    return agent.model._asked  # type: ignore[no-any-return]


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


def book(room: str) -> str:
    """Book a room."""
    raise RuntimeError(f"{room} is taken")


def sorry(tool: Any, args: Any, tool_context: Any, error: Exception) -> dict[str, Any]:
    """Let the model see the failure of a tool."""
    return {"error": str(error)}


def call(tool: str, call_id: str, **arguments: Any) -> types.Part:
    """Return a model's call of one tool."""
    return types.Part(function_call=types.FunctionCall(name=tool, id=call_id, args=arguments))


def crew(ending: Any = "Draft done.", waits: asyncio.Event | None = None) -> LlmAgent:
    """Return the planner: it calls a tool that works and one that fails, then hands over to the writer."""
    writer = agent_of("Writer", [ending], waits)
    script = [call("weather", "t1", city="Oslo"), call("book", "t2", room="7")]
    script.append(call("transfer_to_agent", "t3", agent_name="Writer"))
    named: dict[str, Any] = {"tools": [weather, book], "sub_agents": [writer], "on_tool_error_callback": sorry}
    return agent_of("Planner", script, **named)


class Chat:
    """A session, and the runs in it."""

    def __init__(self, scene: Scene, chat: str = CHAT, state: dict[str, Any] | None = None) -> None:
        self.scene, self.chat, self.state = scene, chat, STATE if state is None else state
        self.sessions = InMemorySessionService()
        self.memory: Any = None

    def runner(self, agent: BaseAgent, *others: BasePlugin) -> Runner:
        """Return a runner with the adapter's plugin, where the scene has it."""
        mine = [self.scene.adapter().plugin()] if self.scene.attached else []
        app = App(name="crew", root_agent=agent, plugins=[*mine, *others])
        return Runner(app=app, session_service=self.sessions, memory_service=self.memory)

    async def begin(self) -> None:
        """Make the session."""
        where = {"app_name": "crew", "user_id": USER, "session_id": self.chat}
        if await self.sessions.get_session(**where) is None:
            await self.sessions.create_session(**where, state=dict(self.state))

    async def events(
        self, agent: BaseAgent, message: Any = "plan a trip", *others: BasePlugin, mode: str = "run"
    ) -> AsyncGenerator[Any, None]:
        """Run the agent, and yield the events of the run."""
        await self.begin()
        config = RunConfig(streaming_mode=StreamingMode.SSE if mode == "streamed" else StreamingMode.NONE)
        content = types.UserContent(message)
        where = {"user_id": USER, "session_id": self.chat}
        stream = self.runner(agent, *others).run_async(**where, new_message=content, run_config=config)
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()

    async def say(
        self, agent: BaseAgent, message: Any = "plan a trip", *others: BasePlugin, mode: str = "run"
    ) -> list[Any]:
        """Run the agent, and return what the events of the run say."""
        return [(event.author, said(event.content)) async for event in self.events(agent, message, *others, mode=mode)]

    async def answer(self, agent: BaseAgent, message: Any = "plan a trip", *others: BasePlugin) -> str:
        """Run the agent, and return its last text."""
        return str((await self.say(agent, message, *others))[-1][1][0])

    async def kept(self) -> str:
        """Return the session as it is stored."""
        session = await self.sessions.get_session(app_name="crew", user_id=USER, session_id=self.chat)
        return str(session)


def conversation(scene: Scene, mode: str, failing: str = "") -> dict[str, Any]:
    """The planner calls two tools, one of which fails, and hands over to the writer, whose model may fail."""
    planner, chat = crew(ConnectionError("no model") if failing else "Draft done."), Chat(scene)

    def sync() -> list[Any]:
        asyncio.run(chat.begin())
        content = types.UserContent("plan a trip")
        found = chat.runner(planner).run(user_id=USER, session_id=CHAT, new_message=content)
        return [(event.author, said(event.content)) for event in found]

    done, error = outcome(sync if mode == "sync" else lambda: asyncio.run(chat.say(planner, mode=mode)))
    writer = planner.sub_agents[0]
    return {
        "answers": done,
        "error": error,
        "kept": asyncio.run(chat.kept()),
        "instructions": [planner.instruction, writer.instruction],  # type: ignore[attr-defined]
    }


def repeated(scene: Scene) -> dict[str, Any]:
    """Three runs of one session: the blocks of earlier turns are gone in later ones."""
    chat = Chat(scene)

    async def go() -> str:
        for _ in range(3):
            planner = agent_of("Planner", [call("weather", "t1", city="Oslo"), "Sunny."], tools=[weather])
            await chat.say(planner, "how is it?")
        return await chat.kept()

    return {"kept": asyncio.run(go())}


def pictured(scene: Scene) -> dict[str, Any]:
    """A question that ends with a picture."""
    chat = Chat(scene)

    async def go() -> None:
        await chat.begin()
        picture = types.Part.from_bytes(data=b"x", mime_type="image/png")
        content = types.Content(role="user", parts=[types.Part(text="What is it?"), picture])
        async for _ in chat.runner(agent_of("Planner", ["A cat."])).run_async(
            user_id=USER, session_id=CHAT, new_message=content
        ):
            pass

    asyncio.run(go())
    return {"kept": asyncio.run(chat.kept())}


def abandoned(scene: Scene) -> None:
    """A run that its reader does not continue."""

    async def go() -> None:
        writer = agent_of("Writer", ["Draft done."], asyncio.Event())
        script = [call("transfer_to_agent", "t3", agent_name="Writer")]
        planner = agent_of("Planner", script, sub_agents=[writer])
        running = asyncio.create_task(Chat(scene).say(planner))
        await asked(writer).wait()
        scene.wait()
        scene.stop_recording()
        running.cancel()

    asyncio.run(go())


def cancelled(scene: Scene, how: str) -> dict[str, Any]:
    """The caller gives up a run while the model works: its task, by a time limit, or the reading of its events."""

    async def go() -> str | None:
        planner: Any = agent_of("Planner", ["too late"], asyncio.Event())
        root = SequentialAgent(name="Both", sub_agents=[planner]) if how == "sequence" else planner
        if how == "reader":
            events = Chat(scene).events(planner)
            reading = asyncio.ensure_future(anext(events))
            await asked(planner).wait()
            await cancel(reading)
            await events.aclose()
            return None
        task = asyncio.create_task(Chat(scene).say(root))
        await asked(planner).wait()
        return await cancel(task)

    return {"error": asyncio.run(go())}


def left(scene: Scene, how: str) -> dict[str, Any]:
    """The reader of a streamed text leaves before its end."""

    async def go() -> Any:
        planner: Any = agent_of("Planner", ["Done."])
        root = SequentialAgent(name="Both", sub_agents=[planner]) if how == "sequence" else planner
        events = Chat(scene).events(root, mode="streamed")
        first = await anext(events)
        await events.aclose()
        return said(first.content)

    return {"answers": asyncio.run(go())}


def inside(scene: Scene) -> dict[str, Any]:
    """A program starts a run while it handles the cancellation of other work."""

    async def go() -> str:
        try:
            raise asyncio.CancelledError
        except asyncio.CancelledError:
            return await Chat(scene).answer(SequentialAgent(name="Both", sub_agents=[agent_of("Planner", ["Done."])]))

    return {"answers": asyncio.run(go())}


def stopped(scene: Scene, what: str) -> dict[str, Any]:
    """A run that fails outside of the model: in a tool, or in a callback of the agent."""
    named: dict[str, Any] = {"tools": [book]}

    def trips(**_: Any) -> None:
        raise ValueError("no entry")

    if what == "callback":
        named["before_model_callback"] = trips
    planner = agent_of("Planner", [call("book", "t1", room="7")], **named)
    return {"error": outcome(lambda: asyncio.run(Chat(scene).say(planner)))[1]}


def nested(scene: Scene, failing: str = "") -> dict[str, Any]:
    """The writer is a tool of the planner."""
    writer = agent_of("Writer", [ConnectionError("no model") if failing else "Draft done."])
    script = [call("Writer", "t1", request="write"), "Plan done."]
    planner = agent_of("Planner", script, tools=[AgentTool(writer)])
    return {"answers": outcome(lambda: asyncio.run(Chat(scene).answer(planner)))}


def inline(scene: Scene) -> dict[str, Any]:
    """The planner calls the writer twice at the same time, in its own session; the writer calls a tool each time."""
    both = asyncio.Barrier(2)

    async def weather(city: str) -> str:
        """Tell the weather once both ask for it, because both take their answers from one script."""
        await both.wait()
        return f"sunny in {city}"

    script: list[Any] = [call("weather", "w1", city="Oslo"), call("weather", "w2", city="Bergen"), "One.", "Two."]
    writer = agent_of("Writer", script, mode="single_turn", tools=[weather])
    calls = [call("Writer", f"t{number}", request="write") for number in (1, 2)]
    planner = agent_of("Planner", [calls, "Plan done."], sub_agents=[writer])
    return {"answers": asyncio.run(Chat(scene).answer(planner))}


def team(scene: Scene, how: str) -> dict[str, Any]:
    """Agents that an agent without a model runs: one after the other, again and again, or at the same time."""
    kind: Any = {"sequence": SequentialAgent, "loop": LoopAgent, "parallel": ParallelAgent}[how]
    more = {"max_iterations": 2} if how == "loop" else {}
    agents = [agent_of("Planner", ["Plan.", "Better plan."]), agent_of("Writer", ["Draft.", "Better draft."])]
    return {"answers": asyncio.run(Chat(scene).say(kind(name="Team", sub_agents=agents, **more)))}


def tools(scene: Scene) -> dict[str, Any]:
    """Tools report failures in every way, and return objects."""

    def failed(room: str) -> dict[str, Any]:
        """Book a room."""
        return {"status": "error", "error_message": f"{room} is taken"}

    def rich(room: str) -> dict[str, Any]:
        """Look at a room."""
        return {"status": "success", "room": room}

    calls = [call("weather", "t1", city="Oslo"), call("book", "t2", room="7"), call("failed", "t3", room="8")]
    calls += [call("rich", "t4", room="9"), call("weather", "t5"), call("missing", "t6")]
    named: dict[str, Any] = {"tools": [weather, book, failed, rich], "on_tool_error_callback": sorry}
    return {"answers": asyncio.run(Chat(scene).answer(agent_of("Planner", [calls, "Done."], **named)))}


def approved(scene: Scene, then: str = "") -> dict[str, Any]:
    """A tool waits for a person, who agrees or refuses, or says something else."""

    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    chat = Chat(scene)
    tool = FunctionTool(pay, require_confirmation=True)
    planner = agent_of("Planner", [call("pay", "t1", amount=7), "Paid."], tools=[tool])

    async def go() -> str:
        [request] = [
            part.function_call
            async for event in chat.events(planner, "pay")
            for part in event.content.parts
            if part.function_call and part.function_call.name == "adk_request_confirmation"
        ]
        if then == "other":
            return await chat.answer(planner, "never mind")
        answer = {"confirmed": then != "refused"}
        response = types.FunctionResponse(id=request.id, name=request.name, response=answer)
        return await chat.answer(planner, types.Part(function_response=response))

    return {"answers": asyncio.run(go())}


class Plan(BaseModel):
    """A structured answer."""

    steps: list[int]


def structured(scene: Scene) -> dict[str, Any]:
    """The planner answers with an object."""
    return {"answers": asyncio.run(Chat(scene).answer(agent_of("Planner", ['{"steps": [1]}'], output_schema=Plan)))}


def own(scene: Scene) -> dict[str, Any]:
    """A tool publishes events, and so does the program after the run."""
    adapter = scene.adapter()

    def approve(tool_context: ToolContext) -> str:
        """Ask a person."""
        adapter.publish(tool_context, "ui_tool.call_complete", {"tool_name": "approve_plan", "call_id": "u1"})
        adapter.publish(tool_context, "Not A Type", {})
        return "approved"

    answer = asyncio.run(Chat(scene).answer(agent_of("Planner", [call("approve", "t1"), "Done."], tools=[approve])))
    data = {"structured_data": {"steps": [1]}, "schema_name": "Plan"}
    adapter.core.emit(IDS, "agent.structured_output", data, agent="Planner")
    return {"answers": answer}


def together(scene: Scene) -> dict[str, Any]:
    """Runs of several chats, and two of one chat, at the same time: all wait in their first model call."""
    waits = asyncio.Event()

    async def go() -> list[str]:
        async def one(chat: str, city: str) -> str:
            script = [call("weather", f"t-{city}", city=city), city]
            agent = agent_of("Planner", script, waits, tools=[weather])
            running = asyncio.create_task(Chat(scene, chat).answer(agent))
            await asked(agent).wait()
            started.release()
            return await running

        started = asyncio.Semaphore(0)
        talks: list[asyncio.Task[str]] = []
        for run in CONCURRENT:  # one after the other, so that those of a chat begin in this order
            talks.append(asyncio.create_task(one(*run)))
            await started.acquire()
        waits.set()
        return await asyncio.gather(*talks)

    return {"answers": asyncio.run(go())}


def carriers(scene: Scene) -> Result:
    """Sessions with and without ids in their state, which also has values for this run alone."""
    states: list[dict[str, Any]] = [
        {"app_id": "shop", "chat_id": "s1", "user_id": "u7", "temp:key": "s3cret"},
        {"user:tier": "gold"},
    ]
    for number, state in enumerate(states, start=1):
        asyncio.run(Chat(scene, f"c{number}", state).say(agent_of("Planner", ["Hello."])))
    return lambda: {
        "placed": [
            (event.appid, event.chatid, event.workflow, event.userid, event.data["context"])
            for event in scene.bus.events
            if event.type == "workflow.start"
        ]
    }


class Theirs(BasePlugin):
    """A plugin of the caller, which answers for a model that fails, and for another model."""

    def __init__(self) -> None:
        super().__init__(name="theirs")
        self.cached: str | None = None

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> LlmResponse | None:
        return None if self.cached is None else LlmResponse(content=types.ModelContent(self.cached))

    async def on_model_error_callback(self, *, callback_context: Any, llm_request: Any, error: Any) -> LlmResponse:
        return LlmResponse(content=types.ModelContent("Sorry."))


def composed(scene: Scene) -> dict[str, Any]:
    """A plugin of the caller's beside ours, and a callback that answers for the agent."""
    chat, theirs = Chat(scene), Theirs()

    async def go() -> list[str]:
        answers = [await chat.answer(agent_of("Planner", [ConnectionError("no model")]), "hello", theirs)]
        theirs.cached = "As before."
        answers.append(await chat.answer(agent_of("Planner", []), "hello", theirs))
        instead = agent_of("Planner", [], before_agent_callback=lambda **_: types.ModelContent("Closed."))
        return [*answers, await chat.answer(instead, "hello", theirs)]

    return {"answers": asyncio.run(go())}


class Graph(Bus):
    """A bus that answers searches by what was remembered within the same scope."""

    async def request(self, request: ContextRequest) -> ContextReply:
        """Answer as a responder does."""
        reply = await super().request(request)
        search = request.search
        if search is None or search.memory is None or self.way != "works":
            return reply
        scope = search.memory.given
        rows = [
            {**message, "score": 0.5, "timestamp": "2026-02-01T10:00:00Z"}
            for event in self.events
            if event.type == "memory.add" and {name: event.data.get(name) for name in scope} == scope
            for message in event.data["messages"]
        ]
        rows = rows[: search.top_k]
        block = Block(name="search", format="results", value=rows, rows=len(rows), rule="search", query="search")
        return reply.model_copy(update={"blocks": (block,), "text": "not as an agent reads it" if rows else ""})


def remembered(scene: Scene) -> Result:
    """What was said in one session is found in another one, and once however often it is added."""
    scene.bus = Graph(scene.way)
    adapter = scene.adapter(app_id="shop")
    memory = adapter.memory_service(top_k=3, budget_ms=None if scene.way == "works" else 30)

    async def go() -> list[Any]:
        chat = Chat(scene)
        for _ in range(2):
            await chat.say(agent_of("Planner", ["Noted."]), "No nuts.")
            session = await chat.sessions.get_session(app_name="crew", user_id=USER, session_id=CHAT)
            await memory.add_session_to_memory(session)
        note = MemoryEntry(content=types.UserContent("No milk."), id="note-1")
        await memory.add_memory(app_name="crew", user_id=USER, memories=[note])
        other = Chat(scene, "c2")
        other.memory = memory
        planner = agent_of(
            "Planner", [call("load_memory", "t1", query="cake"), "A nut-free cake."], tools=[load_memory]
        )
        await other.say(planner, "Which cake?")
        found = await memory.search_memory(app_name="crew", user_id="stranger", query="cake")
        return [one.content.parts[0].text for one in found.memories]

    strangers = asyncio.run(go())
    return lambda: {
        "strangers": strangers,
        "memories": [
            [
                event.id,
                event.userid,
                [(one["role"], one["text"], one.get("author_name")) for one in event.data["messages"]],
            ]
            for event in scene.bus.events
            if event.type == "memory.add"
        ],
        "searches": [one.search.model_dump(mode="json") for one in scene.bus.requests if one.search],
    }


def turns(scene: Scene, count: str) -> dict[str, Any]:
    """Time turns of one agent without tools."""
    if scene.attached:
        scene.adapter(budget_ms=50)
    chat = Chat(scene)
    with asyncio.Runner() as loop:
        return timed(count, lambda: loop.run(chat.say(agent_of("Planner", ["Hello."]), "hello")))


def import_lazily_imported_modules() -> None:
    """Let ADK import what it imports in a first run, which each scene would do again: 500 modules."""
    sessions = InMemorySessionService()
    runner = Runner(app=App(name="crew", root_agent=crew()), session_service=sessions, auto_create_session=True)

    async def go() -> None:
        async for _ in runner.run_async(user_id=USER, session_id=CHAT, new_message=types.UserContent("hello")):
            pass

    asyncio.run(go())
    PROMPTS.clear()


if __name__ == "__main__":
    import_lazily_imported_modules()
    main(GoogleADKAdapter, globals())
