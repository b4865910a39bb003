"""A replay that begins at a snapshot gives the graph that a replay from the start gives, or does not begin there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, override

import pytest
from tests.chaos.serial import Neo4jReference
from tests.edges.test_cli import Call, call, clean_environment
from tests.redis.test_as_of import MEMORIES, ORDERS, PastApp
from tests.services.neo4j import Neo4jServer

from graphweft_contracts import Fenced
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.falkordb.whole_graphs import FalkorDBGraphs
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.engine.plan.graph_marks import loading
from graphweft_workers.ports.graph_store import START, Write
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.snapshots import make_restoring

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


class Archived(PastApp):
    """Commands with an archive, in which a snapshot is due after some events."""

    every = 8

    @override
    async def run(self, *arguments: str, graph: str | None = None) -> Any:
        return await self.run_with({}, *arguments, graph=graph)

    async def run_with(self, more: dict[str, str], *arguments: str, graph: str | None = None) -> Any:
        settings = {
            "GRAPHWEFT_BUS_URL": self.bus_url,
            "GRAPHWEFT_GRAPH_URL": graph or self.url,
            "GRAPHWEFT_ARCHIVE_URL": str(self.archive),
            "GRAPHWEFT_SNAPSHOT_EVENTS": str(self.every),
        }
        return await asyncio.to_thread(self.call, *arguments, **settings | more)

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    def files(self, app: str = "shop") -> list[Path]:
        return sorted((self.archive / "snapshots" / app).glob("*"))

    async def past(self, cypher: str, *arguments: str, app: str = "shop") -> tuple[dict[str, Any], str]:
        done = await self.run("query", "--app", app, "--json", cypher, *arguments)
        assert done.code == 0, done.err
        return json.loads(done.out), done.err


@pytest.fixture
async def app(url: str, call: Call, tmp_path: Path) -> AsyncIterator[Archived]:
    async with contextlib.aclosing(Archived(url, call, tmp_path)) as app:
        await app.bus.partitions.count()
        yield app


async def test_a_rebuild_from_a_snapshot_equals_the_live_graph(app: Archived) -> None:
    middle = await app.lived()
    for name in ("shop", "shop_x"):
        await app.by_hand(name, "REMOVE o.block")
        code, first = await app.rebuild("--app", name, "--verify")
        assert (code, first["same"], first["restored"]) == (0, True, 0), first
        assert app.files(name)
        code, again = await app.rebuild("--app", name, "--verify", "--graph-template", "{app_id}.again")
        assert (code, again["same"], again["restored"] > 20) == (0, True, True), again
        assert again["rebuilt"] == first["rebuilt"]
        found, _ = await app.past(ORDERS, "--as-of", middle[name].time.isoformat(), app=name)
        assert found["rows"] == middle[name].orders
        found, _ = await app.past(MEMORIES, "--as-of", middle[name].time.isoformat(), app=name)
        assert found["rows"] == middle[name].memories


async def test_a_question_again_about_one_past_is_a_load_alone(app: Archived) -> None:
    then = (await app.lived())["shop"]
    at = ("--as-of", then.time.isoformat())
    first, _ = await app.past(ORDERS, *at)
    again, said = await app.past(ORDERS, *at)
    assert first["rows"] == again["rows"] == then.orders
    assert first["as_of"]["events"] == again["as_of"]["events"] == again["as_of"]["restored"]
    assert "of them from a snapshot" in said
    count = len(app.files())
    context = [await app.context(*at) for _ in range(2)]
    assert [each["text"] for each in context] == [context[0]["text"]] * 2
    assert "Oslo" in context[0]["text"]  # by an index that only the snapshot has made
    assert len(app.files()) == count
    assert app.files("shop_x") == []


async def test_a_snapshot_that_is_damaged_or_of_another_kind_is_ignored(app: Archived) -> None:
    then = (await app.lived())["shop"]
    at = ("--as-of", then.time.isoformat())
    await app.past(ORDERS, *at)
    await app.past(ORDERS, *at, app="shop_x")
    whole = {file: file.read_bytes() for file in app.files()}
    other = app.files("shop_x")[-1].read_bytes()
    wrongs: list[tuple[Callable[[bytes], bytes], str]] = [
        (lambda data: data[:-3], "it is damaged"),
        (lambda _: b"", "it is damaged"),
        (lambda data: _of_format(data, 2), "its format is 2"),
        (lambda _: other, "it is one of another app or place"),
    ]
    for wrong, why in wrongs:
        for file, data in whole.items():
            file.write_bytes(wrong(data))
        found, said = await app.past(ORDERS, *at)
        assert (found["rows"], found["as_of"]["restored"]) == (then.orders, 0)
        assert why in " ".join(said.split())
        assert (await app.past(ORDERS, *at))[0]["as_of"]["restored"]  # a new one has taken its place


def _of_format(data: bytes, number: int) -> bytes:
    body = data.partition(b"\n")[2].replace(b'"format": 1', f'"format": {number}'.encode())
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


async def test_a_snapshot_counts_only_while_its_past_is_the_same(app: Archived) -> None:
    then = (await app.lived())["shop"]
    at = ("--as-of", then.time.isoformat())
    await app.past(ORDERS, *at)
    assert (await app.past(ORDERS, *at))[0]["as_of"]["restored"]
    # Later rules, events and retries change nothing before them.
    await app.push("third")
    async with app.worker():
        await app.emit("shop", range(60, 70))
        await app.applied()
        await app.run("dlq", "drop", "--all")
        found, _ = await app.past(ORDERS, *at)
        assert (found["rows"], found["as_of"]["restored"] > 0) == (then.orders, True)
    off = await app.run_with({"GRAPHWEFT_SNAPSHOT_EVENTS": "0"}, "query", "--app", "shop", "--json", ORDERS, *at)
    assert json.loads(off.out)["as_of"]["restored"] == 0


async def test_a_failure_that_came_after_a_snapshot_makes_it_unusable(app: Archived) -> None:
    await app.push("first")
    await app.emit("shop", [number for number in range(60) if number % 5 and number % 7])  # none fails by itself
    found, _ = await app.past(ORDERS, "--as-of", "0s")  # before any worker has applied them
    files = app.files()
    assert files
    assert (await app.past(ORDERS, "--as-of", "0s"))[0]["as_of"]["restored"]
    async with app.worker(), contextlib.aclosing(FalkorDBStore(app.url)) as store:
        await store._redis.execute_command("GRAPH.QUERY", "mozaiks_shop", "CREATE (:Order {id: 'o3', block: 0})")
        await app.applied()
    now = await app.rows("shop", ORDERS)
    await app.by_hand("shop", "REMOVE o.block")
    assert now != found["rows"]
    again, _ = await app.past(ORDERS, "--as-of", "0s")
    assert again["rows"] == now
    assert again["as_of"]["events"] == found["as_of"]["events"]


async def test_a_rebuild_that_was_killed_in_a_load_begins_anew(app: Archived) -> None:
    await app.lived()
    for name in ("shop", "shop_x"):
        await app.by_hand(name, "REMOVE o.block")
    await app.past(ORDERS, "--as-of", "0s")
    async with contextlib.aclosing(FalkorDBStore(app.url, graph_template="mozaiks_{app_id}.rebuilt")) as store:
        partition = (await app.bus.partitions.layout()).partitions_of("shop")[0]
        await store.progress("shop", partition)
        mark = loading()
        await store.apply("shop", partition, [Write(before=START, after=mark)])
        await store.whole.load("shop", [b'["node",1,["Order"],{"id":"half"}]'], partition=partition, mark=mark)
    code, found = await app.rebuild("--app", "shop", "--resume", "--verify")
    assert (code, found["same"], found["restored"] > 0) == (0, True, True), found


@pytest.mark.parametrize("late", [False, True])
async def test_of_two_loads_at_once_one_is_whole_and_one_is_refused(
    app: Archived, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    await app.lived()
    await app.past(ORDERS, "--as-of", "0s")
    stored = {file: file.read_bytes() for file in app.files()}
    load, stopped, goes_on = FalkorDBGraphs.load, asyncio.Event(), asyncio.Event()
    first: list[bool] = []

    async def stops(self: FalkorDBGraphs, app_id: str, lines: Iterable[bytes], **more: Any) -> None:
        if not first:  # the one that was taken for killed
            first.append(True)
            stopped.set()
            await goes_on.wait()
            await load(self, app_id, lines, **more)
            return
        if late:
            await load(self, app_id, lines, **more)
        goes_on.set()
        with contextlib.suppress(Fenced):
            await asyncio.shield(one)
        if not late:
            await load(self, app_id, lines, **more)

    monkeypatch.setattr(FalkorDBGraphs, "load", stops)
    settings = Settings.load(
        bus_url=app.bus_url, graph_url=app.url, archive_url=str(app.archive), snapshot_events=app.every, unknown=[]
    )
    ends = dict.fromkeys((await app.bus.partitions.layout()).partitions_of("shop"))
    async with contextlib.AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(contextlib.aclosing(app.store("{app_id}.two"))) for _ in range(2)]
        sources = [make_restoring(settings, app.bus, each, "shop", pytest.fail) for each in stores]
        assert sources[0] is not None
        assert sources[1] is not None
        one = asyncio.create_task(sources[0].restore(ends))
        await stopped.wait()
        await stores[1].whole.drop("shop")
        assert await sources[1].restore(ends) > 0
        with pytest.raises(Fenced):
            await one
        assert await app.read("shop", ORDERS, beside="{app_id}.two") == await app.read("shop", ORDERS)
        digest = await read_digest(stores[1], "shop")
        assert digest == await read_digest(await stack.enter_async_context(contextlib.aclosing(app.store())), "shop")
    assert {file: file.read_bytes() for file in app.files()} == stored


async def test_of_two_swaps_at_once_one_is_refused_and_the_graph_is_exact(app: Archived) -> None:
    await app.lived()
    await app.by_hand("shop", "REMOVE o.block")
    live = await app.digest("shop")
    await app.past(ORDERS, "--as-of", "0s")
    environment = clean_environment(
        GRAPHWEFT_BUS_URL=app.bus_url, GRAPHWEFT_GRAPH_URL=app.url, GRAPHWEFT_ARCHIVE_URL=str(app.archive),
        GRAPHWEFT_SNAPSHOT_EVENTS=str(app.every),
    )  # fmt: skip
    command = (sys.executable, "-m", "graphweft_workers.cli", "rebuild", "--app", "shop", "--swap")
    async with app.worker():
        both = [
            await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
            for _ in range(2)
        ]
        said = [(await each.communicate())[1].decode() for each in both]
    codes = sorted(each.returncode or 0 for each in both)
    assert codes in ([0, 1], [0, 2]), said  # 2: the first one had ended, and its graph from before is there
    why = " ".join(said[0 if both[0].returncode else 1].split())
    assert "works on the graphs of 'shop' since" in why or "`graphweft rollback --app shop` puts it back" in why, said
    assert await app.digest("shop") == live
    code, found = await app.rebuild("--app", "shop", "--verify", "--graph-template", "{app_id}.again")
    assert (code, found["same"], found["restored"] > 0) == (0, True, True), found


@pytest.mark.soak
async def test_snapshots_on_neo4j(app: Archived, neo4j_server: Neo4jServer) -> None:
    async with contextlib.aclosing(Neo4jReference(neo4j_server.uri)) as reference:
        await reference.clear()
    then = (await app.lived())["shop"]
    at = ("--as-of", then.time.isoformat(), "--into", neo4j_server.uri)
    for restored in (False, True):
        found, _ = await app.past(ORDERS, *at)
        assert (found["rows"], found["as_of"]["restored"] > 0) == (then.orders, restored)
    context = await app.context(*at)
    assert "Oslo" in context["text"]
    found, _ = await app.past(ORDERS, "--as-of", then.time.isoformat())
    assert found["as_of"]["restored"] == 0  # those of another kind of server do not count
