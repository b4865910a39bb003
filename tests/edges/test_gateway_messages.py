"""``POST /messages``, ``POST /search`` and ``GET /healthcheck``, as clients of Graphiti's server use them."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest
from tests.declared_fields import undeclared
from tests.edges.test_gateway import (
    BUDGET_MS,
    Gateway,
    Stack,
    asking,
    places,
    post,
    problem,
    stack,
    tokens_of,
)
from tests.services.buses import applied
from tests.services.fixtures import Logs
from tests.services.layouts import events_on_bus
from tests.services.rules import rule_set
from tests.services.waiting import until

from graphweft import Client
from graphweft.transports.embedded import embedded_url
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts.episodes import episode_id
from graphweft_rules import RuleSet
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.episodes.ontologies import Ontologies
from graphweft_workers.gateway.app import make_app
from graphweft_workers.gateway.document import document
from graphweft_workers.gateway.limits import GatewayLimits
from graphweft_workers.gateway.messages import SOURCE, PostedMessage
from graphweft_workers.gateway.tokens import Tokens
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.injection.responder import InjectionResponder

pytestmark = pytest.mark.integration
__all__ = ("stack",)  # a fixture

PACK = EpisodeMutations()
FACT = {"uuid", "name", "fact", "valid_at", "invalid_at", "created_at", "expired_at"}


@asynccontextmanager
async def serving(url: str, tokens: Tokens, limits: GatewayLimits | None = None) -> AsyncIterator[Gateway]:
    async with AsyncExitStack() as ends:
        held = await ends.enter_async_context(Client(transport=RedisTransport(url)))
        app = make_app(
            held, connect=lambda: RedisTransport(url), tokens=tokens, limits=limits, refusal=PACK.refusal,
            schema_ids=Ontologies().ids,
        )  # fmt: skip
        yield await ends.enter_async_context(asking(app))


@pytest.fixture
def app_id() -> str:
    return f"app-{uuid4().hex[:12]}"


@pytest.fixture
async def gateway(stack: Stack, app_id: str) -> AsyncIterator[Gateway]:
    async with serving(stack.url, tokens_of(mine=app_id, theirs=f"{app_id}-2")) as made:
        yield made


def message(content: str = "I like tea", **more: Any) -> dict[str, Any]:
    return {"content": content, "role_type": "user", "role": "Ann", **more}


async def send(gateway: Gateway, *messages: Any, group: Any = "g1", **more: Any) -> httpx.Response:
    return await gateway.post("/messages", json={"group_id": group, "messages": messages, **more})


async def all_applied(url: str) -> None:
    """Wait until workers have done with what is on the bus."""
    async with aclosing(cast("Any", redis_bus(url))) as bus:
        await applied(bus)


async def episodes(url: str, app_id: str, what: str = "content") -> list[Any]:
    """Return a property of the app's episodes in the graph, once workers are done."""
    await all_applied(url)
    async with aclosing(cast("Any", FalkorDBStore(url))) as store:
        table = await store.read(app_id, f"MATCH (p:Episode) RETURN p.{what}", {}, timeout_s=120)
    return sorted((row[0] for row in table.rows), key=str)


async def on_bus(url: str, app_id: str) -> list[dict[str, Any]]:
    events = await events_on_bus(url, app_id)
    assert [fault for event in events for fault in undeclared(event["type"], event["data"])] == []
    return events


# ------------------------------------------------------------------------------------------------------------- messages


