"""The rates of a client: what exceeds them waits in the buffer, in order, or is dropped and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.services.virtual_time import VIRTUAL

from graphweft import Client, SyncClient
from graphweft.transport import Outgoing
from graphweft_contracts import ContextReply, ContextRequest, Event, InvalidSettings, wire

FOR_EVER_S = 3600.0


class ListTransport:
    """Takes all events."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        self.batches.append([wire.decode(each.fields).data["n"] for each in events])
        return [f"0:{len(self.batches)}-{number}" for number in range(len(events))]

    async def request(self, request: ContextRequest) -> ContextReply:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass

    @property
    def taken(self) -> list[int]:
        return [number for batch in self.batches for number in batch]


def note(number: int, **data: Any) -> Event:
    return Event.create("note.made", app_id="shop", chat_id="c", data={"n": number, **data}, id=str(number))


async def test_events_above_the_rate_wait_in_order_and_another_client_does_not() -> None:
    mine, theirs = ListTransport(), ListTransport()
    async with (
        Client(transport=mine, clock=VIRTUAL, max_events_per_s=50) as client,
        Client(transport=theirs, clock=VIRTUAL) as neighbour,
    ):
        positions = await client.emit_all([note(number) for number in range(90)], wait_s=0)
        assert positions[50:] == [None] * 40
        assert all(await neighbour.emit_all([note(number) for number in range(500)], wait_s=FOR_EVER_S))
        assert await client.flush(30)
    assert mine.taken == list(range(90))
    assert len(mine.batches[0]) == 50
    assert all(len(batch) <= 50 for batch in mine.batches)
    assert (client.stats.sent, client.stats.dropped) == (90, 0)
    assert client.stats.paced > 0
    assert [len(batch) for batch in theirs.batches] == [500]
    assert neighbour.stats.paced == 0


async def test_while_events_wait_emit_returns_at_once_and_a_full_buffer_drops() -> None:
    transport = ListTransport()
    client = Client(transport=transport, clock=VIRTUAL, max_events_per_s=0.001, buffer=2)
    assert await client.emit(note(0), wait_s=FOR_EVER_S) is not None
    assert await client.emit(note(1), wait_s=0.01) is None
    assert await client.emit(note(2), wait_s=FOR_EVER_S) is None
    assert await client.emit(note(3), wait_s=FOR_EVER_S) is None
    assert (client.stats.sent, client.stats.buffered, client.stats.dropped, client.stats.paced) == (1, 2, 1, 1)
    await client.aclose(drain_s=0)
    assert (client.stats.sent, client.stats.buffered, client.stats.dropped) == (1, 0, 3)
    assert transport.taken == [0]


async def test_bytes_above_the_rate_wait_and_one_large_event_passes() -> None:
    transport = ListTransport()
    async with Client(transport=transport, clock=VIRTUAL, max_bytes_per_s=20_000) as client:
        await client.emit_all([note(number, text="x" * 6_000) for number in range(6)], wait_s=0)
        assert await client.flush(30)
    assert transport.taken == list(range(6))
    assert len(transport.batches[0]) == 3
    async with Client(transport=transport, clock=VIRTUAL, max_bytes_per_s=100) as client:
        assert await client.emit(note(9, text="x" * 6_000), wait_s=FOR_EVER_S)


@pytest.mark.parametrize("given", [{"max_events_per_s": 0}, {"max_bytes_per_s": -1}])
async def test_a_rate_must_be_above_zero(given: dict[str, float]) -> None:
    with pytest.raises(InvalidSettings, match="expected a number above 0"):
        Client("redis://localhost", **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings, match="expected a number above 0"):
        SyncClient("redis://localhost", **given)  # type: ignore[arg-type]
