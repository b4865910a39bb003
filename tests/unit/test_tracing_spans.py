"""The spans of the roles: what a batch links to, what it is part of, and what no span holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.services.fixtures import Logs

from graphweft_contracts import ContextReply, ContextRequest, Event, QueryFailed, wire
from graphweft_rules import RuleSet
from graphweft_workers import telemetry
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.ports.event_decoder import PlainEvent, decode
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.processes.traced import traced
from graphweft_workers.settings.settings import Settings
from graphweft_workers.settings.telemetry import TraceVariables
from graphweft_workers.support.log_context import LogIds, ids_of, with_ids
from graphweft_workers.telemetry import tracing, tracing_spans
from graphweft_workers.telemetry.tracing import ServerNames
from graphweft_workers.telemetry.tracing_sdk import SdkTracer

SECRET: Final = "sk-live-5f1d0c7ab39e4e28"
NAMES: Final = ServerNames(bus="redis", graph="falkordb", graph_template="mozaiks_{app_id}")
ONE, OTHER = "a" * 32, "b" * 32


@dataclass(frozen=True)
class Seen:
    plain: Event


def seen(number: int, trace: str | None) -> Seen:
    name = None if trace is None else f"00-{trace}-{number:016x}-01"
    event = Event.create("note.made", app_id="acme", chat_id="c", id=f"e{number}", data={"text": SECRET})
    return Seen(event.model_copy(update={"traceparent": name}))


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    """The spans of this process while the test runs."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with tracing.using(SdkTracer(NAMES, provider)):
        yield exporter


def only(exported: InMemorySpanExporter) -> ReadableSpan:
    [span] = exported.get_finished_spans()
    return span


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


@pytest.mark.parametrize(
    ("events", "links", "parent"),
    [
        ([seen(1, ONE), seen(2, ONE)], [1, 2], 2),
        ([seen(1, ONE), seen(2, OTHER)], [1, 2], None),
        ([seen(1, ONE), seen(2, None)], [1], None),
        ([seen(1, None)], [], None),
        ([seen(number, ONE) for number in range(1, 1_001)], list(range(873, 1_001)), 1_000),
        ([Seen(seen(1, ONE).plain.model_copy(update={"traceparent": "x" * 100_000}))], [], None),
        ([seen(1, ONE), seen(1, ONE)], [1], 1),
    ],
)
def test_a_batch_links_to_its_senders_and_is_part_of_their_only_trace(
    exported: InMemorySpanExporter, events: Sequence[Seen], links: list[int], parent: int | None
) -> None:
    with tracing_spans.processed("acme", 3, "group", events):
        pass
    span = only(exported)
    assert linked(span) == links
    assert (None if span.parent is None else span.parent.span_id) == parent
    assert (span.attributes or {})["messaging.batch.message_count"] == len(events)
    assert SECRET not in span.to_json()


def test_spans_and_entries_of_the_log_take_ids_from_events_of_which_no_model_was_made(
    exported: InMemorySpanExporter,
) -> None:
    fields = wire.encode(seen(1, ONE).plain)
    entry = Entry(offset="1-0", fields=fields, received=datetime(2026, 1, 1, tzinfo=UTC))
    event = LoggedEvent(entry, decode(fields, entry.received), RuleSet({}))
    with (
        tracing_spans.received(3, "group", [[event]], began=None),
        tracing_spans.processed("acme", 3, "group", [event]),
        ids_of([event]),
    ):
        assert with_ids(None, "info", {})["event_id"] == "e1"
    assert [linked(span) for span in exported.get_finished_spans()] == [[1], [1]]
    assert isinstance(event.plain, PlainEvent)


def test_a_span_names_the_type_of_an_error_and_not_its_text(exported: InMemorySpanExporter) -> None:
    for error in (ValueError(SECRET), QueryFailed(SECRET, code="timeout")):
        with pytest.raises(type(error)), tracing_spans.written("acme", 1, []):
            raise error
    spans = exported.get_finished_spans()
    assert [(span.attributes or {})["error.type"] for span in spans] == ["ValueError", "timeout"]
    assert not any(SECRET in span.to_json() or span.events for span in spans)


