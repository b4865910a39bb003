"""The HTTP gateway: on a real bus with workers and responders, and as the process that users start."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest
import redis.asyncio as redis
import yaml
from pydantic import ValidationError
from starlette.datastructures import Headers
from tests.fuzz.requests import Sender
from tests.services.commands import inside
from tests.services.environment import clean_environment
from tests.services.layouts import events_on_bus
from tests.services.loop_holds import SWITCH
from tests.services.virtual_time import VirtualClock
from tests.services.waiting import until

from graphweft import Client
from graphweft.transport import MAX_EVENT_BYTES
from graphweft.transports.embedded import embedded_url
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import (
    MEMORY,
    BusUnavailable,
    ContextReply,
    ContextRequest,
    InvalidSettings,
    ReasonCode,
    SearchQuery,
    channels,
)
from graphweft_workers.apps import Quotas
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.gateway import app as app_module
from graphweft_workers.gateway import protocol as protocol_module
from graphweft_workers.gateway.app import make_app
from graphweft_workers.gateway.cloud_events import BATCH, SINGLE, read_events
from graphweft_workers.gateway.document import document
from graphweft_workers.gateway.limits import GatewayLimits
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.gateway.questions import ContextQuestion, SearchQuestion
from graphweft_workers.gateway.quotas import QuotaLimiter
from graphweft_workers.gateway.tokens import AccessToken, Tokens, new_token, read_tokens, sha256_of
from graphweft_workers.processes import gateway as serving_module
from graphweft_workers.processes import http_server as http_server_module
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring import features

pytestmark = pytest.mark.integration
BUDGET_MS = 10_000  # the gateway takes no more
_REQUESTS = os.environ.get("GRAPHWEFT_GATEWAY_REQUESTS")
REQUESTS = int(_REQUESTS or 300)
MUTATED = int(_REQUESTS or 300)
SEED = int(os.environ.get("GRAPHWEFT_SEED") or 1)
SCHEMA_EXAMPLES = max(20, int(_REQUESTS) // 50) if _REQUESTS else 3
"""Of each kind of request that the OpenAPI document describes."""
SCHEMA_PHASES = "examples,coverage,fuzzing,stateful" if _REQUESTS else "examples,fuzzing"
RULES = """
version: "1.0"
mutation_rules:
  - name: notes
    events: ["note.made"]
    mutations:
      - id: write
        cypher: |
          MERGE (n:Note {text: $text})
          ON CREATE SET n.times = 1, n.event_id = $id
          ON MATCH SET n.times = n.times + 1
        params: {text: $event.text, id: $event.note}
injection_rules:
  - name: notes
    agents: ["*"]
    queries:
      - id: all
        cypher: "MATCH (n:Note) RETURN n.text AS text, n.times AS times, n.event_id AS event_id ORDER BY text"
        inject_as: notes
        format: json
        max_results: 50
      - id: own
        cypher: "MATCH (n:Note {text: $text}) RETURN n.text AS text"
        params: {text: $context.text}
        inject_as: own
        format: markdown
"""
type Gateway = httpx.AsyncClient


class Stack:
    """``graphweft up`` for the tests of this file; each test is another app."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = embedded_url(folder / "data")
        (folder / "rules/Notes").mkdir(parents=True)
        (folder / "rules/Notes/graph_injection.yaml").write_text(RULES)
        self.environment = clean_environment() | {
            "GRAPHWEFT_DATA": str(folder / "data"),
            "GRAPHWEFT_RULES": str(folder / "rules"),
            "GRAPHWEFT_LOG_LEVEL": "warning",
            **SWITCH,
        }

    def command(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "graphweft_workers.cli", *arguments],
            env=self.environment | environment, cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    @contextmanager
    def gateway(self, *arguments: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
        """Run ``graphweft run gateway`` on a free port; it is stopped at the end, unless the test did."""
        process = self.command("run", "gateway", "--port", "0", *arguments, **environment)
        try:
            said = cast("Any", process.stdout).readline()
            assert "answers on" in said, cast("Any", process.stderr).read()
            yield said.split()[-1], process
        finally:
            if process.returncode is None:
                process.terminate()
                _, log = process.communicate(timeout=120)
                assert "kind=held" not in log or "importlib" in log, log


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("gateway"))
    up = made.command("up")
    try:
        assert "graphweft is up" in cast("Any", up.stdout).readline(), cast("Any", up.stderr).read()
        yield made
    finally:
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=120)


@pytest.fixture
def app_id() -> str:
    return f"app-{uuid4().hex[:12]}"


def tokens_of(**apps: str) -> Tokens:
    """Return the tokens that are spelt as their names are: token=app."""
    return Tokens(
        [
            AccessToken(app_id=app, name="", sha256=hashlib.sha256(token.encode()).digest())
            for token, app in apps.items()
        ]
    )


@asynccontextmanager
async def serving(
    url: str, tokens: Tokens, limits: GatewayLimits | None = None, **client: Any
) -> AsyncIterator[Gateway]:
    """Run a gateway in this process, and lend who asks it with the token ``mine``."""
    async with AsyncExitStack() as ends:
        held = await ends.enter_async_context(Client(transport=RedisTransport(url), **client))
        app = make_app(held, connect=lambda: RedisTransport(url), tokens=tokens, limits=limits)
        yield await ends.enter_async_context(asking(app))


def asking(app: Any, *, token: str = "mine", base: str = "http://gateway") -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url=base, timeout=120,
        headers={"Authorization": f"Bearer {token}"},
    )  # fmt: skip


@pytest.fixture
async def gateway(stack: Stack, app_id: str) -> AsyncIterator[Gateway]:
    async with serving(stack.url, tokens_of(mine=app_id, theirs="other")) as made:
        yield made


def note(text: str, **more: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0", "id": text, "source": "/t", "type": "note.made", "chatid": "c1", "workflow": "Notes",
        "data": {"text": text, "note": text}, **more,
    }  # fmt: skip


async def post(gateway: Gateway, body: Any, kind: str = SINGLE, **headers: str) -> httpx.Response:
    content = body if isinstance(body, str | bytes) else json.dumps(body)
    return await gateway.post("/v1/events", content=content, headers={"Content-Type": kind, **headers})


async def ask(gateway: Gateway, **more: Any) -> httpx.Response:
    question = {"agent": "A", "workflow": "Notes", "chat_id": "c1", "budget_ms": BUDGET_MS, **more}
    return await gateway.post("/v1/context", json=question)


async def notes(gateway: Gateway, **more: Any) -> dict[str, int]:
    """Return what the app remembers, and how often it was told."""
    answer = await ask(gateway, **more)
    assert answer.status_code == 200, answer.text
    reply = ContextReply.model_validate_json(answer.content)
    [found] = [json.loads(block.value) for block in reply.blocks if block.name == "notes"] or [[]]
    return {row["text"]: row["times"] for row in found}


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Return status and kind, once it is seen that the answer is a problem as the document has it."""
    assert answer.headers["Content-Type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["detail"]
    return answer.status_code, body["type"].removeprefix("urn:graphweft:problem:")


def places(answer: httpx.Response) -> set[str]:
    return {fault.get("pointer") or fault["header"] for fault in answer.json()["errors"]}


async def events_of(url: str, app_id: str) -> list[str]:
    """Return the texts of the app's notes on the bus."""
    return [event["data"].get("text") for event in await events_on_bus(url, app_id)]


# --------------------------------------------------------------------------------------------------- events and context


async def test_an_event_takes_effect_and_comes_back_as_context(gateway: Gateway) -> None:
    answer = await post(gateway, note("one"))
    assert answer.status_code == 202
    [position] = answer.json()["positions"]
    assert await notes(gateway, after=position) == {"one": 1}
    reply = (await ask(gateway, after=position, explain=True, context={"text": "one"})).json()
    assert reply["reason"] is None
    assert reply["context_id"]
    assert "## Own\n- one" in reply["text"]
    how = next(block["explanation"] for block in reply["blocks"] if block["name"] == "notes")
    assert how["place"] == "Notes/graph_injection.yaml:17:9"
    assert how["events"] == ["one"]


async def test_what_is_remembered_is_found(gateway: Gateway) -> None:
    texts = ["I like green tea", "My dog barks at night", "The train was late"]
    data = {"messages": [{"role": "user", "text": text} for text in texts], "user_id": "u1"}
    answer = await post(gateway, note("x", type="memory.add", data=data))
    assert answer.status_code == 202
    [after] = answer.json()["positions"]
    for user, index_type, found in (
        ("u1", "fulltext", ["My dog barks at night"]),
        ("u2", "fulltext", []),
        ("u1", None, ["My dog barks at night"]),
        ("u1", "", sorted(texts)),
    ):
        asked = {"text": ""} if index_type == "" else {"text": "Do dogs bark?", "index_type": index_type}
        search = {**asked, "memory": {"user_id": user}}
        question = SEARCH | {"search": search, "after": after, "budget_ms": BUDGET_MS}
        reply = (await gateway.post("/v1/context", json=question)).json()
        assert reply["reason"] is None, reply
        [block] = reply["blocks"]
        assert (block["name"], block["format"]) == ("search", "list")
        assert sorted(row["text"] for row in block["value"]) == found
        assert all(f"\n- user: {text}\n" in reply["text"] for text in found)
        assert [row["score"] is None for row in block["value"]] == [index_type == ""] * len(found)


