"""Rules in the log: each event is applied by exactly the rules that were active at its place."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from tests.redis.test_memory_worker import OneWrite
from tests.services.buses import applied, mutation_bus
from tests.services.rules import PACKS
from tests.services.waiting import until

from graphweft import Event
from graphweft.transport import Outgoing, Transport
from graphweft.transports.registry import make_transport
from graphweft_contracts import Layout, channels, wire
from graphweft_contracts.rules_log import StoredRules, announced, digest_of, restated_scope
from graphweft_rules import RuleSet
from graphweft_rules.matching.rule_summary import RuleSummary
from graphweft_workers.drivers import dialects
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.event_log import RedisEventLog
from graphweft_workers.engine.apply.app_queues import AppQueues
from graphweft_workers.engine.failures.returned_rules import ReturnedRules
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.rule_sets.active_rules import LoggedRules
from graphweft_workers.rule_sets.lost_rule_sets import lost_rule_sets

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

LAYOUT = Layout(partitions=4)
APPS = ("acme", "globex", "initech")
RULES = """
version: "1.0"
mutation_rules:
  - name: seen
    events: ["a.b"]
    mutations:
      - id: {name}
        cypher: |
          MERGE (n:Thing {{k: $k}}) SET n.by = coalesce(n.by, '') + '{name}'
          MERGE (l:Last {{k: 'last'}}) SET l.k_last = $k
        params: {{k: $event.k}}
"""


def compiled(files: Mapping[str, bytes]) -> RuleSet:
    return RuleSet.of_files(files, PACKS, dialects())


def stored(rules: StoredRules) -> RuleSet:
    summary = RuleSummary.from_json(rules.summary)
    return RuleSet.of_stored(rules.files, PACKS, dialects(), summary=summary)


def rules_named(name: str, *workflows: str) -> RuleSet:
    text = RULES.format(name=name).encode()
    return compiled({f"{workflow}/graph_injection.yaml": text for workflow in workflows or ("W",)})


def event(app: str, number: int, workflow: str = "W") -> Outgoing:
    made = Event.create(
        "a.b", app_id=app, chat_id=f"c{number % 7}", workflow=workflow, id=f"{app}{number}", source="/test",
        data={"k": f"k{number}"},
    )  # fmt: skip
    return Outgoing(key=made.key, fields=wire.encode(made))


async def store(bus: Bus, rules: RuleSet) -> None:
    """Store the files of a rule set, as for a lost one that is pushed again."""
    await bus.rules.store(rules.digest, StoredRules(files=rules.files, summary=rules.summary.to_json()))


async def push(bus: Bus, rules: RuleSet, scope: str = "*") -> None:
    await store(bus, rules)
    await bus.rules.activate(scope, rules.digest)


class Stack:
    """A bus, a graph, and workers that can be killed."""

    def __init__(self, bus_url: str, graph_url: str) -> None:
        self.bus_url = bus_url
        self.graph_url = graph_url

    def bus(self) -> Bus:
        return mutation_bus(self.bus_url, LAYOUT, lease_s=1.0)

    def transport(self) -> Transport:
        return make_transport(self.bus_url, new=LAYOUT)

    @contextlib.asynccontextmanager
    async def worker(
        self, name: str, *, kill: bool = False, seen: Callable[[Any], Any] = lambda graph: graph
    ) -> AsyncIterator[LoggedRules]:
        """Run a worker; it ends in order, or as a crash would end it. ``seen`` is the graph as the worker sees it."""
        bus, graph = self.bus(), FalkorDBStore(self.graph_url)
        rules = LoggedRules(bus.rules, stored, without_lost=True)
        worker = MutationWorker(bus, seen(graph), rules, name=name, lease_s=1.0, batch_events=50)
        running = asyncio.create_task(worker.run())
        try:
            yield rules
        finally:
            if kill:
                running.cancel()
            worker.stop()
            results = await asyncio.gather(running, return_exceptions=True)
            await bus.aclose()
            await graph.aclose()
            if isinstance(results[0], Exception):
                raise results[0]

    async def found(self, app: str, query: str = "MATCH (n:Thing) RETURN n.k, n.by") -> dict[str, str]:
        async with contextlib.aclosing(FalkorDBStore(self.graph_url)) as graph:
            table = await graph.read(app, query, {}, timeout_s=120)
        return dict(table.rows)  # type: ignore[arg-type]


async def lose(url: str, digest: str) -> None:
    """Remove the content of a rule set from a Redis bus, as an operator would who deletes the wrong key."""
    async with redis.Redis.from_url(url) as raw:
        assert await raw.hdel(channels.RULE_SETS, digest)


@pytest.fixture(params=["redis", "kafka"])
def stack(request: pytest.FixtureRequest, url: str) -> Stack:
    return Stack(url if request.param == "redis" else request.getfixturevalue("kafka_url"), url)


def under_way(patch: pytest.MonkeyPatch, owner: type, name: str) -> list[object]:
    """Return the calls of a method that have not returned."""
    calls: list[object] = []
    real = getattr(owner, name)

    async def call(*arguments: Any, **options: Any) -> Any:
        calls.append(this := object())
        try:
            return await real(*arguments, **options)
        finally:
            calls.remove(this)

    patch.setattr(owner, name, call)
    return calls


def looks_for_rules(patch: pytest.MonkeyPatch) -> list[set[str]]:
    """Return which rule sets were lost whenever a worker has looked for events that have rules now."""
    found: list[set[str]] = []
    real = ReturnedRules.publish

    async def look(returned: Any) -> None:
        lost = {*returned._rules.lost}
        await real(returned)
        found.append(lost)

    patch.setattr(ReturnedRules, "publish", look)
    return found


async def taken_effect(stack: Stack, count: int) -> None:
    """Wait until as many events of acme have taken effect."""

    async def have() -> bool:
        return len(await stack.found("acme")) == count

    await until(have)


async def expected_by(bus: Bus, sets: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return by app and key which rules the log says, read entry by entry, without the code under test."""
    scopes_of = {each.number: (each.scope, sets[each.digest]) for each in await bus.rules.activations()}
    found: dict[str, dict[str, str]] = {app: {} for app in APPS}
    for partition in range(LAYOUT.partitions):
        active: dict[str, str] = {}
        offset = ""
        while entries := await bus.log.after(partition, offset, limit=500):
            for entry in entries:
                offset = entry.offset
                number = announced(entry.fields)
                if number is not None:
                    scope, name = scopes_of[number]
                    active[scope] = name
                    continue
                read = wire.decode(entry.fields, received=entry.received)
                found[read.appid][read.data["k"]] = active.get(read.appid) or active["*"]
    return found


