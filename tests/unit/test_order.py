"""Rows share steps where that changes nothing, and keep the log's order where it would."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.services.rules import load_rules

from graphweft_rules import BoundMutation, RuleSet
from graphweft_rules.cypher.accesses import ResourceAccess, commute
from graphweft_rules.cypher.read_write_sets import read_write_sets
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.engine.plan.order import MOST_ROWS, Arranger
from graphweft_workers.ports.dialect import GraphDialect

SEE = "MERGE (s:Session {id: $s}) SET s.seen = $v"
CALL = "MERGE (s:Session {id: $s}) MERGE (t:Tool {name: $t}) MERGE (s)-[:CALLED]->(t)"
READ = "MATCH (s:Session {id: $s}) SET s.before = s.seen"
MATCHED = "MATCH (s:Session {id: $s}) MERGE (t:Tool {name: $t})"
USE = "MATCH (t:Tool {name: $t}) SET t.used = true"
OPAQUE = "MATCH (s:Session) DETACH DELETE s"
ONLY = "MERGE (s:Session {id: $s})"
UNLABEL = "MATCH (s:Session {id: $s}) REMOVE s:Session"
REKEY = "MATCH (s:Session {id: $s}) SET s.id = $t"
COPY = "MATCH (a:Session {id: $s}), (b:Session {id: $t}) SET a.score = b.score"


def ruleset(folder: Path, **cyphers: str) -> RuleSet:
    mutations = [
        {"id": name, "cypher": cypher, "params": {p: f"$event.{p}" for p in ("s", "t", "v") if f"${p}" in cypher}}
        for name, cypher in cyphers.items()
    ]
    (folder / "W").mkdir(parents=True)
    rules = [{"name": "r", "events": ["*"], "mutations": mutations}]
    (folder / "W/graph_injection.yaml").write_text(yaml.safe_dump({"mutation_rules": rules}))
    return load_rules(folder)


class Rows:
    """Rows of a rule set's mutations, and the steps that they are put in."""

    def __init__(self, rules: RuleSet, dialect: GraphDialect = FALKORDB) -> None:
        self.mutations = {part.id: part for part in rules.workflows["W"].mutation_rules[0].parts}
        self.arranger = Arranger(rules, dialect)

    def row(self, name: str, **params: Any) -> BoundMutation:
        return BoundMutation(mutation=self.mutations[name], params=params)

    def steps(self, *rows: BoundMutation, apart: Collection[int] = ()) -> list[tuple[str, list[int]]]:
        """Return the numbers of rows by step; those in ``apart`` may fail."""
        numbers = list(range(1_000, 1_000 + len(rows)))  # small integers are one object each, as rows are
        found = self.arranger.arrange(zip(rows, numbers, strict=True), {id(numbers[number]) for number in apart})
        found = [replace(step, rows=[number - 1_000 for number in step.rows]) for step in found]
        return [(step.mutation.mutation.id, step.rows) for step in found]


def test_rows_that_have_nothing_to_do_with_each_other_share_steps(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, see=SEE, call=CALL))
    mixed = [rows.row("see", s="a", v=1), rows.row("call", s="a", t="x"), rows.row("see", s="a", v=2)]
    assert rows.steps(*mixed, rows.row("call", s="b", t="x")) == [("see", [0, 2]), ("call", [1, 3])]


def test_what_is_read_stays_behind_what_is_written(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, see=SEE, read=READ))
    same = [rows.row("see", s="a", v=1), rows.row("read", s="a"), rows.row("see", s="a", v=2), rows.row("read", s="a")]
    assert rows.steps(*same) == [("see", [0]), ("read", [1]), ("see", [2]), ("read", [3])]
    other = [rows.row("see", s="a", v=1), rows.row("read", s="a"), rows.row("see", s="b", v=2), rows.row("read", s="b")]
    assert rows.steps(*other) == [("see", [0, 2]), ("read", [1, 3])]


def test_a_query_that_is_not_understood_keeps_its_place(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, see=SEE, opaque=OPAQUE))
    see, opaque = rows.row("see", s="a", v=1), rows.row("opaque")
    found = rows.steps(see, see, opaque, see, see)
    assert [(name, len(numbers)) for name, numbers in found] == [("see", 2), ("opaque", 1), ("see", 2)]


def test_what_a_query_that_is_not_understood_did_to_an_entity_is_not_guessed_at(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, only=ONLY, opaque=OPAQUE, read=READ))
    only, opaque, read = rows.row("only", s="a"), rows.row("opaque"), rows.row("read", s="a")
    found = rows.steps(only, read, opaque, read, only, read)
    assert found == [("only", [0]), ("read", [1]), ("opaque", [2]), ("read", [3]), ("only", [4]), ("read", [5])]


