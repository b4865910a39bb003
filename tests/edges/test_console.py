"""The console: on a real server with workers and a responder, and as the process that users start."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import httpx
import neo4j
import pytest
from tests.services.buses import applied
from tests.services.commands import inside
from tests.services.environment import clean_environment
from tests.services.memories import empty_neo4j
from tests.services.neo4j import Neo4jServer
from tests.services.rules import load_rules
from tests.services.waiting import until

from graphweft import Client, Event
from graphweft_contracts import DeadLetter
from graphweft_workers.console.app import LIMITS, Page, make_app
from graphweft_workers.console.pages import PAGES
from graphweft_workers.console.questions import Question
from graphweft_workers.console.sources import open_sources
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.gateway.audit import AuditLog, hash_of
from graphweft_workers.gateway.limits import GatewayLimits
from graphweft_workers.gateway.tokens import AccessToken, Role, Tokens
from graphweft_workers.settings.settings import Settings

pytestmark = pytest.mark.integration

RULES = """
version: "1.0"
mutation_rules:
  - name: notes
    events: ["note.made"]
    mutations:
      - id: write
        cypher: "MERGE (n:Note {text: $text}) ON CREATE SET n.event_id = $id"
        params: {text: $event.text, id: $event.note}
      - id: tag
        cypher: "MATCH (n:Note {text: $text}) MERGE (t:Tag {name: $tag}) MERGE (n)-[:HAS]->(t)"
        params: {text: $event.text, tag: $event.tag}
  - name: "<img src=x onerror=document.title='owned'>"
    events: ["note.strange"]
    mutations:
      - id: map
        cypher: "MERGE (n:Note {text: $text}) SET n += $more"
        params: {text: $event.text, more: $event.more}
  - name: fails
    events: ["note.bad"]
    mutations:
      - id: map
        cypher: "MERGE (n:Note {text: $text}) SET n.value = $value"
        params: {text: $event.text, value: $event.value}
injection_rules:
  - name: notes
    agents: ["*"]
    queries:
      - id: all
        cypher: "MATCH (n:Note) RETURN n.text AS text, n.event_id AS event_id ORDER BY text"
        inject_as: notes
        format: list
      - id: own
        cypher: "MATCH (n:Note {text: $text}) RETURN n.text AS text"
        params: {text: $context.text}
        inject_as: own
        format: markdown
"""
SECRET: Final = "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"
HOSTILE: Final = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"
QUESTIONS: Final[dict[str, dict[str, Any]]] = {
    "/api/event": {"position": "0:0-1"},
    "/api/graph/search": {"text": "x"},
    "/api/graph/node": {"id": 1},
    "/api/graph/why": {"label": "Note", "key": "text", "value": "x"},
    "/api/graph/past": {"time": "2026-01-01T00:00:00Z"},
    "/api/context": {"workflow": "Notes", "agent": "A", "chat": "c"},
    "/api/context/past": {"workflow": "Notes", "agent": "A", "chat": "c", "time": "2026-01-01T00:00:00Z"},
    "/api/memory": {"user_id": "u"},
    "/api/memory/search": {"user_id": "u", "text": "x"},
    "/api/letters/show": {"id": "x"},
    "/api/letters/retry": {"ids": ["x"]},
    "/api/letters/drop": {"ids": ["x"]},
    "/api/letters/correct": {"id": "x", "changes": {"a": 1}},
    "/api/rules/try": {"event": "{}"},
}
"""A valid question for each page that needs more than an app."""
WRITES: Final = ("/api/letters/retry", "/api/letters/drop", "/api/letters/correct")
TOKENS: Final[dict[str, tuple[str, tuple[Role, ...]]]] = {
    "mine": ("acme", ("read",)),
    "boss": ("acme", ("admin",)),
    "theirs": ("globex", ("read",)),
    "writer": ("acme", ("emit", "erase")),
    "operator": ("acme", ("read", "operator")),
    "root": ("acme", ("admin", "operator")),
}
OLD: Final = datetime(2020, 1, 1, tzinfo=UTC)


class Stack:
    """``graphweft up`` with its console, and two apps that have lived through the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "rules/Notes").mkdir(parents=True)
        (folder / "rules/Notes/graph_injection.yaml").write_text(RULES)
        self.environment = clean_environment() | {
            "GRAPHWEFT_DATA": str(folder / "data"),
            "GRAPHWEFT_RULES": str(folder / "rules"),
            "GRAPHWEFT_LOG_LEVEL": "warning",
            "GRAPHWEFT_CONSOLE_PORT": "0",
            "GRAPHWEFT_PARTITIONS": "1",  # both apps share it
        }
        self.count = 0
        self.link = ""
        self.pid = 0

    @contextmanager
    def running(self) -> Iterator[int]:
        """Run ``up``; yield its process id."""
        up = self.command("up")
        try:
            said = cast("Any", up.stdout)
            assert "graphweft is up" in said.readline(), cast("Any", up.stderr).read()
            self.link = said.readline().strip()
            yield up.pid
        finally:
            up.send_signal(signal.SIGTERM)
            up.communicate(timeout=120)

    @property
    def url(self) -> str:
        """The link of the console."""
        return self.link.removeprefix("console: ")

    def command(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "graphweft_workers.cli", *arguments],
            env=self.environment | environment, cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str) -> str:
        done = inside(arguments, self.environment, folder=self.folder)
        assert done.code in (0, 1), done.err
        return done.out

    def emit(self, app: str, *events: dict[str, Any]) -> None:
        """Publish events, and wait until the workers have passed them."""
        self.count += 1
        file = self.folder / f"{self.count}.jsonl"
        given = {"specversion": "1.0", "source": "/t", "chatid": "c1", "workflow": "Notes", "appid": app}
        given["time"] = datetime.now(UTC).isoformat()
        file.write_text("".join(json.dumps(given | each) + "\n" for each in events))
        out, err = self.command("emit", str(file), "--wait").communicate(timeout=120)
        assert " sent\n" in out + err, err


def note(name: str, **data: Any) -> dict[str, Any]:
    return {"id": name, "type": "note.made", "data": {"text": name, "note": name, "tag": "t", **data}}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("console"))
    with made.running() as made.pid:
        for app in ("acme", "globex"):
            made.emit(
                app,
                note(f"first of {app}"),
                {"id": "untagged", "type": "note.made", "data": {"text": f"untagged of {app}", "note": "n"}},
                note("secret", text=f"the key of {app} is {SECRET}"),
                note("hostile", text=HOSTILE),
                {
                    "id": HOSTILE,
                    "type": "note.strange",
                    "chatid": HOSTILE,
                    "userid": HOSTILE,
                    "data": {"text": f"strange of {app}", "more": {HOSTILE: HOSTILE}, "agent": HOSTILE, HOSTILE: 1},
                },
                {"id": "bad", "type": "note.bad", "data": {"text": f"bad of {app}", "value": {"a": {"b": 1}}}},
                {"id": "lost", "type": "note.made", "workflow": "Nowhere", "data": {"text": f"lost of {app}"}},
            )
            made.run("memory", "add", f"{app} likes green tea", "--app", app, "--user", f"user of {app}", "--wait")
        yield made


