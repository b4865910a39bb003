"""The JSON Schemas for editors are current, and judge files as the loader does."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from graphweft_rules.files.findings import Finding, errors
from graphweft_rules.files.rule_reader import read_rules
from graphweft_rules.files.source import parse
from graphweft_rules.files.tree import plain
from graphweft_rules.json_schemas import KINDS, Kind, schema_text
from graphweft_rules.rule_tests.reader import read_cases
from graphweft_workers.evaluation.question_file import read_questions
from graphweft_workers.features.episodes.ontologies.files import read_ontology

ROOT = Path(__file__).parents[3]
FOLDERS = ("examples", "benchmarks", "tests/fixtures", "tests/fuzz", "workers")
RULE_FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.yaml")
    if re.search("^(mutation|injection)_rules:", path.read_text("utf-8"), re.MULTILINE)
)
BLOCK = r"```yaml\n(.*?)```"
VALIDATORS = {kind: Draft7Validator(json.loads(schema_text(kind))) for kind in KINDS}
TEST_FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*_test.yaml"))
EVERYTHING = """
extends: [../_shared/base.yaml]
version: "1.0"
mutation_rules:
  - name: orders
    events: ["order.placed", "order.*", "*"]
    agents: ["Planner", "*"]
    condition: $event.amount > 1
    mutations:
      - id: order
        cypher: "MERGE (o:Order {id: $order}) SET o.tags = $tags"
        params: {order: $event.order, tags: [1, $context.tag, {deep: [null, 1.5, "$$5", $workflow.name]}]}
injection_rules:
  - name: known
    agents: ["*"]
    condition: has($context.phase)
    priority: -1
    timeout_ms: 50
    max_tokens: 300
    queries:
      - {id: a, cypher: "RETURN $x AS x", params: {x: true}, inject_as: a, format: json, max_results: 3}
      - id: b
        inject_as: b
        search:
          memory: {user_id: $workflow.user_id, thread_id: chat 1}
          of: facts
          query: $context.question
          index_type: fulltext
          top_k: 7
          message_history_count: 2
          filter_stop_words: false
      - id: c
        inject_as: c
        params: {country: $context.country}
        search:
          index_name: chunks
          dimensions: 4
          fulltext_index_name: words
          index_type: hybrid
          query: [{role: user, text: $context.question}, {role: assistant, content: hello}, $context.last]
          retrieval_query: RETURN node.text AS text, score, $country AS country ORDER BY score DESC
      - id: d
        inject_as: d
        graphrag:
          query: $context.messages
          seeds: [id-1, {id: id-2}, $context.seed]
          memory: {agent_id: me}
          message_history_count: 3
          search: {index_type: fulltext, top_k: 2}
        format: facts
      - {id: e, inject_as: e, graphrag: {query: who, seeds: $context.seeds, search: {of: facts, memory: {user_id: x}}}}
"""
ONTOLOGY = """
entity_types: {Customer: Buys things., Feature: What it does., Secret:}
edge_types: {USES: Works with it., ASKED_FOR: ""}
edge_type_map:
  - {source: Customer, target: [Feature, Entity], edges: [USES, ASKED_FOR]}
  - {source: [Entity], target: Entity, edges: USES}
excluded_entity_types: [Secret]
"""
TESTS = """
tests:
  - name: everything
    workflow: Support
    events:
      - {type: order.placed, chat: c1, user: ann, agent: planner, context: {phase: 2}, data: {order: o1, n: [1, null]}}
      - type: order.paid
        id: e2
        source: /shop
        chatid: c1
        userid: ann
        appid: shop
        workflow: Support
        time: "2026-02-01T10:00:00Z"
        recordedtime: "2026-02-01T10:00:00+01:00"
        subject: o1
        specversion: "1.0"
        datacontenttype: application/json
        dataschema: order.json
        dataref: o1.json
        partitionkey: k
        sequence: "7"
        traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
        tracestate: a=b
      - recorded.jsonl
    statements:
      - placed/order
      - {mutation: placed/order, params: {order: o1, tags: [a, null]}}
      - {skipped: placed/customer, reason: $event.customer}
    graph:
      - query: MATCH (o:Order) WHERE o.id = $id RETURN o.id AS id, o.n AS n
        params: {id: o1}
        rows: [[o1, null], {id: o1, n: 2}]
      - nodes: 3
      - nodes: {Order: 1}
      - relationships: {PLACED: 0}
    context:
      - agent: planner
        chat: c1
        user: ann
        workflow: Support
        context: {phase: 2}
        budget_ms: 500
        max_tokens: 100
        time: "2026-02-01T10:00:00Z"
        contains: [o1, lamp]
        excludes: o2
        equals: "# Orders"
        empty: false
        missing: [orders, {name: facts, reason: timeout}]
    dead_letters:
      - {reason: skipped, rule: placed, mutation: customer, type: order.paid, message: customer, events: 2}
    unmatched: [agent.turn_start, "tool.*"]
  - {name: from a file, events: recorded.jsonl}
