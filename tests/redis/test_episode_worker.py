"""Text episodes are read by a model: through the log, once each, whoever is killed and however the model fails."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs
from tests.declared_fields import check_declared
from tests.redis.test_memory_worker import (
    FirstCommitsFail,
    Process,
    bus_url,
    entries,
    environment,
    outgoing,
    put,
    rows,
    working,
)
from tests.services.buses import applied
from tests.services.layouts import spread
from tests.services.models import Failure, ModelRequest, ModelServer, read_facts
from tests.services.rules import rule_set
from tests.services.waiting import looks, until

from graphweft import Event
from graphweft.transport import Outgoing, Transport
from graphweft.transports.registry import make_transport
from graphweft_contracts import channels, wire
from graphweft_contracts.episodes import episode_id
from graphweft_contracts.memory import derived_id
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.engine.job_worker import JobWorker
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.features.episodes.extraction.graphiti import GraphitiExtractor
from graphweft_workers.features.episodes.job import EpisodesJob
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.episodes.ontologies import Ontologies, Ontology
from graphweft_workers.features.episodes.ontologies.ontology import type_model
from graphweft_workers.features.memory.embedding import SOURCE
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.timing import JobTiming, Timing
from graphweft_workers.wiring.connections import make_bus

pytestmark = pytest.mark.integration
__all__ = ("bus_url",)  # a fixture

T0 = datetime(2026, 2, 1, 10, 0, tzinfo=UTC)
APP = "shop"
PARTITIONS = 2
RULES = rule_set()
STRUCTURE = {
    "entities": [{"type": "Person", "name": "Zoe"}, {"type": "Project", "name": "Web"}],
    "relations": [{"type": "OWNS", "source": "Zoe", "target": "Web", "fact": "Zoe owns Web"}],
}


def add(number: int, content: Any, *, chat: str = "c1", **more: Any) -> Event:
    data = {"content": content, "name": f"n{number}", "user_id": "u1"} | more
    if not isinstance(content, str):
        data["episode_type"] = "json"
    return Event.create(
        "episode.add", app_id=APP, chat_id=chat, id=f"e{number}", source="/test", data=data,
        time=T0 + timedelta(seconds=number),
    )  # fmt: skip


def fact(number: int, more: str = "") -> str:
    return f"It is so{more}: «Ann{number} OWNS Shop{number}»"


@pytest.fixture
async def episodes_bus(url: str) -> AsyncIterator[Bus]:
    made = redis_bus(url, new=spread(PARTITIONS), group=channels.EPISODES_GROUP)
    yield made
    await made.aclose()


@pytest.fixture
async def new_job(url: str, model_server: ModelServer) -> AsyncIterator[Callable[..., EpisodesJob]]:
    """Makes jobs that ask the model server and pause for moments only."""
    made: list[EpisodesJob] = []

    def make(ontologies: Ontologies | None = None, *, endpoint: str = model_server.url, **more: Any) -> EpisodesJob:
        timeout_s = more.get("timeout_s", 5.0)
        job = EpisodesJob(
            GraphitiExtractor(endpoint, "m", timeout_s=timeout_s),
            redis_bus(url, new=spread(PARTITIONS)),
            ontologies,
            **{"pause_s": 0.01, "attempts": 3} | more,
        )
        made.append(job)
        return job

    yield make
    for job in made:
        await job.aclose()


async def facts(graph: GraphStore) -> dict[str, list[str]]:
    """Return the facts that each episode states, by the episode's name."""
    found = await rows(
        graph, "MATCH (p:Episode) OPTIONAL MATCH (p)-[:STATES]->(r:Relation) RETURN p.name, collect(r.fact)"
    )
    assert len({name for name, _ in found}) == len(found)
    return {name: sorted(said) for name, said in found}


async def extracted(bus: Bus) -> list[Event]:
    events = [wire.decode(entry.fields, received=entry.received) for entry in await entries(bus)]
    found = [event for event in events if event.type == "episode.extracted"]
    check_declared(found)
    return found


def id_of(number: int, *again: str) -> str:
    return derived_id("/test", f"e{number}", "extracted", *again)


