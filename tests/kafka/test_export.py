"""``graphweft export`` and ``restore``: an app moves to another deployment, with proof, and lives on there."""

from __future__ import annotations

import contextlib
import json
import tarfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.chaos.serial import Neo4jReference
from tests.edges.test_cli import Call, call
from tests.kafka.test_archive import Archived
from tests.kafka.test_erase import everywhere, said
from tests.redis.test_rebuild import RULES, keys_or_none
from tests.services.fixtures import empty_kafka
from tests.services.kafka import KafkaServer
from tests.services.layouts import spread
from tests.services.neo4j import Neo4jServer

from graphweft.transport import Outgoing
from graphweft.transports.registry import make_transport
from graphweft_contracts import BusUnavailable, Event, wire
from graphweft_contracts.rules_log import Activation, StoredRules, digest_of
from graphweft_rules import RuleSet
from graphweft_workers.archive.archive_bus import archive_bus
from graphweft_workers.archive.export_file import ExportWriter, History, UnpackedExport
from graphweft_workers.archive.state import activation_name, rules_name
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.replay.graphs_lease import GraphsLease
from graphweft_workers.replay.restore import Restore, RestoreResult

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

PARTITION = spread(2).partition_of
NEAR = next(f"near{n}" for n in range(99) if PARTITION(f"near{n}/c1") == PARTITION("shop/c1"))
"""An app in the partition of ``shop``."""
ASIDE = next(f"c{n}" for n in range(3, 999) if PARTITION(f"shop/c{n}") != PARTITION("shop/c1"))
"""A chat of ``shop`` in the other partition."""


class Deployment(Archived):
    """A bus, a graph server and an archive of its own."""

    def __init__(self, url: str, call: Call, folder: Path, *, bus_url: str, graph_url: str) -> None:
        folder.mkdir()
        super().__init__(url, call, folder, bus_url=bus_url)
        self.graph_url = graph_url
        self.settings |= {"GRAPHWEFT_GRAPH_TEMPLATE": "restored_{app_id}"} if graph_url == url else {}

    def store(self) -> GraphStore:
        if self.graph_url == self.url:
            return FalkorDBStore(self.url, graph_template="restored_{app_id}")
        return Neo4jStore(self.graph_url)

    async def run(self, *arguments: str, graph: str | None = None) -> Any:
        return await super().run(*arguments, graph=graph or self.graph_url)


@pytest.fixture
async def app(url: str, call: Call, tmp_path: Path, *, with_keys: bool) -> AsyncIterator[Archived]:
    async with contextlib.aclosing(Archived(url, call, tmp_path, bus_url=None, with_keys=with_keys)) as app:
        await app.bus.partitions.count()
        yield app


async def live(app: Archived) -> str:
    """Fill two apps and one in the partition of the first, drop dead letters, archive and trim, and go on."""
    await app.emit(NEAR, range(30))
    await app._append(
        Event.create(
            "order.placed", app_id="shop", chat_id=ASIDE, workflow="Shop", id=f"aside{number}", source="/test",
            data={"order": f"aside{number}", "parts": number % 3, "customer": "aside"},
        )
        for number in range(12)
    )  # fmt: skip
    await app.live()
    letters = json.loads((await app.run("dlq", "list", "--json")).out.splitlines()[-1])
    for name in ("shop", "shop_x"):
        own = [each["id"] for each in letters if each.get("app_id") == name and each["reason"] == "query_error"]
        assert (await app.run("dlq", "drop", own[0])).code == 0
    assert (await app.run("archive", "now")).code == 0
    assert json.loads((await app.run("trim", "--json")).out)["removed"] > 60
    async with app.worker():
        for name in ("shop", "shop_x"):
            await app.emit(name, range(55, 70))
            await app.emit(NEAR, range(60))
            await app.remember(NEAR, ["keeps bees"])
        await app.applied()
    return await app.digest("shop")


async def exported(app: Archived, name: str = "shop") -> tuple[Path, dict[str, Any]]:
    file = app.folder / f"{name}.graphweft"
    done = await app.run("export", "--app", name, "--json", str(file))
    assert done.code == 0, done.err
    return file, json.loads(done.out.splitlines()[-1])


