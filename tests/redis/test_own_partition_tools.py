"""Commands know the partition of its own of an app: archive, rebuild, export, restore, erase, mend."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from tests.edges.test_cli import Call, call
from tests.kafka.test_archive import Archived
from tests.kafka.test_export import exported
from tests.redis.test_rebuild import keys_or_none

from graphweft_contracts import Event, channels, wire
from graphweft_workers.archive.archive_bus import archive_bus

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
OWN = 2
"""The number behind those of ``spread(2)``."""
STREAM = channels.own_events_stream(OWN)


@pytest.fixture
async def app(url: str, call: Call, tmp_path: Path, *, with_keys: bool) -> AsyncIterator[Archived]:
    async with contextlib.aclosing(Archived(url, call, tmp_path, bus_url=None, with_keys=with_keys)) as app:
        await app.bus.partitions.count()
        yield app


@pytest.fixture
async def raw(url: str) -> AsyncIterator[Any]:
    async with redis.Redis.from_url(url) as connection:
        yield connection


def order(number: int, app_id: str = "shop", *, key: str = "o") -> Event:
    return Event.create(
        "order.placed", app_id=app_id, chat_id=f"c{number % 3}", workflow="Shop", id=f"{key}{number}", source="/test",
        data={"order": f"{key}{number}", "parts": 1, "customer": f"customer-{key}"},
    )  # fmt: skip


async def own(app: Archived) -> None:
    """Give the app its partition, and let what this emits follow at once."""
    done = await app.run("order", "shop", "own", "--force")
    assert done.code == 0, done.err
    await app.transport.aclose()
    app.transport = type(app.transport)(app.bus_url, signing_key=app.transport._signing_key)  # type: ignore[attr-defined, call-arg]


async def beside(app: Archived) -> None:
    """Let an app move, and apply an event of it and nine of its neighbour after that; a worker runs."""
    await app._append([order(0)])
    await app.applied()
    await own(app)
    await app._append([order(1), *(order(number, "shop_x") for number in range(9))])
    await app.applied()


async def moved(app: Archived, raw: Any) -> str:
    """Let an app live in shared partitions, then in one of its own, beside what does not count; return its digest."""
    await app.push("first")
    async with app.worker():
        await app._append(order(number) for number in range(30))
        await app._append(order(number, "shop_x") for number in range(30))
        await app.applied()
        await own(app)
        await app.push("second")
        await app._append(order(number) for number in range(20, 50))
        await app._append(order(number, "shop_x", key="x") for number in range(30))
        await app.applied()
    async with (
        app.worker()
    ):  # one that does not have the layout of a moment ago: the events are later by their ids alone
        await raw.xadd(STREAM, wire.encode(order(99, "shop_x", key="foreign")))
        layout = await app.bus.partitions.layout()
        late_ms = round(layout.own["shop"].since.timestamp() * 1000)
        for partition in range(2):
            fields = wire.encode(order(98, key="late"))
            await raw.xadd(channels.events_stream(partition), fields, id=f"{late_ms}-{partition}")
        await app._append(order(number) for number in range(50, 60))
        await app.applied()
    assert await app.read("shop", "MATCH (o:Order) RETURN count(o), min(o.times), max(o.times)") == ((60, 1, 2),)
    assert await app.read("shop_x", "MATCH (o:Order) WHERE o.id = 'foreign99' RETURN o.id") == ()
    return await app.digest("shop")


@pytest.mark.long("unsigned")
@keys_or_none
async def test_an_app_that_moved_is_archived_rebuilt_exported_restored_and_erased(app: Archived, raw: Any) -> None:
    digest = await moved(app, raw)
    code, found = await app.rebuild("--app", "shop", "--verify")
    assert (code, found["same"]) == (0, True), found
    assert [each["partition"] for each in found["partitions"]] == [0, OWN], "shared ones first"
    assert (await app.run("archive", "now")).code == 0
    assert json.loads((await app.run("trim", "--json")).out)["removed"] > 60
    assert await raw.xlen(STREAM) == 0
    for name in app.apps:
        code, found = await app.rebuild("--app", name, "--verify", "--graph-template", "again_{app_id}")
        assert (code, found["same"]) == (0, True), found
    assert (await app.run("archive", "verify")).code == 0
    alone = archive_bus(app.blobs())

    async def held() -> list[str]:
        async with app.alone() as bus:  # and a reader that has read nothing yet
            logs = (archive_bus(app.blobs()).log, bus.log)
            there = [entry for log in logs for entry in await log.after(OWN, "", limit=1000)]
        return [entry.offset for entry in there if b"customer-o" in entry.fields.get(wire.DATA, b"")]

    assert len(await held()) > 30
    assert await alone.partitions.layout() == await app.bus.partitions.layout()
    assert await alone.partitions.count() == OWN + 1
    file, about = await exported(app)
    assert about["graph"]["sha256"] == digest
    assert (await app.run("order", "again", "own", "--force")).code == 0
    done = await app.run("restore", str(file), "--as", "again")
    assert done.code == 0, done.err
    assert await app.digest("again") == digest
    await own(app)
    async with app.worker():
        await app._append([order(70, "again"), order(71)])
        await app.applied()
        assert len(await app.bus.log.after(OWN + 1, "", limit=9)) > 1, "an activation, and the event"
        done = await app.run("erase", "--app", "shop", "--yes")
        assert done.code == 0, done.err
    assert await held() == [], "archive and bus"
    assert await app.read("again", "MATCH (o:Order) WHERE o.id = 'o70' RETURN o.times") == ((1,),)


@pytest.mark.parametrize("names", ["shop", None], ids=["names the app", "names no app"])
@pytest.mark.parametrize("with_keys", [False])
async def test_a_drop_that_a_neighbour_forges_takes_nothing_from_a_rebuild(
    app: Archived, raw: Any, names: str | None
) -> None:
    await app.push("first")
    async with app.worker():
        await app._append(order(number) for number in range(5))
        await app.applied()
        await own(app)
    digest = await app.digest("shop")
    layout = await app.bus.partitions.layout()
    late_ms = round(layout.own["shop"].since.timestamp() * 1000)
    for partition in range(2):
        there = tuple(entry.offset for entry in await app.bus.log.after(partition, "", limit=100))
        drop = wire.DroppedLetter(names, None, None, there, "invalid_event").encode()
        await raw.xadd(channels.events_stream(partition), {wire.DROPPED: drop}, id=f"{late_ms}-{partition}")
    code, found = await app.rebuild("--app", "shop", "--verify")
    assert (code, found["same"]) == (0, True), found
    assert await app.digest("shop") == digest


@pytest.mark.parametrize("with_keys", [False])
async def test_dead_letters_are_settled_before_an_app_moves(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        unknown = order(1).model_copy(update={"workflow": "Nope"})
        await app._append([order(0), unknown])
        await app.applied()
    refused = await app.run("order", "shop", "own")
    assert refused.code != 0
    assert "1 dead letter is there of this app" in refused.err
    assert (await app.run("order", "shop", "own", "--force")).code == 0
    kept = await app.run("dlq", "drop", "--all")
    assert "'shop' has partition 2 of its own since" in kept.out + kept.err
    assert len(json.loads((await app.run("dlq", "list", "--json")).out)) == 1


@pytest.mark.long("unsigned")
@keys_or_none
async def test_a_bus_that_forgot_the_partition_gets_it_back_from_the_archive(app: Archived, raw: Any) -> None:
    digest = await moved(app, raw)
    assert (await app.run("archive", "now")).code == 0
    before = await app.bus.partitions.layout()
    await raw.hdel(channels.ORDERS, "shop")
    refused = await app.run("archive", "now")
    assert (refused.code, "graphweft bus mend all" in refused.err) == (1, True), refused.err
    done = await app.run("order", "other", "own", "--json", "--force")
    assert json.loads(done.out)["own"] == {"other": OWN + 1}, "no number is given twice"
    mended = await app.run("bus", "mend", "all")
    assert "the bus knows the own partition of 'shop' again" in mended.out, mended.err
    after = await app.bus.partitions.layout()
    assert after.own["shop"] == before.own["shop"]
    assert (await app.run("archive", "now")).code == 0
    assert await app.digest("shop") == digest
    code, found = await app.rebuild("--app", "shop", "--verify")
    assert (code, found["same"]) == (0, True), found


async def test_a_bus_that_gave_the_number_to_another_app_is_not_mended(app: Archived, raw: Any) -> None:
    await own(app)
    await app.push("first")
    assert (await app.run("archive", "now")).code == 0
    stored = (await raw.hget(channels.ORDERS, "shop")).decode()
    await raw.hdel(channels.ORDERS, "shop")
    await raw.hset(channels.ORDERS, "thief", stored)
    mended = await app.run("bus", "mend", "all")
    assert (mended.code, "'thief'" in mended.err) == (2, True), mended.err


async def test_the_largest_sequence_is_archived_and_trimmed(app: Archived, raw: Any) -> None:
    await app.push("first")
    async with app.worker():
        await beside(app)
        seconds, _ = await raw.time()
        await raw.xadd(STREAM, {"a": "b"}, id=f"{(seconds + 1) * 1000}-{2**64 - 1}")
        await app.applied()
    assert (await app.run("archive", "now")).code == 0
    done = await app.run("trim")
    assert done.code == 0, done.err
    streams = (channels.events_stream(0), channels.events_stream(1), STREAM)
    assert [await raw.xlen(stream) for stream in streams] == [0, 0, 0]
    async with app.worker():
        await app._append([order(2)])
        await app.applied()
        assert (await app.run("erase", "--app", "shop", "--yes")).code == 0


async def test_others_are_trimmed_if_one_partition_refuses(app: Archived, raw: Any) -> None:
    await app.push("first")
    async with app.worker():
        await beside(app)
    assert (await app.run("archive", "now")).code == 0
    await raw.rename(channels.events_stream(0), "aside")
    await raw.set(channels.events_stream(0), "x")
    done = await app.run("trim")
    assert done.code == 1
    assert "partition 0 could not be trimmed" in " ".join(done.err.split())
    assert [await raw.xlen(stream) for stream in (channels.events_stream(1), STREAM)] == [0, 0]


@pytest.mark.long("events:0", "own:2")
@pytest.mark.parametrize("stream", [channels.events_stream(0), channels.events_stream(1), STREAM])
async def test_a_tail_that_was_trimmed_unread_keeps_nobody_from_erasing(app: Archived, raw: Any, stream: str) -> None:
    await app.push("first")
    async with app.worker():
        await beside(app)
        await raw.xadd(stream, {"a": "b"}, maxlen=0, approximate=False)
        for name in ("shop", "shop_x"):
            done = await app.run("erase", "--app", name, "--yes")
            assert done.code == 0, done.err
