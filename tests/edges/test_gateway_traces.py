"""``POST /v1/traces``: what exporters send becomes events on a real bus, once, or is told why not."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from tests.declared_fields import undeclared
from tests.services.layouts import events_on_bus
from tests.services.waiting import until

from graphweft import Client
from graphweft.transports.embedded import embedded_url
from graphweft.transports.redis.transport import RedisTransport
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.gateway.app import make_app
from graphweft_workers.gateway.limits import GatewayLimits
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.gateway.tokens import AccessToken, Tokens, sha256_of
from graphweft_workers.gateway.traces import JSON, PROTOBUF, read_traces

pytestmark = pytest.mark.integration
TRACE = "5b8efff798038103d269b633813fc60c"
NS = 1_700_000_000_000_000_000
type Gateway = httpx.AsyncClient


@pytest.fixture
def app_id() -> str:
    return f"app-{uuid4().hex[:12]}"


async def serving(ends: AsyncExitStack, url: str, app_id: str, limits: GatewayLimits | None = None) -> Gateway:
    """Return who asks a gateway in this process with a token of the app."""
    client = await ends.enter_async_context(Client(transport=RedisTransport(url)))
    tokens = Tokens([AccessToken(app_id=app_id, name="", sha256=bytes.fromhex(sha256_of("mine")))])
    app = make_app(client, connect=lambda: RedisTransport(url), tokens=tokens, limits=limits)
    return await ends.enter_async_context(
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://gateway", timeout=120,
            headers={"Authorization": "Bearer mine"},
        )
    )  # fmt: skip


@pytest.fixture
async def gateway(url: str, app_id: str) -> AsyncIterator[Gateway]:
    async with AsyncExitStack() as ends:
        yield await serving(ends, url, app_id)


def value(given: Any) -> dict[str, Any]:
    match given:
        case bool():
            return {"boolValue": given}
        case int():
            return {"intValue": str(given)}
        case float():
            return {"doubleValue": given}
        case dict():
            return {"kvlistValue": {"values": attributes(given)}}
        case list():
            return {"arrayValue": {"values": [value(each) for each in given]}}
        case _:
            return {"stringValue": given}


def attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(each)} for key, each in given.items()]


def span(number: int, operation: str, start: int, end: int, above: int = 0, **more: Any) -> dict[str, Any]:
    """Return a span as OTLP writes it in JSON; keywords are attributes of the conventions."""
    named = {f"gen_ai.{key.replace('__', '.')}": each for key, each in more.items() if key != "status"}
    return {
        "traceId": TRACE, "spanId": f"{number:016x}", "parentSpanId": f"{above:016x}" if above else "",
        "name": operation, "kind": 1, "startTimeUnixNano": str(NS + start), "endTimeUnixNano": str(NS + end),
        "attributes": attributes({"gen_ai.operation.name": operation, **named}), "status": more.get("status", {}),
    }  # fmt: skip


def request(*spans: dict[str, Any], **resource: str) -> dict[str, Any]:
    named = {f"graphweft.{key}": each for key, each in resource.items()}
    scope = {"scope": {"name": "by hand"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": {"attributes": attributes(named)}, "scopeSpans": [scope]}]}


def trip() -> list[dict[str, Any]]:
    """Return the spans of an agent's run in the order in which they end."""
    failed = {"code": 2, "message": "7 is taken"}
    return [
        span(2, "chat", 10, 20, 1, response__model="m", usage__input_tokens=5, usage__output_tokens=7),
        span(3, "execute_tool", 30, 40, 1, tool__name="weather", tool__call__id="t1",
             tool__call__arguments={"city": "Oslo", "days": [1, 2.5, True]}, tool__call__result="sunny"),
        span(4, "execute_tool", 50, 60, 1, tool__name="book", tool__call__id="t2", status=failed),
        span(1, "invoke_agent", 0, 70, agent__name="Planner", conversation__id="c1"),
    ]  # fmt: skip


TRIP = [
    "agent.turn_start Planner",
    "model.call_complete Planner True",
    "tool.call_start Planner weather",
    "tool.call_complete Planner weather True",
    "tool.call_start Planner book",
    "tool.call_complete Planner book False",
    "agent.turn_complete Planner True",
]


def in_protobuf(body: dict[str, Any]) -> bytes:
    """Return the body in protobuf, whose own JSON writes ids in base64."""
    text = json.dumps(body)
    message = ExportTraceServiceRequest()
    json_format.ParseDict(json.loads(text, object_hook=_bytes), message)
    return message.SerializeToString()


def plain_protobuf(*spans: dict[str, Any]) -> bytes:
    """Return spans in protobuf, given by the names of its fields: of many, JSON would take seconds."""
    given = [{"scope_spans": [{"spans": spans}]}]
    return bytes(ExportTraceServiceRequest(resource_spans=given).SerializeToString())


