"""(g) Context: from the question to the answer.

Beside it stands the same query asked for by hand over the same bus (``plain_context``). A question that is new runs the
query; one that is repeated finds it in the cache. Then the same under a load of writes, and beside a query that hangs.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count as numbers
from typing import Final

from benchmarks import plain_context
from benchmarks.harness import Bench, Died, Result, Spread, in_turn, ratio
from benchmarks.processes import ENGINE, count, process
from benchmarks.services import Bus, GraphProbe, Services, publish
from benchmarks.workload import APP, CALLS, CHATS
from graphweft import Client, ContextReply
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_transport

ROW: Final = "g"
RESPONDER: Final = ("-m", "graphweft_workers.cli", "run", "injection")
PLAIN: Final = ("-m", "benchmarks.plain_context")
LOAD: Final = ("-m", "benchmarks.context", "load")
CONCURRENT: Final = (1, 16)
EVENTS_PER_S: Final = 2_000
BUDGET_MS: Final = 50
HANGING_MS: Final = 100
_WRITTEN: Final = 2_000
_TICK_S: Final = 0.02
_START_S: Final = 60.0
_nonces = numbers(1)
_runs = numbers(1)

_LEAST: Final = 300
"""Answers of which one in a hundred may be named."""

type _Ask = Callable[[int], Awaitable[object]]
"""Asks for the context of one chat."""


async def against_plain(bus: Bus, bench: Bench, services: Services) -> list[Result]:
    settings = await _written(services, bus)
    results: list[Result] = []
    async with AsyncExitStack() as ends:
        for arguments in (RESPONDER, PLAIN):
            await ends.enter_async_context(process(arguments, settings))
        client = await ends.enter_async_context(_asking(settings))
        plain = await ends.enter_async_context(plain_context.asker(settings.bus))
        query = await ends.enter_async_context(plain_context.connected(settings.graph))
        text = plain_context.statement()

        async def fresh(chat: int) -> None:
            _complete(await _ask(client, chat, nonce=next(_nonces)))

        async def repeated(chat: int) -> None:
            _complete(await _ask(client, chat, nonce=0))

        async def by_hand(chat: int) -> None:
            if len(await plain.ask(f"chat-{chat}", next(_nonces))) != 5:
                raise Died("the plain answer is not complete")

        async def straight(chat: int) -> None:
            await query(text, {"chat": f"chat-{chat}", "nonce": next(_nonces)})

        contenders: dict[str, _Ask] = {"new": fresh, "repeated": repeated, "plain": by_hand, "query alone": straight}
        for ask in contenders.values():
            await _up(ask)
            for chat in range(CHATS):
                await ask(chat)
        found = await _interleaved(bench, bus, contenders)
        for at_once, values in found.items():
            for of in ("new", "repeated"):
                for percent in ("p50", "p99"):
                    title = f"context over {bus}, {at_once} at once, {of} / plain, {percent}"
                    results.append(ratio(ROW, title, values, f"{of} {percent}", f"plain {percent}", unit="ms"))
            title = f"context over {bus}, {at_once} at once, repeated / the query alone, p50"
            results.append(ratio(ROW, title, values, "repeated p50", "query alone p50", unit="ms"))
    return results


async def _interleaved(bench: Bench, bus: Bus, contenders: dict[str, _Ask]) -> dict[int, dict[str, list[float]]]:
    """Return the milliseconds of which half, and 99 of 100, of a contender's answers stay below.

    By the number asked at once and the contender; a value a round.
    """
    names = list(contenders)
    found: dict[int, dict[str, list[float]]] = {
        at_once: {f"{name} {p}": [] for name in names for p in ("p50", "p99")} for at_once in CONCURRENT
    }
    for round_number in bench.turns(f"context over {bus}"):
        for at_once, values in found.items():
            for name in in_turn(names, round_number):
                times = await _times(contenders[name], at_once, bench.seconds)
                for percent in (50, 99):
                    values[f"{name} p{percent}"].append(times[len(times) * percent // 100] * 1_000)
            shown = ", ".join(f"{name} {several[-1]:.2f}" for name, several in values.items())
            bench.say(f"  [dim]{bus}, {at_once} at once {round_number + 1}/{bench.rounds}[/] {shown} ms")
    return found


async def _times(ask: _Ask, at_once: int, seconds: float) -> list[float]:
    """Ask as often as the time allows, ``_LEAST`` times at least; return the seconds of each, sorted."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    chats = numbers()

    async def repeat() -> None:
        while time.perf_counter() < until or len(times) < _LEAST:
            begun = time.perf_counter()
            await ask(next(chats) % CHATS)
            times.append(time.perf_counter() - begun)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(repeat())
    return sorted(times)


