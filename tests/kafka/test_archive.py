"""The archive holds each entry of the log once, and gives it to all readers after the bus was trimmed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.edges.test_cli import Call, call, clean_environment
from tests.redis.test_rebuild import App
from tests.services.layouts import spread
from tests.services.waiting import until

from graphweft_contracts import channels
from graphweft_workers.archive.archive_bus import archive_bus
from graphweft_workers.archive.archived_bus import archived
from graphweft_workers.archive.archiver import Archiver, archive_now
from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.archive.log_gaps import missing_entries
from graphweft_workers.archive.verify import verify, verify_rules
from graphweft_workers.drivers import bus_driver
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.driver import BusOptions
from graphweft_workers.ports.event_log import CommittedPosition, Entry

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

redis_or_kafka_with_keys = pytest.mark.parametrize(
    ("own_bus_url", "with_keys"), [("redis", False), ("kafka", True)], indirect=True
)
"""Both buses, one of them with keys."""
KILLS = int(os.environ.get("GRAPHWEFT_KILLS", "4"))


class Archived(App):
    """Commands on one server with an archive."""

    def __init__(
        self,
        url: str,
        call: Call,
        folder: Path,
        *,
        bus_url: str | None,
        graph_url: str | None = None,
        with_keys: bool = False,
    ) -> None:
        super().__init__(url, call, folder, bus_url=bus_url, graph_url=graph_url, with_keys=with_keys)
        (folder / "archive").mkdir(exist_ok=True)
        self.archive = str(folder / "archive")
        self.settings["GRAPHWEFT_ARCHIVE_URL"] = self.archive

    def blobs(self) -> BlobStore:
        return open_blobs(self.archive)

    def bus_alone(self) -> Bus:
        """Return the bus with the archive behind it."""
        return archived(super().bus_alone(), open_blobs(str(self.folder / "archive")))

    @contextlib.asynccontextmanager
    async def alone(self, group: str = channels.MUTATION_GROUP) -> AsyncIterator[Bus]:
        """Give the bus without the archive."""
        own = {"kafka_barrier_s": 5.0, "kafka_instance": None}
        options = BusOptions(group=group, new=spread(2), lease_s=2.0, own=own)
        async with contextlib.aclosing(bus_driver(self.bus_url).make_bus(self.bus_url, options)) as bus:
            yield bus

    async def everything(self) -> list[list[Entry]]:
        """Return the entries of each partition that the bus holds."""
        async with self.alone() as bus:
            return [list(await bus.log.after(number, "", limit=100_000)) for number in range(2)]


@pytest.fixture
async def app(
    own_bus_url: str | None, url: str, call: Call, tmp_path: Path, *, with_keys: bool
) -> AsyncIterator[Archived]:
    made = Archived(url, call, tmp_path, bus_url=own_bus_url, with_keys=with_keys)
    async with contextlib.aclosing(made) as app:
        await app.bus.partitions.count()
        yield app


async def faults(app: Archived, bus: Bus | None = None) -> list[str]:
    found = [fault async for each in verify(app.blobs(), bus) for fault in each.faults]
    return found + await verify_rules(app.blobs())


@pytest.mark.soak("kafka")
@redis_or_kafka_with_keys
async def test_what_is_trimmed_is_read_from_the_archive(app: Archived) -> None:
    await app.live()
    before = await app.everything()
    digests = {name: await app.digest(name) for name in ("shop", "shop_x")}
    done = await app.run("archive", "now", "--json")
    assert json.loads(done.out)["archived"] == sum(map(len, before))
    assert json.loads((await app.run("archive", "now", "--json")).out)["archived"] == 0
    done = await app.run("archive", "verify", "--json")
    assert (done.code, json.loads(done.out)["faults"]) == (0, []), done.out
    done = await app.run("trim", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["removed"] > 60
    assert sum(map(len, await app.everything())) < sum(map(len, before))
    for name, digest in digests.items():
        code, found = await app.rebuild("--app", name, "--verify")
        assert (code, found["same"], found["live"]["digest"]) == (0, True, digest), found
    for number, entries in enumerate(before):
        for size in (1, 7, 1_000):
            assert await pages(app.bus, number, size) == entries
        assert await app.bus.log.before(number, entries[-1].offset, limit=1_000) == entries
        assert await app.bus.log.before(number, entries[9].offset, limit=4) == entries[6:10]
        assert await app.bus.log.entries(number, [entries[2].offset, entries[-1].offset]) == [entries[2], entries[-1]]
        assert await missing_entries(app.bus, [number]) == {number: 0}
        batch = await app.bus.log.read(number, CommittedPosition(offset=entries[4].offset, count=5), limit=3)
        assert (batch.entries, batch.lost) == (entries[5:8], 0)
    async with app.worker(), app.worker():
        for name in ("shop", "shop_x"):
            await app.emit(name, range(55, 70))  # five of them are copies of trimmed events
        await app.applied()
    for name in digests:
        code, found = await app.rebuild("--app", name, "--verify", "--resume")
        assert (code, found["same"]) == (0, True), found


async def pages(bus: Bus, number: int, size: int) -> list[Entry]:
    found: list[Entry] = []
    while page := await bus.log.after(number, found[-1].offset if found else "", limit=size):
        found += page
    return found


@pytest.mark.soak("kafka")
async def test_copies_of_trimmed_events_have_no_effect(app: Archived) -> None:
    await app.push("first")
    async with app.worker():
        await app.emit("shop", range(30))
        await app.applied()
    digest = await app.digest("shop")
    assert (await app.run("archive", "now")).code == 0
    assert (await app.run("trim")).code == 0
    async with app.worker():  # it opens the partition anew, and knows the window from the archive alone
        await app.emit("shop", range(30))
        await app.applied()
    assert await app.digest("shop") == digest


@pytest.mark.long("kafka")
async def test_nothing_is_trimmed_that_is_not_applied_or_not_archived(app: Archived) -> None:
    await app.push("first")
    await app.emit("shop", range(10))
    assert json.loads((await app.run("trim", "--json")).out)["removed"] == 0  # neither
    async with app.alone() as bus:
        await archive_now(bus, app.blobs())
    done = json.loads((await app.run("trim", "--json")).out)
    assert done["removed"] == 0  # not applied
    assert {each["held_by"] for each in done["partitions"]} == {channels.MUTATION_GROUP}
    async with app.worker():
        await app.applied()
    await app.emit("shop", range(10, 14))
    async with app.worker():
        await app.applied()
    done = json.loads((await app.run("trim", "--json")).out)
    assert sum(map(len, await app.everything())) >= 4  # not archived
    assert done["removed"] >= 10


@pytest.mark.long
@pytest.mark.soak("redis")
@pytest.mark.timeout(240 + 10 * KILLS)
async def test_an_archiver_that_is_killed_loses_and_doubles_nothing(app: Archived) -> None:
    await app.push("first")
    rounds = KILLS
    dice = random.Random(int(os.environ.get("GRAPHWEFT_SEED", "5")))
    environment = clean_environment() | {
        "GRAPHWEFT_BUS_URL": app.bus_url, "GRAPHWEFT_ARCHIVE_URL": app.archive, "GRAPHWEFT_ARCHIVE_EVERY_S": "0.05",
        "GRAPHWEFT_LEASE_S": "0.5", "GRAPHWEFT_PARTITIONS": "2",
    }  # fmt: skip
    if "kafka" in app.bus_url:
        environment["GRAPHWEFT_LEASE_S"] = "6"
        rounds = min(rounds, 4)  # a broker gives the partitions of a dead member away after six seconds
    emitted = 0
    for _ in range(rounds):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _ARCHIVE, env=environment, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        await process.stdout.readline()
        until = asyncio.get_running_loop().time() + dice.random() * 0.5
        while asyncio.get_running_loop().time() < until:
            for name in ("shop", "shop_x"):
                await app.emit(name, range(emitted, emitted + 5))
            emitted += 5
        process.send_signal(signal.SIGKILL)
        await process.wait()
    async with app.alone() as bus:
        await archive_now(bus, app.blobs())
        assert await faults(app, bus) == []
    before = await app.everything()
    alone = archive_bus(app.blobs())
    assert [await pages(alone, number, 500) for number in range(2)] == before


_ARCHIVE = """
import asyncio
from graphweft_workers.wiring.connections import make_archive, make_bus
from graphweft_workers.settings.settings import Settings
from graphweft_workers.archive.archiver import Archiver
async def main():
    settings = Settings.load()
    bus = make_bus(settings, group="graphweft-archive", archived=False)
    print("ready", flush=True)
    archiver = Archiver(bus, make_archive(settings), name="w", every_s=0.05, lease_s=settings.lease_s)
    await archiver.run()
