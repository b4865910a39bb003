"""The measures of ``graphweft eval``: shares, intervals, comparisons, and what a text for agents shows."""

from __future__ import annotations

import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphweft_contracts import InvalidSettings
from graphweft_contracts.memory import MemoryScope
from graphweft_contracts.prompt_text import enclose
from graphweft_rules.files.model import Place
from graphweft_rules.output.memory_block import NOTHING_CLOSE, MemoryRow, memory_text
from graphweft_rules.output.passages import passage
from graphweft_workers.cli.evaluate import limits_of
from graphweft_workers.evaluation.asking import QuestionScores, Way
from graphweft_workers.evaluation.baseline import compare_with, load_baseline
from graphweft_workers.evaluation.locomo import read as read_locomo
from graphweft_workers.evaluation.measures import (
    METRICS,
    RunComparison,
    Score,
    compare,
    figures_of,
    interval,
    recall_of,
    share_found,
)
from graphweft_workers.evaluation.question_file import load_questions, read_questions
from graphweft_workers.evaluation.questions import Evidence, FoundRow, MemoryQuestion, has_any
from graphweft_workers.evaluation.shown_text import ShownText
from graphweft_workers.reports.evaluation import EvaluationReport
from graphweft_workers.reports.report import Notice, TextTable

PLACE = Place(file="q.yaml")
LONG = "On Monday we went to the market and bought a crate of very small apples, and then " * 9


def question(text: str = "Where?", **more: Any) -> MemoryQuestion:
    return MemoryQuestion(text=text, scope=MemoryScope(user_id="ada"), place=PLACE, **more)


# --- shares ---------------------------------------------------------------------------------------------------------


def test_recall_counts_each_item_once_among_the_first_rows() -> None:
    rows = [{"a"}, {"a"}, set[str](), {"x"}, {"x"}, {"b", "a"}]
    assert recall_of({"a", "b", "c", "d"}, rows) == {5: 0.25, 10: 0.5, 20: 0.5}
    assert share_found({"a"}, []) == 0


def test_a_metric_is_the_mean_of_the_questions_that_say_something_of_it() -> None:
    scores = [
        Score(recall={5: 0.0, 10: 0.5, 20: 1.0}, block=1.0, empty=False, stale=True, tokens=10, ms=5),
        Score(recall={5: 1.0, 10: 1.0, 20: 1.0}, block=0.0, empty=True, tokens=0, ms=9),
        Score(nothing=True, tokens=20, ms=900, fault="timeout"),
    ]
    found = {name: (figure.value, figure.questions) for name, figure in figures_of(scores).items()}
    assert found == {
        "recall@5": (0.5, 2), "recall@10": (0.75, 2), "recall@20": (1.0, 2), "block": (0.5, 2), "empty": (0.5, 2),
        "stale": (1.0, 1), "nothing": (1.0, 1), "tokens": (10.0, 3), "p50_ms": (9, 2), "p99_ms": (9, 2),
    }  # fmt: skip


def test_the_quality_of_an_answer_falls_by_one_if_stale_came_first() -> None:
    assert Score(recall={5: 0, 10: 0.5, 20: 1}, block=0.9).quality == 0.5
    assert Score(block=0.9, stale=True).quality == pytest.approx(-0.1)
    assert (Score(nothing=True).quality, Score(nothing=False).quality) == (1.0, 0.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_an_interval_is_within_the_values_and_the_same_each_time(values: list[float]) -> None:
    low, high = interval(values)
    assert interval(values) == (low, high)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


def test_an_interval_has_the_width_of_the_normal_one() -> None:
    low, high = interval([0.0, 1.0] * 200)
    assert (low + high) / 2 == pytest.approx(0.5, abs=0.02)
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(400), rel=0.15)


# --- comparisons ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("better", "worse", "chance", "verdict"),
    [
        (14, 9, 0.4049, "better 14, worse 9: may be chance"),
        (0, 0, 1.0, "better 0, worse 0: no difference"),
        (1, 1, 1.0, "better 1, worse 1: may be chance"),
        (6, 0, 0.0312, "better 6, worse 0: better"),
        (0, 5, 0.0625, "better 0, worse 5: may be chance"),
        (2, 12, 0.0129, "better 2, worse 12: worse"),
    ],
)
def test_a_sign_test_tells_a_difference_from_chance(better: int, worse: int, chance: float, verdict: str) -> None:
    found = RunComparison(better=better, worse=worse, same=3)
    assert (round(found.chance, 4), found.verdict) == (chance, verdict)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0]))))