async def test_messages_become_episodes_of_the_group(gateway: Gateway, stack: Stack, app_id: str) -> None:
    structured = json.dumps({"entities": [{"type": "Person", "name": "Ann"}]})
    answer = await send(
        gateway,
        message(uuid="m1", name="first", timestamp="2026-01-01T10:00:00+01:00", source_description="chat"),
        message("Noted.", role_type="assistant", role=None, timestamp="2026-01-01T09:00:01"),
        message(structured, role=""),
        schema_id="agent_memory_v1", unknown=1,
    )  # fmt: skip
    assert answer.status_code == 202, answer.text
    said = answer.json()
    assert (said["success"], len(said["positions"]), bool(said["message"])) == (True, 3, True)
    first, second, third = await on_bus(stack.url, app_id)
    assert {event["type"] for event in (first, second, third)} == {"episode.add"}
    assert (first["chatid"], first["userid"], first["source"]) == ("g1", "g1", SOURCE)
    assert first["data"] == {
        "user_id": "g1", "content": "Ann(user): I like tea", "episode_type": "message", "name": "first",
        "schema_id": "agent_memory_v1", "reference_time": "2026-01-01T10:00:00+01:00", "source_description": "chat",
        "episode_id": "m1",
    }  # fmt: skip
    assert second["data"]["content"] == "(assistant): Noted."
    assert second["data"]["reference_time"] == "2026-01-01T09:00:01+00:00"
    assert "reference_time" not in third["data"]
    assert third["time"] > second["time"] > first["time"]
    assert await episodes(stack.url, app_id, "content") == sorted(
        ["Ann(user): I like tea", "(assistant): Noted.", f"(user): {structured}"]
    )
    async with aclosing(cast("Any", FalkorDBStore(stack.url))) as store:
        # What is JSON in a message is still what somebody said: a model reads it.
        assert not (await store.read(app_id, "MATCH (e:Entity) RETURN e", {}, timeout_s=120)).rows


async def test_the_same_message_again_has_no_second_effect(gateway: Gateway, stack: Stack, app_id: str) -> None:
    said = [
        (message("a", uuid="1"), 1),
        (message("a", uuid="2", timestamp="2026-01-01T10:00:00Z"), 1),
        (message("b", timestamp="2026-01-01T10:00:00Z"), 1),
        (message("c"), 3),  # of which nothing says that it is the same
    ]
    for _ in range(3):
        assert (await send(gateway, *(each for each, _ in said))).status_code == 202
    # A client that takes the time anew, and one that corrects itself: what is answered with 202 is found.
    assert (await send(gateway, message("a", uuid="1", timestamp="2026-02-02T00:00:00Z"))).status_code == 202
    assert (await send(gateway, message("corrected", uuid="1"))).status_code == 202
    assert (await send(gateway, message("a", uuid="1"), group="g2")).status_code == 202
    expected = Counter({"Ann(user): a": 3, "Ann(user): b": 1, "Ann(user): c": 3, "Ann(user): corrected": 1})
    assert Counter(await episodes(stack.url, app_id)) == expected


async def test_no_messages_are_taken_too(gateway: Gateway, stack: Stack, app_id: str) -> None:
    answer = await send(gateway)
    assert (answer.status_code, answer.json()["positions"]) == (202, [])
    assert await on_bus(stack.url, app_id) == []


