"""What a Redis server says when it refuses, and what helps."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Final

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from graphweft.transports.redis.connection import reason_of
from graphweft_contracts import BusUnavailable, MissingRight, PartitionRefused, channels

_LASTING: Final = (
    "The ID specified in XADD",  # ... is equal or smaller than the target stream top item (t_stream.c)
    "The stream has exhausted the last possible ID",  # t_stream.c: an entry has the largest id
    "WRONGTYPE",  # server.c, shared.wrongtypeerr: the key holds no stream
    "No permissions to access a key",  # acl.c, ACL_DENIED_KEY
    "Elements are too large to be stored",  # t_stream.c
)
"""The beginnings of these errors in the sources of Redis and Valkey."""
_ONE_STREAM: Final = ("ERR", "")
"""Codes of further errors that may concern one stream only. All others are of the whole server, as OOM and MISCONF."""

_RIGHTS: Final = (
    "ACL failure in script",  # script.c
    "The user executing the script can't",  # script.c of Redis 7.0
    "Transaction discarded because of: NOPERM",  # multi.c, and redis-py keeps the code of the first error
)
"""The beginnings of errors that say within a script or a transaction what ``NoPermissionError`` says of a command."""


def unavailable(error: BaseException, what: str = "the bus is unavailable", *, role: str = "worker") -> BusUnavailable:
    """Return an error of the server as one of the bus; ``what`` begins its text.

    A user without the right for a command, a key or a channel gets ``MissingRight``. ``role`` is one that may do it.
    """
    if is_of_rights(error):
        role += " --app APP" if role == "tenant" else ""
        may = f"`graphweft acl redis --role {role}` prints the rights of a user who may"
        return MissingRight(f"the bus refuses this user a right: {_text(error)}; {may}")
    return BusUnavailable(f"{what}: {reason_of(error)}")


@contextlib.contextmanager
def bus_errors(what: str = "the bus is unavailable", *, role: str = "worker") -> Generator[None]:
    """Raise ``unavailable`` in place of the errors of a server."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise unavailable(error, what, role=role) from error


def is_of_rights(error: BaseException) -> bool:
    """Tell whether the server refuses a command, a key or a channel to this user, wherever it meets it."""
    return isinstance(error, NoPermissionError) or (
        isinstance(error, ResponseError) and _text(error).startswith(_RIGHTS)
    )


def is_general(error: Exception) -> bool:
    """Tell whether an error of XADD concerns the whole server and not one stream."""
    return not _is_lasting(error) and (type(error) is not ResponseError or _code(error) not in _ONE_STREAM)


def refusal_of(partition: int, stream: str, error: ResponseError) -> PartitionRefused | BusUnavailable:
    """Return why one partition did not take an event; see ``is_general``."""
    why = f"partition {partition} ({stream}) of the bus takes no events: {_text(error)}"
    if not _is_lasting(error):
        return BusUnavailable(why)
    if isinstance(error, NoPermissionError):
        return PartitionRefused(f"{why}; `graphweft acl redis` prints the rights that this user needs")
    return PartitionRefused(f"{why}; an operator mends it by `graphweft bus mend {partition}`")


def request_refusal(error: Exception, stream: str = channels.CONTEXT_REQUESTS) -> str:
    """Return why a stream of context requests takes no entry, with the command that mends it if waiting does not."""
    if isinstance(error, NoPermissionError):
        return f"{_text(error)}; `graphweft acl redis` prints the rights that this user needs"
    if not _is_lasting(error):
        return reason_of(error)
    return f"{_text(error)}; an operator mends {stream} by `graphweft bus mend requests`"


def _is_lasting(error: Exception) -> bool:
    return isinstance(error, ResponseError) and _text(error).startswith(_LASTING)


def _code(error: Exception) -> str:
    """Return the code of an error, as ERR; redis-py removes it from the text of those that it knows."""
    first = _text(error).partition(" ")[0]
    return first if first.isupper() and len(first) > 1 else ""


def _text(error: BaseException) -> str:
    """Return the server's text."""
    return str(error.args[0]) if error.args else ""
