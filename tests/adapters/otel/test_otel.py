"""OpenTelemetry with its real SDK and exporters: spans of Agent Framework, and spans by hand, give the events."""

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
import redis.asyncio as redis
from tests.adapters.plays import PLANNER, SOURCES, WRITER, WRITER_FAILS, Play, Player, run_beside_up, said
from tests.services.runtime_environments import ROOT, RUNTIME_ENVIRONMENT_S

from graphweft_contracts import channels

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(RUNTIME_ENVIRONMENT_S)]

HANDED_OVER = "agent.turn_complete Planner 1 True handed_off"
BY_HAND = (*PLANNER[:-2], "agent.turn_complete Planner 1 True completed")
"""Spans say that the planner's work ended, and not that it handed over: its turn is completed, and no phase is told."""
AGENTS = (*PLANNER[:-2], "model.call_complete Planner 1 True", "agent.turn_complete Planner 1 True completed")
"""Agent Framework's planner, besides, is asked once more when its last tool has answered."""


@pytest.fixture(scope="module")
def python(runtime_python: Callable[[str], Path]) -> Path:
    return runtime_python("otel")


@pytest.fixture(scope="module")
def play(player: Player) -> Play:
    return player("otel")


def unnumbered(lines: list[str]) -> list[str]:
    return [re.sub(r" \d+\b", "", line) for line in lines]


def test_the_names_stand_for_what_is_left_out() -> None:
    assert PLANNER[-2:] == (HANDED_OVER, "workflow.phase_complete Planner Writer")


def test_spans_by_the_conventions_give_the_events(play: Play) -> None:
    found = play("by_hand")
    assert said(found) == ["workflow.start", *BY_HAND, *WRITER, "workflow.complete"]
    assert found["ids"] == [["shop", "c1", "Sales", "u1", "/graphweft/otel"]]
    assert all(event["context"]["user_id"] == "u1" for event in found["events"])
    assert {name: count for name, count in found["stats"].items() if count} == {"published": 16}
    assert found["times"] == sorted(found["times"])


def test_events_hold_what_was_said_and_done(play: Play) -> None:
    events = play("by_hand")["events"]
    weather, book, _ = (event for event in events if event["type"] == "tool.call_complete")
    assert (weather["call_id"], weather["result"]) == ("t1", "sunny in Oslo")
    assert (book["call_id"], book["error"]) == ("t2", "7 is taken")
    assert [event["arguments"] for event in events if event["type"] == "tool.call_start"] == [
        {"city": "Oslo"}, {"room": "7"}, {},
    ]  # fmt: skip
    assert [event["response"] for event in events if event["type"] == "agent.turn_complete"] == [None, "Draft done."]
    calls = [event for event in events if event["type"] == "model.call_complete"]
    assert {(event["model"], event["input_tokens"], event["output_tokens"]) for event in calls} == {("fake-1", 5, 7)}
    assert [event["call_number"] for event in calls] == [1, 2, 3, 1]
    assert events[1]["agent_id"] == "p-1"
    assert events[-1]["outputs"] == "Draft done."


@pytest.mark.parametrize("failing", ["", "fails"])
@pytest.mark.parametrize("scene", ["by_hand", "agents"])
def test_a_receiver_gets_the_same_events_from_the_ended_spans(play: Play, scene: str, failing: str) -> None:
    command = (scene, "works", failing) if scene == "by_hand" else (scene, "run", "works", failing)
    found = play(*command)
    received = found["received"]
    once = [one for number, one in enumerate(received) if one["id"] not in {each["id"] for each in received[:number]}]
    assert unnumbered(said({"events": once})) == unnumbered(said(found))
    assert [one["id"] for one in once] == found["event_ids"]
    assert [one["chat"] for one in once] == found["chats"]


def test_a_model_that_fails_is_told_once(play: Play) -> None:
    found = play("by_hand", "works", "fails")
    assert said(found) == ["workflow.start", *BY_HAND, *WRITER_FAILS]
    assert found["events"][-1]["error_message"] == "no model"
    assert found["error"] == "ConnectionError: no model"


