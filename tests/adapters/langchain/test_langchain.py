"""LangChain and LangGraph, the real packages: the events of scripted conversations, and what reaches the prompts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.plays import PLANNER, WRITER, WRITER_FAILS, Play, Player, run_beside_up, said
from tests.services.runtime_environments import ROOT, RUNTIME_ENVIRONMENT_S

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)]

MODES = ["sync", "async", "stream", "astream"]
MODEL = "model.call_complete Planner 1 True"


@pytest.fixture(scope="module")
def play(player: Player) -> Play:
    return player("langchain")


def run_of(*steps: str, start: str = "agent.turn_start Planner 1", end: str = "completed") -> list[str]:
    """Return the events of one run with one turn of the planner's."""
    return ["workflow.start", start, *steps, f"agent.turn_complete Planner 1 True {end}", "workflow.complete"]


def tool(name: str, success: object = True, turn: str = "Planner 1") -> list[str]:
    return [f"tool.call_start {turn} {name}", f"tool.call_complete {turn} {success} {name}"]


# The conversation


@pytest.mark.parametrize("mode", MODES)
def test_a_conversation_gives_its_events(play: Play, mode: str) -> None:
    found = play("conversation", mode)
    assert said(found) == ["workflow.start", *PLANNER, *WRITER, "workflow.complete"]
    assert found["ids"] == [["shop", "c1", "Sales", "u1", "/graphweft/langchain"]]
    assert all(event["context"]["user_id"] == "u1" for event in found["events"])
    assert {name: count for name, count in found["stats"].items() if count} == {"published": 17, "asked": 2}
    assert found["runs"] == 0


def test_events_hold_what_was_said_and_done(play: Play) -> None:
    events = play("conversation", "sync")["events"]
    weather, book, hand_over = (event for event in events if event["type"] == "tool.call_complete")
    assert (weather["call_id"], weather["result"]) == ("t1", "sunny in Oslo")
    assert (book["call_id"], book["error"]) == ("t2", "7 is taken")
    assert (hand_over["call_id"], hand_over["result"]) == ("t3", "over to you")
    assert [event["arguments"] for event in events if event["type"] == "tool.call_start"] == [
        {"city": "Oslo"}, {"room": "7"}, {},
    ]  # fmt: skip
    first, second = (event for event in events if event["type"] == "agent.turn_complete")
    assert (first["handed_to"], first["context_id"]) == ("Writer", "ctx-1")
    assert (second["response"], second["context_id"]) == ("Draft done.", "ctx-2")
    assert (events[-1]["outputs"], events[-1]["status"]) == ("Draft done.", "COMPLETE")
    assert {event["model"] for event in events if event["type"] == "model.call_complete"} == {"fake"}


@pytest.mark.parametrize("mode", MODES)
def test_context_is_asked_for_once_a_turn_stands_in_each_prompt_once_and_is_not_kept(play: Play, mode: str) -> None:
    found = play("conversation", mode)
    assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer"]
    blocks = [
        (agent, [part["content"] for part in prompt if "block" in str(part)]) for agent, prompt in found["prompts"]
    ]
    assert blocks == [
        *[("Planner", ["You are Planner.\n\n## Notes\n- block 1"])] * 3,
        ("Writer", ["You are Writer.\n\n## Notes\n- block 2"]),
    ]  # fmt: skip
    assert not found["kept"]
    assert "block" not in str(found["history"])


def test_runs_of_one_chat_go_on_counting_and_see_their_own_context_only(play: Play) -> None:
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
    prompts = [str(prompt) for _, prompt in found["prompts"]]
    assert [[number for number in range(1, 4) if f"block {number}" in prompt] for prompt in prompts] == [
        [1], [1], [2], [2], [3], [3],
    ]  # fmt: skip
    assert not found["kept"]


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_fails_is_told_once_and_the_caller_hears_it(play: Play, mode: str) -> None:
    found = play("conversation", mode, "works", "fails")
    assert said(found) == ["workflow.start", *PLANNER, *WRITER_FAILS]
    assert found["events"][-1]["error_message"] == "no model"
    assert found["error"] == "ConnectionError: no model"
    assert found["runs"] == 0


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("failing", ["", "fails"])
@pytest.mark.parametrize("way", ["hangs", "fails", "garbage"])
def test_a_bus_that_is_broken_changes_no_answer(play: Play, mode: str, failing: str, way: str) -> None:
    def answers(found: dict[str, Any]) -> list[Any]:
        return [found[name] for name in ("history", "error", "chunks", "kept", "prompts")]

    broken, without = play("conversation", mode, way, failing), play("conversation", mode, "none", failing)
    assert answers(broken) == answers(without)
    assert (without["events"], without["stats"]["published"]) == ([], 0)
    assert broken["stats"]["published"] == 17