async def test_a_search_over_http_brings_no_cypher(gateway: Gateway) -> None:
    for cypher in ("RETURN node.role AS text, score ORDER BY score DESC", "DELETE node RETURN 1 AS text, score", ""):
        search = {"memory": {"user_id": "u1"}, "retrieval_query": cypher}
        answer = await gateway.post("/v1/context", json=SEARCH | {"search": search})
        assert (problem(answer), places(answer)) == ((422, "invalid-question"), {"#/search/retrieval_query"})


async def test_events_above_the_rate_of_an_app_get_429_on_each_route_and_the_neighbour_does_not(
    stack: Stack, app_id: str
) -> None:
    hog = Quotas(events_per_s=0.001)
    gate = QuotaLimiter(lambda app: hog if app == app_id else Quotas(), clock=VirtualClock())
    tokens = tokens_of(mine=app_id, theirs=f"{app_id}-2")
    async with AsyncExitStack() as ends:
        held = await ends.enter_async_context(Client(transport=RedisTransport(stack.url)))
        app = make_app(held, connect=lambda: RedisTransport(stack.url), tokens=tokens, quotas=gate)
        mine = await ends.enter_async_context(asking(app))
        theirs = await ends.enter_async_context(asking(app, token="theirs"))
        assert (await post(mine, [note("a"), note("b")], BATCH)).status_code == 202, "a batch may be above the rate"
        messages = {"group_id": "g", "messages": [{"content": "hi", "role_type": "user"}]}
        for answer in (
            await post(mine, note("c")),
            await post(mine, "{", BATCH),  # nothing of the body is read
            await mine.post("/messages", json=messages),
            await mine.post("/v1/traces", json={}),
        ):
            assert answer.status_code == 429
            problem = answer.json()
            assert problem["type"] == "urn:graphweft:problem:over-quota"
            assert (problem["quota"], problem["limit"], problem["used"]) == ("events_per_s", 0.001, 2)
            assert int(answer.headers["retry-after"]) >= 2_000
        assert (await ask(mine)).status_code == 200, "questions have no quota"
        for number in range(3):
            assert (await post(theirs, [note(f"{number}a"), note(f"{number}b")], BATCH)).status_code == 202
        assert gate.refused == {app_id: {"events_per_s": 4}}
    assert await events_of(stack.url, app_id) == ["a", "b"]


async def test_the_gateway_process_follows_the_quotas_of_its_file_and_status_shows_what_it_refused(
    stack: Stack, tmp_path: Path, app_id: str
) -> None:
    tokens, apps = tmp_path / "tokens.yaml", tmp_path / "apps.yaml"
    tokens.write_text(
        f"tokens: [{{sha256: {hashlib.sha256(b'mine').hexdigest()}, app_id: {app_id}, roles: [emit]}},"
        f" {{sha256: {hashlib.sha256(b'theirs').hexdigest()}, app_id: {app_id}-2, roles: [emit]}}]"
    )
    apps.write_text(f"apps: {{{app_id}: {{quotas: {{events_per_s: 0.001}}}}}}")
    files = {"GRAPHWEFT_GATEWAY_TOKENS": str(tokens), "GRAPHWEFT_APPS": str(apps)}
    with stack.gateway(**files) as (base, process):
        async with httpx.AsyncClient(base_url=base, headers={"Authorization": "Bearer mine"}, timeout=120) as mine:
            assert (await post(mine, note("a"))).status_code == 202
            assert (await post(mine, note("b"))).status_code == 429
            assert (await post(mine, note("b"), Authorization="Bearer theirs")).status_code == 202
            apps.write_text(f"apps: {{{app_id}: {{quotas: {{events_per_s: 1000}}}}}}\n")
            # The file is read each second.
            await until(lambda: post(mine, note("b")), lambda answer: answer.status_code != 429)
        process.terminate()
        process.communicate(timeout=120)
    shown = stack.command("status", "--json", **files)
    output, errors = shown.communicate(timeout=120)
    assert shown.returncode == 0, errors
    uses = {each["app_id"]: each for each in json.loads(output)["apps"]}
    assert uses[app_id]["refused_requests"]["events_per_s"] >= 1
    assert uses[app_id]["quotas"] == {"events_per_s": 1000, "property_names": 10_000}
    assert uses.get(f"{app_id}-2", {}).get("refused_requests", {}) == {}
    text = stack.command("status", **files)
    output, errors = text.communicate(timeout=120)
    assert text.returncode == 0, errors
    assert app_id[:8] in output
    assert "refused" in output


async def test_a_batch_keeps_its_order(gateway: Gateway, stack: Stack, app_id: str) -> None:
    texts = [f"{number:03}" for number in range(200)]
    answer = await post(gateway, [note(text) for text in texts], BATCH)
    assert answer.status_code == 202
    positions = answer.json()["positions"]
    assert len(set(positions)) == 200
    assert await events_of(stack.url, app_id) == texts
    assert len(await notes(gateway, after=positions[-1])) == 50, "the rule's max_results"


async def test_an_empty_batch_is_one(gateway: Gateway) -> None:
    answer = await post(gateway, [], BATCH)
    assert (answer.status_code, answer.json()) == (202, {"positions": []})


async def test_binary_mode(gateway: Gateway, stack: Stack, app_id: str) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "b", "ce-source": "/t", "ce-type": "note.made", "ce-workflow": "Notes"}
    answer = await post(
        gateway, {"text": "Ü", "note": "b"}, "application/json; charset=UTF-8", **headers, **{"CE-ChatId": "c%C3%BC"}
    )
    assert answer.status_code == 202, answer.text
    assert await notes(gateway, after=answer.json()["positions"][0]) == {"Ü": 1}
    assert [each["chatid"] for each in await events_on_bus(stack.url, app_id)] == ["cü"]
    without_data = await post(gateway, b"", "", **headers | {"ce-id": "e", "ce-type": "a.b", "ce-chatid": "c"})
    assert without_data.status_code == 202, without_data.text


async def test_the_same_request_again_changes_nothing(gateway: Gateway) -> None:
    for _ in range(3):
        answer = await post(gateway, [note("x"), note("y")], BATCH)
    assert await notes(gateway, after=answer.json()["positions"][-1]) == {"x": 1, "y": 1}


async def test_a_valid_question_is_answered_whatever_is_missing(gateway: Gateway) -> None:
    for more, reason in (
        ({"workflow": "Nope"}, "no_rules"),
        ({"budget_ms": 1}, None),  # it may even be in time
        ({"context": {"deep": [[{"a": 2**70}]]}}, None),
    ):
        answer = await ask(gateway, **more)
        assert answer.status_code == 200
        reply = ContextReply.model_validate_json(answer.content)
        assert reason in {None, reply.reason}
    few = ContextReply.model_validate_json((await ask(gateway, max_tokens=1.0)).content)
    assert few.tokens <= 1


# -------------------------------------------------------------------------------------------------------------- tokens


async def test_a_request_with_two_tokens_is_refused(gateway: Gateway) -> None:
    told = [gateway.headers["Authorization"], "Bearer other"]
    del gateway.headers["Authorization"]
    for first, second in (told, told[::-1]):  # HTTP does not say which one counts
        headers = [("Authorization", first), ("Authorization", second)]
        assert problem(await gateway.post("/v1/context", headers=headers)) == (400, "repeated-header")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer nobody", "Basic mine", "mine", "Bearer MINE"]
)
async def test_without_a_known_token_nothing_is_answered(
    gateway: Gateway, stack: Stack, app_id: str, header: str | None
) -> None:
    del gateway.headers["Authorization"]
    if header is not None:
        gateway.headers["Authorization"] = header
    for answer in (await post(gateway, note("no")), await ask(gateway), await post(gateway, b"{")):
        assert problem(answer) == (401, "no-token")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert await events_of(stack.url, app_id) == []


@pytest.mark.parametrize("other", ["other", "App", ""])
async def test_another_app_is_refused_and_nothing_taken(
    gateway: Gateway, stack: Stack, app_id: str, other: str
) -> None:
    named = note("theirs", appid=other)
    expected = (403, "other-app") if other else (422, "invalid-event")
    single, batch = await post(gateway, named), await post(gateway, [note("mine"), named], BATCH)
    assert (problem(single), places(single)) == (expected, {"#/appid"})
    assert (problem(batch), places(batch)) == (expected, {"#/1/appid"})
    binary = await post(
        gateway, {"text": "theirs"}, "application/json",
        **{f"ce-{name}": value for name, value in named.items() if name != "data"},
    )  # fmt: skip
    assert (problem(binary), places(binary)) == (expected, {"ce-appid"})
    asked = await ask(gateway, app_id=other)
    assert problem(asked) == ((403, "other-app") if other else (422, "invalid-question"))
    assert places(asked) == {"#/app_id"}
    for app in (app_id, other):
        assert await events_of(stack.url, app) == []


async def test_naming_the_own_app_is_right(gateway: Gateway, app_id: str) -> None:
    answer = await post(gateway, note("mine", appid=app_id))
    assert answer.status_code == 202
    assert await notes(gateway, app_id=app_id, after=answer.json()["positions"][0]) == {"mine": 1}


ONE_TOKEN = f"tokens:\n- {{app_id: a, sha256: {'0b' * 32}, roles: [read]}}"


def test_a_file_without_tokens_is_valid(tmp_path: Path) -> None:
    (file := tmp_path / "tokens.yaml").write_text("tokens: []")
    assert read_tokens(file).all == ()


