"""Conversations of real agents of the OpenAI Agents SDK with a scripted model, run in an environment that has it.

``python tests/adapters/openai_agents/scenes.py NAME …`` prints the result of a scene as JSON, in its last line.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    ModelRetrySettings,
    ModelSettings,
    OutputGuardrail,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.run import CallModelData, ModelInputData
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tracing import set_trace_processors
from kit import CONCURRENT, IDS, PROMPTS, Result, Scene, cancel, main, outcome, timed
from pydantic import BaseModel

from graphweft_runtimes.openai_agents import OpenAIAgentsAdapter

set_tracing_disabled(disabled=True)


class Scripted(ScriptedModel):
    """Answers by its script: a text, tool calls, or an error. ``waits`` holds up every answer."""

    model = "fake"

    def __init__(self, name: str, script: Sequence[Any], waits: asyncio.Event | None = None) -> None:
        steps = [[assistant_message(step)] if isinstance(step, str) else step for step in script]
        used = Usage(requests=1, input_tokens=5, output_tokens=7, total_tokens=12)
        super().__init__([step if isinstance(step, Exception | list) else [step] for step in steps], default_usage=used)
        self.name, self.waits, self.asked = name, waits, asyncio.Event()

    async def get_response(self, *args: Any, **named: Any) -> Any:
        await self._ask(*args, **named)
        return await super().get_response(*args, **named)

    async def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        await self._ask(*args, **named)
        async for event in super().stream_response(*args, **named):
            yield event

    async def _ask(self, system_instructions: Any = None, input: Any = None, *_: Any, **__: Any) -> None:
        messages = [{"role": one.get("role"), "content": one.get("content", str(one))} for one in input]
        prompt = [{"role": "system", "content": system_instructions}, *messages]
        PROMPTS.append((self.name, prompt))
        self.asked.set()
        if self.waits is not None:
            await self.waits.wait()


def agent_of(name: str, script: Sequence[Any], waits: asyncio.Event | None = None, **named: Any) -> Agent[Any]:
    """Return an agent with its own scripted model."""
    return Agent(name=name, instructions=f"You are {name}.", model=Scripted(name, script, waits), **named)


@function_tool
def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


@function_tool
def book(room: str) -> str:
    """Book a room."""
    raise RuntimeError(f"{room} is taken")


def call(tool: str, call_id: str, **arguments: Any) -> Any:
    """Return a model's call of one tool."""
    return function_call(tool, arguments, call_id=call_id)


def crew(ending: Any = "Draft done.", waits: asyncio.Event | None = None) -> Agent[Any]:
    """Return the planner: it calls a tool that works and one that fails, then hands over to the writer."""
    writer = agent_of("Writer", [ending], waits)
    script = [call("weather", "t1", city="Oslo"), call("book", "t2", room="7"), call("transfer_to_writer", "t3")]
    return agent_of("Planner", script, tools=[weather, book], handoffs=[writer])


def conversation(scene: Scene, mode: str, failing: str = "") -> dict[str, Any]:
    """The planner calls two tools, one of which fails, and hands over to the writer, whose model may fail."""
    adapter = scene.adapter()
    planner = crew(ConnectionError("no model") if failing else "Draft done.")
    session, context = SQLiteSession("s1"), dict(IDS)
    runner: Any = adapter if scene.attached else Runner
    kinds: list[str] = []
    options: dict[str, Any] = {"context": context, "session": session}
    if mode == "hooks":
        config = RunConfig(call_model_input_filter=adapter.call_model_input_filter)
        runner, options = Runner, {**options, "hooks": adapter.hooks, "run_config": config}

    async def talk() -> Any:
        if mode != "streamed":
            return await runner.run(planner, "plan a trip", **options)
        stream = runner.run_streamed(planner, "plan a trip", **options)
        async for event in stream.stream_events():
            kinds.append(event.type)
        return stream

    done, error = outcome(
        lambda: runner.run_sync(planner, "plan a trip", **options) if mode == "sync" else asyncio.run(talk())
    )
    items = [str(item) for item in asyncio.run(session.get_items())]
    history = None if done is None else [done.final_output, done.last_agent.name, str(done.to_input_list())]
    return {
        "answers": [history, items, context, kinds],
        "error": error,
        "kept": done and str(done.to_state().to_json()),
        "instructions": [agent.instructions for agent in (planner, *planner.handoffs)],
    }


