"""(k) What an app notices of a neighbour whose writes are slow: from ``emit`` to visible, and contexts in time.

The neighbour does one of three things. ``endless``: events on every partition, all the time, each of which computes
until the time limit, and then writes. ``held``: 12 events of 6 chats that write first and compute afterwards. ``list``:
an event of 700 kB now and then, whose 60,000 ids are merged into two nodes each.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Final

from benchmarks.harness import Bench, Died, Result, ratio
from benchmarks.latency import emit_and_watch
from benchmarks.processes import ENGINE, process
from benchmarks.services import Services
from benchmarks.workload import APP, CALLS
from graphweft import Client
from graphweft_contracts import ContextReply, Event
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.settings.settings import Settings

ROW: Final = "k"
PER_SECOND: Final = 200
FULL_S: Final = 60.0
_SECONDS: Final = 12.0
_QUICK_S: Final = 6.0
_CHATS: Final = 16
_EVERY_S: Final = 1.0
_APP: Final = "slow"
_IDS: Final = 60_000
_LIST_EVERY_S: Final = 5.0
_ASK_EVERY_S: Final = 0.25
_BUDGET_MS: Final = 500
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
  - name: held
    events: ["slow.held"]
    mutations:
      - id: count
        cypher: >
          MERGE (n:Sum {k: $k}) WITH n UNWIND range(1, 100000) AS a UNWIND range(1, 100000) AS b
          WITH n, count(b) AS s SET n.s = s
        params: {k: $workflow.chat_id}
  - name: list
    events: ["slow.list"]
    mutations:
      - id: items
        cypher: "UNWIND $ids AS id MERGE (a:Item {id: id}) MERGE (b:Copy {id: id})"
        params: {ids: $event.ids}
"""
_INJECTION: Final = ("-m", "graphweft_workers.cli", "run", "injection")


async def run(bench: Bench, services: Services) -> list[Result]:
    seconds = FULL_S if bench.full else _QUICK_S if bench.quick else _SECONDS
    names = ["alone", *DISTURBANCES]
    kinds = ("p50", "p99", "contexts in time")
    last: dict[str, list[float]] = {f"{name} {kind}": [] for name in names for kind in kinds}
    title = f"emit to visible at {PER_SECOND} events/s, {seconds:.0f} s beside an app with slow writes / undisturbed"
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
        rules = Path(folder, "workflows")
        shutil.copytree(CALLS.rules, rules)
        (rules / "Slow").mkdir()
        (rules / "Slow/graph_injection.yaml").write_text(_RULES)
        settings = await services.settings("redis", "falkordb", rules)
        for round_number in bench.turns(title):
            turn = round_number % len(names)
            for name in (*names[turn:], *names[:turn]):
                found = await _measured(name, settings, services, seconds)
                for kind, value in zip(kinds, found, strict=True):
                    last[f"{name} {kind}"].append(value)
                bench.say(
                    f"  [dim]neighbours {round_number + 1}/{bench.rounds}[/] {name}: p50 {found[0]:.1f} ms, p99 "
                    f"{found[1]:.1f} ms, {found[2]:.1%} of the contexts within {_BUDGET_MS} ms"
                )
    return [
        ratio(
            ROW, f"{title}: {name}, {kind}", last, f"{name} {kind}", f"alone {kind}",
            unit="of 1" if kind == kinds[-1] else "ms",
        )
        for name in DISTURBANCES
        for kind in kinds
    ]  # fmt: skip


async def _measured(name: str, settings: Settings, services: Services, seconds: float) -> tuple[float, float, float]:
    await services.clear("redis", "falkordb")
    probe = await services.probe("falkordb")
    async with process(ENGINE, settings, kill=True), process(_INJECTION, settings, kill=True):
        await _answered(settings)
        asked: list[bool] = []
        disturb = DISTURBANCES.get(name)
        beside = [asyncio.create_task(_ask(settings, asked))]
        if disturb is not None:
            beside.append(asyncio.create_task(disturb(settings)))
        try:
            late = await emit_and_watch(settings, probe, seconds=seconds, per_second=PER_SECOND)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        if name == "endless":
            await _check_disturbed(settings)
    late.sort()
    return late[len(late) // 2] * 1000, late[len(late) * 99 // 100] * 1000, sum(asked) / len(asked)


async def _answered(settings: Settings) -> None:
    """Return when the responder answers."""
    async with Client(settings.bus, app_id=APP, workflow="Calls", budget_ms=_BUDGET_MS) as client:
        for number in range(100):
            if _is_complete(await client.context(agent="Asker", chat_id="chat-0", context={"nonce": -number})):
                return
            await asyncio.sleep(0.1)
    raise Died("the responder answers no request")


def _is_complete(reply: ContextReply) -> bool:
    return not reply.partial and reply.reason is None


async def _ask(settings: Settings, asked: list[bool]) -> None:
    """Ask for contexts at an even rate, and note which ones are complete within the budget."""
    async with Client(settings.bus, app_id=APP, workflow="Calls", budget_ms=_BUDGET_MS) as client:

        async def once(number: int) -> None:
            reply = await client.context(agent="Asker", chat_id=f"chat-{number % _CHATS}", context={"nonce": number})
            asked.append(_is_complete(reply))

        async with asyncio.TaskGroup() as tasks:
            for number in count(1):
                tasks.create_task(once(number))
                await asyncio.sleep(_ASK_EVERY_S)


async def _endless(settings: Settings) -> None:
    """Emit events of the slow app, more than can be worked off."""
    async with Client(settings.bus) as client:
        for number in count(0, _CHATS):
            for chat in range(_CHATS):
                await client.emit(_slow("slow.event", number + chat, chat, {}))
            await asyncio.sleep(_EVERY_S)


async def _held(settings: Settings) -> None:
    async with Client(settings.bus) as client:
        for number in range(12):
            await client.emit(_slow("slow.held", number, number % 6, {}))


async def _list(settings: Settings) -> None:
    async with Client(settings.bus) as client:
        for number in count():
            ids = [f"{number}-{each:05}" for each in range(_IDS)]
            await client.emit(_slow("slow.list", number, 0, {"ids": ids}))
            await asyncio.sleep(_LIST_EVERY_S)


DISTURBANCES: Final[dict[str, Callable[[Settings], Awaitable[None]]]] = {
    "endless": _endless,
    "held": _held,
    "list": _list,
}


def _slow(type: str, number: int, chat: int, data: dict[str, object]) -> Event:
    return Event.create(type, app_id=_APP, chat_id=f"s{chat}", workflow="Slow", id=f"{type}-{number}", data=data)


async def _check_disturbed(settings: Settings) -> None:
    """Be sure that the neighbour was at its limit all the time: none of its events took effect, and some wait."""
    bus = redis_bus(settings.bus)
    try:
        if not sum(part.lag for part in await bus.partitions.status()):
            raise Died("the slow app was not slow: nothing of it waits")
    finally:
        await bus.aclose()