# Middleware alone: what is not told without ``attach``


def test_middleware_alone_tells_all_but_the_run(play: Play) -> None:
    assert said(play("conversation", "sync", "works", "", "bare")) == [*PLANNER, *WRITER]
    assert said(play("conversation", "async", "works", "fails", "bare")) == [*PLANNER, *WRITER_FAILS]


def test_middleware_alone_does_not_hear_that_a_tool_ended_the_run(play: Play) -> None:
    assert said(play("fails", "tool", "bare")) == [
        "agent.turn_start Planner 1", MODEL, *tool("book", success=False),
        "agent.turn_complete Planner 1 False abandoned",
    ]  # fmt: skip


# Failures


def test_a_tool_whose_failure_nobody_handles_fails_the_run(play: Play) -> None:
    found = play("fails", "tool")
    assert said(found) == [
        "workflow.start", "agent.turn_start Planner 1", MODEL, *tool("book", success=False),
        "agent.turn_complete Planner 1 False failed RuntimeError", "workflow.error Planner 1 RuntimeError",
    ]  # fmt: skip
    assert found["error"] == "RuntimeError: 7 is taken"


@pytest.mark.parametrize(
    ("how", "name", "error"),
    [
        ("handled", "book", "7 is taken"),
        ("unknown", "fly", "fly is not a valid tool"),
        ("arguments", "book", "room: Field required"),
    ],
)
def test_a_tool_whose_failure_is_handled_has_failed_all_the_same(play: Play, how: str, name: str, error: str) -> None:
    found = play("fails", how)
    assert said(found) == run_of(MODEL, *tool(name, success=False), MODEL)
    [failed] = [event for event in found["events"] if event["type"] == "tool.call_complete"]
    assert error in failed["error"]


def test_a_model_that_is_asked_once_more_goes_on_with_its_turn(play: Play) -> None:
    found = play("fails", "retried")
    assert said(found) == run_of("model.call_complete Planner 1 False ConnectionError", MODEL)
    assert len(found["asked"]) == 1
    assert [str(prompt).count("block 1") for _, prompt in found["prompts"]] == [1, 1]


@pytest.mark.parametrize(
    ("how", "error", "steps"),
    [("limit", "GraphRecursionError", [MODEL, *tool("weather"), MODEL]), ("before", "ValueError", [])],
)
def test_what_ends_a_run_outside_of_models_and_tools_fails_its_turn(
    play: Play, how: str, error: str, steps: list[str]
) -> None:
    found = play("fails", how)
    assert said(found) == [
        "workflow.start", "agent.turn_start Planner 1", *steps,
        f"agent.turn_complete Planner 1 False failed {error}", f"workflow.error Planner 1 {error}",
    ]  # fmt: skip
    assert found["error"].startswith(error)
    assert found["runs"] == 0


def test_a_run_that_is_cancelled_fails_as_such(play: Play) -> None:
    found = play("cancelled")
    assert said(found) == [
        "workflow.start",
        "agent.turn_start Planner 1",
        "model.call_complete Planner 1 False CancelledError",
        "agent.turn_complete Planner 1 False failed CancelledError",
        "workflow.error Planner 1 CancelledError",
    ]
    assert found["cancelled"]
    assert found["runs"] == 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_stream_that_is_closed_fails_as_such(play: Play, mode: str) -> None:
    assert said(play("abandoned", mode)) == [
        "workflow.start", "agent.turn_start Planner 1", MODEL, *tool("weather"),
        "agent.turn_complete Planner 1 False failed GeneratorExit", "workflow.error Planner 1 GeneratorExit",
    ]  # fmt: skip


def test_a_stream_that_nobody_reads_on_is_closed_by_the_timer(play: Play) -> None:
    assert said(play("abandoned", "open")) == [
        "workflow.start", "agent.turn_start Planner 1", MODEL, *tool("weather"),
        "agent.turn_complete Planner 1 False abandoned",
    ]  # fmt: skip


# People


