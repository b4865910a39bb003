"""Memories get their vectors: through the log, once each, whoever is killed and however the embedder fails."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from pydantic import SecretStr
from structlog.testing import capture_logs
from tests.declared_fields import check_declared
from tests.services.buses import applied
from tests.services.layouts import spread
from tests.services.models import Failure, ModelServer, embedding_of
from tests.services.rules import TURNS, load_rules, rule_set
from tests.services.waiting import looks, until

from graphweft import Event
from graphweft.transport import Outgoing, Transport
from graphweft.transports.embedded import embedded_url
from graphweft.transports.registry import make_transport
from graphweft_contracts import BusUnavailable, GraphUnavailable, channels, wire
from graphweft_contracts.memory import derived_id, memory_id
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.embedding.cached import CachedEmbedder
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.embedding.openai import OpenAIEmbedder
from graphweft_workers.embedding.protocol import Embedder, EmbedderUnavailable
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.engine.job_worker import JobWorker
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.features.memory.embedding import SOURCE, EmbeddingJob
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.event_log import Entry, EventLog
from graphweft_workers.ports.graph_store import GraphStore, Write, WriteResult
from graphweft_workers.ports.job import Job, JobEvent
from graphweft_workers.ports.partitions import Partitions
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.timing import JobTiming, Timing
from graphweft_workers.wiring.connections import make_bus

pytestmark = pytest.mark.integration

T0 = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
APP = "shop"
PARTITIONS = 2
KILLED_EVENTS = 300 if "GRAPHWEFT_SEED" in os.environ else 180
"""A process is killed after each 20 events but the first 100."""
NO_RULES = rule_set()


def add(number: int, *texts: str, chat: str = "c1") -> Event:
    return Event.create(
        "memory.add",
        app_id=APP,
        chat_id=chat,
        data={"messages": [{"role": "user", "text": text} for text in texts], "user_id": f"u{number % 3}"},
        id=f"e{number}",
        source="/test",
        time=T0 + timedelta(seconds=number),
    )


def turn(number: int, chat: str = "c1") -> Event:
    return Event.create(
        "agent.turn_complete", app_id=APP, chat_id=chat, workflow="Support", data={"agent_name": "Ann"},
        id=f"t{number}", source="/test", time=T0 + timedelta(seconds=number),
    )  # fmt: skip


def outgoing(event: Event, **fields: bytes) -> Outgoing:
    more = {name.encode(): value for name, value in fields.items()}
    return Outgoing(key=event.key, fields={**wire.encode(event), **more})


async def put(transport: Transport, events: Sequence[Event]) -> None:
    await transport.append([outgoing(event) for event in events])


@pytest.fixture
async def memory_bus(url: str) -> AsyncIterator[Bus]:
    made = redis_bus(url, new=spread(PARTITIONS), group=channels.MEMORY_GROUP)
    yield made
    await made.aclose()


class Counting(HashingEmbedder):
    """Knows what it was asked for; waits while it is told to."""

    def __init__(self) -> None:
        super().__init__(32)
        self.texts: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.texts += texts
        await self.open.wait()
        return await super().embed(texts)


@asynccontextmanager
async def working(*workers: JobWorker | MutationWorker) -> AsyncGenerator[None]:
    """Run workers beside the block, in which none ends; then they end in order."""
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
        assert not any(task.done() for task in tasks), tasks
    finally:
        for worker in workers:
            worker.stop()
        async with asyncio.timeout(120):
            await asyncio.gather(*tasks)


async def rows(graph: GraphStore, cypher: str) -> list[tuple[Any, ...]]:
    return list((await graph.read(APP, cypher, {}, timeout_s=120)).rows)


async def vectors(graph: GraphStore) -> dict[str, tuple[Any, Any]]:
    found = await rows(graph, "MATCH (m:Memory) RETURN m.text, m.embedding, m.embedding_model")
    return {text: (embedding, model) for text, embedding, model in found}


async def entries(bus: Bus) -> list[Entry]:
    return [entry for number in range(PARTITIONS) for entry in await bus.log.after(number, "", limit=10_000)]


async def embedded_events(bus: Bus) -> list[Event]:
    events = [wire.decode(entry.fields, received=entry.received) for entry in await entries(bus)]
    found = [event for event in events if event.type == "memory.embedded"]
    check_declared(found)
    return found


def near(vector: Sequence[float]) -> Any:
    return pytest.approx(vector, abs=1e-6)


@pytest.fixture(params=["redis", "kafka"])
def bus_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("url" if request.param == "redis" else "kafka_url")
    return url


@pytest.mark.soak("kafka")
async def test_each_memory_gets_the_vector_of_its_text(bus_url: str, graph: FalkorDBStore) -> None:
    settings = Settings(bus_url=SecretStr(bus_url), partitions=PARTITIONS, order="chat", lease_s=3.0)
    buses = [make_bus(settings, group=group) for group in (channels.MUTATION_GROUP, channels.MEMORY_GROUP)]
    embedder = HashingEmbedder(32)
    made = make_transport(bus_url, new=spread(PARTITIONS))
    events = [add(number, f"tea {number}", f"coffee {number}", chat=f"c{number % 5}") for number in range(40)]
    await put(made, events)
    try:
        async with working(
            MutationWorker(buses[0], graph, NO_RULES, name="m"),
            JobWorker(buses[1], made, EmbeddingJob(embedder), name="e"),
        ):
            await applied(buses[1])
            await applied(*buses)
            await put(made, [add(99, "one more")])  # to workers that wait
            await until(lambda: is_embedded(graph, "one more"))
        texts = [message["text"] for event in events for message in event.data["messages"]] + ["one more"]
        wanted = {
            text: (near(vector), "hash:32") for text, vector in zip(texts, await embedder.embed(texts), strict=True)
        }
        assert await vectors(graph) == wanted
        made_events = await embedded_events(buses[0])
        assert len(made_events) == 81
        [one] = [event for event in made_events if event.data["memory_id"] == memory_id("/test", "e7", 1)]
        assert (one.id, one.source) == (derived_id("/test", "e7", "embedded", 1, "hash:32"), SOURCE)
        assert (one.appid, one.chatid, one.workflow, one.time) == (APP, "c2", None, events[7].time)
        assert await letter_count(buses[0].dead_letters) == 0
    finally:
        await made.aclose()
        for bus in buses:
            await bus.aclose()


async def is_embedded(graph: GraphStore, text: str) -> bool:
    return (await vectors(graph)).get(text, (None, None))[0] is not None


class FirstCommitsFail:
    """Partitions of a bus that goes away between what is put on it and the commit behind that."""

    def __init__(self, inner: Partitions, failures: int) -> None:
        self._inner = inner
        self.left = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, *given: Any) -> None:
        if self.left:
            self.left -= 1
            raise BusUnavailable("cut", retry_after_s=0.01)
        await self._inner.commit(*given)


async def test_what_is_repeated_in_front_of_a_commit_is_the_same_event(
    bus: Bus, memory_bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    events = [add(number, f"text {number}") for number in range(20)]
    await put(transport, events)
    failing = FirstCommitsFail(memory_bus.partitions, 3)
    with capture_logs():
        async with working(
            JobWorker(replace(memory_bus, partitions=failing), transport, EmbeddingJob(HashingEmbedder(32)), name="e"),
            MutationWorker(bus, graph, NO_RULES, name="m"),
        ):
            await until(lambda: failing.left == 0)
            await applied(memory_bus)
            await applied(bus)
    found = [dict(entry.fields) for entry in await entries(bus)]
    embedded = [fields for fields in found if b"memory.embedded" in fields[wire.DATA]]
    assert len(embedded) == 80
    assert len({fields[wire.DATA] for fields in embedded}) == 20
    assert len(await vectors(graph)) == 20
    assert await letter_count(bus.dead_letters) == 0


async def test_a_copy_is_embedded_once_and_a_retry_again(
    bus: Bus, memory_bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    """A retry adds a memory that was not there when its vector came."""
    embedder = Counting()
    event, late = add(1, "tea"), add(2, "coffee")
    adds, other = wire.Retry("0:1", "memory.add", "add"), wire.Retry("0:2", "memory.embedded", "embed")
    await transport.append([outgoing(event), outgoing(event), outgoing(event, gw_retry=other.encode())])
    await transport.append([outgoing(add(5, "profile"))])  # makes the user's profile
    await transport.append([outgoing(late, gw_retry=adds.encode())])
    async with working(
        JobWorker(memory_bus, transport, EmbeddingJob(embedder), name="e"),
        MutationWorker(bus, graph, NO_RULES, name="m"),
    ):
        await applied(memory_bus)
        await applied(bus)
    assert embedder.texts == ["tea", "profile", "coffee"]
    assert {event.id for event in await embedded_events(bus)} == {
        derived_id("/test", "e1", "embedded", 0, "hash:32"),
        derived_id("/test", "e5", "embedded", 0, "hash:32"),
        derived_id("/test", "e2", "embedded", 0, "hash:32", "0:1"),
    }
    assert [vector is None for vector, _ in (await vectors(graph)).values()] == [False] * 3


FAILURES = {
    "error": Failure.error(500, headers={"Retry-After": "0"}),
    "busy": Failure.too_many("0"),
    "wrong key": Failure.error(401),
    "garbage": Failure.garbage(),
    "too few": Failure.one_vector_less(),
    "hangs": Failure(hang=True),
    "hangs up": Failure(hang_up=True),
}


@pytest.mark.long(keep=("error", "hangs up"))
@pytest.mark.parametrize("name", FAILURES)
async def test_while_the_embedder_fails_the_position_waits(
    bus: Bus, memory_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer, name: str,
) -> None:  # fmt: skip
    timing = Timing(jobs=JobTiming(last_wait_s=0.1, shown_s=0.0))
    model_server.always = FAILURES[name]
    inner = OpenAIEmbedder(model_server.url, "m", api_key=None, timeout_s=0.3)
    job = EmbeddingJob(CachedEmbedder(inner))
    await put(transport, [add(number, f"text {number}", chat=f"c{number}") for number in range(10)])
    with capture_logs() as logs:
        async with working(
            JobWorker(memory_bus, transport, job, name="e", timing=timing),
            MutationWorker(bus, graph, NO_RULES, name="m"),
        ):
            await until(lambda: len(model_server.requests) >= 6)
            assert sum(part.lag for part in await memory_bus.partitions.status()) == 10
            assert {vector for vector, _ in (await vectors(graph)).values()} <= {None}
            model_server.always = None
            await applied(memory_bus)
            await applied(bus)
    await job.aclose()
    found = await vectors(graph)
    assert found == {f"text {number}": (near(embedding_of(f"text {number}", 64)), "m") for number in range(10)}
    assert len(await embedded_events(bus)) == 10
    said = [(entry["event"], entry["log_level"]) for entry in logs if entry["event"] in {"job_waits", "job_goes_on"}]
    said = [each for each in said if each != ("job_waits", "debug")]
    # On a busy machine, an answer may be late too: a bad one is another reason, and a good one an outage of its own.
    said = [each for each, _ in groupby(said)]
    assert said == [("job_waits", "warning"), ("job_goes_on", "info")] * (len(said) // 2 or 1), "once for an outage"
    assert "text " not in str(logs)


class Odd(Embedder):
    """Gives whatever it is told to, once for each item, and good vectors after that."""

    model = "odd"

    def __init__(self, *answers: list[list[float]]) -> None:
        self.answers = list(answers)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return self.answers.pop(0) if self.answers else [[1.0, 0.5]] * len(texts)

    async def aclose(self) -> None:
        pass


async def test_too_few_vectors_are_asked_for_again_and_no_vectors_are_left_out(
    bus: Bus, memory_bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    job = EmbeddingJob(Odd([[1.0, 2.0]], [[1.0, 2.0], [0.0, 0.0], [float("nan"), 1.0]]))
    await put(transport, [add(1, "a good one", "of zeros", "no number")])
    with capture_logs() as logs:
        async with working(
            JobWorker(memory_bus, transport, job, name="e"), MutationWorker(bus, graph, NO_RULES, name="m")
        ):
            await applied(memory_bus)
            await applied(bus)
    found = await vectors(graph)
    assert found == {"a good one": ([1.0, 2.0], "odd"), "of zeros": (None, None), "no number": (None, None)}
    assert (job.embedded, job.refused) == (1, 2)
    refused = {entry["memory_id"] for entry in logs if entry["event"] == "text_not_embedded"}
    assert refused == {memory_id("/test", "e1", number) for number in (1, 2)}


async def test_a_text_that_is_refused_holds_up_no_other(
    bus: Bus, memory_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer,
) -> None:  # fmt: skip
    model_server.refuses = lambda text: "poison" in text
    job = EmbeddingJob(OpenAIEmbedder(model_server.url, "m", api_key=None))
    texts = [f"text {number}" for number in range(20)]
    await put(transport, [add(1, *texts[:9], "poison", *texts[9:]), add(2, "after it")])
    with capture_logs() as logs:
        async with working(
            JobWorker(memory_bus, transport, job, name="e"), MutationWorker(bus, graph, NO_RULES, name="m")
        ):
            await applied(memory_bus)
            await applied(bus)
    await job.aclose()
    without = {text for text, (vector, _) in (await vectors(graph)).items() if vector is None}
    assert without == {"poison"}
    [told] = [entry for entry in logs if entry["event"] == "text_not_embedded"]
    assert told["memory_id"] == memory_id("/test", "e1", 9)
    assert told["log_level"] == "error"
    assert "poison" not in str(logs)
    assert await letter_count(bus.dead_letters) == 0, "a retry of one would go to a worker that embeds nothing"


@pytest.mark.parametrize("failure", [Failure.error(500), Failure(hang_up=True), Failure.garbage()], ids=repr)
async def test_a_text_on_which_the_model_fails_holds_up_no_app(
    memory_bus: Bus, transport: Transport, model_server: ModelServer, failure: Failure
) -> None:
    model_server.fails = lambda request: failure if any("poison" in text for text in request.texts) else None
    job = EmbeddingJob(CachedEmbedder(OpenAIEmbedder(model_server.url, "m", api_key=None)))
    worker = JobWorker(memory_bus, transport, job, name="e")
    await put(transport, [add(1, "a", "poison", "b"), add(2, "of a neighbour", chat="c2"), add(3, "poison")])
    async with working(worker):
        await applied(memory_bus)
        await put(transport, [add(4, "poison", "later")])
        await applied(memory_bus)
    await job.aclose()
    assert (job.embedded, job.refused) == (4, 3)
    assert {event.data["memory_id"] for event in await embedded_events(memory_bus)} == {
        memory_id("/test", id, number) for id, number in [("e1", 0), ("e1", 2), ("e2", 0), ("e4", 1)]
    }


def of_app(app_id: str, number: int, *texts: str) -> JobEvent:
    data = {"messages": [{"role": "user", "text": text} for text in texts], "user_id": "u"}
    event = Event.create(
        "memory.add", app_id=app_id, chat_id="c1", data=data, id=f"{app_id}{number}", source="/test", time=T0
    )
    return JobEvent(event=event, position=f"0:{app_id}{number}")


def as_before(seen: Sequence[JobEvent]) -> list[JobEvent]:
    """Return events as another worker receives them."""
    return [replace(each, parts=set()) for each in seen]


async def test_an_app_with_refused_texts_keeps_no_neighbour_waiting(model_server: ModelServer) -> None:
    model_server.refuses = lambda text: "bad" in text
    job = EmbeddingJob(OpenAIEmbedder(model_server.url, "m", api_key=None))
    [once] = [each async for each in job.handle([of_app("noisy", 0, "bad", "good")])]
    assert len(once) == 2
    model_server.requests.clear()
    noisy = [of_app("noisy", number, f"bad {number}") for number in range(1, 121)]
    seen = [*noisy[:60], of_app("shop", 1, "a neighbour"), *noisy[60:], of_app("noisy", 200, "clean")]
    outcomes = job.handle(seen)
    [first] = await anext(outcomes)
    assert isinstance(first, Event)
    assert (first.appid, model_server.texts) == ("shop", ["a neighbour"])
    rest = [each async for some in outcomes for each in some]
    assert len(rest) == 121
    model_server.requests.clear()
    repeated = [each async for some in job.handle(as_before(seen)) for each in some]
    assert (len(repeated), sorted(model_server.texts)) == (122, ["a neighbour", "clean"]), "no refused text again"
    await job.aclose()


async def test_an_outage_repeats_nothing_that_the_bus_holds(model_server: ModelServer) -> None:
    """A vector that is kept in memory would be put on the log once for each try, however long the outage lasts."""
    job = EmbeddingJob(CachedEmbedder(OpenAIEmbedder(model_server.url, "m", api_key=None)))
    seen = [of_app("shop", number, f"text {number}") for number in range(300)]
    model_server.fails = lambda request: Failure.too_many() if "text 299" in request.texts else None
    got: list[Any] = []

    async def handle() -> None:
        async for some in job.handle(seen):
            got.extend(some)

    for _ in range(3):
        with pytest.raises(EmbedderUnavailable):
            await handle()
    model_server.fails = lambda _: None
    await handle()
    assert len(got) == 300
    assert len([each async for some in job.handle(as_before(seen)) for each in some]) == 300
    await job.aclose()


async def test_a_slow_embedder_costs_no_partition(url: str, memory_bus: Bus, transport: Transport) -> None:
    """The lease is extended while a batch takes long, so nobody does the same at once."""
    slow, other = Counting(), Counting()
    slow.open.clear()
    lease_s = 2.0  # a machine that is busy for a second costs none
    second_bus = redis_bus(url, new=spread(PARTITIONS), group=channels.MEMORY_GROUP)
    first = JobWorker(memory_bus, transport, EmbeddingJob(slow), name="a", lease_s=lease_s)
    second = JobWorker(second_bus, transport, EmbeddingJob(other), name="b", lease_s=lease_s)
    number = channels.partition_of(f"{APP}/c1", PARTITIONS)
    for given in ("a", "b"):  # each its half: nothing is wanted back
        assert await (memory_bus if given == "a" else second_bus).leases.claim(
            number if given == "a" else 1 - number, given, 30.0
        )
    await put(transport, [add(1, "tea")])
    async with working(first, second):
        await until(lambda: slow.texts == ["tea"])
        await lease_ends(url, 2 * lease_s)
        assert other.texts == []
        assert {part.owner for part in await memory_bus.partitions.status() if part.id == number} == {"a"}
        slow.open.set()
        await applied(memory_bus)
    assert (slow.texts, other.texts) == (["tea"], [])
    await second_bus.aclose()


class CountedReads:
    def __init__(self, inner: EventLog) -> None:
        self._inner = inner
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self, *given: Any, **named: Any) -> Any:
        self.reads += 1
        return await self._inner.read(*given, **named)


class SlowLookBack(CountedReads):
    """A log in which it takes long to read what stands before a position."""

    def __init__(self, inner: EventLog) -> None:
        super().__init__(inner)
        self.open = asyncio.Event()

    async def before(self, *given: Any, **named: Any) -> Any:
        self.reads += 1
        await self.open.wait()
        return await self._inner.before(*given, **named)


async def test_a_long_look_back_costs_no_partition(
    url: str, bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    """Vectors make entries long, and a mutation worker begins by reading 10,000 of them back."""
    lease_s = 2.0  # a machine that is busy for a second costs none
    await put(transport, [add(number, "tea") for number in range(5)])
    slow = SlowLookBack(bus.log)
    second_bus = redis_bus(url, new=spread(PARTITIONS))
    with capture_logs() as logs:
        async with working(MutationWorker(replace(bus, log=slow), graph, NO_RULES, name="a", lease_s=lease_s)):
            await until(lambda: slow.reads == PARTITIONS)
            await lease_ends(url, 2 * lease_s)
            slow.open.set()
            async with working(MutationWorker(second_bus, graph, NO_RULES, name="b", lease_s=lease_s)):
                await until(lambda: shared(bus))
                await applied(bus)
    assert [entry for entry in logs if entry["event"] == "lease_lost"] == []
    await second_bus.aclose()


async def lease_ends(url: str, lease_s: float) -> None:
    """Wait until a lease that nobody extends has run out, by the clock of the server that keeps leases."""
    async with redis.Redis.from_url(url) as raw:
        await raw.set("lease of nobody", 1, px=int(1_000 * lease_s))
        await until(lambda: raw.exists("lease of nobody"), lambda found: not found)


async def shared(bus: Bus) -> bool:
    return {part.owner for part in await bus.partitions.status()} == {"a", "b"}


async def test_it_stops_while_the_embedder_hangs(memory_bus: Bus, transport: Transport) -> None:
    timing = Timing(jobs=JobTiming(grace_s=0.1))
    embedder = Counting()
    embedder.open.clear()
    await put(transport, [add(1, "tea")])
    async with working(JobWorker(memory_bus, transport, EmbeddingJob(embedder), name="e", timing=timing)):
        await until(lambda: embedder.texts == ["tea"])
    assert sum(part.lag for part in await memory_bus.partitions.status()) == 1
    assert [part.owner for part in await memory_bus.partitions.status()] == [None] * PARTITIONS
    embedder.open.set()
    async with working(JobWorker(memory_bus, transport, EmbeddingJob(embedder), name="e")):
        await applied(memory_bus)


async def test_a_batch_in_hand_is_finished_before_the_stop(memory_bus: Bus, transport: Transport) -> None:
    embedder = Counting()
    embedder.open.clear()
    await put(transport, [add(1, "tea")])
    async with working(JobWorker(memory_bus, transport, EmbeddingJob(embedder), name="e")):
        await until(lambda: embedder.texts == ["tea"])
        asyncio.get_running_loop().call_later(0.3, embedder.open.set)
    assert len(await embedded_events(memory_bus)) == 1
    assert sum(part.lag for part in await memory_bus.partitions.status()) == 1, "its own event"


# without rules


async def test_without_rules_memories_take_effect_and_the_rest_is_counted(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    free = Event.create("note.taken", app_id=APP, chat_id="c1", id="n1")
    await put(transport, [add(1, "tea"), free, add(2, "coffee"), turn(3), add(4, "behind it"), turn(5)])
    with capture_logs() as logs:
        async with working(MutationWorker(bus, graph, NO_RULES, name="m")):
            await applied(bus)
    assert (await vectors(graph)).keys() == {"tea", "coffee", "behind it"}
    letters = {letter.workflow: letter for letter in await bus.dead_letters.read(limit=10)}
    assert {workflow: (letter.reason, letter.count) for workflow, letter in letters.items()} == {
        None: ("no_rules", 1),
        "Support": ("no_rules", 2),
    }
    told = [entry for entry in logs if entry["event"] == "workflow_without_rules" and entry["log_level"] == "warning"]
    assert [entry["workflow"] for entry in told] == [None, "Support"]
    async with working(MutationWorker(bus, graph, support(tmp_path), name="m")):
        assert (await retry(bus, letters["Support"])).events == 2
        await applied(bus)
    assert await rows(graph, "MATCH (a:Agent) RETURN a.turns") == [(2,)]
    assert [letter.workflow for letter in await bus.dead_letters.read(limit=10)] == [None]


async def lag_is(bus: Bus, lag: int) -> bool:
    return sum(part.lag for part in await bus.partitions.status()) == lag


def support(folder: Path) -> RuleSet:
    (folder / "Support").mkdir()
    (folder / "Support/graph_injection.yaml").write_text(TURNS)
    return load_rules(folder)


class OneWrite:
    """A graph that takes one write of a plan and is away from then on."""

    def __init__(self, inner: GraphStore) -> None:
        self._inner = inner
        self._begun = False
        self.cut = asyncio.Event()
        """Set when the graph has the write: who ends the worker before may take it away."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        if not self._begun:
            assert len(writes) > 1
            self._begun = True
            await self._inner.apply(app_id, partition, writes[:1])
            self.cut.set()
        raise GraphUnavailable("cut", retry_after_s=0.05)


