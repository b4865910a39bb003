"""A real Neo4j Community server for tests: a process of its own, on a port that stays, with its files in a folder.

The jars come from Maven Central. What runs is the server's kernel with Bolt and Cypher 5, as the distribution has it,
without its scripts and its HTTP side.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.services.maven import free_port, jars, require_java

__all__ = ("Neo4jServer",)

_HERE: Final = Path(__file__).parent / "neo4j"
_START_S: Final = 120.0
"""It takes 10 s on an idle machine."""
_STOP_S: Final = 30.0
_JAVA: Final = (
    *("java", "-Xmx512m", "-XX:+UseSerialGC"),
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "java.lang", "sun.nio.ch")),
)


class Neo4jServer:
    """``start`` after ``stop`` or ``kill`` goes on with the same data on the same port.

    The calls block: use ``asyncio.to_thread`` where clients are to go on meanwhile. The server also ends when the
    process that started it dies, however that happens. With ``log_in`` clients have to name the user ``neo4j`` and its
    password, which is ``neo4j`` and has to be changed first. It starts and compiles queries in half the time unless it
    is to be ``fast`` once it is warm, as for measurements.
    """

    def __init__(self, folder: Path, *, log_in: bool = False, port: int | None = None, fast: bool = False) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.uri = f"bolt://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._java = [*_JAVA, *([] if fast else ["-XX:TieredStopAtLevel=1"])]
        self._arguments = [str(folder / "data"), str(self.port), *(["auth"] if log_in else [])]

    @property
    def log(self) -> Path:
        """What the server printed; its own log is below ``data``."""
        return self.folder / "server.log"

    def start(self) -> None:
        """Start it and wait until it answers. Skips, or fails with ``CI=true``, when Java or the jars are missing."""
        require_java()
        classes = jars("neo4j-5.26.12", _HERE / "pom.xml")
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._java, "-cp", f"{classes}/*", str(_HERE / "Neo4jServer.java"), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests alone
            )
        # Its input ends with our process.
        self._watch = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -9 "$0"', str(self.process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        until = time.monotonic() + _START_S
        while b"ready" not in self.log.read_bytes().splitlines():
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"Neo4j did not start:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Shut it down as an operator would; nothing happens when it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it without warning, as a crash would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Let it stand still, with its connections open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run on after ``pause``."""
        self._signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        watch, self._watch = self._watch, None
        if watch is not None:  # first: the number of an ended process may be another's soon
            watch.kill()
            watch.wait()
            assert watch.stdin is not None
            watch.stdin.close()
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)
