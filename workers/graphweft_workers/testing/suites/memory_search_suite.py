"""What every search of memories promises, against a plain model of the same memories."""

from __future__ import annotations

import random

import pytest

from graphweft_contracts import Event, InvalidSettings, QueryFailed
from graphweft_contracts.memory import MemoryEmbedded
from graphweft_contracts.search import IndexType
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.embedding.protocol import EmbedderUnavailable, EmbeddingRefused
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.graph_store import Checkpoint, Write
from graphweft_workers.testing.suites.memory_model import DIMENSIONS, batches
from graphweft_workers.testing.suites.search_kit import (
    APP,
    EXACT,
    FailingEmbedder,
    OneVector,
    SearchFixtures,
    SearchKit,
    embedder,
    ids,
    query,
    scores,
    search,
    some_memories,
    texts,
)

LONG = " ".join(f"word{n} dog" for n in range(20_000))
_QUESTIONS = r"""
dog
dogs and cats
the
to be or not to be
running to the river
日本
日本語
東京 서울
naïve strasse
Привет
سلام
🙂
!!!
"dog cat"
(dog|cat)
@terms:(dog) @scopes:(x)
dog* OR *og
NOT dog AND -cat
a:b [a TO z] {x} \
O'Brien don't
3.14
e-mail@example.org
nothingofthekind
"""
QUESTIONS = (*_QUESTIONS.strip().split("\n"), LONG)
LANGUAGES = {
    "German": ("Ich habe zwei Häuser in Köln.", "Wo ist mein Haus?"),
    "French": ("J’habite dans l’immeuble bleu.", "immeuble"),
    "Turkish": ("Annem İstanbul'da yaşıyor.", "istanbul"),
    "Polish": ("Mieszkam w Łodzi.", "Lodz"),
    "Vietnamese": ("Tôi sống ở Đà Nẵng.", "Da Nang"),
    "Russian": ("Я живу в Москве.", "Где Москва?"),
    "Arabic": ("أختي تسكن بالقاهرة", "أين القَاهِرَة؟"),
    "Hebrew": ("אחותי גרה בירושלים", "ירושלים"),
    "Hindi": ("मुझे ठंडा पानी पसंद है", "पानी"),
    "Thai": ("ฉันปวดหัวทุกเช้า", "ปวดหัว"),
    "Japanese": ("猫の名前はタマです", "猫"),
    "Chinese": ("我的狗叫小白", "狗"),
    "Korean": ("제 고양이는 귀여워요", "고양이"),
    "Persian": ("کتاب\u200cهای من", "کتاب"),
    "emoji": ("I love 🍕", "🍕"),
}
"""Language -> what is remembered, and a question that finds it by words."""
FAILURES = [
    (EmbedderUnavailable("no answer from the endpoint"), "no answer from the endpoint"),
    (EmbeddingRefused("m", [None]), "refuses 1 of 1 texts"),
    (ZeroDivisionError("secret"), "ZeroDivisionError"),
    (None, "no vector within"),
]


