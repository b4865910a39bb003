"""The console of ``graphweft up``: an address that listens at once, and a process that starts with the first visitor.

So nobody who does not look pays for it, and a console that fails stops nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import quote

from graphweft_workers.drivers.embedded.server import die_with_parent, end_process
from graphweft_workers.processes.own_command import own_command
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.up")

TOKEN_FILE: Final = "console-token"
"""The file in the data folder with the operator's token of this run."""
_HOST: Final = "127.0.0.1"
_RESTART_S: Final = 2.0
_STOP_S: Final = 20.0
_BACKLOG: Final = 128
_REFUSAL_S: Final = 0.2
_FAILED: Final = (
    b"The console has ended with an error: the output of `graphweft up` says which. Load this page again to start it.\n"
)
_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\ncache-control: no-store\r\n"
    b"x-content-type-options: nosniff\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
) % (len(_FAILED), _FAILED)


class ConsoleProcess:
    """Listens for the console, and runs its process from the first visit on."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._listener: socket.socket | None = None
        self.process: asyncio.subprocess.Process | None = None

    def listen(self) -> str:
        """Listen, and return what to tell the user: a link, or why there is none. A port in use is replaced."""
        if not self._settings.console:
            return ""
        if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
            return "no console: install graphweft[console] for it"
        try:
            token = self._token()
            self._listener = _bound(self._settings.console_port)
        except OSError as error:
            logger.warning("no_console", reason=str(error))
            return f"no console: {error.strerror or error}"
        port = self._listener.getsockname()[1]
        return f"console: http://{_HOST}:{port}/#token={quote(token, safe='')}"

    def close(self) -> None:
        """Listen no longer."""
        if self._listener is not None:
            self._listener.close()

    async def watch(self, environment: Mapping[str, str]) -> None:
        """Start the process when somebody connects, and again after it ended; until cancelled."""
        if self._listener is None:
            return
        try:
            while True:
                await _visited(self._listener)
                code = await self._run(self._listener, environment)
                if code:
                    logger.error("console_ended", code=code, next="it starts again with the next visit")
                    await asyncio.to_thread(_refuse, self._listener)
                await asyncio.sleep(_RESTART_S)
        finally:
            await self.end()
            self.close()

    async def _run(self, listener: socket.socket, environment: Mapping[str, str]) -> int:
        number = listener.fileno()
        secret: dict[str, str] = {}
        if self._settings.console_token is None:
            secret["GRAPHWEFT_CONSOLE_TOKEN_FILE"] = str((self._folder / TOKEN_FILE).resolve())
        self.process = await asyncio.create_subprocess_exec(
            *own_command("run", "console", "--listener", str(number)),
            env={**environment, **secret},
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(number,),
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGTERM),
        )
        return await self.process.wait()

    async def end(self) -> None:
        """End the process, if it runs; the next visit starts it again while it is ``watch``ed."""
        if self.process is not None:
            await end_process(self.process, _STOP_S)

    def _token(self) -> str:
        """Return the operator's token, from the settings or a new one.

        Browsers keep links in their history and may send it elsewhere, so a link is of no use after this run.
        """
        if self._settings.console_token is not None:
            return self._settings.console_token.get_secret_value().strip()
        path = self._folder / TOKEN_FILE
        token = "gw_" + secrets.token_urlsafe(32)
        _write_private(path, token + "\n")
        return token


def _write_private(path: Path, text: str) -> None:
    """Write a new file in place of the one that is there, readable by its owner alone."""
    path.unlink(missing_ok=True)
    with open(path, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)


def _bound(port: int) -> socket.socket:
    try:
        listener = socket.create_server((_HOST, port), backlog=_BACKLOG)
    except OSError:
        if not port:
            raise
        listener = socket.create_server((_HOST, 0), backlog=_BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setblocking(False)
    return listener


def _refuse(listener: socket.socket) -> None:
    """Answer those who wait for a process that has failed: nobody else would."""
    for _ in range(_BACKLOG):
        try:
            visitor, _address = listener.accept()
        except OSError:  # nobody waits any more
            return
        with visitor, contextlib.suppress(OSError):
            visitor.settimeout(_REFUSAL_S)
            visitor.recv(65_536)
            visitor.sendall(_REFUSAL)
            visitor.shutdown(socket.SHUT_WR)


async def _visited(listener: socket.socket) -> None:
    """Return when a connection waits to be accepted; it is left to the process."""
    loop = asyncio.get_running_loop()
    visit = asyncio.Event()
    loop.add_reader(listener.fileno(), visit.set)
    try:
        await visit.wait()
    finally:
        loop.remove_reader(listener.fileno())
