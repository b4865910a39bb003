"""Which rules apply at which place of the log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from tests.services.rules import rule_set
from tests.services.virtual_time import VIRTUAL, VirtualClock, run

from graphweft_contracts import Event, Layout, wire
from graphweft_contracts.events import APP_ID_PATTERN
from graphweft_contracts.rules_log import (
    SHARED_RULES,
    Activation,
    StoredRules,
    active_for,
    own_rules,
    restated_scope,
)
from graphweft_rules import RuleSet
from graphweft_rules.cypher.mutation_summary import UNKNOWN
from graphweft_workers.engine.apply.app_queue import Parking
from graphweft_workers.engine.apply.older_graph import no_obstacle
from graphweft_workers.engine.log.app_costs import AppCosts
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.effect_ledger import NOTHING
from graphweft_workers.engine.log.read import read_range
from graphweft_workers.engine.partition import AppWriter
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.ports.graph_store import Progress
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.reports.rules_at import activation_at
from graphweft_workers.rule_sets.active_rules import LoggedRules
from graphweft_workers.rule_sets.lost_rules import RulesLost
from graphweft_workers.support.timing import TIMING, RulesTiming

NOW = datetime(2026, 2, 1, tzinfo=UTC)


class Log:
    def __init__(self) -> None:
        self.found: list[Activation] = []
        self.reads = 0
        self.compiled: list[str] = []
        self.lost: set[str] = set()

    def add(self, scope: str, digest: str, **positions: str) -> None:
        places = {int(name.removeprefix("p")): offset for name, offset in positions.items()}
        number = len(self.found) + 1
        self.found.append(Activation(number=number, scope=scope, digest=digest, time=NOW, positions=places))

    async def store(self, digest: str, rules: StoredRules) -> None:
        raise NotImplementedError

    async def stored(self, digest: str) -> StoredRules | None:
        return None if digest in self.lost else StoredRules(files={"name": digest.encode()})

    async def activate(self, scope: str, digest: str) -> Activation:
        raise NotImplementedError

    async def activations(self, *, after: int = 0) -> Sequence[Activation]:
        self.reads += 1
        return self.found[after:]


def made_of(stored: StoredRules) -> RuleSet:
    mutation = "{id: m, cypher: 'MERGE (n:N {k: 1})'}"
    text = f"version: '1.0'\nmutation_rules: [{{name: r, events: ['a.b'], mutations: [{mutation}]}}]".encode()
    return RuleSet.of_files({"W/graph_injection.yaml": text} if stored.files else {})


def logged(log: Log, **timing: float) -> LoggedRules:
    def made(stored: StoredRules) -> RuleSet:
        log.compiled.append(stored.files.get("name", b"none").decode())
        return RuleSet(rule_set().workflows, files=stored.files)

    rules = LoggedRules(log, made, clock=VIRTUAL, timing=RulesTiming(**timing))
    run(rules.refresh())
    return rules


def name(rules: RuleSet) -> str:
    return rules.files.get("name", b"none").decode()


def test_rules_apply_behind_the_entry_that_announces_them() -> None:
    log = Log()
    log.add("*", "one", p0="10", p1="3")
    log.add("*", "two", p0="20", p1="4")
    rules = logged(log)
    first = rules.cursor(0, "")
    assert [name(first.at("any", offset)) for offset in ("11", "19", "21", "99")] == ["one", "one", "two", "two"]
    assert name(rules.cursor(0, "20").at("any", "21")) == "two"
    assert name(rules.cursor(0, "19").at("any", "20")) == "two"
    assert name(rules.cursor(1, "3").at("any", "5")) == "two"


def test_the_first_rules_of_a_scope_apply_to_what_lies_before_them() -> None:
    log = Log()
    log.add("acme", "own", p0="10")
    log.add("*", "all", p0="20")
    rules = logged(log)
    cursor = rules.cursor(0, "")
    assert [name(cursor.at(app, "5")) for app in ("acme", "globex")] == ["own", "all"]
    assert [name(cursor.at(app, "30")) for app in ("acme", "globex")] == ["own", "all"]
    assert name(logged(Log()).cursor(0, "").at("acme", "1")) == "none"


def test_an_app_follows_the_rules_of_all_apps_again_from_its_place_on() -> None:
    log = Log()
    log.add("acme", "own", p0="10")
    log.add("*", "one", p0="20")
    log.add("acme", SHARED_RULES, p0="30")
    log.add("*", "two", p0="40")
    log.add("acme", "new", p0="50")
    rules = logged(log)
    cursor = rules.cursor(0, "")
    found = [(offset, name(cursor.at("acme", offset))) for offset in ("5", "25", "35", "45", "55")]
    assert found == [("5", "own"), ("25", "own"), ("35", "one"), ("45", "two"), ("55", "new")]
    for offset, expected in found:
        activation = activation_at(log.found, "acme", 0, offset)
        assert activation is not None
        assert activation.digest == expected
    assert name(rules.current("acme")) == "new"


def test_an_app_that_follows_the_rules_of_all_apps_has_none_of_its_own() -> None:
    log = Log()
    log.add("*", "one", p0="1")
    log.add("acme", "own", p0="2")
    log.add("beta", "own", p0="2")
    log.add("restated:acme", "own", p0="3")
    assert [*own_rules(log.found)] == ["acme", "beta"]
    log.add("acme", SHARED_RULES, p0="4")
    assert [*own_rules(log.found)] == ["beta"]
    active = active_for(log.found, "acme")
    assert active is not None
    assert active.digest == "one"
    log.lost.add(SHARED_RULES)  # nobody needs it
    rules = logged(log)
    assert (name(rules.current("acme")), [*rules.lost]) == ("one", [])


def test_a_restatement_gives_the_rules_of_the_past_of_its_app_only() -> None:
    log = Log()
    log.add("*", "one", p0="1", p1="1")
    log.add("restated:acme", "anew", p0="10", p1="20")
    log.add("*", "two", p0="15", p1="30")
    rules = logged(log)
    cursor = rules.cursor(0, "")
    offsets = ("0", "5", "9", "11", "16")
    assert [name(cursor.at("acme", offset)) for offset in offsets] == ["anew", "anew", "anew", "one", "two"]
    assert [name(rules.cursor(0, "").at("globex", offset)) for offset in offsets] == ["one"] * 4 + ["two"]
    assert name(rules.cursor(1, "18").at("acme", "19")) == "anew"
    assert (name(rules.current("acme")), [name(each) for each in rules.in_use()]) == ("two", ["two"])
    log.add("restated:acme", "last", p0="17", p1="40")
    run(rules.refresh())
    assert [name(cursor.at("acme", offset)) for offset in ("16", "18")] == ["last", "two"]
    for offset, expected in (("9", "last"), ("18", "two")):
        found = activation_at(rules.activations, "acme", 0, offset)
        assert found is not None
        assert found.digest == expected


def test_the_last_restatement_of_an_app_is_known_until_the_bus_is_emptied() -> None:
    log = Log()
    log.add("restated:acme", "anew", p0="10")
    log.add("acme", "own", p0="12")
    rules = logged(log)
    assert [rules.restatement(app) for app in ("acme", "globex")] == [1, 0]
    log.add("restated:acme", "last", p0="17")
    run(rules.refresh())
    assert rules.restatement("acme") == 3
    log.found.clear()
    log.add("*", "all", p0="1")
    run(rules.refresh())
    assert rules.restatement("acme") == 0


def test_a_restatement_is_announced_in_all_partitions_and_is_no_app_to_others() -> None:
    made = Activation(number=1, scope=restated_scope("acme"), digest="d", time=NOW)
    assert made.restates == "acme"
    assert Activation.decode(made.encode()).restates == "acme"
    assert replace(made, scope="acme").restates is replace(made, scope="*").restates is None
    assert Layout(partitions=4).partitions_of(made.scope) == range(4)
    assert not re.fullmatch(APP_ID_PATTERN, made.scope)


def test_rules_of_an_app_precede_those_of_all_apps_whichever_come_last() -> None:
    log = Log()
    log.add("*", "one", p0="1")
    log.add("acme", "own", p0="2")
    log.add("*", "two", p0="3")
    rules = logged(log)
    cursor = rules.cursor(0, "")
    found = [tuple(name(cursor.at(app, offset)) for app in ("acme", "globex")) for offset in ("2", "3", "4")]
    assert found == [("own", "one"), ("own", "two"), ("own", "two")]
    assert [name(rules.current(app)) for app in ("acme", "globex")] == ["own", "two"]


def test_a_cursor_sees_activations_that_are_read_later_and_compiles_each_set_once() -> None:
    log = Log()
    log.add("*", "one", p0="1")
    rules = logged(log)
    cursor = rules.cursor(0, "")
    assert name(cursor.at("any", "2")) == "one"
    log.add("*", "two", p0="5")
    log.add("*", "one", p0="7")
    entry = Entry(offset="5", fields=log.found[1].entry(), received=NOW)
    assert not cursor.knows(2)
    run(rules.refresh([Entry(offset="4", fields={b"data": b"{}"}, received=NOW)]))
    assert not cursor.knows(2)  # nothing announced it
    run(rules.refresh([entry]))
    assert cursor.knows(2)
    assert not cursor.knows(9)
    assert [name(cursor.at("any", offset)) for offset in ("4", "6", "8")] == ["one", "two", "one"]
    assert log.compiled == ["none", "one", "two"]


def test_an_announced_activation_may_become_visible_later() -> None:
    log = Log()
    rules = logged(log)
    made = Activation(number=1, scope="*", digest="one", time=NOW, positions={0: "3"})
    entry = Entry(offset="3", fields=made.entry(), received=NOW)

    async def main() -> None:
        reading = asyncio.create_task(rules.refresh([entry]))
        await VIRTUAL.sleep(4.0)
        assert not reading.done()
        log.found.append(made)
        await reading

    run(main())
    assert name(rules.cursor(0, "3").at("any", "4")) == "one"


def imitation(number: object) -> Entry:
    return Entry(offset="3", fields={wire.ACTIVATION: b'{"number": %s}' % str(number).encode()}, received=NOW)


def test_an_activation_without_a_record_is_waited_for_once(clock: VirtualClock) -> None:
    rules, began = logged(Log(), visible_s=5.0), clock.monotonic()
    run(rules.refresh([imitation(1)]))
    waited = clock.monotonic()
    assert waited >= began + 5.0
    run(rules.refresh([imitation(1)]))
    assert clock.monotonic() == waited
    assert not rules.cursor(0, "").knows(1)


def test_partitions_that_read_the_same_imitation_wait_together(clock: VirtualClock) -> None:
    log = Log()
    rules = logged(log, visible_s=5.0)

    async def main() -> None:
        first = asyncio.create_task(rules.refresh([imitation(1)]))
        await clock.sleep(3.0)
        assert not first.done()
        began = clock.monotonic()
        await asyncio.gather(first, rules.refresh([imitation(1)]))
        assert clock.monotonic() - began < 2.1  # no wait of its own

    run(main())
    assert not rules.cursor(0, "").knows(1)


def test_an_imitation_hides_no_real_activation_of_its_batch() -> None:
    log = Log()
    rules = logged(log)
    run(rules.refresh([imitation(10**9)]))
    run(rules.refresh([imitation(1)]))  # before its time
    log.add("*", "one", p0="5")
    real = Entry(offset="5", fields=log.found[0].entry(), received=NOW)
    run(rules.refresh([imitation(10**9), real, imitation(10**9)]))
    assert rules.cursor(0, "").knows(1)
    assert name(rules.cursor(0, "5").at("any", "6")) == "one"


def test_growing_imitations_cost_one_read_for_each_batch() -> None:
    log = Log()
    log.add("*", "one", p0="1")
    rules = logged(log)
    before = log.reads
    for number in range(1_000, 1_020):
        run(rules.refresh([imitation(number), imitation(-number), imitation('"x"'), imitation(10 * number)]))
    assert log.reads == before + 20
    run(rules.refresh([imitation(number) for number in (1, 0, -1, "true", '"x"')]))
    assert log.reads == before + 20


def test_imitations_are_counted_in_few_warnings(clock: VirtualClock) -> None:
    rules = logged(Log(), warn_s=60.0)
    with structlog.testing.capture_logs() as logs:
        for number in range(1_000, 1_020):
            run(rules.refresh([imitation(number)] * 3))
        clock.advance(60.0)
        run(rules.refresh([Entry(offset="4", fields={b"data": b"{}"}, received=NOW)]))
    assert [(each["event"], each["entries"]) for each in logs] == [
        ("unknown_activations", 3),
        ("unknown_activations", 57),
    ]


def test_a_start_logs_the_active_rules_alone_and_each_later_activation() -> None:
    log = Log()
    for number in range(25):
        log.add("*", f"save-{number}", p0=str(number))
    log.add("acme", "own", p0="30")
    with structlog.testing.capture_logs() as logs:
        rules = logged(log)
        log.add("*", "later", p0="31")
        log.add("*", "last", p0="32")
        run(rules.refresh())
    assert [each["number"] for each in logs if each["log_level"] == "info"] == [25, 26, 27, 28]


def test_an_imitation_without_an_event_makes_no_dead_letter() -> None:
    bare = [imitation(number) for number in (7, '"x"')]
    data = {**bare[0].fields, wire.DATA: b"{}"}
    found = read_range(
        0, [*bare, Entry(offset="4", fields=data, received=NOW)], logged(Log()).cursor(0, ""), RecentEvents()
    )
    assert [(letter.reason, letter.position) for letter in found.letters] == [("invalid_event", "0:4")]


def test_a_workflow_in_other_letters_is_named_with_the_one_that_has_rules() -> None:
    log = Log()
    log.add("*", "one", p0="1")
    rules = LoggedRules(log, made_of, clock=VIRTUAL)
    run(rules.refresh())
    entries = [of_app("acme", 3, workflow="w"), of_app("acme", 4, workflow="V")]
    near, far = (skip.message for skip in read_range(0, entries, rules.cursor(0, ""), RecentEvents()).skips)
    assert near.startswith("no rules are active for the workflow 'w' (did you mean 'W'?): add its rules")
    assert "did you mean" not in far
    assert "If the event names the wrong workflow, correct it where you emit the event" in far


def of_app(app: str, number: int, *, workflow: str = "W") -> Entry:
    made = Event.create("a.b", app_id=app, chat_id="c", workflow=workflow, id=f"{app}{number}", source="/test")
    return Entry(offset=str(number), fields=wire.encode(made), received=NOW)


def test_only_the_apps_that_need_a_lost_rule_set_wait_until_it_is_there(clock: VirtualClock) -> None:
    log = Log()
    log.add("acme", "one", p0="1")
    log.add("*", "two", p0="2")
    log.lost.add("one")
    rules = LoggedRules(log, made_of, without_lost=True, clock=clock)
    run(rules.refresh())
    cursor = rules.cursor(0, "")
    entries = [of_app("acme", 3), of_app("globex", 4), of_app("acme", 5)]
    found = read_range(0, entries, cursor, RecentEvents())
    assert (found.lost, list(found.apps), found.letters, found.skips) == ({"acme": "one"}, ["globex"], [], [])
    assert (rules.lost, rules.summary) == ({"one"}, UNKNOWN)
    other = rules.over(log)
    run(other.refresh())
    assert other.lost == {"one"}
    log.lost.clear()
    clock.advance(1.0)
    known = rules.known
    run(rules.refresh([]))
    assert (rules.lost, rules.known > known, rules.summary == UNKNOWN) == (set(), True, False)
    found = read_range(0, entries, cursor, RecentEvents())  # with the cursor of before
    assert (found.lost, {app: len(events) for app, events in found.apps.items()}) == ({}, {"acme": 2, "globex": 1})


class KeptLog(Log):
    """A log that takes rule sets and activations."""

    def __init__(self) -> None:
        super().__init__()
        self.again: list[str] = []

    async def store(self, digest: str, rules: StoredRules) -> None:
        self.again.append(digest)
        self.lost.discard(digest)

    async def activate(self, scope: str, digest: str) -> Activation:
        self.add(scope, digest, p0="9")
        return self.found[-1]


@pytest.mark.parametrize(
    ("there", "activated"),
    [
        ([], [("*", "two"), ("acme", "three")]),
        ([("*", "one")], [("*", "two"), ("acme", "three")]),
        ([("*", "one"), ("*", "two")], [("acme", "three")]),
        ([("*", "one"), ("acme", "new")], [("*", "two")]),
        ([("*", "new")], [("acme", "three")]),
        ([("*", "new"), ("acme", "three")], []),
    ],
    ids=["all", "the last two", "the app's", "others since for the app", "others since for all", "none"],
)
def test_lost_activations_are_made_again(there: list[tuple[str, str]], activated: list[tuple[str, str]]) -> None:
    log = KeptLog()
    for scope, digest in (("*", "one"), ("*", "two"), ("acme", "three"), (restated_scope("acme"), "four")):
        log.add(scope, digest, p0="2")
    rules = LoggedRules(log, made_of, without_lost=True, restores=True)
    run(rules.refresh())
    log.found = log.found[:0]
    for scope, digest in there:
        log.add(scope, digest, p0="2")
    kept = len(log.found)
    with structlog.testing.capture_logs() as logs:
        run(rules.refresh())
    assert [(each.scope, each.digest) for each in log.found[kept:]] == activated
    assert log.again == [digest for _, digest in activated]
    assert [each["event"] for each in logs].count("rules_activated_again") == len(activated)
    assert rules.activations == log.found


def test_rules_are_activated_again_by_nobody_who_only_reads() -> None:
    log = KeptLog()
    log.add("*", "one", p0="2")
    rules = LoggedRules(log, made_of, without_lost=True)
    run(rules.refresh())
    log.found.clear()
    run(rules.refresh())
    assert (log.found, log.again) == ([], [])


class Entries:
    """A log with entries, whose rules and graph are elsewhere."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.all = entries
        self.read_back = 0
        self.reread_entries = 0

    async def read(self, partition: int, after: CommittedPosition, *, limit: int) -> Batch:
        found = [each for each in self.all if is_after(each.offset, after.offset)][:limit]
        self.reread_entries += len(found)
        return Batch(entries=found)

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        self.read_back += 1
        return [each for each in self.all if not is_after(each.offset, offset)][-limit:]

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        return []


