"""What the suite of searches needs of a driver of graphs, and what its tests share."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal

import pytest

from graphweft_contracts import Event
from graphweft_contracts.search import IndexType, SearchQuery
from graphweft_rules.cypher.query import parse
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, Write
from graphweft_workers.retrieval.search import Searcher, SearchRows
from graphweft_workers.testing.suites.memory_model import DIMENSIONS, NASTY, WORDS, MemoryBatch, MemoryModel, batches

APP: Final = "shop"
EXACT: Final = 1.1e-5
"""Scores of vectors are rounded to 5 decimals."""
_PARTITION: Final = 8
"""Of the writes of ``apply_all``."""


class SearchKit(ABC):
    """A graph without data, and what the tests do to it past the store."""

    store: GraphStore
    chunk_index: str
    """The name by which a search finds the fulltext index that was made as ``search_chunks``."""
    memory_index: str
    """The name of the fulltext index of memories."""
    questions: int = 40
    """How many random questions a test asks; a server that compiles each for long needs fewer."""

    @abstractmethod
    async def write(self, *statements: str) -> None:
        """Run Cypher in the graph of ``APP``; ``vecf32(…)`` makes a vector of a list."""

    @abstractmethod
    async def make_vector_index(self, name: str, label: str, similarity: Literal["cosine", "euclidean"]) -> None:
        """Make an index of vectors of two numbers in the property ``embedding``."""

    @abstractmethod
    async def make_fulltext_index(self, name: str, label: str, *properties: str) -> None:
        """Make an index of words."""

    async def begin_fulltext_index(self, name: str, label: str, *properties: str) -> None:
        """Make an index of words, and do not wait until it is built."""
        await self.make_fulltext_index(name, label, *properties)

    @abstractmethod
    async def drop_named_indexes(self) -> None:
        """Drop the indexes that the tests made, if they are there beyond the graph."""

    async def fill(self, made: Sequence[MemoryBatch]) -> MemoryModel:
        """Store memories, and return the model of them."""
        await self._write_each(each for batch in made for each in batch.written)
        return MemoryModel(made)

    async def apply(self, *events: Event) -> None:
        """Apply events of memory, in their order."""
        pack = MemoryMutations()
        await self._write_each(
            (mutation.cypher.statement, params) for event in events for mutation, params in pack.match(event)
        )

    async def count(self, label: str) -> int:
        """Return the number of nodes with a label."""
        table = await self.store.read(APP, f"MATCH (n:{label}) RETURN count(n)", {}, timeout_s=20)
        return int(table.rows[0][0])

    async def _write_each(self, written: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        pack = MemoryMutations()
        await self.store.prepare(APP, pack.keys, pack.indexes)
        await apply_all(self.store, APP, written)

    def searcher(self, embedder: Any = None) -> Searcher:
        """Return a searcher of the graph."""
        return Searcher(self.store, embedder)


async def apply_all(store: GraphStore, app_id: str, written: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Apply statements with their parameters in their order, those that follow their like in one write if they may."""
    before = begin = (await store.progress(app_id, _PARTITION)).checkpoint
    writes: list[Write] = []
    for statement, some in groupby(written, key=itemgetter(0)):
        query, rows = parse(statement, role="mutation"), [params for _, params in some]
        may_share = query.batch_query(store.dialect).mode == "ordered"
        for shared in [rows] if may_share else [[each] for each in rows]:
            after = Checkpoint(offset=f"{begin.offset}.{len(writes)}")
            writes.append(Write(query=query, rows=shared, before=before, after=after))
            before = after
    while writes:
        applied = await store.apply(app_id, _PARTITION, writes)
        assert applied.failure is None, applied.failure
        del writes[: applied.count]


