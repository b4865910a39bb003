"""One partition of the bus that takes no events holds up no other one."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
from tests.services.virtual_time import VIRTUAL

from graphweft import Client
from graphweft.transport import Outcome, Outgoing, positions_of
from graphweft_contracts import (
    BusUnavailable,
    ContextReply,
    ContextRequest,
    Event,
    InvalidEvent,
    Layout,
    PartitionRefused,
    wire,
)

SPREAD = Layout(partitions=4, order="chat")
CHATS = {SPREAD.partition_of(f"shop/c{number}"): f"c{number}" for number in range(30)}
"""By partition: a chat whose events it gets."""
FOR_EVER_S = 3600.0


class Partitions:
    """A bus of four partitions. ``fails`` returns the error of a partition, or None; it raises one of the whole bus."""

    def __init__(self, fails: Callable[[int, int], Exception | None]) -> None:
        self.fails = fails
        self.calls = 0
        self.kept: dict[int, list[int]] = defaultdict(list)
        self.layouts = [SPREAD]

    async def layout(self) -> Layout:
        return self.layouts[-1]

    async def append_each(self, events: Sequence[Outgoing]) -> list[Outcome]:
        await asyncio.sleep(0)
        self.calls += 1
        outcomes: list[Outcome] = []
        failed: dict[int, Outcome] = {}
        for event in events:
            partition = self.layouts[-1].partition_of(event.key)
            if partition not in failed:
                error = self.fails(partition, self.calls)
                if isinstance(error, (BusUnavailable, PartitionRefused, InvalidEvent)):
                    failed[partition] = error
                elif error is not None:
                    raise error
            if partition in failed:
                outcomes.append(failed[partition])
            else:
                self.kept[partition].append(wire.decode(event.fields).data["n"])
                outcomes.append(f"{partition}:{len(self.kept[partition])}")
        return outcomes

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        return positions_of(await self.append_each(events))

    async def request(self, request: ContextRequest) -> ContextReply:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass


class OneByOne(Partitions):
    """The same for a transport that says nothing of its partitions."""

    layout = None  # type: ignore[assignment]
    append_each = None  # type: ignore[assignment]

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        return positions_of(await Partitions.append_each(self, events))


def note(partition: int, number: int, **data: object) -> Event:
    chat = CHATS[partition]
    return Event.create("note.made", app_id="shop", chat_id=chat, data={"n": number, **data}, id=f"{chat}-{number}")


def refusing(partition: int) -> Callable[[int, int], Exception | None]:
    return lambda each, _: PartitionRefused(f"partition {each}: mend it") if each == partition else None


async def test_a_refused_partition_rejects_its_events_alone(caplog: pytest.LogCaptureFixture) -> None:
    bus = Partitions(refusing(1))
    async with Client(transport=bus, clock=VIRTUAL) as client:
        events = [note(number % 4, number) for number in range(400)]
        outcomes = await client.emit_each(events, wait_s=FOR_EVER_S)
        assert await client.emit(note(1, 400), wait_s=FOR_EVER_S) is None
        assert await client.flush(FOR_EVER_S)
    assert [isinstance(outcome, PartitionRefused) for outcome in outcomes] == [number % 4 == 1 for number in range(400)]
    assert bus.kept == {partition: list(range(partition, 400, 4)) for partition in (0, 2, 3)}
    assert (client.stats.sent, client.stats.rejected, client.stats.retries) == (300, 101, 0)
    assert sum("mend it" in record.message for record in caplog.records) == 1, "a hundred lines would say no more"


async def test_a_partition_that_is_mended_takes_events_again() -> None:
    bus = Partitions(refusing(1))
    async with Client(transport=bus, clock=VIRTUAL) as client:
        assert await client.emit(note(1, 0), wait_s=FOR_EVER_S) is None
        bus.fails = lambda *_: None
        assert await client.emit(note(1, 1), wait_s=FOR_EVER_S) == "1:1"


async def test_a_flush_waits_for_what_was_emitted_before_it_alone() -> None:
    """While an app goes on emitting, its buffer may never be empty."""

    class Slow(Partitions):
        async def append_each(self, events: Sequence[Outgoing]) -> list[Outcome]:
            await VIRTUAL.sleep(0.5)
            return await super().append_each(events)

    bus = Slow(lambda *_: None)
    async with Client(transport=bus, clock=VIRTUAL) as client:

        async def emit() -> None:
            for number in range(1_000):
                await client.emit(note(number % 4, number), wait_s=0)
                await VIRTUAL.sleep(0.1)

        emitting = asyncio.create_task(emit())
        for _ in range(10):
            await VIRTUAL.sleep(3.3)
            before = client.stats.sent + client.stats.buffered
            assert await client.flush(5)
            assert before <= client.stats.sent
            assert client.stats.buffered
        await emitting
        assert await client.flush(5)
    assert client.stats.sent == 1_000


async def test_a_partition_that_is_unavailable_keeps_its_events_and_others_go_on() -> None:
    away = {2}
    bus = Partitions(lambda each, _: BusUnavailable("no leader") if each in away else None)
    async with Client(transport=bus, clock=VIRTUAL) as client:
        positions = await client.emit_all([note(number % 4, number) for number in range(40)], wait_s=1)
        assert [position is None for position in positions] == [number % 4 == 2 for number in range(40)]
        assert await client.emit(note(2, 42), wait_s=FOR_EVER_S) is None, "it returns at once"
        assert await client.emit(note(3, 43), wait_s=FOR_EVER_S), "and others wait for their positions"
        assert client.stats.buffered == 11
        assert not await client.flush(1)
        away.clear()
        assert await client.flush(FOR_EVER_S)
        assert await client.emit(note(2, 46), wait_s=FOR_EVER_S) == "2:12"
    assert bus.kept[2] == [*range(2, 40, 4), 42, 46]
    assert (client.stats.sent, client.stats.rejected, client.stats.dropped) == (43, 0, 0)


async def test_a_partition_that_is_unavailable_has_half_of_the_buffer() -> None:
    bus = Partitions(lambda each, _: BusUnavailable("no leader") if each == 2 else None)
    client = Client(transport=bus, clock=VIRTUAL, buffer=10)
    await client.emit(note(2, 0), wait_s=1)
    for number in range(1, 9):
        await client.emit(note(2, number))
    assert (client.stats.buffered, client.stats.dropped) == (5, 4)
    assert all(await client.emit_all([note(0, number) for number in range(5)], wait_s=FOR_EVER_S))
    await client.aclose(drain_s=0)
    assert client.stats.dropped == 9


async def test_an_outage_of_the_whole_bus_has_all_of_the_buffer() -> None:
    def fails(each: int, _: int) -> Exception | None:
        if whole:
            raise OSError("the bus is away")
        return BusUnavailable("no leader") if each == 2 else None

    whole = False
    bus = Partitions(fails)
    async with Client(transport=bus, clock=VIRTUAL, buffer=10) as client:
        await client.emit(note(2, 0), wait_s=1)
        whole = True
        await client.emit(note(0, 0), wait_s=1)
        for number in range(1, 9):
            await client.emit(note(2, number))
        assert (client.stats.buffered, client.stats.dropped) == (10, 0)
        bus.fails = lambda *_: None
        assert await client.flush(FOR_EVER_S)
    assert bus.kept == {0: [0], 2: list(range(9))}


async def test_a_transport_without_partitions_rejects_what_is_refused_alone() -> None:
    bus = OneByOne(refusing(1))
    async with Client(transport=bus, clock=VIRTUAL) as client:
        outcomes = await client.emit_each([note(number % 4, number) for number in range(8)], wait_s=FOR_EVER_S)
    assert [isinstance(outcome, PartitionRefused) for outcome in outcomes] == [number % 4 == 1 for number in range(8)]
    assert {partition: sorted(set(numbers)) for partition, numbers in bus.kept.items()} == {
        0: [0, 4],
        2: [2, 6],
        3: [3, 7],
    }


async def test_an_invalid_event_is_found_among_those_of_its_partition() -> None:
    class Sizes(Partitions):
        async def append_each(self, events: Sequence[Outgoing]) -> list[Outcome]:
            if len(events) > 1:
                ones = [self.layouts[-1].partition_of(event.key) == 1 for event in events]
                others = iter(await super().append_each([e for e, one in zip(events, ones, strict=True) if not one]))
                return [InvalidEvent("too many") if one else next(others) for one in ones]
            if "large" in wire.decode(events[0].fields).data:
                return [InvalidEvent("too large")]
            return await super().append_each(events)

    bus = Sizes(lambda *_: None)
    async with Client(transport=bus, clock=VIRTUAL) as client:
        events = [note(number % 4, number, **({"large": True} if number == 5 else {})) for number in range(16)]
        positions = await client.emit_all(events, wait_s=FOR_EVER_S)
    assert [number for number, position in enumerate(positions) if position is None] == [5]
    assert bus.kept == {0: [0, 4, 8, 12], 1: [1, 9, 13], 2: [2, 6, 10, 14], 3: [3, 7, 11, 15]}


async def test_another_layout_moves_the_events_that_wait() -> None:
    away = {SPREAD.partition_of("shop/c1")}
    bus = Partitions(lambda each, _: BusUnavailable("no leader") if each in away else None)
    async with Client(transport=bus, clock=VIRTUAL) as client:
        events = [
            Event.create("note.made", app_id="shop", chat_id=f"c{number % 5}", data={"n": number}, id=str(number))
            for number in range(50)
        ]
        await client.emit_all(events[:25], wait_s=1)
        before = {number for numbers in bus.kept.values() for number in numbers}
        bus.layouts.append(Layout(partitions=4, order="app"))
        away.clear()
        await client.emit_all(events[25:])
        assert await client.flush(FOR_EVER_S)
    partition = bus.layouts[-1].partition_of("shop/c1")
    later = [number for number in bus.kept[partition] if number not in before]
    assert later == [number for number in range(50) if number not in before], "the app is in one partition, in order"


@pytest.mark.parametrize("seed", range(20))
async def test_random_faults_lose_nothing_and_keep_the_order(seed: int) -> None:
    rng = random.Random(seed)
    refused = rng.randrange(4)

    def fails(partition: int, call: int) -> Exception | None:
        if quiet:
            return PartitionRefused("mend it") if partition == refused else None
        fault = rng.random()
        if fault < 0.05:
            raise rng.choice([OSError("reset"), BusUnavailable("away"), TimeoutError()])
        if partition == refused:
            return PartitionRefused("mend it")
        return BusUnavailable("no leader") if fault < 0.3 else None

    quiet = False
    bus = Partitions(fails)
    events = [note(rng.randrange(4), number) for number in range(600)]
    async with Client(transport=bus, clock=VIRTUAL) as client:
        at = 0
        while at < len(events):
            step = rng.randrange(1, 40)
            await client.emit_all(events[at : at + step], wait_s=rng.random() / 5)
            at += step
        quiet = True
        assert await client.flush(FOR_EVER_S)
    for partition, chat in CHATS.items():
        own = [event.data["n"] for event in events if event.chatid == chat]
        seen = list(dict.fromkeys(bus.kept[partition]))  # of a second copy only the first counts
        assert seen == ([] if partition == refused else own)
    assert client.stats.sent + client.stats.rejected == len(events)
    assert (client.stats.buffered, client.stats.dropped) == (0, 0)