class EmptyGraph:
    async def progress(self, app_id: str, partition: int) -> Progress:
        return Progress()


async def writer_without_rules(entries: Sequence[Entry]) -> Any:
    """Return a writer that has met the entries, and whose app needs a lost rule set from place 5 on."""
    log = Log()
    log.add("*", "two", p0="2")
    log.add("acme", "one", p0="5")
    log.lost.add("one")
    rules = LoggedRules(log, made_of, without_lost=True)
    await rules.refresh()
    recent = RecentEvents()
    read_range(0, entries, rules.cursor(0, ""), recent)
    state: Any = SimpleNamespace(
        log=Entries(entries),
        rules=rules,
        graph=EmptyGraph(),
        clock=VIRTUAL,
        costs=AppCosts(VIRTUAL),
        timing=TIMING,
        obstacle=no_obstacle,
    )
    return AppWriter(state, 0, NOTHING, recent)


async def test_a_copy_of_an_applied_event_needs_no_lost_rules() -> None:
    applied = of_app("acme", 3)
    entries = [applied, replace(applied, offset="6"), replace(of_app("globex", 3), offset="7"), of_app("acme", 8)]
    writer = await writer_without_rules(entries)
    parking, given = Parking(position=CommittedPosition(offset="3", count=1)), CommittedPosition(offset="8", count=4)
    for place in ("6", "7"):
        page = await writer.parked.reread("acme", parking, given)
        parking.position = page.end
        assert page == (None, parking.position)
        assert parking.position.offset == place
    with pytest.raises(RulesLost):
        await writer.parked.reread("acme", parking, given)
    parking.recent = None
    reads = writer.state.log.read_back
    with pytest.raises(RulesLost):
        await writer.parked.reread("acme", parking, given)
    assert writer.state.log.read_back == reads  # the log holds this event once


