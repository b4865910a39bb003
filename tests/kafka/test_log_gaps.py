"""A log that lost entries: somebody accepts the loss, and replays and erasures go on and say what they are without."""

from __future__ import annotations

import json

import pytest
from tests.edges.test_cli import call
from tests.kafka.test_archive import Archived, app, faults, pages
from tests.kafka.test_erase import SECRET, everywhere, said

from graphweft_workers.archive.archived_bus import archived
from graphweft_workers.archive.archiver import archive_now
from graphweft_workers.archive.log_gaps import log_gaps
from graphweft_workers.ports.event_log import CommittedPosition, EntriesLost

__all__ = ("app", "call")  # fixtures

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

LOST = 9
"""Entries that leave the bus before anybody has read or archived them."""


async def partition_of_ada(app: Archived) -> int:
    """Return the partition of the events of ada in the app ``shop``; each partition holds events of all apps."""
    return (await app.bus.partitions.layout()).partition_of("shop/chat-ada")


async def lose(app: Archived, number: int) -> None:
    """Emit events of the app ``shop`` alone, and trim some of them from the bus as the retention of a topic does."""
    before = (await pages(app.bus, number, 1_000))[-1].offset
    for event in range(2, 6):
        await said(app, "shop", "ada", event, SECRET)
    async with app.alone() as bus:
        lost = await bus.log.after(number, before, limit=LOST)
        await bus.partitions.trim(number, lost[-1].offset)


@pytest.mark.soak("kafka")
async def test_a_loss_that_was_accepted_stops_neither_the_app_nor_its_neighbours(app: Archived) -> None:
    await app.push("first")
    neighbour, number = "shop_x", await partition_of_ada(app)
    async with app.worker():
        for name in ("shop", neighbour):
            for user in ("ada", "bob"):
                await said(app, name, user, 1, SECRET if user == "ada" else "bobs")
        await app.applied()
    async with app.alone() as bus:
        await archive_now(bus, app.blobs())
    await lose(app, number)
    async with app.worker():
        await app.applied()
        await said(app, neighbour, "bob", 2, "bobs")
        await app.applied()
        async with app.alone() as bus:
            await archive_now(bus, app.blobs())
        replays = [
            ("rebuild", "--app", neighbour, "--verify", "--swap"),
            ("rebuild", "--app", "shop", "--verify", "--swap"),
            ("query", "--app", "shop", "--as-of", "1m", "RETURN 1"),
            ("why", "--app", "shop", "--label", "Order", "--key", "id=bob-bobs-1"),
            ("diff", "--app", "shop", "--rules", str(app.folder / "rules")),
            ("export", "--app", neighbour, str(app.folder / "one.export")),
            ("erase", "--app", neighbour, "--user", "ada", "--yes"),
            ("erase", "--app", "shop", "--user", "ada", "--yes"),
        ]
        for words in replays:
            done = await app.run(*words)
            assert done.code == 2, (words, done)
            assert f"lacks {LOST} entries" in done.err
            assert "--accept-lost" in done.err
            assert "GRAPHWEFT_ARCHIVE_URL" not in done.err
        with pytest.raises(EntriesLost):
            await pages(app.bus, number, 1_000)
        done = await app.run("dlq", "drop", "--reason", "trimmed", "--json")
        [accepted] = json.loads(done.out)["accepted"]
        assert (accepted["partition"], accepted["last"] - accepted["first"] + 1) == (number, LOST), done
        for words in replays:
            done = await app.run(*words)
            assert done.code == 0, (words, done)
            said_lost = " ".join((done.out + done.err).replace("│", " ").split())
            assert f"{LOST} entries of partition {number}" in said_lost, (words, done)
            assert "accepted as lost by " in said_lost, (words, done)
        assert await everywhere(app, SECRET) == []
        for name in ("shop", neighbour):
            code, found = await app.rebuild("--app", name, "--drop")
            code, found = await app.rebuild("--app", name, "--verify")
            assert (code, found["same"], found["lost"]) == (0, True, LOST), found
    async with app.alone() as bus:
        assert await faults(app, bus) == []
    state = json.loads((await app.run("status", "--json")).out)["archive"]
    assert (state["lost"], state["accepted"]) == (0, LOST), state


