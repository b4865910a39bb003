"""The services as FastStream applications: what ends them, what they finish, and what may live beside them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio as redis
from faststream import FastStream
from faststream.redis import RedisBroker, RedisRouter, StreamSub
from structlog.testing import capture_logs
from tests.services import waiting
from tests.services.buses import applied
from tests.services.fixtures import Logs, events_of
from tests.services.layouts import spread
from tests.services.rules import TURNS, rules_folder
from tests.services.waiting import until

from graphweft import Client
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import Event, channels
from graphweft_contracts.rules_log import StoredRules
from graphweft_rules import RulesError
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.processes.hosting import injection_app, mutation_app, role_app
from graphweft_workers.reports.delivery import SentEvents, send, wait_until_applied
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring import rules as rule_loading
from graphweft_workers.wiring.connections import make_bus
from graphweft_workers.wiring.rule_faults import read_faults

pytestmark = pytest.mark.integration

INJECTION = """\
injection_rules:
  - name: one
    agents: ["*"]
    queries:
      - {id: one, cypher: "RETURN 1 AS one", inject_as: one}
"""
Builder = Callable[[Settings], FastStream]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return rules_folder(tmp_path, TURNS)


@pytest.fixture
def settings(url: str, rules: Path) -> Settings:
    return Settings.load(bus_url=url, graph_url=url, rules=rules, partitions=2, order="chat")


@asynccontextmanager
async def running(app: FastStream) -> AsyncIterator[asyncio.Task[None]]:
    """Run an app beside the block; at its end the app has ended, and without an error."""
    task = asyncio.create_task(app.run())
    try:
        yield task
    finally:
        app.exit()
        await task


def started_of(app: FastStream) -> asyncio.Event:
    """Return what is set when the app's broker is connected."""
    started = asyncio.Event()

    async def note() -> None:
        started.set()

    app.after_startup(note)
    return started


async def turns(url: str, count: int) -> SentEvents:
    transport = RedisTransport(url, new=spread(2))
    try:
        return await send(
            transport,
            (
                Event.create(
                    "agent.turn_complete",
                    app_id="shop",
                    chat_id=f"chat-{number % 10}",
                    workflow="Support",
                    data={"agent_name": "helper", "success": True},
                )
                for number in range(count)
            ),
        )
    finally:
        await transport.aclose()


async def applied_turns(graph: FalkorDBStore) -> int:
    table = await graph.read("shop", "MATCH (a:Agent) RETURN a.turns", {}, timeout_s=120)
    return int(table.rows[0][0]) if table.rows else 0


@pytest.mark.long("2")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_faststream_runs_it_and_a_signal_lets_it_finish(
    settings: Settings, bus: Bus, graph: FalkorDBStore, number: signal.Signals
) -> None:
    events = 300
    sent = await turns(settings.bus, events)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "faststream", "run", "--factory", "graphweft_workers.processes.hosting:mutation_app"),
        env={k: v for k, v in os.environ.items() if not k.startswith("GRAPHWEFT_")}
        | {
            "GRAPHWEFT_BUS_URL": settings.bus,
            "GRAPHWEFT_GRAPH_URL": settings.graph,
            "GRAPHWEFT_RULES": str(settings.rules),
            "GRAPHWEFT_BATCH_EVENTS": "20",
        },
        stderr=asyncio.subprocess.PIPE,
    )

    async def begun() -> int:
        assert process.returncode is None
        return await applied_turns(graph)

    await until(begun)
    process.send_signal(number)
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert b"worker_stopped" in errors
    # Whatever took effect was committed: nothing is left for the next worker to do twice.
    status = await bus.partitions.status()
    # Each partition ends with the entry that activates the rules.
    left = sum(part.lag - 1 for part in status if part.lag)
    assert events - left == await applied_turns(graph)
    assert [part.owner for part in status] == [None, None]
    async with running(mutation_app(settings)):
        assert await wait_until_applied(bus, sent.last, timeout_s=120)
    assert await applied_turns(graph) == events


async def test_a_worker_that_breaks_ends_the_app_with_its_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: MutationWorker) -> None:
        await waiting.turns()
        raise LookupError("a defect")

    monkeypatch.setattr(MutationWorker, "run", broken)
    run = asyncio.create_task(mutation_app(settings).run())
    await asyncio.wait([run], timeout=120)
    assert run.done(), "the app lingers"
    with pytest.raises(LookupError, match="a defect"):
        await run


@pytest.mark.parametrize("build", [mutation_app, injection_app])
async def test_broken_rules_end_it_before_anything_starts(settings: Settings, build: Builder) -> None:
    (settings.rules / "Support/graph_injection.yaml").write_text(TURNS.replace("MERGE (a", "MERGE a"))
    with pytest.raises(RulesError, match=r"graph_injection\.yaml:8:39"):
        await build(settings).run()


