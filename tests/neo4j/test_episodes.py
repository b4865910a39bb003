"""What the events about episodes leave in the graph, on both kinds of server, through the real bus and worker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from tests.neo4j.test_memory_events import APP, T0, event, logged, rows, store, write
from tests.neo4j.test_memory_order import FalkorDB, Server, falkordb, merged, story
from tests.neo4j.test_memory_order import server as serial  # of another name: there is one in conftest
from tests.services.neo4j import Neo4jServer
from tests.services.rules import rule_set

from graphweft_contracts import Event
from graphweft_contracts.episodes import episode_id
from graphweft_rules import RuleSet
from graphweft_rules.matching.pack import LogTime
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.features.episodes.mutations import entity_id
from graphweft_workers.ports.graph_store import GraphStore

pytestmark = pytest.mark.integration
pytest_plugins = ["tests.services.fixtures"]
__all__ = ("falkordb", "serial", "store")  # fixtures

RULES = rule_set()
U1 = {"user_id": "u1"}
_EXAMPLES = os.environ.get("GRAPHWEFT_EXAMPLES")


def at(seconds: int) -> str:
    """Return the time as the graph has it."""
    return (T0 + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def structured(
    number: int, *entities: dict[str, Any], relations: Sequence[dict[str, Any]] = (), chat: str = "c1", **more: Any
) -> Event:
    content = {"entities": list(entities), "relations": list(relations)}
    data = {"content": content, "episode_type": "json", **U1} | more
    return event("episode.add", number, data, chat=chat)


def extracted(number: int, of: int, content: dict[str, Any], *, chat: str = "c1", **more: Any) -> Event:
    data = {"episode_id": episode_id("/test", f"e{of}"), "reference_time": at(of), "model": "m", **content, **U1} | more
    return event("episode.extracted", number, data, chat=chat)


def having(*names: str) -> str:
    """Return Cypher that binds each name to that attribute of ``e``, where there is one."""
    found = (f"OPTIONAL MATCH (e)-[:HAS_ATTRIBUTE]->({name}:Attribute {{name: '{name}'}})" for name in names)
    return " ".join(found)


PERSON = {"type": "Person", "name": "Ann"}
SHOP = {"type": "Project", "name": "Shop"}
OWNS = {"type": "OWNS", "source": "Ann", "target": "Shop"}


async def test_a_structured_episode_becomes_entities_and_relations(url: str, store: GraphStore) -> None:
    person = {**PERSON, "role": "lead", "grade": 3, "rate": 0.5, "here": True, "tags": ["a", "b"], "gone": None}
    owns = {**OWNS, "fact": "Ann owns the shop", "valid_from": "2026-01-01T00:00:00+01:00"}
    add = structured(
        1, person, SHOP, relations=[owns], name="n", schema_id="agent_memory_v1", source_description="d",
        episode_id="mine", thread_id="t", reference_time=at(-60),
    )  # fmt: skip
    await write(url, store, [add])
    ids = [entity_id({"user_id": "u1"}, kind, name) for kind, name in (("Person", "Ann"), ("Project", "Shop"))]
    assert await rows(
        store,
        f"MATCH (p:Episode)-[:MENTIONS]->(e:Entity) {having('role', 'grade', 'rate', 'here', 'tags')} "
        "RETURN p.id, p.name, p.episode_type, p.schema_id, p.reference_time, p.source_description, p.episode_id, "
        "p.user_id, p.thread_id, e.id, e.type, e.name, role.value, grade.value, rate.value, here.value, tags.value, "
        "e.user_id, e.thread_id, e.terms ORDER BY e.name",
    ) == [
        (
            episode_id("/test", "e1"), "n", "json", "agent_memory_v1", at(-60), "d", "mine", "u1", "t",
            ids[0], "Person", "Ann", "lead", 3, 0.5, True, ["a", "b"], "u1", None, "ann",
        ),
        (
            episode_id("/test", "e1"), "n", "json", "agent_memory_v1", at(-60), "d", "mine", "u1", "t",
            ids[1], "Project", "Shop", None, None, None, None, None, "u1", None, "shop",
        ),
    ]  # fmt: skip
    expected = [("OWNS", "Ann owns the shop", "2025-12-31T23:00:00.000000Z", None)]
    assert (
        await rows(
            store,
            "MATCH (a:Entity {name: 'Ann'})-[x:RELATED_TO]->(b:Entity {name: 'Shop'}) "
            "RETURN x.name, x.fact, x.valid_at, x.invalid_at",
        )
        == expected
    )
    assert await rows(
        store, "MATCH (p:Episode)-[:STATES]->(r:Relation) RETURN r.name, r.fact, r.valid_at, r.invalid_at"
    ) == expected  # fmt: skip


async def test_what_is_of_an_excluded_type_is_left_out(url: str, store: GraphStore) -> None:
    secret = {"type": "Credential", "name": "hunter2"}
    relation = {"type": "OWNS", "source": "Ann", "target": "hunter2"}
    await write(url, store, [structured(1, PERSON, secret, relations=[relation], schema_id="agent_memory_v1")])
    assert await rows(store, "MATCH (e:Entity) RETURN e.name") == [("Ann",)]
    assert await rows(store, "MATCH ()-[x:RELATED_TO]->() RETURN count(x)") == [(0,)]


@pytest.mark.soak("neo4j")
async def test_a_text_waits_for_a_model_whose_first_answer_counts(url: str, store: GraphStore) -> None:
    text = event("episode.add", 1, {"content": "Ann owns the shop.", **U1})
    first = {"entities": [{**PERSON, "role": "lead"}, SHOP], "relations": [OWNS]}
    second = {"entities": [{"type": "Person", "name": "Bob"}]}
    await write(url, store, [text])
    assert await rows(store, "MATCH (p:Episode) RETURN p.content, p.structured_by, p.terms") == [
        ("Ann owns the shop.", None, "ann own the shop")
    ]
    others = [
        extracted(2, 1, second, chat="c2"),  # of another chat, where no order holds
        extracted(3, 1, second, user_id="u2"),
        extracted(4, 1, second, reference_time=at(9)),
        extracted(5, 8, second),
        extracted(6, 1, first),
        extracted(7, 1, second),
    ]
    await write(url, store, others)
    assert await rows(store, f"MATCH (e:Entity) {having('role')} RETURN e.name, role.value ORDER BY e.name") == [
        ("Ann", "lead"), ("Shop", None),
    ]  # fmt: skip
    assert await rows(store, "MATCH (:Entity)-[x:RELATED_TO]->(:Entity) RETURN x.fact, x.valid_at") == [
        ("Ann owns Shop", at(1))
    ]


async def test_structured_episodes_are_not_extracted_again(url: str, store: GraphStore) -> None:
    other = {"entities": [{"type": "Person", "name": "Bob"}]}
    await write(url, store, [structured(1, PERSON), extracted(2, 1, other)])
    assert await rows(store, "MATCH (e:Entity) RETURN e.name") == [("Ann",)]


@pytest.mark.long("order0", "order1")
@pytest.mark.soak("neo4j")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_of_a_property_the_latest_word_counts_whoever_comes_first(
    url: str, store: GraphStore, order: Sequence[int]
) -> None:
    told = [
        structured(
            1,
            {**PERSON, "name": "ANN", "role": "lead", "city": "Oslo", "summary": "Leads.", "description": "Tall."},
            reference_time=at(10),
            chat="c1",
        ),
        structured(2, {**PERSON, "name": "ann", "role": "head", "summary": "Heads."}, reference_time=at(20), chat="c2"),
        structured(3, {**PERSON, "name": " Ann "}, reference_time=at(30), chat="c3"),
    ]
    for number in order:
        await write(url, store, [told[number]])
    assert await rows(
        store,
        f"MATCH (e:Entity) {having('role', 'city')} RETURN e.name, role.value, city.value, e.summary, e.description",
    ) == [(" Ann ", "head", "Oslo", "Heads.", "Tall.")]


@pytest.mark.soak("neo4j")
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
async def test_a_relation_begins_with_the_first_word_and_ends_with_the_last(
    url: str, store: GraphStore, order: Sequence[int]
) -> None:
    ended = {**OWNS, "valid_to": at(100)}
    again = {**OWNS, "valid_from": at(200)}
    told = [
        structured(number, PERSON, SHOP, relations=[relation], chat=f"c{number}")
        for number, relation in enumerate((OWNS, OWNS, ended, again), 1)
    ]
    for number in order:
        await write(url, store, [told[number]])
    for where in ("(:Entity)-[x:RELATED_TO]->(:Entity)", "(x:Relation)"):
        found = await rows(store, f"MATCH {where} RETURN x.valid_at, x.invalid_at ORDER BY x.valid_at")
        assert found == [(at(1), at(100)), (at(200), None)]


def life_of_a_user() -> list[list[Event]]:
    """Events of several chats; in each they keep their order."""
    text = event("episode.add", 24, {"content": "Ann runs it.", **U1}, chat="c2")
    runs = {"type": "RUNS", "source": "Ann", "target": "Shop"}
    return [
        [
            structured(
                1,
                {**PERSON, "role": "lead", "city": "Oslo", "description": "Tall."},
                {**SHOP, "description": "Sold."},
                relations=[OWNS],
                chat="c1",
            ),
            structured(21, {**PERSON, "name": "ann", "role": "head"}, chat="c1", reference_time=at(-50)),
        ],
        [
            structured(2, PERSON, SHOP, relations=[{**OWNS, "valid_to": at(5)}, runs], chat="c2"),
            structured(
                22,
                {**SHOP, "description": "Sells."},
                {**PERSON, "name": "ANN"},
                relations=[OWNS | {"source": "ANN"}],
                chat="c2",
            ),
            text,
            extracted(25, 24, {"entities": [PERSON, SHOP], "relations": [runs]}, chat="c2"),
        ],
        [structured(4, PERSON, chat="c3", user_id="u2"), structured(5, {**PERSON, "x": 1}, chat="c3", user_id="u3")],
        [event("memory.erase", 20, {"user_id": "u1"}, chat="c9")],
    ]


@pytest.mark.long("order0", "order1")
@pytest.mark.soak("neo4j")
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 0, 1, 2), (0, 3, 2, 1)])
async def test_what_is_erased_leaves_what_other_episodes_say(url: str, store: GraphStore, order: Sequence[int]) -> None:
    chats = life_of_a_user()
    for chat in order:  # a worker for each: so no other order is possible
        await logged(url, store, chats[chat], clock=None)
    assert await rows(
        store,
        f"MATCH (e:Entity) {having('role', 'city')} RETURN e.user_id, e.name, role.value, city.value, e.description "
        "ORDER BY e.user_id, e.name",
    ) == [
        ("u1", "Ann", "head", None, None), ("u1", "Shop", None, None, "Sells."), ("u2", "Ann", None, None, None),
        ("u3", "Ann", None, None, None),
    ]  # fmt: skip
    named = "MATCH (a:Attribute) RETURN a.user_id, a.name, a.value ORDER BY a.user_id, a.name"
    assert await rows(store, named) == [("u1", "role", "head"), ("u3", "x", 1)]
    assert await rows(
        store, "MATCH (:Entity)-[x:RELATED_TO]->(:Entity) RETURN x.name, x.valid_at, x.invalid_at ORDER BY x.name"
    ) == [("OWNS", at(22), None), ("RUNS", at(24), None)]
    assert await rows(store, "MATCH (p:Episode {user_id: 'u1'}) RETURN count(p)") == [(3,)]


OWN_NODES = """
version: "1.0"
mutation_rules:
  - name: mine
    events: [thing.seen]
    mutations:
      - id: entity
        cypher: "MERGE (e:Entity {name: $name}) SET e.role = $role, e.seen = coalesce(e.seen, 0) + 1"
        params: {name: $event.name, role: $event.role}
      - id: owned
        cypher: "CREATE (:Entity {user_id: $user, name: 'Desk', role: $role})"
        params: {user: $event.user, role: $event.role}
      - id: others
        cypher: |
          CREATE (:Episode {user_id: $user, recorded: ''})-[:STATES]->(:Relation {user_id: $user, fact: $name})
        params: {user: $event.user, name: $event.name}