def test_a_request_to_a_model_says_what_it_took_and_not_what_it_said(exported: InMemorySpanExporter) -> None:
    body = {"model": "m-1", "messages": [{"role": "user", "content": SECRET}]}
    answer = b'{"choices": [{"message": {"content": "%s"}}], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}'
    with tracing_spans.asked_model("/chat/completions", body, f"https://u:{SECRET}@models.test:444/v1") as span:
        tracing_spans.model_used(span, "/chat/completions", answer % SECRET.encode())
    with tracing_spans.asked_model(
        "/embeddings", {"model": "m-2", "input": [SECRET]}, "https://models.test/v1"
    ) as span:
        tracing_spans.model_used(span, "/embeddings", b"no JSON")
    first, second = exported.get_finished_spans()
    assert (first.name, second.name) == ("chat m-1", "embeddings m-2")
    about = dict(first.attributes or {})
    assert (about["gen_ai.usage.input_tokens"], about["gen_ai.usage.output_tokens"]) == (7, 3)
    assert (about["server.address"], about["server.port"]) == ("models.test", 444)
    assert SECRET not in first.to_json() + second.to_json()


def test_an_answer_is_part_of_the_trace_of_its_request(exported: InMemorySpanExporter) -> None:
    fields = {"id": "r1", "app_id": "acme", "workflow": "W", "agent": "A", "chat_id": "c", "deadline_ms": 1}
    request = ContextRequest.model_validate(
        {**fields, "context": {"said": SECRET}, "traceparent": f"00-{ONE}-{7:016x}-01"}
    )
    with tracing_spans.answered(request) as span:
        tracing_spans.replied(span, ContextReply(id="r1", text=SECRET, reason="timeout", detail=SECRET))
    made = only(exported)
    assert made.parent is not None
    assert (f"{made.parent.trace_id:032x}", made.parent.span_id) == (ONE, 7)
    assert (made.attributes or {})["graphweft.reason"] == "timeout"
    assert SECRET not in made.to_json()


def test_entries_of_the_log_within_a_span_name_it(exported: InMemorySpanExporter) -> None:
    with tracing_spans.served("POST", "/v1/events", None):
        entry = with_ids(None, "info", {"event": "x"})
    context = only(exported).context
    assert context is not None
    assert entry == {"event": "x", "trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def test_entries_of_the_log_have_the_ids_of_what_is_worked_on() -> None:
    one, two = seen(1, None), seen(2, None)
    with LogIds(request_id="r1", app_id="other"), ids_of([one]):
        assert with_ids(None, "info", {"chat_id": "own"}) == {
            "request_id": "r1", "app_id": "acme", "chat_id": "own", "event_id": "e1",
        }  # fmt: skip
    with ids_of([one, two]):
        assert with_ids(None, "info", {}) == {"app_id": "acme"}
    assert with_ids(None, "info", {}) == {}


async def test_a_role_without_the_sdk_says_what_to_install_and_works(
    monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    monkeypatch.delattr(telemetry, "tracing_sdk", raising=False)
    monkeypatch.delitem(sys.modules, "graphweft_workers.telemetry.tracing_sdk", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    async with traced("mutation", Settings.load(bus_url="redis://127.0.0.1:1", graph_url="redis://127.0.0.1:1")):
        assert tracing.tracer() is None
    [entry] = logs
    assert (entry["event"], entry["log_level"]) == ("tracing_off", "warning")
    assert "graphweft[telemetry]" in entry["next"]


def test_without_a_tracer_there_is_one_span_that_says_nothing() -> None:
    assert tracing_spans.processed("acme", 1, "group", [seen(1, ONE)]) is tracing.OFF
    assert tracing_spans.written("acme", 1, []) is tracing.OFF
    with tracing.OFF as span:
        span.fail("x")


@pytest.mark.parametrize(
    ("variables", "on", "faults"),
    [
        ({}, False, 0),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, True, 0),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, True, 0),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False, 0),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True, 0),
        ({"OTEL_TRACES_EXPORTER": "graphweft, otlp"}, True, 0),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False, 0),
        ({"OTEL_TRACES_EXPORTER": "graphweft", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False, 0),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False, 1),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False, 0),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, True, 1),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False, 0),
    ],
)
def test_the_standard_variables_say_whether_there_are_spans(variables: dict[str, str], on: bool, faults: int) -> None:
    found = TraceVariables.of_environment(variables)
    assert (found.on, len(found.faults)) == (on, faults)