@pytest.mark.parametrize("command", [("tool",), ("tool", "async"), ("before",), ("inside",), ("inside", "async")])
def test_a_turn_goes_on_when_its_thread_is_resumed(play: Play, command: tuple[str, ...]) -> None:
    found = play("waits", *command)
    assert said(found) == run_of(MODEL, *tool("weather" if command[0] == "before" else "book"), MODEL)
    assert found["before"] == [event["type"] for event in found["events"]][: len(found["before"])]
    assert len(found["before"]) == (3 if command[0] == "before" else 4)
    assert len(found["asked"]) == 1
    assert not found["kept"]
    assert found["runs"] == 0


def test_a_turn_that_is_not_resumed_was_abandoned(play: Play) -> None:
    assert said(play("waits", "again")) == [
        "workflow.start", "agent.turn_start Planner 1", MODEL, *tool("book", success=None),
        "agent.turn_complete Planner 1 False abandoned",
        "agent.turn_start Planner 2", "model.call_complete Planner 2 True",
        "agent.turn_complete Planner 2 True completed", "workflow.complete",
    ]  # fmt: skip


# Several at once


def test_two_runs_of_one_chat_at_once_are_two_turns(play: Play) -> None:
    found = play("together", "one")
    lines = said(found)
    assert (lines[0], lines[-1]) == ("workflow.start", "workflow.complete")
    for number in (1, 2):
        turn = f"Planner {number}"
        assert [line for line in lines if turn in line] == [
            f"agent.turn_start {turn}", f"model.call_complete {turn} True", *tool("weather", turn=turn),
            f"model.call_complete {turn} True", f"agent.turn_complete {turn} True completed",
        ]  # fmt: skip
    assert len(lines) == 14
    assert Counter(re.findall(r"block \d", str(found["prompts"]))) == {"block 1": 2, "block 2": 2}


def test_two_chats_at_once_do_not_mix(play: Play) -> None:
    found = play("together", "two")
    by_chat: dict[str, list[str]] = {"c1": [], "c2": []}
    for chat, line in zip(found["chats"], said(found), strict=True):
        by_chat[chat].append(line)
    assert by_chat["c1"] == by_chat["c2"] == run_of(MODEL, *tool("weather"), MODEL)
    assert found["runs"] == 0


