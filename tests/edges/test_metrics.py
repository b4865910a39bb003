"""Metrics of real roles: what a scrape says after something has happened, and what is pushed to a collector."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import redis.asyncio as redis
from faststream import FastStream
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families
from tests.edges.test_hosting import running
from tests.fuzz.events import Producer
from tests.services.fixtures import Logs, events_of
from tests.services.models import ModelServer
from tests.services.rules import TURNS, rules_folder
from tests.services.waiting import until

from graphweft import Client
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import Event, Layout, channels
from graphweft_workers.processes.hosting import archive_app, injection_app, memory_app, mutation_app
from graphweft_workers.processes.run import run_gateway
from graphweft_workers.settings.settings import Settings
from graphweft_workers.telemetry import metrics

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("beats")]

SECRET = "sk-live-payload-4711"
"""In texts, names and ids of events and requests: none of it may be in a metric."""
INJECTION = """
injection_rules:
  - name: turns
    agents: ["*"]
    queries:
      - {id: turns, cypher: "MATCH (a:Agent) RETURN a.turns AS turns", inject_as: turns}
"""
RULES_OF_ALL = TURNS + """\
  - name: lacks
    events: ["agent.turn_complete"]
    mutations:
      - id: lacks
        cypher: "MERGE (a:Tool {name: $tool})"
        params: {tool: $event.tool_name}
  - name: breaks
    events: ["agent.turn_complete"]
    condition: '$event.agent_name == "broken"'
    mutations:
      - id: breaks
        cypher: "MERGE (a:Broken {name: $agent}) SET a.n = 1 / 0"
        params: {agent: $event.agent_name}
""" + INJECTION  # fmt: skip

type Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return rules_folder(tmp_path, RULES_OF_ALL)


def settings_at(url: str, rules: Path, **more: Any) -> Settings:
    given: dict[str, Any] = {"metrics": True, "probe_address": "127.0.0.1:0", "partitions": 2, **more}
    return Settings.load(bus_url=url, graph_url=url, rules=rules, **given)


def scraped(address: str) -> str:
    with urlopen(f"{address}/metrics", timeout=120) as answer:
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return answer.read().decode()


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Role:
    """A role that answers scrapes."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def text(self) -> str:
        return await asyncio.to_thread(scraped, self.address)

    async def value(self, name: str, **labels: str) -> float | None:
        return samples(await self.text()).get((name, frozenset(labels.items())))

    async def reaches(self, name: str, least: float = 1, **labels: str) -> float:
        async def now() -> float:
            return await self.value(name, **labels) or 0.0

        return await until(now, lambda found: found >= least)


@asynccontextmanager
async def role(app: FastStream, logs: Logs) -> AsyncIterator[Role]:
    before = events_of(logs).count("probes_listen")
    async with running(app) as task:
        await until(lambda: events_of(logs).count("probes_listen"), lambda count: count > before, beside=task)
        yield Role([str(entry["url"]) for entry in logs if entry["event"] == "probes_listen"][-1])


def event(agent: str = "helper", *, id: str | None = None, app_id: str = "shop") -> Event:
    data = {"agent_name": agent, "success": True, "text": SECRET}
    more = {} if id is None else {"id": id}
    return Event.create(
        "agent.turn_complete", app_id=app_id, chat_id=f"chat-{SECRET}", workflow="Support", data=data, **more
    )


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(transport=RedisTransport(url, new=Layout(partitions=2)), app="shop") as opened:
        yield opened


def check_list(text: str) -> None:
    """Check names, kinds and labels of a scrape by the list of metrics."""
    known = {metric.name: metric for metric in metrics.METRICS}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        metric = known[name]
        assert family.type == metric.kind
        assert family.documentation == metric.text
        for sample in family.samples:
            labels = sample.labels.keys() - {"le"}
            assert labels <= {*metric.labels, *([metrics.APP] if metric.by_app else [])}
    assert SECRET not in text


