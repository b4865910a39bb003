"""What every bus promises of dead letters and records."""

from __future__ import annotations

import asyncio

from graphweft_contracts import BusUnavailable, channels, wire
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count, letter_with, retry_entry
from graphweft_workers.ports.records import RecordLog
from graphweft_workers.testing.suites.bus_kit import (
    START,
    BusFixtures,
    BusKit,
    behind,
    claimed,
    drained,
    kit_ready,
    letter,
    values,
)


class DeadLetterSuite(BusFixtures):
    """Dead letters are kept by id, and put back once."""

    async def test_dead_letters_are_kept_by_id_oldest_first(self, kit: BusKit) -> None:
        bus, other = kit.bus(), kit.bus()
        assert await letter_count(bus.dead_letters) == 0
        assert list(await bus.dead_letters.read(limit=5)) == []
        assert await letter_with(bus.dead_letters, "one") is None
        letters = [letter(str(number)) for number in range(5)]
        await bus.dead_letters.put(letters[:2])
        await bus.dead_letters.put(letters[2:])
        assert await letter_count(bus.dead_letters) == 5
        assert list(await bus.dead_letters.read(limit=3)) == letters[:3]
        longer = letters[1].model_copy(update={"until": "0:9", "count": 8, "time": SYSTEM_CLOCK.now()})
        await bus.dead_letters.put([longer])
        assert await letter_with(bus.dead_letters, "1") == longer
        assert await letter_count(other.dead_letters) == 5
        assert list(await other.dead_letters.read(limit=9)) == [letters[0], *letters[2:], longer]

    async def test_dead_letters_are_read_by_app_and_by_size(self, kit: BusKit) -> None:
        bus = kit.bus()
        text = "x" * 10_000
        letters = [letter(f"{app}{number}", app_id=app, message=text) for number in range(3) for app in ("x", "y")]
        await bus.dead_letters.put(letters)
        assert [each.id for each in await bus.dead_letters.read(limit=9, app_id="y")] == ["y0", "y1", "y2"]
        assert [each.id for each in await bus.dead_letters.read(limit=2, app_id="y")] == ["y0", "y1"]
        assert [each.id for each in await bus.dead_letters.read(limit=9, app_id="z")] == []
        assert [each.id for each in await bus.dead_letters.read(limit=9, size=1)] == ["x0"], "at least one"
        assert [each.id for each in await bus.dead_letters.read(limit=9, app_id="x", size=25_000)] == ["x0", "x1"]
        assert len(await bus.dead_letters.read(limit=9, size=100_000)) == 6
        among = ("y2", "x0", "y0", "z0")
        assert list(await bus.dead_letters.read(limit=9, ids=among)) == [letters[0], letters[1], letters[5]]
        assert list(await bus.dead_letters.read(limit=1, app_id="y", ids=among)) == [letters[1]]
        assert [each.id for each in await bus.dead_letters.read(limit=9, size=1, ids=among)] == ["x0"]

    async def test_dead_letters_are_read_without_their_entries(self, kit: BusKit) -> None:
        bus = kit.bus()
        message = ',"fields":{"x":"y"}} \\",\\"fields\\":{ \u20ac'
        letters = [
            letter(f"{number:03}", app_id="xy"[number % 2], message=message, offsets=("1", "2"), count=2)
            for number in range(105)
        ]
        large = letter("large", app_id="x", rule="r", mutation="m", place="f:1").model_copy(
            update={"fields": wire.pack({wire.DATA: b"a" * 600_000})}
        )
        await bus.dead_letters.put([*letters, large])
        bare = [each.model_copy(update={"fields": {}}) for each in (*letters, large)]
        before = await kit.sent_bytes()
        assert list(await bus.dead_letters.read(limit=200, whole=False)) == bare
        after = await kit.sent_bytes()
        assert before is None or (after is not None and after - before < 100_000), "the server cuts them"
        assert list(await bus.dead_letters.read(limit=103, whole=False)) == bare[:103]
        assert list(await bus.dead_letters.read(limit=2, app_id="y", whole=False)) == [bare[1], bare[3]]
        assert list(await bus.dead_letters.read(limit=9, size=1, whole=False)) == bare[:1]
        assert list(await bus.dead_letters.read(limit=200)) == [*letters, large]

    async def test_letters_are_counted_by_app_whoever_writes_and_removes_them(self, kit: BusKit) -> None:
        bus, other = kit.bus(), kit.bus(group=channels.MEMORY_GROUP)
        await bus.partitions.count()
        await claimed(bus)
        assert await bus.dead_letters.by_app() == {}
        mine = [letter(f"m{number}", app_id="hog", message="x" * 1_000) for number in range(3)]
        await bus.dead_letters.put([*mine, letter("n", app_id="neighbour"), letter("none")])
        await other.dead_letters.put(mine[:1])  # again
        found = await other.dead_letters.by_app()
        assert {app_id: each.count for app_id, each in found.items()} == {"hog": 3, "neighbour": 1, "": 1}
        assert 3_000 < found["hog"].size < 4_000
        assert 100 < found["neighbour"].size < 500
        longer = mine[0].of_entries(("1", "2"))
        assert await bus.dead_letters.extend(mine[0], longer)
        assert await bus.dead_letters.extend(None, letter("new", app_id="hog"))
        assert not await bus.dead_letters.extend(None, letter("new", app_id="hog"))
        assert (await bus.dead_letters.by_app())["hog"].count == 4
        rest = longer.of_entries(("2",)).model_copy(update={"id": "rest", "app_id": "neighbour"})
        assert await bus.dead_letters.requeue(longer, [{wire.DATA: b"1"}], rest)
        assert await other.dead_letters.requeue(mine[1], [{wire.DATA: b"1"}])
        found = await bus.dead_letters.by_app()
        assert {app_id: each.count for app_id, each in found.items()} == {"hog": 2, "neighbour": 2, "": 1}
        for each in await bus.dead_letters.read(limit=9):
            assert await bus.dead_letters.requeue(each, [{wire.DATA: b"1"}])
        assert await bus.dead_letters.by_app() == await other.dead_letters.by_app() == {}

    async def test_records_of_usage_are_replaced_and_removed(self, kit: BusKit) -> None:
        bus, other = kit.bus(), kit.bus(group=channels.MEMORY_GROUP)
        await _check_records(bus, bus.usage, other.usage)

    async def test_records_of_marks_are_replaced_and_removed(self, kit: BusKit) -> None:
        bus, other = kit.bus(), kit.bus(group=channels.MEMORY_GROUP)
        if bus.series is not None and other.series is not None:
            await _check_records(bus, bus.series, other.series)

    async def test_a_letter_is_put_back_once(self, kit: BusKit) -> None:
        bus = kit.bus()
        await kit_ready(bus, kit)
        await claimed(bus)
        cursor = behind(START, await bus.log.read(0, START, limit=50, wait_s=0))
        buried = letter(rule="r", mutation="m")
        await bus.dead_letters.put([buried, letter("kept")])
        assert await bus.dead_letters.requeue(buried, [retry_entry(buried), {wire.DATA: b"second"}])
        assert not await bus.dead_letters.requeue(buried, [retry_entry(buried)])
        assert [found.id for found in await bus.dead_letters.read(limit=5)] == ["kept"]
        batch = await bus.log.read(0, cursor, limit=50, wait_s=2)
        assert values(batch.entries) == [b"payload", b"second"]
        assert wire.retry_of(batch.entries[0].fields) == wire.Retry("one", "r", "m")
        await bus.partitions.commit(0, behind(cursor, batch))
        assert (await bus.partitions.status())[0].lag == 0
        assert (await bus.partitions.status())[1].lag == 0

    async def test_a_letter_that_changed_is_not_put_back(self, kit: BusKit) -> None:
        bus, other = kit.bus(), kit.bus()
        await bus.partitions.count()
        await claimed(bus)
        old = letter(count=3, until="0:4")
        await bus.dead_letters.put([old])
        new = old.model_copy(update={"count": 4})
        await other.dead_letters.put([new])
        assert not await bus.dead_letters.requeue(old, [retry_entry(old)])
        assert list(await bus.dead_letters.read(limit=5)) == [new]
        assert await drained(bus) == []

    async def test_a_letter_is_put_back_in_parts(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        await claimed(bus)
        whole = letter(count=3, until="0:4")
        await bus.dead_letters.put([whole])
        rest = whole.model_copy(update={"position": "0:2", "count": 2})
        assert await bus.dead_letters.requeue(whole, [{wire.DATA: b"1"}], rest)
        assert list(await bus.dead_letters.read(limit=5)) == [rest]
        last = letter("other name", count=1)
        assert await bus.dead_letters.requeue(rest, [{wire.DATA: b"2"}], last)
        assert list(await bus.dead_letters.read(limit=5)) == [last]
        assert await bus.dead_letters.requeue(last, [{b"no": b"data"}])
        assert await letter_count(bus.dead_letters) == 0
        assert [dict(entry.fields) for entry in await drained(bus)] == [
            {wire.DATA: b"1"},
            {wire.DATA: b"2"},
            {b"no": b"data"},
        ]
        await bus.dead_letters.put([last])
        assert await bus.dead_letters.requeue(last, [])
        assert await letter_count(bus.dead_letters) == 0

    async def test_two_that_put_a_letter_back_at_once_do_it_once(self, kit: BusKit) -> None:
        bus, others = kit.bus(), [kit.bus() for _ in range(3)]
        await bus.partitions.count()
        await claimed(bus)
        buried = letter()
        await bus.dead_letters.put([buried])
        outcomes = await asyncio.gather(
            *(other.dead_letters.requeue(buried, [retry_entry(buried)]) for other in others), return_exceptions=True
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert all(isinstance(failure, BusUnavailable) for failure in failures), failures
        done = outcomes.count(True)
        if not done:  # they fenced each other off; whoever repeats it succeeds
            assert await bus.dead_letters.requeue(buried, [retry_entry(buried)])
        assert done <= 1
        assert await letter_count(bus.dead_letters) == 0
        assert len((await bus.log.read(0, START, limit=9, wait_s=5)).entries) == 1
        assert len(await drained(bus)) == 1


async def _check_records(bus: Bus, records: RecordLog, other: RecordLog) -> None:
    await bus.partitions.count()
    assert (await records.after(None)).found == {}
    await records.put("partition:0", b"1")
    await other.put("gateway:a b", b"{}")
    assert (await records.after(None)).found == {"partition:0": b"1", "gateway:a b": b"{}"}
    await records.put("partition:0", b"x" * 900_000)
    await records.put("gateway:a b", None)
    await records.put("unknown", None)
    assert (await records.after(None)).found == (await other.after(None)).found == {"partition:0": b"x" * 900_000}
