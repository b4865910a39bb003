"""AG2 classic (``autogen`` 0.x): events of agents and group chats, and context in the prompts of each turn.

Rejected: using only the hooks of AG2. ``update_agent_state`` also runs before replies without a model, and
synchronously in asynchronous chats. ``process_message_before_send`` does not run for failures and hand-offs, and a
change of the safeguards removes it. No hook sees a tool that a group chat runs. So ``attach`` wraps the functions that
call the model, run a tool and run the group chat; AG2 allows replacing them. The hooks remain as factories for
runtimes that register hooks by name.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet

from graphweft.adapters.context_place import (
    DEFAULT_PLACE,
    Attempt,
    ContextPlace,
    below,
    below_message,
    placed,
    user_message,
)
from graphweft.adapters.core import Adapter
from graphweft.adapters.values import about_model, parsed
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_runtimes.runtime_adapter import RuntimeAdapter
from graphweft_runtimes.versions import require

logger = logging.getLogger("graphweft.adapters")

_SOURCE: Final = "/graphweft/ag2-classic"
_STRUCTURED: Final = "__structured_output"
"""The tool whose call is an agent's structured answer; AG2 never executes it."""


@dataclass(slots=True)
class _Call:
    """A call of a model or a tool, and its result."""

    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The answer of an agent. The turn ends when the next speaker is known: another agent is a hand-over."""

    agent: str
    variables: Mapping[str, Any]
    response: Any


class AG2ClassicAdapter(RuntimeAdapter):
    """Emits events of agents and group chats, and gives agents context. ``settings`` are those of ``Adapter``.

    ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` default to the agents' ``context_variables``. Agents of a
    chat work one at a time. Raises ``InvalidSettings`` without a supported version of ``autogen``.
    """

    def __init__(
        self, adapter: Adapter | None = None, *, context_place: ContextPlace = DEFAULT_PLACE, **settings: Any
    ) -> None:
        self._autogen = _autogen()
        super().__init__(adapter, _SOURCE, settings, context_place=context_place)
        self._attached: WeakSet[Any] = WeakSet()
        self._answered: dict[tuple[str, str], _Answer | None] = {}
        """Chats whose group chat runs: the answer of a turn whose next speaker is not known yet."""

    def attach(self, *parts: Any) -> None:
        """Attach to agents, and to patterns or managers of group chats with all of their agents, before they run.

        For a group chat, events of its runs are emitted too. Attaching twice has no effect. Raises ``TypeError`` for
        other objects.
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
                raise TypeError(
                    f"cannot attach to {type(part).__name__}: expected an agent, a group chat pattern or a manager"
                )
            self._attached.add(part)

    def attached(self, agent: Any) -> bool:
        """Return whether the adapter is attached to the agent."""
        return agent in self._attached

    def publish(self, agent: Any, type: str, data: Mapping[str, Any]) -> None:
        """Emit your own event about an agent, for example the result of a UI tool.

        ``type`` is a lower-case dotted name. If a turn of the agent is open, the event has its number.
        """
        self.core.emit(_variables(agent), type, data, agent=getattr(agent, "name", None))

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
            except Exception:  # the chat continues without events
                logger.exception("cannot attach to the group chat")
            return prepared

        pattern.prepare_group_chat = prepare_group_chat

    def _attach_manager(self, manager: Any) -> None:
        kind = self._autogen.GroupChatManager
        manager.replace_reply_func(kind.run_chat, self._around_run(kind.run_chat))
        manager.replace_reply_func(kind.a_run_chat, self._around_run_async(kind.a_run_chat))
        chat = manager.groupchat
        chat.select_speaker = self._around_selection(manager, chat.select_speaker)
        chat.a_select_speaker = self._around_selection_async(manager, chat.a_select_speaker)

    # Speakers: conditions and ``after_work`` choose the next one when the answer is there

    def _around_selection(self, manager: Any, select: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(select)
        def select_speaker(*args: Any, **named: Any) -> Any:
            speaker = select(*args, **named)
            self._selected(manager, speaker)
            return speaker

        return select_speaker

    def _around_selection_async(self, manager: Any, select: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(select)
        async def a_select_speaker(*args: Any, **named: Any) -> Any:
            speaker = await select(*args, **named)
            self._selected(manager, speaker)
            return speaker

        return a_select_speaker

    def _selected(self, manager: Any, speaker: Any) -> None:
        with self.core.guarded("a selected speaker"):
            has_model = getattr(speaker, "client", None) is not None  # people and the executor of tools have none
            self._settle(self.chat_key(_variables(manager)), speaker.name if has_model else None)

    # Models. AG2 pairs its reply functions by name and asynchrony, so the replacements keep both.

    def _around_model(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ask)
        def generate_oai_reply(
            agent: Any, messages: Any = None, sender: Any = None, config: Any = None, **named: Any
        ) -> Any:
            if (agent.client if config is None else config) is None:
                return ask(agent, messages=messages, sender=sender, config=config, **named)
            variables, said = self._start(agent, messages), _said(agent, messages, sender)
            block = self.core.context(variables, agent.name, messages=said).text
            attempt = self._asking(agent, messages, said, block, variables)
            with self._model_call(agent, variables) as call:
                call.result = attempt.ask(
                    lambda request: ask(agent, messages=request, sender=sender, config=config, **named)
                )
            return call.result

        return generate_oai_reply

    def _around_model_async(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ask)
        async def a_generate_oai_reply(
            agent: Any, messages: Any = None, sender: Any = None, config: Any = None, **named: Any
        ) -> Any:
            if (agent.client if config is None else config) is None:
                return await ask(agent, messages=messages, sender=sender, config=config, **named)
            variables, said = self._start(agent, messages), _said(agent, messages, sender)
            block = (await self.core.acontext(variables, agent.name, messages=said)).text
            attempt = self._asking(agent, messages, said, block, variables)
            with self._model_call(agent, variables) as call:
                call.result = await attempt.aask(
                    lambda request: ask(agent, messages=request, sender=sender, config=config, **named)
                )
            return call.result

        return a_generate_oai_reply

    def _start(self, agent: Any, messages: Any) -> dict[str, Any]:
        variables = _variables(agent)
        self._settle(self.chat_key(variables), agent.name)
        self.core.start_turn(variables, agent.name, fresh=not _answers_tool(messages), sequential=True)
        return variables

    def _asking(self, agent: Any, messages: Any, said: Any, block: str, variables: Mapping[str, Any]) -> Attempt[Any]:
        """Return a model call with the context, or without if the messages have an unknown form."""
        request = messages
        if block:
            with self.core.guarded("adding the context"):
                request = self._with_block(said, block)
        return self.attempt(messages, request, variables, agent.name)

    def _with_block(self, messages: Any, block: str) -> list[Any]:
        found = placed(messages, block, self.place, put=_below, own=user_message)
        if found is not None:
            return found
        instructed = _Messages(messages)
        instructed.block = block
        return instructed

    @contextlib.contextmanager
    def _model_call(self, agent: Any, variables: Mapping[str, Any]) -> Generator[_Call]:
        call, started_s = _Call(), SYSTEM_CLOCK.monotonic()
        try:
            yield call
        except BaseException as error:
            about = about_model(started_s, model=_model(agent), error=error)
            self.core.model_call(variables, agent.name, success=False, about=about)
            self.core.fail_turn(variables, agent.name, error)
            raise
        variables, about = _variables(agent), about_model(started_s, model=_model(agent))
        self.core.model_call(variables, agent.name, success=True, about=about)
        with contextlib.suppress(Exception):  # the timer closes a turn whose answer has an unknown form
            ended, response = _ended(call.result)
            if not ended:
                return
            answer, key = _Answer(agent=agent.name, variables=variables, response=response), self.chat_key(variables)
            if key in self._answered:
                self._answered[key] = answer
            else:
                self._end_turn(answer, None)

    def _end_turn(self, answer: _Answer | None, following: str | None) -> None:
        """End the turn of an answer, handed over if another agent speaks next."""
        if answer is None:
            return
        if following is None or following == answer.agent:
            self.core.end_turn(answer.variables, answer.agent, response=answer.response)
        else:
            self.core.hand_over(answer.variables, answer.agent, following, response=answer.response)

    def _settle(self, key: tuple[str, str], following: str | None) -> None:
        answer = self._answered.get(key)
        if answer is not None:
            self._answered[key] = None
            self._end_turn(answer, following)

    # Tools

    def _around_tool(self, agent: Any, execute: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(execute)
        def execute_function(func_call: Any, call_id: Any = None, *args: Any, **named: Any) -> Any:
            with self._tool_call(agent, func_call, call_id) as call:
                call.result = execute(func_call, call_id, *args, **named)
            return call.result

        return execute_function

    def _around_tool_async(self, agent: Any, execute: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(execute)
        async def a_execute_function(func_call: Any, call_id: Any = None, *args: Any, **named: Any) -> Any:
            with self._tool_call(agent, func_call, call_id) as call:
                call.result = await execute(func_call, call_id, *args, **named)
            return call.result

        return a_execute_function

    @contextlib.contextmanager
    def _tool_call(self, agent: Any, func_call: Any, call_id: Any) -> Generator[_Call]:
        tool = str(func_call.get("name") or "unknown") if isinstance(func_call, Mapping) else "unknown"  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        key, call = str(call_id or uuid4().hex), _Call()
        arguments: Any = cast("Any", func_call).get("arguments") if tool != "unknown" else None
        self.core.start_tool(_variables(agent), tool, key, arguments=parsed(arguments))
        try:
            yield call
        except BaseException as error:
            self.core.end_tool(_variables(agent), tool, key, success=False, error=type(error).__name__)
            raise
        success: bool | None = None
        result: Any = None
        error_message: str | None = None
        with contextlib.suppress(Exception):
            success, result = bool(call.result[0]), call.result[1]["content"]
            if isinstance(result, self._autogen.agentchat.group.ReplyResult):
                result = result.message
            error_message = None if success else str(result).removeprefix("Error: ")
        self.core.end_tool(_variables(agent), tool, key, result=result, success=success, error=error_message)

    # Runs

    def _around_run(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def run_chat(manager: Any, *args: Any, **named: Any) -> Any:
            with self._run(manager):
                return run(manager, *args, **named)

        return run_chat

    def _around_run_async(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        async def a_run_chat(manager: Any, *args: Any, **named: Any) -> Any:
            with self._run(manager):
                return await run(manager, *args, **named)

        return a_run_chat

    @contextlib.contextmanager
    def _run(self, manager: Any) -> Generator[None]:
        key = self.chat_key(_variables(manager))
        self._answered.setdefault(key, None)
        self.core.start_run(_variables(manager))
        try:
            try:
                yield
            finally:
                self._end_turn(self._answered.pop(key, None), None)
        except BaseException as error:
            self.core.fail_run(_variables(manager), error)
            raise
        self.core.end_run(_variables(manager), outputs=_last(manager))


def create_graph_injection_hook(adapter: AG2ClassicAdapter) -> Callable[[Any, Any], None]:
    """Return a hook for ``register_hook("update_agent_state", …)`` that starts turns and gives them context.

    Use it for agents that are not attached. AG2 also calls it when no model is called, for example before a chat ends:
    such a turn ends as abandoned.
    """
    bases: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()

    def update_agent_state(agent: Any, messages: Any) -> None:
        with contextlib.suppress(Exception):  # the core counts its own errors
            if agent.client is None or adapter.attached(agent):
                return
            variables = _variables(agent)
            adapter.core.start_turn(variables, agent.name, fresh=not _answers_tool(messages), sequential=True)
            block = adapter.core.context(variables, agent.name, messages=messages or ()).text
            base, injected = bases.get(agent, (None, None))
            if injected is None or agent.system_message != injected:
                base = agent.system_message
            injected = _with_text(base, block)
            agent.update_system_message(injected)
            bases[agent] = (base, injected)

    return update_agent_state


def create_graph_mutation_hook(adapter: AG2ClassicAdapter) -> Callable[..., Any]:
    """Return a hook for ``register_hook("process_message_before_send", …)`` that ends turns and changes no message.

    Use it for agents that are not attached. It misses failures and hand-offs; the next turn or the timer ends those.
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
        instead=" (for AG2 1.x use the extra ag2)",
    )


def _variables(agent: Any) -> dict[str, Any]:
    """Return a copy of the agent's context variables, or an empty map if they cannot be read."""
    try:
        return dict(agent.context_variables.to_dict())
    except Exception:  # noqa: BLE001 - code of the runtime
        return {}


def _said(agent: Any, messages: Any, sender: Any) -> Any:
    """Return the messages of a model call: by default those that the agent has with the sender."""
    return agent.chat_messages[sender] if messages is None else messages


def _answers_tool(messages: Any) -> bool:
    """Return whether the last message holds a tool's result, so that a model call continues the turn."""
    try:
        last = messages[-1]
        return last.get("role") in {"tool", "function"} or bool(last.get("tool_responses"))
    except Exception:  # noqa: BLE001 - values of the runtime
        return False


def _ended(answer: Any) -> tuple[bool, Any]:
    """Return whether a model's answer ends the turn, and its content. An answer with tool calls does not."""
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
    """Messages that add the block to the system message when AG2 prepends it.

    The agent itself is not changed: several chats may use it at once, and AG2 reads it later in another thread.
    """

    block: str

    def __radd__(self, before: list[Any]) -> list[Any]:
        """Return all messages."""
        system, *others = before or [{"role": "system", "content": ""}]
        return [{**system, "content": _with_text(system.get("content"), self.block)}, *others, *self]


def _below(message: Any, block: str) -> Any:
    """Return a message with the block below it, or None: AG2 takes the field ``context`` out of the last message."""
    return None if "context" in message else below_message(message, block)


def _with_text(base: Any, block: str) -> Any:
    """Return a system message, a text or a list of parts, with the block below it."""
    return below(base or "", block) if block else base


def _model(agent: Any) -> str | None:
    """Return the name of the agent's model, if it has a single one."""
    with contextlib.suppress(Exception):
        (config,) = agent.llm_config["config_list"]
        return str(config["model"])
    return None


def _last(manager: Any) -> Any:
    """Return the text of the chat's last message."""
    with contextlib.suppress(Exception):
        return manager.groupchat.messages[-1]["content"]
    return None
