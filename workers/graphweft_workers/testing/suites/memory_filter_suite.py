"""What filters, updates and several scopes of a search of memories promise."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import pytest

from graphweft_contracts import Event
from graphweft_contracts.memory import MemoryEmbedded, memory_id, version_of
from graphweft_contracts.search import IndexType
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.ports.graph_store import Table
from graphweft_workers.retrieval.scope_ranking import FITTING
from graphweft_workers.testing.suites.memory_model import T0
from graphweft_workers.testing.suites.search_kit import (
    APP,
    SearchFixtures,
    SearchKit,
    embedder,
    ids,
    query,
    scores,
    search,
    texts,
)

TEAM: Final = {"application_id": "team"}
ADA: Final = {"user_id": "u1"}
_KINDS: Final[tuple[tuple[str, IndexType | None, Embedder | None], ...]] = (
    ("tea", "fulltext", None), ("tea", None, None), ("tea", "vector", embedder()), ("tea", "hybrid", embedder()),
    ("", None, None),
)  # fmt: skip
"""Question, type of search, and embedder."""


def at(days: float) -> str:
    """Return a time, so many days after the first one."""
    return (T0 + timedelta(days=days)).isoformat()


def event(type: str, id: str, data: Mapping[str, Any], *, chat: str = "c", days: float = 0) -> Event:
    """Return an event of memory."""
    return Event.create(type, app_id=APP, chat_id=chat, data=data, id=id, source="/s", time=T0 + timedelta(days=days))


def added(id: str, *messages: str | Mapping[str, Any], scope: Mapping[str, str] = ADA, days: float = 0) -> Event:
    """Return the event of a user's messages; their memories are ``memory_id("/s", id, number)``."""
    said = [{"role": "user", **({"text": each} if isinstance(each, str) else each)} for each in messages]
    return event("memory.add", id, {**scope, "messages": said}, days=days)


def changed(id: str, of: str, *, days: float = 1, **what: Any) -> Event:
    """Return the event that updates the first memory of the event ``of``."""
    return event("memory.update", id, {"memory_id": memory_id("/s", of, 0), **what}, days=days)


@dataclass(slots=True, kw_only=True)
class _Said:
    """A random memory."""

    id: str
    scope: Mapping[str, str]
    day: int
    tags: frozenset[str] = field(default_factory=frozenset)
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def some_said(kit: SearchKit, rnd: random.Random, count: int) -> list[_Said]:
    """Store random memories with tags, metadata and times in two scopes, some of them in both."""
    made: list[_Said] = []
    events: list[Event] = []
    for number in range(count):
        scope = rnd.choice([ADA, TEAM, {**ADA, **TEAM}, {"user_id": "u2"}])
        tags = [tag for tag in ("a", "a b", "ä", "A") if rnd.random() < 0.4]
        metadata = {name: rnd.choice([1, 1.5, "1", True, "x=y"]) for name in ("n", "m") if rnd.random() < 0.5}
        day = rnd.randrange(30)
        message = {"text": f"tea number{number}", "tags": tags, "metadata": metadata, "time": at(day)}
        events.append(added(f"e{number}", message, scope=scope))
        id = memory_id("/s", f"e{number}", 0)
        made.append(_Said(id=id, scope=scope, day=day, tags=frozenset(tags), metadata=metadata))
        vector = [rnd.random() for _ in range(64)]
        payload = MemoryEmbedded(memory_id=id, model=embedder().model, embedding=tuple(vector))
        events.append(event("memory.embedded", f"v{number}", payload.model_dump(mode="json", exclude_none=True)))
    await kit.apply(*events)
    return made


def fits(said: _Said, scopes: Iterable[Mapping[str, str]], asked: Mapping[str, Any]) -> bool:
    """Tell whether a memory passes filters and scopes, in the plainest way."""
    entries: set[Any] = {(name, type(value), value) for name, value in said.metadata.items()}
    wanted: set[Any] = {(name, type(value), value) for name, value in asked.get("metadata", {}).items()}
    return (
        any(all(said.scope.get(name) == value for name, value in scope.items()) for scope in scopes)
        and said.tags >= set(asked.get("tags", ()))
        and entries >= wanted
        and asked.get("since", "") <= at(said.day) < asked.get("until", "9")
        and at(said.day) <= asked.get("as_of", "9")
        and said.id in asked.get("ids", [said.id])
    )


