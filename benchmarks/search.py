"""(h) Search: a hybrid search within one user's memories, beside the same by hand, among the memories of many.

A hundred users have 1,000 memories each and one has 10,000; with ``--full`` there are 990 users, so a million memories.
They are written as the events of memory write them, but straight to the server: 110,000 events over the bus would take
as long as all other rows. Then the same searches come right after something that the user says, or another one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import batched, chain, count, product
from typing import Any, Final

import redis.asyncio as redis

from benchmarks.harness import Bench, Died, Result, in_turn, ratio
from benchmarks.plain_search import by_hand
from benchmarks.services import Services
from benchmarks.workload import APP
from graphweft_contracts import Event, channels
from graphweft_contracts.memory import MemoryScope, memory_id
from graphweft_contracts.search import SearchQuery
from graphweft_workers.drivers.falkordb.literals import header
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.injection.cache import Cache
from graphweft_workers.injection.index_versions import IndexVersions
from graphweft_workers.injection.versions import GraphVersions
from graphweft_workers.ports.graph_store import START, Checkpoint, Write
from graphweft_workers.retrieval.records import MEMORY_LABEL
from graphweft_workers.retrieval.scope_indexes import ScopeIndexes
from graphweft_workers.retrieval.scope_marks import MARK, mark_params
from graphweft_workers.retrieval.search import Searcher
from graphweft_workers.text.terms import STOP_WORDS, scope_term

ROW: Final = "h"
USERS: Final = 100
USERS_OF_A_MILLION: Final = 990
ASKED: Final = 100
"""Users whose memories are searched."""
OF_EACH: Final = 1_000
OF_ONE: Final = 10_000
DIMENSIONS: Final = 384
TOP_K: Final = 10
_ONE: Final = "one"
_SOURCE: Final = "/benchmarks/search"
_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_LATER: Final = datetime(2026, 2, 1, tzinfo=UTC)
"""Later than all memories that are loaded."""
_AT_ONCE: Final = 100
_LEAST: Final = 100
"""Answers of which one in a hundred may be named."""
_SEARCH_S: Final = 10.0
_START_S: Final = 300.0
_COUNT_S: Final = 60.0
_INDEX_BYTES: Final = 512 * 1024**2
_MARK: Final = f"MERGE (mark:{MARK} {{id: $mark0}}) SET mark.at = $marked"
_COPY: Final = (
    f"UNWIND $__gw_rows AS row MATCH (from:{MEMORY_LABEL} {{id: row[1]}}) CREATE (to:{MEMORY_LABEL}) "
    "SET to = from, to.id = row[0], to.user_id = $user_id, to.scopes = $scopes, to.chat_id = $user_id"
)

type _Ask = Callable[[str, str], Awaitable[list[str]]]
"""Given a question and whose memories; returns the ids of those that are found."""


@dataclass(frozen=True, slots=True)
class _Contender:
    """What is measured, and what comes before each of its searches."""

    ask: _Ask
    before: Callable[[str], Awaitable[None]] | None = None
    """Given whose memories are searched next. It is not measured."""


async def run(bench: Bench, services: Services) -> list[Result]:
    await services.clear("redis", "falkordb")
    url = await services.url("falkordb")
    embedder = HashingEmbedder(DIMENSIONS)
    texts = _texts(OF_ONE)
    results: list[Result] = []
    async with AsyncExitStack() as ends:
        store = FalkorDBStore(url)
        ends.push_async_callback(store.aclose)
        begun = time.monotonic()
        number_of_users = USERS_OF_A_MILLION if bench.full else USERS
        await _load(url, store, embedder, texts, number_of_users)
        all_memories = OF_ONE + number_of_users * OF_EACH
        bench.say(f"  [dim]{all_memories:,} memories loaded in {time.monotonic() - begun:.0f} s[/]")
        background = Background()
        ends.push_async_callback(background.aclose)
        versions = IndexVersions(GraphVersions(store, Breaker(), background), Cache(0))
        indexes = ScopeIndexes(store, versions, _INDEX_BYTES, embedder.model)
        ends.push_async_callback(indexes.aclose)
        searcher = Searcher(store, embedder, scopes=indexes)
        server = Searcher(store, embedder)
        hand = await ends.enter_async_context(by_hand(url, channels.graph_name(APP), embedder))

        async def searched(by: Searcher, text: str, user_id: str) -> list[str]:
            query = SearchQuery(text=text, memory=MemoryScope(user_id=user_id), index_type="hybrid", top_k=TOP_K)
            found = await by.search(APP, query, timeout_s=_SEARCH_S)
            if found.degraded is not None:
                raise Died(f"a search was not hybrid: {found.degraded}")
            place = found.table.columns.index("id")
            return [row[place] for row in found.table.rows]

        async def ours(text: str, user_id: str) -> list[str]:
            return await searched(searcher, text, user_id)

        async def unindexed(text: str, user_id: str) -> list[str]:
            return await searched(server, text, user_id)

        async def same(text: str, user_id: str) -> list[str]:
            return [row[0] for row in await hand.best(text, user_id, TOP_K)]

        async def simple(text: str, user_id: str) -> list[str]:
            return [row[0] for row in await hand.simple(text, user_id, TOP_K)]

        contenders = {
            "ours": _Contender(ours),
            "without an index": _Contender(unindexed),
            "by hand": _Contender(same),
            "two queries": _Contender(simple),
        }
        questions = _questions(texts)
        talk = _Talk(store, embedder, questions)
        talks = {
            "nobody talks": _Contender(ours),
            "another user talks": _Contender(ours, talk.say_beside),
            "the user talks": _Contender(ours, talk.say),
        }
        await _compare(ours, unindexed, questions)
        for size, users in ((OF_EACH, [f"user-{number}" for number in range(ASKED)]), (OF_ONE, [_ONE])):
            begun, cpu = time.monotonic(), time.process_time()
            await _indexed(indexes, ours, questions, users)
            took, cpu = (time.monotonic() - begun) / len(users), (time.process_time() - cpu) / len(users)
            bench.say(f"  [dim]an index of {size:,} memories: {took:.2f} s, {cpu:.2f} s of CPU of the process[/]")
            values = await _measured(bench, size, users, contenders, questions)
            for to, percent in product(("by hand", "two queries", "without an index"), ("p50", "p99")):
                title = f"hybrid search in {size:,} of {all_memories:,} memories, ours / {to}, {percent}"
                results.append(ratio(ROW, title, values, f"ours {percent}", f"{to} {percent}", unit="ms"))
            values = await _measured(bench, size, users, talks, questions)
            for of, percent in product(("another user talks", "the user talks"), ("p50", "p99")):
                title = f"hybrid search in {size:,}, {of} before it / nobody talks, {percent}"
                results.append(ratio(ROW, title, values, f"{of} {percent}", f"nobody talks {percent}", unit="ms"))
    return results


class _Talk:
    """Writes what users say right before a search, as a worker does: a memory, and then its vector."""

    def __init__(self, store: FalkorDBStore, embedder: HashingEmbedder, texts: Iterator[str]) -> None:
        self._store, self._embedder, self._texts = store, embedder, texts
        self._pack = MemoryMutations()
        self._number = 0

    async def say_beside(self, user_id: str) -> None:
        """Add a memory of another user."""
        await self.say("user-0" if user_id == _ONE else _ONE)

    async def say(self, user_id: str) -> None:
        """Add a memory of a user."""
        self._number += 1
        time = _LATER + timedelta(seconds=self._number)
        for event in await _events(f"said-{self._number}", user_id, [next(self._texts)], time, self._embedder):
            for mutation, params in self._pack.match(event):
                before = (await self._store.progress(APP, 0)).checkpoint
                after = Checkpoint(offset=f"{int(before.offset.partition('-')[0]) + 1}-0")
                write = Write(query=mutation.cypher, rows=[params], before=before, after=after)
                if (failure := (await self._store.apply(APP, 0, [write])).failure) is not None:
                    raise Died(f"a memory was not written: {failure}")


async def _indexed(indexes: ScopeIndexes, ask: _Ask, questions: Iterator[str], users: Sequence[str]) -> None:
    """Search until the indexes of the users' scopes are there."""
    async with asyncio.timeout(_START_S):
        for user_id in users:
            misses = -1
            while indexes.misses != misses:
                misses = indexes.misses
                await ask(next(questions), user_id)
                await indexes.built()


