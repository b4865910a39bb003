"""The OpenAI Agents SDK with its real package: the events of scripted runs, and the prompts of the model."""

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

MODES = ["conversation sync", "conversation async", "conversation streamed"]
PLANNED = [line for line in PLANNER if "to_writer" not in line]
"""A hand-off is no tool here: no hook reports a call, only the hand-off."""
COMPLETED = "agent.turn_complete Planner 1 True completed"


def without_calls(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith(("model.", "tool."))]


class TestOpenAIAgents(AdapterContract):
    runtime = Runtime(
        extra="openai-agents",
        conversation=[*MODES, "unread"],
        planner=PLANNED,
        contents={
            **CONTENTS,
            "tool.call_start": CONTENTS["tool.call_start"][:2],
            "tool.call_complete": CONTENTS["tool.call_complete"][:2],
            "model.call_complete": [{"model": "fake", "input_tokens": 5, "output_tokens": 7}] * 4,
        },
        context=[*MODES, "conversation hooks"],
        placed=[*MODES, "conversation hooks"],
        refused=MODES,
        instructions=[*MODES, "conversation hooks"],
        failing=MODES,
        unaffected=MODES,
        repeated=["repeated"],
        together=["together"],
        cancelled={"cancelled task": "CancelledError", "cancelled stream": None},
        abandoned={
            "abandoned": [
                "workflow.start", *PLANNED[:2], *PLANNED[-2:], WRITER[0], "agent.turn_complete Writer 2 False abandoned"
            ],
        },
        nested={"nested hooks": "writer_1"},
        nested_failing={
            "nested hooks": ["tool.call_complete Planner 1 False writer_1", MODEL, COMPLETED, "workflow.complete"]
        },
        failures={
            "raising": Failure(
                error="UserError",
                message="Error running tool strict: 7 is taken",
                steps=[MODEL, *tool_lines("strict", False)],
            ),
        },
        waiting={"approved": "pay"},
        parts={
            "conversation hooks": [*PLANNED, *WRITER],
            "conversation hooks failing=yes": [*PLANNED, WRITER[0], "agent.turn_complete Writer 2 False abandoned"],
        },
    )  # fmt: skip

    @pytest.mark.parametrize("mode", [*MODES, "conversation hooks"])
    def test_a_session_keeps_all_items_of_its_run(self, run_scene: RunScene, mode: str) -> None:
        found = run_scene(mode)
        assert len(found["answers"][1]) == 8
        assert found["kept"]

    def test_model_calls_are_timed(self, run_scene: RunScene) -> None:
        events = run_scene(MODES[1])["events"]
        assert all(event["duration_ms"] > 0 for event in events if event["type"] == "model.call_complete")

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
    def test_a_run_that_the_sdk_ends_is_reported_as_to_its_caller(
        self, run_scene: RunScene, what: str, outcome: str, error: str, mode: str
    ) -> None:
        found = run_scene(f"stopped {what} {mode}")
        failed = outcome == "False failed"
        turn = [
            "agent.turn_start Planner 1",
            f"agent.turn_complete Planner 1 {outcome} {error if failed else ''}".rstrip(),
        ]
        end = f"workflow.error {'Planner 1 ' if failed else ''}{error}" if error else "workflow.complete"
        assert without_calls(event_lines(found)) == ["workflow.start", *(turn if outcome else []), end]
        assert (found["error"] or "").partition(":")[0] == error

    @pytest.mark.parametrize("tracing", ["on", "off"])
    def test_a_failing_tool_is_reported_however_the_sdk_handles_it(self, run_scene: RunScene, tracing: str) -> None:
        found = run_scene(f"tools {tracing}")
        ends = {event["tool_name"]: event for event in found["events"] if event["type"] == "tool.call_complete"}
        assert {name: event["success"] for name, event in ends.items()} == {
            "weather": True, "book": False, "own": False, "late": False,
        }  # fmt: skip
        assert (ends["book"]["error"], ends["own"]["error"]) == ("7 is taken", "8 is taken")
        assert ends["own"]["result"] == "sorry: 8 is taken"
        assert "timed out" in ends["late"]["error"]
        assert [line for line in event_lines(found) if line.startswith("tool.")][:4] == [
            f"tool.call_start Planner 1 {name}" for name in ("weather", "book", "own", "late")
        ]

    def test_tools_are_unchanged_for_runs_without_the_adapter(self, run_scene: RunScene) -> None:
        found = run_scene("tools off")
        assert found["events_of_others"] == 0
        assert found["same"] is True

    def test_a_failing_tool_that_fails_the_run_has_its_own_error(self, run_scene: RunScene) -> None:
        assert run_scene("raising")["events"][4]["error"] == "7 is taken"

    @pytest.mark.parametrize("hooks", ["", "yes"])
    def test_two_agents_that_are_tools_work_at_the_same_time(self, run_scene: RunScene, hooks: str) -> None:
        found = run_scene("nested count=2", hooks=hooks)
        lines = event_lines(found)
        outside = [line for line in lines if not line.startswith(("model.", "tool.")) or "writer_" in line]
        assert outside[:4] == [
            "workflow.start",
            "agent.turn_start Planner 1",
            "tool.call_start Planner 1 writer_1",
            "tool.call_start Planner 1 writer_2",
        ]
        assert sorted(outside[4:-2]) == [
            "agent.turn_complete Writer 2 True completed",
            "agent.turn_complete Writer 3 True completed",
            "agent.turn_start Writer 2",
            "agent.turn_start Writer 3",
            "tool.call_complete Planner 1 True writer_1",
            "tool.call_complete Planner 1 True writer_2",
        ]
        assert outside[-3].startswith("tool.call_complete")
        assert outside[-2:] == [COMPLETED, "workflow.complete"]
        assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer", "Writer"]
        blocks = [(agent, re.findall(r"block (\d)", str(prompt))) for agent, prompt in found["prompts"]]
        assert sorted(blocks) == [("Planner", ["1"])] * 2 + [("Writer", ["2"])] * 2 + [("Writer", ["3"])] * 2
        inside = [line for line in lines if line.startswith(("model.", "tool.")) and " Writer " in line]
        turns = [line.replace("Planner", "Writer") for number in (2, 3) for line in turn_lines(number)[1:-1]]
        assert sorted(inside) == (sorted(turns) if hooks else [])
        assert found["answers"] == "Plan done."

    @pytest.mark.parametrize("hooks", ["", "yes"])
    def test_two_agents_that_fail_as_tools_fail_their_own_turns(self, run_scene: RunScene, hooks: str) -> None:
        lines = event_lines(run_scene("nested count=2", hooks=hooks, failing="yes"))
        assert sorted(without_calls(lines)) == sorted(
            [
                "workflow.start",
                "agent.turn_start Planner 1",
                *(
                    line
                    for number in (2, 3)
                    for line in (
                        f"agent.turn_start Writer {number}",
                        f"agent.turn_complete Writer {number} False failed ConnectionError",
                        f"workflow.error Writer {number} ConnectionError",
                    )
                ),
                COMPLETED,
                "workflow.complete",
            ]
        )
        assert "tool.call_complete Planner 1 False writer_1" in lines

    def test_a_turn_that_waited_for_a_person_answers(self, run_scene: RunScene) -> None:
        assert run_scene("approved")["answers"] == "Paid."

    def test_ids_come_from_the_context_object_or_the_run(self, run_scene: RunScene) -> None:
        found = run_scene("carriers")
        unnamed = {"workflow_name": "Agent workflow"}
        user = {"app_id": "shop", "user_id": "u1"}
        assert found["placed"] == [
            ["shop", "s1", "Agent workflow", "u1", {**user, "chat_id": "s1", **unnamed}],
            ["shop", "c1", "Agent workflow", "u1", {**user, "chat_id": "c1", **unnamed}],
            ["shop", "g1", "Sales", "u1", {**user, "chat_id": "g1", "workflow_name": "Sales"}],
            ["shop", "g2", "Agent workflow", None, {"app_id": "shop", "chat_id": "g2", **unnamed}],
        ]
        assert (found["stats"]["asked"], found["stats"]["without_context"]) == (4, 0)
        assert found["stats"]["unplaced"] > 0  # the run without a context object
        assert found["prompts"][-1][1][0]["content"] == "You are Planner."

    def test_context_is_in_the_instructions_of_a_conversation_that_the_provider_keeps(
        self, run_scene: RunScene
    ) -> None:
        [(_, [system, question])] = run_scene("continued")["prompts"]
        assert system["content"] == "You are Planner.\n\n## Notes\n- block 1"
        assert question["content"] == "how is it?"

    @pytest.mark.parametrize("kind", ["config", "mapping", "none"])
    def test_further_tries_are_those_that_the_agent_allows(self, run_scene: RunScene, kind: str) -> None:
        found = run_scene(f"retried {kind}")
        assert (found["answers"], found["error"], found["tries"]) == ("Sunny.", None, [1, 2])
        assert found["stats"]["refused_context"] == 0
        refused = run_scene(f"retried {kind}", refused="block")
        assert (refused["answers"], refused["error"], refused["tries"]) == ("Sunny.", None, [1, 2])
        assert ["block" in str(prompt) for _, prompt in refused["prompts"]] == [True, False, False, False]
        assert refused["stats"]["refused_context"] == 1

    def test_the_callers_hooks_and_filters_still_work(self, run_scene: RunScene) -> None:
        found = run_scene("composed")
        assert found["calls"] == [
            "start Planner",
            "ask YOU ARE PLANNER.", "answer", "tool weather", "done weather",
            "ask YOU ARE PLANNER.", "answer", "tool book", "done book",
            "ask YOU ARE PLANNER.", "answer", "over Planner Writer",
            "start Writer", "ask YOU ARE WRITER.", "answer", "end Writer Draft done.",
        ]  # fmt: skip
        assert found["untouched"] is True
        prompts = [prompt for _, prompt in found["prompts"]]
        assert [prompts[number][0]["content"] for number in (0, 4)] == ["YOU ARE PLANNER.", "You are Planner."]
        blocks = [re.findall(r"block (\d)", str(prompts[number])) for number in (0, 4)]
        assert blocks == [["1"], ["3"]]  # the adapter's own filter does not add it twice
        run = ["workflow.start", *PLANNED, *WRITER, "workflow.complete"]
        assert event_lines(found)[: len(run)] == run
        assert len(event_lines(found)) == 2 * len(run) + 2 + 4

    def test_the_sdk_refuses_wrong_hooks_and_filters_as_before(self, run_scene: RunScene) -> None:
        assert run_scene("composed")["errors"] == [
            "TypeError: Run hooks must be instances of RunHooks. Received str.",
            "UserError: call_model_input_filter must return a ModelInputData instance",
        ]
