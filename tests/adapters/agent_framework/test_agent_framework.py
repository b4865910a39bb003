"""Microsoft Agent Framework with its real package: events of scripted conversations, and the prompts of the model."""

from __future__ import annotations

import re
from typing import override

import pytest
from tests.adapters.contract import (
    CONTENTS,
    MODEL,
    PLANNER,
    WRITER_FAILS,
    AdapterContract,
    Failure,
    Runtime,
    event_lines,
    tool_lines,
    turn_lines,
)
from tests.adapters.runner import RunScene
from tests.adapters.shared.kit import IDS

from graphweft_contracts.prompt_text import enclose, inside

MODES = ["conversation awaited", "conversation streamed"]
ABANDONED = [*turn_lines()[:4], "agent.turn_complete Planner 1 False abandoned"]
PROVIDER_FAILS = [line.replace("Writer 2", "Planner 1") for line in WRITER_FAILS]


class TestAgentFramework(AdapterContract):
    runtime = Runtime(
        extra="agent-framework",
        conversation=[f"{mode} {attached}" for mode in MODES for attached in ("workflow", "agents")],
        planner=[line.replace("to_writer", "handoff_to_Writer") for line in PLANNER],
        contents={
            **CONTENTS,
            "tool.call_complete": [*CONTENTS["tool.call_complete"][:2], {"result": '{"handoff_to": "Writer"}'}],
            "workflow.complete": [{"outputs": ["Draft done."], "status": "COMPLETE"}],
        },
        agent_runs=False,
        context=MODES,
        refused=MODES,
        failing=MODES,
        unaffected=MODES,
        repeated=["repeated attach", "repeated parts", "repeated provider", "repeated messages"],
        together=["together attach", "together provider"],
        cancelled={"cancelled": "CancelledError"},
        abandoned={"streamed closed": ABANDONED, "streamed forgotten": ABANDONED},
        nested={"nested": "Writer"},
        failures={
            "broken before": Failure(error="ValueError", message="no memory"),
            "broken after": Failure(error="ValueError", message="no memory", steps=[MODEL]),
            "streamed fails": Failure(
                error="ConnectionError",
                message="no model",
                steps=[MODEL, *tool_lines("weather"), "model.call_complete Planner 1 False ConnectionError"],
            ),
        },
        parts={"failing awaited": PROVIDER_FAILS, "failing streamed": PROVIDER_FAILS},
        own=[("Planner", "approve")],
    )

    @override
    def check_printed(self, printed: str, wanted: str) -> None:
        dated = re.sub(r"\d{4}-\d\d-\d\d", "2026-02-01", printed)
        # The tags name a digest of what they enclose.
        enclosed = re.sub(r"<data-(\w+)>\n(?s:.*?)</data-\1>", lambda found: enclose(inside(found[0])), dated)
        assert enclosed == wanted

    def test_model_calls_count_their_tokens(self, run_scene: RunScene) -> None:
        events = run_scene(MODES[0])["events"]
        models = [event for event in events if event["type"] == "model.call_complete"]
        assert {(event["input_tokens"], event["output_tokens"]) for event in models} == {(7, 2)}

    @pytest.mark.parametrize("parts", ["attach", "parts", "provider", "messages"])
    def test_the_session_keeps_only_ids(self, run_scene: RunScene, parts: str) -> None:
        found = run_scene(f"repeated {parts}")
        for number, (_, prompt) in enumerate(found["prompts"]):
            [at] = [n for n, part in enumerate(prompt) if "## Notes" in str(part["content"])]
            assert at == 1 if parts == "messages" else prompt[at]["content"].startswith("how is it?\n\n## Notes")
            assert f"block {number // 2 + 1}" in prompt[at]["content"]
        assert "## Notes" not in str(found["kept"])
        ids = {"app_id": "shop", "workflow_name": "Sales", "user_id": "u1"}
        assert found["kept"]["state"]["graphweft"] == ids

    def test_context_stands_below_a_question_with_a_picture(self, run_scene: RunScene) -> None:
        [(_, [system, question])] = run_scene("pictured")["prompts"]
        assert system["content"] == "You are Planner."
        assert question["content"].startswith("What is it?")
        assert question["content"].endswith("## Notes\n- block 1")

    def test_context_stands_where_it_is_set(self, run_scene: RunScene) -> None:
        for _, prompt in run_scene("repeated", context_place="own_message")["prompts"]:
            [at] = [n for n, part in enumerate(prompt) if "## Notes" in str(part["content"])]
            assert prompt[at]["role"] == prompt[at - 1]["role"] == "user"
            assert prompt[at - 1]["content"] == "how is it?"
        for _, prompt in run_scene("repeated", context_place="instructions")["prompts"]:
            assert prompt[0]["content"].startswith("You are Planner.\n\n## Notes")
            assert "## Notes" not in str(prompt[1:])

    @pytest.mark.parametrize("ending", ["read", "final"])
    def test_a_stream_is_one_turn(self, run_scene: RunScene, ending: str) -> None:
        found = run_scene(f"streamed {ending}")
        assert self.lines(found) == turn_lines()
        assert (found["said"], found["events"][-1]["response"], found["error"]) == ("Sunny.", "Sunny.", None)

    @pytest.mark.parametrize(("ending", "before_the_timer"), [("closed", 5), ("forgotten", 4)])
    def test_a_stream_is_abandoned_at_once_if_it_is_closed(
        self, run_scene: RunScene, ending: str, before_the_timer: int
    ) -> None:
        assert run_scene(f"streamed {ending}")["before_the_timer"] == before_the_timer

    def test_an_agent_that_a_middleware_runs_twice_has_one_turn(self, run_scene: RunScene) -> None:
        found = run_scene("looped")
        assert event_lines(found) == [turn_lines()[0], MODEL, MODEL, turn_lines()[-1]]
        assert found["events"][-1]["response"] == found["answers"] == "Better."
        assert len(found["asked"]) == 1

    @pytest.mark.parametrize("kind", ["sequential", "concurrent"])
    def test_agents_of_a_workflow_share_its_chat(self, run_scene: RunScene, kind: str) -> None:
        found = run_scene(f"orchestrated {kind}")
        assert [chat for _, chat, *_ in found["ids"]] == [found["flow"]]
        phases = [line for line in event_lines(found) if line.startswith("workflow")]
        between = ["workflow.phase_complete Planner Writer"] if kind == "sequential" else []
        assert phases == ["workflow.start", *between, "workflow.complete"]
        assert sorted(line for line in event_lines(found) if "turn_complete" in line) == [
            "agent.turn_complete Planner 1 True completed",
            "agent.turn_complete Writer 2 True completed",
        ]

    def test_each_run_of_a_functional_workflow_is_a_chat(self, run_scene: RunScene) -> None:
        found = run_scene("functional")
        assert len({chat for _, chat, *_ in found["ids"]}) == 2
        assert [workflow for _, _, workflow, *_ in found["ids"]] == ["plan", "plan"]
        once = ["workflow.start", turn_lines()[0], turn_lines()[-1], "workflow.complete"]
        assert [line for line in event_lines(found) if not line.startswith("model")] == once * 2
        assert found["answers"] == ["Plan.", "Another."]
        assert [event["outputs"] for event in found["events"] if "outputs" in event] == [["Plan."], ["Another."]]

    def test_a_workflow_that_waits_for_its_user_is_one_run(self, run_scene: RunScene) -> None:
        lines = self.lines(run_scene("paused"))
        assert [line for line in lines if line.startswith(("workflow", "agent.turn_complete"))] == [
            "workflow.start",
            "agent.turn_complete Planner 1 True completed",
            "agent.turn_complete Planner 2 True handed_off",
            "workflow.phase_complete Planner Writer",
            "agent.turn_complete Writer 3 True completed",
            "workflow.complete",
        ]

    def test_a_run_without_a_session_is_a_chat_of_its_own(self, run_scene: RunScene) -> None:
        found = run_scene("unplaced")
        assert len({event["chat"] for event in found["events"]}) == 2
        assert [line for line in event_lines(found) if "turn_start" in line] == ["agent.turn_start Planner 1"] * 2
        unplaced, published = found["nowhere"]
        assert unplaced > 0
        assert published == 0

    @pytest.mark.parametrize(("carried", "wanted"), [("named", {"tier": "gold"}), ("all", IDS)])
    def test_of_the_tool_arguments_only_named_ones_are_published(
        self, run_scene: RunScene, carried: str, wanted: dict[str, str]
    ) -> None:
        found = run_scene(f"secrets {carried}")
        said = {"last_message": "go", "messages": [{"role": "user", "text": "go"}]}
        assert found["contexts"] == [*[wanted] * 3, {**said, **wanted}]
        assert "hunter2" not in str(found)

    def test_attaching_to_anything_else_is_refused(self, run_scene: RunScene) -> None:
        wanted = "TypeError: cannot attach to Fake: expected agents or workflows of Agent Framework"
        assert run_scene("refused")["error"] == wanted
