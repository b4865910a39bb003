"""Which apps rest after slow writes, and which of their mutations are tried again, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from tests.services.rules import rules_of_parts
from tests.services.virtual_time import VirtualClock

from graphweft_contracts import DeadLetter, Event, QueryFailed, wire
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.engine.apply.apply import Applier
from graphweft_workers.engine.apply.write_budget import SlowWrites, WriteBudget
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import LoggedEvent, read_range
from graphweft_workers.engine.plan.arrangers import Arrangers
from graphweft_workers.ports.dead_letters import first_letters
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import Progress, Write, WriteResult
from graphweft_workers.rule_sets.active_rules import FixedRules
from graphweft_workers.support.timing import Timing, WriteTiming

NOW = datetime(2026, 2, 1, tzinfo=UTC)
SLOW = "MERGE (s:Slow {id: $s}) SET s.v = $v"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_an_app_rests_longer_after_a_long_write_than_after_a_short_one(clock: VirtualClock) -> None:
    budget = WriteBudget(clock, WriteTiming())
    budget.charge("a", 0.09)
    assert budget.rest_s("a") == 0.0
    budget.charge("a", 0.2)
    assert budget.rest_s("a") == pytest.approx(0.2)
    budget.charge("a", 1.0)
    assert budget.rest_s("a") == pytest.approx(20.2)
    assert budget.rest_s("b") == 0.0
    clock.advance(20.3)
    assert budget.rest_s("a") == 0.0


def test_an_app_rests_for_all_that_its_partitions_have_written_at_once(clock: VirtualClock) -> None:
    budget = WriteBudget(clock, WriteTiming())
    for _ in range(4):
        budget.charge("a", 0.5)
    assert budget.rest_s("a") == pytest.approx(40.0)  # else others would have 80 % of the time, and not 95 %
    assert budget.timed_out("a", SLOW, "short")
    assert budget.rest_s("a") == pytest.approx(40.0)  # more than the least rest


def test_a_statement_has_more_time_after_it_ran_into_the_short_limit(clock: VirtualClock) -> None:
    budget = WriteBudget(clock, WriteTiming())
    assert budget.limit("a", SLOW) == "short"
    assert budget.timed_out("a", SLOW, "short")
    assert budget.rest_s("a") == 5.0
    assert (budget.limit("a", SLOW), budget.limit("b", SLOW)) == ("long", "short")
    assert budget.timed_out("a", SLOW, "short")  # in another partition, at the same time
    assert not budget.timed_out("a", SLOW, "long")
    budget.was_quick("a", SLOW)
    assert budget.limit("a", SLOW) == "short"


@dataclass
class Graph:
    """A graph in memory whose rows take as many seconds as their value says."""

    clock: VirtualClock
    progress: Progress = field(default_factory=Progress)
    tries: list[tuple[Any, str]] = field(default_factory=list[tuple[Any, str]])
    """Values of rows that were tried alone, with the limit."""
    sizes: list[int] = field(default_factory=list[int])
    runs_again = False
    dialect: Any = FALKORDB

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        held_s: list[float] = []
        for count, write in enumerate(writes):
            assert write.before == self.progress.checkpoint
            needs_s = sum(row["v"] for row in write.rows)
            limit_s = {"short": 0.25, "long": 2.0, "full": 5.0}[write.limit] if len(write.rows) < 2 else 0.5
            held_s.append(min(needs_s, limit_s))
            self.clock.advance(held_s[-1])
            if len(write.rows) == 1 and needs_s:
                self.tries.append((write.rows[0]["s"], write.limit))
            if needs_s > limit_s:
                return WriteResult(count=count, failure=QueryFailed("too long", code="timeout"), held_s=held_s)
            self.sizes.append(len(write.rows))
            note = self.progress.note if write.note is None else write.note
            self.progress = Progress(checkpoint=write.after, note=note)
        return WriteResult(count=len(writes), held_s=held_s)


@dataclass
class Letters:
    kept: dict[str, DeadLetter] = field(default_factory=dict[str, DeadLetter])

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        self.kept |= {letter.id: letter for letter in letters}

    async def read(self, *, limit: int, ids: Any) -> list[DeadLetter]:
        return first_letters(self.kept.values(), limit, ids=ids)

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        await self.put([longer])
        return True

    @property
    def rows(self) -> list[tuple[str, int]]:
        return sorted((each.reason, len(each.offsets) or 1) for each in self.kept.values())


def events_of(
    rules: RuleSet, rows: Sequence[tuple[str, float]], user_id: str | None = None, data: Mapping[str, str] | None = None
) -> list[LoggedEvent]:
    """Return events with a chat and the seconds that the write of each takes."""
    entries = [
        Entry(
            offset=f"{number:05}",
            fields=wire.encode(
                Event.create(
                    "x.y",
                    app_id="app",
                    chat_id=chat,
                    workflow="W",
                    id=f"e{number}",
                    user_id=user_id,
                    data={"s": f"s{number}", "v": v, **(data or {})},
                )
            ),
            received=NOW,
        )
        for number, (chat, v) in enumerate(rows, start=1)
    ]
    return read_range(0, entries, FixedRules(rules), RecentEvents()).apps["app"]


@dataclass
class Worker:
    """Applies events; while the app rests, time passes."""

    rules: RuleSet
    clock: VirtualClock
    quarantine: bool = True
    rests: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        self.graph, self.letters = Graph(self.clock), Letters()
        arrangers = Arrangers(FixedRules(self.rules), FALKORDB)
        self.applier = Applier(
            cast("Any", None), cast("Any", self.letters), cast("Any", self.graph), arrangers,
            quarantine=self.quarantine, clock=self.clock, timing=Timing(),
        )  # fmt: skip

    async def apply(self, events: Sequence[LoggedEvent]) -> None:
        while True:
            checkpoint = self.graph.progress.checkpoint
            try:
                if checkpoint.plan:
                    await self.applier.resume(0, "app", self.graph.progress, events)
                else:
                    left = [event for event in events if event.entry.offset > checkpoint.offset]
                    await self.applier.apply(0, "app", checkpoint, left)
            except SlowWrites as error:
                self.rests.append(round(error.retry_after_s, 2))
                self.clock.advance(error.retry_after_s + 0.01)
            else:
                return


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    return rules_of_parts(tmp_path, {"slow": SLOW})


async def one_by_one(worker: Worker, events: Sequence[LoggedEvent]) -> None:
    for event in events:
        await worker.apply([event])


async def test_endless_writes_of_several_chats_are_tried_three_times_together(
    rules: RuleSet, clock: VirtualClock
) -> None:
    worker = Worker(rules, clock)
    events = events_of(rules, [(f"c{number % 6}", 100.0) for number in range(12)])
    await one_by_one(worker, events)
    # The first one gets a second try. The next one has no short one, and then the mutation is in quarantine.
    assert worker.graph.tries == [("s1", "short"), ("s1", "long"), ("s2", "long")]
    assert worker.letters.rows == [("quarantined", 10), ("timeout", 1), ("timeout", 1)]
    assert worker.rests == [5.0, 40.0, 40.0]


async def test_endless_writes_that_share_a_batch_cost_no_more(rules: RuleSet, clock: VirtualClock) -> None:
    worker = Worker(rules, clock)
    await worker.apply(events_of(rules, [(f"c{number % 6}", 100.0) for number in range(12)]))
    assert [name for name, _ in worker.graph.tries] == ["s1", "s1", "s2"]
    assert sum(count for _, count in worker.letters.rows) == 12


async def test_one_chat_puts_no_mutation_in_quarantine_by_slow_writes(rules: RuleSet, clock: VirtualClock) -> None:
    worker = Worker(rules, clock)
    events = events_of(rules, [("loud", 100.0), ("loud", 100.0), ("quiet", 0.0), ("loud", 100.0)])
    await one_by_one(worker, events)
    assert worker.letters.rows == [("timeout", 1)] * 3
    assert worker.graph.progress.checkpoint.offset == "00004"


@pytest.mark.parametrize("named", [{"user_id": "loud"}, {"data": {"user_id": "loud"}}])
async def test_one_user_puts_no_mutation_in_quarantine_by_slow_writes(
    rules: RuleSet, clock: VirtualClock, named: dict[str, Any]
) -> None:
    worker = Worker(rules, clock)
    await one_by_one(worker, events_of(rules, [("a", 100.0), ("b", 100.0), ("c", 0.0), ("d", 100.0)], **named))
    assert worker.letters.rows == [("timeout", 1)] * 3
    assert worker.graph.progress.checkpoint.offset == "00004"


async def test_a_write_that_needs_the_long_limit_takes_effect_after_a_rest(rules: RuleSet, clock: VirtualClock) -> None:
    worker = Worker(rules, clock)
    await one_by_one(worker, events_of(rules, [("c", 1.2), ("d", 1.2), ("e", 0.01), ("f", 0.3)]))
    assert worker.graph.tries == [
        ("s1", "short"), ("s1", "long"), ("s2", "long"), ("s3", "long"), ("s4", "short"), ("s4", "long"),
    ]  # fmt: skip
    assert worker.letters.rows == []
    assert worker.rests == [5.0, 24.0, 24.0, 5.0]


async def test_queries_get_as_many_rows_as_fit_their_time(rules: RuleSet, clock: VirtualClock) -> None:
    worker = Worker(rules, clock)
    rows = [(f"c{number}", 0.004) for number in range(400)]
    events = events_of(rules, rows)
    for start in range(0, 400, 100):
        await worker.apply(events[start : start + 100])
    assert worker.letters.rows == []
    assert worker.graph.sizes[0] == 100
    assert max(worker.graph.sizes[1:]) == 25
    assert worker.rests == []


async def test_a_replay_does_not_rest(rules: RuleSet, clock: VirtualClock) -> None:
    worker = Worker(rules, clock, quarantine=False)
    await one_by_one(worker, events_of(rules, [("c", 1.2), ("d", 100.0), ("e", 1.2)]))
    assert worker.rests == []
    assert worker.graph.tries == [("s1", "full"), ("s2", "full"), ("s2", "full"), ("s3", "full")]
    assert worker.letters.rows == [("timeout", 1)]


class Parts:
    """Graphs of the partitions of an app, whose writes are under way at the same time."""

    runs_again = False
    dialect: Any = FALKORDB

    def __init__(self, clock: VirtualClock) -> None:
        self.graphs = [Graph(clock), Graph(clock)]
        self.first = asyncio.Barrier(2)

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        if not self.graphs[partition].tries:
            await self.first.wait()
        await asyncio.sleep(0)
        return await self.graphs[partition].apply(app_id, partition, writes)


async def test_partitions_of_an_app_with_long_writes_have_one_between_two_rests(
    rules: RuleSet, clock: VirtualClock
) -> None:
    worker, parts = Worker(rules, clock), Parts(clock)
    worker.applier._writes.graph = cast("Any", parts)
    events = events_of(rules, [("c", 1.2), ("d", 1.2)])

    async def go_on(partition: int) -> float:
        """Return how long the partition is to rest."""
        progress = parts.graphs[partition].progress
        try:
            if progress.checkpoint.plan:
                await worker.applier.resume(partition, "app", progress, events)
            else:
                left = [each for each in events[partition:][:1] if each.entry.offset > progress.checkpoint.offset]
                await worker.applier.apply(partition, "app", progress.checkpoint, left)
        except SlowWrites as error:
            return round(error.retry_after_s, 2)
        return 0.0

    def tries() -> int:
        return sum(len(graph.tries) for graph in parts.graphs)

    # Nobody knows yet that they take long.
    assert sorted(await asyncio.gather(go_on(0), go_on(1))) == [5.0, 9.75]
    assert tries() == 2
    assert worker.letters.rows == []  # each has its second try
    for count, rest_s in ((3, 24.0), (4, 0.0)):
        clock.advance(60.0)
        assert sorted(await asyncio.gather(go_on(0), go_on(1))) == [0.0, rest_s]
        assert tries() == count
    assert [graph.progress.checkpoint.offset for graph in parts.graphs] == ["00001", "00002"]