def test_tokens_of_a_file(tmp_path: Path) -> None:
    first, second = new_token(), new_token()
    assert first != second
    file = tmp_path / "tokens.yaml"
    entries = [
        {"sha256": sha256_of(first), "app_id": "a", "name": "ci", "roles": ["emit"]},
        {"sha256": sha256_of(second).upper(), "app_id": "b", "roles": ["emit"]},
    ]
    file.write_text(yaml.safe_dump({"tokens": entries}))
    found = read_tokens(file)
    assert [cast("AccessToken", found.find(token)).app_id for token in (first, second)] == ["a", "b"]
    assert found.find(sha256_of(first)) is None
    assert found.find("") is None
    assert first not in file.read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("tokens: [", ":1:10: invalid YAML"),
        ("tokens:\n- sha256: *hunter2\n", ":2:11: invalid YAML: found undefined alias a value: put"),
        ("tokens:\n- sha256: !hunter2 x\n", ":2:11: invalid YAML: the tag a value: put"),
        ("tokens:", "tokens.yaml:1:1: tokens: Input should be a valid"),
        (f"tokens: [{{app_id: a, sha256: {'0a' * 32}}}]", "tokens.yaml:1:10: tokens.0.roles: Field required"),
        (f"tokens:\n- app_id: a\n  sha256: {'0a' * 32}\n  roles:\n", "tokens.0.roles: Input should be a valid"),
        (
            f"{ONE_TOKEN}\n- app_id: a\n  sha256: {'0a' * 32}\n  workflows: [W]",
            "tokens.yaml:3:3: tokens.1.roles: Field required",
        ),
        (f"tokens: [{{app_id: a, sha256: {'0a' * 32}, roles: null}}]", "tokens.0.roles"),
        (f"tokens: [{{app_id: a, sha256: {'0a' * 32}, role: [read]}}]", "tokens.0.roles: Field required"),
        ("", "tokens.yaml:1:1: tokens: Field required"),
        ("tokens:\n  - {app_id: a}", "tokens.yaml:2:5: tokens.0.sha256: Field required"),
        (f"tokens: [{{app_id: a, sha256: {'0a' * 32}, roles: [write]}}]", "tokens.0.roles.0: Input should be 'emit'"),
        (f"tokens: [{{app_id: a, sha256: {'0a' * 32}, roles: []}}]", "tokens.0.roles"),
        (
            f"tokens: [{{app_id: a, sha256: {'0a' * 32}, expires: 2027-01-31}}]",
            "tokens.0.expires: Input should have timezone info: expected a time such",
        ),
        (f"tokens: [{{app_id: a, sha256: {'0a' * 32}, expires: 2027-01-31T00:00:00}}]", "tokens.0.expires"),
        (f"tokens: [{{app_id: 'a b', sha256: {'0a' * 32}}}]", "tokens.0.app_id"),
        (f"tokens: [{{app_id: a, sha256: {'0a' * 31}}}]", "tokens.0.sha256"),
        (f"tokens: [{{app_id: a, sha256: {'0a' * 32}, token: secret}}]", "tokens.0.token: Extra"),
        (
            f"{ONE_TOKEN}\n- {{app_id: b, sha256: {'0B' * 32}, roles: [emit]}}",
            "tokens.yaml:3:3: tokens.1: duplicate",
        ),
    ],
)
def test_a_broken_file_of_tokens_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "tokens.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidSettings) as raised:
        read_tokens(file)
    assert said in str(raised.value)
    assert "secret" not in str(raised.value)


# ------------------------------------------------------------------------------------------------------ what is refused

GONE = "the file is empty or is not there any more"
SAID = {"role": "user", "text": "I like dogs"}


def many_names() -> dict[str, Any]:
    entities = [{"type": "T", "name": f"n{number}", **{f"a{number}_{n}": 1 for n in range(51)}} for number in range(4)]
    return {"user_id": "u", "episode_type": "json", "content": json.dumps({"entities": entities})}


