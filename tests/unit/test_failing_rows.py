"""Rows that the graph refuses: the others take effect as in the log's order, and few queries find the failing ones."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final, cast

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.chaos.memory_bus import memory_bus
from tests.services.rules import load_rules, rules_of_parts
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import DeadLetter, Event, Fenced, GraphUnavailable, QueryFailed, wire
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.engine.apply.app_queue import Parking
from graphweft_workers.engine.apply.apply import Applier
from graphweft_workers.engine.apply.worker_state import WorkerState
from graphweft_workers.engine.failures import quarantine as quarantining
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.effect_ledger import NOTHING
from graphweft_workers.engine.log.read import LoggedEvent, read_range
from graphweft_workers.engine.partition import AppWriter
from graphweft_workers.engine.plan.arrangers import Arrangers
from graphweft_workers.engine.plan.graph_marks import has_plan
from graphweft_workers.engine.plan.order import Arranger
from graphweft_workers.engine.plan.plan import FailedRows, Plan, RestNote
from graphweft_workers.engine.plan.plan_note import PlanNote
from graphweft_workers.engine.plan.plan_run import amid
from graphweft_workers.engine.plan.suspects import Suspects
from graphweft_workers.ports.dead_letters import DeadLetters, first_letters
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry, EventLog
from graphweft_workers.ports.graph_store import START, Checkpoint, PartitionGraph, Progress, Write, WriteResult
from graphweft_workers.rule_sets.active_rules import FixedRules
from graphweft_workers.rule_sets.lost_rules import MissingRules, RulesLost
from graphweft_workers.support.timing import TIMING, QuarantineTiming

NOW = datetime(2026, 2, 1, tzinfo=UTC)
PARTS: Final = {
    "see": "MERGE (s:Session {id: $s}) SET s.seen = $v",
    "trace": "MATCH (s:Session {id: $s}) SET s.trace = s.trace + s.seen",
    "all": "MATCH (s:Session) SET s.any = s.seen",
}
BROKEN: Final = None
"""A value that ``see`` cannot take. ``trace`` fails by what is in the graph: where ``seen`` is a multiple of 5."""
SOMETIMES: Final = 8
"""A value that ``see`` cannot take after an odd one."""

APPS: Final = ("app", "other")

type State = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> RuleSet:
    return rules_of_parts(tmp_path_factory.mktemp("rules"), PARTS)


def events_of(rules: RuleSet, values: Sequence[tuple[str, int | None]], workflow: str = "W") -> list[LoggedEvent]:
    return list(events_of_apps(rules, [("app", *each) for each in values], workflow).get("app", ()))


def events_of_apps(
    rules: RuleSet, values: Sequence[tuple[str, str, int | None]], workflow: str = "W"
) -> Mapping[str, Sequence[LoggedEvent]]:
    entries = [
        Entry(
            offset=f"{number:05}",
            fields=wire.encode(
                Event.create(
                    "x.y", app_id=app, chat_id=f"c{number}", workflow=workflow, id=f"e{number}", data={"s": s, "v": v}
                )
            ),
            received=NOW,
        )
        for number, (app, s, v) in enumerate(values, start=1)
    ]
    return read_range(0, entries, FixedRules(rules), RecentEvents()).apps


def run_row(state: State, statement: str, params: Any) -> None:
    """Change ``state`` as the server would; raise as it would."""
    if statement == PARTS["see"]:
        if params["v"] is BROKEN:
            raise QueryFailed("a wrong value", of_value=True)
        session = state.get(params["s"], {"trace": (), "seen": 0})
        if params["v"] == SOMETIMES and session["seen"] % 2:
            raise QueryFailed("not after an odd number")
        state[params["s"]] = {**session, "seen": params["v"]}
    elif statement == PARTS["trace"]:
        session = state.get(params["s"])
        if session is not None:
            if session["seen"] % 5 == 0:
                raise QueryFailed("a multiple of 5")
            session["trace"] += (session["seen"],)
    else:
        for session in state.values():
            session["any"] = session["seen"]


def serially(
    events: Sequence[LoggedEvent], without: Collection[tuple[str, str]] = ()
) -> tuple[State, set[tuple[str, str]]]:
    """Return the graph and the dead letters of one row after the other; ``without`` are rows to leave out."""
    state: State = {}
    failed: set[tuple[str, str]] = set()
    for event in events:
        for bound in event.mutations:
            if (event.entry.offset, bound.mutation.id) in without:
                continue
            try:
                run_row(state, bound.mutation.cypher.statement, bound.params)
            except QueryFailed:
                failed.add((event.entry.offset, bound.mutation.id))
    return state, failed


@dataclass
class Graph:
    """A graph in memory that keeps the promises of ``GraphWrites.apply``, and is unavailable at some calls."""

    runs_again: bool = False
    progress: Progress = field(default_factory=Progress)
    state: State = field(default_factory=dict[str, dict[str, Any]])
    calls: int = 0
    queries: int = 0
    away: dict[int, bool] = field(default_factory=dict[int, bool])
    """By number of the call: whether it takes effect before the connection breaks."""
    dialect: Any = FALKORDB

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        self.calls += 1
        if self.away.get(self.calls) is False:
            raise GraphUnavailable("away")
        applied = self._apply(writes)
        if self.away.get(self.calls):
            raise GraphUnavailable("away")
        return applied

    def _apply(self, writes: Sequence[Write]) -> WriteResult:
        for count, write in enumerate(writes):
            if write.before != self.progress.checkpoint:
                raise Fenced("moved")
            self.queries += 1
            new = {name: dict(session) for name, session in self.state.items()}
            try:
                for row in write.rows:
                    assert write.query is not None
                    run_row(new, write.query.statement, row)
            except QueryFailed as failure:
                return WriteResult(count=count, failure=failure)
            self.state = new
            note = self.progress.note if write.note is None else write.note
            self.progress = Progress(checkpoint=write.after, note=note)
        return WriteResult(count=len(writes))


@dataclass
class Graphs:
    """The graphs of two apps, which are written in turn."""

    of: Mapping[str, Graph]
    runs_again: bool
    dialect: Any = FALKORDB

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        await asyncio.sleep(0)
        return await self.of[app_id].apply(app_id, partition, writes)


@dataclass
class Letters:
    """Dead letters by id, as a bus keeps them."""

    kept: dict[str, DeadLetter] = field(default_factory=dict[str, DeadLetter])
    calls: int = 0
    away: frozenset[int] = frozenset()

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        self.calls += 1
        if self.calls in self.away:
            raise GraphUnavailable("the bus is away")
        self.kept |= {letter.id: letter for letter in letters}

    async def read(self, *, limit: int, ids: Collection[str]) -> list[DeadLetter]:
        return first_letters(self.kept.values(), limit, ids=ids)

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        await self.put([longer])
        return True

    @property
    def rows(self) -> set[tuple[str, str]]:
        letters = self.kept.values()
        return {(each, letter.mutation or "") for letter in letters for each in letter.offsets or (letter.offset,)}


@dataclass
class OneEntry:
    """A log."""

    entry: Entry

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        return [self.entry] if self.entry.offset in offsets else []

    async def read(self, partition: int, after: CommittedPosition, *, limit: int) -> Batch:
        return Batch(entries=[self.entry])

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        return []


@dataclass
class Standing:
    """A graph that nobody writes to."""

    there: Progress
    dialect: Any = FALKORDB

    async def progress(self, app_id: str, partition: int) -> Progress:
        return self.there


def applier(
    rules: RuleSet,
    graph: Graph | Graphs,
    letters: Letters,
    *,
    quarantine: bool = False,
    arrangers: Arrangers | None = None,
    log: OneEntry | None = None,
    timing: QuarantineTiming = TIMING.quarantine,
) -> Applier:
    """``log`` is for rows that the rules no longer have: only these are read again."""
    arrangers = arrangers or Arrangers(FixedRules(rules), FALKORDB)
    return Applier(
        cast("EventLog", log), cast("DeadLetters", letters), graph, arrangers,
        quarantine=quarantine, clock=VIRTUAL, timing=replace(TIMING, quarantine=timing),
    )  # fmt: skip


async def run(rules: RuleSet, graph: Graph, letters: Letters, batches: Sequence[Sequence[LoggedEvent]]) -> None:
    """Apply batches as a worker does; after each interruption another worker continues."""
    worker = applier(rules, graph, letters)
    for batch in batches:
        while graph.progress.checkpoint.offset < batch[-1].entry.offset:
            try:
                if has_plan(graph.progress.checkpoint):
                    await worker.resume(0, "app", graph.progress, batch)
                else:
                    rest = [event for event in batch if event.entry.offset > graph.progress.checkpoint.offset]
                    await worker.apply(0, "app", graph.progress.checkpoint, rest)
            except GraphUnavailable:
                worker = applier(rules, graph, letters)


@given(
    values=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([1, 2, 3, 5, SOMETIMES, SOMETIMES, BROKEN])),
        min_size=8,
        max_size=60,
    ),
    away=st.dictionaries(st.integers(1, 60), st.booleans(), max_size=6),
    letters_away=st.frozensets(st.integers(1, 30), max_size=3),
    runs_again=st.booleans(),
    size=st.integers(5, 60),
)
def test_rows_take_effect_once_and_in_order_whatever_fails(
    rules: RuleSet,
    values: list[tuple[str, int | None]],
    away: dict[int, bool],
    letters_away: frozenset[int],
    runs_again: bool,
    size: int,
) -> None:
    """The first rows take effect, so there is something to compare the failing ones with."""
    events = events_of(rules, [*[("a", 1)] * 20, *values])
    graph, letters = Graph(runs_again=runs_again, away=away), Letters(away=letters_away)
    asyncio.run(run(rules, graph, letters, [events[at : at + size] for at in range(0, len(events), size)]))
    state, failed = serially(events)
    assert graph.state == state
    assert letters.rows == failed


@given(
    values=st.lists(
        st.tuples(
            st.sampled_from(["app", "other"]),
            st.sampled_from("abc"),
            st.sampled_from([1, 2, 3, 5, SOMETIMES, SOMETIMES, BROKEN]),
        ),
        min_size=8,
        max_size=60,
    ),
    away=st.fixed_dictionaries(dict.fromkeys(APPS, st.dictionaries(st.integers(1, 40), st.booleans(), max_size=4))),
    letters_away=st.frozensets(st.integers(1, 30), max_size=3),
    runs_again=st.booleans(),
    quarantine=st.booleans(),
    size=st.integers(5, 40),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_row_of_two_apps_takes_effect_or_has_a_letter(
    rules: RuleSet,
    monkeypatch: pytest.MonkeyPatch,
    values: list[tuple[str, str, int | None]],
    away: dict[str, dict[int, bool]],
    letters_away: frozenset[int],
    runs_again: bool,
    quarantine: bool,
    size: int,
) -> None:
    """One worker after the other writes both, batches are arranged ahead, and mutations may be in quarantine."""
    monkeypatch.setattr(quarantining, "FAILURES_TO_QUARANTINE", 3)
    monkeypatch.setattr(quarantining, "USERS_TO_QUARANTINE", 2)
    events = events_of_apps(rules, [*[(app, "a", 1) for app in APPS] * 20, *values])
    graphs = Graphs({app: Graph(away=away[app]) for app in APPS}, runs_again)
    letters = Letters(away=letters_away)
    workers = [applier(rules, graphs, letters, quarantine=quarantine)]

    async def work(app: str) -> None:
        batches = [events[app][at : at + size] for at in range(0, len(events[app]), size)]
        graph = graphs.of[app]
        for batch, following in pairwise([*batches, ()]):
            while graph.progress.checkpoint.offset < batch[-1].entry.offset:
                await workers[-1].prepare(0, following)
                try:
                    if has_plan(graph.progress.checkpoint):
                        await workers[-1].resume(0, app, graph.progress, batch)
                    else:
                        await workers[-1].apply(0, app, graph.progress.checkpoint, batch)
                except GraphUnavailable:
                    workers.append(applier(rules, graphs, letters, quarantine=quarantine))

    async def both() -> None:
        await asyncio.gather(*map(work, APPS))

    asyncio.run(both())
    for app, own in events.items():
        assert serially(own, letters.rows) == (graphs.of[app].state, set())
        if not quarantine:
            assert serially(own)[1] == {row for row in letters.rows if row[0] in {each.entry.offset for each in own}}


def queries_for(rules: RuleSet, failing: int, *, runs_again: bool = False) -> tuple[int, int]:
    """Return the queries and calls of the second batch of 1,000 events, of which ``failing`` have a row that fails.

    The first batch has one such row.
    """

    def batch(broken: int) -> list[tuple[str, int | None]]:
        every = 1_000 // broken if broken else 0
        return [(f"s{n}", BROKEN if every and n % every == every - 1 else 1) for n in range(1_000)]

    events = events_of(rules, [*batch(1), *batch(failing)])
    for event in events:  # the third mutation reads all sessions, so no rows share a query with it
        event.mutations = event.mutations[:2]
    graph, letters = Graph(runs_again=runs_again), Letters()
    worker = applier(rules, graph, letters, quarantine=True)

    async def both() -> tuple[int, int]:
        checkpoint = await worker.apply(0, "app", graph.progress.checkpoint, events[:1_000])
        queries, calls = graph.queries, graph.calls
        await worker.apply(0, "app", checkpoint, events[1_000:])
        return graph.queries - queries, graph.calls - calls

    counts = asyncio.run(both())
    assert len(letters.rows) == 1 + failing
    assert graph.state == serially(events)[0]
    return counts


@pytest.mark.parametrize("failing", [0, 1, 2, 10, 20])
def test_a_batch_takes_few_queries_for_each_failing_row(rules: RuleSet, failing: int) -> None:
    queries, calls = queries_for(rules, failing)
    assert queries <= failing + 6
    assert calls <= failing + 2


@pytest.mark.parametrize("failing", [2, 20])
def test_a_graph_that_would_run_rows_again_gets_suspects_alone(rules: RuleSet, failing: int) -> None:
    queries, calls = queries_for(rules, failing, runs_again=True)
    assert queries <= failing + 8
    assert calls <= failing + 5


def test_suspects_with_sound_rows_between_them_put_nothing_in_quarantine(rules: RuleSet) -> None:
    """They run one after the other, but they did not fail one after the other in the log."""
    failing = range(0, 1_000, 25)
    first = [*((f"s{number}", 1) for number in range(999)), ("s0", SOMETIMES)]
    second = [(f"s{number}", SOMETIMES if number in failing else 1) for number in range(1_000)]
    events = events_of(rules, [*first, *second, *((f"s{number}", SOMETIMES) for number in range(1, 400))])
    for event in events:
        event.mutations = event.mutations[:1]
    graph, letters = Graph(), Letters()
    worker = applier(rules, graph, letters, quarantine=True)

    async def apply(start: int) -> None:
        await worker.apply(0, "app", graph.progress.checkpoint, events[start : start + 1_000])

    asyncio.run(apply(0))
    asyncio.run(apply(1_000))
    assert len(letters.kept) == 1 + len(failing)
    assert {letter.reason for letter in letters.kept.values()} == {"query_error"}
    asyncio.run(apply(2_000))  # these fail one after the other
    assert "quarantined" in {letter.reason for letter in letters.kept.values()}


def test_a_suspect_that_fails_as_a_probe_ends_no_quarantine(rules: RuleSet) -> None:
    sound = [(f"s{number}", 1) for number in range(50)]
    # The last row runs before the sound one before it, because the first row has a step of its own already.
    batches = [
        [*sound, ("s0", SOMETIMES)],
        [*sound, ("s1", BROKEN)],
        [(session, SOMETIMES) for session, _ in sound],
        [("s1", BROKEN), ("s2", 1), ("s3", 1), ("s4", SOMETIMES)],
    ]
    graph, letters = Graph(), Letters()
    worker = applier(rules, graph, letters, quarantine=True, timing=QuarantineTiming(first_probe_s=0.0))
    events = iter(events_of(rules, [each for batch in batches for each in batch]))

    async def apply(batch: Sequence[object]) -> list[str]:
        some = list(islice(events, len(batch)))
        for event in some:
            event.mutations = event.mutations[:1]
        with structlog.testing.capture_logs() as logs:
            await worker.apply(0, "app", graph.progress.checkpoint, some)
        return [each["event"] for each in logs if "quarantine" in each["event"]]

    found = [asyncio.run(apply(batch)) for batch in batches]
    assert found == [[], [], ["mutation_quarantined"], ["quarantine_ended"]]  # by the second row of the last batch


def test_a_suspect_is_not_blamed_for_the_row_after_it(rules: RuleSet) -> None:
    """The search for the first broken row, which nothing had shown before, reaches a suspect and another broken row."""
    first = [*((f"s{number}", 1) for number in range(20)), ("s0", SOMETIMES)]
    second = [*((f"s{number}", 1) for number in range(20)), ("x", BROKEN), ("r", 1), ("new", SOMETIMES), ("y", BROKEN)]
    events = events_of(rules, [*first, *second, *((f"s{number}", 1) for number in range(20))])
    for event in events:
        event.mutations = event.mutations[:1]
    graph, letters = Graph(), Letters()
    worker = applier(rules, graph, letters)

    async def both() -> None:
        await worker.apply(0, "app", await worker.apply(0, "app", START, events[: len(first)]), events[len(first) :])

    asyncio.run(both())
    assert (graph.state, letters.rows) == serially(events)


def test_a_failing_row_without_an_example_is_found_in_few_calls(rules: RuleSet) -> None:
    events = events_of(rules, [(f"s{number}", BROKEN if number == 777 else 1) for number in range(1_000)])
    for event in events:
        event.mutations = event.mutations[:1]
    graph, letters = Graph(), Letters()
    asyncio.run(run(rules, graph, letters, [events]))
    assert letters.rows == {("00778", "see")}
    assert graph.calls <= 8
    assert graph.queries <= 40


def test_rows_of_another_workflow_stand_between_no_suspects(tmp_path: Path) -> None:
    """Rules of two workflows may have the same names."""
    for workflow in "VW":
        rules_of_parts(tmp_path, {"see": PARTS["see"]}, workflow)
    rules = load_rules(tmp_path)
    events = [*events_of(rules, [("a", 1)], "V"), *events_of(rules, [("b", 1), ("c", 1)])]
    arranger = asyncio.run(Arrangers(FixedRules(rules), FALKORDB).of(events))
    rows = Plan.of(START, events, arranger).rows
    first, second, third = sorted(rows, key=lambda row: row.number)
    assert amid(rows, {id(second): second, id(third): third}) == set()
    assert amid(rows, {id(first): first, id(third): third}) == {id(third)}


# Batches whose rows are arranged before they are applied


class Counting(Arrangers):
    """Counts for how many batches of events it was asked."""

    asked = 0

    async def of(self, events: Sequence[LoggedEvent]) -> Arranger:
        self.asked += 1
        return await super().of(events)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_displaced_worker_writes_no_dead_letters_of_a_plan(rules: RuleSet, is_gone: bool) -> None:
    """The next owner may have applied the rows by rules that have them, and its dead letters may be retried."""
    [event] = events_of(rules, [("s", 1)])
    failed = FailedRows(rule="r", mutation="see", offsets=(event.entry.offset,), reason="query_error", message="no")
    note = PlanNote(
        end=event.entry.offset,
        events=[event.entry.offset],
        steps=[("r", "removed", [0])] if is_gone else [],
        left_out=None if is_gone else asdict(failed),
    )
    stale = Progress(checkpoint=Checkpoint(offset="", plan="p"), note=note.encode())
    graph, letters = Graph(progress=Progress(checkpoint=Checkpoint(offset=event.entry.offset))), Letters()
    worker = applier(rules, graph, letters, log=OneEntry(event.entry))
    with pytest.raises(Fenced):
        asyncio.run(worker.resume(0, "app", stale, [event]))
    assert letters.kept == {}
    graph.progress = stale
    asyncio.run(worker.resume(0, "app", stale, [event]))
    assert [letter.reason for letter in letters.kept.values()] == ["missing_rule" if is_gone else "query_error"]
    assert graph.progress.checkpoint == Checkpoint(offset=event.entry.offset)


@pytest.mark.parametrize("reason", ["query_error", "quarantined"])
def test_a_failed_row_has_a_letter_although_the_rules_know_its_event_no_longer(rules: RuleSet, reason: Any) -> None:
    event, after = events_of(rules, [("s", 1), ("s", 2)])
    offset = event.entry.offset
    failed = FailedRows(rule="r", mutation="see", offsets=(offset,), reason=reason, message="no")
    note = PlanNote(end=offset, events=[], steps=[], left_out=asdict(failed))
    graph = Graph(progress=Progress(checkpoint=Checkpoint(offset="", plan="p"), note=note.encode()))
    letters = Letters()
    worker = applier(rules, graph, letters, log=OneEntry(event.entry))
    asyncio.run(worker.resume(0, "app", graph.progress, [after]))
    [letter] = letters.kept.values()
    assert (letter.offset, letter.mutation, letter.reason, letter.message) == (offset, "see", reason, "no")
    assert letter.event_id == event.event.id


def test_a_half_done_batch_of_failed_rows_alone_waits_for_its_rules(rules: RuleSet) -> None:
    """Otherwise its event counts as one without rules, and all of its rows run again when it is retried."""
    [event] = events_of(rules, [("s", 1)])
    offset = event.entry.offset
    failed = FailedRows(rule="r", mutation="see", offsets=(offset,), reason="query_error", message="no")
    note = PlanNote(end=offset, events=[], steps=[], left_out=asdict(failed))
    there = Progress(checkpoint=Checkpoint(offset="", plan="p"), note=note.encode())

    async def reread(active: RuleSet) -> None:
        state = WorkerState(
            log=cast("EventLog", OneEntry(event.entry)),
            partitions=memory_bus([[event.entry]]).partitions, letters=cast("DeadLetters", Letters()),
            graph=cast("PartitionGraph", Standing(there)), rules=FixedRules(active), batch_events=10,
            index_keys=frozenset(),
        )  # fmt: skip
        parking = Parking(position=CommittedPosition())
        await AppWriter(state, 0, NOTHING).parked.reread("app", parking, CommittedPosition(offset=offset, count=1))

    with pytest.raises(GraphUnavailable, match="whose rules are not loaded"):
        asyncio.run(reread(RuleSet({})))
    with pytest.raises(RulesLost):
        asyncio.run(reread(MissingRules("0" * 64)))


def test_the_graph_says_by_which_rules_it_got_there_after_a_defect(
    rules: RuleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of a batch that cannot be arranged are applied one by one; then the earlier rules are active again."""
    others = rules_of_parts(tmp_path, {"see": PARTS["see"]})
    given = Arrangers.of

    async def of(arrangers: Arrangers, events: Sequence[LoggedEvent]) -> Arranger:
        if len(events) > 1:
            raise ValueError("a defect")
        return await given(arrangers, events)

    monkeypatch.setattr(Arrangers, "of", of)
    values = [(f"s{number}", 1) for number in range(4)]
    before, between = events_of(rules, values), events_of(others, values)
    for event in before:
        event.mutations = event.mutations[:1]
    graph, letters = Graph(), Letters()
    worker = applier(rules, graph, letters)

    async def apply(events: Sequence[LoggedEvent]) -> str:
        await worker.apply(0, "app", graph.progress.checkpoint, events)
        return RestNote.of(graph.progress).rules

    async def all_of_them() -> list[str]:
        return [await apply(before[:1]), await apply(between[1:3]), await apply(before[3:])]

    assert asyncio.run(all_of_them()) == [rules.digest, others.digest, rules.digest]


