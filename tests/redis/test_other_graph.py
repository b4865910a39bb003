"""A graph of another app under an app's name, after a rename or a restore: it is neither read nor written."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from tests.services.buses import why_apps_wait
from tests.services.commands import inside
from tests.services.environment import clean_environment
from tests.services.fixtures import Logs
from tests.services.rules import load_rules
from tests.services.waiting import until
from tests.services.workers import working

from graphweft import Client, Event
from graphweft_contracts import ContextRequest, Layout
from graphweft_rules import RuleSet
from graphweft_rules.cypher.query import parse
from graphweft_workers.doctor import examine
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.falkordb.timing import FalkorDBTiming
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import START, Checkpoint, OtherGraph, Write
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rules import push

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
APP, OTHER = "shop", "bank"
NAME, OTHER_NAME = f"mozaiks_{APP}", f"mozaiks_{OTHER}"
SAID = f"the graph '{NAME}' holds the graph of another app, under the name of app '{APP}'"
RULES = """
version: "1.0"
injection_rules:
  - name: notes
    agents: ["*"]
    queries: [{id: notes, cypher: "MATCH (n:Note) RETURN n.id AS id ORDER BY id", inject_as: notes}]
mutation_rules:
  - name: note
    events: ["note.made"]
    mutations: [{id: note, cypher: "MERGE (n:Note {id: $v})", params: {v: $event.v}}]
"""


@pytest.fixture
async def bus(url: str) -> AsyncIterator[Bus]:
    async with contextlib.aclosing(redis_bus(url, new=Layout(partitions=1, order="app"))) as opened:
        await opened.partitions.count()
        yield opened


@pytest.fixture
async def raw(url: str) -> AsyncIterator[Any]:
    async with redis.Redis.from_url(url, decode_responses=True) as connection:
        yield connection


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    (tmp_path / "W").mkdir()
    (tmp_path / "W" / "graph_injection.yaml").write_text(RULES)
    return load_rules(tmp_path)


async def emit(url: str, app_id: str, *numbers: int) -> None:
    async with Client(url) as client:
        for v in numbers:
            made = Event.create("note.made", app_id=app_id, chat_id="c", workflow="W", id=f"{app_id}{v}", data={"v": v})
            assert await client.emit(made, wait_s=60)


async def notes(raw: Any, name: str = NAME) -> list[int]:
    """Return the ids in a graph, past the store."""
    with contextlib.suppress(redis.ResponseError):
        return [v for [v] in (await raw.execute_command("GRAPH.RO_QUERY", name, "MATCH (n:Note) RETURN n.id"))[1]]
    return []


async def make(graph: FalkorDBStore, app_id: str) -> None:
    write = Write(query=parse("CREATE (:Note {id: 1})", role="mutation"), rows=[{}], before=START,
                  after=Checkpoint(offset="1-0"))  # fmt: skip
    await graph.progress(app_id, 0)
    await graph.apply(app_id, 0, [write])


async def test_nothing_is_read_from_another_apps_graph_or_written_to_it(url: str, raw: Any, logs: Logs) -> None:
    async with contextlib.aclosing(FalkorDBStore(url)) as graph:
        await make(graph, OTHER)
        before = await read_digest(graph, OTHER)
        await raw.rename(OTHER_NAME, NAME)
        for call in (
            lambda: graph.progress(APP, 0), lambda: graph.progress(APP, 3),
            lambda: graph.prepare(APP, [("Note", "id")]), lambda: graph.checkpoints(APP, timeout_s=60),
            lambda: graph.read(APP, "MATCH (n:Note) RETURN n.id", {}, timeout_s=60),
            lambda: anext(graph.whole.nodes(APP)), lambda: anext(graph.whole.edges(APP)),
            lambda: anext(graph.whole.dump(APP)), lambda: graph.whole.schema(APP),
            lambda: graph.whole.node_counts(APP),
        ):  # fmt: skip
            with pytest.raises(OtherGraph, match=SAID) as refused:
                await call()
            assert OTHER not in str(refused.value), "an app learns the name of no other app"
        assert await graph.property_names(APP) == frozenset()
        await raw.rename(NAME, OTHER_NAME)
        assert await read_digest(graph, OTHER) == before
        assert (await graph.progress(OTHER, 0)).checkpoint == Checkpoint(offset="1-0")
    assert [entry["app_id"] for entry in logs if entry.get("owner") == OTHER] == [APP], "the log names it once"


async def test_a_read_relies_on_an_answer_of_long_ago_no_more(url: str, raw: Any) -> None:
    at_once = FalkorDBTiming(owner_s=0.0)
    async with contextlib.aclosing(FalkorDBStore(url, timing=at_once)) as graph:
        for app_id in (APP, OTHER):
            await make(graph, app_id)
        statement = "MATCH (n:Note) RETURN n.id"
        assert (await graph.read(APP, statement, {}, timeout_s=60)).rows == ((1,),)
        await raw.rename(OTHER_NAME, NAME)
        with pytest.raises(OtherGraph, match=SAID):
            await graph.read(APP, statement, {}, timeout_s=60)


async def test_a_busy_responder_asks_no_graph_for_its_app(url: str, raw: Any) -> None:
    """What it reads of the graph's version says that too."""
    async with contextlib.aclosing(FalkorDBStore(url)) as graph:
        await make(graph, APP)

        async def queries() -> int:
            return int((await raw.info("commandstats"))["cmdstat_graph.RO_QUERY"]["calls"])

        await graph.checkpoints(APP, timeout_s=60)
        before = await queries()
        for _ in range(5):
            await graph.read(APP, "MATCH (n:Note) RETURN n.id", {}, timeout_s=60)
        assert await queries() == before + 5