class Asking:
    """Asks a console with a token."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def answer(self, path: str, token: str = "mine", **question: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return await self.client.post(f"/api/{path}", json=question, headers=headers)

    async def __call__(self, path: str, token: str = "mine", **question: Any) -> dict[str, Any]:
        answer = await self.answer(path, token, **question)
        assert answer.status_code == 200, answer.text
        return cast("dict[str, Any]", answer.json())


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("urn:graphweft:problem:")


@asynccontextmanager
async def serving(
    stack: Stack,
    *,
    pages: tuple[Page, ...] = PAGES,
    limits: GatewayLimits = LIMITS,
    audit: AuditLog | None = None,
    forbidden: str = "",
    **settings: Any,
) -> AsyncIterator[Asking]:
    """Run a console of the stack in this process."""
    loaded = Settings.load(data=stack.folder / "data", rules=stack.folder / "rules", **settings)
    async with console(loaded, pages=pages, limits=limits, audit=audit, forbidden=forbidden) as made:
        yield made


@asynccontextmanager
async def console(
    loaded: Settings,
    *,
    pages: tuple[Page, ...] = PAGES,
    limits: GatewayLimits = LIMITS,
    audit: AuditLog | None = None,
    forbidden: str = "",
) -> AsyncIterator[Asking]:
    tokens = Tokens(
        [
            AccessToken(app_id=app, name=name, sha256=hashlib.sha256(name.encode()).digest(), roles=frozenset(roles))
            for name, (app, roles) in TOKENS.items()
        ]
        + [
            AccessToken(
                app_id="acme",
                name="old",
                sha256=hashlib.sha256(b"old").digest(),
                expires=datetime(2020, 1, 1, tzinfo=UTC),
            )
        ]
    )
    async with open_sources(loaded) as sources:
        app = make_app(
            sources, pages, tokens=lambda: tokens, limits=limits, audit=audit,
            may_use=lambda app_id, workflow: workflow != forbidden,
        )  # fmt: skip
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8766", timeout=120) as client:
            yield Asking(client)


@pytest.fixture
async def ask(stack: Stack) -> AsyncIterator[Asking]:
    async with serving(stack) as made:
        yield made


# ---------------------------------------------------------------------------------------------------------- who may ask


@pytest.mark.parametrize(
    ("token", "refusal"),
    [("", (401, "no-token")), ("wrong", (401, "no-token")), ("old", (401, "token-expired")),
     ("writer", (403, "missing-role"))],
)  # fmt: skip
async def test_no_page_answers_a_token_that_may_not_look(ask: Asking, token: str, refusal: tuple[int, str]) -> None:
    for page in PAGES:
        answer = await ask.answer(page.path.removeprefix("/api/"), token, **QUESTIONS.get(page.path, {}))
        assert problem(answer) == refusal, page.path


async def test_no_page_answers_about_another_app(ask: Asking) -> None:
    for page in PAGES:
        answer = await ask.answer(page.path.removeprefix("/api/"), app="globex", **QUESTIONS.get(page.path, {}))
        expected = (403, "read-only") if page.path in WRITES else (403, "other-app")
        assert problem(answer) == expected, page.path
        assert "globex" not in answer.text


async def test_nothing_of_another_app_is_in_any_answer(ask: Asking) -> None:
    sees = {"event": "/api/event", "node": "/api/graph/node"}
    for page in PAGES:
        name = page.path.removeprefix("/api/")
        if page.path in sees.values() or name.startswith("letters/"):
            continue
        answer = await ask.answer(name, **QUESTIONS.get(page.path, {}))
        assert "globex" not in answer.text, page.path
    others = await ask("live", "operator", app="globex")
    assert others["events"]
    for event in others["events"]:
        assert problem(await ask.answer("event", position=event["position"])) == (404, "no-event")
    again = await ask("live", cursor={}, pending=[each["position"] for each in others["events"]][:100])
    assert again["states"] == {}
    for letter in (await ask("letters", "operator", app="globex"))["letters"]:
        assert problem(await ask.answer("letters/show", id=letter["id"])) == (404, "no-letter")


async def test_an_operator_sees_all_apps(ask: Asking, stack: Stack) -> None:
    for app in ("globex", "acme"):  # among the last ones, whatever other tests sent before
        stack.emit(app, note(f"{app}-seen"))
    session = await ask("session", "operator")
    assert session["all_apps"]
    assert {*session["apps"]} >= {"acme", "globex"}
    assert {event.get("app") for event in (await ask("live", "operator"))["events"]} >= {"acme", "globex"}
    assert problem(await ask.answer("graph", "operator")) == (422, "no-app")
    assert (await ask("session"))["apps"] == ["acme"]


async def test_other_hosts_and_other_sites_are_refused(ask: Asking) -> None:
    own = {"Authorization": "Bearer mine"}
    for headers, refusal in (
        ({"Host": "evil.example"}, (421, "other-host")),
        ({"Origin": "http://evil.example"}, (403, "other-site")),
        ({"Sec-Fetch-Site": "cross-site"}, (403, "other-site")),
    ):
        for path in ("/", "/api/session"):
            method = "GET" if path == "/" else "POST"
            answer = await ask.client.request(method, path, headers=own | headers)
            assert problem(answer) == refusal
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]


async def test_every_answer_forbids_code_of_others(ask: Asking) -> None:
    for path in ("/", "/js/main.js", "/nothing", "/api/session"):
        answer = await ask.client.get(path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"


async def test_requests_are_bounded(stack: Stack) -> None:
    began, forever = asyncio.Event(), asyncio.Event()

    async def waits(*_: Any) -> dict[str, Any]:
        began.set()
        await forever.wait()
        return {}

    async def large(*_: Any) -> dict[str, Any]:
        return {"text": "x" * 5_000_000}

    pages = (
        Page(path="/api/slow", question=Question, answer=waits, seconds=0.05),
        Page(path="/api/waits", question=Question, answer=waits),
        Page(path="/api/large", question=Question, answer=large),
    )
    async with serving(stack, pages=pages, limits=GatewayLimits(context_bytes=100, requests_per_app=1)) as ask:
        assert problem(await ask.answer("slow")) == (504, "too-slow")
        assert problem(await ask.answer("large")) == (413, "answer-too-large")
        assert problem(await ask.answer("slow", more="x" * 100)) == (413, "body-too-large")
        assert problem(await ask.answer("slow", more="x")) == (422, "invalid-question")
        began.clear()
        first = asyncio.create_task(ask.answer("waits"))
        await began.wait()
        assert problem(await ask.answer("slow")) == (429, "too-many-requests")
        assert problem(await ask.answer("slow", "theirs")) == (504, "too-slow"), "another app has its own limit"
        forever.set()
        assert (await first).status_code == 200


async def test_the_audit_log_names_the_token_and_no_user_and_no_text(stack: Stack, tmp_path: Path) -> None:
    log = AuditLog(str(tmp_path / "audit"))
    async with serving(stack, audit=log) as ask:
        await ask("memory/search", user_id="user of acme", text="green tea")
        await ask("session")
        await ask.client.get("/")
    log.close()
    text = (tmp_path / "audit").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["what"], line["status"], line["app_id"]) for line in lines] == [
        ("POST /api/memory/search", 200, "acme"), ("POST /api/session", 200, "acme"),
    ]  # fmt: skip
    assert lines[0]["token"].startswith("mine#")
    assert lines[0]["users"] == [hash_of("acme", "user of acme")]
    assert not re.search("green tea|user of acme", text)


# ------------------------------------------------------------------------------------------------------------- attacks

NUL: Final = "a\0b"
BREAK: Final = "x` {y: 1}) DETACH DELETE n //"
UNICODE: Final = "x\\u0060) DETACH DELETE (n) //"
ATTACKS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    *(("live", {"pending": [each]}) for each in (
        "0:99999999999999999999-1", "0:1-99999999999999999999", "999999999:1-1", "0:5",
        "0:18446744073709551615-18446744073709551615",
    )),
    *(("live", {"cursor": each}) for each in (
        {"0": "99999999999999999999-0"}, {"0": "5"}, {"-1": "1-1"}, {"99999999999": "1-1"}, {"x": "1-1"},
    )),
    *(("event", {"position": each}) for each in ("0:99999999999999999999-1", "0:1", "999999999:1-1")),
    *(("graph/node", {"id": each}) for each in (
        2**63 - 1, 2**63, 10**30, -1, True, 1.5, "x", "", NUL, BREAK, [1], {"a": 1}, None,
    )),
    *(("graph/search", {"text": each}) for each in (
        NUL, "\0", BREAK, UNICODE, "' OR 1=1 //", '" OR 1=1 //', "\\", "\\'", "$text", "-" * 200, "9" * 30,
        "\u202e",
    )),
    *(("graph", {"labels": [each]}) for each in (NUL, BREAK, UNICODE, "", "__Progress")),
    *(("graph/why", {"label": label, "key": key, "value": value, "exact": exact}) for label, key, value, exact in (
        (NUL, "text", "x", True), (BREAK, "text", "x", True), (UNICODE, UNICODE, "x", True),
        ("Note", BREAK, "x", True), ("Note", "text", NUL, True), ("Note", "text", 10**30, True),
        ("Note", "text", 2**63, True), ("Note", "text", -(2**63) - 1, True), ("__Progress", "id", "x", True),
        ("Note", "text", BREAK, False),
    )),
    *(("graph/past", {"time": each}) for each in (
        "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1970-01-01T00:00:00Z", 0, 1e300, "x", None,
    )),
    ("context", {"workflow": NUL, "agent": NUL, "chat": NUL, "user": NUL}),
    ("context", {"workflow": "Notes", "agent": "A", "chat": "c1", "variables": {"text": NUL, NUL: 10**400}}),
    ("context", {"workflow": "Notes", "agent": "A", "chat": "c1", "variables": {"text": [[[[BREAK]]]]}}),
    ("memory", {"user_id": NUL}), ("memory", {"user_id": BREAK}),
    ("memory/search", {"user_id": NUL, "text": NUL * 100}),
    ("memory/search", {"user_id": "u", "text": ""}), ("memory/search", {"user_id": "u", "text": "\u202e" * 10_000}),
    *(("letters/show", {"id": each}) for each in (NUL, BREAK, "0", "0:", "x" * 500)),
    ("letters", {"skip": 10**30}), ("letters", {"reason": "x"}),
    *(("rules/try", {"event": each}) for each in (
        "null", "[]", "[" * 100_000, "{" * 1000, '{"a":1e999}', NUL, "\u202e{}",
    )),
)  # fmt: skip
"""Questions of a hostile user; each is refused or answered, and changes nothing."""
BODIES: Final = (
    b"", b"null", b"[]", b'"x"', b"{", b'{"app":1}', b'{"app":"\\ud800"}', b"\xff\xfe", b"\xef\xbb\xbf{}",
    b"[" * 400_000, b'{"app":NaN}', b'{"app":"acme","app":"globex"}', b'{"__proto__":{"app":"globex"}}',
    b'{"text":"\\ud800"}', b"{}\0",
)  # fmt: skip


async def test_hostile_questions_are_no_defects_and_change_nothing(ask: Asking) -> None:
    before = (await ask("graph"), (await ask("live"))["cursor"], await ask("letters", "operator"))
    for path, question in ATTACKS:
        answer = await ask.answer(path, **question)
        assert answer.status_code in (200, 400, 403, 404, 422), (path, question, answer.text)
    for page in PAGES:
        for body in BODIES:
            answer = await ask.client.post(
                page.path, content=body, headers={"Authorization": "Bearer mine", "Content-Type": "application/json"}
            )
            assert answer.status_code in (200, 400, 403, 404, 413, 422), (page.path, body[:50], answer.text)
            assert "globex" not in answer.text
    assert (await ask("graph"), (await ask("live"))["cursor"], await ask("letters", "operator")) == before


async def test_no_answer_is_kept_by_a_cache(ask: Asking) -> None:
    for method, path in (
        ("GET", "/healthz"), ("GET", "/nothing"), ("GET", "/api/session"), ("POST", "/api/session"),
        ("POST", "/api/nothing"), ("OPTIONS", "/api/session"), ("PUT", "/"), ("HEAD", "/nothing"),
    ):  # fmt: skip
        answer = await ask.client.request(method, path)
        assert answer.headers.get("Cache-Control") == "no-store", (method, path)
        assert "Access-Control-Allow-Origin" not in answer.headers
    answer = await ask.answer("letters/show", id="x")
    assert answer.headers["Cache-Control"] == "no-store"
    assert (await ask.client.head("/")).content == b""


async def test_a_busy_neighbour_hides_no_event_silently(stack: Stack, ask: Asking) -> None:
    cursor = (await ask("live"))["cursor"]
    await asyncio.to_thread(stack.emit, "globex", note("early"))
    await asyncio.to_thread(
        stack.emit, "acme", *({"id": f"busy {n}", "type": "nothing.made", "data": {"n": n}} for n in range(12))
    )
    found = await ask("live", "theirs", cursor=cursor, limit=5)
    assert [event["id"] for event in found["events"]] == ["early"]
    mine = await ask("live", cursor=cursor, limit=5)
    assert (len(mine["events"]), mine["events"][0]["id"], mine["cut"]) == (5, "busy 11", True)


async def test_a_letter_for_events_of_several_apps_shows_no_app_to_another(stack: Stack) -> None:
    async with serving(stack, console_write=True) as ask:
        positions = {
            app: next(
                event["position"]
                for event in (await ask("live", "operator", app=app))["events"]
                if event.get("id") == f"first of {app}"
            )
            for app in ("acme", "globex")
        }
        offsets = tuple(each.partition(":")[2] for each in positions.values())
        letter = DeadLetter(
            id="0:set-aside", reason="set_aside", message="set aside", position=positions["acme"], offsets=offsets,
            count=2, time=datetime.now(UTC), app_id="acme", event_id="first of acme", fields={},
        )  # fmt: skip
        async with open_sources(Settings.load(data=stack.folder / "data")) as sources:
            assert await sources.bus.dead_letters.extend(None, letter)
            try:
                theirs = await ask.answer("event", "theirs", position=positions["globex"])
                assert theirs.status_code == 200
                assert "acme" not in theirs.text
                assert theirs.json()["set_aside"] is True
                for action in ("retry", "drop"):
                    answer = await ask.answer(f"letters/{action}", "boss", ids=[letter.id])
                    assert problem(answer) == (403, "other-app")
            finally:
                assert await sources.bus.dead_letters.requeue(letter, [])


async def test_a_token_for_workflows_sees_no_rules_in_letters_and_retries_none(stack: Stack) -> None:
    async with serving(stack, forbidden="Notes", console_write=True) as ask:
        for path in ("letters", "operation", "live"):
            answer = await ask.answer(path)
            assert answer.status_code == 200
            assert not re.search(r"graph_injection|\"(fails|notes)\"|fails/map", answer.text), path
        assert (await ask("letters"))["hidden"] >= 2
        every = (await ask("letters", "operator", app="acme"))["letters"]
        letter = next(each for each in every if each["reason"] == "invalid_value")
        for action in ("retry", "drop"):
            answer = await ask.answer(f"letters/{action}", "boss", ids=[letter["id"]])
            assert problem(answer) == (403, "other-workflow")
        shown = await ask.answer("letters/show", id=letter["id"])
        assert not re.search(r"graph_injection|fails/map", shown.text)


async def test_events_with_many_values_are_shown_in_part(stack: Stack, ask: Asking) -> None:
    wide = {f"k{n}": {f"k{m}": [f"v{each}" for each in range(40)] for m in range(40)} for n in range(40)}
    await asyncio.to_thread(stack.emit, "acme", {"id": "wide", "type": "nothing.made", "data": wide})
    answer = await ask.answer("live", limit=1)
    [event] = answer.json()["events"]
    assert event["id"] == "wide"
    assert len(answer.content) < 5_000
    assert len((await ask.answer("event", position=event["position"])).content) < 200_000


# ------------------------------------------------------------------------------------------------------ what pages show


async def test_live_shows_what_each_event_did(ask: Asking) -> None:
    found = await ask("live")
    events = {event.get("id"): event for event in found["events"] if event["kind"] == "event"}
    first = events["first of acme"]
    assert [(each["rule"], each["mutation"]) for each in first["matched"]] == [("notes", "write"), ("notes", "tag")]
    assert (first["rows"], first["state"], first["skipped"]) == (2, "applied", [])
    [skip] = events["untagged"]["skipped"]
    assert (skip["mutation"], "'tag'" in skip["reason"]) == ("tag", True)
    assert events["bad"]["matched"][0]["letter"] == "invalid_value"
    assert events["lost"]["letter"] == "no_rules"
    assert (await ask("live", cursor=found["cursor"]))["events"] == []


async def test_live_follows_new_events_and_the_state_of_earlier_ones(stack: Stack, ask: Asking) -> None:
    cursor = (await ask("live"))["cursor"]
    await asyncio.to_thread(stack.emit, "acme", note("followed"))
    found = await ask("live", cursor=cursor)
    [event] = found["events"]
    assert (event["id"], event["state"], event["ms"] >= 0) == ("followed", "applied", True)
    states = (await ask("live", cursor=found["cursor"], pending=[event["position"]]))["states"]
    assert states[event["position"]]["state"] == "applied"
    assert states[event["position"]]["ms"] >= 0


async def test_live_shows_a_copy_as_one_that_has_no_effect(stack: Stack, ask: Asking) -> None:
    start = (await ask("live"))["cursor"]
    untagged = {"id": "twice", "type": "note.made", "data": {"text": "twice", "note": "n"}}
    await asyncio.to_thread(stack.emit, "acme", untagged)
    cursor = (await ask("live", cursor=start))["cursor"]
    await asyncio.to_thread(stack.emit, "acme", untagged, note("after the copy"))
    whole = (await ask("live", cursor=start))["events"]
    newest = (await ask("live", cursor=cursor))["events"]
    [first] = [event for event in whole if event.get("id") == "twice" and event.get("skipped")]
    for events in (whole, newest):
        copy = next(event for event in events if event.get("id") == "twice")
        assert (copy["state"], copy["note"], copy["rows"]) == ("copy", f"copy of {first['position']}", 0)
        assert not {"matched", "skipped", "ms"} & copy.keys()
    assert (first["state"], first["rows"], events[0]["state"]) == ("applied", 1, "applied")


async def test_live_says_of_an_event_that_waited_that_it_has_failed(stack: Stack, ask: Asking) -> None:
    cursor = (await ask("live"))["cursor"]
    bad = {"id": "too late", "type": "note.bad", "data": {"text": "too late", "value": {"a": {"b": 1}}}}
    await asyncio.to_thread(stack.emit, "acme", bad)
    found = await ask("live", cursor=cursor)
    [event] = found["events"]
    states = (await ask("live", cursor=found["cursor"], pending=[event["position"]]))["states"]
    [match] = states[event["position"]]["matched"]
    assert (match["rule"], match["letter"]) == ("fails", "invalid_value")


async def test_an_event_is_explained(ask: Asking) -> None:
    events = {event.get("id"): event["position"] for event in (await ask("live"))["events"]}
    found = await ask("event", position=events["untagged"])
    assert [(each["mutation"], each["outcome"]) for each in found["mutations"]] == [("write", "applied")]
    assert [each["mutation"] for each in found["skipped"]] == ["tag"]
    assert len(found["rules"]["rules"]) == 64
    assert found["event"]["data"] == {"text": "untagged of acme", "note": "n"}


async def test_a_graph_is_shown_searched_and_expanded(ask: Asking) -> None:
    found = await ask("graph")
    assert {each["label"]: each["nodes"] for each in found["labels"]}["Tag"] == 1
    names = {node["id"]: node["caption"] for node in found["nodes"]}
    assert {"t", "first of acme"} <= {*names.values()}
    assert {(names[each["start"]], each["type"], names[each["end"]]) for each in found["relationships"]} >= {
        ("first of acme", "HAS", "t")
    }
    assert not [node for node in found["nodes"] if node["labels"][0].startswith("__")]
    [exact] = (await ask("graph/search", text="first of acme"))["nodes"]
    assert exact["caption"] == "first of acme"
    part = await ask("graph/search", text="OF ACME")
    assert len(part["nodes"]) >= 3
    node = await ask("graph/node", id=exact["id"])
    assert node["node"]["properties"] == {"text": "first of acme", "event_id": "first of acme"}
    assert {"label": "Note", "key": "text", "value": "first of acme"} in node["node"]["keys"]
    assert node["node"]["relationships"] == [{"type": "HAS", "count": 1}]
    assert [each["caption"] for each in node["nodes"]] == ["first of acme", "t"]
    assert problem(await ask.answer("graph/node", id=10**9)) == (404, "no-node")
    assert problem(await ask.answer("graph/node", id="x")) == (422, "invalid-question")


async def test_the_events_behind_a_node_and_an_earlier_graph_are_shown(ask: Asking) -> None:
    asked = {"label": "Note", "key": "text", "value": "first of acme"}
    fast = await ask("graph/why", **asked)
    assert (fast["exact"], [each["id"] for each in fast["writes"]]) == (False, ["first of acme"])
    exact = await ask("graph/why", exact=True, **asked)
    [write] = [each for each in exact["writes"] if each["mutation"] == "write"]
    assert [each["change"] for each in write["changes"]] == ["created"]
    events = [event for event in (await ask("live"))["events"] if event.get("id") == "first of acme"]
    received = datetime.fromisoformat(events[0]["received"])
    past = await ask("graph/past", time=received.isoformat())
    assert "first of acme" in {node["caption"] for node in past["nodes"]}
    before = await ask("graph/past", time=(received - timedelta(milliseconds=1)).isoformat())
    assert before["nodes"] == []
    assert problem(await ask.answer("graph/past", time="2999-01-01T00:00:00Z")) == (422, "invalid-question")


async def test_a_context_is_shown_with_its_blocks_and_what_is_missing(ask: Asking) -> None:
    found = await ask("context", workflow="Notes", agent="A", chat="c1")
    [block] = found["blocks"]
    assert "first of acme" in found["text"]
    assert (block["name"], block["rule"], block["query"]) == ("notes", "notes", "all")
    assert block["explanation"]["place"].startswith("Notes/graph_injection.yaml:")
    assert [(each["name"], each["reason"]) for each in found["missing"]] == [("own", "missing_param")]
    assert len(found["rules"]) == 64
    names = await ask("context/names")
    assert names["workflows"] == {"Notes": ["*"]}
    assert "c1" in {each["chat"] for each in names["chats"]}


async def test_a_context_of_the_past_is_shown(stack: Stack, ask: Asking) -> None:
    await asyncio.to_thread(stack.emit, "acme", note("latecomer"))
    [late] = [event for event in (await ask("live"))["events"] if event.get("id") == "latecomer"]
    received = datetime.fromisoformat(late["received"])
    asked = {"workflow": "Notes", "agent": "A", "chat": "c1"}
    then = await ask("context/past", time=received.isoformat(), **asked)
    assert "latecomer" in then["text"]
    assert SECRET not in json.dumps(then)
    [block] = then["blocks"]
    assert block["explanation"]["place"].startswith("Notes/graph_injection.yaml:")
    assert str(stack.folder) not in json.dumps(then)
    before = await ask("context/past", time=(received - timedelta(milliseconds=1)).isoformat(), **asked)
    assert "first of acme" in before["text"]
    assert "latecomer" not in before["text"]
    assert then["as_of"]["events"] == before["as_of"]["events"] + 1
    future = await ask.answer("context/past", time="2999-01-01T00:00:00Z", **asked)
    assert problem(future) == (422, "invalid-question")


async def test_rules_of_a_forbidden_workflow_are_in_no_answer(stack: Stack) -> None:
    async with serving(stack, forbidden="Notes") as ask:
        assert (await ask("rules"))["files"] == []
        assert (await ask("context/names"))["workflows"] == {}
        asked = {"workflow": "Notes", "agent": "A", "chat": "c1"}
        assert (await ask("context", **asked))["reason"] == "no_rules"
        assert (await ask("context/past", time="2026-01-01T00:00:00Z", **asked))["reason"] == "no_rules"
        assert all(
            "matched" not in event for event in (await ask("live"))["events"] if event.get("workflow") == "Notes"
        )
        event = json.dumps({"specversion": "1.0", "source": "/t", "chatid": "c", "workflow": "Notes", "appid": "acme"}
                           | note("x"))  # fmt: skip
        assert problem(await ask.answer("rules/try", event=event)) == (403, "other-workflow")


async def test_memories_are_listed_and_searched_in_their_scope(ask: Asking) -> None:
    [scope] = (await ask("memory/scopes"))["scopes"]
    assert (scope["user_id"], scope["memories"]) == ("user of acme", 1)
    found = await ask("memory", user_id="user of acme")
    assert [each["text"] for each in found["memories"]] == ["acme likes green tea"]
    assert (await ask("memory", user_id="somebody"))["memories"] == []
    results = (await ask("memory/search", user_id="user of acme", text="tea"))["results"]
    assert [each["text"] for each in results] == ["acme likes green tea"]
    assert problem(await ask.answer("memory", limit=5)) == (422, "no-scope")


async def test_the_limit_that_left_scopes_out_is_named(stack: Stack, ask: Asking) -> None:
    def remembered(number: int) -> dict[str, Any]:
        data = {"user_id": f"user {number}", "messages": [{"role": "user", "text": "tea"}]}
        return {"id": f"m{number}", "type": "memory.add", "data": data, "chatid": f"c{number}"}

    stack.emit("many", *map(remembered, range(100)))
    found = await ask("memory/scopes", "operator", app="many")
    assert (len(found["scopes"]), found["scopes_limit"], found["memories_limit"]) == (100, None, None)
    stack.emit("many", remembered(100))
    found = await ask("memory/scopes", "operator", app="many")
    assert (len(found["scopes"]), found["scopes_limit"], found["memories_limit"]) == (100, 100, None)


async def test_the_active_rules_are_shown_and_tried(ask: Asking) -> None:
    found = await ask("rules")
    assert [each["name"] for each in found["files"]] == ["Notes/graph_injection.yaml"]
    assert found["workflows"] == [{"name": "Notes", "problem": None}]
    assert all(finding["file"].startswith("Notes/") for finding in found["findings"])
    given = {"specversion": "1.0", "source": "/t", "chatid": "c", "workflow": "Notes", "appid": "acme"}
    tried = await ask("rules/try", event=json.dumps(given | note("tried")))
    assert [each["mutation"] for each in tried["mutations"]] == ["write", "tag"]
    for event, refusal in (
        ("{]", (422, "invalid-event")),
        (json.dumps(given | note("x") | {"appid": "globex"}), (422, "other-app")),
    ):
        assert problem(await ask.answer("rules/try", event=event)) == refusal
    assert (await ask("graph/search", text="tried"))["nodes"] == [], "a try writes nothing"


async def test_the_operation_page_shows_what_the_command_shows(stack: Stack, ask: Asking) -> None:
    found = await ask("operation", "operator")
    told = json.loads(await asyncio.to_thread(stack.run, "status", "--json"))
    for name in ("dead_letters", "rules", "archive", "faulty_files"):
        assert found[name] == told[name]
    assert [each["id"] for each in found["partitions"]] == [each["id"] for each in told["partitions"]]


async def test_secrets_are_in_no_answer_unless_contexts_show_them(stack: Stack, ask: Asking) -> None:
    asked = [
        ("live", {}), ("graph", {}), ("graph/search", {"text": "the key"}),
        ("graph/why", {"label": "Note", "key": "text", "value": f"the key of acme is {SECRET}", "exact": True}),
        ("context", {"workflow": "Notes", "agent": "A", "chat": "c1"}),
    ]  # fmt: skip
    for path, question in asked:
        answer = await ask.answer(path, **question)
        assert answer.status_code == 200, answer.text
        assert SECRET not in answer.text, path
    async with serving(stack, context_redact=False) as plain:
        assert SECRET in (await plain.answer("live")).text


# ---------------------------------------------------------------------------------------------------------------- Neo4j


@pytest.mark.soak
async def test_a_graph_of_neo4j_is_shown_searched_and_explained(
    neo4j_server: Neo4jServer, url: str, tmp_path: Path
) -> None:
    empty_neo4j(neo4j_server.uri)
    with neo4j.GraphDatabase.driver(neo4j_server.uri) as driver:
        # The server also lists labels without nodes that have an index; other tests leave some.
        listed = "SHOW INDEXES YIELD name, type, owningConstraint WHERE type <> 'LOOKUP' AND owningConstraint IS NULL"
        for record in driver.execute_query(listed).records:
            driver.execute_query(f"DROP INDEX `{record['name']}` IF EXISTS")
        for number in range(50):
            driver.execute_query(f"CREATE INDEX FOR (n:Empty{number:02}) ON (n.id)")
    (tmp_path / "rules/Notes").mkdir(parents=True)
    (tmp_path / "rules/Notes/graph_injection.yaml").write_text(RULES)
    settings: dict[str, Any] = {"bus_url": url, "graph_url": neo4j_server.uri, "rules": tmp_path / "rules"}
    environment = clean_environment() | {f"GRAPHWEFT_{name.upper()}": str(value) for name, value in settings.items()}
    done = await asyncio.to_thread(inside, ("rules", "push"), environment, folder=tmp_path)
    assert done.code == 0, done.err
    async with console(Settings.load(**settings)) as ask:
        async with open_sources(Settings.load(**settings)) as sources, Client(url) as client:
            worker = MutationWorker(sources.bus, sources.graph, load_rules(tmp_path / "rules"), name="w")
            running = asyncio.create_task(worker.run())
            for name, text in (("first", "first of acme"), ("hostile", HOSTILE), ("secret", f"the key is {SECRET}")):
                data = {"text": text, "note": name, "tag": "t"}
                said = Event.create("note.made", app_id="acme", chat_id="c1", workflow="Notes", id=name, data=data)
                assert await client.emit(said, wait_s=120)
            await applied(sources.bus)
            worker.stop()
            await running
        with neo4j.GraphDatabase.driver(neo4j_server.uri) as driver:
            driver.execute_query("CREATE (:Strange {at: datetime(), for: duration('P1D'), where: point({x: 1, y: 2})})")
            driver.execute_query("CREATE (n) SET n:$($label)", label=UNICODE)
            driver.execute_query("CREATE (n) SET n:$($label)", label=BREAK)
        # A server that has not planned the queries yet may take longer than a page waits.
        await until(lambda: ask.answer("graph"), lambda answer: answer.status_code == 200)
        found = await ask("graph")
        assert {each["label"]: each["nodes"] for each in found["labels"]} == {
            "Note": 3, "Tag": 1, "Strange": 1, UNICODE: 1, BREAK: 1,
        }  # fmt: skip
        names = {node["id"]: node["caption"] for node in found["nodes"]}
        assert {(names[each["start"]], names[each["end"]]) for each in found["relationships"]} >= {
            ("first of acme", "t")
        }
        [exact] = (await ask("graph/search", text="first of acme"))["nodes"]
        assert len((await ask("graph/search", text="OF ACME"))["nodes"]) == 1
        node = await ask("graph/node", id=exact["id"])
        assert node["node"]["properties"] == {"text": "first of acme", "event_id": "first"}
        assert {"label": "Note", "key": "text", "value": "first of acme"} in node["node"]["keys"]
        [strange] = [each for each in found["nodes"] if each["labels"] == ["Strange"]]
        properties = (await ask("graph/node", id=strange["id"]))["node"]["properties"]
        assert set(properties) == {"at", "for", "where"}
        answer = await ask.answer("graph")
        assert SECRET not in answer.text
        fast = await ask("graph/why", label="Note", key="text", value="first of acme")
        assert [each["id"] for each in fast["writes"]] == ["first"]
        assert [event["state"] for event in (await ask("live"))["events"] if event["kind"] == "event"] == [
            "applied"
        ] * 3
        # Neo4j Community has one database, so there is no room for a second graph.
        assert problem(await ask.answer("graph/past", time=datetime.now(UTC).isoformat())) == (422, "no-replay")
        before = await ask("graph")
        for path, question in ATTACKS:
            if path.startswith("graph"):
                answer = await ask.answer(path, **question)
                assert answer.status_code in (200, 404, 422), (path, question, answer.text)
        for label in (UNICODE, BREAK):
            [one] = (await ask("graph", labels=[label]))["nodes"]
            assert one["labels"] == [label]
        assert await ask("graph") == before


# --------------------------------------------------------------------------------------------------------- dead letters


async def test_dead_letters_are_only_listed_while_the_console_is_read_only(ask: Asking) -> None:
    for token in ("mine", "boss", "root"):
        letters = (await ask("letters", token))["letters"]
        for action in ("retry", "drop"):
            answer = await ask.answer(f"letters/{action}", token, ids=[letters[0]["id"]])
            assert problem(answer) == (403, "read-only")
    assert {each["reason"] for each in letters} == {"invalid_value", "no_rules", "skipped"}


def changed(what: str) -> dict[str, Any]:
    """Return the answer after one letter was retried or dropped: that of the command with ``--json``."""
    return {what: 1, "left": 0, "kept": [], "unknown": []}


async def test_dead_letters_are_retried_and_dropped_with_the_right(stack: Stack) -> None:
    await asyncio.to_thread(
        stack.emit, "acme", {"id": "worse", "type": "note.bad", "data": {"text": "worse", "value": {"a": {"b": 1}}}}
    )
    async with serving(stack, console_write=True) as ask:
        assert [(await ask("session", token))["may_write"] for token in ("mine", "boss", "operator", "root")] == [
            False, True, False, True,
        ]  # fmt: skip
        [letter] = [each for each in (await ask("letters", "boss"))["letters"] if each.get("event_id") == "worse"]
        shown = await ask("letters/show", "boss", id=letter["id"])
        assert '"worse"' in shown["fields"]["data"]
        theirs = (await ask("letters", "operator", app="globex"))["letters"][0]["id"]
        for action in ("retry", "drop"):
            assert problem(await ask.answer(f"letters/{action}", "mine", ids=[letter["id"]])) == (403, "read-only")
            assert problem(await ask.answer(f"letters/{action}", "boss", ids=[theirs])) == (404, "no-letter")
        assert await ask("letters/retry", "boss", ids=[letter["id"]]) == changed("retried")
        async with asyncio.timeout(120):
            again: list[dict[str, Any]] = []
            while not again:
                again = [each for each in (await ask("letters", "boss"))["letters"] if each.get("event_id") == "worse"]
        assert await ask("letters/drop", "boss", ids=[again[0]["id"]]) == changed("dropped")
        assert not [each for each in (await ask("letters", "boss"))["letters"] if each.get("event_id") == "worse"]


async def test_an_event_of_a_dead_letter_is_corrected_for_the_mutation_that_failed(stack: Stack) -> None:
    await asyncio.to_thread(stack.emit, "acme", note("mistagged", tag={"a": 1}))
    async with serving(stack, console_write=True) as ask:
        [letter] = [each for each in (await ask("letters", "boss"))["letters"] if each.get("event_id") == "mistagged"]
        asked = {"id": letter["id"], "changes": {"tag": "t"}}
        assert (await ask("letters/show", "boss", id=letter["id"]))["not_corrected"] == ""
        assert problem(await ask.answer("letters/correct", **asked)) == (403, "read-only")
        theirs = (await ask("letters", "operator", app="globex"))["letters"][0]["id"]
        refused = await ask.answer("letters/correct", "boss", id=theirs, changes={"tag": "x"})
        assert problem(refused) == (404, "no-letter")
        lost = next(each for each in (await ask("letters", "boss"))["letters"] if each["reason"] == "no_rules")
        for changes, id_, reason in (
            ({}, letter["id"], "at least 1"),
            ({"tag": None}, letter["id"], "with this data the mutation would not run"),
            ({"tag": "x"}, lost["id"], "not about one mutation"),
        ):
            refused = await ask.answer("letters/correct", "boss", id=id_, changes=changes)
            assert (refused.status_code, reason in refused.text) == (422, True), refused.text
        [again] = [each for each in (await ask("letters", "boss"))["letters"] if each.get("event_id") == "mistagged"]
        assert again["id"] == letter["id"], "what was refused has changed nothing"
        cursor = (await ask("live"))["cursor"]
        corrected = (await ask("letters/correct", "boss", **asked))["id"]
        assert problem(await ask.answer("letters/correct", "boss", **asked)) == (404, "no-letter")
        await asyncio.to_thread(stack.emit, "acme", note("after the correction"))
        events = {event.get("id"): event for event in (await ask("live", cursor=cursor))["events"]}
        assert events[corrected]["kind"] == "retry"
        assert [each["mutation"] for each in events[corrected]["matched"]] == ["tag"], "the other one has taken effect"
        shown = (await ask("event", position=events[corrected]["position"]))["event"]
        assert (shown["corrects"], shown["data"]["tag"], shown["data"]["text"]) == ("mistagged", "t", "mistagged")
        why = await ask("event", position=letter["position"])
        assert {each["mutation"]: each["outcome"] for each in why["mutations"]} == {
            "write": "applied",
            "tag": "dropped",
        }
        assert [each["id"] for each in why["corrections"]] == [corrected]
        [node] = (await ask("graph/search", text="mistagged"))["nodes"]
        found = await ask("graph/node", id=node["id"])
        assert (node["caption"], {each["caption"] for each in found["nodes"]}) == ("mistagged", {"mistagged", "t"})
        assert found["node"]["properties"]["event_id"] == "mistagged"
        exact = await ask("graph/why", exact=True, label="Note", key="text", value="mistagged")
        assert exact["like_live"] is not False, "a replay of the log gives the same graph"


async def test_what_lacks_the_same_value_is_corrected_one_after_the_other(stack: Stack) -> None:
    async with serving(stack, console_write=True) as ask:
        ids: list[str] = []
        for name in ("strange one", "strange two"):
            lacking = {"id": name, "type": "note.strange", "data": {"text": name}}
            await asyncio.to_thread(stack.emit, "acme", lacking)
            [letter] = [each for each in (await ask("letters", "boss"))["letters"] if each.get("event_id") == name]
            ids.append(letter["id"])
            asked = {"id": letter["id"], "changes": {"more": {"given": "later"}}}
            both = await asyncio.gather(*(ask.answer("letters/correct", "boss", **asked) for _ in range(2)))
            assert sorted(answer.status_code for answer in both) in ([200, 404], [200, 409]), "two tabs are one effect"
            await asyncio.to_thread(stack.emit, "acme", note(f"behind {len(ids)}"))
            [node] = (await ask("graph/search", text=name))["nodes"]
            found = await ask("graph/node", id=node["id"])
            assert found["node"]["properties"]["given"] == "later"
        assert ids[0] == ids[1], "the letters of one cause have one id"


# ------------------------------------------------------------------------------------------------------------ processes


def children(pid: int) -> list[str]:
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"\nPPid:\t{pid}\n" in (folder / "status").read_text():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_the_console_of_up_starts_with_the_first_visit(stack: Stack) -> None:
    found = re.fullmatch(r"console: (http://127\.0\.0\.1:[0-9]+)/#token=(gw_[\w-]{43})", stack.link)
    assert found, stack.link
    base, token = found.groups()
    if not any("run console" in each for each in children(stack.pid)):
        page = httpx.get(base, timeout=120)
        assert (page.status_code, "text/html" in page.headers["Content-Type"]) == (200, True)
    assert any("run console" in each for each in children(stack.pid))
    answer = httpx.post(f"{base}/api/session", json={}, headers={"Authorization": f"Bearer {token}"}, timeout=120)
    assert (answer.status_code, answer.json()["all_apps"], answer.json()["may_write"]) == (200, True, False)
    assert httpx.post(f"{base}/api/session", json={}, timeout=120).status_code == 401
    file = stack.folder / "data/console-token"
    assert (file.read_text().strip(), file.stat().st_mode & 0o777) == (token, 0o600)
    assert not any(token in each for each in children(stack.pid)), "other users see command lines"


def test_run_console_needs_a_token_and_takes_those_of_a_file(stack: Stack, tmp_path: Path) -> None:
    process = stack.command("run", "console", "--port", "0")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, "GRAPHWEFT_CONSOLE_TOKENS" in err) == (2, "", True)
    file = tmp_path / "tokens.yaml"
    file.write_text(f"tokens: [{{sha256: {hashlib.sha256(b'mine').hexdigest()}, app_id: acme, roles: [read]}}]")
    process = stack.command("run", "console", "--port", "0", GRAPHWEFT_CONSOLE_TOKENS=str(file))
    try:
        said = cast("Any", process.stdout).readline()
        assert "the console answers on http://127.0.0.1:" in said, cast("Any", process.stderr).read()
        headers = {"Authorization": "Bearer mine"}
        answer = httpx.post(f"{said.split()[-1]}/api/session", json={}, headers=headers, timeout=120)
        assert answer.json()["apps"] == ["acme"]
    finally:
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 0


# -------------------------------------------------------------------------------------------------------------- browser


SEEN: Final = (
    ("live", "td >> text=onerror"), ("graph", ".scroll >> text=onerror"), ("context", "#main form"),
    ("memory", "text=user of acme"), ("letters", "td >> text=invalid_value"), ("rules", "text=Findings"),
    ("operation", "text=Dead letters"),
)  # fmt: skip
"""Each page, and what it shows once its data is there."""


def browser_path() -> str | None:
    named = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in named if name and (found := shutil.which(name))), None)


def axe_source() -> str:
    """Return axe-core, whose licence is not that of the package; "" where it is not installed."""
    path = Path(os.environ.get("AXE", Path.home() / ".cache/graphweft/axe-core/package/axe.min.js"))
    return path.read_text() if path.is_file() else ""


@contextmanager
def visiting(link: str, *, app: str, **settings: Any) -> Iterator[tuple[Any, str, list[str]]]:
    """Open the console in a browser with its link; yield the page, its address, and what went wrong in it."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright, and install chromium"
    )
    if (path := browser_path()) is None:
        pytest.skip("no chromium: install the package chromium, or name one in CHROMIUM")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield _opened(link, browser.new_context(**settings).new_page(), app)
        browser.close()