class SearchFixtures:
    """The fixtures of the suite. A driver's tests define ``kit``."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def kit(self) -> SearchKit:
        """Return a graph of the driver, without data and without named indexes."""
        raise NotImplementedError("define the fixture `kit` in the class of your driver's tests")


def embedder() -> HashingEmbedder:
    """Return the embedder of the memories."""
    return HashingEmbedder(DIMENSIONS)


def query(text: str = "", index_type: IndexType | None = None, k: int = 5, **more: Any) -> SearchQuery:
    """Return a search of memories, by default of one user."""
    scope = more.pop("memory", {"user_id": "u1"})
    return SearchQuery(text=text, index_type=index_type, top_k=k, memory=scope, **more)


async def search(searcher: Searcher, asked: SearchQuery, timeout_s: float = 20) -> SearchRows:
    """Search the graph of ``APP``."""
    return await searcher.search(APP, asked, timeout_s=timeout_s)


def texts(found: SearchRows) -> list[Any]:
    """Return the texts that were found."""
    return [row[0] for row in found.table.rows]


def scores(found: SearchRows) -> list[Any]:
    """Return their scores."""
    return [row[1] for row in found.table.rows]


def ids(found: SearchRows) -> list[str]:
    """Return their ids."""
    at = found.table.columns.index("id")
    return [row[at] for row in found.table.rows]


async def some_memories(count: int = 300, *, seed: int = 1, embedded: float = 0.9) -> list[MemoryBatch]:
    """Return many memories of some scopes."""
    rnd = random.Random(seed)
    said: list[tuple[dict[str, str], list[str]]] = []
    for _ in range(count // 6):
        scope = {"user_id": rnd.choice(NASTY[:6]), "thread_id": rnd.choice(NASTY), "application_id": "shop"}
        if rnd.random() < 0.3:
            del scope["user_id"]
        said.append((scope, [" ".join(rnd.choices(WORDS, k=rnd.randint(1, 9))) for _ in range(6)]))
        if rnd.random() < 0.3:  # equal texts
            said.append(said[-1])
    return await batches(said, embedded=embedded, seed=seed)


def indexed(text: str, index_type: IndexType | None, index_name: str, k: int = 5, **more: Any) -> SearchQuery:
    """Return a search of an index."""
    return SearchQuery(text=text, index_type=index_type, index_name=index_name, top_k=k, **more)


class FailingEmbedder(HashingEmbedder):
    """Raises an error, or never answers."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(DIMENSIONS)
        self.error = error

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Raise the error."""
        if self.error is None:
            await asyncio.Event().wait()
            raise AssertionError
        raise self.error


class OneVector(HashingEmbedder):
    """Knows one vector."""

    def __init__(self, *vector: float, name: str = "hash:8") -> None:
        super().__init__(8)
        self.vector = list(vector)
        self.name = name

    @property
    def model(self) -> str:
        """Return the name."""
        return self.name

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vector for each text."""
        return [self.vector for _ in texts]


async def documents(kit: SearchKit) -> None:
    """Chunks with vectors of (cos, sin), texts, and what they are about."""
    await kit.make_vector_index("chunkEmbeddings", "Chunk", "cosine")
    await kit.make_vector_index("farEmbeddings", "Far", "euclidean")
    await kit.make_fulltext_index("search_chunks", "Chunk", "text", "title")
    await kit.make_fulltext_index("search_bare", "Bare", "text")
    await kit.write(
        "UNWIND range(0, 199) AS i CREATE (c:Chunk {id: i, text: 'filler number ' + toString(i), title: 'T', "
        "embedding: vecf32([cos(i / 100.0), sin(i / 100.0)])})-[:FROM]->(:Document {name: 'D' + toString(i % 3)})",
        "CREATE (:Chunk {id: 'r', text: 'The risks of competition', title: 'Apple', embedding: vecf32([0.0, -1.0])})",
        "CREATE (:Chunk {id: 's', text: 'A risk', title: 'Supply chains of Apple', embedding: vecf32([0.0, -1.0])})",
        "CREATE (:Chunk {text: 'risky without a vector'})",
        "CREATE (:Far {text: 'one', embedding: vecf32([1.0, 0.0])})",
        "CREATE (:Far {text: 'two', embedding: vecf32([3.0, 4.0])})",
        "CREATE (:Bare {text: 'bare'})",
    )
