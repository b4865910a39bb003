"""What a search promises of memories that say their own end, by ``expires_at``."""

from __future__ import annotations

from typing import Any

from graphweft_contracts.memory import MemoryEmbedded, memory_id
from graphweft_workers.testing.suites.memory_filter_suite import ADA, TEAM, added, at, changed, event
from graphweft_workers.testing.suites.search_kit import SearchFixtures, SearchKit, embedder, ids, query, search, texts

_CODE = {"text": "the code is 4471", "expires_at": at(5)}
_QUESTIONS: tuple[dict[str, Any], ...] = (
    {"text": "code"}, {"text": "code", "index_type": "fulltext"}, {"text": "code", "of": "memories"}, {"text": ""},
    {"text": "Who am I?"}, {"text": "violin", "fill": "latest"}, {"text": "code", "any_of": (TEAM,)},
    {"text": "code", "tags": ["t"]},
)  # fmt: skip


class MemoryEndSuite(SearchFixtures):
    """What a search promises of memories that end; the time of its questions is long after the events."""

    async def test_what_has_ended_is_found_only_by_who_asks_for_it(self, kit: SearchKit) -> None:
        lasting = {"text": "the code of the door is 9", "expires_at": "2999-01-01T00:00:00Z", "tags": ["t"]}
        await kit.apply(added("e", {**_CODE, "tags": ["t"]}, lasting), changed("p", "e", pinned=True, days=1))
        for asked in _QUESTIONS:
            found = (await search(kit.searcher(), query(**asked))).rows()
            assert [(row["text"], row["invalid_at"]) for row in found] == [("the code of the door is 9", None)], asked
            assert [row["expires_at"] for row in found] == ["2999-01-01T00:00:00.000000Z"], asked
            both = (await search(kit.searcher(), query(**asked, include_ended=True))).rows()
            assert [row["invalid_at"] for row in both if row["pinned"]] == ["2026-02-06T10:00:00.000000Z"], asked

    async def test_it_is_not_found_by_its_vector_either(self, kit: SearchKit) -> None:
        await kit.apply(added("e", _CODE), added("f", "the code of the door is 9"))
        for id, text in (("e", "the code is 4471"), ("f", "the code of the door is 9")):
            [vector] = await embedder().embed([text])
            data = MemoryEmbedded(memory_id=memory_id("/s", id, 0), model=embedder().model, embedding=tuple(vector))
            await kit.apply(event("memory.embedded", f"v{id}", data.model_dump(mode="json", exclude_none=True)))
        for kind in ("vector", "hybrid", None):
            asked = query("the code is 4471", kind, of="memories")
            assert texts(await search(kit.searcher(embedder()), asked)) == ["the code of the door is 9"]
            before = asked.model_copy(update={"as_of": event("memory.add", "x", {**ADA, "text": "x"}, days=2).time})
            assert texts(await search(kit.searcher(embedder()), before))[0] == "the code is 4471"

    async def test_a_question_about_the_past_finds_what_held_then(self, kit: SearchKit) -> None:
        await kit.apply(added("e", _CODE), added("f", "the train was late", days=40))
        for days, wanted in ((-1, []), (0.5, [None]), (4.9, [None]), (5, []), (6, [])):
            found = (await search(kit.searcher(), query("code", of="memories", as_of=at(days)))).rows()
            assert [row["invalid_at"] for row in found if "code" in row["text"]] == wanted, days
        [row] = (await search(kit.searcher(), query("What was the code in February 2026?", of="memories", k=1))).rows()
        assert (row["text"], row["invalid_at"]) == ("the code is 4471", "2026-02-06T10:00:00.000000Z")
        assert "the code is 4471" not in texts(await search(kit.searcher(), query("What was the code in March 2026?")))

    async def test_its_id_finds_it(self, kit: SearchKit) -> None:
        await kit.apply(added("e", _CODE))
        id = memory_id("/s", "e", 0)
        for of in ("all", "memories"):
            [row] = (await search(kit.searcher(), query("", ids=[id], of=of))).rows()
            assert (row["id"], row["chat_id"], row["invalid_at"]) == (id, "c", "2026-02-06T10:00:00.000000Z")

    async def test_an_update_changes_its_end_and_takes_it_back(self, kit: SearchKit) -> None:
        await kit.apply(added("e", "the code is 4471"), changed("u", "e", expires_at=at(9), days=1))
        assert texts(await search(kit.searcher(), query("code"))) == []
        assert texts(await search(kit.searcher(), query("code", as_of=at(8)))) == ["the code is 4471"]
        await kit.apply(changed("v", "e", expires_at=at(7), days=2))
        assert texts(await search(kit.searcher(), query("code", as_of=at(8)))) == []
        await kit.apply(changed("w", "e", expires_at="never", days=3))
        [row] = (await search(kit.searcher(), query("code"))).rows()
        assert (row["text"], row["expires_at"], row["invalid_at"]) == ("the code is 4471", None, None)
        assert await kit.count("MemoryVersion") == 0, "it held all the time"

    async def test_what_holds_again_did_not_hold_in_between(self, kit: SearchKit) -> None:
        again = changed("u", "e", expires_at=at(20), days=10)
        await kit.apply(added("e", _CODE), again, again, changed("v", "e", expires_at="never", days=30))
        for days, wanted in ((1, 1), (5, 0), (9, 0), (10, 1), (19, 1), (20, 0), (29, 0), (30, 1), (99, 1)):
            found = await search(kit.searcher(), query("code", of="memories", as_of=at(days)))
            assert texts(found) == ["the code is 4471"] * wanted, days
        [row] = (await search(kit.searcher(), query("code"))).rows()
        assert (row["id"], row["times"]) == (memory_id("/s", "e", 0), None)
        assert await kit.count("MemoryVersion") == 2

    async def test_a_new_text_begins_where_the_earlier_one_ends(self, kit: SearchKit) -> None:
        await kit.apply(added("e", _CODE), changed("u", "e", text="the code is 12", expires_at=at(20), days=10))
        for days, wanted in ((1, "the code is 4471"), (6, None), (12, "the code is 12"), (21, None)):
            found = await search(kit.searcher(), query("code", of="memories", as_of=at(days)))
            assert texts(found) == ([] if wanted is None else [wanted]), days
        await kit.apply(changed("v", "e", text="the code is 13", days=15))
        assert texts(await search(kit.searcher(), query("code", of="memories", as_of=at(21)))) == [], "the end stays"

    async def test_it_claims_nothing_that_outlives_it(self, kit: SearchKit) -> None:
        rome = {"text": "I live in Rome", "expires_at": "2999-01-01T00:00:00Z"}
        await kit.apply(added("e", "I live in Oslo"), added("f", rome, days=1), added("g", "I work for Acme", days=2))
        assert texts(await search(kit.searcher(), query("", of="profile"))) == ["lives in Oslo", "works for Acme"]
        assert await kit.count("Statement") == 2
        await kit.apply(added("h", "I live in Bergen", days=3))
        assert texts(await search(kit.searcher(), query("", of="profile"))) == ["lives in Bergen", "works for Acme"]
        await kit.apply(changed("u", "h", expires_at="2999-01-01T00:00:00Z", days=4))
        assert texts(await search(kit.searcher(), query("", of="profile"))) == ["lives in Oslo", "works for Acme"]

    async def test_it_goes_by_forgetting_and_erasing_with_all_that_it_was(self, kit: SearchKit) -> None:
        again = changed("u", "e", expires_at=at(20), days=10)
        await kit.apply(
            added("e", _CODE), again, event("memory.forget", "x", {"memory_ids": [memory_id("/s", "e", 0)]})
        )
        assert (await kit.count("Memory"), await kit.count("MemoryVersion")) == (0, 0)
        await kit.apply(added("f", _CODE), changed("v", "f", expires_at=at(20), days=10))
        await kit.apply(event("memory.erase", "y", ADA, days=30))
        assert (await kit.count("Memory"), await kit.count("MemoryVersion")) == (0, 0)
        assert ids(await search(kit.searcher(), query("code", include_ended=True))) == []
