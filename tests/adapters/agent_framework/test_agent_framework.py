"""Microsoft Agent Framework with its real package: events of scripted conversations, and what reaches the prompts."""

from __future__ import annotations

import pytest
from tests.adapters.plays import PLANNER, WRITER, WRITER_FAILS, Play, Player, said
from tests.services.runtime_environments import RUNTIME_ENVIRONMENT_S

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)]

HANDING_OVER = tuple(line.replace("to_writer", "handoff_to_Writer") for line in PLANNER)
"""The framework names the tool for a hand-over itself."""
IDS = {"app_id": "shop", "chat_id": "c1", "workflow_name": "Sales", "user_id": "u1"}
MODES = ("awaited", "streamed")
TURN = (
    "agent.turn_start Planner {0}",
    "model.call_complete Planner {0} True",
    "tool.call_start Planner {0} weather",
    "tool.call_complete Planner {0} True weather",
    "model.call_complete Planner {0} True",
    "agent.turn_complete Planner {0} True completed",
)


@pytest.fixture(scope="module")
def play(player: Player) -> Play:
    return player("agent-framework")


def turn(number: int = 1) -> list[str]:
    return [line.format(number) for line in TURN]


@pytest.mark.parametrize("attached", ["workflow", "agents"])
@pytest.mark.parametrize("mode", MODES)
def test_a_conversation_gives_its_events(play: Play, mode: str, attached: str) -> None:
    found = play("conversation", mode, "works", "", attached)
    assert said(found) == ["workflow.start", *HANDING_OVER, *WRITER, "workflow.complete"]
    assert found["ids"] == [["shop", "c1", "Sales", "u1", "/graphweft/agent-framework"]]
    assert all(event["context"]["user_id"] == "u1" for event in found["events"])
    assert {name: count for name, count in found["stats"].items() if count} == {"published": 17, "asked": 2}


@pytest.mark.parametrize("mode", MODES)
def test_events_hold_what_was_said_and_done(play: Play, mode: str) -> None:
    events = play("conversation", mode, "works", "", "workflow")["events"]
    weather, book, hand_over = (event for event in events if event["type"] == "tool.call_complete")
    assert (weather["call_id"], weather["result"]) == ("t1", "sunny in Oslo")
    assert (book["call_id"], book["error"]) == ("t2", "7 is taken")
    assert hand_over["result"] == '{"handoff_to": "Writer"}'
    assert [event["arguments"] for event in events if event["type"] == "tool.call_start"] == [
        {"city": "Oslo"}, {"room": "7"}, {},
    ]  # fmt: skip
    first, second = (event for event in events if event["type"] == "agent.turn_complete")
    assert (first["handed_to"], first["context_id"]) == ("Writer", "ctx-1")
    assert (second["response"], second["context_id"]) == ("Draft done.", "ctx-2")
    assert (events[-1]["outputs"], events[-1]["status"]) == (["Draft done."], "COMPLETE")
    models = [event for event in events if event["type"] == "model.call_complete"]
    assert {event["model"] for event in models} == {"fake"}
    if mode == "awaited":
        assert {(event["input_tokens"], event["output_tokens"]) for event in models} == {(7, 2)}


@pytest.mark.parametrize("mode", MODES)
def test_context_is_asked_for_once_a_turn_and_stands_in_each_prompt_once(play: Play, mode: str) -> None:
    found = play("conversation", mode)
    assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer"]
    blocks = [
        (agent, [part["content"] for part in prompt if "block" in str(part)]) for agent, prompt in found["prompts"]
    ]
    assert blocks == [
        *[("Planner", ["You are Planner.\n\n## Notes\n- block 1"])] * 3,
        ("Writer", ["You are Writer.\n\n## Notes\n- block 2"]),
    ]  # fmt: skip
    assert "block" not in found["sessions"]