CASES: dict[str, tuple[Any, str, int, str, set[str]]] = {
    "no JSON": ("{", SINGLE, 400, "no-json", {"#"}),
    "no UTF-8": (b'{"id": "\xff"}', SINGLE, 400, "no-json", {"#"}),
    "NaN": ('{"id": NaN}', SINGLE, 400, "no-json", {"#"}),
    "infinite number": ('{"data": {"a": ["Infinity", -1e999]}}', SINGLE, 400, "no-json", {"#"}),
    "many attributes": (note("x", **{f"a{n}": "0" for n in range(101)}), SINGLE, 422, "invalid-event", {"#"}),
    "half a pair": (r'{"id": "\ud800"}', SINGLE, 400, "no-json", {"#"}),
    "endless nesting": ("[" * 100_000, BATCH, 400, "no-json", {"#"}),
    "no object": ("[1]", SINGLE, 422, "invalid-event", {"#"}),
    "no array": (note("x"), BATCH, 422, "invalid-event", set()),
    "in a batch": ([note("x"), 3, note("y", type="T")], BATCH, 422, "invalid-event", {"#/1", "#/2/type"}),
    "missing": ({"specversion": "1.0", "type": "a.b"}, SINGLE, 422, "invalid-event", {"#/id", "#/source", "#/chatid"}),
    "another version": (note("x", specversion="0.3"), SINGLE, 422, "invalid-event", {"#/specversion"}),
    "time without zone": (note("x", time="2024-01-01T00:00:00"), SINGLE, 422, "invalid-event", {"#/time"}),
    "time as a number": (note("x", time=5), SINGLE, 422, "invalid-event", {"#/time"}),
    "before 1970": (note("x", time="1969-12-31T23:59:59.999Z"), SINGLE, 422, "invalid-event", {"#/time"}),
    "year 1": ([note("x"), note("y", time="0001-01-01T00:00:00+14:00")], BATCH, 422, "invalid-event", {"#/1/time"}),
    "far ahead": (note("x", time="9999-12-31T23:59:59.999999Z"), SINGLE, 422, "invalid-event", {"#/time"}),
    "names of attributes": (note("x", type="episode.add", time="9999-12-31T23:59:59Z", data=many_names()), SINGLE, 422,
                            "invalid-event", {"#/time", "#/data/content"}),
    "number as text": (note("x", id=5), SINGLE, 422, "invalid-event", {"#/id"}),
    "payload": (note("x", type="tool.call_complete", data={"tool_name": ""}), SINGLE, 422, "invalid-event",
                {"#/data/tool_name"}),
    "memory without scope": (note("x", type="memory.add", data={"messages": [SAID]}), SINGLE, 422, "invalid-event",
                             {"#"}),
    "no message": (note("x", type="memory.add", data={"messages": [], "user_id": "u"}), SINGLE, 422, "invalid-event",
                   {"#/data/messages"}),
    "empty message": (note("x", type="memory.add", data={"text": "", "user_id": "u"}), SINGLE, 422, "invalid-event",
                      {"#/data/messages/0/text"}),
    "blank message": (note("x", type="memory.add", data={"text": " ", "user_id": "u"}), SINGLE, 422, "invalid-event",
                      {"#/data/messages/0/text"}),
    "blank update": (note("x", type="memory.update", data={"memory_id": "m", "text": " "}), SINGLE, 422,
                     "invalid-event", {"#/data/text"}),
    "role of a message": ([note("x"), note("y", type="memory.add", data={"messages": [SAID, SAID | {"role": "tool"}],
                          "user_id": "u"})], BATCH, 422, "invalid-event", {"#/1/data/messages/1/role"}),
    "field of a message": ([note("x"), note("y", type="memory.add", data={"messages": [SAID, SAID | {"mood": 1}],
                           "user_id": "u"})], BATCH, 422, "invalid-event", {"#/1/data/messages/1"}),
    "vector of zeros": (note("x", type="memory.embedded", data={"memory_id": "m", "model": "m", "embedding": [0, 0]}),
                        SINGLE, 422, "invalid-event", {"#/data/embedding"}),
    "nobody to erase": (note("x", type="memory.erase", data={}), SINGLE, 422, "invalid-event", {"#/data/user_id"}),
    "name of an extension": ({**note("x"), "a/b~c": 1}, SINGLE, 422, "invalid-event", {"#"}),
    "data in base64": (note("x", data_base64="aGk="), SINGLE, 422, "invalid-event", {"#"}),
    "no kind": (note("x"), "", 415, "unsupported-media-type", set()),
    "plain JSON": (note("x"), "application/json", 415, "unsupported-media-type", set()),
    "form": ("a=b", "application/x-www-form-urlencoded", 415, "unsupported-media-type", set()),
    "Avro": (note("x"), "application/cloudevents+avro", 415, "unsupported-media-type", set()),
    "Latin-1": (note("x"), f"{SINGLE}; charset=latin-1", 415, "unsupported-media-type", set()),
    "many values": (note("x", data={"a": [[]] * 300_000}), SINGLE, 422, "too-many-values", set()),
    "large batch": ([note(str(n)) for n in range(501)], BATCH, 422, "batch-too-large", set()),
    "large event": ([note("x"), note("y", data={"text": "y" * MAX_EVENT_BYTES})], BATCH, 413, "event-too-large",
                    {"#/1"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_events_that_are_refused(gateway: Gateway, stack: Stack, app_id: str, name: str) -> None:
    body, kind, status, code, where = CASES[name]
    answer = await post(gateway, body, kind)
    assert problem(answer) == (status, code)
    if where:
        assert places(answer) == where
    if name == "field of a message":
        [fault] = answer.json()["errors"]
        assert fault["detail"].startswith("unknown field 'mood': a message has role, text, time")
    assert await events_of(stack.url, app_id) == []


@pytest.mark.parametrize(
    ("headers", "body", "where"),
    [
        ({}, {}, {"ce-id", "ce-source", "ce-chatid"}),
        ({"ce-id": "%ff"}, {}, {"ce-id"}),
        ({"ce-id": "i", "ce-source": "s", "ce-chatid": "c", "ce-time": "9999-12-31T23:59:59Z"}, {}, {"ce-time"}),
        ({f"ce-a{n}": "0" for n in range(100)}, {}, {"ce-*"}),
        ({"ce-data": "x", "ce-datacontenttype": "a/b"}, {}, {"ce-data", "ce-datacontenttype"}),
        ({"ce-id": "i", "ce-source": "s", "ce-chatid": "c"}, {"context": 3}, {"#/context"}),
        ({"ce-id": "i", "ce-source": "s", "ce-chatid": "c"}, [1], {"#"}),
        ({"ce-id": "i", "ce-source": "s", "ce-chatid": "c", "ce-time": "now"}, {}, {"ce-time"}),
    ],
)
async def test_binary_events_that_are_refused(
    gateway: Gateway, headers: dict[str, str], body: Any, where: set[str]
) -> None:
    answer = await post(
        gateway, body, "application/json", **{"ce-specversion": "1.0", "ce-type": "note.made"} | headers
    )
    assert problem(answer) == (422, "invalid-event")
    assert places(answer) == where


async def test_a_header_that_stands_twice_is_refused(gateway: Gateway) -> None:
    names = {"ce-specversion": "1.0", "ce-type": "a.b", "ce-id": "i", "ce-source": "s", "ce-chatid": "c"}
    headers = [*names.items(), ("ce-appid", "a"), ("ce-appid", "b"), ("content-type", "application/json")]
    answer = await gateway.post("/v1/events", content="{}", headers=headers)
    assert (problem(answer), places(answer)) == ((422, "invalid-event"), {"ce-appid"})


SEARCH: dict[str, Any] = {"agent": "A", "workflow": "W", "chat_id": "c"}
SOME_UNKNOWN = {f"#/search/memory/{number}" for number in range(20)}


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ([], {"#"}),
        ({}, {"#/agent", "#/workflow", "#/chat_id"}),
        (
            {"agent": "A", "workflow": "W", "chat_id": "c", "budget_ms": 0, "max_tokens": 0},
            {"#/budget_ms", "#/max_tokens"},
        ),
        ({"agent": "A", "workflow": "W", "chat_id": "c", "budget_ms": 10_001}, {"#/budget_ms"}),
        ({"agent": "A", "workflow": "W", "chat_id": "c", "budget_ms": "5", "explain": 1}, {"#/budget_ms", "#/explain"}),
        ({"agent": "A", "workflow": "W", "chat_id": "c", "after": "5", "x/y~z": 1}, {"#/after", "#/x~1y~0z"}),
        ({"agent": "A", "workflow": "W", "chat_id": "c", "context": []}, {"#/context"}),
        ({"agent": "A", "workflow": "W", "chat_id": "c", "reply_to": "x", "id": "y"}, {"#/reply_to", "#/id"}),
        (SEARCH | {"search": {"text": 5, "memory": {}}}, {"#/search/text", "#/search/memory"}),
        (
            SEARCH | {"search": {"memory": {"user_id": "", "thread": "t"}}},
            {"#/search/memory/user_id", "#/search/memory/thread"},
        ),
        (SEARCH | {"search": {"memory": {"user_id": "u"}, "top_k": 0}}, {"#/search/top_k"}),
        (SEARCH | {"search": {"memory": {"user_id": "u"}, "top_k": "5", "k": 1}}, {"#/search/top_k", "#/search/k"}),
        (SEARCH | {"search": {"index_name": "i", "index_type": "hybrid"}}, {"#/search"}),
        (
            SEARCH | {"search": {"memory": {"user_id": "u"}, "retrieval_query": 1, "params": []}},
            {"#/search/retrieval_query", "#/search/params"},
        ),
        (SEARCH | {"search": {"memory": {str(n): 0 for n in range(1_000)}}}, SOME_UNKNOWN),
    ],
)
async def test_questions_that_are_refused(gateway: Gateway, body: Any, where: set[str]) -> None:
    answer = await gateway.post("/v1/context", json=body)
    assert (problem(answer), places(answer)) == ((422, "invalid-question"), where)


@pytest.mark.parametrize(
    ("path", "kind", "body", "place", "said"),
    [
        ("/v1/events", SINGLE, {"specversion": "1.0", "id": "i", "source": "s", "type": "a.b", "chat_id": "c"},
         "#/chatid", "Field required (you wrote 'chat_id': did you mean 'chatid'?)"),
        ("/v1/events", SINGLE, note("x", type="tool.call_complete", data={"tool_nam": "t"}),
         "#/data/tool_name", "Field required (you wrote 'tool_nam': did you mean 'tool_name'?)"),
        ("/v1/context", "application/json", SEARCH | {"budgetms": 5},
         "#/budgetms", "Extra inputs are not permitted (did you mean 'budget_ms'?)"),
        ("/v1/context", "application/json", SEARCH | {"search": {"memory": {"user_id": "u"}, "topk": 5}},
         "#/search/topk", "Extra inputs are not permitted (did you mean 'top_k'?)"),
        ("/v1/context", "application/json", SEARCH | {"search": {"memory": {"userid": "u"}}},
         "#/search/memory/userid", "Extra inputs are not permitted (did you mean 'user_id'?)"),
        ("/messages", "application/json", {"group": "g", "messages": []},
         "#/group_id", "Field required (you wrote 'group': did you mean 'group_id'?)"),
    ],
)  # fmt: skip
async def test_a_misspelt_field_has_the_one_beside_it_that_is_meant(
    gateway: Gateway, path: str, kind: str, body: dict[str, Any], place: str, said: str
) -> None:
    answer = await gateway.post(path, content=json.dumps(body), headers={"Content-Type": kind})
    assert answer.status_code == 422
    assert {fault["pointer"]: fault["detail"] for fault in answer.json()["errors"]}[place] == said


async def test_a_misspelt_attribute_or_type_is_taken_with_a_hint(gateway: Gateway) -> None:
    assert "hints" not in (await post(gateway, [note("x"), note("y", type="tool.call_start", data={"tool_name": "t"})],
                                      BATCH)).json()  # fmt: skip
    odd = note("z", type="agent.turn_complet", workfow="W")
    del odd["workflow"]
    answer = await post(gateway, [note("v"), odd, odd], BATCH)
    assert (answer.status_code, len(answer.json()["positions"])) == (202, 3)
    assert sorted((hint["pointer"], hint["detail"]) for hint in answer.json()["hints"]) == [
        ("#/1/type", "'agent.turn_complet' is a type of your own (did you mean 'agent.turn_complete'?)"),
        ("#/1/workfow", "'workfow' is not an attribute that graphweft reads (did you mean 'workflow'?)"),
    ]
    many = [note(str(n), type=f"agent.turn_complet{n}", **{f"workfow{m}": "x" for m in range(9)}) for n in range(300)]
    assert len((await post(gateway, many, BATCH)).json()["hints"]) <= 20


def test_faults_without_end_are_not_looked_for() -> None:
    with pytest.raises(Problem) as raised:
        read_events(BATCH, Headers(), json.dumps([{"A": 0}] * 500).encode(), app_id="a", limits=GatewayLimits())
    assert len(raised.value.faults) == 20


async def test_unknown_members_without_end_are_not_all_looked_at(gateway: Gateway) -> None:
    question = {str(number): 0 for number in range(1_000)}
    with pytest.raises(ValidationError) as found:
        ContextQuestion.model_validate(question)
    assert found.value.error_count() == 20 + 3
    answer = await gateway.post("/v1/context", json=question)
    assert (problem(answer), len(answer.json()["errors"])) == ((422, "invalid-question"), 20)


async def test_other_bodies_paths_and_methods_are_refused(gateway: Gateway) -> None:
    for answer, expected in (
        (await gateway.post("/v1/context", content="{}", headers={"Content-Type": "text/plain"}), 415),
        (await gateway.post("/v1/context", content="{", headers={"Content-Type": "application/json"}), 400),
        (await gateway.post("/v1/context", content="[1e999]", headers={"Content-Type": "application/json"}), 400),
        (await post(gateway, note("x"), **{"Content-Encoding": "gzip"}), 415),
        (await gateway.get("/v1/events"), 405),
        (await gateway.post("/v1/events/"), 404),
        (await gateway.get("/"), 404),
    ):
        assert problem(answer)[0] == expected
    assert (await gateway.get("/v1/context")).headers["Allow"] == "POST"


def test_a_question_says_what_a_request_says() -> None:
    """A field that the bus knows and HTTP does not would be missed by nobody for long."""
    ours, theirs = (model.model_json_schema()["properties"] for model in (ContextQuestion, ContextRequest))
    headers = {"traceparent", "tracestate"}
    assert ours.keys() - {"budget_ms"} == theirs.keys() - {"id", "deadline_ms", "reply_to"} - headers
    for name in ours.keys() & theirs.keys() - {"app_id", "search"}:
        texts = ("description", "title")
        assert {k: v for k, v in ours[name].items() if k not in texts} == {
            k: v for k, v in theirs[name].items() if k not in texts
        }, name
    asked, searched = (model.model_json_schema() for model in (SearchQuestion, SearchQuery))
    assert asked["anyOf"] == searched["anyOf"]
    assert asked["properties"].keys() == searched["properties"].keys()
    cypher = {"retrieval_query", "params"}  # that is for rules and for the bus
    for name, property in asked["properties"].items():
        if name in cypher:
            continue
        assert property | {"description": ""} == searched["properties"][name] | {"description": ""}, name


def test_the_document_has_the_payloads_of_memories() -> None:
    schemas = document(GatewayLimits(), secured=True)["components"]["schemas"]
    assert {model.__name__ for model in MEMORY.values()} < schemas.keys()
    assert "$defs" not in json.dumps(schemas)
    assert schemas["MemoryAdd"]["properties"]["messages"]["items"] == {"$ref": "#/components/schemas/MemoryMessage"}


# -------------------------------------------------------------------------------------------------------------- limits


async def test_a_large_body_is_not_read_to_its_end(stack: Stack, app_id: str) -> None:
    limits = GatewayLimits(events_bytes=1_000, context_bytes=1_000)
    read: list[int] = []

    async def endless() -> AsyncIterator[bytes]:
        for number in range(1_000):
            read.append(number)
            yield b" " * 100

    async with serving(stack.url, tokens_of(mine=app_id), limits) as gateway:
        for path, kind in (("/v1/events", SINGLE), ("/v1/context", "application/json")):
            declared = await gateway.post(path, content=b" " * 1_001, headers={"Content-Type": kind})
            assert problem(declared) == (413, "body-too-large")
            read.clear()
            chunked = await gateway.post(path, content=endless(), headers={"Content-Type": kind})
            assert problem(chunked) == (413, "body-too-large")
            assert len(read) < 15


async def test_a_body_that_does_not_come_is_not_waited_for(stack: Stack, app_id: str) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with serving(stack.url, tokens_of(mine=app_id), GatewayLimits(body_s=0.05)) as gateway:
        answer = await gateway.post("/v1/events", content=never(), headers={"Content-Type": SINGLE})
        assert problem(answer) == (408, "slow-body")


async def test_requests_beyond_the_limits_are_told_at_once(stack: Stack, app_id: str) -> None:
    go, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def slow() -> AsyncIterator[bytes]:
        begun.release()
        await go.wait()
        yield json.dumps(note("slow")).encode()

    limits = GatewayLimits(requests=3, requests_per_app=2)
    async with serving(stack.url, tokens_of(mine=app_id, theirs="x", third="y"), limits) as gateway:

        async def send(token: str) -> httpx.Response:
            headers = {"Content-Type": SINGLE, "Authorization": f"Bearer {token}"}
            return await gateway.post("/v1/events", content=slow(), headers=headers)

        async with asyncio.TaskGroup() as tasks:
            held = [tasks.create_task(send(token)) for token in ("mine", "mine", "theirs")]
            for _ in held:
                await begun.acquire()
            refused = await send("mine")
            assert problem(refused) == (429, "too-many-requests")
            assert refused.headers["Retry-After"] == "1"
            headers = {"Content-Type": SINGLE, "Authorization": "Bearer third"}
            taken = await gateway.post("/v1/events", content=json.dumps(note("quick")), headers=headers)
            assert taken.status_code == 202, "the app with the most gives up a body that does not end"
            assert problem(await held[0]) == (408, "slow-body")
            assert (await gateway.get("/healthz")).status_code == 200
            go.set()
        assert [task.result().status_code for task in held[1:]] == [202] * 2
        assert (await post(gateway, note("again"))).status_code == 202


@pytest.mark.parametrize("path", ["/v1/events", "/v1/context"])
async def test_a_token_that_is_revoked_while_a_body_is_sent_does_nothing(stack: Stack, app_id: str, path: str) -> None:
    valid = [tokens_of(mine=app_id)]
    body = note("late") if path == "/v1/events" else {"agent": "Notes", "chat_id": "c1"}

    async def slow() -> AsyncIterator[bytes]:
        sent = json.dumps(body).encode()
        yield sent[:9]
        valid.append(tokens_of(theirs="other"))
        yield sent[9:]

    async with Client(transport=RedisTransport(stack.url)) as client:
        app = make_app(client, connect=lambda: RedisTransport(stack.url), tokens=lambda: valid[-1])
        headers = {"Content-Type": SINGLE if path == "/v1/events" else "application/json"}
        answer = await asking(app).post(path, content=slow(), headers=headers)
    assert problem(answer) == (401, "no-token")
    assert await events_of(stack.url, app_id) == []


@pytest.mark.parametrize("reader", ["read_events", "read_json"])
async def test_large_bodies_of_an_app_are_read_one_by_one_beside_the_others(
    stack: Stack, app_id: str, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    go, begun = threading.Event(), list[bytes]()
    read: Callable[..., Any] = getattr(app_module, reader)

    def held(*arguments: Any, **more: Any) -> Any:
        [body] = [each for each in arguments if isinstance(each, bytes)]
        if b"mine" in body and len(body) > 40_000:
            begun.append(body)
            assert go.wait(8)
        return read(*arguments, **more)

    monkeypatch.setattr(app_module, reader, held)
    async with serving(stack.url, tokens_of(mine=app_id, theirs=f"{app_id}-2")) as gateway:

        async def send(token: str, size: int) -> httpx.Response:
            headers = {"Authorization": f"Bearer {token}"}
            padded = token + "." * size
            if reader == "read_events":
                return await post(gateway, note(f"{token}-{size}", data={"text": padded, "note": "n"}), **headers)
            question = {"agent": "A", "workflow": "Notes", "chat_id": "c", "context": {"text": padded}}
            return await gateway.post("/v1/context", json=question, headers=headers)

        async with asyncio.TaskGroup() as tasks:
            large = [tasks.create_task(send("mine", 50_000)) for _ in range(3)]
            try:

                async def reading() -> bool:
                    return bool(begun)

                await until(reading)
                others = [await send("theirs", 50_000), await send("theirs", 1), await send("mine", 1)]
                assert len(begun) == 1
            finally:
                go.set()
        assert {answer.status_code for answer in others + [task.result() for task in large]} <= {200, 202}
        assert len(begun) == 3


# --------------------------------------------------------------------------------------------------- the bus goes away


async def test_while_the_bus_is_away_nothing_is_said_to_be_taken(tmp_path: Path, stack: Stack, app_id: str) -> None:
    own = EmbeddedServer(tmp_path / "own")
    tokens = tokens_of(mine=app_id)
    async with serving(embedded_url(tmp_path / "own"), tokens, GatewayLimits(emit_s=0.2)) as gateway:
        batch = [note("one"), note("two"), note("three")]
        answer = await post(gateway, batch, BATCH)
        assert problem(answer) == (503, "bus-unavailable")
        assert int(answer.headers["Retry-After"]) > 0
        assert answer.json()["positions"] == [None] * 3
        assert problem(await gateway.get("/readyz")) == (503, "bus-unavailable")
        assert (await gateway.get("/healthz")).status_code == 200
        asked = await ask(gateway)
        assert (asked.status_code, asked.json()["reason"]) == (200, "bus_unavailable")
        await own.start()
        try:
            taken: list[httpx.Response] = []

            async def confirmed() -> bool:
                taken.append(await post(gateway, batch, BATCH))
                return taken[-1].status_code == 202

            await until(confirmed)
            there = await events_of(embedded_url(tmp_path / "own"), app_id)
            # Copies are there, in an order whose first ones are the batch's: workers drop what has been.
            assert list(dict.fromkeys(there)) == ["one", "two", "three"]

            async def ready() -> bool:
                return (await gateway.get("/readyz")).status_code == 200

            await until(ready)
            assert (await gateway.get("/readyz")).json() == {"bus": "ok", "responder": "no answer"}
        finally:
            await own.stop()
    # The same copies where workers are: each takes effect once.
    async with serving(stack.url, tokens) as gateway:
        for text in there:
            answer = await post(gateway, note(text))
        assert await notes(gateway, after=answer.json()["positions"][0]) == dict.fromkeys(["one", "two", "three"], 1)


async def test_readiness_asks_the_bus_and_needs_no_responder(
    tmp_path: Path, stack: Stack, app_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = EmbeddedServer(tmp_path / "own")
    await own.start()
    try:
        async with serving(
            embedded_url(tmp_path / "own"), tokens_of(mine=app_id), GatewayLimits(probe_s=0.0)
        ) as gateway:
            alone = await gateway.get("/readyz")
            assert (alone.status_code, alone.json()) == (200, {"bus": "ok", "responder": "no answer"})
            assert own.process is not None
            own.process.send_signal(signal.SIGSTOP)
            try:
                assert problem(await gateway.get("/readyz")) == (503, "bus-unavailable")
            finally:
                own.process.send_signal(signal.SIGCONT)
            assert (await gateway.get("/readyz")).json() == {"bus": "ok", "responder": "no answer"}
            async with aclosing(redis.from_url(embedded_url(tmp_path / "own"), decode_responses=True)) as raw:
                await raw.config_set("min-replicas-to-write", 1)  # it answers, and refuses all writes
                assert problem(await gateway.get("/readyz")) == (503, "bus-unavailable")
                await raw.config_set("min-replicas-to-write", 0)
                assert (await gateway.get("/readyz")).json() == {"bus": "ok", "responder": "no answer"}
                assert [*await raw.keys("graphweft:events:*")] == []  # asking leaves nothing behind
            monkeypatch.setenv("GRAPHWEFT_CONTEXT", "off")
        async with serving(embedded_url(tmp_path / "own"), tokens_of(mine=app_id)) as gateway:
            assert (await gateway.get("/readyz")).json() == {"bus": "ok", "responder": "not asked: context is off here"}
    finally:
        await own.stop()


@pytest.mark.parametrize(
    ("reason", "context_id", "said"),
    [("disabled", "c", "context is off"), ("no_rules", "c", "ok"), ("overloaded", "", "ok")],
)
async def test_readiness_takes_a_responder_at_its_word(
    app_id: str, reason: ReasonCode, context_id: str, said: str
) -> None:
    class Answering(Client):
        async def context(self, **_: Any) -> ContextReply:
            return ContextReply(id="i", context_id=context_id, reason=reason)

    def nobody() -> Any:
        raise AssertionError("the bus need not be asked")

    async with Answering(transport=RedisTransport("redis://127.0.0.1:1")) as client:
        answer = await asking(make_app(client, connect=nobody, tokens=tokens_of(mine=app_id))).get("/readyz")
    assert answer.json() == {"bus": "ok", "responder": said}


async def test_a_full_buffer_takes_all_of_a_batch_or_none(tmp_path: Path, app_id: str) -> None:
    own = EmbeddedServer(tmp_path / "own")
    url = embedded_url(tmp_path / "own")
    async with serving(url, tokens_of(mine=app_id), GatewayLimits(emit_s=0.1), buffer=3) as gateway:
        assert (await post(gateway, [note("1"), note("2")], BATCH)).status_code == 503
        assert (await post(gateway, [note("3"), note("4")], BATCH)).status_code == 503
        await own.start()
        try:

            async def there() -> bool:
                return len(await events_of(url, app_id)) >= 2

            await until(there)
            assert await events_of(url, app_id) == ["1", "2"]
        finally:
            await own.stop()


async def test_a_defect_says_nothing_of_itself(app_id: str) -> None:
    class Broken:
        async def append(self, events: Sequence[Any]) -> list[str]:
            raise BusUnavailable("away")

        async def request(self, request: ContextRequest) -> ContextReply:
            raise RuntimeError("secret")

        async def aclose(self) -> None:
            pass

    class Defective(Client):
        async def context(self, **_: Any) -> ContextReply:
            raise RuntimeError("secret")

    async with Defective(transport=Broken()) as client:
        answer = await ask(asking(make_app(client, connect=Broken, tokens=tokens_of(mine=app_id))))
    assert problem(answer) == (500, "defect")
    assert "secret" not in answer.text


async def test_without_tokens_only_this_machine_is_answered(stack: Stack, app_id: str) -> None:
    async with Client(stack.url) as client:
        app = make_app(client, connect=lambda: RedisTransport(stack.url), insecure_app=app_id)
        async with asking(app, base="http://127.0.0.1:8765", token="any") as here:
            answer = await post(here, note("here"))
            assert answer.status_code == 202
            assert await notes(here, after=answer.json()["positions"][0]) == {"here": 1}
            assert problem(await post(here, note("x", appid="other"))) == (403, "other-app")
        async with asking(app, base="http://evil.example") as rebound:
            assert problem(await ask(rebound)) == (403, "other-host")
        with pytest.raises(ValueError, match="either"):
            make_app(client, connect=lambda: RedisTransport(stack.url))
        async with asking(app, base="http://127.0.0.1") as odd:
            for host, status in (
                ("LocalHost:1", 200), ("127.0.0.1", 200), ("", 403), ("localhost:", 403), ("127.0.0.1:123456", 403),
                ("localhost:80@evil.example", 403), ("localhost/x", 403), ("evil.example", 403), ("[::1", 403),
                ("localhost.", 403), ("127.0.0.1:a", 403), ("localhost?x", 403), ("localhost#x", 403),
            ):  # fmt: skip
                odd.headers["Host"] = host
                assert (await ask(odd, budget_ms=1)).status_code == status, host


# ---------------------------------------------------------------------------------------------------------- the process


def token_file(folder: Path, *apps: str) -> tuple[Path, dict[str, str]]:
    tokens = {app: new_token() for app in apps}
    file = folder / "tokens.yaml"
    entries = [
        {"sha256": sha256_of(token), "app_id": app, "name": app, "roles": ["emit", "read", "erase"]}
        for app, token in tokens.items()
    ]
    file.write_text(yaml.safe_dump({"tokens": entries}))
    return file, tokens


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "token new --app"),
        (("--insecure-app", "a", "--host", "0.0.0.0"), "127.0.0.1"),
        (("--insecure-app", "a b"), "--app 'a b'"),
        (("--insecure-app", "a", "--host", "192.0.2.1"), "--insecure-app"),
    ],
)
def test_it_does_not_start_without_tokens(stack: Stack, arguments: tuple[str, ...], said: str) -> None:
    done = inside(("run", "gateway", "--port", "0", *arguments), stack.environment)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_what_else_keeps_it_from_starting(stack: Stack, tmp_path: Path) -> None:
    file, _ = token_file(tmp_path, "a")
    with stack.gateway(GRAPHWEFT_GATEWAY_TOKENS=str(file)) as (url, _):
        for arguments, environment, said in (
            (("--port", url.rpartition(":")[2]), {"GRAPHWEFT_GATEWAY_TOKENS": str(file)}, "cannot listen"),
            (("--insecure-app", "a"), {"GRAPHWEFT_GATEWAY_TOKENS": str(file)}, "drop one"),
            ((), {"GRAPHWEFT_GATEWAY_TOKENS": str(tmp_path / "none")}, "cannot be read"),
        ):
            done = inside(("run", "gateway", *arguments), stack.environment | environment)
            assert done.code == 2
            assert said in done.err
    assert "run gateway" in inside(("run", "injection", "--port", "1"), stack.environment).err


