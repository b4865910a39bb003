"""``python -m benchmarks.recall``: what it reads, and what it finds by the real workers and search."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.plain_search import InMemory, by_ranks, plain_words

from graphweft_workers.evaluation.locomo import memories_of, read

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests/fixtures/recall/conversations.json"


def sample(*evidence: str, **more: Any) -> dict[str, Any]:
    turns = [{"speaker": "Ann", "dia_id": "D1:1", "text": "one"}, {"speaker": "Bob", "dia_id": "D1:2", "text": "two"}]
    asked = {"question": "which?", "answer": "that", "evidence": list(evidence), "category": 1}
    sessions = {
        "speaker_a": "Ann", "speaker_b": "Bob",
        "session_2_date_time": "12:05 am on 2 May, 2024", "session_2": [turns[0] | {"dia_id": "D2:1"}],
        "session_1_date_time": "1:56 pm on 1 May, 2024", "session_1": turns,
        "session_3_date_time": "1:56 pm on 3 May, 2024",
    }  # fmt: skip
    return {"sample_id": "s", "conversation": sessions | more, "qa": [asked]}


def written(folder: Path, *samples: Any) -> Path:
    file = folder / "conversations.json"
    file.write_text(json.dumps(samples))
    return file


@pytest.mark.parametrize(
    ("evidence", "turns"),
    [
        (["D1:1", "D2:1"], {"D1:1", "D2:1"}),
        (["D1:2; D2:1"], {"D1:2", "D2:1"}),
        (["D:2:01 D1:1"], {"D2:1", "D1:1"}),
        (["D1:1", "D7:7", "D"], {"D1:1"}),
    ],
)
def test_evidence_is_what_the_conversation_has(tmp_path: Path, evidence: list[str], turns: set[str]) -> None:
    [conversation] = read(written(tmp_path, sample(*evidence)))
    assert [question.evidence for question in conversation.questions] == [turns]


def test_a_question_without_evidence_is_counted_and_left_out(tmp_path: Path) -> None:
    [conversation] = read(written(tmp_path, sample("D9:9")))
    assert (conversation.questions, conversation.asked) == ((), 1)


def test_each_session_becomes_one_event_in_the_order_of_time(tmp_path: Path) -> None:
    [conversation] = read(written(tmp_path, sample("D1:1")))
    made = list(memories_of(conversation, "app"))
    assert [list(ids.values()) for _, ids in made] == [["D1:1", "D1:2"], ["D2:1"]]
    event = made[0][0]
    assert (event.appid, event.chatid, event.data["user_id"], event.data["thread_id"]) == ("app", "s", "s", "s")
    assert [
        (message["role"], message["message_id"], message["author_name"], message["time"])
        for message in event.data["messages"]
    ] == [
        ("user", "D1:1", "Ann", "2024-05-01T13:56:00+00:00"),
        ("assistant", "D1:2", "Bob", "2024-05-01T13:56:01+00:00"),
    ]


@pytest.mark.parametrize("broken", [{}, {"sample_id": "s"}, sample("D1:1", session_1_date_time="yesterday"), [1]])
def test_another_format_is_refused(tmp_path: Path, broken: Any) -> None:
    with pytest.raises(ValueError, match="not in the format of locomo10"):
        read(written(tmp_path, broken))


def test_what_stands_beside_our_search_is_exact() -> None:
    texts = {
        "0": "of all that is here one thing alone is red", "a": "the red dog", "b": "a red, red car", "c": "no colour",
        "d": "red red red red red red red red red", "e": "your dog barks loudly",
    }  # fmt: skip
    vectors = {"a": [1.0, 0.0], "b": [1.0, 1.0], "c": [-2.0, 0.0]}
    search = InMemory(texts, vectors, plain_words)
    assert search.by_words(["red"], 5) == ["d", "b", "a", "0"]
    # A rare word says more than a frequent one, however often that is repeated.
    assert search.by_words(["red", "dog", "dog"], 4) == ["a", "e", "d", "b"]
    assert search.by_words(["green"], 5) == []
    assert search.by_vector([2.0, 0.1], 2) == ["a", "b"]
    assert by_ranks([["a", "b"], ["b", "c"]], 2) == ["b", "a"]


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        (sys.executable, "-m", *arguments),
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.long
def test_what_says_its_own_end_is_known_to_be_over(tmp_path: Path) -> None:
    right = run(tmp_path, "benchmarks.expiry")["right"]
    assert (right["en ended"], right["de ended"]) == ("22 of 22", "20 of 20")
    assert (right["en holds"], right["en kept"], right["de kept"]) == ("54 of 54", "8 of 8", "7 of 7")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    arguments = ("benchmarks.recall", str(FILE), "--embedder", "hash:128", "--json")
    return run(tmp_path_factory.mktemp("recall"), *arguments)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.long
class TestReport:
    """One run on conversations of our own: two, of 60 turns and 22 questions each."""

    def test_every_turn_is_remembered_and_every_question_asked(self, report: dict[str, Any]) -> None:
        assert (report["conversations"], report["turns"], report["questions"]) == (2, 120, 44)
        assert (report["without_evidence"], report["embedder"]) == (0, "hash:128")
        for figures in report["searches"].values():
            assert figures["questions"] == 44
            assert sum(category["questions"] for category in figures["categories"].values()) == 44
            assert 0 < figures["ms"]["p50"] <= figures["ms"]["p99"]

    def test_the_graph_finds_no_less_than_an_exact_search_in_memory(self, report: dict[str, Any]) -> None:
        searches = report["searches"]
        # Of vectors that are equal to the fifth decimal another one may come first.
        for ours, exact, tolerance in (
            ("fulltext", "in memory: BM25, our terms", 1e-9), ("vector", "in memory: cosine", 0.03),
        ):  # fmt: skip
            for kind in ("recall", "all"):
                for most, share in searches[exact][kind].items():  # the graph puts turns that only ask behind others
                    assert searches[ours][kind][most] >= share - tolerance, (ours, kind, most)

    def test_both_kinds_together_find_more_than_half(self, report: dict[str, Any]) -> None:
        hybrid = report["searches"]["hybrid"]
        assert 0.5 < hybrid["recall"]["5"] <= hybrid["recall"]["10"] <= hybrid["recall"]["20"]
        assert hybrid["all"]["20"] <= hybrid["recall"]["20"]

    def test_the_default_finds_answers_that_share_no_word_with_the_question(self, report: dict[str, Any]) -> None:
        searches = report["searches"]
        assert searches["default, no embedder"]["recall"]["10"] > searches["fulltext"]["recall"]["10"]
