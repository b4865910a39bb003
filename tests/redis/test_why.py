"""``graphweft why`` names the events and rules that wrote a node, and what each changed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.serial import Neo4jReference
from tests.edges.test_cli import Call, call
from tests.kafka.test_rules_log import lose
from tests.redis.test_rebuild import RULES, App
from tests.services.neo4j import Neo4jServer

from graphweft_contracts import Event, channels, wire
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.replay import why as replay_why

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
async def app(url: str, call: Call, tmp_path: Path) -> AsyncIterator[App]:
    async with contextlib.aclosing(App(url, call, tmp_path)) as app:
        await app.bus.partitions.count()
        yield app


async def why(app: App, name: str, label: str, key: str, *arguments: str) -> dict[str, Any]:
    done = await app.run("why", "--app", name, "--label", label, "--key", key, "--json", *arguments)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    return found


def changed(found: dict[str, Any], name: str) -> list[tuple[str, Any, Any]]:
    """Return event, old and new value for each change of a property."""
    return [
        (each["id"], change["before"], change["after"])
        for each in found["writes"]
        for change in each["changes"]
        if change["name"] == name
    ]


async def test_writes_have_their_event_rule_and_change(app: App) -> None:
    await app.live()
    before = {name: await app.digest(name) for name in ("shop", "shop_x")}
    for name in before:
        found = await why(app, name, "Order", "o3", "--property", "times")
        expected = [(f"e{number}", number // 11 or None, number // 11 + 1) for number in range(3, 60, 11)]
        assert changed(found, "times") == expected
        assert (found["total"], found["exact"], found["like_live"]) == (6, True, True)
        first, last = found["writes"][0], found["writes"][-1]
        assert (first["type"], first["source"], first["chat"]) == ("order.placed", "/test", "c0")
        assert (first["workflow"], first["rule"], first["mutation"]) == ("Shop", "placed", "order")
        assert first["place"] == "Shop/graph_injection.yaml:7:9"
        partition, _, offset = last["position"].partition(":")
        assert "data" not in first
        assert [first["rules"] == each["rules"] for each in found["writes"]] == [True] * 4 + [False] * 2
        [entry] = await app.bus.log.entries(int(partition), [offset])
        assert wire.decode(entry.fields, received=entry.received).id == last["id"] == "e58"
        whole = await why(app, name, "Order", "o3", "--payload", "--limit", "3")
        assert whole["total"] > len(whole["writes"]) == 3
        assert whole["writes"][-1]["data"]["order"] == "o3"
        assert changed(await why(app, name, "Order", "o3"), "by") == [("e47", "first", "second")]
        customer = await why(app, name, "Customer", f"{name}1")  # later orders only make sure that it exists
        assert [each["id"] for each in customer["writes"]] == ["e1"]
        assert customer["may_have_written"] > 5
        customers = await why(app, name, "Order", "o3", "--relationship", "PLACED")
        arrows = [change["relationship"] for each in customers["writes"] for change in each["changes"]]
        assert arrows == [["PLACED", "in", f"(:Customer {{id: '{name}{number}'}})"] for number in (3, 1, 0, 2)]
    assert {name: await app.digest(name) for name in before} == before
    async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
        graphs = await store._redis.execute_command("GRAPH.LIST")  # pyright: ignore[reportPrivateUsage]
    assert not [name for name in map(str, graphs) if "why" in name]


async def test_a_lost_rule_set_of_a_neighbour_stops_no_look_at_an_app(app: App) -> None:
    await app.push("first")
    rules = str(app.folder / "rules")
    assert (await app.run("rules", "push", rules, "--app", "shop")).code == 0
    await app.push("second")
    async with app.worker():
        for name in ("shop", "shop_x"):
            await app.emit(name, range(12))
        await app.applied()
    lost = (await app.bus.rules.activations())[-1].digest
    await lose(app.url, lost)
    now = datetime.now(UTC).isoformat()
    asked = ("--workflow", "Shop", "--agent", "A", "--chat", "c1")
    looks = (
        ("why", "--label", "Order", "--key", "id=o3", "--fast"),
        ("why", "--label", "Order", "--key", "id=o3"),
        ("diff", "--rules", rules),
        ("query", "MATCH (o:Order) RETURN count(o)", "--as-of", now),
        ("context", *asked, "--as-of", now),
    )
    for command, *arguments in looks:
        own = await app.run(command, "--app", "shop", "--json", *arguments)
        assert own.code == 0, (command, own.err)
        other = await app.run(command, "--app", "shop_x", "--json", *arguments)
        assert (other.code, f"has lost the rule set {lost[:12]}" in other.err) == (1, True), (command, other)
    writes = (await why(app, "shop", "Order", "id=o3"))["writes"]
    assert [each["id"] for each in writes] == ["e3", "e3"]


async def test_a_failure_writes_at_its_retry_and_a_drop_never(app: App) -> None:
    await app.push("first")
    async with app.worker():
        await app.emit("shop", range(0, 30, 5))  # each lacks parts
        await app.applied()
        file = app.folder / "rules/Shop/graph_injection.yaml"
        letters = json.loads((await app.run("dlq", "list", "--json")).out)
        dropped = next(each["id"] for each in letters if each["event_id"] == "e5" and each["mutation"] == "share")
        assert (await app.run("dlq", "drop", dropped)).code == 0
        file.write_text(RULES.replace("$parts", "($parts + 1)").replace("BY", "second"))
        assert (await app.run("rules", "push", str(app.folder / "rules"))).code == 0
        assert (await app.run("dlq", "retry", "--all")).code == 0
        await app.applied()
    found = await why(app, "shop", "Order", "o0", "--property", "share")
    assert changed(found, "share") == [("e0", None, 100)]
    assert found["writes"][0]["retry"] is True
    assert found["like_live"] is True
    order = await why(app, "shop", "Order", "o0", "--property", "by")
    assert order["writes"][0]["retry"] is False
    assert order["writes"][0]["rules"] != found["writes"][0]["rules"]
    nothing = await why(app, "shop", "Order", "o5", "--property", "share")
    assert (nothing["total"], nothing["like_live"]) == (0, True)


async def test_a_memory_names_its_events(app: App) -> None:
    await app.push("first")
    async with app.worker():
        for name in ("shop", "shop_x"):
            await app.remember(name, ["likes tea", "lives in Rome"])
        await app.applied()
        rows = json.loads(
            (await app.run("query", "--app", "shop", "--json", "MATCH (m:Memory) RETURN m.id, m.text")).out
        )
        ids = {row["m.text"]: row["m.id"] for row in rows["rows"]}
        await app._append([  # pyright: ignore[reportPrivateUsage]
            Event.create("memory.forget", app_id="shop", chat_id="c1", data={"memory_ids": [ids["likes tea"]]}, id="f")
        ])  # fmt: skip
        await app.applied()
    found = await why(app, "shop", "Memory", ids["likes tea"])
    assert [(each["id"], each["mutation"]) for each in found["writes"]] == [("m-likes tea", "add"), ("f", "forget")]
    assert [each["changes"][0]["change"] for each in found["writes"]] == ["created", "deleted"]
    assert (found["now"], found["like_live"]) == ([], True)
    kept = await why(app, "shop", "Memory", f"id={ids['lives in Rome']}")
    assert [each["id"] for each in kept["writes"]] == ["m-lives in Rome"]


HOSTILE = [
    'it\'s "q" `b` \\ {$x}',
    "ü💡\u202e漢",
    "x" * 4_000,
    "a=b",
    '"7"',
    "7",
    "line\nbreak",
    "') DETACH DELETE (n",
]


@pytest.mark.long
async def test_hostile_keys_are_found_and_harm_nothing(app: App) -> None:
    await app.push("first")
    keys = [*HOSTILE, 7]
    async with app.worker():
        await app._append(  # pyright: ignore[reportPrivateUsage]
            Event.create(
                "order.placed", app_id="shop", chat_id="c", workflow="Shop", id=f"k{number}", data={"order": key}
            )
            for number, key in enumerate(keys)
        )
        await app.applied()
    for number, key in enumerate(HOSTILE):
        found = await why(app, "shop", "Order", key, "--property", "times")
        expected = {"7": ["k5", "k8"], '"7"': ["k4", "k5"]}.get(key, [f"k{number}"])
        assert [each["id"] for each in found["writes"]] == expected
        assert found["like_live"] is True
        done = await app.run("why", "--app", "shop", "--label", "Order", "--key", key)
        assert done.code == 0
        assert "\u202e" not in done.out
    for arguments in (
        ("--label", "Or`der", "--key", "id=x"),
        ("--label", "__Progress", "--key", "partition=0"),
        ("--label", "", "--key", "id=x"),
        ("--label", "Order", "--key", "id=x", "--relationship", "A`]-() DELETE (n"),
        ("--label", "Order", "--key", "id=x", "--key", "y"),
    ):
        done = await app.run("why", "--app", "shop", *arguments)
        assert done.code == 2, done
        assert "invalid" in done.err


async def test_a_node_that_no_event_wrote_gets_hints(app: App) -> None:
    await app.live()
    async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
        redis = store._redis  # pyright: ignore[reportPrivateUsage]
        await redis.execute_command("GRAPH.QUERY", "mozaiks_shop", "CREATE (:Order {id: 'odd'})")
        await redis.execute_command("GRAPH.QUERY", "mozaiks_shop", "MATCH (o:Order {id: 'o1'}) SET o.by = 'me'")
    for label, key, said in [
        ("Order", "O3", "No Order has this id. There are: o3"),
        ("Order", "odd", "something else than the events of this log has written it"),
        ("Ordr", "id=o3", "no node with the label 'Ordr'. Its labels: Order"),
        ("Order", "o1", "another content than this"),
    ]:
        done = await app.run("why", "--app", "shop", "--label", label, "--key", key)
        assert done.code == 0
        assert said in done.err, done.err
    misspelt = await app.run("why", "--app", "shop", "--label", "Order", "--key", "o3", "--property", "tims")
    assert "It is in the app's graph, without the property 'tims'. It has: times" in misspelt.err
    assert "something else" not in misspelt.err
    unknown = await app.run("why", "--app", "shop", "--label", "Ordr", "--key", "o3")
    assert unknown.code == 2
    assert "(did you mean 'Order'?); rules look up " in unknown.err
    [hint] = (await why(app, "shop_x", "Order", "odd"))["hints"]
    assert hint.startswith("No Order has this id. There are: ")


async def test_events_that_wait_have_written_nothing(app: App) -> None:
    await app.live()
    await app.emit("shop", [102])
    found = await why(app, "shop", "Order", "o3")
    assert "e102" not in {each["id"] for each in found["writes"]}
    assert found["like_live"] is True


async def test_only_the_newest_rows_run_alone(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    await app.live()
    whole = await why(app, "shop", "Order", "o3")
    monkeypatch.setattr(replay_why, "MOST_SINGLE", 4)
    found = await why(app, "shop", "Order", "o3")
    assert found["not_recorded"] == 7
    assert found["writes"] == whole["writes"][-4:]
    done = await app.run("why", "--app", "shop", "--label", "Order", "--key", "o3")
    assert "7 older mutations may have written it too" in done.err


async def test_a_log_without_its_beginning_gives_what_may_have_written(app: App) -> None:
    await app.live()
    partition = (await app.bus.partitions.layout()).partitions_of("shop")[0]
    fast = await why(app, "shop", "Order", "o3", "--fast")
    assert (fast["exact"], fast["total"]) == (False, 11)
    assert {each["reason"] for each in fast["writes"]} == {"it names the key"}
    async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
        redis = store._redis  # pyright: ignore[reportPrivateUsage]
        await redis.execute_command("XTRIM", channels.events_stream(partition), "MAXLEN", "40")
    done = await app.run("why", "--app", "shop", "--label", "Order", "--key", "o3")
    assert done.code == 2
    assert "Give --fast" in done.err
    rest = await why(app, "shop", "Order", "o3", "--fast")
    assert rest["lost"] > 0
    assert 0 < rest["total"] < 11


@pytest.mark.soak
async def test_a_second_graph_on_neo4j_gives_the_same(app: App, neo4j_server: Neo4jServer) -> None:
    await app.live()
    async with contextlib.aclosing(Neo4jReference(neo4j_server.uri)) as reference:
        await reference.clear()
    for arguments in (["Order", "o3"], ["Order", "o3", "--relationship", "PLACED"]):
        here = await why(app, "shop", *arguments)
        there = await why(app, "shop", *arguments, "--into", neo4j_server.uri)
        assert there["like_live"] is True
        assert there["writes"] == here["writes"]


@pytest.mark.soak
async def test_a_log_on_kafka_is_read(url: str, kafka_url: str, call: Call, tmp_path: Path) -> None:
    async with contextlib.aclosing(App(url, call, tmp_path, bus_url=kafka_url)) as app:
        await app.bus.partitions.count()
        await app.live()
        found = await why(app, "shop", "Order", "o3", "--property", "times")
        assert [each["id"] for each in found["writes"]] == [f"e{number}" for number in range(3, 60, 11)]
        assert (found["like_live"], found["dead_letters"]) == (True, [])
