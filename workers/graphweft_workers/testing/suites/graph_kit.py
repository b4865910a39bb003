"""What the suite of graphs needs of a driver, and what its tests share."""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
import pytest_asyncio

from graphweft_rules.cypher.query import Cypher, parse
from graphweft_workers.ports.graph_store import START, Checkpoint, GraphStore, Write

APP: Final = "shop"
"""The app of the tests."""
COUNT: Final = "MERGE (c:Counter {id: 1}) ON CREATE SET c.n = 1 ON MATCH SET c.n = c.n + 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFeatures:
    """What a driver may leave out. The tests skip it, and name it."""

    graph_templates: bool = True
    """Stores with another ``graph_template`` hold other graphs on the same server."""
    restart: bool = True
    """``GraphKit.start`` and ``GraphKit.kill`` work."""


class GraphKit(ABC):
    """One graph server, running and without data, and what the tests do to it past the store."""

    features = GraphFeatures()
    new_kinds = 20
    """How many new labels meet several writers at once; fewer where the server takes long over each."""

    @abstractmethod
    def store(self, **options: Any) -> GraphStore:
        """Return a store on the server; the options are ``write_timeout_ms`` and ``graph_template``."""

    @abstractmethod
    def unavailable_store(self) -> GraphStore:
        """Return a store on a server that does not answer."""

    @abstractmethod
    def run(self, statement: str) -> Sequence[Sequence[Any]]:
        """Run a statement in the graph of ``APP``, and return the rows."""

    @abstractmethod
    def indexes(self) -> Sequence[tuple[str, str]]:
        """Return (label, property) of each index in the graph of ``APP``."""

    async def start(self) -> None:
        """Start the server again, with what it kept."""
        raise NotImplementedError

    async def kill(self) -> None:
        """End the server as a crash does."""
        raise NotImplementedError


class GraphFixtures:
    """The fixtures of the suites. A driver's tests define ``kit``."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def kit(self) -> GraphKit:
        """Return the server of the driver, without data."""
        raise NotImplementedError("define the fixture `kit` in the class of your driver's tests")

    @pytest.fixture
    def own_kit(self, kit: GraphKit) -> GraphKit:
        """Return a server that may be killed; another one if tests share that of ``kit``."""
        return kit

    @pytest_asyncio.fixture
    async def graph(self, kit: GraphKit) -> AsyncIterator[GraphStore]:
        """Return a store whose app has an empty graph."""
        async with contextlib.aclosing(kit.store(write_timeout_ms=3_000)) as store:
            await store.prepare(APP, [])
            await store.progress(APP, 0)
            yield store


def query(text: str) -> Cypher:
    """Return the query of a mutation."""
    return parse(text, role="mutation")


def write(
    text: str | None, *rows: dict[str, Any], before: Checkpoint, after: Checkpoint, note: str | None = None
) -> Write:
    """Return a write of rows, by default of one without values."""
    return Write(query=query(text) if text else None, rows=rows or ({},), before=before, after=after, note=note)


def chain(*texts: str, start: Checkpoint = START, plan: str = "", **params: Any) -> list[Write]:
    """Writes of one row each that move the offset by one each."""
    offset = int(start.offset or 0)
    checkpoints = [start, *(Checkpoint(offset=str(offset + number + 1), plan=plan) for number in range(len(texts)))]
    return [
        write(text, {name: params[name] for name in query(text).columns if name in params}, before=before, after=after)
        for text, (before, after) in zip(texts, itertools.pairwise(checkpoints), strict=True)
    ]


async def apply_all(graph: GraphStore, writes: Sequence[Write]) -> None:
    """Apply writes of partition 0 of which none fails; a store may apply the first ones only."""
    while writes:
        applied = await graph.apply(APP, 0, writes)
        assert applied.failure is None
        assert applied.count
        writes = writes[applied.count :]


async def value(graph: GraphStore, statement: str) -> Any:
    """Return the first value that a query returns; None without rows."""
    rows = (await graph.read(APP, statement, {}, timeout_s=120)).rows
    return rows[0][0] if rows else None


async def checkpoint(graph: GraphStore, partition: int = 0) -> Checkpoint:
    """Return the checkpoint of a partition."""
    return (await graph.progress(APP, partition)).checkpoint
