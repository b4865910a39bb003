"""Many large dead letters: what reads them needs no memory for their events."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, override

import pytest
from tests.services.environment import clean_environment
from tests.services.rules import load_rules

from graphweft_contracts import DeadLetter, wire
from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.log.ledger_reader import ledger_as_lived, ledger_by_other_rules
from graphweft_workers.engine.usage.letter_quota import KEPT_BYTES, KEPT_LETTERS, LetterQuota
from graphweft_workers.engine.usage.usage_reporter import UsageReporter
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import LettersAround, letter_count, letter_pages

pytestmark = pytest.mark.integration
NUMBER = 60
EVENT_BYTES = 900_000
RULES = """
version: "1.0"
mutation_rules:
  - name: notes
    events: ["note.made"]
    mutations:
      - id: note
        cypher: "MERGE (n:Note {n: $n})"
        params: {n: $event.n}
"""


def large(number: int, size: int = EVENT_BYTES, **more: Any) -> DeadLetter:
    data = random.Random(number).randbytes(size // 2).hex().encode()
    offset = f"{1000 + number}-0"
    given: dict[str, Any] = {
        "id": f"0:{offset}", "position": f"0:{offset}", "count": 1, "reason": "no_rules", "message": "no rules",
        "app_id": "shop", "workflow": f"Nope{number}", "event_type": "note.made",
        "time": datetime.fromtimestamp(1_000_000 + number, UTC), "fields": wire.pack({wire.DATA: data}),
    }  # fmt: skip
    return DeadLetter(**(given | more))


class Counted(LettersAround):
    """Counts the bytes of events that were read, and of the largest page."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus.dead_letters)
        self.read_bytes = self.largest = 0

    @override
    async def read(self, **given: Any) -> Any:
        found = await super().read(**given)
        size = sum(len(value) for letter in found for value in letter.fields.values())
        self.read_bytes += size
        self.largest = max(self.largest, size)
        return found


@pytest.fixture
async def bus(url: str) -> AsyncIterator[Bus]:
    async with aclosing(redis_bus(url)) as opened:
        await opened.partitions.count()
        for number in range(NUMBER):
            await opened.dead_letters.put([large(number)])
        yield opened


async def test_pages_hold_every_letter_and_few_bytes(bus: Bus) -> None:
    await bus.dead_letters.put([large(number, 10) for number in range(NUMBER, NUMBER + 700)])
    letters = Counted(bus)
    found = [each async for page in letter_pages(letters) for each in page]
    assert [each.id for each in found] == [large(number, 10).id for number in range(NUMBER + 700)]
    assert all(each.fields for each in found)
    assert letters.largest < 6 * 1024**2
    assert [each async for page in letter_pages(letters, app_id="other") for each in page] == []


async def test_letters_that_go_meanwhile_end_no_page_for_ever(bus: Bus) -> None:
    seen: list[str] = []
    async for page in letter_pages(bus.dead_letters):
        seen += [each.id for each in page]
        for each in await bus.dead_letters.read(limit=NUMBER):
            await bus.dead_letters.requeue(each, [])
    assert 0 < len(seen) < NUMBER
    assert await letter_count(bus.dead_letters) == 0


async def test_what_had_no_effect_is_learned_without_events(bus: Bus) -> None:
    letters = Counted(bus)
    counted = replace(bus, dead_letters=letters)
    lived = await ledger_as_lived(counted, 0)
    await ledger_by_other_rules(counted, 0)
    assert lived.event("1000-0", "shop")
    assert letters.read_bytes == 0


async def test_a_worker_reads_only_the_event_that_it_publishes(url: str, bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "Nope7").mkdir()
    (tmp_path / "Nope7" / "graph_injection.yaml").write_text(RULES)
    letters = Counted(bus)
    graph = FalkorDBStore(url)
    worker: Any = MutationWorker(replace(bus, dead_letters=letters), graph, load_rules(tmp_path), name="w")
    worker._open_partitions[0] = object()
    await worker._returned_rules.publish()
    await graph.aclose()
    assert await letter_count(bus.dead_letters) == NUMBER - 1
    assert EVENT_BYTES - 2 <= letters.read_bytes <= 3 * EVENT_BYTES