def _opened(link: str, page: Any, app: str) -> tuple[Any, str, list[str]]:
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: None if "127.0.0.1" in request.url else faults.append(request.url))
    page.goto(link)
    page.wait_for_selector("#to-live")
    page.select_option("#app", app)
    return page, link.partition("#")[0], faults


def test_a_browser_shows_every_page_and_runs_nothing_of_the_data(stack: Stack) -> None:
    with visiting(stack.url, app="acme") as (page, base, faults):
        assert "token" not in page.url, "the address bar and the history keep no token"
        for name, seen in SEEN:
            page.goto(f"{base}#/{name}")
            page.wait_for_selector(seen)
            assert page.title() != "owned"
            assert page.eval_on_selector_all("main img, main script, main [onerror]", "found => found.length") == 0
            assert page.evaluate("document.querySelectorAll('main h1').length") == 1
        page.goto(f"{base}#/context")
        page.wait_for_selector("#names-chats option", state="attached")
        page.fill("input[name=agent]", "A")
        page.click("text=Show the context")
        page.wait_for_selector("pre >> text=onerror")
        page.goto(f"{base}#/letters")
        page.focus("tbody button")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Correct the event")
        page.focus("text=Close")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.textContent") == "Show", "the keyboard is where it was"
        page.goto(f"{base}#/graph")
        page.fill("input[name=text]", "MATCH (n) RETURN n")
        page.press("input[name=text]", "Enter")
        page.wait_for_selector("text=it runs no Cypher")
        page.click("text=Sign out")
        page.wait_for_selector("input[name=token]")
        assert page.evaluate("sessionStorage.getItem('graphweft-console-token')") is None
        assert faults == []
        page.fill("input[name=token]", "gw_expired")
        page.press("input[name=token]", "Enter")
        page.wait_for_selector("[role=alert] >> text=graphweft up")


