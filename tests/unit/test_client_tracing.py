"""What the client says of traces: events and requests name the current span. A program without spans pays nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from tests.adapters.shared.kit import Bus
from tests.unit.test_gateway_transport import answering

from graphweft import Client, Event, SyncClient
from graphweft.adapters.core import Adapter
from graphweft.tracing import current_trace, with_trace, within
from graphweft.transport import encoded
from graphweft_contracts import ContextReply, ContextRequest
from graphweft_contracts.trace_context import TraceContext
from graphweft_runtimes.otel import GraphweftSpanProcessor

UNREACHABLE: Final = "redis://127.0.0.1:1"
KEPT: Final[ContextVar[str]] = ContextVar("kept")
GIVEN: Final = f"00-{'a' * 32}-{'b' * 16}-01"


@contextmanager
def span(name: str = "turn") -> Iterator[str]:
    """Make a span the current one; yield its name for others."""
    with TracerProvider().get_tracer("test").start_as_current_span(name) as made:
        context = made.get_span_context()
        yield f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def event(**more: Any) -> Event:
    return Event.create("note.made", app_id="shop", chat_id="c1").model_copy(update=more)


def client_of(bus: Bus) -> Client:
    return Client(UNREACHABLE, app_id="shop", workflow="Sales", budget_ms=120_000, transport=bus)


async def test_events_and_requests_name_the_current_span() -> None:
    bus = Bus()
    async with client_of(bus) as client:
        await client.emit(event())
        with span() as first:
            await client.emit_all([event(), event(traceparent=GIVEN)])
            await client.context(agent="A", chat_id="c1")
        with span() as second:
            await client.search("tea", index_name="Doc.text", index_type="fulltext")
            async with client.turn(agent="A", chat="c1") as turn:
                turn.answer("Done.")
        await client.context(agent="A", chat_id="c1")
    assert [each.traceparent for each in bus.events] == [None, first, GIVEN, second, second]
    assert [each.traceparent for each in bus.requests] == [first, second, second, None]


def test_a_synchronous_client_names_the_span_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus()
    client = SyncClient(UNREACHABLE, app_id="shop")
    monkeypatch.setattr(client, "_client", client_of(bus))
    with client:
        with span() as first:
            client.emit(event())
        with span() as second:
            client.emit(event())
            client.context(agent="A", chat_id="c1", workflow="Sales")
    assert [each.traceparent for each in bus.events] == [first, second]
    assert [each.traceparent for each in bus.requests] == [second]


def test_adapters_name_the_span_in_which_a_runtime_calls_them() -> None:
    bus = Bus()
    adapter = Adapter(client_of(bus), app_id="shop", chat_id="c1", workflow_name="Sales")
    found: list[str] = []

    def run(agent: str) -> None:
        with span() as name:
            found.append(name)
            adapter.context({}, agent)
            adapter.end_turn({}, agent)

    for agent in ("A", "B"):
        thread = threading.Thread(target=run, args=(agent,))
        thread.start()
        thread.join()
    adapter.start_turn({}, "C")
    adapter.close()
    first, second = found
    assert [each.traceparent for each in bus.events] == [first, first, second, second, None, None]
    assert [each.traceparent for each in bus.requests] == [first, second]


def test_events_of_captured_spans_name_these_spans() -> None:
    bus = Bus()
    provider = TracerProvider()
    processor = GraphweftSpanProcessor(client=client_of(bus), app_id="shop", chat_id="c1", workflow_name="Sales")
    provider.add_span_processor(processor)  # type: ignore[arg-type]
    with (
        span("of the program"),
        provider.get_tracer("test").start_as_current_span("invoke_agent A") as made,
        provider.get_tracer("test").start_as_current_span("execute_tool t") as tool,
    ):
        pass
    processor.shutdown()
    spans = {each.type: each.traceparent for each in bus.events}
    named = {key: f"00-{s.get_span_context().trace_id:032x}-{s.get_span_context().span_id:016x}-01"
             for key, s in {"agent": made, "tool": tool}.items()}  # fmt: skip
    assert spans == {
        "agent.turn_start": named["agent"], "agent.turn_complete": named["agent"],
        "tool.call_start": named["tool"], "tool.call_complete": named["tool"],
    }  # fmt: skip


async def test_a_request_through_a_gateway_has_the_span_in_its_headers() -> None:
    body = ContextReply(id="r").model_dump_json().encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with answering(answer) as server:
        with span() as name:
            await Client(transport=server.transport(), app_id="shop", workflow="W").context(agent="A", chat_id="c")
    [head] = server.heads
    assert f"\r\ntraceparent: {name}\r\n" in head


def test_a_request_without_a_span_is_one_that_older_responders_know() -> None:
    fields = {
        "id": "r",
        "app_id": "shop",
        "workflow": "W",
        "agent": "A",
        "chat_id": "c",
        "deadline_ms": 9_999_999_999_999,
    }
    message = encoded(ContextRequest.model_validate(fields), "channel")
    assert isinstance(message, bytes)
    assert b"trace" not in message
    named = encoded(ContextRequest.model_validate({**fields, "traceparent": GIVEN}), "channel")
    assert isinstance(named, bytes)
    assert GIVEN.encode() in named


def test_what_tracing_systems_add_is_kept_as_long_as_it_may_be() -> None:
    for state, kept in (("vendor=1", "vendor=1"), (",".join(f"v{n}={'x' * 40}" for n in range(30)), None)):
        context = SpanContext(
            1, 2, is_remote=False, trace_flags=TraceFlags(1), trace_state=TraceState.from_header([state])
        )
        with trace.use_span(NonRecordingSpan(context)):
            found = current_trace()
        assert found is not None
        assert found.tracestate == kept


@pytest.mark.parametrize(
    "given",
    [
        "", "x", f"00-{'0' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'0' * 16}-01", f"{GIVEN}\n", f"{GIVEN}\r\nHost: x",
        f"01-{'a' * 32}-{'b' * 16}-01-more", f"00-{'A' * 32}-{'b' * 16}-01", "x" * 1_000_000,
    ],
)  # fmt: skip
def test_something_else_than_a_span_is_no_trace(given: str) -> None:
    assert TraceContext.of(given) is None
    assert TraceContext.of(GIVEN, f"{given}\n") == (GIVEN, None)


def test_a_defect_of_the_programs_tracing_costs_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(trace, "get_current_span", fail)
    assert with_trace(event()).traceparent is None


def test_a_span_of_another_program_counts_within_its_block() -> None:
    other = TraceContext.of(GIVEN)
    with span() as mine:
        with within(other):
            assert current_trace() == other
        assert current_trace() == (mine, None)
    assert current_trace() is None


def test_a_program_without_opentelemetry_imports_nothing_of_it() -> None:
    program = """