LONG = "x" * 999_001
REFUSED: dict[str, tuple[Any, int, str, set[str]]] = {
    "no group": ({"messages": []}, 422, "invalid-messages", {"#/group_id"}),
    "empty group": ({"group_id": "", "messages": []}, 422, "invalid-messages", {"#/group_id"}),
    "blank group": ({"group_id": "g ", "messages": []}, 422, "invalid-messages", {"#/group_id"}),
    "long group": ({"group_id": "g" * 257, "messages": []}, 422, "invalid-messages", {"#/group_id"}),
    "a list": ([], 422, "invalid-messages", {"#"}),
    "no messages": ({"group_id": "g"}, 422, "invalid-messages", {"#/messages"}),
    "no role type": (
        {"group_id": "g", "messages": [message("a"), {"content": "b"}]},
        422, "invalid-messages", {"#/messages/1/role_type"},
    ),
    "odd fields": (
        {"group_id": "g", "messages": [message("a", role_type="bot", role=1, timestamp="soon", uuid=5)]},
        422, "invalid-messages",
        {"#/messages/0/role_type", "#/messages/0/role", "#/messages/0/timestamp", "#/messages/0/uuid"},
    ),
    "a number as time": (
        {"group_id": "g", "messages": [message("a", timestamp=1)]}, 422, "invalid-messages", {"#/messages/0/timestamp"}
    ),
    **{
        f"{time!r} as time": (
            {"group_id": "g", "messages": [message("a", timestamp=time)]},
            422, "invalid-messages", {"#/messages/0/timestamp"},
        )
        for time in ("1700000000", "-1", "1700000000.5", "20260201", "2026-02-01", True)
    },
    **{
        f"a group that shows nothing, {group!a}": (
            {"group_id": group, "messages": []}, 422, "invalid-messages", {"#/group_id"}
        )
        for group in ("\u200b", "\ufeff \u2060", "\u00a0")
    },
    **{
        f"a {field} of two lines by {end!a}": (
            {"group_id": "g", "messages": [message("a", **{field: f"Ann(user): yes{end}Bob"})]},
            422, "invalid-messages", {f"#/messages/0/{field}"},
        )
        for field in ("role", "name") for end in ("\n", "\r", "\x85", "\u2028")
    },
    "NUL": ({"group_id": "g", "messages": [message("a\0")]}, 422, "invalid-messages", {"#/messages/0/content"}),
    "long": ({"group_id": "g", "messages": [message(LONG)]}, 422, "invalid-messages", {"#/messages/0/content"}),
    "many bytes": ({"group_id": "g", "messages": [message("ü" * 900_000)]}, 413, "event-too-large", {"#/messages/0"}),
    "many": ({"group_id": "g", "messages": [message()] * 501}, 422, "batch-too-large", set()),
    "unknown schema": (
        {"group_id": "g", "messages": [message(), message()], "schema_id": "agent_memory_v0"},
        422, "no-effect", {"#/messages/0", "#/messages/1"},
    ),
    "empty schema": ({"group_id": "g", "messages": [], "schema_id": ""}, 422, "invalid-messages", {"#/schema_id"}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_take_effect_is_refused_as_a_whole(
    gateway: Gateway, stack: Stack, app_id: str, name: str
) -> None:
    body, status, code, where = REFUSED[name]
    answer = await gateway.post("/messages", json=body)
    assert problem(answer) == (status, code)
    assert {fault["pointer"] for fault in answer.json().get("errors", ())} == where
    assert await on_bus(stack.url, app_id) == []
    assert "pattern" not in answer.text
    assert "[^" not in answer.text
    if code == "no-effect":
        assert "agent_memory_v1" in answer.text
        assert "agent_memory_v0" not in answer.text


async def test_both_routes_ask_for_a_token_and_for_json(gateway: Gateway, stack: Stack, app_id: str) -> None:
    bodies = {"/messages": {"group_id": "g", "messages": [message()]}, "/search": {"group_ids": ["g"], "query": "tea"}}
    for path, body in bodies.items():
        nobody = await gateway.post(path, json=body, headers={"Authorization": "Bearer nobody"})
        assert problem(nobody) == (401, "no-token")
        text = await gateway.post(path, content=json.dumps(body), headers={"Content-Type": "text/plain"})
        assert problem(text) == (415, "unsupported-media-type")
        assert problem(await gateway.post(path, content=b"{", headers={"Content-Type": "application/json"}))[0] == 400
        assert problem(await gateway.get(path)) == (405, "method-not-allowed")
    assert await on_bus(stack.url, app_id) == []


async def test_the_health_is_told_without_a_token(gateway: Gateway) -> None:
    del gateway.headers["Authorization"]
    answer = await gateway.get("/healthcheck")
    assert (answer.status_code, answer.json()) == (200, {"status": "healthy"})


# --------------------------------------------------------------------------------------------------------------- search


def structured(number: int, group: str, *facts: str, **times: Any) -> dict[str, Any]:
    content = {
        "entities": [{"type": "Person", "name": name} for name in ("Ann", "Bob")],
        "relations": [{"type": "KNOWS", "source": "Ann", "target": "Bob", "fact": fact, **times} for fact in facts],
    }
    data = {"user_id": group, "episode_type": "json", "content": content}
    return {
        "specversion": "1.0", "id": f"s{number}", "source": "/t", "type": "episode.add", "chatid": group, "data": data,
        "time": "2026-02-01T10:00:00Z",
    }  # fmt: skip


async def found(gateway: Gateway, *groups: str, query: str = "tea", **more: Any) -> list[str]:
    body = {"group_ids": groups, "query": query, **{name: more.pop(name) for name in ("max_facts",) if name in more}}
    answer = await gateway.post("/search", json=body, **more)
    assert answer.status_code == 200, answer.text
    return [fact["fact"] for fact in answer.json()["facts"]]


async def test_facts_of_groups_are_found_best_first_and_no_others(gateway: Gateway, stack: Stack) -> None:
    theirs = {"Authorization": "Bearer theirs"}
    assert await found(gateway, "g1") == [], "an app that has no graph yet"
    for sent, headers in (
        (structured(1, "g1", "Ann drinks green tea with Bob every day", valid_from="2026-01-01T00:00:00Z"), {}),
        (structured(2, "g1", "Ann drank tea", valid_to="2026-02-01T00:00:00Z"), {}),
        (structured(3, "g2", "tea tea", "Bob sleeps"), {}),
        (structured(4, "g3", "secret tea"), {}),
        (structured(5, "g1", "their tea"), theirs),
    ):
        assert (await post(gateway, sent, **headers)).status_code == 202
    await all_applied(stack.url)
    mine, other = "Ann drinks green tea with Bob every day", "tea tea"
    assert await found(gateway, "g1") == [mine]
    assert await found(gateway, "g1", headers=theirs) == ["their tea"]
    assert await found(gateway, "g2", headers=theirs) == []
    assert sorted(await found(gateway, "g1", "g2", "g1", "none")) == sorted([mine, other])
    assert await found(gateway, "g1", "g2", max_facts=1) == [mine]
    assert await found(gateway, "g1", query="nothing like that") == []
    assert sorted(await found(gateway, "g2", query="")) == ["Bob sleeps", other]
    assert len(await found(gateway, "g1", "g2", query="", max_facts=2)) == 2
    assert mine in await found(gateway, "g2", "g1", query="", max_facts=2), "the latest of each group come first"
    [fact] = (await gateway.post("/search", json={"group_ids": ["g1"], "query": "tea", "x": 1})).json()["facts"]
    assert fact.keys() == FACT
    search = {"text": "tea", "of": "facts", "memory": {"user_id": "g1"}}
    question = {"agent": "A", "workflow": "W", "chat_id": "c", "budget_ms": BUDGET_MS, "search": search}
    reply = (await gateway.post("/v1/context", json=question)).json()
    assert [row["id"] for row in reply["blocks"][0]["value"]] == [fact["uuid"]]
    assert (fact["name"], fact["valid_at"], fact["invalid_at"], fact["expired_at"]) == (
        "KNOWS", "2026-01-01T00:00:00.000000Z", None, None
    )  # fmt: skip
    assert fact["created_at"] > "2026-02-01T10:00:00.000000Z", "when the log took it"


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, {"#/group_ids", "#/query"}),
        ({"group_ids": [], "query": "x"}, {"#/group_ids"}),
        ({"group_ids": None, "query": "x"}, {"#/group_ids"}),
        ({"group_ids": ["g"] * 21, "query": "x"}, {"#/group_ids"}),
        ({"group_ids": ["g", " g"], "query": 1, "max_facts": 0}, {"#/group_ids/1", "#/query", "#/max_facts"}),
        ({"group_ids": ["g"], "query": "x", "max_facts": 1_001}, {"#/max_facts"}),
        ([], {"#"}),
    ],
)
async def test_searches_that_are_refused(gateway: Gateway, body: Any, where: set[str]) -> None:
    answer = await gateway.post("/search", json=body)
    assert (problem(answer), places(answer)) == ((422, "invalid-question"), where)


