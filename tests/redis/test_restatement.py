"""``graphweft rebuild --rules``: what other rules make of history, and how history comes to follow them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.serial import Neo4jReference
from tests.edges.test_cli import Call, call
from tests.kafka.test_rules_log import lose
from tests.redis.test_rebuild import RULES, App, printed
from tests.services.neo4j import Neo4jServer
from tests.services.waiting import looks, until

from graphweft_contracts import BusUnavailable, Event, GraphUnavailable
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.falkordb.whole_graphs import FalkorDBGraphs
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.replay.restatement import Restatement

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

NEW = RULES.replace("o.by = 'BY'", "o.who = 'NEW'").replace("100 / $parts", "100 / ($parts + 1)")


@pytest.fixture
async def app(own_bus_url: str | None, url: str, call: Call, tmp_path: Path) -> AsyncIterator[App]:
    async with contextlib.aclosing(App(url, call, tmp_path, bus_url=own_bus_url)) as app:
        await app.bus.partitions.count()
        yield app


only_redis = pytest.mark.parametrize("own_bus_url", ["redis"], indirect=True)
"""For what a bus has no part in; ``test_bus.py`` holds on each bus what is said of places and times."""


def new_rules(app: App, text: str = NEW) -> str:
    file = app.folder / "new/Shop/graph_injection.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return str(file.parent.parent)


async def orders(app: App, name: str = "shop", template: str = "mozaiks_{app_id}") -> dict[str, tuple[Any, ...]]:
    async with contextlib.aclosing(FalkorDBStore(app.url, graph_template=template)) as store:
        found = await store.read(name, "MATCH (o:Order) RETURN o.id, o.times, o.share, o.who, o.by", {}, timeout_s=120)
    return {row[0]: tuple(row[1:]) for row in found.rows}


def expected(numbers: range) -> dict[str, tuple[int, int]]:
    """What the new rules make of events, each once and in order: ``times`` and ``share`` by order."""
    found: dict[str, tuple[int, int]] = {}
    for number in numbers:
        times, _ = found.get(f"o{number % 11}", (0, 0))
        found[f"o{number % 11}"] = (times + 1, 100 // (number % 5 + 1))
    return found


async def verified(app: App, *names: str) -> None:
    """Check that the live graphs are what the log makes of them."""
    for name in names:
        code, found = await app.rebuild("--app", name, "--verify", "--graph-template", "checked_{app_id}.again")
        assert (code, found["same"], found["dead_letters"]) == (0, True, []), found
        dropped = await app.run("rebuild", "--app", name, "--drop", "--graph-template", "checked_{app_id}.again")
        assert dropped.code == 0


async def letters(app: App, name: str) -> list[dict[str, Any]]:
    found = json.loads(printed((await app.run("dlq", "list", "--json")).out))
    return [each for each in found if each.get("app_id") == name]


@only_redis
async def test_other_rules_try_each_row_at_its_own_place_and_touch_nothing_live(app: App) -> None:
    await app.live()
    before, dead = await app.digest("shop"), await letters(app, "shop")
    code, found = await app.rebuild("--app", "shop", "--rules", new_rules(app))
    assert (code, found["dead_letters"], found["swapped"]) == (0, [], False)
    made = await orders(app, template="mozaiks_{app_id}.rebuilt")
    assert {name: row[:2] for name, row in made.items()} == expected(range(60))
    assert {row[2:] for row in made.values()} == {("NEW", None)}
    assert (await app.digest("shop"), await letters(app, "shop")) == (before, dead)
    other = new_rules(app, NEW.replace("NEW", "OTHER"))
    for arguments in (["--rules", other], []):
        done = await app.run("rebuild", "--app", "shop", "--resume", *arguments)
        assert done.code == 2
        assert "was made by other rules than" in done.err
    await verified(app, "shop", "shop_x")


@pytest.mark.soak("kafka")
async def test_history_that_is_restated_stays_what_the_log_says(app: App) -> None:
    await app.live()
    neighbour, dead = await app.digest("shop_x"), await letters(app, "shop_x")
    assert {each.get("mutation") for each in await letters(app, "shop")} >= {"share", "customer"}
    emitted, stop = 60, asyncio.Event()

    async def emit() -> None:
        nonlocal emitted
        while not stop.is_set():
            await app.emit("shop", range(emitted, emitted + 3))
            emitted += 3
            await looks(app.bus.partitions.status, 10)

    async with app.worker(), app.worker():
        emitting = asyncio.create_task(emit())
        done = await app.run("rebuild", "--json", "--app", "shop", "--rules", new_rules(app), "--swap")
        stop.set()
        await emitting
        await app.applied()
        assert done.code == 0, done.err
        assert "new events of 'shop' follow the rules" in done.err
        assert json.loads(printed(done.out))["restated"]["dead_letters_removed"] > 0
        # Each event had its effect once, those before the restatement by the new rules, later ones by the active ones.
        assert {name: row[0] for name, row in (await orders(app)).items()} == {
            name: row[0] for name, row in expected(range(emitted)).items()
        }
        assert {row[2] for row in (await orders(app)).values()} == {"NEW"}
        assert await app.digest("shop_x") == neighbour
        assert await letters(app, "shop_x") == dead
        past = json.loads(printed((await app.run("rules", "list", "--json")).out))[-1]
        assert (past["scope"], past["restates"], past["active"]) == ("shop", True, False)
        await verified(app, "shop", "shop_x")
        # The letters that are left can be retried, without a second effect of anything that the restatement applied.
        await app.run("dlq", "retry", "--all")  # a letter that gets new skips meanwhile stays
        await app.push("third")
        await app.emit("shop", range(emitted, emitted + 10))
        await app.applied()
        assert {name: row[0] for name, row in (await orders(app)).items()} == {
            name: row[0] for name, row in expected(range(emitted + 10)).items()
        }
        await verified(app, "shop", "shop_x")
        back = await app.run("rollback", "--app", "shop")
        assert back.code == 2
        assert "was made by other rules than the log names now for its events" in back.err


@only_redis
async def test_new_failures_and_skips_become_the_dead_letters_of_the_past(app: App) -> None:
    await app.live()
    text = NEW.replace("100 / ($parts + 1)", "100 / ($parts - 1)").replace("$event.order}", "$event.nothing}", 1)
    async with app.worker():
        empty = Event.create(
            "order.placed", app_id="shop", chat_id="c1", workflow="Shop", id="empty", source="/test", data={}
        )
        await app._append([empty])  # pyright: ignore[reportPrivateUsage]
        await app.applied()
        code, found = await app.rebuild("--app", "shop", "--rules", new_rules(app, text), "--swap")
        assert code == 0
        assert {each["mutation"] for each in found["dead_letters"]} == set()  # no order is made, so none fails
        dead = await letters(app, "shop")
        assert {each["mutation"] for each in dead if each["reason"] == "skipped"} == {"order", "customer", "share"}
        assert sum(each["count"] for each in dead if each["mutation"] == "order") == 61
        skipped = sum(each["count"] for each in dead if each["reason"] == "skipped")
        assert found["skips"] == skipped, "those behind the last effect are read twice, and counted once"
        await verified(app, "shop")
        text = NEW.replace("100 / ($parts + 1)", "100 / ($parts - 1)")
        drop = await app.run("rebuild", "--app", "shop", "--drop", "--json")
        assert json.loads(printed(drop.out)) == {"dropped": "mozaiks_shop.rebuilt"}
        code, found = await app.rebuild("--app", "shop", "--rules", new_rules(app, text), "--swap")
        assert (code, len(found["dead_letters"])) == (0, 12)
        dead = await letters(app, "shop")
        failed = [each["mutation"] for each in dead if each["reason"] != "skipped"]
        assert failed.count("share") == 12
        assert [each["count"] for each in dead if each["mutation"] == "order"] == [1]
        await verified(app, "shop")


@only_redis
async def test_a_restatement_that_was_interrupted_is_repeated(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    await app.live()
    settle = Restatement.settle

    async def fail(*_: object) -> None:
        raise GraphUnavailable("cut")

    monkeypatch.setattr(Restatement, "settle", fail)
    async with app.worker():
        done = await app.run("rebuild", "--app", "shop", "--rules", new_rules(app), "--swap")
        assert (done.code, "cut" in done.err) == (1, True)
        code, found = await app.rebuild("--app", "shop", "--verify", "--graph-template", "checked_{app_id}.cut")
        assert (code, found["same"]) == (1, False)  # the log is ahead of the live graph, and says so

        async def late(self: Restatement, *arguments: Any) -> Any:
            monkeypatch.setattr(Restatement, "settle", settle)
            bus = self._log.bus  # pyright: ignore[reportPrivateUsage]
            dead = await bus.dead_letters.read(limit=100)
            old = [each for each in dead if (each.app_id, each.mutation) == ("shop", "share")]
            assert (await retry(bus, old[0])).events  # somebody retries a letter of the past in the worst moment
            return await settle(self, *arguments)

        monkeypatch.setattr(Restatement, "settle", late)
        code, found = await app.rebuild("--app", "shop", "--rules", new_rules(app), "--swap", "--resume")
        assert (code, found["restated"]["number"]) == (0, 5)
        await app.applied()
        assert {name: row[:2] for name, row in (await orders(app)).items()} == expected(range(60))
        await verified(app, "shop", "shop_x")


async def parked(app: App) -> set[str]:
    return {name for each in await app.bus.partitions.status() for name in PositionNote.decode(each.note).parked}


@only_redis
async def test_an_app_that_waits_alone_is_behind_no_others(app: App) -> None:
    await app.push("first")
    [first] = await app.bus.rules.activations()
    await lose(app.url, first.digest)
    await app.emit("shop", range(3))

    async def waits() -> bool:
        return await parked(app) == {"shop"}

    async with app.worker():
        await until(waits)
        doctor, status = await app.run("doctor"), await app.run("status")
    assert "apps that are behind: shop" in " ".join(doctor.out.split())
    assert "Apps that are behind" in status.out
    assert "the others" not in doctor.out + status.out


@only_redis
async def test_given_rules_replace_those_that_were_lost(app: App) -> None:
    """The neighbour on the same partitions goes on waiting until the files are pushed."""
    names = ("shop", "shop_x")
    await app.push("first")
    [first] = await app.bus.rules.activations()
    async with app.worker():
        for name in names:
            await app.emit(name, range(20))
        await app.applied()
    await lose(app.url, first.digest)
    for name in names:
        await app.emit(name, range(20, 40))
    await app.push("second")
    for name in names:
        await app.emit(name, range(40, 60))

    async def all_wait() -> bool:
        return await parked(app) == {*names}

    async with app.worker():
        await until(all_wait)
        for arguments in (["--verify"], ["--swap"]):
            without = await app.run("rebuild", "--app", "shop", *arguments)
            assert (without.code, f"has lost the rule set {first.digest[:12]}" in without.err) == (1, True), without
            assert (await app.run("rebuild", "--app", "shop", "--drop")).code == 0
        code, found = await app.rebuild("--app", "shop", "--rules", new_rules(app), "--swap")
        assert (code, found["swapped"]) == (0, True), found
        await app.emit("shop", range(60, 70))

        async def all_have_taken_effect() -> bool:
            return sum(row[0] for row in (await orders(app)).values()) == 70

        await until(all_have_taken_effect)
        made = await orders(app)
        assert {name: row[0] for name, row in made.items()} == {
            name: row[0] for name, row in expected(range(70)).items()
        }
        assert {row[2] for row in made.values()} == {"NEW"}
        assert await parked(app) == {"shop_x"}
        assert sum(row[0] for row in (await orders(app, "shop_x")).values()) == 20
        await verified(app, "shop")
        (app.folder / "rules/Shop/graph_injection.yaml").write_text(RULES.replace("BY", "first"))
        again = await app.run("rules", "push", str(app.folder / "rules"), "--app", "nobody")
        assert again.code == 0, again.err
        await app.applied()
        await verified(app, *names)
        assert sum(row[0] for row in (await orders(app, "shop_x")).values()) == 60


@pytest.mark.soak
@only_redis
async def test_other_rules_make_a_graph_on_neo4j(app: App, neo4j_server: Neo4jServer) -> None:
    await app.live()
    async with contextlib.aclosing(Neo4jReference(neo4j_server.uri)) as reference:
        await reference.clear()
    code, found = await app.rebuild("--app", "shop", "--rules", new_rules(app), "--into", neo4j_server.uri)
    assert (code, found["dead_letters"]) == (0, [])
    assert (await app.rebuild("--app", "shop", "--rules", new_rules(app)))[0] == 0
    other = await app.run("rebuild", "--app", "shop", "--into", neo4j_server.uri, "--resume")
    assert (other.code, "was made by other rules than" in other.err) == (2, True)
    async with (
        contextlib.aclosing(Neo4jStore(neo4j_server.uri)) as moved,
        contextlib.aclosing(FalkorDBStore(app.url, graph_template="mozaiks_{app_id}.rebuilt")) as rebuilt,
    ):
        assert await read_digest(moved, "shop") == await read_digest(rebuilt, "shop")


@only_redis
async def test_a_rollback_brings_the_graph_of_before_the_swap_back(app: App) -> None:
    await app.live()
    none = await app.run("rollback", "--app", "shop")
    assert none.code == 2
    assert "no graph of 'shop' from before a swap" in none.err
    async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
        await store._redis.execute_command("GRAPH.QUERY", "mozaiks_shop", "CREATE (:Stranger)")  # pyright: ignore[reportPrivateUsage]
    async with app.worker():
        assert (await app.rebuild("--app", "shop", "--swap"))[0] == 0
        rebuilt = await app.digest("shop")
        again = await app.run("rebuild", "--app", "shop")
        assert again.code == 2
        assert "`graphweft rollback --app shop` puts it back" in again.err
        assert "`graphweft rebuild --app shop --drop` deletes it" in again.err
        await app.emit("shop", range(60, 80))
        await app.applied()
        for strangers in (1, 0):
            done = await app.run("rollback", "--app", "shop", "--json")
            assert json.loads(printed(done.out))["swapped"], done.err
            found = await app.run("query", "--app", "shop", "--json", "MATCH (s:Stranger) RETURN count(s) AS n")
            assert json.loads(printed(found.out))["rows"] == [{"n": strangers}]
            assert sum(row[0] for row in (await orders(app)).values()) == 80
        assert await app.digest("shop") != rebuilt
        await verified(app, "shop")
    live = await app.run("rebuild", "--app", "shop", "--drop", "--graph-template", "mozaiks_{app_id}")
    assert live.code == 2
    assert "is not deleted" in live.err


@only_redis
async def test_all_apps_are_rebuilt_and_one_failure_stops_no_other(app: App) -> None:
    await app.live()
    assert (await app.rebuild("--app", "shop"))[0] == 0
    done = await app.run("rebuild", "--all", "--verify", "--json")
    assert done.code == 1
    found = {each["app"]: each for each in json.loads(printed(done.out))["apps"]}
    assert [(name, each["ok"]) for name, each in found.items()] == [("shop", False), ("shop_x", True)]
    assert "give --resume" in found["shop"]["error"]
    assert found["shop_x"]["same"] is True
    assert "shop: a graph of" in done.err
    assert (await app.run("rebuild", "--all", "--drop")).code == 0
    done = await app.run("rebuild", "--all", "--verify")
    assert done.code == 0, done.err
    assert done.out.count("equal") == 2
    for arguments in ([], ["--all", "--app", "shop"]):
        assert "give either --app or --all" in (await app.run("rebuild", *arguments)).err


@only_redis
async def test_a_time_is_the_place_of_the_log_at_it(app: App) -> None:
    await app.live()
    partition = (await app.bus.partitions.layout()).partitions_of("shop")[0]
    entries = await app.bus.log.after(partition, "", limit=1_000)
    time = entries[20].received
    last = [entry for entry in entries if entry.received <= time][-1].offset
    code, found = await app.rebuild("--app", "shop", "--to", time.isoformat())
    assert code == 0
    assert [each["offset"] for each in found["partitions"] if each["partition"] == partition] == [last]
    assert (await app.run("rebuild", "--app", "shop", "--drop")).code == 0
    done = await app.run("rebuild", "--app", "shop", "--to", "2020-01-01T00:00:00Z")
    assert (done.code, "no event of the app 'shop'" in done.err) == (0, True)
    alone = await app.run("rebuild", "--app", "shop", "--rules", new_rules(app), "--swap", "--resume")
    assert alone.code == 2
    for given, said in [
        (["--to", "2026-13-01"], "or a time such as"),
        (["--to", "2026-01-01", "--to", "0:1-1"], "give either"),
        (["--rules", "nowhere"], "'nowhere' does not exist"),
        (["--rules", ".", "--as-lived"], "exclude each other"),
        (["--rules", ".", "--verify"], "graphweft diff"),
        (["--drop", "--swap"], "only deletes"),
        (["--rules", new_rules(app, NEW.replace("MERGE (o", "MERG (o"))], "graph_injection.yaml"),
    ]:
        done = await app.run("rebuild", "--app", "shop", *given)
        assert done.code == 2, done
        assert said in done.err


@only_redis
async def test_a_restatement_that_is_cut_at_any_write_applies_each_event_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.live()
    calls, most, cuts, emitted = 0, 1, 0, 60

    def cut(kind: type[Any], name: str) -> None:
        method = getattr(kind, name)

        async def write(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            if threading.current_thread() is not threading.main_thread():  # of the command, not of the workers
                calls += 1
                if calls == most:
                    raise BusUnavailable("cut")
            return await method(*arguments, **named)

        monkeypatch.setattr(kind, name, write)

    for port, name in ((app.bus.rules, "activate"), (app.bus.dead_letters, "requeue"), (app.bus.dead_letters, "put")):
        cut(type(port), name)
    cut(FalkorDBStore, "apply")
    cut(FalkorDBGraphs, "exchange")
    arguments = ["rebuild", "--app", "shop", "--rules", new_rules(app), "--swap", "--resume"]
    async with app.worker(), app.worker():
        while True:
            calls = 0
            done = await app.run(*arguments)
            if done.code == 0:
                break
            assert "cut" in done.err, done.err
            cuts, most = cuts + 1, most + 3
            await app.emit("shop", [emitted])
            emitted += 1
        assert cuts >= 5
        await app.applied()
        made = {name: row[0] for name, row in (await orders(app)).items()}
        assert made == {name: row[0] for name, row in expected(range(emitted)).items()}
        most = 0
        await verified(app, "shop", "shop_x")
