"""The injection responder against the real server: from the client's question to FalkorDB and back."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis.asyncio as redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.services.rules import load_rules, rule_set
from tests.services.waiting import until

from graphweft import Client
from graphweft_contracts import Block, ContextReply, ContextRequest, channels
from graphweft_contracts.prompt_text import inside
from graphweft_rules import InjectionQuery, InjectionRule, Place, RuleSet, Workflow, assemble
from graphweft_rules.cypher.query import parse
from graphweft_rules.matching.workflow import CompiledInjection, CompiledInjectionRule
from graphweft_workers.apps import AppPolicies, AppPolicy
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.drivers.redis.timing import RedisBusTiming
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.injection.shown_place import shown_place
from graphweft_workers.ports.graph_store import START, Table

pytestmark = pytest.mark.integration
APP = "shop"
RULES = """
version: "1.0"
injection_rules:
  - name: formats
    agents: [Reader]
    queries:
      - id: a
        cypher: "MATCH (p:Product) RETURN p.name, p.price AS price ORDER BY p.name"
        inject_as: as_list
        format: list
        max_results: 2
      - id: b
        cypher: "MATCH (p:Product) RETURN p.name, p.price AS price ORDER BY p.name"
        inject_as: as_single
        format: single
      - id: c
        cypher: "MATCH (p:Product) RETURN p.name, p.price AS price ORDER BY p.name"
        inject_as: as_json
        format: json
        max_results: 1
      - id: d
        cypher: "MATCH (p:Product) RETURN p.name, p.note, p.price AS price ORDER BY p.name"
        inject_as: as_markdown
        format: markdown
      - id: e
        cypher: "MATCH (p:Nothing) RETURN p.name"
        inject_as: empty
        format: markdown
  - name: temporal
    agents: [Clock]
    queries:
      - id: t
        cypher: "RETURN duration('P1DT2H') AS d, date('2026-02-01') AS day, localtime('10:30:00') AS t"
        inject_as: t
        format: single
  - name: entities
    agents: [Whole]
    queries:
      - id: n
        cypher: "MATCH path = (p:Product {name: 'Anvil'})-[r:IN]->(s:Shelf) RETURN p, r, path"
        inject_as: n
        format: single
  - name: echo
    agents: [Echo]
    queries:
      - id: v
        cypher: "RETURN $v AS v, $w AS w"
        params: {v: $context.v, w: $context.w}
        inject_as: v
        format: single
      - id: sure
        cypher: "MATCH (n) RETURN count(n) AS n"
        inject_as: sure
        format: single
  - name: one
    agents: [One, Echo]
    queries:
      - {id: one, cypher: "RETURN 1 AS n", inject_as: one, format: single}
"""
DATA = """CREATE (:Product {name: 'Anvil', price: 10, note: 'heavy'})-[:IN {since: 2024}]->(:Shelf {id: 's1'}),
                 (:Product {name: 'Bolt', price: 0.5, note: 'small'}), (:Product {name: 'Crate'})"""


SHORT_WAITS = RedisBusTiming(request_s=0.05)
"""An idle responder waits this long for requests before it sees that it is to stop."""


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop" / "graph_injection.yaml").write_text(RULES)
    return load_rules(tmp_path)


@asynccontextmanager
async def responding(
    url: str, graph: Any, rules: RuleSet, name: str = "r", timing: RedisBusTiming = SHORT_WAITS, **options: Any
) -> AsyncIterator[InjectionResponder]:
    queue = RedisRequestQueue(url, consumer=name, timing=timing)
    pipeline = ContextPipeline(rules, graph)
    responder = InjectionResponder(queue, pipeline.answer, **options)
    task = asyncio.create_task(responder.run())
    try:
        yield responder
    finally:
        responder.stop()
        await task
        await queue.aclose()
        await pipeline.aclose()


@pytest.fixture
async def client(url: str, graph: FalkorDBStore, rules: RuleSet) -> AsyncIterator[Client]:
    async with responding(url, graph, rules), asking(url) as made:
        yield made


def asking(url: str) -> Client:
    return Client(url, app_id=APP, workflow="Shop", budget_ms=120_000)


async def write(url: str, statement: str, app: str = APP) -> None:
    """Write to an app's graph without any code of ours."""
    async with redis.Redis.from_url(url) as raw:
        await raw.execute_command("GRAPH.QUERY", f"mozaiks_{app}", statement)


