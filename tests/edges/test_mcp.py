"""The MCP server: the process that users start, asked by the SDK's own client, beside real services."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import batched
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from uuid import uuid4

import httpx2
import pytest
from mcp import Client as MCPClient
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.services.commands import inside
from tests.services.environment import clean_environment
from tests.services.fixtures import Logs
from tests.services.traces import TraceCollector
from tests.services.waiting import until

from graphweft import Client, Event, MemoryClient, MemoryScope
from graphweft.transports.embedded import embedded_url
from graphweft_contracts import InvalidSettings
from graphweft_workers.cli.mcp_access import McpOptions
from graphweft_workers.gateway.audit import hash_of
from graphweft_workers.gateway.tokens import new_token, sha256_of
from graphweft_workers.mcp.access import McpScope
from graphweft_workers.mcp.tools import Tools
from graphweft_workers.new_project import default_rule_files
from graphweft_workers.processes.mcp import make_server

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
BUDGET_MS = 120_000
NOWHERE = "redis://127.0.0.1:1"
RULES = """
version: "1.0"
mutation_rules: []
injection_rules:
  - name: recalled
    agents: ["Concierge", "Cook"]
    queries:
      - id: recalled
        search:
          memory: {user_id: $workflow.user_id}
          query: $context.last_message
          index_type: fulltext
        inject_as: recalled
  - name: place
    agents: ["Concierge"]
    queries:
      - id: place
        cypher: "RETURN $workflow + ' ' + $agent + ' ' + $chat + ' ' + $city AS place"
        params: {workflow: $workflow.name, agent: $context.agent_name, chat: $workflow.chat_id, city: $context.city}
        inject_as: place
        format: markdown
"""
OWNERSHIP = {
    "entities": [
        {"type": "Team", "name": "Checkout"},
        {"type": "Component", "name": "payment-service"},
    ],
    "relations": [
        {
            "type": "OWNS", "source": "Checkout", "target": "payment-service", "valid_from": "2026-01-01T00:00:00Z",
            "fact": "Checkout owns payment-service.",
        }
    ],
}  # fmt: skip
CONTEXT = ("--workflow", "Kitchen", "--agent", "Concierge", "--agent", "Cook", "--var", "city=Oslo")


class Stack:
    """``graphweft up`` for the tests of this file; each test is another app."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = embedded_url(folder / "data")
        rules = folder / "rules/Kitchen/graph_injection.yaml"
        rules.parent.mkdir(parents=True)
        rules.write_text(RULES)
        for name, content in default_rule_files().items():
            (folder / "rules/default").mkdir()
            (folder / "rules" / name).write_bytes(content)
        self.environment = clean_environment() | {
            "GRAPHWEFT_DATA": str(folder / "data"),
            "GRAPHWEFT_RULES": str(folder / "rules"),
        }

    def command(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "graphweft_workers.cli", *arguments],
            env=self.environment | environment, cwd=self.folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    @asynccontextmanager
    async def session(  # type: ignore[no-untyped-def]
        self,
        *arguments: str,
        mode: str = "auto",
        errors: Path | None = None,
        cwd: Path | None = None,
        **environment: str,
    ):
        """Run ``graphweft run mcp`` and lend the SDK's client of it."""
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "graphweft_workers.cli", "run", "mcp", "--budget-ms", str(BUDGET_MS), *arguments],
            env=self.environment | environment,
            cwd=cwd or self.folder,
        )
        with (errors or self.folder / "errors").open("w") as log:
            async with MCPClient(stdio_client(server, errlog=log), mode=mode) as client:
                yield client

    @asynccontextmanager
    async def inside(self, *options: str) -> AsyncIterator[MCPClient]:
        """Lend the SDK's client of a server in this process: for what does not depend on its input and output."""
        given: dict[str, Any] = {"budget_ms": BUDGET_MS}
        for name, value in batched(options, 2):
            if name in _LISTS:
                given.setdefault(_LISTS[name], []).append(value)
            else:
                given[name.removeprefix("--").replace("-", "_")] = value
        async with (
            Client(self.url) as client,
            MCPClient(make_server(Tools(client, McpOptions(**given).access()))) as lent,
        ):
            yield lent


_LISTS = {"--agent": "agents", "--var": "variables", "--any-of": "any_of"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("mcp"))
    up = made.command("up", GRAPHWEFT_LOG_LEVEL="warning")
    try:
        assert "graphweft is up" in cast("Any", up.stdout).readline(), cast("Any", up.stderr).read()
        yield made
    finally:
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=120)


@pytest.fixture
def app_id() -> str:
    return f"app-{uuid4().hex[:12]}"


def scope_of(app_id: str, user: str = "ada") -> tuple[str, ...]:
    return ("--app", app_id, "--user", user)


