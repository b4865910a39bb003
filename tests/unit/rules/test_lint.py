from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphweft_rules.files import lint as linter
from graphweft_rules.files.findings import Finding, RulesError, errors, ordered
from graphweft_rules.files.loader import GraphInjectionLoader
from graphweft_rules.files.model import Place
from graphweft_workers.drivers import dialects

CONTRACT = Path(__file__).parents[2] / "fixtures" / "contract"


def lint(paths: list[Path]) -> list[Finding]:
    return linter.lint(paths, dialects())


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def brief(findings: list[Finding], root: Path) -> list[str]:
    return [
        f"{Path(one.place.file).relative_to(root)}:{one.place.line}:{one.place.column} {one.level} {one.code}"
        for one in findings
    ]


def mutation(event: str = "x.y", *, name: str = "m", cypher: str = "CREATE (:N)", params: str = "{}") -> str:
    return (
        f"mutation_rules:\n- name: {name}\n  events: [{event}]\n  mutations:\n"
        f"  - id: m\n    cypher: '{cypher}'\n    params: {params}\n"
    )


def test_the_contracts_examples_have_no_findings() -> None:
    assert lint([CONTRACT]) == []


def test_a_root_a_folder_and_a_file_are_all_looked_through(tmp_path: Path) -> None:
    write(tmp_path / "A" / "graph_injection.yaml", "version: 2")
    write(tmp_path / "A" / "agents.yaml", "not: [rules]")
    write(tmp_path / "deep" / "B" / "graph_injection.yaml", "version: 3")
    write(tmp_path / "_shared" / "base.yaml", "version: 4")
    write(tmp_path / "_shared" / "more" / "base.yaml", "version: 5")
    write(tmp_path / "_shared" / "base_test.yaml", "tests: []")
    write(tmp_path / ".venv" / "graph_injection.yaml", "version: 6")
    everything = [
        "A/graph_injection.yaml:1:10 error bad-value",
        "_shared/base.yaml:1:10 error bad-value",
        "_shared/more/base.yaml:1:10 error bad-value",
        "deep/B/graph_injection.yaml:1:10 error bad-value",
    ]
    assert brief(lint([tmp_path]), tmp_path) == everything
    assert brief(lint([tmp_path / "A"]), tmp_path) == everything[:1]
    assert brief(lint([tmp_path / "_shared"]), tmp_path) == everything[1:3]
    assert brief(lint([tmp_path / "A" / "agents.yaml"]), tmp_path) == ["A/agents.yaml:1:1 error unknown-key"]
    assert brief(lint([tmp_path / "A", tmp_path, tmp_path / "_shared" / "base.yaml"]), tmp_path) == everything


def test_a_base_that_several_workflows_extend_is_reported_once(tmp_path: Path) -> None:
    write(tmp_path / "_shared" / "base.yaml", "version: 2\nextends: gone.yaml")
    for name in "AB":
        write(tmp_path / name / "graph_injection.yaml", "extends: ../_shared/base.yaml")
    assert brief(lint([tmp_path]), tmp_path) == [
        "_shared/base.yaml:1:10 error bad-value",
        "_shared/base.yaml:2:10 error extends-missing",
    ]
    assert brief(lint([tmp_path / "A", tmp_path / "B"]), tmp_path) == brief(lint([tmp_path]), tmp_path)


def test_what_is_not_there_is_a_finding(tmp_path: Path) -> None:
    assert brief(lint([tmp_path / "nowhere", tmp_path / "no.yaml"]), tmp_path) == [
        "no.yaml:1:1 error missing-file",
        "nowhere:1:1 error missing-file",
    ]
    assert brief(lint([tmp_path]), tmp_path) == [".:1:1 warning no-rules"]
    assert lint([]) == []