@pytest.mark.long("kafka")
async def test_each_event_is_applied_by_the_rules_that_were_active_at_its_place(stack: Stack) -> None:
    chance, pauses = random.Random(7), random.Random(8)  # apart, so that all three rule sets are always chosen
    names = ["A", "B", "C"]
    sets = {name: rules_named(name) for name in names}
    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await bus.partitions.count()
        await push(bus, sets["A"])
        async with stack.worker("steady"):
            emitted = 0

            async def lag() -> int:
                return sum([each.lag for each in await bus.partitions.status()])

            async def emit(beside: asyncio.Future[Any]) -> None:
                nonlocal emitted
                while emitted < 1_200 or not beside.done():
                    await transport.append([event(app, n) for n in range(emitted, emitted + 30) for app in APPS])
                    emitted += 30
                    await until(lag, lambda events: events < 600, why="the backlog is short")

            async def later(most: int) -> None:
                # What is on its way may have got its place before: the second one has it after.
                goal = emitted + 30 * pauses.randint(2, most + 1)
                await until(lambda: emitted, lambda count: count >= goal)

            async def activate() -> None:
                for _ in range(8):
                    await later(5)
                    scope = chance.choice(["*", "*", "acme"])
                    await push(bus, sets[chance.choice(names)], scope)
                await later(1)  # the last one takes effect, too

            async def kill() -> None:
                for number in range(3):
                    async with stack.worker(f"killed{number}", kill=True):
                        await later(20)

            others = asyncio.gather(activate(), kill())
            await asyncio.gather(emit(others), others)
            await applied(bus)
        expected = await expected_by(bus, {rules.digest: name for name, rules in sets.items()})
        assert len({name for app in APPS for name in expected[app].values()}) == 3
        for app in APPS:
            assert len(expected[app]) >= 1_200
            assert await stack.found(app) == expected[app]
        assert await letter_count(bus.dead_letters) == 0


