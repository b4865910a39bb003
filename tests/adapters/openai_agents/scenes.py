"""Conversations of real agents of the OpenAI Agents SDK with a scripted model, run in an environment that has it.

``python tests/adapters/openai_agents/scenes.py NAME …`` prints what came of one as JSON, in its last line.
"""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
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
from kit import IDS, PROMPTS, Bus, play, result, settings_of
from pydantic import BaseModel

from graphweft.adapters.openai_agents import OpenAIAgentsAdapter

set_tracing_disabled(disabled=True)


class Scripted(ScriptedModel):
    """Says what its script says: a text, tool calls, or an error. ``waits`` holds up every answer."""

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
        PROMPTS.append((self.name, [system_instructions, str(input)]))
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


def adapter_of(bus: Bus, **settings: Any) -> OpenAIAgentsAdapter:
    """Return an adapter with a client of its own on the bus."""
    return OpenAIAgentsAdapter(**settings_of(bus, **settings))


def conversation(mode: str, way: str = "works", failing: str = "") -> dict[str, Any]:
    """The planner's two tool calls, of which one fails, and its hand-over to the writer, whose model may fail."""
    bus = Bus(way)
    adapter = adapter_of(bus)
    planner = crew(ConnectionError("no model") if failing else "Draft done.")
    session, context = SQLiteSession("s1"), dict(IDS)
    runner: Any = Runner if way == "none" else adapter
    if way == "none":
        assert mode in {"sync", "async", "streamed"}
    kinds: list[str] = []
    error, done = None, None
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

    try:
        done = runner.run_sync(planner, "plan a trip", **options) if mode == "sync" else asyncio.run(talk())
    except ConnectionError as raised:
        error = f"{type(raised).__name__}: {raised}"
    adapter.close(0.1)
    kept = [str(item) for item in asyncio.run(session.get_items())]
    history = None if done is None else [done.final_output, done.last_agent.name, str(done.to_input_list())]
    state = None if done is None else str(done.to_state().to_json())
    return result(
        adapter.core, bus, error=error, history=history, kept=kept, kinds=kinds, context=context,
        instructions=planner.instructions, state=state and ("block" in state),
    )  # fmt: skip


def repeated() -> dict[str, Any]:
    """Three runs of one session: the blocks of earlier turns are gone in later ones."""
    bus = Bus()
    adapter = adapter_of(bus)
    session = SQLiteSession("s1")
    for _ in range(3):
        planner = agent_of("Planner", [call("weather", "t1", city="Oslo"), "Sunny."], tools=[weather])
        adapter.run_sync(planner, "how is it?", context=dict(IDS), session=session)
    kept = [str(item) for item in asyncio.run(session.get_items())]
    adapter.close()
    return result(adapter.core, bus, kept=kept)


def abandoned() -> dict[str, Any]:
    """A stream that nobody reads, whose model hangs."""
    bus, now_s = Bus(), [0.0]
    adapter = adapter_of(bus, idle_s=10, clock=lambda: now_s[0])

    async def go() -> dict[str, Any]:
        writer = agent_of("Writer", ["Draft done."], asyncio.Event())
        planner = agent_of("Planner", [call("transfer_to_writer", "t3")], handoffs=[writer])
        stream = adapter.run_streamed(planner, "plan a trip", context=dict(IDS))
        await writer.model.asked.wait()  # type: ignore[union-attr]
        now_s[0] = 11.0
        adapter.core.tick()
        adapter.core.flush()
        found = result(adapter.core, bus)
        stream.cancel()
        return found

    found = asyncio.run(go())
    adapter.close()
    return found


def unread() -> dict[str, Any]:
    """A stream that nobody reads runs to its end all the same."""
    bus = Bus()
    adapter = adapter_of(bus)

    async def go() -> None:
        stream = adapter.run_streamed(crew(), "plan a trip", context=dict(IDS))
        await asyncio.wait({stream.run_loop_task})

    asyncio.run(go())
    adapter.close()
    return result(adapter.core, bus)


def cancelled(how: str) -> dict[str, Any]:
    """A run that its caller gives up while the model is at work: its task, or its stream."""
    bus = Bus()
    adapter = adapter_of(bus)
    raised: list[str] = []

    async def go() -> None:
        planner = agent_of("Planner", ["too late"], asyncio.Event())
        if how == "task":
            task = asyncio.create_task(adapter.run(planner, "plan a trip", context=dict(IDS)))
            await planner.model.asked.wait()  # type: ignore[union-attr]
            task.cancel()
            raised.extend(type(one).__name__ for one in await asyncio.gather(task, return_exceptions=True))
        else:
            stream = adapter.run_streamed(planner, "plan a trip", context=dict(IDS))
            await planner.model.asked.wait()  # type: ignore[union-attr]
            stream.cancel()
            await asyncio.wait({stream.run_loop_task})

    asyncio.run(go())
    adapter.close()
    return result(adapter.core, bus, raised=raised)


