"""A stand-in for a model, on this machine: it speaks OpenAI's protocol. ``serve`` gives the address for the client.

It calls the tool if the user wants a refund. ``told`` keeps the instructions and the question of each request, so that
you can see them.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

told: list[str] = []


def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    told.append("\n".join(each["content"] for each in messages if each["role"] in ("system", "user")))
    last = messages[-1]
    if last["role"] == "tool":
        return {"content": f"I tried to refund your lamp: {last['content']}"}
    question, _, _ = last["content"].partition("<data-")  # memory is below it
    if "efund" in question:
        call = {"name": "refund", "arguments": json.dumps({"item": "lamp"})}
        return {"content": None, "tool_calls": [{"id": "call-1", "type": "function", "function": call}]}
    return {"content": "The card had expired on Monday. Do you have another one?"}


class Model(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", **answer(asked["messages"])}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        completion = {"id": "1", "object": "chat.completion", "created": 0, "model": "", "choices": choices}
        body = json.dumps(completion).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
