"""``graphweft rebuild --swap`` puts a rebuilt graph in the place of the live one while workers and readers go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from neo4j import AsyncGraphDatabase
from tests.edges.test_cli import Call, call, clean_environment
from tests.redis.test_rebuild import RULES, App, keys_or_none, printed
from tests.services.neo4j import Neo4jServer
from tests.services.waiting import looks, until

from graphweft_contracts import BusUnavailable, Fenced, GraphUnavailable
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.falkordb.whole_graphs import FalkorDBGraphs
from graphweft_workers.engine.plan.graph_marks import has_plan, have_same_seal, is_sealed, of_generation, sealed
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, Write
from graphweft_workers.replay import rebuild as rebuilding
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.graphs_lease import GraphsLease
from graphweft_workers.replay.rebuild import Rebuild
from graphweft_workers.rule_sets.active_rules import LoggedRules
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.timing import Timing
from graphweft_workers.wiring.rules import rules_maker

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

only_redis = pytest.mark.parametrize("own_bus_url", ["redis"], indirect=True)
"""For what a bus has no part in: what a swap does to graphs and their readers."""
both_graphs = pytest.mark.parametrize("own_graph_url", ["falkordb", "neo4j"], indirect=True)
KILLS = int(os.environ.get("GRAPHWEFT_KILLS", "4"))


@pytest.fixture
async def app(
    own_bus_url: str | None, own_graph_url: str | None, url: str, call: Call, tmp_path: Path, *, with_keys: bool
) -> AsyncIterator[App]:
    made = App(url, call, tmp_path, bus_url=own_bus_url, graph_url=own_graph_url, with_keys=with_keys)
    async with contextlib.aclosing(made) as app:
        await app.bus.partitions.count()
        yield app


@pytest.fixture
async def store(app: App) -> AsyncIterator[GraphStore]:
    async with contextlib.aclosing(app.store()) as store:
        yield store


async def run(app: App, statement: str) -> Any:
    """Run a statement in the graph of the first app, past the workers."""
    if app.url.startswith("bolt"):
        async with AsyncGraphDatabase.driver(app.url, notifications_min_severity="OFF") as driver:
            return [record.values() for record in (await driver.execute_query(statement)).records]
    async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
        return await store._redis.execute_command("GRAPH.QUERY", "mozaiks_shop", statement)


async def orders(store: GraphStore, app_id: str) -> int:
    found = await store.read(app_id, "MATCH (o:Order) RETURN count(o)", {}, timeout_s=120)
    return int(found.rows[0][0]) if found.rows else -1


async def connections(app: App) -> set[str]:
    """Return the ids of graphweft's connections to the graph server; no id is used again."""
    if app.url.startswith("bolt"):
        found = "CALL dbms.listConnections() YIELD connectionId, userAgent WHERE userAgent = 'graphweft'"
        return {row[0] for row in await run(app, f"{found} RETURN connectionId")}
    async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
        return await _clients(store)


async def _clients(store: FalkorDBStore) -> set[str]:
    return {*re.findall(r"\bid=(\d+)", str(await store._redis.execute_command("CLIENT", "LIST")))}


@pytest.mark.long("neo4j")
@pytest.mark.soak("kafka")
@both_graphs
async def test_workers_and_readers_go_on_while_graphs_are_swapped(app: App, store: GraphStore) -> None:
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
            for name in app.apps:
                await app.emit(name, range(emitted, emitted + 5))
            emitted += 5
            await looks(app.bus.partitions.status, 10)

    neighbours = [await store.whole.graph_id(name) for name in app.apps[1:]]
    async with app.worker(), app.worker():
        busy = [asyncio.create_task(read()), asyncio.create_task(emit())]
        for number in range(5):
            code, found = await app.rebuild("--app", "shop", "--swap", *(["--resume"] if number else []))
            assert (code, found["swapped"]) == (0, True)
        stop.set()
        await asyncio.gather(*busy)
        await app.applied()
    assert seen == {11}  # of either graph, never none
    assert [await store.whole.graph_id(name) for name in app.apps[1:]] == neighbours
    for name in app.apps:
        code, found = await app.rebuild("--app", name, "--verify", "--graph-template", "checked_{app_id}.again")
        assert (code, found["same"]) == (0, True), found
        assert not any(is_sealed(each) for each in (await store.checkpoints(name, timeout_s=120)).values())


