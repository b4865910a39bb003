"""``query`` and ``context`` with ``--as-of`` show a past of an app, by its rules and its time, and leave nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, override

import pytest
from tests.chaos.serial import Neo4jReference
from tests.edges.test_cli import Call, call
from tests.redis.test_rebuild import RULES, App
from tests.services.fixtures import empty_kafka
from tests.services.kafka import KafkaServer
from tests.services.neo4j import Neo4jServer
from tests.services.waiting import until

from graphweft_contracts import Event
from graphweft_contracts.memory import memory_id
from graphweft_workers.drivers.falkordb.store import FalkorDBStore

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

INJECTIONS = """
injection_rules:
  - name: known
    agents: ["*"]
    queries:
      - id: orders
        cypher: "MATCH (o:Order) RETURN count(o) AS orders, 'BY' AS rules, toString(datetime()) AS now"
        inject_as: orders
        format: single
      - id: facts
        search: {memory: {user_id: $workflow.user_id}, of: facts, query: "Ann lives works"}
        inject_as: facts
        format: list
      - id: graph
        graphrag: {query: "Ann", memory: {user_id: $workflow.user_id}}
        inject_as: graph
"""
TEXTS = {1: "m-likes tea", 2: "m-likes tea no more"}
SHARE = "SET o.share = 100 / $parts"
BLOCKED = "SET o.shared = coalesce(o.shared, 0) + 100 / (coalesce(o.block, 1) * $parts)"
"""It fails in a graph whose order somebody has blocked by hand, and in no other."""
ORDERS = "MATCH (o:Order) RETURN o.id, o.by, o.times, o.shared ORDER BY o.id"
MEMORIES = "MATCH (m:Memory) RETURN m.text ORDER BY m.text"
ASKED = ("--workflow", "Shop", "--agent", "A", "--chat", "c1", "--user", "u1")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the live graph of an app held at a time."""

    time: datetime
    positions: list[str]
    orders: Any
    memories: Any


class PastApp(App):
    """Two apps that live through a change of rules, failures, retries, memories and facts."""

    soon: datetime
    """When a fact of the first half becomes true: behind that half, however busy the machine is."""

    @override
    async def push(self, by: str) -> None:
        file = self.folder / "rules/Shop/graph_injection.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        assert SHARE in RULES
        file.write_text((RULES.replace(SHARE, BLOCKED) + INJECTIONS).replace("BY", by))
        done = await self.run("rules", "push", str(self.folder / "rules"))
        assert done.code == 0, done.err

    async def rows(self, app: str, cypher: str, *arguments: str) -> Any:
        done = await self.run("query", "--app", app, "--json", cypher, *arguments)
        assert done.code == 0, done.err
        return json.loads(done.out)["rows"]

    async def state(self) -> dict[str, tuple[Any, Any]]:
        return {app: (await self.rows(app, ORDERS), await self.rows(app, MEMORIES)) for app in ("shop", "shop_x")}

    async def seen(self) -> dict[str, Seen]:
        """Return what the graphs hold, when all is applied; what comes later has a later time."""
        await self.applied()
        ends = {each.id: each.end for each in await self.bus.partitions.status() if each.end}
        times = [(await self.bus.log.before(number, end, limit=1))[0].received for number, end in ends.items()]
        found = await self.state()
        await until(lambda: datetime.now(UTC), lambda now: now > max(times) + timedelta(milliseconds=2))
        return {
            app: Seen(
                time=max(times),
                positions=[f"{number}:{end}" for number, end in ends.items()],
                orders=found[app][0],
                memories=found[app][1],
            )
            for app in found
        }

    async def state_facts(self, app: str, number: int, soon: datetime) -> None:
        facts = [
            {"subject": "Ann", "predicate": "lives in", "object": "Oslo" if number == 1 else "Rome"},
            {"subject": "Ann", "predicate": f"works {number}", "object": "Acme", "valid_from": soon.isoformat()},
        ]
        await self._append([
            Event.create(
                "memory.summarized", app_id=app, chat_id="c1", id=f"s{number}", source="/test",
                data={
                    "summary": f"They talked {number}.", "memory_ids": [memory_id("/test", TEXTS[number], 0)],
                    "model": "m", "user_id": "u1", "facts": facts,
                },
            )
        ])  # fmt: skip

    async def by_hand(self, app: str, change: str) -> None:
        async with contextlib.aclosing(FalkorDBStore(self.url)) as store:
            found = "MATCH (o:Order {id: 'o3'}) "
            await store._redis.execute_command("GRAPH.QUERY", f"mozaiks_{app}", found + change)

    async def lived(self) -> dict[str, Seen]:
        """Live the whole history; return how the graphs were in the middle of it."""
        await self.push("first")
        async with self.worker():
            for app in ("shop", "shop_x"):
                await self.emit(app, range(10))
            await self.applied()
            self.soon = datetime.now(UTC) + timedelta(seconds=5)
            for app in ("shop", "shop_x"):
                await self.by_hand(app, "SET o.block = 0")
                await self.emit(app, range(10, 30))
                await self.remember(app, ["likes tea"])
                await self.state_facts(app, 1, self.soon)
            middle = await self.seen()
            await self.push("second")
            for app in ("shop", "shop_x"):
                await self.by_hand(app, "SET o.block = null")
            for app in ("shop", "shop_x"):
                await self.emit(app, range(30, 50))
                await self.remember(app, ["likes tea no more"])
                await self.state_facts(app, 2, datetime.now(UTC))
            await self.applied()
            assert (await self.run("dlq", "retry", "--all")).code == 0
            await self.applied()
        return middle

    async def graphs(self) -> list[str]:
        async with contextlib.aclosing(FalkorDBStore(self.url)) as store:
            return sorted(map(str, await store._redis.execute_command("GRAPH.LIST")))

    async def context(self, *arguments: str) -> dict[str, Any]:
        done = await self.run("context", "--app", "shop", *ASKED, "--json", *arguments)
        assert done.out, done.err
        found: dict[str, Any] = json.loads(done.out.splitlines()[-1])
        return found


