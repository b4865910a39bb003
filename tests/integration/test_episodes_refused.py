from __future__ import annotations
import asyncio
import pytest
from graphweft import Client
from graphweft_rules import Ruleset
from graphweft_rules.packs.episodes import EpisodePack
from graphweft_rules.packs.memory import MemoryPack
from graphweft_workers.bus.redis_streams import RedisStreamsBus
from graphweft_workers.graph.falkordb import FalkorDBStore
from graphweft_workers.mutation.worker import MutationWorker
from tests.integration.test_memory_events import rows
from tests.integration.test_episodes import RULES
from tests.integration.test_episodes import structured, U1, PERSON
from graphweft_rules.ontologies import Ontologies, Ontology
from graphweft_rules.ontologies.ontology import type_model
from graphweft_workers.mutation.retries import retry

pytestmark = pytest.mark.integration
pytest_plugins = ["tests.services.fixtures"]

@pytest.mark.parametrize("restart", [True, False])
async def test_refused(url, restart):
    store = FalkorDBStore(url)
    pets = Ontology(schema_id="pets_v1", entity_types={"Dog": type_model("Dog", "d")}, edge_types={}, edge_type_map={})
    async with Client(url) as client:
        assert all(await client.emit_all([structured(1, {"type": "Dog", "name": "Rex"}, schema_id="pets_v1"), structured(2, PERSON)], wait_s=5))
    bus = RedisStreamsBus(url, partitions=2)
    async def work(rules):
        worker = MutationWorker(bus, store, rules, name="w")
        task = asyncio.create_task(worker.run())
        async with asyncio.timeout(20):
            while sum(part.lag for part in await bus.status()):
                await asyncio.sleep(0.02)
        worker.stop(); await task
    await work(RULES)
    [letter] = await bus.dead_letters(limit=10)
    print(letter.reason, letter.message, letter.rule, letter.mutation)
    assert "schema_id names no ontology" in letter.message
    assert await rows(store, "MATCH (e:Entity) RETURN e.name") == [("Ann",)]
    assert await retry(bus, letter) == 1
    await work(Ruleset({}, packs=(MemoryPack(), EpisodePack(Ontologies([pets])))))
    assert await bus.dead_letters(limit=10) == []
    assert await rows(store, "MATCH (e:Entity) RETURN e.name ORDER BY e.name") == [("Ann",), ("Rex",)]
    await store.aclose(); await bus.aclose()