@pytest.mark.long
async def test_a_half_done_batch_waits_for_the_rules_that_it_was_begun_with(
    bus: Bus, graph: FalkorDBStore, transport: Transport, tmp_path: Path
) -> None:
    rules = support(tmp_path)
    await put(transport, [add(1, "tea"), turn(2), turn(3)])
    half = OneWrite(graph)
    with capture_logs() as logs:
        async with working(MutationWorker(bus, half, rules, name="m")):
            await half.cut.wait()
        async with working(MutationWorker(bus, graph, NO_RULES, name="m")):
            await until(lambda: any("half-done" in entry.get("error", "") for entry in logs))
        assert await lag_is(bus, 3)
        async with working(MutationWorker(bus, graph, rules, name="m")):
            await applied(bus)
    assert await rows(graph, "MATCH (a:Agent) RETURN a.turns") == [(2,)]
    assert (await vectors(graph)).keys() == {"tea"}


# processes


def environment(**settings: str) -> dict[str, str]:
    cleared = ("GRAPHWEFT_", "NEO4J_", "AZURE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(cleared)} | settings


class Process:
    """One role as a process; what it says goes to a file."""

    def __init__(self, role: str, folder: Path, settings: dict[str, str]) -> None:
        self.role = role
        self.file = folder / f"{role}.log"
        self._settings = settings
        self.start()

    def start(self) -> None:
        self._from = self.file.stat().st_size if self.file.exists() else 0
        with self.file.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "graphweft_workers.cli", "run", self.role],
                env=self._settings, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    @property
    def works(self) -> bool:
        """Whether it has begun since it was started last."""
        return b"worker_started" in self.file.read_bytes()[self._from :]

    def kill(self) -> None:
        assert self.process.poll() is None, self.file.read_text()
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_killed_at_any_moment_each_memory_has_its_vector_and_a_replay_asks_no_model(
    url: str, bus: Bus, memory_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer, tmp_path: Path,
) -> None:  # fmt: skip
    seed = int(os.environ.get("GRAPHWEFT_SEED", "0"))
    dice = random.Random(seed)
    settings = environment(
        GRAPHWEFT_BUS_URL=url, GRAPHWEFT_GRAPH_URL=url, GRAPHWEFT_EMBEDDER="openai:m",
        GRAPHWEFT_EMBEDDER_URL=model_server.url, GRAPHWEFT_LEASE_S="1", GRAPHWEFT_BATCH_EVENTS="40",
        GRAPHWEFT_WORKER_NAME="one", GRAPHWEFT_PARTITIONS=str(PARTITIONS), GRAPHWEFT_LOG_FORMAT="json",
    )  # fmt: skip
    model_server.always = Failure(wait_s=0.03)
    numbers = range(KILLED_EVENTS)
    events = [add(number, f"first {number}", f"second {number}", chat=f"c{number % 7}") for number in numbers]
    processes = {role: Process(role, tmp_path, settings) for role in ("memory", "mutation")}
    kills = dict.fromkeys(processes, 0)
    try:
        await put(transport, events[:100])
        written = 100
        while written < len(events):
            await put(transport, events[written : written + 20])
            written += 20
            role = min(kills, key=lambda each: (kills[each], dice.random()))
            process = processes[role]
            await until(lambda process=process: process.works)  # type: ignore[misc]
            await looks(bus.partitions.status, dice.randrange(40))
            process.kill()
            kills[role] += 1
            process.start()
        await until(lambda: all(each.works for each in processes.values()))
        await applied(memory_bus)
        await applied(bus, memory_bus)
        assert [process.stop() for process in processes.values()] == [0, 0]
    finally:
        for process in processes.values():
            process.process.kill()
            process.process.wait()
    said = processes["memory"].file.read_text() + processes["mutation"].file.read_text()
    assert "Traceback" not in said
    assert "first 1" not in said

    texts = [message["text"] for event in events for message in event.data["messages"]]
    found = await rows(graph, "MATCH (m:Memory) RETURN m.id, m.text, m.embedding, m.embedding_model")
    assert len(found) == len(texts) == 2 * KILLED_EVENTS
    assert {text: (vector, model) for _, text, vector, model in found} == {
        text: (near(embedding_of(text, 64)), "m") for text in texts
    }
    assert await letter_count(bus.dead_letters) == 0
    log = await embedded_events(bus)
    assert len({event.id for event in log}) == len(texts)
    repeated = len(log) - len(texts)
    asked = len(model_server.requests)
    print(f"{kills} kills, {repeated} events repeated, the model was asked {len(model_server.texts)} texts")

    again_bus = redis_bus(url, new=spread(PARTITIONS), group="graphweft-again")
    again = FalkorDBStore(url, graph_template="again_{app_id}")
    async with working(MutationWorker(again_bus, again, NO_RULES, name="again")):
        await applied(again_bus)
    assert await read_digest(again, APP) == await read_digest(graph, APP)
    assert len(await embedded_events(bus)) == len(log), "a replay writes nothing"
    assert len(model_server.requests) == asked, "a replay asks no model"
    await again.aclose()
    await again_bus.aclose()


