"""AG2 classic (``autogen`` 0.x): events of agents and group chats, and context in the system message of each turn.

Rejected: the hooks that AG2 offers, as the only way. ``update_agent_state`` also comes before replies that no model
gives, and synchronously in asynchronous chats; ``process_message_before_send`` does not come for a failure nor for a
hand-off, and a change of the safeguards drops everybody's; no hook sees a tool that a group chat runs. So ``attach``
puts itself around the functions that ask the model, run a tool and run the group chat, which AG2 lets be replaced.
The hooks remain as factories for runtimes that register hooks by name.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet

from graphweft.adapters.core import Adapter
from graphweft.adapters.runtime import RuntimeAdapter
from graphweft.adapters.values import ms_since, parsed
from graphweft.adapters.versions import require

__all__ = ("AG2ClassicAdapter", "create_graph_injection_hook", "create_graph_mutation_hook")

logger = logging.getLogger("graphweft.adapters")

_SOURCE: Final = "/graphweft/ag2-classic"
_STRUCTURED: Final = "__structured_output"
"""The tool whose call is an agent's structured answer; it is never executed."""


class AG2ClassicAdapter(RuntimeAdapter):
    """Publishes what agents do and gives them context. ``settings`` are those of ``Adapter``.

    ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` come from the agents' ``context_variables`` where the
    settings do not say them. Agents work one at a time in a chat. Raises ``InvalidSettings`` where there is no
    ``autogen`` that it knows.
    """

    def __init__(self, adapter: Adapter | None = None, **settings: Any) -> None:
        self._autogen = _autogen()
        super().__init__(adapter, _SOURCE, settings)
        self._attached: WeakSet[Any] = WeakSet()

    def attach(self, *parts: Any) -> None:
        """Attach to agents, and to patterns or managers of group chats with all of their agents, before they work.

        Of a group chat its runs are told too. A second time does nothing. Raises ``TypeError`` for anything else.
        """
        for part in parts:
            if part in self._attached:
                continue
            if isinstance(part, self._autogen.GroupChatManager):
                self._attach_manager(part)
                self.attach(*part.groupchat.agents)
            elif isinstance(part, self._autogen.ConversableAgent):
                self._attach_agent(part)
            elif callable(getattr(part, "prepare_group_chat", None)):
                self._attach_pattern(part)
            else:
                raise TypeError(f"attach takes agents and group-chat patterns, not {type(part).__name__}")
            self._attached.add(part)

    def attached(self, agent: Any) -> bool:
        """Return whether the adapter is attached to the agent."""
        return agent in self._attached

    def publish(self, agent: Any, type: str, data: Mapping[str, Any]) -> None:
        """Publish an event of the runtime's own about an agent: a UI tool's result, a structured output that is ready.

        ``type`` is a lower-case dotted name; an open turn of the agent is named in the event.
        """
        self.core.tell(_variables(agent), type, data, agent=getattr(agent, "name", None))

    def _attach_agent(self, agent: Any) -> None:
        base = self._autogen.ConversableAgent
        kinds: list[Any] = [base, type(agent)]
        for kind in kinds:
            agent.replace_reply_func(kind.generate_oai_reply, self._around_model(kind.generate_oai_reply))
            agent.replace_reply_func(kind.a_generate_oai_reply, self._around_model_async(kind.a_generate_oai_reply))
        agent.execute_function = self._around_tool(agent, agent.execute_function)
        agent.a_execute_function = self._around_tool_async(agent, agent.a_execute_function)

    def _attach_pattern(self, pattern: Any) -> None:
        prepare = pattern.prepare_group_chat

        @functools.wraps(prepare)
        def prepare_group_chat(*args: Any, **named: Any) -> Any:
            prepared = prepare(*args, **named)
            try:
                agents, _, user, _, _, _, executor, _, manager, *_ = prepared
                self.attach(*agents, executor, *([] if user is None else [user]), manager)
            except Exception:  # the chat goes on, without us
                logger.exception("the group chat cannot be attached to")
            return prepared

        pattern.prepare_group_chat = prepare_group_chat

    def _attach_manager(self, manager: Any) -> None:
        kind = self._autogen.GroupChatManager
        manager.replace_reply_func(kind.run_chat, self._around_run(kind.run_chat))
        manager.replace_reply_func(kind.a_run_chat, self._around_run_async(kind.a_run_chat))

    # Models. Names and asynchrony of what is replaced are kept: AG2 pairs its reply functions by them.

    def _around_model(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ask)
        def generate_oai_reply(
            agent: Any, messages: Any = None, sender: Any = None, config: Any = None, **named: Any
        ) -> Any:
            if (agent.client if config is None else config) is None:
                return ask(agent, messages=messages, sender=sender, config=config, **named)
            variables = _variables(agent)
            self._start(agent, variables, messages)
            block = self.core.context(variables, agent.name).text
            started_s = time.monotonic()
            try:
                with_context = _with_block(agent, messages, sender, block)
                answer = ask(agent, messages=with_context, sender=sender, config=config, **named)
            except BaseException as error:
                self._failed(agent, variables, started_s, error)
                raise
            self._answered(agent, started_s, answer)
            return answer

        return generate_oai_reply

    def _around_model_async(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ask)
        async def a_generate_oai_reply(
            agent: Any, messages: Any = None, sender: Any = None, config: Any = None, **named: Any
        ) -> Any:
            if (agent.client if config is None else config) is None:
                return await ask(agent, messages=messages, sender=sender, config=config, **named)
            variables = _variables(agent)
            self._start(agent, variables, messages)
            block = (await self.core.acontext(variables, agent.name)).text
            started_s = time.monotonic()
            try:
                with_context = _with_block(agent, messages, sender, block)
                answer = await ask(agent, messages=with_context, sender=sender, config=config, **named)
            except BaseException as error:
                self._failed(agent, variables, started_s, error)
                raise
            self._answered(agent, started_s, answer)
            return answer

        return a_generate_oai_reply

    def _start(self, agent: Any, variables: Mapping[str, Any], messages: Any) -> None:
        self.core.start_turn(variables, agent.name, fresh=not _answers_tool(messages), sequential=True)

    def _failed(self, agent: Any, variables: Mapping[str, Any], started_s: float, error: BaseException) -> None:
        about = {"duration_ms": ms_since(started_s), "error_type": type(error).__name__, **_model(agent)}
        self.core.model_call(variables, agent.name, success=False, about=about)
        self.core.fail_turn(variables, agent.name, error)

    def _answered(self, agent: Any, started_s: float, answer: Any) -> None:
        variables = _variables(agent)
        about = {"duration_ms": ms_since(started_s), **_model(agent)}
        self.core.model_call(variables, agent.name, success=True, about=about)
        with contextlib.suppress(Exception):  # a model may answer anything; the timer closes what is not understood
            ended, response = _ended(answer)
            if ended:
                self.core.end_turn(variables, agent.name, response=response)

    # Tools

    def _around_tool(self, agent: Any, execute: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(execute)
        def execute_function(func_call: Any, call_id: Any = None, *args: Any, **named: Any) -> Any:
            tool, key = self._start_tool(agent, func_call, call_id)
            try:
                done = execute(func_call, call_id, *args, **named)
            except BaseException as error:
                self._broken(agent, tool, key, error)
                raise
            self._end_tool(agent, tool, key, done)
            return done

        return execute_function

    def _around_tool_async(self, agent: Any, execute: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(execute)
        async def a_execute_function(func_call: Any, call_id: Any = None, *args: Any, **named: Any) -> Any:
            tool, key = self._start_tool(agent, func_call, call_id)
            try:
                done = await execute(func_call, call_id, *args, **named)
            except BaseException as error:
                self._broken(agent, tool, key, error)
                raise
            self._end_tool(agent, tool, key, done)
            return done

        return a_execute_function

    def _start_tool(self, agent: Any, func_call: Any, call_id: Any) -> tuple[str, str]:
        tool = str(func_call.get("name") or "unknown") if isinstance(func_call, Mapping) else "unknown"  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        key = str(call_id or uuid4().hex)
        arguments: Any = cast("Any", func_call).get("arguments") if tool != "unknown" else None
        self.core.start_tool(_variables(agent), tool, key, arguments=parsed(arguments))
        return tool, key

    def _end_tool(self, agent: Any, tool: str, key: str, done: Any) -> None:
        success: bool | None = None
        result: Any = None
        error: str | None = None
        with contextlib.suppress(Exception):
            success, result = bool(done[0]), done[1]["content"]
            if isinstance(result, self._autogen.agentchat.group.ReplyResult):
                result = result.message
            error = None if success else str(result).removeprefix("Error: ")
        self.core.end_tool(_variables(agent), tool, key, result=result, success=success, error=error)

    def _broken(self, agent: Any, tool: str, key: str, error: BaseException) -> None:
        self.core.end_tool(_variables(agent), tool, key, success=False, error=type(error).__name__)

    # Runs

    def _around_run(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def run_chat(manager: Any, *args: Any, **named: Any) -> Any:
            self.core.start_run(_variables(manager))
            try:
                done = run(manager, *args, **named)
            except BaseException as error:
                self.core.fail_run(_variables(manager), error)
                raise
            self.core.end_run(_variables(manager), outputs=_last(manager))
            return done

        return run_chat

    def _around_run_async(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        async def a_run_chat(manager: Any, *args: Any, **named: Any) -> Any:
            self.core.start_run(_variables(manager))
            try:
                done = await run(manager, *args, **named)
            except BaseException as error:
                self.core.fail_run(_variables(manager), error)
                raise
            self.core.end_run(_variables(manager), outputs=_last(manager))
            return done

        return a_run_chat


def create_graph_injection_hook(adapter: AG2ClassicAdapter) -> Callable[[Any, Any], None]:
    """Return a hook for ``register_hook("update_agent_state", …)``: it starts turns and gives them context.

    For agents that are not attached. It also comes where no model is asked, before a chat is terminated for example:
    such a turn ends as abandoned.
    """
    bases: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()

    def update_agent_state(agent: Any, messages: Any) -> None:
        with contextlib.suppress(Exception):  # the core has counted its own
            if agent.client is None or adapter.attached(agent):
                return
            variables = _variables(agent)
            adapter.core.start_turn(variables, agent.name, fresh=not _answers_tool(messages), sequential=True)
            block = adapter.core.context(variables, agent.name).text
            base, injected = bases.get(agent, (None, None))
            if injected is None or agent.system_message != injected:
                base = agent.system_message
            injected = _joined(base, block)
            agent.update_system_message(injected)
            bases[agent] = (base, injected)

    return update_agent_state


def create_graph_mutation_hook(adapter: AG2ClassicAdapter) -> Callable[..., Any]:
    """Return a hook for ``register_hook("process_message_before_send", …)``: it ends turns, and changes no message.

    For agents that are not attached. It sees neither failures nor hand-offs: the next turn, or the timer, ends those.
    """

    def process_message_before_send(sender: Any, message: Any, recipient: Any, silent: Any) -> Any:
        with contextlib.suppress(Exception):
            ended, response = _ended((True, message))
            if ended and sender.client is not None and not adapter.attached(sender):
                adapter.core.end_turn(_variables(sender), sender.name, response=response)
        return message

    return process_message_before_send


def _autogen() -> Any:
    return require(
        "autogen",
        extra="ag2-classic",
        lowest="0.14",
        below="1",
        part="agentchat.group",
        instead=" (AG2 1.x is another runtime, which this adapter is not for)",
    )


def _variables(agent: Any) -> dict[str, Any]:
    """Return a copy of the agent's context variables; none where they cannot be read."""
    try:
        return dict(agent.context_variables.to_dict())
    except Exception:  # noqa: BLE001 - the runtime's own code
        return {}


def _answers_tool(messages: Any) -> bool:
    """Return whether the last message holds a tool's result, so that a model call goes on with a turn."""
    try:
        last = messages[-1]
        return last.get("role") in {"tool", "function"} or bool(last.get("tool_responses"))
    except Exception:  # noqa: BLE001 - the runtime's own values
        return False


def _ended(answer: Any) -> tuple[bool, Any]:
    """Return whether a model's answer ends the turn, and what it says; one that calls tools does not."""
    _, reply = answer
    if not isinstance(reply, Mapping):
        return True, reply
    message = cast("Mapping[str, Any]", reply)
    calls: Iterable[Mapping[str, Any]] = message.get("tool_calls") or ()
    structured = [call["function"]["arguments"] for call in calls if call["function"]["name"] == _STRUCTURED]
    if structured:
        return True, structured[0]
    return not calls and not message.get("function_call"), message.get("content")


class _Messages(list[Any]):
    """Messages of a chat. AG2 asks a model with the agent's system message plus these, and then the block is below it.

    The agent itself stays as it is: several chats may ask it at once, and AG2 reads it in another thread, later.
    """

    block: str

    def __radd__(self, before: list[Any]) -> list[Any]:
        """Return all of the messages."""
        system, *others = before or [{"role": "system", "content": ""}]
        return [{**system, "content": _joined(system.get("content"), self.block)}, *others, *self]


def _with_block(agent: Any, messages: Any, sender: Any, block: str) -> Any:
    """Return the messages with the block, or as they are where that is not understood."""
    if not block:
        return messages
    with contextlib.suppress(Exception):
        found = _Messages(agent.chat_messages[sender] if messages is None else messages)
        found.block = block
        return found
    return messages


def _joined(base: Any, block: str) -> Any:
    """Return a system message, a text or a list of parts, with the block below."""
    if not block:
        return base
    if isinstance(base, list):
        parts = cast("Any", base)
        return [*parts, {"type": "text", "text": block}]
    return f"{base}\n\n{block}" if base else block


def _model(agent: Any) -> dict[str, Any]:
    """Return the field that names the agent's model, where it has one model only."""
    with contextlib.suppress(Exception):
        (config,) = agent.llm_config["config_list"]
        return {"model": str(config["model"])}
    return {}


def _last(manager: Any) -> Any:
    """Return the text of the chat's last message."""
    with contextlib.suppress(Exception):
        return manager.groupchat.messages[-1]["content"]
    return None
