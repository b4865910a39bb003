"""The error table of the rule contract, line by line, for injection and for mutation.

=====================  ===================================
YAML parse error       workflow fails to start
Cypher syntax error    query skipped, logged
Missing parameter      query skipped, warned
FalkorDB unavailable   queries skipped, workflow continues
Timeout (>5s)          query aborted, logged
=====================  ===================================
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from structlog.testing import capture_logs
from tests.services.buses import applied
from tests.services.layouts import spread
from tests.services.rules import load_rules
from tests.services.waiting import until
from tests.services.workers import working

from graphweft import Client, Event
from graphweft_rules import RuleSet, lint
from graphweft_workers.drivers import dialects
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.falkordb.timing import FalkorDBTiming
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.drivers.redis.timing import RedisBusTiming
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.graph_store import Table
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.timing import ContextTiming, Timing, WriteTiming

pytestmark = pytest.mark.integration
APP = "shop"
ENDLESS = "UNWIND range(1, 100000) AS x UNWIND range(1, 100000) AS y"
"""Ten thousand million rows: hours."""
RULES = f"""
version: "1.0"
injection_rules:
  - name: count
    agents: ["*"]
    queries:
      - id: visits
        cypher: "MATCH (v:Visit) RETURN v.n AS n"
        inject_as: visits
        format: single
  - name: syntax
    agents: [Syntax]
    queries:
      - {{id: unknown_function, cypher: "RETURN nosuch(1) AS x", inject_as: unknown_function}}
      - {{id: fine, cypher: "RETURN 1 AS x", inject_as: fine}}
  - name: params
    agents: [Params]
    queries:
      - {{id: lacking, cypher: "RETURN $x AS x", params: {{x: $context.absent}}, inject_as: lacking}}
      - {{id: nested, cypher: "RETURN $x AS x", params: {{x: [1, $context.user.absent]}}, inject_as: nested}}
      - {{id: null, cypher: "RETURN $x AS x", params: {{x: $context.nothing}}, inject_as: given_null}}
  - name: slow
    agents: [Slow]
    queries:
      - {{id: endless, cypher: "{ENDLESS} RETURN count(*) AS n", inject_as: endless}}
  - name: typed
    agents: [Typed]
    condition: "$context.age > 18"
    queries:
      - {{id: adult, cypher: "RETURN 1 AS x", inject_as: adult}}
mutation_rules:
  - name: count
    events: ["shop.visit", "shop.slow", "shop.syntax", "shop.typed", "shop.params"]
    mutations:
      - {{id: visit, cypher: "MERGE (v:Visit {{id: 1}}) ON CREATE SET v.n = 1 ON MATCH SET v.n = v.n + 1"}}
  - name: slow
    events: ["shop.slow"]
    mutations:
      - {{id: endless, cypher: "MERGE (s:Slow {{id: 1}}) WITH s {ENDLESS} WITH s, count(*) AS n SET s.n = n"}}
  - name: syntax
    events: ["shop.syntax"]
    mutations:
      - {{id: unknown_function, cypher: "MERGE (b:Bad {{id: nosuch(1)}})"}}
  - name: params
    events: ["shop.params"]
    mutations:
      - {{id: lacking, cypher: "MERGE (b:Bad {{id: $x}})", params: {{x: $context.absent}}}}
  - name: typed
    events: ["shop.typed"]
    condition: "$event.age > 18"
    mutations:
      - {{id: adult, cypher: "MERGE (b:Bad {{id: 1}})"}}
  - name: last
    events: ["shop.slow", "shop.syntax", "shop.typed", "shop.params"]
    mutations:
      - {{id: last, cypher: "MERGE (l:Last {{id: 1}}) ON CREATE SET l.n = 1 ON MATCH SET l.n = l.n + 1"}}
