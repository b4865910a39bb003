"""Ids that the entries of the log have in common while one thing is worked on. An entry's own fields win.

``structlog.contextvars`` does the same, but reads all variables of the context each time, and a worker with a thousand
apps does this for each of their batches.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, Final, Protocol

_IDS: Final[ContextVar[Mapping[str, str]]] = ContextVar("graphweft_log_ids", default={})  # noqa: B039 - never changed


class EventIds(Protocol):
    """The ids of an event, as its model and an event that was only read have them."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def appid(self) -> str:
        """Its app."""
        ...

    @property
    def chatid(self) -> str:
        """Its chat."""
        ...

    @property
    def traceparent(self) -> str | None:
        """The span that sent it."""
        ...

    @property
    def tracestate(self) -> str | None:
        """What further belongs to that span."""
        ...


class EventCarrier(Protocol):
    """Something that has an event."""

    @property
    def plain(self) -> EventIds:
        """The event, as it was read: nothing makes a model for its ids."""
        ...


class LogIds:
    """Ids of the entries that a block, and the tasks that begin in it, log."""

    __slots__ = ("_ids", "_token")

    def __init__(self, **ids: str) -> None:
        self._ids = ids
        self._token: Token[Mapping[str, str]] | None = None

    def __enter__(self) -> None:
        """Add the ids to those that there are."""
        self._token = _IDS.set({**_IDS.get(), **self._ids})

    def __exit__(self, *_: object) -> None:
        """Take them away."""
        assert self._token is not None
        _IDS.reset(self._token)


def ids_of(events: Sequence[EventCarrier]) -> LogIds:
    """Return the ids for events of one app, at least one: of a single one also its own, and its chat."""
    first = events[0].plain
    if len(events) == 1:
        return LogIds(app_id=first.appid, chat_id=first.chatid, event_id=first.id)
    return LogIds(app_id=first.appid)


def with_ids(_logger: object, _name: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the ids to an entry: a processor of structlog."""
    for name, value in _IDS.get().items():
        entry.setdefault(name, value)
    return entry