def test_the_next_rows_of_many_apps_are_arranged_once(rules: RuleSet) -> None:
    arrangers = Counting(FixedRules(rules), FALKORDB)
    worker = applier(rules, Graph(), Letters(), arrangers=arrangers)

    async def work() -> None:
        batches = [(number, events_of(rules, [("a", 1)])) for number in range(5) for _ in range(6)]
        for partition, batch in batches:
            await worker.prepare(partition, batch)
        for number, (partition, batch) in enumerate(batches):
            checkpoint = START if not number else Checkpoint(offset=batch[-1].entry.offset)
            await worker.apply(partition, "app", checkpoint, batch)

    asyncio.run(work())
    assert arrangers.asked == 30


def test_rows_are_arranged_anew_when_other_rules_came_meanwhile(rules: RuleSet) -> None:
    """Their rows may have written what the arrangement does not know."""

    class Growing(FixedRules):
        count = 1

        @property
        def known(self) -> int:
            return self.count

    growing = Growing(rules)
    arrangers = Counting(growing, FALKORDB)
    worker = applier(rules, Graph(), Letters(), arrangers=arrangers)
    batch = events_of(rules, [("a", 1)])

    async def work() -> None:
        await worker.prepare(0, batch)
        growing.count += 1
        await worker.apply(0, "app", START, batch)

    asyncio.run(work())
    assert arrangers.asked == 2


