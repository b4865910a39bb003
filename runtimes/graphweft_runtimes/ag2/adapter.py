"""AG2 1.x (``ag2``): events of agents and of a network's channels, and context in each model call.

Rejected: observers, which see an answer before its request, and an assembly policy, which sees only model calls. A
middleware wraps turns, model calls and tools in order. A listener of the hub sees the rest: the start and end of a
channel, and its creator.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4
from weakref import WeakSet

from graphweft.adapters.context_place import DEFAULT_PLACE, Attempt, ContextPlace, joined, placed
from graphweft.adapters.core import Adapter
from graphweft.adapters.values import IDS, about_model, error_text, parsed, with_ids
from graphweft_contracts import InvalidSettings
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_runtimes.runtime_adapter import RuntimeAdapter
from graphweft_runtimes.versions import require

logger = logging.getLogger("graphweft.adapters")

_SPEAKER: Final = re.compile(r"\[([^\]\n]+)\]:")
"""Begins a message in a channel of several agents: ``ag2.network.views.builtin.NamedTranscript``."""
_SOURCE: Final = "/graphweft/ag2"
_RESERVED: Final = ("ag:", "a2a:")
"""Prefixes of context variables that are AG2's control state."""
_MAX_CHANNELS: Final = 10_000
"""Channels of attached hubs that are remembered; the oldest are forgotten first."""


class ChannelExpired(Exception):
    """The error of a run whose channel expired. Never raised."""


class ExpectationViolated(Exception):
    """The error of a run whose channel the hub closed because an expectation was violated. Never raised."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Turn:
    """A turn, known to everything that runs inside it, and to the tasks that outlive it."""

    owner: AG2Adapter
    stream: str
    agent: str
    run: str
    key: tuple[str, str]
    ids: Mapping[str, Any]
    outermost: bool
    counted: bool
    """Whether a run of its chat ends with it."""
    workflow: bool
    """Whether it is a speaker's turn in a channel with one speaker at a time."""
    calls: dict[str, tuple[str, Any]] = field(default_factory=dict[str, tuple[str, Any]])
    """The tool of each call, and the next speaker that it chose. Empty once the turn is over."""
    over: bool = False


@dataclass(slots=True, eq=False)
class _Run:
    """The run of a chat outside of channels; its turns may overlap."""

    turns: int = 0
    outputs: Any = None
    failure: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Channel:
    """A channel of an attached hub."""

    inside: _Turn | None
    """The turn that opened the channel, if any: the channel then belongs to the chat of that turn."""
    variables: dict[str, Any]
    last: Any = None


_TURN: ContextVar[_Turn | None] = ContextVar("graphweft_ag2_turn", default=None)