@pytest.mark.long
async def test_the_archive_copies_letters_page_by_page(bus: Bus, tmp_path: Path) -> None:
    letters = Counted(bus)
    counted = replace(bus, dead_letters=letters)
    blobs = open_blobs(f"{tmp_path}/archive")
    state = ArchivedState(blobs)
    await state.save_letters(counted)
    assert letters.largest < 6 * 1024**2
    once = letters.read_bytes
    await state.save_letters(counted)
    assert letters.read_bytes == once, "nothing has changed"
    assert list(await state.dead_letters()) == [large(number) for number in range(NUMBER)]
    await bus.dead_letters.put([large(NUMBER, 10)])
    await state.save_letters(counted)
    assert len(await state.dead_letters()) == NUMBER + 1
    names = await blobs.names("letters/")
    await ArchivedState(blobs).save_letters(counted)
    assert len(await blobs.names("letters/")) <= len(names), "a copy that is there is not made again"


COPY = """
import asyncio, resource, sys
from contextlib import aclosing
from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.log.ledger_reader import ledger_as_lived, ledger_by_other_rules

async def main():
    async with aclosing(redis_bus(sys.argv[1])) as bus:
        await bus.dead_letters.by_app()
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[3]),) * 2)
        await ledger_as_lived(bus, 0)
        await ArchivedState(open_blobs(sys.argv[2])).save_letters(bus)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_little_memory_is_enough(url: str, bus: Bus, tmp_path: Path) -> None:
    """The letters have 54 MB; reading them all at once took several times that."""
    command = [sys.executable, "-c", COPY, url, f"{tmp_path}/archive", str(120 * 1024**2)]
    environment = clean_environment() | {"MALLOC_ARENA_MAX": "1"}  # else each thread reserves 64 MB
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


class Usage:
    """Counts what ``LetterQuota`` writes."""

    def __init__(self) -> None:
        self.count = self.size = 0

    def letters_of(self, app_id: str) -> int:
        return self.count

    def letter_bytes_of(self, app_id: str) -> int:
        return self.size

    def add_letter(self, partition: int, app_id: str, *, size: int, payload: bool) -> None:
        self.count += 1
        self.size += size


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"count": 0, "size": 0}, True),
        ({"count": KEPT_LETTERS - 1, "size": 0}, True),
        ({"count": KEPT_LETTERS, "size": 0}, False),
        ({"count": 0, "size": KEPT_BYTES - 2_000_000}, True),
        ({"count": 0, "size": KEPT_BYTES - EVENT_BYTES}, False),
    ],
)
async def test_above_the_default_quota_letters_keep_no_event(url: str, given: Mapping[str, int], kept: bool) -> None:
    usage: Any = Usage()
    usage.count, usage.size = given["count"], given["size"]
    async with aclosing(redis_bus(url)) as bus:
        letters = LetterQuota(bus.dead_letters, usage, lambda _: None)
        await letters.put([large(1)])
        [found] = await bus.dead_letters.read(limit=9)
    assert bool(found.fields) is kept
    assert found.entries


async def test_the_bytes_of_one_call_are_counted_too(url: str) -> None:
    usage: Any = Usage()
    async with aclosing(redis_bus(url)) as bus:
        letters = LetterQuota(bus.dead_letters, usage, lambda _: None)
        await letters.put([large(number) for number in range(NUMBER)])
        found = await bus.dead_letters.read(limit=NUMBER)
        reporter = UsageReporter(bus, FalkorDBStore(url))
        await reporter.open(0)
        assert reporter.letter_bytes_of("shop") >= 30_000_000
    assert sum(bool(each.fields) for each in found) == 27, "base64 takes a third more"
    assert sum(len(value) for each in found for value in each.fields.values()) <= KEPT_BYTES
