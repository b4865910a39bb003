"""Rule tests without a server: how test files are read, and how outcomes are compared with them."""

from __future__ import annotations

import os
import string
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphweft_contracts import ContextReply, Missing
from graphweft_rules import RuleSet, lint
from graphweft_rules.files.file_bytes import MAX_BYTES
from graphweft_rules.rule_tests.folder import load_tests
from graphweft_rules.rule_tests.judge import failures_of
from graphweft_rules.rule_tests.model import Case, CountCheck, QueryCheck
from graphweft_rules.rule_tests.outcome import CaseOutcome, CaseRows, Counts, NotRan, Ran, Trouble, UnmatchedEvent
from graphweft_rules.rule_tests.reader import read_cases
from graphweft_rules.rule_tests.values import cut, differences, is_same

RULES = """\
mutation_rules:
  - name: r
    events: [a.b]
    mutations:
      - {id: m, cypher: "MERGE (n:N {id: $id})", params: {id: $event.id}}
"""


def read(text: str, workflow: str | None = "W") -> tuple[tuple[Case, ...], list[str]]:
    cases, findings = read_cases(text.encode(), Path("W/x_test.yaml"), workflow)
    return cases, [f"{one.place.line}:{one.place.column} {one.code}" for one in findings]


def case_of(text: str) -> Case:
    cases, findings = read(f"tests:\n  - name: c\n{text}")
    assert findings == []
    return cases[0]


def said(text: str, outcome: CaseOutcome) -> list[str]:
    """Return the failures of a case as ``line:column message``."""
    return [f"{one.place.line}:{one.place.column} {one.message}" for one in failures_of(case_of(text), outcome)]


def trouble(reason: Any = "skipped", **values: Any) -> Trouble:
    given: dict[str, Any] = {"rule": "r", "mutation": "m", "workflow": "W", "type": "a.b", "message": "needs $x"}
    return Trouble(**({"reason": reason, "place": "f:1:1", "events": 1} | given | values))


# -- reading --


def test_events_get_ids_times_and_a_chat_in_order() -> None:
    case = case_of(
        "    events:\n"
        "      - {type: a.b}\n"
        "      - {type: a.b, time: '2026-03-01T00:00:00Z', chat: c, user: u, agent: g, context: {v: 1}, data: {x: 2}}\n"
        "      - {type: a.b, id: own, workflow: Other}\n"
    )
    first, second, third = case.events
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert (first.id, first.time, first.chatid, first.workflow) == ("event-1", start, "test", "W")
    assert (second.id, second.chatid, second.userid, second.agent) == ("event-2", "c", "u", "g")
    assert second.data == {"x": 2, "agent_name": "g", "context": {"v": 1}}
    assert (third.id, third.workflow) == ("own", "Other")
    assert third.time == second.time + timedelta(seconds=1)
    assert case.workflows == {"W", "Other"}


