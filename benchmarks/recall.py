"""``python -m benchmarks.recall FILE``: how much of what answers a question is found, and how long that takes.

The conversations of a file in the format of LoCoMo's ``locomo10.json`` go the whole way: as ``memory.add`` events over
the bus, through the worker that writes them into the graph and the one that embeds them. Then every question is
searched for within its conversation, by each kind of search, and beside them by an exact search in this process. What
is counted is the evidence, the turns that are said to answer the question, among the first rows.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Died, in_turn
from benchmarks.plain_search import InMemory, by_ranks, plain_words
from benchmarks.processes import ENGINE, process
from benchmarks.services import Graph, Services, publish
from graphweft.transport import Outgoing
from graphweft_contracts import InvalidSettings, wire
from graphweft_contracts.memory import MemoryScope
from graphweft_contracts.search import IndexType, SearchQuery
from graphweft_workers.embedding.cached import CachedEmbedder
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.evaluation.locomo import Conversation, LocomoQuestion, memories_of, read
from graphweft_workers.evaluation.measures import DEPTHS, share_found
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.search import Searcher
from graphweft_workers.settings.settings import Settings
from graphweft_workers.text.terms import query_terms, terms
from graphweft_workers.wiring.connections import make_graph
from graphweft_workers.wiring.embedder import make_embedder

EMBEDDING: Final = ("-m", "graphweft_workers.cli", "run", "memory")
_STALLED_S: Final = 600.0
"""Without any progress for so long, a worker counts as stuck. Vectors come by the thousand: 256 of each partition."""
_POLL_S: Final = 0.1
_SEARCH_S: Final = 10.0
_COUNT: Final = "MATCH (m:Memory) RETURN count(m), count(m.embedding)"

type _Search = Callable[[LocomoQuestion], Awaitable[Sequence[str]]]
"""Returns the ids of the memories that are found, best first."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a kind of search found for a question."""

    question: LocomoQuestion
    found: Sequence[str]
    ms: float

    def recall(self, depth: int) -> float:
        """Return the share of the evidence among the first ``depth`` rows."""
        return share_found(self.question.evidence, [self.found[:depth]])


def main(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="In the format of locomo10.json.")],
    embedder: Annotated[str, typer.Option(help="As GRAPHWEFT_EMBEDDER: hash:256, minilm …")] = "hash:256",
    graph: Annotated[str, typer.Option(help="falkordb or neo4j.")] = "falkordb",
    app: Annotated[str, typer.Option(help="The application that the memories are of.")] = "recall",
    limit: Annotated[int | None, typer.Option(min=1, help="Most questions of each conversation.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON instead of tables.")] = False,
) -> None:
    """Measure how much of the evidence is found, on real servers that are started for it."""
    if graph not in ("falkordb", "neo4j"):
        raise typer.BadParameter("falkordb or neo4j", param_hint="--graph")
    try:
        conversations = read(file)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from error
    report = asyncio.run(_run(conversations, embedder, "neo4j" if graph == "neo4j" else "falkordb", app, limit))
    if as_json:
        print(json.dumps({"file": file.name, "graph": graph, **report}, indent=1))
    else:
        show(report)


async def _run(
    conversations: Sequence[Conversation], embedder: str, graph: Graph, app: str, limit: int | None
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="graphweft-recall-") as rules:
        async with Services(fsync="everysec") as services:
            settings = await services.settings("redis", graph, Path(rules))
            settings = settings.model_copy(update={"embedder": embedder})
            try:
                inner = make_embedder(settings)
            except InvalidSettings as error:
                raise typer.BadParameter(str(error), param_hint="--embedder") from error
            if inner is None:
                raise typer.BadParameter("an embedder is needed, for example hash:256", param_hint="--embedder")
            store, cached = make_graph(settings), CachedEmbedder(inner)
            try:
                return await measure(conversations, settings, store, cached, app=app, limit=limit)
            finally:
                await cached.aclose()
                await store.aclose()


