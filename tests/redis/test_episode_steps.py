"""One step of an episode, or of an erasure, fails: nothing stands there without its owner, and a retry makes up for it.

All on FalkorDB: which step fails is told by a store that refuses one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.chaos.serial import Content
from tests.neo4j.test_episodes import OWNS, PERSON, SHOP, structured
from tests.neo4j.test_memory_events import event, rows, worked
from tests.services.layouts import spreading

from graphweft_contracts import Event, QueryFailed, channels, wire
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import Node, Write, WriteResult

pytestmark = pytest.mark.integration

STEPS = {(part.rule, part.id): part.cypher.statement for part in EpisodeMutations().mutations}


class Refusing:
    """The store, which aborts one statement of one app at its time limit while it is told to."""

    def __init__(self, store: FalkorDBStore, statement: str) -> None:
        self._store = store
        self._statement = statement
        self.refuses = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        for number, write in enumerate(writes):
            if (
                self.refuses
                and app_id == "disturbed"
                and write.query is not None
                and write.query.statement == self._statement
            ):
                done = WriteResult(count=0)
                if number:
                    done = await self._store.apply(app_id, partition, writes[:number])
                failure = done.failure or QueryFailed("the query was aborted at its time limit", code="timeout")
                return WriteResult(count=done.count, failure=failure)
        return await self._store.apply(app_id, partition, writes)


def story(app_id: str) -> list[Event]:
    ann = {**PERSON, "role": "said by u1", "description": "told by u1"}
    events = [
        structured(1, ann, SHOP, relations=[{**OWNS, "fact": "Ann owns the shop"}], schema_id="agent_memory_v1"),
        structured(2, {**PERSON, "role": "kept", "grade": 2}),
        structured(3, {**PERSON, "role": "of another"}, user_id="u2"),
    ]
    return [each.model_copy(update={"appid": app_id}) for each in events]


def erased(app_id: str) -> Event:
    before = {"user_id": "u1", "before": story(app_id)[0].time.isoformat()}
    return event("memory.erase", 9, before).model_copy(update={"appid": app_id})


async def taken(url: str, bus: Bus, events: Sequence[Event]) -> None:
    """Let the log take events at their own times: whoever adds an entry may choose its id on Redis."""
    layout = await bus.partitions.layout()
    async with Redis.from_url(url) as client:
        for each in events:
            stream = channels.events_stream(layout.partition_of(each.key))
            await client.xadd(stream, {**wire.encode(each)}, id=f"{int(each.time.timestamp() * 1000)}-*")


async def lasting(graph: FalkorDBStore, app_id: str) -> Content:
    """Return an app's graph without the places in the log: a retry has none, only a time."""
    content = await Content.of(graph, app_id)
    nodes: list[Node] = []
    for node in content.nodes:
        kept = {name: value for name, value in node.properties.items() if name not in ("partition", "erased_elsewhere")}
        if "erased_before" in kept:
            kept["erased_before"] = kept["erased_before"].split()[0]
        nodes.append(replace(node, properties=kept))
    return Content(nodes, content.edges)


@pytest.mark.long(keep=("episode.add/entities",))
@pytest.mark.parametrize("step", [each for each in STEPS if each[0] != "episode.extracted"], ids="/".join)
async def test_a_step_that_failed_is_made_up_for(
    url: str, graph: FalkorDBStore, bus: Bus, step: tuple[str, str]
) -> None:
    store = Refusing(graph, STEPS[step])
    apps = ("undisturbed", "disturbed")
    await taken(url, bus, [event for both in zip(*map(story, apps), strict=True) for event in both])
    await worked(bus, store)
    await taken(url, bus, [erased(app_id) for app_id in apps])
    await worked(bus, store)
    letters = await bus.dead_letters.read(limit=100)
    if step[1] != "add_unowned":
        assert step in {(letter.rule, letter.mutation) for letter in letters}
    # Nothing that anybody has said stands there without whose it is.
    said = "MATCH (e:Entity) WHERE e.user_id IS NULL AND (e.name IS NOT NULL OR e.description IS NOT NULL) RETURN e.id"
    assert await rows(graph, said, app_id="disturbed") == []
    given = "MATCH (a:Attribute) WHERE a.user_id IS NULL RETURN a.name"
    assert await rows(graph, given, app_id="disturbed") == []
    linked = "MATCH (:Entity)-[x:RELATED_TO]->(:Entity) WHERE x.user_id IS NULL RETURN x.fact"
    assert await rows(graph, linked, app_id="disturbed") == []
    store.refuses = False
    for letter in letters:
        assert (await retry(bus, letter)).events == 1
    await worked(bus, store)
    assert await bus.dead_letters.read(limit=10) == []
    if step[0] == "episode.add" and step[1] != "add_unowned":
        # The erasure came before what was retried, so what it would have taken is there; it takes it the next time.
        async with spreading(url) as client:
            assert await client.emit(erased("disturbed").model_copy(update={"id": "again"}), wait_s=120)
        await worked(bus, store)
    if step == ("episode.add", "entities"):  # an entity of an erased relation may be left, with nothing but its id
        named = "MATCH (e:Entity) WHERE keys(e) <> ['id'] RETURN properties(e) ORDER BY e.id"
        assert await rows(graph, named, "disturbed") == await rows(graph, named, "undisturbed")
        return
    found, wanted = await lasting(graph, "disturbed"), await lasting(graph, "undisturbed")
    assert found.digest == wanted.digest, found.against(wanted)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"content": "a\0b", "episode_type": "text"}, "NUL"),
        ({"content": {"entities": [{"type": "Person", "name": "Ann\0"}]}}, "NUL"),
        ({"content": {"entities": [{"type": "Person", "name": "\ufdfa" * 256}]}}, "shorten it"),
    ],
)
async def test_what_no_graph_keeps_is_refused_and_puts_nothing_in_quarantine(
    url: str, graph: FalkorDBStore, bus: Bus, changed: dict[str, Any], said: str
) -> None:
    bad = [
        event("episode.add", number, {"episode_type": "json", "user_id": "u1", **changed}) for number in range(1, 22)
    ]
    async with spreading(url) as client:
        assert all(await client.emit_all([*bad, structured(50, PERSON)], wait_s=120))
    await worked(bus, graph)
    letters = await bus.dead_letters.read(limit=100)
    assert {(letter.reason, letter.count) for letter in letters} == {("invalid_event", 1)}
    assert len(letters) == 21
    assert all(said in letter.message for letter in letters)
    assert await rows(graph, "MATCH (e:Entity) RETURN e.name") == [("Ann",)]
