"""An endpoint of models for tests: OpenAI's protocol on 127.0.0.1, deterministic answers, and failures to order.

It runs in threads of its own, so it may be asked from the loop of a test, from another loop and from other processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, override

import pytest

__all__ = ("Failure", "ModelRequest", "ModelServer", "embedding_of", "model_server", "read_facts")


@dataclass(frozen=True)
class Failure:
    """What the server does instead of answering as it should."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Sent instead of the answer."""
    change: Callable[[dict[str, Any]], Any] | None = field(default=None, repr=False)
    """Makes something else of the good answer. Not shown: tests are named by the rest, and an address changes."""
    hang: bool = False
    """Take the request and never answer; ends with the server."""
    hang_up: bool = False
    """Take the request and close the connection."""
    wait_s: float = 0.0
    """Answer well, but later."""
    drip: bool = False
    """Send an answer that never ends, one byte after the other."""

    @staticmethod
    def too_many(retry_after: str | None = None) -> Failure:
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        return Failure.error(429, "rate_limit_exceeded", headers)

    @staticmethod
    def error(status: int, code: str | None = None, headers: dict[str, str] | None = None) -> Failure:
        error = {"error": {"message": "the message quotes what was sent", "type": "some_error", "code": code}}
        return Failure(status=status, headers=headers or {}, body=json.dumps(error).encode())

    @staticmethod
    def garbage(body: bytes = b"<html>it works</html>") -> Failure:
        return Failure(body=body)

    @staticmethod
    def one_vector_less() -> Failure:
        return Failure(change=lambda answer: answer | {"data": answer["data"][:-1]})

    @staticmethod
    def other_dimension() -> Failure:
        return Failure(
            change=lambda answer: answer | {"data": [item | {"embedding": [1.0, 0.0]} for item in answer["data"]]}
        )


@dataclass(frozen=True)
class ModelRequest:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: Any

    @property
    def texts(self) -> list[str]:
        """What is to be embedded."""
        texts = self.body["input"]
        return [texts] if isinstance(texts, str) else texts


def embedding_of(text: str, dimensions: int) -> list[float]:
    """Return the server's vector of a text: length 1, near those of texts with the same words."""
    numbers = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()) or [text]:
        digest = hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()
        for at in range(3):
            numbers[int.from_bytes(digest[4 * at : 4 * at + 4]) % dimensions] += 1.0 if digest[12 + at] & 1 else -1.0
    if not any(numbers):
        numbers[0] = 1.0
    length = math.hypot(*numbers)
    return [number / length for number in numbers]


def last_words(messages: list[dict[str, Any]]) -> str:
    """Answer a chat by the words of its last message, so that what was asked can be seen in the answer."""
    return f"summary: {messages[-1]['content']}"


_FACT = re.compile(r"«(\w+) (\w+) (\w+)»")


def read_facts(body: dict[str, Any]) -> str | None:
    """Answer a prompt that asks for entities or relations of a text: its facts stand as ``«Ann OWNS Shop»``.

    None for any other prompt. Entities are of the type that an ontology numbers 1, where there is one.
    """
    form = body.get("response_format", {}).get("json_schema", {}).get("name", "")
    asked = body["messages"][-1]["content"]
    for name in ("ExtractedEntities", "ExtractedEdges", "_Ready"):
        form = form or (name if f'"title": "{name}"' in asked else "")
    facts = _FACT.findall(asked)
    match form:
        case "ExtractedEntities":
            names = dict.fromkeys(name for source, _, target in facts for name in (source, target))
            type_id = int("'entity_type_id': 1" in asked or '"entity_type_id": 1' in asked)
            return json.dumps({"extracted_entities": [{"name": name, "entity_type_id": type_id} for name in names]})
        case "ExtractedEdges":
            edges = [
                {
                    "source_entity_name": source,
                    "target_entity_name": target,
                    "relation_type": type,
                    "fact": f"{source} {type.lower()} {target}",
                }
                for source, type, target in facts
            ]
            return json.dumps({"edges": edges})
        case "_Ready":
            return '{"ready": true}'
        case _:
            return None