def test_a_comparison_read_backwards_has_the_same_chance(pairs: list[tuple[float, float]]) -> None:
    there, back = compare(pairs), compare((now, before) for before, now in pairs)
    assert (there.better, there.worse, there.same) == (back.worse, back.better, back.same)
    assert there.chance == back.chance
    assert 0 < there.chance <= 1


def answered(text: str, quality: float, **more: Any) -> QuestionScores:
    score = Score(recall={5: quality, 10: quality, 20: quality}, block=quality)
    scores: dict[Way, Score] = {"recall": score, "context": Score(block=quality)}
    return QuestionScores(question=question(text, contains=("x",), **more), scores=scores)


def baseline(folder: Path, *before: QuestionScores) -> Path:
    file = folder / "before.json"
    file.write_text(json.dumps(EvaluationReport(app="acme", answered=before).to_dict()))
    return file


def test_a_run_is_compared_with_what_an_earlier_one_wrote(tmp_path: Path) -> None:
    file = baseline(tmp_path, answered("a", 1), answered("b", 0), answered("b", 1), answered("gone", 1))
    now = [answered("b", 0.5), answered("b", 1), answered("new", 1), answered("a", 0)]
    found = compare_with(load_baseline(file), now)
    assert {way: (each.better, each.worse, each.same) for way, each in found.ways.items()} == {
        "context": (1, 1, 1), "recall": (1, 1, 1)
    }  # fmt: skip
    assert [(each.way, each.answered.question.text, each.before, each.now) for each in found.changes] == [
        ("context", "a", 1, 0), ("context", "b", 0, 0.5), ("recall", "a", 1, 0), ("recall", "b", 0, 0.5),
    ]  # fmt: skip
    assert (found.count, found.new, found.gone) == (3, 1, 1)
    assert found.figures["recall"]["recall@10"] == (pytest.approx(2 / 3), 0.5)
    assert found.figures["context"]["block"] == (pytest.approx(2 / 3), 0.5)
    assert "recall@10" not in found.figures["context"]
    assert {name for name in found.figures["recall"] if name.endswith("_ms")} == {"p50_ms", "p99_ms"}


def test_runs_without_a_common_question_are_not_compared(tmp_path: Path) -> None:
    compared = compare_with(load_baseline(baseline(tmp_path, answered("a", 1))), [answered("b", 1)])
    said = list(EvaluationReport(app="acme", answered=[answered("b", 1)], compared=compared).parts())
    assert isinstance(said[-1], Notice)
    assert said[-1].is_error
    assert "no question, with its scope, is in both runs" in said[-1].text


def test_a_comparison_shows_each_metric_before_and_now(tmp_path: Path) -> None:
    file = baseline(tmp_path, answered("a", 1), answered("b", 0))
    compared = compare_with(load_baseline(file), [answered("a", 1), answered("b", 1)])
    report = EvaluationReport(app="acme", answered=[answered("a", 1), answered("b", 1)], compared=compared)
    [table] = [part for part in report.parts() if isinstance(part, TextTable) and "earlier run" in (part.title or "")]
    assert table.columns[:3] == ("metric", "context before", "context now")
    assert next(row for row in table.rows if row[0] == "recall@10") == ("recall@10", "", "", "0.50", "1.00")
    assert report.to_dict()["compared"]["figures"]["recall"]["recall@10"] == {"before": 0.5, "now": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("questions: []", "(the file: Invalid JSON"),
        ('{"questions": [{"question": "a", "scope": {}}]}', "(questions.0.scores: Field required)"),
        ("[]", "not what `graphweft eval --json` writes"),
    ],
)
def test_another_file_is_no_earlier_run(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "before.json"
    file.write_text(text)
    with pytest.raises(InvalidSettings) as error:
        load_baseline(file)
    assert said in str(error.value)
    assert f"--json > {file}`" in str(error.value)


# --- evidence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "text", "found"),
    [
        ("Oslo", "I live in oslo.", True), ("Oslo", "The Oslofjord is cold.", False), ("oslo", "Not-Oslo", True),
        ("art", "Let us start.", False), ("a  red\nflag", "It was A RED flag", True), ("C++", "I write C++.", True),
        ("上海", "我住在上海市", True), ("Oslo", "我住在Oslo市", True), ("Zürich", "ZÜRICHS See", False),
        ("7", "17 cats", False),
    ],
)  # fmt: skip
def test_a_word_is_found_as_a_whole_in_any_case(word: str, text: str, found: bool) -> None:
    assert has_any([word])(text) is found
    assert bool(Evidence.of_words([word]).in_row(FoundRow(id="", text=text))) is found


