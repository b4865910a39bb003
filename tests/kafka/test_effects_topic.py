"""The effects stream on Kafka, read by a subscriber of FastStream."""

from __future__ import annotations

from pathlib import Path

import pytest
from faststream.kafka import KafkaBroker
from tests.services.buses import applied, mutation_bus
from tests.services.rules import TURNS, load_rules, rules_folder
from tests.services.waiting import until
from tests.services.workers import working

from graphweft import Client, Event
from graphweft_contracts import Layout
from graphweft_runtimes.faststream import EFFECTS_TOPIC, Effects
from graphweft_workers.drivers.falkordb.store import FalkorDBStore

pytestmark = pytest.mark.integration


async def test_a_subscriber_reads_what_took_effect(kafka_url: str, url: str, tmp_path: Path) -> None:
    rules = load_rules(rules_folder(tmp_path, TURNS))
    bus, graph = mutation_bus(kafka_url, Layout(partitions=2, order="app"), lease_s=10.0), FalkorDBStore(url)
    broker = KafkaBroker(kafka_url.removeprefix("kafka://"))
    seen: list[Effects] = []

    @broker.subscriber(EFFECTS_TOPIC, auto_offset_reset="earliest")
    async def follow(effects: Effects) -> None:
        seen.append(effects)

    try:
        await bus.partitions.count()
        async with Client(kafka_url) as client, working(bus, graph, rules, effects_keep=1):
            for number in range(6):
                data = {"agent_name": "Ann", "turn_number": number}
                event = Event.create(
                    "agent.turn_complete", app_id=f"app{number % 2}", chat_id="c", workflow="Support", data=data
                )
                assert await client.emit(event, wait_s=60)
            await applied(bus)
            async with broker:
                await broker.start()
                await until(
                    lambda: sum(each.events for each in seen), lambda found: found == 6, why="the subscriber has all"
                )
    finally:
        await bus.aclose()
        await graph.aclose()
    for app in ("app0", "app1"):
        messages = [each for each in seen if each.app_id == app]
        assert [int(each.first) for each in messages] == sorted(int(each.first) for each in messages)
        assert {name for each in messages for name in each.labels} == {"Agent"}