async def test_without_an_answer_no_facts_are_not_an_empty_list(tmp_path: Path, app_id: str, logs: Logs) -> None:
    own = EmbeddedServer(tmp_path / "own")
    url = embedded_url(tmp_path / "own")
    body = {"group_ids": ["g1"], "query": "tea"}
    answers: list[httpx.Response] = []
    search = {"text": "tea", "of": "facts", "memory": {"user_id": "g1"}}
    question = {"agent": "A", "workflow": "W", "chat_id": "c", "budget_ms": 2_000, "search": search}
    contexts: list[str] = []

    async def ask(seconds: float) -> None:
        async with serving(url, tokens_of(mine=app_id), GatewayLimits(search_s=seconds)) as gateway:
            answers.append(await gateway.post("/search", json=body))
            contexts.append((await gateway.post("/v1/context", json=question)).text)

    await ask(0.2)  # no bus
    await own.start()
    try:
        await ask(0.2)  # no responder
        nowhere = FalkorDBStore("redis://127.0.0.1:1")
        pipeline = ContextPipeline(rule_set(), nowhere)
        queue = RedisRequestQueue(url, consumer="r")
        responder = InjectionResponder(queue, pipeline.answer)
        task = asyncio.create_task(responder.run())
        await ask(5)  # no graph
        responder.stop()
        await task
        await queue.aclose()
        await pipeline.aclose()
        await nowhere.aclose()
    finally:
        await own.stop()
    for answer in answers:
        assert problem(answer) == (503, "search-failed")
        assert int(answer.headers["Retry-After"]) > 0
    reasons = ["bus_unavailable", "timeout", "graph_unavailable"]
    assert [answer.json()["reason"] for answer in answers] == reasons
    assert [json.loads(context)["reason"] for context in contexts] == reasons
    hidden = (str(tmp_path), "redis://", "127.0.0.1")
    texts = [*contexts, *(answer.text for answer in answers)]
    assert not [(each, text) for text in texts for each in hidden if each in text]
    for detail in ("the bus does not answer", "the graph server does not answer"):
        assert sum(detail in text for text in texts) == 2
    logged = "".join(entry["detail"] for entry in logs if entry["event"] == "reply_incomplete")
    assert str(tmp_path) in logged
    assert "127.0.0.1:1" in logged