async def test_a_changed_file_of_tokens_takes_effect_without_a_restart(stack: Stack, tmp_path: Path) -> None:
    file, tokens = token_file(tmp_path, "a", "b")
    content = file.read_text()
    environment = {"GRAPHWEFT_GATEWAY_TOKENS": str(file)}
    with stack.gateway(**environment) as (url, process):
        async with httpx.AsyncClient(base_url=url, timeout=120) as gateway:

            async def allowed(app: str) -> bool:
                headers = {"Authorization": f"Bearer {tokens[app]}"}
                return (await post(gateway, note("x"), **headers)).status_code == 202

            async def refused() -> bool:
                return not await allowed("a")

            async def faulty() -> bool:
                return "tokens" in (await gateway.get("/readyz")).json()

            assert [await allowed(app) for app in "ab"] == [True, True]
            [*_, second] = yaml.safe_load(content)["tokens"]
            file.write_text(yaml.safe_dump({"tokens": [second]}))
            await until(refused)
            assert await allowed("b")
            assert not await faulty()
            file.write_text("tokens:\n  - {app: a}\n")
            await until(faulty)
            assert str(tmp_path) not in (await gateway.get("/readyz")).text
            assert [await allowed(app) for app in "ab"] == [False, True], "the earlier content stays in use"
            status = await asyncio.to_thread(stack.command("status", "--json", **environment).communicate, timeout=120)
            assert "tokens.yaml:2:6: tokens.0.app: Extra" in json.loads(status[0])["faulty_files"]["gateway_tokens"]
            file.write_text(content)
            await until(lambda: allowed("a"))
            assert not await faulty()
            for gone in (lambda: file.write_text(""), file.unlink, lambda: file.write_text("tokens: []")):
                gone()
                await until(refused)
                assert [await allowed(app) for app in "ab"] == [False, False]
                ready = (await gateway.get("/readyz")).json()
                listed = file.exists() and bool(file.read_text())
                assert ready.get("tokens") == (None if listed else f"{GONE}: no token is valid")
                file.write_text(content)
                await until(lambda: allowed("a"))
                assert await allowed("b")
        process.terminate()
        _, errors = await asyncio.to_thread(process.communicate, timeout=120)
    assert "tokens.yaml:2:6: tokens.0.app" in errors


