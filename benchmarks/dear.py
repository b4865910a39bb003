"""(u) Beside an app whose every event, request or text costs as much as it may: what its neighbour notices.

The loud app has one token and the quotas of docs/quotas.md, and sends one kind as fast as these allow. The quiet app
emits over the bus and asks for contexts over HTTP. The bar: p99 from ``emit`` to visible within twice the quiet one and
50 ms more, and 99 % of the contexts complete in time. Last comes a backlog of 50,000 dear events, which lie on the bus
as a runtime with a bus user of its own can put them there. The services run with the debug switch for event loops, and
the notes say how often a loop was held for more than 20 ms, and where for longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count as numbers
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from benchmarks import dear_loads
from benchmarks.attack import percentiles, until_answered, write_tokens
from benchmarks.harness import Bench, Died, Result, Spread
from benchmarks.latency import emit_and_watch
from benchmarks.processes import ENGINE, process
from benchmarks.services import Bus, Services, publish
from benchmarks.workload import APP, CALLS, CHATS
from graphweft_workers.gateway.tokens import new_token
from graphweft_workers.settings.settings import Settings

ROW: Final = "u"
_PER_SECOND: Final = 100
_ASKED_PER_S: Final = 20
_SECONDS: Final = 10.0
_QUICK_S: Final = 5.0
_FULL_S: Final = 30.0
_BUDGET_MS: Final = 500
"""The default budget of a context."""
_BACKLOG: Final = 50_000
_QUIET: Final = "quiet"
_QUIET_TIMES: Final = 3
"""The quiet one is measured so often in a round: at its begin, in the middle and at its end."""
_LIMIT_MS: Final = 20
_TIMES: Final = 2.0
_MORE_MS: Final = 50.0
_IN_TIME: Final = 0.99
_NOT_VISIBLE_S: Final = 30.0
"""What counts for events that were not visible so long after the last one was emitted."""


@dataclass
class _Found:
    """What one measurement found."""

    emit_ms: float
    in_time: float
    """The share of the contexts that were complete within their budget."""
    context_ms: float
    holds: Counter[str] = field(default_factory=Counter[str])
    longest: str = ""
    sent: Mapping[str, int] = field(default_factory=dict[str, int])


async def run(bus: Bus, bench: Bench, services: Services) -> list[Result]:
    seconds = _FULL_S if bench.full else _QUICK_S if bench.quick else _SECONDS
    kinds = [*dear_loads.LOADS, "backlog"]
    found: dict[str, list[_Found]] = {name: [] for name in (_QUIET, *kinds)}
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as name:
        folder = Path(name)
        settings, tokens = await _prepared(folder, bus, services)
        for round_number in bench.turns(f"dear work, {bus}", rounds=1 if bench.quick else min(bench.rounds, 3)):
            every = math.ceil(len(kinds) / (_QUIET_TIMES - 1))
            order = [name for at in range(0, len(kinds), every) for name in (_QUIET, *kinds[at : at + every])]
            for kind in [*order, _QUIET]:
                one = await _measured(kind, folder, settings, services, bus, tokens, seconds)
                found[kind].append(one)
                bench.say(
                    f"  [dim]dear {round_number + 1} {bus}[/] {kind}: emit p99 {one.emit_ms:.0f} ms, "
                    f"{one.in_time:.1%} of contexts in time, p99 {one.context_ms:.0f} ms; {_note(one)}"
                )
    quiet_ms = Spread.of([one.emit_ms for one in found[_QUIET]])
    return [_result(bus, kind, found[kind], quiet_ms) for kind in kinds]


def _result(bus: Bus, kind: str, found: list[_Found], quiet_ms: Spread) -> Result:
    emit_ms = Spread.of([one.emit_ms for one in found])
    in_time = min(one.in_time for one in found)
    met = emit_ms.median <= _TIMES * quiet_ms.median + _MORE_MS and in_time >= _IN_TIME
    return Result(
        row=ROW,
        title=f"{kind}, {bus}: emit p99; {in_time:.1%} of contexts in time; bar {'met' if met else 'MISSED'}",
        ratio=Spread.of([one.emit_ms / quiet_ms.median for one in found]),
        of=(kind, emit_ms),
        to=(_QUIET, quiet_ms),
        unit="ms",
        note=_note(found[-1]),
    )


def _note(one: _Found) -> str:
    sent = ", ".join(f"{name} {number:,}" for name, number in one.sent.items())
    holds = ", ".join(f"{number} {kind}" for kind, number in one.holds.items()) or "none"
    return f"sent: {sent or 'nothing'}; holds over {_LIMIT_MS} ms: {holds} {one.longest}".rstrip()


async def _prepared(folder: Path, bus: Bus, services: Services) -> tuple[Settings, dict[str, str]]:
    """Write rules, tokens and quotas; return the settings of the services, and the tokens by app."""
    workflows = folder / "workflows"
    shutil.copytree(CALLS.rules, workflows)
    (workflows / dear_loads.WORKFLOW).mkdir()
    (workflows / dear_loads.WORKFLOW / "graph_injection.yaml").write_text(dear_loads.rules())
    tokens = {APP: new_token(), dear_loads.APP: new_token()}
    write_tokens(folder / "tokens.yaml", tokens)
    quotas = {"events_per_s": dear_loads.EVENTS_PER_S, "bytes_per_s": dear_loads.BYTES_PER_S}
    (folder / "apps.yaml").write_text(yaml.safe_dump({"apps": {dear_loads.APP: {"quotas": quotas}}}))
    settings = await services.settings(bus, "falkordb", workflows)
    more = {
        "gateway_tokens": folder / "tokens.yaml",
        "apps": folder / "apps.yaml",
        "loop_limit_ms": _LIMIT_MS,
        "log_format": "json",
    }
    return settings.model_copy(update=more), tokens


async def _measured(
    kind: str, folder: Path, settings: Settings, services: Services, bus: Bus, tokens: dict[str, str], seconds: float
) -> _Found:
    await services.clear(bus, "falkordb")
    probe = await services.probe("falkordb")
    port = random.randint(20_000, 30_000)
    gateway = ("-m", "graphweft_workers.cli", "run", "gateway", "--host", "127.0.0.1", "--port", str(port))
    url = f"http://127.0.0.1:{port}"
    roles = {"mutation": ENGINE, "injection": ("-m", "graphweft_workers.cli", "run", "injection"), "gateway": gateway}
    logs = {name: folder / f"{name}.log" for name in roles}
    sent = folder / "sent.json"
    sent.unlink(missing_ok=True)
    asked: list[float] = []
    async with AsyncExitStack() as ends:
        for name, arguments in roles.items():
            # Killed: what is in hand may take minutes, and the bus is emptied next.
            await ends.enter_async_context(process(arguments, settings, kill=True, log=logs[name]))
        http = await ends.enter_async_context(
            httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {tokens[APP]}"}, timeout=30)
        )
        await until_answered(http)
        if kind in dear_loads.LOADS:
            await ends.enter_async_context(_loud(kind, settings, url, tokens[dear_loads.APP], sent))
        if kind == "backlog":
            await publish(settings, dear_loads.dear_backlog(_BACKLOG))
        asking = asyncio.create_task(_ask_all_the_time(http, asked))
        try:
            late = await emit_and_watch(settings, probe, seconds=seconds, per_second=_PER_SECOND)
        except* Died:
            late = [_NOT_VISIBLE_S]
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
        counts = json.loads(sent.read_text()) if sent.exists() else {}
    if kind in dear_loads.LOADS and not any(counts.get(status) for status in ("200", "202", "422")):
        raise Died(f"{kind}: nothing was taken: {counts}")
    holds, longest = _holds(logs)
    in_time = sum(seconds <= _BUDGET_MS / 1000 for seconds in asked) / max(1, len(asked))
    return _Found(
        emit_ms=percentiles(sorted(late))[1],
        in_time=in_time,
        context_ms=percentiles(sorted(asked))[1],
        holds=holds,
        longest=longest,
        sent=counts,
    )


def _holds(logs: Mapping[str, Path]) -> tuple[Counter[str], str]:
    """Return the holds by role and kind, and the longest one with the innermost places of its stack."""
    counts: Counter[str] = Counter()
    longest: dict[str, Any] = {}
    for name, log in logs.items():
        for line in log.read_text("utf-8", "replace").splitlines():
            if '"event_loop_held"' in line:
                entry = json.loads(line)
                counts[f"{name} {entry['kind']}"] += 1
                if entry["cpu_ms"] > longest.get("cpu_ms", 0):
                    longest = entry
    if not longest:
        return counts, ""
    places = " < ".join(line.rpartition("/")[2] for line in reversed(longest["stack"].splitlines()[-5:]))
    return counts, f"(longest {longest['cpu_ms']:.0f} ms, {longest['work']}: {places})"


async def _ask_all_the_time(http: httpx.AsyncClient, asked: list[float]) -> None:
    """Ask at an even rate; an answer that is not complete counts as longer than the budget."""

    async def once(number: int) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        body = {
            "workflow": "Calls", "agent": "Asker", "chat_id": f"chat-{number % CHATS}", "budget_ms": _BUDGET_MS,
            "context": {"nonce": number},
        }  # fmt: skip
        try:
            answer = await http.post("/v1/context", json=body)
            complete = answer.status_code == 200 and not answer.json()["partial"]
        except httpx.TransportError:
            complete = False
        took = loop.time() - begun
        # The budget is the responder's and the client's; a hop over HTTP and a busy machine come on top of it.
        asked.append(min(took, _BUDGET_MS / 1000) if complete else max(took, 2 * _BUDGET_MS / 1000))

    begun = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as tasks:
        for number in numbers(1):
            await asyncio.sleep(max(0.0, begun + number / _ASKED_PER_S - asyncio.get_running_loop().time()))
            tasks.create_task(once(number))


@asynccontextmanager
async def _loud(kind: str, settings: Settings, url: str, token: str, sent: Path) -> AsyncIterator[None]:
    arguments = ("-m", "benchmarks.dear_loads", kind, url, token, str(sent))
    async with process(arguments, settings, kill=True) as running:
        yield
        if running.returncode is not None:
            raise Died(f"ended with {running.returncode}")


on_redis = partial(run, "redis")
on_kafka = partial(run, "kafka")
