"""(k) From ``emit`` to visible for an app whose neighbour runs into the time limit with each event, beside undisturbed.

The neighbour has events on every partition, all the time. Each of them keeps the graph server busy for the whole time
limit, twice, before it becomes a dead letter.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.harness import Bench, Died, Result, ratio
from benchmarks.latency import emit_and_watch
from benchmarks.processes import ENGINE, process
from benchmarks.services import Services
from benchmarks.workload import CALLS
from graphweft import Client
from graphweft_contracts import Event
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.roles.settings import Settings

ROW: Final = "k"
PER_SECOND: Final = 200
FULL_S: Final = 60.0
_SECONDS: Final = 12.0
_QUICK_S: Final = 6.0
_CHATS: Final = 16
_EVERY_S: Final = 1.0
_APP: Final = "slow"
_RULES: Final = """
version: "1.0"
mutation_rules:
  - name: endless
    events: ["slow.event"]
    mutations:
      - id: count
        cypher: >
          UNWIND range(1, 100000) AS a UNWIND range(1, 100000) AS b WITH sum(a * b) AS s
          MERGE (n:Sum {k: $k}) SET n.s = s
        params: {k: $workflow.chat_id}
"""


async def run(bench: Bench, services: Services) -> list[Result]:
    seconds = FULL_S if bench.full else _QUICK_S if bench.quick else _SECONDS
    last: dict[str, list[float]] = {f"{name} {p}": [] for name in ("beside", "alone") for p in ("p50", "p99")}
    title = f"emit to visible at {PER_SECOND} events/s, {seconds:.0f} s beside an app at its time limit / undisturbed"
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
        rules = Path(folder, "workflows")
        shutil.copytree(CALLS.rules, rules)
        (rules / "Slow").mkdir()
        (rules / "Slow/graph_injection.yaml").write_text(_RULES)
        settings = await services.settings("redis", "falkordb", rules)
        for round_number in bench.turns(title):
            for name in ("alone", "beside") if round_number % 2 else ("beside", "alone"):
                await services.clear("redis", "falkordb")
                probe = await services.probe("falkordb")
                async with process(ENGINE, settings, kill=True):
                    disturbing = asyncio.create_task(_disturb(settings)) if name == "beside" else None
                    try:
                        late = await emit_and_watch(settings, probe, seconds=seconds, per_second=PER_SECOND)
                    finally:
                        if disturbing is not None:
                            disturbing.cancel()
                            await asyncio.gather(disturbing, return_exceptions=True)
                    if name == "beside":
                        await _check_disturbed(settings)
                late.sort()
                for percent in (50, 99):
                    last[f"{name} p{percent}"].append(late[len(late) * percent // 100] * 1000)
            shown = ", ".join(f"{name} {values[-1]:.1f} ms" for name, values in last.items())
            bench.say(f"  [dim]neighbours {round_number + 1}/{bench.rounds}[/] {shown}")
    return [ratio(ROW, f"{title}, {p}", last, f"beside {p}", f"alone {p}", unit="ms") for p in ("p50", "p99")]


async def _disturb(settings: Settings) -> None:
    """Emit events of the slow app, more than can be worked off."""
    async with Client(settings.bus) as client:
        number = 0
        while True:
            for chat in range(_CHATS):
                number += 1
                event = Event.create(
                    "slow.event", app_id=_APP, chat_id=f"s{chat}", workflow="Slow", id=f"s{number}", data={}
                )
                await client.emit(event)
            await asyncio.sleep(_EVERY_S)


async def _check_disturbed(settings: Settings) -> None:
    """Be sure that the neighbour was at its limit all the time: none of its events took effect, and some wait."""
    bus = redis_bus(settings.bus)
    try:
        if not sum(part.lag for part in await bus.partitions.status()):
            raise Died("the slow app was not slow: nothing of it waits")
    finally:
        await bus.aclose()