class AG2Adapter(RuntimeAdapter):
    """Emits events of agents and channels, and gives agents context. ``settings`` are those of ``Adapter``.

    ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` default to the context variables or, in a channel, to its
    labels and variables. The default chat id is that of the channel or the stream. Agents inside another agent's tool
    have the ids of that agent. Raises ``InvalidSettings`` without a supported version of ``ag2``.
    """

    def __init__(
        self, adapter: Adapter | None = None, *, context_place: ContextPlace = DEFAULT_PLACE, **settings: Any
    ) -> None:
        self._ag2 = _ag2()
        super().__init__(adapter, _SOURCE, settings, context_place=context_place)
        # Subclasses inherit methods that later versions of AG2 add.
        listeners = importlib.import_module("ag2.network.hub.listener")
        self._hooks: Any = type("Graphweft", (_TurnHooks, self._ag2.middleware.BaseMiddleware), {})
        self._listener: Any = type("GraphweftListener", (_HubHooks, listeners.BaseHubListener), {})(self)
        self._attached: WeakSet[Any] = WeakSet()
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, str], _Run] = {}
        self._channels: BoundedDict[str, _Channel] = BoundedDict(_MAX_CHANNELS)

    def plugin(self) -> Any:
        """Return a ``Plugin`` for a new agent: ``Agent("Planner", plugins=[adapter.plugin()])``."""
        return self._ag2.Plugin(middleware=[self._middleware("agent")])

    def attach(self, *parts: Any) -> None:
        """Attach to agents, and to hubs for the start and end of their channels, before they run.

        Attaching twice, or to an agent with the plugin, has no effect. Raises ``TypeError`` for other objects.
        """
        for part in parts:
            if isinstance(part, self._ag2.network.Hub):
                if part not in self._attached:
                    part.register_listener(self._listener)
            elif isinstance(part, self._ag2.Agent):
                if part not in self._attached:
                    part.insert_middleware(self._middleware(part.name))
            else:
                raise TypeError(f"cannot attach to {type(part).__name__}: expected agents or hubs of AG2")
            self._attached.add(part)

    def publish(self, context: Any, type: str, data: Mapping[str, Any]) -> None:
        """Emit your own event, for example the result of a UI tool.

        ``context`` is AG2's context of a tool or a reply. ``type`` is a lower-case dotted name. If a turn is open, the
        event has its number.
        """
        with contextlib.suppress(Exception):
            turn = self._outer()
            if turn is not None and (turn.over or turn.stream != _stream(context)):
                turn = None
            agent, run = (_agent(context), "") if turn is None else (turn.agent, turn.run)
            self.core.emit(self._variables(context, self._outer()), type, data, agent=agent, run=run)

    def _middleware(self, name: str) -> Any:
        """``name`` is the fallback for an agent that an AG2 server runs without naming it."""
        return self._ag2.Middleware(self._hooks, adapter=self, name=name)

    # Turns. These methods read values of the runtime, and never raise into it.

    def begin(self, context: Any, name: str) -> _Turn | None:
        """Start an agent's turn; return None if a second middleware of ours has started it already."""
        try:
            outer, stream = self._outer(), _stream(context)
            if outer is not None and not outer.over and outer.stream == stream:
                return None
            channel = _channel(context)
            known = None if channel is None else self._channels.get(channel.channel_id)
            if outer is None and known is not None:
                outer = known.inside
            variables = self._variables(context, outer)
            key = self.chat_key(variables)
            inner = outer is not None and not outer.over and outer.key == key
            speaks = channel is not None and not inner and (known is None or known.inside is None)
            turn = _Turn(
                owner=self, stream=stream, agent=_agent(context) or name, run=uuid4().hex, key=key,
                ids={name: variables[name] for name in IDS if name in variables}, outermost=not inner,
                counted=self._count(key, variables, inner=inner) if not speaks else False,
                workflow=speaks and channel is not None and channel.metadata.manifest.type == "workflow",
            )  # fmt: skip
            if speaks and known is not None:
                known.variables = variables
                self.core.start_run(variables)
            self.core.start_turn(variables, turn.agent, run=turn.run, sequential=turn.workflow)
            return turn
        except Exception:  # the agent continues without events
            logger.exception("cannot start a turn")
            return None

    def ended(self, turn: _Turn, context: Any, response: Any) -> None:
        """End the turn, and with the last turn its run."""
        turn.over = True
        with contextlib.suppress(Exception):
            variables = self._variables(context, turn)
            to, text = self._handed_to(turn, context), getattr(response, "content", None)
            turn.calls.clear()
            if to is None:
                self.core.end_turn(variables, turn.agent, run=turn.run, response=text)
            else:
                self.core.hand_over(variables, turn.agent, to, run=turn.run)
            self._leave(turn, variables, outputs=text)

    def failed(self, turn: _Turn, context: Any, error: BaseException) -> None:
        """Fail the turn, and with the last turn its run."""
        turn.over = True
        with contextlib.suppress(Exception):
            variables = self._variables(context, turn)
            self.core.fail_turn(variables, turn.agent, error, run=turn.run)
            self._leave(turn, variables, failure=error)

    def _count(self, key: tuple[str, str], variables: Mapping[str, Any], *, inner: bool) -> bool:
        """Add a turn to the chat's open run, or start a run; return False if the turn has none."""
        with self._lock:
            run = self._runs.get(key)
            if run is None:
                if inner:  # part of a channel, whose end the hub reports
                    return False
                run = self._runs[key] = _Run()
                self.core.start_run(variables)
            run.turns += 1
            return True

    def _leave(
        self, turn: _Turn, variables: Mapping[str, Any], *, outputs: Any = None, failure: BaseException | None = None
    ) -> None:
        if not turn.counted:
            return
        with self._lock:
            run = self._runs[turn.key]
            run.turns -= 1
            if turn.outermost:
                run.outputs, run.failure = outputs, failure
            if run.turns:
                return
            del self._runs[turn.key]
            if run.failure is None:
                self.core.end_run(variables, outputs=run.outputs)
            else:
                self.core.fail_run(variables, run.failure)

    def _handed_to(self, turn: _Turn, context: Any) -> str | None:
        """Return the agent that a tool of the turn made the channel's next speaker."""
        if not turn.workflow or not turn.calls:
            return None
        network, found = self._ag2.network, context.dependencies
        channel, hub = found[network.CHANNEL_DEP], found[network.HUB_DEP]
        state, me = found[network.CHANNEL_STATE_DEP], found[network.AGENT_CLIENT_DEP].agent_id
        static = {
            one.when.tool_name
            for one in network.TransitionGraph.loads(state.graph_data).transitions
            if isinstance(one.when, network.ToolCalled)
        }
        for tool, sent in turn.calls.values():  # the first one decides
            if isinstance(sent, network.Finish):
                return None
            if isinstance(sent, network.Handoff):
                return str(hub.name_for(sent.target))
            if tool in static:
                packet = network.Envelope(
                    channel_id=channel.channel_id, sender_id=me, audience=None, event_type=network.EV_PACKET,
                    event_data={"routing": {"kind": "handoff", "tool": tool}, "context_updates": {}, "body": ""},
                )  # fmt: skip
                speaker = hub.adapter_for_metadata(channel.metadata).fold(packet, state).expected_next_speaker
                return None if speaker in {None, me} else str(hub.name_for(speaker))
        return None

    # Models and tools

    async def asking(self, turn: _Turn, events: Sequence[Any], context: Any) -> Attempt[_Request]:
        """Return a model call with the turn's context."""
        variables: Mapping[str, Any] = {}
        found = plain = _Request(events)
        with self.core.guarded("adding the context"):
            variables = self._variables(context, turn)
            said = map(self._read, events)
            block = (await self.core.acontext(variables, turn.agent, run=turn.run, messages=said)).text
            found = self._with_block(events, block) if block else plain
        return self.attempt(plain, found, variables, turn.agent, run=turn.run)

    def _with_block(self, events: Sequence[Any], block: str) -> _Request:
        kinds = self._ag2.events

        def put(event: Any, block: str) -> Any:
            parts = list(event.parts)
            if parts and isinstance(parts[-1], kinds.TextInput):
                last = copy.copy(parts[-1])
                last.content = joined(last.content, block)
                parts[-1] = last
            else:
                parts.append(kinds.TextInput(block))
            found = copy.copy(event)
            found.parts = parts
            return found

        found = placed(
            events,
            block,
            self.place,
            put=put,
            own=lambda text: kinds.ModelRequest([kinds.TextInput(text)]),
            read=self._read,
        )
        return _Request(events, _Block(block)) if found is None else _Request(found)

    def _read(self, event: Any) -> dict[str, Any]:
        """Return an event of a history in a form that ``chat_formats`` reads."""
        kinds = self._ag2.events
        if isinstance(event, kinds.ModelRequest):
            texts = [part.content for part in event.parts if isinstance(part, kinds.TextInput)]
            speaker = _SPEAKER.match(texts[0]) if texts else None
            return {"role": "user", "content": texts, "name": speaker and speaker[1]}
        if isinstance(event, kinds.ModelResponse):
            return {"role": "assistant"}
        return {"role": "tool" if isinstance(event, kinds.ToolResultsEvent) else "system"}

    def model_called(
        self, turn: _Turn, context: Any, started_s: float, response: Any, *, error: BaseException | None = None
    ) -> None:
        """Record a model call that has ended."""
        with contextlib.suppress(Exception):
            about = about_model(started_s, error=error, **_model(context, response))
            variables = self._variables(context, turn)
            self.core.model_call(variables, turn.agent, run=turn.run, success=error is None, about=about)

    def tool_started(self, turn: _Turn, call: Any, context: Any) -> str:
        """Start a tool call, and return its id."""
        key = uuid4().hex
        with contextlib.suppress(Exception):
            key = str(call.id or key)
            turn.calls[key] = (str(call.name), None)
            self.core.start_tool(
                self._variables(context, turn), str(call.name), key,
                arguments=parsed(call.arguments or "{}"), agent=turn.agent, run=turn.run,
            )  # fmt: skip
        return key

    def tool_ended(
        self, turn: _Turn, call: Any, key: str, context: Any, done: Any, *, error: BaseException | None = None
    ) -> None:
        """End the tool call. A call that the client executes ends with the turn."""
        with contextlib.suppress(Exception):
            events = self._ag2.events
            if isinstance(done, events.ClientToolCallEvent):
                return
            failure = done.error if isinstance(done, events.ToolErrorEvent) else error
            result = None if failure is not None else _result(done)
            network = self._ag2.network
            if isinstance(result, network.Handoff | network.Finish):
                turn.calls[key] = (str(call.name), result)
            self.core.end_tool(
                self._variables(context, turn), str(call.name), key, result=result, success=failure is None,
                error=None if failure is None else error_text(failure),
                agent=turn.agent, run=turn.run,
            )  # fmt: skip

    # Channels of the network

    def channel_event(self, channel_id: str, kind: str, payload: Mapping[str, Any]) -> None:
        """Start or end the run of a channel, unless a turn opened it: then it is part of that turn."""
        if kind == "created":
            variables = {"chat_id": channel_id, **_channel_variables(payload["metadata"], None)}
            self._channels[channel_id] = _Channel(self._working(), variables)
        elif kind == "opened":
            channel = self._channels.get(channel_id)
            if channel is not None and channel.inside is None:
                self.core.start_run(channel.variables)
        elif kind in {"closed", "expired"}:
            channel = self._channels.pop(channel_id, None)
            if channel is None or channel.inside is not None:
                return
            reason = str(payload.get("reason") or kind)
            if kind == "expired":
                self.core.fail_run(channel.variables, ChannelExpired(reason))
            elif reason.startswith("expectation_violated"):
                self.core.fail_run(channel.variables, ExpectationViolated(reason))
            else:
                self.core.end_run(channel.variables, outputs=channel.last)

    def posted(self, envelope: Any) -> None:
        """Keep the last text of a channel."""
        channel = self._channels.get(envelope.channel_id)
        if channel is not None and envelope.event_type in {"ag2.msg.text", "ag2.packet"}:
            channel.last = envelope.event_data.get("text") or envelope.event_data.get("body") or channel.last

    def channel_failed(self, channel_id: str, error: BaseException) -> None:
        """Fail the run of a channel: after a failed turn it has no next speaker."""
        channel = self._channels.get(channel_id)
        if channel is not None and channel.inside is None:
            self.core.fail_run(channel.variables, error)

    # Ids

    def _outer(self) -> _Turn | None:
        """Return the turn around this call, even if it is over: its tasks may outlive it."""
        turn = _TURN.get()
        return turn if turn is not None and turn.owner is self else None

    def _working(self) -> _Turn | None:
        turn = self._outer()
        return None if turn is None or turn.over else turn

    def _variables(self, context: Any, outer: _Turn | None) -> dict[str, Any]:
        found = {name: value for name, value in dict(context.variables).items() if not str(name).startswith(_RESERVED)}
        channel = _channel(context)
        if channel is not None:
            state = context.dependencies.get(self._ag2.network.CHANNEL_STATE_DEP)
            found |= _channel_variables(channel.metadata, state)
        if outer is not None:
            inherited = dict(outer.ids)
        else:
            inherited = {"chat_id": _stream(context) if channel is None else channel.channel_id}
        return with_ids(found, inherited)