def test_events_come_from_a_file_of_json_lines(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_bytes(
        b'\xef\xbb\xbf{"type": "a.b", "chatid": "c", "appid": "acme"}\n\n{"type": "b.c", "workflow": null}\n'
    )
    for value in ("e.jsonl", "[e.jsonl]"):
        text = f"tests: [{{name: c, events: {value}}}]"
        cases, findings = read_cases(text.encode(), tmp_path / "x_test.yaml", "W")
        assert findings == ()
        assert [(event.id, event.type, event.chatid, event.workflow) for event in cases[0].events] == [
            ("event-1", "a.b", "c", "W"),
            ("event-2", "b.c", "test", "W"),
        ]


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "link"])
def test_events_come_from_a_regular_file_only(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    _, findings = read_cases(f"tests: [{{name: c, events: {name}}}]".encode(), tmp_path / "x_test.yaml", "W")
    assert [one.code for one in findings] == ["unreadable-file"]
    assert "it is not a regular file" in findings[0].message


def test_a_file_of_events_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_bytes(b" " * MAX_BYTES + b"\n")
    _, findings = read_cases(b"tests: [{name: c, events: e.jsonl}]", tmp_path / "x_test.yaml", "W")
    assert [one.code for one in findings] == ["unreadable-file"]
    assert "it has more than 4,000,000 bytes: split it" in findings[0].message


def test_a_test_file_is_a_regular_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x_test.yaml")
    [found] = load_tests(tmp_path / "x_test.yaml").findings
    assert found.code == "unreadable-file"
    assert "it is not a regular file" in found.message


def test_each_bad_line_of_a_file_of_events_is_reported(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_text('{"type": "a.b"}\n{"type"\n[]\n{"type": "tool.call_complete"}\n')
    _, findings = read_cases(b"tests: [{name: c, events: e.jsonl}]", tmp_path / "x_test.yaml", "W")
    assert {(Path(one.place.file).name, one.place.line, one.code) for one in findings} == {
        ("e.jsonl", line, "invalid-event") for line in (2, 3, 4)
    }


@pytest.mark.parametrize(
    ("event", "found"),
    [
        ("{type: a.b, chat: c, chatid: c}", ["4:21 repeated-key"]),
        ("{type: a.b, agent: g, data: {agent_name: g}}", ["4:21 repeated-key"]),
        ("{type: a.b, colour: red}", ["4:21 unknown-key"]),
        ("{chat: c}", ["4:9 missing-key"]),
        ("{type: B, user: 5}", ["4:16 invalid-event", "4:25 invalid-event"]),
        ("{type: agent.turn_start, agent: 5}", ["4:41 invalid-event"]),
        ("{type: tool.call_complete, data: {success: 5}}", ["4:42 invalid-event", "4:52 invalid-event"]),
        ("{type: a.b, data: [1]}", ["4:27 wrong-type"]),
        ("{type: a.b, data: {x: yes}}", ["4:31 ambiguous-value"]),
        ("{type: a.b, time: '1960-01-01T00:00:00Z'}", ["4:27 invalid-event"]),
        ("nothing.jsonl", ["4:9 unreadable-file"]),
        ('"\\0"', ["4:9 unreadable-file"]),
        ("[]", ["4:9 wrong-type"]),
    ],
)
def test_an_invalid_event_is_reported_at_its_place(event: str, found: list[str]) -> None:
    _, findings = read(f"tests:\n  - name: c\n    events:\n      - {event}\n")
    assert sorted(findings) == found


def test_the_events_of_a_case_are_of_one_app() -> None:
    _, findings = read("tests:\n- name: c\n  events:\n  - {type: a.b, appid: x}\n  - {type: a.b, appid: z}\n")
    assert findings == ["5:24 several-apps"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ["1:1 missing-key"]),
        ("tests: []", ["1:8 empty-list"]),
        ("tests: 5", ["1:8 wrong-type"]),
        ("tests: [5]", ["1:9 wrong-type"]),
        ("tests: [{name: a}, {name: a}]", ["1:27 duplicate-name"]),
        ("tests: [{nam: a}]", ["1:10 unknown-key"]),
        ("tests: [{name: a, statements: [b]}]", ["1:32 bad-value"]),
        ("tests: [{name: a, statements: [{skipped: a/b, params: {}}]}]", ["1:47 conflicting-keys"]),
        ("tests: [{name: a, statements: [{mutation: a/b, skipped: a/b}]}]", ["1:48 conflicting-keys"]),
        ("tests: [{name: a, graph: [{query: RETURN 1}]}]", ["1:27 missing-key"]),
        ("tests: [{name: a, graph: [{query: RETURN 1, rows: [1]}]}]", ["1:52 wrong-type"]),
        ("tests: [{name: a, graph: [{nodes: {A: -1}}]}]", ["1:39 wrong-type"]),
        ("tests: [{name: a, graph: [{nodes: 1, rows: []}]}]", ["1:38 conflicting-keys"]),
        ("tests: [{name: a, graph: [{}]}]", ["1:27 missing-key"]),
        ("tests: [{name: a, context: [{agent: g}]}]", ["1:29 missing-key"]),
        ("tests: [{name: a, context: [{agent: g, empty: 1}]}]", ["1:47 wrong-type"]),
        ("tests: [{name: a, context: [{agent: g, empty: true, user: 4}]}]", ["1:59 bad-value"]),
        ("tests: [{name: a, context: [{agent: g, empty: true, time: now}]}]", ["1:59 bad-value"]),
        ("tests: [{name: a, context: [{agent: g, empty: true, budget_ms: 9000000}]}]", ["1:64 bad-value"]),
        ("tests: [{name: a, context: [{agent: g, missing: [{name: x, reason: y}]}]}]", ["1:68 bad-value"]),
        ("tests: [{name: a, dead_letters: [{reason: skiped}]}]", ["1:43 bad-value"]),
        ("tests: [{name: a, unmatched: a.b}]", ["1:30 wrong-type"]),
        ("tests: [", ["1:9 yaml-syntax"]),
        ("tests: &a [*a]", ["1:8 yaml-alias"]),
    ],
)
def test_an_invalid_file_is_reported_at_its_place(text: str, found: list[str]) -> None:
    assert read(text)[1] == found


