"""``graphweft eval``: what it measures of a real responder, what it refuses, and its bounds and comparisons."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from tests.edges.test_cli_memory import Up
from tests.services.waiting import until_sync

from graphweft.transports.embedded import embedded_url
from graphweft_workers.wiring.second_graph import SCRATCH

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
CONVERSATIONS = ROOT / "tests/fixtures/recall/conversations.json"
LONG = "The tour began at the harbour. " * 60 + "Then the guide showed us the amber room. " + "We had lunch. " * 60
SAID = [
    {"message_id": "m1", "time": "2026-01-01T10:00:00Z", "text": "I am allergic to nuts."},
    {"message_id": "m2", "time": "2026-01-02T10:00:00Z", "text": "My cat lives in Rome with my cat sitter."},
    {"message_id": "m3", "time": "2026-02-02T10:00:00Z", "text": "We are all in Paris now."},
    {"message_id": "m4", "time": "2026-03-02T10:00:00Z", "role": "assistant", "text": LONG},
]
QUESTIONS = """
questions:
  - {question: "Which cake has no nuts?", user: ada, expect: m1, tags: food}
  - {question: "Where does my cat live?", user: ada, contains: Paris, stale: Rome, tags: [home, cat]}
  - {question: "Who showed us the amber room?", user: ada, expect: m4}
  - {question: "What did the president say about tariffs?", user: ada, nothing: true}
"""
NOTE = {
    "specversion": "1.0", "id": "n1", "source": "/notes", "type": "note.made", "appid": "acme", "chatid": "ada",
    "workflow": "default", "data": {"text": "We are all in Paris now."},
}  # fmt: skip
OTHER = """
version: "1.0"
mutation_rules:
  - name: said
    events: ["note.made"]
    mutations:
      - id: said
        cypher: "MERGE (n:Said {text: $text})"
        params: {text: $event.text}
injection_rules:
  - name: said
    agents: ["*"]
    queries:
      - id: said
        cypher: "MATCH (n:Said) RETURN n.text AS text"
        inject_as: said
        format: markdown
