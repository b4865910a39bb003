"""``graphweft rebuild`` makes a graph from the log that equals the live one, and touches no other graph."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.serial import Neo4jReference
from tests.edges.test_cli import Call, call, clean_environment
from tests.services.buses import applied, mutation_bus
from tests.services.layouts import spread
from tests.services.neo4j import Neo4jServer
from tests.services.waiting import looks, until

from graphweft.transport import Outgoing
from graphweft.transports.registry import make_transport
from graphweft_contracts import Event, channels, wire
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.engine.log.judged_bus import judged
from graphweft_workers.engine.log.key_file import read_keyring
from graphweft_workers.engine.log.keyring import Keyring
from graphweft_workers.engine.log.placed_bus import placed
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.replay.graph_obstacle import GraphObstacles
from graphweft_workers.replay.graphs_lease import LEASE
from graphweft_workers.replay.replay import Replay
from graphweft_workers.rule_sets.active_rules import LoggedRules
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.timing import TIMING
from graphweft_workers.wiring.rules import rules_maker

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

keys_or_none = pytest.mark.parametrize("with_keys", [False, True], ids=["unsigned", "keys"], indirect=True)
"""For what keys must not change."""
KILLS = int(os.environ.get("GRAPHWEFT_KILLS", "4"))

RULES = """
version: "1.0"
mutation_rules:
  - name: placed
    events: ["order.placed"]
    mutations:
      - id: order
        cypher: "MERGE (o:Order {id: $id}) SET o.by = 'BY', o.times = coalesce(o.times, 0) + 1"
        params: {id: $event.order}
      - id: customer
        cypher: "MATCH (o:Order {id: $id}) MERGE (c:Customer {id: $who}) MERGE (c)-[:PLACED]->(o)"
        params: {id: $event.order, who: $event.customer}
      - id: share
        cypher: "MATCH (o:Order {id: $id}) SET o.share = 100 / $parts"
        params: {id: $event.order, parts: $event.parts}
