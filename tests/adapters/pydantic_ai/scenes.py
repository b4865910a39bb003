"""Conversations of real Pydantic AI agents with a scripted model, run in an environment that has Pydantic AI.

``python tests/adapters/pydantic_ai/scenes.py NAME …`` prints the result of a scene as JSON, in its last line.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

from kit import CONCURRENT, IDS, PROMPTS, Result, Scene, cancel, main, outcome, timed
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    RunContext,
    Tool,
    ToolFailed,
    ToolReturn,
    UsageLimits,
)
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from graphweft_runtimes.pydantic_ai import PydanticAIAdapter


class Scripted(FunctionModel):
    """Answers by its script: a text, tool calls, or an error. ``waits`` holds up every answer."""

    def __init__(self, name: str, script: Sequence[Any], waits: asyncio.Event | None = None) -> None:
        super().__init__(self._answer, stream_function=self._stream, model_name="fake")
        self.name, self.steps, self.waits, self.asked = name, list(script), waits, asyncio.Event()

    async def _next(self, messages: list[ModelMessage], info: AgentInfo) -> Any:
        prompt = [
            {"role": part.part_kind.removesuffix("-prompt"), "content": str(getattr(part, "content", part.part_kind))}
            for message in messages
            for part in message.parts
        ]
        PROMPTS.append((self.name, [{"role": "system", "content": info.instructions}, *prompt]))
        self.asked.set()
        if self.waits is not None:
            await self.waits.wait()
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return [step] if isinstance(step, ToolCallPart) else step

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        step = await self._next(messages, info)
        return ModelResponse(parts=[TextPart(step)] if isinstance(step, str) else step)

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        step = await self._next(messages, info)
        if isinstance(step, str):
            for half in (step[:3], step[3:]):
                yield half
        else:
            for number, one in enumerate(step):
                yield {number: DeltaToolCall(one.tool_name, one.args_as_json_str(), tool_call_id=one.tool_call_id)}


def said(messages: Sequence[ModelMessage]) -> str:
    """Return the contents of messages, with the instructions that they keep, and without ids and times."""
    parts = [[str(getattr(part, "content", part.part_kind)) for part in message.parts] for message in messages]
    return str([parts, [getattr(message, "instructions", None) for message in messages]])


def agent_of(
    scene: Scene, name: str, script: Sequence[Any], waits: asyncio.Event | None = None, **named: Any
) -> Agent[Any, Any]:
    """Return an agent with its own scripted model, and with the adapter's capability where the scene has it."""
    mine = [scene.adapter().capability()] if scene.attached else []
    named["capabilities"] = [*named.pop("capabilities", []), *mine]
    return Agent(Scripted(name, script, waits), name=name, instructions=f"You are {name}.", **named)


def model_of(agent: Agent[Any, Any]) -> Any:
    """Return the scripted model of an agent."""
    return agent.model


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


def book(room: str) -> str:
    """Book a room."""
    raise ModelRetry(f"{room} is taken")


def call(tool: str, call_id: str, **arguments: Any) -> ToolCallPart:
    """Return a model's call of one tool."""
    return ToolCallPart(tool, arguments, call_id)


def crew(scene: Scene, ending: Any = "Draft done.") -> Agent[Any, Any]:
    """Return the planner: it calls a tool that works and one that fails, then hands over by its output function."""
    writer = agent_of(scene, "Writer", [ending])

    async def to_writer(ctx: RunContext[Any], note: str) -> str:
        """Hand over to the writer."""
        return str((await writer.run(note, usage=ctx.usage)).output)

    script = [
        call("weather", "t1", city="Oslo"),
        call("book", "t2", room="7"),
        call("final_result", "t3", note="plan a trip"),
    ]
    return agent_of(scene, "Planner", script, tools=[weather, book], output_type=to_writer)


async def talk(agent: Agent[Any, Any], mode: str, kinds: list[str], **options: Any) -> Any:
    """Run an agent in one of the ways of Pydantic AI, and return its result."""
    if mode == "iter":
        async with agent.iter("plan a trip", **options) as run:
            async for node in run:
                kinds.append(type(node).__name__)
        return run.result
    if mode == "events":
        async with agent.run_stream_events("plan a trip", **options) as stream:
            async for event in stream:
                kinds.append(type(event).__name__)
        return event.result  # type: ignore[union-attr]
    return await agent.run("plan a trip", **options)