def repeated(scene: Scene) -> dict[str, Any]:
    """Three runs of one session: the blocks of earlier turns are gone in later ones."""
    session = SQLiteSession("s1")
    for _ in range(3):
        planner = agent_of("Planner", [call("weather", "t1", city="Oslo"), "Sunny."], tools=[weather])
        scene.adapter().run_sync(planner, "how is it?", context=dict(IDS), session=session)
    return {"kept": [str(item) for item in asyncio.run(session.get_items())]}


def continued(scene: Scene) -> dict[str, Any]:
    """A run of a conversation that the provider keeps."""
    planner = agent_of("Planner", ["Sunny."])
    done = scene.adapter().run_sync(planner, "how is it?", context=dict(IDS), previous_response_id="r1")
    return {"answers": done.final_output}


class Busy(Exception):
    """A provider's answer that the next try may not get."""

    status_code = 503


def retried(scene: Scene, kind: str = "config") -> dict[str, Any]:
    """The settings of the agent allow one more try of a model call. The model is busy twice."""
    tries: list[int] = []

    def policy(context: Any) -> bool:
        tries.append(context.attempt)
        return True

    settings = ModelSettings(retry=ModelRetrySettings(max_retries=2, policy=policy))
    planner = agent_of("Planner", [Busy("later"), Busy("later"), "Sunny."], model_settings=settings)
    given: dict[str, Any] = {"config": {"run_config": RunConfig()}, "mapping": {"run_config": {}}, "none": {}}[kind]
    done, error = outcome(
        lambda: scene.adapter().run_sync(planner, "how is it?", context=dict(IDS), **given).final_output
    )
    return {"answers": done, "error": error, "tries": tries}


def abandoned(scene: Scene) -> None:
    """A stream that nobody reads, whose model hangs."""
    adapter = scene.adapter()

    async def go() -> None:
        writer = agent_of("Writer", ["Draft done."], asyncio.Event())
        planner = agent_of("Planner", [call("transfer_to_writer", "t3")], handoffs=[writer])
        stream = adapter.run_streamed(planner, "plan a trip", context=dict(IDS))
        await writer.model.asked.wait()  # type: ignore[union-attr]
        scene.wait()
        scene.stop_recording()
        stream.cancel()

    asyncio.run(go())


def unread(scene: Scene) -> dict[str, Any]:
    """A stream that nobody reads runs to its end."""

    async def go() -> Any:
        stream = scene.adapter().run_streamed(crew(), "plan a trip", context=dict(IDS))
        await asyncio.wait({stream.run_loop_task})
        return stream.final_output

    return {"answers": asyncio.run(go()), "error": None}


def cancelled(scene: Scene, how: str) -> dict[str, Any]:
    """The caller gives up a run while the model works: its task, or its stream."""
    adapter = scene.adapter()

    async def go() -> str | None:
        planner = agent_of("Planner", ["too late"], asyncio.Event())
        if how == "task":
            task = asyncio.create_task(adapter.run(planner, "plan a trip", context=dict(IDS)))
            await planner.model.asked.wait()  # type: ignore[union-attr]
            return await cancel(task)
        stream = adapter.run_streamed(planner, "plan a trip", context=dict(IDS))
        await planner.model.asked.wait()  # type: ignore[union-attr]
        stream.cancel()
        await asyncio.wait({stream.run_loop_task})
        return None

    return {"error": asyncio.run(go())}


def stopped(scene: Scene, what: str, mode: str = "run") -> dict[str, Any]:
    """A run that the SDK ends: too many turns (handled or not), a guardrail before, beside or after the agent.

    A stream still waits for its model after a guardrail beside it has refused the input.
    """
    adapter = scene.adapter()

    def trips(*_: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info="no", tripwire_triggered=True)

    script: list[Any] = ["Done."]
    named: dict[str, Any] = {}
    options: dict[str, Any] = {"context": dict(IDS)}
    if what.startswith("turns"):
        script, named = [call("weather", f"t{number}", city="Oslo") for number in range(3)], {"tools": [weather]}
        options["max_turns"] = 1
    if what == "turns-handled":
        options["error_handlers"] = {"max_turns": lambda _: "Enough."}
    if what in {"before", "beside"}:
        named["input_guardrails"] = [InputGuardrail(guardrail_function=trips, run_in_parallel=what == "beside")]
    if what == "after":
        named["output_guardrails"] = [OutputGuardrail(guardrail_function=trips)]

    async def go() -> None:
        planner = agent_of("Planner", script, asyncio.Event() if what == "beside" and mode == "run" else None, **named)
        if mode == "run":
            await adapter.run(planner, "plan a trip", **options)
            return
        stream = adapter.run_streamed(planner, "plan a trip", **options)
        async for _ in stream.stream_events():
            pass

    return {"error": outcome(lambda: asyncio.run(go()))[1]}