@pytest.mark.long("neo4j")
@only_redis
@both_graphs
async def test_a_reader_sees_the_old_graph_or_the_new_one_and_no_mixture(app: App, store: GraphStore) -> None:
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


@pytest.mark.long("neo4j", "unsigned")
@only_redis
@keys_or_none
@both_graphs
@pytest.mark.soak("neo4j-keys", "keys-neo4j")
async def test_verify_and_swap_together_swap_equal_graphs_only(app: App, store: GraphStore) -> None:
    await app.live()
    live = await app.digest("shop")
    await run(app, "CREATE (:Stranger)")
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


@pytest.mark.long("neo4j")
@only_redis
@both_graphs
async def test_after_a_rollback_the_next_rebuild_makes_a_new_graph(app: App) -> None:
    await app.live()
    live = await app.digest("shop")
    await run(app, "CREATE (:Stranger)")
    strange = await app.digest("shop")
    for rollbacks in (1, 3, 2):
        code, found = await app.rebuild("--app", "shop", "--swap")
        assert (code, found["swapped"], await app.digest("shop")) == (0, True, live)
        kept = await app.run("rebuild", "--app", "shop", "--swap")
        assert kept.code == 2, "nobody has rolled back"
        assert "`graphweft rollback --app shop` puts it back" in kept.err
        for number in range(rollbacks):
            assert (await app.run("rollback", "--app", "shop")).code == 0
            assert await app.digest("shop") == (live if number % 2 else strange)


@pytest.mark.soak("kafka", "neo4j")
@both_graphs
async def test_a_lost_graph_comes_back_by_a_swap(app: App, store: GraphStore) -> None:
    await app.live()
    live = await app.digest("shop")
    await run(app, "MATCH (n) DETACH DELETE n")
    code, found = await app.rebuild("--app", "shop", "--swap")
    assert (code, found["swapped"]) == (0, True)
    assert await app.digest("shop") == live


async def leave_seals(store: GraphStore, name: str) -> None:
    """Seal both partitions as a rebuild that is killed then; one of them gets no event of the app."""
    for partition in range(2):
        checkpoint = (await store.progress("shop", partition)).checkpoint
        await store.apply("shop", partition, [Write(before=checkpoint, after=sealed(checkpoint, name))])


async def seals(store: GraphStore) -> list[int]:
    return [number for number, each in (await store.checkpoints("shop", timeout_s=120)).items() if is_sealed(each)]


@pytest.mark.soak("kafka", "neo4j")
@both_graphs
async def test_the_seals_of_a_dead_rebuild_are_lifted_by_a_worker(app: App, store: GraphStore) -> None:
    await app.live()
    await leave_seals(store, "dead")
    code, found = await app.rebuild("--app", "shop", "--verify")  # nothing is written under a seal
    assert (code, found["same"]) == (0, True), found
    app.timing = Timing(seal_s=1.0)
    async with app.worker(), app.worker():
        for name in app.apps:
            await app.emit(name, range(60, 70))
        await app.applied()
        await until(lambda: seals(store), lambda found: not found, why="the seals are lifted")
    code, found = await app.rebuild("--app", "shop", "--verify", "--resume")
    assert (code, found["same"]) == (0, True), found


