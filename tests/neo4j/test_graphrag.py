"""Seed-Pin-Expand-Pack on real servers: off, on and up, on and down; both ways in; bounds; the same on both."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any, Final

import neo4j
import pytest
import redis.asyncio as redis
from structlog.testing import capture_logs
from tests.services import waiting
from tests.services.maven import free_port
from tests.services.neo4j import Neo4jServer

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_contracts.clock import SystemClock
from graphweft_contracts.memory import SCOPES, MemoryScope
from graphweft_rules.output.formats import FACTS_START
from graphweft_workers.drivers.falkordb.literals import header
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.engine.plan.core_schema import FACT_KEYS
from graphweft_workers.features.graphrag import expansion as expanding
from graphweft_workers.features.graphrag.caps import Caps
from graphweft_workers.features.graphrag.retriever import UNREACHABLE, GraphContext, HybridRetriever
from graphweft_workers.features.graphrag.safe_cypher import (
    MOST_SCANNED,
    RELATIONSHIPS,
    Template,
    checked,
    rows_of,
    templates,
)
from graphweft_workers.ports.fact_retriever import TOO_SLOW
from graphweft_workers.ports.graph_store import GraphStore, Table
from graphweft_workers.settings.settings import Settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

drops_sockets = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning"
)
"""For tests in which a driver gives a connection up that never came about, and leaves its socket to be collected."""
APP: Final = "shop"
GIVEN: Final = [given for count in range(len(SCOPES) + 1) for given in combinations(SCOPES, count)]
"""All sets of scopes that a retrieval may have."""
NOBODY: Final[Mapping[str, Any]] = dict.fromkeys(SCOPES)
NOW: Final = "2026-02-01T10:00:00.000000Z"
MARKERS: Final = ("GRAPHRAG_EXTENSION_EXECUTED", "GRAPHRAG_CONTEXT_INJECTED", "GRAPHRAG_NOOP_NEO4J_DOWN")


@cache
def named(dialect: Any) -> Mapping[str, Template]:
    """Return the names of all queries by their texts."""
    return {text: name for given in GIVEN for name, text in templates(dialect, given).items()}


@dataclass
class Watched:
    """A store that keeps what it was asked, and how many rows came of it."""

    store: GraphStore
    asked: list[tuple[str, Mapping[str, Any], float]] = field(
        default_factory=list[tuple[str, Mapping[str, Any], float]]
    )
    rows: list[int] = field(default_factory=list[int])

    @property
    def dialect(self) -> Any:
        return self.store.dialect

    async def read(self, app_id: str, statement: str, params: Mapping[str, Any], *, timeout_s: float) -> Table:
        self.asked.append((statement, params, timeout_s))
        table = await self.store.read(app_id, statement, params, timeout_s=timeout_s)
        self.rows.append(len(rows_of(self.dialect, named(self.dialect)[statement], table)))
        return table

    def check(self) -> None:
        """Nothing but the queries that there are was asked, with parameters that are allowed."""
        for statement, params, timeout_s in self.asked:
            values = params.get("asked", params)
            checked(self.dialect, named(self.dialect)[statement], dict.fromkeys(SCOPES) | dict(values))
            assert 0 < timeout_s <= 60
        assert all(count <= 2_100 for count in self.rows)


@dataclass
class Graph:
    """A graph as plain data: nodes by number, and relationships between numbers."""

    nodes: Sequence[tuple[str, Mapping[str, Any]]]
    """Label, properties."""
    edges: Sequence[tuple[int, str, int, Mapping[str, Any]]]


@dataclass
class Place:
    """A server, and how it is filled."""

    store: GraphStore
    url: str

    async def fill(self, graph: Graph) -> None:
        await self.store.prepare(APP, FACT_KEYS)
        async with self._client() as run:
            await run("MATCH (n) WHERE NOT n:__App DETACH DELETE n", {})  # it says that there is a graph
            labels = sorted({label for label, _ in graph.nodes})
            for label in labels:
                rows = [{"p": dict(said), "n": n} for n, (own, said) in enumerate(graph.nodes) if own == label]
                # In another order than they are numbered, as servers give what they find first.
                random.Random(self.store.dialect.name).shuffle(rows)
                for at in range(0, len(rows), 20_000):
                    await run(
                        f"UNWIND $rows AS row CREATE (n:{label}:Any) SET n = row.p, n.__n = row.n"
                        if self.store.dialect.name == "neo4j"
                        else f"UNWIND $rows AS row CREATE (n:{label}:Any) SET n = row.p SET n.__n = row.n",
                        {"rows": rows[at : at + 20_000]},
                    )
            kinds = sorted({kind for _, kind, _, _ in graph.edges})
            for kind in kinds:
                rows = [{"a": a, "b": b, "p": dict(said)} for a, own, b, said in graph.edges if own == kind]
                random.Random(self.store.dialect.name).shuffle(rows)
                for at in range(0, len(rows), 20_000):
                    await run(
                        f"UNWIND $rows AS row MATCH (a:Any {{__n: row.a}}) MATCH (b:Any {{__n: row.b}}) "
                        f"CREATE (a)-[r:{kind}]->(b) SET r = row.p",
                        {"rows": rows[at : at + 20_000]},
                    )

    async def write(self, statement: str) -> None:
        async with self._client() as run:
            await run(statement, {})

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncGenerator[Callable[[str, Mapping[str, Any]], Any]]:
        if self.store.dialect.name == "falkordb":
            client: Any = redis.Redis.from_url(self.url, socket_timeout=60)

            async def ask(statement: str, params: Mapping[str, Any]) -> None:
                text = header(params) + statement
                await client.execute_command("GRAPH.QUERY", f"mozaiks_{APP}", text, "TIMEOUT", 60_000)

            with contextlib.suppress(redis.ResponseError):
                await ask("CREATE INDEX FOR (n:Any) ON (n.__n)", {})
            yield ask
            await client.aclose()
        else:
            with neo4j.GraphDatabase.driver(self.url) as driver:
                driver.execute_query("CREATE INDEX any_n IF NOT EXISTS FOR (n:Any) ON (n.__n)")
                driver.execute_query("CALL db.awaitIndexes(60)")

                async def run(statement: str, params: Mapping[str, Any]) -> None:
                    await asyncio.to_thread(driver.execute_query, statement, dict(params))  # pyright: ignore[reportArgumentType]

                yield run


@pytest.fixture
async def falkordb(url: str) -> AsyncIterator[Place]:
    store = FalkorDBStore(url, write_timeout_ms=5_000)
    yield Place(store, url)
    await store.aclose()


@pytest.fixture
async def on_neo4j(neo4j_server: Neo4jServer) -> AsyncIterator[Place]:
    neo4j_server.empty()
    store = Neo4jStore(neo4j_server.uri, write_timeout_ms=5_000)
    await store.prepare(APP, ())
    await HybridRetriever(store, enabled=True).warm(APP)  # on a busy machine planning takes longer than a question may
    yield Place(store, neo4j_server.uri)
    await store.aclose()


@pytest.fixture(params=["falkordb", "on_neo4j"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientCaps(Caps):
    """Neo4j takes seconds to plan a query, and longer on a busy machine."""

    query_timeout_s: float = 60.0


class Patient(HybridRetriever):
    """Neo4j takes seconds to plan a query that it has not seen before."""

    async def retrieve(
        self,
        app_id: str,
        query_text: str,
        seeds: Iterable[Any] | None = None,
        timeout_s: float = 30.0,
        memory: MemoryScope | None = None,
    ) -> GraphContext:
        return await super().retrieve(app_id, query_text, seeds, timeout_s, memory)


def retriever(store: GraphStore | Watched, **more: Any) -> HybridRetriever:
    given: dict[str, Any] = {"enabled": True, "caps": PatientCaps(), **more}
    return Patient(store, **given)  # type: ignore[arg-type]


def entity(name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "Entity", {"id": name.lower(), "name": name, **more}


SHOP: Final = Graph(
    nodes=[
        entity("Shop", type="Service", description="sells things"),
        entity("Redis", type="Database", description="keeps carts"),
        entity("Linux", type="System"),
        entity("Kernel"),
        ("Document", {"id": "doc-1", "name": "Handbook"}),
        ("Document", {"id": "doc-2", "name": "Handbook 2024"}),
        ("Memory", {"id": "m1", "text": "private words of another user", "name": "private name"}),
        ("Chunk", {"id": "c1", "text": "a chunk"}),
        entity("Ann", type="Person"),
    ],
    edges=[
        (0, "DEPENDS_ON", 1, {"fact": "for carts"}),
        (1, "DEPENDS_ON", 2, {}),
        (2, "CONTAINS", 3, {}),
        (4, "MENTIONS", 1, {}),
        (5, "SUPERSEDES", 4, {}),
        (6, "MENTIONS", 0, {}),
        (7, "MENTIONS", 1, {}),
        (8, "OWNS", 0, {}),
        (8, "KNOWS", 1, {}),
    ],
)


# The three cases of the contract


async def test_case_a_off_nothing_is_asked_and_nothing_is_said(place: Place) -> None:
    await place.fill(SHOP)
    watched = Watched(place.store)
    for settings in (Settings(), Settings(graphrag_enabled=False)):
        with capture_logs() as logs:
            context = await HybridRetriever.of(watched, settings).retrieve(APP, "Redis", [{"id": "doc-1"}])  # type: ignore[arg-type]
        assert context == GraphContext(outcome="disabled")
        assert [each["event"] for each in logs] == ["GRAPHRAG_EXTENSION_EXECUTED"]
    assert watched.asked == []


@drops_sockets
async def test_case_a_off_is_the_default_and_connects_to_nobody() -> None:
    connected = asyncio.Event()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for store in (FalkorDBStore(f"redis://127.0.0.1:{port}"), Neo4jStore(f"bolt://127.0.0.1:{port}")):
        assert (await HybridRetriever(store).retrieve(APP, "Redis")).outcome == "disabled"
        assert not connected.is_set()
        assert (await retriever(store).retrieve(APP, "Redis", timeout_s=1)).outcome == "unavailable"
        assert connected.is_set()
        connected.clear()
        await store.aclose()
    server.close()
    await server.wait_closed()
    gc.collect()


async def test_case_b_on_and_up_facts_are_injected(place: Place) -> None:
    await place.fill(SHOP)
    watched = Watched(place.store)
    with capture_logs() as logs:
        found = HybridRetriever.of(watched, Settings(graphrag_enabled=True))  # type: ignore[arg-type]
        context = await found.retrieve(APP, "what is redis?", timeout_s=120)
    assert context.outcome == "injected"
    assert context.facts == (
        "Redis (Database): keeps carts",
        "Handbook MENTIONS Redis (Database)",
        "Redis (Database) DEPENDS_ON Linux (System)",
        "Shop (Service) DEPENDS_ON Redis (Database): for carts",
        "Linux (System) CONTAINS Kernel",
        "Handbook 2024 SUPERSEDES Handbook",
        "Shop (Service): sells things",
    )
    assert context.text.startswith(FACTS_START + "\n")
    assert all(f"- {fact}\n" in context.text for fact in context.facts)
    assert not context.partial
    assert context.paths == {"B"}
    assert [each["event"] for each in logs] == ["GRAPHRAG_EXTENSION_EXECUTED", "GRAPHRAG_CONTEXT_INJECTED"]
    assert logs[1]["facts"] == 7
    # Nothing of what was asked or found is in the log.
    assert "edis" not in json.dumps(logs)
    watched.check()


@drops_sockets
@pytest.mark.parametrize("kind", ["falkordb", "neo4j"])
async def test_case_c_on_and_down_there_is_no_context_and_no_error(kind: str) -> None:
    port = free_port()
    store: GraphStore = (
        FalkorDBStore(f"redis://127.0.0.1:{port}") if kind == "falkordb" else Neo4jStore(f"bolt://127.0.0.1:{port}")
    )
    with capture_logs() as logs:
        context = await HybridRetriever.of(store, Settings(graphrag_enabled=True)).retrieve(
            APP, "Redis", [{"id": "doc-1"}], timeout_s=2
        )
    assert context == GraphContext(outcome="unavailable", reason=UNREACHABLE)
    ours = [each["event"] for each in logs if each["event"] in MARKERS]
    assert ours == ["GRAPHRAG_EXTENSION_EXECUTED", "GRAPHRAG_NOOP_NEO4J_DOWN"]
    assert [each["reason"] for each in logs if each["event"] == "GRAPHRAG_NOOP_NEO4J_DOWN"] == ["unreachable"]
    await store.aclose()
    gc.collect()


@drops_sockets
async def test_a_server_that_does_not_answer_is_a_server_that_is_down() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for store in (FalkorDBStore(f"redis://127.0.0.1:{port}"), Neo4jStore(f"bolt://127.0.0.1:{port}")):
        with capture_logs() as logs:
            context = await asyncio.wait_for(retriever(store).retrieve(APP, "Redis", timeout_s=0.3), 20)
        assert context.outcome == "unavailable"
        reasons = [each["reason"] for each in logs if each["event"] == "GRAPHRAG_NOOP_NEO4J_DOWN"]
        assert reasons == [TOO_SLOW]
        await store.aclose()
    server.close()
    await server.wait_closed()
    gc.collect()


async def test_a_graph_that_goes_away_leaves_what_was_found(place: Place) -> None:
    await place.fill(SHOP)

    class Leaving(Watched):
        async def read(self, app_id: str, statement: str, params: Mapping[str, Any], *, timeout_s: float) -> Table:
            if len(self.asked) >= 2:
                raise GraphUnavailable("gone")
            return await super().read(app_id, statement, params, timeout_s=timeout_s)

    with capture_logs() as logs:
        context = await retriever(Leaving(place.store)).retrieve(APP, "Redis")
    assert (context.outcome, context.partial) == ("injected", True)
    assert context.facts[0] == "Redis (Database): keeps carts"
    assert [each["event"] for each in logs] == ["GRAPHRAG_EXTENSION_EXECUTED", "GRAPHRAG_CONTEXT_INJECTED"]


@pytest.mark.parametrize(
    ("error", "outcome", "event"),
    [
        (GraphUnavailable("private"), "unavailable", "GRAPHRAG_NOOP_NEO4J_DOWN"),
        (QueryFailed("private", code="timeout"), "unavailable", "GRAPHRAG_NOOP_NEO4J_DOWN"),
        (QueryFailed("private"), "failed", "graphrag_failed"),
        (RuntimeError("private"), "failed", "graphrag_failed"),
        (RecursionError("private"), "failed", "graphrag_failed"),
    ],
)
async def test_it_never_raises(error: Exception, outcome: str, event: str, falkordb: Place) -> None:
    class Failing(Watched):
        async def read(self, app_id: str, statement: str, params: Mapping[str, Any], *, timeout_s: float) -> Table:
            raise error

    with capture_logs() as logs:
        context = await retriever(Failing(falkordb.store)).retrieve(APP, "Redis", [{"id": "a"}])
    assert context.outcome == outcome
    assert [each["event"] for each in logs] == ["GRAPHRAG_EXTENSION_EXECUTED", event]
    assert "private" not in json.dumps(logs)


async def test_a_server_is_warmed_up_by_every_query_there_is(place: Place) -> None:
    await place.fill(SHOP)
    watched = Watched(place.store)
    await HybridRetriever(watched).warm(APP)  # type: ignore[arg-type]
    assert watched.asked == []
    await retriever(watched).warm(APP)
    watched.check()
    given = SCOPES if place.store.dialect.one_parameter else ()
    assert {statement for statement, _, _ in watched.asked} == set(templates(place.store.dialect, given).values())
    await retriever(place.store).warm("no such app")

    class Failing(Watched):
        async def read(self, app_id: str, statement: str, params: Mapping[str, Any], *, timeout_s: float) -> Table:
            raise GraphUnavailable("gone")

    await retriever(Failing(place.store)).warm(APP)


async def test_arguments_of_all_kinds_do_not_raise(falkordb: Place) -> None:
    await falkordb.fill(SHOP)

    def broken() -> Iterable[Any]:
        yield {"id": "doc-1"}
        raise OSError

    for seeds in (None, [], [None, 1, object()], broken(), 5):
        for timeout_s in (5.0, 0.0, -1.0, float("nan"), float("inf")):
            given: Any = seeds
            context = await retriever(falkordb.store).retrieve(APP, "Redis \x00 ' \" \\ $x `", given, timeout_s)
            assert context.outcome in {"injected", "unavailable", "failed"}
    assert (await retriever(falkordb.store).retrieve("no such app", "Redis")).outcome in {"empty", "failed"}


async def test_an_app_without_a_graph_has_no_context(place: Place) -> None:
    other = "other" if place.store.dialect.name == "falkordb" else APP
    assert await retriever(place.store).retrieve(other, "Redis") == GraphContext(outcome="empty")
    await place.fill(SHOP)
    assert await retriever(place.store).retrieve(APP, "nothing of this is there") == GraphContext(outcome="empty")
    assert await retriever(place.store).retrieve(APP, "") == GraphContext(outcome="empty")


# The two ways in


async def test_path_a_documents_lead_to_entities(place: Place) -> None:
    await place.fill(SHOP)
    found = retriever(place.store, caps=PatientCaps(hops=1))
    for id in ("doc-1", "Handbook", "c1"):
        context = await found.retrieve(APP, "", [{"id": id, "text": "", "score": 0.5}])
        assert context.paths == {"A"}, id
        assert "Shop (Service) DEPENDS_ON Redis (Database): for carts" in context.facts
    context = await found.retrieve(APP, "", [{"id": "m1"}])
    assert context.facts[0] == "Shop (Service): sells things"
    assert (await found.retrieve(APP, "", [{"id": "redis"}])).facts[0] == "Redis (Database): keeps carts"
    # A document that the graph does not know leads on by the names in its text.
    context = await found.retrieve(APP, "", [{"id": "unknown", "text": "we moved the carts to Redis"}])
    assert context.facts[0] == "Redis (Database): keeps carts"


async def test_path_b_names_of_the_question_lead_to_entities(place: Place) -> None:
    await place.fill(SHOP)
    for text in ("Redis", "tell me about redis", "REDIS?", "Is Redis's memory full?"):
        context = await retriever(place.store).retrieve(APP, text)
        assert context.facts[0] == "Redis (Database): keeps carts", text
        assert context.paths == {"B"}
    await place.write("MATCH (n:Entity {name: 'Linux'}) SET n.name = 'GNU/lInUx', n.name_key = 'gnu/linux'")
    assert any("GNU/lInUx" in fact for fact in (await retriever(place.store).retrieve(APP, "gnu/Linux")).facts)


LINKS: Final = Graph(
    nodes=[
        entity("Billing", type="Service", name_key="billing", user_id="u1"),
        entity("Ledger", type="Service", name_key="ledger", user_id="u1"),
        entity("billing", type="Team", name_key="billing", user_id="u1"),
        entity("Billing of u2", type="Service", name_key="billing", user_id="u2", description="a secret of u2"),
        ("Memory", {"id": "m1", "text": "my billing is slow on mondays", "user_id": "u1"}),
        ("Memory", {"id": "m2", "text": "my billing of u2 is slow", "user_id": "u2"}),
        ("Episode", {"id": "e1", "content": "the ledger was late", "user_id": "u1"}),
        ("Episode", {"id": "e2", "content": "nothing", "user_id": "u1"}),
    ],
    edges=[(0, "DEPENDS_ON", 1, {"fact": "writes to it"}), (7, "MENTIONS", 1, {})],
)
WRITES: Final = "Billing (Service) DEPENDS_ON Ledger (Service): writes to it"


async def test_path_a_memories_and_episodes_lead_to_what_they_mention_in_any_case(place: Place) -> None:
    await place.fill(LINKS)
    found = retriever(place.store, caps=PatientCaps(hops=1))
    for seeds in (
        ["m1"], [{"id": "m1"}], [{"id": "e1"}], [{"id": "e2"}], [{"text": "my billing is slow on mondays"}],
        [{"id": "unknown", "text": "BILLING!"}],
    ):  # fmt: skip
        given = [{"id": each} if isinstance(each, str) else each for each in seeds]
        context = await found.retrieve(APP, "", given, memory=MemoryScope(user_id="u1"))
        assert context.facts == (WRITES,), seeds
        assert "A" in context.paths


async def test_nobody_is_led_to_the_entities_of_others_or_by_their_memories(place: Place) -> None:
    await place.fill(LINKS)
    found = retriever(place.store)
    own = await found.retrieve(APP, "", [{"id": "m1"}], memory=MemoryScope(user_id="u1"))
    assert "u2" not in own.text
    # The text of a memory of another user leads nowhere, and what it says is not told.
    for scope in (MemoryScope(user_id="u1"), MemoryScope(user_id="u3"), None):
        assert (await found.retrieve(APP, "", [{"id": "m2"}], memory=scope)).outcome == "empty"
    assert (await found.retrieve(APP, "", [{"id": "m1"}], memory=MemoryScope(user_id="u2"))).outcome == "empty"
    theirs = await found.retrieve(APP, "", [{"id": "m2"}], memory=MemoryScope(user_id="u2"))
    assert theirs.facts == ("Billing of u2 (Service): a secret of u2",)


async def test_names_that_are_left_out_are_counted(place: Place) -> None:
    await place.fill(LINKS)
    text = " ".join(f"word{number}" for number in range(10_000))
    seeds = [{"id": f"x{number}", "text": f"{text[10 * number :]}"} for number in range(20)]
    with capture_logs() as logs:
        context = await retriever(place.store).retrieve(
            APP, "", [{"id": "m1"}, *seeds], memory=MemoryScope(user_id="u1")
        )
    assert WRITES in context.facts
    [count] = [each["names"] for each in logs if each["event"] == "graphrag_names_left_out"]
    assert count > 100


async def test_both_paths_add_up(place: Place) -> None:
    await place.fill(SHOP)
    context = await retriever(place.store, caps=PatientCaps(hops=0)).retrieve(APP, "Shop", [{"id": "redis"}])
    assert context.facts == ("Shop (Service): sells things", "Redis (Database): keeps carts")
    assert context.paths == {"A", "B"}


async def test_what_is_not_on_the_list_is_neither_followed_nor_shown(place: Place) -> None:
    await place.fill(SHOP)
    context = await retriever(place.store).retrieve(APP, "Shop and Redis and Ann", [{"id": "m1"}, {"id": "c1"}])
    assert "private" not in context.text
    assert "OWNS" not in context.text
    assert "KNOWS" not in context.text
    assert (await retriever(place.store).retrieve(APP, "Ann")).outcome == "empty"


@pytest.mark.parametrize("hops", [0, 1, 2, 9])
async def test_hops_are_counted(place: Place, hops: int) -> None:
    chain = Graph(
        nodes=[entity(f"N{n}") for n in range(6)],
        edges=[(n, "RELATED_TO", n + 1, {}) for n in range(5)],
    )
    await place.fill(chain)
    context = await retriever(place.store, caps=PatientCaps(hops=hops)).retrieve(APP, "N0")
    assert context.facts == tuple(f"N{n} RELATED_TO N{n + 1}" for n in range(min(hops, 2)))


async def test_what_is_between_hubs_that_are_named_is_found(place: Place) -> None:
    hubs, leaves = 4, 2_000
    nodes = [entity(f"Hub{n}") for n in range(hubs)] + [entity(f"Leaf{n:05}") for n in range(leaves)]
    edges: list[Any] = [(n, "RELATED_TO", hubs + leaf, {}) for n in range(hubs) for leaf in range(leaves)]
    edges += [(one, "RELATED_TO", other, {}) for one in range(hubs) for other in range(one)]
    await place.fill(Graph(nodes=nodes, edges=edges))
    context = await retriever(place.store).retrieve(APP, "Hub0 and Hub1 and Hub2 and Hub3")
    wanted = {f"Hub{one} RELATED_TO Hub{other}" for one in range(hubs) for other in range(one)}
    assert set(context.facts[: len(wanted)]) == wanted


# Who sees what, and since when


@dataclass(frozen=True)
class Model:
    """Which relationships a question comes to, worked out in plain Python, as long as no bound cuts anything off."""

    graph: Graph

    def facts(self, names: Iterable[str], ids: Iterable[str], scope: Mapping[str, str]) -> set[str]:
        pinned = {number for name in names for number in sorted(self._called(name, scope), key=self._order)[:5]}
        for number, (label, said) in enumerate(self.graph.nodes):
            if said["id"] in ids and belongs(said, scope):
                beside = {number} if label == "Entity" else {other for other, _ in self._beside(number, scope)}
                pinned |= {other for other in beside if self.graph.nodes[other][0] == "Entity"}
        known, fresh, found = set(pinned), pinned, set[str]()
        for _ in range(2):
            beyond: set[int] = set()
            for number in fresh:
                for other, fact in self._beside(number, scope):
                    found.add(fact)
                    beyond.add(other)
            fresh = beyond - known
            known |= fresh
        return found

    def _called(self, name: str, scope: Mapping[str, str]) -> Iterable[int]:
        for number, (label, said) in enumerate(self.graph.nodes):
            if label == "Entity" and name == said["name"] and belongs(said, scope):
                yield number

    def _beside(self, number: int, scope: Mapping[str, str]) -> Iterable[tuple[int, str]]:
        for a, kind, b, said in self.graph.edges:
            if kind in RELATIONSHIPS and belongs(said, scope) and holds(said):
                for one, other in ((a, b), (b, a)):
                    if one == number and self._is_shown(other) and belongs(self.graph.nodes[other][1], scope):
                        yield other, said["fact"]

    def _order(self, number: int) -> tuple[bool, str]:
        said = self.graph.nodes[number][1]
        return all(said.get(name) is None for name in SCOPES), said["id"]

    def _is_shown(self, number: int) -> bool:
        return self.graph.nodes[number][0] in ("Entity", "Document")


def belongs(said: Mapping[str, Any], scope: Mapping[str, str]) -> bool:
    own = {name: said[name] for name in SCOPES if said.get(name) is not None}
    if not own:
        return True
    if any(name in own and own[name] != value for name, value in scope.items()):
        return False
    return any(own.get(name) == value for name, value in scope.items())


def holds(said: Mapping[str, Any]) -> bool:
    since, until = said.get("valid_at"), said.get("invalid_at")
    begun = since is None or (isinstance(since, str) and since <= NOW)
    return begun and (until is None or (isinstance(until, str) and until > NOW))


PAST: Final = "2026-01-01T00:00:00.000000Z"
FUTURE: Final = "9999-01-01T00:00:00.000000Z"
OWNERS: Final[Mapping[str, Sequence[Any]]] = {
    "user_id": ("u1", "u2", "u3", "U1", "u1 ", "", "u", "u10", 5, 1.5, True, ["u1"]),
    "agent_id": ("a1", "a2", "u1"),
    "application_id": ("p1", "p2"),
    "thread_id": ("t1", "t2", "u1"),
}


def random_tenants(rnd: random.Random) -> Graph:
    """Few names, each of them in many scopes; of each relationship the fact is another."""

    def owned() -> dict[str, Any]:
        if rnd.random() < 0.4:
            return {}
        named = rnd.sample(SCOPES, k=rnd.choice([1, 1, 1, 2, 3]))
        return {name: rnd.choice(OWNERS[name][: rnd.choice([1, 2, 99])]) for name in named}

    nodes = [
        (rnd.choice([*["Entity"] * 5, "Document", "Memory", "Chunk"]),
         {"id": f"n{n:02}", "name": rnd.choice(["Ann", "Bob", "Eve", "Ida"]), **owned()})
        for n in range(rnd.randint(8, 25))
    ]  # fmt: skip
    edges: list[Any] = []
    times = [*[None] * 12, PAST, FUTURE, "", 5, True]
    for number in range(rnd.randint(25, 45)):
        said = {"fact": f"f{number}", **(owned() if rnd.random() < 0.2 else {})}
        said |= {name: time for name in ("valid_at", "invalid_at") if (time := rnd.choice(times)) is not None}
        ends = [rnd.randrange(len(nodes)) for _ in range(2)]
        edges.append((ends[0], rnd.choice([*RELATIONSHIPS, "RELATED_TO", "OWNS"]), ends[1], said))
    return Graph(nodes=nodes, edges=edges)


async def ask_as_tenants(
    place: Place, rnd: random.Random, *, graphs: int, questions: int, scopes: Sequence[Sequence[str]] = ()
) -> int:
    shown = 0
    for _ in range(graphs):
        graph = random_tenants(rnd)
        await place.fill(graph)
        model = Model(graph)
        watched = Watched(place.store)

        async def ask(names: list[str], ids: list[str], scope: dict[str, str]) -> int:
            memory = MemoryScope(**scope) if scope else None
            context = await retriever(watched).retrieve(  # noqa: B023
                APP, " or ".join(names), [{"id": id} for id in ids], memory=memory
            )
            assert not context.partial, context.reason
            facts = {fact.rpartition(": ")[2] for fact in context.facts}
            assert facts == model.facts(names, ids, scope), (names, ids, scope, graph)  # noqa: B023
            return len(facts)

        asked: list[Any] = []
        for _ in range(questions):
            names = rnd.sample(["Ann", "Bob", "Eve", "Ida"], k=rnd.randint(0, 2))
            ids = [f"n{rnd.randrange(25):02}" for _ in range(rnd.randint(0, 2))]
            given = rnd.choice(scopes) if scopes else rnd.sample(SCOPES, k=rnd.randint(0, 3))
            scope = {name: rnd.choice(OWNERS[name][: rnd.choice([1, 2])]) for name in given}
            asked.append((names, ids, scope))
        for at in range(0, len(asked), 10):
            shown += sum(await asyncio.gather(*(ask(*each) for each in asked[at : at + 10])))
        watched.check()
    return shown


@pytest.mark.long("40")
@pytest.mark.parametrize("graphs", [4, 40])
async def test_nobody_sees_what_belongs_to_others_and_everybody_all_of_their_own(falkordb: Place, graphs: int) -> None:
    assert await ask_as_tenants(falkordb, random.Random(21), graphs=graphs, questions=50) > 50 * graphs


@pytest.mark.long("all")
@pytest.mark.parametrize(
    "scopes", [(), ((), ("user_id",), ("agent_id", "thread_id"))], ids=["all scopes", "some scopes"]
)
async def test_on_neo4j_they_see_the_same(on_neo4j: Place, scopes: Sequence[Sequence[str]]) -> None:
    """The server compiles a set of queries for each set of scopes."""
    assert await ask_as_tenants(on_neo4j, random.Random(22), graphs=4, questions=40, scopes=scopes) > (
        90 if scopes else 200
    )


async def test_what_belongs_to_others_takes_no_place(place: Place) -> None:
    others = 10_000
    nodes = [entity("Ann", user_id="u1", description="mine"), entity("Shop"), entity("Desk", user_id="u1")]
    nodes += [("Entity", {"id": f"x{n}", "name": "Ann", "user_id": f"other{n}"}) for n in range(others)]
    nodes += [("Entity", {"id": f"a{n}", "name": "Ann", "description": "everybody's"}) for n in range(1_000)]
    edges: list[Any] = [(1, "RELATED_TO", 3 + n, {}) for n in range(others)]
    edges += [(1, "RELATED_TO", 2, {"user_id": "other"}) for _ in range(2_000)]
    edges += [(1, "RELATED_TO", 2, {"fact": "seen"}), (0, "AMENDS", 2, {"invalid_at": PAST})]
    await place.fill(Graph(nodes=nodes, edges=edges))
    mine = MemoryScope(user_id="u1")
    watched = Watched(place.store)
    found = retriever(watched)
    assert (await found.retrieve(APP, "Ann", memory=mine)).facts[0] == "Ann: mine"
    assert (await found.retrieve(APP, "", [{"id": "ann"}], memory=mine)).facts == ("Ann: mine",)
    assert (await found.retrieve(APP, "Shop", memory=mine)).facts == ("Shop RELATED_TO Desk: seen",)
    assert (await found.retrieve(APP, "Shop")).outcome == "empty"
    assert (await found.retrieve(APP, "Shop", memory=MemoryScope(user_id="other"))).outcome == "empty"
    assert set((await found.retrieve(APP, "Ann")).facts) == {"Ann: everybody's"}
    watched.check()
    assert all(count <= 100 for count in watched.rows)


# Secrets


async def test_a_secret_in_the_graph_reaches_no_context(place: Place) -> None:
    word = "hunter2-Zx"
    secrets = [
        "AKIA" + "IOSFODNN7EXAMPLE", "sk-" + "proj-Zq3xT9bLm2Kc8VtYwN4rDf6G", "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4",
        f"postgres://ann:{word}@db/shop", f"# password: {word}", f"token:\n  {word}", f"Bearer {word}",
        "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.s5pQ", f"pass\u200bword\uff1a{word}",
        "-----BEGIN PRIVATE KEY-----\nQUJDREVG\n-----END PRIVATE KEY-----",
    ]  # fmt: skip
    nodes: list[Any] = [entity("Vault")]
    edges: list[Any] = []
    for secret in secrets:
        for said in (
            {"name": f"A {secret}"}, {"name": f"B{len(nodes)}", "description": f"see {secret} there"},
            {"name": f"C{len(nodes)}", "type": secret}, {"name": f"D{len(nodes)}", "summary": "x" * 1_480 + secret},
        ):  # fmt: skip
            edges.append((0, "CONTAINS", len(nodes), {"fact": f"by {secret}"}))
            nodes.append(("Entity", {"id": f"e{len(nodes)}", **said}))
    await place.fill(Graph(nodes=nodes, edges=edges))
    shown = ""
    for hop in range(0, len(nodes), 5):
        context = await retriever(place.store, max_chars=1_000_000).retrieve(
            APP, "Vault", [{"id": f"e{n}"} for n in range(hop, hop + 5)]
        )
        shown += context.text
    assert "[REDACTED]" in shown
    for part in (word, "IOSFODNN7", "Zq3xT9", "a1B2c3", "hbGci", "QUJDREVG"):
        assert part not in shown


# Texts


@pytest.mark.soak("neo4j")
@pytest.mark.parametrize("sign", ["\u4e2d", "\u3042", "\u0436", "\u00e9", "\U0001f642", "a"])
async def test_texts_in_all_alphabets_arrive_as_they_are(place: Place, sign: str) -> None:
    lengths = [1, 100, 166, 250, 333, 499, 500, 501, 750, 1_000, 1_250, 1_499, 1_500, 1_501, 2_000]
    nodes = [entity("Hub")] + [entity(f"N{n:04} {sign * 250}"[:250], id=n, description=sign * n) for n in lengths]
    edges = [(0, "RELATED_TO", n + 1, {"fact": sign * length, "name": "OWNS"}) for n, length in enumerate(lengths)]
    await place.fill(Graph(nodes=nodes, edges=edges))
    context = await retriever(place.store, max_chars=10**6).retrieve(APP, "Hub")
    assert context.outcome == "injected"
    assert context.reason is None
    shown = {fact.partition(" OWNS ")[2][1:5]: fact for fact in context.facts if " OWNS " in fact}
    for length in lengths:
        fact = shown[f"{length:04}"]
        rest = fact.partition(": ")[2].rstrip("\u2026")
        assert set(rest) <= {sign}, fact[:40]
        assert len(rest) == length if length <= 300 else 200 <= len(rest) <= 300


class AheadClock(SystemClock):
    """The clock of this machine, which a test can put forward."""

    ahead_s = 0.0
    step_s = 0.0
    """What each look at it takes."""

    def monotonic(self) -> float:
        self.ahead_s += self.step_s
        return time.monotonic() + self.ahead_s


async def test_others_have_their_turn_while_facts_are_packed(falkordb: Place) -> None:
    nodes = [entity("Hub"), *(entity(f"N{n}") for n in range(40))]
    await falkordb.fill(Graph(nodes=nodes, edges=[(0, "RELATED_TO", n + 1, {}) for n in range(40)]))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await waiting.turns()

    seen: set[int] = set()

    clock = AheadClock()
    clock.step_s = 0.002  # so each line takes more than a turn

    def count(text: str) -> int:
        seen.add(turns)
        return len(text)

    beside = asyncio.create_task(other())
    context = await retriever(falkordb.store, max_tokens=8_000, count=count, clock=clock).retrieve(APP, "Hub")
    beside.cancel()
    assert len(context.facts) == 40
    assert len(seen) >= 40


async def test_a_context_for_which_the_time_was_too_short_is_partial(falkordb: Place) -> None:
    await falkordb.fill(SHOP)
    clock, left = AheadClock(), 4

    def count(text: str) -> int:
        nonlocal left
        left -= 1  # the empty block, and each line
        clock.ahead_s += 3_600.0 if left == 0 else 0.0
        return len(text)

    slow = retriever(falkordb.store, max_tokens=8_000, count=count, clock=clock)
    context = await slow.retrieve(APP, "Redis")
    assert (context.outcome, context.partial, context.reason) == ("injected", True, TOO_SLOW)
    assert len(context.facts) == 3
    left = 1
    context = await slow.retrieve(APP, "Redis")
    assert (context.outcome, context.facts, context.reason) == ("unavailable", (), TOO_SLOW)


# Bounds


def random_graph(rnd: random.Random, *, texts: bool = True) -> Graph:
    words = [
        "Redis",
        "redis",
        "Shop",
        "Ärger",
        "日本",
        "🙂",
        "\uffee",
        "a b",
        "A",
        "Z",
        "é",
        "e\u0301",
        "'",
        '"',
        "\\",
        "$x",
        "x" * 600,
    ]
    labels = ["Entity", "Entity", "Entity", "Entity", "Document", "Memory", "Chunk", "Other"]
    values: list[Any] = [*words, 5, 1.5, True, ["list"], "", " ", "y" * 1_600]
    count = rnd.randint(1, 60)
    nodes: list[tuple[str, dict[str, Any]]] = []
    for n in range(count):
        said = {
            name: rnd.choice(values)
            for name in ("name", "type", "description", "title", "summary")
            if rnd.random() < 0.5
        }
        if rnd.random() < 0.7:
            said["name"] = f"{rnd.choice(words[:8])}{rnd.randrange(20)}"
        nodes.append((rnd.choice(labels), {"id": f"n{n}", **said}))
    kinds = [*RELATIONSHIPS, "OWNS", "RELATES_TO", "references"]
    edges: list[Any] = []
    kinds = rnd.choices(kinds, k=rnd.choice([1, 3, 10]))
    for _ in range(rnd.randint(0, 8 * count)):
        fact = {"fact": rnd.choice(values)} if texts and rnd.random() < 0.5 else {}
        # Some nodes have most of the relationships.
        ends = [int(count * rnd.random() ** rnd.choice([1, 3])) for _ in range(2)]
        edges.append((ends[0], rnd.choice(kinds), ends[1], fact))
    return Graph(nodes=nodes, edges=edges)


def random_question(rnd: random.Random, graph: Graph) -> tuple[str, list[dict[str, Any]], Caps]:
    names = [str(said["name"]) for _, said in graph.nodes if "name" in said]
    text = " and ".join(rnd.choices(names or ["x"], k=rnd.randint(0, 3)))
    seeds = [{"id": said["id"], "score": rnd.random()} for _, said in rnd.choices(graph.nodes, k=rnd.randint(0, 4))]
    caps = PatientCaps(
        hops=rnd.choice([-1, 0, 1, 2, 3, 99]),
        limit=rnd.choice([-5, 1, 2, 7, 30, 100, 101, 10**9]),
        results=rnd.choice([-5, 1, 3, 20, 50, 51, 10**9]),
    )
    return text, seeds, caps


def expected_edges(graph: Graph) -> set[tuple[str, str, str]]:
    def named(number: int) -> str:
        said = graph.nodes[number][1]
        return next((str(said[key]) for key in ("name", "title", "id") if type(said.get(key)) in {str, int}), "")

    return {(named(a), kind, named(b)) for a, kind, b, _ in graph.edges if kind in RELATIONSHIPS}


async def test_both_servers_give_the_same_context_within_all_bounds(
    falkordb: Place, on_neo4j: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # If a node has more relationships of a type than are read, each server reads others. Here none has.
    monkeypatch.setattr(expanding, "_LEAST_SCANNED", (MOST_SCANNED, MOST_SCANNED))
    rnd = random.Random(1)
    injected = 0
    for number in range(25):
        graph = random_graph(rnd)
        for place in (falkordb, on_neo4j):
            await place.fill(graph)
        for _ in range(4):
            text, seeds, caps = random_question(rnd, graph)
            contexts: list[GraphContext] = []
            for place in (falkordb, on_neo4j):
                watched = Watched(place.store)
                context = await retriever(watched, caps=caps).retrieve(APP, text, seeds, timeout_s=120)
                watched.check()
                assert len(watched.asked) <= 6
                assert len(context.facts) <= min(50, max(1, caps.results))
                assert context.outcome in {"injected", "empty"}
                contexts.append(context)
            assert contexts[0] == contexts[1], (number, text, seeds, caps)
            injected += contexts[0].outcome == "injected"
    assert injected > 30


async def test_facts_are_true(falkordb: Place) -> None:
    rnd = random.Random(12)
    seen = 0
    for _ in range(15):
        graph = random_graph(rnd, texts=False)
        await falkordb.fill(graph)
        known = {f"{a} {kind} {b}" for a, kind, b in expected_edges(graph)}
        text, seeds, _ = random_question(rnd, graph)
        context = await retriever(falkordb.store).retrieve(APP, text, seeds, timeout_s=120)
        for fact in context.facts:
            kinds = [kind for kind in RELATIONSHIPS if f" {kind} " in fact]
            if kinds and "(" not in fact and "\u2026" not in fact:
                assert fact in {" ".join(each.split()) for each in known}
                seen += 1
    assert seen > 10


@pytest.mark.long("on_neo4j")
async def test_hubs_cost_no_more_than_their_bounds(place: Place) -> None:
    count = 20_000
    nodes = [entity("Hub"), entity("Second"), ("Document", {"id": "doc", "name": "Doc"})]
    nodes += [entity(f"Leaf{n}", type="T") for n in range(count)]
    nodes += [("Memory", {"id": f"m{n}"}) for n in range(2_000)]
    first = len(nodes) - 2_000
    edges: list[Any] = [(0, "RELATED_TO", 3 + n, {}) for n in range(count)]
    edges += [(first + n, "MENTIONS", 0, {}) for n in range(2_000)]
    edges += [(2, "MENTIONS", 3 + n, {}) for n in range(2_000)]
    edges += [(1, "DEPENDS_ON", 0, {}), (0, "AMENDS", 1, {})]
    await place.fill(Graph(nodes=nodes, edges=edges))
    rnd = random.Random(13)
    questions: list[tuple[str, list[dict[str, Any]]]] = [
        ("Hub", []), ("Second", []), ("Hub Second Leaf7", []), ("", [{"id": "doc"}]), ("Leaf5", []),
        ("", [{"id": f"leaf{n}"} for n in range(20)]), ("", [{"id": "m5"}]),
    ]  # fmt: skip
    for text, seeds in questions:
        for _ in range(2):
            caps = PatientCaps(
                hops=rnd.choice([1, 2, 50]), limit=rnd.choice([1, 10, 100, 10**6]), results=rnd.choice([1, 50, 10**6])
            )
            watched = Watched(place.store)
            # A scan of all that a hub has takes longer than this allows a query, on both servers.
            context = await retriever(watched, caps=caps).retrieve(APP, text, seeds, timeout_s=120)
            watched.check()
            assert not context.partial
            assert context.outcome in {"injected", "empty"}
            assert len(context.facts) <= caps.results <= 50
            assert sum(watched.rows) <= 5_000
            assert len({name for fact in context.facts for name in fact.replace(" (T)", "").split(" ")[::2]}) <= 100
    # One type of many relationships does not keep the rare ones out.
    context = await retriever(place.store).retrieve(APP, "Hub")
    assert {"Hub AMENDS Second", "Second DEPENDS_ON Hub"} <= set(context.facts)


async def test_whatever_is_set_the_caps_hold(falkordb: Place) -> None:
    rnd = random.Random(14)
    await falkordb.fill(random_graph(rnd))
    for _ in range(40):
        settings = Settings(
            graphrag_enabled=True,
            graph_expand_max_hops=rnd.choice([0, 1, 2, 3, 10**6]),
            graph_expand_limit=rnd.choice([1, 2, 100, 101, 10**9]),
            graph_max_results=rnd.choice([1, 50, 51, 10**9]),
            graphrag_query_timeout_ms=rnd.choice([1_000, 60_000]),
        )
        watched = Watched(falkordb.store)
        found = HybridRetriever.of(watched, settings, max_chars=10**6)  # type: ignore[arg-type]
        context = await found.retrieve(APP, "", [{"id": f"n{rnd.randrange(60)}"} for _ in range(25)])
        watched.check()
        assert len(context.facts) <= min(50, settings.graph_max_results)
        hops = [params for statement, params, _ in watched.asked if "$scan" in statement]
        assert len(hops) <= min(2, settings.graph_expand_max_hops) + 1  # and one from documents to entities
        assert all(len(params["handles"]) <= min(100, max(20, settings.graph_expand_limit)) for params in hops)


@pytest.mark.long
async def test_the_work_on_a_hub_is_bounded(falkordb: Place) -> None:
    """By what the server itself says that it did, and not by a clock."""
    client: Any = redis.Redis.from_url(falkordb.url, socket_timeout=60)
    count = 30_000
    nodes = [entity("Hub"), *(("Memory", {"id": f"m{n}"}) for n in range(count))]
    await falkordb.fill(Graph(nodes=nodes, edges=[(n + 1, "MENTIONS", 0, {}) for n in range(count)]))
    [[hub]] = (await falkordb.store.read(APP, "MATCH (n:Entity) RETURN id(n)", {}, timeout_s=120)).rows
    text, params = checked(
        falkordb.store.dialect,
        "neighbours",
        {"handles": [hub], "scan": 200, "each": 100, "most": 100, **NOBODY, "now": NOW},
    )
    plan = await client.execute_command("GRAPH.PROFILE", f"mozaiks_{APP}", header(params) + text)
    produced = [int(line.split(b"Records produced: ")[1].split(b",")[0]) for line in plan]
    assert max(produced) <= 200
    await client.aclose()


async def test_the_server_is_given_what_is_left_of_the_time(falkordb: Place) -> None:
    await falkordb.fill(SHOP)
    watched = Watched(falkordb.store)
    await retriever(watched, caps=Caps(query_timeout_s=0.75)).retrieve(APP, "Redis", timeout_s=30)
    assert {timeout_s for _, _, timeout_s in watched.asked} == {0.75}
    watched = Watched(falkordb.store)
    await retriever(watched, caps=Caps(query_timeout_s=60)).retrieve(APP, "Redis", timeout_s=3)
    assert watched.asked
    assert all(timeout_s <= 3 for _, _, timeout_s in watched.asked)