def tools(scene: Scene, tracing: str) -> dict[str, Any]:
    """Tools fail at the same time in every way of the SDK: by default, with their own text, or by a timeout."""
    if tracing == "on":
        set_tracing_disabled(disabled=False)
        set_trace_processors([])

    @function_tool(failure_error_function=lambda _, error: f"sorry: {error}")
    def own(room: str) -> str:
        """Book a room."""
        raise RuntimeError(f"{room} is taken")

    @function_tool(timeout=0.01)
    async def late() -> str:
        """Take long."""
        await asyncio.Event().wait()
        return "late"

    adapter = scene.adapter()
    calls = [call("weather", "t1", city="Oslo"), call("book", "t2", room="7")]
    calls += [call("own", "t3", room="8"), call("late", "t4")]
    planner = agent_of("Planner", [calls, "Done."], tools=[weather, book, own, late])
    ours = adapter.run_sync(planner, "plan a trip", context=dict(IDS))
    adapter.core.flush()
    before = len(scene.bus.events)
    theirs = Runner.run_sync(agent_of("Planner", [calls, "Done."], tools=planner.tools), "plan a trip")
    adapter.core.flush()
    others = len(scene.bus.events) - before
    same = ours.to_input_list() == theirs.to_input_list() and weather.__wrapped__("Oslo") == "sunny in Oslo"
    return {"events_of_others": others, "same": same}


def raising(scene: Scene) -> dict[str, Any]:
    """A tool whose failure fails the run."""

    @function_tool(failure_error_function=None)
    def strict(room: str) -> str:
        """Book a room."""
        raise RuntimeError(f"{room} is taken")

    planner = agent_of("Planner", [call("strict", "t1", room="7")], tools=[strict])
    return {"error": outcome(lambda: scene.adapter().run_sync(planner, "plan a trip", context=dict(IDS)))[1]}


def nested(scene: Scene, hooks: str = "", count: str = "1", failing: str = "") -> dict[str, Any]:
    """An agent is a tool, perhaps twice at the same time; with the adapter's hooks or without."""
    adapter = scene.adapter()
    says: list[Any] = [ConnectionError("no model")] if failing else ["Draft done."]
    if count == "2" and not failing:
        says.insert(0, call("weather", "w1", city="Oslo"))
    more = {"hooks": adapter.hooks} if hooks else {}
    numbers = range(1, int(count) + 1)
    writers = [
        agent_of("Writer", list(says), tools=[weather]).as_tool(f"writer_{number}", "Writes.", **more)
        for number in numbers
    ]
    calls = [call(f"writer_{number}", f"t{number}", input="write") for number in numbers]
    planner = agent_of("Planner", [calls, "Plan done."], tools=writers)
    return {"answers": adapter.run_sync(planner, "plan a trip", context=dict(IDS)).final_output}


def approved(scene: Scene) -> dict[str, Any]:
    """A tool waits for a person: the run returns, and continues from its state."""
    adapter = scene.adapter()

    @function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    planner = agent_of("Planner", [call("pay", "t1", amount=7), "Paid."], tools=[pay])

    async def go() -> str:
        done = await adapter.run(planner, "pay", context=dict(IDS))
        state = done.to_state()
        state.approve(done.interruptions[0])
        return str((await adapter.run(planner, state)).final_output)

    return {"answers": asyncio.run(go())}