async def test_a_worker_counts_what_becomes_of_events(url: str, rules: Path, logs: Logs) -> None:
    async with role(mutation_app(settings_at(url, rules, metrics_apps="shop")), logs) as worker, client(url) as sender:
        first = event(id=f"id-{SECRET}")
        for each in (first, event(), event(), first, event("broken"), event(app_id="bank")):
            assert await sender.emit(each, wait_s=30) is not None
        assert await worker.reaches("graphweft_events_applied_total", 4, app="shop") == 4
        assert await worker.reaches("graphweft_events_applied_total", 1, app="other") == 1
        assert await worker.reaches("graphweft_events_read_total", 6) >= 6
        assert await worker.reaches("graphweft_duplicates_total") == 1
        assert await worker.reaches("graphweft_without_effect_total", 5, cause="skipped") == 5
        assert await worker.reaches("graphweft_dead_letters_total", 1, reason="query_error", app="shop") == 1
        assert await worker.reaches("graphweft_rule_matches_total", 5, workflow="Support", rule="turns") == 5
        assert await worker.reaches("graphweft_event_visible_seconds_count", 4, app="shop") == 4
        assert await worker.reaches("graphweft_batch_events_count") >= 1
        assert await worker.reaches("graphweft_batch_duration_seconds_count") >= 1
        assert await worker.reaches("graphweft_db_query_duration_seconds_count", kind="write") >= 1
        assert await worker.reaches("graphweft_db_query_duration_seconds_count", kind="durable") >= 1
        assert await worker.reaches("graphweft_bus_operation_duration_seconds_count", operation="commit") >= 1
        assert await worker.reaches("graphweft_lease_changes_total", 2, change="claimed") == 2
        assert await worker.reaches("graphweft_partitions_owned", 2) == 2
        assert await worker.reaches("graphweft_connection_up", server="bus") == 1
        assert await worker.reaches("graphweft_connection_up", server="graph") == 1
        assert await worker.reaches("graphweft_role_running", role="mutation") == 1
        assert await worker.reaches("graphweft_dead_letters") >= 1
        assert await worker.reaches("graphweft_rule_sets_active") == 1
        assert await worker.reaches("graphweft_event_loop_lag_seconds_count") >= 1
        for name in ("cpu_seconds_total", "resident_memory_bytes", "open_files"):
            assert await worker.reaches(f"graphweft_process_{name}", 0.01) > 0
        text = await worker.text()
        found = samples(text)
        assert found["graphweft_partitions_unowned", frozenset()] == 0
        assert {value for (name, _), value in found.items() if name == "graphweft_partition_lag_events"} <= {0.0, 1.0}
        check_list(text)


@pytest.mark.long
async def test_nothing_that_random_events_hold_is_in_a_metric(url: str, rules: Path, logs: Logs) -> None:
    producer = Producer(7)
    cases = [producer.case() for _ in range(60)]
    entries = [dict(entry.fields) for case in cases for entry in case.entries if entry.fields]
    marked = [{name: value.replace(b"Ada", SECRET.encode()) for name, value in fields.items()} for fields in entries]
    strange = event().model_copy(update={"workflow": f"Workflow {SECRET}", "agentid": SECRET})
    async with role(mutation_app(settings_at(url, rules)), logs) as worker, client(url) as sender:
        await worker.reaches("graphweft_partitions_owned", 2)
        connection = redis.Redis.from_url(url)
        for number, fields in enumerate(marked):
            await connection.xadd(channels.events_stream(number % 2), fields)
        await connection.aclose()
        await sender.emit(strange, wait_s=30)
        memory = {"user_id": "u", "thread_id": "t", "messages": [{"role": "user", "text": SECRET, "message_id": "m"}]}
        said = Event.create("memory.add", app_id="shop", chat_id="t", workflow=f"Other {SECRET}", data=memory)
        await sender.emit(said, wait_s=30)
        await worker.reaches("graphweft_events_read_total", len(marked) + 2)
        await worker.reaches("graphweft_rule_matches_total", workflow="other", rule="memory.add")
        check_list(await worker.text())