def test_without_anything_to_do_it_says_what_to_set(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "graphweft_workers.cli", "run", "memory"],
        env=environment(GRAPHWEFT_BUS_URL="redis://127.0.0.1:1"), cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert "GRAPHWEFT_EMBEDDER" in line


def test_an_embedder_that_is_unknown_stops_up_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "graphweft_workers.cli", "up", "--data", str(tmp_path / "data")],
        env=environment(GRAPHWEFT_EMBEDDER="magic"), cwd=tmp_path, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "'magic'" in done.stderr
    assert not (tmp_path / "data").exists()


async def test_up_runs_it_when_an_embedder_is_set(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = environment(GRAPHWEFT_EMBEDDER="hash:32", GRAPHWEFT_DATA=str(data))
    up = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "graphweft_workers.cli", "up"), env=settings, cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert up.stdout is not None
    try:
        assert b"graphweft is up" in await up.stdout.readline()
        made = make_transport(embedded_url(data))
        store = FalkorDBStore(embedded_url(data))
        await put(made, [add(1, "tea")])
        await until(lambda: is_embedded(store, "tea"))
        assert "memory" in json.loads((data / "processes.json").read_text())
        checks = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "graphweft_workers.cli", "doctor", "--json"), env=settings, cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await checks.communicate()
        found = {check["check"]: check for check in json.loads(output)}
        assert (found["embedder"]["state"], "hash:32" in found["embedder"]["found"]) == ("ok", True)
        assert (found[channels.MEMORY_GROUP]["state"], "lag 0" in found[channels.MEMORY_GROUP]["found"]) == ("ok", True)
        await made.aclose()
        await store.aclose()
    finally:
        up.send_signal(signal.SIGTERM)
        await up.communicate()
    assert up.returncode == 0


