"""(o) One app at 100 %: what another app notices, beside the same without it.

The quiet app emits over the bus and asks for context over HTTP. The loud app does one thing as fast as it may, or all
of them at once, from a process of its own that yields the processors to the servers (``nice``): it stands for a client
on another machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import random
import shutil
import string
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count as numbers
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.harness import Bench, Died, Result, ratio
from benchmarks.latency import emit_and_watch
from benchmarks.processes import ENGINE, process
from benchmarks.services import Bus, Services
from benchmarks.workload import APP, CALLS, CHATS
from graphweft.transport import Outgoing
from graphweft_contracts import Event, wire
from graphweft_workers.gateway.tokens import new_token, sha256_of
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_transport

ROW: Final = "o"
PER_SECOND: Final = 100
ASKED_PER_SECOND: Final = 20
_SECONDS: Final = 8.0
_QUICK_S: Final = 5.0
_FULL_S: Final = 30.0
_BUDGET_MS: Final = 5_000
_LOUD: Final = "loud"
_START_S: Final = 60.0
_BODY: Final = 900_000
"""Characters of a large body: just below the limit of an event."""
_SPANS: Final = 4_000
_NICE: Final = 10
_RULES: Final = """
version: "1.0"
mutation_rules:
  - name: failing
    events: ["loud.failing"]
    mutations:
      - id: divide
        cypher: "MERGE (n:Sum {k: $k}) SET n.s = 1 / $zero"
        params: {k: $workflow.chat_id, zero: $event.zero}