def test_making_sure_again_of_what_is_there_changes_nothing(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, only=ONLY, read=READ))
    only, read = rows.row("only", s="a"), rows.row("read", s="a")
    # However often: what only finds the entity makes no doubt of it.
    assert rows.steps(*[only, read] * 4) == [("only", [0, 2, 4, 6]), ("read", [1, 3, 5, 7])]


@pytest.mark.parametrize("more", [{}, {"only": ONLY, "change": UNLABEL}], ids=["alone", "with what makes sessions"])
def test_only_a_merge_that_every_row_comes_to_makes_sure(tmp_path: Path, more: Mapping[str, str]) -> None:
    rows = Rows(ruleset(tmp_path, matched=MATCHED, use=USE, **more))
    steps = rows.steps(rows.row("matched", s="a", t="x"), rows.row("use", t="x"), rows.row("matched", s="b", t="x"))
    assert steps == [("matched", [0]), ("use", [1]), ("matched", [2])]


DROPS: Mapping[str, str] = {
    "the same pattern": "MATCH (a:Session {id: $s}), (a:Session {id: $v})",
    "a second MATCH": "MATCH (a:Session {id: $s}) MATCH (a:Session {id: $v})",
    "another property": "MATCH (a:Session {id: $s}), (a {kind: $v})",
    "another property and the label": "MATCH (a:Session {id: $s}), (a:Session {kind: $v})",
    "a label": "MATCH (a:Session {id: $s}) MATCH (a:Old)",
    "another name": "MATCH (a:Session {id: $s}) WITH a AS b MATCH (b:Session {id: $v})",
    "a relationship": "MATCH (a:Session {id: $s}) MATCH (a)-[:CALLED]->(:Tool {name: $v})",
    "an optional one": "MATCH (a:Session {id: $s}) OPTIONAL MATCH (a)-[c:CALLED]->() WITH a, c WHERE c.at = $v WITH a",
    "a condition": "MATCH (a:Session {id: $s}) WHERE a.kind = $v",
    "a key that it changes": "MATCH (a:Session {id: $s}) SET a.id = $v WITH a MATCH (b:Session {id: $s})",
    "a map that it changes": "MATCH (a:Session {id: $s}) SET a += $v WITH a MATCH (b:Session {id: $s})",
    "a label that it takes": "MATCH (a:Session {id: $s}) REMOVE a:Session WITH a MATCH (b:Session {id: $s})",
    "a made one": "MERGE (a:Session {id: $s}) WITH a MATCH (a:Session {id: $v})",
}


@pytest.mark.parametrize("drops", DROPS.values(), ids=DROPS)
@pytest.mark.parametrize("apart", [(), (5,)], ids=["columns", "rows"])
def test_what_drops_rows_makes_no_later_merge_sure(tmp_path: Path, drops: str, apart: Collection[int]) -> None:
    tool = "MERGE (t:Tool {name: $t})"
    rows = Rows(ruleset(tmp_path, only=ONLY, drops=f"{drops} {tool}", use=USE, tool=tool))
    made = [
        rows.row("only", s="a"),
        rows.row("drops", s="a", v="b", t="x"),
        rows.row("tool", t="y"),
        rows.row("use", t="x"),
        rows.row("tool", t="x"),
        rows.row("use", t="z"),
    ]
    order = [number for _, numbers in rows.steps(*made, apart=apart) for number in numbers]
    assert order.index(3) < order.index(4)


def test_a_truth_value_names_no_entity_with_the_number_one(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, only=ONLY, matched=MATCHED, use=USE))
    made = [rows.row("only", s=True), rows.row("matched", s=1, t="x"), rows.row("use", t="x")]
    order = [number for _, numbers in rows.steps(*made, rows.row("matched", s=1, t="x")) for number in numbers]
    assert order == [0, 1, 2, 3]


def test_a_merge_of_another_shape_may_make_a_second_entity(tmp_path: Path) -> None:
    kind = "MERGE (s:Session {id: $s, kind: 'c'})"
    rows = Rows(ruleset(tmp_path, see=SEE, kind=kind))
    found = rows.steps(rows.row("see", s="a", v=1), rows.row("kind", s="a"), rows.row("see", s="a", v=2))
    assert found == [("see", [0]), ("kind", [1]), ("see", [2])]