def conversation(scene: Scene, mode: str, failing: str = "") -> dict[str, Any]:
    """The planner calls two tools, one of which fails, and hands over to the writer, whose model may fail."""
    planner = crew(scene, ConnectionError("no model") if failing else "Draft done.")
    deps, kinds = dict(IDS), list[str]()
    done, error = outcome(
        lambda: (
            planner.run_sync("plan a trip", deps=deps)
            if mode == "sync"
            else asyncio.run(talk(planner, mode, kinds, deps=deps))
        )
    )
    history = None if done is None else said(done.all_messages())
    return {
        "answers": [None if done is None else done.output, history, deps, kinds],
        "error": error,
        "kept": done and done.all_messages_json().decode(),
        "instructions": ["You are Planner."] if done is None else [done.all_messages()[0].instructions],
    }


def block(scene: Scene, failing: str = "") -> dict[str, Any]:
    """A program runs the planner and then the writer in a block, which is the run of a workflow."""
    around = scene.adapter().workflow(**IDS, trip="Oslo") if scene.attached else contextlib.nullcontext()
    script = [call("weather", "t1", city="Oslo"), call("book", "t2", room="7"), "Planned."]
    planner = agent_of(scene, "Planner", script, tools=[weather, book])
    writer = agent_of(scene, "Writer", [ConnectionError("no model") if failing else "Draft done."])

    async def go() -> Any:
        with around:
            plan = await planner.run("plan a trip")
            async with writer.run_stream(message_history=plan.all_messages()) as stream:
                texts = [text async for text in stream.stream_text(debounce_by=None)]
            return [texts, said(stream.all_messages())]

    done, error = outcome(lambda: asyncio.run(go()))
    return {"answers": [done], "error": error}


def repeated(scene: Scene) -> dict[str, Any]:
    """Three runs of one conversation: the blocks of earlier turns are gone in later ones."""
    history: list[ModelMessage] = []
    for _ in range(3):
        planner = agent_of(scene, "Planner", [call("weather", "t1", city="Oslo"), "Sunny."], tools=[weather])
        deps = {name: value for name, value in IDS.items() if name != "chat_id"}
        done = planner.run_sync("how is it?", deps=deps, message_history=history, conversation_id="c1")
        history = done.all_messages()
    return {"kept": str(history)}


def abandoned(scene: Scene) -> None:
    """A run that its program does not continue."""

    async def go() -> None:
        planner = agent_of(scene, "Planner", ["Done."])
        async with planner.iter("plan a trip", deps=dict(IDS)):
            scene.wait()
            scene.stop_recording()

    asyncio.run(go())


def cancelled(scene: Scene, how: str) -> dict[str, Any]:
    """The caller gives up a run while the model works: its task, or the reading of its events."""

    async def go() -> str | None:
        planner = agent_of(scene, "Planner", ["too late"], asyncio.Event())
        if how == "task":
            task = asyncio.create_task(planner.run("plan a trip", deps=dict(IDS)))
            await model_of(planner).asked.wait()
            return await cancel(task)
        async with planner.run_stream_events("plan a trip", deps=dict(IDS)) as stream:
            reading = asyncio.ensure_future(anext(aiter(stream)))
            await model_of(planner).asked.wait()
            await cancel(reading)
        return None

    return {"error": asyncio.run(go())}


def left(scene: Scene) -> dict[str, Any]:
    """The reader of a streamed text leaves before its end."""

    async def go() -> str:
        planner = agent_of(scene, "Planner", ["Done."])
        async with planner.run_stream("plan a trip", deps=dict(IDS)) as stream:
            async for text in stream.stream_text(debounce_by=None):
                return text
        return ""

    return {"answers": asyncio.run(go())}


def stopped(scene: Scene, what: str) -> dict[str, Any]:
    """A run that fails outside of the model: in a tool, by a limit, or because a tool fails too often."""

    def broken(room: str) -> str:
        """Book a room."""
        raise RuntimeError(f"{room} is taken")

    script = {
        "tool": [call("broken", "t1", room="7")],
        "limit": [call("weather", "t1", city="Oslo")],
        "retries": [call("book", "t1", room="7"), call("book", "t2", room="7")],
    }[what]
    planner = agent_of(scene, "Planner", script, tools=[weather, book, broken])
    limits = UsageLimits(request_limit=1) if what == "limit" else None
    return {"error": outcome(lambda: planner.run_sync("plan a trip", deps=dict(IDS), usage_limits=limits))[1]}


