"""Quotas of apps through the real bus, worker and graph: the use is counted, and a neighbour not affected."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.services.buses import applied, mutation_bus
from tests.services.rules import load_rules
from tests.services.waiting import until
from tests.services.workers import working

from graphweft import Client
from graphweft.client_messages import encoded_event
from graphweft.outbox import EncodedEvent
from graphweft.transports.registry import make_transport
from graphweft_contracts import Event, Layout
from graphweft_rules import RuleSet
from graphweft_workers.apps import AppPolicies, AppPolicy, Quotas
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.usage.app_use import LETTERS, AppUse, decode_letters, read_uses
from graphweft_workers.engine.usage.partition_usage import PartitionUsage
from graphweft_workers.engine.usage.usage_reporter import UsageReporter
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.gateway.quotas import QuotaLimiter
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.processes.gateway_usage import GatewayUsage
from graphweft_workers.support.timing import TIMING, QuotaTiming, Timing

pytestmark = pytest.mark.integration
HOG, NEIGHBOUR = "hog", "neighbour"
ONE = Layout(partitions=2, order="app")
RULES = """
version: "1.0"
mutation_rules:
  - name: things
    events: ["thing.made"]
    mutations:
      - id: keep
        cypher: "MERGE (t:Thing {id: $id}) SET t += $traits"
        params: {id: $event.id, traits: $event.traits}
  - name: shares
    events: ["thing.split"]
    mutations:
      - id: divide
        cypher: "MERGE (s:Share {id: $id}) SET s.part = 100 / $parts"
        params: {id: $event.id, parts: $event.parts}
