"""What an agent is told with the default rules, after many turns and behind long answers."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from tests.edges.test_hosting import running
from tests.neo4j.test_memory_events import APP, event, write
from tests.services.fixtures import Logs, events_of
from tests.services.rules import PACKS
from tests.services.waiting import until

from graphweft_contracts import ContextReply, ContextRequest, Event, channels
from graphweft_contracts.memory import MemoryScope, memory_id
from graphweft_contracts.search import SearchQuery
from graphweft_rules import RuleSet
from graphweft_rules.output.memory_block import NOTHING_CLOSE
from graphweft_workers.doctor import examine
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.new_project import default_rule_files
from graphweft_workers.processes.hosting import injection_app
from graphweft_workers.retrieval.search import Searcher
from graphweft_workers.settings.settings import Settings

pytestmark = pytest.mark.integration

CAT: Final = "My cat is called Tom and he is three years old"
SAME: Final = ["What is my cat called?"]
OTHERS: Final = [
    "What is my cat called?", "how old is my cat", "Is my cat called Tom or Tim?", "Do you know my cat?", "Who is Tom?",
    "Tell me how old my cat is", "Hi! What was the cat called, again?", "Which cat is three years old?",
    "Can you say what my cat is called?", "When was my cat three years old?",
]  # fmt: skip
UNKNOWN: Final = [
    "I do not know.", "Sorry, I do not know what your cat is called.", "I have no information about your cat.",
    "You have not told me how old your cat is. Could you tell me?", "I'm not sure what Tom the cat is called.",
]  # fmt: skip


def said(number: int, *turns: tuple[str, str], user: str = "u1") -> Event:
    messages = [{"role": role, "text": text} for role, text in turns]
    return event("memory.add", number, {"user_id": user, "messages": messages}, chat=f"c{number}")


def pipeline_of(graph: FalkorDBStore, embedder: Embedder | None = None) -> ContextPipeline:
    rules = RuleSet.of_files(default_rule_files(), PACKS)
    return ContextPipeline(rules, graph, embedder=embedder, index_bytes=10_000_000)


async def ask(pipeline: ContextPipeline, question: str, **fields: Any) -> ContextReply:
    request = {
        "id": "r", "app_id": APP, "workflow": "default", "agent": "A", "chat_id": "new", "user_id": "u1",
        "context": {"messages": [{"role": "user", "text": question}]},
        "deadline_ms": int((time.time() + 30) * 1000),
    } | fields  # fmt: skip
    return await pipeline.answer(ContextRequest.model_validate(request))


def value(reply: ContextReply) -> str:
    return str(next(block.value for block in reply.blocks if block.name == "remembered_of_this_user"))


@pytest.mark.parametrize("questions", [SAME, OTHERS])
@pytest.mark.parametrize("embedded", [False, True])
async def test_a_fact_is_in_the_block_after_fifty_questions_about_it(
    url: str, graph: FalkorDBStore, questions: Sequence[str], embedded: bool
) -> None:
    events = [said(1, ("user", CAT))]
    for number in range(50):
        asked = questions[number % len(questions)]
        if number >= len(questions) > 1:
            asked = f"{asked[:-1]} on day {number}?"
        events.append(said(2 + number, ("user", asked), ("assistant", UNKNOWN[number % len(UNKNOWN)])))
    embedder = HashingEmbedder(64) if embedded else None
    vectors: list[Event] = []
    for made in events if embedder is not None else ():
        for place, message in enumerate(made.data["messages"]):
            assert embedder is not None
            [vector] = await embedder.embed([message["text"]])
            data = {"memory_id": memory_id("/test", made.id, place), "model": embedder.model, "embedding": vector}
            vectors.append(event("memory.embedded", 1_000 + len(vectors), data, chat=made.chatid))
    await write(url, graph, [*events, *vectors])
    pipeline = pipeline_of(graph, embedder)
    try:
        for question in ("What is my cat called?", "How old is my cat?", "what is tom"):
            by_server = value(await ask(pipeline, question))
            assert CAT in by_server
            await pipeline.indexes.built()
            await ask(pipeline, question, context={"messages": [{"role": "user", "text": f"{question} "}]})
            await pipeline.indexes.built()
            assert value(await ask(pipeline, f"{question}  ")) == by_server
    finally:
        await pipeline.aclose()


async def test_a_question_that_was_asked_five_hundred_times_leaves_room(url: str, graph: FalkorDBStore) -> None:
    events = [said(1, ("user", CAT))]
    for number in range(10):
        events.append(said(2 + number, *[("user", f"Is my cat called Tom {number} {n}?") for n in range(50)]))
    await write(url, graph, events)
    pipeline = pipeline_of(graph)
    try:
        assert CAT in value(await ask(pipeline, "Is my cat called Tom?"))
    finally:
        await pipeline.aclose()


async def test_equal_texts_are_shown_once_and_the_newest_of_equals_is_first(url: str, graph: FalkorDBStore) -> None:
    texts = ["Tea at noon.", "Tea at nine.", "tea at  noon.", "Tea at five.", "Tea at noon."]
    events = [said(number, ("user", text)) for number, text in enumerate(texts, 1)]
    await write(url, graph, [*events, said(9, ("assistant", "Tea at noon."))])
    query = SearchQuery(text="tea", memory=MemoryScope(user_id="u1"), top_k=10)
    rows = (await Searcher(graph).search(APP, query, timeout_s=10)).table.rows
    assert [row[0] for row in rows] == ["Tea at noon.", "Tea at noon.", "Tea at five.", "Tea at nine."]


KNOWN: Final = ("My cat is called Tom.", "I drink green tea.", "I live in Oslo.")


FITS: Final = {
    "What do you know about me?": True, "Do you remember me?": True, "What do I like to drink?": True,
    "Tell me everything.": True, "Who is the king of Norway?": False,
}  # fmt: skip


@pytest.mark.parametrize("embedder", [None, HashingEmbedder(256)], ids=["words", "vectors"])
async def test_a_small_scope_is_shown_whole(url: str, graph: FalkorDBStore, embedder: Embedder | None) -> None:
    await write(url, graph, [said(number, ("user", text)) for number, text in enumerate(KNOWN, 1)])
    async with contextlib.aclosing(pipeline_of(graph, embedder)) as pipeline:
        shown = {question: value(await ask(pipeline, question)) for question in FITS}
    for question, block in shown.items():
        assert [block.count(f"- user: {text}") for text in KNOWN] == [1, 1, 1], question
    assert {question: NOTHING_CLOSE not in block for question, block in shown.items()} == FITS


async def test_facts_and_then_the_latest_follow_the_hits(url: str, graph: FalkorDBStore) -> None:
    events = [said(number, ("user", f"Lamp {number} is new.")) for number in range(2, 60)]
    first = said(1, ("user", "My cat is called Tom."))
    fact = {"subject": "Ada", "predicate": "lives in", "object": "Oslo", "text": "Ada lives in Oslo"}
    data = {
        "user_id": "u1", "summary": "-", "memory_ids": [memory_id("/test", first.id, 0)], "model": "x", "facts": [fact]
    }  # fmt: skip
    made = event("memory.summarized", 100, data, chat=first.chatid)
    await write(url, graph, [first, made, *events])
    for text, best in (("cat", "My cat is called Tom."), ("violin", "Ada lives in Oslo")):
        query = SearchQuery(text=text, memory=MemoryScope(user_id="u1"), top_k=10, fill="latest")
        rows = (await Searcher(graph).search(APP, query, timeout_s=20)).table.rows
        texts, scores = [row[0] for row in rows], [row[1] for row in rows]
        assert texts[0] == best
        assert "Ada lives in Oslo" in texts[:2]
        lamps = [text for text in texts if text.startswith("Lamp")]
        assert lamps == [f"Lamp {59 - place} is new." for place in range(len(lamps))]
        assert len(lamps) >= 7
        assert (len(texts), len(set(texts))) == (10, 10)
        assert scores == sorted(scores, reverse=True)
        assert all(scores)


LONG: Final = (
    "Here is a plan for the week with many steps. " * 100 + "Your cat is called Tom. " + "More of the plan. " * 150
)


@pytest.mark.parametrize("longs", [1, 6])
async def test_long_answers_do_not_empty_the_block(url: str, graph: FalkorDBStore, longs: int) -> None:
    answers = [said(number, ("assistant", f"Plan {number}. {LONG}")) for number in range(2, 2 + longs)]
    await write(url, graph, [said(1, ("user", CAT)), *answers])
    async with contextlib.aclosing(pipeline_of(graph)) as pipeline:
        for max_tokens in (None, 2_000, 600, 300, 150):
            reply = await ask(pipeline, "What is my cat called, Tom?", max_tokens=max_tokens)
            assert reply.missing == (), max_tokens
            assert "called Tom" in value(reply), max_tokens
            assert CAT in value(reply) or max_tokens == 150, max_tokens
            block = next(each for each in reply.blocks if each.rows)
            assert block.tokens <= min(max_tokens or 600, 600)
            if max_tokens != 150:
                assert "Your cat is called Tom." in value(reply)  # the passage of the long answer that matched
                assert "…" in value(reply), max_tokens


async def test_a_search_with_a_budget_returns_passages_of_long_texts(url: str, graph: FalkorDBStore) -> None:
    await write(url, graph, [said(1, ("user", CAT)), said(2, ("assistant", LONG))])
    pipeline = pipeline_of(graph)
    try:
        query = SearchQuery(text="my cat called Tom", memory=MemoryScope(user_id="u1"), top_k=5)
        reply = await ask(pipeline, "", context={}, search=query, max_tokens=600)
        [whole] = [row["text"] for row in reply.results if row["role"] == "user"]
        [cut] = [row["text"] for row in reply.results if row["role"] == "assistant"]
        assert (whole, len(cut) <= 1_602, "Your cat is called Tom." in cut) == (CAT, True, True)
        assert CAT in reply.text
        assert "…" in reply.text
        assert reply.tokens <= 600
    finally:
        await pipeline.aclose()


FACTS: Final = {
    "Ada is allergic to nuts": "Which nuts are dangerous for Ada?",
    "Ada works at Acme": "Where does Ada work?",
    "Ada plays the cello": "Which instrument does Ada play?",
    "Ada has a sister called Grace": "What is the sister called?",
    "Ada drives a red car": "Which colour has the car?",
    "Ada lives in Oslo": "Does Ada live in Oslo?",
    "Ada was born in May": "When was Ada born?",
    "Ada speaks Dutch": "Does Ada speak Dutch or German?",
    "Ada owns a dog called Rex": "What is the dog called?",
    "Ada studied physics": "What did Ada study?",
}
SMALL_TALK: Final = (
    "The train was late again", "Lunch was good today", "It rains a lot in autumn", "The meeting is on Monday",
    "What a long week", "Thanks, see you then", "The printer is broken", "A nice film was on",
    "Called the bank at noon", "My car is at the garage", "The dog next door barks", "Ada is a nice name",
)  # fmt: skip


class Close:
    """An embedder for which unrelated texts are a little alike, as for a model: cosines of 0.07 to 0.2."""

    model = "close"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        for text in texts:
            rnd = random.Random(text)
            numbers = [rnd.gauss(0, 1) for _ in range(384)]
            size = math.hypot(*numbers)
            vectors.append([0.4, *(number / size for number in numbers)])
        return vectors

    async def aclose(self) -> None:
        """Hold nothing."""


@pytest.mark.long("close", "hash:256-10")
@pytest.mark.parametrize("others", [3, 10, 50])
@pytest.mark.parametrize("embedder", [HashingEmbedder(256), Close()], ids=lambda each: each.model)
async def test_facts_are_found_with_an_embedder_as_well_as_by_words(
    url: str, graph: FalkorDBStore, others: int, embedder: Embedder
) -> None:
    events: list[Event] = []
    for number, fact in enumerate(FACTS, 1):
        added = said(number, ("user", f"{fact}."))
        memory = memory_id("/test", added.id, 0)
        subject, predicate, rest = fact.split(" ", 2)
        facts = [{"subject": subject, "predicate": predicate, "object": rest, "text": fact}]
        data = {"user_id": "u1", "summary": "-", "memory_ids": [memory], "model": "x", "facts": facts}
        events += [
            added, event("memory.summarized", 100 + number, data, chat=added.chatid),
            event("memory.forget", 200 + number, {"memory_ids": [memory]}, chat=added.chatid),
        ]  # fmt: skip
    for number in range(others):
        text = SMALL_TALK[number % len(SMALL_TALK)] + (f" {number}" if number >= len(SMALL_TALK) else "")
        added = said(300 + number, ("user", text))
        [vector] = await embedder.embed([text])
        data = {"memory_id": memory_id("/test", added.id, 0), "model": embedder.model, "embedding": vector}
        events += [added, event("memory.embedded", 400 + number, data, chat=added.chatid)]
    await write(url, graph, events)

    async def rank(searcher: Searcher, fact: str) -> int:
        query = SearchQuery(text=FACTS[fact], memory=MemoryScope(user_id="u1"), top_k=10)
        rows = (await searcher.search(APP, query, timeout_s=20)).table.rows
        return next((place for place, row in enumerate(rows, 1) if row[0] == fact), 99)

    by_words, by_both = Searcher(graph), Searcher(graph, embedder)
    ranks = {fact: (await rank(by_words, fact), await rank(by_both, fact)) for fact in FACTS}
    assert sum(words == 1 for words, _ in ranks.values()) >= 8
    for fact, (words, both) in ranks.items():
        assert both == 1 or both <= words, (fact, ranks)


@pytest.mark.parametrize("embedder", [None, HashingEmbedder(256)], ids=["words", "vectors"])
async def test_a_question_of_stop_words_finds_the_latest_and_facts_first(
    url: str, graph: FalkorDBStore, embedder: Embedder | None
) -> None:
    first = said(1, ("user", "I am a baker."), ("user", "Who am I?"))
    facts = [{"subject": "Ann", "predicate": f"KNOWS_{place}", "object": place, "text": f"Ann knows {place}"} for place
             in ("Bern", "Rome", "Oslo")]  # fmt: skip
    data = {"user_id": "u1", "summary": "A talk about bread", "memory_ids": [memory_id("/test", first.id, 0)],
            "model": "x", "facts": facts}  # fmt: skip
    later = [said(number, ("user", f"The train was {number} minutes late")) for number in (10, 11, 12)]
    await write(url, graph, [first, event("memory.summarized", 2, data, chat=first.chatid), *later])

    async def found(question: str, top_k: int) -> list[str]:
        query = SearchQuery(text=question, memory=MemoryScope(user_id="u1"), top_k=top_k)
        return [str(row[0]) for row in (await Searcher(graph, embedder).search(APP, query, timeout_s=20)).table.rows]

    trains = ["The train was 12 minutes late", "The train was 11 minutes late"]
    for question, known in (("Who am I?", ["I am a baker."]), ("What's there?", []), ("???", []),
                            ("who are you and what do I do", [])):  # fmt: skip
        rows = await found(question, 4)
        assert rows[: len(known)] == known
        assert all(row.startswith("Ann knows") for row in rows[len(known) : len(known) + 2]), (question, rows)
        assert rows[len(known) + 2 :] == trains[: 2 - len(known)], question
        rows = await found(question, 20)
        assert len(rows) == 9
        assert rows[-1] == "Who am I?", "it tells nothing"
    assert await found("What did I do on 1 May 1999?", 4) == []


async def test_a_memory_without_a_vector_is_found_by_its_words(url: str, graph: FalkorDBStore) -> None:
    """It was said a moment ago, or another model embedded it."""
    embedder = Close()
    sleeps = "The cat sleeps"
    events = [said(1, ("user", CAT), ("user", sleeps))]
    for number, text in enumerate(SMALL_TALK[:8], 2):
        added = said(number, ("user", text))
        [vector] = await embedder.embed([text])
        data = {"memory_id": memory_id("/test", added.id, 0), "model": embedder.model, "embedding": vector}
        events += [added, event("memory.embedded", 100 + number, data, chat=added.chatid)]
    await write(url, graph, events)
    query = SearchQuery(text="What is my cat called?", memory=MemoryScope(user_id="u1"), top_k=3)
    found = await Searcher(graph, embedder).search(APP, query, timeout_s=20)
    assert {row[0] for row in found.table.rows[:2]} == {CAT, sleeps}


async def test_a_changed_embedder_is_named(url: str, graph: FalkorDBStore, tmp_path: Path, logs: Logs) -> None:
    made = said(1, ("user", CAT))
    [vector] = await HashingEmbedder(64).embed([CAT])
    data = {"memory_id": memory_id("/test", made.id, 0), "model": "hash:64", "embedding": vector}
    await write(url, graph, [made, event("memory.embedded", 2, data, chat=made.chatid)])
    named = f"{APP}: 1 by 'hash:64'"
    for embedder, is_named in (("hash:64", False), ("hash:128", True)):
        settings = Settings.load(bus_url=url, graph_url=url, rules=tmp_path, embedder=embedder)
        checks = {check.name: check for check in await examine(settings)}
        found = checks.get("embedded memories")
        assert (found is not None) is is_named, found
        assert found is None or (found.state, named in found.found) == ("warn", True)
    async with running(injection_app(settings)) as task:
        await until(lambda: "embedder_changed" in events_of(logs), beside=task)
    [line] = [entry for entry in logs if entry["event"] == "embedder_changed"]
    assert (line["app_id"], line["embedder"], line["memories"]) == (APP, "hash:128", "1 by 'hash:64'")


async def test_terms_of_an_earlier_version_are_named(url: str, graph: FalkorDBStore, tmp_path: Path) -> None:
    await write(url, graph, [said(1, ("user", "J'aime les chevaux.")), said(2, ("user", CAT))])
    settings = Settings.load(bus_url=url, graph_url=url, rules=tmp_path, embedder="none")
    assert "terms of memories" not in {check.name for check in await examine(settings)}
    older = "MATCH (m:Memory) WHERE m.text CONTAINS 'chevaux' SET m.terms = 'jaim les chevaux'"
    await graph._redis.execute_command("GRAPH.QUERY", channels.graph_name(APP), older)
    [found] = [check for check in await examine(settings) if check.name == "terms of memories"]
    assert (found.state, f"{APP}: 1 of 2" in found.found, "graphweft rebuild" in found.advice) == ("warn", True, True)


async def test_a_chat_that_the_client_sends_is_not_shown_again(url: str, graph: FalkorDBStore) -> None:
    earlier = ("My cat is called Tom.", "Tom is a nice name for a cat.")
    await write(url, graph, [
        said(1, ("user", earlier[0]), ("assistant", earlier[1])), said(2, ("user", "My cat Tom sleeps all day.")),
    ])  # fmt: skip
    messages = [
        {"role": "user", "content": f" {earlier[0]} "}, {"role": "assistant", "content": earlier[1]},
        {"role": "user", "content": "What does my cat Tom do?"},
    ]  # fmt: skip
    pipeline = pipeline_of(graph)
    try:
        shown = value(await ask(pipeline, "", context={"messages": messages}))
        assert "sleeps all day" in shown
        assert not any(text in shown for text in earlier)
        alone = value(await ask(pipeline, "", context={"messages": messages[:1]}))
        assert earlier[0] in alone, "the question itself may be in another chat"
    finally:
        await pipeline.aclose()