def _bytes(part: dict[str, Any]) -> dict[str, Any]:
    for name in ("traceId", "spanId", "parentSpanId"):
        if name in part:
            part[name] = base64.b64encode(bytes.fromhex(part[name])).decode()
    return part


async def post(gateway: Gateway, body: Any, kind: str = JSON, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body)
    return await gateway.post("/v1/traces", content=content, headers={"Content-Type": kind, **headers})


async def events(url: str, app_id: str) -> list[dict[str, Any]]:
    """Return the app's events on the bus, of each partition in their order."""
    found = await events_on_bus(url, app_id)
    assert [fault for event in found for fault in undeclared(event["type"], event["data"])] == []
    return found


def said(found: list[dict[str, Any]]) -> list[str]:
    shown = ("agent_name", "tool_name", "success")
    return [
        " ".join([one["type"], *(str(one["data"][name]) for name in shown if name in one["data"])]) for one in found
    ]


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["Content-Type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"].removeprefix("urn:graphweft:problem:")


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
async def test_spans_become_events_in_their_order(
    gateway: Gateway, url: str, app_id: str, kind: str, packed: bool
) -> None:
    given = request(*trip(), workflow_name="Trip", app_id=app_id)
    body = in_protobuf(given) if kind == PROTOBUF else json.dumps(given).encode()
    headers = {"Content-Encoding": "gzip"} if packed else {}
    answer = await post(gateway, gzip.compress(body) if packed else body, kind, **headers)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, kind)
    assert answer.content == (b"" if kind == PROTOBUF else b"{}")
    found = await events(url, app_id)
    assert said(found) == TRIP
    assert {(one["chatid"], one["workflow"], one["source"]) for one in found} == {("c1", "Trip", "/graphweft/otel")}
    assert found[0]["data"]["context"] == {"app_id": app_id, "chat_id": "c1", "workflow_name": "Trip"}
    assert [one["id"] for one in found[:2]] == [f"{TRACE}-{1:016x}-start", f"{TRACE}-{2:016x}-end"]
    assert found[1]["data"]["output_tokens"] == 7
    assert found[2]["data"]["arguments"] == {"city": "Oslo", "days": [1, 2.5, True]}
    assert found[5]["data"]["error"] == "7 is taken"


async def test_spans_that_no_agent_makes_are_passed_over(gateway: Gateway, url: str, app_id: str) -> None:
    others = [span(1, "embeddings", 0, 1), {"name": "GET /", "traceId": "", "spanId": None, "attributes": None}, {}]
    for body in ({}, {"resourceSpans": None}, {"resourceSpans": [{}]}, request(*others)):
        answer = await post(gateway, body)
        assert (answer.status_code, answer.json()) == (200, {})
    assert (await post(gateway, b"", PROTOBUF)).status_code == 200
    assert await events(url, app_id) == []


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
async def test_names_that_are_lists_or_maps_do_not_count(gateway: Gateway, url: str, app_id: str, kind: str) -> None:
    """One odd attribute must not take away the other spans of a batch, which exporters do not send again."""
    odd = span(9, "invoke_agent", 80, 90, agent__name=["A"], conversation__id={"id": "c1"})
    odd["attributes"] += attributes({"error.type": ["Timeout"], "user.id": ["u"]})
    given = request(*trip(), odd)
    answer = await post(gateway, in_protobuf(given) if kind == PROTOBUF else given, kind)
    assert (answer.status_code, answer.content) == (200, b"" if kind == PROTOBUF else b"{}")
    found = await events(url, app_id)
    assert sorted(said(found)) == sorted([*TRIP, "agent.turn_start unknown", "agent.turn_complete unknown True"])
    assert {one.get("userid") for one in found} == {None}


async def test_what_can_never_be_an_event_is_rejected_and_the_rest_taken(
    gateway: Gateway, url: str, app_id: str
) -> None:
    broken = [
        span(5, "chat", 0, 1) | {"traceId": "0" * 32},
        span(6, "chat", 0, 1) | {"spanId": "xyz"},
        span(7, "chat", 0, 1) | {"endTimeUnixNano": 0},
        span(8, "chat", 0, 1) | {"startTimeUnixNano": 2**64 - 1, "endTimeUnixNano": 2**64 - 1},  # in the year 2554
        span(9, "invoke_agent", 0, 1, agent__name="A" * 300),
        span(10, "execute_tool", 0, 1, tool__name="t", tool__call__result="x" * 2_000_000),
    ]
    answer = await post(gateway, request(*trip(), *broken))
    assert answer.status_code == 200
    partial = answer.json()["partialSuccess"]
    assert partial["rejectedSpans"] == "6"
    for reason in ("no trace id", "a span has no id", "no start or no end", "agent_name", "more than 1,000,000 bytes"):
        assert reason in partial["errorMessage"]
    assert [line for line in said(await events(url, app_id)) if line != "model.call_complete True"] == TRIP
    ahead = (await post(gateway, request(broken[3]))).json()["partialSuccess"]
    assert ahead["rejectedSpans"] == "1"
    assert ahead["errorMessage"].startswith("time: it is more than a day ahead of the clock here")
    again = await post(gateway, in_protobuf(request(broken[0])), PROTOBUF)
    response = ExportTraceServiceResponse.FromString(again.content)
    assert response.partial_success.rejected_spans == 1
    assert "no trace id" in response.partial_success.error_message