class ModelServer:
    """Speaks ``/v1/embeddings`` and ``/v1/chat/completions``; below ``/openai/v1`` too, as Azure does.

    All that stands here may be changed while it runs.
    """

    def __init__(self, *, dimensions: int = 64) -> None:
        self.dimensions = dimensions
        self.requests: list[ModelRequest] = []
        """All that came, those that failed too."""
        self.failures: deque[Failure] = deque()
        """Each one is for one request, in the order in which they come."""
        self.always: Failure | None = None
        """For every request, after ``failures`` are used up."""
        self.refuses: Callable[[str], bool] = lambda text: not text
        """A text with which a request for embeddings is refused as a whole, with 400."""
        self.answer: Callable[[list[dict[str, Any]]], str] = last_words
        """The content of a chat completion for its messages."""
        self.reads: Callable[[dict[str, Any]], str | None] = read_facts
        """The content of a chat completion for its whole request, asked first; None leaves it to ``answer``."""
        self.fails: Callable[[ModelRequest], Failure | None] = lambda _: None
        """What happens to a request when ``failures`` are used up; None leaves it to ``always``. Called by threads."""
        self.most_at_once = 0
        """How many requests were in work at the same time."""
        self._at_once = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.base = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.url = self.base + "/v1"

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._thread.join()
        self._server.close_connections()
        self._server.server_close()

    def fail(self, *failures: Failure) -> None:
        """Fail the next requests, one after the other."""
        self.failures.extend(failures)

    @property
    def texts(self) -> list[str]:
        """All texts that were to be embedded, those of failed requests too."""
        return [text for request in self.requests if request.path.endswith("/embeddings") for text in request.texts]

    def handle(self, handler: _Handler) -> None:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            self._handle(handler)
        finally:
            with self._lock:
                self._at_once -= 1

    def _handle(self, handler: _Handler) -> None:
        content = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = ModelRequest(handler.path, headers, json.loads(content))
        with self._lock:
            self.requests.append(request)
            failure = self.failures.popleft() if self.failures else self.fails(request) or self.always or Failure()
        if failure.hang or failure.hang_up:
            if failure.hang:
                self._stopped.wait()
            handler.close_connection = True
            return
        if failure.wait_s:
            self._stopped.wait(failure.wait_s)
        if failure.drip:
            handler.send_response(200)
            handler.end_headers()
            while not self._stopped.wait(0.02):
                handler.wfile.write(b" ")
            return
        status, answer = self._answer(request)
        body = json.dumps(failure.change(answer) if failure.change else answer).encode()
        if failure.body is not None or failure.status != 200:
            status, body = failure.status, failure.body or b""
        handler.send_response(status)
        for name, value in {"Content-Type": "application/json", **failure.headers}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _answer(self, request: ModelRequest) -> tuple[int, dict[str, Any]]:
        path = request.path.removeprefix("/openai")
        if path == "/v1/embeddings":
            if any(self.refuses(text) for text in request.texts):
                return 400, {"error": {"message": "a text is refused", "type": "invalid_request_error", "code": None}}
            data = [
                {"object": "embedding", "index": number, "embedding": embedding_of(text, self.dimensions)}
                for number, text in enumerate(request.texts)
            ]
            return 200, {"object": "list", "data": data, "model": request.body["model"], "usage": {"total_tokens": 1}}
        if path == "/v1/chat/completions":
            content = self.reads(request.body)
            if content is None:
                content = self.answer(request.body["messages"])
            message = {"role": "assistant", "content": content}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return 200, {
                "id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": request.body["model"],
                "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }  # fmt: skip
        return 404, {"error": {"message": "no such path", "type": "invalid_request_error", "code": "not_found"}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = True

    def __init__(self, models: ModelServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self._connections: set[socket.socket] = set()

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    @override
    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""

    def close_connections(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server
    responses: ClassVar[dict[int, tuple[str, str]]] = {}

    def do_POST(self) -> None:
        self.server.models.handle(self)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    """One endpoint of models for one test."""
    with ModelServer() as server:
        yield server
