"""The real clients of OpenAI, Anthropic and litellm in plain loops, with a server on this machine for a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.adapters.contract import AdapterContract, Failure, Runtime, turn_lines
from tests.adapters.model_clients.model_server import ModelServer
from tests.adapters.runner import RunScene, page_block, run_with_services
from tests.services.runtime_environments import ROOT

APIS = ("chat", "responses", "messages", "litellm")
MODES = ("sync", "async", "stream", "astream")
EVERY = [f"{api} {mode}" for api in APIS for mode in MODES]
SHORT = ("chat sync", "responses async", "messages stream", "litellm astream")
"""Each API and each mode once, for a short run."""
TURN = turn_lines()
HELLO = [*TURN[:2], TURN[-1]]
ABANDONED = [TURN[0], "agent.turn_complete Planner 1 False abandoned"]


def _undated(text: str) -> str:
    """Return the text without what differs in each run: times, days and digests."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    return re.sub(r"(?<=data-)[0-9a-f]{16}|[A-Z][a-z]+day \d{4}-\d\d-\d\d|(?<=since )\d{4}-\d\d-\d\d", "X", text)


def fails(error: str) -> list[str]:
    return [
        TURN[0],
        f"model.call_complete Planner 1 False {error}",
        f"agent.turn_complete Planner 1 False failed {error}",
        f"workflow.error Planner 1 {error}",
    ]