@pytest.mark.soak("kafka")
async def test_each_text_is_read_and_what_is_structured_is_not(
    bus_url: str, graph: FalkorDBStore, model_server: ModelServer
) -> None:
    settings = Settings(bus_url=SecretStr(bus_url), partitions=PARTITIONS, order="chat", lease_s=3.0)
    buses = [make_bus(settings, group=group) for group in (channels.MUTATION_GROUP, channels.EPISODES_GROUP)]
    job = EpisodesJob(GraphitiExtractor(model_server.url, "m"), make_bus(settings), at_once=3)
    transport = make_transport(bus_url, new=spread(PARTITIONS))
    model_server.always = Failure(wait_s=0.02)
    texts = [add(number, fact(number), chat=f"c{number % 3}") for number in range(20)]
    message = add(30, "ann: " + fact(30), episode_type="message", thread_id="t1", agent_id="a1")
    loose = add(31, {"note": fact(31)}, reference_time="2020-01-01T00:00:00.5+01:00")
    tagged = add(32, "<graphiti_episode>" + fact(32))
    nothing = add(33, "only words")
    events = [*texts, message, loose, tagged, nothing, add(40, STRUCTURE), add(41, "{no JSON", episode_type="json")]
    await put(transport, [*events, texts[0]])
    try:
        async with working(
            MutationWorker(buses[0], graph, RULES, name="m"), JobWorker(buses[1], transport, job, name="e")
        ):
            await applied(buses[1])
            await applied(*buses)
        wanted = {f"n{number}": [f"Ann{number} owns Shop{number}"] for number in (*range(20), 30, 31, 32)}
        assert await facts(graph) == wanted | {"n33": [], "n40": ["Zoe owns Web"]}
        assert len(model_server.requests) == 23 * 2 + 1
        assert 1 < model_server.most_at_once <= 3 * PARTITIONS
        found = {event.id: event for event in await extracted(buses[0])}
        assert found.keys() == {id_of(number) for number in (*range(20), *range(30, 34))}
        one = found[id_of(30)]
        assert (one.appid, one.chatid, one.source, one.time) == (APP, "c1", SOURCE, message.time)
        assert {name: one.data[name] for name in ("user_id", "agent_id", "thread_id", "episode_id", "model")} == {
            "user_id": "u1", "agent_id": "a1", "thread_id": "t1", "model": "m",
            "episode_id": episode_id("/test", "e30"),
        }  # fmt: skip
        assert found[id_of(31)].data["reference_time"] == "2019-12-31T23:00:00.500000Z"
        schemas = {number: found[id_of(number)].data.get("schema_id") for number in (31, 32)}
        assert schemas == {31: None, 32: "agent_memory_v1"}
        assert (found[id_of(33)].data["entities"], found[id_of(33)].data["relations"]) == ([], [])
        [letter] = await buses[0].dead_letters.read(limit=10)
        assert (letter.event_id, letter.rule) == ("e41", "episode.add"), "the mutation worker's"
    finally:
        await transport.aclose()
        await job.aclose()
        for bus in buses:
            await bus.aclose()


@pytest.mark.long(keep=("error", "busy"))
@pytest.mark.parametrize("name", ["no server", "wrong key", "busy", "error", "garbage", "hangs"])
async def test_while_nothing_is_read_the_position_waits(
    bus: Bus, episodes_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer, new_job: Callable[..., EpisodesJob], name: str,
) -> None:  # fmt: skip
    """However many tries an episode has: it is not to blame for an outage, which is seen at the first."""
    timing = Timing(jobs=JobTiming(last_wait_s=0.1))
    model_server.always = {
        "wrong key": Failure.error(401),
        "busy": Failure.too_many("0"),
        "error": Failure.error(500),
        "garbage": Failure.garbage(),
        "hangs": Failure(hang=True),
    }.get(name)
    await put(transport, [add(number, fact(number), chat=f"c{number}") for number in range(6)])
    away = new_job(endpoint="http://127.0.0.1:1/v1") if name == "no server" else new_job(attempts=100, timeout_s=0.3)
    job = new_job()
    with capture_logs() as logs:
        async with working(
            JobWorker(episodes_bus, transport, away, name="e", timing=timing),
            MutationWorker(bus, graph, RULES, name="m"),
        ):
            await until(lambda: sum(entry["event"] == "job_waits" for entry in logs) >= 4)
            assert sum(part.lag for part in await episodes_bus.partitions.status()) == 6
            await until(lambda: len_is(graph, 6))
            model_server.always = None
        async with working(
            JobWorker(episodes_bus, transport, job, name="e"), MutationWorker(bus, graph, RULES, name="m")
        ):
            await applied(episodes_bus)
            await applied(bus)
    assert await facts(graph) == {f"n{number}": [f"Ann{number} owns Shop{number}"] for number in range(6)}
    assert await letter_count(bus.dead_letters) == 0
    assert "Ann" not in str(logs)