def unpacked(file: Path) -> bytes:
    """Return all bytes of an export, unpacked."""
    with tarfile.open(file) as tar:
        parts = [tar.extractfile(each).read() for each in tar.getmembers()]  # type: ignore[union-attr]
    found = b""
    for part in parts:
        packed = part.startswith(b"\x28\xb5\x2f\xfd")
        found += zstandard.ZstdDecompressor().stream_reader(part, read_across_frames=True).read() if packed else part
    return found


@pytest.mark.long("unsigned")
@keys_or_none
async def test_an_app_is_restored_under_another_name_and_lives_on(app: Archived) -> None:
    digest = await live(app)
    file, about = await exported(app)
    assert about["graph"]["sha256"] == digest
    assert about["histories"][0]["others"] > 60
    assert len(about["histories"][0]["ends"]) == 2
    held = unpacked(file)
    for secret in (b"shop_x", NEAR.encode(), b"keeps bees"):
        assert secret not in held
    assert b"likes tea" in held
    done = await app.run("restore", str(file), "--dry-run")
    assert (done.code, "a graph of 'shop' exists" in done.err or "holds events" in done.err) == (2, True), done
    assert (await app.run("restore", str(file), "--as", "again", "--dry-run")).code == 0
    assert await app.blobs().names("preludes/") == []
    done = await app.run("restore", str(file), "--as", "again", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["dead_letters"] > 0
    assert await app.digest("again") == await app.digest("shop") == digest
    assert (await app.run("restore", str(file), "--as", "again")).code == 2  # twice
    letters = len(await letters_of(app, "again"))
    assert (await app.run("restore", str(file), "--as", "other")).code == 0
    assert len(await letters_of(app, "again")) == len(await letters_of(app, "other")) == letters
    await lives_on(app, "again")
    file, about = await exported(app, "again")
    assert [each["app"] for each in about["histories"]] == ["shop", "again"]
    assert (await app.run("restore", str(file), "--as", "third")).code == 0
    pending = [
        sorted(each["message"] for each in await letters_of(app, name) for _ in range(each["count"]))
        for name in ("again", "third")
    ]
    assert pending[0] == pending[1]
    assert about["histories"][1]["pending"] == 1  # of the first history, and left for the last
    await lives_on(app, "third", retries=False)
    assert await app.digest("shop") == digest
    assert (await app.rebuild("--app", "shop_x", "--verify"))[1]["same"]


async def letters_of(app: Archived, name: str) -> list[dict[str, Any]]:
    letters: list[dict[str, Any]] = json.loads((await app.run("dlq", "list", "--json")).out.splitlines()[-1])
    return [each for each in letters if each.get("app_id") == name]


async def orders_without_share(app: Archived, name: str) -> int:
    query = "MATCH (o:Order) WHERE o.share IS NULL RETURN count(o) AS n"
    done = await app.run("query", "--app", name, "--json", query)
    return int(json.loads(done.out.splitlines()[-1])["rows"][0]["n"])


async def lives_on(
    app: Archived,
    name: str,
    store: Callable[[], GraphStore] | None = None,
    into: str | None = None,
    *,
    retries: bool = True,
) -> None:
    """Check that a restored app takes new events, retries and rules, and that a rebuild equals it."""
    before = await app.digest(name)
    second = ["--into", into, "--graph-template", "second_{app_id}"] if into else []
    code, found = await app.rebuild("--app", name, "--verify", *second)
    assert (code, found["same"]) == (0, True), found
    async with app.worker(store and store()):
        await app.emit(name, range(90, 110))
        await app.remember(name, ["moves to Oslo"])
        await app.applied()
        letters = await letters_of(app, name)
        fixed = app.folder / "fixed/Shop/graph_injection.yaml"
        fixed.parent.mkdir(parents=True, exist_ok=True)
        fixed.write_text(RULES.replace("/ $parts", "/ ($parts + 1)"))
        assert (await app.run("rules", "push", str(app.folder / "fixed"), "--app", name)).code == 0
        without = await orders_without_share(app, name)
        assert (await app.run("dlq", "drop", letters[0]["id"])).code == 0
        for letter in letters[2:]:
            assert (await app.run("dlq", "retry", letter["id"])).code == 0
        await app.applied()
    assert await app.digest(name) != before
    assert await orders_without_share(app, name) < without or not retries
    code, found = await app.rebuild("--app", name, "--verify", "--resume", *second)
    assert (code, found["same"]) == (0, True), found


@pytest.mark.long
@pytest.mark.soak("neo4j")
@pytest.mark.parametrize("way", [pytest.param("redis-kafka", id="redis-kafka-neo4j"), "kafka-redis"])
async def test_an_app_moves_to_another_bus_and_graph(
    way: str, url: str, call: Call, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kafka: KafkaServer = request.getfixturevalue("kafka")
    await empty_kafka(kafka)
    source_bus, target_bus, graph_url = kafka.url, url, url
    if way == "redis-kafka":
        neo4j: Neo4jServer = request.getfixturevalue("neo4j_server")
        async with contextlib.aclosing(Neo4jReference(neo4j.uri)) as reference:
            await reference.clear()
        source_bus, target_bus, graph_url = url, kafka.url, neo4j.uri
    async with (
        contextlib.aclosing(Archived(url, call, tmp_path, bus_url=source_bus)) as source,
        contextlib.aclosing(
            Deployment(url, call, tmp_path / "target", bus_url=target_bus, graph_url=graph_url)
        ) as target,
    ):
        await source.bus.partitions.count()
        await target.bus.partitions.count()
        digest = await live(source)
        file, about = await exported(source)
        async with target.worker(target.store()):
            done = await target.run("restore", str(file), "--json")
            assert done.code == 0, done.err
            assert await target.digest("shop") == digest == about["graph"]["sha256"]
            await target.applied()
        again = tmp_path / "again"
        assert (await target.run("export", "--app", "shop", "--wait-s", "5", str(again))).code == 0
        await lives_on(target, "shop", target.store, into=url if way == "redis-kafka" else None)
        assert await source.digest("shop") == digest


@pytest.mark.long("unsigned")
@keys_or_none
async def test_a_user_is_erased_from_a_restored_history_too(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        for user in ("ada", "bob"):
            for number in range(5):
                await said(app, "shop", user, number, f"words-of-{user}")
        await app.applied()
    file, _ = await exported(app)
    assert (await app.run("erase", "--app", "shop", "--yes")).code == 0  # then it can come back under its name
    assert (await app.run("restore", str(file))).code == 0
    async with app.worker():
        await said(app, "shop", "bob", 9, "words-of-bob")
        await app.applied()
        done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes", "--json")
        assert done.code == 0, done.err
        await app.applied()  # the last step of an erasure is an entry of the log
    places = {each["name"]: each for each in json.loads(done.out.splitlines()[-1])["places"]}
    assert places["restored history"]["found"] > 10
    assert await everywhere(app, "words-of-ada") == []
    assert any(place.startswith("preludes/shop/0001/segments") for place in await everywhere(app, "words-of-bob"))
    code, found = await app.rebuild("--app", "shop", "--verify")
    assert (code, found["same"]) == (0, True), found
    assert (await app.run("erase", "--app", "shop", "--yes")).code == 0
    assert await everywhere(app, "words-of-bob") == []


@pytest.mark.long
async def test_a_restore_that_is_cut_off_is_repeated(app: Archived, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = await live(app)
    file, _ = await exported(app)
    for step in ("run_graph", "_activate", "_put_letters"):
        with monkeypatch.context() as patch:

            async def cut(*_: object, **__: object) -> None:
                raise BusUnavailable("cut")

            async def killed(*_: object, **__: object) -> None:
                """Undo nothing, as after a kill."""

            patch.setattr(Restore, step, cut)
            patch.setattr(Restore, "_undo", killed)
            assert (await app.run("restore", str(file), "--as", "again")).code == 1
    assert (await app.run("restore", str(file), "--as", "again")).code == 0
    assert await app.digest("again") == digest
    await lives_on(app, "again")


@pytest.mark.long
async def test_events_that_arrive_during_a_restore_undo_it(app: Archived, monkeypatch: pytest.MonkeyPatch) -> None:
    await live(app)
    file, _ = await exported(app)
    run_graph = Restore.run_graph

    async def early(self: Restore) -> RestoreResult:
        async with contextlib.aclosing(Archived(app.url, app.call, app.folder, bus_url=None)) as here:  # in this loop
            await here.emit("again", range(3))
        return await run_graph(self)

    async with app.worker():
        with monkeypatch.context() as patch:
            patch.setattr(Restore, "run_graph", early)
            done = await app.run("restore", str(file), "--as", "again")
        assert (done.code, "arrived while it was restored" in done.err) == (2, True), done.err
        assert await app.blobs().names("preludes/") == []
        await app.applied()
        assert (await app.run("erase", "--app", "again", "--yes")).code == 0
        assert (await app.run("restore", str(file), "--as", "again")).code == 0
    await lives_on(app, "again")


async def test_a_graph_that_differs_is_removed(app: Archived, graph: FalkorDBStore) -> None:
    await live(app)
    redis = graph._redis  # pyright: ignore[reportPrivateUsage]
    await redis.execute_command("GRAPH.QUERY", "mozaiks_shop", "MATCH (o:Order {id: 'o3'}) SET o.by = 'me'")
    file, _ = await exported(app)
    done = await app.run("restore", str(file), "--as", "again")
    assert (done.code, "differs" in done.err) == (1, True), done.err
    assert "mozaiks_again" not in await redis.execute_command("GRAPH.LIST")
    assert await app.blobs().names("preludes/") == []


async def test_what_stands_in_the_way_is_said(app: Archived) -> None:
    await app.push("first")
    await app.emit("shop", range(5))
    file = app.folder / "file"
    done = await app.run("export", "--app", "shop", "--wait-s", "0", str(file))
    assert (done.code, "not at rest" in done.err, file.exists()) == (1, True, False), done.err
    async with app.worker():
        await app.applied()
    done = await app.run("export", "--app", "nobody", str(file))
    assert (done.code, "holds no event" in done.err, file.exists()) == (2, True, False), done.err
    assert (await app.run("export", "--app", "shop", str(file))).code == 0
    done = await app.run("export", "--app", "shop", str(file))
    assert (done.code, "it exists" in done.err) == (2, True)
    assert [each.name for each in app.folder.glob(".file*")] == []
    await app.emit("later", range(5))
    done = await app.run("restore", str(file), "--as", "later")
    assert (done.code, "holds events" in done.err) == (2, True)
    for more in ((), ("--into", app.url)):
        async with GraphsLease.of(app.bus, "again", "graphweft restore").held():
            done = await app.run("restore", str(file), "--as", "again", *more)
        said = "`graphweft restore` works on the graphs of 'again' since"
        assert (done.code, said in done.err) == (1, True), done.err
    assert await app.blobs().names("preludes/") == []
    done = await app.run("restore", str(app.folder / "none"))
    assert (done.code, "cannot read" in done.err) == (2, True)
    partition = (await app.bus.partitions.layout()).partitions_of("shop")[0]
    async with app.alone() as bus:
        await bus.partitions.trim(partition, (await bus.log.after(partition, "", limit=5))[-1].offset)
    done = await app.run("export", "--app", "shop", str(app.folder / "other"))
    assert (done.code, "lacks" in done.err) == (2, True), done.err


@pytest.mark.long
@keys_or_none
async def test_a_lost_graph_of_a_restored_app_comes_back_whole(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        await app.emit("shop", range(40))
        await app.applied()
        file, _ = await exported(app)
        assert (await app.run("restore", str(file), "--as", "again")).code == 0
        await app.emit("again", range(100, 104))
        await app.applied()
        digest = await app.digest("again")
        async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
            await store.whole.drop("again")
        code, found = await app.rebuild("--app", "again", "--swap")
        assert (code, found["swapped"], sum(each["events"] for each in found["partitions"])) == (0, True, 44), found
    assert await app.digest("again") == digest
    _, about = await exported(app, "again")
    assert [each["entries"] for each in about["histories"]] == [40, 4]


async def test_nothing_of_a_restored_app_is_erased_while_its_history_is_away(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        for user in ("ada", "bob"):
            await said(app, "shop", user, 1, f"words-of-{user}")
        await app.applied()
        file, _ = await exported(app)
        assert (await app.run("restore", str(file), "--as", "again")).code == 0
        for user in ("ada", "bob"):
            await said(app, "again", user, 2, f"new-words-of-{user}")
        await app.applied()
        before = await everywhere(app, "new-words-of-ada")
        history = app.folder / "archive/preludes"
        away = history.rename(app.folder / "away")
        done = await app.run("erase", "--app", "again", "--user", "ada", "--yes")
        assert (done.code, "is not in the archive" in done.err) == (2, True), done.err
        assert [each for each in await everywhere(app, "new-words-of-ada") if "segments" not in each] == before
        away.rename(history)
        assert (await app.run("erase", "--app", "again", "--user", "ada", "--yes")).code == 0
        await app.applied()
    left = await everywhere(app, "words-of-ada")
    assert not any("again" in place for place in left if not place.startswith("graph mozaiks_shop")), left
    assert await everywhere(app, "new-words-of-ada") == []


@pytest.mark.long
@keys_or_none
async def test_a_restored_app_is_swapped_and_asked_as_of_a_time(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        await app.emit("shop", range(40))
        await app.applied()
        await app.push("third")
        code, found = await app.rebuild("--app", "shop", "--rules", str(app.folder / "rules"), "--swap")
        assert (code, found["swapped"]) == (0, True), found
        await app.emit("shop", range(40, 50))
        await app.applied()
        file, _ = await exported(app)
        assert (await app.run("restore", str(file), "--as", "again")).code == 0
        digest = await app.digest("again")
        assert digest == await app.digest("shop")
        code, found = await app.rebuild("--app", "again", "--swap", "--verify")
        assert (code, found["swapped"], found["same"]) == (0, True, True), found
        await app.emit("again", range(60, 70))
        await app.applied()
    layout = await app.bus.partitions.layout()
    [number] = {layout.partition_of(f"again/c{each}") for each in range(3)}
    place = f"{number}:{(await app.bus.log.after(number, '', limit=10_000))[-10].offset}"
    query = "MATCH (o:Order) RETURN sum(o.times) AS n"
    now = json.loads((await app.run("query", "--app", "again", "--json", query)).out)["rows"][0]["n"]
    done = await app.run("query", "--app", "again", "--json", "--as-of", place, query)
    assert done.code == 0, done.err
    assert json.loads(done.out)["rows"][0]["n"] == now - 9
    done = await app.run("query", "--app", "again", "--as-of", "2026-01-01T00:00:00Z", query)
    assert (done.code, "was restored at" in done.err) == (2, True), done.err
    assert (await app.run("archive", "now")).code == 0
    code, found = await app.rebuild("--app", "again", "--verify", "--archive-only", "--graph-template", "x_{app_id}")
    assert (code, found["same"]) == (0, True), found
    for words in (["why", "--label", "Order", "--key", "o3"], ["diff", "--rules", str(app.folder / "rules")]):
        done = await app.run(*words, "--app", "again")
        assert (done.code, "was restored from an export" in done.err) == (2, True), done.err
    done = await app.run("rebuild", "--app", "again", "--rules", str(app.folder / "rules"))
    assert (done.code, "cannot be restated" in done.err) == (2, True), done.err
    app.settings.pop("GRAPHWEFT_ARCHIVE_URL")
    done = await app.run("rebuild", "--app", "again", "--graph-template", "y_{app_id}")
    assert (done.code, "is not in the archive" in done.err) == (2, True), done.err


@pytest.mark.parametrize("with_keys", [True], ids=["keys"], indirect=True)
async def test_what_a_neighbour_forges_hinders_no_restore(app: Archived) -> None:
    """Drops and retries that workers refuse are no part of the app's history, where nobody could refuse them."""
    await app.push("first")
    async with app.worker():
        await app.emit("shop", range(20))
        await app.applied()
        number = PARTITION("shop/c1")
        first, second = [entry for entry in (await app.everything())[number] if wire.DATA in entry.fields][:2]
        row = wire.Retry(f"{number}:{second.offset}:placed:order", "placed", "order")
        forged = (
            {wire.DROPPED: wire.DroppedLetter("shop", None, None, (first.offset,), "set_aside").encode()},
            {**second.fields, wire.RETRY: row.encode()},
        )
        async with contextlib.aclosing(make_transport(app.bus_url, new=spread(2))) as unsigned:
            await unsigned.append([Outgoing(key="shop/c1", fields=fields) for fields in forged])
        await app.applied()
    digest = await app.digest("shop")
    file, about = await exported(app)
    assert about["graph"]["sha256"] == digest
    done = await app.run("restore", str(file), "--as", "again")
    assert done.code == 0, done.err
    assert await app.digest("again") == digest


def changed(file: Path, change: Callable[[dict[str, bytes], dict[str, Any]], None]) -> Path:
    """Write an export whose members, by name, and whose history ``change`` has changed."""
    folder = file.with_suffix(".folder")
    folder.mkdir()
    with file.open("rb") as given:
        export = UnpackedExport.unpack(given, folder)
    members = {each.name: (export.folder / each.name).read_bytes() for each in export.manifest.members}
    [history] = export.manifest.model_dump()["histories"]
    change(members, history)
    with (made := file.with_suffix(".changed")).open("wb") as target:
        writer = ExportWriter(target, export.manifest.app)
        for name, data in members.items():
            writer.add(name, data)
        updated = {"members": writer.members, "histories": [History(**history)]}
        writer.finish(export.manifest.model_copy(update=updated))
    return made


def with_rules(files: dict[str, bytes]) -> Callable[[dict[str, bytes], dict[str, Any]], None]:
    """Forge the summary of each rule set, and have a further set with these files active from the end."""

    def change(members: dict[str, bytes], history: dict[str, Any]) -> None:
        for name, data in members.items():
            if "/rules/sets/" in name:
                stored = json.loads(data)
                empty = {
                    field: [] for field, value in stored["summary"]["mutations"].items() if isinstance(value, list)
                }
                stored["summary"]["mutations"] |= empty
                stored["summary"]["keys"] = [["Order", f"zz{number}"] for number in range(1_000)]
                members[name] = json.dumps(stored).encode()
        number = history["activations"] + 1
        [partition] = history["ends"]
        activation = Activation(
            number=number, scope=history["app"], digest=digest_of(files), time=datetime(2026, 1, 1, tzinfo=UTC),
            positions={partition: "9999999999999-0"},
        )  # fmt: skip
        members[f"0001/{activation_name(number)}"] = activation.encode()
        members[f"0001/{rules_name(digest_of(files))}"] = StoredRules(files=files, summary={"forged": 1}).encode()
        history.update(activations=number, rules=history["rules"] + 1)

    return change


GOOD = b"""version: "1.0"
mutation_rules:
  - name: more
    events: ["order.placed"]
    condition: "true"
    mutations:
      - id: more
        cypher: "MERGE (m:More {id: $id})"
        params: {id: $event.order}
"""


@pytest.mark.parametrize("with_keys", [False], ids=["no keys"], indirect=True)
async def test_a_restore_changes_no_rule_set_that_others_use(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        await app.emit("shop", range(20))
        await app.applied()
    file, _ = await exported(app)
    known = {each.digest: await app.bus.rules.stored(each.digest) for each in await app.bus.rules.activations()}
    assert len(known) == 1
    files = {"More/graph_injection.yaml": GOOD}
    done = await app.run("restore", str(changed(file, with_rules(files))), "--as", "copied")
    assert done.code == 0, done.err
    activations = await app.bus.rules.activations()
    assert [each.digest for each in activations if each.scope == "copied"] == [*known, digest_of(files)]
    for digest, stored in known.items():
        assert await app.bus.rules.stored(digest) == stored
    added = await app.bus.rules.stored(digest_of(files))
    assert added is not None
    assert added.summary == RuleSet.of_files(files).summary.to_json()
    prelude = archive_bus(app.blobs().below("preludes/copied/0001"))
    for digest in (*known, digest_of(files)):
        found = await prelude.rules.stored(digest)
        assert found is not None
        assert found.summary is None


@pytest.mark.parametrize("with_keys", [False], ids=["no keys"], indirect=True)
async def test_an_export_with_a_rule_that_cannot_be_used_writes_nothing(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        await app.emit("shop", range(3))
        await app.applied()
    file, _ = await exported(app)
    before = await app.bus.rules.activations()
    for number, text in enumerate(
        (
            b"version: [", b"mutation_rules: 5", b"extends: ../missing.yaml", b"\xff", b"[],[]",
            GOOD.replace(b"MERGE", b"MERG"), GOOD.replace(b'"order.placed"', b"5"), GOOD.replace(b'"true"', b"'1 +'"),
            GOOD.replace(b"MERGE", b"LOAD CSV FROM 'file:///etc/passwd' AS row MERGE"),
        )
    ):  # fmt: skip
        copy = app.folder / f"{number}.graphweft"
        copy.write_bytes(file.read_bytes())
        bad = changed(copy, with_rules({"Unused/graph_injection.yaml": text, "More/graph_injection.yaml": GOOD}))
        for more in ((), ("--dry-run",), ("--into", app.url)):
            done = await app.run("restore", str(bad), "--as", "copied", *more)
            assert (done.code, "the workflow 'Unused'" in done.err) == (2, True), (text, done.err)
    assert await app.bus.rules.activations() == before
    assert not await app.blobs().names("preludes")
    async with contextlib.aclosing(FalkorDBStore(app.url)) as graph:
        assert not await graph.checkpoints("copied", timeout_s=10)