def request(agent: str = "One", *, budget_ms: int = 20_000, **fields: Any) -> ContextRequest:
    values: dict[str, Any] = {
        "id": uuid4().hex,
        "app_id": APP,
        "workflow": "Shop",
        "agent": agent,
        "chat_id": "c1",
        "deadline_ms": int(time.time() * 1000) + budget_ms,
        "reply_to": channels.context_replies("test"),
    }
    return ContextRequest(**values | fields)


async def put(raw: Any, bodies: Sequence[bytes]) -> None:
    """Put bodies on the request stream, all at once."""
    pipeline = raw.pipeline(transaction=True)
    for body in bodies:
        pipeline.xadd(channels.CONTEXT_REQUESTS, {b"data": body})
    await pipeline.execute()


async def nothing_pending(url: str) -> bool:
    async with redis.Redis.from_url(url) as raw:
        [group] = await raw.xinfo_groups(channels.CONTEXT_REQUESTS)
    return (group["pending"], group["lag"]) == (0, 0)


async def counted(answered: Callable[[], int], count: int) -> None:
    """Wait until ``count`` requests are counted as answered, which comes after the reply, and that it is no more."""

    async def enough() -> bool:
        return answered() >= count

    await until(enough)
    assert answered() == count


class Gate:
    """A graph store whose reads wait until the gate is opened."""

    dialect = "falkordb"

    def __init__(self, graph: FalkorDBStore) -> None:
        self._graph = graph
        self.waiting = 0
        self.open = asyncio.Event()

    async def read(self, *args: Any, **options: Any) -> Table:
        self.waiting += 1
        await self.open.wait()
        return await self._graph.read(*args, **options)


class Listener:
    """Collects everything that is published on a channel, by request id."""

    def __init__(self, url: str, channel: str = channels.context_replies("test")) -> None:
        self._redis = redis.Redis.from_url(url)
        self._channel = channel
        self.ids: list[str] = []

    async def __aenter__(self) -> Listener:
        self._subscriber = self._redis.pubsub()
        await self._subscriber.subscribe(self._channel)
        await self._subscriber.get_message(timeout=5)
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._subscriber.aclose()
        await self._redis.aclose()

    async def _listen(self) -> None:
        async for message in self._subscriber.listen():
            if message["type"] == "message":
                head, _, body = message["data"].partition(b"\n")
                reply = ContextReply.model_validate_json(body)
                assert reply.id == head.decode()
                self.ids.append(reply.id)

    async def until(self, count: int) -> None:
        async def enough() -> bool:
            return len(self.ids) >= count

        await until(enough)


async def test_the_four_formats(url: str, client: Client) -> None:
    await write(url, DATA)
    reply = await client.context(agent="Reader", chat_id="c1")
    assert (reply.reason, reply.missing, reply.partial) == (None, (), False)
    assert reply.injected == {
        "as_list": [{"name": "Anvil", "price": 10}, {"name": "Bolt", "price": 0.5}],
        "as_single": {"name": "Anvil", "price": 10},
        "as_json": '[\n  {\n    "name": "Anvil",\n    "price": 10\n  }\n]',
        "as_markdown": "- **Anvil**: heavy (price: 10)\n- **Bolt**: small (price: 0.5)\n- **Crate**",
        "empty": "",
    }
    assert [(block.name, block.rows, block.rule, block.query) for block in reply.blocks] == [
        ("as_list", 2, "formats", "a"),
        ("as_single", 1, "formats", "b"),
        ("as_json", 1, "formats", "c"),
        ("as_markdown", 3, "formats", "d"),
        ("empty", 0, "formats", "e"),
    ]
    text = inside(reply.text)
    assert text == assemble(reply.blocks) != reply.text
    assert text.startswith('## As List\n[{"name": "Anvil", "price": 10}')
    assert text.endswith("## As Markdown\n- **Anvil**: heavy (price: 10)\n- **Bolt**: small (price: 0.5)\n- **Crate**")