@pytest.mark.parametrize("parts", ["attach", "parts", "provider", "messages"])
def test_context_is_not_kept_in_the_session(play: Play, parts: str) -> None:
    """However the adapter gets to the agent: three runs tell the same, and each prompt holds its own block alone."""
    found = play("repeated", parts)
    assert said(found) == [line for number in (1, 2, 3) for line in turn(number)]
    prompts = [prompt for _, prompt in found["prompts"]]
    assert [[number for number in range(1, 4) if f"block {number}" in str(prompt)] for prompt in prompts] == [
        [1], [1], [2], [2], [3], [3],
    ]  # fmt: skip
    where = 1 if parts == "messages" else 0
    assert all("## Notes" in prompt[where]["content"] for prompt in prompts)
    assert "block" not in str(found["session"])
    assert found["session"]["state"]["graphweft"] == {"app_id": "shop", "workflow_name": "Sales", "user_id": "u1"}


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_fails_is_told_once_and_the_runtime_hears_it(play: Play, mode: str) -> None:
    found = play("conversation", mode, "works", "fails")
    assert said(found) == ["workflow.start", *HANDING_OVER, *WRITER_FAILS]
    assert found["events"][-1]["error_message"] == "no model"
    assert found["error"] == play("conversation", mode, "none", "fails")["error"] == "ConnectionError: no model"


@pytest.mark.parametrize("mode", MODES)
def test_the_provider_alone_tells_a_model_s_failure_too(play: Play, mode: str) -> None:
    found = play("failing", mode)
    assert said(found) == [line.replace("Writer 2", "Planner 1") for line in WRITER_FAILS]
    assert found["error"] == "no model"


@pytest.mark.parametrize("where", ["before", "after"])
def test_what_fails_beside_the_model_fails_the_turn(play: Play, where: str) -> None:
    found = play("broken", where)
    assert said(found) == [
        "agent.turn_start Planner 1",
        *(["model.call_complete Planner 1 True"] if where == "after" else []),
        "agent.turn_complete Planner 1 False failed ValueError",
        "workflow.error Planner 1 ValueError",
    ]
    assert found["error"] == "no memory"


@pytest.mark.parametrize("ending", ["read", "final"])
def test_a_stream_is_one_turn(play: Play, ending: str) -> None:
    found = play("streamed", ending)
    assert said(found) == turn()
    assert (found["said"], found["events"][-1]["response"]) == ("Sunny.", "Sunny.")


def test_a_stream_that_fails_in_the_middle_fails_its_turn(play: Play) -> None:
    found = play("streamed", "fails")
    assert said(found)[-3:] == [
        "model.call_complete Planner 1 False ConnectionError",
        "agent.turn_complete Planner 1 False failed ConnectionError",
        "workflow.error Planner 1 ConnectionError",
    ]
    assert found["error"] == "no model"


@pytest.mark.parametrize(("ending", "before_the_timer"), [("closed", 5), ("forgotten", 4)])
def test_a_stream_that_nobody_reads_on_is_abandoned(play: Play, ending: str, before_the_timer: int) -> None:
    """At once where its reader closes it, otherwise by the timer."""
    found = play("streamed", ending)
    assert said(found) == [*turn()[:4], "agent.turn_complete Planner 1 False abandoned"]
    assert found["before_the_timer"] == before_the_timer


