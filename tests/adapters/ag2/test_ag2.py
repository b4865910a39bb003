"""AG2 1.x with its real package: the events of scripted conversations, and what reaches the model's prompts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.plays import PLANNER, WRITER, WRITER_FAILS, Play, Player, run_beside_up, said
from tests.services.runtime_environments import ROOT, RUNTIME_ENVIRONMENT_S

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)]

SAYS_WHY = "model.call_complete Planner 1 True"
"""AG2 asks the model once more when a tool has handed over: what it says goes to the next agent."""
HANDED_OVER = ["agent.turn_complete Planner 1 True handed_off", "workflow.phase_complete Planner Writer"]
HANDS_OVER = [*PLANNER[:-2], SAYS_WHY, *HANDED_OVER]
"""In a workflow channel of the network, where a hand-over is a tool."""


def lets_work(tool: str) -> list[str]:
    """Return the planner's turn where the writer works inside one of its tools, and answers that one."""
    before, [start, end, *_] = list(PLANNER[:-4]), PLANNER[-4:]
    return [
        *before, start.replace("to_writer", tool), *WRITER, end.replace("to_writer", tool), SAYS_WHY,
        "agent.turn_complete Planner 1 True completed",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def play(player: Player) -> Play:
    return player("ag2")


@pytest.mark.parametrize("where", ["variables", "labels"])
@pytest.mark.parametrize("attaching", ["plugin", "attach", "both"])
def test_a_workflow_channel_gives_its_events(play: Play, attaching: str, where: str) -> None:
    found = play("conversation", "works", "", attaching, where)
    assert said(found) == ["workflow.start", *HANDS_OVER, *WRITER, "workflow.complete"]
    assert found["ids"] == [["shop", "c1", "Sales", "u1", "/graphweft/ag2"]]
    assert all(event["context"]["user_id"] == "u1" for event in found["events"])
    assert {name: count for name, count in found["stats"].items() if count} == {"published": 18, "asked": 2}


def test_a_tool_that_the_channel_itself_takes_for_a_hand_over_is_one(play: Play) -> None:
    found = play("conversation", "works", "", "static")
    hands_over = [line.replace("to_writer", "to_other") for line in HANDS_OVER]
    assert said(found) == ["workflow.start", *hands_over, *WRITER, "workflow.complete"]
    assert found["events"][-2]["context"]["city"] == "Oslo"  # the channel's own variable, which that tool set


def test_events_hold_what_was_said_and_done(play: Play) -> None:
    events = play("conversation")["events"]
    weather, book, over = (event for event in events if event["type"] == "tool.call_complete")
    assert (weather["call_id"], weather["result"], weather["context"]["city"]) == ("t1", "sunny in Oslo", "Oslo")
    assert (book["call_id"], book["error"], book["result"]) == ("t2", "7 is taken", None)
    assert (over["call_id"], over["result"]) == ("t3", {"target": "Writer", "reason": "the plan stands"})
    assert [event["arguments"] for event in events if event["type"] == "tool.call_start"] == [
        {"city": "Oslo"}, {"room": "7"}, {},
    ]  # fmt: skip
    first, second = (event for event in events if event["type"] == "agent.turn_complete")
    assert (first["handed_to"], first["context_id"]) == ("Writer", "ctx-1")
    assert (second["response"], second["context_id"]) == ("Draft done.", "ctx-2")
    assert (events[-1]["outputs"], events[-1]["status"]) == ("Draft done.", "COMPLETE")
    assert {event["model"] for event in events if event["type"] == "model.call_complete"} == {"fake"}


@pytest.mark.parametrize(
    ("mode", "tool"), [("tool", "task_Writer"), ("own", "ask_writer"), ("network", "delegate")]
)  # fmt: skip
def test_an_agent_that_works_in_a_tool_has_a_turn_within_that_turn(play: Play, mode: str, tool: str) -> None:
    found = play("delegated", mode)
    assert said(found) == ["workflow.start", *lets_work(tool), "workflow.complete"]
    assert found["ids"] == [["shop", "c1", "Sales", "u1", "/graphweft/ag2"]]
    assert found["asked"] == [["Planner", "0:0"], ["Writer", "0:9"]]
    assert found["events"][-1]["outputs"] == "Plan done."


def test_an_agent_that_works_behind_a_turn_belongs_to_its_run(play: Play) -> None:
    found = play("delegated", "background")
    lines = [line for line in said(found) if "Writer" in line or line.startswith(("workflow", "agent"))]
    assert sorted(lines[1:-1]) == sorted([
        "agent.turn_start Planner 1", "agent.turn_complete Planner 1 True completed", *WRITER,
    ])  # fmt: skip
    assert (lines[0], lines[-1]) == ("workflow.start", "workflow.complete")
    assert found["ids"] == [["shop", "c1", "Sales", "u1", "/graphweft/ag2"]]
    assert found["events"][-1]["outputs"] == "Plan done."


def test_a_failure_within_a_tool_is_told_of_who_failed_and_the_run_goes_on(play: Play) -> None:
    lines = said(play("delegated", "tool", "works", "fails"))
    assert [line for line in lines if "Writer" in line and "tool" not in line] == list(WRITER_FAILS)
    assert lines[-2:] == ["agent.turn_complete Planner 1 True completed", "workflow.complete"]


ALONE = [
    "workflow.start", "agent.turn_start Planner 1", "model.call_complete Planner 1 True",
    "tool.call_start Planner 1 weather", "tool.call_complete Planner 1 True weather",
]  # fmt: skip
ANSWERS = [
    "model.call_complete Planner 1 True", "agent.turn_complete Planner 1 True completed", "workflow.complete",
]  # fmt: skip
ASKED_AGAIN = [
    "workflow.start", "agent.turn_start Planner 2", "model.call_complete Planner 2 True",
    "agent.turn_complete Planner 2 True completed", "workflow.complete",
]  # fmt: skip


@pytest.mark.parametrize("mode", ["ask", "again"])
def test_a_stream_is_a_chat_whoever_goes_on_with_it(play: Play, mode: str) -> None:
    """``reply.ask`` goes on with the stream of a reply, and ``agent.ask`` with the one that it is given."""
    found = play("asked", mode)
    assert said(found) == [*ALONE, *ANSWERS, *ASKED_AGAIN]
    assert len(found["ids"]) == 1
    assert re.fullmatch(r"[0-9a-f-]{36}", found["ids"][0][1])


def test_a_run_whose_stream_is_read_gives_its_events(play: Play) -> None:
    found = play("asked", "run")
    assert said(found) == [*ALONE, *ANSWERS]
    assert "ModelMessageChunk" in found["kinds"]


def test_context_is_asked_for_once_a_turn_and_stands_in_each_prompt_once(play: Play) -> None:
    found = play("conversation")
    assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer"]
    assert found["prompts"] == [
        *[["Planner", ["You are Planner.", "## Notes\n- block 1"]]] * 4,
        ["Writer", ["You are Writer.", "## Notes\n- block 2"]],
    ]


def test_context_is_not_kept(play: Play) -> None:
    found = play("asked", "ask")
    assert found["prompt"] == ["You are Planner."]
    assert "block" not in str([found["history"], found["variables"], play("conversation")["said"]])
    prompts = [str(prompt) for _, prompt in play("repeated")["prompts"]]
    assert [[number for number in range(1, 4) if f"block {number}" in prompt] for prompt in prompts] == [
        [1], [1], [2], [2], [3], [3],
    ]  # fmt: skip


def test_policies_see_the_context_and_changes_of_the_prompt_stay(play: Play) -> None:
    found = play("budgeted")
    assert found["seen"] == [1, 1]
    assert found["kept"] == play("budgeted", "none")["kept"] == ["You are Planner.", "Changed.", "Changed."]
    assert [str(prompt).count("block") for _, prompt in found["prompts"]] == [1, 1]


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


def test_turns_of_one_agent_at_the_same_time_are_two_in_one_run(play: Play) -> None:
    found = play("side_by_side")
    lines = said(found)
    assert (lines[0], lines[-1]) == ("workflow.start", "workflow.complete")
    for number in (1, 2):
        assert [line for line in lines if f"Planner {number}" in line] == [
            f"agent.turn_start Planner {number}",
            f"model.call_complete Planner {number} True",
            f"tool.call_start Planner {number} meet",
            f"tool.call_complete Planner {number} True meet",
            f"model.call_complete Planner {number} True",
            f"agent.turn_complete Planner {number} True completed",
        ]
    assert len(lines) == 14


def test_chats_at_the_same_time_do_not_mix(play: Play) -> None:
    found = play("side_by_side", "two")
    one, other = ([type for chat, type in found["chats"] if chat == name] for name in ("a", "b"))
    assert one == other
    assert (one[0], one[-1], len(one)) == ("workflow.start", "workflow.complete", 8)
    assert {event["response"] for event in found["events"] if "response" in event} == {"a done.", "b done."}


def test_a_model_that_fails_is_told_once_and_the_hub_hears_it(play: Play) -> None:
    found = play("conversation", "works", "fails")
    assert said(found) == ["workflow.start", *HANDS_OVER, *WRITER_FAILS]
    assert found["events"][-1]["error_message"] == "no model"
    assert found["error"] == "['ConnectionError: no model']"


def test_a_model_that_fails_is_told_once_and_who_asked_hears_it(play: Play) -> None:
    found = play("asked", "ask", "works", "fails")
    assert said(found) == [
        *ALONE,
        "model.call_complete Planner 1 False ConnectionError",
        "agent.turn_complete Planner 1 False failed ConnectionError",
        "workflow.error Planner 1 ConnectionError",
    ]
    assert found["error"] == "ConnectionError: no model"


def test_a_tool_that_ends_the_turn_fails_it(play: Play) -> None:
    found = play("own_config")
    assert said(found)[3:] == [
        "tool.call_start Planner 1 book",
        "tool.call_complete Planner 1 False book",
        "model.call_complete Planner 1 False RuntimeError",
        "agent.turn_complete Planner 1 False failed RuntimeError",
        "workflow.error Planner 1 RuntimeError",
    ]
    assert found["error"] == "7 is taken"


@pytest.mark.parametrize("way", ["cancelled", "left"])
def test_a_run_that_is_given_up_fails_as_such(play: Play, way: str) -> None:
    """By its task, or by leaving the block in which its stream is read."""
    found = play("left", way)
    assert said(found) == [
        "workflow.start",
        "agent.turn_start Planner 1",
        "model.call_complete Planner 1 False CancelledError",
        "agent.turn_complete Planner 1 False failed CancelledError",
        "workflow.error Planner 1 CancelledError",
    ]
    assert found["kept"] == [["You are Planner."]]


def test_a_person_who_is_asked_changes_nothing(play: Play) -> None:
    assert said(play("person")) == [
        *[line.replace("weather", "approve") for line in ALONE], *ANSWERS,
    ]  # fmt: skip
    gone = play("person", "gone")
    assert said(gone)[4:] == [
        "tool.call_complete Planner 1 False approve",
        "agent.turn_complete Planner 1 False failed HumanInputFailedError",
        "workflow.error Planner 1 HumanInputFailedError",
    ]
    assert gone["error"] == "HumanInputFailedError"


def test_a_turn_that_waits_for_ever_is_closed_by_the_timer(play: Play) -> None:
    assert said(play("person", "never"))[3:] == [
        "tool.call_start Planner 1 approve",
        "tool.call_complete Planner 1 None approve",
        "agent.turn_complete Planner 1 False abandoned",
        "workflow.error Planner CancelledError",  # the scene gives it up in the end
    ]


@pytest.mark.parametrize(
    ("way", "last"),
    [
        ("closed", "workflow.complete"),
        ("expired", "workflow.error ChannelExpired"),
        ("violated", "workflow.error ExpectationViolated"),
    ],
)
def test_a_channel_that_ends_by_itself_says_how(play: Play, way: str, last: str) -> None:
    assert said(play("ended", way)) == ["workflow.start", last]


@pytest.mark.parametrize("scene", [("conversation",), ("delegated", "tool"), ("asked", "ask")], ids=" ".join)
@pytest.mark.parametrize("failing", ["", "fails"])
@pytest.mark.parametrize("way", ["hangs", "fails", "garbage"])
def test_a_bus_that_is_broken_changes_no_answer(play: Play, scene: tuple[str, ...], failing: str, way: str) -> None:
    def answers(found: dict[str, Any]) -> dict[str, Any]:
        told = {"events", "ids", "asked", "stats"}
        return {name: value for name, value in found.items() if name not in told}

    broken, without = play(*scene, way, failing), play(*scene, "none", failing)
    assert answers(broken) == answers(without)
    assert (without["events"], without["stats"]["published"]) == ([], 0)
    assert broken["stats"]["published"] == len(play(*scene, "works", failing)["events"])


def test_a_runtime_publishes_events_of_its_own(play: Play) -> None:
    found = play("own")
    assert [line for line in said(found) if not line.startswith(("model", "workflow"))] == [
        "agent.turn_start Planner 1",
        "tool.call_start Planner 1 show",
        "ui_tool.call_complete Planner 1 approve_plan",
        "tool.call_complete Planner 1 True show",
        "agent.turn_complete Planner 1 True completed",
        "agent.structured_output Planner",
    ]
    assert found["events"][-1]["structured_data"] == {"steps": [1]}
    assert found["stats"]["invalid"] == 1
    assert "ag:secret" not in found["events"][0]["context"]


@pytest.mark.parametrize(("attaching", "name"), [("attach", "Planner"), ("plugin", "agent")])
def test_an_agent_that_is_served_has_its_name_where_it_is_attached(play: Play, attaching: str, name: str) -> None:
    found = play("served", attaching)
    assert said(found) == [
        "workflow.start", *[line.replace("Writer 2", f"{name} 1") for line in WRITER], "workflow.complete",
    ]  # fmt: skip


PAGE = (ROOT / "docs/runtimes/ag2.md").read_text("utf-8")


def block(language: str, first_line: str = "") -> str:
    [text] = re.findall(rf"```{language}\n({re.escape(first_line)}.*?)```", PAGE, re.DOTALL)
    return str(text)


def test_the_example_of_the_page_runs_as_printed(runtime_python: Callable[[str], Path], tmp_path: Path) -> None:
    """A workflow channel through bus, worker and responder: the second turn's prompt holds what a tool found."""
    rules = tmp_path / "workflows/Travel/graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text(block("yaml"))
    (tmp_path / "travel.py").write_text(block("python", "# travel.py"))
    assert run_beside_up(tmp_path, runtime_python("ag2"), "travel.py") == block("text")