@only_redis
async def test_the_seals_of_a_dead_rebuild_are_lifted_by_the_next_one(
    app: App, store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.live()
    monkeypatch.setattr(rebuilding, "Rebuild", partial(rebuilding.Rebuild, timing=Timing(seal_s=0.3)))
    await leave_seals(store, "dead")
    code, found = await app.rebuild("--app", "shop", "--swap")
    assert (code, found["swapped"]) == (0, True)
    assert await seals(store) == []


@only_redis
async def test_a_swap_that_takes_long_keeps_its_seals(
    app: App, store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.live()
    app.timing = Timing(seal_s=1.0)
    monkeypatch.setattr(rebuilding, "Rebuild", partial(rebuilding.Rebuild, timing=app.timing))
    exchange, seen = FalkorDBGraphs.exchange, list[set[str]]()

    async def late(self: FalkorDBGraphs, app_id: str, other: str, expected: Mapping[int, Checkpoint]) -> bool:
        plans: set[str] = set()
        seen.append(plans)

        async with contextlib.aclosing(app.store()) as own:  # the command has a loop of its own

            async def renewed() -> set[str]:
                plans.update(each.plan for each in (await own.checkpoints("shop", timeout_s=120)).values())
                return plans

            await until(renewed, lambda found: len(found) > 6, why="the seals are renewed for longer than they last")
        return await exchange(self, app_id, other, expected)

    monkeypatch.setattr(FalkorDBGraphs, "exchange", late)
    async with app.worker():
        await app.emit("shop", range(60, 70))
        code, found = await app.rebuild("--app", "shop", "--swap")
        assert (code, found["swapped"]) == (0, True), found
        await app.applied()
    assert len(seen) == 1  # at the first attempt
    assert not any(is_sealed(each) for each in (await store.checkpoints("shop", timeout_s=120)).values())
    code, found = await app.rebuild("--app", "shop", "--verify", "--resume", "--graph-template", "{app_id}.again")
    assert (code, found["same"]) == (0, True), found


@only_redis
async def test_a_swap_that_fails_leaves_the_live_graph_to_its_workers(
    app: App, store: GraphStore, monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.long("neo4j")
@pytest.mark.soak("kafka")
@pytest.mark.timeout(240 + 40 * KILLS)
@both_graphs
async def test_killed_swaps_leave_one_whole_graph(app: App, store: GraphStore) -> None:
    app.timing = Timing(seal_s=0.5)
    await app.live()
    dice = random.Random(4)
    environment = clean_environment(GRAPHWEFT_BUS_URL=app.bus_url, GRAPHWEFT_GRAPH_URL=app.url)
    ended = 0
    rounds = KILLS // 2 if "kafka" in app.bus_url else KILLS
    async with app.worker(), app.worker():
        for number in range(rounds):
            await app.emit("shop", range(100 + 10 * number, 110 + 10 * number))
            known = await connections(app)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "graphweft_workers.cli", "rebuild", "--app", "shop", "--swap", "--resume",
                env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip

            async def is_at_work(known: set[str] = known, process: asyncio.subprocess.Process = process) -> bool:
                return process.returncode is not None or not await connections(app) <= known

            await until(is_at_work)
            await looks(lambda: orders(store, "shop"), dice.randrange(150))
            ended += process.returncode is not None
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()
            await app.forget_killed()
            assert await orders(store, "shop") == 11
        await app.emit("shop", range(100 + 10 * rounds, 110 + 10 * rounds))
        await app.applied()
        await until(lambda: seals(store), lambda found: not found, why="the seals of killed rebuilds are lifted")
    code, found = await app.rebuild("--app", "shop", "--verify", "--graph-template", "checked_{app_id}.again")
    assert (code, found["same"]) == (0, True), found


@pytest.mark.soak
@only_redis
async def test_a_graph_on_another_server_cannot_swap(app: App, neo4j_server: Neo4jServer) -> None:
    done = await app.run("rebuild", "--app", "shop", "--swap", "--into", neo4j_server.uri)
    assert (done.code, "leave out --into" in done.err) == (2, True), done.err
    done = await app.run("rebuild", "--app", "shop", "--swap", "--to", "0:1-1")
    assert done.code == 2
    assert "leave out --to" in done.err


@only_redis
@both_graphs
async def test_an_exchange_needs_the_expected_checkpoints(app: App, store: GraphStore) -> None:
    async with contextlib.aclosing(app.store("mozaiks_{app_id}.rebuilt")) as other:
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
    assert sealed(place, "a", 1) != sealed(place, "a", 2)
    assert have_same_seal(sealed(place, "a"), sealed(Checkpoint(offset="6-0"), "a", 2))
    assert not have_same_seal(sealed(place, "a"), sealed(place, "b"))
    assert not have_same_seal(of_generation(place, "a"), of_generation(place, "a"))
    assert not is_sealed(of_generation(place))
    assert of_generation(place) != of_generation(place)


BESIDE = (
    ("rebuild", "--app", "shop"),
    ("rebuild", "--app", "shop", "--swap"),
    ("rebuild", "--app", "shop", "--swap", "--resume"),
    ("rebuild", "--app", "shop", "--verify"),
    ("rebuild", "--app", "shop", "--drop"),
    ("rollback", "--app", "shop"),
    ("erase", "--app", "shop", "--user", "ada", "--yes"),
    ("erase", "--app", "shop", "--yes"),
)
"""The commands that make, exchange or delete graphs of an app."""


@pytest.mark.long("neo4j", "kafka")
@both_graphs
async def test_commands_on_the_graphs_of_one_app_exclude_each_other(app: App, store: GraphStore) -> None:
    (app.folder / "archive").mkdir()
    app.settings["GRAPHWEFT_ARCHIVE_URL"] = str(app.folder / "archive")
    await app.push("first")
    async with app.worker():
        for name in app.apps:
            await app.emit(name, range(40))
        await app.applied()
        live = await app.digest("shop")
        assert (await app.rebuild("--app", "shop"))[0] == 0  # what others may not delete
        async with GraphsLease.of(app.bus, "shop", "graphweft rebuild --swap").held():
            for command in BESIDE:
                done = await app.run(*command)
                assert done.code == 1, (command, done.err)
                said = " ".join(done.err.split())
                assert "`graphweft rebuild --swap` works on the graphs of 'shop' since" in said, (command, said)
                assert "wait until it has ended, then give this command again" in said, (command, said)
            done = await app.run("rebuild", "--all", "--json")
            rows = {row["app"]: row for row in json.loads(printed(done.out))["apps"]}
            assert (done.code, rows["shop"]["ok"], "works on the graphs" in rows["shop"]["error"]) == (1, False, True)
            assert all(row["ok"] for name, row in rows.items() if name != "shop")
        assert await app.digest("shop") == live
        dropped = json.loads(printed((await app.run("rebuild", "--app", "shop", "--drop", "--json")).out))
        assert dropped["dropped"], "the second graph is still there"
        assert await app.digest("shop") == live


@only_redis
async def test_a_rebuild_that_has_lost_its_lease_does_not_swap(app: App, store: GraphStore) -> None:
    await app.push("first")
    async with app.worker():
        await app.emit("shop", range(40))
        await app.applied()
        await run(app, "CREATE (:Stranger)")
        graph, rules = app.store("{app_id}.rebuilt"), LoggedRules(app.bus.rules, rules_maker(Settings.load(unknown=[])))
        lease = GraphsLease.of(app.bus, "shop", "graphweft rebuild --swap")
        async with contextlib.aclosing(graph):
            work = Rebuild(AppLog(bus=app.bus, app_id="shop", live=store), graph, rules, lease=lease)
            await work.begin(resume=False, swap=True)
            await work.run()
            with pytest.raises(BusUnavailable, match="has taken over the graphs of 'shop'"):
                await work.swap()
        assert await run(app, "MATCH (s:Stranger) RETURN s")
        await app.emit("shop", range(40, 50))
        await app.applied()  # the seals are lifted