@pytest.mark.parametrize(
    ("event", "near"),
    [
        ("agent.turn_completed", "agent.turn_complete"),
        ("agent.turn_started", "agent.turn_start"),
        ("workflow.completed", "workflow.complete"),
        ("workflow.errors", "workflow.error"),
        ("tool.call_completed", "tool.call_complete"),
        ("tools.*", "tool.*"),
        ("workflow.started", "workflow.start"),
        ("tool.call_started", "tool.call_start"),
        ("model.call_completed", "model.call_complete"),
        ("models.*", "model.*"),
    ],
)
def test_an_event_that_looks_like_a_slip_is_a_warning(tmp_path: Path, event: str, near: str) -> None:
    file = write(tmp_path / "graph_injection.yaml", mutation(event))
    (finding,) = lint([file])
    assert (str(finding.place), finding.level, finding.code) == (f"{file}:3:12", "warning", "unknown-event")
    assert f"did you mean '{near}'?" in finding.message
    assert GraphInjectionLoader().load(file) is not None


@pytest.mark.parametrize(
    ("condition", "codes"),
    [
        ("$context.xs.all(x, $context.ys.exists(y, y == x))", ["nested-loop"]),
        ("$context.xs.all(x, x.ys.exists(y, y == 1))", ["nested-loop"]),
        ("$context.xs.filter(x, x > 1).all(x, x > 2)", ["copying-loop"]),
        ("$context.xs.map(x, $context.xs.filter(y, y == x)).size() > 0", ["copying-loop", "nested-loop"]),
        ("$context.text.matches($event.pattern)", ["foreign-pattern"]),
        ("$context.patterns.exists(p, 'x'.matches(p))", ["foreign-pattern"]),
        ("$context.text.matches('^' + $event.pattern)", ["foreign-pattern"]),
        ("$context.text.matches('[a-z0-9]{1,9}@.*')", []),
        ("$context.text.matches(r'(?:\\w{1,9})+')", ["costly-pattern"]),
        ("$context.xs.all(x, x > 2) && $context.ys.exists(x, x == 'filter(')", []),
        ("$context.filter.map == 'x.matches(y)'", []),
    ],
)
def test_a_condition_that_may_cost_much_is_a_warning(tmp_path: Path, condition: str, codes: list[str]) -> None:
    text = mutation("agent.turn_complete").replace("  mutations:", "  condition: CONDITION\n  mutations:", 1)
    file = write(tmp_path / "graph_injection.yaml", text.replace("CONDITION", f"|-\n    {condition}"))
    found = list(lint([file]))
    assert [(finding.level, finding.code) for finding in found] == [("warning", code) for code in codes]
    assert all("Beyond 20000 steps" in finding.message for finding in found)


@pytest.mark.parametrize(
    "event",
    [
        *("agent.turn_start", "agent.turn_complete", "workflow.phase_complete", "workflow.complete"),
        *("workflow.error", "tool.call_complete", "agent.*", "*", "memory.add", "memory.*", "order.paid"),
        *("workflow.phase_start", "tool.call_start", "agent.turn_end", "workflow.start", "episode.complete"),
        *("model.call_complete", "model.*"),
    ],
)
def test_events_of_ones_own_are_fine(tmp_path: Path, event: str) -> None:
    assert lint([write(tmp_path / "graph_injection.yaml", mutation(f'"{event}"'))]) == []


def test_an_unused_param_is_a_warning_at_its_key(tmp_path: Path) -> None:
    file = write(tmp_path / "graph_injection.yaml", mutation(params="{a: 1,  b: 2}", cypher="CREATE (:N {a: $a})"))
    assert brief(lint([file]), tmp_path) == ["graph_injection.yaml:7:21 warning unused-param"]
    assert GraphInjectionLoader().load(file) is not None


def test_the_same_name_injected_twice_for_an_agent_is_a_warning(tmp_path: Path) -> None:
    def rule(name: str, agent: str) -> str:
        return f"- {{name: {name}, agents: [{agent}], queries: [{{id: q, cypher: RETURN 1, inject_as: x}}]}}\n"

    file = tmp_path / "graph_injection.yaml"
    lines = "injection_rules:\n" + rule("a", "A") + rule("b", "B")
    assert lint([write(file, lines)]) == []
    third = rule("c", '"*"')
    assert brief(lint([write(file, lines + third)]), tmp_path) == [
        f"graph_injection.yaml:4:{third.index('x}') + 1} warning duplicate-inject-as"
    ]


