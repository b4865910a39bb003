"""Which relations of episodes hold by the rules of their ontology, on both kinds of server, through the bus."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.neo4j.test_memory_events import T0, event, rows, store, write
from tests.services.planted_cascades import ONTOLOGY, Story, content_of, planted

from graphweft_contracts import Event
from graphweft_rules import RuleSet
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.episodes.ontologies import Ontologies
from graphweft_workers.features.episodes.ontologies.files import read_ontology
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.graph_store import GraphStore

pytestmark = pytest.mark.integration
__all__ = ("store",)

HOLDING = (
    "MATCH (a:Entity)-[x:RELATED_TO]->(b:Entity) MATCH (r:Relation {id: x.id}) "
    "WHERE x.invalid_at IS NULL RETURN r.user_id, a.name + ' ' + x.name + ' ' + b.name, r.invalid_at, r.doubted_at"
)
ENDS = (
    "MATCH (r:Relation) WHERE r.user_id = '{0}' RETURN r.fact, left(r.valid_at, 10), left(r.invalid_at, 10), "
    "r.ended_why ORDER BY r.valid_at, r.name"
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
            100 * story.number + place, *story.said[place][::-1], user=f"u{story.number}",
            chat=f"{rng and place} {story.number}",
        )
        for place in range(10) for story in stories if place < len(story.said)
    ]  # fmt: skip
    if rng is not None:
        rng.shuffle(events)
    return events


async def test_what_holds_by_planted_stories_whatever_their_order(url: str, store: GraphStore) -> None:
    stories = planted()
    assert sum(story.kind in {"cascade", "absence"} for story in stories) >= 100
    await write(url, store, told(stories, random.Random(5)), RULES)
    held: dict[str, set[str]] = {}
    doubted: dict[str, set[str]] = {}
    for user, text, invalid_at, doubted_at in await rows(store, HOLDING):
        assert invalid_at is None
        held.setdefault(user, set()).add(text)
        if doubted_at is not None:
            doubted.setdefault(user, set()).add(text)
    wrong = [
        (story, held.get(user, set()), doubted.get(user, set()))
        for story in stories
        for user in [f"u{story.number}"]
        if held.get(user, set()) != story.holds or doubted.get(user, set()) != story.doubted
    ]
    assert wrong == []