@pytest.mark.long("2")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_answers_what_is_in_hand(stack: Stack, tmp_path: Path, number: signal.Signals) -> None:
    file, tokens = token_file(tmp_path, "a")
    # Nobody answers on a bus of its own, so a question is in hand for the whole of its budget.
    own = EmbeddedServer(tmp_path / "own")
    await own.start()
    try:
        environment = {"GRAPHWEFT_GATEWAY_TOKENS": str(file), "GRAPHWEFT_BUS_URL": embedded_url(tmp_path / "own")}
        with stack.gateway(**environment) as (url, process):
            headers = {"Authorization": f"Bearer {tokens['a']}"}
            async with (
                httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as asking,
                redis.Redis.from_url(embedded_url(tmp_path / "own")) as raw,
            ):
                assert (await post(asking, note("one"))).status_code == 202
                question = asyncio.create_task(ask(asking, budget_ms=3_000))

                async def asked() -> bool:
                    return bool(await raw.xlen(channels.CONTEXT_REQUESTS))

                await until(asked)
                process.send_signal(number)
                answer = await question
                assert (answer.status_code, answer.json()["reason"]) == (200, "timeout")
            _, errors = await asyncio.to_thread(process.communicate, timeout=120)
            assert (process.returncode, errors) == (0, "")
    finally:
        await own.stop()