CASES: dict[str, tuple[bytes | Callable[[], bytes], str, dict[str, str], int, str]] = {
    "no JSON": (b"{", JSON, {}, 400, "no-json"),
    "no protobuf": (b"\xff\xff", PROTOBUF, {}, 400, "no-protobuf"),
    "cut protobuf": (in_protobuf(request(*trip()))[:-3], PROTOBUF, {}, 400, "no-protobuf"),
    "no gzip": (b"{}", JSON, {"Content-Encoding": "gzip"}, 400, "no-gzip"),
    "cut gzip": (gzip.compress(b"{}")[:-4], JSON, {"Content-Encoding": "gzip"}, 400, "no-gzip"),
    "two of gzip": (gzip.compress(b"{}") * 2, JSON, {"Content-Encoding": "gzip"}, 400, "no-gzip"),
    "a bomb": (lambda: gzip.compress(b" " * 17_000_000), JSON, {"Content-Encoding": "gzip"}, 413, "body-too-large"),
    "another encoding": (zlib.compress(b"{}"), JSON, {"Content-Encoding": "deflate"}, 415, "unsupported-media-type"),
    "another kind": (b"{}", "text/plain", {}, 415, "unsupported-media-type"),
    "large": (b" " * 4_000_001, JSON, {}, 413, "body-too-large"),
    "no object": (b"[]", JSON, {}, 422, "invalid-traces"),
    "no text": (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": 5}]}]}]}', JSON, {}, 422, "invalid-traces"),
    "no number": (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "x"}]}]}]}', JSON, {}, 422,
                  "invalid-traces"),
    "many spans": (lambda: json.dumps(request(*[{}] * 10_001)).encode(), JSON, {}, 422, "batch-too-large"),
    "many values": (lambda: json.dumps(request({"attributes": [{}] * 300_000})).encode(), JSON, {}, 422,
                    "too-many-values"),
    "many values in protobuf": (lambda: plain_protobuf({"attributes": [{"key": "a"}] * 300_000}), PROTOBUF, {}, 422,
                                "too-many-values"),
    "many values in a small body": (
        lambda: gzip.compress(json.dumps(request({"attributes": [{}] * 20_000})).encode()), JSON,
        {"Content-Encoding": "gzip"}, 422, "too-many-values"),
    "many values in a small body of protobuf": (
        lambda: gzip.compress(plain_protobuf({"attributes": [{}] * 40_000}, *[{}] * 1_000)), PROTOBUF,
        {"Content-Encoding": "gzip"}, 422, "too-many-values"),
    "a bomb of spans": (lambda: gzip.compress(plain_protobuf(*[{}] * 600_000)), PROTOBUF, {"Content-Encoding": "gzip"},
                        413, "body-too-large"),
    "no protobuf, large": (b"\x0a\xff\xff\xff\xff\x0f" + b"a" * 700_000, PROTOBUF, {}, 400, "no-protobuf"),
    "many scopes": (lambda: in_protobuf({"resourceSpans": [{"scopeSpans": [{}] * 10_001}]}), PROTOBUF, {}, 422,
                    "batch-too-large"),
    "many resources": (lambda: in_protobuf({"resourceSpans": [{}] * 10_001}), PROTOBUF, {}, 422, "batch-too-large"),
    "another app": (json.dumps(request(*trip(), app_id="other")).encode(), JSON, {}, 403, "other-app"),
    "another app in protobuf": (in_protobuf(request(*trip(), app_id="other")), PROTOBUF, {}, 403, "other-app"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_requests_that_are_refused(gateway: Gateway, url: str, app_id: str, name: str) -> None:
    made, kind, headers, status, code = CASES[name]
    answer = await post(gateway, made if isinstance(made, bytes) else made(), kind, **headers)
    assert problem(answer) == (status, code)
    if status in {413, 422} and code != "invalid-traces":
        assert "at most" in answer.json()["detail"]
        assert "send" in answer.json()["detail"]
    if name == "no number":
        assert answer.json()["errors"][0]["pointer"] == "#/resourceSpans/0/scopeSpans/0/spans/0/startTimeUnixNano"
    assert await events(url, app_id) == []


async def test_a_batch_that_compresses_well_is_taken(gateway: Gateway, url: str, app_id: str) -> None:
    """Exporters send up to 512 spans, which repeat long texts."""
    spans = [
        span(number + 1, "chat", number, number + 1, request__model="m", system_instructions="Be kind. " * 60)
        for number in range(400)
    ]
    for kind, body in ((JSON, json.dumps(request(*spans)).encode()), (PROTOBUF, in_protobuf(request(*spans)))):
        packed = gzip.compress(body)
        assert len(body) > 20 * len(packed), "it would be refused if it were larger"
        answer = await post(gateway, packed, kind, **{"Content-Encoding": "gzip"})
        assert answer.status_code == 200, answer.text
    assert len({event["id"] for event in await events(url, app_id)}) == 400


def test_of_many_faults_the_first_is_reported() -> None:
    body = b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}]}' % b",".join([b"1"] * 10_000)
    with pytest.raises(Problem) as caught:
        read_traces(JSON, body, app_id="a", limits=GatewayLimits())
    assert [fault["pointer"] for fault in caught.value.faults] == ["#/resourceSpans/0/scopeSpans/0/spans/0"]


