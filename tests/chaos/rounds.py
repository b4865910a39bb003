"""One round: events flow, something breaks, everything heals, and the graph is compared with a serial pass."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services.rules import load_rules

from graphweft import Client
from graphweft_contracts import wire
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.neo4j.dialect import NEO4J
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.wiring.rules import push

from .cases import Case
from .faults import Fault
from .serial import Content, Neo4jReference, log_of, patiently, queries_of
from .stack import Stack, Worker

__all__ = ("Round", "check_serial", "clear", "until")

_EVENTS = {"falkordb": 240, "neo4j": 60}
"""Least number of events of a round; the serial pass on Neo4j takes most of the time there."""
_CAUGHT_UP_S = 180.0
"""A restarted Neo4j compiles all queries anew, which takes a busy machine a minute."""


@dataclass(slots=True)
class Round:
    """What faults act on."""

    stack: Stack
    rng: random.Random
    case: Case
    workers: list[Worker]
    bus: Bus
    before: dict[int, str]
    """The end of each partition when the round began."""

    @classmethod
    async def run(cls, stack: Stack, faults: Sequence[Fault], *, app: str, seed: str, folder: Path) -> None:
        """Run the round of a seed, with one fault after the other; ``app`` is nobody else's.

        Raises ``AssertionError`` when the graph is wrong.
        """
        rng = random.Random(seed)
        async with stack.bus() as bus:
            partitions = await patiently(bus.partitions.count)
        case = Case(random.Random(rng.random()), app, partitions)
        case.write_rules(folder / "rules")
        rules = load_rules(folder / "rules")
        if stack.graph_kind == "neo4j":
            await clear(stack)
        async with stack.bus() as bus:
            before = {part.id: part.end for part in await patiently(bus.partitions.status)}
            letters = await patiently(lambda: letter_count(bus.dead_letters))
            # Rounds share a bus, and rules that other ones replaced stay replaced: these are for this app alone.
            await patiently(lambda: push(bus, rules, app))
            batch = rng.choice([5, 40, 200])
            workers = [
                stack.worker(f"w{number}", folder / "rules", folder / f"w{number}.log", batch_events=batch)
                for number in range(max(fault.workers for fault in faults))
            ]
            self = cls(stack, rng, case, workers, bus, before)
            try:
                for worker in workers:
                    worker.start()
                await self._under_way(faults)
                await self.caught_up()
                for worker in workers:
                    if worker.running:
                        assert await worker.stop() in (0, -signal.SIGTERM), (
                            worker.log.read_text()
                        )  # that: still starting
            finally:
                for worker in workers:
                    if worker.running:
                        worker.kill()
            there = await patiently(lambda: bus.dead_letters.read(limit=letters + 3))
            assert len(there) == letters, there
            logs = [await log_of(bus, number, before[number]) for number in range(partitions)]
        self._nothing_lost_or_misplaced(logs)
        await self._as_serial(rules, logs)

    async def some_time(self, longest_s: float, *, least: float = 0.0) -> None:
        """Wait for a time that the seed decides."""
        await asyncio.sleep(self.rng.uniform(least, longest_s))

    async def an_owner(self) -> Worker:
        """Wait until every partition has an owner, and return one of them."""

        async def owned() -> bool:
            return None not in {part.owner for part in await patiently(self.bus.partitions.status)}

        await until(owned)
        owners = {part.owner for part in await patiently(self.bus.partitions.status)}
        return self.rng.choice([worker for worker in self.workers if self._is(worker, owners)])

    async def taken_over(self, worker: Worker) -> None:
        """Wait until ``worker`` owns nothing any more, and others have done something of what there is to do."""

        async def nothing() -> bool:
            owners = {part.owner for part in await patiently(self.bus.partitions.status)}
            return None not in owners and not self._is(worker, owners)

        await until(nothing)
        behind = {part.id: part.position for part in await patiently(self.bus.partitions.status) if part.lag}

        async def all_moved() -> bool:
            now = {part.id: part for part in await patiently(self.bus.partitions.status)}
            return all(not now[number].lag or now[number].position != at for number, at in behind.items())

        await until(all_moved)

    async def caught_up(self) -> None:
        """Wait until nothing is left to apply."""

        async def idle() -> bool:
            self._check_alive()
            return not sum(part.lag for part in await patiently(self.bus.partitions.status))

        await until(idle)

    @staticmethod
    def _is(worker: Worker, owners: set[str | None]) -> bool:
        """Tell whether the worker is among owners; a Kafka member's name begins with its worker's."""
        return any(owner is not None and owner.startswith(worker.name) for owner in owners)

    def _check_alive(self) -> None:
        for worker in self.workers:
            assert worker.ended in (None, -signal.SIGKILL), worker.log.read_text()

    async def _under_way(self, faults: Sequence[Fault]) -> None:
        """Emit events; strike when the first have taken effect, or at once; go on until all is whole again."""
        least = _EVENTS[self.stack.graph_kind]
        async with self.stack.client() as client:
            at_once = self.rng.random() < 0.2
            await self._emit(client, least // 4)
            if not at_once:
                await self._some_effect()
            striking = asyncio.create_task(self._strike(faults))
            while len(self.case.events) < least or not striking.done():
                # However long the faults take, memory and the serial pass stay small, and something is under way.
                enough = len(self.case.events) - least
                await self._emit(client, 8 if enough < 0 else 2 if enough < least else 0)
                await asyncio.sleep(0.05)
            await striking
            await self._emit(client, 20)
            assert await client.flush(30)
            assert client.stats.dropped == client.stats.rejected == 0

    async def _strike(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            for worker in self.workers:
                if not worker.running:
                    worker.start()
            await self.some_time(0.4)
            await fault.strike(self)

    async def _some_effect(self) -> None:
        async def some() -> bool:
            self._check_alive()
            return any(
                is_after(part.position, self.before[part.id]) for part in await patiently(self.bus.partitions.status)
            )

        await until(some)

    async def _emit(self, client: Client, count: int) -> None:
        for _ in range(count):
            await client.emit(self.case.event(), wait_s=0)

    def _nothing_lost_or_misplaced(self, logs: Sequence[Sequence[Entry]]) -> None:
        """The producer's side: everything is on the bus, and first copies stand in the order of emission."""
        found: dict[str, list[str]] = {}
        for entries in logs:
            for entry in entries:
                event = wire.decode(entry.fields)
                names = found.setdefault(event.chatid, [])
                if event.data["name"] not in names:
                    names.append(event.data["name"])
        emitted: dict[str, list[str]] = {}
        for event in self.case.events:
            emitted.setdefault(event.chatid, []).append(event.data["name"])
        assert found == emitted

    async def _as_serial(self, rules: RuleSet, logs: Sequence[Sequence[Entry]]) -> None:
        async with self.stack.graph() as graph:
            app = self.case.app
            query = "MATCH (w:Witness) RETURN w.chat, w.n, w.seen"
            seen = {row[0]: (row[1], row[2]) for row in (await graph.read(app, query, {}, timeout_s=30)).rows}
            expected = self.case.witnesses()
            for chat, witness in expected.items():
                assert seen.get(chat) == witness, f"chat {chat}: {seen.get(chat)} instead of {witness}"
            assert seen.keys() == expected.keys()
            found = await Content.of(graph, app)
        await check_serial(self.stack, app, rules, dict(enumerate(logs)), found)


async def check_serial(
    stack: Stack, app: str, rules: RuleSet, logs: Mapping[int, Sequence[Entry]], found: Content
) -> None:
    """Compare what a graph held with a serial pass over its logs by partition; Neo4j's database is cleared for it."""
    dialect = FALKORDB if stack.graph_kind == "falkordb" else NEO4J
    queries = [
        query
        for partition, entries in logs.items()
        for event in queries_of(entries, rules, dialect, app, partition=partition)
        for query in event
    ]
    if stack.graph_kind == "neo4j":
        await clear(stack)
    async with stack.reference() as reference:
        serial, refused = await reference.run(queries, rules.keys)
    assert not refused, [queries[number] for number in refused]
    assert found.digest == serial.digest, found.against(serial)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds; raises ``TimeoutError`` after the time that a restarted server may need."""
    async with asyncio.timeout(_CAUGHT_UP_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.05)


async def clear(stack: Stack) -> None:
    """Take the graph out of a Neo4j, so that the next app may have it and nobody reads the events of this one again."""
    async with stack.reference() as reference:
        assert isinstance(reference, Neo4jReference)
        await reference.clear(keep_positions=True)
