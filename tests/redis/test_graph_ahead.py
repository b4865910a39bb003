"""A graph that holds an event which the log has lost, as after a fail-over: it waits, whatever ids come later."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio as redis
from tests.services.buses import why_apps_wait
from tests.services.commands import inside
from tests.services.environment import clean_environment
from tests.services.rules import rules_of_parts
from tests.services.waiting import until
from tests.services.workers import working

from graphweft_contracts import Event, GraphUnavailable, Layout, channels, wire
from graphweft_rules import RuleSet
from graphweft_workers.archive import archived_bus
from graphweft_workers.archive.archiver import archive_now
from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.apply.log_misfit import lost_entries
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition, Entry, EventLog
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.wiring.rules import push

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
STREAM = channels.events_stream(0)
APP = "shop"


@pytest.fixture
async def bus(url: str) -> AsyncIterator[Bus]:
    async with contextlib.aclosing(redis_bus(url, new=Layout(partitions=1, order="app"))) as opened:
        await opened.partitions.count()
        yield opened


@pytest.fixture
async def raw(url: str) -> AsyncIterator[Any]:
    async with redis.Redis.from_url(url) as connection:
        yield connection


@pytest.fixture
async def rules(bus: Bus, tmp_path: Path) -> RuleSet:
    made = rules_of_parts(tmp_path, {"note": "MERGE (n:Note {id: $v})"})
    await push(bus, made, "*")
    return made


async def add(raw: Any, number: int, at_ms: int, app_id: str = APP) -> None:
    event = Event.create("note.made", app_id=app_id, chat_id="c", workflow="W", id=f"e{number}", data={"v": number})
    await raw.xadd(STREAM, wire.encode(event), id=f"{at_ms}-0")


async def notes(graph: GraphStore, app_id: str = APP) -> list[int]:
    with contextlib.suppress(GraphUnavailable):
        found = await graph.read(app_id, "MATCH (n:Note) RETURN n.id ORDER BY n.id", {}, timeout_s=20)
        return [row[0] for row in found.rows]
    return []


async def applied(bus: Bus, graph: GraphStore, rules: RuleSet, expected: list[int]) -> None:
    async with working(bus, graph, rules):
        await until(lambda: notes(graph), lambda found: found == expected, why="the events are applied")


@pytest.mark.long("with an archive", "pass the lost one")
@pytest.mark.parametrize(
    ("lost_ms", "since_ms", "has_archive"),
    [
        (-2_000, [-1_000], False), (-2_000, [-1_000], True), (-2_000, [-3_000, -1_000], False),
        (-2_000, [-3_000], False), (3_600_000, [-1_000, 3_600_500], False),
    ],
    ids=[
        "ids go on", "ids go on, with an archive", "ids go back and pass the lost one", "ids go back",
        "the clock was an hour ahead",
    ],
)  # fmt: skip
async def test_a_graph_that_holds_a_lost_event_waits(
    url: str, bus: Bus, graph: GraphStore, raw: Any, rules: RuleSet, tmp_path: Path, lost_ms: int, since_ms: list[int],
    has_archive: bool,
) -> None:  # fmt: skip
    now = int(time.time() * 1000) + 10_000  # behind the activation of the rules
    await add(raw, 1, now - 5_000)
    await applied(bus, graph, rules, [1])
    archive = tmp_path / "archive"
    if has_archive:
        archive.mkdir()
        async with contextlib.aclosing(redis_bus(url, group=channels.ARCHIVE_GROUP)) as reader:
            await archive_now(reader, open_blobs(str(archive)))
    kept = {key: await raw.dump(key) for key in (STREAM, channels.notes())}
    await add(raw, 2, now + lost_ms)
    await applied(bus, graph, rules, [1, 2])
    for key, value in kept.items():
        await raw.restore(key, 0, value, replace=True)
    since = list(range(3, 3 + len(since_ms)))
    for number, at_ms in zip(since, since_ms, strict=True):
        await add(raw, number, now + at_ms)
    await add(raw, 9, now + since_ms[-1] + 1, "bank")
    async with working(bus, graph, rules):
        await until(
            lambda: why_apps_wait(bus), lambda found: found == {APP: "needs_rebuild"}, why="the app waits for a rebuild"
        )
        await until(lambda: notes(graph, "bank"), lambda found: found == [9], why="other apps go on")
        assert await notes(graph) == [1, 2], "nothing is passed over, and nothing comes behind the lost event"
        environment = clean_environment() | {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url}
        environment["GRAPHWEFT_RULES"] = str(tmp_path)
        if has_archive:
            environment["GRAPHWEFT_ARCHIVE_URL"] = str(archive)
        rebuild = ["rebuild", "--app", APP, "--swap"]
        done = await asyncio.to_thread(inside, rebuild, environment, folder=tmp_path)
        assert (done.code, "lack 1 with the label Note" in done.err) == (2, True), done
        done = await asyncio.to_thread(inside, [*rebuild, "--accept-losses"], environment, folder=tmp_path)
        assert done.code == 0, done.err
        await until(lambda: notes(graph), lambda found: found == [1, *since], why="the graph is that of the log")
        await until(lambda: why_apps_wait(bus), lambda found: not found, why="no app waits")


async def test_a_graph_whose_last_event_was_trimmed_goes_on(
    bus: Bus, graph: GraphStore, raw: Any, rules: RuleSet
) -> None:
    now = int(time.time() * 1000) + 10_000
    await add(raw, 1, now - 5_000)
    await applied(bus, graph, rules, [1])
    await raw.xtrim(STREAM, maxlen=0, approximate=False)
    await add(raw, 2, now - 4_000)
    await applied(bus, graph, rules, [1, 2])
    assert await gaps(bus) == []


@pytest.mark.parametrize("ids", ["go on", "go back"])
async def test_a_stream_that_is_gone_takes_nothing_with_it_silently(
    url: str, bus: Bus, graph: GraphStore, raw: Any, rules: RuleSet, tmp_path: Path, ids: str
) -> None:
    now = int(time.time() * 1000) + 10_000
    for number in range(1, 5):
        await add(raw, number, now + number)
    await applied(bus, graph, rules, [1, 2, 3, 4])
    await add(raw, 5, now + 5)  # it waits for a worker
    await raw.rename(STREAM, "mistake")
    await add(raw, 6, now + (6 if ids == "go on" else 2))
    environment = clean_environment() | {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url}
    environment["GRAPHWEFT_RULES"] = str(tmp_path)
    async with working(bus, graph, rules):
        await until(
            lambda: why_apps_wait(bus), lambda found: found == {APP: "needs_rebuild"}, why="the app waits for a rebuild"
        )
        assert await notes(graph) == [1, 2, 3, 4]
        assert await gaps(bus) == [("trimmed", None, f"0:{now + 4}-0")]
        rebuild = ["rebuild", "--app", APP, "--swap"]
        done = await asyncio.to_thread(inside, rebuild, environment, folder=tmp_path)
        assert done.code == 2, done.err
        assert "lack 4 with the label Note" in done.err
        assert "--accept-losses" in done.err
        assert await notes(graph) == [1, 2, 3, 4]
        done = await asyncio.to_thread(inside, [*rebuild, "--accept-losses"], environment, folder=tmp_path)
        assert done.code == 0, done.err
        await until(lambda: notes(graph), lambda found: found == [6], why="the graph is that of the log")
        await until(lambda: why_apps_wait(bus), lambda found: not found, why="no app waits")


async def gaps(bus: Bus) -> list[tuple[str, str | None, str]]:
    """Return the dead letters of what the log lacks."""
    return [(each.reason, each.app_id, each.position) for each in await bus.dead_letters.read(limit=10)]


async def test_a_graph_whose_last_event_was_deleted_by_hand_goes_on(
    bus: Bus, graph: GraphStore, raw: Any, rules: RuleSet
) -> None:
    now = int(time.time() * 1000) + 10_000
    await add(raw, 1, now)
    await add(raw, 2, now + 1)
    await applied(bus, graph, rules, [1, 2])
    await raw.xdel(STREAM, f"{now + 1}-0")
    await add(raw, 3, now + 2)
    await applied(bus, graph, rules, [1, 2, 3])
    assert await gaps(bus) == [("trimmed", APP, f"0:{now + 1}-0")]


async def test_a_graph_goes_on_whose_last_event_is_in_a_gap_of_the_archive(
    url: str, bus: Bus, graph: GraphStore, raw: Any, rules: RuleSet, tmp_path: Path
) -> None:
    (tmp_path / "archive").mkdir()
    blobs = open_blobs(str(tmp_path / "archive"))
    now = int(time.time() * 1000) + 10_000
    await add(raw, 1, now)
    await add(raw, 2, now + 1)
    await applied(bus, graph, rules, [1, 2])
    async with contextlib.aclosing(redis_bus(url, group=channels.ARCHIVE_GROUP)) as reader:
        await archive_now(reader, blobs)
    await add(raw, 3, now + 2)
    await applied(bus, graph, rules, [1, 2, 3])
    await raw.xtrim(STREAM, maxlen=0, approximate=False)
    await add(raw, 5, now + 10)
    await applied(archived_bus.archived(bus, blobs), graph, rules, [1, 2, 3, 5])
    assert await gaps(bus) == [("trimmed", APP, f"0:{now + 2}-0")]


def environment_of(url: str, folder: Path, **more: str) -> dict[str, str]:
    found = clean_environment() | {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url}
    return found | {"GRAPHWEFT_RULES": str(folder), **more}


class GrowingLog:
    """A log to which events come whenever a page of it is read."""

    def __init__(self, log: EventLog, come: Callable[[], Awaitable[None]]) -> None:
        self._log = log
        self._come = come

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        await self._come()
        return await self._log.after(partition, offset, limit=limit)


@pytest.mark.parametrize("lost", [0, 2])
async def test_events_that_come_meanwhile_are_not_taken_for_lost_ones(
    bus: Bus, graph: GraphStore, raw: Any, lost: int
) -> None:
    numbers = itertools.count(1)
    now = int(time.time() * 1000) + 10_000

    async def come() -> None:
        if (number := next(numbers)) < 30:
            await add(raw, number, now + number)

    for _ in range(15):
        await come()
    tenth = (await bus.log.after(0, "", limit=10))[-1].offset
    growing = dataclasses.replace(bus, log=cast(EventLog, GrowingLog(bus.log, come)))
    position = CommittedPosition(offset=tenth, count=10 + lost)
    assert (await lost_entries(growing, graph, 0, position)).number == lost


async def lose_log(bus: Bus, graph: GraphStore, raw: Any, rules: RuleSet) -> int:
    """Apply three events, and take the log away; return the time in milliseconds before the first one."""
    now = int(time.time() * 1000) + 10_000
    for number in range(1, 4):
        await add(raw, number, now + number)
    await applied(bus, graph, rules, [1, 2, 3])
    await raw.rename(STREAM, "mistake")
    return now


async def test_as_many_new_nodes_hide_none_that_the_log_lost(
    url: str, bus: Bus, graph: GraphStore, raw: Any, rules: RuleSet, tmp_path: Path
) -> None:
    now = await lose_log(bus, graph, raw, rules)
    for number in range(4, 8):
        await add(raw, number, now + number)
    environment = environment_of(url, tmp_path)
    async with working(bus, graph, rules):
        await until(
            lambda: why_apps_wait(bus), lambda found: found == {APP: "needs_rebuild"}, why="the app waits for a rebuild"
        )
        [letter] = await bus.dead_letters.read(limit=10)
        assert letter.count == 4, "the activation of the rules, and the three events"
        assert "and 4 entries up to it were never written" in letter.message
        rebuild = ["rebuild", "--app", APP, "--swap"]
        done = await asyncio.to_thread(inside, rebuild, environment, folder=tmp_path)
        assert (done.code, "lack 3 with the label Note" in done.err) == (2, True), done
        assert await notes(graph) == [1, 2, 3]
        restating = [*rebuild, "--rules", str(tmp_path)]
        done = await asyncio.to_thread(inside, restating, environment, folder=tmp_path)
        assert (done.code, "they wait until its graph is rebuilt" in done.err) == (2, True), done
        assert [each.scope for each in await bus.rules.activations()] == ["*"], "nothing was restated"
        done = await asyncio.to_thread(inside, [*rebuild, "--accept-losses"], environment, folder=tmp_path)
        assert done.code == 0, done.err
        await until(lambda: notes(graph), lambda found: found == [4, 5, 6, 7], why="the graph is that of the log")
        await until(lambda: why_apps_wait(bus), lambda found: not found, why="no app waits")
        for command in (["rebuild", "--app", APP, "--drop"], restating):
            done = await asyncio.to_thread(inside, command, environment, folder=tmp_path)
            assert done.code == 0, done.err


async def test_an_erasure_keeps_the_graph_of_a_log_that_was_lost(
    url: str, bus: Bus, graph: GraphStore, raw: Any, rules: RuleSet, tmp_path: Path
) -> None:
    await lose_log(bus, graph, raw, rules)
    (tmp_path / "archive").mkdir()
    environment = environment_of(url, tmp_path, GRAPHWEFT_ARCHIVE_URL=str(tmp_path / "archive"))
    erase = ["erase", "--app", APP, "--user", "u1", "--yes"]
    done = await asyncio.to_thread(inside, erase, environment, folder=tmp_path)
    assert done.code == 2, done
    assert "lack 3 with the label Note" in done.err
    assert "Nothing was erased" in done.err
    assert await notes(graph) == [1, 2, 3]
    accept = ["rebuild", "--app", APP, "--swap", "--accept-losses"]
    assert f"`graphweft {' '.join(accept)}`" in done.err
    done = await asyncio.to_thread(inside, accept, environment, folder=tmp_path)
    assert done.code == 0, done.err
    assert await notes(graph) == []
    done = await asyncio.to_thread(inside, erase, environment, folder=tmp_path)
    assert done.code == 0, done.err
