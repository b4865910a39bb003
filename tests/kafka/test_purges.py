"""What is erased is not served by any responder, also not while the graph is unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, override

import pytest
from tests.redis.test_answering import request, warm
from tests.services.buses import applied, mutation_bus
from tests.services.layouts import spread
from tests.services.rules import load_rules

from graphweft import Client, Event
from graphweft.transports.registry import make_transport
from graphweft_contracts import BusUnavailable, ContextReply
from graphweft_contracts.memory import MemoryScope, memory_id
from graphweft_contracts.search import SearchQuery
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.features.graphrag.retriever import HybridRetriever
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import Write, WriteResult
from graphweft_workers.ports.purges import Purge, Purges, purges_after, put_purge
from graphweft_workers.support.timing import RetrievalTiming, Timing

pytestmark = pytest.mark.integration

APPS = ("shop", "shop_x")
RULES = """
version: "1.0"
injection_rules:
  - name: memories
    agents: [Counter]
    queries:
      - {id: m, cypher: "MATCH (m:Memory) RETURN m.text AS text ORDER BY text", inject_as: memories}
mutation_rules:
  - name: people
    events: [person.met]
    mutations:
      - id: p
        cypher: "MERGE (e:Entity {id: $name}) SET e.name = $name, e.description = 'one of the shop'"
        params: {name: $event.name}