""".replace("id: null,", 'id: "null",')


SHORT_WAITS = RedisBusTiming(request_s=0.05)
"""An idle responder waits this long for requests before it sees that it is to stop."""


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop" / "graph_injection.yaml").write_text(RULES)
    assert {each.code for each in lint([tmp_path], dialects())} == {"cypher-work-after-write"}  # that is the slow one
    return load_rules(tmp_path)


@asynccontextmanager
async def responding(url: str, graph: Any, rules: RuleSet, **options: Any) -> AsyncIterator[InjectionResponder]:
    queue = RedisRequestQueue(url, consumer="r", timing=SHORT_WAITS)
    # Without a cache nothing stands in for what is missing.
    pipeline = ContextPipeline(rules, graph, cache_bytes=0, **options)
    responder = InjectionResponder(queue, pipeline.answer)
    task = asyncio.create_task(responder.run())
    try:
        yield responder
    finally:
        responder.stop()
        await task
        await queue.aclose()
        await pipeline.aclose()


def asking(url: str, budget_ms: int = 60_000) -> Client:
    return Client(url, app_id=APP, workflow="Shop", budget_ms=budget_ms)


def event(name: str, number: int = 0, **data: Any) -> Event:
    return Event.create(f"shop.{name}", app_id=APP, chat_id=f"c{number % 8}", workflow="Shop", data=data)


async def value(graph: FalkorDBStore, statement: str) -> Any:
    rows = (await graph.read(APP, statement, {}, timeout_s=120)).rows
    return rows[0][0] if rows else None


# YAML parse error


def test_rules_of_which_none_can_be_used_keep_up_from_starting(tmp_path: Path) -> None:
    files = {
        "Syntax": 'version: "1.0"\ninjection_rules:\n  - name: a\n    agents: [X]\n    queries: [}\n',
        "Shape": 'version: "1.0"\ninjection_rules:\n  - name: a\n    agents: [X]\n    quries: []\n  - nme: b\n',
        "Cypher": 'version: "1.0"\nmutation_rules:\n  - name: a\n    events: [a.b]\n    mutations:\n'
        '      - {id: m, cypher: "MERGE (a:A {id: $x})"}\n',
    }
    for name, text in files.items():
        (tmp_path / "rules" / name).mkdir(parents=True)
        (tmp_path / "rules" / name / "graph_injection.yaml").write_text(text)
    ended = subprocess.run(
        [sys.executable, "-m", "graphweft_workers.cli", "up"],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if not name.startswith("GRAPHWEFT_")}
        | {"GRAPHWEFT_RULES": str(tmp_path / "rules"), "GRAPHWEFT_DATA": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    found = {line.removeprefix("error: ").split(" ")[0] for line in ended.stderr.splitlines()}
    rules = tmp_path / "rules"
    assert found == {
        f"{rules}/Syntax/graph_injection.yaml:5:15:",
        f"{rules}/Shape/graph_injection.yaml:5:5:",
        f"{rules}/Shape/graph_injection.yaml:6:5:",
        f"{rules}/Cypher/graph_injection.yaml:6:42:",
    }
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "data").exists()


# Cypher syntax error


async def test_a_query_the_server_refuses_is_skipped_and_logged(url: str, graph: FalkorDBStore, rules: RuleSet) -> None:
    await graph.progress(APP, 0)
    with capture_logs() as logs:
        async with responding(url, graph, rules), asking(url) as client:
            reply = await client.context(agent="Syntax", chat_id="c")
    assert reply.injected == {"visits": None, "fine": [{"x": 1}]}
    [missing] = reply.missing
    assert (missing.name, missing.rule, missing.reason) == ("unknown_function", "syntax", "query_error")
    assert "graph_injection.yaml:14:9: Unknown function 'nosuch'" in missing.detail
    assert (reply.reason, reply.partial) == (None, True)
    [logged] = [log for log in logs if log["event"] == "block_missing"]
    assert (logged["log_level"], logged["rule"], logged["query"]) == ("warning", "syntax", "unknown_function")
    assert logged["reason"] == "query_error"


async def test_a_mutation_the_server_refuses_is_buried_and_the_others_applied(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    with capture_logs() as logs:
        async with asking(url) as client, working(bus, graph, rules):
            for _ in range(2):
                assert await client.emit(event("syntax"), wait_s=120)
            await applied(bus)
    assert await value(graph, "MATCH (v:Visit) RETURN v.n") == 2
    assert await value(graph, "MATCH (l:Last) RETURN l.n") == 2
    assert await value(graph, "MATCH (b:Bad) RETURN count(b)") == 0
    letters = await bus.dead_letters.read(limit=10)
    assert [(each.reason, each.rule, each.mutation) for each in letters] == [
        ("query_error", "syntax", "unknown_function")
    ] * 2
    assert "nosuch" in letters[0].message
    assert [log["mutation"] for log in logs if log["event"] == "mutation_buried"] == ["unknown_function"] * 2


# Missing parameter


async def test_a_query_that_lacks_a_parameter_is_skipped_and_warned_of(
    url: str, graph: FalkorDBStore, rules: RuleSet
) -> None:
    await graph.progress(APP, 0)
    with capture_logs() as logs:
        async with responding(url, graph, rules), asking(url) as client:
            reply = await client.context(agent="Params", chat_id="c", context={"nothing": None, "user": {"id": 1}})
    # Null is a value; a variable that is not there is none.
    assert reply.injected == {"visits": None, "given_null": [{"x": None}]}
    assert [(item.query, item.reason) for item in reply.missing] == [
        ("lacking", "missing_param"),
        ("nested", "missing_param"),
    ]
    assert "$context.absent" in reply.missing[0].detail
    assert "$context.user.absent" in reply.missing[1].detail
    assert "graph_injection.yaml:" in reply.missing[0].detail
    warned = [log for log in logs if log["event"] == "block_missing"]
    assert [(log["log_level"], log["query"], log["reason"]) for log in warned] == [
        ("warning", "lacking", "missing_param"),
        ("warning", "nested", "missing_param"),
    ]


async def test_a_mutation_that_lacks_a_parameter_is_skipped_and_warned_of_once(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    with capture_logs() as logs:
        async with asking(url) as client, working(bus, graph, rules):
            for _ in range(3):
                assert await client.emit(event("params"), wait_s=120)
            await applied(bus)
    assert await value(graph, "MATCH (v:Visit) RETURN v.n") == 3
    assert await value(graph, "MATCH (l:Last) RETURN l.n") == 3
    assert await value(graph, "MATCH (b:Bad) RETURN count(b)") == 0
    [letter] = await bus.dead_letters.read(limit=10)
    assert (letter.reason, letter.mutation, letter.count) == ("skipped", "lacking", 3)
    assert "$context.absent" in letter.message
    skips = [log for log in logs if log["event"] == "mutation_skipped"]
    assert [(log["log_level"], log["mutation"]) for log in skips] == [
        ("warning", "lacking"),
        ("debug", "lacking"),
        ("debug", "lacking"),
    ]


# FalkorDB unavailable


class Servers:
    """Bus and graph on servers of their own."""

    def __init__(self, folder: Path) -> None:
        self.bus = EmbeddedServer(folder / "bus")
        self.graph = EmbeddedServer(folder / "graph")
        for server in (self.bus, self.graph):
            server.data.mkdir()

    @property
    def bus_url(self) -> str:
        return f"unix://{self.bus.socket}"

    @property
    def graph_url(self) -> str:
        return f"unix://{self.graph.socket}"

    def signal(self, number: signal.Signals) -> None:
        assert self.graph.process is not None
        os.kill(self.graph.process.pid, number)

    async def kill_graph(self) -> None:
        assert self.graph.process is not None
        self.graph.process.kill()
        await self.graph.process.wait()


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    with tempfile.TemporaryDirectory(prefix="graphweft-test-") as folder:
        made = Servers(Path(folder))
        await made.bus.start()
        await made.graph.start()
        try:
            yield made
        finally:
            if made.graph.process is not None and made.graph.process.returncode is None:
                made.signal(signal.SIGCONT)
            await made.graph.stop()
            await made.bus.stop()


@pytest.fixture
async def far_bus(servers: Servers) -> AsyncIterator[Bus]:
    driver = redis_bus(servers.bus_url, new=spread(2))
    await driver.partitions.count()  # before a client settles on another number
    yield driver
    await driver.aclose()


@pytest.fixture
async def far_graph(servers: Servers) -> AsyncIterator[FalkorDBStore]:
    # A writer gives a silent server up after a second instead of ten.
    driver = FalkorDBStore(servers.graph_url, write_timeout_ms=500, timing=FalkorDBTiming(writer_grace_s=0.5))
    yield driver
    await driver.aclose()


async def visits(client: Client) -> Any:
    return (await client.context(agent="Any", chat_id="c")).injected.get("visits")


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_requests_are_answered_at_once_without_the_graph_server(
    servers: Servers, far_graph: FalkorDBStore, rules: RuleSet, how: str
) -> None:
    await far_graph.progress(APP, 0)
    async with responding(servers.bus_url, far_graph, rules), asking(servers.bus_url) as client:
        assert (await client.context(agent="Syntax", chat_id="c")).injected["fine"] == [{"x": 1}]
        await (servers.kill_graph() if how == "killed" else servers.graph.stop())
        with capture_logs() as logs:
            replies = await asyncio.gather(*(client.context(agent="Syntax", chat_id="c") for _ in range(20)))
        # Not "timeout": nobody waited for the budget of 60 s.
        assert {reply.reason for reply in replies} == {"graph_unavailable"}
        assert {item.reason for reply in replies for item in reply.missing} == {"graph_unavailable"}
        assert {(reply.blocks, reply.text, len(reply.missing)) for reply in replies} == {((), "", 3)}
        assert "graph_unavailable" in {log.get("reason") for log in logs}
        await servers.graph.start()

        # No broken connection is left over: as soon as the server is tried again the answers are whole.
        async def whole() -> bool:
            return (await client.context(agent="Syntax", chat_id="c")).injected.get("fine") == [{"x": 1}]

        await until(whole)
        assert await whole()


async def test_mutations_wait_on_the_bus_for_the_graph_server(
    servers: Servers, far_bus: Bus, far_graph: FalkorDBStore, rules: RuleSet
) -> None:
    async with asking(servers.bus_url) as client, working(far_bus, far_graph, rules) as worker:
        for number in range(20):
            assert await client.emit(event("visit", number), wait_s=120)
        await applied(far_bus)
        await servers.kill_graph()
        with capture_logs() as logs:
            for number in range(30):
                assert await client.emit(event("visit", number), wait_s=120), (
                    "the runtime goes on as if nothing had happened"
                )

            async def interrupted() -> bool:
                return {log.get("partition") for log in logs if log["event"] == "partition_interrupted"} == {0, 1}

            await until(interrupted)
        assert sum(partition.lag for partition in await far_bus.partitions.status()) == 30
        await servers.graph.start()
        await applied(far_bus)
        assert worker.applied_events >= 50
    assert await value(far_graph, "MATCH (v:Visit) RETURN v.n") == 50
    assert await letter_count(far_bus.dead_letters) == 0


async def test_a_worker_and_a_responder_start_without_the_graph_server(
    servers: Servers, far_bus: Bus, far_graph: FalkorDBStore, rules: RuleSet
) -> None:
    await servers.graph.stop()
    with capture_logs() as logs:
        async with (
            asking(servers.bus_url) as client,
            responding(servers.bus_url, far_graph, rules),
            working(far_bus, far_graph, rules),
        ):
            assert await client.emit(event("visit"), wait_s=120)
            assert (await client.context(agent="Any", chat_id="c")).reason == "graph_unavailable"

            async def interrupted() -> bool:
                return any(log["event"] == "partition_interrupted" for log in logs)

            await until(interrupted)
            await servers.graph.start()
            await applied(far_bus)
            assert await visits(client) == {"n": 1}


async def test_a_silent_graph_server_costs_no_more_than_the_budget(
    servers: Servers, far_graph: FalkorDBStore, rules: RuleSet
) -> None:
    # More of the budget is kept back for the way of the reply than 50 ms, which a busy machine does not hold.
    timing = Timing(context=ContextTiming(least_reserve_s=10.0, most_reserve_s=10.0))
    await far_graph.progress(APP, 0)
    async with (
        responding(servers.bus_url, far_graph, rules, timing=timing) as responder,
        asking(servers.bus_url) as client,
    ):
        assert (await client.context(agent="Any", chat_id="c")).injected == {"visits": None}
        servers.signal(signal.SIGSTOP)
        replies = await asyncio.gather(*(client.context(agent="Any", chat_id="c", budget_ms=10_500) for _ in range(10)))
        # The responder itself said so, in time, with the place of the rule: the client did not have to give up.
        assert {(reply.reason, len(reply.missing)) for reply in replies} == {("timeout", 1)}
        assert {item.reason for reply in replies for item in reply.missing} == {"timeout"}
        assert all("graph_injection.yaml:" in reply.detail for reply in replies)
        # A rule that needs no graph server is not held up by it.
        assert (await client.context(agent="Any", chat_id="c", workflow="Other")).reason == "no_rules"
        servers.signal(signal.SIGCONT)
        assert (await client.context(agent="Any", chat_id="c")).injected == {"visits": None}

        async def counted() -> bool:  # which comes after the reply
            return responder.answered >= 13

        await until(counted)
        assert responder.answered == 13


async def test_mutations_sent_to_a_silent_graph_server_take_effect_once(
    servers: Servers, far_bus: Bus, far_graph: FalkorDBStore, rules: RuleSet
) -> None:
    async with asking(servers.bus_url) as client, working(far_bus, far_graph, rules):
        for number in range(9):
            assert await client.emit(event("visit", number), wait_s=120)
        await applied(far_bus)
        servers.signal(signal.SIGSTOP)
        with capture_logs() as logs:
            for number in range(30):
                assert await client.emit(event("visit", number), wait_s=120)

            async def interrupted() -> bool:
                return {log.get("partition") for log in logs if log["event"] == "partition_interrupted"} == {0, 1}

            await until(interrupted)
        # What the worker has sent and given up is still in the server's sockets and may be executed now.
        servers.signal(signal.SIGCONT)
        await applied(far_bus)
    assert await value(far_graph, "MATCH (v:Visit) RETURN v.n") == 39
    assert await letter_count(far_bus.dead_letters) == 0


# Timeout (>5s)


async def running_queries(url: str) -> Any:
    raw = redis.Redis.from_url(url, decode_responses=True)
    try:
        return (await raw.execute_command("GRAPH.INFO", "RunningQueries"))[1]
    finally:
        await raw.aclose()


@pytest.fixture
async def patient_server(url: str) -> AsyncIterator[None]:
    """The server has no limit of its own below a minute, so whatever is aborted earlier was aborted by us."""
    raw = redis.Redis.from_url(url, decode_responses=True)
    _, before = await raw.execute_command("GRAPH.CONFIG", "GET", "TIMEOUT_DEFAULT")
    await raw.execute_command("GRAPH.CONFIG", "SET", "TIMEOUT_DEFAULT", 60_000)
    yield
    await raw.execute_command("GRAPH.CONFIG", "SET", "TIMEOUT_DEFAULT", before)
    await raw.aclose()


@pytest.mark.usefixtures("patient_server")
async def test_a_query_that_takes_too_long_is_aborted_and_logged(
    url: str, graph: FalkorDBStore, rules: RuleSet
) -> None:
    await graph.progress(APP, 0)
    with capture_logs() as logs:
        async with responding(url, graph, rules, query_timeout_s=0.3), asking(url) as client:
            reply = await client.context(agent="Slow", chat_id="c")
    assert reply.injected == {"visits": None}
    assert [(item.query, item.reason) for item in reply.missing] == [("endless", "timeout")]
    assert "graph_injection.yaml:" in reply.missing[0].detail
    logged = [log for log in logs if log["event"] == "block_missing"]
    assert [(log["log_level"], log["query"], log["reason"]) for log in logged] == [("warning", "endless", "timeout")]

    async def nothing_runs() -> bool:
        return not await running_queries(url)

    await until(nothing_runs)  # by itself it would run for hours


@pytest.mark.usefixtures("patient_server")
async def test_a_query_is_aborted_when_the_budget_ends_before_the_limit(
    url: str, graph: FalkorDBStore, rules: RuleSet
) -> None:
    timing = Timing(context=ContextTiming(least_reserve_s=10.0, most_reserve_s=10.0))
    await graph.progress(APP, 0)
    async with responding(url, graph, rules, timing=timing), asking(url) as client:
        reply = await client.context(agent="Slow", chat_id="c", budget_ms=12_000)
    # What is ready comes in time although something else is not.
    assert reply.injected == {"visits": None}
    assert [(item.query, item.reason) for item in reply.missing] == [("endless", "timeout")]

    async def nothing_runs() -> bool:
        return not await running_queries(url)

    await until(nothing_runs)


async def test_the_limit_is_five_seconds_or_what_is_left_of_the_budget(
    url: str, graph: FalkorDBStore, rules: RuleSet
) -> None:
    limits: list[float] = []

    class Noting:
        dialect = graph.dialect

        async def read(self, *args: Any, timeout_s: float, **options: Any) -> Table:
            limits.append(timeout_s)
            return await graph.read(*args, timeout_s=timeout_s, **options)

    async with responding(url, Noting(), rules), asking(url) as client:
        await client.context(agent="Any", chat_id="c", budget_ms=120_000)
        await client.context(agent="Any", chat_id="c", budget_ms=2_000)
    assert limits[0] == 5.0
    assert 0 < limits[1] < 2.0
    fields = Settings.model_fields
    assert (fields["query_timeout_ms"].default, fields["mutation_timeout_ms"].default) == (5_000, 5_000)


@pytest.mark.usefixtures("patient_server")
async def test_a_mutation_that_takes_too_long_is_rolled_back_and_buried(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    with capture_logs() as logs:
        async with (
            asking(url) as client,
            contextlib.aclosing(FalkorDBStore(url, write_timeout_ms=500)) as hasty,
            working(bus, hasty, rules, timing=Timing(writes=WriteTiming(again_s=0.0, long_rest=0.0))),
        ):
            assert await client.emit(event("slow"), wait_s=120)
            assert await client.emit(event("visit"), wait_s=120)
            await applied(bus)
    assert await value(graph, "MATCH (s:Slow) RETURN count(s)") == 0
    assert await value(graph, "MATCH (v:Visit) RETURN v.n") == 2
    assert await value(graph, "MATCH (l:Last) RETURN l.n") == 1
    [letter] = await bus.dead_letters.read(limit=10)
    assert (letter.reason, letter.rule, letter.mutation) == ("timeout", "slow", "endless")
    [logged] = [log for log in logs if log["event"] == "mutation_buried"]
    assert (logged["log_level"], logged["reason"], logged["rule"]) == ("error", "timeout", "slow")
    assert not await running_queries(url)


# A condition that cannot be decided


@pytest.mark.parametrize("age", ["old", [1], {"years": 3}, None], ids=repr)
async def test_a_condition_that_breaks_skips_its_rule_alone(
    url: str, graph: FalkorDBStore, rules: RuleSet, age: Any
) -> None:
    await graph.progress(APP, 0)
    with capture_logs() as logs:
        async with responding(url, graph, rules), asking(url) as client:
            reply = await client.context(agent="Typed", chat_id="c", context={"age": age})
    assert reply.injected == {"visits": None}
    assert [(item.rule, item.query, item.reason) for item in reply.missing] == [("typed", "adult", "condition_error")]
    assert "graph_injection.yaml:" in reply.missing[0].detail
    assert "old" not in reply.missing[0].detail
    assert [log["reason"] for log in logs if log["event"] == "block_missing"] == ["condition_error"]


@pytest.mark.parametrize(("context", "blocks"), [({}, 1), ({"age": 17}, 1), ({"age": 18.5}, 2), ({"age": 19}, 2)])
async def test_a_rule_whose_condition_does_not_hold_is_not_missing(
    url: str, graph: FalkorDBStore, rules: RuleSet, context: dict[str, Any], blocks: int
) -> None:
    async with responding(url, graph, rules), asking(url) as client:
        reply = await client.context(agent="Typed", chat_id="c", context=context)
    assert (reply.missing, reply.partial, reply.reason, len(reply.blocks)) == ((), False, None, blocks)


async def test_a_condition_that_breaks_skips_its_mutations_alone(
    url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    with capture_logs() as logs:
        async with asking(url) as client, working(bus, graph, rules):
            assert await client.emit(event("typed", age="old"), wait_s=120)
            assert await client.emit(event("typed"), wait_s=120)
            await applied(bus)
    assert await value(graph, "MATCH (v:Visit) RETURN v.n") == 2
    assert await value(graph, "MATCH (l:Last) RETURN l.n") == 2
    assert await value(graph, "MATCH (b:Bad) RETURN count(b)") == 0
    letters = await bus.dead_letters.read(limit=10)
    assert [(letter.reason, letter.count) for letter in letters] == [("skipped", 1), ("skipped", 1)]
    skips = [log for log in logs if log["event"] == "mutation_skipped"]
    assert [log["log_level"] for log in skips] == ["warning", "warning"]
    assert ["cannot be decided" in log["detail"] for log in skips] == [True, False]