async def len_is(graph: GraphStore, count: int) -> bool:
    return len(await facts(graph)) == count


def cursed(failure: Failure) -> Callable[[ModelRequest], Failure | None]:
    return lambda request: failure if "cursed" in str(request.body) else None


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Failure.error(500), "extraction_failed"),
        (Failure.error(400), "extraction_failed"),
        (Failure.garbage(), "extraction_failed"),
        (Failure(hang=True), "timeout"),
    ],
)
async def test_an_episode_that_fails_alone_becomes_a_dead_letter_and_goes_through_after_a_retry(
    bus: Bus, episodes_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer, new_job: Callable[..., EpisodesJob], failure: Failure, reason: str,
) -> None:  # fmt: skip
    model_server.fails = cursed(failure)
    job = new_job(timeout_s=0.5 if failure.hang else 20.0)  # a good answer may be late on a busy machine
    await put(transport, [add(1, fact(1)), add(2, fact(2, " cursed")), add(3, fact(3))])
    with capture_logs() as logs:
        async with working(
            JobWorker(episodes_bus, transport, job, name="e"), MutationWorker(bus, graph, RULES, name="m")
        ):
            await applied(episodes_bus)
            await applied(bus)
            assert await facts(graph) == {"n1": ["Ann1 owns Shop1"], "n2": [], "n3": ["Ann3 owns Shop3"]}
            [letter] = await bus.dead_letters.read(limit=10)
            [entry] = [each for each in await entries(bus) if b'"e2"' in each.fields[wire.DATA]]
            number = channels.partition_of(f"{APP}/c1", PARTITIONS)
            assert (letter.id, letter.position) == (
                f"{number}:{entry.offset}:graphweft:extract/extract", f"{number}:{entry.offset}",
            )  # fmt: skip
            assert (letter.reason, letter.rule, letter.mutation) == (reason, "graphweft:extract", "extract")
            assert (letter.app_id, letter.event_id, letter.event_type) == (APP, "e2", "episode.add")
            # With the time of the log, so that a retry is as old as the episode.
            kept = {**entry.fields, **wire.recording(entry.fields, entry.received)}
            assert wire.unpack(letter.fields) == kept
            assert "in 3 tries" in letter.message
            assert "Ann" not in letter.message
            tries = sum("cursed" in str(request.body) for request in model_server.requests)
            assert tries == 3 * (2 if failure.status == 400 else 1)

            assert (await retry(bus, letter)).events == 1  # it fails again
            await until(lambda: letter_is_not(bus, letter.id))
            await applied(bus, episodes_bus)
            [second] = await bus.dead_letters.read(limit=10)
            assert (second.reason, wire.unpack(second.fields)) == (reason, kept)

            model_server.fails = lambda _: None
            assert (await retry(bus, second)).events == 1
            await until(lambda: facts_are(graph, "n2", ["Ann2 owns Shop2"]))
            await applied(bus, episodes_bus)
    assert await letter_count(bus.dead_letters) == 0
    assert [event.id for event in await extracted(bus)][-1] == id_of(2, second.id)
    told = [entry["letter"] for entry in logs if entry["event"] == "episode_not_extracted"]
    assert told == [letter.id, second.id]
    assert "Ann" not in str(logs)


async def letter_is_not(bus: Bus, letter_id: str) -> bool:
    letters = await bus.dead_letters.read(limit=10)
    return bool(letters) and letters[0].id != letter_id


async def facts_are(graph: GraphStore, name: str, wanted: list[str]) -> bool:
    return (await facts(graph)).get(name) == wanted