class _TurnHooks:
    """The middleware of one turn. A subclass adds AG2's base class."""

    def __init__(self, event: Any, context: Any, *, adapter: AG2Adapter, name: str) -> None:
        super().__init__(event, context)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
        self._adapter = adapter
        self._name = name
        self._turn: _Turn | None = None

    async def on_turn(self, call_next: Callable[..., Awaitable[Any]], event: Any, context: Any) -> Any:
        turn = self._turn = self._adapter.begin(context, self._name)
        if turn is None:
            return await call_next(event, context)
        token = _TURN.set(turn)
        try:
            response = await call_next(event, context)
        except BaseException as error:
            self._adapter.failed(turn, context, error)
            raise
        finally:
            self._turn = None
            with contextlib.suppress(ValueError):  # closed from another context, for example by the garbage collector
                _TURN.reset(token)
        self._adapter.ended(turn, context, response)
        return response

    async def on_llm_call(self, call_next: Callable[..., Awaitable[Any]], events: Any, context: Any) -> Any:
        turn = self._turn
        if turn is None:
            return await call_next(events, context)
        attempt = await self._adapter.asking(turn, events, context)

        async def ask(request: _Request) -> Any:
            before = context.prompt
            if request.block is not None:
                context.prompt = [*before, request.block]
            try:
                return await call_next(request.events, context)
            finally:
                if request.block is not None:
                    kept = [part for part in context.prompt if not isinstance(part, _Block)]
                    context.prompt = before if kept == before else kept

        started_s = SYSTEM_CLOCK.monotonic()
        try:
            response = await attempt.aask(ask)
        except BaseException as error:
            self._adapter.model_called(turn, context, started_s, None, error=error)
            raise
        self._adapter.model_called(turn, context, started_s, response)
        return response

    async def on_tool_execution(self, call_next: Callable[..., Awaitable[Any]], event: Any, context: Any) -> Any:
        turn = self._turn
        if turn is None:
            return await call_next(event, context)
        key = self._adapter.tool_started(turn, event, context)
        try:
            done = await call_next(event, context)
        except BaseException as error:
            self._adapter.tool_ended(turn, event, key, context, None, error=error)
            raise
        self._adapter.tool_ended(turn, event, key, context, done)
        return done


