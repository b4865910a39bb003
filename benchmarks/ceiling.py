"""The graph alone: the same rows by hand-written UNWIND queries, what (b) compares the engine with.

``python -m benchmarks.ceiling EVENTS WARM_UP`` is one process with nothing but the graph's driver: no bus, no position
kept, and the rows are made before the clock starts, and some written. It prints the seconds of the others as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import batched
from typing import Any, Final

from benchmarks.naive import Query, connected
from benchmarks.processes import waited_s
from benchmarks.workload import CALLS
from graphweft_workers.settings.settings import Settings

_BATCH: Final = 1_000
"""Rows a query; neither server gains by more."""
# Written for these rules: in each of them rows may share a query on both servers.
_KEEP: Final = "UNWIND $rows AS row MERGE (c:Call {id: row.id}) SET c.tool = row.tool_name, c.success = row.success"
_LINK: Final = "UNWIND $rows AS row MATCH (c:Call {id: row.id}) MERGE (j:Journey {id: row.chat}) MERGE (j)-[:MADE]->(c)"
_COUNT: Final = (
    "UNWIND $rows AS row WITH row.chat AS chat, count(*) AS calls MATCH (j:Journey {id: chat}) "
    "SET j.calls = coalesce(j.calls, 0) + calls"
)


async def main(size: int, warm_up: int) -> None:
    settings = Settings.load()
    events = CALLS.events(warm_up + size)
    rows = [{**event.data, "id": event.data["call_id"], "chat": event.chatid} for event in events]
    rows = [{name: row[name] for name in ("id", "tool_name", "success", "chat")} for row in rows]
    async with connected(settings.graph) as query:
        await query("RETURN 1", {})
        await _write(query, rows[:warm_up])
        used_s, stood_s, begun = time.process_time(), waited_s("self"), time.monotonic()
        await _write(query, rows[warm_up:])
        seconds = time.monotonic() - begun
        used_s, stood_s = time.process_time() - used_s, waited_s("self") - stood_s
    print(json.dumps({"seconds": seconds, "cpu_s": used_s, "waited_s": stood_s}))


async def _write(query: Query, rows: Sequence[Mapping[str, Any]]) -> None:
    for batch in batched(rows, _BATCH):
        for statement in (_KEEP, _LINK, _COUNT):
            await query(statement, {"rows": list(batch)})


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
