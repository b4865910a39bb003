"""The protocol between a client and the bus, and the parts that its drivers share."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from graphweft_contracts import (
    BusUnavailable,
    ContextReply,
    ContextRequest,
    InvalidEvent,
    Layout,
    PartitionRefused,
    ReasonCode,
)
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.signatures import SigningKey

MAX_EVENT_BYTES: Final = 1_000_000
"""Largest encoded event in bytes, with its key and field names. The smallest default limit of a bus is 1,048,588 for a
batch of one.
"""
MAX_CONTEXT_BYTES: Final = 8 * 1024**2
"""Largest encoded context request."""
MAX_BUDGET_MS: Final = 600_000
"""Largest budget of a context request; responders ignore later deadlines."""
CLOSED: Final = "the client is closed: make a new one"
BUS_STEP: Final = (
    "start the bus, or correct GRAPHWEFT_BUS_URL or GRAPHWEFT_DATA (without both, `graphweft up` must run in the "
    "folder of this process); `graphweft doctor` checks it"
)
TOO_LARGE: Final = (
    f"the request exceeds {MAX_CONTEXT_BYTES} bytes, the limit of the bus: send only the context variables that rules "
    "read"
)
"""The detail of a reply to a request that is larger than that."""
_MAX_CHECKED: Final = 10_000
"""Values checked before a request is encoded, upper levels first. Checking all takes several times as long as encoding.
"""
_NEWER: Final = ("search", "traceparent", "tracestate")
"""Fields of requests that older responders do not know."""
_SCALARS: Final = frozenset({int, float, bool, type(None)})
_COLLECTIONS: Final = (list, tuple, set, frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """An encoded event, and its key ``app/chat``, which selects its partition; see ``Layout``."""

    key: str
    fields: Mapping[bytes, bytes]

    def signed(self, key: SigningKey | None) -> Mapping[bytes, bytes]:
        """Return the fields with the signature by a key; without a key, as they are."""
        return self.fields if key is None else key.signed(self.fields)


class Transport(Protocol):
    """Appends events to the bus and requests context.

    Order: events of one ``append`` that share a key keep their order, and come after those of every ``append`` that
    returned before. Delivery: when ``append`` returns, the bus has the events. After ``BusUnavailable`` it may have
    some of them; append all of them again, for consumers drop an event whose identity they have seen. Drivers call
    ``check_sizes`` before they write. The creator closes the transport with ``aclose``.
    """

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """Append the events; return their positions (``partition:offset``). Without any, ask if the bus takes some.

        Raises ``BusUnavailable``, ``InvalidEvent`` if one of them, or all together, are too large, or
        ``PartitionRefused``. Append each alone to find the events that the bus will never accept.
        """
        ...

    async def request(self, request: ContextRequest) -> ContextReply:
        """Return the reply to ``request``: the first one that arrives, or the one that ``encoded`` returns.

        Raises ``TimeoutError`` at the deadline, also if a reply arrives later, ``BusUnavailable``, or
        ``PydanticSerializationError`` as ``encoded`` does.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections; a second call does nothing."""
        ...


Outcome: TypeAlias = "str | InvalidEvent | PartitionRefused | BusUnavailable"
"""What became of an event: its position, or why the bus does not have it."""


@runtime_checkable
class PartitionedTransport(Transport, Protocol):
    """A transport that knows the partitions of its bus, so that one of them cannot hold up the others."""

    async def layout(self) -> Layout:
        """Return the layout by which ``append`` writes now. Raises ``BusUnavailable``."""
        ...

    async def append_each(self, events: Sequence[Outgoing]) -> list[Outcome]:
        """Append the events, as ``append`` does, and return the outcome of each.

        After an event with an error, none of the same partition is appended. Raises what concerns all partitions.
        """
        ...


def positions_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the positions. Raises the first error, of those that waiting does not mend first."""
    errors = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    for error in sorted(errors, key=lambda error: isinstance(error, BusUnavailable)):
        raise error
    return [outcome for outcome in outcomes if isinstance(outcome, str)]


def check_sizes(events: Sequence[Outgoing]) -> None:
    """Raise ``InvalidEvent`` for an event larger than ``MAX_EVENT_BYTES``."""
    for event in events:
        parts = sum(len(name) + len(value) for name, value in event.fields.items())
        if (size := parts + len(event.key.encode())) > MAX_EVENT_BYTES:
            raise InvalidEvent(
                f"an event of {event.key!r} has {size} bytes, more than the limit of {MAX_EVENT_BYTES}: leave large "
                "content out of its data, or store it elsewhere and put its address into dataref"
            )


