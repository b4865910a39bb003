"""Which relations of episodes hold by the rules of their ontology, on both kinds of server, through the bus."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.neo4j.test_memory_events import APP, T0, check_small_batches, event, logged, rows, store, write
from tests.services.planted_cascades import ONTOLOGY, content_of, planted
from tests.services.planted_stories import Story, wrong

from graphweft_contracts import Event
from graphweft_contracts.clock import SYSTEM_CLOCK, PastClock
from graphweft_contracts.memory import MemoryScope
from graphweft_contracts.search import SearchQuery
from graphweft_rules import RuleSet
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.episodes.ontologies import Ontologies
from graphweft_workers.features.episodes.ontologies.files import read_ontology
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.search import Searcher

pytestmark = pytest.mark.integration
__all__ = ("store",)

HOLDING = (
    "MATCH (a:Entity)-[x:RELATED_TO]->(b:Entity) MATCH (r:Relation {id: x.id}) "
    "WHERE x.invalid_at IS NULL RETURN r.user_id, a.name + ' ' + x.name + ' ' + b.name, r.invalid_at, r.doubted_at"
)
ENDS = (
    "MATCH (r:Relation) RETURN r.fact, left(r.valid_at, 10), left(r.invalid_at, 10), r.ended_why "
    "ORDER BY r.valid_at, r.name"
)


def life(text: str = ONTOLOGY) -> RuleSet:
    ontology, findings = read_ontology(text.encode(), Path("life_v1.yaml"))
    assert findings == ()
    assert ontology is not None
    return RuleSet({}, packs=(MemoryMutations(), EpisodeMutations(Ontologies([ontology]))))


RULES = life()


def moment(day: int) -> str:
    return (T0 + timedelta(days=day)).isoformat()


def day(number: int) -> str:
    return moment(number)[:10]


def episode(number: int, text: str, at: int, *, user: str = "u1", chat: str = "", **more: Any) -> Event:
    data = {
        "content": content_of(text, moment), "episode_type": "json", "schema_id": "life_v1", "user_id": user,
        "reference_time": moment(at), **more,
    }  # fmt: skip
    return event("episode.add", number, data, chat=chat or f"chat of {user}")


def told(stories: Sequence[Story], rng: random.Random | None = None) -> list[Event]:
    """Return the episodes of stories: all first ones, then all second ones; or in any order, each in its own chat."""
    events = [
        episode(
            100 * story.number + place, text, at, user=f"u{story.number}", chat=f"{rng and place} {story.number}"
        )
        for place in range(10) for story in stories for at, text in story.said[place : place + 1]
    ]  # fmt: skip
    if rng is not None:
        rng.shuffle(events)
    return events


@pytest.mark.timeout(900)
@pytest.mark.long("neo4j")
@pytest.mark.soak("252")
@pytest.mark.parametrize("each", [1, 9], ids=["28 stories", "252 stories"])
async def test_what_holds_by_planted_stories_whatever_their_order(url: str, store: GraphStore, each: int) -> None:
    stories = planted(each=each)
    assert sum(story.kind in {"cascade", "absence"} for story in stories) == 12 * each
    await write(url, store, told(stories, random.Random(5)), RULES)
    held: dict[str, set[str]] = {}
    doubted: dict[str, set[str]] = {}
    for user, text, invalid_at, doubted_at in await rows(store, HOLDING):
        assert invalid_at is None
        held.setdefault(user, set()).add(text)
        if doubted_at is not None:
            doubted.setdefault(user, set()).add(text)
    assert wrong(stories, held, doubted) == []


@pytest.mark.long("neo4j")
async def test_a_replay_in_small_batches_ends_the_same(url: str, store: GraphStore) -> None:
    await write(url, store, told(planted(each=1), random.Random(7)), RULES)
    await check_small_batches(url, store, RULES)


FIRED = [
    (5, "Ada WORKS_FOR Globex"),
    (1, "Ada WORKS_FOR Acme"),
    (2, "Ada SITS_IN room 3"),
    (3, "Ada HAS_BADGE badge 7"),
]


@pytest.mark.long("neo4j")
async def test_an_erasure_brings_back_what_an_erased_episode_ended(url: str, store: GraphStore) -> None:
    told = [episode(number, text, at) for number, (at, text) in enumerate(FIRED, 1)]
    await logged(url, store, told, clock=None, rules=RULES)
    assert await rows(store, ENDS) == [
        ("Ada works for Acme", day(1), day(5), "single_valued"),
        ("Ada sits in room 3", day(2), day(5), "depends_on"),
        ("Ada has badge badge 7", day(3), day(5), "depends_on"),
        ("Ada works for Globex", day(5), None, None),
    ]
    erase = event("memory.erase", 20, {"user_id": "u1", "before": (T0 + timedelta(seconds=1)).isoformat()}, chat="c9")
    await logged(url, store, [erase], clock=None, rules=RULES)
    assert await rows(store, ENDS) == [
        ("Ada works for Acme", day(1), None, None),
        ("Ada sits in room 3", day(2), None, None),
        ("Ada has badge badge 7", day(3), None, None),
    ]
    ends = "MATCH ()-[x:RELATED_TO]->() WHERE x.invalid_at IS NOT NULL OR x.ended_why IS NOT NULL RETURN count(x)"
    assert await rows(store, ends) == [(0,)]


USED = [(1, "Ada WORKS_FOR Acme"), (2, "Ada USES laptop 4"), (5, "Ada WORKS_FOR Acme until 5")]


async def test_a_search_says_what_is_in_doubt_and_why(url: str, store: GraphStore) -> None:
    await write(url, store, [episode(each, text, each, thread_id="t1") for each, text in USED], RULES)

    async def doubts(at: int, scope: MemoryScope, **more: Any) -> list[tuple[Any, ...]]:
        searcher = Searcher(store, clock=PastClock(T0 + timedelta(days=at), SYSTEM_CLOCK))
        query = SearchQuery(text="What does Ada use?", memory=scope, top_k=1, **more)
        table = (await searcher.search(APP, query, timeout_s=60)).table
        places = [table.columns.index(name) for name in ("text", "doubted_at", "doubted_because")]
        return [tuple(row[place] for place in places) for row in table.rows]

    user, thread = MemoryScope(user_id="u1"), MemoryScope(user_id="u1", thread_id="t1")
    because = "Ada works for Acme"
    assert [row[1][:10] for row in await doubts(6, user, of="facts")] == [day(5)]
    assert [row[0::2] for row in await doubts(6, user, of="facts")] == [("Ada uses laptop 4", because)]
    # Before it was in doubt
    assert await doubts(4, user, of="facts") == [("Ada uses laptop 4", None, None)]
    assert await doubts(6, user, of="facts", as_of=T0 + timedelta(days=4)) == [("Ada uses laptop 4", None, None)]
    # What another thread says is not shown in one, also where facts are known beyond it
    assert [row[2] for row in await doubts(6, thread)] == [None]
    for name in ("t1", "t2"):
        within = MemoryScope(user_id="u1", thread_id=name)
        assert [row[0::2] for row in await doubts(6, within, of="facts")] == [("Ada uses laptop 4", None)]


@pytest.mark.long("neo4j")
async def test_an_episode_without_the_ontology_ends_what_depends_on_a_relation(url: str, store: GraphStore) -> None:
    told = [episode(number, text, at) for number, (at, text) in enumerate(FIRED[1:], 1)]
    over = episode(9, "Ada WORKS_FOR Acme until 8", 9)
    plain = over.model_copy(update={"data": {name: value for name, value in over.data.items() if name != "schema_id"}})
    await write(url, store, [*told, plain], RULES)
    assert [row[2] for row in await rows(store, ENDS)] == [day(8), day(8), day(8)]


OTHER_END = """\
entity_types: {Person: A human being., Place: A room., Thing: A paper.}
edge_types: {MARRIED_TO: Is the spouse of., WORKS_FOR: Is paid by., SITS_IN: Has a desk., HAS_BADGE: Has., OPENS: May.}
edge_rules:
  - {type: MARRIED_TO, single_valued: true, symmetric: true}
  - {type: HAS_BADGE, depends_on: MARRIED_TO}
  - {type: OPENS, depends_on: HAS_BADGE}
  - {type: SITS_IN, depends_on: WORKS_FOR, single_valued: true}
