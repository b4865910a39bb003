"""What costs much, sent by one token as fast as its quotas allow: the loads of row (u), each in a process of its own.

The process has a lower priority than the servers: it stands for a client on another machine. It writes to a file
what it has sent. Without that, a load that never arrives would look like one that delays nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from graphweft.transport import Outgoing
from graphweft_contracts import Event, wire

APP: Final = "loud"
WORKFLOW: Final = "Loud"
EVENTS_PER_S: Final = 100
BYTES_PER_S: Final = 1_000_000
"""The quotas of the loud app, those of the example in docs/quotas.md."""
_CHATS: Final = 64
_NICE: Final = 10
_SENDERS: Final = 4
_ASKERS: Final = 32
_LARGE: Final = 900_000
"""Characters of the largest event: just below its limit."""
_MANY_RULES: Final = 100
_ITEMS: Final = 99
"""Items of two lists that are compared with each other: just beyond 20,000 steps, which are 7 ms."""
_SPANS: Final = 2_400
"""Each gives two events, and a request may give 5,000."""
_WRITE_S: Final = 0.5
_TEXTS: Final = ("sk-", "https://", "password is ", "eyJa.", "ghp_", "bearer ")
"""Beginnings of secrets, again and again: the slowest texts to redact."""


def rules() -> str:
    """Return the rules of the loud app, as a file."""
    dear = [
        {
            "name": f"dear-{number}",
            "events": ["loud.conditions"],
            # Each takes all steps that a condition may have, and none is like another.
            "condition": f"$event.a.exists(x, $event.b.exists(y, x + y == -{number + 1}))",
            "mutations": [_mutation("MERGE (n:Dear {k: $k})")],
        }
        for number in range(_MANY_RULES)
    ]
    lists = [
        {
            "name": f"lists-{number}",
            "events": ["loud.lists"],
            "condition": condition,
            "mutations": [_mutation("MERGE (n:Lists {k: $k})")],
        }
        for number, condition in enumerate(
            (
                "$event.l.filter(a, a.ok == true).size() > 3",
                "$event.l.map(a, a.c).size() > 3",
                "$event.tags.map(x, x + $event.suffix).exists(y, y == 'zz')",
                "$event.tags.all(x, !$event.suffix.contains(x))",
            )
        )
    ]
    deep = {
        "name": "deep",
        "events": ["loud.deep"],
        "condition": "$event.deep == $event.other",
        "mutations": [_mutation("MERGE (n:Deep {k: $k})")],
    }
    keys = {
        "name": "keys",
        "events": ["loud.keys"],
        "mutations": [_mutation("MERGE (n:Keys {k: $k}) SET n += $values", values="$event.values")],
    }
    failing = {
        "name": "failing",
        "events": ["loud.failing"],
        "mutations": [_mutation("MERGE (n:Sum {k: $k}) SET n.s = 1 / $zero", zero="$event.zero")],
    }
    text = {
        "name": "texts",
        "events": ["loud.text"],
        "mutations": [_mutation("MERGE (n:Text {k: $k}) SET n.text = $text", text="$event.text")],
    }
    asked = [
        {
            "name": "texts",
            "agents": ["Texts"],
            "queries": [_query("MATCH (n:Text) RETURN n.k AS k, n.text AS text LIMIT 20", nonce="$context.nonce")],
        },
        *(
            {
                "name": f"contexts-{number}",
                "agents": ["Contexts"],
                "condition": f"$context.a.exists(x, $context.b.exists(y, x + y == -{number + 1}))",
                "queries": [_query("MATCH (n:Text) RETURN n.k AS k LIMIT 1", nonce="$context.nonce")],
            }
            for number in range(_MANY_RULES)
        ),
    ]
    file = {
        "version": "1.0",
        "mutation_rules": [*dear, *lists, deep, keys, failing, text],
        "injection_rules": asked,
    }
    return yaml.safe_dump(file, sort_keys=False)


def _mutation(cypher: str, **params: str) -> dict[str, Any]:
    return {"id": "write", "cypher": cypher, "params": {"k": "$workflow.chat_id", **params}}


def _query(cypher: str, **params: str) -> dict[str, Any]:
    return {"id": "read", "cypher": cypher, "params": params, "inject_as": "found", "format": "markdown"}


def dear_backlog(size: int) -> Iterator[Outgoing]:
    """Yield small events that cost most for their size: each evaluates 100 conditions with all of their steps."""
    for number in range(size):
        yield _outgoing(_event("loud.conditions", number, _conditions()))


def _conditions() -> dict[str, Any]:
    return {"a": [*range(_ITEMS)], "b": [*range(_ITEMS)]}


def _lists() -> dict[str, Any]:
    item = {"ok": True, "c": {str(number): 1 for number in range(44)}}
    return {"l": [item] * 1_200, "tags": ["x"] * 1_000, "suffix": "b" * 300_000}


def _deep() -> dict[str, Any]:
    value: Any = 1
    for _ in range(120):
        value = {"d": value}
    return {"deep": [value] * 500, "other": [value] * 500}


def _keys() -> dict[str, Any]:
    return {"values": {f"key{number}": number for number in range(50_000)}}


def _words(number: int) -> dict[str, Any]:
    text = " ".join(f"{'word' if word % 7 else 'wort'}{word * 7_919 + number}" for word in range(_LARGE // 13))
    return {"user_id": "u", "messages": [{"role": "user", "text": text[:_LARGE]}]}


def _event(type: str, number: int, data: dict[str, Any]) -> Event:
    return Event.create(
        type, app_id=APP, chat_id=f"l{number % _CHATS}", workflow=WORKFLOW, user_id="u", data=data, id=f"e{number}"
    )


def _posted(type: str, number: int, data: bytes) -> bytes:
    """Return an event as it is posted: encoding a large one again for each event would take this process too long."""
    attributes = {
        "specversion": "1.0", "type": type, "id": f"e{number}", "source": "/loud", "chatid": f"l{number % _CHATS}",
        "workflow": WORKFLOW, "userid": "u",
    }  # fmt: skip
    return json.dumps(attributes).encode()[:-1] + b', "data": ' + data + b"}"


def _outgoing(event: Event) -> Outgoing:
    return Outgoing(key=event.key, fields=wire.encode(event))


class Load:
    """One token at work. ``counts`` says what came of its requests, by status."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._numbers = itertools.count()
        self.counts: Counter[str] = Counter()

    async def post(self, path: str, content: bytes, kind: str) -> None:
        """Send a body; wait if the app is above its quota."""
        try:
            answer = await self._http.post(path, content=content, headers={"Content-Type": kind})
        except httpx.TransportError as error:
            self.counts[type(error).__name__] += 1
            return
        self.counts[str(answer.status_code)] += 1
        self.counts["bytes"] += len(content)
        if answer.status_code in (429, 503):
            await asyncio.sleep(float(answer.headers.get("Retry-After", 1)))

    async def emit(self, type: str, data: bytes, *, batch: int = 1) -> None:
        """Emit a batch of events of a type with the same data, which is JSON."""
        events = b",".join(_posted(type, next(self._numbers), data) for _ in range(batch))
        await self.post("/v1/events", b"[" + events + b"]", "application/cloudevents-batch+json")

    async def ask(self, agent: str, *, search: dict[str, Any] | None = None, **context: Any) -> None:
        """Ask for a context, with a value that no cache knows."""
        context = {"nonce": next(self._numbers), **context}
        question = {"workflow": WORKFLOW, "agent": agent, "chat_id": "l0", "context": context, "budget_ms": 2_000}
        if search is not None:
            question |= {"search": search, "context": {}}
        await self.post("/v1/context", json.dumps(question).encode(), "application/json")