class MemorySearchSuite(SearchFixtures):
    """Memories of a scope are found by words and by vectors, and by nothing else."""

    @pytest.mark.parametrize("letter", ["\u4e2d", "\u044f", "\U0001f642"])
    @pytest.mark.parametrize("length", [17_000, 49_999, 50_000, 50_001])
    async def test_a_long_text_is_shown_whatever_its_letters_are(
        self, kit: SearchKit, letter: str, length: int
    ) -> None:
        await kit.fill(await batches([({"user_id": "u1"}, [f"tea {letter * (length - 4)}"])]))
        found = await search(kit.searcher(), query("tea", "fulltext"))
        assert texts(found) == [f"tea {letter * (length - 4)}"[:50_000]]

    @pytest.mark.parametrize("index_type", ["fulltext", None])
    async def test_a_memory_is_found_in_its_language(self, kit: SearchKit, index_type: IndexType | None) -> None:
        of_threads = [({"user_id": "u1", "thread_id": f"in {each}"}, [said]) for each, (said, _) in LANGUAGES.items()]
        await kit.fill(await batches(of_threads, embedded=0))
        searcher = kit.searcher()
        for language, (said, asked) in LANGUAGES.items():
            found = await search(searcher, query(asked, index_type))
            assert texts(found)[:1] == [said], language

    async def test_vectors_that_are_equally_near_go_by_their_ids(self, kit: SearchKit) -> None:
        """Servers add 32-bit numbers in an order of their own, so the sums differ where they should not."""
        made = await batches([({"user_id": "u1"}, [f"tea {n}" for n in range(60)])], embedded=0)
        model = await kit.fill(made)
        rnd = random.Random(13)
        numbers = [rnd.gauss(0, 1) + 0.3 for _ in range(DIMENSIONS)]
        name = embedder().model
        for memory in model.memories:
            vector = rnd.sample(numbers, len(numbers))
            await kit.write(
                f"MATCH (m:Memory {{id: '{memory.id}'}}) "
                f"SET m.embedding = vecf32({vector}), m.embedding_model = '{name}'"
            )
        found = await search(kit.searcher(OneVector(*[1.0] * DIMENSIONS, name=name)), query("x", "vector", 40))
        assert ids(found) == sorted(model.by_id)[:40]
        assert len(set(scores(found))) == 1

    @pytest.mark.parametrize("index_type", ["vector", "hybrid"])
    async def test_a_vector_of_another_length_costs_only_its_own_memory(
        self, kit: SearchKit, index_type: IndexType
    ) -> None:
        made = await batches([({"user_id": "u1"}, ["green tea", "black tea", "black coffee"])], embedded=1)
        model = await kit.fill(made)
        forged = next(each for each in model.memories if each.text == "black coffee")
        payload = MemoryEmbedded(memory_id=forged.id, model=embedder().model, embedding=(1.0, 0.5, 0.25))
        said = Event.create("memory.embedded", app_id=APP, chat_id="c", data=payload.model_dump(mode="json"))
        [(mutation, params)] = MemoryMutations().match(said)
        checkpoint = (await kit.store.progress(APP, 9)).checkpoint
        write = Write(query=mutation.cypher, rows=[params], before=checkpoint, after=Checkpoint(offset="1"))
        assert (await kit.store.apply(APP, 9, [write])).failure is None
        found = await search(kit.searcher(embedder()), query("black tea", index_type))
        assert (found.degraded, texts(found)[0]) == (None, "black tea")
        assert ("black coffee" in texts(found)) == (index_type == "hybrid")  # by its words

    async def test_vectors_that_all_have_another_length_are_reported(self, kit: SearchKit) -> None:
        await kit.fill(await batches([({"user_id": "u1"}, ["green tea"])], embedded=1))
        found = await search(kit.searcher(OneVector(1.0, 0.5, name=embedder().model)), query("tea", "hybrid"))
        assert texts(found) == ["green tea"]
        assert "another length" in (found.degraded or "")

    async def test_by_vector_the_nearest_of_the_scope_are_found(self, kit: SearchKit) -> None:
        model = await kit.fill(await some_memories(180))
        rnd = random.Random(5)
        searcher = kit.searcher(embedder())
        for text in QUESTIONS:
            scope, k = model.some_scope(rnd), rnd.choice([1, 5, 50])
            asked = query(text, "vector", k, memory=scope)
            [vector] = await embedder().embed([asked.text])  # of a long question the end counts
            wanted = model.by_vector(scope, vector)
            found = await search(searcher, asked)
            shown = model.shown(wanted, k)
            assert len(ids(found)) == len(shown)
            assert [wanted[id] for id in ids(found)] == pytest.approx([wanted[id] for id in shown], abs=EXACT)
            assert scores(found) == pytest.approx(model.scores(wanted, shown), abs=EXACT)

    async def test_by_words_the_order_is_that_of_bm25_within_the_scope(self, kit: SearchKit) -> None:
        model = await kit.fill(await some_memories(180))
        rnd = random.Random(7)
        searcher = kit.searcher()
        some = 0
        for text in QUESTIONS * 2:
            scope, k = model.some_scope(rnd), rnd.choice([1, 5, 50])
            wanted = model.by_words(scope, text)
            found = await search(searcher, query(text, "fulltext", k, memory=scope))
            assert ids(found) == model.shown(wanted, k), (text, scope)
            assert scores(found) == pytest.approx(model.scores(wanted, ids(found)), abs=1e-9)
            some += len(ids(found))
        assert some > 50

    async def test_a_question_of_stop_words_only_finds_them(self, kit: SearchKit) -> None:
        said = ["to be or not to be", "the of and", "tea"]
        await kit.fill(await batches([({"user_id": "u1"}, said)]))
        found = await search(kit.searcher(), query("the to be", "fulltext"))
        assert texts(found) == ["to be or not to be", "the of and"]

    async def test_stop_words_beside_others_count_only_when_they_are_asked_for(self, kit: SearchKit) -> None:
        await kit.fill(await batches([({"user_id": "u1"}, ["the river", "the the the"])]))
        searcher = kit.searcher()
        assert texts(await search(searcher, query("the river", "fulltext"))) == ["the river"]
        asked = query("the river", "fulltext", filter_stop_words=False)
        assert sorted(texts(await search(searcher, asked))) == ["the river", "the the the"]

    async def test_long_texts_are_weighed_like_short_ones(self, kit: SearchKit) -> None:
        """The server counts their terms, the same term in a row included."""
        long = ("tea tea tea coffee " * 300 + "rome").strip()
        model = await kit.fill(await batches([({"user_id": "u1"}, [long, "tea", "rome coffee", "tea tea tea " * 400])]))
        for text in ("tea", "rome", "coffee tea", "te"):
            wanted = model.by_words({"user_id": "u1"}, text)
            found = await search(kit.searcher(), query(text, "fulltext"))
            assert dict(zip(ids(found), scores(found), strict=True)) == pytest.approx(wanted)

    async def test_an_empty_question_gives_the_latest(self, kit: SearchKit) -> None:
        model = await kit.fill(await some_memories(60))
        scope = {"application_id": "shop"}
        questions: list[tuple[str, IndexType | None]] = [
            ("", "fulltext"), (" \n", None), ("", "hybrid"), ("", "vector"),
        ]  # fmt: skip
        for text, kind in questions:
            found = await search(kit.searcher(embedder()), query(text, kind, 7, memory=scope, of="memories"))
            assert ids(found) == model.latest(scope)[:7]
            assert found.table.columns == (
                "text", "score", "kind", "role", "timestamp", "author_name", "times", "tags", "metadata", "pinned",
                "expires_at", "invalid_at", "id",
            )  # fmt: skip
            assert set(scores(found)) == {None}, "nothing was compared, so there is no score"

    @pytest.mark.parametrize("user", ["u1", "u2"])
    async def test_a_question_is_answered_by_default_with_an_embedder_or_without(
        self, kit: SearchKit, user: str
    ) -> None:
        said = [f"My sister of {user} is called Grace", "The train to Oslo was late", "Coffee at nine"]
        more = [({"user_id": other}, ["sister sister", "Grace"]) for other in ("u1", "u2") if other != user]
        await kit.fill(await batches([({"user_id": user}, said), *more]))
        asked = query("Who is her sister?", memory={"user_id": user})
        for made in (None, embedder()):
            found = await search(kit.searcher(made), asked)
            assert texts(found)[0] == said[0]
            assert 0 < min(scores(found)) <= max(scores(found)) <= 1
        by_both = await search(kit.searcher(embedder()), asked.model_copy(update={"index_type": "hybrid"}))
        assert found.table == by_both.table
        assert texts(await search(kit.searcher(), query("violin", memory={"user_id": user}))) == []

    async def test_the_latest_have_no_score_whatever_a_retrieval_query_says(self, kit: SearchKit) -> None:
        model = await kit.fill(await some_memories(60))
        scope = {"application_id": "shop"}
        retrieval = "RETURN node.id AS id, node.text AS text, score"
        for order in ("", " ORDER BY score DESC"):
            found = await search(kit.searcher(), query("", None, 9, memory=scope, retrieval_query=retrieval + order))
            assert ids(found) == model.latest(scope)[:9]
            assert set(scores(found)) == {None}

    async def test_the_latest_may_be_asked_for_where_there_is_no_embedder(self, kit: SearchKit) -> None:
        model = await kit.fill(await batches([({"user_id": "u1"}, ["tea", "coffee", "milk", "water"])]))
        latest = model.latest({"user_id": "u1"})
        for kind in (None, "vector", "hybrid"):
            asked = query("tea", kind, without_embedder="latest")
            found = await search(kit.searcher(), asked)
            assert ids(found) == latest
            assert set(scores(found)) == {None}
            with_vectors = await search(kit.searcher(embedder()), asked)
            wanted = await search(kit.searcher(embedder()), query("tea", kind))
            assert with_vectors.table == wanted.table
            assert None not in scores(with_vectors)
        words = await search(kit.searcher(), query("tea", "fulltext", without_embedder="latest"))
        assert texts(words) == ["tea"]

    async def test_hybrid_finds_what_either_finds(self, kit: SearchKit) -> None:
        made = await batches(
            [({"user_id": "u1"}, ["zebra crossing", "the old harbour", "tea with milk"])], embedded=0.0
        )
        near = await batches([({"user_id": "u1"}, ["milk and honey", "nothing at all"])], source="/other")
        await kit.fill([*made, *near])
        found = await search(kit.searcher(embedder()), query("zebra milk", "hybrid", 10))
        assert sorted(texts(found)) == ["milk and honey", "nothing at all", "tea with milk", "zebra crossing"]
        assert texts(found)[-1] == "nothing at all"
        assert all(0 <= score <= 1 for score in scores(found))
        assert "zebra crossing" in texts(await search(kit.searcher(embedder()), query("zebra", "hybrid", 2)))

    async def test_vectors_of_another_model_are_not_compared(self, kit: SearchKit) -> None:
        await kit.fill(await batches([({"user_id": "u1"}, ["tea", "coffee"])]))
        other = await search(kit.searcher(HashingEmbedder(32)), query("tea", "vector"))
        assert texts(other) == []
        assert other.degraded is None

    async def test_vectors_of_another_length_under_the_same_name_are_reported(self, kit: SearchKit) -> None:
        await kit.fill(await batches([({"user_id": "u1"}, ["tea", "coffee"])]))
        changed = OneVector(1.0, 0.0, name=embedder().model)
        for index_type in ("vector", "hybrid"):
            found = await search(kit.searcher(changed), query("tea", index_type))
            assert texts(found) == ["tea"]
            assert "'hash:64' returns 2 numbers, but memories have vectors of another length" in (found.degraded or "")

    async def test_a_retrieval_query_goes_on_from_node_and_score(self, kit: SearchKit) -> None:
        model = await kit.fill(await batches([({"user_id": "u1"}, [f"tea {n}" for n in range(9)] + ["coffee"])]))
        retrieval = (
            "WITH node, score WHERE node.text <> $not "
            "RETURN score, node.id AS id, [1, 2] AS risks, node.text AS text ORDER BY score DESC"
        )
        asked = query("tea", "fulltext", 4, retrieval_query=retrieval, params={"not": "tea 3"})
        plain = await search(kit.searcher(), query("tea", "fulltext", 4))
        found = await search(kit.searcher(), asked)
        assert found.table.columns == ("text", "score", "id", "risks")
        wanted = [id for id in ids(plain) if model.by_id[id].text != "tea 3"]
        assert ids(found) == wanted
        assert len(set(scores(plain))) == 1
        assert scores(found) == pytest.approx(scores(plain)[: len(wanted)])
        assert found.table.rows[0][3] == [1, 2]

    async def test_rows_come_in_the_order_of_the_hits_where_the_retrieval_query_gives_none(
        self, kit: SearchKit
    ) -> None:
        await kit.fill(await some_memories(120))
        await kit.write(
            "MATCH (m:Memory) CREATE (m)-[:NAMES]->(:Thing {name: 'a'}), (m)-[:NAMES]->(:Thing {name: 'b'})"
        )
        scope = {"application_id": "shop"}
        for kind in ("vector", "fulltext", "hybrid", None):
            searcher, more = kit.searcher(embedder() if kind else None), {} if kind else {"without_embedder": "latest"}
            plain = await search(searcher, query("dog running", kind, 20, memory=scope, **more))
            retrieval = (
                "MATCH (node)-[:NAMES]->(t:Thing) RETURN t.name AS name, node.id AS id, node.text AS text, score;"
            )
            found = await search(
                searcher, query("dog running", kind, 20, memory=scope, retrieval_query=retrieval, **more)
            )
            assert len(ids(plain)) == 20
            assert ids(found) == [id for id in ids(plain) for _ in range(2)]

    async def test_equal_scores_keep_their_order_when_a_retrieval_query_sorts_by_score(self, kit: SearchKit) -> None:
        model = await kit.fill(await batches([({"user_id": "u1"}, ["tea" + "!" * n for n in range(120)])]))
        retrieval = "MATCH (n:Memory {id: node.id}) RETURN node.text AS text, score, n.id AS id ORDER BY score DESC"
        plain = await search(kit.searcher(), query("tea", "fulltext", 100))
        found = await search(kit.searcher(), query("tea", "fulltext", 100, retrieval_query=retrieval))
        assert ids(found) == ids(plain) == model.latest({"user_id": "u1"})[:100]

    async def test_the_order_that_a_retrieval_query_gives_stays(self, kit: SearchKit) -> None:
        await kit.fill(await batches([({"user_id": "u1"}, ["tea b", "tea c", "tea a a a"])]))
        retrieval = "RETURN node.text AS text, score ORDER BY text DESC"
        found = await search(kit.searcher(), query("tea", "fulltext", retrieval_query=retrieval))
        assert texts(found) == ["tea c", "tea b", "tea a a a"]

    async def test_a_retrieval_query_that_cannot_work_is_refused(self, kit: SearchKit) -> None:
        await kit.fill(await batches([({"user_id": "u1"}, ["tea"])]))
        for retrieval_query, message in (
            ("RETURN node.text AS content, score", "returns content, score but not text"),
            ("RETURN node.id AS id", "returns id but not text and score"),
            ("MATCH (node RETURN node", "."),
            ("CREATE (:X) RETURN node.text AS text, score", "."),
            ("SET node.text = 'x' RETURN node.text AS text, score", "."),
            ("RETURN node.text AS text, score, $nothing AS x", "."),
        ):
            with pytest.raises(QueryFailed, match=message) as failed:
                await search(kit.searcher(), query("tea", "fulltext", retrieval_query=retrieval_query))
            assert failed.value.code == "query_error", retrieval_query
            assert texts(await search(kit.searcher(), query("tea", "fulltext"))) == ["tea"], retrieval_query

    @pytest.mark.parametrize(("error", "reason"), FAILURES)
    @pytest.mark.parametrize("kind", ["vector", "hybrid", None])
    async def test_an_embedder_that_fails_leaves_the_words(
        self, kit: SearchKit, kind: IndexType | None, error: Exception | None, reason: str
    ) -> None:
        await kit.fill(await batches([({"user_id": "u1"}, ["tea", "coffee"])]))
        searcher = kit.searcher(FailingEmbedder(error))
        await search(searcher, query("tea", "fulltext"))  # the server knows the queries
        found = await search(searcher, query("tea", kind), timeout_s=6)
        assert texts(found) == ["tea"]
        assert found.degraded is not None
        assert reason in found.degraded
        assert "words" in found.degraded
        assert "secret" not in found.degraded
        if kind == "hybrid":
            assert 0 <= scores(found)[0] <= 1

    @pytest.mark.parametrize("kind", ["vector", "hybrid"])
    async def test_vectors_need_an_embedder(self, kit: SearchKit, kind: IndexType) -> None:
        with pytest.raises(InvalidSettings, match=f"^embedder is required when index_type='{kind}': set GRAPHWEFT_"):
            await search(kit.searcher(), query("tea", kind))

    async def test_a_search_that_takes_too_long_fails_as_a_timeout(self, kit: SearchKit) -> None:
        await kit.fill(await batches([({"user_id": "u1"}, ["tea"])]))
        slow = (
            "UNWIND range(1, 3000) AS a UNWIND range(1, 3000) AS b WITH node, score, max(a * b) AS c "
            "RETURN node.text AS text, score"
        )
        with pytest.raises(QueryFailed) as failed:
            await search(kit.searcher(), query("tea", "fulltext", retrieval_query=slow), timeout_s=0.2)
        assert failed.value.code == "timeout"

    async def test_of_very_many_candidates_the_rarest_terms_are_weighed(
        self, kit: SearchKit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("graphweft_workers.retrieval.fulltext.MOST_TERMED", 20)
        said = [f"dog {n}" for n in range(30)] + [f"cat {n}" for n in range(12)] + ["zebra dog", "zebra"]
        model = await kit.fill(await batches([({"user_id": "u1"}, said)]))
        found = await search(kit.searcher(), query("dog cat zebra", "fulltext", 100))
        latest = [id for id in model.latest({"user_id": "u1"}) if "dog" in model.by_id[id].text.split()][:6]
        wanted = {memory.id for memory in model.memories if not memory.text.startswith("dog")} | set(latest)
        assert set(ids(found)) == wanted
        # How rare the terms are is known of all of them, and all count.
        everything = model.by_words({"user_id": "u1"}, "dog cat zebra")
        assert scores(found) == pytest.approx([everything[id] for id in ids(found)])
