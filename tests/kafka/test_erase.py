"""``graphweft erase``: a user, or an app, is gone from every place, and a replay does not bring it back."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import neo4j
import pytest
import zstandard
from tests.edges.test_cli import Call, call, clean_environment
from tests.kafka.test_archive import Archived
from tests.kafka.test_rules_log import lose
from tests.redis.test_answering import warm
from tests.redis.test_rebuild import RULES, keys_or_none
from tests.services.rules import load_rules, rules_folder
from tests.services.waiting import until

from graphweft.transport import Outgoing
from graphweft_contracts import Event, Fenced, channels, wire
from graphweft_contracts.memory import memory_id
from graphweft_workers.archive.archiver import Archiver
from graphweft_workers.archive.blob_records import BlobRecords
from graphweft_workers.archive.erasures import begin_erasure, end_erasure
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.engine.log.read import letter_for
from graphweft_workers.engine.plan.graph_marks import sealed
from graphweft_workers.engine.usage.job_account import JobAccount
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.ports.event_log import CommittedPosition, Entry
from graphweft_workers.ports.graph_store import Checkpoint, Write
from graphweft_workers.ports.position_note import ParkedApp, PositionNote
from graphweft_workers.replay import erase as erasing
from graphweft_workers.replay.graphs_lease import GraphsLease
from graphweft_workers.replay.remains import PlaceOfRemains
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import ReplayTiming, Timing
from graphweft_workers.wiring.job_states import job_states

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SECRET = "zebra-secret"
redis_only = pytest.mark.parametrize("own_bus_url", ["redis"], indirect=True)
"""For what a bus has no part in."""
both_graphs = pytest.mark.parametrize("own_graph_url", ["falkordb", "neo4j"], indirect=True)
all_servers_with_keys = pytest.mark.parametrize(
    ("own_bus_url", "own_graph_url", "with_keys"),
    [("redis", "falkordb", False), ("kafka", "falkordb", True), ("redis", "neo4j", True), ("kafka", "neo4j", False)],
    indirect=True,
)
"""Both buses with both graphs, half of them with keys."""


@pytest.fixture
async def app(
    own_bus_url: str | None, own_graph_url: str | None, url: str, call: Call, tmp_path: Path, *, with_keys: bool
) -> AsyncIterator[Archived]:
    made = Archived(url, call, tmp_path, bus_url=own_bus_url, graph_url=own_graph_url, with_keys=with_keys)
    async with contextlib.aclosing(made) as app:
        await app.bus.partitions.count()
        yield app


async def said(app: Archived, name: str, user: str, number: int, text: str, **more: Any) -> None:
    """Publish events of one user: orders that succeed and fail, memories, and an event of the chat without a user."""
    event = {"app_id": name, "chat_id": f"chat-{user}", "workflow": "Shop", "source": "/said"}
    await app._append(
        [
            Event.create("order.placed", **event, id=f"{user}-{number}", user_id=user,
                         data={"order": f"{user}-{text}-{number}", "customer": user, "parts": number % 2}, **more),
            Event.create("order.placed", **event, id=f"{user}-{number}-anonymous",
                         data={"order": f"{text}-{number}-anonymous", "parts": 1}),
            Event.create("memory.add", **event, id=f"{user}-{number}-memory",
                         data={"messages": [{"role": "user", "text": text}], "user_id": user}),
        ]
    )  # fmt: skip


async def everywhere(app: Archived, text: str) -> list[str]:
    """Return the places that hold a text: each file of the archive, the bus, the dead letters, and all graphs."""
    found: list[str] = []
    for name in await app.blobs().names(""):
        data = await app.blobs().get(name) or b""
        if name.endswith(".zst"):
            data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        if name.startswith("letters/"):
            bodies = [json.loads(line)["fields"].values() for line in data.splitlines()]
            data = b"".join(base64.b64decode(value) for values in bodies for value in values)
        if text.encode() in data:
            found.append(name)
    found += [f"bus {e.offset}" for part in await app.everything() for e in part if text in str(e.fields)]
    async with app.alone() as bus:
        letters = await bus.dead_letters.read(limit=10_000)
    for letter in letters:
        if any(text.encode() in base64.b64decode(value) for value in letter.fields.values()):
            found.append(f"letter {letter.id}")
    if app.url.startswith("bolt"):
        async with neo4j.AsyncGraphDatabase.driver(app.url) as driver:
            rows = (await driver.execute_query("MATCH (n) OPTIONAL MATCH (n)-[r]-() RETURN n, r")).records
        return [*found, *(f"graph {row}" for row in rows if text in str(row))]
    async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
        for graph in await store._redis.execute_command("GRAPH.LIST"):
            rows = await store._redis.execute_command("GRAPH.RO_QUERY", graph, "MATCH (n) RETURN n")
            if text in str(rows[1]):
                found.append(f"graph {graph}")
    return found


@pytest.mark.long(keep=("redis-falkordb",))
@all_servers_with_keys
async def test_an_erased_user_is_gone_everywhere_and_stays_away(app: Archived) -> None:
    neighbours = app.apps[1:]
    await app.push("first")
    async with app.worker():
        for number in range(6):
            for name in app.apps:
                await said(app, name, "ada", number, SECRET)
                await said(app, name, "bob", number, "bobs-words")
        await app.applied()
        assert json.loads((await app.run("dlq", "list", "--json")).out)
        assert (await app.run("archive", "now")).code == 0
        assert (await app.run("dlq", "retry", "--all")).code == 0
        await app.applied()
        untouched = {name: await app.digest(name) for name in neighbours}
        before = await everywhere(app, SECRET)
        assert {place.split()[0].split("/")[0] for place in before} >= {"segments", "bus", "letter", "graph", "letters"}
        done = await app.run("erase", "--app", "shop", "--user", "ada", "--json", "--yes")
        assert done.code == 0, done.err + done.out
        places = {each["name"]: each for each in json.loads(done.out.splitlines()[-1])["places"]}
        assert all(each["left"] == 0 for each in places.values()), places
        assert places["event log"]["found"] > 10
        assert places["archive"]["found"] > 10
        assert places["dead letters"]["found"] > 0
        assert places["graph"]["found"] > 5
    assert neighbours or await everywhere(app, SECRET) == []
    assert (await app.run("erase", "--app", "shop", "--user", "ada", "--verify")).code == 0
    for name in neighbours:
        await app.run("erase", "--app", name, "--user", "ada", "--json", "--yes", "--report")
    assert {name: await app.digest(name) for name in neighbours} == untouched
    rows = await app.read("shop", "MATCH (o:Order) RETURN o.id")
    assert {row[0].split("-")[0] for row in rows} == {"bob", "bobs"}
    assert {row[0] for row in await app.read("shop", "MATCH (m:Memory) RETURN m.user_id")} == {"bob"}
    code, found = await app.rebuild("--app", "shop", "--verify")
    assert (code, found["same"]) == (0, True), found
    async with app.worker():
        for name in neighbours:
            done = await app.run("erase", "--app", name, "--yes", "--json")
            assert done.code == 0, done.err + done.out
        await app.applied()
    assert [place for place in await everywhere(app, SECRET) if not place.startswith("graph mozaiks_shop.")] == []
    assert await everywhere(app, "bobs-words")  # of the other app, or of the other user
    done = await app.run("archive", "verify", "--json")
    assert json.loads(done.out)["faults"] == []
    async with app.worker():
        await app.applied()
        await said(app, "shop", "ada", 7, "again")  # she is back
        await app.applied()
    code, found = await app.rebuild("--app", "shop", "--verify", "--resume")
    assert (code, found["same"]) == (0, True), found


@redis_only
async def test_an_erasure_names_what_the_log_does_not_make(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        await said(app, "shop", "ada", 1, SECRET)
        await app.applied()
        assert (await app.run("archive", "now")).code == 0
        async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
            for text in ("CREATE (:Person {name: 'x'})", "CREATE INDEX FOR (n:Person) ON (n.name)"):
                await store._redis.execute_command("GRAPH.QUERY", "mozaiks_shop", text)
        done = await app.run("erase", "--app", "shop", "--user", "ada", "--json", "--yes")
        assert done.code == 0, done.err + done.out
    places = {each["name"]: each for each in json.loads(done.out.splitlines()[-1])["places"]}
    assert places["graph"]["note"] == (
        "the graph was made again from the log, without what the log does not make: range index on Person.name; "
        "1 with the label Person"
    )


@redis_only
async def test_a_lost_rule_set_of_a_neighbour_stops_no_erasure_and_no_rollback(app: Archived) -> None:
    await app.push("first")
    own = await app.run("rules", "push", str(app.folder / "rules"), "--app", "shop")
    await app.push("second")
    assert own.code == 0
    async with app.worker():
        for name in ("shop", "shop_x"):
            await said(app, name, "ada", 0, SECRET)
            await said(app, name, "bob", 0, "bobs-words")
        await app.applied()
        neighbour = await app.digest("shop_x")
        await lose(app.url, (await app.bus.rules.activations())[-1].digest)
        for command in (("rebuild", "--swap"), ("rollback",)):
            done = await app.run(*command, "--app", "shop")
            assert done.code == 0, done.err
        assert (await app.run("rebuild", "--app", "shop", "--drop")).code == 0
        done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes")
        assert done.code == 0, done.err + done.out
    rows = await app.read("shop", "MATCH (o:Order) RETURN o.id")
    assert {row[0].split("-")[0] for row in rows} == {"bob", "bobs"}
    assert await app.digest("shop_x") == neighbour


@redis_only
async def test_a_user_stays_whole_while_the_rules_of_what_stays_are_lost(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        await said(app, "shop", "ada", 0, SECRET)
        await app.applied()
        lost = (await app.bus.rules.activations())[-1].digest
        await app.push("second")
        await said(app, "shop", "bob", 0, "bobs-words")
        await app.applied()
        await lose(app.url, lost)
        before = await app.digest("shop")
        refused = await app.run("erase", "--app", "shop", "--user", "bob", "--yes")
        assert (refused.code, await app.digest("shop")) == (1, before), refused.err
        assert f"lost the rule set {lost[:12]}" in refused.err
        assert {place.split()[0] for place in await everywhere(app, "bobs-words")} >= {"bus", "letter", "graph"}
        # Hers is the only event that needs the lost rules.
        done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes")
        assert done.code == 0, done.err + done.out


@pytest.mark.long("neo4j")
@pytest.mark.soak("kafka")
@both_graphs
async def test_an_erasure_that_is_cut_off_goes_on(app: Archived, monkeypatch: pytest.MonkeyPatch) -> None:

    await app.push("first")
    async with app.worker():
        for number in range(3):
            await said(app, "shop", "ada", number, SECRET)
            await said(app, "shop", "bob", number, "bobs-words")
        await app.applied()
        for step in ("_off_the_bus", "_erase_letters", "_erase_from_graph", "_announce"):
            with monkeypatch.context() as patch:

                async def cut(*_: object, **__: object) -> None:
                    raise erasing.BusUnavailable("cut")

                patch.setattr(erasing.Erasure, step, cut)
                assert (await app.run("erase", "--app", "shop", "--user", "ada", "--yes")).code == 1
        assert (await app.run("erase", "--app", "shop", "--user", "ada", "--yes")).code == 0
    assert await everywhere(app, SECRET) == []
    assert await everywhere(app, "bobs-words")


@pytest.mark.soak("kafka")
async def test_an_archiver_beside_it_brings_nothing_back(app: Archived) -> None:
    await app.push("first")
    async with app.alone("graphweft-archive") as bus, app.worker():
        archiver = Archiver(bus, app.blobs(), name="a", every_s=1.0, lease_s=2.0)
        running = asyncio.create_task(archiver.run())
        for number in range(3):
            await said(app, "shop", "ada", number, SECRET)
        await app.applied()
        assert (await app.run("erase", "--app", "shop", "--user", "ada", "--yes")).code == 0
        await said(app, "shop", "bob", 9, "bobs-later-words")

        async def archived() -> list[str]:
            return [place for place in await everywhere(app, "bobs-later-words") if place.startswith("segments/")]

        await until(archived, why="the archiver goes on after the erasure")
        archiver.stop()
        await running
    assert await everywhere(app, SECRET) == []


@pytest.mark.soak("kafka", "neo4j")
@both_graphs
async def test_what_breaks_the_contract_is_erased_too_and_others_stay_forgotten(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        await said(app, "shop", "ada", 1, "hello")
        await said(app, "shop", "bob", 1, "bobs-words")
        await said(app, "shop", "bob", 2, "bobs-forgotten")
        ids = [memory_id("/said", f"{user}-{number}-memory", 0) for user, number in (("ada", 1), ("bob", 2))]
        broken = {"specversion": "1.0", "id": "x", "source": "/said", "type": "memory.add", "appid": "shop"}
        broken |= {"chatid": "chat-ada", "userid": "ada", "data": {"messages": [{"text": SECRET, "what": 1}]}}
        fields = {b"content-type": b"application/cloudevents+json", b"data": json.dumps(broken).encode()}
        forget = Event.create("memory.forget", app_id="shop", chat_id="chat-bob", id="f", data={"memory_ids": ids})
        await app._append([forget])
        cut = {**fields, b"data": fields[b"data"][:-2]}
        await app.transport.append([Outgoing(key="shop/chat-ada", fields=each) for each in (fields, cut)])
        await app.applied()
        assert (await app.run("erase", "--app", "shop", "--user", "ada", "--yes")).code == 0
    assert await everywhere(app, SECRET) == []
    rows = await app.read("shop", "MATCH (m:Memory) RETURN m.text")
    assert rows == (("bobs-words",),)


@pytest.mark.soak("kafka")
async def test_a_log_with_a_gap_is_refused_before_anything_is_erased(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        await said(app, "shop", "ada", 1, SECRET)
        await app.applied()
    async with app.alone() as bus:
        for status in await bus.partitions.status():
            if status.end:
                await bus.partitions.trim(status.id, status.end)
    done = await app.run("archive", "now", "--json")
    assert done.code == 1
    assert json.loads(done.out)["lost"] > 3
    async with app.worker():
        await said(app, "shop", "ada", 2, SECRET)
        await app.applied()
        done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes")
        assert (done.code, "nothing was erased" in done.err) == (2, True)
        assert await everywhere(app, SECRET)
        assert (await app.run("erase", "--app", "shop", "--yes")).code == 0
    assert await everywhere(app, SECRET) == []


@pytest.mark.soak("kafka")
async def test_what_it_needs_is_said(app: Archived) -> None:
    await app.push("first")
    await said(app, "shop", "ada", 1, SECRET)
    done = await app.run("erase", "--app", "shop", "--user", "ada")
    assert (done.code, "--yes" in done.err) == (2, True)
    done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes", "--wait-s", "0")
    assert (done.code, "have not applied" in done.err) == (1, True)
    done = await app.run("erase", "--app", "shop", "--user", "", "--yes")
    assert done.code == 2
    assert await everywhere(app, SECRET)
    done = await app.run("erase", "--app", "shop", "--user", "ada", "--report", "--json")
    places = {each["name"]: each["found"] for each in json.loads(done.out)["places"]}
    assert places["event log"] == 3


@redis_only
async def test_what_jobs_left_out_of_an_app_goes_with_it(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        await said(app, "shop", "ada", 1, SECRET)
        await app.applied()
        account = JobAccount(app.bus.usage, "memory", name="w", logger=get_logger("graphweft.memory"))
        await account.begin()
        await account.skips(Counter({("shop", "text_refused"): 2, ("shop_x", "text_refused"): 1}))
        done = await app.run("erase", "--app", "shop", "--verify", "--json")
        assert {each["name"]: each["left"] for each in json.loads(done.out)["places"]}["what jobs left out"] == 2
        assert (await app.run("erase", "--app", "shop", "--yes")).code == 0
        assert (await app.run("erase", "--app", "shop", "--verify")).code == 0
        await account.skips(Counter({("shop_x", "text_refused"): 1}))  # a worker that has run on
        [job] = [each for each in await job_states(Settings(), app.bus) if each.skips]
        assert [(each.app_id, each.count) for each in job.skips] == [("shop_x", 2)]


@pytest.mark.soak("kafka")
async def test_what_remains_is_listed_and_in_the_exit_code(app: Archived) -> None:
    await app.push("first")

    async def remains(*command: str) -> tuple[int, dict[str, int]]:
        done = await app.run(*command, "--app", "shop", "--user", "ada", "--verify", "--json")
        places = json.loads(done.out)["places"]
        assert all(bool(each["removed_by"]) == (each["left"] > 0) for each in places)
        return done.code, {each["name"]: each["left"] for each in places}

    async with app.worker():
        await said(app, "shop", "ada", 1, SECRET)
        await said(app, "shop_x", "ada", 1, SECRET)
        await app.applied()
        assert (await app.run("archive", "now")).code == 0
        code, left = await remains("memory", "erase")
        assert (code, left["graph"] > 1, left["event log"], left["archive"]) == (1, True, 3, 3)
        assert left["dead letters"] > 0
        assert (await app.run("memory", "erase", "--app", "shop", "--user", "ada", "--yes", "--wait")).code == 0
        assert (await app.run("archive", "now")).code == 0
        before, left = left["graph"], (await remains("memory", "erase"))[1]
        assert (left["graph"], left["event log"], left["responder caches"]) == (before - 2, 4, 0)  # an order of a rule
        assert left["responder indexes"] == 0
        assert (await app.run("erase", "--app", "shop", "--user", "ada", "--yes")).code == 0
        code, left = await remains("memory", "erase")
        assert (code, set(left.values())) == (0, {0}), left
        assert (await remains("erase"))[0] == 0
        done = await app.run("erase", "--app", "shop", "--user", "ada", "--verify")
        assert (done.code, "nothing remains" in done.out) == (0, True)
        done = await app.run("memory", "erase", "--app", "shop_x", "--user", "ada", "--verify")
        assert (done.code, "graphweft erase" in done.out) == (1, True)


@pytest.mark.long("neo4j", "unsigned")
@pytest.mark.soak("neo4j-keys")
@redis_only
@keys_or_none
@both_graphs
async def test_a_graph_from_before_an_erasure_does_not_come_back(app: Archived) -> None:
    await app.push("first")
    other = ("--graph-template", "{app_id}.other", "--app", "shop")
    kept = ("--graph-template", "{app_id}.kept", "--app", "shop")
    async with app.worker():
        await said(app, "shop", "ada", 1, SECRET)
        await said(app, "shop", "bob", 1, "bobs-words")
        await app.applied()
        assert (await app.run("archive", "now")).code == 0
        assert (await app.rebuild(*other))[0] == 0
        assert (await app.rebuild(*kept, "--swap"))[0] == 0
        assert (await app.run("erase", "--app", "shop", "--user", "ada", "--yes")).code == 0
        done = await app.run("rebuild", *other, "--resume", "--swap")
        assert (done.code, "before something was erased" in done.err) == (2, True), done.err
        done = await app.run("rollback", *kept)
        assert (done.code, "before something was erased" in done.err) == (2, True), done.err
        for place in (other, kept):
            assert (await app.run("rebuild", *place, "--drop")).code == 0
        assert await everywhere(app, SECRET) == []
        assert (await app.rebuild(*other, "--swap"))[0] == 0  # one from after it may
        assert (await app.run("rollback", *other)).code == 0
        assert (await app.run("erase", "--app", "shop", "--yes")).code == 0
        await said(app, "shop", "eve", 2, "eves-words")  # a graph that no rebuild has made
        await app.applied()
        assert (await app.rebuild(*kept, "--swap"))[0] == 0
        assert (await app.run("rollback", *kept)).code == 0


async def seal(app: Archived, name: str, *, lifted: Mapping[int, Checkpoint] | None = None) -> Mapping[int, Checkpoint]:
    """Stop the writes to an app's graph, as a swap does, so that its workers park it; or let them go on."""
    async with contextlib.aclosing(app.store()) as store:
        while True:
            marks = await store.checkpoints(name, timeout_s=120)
            with contextlib.suppress(Fenced):
                for number, mark in marks.items():
                    after = sealed(mark, "test") if lifted is None else lifted[number]
                    await store.apply(name, number, [Write(before=mark, after=after)])
                return marks