"""
PATIENT = ("--budget-ms", "60000")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("eval"))
    lines = "".join(json.dumps({"role": "user", **each}) + "\n" for each in SAID)
    running.ok("memory", "add", "--app", "acme", "--user", "ada", "--wait", "--file", "-", stdin=lines)
    running.ok("emit", "-", "--wait", stdin=json.dumps(NOTE) + "\n")
    (running.folder / "q.yaml").write_text(QUESTIONS)
    (running.folder / "m.yaml").write_text('questions:\n  - {question: "nuts?", user: ada, tags: food, expect: m9}\n')
    (running.folder / "words.yaml").write_text('questions:\n  - {question: "nuts?", user: ada, contains: nuts}\n')
    yield running
    running.stop()


def measured(up: Up, *arguments: str) -> Any:
    return up.json("eval", "q.yaml", "--app", "acme", *PATIENT, *arguments)


def scores(found: Any, way: str) -> list[Any]:
    return [each["scores"][way] for each in found["questions"]]


def test_a_search_and_the_rules_are_measured_by_what_a_responder_gives(up: Up) -> None:
    found = measured(up)
    nuts, cat, tour, tariffs = scores(found, "recall")
    assert (nuts["recall@5"], nuts["block"], nuts["quality"], nuts["fault"]) == (1, 1, 1, None)
    assert (cat["recall@20"], cat["block"], cat["stale"], cat["quality"]) == (0, 0, 1, -1), "Rome alone is found"
    assert (tour["recall@5"], tour["block"]) == (1, 1), "the block has the passage that fits"
    assert (tariffs["nothing"], tariffs["quality"], tariffs["tokens"]) == (1, 1, 0)
    assert "empty" not in tariffs
    nuts, cat, tour, tariffs = scores(found, "context")
    assert all("recall@5" not in each for each in (nuts, cat, tour, tariffs))
    assert (cat["block"], cat["stale"], cat["quality"]) == (1, 0, 1), "the rules add the latest rows"
    assert (nuts["block"], tour["block"], tariffs["nothing"]) == (1, 1, 1)
    assert 0 < tour["tokens"] <= 900
    assert 0 < nuts["labels"] < 1
    figures = found["figures"]["recall"]
    assert (figures["recall@10"]["questions"], figures["recall@10"]["value"]) == (3, pytest.approx(2 / 3))
    assert figures["recall@10"]["low"] < 2 / 3 < figures["recall@10"]["high"]
    assert figures["p50_ms"]["value"] <= figures["p99_ms"]["value"]
    assert [*found["tags"]] == ["cat", "food", "home"]


def test_people_read_tables_and_what_was_not_found(up: Up) -> None:
    said = up.ok("eval", "run", "q.yaml", "--app", "acme", *PATIENT)
    assert "4 questions to the app acme" in said
    assert "evidence in the first 10 rows" in said
    assert "Not, or not wholly answered" in said
    assert "Where does my cat live?" in said


def test_a_bound_that_is_not_kept_exits_with_a_code_of_its_own(up: Up) -> None:
    bounds = ("--fail-under", "recall@10=0.6, empty=0")
    assert measured(up, *bounds)["failures"] == []
    done = up.run("eval", "q.yaml", "--app", "acme", *PATIENT, "--fail-under", "recall@10=0.7,stale=0.5")
    assert done.returncode == 3
    said = " ".join(done.stderr.split())
    assert "recall@10 by recall is 0.6667, and should be at least 0.7" in said
    assert "stale by recall is 1, and should be at most 0.5" in said


def test_an_earlier_run_is_compared_question_by_question(up: Up) -> None:
    before = measured(up)
    before["questions"][1]["scores"]["recall"]["quality"] = 1.0
    (up.folder / "before.json").write_text(json.dumps(before))
    found = measured(up, "--against", "before.json")["compared"]
    assert found["ways"]["recall"]["verdict"] == "better 0, worse 1: may be chance"
    assert found["ways"]["context"]["verdict"] == "better 0, worse 0: no difference"
    assert [(each["question"], each["before"], each["now"]) for each in found["changes"]] == [
        ("Where does my cat live?", 1.0, -1.0)
    ]
    said = up.ok("eval", "q.yaml", "--app", "acme", *PATIENT, "--against", "before.json")
    assert "recall: better 0, worse 1: may be chance (3 the same" in said


def test_two_settings_are_compared_in_one_run(up: Up) -> None:
    found = measured(up, "--compare", "max_tokens=1,index_type=vector")
    compared = found["compared"]
    assert compared["ways"]["recall"]["verdict"] == "better 1, worse 3: may be chance", "nothing is better than Rome"
    assert compared["ways"]["context"]["verdict"] == "better 0, worse 0: no difference"
    assert found["figures"]["recall"]["empty"]["value"] == 0, "of the options as given"
    assert compared["figures"]["recall"]["empty"] == {"before": 0, "now": 1}
    assert "p50_ms" not in compared["figures"]["recall"], "the first run warms caches"
    done = up.run("eval", "q.yaml", "--app", "acme", *PATIENT, "--compare", "index_type=vector,agent=other")
    assert "Of 4 questions: before as given, now with index_type=vector,agent=other" in done.stdout
    assert "by recall with index_type=vector,agent=other: invalid_request 4" in " ".join(done.stderr.split())


def scratch_graphs(up: Up) -> list[str]:
    with redis.Redis.from_url(embedded_url(up.folder / ".graphweft")) as server:
        names = cast("list[bytes]", server.execute_command("GRAPH.LIST"))
    return [name.decode() for name in names if SCRATCH.encode() in name]


@pytest.fixture
def other_rules(up: Up) -> Iterator[str]:
    folder = up.folder / "other/default"
    folder.mkdir(parents=True)
    (folder / "graph_injection.yaml").write_text(OTHER)
    yield "other"
    shutil.rmtree(up.folder / "other")


def test_other_rules_are_compared_on_a_graph_that_they_make(up: Up, other_rules: str) -> None:
    asked = ("eval", "q.yaml", "--app", "acme", *PATIENT, "--compare", f"rules={other_rules}", "--json")
    compared = json.loads(up.ok(*asked, apart=True))["compared"]
    assert compared["figures"]["context"]["block"] == {"before": 1, "now": pytest.approx(1 / 3)}, "Paris alone"
    assert compared["ways"]["recall"]["verdict"] == "better 0, worse 0: no difference"
    assert scratch_graphs(up) == []
    assert "'rules' has no value" in refused(up, "q.yaml", "--app", "acme", "--compare", "rules")
    (up.folder / "other/default/graph_injection.yaml").write_text(OTHER.replace("MERGE (n:Said", "MERGE (n:Said {"))
    assert "graph_injection.yaml:" in refused(up, "q.yaml", "--app", "acme", "--compare", f"rules={other_rules}")
    assert "'nowhere' does not exist" in refused(up, "q.yaml", "--app", "acme", "--compare", "rules=nowhere")
    assert scratch_graphs(up) == []


def test_an_interrupted_comparison_leaves_no_graph(up: Up, other_rules: str) -> None:
    (up.folder / "many.yaml").write_text("questions:\n" + '  - {question: "nuts?", user: ada, contains: nuts}\n' * 500)
    process = subprocess.Popen(
        up.command("eval", "many.yaml", "--app", "acme", "--compare", f"rules={other_rules}"),
        cwd=up.folder, env=up.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until_sync(lambda: scratch_graphs(up))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, "Traceback" in said) == (130, False), said
    assert scratch_graphs(up) == []


def refused(up: Up, *arguments: str) -> str:
    done = up.run("eval", *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    return " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("q.yaml", "--app", "acme", "--fail-under", "recal@10=1"), "no metric (did you mean 'recall@10'?"),
        (("q.yaml", "--app", "acme", "--fail-under", "empty"), "'empty' has no number: write empty=0.6"),
        (("q.yaml", "--app", "acme", "--fail-under", "empty=nan"), "'empty=nan' has no number"),
        (("q.yaml", "--app", "acme", "--against", "q.yaml"), "not what `graphweft eval --json` writes"),
        (("q.yaml", "--app", "acme", "--against", "b", "--compare", "agent=b"), "give one of them"),
        (("q.yaml", "--app", "acme", "--compare", "agnet=b"), "no setting (did you mean 'agent'?)"),
        (("q.yaml", "--app", "acme", "--compare", "max_tokens=0"), "has no number from 1 on: write max_tokens=300"),
        (("q.yaml", "--app", "acme", "--compare", "index_type=x"), "is none of vector, fulltext, hybrid"),
        (("q.yaml", "--app", "acme", "--compare", "agent="), "'agent=' has no value: write agent=NAME"),
        (("q.yaml", "--app", "acme", "--from", "c.json"), "give either a file of questions, or --from"),
        (("--app", "acme"), "give either a file of questions, or --from"),
        (("q.yaml", "--app", "acme", "--publish"), "give --from too"),
        (("--from", "q.yaml", "--app", "acme"), "q.yaml is not in the format of locomo10.json"),
        (("--from", "nowhere.json", "--app", "acme"), "nowhere.json cannot be read: No such file"),
        (("q.yaml", "--app", "acme", "--workflow", "Nobody"), "no rules answer the agent 'assistant' in the workflow"),
        (("m.yaml", "--app", "acme"), "m.yaml:2:56: error unknown-message: the message 'm9' is not in the memory of"),
        (("q.yaml", "--app", "acmme"), "'acmme' has no graph, so it has no memory (did you mean 'acme'?): apps"),
        (("words.yaml", "--app", "globex"), "'globex' has no graph, so it has no memory: apps with one are acme"),
        (("collect", "--app", "nobody"), "'nobody' has no graph, so it has no memory: apps with one are acme"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_what_to_do(up: Up, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(up, *arguments)


def test_each_fault_of_a_file_is_named_at_its_place(up: Up) -> None:
    (up.folder / "wrong.yaml").write_text(
        "questions:\n- question: a\n  user: b\n- queston: c\n  user: d\n  nothing: true\n"
    )
    said = refused(up, "wrong.yaml", "--app", "acme")
    assert "wrong.yaml:2:3: error missing-key" in said
    assert "wrong.yaml:4:3: error unknown-key: a question has no key 'queston' (did you mean 'question'?)" in said


def test_no_answer_to_the_first_question_ends_the_run(up: Up) -> None:
    """Else each question would wait for its whole budget."""
    said = refused(up, "q.yaml", "--app", "acme", "--budget-ms", "1")
    assert "no responder answers (timeout" in said


@pytest.mark.long
def test_conversations_in_the_format_of_locomo_are_published_and_asked(up: Up) -> None:
    unpublished = refused(up, "--from", str(CONVERSATIONS), "--app", "scratch")
    assert "the app 'scratch' has no graph, so it has no memory" in unpublished
    asked = ("--from", str(CONVERSATIONS), "--app", "scratch", *PATIENT)
    found = up.json("eval", "run", *asked, "--publish")
    assert len(found["questions"]) == 44
    assert {*found["tags"]} == {f"category {number}" for number in range(1, 6)}
    assert found["figures"]["recall"]["recall@10"]["value"] > 0.6
    assert found["figures"]["context"]["empty"]["value"] == 0
    again = up.json("eval", "run", *asked, "--publish")
    assert [each["scores"]["recall"]["quality"] for each in again["questions"]] == [
        each["scores"]["recall"]["quality"] for each in found["questions"]
    ]


@pytest.mark.long
def test_questions_of_users_are_proposed_with_rows_that_may_answer_them(up: Up) -> None:
    said = [
        {"role": "user", "text": "My sister is called Grace."}, {"role": "user", "text": "What is my sister called?"},
        {"role": "assistant", "text": "Which sister?"}, {"role": "user", "text": "What is  my sister called?"},
        {"role": "user", "text": 'Who said "no: #1"\u2028?'},
    ]  # fmt: skip
    lines = "".join(json.dumps(each) + "\n" for each in said)
    up.ok("memory", "add", "--app", "asked", "--user", "bob", "--wait", "--file", "-", stdin=lines)
    up.ok("memory", "add", "--app", "asked", "--user", "eve", "--wait", "Where is my hat?")
    of_bob = ("--app", "asked", "--user", "bob", *PATIENT)
    found = up.json("eval", "collect", *of_bob)
    assert {each["question"]: [row["text"] for row in each["candidates"]] for each in found} == {
        "What is my sister called?": ["My sister is called Grace."], 'Who said "no: #1" ?': []
    }  # fmt: skip
    text = up.ok("eval", "collect", *of_bob)
    (up.folder / "asked.yaml").write_text(text)
    faults = refused(up, "asked.yaml", "--app", "asked")
    assert faults.count("error wrong-type: expect is empty: nobody has said yet") == 2
    completed = (
        text.replace("      # - ", "      - ")
        .replace("expect:\n", "nothing: true\n")
        .replace("nothing: true\n      -", "expect:\n      -")
    )
    (up.folder / "asked.yaml").write_text(completed)
    measured = up.json("eval", "asked.yaml", "--app", "asked", *PATIENT)
    by_question = {each["question"]: each["scores"]["recall"] for each in measured["questions"]}
    assert by_question["What is my sister called?"]["recall@5"] == 1
    assert len(up.json("eval", "collect", "--app", "asked", "--limit", "2", *PATIENT)) == 2
    up.ok("memory", "add", "--app", "silent", "--user", "bob", "--wait", "I like tea.")
    done = up.run("eval", "collect", "--app", "silent", *PATIENT)
    assert (done.returncode, done.stdout) == (0, "")
    assert "no question is among the latest 5,000 memories" in " ".join(done.stderr.split())


def test_without_servers_the_file_is_checked_first(tmp_path: Path) -> None:
    from tests.edges.test_cli_memory import run

    (tmp_path / "q.yaml").write_text(QUESTIONS.replace("nothing: true", "nothing: false"))
    done: subprocess.CompletedProcess[str] = run(("eval", "q.yaml", "--app", "acme"), {"PATH": "/usr/bin"}, tmp_path)
    assert done.returncode == 2
    assert "q.yaml:6:81: error bad-value: nothing is false" in done.stderr
    (tmp_path / "q.yaml").write_text(QUESTIONS)
    done = run(("eval", "q.yaml", "--app", "acme"), {"PATH": "/usr/bin"}, tmp_path)
    assert "no embedded server runs on the data folder" in done.stderr
