"""The audit log: one JSON line for each request that needs a token, without payloads.

It says who asked for what with which result. Ids of users are personal data, so a line has their hashes: an operator
who knows an id finds its lines, and the file alone names nobody.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Final, TextIO, cast, override

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graphweft_contracts import Event, InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.event_rights import ERASING_TYPES
from graphweft_workers.gateway.tokens import AccessToken
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_limit import LogLimit

logger = get_logger("graphweft.gateway")

STDOUT: Final = "-"
_NOTE: Final = "graphweft.audit"
_PATHS: Final = frozenset({"/v1/events", "/v1/context", "/v1/traces", "/messages", "/search", "/mcp"})
_MOST_USERS: Final = 20
_HASH_DIGITS: Final = 16


class AuditLog:
    """Writes to the logger ``graphweft.audit``. A failure to write stops no request; it is counted and logged."""

    def __init__(self, target: str) -> None:
        """Open a file for appending, or standard output for ``-``. Raises ``InvalidSettings`` if that fails.

        A file that was renamed is opened anew, so that it can be rotated.
        """
        self.failed = 0
        """Lines that could not be written."""
        self._lines = LogLimit()
        try:
            self._handler = _Stdout(self) if target == STDOUT else _File(self, Path(target).expanduser())
        except OSError as error:
            raise InvalidSettings(f"audit_log: {target!r} cannot be written: {error.strerror}") from error
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._logger = logging.getLogger("graphweft.audit")
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self._logger.addHandler(self._handler)

    def write(self, line: Mapping[str, Any]) -> None:
        """Write one line. Lines without a token come once a minute of each kind, because anybody can cause them."""
        if line["token"] is None:
            left_out = self._lines.admit((line["what"], line["status"]))
            if left_out is None:
                return
            line = {**line, "left_out": left_out}
        self._logger.info(json.dumps(line, ensure_ascii=False))

    def close(self) -> None:
        """Close the file."""
        self._logger.removeHandler(self._handler)
        self._handler.close()

    def fail(self) -> None:
        """Count a line that could not be written, and log that once a minute."""
        self.failed += 1
        if self._lines.admit("failure") is not None:
            logger.error("audit_lines_lost", lines=self.failed, error=str(sys.exc_info()[1]))


class _File(WatchedFileHandler):
    def __init__(self, log: AuditLog, path: Path) -> None:
        self._log = log
        super().__init__(path, encoding="utf-8")

    @override
    def _open(self) -> Any:
        return open(self.baseFilename, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600))

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file cannot be opened again
            self.handleError(record)

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        self._log.fail()


class _Stdout(logging.StreamHandler[TextIO]):
    def __init__(self, log: AuditLog) -> None:
        self._log = log
        super().__init__(sys.stdout)

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        self._log.fail()


class AuditMiddleware:
    """ASGI middleware that writes the line of each request once it is answered."""

    def __init__(self, app: ASGIApp, log: AuditLog, paths: Collection[str] = _PATHS) -> None:
        """``paths`` are those that need a token."""
        self._app = app
        self._log = log
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        note: dict[str, Any] = {}
        scope[_NOTE] = note
        started = SYSTEM_CLOCK.monotonic()
        status, received, sent = 0, 0, 0

        async def counted_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status, sent
            status = message.get("status", status)
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counted_receive, counted_send)
        except Exception:
            status = status or 500
            raise
        finally:
            self._log.write(
                {
                    "time": SYSTEM_CLOCK.now().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                    "token": None,
                    "app_id": None,
                    "what": f"{scope['method']} {scope['path']}",
                    "status": status,
                    "bytes_in": received,
                    "bytes_out": sent,
                    "ms": round((SYSTEM_CLOCK.monotonic() - started) * 1000, 1),
                    **note,
                }
            )


def note_token(request: Request, token: AccessToken) -> None:
    """Put a token into the line of a request: its name, the first digits of its hash, and its app."""
    _add(request, token=name_of(token), app_id=token.app_id)


def name_of(token: AccessToken) -> str:
    """Return what a token is called in logs: its name, and the first digits of its hash."""
    return f"{token.name}#{token.sha256.hex()[:8]}"


def note_app(request: Request, app_id: str | None) -> None:
    """Put the app that an operator asks about into the line of a request; ``*`` means all apps."""
    _add(request, app_id="*" if app_id is None else app_id)


def note_users(request: Request, app_id: str, users: Iterable[str | None]) -> None:
    """Put the users whose data a request reads into its line."""
    _add(request, users=_hashes(app_id, users))


def note_events(request: Request, app_id: str, events: Iterable[Event]) -> None:
    """Put what a request publishes into its line: how many events, how many of them erase, and the users."""
    events = list(events)
    users: list[str | None] = []
    for event in events:
        named: Any = event.data.get("user_id")
        users += [event.userid, named if isinstance(named, str) else None]
    _add(
        request,
        events=len(events),
        erasing=sum(event.type in ERASING_TYPES for event in events),
        users=_hashes(app_id, users),
    )


def hash_of(app_id: str, user_id: str) -> str:
    """Return how the audit log names a user of an app."""
    return hashlib.sha256(f"{app_id}\n{user_id}".encode(errors="replace")).hexdigest()[:_HASH_DIGITS]


def _hashes(app_id: str, users: Iterable[str | None]) -> list[str]:
    known = dict.fromkeys(user for user in users if user is not None)
    hashes = [hash_of(app_id, user) for user in list(known)[:_MOST_USERS]]
    return [*hashes, f"and {len(known) - _MOST_USERS} more"] if len(known) > _MOST_USERS else hashes


def _add(request: Request, **fields: Any) -> None:
    note = request.scope.get(_NOTE)
    if note is not None:
        cast("dict[str, Any]", note).update(fields)
