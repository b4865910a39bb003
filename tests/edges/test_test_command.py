"""``graphweft test`` with its own server, run in the process of the tests."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.services.commands import Done, inside
from tests.services.environment import clean_environment

from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.wiring import query_check

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
RULES = """\
mutation_rules:
  - name: order_placed
    events: ["order.placed"]
    mutations:
      - id: link
        cypher: |
          MERGE (c:Customer {id: $customer})
          MERGE (o:Order {id: $order})
          MERGE (c)-[:PLACED]->(o)
          SET o.chat = $chat, o.at = datetime()
        params: {customer: $event.customer, order: $event.order, chat: $workflow.chat_id}
injection_rules:
  - name: orders
    agents: ["*"]
    queries:
      - id: orders
        cypher: "MATCH (o:Order {chat: $chat}) RETURN o.id, o.at, datetime() AS now"
        params: {chat: $workflow.chat_id}
        inject_as: orders
"""
ORDER = "{type: order.placed, chat: c1, agent: planner, data: {customer: ann, order: o1}}"

Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run the command in a folder with the rules of a workflow; its set-up of logs is undone."""
    folder = tmp_path / "workflows/Support"
    folder.mkdir(parents=True)
    (folder / "graph_injection.yaml").write_text(RULES)
    clean = clean_environment()
    log = logging.getLogger("graphweft")
    before = (log.handlers, log.level, log.propagate)
    yield lambda *arguments, **more: inside(["test", *arguments], clean | more, folder=tmp_path)
    log.handlers, log.level, log.propagate = before


def write(folder: Path, text: str, name: str = "Support/orders_test.yaml") -> None:
    path = folder / "workflows" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_the_tests_of_the_guide_pass_with_its_rules(run: Run, tmp_path: Path) -> None:
    guide = (ROOT / "docs/rules.md").read_text("utf-8").partition("## Test your rules")[2].partition("\n## ")[0]
    tests, rules = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    write(tmp_path, tests)
    write(tmp_path, rules, "Support/graph_injection.yaml")
    done = run()
    assert (done.code, done.out.splitlines()[-1]) == (0, "2 passed, 0 failed"), done
    # See them fail: the rules store another value.
    write(
        tmp_path, rules.replace("customer: $event.customer", "customer: $event.order"), "Support/graph_injection.yaml"
    )
    done = run()
    assert (done.code, done.out.splitlines()[-1]) == (1, "0 passed, 2 failed"), done


def test_the_tests_of_the_airline_example_pass(run: Run) -> None:
    done = run(str(ROOT / "examples/airline"), "--json")
    found = json.loads(done.out)
    assert done.code == 0, found
    assert (found["passed"], found["failed"]) == (3, 0)


def test_a_failure_shows_its_place_and_the_difference(run: Run, tmp_path: Path) -> None:
    write(
        tmp_path,
        f"""\
tests:
  - name: good
    events: [{ORDER}]
    graph:
      - {{query: "MATCH (o:Order) RETURN o.id, o.at", rows: [[o1, "2026-01-01T00:00:00.000000Z"]]}}
      - {{query: "MATCH (o:Order {{id: $id}}) RETURN o.id", params: {{id: o1}}, rows: [{{o.id: o1}}]}}
      - {{nodes: 2}}
      - {{nodes: {{Order: 1, Strange: 0}}}}
      - {{relationships: {{PLACED: 1}}}}
    context:
      - {{agent: planner, contains: ["2026-01-01T00:00:01"]}}
      - {{agent: planner, time: "2030-01-01T00:00:00Z", contains: ["2030-01-01"]}}
      - {{agent: planner, chat: c2, excludes: o1}}
  - name: bad
    events:
      - {ORDER}
      - {{type: order.placed, data: {{order: o2}}}}
      - {{type: order.placed, data: {{customer: bob, order: ""}}}}
      - {{type: order.place}}
      - {{type: order.placed, workflow: Strange}}
    graph:
      - {{query: "MATCH (o:Order) RETURN o.id", rows: [[o2]]}}
      - {{query: "MATCH (o:Order RETURN o.id", rows: []}}
      - {{query: "CREATE (o:Order)", rows: []}}
    context:
      - {{agent: planner, workflow: Strange, empty: true}}
""",
    )
    done = run()
    assert done.code == 1
    place = "      workflows/Support/orders_test.yaml:"
    lines = done.out.splitlines()
    assert lines[:2] == [
        "ok    workflows/Support/orders_test.yaml:2  good",
        "FAIL  workflows/Support/orders_test.yaml:14  bad",
    ]
    failures = [line.removeprefix(place) for line in lines if line.startswith(place)]
    assert [failure.partition(" ")[0] for failure in failures] == [
        *("22:54:", "23:17:", "24:17:", "26:9:"),
        *("14:11:", "14:11:", "14:11:", "19:9:"),
    ]
    assert lines[3:5] == ['        - ["o2"]', '        + ["o1"]']
    text = " ".join(failures)
    for part in ("the query fails", "$event.customer, which is missing", "query_error", "no_rules", "'order.place'"):
        assert part in text
    assert lines[-1] == "1 passed, 1 failed"


