"""Probes of a role over HTTP, on an address of their own: for Kubernetes, and for whoever wants a number.

- ``/livez`` asks the event loop of the process only, which answers or does not: a restart mends a loop that hangs, and
  no server.
- ``/startupz`` answers 503 until the role has loaded its rules and begun its work.
- ``/readyz`` answers 503 also while a server that the role needs does not answer.

Routes are ASGI applications by path, as FastStream and Prometheus have them too. Nothing but states is told: the
address may be open to a whole cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, override

import uvicorn

from graphweft_contracts import GraphweftError
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.processes.heartbeat import Heartbeat
from graphweft_workers.processes.http_server import limited_logs, listening, server_config
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.wiring.connections import make_bus, make_graph

logger = get_logger("graphweft.probes")

_WITH_GRAPH: Final = frozenset({"mutation", "injection", "memory", "console"})
"""The roles that ask the graph server; all ask the bus."""
_LOOK_S: Final = 2.0
"""So long a server may take to answer."""
_FRESH_S: Final = 1.0
"""What was seen of the servers counts so long: nobody has many questions sent to them."""
_CONNECTIONS: Final = 128
"""Open connections. The oldest idle one gives way to a new one: whoever holds connections keeps no probe out."""

type Asgi = Callable[[Any, Any, Any], Awaitable[None]]
type _Answer = Callable[[], Awaitable[tuple[int, Mapping[str, Any]]]]


class ServerLook:
    """Looks whether the servers answer, at most once a second, whoever asks."""

    def __init__(self, bus: Bus, graph: GraphStore | None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Without ``graph``, only the bus is looked at."""
        self._bus = bus
        self._graph = graph
        self._clock = clock
        self._seen: dict[str, bool] = {}
        self._at = 0.0
        self._looking = asyncio.Lock()

    async def look(self) -> dict[str, bool]:
        """Return, by ``bus`` and ``graph``, whether the server answers."""
        async with self._looking:
            if not self._seen or self._clock.monotonic() - self._at > _FRESH_S:
                looks = {"bus": _answers("bus", self._bus.partitions.layout())}
                if self._graph is not None:
                    looks["graph"] = _answers("graph", self._graph.check())
                self._seen = dict(zip(looks, await asyncio.gather(*looks.values()), strict=True))
                self._at = self._clock.monotonic()
            return self._seen


async def _answers(server: str, question: Awaitable[object]) -> bool:
    try:
        async with asyncio.timeout(_LOOK_S):
            await question
    except (GraphweftError, TimeoutError) as error:
        logger.debug("server_not_ready", server=server, error=str(error) or f"no answer within {_LOOK_S} s")
        return False
    return True


def routes(heartbeat: Heartbeat, look: Callable[[], Awaitable[Mapping[str, bool]]]) -> dict[str, Asgi]:
    """Return what answers by path."""

    async def livez() -> tuple[int, dict[str, Any]]:
        return 200, {"role": heartbeat.role, "turn_age_s": round(heartbeat.turn_age_s, 3)}

    async def startupz() -> tuple[int, dict[str, Any]]:
        running = heartbeat.state == "running"
        return 200 if running else 503, {"role": heartbeat.role, "state": heartbeat.state}

    async def readyz() -> tuple[int, dict[str, Any]]:
        status, told = await startupz()
        seen = await look()
        servers = {name: "ok" if answers else "unavailable" for name, answers in seen.items()}
        return status if all(seen.values()) else 503, {**told, **servers}

    return {"/livez": _json(livez), "/startupz": _json(startupz), "/readyz": _json(readyz)}


def application(by_path: Mapping[str, Asgi]) -> Asgi:
    """Return an application that gives each request to the one at its path."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        known = by_path.get(scope["path"])
        if known is None:
            paths = ", ".join(by_path)
            await _send(send, 404, {"error": f"no such path: there are {paths}"})
        elif scope["method"] not in {"GET", "HEAD"}:
            await _send(send, 405, {"error": "only GET and HEAD are answered"})
        else:
            await known(scope, receive, send)

    return answer


def _json(answer: _Answer) -> Asgi:
    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        await _send(send, *await answer())

    return asgi


async def _send(send: Any, status: int, body: Mapping[str, Any]) -> None:
    content = json.dumps(body).encode() + b"\n"
    headers = [
        (b"content-type", b"application/json"), (b"content-length", b"%d" % len(content)),
        (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


class _Server(uvicorn.Server):
    """uvicorn's server inside a process that has its own signals."""

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def serving(settings: Settings, heartbeat: Heartbeat, address: str) -> AsyncGenerator[str]:
    """Answer probes at ``host:port`` while the block runs; give the URL. Raises ``InvalidSettings`` if it cannot."""
    host, _, port = address.rpartition(":")
    async with AsyncExitStack() as stack:
        bus = make_bus(settings, archived=False)
        stack.push_async_callback(bus.aclose)
        graph = make_graph(settings) if heartbeat.role in _WITH_GRAPH else None
        if graph is not None:
            stack.push_async_callback(graph.aclose)
        advice = "set GRAPHWEFT_PROBE_ADDRESS to another address"
        listener = stack.enter_context(listening(host.strip("[]"), int(port), what="probes", advice=advice))
        stack.enter_context(limited_logs())
        app = application(routes(heartbeat, ServerLook(bus, graph).look))
        server = _Server(server_config(app, connections=_CONNECTIONS, newest_first=True, lifespan="off"))
        serving = asyncio.create_task(server.serve([listener]), name="graphweft-probes")
        url = f"http://{host}:{listener.getsockname()[1]}"
        logger.info("probes_listen", url=url)
        try:
            yield url
        finally:
            server.should_exit = True
            await serving