async def _measured(
    bench: Bench, size: int, users: Sequence[str], contenders: Mapping[str, _Contender], questions: Iterator[str]
) -> dict[str, list[float]]:
    """Return the milliseconds of which half, and 99 of 100, of a contender's answers stay below; a value a round."""
    values: dict[str, list[float]] = {f"{name} {percent}": [] for name in contenders for percent in ("p50", "p99")}
    title = f"search in {size:,}"
    for name, contender in contenders.items():
        for _ in range(20):  # what runs for the first time takes longer
            await _asked(name, contender.ask, next(questions), users[0])
    for round_number in bench.turns(title):
        for name in in_turn(list(contenders), round_number):
            times: list[float] = []
            until = time.perf_counter() + bench.seconds
            while time.perf_counter() < until or len(times) < _LEAST:
                text, user_id = next(questions), users[len(times) % len(users)]
                contender = contenders[name]
                if contender.before is not None:
                    await contender.before(user_id)
                begun = time.perf_counter()
                await _asked(name, contender.ask, text, user_id)
                times.append((time.perf_counter() - begun) * 1_000)
            times.sort()
            for percent in (50, 99):
                values[f"{name} p{percent}"].append(times[len(times) * percent // 100])
        shown = ", ".join(f"{name} {several[-1]:.2f}" for name, several in values.items())
        bench.say(f"  [dim]{title} {round_number + 1}/{bench.rounds}[/] {shown} ms")
    return values


async def _asked(name: str, ask: _Ask, text: str, user_id: str) -> None:
    if (rows := len(await ask(text, user_id))) != TOP_K:
        raise Died(f"{name}: {rows} rows for a search of {TOP_K}")


async def _compare(ours: _Ask, unindexed: _Ask, questions: Iterator[str]) -> None:
    """Make sure that the index of a scope and the server find the same, in the same order."""
    for number in range(20):
        text, user_id = next(questions), f"user-{number}"
        if await ours(text, user_id) != await unindexed(text, user_id):
            raise Died("a search by the index of a scope finds other memories than one by the server")


async def _load(
    url: str, store: FalkorDBStore, embedder: HashingEmbedder, texts: Sequence[str], number_of_users: int
) -> None:
    """Write the memories of one user by the statements of ``MemoryMutations``, and copies of them for all others."""
    pack, graph = MemoryMutations(), channels.graph_name(APP)
    await store.prepare(APP, pack.keys, pack.indexes)
    client: Any = redis.Redis.from_url(url)
    ids: list[str] = []
    try:
        for group in batched(texts, _AT_ONCE):
            pipeline = client.pipeline(transaction=False)
            first = _START + timedelta(minutes=len(ids))
            for event in await _events(f"add-{len(ids)}", _ONE, group, first, embedder):
                for mutation, params in pack.match(event):
                    pipeline.execute_command("GRAPH.QUERY", graph, header(params) + mutation.cypher.statement)
            await pipeline.execute()
            ids += [memory_id(_SOURCE, f"add-{len(ids)}", place) for place in range(len(group))]
        for number in range(number_of_users):
            user_id = f"user-{number}"
            # A user's memories are others than the next one's, as far as there are enough of them.
            copied = [ids[(number * OF_EACH + place) % OF_ONE] for place in range(OF_EACH)]
            rows = [[f"{user_id}-{place}", id] for place, id in enumerate(copied)]
            params = {"user_id": user_id, "scopes": scope_term("user_id", user_id)}
            await client.execute_command("GRAPH.QUERY", graph, header(params, {"__gw_rows": rows}) + _COPY)
            marked = header(mark_params("add", {"user_id": user_id}, user_id))
            await client.execute_command("GRAPH.QUERY", graph, marked + _MARK)
    finally:
        await client.aclose()
    counted = f"MATCH (m:{MEMORY_LABEL}) RETURN count(m), count(m.embedding)"
    [[found, embedded]] = (await store.read(APP, counted, {}, timeout_s=_COUNT_S)).rows
    # An index is kept for a version, which is the checkpoints.
    await store.progress(APP, 0)
    await store.apply(APP, 0, [Write(before=START, after=Checkpoint(offset="1-0"))])
    if (found, embedded) != (OF_ONE + number_of_users * OF_EACH,) * 2:
        raise Died(f"{found} memories are there, {embedded} of them with a vector")


async def _events(
    id: str, user_id: str, texts: Sequence[str], first: datetime, embedder: HashingEmbedder
) -> list[Event]:
    """Return the events that add memories of a user, one each minute from the ``first`` time on, and embed them."""
    add = Event.create(
        "memory.add",
        app_id=APP,
        chat_id=user_id,
        data={
            "user_id": user_id,
            "messages": [
                {"role": "user", "text": text, "time": (first + timedelta(minutes=place)).isoformat()}
                for place, text in enumerate(texts)
            ],
        },
        id=id,
        source=_SOURCE,
        time=_START,
    )
    embedded = [
        Event.create(
            "memory.embedded",
            app_id=APP,
            chat_id=user_id,
            data={"memory_id": memory_id(_SOURCE, id, place), "model": embedder.model, "embedding": vector},
            id=f"embedded-{id}-{place}",
            source=_SOURCE,
            time=_START,
        )
        for place, vector in enumerate(await embedder.embed(texts))
    ]
    return [add, *embedded]


def _texts(size: int) -> list[str]:
    """Return texts of 6 to 30 words: half of them stop words, the others out of 5,000.

    As in a language some are frequent and most are rare: one is in a tenth of the texts, others in a thousandth.
    """
    chance = random.Random(size)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(4, 9))) for _ in range(5_000)]
    weights = [1 / (place + 20) for place in range(len(words))]
    stop_words = sorted(STOP_WORDS)
    texts: list[str] = []
    for _ in range(size):
        half = chance.randint(3, 15)
        pairs = zip(chance.choices(stop_words, k=half), chance.choices(words, weights, k=half), strict=True)
        texts.append(" ".join(chain.from_iterable(pairs)))
    return texts


def _questions(texts: Sequence[str]) -> Iterator[str]:
    """Yield questions that never come again, of twelve words of a text, half of them stop words, and a new one."""
    chance = random.Random(0)
    for number in count():
        yield " ".join([*chance.choices(chance.choice(texts).split(), k=12), f"number{number}"])


if __name__ == "__main__":
    raise SystemExit("python -m benchmarks --only h")
