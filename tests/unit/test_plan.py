"""A plan, whatever it is interrupted by: each row takes effect once, or is left out and told of, and order holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.services.rules import load_rules, rule_set, rules_of_parts

from graphweft_contracts import Event, GraphUnavailable, wire
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.neo4j.dialect import NEO4J
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import LoggedEvent, read_range
from graphweft_workers.engine.plan.order import Arranger
from graphweft_workers.engine.plan.plan import FailedRows, Plan, RestNote, planned_end, resumed, unwritten
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import START, Checkpoint, Progress, Write
from graphweft_workers.rule_sets.active_rules import FixedRules

NOW = datetime(2026, 2, 1, tzinfo=UTC)
PARTS = {
    "see": "MERGE (s:Session {id: $s}) SET s.seen = $v",
    "trace": "MATCH (s:Session {id: $s}) SET s.trace = s.trace + s.seen",
    "all": "MATCH (s:Session) SET s.any = s.seen",
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> RuleSet:
    return rules_of_parts(tmp_path_factory.mktemp("rules"), PARTS)


@pytest.fixture(scope="module")
def arranger(rules: RuleSet) -> Arranger:
    return Arranger(rules, FALKORDB)


def events_of(rules: RuleSet, sessions: Sequence[str]) -> list[LoggedEvent]:
    entries = [
        Entry(
            offset=f"{number:04}",
            fields=wire.encode(
                Event.create("x.y", app_id="app", chat_id=s, workflow="W", id=f"e{number}", data={"s": s, "v": number})
            ),
            received=NOW,
        )
        for number, s in enumerate(sessions, start=1)
    ]
    return read_range(0, entries, FixedRules(rules), RecentEvents()).apps.get("app", [])


@dataclass
class Graph:
    """What a store promises of marks, and which rows took effect."""

    progress: Progress = field(default_factory=Progress)
    done: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    bad: frozenset[tuple[str, str]] = frozenset()

    def apply(self, write: Write, names: Sequence[tuple[str, str]]) -> bool:
        assert write.before == self.progress.checkpoint
        if set(names) & self.bad:
            return False
        note = self.progress.note if write.note is None else write.note
        self.progress = Progress(checkpoint=write.after, note=note)
        self.done += names
        return True


def run(graph: Graph, plan: Plan, arranger: Arranger, letters: list[str], fuel: int) -> int:
    """Run a plan as the applier does, for ``fuel`` writes; return what is left of them."""
    done = 0
    size = 1_000
    while True:
        for write in plan.writes(done, lambda _, most=size: most):
            if not fuel:
                return 0
            fuel -= 1
            rows = plan.rows[done : done + len(write.rows)]
            if graph.apply(write, [(row.name[0], row.name[2]) for row in rows]):
                done += len(rows)
                if write.after == Checkpoint(offset=plan.end):
                    return fuel
                continue
            if len(rows) > 1:
                size = max(1, len(rows) // 2)
                break
            [row] = rows
            why = FailedRows(rule="r", mutation=row.name[2], offsets=(row.name[0],), reason="query_error", message="no")
            plan = plan.without(done, why)
            done, size = 0, 1_000
            assert graph.apply(plan.opening(), [])
            if not fuel:
                return 0
            letters += [f"{offset}/{why.mutation}" for offset in why.offsets]
            plan = plan.reported()
            break


@given(
    sessions=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    data=st.data(),
)
def test_whatever_interrupts_it(rules: RuleSet, arranger: Arranger, sessions: list[str], data: st.DataObject) -> None:
    events = events_of(rules, sessions)
    names = [(event.entry.offset, bound.mutation.id) for event in events for bound in event.mutations]
    graph = Graph(bad=data.draw(st.frozensets(st.sampled_from(names), max_size=4)))
    letters: list[str] = []
    for fuel in [*data.draw(st.lists(st.integers(0, 6), max_size=8)), 10_000]:
        progress = graph.progress
        if progress.checkpoint.plan:
            # Marks name rows by their place, so what resumes must not depend on the batch that it happens to read.
            assert planned_end(progress) == events[-1].entry.offset
            failed = unwritten(progress)
            if failed:
                letters += [f"{offset}/{failed.mutation}" for offset in failed.offsets]
            run(graph, resumed(progress, events, arranger)[0], arranger, letters, fuel)
        elif progress.checkpoint.offset != events[-1].entry.offset:
            run(graph, Plan.of(progress.checkpoint, events, arranger), arranger, letters, fuel)
    assert graph.progress.checkpoint == Checkpoint(offset=events[-1].entry.offset)
    assert RestNote.of(graph.progress).rules == rules.digest != ""
    assert sorted(graph.done) == sorted(set(names) - graph.bad)
    assert set(letters) == {"/".join(name) for name in graph.bad}
    place = {name: number for number, name in enumerate(graph.done)}
    for session in "abc":  # each of the three reads what another writes
        mine = [name for name in names if sessions[int(name[0]) - 1] == session and name in place]
        assert [place[name] for name in mine] == sorted(place[name] for name in mine)


def test_a_plan_of_one_write_needs_no_note_if_the_rules_are_noted(rules: RuleSet, arranger: Arranger) -> None:
    [event] = events_of(rules, ["a"])
    only = LoggedEvent(entry=event.entry, plain=event.event, mutations=event.mutations[:1], rules=event.rules)
    [write] = Plan.of(START, [only], arranger).writes(0, lambda _: 10)
    noted = Progress(checkpoint=write.after, note=write.note or "")
    assert (write.before, write.after, RestNote.of(noted).rules) == (START, Checkpoint(offset="0001"), rules.digest)
    [write] = Plan.of(START, [only], arranger, noted=RestNote.of(noted)).writes(0, lambda _: 10)
    assert (write.before, write.after, write.note) == (START, Checkpoint(offset="0001"), None)
    [write] = Plan.of(START, [only], arranger, noted=RestNote("other")).writes(0, lambda _: 10)
    assert write.note is not None


def test_rows_whose_rules_are_gone_are_passed_over(rules: RuleSet, arranger: Arranger) -> None:
    events = events_of(rules, ["a", "b"])
    plan = Plan.of(START, events, arranger)
    first, *_ = plan.writes(0, lambda _: 1)
    progress = Progress(checkpoint=first.after, note=first.note or "")
    fewer = [LoggedEvent(entry=w.entry, plain=w.event, mutations=w.mutations[:2], rules=w.rules) for w in events]
    left = [row.name for row in resumed(progress, fewer, arranger)[0].rows]
    assert left == [row.name for row in plan.rows[1:] if row.name[2] != "all"]


def test_a_note_of_another_version_is_not_guessed_at() -> None:
    progress = Progress(checkpoint=Checkpoint(plan="p", done=1), note=json.dumps({"format": 99}))
    with pytest.raises(GraphUnavailable, match="another version"):
        planned_end(progress)


def test_marks_never_repeat(rules: RuleSet, arranger: Arranger) -> None:
    events = events_of(rules, "abcab")
    plan = Plan.of(START, events, arranger)
    writes = list(plan.writes(0, lambda _: 1))
    checkpoints: list[Any] = [START, *(write.after for write in writes)]
    assert len(set(checkpoints)) == len(checkpoints)
    other = Plan.of(START, events[:3], arranger)
    assert {write.after for write in other.writes(0, lambda _: 1)}.isdisjoint(checkpoints)


def test_where_a_row_fails_that_was_to_make_an_entity_later_ones_go_back_to_their_places(tmp_path: Path) -> None:
    (tmp_path / "W").mkdir()
    cyphers = {"only": "MERGE (s:Session {id: $s})", "read": "MATCH (s:Session {id: $s}) SET s.found = true"}
    mutations = [{"id": name, "cypher": cypher, "params": {"s": "$event.s"}} for name, cypher in cyphers.items()]
    text = yaml.safe_dump({"mutation_rules": [{"name": "r", "events": ["*"], "mutations": mutations}]})
    (tmp_path / "W/graph_injection.yaml").write_text(text)
    rules = load_rules(tmp_path)
    arranger = Arranger(rules, FALKORDB)
    plan = Plan.of(START, events_of(rules, ["a", "a"]), arranger)
    assert [row.name[0] + row.name[2] for row in plan.rows] == ["0001only", "0002only", "0001read", "0002read"]
    why = FailedRows(rule="r", mutation="only", offsets=("0001",), reason="query_error", message="no")
    rest = plan.without(0, why)
    assert [row.name[0] + row.name[2] for row in rest.rows] == ["0001read", "0002only", "0002read"]


def test_events_of_many_items_share_no_query() -> None:
    """FalkorDB serves nobody else while a query writes: 10,000 items take it a quarter of a second."""
    rules = rule_set()
    entries: list[Entry] = []
    for number in range(5):
        said = [{"type": "T", "name": f"n{each}", **{f"a{n}": n for n in range(50)}} for each in range(80)]
        data = {"user_id": "u", "episode_type": "json", "content": {"entities": said}}
        event = Event.create("episode.add", app_id="app", chat_id=f"c{number}", id=f"e{number}", data=data)
        entries.append(Entry(offset=f"{number:04}", fields=wire.encode(event), received=NOW))
    events = read_range(0, entries, FixedRules(rules), RecentEvents()).apps["app"]
    sizes: dict[str, dict[str, list[int]]] = {}
    for dialect in (FALKORDB, NEO4J):
        plan = Plan.of(START, events, Arranger(rules, dialect))
        found: dict[str, list[int]] = {}
        for write, name in zip(writes := list(plan.writes(0, lambda _: 1_000)), _names(plan, writes), strict=True):
            found.setdefault(name, []).append(len(write.rows))
        assert sum(map(sum, found.values())) == len(plan.rows)
        sizes[dialect] = found
    assert sizes[FALKORDB] == {"add": [5], "entities": [5], "attributes": [2, 2, 1]}
    assert sizes[NEO4J] == {"add": [5], "entities": [5], "attributes": [5]}


def _names(plan: Plan, writes: Sequence[Write]) -> list[str]:
    """Return the mutation of each write."""
    names: list[str] = []
    for write in writes:
        done = sum(len(each.rows) for each in writes[: len(names)])
        [name] = {row.name[2] for row in plan.rows[done : done + len(write.rows)]}
        names.append(name)
    return names