def stopped(what: str, mode: str = "run") -> dict[str, Any]:
    """A run that the SDK ends: too many turns (handled or not), a guardrail before, beside or after the agent.

    A stream goes on waiting for its model after a guardrail beside it has refused the input.
    """
    bus = Bus()
    adapter = adapter_of(bus)
    raised: list[str] = []

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
        try:
            if mode == "run":
                await adapter.run(planner, "plan a trip", **options)
                return
            stream = adapter.run_streamed(planner, "plan a trip", **options)
            async for _ in stream.stream_events():
                pass
        except Exception as error:  # noqa: BLE001 - what it is, is the question
            raised.append(type(error).__name__)

    asyncio.run(go())
    adapter.close()
    return result(adapter.core, bus, raised=raised)


def tools(tracing: str) -> dict[str, Any]:
    """Tools that fail in every way that the SDK has, at the same time: by default, by a text of their own, too late."""
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
        await asyncio.sleep(60)
        return "late"

    bus = Bus()
    adapter = adapter_of(bus)
    calls = [call("weather", "t1", city="Oslo"), call("book", "t2", room="7")]
    calls += [call("own", "t3", room="8"), call("late", "t4")]
    planner = agent_of("Planner", [calls, "Done."], tools=[weather, book, own, late])
    ours = adapter.run_sync(planner, "plan a trip", context=dict(IDS))
    adapter.core.flush()
    before = len(bus.events)
    theirs = Runner.run_sync(agent_of("Planner", [calls, "Done."], tools=planner.tools), "plan a trip")
    adapter.core.flush()
    others = len(bus.events) - before
    adapter.close()
    same = ours.to_input_list() == theirs.to_input_list() and weather.__wrapped__("Oslo") == "sunny in Oslo"
    return result(adapter.core, bus, told_of_others=others, same=same)


def raising() -> dict[str, Any]:
    """A tool whose failure is the run's."""

    @function_tool(failure_error_function=None)
    def strict(room: str) -> str:
        """Book a room."""
        raise RuntimeError(f"{room} is taken")

    bus = Bus()
    adapter = adapter_of(bus)
    planner = agent_of("Planner", [call("strict", "t1", room="7")], tools=[strict])
    raised: list[str] = []
    try:
        adapter.run_sync(planner, "plan a trip", context=dict(IDS))
    except Exception as error:  # noqa: BLE001 - what it is, is the question
        raised.append(f"{type(error).__name__}: {error}")
    adapter.close()
    return result(adapter.core, bus, raised=raised)


def nested(hooks: str = "", failing: str = "") -> dict[str, Any]:
    """An agent as a tool, twice at the same time; with the adapter's hooks or without, and its model may fail."""
    bus = Bus()
    adapter = adapter_of(bus)
    says: list[Any] = [ConnectionError("no model")] if failing else [call("weather", "w1", city="Oslo"), "Sunny."]
    more = {"hooks": adapter.hooks} if hooks else {}
    scouts = [
        agent_of("Scout", list(says), tools=[weather]).as_tool(f"scout_{number}", "Looks around.", **more)
        for number in (1, 2)
    ]  # fmt: skip
    both = [call("scout_1", "t1", input="look"), call("scout_2", "t2", input="look")]
    planner = agent_of("Planner", [both, "Done."], tools=scouts)
    done = adapter.run_sync(planner, "plan a trip", context=dict(IDS))
    adapter.close()
    return result(adapter.core, bus, answer=done.final_output)


def approved() -> dict[str, Any]:
    """A tool that waits for a person: the run comes back, and goes on from its state."""
    bus = Bus()
    adapter = adapter_of(bus)

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

    answer = asyncio.run(go())
    adapter.close()
    return result(adapter.core, bus, answer=answer)


