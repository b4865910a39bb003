"""The tests that all adapters share: ``AdapterContract``. A ``Runtime`` names the scenes and the differences of one."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from tests.adapters.runner import RunScene, SceneRunner, event_lines, page_block, run_with_services
from tests.adapters.shared.kit import CONCURRENT, TRACE
from tests.declared_fields import undeclared
from tests.services.rules import load_rules
from tests.services.runtime_environments import RUNTIME_ENVIRONMENT_S

from graphweft_contracts import ContextRequest

__all__ = (
    "CONTENTS", "MODEL", "PLANNER", "WRITER", "WRITER_FAILS", "AdapterContract", "Failure", "Runtime", "event_lines",
    "tool_lines", "turn_lines",
)  # fmt: skip

MODEL: Final = "model.call_complete Planner 1 True"
PLANNER: Final = (
    "agent.turn_start Planner 1",
    MODEL,
    "tool.call_start Planner 1 weather",
    "tool.call_complete Planner 1 True weather",
    MODEL,
    "tool.call_start Planner 1 book",
    "tool.call_complete Planner 1 False book",
    MODEL,
    "tool.call_start Planner 1 to_writer",
    "tool.call_complete Planner 1 True to_writer",
    "agent.turn_complete Planner 1 True handed_off",
    "workflow.phase_complete Planner Writer",
)
"""The planner's turn: ``weather(city="Oslo")`` returns "sunny in Oslo", ``book(room="7")`` raises "7 is taken", then it
hands over to the writer, by a tool where the runtime does that by tools.
"""
WRITER: Final = (
    "agent.turn_start Writer 2",
    "model.call_complete Writer 2 True",
    "agent.turn_complete Writer 2 True completed",
)
"""The writer answers "Draft done."."""
WRITER_FAILS: Final = (
    "agent.turn_start Writer 2",
    "model.call_complete Writer 2 False ConnectionError",
    "agent.turn_complete Writer 2 False failed ConnectionError",
    "workflow.error Writer 2 ConnectionError",
)
"""The writer's model raises ``ConnectionError("no model")``."""
CONTENTS: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "tool.call_start": [{"arguments": {"city": "Oslo"}}, {"arguments": {"room": "7"}}, {"arguments": {}}],
    "tool.call_complete": [
        {"call_id": "t1", "result": "sunny in Oslo"},
        {"call_id": "t2", "error": "7 is taken"},
        {"call_id": "t3", "result": "over to you"},
    ],
    "model.call_complete": [{"model": "fake"}] * 4,
    "agent.turn_complete": [
        {"handed_to": "Writer", "context_id": "ctx-1"},
        {"response": "Draft done.", "context_id": "ctx-2"},
    ],
    "workflow.complete": [{"outputs": "Draft done.", "status": "COMPLETE"}],
}
"""Fields of the events of the conversation, by type."""
_ENVELOPE: Final = {"type", "id", "chat"}
"""The parts of an event that are not its data."""
_CAPTURED: Final = {"events", "ids", "asked", "said", "spans", "stats", "kept", "received", "times", "trace"}
"""The parts of a result that depend on the adapter, or differ in each run."""
_SEARCHES: Final = """\
version: "1.0"
injection_rules:
  - name: words
    agents: ["*"]
    queries:
      - {id: last, inject_as: last, search: {memory: {user_id: $workflow.user_id}, query: $context.last_message}}
      - {id: all, inject_as: all, search: {memory: {user_id: $workflow.user_id}, query: $context.messages}}
"""
"""Rules that search by what the user said."""


def tool_lines(name: str, success: object = True, turn: str = "Planner 1") -> list[str]:
    """Return the events of a tool call."""
    return [f"tool.call_start {turn} {name}", f"tool.call_complete {turn} {success} {name}"]


