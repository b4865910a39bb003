"""OpenTelemetry with its real SDK and exporters: spans of Agent Framework, and spans made by hand, give the events."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from tests.adapters.contract import (
    CONTENTS,
    MODEL,
    PLANNER,
    WRITER,
    WRITER_FAILS,
    AdapterContract,
    Runtime,
    event_lines,
    turn_lines,
)
from tests.adapters.runner import SOURCES, RunScene
from tests.adapters.shared.kit import TRACE
from tests.services.layouts import events_on_bus
from tests.services.runtime_environments import ROOT

COMPLETED = "agent.turn_complete Planner 1 True completed"
BY_HAND = (*PLANNER[:-2], COMPLETED)
"""Spans show that the planner's work ended, not that it handed over: its turn is completed, without a phase."""
AGENTS = (*PLANNER[:-2], MODEL, COMPLETED)
"""In Agent Framework, the planner's model is called once more after its last tool."""


def unnumbered(lines: list[str]) -> list[str]:
    return [re.sub(r" \d+\b", "", line) for line in lines]


def environment(**more: str) -> dict[str, str]:
    left = {name: value for name, value in os.environ.items() if not name.startswith(("GRAPHWEFT_", "OTEL_"))}
    return left | SOURCES | more


@contextmanager
def gateway(url: str, port: str = "0") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a gateway as users start it; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "run", "gateway", "--port", port, "--insecure-app", "sent"],
        env=environment(GRAPHWEFT_BUS_URL=url, PYTHONPATH=os.environ.get("PYTHONPATH", "")), cwd=ROOT, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        started = cast("Any", process.stdout).readline()
        assert "answers on" in started, cast("Any", process.stderr).read()
        yield started.split()[-1], process
    finally:
        process.kill()
        process.communicate(timeout=30)