"""


def signed_settings(folder: Path, settings: dict[str, str]) -> Keyring:
    """Write the keys of a deployment in which every app signs, and name them in the settings."""
    past = "2026-01-01T00:00:00Z"
    keys = [{"id": role, "role": role, "secret": role * 8, "from": past} for role in ("worker", "gateway")]
    file = folder / "keys.yaml"
    file.write_text(json.dumps({"keys": keys, "required_from": past}))
    settings["GRAPHWEFT_SIGNING_KEYS"] = str(file)
    return read_keyring(file)


class App:
    """Commands on one server, with a worker for all apps."""

    def __init__(
        self,
        url: str,
        call: Call,
        folder: Path,
        *,
        bus_url: str | None = None,
        graph_url: str | None = None,
        with_keys: bool = False,
    ) -> None:
        """``url`` is that of the bus and the graph server, unless one has its own. A Neo4j holds the first app alone.

        With ``with_keys`` every entry needs a signature: commands and workers check it, and what this emits has one.
        """
        self.url, self.call, self.folder = graph_url or url, call, folder
        self.bus_url = bus_url or url
        self.apps = ("shop", "shop_x") if graph_url is None else ("shop",)
        self.settings: dict[str, str] = {}
        """Further settings of commands."""
        self.timing = TIMING
        """Of workers."""
        self.keyring = signed_settings(folder, self.settings) if with_keys else None
        self.bus = self._bus()
        key = None if self.keyring is None else self.keyring.own_key("gateway", datetime.now(UTC))
        self.transport = make_transport(self.bus_url, new=spread(2), signing_key=key)

    def _bus(self) -> Bus:
        """Return the bus as workers and commands read it."""
        return placed(self.bus_alone() if self.keyring is None else judged(self.bus_alone(), self.keyring))

    def bus_alone(self) -> Bus:
        """Return the bus whose entries nobody judges."""
        return mutation_bus(self.bus_url, spread(2), lease_s=2.0)

    def store(self, beside: str | None = None) -> GraphStore:
        """Return the store of the graphs, or of second ones of a template."""
        if self.url.startswith("bolt"):
            return Neo4jStore(self.url, beside=beside)
        return FalkorDBStore(self.url, graph_template=beside or "mozaiks_{app_id}")

    async def read(self, app: str, statement: str, *, beside: str | None = None) -> Sequence[Sequence[Any]]:
        """Return the rows of a query."""
        async with contextlib.aclosing(self.store(beside)) as store:
            return (await store.read(app, statement, {}, timeout_s=120)).rows

    async def aclose(self) -> None:
        await self.bus.aclose()
        await self.transport.aclose()

    async def run(self, *arguments: str, graph: str | None = None) -> Any:
        settings = {"GRAPHWEFT_BUS_URL": self.bus_url, "GRAPHWEFT_GRAPH_URL": graph or self.url, **self.settings}
        return await asyncio.to_thread(self.call, *arguments, **settings)

    async def rebuild(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        done = await self.run("rebuild", "--json", *arguments)
        assert done.out, done.err
        return done.code, json.loads(printed(done.out))

    async def push(self, by: str) -> None:
        file = self.folder / "rules/Shop/graph_injection.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(RULES.replace("BY", by))
        done = await self.run("rules", "push", str(self.folder / "rules"))
        assert done.code == 0, done.err

    async def emit(self, app: str, numbers: Iterable[int]) -> None:
        made = [
            Event.create(
                "order.placed", app_id=app, chat_id=f"c{number % 3}", workflow="Shop", id=f"e{number}", source="/test",
                data={"order": f"o{number % 11}", "parts": number % 5}
                | ({} if number % 7 == 0 else {"customer": f"{app}{number % 4}"}),
            )
            for number in numbers
        ]  # fmt: skip
        await self._append(made)

    async def remember(self, app: str, texts: Iterable[str]) -> None:
        await self._append(
            Event.create(
                "memory.add", app_id=app, chat_id="c1", id=f"m-{text}", source="/test",
                data={"messages": [{"role": "user", "text": text}], "user_id": f"u{len(text) % 2}"},
            )
            for text in texts
        )  # fmt: skip

    async def _append(self, events: Iterable[Event]) -> None:
        await self.transport.append([Outgoing(key=event.key, fields=wire.encode(event)) for event in events])

    @contextlib.asynccontextmanager
    async def worker(self, store: GraphStore | None = None, *, batch_events: int = 7) -> AsyncIterator[None]:
        bus, graph = self._bus(), store or self.store()
        rules = LoggedRules(bus.rules, rules_maker(Settings.load(unknown=[])), without_lost=True)
        obstacles = GraphObstacles(bus, graph)
        worker = MutationWorker(
            bus, graph, rules, name="w", lease_s=2.0, batch_events=batch_events, obstacle=obstacles.of,
            older=obstacles.older, timing=self.timing,
        )  # fmt: skip
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()
            await running
            await bus.aclose()
            await graph.aclose()

    async def applied(self) -> None:
        await applied(self.bus)

    async def live(self) -> None:
        """Fill the graphs of two apps.

        The log then holds failing and skipped mutations, copies, invalid entries, memories, retries, and two rule sets.
        """
        await self.push("first")
        async with self.worker():
            for app in self.apps:
                await self.emit(app, range(40))
                await self.emit(app, range(5, 9))
                await self.transport.append([Outgoing(key=f"{app}/c1", fields={b"specversion": b"?"})])
            await self.applied()
            await self.push("second")
            for app in self.apps:
                await self.emit(app, range(40, 60))
                await self.remember(app, ["likes tea", "lives in Rome", "likes tea no more"])
            await self.applied()
            letters = json.loads((await self.run("dlq", "list", "--json")).out)
            assert letters
            # With keys, the retry of what is no event is refused: nobody can have signed it.
            assert (await self.run("dlq", "retry", "--all")).code == (0 if self.keyring is None else 1)
            await self.applied()

    async def replayed(self, bus: Bus, name: str, batch_events: int) -> str:
        """Return the digest of the graph that a replay of an app makes, beside the live one."""
        async with contextlib.aclosing(FalkorDBStore(self.url, graph_template=f"{{app_id}}.{batch_events}")) as store:
            rules = LoggedRules(bus.rules, rules_maker(Settings.load(unknown=[])))
            replay = Replay(bus, store, rules, name, batch_events=batch_events)
            for number in range(await bus.partitions.count()):
                async for _ in replay.run(number):
                    pass
            found = await read_digest(store, name)
            await store.whole.drop(name)
        return found.sha256

    async def forget_killed(self) -> None:
        """Let the lease of a killed command end now, so that the next one need not wait for that."""
        for key in (await self.bus.usage.after(None)).found:
            if key.startswith(LEASE):
                await self.bus.usage.put(key, None)

    async def digest(self, app: str, *arguments: str) -> str:
        return printed((await self.run("digest", "--app", app, *arguments)).out)


def printed(out: str) -> str:
    """Return the last line that a command has printed; a worker of the same process may log to the same place."""
    return [line for line in out.splitlines() if not re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2} ", line)][-1].strip()


@pytest.fixture
async def app(url: str, call: Call, tmp_path: Path, *, with_keys: bool) -> AsyncIterator[App]:
    async with contextlib.aclosing(App(url, call, tmp_path, with_keys=with_keys)) as app:
        await app.bus.partitions.count()
        yield app


@keys_or_none
async def test_a_rebuilt_graph_equals_the_live_one_and_the_neighbour_is_untouched(app: App) -> None:
    await app.live()
    before = {name: await app.digest(name) for name in ("shop", "shop_x")}
    for name, digest in before.items():
        code, found = await app.rebuild("--app", name, "--verify")
        assert (code, found["same"]) == (0, True), found
        assert found["graph"] == f"mozaiks_{name}.rebuilt"
        assert found["live"]["digest"] == found["rebuilt"]["digest"] == digest
        assert found["live"]["nodes"] > 10
        assert found["dead_letters"] == []
        memories = json.loads((await app.run("query", "--app", name, "--json", "MATCH (m:Memory) RETURN m.text")).out)
        assert len(memories["rows"]) == 3
        assert sum(each["events"] for each in found["partitions"]) >= 60
    assert {name: await app.digest(name) for name in before} == before


async def test_pages_that_are_read_ahead_end_as_the_live_graph(app: App) -> None:
    await app.live()
    rules = LoggedRules(app.bus.rules, rules_maker(Settings.load()))
    async with (
        contextlib.aclosing(FalkorDBStore(app.url)) as live,
        contextlib.aclosing(FalkorDBStore(app.url, graph_template="{app_id}.pages")) as graph,
    ):
        pages = 0
        for partition in (await app.bus.partitions.layout()).partitions_of("shop"):
            for most in (pages + 5, 1_000):  # one replay stops somewhere, and another one continues
                replay = Replay(app.bus, graph, rules, "shop", batch_events=3)
                async with contextlib.aclosing(replay.run(partition)) as steps:
                    async for _ in steps:
                        pages += 1
                        if pages == most:
                            break
        assert pages > 20
        assert await read_digest(graph, "shop") == await read_digest(live, "shop")


async def test_a_difference_is_found(app: App, graph: FalkorDBStore) -> None:
    await app.live()
    redis = graph._redis  # pyright: ignore[reportPrivateUsage]
    await redis.execute_command("GRAPH.QUERY", "mozaiks_shop", "MATCH (o:Order {id: 'o3'}) SET o.by = 'me'")
    code, found = await app.rebuild("--app", "shop", "--verify")
    assert (code, found["same"]) == (1, False)
    assert found["live"]["nodes"] == found["rebuilt"]["nodes"]
    done = await app.run("rebuild", "--app", "shop", "--verify", "--graph-template", "{app_id}.again")
    assert done.code == 1
    assert "The graphs differ. After an upgrade that is expected if" in done.out


async def test_a_live_graph_amid_a_plan_is_not_compared_and_nothing_is_said_of_losses(
    app: App, graph: FalkorDBStore
) -> None:
    await app.live()
    redis = graph._redis  # pyright: ignore[reportPrivateUsage]
    await redis.execute_command("GRAPH.QUERY", "mozaiks_shop", "MATCH (p:__Progress) SET p.plan = 'open'")
    done = await app.run("rebuild", "--app", "shop", "--verify")
    said = done.out + done.err
    assert done.code == 1
    assert "kept changing: compare again with --resume" in said
    for wrong in ("matches a rule", "lacks", "applied to the graph", "stays"):
        assert wrong not in said


async def test_a_log_without_its_beginning_is_refused(app: App, graph: FalkorDBStore) -> None:
    await app.live()
    partition = (await app.bus.partitions.layout()).partitions_of("shop")[0]
    redis = graph._redis  # pyright: ignore[reportPrivateUsage]
    await redis.execute_command("XTRIM", channels.events_stream(partition), "MAXLEN", "20")
    done = await app.run("rebuild", "--app", "shop")
    assert done.code == 2
    assert f"partition {partition} of the log lacks " in done.err
    assert "mozaiks_shop.rebuilt" not in await redis.execute_command("GRAPH.LIST")


async def test_a_rebuild_stops_at_a_position_and_resumes(app: App) -> None:
    await app.live()
    partition = (await app.bus.partitions.layout()).partitions_of("shop")[0]
    tenth = (await app.bus.log.after(partition, "", limit=30))[-1].offset
    code, found = await app.rebuild("--app", "shop", "--to", f"{partition}:{tenth}")
    assert code == 0
    assert [each["offset"] for each in found["partitions"]] == [tenth]
    again = await app.run("rebuild", "--app", "shop")
    assert again.code == 2
    assert "give --resume" in again.err
    code, found = await app.rebuild("--app", "shop", "--resume", "--verify")
    assert (code, found["same"]) == (0, True)
    code, found = await app.rebuild("--app", "shop", "--resume", "--verify")
    assert (code, found["same"]) == (0, True)
    back = await app.run("rebuild", "--app", "shop", "--to", f"{partition}:{tenth}", "--resume")
    assert back.code == 2
    assert f", after {partition}:{tenth}: give --graph-template" in back.err


async def test_a_graph_of_the_app_or_of_another_one_is_never_the_new_one(app: App) -> None:
    await app.live()
    before = {name: await app.digest(name, "--json") for name in ("shop", "shop_x")}
    for arguments, said in [
        (("--graph-template", "mozaiks_{app_id}_x"), "is that of the app 'shop_x'"),
        (("--graph-template", "mozaiks_{app_id}_y"), "is that of the app 'shop_y'"),
        (("--graph-template", "mozaiks_{app_id}"), "is that of the live graph"),
        (("--into", app.url), "is that of the live graph"),
        (("--into", app.url, "--resume"), "is that of the live graph"),
        (("--graph-template", "fixed"), "graph_template"),
        (("--to", "3"), "invalid --to '3'"),
        (("--to", "9999:1-1"), "invalid --to '9999:1-1': the bus has the partitions 0 to 1"),
        (("--to", "0:1-1", "--verify"), "leave out --to"),
        (("--into", "nothing://here"), "invalid --into"),
    ]:
        done = await app.run("rebuild", "--app", "shop", *arguments)
        assert done.code == 2, (arguments, done)
        assert said in done.err, (arguments, done.err)
    assert {name: await app.digest(name, "--json") for name in before} == before


async def test_an_app_without_events_is_told_and_gets_no_graph(app: App) -> None:
    await app.live()
    rules = ("--rules", str(app.folder / "rules"))
    for options in ((), ("--verify",), ("--swap",), ("--verify", "--swap"), rules, ("--resume", "--swap")):
        done = await app.run("rebuild", "--app", "shp", *options)
        told = "no event of the app 'shp' in the log matches a rule, and it has no graph: check its name"
        assert (told in done.err, done.code, done.out) == (True, 1, ""), (options, done)
        for template in ("mozaiks_{app_id}", "mozaiks_{app_id}.rebuilt"):
            async with contextlib.aclosing(FalkorDBStore(app.url, graph_template=template)) as graph:
                assert await graph.whole.graph_id("shp") == "", (options, template)


async def test_a_live_graph_that_is_written_to_is_compared_at_one_place(app: App) -> None:
    await app.live()

    async def write() -> None:
        for number in range(60, 100):
            await app.emit("shop", [number])
            await looks(app.bus.partitions.status, 5)

    async with app.worker():
        writing = asyncio.create_task(write())
        code, found = await app.rebuild("--app", "shop", "--verify")
        await writing
    assert (code, found["same"]) == (0, True)


@pytest.mark.soak
async def test_a_graph_moves_to_neo4j_and_lives_on(app: App, neo4j_server: Neo4jServer) -> None:
    await app.live()
    async with contextlib.aclosing(Neo4jReference(neo4j_server.uri)) as reference:
        await reference.clear()
    code, found = await app.rebuild("--app", "shop", "--into", neo4j_server.uri, "--verify")
    assert (code, found["same"]) == (0, True)
    await app.emit("shop", range(100, 130))
    async with app.worker(Neo4jStore(neo4j_server.uri)):
        await app.applied()
    code, found = await app.rebuild("--app", "shop", "--graph-template", "{app_id}.all")
    assert (code, found["dead_letters"]) == (0, [])
    async with (
        contextlib.aclosing(Neo4jStore(neo4j_server.uri)) as moved,
        contextlib.aclosing(FalkorDBStore(app.url, graph_template="{app_id}.all")) as rebuilt,
    ):
        assert await read_digest(moved, "shop") == await read_digest(rebuilt, "shop")


@pytest.mark.soak
async def test_a_graph_on_neo4j_is_never_its_own_rebuild(app: App, neo4j_server: Neo4jServer) -> None:
    async with contextlib.aclosing(Neo4jReference(neo4j_server.uri)) as reference:
        await reference.clear()
    await app.push("first")
    await app.emit("shop", range(20))
    async with app.worker(Neo4jStore(neo4j_server.uri)):
        await app.applied()
    alias = neo4j_server.uri.replace("127.0.0.1", "localhost")
    assert alias != neo4j_server.uri
    for arguments in (["--into", alias], ["--into", alias, "--resume"]):
        done = await app.run("rebuild", "--app", "shop", *arguments, graph=neo4j_server.uri)
        assert done.code == 2
        assert "is that of the live graph" in done.err, done.err
    for arguments in ([], ["--into", neo4j_server.uri]):
        other = await app.run("rebuild", "--app", "shop_x", *arguments, graph=neo4j_server.uri)
        assert other.code == 2
        assert "holds the graph of another app" in other.err, other.err


@pytest.mark.timeout(180 + 10 * KILLS)
async def test_a_rebuild_that_is_killed_again_and_again_loses_and_doubles_nothing(app: App) -> None:
    await app.push("first")
    environment = clean_environment(GRAPHWEFT_BUS_URL=app.url, GRAPHWEFT_GRAPH_URL=app.url)
    command = (sys.executable, "-m", "graphweft_workers.cli", "rebuild", "--app", "shop", "--resume")
    dice, begun = random.Random(6), 0
    async with (
        contextlib.aclosing(FalkorDBStore(app.url, graph_template="mozaiks_{app_id}.rebuilt")) as store,
        app.worker(),
    ):
        for number in range(KILLS):
            await app.emit("shop", range(300 * number, 300 * number + 300))
            before = await store.checkpoints("shop", timeout_s=120)
            process = await asyncio.create_subprocess_exec(
                *command, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
            )

            async def now(process: asyncio.subprocess.Process = process) -> object:
                return process.returncode is None and await store.checkpoints("shop", timeout_s=120)

            await until(now, lambda found, before=before: found != before, why="the rebuild writes, or has ended")
            await looks(now, dice.randrange(20))  # kills at any moment of a batch
            begun += await store.checkpoints("shop", timeout_s=120) != before
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await app.forget_killed()
        await app.applied()
    assert begun > 1
    code, found = await app.rebuild("--app", "shop", "--resume", "--verify")
    assert (code, found["same"]) == (0, True)


@pytest.mark.soak
async def test_a_graph_of_events_on_kafka_is_rebuilt(url: str, kafka_url: str, call: Call, tmp_path: Path) -> None:
    async with contextlib.aclosing(App(url, call, tmp_path, bus_url=kafka_url)) as app:
        await app.bus.partitions.count()
        await app.live()
        for name in ("shop", "shop_x"):
            code, found = await app.rebuild("--app", name, "--verify")
            assert (code, found["same"]) == (0, True)
            assert found["live"]["nodes"] > 10
        partition = found["partitions"][0]["partition"]
        wrong = await app.run("rebuild", "--app", "shop", "--resume", "--to", f"{partition}:5-0")
        assert wrong.code == 2
        assert "an offset of this bus has another form" in wrong.err