REACHED: Final = """() => {
  const found = document.activeElement;
  if (!found || found === document.body) return null;
  const box = found.getBoundingClientRect();
  const style = getComputedStyle(found);
  return {
    at: [...document.querySelectorAll("*")].indexOf(found),
    name: `${found.tagName} ${found.id} ${(found.textContent || found.name || "").slice(0, 40)}`,
    seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 && box.width > 0 && box.bottom > 0
      && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
  };
}"""
REACHABLE: Final = """() => {
  const known = document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']");
  const all = [...document.querySelectorAll("*")];
  return [...known].filter((each) => !each.disabled && each.checkVisibility()).map((each) => all.indexOf(each));
}"""


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 360), ("dark", 360)])
def test_every_page_works_by_keyboard_and_has_no_serious_violation(stack: Stack, scheme: str, width: int) -> None:
    axe = axe_source()
    size = {"width": width, "height": 800}
    with visiting(
        stack.link.removeprefix("console: "), app="acme", color_scheme=scheme, viewport=size, bypass_csp=True
    ) as (page, base, faults):
        for name, seen in SEEN:
            page.goto(f"{base}#/{name}")
            page.wait_for_selector(seen)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than the window"
            wanted, reached = set(page.evaluate(REACHABLE)), dict[int, None]()
            for _ in range(2 * len(wanted) + 10):  # the parts of a date are stops too
                page.keyboard.press("Tab")
                if (at := page.evaluate(REACHED)) is None:
                    continue
                if len(reached) > 1 and at["at"] == next(iter(reached)):
                    break  # it has gone round
                assert at["seen"], f"{name}: the focus on {at['name']!r} is not seen"
                reached[at["at"]] = None
            assert wanted <= {*reached}, (
                f"{name}: {len(wanted - {*reached})} elements cannot be reached by the keyboard"
            )
            if axe:
                page.evaluate(axe)
                found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
                serious = [each for each in found if each["impact"] in ("serious", "critical")]
                assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious] == [], name
        assert faults == []
