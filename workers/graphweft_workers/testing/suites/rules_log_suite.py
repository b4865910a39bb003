"""What every bus promises of rule sets."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

from graphweft_contracts import BusUnavailable, wire
from graphweft_contracts.rules_log import StoredRules, announced
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.testing.suites.bus_kit import (
    PARTITIONS,
    BusFixtures,
    BusKit,
)
from graphweft_workers.testing.waiting import until_answered


class RulesLogSuite(BusFixtures):
    """Rule sets are stored once, and activated in one order."""

    async def test_rules_are_stored_once_and_activated_in_every_partition_of_their_scope(self, kit: BusKit) -> None:
        bus, other = kit.bus(), kit.bus()
        await bus.partitions.count()
        assert list(await bus.rules.activations()) == []
        assert await bus.rules.stored("d1") is None
        first = StoredRules(files={"W/graph_injection.yaml": b"version: '1.0'\xff", "_shared/b.yaml": b""})
        await bus.rules.store("d1", first)
        await other.rules.store("d1", StoredRules(files={"W/other.yaml": b""}))
        assert await other.rules.stored("d1") == first
        for summary in ({"format": 1}, {"format": 2}):
            await other.rules.store("d1", StoredRules(files=first.files, summary=summary))
            for reader in (bus, other, kit.bus()):
                assert await reader.rules.stored("d1") == replace(first, summary=summary)
        await bus.rules.store("d1", first)  # an earlier version, which knows no summaries
        assert await other.rules.stored("d1") == replace(first, summary={"format": 2})
        await kit.write(0, [b"before"])
        everywhere = await bus.rules.activate("*", "d1")
        await kit.write(0, [b"after"])
        second = await other.rules.activate("acme", "d1")
        assert (everywhere.number, everywhere.scope, everywhere.digest) == (1, "*", "d1")
        assert set(everywhere.positions) == set(range(PARTITIONS))
        assert second.number == 2
        assert set(second.positions) == set((await bus.partitions.layout()).partitions_of("acme"))
        for reader in (bus, other, kit.bus()):
            assert list(await reader.rules.activations()) == [everywhere, second]
            assert list(await reader.rules.activations(after=1)) == [second]
            assert list(await reader.rules.activations(after=2)) == []
        found = [entry for entry in await bus.log.after(0, "", limit=10) if announced(entry.fields) != 2]
        assert [entry.fields.get(wire.DATA) for entry in found] == [b"before", None, b"after"]
        assert found[1].offset == everywhere.positions[0]
        assert announced(found[1].fields) == 1
        assert found[1].fields.keys() == everywhere.entry().keys()

    async def test_activations_of_two_processes_at_once_are_in_one_order(self, kit: BusKit) -> None:
        buses = [kit.bus(), kit.bus()]
        await buses[0].partitions.count()
        await buses[0].rules.store("d1", StoredRules(files={}))

        async def activate(bus: Bus, scope: str) -> None:
            for _ in range(3):
                await until_answered(lambda: bus.rules.activate(scope, "d1"), BusUnavailable)  # the other was first

        await asyncio.gather(activate(buses[0], "acme"), activate(buses[1], "*"))
        found = await buses[0].rules.activations()
        assert [each.number for each in found] == list(range(1, len(found) + 1))
        assert sum(each.scope == "acme" for each in found) == 3
        for partition in range(PARTITIONS):
            places = [each.positions[partition] for each in found if partition in each.positions]
            assert all(is_after(later, earlier) for earlier, later in itertools.pairwise(places))
            entries = await buses[0].log.after(partition, "", limit=100)
            assert [entry.offset for entry in entries if announced(entry.fields)] == places
