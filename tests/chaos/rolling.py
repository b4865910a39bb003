"""A rolling restart: all roles end and start again one after the other, under load, and nothing is lost.

Events go over the bus and through two gateways, and so do context requests. The client of a gateway that does not
answer asks the other one, as a proxy before them does.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.services.environment import clean_environment
from tests.services.loop_holds import SWITCH
from tests.services.maven import free_port
from tests.services.rules import load_rules
from tests.services.waiting import until

from graphweft import Client
from graphweft.transports.gateway.transport import GatewayTransport
from graphweft_contracts import ContextReply, Event
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.wiring.rules import push

from .rounds import check_serial, clear
from .serial import Content, log_of, patiently
from .stack import LEASE_S, Role, Stack

__all__ = ("Load", "RollingRestart", "Tally")

_WORKFLOW = "Rolling"
_CHATS = 8
"""Of each way to the bus."""
_PARTITIONS = 4
_BETWEEN = 20
"""Requests that are answered between two restarts."""
_PACE_S = 0.01
# The value of a chat depends on the order of its events, and on each of them taking effect once.
_RULES = {
    "version": "1.0",
    "mutation_rules": [
        {
            "name": "said",
            "events": ["chat.said"],
            "mutations": [
                {"id": "said", "cypher": "CREATE (:Said {id: $id})", "params": {"id": "$event.name"}},
                {
                    "id": "chat",
                    "cypher": "MERGE (c:Chat {id: $chat}) ON CREATE SET c.n = 1, c.value = $n "
                    "ON MATCH SET c.n = c.n + 1, c.value = (c.value * 31 + $n) % 1000003",
                    "params": {"chat": "$workflow.chat_id", "n": "$event.n"},
                },
            ],
        }
    ],
    "injection_rules": [
        {
            "name": "chat",
            "agents": ["Any"],
            "queries": [
                {
                    "id": "chat", "inject_as": "chat", "format": "single",
                    "cypher": "OPTIONAL MATCH (c:Chat {id: $chat}) RETURN c.n AS n, $asked AS asked",
                    "params": {"chat": "$workflow.chat_id", "asked": "$context.asked"},
                }
            ],
        }
    ],
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What flows meanwhile."""

    events_per_s: int
    requests_per_s: int
    budget_ms: int