@pytest.mark.parametrize("build", [mutation_app, injection_app])
@pytest.mark.parametrize(
    "fault", [TURNS.replace("MERGE (a", "MERGE a"), TURNS.replace("CREATE SET a.", "CREATE SET b.")]
)
async def test_one_broken_file_does_not_stop_a_start(
    settings: Settings, bus: Bus, build: Builder, fault: str, logs: Logs
) -> None:
    """Static errors, and a query that the server refuses: what is active goes on, and what is sound becomes active."""
    async with aclosing(make_bus(settings)) as own:
        await own.partitions.count()
        await rule_loading.push(own, rule_loading.load_rules(settings, as_stored=True))
        before = await rule_loading.active_files(own)
        assert [*before] == ["Support/graph_injection.yaml"]
        (settings.rules / "Support/graph_injection.yaml").write_text(fault)
        other = settings.rules / "Other/graph_injection.yaml"
        other.parent.mkdir()
        other.write_text(TURNS)
        app = build(settings)
        started = started_of(app)
        async with running(app) as task:
            await started.wait()
            await until(lambda: "rules_have_errors" in events_of(logs), beside=task)

            async def is_kept() -> bool:
                return bool(await read_faults(own))

            await until(is_kept)
            assert not task.done()
        assert await rule_loading.active_files(own) == {**before, "Other/graph_injection.yaml": TURNS.encode()}
        place = re.compile(r"Support/graph_injection\.yaml:\d+:\d+: error ")
        assert place.search(await read_faults(own))
        assert any(place.search(entry.get("error", "")) for entry in logs if entry["event"] == "rules_have_errors")
        (settings.rules / "Support/graph_injection.yaml").write_text(TURNS)
        app = build(settings)
        async with running(app) as task:

            async def is_gone() -> bool:
                return not await read_faults(own)

            await until(is_gone)


async def test_rules_that_are_active_are_not_compiled_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = settings.rules / "Other/graph_injection.yaml"
    other.parent.mkdir()
    other.write_text(TURNS)
    async with aclosing(make_bus(settings)) as bus:
        await bus.partitions.count()
        rules = rule_loading.load_rules(settings)
        await rule_loading.push(bus, rules)
        assert await rule_loading.load_new_rules(settings, bus) is None
        other.write_text(TURNS + "# changed\n")
        assert await rule_loading.load_new_rules(settings, bus) is not None
        other.unlink()
        found = await rule_loading.load_new_rules(settings, bus)
        assert found is not None
        assert set(found.workflows) == {"Support"}
        other.write_text(TURNS)
        new = settings.rules / "New/graph_injection.yaml"
        new.parent.mkdir()
        new.write_text(TURNS)
        assert await rule_loading.load_new_rules(settings, bus) is not None
        new.unlink()
        assert await rule_loading.load_new_rules(settings, bus) is None
        await bus.rules.store(rules.digest, StoredRules(files=rules.files, summary={"format": "another one"}))
        assert await rule_loading.load_new_rules(settings, bus) is not None
        await rule_loading.push_if_new(bus, rules, settings.rules)
        assert await rule_loading.load_new_rules(settings, bus) is None

    def compiled(*_: object, **__: object) -> None:
        raise AssertionError("the folder was compiled")

    monkeypatch.setattr(rule_loading, "load_rules", compiled)
    for build in (mutation_app, injection_app):
        app = build(settings)
        started = started_of(app)
        async with running(app):
            await started.wait()