async def test_an_app_without_a_graph_yet_has_empty_blocks(client: Client) -> None:
    reply = await client.context(agent="Reader", chat_id="c1")
    assert (reply.reason, reply.missing, reply.text) == (None, (), "")
    assert reply.injected == {"as_list": [], "as_single": None, "as_json": "[]", "as_markdown": "", "empty": ""}


async def test_temporal_values_are_iso_text(url: str, client: Client) -> None:
    await write(url, DATA)
    reply = await client.context(agent="Clock", chat_id="c1")
    assert reply.injected == {"t": {"d": "P1DT2H", "day": "2026-02-01", "t": "10:30:00"}}


async def test_entities_are_their_properties(url: str, client: Client) -> None:
    await write(url, DATA)
    reply = await client.context(agent="Whole", chat_id="c1")
    anvil = {"name": "Anvil", "price": 10, "note": "heavy"}
    assert reply.injected == {"n": {"p": anvil, "r": {"since": 2024}, "path": [anvil, {"id": "s1"}]}}


async def test_requests_that_miss_blocks_do_not_flood_the_log(url: str, graph: FalkorDBStore, rules: RuleSet) -> None:
    await write(url, DATA)
    with capture_logs() as logs:
        async with responding(url, graph, rules), asking(url) as client:
            replies = [await client.context(agent="Echo", chat_id="c1") for _ in range(20)]
    assert {item.reason for reply in replies for item in reply.missing} == {"missing_param"}
    missing = [log for log in logs if log["event"] == "block_missing"]
    assert [log["query"] for log in missing] == ["v"]
    assert [log["count"] for log in logs if log["event"] == "log_lines_left_out"] == [19]


async def test_a_reply_shows_no_path_of_the_server(
    url: str, graph: FalkorDBStore, rules: RuleSet, tmp_path: Path
) -> None:
    await write(url, DATA)
    pipeline = ContextPipeline(rules, graph, root=tmp_path)
    try:
        reply = await pipeline.answer(request("Echo", explain=True))
        cut = await pipeline.answer(request("Echo", max_tokens=1))
    finally:
        await pipeline.aclose()
    assert "token_budget" in {missing.reason for missing in cut.missing}
    assert str(tmp_path) not in cut.model_dump_json()
    [missing] = reply.missing
    assert missing.detail.startswith("Shop/graph_injection.yaml:")
    places = {block.explanation.place for block in reply.blocks if block.explanation is not None}
    assert len(places) == 2
    assert all(place.startswith("Shop/graph_injection.yaml:") for place in places)
    assert str(tmp_path) not in reply.model_dump_json()


def test_places_are_shown_from_the_folder_of_rules_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "rules")
    for file, root, shown in (
        (tmp_path / "rules/A/b.yaml", tmp_path / "rules", "A/b.yaml"),
        (tmp_path / "rules/A/b.yaml", Path("rules"), "A/b.yaml"),
        (tmp_path / "rules/A/b.yaml", Path("link"), "A/b.yaml"),
        (Path("rules/A/b.yaml"), Path("rules"), "A/b.yaml"),
        (Path("A/b.yaml"), tmp_path / "rules", "A/b.yaml"),
        (tmp_path / "other/b.yaml", tmp_path / "rules", "b.yaml"),
        (Path("../other/b.yaml"), tmp_path / "rules", "b.yaml"),
        (tmp_path / "rules/A/b.yaml", None, f"{tmp_path}/rules/A/b.yaml"),
    ):
        assert shown_place(Place(file=str(file), line=2, column=3), root) == f"{shown}:2:3"