@pytest.mark.parametrize(
    ("span", "where"),
    [
        ({"traceId": 5}, "traceId"),
        ({"status": {"message": 1}}, "status/message"),
        ({"attributes": [{"key": "a", "value": {"intValue": "secret"}}]}, "attributes/value/intValue"),
        ({"attributes": {}}, "attributes"),
    ],
)
def test_a_fault_names_the_span_and_the_fields_and_quotes_nothing(span: dict[str, Any], where: str) -> None:
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{}, span]}]}]}).encode()
    with pytest.raises(Problem) as caught:
        read_traces(JSON, body, app_id="a", limits=GatewayLimits())
    [fault] = caught.value.faults
    assert fault["pointer"] == f"#/resourceSpans/0/scopeSpans/0/spans/1/{where}"
    assert "secret" not in str(fault)


async def test_without_a_known_token_nothing_is_taken(gateway: Gateway, url: str, app_id: str) -> None:
    assert problem(await post(gateway, request(*trip()), Authorization="Bearer nobody")) == (401, "no-token")
    assert await events(url, app_id) == []


async def test_more_events_than_one_request_may_give_are_refused(url: str, app_id: str) -> None:
    async with AsyncExitStack() as ends:
        gateway = await serving(ends, url, app_id, GatewayLimits(span_events=6))
        assert problem(await post(gateway, request(*trip()))) == (422, "batch-too-large")
    assert await events(url, app_id) == []


async def test_nothing_is_said_to_be_taken_before_the_bus_has_it(tmp_path: Path, app_id: str) -> None:
    own = EmbeddedServer(tmp_path)
    await own.start()
    async with AsyncExitStack() as ends:
        gateway = await serving(ends, embedded_url(tmp_path), app_id, GatewayLimits(emit_s=2))
        assert (await post(gateway, request(*trip()))).status_code == 200
        await own.stop()
        answer = await post(gateway, request(span(20, "chat", 80, 90)))
        assert problem(answer) == (503, "bus-unavailable")
        assert int(answer.headers["Retry-After"]) > 0
        await own.start()
        try:
            await until(
                lambda: post(gateway, request(span(20, "chat", 80, 90))), lambda answer: answer.status_code == 200
            )
            found = await events(embedded_url(tmp_path), app_id)
            late = [one for one in found if one["chatid"] == TRACE]  # of another chat, so its place is anywhere
            assert said([one for one in found if one not in late]) == TRIP
            assert {one["id"] for one in late} == {f"{TRACE}-{20:016x}-end"}
        finally:
            await own.stop()


async def test_the_same_request_gives_the_same_events_whatever_came_between(
    gateway: Gateway, url: str, app_id: str
) -> None:
    """What is repeated after a lost answer must not be something else, or it would have effect twice."""
    tools, agent = request(*trip()[:3]), request(*trip()[3:])
    for body in (tools, agent, tools):
        assert (await post(gateway, body)).status_code == 200
    found = await events(url, app_id)
    assert {(one["id"], one["chatid"]) for one in found} == {
        *((f"{TRACE}-{number:016x}-{moment}", TRACE) for number in (3, 4) for moment in ("start", "end")),
        (f"{TRACE}-{2:016x}-end", TRACE),
        *((f"{TRACE}-{1:016x}-{moment}", "c1") for moment in ("start", "end")),
    }