def test_expected_failures_pass(run: Run, tmp_path: Path) -> None:
    write(
        tmp_path,
        """\
tests:
  - name: failures
    events:
      - {type: order.placed, data: {order: o2}}
      - {type: order.placed, data: {customer: bob, order: ""}}
      - {type: order.placed, workflow: Strange}
      - {type: order.shipped}
    unmatched: ["order.shipped"]
    dead_letters:
      - {reason: skipped, rule: order_placed, mutation: link, message: $event.customer, events: 1}
      - {reason: query_error, rule: order_placed}
      - {reason: no_rules, type: order.placed}
    graph: [{nodes: 0}]
""",
    )
    done = run()
    assert (done.code, done.out.splitlines()[-1]) == (0, "1 passed, 0 failed"), done


def test_fifty_cases_share_a_server_and_do_not_see_one_another(run: Run, tmp_path: Path) -> None:
    cases = [
        f"""\
  - name: case {number}
    events: [{ORDER.replace("o1", f"o{number}")}]
    graph: [{{query: "MATCH (o:Order) RETURN o.id", rows: [[o{number}]]}}, {{nodes: 2}}]
    context: [{{agent: a, contains: "o{number}"}}]
"""
        for number in range(50)
    ]
    write(tmp_path, "tests:\n" + "".join(cases))
    starts: list[EmbeddedServer] = []
    start = EmbeddedServer.start

    async def counted(server: EmbeddedServer) -> None:
        starts.append(server)
        await start(server)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddedServer, "start", counted)
        done = run()
    assert (done.code, done.out.splitlines()[-1]) == (0, "50 passed, 0 failed"), done
    assert len(starts) == 1
    assert not starts[0].data.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(starts[0].process.pid if starts[0].process else 0, 0)


def test_statements_need_no_server_and_no_other_workflow(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "no: rules", "Broken/graph_injection.yaml")
    write(tmp_path, f"tests: [{{name: a, events: [{ORDER}], statements: [order_placed/link]}}]")

    async def refused(_: EmbeddedServer) -> None:
        raise AssertionError("a server is started")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddedServer, "start", refused)
        done = run()
    assert done.code == 0, done


def test_settings_never_lead_to_a_server_of_a_deployment(run: Run, tmp_path: Path) -> None:
    write(tmp_path, f"tests: [{{name: a, events: [{ORDER}], graph: [{{nodes: 2}}]}}]")
    done = run(
        GRAPHWEFT_BUS_URL="redis://127.0.0.1:1", GRAPHWEFT_GRAPH_URL="redis://127.0.0.1:1", GRAPHWEFT_CONTEXT_OFF="*"
    )
    assert done.code == 0, done


def test_cases_are_selected_by_their_name(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "tests: [{name: A one, statements: []}, {name: two, statements: []}]")
    assert run("-k", "a ONE").out.splitlines()[-1] == "1 passed, 0 failed"
    assert run("--match", "orders_t").out.splitlines()[-1] == "2 passed, 0 failed"
    done = run("-k", "three")
    assert done.code == 2
    assert "no case matches 'three'" in done.err
    assert "A one" in done.err


