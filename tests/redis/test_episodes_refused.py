"""Episodes that are refused: each has a dead letter that says why, and goes through once that is mended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.neo4j.test_episodes import PERSON, SHOP, structured
from tests.neo4j.test_memory_events import rows, worked
from tests.services.layouts import spread

from graphweft import Client
from graphweft_contracts import Event
from graphweft_contracts.wire import WHOLE
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.episodes.ontologies import Ontologies, Ontology
from graphweft_workers.features.episodes.ontologies.ontology import type_model
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.bus import Bus

pytestmark = pytest.mark.integration

SECRET = "hunter2"
DOG = {"type": "Dog", "name": SECRET}
PETS = Ontology(schema_id="pets_v1", entity_types={"Dog": type_model("Dog", "Barks.")}, edge_types={}, edge_type_map={})


@pytest.fixture
async def bus(url: str) -> AsyncIterator[Bus]:
    made = redis_bus(url, new=spread(2))
    yield made
    await made.aclose()


@pytest.fixture
async def store(url: str) -> AsyncIterator[FalkorDBStore]:
    made = FalkorDBStore(url)
    yield made
    await made.aclose()


async def sent(url: str, events: Sequence[Event]) -> None:
    async with Client(url) as client:
        assert all(await client.emit_all(events, wait_s=120))


async def names(store: FalkorDBStore) -> list[str]:
    return [name for (name,) in await rows(store, "MATCH (e:Entity) RETURN e.name ORDER BY e.name")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"schema_id": "pets_v1"}, "unknown schema_id: use agent_memory_v1, or leave it out"),
        (
            {"schema_id": "agent_memory_v1"},
            "entities[0].type: agent_memory_v1 has no type 'Dog': use Person, Team, Agent",
        ),
        ({"content": f"{{{SECRET}"}, "content: it is no JSON, which an episode of type 'json' is: correct it, or"),
        (
            {"content": {"relations": [{"type": "OWNS", "source": SECRET, "target": SECRET}]}},
            "relations[0].source is the name of no entity of this episode: add it, or write",
        ),
        (
            {"content": {"entities": [{**DOG, "user_id": SECRET}]}},
            "entities[0]: 'user_id' is a property that every entity has: give the attribute another name",
        ),
    ],
)
async def test_its_letter_says_what_is_wrong_where_and_what_to_do(
    url: str, bus: Bus, store: FalkorDBStore, data: dict[str, Any], message: str
) -> None:
    refused, accepted = structured(1, DOG, **data), structured(2, PERSON)
    await sent(url, [refused, accepted])
    [letter] = await worked(bus, store)
    assert letter.message.startswith(message)
    assert SECRET not in letter.message
    assert (letter.reason, letter.rule, letter.mutation) == ("invalid_event", "episode.add", WHOLE)
    assert (letter.app_id, letter.event_type, letter.event_id) == ("shop", "episode.add", "e1")
    assert await names(store) == ["Ann"]  # what comes behind it is not held up
    assert await rows(store, "MATCH (p:Episode) RETURN p.event_id") == [("e2",)]


async def test_it_goes_through_once_its_ontology_is_there(url: str, bus: Bus, store: FalkorDBStore) -> None:
    relation = {"type": "OWNS", "source": PERSON, "target": SHOP}
    events = [structured(1, DOG, schema_id="pets_v1"), structured(2, PERSON, relations=[relation])]
    await sent(url, events)
    [letter] = await worked(bus, store)
    assert (await retry(bus, letter)).events == 1
    [again] = await worked(bus, store)  # nothing was done about it
    assert (again.message, again.event_id) == (letter.message, letter.event_id)
    assert await names(store) == ["Ann", "Shop"]
    assert (await retry(bus, again)).events == 1
    mended = RuleSet({}, packs=(MemoryMutations(), EpisodeMutations(Ontologies([PETS]))))
    assert await worked(bus, store, mended) == []
    assert await names(store) == ["Ann", "Shop", SECRET]
    assert await rows(store, "MATCH (p:Episode {schema_id: 'pets_v1'}) RETURN count(p)") == [(1,)]
