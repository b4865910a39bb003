"""Deployments whose graph server loses what it had: it gets an older copy, is emptied, or another one is there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import neo4j
import redis.asyncio as redis
from tests.chaos.stack import Worker
from tests.services.buses import mutation_bus
from tests.services.commands import inside
from tests.services.environment import clean_environment
from tests.services.layouts import spread
from tests.services.neo4j import Neo4jServer
from tests.services.waiting import until

from graphweft.transport import Outgoing
from graphweft.transports.registry import make_transport
from graphweft_contracts import DeadLetter, Event, GraphUnavailable, channels, wire
from graphweft_workers.archive.archived_bus import archived
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.rebuild import Rebuild
from graphweft_workers.rule_sets.active_rules import LoggedRules
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_archive
from graphweft_workers.wiring.rules import rules_maker

__all__ = (
    "LOSSES",
    "Deployment",
    "FalkorDBPlace",
    "GraphPlace",
    "Loss",
    "Neo4jPlace",
    "ids",
    "lose_and_catch_up",
)

Loss = Literal["dump", "lagging", "emptied", "new"]
LOSSES: Final[Sequence[Loss]] = ("dump", "lagging", "emptied", "new")
RULES: Final = """
version: "1.0"
mutation_rules:
  - name: noted
    events: ["note.made"]
    mutations:
      - id: log
        cypher: "MERGE (j:Log {id: $chat}) SET j.trace = coalesce(j.trace, '') + $n + ','"
        params: {n: $event.n, chat: $workflow.chat_id}
      - id: share
        cypher: "MERGE (s:Share {id: $n}) SET s.part = 100 / $parts"
        params: {n: $event.n, parts: $event.parts}
      - id: who
        cypher: "MATCH (s:Share {id: $n}) SET s.who = $who"
        params: {n: $event.n, who: $event.who}