def test_without_a_conversation_the_trace_is_the_chat(play: Play) -> None:
    found = play("by_hand", "works", "", "")
    assert set(found["chats"]) == {found["trace"]}
    assert said(found) == said(play("by_hand"))


@pytest.mark.parametrize("mode", ["run", "stream"])
def test_agents_of_agent_framework_give_their_events(play: Play, mode: str) -> None:
    found = play("agents", mode)
    assert said(found) == ["workflow.start", *AGENTS, *WRITER, "workflow.complete"]
    [[app_id, chat_id, workflow, user_id, _]] = found["ids"]
    assert (app_id, len(chat_id), workflow, user_id) == ("shop", 32, "Trip", "u1")
    results = [event.get("result") for event in found["events"] if event["type"] == "tool.call_complete"]
    assert results == ["sunny in Oslo", None, "over to you"]
    assert [event["response"] for event in found["events"] if event["type"] == "agent.turn_complete"] == [
        "Done.", "Draft done.",
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["run", "stream"])
def test_a_model_of_agent_framework_that_fails_is_told_once(play: Play, mode: str) -> None:
    found = play("agents", mode, "works", "fails")
    assert said(found) == ["workflow.start", *AGENTS, *WRITER_FAILS]
    assert found["error"] == "no model"


@pytest.mark.parametrize("how", ["cancelled", "left"])
def test_what_nobody_waits_for_is_told_as_its_spans_end(play: Play, how: str) -> None:
    """Agent Framework ends the spans of a cancelled run without a word, and those of a stream that is left never."""
    ended = {"cancelled": "True completed", "left": "False abandoned"}[how]
    assert said(play("given_up", how))[-1] == f"agent.turn_complete Planner 1 {ended}"


@pytest.mark.parametrize("failing", ["", "fails"])
@pytest.mark.parametrize("way", ["hangs", "fails", "garbage"])
def test_a_bus_that_is_broken_changes_nothing(play: Play, way: str, failing: str) -> None:
    def seen(found: dict[str, Any]) -> list[Any]:
        return [found[name] for name in ("outputs", "error", "prompts", "spans")]

    broken, without = play("agents", "run", way, failing), play("agents", "run", "none", failing)
    assert seen(broken) == seen(without)
    assert (without["events"], broken["stats"]["published"]) == ([], 17)


def test_chats_at_the_same_time_do_not_mix(play: Play) -> None:
    found = play("at_once")
    told = list(zip(found["chats"], found["events"], strict=True))
    for chat, calls in (("a", ["1"]), ("b", ["1"]), ("c", ["1", "2"])):
        own = [event for of, event in told if of == chat]
        assert len(own) == 5 * len(calls)
        ended = {event["call_id"]: event for event in own if event["type"] == "tool.call_complete"}
        assert {call: event["result"] for call, event in ended.items()} == {
            call: f"sunny in {chat} {call}" for call in calls
        }
        assert sorted(event["turn_number"] for event in ended.values()) == list(range(1, len(calls) + 1))


def test_spans_that_say_late_what_they_are(play: Play) -> None:
    found = play("late")
    assert said(found) == [
        "agent.turn_start Planner 1",
        "model.call_complete Planner 1 True",
        "agent.turn_complete Planner 1 True completed",
        "model.call_complete True",  # its agent's span said so when this was over
        "agent.turn_start Late 2",
        "agent.turn_complete Late 2 True completed",
    ]
    assert set(found["chats"]) == {"c9"}


def test_a_span_that_never_ends_is_closed_by_the_timer(play: Play) -> None:
    assert said(play("abandoned")) == [
        "agent.turn_start Planner 1",
        "model.call_complete Planner 1 True",
        "agent.turn_complete Planner 1 False abandoned",
    ]


def test_what_is_captured_twice_has_its_ids_twice(play: Play) -> None:
    found = play("twice")
    assert len(found["event_ids"]) == 2 * len(set(found["event_ids"]))