# ----------------------------------------------------------------------------------------------- 202, and what is found


async def read_by_workers(url: str) -> None:
    """Let a worker apply what is on a bus."""
    bus, store = redis_bus(url), FalkorDBStore(url)
    worker = MutationWorker(bus, store, RuleSet({}, packs=(PACK,)), name="w")
    task = asyncio.create_task(worker.run())
    try:
        await all_applied(url)
    finally:
        worker.stop()
        await task
        await bus.aclose()
        await store.aclose()


async def test_a_bus_that_dies_between_messages_loses_and_doubles_none(tmp_path: Path, app_id: str) -> None:
    """Killed again and again while clients send, and each client repeats its request until it is answered with 202."""
    own = EmbeddedServer(tmp_path / "own")
    url = embedded_url(tmp_path / "own")
    await own.start()
    statuses: Counter[int] = Counter()
    taken: list[str] = []
    enough = False

    async def client(gateway: Gateway, number: int) -> None:
        while not enough:
            batch = [message(f"{number} {n}", uuid=uuid4().hex) for n in range(5)]

            async def is_taken(batch: list[Any] = batch) -> bool:
                answer = await send(gateway, *batch, group=f"g{number}")
                statuses[answer.status_code] += 1
                if answer.status_code == 202:
                    return True
                assert problem(answer) == (503, "bus-unavailable")
                assert len(answer.json()["positions"]) == 5
                assert None in answer.json()["positions"]
                return False

            await until(is_taken)
            taken.extend(each["uuid"] for each in batch)

    async with (
        serving(url, tokens_of(mine=app_id), GatewayLimits(emit_s=0.2)) as gateway,
        asyncio.TaskGroup() as clients,
    ):
        for number in range(4):
            clients.create_task(client(gateway, number))
        for _ in range(3):
            before = Counter(statuses)

            async def told(status: int, before: Counter[int] = before) -> bool:
                return statuses[status] > before[status] + 3

            await until(lambda: told(202))
            assert own.process is not None
            own.process.kill()
            await until(lambda: told(503))
            await own.stop()
            own = EmbeddedServer(tmp_path / "own")
            await own.start()
        enough = True
    try:
        assert statuses[503] >= 3
        assert len(taken) >= 60
        await read_by_workers(url)
        assert await episodes(url, app_id, "episode_id") == sorted(taken)
    finally:
        await own.stop()


ODD = (
    *("tea", " ", "\n", "\t", "\r\n", "🙂", "\u200b", "\ufeff", "\u2028", "é", "'", '"', "\\", "`", "$x", "\x01"),
    *("\x7f", "<graphiti_episode kind='x'>", "{", "]", '{"entities": [', "CYPHER a=1", "\ud7ff", "\U0010ffff"),
)