@pytest.mark.parametrize("opaque", [True, False])
def test_each_row_of_a_query_without_a_batch_query_has_a_step(tmp_path: Path, opaque: bool) -> None:
    gone = "MATCH (s:Session {id: $s}) DETACH DELETE s WITH 1 AS one CREATE (:Ghost {v: $t})"
    rows = Rows(ruleset(tmp_path, m=gone if opaque else COPY))
    assert rows.mutations["m"].cypher.batch_query(FALKORDB).mode == "single"
    assert rows.steps(rows.row("m", s="a", t="b"), rows.row("m", s="c", t="d")) == [("m", [0]), ("m", [1])]


def test_a_merge_that_only_finds_stays_in_front_of_what_is_made_later(tmp_path: Path) -> None:
    made = "CREATE (s:Session {id: $s, seen: $v})"
    rows = Rows(ruleset(tmp_path, only=ONLY, made=made, call=CALL))
    found = rows.steps(
        rows.row("only", s="a"),
        rows.row("made", s="z", v=1),
        rows.row("call", s="a", t="x"),
        rows.row("made", s="a", v=1),
    )
    assert found == [("only", [0]), ("made", [1]), ("call", [2]), ("made", [3])]


def test_a_row_that_surely_finds_what_it_looks_for_makes_sure_of_the_next(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, only=ONLY, matched=MATCHED, use=USE))
    only, matched, use = rows.row("only", s="a"), rows.row("matched", s="a", t="x"), rows.row("use", t="x")
    found = rows.steps(only, *[matched, use] * 3)
    assert found == [("only", [0]), ("matched", [1, 3, 5]), ("use", [2, 4, 6])]


def test_a_merge_that_finds_stays_behind_the_step_that_made_what_it_finds(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, call=CALL, matched=MATCHED))
    found = rows.steps(
        rows.row("call", s="a", t="x"),
        rows.row("call", s="b", t=2),  # a step of its own, as its key is a number
        rows.row("call", s="b", t="x"),
    )
    assert found == [("call", [0]), ("call", [1]), ("call", [2])]


def test_nothing_is_sure_any_more_once_any_entity_may_have_changed(tmp_path: Path) -> None:
    counted = "MERGE (s:Session {id: $s}) ON CREATE SET s.first = $v ON MATCH SET s.n = coalesce(s.n, 0) + 1"
    rows = Rows(ruleset(tmp_path, only=ONLY, counted=counted))
    found = rows.steps(
        rows.row("only", s="a"),
        rows.row("counted", s="b", v=1),
        rows.row("only", s=["a"]),  # which entity a server finds by a list is not known
        rows.row("counted", s="a", v=1),
    )
    assert found == [("only", [0]), ("counted", [1]), ("only", [2]), ("counted", [3])]


@pytest.mark.parametrize("change", [UNLABEL, REKEY], ids=["label", "key"])
def test_what_was_made_sure_of_can_be_undone(tmp_path: Path, change: str) -> None:
    rows = Rows(ruleset(tmp_path, only=ONLY, change=change, read=READ))
    only, undo, read = rows.row("only", s="a"), rows.row("change", s="a", t="b"), rows.row("read", s="a")
    assert rows.steps(only, undo, only, read) == [("only", [0]), ("change", [1]), ("only", [2]), ("read", [3])]


def test_what_a_batch_may_not_hold_together_stays_apart(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, only=ONLY))
    steps = rows.steps(*(rows.row("only", s=key) for key in (1, "1", 2, "2", None, 1.5, None)))
    assert steps == [("only", [0, 2]), ("only", [1, 3]), ("only", [4]), ("only", [5]), ("only", [6])]


def test_a_step_has_an_end(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, only=ONLY))
    steps = rows.steps(*(rows.row("only", s=str(number)) for number in range(MOST_ROWS + 1)))
    assert [len(numbers) for _, numbers in steps] == [MOST_ROWS, 1]


def test_what_may_fail_runs_alone_and_makes_sure_of_nothing(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, only=ONLY, read=READ))
    only, read = rows.row("only", s="a"), rows.row("read", s="a")
    assert rows.steps(only, read, only, read) == [("only", [0, 2]), ("read", [1, 3])]
    assert rows.steps(only, read, only, read, apart={0}) == [("only", [0]), ("read", [1]), ("only", [2]), ("read", [3])]
    # One that failed may be tried again, and others share queries around those that may fail.
    again = rows.steps(only, read, only, read, only, read, apart={2})
    assert again == [("only", [0, 4]), ("read", [1, 3, 5]), ("only", [2])]
    others = [rows.row("only", s=str(number)) for number in range(6)]
    assert rows.steps(*others, apart={1, 3}) == [("only", [0, 2, 4, 5]), ("only", [1]), ("only", [3])]


