"""Records and a call note become facts. The facts that hold today are in the context of the next turn."""

import sys
import time
from typing import Any

from graphweft import Event, MemoryScope, SyncClient

USER = "mia"  # the account manager; her episodes are known to nobody else
ACCOUNT = {"type": "Account", "name": "Northwind"}


def relation(type: str, target: str, **times: str) -> dict[str, Any]:
    return {"type": type, "source": "Northwind", "target": target, **times}


RECORDS: dict[str, dict[str, Any]] = {  # structured: no model reads them
    "contract": {
        "entities": [ACCOUNT, {"type": "Product", "name": "Starter"}],
        "relations": [relation("USES", "Starter", valid_from="2025-01-01T00:00:00Z")],
    },
    "upgrade": {
        "entities": [ACCOUNT, {"type": "Product", "name": "Starter"}, {"type": "Product", "name": "Business"}],
        "relations": [  # the upgrade: one fact ends, another begins
            relation("USES", "Starter", valid_from="2025-01-01T00:00:00Z", valid_to="2026-03-01T00:00:00Z"),
            relation("USES", "Business", valid_from="2026-03-01T00:00:00Z"),
        ],
    },
}
NOTE = "Call with Olga of Northwind: they want single sign-on, and look at RivalSoft."


def episode(name: str, content: Any, type: str) -> Event:
    data = {"user_id": USER, "name": name, "episode_type": type, "schema_id": "crm_v1", "content": content}
    return Event.create("episode.add", app_id="crm", chat_id=name, user_id=USER, workflow="Sales", data=data)


with SyncClient(app_id="crm", workflow="Sales", budget_ms=5_000) as client:  # the same on a busy machine
    for name, record in RECORDS.items():
        client.emit(episode(name, record, "json"))
    if client.emit(episode("call", NOTE, "text")) is None:  # a memory worker has a model read it
        sys.exit(
            "The events are not confirmed yet: is `graphweft up` running here? `graphweft events tail` shows them."
        )
    for _ in range(150):
        found = client.search("RivalSoft", memory=MemoryScope(user_id=USER), of="facts")
        if found.results:
            break
        time.sleep(0.2)
    else:
        sys.exit("The note was not read. Does `graphweft up` run with GRAPHWEFT_EXTRACTOR, and model.py beside it?")
    question = "What does Northwind use, and what does it want from us?"
    with client.turn(agent="AccountManager", chat="renewal", user=USER, message=question) as turn:
        print(turn.context.text)