async def test_a_graph_of_an_earlier_version_is_taken_and_says_whose_it_is(url: str, raw: Any) -> None:
    async with contextlib.aclosing(FalkorDBStore(url)) as graph:
        await make(graph, APP)
        await raw.execute_command("GRAPH.QUERY", NAME, "MATCH (p:__Progress) SET p.app = NULL")
        assert await graph.checkpoints(APP, timeout_s=60) == {0: Checkpoint(offset="1-0")}
        assert (await graph.progress(APP, 0)).checkpoint == Checkpoint(offset="1-0")
        found = await raw.execute_command("GRAPH.RO_QUERY", NAME, "MATCH (p:__Progress) RETURN p.app")
        assert found[1] == [[APP]]


async def test_an_app_waits_while_the_graph_under_its_name_is_not_its_own(
    url: str, bus: Bus, graph: FalkorDBStore, raw: Any, rules: RuleSet, tmp_path: Path
) -> None:
    await push(bus, rules, "*")
    await emit(url, APP, 1)
    await emit(url, OTHER, 7)
    async with working(bus, graph, rules):
        await until(lambda: notes(raw), lambda found: found == [1], why="the events are applied")
        await until(lambda: notes(raw, OTHER_NAME), lambda found: found == [7], why="the events are applied")
    await raw.rename(OTHER_NAME, NAME)
    await emit(url, APP, 2)
    async with working(bus, graph, rules):
        await until(lambda: why_apps_wait(bus), lambda found: found == {APP: "other_graph"}, why="the app waits")
        assert await notes(raw) == [7]
        settings = Settings.load(bus_url=url, graph_url=url, rules=str(tmp_path))
        checks = {check.name: check for check in await examine(settings)}
        assert (checks["owners of graphs"].state, checks["parked"].state) == ("fail", "fail")
        assert f"({APP}: the graph of {OTHER})" in checks["owners of graphs"].found
        environment = clean_environment() | {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url}
        (tmp_path / "archive").mkdir()
        environment |= {"GRAPHWEFT_RULES": str(tmp_path), "GRAPHWEFT_ARCHIVE_URL": str(tmp_path / "archive")}
        for command in (
            ["rebuild", "--app", APP, "--swap"], ["rebuild", "--app", APP, "--verify"], ["rollback", "--app", APP],
            ["diff", "--app", APP, "--rules", str(tmp_path)], ["export", "--app", APP, str(tmp_path / "x.export")],
            ["query", "--app", APP, "MATCH (n) RETURN n"], ["erase", "--app", APP, "--yes"],
        ):  # fmt: skip
            done = await asyncio.to_thread(inside, command, environment, folder=tmp_path)
            assert (done.code != 0, SAID in done.err) == (True, True), (command, done)
            assert OTHER not in done.out + done.err
        assert await notes(raw) == [7], "no command has touched it"
        assert [each.reason for each in await bus.dead_letters.read(limit=10)] == []
        await raw.rename(NAME, OTHER_NAME)  # the graph of the app is gone, and the log has all of it
        await until(lambda: notes(raw), lambda found: sorted(found) == [1, 2], why="its graph is made again")
        await until(lambda: why_apps_wait(bus), lambda found: not found, why="no app waits")
        assert await notes(raw, OTHER_NAME) == [7]


@pytest.mark.parametrize("cached", [False, True])
async def test_a_responder_shows_nothing_of_another_apps_graph(
    url: str, graph: FalkorDBStore, raw: Any, rules: RuleSet, cached: bool
) -> None:
    for app_id in (APP, OTHER):
        await make(graph, app_id)
    async with contextlib.aclosing(FalkorDBStore(url, timing=FalkorDBTiming(owner_s=0.0))) as reader:
        pipeline = ContextPipeline(rules, reader)

        async def ask() -> Any:
            deadline_ms = int((time.time() + 10) * 1000)
            asked = {"id": "r", "app_id": APP, "workflow": "W", "agent": "A", "chat_id": "c"}
            return await pipeline.answer(ContextRequest.model_validate({**asked, "deadline_ms": deadline_ms}))

        if cached:
            assert [block.name for block in (await ask()).blocks] == ["notes"]
        await raw.rename(OTHER_NAME, NAME)
        reply = await ask()
        await pipeline.aclose()
    assert (reply.blocks, [each.reason for each in reply.missing]) == ((), ["query_error"])
    assert SAID in reply.missing[0].detail
    assert OTHER not in reply.model_dump_json()
