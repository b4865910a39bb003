"""The port of the queue of context requests, and the form of the replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Protocol

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from graphweft_contracts import ContextReply

MAX_REPLY_BYTES: Final = 1_000_000
"""The largest encoded reply: half a megabyte of text. A bus server may close the subscription of a process with 32 MB
of unread replies, which would lose the replies of other apps too; 30 of the largest fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A request, not yet decoded. The queue removes it by ``token``."""

    token: str
    body: bytes
    signature: bytes = b""
    only_app: str | None = None
    """The only app whose requests come this way; None: any app's may."""
    taken_over: bool = field(default=False, compare=False)
    """Whether another responder had it, or would have had it, before. A driver may take the sender's word for it."""


class Requester(BaseModel):
    """The sender of a request and its deadline: enough to answer a request that breaks the contract."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    app_id: Any = None
    """Unchecked, as the request names it."""
    deadline_ms: int
    reply_to: Annotated[str, StringConstraints(min_length=1)]


def read_requester(body: bytes) -> Requester | None:
    """Return the sender of a request that breaks the contract; None if the request does not name it."""
    try:
        return Requester.model_validate_json(body)
    except ValidationError:
        return None


def encode(reply: ContextReply) -> bytes:
    """Return the id, a newline and the reply as JSON. A reply that is too large is replaced by one that says so."""
    message = _message(reply)
    if len(message) <= MAX_REPLY_BYTES:
        return message
    detail = (
        f"the reply has {len(message)} bytes and the bus accepts {MAX_REPLY_BYTES}: set max_results in the rules, or "
        "request the context with max_tokens"
    )
    return _message(ContextReply(id=reply.id, reason="internal_error", detail=detail, partial=True))


def _message(reply: ContextReply) -> bytes:
    return reply.id.encode() + b"\n" + reply.model_dump_json().encode()


class RequestQueue(Protocol):
    """Hands out requests to one of several responders, and takes replies.

    Delivery: each request goes to one responder. If that one dies, stands still, or is disconnected for longer than a
    share of a request's budget, the request goes to another one; a slow one keeps its requests. So a request may be
    answered twice; the requester takes the first reply. Requests are not ordered.

    ``next``, ``reply`` and ``age_s`` raise ``BusUnavailable``; call them again. A queue belongs to one event loop; one
    caller at a time waits in ``next``. The creator closes it.
    """

    async def next(self, limit: int, *, wait: bool = True) -> Sequence[PendingRequest]:
        """Return some unassigned requests, about ``limit`` at most.

        With ``wait`` it waits for the first one, about a second, or until ``wake``. Responders that wait get new
        requests before those that do not.
        """
        ...

    def wake(self) -> None:
        """Let a waiting ``next`` return at once."""
        ...

    async def reply(self, channel: str, reply: ContextReply) -> bool:
        """Send ``reply`` to the process that listens on ``channel``. Return False if nobody is known to listen.

        Only channels of clients are used, whatever a request says. A reply that is too large is sent as its reason.
        """
        ...

    async def age_s(self, token: str) -> float | None:
        """Return the seconds since the bus received a request, by the bus's clock; None if the bus does not say."""
        ...

    def done(self, token: str) -> None:
        """Remove a request from the queue soon. Until then another responder may get it."""
        ...

    async def leave(self) -> Sequence[PendingRequest]:
        """Take no more requests. Return the assigned requests that ``next`` has not returned. Never raises.

        Replies can still be sent.
        """
        ...

    async def aclose(self) -> None:
        """Remove finished requests and close the connections; a second call does nothing."""
        ...
