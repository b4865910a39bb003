"""Probes of a role over HTTP, on an address of their own: for Kubernetes, and for whoever wants a number.

- ``/livez`` asks the event loop of the process only, which answers or does not: a restart mends a loop that hangs, and
  no server.
- ``/startupz`` answers 503 until the role has loaded its rules and begun its work.
- ``/readyz`` answers 503 also while a server that the role needs does not answer, and while the work on a partition
  fails again and again, which it names.

Routes are ASGI applications by path, as FastStream and Prometheus have them too. Nothing but states is told: the
address may be open to a whole cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Final, override

import uvicorn

from graphweft_workers.processes.heartbeat import Heartbeat
from graphweft_workers.processes.http_server import bound, limited_logs, server_config
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.probes")

_CONNECTIONS: Final = 128
"""Open connections. The oldest idle one gives way to a new one: whoever holds connections keeps no probe out."""

type Asgi = Callable[[Any, Any, Any], Awaitable[None]]
type _Answer = Callable[[], Awaitable[tuple[int, Mapping[str, Any]]]]


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
        servers: dict[str, str | list[int]] = {
            name: "ok" if answers else "unavailable" for name, answers in seen.items()
        }
        interrupted = sorted(heartbeat.interrupted())
        if interrupted:
            servers["interrupted"] = interrupted
        return status if all(seen.values()) and not interrupted else 503, {**told, **servers}

    return {"/livez": _json(livez), "/startupz": _json(startupz), "/readyz": _json(readyz)}


def metrics_route(collect: Callable[[], Awaitable[tuple[str, bytes]]]) -> Asgi:
    """Return what answers for ``/metrics``; ``collect`` returns the type and the text of all metrics."""

    async def metrics(scope: Any, receive: Any, send: Any) -> None:
        kind, content = await collect()
        await _send(send, 200, kind, content)

    return metrics


def application(by_path: Mapping[str, Asgi]) -> Asgi:
    """Return an application that gives each request to the one at its path."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        known = by_path.get(scope["path"])
        if known is None:
            paths = ", ".join(by_path)
            await _send_json(send, 404, {"error": f"no such path: there are {paths}"})
        elif scope["method"] not in {"GET", "HEAD"}:
            await _send_json(send, 405, {"error": "only GET and HEAD are answered"})
        else:
            await known(scope, receive, send)

    return answer


def _json(answer: _Answer) -> Asgi:
    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        await _send_json(send, *await answer())

    return asgi


async def _send_json(send: Any, status: int, body: Mapping[str, Any]) -> None:
    await _send(send, status, "application/json", json.dumps(body).encode() + b"\n")


async def _send(send: Any, status: int, kind: str, content: bytes) -> None:
    headers = [
        (b"content-type", kind.encode()), (b"content-length", b"%d" % len(content)),
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
async def serving(by_path: Mapping[str, Asgi], address: str) -> AsyncGenerator[str]:
    """Answer at ``host:port`` while the block runs; give the URL. Raises ``InvalidSettings`` if it cannot."""
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        advice = "set GRAPHWEFT_PROBE_ADDRESS to another address"
        listener = stack.enter_context(bound(host.strip("[]"), int(port), what="probes", advice=advice))
        stack.enter_context(limited_logs())
        config = server_config(application(by_path), connections=_CONNECTIONS, newest_first=True, lifespan="off")
        server = _Server(config)
        serving = asyncio.create_task(server.serve([listener]), name="graphweft-probes")
        url = f"http://{host}:{listener.getsockname()[1]}"
        logger.info("probes_listen", url=url)
        try:
            yield url
        finally:
            server.should_exit = True
            await serving
