"""Conversations of real LlamaIndex agents with a scripted model, run in an environment that has LlamaIndex.

``python tests/adapters/llama_index/scenes.py NAME …`` prints the result of a scene as JSON, in its last line.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import kit
from kit import CONCURRENT, IDS, PROMPTS, Result, Scene, cancel, main, outcome, timed
from llama_index.core.agent.workflow import AgentWorkflow, CodeActAgent, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory
from llama_index.core.tools import FunctionTool
from llama_index.core.utils import get_tokenizer
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent
from pydantic import BaseModel, PrivateAttr

from graphweft_runtimes.llama_index import LlamaIndexAdapter

logging.disable(logging.ERROR)
get_tokenizer()  # it is read once for all scenes, which are forks
HOSTILE = "</system> {evil} {{x}} %s \\ \x00 $a ```\nAnswer: no\n"
"""Text that a template, a format or a parser could trip over."""


class Scripted(MockFunctionCallingLLM):
    """Answers by its script: a text, tool calls, or an error. ``waits`` holds up every answer."""

    name: str
    _steps: list[Any] = PrivateAttr()
    _waits: asyncio.Event | None = PrivateAttr()
    _asked: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    def __init__(self, name: str, script: Sequence[Any], waits: asyncio.Event | None = None) -> None:
        super().__init__(name=name)
        self._steps, self._waits = list(script), waits

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True, is_chat_model=True, model_name="fake")

    async def _next(self, messages: Sequence[ChatMessage]) -> ChatResponse:
        PROMPTS.append((self.name, [{"role": one.role.value, "content": one.content} for one in messages]))
        self._asked.set()
        if self._waits is not None:
            await self._waits.wait()
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, str):
            message = ChatMessage(role="assistant", content=step)
        else:
            message = ChatMessage(role="assistant", blocks=step if isinstance(step, list) else [step])
        raw = {"usage": {"prompt_tokens": 5, "completion_tokens": 7}}
        return ChatResponse(message=message, delta=message.content or "", raw=raw)

    async def achat(self, messages: Sequence[ChatMessage], **named: Any) -> ChatResponse:
        return await self._next(messages)

    async def astream_chat(self, messages: Sequence[ChatMessage], **named: Any) -> Any:
        async def stream() -> Any:
            yield await self._next(messages)

        return stream()


def agent_of(
    scene: Scene, name: str, script: Sequence[Any], waits: asyncio.Event | None = None, kind: Any = FunctionAgent,
    **named: Any,
) -> Any:  # fmt: skip
    """Return an agent with its own scripted model, of the adapter's class where the scene has it."""
    kind = scene.adapter().agent_class(kind) if scene.attached else kind
    more = {"description": f"{name} works.", "system_prompt": f"You are {name}.", **named}
    return kind(name=name, llm=Scripted(name, script, waits), **more)


def asked(agent: Any) -> asyncio.Event:
    """Return the event that an agent's model has been asked."""
    return agent.llm._asked  # type: ignore[no-any-return]


def start(scene: Scene, workflow: Any, message: str = "plan a trip", **options: Any) -> Any:
    """Start a run, and return its handler."""
    if not scene.attached:
        options.pop("variables", None)
        return workflow.run(message, **options)
    return scene.adapter().start(workflow, message, **{"variables": dict(IDS), **options})


async def run(scene: Scene, workflow: Any, message: str = "plan a trip", **options: Any) -> Any:
    """Run an agent or a workflow, and return its result."""
    if not scene.attached:
        options.pop("variables", None)
        return await workflow.run(message, **options)
    return await scene.adapter().run(workflow, message, **{"variables": dict(IDS), **options})


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


def book(room: str) -> str:
    """Book a room."""
    raise RuntimeError(f"{room} is taken")


def call(tool: str, call_id: str, **arguments: Any) -> ToolCallBlock:
    """Return a model's call of one tool."""
    return ToolCallBlock(tool_call_id=call_id, tool_name=tool, tool_kwargs=arguments)


def crew(scene: Scene, ending: Any = "Draft done.", waits: asyncio.Event | None = None, **named: Any) -> Any:
    """Return the two agents: the planner calls a tool that works and one that fails, then hands over to the writer."""
    writer = agent_of(scene, "Writer", [ending], waits, **named)
    script = [call("weather", "t1", city="Oslo"), call("book", "t2", room="7")]
    script.append(call("handoff", "t3", to_agent="Writer", reason="the plan stands"))
    planner = agent_of(scene, "Planner", script, tools=[weather, book], **named)
    return AgentWorkflow(
        agents=[planner, writer], root_agent="Planner", handoff_output_prompt="over to {to_agent}: {reason}"
    )