async def test_a_retry_is_about_the_same_time_when_the_event_says_none(
    bus: Bus, episodes_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer, new_job: Callable[..., EpisodesJob],
) -> None:  # fmt: skip
    """The log's own time of an entry counts then, and the retry's entry is a later one."""
    model_server.fails = cursed(Failure.error(500))
    event = add(1, fact(1, " cursed"))
    data = event.model_dump_json(exclude_none=True, exclude={"time"}).encode()
    await transport.append([Outgoing(key=event.key, fields={wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: data})])
    with capture_logs():
        async with working(
            JobWorker(episodes_bus, transport, new_job(), name="e"), MutationWorker(bus, graph, RULES, name="m")
        ):
            await applied(episodes_bus)
            [letter] = await bus.dead_letters.read(limit=10)
            model_server.fails = lambda _: None
            assert (await retry(bus, letter)).events == 1
            await applied(episodes_bus)
            await applied(bus)
    assert await facts(graph) == {"n1": ["Ann1 owns Shop1"]}


async def test_an_episode_of_an_unknown_schema_is_read_when_its_letter_is_retried(
    bus: Bus, episodes_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer, new_job: Callable[..., EpisodesJob],
) -> None:  # fmt: skip
    await put(transport, [add(1, fact(1), schema_id="ours")])
    async with working(
        JobWorker(episodes_bus, transport, new_job(), name="e"), MutationWorker(bus, graph, RULES, name="m")
    ):
        await applied(episodes_bus, bus)
    assert model_server.requests == []
    [letter] = await bus.dead_letters.read(limit=10)
    assert letter.rule == "episode.add"
    known = Ontologies([Ontology(schema_id="ours", entity_types={}, edge_types={}, edge_type_map={})])
    rules = RuleSet({}, packs=(MemoryMutations(), EpisodeMutations(known)))
    assert (await retry(bus, letter)).events == 1
    async with working(
        JobWorker(episodes_bus, transport, new_job(known), name="e"), MutationWorker(bus, graph, rules, name="m")
    ):
        await applied(episodes_bus)
        await applied(bus)
    assert await facts(graph) == {"n1": ["Ann1 owns Shop1"]}
    assert [event.id for event in await extracted(bus)] == [id_of(1, letter.id)]


async def test_a_password_is_in_no_entity_and_no_fact_though_another_app_or_episode_keeps_the_name(
    bus: Bus, episodes_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer, new_job: Callable[..., EpisodesJob],
) -> None:  # fmt: skip
    types = {name: type_model(name, f"A {name}.") for name in ("Person", "Secret")}
    closed = Ontology(
        schema_id="closed", entity_types=types, edge_types={}, edge_type_map={}, excluded_entity_types=("Secret",)
    )
    known = Ontologies([closed, replace(closed, schema_id="open", excluded_entity_types=())])
    rules = RuleSet({}, packs=(MemoryMutations(), EpisodeMutations(known)))

    def reads(body: dict[str, Any]) -> str | None:
        said, asked = read_facts(body), body["messages"][-1]["content"]
        if said is not None and "password" in asked:
            return said.replace('"hunter2", "entity_type_id": 1', '"hunter2", "entity_type_id": 2')
        return said

    model_server.reads = reads
    text = "The password: «Ann OWNS hunter2» «Ann KNOWS Bob»"
    secret = add(1, text, schema_id="closed")
    others = [add(2, "A dog: «Bob OWNS hunter2»", schema_id="closed"), add(3, text, schema_id="open")]
    await put(transport, [secret, others[0], others[1].model_copy(update={"appid": "other"})])
    async with working(
        JobWorker(episodes_bus, transport, new_job(known), name="e"), MutationWorker(bus, graph, rules, name="m")
    ):
        await applied(episodes_bus)
        await applied(bus)
    mentioned = (
        "MATCH (p:Episode)-[:MENTIONS]->(e:Entity) RETURN p.name, e.type, e.name, e.terms ORDER BY p.name, e.name"
    )
    assert await rows(graph, mentioned) == [
        ("n1", "Person", "Ann", "ann"), ("n1", "Person", "Bob", "bob"), ("n2", "Person", "Bob", "bob"),
        ("n2", "Person", "hunter2", "hunter2"),
    ]  # fmt: skip
    assert await facts(graph) == {"n1": ["Ann knows Bob"], "n2": ["Bob owns hunter2"]}
    assert await rows(graph, "MATCH (p:Episode {name: 'n1'}) RETURN p.content") == [(text,)], "the text is kept"
    elsewhere = (await graph.read("other", mentioned, {}, timeout_s=120)).rows
    assert ("n3", "Secret", "hunter2") in [tuple(row)[:3] for row in elsewhere]