@pytest.mark.long("kafka")
async def test_events_without_rules_wait_for_them_and_are_applied_once(stack: Stack) -> None:
    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await bus.partitions.count()
        async with stack.worker("one"):
            await push(bus, rules_named("A", "Other"))
            await transport.append([event(app, n) for n in range(40) for app in APPS])
            await transport.append([event("acme", n, "Unknown") for n in range(40, 50)])
            await applied(bus)
            assert {letter.reason for letter in await bus.dead_letters.read(limit=100)} == {"no_rules"}
            assert await stack.found("acme") == {}
            await push(bus, rules_named("B", "W"), "acme")

            async def in_acme() -> bool:
                return len(await stack.found("acme")) == 40

            await until(in_acme)
            assert await stack.found("globex") == {}  # these rules are acme's
            await push(bus, rules_named("C", "W", "Other"))

            async def in_all() -> bool:
                return len(await stack.found("globex")) == len(await stack.found("initech")) == 40

            await until(in_all)
            await applied(bus)
        assert set((await stack.found("acme")).values()) == {"B"}
        assert set((await stack.found("globex")).values()) == {"C"}
        [left] = await bus.dead_letters.read(limit=100)
        assert (left.workflow, left.count) == ("Unknown", 10)


@pytest.mark.soak("kafka")
async def test_what_was_published_before_the_first_rules_follows_these(stack: Stack) -> None:
    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await transport.append([event(app, n) for n in range(20) for app in APPS])
        await push(bus, rules_named("A"))
        await push(bus, rules_named("B"))
        await transport.append([event("acme", 20)])
        async with stack.worker("one"):
            await applied(bus)
        assert await stack.found("acme") == {**{f"k{n}": "A" for n in range(20)}, "k20": "B"}
        assert await letter_count(bus.dead_letters) == 0


@pytest.mark.soak("kafka")
async def test_a_quarantined_mutation_is_tried_anew_with_other_rules(stack: Stack, tmp_path: Path) -> None:
    broken = RULES.replace("coalesce(n.by, '') + '{name}'", "toString(1 / 0)").format(name="X").encode()
    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await push(bus, compiled({"W/graph_injection.yaml": broken}))
        async with stack.worker("one"):
            await transport.append([event("acme", n) for n in range(60)])
            await applied(bus)
            assert "quarantined" in {letter.reason for letter in await bus.dead_letters.read(limit=100)}
            mended = RULES.format(name="X").encode()
            await push(bus, compiled({"W/graph_injection.yaml": mended}))
            await transport.append([event("acme", n) for n in range(60, 80)])
            await applied(bus)
            assert len(await stack.found("acme")) == 20


async def test_an_entry_that_only_looks_like_an_activation_changes_nothing(stack: Stack) -> None:
    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await push(bus, rules_named("A"))
        forged: list[dict[bytes, bytes]] = [
            {wire.ACTIVATION: b'{"number": 99, "scope": "*", "rules": "x"}'},
            {wire.ACTIVATION: b'{"number": 1}'},
            {wire.ACTIVATION: b"[" * 50_000},
            {wire.ACTIVATION: b'{"number": true}', wire.DATA: b"{}"},
        ]
        async with stack.worker("one"):
            await transport.append([event("acme", 0)])
            await transport.append([Outgoing(key="acme/c", fields=fields) for fields in forged])
            await transport.append([event("acme", 1)])
            await applied(bus)
            await transport.append([Outgoing(key="acme/c", fields=forged[0])])
            await push(bus, rules_named("B"))
            await transport.append([Outgoing(key="acme/c", fields=forged[0]), event("acme", 2)])
            await applied(bus)
        assert await stack.found("acme") == {"k0": "A", "k1": "A", "k2": "B"}
        letters = await bus.dead_letters.read(limit=100)
        assert [letter.reason for letter in letters] == ["invalid_event"]  # the one that holds data


