"""Whoever writes episodes chooses names of attributes: a graph, and its neighbours, stay usable whatever they are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from redis.asyncio import Redis
from tests.neo4j.test_episodes import PERSON, having, structured
from tests.neo4j.test_memory_events import APP, add, rows, store, worked
from tests.services.layouts import spread, spreading

from graphweft.transport import Outgoing
from graphweft.transports.registry import make_transport
from graphweft_contracts import Event, wire
from graphweft_contracts.channels import MUTATION_GROUP, events_stream, graph_name
from graphweft_contracts.wire import WHOLE
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore

pytestmark = pytest.mark.integration
pytest_plugins = ["tests.services.fixtures"]
__all__ = ("store",)  # a fixture

NEIGHBOUR = "neighbour"
_ALL = 65_535
"""Names of properties that a graph of FalkorDB can have, ever."""


async def appended(url: str, events: Sequence[Event]) -> None:
    """Put events on the bus without the checks of a client."""
    transport = make_transport(url, new=spread(2))
    try:
        await transport.append([Outgoing(key=each.key, fields=wire.encode(each)) for each in events])
    finally:
        await transport.aclose()


def of_neighbour(number: int) -> Event:
    return add(number, "we are fine", user_id="v").model_copy(update={"appid": NEIGHBOUR})


@pytest.mark.long
@pytest.mark.slow
async def test_more_names_than_a_graph_can_have_cost_it_none(url: str, bus: Bus, graph: FalkorDBStore) -> None:
    events: list[Event] = []
    for number in range(_ALL // 200 + 1):
        entities = [
            {"type": "Thing", "name": f"t{part}", **{f"a{number}_{part * 50 + name}": name for name in range(50)}}
            for part in range(4)
        ]
        events.append(structured(number, *entities, chat=f"c{number % 8}"))
    neighbours = [of_neighbour(number) for number in range(20)]
    async with spreading(url) as client:
        assert all(await client.emit_all([*events[:100], *neighbours, *events[100:]], wait_s=120))
    assert await worked(bus, graph) == []
    assert await rows(graph, "MATCH (:Entity)-[:HAS_ATTRIBUTE]->(a:Attribute) RETURN count(a), sum(a.value)") == [
        (len(events) * 200, len(events) * 4 * sum(range(50)))
    ]
    [(names,)] = await rows(graph, "CALL db.propertyKeys() YIELD propertyKey RETURN count(propertyKey)")
    assert names < 100
    assert await rows(graph, "MATCH (m:Memory) RETURN count(m)", NEIGHBOUR) == [(20,)]


@pytest.mark.long("neo4j")
async def test_an_event_with_too_many_names_is_a_dead_letter(url: str, bus: Bus, store: GraphStore) -> None:
    entities = [
        {"type": "Thing", "name": f"t{part}", **{f"a{part}_{name}": 1 for name in range(60)}} for part in range(1_000)
    ]
    hostile = structured(1, *entities)
    good = [structured(2, {**PERSON, "role": "lead"})]
    if isinstance(store, FalkorDBStore):  # Neo4j has one graph here
        good.append(of_neighbour(3))
    async with spreading(url) as client:
        assert await client.emit(hostile, wait_s=5) is None  # at once, and not because of the bus
        assert client.stats.rejected == 1
        assert client.stats.buffered == 0
        await appended(url, [hostile])
        assert all(await client.emit_all(good, wait_s=120))
    [letter] = await worked(bus, store)
    assert (letter.reason, letter.event_id, letter.rule, letter.mutation) == (
        "invalid_event", "e1", "episode.add", WHOLE,
    )  # fmt: skip
    assert letter.message == (
        "the entities have 60,000 different names of attributes, and an episode has at most 200: give equal things "
        "equal names, or put names that are data into a value (a list of strings)"
    )
    found = await rows(store, f"MATCH (e:Entity) {having('role')} RETURN e.name, role.value")
    assert found == [("Ann", "lead")]
    if isinstance(store, FalkorDBStore):
        assert await rows(store, "MATCH (m:Memory) RETURN count(m)", NEIGHBOUR) == [(1,)]


async def test_names_of_one_app_are_none_of_another(url: str, bus: Bus, graph: FalkorDBStore) -> None:
    """The same entity with equal names in two apps and for two users: four values."""
    events: list[Event] = []
    for number, (app_id, user_id) in enumerate((a, u) for a in ("shop", NEIGHBOUR) for u in ("u1", "u2")):
        said = structured(number, {**PERSON, "role": f"{app_id} {user_id}"}, user_id=user_id)
        events.append(said.model_copy(update={"appid": app_id}))
    async with spreading(url) as client:
        assert all(await client.emit_all(events, wait_s=120))
    assert await worked(bus, graph) == []
    for app_id in ("shop", NEIGHBOUR):
        found = await rows(graph, f"MATCH (e:Entity) {having('role')} RETURN role.value ORDER BY e.user_id", app_id)
        assert found == [(f"{app_id} u1",), (f"{app_id} u2",)]


async def test_a_graph_with_attributes_as_properties_is_built_anew_from_the_log(
    url: str, bus: Bus, graph: FalkorDBStore
) -> None:
    """As the page about episodes says; the neighbour's graph stays as it is."""
    events = [structured(number, {**PERSON, "role": f"r{number}"}, chat=f"c{number}") for number in range(5)]
    async with spreading(url) as client:
        assert all(await client.emit_all([*events, *map(of_neighbour, range(5))], wait_s=120))
    assert await worked(bus, graph) == []
    neighbour = await read_digest(graph, NEIGHBOUR)
    async with Redis.from_url(url) as redis:
        before = "MATCH (e:Entity) OPTIONAL MATCH (a:Attribute) SET e.role = 'r0', e._role = '' DETACH DELETE a"
        await redis.execute_command("GRAPH.QUERY", graph_name(APP), before)
        # What there is goes on being read, and what comes is kept in the new way.
        async with spreading(url) as client:
            assert await client.emit(structured(9, {**PERSON, "city": "Oslo"}), wait_s=120)
        assert await worked(bus, graph) == []
        asked = f"MATCH (e:Entity) {having('role', 'city')} RETURN e.role, role.value, city.value"
        assert await rows(graph, asked) == [("r0", None, "Oslo")]
        await redis.execute_command("GRAPH.DELETE", graph_name(APP))
        for partition in await bus.partitions.status():
            await redis.execute_command("XGROUP", "SETID", events_stream(partition.id), MUTATION_GROUP, 0)
    assert await worked(bus, graph) == []
    assert await rows(graph, asked) == [(None, "r4", "Oslo")]
    assert await read_digest(graph, NEIGHBOUR) == neighbour