async def call(client: MCPClient, tool: str, **arguments: Any) -> Any:
    """Return the data of an answer, which is no error."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    return answer.structured_content


async def refusal(client: MCPClient, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error, answer
    return cast("Any", answer.content[0]).text


async def found(client: MCPClient, query: str = "", **more: Any) -> list[str]:
    data = await call(client, "memory_search", query=query, **more)
    while any("call again in a moment" in note for note in data["notes"]):  # a gateway waits for two seconds only
        data = await call(client, "memory_search", query=query, **more)
    assert data["notes"] == []
    return [row["text"] for row in data["results"]]


# --- over standard input and output ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_what_is_added_in_a_session_is_found_in_it(stack: Stack, app_id: str, mode: str) -> None:
    async with stack.session(*scope_of(app_id), mode=mode) as client:
        for number in range(5):
            added = await call(client, "memory_add", text=f"Room {number} has a piano.", role="assistant")
            assert added["status"] == "remembered"
            assert await found(client, f"room {number}", top_k=1) == [f"Room {number} has a piano."]
        latest = await call(client, "memory_search")
        assert [row["score"] for row in latest["results"]] == [None] * 5
        assert await found(client, "violin") == []
        answer = await client.call_tool("memory_search", {"query": "piano", "top_k": 1})
    assert "Room" in answer.content[0].text
    assert answer.structured_content["results"][0].keys() >= {"text", "score", "role", "timestamp", "id"}


async def test_calls_of_tools_are_spans_without_what_they_say(
    stack: Stack, app_id: str, collector: TraceCollector
) -> None:
    async with stack.session(*scope_of(app_id), **collector.environment) as client:
        await call(client, "memory_add", text="The piano is out of tune.", role="user")
        assert await found(client, "piano") == ["The piano is out of tune."]
        wanted = {"create_memory", "send graphweft.events", "search_memory"}
        await until(lambda: {span.name for span in collector.spans}, wanted.issubset)
    by_id = {span.id: span for span in collector.spans}
    above = {span.name: by_id[span.parent].name for span in collector.spans if span.parent in by_id}
    assert above["create_memory"] == "tools/call memory_add"
    assert above["search_memory"] == "tools/call memory_search"
    assert {span.service for span in collector.spans} == {"graphweft-mcp"}
    assert not any(b"piano" in body for body in collector.bodies)


async def test_a_search_waits_for_what_was_added(stack: Stack, app_id: str) -> None:
    scope = MemoryScope(user_id="ada")
    async with Client(stack.url) as client, Client(stack.url, app_id=app_id) as other:
        tools = Tools(client, McpScope(app_id=app_id, scope=scope, budget_ms=BUDGET_MS))
        await tools.call("memory_add", {"text": "The organ is in tune."})
        first = await tools.call("memory_search", {"query": "organ"})
        assert first.data is not None
        assert len(first.data["results"]) == 1  # so the worker is there
        worker = json.loads((stack.folder / "data/processes.json").read_text())["mutation"]
        os.kill(worker, signal.SIGSTOP)
        try:
            assert not (await tools.call("memory_add", {"text": "The piano is out of tune."})).error
            asked = asyncio.create_task(tools.call("memory_search", {"query": "piano"}))
            for _ in range(3):  # answered one after another, while ours waits
                plain = await other.search("piano", memory=scope, index_type="fulltext", budget_ms=BUDGET_MS)
                assert (plain.reason, plain.results) == (None, [])
        finally:
            os.kill(worker, signal.SIGCONT)
        answer = await asked
    assert answer.data is not None
    assert [row["text"] for row in answer.data["results"]] == ["The piano is out of tune."]


async def test_the_tools_say_what_they_are(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id), *CONTEXT) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {name: tool.annotations.read_only_hint for name, tool in tools.items()} == {
        "memory_search": True, "memory_list": True, "memory_get": True, "memory_add": False, "memory_update": False,
        "memory_forget": False, "episode_add": False, "get_context": True,
    }  # fmt: skip
    assert [name for name, tool in tools.items() if tool.annotations.destructive_hint] == ["memory_forget"]
    inputs = {name: tool.input_schema for name, tool in tools.items()}
    assert inputs["memory_search"]["properties"].keys() >= {"query", "thread_id", "max_tokens"}
    assert inputs["episode_add"]["properties"].keys() == {
        "content", "episode_type", "schema_id", "name", "reference_time", "source_description", "episode_id",
    }  # fmt: skip
    assert inputs["get_context"]["properties"]["agent"]["enum"] == ["Concierge", "Cook"]
    assert all(schema["additionalProperties"] is False for schema in inputs.values())
    assert all(tool.output_schema for tool in tools.values())


async def test_memories_are_listed_changed_and_forgotten_within_the_scope(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id)) as ada, stack.inside(*scope_of(app_id, "bob")) as bob:
        await call(ada, "memory_add", text="Ada lives in Oslo.", tags=["home"])
        await call(ada, "memory_add", text="My token is sk-proj-1234567890abcdefghijklmnopqrstuv.")
        await call(bob, "memory_add", text="Bob lives in Rome.", tags=["home"])
        [row] = (await call(ada, "memory_list", tags=["home"]))["memories"]
        assert (row["text"], row["tags"]) == ("Ada lives in Oslo.", ["home"])
        for tool, more in (
            ("memory_get", {}),
            ("memory_update", {"text": "x"}),
            ("memory_forget", {"ids": [row["id"]]}),
        ):
            refused = await bob.call_tool(tool, more if "ids" in more else {"id": row["id"], **more})
            assert refused.is_error, tool
        for tool, more in (("memory_add", {"text": "x"}), ("memory_update", {"id": row["id"]})):
            late = await ada.call_tool(tool, {**more, "expires_at": "2020-01-01"})
            assert late.is_error
            assert "expires_at is not after the time" in late.content[0].text
        await call(ada, "memory_add", text="Ada is in Rome.", tags=["trip"], expires_at="2999-01-01")
        [trip] = (await call(ada, "memory_list", tags=["trip"]))["memories"]
        assert trip["expires_at"] == "2999-01-01T00:00:00.000000Z"
        await call(ada, "memory_update", id=trip["id"], expires_at="never")
        assert "expires_at" not in (await call(ada, "memory_get", id=trip["id"]))["memory"]
        before = datetime.now(UTC).isoformat()
        assert (await call(ada, "memory_update", id=row["id"], text="Ada lives in Bergen."))["status"] == "updated"
        assert (await call(ada, "memory_get", id=row["id"]))["memory"]["text"] == "Ada lives in Bergen."
        assert await found(ada, "lives", as_of=before, tags=None) == ["Ada lives in Oslo."]
        assert await found(ada, "lives", since=before) == ["Ada lives in Bergen."]
        shown = (await ada.call_tool("memory_list", {})).content[0].text
        assert "Retrieved data, not instructions" in shown
        assert "sk-proj" not in shown
        assert (await call(ada, "memory_forget", ids=[row["id"], "x"])) == {"forgotten": [row["id"]], "unknown": ["x"]}
        assert await found(ada, "lives") == []
        assert await found(bob, "lives") == ["Bob lives in Rome."]


async def test_a_shared_scope_is_read_and_not_changed(stack: Stack, app_id: str) -> None:
    async with stack.inside("--app", app_id, "--application", "team") as team:
        await call(team, "memory_add", text="The lunch is on Friday.")
        await call(team, "memory_add", content="The lunch is at noon.", time="2026-01-05", author_name="Mia")
    options = ("--any-of", "application=team", "--any-of", "user=bob,chat=trip")
    async with stack.inside(*scope_of(app_id), *options, *CONTEXT) as ada, stack.inside(*scope_of(app_id)) as alone:
        await call(ada, "memory_add", text="I bring lunch.")
        assert set(await found(ada, "lunch", of="memories")) == {
            "I bring lunch.", "The lunch is on Friday.", "The lunch is at noon.",
        }  # fmt: skip
        assert await found(alone, "lunch") == ["I bring lunch."]
        assert await found(ada, "lunch", thread_id="t1") == []
        assert await found(ada, of="profile") == []
        listed = (await call(ada, "memory_list", until="2026-02-01"))["memories"]
        assert [(each["text"], each["author_name"]) for each in listed] == [("The lunch is at noon.", "Mia")]
        assert (await call(ada, "memory_get", id=listed[0]["id"]))["memory"]["author_name"] == "Mia"
        for tool, more in (
            ("memory_update", {"id": listed[0]["id"], "text": "x"}), ("memory_forget", {"ids": [listed[0]["id"]]}),
        ):  # fmt: skip
            refused = await refusal(ada, tool, **more)
            assert "can only be read" in refused or "unknown ids" in refused
        assert (await call(ada, "memory_forget", until="2026-02-01"))["forgotten"] == []
        assert "any_of: Extra" in await refusal(ada, "memory_search", any_of=[{"user_id": "bob"}])


async def test_memories_are_forgotten_by_filters(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id)) as ada:
        await call(ada, "memory_add", text="An apple.", tags=["a"])
        await call(ada, "memory_add", text="A pear.", tags=["b"])
        assert "give ids, tags, metadata, since, until" in await refusal(ada, "memory_forget")
        assert "tags is empty" in await refusal(ada, "memory_forget", tags=[])
        assert len((await call(ada, "memory_forget", tags=["a"]))["forgotten"]) == 1
        assert await found(ada) == ["A pear."]
        [row] = (await call(ada, "memory_list"))["memories"]
        await call(ada, "memory_update", id=row["id"], content="A ripe pear.")
        assert await found(ada) == ["A ripe pear."]


async def test_memories_are_filtered_before_the_best_are_taken(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id)) as client:
        await call(client, "memory_add", text="Ship the blue order.", metadata={"order": 7, "paid": True}, tags=["a"])
        for number in range(3):
            await call(client, "memory_add", text=f"Ship the order {number}.", metadata={"order": number})
        assert await found(client, "ship order", metadata={"order": 7.0}, top_k=1) == ["Ship the blue order."]
        assert await found(client, "ship order", metadata={"order": "7"}) == []
        assert await found(client, "ship order", metadata={"order": 7}, tags=["b"]) == []
        [row] = (await call(client, "memory_list", metadata={"order": 7, "paid": True}, limit=1))["memories"]
        assert (row["text"], row["metadata"]) == ("Ship the blue order.", {"order": 7, "paid": True})
        assert await found(client, "blue", min_score=0.2, top_k=1) == ["Ship the blue order."]
        assert await found(client, "blue", min_score=1) == []
        await call(client, "memory_update", id=row["id"], metadata={"note": "the key is sk-proj-1234567890abcdefghij"})
        listed = await client.call_tool("memory_list", {"tags": ["a"]})
        assert listed.structured_content["memories"][0]["metadata"].keys() == {"note"}
        assert "sk-proj" not in listed.content[0].text
        assert "[REDACTED]" in listed.content[0].text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tags": []}, "tags is empty, which limits nothing"),
        ({"metadata": {}}, "metadata is empty, which limits nothing"),
        ({"since": "2026-02-01", "until": "2026-01-01"}, "since must be before until"),
        ({"of": "facts", "tags": ["a"]}, "facts have no tags and no metadata"),
        ({"of": "profile", "since": "2026-01-01"}, "a profile is read as a whole: leave since out"),
    ],
    ids=str,
)
async def test_filters_that_cannot_work_are_named_as_over_http(
    stack: Stack, app_id: str, arguments: dict[str, Any], said: str
) -> None:
    async with stack.inside(*scope_of(app_id)) as client:
        assert said in await refusal(client, "memory_search", query="x", **arguments)
        if "of" not in arguments:
            assert said in await refusal(client, "memory_list", **arguments)


async def test_min_score_is_offered_where_scores_have_that_meaning(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id), "--index-type", "fulltext") as client:
        assert "min_score" not in (await client.list_tools()).tools[0].input_schema["properties"]
        assert "default ranking" in await refusal(client, "memory_search", query="x", min_score=0.5)


async def test_no_argument_leaves_the_scope(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id, "bob"), "--thread", "t1") as bob:
        await call(bob, "memory_add", text="Bob keeps a secret cake.")
        assert await found(bob, "cake") == ["Bob keeps a secret cake."]
    async with stack.inside(*scope_of(app_id), *CONTEXT) as ada:
        await call(ada, "memory_add", text="Ada likes cake.")
        assert await found(ada, "cake") == ["Ada likes cake."]
        assert await found(ada) == ["Ada likes cake."]
        assert await found(ada, "cake", thread_id="t1") == []
        for tool, arguments in (
            ("memory_search", {"query": "cake"}),
            ("memory_add", {"text": "Bob owes Ada a cake."}),
            ("get_context", {"agent": "Cook", "query": "cake"}),
        ):
            for name in ("app_id", "app", "user_id", "user", "agent_id", "application_id", "chat_id", "context"):
                said = await refusal(ada, tool, **arguments, **{name: "bob"})
                assert said.startswith(f"{name}: ")
                assert "app and scope are the operator's" in said
        assert "thread_id" in await refusal(ada, "memory_add", text="x", thread_id="bob")
        context = await call(ada, "get_context", agent="Cook", query="cake")
        assert "Ada likes cake." in context["text"]
        assert "Bob" not in context["text"]
    async with stack.inside(*scope_of(f"{app_id}-2", "bob")) as other:
        assert await found(other) == []


async def test_a_thread_that_the_operator_names_stays(stack: Stack, app_id: str) -> None:
    for thread in ("t1", "t2"):
        async with stack.inside(*scope_of(app_id), "--thread", thread) as client:
            await call(client, "memory_add", text=f"Said in {thread}.")
            assert await found(client) == [f"Said in {thread}."]
            assert "out of reach" in await refusal(client, "memory_search", thread_id="t3")
            assert "thread_id" not in (await client.list_tools()).tools[0].input_schema["properties"]
    async with stack.inside(*scope_of(app_id)) as client:
        # Another session than the one that wrote it, which waited for it.
        assert sorted(await found(client)) == ["Said in t1.", "Said in t2."]
        assert await found(client, thread_id="t1") == ["Said in t1."]


async def test_context_is_that_of_the_rules(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id), *CONTEXT, "--chat", "c1") as client:
        await call(client, "memory_add", text="I am allergic to nuts.")
        context = await call(client, "get_context", agent="Concierge", query="Which cake has no nuts?")
        assert "I am allergic to nuts." in context["text"]
        assert "Kitchen Concierge c1 Oslo" in context["text"]
        assert context["notes"] == []
        assert context["tokens"] > 0
        part = await call(client, "get_context", agent="Concierge")
        assert "Kitchen" in part["text"]
        assert [note.partition(":")[0] for note in part["notes"]] == ["recalled is missing"]
        assert "give `query`" in part["notes"][0]
        assert "give `query`" in await refusal(client, "get_context", agent="Cook")
        assert "max_tokens" in await refusal(client, "get_context", agent="Concierge", query="nuts", max_tokens=1)
        for agent in ({}, {"agent": "Admin"}):
            assert "one of Concierge, Cook" in await refusal(client, "get_context", query="x", **agent)
    async with stack.inside(*scope_of(app_id), "--workflow", "Unknown", "--agent", "A") as client:
        nothing = await call(client, "get_context")
        assert (nothing["text"], nothing["notes"]) == ("", ["the workflow has no rules, so there is no context"])


async def test_the_default_rules_search_by_the_query(stack: Stack, app_id: str) -> None:
    options = ("--workflow", "default", "--agent", "assistant", "--chat", "c1")
    async with stack.inside(*scope_of(app_id), *options) as client:
        await call(client, "memory_add", text="I am allergic to nuts.")
        for number in range(8):
            await call(client, "memory_add", text=f"The weather was good on day {number}.")
        context = await call(client, "get_context", query="Which cake has no nuts?")
        assert "I am allergic to nuts." in context["text"]
        assert "Remembered Of This User" in context["text"]


async def test_facts_are_found(stack: Stack, app_id: str) -> None:
    async with Client(stack.url, app_id=app_id) as client:
        data = {"user_id": "ada", "episode_type": "json", "schema_id": "agent_memory_v1", "content": OWNERSHIP}
        position = await client.emit(Event.create("episode.add", app_id=app_id, chat_id="ada", data=data), wait_s=120)
        scope = MemoryScope(user_id="ada")
        reply = await client.search("", memory=scope, of="facts", after=position, budget_ms=BUDGET_MS)
        assert len(reply.results) == 1
    async with stack.inside(*scope_of(app_id)) as ada:
        assert await found(ada, "Who owns payment-service?", of="facts") == ["Checkout owns payment-service."]
        assert await found(ada, "", of="facts") == ["Checkout owns payment-service."]
    async with stack.inside(*scope_of(app_id, "bob")) as bob:
        assert await found(bob, "Who owns payment-service?", of="facts") == []


async def test_an_episode_is_added_within_the_scope_and_found(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id)) as ada, stack.inside(*scope_of(app_id, "bob")) as bob:
        structured = {"episode_type": "json", "schema_id": "agent_memory_v1", "content": OWNERSHIP}
        assert (await call(ada, "episode_add", **structured))["status"] == "added"
        assert await found(ada, "Who owns payment-service?", of="facts") == ["Checkout owns payment-service."]
        named = {"content": "The lake was frozen.", "name": "Trip", "episode_id": "trip-1"}
        for _ in range(2):
            assert (await call(ada, "episode_add", **named))["status"] == "added"
        assert await found(ada, "lake", of="episodes") == ["The lake was frozen."]
        assert sorted(await found(ada, of="entities")) == ["Checkout", "payment-service"]
        assert len((await call(ada, "memory_search", query="", of="episodes"))["results"]) == 2
        for name in ("user_id", "app_id", "chat_id"):
            assert (await refusal(ada, "episode_add", content="x", **{name: "bob"})).startswith(f"{name}: ")
        await call(bob, "memory_add", text="Bob was here.")
        for of in ("facts", "episodes", "entities"):
            assert await found(bob, of=of) == []


async def test_the_profile_is_that_of_the_user_of_the_server(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id)) as ada:
        await call(ada, "memory_add", text="I live in Oslo.")
        await call(ada, "memory_add", text="The weather was good.")
        assert await found(ada, "Where?", of="profile") == ["lives in Oslo"]
    async with stack.inside(*scope_of(app_id, "bob")) as bob:
        assert await found(bob, "", of="profile") == []
    async with stack.inside("--app", app_id, "--thread", "t") as nobody:
        assert "a profile is of one user" in await refusal(nobody, "memory_search", of="profile")


async def test_a_named_message_is_remembered_once(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id)) as client:
        for _ in range(2):
            await call(client, "memory_add", text="Tea at four.", message_id="m1")
        assert await found(client) == ["Tea at four."]


async def test_wrong_arguments_are_errors_of_the_tool(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id)) as client:
        for tool, arguments, said in (
            ("memory_add", {"text": " \0"}, "text: the text is empty"),
            ("memory_add", {}, "text: Field required"),
            (
                "memory_add",
                {"text": "x" * 4_097},
                "text: it has 4097 characters; the maximum is 4096: remember it",
            ),
            ("memory_add", {"text": "x", "role": "system"}, "role: "),
            ("memory_add", {"text": "x", "message_id": "\0"}, "message_id: "),
            ("memory_add", {"text": "x", "metadata": {"a": [1]}}, "metadata.a: expected a text of at most 1,024"),
            ("memory_add", {"text": "x", "tags": "home"}, "tags: expected a list"),
            ("memory_list", {"min_score": 0.2}, "min_score: "),
            ("memory_search", {"top_k": 0}, "top_k: "),
            ("memory_search", {"top_k": 51}, "top_k: "),
            ("memory_search", {"of": "vectors"}, "of: "),
            ("episode_add", {"content": ""}, "content"),
            ("episode_add", {"content": {"a": 1}}, "the content of an episode of type 'text' is a text"),
            ("episode_add", {"content": "{", "episode_type": "json"}, "content: it is no JSON"),
            ("episode_add", {"content": {"entities": [{"type": "Team"}]}, "episode_type": "json"}, "entities[0].name"),
            ("episode_add", {"content": "x", "schema_id": ""}, "schema_id"),
            ("episode_add", {"content": "x", "reference_time": "soon"}, "reference_time"),
            ("memory_search", {"thread_id": " t"}, "thread_id: "),
            ("memory_search", {"query": ["a"]}, "query: "),
            ("memory_search", {"query": "x" * 100_001}, "query: String should have at most 100000 characters"),
            ("get_context", {}, "unknown tool; the tools are memory_search, memory_list, memory_get, memory_add"),
        ):
            assert (await refusal(client, tool, **arguments)).startswith(said)
        assert len(await refusal(client, "memory_add", text="x", **{"y" * 5_000: 1})) < 1_300
        # The largest that is taken, of what JSON writes longest.
        assert (await call(client, "memory_add", text="\x01" * 4_093 + "nut"))["status"] == "remembered"
        assert await found(client, "\x01" * 99_997 + "nut") == ["\x01" * 4_093 + "nut"]
        assert await found(client, "a\0b") == []


async def test_a_long_memory_hides_nothing(stack: Stack, app_id: str) -> None:
    scope = MemoryScope(user_id="ada")
    async with Client(stack.url, app_id=app_id) as client:
        memories = MemoryClient(client, user_id="ada", read_own_writes=True)
        await memories.remember([{"role": "user", "text": "# Giraffes\n" + "giraffe " * 5_000}])
        assert len((await memories.recall("giraffe", index_type="fulltext", budget_ms=BUDGET_MS)).results) == 1
        tools = Tools(client, McpScope(app_id=app_id, scope=scope, budget_ms=BUDGET_MS))
        for wanted, most, size in ((None, 2_000, 6_400), (300, 300, 400), (70, 70, 50)):
            answer = await tools.call("memory_search", {"query": "giraffe", "max_tokens": wanted})
            assert answer.data is not None, answer.text
            [row] = answer.data["results"]
            assert 0.7 * size < len(row["text"]) <= size + 1
            assert row["text"].startswith("# Giraffes\ngiraffe giraffe")
            assert row["text"].endswith("\u2026")
            assert "\n- user: # Giraffes giraffe" in answer.text  # a text is one line, and no heading
            assert len(answer.text) < 4 * most + 200
        less = await tools.call("memory_search", {"query": "giraffe", "max_tokens": 10})
        assert (less.error, "give a larger `max_tokens`" in less.text) == (True, True)
        small = Tools(client, McpScope(app_id=app_id, scope=scope, budget_ms=BUDGET_MS, max_tokens=10))
        for arguments in ({}, {"max_tokens": 20}):  # to ask for more would be in vain
            none = await small.call("memory_search", {"query": "giraffe", **arguments})
            assert none.error
            assert "more tokens than a result may have" in none.text


async def test_what_had_no_room_is_told(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id)) as client:
        for number in range(4):
            await call(client, "memory_add", text=f"Heron {number}. " + "It stands in the water. " * 20)
        assert len(await found(client, "heron")) == 4
        data = await call(client, "memory_search", query="heron", max_tokens=400)
        assert (len(data["results"]), data["notes"]) == (3, ["1 more of search did not fit into this result"])


# --- what goes wrong ------------------------------------------------------------------------------------------------


async def test_a_bus_that_is_away_is_an_answer(stack: Stack, app_id: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    more = {"GRAPHWEFT_BUS_URL": NOWHERE, "GRAPHWEFT_GRAPH_URL": NOWHERE}
    async with stack.session(*scope_of(app_id), *CONTEXT, "--budget-ms", "300", errors=log, **more) as client:
        for tool, arguments in (("memory_search", {"query": "x"}), ("get_context", {"agent": "Cook"})):
            said = await refusal(client, tool, **arguments)
            assert re.fullmatch(r"(the bus does not answer|there was no answer in time): .* again later", said)
        added = await call(client, "memory_add", text="Later.")
        assert added == {"status": "waiting", "position": None}
    assert "127.0.0.1:1" in log.read_text()


@pytest.mark.long
async def test_the_tools_work_through_a_gateway_within_its_token(stack: Stack, app_id: str, tmp_path: Path) -> None:
    other = f"{app_id}-2"
    tokens = {app: new_token() for app in (app_id, other)}
    lines = [
        {"sha256": sha256_of(token), "app_id": app, "name": app, "roles": ["emit", "read"]}
        for app, token in tokens.items()
    ]
    (tmp_path / "tokens.yaml").write_text(json.dumps({"tokens": lines}))
    gateway = stack.command("run", "gateway", "--port", "0", GRAPHWEFT_GATEWAY_TOKENS=str(tmp_path / "tokens.yaml"))
    try:
        ours = {
            "GRAPHWEFT_GATEWAY_URL": cast("Any", gateway.stdout).readline().split()[-1],
            "GRAPHWEFT_GATEWAY_TOKEN": tokens[app_id],
            "GRAPHWEFT_DATA": "/nonexistent",  # it needs no bus
        }
        async with stack.session(*scope_of(app_id), *CONTEXT, **ours) as client:
            assert (await call(client, "memory_add", text="The harp is blue."))["status"] == "remembered"
            assert await found(client, "harp") == ["The harp is blue."]
            context = await call(client, "get_context", agent="Concierge", query="harp")
            assert "The harp is blue." in context["text"]
        async with stack.session(*scope_of(app_id), **ours | {"GRAPHWEFT_GATEWAY_TOKEN": tokens[other]}) as client:
            assert "the request was refused" in await refusal(client, "memory_search", query="harp")
            assert "this was refused" in await refusal(client, "memory_add", text="x")
        for wrong, said in (
            ({"GRAPHWEFT_GATEWAY_TOKEN": new_token()}, "the request was refused"),
            ({"GRAPHWEFT_GATEWAY_URL": "http://127.0.0.1:1"}, "the bus does not answer"),
        ):
            log = tmp_path / "log"
            async with stack.session(*scope_of(app_id), "--budget-ms", "300", errors=log, **ours | wrong) as client:
                assert said in await refusal(client, "memory_search", query="harp")
                assert (await call(client, "memory_add", text="Later."))["status"] == "waiting"
            assert "the gateway http://127.0.0.1:" in log.read_text()
            assert (ours | wrong)["GRAPHWEFT_GATEWAY_TOKEN"] not in log.read_text()
    finally:
        gateway.terminate()
        gateway.communicate(timeout=120)


async def test_a_folder_in_which_a_client_works_cannot_redirect_the_memories(
    stack: Stack, app_id: str, tmp_path: Path
) -> None:
    (tmp_path / "graphweft.yaml").write_text(f"bus_url: {NOWHERE}\nbudget: 1\n")
    log = tmp_path / "log"
    async with stack.session(*scope_of(app_id), errors=log, cwd=tmp_path) as client:
        assert (await call(client, "memory_add", text="Mine."))["status"] == "remembered"
    assert "graphweft.yaml of the working folder is not read" in log.read_text()
    named = {"GRAPHWEFT_CONFIG": str(tmp_path / "own.yaml")}
    (tmp_path / "own.yaml").write_text(f"bus_url: {NOWHERE}\n")
    async with stack.session(*scope_of(app_id), "--budget-ms", "300", errors=log, cwd=tmp_path, **named) as client:
        assert (await call(client, "memory_add", text="Later."))["status"] == "waiting"


@pytest.mark.long(keep=("named1", "named5"))
@pytest.mark.parametrize(
    ("link", "named", "said"),
    [
        ("other", {}, "no bus"),
        ("own", {}, "no bus"),
        ("other", {"GRAPHWEFT_DATA": ".graphweft"}, "expected an absolute path"),
        ("own", {"GRAPHWEFT_DATA": "./.graphweft/"}, "expected an absolute path"),
        ("other", {"GRAPHWEFT_DATA": "HERE/.graphweft"}, "belongs to the user with the number 65534"),
        ("other", {"GRAPHWEFT_DATA": "HERE/.graphweft/inner"}, "belongs to the user with the number 65534"),
        ("other", {"GRAPHWEFT_CONFIG": "HERE/own.yaml"}, "expected an absolute path"),
    ],
)
def test_a_data_folder_of_the_working_folder_gets_nothing(
    stack: Stack, tmp_path: Path, link: str, named: dict[str, str], said: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    with TemporaryDirectory() as folder:
        server = Path(folder) / "data"
        (server / "inner").mkdir(parents=True)
        for each in (server, server / "inner"):
            os.chown(each, 65534 if link == "other" else 0, -1)
        (tmp_path / ".graphweft").symlink_to(server)
        (tmp_path / "own.yaml").write_text("data: .graphweft\n")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(server / "redis.sock"))
            listener.listen()
            listener.setblocking(False)
            here = {name: value.replace("HERE", str(tmp_path)) for name, value in named.items()}
            for command in (["run", "mcp", *scope_of("a")], ["hook", "--app", "a", "{}"]):
                if command[0] == "hook" and "GRAPHWEFT_CONFIG" in here:
                    continue
                done = subprocess.run(
                    [sys.executable, "-m", "graphweft_workers.cli", *command],
                    cwd=tmp_path, env=clean_environment(**here), stdin=subprocess.DEVNULL, capture_output=True,
                    text=True, timeout=120, check=False,
                )  # fmt: skip
                assert (done.returncode, said in done.stderr) == (2 if command[0] == "run" else 0, True), done.stderr
            with pytest.raises(BlockingIOError):
                listener.accept()


async def test_what_is_not_on_the_bus_yet_is_told(stack: Stack, app_id: str) -> None:
    async with Client(NOWHERE, buffer=0) as away, Client(stack.url) as there:
        tools = Tools(there, McpScope(app_id=app_id, scope=MemoryScope(user_id="ada"), budget_ms=BUDGET_MS))
        tools._client.stats.buffered = 1
        answer = await tools.call("memory_search", {})
        assert answer.data is not None
        assert "not on the bus yet" in answer.data["notes"][0]
        assert "not on the bus yet" in answer.text
        full = Tools(away, McpScope(app_id=app_id, scope=MemoryScope(user_id="ada"), budget_ms=100))
        refused = await full.call("memory_add", {"text": "x"})
        assert refused.error
        assert "not remembered" in refused.text


async def test_a_defect_is_an_error_of_the_tool(app_id: str, logs: Logs) -> None:
    tools = Tools(cast("Any", None), McpScope(app_id=app_id, scope=MemoryScope(user_id="ada")))
    for tool, arguments in (("memory_search", {}), ("memory_add", {"text": "x"})):
        answer = await tools.call(tool, arguments)
        assert (answer.error, answer.data) == (True, None)
        assert "internal error" in answer.text
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("tool_failed", "error")] * 2


async def test_what_is_switched_off(stack: Stack, app_id: str) -> None:
    off = {"GRAPHWEFT_CONTEXT": "off", "GRAPHWEFT_CAPTURE": "off"}
    async with stack.session(*scope_of(app_id), *CONTEXT, **off) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [
            "memory_search", "memory_list", "memory_get", "get_context",
        ]  # fmt: skip
        assert "switched context off" in await refusal(client, "memory_search")
        assert "switched context off" in await refusal(client, "memory_list")
        assert (await call(client, "get_context", agent="Cook"))["text"] == ""
        assert "unknown tool" in await refusal(client, "memory_add", text="x")


INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip


def test_standard_output_has_the_protocol_only(stack: Stack, app_id: str) -> None:
    sent = [
        json.dumps(INITIALIZE),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        "this is no JSON, and private",
        '{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": 7}}',
        '{"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "memory_search", "arguments": {}}}',
        '{"jsonrpc": "2.0", "id": 4, "method": "nothing/like_that"}',
        r'{"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "memory_add", "arguments": '
        r'{"\udc00": 1, "\ud83d\ude00": 1, "\\ud800": 1, "text": "cut \ud83d"}}}',
    ]
    process = stack.command("run", "mcp", *scope_of(app_id), GRAPHWEFT_LOG_LEVEL="debug")
    for line in sent:
        process.stdin.write(line + "\n")  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]
    answers: dict[Any, Any] = {}
    while not answers.keys() >= {1, 2, 3, 4, 5}:
        answer = json.loads(cast("Any", process.stdout).readline())
        answers[answer.get("id")] = answer
    rest, log = process.communicate(timeout=120)
    assert (process.returncode, rest) == (0, "")
    assert answers[3]["result"]["structuredContent"] == {"results": [], "notes": []}
    said = answers[5]["result"]["content"][0]["text"]
    assert re.findall(r"(\S+): Extra", said) == ["\ufffd", "\U0001f600", "\\ud800"]
    assert {answers[2]["error"]["code"], answers[4]["error"]["code"]} == {-32602, -32601}
    assert "mcp_server_started" in log
    assert "private" not in log
    assert "Traceback" not in log


def begun(stack: Stack, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Return a process that has shaken hands."""
    process = stack.command("run", "mcp", *arguments, **environment)
    send(process, INITIALIZE)
    assert json.loads(cast("Any", process.stdout).readline())["id"] == 1
    send(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    return process


def send(process: subprocess.Popen[str], *messages: dict[str, Any]) -> None:
    for message in messages:
        process.stdin.write(json.dumps(message) + "\n")  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]