@pytest.mark.parametrize("scope", ["*", "acme"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_a_lost_rule_set_of_the_folder_is_stored_again(
    settings: Settings, bus: Bus, logs: Logs, scope: str, replaced: bool
) -> None:
    rules = rule_loading.load_rules(settings)
    await rule_loading.push(bus, rules, scope)
    (settings.rules / "Support/graph_injection.yaml").write_text(TURNS + "# newer\n")
    if replaced or scope != "*":
        await rule_loading.push(bus, rule_loading.load_rules(settings))
    before = await bus.rules.activations()
    async with redis.Redis.from_url(settings.bus) as raw:
        await raw.hdel(channels.RULE_SETS, rules.digest)
    assert await bus.rules.stored(rules.digest) is None
    await rule_loading.push_if_new(bus, rules, settings.rules)
    assert await bus.rules.stored(rules.digest) is not None
    assert await bus.rules.activations() == before, "an old folder brings nothing back"
    assert events_of(logs).count("rules_stored_again") == 1


async def test_rules_that_were_stored_and_never_active_become_active(settings: Settings, bus: Bus) -> None:
    rules = rule_loading.load_rules(settings)
    (settings.rules / "Support/graph_injection.yaml").write_text(TURNS + "# older\n")
    await rule_loading.push(bus, rule_loading.load_rules(settings))
    await rule_loading.store(bus, rules)  # the bus lost its end between the two
    await rule_loading.push_if_new(bus, rules, settings.rules)
    assert [each.digest for each in await bus.rules.activations()][-1] == rules.digest


async def test_without_rules_it_keeps_the_events(settings: Settings, bus: Bus, logs: Logs) -> None:
    (settings.rules / "Support/graph_injection.yaml").unlink()
    await turns(settings.bus, 5)
    app = mutation_app(settings)
    started = started_of(app)
    async with running(app) as task:
        await started.wait()
        await until(lambda: "no_rules" in events_of(logs), beside=task)
        assert not task.done()
        await applied(bus)
    letters = await bus.dead_letters.read(limit=10)
    assert {letter.reason for letter in letters} == {"no_rules"}
    assert sum(letter.count for letter in letters) == 5


@pytest.mark.parametrize("on", [True, False])
async def test_rules_that_ask_for_facts_while_these_are_off_are_told(settings: Settings, logs: Logs, on: bool) -> None:
    rules = INJECTION.replace('cypher: "RETURN 1 AS one"', "graphrag: {query: $context.question}")
    (settings.rules / "Support/graph_injection.yaml").write_text(rules)
    app = injection_app(settings.model_copy(update={"graphrag_enabled": on}))
    async with running(app), Client(settings.bus, app_id="shop", workflow="Support") as client:
        await client.context(agent="A", chat_id="c", budget_ms=120_000)  # once it answers, it has its rules
    assert ("facts_off" in events_of(logs)) is not on


async def test_a_router_of_the_users_lives_beside_the_worker(
    settings: Settings, bus: Bus, graph: FalkorDBStore
) -> None:
    router = RedisRouter()
    heard: asyncio.Queue[str] = asyncio.Queue()

    @router.subscriber(stream=StreamSub("orders", last_id="0"))
    async def on_order(order: str) -> None:
        await heard.put(order)

    app = mutation_app(settings)
    broker = app.broker
    assert broker is not None
    broker.include_router(router)
    sent = await turns(settings.bus, 20)
    async with running(app):
        assert await wait_until_applied(bus, sent.last, timeout_s=120)

        async def is_heard() -> bool:
            await broker.publish("tea", stream="orders")
            return not heard.empty()

        await until(is_heard)
    assert await heard.get() == "tea"
    assert await applied_turns(graph) == 20


async def test_the_app_of_a_command_has_no_broker_and_applies_events(
    settings: Settings, bus: Bus, graph: FalkorDBStore
) -> None:
    app = role_app("mutation", settings)
    assert app.broker is None
    sent = await turns(settings.bus, 20)
    async with running(app):
        assert await wait_until_applied(bus, sent.last, timeout_s=120)
    assert await applied_turns(graph) == 20


async def test_the_log_tells_how_often_rows_were_at_hand(settings: Settings, graph: FalkorDBStore) -> None:
    (settings.rules / "Support/graph_injection.yaml").write_text(INJECTION)
    await graph.progress("shop", 0)  # without a graph there is no version, and nothing is kept
    app = injection_app(settings)
    with capture_logs() as logs:
        async with running(app) as task, Client(settings.bus, app_id="shop", workflow="Support") as client:
            for _ in range(20):
                reply = await client.context(agent="A", chat_id="c", budget_ms=120_000)
                assert reply.blocks
            app.exit()
            await task
    [counts] = [entry for entry in logs if entry["event"] == "responder_stopped"]
    # The version is read beside the first requests: until it is known, no rows are of it.
    assert counts["answered"] == counts["cache_hits"] + counts["cache_misses"] == 20
    assert counts["cache_hits"] > 0
    assert counts["cache_bytes"] > 0


@pytest.mark.parametrize("build", [mutation_app, injection_app])
async def test_a_bus_that_is_away_at_the_start_is_waited_for(
    tmp_path: Path, rules: Path, build: Builder, logs: Logs
) -> None:
    server = EmbeddedServer(tmp_path / "late")
    address = f"unix://{server.socket}"
    app = build(Settings.load(bus_url=address, graph_url=address, rules=rules))
    started = started_of(app)
    async with running(app) as task:
        await until(lambda: events_of(logs), lambda said: "bus_unavailable" in said, beside=task)
        assert not started.is_set()
        await server.start()
        try:
            await started.wait()
        finally:
            app.exit()
            await task
            await server.stop()


async def test_a_bus_that_goes_away_while_it_connects_is_waited_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = RedisBroker.start, 2

    async def breaking(broker: RedisBroker) -> None:
        nonlocal left
        await real(broker)
        if left:
            left -= 1
            raise ConnectionResetError("cut in the middle")

    monkeypatch.setattr(RedisBroker, "start", breaking)
    app = mutation_app(settings)
    started = started_of(app)
    async with running(app) as task:
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert started.is_set()
        waiting.cancel()
    assert left == 0


async def test_a_stop_while_the_bus_is_away_ends_it(tmp_path: Path, rules: Path, logs: Logs) -> None:
    address = f"unix://{tmp_path / 'nobody.sock'}"
    async with running(mutation_app(Settings.load(bus_url=address, graph_url=address, rules=rules))) as task:
        await until(lambda: events_of(logs), lambda said: "bus_unavailable" in said, beside=task)
