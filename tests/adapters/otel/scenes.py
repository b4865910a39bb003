"""Conversations as GenAI spans: those of Microsoft Agent Framework with a scripted model, and spans made by hand.

``python tests/adapters/otel/scenes.py NAME …`` prints the result of a scene as JSON, in its last line. Annotations are
evaluated here, for Agent Framework makes the schemas of its tools by them.
"""

import asyncio
import contextlib
import gc
import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    WorkflowBuilder,
    tool,
)
from agent_framework.observability import ChatTelemetryLayer, enable_instrumentation
from kit import CONCURRENT, IDS, PROMPTS, Bus, Result, Scene, cancel, main, outcome, settings_of, timed
from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import Status, StatusCode

from graphweft.adapters.genai import events_of
from graphweft_runtimes.otel import GraphweftSpanProcessor
from graphweft_runtimes.otel.adapter import _read

PLACED = {"graphweft.app_id": IDS["app_id"], "graphweft.workflow_name": IDS["workflow_name"], "user.id": IDS["user_id"]}
"""Resource attributes with the ids of all spans, except the chat: the spans name it."""


class Ended(SpanProcessor):
    """Keeps spans as they end, as an exporter gets them."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def on_end(self, span: Any) -> None:
        self.spans.append(span)


class Traced:
    """A provider with the processor on a bus, and with a record of the ended spans."""

    def __init__(self, scene: Scene, resource: dict[str, str] | None = None, **settings: Any) -> None:
        self.processor = scene.adapter(**settings)
        self.bus = scene.bus
        self.ended = Ended()
        self.provider = TracerProvider(resource=Resource(PLACED if resource is None else resource))
        if scene.attached:
            self.provider.add_span_processor(self.processor)
        self.provider.add_span_processor(self.ended)
        self.tracer = self.provider.get_tracer("by hand")

    def found(self, **more: Any) -> Result:
        """Return the ended spans, and what a receiver makes of them in one request."""
        self.provider.shutdown()
        received = [
            {**one.data, "type": one.type, "id": one.id, "chat": one.place.chat_id}
            for one in events_of([_read(span) for span in self.ended.spans])
        ]
        spans = sorted(each.name for each in self.ended.spans)
        times = lambda: [event.time.isoformat() for event in self.bus.events]  # noqa: E731
        return lambda: {"received": received, "spans": spans, "times": times(), **more}


@contextlib.contextmanager
def span(
    traced: Traced, operation: str, name: str = "", chat: str | None = IDS["chat_id"], **more: Any
) -> Iterator[Any]:
    """Make a span of an operation by the conventions, with its attributes from the start."""
    attributes = {"gen_ai.operation.name": operation, **({} if chat is None else {"gen_ai.conversation.id": chat})}
    attributes |= {f"gen_ai.{key.replace('__', '.')}": value for key, value in more.items()}
    with traced.tracer.start_as_current_span(f"{operation} {name}".strip(), attributes=attributes) as made:
        try:
            yield made
        except Exception as error:
            made.set_attribute("error.type", type(error).__name__)
            made.set_status(Status(StatusCode.ERROR, str(error)))
            raise


def model(traced: Traced, error: Exception | None = None, **more: Any) -> None:
    """Make a span of a model call."""
    with span(traced, "chat", "fake", request__model="fake", **more) as made:
        if error is not None:
            raise error
        made.set_attribute("gen_ai.response.model", "fake-1")
        made.set_attribute("gen_ai.usage.input_tokens", 5)
        made.set_attribute("gen_ai.usage.output_tokens", 7)


def call(traced: Traced, name: str, call_id: str, arguments: str, returned: str | Exception, **more: Any) -> None:
    """Make a span of a tool's call."""
    about = {"tool__name": name, "tool__call.id": call_id, "tool__call.arguments": arguments}
    with contextlib.suppress(RuntimeError), span(traced, "execute_tool", name, **about, **more) as made:
        if isinstance(returned, Exception):
            raise returned
        made.set_attribute("gen_ai.tool.call.result", returned)


def said(made: Any, text: str) -> None:
    """Let an agent's span hold its answer."""
    message = {"role": "assistant", "parts": [{"type": "text", "content": text}], "finish_reason": "stop"}
    made.set_attribute("gen_ai.output.messages", json.dumps([message]))


def trip(traced: Traced, error: Exception | None = None, chat: str | None = IDS["chat_id"]) -> None:
    """The planner calls two tools, one of which fails, and hands over to the writer, whose model may fail.

    Only the agents' spans name the conversation and the agent.
    """
    with span(traced, "invoke_workflow", "Trip", chat, workflow__name="Trip") as workflow:
        with span(traced, "invoke_agent", "Planner", chat, agent__name="Planner", agent__id="p-1"):
            model(traced, chat=None)
            call(traced, "weather", "t1", '{"city": "Oslo"}', "sunny in Oslo", chat=None)
            model(traced, chat=None)
            call(traced, "book", "t2", '{"room": "7"}', RuntimeError("7 is taken"), chat=None)
            model(traced, chat=None)
            call(traced, "to_writer", "t3", "{}", "over to you", chat=None)
        with span(traced, "invoke_agent", "Writer", chat, agent__name="Writer") as writer:
            model(traced, error, chat=None)
            said(writer, "Draft done.")
        said(workflow, "Draft done.")


