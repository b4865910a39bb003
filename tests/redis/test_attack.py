"""Attempts to lose, double or hold up events by what other apps, owners and operators do."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.redis.test_nothing_silent import (
    COUNT,
    ORDERS,
    Broken,
    Over,
    Slow,
    placed,
    put,
    rules_of,
    value,
    working,
)
from tests.services.buses import applied
from tests.services.waiting import until

from graphweft import Event
from graphweft.transport import Transport
from graphweft_contracts import DeadLetter, GraphUnavailable, InvalidSettings, channels, wire
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.engine.apply import app_queues
from graphweft_workers.engine.failures.retries import drop, retry
from graphweft_workers.engine.failures.set_aside import set_aside
from graphweft_workers.engine.failures.skips import MOST_OFFSETS, Skips
from graphweft_workers.engine.log import history
from graphweft_workers.engine.log import read as reading_module
from graphweft_workers.engine.log.ledger_reader import ledger_as_lived
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports import event_decoder
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import DeadLetters, letter_with
from graphweft_workers.ports.graph_store import GraphStore, Write, WriteResult
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.reports.delivery import wait_until_applied
from graphweft_workers.rule_sets.active_rules import FixedRules
from graphweft_workers.support.timing import QueueTiming, Timing

pytestmark = pytest.mark.integration
PARTITIONS = 2


async def test_emit_waits_for_its_app_while_another_one_is_parked(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    """An app that takes a moment is not done because the note names another one that is behind."""
    timing = SimpleNamespace(**asdict(QueueTiming(park_s=0.3)))
    slow, mine = Slow(graph, "slow"), None
    mine = Slow(slow, "mine")  # type: ignore[arg-type]
    mine.free.set()
    await put(transport, [placed(number, "slow", chat="c") for number in range(40)])
    async with working(
        bus, mine, rules_of(tmp_path), batch_events=4, timing=Timing(queues=cast("QueueTiming", timing))
    ):

        async def parked() -> bool:
            return any("slow" in PositionNote.decode(part.note).parked for part in await bus.partitions.status())

        await until(parked)
        timing.park_s = 30.0  # as between 0.1 s, when nobody waits, and 1 s
        mine.free.clear()
        positions = await put(transport, [placed(1, "mine", chat="c"), placed(1, "other", chat="c")])
        last = {int(at.partition(":")[0]): at.partition(":")[2] for at in positions}
        await mine.waits.wait()
        try:
            assert not await wait_until_applied(bus, last, apps={"mine"}, timeout_s=2.0)
            timing.park_s = 0.3  # now it is shown, and others need not wait for it
            assert await wait_until_applied(bus, last, apps={"other"}, timeout_s=120)
            mine.free.set()
            assert await wait_until_applied(bus, last, apps={"mine"}, timeout_s=120)
        finally:
            mine.free.set()
            slow.free.set()
        await applied(bus)


class Unmarked:
    """A graph server that says nothing of the marks of one app."""

    def __init__(self, graph: GraphStore, app: str) -> None:
        self._graph = graph
        self._app = app
        self.mended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def checkpoints(self, app_id: str, *, timeout_s: float) -> Any:
        if app_id == self._app and not self.mended:
            raise GraphUnavailable("the mark was overwritten", retry_after_s=0.05)
        return await self._graph.checkpoints(app_id, timeout_s=timeout_s)

    async def progress(self, app_id: str, partition: int) -> Any:
        if app_id == self._app and not self.mended:
            raise GraphUnavailable("the mark was overwritten", retry_after_s=0.05)
        return await self._graph.progress(app_id, partition)


async def test_an_app_whose_marks_cannot_be_read_waits_alone_with_events_without_rules(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    store = Unmarked(graph, "ill")
    await put(transport, [placed(number, app, workflow) for number in range(10)
                          for app, workflow in (("ill", "Nowhere"), ("well", "Shop"))])  # fmt: skip
    async with working(bus, store, rules_of(tmp_path)):

        async def well() -> bool:
            return bool(await value(graph, "well", ORDERS) == 10)

        await until(well)
        store.mended = True
        await applied(bus)
    letters = await bus.dead_letters.read(limit=10)
    assert sum(letter.count for letter in letters) == 10
    assert {(letter.app_id, letter.reason) for letter in letters} == {("ill", "no_rules")}


async def test_a_worker_stops_while_more_apps_are_ill_than_may_be_parked(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_queues, "MOST_PARKED", 1)
    broken = Broken(Broken(graph, "ill"), "bad")  # type: ignore[arg-type]
    await put(transport, [placed(number, app) for number in range(40) for app in ("ill", "bad")])
    worker = MutationWorker(bus, broken, rules_of(tmp_path), name="w", batch_events=4)  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run())

    async def parked() -> bool:
        return all(PositionNote.decode(part.note).parked for part in await bus.partitions.status())

    try:
        await until(parked)
        worker.stop()
        done, _ = await asyncio.wait([running], timeout=120)
        assert done
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _missed(bus: Bus, transport: Transport, tmp_path: Path, number: int) -> list[Any]:
    rules = rules_of(tmp_path, "order_idd")
    positions = await put(transport, [placed(each, chat="c") for each in range(number)])
    partition = int(positions[0].partition(":")[0])
    entries = await bus.log.after(partition, "", limit=number)
    read = reading_module.read_range(partition, entries, FixedRules(rules), history.RecentEvents())
    assert len(read.skips) == number
    return [partition, read.skips]


async def test_a_letter_of_skips_that_is_just_full_is_not_written_twice(
    bus: Bus, transport: Transport, tmp_path: Path
) -> None:
    """A worker dies behind the letter and in front of the commit: the next one counts the same events."""
    partition, missed = await _missed(bus, transport, tmp_path, MOST_OFFSETS)
    for _ in range(2):
        skips = Skips(partition)
        for each in missed:
            skips.add(each)
        await skips.write(bus.dead_letters)
    letters = await bus.dead_letters.read(limit=10)
    assert sum(letter.count for letter in letters) == MOST_OFFSETS


class Cut:
    """Dead letters that fail once, at the call with a number."""

    def __init__(self, letters: DeadLetters, fails_at: int) -> None:
        self._letters = letters
        self._left = fails_at

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._letters, name)

        async def counted(*given: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == -1:
                raise ConnectionError("cut")
            return await call(*given, **named)

        return counted


@pytest.mark.parametrize("fails_at", range(7))
async def test_skips_cut_off_anywhere_are_counted_once(
    bus: Bus, transport: Transport, tmp_path: Path, fails_at: int
) -> None:
    partition, missed = await _missed(bus, transport, tmp_path, MOST_OFFSETS + 5)
    for driver in (Cut(bus.dead_letters, fails_at), bus.dead_letters):
        skips = Skips(partition)
        for each in missed:
            skips.add(each)
        with contextlib.suppress(ConnectionError):
            await skips.write(driver)  # type: ignore[arg-type]
    letters = await bus.dead_letters.read(limit=10)
    assert sum(letter.count for letter in letters) == MOST_OFFSETS + 5


async def test_rules_that_are_mended_while_an_app_is_behind_double_nothing(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    """What is skipped of an app that is behind counts when its works have taken effect: other rules may come first."""
    broken = Broken(graph, "ill")
    await put(transport, [placed(number, app) for number in range(10) for app in ("ill", "well")])
    async with working(bus, broken, rules_of(tmp_path / "typo", "order_idd")):

        async def counted() -> bool:
            return sum(letter.count for letter in await bus.dead_letters.read(limit=10)) == 10

        await until(counted)
        assert {letter.app_id for letter in await bus.dead_letters.read(limit=10)} == {"well"}
    async with working(bus, graph, rules_of(tmp_path / "mended")):
        for letter in await bus.dead_letters.read(limit=10):
            await retry(bus, letter)
        await applied(bus)
    for app in ("ill", "well"):
        assert [app, await value(graph, app, ORDERS), await value(graph, app, COUNT)] == [app, 10, 10]


@pytest.mark.long
async def test_letters_that_were_dropped_do_not_come_back_with_an_app_that_is_parked_again(
    bus: Bus,
    graph: FalkorDBStore,
    transport: Transport,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parked: set[int] = set()
    real = app_queues.AppQueues.park

    def park(self: Any, app_id: str) -> None:
        real(self, app_id)
        parked.add(self._number)

    monkeypatch.setattr(app_queues.AppQueues, "park", park)
    rules, timing = rules_of(tmp_path, "order_idd"), Timing(queues=QueueTiming(park_s=0.2))
    await put(transport, [placed(number, "slow") for number in range(60)])
    for last in (False, True):
        slow = Slow(graph, "slow")
        async with working(bus, slow, rules, batch_events=1 if last else 6, timing=timing):

            async def is_noted() -> bool:
                status = await bus.partitions.status()  # the first worker has left a note
                return len(parked) == len(status) and all(
                    "slow" in PositionNote.decode(part.note).parked for part in status
                )

            await until(is_noted)
            if last:
                slow.free.set()
                await applied(bus)
        slow.free.set()
        parked.clear()
        if not last:
            told = sum([letter.count for letter in await bus.dead_letters.read(limit=10)])
            for letter in await bus.dead_letters.read(limit=10):
                await bus.dead_letters.requeue(letter, [])
    assert sum(letter.count for letter in await bus.dead_letters.read(limit=10)) == 60 - told


async def test_an_event_that_took_effect_is_not_set_aside(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    positions = await put(transport, [placed(number) for number in range(4)])
    async with working(bus, graph, rules_of(tmp_path)):
        await applied(bus)
        with contextlib.suppress(InvalidSettings):
            await retry(bus, await set_aside(bus, positions[0]))
            await applied(bus)
    # One that the workers have not passed over yet does not come back: it would take effect twice.
    [ahead] = await put(transport, [placed(4)])
    letter = await set_aside(bus, ahead)
    await retry(bus, letter)
    async with working(bus, graph, rules_of(tmp_path)):
        await applied(bus)
        assert await value(graph, "a", COUNT) == 4
        assert (await retry(bus, await letter_with(bus.dead_letters, letter.id) or letter)).events == 1
        await applied(bus)
    assert [await value(graph, "a", ORDERS), await value(graph, "a", COUNT)] == [5, 5]


class HalfDone(Over):
    """A graph server that is gone after the first writes of one app."""

    def __init__(self, graph: GraphStore, app: str, writes: int | None) -> None:
        super().__init__(graph, app)
        self.half = asyncio.Event()
        self._writes = writes

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        if app_id != self._about:
            return await self._graph.apply(app_id, partition, writes)
        if not self.half.is_set():
            await self._graph.apply(app_id, partition, writes[: self._writes])
            self.half.set()
        raise GraphUnavailable("the server is gone", retry_after_s=0.05)


async def test_an_event_that_is_set_aside_too_late_takes_effect_once(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    """A worker applies what it has read, whatever an operator sets aside meanwhile; a later worker heeds the rest."""
    rules, slow = rules_of(tmp_path), Slow(graph, "a")
    positions = await put(transport, [placed(number, app, chat="c") for number in range(3) for app in ("a", "b")])
    async with working(bus, slow, rules):
        await slow.waits.wait()
        await set_aside(bus, positions[0])
        letter = await set_aside(bus, positions[2])
        slow.free.set()
        await applied(bus)
    assert letter.heeded == ()
    later = await put(transport, [placed(number, app, chat="c") for number in (3, 4) for app in ("a", "b")])
    await set_aside(bus, later[0])
    async with working(bus, graph, rules):
        await applied(bus)
        assert [await value(graph, app, ORDERS) for app in "ab"] == [4, 5]
        found = await letter_with(bus.dead_letters, letter.id)
        assert found is not None
        assert found.heeded == (later[0].partition(":")[2],)
        lived = await ledger_as_lived(bus, found.partition)
        assert [lived.event(offset, "a") for offset in found.offsets] == [None, None, "set_aside"]
        retried = await retry(bus, found)
        assert (retried.events, "before it knew" in (retried.kept or "")) == (1, True)
        await applied(bus)
        again = await letter_with(bus.dead_letters, letter.id)
        assert again is not None
        assert (again.count, (await retry(bus, again)).events) == (2, 0)
        assert await drop(bus, again) is None
        await applied(bus)
    assert [await value(graph, app, COUNT) for app in "ab"] == [5, 5]
    lived = await ledger_as_lived(bus, found.partition)
    assert [lived.event(offset, "a") for offset in found.offsets] == [None, None, "retried"]


@pytest.mark.parametrize("writes", [1, None])
async def test_an_event_that_a_graph_has_begun_to_take_stays_although_it_is_set_aside(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path, writes: int | None
) -> None:
    """The position of the partition lags behind the graph."""
    rules, broken = rules_of(tmp_path), HalfDone(graph, "a", writes)
    positions = await put(transport, [placed(number, app, chat="c") for number in range(3) for app in ("a", "b")])
    async with working(bus, broken, rules):
        await broken.half.wait()
        letter = await set_aside(bus, positions[0])
    async with working(bus, graph, rules):
        await applied(bus)
    assert [await value(graph, app, query) for app in "ab" for query in (ORDERS, COUNT)] == [3, 3, 3, 3]
    assert await letter_with(bus.dead_letters, letter.id) == letter
    assert (await retry(bus, letter)).events == 0


async def test_an_entry_whose_decoding_fails_does_not_keep_a_worker_from_starting(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = event_decoder.decode

    def decode(fields: Any, received: Any) -> Any:
        if b"o3" in fields[wire.DATA]:
            raise OverflowError("a defect")
        return real(fields, received)

    monkeypatch.setattr(event_decoder, "decode", decode)
    await put(transport, [placed(number) for number in range(8)])
    async with working(bus, graph, rules_of(tmp_path)):
        await applied(bus)
    await put(transport, [placed(number) for number in range(8, 16)])
    async with working(bus, graph, rules_of(tmp_path)):
        await applied(bus)
    assert await value(graph, "a", ORDERS) == 15


async def test_a_letter_of_an_older_version_can_be_dropped(bus: Bus, transport: Transport) -> None:
    await put(transport, [placed(1)])
    old = {"id": "0:1-0:r/m", "reason": "quarantined", "message": "m", "position": "0:1-0", "until": "0:9-0",
           "count": 9, "time": "2026-01-01T00:00:00Z", "app_id": "a", "rule": "r", "mutation": "m",
           "fields": {}}  # fmt: skip
    await bus.log._redis.hset(channels.DEAD_LETTERS, old["id"], json.dumps(old, separators=(",", ":")))
    await bus.log._redis.zadd(channels.DEAD_LETTER_ORDER, {old["id"]: 1.0})
    [letter] = await bus.dead_letters.read(limit=2)
    assert isinstance(letter, DeadLetter)
    assert await bus.dead_letters.requeue(letter, [])


async def test_the_note_stays_short_when_many_apps_are_held(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    """Apps by the dozen whose marks cannot be read, with names as long as they may be."""

    class All(Unmarked):
        async def checkpoints(self, app_id: str, *, timeout_s: float) -> Any:
            raise GraphUnavailable("away", retry_after_s=1.0)

        async def progress(self, app_id: str, partition: int) -> Any:
            raise GraphUnavailable("away", retry_after_s=1.0)

    apps = [f"{number:064d}" for number in range(120)]
    await put(transport, [placed(1, app, "Nowhere", chat="c") for app in apps])
    longest = 0
    async with working(bus, All(graph, ""), rules_of(tmp_path)):
        seen = 0

        async def look() -> bool:
            nonlocal longest, seen
            seen += 1
            longest = max(longest, *(len(part.note) for part in await bus.partitions.status()))
            return seen >= 40 and longest > 100

        await until(look)
    assert 100 < longest <= 4_000
    async with working(bus, graph, rules_of(tmp_path)):
        await applied(bus)
    letters = await bus.dead_letters.read(limit=200)
    assert sorted(str(letter.app_id) for letter in letters) == apps


async def test_a_slow_app_with_large_events_is_parked_before_they_fill_the_memory(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits in a queue is bounded in bytes, not only in events."""
    slow = Slow(graph, "slow")
    queued: list[int] = []
    real = app_queues.AppQueues._due

    def due(self: Any, now: float) -> Any:
        found = real(self, now)
        queued.append(sum(len(event.entry.fields[wire.DATA]) for queue in self._queues.values()
                          for batch in queue.waiting for event in batch.events))  # fmt: skip
        return found

    monkeypatch.setattr(app_queues.AppQueues, "_due", due)
    for start in range(0, 80, 10):
        await put(transport, [
            Event.create("order.placed", app_id="slow", chat_id="c", workflow="Shop", id=f"s{number}",
                         data={"order_id": f"o{number}", "text": "x" * 900_000})
            for number in range(start, start + 10)
        ])  # fmt: skip
    async with working(bus, slow, rules_of(tmp_path), timing=Timing(queues=QueueTiming(park_s=0.2))):
        await slow.waits.wait()

        async def is_read() -> bool:
            notes = [(PositionNote.decode(part.note).done, part) for part in await bus.partitions.status() if part.lag]
            return all(done == part.end for done, part in notes)

        await until(is_read, why="all events were read, and the app is parked")
        slow.free.set()
        await applied(bus)
    assert max(queued) <= 2 * 16 * 1024**2