def turn_lines(number: int = 1, tool: str = "weather") -> list[str]:
    """Return the events of a turn of the planner's that calls a tool and answers."""
    turn = f"Planner {number}"
    model = f"model.call_complete {turn} True"
    tools = tool_lines(tool, turn=turn)
    return [f"agent.turn_start {turn}", model, *tools, model, f"agent.turn_complete {turn} True completed"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A turn that fails after these events, and the error that the caller gets, if any."""

    error: str
    message: str | None = ""
    """Its message. Empty: any. None: the caller gets no error."""
    steps: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The scenes of a runtime, and how its events differ. A test without scenes is left out.

    A scene is a command for ``scenes.py``. ``failing=yes`` lets the writer's model fail.
    """

    extra: str
    conversation: Sequence[str]
    """The planner calls its tools and hands over to the writer."""
    failing: Sequence[str]
    """The same where the writer's model fails."""
    unaffected: Sequence[str]
    """Scenes whose answers do not depend on the adapter and its bus."""
    context: Sequence[str] = ()
    """Conversations whose prompts hold context."""
    placed: Sequence[str] = ()
    """Those of them whose place of the context can be chosen."""
    refused: Sequence[str] = ()
    """Those of them whose model is asked again if it refuses the context."""
    users: Sequence[str] = ("user",)
    """The names of the user's role."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What the user says to an agent in those conversations, if it is not to plan a trip."""
    instructions: Sequence[str] = ()
    """Scenes that report the instructions of their agents."""
    planner: Sequence[str] = PLANNER
    contents: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=lambda: CONTENTS)
    joined: bool = True
    """Whether the instructions and the context are one text."""
    agent_runs: bool = True
    """Whether the run of a single agent has events of a workflow."""
    repeated: Sequence[str] = ()
    """Three runs of one chat."""
    together: Sequence[str] = ()
    """The runs of ``CONCURRENT``."""
    cancelled: Mapping[str, str | None] = field(default_factory=dict)
    """Runs that are cancelled while the model works, and the error of their caller."""
    abandoned: Mapping[str, Sequence[str]] = field(default_factory=dict)
    nested: Mapping[str, str] = field(default_factory=dict)
    """The planner lets the writer work in a tool, with the tool's name."""
    nested_failing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The same where the writer's model fails, with the events after that."""
    failures: Mapping[str, Failure] = field(default_factory=dict)
    """Turns that end by an error outside of the model."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """Turns that wait for a person, with the name of the tool that they call."""
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Scenes in which only a part of the adapter is used, with their events."""
    structured: Sequence[str] = ()
    own: Sequence[tuple[str, str | None]] = ()
    """The agent and the tool, if any, that publish events of the runtime's own in the scene ``own``."""
    timed: Sequence[str] = ("none", "works", "hangs")
    page: str = ""
    """The page in ``docs/runtimes``, if it is not named like the extra."""

    def run(self, *lines: str, ends: str = "workflow.complete") -> list[str]:
        """Return the events of a run of a single agent."""
        return ["workflow.start", *lines, *([ends] if ends else [])] if self.agent_runs else list(lines)