async def _forever(at_once: int, work: Callable[[], Awaitable[None]]) -> None:
    async def one() -> None:
        while True:
            await work()

    await asyncio.gather(*(one() for _ in range(at_once)))


async def _emitting(load: Load, type: str, data: Sequence[dict[str, Any]], *, batch: int = 1) -> None:
    each = itertools.cycle([json.dumps(one).encode() for one in data])
    await _forever(_SENDERS, lambda: load.emit(type, next(each), batch=batch))


async def _conditions_load(load: Load) -> None:
    await _emitting(load, "loud.conditions", [_conditions()], batch=10)


async def _lists_load(load: Load) -> None:
    await _emitting(load, "loud.lists", [_lists()])


async def _deep_load(load: Load) -> None:
    await _emitting(load, "loud.deep", [_deep()])


async def _keys_load(load: Load) -> None:
    await _emitting(load, "loud.keys", [_keys()])


async def _words_load(load: Load) -> None:
    await _emitting(load, "memory.add", [_words(number) for number in range(3)])


async def _failing_load(load: Load) -> None:
    await _emitting(load, "loud.failing", [{"zero": 0}], batch=25)


async def _secrets_load(load: Load) -> None:
    for text in _TEXTS:
        await load.emit("loud.text", json.dumps({"text": (text * 40_000)[:150_000]}).encode())
    await _forever(_ASKERS, lambda: load.ask("Texts"))


