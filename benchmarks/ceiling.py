"""The graph alone: the same rows by hand-written UNWIND queries, what (b) compares the engine with.

``python -m benchmarks.ceiling EVENTS SECONDS`` is one process with nothing but the graph's driver: no bus, no position
kept, and the rows are made before the clock starts. It prints how many events it took in how many seconds, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from itertools import batched
from typing import Final

from benchmarks.naive import connected
from benchmarks.workload import CALLS
from graphweft_workers.roles.settings import Settings

_BATCH: Final = 1_000
"""Rows a query; neither server gains by more."""
# Written for these rules: in each of them rows may share a query on both servers.
_KEEP: Final = "UNWIND $rows AS row MERGE (c:Call {id: row.id}) SET c.tool = row.tool_name, c.success = row.success"
_LINK: Final = "UNWIND $rows AS row MATCH (c:Call {id: row.id}) MERGE (j:Journey {id: row.chat}) MERGE (j)-[:MADE]->(c)"
_COUNT: Final = (
    "UNWIND $rows AS row WITH row.chat AS chat, count(*) AS calls MATCH (j:Journey {id: chat}) "
    "SET j.calls = coalesce(j.calls, 0) + calls"
)


async def main(size: int, limit_s: float) -> None:
    settings = Settings.load()
    rows = [{**event.data, "id": event.data["call_id"], "chat": event.chatid} for event in CALLS.events(size)]
    rows = [{name: row[name] for name in ("id", "tool_name", "success", "chat")} for row in rows]
    done = 0
    async with connected(settings.graph) as query:
        await query("RETURN 1", {})
        begun = time.monotonic()
        for batch in batched(rows, _BATCH):
            for statement in (_KEEP, _LINK, _COUNT):
                await query(statement, {"rows": list(batch)})
            done += len(batch)
            if time.monotonic() - begun > limit_s:
                break
        seconds = time.monotonic() - begun
    print(json.dumps({"events": done, "seconds": seconds}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
