"""``graphweft rebuild --swap`` puts a rebuilt graph in the place of the live one while workers and readers go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from tests.edges.test_cli import Call, call, clean_environment
from tests.redis.test_rebuild import RULES, App, keys_or_none
from tests.services.neo4j import Neo4jServer
from tests.services.waiting import looks, until

from graphweft_contracts import Fenced, GraphUnavailable
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.falkordb.whole_graphs import FalkorDBGraphs
from graphweft_workers.engine.graph_marks import has_plan, is_sealed, of_generation, sealed
from graphweft_workers.ports.graph_store import Checkpoint, Write
from graphweft_workers.replay import rebuild as rebuilding
from graphweft_workers.timing import Timing

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

only_redis = pytest.mark.parametrize("own_bus_url", ["redis"], indirect=True)
"""For what a bus has no part in: what a swap does to graphs and their readers."""
KILLS = int(os.environ.get("GRAPHWEFT_KILLS", "4"))


@pytest.fixture
async def app(own_bus_url: str | None, url: str, call: Call, tmp_path: Path, *, with_keys: bool) -> AsyncIterator[App]:
    made = App(url, call, tmp_path, bus_url=own_bus_url, with_keys=with_keys)
    async with contextlib.aclosing(made) as app:
        await app.bus.partitions.count()
        yield app


@pytest.fixture
async def store(url: str) -> AsyncIterator[FalkorDBStore]:
    async with contextlib.aclosing(FalkorDBStore(url)) as store:
        yield store


async def orders(store: FalkorDBStore, app_id: str) -> int:
    found = await store.read(app_id, "MATCH (o:Order) RETURN count(o)", {}, timeout_s=120)
    return int(found.rows[0][0]) if found.rows else -1


async def connections(store: FalkorDBStore) -> set[str]:
    """Return the ids of connections to the graph server; no id is used again."""
    return {*re.findall(r"\bid=(\d+)", str(await store._redis.execute_command("CLIENT", "LIST")))}


@pytest.mark.soak("kafka")
async def test_workers_and_readers_go_on_while_graphs_are_swapped(app: App, store: FalkorDBStore) -> None:
    await app.live()
    seen: set[int] = set()
    stop = asyncio.Event()
    emitted = 60

    async def read() -> None:
        while not stop.is_set():
            seen.add(await orders(store, "shop"))

    async def emit() -> None:
        nonlocal emitted
        while not stop.is_set():
            for name in ("shop", "shop_x"):
                await app.emit(name, range(emitted, emitted + 5))
            emitted += 5
            await looks(app.bus.partitions.status, 10)

    neighbour = await store.whole.graph_id("shop_x")
    async with app.worker(), app.worker():
        busy = [asyncio.create_task(read()), asyncio.create_task(emit())]
        for number in range(5):
            code, found = await app.rebuild("--app", "shop", "--swap", *(["--resume"] if number else []))
            assert (code, found["swapped"]) == (0, True)
        stop.set()
        await asyncio.gather(*busy)
        await app.applied()
    assert seen == {11}  # of either graph, never none
    assert await store.whole.graph_id("shop_x") == neighbour
    for name in ("shop", "shop_x"):
        code, found = await app.rebuild("--app", name, "--verify", "--graph-template", "checked_{app_id}.again")
        assert (code, found["same"]) == (0, True), found
        assert not any(is_sealed(each) for each in (await store.checkpoints(name, timeout_s=120)).values())


@only_redis
async def test_a_reader_sees_the_old_graph_or_the_new_one_and_no_mixture(app: App, store: FalkorDBStore) -> None:
    await app.live()
    rules = app.folder / "third/Shop/graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text(RULES.replace("BY", "third"))
    seen: set[frozenset[tuple[object, ...]]] = set()
    stop = asyncio.Event()

    async def authors() -> frozenset[tuple[object, ...]]:
        found = await store.read("shop", "MATCH (o:Order) RETURN o.by, count(*)", {}, timeout_s=120)
        return frozenset(found.rows)

    async def read() -> None:
        while not stop.is_set():
            seen.add(await authors())

    old = await authors()
    async with app.worker(), app.worker():
        reading = asyncio.create_task(read())
        code, found = await app.rebuild("--app", "shop", "--rules", str(rules.parent.parent), "--swap")
        assert (code, found["swapped"]) == (0, True), found
        seen.add(await authors())
        stop.set()
        await reading
    assert seen == {old, frozenset({("third", 11)})}
    assert old != frozenset({("third", 11)})


@only_redis
@keys_or_none
async def test_verify_and_swap_together_swap_equal_graphs_only(app: App, store: FalkorDBStore) -> None:
    await app.live()
    live = await app.digest("shop")
    await store._redis.execute_command("GRAPH.QUERY", "mozaiks_shop", "CREATE (:Stranger)")
    code, found = await app.rebuild("--app", "shop", "--verify", "--swap")
    assert (code, found["same"], found["swapped"]) == (1, False, False)
    assert await app.digest("shop") != live
    code, found = await app.rebuild("--app", "shop", "--resume", "--swap")
    assert (code, found["swapped"]) == (0, True)
    assert await app.digest("shop") == live
    code, found = await app.rebuild("--app", "shop", "--verify", "--resume", "--swap")
    assert (code, found["swapped"]) == (1, False)  # the stranger is in the graph from before
    code, found = await app.rebuild("--app", "shop", "--resume", "--swap")
    assert (code, found["swapped"]) == (0, True)
    assert await app.digest("shop") != live


@pytest.mark.soak("kafka")
async def test_a_lost_graph_comes_back_by_a_swap(app: App, store: FalkorDBStore) -> None:
    await app.live()
    live = await app.digest("shop")
    await store._redis.delete("mozaiks_shop")
    code, found = await app.rebuild("--app", "shop", "--swap")
    assert (code, found["swapped"]) == (0, True)
    assert await app.digest("shop") == live


async def leave_seals(store: FalkorDBStore, name: str) -> None:
    """Seal both partitions as a rebuild that is killed then; one of them gets no event of the app."""
    for partition in range(2):
        checkpoint = (await store.progress("shop", partition)).checkpoint
        await store.apply("shop", partition, [Write(before=checkpoint, after=sealed(checkpoint, name))])


async def seals(store: FalkorDBStore) -> list[int]:
    return [number for number, each in (await store.checkpoints("shop", timeout_s=120)).items() if is_sealed(each)]


@pytest.mark.soak("kafka")
async def test_the_seals_of_a_dead_rebuild_are_lifted_by_a_worker(app: App, store: FalkorDBStore) -> None:
    await app.live()
    await leave_seals(store, "dead")
    code, found = await app.rebuild("--app", "shop", "--verify")  # nothing is written under a seal
    assert (code, found["same"]) == (0, True), found
    app.timing = Timing(seal_s=1.0)
    async with app.worker(), app.worker():
        for name in ("shop", "shop_x"):
            await app.emit(name, range(60, 70))
        await app.applied()
        await until(lambda: seals(store), lambda found: not found, why="the seals are lifted")
    code, found = await app.rebuild("--app", "shop", "--verify", "--resume")
    assert (code, found["same"]) == (0, True), found


@only_redis
async def test_the_seals_of_a_dead_rebuild_are_lifted_by_the_next_one(
    app: App, store: FalkorDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.live()
    monkeypatch.setattr(rebuilding, "Rebuild", partial(rebuilding.Rebuild, timing=Timing(seal_s=0.3)))
    await leave_seals(store, "dead")
    code, found = await app.rebuild("--app", "shop", "--swap")
    assert (code, found["swapped"]) == (0, True)
    assert await seals(store) == []


@only_redis
async def test_a_swap_that_fails_leaves_the_live_graph_to_its_workers(
    app: App, store: FalkorDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.live()
    place = await store.checkpoints("shop", timeout_s=120)

    async def fail(*_: object) -> bool:
        raise GraphUnavailable("cut")

    monkeypatch.setattr(FalkorDBGraphs, "exchange", fail)
    done = await app.run("rebuild", "--app", "shop", "--swap")
    assert done.code != 0
    assert "cut" in done.err
    found = await store.checkpoints("shop", timeout_s=120)
    assert {partition: each for partition, each in found.items() if each.offset} == place


@pytest.mark.soak("kafka")
@pytest.mark.timeout(240 + 20 * KILLS)
async def test_killed_swaps_leave_one_whole_graph(app: App, store: FalkorDBStore) -> None:
    app.timing = Timing(seal_s=0.5)
    await app.live()
    dice = random.Random(4)
    environment = clean_environment(GRAPHWEFT_BUS_URL=app.bus_url, GRAPHWEFT_GRAPH_URL=app.url)
    ended = 0
    rounds = KILLS // 2 if "kafka" in app.bus_url else KILLS
    async with app.worker(), app.worker():
        for number in range(rounds):
            await app.emit("shop", range(100 + 10 * number, 110 + 10 * number))
            known = await connections(store)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "graphweft_workers.cli", "rebuild", "--app", "shop", "--swap", "--resume",
                env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip

            async def is_at_work(known: set[str] = known, process: asyncio.subprocess.Process = process) -> bool:
                return process.returncode is not None or not await connections(store) <= known

            await until(is_at_work)
            await looks(lambda: orders(store, "shop"), dice.randrange(150))
            ended += process.returncode is not None
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()
            assert await orders(store, "shop") == 11
        await app.emit("shop", range(100 + 10 * rounds, 110 + 10 * rounds))
        await app.applied()
        await until(lambda: seals(store), lambda found: not found, why="the seals of killed rebuilds are lifted")
    code, found = await app.rebuild("--app", "shop", "--verify", "--graph-template", "checked_{app_id}.again")
    assert (code, found["same"]) == (0, True), found


@pytest.mark.soak
@only_redis
async def test_neo4j_cannot_swap_and_says_what_to_do(app: App, neo4j_server: Neo4jServer) -> None:
    done = await app.run("rebuild", "--app", "shop", "--swap", "--into", neo4j_server.uri)
    assert done.code == 2, done.err
    assert "GRAPHWEFT_GRAPH_URL" in done.err
    done = await app.run("rebuild", "--app", "shop", "--swap", "--to", "0:1-1")
    assert done.code == 2
    assert "leave out --to" in done.err


async def test_an_exchange_needs_the_expected_checkpoints(url: str, store: FalkorDBStore) -> None:
    async with contextlib.aclosing(FalkorDBStore(url, graph_template="mozaiks_{app_id}.rebuilt")) as other:
        for each, offset in ((store, "1-0"), (other, "2-0")):
            before = (await each.progress("shop", 0)).checkpoint
            await each.apply("shop", 0, [Write(before=before, after=Checkpoint(offset=offset))])
        new = await other.whole.graph_id("shop")
        assert not await store.whole.exchange("shop", new, {0: Checkpoint(offset="9-0")})
        assert not await store.whole.exchange("shop", new, {})
        assert await store.whole.exchange("shop", new, {0: Checkpoint(offset="1-0")})
        assert await store.checkpoints("shop", timeout_s=120) == {0: Checkpoint(offset="2-0")}
        assert await other.checkpoints("shop", timeout_s=120) == {0: Checkpoint(offset="1-0")}
        with pytest.raises(Fenced):
            await store.apply("shop", 0, [Write(before=Checkpoint(offset="1-0"), after=Checkpoint(offset="3-0"))])


def test_marks_are_no_plans() -> None:
    place = Checkpoint(offset="5-0")
    for each in (place, sealed(place, "a"), of_generation(place)):
        assert not has_plan(each)
        assert each.offset == "5-0"
    assert has_plan(Checkpoint(offset="5-0", plan="0123456789abcdef"))
    assert is_sealed(sealed(place, "a"))
    assert not is_sealed(of_generation(place))
    assert of_generation(place) != of_generation(place)