def test_our_own_traffic_is_in_no_trace(play: Play) -> None:
    seen = play("own_traffic")["seen"]
    assert seen
    assert all(each == [False, True] for each in seen)


@pytest.mark.parametrize("held", ["", "held"], ids=["alone", "beside a thread that makes spans"])
def test_a_forked_worker_publishes_by_itself(play: Play, held: str) -> None:
    child = play("forked", held)["child"]
    assert child == [True, 0, False], "there is no bus, so it waits in the child's own buffer"


def test_an_exporter_without_a_provider_tells_ended_spans_in_batches(play: Play) -> None:
    found = play("without_provider")
    assert sorted(unnumbered(said(found))) == sorted(
        [line.replace(" Planner", "") if number < 6 else line for number, line in enumerate(batches())]
    )


def batches() -> list[str]:
    """Return the events of the conversation in two batches, the first of which has the first four spans that end."""
    whole = unnumbered([*BY_HAND[1:], *WRITER])
    return [*whole[:7], "workflow.start", "agent.turn_start Planner", *whole[7:], "workflow.complete"]


def test_turns_are_measured(play: Play) -> None:
    assert len(play("turns", "hangs", "3")["ms"]) == 3


# ------------------------------------------------------------------------------------- programs that know nothing of it


async def on_the_bus(url: str) -> list[dict[str, Any]]:
    async with redis.Redis.from_url(url) as raw:
        return [
            json.loads(fields[b"data"])
            for partition in range(4)
            for _, fields in cast("Any", await raw.xrange(channels.events_stream(partition)))
        ]


def environment(**more: str) -> dict[str, str]:
    left = {name: value for name, value in os.environ.items() if not name.startswith(("GRAPHWEFT_", "OTEL_"))}
    return left | SOURCES | more


async def test_a_program_is_captured_without_a_change(python: Path, url: str) -> None:
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
    found = [event for event in await on_the_bus(url) if event["appid"] == "unchanged"]
    assert said({"events": [{"type": event["type"], **event["data"]} for event in found]}) == [
        "agent.turn_start Planner 1",
        "model.call_complete Planner 1 True",
        "tool.call_start Planner 1 weather",
        "tool.call_complete Planner 1 True weather",
        "model.call_complete Planner 1 True",
        "agent.turn_complete Planner 1 True completed",
    ]
    assert {event["workflow"] for event in found} == {"Trip"}


@contextmanager
def gateway(url: str, port: str = "0") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a gateway as users start it; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "run", "gateway", "--port", port, "--insecure-app", "sent"],
        env=environment(GRAPHWEFT_BUS_URL=url, PYTHONPATH=os.environ.get("PYTHONPATH", "")), cwd=ROOT, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        said = cast("Any", process.stdout).readline()
        assert "answers on" in said, cast("Any", process.stderr).read()
        yield said.split()[-1], process
    finally:
        process.kill()
        process.communicate(timeout=30)


async def test_a_gateway_that_is_killed_loses_and_doubles_nothing(python: Path, url: str) -> None:
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
    assert await asyncio.to_thread(out.readline) == "100\n"  # while nobody answers
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
    found = [event for event in await on_the_bus(url) if event["appid"] == "sent"]
    expected = {(f"{span}-{moment}", chat) for span, chat in chats.items() for moment in ("start", "end")}
    assert {(event["id"], event["chatid"]) for event in found} == expected, "what is there twice has effect once"


PAGE = ROOT / "docs/runtimes/opentelemetry.md"


def block(language: str, first_line: str = "") -> str:
    [text] = re.findall(rf"```{language}\n({re.escape(first_line)}.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return str(text)


def test_the_example_of_the_page_runs_as_printed(python: Path, tmp_path: Path) -> None:
    rules = tmp_path / "workflows/Travel/graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text(block("yaml", "version"))
    (tmp_path / "travel.py").write_text(block("python", "# travel.py"))
    assert run_beside_up(tmp_path, python, "travel.py") == block("text")