class _HubHooks:
    """The listener of a hub, which awaits it. A subclass adds AG2's base class."""

    def __init__(self, adapter: AG2Adapter) -> None:
        self._adapter = adapter

    async def on_channel_event(self, channel_id: str, kind: str, payload: Mapping[str, Any]) -> None:
        with contextlib.suppress(Exception):
            self._adapter.channel_event(channel_id, kind, payload)

    async def on_envelope_posted(self, envelope: Any, metadata: Any) -> None:
        with contextlib.suppress(Exception):
            self._adapter.posted(envelope)

    async def on_turn_failed(self, channel_id: str, agent_id: str, envelope_id: str, exc: BaseException) -> None:
        with contextlib.suppress(Exception):
            self._adapter.channel_failed(channel_id, exc)


class _Block(str):
    """The part of a prompt that the adapter adds."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Request:
    """What a model gets: the events of its history, and the part of the prompt that the adapter adds, if any."""

    events: Sequence[Any]
    block: _Block | None = None


def _ag2() -> Any:
    try:
        found = require(
            "ag2",
            extra="ag2",
            lowest="1.2",
            below="2",
            part="network",
            instead=" (for AG2 before 1.0 use the extra ag2-classic)",
        )
    except InvalidSettings as error:
        if str(error).startswith("ag2 is not installed") and _there("autogen"):
            raise InvalidSettings(f"{error}; the installed autogen is AG2 before 1.0: use AG2ClassicAdapter") from error
        raise
    for part in ("events", "middleware"):
        importlib.import_module(f"ag2.{part}")
    return found


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # the module has no spec
        return True


def _stream(context: Any) -> str:
    return str(context.stream.id)


def _agent(context: Any) -> str | None:
    name = getattr(context.dependencies.get("__ag2_agent__"), "name", None)
    return None if name is None else str(name)


def _channel(context: Any) -> Any:
    """Return the network's channel around the agent, directly or around a tool."""
    return context.dependencies.get("ag2.network.channel")


def _channel_variables(metadata: Any, state: Any) -> dict[str, Any]:
    """Return the variables of a channel, current or initial, and the ids among its labels."""
    variables = getattr(state, "context_vars", None)
    found = dict(metadata.knobs.get("context_vars") or {}) if variables is None else dict(variables)
    return found | {name: metadata.labels[name] for name in IDS if metadata.labels.get(name)}


def _model(context: Any, response: Any) -> dict[str, Any]:
    """Return the model's name and the token counts of its answer."""
    model = getattr(response, "model", None)
    if model is None:
        with contextlib.suppress(Exception):  # a configuration may have none
            model = context.dependencies["__ag2_model_config__"].model
    usage = getattr(response, "usage", None)
    counts = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
    found = {ours: getattr(usage, theirs, None) for ours, theirs in counts.items()}
    return {"model": model, **{name: None if count is None else int(count) for name, count in found.items()}}


def _result(done: Any) -> Any:
    """Return a tool's result: the text or data of a single part, or a list."""
    values = [
        getattr(part, "content", None) if hasattr(part, "content") else getattr(part, "data", None)
        for part in done.result.parts
    ]
    return values[0] if len(values) == 1 else values or None