class MemoryFilterSuite(SearchFixtures):
    """Filters and scopes apply before ``top_k``; an update keeps what a memory said before."""

    @pytest.mark.parametrize(("text", "kind", "embedder"), _KINDS)
    async def test_filters_and_scopes_apply_before_the_limit(
        self, kit: SearchKit, text: str, kind: IndexType | None, embedder: Embedder | None
    ) -> None:
        rnd = random.Random(11)
        said = await some_said(kit, rnd, 60)
        searcher, some = kit.searcher(embedder), 0
        for _ in range(kit.questions):
            asked: dict[str, Any] = {}
            if rnd.random() < 0.4:
                asked["tags"] = rnd.sample(["a", "a b", "ä", "A"], rnd.choice([1, 1, 2]))
            if rnd.random() < 0.4:
                asked["metadata"] = {rnd.choice("nm"): rnd.choice([1, 1.5, "1", True, "x=y"])}
            first, last = sorted(rnd.sample(range(31), 2))
            asked |= {"since": at(first)} if rnd.random() < 0.4 else {}
            asked |= {"until": at(last)} if rnd.random() < 0.4 else {}
            asked |= {"as_of": at(rnd.randrange(31))} if rnd.random() < 0.3 else {}
            asked |= {"ids": [each.id for each in rnd.sample(said, 20)]} if rnd.random() < 0.3 else {}
            scopes = rnd.choice([[ADA], [TEAM], [ADA, TEAM], [TEAM, ADA], [ADA, {"user_id": "u2"}]])
            wanted = {each.id for each in said if fits(each, scopes, asked)}
            whole = query(text, kind, 100, memory=scopes[0], any_of=scopes[1:], of="memories", **asked)
            found = ids(await search(searcher, whole))
            assert sorted(found) == sorted(wanted), (asked, scopes)
            few = ids(await search(searcher, whole.model_copy(update={"top_k": 3})))
            assert len(few) == min(3, len(wanted)), "a result is never thinned"
            assert set(few) <= wanted
            some += bool(wanted)
        assert some > kit.questions * 3 // 8

    async def test_an_update_changes_what_a_memory_says_and_keeps_what_it_said(self, kit: SearchKit) -> None:
        await kit.apply(added("e", "I live in Oslo"), changed("u", "e", text="I live in Bergen"))
        found = await search(kit.searcher(), query("live"))
        assert (texts(found), ids(found)) == (["I live in Bergen"], [memory_id("/s", "e", 0)])
        assert texts(await search(kit.searcher(), query("Oslo", "fulltext"))) == []
        before = await search(kit.searcher(), query("live", as_of=at(0.5)))
        [row] = before.rows()
        # As of that day it had not ended.
        assert (row["text"], row["invalid_at"], row["kind"]) == ("I live in Oslo", None, "memory")
        assert row["id"] == version_of("/s", "u", "c", memory_id("/s", "e", 0))
        assert texts(await search(kit.searcher(), query("", as_of=at(-1)))) == []

    async def test_a_chain_of_updates_shows_what_was_said_at_each_time(self, kit: SearchKit) -> None:
        days = [changed(f"u{day}", "e", text=f"tea {day}", days=day) for day in (1, 2, 3)]
        await kit.apply(added("e", "tea 0"), *days)
        for day in range(4):
            for text in ("tea", ""):
                assert texts(await search(kit.searcher(), query(text, as_of=at(day + 0.5)))) == [f"tea {day}"]

    async def test_an_update_twice_is_the_same_as_once(self, kit: SearchKit) -> None:
        update = changed("u", "e", text="two", tags=["t"])
        await kit.apply(added("e", "one"), update, update)
        [row] = (await search(kit.searcher(), query("", as_of=at(0.5)))).rows()
        assert row["text"] == "one"
        assert texts(await search(kit.searcher(), query("", tags=["t"]))) == ["two"]

    async def test_a_vector_of_an_earlier_text_has_no_effect(self, kit: SearchKit) -> None:
        [old, new] = await embedder().embed(["coffee", "tea"])
        id = memory_id("/s", "e", 0)
        version = version_of("/s", "u", "c", id)

        def vector(name: str, numbers: list[float], version: str | None) -> Event:
            payload = MemoryEmbedded(memory_id=id, model=embedder().model, embedding=tuple(numbers), version=version)
            return event("memory.embedded", name, payload.model_dump(mode="json", exclude_none=True))

        await kit.apply(added("e", "coffee"), changed("u", "e", text="tea"), vector("v0", old, None))
        assert ids(await search(kit.searcher(embedder()), query("coffee", "vector", of="memories"))) == []
        await kit.apply(vector("v1", new, version))
        found = await search(kit.searcher(embedder()), query("tea", "vector", of="memories"))
        assert (texts(found), scores(found)) == (["tea"], [pytest.approx(1.0)])
        await kit.apply(vector("v2", old, None))  # late
        assert scores(await search(kit.searcher(embedder()), query("tea", "vector", of="memories"))) == [
            pytest.approx(1.0)
        ]

    async def test_what_an_update_does_not_give_stays(self, kit: SearchKit) -> None:
        message = {"text": "tea", "tags": ["a"], "metadata": {"n": 1}, "author_name": "Ann"}
        await kit.apply(added("e", message), changed("u", "e", text="coffee"), changed("w", "e", tags=["b"]))
        id = memory_id("/s", "e", 0)
        [row] = (await search(kit.searcher(), query("", ids=[id]))).rows()
        shown = {name: row[name] for name in ("text", "tags", "metadata", "author_name", "chat_id", "pinned")}
        assert shown == {
            "text": "coffee", "tags": ["b"], "metadata": {"n": 1}, "author_name": "Ann", "chat_id": "c", "pinned": None,
        }  # fmt: skip
        await kit.apply(changed("x", "e", tags=[], metadata={}))
        [row] = (await search(kit.searcher(), query("", ids=[id]))).rows()
        assert (row["tags"], row["metadata"]) == ([], {})

    async def test_an_update_of_another_chat_or_of_nothing_has_no_effect(self, kit: SearchKit) -> None:
        id = memory_id("/s", "e", 0)
        await kit.apply(
            added("e", "tea"),
            event("memory.update", "u", {"memory_id": id, "text": "coffee"}, chat="other"),
            event("memory.update", "w", {"memory_id": "nothing", "text": "coffee", "pinned": True}),
        )
        assert texts(await search(kit.searcher(), query(""))) == ["tea"]

    @pytest.mark.parametrize("type", ["memory.forget", "memory.erase"])
    async def test_forgetting_and_erasing_reach_every_version(self, kit: SearchKit, type: str) -> None:
        updates = [changed(f"u{day}", "e", text=f"tea {day}", days=day) for day in (1, 2)]
        data = {"memory_ids": [memory_id("/s", "e", 0)]} if type == "memory.forget" else ADA
        await kit.apply(added("e", "tea 0"), *updates, event(type, "x", data, days=3))
        for days, text in itertools.product((0.5, 1.5, 2.5, 9), ("tea", "")):
            assert texts(await search(kit.searcher(), query(text, as_of=at(days)))) == []
        assert await kit.count("MemoryVersion") == 0

    async def test_an_update_behind_an_erasure_restores_nothing(self, kit: SearchKit) -> None:
        await kit.apply(
            added("e", "tea"), event("memory.erase", "x", ADA, days=1), changed("u", "e", text="coffee", days=2)
        )
        assert (await kit.count("Memory"), await kit.count("MemoryVersion")) == (0, 0)

    async def test_a_question_about_the_past_sees_what_ended_since(self, kit: SearchKit) -> None:
        def fact(id: str, town: str, days: float) -> Event:
            said = {"subject": "The user", "predicate": "lives in", "object": town, "valid_from": at(days)}
            data = {**ADA, "summary": "s", "memory_ids": [memory_id("/s", id, 0)], "model": "m", "facts": [said]}
            return event("memory.summarized", f"s{id}", data, days=days)

        await kit.apply(
            added("1", "Oslo is home", days=0), fact("1", "Oslo", 0), added("2", "Bergen is home", days=60),
            fact("2", "Bergen", 60),
        )  # fmt: skip
        now = await search(kit.searcher(), query("lives in", of="facts"))
        assert texts(now) == ["The user lives in Bergen"]
        then = (await search(kit.searcher(), query("Where did I live in February 2026?", of="facts"))).rows()
        oslo = next(row for row in then if row["object"] == "Oslo")
        assert oslo["invalid_at"] == "2026-04-02T10:00:00.000000Z"
        before = (await search(kit.searcher(), query("lives in", of="facts", as_of=at(30)))).rows()
        assert [(row["text"], row["invalid_at"]) for row in before] == [("The user lives in Oslo", None)]

    async def test_no_ids_find_nothing_and_no_score_is_too_low(self, kit: SearchKit) -> None:
        await kit.apply(added("e", "tea"))
        for text in ("tea", ""):
            assert texts(await search(kit.searcher(), query(text, ids=[]))) == []
        assert texts(await search(kit.searcher(), query("", min_score=0.5))) == []

    async def test_a_memory_of_two_scopes_is_found_once(self, kit: SearchKit) -> None:
        await kit.apply(
            added("e", "green tea", scope={**ADA, **TEAM}), added("f", "black tea"), added("g", "tea", scope=TEAM)
        )
        for (text, kind, made), order in itertools.product(_KINDS[:2] + _KINDS[4:], ((ADA, TEAM), (TEAM, ADA))):
            asked = query(text, kind, 9, memory=order[0], any_of=order[1:])
            found = texts(await search(kit.searcher(made), asked))
            assert sorted(found) == ["black tea", "green tea", "tea"], (text, kind)

    async def test_pinned_memories_are_shown_whatever_is_asked(self, kit: SearchKit) -> None:
        await kit.apply(
            added("p", "Answer in German"), *(added(f"e{n}", f"tea {n}") for n in range(9)),
            changed("u", "p", pinned=True),
        )  # fmt: skip
        for text in ("tea", "", "Who am I?"):
            found = await search(kit.searcher(), query(text, k=4, fill="latest"))
            assert texts(found)[0] == "Answer in German"
            assert len(texts(found)) == len(set(texts(found))) == 4
        assert "Answer in German" not in texts(await search(kit.searcher(), query("tea", k=4))), "only in a block"
        await kit.apply(changed("w", "p", pinned=False))
        assert "Answer in German" not in texts(await search(kit.searcher(), query("tea", k=4, fill="latest")))

    async def test_pinned_memories_come_with_the_latest_rows(
        self, kit: SearchKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await kit.apply(
            added("p", "Answer in German"),
            *(added(f"e{n}", f"tea {n}") for n in range(3)),
            changed("u", "p", pinned=True),
        )
        asked: list[str] = []
        read = kit.store.read

        async def counted(app_id: str, query: str, *more: Any, **options: Any) -> Table:
            asked.append(query)
            return await read(app_id, query, *more, **options)

        monkeypatch.setattr(kit.store, "read", counted)
        for text in ("tea", "", "Who am I?"):
            asked.clear()
            found = await search(kit.searcher(), query(text, k=9, fill="latest", of="memories"))
            assert texts(found)[0] == "Answer in German"
            assert sorted(texts(found)[1:]) == ["tea 0", "tea 1", "tea 2"]
            assert ["UNION ALL" in each for each in asked if "n.pinned =" in each] == [True]

    async def test_pinned_memories_take_up_to_half_of_the_rows(self, kit: SearchKit) -> None:
        pins = [
            event for n in range(9) for event in (added(f"p{n}", f"rule {n}"), changed(f"u{n}", f"p{n}", pinned=True))
        ]
        await kit.apply(*pins, added("e", "tea"))
        assert "tea" in texts(await search(kit.searcher(), query("tea", k=4, fill="latest")))

    async def test_pinned_memories_do_not_hide_that_nothing_fits(self, kit: SearchKit) -> None:
        await kit.apply(added("p", "Answer in German"), changed("u", "p", pinned=True))
        found = await search(kit.searcher(), query("Where is the violin?", fill="latest"))
        assert texts(found) == ["Answer in German"]
        assert max(scores(found)) < FITTING

    @pytest.mark.parametrize("made", [None, embedder()])
    async def test_no_row_has_less_than_the_least_score(self, kit: SearchKit, made: Embedder | None) -> None:
        await kit.apply(
            *(added(f"e{n}", text) for n, text in enumerate(["green tea with milk", "tea", "milk", "What is tea?"]))
        )
        asked = query("green tea with milk", k=9)
        whole = await search(kit.searcher(made), asked)
        for least in (0.0, 0.1, 0.5, 1.0):
            found = await search(kit.searcher(made), asked.model_copy(update={"min_score": least}))
            assert found.table.rows == tuple(row for row in whole.table.rows if row[1] >= least)
