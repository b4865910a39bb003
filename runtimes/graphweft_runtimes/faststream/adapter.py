"""FastStream: middlewares that make each message of a subscriber a turn of an agent, or the call of a tool.

Rejected: to publish our events by FastStream's broker. The partition of an event, its order there, its signature and
the buffer for times without a bus are the client's work; a plain ``broker.publish`` has none of them. See decision 102.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias, cast
from uuid import uuid4

from typing_extensions import override

from graphweft.adapters.core import Adapter
from graphweft_contracts import ContextReply, InvalidSettings
from graphweft_runtimes.runtime_adapter import RuntimeAdapter
from graphweft_runtimes.versions import require

require("faststream", extra="faststream", lowest="0.7.8", below="0.8")

from faststream import BaseMiddleware, Context  # noqa: E402
from faststream.exceptions import AckMessage, SkipMessage, StopConsume  # noqa: E402
from faststream.message import StreamMessage  # noqa: E402
from faststream.response import Response  # noqa: E402

_CONTEXT: Final = "graphweft_context"
_IDS: Final = ("app_id", "chat_id", "user_id", "workflow_name")
_TEXTS: Final = ("message", "text", "content", "question")
"""Fields of a message's body, one of which may be what the user says."""
_AS_USUAL: Final = (AckMessage, SkipMessage, StopConsume)
"""What a handler raises to say that it is done."""


def _missing() -> ContextReply:
    raise InvalidSettings(
        "an argument is an AgentContext, but this handler is not below agent(...): put it on a router or broker with "
        "middlewares=[adapter.agent(NAME)]; a tool has no context"
    )


AgentContext: TypeAlias = Annotated[ContextReply, Context(_CONTEXT, initial=_missing)]
"""The context of the turn, as an argument of a handler below ``FastStreamAdapter.agent``."""
Variables: TypeAlias = Callable[[StreamMessage[Any]], Mapping[str, Any]]
Middleware: TypeAlias = Callable[..., BaseMiddleware[Any, Any]]
"""What FastStream calls a middleware: it makes one for each message."""


def variables_of_headers(message: StreamMessage[Any]) -> dict[str, Any]:
    """Return the context variables of a message: its headers ``app_id``, ``chat_id``, ``user_id``, ``workflow_name``.

    Without ``chat_id``, the chat is the correlation id, which FastStream passes on to what a handler publishes.
    """
    found = {name: value for name in _IDS if (value := message.headers.get(name))}
    return {"chat_id": message.correlation_id, **found}


class FastStreamAdapter(RuntimeAdapter):
    """Gives the handlers of a FastStream application context, and emits their events. No middleware of it raises.

    ``settings`` are those of ``Adapter``. ``variables`` returns the context variables of a message. Whoever may publish
    to the subscribers chooses them: where these are not the same for all, set ``app_id`` here.
    """

    def __init__(
        self, adapter: Adapter | None = None, *, variables: Variables = variables_of_headers, **settings: Any
    ) -> None:
        super().__init__(adapter, "/graphweft/faststream", settings)
        self._variables = variables

    def agent(self, name: str) -> Middleware:
        """Return a middleware of a broker or router whose handlers are the agent ``name``: a message is a turn.

        A handler takes the context as ``AgentContext``. What it returns is the answer; what it raises fails the turn.
        """

        _check_name("agent", name)

        def made(message: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
            return _AgentMiddleware(message, context=context, adapter=self, name=name)

        return made

    def tool(self, name: str) -> Middleware:
        """Return a middleware of a broker or router whose handlers are the tool ``name``: a message is a call.

        The body is its arguments, and what the handler returns is its result.
        """

        _check_name("tool", name)

        def made(message: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
            return _ToolMiddleware(message, context=context, adapter=self, name=name)

        return made

    def variables_of(self, message: StreamMessage[Any]) -> dict[str, Any] | None:
        """Return the context variables of a message; None, which is counted, for a batch or if they cannot be read."""
        found: dict[str, Any] | None = None
        if message.batch_headers:
            self.core.left_out(["a batch of messages"])
        else:
            with self.core.guarded("the variables of a message"):
                found = dict(self._variables(message))
        return found


def _check_name(of: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise InvalidSettings(f"invalid name of the {of} {name!r}: expected a text, such as {of}('Ann')")


class _Middleware(BaseMiddleware[Any, Any]):
    def __init__(self, message: Any, /, *, context: Any, adapter: FastStreamAdapter, name: str) -> None:
        super().__init__(message, context=context)
        self.adapter = adapter
        self.name = name


class _AgentMiddleware(_Middleware):
    @override
    async def consume_scope(self, call_next: Any, msg: StreamMessage[Any]) -> Any:
        core, name = self.adapter.core, self.name
        variables = self.adapter.variables_of(msg)
        if variables is None:
            with self.context.scope(_CONTEXT, await core.acontext({}, name)):
                return await call_next(msg)
        run = uuid4().hex  # a message that is delivered again is another turn
        said = _said(await _body(msg))
        reply = await core.acontext(variables, name, run=run, messages=said)
        try:
            with self.context.scope(_CONTEXT, reply):
                answer = await call_next(msg)
        except _AS_USUAL:
            core.end_turn(variables, name, run=run)
            raise
        except BaseException as error:
            core.fail_turn(variables, name, error, run=run)
            raise
        core.end_turn(variables, name, run=run, response=_plain(answer))
        return answer


class _ToolMiddleware(_Middleware):
    @override
    async def consume_scope(self, call_next: Any, msg: StreamMessage[Any]) -> Any:
        core, name = self.adapter.core, self.name
        variables = self.adapter.variables_of(msg)
        if variables is None:
            return await call_next(msg)
        call_id = uuid4().hex
        core.start_tool(variables, name, call_id, arguments=await _body(msg))
        try:
            result = await call_next(msg)
        except _AS_USUAL:
            core.end_tool(variables, name, call_id, success=True)
            raise
        except BaseException as error:
            core.end_tool(variables, name, call_id, success=False, error=f"{type(error).__name__}: {error}")
            raise
        core.end_tool(variables, name, call_id, result=_plain(result), success=True)
        return result


async def _body(message: StreamMessage[Any]) -> Any:
    """Return the decoded body, None if it cannot be decoded: then FastStream says so to the handler's own policy."""
    try:
        return await message.decode()
    except Exception:  # noqa: BLE001 - the user's decoder
        return None


def _said(body: Any) -> list[dict[str, Any]]:
    text = body if isinstance(body, str) else None
    if isinstance(body, Mapping):
        fields = cast("Mapping[str, Any]", body)
        text = next((value for name in _TEXTS if isinstance(value := fields.get(name), str)), None)
    return [] if text is None else [{"role": "user", "content": text}]


def _plain(result: Any) -> Any:
    return result.body if isinstance(result, Response) else result