"""
QUESTIONS = """
questions:
  - {question: "Where?", user: ada, chat: c1, agent: planner, application: shop, contains: Bergen, stale: [Oslo]}
  - {question: "Which cake?", chat: c1, expect: [m1, m2], tags: [food, cakes]}
  - {question: "Who is the king?", application: shop, nothing: true, tags: none}
"""

type Read = Callable[[bytes], tuple[Finding, ...]]


def rules_of(data: bytes) -> tuple[Finding, ...]:
    return read_rules(data, Path("graph_injection.yaml")).findings


def ontology_of(data: bytes) -> tuple[Finding, ...]:
    return read_ontology(data, Path("support_v1.yaml"))[1]


def cases_of(data: bytes) -> tuple[Finding, ...]:
    return read_cases(data, Path("Support/orders_test.yaml"), "Support", lambda _: b"")[1]


def questions_of(data: bytes) -> tuple[Finding, ...]:
    return read_questions(data, "questions.yaml")[1]


READ: dict[Kind, Read] = {"rules": rules_of, "test": cases_of, "ontology": ontology_of, "questions": questions_of}


def values(text: str) -> Any:
    return plain(parse(text.encode(), "x.yaml")[0])


def as_file(value: Any) -> bytes:
    """JSON is YAML that says the type of every value."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


FULL: dict[Kind, Any] = {
    "rules": values(EVERYTHING), "test": values(TESTS), "ontology": values(ONTOLOGY), "questions": values(QUESTIONS)
}  # fmt: skip


