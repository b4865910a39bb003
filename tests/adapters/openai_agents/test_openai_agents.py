"""The OpenAI Agents SDK with its real package: the events of scripted runs, and what reaches the model's prompts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.plays import PLANNER, WRITER, WRITER_FAILS, Play, Player, run_beside_up, said
from tests.services.runtime_environments import ROOT, RUNTIME_ENVIRONMENT_S

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)]

HAND_OVER = {"tool.call_start Planner 1 to_writer", "tool.call_complete Planner 1 True to_writer"}
"""A hand-off is no tool here: no hook tells of a call, only of the hand-off."""
PLANNED = [line for line in PLANNER if line not in HAND_OVER]


@pytest.fixture(scope="module")
def play(player: Player) -> Play:
    return player("openai-agents")


def turns(found: dict[str, Any]) -> list[str]:
    return [line for line in said(found) if not line.startswith(("model.", "tool."))]


@pytest.mark.parametrize(
    "command",
    [("conversation", "sync"), ("conversation", "async"), ("conversation", "streamed"), ("unread",)],
    ids=" ".join,
)
def test_a_conversation_gives_its_events(play: Play, command: tuple[str, ...]) -> None:
    found = play(*command)
    assert said(found) == ["workflow.start", *PLANNED, *WRITER, "workflow.complete"]
    assert found["ids"] == [["shop", "c1", "Sales", "u1", "/graphweft/openai-agents"]]
    assert all(event["context"]["user_id"] == "u1" for event in found["events"])
    assert {name: count for name, count in found["stats"].items() if count} == {"published": 15, "asked": 2}


def test_events_hold_what_was_said_and_done(play: Play) -> None:
    events = play("conversation", "async")["events"]
    weather, book = (event for event in events if event["type"] == "tool.call_complete")
    assert (weather["call_id"], weather["result"]) == ("t1", "sunny in Oslo")
    assert (book["call_id"], book["error"]) == ("t2", "7 is taken")
    assert [event["arguments"] for event in events if event["type"] == "tool.call_start"] == [
        {"city": "Oslo"}, {"room": "7"},
    ]  # fmt: skip
    first, second = (event for event in events if event["type"] == "agent.turn_complete")
    assert (first["handed_to"], first["context_id"]) == ("Writer", "ctx-1")
    assert (second["response"], second["context_id"]) == ("Draft done.", "ctx-2")
    assert (events[-1]["outputs"], events[-1]["status"]) == ("Draft done.", "COMPLETE")
    models = [event for event in events if event["type"] == "model.call_complete"]
    assert {event["model"] for event in models} == {"fake"}
    assert [(event["input_tokens"], event["output_tokens"]) for event in models] == [(5, 7)] * 4
    assert all(event["duration_ms"] > 0 for event in models)


@pytest.mark.parametrize("mode", ["sync", "async", "streamed", "hooks"])
def test_context_is_asked_for_once_a_turn_and_stands_in_each_prompt_once(play: Play, mode: str) -> None:
    found = play("conversation", mode)
    assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer"]
    assert [(agent, instructions) for agent, (instructions, _) in found["prompts"]] == [
        *[("Planner", "You are Planner.\n\n## Notes\n- block 1")] * 3,
        ("Writer", "You are Writer.\n\n## Notes\n- block 2"),
    ]  # fmt: skip
    assert "block" not in str([items for _, (_, items) in found["prompts"]])


@pytest.mark.parametrize("mode", ["sync", "async", "streamed", "hooks"])
def test_context_is_not_kept(play: Play, mode: str) -> None:
    found = play("conversation", mode)
    assert "block" not in str([found["history"], found["kept"], found["context"], found["instructions"]])
    assert found["state"] is False
    assert len(found["kept"]) == 8


def test_runs_of_one_session_go_on_counting_and_see_their_own_context_alone(play: Play) -> None:
    found = play("repeated")
    blocks = [instructions[-1] for _, (instructions, _) in found["prompts"]]
    assert blocks == ["1", "1", "2", "2", "3", "3"]
    assert "block" not in str([items for _, (_, items) in found["prompts"]])
    assert "block" not in str(found["kept"])
    assert turns(found) == [
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


@pytest.mark.parametrize("mode", ["sync", "async", "streamed"])
def test_a_model_that_fails_is_told_once_and_the_caller_hears_it(play: Play, mode: str) -> None:
    found = play("conversation", mode, "works", "fails")
    assert said(found) == ["workflow.start", *PLANNED, *WRITER_FAILS]
    assert found["events"][-1]["error_message"] == "no model"
    assert found["error"] == "ConnectionError: no model"


def test_a_stream_whose_model_hangs_is_closed_by_the_timer(play: Play) -> None:
    assert turns(play("abandoned")) == [
        "workflow.start",
        "agent.turn_start Planner 1",
        "agent.turn_complete Planner 1 True handed_off",
        "workflow.phase_complete Planner Writer",
        "agent.turn_start Writer 2",
        "agent.turn_complete Writer 2 False abandoned",
    ]


@pytest.mark.parametrize("how", ["task", "stream"])
def test_a_run_that_is_cancelled_fails_as_such(play: Play, how: str) -> None:
    found = play("cancelled", how)
    assert said(found) == [
        "workflow.start",
        "agent.turn_start Planner 1",
        "model.call_complete Planner 1 False CancelledError",
        "agent.turn_complete Planner 1 False failed CancelledError",
        "workflow.error Planner 1 CancelledError",
    ]
    assert found["raised"] == (["CancelledError"] if how == "task" else [])


@pytest.mark.parametrize("mode", ["run", "stream"])
@pytest.mark.parametrize(
    ("what", "outcome", "error"),
    [
        ("turns", "False failed", "MaxTurnsExceeded"),
        ("turns-handled", "True completed", ""),
        ("before", "", "InputGuardrailTripwireTriggered"),
        ("beside", "False failed", "InputGuardrailTripwireTriggered"),
        ("after", "True completed", "OutputGuardrailTripwireTriggered"),
    ],
)
def test_a_run_that_the_sdk_ends_is_told_as_its_caller_is(
    play: Play, what: str, outcome: str, error: str, mode: str
) -> None:
    found = play("stopped", what, mode)
    failed = outcome == "False failed"
    turn = [
        "agent.turn_start Planner 1",
        f"agent.turn_complete Planner 1 {outcome} {error if failed else ''}".rstrip(),
    ]
    end = f"workflow.error {'Planner 1 ' if failed else ''}{error}" if error else "workflow.complete"
    assert turns(found) == ["workflow.start", *(turn if outcome else []), end]
    assert found["raised"] == ([error] if error else [])


@pytest.mark.parametrize("tracing", ["on", "off"])
def test_a_tool_that_fails_is_told_as_such_whatever_the_sdk_makes_of_it(play: Play, tracing: str) -> None:
    found = play("tools", tracing)
    ends = {event["tool_name"]: event for event in found["events"] if event["type"] == "tool.call_complete"}
    assert {name: event["success"] for name, event in ends.items()} == {
        "weather": True, "book": False, "own": False, "late": False,
    }  # fmt: skip
    assert (ends["book"]["error"], ends["own"]["error"]) == ("7 is taken", "8 is taken")
    assert ends["own"]["result"] == "sorry: 8 is taken"
    assert "timed out" in ends["late"]["error"]
    assert [line for line in said(found) if line.startswith("tool.")][:4] == [
        f"tool.call_start Planner 1 {name}" for name in ("weather", "book", "own", "late")
    ]


def test_a_tool_is_as_it_was_for_runs_of_others(play: Play) -> None:
    assert play("tools", "off")["told_of_others"] == 0
    assert play("tools", "off")["same"] is True


def test_a_tool_whose_failure_is_the_runs(play: Play) -> None:
    found = play("raising")
    assert said(found)[3:] == [
        "tool.call_start Planner 1 strict",
        "tool.call_complete Planner 1 False strict",
        "agent.turn_complete Planner 1 False failed UserError",
        "workflow.error Planner 1 UserError",
    ]
    assert found["events"][4]["error"] == "7 is taken"
    assert found["raised"] == ["UserError: Error running tool strict: 7 is taken"]


@pytest.mark.parametrize("hooks", ["", "hooks"])
def test_an_agent_that_is_a_tool_has_turns_of_its_own(play: Play, hooks: str) -> None:
    found = play("nested", hooks)
    told = [line for line in said(found) if not line.startswith(("model.", "tool.")) or "scout" in line]
    assert told[:4] == [
        "workflow.start",
        "agent.turn_start Planner 1",
        "tool.call_start Planner 1 scout_1",
        "tool.call_start Planner 1 scout_2",
    ]
    assert sorted(told[4:-2]) == [  # the two work at the same time
        "agent.turn_complete Scout 2 True completed",
        "agent.turn_complete Scout 3 True completed",
        "agent.turn_start Scout 2",
        "agent.turn_start Scout 3",
        "tool.call_complete Planner 1 True scout_1",
        "tool.call_complete Planner 1 True scout_2",
    ]
    assert told[-3].startswith("tool.call_complete")
    assert told[-2:] == ["agent.turn_complete Planner 1 True completed", "workflow.complete"]
    assert [agent for agent, _ in found["asked"]] == ["Planner", "Scout", "Scout"]
    blocks = [(agent, instructions[-1]) for agent, (instructions, _) in found["prompts"]]
    assert sorted(blocks) == [("Planner", "1")] * 2 + [("Scout", "2")] * 2 + [("Scout", "3")] * 2
    inside = [line for line in said(found) if line.startswith(("model.", "tool.")) and " Scout " in line]
    assert sorted(inside) == sorted(
        f"{line.format(number)}"
        for number in (2, 3)
        for line in (
            "model.call_complete Scout {} True",
            "tool.call_start Scout {} weather",
            "tool.call_complete Scout {} True weather",
            "model.call_complete Scout {} True",
        )
        if hooks
    )
    assert found["answer"] == "Done."


@pytest.mark.parametrize("hooks", ["", "hooks"])
def test_an_agent_that_fails_as_a_tool_fails_its_own_turn(play: Play, hooks: str) -> None:
    found = play("nested", hooks, "fails")
    assert sorted(turns(found)) == sorted(
        [
            "workflow.start",
            "agent.turn_start Planner 1",
            *(
                line
                for number in (2, 3)
                for line in (
                    f"agent.turn_start Scout {number}",
                    f"agent.turn_complete Scout {number} False failed ConnectionError",
                    f"workflow.error Scout {number} ConnectionError",
                )
            ),
            "agent.turn_complete Planner 1 True completed",
            "workflow.complete",
        ]
    )
    assert "tool.call_complete Planner 1 False scout_1" in said(found)


def test_a_turn_that_waits_for_a_person_goes_on(play: Play) -> None:
    found = play("approved")
    assert said(found) == [
        "workflow.start",
        "agent.turn_start Planner 1",
        "model.call_complete Planner 1 True",
        "tool.call_start Planner 1 pay",
        "tool.call_complete Planner 1 True pay",
        "model.call_complete Planner 1 True",
        "agent.turn_complete Planner 1 True completed",
        "workflow.complete",
    ]
    assert (found["answer"], len(found["asked"])) == ("Paid.", 1)


def test_chats_at_the_same_time_do_not_mix_and_neither_do_runs_of_one(play: Play) -> None:
    found = play("chats")
    told: dict[str, list[dict[str, Any]]] = {}
    for (chat, _, _), event in zip(found["placed"], found["events"], strict=True):
        told.setdefault(chat, []).append(event)
    assert {chat: len(events) for chat, events in told.items()} == {"c1": 14, "c2": 8, "c3": 8}
    assert found["answers"] == ["a", "b", "c", "d"]
    for chat, answers in {"c1": ["a", "b"], "c2": ["c"], "c3": ["d"]}.items():
        ends = {event["turn_number"]: event for event in told[chat] if event["type"] == "agent.turn_complete"}
        assert [(ends[number + 1]["response"], ends[number + 1]["outcome"]) for number in range(len(answers))] == [
            (answer, "completed") for answer in answers
        ]
        cities = {e["turn_number"]: e["result"] for e in told[chat] if e["type"] == "tool.call_complete"}
        assert cities == {number + 1: f"sunny in {answer}" for number, answer in enumerate(answers)}
        kinds = [event["type"] for event in told[chat] if event["type"].startswith("workflow.")]
        assert kinds == ["workflow.start", "workflow.complete"]
        assert told[chat][-1]["type"] == "workflow.complete"


@pytest.mark.parametrize("failing", ["", "fails"])
@pytest.mark.parametrize("mode", ["sync", "async", "streamed"])
@pytest.mark.parametrize("way", ["hangs", "fails", "garbage"])
def test_a_bus_that_is_broken_changes_no_answer(play: Play, mode: str, failing: str, way: str) -> None:
    def answers(found: dict[str, Any]) -> list[Any]:
        return [found[name] for name in ("history", "kept", "error", "context", "kinds", "instructions", "prompts")]

    broken, without = play("conversation", mode, way, failing), play("conversation", mode, "none", failing)
    assert answers(broken) == answers(without)
    assert (without["events"], without["stats"]["published"]) == ([], 0)
    assert broken["stats"]["published"] == 15


def test_ids_are_those_of_the_context_object_or_the_runs(play: Play) -> None:
    found = play("carriers")
    unnamed = {"workflow_name": "Agent workflow"}
    assert found["placed"] == [
        ["shop", "s1", "Agent workflow", "u1", {"app_id": "shop", "user_id": "u1", "chat_id": "s1", **unnamed}],
        ["shop", "c1", "Agent workflow", "u1", {"app_id": "shop", "user_id": "u1", "chat_id": "c1", **unnamed}],
        ["shop", "g1", "Sales", "u1", {"app_id": "shop", "user_id": "u1", "chat_id": "g1", "workflow_name": "Sales"}],
        ["shop", "g2", "Agent workflow", None, {"app_id": "shop", "chat_id": "g2", **unnamed}],
    ]
    assert (found["stats"]["asked"], found["stats"]["without_context"]) == (4, 0)
    assert found["stats"]["unplaced"] > 0  # the run without a context object
    assert found["prompts"][-1][1][0] == "You are Planner."


def test_hooks_and_filters_of_the_callers_own_go_on_working(play: Play) -> None:
    found = play("composed")
    assert found["heard"] == [
        "start Planner",
        "ask YOU ARE PLANNER.", "told", "tool weather", "done weather",
        "ask YOU ARE PLANNER.", "told", "tool book", "done book",
        "ask YOU ARE PLANNER.", "told", "over Planner Writer",
        "start Writer", "ask YOU ARE WRITER.", "told", "end Writer Draft done.",
    ]  # fmt: skip
    assert found["untouched"] is True
    instructions = [instructions for _, (instructions, _) in found["prompts"]]
    assert instructions[0] == "YOU ARE PLANNER.\n\n## Notes\n- block 1"
    assert instructions[4] == "You are Planner.\n\n## Notes\n- block 3"  # ours are not put in twice
    run = ["workflow.start", *PLANNED, *WRITER, "workflow.complete"]
    assert said(found)[: len(run)] == run
    assert len(said(found)) == 2 * len(run) + 2 + 4


def test_what_the_sdk_refuses_it_refuses_as_ever(play: Play) -> None:
    found = play("composed")
    assert found["errors"] == [
        "TypeError: Run hooks must be instances of RunHooks. Received str.",
        "UserError: call_model_input_filter must return a ModelInputData instance",
    ]


def test_hooks_and_filter_alone_tell_all_but_the_run_and_its_errors(play: Play) -> None:
    assert said(play("conversation", "hooks")) == [*PLANNED, *WRITER]
    failed = play("conversation", "hooks", "works", "fails")
    assert said(failed) == [*PLANNED, "agent.turn_start Writer 2", "agent.turn_complete Writer 2 False abandoned"]
    assert failed["error"] == "ConnectionError: no model"


@pytest.mark.parametrize("way", ["works", "hangs", "none"])
def test_turns_are_measured(play: Play, way: str) -> None:
    assert len(play("turns", way, "2")["ms"]) == 2


PAGE = (ROOT / "docs/runtimes/openai-agents.md").read_text("utf-8")


def block(language: str, first_line: str = "") -> str:
    [text] = re.findall(rf"```{language}\n({re.escape(first_line)}.*?)```", PAGE, re.DOTALL)
    return str(text)


def test_the_example_of_the_page_runs_as_printed(runtime_python: Callable[[str], Path], tmp_path: Path) -> None:
    """A run through bus, worker and responder: the second turn's prompt holds what a tool found in the first."""
    rules = tmp_path / "workflows/Travel/graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text(block("yaml"))
    (tmp_path / "travel.py").write_text(block("python", "# travel.py"))
    assert run_beside_up(tmp_path, runtime_python("openai-agents"), "travel.py") == block("text")