"""


@pytest.mark.soak("neo4j")
async def test_nodes_of_rules_with_the_same_labels_are_left_alone(url: str, store: GraphStore, tmp_path: Path) -> None:
    (tmp_path / "Things").mkdir()
    (tmp_path / "Things/graph_injection.yaml").write_text(OWN_NODES)
    rules = RuleSet.load(tmp_path, RULES.packs)
    thing = {"name": "Lamp", "role": "light", "user": "u1"}
    seen = [
        event("thing.seen", number, thing).model_copy(update={"workflow": "Things"}) for number in (1, 2)
    ]  # two with equal ids or names: no constraint stands against them
    told = structured(3, {**PERSON, "role": "lead"}, SHOP, relations=[OWNS])
    erased = event("memory.erase", 4, {"user_id": "u1"})
    await write(url, store, [seen[0], told, seen[1], erased], rules)
    assert await rows(
        store, "MATCH (e:Entity) RETURN e.name, e.role, e.user_id, e.seen, e.scopes ORDER BY e.user_id, e.seen"
    ) == [
        ("Desk", "light", "u1", None, None), ("Desk", "light", "u1", None, None), ("Lamp", "light", None, 2, None),
    ]  # fmt: skip
    assert await rows(store, "MATCH (p:Episode)-[:STATES]->(r:Relation) RETURN p.recorded, r.fact") == [
        ("", "Lamp"), ("", "Lamp"),
    ]  # fmt: skip


@pytest.mark.long
async def test_both_servers_end_with_the_same_graph(url: str, neo4j_server: Neo4jServer) -> None:
    digests: list[str] = []
    neo4j_server.empty()
    for graph in (FalkorDBStore(url), Neo4jStore(neo4j_server.uri)):
        for chat in (0, 1, 2):
            await logged(url, graph, life_of_a_user()[chat], clock=None)
        for chat in (2, 1, 0):  # all are copies
            await write(url, graph, life_of_a_user()[chat])
        digests.append((await read_digest(graph, APP)).sha256)
        await logged(url, graph, life_of_a_user()[3], clock=None)
        digests.append((await read_digest(graph, APP)).sha256)
        await graph.aclose()
        client = Redis.from_url(url)
        await client.flushall()  # the other server gets the same events from the beginning
        await client.aclose()
    assert digests[:2] == digests[2:]
    assert digests[0] != digests[1]


# --- random chats in random interleavings ---

_CHATS = 3
_EVENTS = 5
"""Of one chat, at most."""
_checked = settings(
    deadline=None,
    print_blob=True,
    derandomize=_EXAMPLES is None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
_seconds = st.integers(0, 2)
"""Few, so that what is erased lies between what is not, and times are equal."""
_times = _seconds.map(at)
_scopes = st.sampled_from([U1, U1, U1, U1, {**U1, "thread_id": "t"}, {"user_id": "u2"}, {"thread_id": "t"}])
_people = st.fixed_dictionaries(
    {"type": st.sampled_from(["Person", "Person", "Person", "Team"]), "name": st.sampled_from(["Ann", "ann"])}
)
_entities = st.tuples(
    _people,
    st.dictionaries(st.sampled_from(["role", "city", "summary"]), st.integers(1, 3).map(str), min_size=1, max_size=2),
).map(lambda found: found[0] | found[1])
_relations = st.tuples(
    st.fixed_dictionaries({"type": st.just("KNOWS"), "source": st.just(PERSON), "target": _people}),
    st.sampled_from(
        [{}, {}, {"valid_to": at(2)}, {"valid_to": at(3)}, {"valid_from": at(1)}, {"fact": "One."}, {"fact": "one."}]
    ),
).map(lambda found: found[0] | found[1])
"""Few, so that episodes say the same."""
_structures = st.fixed_dictionaries(
    {"entities": st.lists(_entities, min_size=1, max_size=2), "relations": st.lists(_relations, max_size=2)}
)


@st.composite
def _chats(draw: st.DrawFn) -> list[list[Event]]:
    """Events of several chats, of which the first may erase. Extractions are of the same chat, and some come again."""
    found: list[list[Event]] = []
    for chat in range(_CHATS):
        texts: list[Event] = []
        events: list[Event] = []
        for number in range(draw(st.integers(1, _EVENTS) if chat else st.integers(0, 1))):
            kinds = ["json", "json", "json", "text", "extracted", "erase"] if chat else ["erase"]
            kind = draw(st.sampled_from(kinds))
            id = f"c{chat}-{number}"
            time = T0 + timedelta(seconds=draw(_seconds))
            data: dict[str, Any]
            if kind == "erase":
                type, data = (
                    "memory.erase",
                    {"user_id": draw(st.sampled_from(["u1", "u1", "u2"])), "before": at(draw(st.integers(-1, 2)))},
                )
            elif kind == "extracted" and texts:
                of = draw(st.sampled_from(texts))
                scope = {name: of.data[name] for name in ("user_id", "agent_id", "thread_id") if name in of.data}
                type, id = "episode.extracted", f"c{chat}-x{draw(st.integers(0, 1))}"  # may come again, and differ
                data = {
                    "episode_id": episode_id("/test", of.id), "model": "m", "reference_time": of.data["reference_time"],
                    **scope, **draw(_structures),
                }  # fmt: skip
            else:
                text = kind != "json"
                said = {"content": "x"} if text else {"content": draw(_structures), "episode_type": "json"}
                type, data = "episode.add", {**said, "reference_time": draw(_times), **draw(_scopes)}
            events.append(
                Event.create(type, app_id="a", chat_id=f"c{chat}", id=id, source="/test", time=time, data=data)
            )
            if type == "episode.add" and "episode_type" not in data:
                texts.append(events[-1])
        found.append(events)
    return found


_turns = st.lists(st.integers(0, _CHATS - 1), min_size=_CHATS, max_size=_CHATS * _EVENTS)


@pytest.mark.soak("neo4j")
@pytest.mark.slow
@pytest.mark.timeout(3_600)
@settings(_checked, max_examples=int(_EXAMPLES or 5))
@given(chats=_chats(), orders=st.lists(_turns, min_size=1, max_size=3))
def test_the_order_of_chats_leaves_no_trace(serial: Server, chats: list[list[Event]], orders: list[list[int]]) -> None:
    serial.rules = RULES

    async def run() -> None:
        first = merged(chats, [])
        expected = await serial.serial(first)
        for turns in orders:
            events = merged(chats, turns)
            found = await serial.serial(events)
            assert found.digest == expected.digest, (
                f"{found.against(expected)}\n# chat by chat\n{story(first)}\n# in turns\n{story(events)}"
            )

    serial.runner.run(run())


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@settings(_checked, max_examples=max(1, int(_EXAMPLES or 20) // 5))
@given(chats=_chats(), turns=_turns)
def test_batches_leave_what_single_queries_leave(
    falkordb: FalkorDB, chats: list[list[Event]], turns: list[int]
) -> None:
    falkordb.rules = RULES

    async def run() -> None:
        # The engine drops copies; what copies that are far apart do is the other test's.
        events = list({event.identity: event for event in reversed(merged(chats, turns))}.values())[::-1]
        expected = await falkordb.serial(events, lambda event: LogTime(event.time, 0))
        found = await falkordb.engine(events)
        assert found.digest == expected.digest, f"{found.against(expected)}\n{story(events)}"

    falkordb.runner.run(run())