async def under_load(bench: Bench, services: Services) -> list[Result]:
    """Ask while 2,000 events a second change the same app's graph; then ask for what hangs, with nothing else on.

    Here nothing is killed: the bus stays, and on it the leases of a killed worker would stay too.
    """
    settings = await _written(services, "redis")
    inside: list[float] = []
    complete: list[float] = []
    slowest: list[float] = []
    rates: list[float] = []
    late: list[float] = []
    probe = await services.probe("falkordb")
    async with process(RESPONDER, settings), _asking(settings) as client:

        async def fresh(chat: int) -> None:
            _complete(await _ask(client, chat, nonce=next(_nonces)))

        await _up(fresh)
        for round_number in bench.turns("context under load"):
            before = await count(probe, CALLS.applied)
            async with process(ENGINE, settings), process((*LOAD, f"load{next(_runs)}"), settings):
                begun = await _moving(probe, before)
                replies: list[ContextReply] = []
                first = await count(probe, CALLS.applied)
                until = time.perf_counter() + 2 * bench.seconds
                while time.perf_counter() < until:
                    asked = [_ask(client, next(_nonces) % CHATS, nonce=0, budget_ms=BUDGET_MS) for _ in range(4)]
                    replies += await asyncio.gather(*asked)
                    await asyncio.sleep(0.005)
                rates.append((await count(probe, CALLS.applied) - first) / (time.perf_counter() - begun))
            inside.append(sum(reply.elapsed_ms <= BUDGET_MS for reply in replies) / len(replies))
            complete.append(sum(not reply.partial for reply in replies) / len(replies))
            slowest.append(max(reply.elapsed_ms for reply in replies))
            bench.say(
                f"  [dim]under load {round_number + 1}/{bench.rounds}[/] {len(replies)} asked, "
                f"inside {inside[-1]:.4f}, "
                f"complete {complete[-1]:.4f}, slowest {slowest[-1]:.1f} ms, {rates[-1]:,.0f} events/s"
            )
            for _ in range(10):
                began = time.perf_counter()
                reply = await _ask(client, 1, nonce=next(_nonces), agent="Hanging", budget_ms=HANGING_MS)
                late.append((time.perf_counter() - began) * 1_000 - HANGING_MS)
                if [block.name for block in reply.blocks] != ["calls"] and not reply.partial:
                    raise Died(f"a query that hangs was answered: {reply}")
    load = f"{EVENTS_PER_S:,} events/s on the same app, budget {BUDGET_MS} ms"
    return [
        Result(row=ROW, title=f"{load}: answered inside it", ratio=Spread.of(inside), unit="of 1", note=_rate(rates)),
        Result(row=ROW, title=f"{load}: complete", ratio=Spread.of(complete), unit="of 1"),
        Result(row=ROW, title=f"{load}: slowest answer", ratio=Spread.of(slowest), unit="ms"),
        Result(
            row=ROW, title=f"a query that hangs adds to the budget of {HANGING_MS} ms", ratio=Spread.of(late), unit="ms"
        ),
    ]


async def _written(services: Services, bus: Bus) -> Settings:
    """Return the settings of a graph that the engine has filled."""
    settings = await services.settings(bus, "falkordb", CALLS.rules)
    await services.clear(bus, "falkordb")
    probe = await services.probe("falkordb")
    await publish(settings, CALLS.outgoing(_WRITTEN, f"context{next(_runs)}"))
    async with process(ENGINE, settings), asyncio.timeout(_START_S):
        while await count(probe, CALLS.applied) < _WRITTEN:  # noqa: ASYNC110
            await asyncio.sleep(_TICK_S)
    return settings


async def _moving(probe: GraphProbe, before: int) -> float:
    """Wait until the load shows in the graph; return since when it does."""
    async with asyncio.timeout(_START_S):
        while await count(probe, CALLS.applied) <= before + EVENTS_PER_S // 2:  # noqa: ASYNC110
            await asyncio.sleep(_TICK_S)
    return time.perf_counter()


@asynccontextmanager
async def _asking(settings: Settings) -> AsyncIterator[Client]:
    async with Client(transport=make_transport(settings), app_id=APP, workflow="Calls") as client:
        yield client


async def _ask(client: Client, chat: int, *, nonce: int, agent: str = "Asker", budget_ms: int = 10_000) -> ContextReply:
    return await client.context(agent=agent, chat_id=f"chat-{chat}", context={"nonce": nonce}, budget_ms=budget_ms)


def _complete(reply: ContextReply) -> None:
    if reply.partial or len(reply.blocks) != 1 or reply.blocks[0].rows != 5:
        raise Died(f"the answer is not complete: {reply}")


async def _up(ask: _Ask) -> None:
    """Wait until somebody answers."""
    until = time.monotonic() + _START_S
    while True:
        try:
            await ask(0)
        except (Died, TimeoutError) as error:
            if time.monotonic() > until:
                raise Died(f"nobody answers: {error}") from error
        else:
            return


def _rate(rates: list[float]) -> str:
    return f"{Spread.of(rates)} events/s took effect meanwhile"


async def _load(run: str) -> None:
    """Publish at an even rate until the process is ended."""
    transport = make_transport(Settings.load())
    events = list(CALLS.outgoing(60 * EVENTS_PER_S, run))
    begun, at_once = time.perf_counter(), int(EVENTS_PER_S * _TICK_S)
    for tick, first in enumerate(range(0, len(events), at_once)):
        await asyncio.sleep(max(0.0, begun + tick * _TICK_S - time.perf_counter()))
        await transport.append(events[first : first + at_once])


if __name__ == "__main__":
    asyncio.run(_load(sys.argv[2]))