def valid(kind: Kind, value: Any) -> bool:
    return bool(VALIDATORS[kind].is_valid(value))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a tree, except the tree itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def inside(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


# The files


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_lawful_and_describes_each_key(kind: Kind) -> None:
    schema = VALIDATORS[kind].schema
    Draft7Validator.check_schema(schema)
    told = 0
    for path in places(schema):
        found = inside(schema, path)
        if (
            path[-2:-1] == ("properties",)
            and isinstance(found, dict)
            and not {"if", "then", "else", "not"} & {*path[:-2]}
        ):
            reference = found.get("$ref", "").removeprefix("#/definitions/")
            assert (schema["definitions"][reference] if reference else found)["description"], path
            told += 1
        if path[-1] == "$ref":
            assert found.removeprefix("#/definitions/") in schema["definitions"]
    assert told > 5


# Valid files


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_schema_accepts_every_rule_file_of_the_project(path: Path) -> None:
    assert errors(rules_of(path.read_bytes())) == ()
    VALIDATORS["rules"].validate(values(path.read_text("utf-8")))


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_schema_accepts_every_rule_test_of_the_project(path: Path) -> None:
    assert errors(read_cases(path.read_bytes(), path, "W")[1]) == ()
    VALIDATORS["test"].validate(values(path.read_text("utf-8")))


def test_the_schema_accepts_the_rule_tests_of_the_pages() -> None:
    blocks = [text for page in ROOT.glob("docs/**/*.md") for text in re.findall(BLOCK, page.read_text("utf-8"), re.S)]
    found = [text for text in blocks if re.search("^tests:", text, re.MULTILINE)]
    assert found
    for text in found:
        assert errors(cases_of(text.encode())) == ()
        VALIDATORS["test"].validate(values(text))


def test_the_schema_accepts_the_rules_of_the_pages() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    blocks = [text for page in pages for text in re.findall(BLOCK, page.read_text("utf-8"), re.S)]
    found = [text for text in blocks if re.search("^(mutation|injection)_rules:", text, re.MULTILINE)]
    assert len(found) >= 6
    for text in found:
        if not errors(rules_of(text.encode())):
            VALIDATORS["rules"].validate(values(text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("rules", EVERYTHING),
        ("rules", ""),
        ("rules", "extends: base.yaml"),
        ("rules", "extends: []\nmutation_rules: []\ninjection_rules: []"),
        ("rules", "version: 1.0"),
        ("rules", "mutation_rules: [{name: &n a, events: [a.b], mutations: "
                  "[{id: *n, cypher: 'CREATE (:N)', params: {}}]}]"),
        ("test", TESTS),
        ("test", "tests: [{name: a}]"),
        ("test", "tests: [{name: a, events: [], statements: [], graph: [], context: [], dead_letters: []}]"),
        ("test", "tests: [{name: a, events: [{type: a.b, chat: null, subject: null, time: null, agent: null}]}]"),
        ("test", "tests: [{name: a, context: [{agent: g, user: null, time: 1700000000, empty: true}]}]"),
        ("ontology", ONTOLOGY),
        ("ontology", "entity_types: {A: }"),
        ("ontology", "entity_types: {A: a}\nedge_types: {}\nedge_type_map: []\nexcluded_entity_types: []"),
        ("ontology", "entity_types: {A: a}\nexcluded_entity_types: A"),
        ("questions", QUESTIONS),
        ("questions", "questions: [{question: a, user: b, contains: c}]"),
    ],
)  # fmt: skip
def test_the_schema_accepts_every_form(kind: Kind, text: str) -> None:
    assert [str(each) for each in errors(READ[kind](text.encode()))] == []
    VALIDATORS[kind].validate(values(text))


# Mistakes


def changed(kind: Kind, path: tuple[Any, ...], value: Any) -> Any:
    """Return the full file with another value at a path; ``...`` removes it."""
    root = copy.deepcopy(FULL[kind])
    holder = inside(root, path[:-1])
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return root


QUERIES = ("injection_rules", 0, "queries")
CASE = ("tests", 0)
MUTATION = ("mutation_rules", 0, "mutations", 0)
MISTAKES: list[tuple[Kind, tuple[Any, ...], Any]] = [
    ("rules", ("mutation_rule",), []),
    ("rules", ("mutation_rules",), {}),
    ("rules", ("mutation_rules", 0, "name"), ...),
    ("rules", ("mutation_rules", 0, "name"), 5),
    ("rules", ("mutation_rules", 0, "name"), " "),
    ("rules", ("mutation_rules", 0, "event"), ["a.b"]),
    ("rules", ("mutation_rules", 0, "events"), "order.placed"),
    ("rules", ("mutation_rules", 0, "events"), []),
    ("rules", ("mutation_rules", 0, "events"), ["Order.Placed"]),
    ("rules", ("mutation_rules", 0, "events"), ["order"]),
    ("rules", ("mutation_rules", 0, "agents"), ["Plan*"]),
    ("rules", ("mutation_rules", 0, "condition"), True),
    ("rules", (*MUTATION, "cypher"), ...),
    ("rules", (*MUTATION, "params"), ["order"]),
    ("rules", (*MUTATION, "params", "order"), "$evnt.order"),
    ("rules", (*MUTATION, "params", "order"), "$workflow.chat"),
    ("rules", (*MUTATION, "params", "tags", 2, "deep"), "$event"),
    ("rules", (*MUTATION, "timeout_ms"), 5),
    ("rules", ("injection_rules", 0, "agents"), ...),
    ("rules", ("injection_rules", 0, "max_tokens"), 0),
    ("rules", ("injection_rules", 0, "priority"), "high"),
    ("rules", (*QUERIES, 0, "inject_as"), ...),
    ("rules", (*QUERIES, 0, "cypher"), ...),
    ("rules", (*QUERIES, 0, "format"), "table"),
    ("rules", (*QUERIES, 0, "format"), "facts"),
    ("rules", (*QUERIES, 0, "search"), {"query": "x"}),
    ("rules", (*QUERIES, 1, "search", "memory"), {}),
    ("rules", (*QUERIES, 1, "search", "memory"), ...),
    ("rules", (*QUERIES, 1, "search", "memory", "user"), "ann"),
    ("rules", (*QUERIES, 1, "search", "index_name"), "chunks"),
    ("rules", (*QUERIES, 1, "search", "index_type"), "vector"),
    ("rules", (*QUERIES, 1, "search", "query"), ...),
    ("rules", (*QUERIES, 1, "search", "top_k"), 1001),
    ("rules", (*QUERIES, 2, "search", "query"), ...),
    ("rules", (*QUERIES, 2, "search", "fulltext_index_name"), ...),
    ("rules", (*QUERIES, 2, "search", "index_name"), "$context.index"),
    ("rules", (*QUERIES, 2, "search", "index_name"), ...),
    ("rules", (*QUERIES, 2, "search", "index_type"), "fulltext"),
    ("rules", (*QUERIES, 2, "search", "query", 0, "role"), ...),
    ("rules", (*QUERIES, 3, "graphrag", "query"), ...),
    ("rules", (*QUERIES, 3, "graphrag", "search", "retrieval_query"), "RETURN node.text AS text, score"),
    ("rules", (*QUERIES, 3, "graphrag", "search", "dimensions"), 4),
    ("rules", (*QUERIES, 3, "params"), {}),
    ("rules", ("version",), "2.0"),
    ("rules", ("version",), None),
    ("rules", ("extends",), {"file": "base.yaml"}),
    ("test", ("tests",), []),
    ("test", ("tests",), {}),
    ("test", ("tests",), ...),
    ("test", (*CASE, "name"), ...),
    ("test", (*CASE, "name"), " "),
    ("test", (*CASE, "event"), []),
    ("test", (*CASE, "events"), {"type": "a.b"}),
    ("test", (*CASE, "events", 0), 5),
    ("test", (*CASE, "events", 0, "type"), ...),
    ("test", (*CASE, "events", 0, "type"), "Order"),
    ("test", (*CASE, "events", 0, "data"), [1]),
    ("test", (*CASE, "events", 0, "context"), None),
    ("test", (*CASE, "events", 0, "chat"), ""),
    ("test", (*CASE, "events", 1, "appid"), "a b"),
    ("test", (*CASE, "statements", 0), "placed"),
    ("test", (*CASE, "statements", 1, "reason"), "x"),
    ("test", (*CASE, "statements", 1, "skipped"), "placed/order"),
    ("test", (*CASE, "statements", 2, "params"), {}),
    ("test", (*CASE, "statements", 2, "skipped"), ...),
    ("test", (*CASE, "graph", 0, "rows"), ...),
    ("test", (*CASE, "graph", 0, "rows", 0), "o1"),
    ("test", (*CASE, "graph", 0, "params"), ["o1"]),
    ("test", (*CASE, "graph", 1), {}),
    ("test", (*CASE, "graph", 1, "nodes"), -1),
    ("test", (*CASE, "graph", 1, "rows"), []),
    ("test", (*CASE, "graph", 2, "nodes", "Order"), "one"),
    ("test", (*CASE, "context", 0, "agent"), ...),
    ("test", (*CASE, "context", 0), {"agent": "planner"}),
    ("test", (*CASE, "context", 0, "chat"), None),
    ("test", (*CASE, "context", 0, "budget_ms"), 0),
    ("test", (*CASE, "context", 0, "budget_ms"), 3_600_001),
    ("test", (*CASE, "context", 0, "empty"), 1),
    ("test", (*CASE, "context", 0, "contains"), []),
    ("test", (*CASE, "context", 0, "contains"), {"text": "o1"}),
    ("test", (*CASE, "context", 0, "missing", 1, "reason"), "late"),
    ("test", (*CASE, "context", 0, "user_id"), "ann"),
    ("test", (*CASE, "dead_letters", 0, "reason"), "lost"),
    ("test", (*CASE, "dead_letters", 0, "events"), 0),
    ("test", (*CASE, "unmatched"), "a.b"),
    ("test", (*CASE, "unmatched"), []),
    ("ontology", ("entity_types",), ...),
    ("ontology", ("entity_types",), {}),
    ("ontology", ("entity_types",), ["Customer"]),
    ("ontology", ("entity_types", "Entity"), "Anything."),
    ("ontology", ("entity_types", "two words"), "Bad name."),
    ("ontology", ("entity_types", "Customer"), {"description": "x"}),
    ("ontology", ("edges",), {}),
    ("ontology", ("edge_type_map", 0, "edges"), ...),
    ("ontology", ("edge_type_map", 0, "edges"), []),
    ("ontology", ("edge_type_map",), {"source": "Customer"}),
    ("ontology", ("excluded_entity_types",), 5),
    ("questions", ("questions",), []),
    ("questions", ("questions",), ...),
    ("questions", ("questions", 0, "question"), ...),
    ("questions", ("questions", 0, "question"), " "),
    ("questions", ("questions", 0, "contains"), ...),
    ("questions", ("questions", 0, "nothing"), True),
    ("questions", ("questions", 0, "user"), " ada"),
    ("questions", ("questions", 0, "user"), "a" * 257),
    ("questions", ("questions", 0, "user_id"), "ada"),
    ("questions", ("questions", 1, "chat"), ...),
    ("questions", ("questions", 1, "expect"), []),
    ("questions", ("questions", 1, "expect", 0), 7),
    ("questions", ("questions", 1, "tags"), {}),
    ("questions", ("questions", 2, "nothing"), False),
    ("questions", ("questions", 2, "nothing"), "yes"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "value"), MISTAKES)
def test_the_schema_refuses_mistakes(kind: Kind, path: tuple[Any, ...], value: Any) -> None:
    wrong = changed(kind, path, value)
    assert errors(READ[kind](as_file(wrong)))
    assert not valid(kind, wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_has_exactly_the_keys_of_the_loader(kind: Kind) -> None:
    """Each mapping refuses another key, and the loader's list of its keys is what the schema suggests."""
    root = FULL[kind]
    compared = 0
    for path in [(), *places(root)]:
        if not isinstance(inside(root, path), dict):
            continue
        wrong = copy.deepcopy(root)
        inside(wrong, path)["no_such_key"] = "x"
        findings = [each for each in READ[kind](as_file(wrong)) if each.code == "unknown-key"]
        if not findings:  # names are free here
            continue
        said = {*findings[0].message.partition("it may have ")[2].split(", ")}
        refusals = [str(each.message) for each in VALIDATORS[kind].iter_errors(wrong)]
        assert any("no_such_key" in each for each in refusals), path
        assert keys_at(VALIDATORS[kind].schema, path) == said, path
        compared += 1
    assert compared >= {"rules": 15, "test": 10, "ontology": 3, "questions": 4}[kind]


def keys_at(schema: Any, path: tuple[Any, ...]) -> set[str]:
    found = schema
    for step in path:
        found = found.get("else", found) if "properties" not in found and "items" not in found else found
        found = found["properties"][step] if isinstance(step, str) else found["items"]
        if "$ref" in found:
            found = schema["definitions"][found["$ref"].removeprefix("#/definitions/")]
        found = found.get("else", found) if "properties" not in found else found
    return {*found["properties"]}


# Random changes of valid files

ODD: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [
            *(None, True, False, 0, 1, -1, 2**63 - 1, 1.5, "", " ", "\ufeff", "\u00a0", "\x1c", "x", "1.0", "*"),
            *("$", "$$", "$x", "$context", "$context.a", "$context.größe.0", "$event.a-b", "$workflow.name", "a.*"),
            *("$workflow.nme", "text $context.a", "order.placed", "facts", "hybrid", "vector", "entities", "Entity"),
            *([], [[]], {}, [{}], ["x"], ["$context.a"], ["*"], {"x": "$event.y"}, {"user_id": "ann"}, {"role": 5}),
        ]
    ),
    st.text(max_size=8),
).map(copy.deepcopy)
CODES = {"unknown-key", "wrong-type", "empty-list"}
"""What editors must find as well."""