asyncio.run(main())
"""


@pytest.mark.soak("kafka")
async def test_two_archivers_on_one_partition_do_no_harm(app: Archived) -> None:
    await app.emit("shop", range(20))
    blobs = app.blobs()
    async with app.alone() as one, app.alone() as other:
        await asyncio.gather(archive_now(one, blobs), archive_now(other, blobs))
        await app.emit("shop", range(20, 30))
        await asyncio.gather(*(archive_now(bus, blobs) for bus in (one, other, one)))
        assert await faults(app, one) == []
    before = await app.everything()
    assert [await pages(archive_bus(blobs), number, 500) for number in range(2)] == before


@pytest.mark.soak("kafka")
async def test_the_role_archives_merges_and_trims(app: Archived) -> None:
    await app.push("first")
    async with app.alone(channels.ARCHIVE_GROUP) as bus, app.worker():
        archiver = Archiver(bus, app.blobs(), name="a", every_s=0.05, trims=True, lease_s=2.0)
        running = asyncio.create_task(archiver.run())
        for start in range(0, 100, 5):
            before = await app.blobs().names("segments/")
            await app.emit("shop", range(start, start + 5))
            await until(lambda: app.blobs().names("segments/"), lambda names, before=before: [*names] != [*before])
        await app.applied()
        await until(app.everything, lambda found: not any(found), why="all is archived and trimmed")
        archiver.stop()
        await running
    names = await app.blobs().names("segments/")
    assert len(names) < 20 + 2  # small segments were merged
    async with app.alone() as bus:
        assert await faults(app, bus) == []
    code, found = await app.rebuild("--app", "shop", "--verify")
    assert (code, found["same"]) == (0, True), found
    assert found["live"]["nodes"] > 10


@pytest.mark.soak("kafka")
async def test_damage_gaps_and_another_log_are_found(app: Archived) -> None:
    await app.push("first")
    await app.emit("shop", range(10))
    async with app.alone() as bus:
        await archive_now(bus, app.blobs())
        first = await app.blobs().names("segments/")
        await app.emit("shop", range(10, 20))
        await archive_now(bus, app.blobs())
        second = [name for name in await app.blobs().names("segments/") if name not in first]
        await app.emit("shop", range(20, 30))
        await archive_now(bus, app.blobs())
    await app.blobs().delete(second)
    done = await app.run("archive", "verify")
    assert done.code == 1
    assert "are missing" in done.err
    code, found = await app.rebuild("--app", "shop")  # the bus still holds them
    assert (code, sum(each["events"] for each in found["partitions"])) == (0, 30)
    async with app.worker():
        await app.applied()
    assert (await app.run("trim")).code == 0
    done = await app.run("rebuild", "--app", "shop", "--graph-template", "{app_id}.again")
    assert done.code == 2
    assert "lacks 10 entries" in done.err
    file = Path(app.archive) / first[-1]
    file.write_bytes(file.read_bytes()[:-3] + b"xyz")
    done = await app.run("archive", "verify", "--json")
    assert done.code == 1
    assert any("hash" in fault for fault in json.loads(done.out)["faults"])
    await app.blobs().delete(await app.blobs().names("rules/sets/"))
    done = await app.run("archive", "verify", "--json")
    assert any("rules" in fault for fault in json.loads(done.out)["faults"])


async def test_commands_without_an_archive_say_what_to_set(url: str, call: Call) -> None:
    for words in (["archive", "now"], ["archive", "verify"], ["trim"], ["run", "archive"]):
        done: Any = await asyncio.to_thread(call, *words, GRAPHWEFT_BUS_URL=url, GRAPHWEFT_GRAPH_URL=url)
        assert done.code == 2, words
        assert "GRAPHWEFT_ARCHIVE_URL" in done.err


@pytest.mark.soak("kafka")
async def test_status_and_doctor_say_how_far_the_archive_is(app: Archived) -> None:
    async def archive() -> dict[str, Any]:
        done = await app.run("status", "--json")
        assert done.code == 0, done.err
        return dict(json.loads(done.out)["archive"])

    async def check() -> dict[str, Any]:
        done = await app.run("doctor", "--json")
        return dict(next((each for each in json.loads(done.out) if each["check"] == "archive"), {}))

    await app.push("first")
    await app.emit("shop", range(10))
    written = sum(map(len, await app.everything()))
    controls = 2 if "kafka" in app.bus_url else 0
    """Ends of transactions, which Kafka counts."""
    assert await archive() == {
        "enabled": True, "behind": written + controls, "trimmable": 0, "held_by": {"archive": written + controls},
        "lost": 0, "accepted": 0, "breaks": [], "to_rebuild": [], "error": "",
    }  # fmt: skip
    found = await check()
    assert (found["state"], "graphweft run archive" in found["advice"]) == ("warn", True)
    async with app.alone() as bus:
        await archive_now(bus, app.blobs())
    state = await archive()
    assert (state["behind"], channels.MUTATION_GROUP in state["held_by"]) == (0, True)
    async with app.worker():
        await app.applied()
    await app.emit("shop", range(10, 14))
    state = await archive()
    assert 4 <= state["behind"] <= 4 + controls
    assert written <= state["trimmable"] <= written + controls
    assert state["lost"] == 0
    assert f"{state['behind']} entries behind" in (await app.run("status")).out
    assert (await app.run("trim")).code == 0
    assert (await archive())["trimmable"] == 0
    async with app.alone() as bus:  # an operator, or the retention of a topic
        await asyncio.gather(
            *(bus.partitions.trim(each.id, each.end) for each in await bus.partitions.status() if each.end)
        )
    state = await archive()
    assert (state["behind"], 4 <= state["lost"] <= 4 + controls) == (0, True)
    assert f"{state['lost']} entries were trimmed before they were archived" in (await app.run("status")).out
    assert (await check())["state"] == "warn"
    del app.settings["GRAPHWEFT_ARCHIVE_URL"]
    state = await archive()
    assert (state["enabled"], state["lost"]) == (False, written + controls + 4)
    assert "archive the log before" in (await check())["advice"]


@pytest.mark.soak("kafka")
async def test_an_archive_that_does_not_answer_does_not_fail_status(app: Archived) -> None:
    app.settings["GRAPHWEFT_ARCHIVE_URL"] = str(app.folder / "file" / "archive")
    (app.folder / "file").write_text("no folder")
    done = await app.run("status", "--json")
    assert (done.code, json.loads(done.out)["archive"]["enabled"]) == (0, True), done.err