async def _contexts_load(load: Load) -> None:
    large = {f"variable{number}": "v" * 40 for number in range(12_000)}
    each = itertools.cycle((_conditions(), {**_conditions(), **large}))
    await _forever(_ASKERS, lambda: load.ask("Contexts", **next(each)))


async def _searches_load(load: Load) -> None:
    for number in range(4):
        words = " ".join(f"word{word}" for word in range(number * 2_000, number * 2_000 + 4_000))
        memory = {"user_id": "u", "messages": [{"role": "user", "text": words}] * 5}
        await load.emit("memory.add", json.dumps(memory).encode())
    text = " ".join(f"word{word}" for word in range(0, 10_000, 3))[:8_000]
    search = {"text": text, "memory": {"user_id": "u"}, "top_k": 50}
    await _forever(_ASKERS, lambda: load.ask("Searches", search=search))


async def _bodies_load(load: Load) -> None:
    small = [_event("loud.unknown", number, {"v": ["v" * 90] * 70}).model_dump(mode="json") for number in range(500)]
    accepted = json.dumps(small).encode()
    refused = json.dumps([{"specversion": "1.0", "data": {"v": [1] * 590}}] * 500).encode()
    bodies = itertools.cycle((accepted, refused))
    await _forever(_SENDERS, lambda: load.post("/v1/events", next(bodies), "application/cloudevents-batch+json"))


async def _otlp_load(load: Load) -> None:
    attributes = [
        {"key": key, "value": {"stringValue": value}}
        for key, value in (
            ("gen_ai.operation.name", "execute_tool"), ("gen_ai.tool.name", "t"), ("gen_ai.conversation.id", "c"),
            ("gen_ai.agent.name", "a"),
        )
    ]  # fmt: skip
    span = {"traceId": "1" * 32, "name": "execute_tool t", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    ids = [{**span, "spanId": f"{number:016x}"} for number in range(1, 2 * _SPANS + 1)]
    agents = [{**each, "attributes": attributes} for each in ids[:_SPANS]]
    # Spans of other libraries give no events, so no quota counts them. Not compressed: it would be refused as a bomb.
    others, first = (
        json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode() for spans in (ids, agents)
    )
    bodies = itertools.chain([first], itertools.repeat(others))
    await _forever(_SENDERS, lambda: load.post("/v1/traces", next(bodies), "application/json"))


async def _episodes_load(load: Load) -> None:
    entities = [
        {"type": "Person", "name": f"name {number}", **{f"a{at}": "v" * 20 for at in range(8)}}
        for number in range(1_000)
    ]
    relations = [
        {"type": "KNOWS", "source": f"name {number}", "target": f"name {number + 1}", "fact": "they met in a town"}
        for number in range(999)
    ]
    structured = {
        "user_id": "u", "episode_type": "json", "content": {"entities": entities, "relations": relations},
        "name": "all", "reference_time": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    text = " ".join(f"wort{number}" for number in range(90_000))[:_LARGE]
    messages = {"group_id": "g", "messages": [{"content": text, "role_type": "user", "role": "u"}]}
    body, episode = json.dumps(messages).encode(), json.dumps(structured).encode()
    turns = itertools.cycle(
        (
            lambda: load.emit("episode.add", episode),
            lambda: load.post("/messages", body, "application/json"),
        )
    )
    await _forever(_SENDERS, lambda: next(turns)())  # noqa: PLW0108 - another one each time


LOADS: Final[dict[str, Callable[[Load], Awaitable[None]]]] = {
    "conditions": _conditions_load,
    "lists": _lists_load,
    "deep": _deep_load,
    "keys": _keys_load,
    "words": _words_load,
    "secrets": _secrets_load,
    "failing": _failing_load,
    "contexts": _contexts_load,
    "searches": _searches_load,
    "bodies": _bodies_load,
    "otlp": _otlp_load,
    "episodes": _episodes_load,
}


async def _main(name: str, url: str, token: str, file: str) -> None:
    os.nice(_NICE)
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as http:
        load = Load(http)
        running = asyncio.ensure_future(LOADS[name](load))
        while not running.done():
            draft = Path(file).with_suffix(".new")
            draft.write_text(json.dumps(load.counts))
            draft.replace(file)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(running), _WRITE_S)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