def test_findings_are_lines_and_json(tmp_path: Path) -> None:
    file = write(tmp_path / "graph_injection.yaml", "version: 2")
    (finding,) = lint([file])
    assert str(finding) == f'{file}:1:10: error bad-value: version 2 is unknown: write version: "1.0"'
    assert json.loads(json.dumps(finding.to_dict())) == {
        "file": str(file),
        "line": 1,
        "column": 10,
        "level": "error",
        "code": "bad-value",
        "message": 'version 2 is unknown: write version: "1.0"',
    }


def test_findings_are_ordered_as_one_reads() -> None:
    def finding(file: str, line: int, column: int) -> Finding:
        return Finding(level="error", code="x", message="", place=Place(file=file, line=line, column=column))

    wanted = (finding("a", 1, 2), finding("a", 2, 1), finding("a", 10, 1), finding("b", 1, 1))
    assert ordered((*reversed(wanted), *wanted)) == wanted


FRAGMENTS = [
    *("extends: ", "version: ", "injection_rules:", "mutation_rules:", "  - name: ", "    agents: ", "    events: "),
    *("    queries:", "    mutations:", "    condition: ", "      - id: ", "        cypher: ", "        cypher: |"),
    *(
        "        params: ",
        "        inject_as: ",
        "        format: ",
        "        max_results: ",
        "    priority: ",
        "    timeout_ms: ",
        "    max_tokens: ",
        "          MATCH (n {a: $b})",
    ),
    *("          CREATE (n)", "          RETURN n", "          b: "),
]
VALUES = [
    "",
    "x",
    '"1.0"',
    "[A]",
    '["*"]',
    "[x.y]",
    "yes",
    "1",
    "{a: b}",
    "{b: $context.b}",
    "$event.a == 1",
    "*",
    "'",
    "list",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.sampled_from(VALUES)), max_size=14))
def test_lint_never_raises_and_its_errors_are_what_load_refuses(tmp_path: Path, lines: list[tuple[str, str]]) -> None:
    file = write(tmp_path / "graph_injection.yaml", "\n".join(key + value for key, value in lines))
    found = lint([file])
    if errors(found):
        with pytest.raises(RulesError) as caught:
            GraphInjectionLoader().load(file)
        assert list(caught.value.findings) == found
    else:
        assert GraphInjectionLoader().load(file) is not None


@pytest.mark.parametrize(
    ("cypher", "params", "found"),
    [
        ("MEREG (n:N)", "{}", "6:14 error cypher-no-clause"),
        ("MATCH (n:N)", "{}", "6:14 error cypher-no-end"),
        ("MERGE (n:N {id: $context.user.id})", "{}", "6:30 error reference-in-query"),
        ("MERGE (n:N {id: $id})", '{id: "user-$context.user_id"}', "7:18 warning reference-in-text"),
        ("MERGE (n:N {id: $id})", "{id: event.order}", "7:18 warning reference-without-dollar"),
    ],
)
def test_what_the_server_would_say_too_late_or_never(tmp_path: Path, cypher: str, params: str, found: str) -> None:
    write(tmp_path / "graph_injection.yaml", mutation(cypher=cypher, params=params))
    errors_only = [line for line in brief(lint([tmp_path]), tmp_path) if "no-write" not in line]
    assert errors_only == [f"graph_injection.yaml:{found}"]


@pytest.mark.parametrize(
    "value", ["$$context.x", "costs $5", "$context.x", "a $contextual.word", "an event.x", "event", "event."]
)
def test_texts_with_dollars_are_fine(tmp_path: Path, value: str) -> None:
    write(tmp_path / "graph_injection.yaml", mutation(cypher="MERGE (n:N {id: $id})", params=f'{{id: "{value}"}}'))
    assert lint([tmp_path]) == []