@pytest.mark.soak("kafka")
async def test_a_loss_of_what_was_applied_has_no_letter_and_can_be_accepted(app: Archived) -> None:
    await app.push("first")
    number = await partition_of_ada(app)
    layout = await app.bus.partitions.layout()
    other = next(name for name in "abcdefgh" if layout.partition_of(f"shop/chat-{name}") == number)
    async with app.worker():
        await said(app, "shop", other, 1, "lost")
        await said(app, "shop", "ada", 1, SECRET)
        await said(app, "shop", "bob", 1, "bobs")
        await app.applied()
        async with app.alone() as bus:  # the archive role was set up late
            place = (await bus.log.after(number, "", limit=2))[-1].offset
            await bus.partitions.trim(number, place)
            await archive_now(bus, app.blobs())
        refused = await app.run("erase", "--app", "shop", "--user", "ada", "--yes")
        assert (refused.code, "archive verify --accept-lost" in refused.err) == (2, True), refused
        assert (await app.run("archive", "verify")).code == 1
        done = await app.run("archive", "verify", "--accept-lost")
        lost = [f"lacks {count} entries of partition" for count in (2, 3)]  # Kafka counts ends of transactions
        assert (done.code, any(each in done.out for each in lost)) == (0, True), done
        done = await app.run("erase", "--app", "shop", "--user", "ada", "--yes")
        assert done.code == 0, done
    assert await everywhere(app, SECRET) == []
    async with app.alone() as bus:  # what is lost later needs a consent of its own
        with_archive = archived(bus, app.blobs())
        [known] = await log_gaps(with_archive, [number])
        await said(app, "shop", "ada", 2, "more")
        end = (await bus.log.after(number, "", limit=1_000))[-1].offset
        await bus.partitions.trim(number, end)
        first, second = await log_gaps(with_archive, [number])
        assert (first, second.accepted) == (known, None)


@pytest.mark.soak("kafka")
async def test_a_worker_behind_a_gap_reads_what_the_archive_has_behind_it(app: Archived) -> None:
    number = await partition_of_ada(app)
    await said(app, "shop", "ada", 1, "first")
    async with app.alone() as bus:
        await archive_now(bus, app.blobs())
        known = await pages(bus, number, 1_000)
        await lose(app, number)
        behind = await pages(bus, number, 1_000)
        await archive_now(bus, app.blobs())
        await said(app, "shop", "ada", 9, "last")
        await bus.partitions.trim(number, behind[-1].offset)  # archived, and gone before a worker read it
    batch = await app.bus.log.read(number, CommittedPosition(offset=known[-1].offset, count=len(known)), limit=1_000)
    assert (list(batch.entries), batch.lost >= LOST) == (behind, True)


@pytest.mark.soak(keep=("kafka",))
async def test_a_worker_reads_on_in_the_archive_from_the_end_of_a_transaction(app: Archived) -> None:
    """Which has an offset on Kafka, and is no entry: rules are activated by one."""
    await app.push("first")
    number = await partition_of_ada(app)
    async with app.worker():
        await app.applied()
    position = await app.bus.partitions.committed(number)
    for event in range(3):
        await said(app, "shop", "ada", event, "more")
    async with app.alone() as bus:
        await archive_now(bus, app.blobs())
        entries = list(await bus.log.after(number, position.offset, limit=1_000))
        await bus.partitions.trim(number, entries[-1].offset)  # archived, and gone before a worker read it
    batch = await app.bus.log.read(number, position, limit=1_000)
    assert (list(batch.entries), batch.lost) == (entries, 0)
    async with app.worker():
        await app.applied()
    assert (await app.rebuild("--app", "shop", "--verify"))[1]["same"]