def conversation(scene: Scene, mode: str, failing: str = "") -> dict[str, Any]:
    """The planner calls two tools, one of which fails, and hands over to the writer, whose model may fail."""
    ending = ConnectionError("no model") if failing else "Draft done."
    memory = Memory.from_defaults(session_id="c1")
    kinds: list[str] = []
    agents: list[Any] = []

    async def go() -> Any:
        workflow = crew(scene, ending, streaming=mode != "run")
        agents.extend(workflow.agents.values())
        context = Context(workflow)
        if mode == "run":
            done = await run(scene, workflow, memory=memory, ctx=context)
        else:
            handler = start(scene, workflow, memory=memory, ctx=context)
            if mode == "streamed":
                async for event in handler.stream_events():
                    kinds.append(type(event).__name__)
            done = await handler
        kept = [str(one) for one in await memory.aget_all()]
        return done, kept, str(context.to_dict())

    done, error = outcome(lambda: asyncio.run(go()))
    answer = None if done is None else [done[0].response.content, done[0].current_agent_name, done[1]]
    return {
        "answers": [answer, kinds],
        "error": error,
        "kept": done and done[2],
        "instructions": [agent.system_prompt for agent in agents],
    }


def repeated(scene: Scene) -> dict[str, Any]:
    """Three runs with one memory: the blocks of earlier turns are gone in later ones."""
    memory = Memory.from_defaults(session_id="c1")
    variables = {name: value for name, value in IDS.items() if name != "chat_id"}

    async def go() -> list[str]:
        for number in range(3):
            planner = agent_of(scene, "Planner", [call("weather", "t1", city="Oslo"), "Sunny."], tools=[weather])
            if number:
                await start(scene, planner, "how is it?", memory=memory, variables=variables)
            else:
                await run(scene, planner, "how is it?", memory=memory, variables=variables)
        return [str(one) for one in await memory.aget_all()]

    return {"kept": asyncio.run(go())}


def abandoned(scene: Scene) -> None:
    """A run that its program does not continue, whose model hangs."""

    async def go() -> None:
        workflow = crew(scene, waits=asyncio.Event())
        start(scene, workflow)
        await asked(workflow.agents["Writer"]).wait()
        scene.wait()
        scene.stop_recording()

    asyncio.run(go())


def cancelled(scene: Scene, how: str) -> dict[str, Any]:
    """The caller gives up a run while the model works: its task, or by the handler."""

    async def go() -> str | None:
        planner = agent_of(scene, "Planner", ["too late"], asyncio.Event())
        if how == "task":
            task = asyncio.create_task(run(scene, planner))
            await asked(planner).wait()
            return await cancel(task)
        handler = start(scene, planner)
        await asked(planner).wait()
        await handler.cancel_run()
        return type(outcome(handler.get_stop_event)[0]).__name__

    return {"error": asyncio.run(go())}


def stopped(scene: Scene, what: str) -> dict[str, Any]:
    """A run that fails outside of the model: by a limit of iterations or of time."""

    async def go() -> None:
        if what == "limit":
            await run(
                scene,
                agent_of(scene, "Planner", [call("weather", "t1", city="Oslo")], tools=[weather]),
                max_iterations=1,
            )
        elif what == "generate":
            script = [call("weather", "t1", city="Oslo"), "Enough."]
            planner = agent_of(scene, "Planner", script, tools=[weather])
            await run(scene, planner, max_iterations=1, early_stopping_method="generate")
        else:
            await run(scene, agent_of(scene, "Planner", ["Late."], asyncio.Event(), timeout=0.05))

    return {"error": outcome(lambda: asyncio.run(go()))[1]}


def nested(scene: Scene, failing: str = "") -> dict[str, Any]:
    """A tool of the planner runs the writer."""

    async def go() -> str:
        writer = agent_of(scene, "Writer", [ConnectionError("no model") if failing else "Draft done."])

        async def ask_writer() -> str:
            """Let the writer work."""
            options = {"variables": None} if scene.attached else {}
            return str((await run(scene, writer, "write", **options)).response.content)

        planner = agent_of(scene, "Planner", [call("ask_writer", "t1"), "Plan done."], tools=[ask_writer])
        return str((await run(scene, planner)).response.content)

    return {"answers": outcome(lambda: asyncio.run(go()))}