@st.composite
def variants(draw: st.DrawFn, kind: Kind) -> Any:
    root = copy.deepcopy(draw(st.sampled_from([FULL[kind], *SMALL[kind]])))
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(root))
        if not found:
            break
        path = draw(st.sampled_from(found))
        holder = inside(root, path[:-1])
        match draw(st.sampled_from(["remove", "replace", "copy", "add"])):
            case "remove":
                del holder[path[-1]]
            case "replace":
                holder[path[-1]] = draw(ODD)
            case "copy":
                holder[path[-1]] = copy.deepcopy(inside(root, draw(st.sampled_from(found))))
            case _ if isinstance(holder, dict):
                holder[draw(st.sampled_from([str(path[-1]), "query", "memory", "of", "index_type", "format"]))] = draw(
                    ODD
                )
            case _:
                holder.append(draw(ODD))
    return root


SMALL: dict[Kind, list[Any]] = {
    "rules": [
        {"injection_rules": [{"name": "r", "agents": ["*"], "queries": [query]}]}
        for query in FULL["rules"]["injection_rules"][0]["queries"]
    ],
    "test": [{"tests": [{"name": "a", key: value}]} for key, value in FULL["test"]["tests"][0].items()],
    "ontology": [{"entity_types": {"A": "a"}}],
    "questions": [{"questions": [each]} for each in FULL["questions"]["questions"]],
}


def judged_alike(kind: Kind, value: Any) -> None:
    found = errors(READ[kind](as_file(value)))
    accepted = valid(kind, value)
    assert accepted or found, [each.message for each in VALIDATORS[kind].iter_errors(value)]
    if accepted:
        assert not CODES & {each.code for each in found}, [str(each) for each in found]


@given(variants("rules"))
def test_the_schema_refuses_only_rules_that_the_loader_refuses(value: Any) -> None:
    judged_alike("rules", value)


@given(variants("test"))
def test_the_schema_refuses_only_rule_tests_that_the_reader_refuses(value: Any) -> None:
    judged_alike("test", value)


@given(variants("ontology"))
def test_the_schema_refuses_only_ontologies_that_the_loader_refuses(value: Any) -> None:
    judged_alike("ontology", value)


@given(variants("questions"))
def test_the_schema_refuses_only_questions_that_the_reader_refuses(value: Any) -> None:
    judged_alike("questions", value)