def test_a_file_outside_of_workflows_must_name_them() -> None:
    cases, findings = read("tests: [{name: a, events: [{type: a.b}], context: [{agent: g, empty: true}]}]", None)
    assert findings == ["1:9 missing-key"]
    assert read("tests: [{name: a, workflow: W}]", None)[1] == []
    assert cases[0].workflow == ""


@given(
    st.text(alphabet=string.printable + "äß☃\0", max_size=60), st.sampled_from(["", "tests: ", "tests:\n- name: x\n  "])
)
def test_any_text_is_read_without_an_error(text: str, before: str) -> None:
    read(before + text)


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("MATCH (n) RETURN n.id ORDER BY n.id LIMIT 2", True),
        ("MATCH (n) WITH n ORDER BY n.id RETURN n.id", False),
        ("MATCH (n) RETURN n.`order by`, 'ORDER BY'", False),
        ("RETURN 1 AS x ORDER BY x UNION RETURN 2 AS x", False),
    ],
)
def test_rows_are_ordered_if_the_query_sorts_them(query: str, ordered: bool) -> None:
    check = case_of(f"    graph:\n    - query: |\n        {query}\n      rows: []\n").graph[0]
    assert isinstance(check, QueryCheck)
    assert check.ordered is ordered


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("    events: []\n", True),
        ("    statements: []\n", False),
        ("    dead_letters: [{reason: skipped}]\n", False),
        ("    dead_letters: [{reason: query_error}]\n", True),
        ("    statements: []\n    graph: [{nodes: 0}]\n", True),
    ],
)
def test_a_server_is_needed_for_effects_only(text: str, needed: bool) -> None:
    assert case_of(text).needs_server is needed


# -- folders --


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("A", "B"):
        folder = tmp_path / "workflows" / name
        folder.mkdir(parents=True)
        (folder / "graph_injection.yaml").write_text(RULES)
        (folder / "x_test.yaml").write_text("tests: [{name: the same}]")
    return tmp_path / "workflows"


@pytest.mark.parametrize(
    ("path", "apps"),
    [
        (".", {"A": "the-same", "B": "the-same-2"}),
        ("workflows", {"A": "the-same", "B": "the-same-2"}),
        ("workflows/A", {"A": "the-same"}),
        ("workflows/B/x_test.yaml", {"B": "the-same"}),
    ],
)
def test_tests_are_found_below_a_path_with_their_workflows(root: Path, path: str, apps: dict[str, str]) -> None:
    found = load_tests(Path(path))
    assert found.findings == ()
    assert found.root == Path("workflows")
    assert {case.workflow: case.app_id for case in found.cases} == apps
    assert [case.place.file for case in found.cases] == [f"workflows/{name}/x_test.yaml" for name in apps]