async def test_other_retries_ask_no_model(
    episodes_bus: Bus, transport: Transport, model_server: ModelServer,
    new_job: Callable[..., EpisodesJob],
) -> None:  # fmt: skip
    retries = [wire.Retry("0:1", rule, mutation) for rule, mutation in [("turns", "count"), ("episode.add", "owner")]]
    await transport.append([outgoing(add(1, fact(1)), gw_retry=each.encode()) for each in retries])
    async with working(JobWorker(episodes_bus, transport, new_job(), name="e")):
        await applied(episodes_bus)
    assert model_server.requests == []


async def test_what_is_on_the_bus_is_not_asked_again(
    bus: Bus, episodes_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer, new_job: Callable[..., EpisodesJob],
) -> None:  # fmt: skip
    """An interruption in front of the commit, and another owner who knows nothing."""
    model_server.fails = cursed(Failure.garbage())
    await put(transport, [add(number, fact(number, " cursed" * (number == 3))) for number in range(8)])
    await put(transport, [add(8, "only words")])
    failing = FirstCommitsFail(episodes_bus.partitions, 3)
    with capture_logs():
        async with working(JobWorker(replace(episodes_bus, partitions=failing), transport, new_job(), name="e")):
            await until(lambda: failing.left == 0)
        asked = len(model_server.requests)
        assert asked == 7 * 2 + 1 + 3 + 3  # a test request behind each of the three tries that failed
        raw: Any = episodes_bus.log
        await raw._redis.xgroup_setid(channels.events_stream(0), channels.EPISODES_GROUP, "0")
        await raw._redis.xgroup_setid(channels.events_stream(1), channels.EPISODES_GROUP, "0")
        async with working(
            JobWorker(episodes_bus, transport, new_job(), name="other"), MutationWorker(bus, graph, RULES, name="m")
        ):
            await applied(episodes_bus)
            await applied(bus)
    assert len(model_server.requests) == asked
    assert len(await extracted(bus)) == 8
    assert await letter_count(bus.dead_letters) == 1
    assert (await facts(graph)).pop("n7") == ["Ann7 owns Shop7"]


async def test_what_was_read_stays_read_when_the_endpoint_goes_away(
    bus: Bus, episodes_bus: Bus, transport: Transport, model_server: ModelServer,
    new_job: Callable[..., EpisodesJob],
) -> None:  # fmt: skip
    timing = Timing(jobs=JobTiming(last_wait_s=0.05))
    await put(transport, [add(number, fact(number)) for number in range(12)])
    model_server.fail(*[Failure()] * 7, *[Failure.error(401)] * 5)
    with capture_logs() as logs:
        async with working(JobWorker(episodes_bus, transport, new_job(at_once=2), name="e", timing=timing)):
            await applied(episodes_bus)
    waits = sum(entry["event"] == "job_waits" for entry in logs)
    assert waits >= 3, "no more episodes are begun, so that at most two fail in vain before it waits"
    assert len(await extracted(bus)) == 12
    in_vain = 5 + 2  # and entities that were found before the endpoint went away
    assert len(model_server.requests) <= 12 * 2 + in_vain


# processes

_WAYS = (Failure.error(500), Failure.garbage(), Failure(hang_up=True), Failure.error(400), Failure.too_many("0"))