"""


class Watching(FalkorDBStore):
    """A store that notes what was announced when something is erased."""

    bus: Bus
    seen: Sequence[Purge] | None = None

    @override
    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        if self.seen is None and any(write.query and "DETACH DELETE" in write.query.statement for write in writes):
            self.seen = (await purges_after(self.bus.purges, None)).found
        return await super().apply(app_id, partition, writes)


class Setup:
    """A worker and two responders, each with connections of its own, and a graph server that can be stopped."""

    def __init__(self, bus: Bus, store: Watching, client: Client, server: EmbeddedServer) -> None:
        self.bus = bus
        self.store = store
        self.client = client
        self.server = server
        self.responders: list[ContextPipeline] = []
        self.facts: list[HybridRetriever] = []

    async def emit(self, *events: Event) -> None:
        assert all(await self.client.emit_all(events, wait_s=120))
        await applied(self.bus)

    @contextlib.contextmanager
    def stopped(self) -> Any:
        assert self.server.process is not None
        pid = self.server.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    async def answers(self, app_id: str, budget_ms: int = 1_000) -> list[ContextReply]:
        asked = [each.answer(request(app_id=app_id, budget_ms=budget_ms)) for each in self.responders]
        return list(await asyncio.gather(*asked))


@pytest.fixture
async def setup(own_bus_url: str | None, url: str, tmp_path: Path) -> AsyncIterator[Setup]:
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop" / "graph_injection.yaml").write_text(RULES)
    rules, address = load_rules(tmp_path), own_bus_url or url
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="graphweft-purges-"))
        server = EmbeddedServer(Path(folder), fsync="everysec")
        await server.start()
        stack.push_async_callback(server.stop)
        graph_url = f"unix://{server.socket}"
        bus = await stack.enter_async_context(contextlib.aclosing(mutation_bus(address, spread(2), lease_s=5.0)))
        store = await stack.enter_async_context(contextlib.aclosing(Watching(graph_url)))
        store.bus = bus
        client = await stack.enter_async_context(Client(transport=make_transport(address, new=spread(2))))
        setup = Setup(bus, store, client, server)
        worker = MutationWorker(bus, store, rules, name="w")
        working = asyncio.create_task(worker.run())
        for _ in range(2):
            own = await stack.enter_async_context(contextlib.aclosing(mutation_bus(address, spread(2), lease_s=5.0)))
            graph = await stack.enter_async_context(contextlib.aclosing(FalkorDBStore(graph_url)))
            timing = Timing(retrieval=RetrievalTiming(pause=0.0, least_pause_s=0.0))
            facts = HybridRetriever(graph, enabled=True)
            pipeline = ContextPipeline(rules, graph, bus=own, index_bytes=10 * 1024**2, facts=facts, timing=timing)
            setup.facts.append(facts)
            stack.push_async_callback(pipeline.aclose)
            assert pipeline.purges is not None
            await pipeline.purges.follow()
            setup.responders.append(pipeline)
        yield setup
        worker.stop()
        await working


def add(app_id: str, user: str) -> Event:
    data = {"messages": [{"role": "user", "text": f"{user} of {app_id}"}], "user_id": user}
    return Event.create("memory.add", app_id=app_id, chat_id=user, id=f"add-{user}", source="/t", data=data)


ERASING = {
    "erase": Event.create("memory.erase", app_id="shop", chat_id="ada", data={"user_id": "ada"}),
    "forget": Event.create(
        "memory.forget", app_id="shop", chat_id="ada", data={"memory_ids": [memory_id("/t", "add-ada", 0)]}
    ),
}


@pytest.mark.long("redis-forget")
@pytest.mark.soak("kafka")
@pytest.mark.parametrize("how", ERASING)
async def test_no_responder_serves_what_was_erased_while_the_graph_is_away(setup: Setup, how: str) -> None:
    await setup.emit(*(add(app_id, user) for app_id in APPS for user in ("ada", "bob")))
    for app_id in APPS:
        for responder in setup.responders:
            assert "ada of" in (await warm(responder, app_id=app_id)).text
    await setup.emit(ERASING[how])
    assert setup.store.seen is not None
    assert [each.app_id for each in setup.store.seen] == ["shop"]  # before it took effect
    with setup.stopped():
        for reply in await setup.answers("shop"):
            assert (reply.blocks, "ada" in reply.text) == ((), False)
        for reply in await setup.answers("shop_x"):  # nothing was erased of it
            assert "ada of shop_x" in reply.text
            assert reply.blocks[0].age_ms is not None
    for responder in setup.responders:
        assert (await warm(responder, app_id="shop")).text.count("bob of shop") == 1
    with setup.stopped():
        for reply in await setup.answers("shop"):
            assert "bob of shop" in reply.text  # read after the erasure
            assert "ada" not in reply.text


@pytest.mark.long("kafka-erase", "redis-forget")
@pytest.mark.soak("kafka-forget")
@pytest.mark.parametrize("how", ERASING)
async def test_no_responder_keeps_texts_of_facts_after_an_erasure(setup: Setup, how: str) -> None:
    people = [
        Event.create("person.met", app_id="shop", chat_id="c", workflow="Shop", data={"name": name})
        for name in ("Ada", "Bob")
    ]
    await setup.emit(add("shop", "ada"), *people)

    def kept() -> list[int]:
        return [each.kept_chars for each in setup.facts]

    for facts in setup.facts:
        assert (await facts.retrieve("shop", "Who are Ada and Bob?")).text.count("one of the shop") == 2
    assert 0 not in kept()
    await setup.emit(ERASING[how])
    for responder in setup.responders:
        assert responder.purges is not None
        await responder.purges.follow()
    assert kept() == [0, 0]


async def test_no_responder_keeps_texts_of_facts_before_the_graph_has_an_erasure(setup: Setup) -> None:
    """A worker announces an erasure before it applies it: a question in between reads what is erased next."""
    [facts, _], [responder, _] = setup.facts, setup.responders
    partition = spread(2).partition_of("shop/c")

    async def met(name: str) -> None:
        await setup.emit(Event.create("person.met", app_id="shop", chat_id="c", workflow="Shop", data={"name": name}))

    async def asked() -> int:
        assert "one of the shop" in (await facts.retrieve("shop", "Who is Ada?")).text
        return facts.kept_chars

    await met("Ada")
    [end] = [each.end for each in await setup.bus.partitions.status() if each.id == partition]
    first, dash, second = end.partition("-")
    following = f"{first}-{int(second) + 1}" if dash else str(int(first) + 1)
    assert await asked() > 0
    await put_purge(setup.bus.purges, Purge(app_id="shop", partition=partition, offset=following))
    assert responder.purges is not None
    await responder.purges.follow()
    assert [await asked(), await asked()] == [0, 0]
    await met("Bob")
    await asked()
    assert await asked() > 0


@pytest.mark.long("redis-forget")
@pytest.mark.soak("kafka")
@pytest.mark.parametrize("how", ERASING)
async def test_no_responder_keeps_an_index_of_what_was_erased(setup: Setup, how: str) -> None:
    await setup.emit(*(add(app_id, user) for app_id in APPS for user in ("ada", "bob")))

    async def indexed(responder: ContextPipeline, app_id: str, user: str, count: int) -> None:
        hits = responder.indexes.hits
        for number in range(100):  # a search that is repeated is answered from the cache
            asked: dict[str, Any] = {"text": f"{user} of {number}", "index_type": "fulltext", "of": "memories"}
            search = SearchQuery(memory=MemoryScope(user_id=user), **asked)
            reply = await responder.answer(request(app_id=app_id, search=search, budget_ms=120_000))
            assert len(reply.results) == count, reply
            if responder.indexes.hits > hits:
                return
            await responder.indexes.built()
        raise AssertionError

    for responder in setup.responders:
        for app_id in APPS:
            for user in ("ada", "bob"):
                await indexed(responder, app_id, user, 1)
        assert responder.counts()["index_entries"] == 4
    await setup.emit(ERASING[how])
    for responder in setup.responders:
        assert responder.purges is not None
        await responder.purges.follow()
        assert {key[0] for key in responder.indexes._kept} == {"shop_x"}
        search = SearchQuery(text="ada of", memory=MemoryScope(user_id="ada"), index_type="fulltext")
        assert not (await responder.answer(request(app_id="shop", search=search, budget_ms=120_000))).results
        await indexed(responder, "shop", "bob", 1)  # the graph has the erasure, so it is indexed again


async def test_without_word_from_the_bus_no_last_rows_are_served(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    await setup.emit(add("shop", "ada"))
    [responder, _] = setup.responders
    await warm(responder, app_id="shop")

    async def away(mark: int | None) -> Purges:
        raise BusUnavailable("away")

    assert responder.purges is not None
    monkeypatch.setattr(responder.purges.log, "after", away)
    with setup.stopped():
        unsure, sure = await setup.answers("shop")
    assert (unsure.blocks, unsure.reason) == ((), sure.missing[0].reason)
    assert "its last rows are not shown" in unsure.missing[0].detail
    assert (sure.blocks, "not shown" in sure.missing[0].detail) == ((), False)  # it had none


@pytest.mark.soak("kafka")
async def test_rows_of_a_graph_before_an_erasure_are_not_kept(setup: Setup) -> None:
    """The erasure is announced and not applied yet: what is read now may hold what it removes."""
    await setup.emit(add("shop", "ada"))
    [responder, _] = setup.responders
    await warm(responder, app_id="shop")
    marks = await setup.store.checkpoints("shop", timeout_s=120)
    [(partition, mark)] = marks.items()
    later = "9999999999999-0" if "-" in mark.offset else "9999999"
    await put_purge(setup.bus.purges, Purge(app_id="shop", partition=partition, offset=later))
    assert "ada of" in (await responder.answer(request(app_id="shop"))).text  # it is not erased
    assert responder.purges is not None
    await responder.purges.follow()
    assert "ada of" in (await responder.answer(request(app_id="shop"))).text
    with setup.stopped():
        reply, _ = await setup.answers("shop")
    assert reply.blocks == ()