def by_hand(scene: Scene, chat: str = IDS["chat_id"], failing: str = "") -> Result:
    """The conversation as the conventions have it; ``chat`` "unknown": without a conversation's id."""
    traced = Traced(scene)
    error = ConnectionError("no model") if failing else None
    raised = outcome(lambda: trip(traced, error, None if chat == "unknown" else chat))[1]
    return traced.found(error=raised, trace=f"{traced.ended.spans[-1].context.trace_id:032x}")


def together(scene: Scene) -> Result:
    """Turns of several chats, and two of one chat, at the same time."""
    traced, everyone = Traced(scene), threading.Barrier(len(CONCURRENT))

    def talk(chat: str, city: str, started: threading.Event) -> None:
        with span(traced, "invoke_agent", "Planner", chat, agent__name="Planner") as agent:
            started.set()
            everyone.wait(30)
            model(traced, chat=None)
            call(traced, "weather", f"t-{city}", "{}", f"sunny in {city}", chat=None)
            model(traced, chat=None)
            said(agent, city)
            everyone.wait(30)

    threads: list[threading.Thread] = []
    for run in CONCURRENT:
        started = threading.Event()
        threads.append(threading.Thread(target=talk, args=(*run, started)))
        threads[-1].start()
        started.wait(30)
    for each in threads:
        each.join()
    return traced.found(answers=[city for _, city in CONCURRENT])


def late(scene: Scene) -> Result:
    """Spans that get their attributes after their start, as in Agent Framework, below one without an agent."""
    traced = Traced(scene)
    with traced.tracer.start_as_current_span("GET /chat"):
        with traced.tracer.start_as_current_span("work") as agent:
            agent.set_attribute("gen_ai.operation.name", "invoke_agent")
            agent.set_attribute("gen_ai.agent.name", "Planner")
            agent.set_attribute("gen_ai.conversation.id", "c9")
            with traced.tracer.start_as_current_span("POST /v1/chat/completions") as request:
                request.set_attribute("gen_ai.operation.name", "chat")
        with traced.tracer.start_as_current_span("later") as agent:
            model(traced, chat=None)
            agent.set_attribute("gen_ai.operation.name", "invoke_agent")
            agent.set_attribute("gen_ai.agent.name", "Late")
    return traced.found()


def abandoned(scene: Scene) -> Result:
    """A turn whose span never ends."""
    traced = Traced(scene)
    agent = traced.tracer.start_span("invoke_agent Planner", attributes={"gen_ai.operation.name": "invoke_agent"})
    context.attach(trace.set_span_in_context(agent))
    model(traced, chat=None)
    scene.wait()
    return traced.found()


def twice(scene: Scene) -> Result:
    """Two processors on one provider, as where a program is captured in two ways."""
    traced = Traced(scene)
    other = GraphweftSpanProcessor(**settings_of(traced.bus))
    traced.provider.add_span_processor(other)
    with contextlib.suppress(ConnectionError):
        trip(traced, ConnectionError("no model"))
    return traced.found()