def test_rows_that_were_arranged_ahead_are_not_kept(rules: RuleSet) -> None:
    """Neither when batches have piled up and are applied as one, nor when the partition is given up."""
    events = events_of(rules, [(f"s{number}", 1) for number in range(8)])
    graph, letters = Graph(), Letters()
    worker = applier(rules, graph, letters)

    async def work() -> None:
        for batch in (events[:2], events[2:4], events[4:6], events[6:]):
            await worker.prepare(0, batch)
        await worker.apply(0, "app", graph.progress.checkpoint, events[:4])
        await worker.apply(0, "app", graph.progress.checkpoint, events[4:6])

    asyncio.run(work())
    assert graph.state == serially(events[:6])[0]
    assert [len(ahead) for ahead in worker._ahead.values()] == [1]  # pyright: ignore[reportPrivateUsage]
    worker.forget(0)
    assert not worker._ahead  # pyright: ignore[reportPrivateUsage]


# Suspects


def test_a_row_is_suspected_by_what_only_failed_rows_have() -> None:
    suspects = Suspects()
    suspects.add("q", {"k": "x", "n": 0, "t": "a"}, [{"k": "y", "n": 4, "t": "a"}])
    rows = [{"k": "z", "n": 0, "t": "b"}, {"k": "z", "n": 4, "t": "a"}, {"k": "z", "n": False, "t": "a"}]
    assert suspects.among(("q", row) for row in rows) == [0]
    assert suspects.among(("other", row) for row in rows) == []


def test_rows_with_nan_are_suspected_and_push_out_no_other_trait() -> None:
    suspects = Suspects()
    suspects.add("q", {"x": "bad"}, [{"x": 1.0}])
    for _ in range(100):
        suspects.add("q", {"x": float("nan")}, [{"x": 1.0}])
    assert suspects.among([("q", {"x": value}) for value in (float("nan"), 1.0, "nan", "bad")]) == [0, 3]


def test_a_suspect_that_takes_effect_is_suspected_no_longer() -> None:
    suspects = Suspects()
    suspects.add("q", {"n": 0}, [{"n": 4}])
    suspects.clear("q", {"n": 0})
    assert suspects.among([("q", {"n": 0})]) == []
    assert not suspects


def test_traits_are_forgotten_after_batches_without_a_suspect() -> None:
    suspects = Suspects()
    suspects.add("q", {"n": 0}, [{"n": 4}])
    for _ in range(50):
        assert suspects.among([("q", {"n": 4})]) == []
    assert suspects
    suspects.among([("q", {"n": 4})])
    assert not suspects


def test_without_sound_rows_nothing_is_suspected() -> None:
    suspects = Suspects()
    suspects.add("q", {"n": 0}, [])
    assert not suspects