class Dice:
    """Lets requests fail at random, and those about what is cursed always, until it is told to behave."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.behaves = False

    def __call__(self, request: ModelRequest) -> Failure | None:
        if self.behaves:
            return None
        thrown = self._random.random()
        if "cursed" in str(request.body["messages"]):
            return Failure(hang=True) if thrown < 0.1 else _WAYS[int(thrown * 3)]
        if "ready" in str(request.body["messages"]) or thrown > 0.2:
            return Failure(wait_s=0.02)
        return Failure(hang=True) if thrown < 0.02 else _WAYS[int(thrown * 25)]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_killed_at_any_moment_nothing_is_lost_and_nothing_doubled_and_a_replay_asks_no_model(
    url: str, bus: Bus, episodes_bus: Bus, graph: FalkorDBStore, transport: Transport,
    model_server: ModelServer, tmp_path: Path,
) -> None:  # fmt: skip
    seed = int(os.environ.get("GRAPHWEFT_SEED", "0"))
    dice = random.Random(seed)
    model_server.fails = faults = Dice(seed)
    settings = environment(
        GRAPHWEFT_BUS_URL=url, GRAPHWEFT_GRAPH_URL=url, GRAPHWEFT_EXTRACTOR="graphiti:m",
        GRAPHWEFT_EXTRACTOR_URL=model_server.url, GRAPHWEFT_EXTRACTOR_TIMEOUT_MS="1500",
        GRAPHWEFT_EXTRACTOR_ATTEMPTS="2", GRAPHWEFT_EXTRACTOR_AT_ONCE="8", GRAPHWEFT_LEASE_S="1",
        GRAPHWEFT_BATCH_EVENTS="40", GRAPHWEFT_WORKER_NAME="one", GRAPHWEFT_PARTITIONS=str(PARTITIONS),
        GRAPHWEFT_LOG_FORMAT="json",
    )  # fmt: skip
    count = 64
    structured = range(0, count, 4)
    texts = set(range(count)) - set(structured)
    always_failing = {number for number in texts if number % 16 == 5}

    def content(number: int) -> Any:
        if number in structured:
            ends = {"source": f"Ann{number}", "target": f"Shop{number}"}
            return {
                "entities": [{"type": "Entity", "name": name} for name in ends.values()],
                "relations": [{"type": "OWNS", "fact": f"Ann{number} owns Shop{number}", **ends}],
            }
        return fact(number, " cursed" if number in always_failing else "")

    events = [add(number, content(number), chat=f"c{number % 7}") for number in range(count)]
    processes = {role: Process(role, tmp_path, settings) for role in ("memory", "mutation")}
    kills = dict.fromkeys(processes, 0)

    async def kill(role: str) -> None:
        process = processes[role]
        await until(lambda: process.works)
        await looks(bus.partitions.status, dice.randrange(80))
        process.kill()
        kills[role] += 1
        process.start()

    try:
        await put(transport, events[:30])
        for written, role in zip(range(30, count, 17), ("memory", "mutation"), strict=True):
            await put(transport, events[written : written + 17])
            await kill(role)
        await kill("memory")
        await applied(episodes_bus)
        letters = await bus.dead_letters.read(limit=1_000)
        failed = {int((letter.event_id or "")[1:]) for letter in letters}
        assert len(failed) == len(letters)
        assert {(letter.rule, letter.mutation) for letter in letters} == {("graphweft:extract", "extract")}
        assert {letter.reason for letter in letters} <= {"extraction_failed", "timeout"}
        assert always_failing <= failed <= texts
        read = {event.id for event in await extracted(bus)}
        assert read == {id_of(number) for number in texts - failed}, "either it is read, or it has a letter"

        faults.behaves = True
        again = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "graphweft_workers.cli", "dlq", "retry", "--all"), env=settings,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        await kill("mutation")
        assert await again.wait() == 0
        await applied(episodes_bus)
        await applied(bus, episodes_bus)
        assert [process.stop() for process in processes.values()] == [0, 0]
    finally:
        for process in processes.values():
            process.process.kill()
            process.process.wait()
    said = processes["memory"].file.read_text() + processes["mutation"].file.read_text()
    assert "Traceback" not in said
    assert "Ann1" not in said

    assert await letter_count(bus.dead_letters) == 0
    assert await facts(graph) == {f"n{number}": [f"Ann{number} owns Shop{number}"] for number in range(count)}
    counts = [
        (await rows(graph, f"MATCH {pattern} RETURN count(*)"))[0][0]
        for pattern in ("(e:Entity)", "(:Entity)-[x]->(:Entity)", "(:Relation)", "(:Episode)-[:MENTIONS]->(:Entity)")
    ]
    assert counts == [2 * count, count, count, 2 * count]
    log = await extracted(bus)
    assert len({event.id for event in log}) == len(texts)
    asked = len(model_server.requests)
    print(f"{kills} kills, {len(failed)} letters, {len(log) - len(texts)} events repeated, {asked} requests")

    again_bus = redis_bus(url, new=spread(PARTITIONS), group="graphweft-again")
    other = FalkorDBStore(url, graph_template="again_{app_id}")
    async with working(MutationWorker(again_bus, other, RULES, name="again")):
        await applied(again_bus)
    assert await read_digest(other, APP) == await read_digest(graph, APP)
    assert len(await extracted(bus)) == len(log), "a replay writes nothing"
    assert len(model_server.requests) == asked, "a replay asks no model"
    await other.aclose()
    await again_bus.aclose()