@pytest.fixture
async def app(url: str, call: Call, tmp_path: Path) -> AsyncIterator[PastApp]:
    async with contextlib.aclosing(PastApp(url, call, tmp_path)) as app:
        await app.bus.partitions.count()
        yield app


def shared(orders: Any) -> int:
    return next(int(row["o.shared"]) for row in orders if row["o.id"] == "o3")


async def test_a_query_sees_the_past_and_not_what_came_later(app: PastApp) -> None:
    middle = await app.lived()
    graphs, now = await app.graphs(), await app.state()
    for name, then in middle.items():
        assert now[name][0] != then.orders
        assert shared(then.orders) < shared(now[name][0])  # a retry came later
        at = ("--as-of", then.time.isoformat())
        assert await app.rows(name, ORDERS, *at) == then.orders
        assert await app.rows(name, MEMORIES, *at) == then.memories == [{"m.text": "likes tea"}]
        assert await app.rows(name, ORDERS, "--as-of", "0s") == now[name][0]
        before = then.time - timedelta(days=1)
        assert await app.rows(name, ORDERS, "--as-of", before.isoformat()) == []
    assert await app.graphs() == graphs
    assert await app.state() == now


async def test_a_position_is_a_place_of_the_past(app: PastApp) -> None:
    then = (await app.lived())["shop"]
    last = max(then.positions, key=lambda each: int(each.split(":")[1].split("-")[0]))
    done = await app.run("query", "--app", "shop", ORDERS, "--json", "--as-of", last)
    found = json.loads(done.out)
    assert found["rows"] == then.orders
    assert sorted(found["as_of"]["positions"]) == sorted(then.positions)
    assert found["as_of"]["events"] >= 30
    assert f"as of {found['as_of']['time'][:19]}" in done.err
    assert last in done.err
    number = last.split(":", maxsplit=1)[0]
    for wrong, said in [
        ("9999:1-1", "the bus has the partitions 0 to 1"),
        (f"{number}:1-1", "no entry there or before"),
        (f"{number}:99999999999999-0", "the partition ends at"),
        (f"{number}:5", "an offset of this bus has another form"),
        ("2999-01-01", "lies in the future"),
        ("yesterday", "or PARTITION:OFFSET"),
    ]:
        done = await app.run("query", "--app", "shop", ORDERS, "--as-of", wrong)
        assert done.code == 2, (wrong, done)
        assert said in done.err, (wrong, done.err)
    done = await app.run("query", "--app", "shop", ORDERS, "--into", app.url)
    assert (done.code, "give --as-of too" in done.err) == (2, True)


async def test_the_past_includes_events_from_before_the_order_changed(app: PastApp) -> None:
    await app.push("first")
    async with app.worker():
        await app.emit("shop_x", range(30))
        await app.applied()
    orders = await app.rows("shop_x", ORDERS)
    layout = await app.bus.partitions.layout()
    before = {layout.partition_of(f"shop_x/c{number}") for number in range(3)}
    assert before.isdisjoint(replace(layout, order="app").partitions_of("shop_x"))
    assert (await app.run("order", "shop_x", "app")).code == 0
    assert await app.rows("shop_x", ORDERS, "--as-of", "0s") == orders != []


async def test_a_write_is_refused_and_the_graph_is_deleted(app: PastApp) -> None:
    await app.lived()
    graphs = await app.graphs()
    done = await app.run("query", "--app", "shop", "CREATE (:Stranger)", "--as-of", "0s")
    assert done.code == 2, done
    assert await app.graphs() == graphs