def test_shared_and_hidden_folders_and_wrong_names(root: Path) -> None:
    for name in ("_shared/a_test.yaml", ".git/b_test.yaml", "A/c_test.yml", "Unknown/d_test.yaml"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("tests: [{name: a}]")
    found = load_tests(root)
    assert [(Path(one.place.file).name, one.code) for one in found.findings] == [
        ("c_test.yml", "file-name"),
        ("d_test.yaml", "unknown-workflow"),
        ("a_test.yaml", "missing-key"),
    ]


def test_test_files_are_no_rules(root: Path) -> None:
    (root / "_shared").mkdir()
    before = RuleSet.load(root)
    for folder in ("A", "_shared", "New"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "more_test.yaml").write_text("tests: not a list")
    after = RuleSet.load(root)
    assert after.digest == before.digest
    assert after.files.keys() == {"A/graph_injection.yaml", "B/graph_injection.yaml"}
    assert lint([root]) == []


def test_rules_of_other_workflows_need_not_load(root: Path) -> None:
    (root / "B/graph_injection.yaml").write_text("no: rules")
    assert RuleSet.load(root, only={"A", "Unknown"}).workflows.keys() == {"A"}


# -- comparison --


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, None, False),
        (0.3, 0.1 + 0.2, True),
        ("1", 1, False),
        ({"a": [1, None]}, {"a": [1.0, None]}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([1], [1, 2], False),
        ("2026-01-01T00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC), True),
    ],
)
def test_values_are_compared_as_in_json(expected: Any, got: Any, same: bool) -> None:
    assert is_same(expected, got) is same
    assert (differences([expected], [got]) == ([], [])) is same


def test_rows_are_compared_with_their_number() -> None:
    assert differences([[1], [1], [2]], [[2], [1], [3]]) == ([[1]], [[3]])


def test_a_diff_is_short_and_does_not_steer_a_terminal() -> None:
    lines = cut(["+ \x1b[31m☃" + "x" * 10_000, *["-"] * 100])
    assert lines[0].startswith("+ \\x1b[31m☃x")
    assert len(lines[0]) < 500
    assert lines[-1] == "… and 71 more lines"


def test_mutations_must_run_in_order_with_the_parameters() -> None:
    text = "    statements:\n      - r/m\n      - {mutation: r/n, params: {id: 1}}\n"
    ran = [Ran(name="r/m", params={}), Ran(name="r/n", params={"id": 1, "x": 2})]
    assert said(text, CaseOutcome(ran=ran)) == []
    assert said(text, CaseOutcome(ran=ran[::-1])) == ["4:7 other mutations run (- expected, + got)"]
    other = [ran[0], Ran(name="r/n", params={"id": 2})]
    assert said(text, CaseOutcome(ran=other)) == [
        "5:38 the parameter 'id' of r/n has another value (- expected, + got)"
    ]
    lacking = [ran[0], Ran(name="r/n", params={"x": 2})]
    assert said(text, CaseOutcome(ran=lacking)) == ["5:38 r/n has no parameter 'id'; its parameters: x"]


def test_skips_are_expected_one_by_one() -> None:
    text = "    statements:\n      - {skipped: r/m, reason: $x}\n"
    skip, troubles = NotRan(name="r/m", reason="needs $x"), [trouble()]
    assert said(text, CaseOutcome(skipped=[skip], troubles=troubles)) == []
    assert said(text, CaseOutcome()) == ["4:9 r/m is not skipped"]
    twice = CaseOutcome(skipped=[skip, skip], troubles=[trouble(events=2)])
    assert said(text, twice) == ["4:7 r/m is skipped 2 times: list each, or use `dead_letters`"]
    assert said(text.replace("$x", "$z"), CaseOutcome(skipped=[skip], troubles=troubles))[0] == (
        "4:9 r/m is skipped for another reason"
    )


def test_nothing_without_effect_is_silent() -> None:
    outcome = CaseOutcome(troubles=[trouble(), trouble("no_rules", rule=None, mutation=None)])
    assert said("    statements: []\n", outcome) == [
        "2:11 r/m (f:1:1): skipped: needs $x; if that is right, add it to `dead_letters`",
        "2:11 the event a.b (f:1:1): no_rules: needs $x; if that is right, add it to `dead_letters`",
    ]
    text = "    dead_letters:\n      - {reason: skipped, rule: r, mutation: m, events: 1}\n      - {reason: no_rules}\n"
    assert said(text, outcome) == []
    assert said("    dead_letters: [{reason: query_error}]\n", CaseOutcome()) == [
        "3:20 there is no such dead letter (+ got)"
    ]
    assert said("    dead_letters: [{reason: skipped, events: 2}]\n", CaseOutcome(troubles=[trouble()])) == [
        "3:20 these dead letters stand for another number of events (- expected, + got)"
    ]