async def parked(app: Archived) -> set[str]:
    return {name for each in await app.bus.partitions.status() for name in PositionNote.decode(each.note).parked}


@pytest.mark.soak("kafka")
async def test_a_parked_neighbour_holds_neither_erase_nor_trim(app: Archived) -> None:
    async def parked() -> set[str]:
        return {name for each in await app.bus.partitions.status() for name in PositionNote.decode(each.note).parked}

    await app.push("first")
    async with app.worker():
        await said(app, "shop", "ada", 1, SECRET)
        await said(app, "shop_x", "eve", 1, "eves-words")
        await app.applied()
        marks = await seal(app, "shop_x")
        await said(app, "shop_x", "eve", 2, "eves-parked-words")
        await said(app, "shop", "ada", 2, SECRET)
        await until(parked, lambda apps: "shop_x" in apps, why="the neighbour is parked")
        done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes", "--json")
        assert done.code == 0, done.err + done.out
        assert [place for place in await everywhere(app, SECRET) if place.startswith("bus")] == []
        await seal(app, "shop_x", lifted=marks)
        await until(parked, lambda apps: not apps, why="no app is parked")
        await app.applied()
    rows = await app.read("shop_x", "MATCH (m:Memory) RETURN m.text ORDER BY m.text")
    assert rows == (("eves-parked-words",), ("eves-words",))


