"""How a client reaches the bus: one protocol, one driver a file."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest, InvalidEvent, ReasonCode

__all__ = (
    "DEFAULT_PARTITIONS",
    "MAX_BUDGET_MS",
    "MAX_CONTEXT_BYTES",
    "MAX_EVENT_BYTES",
    "Outgoing",
    "Transport",
    "check_sizes",
    "encoded",
    "read_reply",
    "seconds_left",
)

DEFAULT_PARTITIONS: Final = 4
"""Partitions of a new bus. The first process that writes decides; later ones follow what the bus says."""
MAX_EVENT_BYTES: Final = 1_000_000
"""Largest event, encoded, with its key and the names of its fields. Kafka's default limit is 1,048,588 for a batch of
one; Redis has none, but workers hold many events at once.
"""
MAX_CONTEXT_BYTES: Final = 8 * 1024**2
"""Largest context request, encoded."""
MAX_BUDGET_MS: Final = 600_000
"""Largest budget of a context request: responders believe no deadline further away."""
_TOO_LARGE: Final = (
    f"the request has more than the {MAX_CONTEXT_BYTES} bytes that a bus takes: send only the context variables that "
    "rules read"
)
_LOOKED_AT: Final = 10_000
"""Values that are looked at before a request is written, the upper levels first: a few milliseconds. To look at all of
them takes several times as long as to write them.
"""
_SCALARS: Final = frozenset({int, float, bool, type(None)})
_COLLECTIONS: Final = (list, tuple, set, frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One encoded event and the key that chooses its partition."""

    key: str
    fields: Mapping[bytes, bytes]


class Transport(Protocol):
    """Puts events on the bus and asks for context.

    Drivers refuse events larger than ``MAX_EVENT_BYTES`` with ``check_sizes``, before they write any.

    Order: events of one ``append`` that share a key keep their order, and a later ``append`` comes after an earlier
    one that returned. Delivery: ``append`` returns when the bus has the events; after ``BusUnavailable`` some of them
    may be on the bus, and appending all of them again is right, for consumers drop the second of two equal
    identities. The creator closes it with ``aclose``.
    """

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """Put the events on the bus; return their positions (``partition:offset``).

        Raises ``BusUnavailable``, or ``InvalidEvent`` when the bus will never take these: one of them, or all at once,
        are too large. What is left of them when each is appended alone is refused for good.
        """
        ...

    async def request(self, request: ContextRequest) -> ContextReply:
        """Return the answer to ``request``, the first one if there should be two.

        A request for which ``encoded`` has an answer gets that one. Raises ``TimeoutError`` at its deadline, and for an
        answer that comes later; ``BusUnavailable``; or ``PydanticSerializationError`` as ``encoded`` does.
        """
        ...

    async def aclose(self) -> None:
        """Give connections back; a second call does nothing."""
        ...


def check_sizes(events: Sequence[Outgoing]) -> None:
    """Raise ``InvalidEvent`` if one of the events is larger than ``MAX_EVENT_BYTES``."""
    for event in events:
        parts = sum(len(name) + len(value) for name, value in event.fields.items())
        if (size := parts + len(event.key.encode())) > MAX_EVENT_BYTES:
            raise InvalidEvent(
                f"an event of {event.key!r} has {size} bytes and a bus takes {MAX_EVENT_BYTES}: leave large content "
                "out of its data, or put it elsewhere and name the place in dataref"
            )


class _Readable(BaseModel):
    """What is asked of a message: that the parser of the responders takes it. It makes no objects of what it reads.

    It refuses 200 levels, and numbers of 4,300 digits.
    """


def encoded(request: ContextRequest, reply_to: str) -> bytes | ContextReply:
    """Return the request as it goes to the bus, or the answer to one that need not go there.

    That is one that no responder could take, or whose time is over once it is written. It is written once, and what
    can be seen before that is looked at first. Raises ``PydanticSerializationError`` for what JSON cannot say.
    """
    fault = _fault_of("context", request.context)
    if request.search is not None:
        fault = fault or _fault_of("params", request.search.params)
    if fault:
        return _unsent(request, "invalid_request", fault)
    if not seconds_left(request):
        return _late(request)
    fields = {**dict(request), "reply_to": reply_to}
    if request.search is None:
        del fields["search"]  # for responders that do not know it
    else:
        fields["search"] = dict(request.search)  # of a model, numbers that JSON has not would become null
    message = to_json(fields, by_alias=False)
    if len(message) > MAX_CONTEXT_BYTES:
        return _unsent(request, "invalid_request", _TOO_LARGE)
    if not seconds_left(request):
        return _late(request)
    if (b"NaN" in message or b"Infinity" in message) and to_json(
        fields, by_alias=False, inf_nan_mode="null"
    ) != message:  # else it stands in a text
        return _unsent(request, "invalid_request", f"{_carried(request)} is no JSON: a number in it is NaN or infinite")
    try:
        _Readable.model_validate_json(message)
    except ValidationError:
        what = _carried(request)
        detail = f"the responder could not read the request: its {what} is nested too deeply, or a number too long"
        return _unsent(request, "invalid_request", detail)
    return message


def _carried(request: ContextRequest) -> str:
    """Return where a caller's own values are in a request."""
    return "context or params" if request.search is not None else "context"


def _fault_of(field: str, context: Mapping[str, Any]) -> str:
    """Return what must not wait for the writing: an iterator, which would be used up and may never end, and a size.

    Counted are two bytes for each value, which the shortest one has with its comma, and one for each character.
    """
    least_bytes = looked_at = 0
    groups: deque[tuple[str, Collection[Any]]] = deque(
        (name, (variable,)) for name, variable in islice(context.items(), _LOOKED_AT)
    )
    while groups and looked_at < _LOOKED_AT:
        name, group = groups.popleft()
        looked_at += len(group)
        least_bytes += 2 * len(group)
        for value in islice(group, _LOOKED_AT):
            # ``isinstance`` would ask the value itself.
            kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
            if kind in _SCALARS:
                continue
            if kind is str:
                least_bytes += len(value)
            elif issubclass(kind, dict):
                groups.append((name, value.values()))
            elif issubclass(kind, _COLLECTIONS):
                groups.append((name, value))
            elif hasattr(kind, "__next__"):
                return f"{field}.{name}: reading would use up the iterator in it ({kind.__name__}): give a list"
        if least_bytes > MAX_CONTEXT_BYTES:
            return _TOO_LARGE
    return ""


def _late(request: ContextRequest) -> ContextReply:
    detail = "the budget was over before the request was written: send only the context variables that rules read"
    return _unsent(request, "timeout", detail)


def _unsent(request: ContextRequest, reason: ReasonCode, detail: str) -> ContextReply:
    return ContextReply(id=request.id, reason=reason, detail=detail, partial=True)


def seconds_left(request: ContextRequest) -> float:
    """Return how long it is to the request's deadline, at least 0."""
    return max(0.0, request.deadline_ms / 1000 - time.time())


def read_reply(request: ContextRequest, body: bytes) -> ContextReply:
    """Return the answer that came for ``request``.

    Raises ``TimeoutError`` when it is late, and ``BusUnavailable`` when it is no answer.
    """
    try:
        reply = ContextReply.model_validate_json(body)
    except ValidationError as error:
        raise BusUnavailable("the responder's answer breaks the contract; do both run the same version?") from error
    if time.time() * 1000 >= request.deadline_ms:
        raise TimeoutError
    return reply
