"""Memory and knowledge for agents of Microsoft Agent Framework."""

from __future__ import annotations

from typing import Any

import pytest
from tests.adapters.runner import RunScene, SceneRunner
from tests.services.runtime_environments import RUNTIME_ENVIRONMENT_S

from graphweft_contracts.prompt_text import enclose

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)]

KNOWLEDGE = "## Context\nUse this if it helps to answer:\n\n[Score: 1.000]\ncakes"
MEMORIES = "## Memories\nThis was said before:\n\n" + enclose(
    "- user, 2026-02-01: I am allergic to nuts.\n- Baker, 2026-02-01: Noted."
)


@pytest.fixture(scope="module")
def run_scene(scene_runner: SceneRunner) -> RunScene:
    return scene_runner("agent-framework")


def contents(found: dict[str, Any]) -> list[list[str]]:
    """Return the texts of the messages of each prompt, without the instructions and the context of rules."""
    return [
        [message["content"].partition("\n\n## Notes")[0] for message in prompt[1:]] for _, prompt in found["prompts"]
    ]


def test_messages_of_one_session_are_found_in_another(run_scene: RunScene) -> None:
    found = run_scene("recalled")
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


def test_sessions_keep_the_number_of_runs_and_no_search_result(run_scene: RunScene) -> None:
    for state in run_scene("recalled")["states"]:
        assert state["graphweft-memory"] == {"runs": 1}
        assert "## " not in str(state)


def test_a_search_waits_for_memories_of_earlier_turns(run_scene: RunScene) -> None:
    found = run_scene("recalled")
    assert [after for agent, after in found["asked"] if agent == "search"] == [None, None, None, "0:3"]


def test_a_repeated_run_remembers_its_question_once(run_scene: RunScene) -> None:
    """Only the last message of a history that the caller passes is new; a failed run is not remembered."""
    memories = run_scene("again")["memories"]
    texts = [(message["text"], message["message_id"]) for event in memories for message in event["messages"]]
    assert texts == [
        ("I am allergic to nuts.", "c1/1.in0"), ("Noted.", "c1/1.out0"),
        ("I am allergic to nuts.", "c1/1.in0"), ("Got it.", "c1/1.out0"),
        ("Now.", "c1/2.in0"), ("Fine.", "c1/2.out0"),
    ]  # fmt: skip
    assert memories[0]["id"] == memories[2]["id"]
    assert len({event["id"] for event in memories}) == 5


@pytest.mark.parametrize("way", ["hangs", "fails", "garbage"])
def test_a_broken_bus_changes_no_answer(run_scene: RunScene, way: str) -> None:
    broken, without = run_scene("recalled", way=way), run_scene("recalled", way="none")
    assert broken["stats"]["searches"] == 4
    assert sum(broken["stats"]["missing_results"].values()) == 4
    assert [broken[name] for name in ("answers", "prompts")] == [without[name] for name in ("answers", "prompts")]
    histories = [[state["in_memory"] for state in found["states"]] for found in (broken, without)]
    assert histories[0] == histories[1]


def test_each_session_has_its_own_memories(run_scene: RunScene) -> None:
    found = run_scene("threads each")
    scopes = [search["memory"]["thread_id"] for search in found["searches"]]
    assert scopes == ["c1", "c2", "c1", "c2"]
    remembered = [(event["thread_id"], event["messages"][0]["text"]) for event in found["memories"]]
    assert remembered == [
        ("c1", "one"), ("c1", "a"), ("c2", "two"), ("c2", "b"),
        ("c1", "three"), ("c1", "c"), ("c2", "four"), ("c2", "d"),
    ]  # fmt: skip
    assert ["one" in str(prompt) for prompt in contents(found)] == [True, False, True, False]


def test_a_provider_bound_to_a_session_ignores_other_sessions(run_scene: RunScene) -> None:
    found = run_scene("threads bound")
    assert {event["thread_id"] for event in found["memories"]} == {"c1"}
    assert [search["memory"]["thread_id"] for search in found["searches"]] == ["c1", "c1"]
    assert "the thread id is set already" in found["conflict"]


def test_redaction_applies_to_searches_and_memories(run_scene: RunScene) -> None:
    redacted, withheld = run_scene("recalled redacted"), run_scene("recalled withheld")
    assert "nuts" not in str(redacted["memories"])
    assert [search["text"] for search in redacted["searches"]][-1] == "Which ***?"
    assert (withheld["memories"], withheld["searches"], withheld["events"]) == ([], [], [])


def test_with_capture_off_searches_work_and_nothing_is_remembered(run_scene: RunScene) -> None:
    found = run_scene("recalled off")
    assert (found["memories"], len(found["searches"])) == ([], 4)


def test_options_that_can_never_work_are_refused(run_scene: RunScene) -> None:
    found = run_scene("refusals")
    assert found["kinds"] == [True, True]
    for error, wanted in zip(
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
        assert error.startswith(wanted)