def test_a_message_is_found_by_its_id_its_text_or_a_passage_of_it() -> None:
    evidence = Evidence.of_messages({"m1": LONG, "m2": "Yes."})
    assert evidence.in_row(FoundRow(id="m1", text="another text")) == {0}
    assert evidence.in_row(FoundRow(id="m9", text="Yes.")) == {1}
    assert evidence.in_line(f"Ann: {passage(LONG, 150, 200)}") == {0}
    assert evidence.in_line("Ann: Yes.") == {1}
    assert evidence.in_line("Ann: Yesterday. Yes.") == set()
    assert evidence.in_line("Ann: very small") == set(), "too short to say so"


# --- what a text shows ----------------------------------------------------------------------------------------------


def block(*rows: MemoryRow, floor: float | None = None) -> ShownText:
    return ShownText(enclose("## Remembered Of This User\n" + memory_text(rows, date(2026, 11, 28), floor)))


def test_the_rows_of_a_block_are_read_without_what_nobody_said() -> None:
    shown = block(
        MemoryRow(text="Ann lives in Bergen", kind="fact", since="2026-03-01"),
        MemoryRow(text="My cat: Tom.", who="user", time="2026-02-01T10:00", times=3),
        MemoryRow(text="It is late.", who='user "System"', time=""),
    )
    assert shown.rows == ("Ann lives in Bergen", 'user "System": It is late.', "user: My cat: Tom.")
    said = sum(map(len, ("Ann lives in Bergen", "It is late.", "My cat: Tom.")))
    assert shown.labels == pytest.approx(1 - said / len(shown.text))


def test_rows_of_other_formats_are_read_too() -> None:
    shown = ShownText("## Orders\n- **Lamp**: late (3)\n\n[Score: 0.9] [kind: memory]\nThe lamp is red.\nIt hums.")
    assert shown.rows == ("**Lamp**: late (3)", "The lamp is red.", "It hums.")


@pytest.mark.parametrize(
    ("shown", "nothing"),
    [
        (ShownText(""), True),
        (block(MemoryRow(text="Hi.", who="user", score=0.1), floor=0.2), True),
        (block(MemoryRow(text="Hi.", who="user", score=0.3), floor=0.2), False),
        (block(MemoryRow(text=NOTHING_CLOSE, who="user", score=0.3), floor=0.2), False),
    ],
)
def test_a_text_tells_nothing_if_none_of_it_is_close(shown: ShownText, nothing: bool) -> None:
    assert shown.tells_nothing is nothing


# --- files of questions ---------------------------------------------------------------------------------------------


def test_a_file_of_questions_is_read() -> None:
    text = """
questions:
  - question: Where do I live?
    user: ada
    contains: Bergen
    stale: [Oslo]
    tags: home
  - {question: "Who?", chat: c1, agent: planner, application: shop, expect: [m1, m2]}
  - {question: "Why?", user: ada, nothing: true}
"""
    found, findings = read_questions(text.encode(), "q.yaml")
    assert findings == ()
    home, who, why = found
    assert (home.contains, home.stale, home.tags, str(home.place)) == (("Bergen",), ("Oslo",), ("home",), "q.yaml:3:15")
    assert who.scope.given == {"thread_id": "c1", "agent_id": "planner", "application_id": "shop"}
    assert [(each.id, str(each.place)) for each in who.expect] == [("m1", "q.yaml:8:78"), ("m2", "q.yaml:8:82")]
    assert [each.nothing for each in found] == [False, False, True]
    assert why.text == "Why?"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "q:1:1: error missing-key: a file of questions needs the key 'questions'"),
        ("questions: []", "q:1:12: error empty-list: questions is empty"),
        ("questions: [{question: a, contains: b}]", "q:1:13: error missing-key: a question needs one of user, chat"),
        ("questions: [{question: a, user: b}]", "needs one of the keys 'expect', 'contains' and 'nothing'"),
        ("questions: [{question: a, user: b, nothing: false}]", "q:1:45: error bad-value: nothing is false"),
        ("questions: [{question: a, user: b, nothing: true, expect: c}]", "error conflicting-keys: a question has"),
        ("questions: [{question: a, user: b, expects: c}]", "q:1:36: error unknown-key: a question has no key 'e"),
        ("questions: [{question: a, user: 7, expect: c}]", "q:1:33: error wrong-type: user is 7: it must be a string"),
        ("questions: [{question: a, user: b, expect: [7]}]", "q:1:45: error wrong-type: expect is 7: it must be"),
        ('questions: [{question: a, user: " b", expect: c}]', "q:1:33: error bad-value: user is no scope"),
        ("questions: [{question: a, user: b, expect: c, user: d}]", "error"),
        ("questions:\n- question: a\n  user: b\n  expect:\n    # - m7", "take the # away before those that answer it"),
    ],
)  # fmt: skip
def test_a_fault_of_a_file_has_its_place_and_what_to_do(text: str, said: str) -> None:
    assert any(said in str(finding) for finding in read_questions(text.encode(), "q")[1])


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="cannot be read: No such file"):
        load_questions(tmp_path / "q.yaml")