def own_traffic(scene: Scene) -> Result:
    """Calls of the bus belong to no span of the program, and instrumented libraries make no spans of them."""
    traced, seen = Traced(scene), []
    append = traced.bus.append

    async def watched(events: Any) -> list[str]:
        suppressed = context.get_value(getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY"))  # noqa: B009
        seen.append([trace.get_current_span().get_span_context().is_valid, bool(suppressed)])
        return await append(events)

    traced.bus.append = watched  # type: ignore[method-assign]
    trip(traced)
    return traced.found(seen=seen)


def forked(scene: Scene, held: str = "") -> dict[str, Any]:
    """A server forks its workers after the processor was made: each has its own thread.

    ``held``: while another thread is within the adapter.
    """
    reader, writer = os.pipe()
    processor = GraphweftSpanProcessor(app_id="shop")
    provider = TracerProvider()
    provider.add_span_processor(processor)
    before = processor.core
    locks = [processor._lock, before._lock] if held else []  # pyright: ignore[reportPrivateUsage]
    inside, left = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            inside.set()
            left.wait()

    other = threading.Thread(target=hold)
    other.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        before.close()
        with provider.get_tracer("x").start_as_current_span("invoke_agent Planner"):
            pass
        made = [processor.core is not before, processor.core.stats.dropped, processor.core.flush(0)]
        os.write(writer, json.dumps(made).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    left.set()
    other.join()
    return {"child": json.loads(os.read(reader, 1000) or b"null")}


def without_provider(scene: Scene) -> dict[str, Any]:
    """An exporter that is made before there is a provider: ended spans, in batches."""
    from graphweft_runtimes.otel.exporter import GraphweftSpanExporter

    scene.attached = False
    traced = Traced(scene)
    trip(traced)
    bus = Bus()
    exporter = GraphweftSpanExporter(**settings_of(bus))
    exporter.export(traced.ended.spans[:4])
    exporter.export(traced.ended.spans[4:])
    exporter.force_flush()
    exporter.shutdown()
    return {"events": [{"type": event.type, **event.data} for event in bus.events]}


def turns(scene: Scene, count: str) -> dict[str, Any]:
    """Time turns of one agent without tools."""
    traced = Traced(scene, budget_ms=50)

    def turn() -> None:
        with span(traced, "invoke_agent", "Planner", agent__name="Planner"):
            model(traced)

    return timed(count, turn)


# Microsoft Agent Framework


class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, BaseChatClient):  # type: ignore[misc]
    """A model that answers by its script: a text, a tool call, or an error."""

    def __init__(self, script: Sequence[Any]) -> None:
        super().__init__()
        self.script = list(script)

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **named: Any) -> Any:
        PROMPTS.append(("model", [str(message.text) for message in messages]))
        usage = {"input_token_count": 5, "output_token_count": 7}

        def step() -> Any:
            said = self.script.pop(0)
            if isinstance(said, BaseException):
                raise said
            return said

        async def whole() -> Any:
            said = step()
            if callable(said):
                said = await said()
            return ChatResponse(messages=[Message("assistant", said)], model="fake", usage_details=usage)  # type: ignore[typeddict-item]

        async def parts() -> Any:
            for content in step():
                part = Content.from_text(content) if isinstance(content, str) else content
                yield ChatResponseUpdate(role="assistant", contents=[part], model="fake")

        return ResponseStream(parts(), finalizer=ChatResponse.from_updates) if stream else whole()


@tool(approval_mode="never_require")
def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


@tool(approval_mode="never_require")
def book(room: str) -> str:
    """Book a room."""
    raise RuntimeError(f"{room} is taken")


@tool(approval_mode="never_require")
def to_writer() -> str:
    """Hand over to the writer."""
    return "over to you"


def asked(name: str, call_id: str, **arguments: Any) -> list[Any]:
    """Return a model's message that calls one tool."""
    return [Content.from_function_call(call_id=call_id, name=name, arguments=json.dumps(arguments))]


def crew(ending: Any = "Draft done.") -> tuple[Agent, Agent]:
    """Return the planner and the writer."""
    script = [asked("weather", "t1", city="Oslo"), asked("book", "t2", room="7"), asked("to_writer", "t3"), ["Done."]]
    planner = Agent(Scripted(script), name="Planner", tools=[weather, book, to_writer])
    return planner, Agent(Scripted([ending if isinstance(ending, BaseException) else [ending]]), name="Writer")


def observed(traced: Traced) -> None:
    """Let Agent Framework make its spans by the provider."""
    trace.set_tracer_provider(traced.provider)
    enable_instrumentation(enable_sensitive_data=True)


def agents(scene: Scene, mode: str = "run", failing: str = "") -> Result:
    """The conversation as a workflow of Agent Framework, whole or streamed."""
    traced, outputs = Traced(scene, {name: PLACED[name] for name in ("graphweft.app_id", "user.id")}), []
    observed(traced)
    planner, writer = crew(ConnectionError("no model") if failing else "Draft done.")
    workflow = WorkflowBuilder(start_executor=planner, name="Trip").add_edge(planner, writer).build()

    async def go() -> None:
        if mode == "run":
            outputs.extend(str(each) for each in (await workflow.run("plan a trip")).get_outputs())
            return
        async for event in workflow.run("plan a trip", stream=True):
            if event.type == "output":
                outputs.append(str(event.data))

    error = outcome(lambda: asyncio.run(go()))[1]
    return traced.found(error=error, answers=outputs)


def given_up(scene: Scene, how: str) -> Result:
    """A run that is cancelled while the model works, or a stream left open: held by the program, or forgotten."""
    traced = Traced(scene)
    observed(traced)
    streams = []

    async def give_up() -> None:
        begun = asyncio.Event()

        async def never() -> Any:
            begun.set()
            await asyncio.Event().wait()

        run = asyncio.create_task(Agent(Scripted([never]), name="Planner").run("hi"))
        await begun.wait()
        await cancel(run)

    async def leave() -> None:
        streams.append(Agent(Scripted([["It ", "rains."]]), name="Planner").run("hi", stream=True))
        async for _ in streams[0]:
            break

    asyncio.run(give_up() if how == "cancelled" else leave())
    if how == "forgotten":
        streams.clear()
        gc.collect()  # else it would depend on what the collector did before
    return traced.found()


if __name__ == "__main__":
    main(GraphweftSpanProcessor, globals())