async def measure(
    conversations: Sequence[Conversation],
    settings: Settings,
    store: GraphStore,
    embedder: Embedder,
    *,
    app: str,
    limit: int | None = None,
) -> dict[str, Any]:
    """Send the conversations to the bus of ``settings``, wait for both workers, and search; return all figures."""
    say = Console(stderr=True)
    turn_ids: dict[str, dict[str, str]] = {conversation.id: {} for conversation in conversations}
    events: list[Outgoing] = []
    for conversation in conversations:
        for event, ids in memories_of(conversation, app):
            turn_ids[conversation.id] |= ids
            events.append(Outgoing(key=event.key, fields=wire.encode(event)))
    turns = sum(map(len, turn_ids.values()))
    begun = time.perf_counter()
    await publish(settings, events)
    async with process(ENGINE, settings) as engine, process(EMBEDDING, settings) as embedding:
        await remembered(store, app, turns, (engine, embedding))
    ingested_s = time.perf_counter() - begun
    say.print(f"{turns:,} turns remembered and embedded in {ingested_s:.1f} s", highlight=False)

    answers: dict[str, list[Answer]] = {}
    embedding_ms: list[float] = []
    searcher, by_words = Searcher(store, embedder), Searcher(store)
    for conversation in conversations:
        questions = conversation.questions[:limit]
        for question in questions:  # the model's time is not that of a search
            begun = time.perf_counter()
            await embedder.embed([question.text])
            embedding_ms.append((time.perf_counter() - begun) * 1_000)
        searches = {
            **_ours(searcher, by_words, app, conversation.id),
            **await _in_memory(conversation, turn_ids[conversation.id], embedder),
        }
        for number, question in enumerate(questions):
            for name in in_turn(list(searches), number):
                begun = time.perf_counter()
                rows = await searches[name](question)
                ms = (time.perf_counter() - begun) * 1_000
                if strange := set(rows) - turn_ids[conversation.id].keys():
                    raise Died(f"{name}: {len(strange)} rows are of another conversation")
                found = [turn_ids[conversation.id][id] for id in rows]
                answers.setdefault(name, []).append(Answer(question, found, ms))
        say.print(f"{conversation.id}: {len(questions)} questions", highlight=False)
    return {
        "embedder": embedder.model,
        "conversations": len(conversations),
        "turns": turns,
        "questions": len(embedding_ms),
        "without_evidence": sum(conversation.asked - len(conversation.questions) for conversation in conversations),
        "ingest_s": ingested_s,
        "embedding_of_a_question": _times(embedding_ms),
        "searches": {name: _figures(answers[name]) for name in searches} if answers else {},
    }


def show(report: Mapping[str, Any]) -> None:
    """Print the figures of a report."""
    console = Console(width=None if Console().is_terminal else 160)
    asked = (
        f"{report['questions']:,} questions about {report['turns']:,} turns of {report['conversations']} "
        f"conversations, {report['embedder']}"
    )
    table = Table(title=f"evidence found: {asked}", title_justify="left")
    table.add_column("search", no_wrap=True)
    for name in (*(f"recall@{k}" for k in DEPTHS), *(f"all of it @{k}" for k in DEPTHS), "p50 ms", "p99 ms"):
        table.add_column(name, justify="right")
    for name, figures in report["searches"].items():
        table.add_row(
            name,
            *(f"{figures[kind][str(k)]:.3f}" for kind in ("recall", "all") for k in DEPTHS),
            *(f"{figures['ms'][percent]:.1f}" for percent in ("p50", "p99")),
        )
    console.print(table)
    categories = sorted({name for figures in report["searches"].values() for name in figures["categories"]})
    table = Table(title="recall@10 by category of question", title_justify="left")
    table.add_column("search", no_wrap=True)
    for category in categories:
        first = next(iter(report["searches"].values()))["categories"][category]
        table.add_column(f"{category} ({first['questions']})", justify="right")
    for name, figures in report["searches"].items():
        table.add_row(name, *(f"{figures['categories'][category]['recall']['10']:.3f}" for category in categories))
    console.print(table)
    ms = report["embedding_of_a_question"]
    console.print(
        f"Embedding a question takes {ms['p50']:.1f} ms (p50), {ms['p99']:.1f} ms (p99), and is in none of the times; "
        f"{report['without_evidence']} questions have no evidence in their conversation and are left out.",
        highlight=False,
    )


