"""One command at a time makes, exchanges or deletes the graphs of an app."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import override

import pytest
from structlog.testing import capture_logs
from tests.services.virtual_time import VIRTUAL
from tests.unit.test_job_account import Kept

from graphweft_contracts import BusUnavailable
from graphweft_workers.archive.blob_records import BlobRecords
from graphweft_workers.archive.blobs import ArchiveReadOnly, open_blobs
from graphweft_workers.replay.graphs_lease import LEASE, GraphsLease
from graphweft_workers.support.timing import TIMING

LEASE_S = TIMING.replay.lease_s


def lease(kept: Kept, command: str = "graphweft rebuild", app_id: str = "shop") -> GraphsLease:
    return GraphsLease(kept, app_id=app_id, command=command, clock=VIRTUAL)


@pytest.fixture
def kept() -> Kept:
    return Kept()


async def test_a_second_command_is_refused_and_told_who_works_and_what_to_do(kept: Kept) -> None:
    async with lease(kept).held():
        with pytest.raises(BusUnavailable) as refused:
            async with lease(kept, "graphweft erase").held():
                pytest.fail("two at once")
        assert "`graphweft rebuild` works on the graphs of 'shop' since 2026-01-" in str(refused.value)
        assert "process " in str(refused.value)
        assert "wait until it has ended, then give this command again" in str(refused.value)
        async with lease(kept, app_id="shop_x").held():
            pass
    assert kept.found == {}
    async with lease(kept).held():
        pass


class Commands:
    """Commands on the graphs of one app, and how many of them worked at once."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._working = 0
        self.most = 0
        self.done = 0

    async def run(self, *, after_s: float = 0.0) -> None:
        """Run a command of half a minute."""
        await VIRTUAL.sleep(after_s)
        async with lease(self._kept).held():
            self._working += 1
            self.most = max(self.most, self._working)
            await VIRTUAL.sleep(30.0)
            self._working -= 1
            self.done += 1


async def test_of_commands_that_begin_at_once_one_works_at_a_time(kept: Kept) -> None:
    commands = Commands(kept)
    outcomes = await asyncio.gather(*(commands.run() for _ in range(5)), return_exceptions=True)
    assert (commands.most, commands.done) == (1, 1)
    assert sum(isinstance(outcome, BusUnavailable) for outcome in outcomes) == 4
    assert kept.found == {}


@pytest.mark.parametrize("name", ["0" * 32, "f" * 32])
@pytest.mark.parametrize(
    "record",
    [
        b'{"command": "graphweft rebuild", "where": "", "since": "", "asks": true, "over": []}',
        b'{"command": "graphweft rebuild", "asks": false}', b"{}", b"[]", b"", b"not JSON", b"[" * 5_000,
    ],
    ids=lambda record: record[:26].decode(),
)  # fmt: skip
async def test_a_killed_command_holds_the_next_one_up_for_the_lease_alone(kept: Kept, record: bytes, name: str) -> None:
    kept.found[f"{LEASE}shop/{name}"] = record
    begun = VIRTUAL.monotonic()
    async with lease(kept).held():
        assert LEASE_S <= VIRTUAL.monotonic() - begun <= LEASE_S + TIMING.replay.lease_beat_s
        assert len(kept.found) == 1


async def test_one_that_waits_for_a_killed_one_is_not_taken_for_killed(kept: Kept) -> None:
    kept.found[f"{LEASE}shop/{'0' * 32}"] = b"?"
    commands = Commands(kept)
    outcomes = await asyncio.gather(
        *(commands.run(after_s=number * 0.7) for number in range(12)), return_exceptions=True
    )
    assert (commands.most, commands.done >= 1) == (1, True)
    assert all(outcome is None or isinstance(outcome, BusUnavailable) for outcome in outcomes)


async def test_commands_with_bus_and_archive_exclude_those_that_have_one_of_both(kept: Kept, tmp_path: Path) -> None:
    archive = BlobRecords(open_blobs(str(tmp_path)))
    whole = [(kept, archive), (kept,), (archive,)]
    for places, others in (whole[0], whole[1:]), (whole[1], whole[:1]), (whole[2], whole[:1]):
        async with GraphsLease(*places, app_id="shop", command="graphweft rebuild", clock=VIRTUAL).held():
            for each in others:
                other = GraphsLease(*each, app_id="shop", command="graphweft erase", clock=VIRTUAL)
                with pytest.raises(BusUnavailable, match="`graphweft rebuild` works on the graphs of 'shop'"):
                    async with other.held():
                        pytest.fail("two at once")
        assert kept.found == (await archive.after(None)).found == {}