import asyncio, sys
sys.modules["opentelemetry"] = None
from graphweft import Client, Event
async def main():
    async with Client("redis://127.0.0.1:1", app_id="shop", workflow="W", budget_ms=1) as client:
        await client.emit(Event.create("note.made", app_id="shop", chat_id="c"), wait_s=0)
        await client.context(agent="A", chat_id="c")
        await client.aclose(0)
asyncio.run(main())
assert [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"] == ["opentelemetry"]
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=120)


async def test_whatever_a_caller_passes_within_a_span_does_not_raise() -> None:
    bus = Bus()
    events: Any = (each for each in [event(), event()])
    async with client_of(bus) as client:
        with span():
            await client.emit_all(events)
            assert await client.emit(None) is None  # type: ignore[arg-type]
            assert await client.emit_all([]) == []
    assert len(bus.events) == 2


async def test_what_lasts_longer_than_a_span_is_no_part_of_it() -> None:
    bus = Bus()
    async with client_of(bus) as client:
        with span():
            KEPT.set("kept")
            await client.emit(event())
        lasting = [task for task in asyncio.all_tasks() if task.get_name().startswith("graphweft-")]
        assert [task.get_name() for task in lasting] == ["graphweft-emit"]
        assert [task.get_context().run(current_trace) for task in lasting] == [None]
        assert [task.get_context()[KEPT] for task in lasting] == ["kept"]


def test_the_timer_of_an_adapter_is_no_part_of_the_span_in_which_it_begins() -> None:
    bus = Bus()
    adapter = Adapter(client_of(bus), app_id="shop", chat_id="c1", workflow_name="Sales", idle_s=0.04)
    with span() as name:
        adapter.start_turn({}, "A")
    with bus.changed:
        assert bus.changed.wait_for(lambda: len(bus.events) == 2, timeout=120)
    adapter.close()
    assert [(each.type, each.traceparent) for each in bus.events] == [
        ("agent.turn_start", name), ("agent.turn_complete", None),
    ]  # fmt: skip