def nested(scene: Scene, failing: str = "") -> dict[str, Any]:
    """A tool of the planner runs the writer."""
    writer = agent_of(scene, "Writer", [ConnectionError("no model") if failing else "Draft done."])

    async def ask_writer() -> str:
        """Let the writer work."""
        return str((await writer.run("write")).output)

    planner = agent_of(scene, "Planner", [call("ask_writer", "t1"), "Plan done."], tools=[ask_writer])
    return {"answers": outcome(lambda: planner.run_sync("plan a trip", deps=dict(IDS)).output)}


def tools(scene: Scene) -> dict[str, Any]:
    """Tools fail in every way that the model sees, and return in others."""

    def failed(room: str) -> str:
        """Book a room."""
        raise ToolFailed(f"{room} is taken")

    def rich(room: str) -> ToolReturn:
        """Look at a room."""
        return ToolReturn(return_value={"room": room}, content="a picture", metadata={"kept": "here"})

    calls = [call("weather", "t1", city="Oslo"), call("book", "t2", room="7"), call("failed", "t3", room="8")]
    calls += [call("rich", "t4", room="9"), call("weather", "t5", town="Oslo"), call("missing", "t6")]
    planner = agent_of(scene, "Planner", [calls, "Done."], tools=[weather, book, failed, rich])
    return {"answers": said(planner.run_sync("plan a trip", deps=dict(IDS)).all_messages())}


def approved(scene: Scene, how: str, then: str = "") -> dict[str, Any]:
    """A tool waits for a person: the run returns, and a run with the approval continues, or another one starts."""

    def pay(ctx: RunContext[Any], amount: int) -> str:
        """Pay."""
        if how == "raises" and not ctx.tool_call_approved:
            raise ApprovalRequired
        return f"paid {amount}"

    tool = Tool(pay, requires_approval=how == "declared")
    script = [call("pay", "t1", amount=7), "Paid."]
    planner = agent_of(scene, "Planner", script, tools=[tool], output_type=[str, DeferredToolRequests])

    async def go() -> Any:
        done = await planner.run("pay", deps=dict(IDS))
        assert isinstance(done.output, DeferredToolRequests)
        if then == "other":
            return (await planner.run("never mind", deps=dict(IDS))).output
        answers = DeferredToolResults(approvals={"t1": True})
        options: dict[str, Any] = {"deps": dict(IDS), "deferred_tool_results": answers}
        return (await planner.run(message_history=done.all_messages(), **options)).output

    return {"answers": asyncio.run(go())}


class Plan(BaseModel):
    """A structured answer."""

    steps: list[int]


def structured(scene: Scene) -> dict[str, Any]:
    """The planner answers with an object."""
    planner = agent_of(scene, "Planner", [call("final_result", "t1", steps=[1])], output_type=Plan)
    return {"answers": planner.run_sync("plan a trip", deps=dict(IDS)).output.steps}


def own(scene: Scene) -> dict[str, Any]:
    """A tool publishes events, and so does the program after the run."""
    adapter = scene.adapter()

    def approve(ctx: RunContext[Any]) -> str:
        """Ask a person."""
        adapter.publish(ctx, "ui_tool.call_complete", {"tool_name": "approve_plan", "call_id": "u1"})
        adapter.publish(ctx, "Not A Type", {})
        return "approved"

    planner = agent_of(scene, "Planner", [call("approve", "t1"), "Done."], tools=[approve])
    answer = planner.run_sync("plan a trip", deps=dict(IDS)).output
    data = {"structured_data": {"steps": [1]}, "schema_name": "Plan"}
    adapter.core.emit(IDS, "agent.structured_output", data, agent="Planner")
    return {"answers": answer}


def again(scene: Scene) -> dict[str, Any]:
    """The output function asks the model to try again, after it has asked another agent."""
    judge = agent_of(scene, "Judge", ["Bad.", "Good."])

    async def judged(plan: str) -> str:
        """Let the judge see the plan."""
        if (await judge.run(plan)).output == "Bad.":
            raise ModelRetry("try again")
        return plan

    script = [call("final_result", "t1", plan="one"), call("final_result", "t2", plan="two")]
    planner = agent_of(scene, "Planner", script, output_type=judged)
    return {"answers": planner.run_sync("plan a trip", deps=dict(IDS)).output}


