"""The login of this process at a Neo4j server, and whether the server has refused it.

Neo4j locks a user for 5 s after three wrong passwords in a row, and again after each further one. A process that logs
in for each request with an old password keeps the user locked for everybody, its operator included. So all stores of a
process share a ``Login``, and while the server refuses it, a connection is opened only now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, override
from weakref import WeakValueDictionary

from neo4j.auth_management import AsyncAuthManager
from neo4j.exceptions import Neo4jError

from graphweft.secret_files import read_secret_file
from graphweft_contracts import GraphUnavailable, InvalidSettings
from graphweft_contracts.clock import Clock
from graphweft_workers.drivers.neo4j.errors import USER_LOCKED, WRONG_LOGIN, code_of
from graphweft_workers.drivers.neo4j.timing import Neo4jTiming
from graphweft_workers.drivers.neo4j.url import Neo4jUrl
from graphweft_workers.support.backoff import backoff_s
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.graph")

_SPREAD: Final = (1.0, 1.2)
"""Never earlier than said, and not all processes at once."""
_RESTART: Final = ", and start the process again"
_FOLLOWED: Final = (
    "; or write the right password into the file that GRAPHWEFT_GRAPH_PASSWORD_FILE or NEO4J_PASSWORD_FILE names: "
    "the process reads it again and goes on by itself"
)
_LOCKED: Final = (
    "; Neo4j locks a user for some seconds after wrong passwords: look for a process that still has an old one"
)


class Login(AsyncAuthManager):
    """User and password at one server. After a refusal, connections that are open stay in use.

    A password from a file is read again while the server refuses the one in hand, and a new one is tried at once.
    """

    def __init__(self, url: Neo4jUrl, *, clock: Clock, timing: Neo4jTiming) -> None:
        self._user = url.user
        self._password = url.password
        self._file = url.password_file
        self._clock = clock
        self._timing = timing
        self._refusal: GraphUnavailable | None = None
        """What is said until the server takes the login."""
        self._wrong = 0
        """How often in a row the server called this password wrong."""
        self._next = 0.0
        """When a task may ask the server again."""
        self._asking: asyncio.Task[Any] | None = None
        """The task that asks it."""

    @override
    async def get_auth(self) -> Any:
        """Return user and password for a connection."""
        return (self._user, self._password) if self._user else None

    @override
    async def handle_security_exception(self, auth: Any, error: Neo4jError) -> bool:
        """Leave what follows to ``session``."""
        return False

    def resolve(self, address: Any) -> list[Any]:
        """Return the address, if a connection may be opened: the driver calls this before, and not for open ones.

        Raises ``GraphUnavailable``, as the server did, while it refuses the login and its next time has not come.
        """
        task = asyncio.current_task()
        if self._refusal is not None and self._asking is not task:  # a routing driver calls this twice
            now = self._clock.monotonic()
            if not self._read_again() and now < self._next:
                raise GraphUnavailable(
                    str(self._refusal), retry_after_s=self._refusal.retry_after_s
                ) from self._refusal.__cause__
            self._asking, self._next = task, now + self._timing.login_s
        return [address]

    @contextlib.contextmanager
    def session(self) -> Generator[None]:
        """Note whether the server refuses the login of a session. Its ``GraphUnavailable`` then says what follows."""
        try:
            yield
        except GraphUnavailable as error:
            code = code_of(error.__cause__)
            if code not in WRONG_LOGIN:
                raise
            raise self._refused(error, locked=code == USER_LOCKED) from error.__cause__
        else:
            if self._is_mine():
                self._refusal, self._wrong = None, 0
        finally:
            if self._is_mine():
                self._asking = None

    def _is_mine(self) -> bool:
        return self._asking is not None and self._asking is asyncio.current_task()

    def _refused(self, error: GraphUnavailable, *, locked: bool) -> GraphUnavailable:
        following = f"{_FOLLOWED if self._file else _RESTART}{_LOCKED * locked}"
        said = GraphUnavailable(f"{error}{following}", retry_after_s=error.retry_after_s)
        said.__cause__ = error.__cause__
        if self._refusal is not None and not self._is_mine():  # of several that were opened at once
            return said
        timing = self._timing
        self._refusal = said
        self._wrong += not locked
        # A locked user's password may be right: nothing was compared, and the lock is short.
        first_s = timing.refused_s if self._wrong else timing.locked_s
        wait_s = backoff_s(first_s, max(self._wrong, 1), longest_s=timing.longest_refused_s, spread=_SPREAD)
        self._next = self._clock.monotonic() + wait_s
        return said

    def _read_again(self) -> bool:
        """Return whether the file has another password than the refused one, which is used then."""
        if not self._file:
            return False
        try:
            password = read_secret_file(Path(self._file), "the password of the graph")
        except InvalidSettings:  # replaced just now, perhaps; the refusal names the file's setting
            return False
        if password == self._password:
            return False
        self._password, self._wrong = password, 0
        logger.info("graph_password_read", file=self._file)
        return True


_LOGINS: Final = WeakValueDictionary[tuple[object, ...], Login]()
"""Those in use in this process."""


def shared_login(url: Neo4jUrl, uri: str, *, clock: Clock, timing: Neo4jTiming) -> Login:
    """Return the login for a server, the same one for all who ask for it while it is in use."""
    key = (uri, url.user, url.password, url.password_file, clock)
    login = _LOGINS.get(key)
    if login is None:
        login = _LOGINS[key] = Login(url, clock=clock, timing=timing)
    return login