async def remembered(
    store: GraphStore, app: str, count: int, workers: Sequence[Process], *, vectors: bool = True
) -> None:
    """Wait until there are ``count`` memories; with ``vectors``, all with one.

    Raises ``Died`` when a worker ends or gets stuck.
    """
    before: tuple[Any, ...] = ()
    moved = time.monotonic()
    while True:
        rows = (await store.read(app, _COUNT, {}, timeout_s=_SEARCH_S)).rows
        now = tuple(rows[0]) if rows else (0, 0)
        if now == (count, count if vectors else 0):
            return
        if now != before:
            before, moved = now, time.monotonic()
        elif ended := [worker.returncode for worker in workers if worker.returncode is not None]:
            raise Died(f"ended with {ended[0]}: {now[0]} memories of {count}, {now[1]} of them embedded")
        elif time.monotonic() - moved > _STALLED_S:
            raise Died(f"did not go on: {now[0]} memories of {count}, {now[1]} of them embedded")
        await asyncio.sleep(_POLL_S)


def _ours(searcher: Searcher, by_words: Searcher, app: str, user_id: str) -> dict[str, _Search]:
    """Return the kinds of search within one user's memories, by name."""

    def kind(searcher: Searcher, index_type: IndexType | None) -> _Search:
        async def search(question: LocomoQuestion) -> Sequence[str]:
            query = SearchQuery(
                text=question.text,
                memory=MemoryScope(user_id=user_id),
                index_type=index_type,
                top_k=DEPTHS[-1],
            )
            found = await searcher.search(app, query, timeout_s=_SEARCH_S)
            if found.degraded is not None:
                raise Died(f"a search by {index_type} was none: {found.degraded}")
            place = found.table.columns.index("id")
            return [row[place] for row in found.table.rows]

        return search

    return {
        "fulltext": kind(searcher, "fulltext"),
        "vector": kind(searcher, "vector"),
        "default, no embedder": kind(by_words, None),
        "hybrid": kind(searcher, "hybrid"),
    }


async def _in_memory(conversation: Conversation, turn_ids: Mapping[str, str], embedder: Embedder) -> dict[str, _Search]:
    """Return the same by an exact search in this process."""
    k = DEPTHS[-1]
    said = {turn.id: f"{turn.speaker}: {turn.text}" for turn in conversation.turns}
    texts = {id: said[turn_id] for id, turn_id in turn_ids.items()}
    vectors = dict(zip(texts, await embedder.embed(list(texts.values())), strict=True))
    plain = InMemory(texts, vectors, plain_words)
    stemmed = InMemory(texts, vectors, terms)

    async def words(question: LocomoQuestion) -> Sequence[str]:
        return plain.by_words(plain_words(question.text), k)

    async def same_terms(question: LocomoQuestion) -> Sequence[str]:
        return stemmed.by_words(query_terms(question.text), k)

    async def vector(question: LocomoQuestion) -> Sequence[str]:
        [wanted] = await embedder.embed([question.text])
        return plain.by_vector(wanted, k)

    async def both(question: LocomoQuestion) -> Sequence[str]:
        return by_ranks([await words(question), await vector(question)], k)

    return {
        "in memory: BM25, plain words": words,
        "in memory: BM25, our terms": same_terms,
        "in memory: cosine": vector,
        "in memory: both by ranks": both,
    }


def _figures(answers: Sequence[Answer]) -> dict[str, Any]:
    by_category: dict[str, list[Answer]] = {}
    for answer in answers:
        by_category.setdefault(str(answer.question.category), []).append(answer)
    return {
        **_shares(answers),
        "ms": _times([answer.ms for answer in answers]),
        "categories": {name: _shares(by_category[name]) for name in sorted(by_category)},
    }


def _shares(answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "questions": len(answers),
        "recall": {str(k): statistics.fmean(answer.recall(k) for answer in answers) for k in DEPTHS},
        "all": {str(k): statistics.fmean(answer.recall(k) == 1 for answer in answers) for k in DEPTHS},
    }


def _times(ms: Sequence[float]) -> dict[str, float]:
    ordered = sorted(ms)
    return {f"p{percent}": ordered[len(ordered) * percent // 100] for percent in (50, 99)} if ordered else {}


if __name__ == "__main__":
    typer.run(main)
