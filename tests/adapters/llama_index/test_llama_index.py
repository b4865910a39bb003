"""LlamaIndex with its real package: the events of scripted runs, and the prompts of the model."""

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

MODES = ["conversation run", "conversation started", "conversation streamed"]
PLANNED = [line.replace("to_writer", "handoff") for line in PLANNER]
"""Agents of LlamaIndex hand over by this tool."""
COMPLETED = "agent.turn_complete Planner 1 True completed"
OPEN_TOOL = [MODEL, *tool_lines("weather", None)]


class TestLlamaIndex(AdapterContract):
    runtime = Runtime(
        extra="llama-index",
        conversation=MODES,
        planner=PLANNED,
        contents={
            **CONTENTS,
            "tool.call_start": [
                *CONTENTS["tool.call_start"][:2], {"arguments": {"to_agent": "Writer", "reason": "the plan stands"}}
            ],
            "tool.call_complete": [
                *CONTENTS["tool.call_complete"][:2], {"call_id": "t3", "result": "over to Writer: the plan stands"}
            ],
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
        cancelled={"cancelled task": "CancelledError", "cancelled handler": "WorkflowCancelledEvent"},
        abandoned={
            "abandoned": [
                "workflow.start", *PLANNED, WRITER[0], "agent.turn_complete Writer 2 False abandoned"
            ],
        },
        nested={"nested": "ask_writer"},
        nested_failing={
            "nested": ["tool.call_complete Planner 1 False ask_writer", MODEL, COMPLETED, "workflow.complete"]
        },
        failures={"stopped limit": Failure(error="WorkflowRuntimeError", steps=OPEN_TOOL)},
        waiting={"approved": "pay"},
        parts={
            "stopped generate": [
                "workflow.start", "agent.turn_start Planner 1", *OPEN_TOOL, COMPLETED, "workflow.complete"
            ]
        },
        structured=["structured"],
        own=[("Planner", "approve")],
    )  # fmt: skip

    def test_model_calls_are_timed(self, run_scene: RunScene) -> None:
        events = run_scene("conversation streamed")["events"]
        assert all(event["duration_ms"] > 0 for event in events if event["type"] == "model.call_complete")

    def test_a_failing_tool_is_reported_however_it_fails(self, run_scene: RunScene) -> None:
        events = run_scene("tools")["events"]
        ends = {event["call_id"]: event for event in events if event["type"] == "tool.call_complete"}
        assert {call_id: event["success"] for call_id, event in ends.items()} == {
            "t1": True, "t2": False, "t3": True, "t4": False, "t5": False, "t6": True,
        }  # fmt: skip
        assert ends["t2"]["error"] == "7 is taken"
        assert "city" in ends["t4"]["error"]
        assert "missing" in ends["t5"]["error"]
        assert ends["t3"]["result"] == {"room": "9"}
        assert [event["response"] for event in events if event["type"] == "agent.turn_complete"] == [
            "Done.", "sunny in Oslo",
        ]  # fmt: skip

    @pytest.mark.parametrize("scene", ["reacting", "coding", "coding prompt="])
    def test_agents_that_write_their_system_message_get_context(self, run_scene: RunScene, scene: str) -> None:
        found = run_scene(scene)
        assert found["answers"] == "Sunny."
        assert len(found["asked"]) == 1
        for _, prompt in found["prompts"]:
            [own] = [part["content"] for part in prompt if part["role"] == "system"]
            [question] = [part["content"] for part in prompt if "block" in part["content"]]
            assert question.endswith("\n\n## Notes\n- block 1")
            assert ("You are Planner." in own) == (scene != "coding prompt=")
        [end] = [event for event in found["events"] if event["type"] == "agent.turn_complete"]
        assert (end["response"], end["outcome"]) == ("Sunny.", "completed")
        for _, prompt in run_scene(scene, context_place="instructions")["prompts"]:
            own, block = [part["content"] for part in prompt if part["role"] == "system"]
            assert (own == "## Notes\n- block 1", block) == (False, "## Notes\n- block 1")

    @pytest.mark.parametrize("to", ["Nobody", "Planner"])
    def test_a_hand_over_that_fails_keeps_the_turn(self, run_scene: RunScene, to: str) -> None:
        found = run_scene(f"refused {to}")
        assert event_lines(found) == self.runtime.run(*turn_lines(tool="handoff"))
        assert found["answers"] == "Plan done."

    def test_hostile_texts_pass_unchanged(self, run_scene: RunScene) -> None:
        found, without = run_scene("hostile"), run_scene("hostile", way="none")
        assert found["answers"] == without["answers"] == found["events"][-1]["outputs"]
        assert found["stats"]["errors"] == 0
        assert event_lines(found)[0] == "workflow.start"
        results = [event["result"] for event in found["events"] if event.get("call_id") == "t1" and "result" in event]
        assert results == [found["answers"]]
        for _, prompt in found["prompts"]:
            [at] = [n for n, part in enumerate(prompt) if "## Notes" in str(part["content"])]
            block = f"\n\n{found['answers']}## Notes\n- block 1"
            assert prompt[at]["content"].endswith(block)
            prompt[at]["content"] = prompt[at]["content"].removesuffix(block)
        assert found["prompts"] == without["prompts"]

    def test_an_agent_outside_of_a_run_is_counted(self, run_scene: RunScene) -> None:
        found = run_scene("plain")
        assert (found["answers"], found["events"], found["asked"]) == ("Hello.", [], [])
        assert found["stats"]["unplaced"] == 1

    def test_a_run_without_an_agent_of_the_adapter_is_counted(self, run_scene: RunScene) -> None:
        found = run_scene("foreign")
        assert (found["answers"], event_lines(found)) == ("Hello.", ["workflow.start", "workflow.complete"])
        assert found["stats"]["unplaced"] == 1

    def test_ids_come_from_the_variables_or_the_memory(self, run_scene: RunScene) -> None:
        found = run_scene("carriers")
        ids = {"app_id": "shop", "chat_id": "s1", "user_id": "u1"}
        assert found["placed"] == [
            ["shop", "s1", None, "u1", {**ids, "mood": "good"}],
            ["shop", "s1", None, "u1", {**ids, "mood": "better"}],
        ]
        assert found["stats"]["unplaced"] > 0  # the run without any
