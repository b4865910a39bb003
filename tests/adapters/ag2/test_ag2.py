"""AG2 1.x with its real package: the events of scripted conversations, and the prompts of the model."""

from __future__ import annotations

import re

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

HANDS_OVER = (*PLANNER[:-2], MODEL, *PLANNER[-2:])
"""AG2 asks the model once more when a tool has handed over: its answer goes to the next agent."""
ALONE = ["workflow.start", *turn_lines(), "workflow.complete"]
COMPLETED = "agent.turn_complete Planner 1 True completed"


class TestAG2(AdapterContract):
    runtime = Runtime(
        extra="ag2",
        conversation=[
            f"conversation {attaching} {where}"
            for attaching in ("plugin", "attach", "both")
            for where in ("variables", "labels")
        ],
        planner=HANDS_OVER,
        contents={
            **CONTENTS,
            "tool.call_complete": [
                *CONTENTS["tool.call_complete"][:2],
                {"call_id": "t3", "result": {"target": "Writer", "reason": "the plan stands"}},
            ],
            "model.call_complete": [{"model": "fake"}] * 5,
        },
        joined=False,
        context=["conversation"],
        words={"Planner": "[Ada]: plan a trip", "Writer": "[Ada]: plan a trip"},
        placed=["conversation"],
        refused=["conversation"],
        instructions=["asked ask", "left cancelled", "left left"],
        failing=["conversation"],
        unaffected=["conversation", "delegated tool", "asked ask"],
        repeated=["repeated"],
        together=["together"],
        cancelled={"left cancelled": "CancelledError", "left left": None},
        abandoned={
            "person never": [
                *ALONE[:3],
                *tool_lines("approve", None),
                "agent.turn_complete Planner 1 False abandoned",
                "workflow.error Planner CancelledError",  # the scene cancels the run in the end
            ]
        },
        nested={"delegated tool": "task_Writer", "delegated own": "ask_writer", "delegated network": "delegate"},
        nested_failing={
            "delegated tool": [
                "tool.call_complete Planner 1 True task_Writer", MODEL, COMPLETED, "workflow.complete",
            ]
        },
        failures={
            "own_config": Failure(
                error="RuntimeError",
                message="7 is taken",
                steps=[MODEL, *tool_lines("book", False), "model.call_complete Planner 1 False RuntimeError"],
            ),
            "person gone": Failure(error="HumanInputFailedError", steps=[MODEL, *tool_lines("approve", False)]),
        },
        waiting={"person": "approve"},
        own=[("Planner", "approve")],
    )  # fmt: skip

    def test_a_tool_that_the_channel_takes_for_a_hand_over_is_one(self, run_scene: RunScene) -> None:
        found = run_scene("conversation static")
        hands_over = [line.replace("to_writer", "to_other") for line in HANDS_OVER]
        assert event_lines(found) == ["workflow.start", *hands_over, *WRITER, "workflow.complete"]
        assert found["events"][-2]["context"]["city"] == "Oslo"  # the channel's own variable, set by that tool

    def test_tools_see_and_change_the_context_variables(self, run_scene: RunScene) -> None:
        weather, book, _ = (e for e in run_scene("conversation")["events"] if e["type"] == "tool.call_complete")
        assert weather["context"]["city"] == "Oslo"
        assert book["result"] is None

    @pytest.mark.parametrize("mode", ["tool", "own", "network"])
    def test_a_nested_turn_sees_the_events_before_it(self, run_scene: RunScene, mode: str) -> None:
        found = run_scene(f"delegated {mode}")
        assert found["asked"] == [["Planner", "0:0"], ["Writer", "0:3"]]
        assert found["events"][-1]["outputs"] == "Plan done."

    def test_a_background_agent_belongs_to_the_run_of_its_turn(self, run_scene: RunScene) -> None:
        found = run_scene("delegated background")
        lines = [line for line in event_lines(found) if "Writer" in line or line.startswith(("workflow", "agent"))]
        assert sorted(lines[1:-1]) == sorted(["agent.turn_start Planner 1", COMPLETED, *WRITER])
        assert (lines[0], lines[-1]) == ("workflow.start", "workflow.complete")
        assert found["ids"] == self.ids
        assert found["events"][-1]["outputs"] == "Plan done."

    @pytest.mark.parametrize("mode", ["ask", "again"])
    def test_a_stream_is_one_chat_in_all_its_runs(self, run_scene: RunScene, mode: str) -> None:
        """``reply.ask`` continues the stream of a reply, and ``agent.ask`` the one that it is given."""
        found = run_scene(f"asked {mode}")
        again = [line for line in turn_lines(2) if not line.startswith("tool")]
        assert event_lines(found) == [*ALONE, "workflow.start", again[0], *again[2:], "workflow.complete"]
        assert len(found["ids"]) == 1
        assert re.fullmatch(r"[0-9a-f-]{36}", found["ids"][0][1])

    def test_a_run_whose_stream_is_read_gives_its_events(self, run_scene: RunScene) -> None:
        found = run_scene("asked run")
        assert event_lines(found) == ALONE
        assert "ModelMessageChunk" in found["kinds"]

    def test_context_is_not_kept_in_a_stream(self, run_scene: RunScene) -> None:
        self.check_not_kept(run_scene("asked ask"))

    def test_policies_see_the_context_and_prompt_changes_stay(self, run_scene: RunScene) -> None:
        found = run_scene("budgeted")
        assert found["seen"] == [1, 1]
        changed = ["You are Planner.", "Changed.", "Changed."]
        assert found["prompt"] == run_scene("budgeted", way="none")["prompt"] == changed
        assert [str(prompt).count("block") for _, prompt in found["prompts"]] == [1, 1]

    def test_a_failing_model_of_one_agent_raises_to_the_caller(self, run_scene: RunScene) -> None:
        found = run_scene("asked ask", failing="yes")
        assert event_lines(found) == [
            *ALONE[:5],
            "model.call_complete Planner 1 False ConnectionError",
            "agent.turn_complete Planner 1 False failed ConnectionError",
            "workflow.error Planner 1 ConnectionError",
        ]
        assert found["error"] == "ConnectionError: no model"

    @pytest.mark.parametrize(
        ("way", "last"),
        [
            ("closed", "workflow.complete"),
            ("expired", "workflow.error ChannelExpired"),
            ("violated", "workflow.error ExpectationViolated"),
        ],
    )
    def test_a_channel_that_ends_by_itself_reports_how(self, run_scene: RunScene, way: str, last: str) -> None:
        assert event_lines(run_scene(f"ended {way}")) == ["workflow.start", last]

    def test_variables_of_the_runtime_are_not_published(self, run_scene: RunScene) -> None:
        assert "ag:secret" not in run_scene("own")["events"][0]["context"]

    @pytest.mark.parametrize(("attaching", "name"), [("attach", "Planner"), ("plugin", "agent")])
    def test_a_served_agent_has_its_name_if_it_is_attached(
        self, run_scene: RunScene, attaching: str, name: str
    ) -> None:
        assert event_lines(run_scene(f"served {attaching}")) == [
            "workflow.start", *[line.replace("Writer 2", f"{name} 1") for line in WRITER], "workflow.complete",
        ]  # fmt: skip