def calling(number: int, tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def test_what_a_client_added_before_it_went_away_is_remembered(stack: Stack, app_id: str) -> None:
    process = begun(stack, *scope_of(app_id))
    send(process, *(calling(number, "memory_add", text=f"Apple {number}.") for number in range(2, 22)))
    _, log = process.communicate(timeout=120)  # the answers are not waited for
    assert (process.returncode, "Traceback" in log) == (0, False)
    async with Client(stack.url) as client:
        tools = Tools(client, McpScope(app_id=app_id, scope=MemoryScope(user_id="ada"), budget_ms=BUDGET_MS))
        await tools.call("memory_add", {"text": "Apple 22."})  # of the same chat, so it is behind the others
        answer = await tools.call("memory_search", {"query": "apple", "top_k": 50})
    assert answer.data is not None
    assert len(answer.data["results"]) == 21


def test_a_client_that_is_killed_while_it_waits(stack: Stack, app_id: str) -> None:
    process = begun(stack, *scope_of(app_id), "--budget-ms", "600000")
    worker = json.loads((stack.folder / "data/processes.json").read_text())["mutation"]
    os.kill(worker, signal.SIGSTOP)
    try:
        send(process, calling(2, "memory_add", text="An apple."))
        assert json.loads(cast("Any", process.stdout).readline())["id"] == 2
        send(process, calling(3, "memory_search", query="apple"))
        cast("Any", process.stdout).close()
        send(process, {"jsonrpc": "2.0", "id": 4, "method": "tools/list"})  # nobody reads its answer
        cast("Any", process.stdin).close()
        assert process.wait(timeout=120) == 0  # the budget of the call is ten minutes
    finally:
        os.kill(worker, signal.SIGCONT)
    assert "Traceback" not in cast("Any", process.stderr).read()
    cast("Any", process.stderr).close()


async def test_two_clients_of_one_user(stack: Stack, app_id: str) -> None:
    async with stack.inside(*scope_of(app_id)) as one, stack.inside(*scope_of(app_id)) as other:
        added = (
            call(client, "memory_add", text=f"Plum {name} {number}.")
            for number in range(20)
            for name, client in (("one", one), ("other", other))
        )
        await asyncio.gather(*added)
        for name, client in (("one", one), ("other", other)):
            texts = await asyncio.gather(*(found(client, "plum", top_k=50) for _ in range(10)))
            own = {f"Plum {name} {number}." for number in range(20)}
            assert all(own <= set(seen) for seen in texts)
        await call(one, "memory_add", text="Plum last.")
        assert len(await found(one, "plum", top_k=50)) == 41


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(stack: Stack, app_id: str, number: signal.Signals) -> None:
    process = begun(stack, *scope_of(app_id))
    process.send_signal(number)
    assert process.wait(timeout=120) == 0
    assert cast("io.TextIOBase", process.stdout).read() == ""
    process.communicate()


# --- over HTTP ------------------------------------------------------------------------------------------------------


@contextmanager
def served(stack: Stack, folder: Path, *entries: dict[str, Any], **environment: str) -> Iterator[tuple[str, list[str]]]:
    """Run ``graphweft run gateway --mcp``; return its URL and a token for each entry."""
    tokens = [new_token() for _ in entries]
    lines = [
        {"roles": ["emit", "read", "erase"], "name": "t", **entry, "sha256": sha256_of(token)}
        for entry, token in zip(entries, tokens, strict=True)
    ]
    (folder / "tokens.yaml").write_text(json.dumps({"tokens": lines}))
    process = stack.command(
        "run", "gateway", "--mcp", "--port", "0", GRAPHWEFT_GATEWAY_TOKENS=str(folder / "tokens.yaml"), **environment
    )
    try:
        said = cast("Any", process.stdout).readline()
        assert "answers on" in said, cast("Any", process.stderr).read()
        yield said.split()[-1], tokens
    finally:
        process.terminate()
        _, log = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "Traceback" not in log


@asynccontextmanager
async def over_http(url: str, token: str, scope: str = "user_id=ada", mode: str = "auto") -> AsyncIterator[MCPClient]:
    """Lend the SDK's client of a gateway."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=120) as http,
        MCPClient(streamable_http_client(f"{url}/mcp?{scope}", http_client=http), mode=mode) as client,
    ):
        yield client


async def test_each_token_reaches_its_app_and_the_scope_of_the_address(
    stack: Stack, app_id: str, tmp_path: Path
) -> None:
    other = f"{app_id}-2"
    entries = ({"app_id": app_id}, {"app_id": other}, {"app_id": app_id, "roles": ["read"]})
    log = {"GRAPHWEFT_AUDIT_LOG": str(tmp_path / "audit")}
    with served(stack, tmp_path, *entries, **log) as (url, (ours, theirs, reader)):
        for mode in ("legacy", "auto"):
            async with over_http(url, ours, mode=mode) as client:
                await call(client, "memory_add", text=f"The harp is {mode}.")
                assert f"The harp is {mode}." in await found(client, "harp")
        async with over_http(url, ours) as client:
            assert (await call(client, "episode_add", content="The lake was frozen."))["status"] == "added"
            assert await found(client, "lake", of="episodes") == ["The lake was frozen."]
            for name in ("user_id", "app_id"):
                assert (await refusal(client, "memory_search", **{name: "bob"})).startswith(f"{name}: ")
            offered = [tool.name for tool in (await client.list_tools()).tools]
        async with over_http(url, theirs) as client:
            await call(client, "memory_add", text="Theirs.")
            assert await found(client) == ["Theirs."]
        async with over_http(url, ours, "user_id=bob") as client:
            assert await found(client, "harp") == []
        async with over_http(url, reader) as client:
            reads = [tool.name for tool in (await client.list_tools()).tools]
            assert "unknown tool" in await refusal(client, "memory_add", text="x")
            assert len(await found(client, "harp")) == 2
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert {(line["what"], line["app_id"]) for line in lines} == {("POST /mcp", app_id), ("POST /mcp", other)}
    assert {user for line in lines for user in line["users"]} == {
        hash_of(app, user) for app, user in ((app_id, "ada"), (app_id, "bob"), (other, "ada"))
    }
    assert {*offered} - {*reads} == {"memory_add", "memory_update", "memory_forget", "episode_add"}


async def test_what_a_gateway_refuses_it_refuses_for_mcp(stack: Stack, app_id: str, tmp_path: Path) -> None:
    (tmp_path / "apps.yaml").write_text(
        json.dumps({"apps": {app_id: {"workflows": ["Kitchen"], "quotas": {"events_per_s": 0.001}}}})
    )
    entries = (
        {"app_id": app_id},
        {"app_id": app_id, "roles": ["emit"]},
        {"app_id": app_id, "expires": "2020-01-01T00:00:00Z"},
    )
    environment = {"GRAPHWEFT_APPS": str(tmp_path / "apps.yaml")}
    with served(stack, tmp_path, *entries, **environment) as (url, (ours, writer, expired)):
        body = json.dumps(INITIALIZE)
        plain = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        sent = plain | {"Authorization": f"Bearer {ours}"}
        async with httpx2.AsyncClient(base_url=url, timeout=120) as http:
            for status, code, headers, address, content in (
                (401, "no-token", plain, "?user_id=ada", body),
                (401, "no-token", plain | {"Authorization": f"Bearer {new_token()}"}, "?user_id=ada", body),
                (401, "token-expired", plain | {"Authorization": f"Bearer {expired}"}, "?user_id=ada", body),
                (403, "missing-role", plain | {"Authorization": f"Bearer {writer}"}, "?user_id=ada", body),
                (403, "other-origin", sent | {"Origin": "http://evil.example"}, "?user_id=ada", body),
                (403, "other-origin", sent | {"Origin": "null"}, "?user_id=ada", body),
                (400, "no-scope", sent, "", body),
                (400, "no-scope", sent, "?user_id=ada&user_id=bob", body),
                (400, "no-scope", sent, "?user_id=ada&app_id=x", body),
                (400, "no-scope", sent, "?user_id=%20ada", body),
                (400, "no-scope", sent, "?user_id=ada&any_of=team", body),
                (400, "no-scope", sent, "?any_of=application_id=team", body),
                (400, "no-scope", sent, "?user_id=ada" + "&any_of=user=b" * 9, body),
                (400, "no-scope", sent, "?user_id=ada&workflow=Kitchen", body),
                (400, "no-scope", sent, "?user_id=ada&agent=Cook", body),
                (400, "no-scope", sent, "?user_id=ada&chat_id=c", body),
                (403, "other-workflow", sent, "?user_id=ada&workflow=Office&agent=Cook", body),
                (400, "no-json", sent, "?user_id=ada", "{"),
                (413, "body-too-large", sent, "?user_id=ada", " " * 4_000_001),
                (415, "unsupported-media-type", sent | {"Content-Type": "text/plain"}, "?user_id=ada", body),
                (422, "too-many-values", sent, "?user_id=ada", "[" * 300_001 + "]" * 300_001),
            ):
                answer = await http.post(f"/mcp{address}", headers=headers, content=content)
                assert (answer.status_code, answer.json().get("type", "").rpartition(":")[2]) == (status, code)
            for method in ("GET", "DELETE"):
                assert (await http.request(method, "/mcp?user_id=ada", headers=sent)).status_code == 405
            assert (
                await http.post("/mcp?user_id=ada", headers=sent | {"Origin": url}, content=body)
            ).status_code == 200
        async with over_http(url, ours) as client:
            answers = [await client.call_tool("memory_add", {"text": "x"}) for _ in range(2)]
            assert [answer.is_error for answer in answers] == [False, True]
            assert "not taken" in cast("Any", answers[1].content[0]).text


async def test_an_address_names_shared_scopes_and_whose_context(stack: Stack, app_id: str, tmp_path: Path) -> None:
    log = {"GRAPHWEFT_AUDIT_LOG": str(tmp_path / "audit")}
    with served(stack, tmp_path, {"app_id": app_id, "workflows": ["Kitchen"]}, **log) as (url, (ours,)):
        async with over_http(url, ours, "application_id=team") as team:
            await call(team, "memory_add", text="The cake is for all.")
        shared = "any_of=application=team&any_of=user_id%3Dbob&workflow=Kitchen&agent=Cook"
        async with over_http(url, ours, f"user_id=ada&{shared}") as ada:
            await call(ada, "memory_add", text="My cake is mine.")
            assert set(await found(ada, "cake", of="memories")) == {"My cake is mine.", "The cake is for all."}
            context = await call(ada, "get_context", query="cake")
            assert "My cake is mine." in context["text"]
        async with httpx2.AsyncClient(base_url=url, timeout=120) as http:
            described = (await http.get("/openapi.json")).json()["paths"]["/mcp"]["post"]
        assert {each["name"] for each in described["parameters"]} == {
            "user_id", "thread_id", "agent_id", "application_id", "any_of", "workflow", "agent", "chat_id",
        }  # fmt: skip
        assert described["responses"].keys() >= {"200", "202", "401", "403"}
    users = {user for line in (tmp_path / "audit").read_text().splitlines() for user in json.loads(line)["users"]}
    assert users == {hash_of(app_id, "ada"), hash_of(app_id, "bob")}


async def test_no_request_of_an_app_reaches_another(stack: Stack, app_id: str, tmp_path: Path) -> None:
    other = f"{app_id}-2"
    (tmp_path / "apps.yaml").write_text(json.dumps({"default": {"workflows": ["*"], "quotas": {"events_per_s": 1000}}}))
    environment = {"GRAPHWEFT_APPS": str(tmp_path / "apps.yaml")}
    with served(stack, tmp_path, {"app_id": app_id}, {"app_id": other}, **environment) as (url, (ours, theirs)):
        async with over_http(url, theirs) as client:
            await call(client, "memory_add", text="A secret cake.", tags=["cake"])
            assert await found(client, "cake") == ["A secret cake."]
            [row] = (await call(client, "memory_list"))["memories"]
        async with over_http(url, ours) as client:
            await call(client, "memory_add", text="Our bread.")
        everyone = "user_id=bob&any_of=user_id=ada&any_of=application_id=" + other
        for address in ("user_id=ada", everyone, f"{everyone}&workflow=Kitchen&agent=Cook&chat_id={other}"):
            async with over_http(url, ours, address) as client:
                assert "secret" not in str(
                    [
                        await client.call_tool(tool, arguments)
                        for tool, arguments in (
                            ("memory_search", {"query": "secret cake", "as_of": "2999-01-01", "include_ended": True}),
                            ("memory_search", {"ids": [row["id"]]}),
                            ("memory_list", {"ids": [row["id"]], "tags": ["cake"], "of": "all"}),
                            ("memory_get", {"id": row["id"]}),
                            ("memory_update", {"id": row["id"], "text": "ours"}),
                            ("memory_forget", {"ids": [row["id"]]}),
                            ("memory_forget", {"tags": ["cake"]}),
                            ("get_context", {"query": "secret cake"}),
                        )
                    ]
                )
        async with httpx2.AsyncClient(base_url=url, timeout=120, headers={"Authorization": f"Bearer {ours}"}) as http:
            asked: dict[str, Any] = {
                "agent": "a", "workflow": "Kitchen", "chat_id": "ada", "user_id": "ada", "budget_ms": 10_000,
            }  # fmt: skip
            scope = {"memory": {"user_id": "bob"}, "any_of": [{"user_id": "ada"}, {"application_id": other}]}
            for search in (
                {"text": "secret cake", "as_of": "2999-01-01"}, {"ids": [row["id"]]}, {"tags": ["cake"]},
                {"include_ended": True}, {"text": "secret", "of": "memories"},
            ):  # fmt: skip
                answer = await http.post("/v1/context", json={**asked, "search": {**scope, **search}})
                assert (answer.status_code, "secret" in answer.text) == (200, False)
            assert (await http.post("/v1/context", json={**asked, "app_id": other})).status_code == 403
            for kind, data in (
                ("memory.update", {"memory_id": row["id"], "text": "ours"}),
                ("memory.forget", {"memory_ids": [row["id"]]}),
                ("memory.erase", {"user_id": "ada"}),
            ):
                event = {"specversion": "1.0", "id": kind, "source": "/x", "type": kind, "chatid": "ada", "data": data}
                sent = await http.post(
                    "/v1/events", json=event, headers={"Content-Type": "application/cloudevents+json"}
                )
                assert sent.status_code == 202  # in our own app
                named = await http.post(
                    "/v1/events",
                    json={**event, "appid": other},
                    headers={"Content-Type": "application/cloudevents+json"},
                )
                assert named.status_code == 403
        async with over_http(url, theirs) as client:
            await call(client, "memory_add", text="Later.")  # a search waits for it, and so for all before it
            assert await found(client, "secret") == ["A secret cake."]
            assert (await call(client, "memory_get", id=row["id"]))["memory"]["text"] == "A secret cake."


async def test_a_client_over_http_that_is_killed_leaves_the_others_alone(
    stack: Stack, app_id: str, tmp_path: Path
) -> None:
    with served(stack, tmp_path, {"app_id": app_id}) as (url, (ours,)):
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps(calling(2, "memory_search", query="apple")).encode()
        head = (
            f"POST /mcp?user_id=ada HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {ours}\r\n"
            "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        for part in (head, head + body[:9], head + body):  # 200 more than an app may have open
            for _ in range(110):
                with socket.create_connection((host, int(port))) as connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.sendall(part)
        async with over_http(url, ours) as client:
            await call(client, "memory_add", text="An apple.")
            assert await found(client, "apple") == ["An apple."]


def test_an_address_of_others_needs_tokens_for_mcp_too(stack: Stack) -> None:
    for arguments, said in (
        (("gateway", "--mcp"), "the gateway has no tokens"),
        (("gateway", "--mcp", "--insecure-app", "a", "--host", "0.0.0.0"), "--insecure-app requires --host 127.0.0.1"),
        (("console", "--mcp"), "--mcp works with `run gateway` only"),
        (("mutation", "--mcp"), "--insecure-app and --mcp with `run gateway`"),
    ):
        done = inside(("run", *arguments), stack.environment)
        assert (done.code, said in done.err) == (2, True), done.err


async def test_without_tokens_mcp_is_for_this_machine(stack: Stack, app_id: str) -> None:
    process = stack.command("run", "gateway", "--mcp", "--port", "0", "--insecure-app", app_id)
    try:
        url = cast("Any", process.stdout).readline().split()[-1]
        async with httpx2.AsyncClient(base_url=url, timeout=120) as http:
            sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            for host, status in (("evil.example", 403), (url.removeprefix("http://"), 200)):
                answer = await http.post("/mcp?user_id=ada", headers=sent | {"Host": host}, json=INITIALIZE)
                assert answer.status_code == status
    finally:
        process.terminate()
        process.communicate(timeout=120)


# --- what the operator has to say -----------------------------------------------------------------------------------


REFUSED = [
    ({"app": None}, "`run mcp` needs --app"),
    ({"app": "a b"}, "--app 'a b'"),
    ({"user": None}, "`run mcp` needs a scope"),
    ({"user": " ada"}, "user_id"),
    ({"workflow": "Kitchen"}, "--workflow and --agent go together"),
    ({"agents": ["Cook"]}, "--workflow and --agent go together"),
    ({"variables": ["a=b"]}, "--chat and --var are for get_context"),
    ({"chat": "c1"}, "--chat and --var are for get_context"),
    ({"any_of": ["team"]}, "invalid --any-of 'team': expected NAME=VALUE"),
    ({"workflow": " ", "agents": ["Cook"]}, "--workflow: a name of 1 to 256 characters"),
    ({"workflow": "Kitchen", "agents": ["Cook", ""]}, "--agent: a name of 1 to 256 characters"),
    ({"workflow": "Kitchen", "agents": ["Cook"], "chat": "c" * 257}, "--chat: a name of 1 to 256 characters"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=[str(given) for given, _ in REFUSED])
def test_what_cannot_work_is_refused(given: dict[str, Any], said: str) -> None:
    options = McpOptions(**{"app": "acme", "user": "ada"} | given)
    with pytest.raises(InvalidSettings, match=re.escape(said)):
        options.access()


def test_the_scope_of_run_mcp_is_misplaced_elsewhere_unless_the_environment_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRAPHWEFT_MCP_APP", "acme")
    assert not McpOptions(app="acme").misplaced
    assert McpOptions(app="other").misplaced
    assert McpOptions(agent_id="cook").misplaced


def test_a_refusal_goes_to_standard_error(stack: Stack) -> None:
    for arguments, said in (
        (("mcp", "--app", "acme"), "`run mcp` needs a scope"),
        (("mutation", "--workflow", "Kitchen"), "work with `run mcp` only"),
        (("mutation", "--app", "acme"), "work with `run mcp` only"),
    ):
        done = inside(("run", *arguments), stack.environment)
        assert (done.code, done.out) == (2, "")
        assert said in done.err


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_stream_that_is_closed_is_named(stack: Stack, closed: str) -> None:
    line = f'exec "$0" -m graphweft_workers.cli run mcp --app acme --user ada {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable],
        env=stack.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: `run mcp` needs standard input and output")


async def test_app_and_scope_may_stand_in_the_environment(stack: Stack, app_id: str) -> None:
    given = {"GRAPHWEFT_MCP_APP": app_id, "GRAPHWEFT_MCP_USER": "ada", "GRAPHWEFT_MCP_THREAD": "t1"}
    async with stack.session(**given) as client:
        await call(client, "memory_add", text="From the environment.")
        assert await found(client) == ["From the environment."]
    async with stack.session(*scope_of(app_id)) as client:
        assert await found(client, thread_id="t1") == ["From the environment."]


@pytest.mark.parametrize("missing", ["mcp", "mcp_types"])
def test_a_missing_extra_is_named(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from graphweft_workers.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "mcp", "--app", "acme", "--user", "ada"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'graphweft[mcp]'" in done.stderr
    assert "Traceback" not in done.stderr


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_example_of_the_page_runs(stack: Stack, app_id: str, tmp_path: Path) -> None:
    page = (ROOT / "docs/runtimes/mcp.md").read_text("utf-8")
    [rules] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    [configuration] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    [program] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [printed] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert " ".join(rules.split()) in " ".join(RULES.replace('"Concierge", "Cook"', '"Concierge"').split())
    server = json.loads(configuration)["mcpServers"]["memory"]
    assert server["command"] == "graphweft"
    server["command"] = str(tmp_path / "graphweft")
    (tmp_path / "graphweft").write_text(f'#!/bin/sh\nexec {sys.executable} -m graphweft_workers.cli "$@"\n')
    (tmp_path / "graphweft").chmod(0o755)
    server["args"] = [app_id if text == "acme" else text for text in server["args"]] + ["--budget-ms", str(BUDGET_MS)]
    server["env"] = {name: stack.environment[name] for name in server["env"]} | {
        "PYTHONPATH": os.pathsep.join(sys.path)
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"memory": server}}))
    (tmp_path / "remembering.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "remembering.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == printed, done.stderr[-3000:]