def test_a_folder_without_tests_says_how_to_write_one(run: Run, tmp_path: Path) -> None:
    done = run()
    assert (done.code, done.out) == (2, "")
    assert "workflows holds no tests" in done.err
    name, _, example = done.err.partition("such as ")[2].partition(":\n")
    assert name == "workflows/Support/orders_test.yaml"
    (tmp_path / name).write_text(example)
    done = run()
    assert (done.code, done.out.splitlines()[-1]) == (0, "1 passed, 0 failed"), done


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("strange", "'strange' does not exist"),
        ("workflows/Support/graph_injection.yaml", "graph_injection.yaml:1:1: error file-name"),
    ],
)
def test_a_path_to_something_else_is_refused(run: Run, path: str, said: str) -> None:
    done = run(path)
    assert done.code == 2
    assert said in done.err


def test_all_errors_of_all_test_files_are_reported(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "tests: [{nam: a}]")
    write(tmp_path, "tests: [{name: ☃, workflow: Strange}, 5]", "Support/ünusual name_test.yaml")
    done = run("--json")
    assert (done.code, done.out) == (2, "")
    for part in (
        "workflows/Support/orders_test.yaml:1:10: error unknown-key",
        "workflows/Support/ünusual name_test.yaml:1:16: error unknown-workflow",
        "workflows/Support/ünusual name_test.yaml:1:39: error wrong-type",
    ):
        assert part in done.err


def test_rules_with_errors_and_refused_queries_stop_the_tests(run: Run, tmp_path: Path) -> None:
    write(tmp_path, f"tests: [{{name: a, events: [{ORDER}]}}]")
    write(tmp_path, RULES.replace("datetime()\n", "unknown()\n"), "Support/graph_injection.yaml")
    done = run()
    assert done.code == 2
    assert "workflows/Support/graph_injection.yaml:10:38: error server-refused" in done.err
    write(tmp_path, "mutation_rules: 5", "Support/graph_injection.yaml")
    done = run()
    assert done.code == 2
    assert "workflows/Support/graph_injection.yaml:1:17: error wrong-type" in done.err


def test_rules_extend_others_as_always(run: Run, tmp_path: Path) -> None:
    write(tmp_path, RULES, "_shared/base.yaml")
    write(tmp_path, 'extends: "../_shared/base.yaml"', "Support/graph_injection.yaml")
    write(
        tmp_path, f"tests: [{{name: a, workflow: Support, events: [{ORDER}], graph: [{{nodes: 2}}]}}]", "all_test.yaml"
    )
    assert run().code == 0


def test_memories_are_applied_and_found(run: Run, tmp_path: Path) -> None:
    rules = """
  - name: memories
    agents: ["*"]
    queries:
      - id: memories
        search: {memory: {user_id: $workflow.user_id}, query: $context.question}
        inject_as: memories
"""
    write(tmp_path, RULES + rules, "Support/graph_injection.yaml")
    write(
        tmp_path,
        """\
tests:
  - name: memories
    events:
      - {type: memory.add, user: ann, data: {user_id: ann, messages: [{role: user, text: "I like green tea"}]}}
    statements: []
    context:
      - {agent: a, user: ann, context: {question: tea}, contains: green tea}
      - {agent: a, user: bob, context: {question: tea}, excludes: green tea}
      - {agent: a, user: ann, empty: true, missing: [memories]}
""",
    )
    done = run()
    assert done.code == 0, done


def test_a_server_that_ends_stops_the_tests(run: Run, tmp_path: Path) -> None:
    write(tmp_path, f"tests: [{{name: a, events: [{ORDER}]}}]")
    start, refuse_wrong_queries = EmbeddedServer.start, query_check.refuse_wrong_queries

    servers: list[EmbeddedServer] = []

    async def started(server: EmbeddedServer) -> None:
        await start(server)
        servers.append(server)

    async def killed(graph: Any, parts: Any) -> None:
        process = servers[0].process
        assert process is not None
        process.kill()
        await refuse_wrong_queries(graph, parts)  # raises before the end of the process is known

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddedServer, "start", started)
        patch.setattr(query_check, "refuse_wrong_queries", killed)
        done = run()
    assert done.code == 2
    assert "the server of the tests ended with code -9" in done.err