class TestOpenTelemetry(AdapterContract):
    runtime = Runtime(
        extra="otel",
        conversation=["by_hand"],
        planner=BY_HAND,
        contents={
            **CONTENTS,
            "agent.turn_start": [{"agent_id": "p-1"}, {}],
            "tool.call_complete": [*CONTENTS["tool.call_complete"][:2], {}],
            "model.call_complete": [
                {"model": "fake-1", "input_tokens": 5, "output_tokens": 7, "call_number": number}
                for number in (1, 2, 3, 1)
            ],
            "agent.turn_complete": [{"response": None}, {"response": "Draft done."}],
        },
        agent_runs=False,
        failing=["by_hand"],
        unaffected=["agents run"],
        together=["together"],
        abandoned={"abandoned": [*turn_lines()[:2], "agent.turn_complete Planner 1 False abandoned"]},
        page="opentelemetry",
    )

    def test_events_and_requests_name_the_span_of_the_program(self, run_scene: RunScene, conversation: str) -> None:
        """Here each event names the span that it comes from."""
        names = run_scene(conversation)["spans"]
        assert len(names) > 2
        assert {None, TRACE.traceparent}.isdisjoint(names)

    def test_events_have_the_times_of_their_spans(self, run_scene: RunScene) -> None:
        times = run_scene("by_hand")["times"]
        assert times == sorted(times)

    @pytest.mark.parametrize("failing", ["", "yes"])
    @pytest.mark.parametrize("scene", ["by_hand", "agents run"])
    def test_a_receiver_makes_the_same_events_of_ended_spans(
        self, run_scene: RunScene, scene: str, failing: str
    ) -> None:
        found = run_scene(scene, failing=failing)
        received = {event["id"]: event for event in reversed(found["received"])}  # the first of each id
        once = [event for event in found["received"] if event is received[event["id"]]]
        assert unnumbered(event_lines({"events": once})) == unnumbered(event_lines(found))
        for name in ("id", "chat"):
            assert [event[name] for event in once] == [event[name] for event in found["events"]]

    def test_without_a_conversation_the_trace_is_the_chat(self, run_scene: RunScene) -> None:
        found = run_scene("by_hand unknown")
        assert {event["chat"] for event in found["events"]} == {found["trace"]}
        assert event_lines(found) == event_lines(run_scene("by_hand"))

    @pytest.mark.parametrize("mode", ["run", "stream"])
    def test_agents_of_agent_framework_give_their_events(self, run_scene: RunScene, mode: str) -> None:
        found = run_scene(f"agents {mode}")
        assert self.lines(found) == ["workflow.start", *AGENTS, *WRITER, "workflow.complete"]
        [[app_id, chat_id, workflow, user_id, _]] = found["ids"]
        assert (app_id, len(chat_id), workflow, user_id) == ("shop", 32, "Trip", "u1")
        results = [event.get("result") for event in found["events"] if event["type"] == "tool.call_complete"]
        assert results == ["sunny in Oslo", None, "over to you"]
        assert [event["response"] for event in found["events"] if event["type"] == "agent.turn_complete"] == [
            "Done.", "Draft done.",
        ]  # fmt: skip

    @pytest.mark.parametrize("mode", ["run", "stream"])
    def test_a_failing_model_of_agent_framework_is_reported_once(self, run_scene: RunScene, mode: str) -> None:
        found = run_scene(f"agents {mode}", failing="yes")
        assert self.lines(found) == ["workflow.start", *AGENTS, *WRITER_FAILS]
        assert found["error"] == "ConnectionError: no model"

    @pytest.mark.parametrize(
        ("how", "end"),
        [("cancelled", "True completed"), ("left", "False abandoned"), ("forgotten", "True completed")],
    )
    def test_an_abandoned_run_ends_as_its_spans_end(self, run_scene: RunScene, how: str, end: str) -> None:
        """Agent Framework ends the spans of a cancelled run without an error, and so those of a stream left open.

        The latter only when Python drops the stream: as long as the program holds it, its spans do not end.
        """
        assert event_lines(run_scene(f"given_up {how}"))[-1] == f"agent.turn_complete Planner 1 {end}"

    def test_spans_may_get_their_attributes_after_their_start(self, run_scene: RunScene) -> None:
        found = run_scene("late")
        assert event_lines(found) == [
            "agent.turn_start Planner 1",
            MODEL,
            COMPLETED,
            "model.call_complete True",  # its agent's span got its attributes after this
            "agent.turn_start Late 2",
            "agent.turn_complete Late 2 True completed",
        ]
        assert {event["chat"] for event in found["events"]} == {"c9"}

    def test_spans_captured_twice_give_the_same_ids(self, run_scene: RunScene) -> None:
        ids = [event["id"] for event in run_scene("twice")["events"]]
        assert len(ids) == 2 * len(set(ids))

    def test_the_adapters_own_traffic_is_in_no_trace(self, run_scene: RunScene) -> None:
        seen = run_scene("own_traffic")["seen"]
        assert seen
        assert all(each == [False, True] for each in seen)

    @pytest.mark.parametrize("held", ["", "yes"], ids=["alone", "beside a thread that makes spans"])
    def test_a_forked_worker_publishes_by_itself(self, run_scene: RunScene, held: str) -> None:
        child = run_scene("forked", held=held)["child"]
        assert child == [True, 0, False], "without a bus the event waits in the child's own buffer"

    def test_an_exporter_without_a_provider_emits_batches(self, run_scene: RunScene) -> None:
        """In two batches, the first of which has the first four spans that end."""
        whole = unnumbered([*BY_HAND[1:], *WRITER])
        batches = [*whole[:7], "workflow.start", "agent.turn_start Planner", *whole[7:], "workflow.complete"]
        assert sorted(unnumbered(event_lines(run_scene("without_provider")))) == sorted(
            [line.replace(" Planner", "") if number < 6 else line for number, line in enumerate(batches)]
        )

    @pytest.fixture
    def python(self, runtime_python: Callable[[str], Path]) -> Path:
        return runtime_python("otel")

    async def test_a_program_is_captured_without_a_change(self, python: Path, url: str) -> None:
        settings = environment(
            GRAPHWEFT_BUS_URL=url, ENABLE_INSTRUMENTATION="true", ENABLE_SENSITIVE_DATA="true",
            OTEL_TRACES_EXPORTER="graphweft", OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none",
            OTEL_RESOURCE_ATTRIBUTES="graphweft.app_id=unchanged,graphweft.workflow_name=Trip",
        )  # fmt: skip
        done = await asyncio.to_thread(
            subprocess.run,
            [python.with_name("opentelemetry-instrument"), python, "tests/adapters/otel/uninstrumented_program.py"],
            cwd=ROOT, env=settings, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "It is sunny.\n"), done.stderr[-3000:]
        found = [event for event in await events_on_bus(url) if event["appid"] == "unchanged"]
        assert event_lines({"events": [{"type": event["type"], **event["data"]} for event in found]}) == [
            "agent.turn_start Planner 1",
            "model.call_complete Planner 1 True",
            "tool.call_start Planner 1 weather",
            "tool.call_complete Planner 1 True weather",
            "model.call_complete Planner 1 True",
            "agent.turn_complete Planner 1 True completed",
        ]
        assert {event["workflow"] for event in found} == {"Trip"}

    async def test_a_killed_gateway_loses_and_duplicates_no_event(self, python: Path, url: str) -> None:
        with gateway(url) as (address, _):
            sender = subprocess.Popen(  # noqa: ASYNC220
                [python, "tests/adapters/otel/otlp_sender.py", f"{address}/v1/traces", "200"],
                cwd=ROOT, env=environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )  # fmt: skip
            out, into = cast("Any", sender.stdout), cast("Any", sender.stdin)
            assert await asyncio.to_thread(out.readline) == "50\n"
        into.write("\n")
        into.flush()
        assert await asyncio.to_thread(out.readline) == "100\n"  # while no gateway runs
        port = address.rpartition(":")[2]
        for made in ("150\n", "200\n"):
            with gateway(url, port):
                into.write("\n")
                into.flush()
                assert await asyncio.to_thread(out.readline) == made
        with gateway(url, port):
            rest, errors = await asyncio.to_thread(sender.communicate, "\n", timeout=150)
            assert sender.returncode == 0, errors[-3000:]
        chats = json.loads(rest.splitlines()[-1])
        found = [event for event in await events_on_bus(url) if event["appid"] == "sent"]
        expected = {(f"{span}-{moment}", chat) for span, chat in chats.items() for moment in ("start", "end")}
        assert {(event["id"], event["chatid"]) for event in found} == expected, (
            "events that were sent twice have one id"
        )
