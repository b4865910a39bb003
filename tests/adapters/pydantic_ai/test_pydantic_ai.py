"""Pydantic AI with its real package: the events of scripted runs, and the prompts of the model."""

from __future__ import annotations

import re

from tests.adapters.contract import (
    CONTENTS,
    MODEL,
    PLANNER,
    WRITER,
    WRITER_FAILS,
    AdapterContract,
    Failure,
    Runtime,
    event_lines,
    tool_lines,
    turn_lines,
)
from tests.adapters.runner import RunScene

MODES = ["conversation sync", "conversation run", "conversation events", "conversation iter"]
PLANNED = [line for line in PLANNER if "to_writer" not in line]
"""A hand-over is an output function here, which is no tool."""
COMPLETED = "agent.turn_complete Planner 1 True completed"
BLOCK = ["workflow.start", *PLANNED[:-2], COMPLETED, PLANNED[-1]]


class TestPydanticAI(AdapterContract):
    runtime = Runtime(
        extra="pydantic-ai",
        conversation=MODES,
        planner=PLANNED,
        contents={
            **CONTENTS,
            "tool.call_start": CONTENTS["tool.call_start"][:2],
            "tool.call_complete": CONTENTS["tool.call_complete"][:2],
        },
        context=[*MODES, "block"],
        placed=[*MODES, "block"],
        refused=[*MODES, "block"],
        instructions=MODES,
        failing=MODES,
        unaffected=["conversation run", "conversation events", "block"],
        repeated=["repeated"],
        together=["together"],
        cancelled={"cancelled task": "CancelledError", "cancelled stream": None},
        abandoned={
            "abandoned": [
                "workflow.start", "agent.turn_start Planner 1", "agent.turn_complete Planner 1 False abandoned"
            ]
        },
        nested={"nested": "ask_writer"},
        nested_failing={
            "nested": [
                "tool.call_complete Planner 1 False ask_writer",
                "agent.turn_complete Planner 1 False failed ConnectionError",
            ]
        },
        failures={
            "stopped tool": Failure(
                error="RuntimeError", message="7 is taken", steps=[MODEL, *tool_lines("broken", False)]
            ),
            "stopped limit": Failure(error="UsageLimitExceeded", steps=turn_lines()[1:4]),
            "stopped retries": Failure(
                error="UnexpectedModelBehavior",
                steps=[MODEL, *tool_lines("book", False), MODEL, *tool_lines("book", False)],
            ),
            "left": Failure(error="CancelledError", message=None, steps=[MODEL]),
        },
        waiting={"approved declared": "pay", "approved raises": "pay"},
        parts={
            "block": [*BLOCK, *WRITER, "workflow.complete"],
            "block failing=yes": [*BLOCK, *WRITER_FAILS],
        },
        structured=["structured"],
        own=[("Planner", "approve")],
    )  # fmt: skip

    def test_model_calls_have_tokens_and_times(self, run_scene: RunScene) -> None:
        events = run_scene("conversation run")["events"]
        calls = [event for event in events if event["type"] == "model.call_complete"]
        assert all(event["duration_ms"] > 0 for event in calls)
        assert all(event["input_tokens"] > 0 and event["output_tokens"] > 0 for event in calls)

    def test_a_failing_tool_is_reported_however_it_fails(self, run_scene: RunScene) -> None:
        events = run_scene("tools")["events"]
        ends = {event["call_id"]: event for event in events if event["type"] == "tool.call_complete"}
        assert {call_id: event["success"] for call_id, event in ends.items()} == {
            "t1": True, "t2": False, "t3": False, "t4": True, "t5": False,
        }  # fmt: skip
        assert [ends[call_id]["error"] for call_id in ("t2", "t3")] == ["7 is taken", "8 is taken"]
        assert "Field required" in ends["t5"]["error"]
        assert ends["t4"]["result"] == {"room": "9"}

    def test_a_turn_that_is_not_resumed_was_abandoned(self, run_scene: RunScene) -> None:
        again = [line.replace("Planner 1", "Planner 2") for line in turn_lines()]
        assert event_lines(run_scene("approved raises other")) == [
            "workflow.start", *turn_lines()[:2], *tool_lines("pay", None),
            "agent.turn_complete Planner 1 False abandoned", again[0], again[1], again[-1], "workflow.complete",
        ]  # fmt: skip

    def test_a_block_gives_its_variables_to_agents_without_their_own(self, run_scene: RunScene) -> None:
        found = run_scene("block")
        assert all(event["context"].get("trip") == "Oslo" for event in found["events"])
        assert found["events"][-1]["outputs"] == "Draft done."

    def test_agents_of_one_block_may_work_at_the_same_time(self, run_scene: RunScene) -> None:
        lines = event_lines(run_scene("beside"))
        assert [line for line in lines if not line.startswith(("model.", "agent."))] == [
            "workflow.start", "workflow.complete",
        ]  # fmt: skip
        assert sorted(line for line in lines if line.startswith("agent.turn_complete")) == [
            "agent.turn_complete Planner 1 True completed",
            "agent.turn_complete Writer 2 True completed",
        ]

    def test_a_model_that_tries_again_after_its_output_has_a_new_turn(self, run_scene: RunScene) -> None:
        found = run_scene("again")
        assert event_lines(found) == [
            "workflow.start",
            *(
                line
                for number in (1, 3)
                for line in (
                    f"agent.turn_start Planner {number}",
                    f"model.call_complete Planner {number} True",
                    f"agent.turn_complete Planner {number} True handed_off",
                    "workflow.phase_complete Planner Judge",
                    f"agent.turn_start Judge {number + 1}",
                    f"model.call_complete Judge {number + 1} True",
                    f"agent.turn_complete Judge {number + 1} True completed",
                )
            ),
            "workflow.complete",
        ]
        assert [agent for agent, _ in found["asked"]] == ["Planner", "Judge"] * 2

    def test_ids_come_from_the_dependencies_or_the_run(self, run_scene: RunScene) -> None:
        found = run_scene("carriers")
        user = {"app_id": "shop", "user_id": "u1"}
        assert found["placed"] == [
            ["shop", "s1", None, "u1", {**user, "chat_id": "s1"}],
            ["shop", "s2", "Sales", "u1", {**user, "chat_id": "s2", "workflow_name": "Sales"}],
            ["shop", "s3", None, None, {"app_id": "shop", "chat_id": "s3"}],
        ]
        assert found["stats"]["unplaced"] > 0  # the run without any
        assert found["prompts"][-1][1][0]["content"] == "You are Planner."

    def test_other_capabilities_still_work_and_ours_counts_once(self, run_scene: RunScene) -> None:
        found = run_scene("composed")
        assert found["answers"] == ["Sorry.", "Hello."]
        assert [prompt[0]["content"] for _, prompt in found["prompts"]] == ["YOU ARE PLANNER."] * 2
        assert [re.findall(r"block \d", str(prompt)) for _, prompt in found["prompts"]] == [["block 1"], ["block 2"]]
        failed, worked = (
            self.runtime.run(
                f"agent.turn_start Planner {number}",
                f"model.call_complete Planner {number} {success}",
                f"agent.turn_complete Planner {number} True completed",
            )
            for number, success in ((1, "False ConnectionError"), (2, "True"))
        )
        assert event_lines(found) == [*failed, *worked]