@redis_only
async def test_a_neighbour_that_waits_in_a_job_holds_neither_erase_nor_trim(app: Archived) -> None:
    await app.push("first")
    await said(app, "shop_x", "eve", 1, "eves-words")
    await said(app, "shop", "ada", 1, SECRET)
    async with app.worker(), app.alone(channels.MEMORY_GROUP) as job:
        await app.applied()
        for status in await job.partitions.status():
            if entries := await job.log.after(status.id, "", limit=1):
                note = PositionNote(parked={"shop_x": ParkedApp(at=entries[0].offset, why="waits")}, done=status.end)
                place = CommittedPosition(offset=entries[0].offset, count=1, note=note.encode())
                await job.partitions.committed(status.id)
                await job.partitions.commit(status.id, place)
        done = await app.run("erase", "--app", "shop", "--yes")
        assert done.code == 0, done.err + done.out
        assert await everywhere(app, SECRET) == []
        assert (await app.run("trim")).code == 0
    assert await app.everything() == [[], []]


TEXTS = """
version: "1.0"
injection_rules:
  - name: said
    agents: [Counter]
    queries: [{id: said, cypher: "MATCH (n:Memory) RETURN n.text AS text", inject_as: said}]
"""


@redis_only
async def test_responders_drop_their_rows_of_the_app_and_of_no_other(app: Archived) -> None:
    """They would serve them while the graph is away."""
    await app.push("first")
    rules = load_rules(rules_folder(app.folder / "asked", TEXTS, "Shop"))
    async with (
        app.worker(),
        app.alone() as bus,
        contextlib.aclosing(app.store()) as graph,
        contextlib.aclosing(ContextPipeline(rules, graph, bus=bus)) as responder,
    ):
        assert responder.purges is not None
        await responder.purges.follow()
        for name in ("shop", "shop_x"):
            await said(app, name, "ada", 0, SECRET)
        await app.applied()
        for name in ("shop", "shop_x"):
            assert SECRET in str((await warm(responder, app_id=name)).blocks)
        done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes")
        assert done.code == 0, done.err + done.out
        await responder.purges.follow()
        assert {app_id for app_id, _ in responder.cache._entries} == {"shop_x"}


