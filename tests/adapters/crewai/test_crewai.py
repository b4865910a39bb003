"""CrewAI with its real package: the events of scripted runs, and the prompts of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
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

MODES = ["conversation kickoff", "conversation thread", "conversation async", "conversation streamed"]
COMPLETED = "agent.turn_complete Planner 1 True completed"
PLANNED = [*PLANNER[:8], COMPLETED, PLANNER[-1]]
"""No agent hands over: the crew lets the writer work after the planner has answered."""
NESTED_FAILING = ["tool.call_complete Planner 1 False ask_writer", MODEL, COMPLETED, "workflow.complete"]


def turn(agent: str, number: int) -> list[str]:
    """Return the events of a turn without tools."""
    return [
        f"agent.turn_start {agent} {number}",
        f"model.call_complete {agent} {number} True",
        f"agent.turn_complete {agent} {number} True completed",
    ]


class TestCrewAI(AdapterContract):
    runtime = Runtime(
        extra="crewai",
        conversation=MODES,
        planner=PLANNED,
        contents={
            **CONTENTS,
            "tool.call_start": CONTENTS["tool.call_start"][:2],
            "tool.call_complete": [{"result": "sunny in Oslo"}, {"error": "7 is taken"}],
            "model.call_complete": [{"model": "fake", "input_tokens": 5, "output_tokens": 7}] * 4,
            "agent.turn_complete": [
                {"response": "Plan done.", "context_id": "ctx-1"}, {"response": "Draft done.", "context_id": "ctx-2"}
            ],
        },
        context=MODES,
        words={"Writer": "write it down"},
        placed=MODES,
        failing=MODES,
        unaffected=["conversation kickoff", "conversation streamed"],
        repeated=["repeated"],
        together=["together threads", "together tasks"],
        cancelled={"cancelled async": "CancelledError", "cancelled thread": "CancelledError"},
        abandoned={
            "abandoned": [
                "workflow.start", *PLANNED, WRITER[0], "agent.turn_complete Writer 2 False abandoned"
            ],
        },
        nested={"nested agent": "ask_writer", "nested crew": "ask_writer", "nested block": "ask_writer"},
        nested_failing={f"nested {how}": NESTED_FAILING for how in ("agent", "crew", "block")},
        failures={"blocked": Failure(error="HookAborted", message="no entry")},
        structured=["structured"],
        own=[("Planner", "approve")],
    )  # fmt: skip

    @pytest.fixture(autouse=True)
    def _quiet(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """CrewAI sends nothing to its makers, and writes the outputs of tasks into a folder of the test."""
        monkeypatch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
        monkeypatch.setenv("CREWAI_TRACING_ENABLED", "false")
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def test_model_calls_are_timed(self, run_scene: RunScene) -> None:
        events = run_scene("conversation kickoff")["events"]
        assert all(event["duration_ms"] > 0 for event in events if event["type"] == "model.call_complete")

    @pytest.mark.parametrize("way", ["kickoff plain", "kickoff streamed", "async plain", "async streamed"])
    def test_a_model_behind_a_server_has_events_and_context(self, run_scene: RunScene, way: str) -> None:
        found = run_scene(f"served {way} weather")
        assert event_lines(found) == self.runtime.run(*turn_lines())
        assert found["answers"] == ["Oslo", None]
        assert [str(prompt).count("- block 1") for prompt in found["prompts"]] == [1, 1]
        assert {event["model"] for event in found["events"] if event["type"] == "model.call_complete"} == {
            "gpt-4o-mini"
        }

    @pytest.mark.parametrize(
        ("scene", "error"),
        [("served kickoff plain fail", "InternalServerError"), ("served async streamed cut", "RemoteProtocolError")],
    )
    def test_a_server_that_fails_is_reported(self, run_scene: RunScene, scene: str, error: str) -> None:
        found = run_scene(scene)
        fails = [line.replace("Writer 2", "Planner 1").replace("ConnectionError", error) for line in WRITER_FAILS]
        assert event_lines(found) == self.runtime.run(*fails, ends="")
        assert found["answers"][1].startswith(error)

    def test_an_agent_after_its_block_is_counted(self, run_scene: RunScene) -> None:
        found = run_scene("late")
        assert event_lines(found) == event_lines(run_scene("cancelled thread"))
        assert [agent for agent, _ in found["asked"]] == ["Planner"]
        assert found["stats"]["unplaced"] == 2  # the writer, and the event of the program

    def test_a_task_that_is_tried_again_after_a_refusal_has_no_context(self, run_scene: RunScene) -> None:
        found = run_scene("tried_again", refused="block")
        assert found["answers"] == "Sunny."
        assert ["block" in str(prompt) for _, prompt in found["prompts"]] == [True, False, False]
        assert found["stats"]["refused_context"] == 1
        ends = [event for event in found["events"] if event["type"] == "agent.turn_complete"]
        assert [(end["success"], bool(end.get("context_id"))) for end in ends] == [(False, True), (True, False)]
        self.check_not_kept(found)

    def test_a_model_without_events_still_gets_context(self, run_scene: RunScene) -> None:
        found = run_scene("silent")
        assert event_lines(found) == self.runtime.run(*(line for line in turn_lines() if not line.startswith("model")))
        for _, prompt in found["prompts"]:
            assert prompt[1]["content"].endswith("\n\n## Notes\n- block 1")
            assert str(prompt).count("block") == 1
        self.check_not_kept(found)

    def test_a_failing_tool_is_reported_however_it_fails(self, run_scene: RunScene) -> None:
        events = run_scene("tools")["events"]
        starts = {event["call_id"]: event for event in events if event["type"] == "tool.call_start"}
        ends = {event["call_id"]: event for event in events if event["type"] == "tool.call_complete"}
        told = [(start["tool_name"], str(start["arguments"]), ends[id]["success"]) for id, start in starts.items()]
        assert sorted(told) == [
            ("book", "{'room': '7'}", False), ("missing", "{}", False), ("rich", "{'room': '9'}", True),
            ("weather", "{'city': 'Oslo'}", True), ("weather", "{}", False),
        ]  # fmt: skip
        errors = sorted(event["error"] for event in ends.values() if not event["success"])
        assert "7 is taken" in errors

    def test_a_model_that_asks_in_its_text_has_the_same_events(self, run_scene: RunScene) -> None:
        found = run_scene("thinking")
        start, model, *called = turn_lines()[:-1]
        attempts = tool_lines("book", False) * 3  # CrewAI tries a tool again that fails
        assert event_lines(found) == self.runtime.run(start, model, *called, *attempts, model, COMPLETED)
        assert [event["error"] for event in found["events"] if "error" in event] == ["7 is taken"] * 3
        assert [str(prompt).count("- block 1") for _, prompt in found["prompts"]] == [1, 1, 1]

    def test_an_agent_to_which_a_task_is_delegated_has_its_own_turn(self, run_scene: RunScene) -> None:
        found = run_scene("delegated")
        lines = turn_lines(tool="delegate_work_to_coworker")
        assert event_lines(found) == self.runtime.run(*lines[:3], *WRITER, *lines[3:])
        assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer"]

    def test_each_attempt_at_a_task_is_a_turn(self, run_scene: RunScene) -> None:
        failed = [line.replace("Writer 2", "Planner 1") for line in WRITER_FAILS]
        assert event_lines(run_scene("retried")) == self.runtime.run(*failed, *turn("Planner", 2))

    def test_tasks_at_the_same_time_are_no_phases(self, run_scene: RunScene) -> None:
        lines = event_lines(run_scene("beside"))
        assert [line for line in lines if line.startswith(("workflow", "agent.turn_complete Editor"))] == [
            "workflow.start", lines[-4 - 1], "agent.turn_complete Editor 3 True completed", "workflow.complete",
        ]  # fmt: skip
        assert lines[-5].startswith("workflow.phase_complete ")
        assert sorted(lines[1:7]) == sorted([*turn(*lines[1].split()[1:2], 1), *turn(*lines[2].split()[1:2], 2)])

    def test_hostile_texts_pass_unchanged(self, run_scene: RunScene) -> None:
        found, without = run_scene("hostile"), run_scene("hostile", way="none")
        assert found["answers"] == without["answers"] == found["events"][-1]["outputs"]
        assert found["stats"]["errors"] == 0
        for _, prompt in found["prompts"]:
            [at] = [n for n, part in enumerate(prompt) if "## Notes" in str(part["content"])]
            block = f"\n\n{found['answers']}## Notes\n- block 1"
            assert prompt[at]["content"].endswith(block)
            prompt[at]["content"] = prompt[at]["content"].removesuffix(block)
        assert found["prompts"] == without["prompts"]

    def test_ids_come_from_the_variables(self, run_scene: RunScene) -> None:
        found = run_scene("carriers")
        first = {"app_id": "shop", "chat_id": "s1", "user_id": "u1", "city": "Oslo"}
        assert found["placed"] == [
            ["shop", "s1", None, "u1", first],
            ["shop", "s2", None, None, {"app_id": "shop", "chat_id": "s2", "city": "Oslo"}],
        ]
        assert found["stats"]["unplaced"] > 0  # the run without any

    def test_other_hooks_still_work_and_ours_counts_once(self, run_scene: RunScene) -> None:
        found = run_scene("composed")
        assert found["answers"] == ["Hello.", "Outside."]
        assert found["seen"] == ["around", "inside", "around", "inside", "around"]
        assert event_lines(found) == self.runtime.run(*turn_lines())
        assert [str(prompt).count("- block 1") for _, prompt in found["prompts"]] == [1, 1, 0]
