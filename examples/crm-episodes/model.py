"""A stand-in for a model, on this machine: it speaks OpenAI's protocol, and knows one note by heart.

`graphweft up` asks it twice: for the entities of the note, and for the relations between them.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TYPES = ["Entity", "Account", "Contact", "Product", "Competitor"]  # the prompt numbers them so
ENTITIES = {"Northwind": "Account", "Olga": "Contact", "Single Sign-On": "Product", "RivalSoft": "Competitor"}
RELATIONS = [
    ("Olga", "WORKS_FOR", "Northwind", "Olga works for Northwind."),
    ("Northwind", "WANTS", "Single Sign-On", "Northwind wants single sign-on."),
    ("Northwind", "CONSIDERS", "RivalSoft", "Northwind looks at RivalSoft."),
]


def answer(asked: str) -> object:
    if "ExtractedEntities" in asked:
        found = [{"name": name, "entity_type_id": TYPES.index(type)} for name, type in ENTITIES.items()]
        return {"extracted_entities": found}
    keys = ("source_entity_name", "relation_type", "target_entity_name", "fact")
    return {"edges": [dict(zip(keys, each, strict=True)) for each in RELATIONS]}


class Model(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        message = {"role": "assistant", "content": json.dumps(answer(asked))}
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


with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8799), Model) as server:
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()