@pytest.mark.long("neo4j")
@pytest.mark.soak("unsigned")
@redis_only
@keys_or_none
@both_graphs
async def test_an_erasure_that_is_killed_is_found_and_goes_on(app: Archived, monkeypatch: pytest.MonkeyPatch) -> None:
    app.timing = Timing(seal_s=0.5, replay=ReplayTiming(lease_s=2.0))
    monkeypatch.setattr(erasing, "Erasure", partial(erasing.Erasure, timing=app.timing))
    await app.push("first")
    environment = clean_environment(GRAPHWEFT_BUS_URL=app.bus_url, GRAPHWEFT_GRAPH_URL=app.url, **app.settings)
    command = ("-m", "graphweft_workers.cli", "erase", "--app", "shop", "--user", "ada", "--yes")
    async with app.worker():
        for step in (b"erase entries", b"erase dead letters", b"make the graph"):
            await said(app, "shop", "ada", ord(step[6:7]), SECRET)
            await said(app, "shop", "bob", ord(step[6:7]), "bobs-words")
            await app.applied()
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, env=environment,
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert process.stderr is not None
            async for line in process.stderr:
                if step in line:
                    process.kill()
                    break
            await process.communicate()
            assert process.returncode == -signal.SIGKILL
            await app.forget_killed()
            done = await app.run("erase", "--app", "shop", "--user", "ada", "--verify", "--json")
            left = {each["name"]: each["left"] for each in json.loads(done.out)["places"]}
            assert (done.code, left["erasures that were cut off"]) == (1, 1)
            done = await app.run("rebuild", "--app", "shop", "--swap", "--graph-template", "{app_id}.other")
            assert (done.code, "has not ended" in done.err) == (2, True), done.err
            assert (await app.run("rebuild", "--app", "shop", "--drop", "--graph-template", "{app_id}.other")).code == 0
            done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes")
            assert (done.code, "was cut off" in done.err) == (0, True), done.err
            assert await everywhere(app, SECRET) == []
        assert await app.blobs().names("erasing/") == []
    assert await everywhere(app, "bobs-words")
    code, found = await app.rebuild("--app", "shop", "--verify")
    assert (code, found["same"]) == (0, True), found


