"""Stored rules: compiled when they are used, with what is known about the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphweft_contracts import Event
from graphweft_rules import BoundMutation, RulesError, RuleSet
from graphweft_rules.cypher.mutation_summary import EMPTY, UNKNOWN, MutationSummary
from graphweft_rules.cypher.query import parse
from graphweft_rules.matching import lazy_workflows
from graphweft_rules.matching.rule_summary import FORMAT, RuleSummary
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.neo4j.dialect import NEO4J
from graphweft_workers.engine.plan.order import Arranger
from graphweft_workers.ports.dialect import GraphDialect

DIALECTS = (FALKORDB, NEO4J)


def rule(**cyphers: str) -> str:
    mutations = [{"id": name, "cypher": text, "params": {"k": "$event.k"}} for name, text in cyphers.items()]
    return json.dumps({"mutation_rules": [{"name": "r", "events": ["a.*"], "mutations": mutations}]})


def files(**workflows: str) -> dict[str, bytes]:
    return {f"{name}/graph_injection.yaml": text.encode() for name, text in workflows.items()}


SHARED = files(
    Writes=rule(a="MERGE (a:Alpha {k: $k}) SET a.v = 1", b="MATCH (b:Beta {k: $k}) SET b.v = 2"),
    Joins=rule(both="MATCH (a:Alpha {k: $k}) SET a:Beta"),
    Other=rule(c="MERGE (c:Gamma {k: $k})"),
)
BASED = {
    "_shared/base.yaml": rule(base="MERGE (a:Alpha {k: $k})").encode(),
    **files(One=json.dumps({"extends": "../_shared/base.yaml"}), Two=rule(two="MERGE (b:Beta {k: $k})")),
}
GOOD = rule(m="MERGE (a:Alpha {k: $k})")
BROKEN = files(
    Good=GOOD, Bad=rule(m="CREATE (a:Alpha {v: rand()})"), Lost='{"extends": "../_shared/gone.yaml"}', Torn="{"
)


def stored(contents: Mapping[str, bytes]) -> RuleSet:
    """Return the rules as a process finds them that did not push them."""
    pushed = RuleSet.of_files(contents, (), DIALECTS)
    body = json.loads(json.dumps(pushed.summary.to_json()))
    summary = RuleSummary.from_json(body)
    assert summary == pushed.summary
    del pushed
    return RuleSet.of_stored(contents, (), DIALECTS, summary=summary)


def event(workflow: str, kind: str = "a.b") -> Event:
    return Event.create(kind, app_id="app", chat_id="c", workflow=workflow, data={"k": "1"})


def compiled(rules: RuleSet) -> set[str]:
    return {name for name in rules.workflows if rules.is_compiled(name)}


def test_a_workflow_is_compiled_when_it_is_first_used() -> None:
    rules = stored(SHARED)
    assert set(rules.workflows) == {"Writes", "Joins", "Other"}
    assert "Joins" in rules.workflows
    assert ("Alpha", "k") in rules.keys
    assert not rules.asks_for_facts
    assert compiled(rules) == set()
    assert rules.is_compiled("Unknown")
    assert not rules.match_event(event("Unknown")).mutations
    assert [each.mutation.id for each in rules.match_event(event("Writes")).mutations] == ["a", "b"]
    assert compiled(rules) == {"Writes"}


def test_rules_without_a_summary_are_compiled_as_a_whole() -> None:
    rules = RuleSet.of_stored(SHARED, (), DIALECTS)
    assert compiled(rules) == set(SHARED and rules.workflows)
    assert rules.summary == RuleSet.of_files(SHARED, (), DIALECTS).summary


def test_lazy_and_eager_rules_match_alike() -> None:
    lazy, eager = stored(BASED), RuleSet.of_files(BASED, (), DIALECTS)
    for name in ("One", "Two"):
        given, expected = lazy.match_event(event(name)), eager.match_event(event(name))
        assert given.mutations
        assert [(each.mutation.cypher, each.mutation.place, each.params) for each in given.mutations] == [
            (each.mutation.cypher, each.mutation.place, each.params) for each in expected.mutations
        ]
    assert lazy.digest == eager.digest


def test_rule_sets_share_the_workflows_whose_files_are_equal() -> None:
    first = stored(BASED)
    kept = {name: first.workflows[name] for name in first.workflows}
    changed = stored({**BASED, **files(Two=rule(two="MERGE (b:Beta {k: $k}) SET b.v = 1"))})
    assert changed.workflows["One"] is kept["One"]
    assert changed.workflows["Two"] is not kept["Two"]
    base = stored({**BASED, "_shared/base.yaml": rule(base="MERGE (z:Zeta {k: $k})").encode()})
    assert base.workflows["One"] is not kept["One"]
    assert base.workflows["Two"] is kept["Two"]
    other = RuleSet.of_stored(BASED, (), (FALKORDB,), summary=first.summary)
    assert other.workflows["One"] is not kept["One"]


def test_workflows_that_no_rule_set_uses_are_forgotten() -> None:
    name = "Forgotten"
    for number in range(40):
        rules = stored(files(**{name: rule(m=f"MERGE (a:Alpha {{k: $k}}) SET a.v = {number}")}))
        rules.compile([name])
    [known] = [versions for (flow, _), versions in lazy_workflows._known.items() if flow == name]
    assert len(known) <= 16


def test_a_workflow_that_does_not_compile_is_the_only_one_concerned() -> None:
    rules = RuleSet.of_stored(BROKEN, (), DIALECTS)
    assert rules.knows(event("Good"))
    assert len(rules.match_event(event("Good")).mutations) == 1
    for name in ("Bad", "Lost", "Torn"):
        assert not rules.knows(event(name))
        assert rules.match_event(event(name)).mutations == ()
        assert rules.find_mutation(name, "r", "m") is None
        problem = rules.problem(name)
        assert problem is not None
        assert f"{name}/graph_injection.yaml" in str(problem)
        with pytest.raises(RulesError):
            _ = rules.workflows[name]
    assert rules.problem("Good") is None
    assert rules.problem("Unknown") is None


def test_nothing_is_known_about_the_nodes_of_a_workflow_that_does_not_compile() -> None:
    assert RuleSet.of_stored(BROKEN, (), DIALECTS).summary.mutations == UNKNOWN
    good = RuleSet.of_stored(files(Good=GOOD), (), DIALECTS).summary.mutations
    assert good == replace(EMPTY, written=frozenset({"Alpha"}))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_rows_keep_their_order_when_an_uncompiled_workflow_joins_their_labels(dialect: GraphDialect) -> None:
    rules = stored(SHARED)
    parts = {part.id: part for part in rules.workflows["Writes"].mutation_rules[0].parts}
    rows = [(BoundMutation(mutation=parts[name], params={"k": "1"}), n) for n, name in enumerate("aba")]

    def steps(summary: MutationSummary) -> list[list[int]]:
        found = Arranger(rules, dialect, workflows={"Writes"}, summary=summary).arrange(rows)
        return [step.rows for step in found]

    assert steps(rules.summary.mutations) == [[0], [1], [2]]
    assert steps(UNKNOWN) == [[0], [1], [2]]
    assert compiled(rules) == {"Writes"}
    assert steps(EMPTY) == [[0, 2], [1]]  # what would be wrong


@pytest.mark.parametrize(
    "picks",
    [
        "MATCH (a:Alpha) WITH a LIMIT 1 SET a.first = true",
        "MATCH (a:Alpha {kind: 'x'}) WITH collect(a.k) AS found MERGE (s:Seen {k: $k}) SET s.found = found",
    ],
)
def test_nodes_that_an_uncompiled_workflow_picks_from_are_created_in_log_order(picks: str) -> None:
    given = files(
        Makes=rule(a="MERGE (a:Alpha {k: $k})", b="MERGE (a:Alpha {k: $k}) MERGE (t:Tool {k: $k})"),
        Picks=rule(p=picks),
    )
    rules = stored(given)
    parts = {part.id: part for part in rules.workflows["Makes"].mutation_rules[0].parts}
    rows = [(BoundMutation(mutation=parts[name], params={"k": str(n)}), n) for n, name in enumerate("aba")]

    def steps(summary: MutationSummary) -> list[list[int]]:
        found = Arranger(rules, FALKORDB, workflows={"Makes"}, summary=summary).arrange(rows)
        return [step.rows for step in found]

    whole = RuleSet.of_files(given, (), DIALECTS)
    same = {part.id: part for part in whole.workflows["Makes"].mutation_rules[0].parts}
    again = [(BoundMutation(mutation=same[row.mutation.id], params=row.params), n) for row, n in rows]
    assert steps(rules.summary.mutations) == [step.rows for step in Arranger(whole, FALKORDB).arrange(again)]
    assert steps(rules.summary.mutations) == [[0], [1], [2]]
    assert steps(UNKNOWN) == [[0], [1], [2]]
    assert steps(EMPTY) == [[0, 2], [1]]


def test_a_summary_of_another_shape_or_format_is_none() -> None:
    good = stored(SHARED).summary.to_json()
    mutations = good["mutations"]
    wrong: list[Any] = [None, 1, "x", [], {}, {**good, "format": FORMAT + 1}, {**good, "format": True}]
    wrong += [{**good, "keys": keys} for keys in (None, "ab", [["a"]], [["a", 1]], [1], {"a": "b"}, "x" * 10)]
    wrong += [{**good, "asks_for_facts": value} for value in (None, 0, "true")]
    for key, values in {
        "shared": ("ab", [1], {"a": 1}, 7, [["a"]]),
        "groups": ("ab", ["ab"], [[1]], None, [None]),
        "anywhere": (None, 1, "yes"),
        "picks": (None, [[]], [["node", ["A"], ["A"]]], [["path", [], [], []]], [["node", "A", [], []]]),
        "picks_any": (None, 1),
        "written": ("ab", [1], {"a": 1}),
    }.items():
        wrong += [{**good, "mutations": {**mutations, key: value}} for value in values]
        wrong.append({**good, "mutations": {name: each for name, each in mutations.items() if name != key}})
    for body in wrong:
        assert RuleSummary.from_json(body) is None, body
    assert RuleSummary.from_json(good) is not None


def test_the_summary_of_known_queries_has_this_format() -> None:
    """If this fails because the analysis changed, raise ``FORMAT``: summaries on the bus are of the old analysis."""
    given = rule(
        a="MERGE (a:Alpha:Beta {k: $k}) WITH a MATCH (c:Gamma) WHERE c:Delta SET a.n = c.n",
        b="MATCH (x:Alpha {k: $k})-[r:KNOWS]->(y) WITH y LIMIT 1 SET y.v = 1",
    )
    assert RuleSet.of_files(files(W=given)).summary.to_json() == {
        "format": 3,
        "mutations": {
            "shared": ["Alpha", "Beta", "Delta", "Gamma"],
            "groups": [["Alpha", "Beta"], ["Delta", "Gamma"]],
            "anywhere": False,
            "picks": [
                ["node", ["Alpha"], ["Alpha"], ["k"]],
                ["node", ["Delta", "Gamma"], ["Delta", "Gamma"], []],
                ["relationship", ["KNOWS"], ["Alpha"], ["k"]],
            ],
            "picks_any": False,
            "written": None,
        },
        "keys": [["Alpha", "k"]],
        "asks_for_facts": False,
        "search_indexes": [],
    }


def test_a_loaded_folder_and_its_stored_rules_share_their_workflows(tmp_path: Path) -> None:
    for name, content in BASED.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    loaded = RuleSet.load(tmp_path, (), DIALECTS, as_stored=True)
    found = RuleSet.of_stored(loaded.files, (), DIALECTS, summary=loaded.summary)
    for name in ("One", "Two"):
        assert found.workflows[name] is loaded.workflows[name]
    places = [str(part.place.file) for part in loaded.mutations]
    assert places == ["_shared/base.yaml", "Two/graph_injection.yaml"]
    fresh = RuleSet.of_files(BASED, (), DIALECTS)
    assert [part.place for part in fresh.mutations] == [part.place for part in loaded.mutations]
    changed = {**loaded.files, "_shared/base.yaml": rule(base="MERGE (a:Alpha {k: $k, v: 1})").encode()}
    other = RuleSet.of_stored(changed, (), DIALECTS, summary=loaded.summary)
    assert other.workflows["One"] is not loaded.workflows["One"]
    assert other.workflows["Two"] is loaded.workflows["Two"]


def test_errors_of_a_folder_name_its_files_as_the_user_does(tmp_path: Path) -> None:
    for name, content in BROKEN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found: list[object] = []
    for as_stored in (False, True):
        with pytest.raises(RulesError) as caught:
            RuleSet.load(tmp_path, (), DIALECTS, as_stored=as_stored)
        found.append(caught.value.findings)
    assert found[0] == found[1]


def test_equal_queries_of_two_mutations_are_two_objects() -> None:
    first, second = (parse("MERGE (a:Alpha {k: $k})", role="mutation") for _ in range(2))
    assert first == second
    assert first is not second