class TestModelClients(AdapterContract):
    runtime = Runtime(
        extra="model-clients",
        conversation=[],
        failing=[],
        unaffected=[f"loop {each}" for each in ("chat sync", "responses astream", "messages async", "litellm stream")],
        repeated=[f"repeated {each}" for each in ("chat sync", "responses async", "messages stream", "litellm async")],
        together=[f"together {api}" for api in APIS],
        cancelled={f"cancelled {api}": "CancelledError" for api in ("chat", "responses", "messages")},
        failures={
            "loop chat stream text=cut": Failure(
                error="APIConnectionError", steps=["model.call_complete Planner 1 False APIConnectionError"]
            )
        },
        context=["loop chat sync"],
        words={"Planner": "weather Oslo"},
        agent_runs=False,
        page="openai",
    )
    # One agent; the tests below do this for every API.
    test_each_turn_requests_context_once_and_keeps_none = None
    test_context_stands_in_the_instructions_if_so_set = None

    def test_the_example_of_the_page_runs_as_printed(
        self, runtime_python: Callable[[str], Path], tmp_path: Path
    ) -> None:
        """It needs no rules. The model is that of ``model_server``, which answers a question with its instructions."""
        server = ModelServer()
        for name in ("chat", "turns"):
            (tmp_path / f"{name}.py").write_text(page_block("openai", "python", f"# {name}.py"))
        (tmp_path / "both.py").write_text("import chat\nprint('---')\nimport turns\n")
        keys = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none"}
        printed = run_with_services(tmp_path, runtime_python(self.runtime.extra), "both.py", **keys)
        server.close()
        chat, turns = printed.split("---\n")
        assert _undated(chat) == _undated(page_block("openai", "text"))
        for part in ("Refund my lamp.", "I cannot find your order.", "**refund**: 1"):
            assert part in turns

    @pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
    def test_the_first_lines_of_a_page_remember(
        self, runtime_python: Callable[[str], Path], tmp_path: Path, page: str
    ) -> None:
        [lines] = re.findall(r"```py\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
        patient = lines.replace('user="ada")', 'user="ada", budget_ms=10_000)')  # for a machine with other work
        assert patient != lines
        (tmp_path / "ten.py").write_text(patient)
        server = ModelServer()
        keys = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none"}
        printed = run_with_services(tmp_path, runtime_python(self.runtime.extra), "ten.py", **keys)
        server.close()
        first, _, second = printed.partition("\n")
        assert first == "Hello."
        assert "My cat is called Tom." in second

    @pytest.mark.long(keep=SHORT)
    @pytest.mark.parametrize("each", EVERY)
    def test_a_tool_round_is_one_turn(self, run_scene: RunScene, each: str) -> None:
        found = run_scene(f"loop {each}")
        assert self.lines(found) == TURN
        assert len(found["asked"]) == 1
        calls = [event for event in found["events"] if event["type"].startswith("tool.")]
        assert calls[0]["arguments"] == {"city": "Oslo"}
        assert calls[1]["result"] == "sunny in Oslo"
        assert found["events"][-1]["response"] == "Oslo"
        models = [event for event in found["events"] if event["type"].startswith("model.")]
        assert {event["model"] for event in models} == {"fake"}
        counted = each not in {"chat stream", "chat astream"}  # they have counts with stream_options only
        if not each.startswith("litellm"):
            assert [event.get("output_tokens") for event in models] == [7 if counted else None] * 2
        assert {name: count for name, count in found["stats"].items() if count} == {"published": 6, "asked": 1}

    @pytest.mark.long(keep=SHORT)
    @pytest.mark.parametrize("each", EVERY)
    def test_each_call_of_a_turn_gets_its_context_below_the_question(self, run_scene: RunScene, each: str) -> None:
        found = run_scene(f"loop {each}")
        assert [[part["content"] for part in prompt] for _, prompt in found["prompts"]] == [
            ["You are Planner.", "weather Oslo\n\n## Notes\n- block 1"]
        ] * 2
        self.check_not_kept(found)

    @pytest.mark.long(keep=SHORT)
    @pytest.mark.parametrize("each", EVERY)
    def test_context_stands_below_the_instructions_if_so_set(self, run_scene: RunScene, each: str) -> None:
        found = run_scene(f"loop {each}", place="instructions")
        assert [[part["content"] for part in prompt] for _, prompt in found["prompts"]] == [
            ["You are Planner.\n\n## Notes\n- block 1", "weather Oslo"]
        ] * 2
        assert self.lines(found) == TURN
        self.check_not_kept(found)

    @pytest.mark.parametrize(
        ("api", "role"), [("chat", "system"), ("litellm", "system"), ("responses", "developer"), ("messages", "user")]
    )
    def test_context_is_a_message_behind_the_question_if_so_set(self, run_scene: RunScene, api: str, role: str) -> None:
        found = run_scene(f"loop {api} sync", place="own_message")
        for body in found["bodies"]:
            messages = [
                one for one in body.get("messages") or body["input"] if one.get("role") != "system" or role == "system"
            ]
            question = next(n for n, one in enumerate(messages) if one.get("content") == "weather Oslo")
            assert messages[question + 1] == {"role": role, "content": "## Notes\n- block 1"}
        assert self.lines(found) == TURN
        self.check_not_kept(found)

    @pytest.mark.long(keep=SHORT)
    @pytest.mark.parametrize("each", EVERY)
    def test_a_request_that_is_refused_with_context_is_repeated_without(self, run_scene: RunScene, each: str) -> None:
        found = run_scene(f"loop {each} text=refuse")
        assert self.lines(found) == HELLO
        assert found["error"] is None
        assert ["## Notes" in str(prompt) for _, prompt in found["prompts"]] == [True, False]
        assert (found["stats"]["refused_context"], found["stats"]["errors"]) == (1, 0)
        assert "context_id" not in found["events"][-1]

    @pytest.mark.parametrize("each", ["chat sync", "responses async", "messages stream", "litellm astream"])
    def test_a_request_that_is_refused_in_any_form_fails_as_without_the_wrapper(
        self, run_scene: RunScene, each: str
    ) -> None:
        found = run_scene(f"loop {each} text=refuse_me")
        assert self.lines(found) == fails("BadRequestError")
        assert found["error"] == run_scene(f"loop {each} text=refuse_me", way="none")["error"]
        assert found["stats"]["refused_context"] == 0

    @pytest.mark.long(keep=SHORT)
    @pytest.mark.parametrize("each", EVERY)
    def test_answers_histories_and_requests_are_those_without_the_wrapper(self, run_scene: RunScene, each: str) -> None:
        assert run_scene(f"loop {each}")["answers"] == run_scene(f"loop {each}", way="none")["answers"]

    @pytest.mark.parametrize("each", ["chat sync", "responses stream", "messages sync", "messages astream"])
    def test_tools_called_at_once_have_results_of_their_own(self, run_scene: RunScene, each: str) -> None:
        found = run_scene(f"loop {each} text=both")
        lines = self.lines(found)
        assert lines[2:6] == [
            "tool.call_start Planner 1 weather", "tool.call_start Planner 1 book",
            "tool.call_complete Planner 1 True weather", "tool.call_complete Planner 1 False book",
        ]  # fmt: skip
        assert found["events"][5]["error"] == "Error: 7 is taken"
        assert lines[6:] == [TURN[1], TURN[-1]]

    @pytest.mark.parametrize("each", ["chat sync", "chat astream", "responses async", "messages stream"])
    def test_a_failing_model_fails_the_turn_and_raises(self, run_scene: RunScene, each: str) -> None:
        found = run_scene(f"loop {each}", failing="yes")
        assert self.lines(found) == fails("InternalServerError")
        assert found["error"] == run_scene(f"loop {each}", failing="yes", way="none")["error"]

    @pytest.mark.parametrize("each", ["chat stream", "responses stream", "messages astream"])
    def test_a_stream_that_ends_too_early_is_no_answer(self, run_scene: RunScene, each: str) -> None:
        assert self.lines(run_scene(f"loop {each} text=short"))[-1] == ABANDONED[-1]

    @pytest.mark.parametrize("each", ["chat stream", "chat astream", "responses stream", "messages astream"])
    @pytest.mark.parametrize("how", ["closed", "forgotten"])
    def test_a_stream_that_is_not_read_to_its_end_is_abandoned(self, run_scene: RunScene, each: str, how: str) -> None:
        assert self.lines(run_scene(f"left {each} {how}")) == ABANDONED

    @pytest.mark.parametrize("each", ["chat stream", "chat astream", "responses astream", "messages stream"])
    def test_a_stream_left_at_the_end_of_its_answer_is_complete(self, run_scene: RunScene, each: str) -> None:
        assert self.lines(run_scene(f"left {each} finished")) == HELLO

    @pytest.mark.parametrize("api", ["chat", "responses", "messages"])
    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_streaming_helpers_of_the_clients_are_seen(self, run_scene: RunScene, api: str, mode: str) -> None:
        found = run_scene(f"helpers {api} {mode}")
        assert found["answers"] == "Hello."
        assert self.lines(found) == HELLO
        assert "block 1" in str(found["prompts"])

    def test_copies_and_views_of_a_client_are_wrapped_and_the_original_is_not(self, run_scene: RunScene) -> None:
        found = run_scene("views")
        assert found["answers"] == [*["Hello."] * 6, True]
        lines = self.lines(found)
        assert [line for line in lines if line.startswith("agent.turn_complete")] == [
            *(f"agent.turn_complete Planner {number} True completed" for number in range(1, 5)),
            "agent.turn_complete Planner 5 False abandoned",  # the caller reads the bytes
        ]
        assert [re.findall(r"block \d", str(prompt)) for _, prompt in found["prompts"]] == [
            *([f"block {number}"] for number in range(1, 6)), [],
        ]  # fmt: skip

    def test_context_finds_its_place_in_instructions_of_every_form(self, run_scene: RunScene) -> None:
        found = run_scene("contents", place="instructions")
        assert found["same"]
        none, developer, parts = found["answers"]
        assert none[0] == {"role": "system", "content": "## Notes\n- block 1"}
        assert developer[0] == {"role": "developer", "content": "Be brief.\n\n## Notes\n- block 2"}
        assert [part["text"] for part in parts[0]["content"]] == ["Be brief.", "## Notes\n- block 3"]
        assert [len(each) for each in found["answers"]] == [2, 2, 2]

    def test_context_finds_its_place_in_questions_of_every_form(self, run_scene: RunScene) -> None:
        found = run_scene("contents")
        assert found["same"]
        parts, developer, system = found["answers"]
        assert [part["text"] for part in parts[0]["content"]] == ["hello", "## Notes\n- block 1"]
        assert developer[1] == {"role": "user", "content": "hello\n\n## Notes\n- block 2"}
        assert system[1] == {"role": "user", "content": "hello\n\n## Notes\n- block 3"}
        assert [len(each) for each in found["answers"]] == [1, 2, 2]

    @pytest.mark.parametrize("each", ["chat sync", "responses astream", "messages async", "litellm sync"])
    def test_message_and_answer_become_memories_and_the_message_is_the_question(
        self, run_scene: RunScene, each: str
    ) -> None:
        found = run_scene(f"remembered {each}")
        assert self.lines(found) == [*TURN, "memory.add"]
        memory = found["events"][-1]
        assert (memory["user_id"], memory["thread_id"]) == ("u1", "c1")
        assert memory["messages"] == [
            {"role": "user", "text": "weather Oslo"},
            {"role": "assistant", "text": "Oslo"},
        ]
        assert found["questions"] == [[{"role": "user", "text": "weather Oslo"}]]
        assert "weather Oslo" not in str(found["events"][:-1])
        assert found["users"] == ["u1"]

    def test_arguments_of_unknown_form_reach_the_client_unchanged(self, run_scene: RunScene) -> None:
        found = run_scene("odd")
        assert [found[name] for name in ("errors", "answers", "error")] == [
            ["TypeError", "APIConnectionError"],
            "Hello.",
            None,
        ]
        without = run_scene("odd", way="none")
        assert [without[name] for name in ("errors", "answers", "error")] == [
            found[name] for name in ("errors", "answers", "error")
        ]
        assert found["stats"]["errors"] == 3  # no context was added

    def test_wrong_arguments_are_refused_when_the_client_is_wrapped(self, run_scene: RunScene) -> None:
        app, kind, anthropic, litellm = run_scene("settings")["errors"]
        assert app.startswith("InvalidSettings: app is required")
        assert kind == "InvalidSettings: cannot wrap object: expected a client of OpenAI"
        assert anthropic == "InvalidSettings: cannot wrap OpenAI: a client of Anthropic has messages"
        assert litellm == "InvalidSettings: cannot wrap int: expected litellm.completion or acompletion"
