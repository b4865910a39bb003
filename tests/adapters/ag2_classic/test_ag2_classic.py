"""AG2 classic with its real package: the events of scripted conversations, and the prompts of the model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import override

import pytest
from tests.adapters.contract import CONTENTS, MODEL, PLANNER, AdapterContract, Runtime, event_lines, tool_lines
from tests.adapters.runner import RunScene

MODES = ["conversation sync", "conversation async"]
PAIR = [
    "agent.turn_start Planner 1",
    "agent.turn_complete Planner 1 True completed",
    "agent.turn_start Planner 2",
    "agent.turn_complete Planner 2 True completed",
]


class TestAG2Classic(AdapterContract):
    runtime = Runtime(
        extra="ag2-classic",
        conversation=[*MODES, "conversation streamed"],
        contents={
            **CONTENTS,
            "tool.call_complete": [*CONTENTS["tool.call_complete"][:2], {"call_id": "t3"}],
        },
        context=[*MODES, "conversation streamed"],
        placed=[*MODES, "conversation streamed"],
        refused=MODES,
        instructions=[*MODES, "cancelled"],
        failing=[*MODES, "conversation streamed"],
        unaffected=MODES,
        repeated=["repeated"],
        cancelled={"cancelled": "CancelledError"},
        abandoned={
            "abandoned": ["workflow.start", *PLANNER[:2], "agent.turn_complete Planner 1 False abandoned"],
        },
        parts={
            "pair": [
                PAIR[0], MODEL, *tool_lines("book", False), MODEL, *PAIR[1:3], MODEL.replace("1", "2"), PAIR[3],
            ],
            "pair hooks": PAIR,
        },
        structured=["structured"],
        own=[("Planner", None)],
    )  # fmt: skip

    @override
    def check_printed(self, printed: str, wanted: str) -> None:
        for part in re.split(r"(?m)^(?=--- )", wanted)[1:]:  # AG2 prints between them
            before, found, printed = printed.partition(part)
            assert found, (part, before)

    def test_tool_calls_without_ids_are_distinguished(self, run_scene: RunScene) -> None:
        assert len([line for line in event_lines(run_scene("repeated")) if line.startswith("tool.")]) == 6

    def test_the_hooks_alone_give_context(self, run_scene: RunScene) -> None:
        found = run_scene("pair hooks")
        systems = [[part["content"] for part in prompt if part["role"] == "system"] for _, prompt in found["prompts"]]
        assert systems == [[f"You are Planner.\n\n## Notes\n- block {number}"] for number in (1, 1, 2)]
        assert "block" not in str(found["history"])

    def test_hooks_of_an_attached_agent_do_nothing(self, run_scene: RunScene) -> None:
        both, attached = run_scene("pair both"), run_scene("pair")
        assert event_lines(both) == event_lines(attached)
        assert both["prompts"] == attached["prompts"]

    def test_chats_that_share_an_agent_see_only_their_own_context(self, run_scene: RunScene) -> None:
        found = run_scene("shared")
        assert found["systems"] == ["You are Planner."]
        blocks = [re.findall("block (.)", str(prompt)) for _, prompt in found["prompts"]]
        assert [len(each) for each in blocks] == [1, 1, 1]
        assert blocks[1] != blocks[2]

    def test_a_hook_forgets_agents_that_are_gone(self, run_scene: RunScene) -> None:
        found = run_scene("gone")
        assert found["remembered"] == 0
        assert found["systems"] == [f"You are Planner.\n\n## Notes\n- block {number}" for number in (1, 2, 3)]

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_a_turn_whose_answer_leads_to_another_agent_is_handed_off(self, run_scene: RunScene, mode: str) -> None:
        found = run_scene(f"next_speaker after_work {mode}")
        ends = [event for event in found["events"] if event["type"] == "agent.turn_complete"]
        assert [(end["agent_name"], end["outcome"], end.get("handed_to"), end["response"]) for end in ends] == [
            ("Planner", "handed_off", "Writer", "Plan done."),
            ("Writer", "completed", None, "Draft done."),
        ]

    def test_what_an_agent_said_to_another_is_not_the_user_s(self, run_scene: RunScene, tmp_path: Path) -> None:
        found = run_scene("next_speaker after_work sync")
        assert "Plan done." in str(found["prompts"][-1])
        self.check_words(found, tmp_path)

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_a_turn_whose_answer_ends_the_chat_is_completed(self, run_scene: RunScene, mode: str) -> None:
        found = run_scene(f"next_speaker end {mode}")
        [end] = [event for event in found["events"] if event["type"] == "agent.turn_complete"]
        assert (end["agent_name"], end["outcome"], end["response"]) == ("Planner", "completed", "Plan done.")