CYPHERS: Mapping[str, str] = {
    "see": "MATCH (s:Session {id: $s}) SET s.seen = $v",
    "call": "MATCH (s:Session {id: $s}) MATCH (t:Tool {name: $t}) CREATE (s)-[:CALLED {at: $v}]->(t)",
    "read": READ,
    "use": USE,
    "copy": COPY,
    "made": "CREATE (s:Session {id: $s, seen: $v})",
    "all": "MATCH (t:Tool) SET t.old = t.used",
    "gone": "MATCH (:Session {id: $s})-[c:CALLED]->(:Tool {name: $t}) DELETE c",
    "some": "MATCH (s:Session {id: $s})-[:CALLED]->(t:Tool) SET t.calls = coalesce(t.calls, 0) + 1",
}
VALUES = st.sampled_from(["a", "b", "c", 1])
ROWS = st.lists(st.tuples(st.sampled_from(sorted(CYPHERS)), VALUES, VALUES), max_size=25)


def conflict(first: tuple[ResourceAccess, Any], second: tuple[ResourceAccess, Any]) -> bool:
    (one, value), (other, another) = first, second
    meets = one.resource == other.resource and (value is None or another is None or value == another)
    return meets and not commute(one.access, other.access)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return Rows(ruleset(tmp_path_factory.mktemp("world"), **CYPHERS))


@given(drawn=ROWS, apart=st.sets(st.integers(0, 24)))
def test_rows_that_touch_the_same_thing_keep_their_order(
    world: Rows, drawn: list[tuple[str, Any, Any]], apart: set[int]
) -> None:
    rows = [world.row(name, s=s, t=t, v=1) for name, s, t in drawn]
    apart = {number for number in apart if number < len(rows)}
    steps = world.steps(*rows, apart=apart)
    assert all(len(numbers) == 1 for _, numbers in steps if apart.intersection(numbers))
    order = [number for _, numbers in steps for number in numbers]
    assert sorted(order) == list(range(len(rows)))
    place = {number: position for position, number in enumerate(order)}
    known = read_write_sets(part.cypher for part in world.mutations.values())
    touches = [
        [(touch, touch.key and touch.key.of(row.params)) for touch in known[row.mutation.cypher.statement].touches]
        for row in rows
    ]
    for first, second in combinations(range(len(rows)), 2):
        if any(conflict(one, other) for one in touches[first] for other in touches[second]):
            assert place[first] < place[second], (drawn[first], drawn[second])


MERGES: Mapping[str, str] = {
    **CYPHERS,
    "only": ONLY,
    "link": "MATCH (t:Tool {name: $t}) MERGE (s:Session {id: $s}) MERGE (s)-[:CALLED]->(t)",
    "back": "MATCH (s:Session {id: $s}) MERGE (t:Tool {name: $t})",
    "tool": "MERGE (t:Tool {name: $t}) SET t.used = $v",
    "first": "MERGE (s:Session {id: $s}) ON CREATE SET s.made = $v ON MATCH SET s.hits = coalesce(s.hits, 0) + 1",
    "other": "MERGE (s:Session {id: $s, kind: 'x'})",
    "unlabel": UNLABEL,
    "opaque": OPAQUE,
}
KEYS = st.sampled_from(["a", "b", "c", "d", "e", 1, None, 1.5, True])
KINDS = st.lists(st.sampled_from(sorted(MERGES)), min_size=1, max_size=4, unique=True)


@pytest.fixture(scope="module")
def merges(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return Rows(ruleset(tmp_path_factory.mktemp("merges"), **MERGES))


@given(
    kinds=KINDS,
    events=st.lists(st.tuples(st.booleans(), KEYS, KEYS), min_size=1, max_size=8),
    text=st.booleans(),
)
def test_mutations_that_run_one_after_the_other_have_the_steps_of_the_row_by_row_way(
    merges: Rows, kinds: list[str], events: list[tuple[bool, Any, Any]], text: bool
) -> None:
    rows: list[BoundMutation] = []
    for is_whole, s, t in events:
        values = {"s": str(s), "t": str(t)} if text else {"s": s, "t": t}
        rows += [merges.row(kind, **values, v=1) for kind in (kinds if is_whole else kinds[-1:])]
    numbered = [(row, number) for number, row in enumerate(rows)]
    found = merges.arranger.arrange(numbered)
    by_row = merges.arranger.arrange(numbered, apart={-1})  # the id of no row
    assert [(step.rows, step.kinds) for step in found] == [(step.rows, step.kinds) for step in by_row]


def test_mutations_of_events_of_one_kind_run_one_after_the_other(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, tool=MERGES["tool"], link=MERGES["link"], read=READ))
    made = [rows.row(name, s="ab"[n % 2], t=str(n), v=n) for n in range(4) for name in ("tool", "link", "read")]
    assert rows.steps(*made) == [("tool", [0, 3, 6, 9]), ("link", [1, 4, 7, 10]), ("read", [2, 5, 8, 11])]