async def test_the_log_is_read_by_whoever_comes_later(
    url: str, bus: Bus, memory_bus: Bus, graph: FalkorDBStore, transport: Transport
) -> None:
    """An embedder that is set later gives vectors to what was remembered before."""
    await put(transport, [add(1, "tea")])
    async with working(MutationWorker(bus, graph, NO_RULES, name="m")):
        await applied(bus)
        assert await vectors(graph) == {"tea": (None, None)}
        async with working(JobWorker(memory_bus, transport, EmbeddingJob(HashingEmbedder(32)), name="e")):
            await until(lambda: is_embedded(graph, "tea"))
    raw = redis.Redis.from_url(url)
    groups = {group["name"] for group in await raw.xinfo_groups(channels.events_stream(0))}
    assert groups == {b"graphweft-mutation", b"graphweft-memory"}
    await raw.aclose()


# what any job may rely on


class Notes(Job):
    """Writes a note for each turn, and one for each tick; the first of a turn is larger than a bus takes."""

    group = "graphweft-notes"
    types = frozenset({"agent.turn_complete"})

    def __init__(self, tick_s: float) -> None:
        self.tick_s = tick_s
        self.ticks: set[tuple[int, int]] = set()
        self.seen: list[JobEvent] = []

    async def handle(self, seen: Sequence[JobEvent]) -> AsyncGenerator[Sequence[Event]]:
        self.seen += seen
        for each in seen:
            yield [note(f"{each.event.id}-large", "x" * 2_000_000), note(f"{each.event.id}-small", "x")]

    async def tick(self, partition: int, partitions: int) -> AsyncGenerator[Sequence[Event]]:
        first = (partition, partitions) not in self.ticks
        self.ticks.add((partition, partitions))
        if first:
            raise GraphUnavailable("not yet", retry_after_s=0.01)
        yield [note(f"tick-{partition}", "x")]

    async def aclose(self) -> None:
        pass


