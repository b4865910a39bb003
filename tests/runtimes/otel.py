"""Conversations as GenAI spans: those of Microsoft Agent Framework with a scripted model, and spans made by hand.

``python tests/runtimes/otel.py NAME …`` prints what came of one as JSON, in its last line. Annotations are evaluated
here, for Agent Framework makes the schemas of its tools by them.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from kit import IDS, Bus, play, result, settings_of
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import Status, StatusCode

from graphweft.adapters.genai import events_of
from graphweft.adapters.otel import GraphweftSpanProcessor, _read

PLACED = {"graphweft.app_id": IDS["app_id"], "graphweft.workflow_name": IDS["workflow_name"], "user.id": IDS["user_id"]}
"""Resource attributes that place the spans; the chat is what the spans say."""


class Ended(SpanProcessor):
    """Keeps spans as they end, as an exporter gets them."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def on_end(self, span: Any) -> None:
        self.spans.append(span)


class Traced:
    """A provider with the processor on a bus, and what else became of its spans."""

    def __init__(self, way: str = "works", resource: dict[str, str] | None = None, **settings: Any) -> None:
        self.bus = Bus(way)
        self.processor = GraphweftSpanProcessor(**settings_of(self.bus, **settings))
        self.ended = Ended()
        self.provider = TracerProvider(resource=Resource(PLACED if resource is None else resource))
        if way != "none":
            self.provider.add_span_processor(self.processor)
        self.provider.add_span_processor(self.ended)
        self.tracer = self.provider.get_tracer("by hand")

    def found(self, **more: Any) -> dict[str, Any]:
        """Return what is to be looked at, also what a receiver would make of the ended spans, all in one request."""
        self.provider.shutdown()
        self.processor.close(0.1)
        received = [
            {"type": one.type, "id": one.id, "chat": one.place.chat_id, **one.data}
            for one in events_of([_read(span) for span in self.ended.spans])
        ]
        ids = [event.id for event in self.bus.events]
        times = [event.time.isoformat() for event in self.bus.events]
        return result(self.processor.core, self.bus, event_ids=ids, times=times, received=received, **more)


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
    """The planner's two tool calls, of which one fails, and its hand-over to the writer, whose model may fail.

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


def by_hand(way: str = "works", failing: str = "", chat: str = IDS["chat_id"]) -> dict[str, Any]:
    """The scripted conversation as the conventions have it."""
    traced, error = Traced(way), None
    try:
        trip(traced, ConnectionError("no model") if failing else None, chat or None)
    except ConnectionError as raised:
        error = f"{type(raised).__name__}: {raised}"
    return traced.found(error=error, trace=f"{traced.ended.spans[-1].context.trace_id:032x}")


if __name__ == "__main__":
    play(by_hand)