def test_agents_side_by_side_have_turns_of_their_own_and_phases(play: Play) -> None:
    lines = said(play("side_by_side"))
    assert sorted(line for line in lines if "phase" in line) == [
        "workflow.phase_complete Left Writer", "workflow.phase_complete Right Writer",
    ]  # fmt: skip
    for agent in ("Left", "Right"):
        steps = [
            line.rsplit(" ", 1)[1] for line in lines if line.startswith(("agent", "model")) and f" {agent} " in line
        ]
        assert steps in (["1", "True", "completed"], ["2", "True", "completed"])
    assert lines[-4:] == [
        "agent.turn_start Writer 3", "model.call_complete Writer 3 True", "agent.turn_complete Writer 3 True completed",
        "workflow.complete",
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_tools_that_are_called_at_once_belong_to_one_turn(play: Play, mode: str) -> None:
    lines = said(play("parallel", mode))
    assert [line for line in lines if not line.startswith("tool")] == run_of(MODEL, MODEL)
    assert sorted(line for line in lines if line.startswith("tool")) == sorted(
        [*tool("weather"), *tool("weather"), *tool("book", success=False)]
    )


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_hand_over_beside_other_tools_ends_the_turn_after_them(play: Play, mode: str) -> None:
    lines = said(play("parallel", mode, "hands_over"))
    assert sorted(lines[3:9]) == sorted([*tool("weather"), *tool("to_writer"), *tool("book", success=False)])
    assert lines[9:] == [
        "agent.turn_complete Planner 1 True handed_off", "workflow.phase_complete Planner Writer", *WRITER,
        "workflow.complete",
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_agent_that_is_a_tool_has_a_turn_within_the_turn(play: Play, mode: str) -> None:
    inner = ["agent.turn_start Planner 2", "model.call_complete Planner 2 True"]
    start, end = tool("ask_planner", turn="Supervisor 1")
    found = play("supervisor", mode)
    assert said(found) == [
        "workflow.start", "agent.turn_start Supervisor 1", "model.call_complete Supervisor 1 True",
        start, *inner, "agent.turn_complete Planner 2 True completed", end,
        "model.call_complete Supervisor 1 True", "agent.turn_complete Supervisor 1 True completed", "workflow.complete",
    ]  # fmt: skip
    assert [agent for agent, _ in found["asked"]] == ["Supervisor", "Planner"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_failure_of_an_agent_that_is_a_tool_is_told_once(play: Play, mode: str) -> None:
    found = play("supervisor", mode, "fails")
    start, end = tool("ask_planner", success=False, turn="Supervisor 1")
    assert said(found) == [
        "workflow.start", "agent.turn_start Supervisor 1", "model.call_complete Supervisor 1 True", start,
        "agent.turn_start Planner 2", "model.call_complete Planner 2 False ConnectionError",
        "agent.turn_complete Planner 2 False failed ConnectionError", "workflow.error Planner 2 ConnectionError",
        end, "agent.turn_complete Supervisor 1 False failed ConnectionError",
    ]  # fmt: skip
    assert found["runs"] == 0


# Graphs without agents of LangChain's


def events_of_graph(*ending: str) -> list[str]:
    return [
        "workflow.start", "agent.turn_start Planner 1", MODEL,
        "workflow.phase_complete plan tools", *sorted([*tool("weather"), *tool("book", success=False)]),
        "workflow.phase_complete tools plan", MODEL, "agent.turn_complete Planner 1 True completed",
        "workflow.phase_complete plan write", *ending,
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("failing", "ending"), [("", [*WRITER, "workflow.complete"]), ("fails", list(WRITER_FAILS))], ids=["well", "fails"]
)
def test_a_graph_has_phases_tools_and_turns_of_nodes_that_ask(
    play: Play, mode: str, failing: str, ending: list[str]
) -> None:
    found = play("graph", mode, "works", failing)
    lines = said(found)
    assert [*lines[:4], *sorted(lines[4:8]), *lines[8:]] == events_of_graph(*ending)
    assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer"]
    assert [re.findall(r"block \d", str(prompt)) for _, prompt in found["prompts"]] == [
        ["block 1"], ["block 1"], ["block 2"],
    ]  # fmt: skip
    assert not found["kept"]
    assert found["runs"] == 0


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("way", ["hangs", "fails", "garbage"])
def test_a_bus_that_is_broken_changes_no_graph(play: Play, mode: str, way: str) -> None:
    broken, without = play("graph", mode, way), play("graph", mode, "none")
    assert [broken[name] for name in ("history", "error", "prompts")] == [
        without[name] for name in ("history", "error", "prompts")
    ]


# Values


def test_a_structured_answer_is_the_turns_response(play: Play) -> None:
    found = play("structured")
    assert said(found) == run_of(MODEL)
    [turn] = [event for event in found["events"] if event["type"] == "agent.turn_complete"]
    assert turn["response"] == {"steps": [1]}
    assert found["answer"] == [1]


def test_a_runtime_publishes_events_of_its_own(play: Play) -> None:
    found = play("own")
    assert [line for line in said(found) if not line.startswith(("model", "workflow"))] == [
        "agent.turn_start Chief 1",
        "tool.call_start Chief 1 approve",
        "ui_tool.call_complete Chief 1 approve_plan",
        "tool.call_complete Chief 1 True approve",
        "agent.turn_complete Chief 1 True completed",
        "agent.structured_output Chief",
    ]
    assert found["stats"]["unplaced"] == 1
    for _, prompt in found["prompts"]:
        assert [part["text"] for part in prompt[0]["content"]] == ["You are Planner.", "\n\n## Notes\n- block 1"]


def test_turns_are_timed(play: Play) -> None:
    assert len(play("turns", "hangs", "3")["ms"]) == len(play("turns", "none", "3")["ms"]) == 3


PAGE = ROOT / "docs/runtimes/langchain.md"


def block(language: str, first_line: str = "") -> str:
    [text] = re.findall(rf"```{language}\n({re.escape(first_line)}.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return str(text)


def test_the_example_of_the_page_runs_as_printed(runtime_python: Callable[[str], Path], tmp_path: Path) -> None:
    """Two agents through bus, worker and responder: the second one's prompt holds what a tool found for the first."""
    rules = tmp_path / "workflows/Travel/graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text(block("yaml"))
    (tmp_path / "travel.py").write_text(block("python", "# travel.py"))
    assert run_beside_up(tmp_path, runtime_python("langchain"), "travel.py") == block("text")