def chats() -> dict[str, Any]:
    """Three chats at a time on one adapter, and in the first of them the same agent twice."""
    bus = Bus()
    adapter = adapter_of(bus)

    async def go() -> list[str]:
        async def talk(chat: str, answer: str, waits: asyncio.Event) -> str:
            agent = agent_of("Planner", [call("weather", f"t-{answer}", city=answer), answer], waits, tools=[weather])
            running = asyncio.create_task(adapter.run(agent, "hello", context={**IDS, "chat_id": chat}))
            await agent.model.asked.wait()  # type: ignore[union-attr]
            started.release()
            return str((await running).final_output)

        waits, started = asyncio.Event(), asyncio.Semaphore(0)
        talks = [
            asyncio.create_task(talk(chat, answer, waits))
            for chat, answer in (("c1", "a"), ("c1", "b"), ("c2", "c"), ("c3", "d"))
        ]
        for _ in talks:
            await started.acquire()
        waits.set()
        return await asyncio.gather(*talks)

    answers = asyncio.run(go())
    adapter.close()
    placed = [(event.chatid, event.type, event.data.get("turn_number")) for event in bus.events]
    return result(adapter.core, bus, answers=answers, placed=placed)


@dataclasses.dataclass
class Caller:
    """A caller's own context, with something in it that is no data."""

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


def carriers() -> dict[str, Any]:
    """Contexts of all kinds; the chat's id is the session's, the conversation's, the group's or the context's."""
    bus = Bus()
    adapter = adapter_of(bus)
    group = RunConfig(group_id="g1", workflow_name="Sales")
    for options in (
        {"context": Caller("shop", "u1", loop=object()), "session": SQLiteSession("s1")},
        {"context": Model(app_id="shop", user_id="u1"), "session": SQLiteSession("s1")},
        {"context": Plain(), "run_config": group},
        {"context": RunContextWrapper({"app_id": "shop"}), "run_config": {"group_id": "g2"}},
    ):
        adapter.run_sync(agent_of("Planner", ["Hello."]), "hello", **options)
    adapter.run_sync(agent_of("Planner", ["Hello."]), "hello")
    adapter.close()
    starts = [event for event in bus.events if event.type == "workflow.start"]
    placed = [(event.appid, event.chatid, event.workflow, event.userid, event.data["context"]) for event in starts]
    return result(adapter.core, bus, placed=placed)


def composed() -> dict[str, Any]:
    """Hooks and a filter of the caller's own, which are as they were; and hooks that are none."""
    bus = Bus()
    adapter = adapter_of(bus)
    heard: list[str] = []

    class Theirs(RunHooks[Any]):
        async def on_agent_start(self, context: Any, agent: Any) -> None:
            heard.append(f"start {agent.name}")

        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
            heard.append(f"end {agent.name} {output}")

        async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
            heard.append(f"over {from_agent.name} {to_agent.name}")

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            heard.append(f"tool {tool.name}")

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            heard.append(f"done {tool.name}")

        async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
            heard.append(f"ask {system_prompt.splitlines()[0]}")

        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            heard.append("told")

    def shout(data: CallModelData[Any]) -> ModelInputData:
        return ModelInputData(input=data.model_data.input, instructions=str(data.model_data.instructions).upper())

    config = RunConfig(call_model_input_filter=shout)
    hooks = Theirs()
    adapter.run_sync(crew(), "plan a trip", context=dict(IDS), hooks=hooks, run_config=config)
    ours = RunConfig(call_model_input_filter=adapter.call_model_input_filter)
    adapter.run_sync(crew(), "plan a trip", context=dict(IDS), hooks=adapter.hooks, run_config=ours)
    errors: list[str] = []
    for options in ({"hooks": "none"}, {"run_config": RunConfig(call_model_input_filter=lambda _: "garbage")}):
        try:
            adapter.run_sync(crew(), "plan a trip", context=dict(IDS), **options)
        except Exception as error:  # noqa: BLE001 - what it is, is the question
            errors.append(f"{type(error).__name__}: {error}")
    adapter.close()
    untouched = config.call_model_input_filter is shout
    return result(adapter.core, bus, heard=heard, errors=errors, untouched=untouched)


def turns(way: str, count: str) -> dict[str, Any]:
    """``count`` turns of one agent without tools; "none" is without the adapter."""
    bus = Bus(way)
    adapter = adapter_of(bus, budget_ms=50)
    runner: Any = Runner if way == "none" else adapter

    async def go() -> list[float]:
        taken: list[float] = []
        for _ in range(int(count)):
            agent = agent_of("Planner", ["Hello."])
            started_s = time.perf_counter()
            await runner.run(agent, "hello", context=dict(IDS))
            taken.append((time.perf_counter() - started_s) * 1000)
        return taken

    taken = asyncio.run(go())
    adapter.close(0.1)
    return {"ms": taken}


if __name__ == "__main__":
    play(
        abandoned, approved, cancelled, carriers, chats, composed, conversation, nested, raising, repeated, stopped,
        tools, turns, unread,
    )  # fmt: skip