def test_a_mutation_that_would_pass_what_it_reads_keeps_its_place(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, read=READ, see=SEE))
    made = [rows.row(name, s=s, v=1) for s in "aba" for name in ("read", "see")]
    assert rows.steps(*made[:4]) == [("read", [0, 2]), ("see", [1, 3])]
    assert rows.steps(*made) == [("read", [0, 2]), ("see", [1, 3]), ("read", [4]), ("see", [5])]


def test_a_merge_stays_behind_what_looked_for_its_entity_before(tmp_path: Path) -> None:
    rows = Rows(ruleset(tmp_path, only=ONLY, read=READ))
    made = [rows.row(name, s=s) for name, s in zip(("only", "read", "read", "only", "read"), "bbaaa", strict=True)]
    assert rows.steps(*made) == [("only", [0]), ("read", [1, 2]), ("only", [3]), ("read", [4])]
    assert rows.steps(*made[:2], *made[3:]) == [("only", [0, 2]), ("read", [1, 3])]


def calls(rows: Rows, made: Iterable[BoundMutation], **apart: Collection[int]) -> int:
    """Return how many functions it takes to put rows into steps."""
    count = 0

    def note(_frame: object, event: str, _of: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    numbered = list(zip(made, range(1_000_000), strict=False))
    rows.arranger.prepare({id(row.mutation.cypher): row.mutation.cypher for row, _ in numbered})
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        rows.arranger.arrange(numbered, **apart)
    finally:
        sys.setprofile(before)
    return count


def test_what_needs_what_needs_what_was_made_takes_no_longer_than_row_by_row(tmp_path: Path) -> None:
    depth, width = 6, 4
    chain = {"base": "MERGE (n:L0 {id: $s}) MERGE (x:X0 {id: $s})"}
    for level in range(1, depth):
        for number in range(width):
            found, made = f"MATCH (p:L{level - 1} {{id: $s}})", f"MERGE (n:L{level} {{id: $s}})"
            chain[f"m{level}_{number}"] = f"{found} {made} MERGE (x:X{level}w{number} {{id: $s}})"
    chain["end"] = f"MATCH (p:L{depth - 1} {{id: $s}}) SET p.x = $s"
    rows = Rows(ruleset(tmp_path, **chain))
    batch = [rows.row(name, s=str(number % 4)) for number in range(8) for name in chain]
    assert len(rows.steps(*batch)) == len(chain)
    assert calls(rows, batch) < 2 * calls(rows, batch, apart={-1})


@pytest.mark.parametrize("same", [False, True], ids=["of their own", "the same"])
def test_many_mutations_of_one_entity_take_no_longer_than_row_by_row(tmp_path: Path, same: bool) -> None:
    names = ["p0" if same else f"p{number}" for number in range(200)]
    fan = {f"set{number}": f"MATCH (u:User {{id: $s}}) SET u.{name} = {number}" for number, name in enumerate(names)}
    rows = Rows(ruleset(tmp_path, only="MERGE (u:User {id: $s})", **fan))
    made = [rows.row(name, s=str(number)) for number in range(6) for name in ("only", *fan)]
    assert calls(rows, made) < 2 * calls(rows, made, apart={-1})


def test_mutations_that_need_each_other_at_any_depth_are_put_into_steps(tmp_path: Path) -> None:
    chain = {f"m{n}": f"MATCH (p:L{n - 1} {{id: $s}}) MERGE (n:L{n} {{id: $s}})" for n in range(1, 400)}
    rows = Rows(ruleset(tmp_path, m0="MERGE (n:L0 {id: $s})", **chain, last="MATCH (n:L399 {id: $s}) SET n.x = $s"))
    made = [rows.row(name, s=s) for s in "aba" for name in ("m0", *chain, "last")]
    assert len(rows.steps(*made)) == 401