@pytest.mark.long
async def test_context_has_the_rules_the_clock_and_the_facts_of_then(
    app: PastApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = (await app.lived())["shop"]
    monkeypatch.setenv("GRAPHRAG_ENABLED", "true")
    monkeypatch.setattr("tests.edges.test_cli.clean_environment", lambda **more: dict(os.environ) | more)
    old = await app.context("--as-of", then.time.isoformat())
    assert (old["reason"], old["missing"]) == (None, []), old
    values = {block["name"]: block["value"] for block in old["blocks"]}
    assert values["orders"] == {"orders": len(then.orders), "rules": "first", "now": values["orders"]["now"]}
    assert values["orders"]["now"][:19] == then.time.isoformat()[:19]
    assert [(row["predicate"], row["object"]) for row in values["facts"]] == [("lives in", "Oslo")]
    assert old["as_of"]["time"] == then.time.isoformat()
    await until(lambda: datetime.now(UTC), lambda now: now > app.soon, why="what was to be true soon is true")
    new = await app.context("--as-of", "0s")
    values = {block["name"]: block["value"] for block in new["blocks"]}
    assert values["orders"]["rules"] == "second"
    facts = {(row["predicate"], row["object"]) for row in values["facts"]}
    assert facts == {("lives in", "Rome"), ("works 1", "Acme"), ("works 2", "Acme")}
    refused = await app.run("context", "--app", "shop", *ASKED, "--as-of", "0s", "--after", "0:1-1")
    assert (refused.code, "leave it out with --as-of" in refused.err) == (2, True)
    wrong = await app.run("context", "--app", "shop", *ASKED[:-1], "", "--as-of", "0s")
    assert (wrong.code, "invalid request: user_id" in wrong.err) == (2, True), wrong.err


async def test_the_graph_of_a_command_that_is_interrupted_is_deleted(app: PastApp) -> None:
    await app.push("first")
    await app.emit("shop", range(8_000))
    environment = dict(os.environ) | {"GRAPHWEFT_BUS_URL": app.url, "GRAPHWEFT_GRAPH_URL": app.url}
    graphs = await app.graphs()
    interrupted = 0
    while interrupted < 2:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "graphweft_workers.cli", "query", "--app", "shop", ORDERS, "--as-of", "0s",
            env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

        async def now(process: asyncio.subprocess.Process = process) -> tuple[object, int | None]:
            return await app.graphs(), process.returncode

        await until(now, lambda found: found != (graphs, None), why="the command has a graph, or has ended")
        if process.returncode is None:  # else it was quicker than a look at the graphs
            process.send_signal(signal.SIGINT)
        assert await process.wait() in {0, 130}, await process.stderr.read() if process.stderr else ""
        interrupted += process.returncode == 130
        assert await app.graphs() == graphs


@pytest.mark.soak
async def test_a_past_on_kafka(url: str, kafka: KafkaServer, call: Call, tmp_path: Path) -> None:
    await empty_kafka(kafka)
    async with contextlib.aclosing(PastApp(url, call, tmp_path, bus_url=kafka.url)) as app:
        await app.bus.partitions.count()
        then = (await app.lived())["shop"]
        assert await app.rows("shop", ORDERS, "--as-of", then.time.isoformat()) == then.orders
        found = json.loads((await app.run("query", "--app", "shop", MEMORIES, "--json", "--as-of", "0:5")).out)
        assert "0:5" in found["as_of"]["positions"]


@pytest.mark.soak
async def test_a_past_on_neo4j_needs_no_other_server(app: PastApp, neo4j_server: Neo4jServer) -> None:
    async with contextlib.aclosing(Neo4jReference(neo4j_server.uri)) as reference:
        await reference.clear()
    then = (await app.lived())["shop"]
    at = ("--as-of", then.time.isoformat(), "--into", neo4j_server.uri)
    assert await app.rows("shop", ORDERS, *at) == then.orders
    assert await app.rows("shop", ORDERS, *at) == then.orders  # the first one left nothing
    code, _ = await app.rebuild("--app", "shop", "--into", neo4j_server.uri)
    assert code == 0
    done = await app.run("query", "--app", "shop", ORDERS, *at)
    assert done.code == 2
    assert "holds a graph of 'shop'" in done.err
    again = ("--as-of", then.time.isoformat(), "--json")
    done = await app.run("query", "--app", "shop", ORDERS, *again, graph=neo4j_server.uri)
    assert json.loads(done.out)["rows"] == then.orders
    context = await app.run("context", "--app", "shop", *ASKED, *again, graph=neo4j_server.uri)
    found = json.loads(context.out.splitlines()[-1])
    values = {block["name"]: block["value"] for block in found["blocks"]}
    assert values["orders"]["orders"] == len(then.orders)
    assert [(row["predicate"], row["object"]) for row in values["facts"]] == [("lives in", "Oslo")]
    memories = await app.run(
        "query", "--app", "shop", "CALL db.index.fulltext.queryNodes('x', 'y') YIELD node RETURN node", *again,
        graph=neo4j_server.uri,
    )  # fmt: skip
    assert (memories.code, "Give --into with the URL" in memories.err) == (2, True), memories.err