@pytest.mark.long
@redis_only
@pytest.mark.parametrize("own_graph_url", ["neo4j"], indirect=True)
async def test_rules_that_find_nodes_of_both_graphs_stop_an_erasure_before_it_begins(app: Archived) -> None:
    file = app.folder / "rules/Odd/graph_injection.yaml"
    file.parent.mkdir(parents=True)
    odd = RULES.replace("MATCH (o:Order {id: $id}) SET", "MERGE (o {id: $id}) SET")
    file.write_text(odd)
    await app.push("first")
    async with app.worker():
        await said(app, "shop", "ada", 1, SECRET)
        await app.applied()
        before = await everywhere(app, SECRET)
        for command in (("erase", "--user", "ada", "--yes"), ("rebuild", "--swap")):
            done = await app.run(*command, "--app", "shop")
            assert done.code == 2
            assert "Odd/graph_injection.yaml:13:9: placed/share: MERGE without a label" in done.err, done.err
        assert {*before} <= {*await everywhere(app, SECRET)}  # it was archived
        assert "Nothing was erased" in (await app.run("erase", "--app", "shop", "--user", "ada", "--yes")).err
        file.write_text(RULES)
        await app.push("second")
        done = await app.run("rebuild", "--app", "shop", "--rules", str(app.folder / "rules"), "--swap")
        assert done.code == 0, done.err
        done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes")
        assert done.code == 0, done.err + done.out
    assert await everywhere(app, SECRET) == []