def together(scene: Scene) -> dict[str, Any]:
    """Runs of several chats, and two of one chat, at the same time: all wait in their first model call."""
    adapter = scene.adapter()

    async def go() -> list[str]:
        async def talk(chat: str, city: str) -> str:
            agent = agent_of("Planner", [call("weather", f"t-{city}", city=city), city], waits, tools=[weather])
            running = asyncio.create_task(adapter.run(agent, "hello", context={**IDS, "chat_id": chat}))
            await agent.model.asked.wait()  # type: ignore[union-attr]
            started.release()
            return str((await running).final_output)

        waits, started = asyncio.Event(), asyncio.Semaphore(0)
        talks: list[asyncio.Task[str]] = []
        for run in CONCURRENT:  # one after the other, so that those of a chat begin in this order
            talks.append(asyncio.create_task(talk(*run)))
            await started.acquire()
        waits.set()
        return await asyncio.gather(*talks)

    return {"answers": asyncio.run(go())}


@dataclasses.dataclass
class Caller:
    """A caller's own context, with a field that is no data."""

    app_id: str
    user_id: str
    _secret: str = "s3cret"
    loop: Any = None


class Model(BaseModel):
    """A caller's own context."""

    app_id: str
    user_id: str
    chat_id: str = "c1"


class Plain:
    """A caller's own context, an object like any other."""

    def __init__(self) -> None:
        self.app_id, self.user_id, self.password = "shop", "u1", "s3cret"


def carriers(scene: Scene) -> Result:
    """Contexts of all kinds; the chat's id is the session's, the conversation's, the group's or the context's."""
    adapter = scene.adapter()
    group = RunConfig(group_id="g1", workflow_name="Sales")
    for options in (
        {"context": Caller("shop", "u1", loop=object()), "session": SQLiteSession("s1")},
        {"context": Model(app_id="shop", user_id="u1"), "session": SQLiteSession("s1")},
        {"context": Plain(), "run_config": group},
        {"context": RunContextWrapper({"app_id": "shop"}), "run_config": {"group_id": "g2"}},
    ):
        adapter.run_sync(agent_of("Planner", ["Hello."]), "hello", **options)
    adapter.run_sync(agent_of("Planner", ["Hello."]), "hello")
    return lambda: {
        "placed": [
            (event.appid, event.chatid, event.workflow, event.userid, event.data["context"])
            for event in scene.bus.events
            if event.type == "workflow.start"
        ]
    }


def composed(scene: Scene) -> dict[str, Any]:
    """Hooks and a filter of the caller, which stay unchanged; and objects that are no hooks or filter."""
    adapter = scene.adapter()
    calls: list[str] = []

    class Theirs(RunHooks[Any]):
        async def on_agent_start(self, context: Any, agent: Any) -> None:
            calls.append(f"start {agent.name}")

        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
            calls.append(f"end {agent.name} {output}")

        async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
            calls.append(f"over {from_agent.name} {to_agent.name}")

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            calls.append(f"tool {tool.name}")

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            calls.append(f"done {tool.name}")

        async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
            calls.append(f"ask {system_prompt.splitlines()[0]}")

        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            calls.append("answer")

    def shout(data: CallModelData[Any]) -> ModelInputData:
        return ModelInputData(input=data.model_data.input, instructions=str(data.model_data.instructions).upper())

    config = RunConfig(call_model_input_filter=shout)
    hooks = Theirs()
    adapter.run_sync(crew(), "plan a trip", context=dict(IDS), hooks=hooks, run_config=config)
    ours = RunConfig(call_model_input_filter=adapter.call_model_input_filter)
    adapter.run_sync(crew(), "plan a trip", context=dict(IDS), hooks=adapter.hooks, run_config=ours)
    refused = ({"hooks": "none"}, {"run_config": RunConfig(call_model_input_filter=lambda _: "garbage")})
    errors = [
        outcome(lambda: adapter.run_sync(crew(), "plan a trip", context=dict(IDS), **options))[1]  # noqa: B023
        for options in refused
    ]
    return {"calls": calls, "errors": errors, "untouched": config.call_model_input_filter is shout}


def turns(scene: Scene, count: str) -> dict[str, Any]:
    """Time turns of one agent without tools."""
    adapter = scene.adapter(budget_ms=50)
    runner: Any = adapter if scene.attached else Runner
    with asyncio.Runner() as loop:
        return timed(count, lambda: loop.run(runner.run(agent_of("Planner", ["Hello."]), "hello", context=dict(IDS))))


if __name__ == "__main__":
    main(OpenAIAgentsAdapter, globals())
