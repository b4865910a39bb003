"""Google ADK with its real package: the events of scripted runs, and the prompts of the model."""

from __future__ import annotations

import pytest
from tests.adapters.contract import (
    CONTENTS,
    MODEL,
    PLANNER,
    WRITER,
    AdapterContract,
    Failure,
    Runtime,
    event_lines,
    tool_lines,
    turn_lines,
)
from tests.adapters.runner import RunScene

MODES = ["conversation run", "conversation sync", "conversation streamed"]
PLANNED = [line.replace("to_writer", "transfer_to_agent") for line in PLANNER]
"""Agents of ADK hand over by this tool."""
COMPLETED = "agent.turn_complete Planner 1 True completed"


def turn(agent: str, number: int) -> list[str]:
    """Return the events of a turn without tools."""
    return [
        f"agent.turn_start {agent} {number}",
        f"model.call_complete {agent} {number} True",
        f"agent.turn_complete {agent} {number} True completed",
    ]


class TestGoogleADK(AdapterContract):
    runtime = Runtime(
        extra="google-adk",
        conversation=MODES,
        planner=PLANNED,
        contents={
            **CONTENTS,
            "tool.call_start": [*CONTENTS["tool.call_start"][:2], {"arguments": {"agent_name": "Writer"}}],
            "tool.call_complete": [*CONTENTS["tool.call_complete"][:2], {"call_id": "t3", "result": None}],
            "model.call_complete": [{"model": "fake", "input_tokens": 5, "output_tokens": 7}] * 4,
        },
        context=MODES,
        placed=MODES,
        refused=MODES[:2],
        instructions=MODES,
        failing=MODES,
        unaffected=["conversation run", "conversation streamed"],
        repeated=["repeated"],
        together=["together"],
        cancelled={
            "cancelled task": "CancelledError", "cancelled sequence": "CancelledError", "cancelled reader": None
        },
        abandoned={
            "abandoned": [
                "workflow.start", *PLANNED[:2], *PLANNED[-4:], WRITER[0], "agent.turn_complete Writer 2 False abandoned"
            ],
        },
        nested={"nested": "Writer"},
        nested_failing={
            "nested": [
                "tool.call_complete Planner 1 False Writer",
                "agent.turn_complete Planner 1 False failed ConnectionError",
            ]
        },
        failures={
            "stopped tool": Failure(
                error="RuntimeError", message="7 is taken", steps=[MODEL, *tool_lines("book", False)]
            ),
            "stopped callback": Failure(
                error="ValueError", message="no entry", steps=["model.call_complete Planner 1 False ValueError"]
            ),
            "left run": Failure(error="GeneratorExit", message=None, steps=[MODEL]),
            "left sequence": Failure(
                error="GeneratorExit", message=None, steps=["model.call_complete Planner 1 False GeneratorExit"]
            ),
        },
        waiting={"approved": "pay"},
        structured=["structured"],
        own=[("Planner", "approve")],
    )  # fmt: skip

    def test_context_stands_below_a_question_with_a_picture(self, run_scene: RunScene) -> None:
        found = run_scene("pictured")
        [(_, [system, question])] = found["prompts"]
        assert system["content"] == "You are Planner."
        assert question["content"].startswith("What is it?\n")
        assert question["content"].endswith("\n## Notes\n- block 1")
        self.check_not_kept(found)

    def test_model_calls_are_timed(self, run_scene: RunScene) -> None:
        events = run_scene("conversation streamed")["events"]
        assert all(event["duration_ms"] > 0 for event in events if event["type"] == "model.call_complete")

    def test_a_failing_tool_is_reported_however_it_fails(self, run_scene: RunScene) -> None:
        events = run_scene("tools")["events"]
        ends = {event["call_id"]: event for event in events if event["type"] == "tool.call_complete"}
        assert {call_id: event["success"] for call_id, event in ends.items()} == {
            "t1": True, "t2": False, "t3": False, "t4": True, "t5": False, "t6": False,
        }  # fmt: skip
        assert [ends[call_id]["error"] for call_id in ("t2", "t3")] == ["7 is taken", "8 is taken"]
        assert "city" in ends["t5"]["error"]
        assert ends["t4"]["result"] == {"status": "success", "room": "9"}

    def test_a_tool_that_a_person_refuses_fails(self, run_scene: RunScene) -> None:
        turns = turn_lines(tool="pay")
        refused = [line.replace("complete Planner 1 True pay", "complete Planner 1 False pay") for line in turns]
        assert event_lines(run_scene("approved then=refused")) == self.runtime.run(*refused)

    def test_a_turn_that_is_not_resumed_was_abandoned(self, run_scene: RunScene) -> None:
        assert event_lines(run_scene("approved then=other")) == [
            "workflow.start", *turn_lines()[:2], *tool_lines("pay", None),
            "agent.turn_complete Planner 1 False abandoned", *turn("Planner", 2), "workflow.complete",
        ]  # fmt: skip

    @pytest.mark.parametrize(("how", "agents"), [("sequence", "PW"), ("loop", "PWPW")])
    def test_agents_one_after_the_other_are_phases(self, run_scene: RunScene, how: str, agents: str) -> None:
        names = [{"P": "Planner", "W": "Writer"}[each] for each in agents]
        lines: list[str] = []
        for number, (before, name) in enumerate(zip(["", *names], names, strict=False), start=1):
            lines += [f"workflow.phase_complete {before} {name}"] if before else []
            lines += turn(name, number)
        assert event_lines(run_scene(f"team {how}")) == self.runtime.run(*lines)

    def test_agents_at_the_same_time_are_no_phases(self, run_scene: RunScene) -> None:
        lines = event_lines(run_scene("team parallel"))
        assert sorted(lines) == sorted(self.runtime.run(*turn("Planner", 1), *turn("Writer", 2)))

    def test_an_agent_that_works_twice_at_a_time_has_two_turns(self, run_scene: RunScene) -> None:
        found = run_scene("inline")
        lines = event_lines(found)
        for number in (2, 3):
            writer = [line for line in lines if f"Writer {number}" in line]
            assert writer == [line.replace("Planner", "Writer") for line in turn_lines(number)]
        assert [line for line in lines if "Planner 1" in line] == [
            *turn_lines()[:2], *["tool.call_start Planner 1 Writer"] * 2,
            *["tool.call_complete Planner 1 True Writer"] * 2, MODEL, COMPLETED,
        ]  # fmt: skip
        assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer", "Writer"]
        assert found["ids"] == self.ids

    def test_a_run_inside_the_handling_of_a_cancellation_is_not_cancelled(self, run_scene: RunScene) -> None:
        assert event_lines(run_scene("inside")) == self.runtime.run(*turn("Planner", 1))

    def test_ids_come_from_the_state_or_the_session(self, run_scene: RunScene) -> None:
        ids = {"app_id": "shop", "chat_id": "s1", "user_id": "u7", "workflow_name": "crew"}
        own = {"app_id": "crew", "chat_id": "c2", "user_id": "u1", "workflow_name": "crew"}
        assert run_scene("carriers")["placed"] == [
            ["shop", "s1", "crew", "u7", ids],
            ["crew", "c2", "crew", "u1", {**own, "user:tier": "gold"}],
        ]

    def test_other_plugins_and_callbacks_still_work(self, run_scene: RunScene) -> None:
        found = run_scene("composed")
        assert found["answers"] == ["Sorry.", "As before.", "Closed."]
        failed, cached, closed = (
            self.runtime.run(line[0], *line[1:-1], line[-1]) for line in (turn("Planner", n) for n in (1, 2, 3))
        )
        failed[2] = "model.call_complete Planner 1 False ConnectionError"
        assert event_lines(found) == [*failed, *(line for line in [*cached, *closed] if not line.startswith("model."))]
        ends = [event["response"] for event in found["events"] if event["type"] == "agent.turn_complete"]
        assert ends == ["Sorry.", "As before.", "Closed."]

    def test_what_was_said_in_one_session_is_found_in_another(self, run_scene: RunScene) -> None:
        found = run_scene("remembered")
        first = [["user", "No nuts.", None], ["assistant", "Noted.", "Planner"]]
        note = [["user", "No milk.", None]]
        assert [(user, said) for _, user, said in found["memories"]] == [("u1", first)] * 3 + [("u1", note)]
        assert len({id for id, _, _ in found["memories"]}) == 3  # the first turn was added twice
        assert {app for app, *_ in found["ids"]} == {"shop"}
        [answer] = [
            event["result"]
            for event in found["events"]
            if event.get("tool_name") == "load_memory" and "result" in event
        ]
        assert [(one["author"], one["content"]["parts"][0]["text"]) for one in answer["memories"]] == [
            ("user", "No nuts."), ("Planner", "Noted."), ("user", "No nuts."),
        ]  # fmt: skip
        assert found["searches"][0]["memory"]["user_id"] == "u1"
        assert found["strangers"] == []
        assert (found["stats"]["searches"], found["stats"]["missing_results"]) == (2, {})

    @pytest.mark.parametrize("way", ["hangs", "fails", "garbage"])
    def test_a_search_without_an_answer_finds_nothing(self, run_scene: RunScene, way: str) -> None:
        found = run_scene("remembered", way=way)
        assert found["strangers"] == []
        assert sum(found["stats"]["missing_results"].values()) == 2
