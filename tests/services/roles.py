"""Roles of graphweft as processes of their own, and a server that answers nobody."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services.loop_holds import SWITCH, check_log

__all__ = ("Responder", "counted", "role")


@dataclass
class Responder:
    process: asyncio.subprocess.Process
    log: Path

    def markers(self) -> list[str]:
        """The contract's markers in the order in which they were logged."""
        entries = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [entry["event"] for entry in entries if entry["event"].startswith("GRAPHRAG_")]


@asynccontextmanager
async def role(
    name: str, folder: Path, url: str, *, arguments: Sequence[str] = (), **settings: str
) -> AsyncIterator[Responder]:
    """Run one role as a process of its own. Its event loop must not be held for long."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GRAPHWEFT_", "NEO4J_", "GRAPH_", "GRAPHRAG_"))
    }
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "graphweft_workers.cli", "run", name, *arguments),
            env={
                **kept,
                "GRAPHWEFT_BUS_URL": url,
                "GRAPHWEFT_RULES": str(folder / "workflows"),
                "GRAPHWEFT_LOG_FORMAT": "json",
                **SWITCH,
                **settings,
            },
            stderr=output,
            stdout=output,
        )
        try:
            yield Responder(process, log)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()
    check_log(log)


@contextmanager
def counted() -> Iterator[tuple[int, list[int]]]:
    """Give the port of a server that answers nobody, and the list of those who came."""
    came: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                came.append(1)
                connection.close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], came
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