@dataclass(slots=True)
class Tally:
    """What became of the requests: by what happened to the roles when they were sent."""

    complete: Counter[str] = field(default_factory=Counter[str])
    incomplete: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Also by reason."""
    late: Counter[str] = field(default_factory=Counter[str])
    """Those whose call took longer than the budget."""
    slowest_ms: dict[str, float] = field(default_factory=dict[str, float])
    answered: int = 0
    events: int = 0

    @property
    def share(self) -> float:
        """The share of the requests that were answered in full."""
        complete = self.complete.total()
        return complete / max(1, complete + self.incomplete.total())

    def __str__(self) -> str:
        kinds = sorted({*self.complete, *(kind for kind, _ in self.incomplete)})
        return "\n".join(
            f"{kind}: {self.complete[kind]} complete, "
            f"{ {why: n for (of, why), n in self.incomplete.items() if of == kind} } incomplete, "
            f"{self.late[kind]} late, slowest {self.slowest_ms[kind]:.0f} ms"
            for kind in kinds
        ) + f"\n{self.events} events, {self.share:.3%} of the requests complete"  # fmt: skip


class RollingRestart:
    """Two mutation workers, two responders and two gateways on the servers of a stack; ``app`` is nobody else's."""

    def __init__(self, stack: Stack, load: Load, *, app: str, folder: Path) -> None:
        self._stack = stack
        self._load = load
        self._app = app
        self._rules = folder / "rules"
        self._phase = "quiet"
        self._stopping = False
        self.tally = Tally()
        self._ready: dict[str, str] = {}
        """By role: where it says that it is ready."""
        self._gateways: dict[str, str] = {}
        self._roles = {
            name: self._role(name, kind, folder / f"{name}.log")
            for kind in ("mutation", "injection", "gateway")
            for name in (f"{kind}-1", f"{kind}-2")
        }

    async def run(self, *rounds: Mapping[str, signal.Signals]) -> None:
        """Restart roles by these signals, one after the other, and compare the graph with a serial pass over the log.

        A round gives for each role, by the number at the end of its name, how it ends.
        """
        (self._rules / _WORKFLOW).mkdir(parents=True)
        (self._rules / _WORKFLOW / "graph_injection.yaml").write_text(json.dumps(_RULES))
        rules = load_rules(self._rules)
        if self._stack.graph_kind == "neo4j":
            await clear(self._stack)
        async with self._stack.bus() as bus:
            before = {part.id: part.end for part in await patiently(bus.partitions.status)}
            await patiently(lambda: push(bus, rules, self._app))
            try:
                for role in self._roles.values():
                    role.start()
                await asyncio.gather(*(self._until_ready(name) for name in self._roles))
                async with self._clients() as clients:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(self._emit(clients))
                        await self._first_answer(clients)
                        tasks.create_task(self._ask(tasks, clients))
                        await self._some_answers()
                        for ways in rounds:
                            await self._restart_all(ways)
                        self._stopping = True
                    for client in clients:
                        assert await client.flush(120)
                        assert client.stats.dropped == client.stats.rejected == 0

                async def lag() -> int:
                    self._check_alive()
                    return sum(part.lag for part in await patiently(bus.partitions.status))

                await until(lag, lambda found: not found, why="all events are applied")
                for name in self._roles:
                    await self._end(name, signal.SIGTERM)
            finally:
                for role in self._roles.values():
                    if role.running:
                        role.kill()
            letters = await patiently(lambda: bus.dead_letters.read(limit=3, app_id=self._app))
            assert [(letter.reason, letter.message) for letter in letters] == []
            logs = {number: await log_of(bus, number, before[number]) for number in before}
        async with self._stack.graph() as graph:
            found = await Content.of(graph, self._app)
        assert sum("Said" in node.labels for node in found.nodes) == self.tally.events
        await check_serial(self._stack, self._app, rules, logs, found)

    async def _restart_all(self, ways: Mapping[str, signal.Signals]) -> None:
        for name in self._roles:
            kind, _, number = name.rpartition("-")
            self._phase = f"{ways[number].name} {kind}"
            await self._end(name, ways[number])
            self._roles[name].start()
            await self._until_ready(name)
            await self._some_answers()
        self._phase = "quiet"
        await self._some_answers()

    async def _end(self, name: str, way: signal.Signals) -> None:
        role = self._roles[name]
        if way == signal.SIGKILL:
            role.kill()
        else:
            code = await role.stop()
            assert code in (0, -signal.SIGTERM), f"{name} ended with {code}: {role.log.read_text()[-8000:]}"

    async def _until_ready(self, name: str) -> None:
        async with httpx.AsyncClient() as http:

            async def status() -> int:
                self._check_alive()
                try:
                    return (await http.get(self._ready[name])).status_code
                except httpx.TransportError:
                    return 0

            await until(status, lambda found: found == 200, why=f"{name} is ready")

    async def _some_answers(self) -> None:
        enough = self.tally.answered + _BETWEEN
        await until(lambda: self.tally.answered, lambda found: found >= enough, why="requests are answered")

    async def _first_answer(self, clients: Sequence[Client]) -> None:
        """Wait for rows on each way: the first request makes topics and connections, the first event the graph."""
        for client in clients:

            async def is_answered(client: Client = client) -> bool:
                reply = await client.context(agent="Any", chat_id="0-0", context={"asked": 0})
                return reply.reason is None and reply.injected["chat"] is not None

            await until(is_answered, why="the first requests are answered")

    async def _emit(self, clients: Sequence[Client]) -> None:
        async def emit(count: int) -> None:
            for _ in range(count):
                self.tally.events += 1
                number = self.tally.events
                # Of ten events, eight go over the bus and one through each gateway.
                way = number % 10 if number % 10 < len(clients) else 0
                chat = f"{way}-{number // 10 % _CHATS}"
                event = Event.create(
                    "chat.said", app_id=self._app, chat_id=chat, workflow=_WORKFLOW, id=f"{self._app}-{number}",
                    source="/rolling", data={"name": str(number), "n": number % 1000},
                )  # fmt: skip
                await clients[way].emit(event, wait_s=0)

        await self._paced(self._load.events_per_s, emit)

    async def _ask(self, tasks: asyncio.TaskGroup, clients: Sequence[Client]) -> None:
        asked = 0

        async def ask(count: int) -> None:
            nonlocal asked
            for _ in range(count):
                asked += 1
                way = asked % 10 if asked % 10 < len(clients) else 0
                tasks.create_task(self._question(asked, way, clients))

        await self._paced(self._load.requests_per_s, ask)

    async def _question(self, number: int, way: int, clients: Sequence[Client]) -> None:
        phase = f"{self._phase}, over {'HTTP' if way else 'the bus'}"
        began = SYSTEM_CLOCK.monotonic()
        chat = f"{way}-{number % _CHATS}"

        async def ask(client: Client) -> ContextReply:
            spent_ms = int((SYSTEM_CLOCK.monotonic() - began) * 1000)
            left_ms = max(1, self._load.budget_ms - spent_ms)
            return await client.context(agent="Any", chat_id=chat, context={"asked": number}, budget_ms=left_ms)

        reply = await ask(clients[way])
        if way and reply.reason == "bus_unavailable":
            reply = await ask(clients[3 - way])
        took_ms = (SYSTEM_CLOCK.monotonic() - began) * 1000
        self.tally.slowest_ms[phase] = max(took_ms, self.tally.slowest_ms.get(phase, 0.0))
        self.tally.late[phase] += took_ms > self._load.budget_ms
        self.tally.answered += reply.reason is None
        if reply.reason is None and not reply.missing and reply.injected["chat"]["asked"] == number:
            self.tally.complete[phase] += 1
        else:
            self.tally.incomplete[phase, reply.reason or str(reply.missing) or str(reply.injected)] += 1

    async def _paced(self, per_s: int, act: Callable[[int], Awaitable[None]]) -> None:
        began, done = SYSTEM_CLOCK.monotonic(), 0
        while not self._stopping:
            due = int((SYSTEM_CLOCK.monotonic() - began) * per_s)
            await act(due - done)
            done = due
            await asyncio.sleep(_PACE_S)

    @asynccontextmanager
    async def _clients(self) -> AsyncIterator[Sequence[Client]]:
        """Give the client over the bus, and one for each gateway."""
        async with AsyncExitStack() as opened:
            transports = [self._stack.direct_transport(), *map(GatewayTransport, self._gateways.values())]
            yield [
                await opened.enter_async_context(
                    Client(
                        transport=transport, app_id=self._app, workflow=_WORKFLOW, budget_ms=self._load.budget_ms,
                        buffer=200_000,
                    )
                )
                for transport in transports
            ]  # fmt: skip

    def _check_alive(self) -> None:
        for name, role in self._roles.items():
            assert role.ended in (None, -signal.SIGKILL), f"{name} ended: {role.log.read_text()[-8000:]}"

    def _role(self, name: str, kind: str, log: Path) -> Role:
        port = free_port()
        environment = clean_environment(
            GRAPHWEFT_BUS_URL=self._stack.bus_server.url,
            GRAPHWEFT_GRAPH_URL=self._stack.graph_server.url,
            GRAPHWEFT_RULES=str(self._rules),
            GRAPHWEFT_PARTITIONS=str(_PARTITIONS),
            GRAPHWEFT_LEASE_S=str(LEASE_S),
            GRAPHWEFT_LOG_FORMAT="json",
            # After 5 s, as on a busy machine, a mutation is a dead letter and the block of a query is missing.
            GRAPHWEFT_MUTATION_TIMEOUT_MS="60000",
            GRAPHWEFT_QUERY_TIMEOUT_MS="60000",
            **SWITCH,
        )
        self._ready[name] = f"http://127.0.0.1:{port}/readyz"
        if kind == "gateway":
            self._gateways[name] = f"http://127.0.0.1:{port}"
            return Role(kind, environment, log, "--port", str(port), "--insecure-app", self._app)
        environment |= {"GRAPHWEFT_PROBE_ADDRESS": f"127.0.0.1:{port}", "GRAPHWEFT_WORKER_NAME": name}
        return Role(kind, environment, log)