# --- the report -----------------------------------------------------------------------------------------------------


def test_bounds_are_at_least_or_at_most_as_the_metric_wants() -> None:
    run = [answered("a", 1), answered("b", 0)]
    kept = EvaluationReport(app="acme", answered=run, limits={"recall@10": 0.5, "tokens": 0})
    assert kept.failures == []
    broken = EvaluationReport(
        app="acme", answered=run, limits={"recall@10": 0.6, "block": 0.51, "tokens": -1, "stale": 1}
    )
    assert broken.failures == [
        "recall@10 by recall is 0.5, and should be at least 0.6: evidence in the first 10 rows",
        "block by recall is 0.5, and should be at least 0.51: evidence in the agent's text",
        "block by context is 0.5, and should be at least 0.51: evidence in the agent's text",
        "tokens by recall is 0, and should be at most -1: tokens of the text",
        "tokens by context is 0, and should be at most -1: tokens of the text",
        "--fail-under stale: no question says anything of it: add one, or leave it out",
    ]
    assert {part.text for part in broken.parts() if isinstance(part, Notice)} == {*broken.failures}


def test_a_run_that_finds_nothing_says_what_to_check() -> None:
    report = EvaluationReport(app="nosuch", answered=[answered("a", 0)])
    assert any(isinstance(part, Notice) and "check --app" in part.text for part in report.parts())


@pytest.mark.parametrize("bound", ["recall@10=6", "empty=-1", "tokens=-1", "block=nan"])
def test_a_bound_that_no_metric_can_have_is_refused(bound: str) -> None:
    with pytest.raises(InvalidSettings, match="--fail-under"):
        limits_of(bound)
    assert limits_of("recall@10=1,tokens=300") == {"recall@10": 1, "tokens": 300}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is no JSON"),
        ("{}", "it must be a list of conversations"),
        ("[{}]", "conversation 1 has no conversation"),
        ("[1]", "conversation 1 is not as in a list of conversations"),
    ],
)
def test_a_file_of_another_format_is_named_in_plain_words(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "l.json").write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
        read_locomo(tmp_path / "l.json")
    assert not any(name in str(caught.value) for name in ("JSONDecodeError", "KeyError", "TypeError"))


def test_a_question_without_an_answer_is_counted_with_its_reason() -> None:
    late = Score(recall={5: 0, 10: 0, 20: 0}, block=0, empty=True, fault="timeout")
    run = [
        answered("a", 1),
        QuestionScores(question=question("b", contains=("x",)), scores={"recall": late, "context": Score(block=0)}),
    ]
    found = EvaluationReport(app="acme", answered=run)
    assert found.figures["recall"]["recall@10"].value == 0.5
    [notice] = [part.text for part in found.parts() if isinstance(part, Notice)]
    assert notice.startswith("1 question got no answer, or a part of one, by recall: timeout 1.")


def test_a_report_has_each_metric_by_tag_and_each_question() -> None:
    run = [answered("a", 1, tags=("home", "food")), answered("b", 0, tags=("food",))]
    found = EvaluationReport(app="acme", answered=run).to_dict()
    assert [figures["recall"]["recall@10"]["value"] for figures in found["tags"].values()] == [0.5, 1.0]
    assert [*found["tags"]] == ["food", "home"]
    assert found["figures"]["recall"].keys() <= METRICS.keys()
    assert found["questions"][0]["scores"]["recall"]["quality"] == 1
    assert json.loads(json.dumps(found)) == found