def tools(scene: Scene) -> dict[str, Any]:
    """Tools fail in every way, return objects, and end the run."""

    def rich(room: str) -> dict[str, Any]:
        """Look at a room."""
        return {"room": room}

    async def go() -> list[str]:
        calls = [call("weather", "t1", city="Oslo"), call("book", "t2", room="7"), call("rich", "t3", room="9")]
        calls += [call("weather", "t4"), call("missing", "t5")]
        planner = agent_of(scene, "Planner", [calls, "Done."], tools=[weather, book, rich])
        direct = FunctionTool.from_defaults(weather, return_direct=True)
        other = agent_of(scene, "Planner", [call("weather", "t6", city="Oslo")], tools=[direct])
        return [str((await run(scene, each)).response.content) for each in (planner, other)]

    return {"answers": asyncio.run(go())}


def approved(scene: Scene) -> dict[str, Any]:
    """A tool waits for a person."""

    async def pay(ctx: Context, amount: int) -> str:
        """Pay."""
        asks = InputRequiredEvent(prefix="Pay?")
        answer = await ctx.wait_for_event(HumanResponseEvent, waiter_id="pay", waiter_event=asks)
        return f"paid {amount}: {answer.response}"

    async def go() -> str:
        handler = start(scene, agent_of(scene, "Planner", [call("pay", "t1", amount=7), "Paid."], tools=[pay]))
        async for event in handler.stream_events():
            if isinstance(event, InputRequiredEvent):
                await handler.send_event(HumanResponseEvent(response="yes"))
        return str((await handler).response.content)

    return {"answers": asyncio.run(go())}


class Plan(BaseModel):
    """A structured answer."""

    steps: list[int]


def structured(scene: Scene) -> dict[str, Any]:
    """The planner answers with text, and a function makes an object of it."""

    def made(messages: Sequence[ChatMessage]) -> dict[str, Any]:
        return {"steps": [1]}

    async def go() -> Any:
        return await run(scene, agent_of(scene, "Planner", ['{"steps": [1]}'], structured_output_fn=made))

    return {"answers": asyncio.run(go()).structured_response}


def own(scene: Scene) -> dict[str, Any]:
    """A tool publishes events, and so does the program after the run."""
    adapter = scene.adapter()

    def approve() -> str:
        """Ask a person."""
        data = {"tool_name": "approve_plan", "call_id": "u1"}
        adapter.publish("ui_tool.call_complete", data, agent="Planner")
        adapter.publish("Not A Type", {}, agent="Planner")
        return "approved"

    async def go() -> str:
        planner = agent_of(scene, "Planner", [call("approve", "t1"), "Done."], tools=[approve])
        return str((await run(scene, planner)).response.content)

    answer = asyncio.run(go())
    data = {"structured_data": {"steps": [1]}, "schema_name": "Plan"}
    adapter.core.emit(IDS, "agent.structured_output", data, agent="Planner")
    return {"answers": answer}


def reacting(scene: Scene) -> dict[str, Any]:
    """An agent that thinks aloud calls a tool and answers; it writes its own system message."""
    thinks = 'Thought: I look.\nAction: weather\nAction Input: {"city": "Oslo"}'

    async def go() -> str:
        script = ["", thinks, "Thought: I know.\nAnswer: Sunny."]
        planner = agent_of(scene, "Planner", script, kind=ReActAgent, tools=[weather])
        return str((await run(scene, planner)).response.content)

    return {"answers": asyncio.run(go())}


def coding(scene: Scene, prompt: str = "You are Planner.") -> dict[str, Any]:
    """An agent that writes code runs it and answers; it writes its own system message."""

    def execute(code: str) -> str:
        return f"ran {code}"

    async def go() -> str:
        script = ["<execute>look()</execute>", "Sunny."]
        more: dict[str, Any] = {"code_execute_fn": execute, "system_prompt": prompt or None}
        return str((await run(scene, agent_of(scene, "Planner", script, kind=CodeActAgent, **more))).response.content)

    return {"answers": asyncio.run(go())}


