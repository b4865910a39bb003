"""Memory and knowledge for agents of Microsoft Agent Framework: what is found, what is remembered, and what is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.plays import Play, Player, run_beside_up
from tests.services.runtime_environments import ROOT, RUNTIME_ENVIRONMENT_S

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)]

KNOWLEDGE = "## Context\nUse this if it helps to answer:\n\n[Score: 1.000]\ncakes"
MEMORIES = (
    "## Memories\nThis was said before:\n\n- user, 2026-02-01: I am allergic to nuts.\n- Baker, 2026-02-01: Noted."
)


@pytest.fixture(scope="module")
def play(player: Player) -> Play:
    return player("agent-framework")


def contents(found: dict[str, Any]) -> list[list[str]]:
    """Return the texts of the messages of each prompt, without the instructions."""
    return [[message["content"] for message in prompt[1:]] for _, prompt in found["prompts"]]


def test_what_was_said_in_one_session_is_found_in_another_one(play: Play) -> None:
    found = play("recalled")
    assert contents(found) == [
        [KNOWLEDGE, "I am allergic to nuts."],
        [KNOWLEDGE, MEMORIES, "Which cake?"],
    ]
    assert found["origins"] == [None, None, None, ["c1"], None]
    assert [search["text"] for search in found["searches"]] == ["I am allergic to nuts."] * 2 + ["Which cake?"] * 2
    knowledge, memory = found["searches"][2:]
    assert (knowledge["index_type"], knowledge["index_name"], knowledge["top_k"]) == ("fulltext", "chunks", 3)
    assert (memory["memory"]["user_id"], memory["index_type"], memory["top_k"]) == ("u1", "vector", 3)
    assert (knowledge["without_embedder"], memory["without_embedder"]) == (None, "latest")
    assert (found["stats"]["searches"], found["stats"]["missing_results"]) == (4, {})


def test_sessions_hold_a_number_and_nothing_of_what_was_found(play: Play) -> None:
    for state in play("recalled")["states"]:
        assert state["graphweft-memory"] == {"runs": 1}
        assert "## " not in str(state)


def test_a_search_waits_for_what_was_remembered_before(play: Play) -> None:
    found = play("recalled")
    assert [after for agent, after in found["asked"] if agent == "search"] == [None, None, None, "0:3"]


def test_a_run_that_is_repeated_remembers_its_question_once(play: Play) -> None:
    """Of a history that is handed over only the end is new; of a run that failed nothing was said."""
    memories = play("again")["memories"]
    said = [(message["text"], message["message_id"]) for event in memories for message in event["messages"]]
    assert said == [
        ("I am allergic to nuts.", "c1/1.in0"), ("Noted.", "c1/1.out0"),
        ("I am allergic to nuts.", "c1/1.in0"), ("Got it.", "c1/1.out0"),
        ("Now.", "c1/2.in0"), ("Fine.", "c1/2.out0"),
    ]  # fmt: skip
    assert memories[0]["id"] == memories[2]["id"]
    assert len({event["id"] for event in memories}) == 5


@pytest.mark.parametrize("way", ["hangs", "fails", "garbage"])
def test_a_bus_that_is_broken_changes_no_answer(play: Play, way: str) -> None:
    broken, without = play("recalled", way), play("recalled", "none")
    assert broken["stats"]["searches"] == 4
    assert sum(broken["stats"]["missing_results"].values()) == 4
    assert [broken[name] for name in ("answers", "prompts")] == [without[name] for name in ("answers", "prompts")]
    histories = [[state["in_memory"] for state in found["states"]] for found in (broken, without)]
    assert histories[0] == histories[1]


def test_memories_of_each_session_are_its_own(play: Play) -> None:
    found = play("threads", "each")
    scopes = [search["memory"]["thread_id"] for search in found["searches"]]
    assert scopes == ["c1", "c2", "c1", "c2"]
    told = [(event["thread_id"], event["messages"][0]["text"]) for event in found["memories"]]
    assert told == [
        ("c1", "one"), ("c1", "a"), ("c2", "two"), ("c2", "b"),
        ("c1", "three"), ("c1", "c"), ("c2", "four"), ("c2", "d"),
    ]  # fmt: skip
    assert ["one" in str(prompt) for prompt in contents(found)] == [True, False, True, False]


def test_bound_to_one_session_no_other_one_has_memories(play: Play) -> None:
    found = play("threads", "bound")
    assert {event["thread_id"] for event in found["memories"]} == {"c1"}
    assert [search["memory"]["thread_id"] for search in found["searches"]] == ["c1", "c1"]
    assert "the thread id is set already" in found["conflict"]


def test_nothing_is_searched_or_remembered_past_the_redaction(play: Play) -> None:
    redacted, withheld = play("recalled", "works", "redacted"), play("recalled", "works", "withheld")
    assert "nuts" not in str(redacted["memories"])
    assert [search["text"] for search in redacted["searches"]][-1] == "Which ***?"
    assert (withheld["memories"], withheld["searches"], withheld["events"]) == ([], [], [])


def test_capture_that_is_off_remembers_nothing_and_still_finds(play: Play) -> None:
    found = play("recalled", "works", "off")
    assert (found["memories"], len(found["searches"])) == ([], 4)


def test_options_that_can_never_work_are_refused(play: Play) -> None:
    found = play("refusals")
    assert found["kinds"] == [True, True]
    for said, wanted in zip(
        found["said"],
        (
            "ValueError: nothing to search", "ValueError: fulltext_index_name is required",
            "ValueError: index_type", "ValueError: retrieval_query does not return text",
            "ValueError: top_k must be at least 1",
            "ValueError: message_history_count must be at least 1", "ValueError: a memory needs a scope",
            "ValueError: user_id", "ValueError: memory_roles must be one or more of", "ValueError: memory_label",
            "ValueError: unknown option 'uri'", "ValueError: unknown option 'username'",
            "ValueError: unknown option 'password'", "ValueError: unknown option 'embedder'",
            "TypeError: unknown option 'topk' of GraphContextProvider",
        ),
        strict=True,
    ):  # fmt: skip
        assert said.startswith(wanted)


PAGE = (ROOT / "docs/runtimes/agent-framework.md").read_text("utf-8")


def block(language: str, first_line: str = "") -> str:
    [text] = re.findall(rf"```{language}\n({re.escape(first_line)}.*?)```", PAGE, re.DOTALL)
    return str(text)


def test_the_example_of_the_page_runs_as_printed(runtime_python: Callable[[str], Path], tmp_path: Path) -> None:
    """Two sessions through bus, worker and responder: the second prompt holds what was said and found in the first."""
    rules = tmp_path / "workflows/Travel/graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text(block("yaml"))
    (tmp_path / "travel.py").write_text(block("python", "# travel.py"))
    printed = run_beside_up(tmp_path, runtime_python("agent-framework"), "travel.py")
    assert re.sub(r"\d{4}-\d\d-\d\d", "2026-02-01", printed) == block("text")
