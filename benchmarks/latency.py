"""(e) From ``emit`` to visible in the graph, at 1,000 events a second.

Beside it stands what a way to the graph can hardly undercut: the same three mutations sent straight to it, one after
the other, while nothing else goes on.
"""

from __future__ import annotations

import asyncio
import time
from itertools import count as numbers
from typing import Final

from tests.services.rules import load_rules

from benchmarks.harness import Bench, Died, Result, ratio
from benchmarks.naive import connected
from benchmarks.processes import ENGINE, process
from benchmarks.services import GraphProbe, Services
from benchmarks.workload import CALLS, CHATS
from graphweft import Client
from graphweft_contracts import Event
from graphweft_workers.settings.settings import Settings

ROW: Final = "e"
PER_SECOND: Final = 1_000
_TICK_S: Final = 0.01
_LOOK_S: Final = 0.005
_WARM_UP_S: Final = 1.0
_STOP_S: Final = 30.0
_PROGRESS: Final = "MATCH (j:Journey) RETURN j.id, j.calls"
_runs = numbers(1)


async def run(bench: Bench, services: Services) -> list[Result]:
    settings = await services.settings("redis", "falkordb", CALLS.rules)
    last: dict[str, list[float]] = {name: [] for name in ("p50", "p99", "direct p50", "direct p99")}
    title = f"emit to visible at {PER_SECOND:,} events/s / sent straight"
    for round_number in bench.turns(title):
        await services.clear("redis", "falkordb")
        probe = await services.probe("falkordb")
        async with process(ENGINE, settings, kill=True):
            late = await emit_and_watch(settings, probe, seconds=_WARM_UP_S + 2 * bench.seconds)
        await services.clear("redis", "falkordb")
        await probe.index(load_rules(CALLS.rules).keys)
        direct = await _direct(settings)
        for prefix, values in (("", late), ("direct ", direct)):
            values.sort()
            for percent in (50, 99):
                last[f"{prefix}p{percent}"].append(values[len(values) * percent // 100] * 1000)
        shown = ", ".join(f"{name} {values[-1]:.1f} ms" for name, values in last.items())
        bench.say(f"  [dim]emit to visible {round_number + 1}/{bench.rounds}[/] {shown}")
    return [ratio(ROW, f"{title}, {p}", last, p, f"direct {p}", unit="ms") for p in ("p50", "p99")]


async def emit_and_watch(
    settings: Settings, probe: GraphProbe, *, seconds: float, per_second: int = PER_SECOND
) -> list[float]:
    """Return each event's seconds from ``emit`` to the first look at the graph that shows it.

    The order within a chat is kept, so a chat's counter says which of its events have taken effect.
    """
    run = f"late{next(_runs)}"
    events = CALLS.events(CHATS + int(per_second * seconds))
    sent: dict[str, list[float]] = {}
    seen: dict[str, int] = {}
    late: list[tuple[float, float]] = []
    over = asyncio.Event()

    async def watch() -> None:
        until = time.monotonic() + seconds + _STOP_S
        while not over.is_set() or any(seen.get(chat, 0) < len(times) for chat, times in sent.items()):
            rows = await probe.rows(_PROGRESS)
            now = time.monotonic()
            for chat, calls in rows:
                if int(calls or 0) > len(sent[chat]):
                    raise Died("events of the measurement before took effect again: their position was not committed")
                for number in range(seen.get(chat, 0), int(calls or 0)):
                    late.append((sent[chat][number], now - sent[chat][number]))
                seen[chat] = int(calls or 0)
            if now > until:
                raise Died("did not keep up")
            await asyncio.sleep(_LOOK_S)

    async with Client(settings.bus) as client, asyncio.TaskGroup() as tasks:
        # One event of each chat first, so that the worker is up when the clock starts.
        for event in events[:CHATS]:
            sent[event.chatid] = [time.monotonic()]
            await _emit(client, _renamed(event, run))
        tasks.create_task(watch())
        while len(late) < CHATS:  # noqa: ASYNC110
            await asyncio.sleep(_TICK_S)
        begun = time.monotonic()
        for number, event in enumerate(events[CHATS:]):
            due = begun + number / per_second
            if due - time.monotonic() > _TICK_S / 10:
                await asyncio.sleep(due - time.monotonic())
            sent[event.chatid].append(time.monotonic())
            tasks.create_task(_emit(client, _renamed(event, run)))
        over.set()
    if client.stats.sent != len(events):
        raise Died(f"emitted {client.stats}")
    return [seconds_late for at, seconds_late in late if at - begun > _WARM_UP_S]


async def _emit(client: Client, event: Event) -> None:
    await client.emit(event, wait_s=_STOP_S)


def _renamed(event: Event, run: str) -> Event:
    data = {**event.data, "call_id": f"{run}-{event.data['call_id']}"}
    return event.model_copy(update={"id": f"{run}-{event.id}", "data": data})


async def _direct(settings: Settings) -> list[float]:
    rules = load_rules(CALLS.rules)
    times: list[float] = []
    async with connected(settings.graph) as query:
        for event in CALLS.events(300):
            begun = time.monotonic()
            for bound in rules.match_event(_renamed(event, "direct")).mutations:
                await query(bound.mutation.cypher.statement, bound.params)
            times.append(time.monotonic() - begun)
    return times
