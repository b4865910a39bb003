"""(l) What a worker needs before its first event is planned, with few and with many workflows on the bus."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import Final

from tests.services.rules import PACKS

from benchmarks.harness import Bench, Result, ratio
from benchmarks.services import Services
from benchmarks.workload import AIRLINE, CALLS
from graphweft_contracts import wire
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import StoredRules
from graphweft_rules import RuleSet
from graphweft_workers.drivers import dialects
from graphweft_workers.engine.plan.order import Arranger
from graphweft_workers.wiring.connections import make_bus, make_graph
from graphweft_workers.wiring.rules import logged_rules

ROW: Final = "l"
SIZES: Final = (10, 200)
_FILE: Final = "graph_injection.yaml"
_USED: Final = "Calls"


async def run(bench: Bench, services: Services) -> list[Result]:
    stored = {f"{size} workflows": _stored(size) for size in SIZES}
    await _first_event(services, next(iter(stored.values())), -1)  # the imports
    values = await bench.interleave(
        "first event", {name: partial(_first_event, services, each) for name, each in stored.items()}
    )
    few, many = stored
    title = f"start of a worker until its first event is planned, {many} / {few}"
    return [ratio(ROW, title, values, many, few, unit="ms CPU")]


async def _first_event(services: Services, stored: tuple[str, StoredRules], round_number: int) -> float:
    await services.clear("redis", "falkordb")
    settings = await services.settings("redis", "falkordb", CALLS.rules)
    digest, rules = stored
    async with contextlib.aclosing(make_bus(settings)) as bus, contextlib.aclosing(make_graph(settings)) as graph:
        await bus.partitions.count()
        await bus.rules.store(digest, rules)
        await bus.rules.activate(ALL_APPS, digest)
        [entry, *_] = CALLS.outgoing(1, f"start{round_number}")
        event = wire.decode(entry.fields)
        begun = time.process_time()
        active = logged_rules(settings, bus)
        await active.refresh()
        found = active.current(event.appid)
        await asyncio.to_thread(found.compile, [_USED])
        rows = [(bound, None) for bound in found.match_event(event).mutations]
        Arranger(found, graph.dialect, workflows={_USED}, summary=active.summary).arrange(rows)
        return (time.process_time() - begun) * 1e3


def _stored(size: int) -> tuple[str, StoredRules]:
    """Return the workflow of the events among others that no event names."""
    other = AIRLINE.rules / "AirlineSupport"
    folders = {_USED: CALLS.rules / _USED, **{f"Other{number}": other for number in range(size - 1)}}
    files = {f"_shared/{path.name}": path.read_bytes() for path in (AIRLINE.rules / "_shared").glob("*.yaml")}
    for name, folder in folders.items():
        files[f"{name}/{_FILE}"] = (folder / _FILE).read_bytes() + f"# {name}\n".encode()
    rules = RuleSet.of_files(files, PACKS, dialects())
    return rules.digest, StoredRules(files=rules.files, summary=rules.summary.to_json())
