"""``graphweft diff`` shows what other rules would have made of history, and writes nothing that stays."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, override

import pytest
from tests.edges.test_cli import Call, call
from tests.redis.test_rebuild import RULES, App, printed
from tests.redis.test_restatement import letters, new_rules
from tests.services.fixtures import empty_kafka
from tests.services.kafka import KafkaServer
from tests.services.memories import empty_neo4j
from tests.services.neo4j import Neo4jServer

from graphweft_contracts import Event
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

LAST = RULES.replace("BY", "second")
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b[31m\u202e\x00"


@pytest.fixture
async def app(url: str, call: Call, tmp_path: Path) -> AsyncIterator[App]:
    async with contextlib.aclosing(App(url, call, tmp_path)) as app:
        await app.bus.partitions.count()
        yield app


async def diff(app: App, text: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = await app.run("diff", "--app", "shop", "--rules", new_rules(app, text), "--json", *arguments)
    assert done.code == code, done.err
    found: dict[str, Any] = json.loads(printed(done.out))
    return found


async def everything(app: App) -> list[object]:
    """All that the command must leave as it is."""
    async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
        graphs = sorted(await store._redis.execute_command("GRAPH.LIST"))  # pyright: ignore[reportPrivateUsage]
    ends = [(each.end, each.position) for each in await app.bus.partitions.status()]
    dead = [await letters(app, name) for name in ("shop", "shop_x")]
    return [
        graphs,
        ends,
        dead,
        [await app.digest(name) for name in ("shop", "shop_x")],
        await app.bus.rules.activations(),
    ]


async def test_rules_that_change_are_shown_by_what_they_change(app: App) -> None:
    await app.live()
    before = await everything(app)
    text = (
        LAST.replace("o.by = 'second'", "o.who = 'second', o:Vip")
        .replace("MERGE (c:Customer {id: $who}) MERGE (c)-[:PLACED]->(o)", "MERGE (c:Customer {id: $who})")
        .replace("100 / $parts", "100 / ($parts - 1)")
    )
    found = await diff(app, text, "--exit-code", code=1)
    assert await everything(app) == before
    assert found["nodes"]["of"] == [{"name": "Order", "added": 0, "removed": 0, "changed": 11}]
    assert found["labels"] == [{"label": "Vip", "added": 11, "removed": 0}]
    properties = {each["property"]: each for each in found["properties"]}
    assert (properties["by"]["removed"], properties["who"]["added"]) == (11, 11)
    [placed] = found["relationships"]["of"]
    assert (placed["name"], placed["added"], placed["changed"]) == ("PLACED", 0, 0)
    assert placed["removed"] == found["relationships"]["removed"] > 10
    mutations = {each["mutation"]: each for each in found["mutations"]}
    assert mutations["share"]["before"] == {"applied": 48, "skipped": 0, "failed": 12}
    assert mutations["share"]["after"] == {"applied": 48, "skipped": 0, "failed": 12}
    assert (
        mutations["customer"]["before"] == mutations["customer"]["after"] == {"applied": 51, "skipped": 9, "failed": 0}
    )
    assert [(each["mutation"], each["events"]) for each in found["failures"]] == [("share", 12)]
    for kind, count in (("node", 5), ("relationship", 5)):
        assert sum(each["kind"] == kind for each in found["examples"]) == count
    [o3] = [each for each in found["examples"] if each["ends"][0]["key"] == {"id": "o3"} and each["kind"] == "node"]
    assert o3["after"]["who"] == "second"
    of_o3 = {(f"e{number}", "/test") for number in range(60) if number % 11 == 3}
    assert {(each["id"], each["source"]) for each in o3["events"]} <= of_o3
    assert {each["mutation"] for each in o3["events"]} >= {"order", "share"}
    placed_example = next(each for each in found["examples"] if each["kind"] == "relationship")
    assert placed_example["events"]
    assert {each["mutation"] for each in placed_example["events"]} == {"customer"}


async def test_the_same_rules_and_a_neighbour_make_no_difference(app: App) -> None:
    await app.push("second")
    async with app.worker():
        await app.emit("shop", (n for n in range(40) if n % 5))
        await app.emit("shop_x", range(40))
        await app.remember("shop", ["likes tea"])
        await app.applied()
    found = await diff(app, LAST, "--exit-code")
    assert found["same"] is True
    assert found["nodes"]["before"] == found["nodes"]["after"] > 10
    done = await app.run("diff", "--app", "shop", "--rules", new_rules(app, LAST))
    assert "no difference" in done.out


async def test_a_removed_rule_and_an_earlier_place(app: App) -> None:
    await app.live()
    partition = (await app.bus.partitions.layout()).partitions_of("shop")[0]
    entries = await app.bus.log.after(partition, "", limit=30)
    text = LAST.replace("""      - id: share
        cypher: "MATCH (o:Order {id: $id}) SET o.share = 100 / $parts"
        params: {id: $event.order, parts: $event.parts}