async def test_a_command_is_ended_though_one_with_the_archive_alone_has_taken_over_and_ended(tmp_path: Path) -> None:
    bus, archive = Stalled(), BlobRecords(open_blobs(str(tmp_path)))

    first = GraphsLease(bus, archive, app_id="shop", command="graphweft erase", clock=VIRTUAL)

    async def work() -> None:
        async with first.held():
            bus.stops = True  # it stands still at its next sign of life
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await bus.stopped.wait()
    async with GraphsLease(archive, app_id="shop", command="graphweft rebuild", clock=VIRTUAL).held():
        pass
    with pytest.raises(BusUnavailable, match="another command has taken over"):
        await first.check()
    bus.goes_on.set()
    with pytest.raises(BusUnavailable, match="another command has taken over the graphs of 'shop'"):
        async with asyncio.timeout(30):
            await working


class ReadOnly(Kept):
    """Records of an archive that can only be read."""

    @override
    async def put(self, key: str, record: bytes | None) -> None:
        raise ArchiveReadOnly("no right to write")


@pytest.mark.parametrize("alone", [False, True])
async def test_a_command_reads_an_archive_that_it_must_not_write(kept: Kept, *, alone: bool) -> None:
    places = [ReadOnly()] if alone else [kept, ReadOnly()]
    held = GraphsLease(*places, app_id="shop", command="graphweft rebuild", clock=VIRTUAL)
    with capture_logs() as logged:
        async with held.held():
            await VIRTUAL.sleep(5.0)
            await held.check()
            assert bool(kept.found) is not alone
    assert [each["event"] for each in logged] == ["no_lease_in_the_archive"]
    assert kept.found == {}


class Stalled(Kept):
    """Records whose next write is done only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.stops = False
        self.stopped, self.goes_on = asyncio.Event(), asyncio.Event()

    async def put(self, key: str, record: bytes | None) -> None:
        if self.stops:
            self.stops = False
            self.stopped.set()
            await self.goes_on.wait()
        await super().put(key, record)


@pytest.mark.parametrize("writes_again", [False, True])
async def test_a_command_that_stood_still_for_too_long_is_ended(*, writes_again: bool) -> None:
    records = Stalled()
    first, ended = lease(records), asyncio.Event()

    async def work() -> None:
        async with first.held():
            records.stops = True  # at its next sign of life
            await ended.wait()

    working = asyncio.create_task(work())
    await records.stopped.wait()
    async with lease(records, "graphweft erase").held():
        with pytest.raises(BusUnavailable, match=r"`graphweft erase` .* has taken over the graphs of 'shop'"):
            await first.check()
        if writes_again:  # a write that was on its way puts the record of the first one back
            records.goes_on.set()
        else:
            working.cancel()
        outcome = (await asyncio.gather(working, return_exceptions=True))[0]
        assert isinstance(outcome, BusUnavailable if writes_again else asyncio.CancelledError)
        await VIRTUAL.sleep(5.0)
    assert records.found == {}


async def test_a_command_is_ended_though_the_one_that_took_over_has_ended_before() -> None:
    records = Stalled()

    async def work() -> None:
        async with lease(records).held():
            records.stops = True
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await records.stopped.wait()
    async with lease(records, "graphweft erase").held():
        pass
    assert records.found == {}
    records.goes_on.set()
    with pytest.raises(BusUnavailable, match="another command has taken over the graphs of 'shop'"):
        async with asyncio.timeout(30):
            await working
    assert records.found == {}


async def test_a_bus_that_fails_for_a_moment_ends_nothing(kept: Kept) -> None:
    async with lease(kept).held():
        kept.refuses = True
        await VIRTUAL.sleep(5.0)
        kept.refuses = False
        await VIRTUAL.sleep(5.0)
    assert kept.found == {}