async def test_many_copies_that_need_lost_rules_are_read_about_once_each() -> None:
    applied = of_app("acme", 3)
    entries = [applied, *(replace(applied, offset=str(number)) for number in range(6, 506))]
    writer = await writer_without_rules(entries)
    parking, given = (
        Parking(position=CommittedPosition(offset="3", count=1)),
        CommittedPosition(offset="505", count=501),
    )
    while parking.position.offset != "505":
        batch, parking.position = await writer.parked.reread("acme", parking, given)
        assert batch is None
    assert writer.state.log.reread_entries < 3 * 500


def test_a_replay_needs_all_rule_sets() -> None:
    log = Log()
    log.add("*", "one", p0="1")
    log.lost.add("one")
    with pytest.raises(RulesLost, match="the bus has lost the rule set one: push the files"):
        logged(log)


def test_the_summary_holds_the_mutations_of_all_rule_sets() -> None:
    text = (
        "version: '1.0'\nmutation_rules: [{{name: r, events: ['a.b'], mutations: [{{id: m, cypher: 'MERGE ({0})'}}]}}]"
    )
    found = {"one": "n:A:B {k: 1}", "two": "n:B:C {k: 1}"}

    def made(stored: StoredRules) -> RuleSet:
        name = stored.files.get("name", b"").decode()
        files = {"W/graph_injection.yaml": text.format(found[name]).encode()} if name else {}
        return RuleSet.of_stored(files)

    log = Log()
    log.add("*", "one", p0="1")
    rules = LoggedRules(log, made)
    run(rules.refresh())
    assert (rules.known, rules.summary.shared) == (1, {"A", "B"})
    log.add("acme", "two", p0="2")
    log.add("*", "one", p0="3")
    run(rules.refresh())
    assert (rules.known, rules.summary.shared) == (2, {"A", "B", "C"})
    assert rules.summary.groups == {frozenset("AB"), frozenset("BC")}


def test_a_bus_that_was_emptied_gives_its_new_activations_only() -> None:
    log = Log()
    log.add("*", "one", p0="1")
    log.add("*", "two", p0="2")
    rules = logged(log)
    log.found.clear()
    log.add("*", "three", p0="1")
    run(rules.refresh())
    assert name(rules.current("any")) == "three"
    assert name(rules.cursor(0, "").at("any", "5")) == "three"
    log.found.clear()
    run(rules.refresh())
    assert name(rules.current("any")) == "none"
