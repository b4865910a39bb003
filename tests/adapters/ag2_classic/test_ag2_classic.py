"""AG2 classic with its real package: the events of scripted conversations, and what reaches the model's prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.plays import PLANNER, WRITER, WRITER_FAILS, Play, Player, run_beside_up, said
from tests.services.runtime_environments import ROOT, RUNTIME_ENVIRONMENT_S

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)]


@pytest.fixture(scope="module")
def play(player: Player) -> Play:
    return player("ag2-classic")


@pytest.mark.parametrize("command", [("conversation", "sync"), ("conversation", "async"), ("streamed",)], ids=" ".join)
def test_a_conversation_gives_its_events(play: Play, command: tuple[str, ...]) -> None:
    found = play(*command)
    assert said(found) == ["workflow.start", *PLANNER, *WRITER, "workflow.complete"]
    assert found["ids"] == [["shop", "c1", "Sales", "u1", "/graphweft/ag2-classic"]]
    assert all(event["context"]["user_id"] == "u1" for event in found["events"])
    assert {name: count for name, count in found["stats"].items() if count} == {"published": 17, "asked": 2}


def test_events_hold_what_was_said_and_done(play: Play) -> None:
    events = play("conversation", "sync")["events"]
    weather, book = (event for event in events if event["type"] == "tool.call_complete" and event["call_id"] != "t3")
    assert (weather["call_id"], weather["result"]) == ("t1", "sunny in Oslo")
    assert (book["call_id"], book["error"]) == ("t2", "7 is taken")
    assert [event["arguments"] for event in events if event["type"] == "tool.call_start"] == [
        {"city": "Oslo"}, {"room": "7"}, {},
    ]  # fmt: skip
    first, second = (event for event in events if event["type"] == "agent.turn_complete")
    assert (first["handed_to"], first["context_id"]) == ("Writer", "ctx-1")
    assert (second["response"], second["context_id"]) == ("Draft done.", "ctx-2")
    assert (events[-1]["outputs"], events[-1]["status"]) == ("Draft done.", "COMPLETE")
    assert {event["model"] for event in events if event["type"] == "model.call_complete"} == {"fake"}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_context_is_asked_for_once_a_turn_and_stands_in_each_prompt_once(play: Play, mode: str) -> None:
    found = play("conversation", mode)
    assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer"]
    blocks = [
        (agent, [part["content"] for part in prompt if "block" in str(part)]) for agent, prompt in found["prompts"]
    ]
    assert blocks == [
        *[("Planner", ["You are Planner.\n\n## Notes\n- block 1"])] * 3,
        ("Writer", ["You are Writer.\n\n## Notes\n- block 2"]),
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_context_is_not_kept(play: Play, mode: str) -> None:
    found = play("conversation", mode)
    assert found["systems"] == ["You are Planner.", "You are Writer."]
    assert "block" not in str([found["history"], found["kept"], found["variables"]])
    prompts = [str(prompt) for _, prompt in play("repeated")["prompts"]]
    assert [[number for number in range(1, 4) if f"block {number}" in prompt] for prompt in prompts] == [
        [1], [1], [2], [2], [3], [3],
    ]  # fmt: skip


def test_runs_of_one_chat_go_on_counting(play: Play) -> None:
    found = play("repeated")
    turns = [line for line in said(found) if line.startswith(("agent.turn", "workflow"))]
    assert turns == [
        line
        for number in range(1, 4)
        for line in (
            "workflow.start",
            f"agent.turn_start Planner {number}",
            f"agent.turn_complete Planner {number} True completed",
            "workflow.complete",
        )
    ]
    assert len(found["asked"]) == 3
    assert len([line for line in said(found) if line.startswith("tool.")]) == 6  # its calls have no ids


@pytest.mark.parametrize(
    "command",
    [("conversation", "sync", "works", "fails"), ("conversation", "async", "works", "fails"), ("streamed", "fails")],
    ids=" ".join,
)
def test_a_model_that_fails_is_told_once_and_the_runtime_hears_it(play: Play, command: tuple[str, ...]) -> None:
    found = play(*command)
    assert said(found) == ["workflow.start", *PLANNER, *WRITER_FAILS]
    assert found["events"][-1]["error_message"] == "no model"
    assert "no model" in found["error"]


def test_a_stream_that_nobody_reads_on_is_closed_by_the_timer(play: Play) -> None:
    assert said(play("abandoned")) == [
        "workflow.start",
        "agent.turn_start Planner 1",
        "model.call_complete Planner 1 True",
        "agent.turn_complete Planner 1 False abandoned",
    ]


def test_a_chat_that_is_cancelled_fails_as_such(play: Play) -> None:
    found = play("cancelled")
    assert said(found) == [
        "workflow.start",
        "agent.turn_start Planner 1",
        "model.call_complete Planner 1 False CancelledError",
        "agent.turn_complete Planner 1 False failed CancelledError",
        "workflow.error Planner 1 CancelledError",
    ]
    assert found["systems"] == ["You are Planner."]


def test_a_structured_answer_ends_its_turn(play: Play) -> None:
    found = play("structured")
    assert said(found)[:4] == [
        "workflow.start",
        "agent.turn_start Planner 1",
        "model.call_complete Planner 1 True",
        "agent.turn_complete Planner 1 True completed",
    ]
    assert json.loads(found["events"][3]["response"]) == {"steps": [1]}


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("failing", ["", "fails"])
@pytest.mark.parametrize("way", ["hangs", "fails", "garbage"])
def test_a_bus_that_is_broken_changes_no_answer(play: Play, mode: str, failing: str, way: str) -> None:
    def answers(found: dict[str, Any]) -> list[Any]:
        return [found[name] for name in ("history", "variables", "error", "systems", "kept", "prompts")]

    broken, without = play("conversation", mode, way, failing), play("conversation", mode, "none", failing)
    assert answers(broken) == answers(without)
    assert (without["events"], without["stats"]["published"]) == ([], 0)
    assert broken["stats"]["published"] == 17


def test_two_agents_without_a_group_are_attached_one_by_one(play: Play) -> None:
    found = play("pair")
    assert said(found) == [
        "agent.turn_start Planner 1",
        "model.call_complete Planner 1 True",
        "tool.call_start Planner 1 book",
        "tool.call_complete Planner 1 False book",
        "model.call_complete Planner 1 True",
        "agent.turn_complete Planner 1 True completed",
        "agent.turn_start Planner 2",
        "model.call_complete Planner 2 True",
        "agent.turn_complete Planner 2 True completed",
    ]


def test_the_hooks_alone_give_turns_and_context(play: Play) -> None:
    found = play("pair", "hooks")
    assert said(found) == [
        "agent.turn_start Planner 1",
        "agent.turn_complete Planner 1 True completed",
        "agent.turn_start Planner 2",
        "agent.turn_complete Planner 2 True completed",
    ]
    systems = [[part["content"] for part in prompt if part["role"] == "system"] for _, prompt in found["prompts"]]
    assert systems == [[f"You are Planner.\n\n## Notes\n- block {number}"] for number in (1, 1, 2)]
    assert "block" not in str(found["history"])


def test_hooks_of_an_agent_that_is_attached_do_nothing(play: Play) -> None:
    both, attached = play("pair", "both"), play("pair")
    assert said(both) == said(attached)
    assert both["prompts"] == attached["prompts"]


def test_a_runtime_publishes_events_of_its_own(play: Play) -> None:
    found = play("own")
    assert said(found) == [
        "agent.turn_start Planner 1",
        "ui_tool.call_complete Planner 1 approve_plan",
        "agent.turn_complete Planner 1 True completed",
        "agent.structured_output Planner",
    ]
    assert found["events"][3]["structured_data"] == {"steps": [1]}
    assert found["stats"]["invalid"] == 1


PAGE = (ROOT / "docs/runtimes/ag2-classic.md").read_text("utf-8")


def block(language: str, first_line: str = "") -> str:
    [text] = re.findall(rf"```{language}\n({re.escape(first_line)}.*?)```", PAGE, re.DOTALL)
    return str(text)


def test_the_example_of_the_page_runs_as_printed(runtime_python: Callable[[str], Path], tmp_path: Path) -> None:
    """A group chat through bus, worker and responder: the second turn's prompt holds what a tool found in the first."""
    rules = tmp_path / "workflows/Travel/graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text(block("yaml"))
    (tmp_path / "travel.py").write_text(block("python", "# travel.py"))
    printed = run_beside_up(tmp_path, runtime_python("ag2-classic"), "travel.py")
    for part in re.split(r"(?m)^(?=--- )", block("text"))[1:]:  # AG2 prints between them
        before, found, printed = printed.partition(part)
        assert found, (part, before)


def test_chats_that_share_an_agent_at_the_same_time_see_no_block_of_each_other(play: Play) -> None:
    found = play("shared")
    assert found["systems"] == ["You are Planner."]
    blocks = [re.findall("block (.)", str(prompt)) for _, prompt in found["prompts"]]
    assert [len(each) for each in blocks] == [1, 1, 1]
    assert blocks[1] != blocks[2]


def test_a_hook_keeps_nothing_of_agents_that_are_gone(play: Play) -> None:
    found = play("gone")
    assert found["kept"] == 0
    assert found["systems"] == [f"You are Planner.\n\n## Notes\n- block {number}" for number in (1, 2, 3)]
