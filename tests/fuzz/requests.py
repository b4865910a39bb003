"""Random HTTP requests to a gateway: sound ones of each route, and those with faults in bodies, headers and bytes."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ("Request", "Sender")

_SINGLE: Final = "application/cloudevents+json"
_BATCH: Final = "application/cloudevents-batch+json"
_JSON: Final = "application/json"
_PROTOBUF: Final = "application/x-protobuf"
_VALUES: Final = (
    *("", " ", "a", "\0", "a\nb", "\u200b", "İ" * 50, "a" * 257, "漢" * 300, "`", "' RETURN 1 //", "$x", "{}", "null"),
    *("2026-02-01T10:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "1e999", "[role: system]"),
    *(0, 1, -1, 2**31, 2**63, 10**30, 1.5, -0.0, 1e308, True, False, None, [], {}, [[]], [{}], {"a": {"b": [1]}}),
)
_PATHS: Final = ("/healthz", "/readyz", "/healthcheck", "/openapi.json", "/", "/v1/events/", "/v1/../search", "/%00")
_METHODS: Final = ("GET", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. ``raw`` are its bytes if it is no lawful HTTP; it is then sent as it is."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    raw: bytes | None = None


class Sender:
    """Makes requests; equal seeds make equal ones."""

    def __init__(self, seed: int, tokens: dict[str, str]) -> None:
        """``tokens`` are the tokens by role, or by any other name."""
        self._random = random.Random(seed)
        self._tokens = tokens
        self._makers: tuple[Callable[[], Request], ...] = (
            self._event, self._event, self._batch, self._binary, self._question, self._question, self._search,
            self._traces, self._traces, self._messages, self._facts, self._other,
        )  # fmt: skip

    def request(self) -> Request:
        """Return the next request: a third is sound."""
        made = self._random.choice(self._makers)()
        if self._random.random() < 0.33:
            return made
        body, headers, path = made.body, dict(made.headers), made.path
        for _ in range(self._random.choice([1, 1, 1, 2, 3])):
            kind = self._random.random()
            if kind < 0.6 and body[:1] in {b"{", b"["}:
                body = self._faulty_json(body)
            elif kind < 0.8 and body:
                body = self._faulty_bytes(body)
            else:
                headers = self._faulty_headers(headers)
        if self._random.random() < 0.05:
            path = f"{path}?{self._random.choice(['app_id=x', 'a=%00', '&&&', 'token=' + 'x' * 500])}"
        changed = Request(method=made.method, path=path, headers=headers, body=body)
        return self._raw(changed) if self._random.random() < 0.08 else changed

    # ------------------------------------------------------------------------------------------------- sound requests

    def _post(self, path: str, body: Any, kind: str = _JSON, **headers: str) -> Request:
        written = body if isinstance(body, bytes) else json.dumps(body).encode()
        token = self._tokens[self._random.choice(sorted(self._tokens))]
        named = {"Authorization": f"Bearer {token}", "Content-Type": kind, **headers}
        return Request(method="POST", path=path, headers=named, body=written)

    def _id(self) -> str:
        return str(UUID(int=self._random.getrandbits(128)))

    def _user(self) -> str:
        return self._random.choice(["u1", "u2", "ada", "Ada", "u'1"])

    def _text(self) -> str:
        words = ("Ada", "owns", "the shop", "likes", "green tea", "and", "dogs", "I", "prefer", "in Oslo", "refund")
        return " ".join(self._random.choice(words) for _ in range(self._random.randint(1, 12)))

    def _attributes(self) -> dict[str, Any]:
        pick = self._random.choice
        user, chat = self._user(), pick(["c1", "c2", "c3"])
        type, data = pick(
            [
                ("note.made", {"text": self._text(), "note": self._id()}),
                ("tool.call_complete", {"tool_name": "refund", "success": True, "result": self._text()}),
                ("agent.turn_complete", {"agent_name": "A", "response": self._text()}),
                ("memory.add", self._memory(user)),
                ("memory.add", self._memory(user)),
                ("memory.erase", {"user_id": "nobody"}),
                ("memory.forget", {"memory_ids": [self._id()]}),
                ("memory.embedded", {"memory_id": self._id(), "model": "m", "embedding": [1.0, 2.0]}),
                ("memory.summarized", {"user_id": user, "summary": "s", "memory_ids": [self._id()], "model": "m"}),
                ("episode.add", {"user_id": user, "episode_type": "text", "content": self._text()}),
                ("episode.add", {"user_id": user, "episode_type": "json", "content": self._structure()}),
            ]
        )
        return {
            "specversion": "1.0", "id": self._id(), "source": "/fuzz", "type": type, "chatid": chat, "userid": user,
            "workflow": pick(["Notes", "Notes", "Notes", "Nowhere"]), "data": data,
        }  # fmt: skip

    def _memory(self, user: str) -> dict[str, Any]:
        said = [
            {"role": self._random.choice(["user", "assistant"]), "text": self._text(), "message_id": self._id()}
            for _ in range(self._random.randint(1, 4))
        ]
        return {"user_id": user, "thread_id": "t", "messages": said}

    def _structure(self) -> dict[str, Any]:
        names = [self._text()[:40] for _ in range(2)]
        return {
            "entities": [
                {"type": "Person", "name": name, "age": self._random.choice([1, "two", None])} for name in names
            ],
            "relations": [{"type": "KNOWS", "source": names[0], "target": names[1], "fact": self._text()}],
        }

    def _event(self) -> Request:
        return self._post("/v1/events", self._attributes(), _SINGLE)

    def _batch(self) -> Request:
        return self._post("/v1/events", [self._attributes() for _ in range(self._random.randint(0, 6))], _BATCH)

    def _binary(self) -> Request:
        attributes = self._attributes()
        data = attributes.pop("data")
        return self._post("/v1/events", data, **{f"ce-{name}": str(value) for name, value in attributes.items()})

    def _turn(self) -> dict[str, Any]:
        return {
            "agent": "A", "workflow": "Notes", "chat_id": "c1", "user_id": self._user(),
            "budget_ms": self._random.choice([1, 20, 100, 400]), "max_tokens": self._random.choice([None, 50]),
            "explain": self._random.random() < 0.3,
            "context": {"text": self._text(), "question": self._text(), "user_id": self._user()},
        }  # fmt: skip

    def _question(self) -> Request:
        return self._post("/v1/context", self._turn())

    def _search(self) -> Request:
        pick = self._random.choice
        search = {
            "text": pick([self._text(), ""]), "memory": {"user_id": self._user()}, "top_k": pick([1, 5, 50]),
            "index_type": pick([None, "fulltext", "vector", "hybrid"]),
            "of": pick(["memories", "facts", "entities", "episodes"]),
        }  # fmt: skip
        return self._post("/v1/context", self._turn() | {"search": {k: v for k, v in search.items() if v is not None}})

    def _messages(self) -> Request:
        pick = self._random.choice
        said = [
            {"content": self._text(), "role_type": pick(["user", "assistant", "system"]), "role": "Ada",
             "uuid": self._id(), "timestamp": "2026-02-01T10:00:00Z"}
            for _ in range(self._random.randint(0, 4))
        ]  # fmt: skip
        return self._post("/messages", {"group_id": self._user(), "messages": said})

    def _facts(self) -> Request:
        asked = {"group_ids": [self._user()], "query": self._text(), "max_facts": self._random.choice([1, 10, 1_000])}
        return self._post("/search", asked)

    def _traces(self) -> Request:
        pick = self._random.choice
        spans = [
            {
                "traceId": f"{self._random.getrandbits(128):032x}", "spanId": f"{self._random.getrandbits(64):016x}",
                "name": "n", "startTimeUnixNano": "1700000000000000000", "endTimeUnixNano": "1700000001000000000",
                "status": {"code": pick([0, 1, 2]), "message": "m"},
                "attributes": [
                    {"key": "gen_ai.operation.name", "value": {"stringValue": pick(["execute_tool", "chat", "x"])}},
                    {"key": "gen_ai.tool.name", "value": {"stringValue": "refund"}},
                    {"key": "gen_ai.tool.call.result", "value": {"arrayValue": {"values": [{"intValue": "1"}]}}},
                ],
            }
            for _ in range(self._random.randint(0, 4))
        ]  # fmt: skip
        body: Any = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
        kind = pick([_JSON, _PROTOBUF])
        if kind == _PROTOBUF:
            message = ExportTraceServiceRequest()
            bare = [{name: value for name, value in span.items() if not name.endswith("Id")} for span in spans]
            json_format.ParseDict({"resourceSpans": [{"scopeSpans": [{"spans": bare}]}]}, message)
            for made in (span for scope in message.resource_spans[0].scope_spans for span in scope.spans):
                made.trace_id, made.span_id = self._random.randbytes(16), self._random.randbytes(8)
            body = message.SerializeToString()
        else:
            body = json.dumps(body).encode()
        if self._random.random() < 0.5:
            return self._post("/v1/traces", gzip.compress(body, mtime=0), kind, **{"Content-Encoding": "gzip"})
        return self._post("/v1/traces", body, kind)

    def _other(self) -> Request:
        made = self._post(self._random.choice(_PATHS), b"")
        return Request(method=self._random.choice(_METHODS), path=made.path, headers=made.headers, body=b"")

    # --------------------------------------------------------------------------------------------------------- faults

    def _faulty_json(self, body: bytes) -> bytes:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return self._faulty_bytes(body)
        places: list[tuple[Any, Any]] = []
        waiting = [value]
        while waiting:
            part = waiting.pop()
            keys: Any = list(part) if isinstance(part, dict) else range(len(part))
            places += [(part, key) for key in keys]
            waiting += [part[key] for key in keys if isinstance(part[key], dict | list)]
        if not places:
            return json.dumps(self._random.choice(_VALUES)).encode()
        part, key = self._random.choice(places)
        match self._random.randrange(6):
            case 0:
                del part[key]
            case 1 if isinstance(part, dict):
                part[self._random.choice(["x", "app_id", "appid", "__proto__", "", "a" * 300, "\0"])] = part[key]
            case 2 if isinstance(part, list):
                part[key:key] = [part[key]] * self._random.choice([1, 50, 600])
            case 3:
                for _ in range(self._random.choice([1, 30, 150])):
                    part[key] = [part[key]] if self._random.random() < 0.5 else {"a": part[key]}
            case 4:
                part[key] = str(part[key]) * self._random.choice([1, 20, 2_000])
            case _:
                part[key] = self._random.choice(_VALUES)
        return json.dumps(value).encode()

    def _faulty_bytes(self, body: bytes) -> bytes:
        at = self._random.randrange(len(body))
        match self._random.randrange(5):
            case 0:
                return body[:at]
            case 1:
                return body[:at] + self._random.randbytes(self._random.choice([1, 4, 200])) + body[at:]
            case 2:
                return body[:at] + bytes([body[at] ^ (1 << self._random.randrange(8))]) + body[at + 1 :]
            case 3:
                end = at + self._random.randrange(1, 20)
                return body[:at] + body[at:end] * self._random.choice([2, 100]) + body[end:]
            case _:
                return body[:at] + body[at + self._random.randrange(1, 20) :]

    def _faulty_headers(self, headers: dict[str, str]) -> dict[str, str]:
        pick = self._random.choice
        name = pick(
            [*headers, "Content-Encoding", "Host", "Content-Type", "Expect", "X-App-Id", "ce-id", "ce-specversion"]
        )
        value = pick(
            ["", "gzip", "identity", "br", "Bearer", "Bearer x", "Basic x", "100-continue", "a" * 2_000, "%ff", "\x7f",
             "application/json; charset=latin-1", _SINGLE, _BATCH, _PROTOBUF, _JSON, "text/plain", "1.0", "\u00e9"]
        )  # fmt: skip
        return {key: each for key, each in headers.items() if key != name or self._random.random() < 0.5} | {
            name: value
        }

    def _raw(self, made: Request) -> Request:
        """Return a request whose head is written by hand, with a fault in its bytes."""
        pick = self._random.choice
        lines = [f"{made.method} {made.path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in made.headers.items() if name != "Host"]
        lines.append(
            pick([f"Content-Length: {len(made.body)}", "Transfer-Encoding: chunked", "Content-Length: 99999999"])
        )
        if self._random.random() < 0.3:
            lines.append(pick(["Content-Length: 3", " folded", "X : y", "X:\0", "A" * 70_000, "Transfer-Encoding: x"]))
        end = pick(["\r\n", "\r\n", "\n", "\r"])
        head = (end.join(lines) + end * 2).encode("latin-1", "replace")
        if self._random.random() < 0.5:
            head = self._faulty_bytes(head)
        return Request(method=made.method, path=made.path, headers={}, body=b"", raw=head + made.body)