class AdapterContract:
    """A suite derives from it, sets ``runtime``, and adds tests of what is special to the runtime."""

    runtime: ClassVar[Runtime]
    pytestmark: ClassVar = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)]

    def __init_subclass__(cls) -> None:
        """Leave out tests for which the runtime has no scene."""
        named = {each.name for each in fields(Runtime)}
        for name, test in vars(AdapterContract).items():
            if name.startswith("test_") and not all(
                getattr(cls.runtime, argument) for argument in named & inspect.signature(test).parameters.keys()
            ):
                setattr(cls, name, None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test of the contract for each scene of the field named like its argument; mappings give pairs."""
        for each in fields(Runtime):
            if metafunc.function.__name__ in vars(AdapterContract) and each.name in metafunc.fixturenames:
                scenes = getattr(self.runtime, each.name)
                pairs = scenes.items() if isinstance(scenes, Mapping) else scenes
                ids = [pair if isinstance(pair, str) else str(pair[0]) for pair in pairs]
                metafunc.parametrize(each.name, list(pairs), ids=ids)

    @pytest.fixture
    def run_scene(self, scene_runner: SceneRunner) -> RunScene:
        """Runs scenes of the runtime. The contracts declare every field of their events."""
        run = scene_runner(self.runtime.extra)

        def run_declared(scene: str, /, **options: str) -> dict[str, Any]:
            found = run(scene, **options)
            for event in found["events"]:
                data = {name: value for name, value in event.items() if name not in _ENVELOPE}
                assert undeclared(event["type"], data) == []
            return found

        return run_declared

    @property
    def ids(self) -> list[list[str]]:
        """The ids of all events of a scene."""
        return [["shop", "c1", "Sales", "u1", f"/graphweft/{self.runtime.extra}"]]

    def lines(self, found: dict[str, Any]) -> list[str]:
        """Return the events; the adapter itself had no error, and has forgotten the run."""
        assert found["stats"]["errors"] == 0
        assert found.get("runs", 0) == 0
        return event_lines(found)

    def check_not_kept(self, found: dict[str, Any]) -> None:
        """No answer, history or storage holds a block."""
        assert "block" not in str([found.get("answers"), found.get("kept")])

    def test_a_conversation_gives_its_events(self, run_scene: RunScene, conversation: str) -> None:
        found = run_scene(conversation)
        lines = ["workflow.start", *self.runtime.planner, *WRITER, "workflow.complete"]
        assert self.lines(found) == lines
        assert found["ids"] == self.ids
        assert all(event["context"]["user_id"] == "u1" for event in found["events"])
        requests = {"asked": 2} if self.runtime.context else {}
        assert {name: count for name, count in found["stats"].items() if count} == {"published": len(lines), **requests}
        assert found["error"] is None

    def test_events_hold_messages_arguments_and_results(self, run_scene: RunScene, conversation: str) -> None:
        events = run_scene(conversation)["events"]
        for type, wanted in self.runtime.contents.items():
            found = [event for event in events if event["type"] == type]
            assert [{name: event.get(name) for name in one} for event, one in zip(found, wanted, strict=True)] == wanted

    def test_events_and_requests_name_the_span_of_the_program(self, run_scene: RunScene, conversation: str) -> None:
        assert run_scene(conversation)["spans"] == [TRACE.traceparent]

    def test_each_turn_requests_context_once_and_keeps_none(self, run_scene: RunScene, context: str) -> None:
        found = run_scene(context)
        assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer"]
        calls = [line.split()[1] for line in self.lines(found) if line.startswith("model.")]
        assert [agent for agent, _ in found["prompts"]] == calls
        for agent, prompt in found["prompts"]:
            assert [self._block(agent) in str(part["content"]) for part in prompt].count(True) == 1
            assert str(prompt).count("block") == 1
        assert found["answers"]
        self.check_not_kept(found)

    def test_rules_search_by_what_the_user_said(self, run_scene: RunScene, context: str, tmp_path: Path) -> None:
        """A rule gets it as ``$context.last_message`` and ``$context.messages``. No event holds it for that."""
        self.check_words(run_scene(context), tmp_path)

    def check_words(self, found: dict[str, Any], folder: Path) -> None:
        """Rules find what the user said, in each request."""
        (folder / "Sales").mkdir()
        (folder / "Sales/graph_injection.yaml").write_text(_SEARCHES)
        rules = load_rules(folder)
        assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer"][: len(found["said"])]
        for (agent, _), variables in zip(found["asked"], found["said"], strict=True):
            words = self.runtime.words.get(agent, "plan a trip")
            request = ContextRequest(
                id="r", app_id="shop", workflow="Sales", agent=agent, chat_id="c1", user_id="u1", context=variables,
                deadline_ms=1,
            )  # fmt: skip
            matched = rules.match_request(request, datetime(2026, 2, 1, tzinfo=UTC))
            assert [each.detail for each in matched.skipped] == []
            assert [each.search.text for each in matched.queries if each.search is not None] == [words, words]
            assert variables["messages"] == [{"role": "user", "text": words}]
        assert not any({"last_message", "messages"} & event["context"].keys() for event in found["events"])

    def test_context_stands_below_the_question(self, run_scene: RunScene, placed: str) -> None:
        for agent, prompt in run_scene(placed)["prompts"]:
            [at] = [n for n, part in enumerate(prompt) if "block" in str(part["content"])]
            assert prompt[at]["role"] in self.runtime.users
            assert prompt[at]["content"].endswith(f"\n\n{self._block(agent)}")
            assert [part["content"] for part in prompt if part["role"] == "system"] == [f"You are {agent}."]

    def test_context_stands_in_the_instructions_if_so_set(self, run_scene: RunScene, context: str) -> None:
        found = run_scene(context, context_place="instructions")
        for agent, prompt in found["prompts"]:
            parts = [f"You are {agent}.", self._block(agent)]
            assert [part["content"] for part in prompt if part["role"] == "system"] == (
                ["\n\n".join(parts)] if self.runtime.joined else parts
            )
            assert "block" not in str([part for part in prompt if part["role"] != "system"])
        self.check_not_kept(found)

    def test_context_stands_in_a_message_of_its_own_if_so_set(self, run_scene: RunScene, placed: str) -> None:
        found, below = run_scene(placed, context_place="own_message"), run_scene(placed)
        for (agent, prompt), (_, other) in zip(found["prompts"], below["prompts"], strict=True):
            [at] = [n for n, part in enumerate(prompt) if "block" in str(part["content"])]
            assert (prompt[at]["role"] in self.runtime.users, prompt[at]["content"]) == (True, self._block(agent))
            question = prompt[at - 1]["content"]
            rest = [part["content"] for n, part in enumerate(prompt) if n not in {at - 1, at}]
            assert [f"{question}\n\n{self._block(agent)}", *rest] == [
                *(part["content"] for part in other if "block" in str(part["content"])),
                *(part["content"] for part in other if "block" not in str(part["content"])),
            ]
        self.check_not_kept(found)

    def test_a_model_that_refuses_the_context_is_asked_once_without(self, run_scene: RunScene, refused: str) -> None:
        found, taken = run_scene(refused, refused="block"), run_scene(refused)
        assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer"]
        assert (found["answers"], found["error"]) == (taken["answers"], None)
        assert found["stats"]["refused_context"] == 2
        holding = [number for number, (_, prompt) in enumerate(found["prompts"]) if "block" in str(prompt)]
        assert holding == [0, len(found["prompts"]) - 2]
        assert len(found["prompts"]) == len(taken["prompts"]) + 2
        assert self.lines(found) == self.lines(taken)
        assert not any(event.get("context_id") for event in found["events"])

    def test_a_request_that_is_wrong_in_itself_raises_its_own_error(self, run_scene: RunScene, refused: str) -> None:
        found = run_scene(refused, refused="You are Planner.")
        assert found["error"] == "Refused: 'You are Planner.' is not allowed"
        assert len(found["prompts"]) == 2
        assert [line for line in self.lines(found) if line.startswith("model.")] == [
            "model.call_complete Planner 1 False Refused"
        ]
        assert found["stats"]["refused_context"] == 0

    @staticmethod
    def _block(agent: str) -> str:
        return f"## Notes\n- block {['Planner', 'Writer'].index(agent) + 1}"

    def test_agents_keep_their_own_instructions(self, run_scene: RunScene, instructions: str) -> None:
        found = run_scene(instructions)["instructions"]
        assert found == ["You are Planner.", "You are Writer."][: len(found) or 1]

    def test_runs_of_one_chat_continue_its_numbers(self, run_scene: RunScene, repeated: str) -> None:
        found = run_scene(repeated)
        assert self.lines(found) == [line for number in (1, 2, 3) for line in self.runtime.run(*turn_lines(number))]
        assert len(found["asked"]) == 3

    def test_each_run_of_a_chat_sees_only_its_own_context(self, run_scene: RunScene, repeated: str) -> None:
        found = run_scene(repeated)
        assert [re.findall(r"block \d", str(prompt)) for _, prompt in found["prompts"]] == [
            [f"block {number}"] for number in (1, 1, 2, 2, 3, 3)
        ]
        self.check_not_kept(found)

    def test_a_failing_model_is_reported_once_and_raises(self, run_scene: RunScene, failing: str) -> None:
        found = run_scene(failing, failing="yes")
        assert self.lines(found) == ["workflow.start", *self.runtime.planner, *WRITER_FAILS]
        assert found["events"][-1]["error_message"] == "no model"
        assert found["error"] == "ConnectionError: no model"

    @pytest.mark.long("hangs-fails", "garbage-fails")
    @pytest.mark.parametrize("fails", ["", "yes"], ids=["", "fails"])
    @pytest.mark.parametrize("way", ["hangs", "fails", "garbage"])
    def test_a_broken_bus_changes_no_answer(self, run_scene: RunScene, unaffected: str, way: str, fails: str) -> None:
        broken, without = (run_scene(unaffected, way=each, failing=fails) for each in (way, "none"))
        assert {name: value for name, value in broken.items() if name not in _CAPTURED} == {
            name: value for name, value in without.items() if name not in _CAPTURED
        }
        works = run_scene(unaffected, failing=fails)
        assert [works[name] for name in ("answers", "error")] == [without[name] for name in ("answers", "error")]
        assert (without["events"], without["stats"]["published"]) == ([], 0)
        assert broken["stats"]["published"] == len(works["events"]) > 0

    def test_a_cancelled_run_fails_as_such(self, run_scene: RunScene, cancelled: tuple[str, str | None]) -> None:
        scene, error = cancelled
        found = run_scene(scene)
        fails = [line.replace("Writer 2", "Planner 1").replace("Connection", "Cancelled") for line in WRITER_FAILS]
        assert self.lines(found) == self.runtime.run(*fails, ends="")
        assert found["error"] == error

    def test_the_timer_closes_an_abandoned_turn(
        self, run_scene: RunScene, abandoned: tuple[str, Sequence[str]]
    ) -> None:
        scene, lines = abandoned
        assert self.lines(run_scene(scene)) == list(lines)

    def test_chats_at_the_same_time_do_not_mix(self, run_scene: RunScene, together: str) -> None:
        found = run_scene(together)
        self.lines(found)
        assert found["answers"] == [city for _, city in CONCURRENT]
        for chat in {chat for chat, _ in CONCURRENT}:
            events = [event for event in found["events"] if event["chat"] == chat]
            for number, city in enumerate((city for of, city in CONCURRENT if of == chat), start=1):
                turn = [event for event in events if event.get("turn_number") == number]
                assert event_lines({"events": turn}) == turn_lines(number)
                [result] = [event["result"] for event in turn if "result" in event]
                assert (result["content"] if isinstance(result, dict) else result) == f"sunny in {city}"
                assert [event["response"] for event in turn if "response" in event] == [city]
            types = [event["type"] for event in events if "turn_number" not in event]
            assert types == self.runtime.run()
            assert [events[0]["type"], events[-1]["type"]] == (types or ["agent.turn_start", "agent.turn_complete"])
        assert len(found["asked"]) == len(CONCURRENT) * bool(self.runtime.context)
        blocks = Counter(re.findall(r"block \d", str(found["prompts"])))
        assert blocks == {f"block {number + 1}": 2 for number in range(len(found["asked"]))}

    def test_an_agent_that_is_a_tool_has_its_own_turn(self, run_scene: RunScene, nested: tuple[str, str]) -> None:
        scene, tool = nested
        found = run_scene(scene)
        turn = turn_lines(tool=tool)
        assert self.lines(found) == self.runtime.run(*turn[:3], *WRITER, *turn[3:])
        assert found["ids"] == self.ids
        assert [agent for agent, _ in found["asked"]] == ["Planner", "Writer"]
        responses = [event["response"] for event in found["events"] if event["type"] == "agent.turn_complete"]
        assert responses == ["Draft done.", "Plan done."]

    def test_a_failure_in_a_tool_is_reported_once(
        self, run_scene: RunScene, nested_failing: tuple[str, Sequence[str]]
    ) -> None:
        scene, after = nested_failing
        [tool] = [tool for name, tool in self.runtime.nested.items() if name == scene]
        lines = self.lines(run_scene(scene, failing="yes"))
        assert lines == self.runtime.run(*turn_lines(tool=tool)[:3], *WRITER_FAILS, *after, ends="")

    def test_an_error_outside_of_the_model_fails_the_turn(
        self, run_scene: RunScene, failures: tuple[str, Failure]
    ) -> None:
        scene, failure = failures
        found = run_scene(scene)
        assert self.lines(found) == self.runtime.run(
            "agent.turn_start Planner 1",
            *failure.steps,
            f"agent.turn_complete Planner 1 False failed {failure.error}",
            f"workflow.error Planner 1 {failure.error}",
            ends="",
        )
        error, _, message = (found.get("error") or "").partition(": ")
        assert (error, message) == (
            ("", "") if failure.message is None else (failure.error, failure.message or message)
        )

    def test_a_turn_that_waits_for_a_person_continues(self, run_scene: RunScene, waiting: tuple[str, str]) -> None:
        scene, tool = waiting
        found = run_scene(scene)
        assert self.lines(found) == self.runtime.run(*turn_lines(tool=tool))
        assert len(found["asked"]) == 1
        self.check_not_kept(found)

    def test_a_part_of_the_adapter_gives_its_events(
        self, run_scene: RunScene, parts: tuple[str, Sequence[str]]
    ) -> None:
        scene, lines = parts
        found = run_scene(scene)
        assert self.lines(found) == list(lines)
        assert str(found.get("error")) == ("ConnectionError: no model" if "fail" in scene else "None")

    def test_a_structured_answer_is_the_response_of_its_turn(self, run_scene: RunScene, structured: str) -> None:
        found = run_scene(structured)
        turn = ["workflow.start", "agent.turn_start Planner 1", MODEL, "agent.turn_complete Planner 1 True completed"]
        assert self.lines(found)[:4] == turn
        response = found["events"][3]["response"]
        assert (json.loads(response) if isinstance(response, str) else response) == {"steps": [1]}

    def test_a_runtime_publishes_events_of_its_own(self, run_scene: RunScene, own: tuple[str, str | None]) -> None:
        agent, tool = own
        found = run_scene("own")
        start, end = ([line] for line in tool_lines(tool, turn=f"{agent} 1")) if tool else ([], [])
        assert [line for line in self.lines(found) if not line.startswith(("model", "workflow"))] == [
            f"agent.turn_start {agent} 1",
            *start,
            f"ui_tool.call_complete {agent} 1 approve_plan",
            *end,
            f"agent.turn_complete {agent} 1 True completed",
            f"agent.structured_output {agent}",
        ]
        assert found["events"][-1]["structured_data"] == {"steps": [1]}
        assert found["stats"]["invalid"] == 1

    def test_turns_are_timed(self, run_scene: RunScene, timed: str) -> None:
        assert len(run_scene("turns count=2", way=timed)["ms"]) == 2

    def check_printed(self, printed: str, wanted: str) -> None:
        """The example printed what its page shows."""
        assert printed == wanted

    def test_the_example_of_the_page_runs_as_printed(
        self, runtime_python: Callable[[str], Path], tmp_path: Path
    ) -> None:
        page = self.runtime.page or self.runtime.extra
        rules = tmp_path / "workflows/Travel/graph_injection.yaml"
        rules.parent.mkdir(parents=True)
        rules.write_text(page_block(page, "yaml", "version"))
        (tmp_path / "travel.py").write_text(page_block(page, "python", "# travel.py"))
        printed = run_with_services(tmp_path, runtime_python(self.runtime.extra), "travel.py")
        self.check_printed(printed, page_block(page, "text"))
