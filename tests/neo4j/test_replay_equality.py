"""One log gives one graph: live, and rebuilt in any way, from the bus, from the archive, and on another graph server.

A tenth of the recorded runs is enough for several batches of each partition. ``GRAPHWEFT_RUNS`` says how often all are
lived; 26 times are more than 100,000 events.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import batched, islice
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.serial import Neo4jReference
from tests.edges.test_cli import Call, call
from tests.kafka.test_archive import Archived
from tests.services.neo4j import Neo4jServer

from graphweft_contracts import Event
from graphweft_contracts.memory import memory_id
from graphweft_workers.archive.archive_bus import archive_bus
from graphweft_workers.imports.files import read_runs
from graphweft_workers.imports.openai_chat import ChatImportOptions, events_of_runs

__all__ = ("call",)  # a fixture

_RUNS = os.environ.pop("GRAPHWEFT_RUNS", None)  # settings would refuse it
RUNS = int(_RUNS or 1)
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300 * RUNS)]

EXAMPLE = Path(__file__).parents[2] / "examples/airline"
APPS = ("shop", "shop_x")


@pytest.fixture
async def app(own_bus_url: str | None, url: str, call: Call, tmp_path: Path) -> AsyncIterator[Archived]:
    async with contextlib.aclosing(Archived(url, call, tmp_path, bus_url=own_bus_url)) as app:
        await app.bus.partitions.count()
        yield app


def recorded(name: str, copies: range) -> Iterator[Event]:
    """Yield the events of recorded runs, a few times, each time as other chats."""
    for copy in copies:
        runs = islice(read_runs(EXAMPLE / "data/tau-airline-gpt4o.jsonl.gz"), 0, None, 1 if _RUNS else 10)
        chat_id = f"task{{task_id}}-trial{{trial}}-{copy}"
        yield from events_of_runs(
            runs, ChatImportOptions(app_id=name, workflow="AirlineSupport", agent="AirlineAgent", chat_id=chat_id)
        )


async def lived(app: Archived) -> int:
    """Fill the log of two apps: recorded runs, failing and skipped rows, copies, memories, retries, a rule change."""
    shutil.copytree(EXAMPLE / "workflows", app.folder / "rules", dirs_exist_ok=True)
    await app.push("first")
    emitted = 0
    async with app.worker(batch_events=150), app.worker(batch_events=100):
        for number in range(2 * RUNS):
            if number == RUNS:
                await app.applied()
                await app.push("second")
                await retried(app)
            for name in APPS:
                events = list(recorded(name, range(number // 2, number // 2 + 1)))
                half = events[: len(events) // 2] if number % 2 == 0 else events[len(events) // 2 :]
                for some in batched(half, 500):
                    await app._append(some)
                emitted += len(half)
                await app.emit(name, range(20 * number, 20 * number + 20))
                await app.emit(name, range(20 * number, 20 * number + 4))
                await app.remember(name, [f"likes tea {number}", f"lives in Rome {number}"])
                await app._append(ending(name, number))
                await app._append(erased(name, number))
        await app.applied()
        await retried(app)
        await app.applied()
    return emitted


def erased(name: str, number: int) -> Iterator[Event]:
    """Yield memories in chats of several partitions, and erasures between them, from clients with wrong clocks."""
    clocks = [datetime(year, 1, 1, tzinfo=UTC) for year in (1, 1970, 2026, 9998)]
    for at, clock in enumerate(clocks):
        for chat in range(4):
            id = f"hostile-{number}-{at}-{chat}"
            data = {"messages": [{"role": "user", "text": id}], "user_id": f"h{at % 2}"}
            yield Event.create(
                "memory.add", app_id=name, chat_id=f"h{chat}", id=id, source="/test", time=clock, data=data
            )
        wrong = clocks[-1 - at]
        erase = {"user_id": "h0"} | ({"before": wrong.isoformat()} if at == 2 else {})
        yield Event.create(
            "memory.erase", app_id=name, chat_id=f"h{at}", id=f"erase-{number}-{at}", source="/test", time=wrong,
            data=erase,
        )  # fmt: skip


def ending(name: str, number: int) -> Iterator[Event]:
    """Yield memories that end, and updates that change their ends, revive them and take their ends back."""
    at = datetime(2026, 2, 1, tzinfo=UTC)

    def event(type: str, id: str, days: int, data: dict[str, Any]) -> Event:
        time = at + timedelta(days=days)
        return Event.create(type, app_id=name, chat_id=f"h{number % 4}", id=id, source="/end", time=time, data=data)

    for place, text in enumerate(("I live in Rome", "I live in Oslo", "the code is 4471")):
        id = f"end-{number}-{place}"
        end = {"expires_at": (at + timedelta(days=5)).isoformat()} if place else {}
        message = {"role": "user", "text": text, **end}
        yield event("memory.add", id, 0, {"user_id": f"e{number}", "messages": [message]})
        memory = memory_id("/end", id, 0)
        for days, ends in ((3, at + timedelta(days=7)), (9, at + timedelta(days=20)), (30, None)):
            changed = {"memory_id": memory, "expires_at": "never" if ends is None else ends.isoformat()}
            yield event("memory.update", f"{id}-{days}", days, changed | ({"text": "new"} if place == days else {}))


async def retried(app: Archived) -> None:
    """Retry all dead letters; both workers hold all partitions, so one may change a letter meanwhile."""
    for _ in range(10):
        if (await app.run("dlq", "retry", "--all")).code == 0:
            return
        await app.applied()
    pytest.fail("the dead letters kept changing")


@pytest.mark.long("neo4j")
@pytest.mark.soak("kafka")
@pytest.mark.parametrize(
    ("own_bus_url", "into"),
    [("redis", ""), ("redis", "neo4j"), ("kafka", "")],
    indirect=["own_bus_url"],
    ids=["redis", "redis-neo4j", "kafka"],
)
async def test_every_way_gives_the_same_graph(app: Archived, into: str, request: pytest.FixtureRequest) -> None:
    emitted = await lived(app)
    digests = {name: await app.digest(name) for name in APPS}
    assert digests["shop"] != digests["shop_x"]  # memories and customers name their app
    async with app.alone() as bus:  # the bus alone, in other batches
        for name, size in zip(APPS, (61, 977), strict=True):
            assert await app.replayed(bus, name, size) == digests[name]
    assert (await app.run("archive", "now")).code == 0
    assert (await app.run("trim")).code == 0
    for name in APPS:  # the bus has nothing left
        code, found = await app.rebuild("--app", name, "--verify")
        assert (code, found["same"], found["live"]["digest"]) == (0, True, digests[name])
        assert found["dead_letters"] == []
    for name in APPS:
        alone = archive_bus(app.blobs())
        assert await app.replayed(alone, name, 250) == digests[name]
        code, found = await app.rebuild("--app", name, "--verify", "--archive-only", "--graph-template", "{app_id}.a")
        assert (code, found["same"]) == (0, True)
    applied = sum(each["events"] for each in found["partitions"])
    assert applied > emitted // 2 / 2
    if not into:
        return
    neo4j: Neo4jServer = request.getfixturevalue("neo4j_server")
    async with contextlib.aclosing(Neo4jReference(neo4j.uri)) as reference:
        await reference.clear()
    code, found = await app.rebuild("--app", "shop", "--into", neo4j.uri, "--verify")
    assert (code, found["same"], found["rebuilt"]["digest"]) == (0, True, digests["shop"])