async def test_events_that_wait_are_lag_with_an_age(url: str, rules: Path, logs: Logs) -> None:
    async with role(mutation_app(settings_at(url, rules)), logs) as worker, client(url) as sender:
        await worker.reaches("graphweft_partitions_owned", 2)
        await sender.emit(event(), wait_s=30)
        await worker.reaches("graphweft_events_applied_total")
    # Nobody reads them now; a worker that reads another bus' rules stands for one that is behind.
    async with client(url) as sender:
        for _ in range(5):
            await sender.emit(event(), wait_s=30)
    from graphweft_workers.processes.role_metrics import PartitionLook
    from graphweft_workers.wiring.connections import make_bus

    bus = make_bus(settings_at(url, rules))
    try:
        seen = await PartitionLook(bus, "nobody").read()
    finally:
        await bus.aclose()
    assert sum(seen[metrics.PARTITION_LAG].values()) == 5
    assert seen[metrics.PARTITIONS_UNOWNED] == {(): 2}
    assert seen[metrics.PARTITIONS_OWNED] == {(): 0}
    ages = seen[metrics.OLDEST_UNAPPLIED]
    assert ages.keys() == {("0",), ("1",)}
    assert sorted(age > 0 for age in ages.values()) == [False, True]


async def test_a_responder_counts_what_becomes_of_requests(url: str, rules: Path, logs: Logs) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            running(mutation_app(settings_at(url, rules, probe_address=None, metrics=False)))
        )
        responder = await stack.enter_async_context(role(injection_app(settings_at(url, rules)), logs))
        asker = await stack.enter_async_context(client(url))
        await asker.emit(event(), wait_s=30)

        async def asked(workflow: str = "Support") -> bool:
            reply = await asker.context(
                agent=SECRET, chat_id=SECRET, app_id="shop", workflow=workflow, budget_ms=10_000, user_id=SECRET
            )
            return reply.reason is None and bool(reply.blocks)

        await until(asked, bool)
        assert await responder.reaches("graphweft_context_requests_total", outcome="whole", reason="") >= 1
        await until(asked, bool)
        await asked("Unknown")
        assert await responder.reaches("graphweft_context_requests_total", outcome="empty", reason="no_rules") == 1
        for name in ("context_duration_seconds", "context_budget_used_ratio", "context_tokens"):
            assert await responder.reaches(f"graphweft_{name}_count", 3) >= 3
        assert await responder.reaches("graphweft_cache_requests_total", result="miss") >= 1

        async def hits() -> float:
            await asked()
            return await responder.value("graphweft_cache_requests_total", result="hit") or 0.0

        await until(hits, bool)
        assert await responder.reaches("graphweft_cache_bytes") > 0
        assert await responder.reaches("graphweft_db_query_duration_seconds_count", kind="cypher") >= 1
        assert await responder.value("graphweft_context_waiting_requests") == 0
        check_list(await responder.text())


async def test_jobs_and_models_are_counted(url: str, rules: Path, logs: Logs, model_server: ModelServer) -> None:
    more = {"embedder": "openai:some-model", "embedder_url": model_server.url}
    async with role(memory_app(settings_at(url, rules, **more)), logs) as memory, client(url) as sender:
        said = {"user_id": "ada", "thread_id": "t", "messages": [{"role": "user", "text": SECRET, "message_id": "1"}]}
        await sender.emit(Event.create("memory.add", app_id="shop", chat_id="t", data=said), wait_s=30)
        assert await memory.reaches("graphweft_model_calls_total", kind="embedding", result="ok") >= 1
        assert await memory.reaches("graphweft_model_call_duration_seconds_count", kind="embedding") >= 1
        found = samples(await memory.text())
        assert any(name == "graphweft_backlog_events" for name, _ in found)
        assert sum(number for (name, _), number in found.items() if name == "graphweft_job_events_total") >= 0
        check_list(await memory.text())


async def test_the_archive_counts_what_it_copies(url: str, rules: Path, tmp_path: Path, logs: Logs) -> None:
    more = {"archive_url": str(tmp_path / "archive"), "archive_every_s": 0.05}
    async with role(archive_app(settings_at(url, rules, **more)), logs) as archive, client(url) as sender:
        await sender.emit(event(), wait_s=30)
        assert await archive.reaches("graphweft_archived_events_total") == 1
        assert await archive.value("graphweft_archive_lost_events") == 0
        assert await archive.value("graphweft_archive_behind_events") is not None
        check_list(await archive.text())