@redis_only
async def test_a_comparison_names_an_erasure_that_has_not_reached_the_graph(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        await said(app, "shop", "ada", 1, SECRET)
        await app.applied()
    number, _ = await begin_erasure(app.blobs(), "shop", "ada")
    await end_erasure(app.blobs(), "shop", number)
    async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
        await store._redis.execute_command("GRAPH.QUERY", "mozaiks_shop", "CREATE (:Order {id: 'ada-erased'})")
    done = await app.run("rebuild", "--app", "shop", "--verify")
    assert (done.code, "is from before something was erased" in done.out) == (1, True), done.out
    done = await app.run("rebuild", "--app", "shop", "--swap", "--resume")
    assert done.code == 0, done.err
    done = await app.run("rebuild", "--app", "shop", "--verify", "--graph-template", "{app_id}.again")
    assert done.code == 0, done.out


@redis_only
async def test_an_erasure_does_not_run_beside_a_command_on_the_archive_alone(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        for user in ("ada", "bob"):
            await said(app, "shop", user, 1, f"{user}-{SECRET}")
        await app.applied()
        there = GraphsLease(BlobRecords(app.blobs()), app_id="shop", command="graphweft rebuild")  # with no bus
        async with there.held():
            done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes")
            assert (done.code, "`graphweft rebuild` works on the graphs of 'shop'" in done.err) == (1, True), done.err
            assert await everywhere(app, SECRET)
        for user in ("ada", "bob"):
            assert (await app.run("erase", "--app", "shop", "--user", user, "--yes")).code == 0
    assert await everywhere(app, SECRET) == []


@pytest.mark.soak("kafka")
@pytest.mark.parametrize("when", ["before", "behind"])
async def test_what_jobs_make_of_a_user_meanwhile_does_not_survive(
    app: Archived, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A model answers while the graph is built anew: in front of its swap, and behind it."""
    await app.push("first")
    made = made_of_ada()
    step, loop = erasing.Erasure._erase_from_graph, asyncio.get_running_loop()

    async def beside(self: erasing.Erasure) -> PlaceOfRemains:
        found = await step(self) if when == "behind" else None
        late, made[:] = made[:], []
        if late:  # the command runs in a thread
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(put_late(app, late), loop))
        return await step(self) if found is None else found

    monkeypatch.setattr(erasing.Erasure, "_erase_from_graph", beside)
    async with app.worker():
        await said(app, "shop", "bob", 1, "bobs-words")
        await said(app, "shop", "ada", 1, "hello")
        await app.applied()
        done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes", "--json")
        assert done.code == 0, done.err + done.out
        await app.applied()
    assert await everywhere(app, SECRET) == []
    assert await everywhere(app, "bobs-words")
    code, found = await app.rebuild("--app", "shop", "--verify")
    assert (code, found["same"]) == (0, True), found


def made_of_ada() -> list[Event]:
    """Return what jobs make of the memory that ``said`` adds, and of what is no more there."""
    event = {"app_id": "shop", "chat_id": "chat-ada", "source": "/jobs"}
    id = memory_id("/said", "ada-1-memory", 0)
    return [
        Event.create("memory.summarized", **event, id="s",
                     data={"summary": SECRET, "memory_ids": [id], "model": "m", "agent_id": "a"}),
        Event.create("memory.embedded", **event, id="v",
                     data={"memory_id": id, "model": SECRET, "embedding": [1.0, 0.5]}),
    ]  # fmt: skip


async def put_late(app: Archived, events: list[Event]) -> None:
    await app._append(events)
    async with app.alone() as bus:
        letter = letter_for(
            0, Entry(offset="1-1", fields=wire.encode(events[0]), received=events[0].time), "extraction_failed",
            "no answer", event=events[0], rule="memory.add", mutation="extract",
        )  # fmt: skip
        await bus.dead_letters.put([letter])
    await app.applied()


@redis_only
async def test_a_snapshot_that_is_written_meanwhile_does_not_survive(
    app: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:

    await app.push("first")
    purge = erasing.Erasure._announce

    async def late(self: erasing.Erasure) -> None:
        await app.blobs().put("snapshots/shop/0@1-0.1.abc", SECRET.encode())
        await purge(self)

    monkeypatch.setattr(erasing.Erasure, "_announce", late)
    async with app.worker():
        await said(app, "shop", "ada", 1, SECRET)
        await app.applied()
        assert (await app.run("erase", "--app", "shop", "--user", "ada", "--yes")).code == 0
    assert await everywhere(app, SECRET) == []
