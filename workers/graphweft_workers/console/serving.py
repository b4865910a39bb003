"""Runs the console with uvicorn until it is stopped."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from graphweft_contracts import InvalidSettings
from graphweft_workers.console.app import make_app
from graphweft_workers.console.pages import PAGES
from graphweft_workers.console.sources import open_sources
from graphweft_workers.gateway.tokens import NO_TOKENS, AccessToken, Tokens, read_tokens
from graphweft_workers.processes.http_server import HttpServer, auditing, bound, limited_logs, server_config
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.tasks import running_beside
from graphweft_workers.support.watched_file import WatchedFile
from graphweft_workers.wiring.policies import may_use, open_policies

_OPERATOR: Final = "GRAPHWEFT_CONSOLE_TOKEN"


async def run_console(
    settings: Settings, *, host: str, port: int, listener: int | None = None, ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` gets the URL once connections are accepted.

    ``listener`` is the number of an open socket that listens already. Raises ``InvalidSettings`` without a token, and
    if it cannot listen on the address.
    """
    tokens = _ConsoleTokens(settings)
    policies = open_policies(settings)
    watched = [file for file in (tokens.file, policies) if file is not None]
    with auditing(settings) as audit, _socket(host, port, listener) as listening_socket:
        async with open_sources(settings) as sources:
            app = make_app(sources, PAGES, tokens=tokens.current, may_use=may_use(policies), audit=audit)
            config = server_config(app, connections=settings.gateway_connections)
            own = listening_socket.getsockname()[:2]
            shown = f"[{own[0]}]" if ":" in own[0] else own[0]
            async with running_beside(*(file.follow() for file in watched)):
                with limited_logs():
                    await HttpServer(config, lambda: ready(f"http://{shown}:{own[1]}")).serve([listening_socket])


@contextmanager
def _socket(host: str, port: int, listener: int | None) -> Generator[socket.socket]:
    if listener is None:
        with bound(host, port, what="console") as made:
            yield made
        return
    try:
        given = socket.socket(fileno=listener)
    except OSError as error:
        raise InvalidSettings(f"--listener {listener} is not an open socket: {error.strerror}") from error
    with given:
        yield given


def _read_tokens(path: Path) -> Tokens:
    return read_tokens(path, "console_tokens")


class _ConsoleTokens:
    """The tokens of the file, and the operator's of the settings."""

    def __init__(self, settings: Settings) -> None:
        path: Path | None = settings.console_tokens
        self.file = None if path is None else WatchedFile(path, _read_tokens, gone=NO_TOKENS)
        secret = settings.console_token
        self._own: tuple[AccessToken, ...] = ()
        if secret is not None:
            digest = hashlib.sha256(secret.get_secret_value().strip().encode()).digest()
            roles = frozenset({"read", "admin", "operator"})
            self._own = (AccessToken(app_id="", name=_OPERATOR, sha256=digest, roles=roles),)  # type: ignore[arg-type]
        if self.file is None and secret is None:
            raise InvalidSettings(
                "the console has no tokens: set GRAPHWEFT_CONSOLE_TOKENS to a file of tokens (`graphweft token new "
                "--app APP --role read` prints a line for it; the role operator sees all apps), or "
                "GRAPHWEFT_CONSOLE_TOKEN to one operator's token of at least 32 characters"
            )
        self._joined: tuple[Tokens | None, Tokens] | None = None

    def current(self) -> Tokens:
        """Return the tokens of the moment."""
        file = None if self.file is None else self.file.current
        if self._joined is None or self._joined[0] is not file:
            self._joined = (file, Tokens([*(() if file is None else file.all), *self._own]))
        return self._joined[1]