"""


async def run(bus: Bus, bench: Bench, services: Services) -> list[Result]:
    seconds = _FULL_S if bench.full else _QUICK_S if bench.quick else _SECONDS
    names = ["alone", *LOADS, "all"]
    kinds = ("emit p50", "emit p99", "context p50", "context p99")
    last: dict[str, list[float]] = {f"{name} {kind}": [] for name in names for kind in kinds}
    title = f"{PER_SECOND} events/s and {ASKED_PER_SECOND} contexts/s beside an app at 100 %, {bus}"
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
        rules = Path(folder, "workflows")
        shutil.copytree(CALLS.rules, rules)
        (rules / "Loud").mkdir()
        (rules / "Loud/graph_injection.yaml").write_text(_RULES)
        tokens = {APP: new_token(), _LOUD: new_token()}
        write_tokens(Path(folder, "tokens.yaml"), tokens)
        settings = await services.settings(bus, "falkordb", rules)
        settings = settings.model_copy(update={"gateway_tokens": Path(folder, "tokens.yaml")})
        for round_number in bench.turns(title):
            turn = round_number % len(names)
            for name in [*names[turn:], *names[:turn]]:
                found = await _measured(name, settings, services, bus, tokens, seconds)
                for kind, value in zip(kinds, found, strict=True):
                    last[f"{name} {kind}"].append(value)
                shown = ", ".join(f"{kind} {value:.1f} ms" for kind, value in zip(kinds, found, strict=True))
                bench.say(f"  [dim]attack {round_number + 1}/{bench.rounds}[/] {name}: {shown}")
    return [
        ratio(ROW, f"{title}: {name}, {kind}", last, f"{name} {kind}", f"alone {kind}", unit="ms")
        for name in names[1:]
        for kind in kinds
        if kind.endswith("p99")
    ]


def write_tokens(file: Path, tokens: Mapping[str, str]) -> None:
    """Write the file of tokens, by app; each may emit and read."""
    entries = [
        {"sha256": sha256_of(token), "app_id": app, "name": app, "roles": ["emit", "read"]}
        for app, token in tokens.items()
    ]
    file.write_text(json.dumps({"tokens": entries}))


async def _measured(
    name: str, settings: Settings, services: Services, bus: Bus, tokens: dict[str, str], seconds: float
) -> tuple[float, float, float, float]:
    await services.clear(bus, "falkordb")
    probe = await services.probe("falkordb")
    port = random.randint(20_000, 30_000)
    gateway = ("-m", "graphweft_workers.cli", "run", "gateway", "--host", "127.0.0.1", "--port", str(port))
    url = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as ends:
        for arguments in (ENGINE, ("-m", "graphweft_workers.cli", "run", "injection"), gateway):
            await ends.enter_async_context(process(arguments, settings, kill=bus == "redis"))
        http = await ends.enter_async_context(
            httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {tokens[APP]}"}, timeout=30)
        )
        await until_answered(http)
        if name != "alone":
            await ends.enter_async_context(_loud(name, settings, url, tokens[_LOUD]))
        asked: list[float] = []
        asking = asyncio.create_task(_ask_all_the_time(http, asked))
        try:
            late = await emit_and_watch(settings, probe, seconds=seconds, per_second=PER_SECOND)
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
    emitted = sorted(late)
    asked.sort()
    return (*percentiles(emitted), *percentiles(asked))


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        raise Died("nothing was answered")
    return values[len(values) // 2] * 1000, values[len(values) * 99 // 100] * 1000


async def until_answered(http: httpx.AsyncClient) -> None:
    until = time.monotonic() + _START_S
    while True:
        with contextlib.suppress(httpx.TransportError, Died):
            await _ask(http, 0)
            return
        if time.monotonic() > until:
            raise Died("nobody answers")
        await asyncio.sleep(0.1)


async def _ask(http: httpx.AsyncClient, number: int) -> float:
    begun = time.perf_counter()
    answer = await http.post(
        "/v1/context",
        json={
            "workflow": "Calls", "agent": "Asker", "chat_id": f"chat-{number % CHATS}", "budget_ms": _BUDGET_MS,
            "context": {"nonce": number},
        },
    )  # fmt: skip
    if answer.status_code != 200 or answer.json()["partial"]:
        raise Died(f"{answer.status_code} {answer.text[:300]}")
    return time.perf_counter() - begun


async def _ask_all_the_time(http: httpx.AsyncClient, asked: list[float]) -> None:
    """Ask at an even rate, however long an answer takes; an answer that is not complete counts as the whole budget."""

    async def once(number: int) -> None:
        try:
            asked.append(await _ask(http, number))
        except (Died, httpx.TransportError):
            asked.append(_BUDGET_MS / 1000)

    begun = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in numbers(1):
            await asyncio.sleep(max(0.0, begun + number / ASKED_PER_SECOND - time.monotonic()))
            tasks.create_task(once(number))


@asynccontextmanager
async def _loud(name: str, settings: Settings, url: str, token: str) -> AsyncIterator[None]:
    async with process(("-m", "benchmarks.attack", name, url, token), settings, kill=True) as running:
        yield
        if running.returncode is not None:
            raise Died(f"ended with {running.returncode}")


# -- the loud app, in its own process --


async def _events(http: httpx.AsyncClient, settings: Settings) -> None:
    transport = make_transport(settings)
    for number in numbers():
        await transport.append(
            [_outgoing("tool.call_complete", f"e{number}-{i}", i % 64, "Calls", _call(i)) for i in range(300)]
        )
        await asyncio.sleep(0.05)


async def _bodies(http: httpx.AsyncClient, settings: Settings) -> None:
    transport = make_transport(settings)
    rng = random.Random(1)
    words = ["".join(rng.choices(string.ascii_lowercase, k=9)) for _ in range(_BODY // 10)]
    for number in numbers():
        rng.shuffle(words)
        data = {"user_id": "u", "messages": [{"role": "user", "text": " ".join(words)}]}
        await transport.append([_outgoing("memory.add", f"b{number}", number % 64, "Loud", data)])
        await asyncio.sleep(0.3)


async def _failing(http: httpx.AsyncClient, settings: Settings) -> None:
    transport = make_transport(settings)
    for number in numbers():
        events = [_outgoing("loud.failing", f"f{number}-{i}", i % 64, "Loud", {"zero": 0}) for i in range(20)]
        await transport.append(events)
        await asyncio.sleep(0.1)


async def _otlp(http: httpx.AsyncClient, settings: Settings) -> None:
    span = {"traceId": "1" * 32, "spanId": "2" * 16, "name": "x", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    spans = {"resourceSpans": [{"scopeSpans": [{"spans": [span] * _SPANS}]}]}
    body = gzip.compress(json.dumps(spans).encode())
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    while True:
        with contextlib.suppress(httpx.TransportError):
            await http.post("/v1/traces", content=body, headers=headers)


async def _queries(http: httpx.AsyncClient, settings: Settings) -> None:
    async def asking() -> None:
        for number in numbers():
            body = {
                "workflow": "Calls", "agent": "Hanging", "chat_id": "c", "budget_ms": 2_000,
                "context": {"nonce": number % 7},
            }  # fmt: skip
            with contextlib.suppress(httpx.TransportError):
                await http.post("/v1/context", json=body)

    await asyncio.gather(*(asking() for _ in range(32)))


LOADS: Final[dict[str, Callable[[httpx.AsyncClient, Settings], Awaitable[None]]]] = {
    "events": _events,
    "bodies": _bodies,
    "failing": _failing,
    "otlp": _otlp,
    "queries": _queries,
}


def _call(number: int) -> dict[str, Any]:
    return {"agent_name": "a", "tool_name": "t", "call_id": f"{number}", "success": True, "arguments": {}, "result": {}}


def _outgoing(type: str, id: str, chat: int, workflow: str, data: dict[str, Any]) -> Outgoing:
    event = Event.create(type, app_id=_LOUD, chat_id=f"l{chat}", workflow=workflow, user_id="u", data=data, id=id)
    return Outgoing(key=event.key, fields=wire.encode(event))


async def _main(name: str, url: str, token: str) -> None:
    os.nice(_NICE)
    settings = Settings.load()
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as http:
        loads = LOADS.values() if name == "all" else [LOADS[name]]
        await asyncio.gather(*(load(http, settings) for load in loads))


on_redis = partial(run, "redis")
on_kafka = partial(run, "kafka")

if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