def together(scene: Scene, inside: str = "") -> dict[str, Any]:
    """Runs of several chats, and two of one chat, at the same time: all wait in their first model call."""
    waits = asyncio.Event()

    async def go() -> list[str]:
        async def one(chat: str, city: str) -> str:
            script = [call("weather", f"t-{city}", city=city), city]
            agent = agent_of(scene, "Planner", script, waits, tools=[weather])
            running = asyncio.create_task(agent.run("hello", deps={**IDS, "chat_id": chat}))
            await model_of(agent).asked.wait()
            started.release()
            return str((await running).output)

        started = asyncio.Semaphore(0)
        talks: list[asyncio.Task[str]] = []
        for run in CONCURRENT:  # one after the other, so that those of a chat begin in this order
            talks.append(asyncio.create_task(one(*run)))
            await started.acquire()
        waits.set()
        return await asyncio.gather(*talks)

    return {"answers": asyncio.run(go())}


def beside(scene: Scene) -> dict[str, Any]:
    """Two agents of one block at the same time: none takes over from the other."""
    waits = asyncio.Event()

    async def go() -> list[str]:
        agents = [agent_of(scene, name, [f"I am {name}."], waits) for name in ("Planner", "Writer")]
        with scene.adapter().workflow(**IDS):
            running = [asyncio.create_task(agent.run("hello")) for agent in agents]
            for agent in agents:
                await model_of(agent).asked.wait()
            waits.set()
            return [str(done.output) for done in await asyncio.gather(*running)]

    return {"answers": asyncio.run(go())}


@dataclasses.dataclass
class Caller:
    """A caller's own dependencies, with a field that is no data."""

    app_id: str
    user_id: str
    _secret: str = "s3cret"
    client: Any = None


class Plain:
    """A caller's own dependencies, an object like any other."""

    def __init__(self) -> None:
        self.app_id, self.user_id, self.password = "shop", "u1", "s3cret"


def carriers(scene: Scene) -> Result:
    """Dependencies of all kinds; the chat's id is the conversation's or the one in the metadata."""
    for options in (
        {"deps": Caller("shop", "u1", client=object()), "conversation_id": "s1"},
        {"deps": Plain(), "metadata": {"chat_id": "s2", "workflow_name": "Sales", "team": "north"}},
        {"metadata": {"app_id": "shop"}, "conversation_id": "s3"},
        {},
    ):
        agent_of(scene, "Planner", ["Hello."]).run_sync("hello", **options)
    return lambda: {
        "placed": [
            (event.appid, event.chatid, event.workflow, event.userid, event.data["context"])
            for event in scene.bus.events
            if event.type == "workflow.start"
        ]
    }


class Theirs(AbstractCapability[Any]):
    """A capability of the caller: it changes instructions, and answers for a model that fails."""

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        parts = request_context.model_request_parameters.instruction_parts or []
        louder = [dataclasses.replace(part, content=part.content.upper()) for part in parts]
        parameters = dataclasses.replace(request_context.model_request_parameters, instruction_parts=louder)
        return dataclasses.replace(request_context, model_request_parameters=parameters)

    async def on_model_request_error(self, ctx: Any, *, request_context: Any, error: Exception) -> Any:
        return ModelResponse(parts=[TextPart("Sorry.")])


def composed(scene: Scene) -> dict[str, Any]:
    """A capability of the caller's beside ours, which is also passed twice."""
    ours = scene.adapter().capability()
    planner = agent_of(scene, "Planner", [ConnectionError("no model"), "Hello."], capabilities=[Theirs(), ours])
    answers = [planner.run_sync("hello", deps=dict(IDS), capabilities=[ours]).output for _ in range(2)]
    return {"answers": answers}


def turns(scene: Scene, count: str) -> dict[str, Any]:
    """Time turns of one agent without tools."""
    if scene.attached:
        scene.adapter(budget_ms=50)
    with asyncio.Runner() as loop:
        return timed(count, lambda: loop.run(agent_of(scene, "Planner", ["Hello."]).run("hello", deps=dict(IDS))))


if __name__ == "__main__":
    main(PydanticAIAdapter, globals())