"""
HELD = (
    "MATCH (r:Relation) WHERE r.changed_in IS NULL "
    "RETURN r.fact, left(r.invalid_at, 10), r.ended_why ORDER BY r.valid_at, r.name"
)


@pytest.mark.long("neo4j")
async def test_what_depends_on_a_marriage_ends_for_both(url: str, store: GraphStore) -> None:
    said = [(1, "Ada MARRIED_TO Ben"), (2, "Ben HAS_BADGE badge 7"), (3, "Ben OPENS lab 2"), (5, "Ada MARRIED_TO Eva")]
    await write(url, store, [episode(each, text, each) for each, text in said], life(OTHER_END))
    assert await rows(store, HELD) == [
        ("Ada married to Ben", day(5), "single_valued"),
        ("Ben has badge badge 7", day(5), "depends_on"),
        ("Ben opens lab 2", day(5), "depends_on"),
        ("Ada married to Eva", None, None),
    ]


@pytest.mark.long("neo4j")
async def test_one_value_at_a_time_counts_without_a_support(url: str, store: GraphStore) -> None:
    said = [(1, "Ada SITS_IN room 3"), (2, "Ada SITS_IN room 4")]
    await write(url, store, [episode(each, text, each) for each, text in said], life(OTHER_END))
    assert await rows(store, HELD) == [
        ("Ada sits in room 3", day(2), "single_valued"),
        ("Ada sits in room 4", None, None),
    ]


def lives(number: int, *said: str, user: str = "u1") -> Event:
    """Return an episode that says many relations."""
    contents = [content_of(text, moment) for text in said]
    entities = {each["name"]: each for content in contents for each in content["entities"]}
    relations = [each for content in contents for each in content["relations"]]
    return episode(number, said[0], number % 10, content={"entities": list(entities.values()), "relations": relations},
                   user=user)  # fmt: skip


COUNTS = "MATCH (r:Relation) RETURN r.name, count(r), count(r.invalid_at), count(DISTINCT r.ended_by) ORDER BY r.name"


PAIR = ("LIVES_IN town", "NEIGHBOUR_OF person")


@pytest.mark.long("neo4j")
async def test_each_of_many_homes_ends_by_the_next_one(url: str, store: GraphStore) -> None:
    many = lives(1, *(f"Ada LIVES_IN town {each} from {2 * each}" for each in range(900)))
    await write(url, store, [many], RULES)
    assert await rows(store, COUNTS) == [("LIVES_IN", 900, 899, 899)]
    later = [lives(number, f"Ada LIVES_IN village {at} from {at}") for number, at in ((2, 1), (3, 901), (4, 1_901))]
    await write(url, store, later, RULES)
    assert await rows(store, COUNTS) == [("LIVES_IN", 903, 902, 902)]


@pytest.mark.long("neo4j")
async def test_each_of_many_neighbours_ends_with_the_home_of_its_time(url: str, store: GraphStore) -> None:
    said = [f"Ada {name} {each} from {2 * each + late}" for each in range(150) for late, name in enumerate(PAIR)]
    await write(url, store, [lives(1, *said[:150]), lives(2, *said[150:])], RULES)
    assert await rows(store, COUNTS) == [("LIVES_IN", 150, 149, 149), ("NEIGHBOUR_OF", 150, 149, 149)]
    ended = (
        "MATCH (r:Relation {name: 'NEIGHBOUR_OF'}) MATCH (e:Relation {id: r.ended_by}) "
        "WHERE e.name = 'LIVES_IN' AND e.valid_at < r.valid_at AND e.invalid_at = r.invalid_at RETURN count(r)"
    )
    assert await rows(store, ended) == [(149,)]


@pytest.mark.long("neo4j")
async def test_ends_of_many_supports_are_the_same_in_any_order(url: str, store: GraphStore) -> None:
    said = [f"Ada {name} {each} from {2 * each + late}" for each in range(120) for late, name in enumerate(PAIR)]
    told = [
        said[:120],
        said[120:],
        ["Ada LIVES_IN hut from 7"],
        ["Ada LIVES_IN town 60 from 120 until 120"],
        ["Ada NEIGHBOUR_OF late from 239"],
        ["Ada LIVES_IN town 3 from 6 until 300", "Ada LIVES_IN road from 100"],
    ]
    orders = {"u1": range(len(told)), "u2": (4, 3, 5, 1, 2, 0)}
    events = [
        lives(10 * number + place, *told[place], user=user)
        for number, (user, order) in enumerate(orders.items(), 1)
        for place in order
    ]
    await write(url, store, events, RULES)
    ends = (
        "MATCH (r:Relation {user_id: '%s'}) RETURN r.fact, r.valid_at, r.invalid_at, r.ended_why, r.told_1 "
        "ORDER BY r.fact, r.valid_at"
    )
    first, second = [await rows(store, ends % user) for user in orders]
    assert first == second
    assert sum(row[3] == "depends_on" for row in first) == 119