async def test_a_lost_rule_set_parks_the_apps_that_need_it_and_no_others(url: str) -> None:
    stack = Stack(url, url)
    lost, other = rules_named("A"), rules_named("B")
    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await bus.partitions.count()
        await push(bus, other)
        await push(bus, lost, "acme")
        async with stack.worker("before"):
            await transport.append([event(app, n) for n in range(3) for app in APPS])
            await applied(bus)
        await lose(url, lost.digest)
        await transport.append([event(app, n) for n in range(3, 6) for app in APPS])
        await push(bus, other, "acme")  # what was published before waits; so does what comes after it
        await transport.append([event(app, n) for n in range(6, 9) for app in APPS])

        async def reported() -> set[tuple[str, str]]:
            notes = [PositionNote.decode(each.note) for each in await bus.partitions.status()]
            return {(app, each.why) for note in notes for app, each in note.parked.items()}

        async with stack.worker("after") as rules:

            async def others_are_done() -> bool:
                return len(await stack.found("globex")) == len(await stack.found("initech")) == 9

            async def is_parked() -> bool:
                return await reported() == {("acme", "rules_lost")}

            await until(others_are_done)
            await until(is_parked)
            assert (rules.lost, len(await stack.found("acme"))) == ({lost.digest}, 3)
            assert list(await lost_rule_sets(bus.rules, await bus.rules.activations())) == [lost.digest]
            assert await letter_count(bus.dead_letters) == 0
            await store(bus, lost)
            await applied(bus)
            assert rules.lost == set()
        expected = {f"k{n}": "A" if n < 6 else "B" for n in range(9)}
        assert await stack.found("acme") == expected
        assert await letter_count(bus.dead_letters) == 0
        assert await stack.found("acme", "MATCH (l:Last) RETURN l.k, l.k_last") == {"last": "k8"}


async def test_an_app_whose_past_is_restated_waits_for_no_lost_rule_set(url: str) -> None:
    stack = Stack(url, url)
    lost, other = rules_named("A"), rules_named("B")
    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await bus.partitions.count()
        await push(bus, lost)
        await lose(url, lost.digest)
        await transport.append([event("acme", n) for n in range(3)])
        await push(bus, other)

        async def is_parked() -> bool:
            return any(PositionNote.decode(each.note).parked for each in await bus.partitions.status())

        async with stack.worker("one") as rules:
            await until(is_parked)
            await bus.rules.activate(restated_scope("acme"), other.digest)
            await applied(bus)
            assert rules.lost == {lost.digest}
        assert await stack.found("acme") == {"k0": "B", "k1": "B", "k2": "B"}


class Hanging:
    """A graph store that never answers a write of one app."""

    def __init__(self, graph: FalkorDBStore, app_id: str) -> None:
        self._graph = graph
        self._app_id = app_id
        self.asked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def apply(self, app_id: str, partition: int, writes: Any) -> Any:
        if app_id == self._app_id:
            self.asked = True
            await asyncio.Event().wait()
        return await self._graph.apply(app_id, partition, writes)