"""
_CHATS: Final = ("c3", "c4")
"""One in each partition, whatever the app."""


class GraphPlace(Protocol):
    """A graph server whose data can be copied and put back."""

    url: str

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def empty(self) -> None:
        """Delete everything while the server runs."""
        ...

    def store(self) -> GraphStore: ...

    @property
    def data(self) -> Path: ...


class FalkorDBPlace:
    def __init__(self, folder: Path) -> None:
        self._server = EmbeddedServer(folder)
        self.url = f"unix://{self._server.socket}"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def empty(self) -> None:
        async with contextlib.aclosing(redis.Redis.from_url(self.url)) as client:
            await client.flushall()

    async def delete(self, app_id: str) -> None:
        """Delete one graph past the store."""
        async with contextlib.aclosing(redis.Redis.from_url(self.url)) as client:
            await client.execute_command("GRAPH.DELETE", channels.graph_name(app_id))

    async def change(self, app_id: str, statement: str) -> None:
        """Change one graph past the store."""
        async with contextlib.aclosing(redis.Redis.from_url(self.url)) as client:
            await client.execute_command("GRAPH.QUERY", channels.graph_name(app_id), statement)

    async def forget_positions(self) -> None:
        """Leave the graphs alone, as an earlier version did."""
        async with contextlib.aclosing(redis.Redis.from_url(self.url)) as client:
            await client.delete(*[key async for key in client.scan_iter(f"{channels.GRAPH_POSITIONS}:*")])

    def store(self) -> FalkorDBStore:
        return FalkorDBStore(self.url)

    @property
    def data(self) -> Path:
        return self._server.data / "appendonlydir"


class Neo4jPlace:
    def __init__(self, folder: Path) -> None:
        self._server = Neo4jServer(folder)
        self.url = self._server.uri

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.stop)

    async def empty(self) -> None:
        await self.change("MATCH (n) DETACH DELETE n")

    async def delete(self, app_id: str) -> None:
        """Delete the graph of the only app, and leave what the server says beside it."""
        await self.change("MATCH (n) WHERE NOT n:__Position DETACH DELETE n")

    async def change(self, statement: str) -> None:
        def run() -> None:
            with neo4j.GraphDatabase.driver(self.url) as driver, driver.session() as session:
                session.run(statement).consume()  # type: ignore[arg-type]

        await asyncio.to_thread(run)

    def store(self) -> Neo4jStore:
        return Neo4jStore(self.url)

    @property
    def data(self) -> Path:
        return self._server.folder / "data"


class Deployment:
    """A bus, a graph server, and one worker as a process."""

    def __init__(self, folder: Path, bus_url: str, place: GraphPlace, apps: Collection[str], *, archive: bool) -> None:
        self._folder = folder
        self.place = place
        self.apps = apps
        self._copy = folder / "copy"
        self.rules = folder / "rules"
        rules = folder / "rules/Shop/graph_injection.yaml"
        rules.parent.mkdir(parents=True)
        rules.write_text(RULES)
        self.environment = clean_environment() | {
            "GRAPHWEFT_BUS_URL": bus_url,
            "GRAPHWEFT_GRAPH_URL": place.url,
            "GRAPHWEFT_RULES": str(folder / "rules"),
            "GRAPHWEFT_PARTITIONS": "2",
            "GRAPHWEFT_ORDER": "chat",  # as the transport here: either may make the bus
            "GRAPHWEFT_BATCH_EVENTS": "5",
            "GRAPHWEFT_LEASE_S": "2",
            "GRAPHWEFT_LOG_FORMAT": "json",
        }
        self._archive: Path | None = None
        if archive:
            self._archive = folder / "archive"
            self.environment["GRAPHWEFT_ARCHIVE_URL"] = str(self._archive)
        self.log = folder / "worker.log"
        self.worker = Worker("w", self.environment, self.log)
        self.transport = make_transport(bus_url, new=spread(2))
        self._bus_url = bus_url
        self._sent: dict[str, int] = dict.fromkeys(apps, 0)

    def bus(self) -> Bus:
        """Return the bus as a worker opens it."""
        bus = mutation_bus(self._bus_url, spread(2), lease_s=2.0)
        if self._archive is None:
            return bus
        return archived(bus, make_archive(Settings.load(unknown=[], archive_url=str(self._archive))))

    def command(self, *arguments: str) -> Any:
        done = inside(arguments, self.environment, folder=self._folder)
        assert done.code == 0, done.err
        return done.out

    def doctor(self) -> dict[str, tuple[str, str]]:
        """Return state and finding of each check, by its name."""
        done = inside(["doctor", "--json"], self.environment, folder=self._folder)
        return {each["check"]: (each["state"], each["found"]) for each in json.loads(done.out)}

    async def emit(self, count: int) -> None:
        """Send events of each app: some have a row that fails, and some a value that is missing."""
        made: list[Event] = []
        before = max(self._sent.values())  # an app that was restored since has lived what another one has
        for app_id in self.apps:
            first = self._sent.get(app_id, before)
            self._sent[app_id] = first + count
            for number in range(first, first + count):
                data: dict[str, Any] = {"n": f"n{number}", "parts": number % 9}
                made.append(
                    Event.create(
                        "note.made", app_id=app_id, chat_id=_CHATS[number % 2], workflow="Shop", id=f"e{number}",
                        source="/test", data=data if number % 13 == 5 else {**data, "who": "somebody"},
                    )
                )  # fmt: skip
        await self.transport.append([Outgoing(key=event.key, fields=wire.encode(event)) for event in made])

    def expected(self) -> dict[tuple[str, str], str]:
        """Return, by app and chat, the events in their order, each once."""
        return {
            (app_id, chat): "".join(f"n{number}," for number in range(sent) if _CHATS[number % 2] == chat)
            for app_id, sent in self._sent.items()
            for chat in _CHATS
        }

    async def traces(self) -> dict[tuple[str, str], str]:
        """Return what the graphs say of the events; nothing while the server does not answer."""
        found: dict[tuple[str, str], str] = {}
        with contextlib.suppress(GraphUnavailable):
            async with contextlib.aclosing(self.place.store()) as graph:
                for app_id in self.apps:
                    for chat, trace in (
                        await graph.read(app_id, "MATCH (j:Log) RETURN j.id, j.trace", {}, timeout_s=60)
                    ).rows:
                        found[app_id, chat] = trace
        return found

    async def until_whole(self) -> None:
        """Wait until the graphs hold every event once, in order, and bus and graph server say so."""
        expected = self.expected()
        await until(self.traces, lambda found: found == expected, why=f"the graphs are whole, see {self.log}")

        async def are_even() -> bool:
            async with contextlib.aclosing(self.bus()) as bus, contextlib.aclosing(self.place.store()) as graph:
                positions = await graph.positions()
                return positions is not None and all(
                    not each.lag
                    and not PositionNote.decode(each.note).again
                    and (not each.position or positions[each.id].offset == PositionNote.decode(each.note).at)
                    for each in await bus.partitions.status()
                )

        await until(are_even, why=f"bus and graph server have the same positions, see {self.log}")

    async def letters(self) -> list[DeadLetter]:
        async with contextlib.aclosing(self.bus()) as bus:
            return sorted(await bus.dead_letters.read(limit=10_000), key=lambda letter: letter.id)

    async def copy(self, *, running: bool = False) -> None:
        """Keep the data of the server as it is now; with ``running``, as one who follows the server has it."""
        if not running:
            await self.place.stop()
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.place.data, self._copy)
        if not running:
            await self.place.start()

    async def lose(self, loss: Loss) -> None:
        """Let the server have less than before, while the worker runs."""
        if loss == "emptied":
            await self.place.empty()
            return
        await self.place.stop()
        shutil.rmtree(self.place.data)
        if loss != "new":
            shutil.copytree(self._copy, self.place.data)
        await self.place.start()

    async def kill_while_it_catches_up(self) -> None:
        """Kill the worker when it has begun to apply events again, and start it anew."""
        expected = self.expected()

        def has_begun(found: Mapping[tuple[str, str], str]) -> bool:
            return bool(found) and "graph_is_behind" in self.events()

        found = await until(self.traces, has_begun, why=f"events are applied again, see {self.log}")
        assert all(expected[each].startswith(trace) for each, trace in found.items())
        self.worker.kill()
        self.worker.start()

    def events(self) -> list[str]:
        """Return the names of what the worker logs."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [json.loads(line).get("event", "") for line in lines if line.startswith("{")]

    async def check_rebuilt(self, scratch: GraphStore) -> None:
        """Compare each graph with what a rebuild of the whole log makes of it in an empty place."""
        async with contextlib.aclosing(self.bus()) as bus, contextlib.aclosing(self.place.store()) as live:
            rules = LoggedRules(bus.rules, rules_maker(Settings.load(unknown=[])), without_lost=True)
            await rules.refresh()
            for app_id in self.apps:
                rebuild = Rebuild(AppLog(bus=bus, app_id=app_id, live=live), scratch, rules)
                await rebuild.begin(resume=False)
                await rebuild.run()
                assert await read_digest(live, app_id) == await read_digest(scratch, app_id), app_id

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.place.start()
        self.worker.start()
        try:
            yield
        finally:
            if self.worker.running:
                self.worker.kill()
            await self.place.stop()
            await self.transport.aclose()


def ids(letters: Iterable[DeadLetter]) -> list[tuple[str, tuple[str, ...]]]:
    """Return what letters are of."""
    return [(letter.id, tuple(letter.offsets)) for letter in letters]


async def lose_and_catch_up(deployment: Deployment, loss: Loss, scratch: GraphStore, *, trims: bool = False) -> None:
    """Let graphs live, take a copy between, lose what came after it, and look whether everything comes back."""
    async with deployment.running():
        await deployment.emit(60)
        await deployment.until_whole()
        await deployment.copy(running=loss == "lagging")
        await deployment.emit(160)
        await deployment.until_whole()
        letters = await deployment.letters()
        dropped, retried = [letter for letter in letters if letter.reason == "query_error"][-2:]
        await asyncio.to_thread(deployment.command, "dlq", "drop", dropped.id)
        await asyncio.to_thread(deployment.command, "dlq", "retry", retried.id)
        await deployment.until_whole()
        if trims:
            await asyncio.to_thread(deployment.command, "archive", "now")
            await asyncio.to_thread(deployment.command, "trim")
        before = ids(await deployment.letters())
        assert dropped.id not in dict(before)
        await deployment.lose(loss)
        await deployment.kill_while_it_catches_up()
        await deployment.until_whole()
        assert ids(await deployment.letters()) == before
        await deployment.emit(20)
        await deployment.until_whole()
        await deployment.check_rebuilt(scratch)
