"""Waiting for input and for events that take effect, on a bus without a server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest
from tests.ports import toy
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import BusUnavailable, Event
from graphweft_contracts.layout import NEW_LAYOUT
from graphweft_workers.cli.publishing import interruptible
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.reports import delivery
from graphweft_workers.reports.delivery import SentEvents, outcome_of, send, wait_until_applied

sqlite_url = toy.sqlite_url


async def waits(url: str, *, claimed: bool) -> list[Sequence[int]]:
    """Return what is said of partitions that nobody reads, while an event waits, until it is committed."""
    bus = import_module("toy_driver.bus").sqlite_bus(url, new=NEW_LAYOUT, group="workers")
    transport = import_module("toy_driver.transport").SqliteTransport(url)
    event = Event.create("order.placed", app_id="acme", chat_id="c")
    try:
        sent = await send(transport, [event])
        [partition] = sent.last
        if claimed:
            assert await bus.leases.claim(partition, "worker", ttl_s=600)
        said: list[Sequence[int]] = []
        asked = asyncio.Event()
        polls = 0

        def on_lag(_: int) -> None:
            nonlocal polls
            polls += 1
            if polls == 2 * delivery.MOST_UNATTENDED_POLLS + 1:
                asked.set()

        waiting = asyncio.create_task(
            wait_until_applied(bus, sent.last, on_lag=on_lag, on_unattended=said.append, poll_s=0)
        )
        await asked.wait()
        waiting.cancel()
        assert [list(each) for each in said] in ([], [[partition]])
        return said
    finally:
        await transport.aclose()
        await bus.aclose()


async def test_waiting_gives_up_after_an_outage(tmp_path: Path) -> None:
    bus = redis_bus(f"unix://{tmp_path}/nothing.sock", group="workers")
    sent = SentEvents(events=1, last={0: "1-0"}, positions={"0:1-0"})
    try:
        with pytest.raises(BusUnavailable):
            await wait_until_applied(bus, sent.last, give_up_s=0)
        with pytest.raises(BusUnavailable):
            await outcome_of(bus, sent, give_up_s=0)
    finally:
        await bus.aclose()


async def test_an_outage_while_waiting_is_named_once(tmp_path: Path) -> None:
    bus = redis_bus(f"unix://{tmp_path}/nothing.sock", group="workers")
    sent = SentEvents(events=1, last={0: "1-0"}, positions={"0:1-0"})
    said: list[BusUnavailable] = []
    try:
        with pytest.raises(BusUnavailable):
            await wait_until_applied(bus, sent.last, give_up_s=1, on_outage=said.append, clock=VIRTUAL)
        with pytest.raises(BusUnavailable):
            await outcome_of(bus, sent, give_up_s=1, on_outage=said.append, clock=VIRTUAL)
    finally:
        await bus.aclose()
    assert ["nothing.sock" in str(error) for error in said] == [True, True]


async def test_a_partition_that_no_worker_reads_is_named_once(sqlite_url: str) -> None:
    assert len(await waits(sqlite_url, claimed=False)) == 1


async def test_a_partition_with_a_worker_is_waited_for_silently(sqlite_url: str) -> None:
    assert await waits(sqlite_url, claimed=True) == []


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)], ids=["INT", "TERM"]
)
def test_a_signal_ends_a_read_that_does_not_await(number: signal.Signals, error: type[BaseException]) -> None:
    before = signal.signal(number, lambda *_: None)  # as asyncio's own: it acts at the next await only
    try:
        with pytest.raises(error) as caught, interruptible():
            signal.raise_signal(number)
        assert getattr(caught.value, "code", 143) == 143
        signal.raise_signal(number)
    finally:
        signal.signal(number, before)