async def test_a_restatement_is_seen_while_the_partition_reads_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another app has a batch of events that wait, and no more apps may be parked."""
    monkeypatch.setattr(sys.modules[__name__], "LAYOUT", Layout(partitions=1))
    stack = Stack(url, url)
    lost, other = rules_named("A"), rules_named("B")
    apps = [f"app{number}" for number in range(30)]
    graphs: list[Hanging] = []

    def hanging(graph: FalkorDBStore) -> Hanging:
        graphs.append(Hanging(graph, "busy"))
        return graphs[0]

    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await bus.partitions.count()
        await push(bus, lost)
        await push(bus, other, "busy")
        await lose(url, lost.digest)
        await transport.append([event(app, 0) for app in apps])
        await transport.append([event("busy", number) for number in range(1_000)])
        reading, settling = under_way(monkeypatch, RedisEventLog, "read"), under_way(monkeypatch, AppQueues, "settle")

        async def reads_nothing() -> bool:
            parked = {app for each in await bus.partitions.status() for app in PositionNote.decode(each.note).parked}
            return len(parked) == 24 and graphs[0].asked and bool(settling) and not reading

        async def is_applied() -> bool:
            return await stack.found("app0") == {"k0": "B"}

        async with stack.worker("one", kill=True, seen=hanging) as rules:
            await until(reads_nothing)
            await bus.rules.activate(restated_scope("app0"), other.digest)
            await until(is_applied)
            assert rules.lost == {lost.digest}


@pytest.mark.long
async def test_a_half_done_batch_needs_no_lost_rules_of_other_events(url: str) -> None:
    """Between events of its rule set are some for which another one, which is lost, had no mutations."""
    stack = Stack(url, url)
    last = "          MERGE (l:Last {{k: 'last'}}) SET l.k_last = $k\n"
    text = RULES.replace(last, "").format(name="A") + (
        "      - {id: more, cypher: 'MERGE (m:More {k: $k}) SET m.times = coalesce(m.times, 0) + 1', "
        "params: {k: $event.k}}\n"
    )
    own, lost = compiled({"W/graph_injection.yaml": text.encode()}), rules_named("B", "Other")
    cuts: list[OneWrite] = []

    def cut(graph: FalkorDBStore) -> OneWrite:
        cuts.append(OneWrite(graph))
        return cuts[0]

    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await bus.partitions.count()
        for rules, numbers in ((own, range(3)), (lost, range(3, 4)), (own, range(4, 7))):
            await push(bus, rules)
            await transport.append([event("acme", n) for n in numbers])
        async with stack.worker("cut", kill=True, seen=cut):
            await cuts[0].cut.wait()
        await transport.append([event("globex", n) for n in range(3)])
        await lose(url, lost.digest)
        expected = {f"k{n}": 1 for n in range(7) if n != 3}

        async def is_whole() -> bool:
            # The event without rules may have been published again in the end: its workflow has some now.
            made = await stack.found("acme", "MATCH (m:More) WHERE m.k <> 'k3' RETURN m.k, m.times")
            return made == expected and (await stack.found("acme")).keys() - {"k3"} == made.keys()

        async with stack.worker("after") as active:
            await until(is_whole)
            assert active.lost == {lost.digest}
            await until(lambda: stack.found("globex"))
            await store(bus, lost)
            await applied(bus)
        assert await is_whole()
        assert {letter.reason for letter in await bus.dead_letters.read(limit=10)} <= {"no_rules"}


async def test_events_without_rules_are_applied_when_lost_rules_are_back(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(url, url)
    looked = looks_for_rules(monkeypatch)
    own = rules_named("B")
    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await bus.partitions.count()
        await push(bus, rules_named("A", "Other"))
        await transport.append([event("acme", n) for n in range(5)])
        async with stack.worker("before"):
            await applied(bus)
            await until(lambda: letter_count(bus.dead_letters))
        await push(bus, own)
        await lose(url, own.digest)
        async with stack.worker("after") as rules:
            await applied(bus)
            assert rules.lost == {own.digest}
            await until(lambda: {own.digest} in looked)
            assert await letter_count(bus.dead_letters) == 1
            await store(bus, own)

            await taken_effect(stack, 5)
        assert await stack.found("acme") == {f"k{n}": "B" for n in range(5)}
        assert await letter_count(bus.dead_letters) == 0


async def test_an_app_that_waited_for_lost_rules_is_left_no_event_that_has_rules_now(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost rules had none for its events, and only their reading finds that out, long after the new ones came."""
    stack = Stack(url, url)
    looked = looks_for_rules(monkeypatch)
    lost = rules_named("A", "Other")
    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await bus.partitions.count()
        await push(bus, lost)
        await transport.append([event("acme", n) for n in range(5)])
        await push(bus, rules_named("B"))
        await transport.append([event("acme", n) for n in range(5, 7)])
        await lose(url, lost.digest)
        async with stack.worker("w") as rules:

            async def waits() -> bool:
                return any(PositionNote.decode(each.note).parked for each in await bus.partitions.status())

            await until(waits)
            await until(lambda: {lost.digest} in looked)
            assert rules.lost == {lost.digest}
            await store(bus, lost)

            await taken_effect(stack, 7)
        assert await stack.found("acme") == {f"k{n}": "B" for n in range(7)}
        assert await letter_count(bus.dead_letters) == 0