async def test_an_unknown_workflow_names_no_other(client: Client) -> None:
    reply = await client.context(agent="One", chat_id="c1", workflow="Shpo")
    assert (reply.reason, reply.blocks, reply.text) == ("no_rules", (), "")
    assert "'Shpo'" in reply.detail
    assert "'Shop'" not in reply.detail


async def test_a_workflow_of_other_apps_is_answered_like_an_unknown_one(
    url: str, graph: FalkorDBStore, rules: RuleSet
) -> None:
    await write(url, DATA)
    shop, other = AppPolicy(workflows=frozenset({"Shop"})), AppPolicy(workflows=frozenset({"Other"}))
    pipeline = ContextPipeline(rules, graph, may_use=AppPolicies(default=other, apps={APP: shop}).allows_workflow)
    try:
        known, forbidden, unknown = [
            await pipeline.answer(request(app_id=app, workflow=workflow))
            for app, workflow in ((APP, "Shop"), ("strange", "Shop"), ("strange", "Shpo"))
        ]
    finally:
        await pipeline.aclose()
    assert known.injected == {"one": {"n": 1}}
    assert forbidden.reason == unknown.reason == "no_rules"
    assert forbidden.detail.replace("Shop", "Shpo") == unknown.detail


async def test_a_workflow_is_compiled_for_its_first_request(
    url: str, graph: FalkorDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = {"Shop/graph_injection.yaml": RULES.encode()}
    summary = RuleSet.of_files(shop).summary
    rules = RuleSet.of_stored({**shop, "Torn/graph_injection.yaml": b"{"}, summary=summary)
    go_on, compiling = threading.Event(), rules.compile

    def slowly(workflows: Iterable[str]) -> None:
        go_on.wait(20)
        compiling(workflows)

    monkeypatch.setattr(rules, "compile", slowly)
    async with responding(url, graph, rules), asking(url) as client:
        while True:  # a reply at the end of a budget may miss it; and no responder may read yet
            late = await client.context(agent="Nobody", chat_id="c1", budget_ms=300)
            assert (late.reason, late.text) == ("timeout", "")
            if "'Shop' are compiled at its first request" in late.detail:
                break
        go_on.set()
        reply = await client.context(agent="Nobody", chat_id="c1")
        assert (reply.reason, reply.partial) == (None, False)
        assert rules.is_compiled("Shop")
        assert not rules.is_compiled("Torn")
        torn = await client.context(agent="Nobody", chat_id="c1", workflow="Torn")
        assert (torn.reason, torn.text) == ("no_rules", "")
        assert "'Torn' do not compile with this version: Torn/graph_injection.yaml:1:" in torn.detail


async def test_an_agent_without_rules_gets_nothing_and_nothing_is_wrong(client: Client) -> None:
    reply = await client.context(agent="Nobody", chat_id="c1")
    assert (reply.reason, reply.blocks, reply.missing, reply.text, reply.partial) == (None, (), (), "", False)


async def test_an_expired_request_is_dropped(url: str, graph: FalkorDBStore, rules: RuleSet) -> None:
    late, live = request(budget_ms=-1), request()
    async with redis.Redis.from_url(url) as raw, Listener(url) as replies:
        await put(raw, [late.model_dump_json().encode(), live.model_dump_json().encode()])
        async with responding(url, graph, rules) as responder:
            await replies.until(1)
            await until(lambda: nothing_pending(url))
            assert (responder.expired, responder.answered) == (1, 1)
        assert replies.ids == [live.id]


async def test_of_two_replicas_one_answers(url: str, graph: FalkorDBStore, rules: RuleSet) -> None:
    patient = RedisBusTiming(request_s=0.05, alive_ms=60_000)  # no replica counts as dead
    requests = [request() for _ in range(100)]
    async with redis.Redis.from_url(url) as raw, Listener(url) as replies:
        async with (
            responding(url, graph, rules, "one", patient) as one,
            responding(url, graph, rules, "two", patient) as two,
        ):
            for start in range(0, 100, 10):
                await put(raw, [each.model_dump_json().encode() for each in requests[start : start + 10]])
            await replies.until(100)
            await until(lambda: nothing_pending(url))
            assert one.answered + two.answered == 100
        assert sorted(replies.ids) == sorted(each.id for each in requests)


async def test_who_is_idle_gets_what_comes_before_who_is_full(url: str, graph: FalkorDBStore, rules: RuleSet) -> None:
    gate = Gate(graph)
    requests = [request() for _ in range(30)]
    async with redis.Redis.from_url(url) as raw, Listener(url) as replies:
        async with responding(url, gate, rules, "busy", max_requests=2) as busy:

            async def full() -> bool:
                return busy._free == 0

            for each in requests[:2]:
                await put(raw, [each.model_dump_json().encode()])
            await until(full)
            async with responding(url, graph, rules, "free") as free:
                # It waits on the bus, so it is given a request before the other one looks, but for one that comes while
                # it takes the one before.
                for number, each in enumerate(requests[2:], 1):
                    await put(raw, [each.model_dump_json().encode()])

                    async def taken(number: int = number) -> bool:
                        return free.answered + len(busy._waiting) + busy.shed >= number

                    await until(taken)
                assert free.answered > 14
            gate.open.set()
            await replies.until(30)
        assert sorted(replies.ids) == sorted(each.id for each in requests)


async def test_a_stopped_responder_finishes_what_it_has(url: str, graph: FalkorDBStore, rules: RuleSet) -> None:
    gate = Gate(graph)
    async with asking(url) as client:
        async with responding(url, gate, rules) as responder:
            asked = asyncio.create_task(client.context(agent="One", chat_id="c1"))

            async def begun() -> bool:
                return gate.waiting == 1

            await until(begun)
            responder.stop()
            gate.open.set()
        assert (await asked).reason is None


BROKEN = {
    "empty": b"",
    "no json": b"{not json",
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "a number": b"1",
    "no fields": b"{}",
    "too deep": b'{"context": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "a surrogate": b'{"context": {"a": "\\ud800"}}',
    "another app's name": request().model_copy(update={"app_id": "../other"}).model_dump_json().encode(),
    "a field too many": request().model_dump_json()[:-1].encode() + b', "more": 1}',
    "endless": request().model_dump_json().replace('"deadline_ms":', '"deadline_ms":1' + "0" * 400).encode(),
    "for ever": request(deadline_ms=10**30).model_dump_json().encode(),
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_request_hurts_no_other(url: str, client: Client, body: bytes) -> None:
    async with redis.Redis.from_url(url) as raw:
        with capture_logs() as logs:
            await put(raw, [body])
            await raw.xadd(channels.CONTEXT_REQUESTS, {b"other": b"field"})
            reply = await client.context(agent="One", chat_id="c1")
            await until(lambda: nothing_pending(url))
    assert reply.injected == {"one": None}
    assert "request_invalid" in {log["event"] for log in logs}
    assert not [log for log in logs if "event:" in log.get("error", "")]
    assert "request_failed" not in {log["event"] for log in logs}


@pytest.mark.parametrize("more", [{}, {"more": 1}], ids=["readable", "unreadable"])
async def test_requests_for_many_other_apps_cannot_flood_the_log(
    url: str, client: Client, more: dict[str, int]
) -> None:
    asked = [request(reply_to=channels.context_replies("me", f"other{number}")).model_dump() for number in range(300)]
    bodies = [json.dumps({**each, "app_id": f"app{number}", **more}).encode() for number, each in enumerate(asked)]
    async with redis.Redis.from_url(url) as raw:
        with capture_logs() as logs:
            await put(raw, bodies)
            await until(lambda: nothing_pending(url))
    lines = [log for log in logs if log["event"] == "request_refused" and log["log_level"] == "warning"]
    assert 1 < len(lines) <= 100


async def test_replies_that_nobody_reads_leave_a_neighbour_its_own(url: str, client: Client) -> None:
    """The neighbour's connection opens late, as after an outage."""
    own, near = channels.context_replies("gone", APP), channels.context_replies("late", "near")
    late = request(app_id="near", reply_to=near)
    async with redis.Redis.from_url(url) as raw:
        await put(raw, [request(reply_to=own).model_dump_json().encode() for _ in range(300)])
        await until(lambda: nothing_pending(url))
        await put(raw, [late.model_dump_json().encode()])
        await until(lambda: nothing_pending(url))
        async with Listener(url, near) as listener:
            await listener.until(1)
    assert listener.ids == [late.id]


@pytest.mark.parametrize("lost", [False, True], ids=["data kept", "data lost"])
async def test_an_outage_of_the_bus_is_survived(graph: FalkorDBStore, url: str, rules: RuleSet, lost: bool) -> None:
    await write(url, DATA)
    with tempfile.TemporaryDirectory(prefix="graphweft-test-") as folder:
        server = EmbeddedServer(Path(folder))
        await server.start()
        try:
            async with responding(f"unix://{server.socket}", graph, rules), asking(f"unix://{server.socket}") as client:
                assert (await client.context(agent="One", chat_id="c1")).injected == {"one": {"n": 1}}
                assert server.process is not None
                server.process.kill()
                await server.process.wait()
                away = await client.context(agent="One", chat_id="c1", budget_ms=200)
                assert away.reason in ("bus_unavailable", "timeout")
                if lost:
                    shutil.rmtree(Path(folder) / "appendonlydir")
                await server.start()

                async def answered() -> bool:
                    reply = await client.context(agent="One", chat_id="c1", budget_ms=2_000)
                    return reply.injected == {"one": {"n": 1}}

                await until(answered)
        finally:
            await server.stop()


async def test_many_requests_at_once_are_all_answered(url: str, graph: FalkorDBStore, rules: RuleSet) -> None:
    await write(url, DATA)
    async with AsyncExitStack() as opened, responding(url, graph, rules) as responder:
        clients = [await opened.enter_async_context(asking(url)) for _ in range(4)]
        replies = await asyncio.gather(
            *(client.context(agent="Reader", chat_id=f"c{number}") for number in range(50) for client in clients)
        )
        await counted(lambda: responder.answered, 200)
    assert {(reply.reason, len(reply.blocks), len(reply.missing)) for reply in replies} == {(None, 5, 0)}


async def test_many_reads_at_once_need_no_connection_each(url: str, graph: FalkorDBStore) -> None:
    await write(url, DATA)
    tables = await asyncio.gather(
        *(graph.read(APP, "MATCH (p:Product) RETURN count(p)", {}, timeout_s=120) for _ in range(400))
    )
    assert {table.rows for table in tables} == {((3,),)}
    async with redis.Redis.from_url(url) as raw:
        assert len(await raw.client_list()) < 100


async def test_as_many_partitions_write_at_once_as_there_can_be(graph: FalkorDBStore) -> None:
    checkpoints = await asyncio.gather(*(graph.progress(APP, partition) for partition in range(256)))
    assert {progress.checkpoint for progress in checkpoints} == {START}


async def test_a_block_that_breaks_costs_no_other(url: str, graph: FalkorDBStore, rules: RuleSet) -> None:
    class Odd:
        dialect = "falkordb"

        async def read(self, app_id: str, statement: str, params: Any, **options: Any) -> Table:
            if "AS price" in statement:
                raise ValueError("a secret value")
            return await graph.read(app_id, statement, params, **options)

    await write(url, DATA)
    async with responding(url, Odd(), rules), asking(url) as client:
        reply = await client.context(agent="Reader", chat_id="c1")
    assert [block.name for block in reply.blocks] == ["empty"]
    assert {(item.reason, item.query) for item in reply.missing} == {("internal_error", each) for each in "abcd"}
    assert "secret" not in reply.model_dump_json()


WRITING = [
    "CREATE (x:Evil) RETURN x",
    "MERGE (x:Evil {id: 1}) RETURN x",
    "MATCH (p:Product) SET p.price = 0 RETURN p",
    "MATCH (p:Product) REMOVE p.price RETURN p",
    "MATCH (p:Product) DETACH DELETE p",
    "MATCH (p:Product) FOREACH (i IN [1] | CREATE (:Evil)) RETURN p",
    "CALL { CREATE (x:Evil) RETURN x } RETURN x",
    "CREATE INDEX FOR (p:Product) ON (p.price)",
    "CALL db.idx.fulltext.createNodeIndex('Product', 'name')",
]


@pytest.mark.parametrize("statement", WRITING)
async def test_the_server_keeps_injection_from_writing(url: str, graph: FalkorDBStore, statement: str) -> None:
    await write(url, DATA)
    # Lint and the loader refuse such a rule, so this one is put together by hand.
    place = Place(file="by-hand.yaml")
    queries = tuple(
        InjectionQuery(id=name, cypher=text, inject_as=name, place=place)
        for name, text in (("evil", statement), ("good", "MATCH (p:Product) RETURN count(p) AS n"))
    )
    compiled = CompiledInjectionRule(
        rule=InjectionRule(name="r", agents=("*",), queries=queries, place=place),
        condition=None,
        parts=tuple(
            CompiledInjection(
                rule="r",
                id=query.id,
                query=query,
                cypher=parse(query.cypher, role="injection"),
                sources=(),
                place=place,
            )
            for query in queries
        ),
    )
    slipped = rule_set({"Shop": Workflow("Shop", [], [compiled])})
    before, indexes = await read_digest(graph, APP), await graph.read(APP, "CALL db.indexes()", {}, timeout_s=120)
    async with responding(url, graph, slipped), asking(url) as client:
        reply = await client.context(agent="Any", chat_id="c1")
    assert [(item.query, item.reason) for item in reply.missing] == [("evil", "query_error")]
    assert "by-hand.yaml:1:1" in reply.missing[0].detail
    assert reply.injected == {"good": [{"n": 3}]}
    assert await read_digest(graph, APP) == before
    assert await graph.read(APP, "CALL db.indexes()", {}, timeout_s=120) == indexes


async def test_an_app_sees_only_its_own_graph(url: str, client: Client) -> None:
    for app in ("one", "two"):
        await write(url, f"CREATE (:Product {{name: '{app}', price: 1}})", app)
    for app in ("one", "two"):
        reply = await client.context(agent="Reader", chat_id="c1", app_id=app)
        assert reply.injected["as_list"] == [{"name": app, "price": 1}]
    reply = await client.context(agent="Reader", chat_id="c1", app_id="three")
    assert reply.injected["as_list"] == []
    async with redis.Redis.from_url(url) as raw:
        # Asking makes no graph.
        assert sorted(await raw.execute_command("GRAPH.LIST")) == [b"mozaiks_one", b"mozaiks_two"]


@pytest.mark.parametrize("app", ["", "../two", "two\n", "a b", "{app_id}", "two}", "x" * 65, "zwei\u00e9", "two\0"])
async def test_an_app_id_that_is_none_is_refused(url: str, client: Client, app: str) -> None:
    await write(url, DATA, "two")
    async with Client(url, workflow="Shop", budget_ms=120_000) as bare:
        reply = await bare.context(agent="Reader", chat_id="c1", app_id=app)
    assert (reply.reason, reply.blocks) == ("invalid_request", ())
    assert "app_id" in reply.detail


TEXT = st.one_of(
    st.text(),
    st.text(alphabet="\"'\\`$;{}()[],:/*-\n\r\t\0 \u2028AND1=", max_size=20),
    st.sampled_from(
        [
            '"} CREATE (:Evil) //',
            '" RETURN 1 UNION MATCH (n) DETACH DELETE n //',
            "' OR 1=1 //",
            '\\" CREATE (:Evil)',
            '\\\\" CREATE (:Evil)',
            '" w="other',
            "$w",
            "CYPHER w=1 RETURN $w",
            "\ud800",
            "a\0b",
            "*/ CREATE (:Evil) /*",
        ]
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(-1e300, 1e300) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def sendable(value: Any) -> bool:
    """Whether FalkorDB can take a value: no integers beyond 64 bits, no NUL, no odd map keys, only whole characters."""
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, list):
        return all(map(sendable, value))
    if isinstance(value, dict):
        return all(key and "`" not in key and sendable(key) and sendable(inner) for key, inner in value.items())
    return True


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, but for the 15 digits that the server prints of a float."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-14)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(v=VALUES, w=VALUES)
@example(v='"', w="\\")
@example(v="\\", w='" CREATE (:Evil) //')
@example(v={"a`:1} CREATE (:Evil) RETURN {`b": 1}, w=1)
@example(v={"": 1}, w="x")
@example(v={"\ud800": 1}, w={"\0": "\0"})
async def test_a_value_never_breaks_out_of_its_parameter(graph: FalkorDBStore, rules: RuleSet, v: Any, w: Any) -> None:
    await graph.progress(APP, 0)
    pipeline = ContextPipeline(rules, graph)
    reply = await pipeline.answer(request("Echo", context={"v": v, "w": w}))
    await pipeline.aclose()
    blocks = {block.name: block.value for block in reply.blocks}
    assert blocks["sure"] == {"n": 1}
    assert blocks["one"] == {"n": 1}
    if sendable(v) and sendable(w):
        assert same(blocks["v"], {"v": v, "w": w})
    else:
        assert [(item.query, item.reason) for item in reply.missing] == [("v", "query_error")]


NASTY: dict[str, Any] = {
    "quotes": "a\"b'c`d",
    "backslashes": '\\\\"\\',
    "cypher": '"} CREATE (:Evil) //',
    "reference": "$context.w $w {w}",
    "lines": "a\nb\r\n\u2028c",
    "a map": {'x} MATCH (n) DETACH DELETE n //"': {"y": [1, None, True]}},
    "half of what an answer may have": "x" * 495_000,
}


@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY.keys())
async def test_a_value_comes_back_as_it_was_sent(url: str, client: Client, value: Any) -> None:
    await write(url, DATA)
    reply = await client.context(agent="Echo", chat_id="c1", context={"v": value, "w": 1})
    assert reply.missing == ()
    assert reply.injected == {"v": {"v": value, "w": 1}, "sure": {"n": 4}, "one": {"n": 1}}


async def test_an_answer_that_is_too_large_is_not_sent(url: str, client: Client) -> None:
    await write(url, DATA)
    reply = await client.context(agent="Echo", chat_id="c1", context={"v": "x" * 7_000_000, "w": 1})
    assert (reply.reason, reply.blocks, reply.partial) == ("internal_error", (), True)
    assert "1000000" in reply.detail
    assert "max_results" in reply.detail


@pytest.mark.parametrize("value", ["a\0b", 2**63, {"a`b": 1}, {"": 1}, {"a\0": 1}], ids=repr)
async def test_a_value_that_cannot_be_sent_costs_only_its_query(url: str, client: Client, value: Any) -> None:
    await write(url, DATA)
    reply = await client.context(agent="Echo", chat_id="c1", context={"v": value, "w": "a secret"})
    assert [(item.query, item.reason) for item in reply.missing] == [("v", "query_error")]
    assert (reply.reason, reply.partial) == (None, True)
    assert reply.injected == {"sure": {"n": 4}, "one": {"n": 1}}
    assert "secret" not in reply.model_dump_json()


async def test_what_json_cannot_say_disturbs_neither_side(url: str, client: Client) -> None:
    await write(url, DATA)
    for value in ("\ud800", {"\udfff": 1}, object()):
        reply = await client.context(agent="Echo", chat_id="c1", context={"v": value, "w": 1})
        assert reply.reason is None
    assert (await client.context(agent="One", chat_id="c1")).reason is None


def test_the_text_of_a_reply_is_its_blocks_put_together() -> None:
    block = Block(name="my_notes", format="list", value=[{"a": 1}], rows=1, rule="r", query="q")
    assert assemble([block]) == "## My Notes\n" + json.dumps([{"a": 1}])
