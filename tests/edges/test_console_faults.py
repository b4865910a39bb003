"""The console where something is wrong: rules that cannot be used, many dead letters, no free place; and on Kafka."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import pytest
from tests.edges.test_console import QUESTIONS, RULES, SEEN, WRITES, Asking, console, problem, visiting
from tests.services.buses import applied
from tests.services.environment import clean_environment

from graphweft import Client, Event
from graphweft_contracts import DeadLetter, channels
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import StoredRules
from graphweft_rules import RuleSet
from graphweft_workers.console import live
from graphweft_workers.console.app import Page
from graphweft_workers.console.pages import PAGES
from graphweft_workers.console.questions import Question
from graphweft_workers.console.sources import open_sources
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.gateway.limits import GatewayLimits
from graphweft_workers.ports.bus import Bus
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rule_faults import keep_faults

pytestmark = pytest.mark.integration

FILE: Final = "Broken/graph_injection.yaml"
BROKEN: Final = {
    "yaml": "mutation_rules: [",
    "key": "mutation_rulez: []",
    "cypher": RULES.replace('"MERGE (n:Note', '"MERRGE (n:Note'),
}
SLOW: Final = ("/api/context", "/api/memory/search", "/api/context/past")
"""They wait for a responder, and none runs here."""
TO_RESTORE: Final = "check out the files of that time, and run `graphweft rules push FOLDER`"
NOT_FOUND: Final = {"/api/graph/node": 404, "/api/letters/show": 404, **dict.fromkeys(WRITES, 403)}


def settings(bus_url: str, graph_url: str, **more: Any) -> Settings:
    return Settings.load(bus_url=bus_url, graph_url=graph_url, **more)


async def activate(bus: Bus, files: dict[str, str], scope: str = ALL_APPS) -> str:
    """Store files as they are, as an earlier version may have, and make them active."""
    stored = {name: text.encode() for name, text in files.items()}
    digest = RuleSet.of_stored(stored).digest
    await bus.rules.store(digest, StoredRules(files=stored))
    await bus.rules.activate(scope, digest)
    return digest


async def emit(url: str, *ids: str, app: str = "acme", workflow: str = "Notes", type: str = "note.made") -> None:
    async with Client(url) as client:
        for name in ids:
            data = {"text": name, "note": name, "tag": "t", "value": {"a": 1}}
            event = Event.create(type, app_id=app, chat_id="c1", workflow=workflow, id=name, data=data)
            assert await client.emit(event)


async def work_off(bus: Bus, worker: MutationWorker) -> None:
    running = asyncio.create_task(worker.run())
    await applied(bus)
    worker.stop()
    await running


async def position_of(ask: Asking, name: str) -> str:
    events = (await ask("live"))["events"]
    return next(str(event["position"]) for event in events if event.get("id") == name)


async def every_page(ask: Asking, position: str) -> None:
    """Each page answers, or says why it cannot."""
    for page in PAGES:
        if page.path in SLOW:
            continue
        question = QUESTIONS.get(page.path, {}) | ({"position": position} if page.path == "/api/event" else {})
        answer = await ask.answer(page.path.removeprefix("/api/"), **question)
        good = {200, NOT_FOUND.get(page.path, 200)}
        if page.path in ("/api/rules/try", "/api/graph/why", "/api/graph/past"):
            good.add(422)
        assert answer.status_code in good, (page.path, answer.text)


@pytest.mark.parametrize("fault", BROKEN)
async def test_active_rules_that_do_not_compile_are_named_and_hide_nothing(url: str, fault: str) -> None:
    loaded = settings(url, url)
    async with console(loaded) as ask, open_sources(loaded) as sources:
        await activate(sources.bus, {FILE: BROKEN[fault], "Notes/graph_injection.yaml": RULES})
        await emit(url, "good")
        await emit(url, "bad", workflow="Broken")
        found = await ask("rules/faults")
        [workflow] = found["workflows"]
        assert (workflow["workflow"], found["lost"], found["folder"]) == ("Broken", [], "")
        assert re.match(rf"{FILE}:\d+:\d+: error [a-z-]+: ", workflow["errors"][0]), workflow
        await every_page(ask, await position_of(ask, "good"))
        events = {event["id"]: event for event in (await ask("live"))["events"] if event["kind"] == "event"}
        assert [each["mutation"] for each in events["good"]["matched"]] == ["write", "tag"]
        assert events["bad"]["matched"] == []
        assert f"the rules of the workflow 'Broken' do not compile ({FILE}:" in events["bad"]["reason"]
        why = await ask("event", position=events["bad"]["position"])
        assert (why["mutations"], FILE in why["reason"]) == ([], True)
        rules = await ask("rules")
        assert {each["name"]: each["problem"] is None for each in rules["workflows"]} == {
            "Broken": False,
            "Notes": True,
        }
        assert any(each["file"] == FILE and each["level"] == "error" for each in rules["findings"])
        assert (await ask("context/names"))["workflows"] == {"Notes": ["*"]}
    async with console(loaded, forbidden="Broken") as ask:
        assert (await ask("rules/faults"))["workflows"] == []


@pytest.mark.parametrize("damaged", [False, True])
async def test_lost_rules_are_named_and_come_back_with_a_push(url: str, tmp_path: Path, damaged: bool) -> None:
    loaded = settings(url, url)
    bus = redis_bus(url)
    try:
        digest = await activate(bus, {"Notes/graph_injection.yaml": RULES})
        await bus.rules.activate("globex", await activate(bus, {FILE: RULES}, "globex"))
        call = bus.log.call
        await call(*(("HSET", channels.RULE_SETS, digest, b"{") if damaged else ("HDEL", channels.RULE_SETS, digest)))
        await emit(url, "first")
        async with console(loaded) as ask:
            [lost] = (await ask("rules/faults"))["lost"]
            assert (lost["rules"], TO_RESTORE in lost["why"]) == (digest[:12], True)
            await every_page(ask, await position_of(ask, "first"))
            [event] = [event for event in (await ask("live"))["events"] if event["kind"] == "event"]
            assert TO_RESTORE in event["reason"]
            assert TO_RESTORE in (await ask("event", position=event["position"]))["reason"]
            rules = await ask("rules")
            assert (rules["lost"], rules["active"]["rules"]) == (True, digest[:12])
            replay = await ask.answer("graph/past", time=datetime.now(UTC).isoformat())
            assert (problem(replay), "graphweft rules push" in replay.text) == ((422, "refused"), True)
            whole = await ask("rules/faults", "operator")
            assert [each["scope"] for each in whole["lost"]] == ["*"]
            assert (await ask("rules/faults", "theirs"))["lost"] == [], "the other app has rules of its own"
            await activate(bus, {"Notes/graph_injection.yaml": RULES})
            assert (await ask("rules/faults"))["lost"] == []
            assert (await ask("rules"))["lost"] is False
    finally:
        await bus.aclose()


async def test_the_console_shows_operators_the_errors_of_the_rules_folder(url: str) -> None:
    text = "the rules of workflows have errors, so the ones before go on:\nNotes/graph_injection.yaml:3:1: error x: y"
    loaded = settings(url, url)
    async with console(loaded) as ask, open_sources(loaded) as sources:
        await keep_faults(sources.bus, "workflows", text)
        assert (await ask("rules/faults", "operator"))["folder"] == text
        assert (await ask("rules/faults"))["folder"] == "", "the folder holds the rules of all apps"
        await keep_faults(sources.bus, "workflows", "")
        assert (await ask("rules/faults", "operator"))["folder"] == ""


async def test_live_says_when_it_has_not_looked_at_all_dead_letters(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = settings(url, url)
    async with console(loaded) as ask, open_sources(loaded) as sources:
        await activate(sources.bus, {"Notes/graph_injection.yaml": RULES})
        await emit(url, "one")
        await emit(url, "two", app="globex")
        assert (await ask("live"))["letters_partly"] is False
        of_acme = [
            DeadLetter(
                id=f"0:{number}", reason="invalid_event", message="x", position=f"0:{number}-0", app_id="acme",
                time=datetime(2026, 1, 1, tzinfo=UTC), fields={},
            )
            for number in range(live._LETTERS + 1)
        ]  # fmt: skip
        await sources.bus.dead_letters.put(of_acme)
        assert (await ask("live"))["letters_partly"] is True
        assert (await ask("live", "theirs"))["letters_partly"] is False, "those are of another app"
        monkeypatch.setattr(live, "_LOOKUPS", 2)
        assert (await ask("live", "theirs"))["letters_partly"] is True


async def test_the_console_that_is_full_says_so_at_once_and_when_to_ask_again(url: str) -> None:
    began, forever = asyncio.Semaphore(0), asyncio.Event()

    async def waits(*_: Any) -> dict[str, Any]:
        began.release()
        await forever.wait()
        return {}

    pages = (Page(path="/api/waits", question=Question, answer=waits),)
    async with console(settings(url, url), pages=pages, limits=GatewayLimits(requests=1, requests_per_app=1)) as ask:
        others = [asyncio.create_task(ask.answer("waits", token)) for token in ("mine", "operator")]
        for _ in others:  # an operator is no app
            await began.acquire()
        refused = await ask.answer("waits", "theirs")
        assert problem(refused) == (503, "overloaded")
        assert (refused.headers["Retry-After"], "the console has too many open requests" in refused.text) == ("1", True)
        forever.set()
        assert [(await each).status_code for each in others] == [200, 200]
        assert (await ask.answer("waits", "operator")).status_code == 200


async def test_a_session_says_whether_an_app_is_known(url: str) -> None:
    loaded = settings(url, url)
    async with console(loaded) as ask, open_sources(loaded) as sources:
        await activate(sources.bus, {"Notes/graph_injection.yaml": RULES}, "globex")
        assert (await ask("session", "operator"))["knows_app"] is True
        known = [(await ask("session", "operator", app=app))["knows_app"] for app in ("globex", "nobody")]
        assert known == [True, False]
        assert problem(await ask.answer("session", app="globex")) == (403, "other-app")
        for path in ("live", "graph", "letters", "operation", "rules", "context/names", "memory/scopes"):
            assert (await ask.answer(path, "operator", app="nobody")).status_code == 200, path
        found = await ask("graph/search", "operator", app="nobody", text="MATCH (n) RETURN n")
        assert found["nodes"] == []


@pytest.mark.long
def test_a_browser_says_on_every_page_which_rules_do_not_compile(url: str, tmp_path: Path) -> None:
    async def prepare() -> None:
        async with open_sources(settings(url, url)) as sources:
            await activate(sources.bus, {"Notes/graph_injection.yaml": RULES}, "acme")
            await activate(sources.bus, {FILE: BROKEN["yaml"]}, "broken")
        await emit(url, "good")

    asyncio.run(prepare())
    token = "x" * 40
    servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url, "GRAPHWEFT_CONSOLE_TOKEN": token}
    process = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "run", "console", "--port", "0"],
        env=clean_environment() | servers, cwd=tmp_path, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        said = cast("Any", process.stdout).readline()
        link = f"{said.split()[-1]}/#token={token}"
        with visiting(link, app="broken") as (page, base, faults):
            for name, _ in SEEN:
                page.goto(f"{base}#/{name}")
                page.wait_for_selector(f".note.bad >> text={FILE}:1:")
                page.wait_for_selector("text=graphweft rules push FOLDER")
                assert page.evaluate("document.querySelectorAll('main h1').length") == 1
            page.select_option("#app", "acme")
            page.goto(f"{base}#/live")
            page.wait_for_selector("td >> text=notes/write")
            assert page.locator(".note.bad").count() == 0
            assert faults == []
    finally:
        process.terminate()
        process.communicate(timeout=120)


# ---------------------------------------------------------------------------------------------------------------- Kafka


@pytest.fixture
async def on_kafka(kafka_url: str, url: str) -> AsyncIterator[Settings]:
    loaded = settings(kafka_url, url, console_write=True)
    async with open_sources(loaded) as sources:
        worker_rules = RuleSet.of_files({"Notes/graph_injection.yaml": RULES.encode()})
        await activate(sources.bus, {"Notes/graph_injection.yaml": RULES})
        await emit(kafka_url, "first", "second")
        await emit(kafka_url, "bad", type="note.bad")
        await emit(kafka_url, "lost", workflow="Nowhere")
        await emit(kafka_url, "theirs", app="globex")
        await work_off(sources.bus, MutationWorker(sources.bus, sources.graph, worker_rules, name="w"))
        yield loaded


@pytest.mark.soak
async def test_every_page_answers_with_kafka_as_the_bus(kafka_url: str, on_kafka: Settings) -> None:
    async with console(on_kafka) as ask:
        found = await ask("live")
        events = {event.get("id"): event for event in found["events"] if event["kind"] == "event"}
        assert {name: event["state"] for name, event in events.items()}["first"] == "applied"
        assert events["bad"]["matched"][0]["letter"] == "invalid_value"
        assert events["lost"]["letter"] == "no_rules"
        assert "theirs" not in events
        assert (await ask("live", cursor=found["cursor"]))["events"] == []
        await emit(kafka_url, "third")
        again = await ask("live", cursor=found["cursor"], pending=[events["first"]["position"]])
        assert [event["id"] for event in again["events"]] == ["third"]
        assert again["states"][events["first"]["position"]]["state"] == "applied"
        redis_like = await ask.answer("live", cursor={"0": "1700000000000-0"})
        assert redis_like.status_code in (200, 422), redis_like.text
        why = await ask("event", position=events["bad"]["position"])
        assert [(each["mutation"], each["outcome"]) for each in why["mutations"]] == [("map", "dead_letter")]
        letters = (await ask("letters"))["letters"]
        assert {each["reason"] for each in letters} == {"invalid_value", "no_rules"}
        bad = next(each for each in letters if each["reason"] == "invalid_value")
        assert '"bad"' in (await ask("letters/show", id=bad["id"]))["fields"]["data"]
        operation = await ask("operation")
        assert (operation["dead_letters"], operation["lag"]) == (2, 1)
        whole = await ask("operation", "operator")
        assert sum(each["lag"] for each in whole["partitions"]) == 1
        await every_page(ask, events["first"]["position"])
        corrected = await ask("letters/correct", "boss", id=bad["id"], changes={"value": 5})
        assert corrected["id"].startswith("bad-corrected-")
        other = next(each for each in letters if each["reason"] == "no_rules")
        assert await ask("letters/drop", "boss", ids=[other["id"]]) == {"dropped": 1, "kept": []}
        assert (await ask("letters"))["letters"] == []
        kinds = [event["kind"] for event in (await ask("live", cursor=again["cursor"]))["events"]]
        assert kinds == ["retry"], "the records of drops are of no app"
