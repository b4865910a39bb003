"""A graph server that gets a copy of its data from before an erasure or a restatement back: nothing of it is served."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import neo4j
import pytest
from tests.edges.test_cli import Call, call
from tests.kafka.test_archive import Archived
from tests.kafka.test_erase import said
from tests.redis.test_answering import request
from tests.redis.test_rebuild import RULES
from tests.services.rules import rule_set
from tests.services.waiting import until

from graphweft_contracts import BusUnavailable, channels
from graphweft_contracts.memory import MemoryScope
from graphweft_contracts.search import SearchQuery
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.ports.graph_basis import GraphBasis
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.ports.purges import purges_after
from graphweft_workers.replay import erase as erasing

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SECRET = "zebra-secret"
SEARCH = SearchQuery(text=SECRET, memory=MemoryScope(user_id="ada"), index_type="fulltext", of="memories")
servers = pytest.mark.parametrize(
    ("own_bus_url", "own_graph_url"),
    [("redis", "falkordb"), pytest.param("kafka", "neo4j", marks=pytest.mark.long)],
    indirect=True,
)
redis_only = pytest.mark.parametrize("own_bus_url", ["redis"], indirect=True)


@pytest.fixture
async def app(
    own_bus_url: str | None, own_graph_url: str | None, url: str, call: Call, tmp_path: Path
) -> AsyncIterator[Archived]:
    made = Archived(url, call, tmp_path, bus_url=own_bus_url, graph_url=own_graph_url)
    async with contextlib.aclosing(made) as app:
        app.apps = ("shop",)
        await app.bus.partitions.count()
        yield app


class Copy:
    """A copy of the graph of ``shop``, made and put back past the store, as an older dump of the server would."""

    def __init__(self, app: Archived) -> None:
        self._app = app
        self._nodes: list[Any] = []
        self._edges: list[Any] = []

    async def take(self) -> None:
        if self._app.url.startswith("bolt"):
            nodes = "MATCH (n) RETURN elementId(n), labels(n), properties(n)"
            self._nodes = await self._run(nodes)
            edges = "MATCH (a)-[r]->(b) RETURN elementId(a), elementId(b), type(r), properties(r)"
            self._edges = await self._run(edges)
            return
        await self._redis("GRAPH.COPY", channels.graph_name("shop"), "kept")

    async def put_back(self) -> None:
        if self._app.url.startswith("bolt"):
            await self._run("MATCH (n) DETACH DELETE n")
            nodes = "UNWIND $rows AS row CREATE (n:$(row[1])) SET n = row[2], n.copied = row[0]"
            await self._run(nodes, rows=self._nodes)
            edges = "UNWIND $rows AS row MATCH (a {copied: row[0]}), (b {copied: row[1]}) "
            edges += "CREATE (a)-[r:$(row[2])]->(b) SET r = row[3]"
            await self._run(edges, rows=self._edges)
            await self._run("MATCH (n) REMOVE n.copied")
            return
        await self._redis("GRAPH.DELETE", channels.graph_name("shop"))
        await self._redis("GRAPH.COPY", "kept", channels.graph_name("shop"))

    async def _redis(self, *command: str) -> None:
        async with contextlib.aclosing(FalkorDBStore(self._app.url)) as store:
            await store._redis.execute_command(*command)

    async def _run(self, text: str, **values: Any) -> list[Any]:
        async with neo4j.AsyncGraphDatabase.driver(self._app.url, notifications_min_severity="OFF") as driver:
            return [[*row.values()] for row in (await driver.execute_query(text, values)).records]  # type: ignore[arg-type]


async def waits(app: Archived) -> bool:
    notes = [PositionNote.decode(each.note) for each in await app.bus.partitions.status()]
    return any(note.parked.get("shop") is not None and note.parked["shop"].why == "needs_rebuild" for note in notes)


async def doctor_says_so(app: Archived) -> bool:
    found = json.loads((await app.run("doctor", "--json")).out)
    graphs = [each["found"] for each in found if each["check"] == "graphs" and each["state"] == "fail"]
    return any(each.startswith("from before something was erased") and each.endswith(": shop") for each in graphs)


async def why(app: Archived) -> dict[str, Any]:
    done = await app.run("why", "--app", "shop", "--label", "Order", "--key", "id=bob-bobs-words-0", "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


@contextlib.asynccontextmanager
async def responder(app: Archived) -> AsyncIterator[ContextPipeline]:
    async with (
        app.alone() as bus,
        contextlib.aclosing(app.store()) as graph,
        contextlib.aclosing(ContextPipeline(rule_set(), graph, bus=bus, index_bytes=10 * 1024**2)) as pipeline,
    ):
        yield pipeline


async def found(pipeline: ContextPipeline, search: SearchQuery = SEARCH) -> tuple[str | None, str, int]:
    assert pipeline.purges is not None
    await pipeline.purges.follow()
    reply = await pipeline.answer(request(app_id="shop", search=search, budget_ms=20_000))
    return reply.reason, reply.detail, len(reply.results)


@servers
async def test_a_copy_from_before_an_erasure_is_not_served_and_not_written(app: Archived) -> None:
    copy = Copy(app)
    bob = SEARCH.model_copy(update={"text": "bobs-words", "memory": MemoryScope(user_id="bob")})
    await app.push("first")
    async with responder(app) as early, responder(app) as late:
        async with app.worker():
            await said(app, "shop", "ada", 0, SECRET)
            await said(app, "shop", "bob", 0, "bobs-words")
            await app.applied()
            await until(lambda: found(early), lambda reply: reply[2] == 1)
            await copy.take()
            done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes")
            assert done.code == 0, done.err + done.out
            await until(lambda: found(early), lambda reply: reply == (None, "", 0))
            assert not await doctor_says_so(app)
        assert (await why(app))["older"] is None
        await copy.put_back()
        assert await doctor_says_so(app)  # no event since
        assert "is from before something was erased" in (await why(app))["older"]
        reason, detail, count = await found(late)
        assert (reason, count) == ("graph_unavailable", 0)
        assert "from before something was erased" in detail
        await until(lambda: found(early), lambda reply: reply == (reason, detail, 0))
        async with app.worker():
            await said(app, "shop", "bob", 1, "bobs-later-words")
            await until(lambda: waits(app), why="the app waits")
            assert "needs_rebuild" in (await app.run("status", "--json")).out
            assert await found(late) == (reason, detail, 0)
            code, report = await app.rebuild("--app", "shop", "--swap")
            assert (code, report["swapped"]) == (0, True), report
            await app.applied()
            await until(lambda: found(late, bob), lambda reply: reply[2] > 0)
            assert (await found(late))[2] == 0
            assert not await doctor_says_so(app)
        assert (await app.run("rollback", "--app", "shop", "--yes")).code != 0  # to the older copy
        rows = await app.read("shop", "MATCH (o:Order) RETURN o.id")
        assert {row[0].split("-")[0] for row in rows} == {"bob", "bobs"}


@servers
async def test_a_copy_from_before_a_restatement_is_not_written(app: Archived) -> None:
    copy = Copy(app)
    await app.push("first")
    file = app.folder / "new/Shop/graph_injection.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(RULES.replace("o.by = 'BY'", "o.who = 'NEW'"))
    async with app.worker():
        await app.emit("shop", range(1, 7))
        await app.applied()
        await copy.take()
        code, done = await app.rebuild("--app", "shop", "--rules", str(file.parent.parent), "--swap")
        assert (code, done["swapped"]) == (0, True), done
    await copy.put_back()
    assert await doctor_says_so(app)
    async with app.worker():
        await app.emit("shop", range(7, 9))
        await until(lambda: waits(app), why="the app waits")
        rows = await app.read("shop", "MATCH (o:Order) RETURN count(o), count(o.who)")
        assert [*rows[0]] == [6, 0]
        assert (await app.run("rebuild", "--app", "shop", "--drop")).code == 0
        code, done = await app.rebuild("--app", "shop", "--swap")
        assert (code, done["swapped"]) == (0, True), done
        await app.applied()
        rows = await app.read("shop", "MATCH (o:Order) RETURN count(o), count(o.who)")
        assert [*rows[0]] == [8, 6]  # events since the restatement follow the rules that are active


@redis_only
async def test_an_app_that_was_erased_begins_anew_and_its_copy_is_not_served(app: Archived) -> None:
    copy = Copy(app)
    await app.push("first")
    async with app.worker():
        await said(app, "shop", "ada", 0, SECRET)
        await app.applied()
        await copy.take()
        done = await app.run("erase", "--app", "shop", "--yes")
        assert done.code == 0, done.err + done.out
    async with app.worker(), responder(app) as pipeline:
        await said(app, "shop", "ada", 1, "back again")
        await app.applied()
        assert not await doctor_says_so(app)
        await until(lambda: found(pipeline), lambda reply: reply[0] is None)
    await copy.put_back()
    async with responder(app) as pipeline:
        assert (await found(pipeline))[0] == "graph_unavailable"
    assert await doctor_says_so(app)


@redis_only
async def test_the_bus_says_what_a_graph_needs_since_an_erasure(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        await said(app, "shop", "ada", 0, SECRET)
        await app.applied()
        code, _ = await app.rebuild("--app", "shop", "--swap")
        assert (code, (await purges_after(app.bus.purges, None)).needed) == (0, {})  # nothing that an older graph lacks
        assert (await app.run("rebuild", "--app", "shop", "--drop")).code == 0
        assert (await app.run("erase", "--app", "shop", "--user", "ada", "--yes")).code == 0
    assert (await purges_after(app.bus.purges, None)).needed == {"shop": GraphBasis(erasures=2)}


@redis_only
async def test_a_copy_from_during_the_erasure_of_another_user_is_older(
    app: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Copy(app)
    await app.push("first")
    async with app.worker():
        for user in ("ada", "bob"):
            await said(app, "shop", user, 0, SECRET)
        await app.applied()
        with monkeypatch.context() as patch:

            async def cut(*_: object, **__: object) -> None:
                raise BusUnavailable("cut")

            patch.setattr(erasing, "erase_entries", cut)
            assert (await app.run("erase", "--app", "shop", "--user", "ada", "--yes")).code == 1
        assert (await app.run("erase", "--app", "shop", "--user", "bob", "--yes")).code == 0
        assert await app.read("shop", "MATCH (m:Memory {user_id: 'ada'}) RETURN m")
        await copy.take()
        assert (await app.run("erase", "--app", "shop", "--user", "ada", "--yes")).code == 0
        assert not await doctor_says_so(app)
    await copy.put_back()
    assert await doctor_says_so(app)
