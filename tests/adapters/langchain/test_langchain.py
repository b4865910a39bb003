"""LangChain and LangGraph, the real packages: the events of scripted conversations, and the prompts of the models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.adapters.contract import (
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

MODES = [f"conversation {mode}" for mode in ("sync", "async", "stream", "astream")]
BOTH = pytest.mark.parametrize("mode", ["sync", "async"])
TURN = turn_lines()
ABANDONED = "agent.turn_complete Planner 1 False abandoned"
CLOSED = Failure(error="GeneratorExit", message=None, steps=TURN[1:4])
NESTED_FAILS = [
    "tool.call_complete Planner 1 False ask_writer",
    "agent.turn_complete Planner 1 False failed ConnectionError",
]
GRAPH = [
    "workflow.start", TURN[0], MODEL,
    "workflow.phase_complete plan tools", *sorted([*tool_lines("weather"), *tool_lines("book", False)]),
    "workflow.phase_complete tools plan", MODEL, TURN[-1],
    "workflow.phase_complete plan write",
]  # fmt: skip


class TestLangChain(AdapterContract):
    runtime = Runtime(
        extra="langchain",
        conversation=MODES,
        context=MODES,
        placed=MODES,
        refused=MODES,
        users=["human"],
        failing=MODES,
        unaffected=[*MODES[:2], "graph sync", "graph async"],
        repeated=["repeated"],
        together=["together"],
        cancelled={"cancelled": "CancelledError"},
        abandoned={"abandoned open": ["workflow.start", *TURN[:4], ABANDONED]},
        nested={"nested sync": "ask_writer", "nested async": "ask_writer"},
        nested_failing={"nested sync": NESTED_FAILS, "nested async": NESTED_FAILS},
        failures={
            "fails tool": Failure(
                error="RuntimeError", message="7 is taken", steps=[MODEL, *tool_lines("book", False)]
            ),
            "fails limit": Failure(error="GraphRecursionError", steps=TURN[1:5]),
            "fails before": Failure(error="ValueError"),
            "abandoned sync": CLOSED,
            "abandoned async": CLOSED,
        },
        waiting={
            "waits tool": "book", "waits tool async": "book", "waits before": "weather", "waits inside": "book",
            "waits inside async": "book",
        },
        parts={
            "conversation sync bare": [*PLANNER, *WRITER],
            "conversation async bare failing=yes": [*PLANNER, *WRITER_FAILS],
        },
        structured=["structured"],
        own=[("Chief", "approve")],
    )  # fmt: skip

    def test_middleware_alone_does_not_see_that_a_tool_ended_the_run(self, run_scene: RunScene) -> None:
        assert event_lines(run_scene("fails tool bare")) == [*TURN[:2], *tool_lines("book", False), ABANDONED]

    @pytest.mark.parametrize(
        ("how", "name", "error"),
        [
            ("handled", "book", "7 is taken"),
            ("unknown", "fly", "fly is not a valid tool"),
            ("arguments", "book", "room: Field required"),
        ],
    )
    def test_a_handled_failure_of_a_tool_is_reported(
        self, run_scene: RunScene, how: str, name: str, error: str
    ) -> None:
        found = run_scene(f"fails {how}")
        assert self.lines(found) == self.runtime.run(*TURN[:2], *tool_lines(name, False), *TURN[4:])
        [failed] = [event for event in found["events"] if event["type"] == "tool.call_complete"]
        assert error in failed["error"]

    def test_a_model_call_that_is_retried_continues_its_turn(self, run_scene: RunScene) -> None:
        found = run_scene("fails retried")
        failed = "model.call_complete Planner 1 False ConnectionError"
        assert self.lines(found) == self.runtime.run(TURN[0], failed, *TURN[4:])
        assert len(found["asked"]) == 1
        assert [str(prompt).count("block 1") for _, prompt in found["prompts"]] == [1, 1]

    @pytest.mark.parametrize("scene", ["tool", "tool async", "before", "inside", "inside async"])
    def test_events_before_an_interrupt_are_not_repeated(self, run_scene: RunScene, scene: str) -> None:
        found = run_scene(f"waits {scene}")
        assert found["before"] == [event["type"] for event in found["events"]][: 3 if scene == "before" else 4]

    def test_a_turn_that_is_not_resumed_was_abandoned(self, run_scene: RunScene) -> None:
        again = turn_lines(2)
        assert event_lines(run_scene("waits again")) == self.runtime.run(
            *TURN[:2], *tool_lines("book", None), ABANDONED, again[0], *again[4:]
        )

    def test_agents_side_by_side_have_their_own_turns_and_phases(self, run_scene: RunScene) -> None:
        lines = event_lines(run_scene("side_by_side"))
        assert sorted(line for line in lines if "phase" in line) == [
            "workflow.phase_complete Left Writer", "workflow.phase_complete Right Writer",
        ]  # fmt: skip
        for agent in ("Left", "Right"):
            steps = [
                line.rsplit(" ", 1)[1] for line in lines if line.startswith(("agent", "model")) and f" {agent} " in line
            ]
            assert steps in (["1", "True", "completed"], ["2", "True", "completed"])
        assert lines[-4:] == [*(line.replace("2", "3") for line in WRITER), "workflow.complete"]

    @BOTH
    def test_tools_called_at_once_belong_to_one_turn(self, run_scene: RunScene, mode: str) -> None:
        lines = event_lines(run_scene(f"parallel {mode}"))
        assert [line for line in lines if not line.startswith("tool")] == self.runtime.run(*TURN[:2], *TURN[4:])
        assert sorted(line for line in lines if line.startswith("tool")) == sorted(
            [*tool_lines("weather"), *tool_lines("weather"), *tool_lines("book", False)]
        )

    @BOTH
    def test_a_hand_over_ends_the_turn_after_parallel_tools(self, run_scene: RunScene, mode: str) -> None:
        lines = event_lines(run_scene(f"parallel {mode} hands_over"))
        assert sorted(lines[3:9]) == sorted(
            [*tool_lines("weather"), *tool_lines("to_writer"), *tool_lines("book", False)]
        )
        assert lines[9:] == [*PLANNER[-2:], *WRITER, "workflow.complete"]

    @BOTH
    @pytest.mark.parametrize(
        ("failing", "ending"),
        [("", [*WRITER, "workflow.complete"]), ("yes", list(WRITER_FAILS))],
        ids=["completes", "fails"],
    )
    def test_a_graph_without_agents_has_phases_and_turns(
        self, run_scene: RunScene, mode: str, failing: str, ending: list[str]
    ) -> None:
        found = run_scene(f"graph {mode}", failing=failing)
        lines = self.lines(found)
        assert [*lines[:4], *sorted(lines[4:8]), *lines[8:]] == [*GRAPH, *ending]
        assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer"]
        assert [re.findall(r"block \d", str(prompt)) for _, prompt in found["prompts"]] == [
            ["block 1"], ["block 1"], ["block 2"],
        ]  # fmt: skip
        self.check_not_kept(found)

    @BOTH
    def test_a_node_passes_what_the_user_said(self, run_scene: RunScene, mode: str, tmp_path: Path) -> None:
        self.check_words(run_scene(f"graph {mode}"), tmp_path)

    def test_a_structured_answer_reaches_the_caller(self, run_scene: RunScene) -> None:
        found = run_scene("structured")
        assert event_lines(found) == self.runtime.run(TURN[0], MODEL, TURN[-1])
        assert found["answers"] == [1]

    def test_context_is_added_to_a_prompt_of_several_parts(self, run_scene: RunScene) -> None:
        assert run_scene("own")["stats"]["unplaced"] == 1
        for _, prompt in run_scene("own", context_place="instructions")["prompts"]:
            assert [part["text"] for part in prompt[0]["content"]] == ["You are Planner.", "\n\n## Notes\n- block 1"]