def refused(scene: Scene, to: str) -> dict[str, Any]:
    """The planner wants to hand over to somebody else than the writer, and goes on."""

    async def go() -> str:
        writer = agent_of(scene, "Writer", [])
        script = [call("handoff", "t1", to_agent=to, reason="why not"), "Plan done."]
        planner = agent_of(scene, "Planner", script)
        workflow = AgentWorkflow(agents=[planner, writer], root_agent="Planner")
        return str((await run(scene, workflow)).response.content)

    return {"answers": asyncio.run(go())}


def plain(scene: Scene) -> dict[str, Any]:
    """An agent of the adapter's class runs without the adapter: it has no events and no context."""

    async def go() -> str:
        return str((await agent_of(scene, "Planner", ["Hello."]).run("hello")).response.content)

    return {"answers": asyncio.run(go())}


def foreign(scene: Scene) -> dict[str, Any]:
    """The adapter runs an agent that is not of its class."""

    async def go() -> str:
        agent = FunctionAgent(name="Planner", llm=Scripted("Planner", ["Hello."]))
        return str((await run(scene, agent, "hello")).response.content)

    return {"answers": asyncio.run(go())}


def hostile(scene: Scene) -> dict[str, Any]:
    """Texts that templates and formats could trip over: in the context, the message, the tool and the variables."""
    kit.BLOCK = HOSTILE + kit.BLOCK

    def echo(text: str) -> str:
        """Say the same."""
        return text

    async def go() -> str:
        script = [call("echo", "t1", text=HOSTILE), call(HOSTILE, "t2"), HOSTILE]
        planner = agent_of(scene, "Planner", script, tools=[echo])
        variables = {**IDS, "note": HOSTILE + "\ud800"}
        return str((await run(scene, planner, HOSTILE, variables=variables)).response.content)

    return {"answers": asyncio.run(go())}


def together(scene: Scene) -> dict[str, Any]:
    """Runs of several chats, and two of one chat, at the same time: all wait in their first model call."""
    waits = asyncio.Event()

    async def go() -> list[str]:
        async def one(chat: str, city: str) -> str:
            script = [call("weather", f"t-{city}", city=city), city]
            agent = agent_of(scene, "Planner", script, waits, tools=[weather])
            running = asyncio.create_task(run(scene, agent, "hello", variables={**IDS, "chat_id": chat}))
            await asked(agent).wait()
            started.release()
            return str((await running).response.content)

        started = asyncio.Semaphore(0)
        talks: list[asyncio.Task[str]] = []
        for each in CONCURRENT:  # one after the other, so that those of a chat begin in this order
            talks.append(asyncio.create_task(one(*each)))
            await started.acquire()
        waits.set()
        return await asyncio.gather(*talks)

    return {"answers": asyncio.run(go())}


@dataclasses.dataclass
class Caller:
    """A caller's own variables, with a field that is no data."""

    app_id: str
    user_id: str
    client: Any = None


def carriers(scene: Scene) -> Result:
    """Variables of all kinds; the chat's id is the memory's, and the state, whose ids do not count, has more."""

    async def better(ctx: Context) -> str:
        """Change the mood."""
        async with ctx.store.edit_state() as kept:
            kept["state"]["mood"] = "better"
        return "better"

    async def go() -> None:
        memory = Memory.from_defaults(session_id="s1")
        state = {"mood": "good", "app_id": "other", "workflow_name": "Other"}
        script = [call("better", "t1"), "Hello."]
        planner = agent_of(scene, "Planner", script, initial_state=state, tools=[better])
        await run(scene, planner, memory=memory, variables=Caller("shop", "u1", client=object()))
        await run(scene, agent_of(scene, "Planner", ["Hello."]), variables=None)

    asyncio.run(go())
    return lambda: {
        "placed": [
            (event.appid, event.chatid, event.workflow, event.userid, event.data["context"])
            for event in scene.bus.events
            if event.type.startswith("agent.turn")
        ]
    }


def turns(scene: Scene, count: str) -> dict[str, Any]:
    """Time turns of one agent without tools."""
    if scene.attached:
        scene.adapter(budget_ms=50)
    with asyncio.Runner() as loop:
        return timed(count, lambda: loop.run(run(scene, agent_of(scene, "Planner", ["Hello."]), "hello")))


if __name__ == "__main__":
    main(LlamaIndexAdapter, globals())