""", "")  # fmt: skip
    assert text != LAST
    found = await diff(app, text, "--to", f"{partition}:{entries[-1].offset}", "--limit", "1")
    assert found["place"] == {str(partition): entries[-1].offset}
    mutations = {each["mutation"]: each for each in found["mutations"]}
    assert mutations["share"]["after"] == {"applied": 0, "skipped": 0, "failed": 0}
    assert mutations["share"]["before"]["applied"] > 0
    assert [each["kind"] for each in found["examples"]] == ["node"]
    none = await diff(app, text, "--to", "2020-01-01T00:00:00Z")
    assert (none["nodes"]["before"], none["mutations"]) == (0, [])


class Page(HTMLParser):
    """Collects tags, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, list[dict[str, str | None]]] = {}
        self.open: list[str] = []
        self.text = ""

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.setdefault(tag, []).append(dict(attrs))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    @override
    def handle_data(self, data: str) -> None:
        self.text += data


async def test_hostile_values_are_text_in_the_page_and_on_the_terminal(app: App) -> None:
    await app.push("second")
    await app._append(  # pyright: ignore[reportPrivateUsage]
        Event.create(
            "order.placed", app_id="shop", chat_id="c", workflow="Shop", id=HOSTILE.replace("\x00", ""), source="/t<b>",
            data={"order": HOSTILE.replace("\x00", "") + str(number), "parts": 1, "customer": "</title>"},
        )
        for number in range(2)
    )  # fmt: skip
    async with app.worker():
        await app.applied()
    page = app.folder / "diff.html"
    done = await app.run("diff", "--app", "shop", "--rules", new_rules(app, LAST), "--html", str(app.folder))
    assert (done.code, "it is a folder" in done.err) == (2, True), done.err
    text = LAST.replace("o.by = 'second'", "o.who = $id, o:Vip")
    done = await app.run("diff", "--app", "shop", "--rules", new_rules(app, text), "--html", str(page))
    assert done.code == 0, done.err
    parsed = Page()
    parsed.feed(page.read_text())
    assert parsed.open == []
    assert not {"script", "img", "link", "iframe", "b"} & parsed.tags.keys()
    assert not [name for found in parsed.tags.values() for each in found for name in each if name.startswith("on")]
    assert "default-src 'none'" in str(parsed.tags["meta"])
    assert "<script>alert(1)</script>" in parsed.text
    for output in (page.read_text(), done.out):
        assert not {"\x1b", "\u202e"} & set(output)


@pytest.mark.long
async def test_what_cannot_be_compared_is_said_on_neo4j_too(app: App, neo4j_server: Neo4jServer) -> None:
    await app.live()
    for text, given, said in [
        (LAST, ["--rules", "nowhere"], "'nowhere' does not exist"),
        (LAST.replace("MERGE (o", "MERG (o"), [], "graph_injection.yaml"),
        (LAST, ["--html", "no/where.html"], "the folder 'no' does not exist"),
        (LAST, ["--to", "9"], "invalid --to"),
    ]:
        done = await app.run("diff", "--app", "shop", "--rules", new_rules(app, text), *given)
        assert done.code == 2, done
        assert said in done.err
    done = await app.run("diff", "--app", "nobody", "--rules", new_rules(app, LAST))
    assert (done.code, "no event of the app 'nobody'" in done.err) == (0, True)
    rules = new_rules(app, LAST)
    empty_neo4j(neo4j_server.uri)
    found = [
        json.loads((await app.run("diff", "--app", "shop", "--rules", rules, "--json", graph=graph)).out)
        for graph in (app.url, neo4j_server.uri)
    ]
    for name in ("nodes", "relationships", "labels", "mutations"):
        assert found[0][name] == found[1][name], name
    async with contextlib.aclosing(Neo4jStore(neo4j_server.uri)) as other:
        assert not await other.whole.graph_id("shop")
    async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
        await store.whole.drop("shop")
        done = await app.run("diff", "--app", "shop", "--rules", rules, "--into", app.url, graph=neo4j_server.uri)
        assert done.code == 0, done.err
        assert not await store.whole.graph_id("shop")


@pytest.mark.soak
async def test_history_on_kafka_is_compared(url: str, call: Call, tmp_path: Path, kafka: KafkaServer) -> None:
    await empty_kafka(kafka)
    async with contextlib.aclosing(App(url, call, tmp_path, bus_url=kafka.url)) as app:
        await app.bus.partitions.count()
        await app.live()
        found = await diff(app, LAST.replace("o.by", "o.who"))
        assert {each["property"] for each in found["properties"]} == {"by", "who"}
        assert found["nodes"]["changed"] == 11