async def test_who_sends_no_whole_head_is_not_waited_for(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol_module, "HEAD_S", 0.3)
    file, tokens = token_file(tmp_path, "a")
    for name in [name for name in os.environ if name.startswith("GRAPHWEFT_")]:  # `make soak` has its own
        monkeypatch.delenv(name)
    for name, value in {"GATEWAY_TOKENS": str(file), "BUS_URL": stack.url, "DATA": str(tmp_path)}.items():
        monkeypatch.setenv(f"GRAPHWEFT_{name}", value)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    gateway = asyncio.create_task(
        serving_module.run_gateway(Settings.load(), host="127.0.0.1", port=0, insecure_app=None, ready=ready.set_result)
    )
    async with AsyncExitStack() as ends:
        port = int((await ready).rpartition(":")[2])

        async def connected(*sent: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            ends.callback(writer.close)
            writer.write("".join(sent).encode())
            return reader, writer

        ask = "GET /healthz HTTP/1.1\r\nHost: x\r\n"
        body = json.dumps(note("slow"))
        post = (
            f"POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tokens['a']}\r\nContent-Type: {SINGLE}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        in_hand, slow = await connected(post, body[:10])
        silent, _ = await connected()
        half, _ = await connected(ask)
        second, _ = await connected(ask, "\r\n", ask)
        unread, dripping = await connected(post.replace("Bearer", "None"), body[:10])
        assert (await unread.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401")
        dripping.write(b" ")
        async with asyncio.timeout(120):
            assert [await reader.read() for reader in (silent, half)] == [b"", b""]
            assert (await second.read()).startswith(b"HTTP/1.1 200")
            await unread.read()
            slow.write(body[10:].encode())
            assert (await in_hand.readuntil(b"\r\n")).startswith(b"HTTP/1.1 202"), "a request in hand is not cut off"
    signal.raise_signal(signal.SIGTERM)
    await gateway


async def test_what_is_left_of_a_refused_request_breaks_nothing(stack: Stack, tmp_path: Path) -> None:
    file, tokens = token_file(tmp_path, "a")
    with stack.gateway(GRAPHWEFT_GATEWAY_TOKENS=str(file)) as (url, _):
        async with httpx.AsyncClient(base_url=url, timeout=120) as asking:
            for token, expected in (("no", 401), (tokens["a"], 413)):
                headers = {"Content-Type": SINGLE, "Authorization": f"Bearer {token}"}
                with contextlib.suppress(httpx.WriteError, httpx.ReadError):  # it hung up while we still wrote
                    answer = await asking.post("/v1/events", content=b" " * 5_000_000, headers=headers)
                    assert answer.status_code == expected
            assert (await asking.get("/readyz")).json() == {"bus": "ok", "responder": "ok"}


def test_who_connects_while_a_gateway_starts_is_refused_at_once() -> None:
    """A connection that waited in the queue of the socket would use up the budget of its request."""
    with http_server_module.bound("127.0.0.1", 0) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname())


async def test_an_address_that_another_process_takes_meanwhile_is_named() -> None:
    bound = http_server_module.bound
    with bound("127.0.0.1", 0) as first, bound(*first.getsockname()) as listener:
        first.listen()
        config = http_server_module.server_config(None, connections=3, lifespan="off")
        with pytest.raises(InvalidSettings, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
            await http_server_module.HttpServer(config, lambda: None).serve([listener])


def test_small_answers_are_sent_at_once() -> None:
    with (
        http_server_module.bound("127.0.0.1", 0) as listener,
        _opened(listener),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def _opened(listener: socket.socket) -> socket.socket:
    listener.listen()
    return socket.create_connection(listener.getsockname())


async def test_who_sends_odd_bytes_or_opens_many_connections_is_refused(stack: Stack, tmp_path: Path) -> None:
    file, tokens = token_file(tmp_path, "a")
    environment = {"GRAPHWEFT_GATEWAY_TOKENS": str(file), "GRAPHWEFT_GATEWAY_CONNECTIONS": "3"}
    body = json.dumps(note("smuggled"))
    post = f"POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tokens['a']}\r\nContent-Type: {SINGLE}\r\n"
    odd = [
        f"{post}Content-Length: {len(body)}\r\nTransfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n\r\n",
        f"{post}Content-Length: {len(body)}\r\n\r\n{body}".replace("\r\n", "\n"),
        f"{post}Content-Length:\r\n {len(body)}\r\n\r\n{body}",
        "HEAD /healthz HTTP/1.1\nHost: x\n\n",
        f"{post}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\nX: y\n\n",
        "GET /healthz HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, close\r\n\r\n",
    ]
    with stack.gateway(**environment) as (url, process):
        port = int(url.rpartition(":")[2])

        async def answered(sent: str) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent.encode())
            try:
                return await reader.read()
            finally:
                writer.close()

        for _ in range(20):
            *refused, upgrade = [await answered(sent) for sent in odd]
            assert {answer.partition(b"\r\n")[0] for answer in refused} == {b"HTTP/1.1 400 Bad Request"}
            assert upgrade.startswith(b"HTTP/1.1 200")
        async with AsyncExitStack() as ends:
            for _ in range(3):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                ends.callback(writer.close)
                writer.write(b"GET")
            await until(lambda: told(answered(""), b"GRAPHWEFT_GATEWAY_CONNECTIONS"))
        await until(lambda: told(answered("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), b"ok"))
        process.terminate()
        _, errors = await asyncio.to_thread(process.communicate, timeout=120)
    assert "smuggled" not in await events_of(stack.url, "a")
    lines = errors.splitlines()
    assert len(lines) <= 4, f"one line a minute of each kind: {errors}"
    assert any("Invalid HTTP request" in line for line in lines)
    assert any("connection_refused" in line and "3" in line for line in lines)


async def told(answer: Awaitable[bytes], text: bytes) -> bool:
    try:
        return text in await answer
    except ConnectionError:
        return False


# The schema cannot say that a time is not before 1970 and not more than a day ahead, so other times are not asked.
ONLY_POSSIBLE_TIMES = """
import json, re
import schemathesis

@schemathesis.hook
def filter_case(context, case):
    said = json.dumps([case.body, dict(case.headers or {})], default=str)
    return not any(year < "1971" or year > "2025" for year in re.findall(r'"(\\d{4})-\\d\\d-\\d\\d[Tt ]', said))
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing(stack: Stack, tmp_path: Path) -> None:
    file, tokens = token_file(tmp_path, "fuzzed")
    (tmp_path / "possible_times.py").write_text(ONLY_POSSIBLE_TIMES)
    with stack.gateway(GRAPHWEFT_GATEWAY_TOKENS=str(file)) as (url, process):
        done = subprocess.run(
            [Path(sys.executable).with_name("schemathesis"), "run", f"{url}/openapi.json", "--no-color",
             "-H", f"Authorization: Bearer {tokens['fuzzed']}", "--generation-deterministic",
             "--max-examples", str(SCHEMA_EXAMPLES), "--phases", SCHEMA_PHASES, "--request-timeout", "30"],
            cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
            env=os.environ | {"SCHEMATHESIS_HOOKS": "possible_times", "PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-8_000:]
        assert "No issues found" in done.stdout
        process.terminate()
        _, errors = process.communicate(timeout=120)
    assert "Traceback" not in errors


# ---------------------------------------------------------------------------------------------------------- apps apart

SECRET = "the-other-app-knows"


class Guesses:
    """Requests with a token of one app that try everything to get, or change, what another one has."""

    def __init__(self, seed: int, mine: str, theirs: str, position: str) -> None:
        self._random = random.Random(seed)
        self._mine = mine
        self._theirs = theirs
        self._position = position

    def request(self, number: int) -> dict[str, Any]:
        """Return what ``httpx`` sends."""
        pick = self._random.choice
        headers = {"Authorization": pick([*["Bearer mine"] * 9, "Bearer mine,theirs", "Bearer mine theirs", "Bearer"])}
        for name in ("X-App-Id", "appid", "app_id", "ce-appid", "X-Forwarded-User", "Host"):
            if self._random.random() < 0.1:
                headers[name] = self._app()
        path, body, kind = pick([self._question, self._question, self._event])(number)
        if self._random.random() < 0.1:
            path += f"?app_id={self._app()}&appid={self._theirs}"
        return {"url": path, "content": body, "headers": headers | {"Content-Type": kind}}

    def _app(self) -> str:
        theirs, mine = self._theirs, self._mine
        return self._random.choice(
            [theirs, theirs, mine, f"{mine}/../{theirs}", f"mozaiks_{theirs}", theirs.upper(), f"{theirs}\\u0000",
             f" {theirs}", f"{mine},{theirs}", "*", "", " "]
        )  # fmt: skip

    def _text(self) -> str:
        return self._random.choice([SECRET, self._theirs, "x", "' RETURN 1 //", "n) DETACH DELETE (n", "$context.text"])

    def _value(self) -> Any:
        return self._random.choice([self._text(), self._app(), 1, None, [self._text()], {"app_id": self._app()}])

    def _object(self, pairs: Mapping[str, Any], extra: Sequence[str]) -> str:
        """Return JSON in which keys may be left out, doubled and added, the last of two winning or not."""
        items = [(name, value) for name, value in pairs.items() if self._random.random() < 0.97]
        items += [
            (name, self._app() if "app" in name else self._value()) for name in extra if self._random.random() < 0.15
        ]
        self._random.shuffle(items)
        return "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in items) + "}"

    def _question(self, number: int) -> tuple[str, str, str]:
        question = {
            "agent": self._random.choice(["A", self._text()]), "workflow": "Notes", "chat_id": self._text(),
            "budget_ms": BUDGET_MS, "user_id": self._text(), "explain": self._random.random() < 0.5,
            "context": {name: self._value() for name in ("text", "app_id", "appid", "chat_id")},
            "after": self._random.choice([None, self._position]),
        }  # fmt: skip
        return (
            "/v1/context",
            self._object(question, ["app_id", "app_id", "appid", "reply_to", "id"]),
            "application/json",
        )

    def _event(self, number: int) -> tuple[str, str, str]:
        event = note(f"mine-{number}", chatid=self._random.choice(["c1", self._app() or "c"]))
        event["data"] |= {"appid": self._app(), "context": {"app_id": self._app()}}
        texts = [
            self._object(event, ["appid", "appid", "app_id", "partitionkey", "subject", "gw_retry"])
            for _ in range(self._random.choice([1, 1, 3]))
        ]
        if len(texts) == 1:
            return "/v1/events", texts[0], SINGLE
        return "/v1/events", f"[{','.join(texts)}]", BATCH


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_token_gets_and_changes_nothing_of_another_app(stack: Stack, app_id: str) -> None:
    theirs = f"other-{uuid4().hex[:8]}"
    async with serving(stack.url, tokens_of(mine=app_id, secret=theirs)) as gateway:
        known = {"Authorization": "Bearer secret"}
        written = await post(gateway, [note(f"{SECRET}-{number}") for number in range(20)], BATCH, **known)
        position = written.json()["positions"][-1]
        sure = await gateway.post(
            "/v1/context",
            json={"agent": "A", "workflow": "Notes", "chat_id": "c1", "budget_ms": BUDGET_MS, "after": position},
            headers=known,
        )
        assert SECRET in sure.json()["text"], "what is to be kept apart must be there"
        store = FalkorDBStore(stack.url)
        async with contextlib.aclosing(cast("Any", store)):
            before = await read_digest(store, theirs)
            seed = random.randrange(10**6)
            guesses = Guesses(seed, app_id, theirs, position)
            statuses: Counter[int] = Counter()
            requests = iter([guesses.request(number) for number in range(REQUESTS)])

            async def send() -> None:
                for request in requests:
                    sent = json.dumps(request["content"]) + json.dumps(request["headers"]) + request["url"]
                    answer = await gateway.post(**request)
                    statuses[answer.status_code] += 1
                    # What was guessed may come back (explanations have the parameters), but no note does.
                    leaked = [n for n in range(20) if f"{SECRET}-{n}" in answer.text]
                    assert not leaked, f"seed {seed}: {sent}"

            async with asyncio.TaskGroup() as tasks:
                for _ in range(8):
                    tasks.create_task(send())
            assert sum(statuses.values()) == REQUESTS
            assert statuses.keys() <= {200, 202, 400, 401, 403, 422}
            assert min(statuses[200], statuses[202], statuses[403]) > 0, f"seed {seed}: {statuses}"
            async with contextlib.aclosing(redis_bus(stack.url)) as bus:

                async def applied() -> bool:
                    return not sum(partition.lag for partition in await bus.partitions.status())

                await until(applied)
            for event in await events_on_bus(stack.url):
                if event["source"] == "/t" and str(event["data"].get("text", "")).startswith("mine-"):
                    assert event["appid"] == app_id, f"seed {seed}"
            assert await read_digest(store, theirs) == before, f"seed {seed}"


# ------------------------------------------------------------------------------------------------- hostile requests

ASKED = (
    RULES
    + """
      - id: recalled
        search: {memory: {user_id: $workflow.user_id}, query: $context.question}
        inject_as: recalled
      - id: facts
        graphrag: {query: $context.question, memory: {user_id: $workflow.user_id}, search: {index_type: fulltext}}
        inject_as: facts
"""
)
EVERYTHING = {
    "GRAPHWEFT_EMBEDDER": "hash:64", "GRAPHWEFT_MEMORY_SUMMARISE_AFTER": "6", "GRAPHWEFT_MEMORY_SUMMARISE_KEEP": "2",
    "GRAPHWEFT_MEMORY_KEEP_COUNT": "200", "GRAPHRAG_ENABLED": "true",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_no_request_stops_a_gateway_with_all_features(tmp_path: Path) -> None:
    """Whatever is sent: no answer of 500 and above, no dead process, no defect in a log, and no lag at the end."""
    stack = Stack(tmp_path)
    (tmp_path / "rules/Notes/graph_injection.yaml").write_text(ASKED)
    tokens = {name: new_token() for name in ("all", "emit", "read", "other")}
    entries = [
        {"sha256": sha256_of(token), "app_id": "b" if name == "other" else "a", "name": name, "roles": roles}
        for (name, token), roles in zip(tokens.items(), (["admin"], ["emit"], ["read"], ["admin"]), strict=True)
    ]
    (tmp_path / "tokens.yaml").write_text(yaml.safe_dump({"tokens": entries}))
    (tmp_path / "apps.yaml").write_text("apps: {b: {workflows: [Other]}}")
    audit = tmp_path / "audit.jsonl"
    environment = EVERYTHING | {"GRAPHWEFT_APPS": str(tmp_path / "apps.yaml")}
    with (tmp_path / "up.log").open("wb") as log:
        up = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "graphweft_workers.cli", "up", env=stack.environment | environment, cwd=tmp_path,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        try:
            assert b"graphweft is up" in await cast("Any", up.stdout).readline(), (tmp_path / "up.log").read_text()
            of_gateway = {"GRAPHWEFT_GATEWAY_TOKENS": str(tmp_path / "tokens.yaml"), "GRAPHWEFT_AUDIT_LOG": str(audit)}
            with stack.gateway(**environment, **of_gateway) as (url, process):
                statuses = await _send_mutated(url, Sender(SEED, tokens), MUTATED)
                assert process.poll() is None
                said = (tmp_path / "up.log").read_text()[-6_000:]
                assert all(status < 500 for _, status in statuses), f"seed {SEED}: {statuses}\n{said}"
                assert {path for path, status in statuses if status < 300} >= {
                    "/v1/events", "/v1/context", "/v1/traces", "/messages", "/search",
                }  # fmt: skip
                settings = Settings.model_construct(embedder="hash:64", memory_summarise_after=6)
                for group in (channels.MUTATION_GROUP, *features.groups(settings)):
                    async with contextlib.aclosing(redis_bus(stack.url, group=group)) as bus:

                        async def applied(bus: Any = bus) -> bool:
                            return not sum(partition.lag for partition in await bus.partitions.status())

                        await until(applied)
                        letters = Counter(letter.reason for letter in await bus.dead_letters.read(limit=10_000))
                async with httpx.AsyncClient(base_url=url, timeout=120) as gateway:
                    assert (await gateway.get("/readyz")).json() == {"bus": "ok", "responder": "ok"}
                process.terminate()
                _, errors = await asyncio.to_thread(process.communicate, timeout=120)
            assert up.returncode is None
        finally:
            with contextlib.suppress(ProcessLookupError):
                up.terminate()
            await up.wait()
    assert "internal_error" not in letters, f"seed {SEED}: {letters}"
    logs = errors + (tmp_path / "up.log").read_text()
    assert "Traceback" not in logs, f"seed {SEED}: {logs[-6_000:]}"
    assert len(errors.splitlines()) < 200, "what peers cause is not a line each"
    assert len(audit.read_text().splitlines()) > MUTATED // 2


async def _send_mutated(url: str, sender: Sender, count: int) -> Counter[tuple[str, int]]:
    """Send requests, eight at a time; return how often each path had each status."""
    statuses: Counter[tuple[str, int]] = Counter()
    requests = (sender.request() for _ in range(count))
    port = int(url.rpartition(":")[2])

    async def send(http: httpx.AsyncClient) -> None:
        for request in requests:
            path = request.path.partition("?")[0]
            if request.raw is not None:
                statuses[path, await _status_of(port, request.raw)] += 1
                continue
            headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in request.headers.items()]
            try:
                answer = await http.request(request.method, path, content=request.body, headers=headers)
            except (httpx.LocalProtocolError, UnicodeError):  # the client itself refuses to send it
                continue
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):  # the gateway hung up
                statuses[path, 0] += 1
                continue
            statuses[path, answer.status_code] += 1

    async with httpx.AsyncClient(base_url=url, timeout=120) as http, asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(send(http))
    return statuses


async def _status_of(port: int, sent: bytes) -> int:
    """Send bytes over a connection of their own; return the status of the answer, or 0 without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        writer.write_eof()
        line = (await reader.read(64)).split(b" ")
        return int(line[1]) if len(line) > 1 and line[0].startswith(b"HTTP/") else 0
    except OSError:  # the gateway hung up first
        return 0
    finally:
        writer.close()