def test_an_event_without_a_rule_fails_unless_its_type_is_named() -> None:
    place = case_of("").place
    outcome = CaseOutcome(unmatched=[UnmatchedEvent(type="tool.start", message="no rule", place=place)])
    assert len(said("    statements: []\n", outcome)) == 1
    for pattern in ("tool.start", "tool.*", "*"):
        assert said(f"    unmatched: ['{pattern}']\n", outcome) == []


def test_rows_and_counts_of_the_graph() -> None:
    text = (
        "    graph:\n"
        "      - {query: RETURN 1, rows: [[a, 1], [b, null]]}\n"
        "      - {query: RETURN 1, rows: [{x: 1}]}\n"
        "      - {query: RETURN 1 ORDER BY 1, rows: [[1], [2]]}\n"
        "      - {nodes: {A: 2, B: 0}}\n"
        "      - {relationships: 3}\n"
    )
    good = [
        CaseRows(columns=["x", "y"], rows=[["b", None], ["a", 1]]),
        CaseRows(columns=["x"], rows=[[1]]),
        CaseRows(columns=["x"], rows=[[1], [2]]),
        Counts(by_name={"": 5, "A": 2}),
        Counts(by_name={"": 3, "R": 3}),
    ]
    assert said(text, CaseOutcome(graph=[*good])) == []
    bad = [
        CaseRows(columns=["x", "y"], rows=[["b", None]]),
        "Unknown function",
        CaseRows(columns=["x"], rows=[[2], [1]]),
        Counts(by_name={"": 5, "A": 1, "B": 1}),
        Counts(by_name={}),
    ]
    assert said(text, CaseOutcome(graph=[*bad])) == [
        "4:33 1 row is missing and 0 are not expected (- expected, + got); the columns are x, y",
        "5:17 the query fails: Unknown function",
        "6:44 the rows come in another order (- expected, + got)",
        "7:21 the graph has another number of nodes A (- expected, + got)",
        "7:27 the graph has another number of nodes B (- expected, + got)",
        "8:25 the graph has another number of relationships (- expected, + got)",
    ]
    check = case_of("    graph: [{nodes: 0}]\n").graph[0]
    assert isinstance(check, CountCheck)


def test_a_context_contains_equals_or_is_empty() -> None:
    def failures(check: str, text: str, **more: Any) -> list[str]:
        reply = ContextReply(id="1", text=text, **more)
        return said(f"    context: [{{agent: g, {check}}}]\n", CaseOutcome(replies=[reply]))

    assert failures("contains: [a, b], excludes: z, equals: 'a b', empty: false", "a b\n") == []
    assert failures("contains: [a, z]", "a b") == ['3:40 the context lacks "z" (+ got)']
    assert failures("excludes: a", "a b") == ['3:36 the context contains "a" (+ got)']
    assert failures("equals: a", "a\nb") == ["3:34 the context differs (- expected, + got)"]
    assert failures("empty: true", "a") == ["3:33 the context is not empty (+ got)"]
    assert failures("empty: false", "") == ["3:33 the context is empty"]
    missing = Missing(name="block", rule="r", query="q", reason="missing_param", detail="needs $x")
    of_context = missing.model_copy(update={"detail": "needs $context.x"})
    [failure] = failures("empty: true", "", missing=(of_context,), reason="missing_param")
    assert "needs $context.x (in a test: `context: {NAME: value}`); if that is right" in failure
    assert failures("empty: true", "", missing=(missing,), reason="missing_param") == [
        "3:15 the block 'block' is missing: missing_param: needs $x; if that is right, add it to `missing`"
    ]
    assert failures("missing: [block]", "", missing=(missing,), reason="missing_param") == []
    assert failures("missing: [{name: block, reason: timeout}]", "", missing=(missing,))[0] == (
        "3:36 the block 'block' is not missing for the reason timeout"
    )
    assert failures("empty: true", "", reason="no_rules", detail="no rules") == [
        "3:15 the agent gets no context: no_rules: no rules"
    ]