def test_a_run_that_is_cancelled_fails_as_such(play: Play) -> None:
    assert said(play("cancelled")) == [
        line.replace("Writer 2", "Planner 1").replace("ConnectionError", "CancelledError") for line in WRITER_FAILS
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("failing", ["", "fails"])
@pytest.mark.parametrize("way", ["hangs", "fails", "garbage"])
def test_a_bus_that_is_broken_changes_no_answer(play: Play, mode: str, failing: str, way: str) -> None:
    broken, without = play("conversation", mode, way, failing), play("conversation", mode, "none", failing)
    assert [broken[name] for name in ("answers", "error", "prompts")] == [
        without[name] for name in ("answers", "error", "prompts")
    ]
    assert (without["events"], without["stats"]["published"]) == ([], 0)
    assert broken["stats"]["published"] == 17


@pytest.mark.parametrize("parts", ["attach", "provider"])
def test_runs_at_the_same_time_do_not_mix(play: Play, parts: str) -> None:
    found = play("together", parts)
    assert found["answers"] == ["for a", "for b", "for c"]
    assert found["chats"] == [["c1", "for a"], ["c1", "for b"], ["c2", "for c"]]
    assert sorted(prompt[-1] for prompt in found["prompts"]) == ["1", "1", "2", "2", "3", "3"]
    assert sorted(said(found)) == sorted(
        line.replace("weather", "meet") for number in (1, 2, 1) for line in turn(number)
    )


def test_an_agent_that_is_a_tool_has_a_turn_in_the_same_chat(play: Play) -> None:
    found = play("nested")
    assert said(found)[2:7] == [
        "tool.call_start Planner 1 Expert",
        "agent.turn_start Expert 2",
        "model.call_complete Expert 2 True",
        "agent.turn_complete Expert 2 True completed",
        "tool.call_complete Planner 1 True Expert",
    ]
    assert found["ids"] == [["shop", "c1", "Sales", "u1", "/graphweft/agent-framework"]]


def test_an_agent_that_a_middleware_runs_twice_has_one_turn(play: Play) -> None:
    found = play("looped")
    assert said(found) == [
        "agent.turn_start Planner 1",
        "model.call_complete Planner 1 True",
        "model.call_complete Planner 1 True",
        "agent.turn_complete Planner 1 True completed",
    ]
    assert found["events"][-1]["response"] == found["answer"] == "Better."
    assert len(found["asked"]) == 1


@pytest.mark.parametrize("kind", ["sequential", "concurrent"])
def test_agents_of_a_workflow_without_a_chat_id_share_the_workflow_s(play: Play, kind: str) -> None:
    found = play("orchestrated", kind)
    assert found["chats"] == [True]
    phases = [line for line in said(found) if line.startswith("workflow")]
    between = ["workflow.phase_complete Planner Writer"] if kind == "sequential" else []
    assert phases == ["workflow.start", *between, "workflow.complete"]
    assert sorted(line for line in said(found) if "turn_complete" in line) == [
        "agent.turn_complete Planner 1 True completed",
        "agent.turn_complete Writer 2 True completed",
    ]


def test_each_run_of_a_functional_workflow_is_a_chat(play: Play) -> None:
    found = play("functional")
    assert found["chats"] == 2
    assert [workflow for _, _, workflow, *_ in found["ids"]] == ["plan", "plan"]
    once = ["workflow.start", "agent.turn_start Planner 1", "agent.turn_complete Planner 1 True completed"]
    lines = [line for line in said(found) if not line.startswith("model")]
    assert lines == [*once, "workflow.complete"] * 2
    assert found["answers"] == ["Plan.", "Another."]
    assert [event["outputs"] for event in found["events"] if "outputs" in event] == [["Plan."], ["Another."]]


def test_a_workflow_that_waits_for_its_user_is_one_run(play: Play) -> None:
    lines = said(play("paused"))
    assert [line for line in lines if line.startswith(("workflow", "agent.turn_complete"))] == [
        "workflow.start",
        "agent.turn_complete Planner 1 True completed",
        "agent.turn_complete Planner 2 True handed_off",
        "workflow.phase_complete Planner Writer",
        "agent.turn_complete Writer 3 True completed",
        "workflow.complete",
    ]


def test_a_run_without_a_session_is_a_chat_of_its_own(play: Play) -> None:
    found = play("unplaced")
    assert found["chats"] == 2
    assert [line for line in said(found) if "turn_start" in line] == ["agent.turn_start Planner 1"] * 2
    assert (found["nowhere"] > 0, found["told_nowhere"]) == (True, 0)


@pytest.mark.parametrize(("carried", "wanted"), [("named", {"tier": "gold"}), ("all", IDS)])
def test_of_the_arguments_for_tools_only_ids_and_what_is_named_go_to_the_bus(
    play: Play, carried: str, wanted: dict[str, str]
) -> None:
    found = play("secrets", carried)
    assert found["contexts"] == [wanted] * 4
    assert "hunter2" not in str(found)


def test_a_runtime_publishes_events_of_its_own(play: Play) -> None:
    found = play("own")
    assert [line for line in said(found) if not line.startswith(("tool", "model"))] == [
        "agent.turn_start Planner 1",
        "ui_tool.call_complete Planner 1 approve",
        "agent.turn_complete Planner 1 True completed",
        "agent.structured_output Planner",
    ]
    assert found["stats"]["invalid"] == 1


def test_what_takes_no_context_is_refused(play: Play) -> None:
    assert play("refused")["error"] == "cannot attach to Fake: expected agents or workflows of Agent Framework"


def test_turns_can_be_measured(play: Play) -> None:
    assert len(play("turns", "none", "2")["ms"]) == len(play("turns", "works", "2")["ms"]) == 2


def test_nothing_of_the_adapter_fails(play: Play) -> None:
    scenes: list[tuple[str, ...]] = [
        ("conversation", "streamed"),
        ("repeated", "provider"),
        ("together", "attach"),
        ("paused",),
    ]
    assert [play(*scene)["stats"]["errors"] for scene in scenes] == [0] * len(scenes)
