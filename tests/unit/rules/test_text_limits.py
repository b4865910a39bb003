"""Texts that end, block or fill a library or a server are refused before it reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from tests.services.rules import load_rules

from graphweft_contracts import Event, wire
from graphweft_contracts.memory import MemoryScope
from graphweft_contracts.search import SearchQuery
from graphweft_rules import RulesError, RuleSet
from graphweft_rules.cypher.query import parse
from graphweft_rules.files.lint import lint
from graphweft_rules.matching import conditions, lazy_workflows
from graphweft_rules.matching.conditions import ConditionError, compile_condition
from graphweft_rules.matching.rule_set import InvalidValue
from graphweft_rules.matching.rule_summary import RuleSummary
from graphweft_rules.matching.searches import parse_retrieval
from graphweft_rules.text_limits import MOST_KEYS, MOST_KEYS_OF_LABEL
from graphweft_workers.drivers import dialects
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import read_range
from graphweft_workers.injection.match import bind_search
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.rule_sets.active_rules import FixedRules

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
ENDING: Final = {
    "panic_column": " " * 70_000 + "(",
    "panic_depth": "(" * 100_000,
    "panic_string": "'" + "x" * 70_000,
    "panic_list": "[" * 70_000,
    "compiling_equal": "true" + " == true" * 20_000,
    "compiling_in": "1" + " in [1]" * 20_000,
    "compiling_accesses": "$event.a" + "[0]" * 40_000,
    "compiling_calls": "$event.a" + ".size()" * 20_000,
    "evaluating_plus": "1 == " + "+".join(["1"] * 14_000),
    "evaluating_minus": "1 == " + "-".join(["1"] * 14_000),
    "evaluating_and": "&&".join(["true"] * 20_000),
    "loops": "".join(f"[1].all(x{n}, " for n in range(48)) + "true" + ")" * 48,
    "loops_map": "".join(f"[1].map(x{n}, " for n in range(48)) + "true" + ")" * 48 + " == []",
    "references": " && ".join(f"$event.a{n} == {n}" for n in range(20_000)),
    "negations": "!" * 60_000 + "true",
    "choices": "true ? true : " * 20_000 + "true",
}
"""Conditions that ended, blocked or interrupted a process."""


def rule(condition: str | None = None, cypher: str = "CREATE (:A)", **params: str) -> bytes:
    """Return a rule file with one rule for all events."""
    mutation: dict[str, Any] = {"id": "m", "cypher": cypher, "params": params}
    rule: dict[str, Any] = {"name": "r", "events": ["*"], "mutations": [mutation]}
    return json.dumps({"mutation_rules": [rule if condition is None else rule | {"condition": condition}]}).encode()


def stored(**workflows: bytes) -> RuleSet:
    """Return the rule set that a log brings."""
    return RuleSet.of_stored({f"{name}/graph_injection.yaml": data for name, data in workflows.items()})


def problem(condition: str | None = None, cypher: str = "CREATE (:A)", **params: str) -> str:
    """Return why a stored workflow does not compile; empty if it does."""
    return str(stored(W=rule(condition, cypher, **params)).problem("W") or "")


# -- conditions --


def main() -> None:
    """Print why each condition of ``ENDING`` does not compile."""
    print(json.dumps({name: problem(text)[:1_000] for name, text in ENDING.items()}))


def test_no_condition_of_a_stored_rule_set_ends_the_process() -> None:
    command = [sys.executable, "-m", "tests.unit.rules.test_text_limits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, (done.returncode, done.stderr[-1_000:])
    found: dict[str, str] = json.loads(done.stdout)
    assert {name for name in ENDING if "bad-condition" not in found[name]} == set()


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("true" + " " * 4_000, 4_001, "4,004 characters, and 4,000 are allowed"),
        ("(" * 33 + "true" + ")" * 33, 33, "more than 32 brackets"),
        ("{'a': " * 33 + "1" + "}" * 33 + " == {}", 193, "more than 32 brackets"),
        ("true" + " || false" * 201, 1_806, "more than 200 operators"),
        ("$event.a" + ".x()" * 101, 412, "more than 200 operators"),
        ("[1].all(a, [1].all(b, [1].all(c, [1].map(d, [1].exists(e, true)) == [])))", 55, "more than 4 loops"),
        ("[" + ",".join("1" * 1_001) + "] == []", 2_001, "more than 1,000 items"),
    ],
)
def test_the_error_of_a_condition_names_place_and_limit(text: str, column: int, words: str) -> None:
    with pytest.raises(ConditionError, match=words) as caught:
        compile_condition(text)
    assert caught.value.column == column


@pytest.mark.parametrize(
    "text",
    [
        "(" * 32 + "true" + ")" * 32,
        "true" + " && true" * 200,
        " && ".join(f"$event.a{n} == {n}" for n in range(90)),
        "'" + "(" * 3_000 + "' != ''  // " + "[" * 100,
        "[1].all(a, [1].all(b, [1].all(c, [1].exists(d, d == 1))))",
        "$event.v0 == 1 && 'v1 v0_1' != 'v2'",
    ],
)
def test_a_condition_within_the_limits_compiles(text: str) -> None:
    assert compile_condition(text).text == text


def test_whatever_the_library_raises_is_an_error_of_the_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    def panics(_: str) -> None:
        raise Panic

    monkeypatch.setattr("cel.compile", panics)
    with pytest.raises(ConditionError):
        compile_condition("1 == 1 && 2 == 2")
    assert conditions.compile_group(("1 == 1", "2 == 2")) is None


def test_a_workflow_that_fails_to_compile_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str, config: object) -> object:
        if name == "W":
            raise MemoryError("too much")
        return compiled(name, config)  # type: ignore[arg-type]

    compiled = lazy_workflows.compile_workflow
    monkeypatch.setattr(lazy_workflows, "compile_workflow", fails)
    rules = stored(W=rule(cypher="CREATE (:B)"), V=rule(cypher="CREATE (:C)"))
    assert "not-compiled: the workflow cannot be compiled: MemoryError: too much" in str(rules.problem("W"))
    assert rules.problem("V") is None


# -- queries of rules --

TOO_MUCH: Final = {
    "chain_plus": "CREATE (:A {x: " + "1+" * 60_000 + "1})",
    "chain_short": "CREATE (:A {x: " + "1+" * 301 + "1})",
    "chain_accesses": "MATCH (n:A) SET n.x = n" + ".a" * 301,
    "chain_indexes": "MATCH (n:A) SET n.x = $p" + "[0]" * 301,
    "path": "MATCH (a:A)" + "-->()" * 200 + " SET a.x = 1",
    "parentheses": "CREATE (:A {x: " + "(" * 26 + "1" + ")" * 26 + "})",
    "lists": "CREATE (:A {x: " + "[" * 26 + "1" + "]" * 26 + "})",
    "maps": "MATCH (n:A) SET n += " + "{a: " * 16_000 + "1" + "}" * 16_000,
    "negations": "MATCH (n:A) WHERE " + "NOT (" * 9 + "true" + ")" * 9 + " SET n.x = 1",
    "double_negations": "MATCH (n:A) WHERE " + "NOT NOT (" * 6 + "true" + ")" * 6 + " SET n.x = 1",
    "signs": "CREATE (:A {x: " + "-(" * 9 + "1" + ")" * 9 + "})",
    "bare_signs": "CREATE (:A {x: " + "- " * 20 + "1})",
    "signs_and_in": "CREATE (:A {x: " + " IN ".join(["-1"] * 18) + "})",
    "signs_and_starts": "CREATE (:A {x: " + " STARTS WITH ".join(["-1"] * 18) + "})",
    "signs_and_matches": "CREATE (:A {x: " + " =~ ".join(["-1"] * 18) + "})",
    "negations_and_sums": "CREATE (:A {x: " + " + ".join(["NOT 1"] * 18) + "})",
    "cases": "CREATE (:A {x: " + "CASE 1 WHEN (" * 9 + "1" + ") THEN 1 END" * 9 + "})",
    "quantifiers": "MATCH (n:A) WHERE " + "any(x IN [1] WHERE " * 5 + "true" + ")" * 5 + " SET n.x = 1",
    "foreach": "CREATE (:A) " + "FOREACH (i IN [1] | CREATE (:B)) " * 400,
    "merges": " ".join(f"MERGE (a{n}:A {{id: $a}})" for n in range(250)),
    "patterns": "CREATE " + ", ".join(f"(a{n}:A)" for n in range(301)),
    "labels": "CREATE (a" + "".join(f":L{n}" for n in range(10_000)) + ")",
    "labels_short": "CREATE (a" + "".join(f":L{n}" for n in range(65)) + ")",
    "types": "MATCH (a:A)-[:" + "|".join(f"R{n}" for n in range(65)) + "]->() SET a.x = 1",
    "properties": "CREATE (:A {" + ", ".join(f"p{n}: 1" for n in range(1_001)) + "})",
    "characters": "CREATE (:A {x: '" + "x" * 16_000 + "'})",
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_query_that_is_too_much_has_only_this_problem(name: str) -> None:
    cypher = parse(TOO_MUCH[name], role="mutation", dialects=dialects())
    assert [each.code for each in cypher.problems] == ["too-much"], cypher.problems
    assert "too-much" in problem(cypher=TOO_MUCH[name])


def test_the_problem_of_a_query_names_line_and_column() -> None:
    [found] = parse("MATCH (n:A)\nSET n.x = " + "(" * 13 + "1" + ")" * 13, role="mutation").problems
    assert (found.line, found.column) == (2, 23)
    assert "more than 12 brackets open here: divide it" in found.message


@pytest.mark.parametrize(
    "text",
    [
        "CREATE (:A {x: '" + "(" * 15_000 + "'}) // " + "[" * 500,
        "CREATE (:A {x: " + "(" * 9 + "1" + ")" * 9 + "})",
        "CREATE (:A {x: [" + " + ".join(["-1"] * 150) + "], y: [" + ", ".join(["-1", "NOT true"] * 200) + "]})",
        "MATCH (n:A) WHERE " + " AND ".join(["NOT n.x = -1"] * 40) + " SET n.x = 1",
        "CREATE (:A {`((((((((((((((((((((((((((`: 1})",
        "MATCH (n:A) SET " + ", ".join(f"n.p{n} = coalesce($p, n.p{n}, 0) + 1" for n in range(250)),
        "MATCH (a:A) FOREACH (x IN $l | MERGE (b:B {id: x.id}) SET b.n = CASE WHEN x.n > 1 THEN [x.n] ELSE [] END)",
    ],
)
def test_a_query_within_the_limits_has_no_problem(text: str) -> None:
    assert parse(text, role="mutation").problems == ()


# -- range() and reduce() --

RANGES: Final = {
    "constant": "range(1, 1000000000)",
    "exponent": "range(1, 1e9)",
    "hexadecimal": "range(0, 0x7fffffff)",
    "below_zero": "range(-1000000000, 0)",
    "calculated": "range(1, 1000 * 1000 * 1000)",
    "power": "range(0, 10 ^ 9)",
    "of_a_node": "range(1, n.x)",
    "of_an_item": "range(1, $p.x)",
    "in_brackets": "range(1, (1000000000))",
    "quoted": "`range`(1, 1000000000)",
    "case": "Range(1, toInteger('1000000000'))",
    "in_size": "range(1, size(range(1, 1000000000)))",
    "sum": "range(1, " + " + ".join(["100000"] * 20) + ")",
}


@pytest.mark.parametrize("name", RANGES)
def test_a_range_with_an_unknown_bound_is_refused(name: str) -> None:
    text = f"MATCH (n:A) UNWIND {RANGES[name]} AS i CREATE (:B {{i: i}})"
    assert "range-bound" in {each.code for each in parse(text, role="mutation").problems}


@pytest.mark.parametrize(
    "text",
    [
        "range(1, 100000)",
        "range(0, size($list) - 1)",
        "range($a, $b, 2)",
        "range(-5, length(p) + 1)",
        "x.range(1, 10^9)",
    ],
)
def test_a_range_with_small_bounds_is_allowed(text: str) -> None:
    found = parse(f"MATCH p = (n:A)-->() UNWIND {text} AS i CREATE (:B {{i: i}})", role="mutation").problems
    assert "range-bound" not in {each.code for each in found}


def test_the_value_of_a_bound_is_checked_when_it_is_bound() -> None:
    rules = stored(W=rule(cypher="UNWIND range(0, $n) AS i CREATE (:A {i: i})", n="$event.n"))

    def event(n: object) -> Event:
        return Event.create("a.b", app_id="a", chat_id="c", workflow="W", data={"n": n})

    assert [bound.params for bound in rules.match_event(event(100_000)).mutations] == [{"n": 100_000}]
    for beyond in (100_001, -100_001, 10**9, 1e12):
        [failed] = rules.match_event(event(beyond)).failed
        assert isinstance(failed.error, InvalidValue)
        assert str(failed.error) == "the parameter 'n' is a bound of range(), and its value is beyond 100,000"
        with pytest.raises(InvalidValue):
            rules.bind_one(event(beyond), "r", "m")


def test_an_event_with_a_bound_beyond_the_limit_becomes_a_dead_letter() -> None:
    rules = stored(
        W=rule(cypher="UNWIND range(0, $n) AS i CREATE (:A {i: i})", n="$event.n"),
        Broken=rule("1 == " + "+".join(["1"] * 14_000)),
    )
    given = [(10**9, "W"), (1, "W"), (1, "Broken")]
    log = [
        Entry(offset=f"{number}-0", fields=wire.encode(event), received=NOW)
        for number, event in enumerate(
            Event.create("a.b", app_id="a", chat_id="c", workflow=name, data={"n": n}, time=NOW) for n, name in given
        )
    ]
    found = read_range(0, log, FixedRules(rules), RecentEvents())
    [letter] = found.letters
    assert (letter.reason, letter.rule, letter.mutation) == ("invalid_value", "r", "m")
    assert letter.message.startswith("the parameter 'n' is a bound of range()")
    assert [(each.entry.offset, each.reason) for each in found.skips] == [("2-0", "no_rules")]
    assert [(each.entry.offset, len(each.mutations)) for each in found.apps["a"]] == [("1-0", 1)]
    assert found.defects == []


@pytest.mark.parametrize(
    "text",
    [
        "RETURN reduce(s = 0, x IN [1] | s) AS x",
        "WITH 1 AS x RETURN reduce(s = 0, x IN [1] | s) AS y",
        "WITH 1 AS `x` RETURN reduce(s = 0, x IN [1] | s) AS y",
        "MATCH (x:N) WHERE reduce(s = 0, x IN [1] | s) = 1 RETURN x",
        "UNWIND [1] AS x RETURN reduce(s = 0, x IN [1] | s) AS y",
        "RETURN [x IN [1] | reduce(s = 0, x IN [1] | s)] AS y",
        "RETURN reduce(s = 0, x IN [1] | s + reduce(t = 0, x IN [1] | t)) AS y",
        "MATCH ()-[x:R]->() RETURN reduce(s = 0, x IN [1] | s) AS y",
    ],
)
def test_a_reduce_that_would_never_end_is_refused(text: str) -> None:
    assert "reduce-name" in {each.code for each in parse(text, role="injection").problems}


@pytest.mark.parametrize(
    "text",
    [
        "RETURN reduce(s = 0, x IN [1] | s + x) AS a, reduce(t = 0, x IN [1] | t + x) AS b",
        "RETURN reduce(s = 0, x IN [x IN [1] | x] | s + x) AS y",
        "WITH {x: 1} AS m RETURN reduce(s = 0, x IN [m.x] | s + x) AS y",
    ],
)
def test_a_reduce_with_names_of_its_own_is_allowed(text: str) -> None:
    assert parse(text, role="injection").problems == ()


def test_names_of_functions_are_no_values_that_grow() -> None:
    parts = "WITH coalesce(s, '') + coalesce(t, '') + coalesce(u, '') AS v, s, t, u WITH s, t, u "
    text = "MATCH (n:A) WITH n.s AS s, n.t AS t, n.u AS u " + parts * 12 + "CREATE (:A {s: s})"
    assert parse(text, role="mutation").problems == ()


@pytest.mark.parametrize(
    "text",
    [
        "WITH 'x' AS s " + "WITH s + s AS s " * 36 + "CREATE (:A {s: s})",
        "WITH [1] AS s " + "WITH [s, s] AS s " * 24 + "CREATE (:A {s: size(s)})",
        "WITH {a: 'x'} AS s " + "WITH {a: s.a + s.a} AS s " * 24 + "CREATE (:A {s: s.a})",
        "WITH 1 AS s " + "WITH {a: s, b: s} AS s " * 24 + "CREATE (:A {s: 1})",
        "CREATE (:A {s: reduce(s = 'x', i IN $l | s + s)})",
        "CREATE (:A {s: reduce(s = 'x', i IN $l | toString(s) + (toString((s))))})",
        "CREATE (:A {s: size(reduce(s = [1], i IN $l | [s, s]))})",
        "WITH 'aaaa' AS s WITH replace(s, 'a', s) AS s CREATE (:A {s: s})",
        "MATCH (n:A) SET n.s = Replace(n.s, 'a', 'x' + n.s)",
        "CREATE (:A {s: replace($s, 'a', toUpper($s))})",
    ],
)
def test_a_rule_whose_values_double_is_refused(text: str) -> None:
    assert "growth" in {each.code for each in parse(text, role="mutation").problems}


@pytest.mark.parametrize(
    "text",
    [
        "MATCH (n:A) SET n.s = reduce(s = '', x IN $l | CASE WHEN s = '' THEN x ELSE s + ', ' + x END)",
        "MATCH (n:A) SET n.m = reduce(m = 0, x IN $l | CASE WHEN x > m THEN x ELSE m END)",
        "MATCH (n:A) " + "WITH n, {a: n.a, b: n.b, c: n.c, d: n.d} AS m " * 12 + "SET n.x = m.a + m.b",
        "MATCH (n:A) SET n.s = replace(n.s, 'a', n.t), n.t = replace(replace(n.t, 'b', ''), 's', $s.n)",
        "MATCH (n:A) SET n.x = replace('s', 's', 's')",
        "MATCH (s:A) SET s.x = replace($s, 'x', s.y)",
    ],
)
def test_a_rule_whose_values_stay_as_they_are_is_allowed(text: str) -> None:
    assert parse(text, role="mutation").problems == ()


# -- queries of requests --

ATTACKS: Final = {
    "chain": "RETURN node.text AS text, score, " + "1+" * 60_000 + "1 AS x",
    "long": "RETURN node.text AS text, score, '" + "x" * 2_000 + "' AS x",
    "range": "UNWIND range(1, 1000000000) AS i RETURN node.text AS text, score, count(i) AS n",
    "small_range": "UNWIND range(1, 100000) AS i RETURN node.text AS text, score",
    "range_of_parameter": "UNWIND range(1, $n) AS i RETURN node.text AS text, score",
    "parentheses": "RETURN node.text AS text, score, " + "(" * 26 + "1" + ")" * 26 + " AS x",
    "nine_parentheses": "RETURN node.text AS text, score, " + "(" * 9 + "1" + ")" * 9 + " AS x",
    "maps": "RETURN node.text AS text, score, " + "{a:" * 16_000 + "1" + "}" * 16_000 + " AS x",
    "negations": "RETURN node.text AS text, score, " + "NOT (" * 8 + "true" + ")" * 8 + " AS x",
    "doubled_text": "WITH node, score, 'x' AS s " + "WITH node, score, s+s AS s " * 36 + "RETURN s AS text, score",
    "doubled_list": "WITH node, score, [1] AS s " + "WITH node, score, [s, s] AS s " * 24 + "RETURN s AS text, score",
    "doubled_map": "WITH node, score, 1 AS s "
    + "WITH node, score, {a: s, b: s} AS s " * 24
    + "RETURN s AS text, score",
    "tripled_parameter": "WITH node, score, $p AS s " + "WITH node, score, s+s+s AS s " * 3 + "RETURN s AS text, score",
    "reduce": "RETURN reduce(s = 'x', i IN $l | s + s) AS text, score",
    "endless_reduce": "RETURN reduce(s = 0, x IN [1] | s) AS x, node.text AS text, score",
    "replace": "RETURN replace(replace(node.text, 'a', $p), 'b', $p) AS text, score",
    "namespace": "RETURN apoc.text.repeat('x', 1000000000) AS text, score",
    "squared": "WITH node, score, $l AS l RETURN [x IN l | l] AS text, score",
    "squared_parameter": "RETURN [x IN $l | $l] AS text, score",
    "product": "MATCH (a:N), (b:N), (c:N) RETURN a.text AS text, score ORDER BY c.x",
    "product_of_clauses": "MATCH (a:N) MATCH (b:N) RETURN a.text AS text, score ORDER BY b.x",
    "unwinds": "".join(f"UNWIND $l AS a{n} " for n in range(4)) + "RETURN node.text AS text, score",
    "matches_as_list": "RETURN [(a)-->(b) | b.x] AS text, score",
    "procedure": "CALL db.labels() YIELD label RETURN label AS text, score",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_request_cannot_run_a_query_that_may_grow_without_end(name: str) -> None:
    search = SearchQuery(
        text="hello",
        memory=MemoryScope(user_id="u"),
        retrieval_query=ATTACKS[name],
        params={"l": [1], "n": 1, "p": "x"},
    )
    found = bind_search(search, NOW)
    assert isinstance(found, str), found
    assert found.startswith("retrieval_query")


@pytest.mark.parametrize(
    "text",
    [
        "RETURN node.text AS text, score ORDER BY score DESC",
        "RETURN node.text + ' (' + node.role + ', ' + toString(node.at) + ')' AS text, score",
        "OPTIONAL MATCH (node)-[:ABOUT]->(t:Topic) WITH node, score, collect(t.name) AS topics "
        "RETURN node.text AS text, score, [name IN topics WHERE name <> $not | toLower(name)] AS topics",
        "MATCH (u:User {id: $user}) WHERE (u)-[:LIKES]->(node) RETURN node.text AS text, score * 2 AS score",
        "MATCH (node)-[:NEXT*1..3]->(n) RETURN n.text AS text, score, count(*) AS times LIMIT 5",
        "CALL { WITH node MATCH (node)-->(m) RETURN count(m) AS n } RETURN node.text AS text, score + n AS score",
        "RETURN CASE WHEN size(node.text) > 9 THEN left(node.text, 9) ELSE node.text END AS text, score",
        "RETURN {text: node.text, by: node.by}.text AS text, score, [node.a, node.b] AS both",
    ],
)
def test_an_ordinary_query_of_a_request_runs(text: str) -> None:
    search = SearchQuery(
        text="hello", memory=MemoryScope(user_id="u"), retrieval_query=text, params={"not": "a", "user": "u"}
    )
    assert not isinstance(found := bind_search(search, NOW), str), found


def test_the_retrieval_query_of_a_rule_has_the_limits_of_requests() -> None:
    assert [each.code for each in parse_retrieval(ATTACKS["nine_parentheses"]).problems] == ["too-much"]
    assert parse_retrieval("RETURN node.text AS text, score, " + "x" * 2_000).problems[0].code == "too-much"


# -- look-up keys --


def merges(label: str, count: int) -> bytes:
    """Return rules that look up nodes of a label by many properties."""
    mutations = [{"id": f"m{n}", "cypher": f"MERGE (t:{label} {{p{n}: 1}}) SET t.seen = 1"} for n in range(count)]
    return json.dumps({"mutation_rules": [{"name": "r", "events": ["*"], "mutations": mutations}]}).encode()


def put(root: Path, **workflows: bytes) -> Path:
    for name, data in workflows.items():
        (root / name).mkdir()
        (root / name / "graph_injection.yaml").write_bytes(data)
    return root


def test_more_than_64_look_up_keys_of_a_label_are_refused(tmp_path: Path) -> None:
    put(tmp_path, W=merges("Thing", MOST_KEYS_OF_LABEL + 1))
    assert [each.code for each in lint([tmp_path])] == ["too-many-keys"]
    with pytest.raises(RulesError, match="the label 'Thing' by 65 properties, and each needs an index: use at most 64"):
        load_rules(tmp_path)
    assert "too-many-keys" in str(stored(W=merges("Thing", 65)).problem("W"))
    assert stored(W=merges("Thing", 64)).problem("W") is None


def test_workflows_share_the_limits_of_look_up_keys(tmp_path: Path) -> None:
    put(tmp_path, V=merges("Thing", 40), W=merges("Thing", 64))
    assert lint([tmp_path]) == []  # the same 64
    put(tmp_path, **{f"W{n}": merges(f"L{n}", 60) for n in range(8)})
    assert [each.code for each in lint([tmp_path])] == ["too-many-keys"]
    with pytest.raises(RulesError, match=f"use at most {MOST_KEYS}"):
        load_rules(tmp_path)


def test_stored_rules_of_an_older_version_keep_the_keys_that_are_allowed() -> None:
    rules = stored(**{f"W{n}": merges(f"L{n}", 60) for n in range(12)})
    assert (len(rules.keys), rules.problem("W11")) == (MOST_KEYS, None)


@pytest.mark.parametrize(
    "keys",
    [
        [["Acc", f"zz{n}"] for n in range(MOST_KEYS_OF_LABEL + 1)],
        [["Acc", f"zz{n}"] for n in range(1_000)],
        [[f"L{n}", "id"] for n in range(MOST_KEYS + 1)],
    ],
)
def test_a_summary_with_too_many_keys_is_none(keys: list[list[str]]) -> None:
    body = RuleSummary.of(()).to_json()
    assert RuleSummary.from_json(body) is not None
    assert RuleSummary.from_json(body | {"keys": keys}) is None


if __name__ == "__main__":
    main()