class Bodies:
    """Bodies of ``/messages`` that are sometimes right, and sometimes not quite."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def body(self) -> Any:
        pick, chance = self._random.choice, self._random.random
        messages = [self._message() for _ in range(self._random.randrange(5))]
        group = pick(["g1", "g1", "ü 🙂", "a" * 256, "-*|", "'\\\"`$", self._text()])
        body: dict[str, Any] = {"group_id": group, "messages": messages}
        if chance() < 0.2:
            body["schema_id"] = pick(["agent_memory_v1", "agent_memory_v1", None, "no", ""])
        if chance() < 0.1:
            body[pick(["group_id", "messages", "x"])] = pick([None, 1, "x", [], {}, ["x"]])
        return body

    def _text(self) -> str:
        odd = [*ODD, "\0"] if self._random.random() < 0.02 else ODD
        return "".join(self._random.choices(odd, k=self._random.randrange(6)))

    def _message(self) -> Any:
        chance, pick = self._random.random, self._random.choice
        made: dict[str, Any] = message(self._text(), role_type=pick(["user", "assistant", "system"]))
        made["uuid"] = f"{self._random.getrandbits(64):x}{pick(['', self._text()])}"
        for name, values in {
            "role": [None, "", self._text()],
            "name": [None, "", self._text()],
            "source_description": [None, "", self._text()],
            "timestamp": [None, "2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00",
                          "2026-01-01 00:00:00Z", "yesterday"],
        }.items():  # fmt: skip
            if chance() < 0.3:
                made[name] = pick(values)
        if chance() < 0.03:
            made.pop(pick(sorted(made)))
        if chance() < 0.03:
            made[pick(sorted(made))] = pick([None, 1, [], {}, True])
        return made


def named(body: Any) -> list[str]:
    """Return the ids that the graph has for the messages of a body that was taken."""
    made = [PostedMessage.model_validate_json(json.dumps(each)) for each in body["messages"]]
    return [episode_id(SOURCE, each.event_id(body["group_id"], body.get("schema_id"))) for each in made if each.uuid]


async def test_what_is_answered_with_202_is_found_and_nothing_else(gateway: Gateway, stack: Stack, app_id: str) -> None:
    seed = random.randrange(10**6)
    bodies = Bodies(seed)
    taken: list[str] = []
    unnamed = 0
    statuses: Counter[int] = Counter()
    for _ in range(400):
        body = bodies.body()
        answer = await gateway.post("/messages", json=body)
        statuses[answer.status_code] += 1
        if answer.status_code != 202:
            assert problem(answer)[0] in {400, 422}, f"seed {seed}: {answer.text}"
            continue
        ids = named(body)
        taken += ids
        unnamed += len(body["messages"]) - len(ids)
    assert min(statuses[202], statuses[422]) > 40, f"seed {seed}: {statuses}"
    there = await episodes(stack.url, app_id, "id")
    assert set(taken) <= set(there), f"seed {seed}"
    assert len(there) == len(set(taken)) + unnamed, f"seed {seed}"
    async with aclosing(redis_bus(stack.url)) as bus:
        letters: Sequence[Any] = await bus.dead_letters.read(limit=1_000)
    assert not [letter for letter in letters if app_id in letter.model_dump_json()], f"seed {seed}"


@pytest.mark.long
def test_the_process_knows_the_ontologies_beside_the_rules(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "ontologies").mkdir()
    own = tmp_path / "ontologies/own_v1.yaml"
    own.write_text("entity_types: {Customer: A company.}\n")
    environment = {"GRAPHWEFT_RULES": str(tmp_path / "rules")}
    body = {"group_id": "g", "messages": [message()], "schema_id": "other_v1"}
    with stack.gateway("--insecure-app", "a", **environment) as (url, _):
        schemas = httpx.get(f"{url}/openapi.json", timeout=120).json()["components"]["schemas"]
        names = schemas["MessagesRequest"]["properties"]["schema_id"]
        assert names["anyOf"][0]["enum"] == ["agent_memory_v1", "own_v1"]
        assert problem(httpx.post(f"{url}/messages", json=body, timeout=120)) == (422, "no-effect")
        assert httpx.get(f"{url}/healthcheck", timeout=120).json() == {"status": "healthy"}
    own.write_text("entity_types: {lower case: A company.}\n")
    process = stack.command("run", "gateway", "--port", "0", "--insecure-app", "a", **environment)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "own_v1.yaml:1:" in errors
    assert "Traceback" not in errors


def test_the_document_names_the_ontologies() -> None:
    schemas = document(GatewayLimits(), secured=True, schema_ids=["one", "two"])["components"]["schemas"]
    assert schemas["MessagesRequest"]["properties"]["schema_id"]["anyOf"] == [
        {"type": "string", "enum": ["one", "two"]},
        {"type": "null"},
    ]
    assert schemas["MessagesRequest"]["properties"]["messages"]["maxItems"] == GatewayLimits().events
    assert set(schemas["Fact"]["properties"]) == FACT
    assert BUDGET_MS > GatewayLimits().search_s * 1000 > 0