class _Readable(BaseModel):
    """Checks that the responders' parser accepts a message, without building objects.

    The parser refuses 200 levels of nesting, and numbers with 4,300 digits.
    """


def encoded(request: ContextRequest, reply_to: str) -> bytes | ContextReply:
    """Return the encoded request, or a reply if it need not be sent: it is invalid, or its deadline has passed.

    Raises ``PydanticSerializationError`` for values that JSON cannot represent.
    """
    fault = _fault_of("context", request.context)
    if request.search is not None:
        fault = fault or _fault_of("params", request.search.params)
    if fault:
        return _unsent(request, "invalid_request", fault)
    if not seconds_left(request):
        return _late(request)
    fields = {**vars(request), "reply_to": reply_to}  # ``dict`` would take twice the time
    for name in _NEWER:
        if fields[name] is None:
            del fields[name]
    if request.search is not None:
        fields["search"] = request.search.sent  # as a model, NaN would be encoded as null
    message = to_json(fields, by_alias=False)
    if len(message) > MAX_CONTEXT_BYTES:
        return _unsent(request, "invalid_request", TOO_LARGE)
    if not seconds_left(request):
        return _late(request)
    if (b"NaN" in message or b"Infinity" in message) and to_json(
        fields, by_alias=False, inf_nan_mode="null"
    ) != message:  # otherwise the word is part of a text
        return _unsent(
            request, "invalid_request", f"{_carried(request)} is not JSON: it has a number that is NaN or infinite"
        )
    try:
        _Readable.model_validate_json(message)
    except ValidationError:
        fault = "is nested too deeply, or has a number with too many digits"
        detail = f"the responder could not read the request: its {_carried(request)} {fault}"
        return _unsent(request, "invalid_request", detail)
    return message


def _carried(request: ContextRequest) -> str:
    """Return the names of the fields that hold the caller's own values."""
    return "context or params" if request.search is not None else "context"


def _fault_of(field: str, context: Mapping[str, Any]) -> str:
    """Return an error to report before encoding: an iterator, which encoding would consume, or an excessive size.

    The size counts two bytes for each value, the shortest encoding with its comma, and one for each character.
    """
    least_bytes = checked = 0
    groups: deque[tuple[str, Collection[Any]]] = deque(
        (name, (variable,)) for name, variable in islice(context.items(), _MAX_CHECKED)
    )
    while groups and checked < _MAX_CHECKED:
        name, group = groups.popleft()
        checked += len(group)
        least_bytes += 2 * len(group)
        for value in islice(group, _MAX_CHECKED):
            # ``isinstance`` could run code of the value.
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
                return f"{field}.{name}: reading would consume the iterator in it ({kind.__name__}): pass a list"
        if least_bytes > MAX_CONTEXT_BYTES:
            return TOO_LARGE
    return ""


def _late(request: ContextRequest) -> ContextReply:
    detail = "the budget ended before the request was encoded: send only the context variables that rules read"
    return _unsent(request, "timeout", detail)


def _unsent(request: ContextRequest, reason: ReasonCode, detail: str) -> ContextReply:
    return ContextReply(id=request.id, reason=reason, detail=detail, partial=True)


def seconds_left(request: ContextRequest, clock: Clock = SYSTEM_CLOCK) -> float:
    """Return the seconds until the request's deadline, at least 0."""
    return max(0.0, request.deadline_ms / 1000 - clock.now().timestamp())


def with_bus_step(why: str) -> str:
    """Return why the bus is unavailable, with the next step unless the text names one."""
    return why if ": make " in why or "`graphweft " in why else f"{why.removesuffix('.')}; {BUS_STEP}"


def read_reply(request: ContextRequest, body: bytes, clock: Clock = SYSTEM_CLOCK) -> ContextReply:
    """Return the reply in ``body``.

    Raises ``TimeoutError`` after the deadline of ``request``, and ``BusUnavailable`` for an invalid reply.
    """
    try:
        reply = ContextReply.model_validate_json(body)
    except ValidationError as error:
        raise BusUnavailable(
            "the responder's reply violates the contract: both need one version, as `graphweft --version` prints"
        ) from error
    if clock.now().timestamp() * 1000 >= request.deadline_ms:
        raise TimeoutError
    return reply
