"""A server on this machine that speaks the protocols of OpenAI and Anthropic, with a model that follows orders.

What the model says depends on the request alone: on the last message of the user, and on results of tools behind it.
What the message says ends with its first empty line; what stands below is context.

====================== =================================================================================
``weather CITY``       calls the tool ``weather``, and answers ``CITY`` when it has the result
``both``               calls ``weather`` and ``book`` at once, and answers "Done." when it has both results
``fail``               HTTP status 500
``cut``                a stream whose connection breaks in the middle of its answer
``short``              a stream that ends in the middle of its answer
``hang``               no answer until the server is closed
``meet NAME``          as ``weather NAME``, but the first answer waits until four clients wait for theirs
``refuse``             HTTP status 400 if the request has context, "Hello." without
``refuse NAME``        HTTP status 400
a question (``…?``)     its instructions and its context
anything else          "Hello."
====================== =================================================================================
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONCURRENT = 4
Call = tuple[str, str, dict[str, Any]]


class ModelServer:
    """Serves until it is closed. ``prompts`` holds the instructions and the user's last words of each request."""

    def __init__(self) -> None:
        self.prompts: list[tuple[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.asked = threading.Event()
        self.closed = threading.Event()
        self.barrier = threading.Barrier(CONCURRENT)
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Be silent."""

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    server._answer(self, body)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The address, without a path."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        """End."""
        self.closed.set()
        self._http.shutdown()
        self._http.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        kind = handler.path.rsplit("/", 1)[1]
        system, user, results = _READERS[kind](body)
        self.prompts.append((system, user))
        self.bodies.append(body)
        self.asked.set()
        said, _, context = user.partition("\n\n")
        word, _, rest = said.partition(" ")
        if word == "hang":
            self.closed.wait()
        if word == "fail":
            _send(handler, 500, {"error": {"message": "no model", "type": "server_error"}})
            return
        if word == "refuse" and (rest or "## Notes" in json.dumps(body)):
            _send(handler, 400, {"error": {"message": "System role not supported", "type": "invalid_request_error"}})
            return
        if word == "meet" and not results:
            self.barrier.wait()
        whole_prompt = "\n\n".join(filter(None, (system, context)))
        text, calls = (whole_prompt, []) if said.endswith("?") else _says(word, rest, results)
        if not body.get("stream"):
            _send(handler, 200, _WHOLE[kind](text, calls))
            return
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.send_header("connection", "close")  # else a client may use the connection again while it is closed
        handler.end_headers()
        parts = list(_PARTS[kind](text, calls, body))
        whole = word not in {"cut", "short"}
        for part in parts if whole else parts[: len(parts) // 2]:
            name = f"event: {part['type']}\n" if "type" in part else ""
            _chunk(handler, f"{name}data: {json.dumps(part)}\n\n".encode())
        if kind == "completions" and whole:
            _chunk(handler, b"data: [DONE]\n\n")
        if word != "cut":
            _chunk(handler, b"")
        handler.close_connection = True


def _chunk(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _says(word: str, rest: str, results: int) -> tuple[str | None, list[Call]]:
    match word:
        case "weather" | "meet" if not results:
            return None, [(f"t-{rest}", "weather", {"city": rest})]
        case "weather" | "meet":
            return rest, []
        case "both" if not results:
            return None, [("t1", "weather", {"city": "Oslo"}), ("t2", "book", {"room": "7"})]
        case "both":
            return "Done.", []
        case _:
            return "Hello.", []


def _send(handler: BaseHTTPRequestHandler, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n\n".join(part["text"] for part in content if "text" in part)


def _is_said(message: dict[str, Any]) -> bool:
    """Return whether a message is the user's own, and not one with context."""
    return message.get("role") == "user" and not _text(message["content"]).startswith("## Notes")


def _read_chat(body: dict[str, Any]) -> tuple[str, str, int]:
    messages = body["messages"]
    system = "\n".join(_text(one["content"]) for one in messages if one["role"] == "system")
    user = max(place for place, one in enumerate(messages) if _is_said(one))
    return system, _text(messages[user]["content"]), sum(one["role"] == "tool" for one in messages[user:])


def _read_responses(body: dict[str, Any]) -> tuple[str, str, int]:
    given = body["input"]
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    user = max(place for place, one in enumerate(messages) if _is_said(one))
    results = sum(one.get("type") == "function_call_output" for one in messages[user:])
    return body.get("instructions") or "", _text(messages[user]["content"]), results


def _read_messages(body: dict[str, Any]) -> tuple[str, str, int]:
    texts = [one for one in body["messages"] if _is_said(one) and _text(one["content"])]
    last = body["messages"][-1]["content"]
    results = [] if isinstance(last, str) else [part for part in last if part["type"] == "tool_result"]
    return _text(body.get("system") or ""), _text(texts[-1]["content"]), len(results)


def _chat(text: str | None, calls: list[Call]) -> dict[str, Any]:
    tools = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for id, name, arguments in calls
    ]
    message = {"role": "assistant", "content": text, **({"tool_calls": tools} if tools else {})}
    return {
        "id": "chat-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if tools else "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
    }


def _chat_parts(text: str | None, calls: list[Call], body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    def part(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "fake", "choices": [choice]}

    yield part({"role": "assistant", "content": ""})
    for letter in text or "":
        yield part({"content": letter})
    for index, (id, name, arguments) in enumerate(calls):
        function = {"name": name, "arguments": ""}
        yield part({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
        whole = json.dumps(arguments)
        for piece in (whole[:4], whole[4:]):
            yield part({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield part({}, "tool_calls" if calls else "stop")
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**part({}), "choices": [], "usage": _chat(None, [])["usage"]}


def _responses(text: str | None, calls: list[Call]) -> dict[str, Any]:
    said = {"type": "output_text", "text": text, "annotations": []}
    output: list[dict[str, Any]] = [
        {
            "type": "function_call",
            "id": f"fc-{id}",
            "call_id": id,
            "name": name,
            "arguments": json.dumps(arguments),
            "status": "completed",
        }
        for id, name, arguments in calls
    ]
    if text is not None:
        output.append({"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [said]})
    return {
        "id": "resp-1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "fake",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "usage": {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 12,
        },
    }


def _responses_parts(text: str | None, calls: list[Call], body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    whole = _responses(text, calls)
    yield {
        "type": "response.created",
        "sequence_number": 0,
        "response": {**whole, "output": [], "status": "in_progress"},
    }
    for index, item in enumerate(whole["output"]):
        yield {"type": "response.output_item.added", "sequence_number": 1, "output_index": index, "item": item}
        yield {"type": "response.output_item.done", "sequence_number": 2, "output_index": index, "item": item}
    yield {"type": "response.completed", "sequence_number": 3, "response": whole}


def _messages(text: str | None, calls: list[Call]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [] if text is None else [{"type": "text", "text": text}]
    content += [{"type": "tool_use", "id": id, "name": name, "input": arguments} for id, name, arguments in calls]
    return {
        "id": "msg-1",
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": content,
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 7},
    }


def _messages_parts(text: str | None, calls: list[Call], body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    whole = _messages(text, calls)
    yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
            deltas = [{"type": "text_delta", "text": letter} for letter in block["text"]]
        else:
            yield {"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}}
            whole_input = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": one} for one in (whole_input[:4], whole_input[4:])]
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 7}}
    yield {"type": "message_stop"}


_READERS = {"completions": _read_chat, "responses": _read_responses, "messages": _read_messages}
_WHOLE = {"completions": _chat, "responses": _responses, "messages": _messages}
_PARTS = {"completions": _chat_parts, "responses": _responses_parts, "messages": _messages_parts}