"""


@pytest_asyncio.fixture
async def bus(own_bus_url: str | None, url: str) -> AsyncIterator[Bus]:
    async with contextlib.aclosing(mutation_bus(own_bus_url or url, ONE, lease_s=5.0)) as made:
        await made.partitions.count()
        yield made


@pytest_asyncio.fixture
async def client(own_bus_url: str | None, url: str, bus: Bus) -> AsyncIterator[Client]:
    async with Client(transport=make_transport(own_bus_url or url, new=ONE)) as made:
        yield made


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop/graph_injection.yaml").write_text(RULES)
    return load_rules(tmp_path)


def policies_of(**quotas: Any) -> AppPolicies:
    return AppPolicies(apps={HOG: AppPolicy(quotas=Quotas(**quotas))})


def running(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet, policies: AppPolicies, timing: Timing = TIMING
) -> contextlib.AbstractAsyncContextManager[MutationWorker]:
    return working(bus, graph, rules, quotas=lambda app_id: policies.of(app_id).quotas, timing=timing)


def event(kind: str, app_id: str, number: int, **data: Any) -> Event:
    return Event.create(
        f"thing.{kind}", app_id=app_id, chat_id="c", workflow="Shop", data={"id": number, **data},
        id=f"{kind}-{number}", source="/t",
    )  # fmt: skip


async def sent(client: Client, events: Sequence[Event]) -> None:
    assert all(await client.emit_all(events, wait_s=120))


async def uses_of(bus: Bus, policies: AppPolicies | None = None) -> dict[str, AppUse]:
    letters = await bus.dead_letters.by_app()
    uses, unread = read_uses(
        (await bus.usage.after(None)).found, policies or AppPolicies(), time.time(), letters=letters
    )
    assert not unread
    return {use.app_id: use for use in uses}


async def reported(bus: Bus) -> None:
    """Wait until a worker has said how many dead letters each app has."""

    async def look() -> tuple[object, object]:
        return decode_letters(
            ((await bus.usage.after(None)).found).get(LETTERS, b"{}")
        ), await bus.dead_letters.by_app()

    await until(look, lambda found: found[0] == found[1], why="what a worker said is what there is")


async def column(graph: FalkorDBStore, app_id: str, statement: str) -> list[Any]:
    return [row[0] for row in (await graph.read(app_id, statement, {}, timeout_s=120)).rows]


async def test_what_each_app_keeps_is_counted_over_restarts_and_trims(
    bus: Bus, client: Client, graph: FalkorDBStore, rules: RuleSet
) -> None:
    traits = {"text": "x" * 1_000}
    await sent(client, [event("made", HOG, number, traits=traits) for number in range(30)])
    await sent(client, [event("made", NEIGHBOUR, 1, traits={})])
    async with running(bus, graph, rules, AppPolicies()):
        await applied(bus)
    uses = await uses_of(bus)
    assert 30_000 < uses[HOG].stored_bytes < 50_000
    assert 200 < uses[NEIGHBOUR].stored_bytes < 1_000
    assert uses[HOG].events_per_s == pytest.approx(0.5)
    assert uses[HOG].dead_letters == 0
    async with running(bus, graph, rules, AppPolicies()):  # nothing is counted twice
        await sent(client, [event("made", HOG, 30, traits=traits)])
        await applied(bus)
    again = await uses_of(bus)
    assert 1_000 < again[HOG].stored_bytes - uses[HOG].stored_bytes < 2_000
    assert again[NEIGHBOUR].stored_bytes == uses[NEIGHBOUR].stored_bytes
    for status in await bus.partitions.status():
        if status.end:
            await bus.partitions.trim(status.id, status.position)
    often = Timing(usage_s=0.05)
    async with running(bus, graph, rules, AppPolicies(), often):
        await until(
            lambda: uses_of(bus), lambda uses: not any(use.stored_bytes for use in uses.values()),
            why="nothing is stored any more",
        )  # fmt: skip
        await sent(client, [event("made", HOG, 31, traits=traits)])
        await applied(bus)
    assert {use.app_id: use.stored_bytes > 1_000 for use in (await uses_of(bus)).values() if use.stored_bytes} == {
        HOG: True
    }
    assert (await uses_of(bus))[HOG].property_names == len(await graph.property_names(HOG)) > 2


@pytest.mark.long("kafka")
async def test_dead_letters_above_the_quota_keep_no_event_and_are_retried_from_the_log(
    bus: Bus, client: Client, graph: FalkorDBStore, rules: RuleSet, tmp_path: Path
) -> None:
    policies = policies_of(dead_letters=3)
    for app_id in (HOG, NEIGHBOUR):
        await sent(client, [event("split", app_id, number, parts=0, note="secret") for number in range(6)])
    async with running(bus, graph, rules, policies):
        await applied(bus)
    letters = await bus.dead_letters.read(limit=50)
    kept = {app_id: [bool(each.fields) for each in letters if each.app_id == app_id] for app_id in (HOG, NEIGHBOUR)}
    assert kept == {HOG: [True] * 3 + [False] * 3, NEIGHBOUR: [True] * 6}
    assert all(each.reason == "query_error" and each.rule == "shares" and each.event_id for each in letters)
    uses = await uses_of(bus, policies)
    assert (uses[HOG].dead_letters, uses[HOG].without_payload, uses[HOG].shares()["dead_letters"]) == (6, 3, 2.0)
    assert (uses[NEIGHBOUR].dead_letters, uses[NEIGHBOUR].without_payload) == (6, 0)
    file = tmp_path / "Shop/graph_injection.yaml"
    file.write_text(RULES.replace("100 / $parts", "$parts"))
    for letter in letters:
        assert (await retry(bus, letter)).events == 1
        assert not (await retry(bus, letter)).events
    async with running(bus, graph, load_rules(tmp_path), policies):
        await applied(bus)
    assert await letter_count(bus.dead_letters) == 0
    for app_id in (HOG, NEIGHBOUR):
        assert await column(graph, app_id, "MATCH (s:Share) RETURN s.id ORDER BY s.id") == list(range(6))
    assert await bus.dead_letters.by_app() == {}


@pytest.mark.soak("kafka")
async def test_partitions_that_close_while_names_are_counted_are_reported(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    apps = [f"app{number}" for number in range(5)]
    usage = UsageReporter(bus, graph)
    for partition in (0, 1):
        await usage.open(partition)
        entries = [
            LoggedEvent(
                Entry(offset=str(number), fields={}, received=datetime.now(UTC)),
                event("made", app_id, number),
                rules,
                1,
            )
            for number, app_id in enumerate(apps[partition::2])
        ]
        usage.add(partition, entries, 0, len(entries))
    await usage.report()  # the next one asks for the names: by then the events are in the graphs
    await asyncio.gather(usage.close(0), usage.report(), usage.close(1))
    records = (await bus.usage.after(None)).found
    for partition in (0, 1):
        assert PartitionUsage.decode(records[f"partition:{partition}"]).end == len(apps[partition::2])


@pytest.mark.soak("kafka")
async def test_an_event_that_brings_too_many_names_is_a_dead_letter_and_retried_with_a_larger_quota(
    bus: Bus, client: Client, graph: FalkorDBStore, rules: RuleSet
) -> None:
    policies = policies_of(property_names=40)
    wide = {f"n{number}": number for number in range(100)}
    for app_id in (HOG, NEIGHBOUR):
        await sent(client, [
            event("made", app_id, 0, traits={"a": 1, "b": 1}), event("made", app_id, 1, traits=wide),
            event("made", app_id, 2, traits={"a": 2, "c": 2}), event("split", app_id, 3, parts=4),
        ])  # fmt: skip
    async with running(bus, graph, rules, policies):
        await applied(bus)
    [letter] = await bus.dead_letters.read(limit=9)
    assert (letter.app_id, letter.reason, letter.event_id) == (HOG, "over_quota", "made-1")
    assert (letter.rule, letter.mutation) == ("things", "keep")
    assert "its quota is 40" in letter.message
    assert "100 more" in letter.message
    assert "n1" not in letter.message, "names are the event's"
    assert await column(graph, HOG, "MATCH (t:Thing) RETURN t.id ORDER BY t.id") == [0, 2]
    assert await column(graph, NEIGHBOUR, "MATCH (t:Thing) RETURN t.id ORDER BY t.id") == [0, 1, 2]
    assert await column(graph, HOG, "MATCH (s:Share) RETURN s.part") == [25]
    names = {app_id: len(await graph.property_names(app_id)) for app_id in (HOG, NEIGHBOUR)}
    assert names[HOG] <= 40 < 100 < names[NEIGHBOUR]
    assert (await retry(bus, letter)).events == 1
    async with running(bus, graph, rules, policies_of(property_names=200)):
        await applied(bus)
    assert await letter_count(bus.dead_letters) == 0
    assert await column(graph, HOG, "MATCH (t:Thing {id: 1}) RETURN t.n99") == [99]


@pytest.mark.soak("kafka")
async def test_a_gateway_refuses_what_goes_above_what_an_app_may_keep_and_reports_it(
    bus: Bus, client: Client, graph: FalkorDBStore, rules: RuleSet
) -> None:
    often = Timing(usage_s=0.05)
    policies = policies_of(stored_bytes=5_000, dead_letters=2)
    gate = QuotaLimiter(lambda app_id: policies.of(app_id).quotas)
    spans = {NEIGHBOUR: Counter({"no_operation": 3, "refused": 1})}
    usage = GatewayUsage(bus.usage, gate, lambda: policies, spans, name="here:1")

    def some(app_id: str) -> list[EncodedEvent]:
        return [encoded_event(event("split", app_id, 9, parts=0, text="x"))]

    await usage.exchange()
    gate.take(HOG, some(HOG))
    for app_id in (HOG, NEIGHBOUR):
        await sent(client, [event("split", app_id, number, parts=0, text="x" * 2_000) for number in range(3)])
    for quota in ("stored_bytes", "dead_letters"):
        async with running(bus, graph, rules, policies, often):
            await applied(bus)
            await reported(bus)
        await usage.exchange()
        with pytest.raises(Problem) as refused:
            gate.take(HOG, some(HOG))
        assert (refused.value.status, refused.value.more["quota"]) == (507, quota)
        gate.take(NEIGHBOUR, some(NEIGHBOUR))
        policies = policies_of(dead_letters=2)
    await usage.exchange()
    uses = await uses_of(bus, policies)
    assert uses[HOG].refused == {"stored_bytes": 1, "dead_letters": 1}
    assert (uses[NEIGHBOUR].spans, uses[NEIGHBOUR].refused) == ({"no_operation": 3, "refused": 1}, {})
    restarted = QuotaLimiter(lambda app_id: policies.of(app_id).quotas)
    usage = GatewayUsage(bus.usage, restarted, lambda: policies, {}, name="here:1")
    await usage.exchange()
    with pytest.raises(Problem):
        restarted.take(HOG, some(HOG))
    await usage.exchange()
    assert (await uses_of(bus, policies))[HOG].refused == {"stored_bytes": 1, "dead_letters": 2}
    for letter in await bus.dead_letters.read(limit=9):
        assert await bus.dead_letters.requeue(letter, [])
    async with running(bus, graph, rules, policies, often):
        await reported(bus)
    await usage.exchange()
    restarted.take(HOG, some(HOG))
    assert json.loads(((await bus.usage.after(None)).found)["gateway:here:1"])["apps"] == {
        HOG: {"stored_bytes": 1, "dead_letters": 2},
        NEIGHBOUR: {"spans:no_operation": 3, "spans:refused": 1},
    }


async def test_a_gateway_without_policies_asks_nothing_of_the_bus_until_a_span_gave_no_event(bus: Bus) -> None:
    spans: dict[str, Counter[str]] = {}
    usage = GatewayUsage(bus.usage, QuotaLimiter(lambda _: Quotas()), None, spans, name="here:2")
    await usage.exchange()
    assert (await bus.usage.after(None)).found == {}
    spans[HOG] = Counter({"no_operation": 2})
    for _ in range(2):
        await usage.exchange()
    assert (await uses_of(bus, AppPolicies()))[HOG].spans == {"no_operation": 2}


@pytest.mark.soak("kafka")
async def test_a_graph_that_takes_too_much_memory_grows_no_more_and_is_filled_later(
    bus: Bus, client: Client, graph: FalkorDBStore, rules: RuleSet
) -> None:
    policies, always = policies_of(graph_bytes=3_000_000), Timing(quota=QuotaTiming(measure_s=0.0))
    text = "x" * 100_000

    def made(app_id: str, numbers: range) -> list[Event]:
        return [event("made", app_id, number, traits={"text": f"{number}{text}"}) for number in numbers]

    async with running(bus, graph, rules, policies, always):
        for app_id in (HOG, NEIGHBOUR):
            await sent(client, made(app_id, range(60)))  # a batch may bring it beyond the quota
        await applied(bus)
        assert await graph.memory_of(HOG) > 3_000_000
        for app_id in (HOG, NEIGHBOUR):
            await sent(client, made(app_id, range(60, 70)))
        scope = {"user_id": "u"}
        forget = Event.create(
            "memory.erase", app_id=HOG, chat_id="c", data=scope, source="/t", id="e", user_id="u", workflow="Shop"
        )
        await sent(client, [forget])
        await applied(bus)
        letters = await bus.dead_letters.read(limit=50)
        assert {letter.app_id for letter in letters} == {HOG}
        assert {letter.reason for letter in letters} == {"over_quota"}
        [there] = await column(graph, HOG, "MATCH (t:Thing) RETURN count(t)")
        assert 0 < there <= 60
        assert sum(letter.count for letter in letters) == 70 - there, "what removes something is applied"
        assert "its quota is 3,000,000" in letters[0].message
        assert await column(graph, NEIGHBOUR, "MATCH (t:Thing) RETURN count(t)") == [70]
    use = (await uses_of(bus, policies))[HOG]
    assert use.graph_bytes is not None
    assert use.graph_bytes > 3_000_000
    assert use.shares()["graph_bytes"] > 1
    for letter in letters:
        assert (await retry(bus, letter)).events == letter.count
    async with running(bus, graph, rules, policies_of(graph_bytes=300_000_000), always):
        await applied(bus)
    assert await column(graph, HOG, "MATCH (t:Thing) RETURN count(t)") == [70]
    assert await letter_count(bus.dead_letters) == 0