def note(id: str, text: str) -> Event:
    return Event.create("note.taken", app_id=APP, chat_id="c1", id=id, data={"text": text}, time=T0)


async def test_a_job_gets_its_events_and_its_ticks_and_what_it_makes_is_put_on_the_bus(
    url: str, transport: Transport
) -> None:
    job = Notes(0.2)
    bus = redis_bus(url, new=spread(PARTITIONS), group=job.group)
    await put(transport, [turn(1), add(2, "passed by"), turn(3)])
    with capture_logs() as logs:
        async with working(JobWorker(bus, transport, job, name="n")):
            await until(lambda: notes_are(bus, {"t1-small", "t3-small", "tick-0", "tick-1"}))
    assert job.ticks == {(0, PARTITIONS), (1, PARTITIONS)}
    assert [(each.event.id, each.retried) for each in job.seen] == [("t1", None), ("t3", None)]
    number = channels.partition_of(f"{APP}/c1", PARTITIONS)
    assert [each.position for each in job.seen] == [
        f"{number}:{entry.offset}" for entry in (await bus.log.after(number, "", limit=3))[::2]
    ]
    assert {entry["event_id"] for entry in logs if entry["event"] == "event_refused"} == {"t1-large", "t3-large"}
    await bus.aclose()


async def notes_are(bus: Bus, wanted: set[str]) -> bool:
    events = [wire.decode(entry.fields, received=entry.received) for entry in await entries(bus)]
    return {event.id for event in events if event.type == "note.taken"} == wanted


async def test_what_was_trimmed_unread_is_told_and_passed_over(url: str, memory_bus: Bus, transport: Transport) -> None:
    """Without a dead letter: the events themselves may have taken effect long ago."""
    await put(transport, [add(number, f"text {number}") for number in range(10)])
    raw = redis.Redis.from_url(url)
    number = channels.partition_of(f"{APP}/c1", PARTITIONS)
    await raw.xtrim(channels.events_stream(number), maxlen=3, approximate=False)
    await raw.aclose()
    with capture_logs() as logs:
        async with working(JobWorker(memory_bus, transport, EmbeddingJob(HashingEmbedder(32)), name="e")):
            await applied(memory_bus)
    assert len(await embedded_events(memory_bus)) == 3
    [told] = [entry for entry in logs if entry["event"] == "events_lost"]
    assert (told["partition"], told["events"]) == (number, 7)
    assert await letter_count(memory_bus.dead_letters) == 0
