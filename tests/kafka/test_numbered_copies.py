"""A file that is sent again has no effect, however long it is: live, after kills, and in every rebuild."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import batched
from pathlib import Path

import pytest
from tests.edges.test_cli import Call, call
from tests.kafka.test_archive import Archived, redis_or_kafka_with_keys
from tests.services.waiting import turns, until
from tests.services.windows import use_small_windows

from graphweft import Event
from graphweft.transport import Outgoing
from graphweft_contracts import wire
from graphweft_workers.archive.archive_bus import archive_bus
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.imports.file_series import numbered_blocks
from graphweft_workers.support.timing import TIMING

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
APPS = ("shop", "shop_x")
RULES = """
version: "1.0"
mutation_rules:
  - name: orders
    events: ["order.placed"]
    mutations:
      - id: order
        cypher: "MERGE (o:Order {id: $id}) SET o.seen = coalesce(o.seen, 0) + 1, o.by = 'BY'"
        params: {id: $event.order}
      - id: share
        cypher: "MATCH (o:Order {id: $id}) SET o.share = coalesce(o.share, 0) + 100 / $parts"
        params: {id: $event.order, parts: $event.parts}
"""
SEEN = "MATCH (o:Order) RETURN sum(o.seen)"


@pytest.fixture
async def app(
    own_bus_url: str | None, url: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, with_keys: bool
) -> AsyncIterator[Archived]:
    use_small_windows(monkeypatch)
    made = Archived(url, call, tmp_path, bus_url=own_bus_url, with_keys=with_keys)
    async with contextlib.aclosing(made) as app:
        await app.bus.partitions.count()
        yield app


def file_of(name: str, orders: range) -> list[Event]:
    """Return the events of a file of orders of both apps; every fifth one fails in one mutation."""
    return [
        Event.create(
            "order.placed", app_id=APPS[number % 2], chat_id=f"c{number % 3}", workflow="Shop", id=f"{name}-{number}",
            user_id=f"u{number % 4}", source="/test", data={"order": f"o{number % 7}", "parts": number % 5},
        )
        for number in orders
    ]  # fmt: skip


async def push(app: Archived, by: str) -> None:
    file = app.folder / "rules/Shop/graph_injection.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(RULES.replace("BY", by))
    assert (await app.run("rules", "push", str(app.folder / "rules"))).code == 0


async def emitted(app: Archived, events: Sequence[Event]) -> None:
    """Send the events of a file as ``graphweft emit`` does, which cannot run in a thread."""
    for block in numbered_blocks(events):
        for some in batched(block, 40):
            await app._append(some)


async def seen(app: Archived, name: str) -> int:
    async with contextlib.aclosing(FalkorDBStore(app.url)) as store:
        return (await store.read(name, SEEN, {}, timeout_s=5.0)).rows[0][0]


async def check_rebuilds(app: Archived) -> None:
    """Check that each way to make the graphs again gives those that are live."""
    digests = {name: await app.digest(name) for name in APPS}
    assert (await app.run("archive", "now")).code == 0
    for name, digest in digests.items():
        for size in (3, 1_000):
            assert await app.replayed(app.bus, name, size) == digest
    assert (await app.run("trim")).code == 0
    for name, digest in digests.items():
        code, found = await app.rebuild("--app", name, "--verify")
        assert (code, found["same"]) == (0, True), found
        if app.keyring is None:
            assert await app.replayed(archive_bus(app.blobs()), name, 50) == digest


@pytest.mark.long("kafka")
@redis_or_kafka_with_keys
async def test_a_file_sent_again_changes_no_graph_and_no_rebuild(app: Archived) -> None:
    first, second = file_of("first", range(120)), file_of("second", range(150))
    await push(app, "first")
    async with app.worker(batch_events=30):
        await emitted(app, first)
        await emitted(app, second)
        await app.applied()
    counts = {name: await seen(app, name) for name in APPS}
    assert counts == {"shop": 135, "shop_x": 135}
    await push(app, "second")
    async with app.worker():  # it reads the last entries back, and the marks
        await emitted(app, first)
        await app.emit("shop", range(1_000, 1_020))
        await app.applied()
    async with app.worker(batch_events=100):
        await emitted(app, second)
        await emitted(app, first)
        await app.applied()
    assert {name: await seen(app, name) for name in APPS} == {"shop": counts["shop"] + 20, "shop_x": counts["shop_x"]}
    assert (await app.run("dlq", "retry", "--all")).code == 0
    async with app.worker():
        await app.applied()
        await emitted(app, second)
        await app.applied()
    await check_rebuilds(app)


@pytest.mark.long
@redis_or_kafka_with_keys
async def test_a_worker_that_is_killed_again_and_again_knows_each_copy(app: Archived) -> None:
    file = file_of("killed", range(300))
    await push(app, "first")
    for round in range(4):
        async with app.worker(batch_events=11):
            sending = asyncio.create_task(emitted(app, file))
            while not sending.done():
                await turns()
                if round % 2 == 0 and await app.bus.log.after(0, "", limit=1):
                    break  # the worker ends while the file is sent
        await sending
    async with app.worker():
        await app.applied()
    assert {name: await seen(app, name) for name in APPS} == {"shop": 150, "shop_x": 150}
    await check_rebuilds(app)


@pytest.mark.long(keep=("redis-app",))
@pytest.mark.parametrize("whole", [False, True], ids=["user", "app"])
async def test_a_file_sent_again_after_an_erasure_has_the_effect_it_has_in_a_rebuild(
    app: Archived, *, whole: bool
) -> None:
    """What is left of a series decides: the marks must not remember the numbers of what was erased at its end."""
    file = file_of("users", range(120))  # the last one in the shop is of u2
    app.timing = replace(TIMING, graph_look_s=0.05)
    await push(app, "first")
    async with app.worker():
        await emitted(app, file)
        await app.applied()
        done = await app.run("erase", "--app", "shop", "--yes", *(() if whole else ("--user", "u2")))
        assert done.code == 0, done.err + done.out
    async with app.worker():
        await emitted(app, file)
        await app.emit("shop", range(1_000, 1_003))  # a rebuild reads up to the last effect
        await app.applied()
    expected = 60 if whole else 30 + len([each for each in file if each.appid == "shop" and each.id == "users-118"])
    assert await seen(app, "shop") == expected + 3
    code, found = await app.rebuild("--app", "shop", "--verify")
    assert (code, found["same"]) == (0, True), found


@pytest.mark.long("kafka")
async def test_a_worker_learns_of_an_erasure_while_it_runs(app: Archived) -> None:
    file = file_of("users", range(120))
    app.timing = replace(TIMING, graph_look_s=0.05)
    await push(app, "first")
    async with app.worker():
        await emitted(app, file)
        await app.applied()
        assert (await app.run("erase", "--app", "shop", "--yes")).code == 0

        async def sent_again() -> int:
            await emitted(app, file)
            await app.applied()
            return await seen(app, "shop")

        await until(sent_again)
        assert await sent_again() == 60


async def test_the_marks_on_the_bus_are_those_of_the_log(app: Archived) -> None:
    """Also of events in binary mode, by the numbers of their sources."""
    await push(app, "first")
    now = datetime.now(UTC).isoformat()

    def fields(number: int) -> dict[bytes, bytes]:
        attributes = {
            "specversion": "1.0", "id": f"b{number}", "source": "/meter", "type": "order.placed", "time": now,
            "appid": "shop", "chatid": "c", "workflow": "Shop", "sequence": str(number),
        }  # fmt: skip
        made = {wire.PREFIX + name.encode(): value.encode() for name, value in attributes.items()}
        return made | {wire.CONTENT_TYPE: b"application/json", wire.DATA: b'{"order": "o", "parts": 1}'}

    for _ in range(3):
        async with app.worker():
            await app.transport.append([Outgoing(key="shop/c", fields=fields(number)) for number in range(1, 80)])
            await app.applied()
    assert await seen(app, "shop") == 79