async def test_apps_that_wait_for_a_lost_rule_set_read_nothing_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading back takes 0.1 s and keeps thousands of identities, and any number of apps may wait, for days."""
    stack = Stack(url, url)
    lost = rules_named("A")
    apps = [f"app{number}" for number in range(30)]
    readers: list[str] = []
    before = RedisEventLog.before

    async def counted(log: RedisEventLog, *arguments: Any, **options: Any) -> Any:
        task = asyncio.current_task()
        readers.append("" if task is None else task.get_name())
        return await before(log, *arguments, **options)

    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await bus.partitions.count()
        await push(bus, lost)
        await lose(url, lost.digest)
        await transport.append([event(app, number) for number in range(3) for app in apps])
        monkeypatch.setattr(RedisEventLog, "before", counted)

        async def all_wait() -> bool:
            notes = [PositionNote.decode(each.note) for each in await bus.partitions.status()]
            return {app for note in notes for app in note.parked} == set(apps)

        async with stack.worker("after"):
            await until(all_wait)
            assert not [name for name in readers if name.startswith("app-")]
            await store(bus, lost)
            await applied(bus)
        for app in apps:
            assert await stack.found(app) == {"k0": "A", "k1": "A", "k2": "A"}


JOINED = {
    "Writes/graph_injection.yaml": """
mutation_rules:
  - name: r
    events: ["a.b"]
    mutations:
      - {id: alpha, cypher: "MERGE (a:Alpha {k: $k}) SET a.by = coalesce(a.by, '') + 'a'", params: {k: $event.k}}
      - {id: beta, cypher: "MATCH (b:Beta {k: $k}) SET b.by = coalesce(b.by, '') + 'b'", params: {k: $event.k}}
""",
    "Joins/graph_injection.yaml": """
mutation_rules:
  - name: r
    events: ["a.b"]
    mutations:
      - {id: joined, cypher: "MERGE (a:Alpha {k: $k}) SET a:Beta", params: {k: $event.k}}
""",
}
OTHERS = {f"Other{number}/graph_injection.yaml": JOINED["Joins/graph_injection.yaml"] for number in range(4)}
"""A worker compiles few workflows before the first event, and none of many."""


@pytest.mark.soak("kafka")
async def test_workflows_that_are_compiled_one_after_the_other_share_nodes(stack: Stack) -> None:
    """A worker that never compiled the workflow that joined two labels keeps the order of their rows."""
    rules = compiled({name: text.encode() for name, text in (JOINED | OTHERS).items()})

    def keyed(number: int, workflow: str) -> Outgoing:
        made = Event.create(
            "a.b", app_id="acme", chat_id="c", workflow=workflow, id=f"{workflow}{number}", source="/test",
            data={"k": "k"},
        )  # fmt: skip
        return Outgoing(key=made.key, fields=wire.encode(made))

    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await bus.partitions.count()
        await push(bus, rules)
        await transport.append([keyed(1, "Joins")])
        async with stack.worker("first"):
            await applied(bus)
        await transport.append([keyed(number, "Writes") for number in range(6)])
        async with stack.worker("second") as active:
            await applied(bus)
            assert not active.current("acme").is_compiled("Joins")
    assert await stack.found("acme", "MATCH (n:Alpha) RETURN n.k, n.by") == {"k": "ab" * 6}


@pytest.mark.soak("kafka")
async def test_a_workflow_that_does_not_compile_stops_no_other(stack: Stack) -> None:
    good = RULES.format(name="m").encode()
    files = {"W/graph_injection.yaml": good, "Torn/graph_injection.yaml": good.replace(b"mutations", b"mutation")}
    stored_files = StoredRules(files=files)  # another version of graphweft pushed them
    async with contextlib.aclosing(stack.bus()) as bus, contextlib.aclosing(stack.transport()) as transport:
        await bus.partitions.count()
        await bus.rules.store(digest_of(files), stored_files)
        await bus.rules.activate("*", digest_of(files))
        await transport.append([event("acme", number, flow) for number, flow in enumerate(("W", "Torn", "W", "Torn"))])
        async with stack.worker("w"):
            await applied(bus)
            await until(lambda: letter_count(bus.dead_letters))
            [letter] = await bus.dead_letters.read(limit=10)
            assert (letter.reason, letter.workflow, letter.count) == ("no_rules", "Torn", 2)
            assert "'Torn' do not compile with this version of graphweft (Torn/graph_injection.yaml:" in letter.message
            assert set(await stack.found("acme")) == {"k0", "k2"}
            await push(bus, rules_named("m", "W", "Torn"))

            async def repaired() -> bool:
                return len(await stack.found("acme")) == 4 and not await letter_count(bus.dead_letters)

            await until(repaired)