async def test_the_gateway_counts_requests_and_events(url: str, rules: Path, logs: Logs) -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        run_gateway(settings_at(url, rules), host="127.0.0.1", port=0, insecure_app="shop", ready=ready.set_result)
    )
    try:
        at = await ready
        gateway = Role(next(str(entry["url"]) for entry in logs if entry["event"] == "probes_listen"))
        body = event().model_dump_json().encode()

        def post() -> int:
            from urllib.request import Request

            headers = {"content-type": "application/cloudevents+json"}
            with urlopen(Request(f"{at}/v1/events", data=body, headers=headers), timeout=60) as answer:
                return int(answer.status)

        assert await asyncio.to_thread(post) == 202
        assert await gateway.value("graphweft_gateway_requests_total", path="/v1/events", status="202") == 1
        assert await gateway.value("graphweft_gateway_request_duration_seconds_count", path="/v1/events") == 1
        assert await gateway.value("graphweft_events_received_total") == 1
        assert await gateway.value("graphweft_events_published_total", result="sent") == 1
        assert await gateway.value("graphweft_client_buffer_events") == 0
        check_list(await gateway.text())
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Collector(ThreadingHTTPServer):
    """Takes pushes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Push)
        self.bodies: list[bytes] = []
        self.tokens: set[str] = set()
        self.status = 200


class _Push(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.bodies.append(body)
        self.server.tokens.add(self.headers["authorization"])
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def pushed(body: bytes) -> set[str]:
    request: Any = ExportMetricsServiceRequest()
    request.ParseFromString(body)
    return {
        metric.name for each in request.resource_metrics for scope in each.scope_metrics for metric in scope.metrics
    }


async def test_metrics_are_pushed_to_a_collector_without_an_address_of_the_role(
    url: str, rules: Path, logs: Logs, collector: Collector
) -> None:
    target = f"http://127.0.0.1:{collector.server_address[1]}/v1/metrics"
    settings = settings_at(
        url, rules, probe_address=None, metrics=False, metrics_otlp_url=target, metrics_every_s=1,
        metrics_otlp_headers="authorization=Bearer of-the-collector",
    )  # fmt: skip
    async with running(mutation_app(settings)) as task, client(url) as sender:
        await sender.emit(event(), wait_s=30)

        def names() -> set[str]:
            return pushed(collector.bodies[-1]) if collector.bodies else set()

        wanted = {"graphweft_events_applied_total", "graphweft_partition_lag_events", "graphweft_build_info"}
        await until(names, lambda found: found >= wanted, beside=task)
        before = len(collector.bodies)
    assert len(collector.bodies) > before, "a role that ends pushes once more"
    known = {metric.name for metric in metrics.METRICS}
    assert all(pushed(body) <= known and SECRET.encode() not in body for body in collector.bodies)
    assert collector.tokens == {"Bearer of-the-collector"}


async def test_a_collector_that_refuses_is_counted_and_logged_without_the_token(
    url: str, rules: Path, logs: Logs, collector: Collector
) -> None:
    collector.status = 401
    target = f"http://127.0.0.1:{collector.server_address[1]}/v1/metrics"
    more = {"metrics_otlp_url": target, "metrics_every_s": 1, "metrics_otlp_headers": "authorization=Bearer s3cret"}
    async with role(mutation_app(settings_at(url, rules, **more)), logs) as worker:
        assert await worker.reaches("graphweft_metrics_pushes_total", result="failed") >= 1
    assert "metrics_not_pushed" in events_of(logs)
    assert "s3cret" not in str(logs)


async def test_without_the_setting_nothing_is_counted(url: str, rules: Path, logs: Logs) -> None:
    async with role(mutation_app(settings_at(url, rules, metrics=False)), logs) as worker:
        with pytest.raises(OSError, match="404"):
            await worker.text()
        assert metrics.EVENTS_READ.sink is None


async def test_metrics_that_nobody_would_see_are_named(url: str, rules: Path, logs: Logs) -> None:
    async with running(mutation_app(settings_at(url, rules, probe_address=None))) as task:
        await until(lambda: events_of(logs), lambda said: "metrics_off" in said, beside=task)
        assert metrics.EVENTS_READ.sink is None
