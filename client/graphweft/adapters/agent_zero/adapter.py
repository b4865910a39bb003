"""Agent Zero: the code behind the extensions of its plugin. ``plugin.py`` writes the files that call it.

Agent Zero finds extensions by folder and runs them in the order of their file names. An extension that raises or
cannot be imported ends the agent's message loop. Memory recall starts at ``_50`` in its own task, and Agent Zero waits
for it at ``_91``. So the extension at ``_80`` cannot see the recalled memories: it only logs that it ran, and removes
the block of the last step. The extension at ``_95`` requests the facts and adds them below the memories.

Rejected: waiting for the recall at ``_80``. It would change when the agent waits in Agent Zero's delayed mode.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec
from uuid import uuid4
from weakref import WeakKeyDictionary

from graphweft.adapters.core import Adapter
from graphweft.adapters.turn_memory import MEMORY_ADD, memory_of
from graphweft.adapters.values import ms_since
from graphweft.settings import graphrag_enabled
from graphweft.timing import DEFAULT_BUDGET_MS
from graphweft_contracts import ContextReply
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.events import ModelCallComplete, data_of, known

P = ParamSpec("P")

logger = logging.getLogger("graphweft.adapters")

PLUGIN: Final = "graphweft"
"""The name of the plugin and its folder."""
DEFAULTS: Final[Mapping[str, Any]] = {
    "app_id": "agentzero",
    "workflow": "AgentZero",
    "user_id": "user",
    "budget_ms": DEFAULT_BUDGET_MS,
    "max_tokens": 2000,
    "remember": True,
}
"""The plugin's settings. The budget is generous because Agent Zero's own recall takes seconds."""
BLOCK_START: Final = "GRAPHRAG_CONTEXT_BLOCK_START"
BLOCK_END: Final = "GRAPHRAG_CONTEXT_BLOCK_END"

_KEY: Final = "graphrag"
_BEFORE: Final = ("memories", "solutions", _KEY)
"""The first keys of the prompt's extras, in this order."""
_RECALLED: Final = {"memories": "agent.system.memories.md", "solutions": "agent.system.solutions.md"}
"""The extras that Agent Zero's recall fills, and their templates."""
_MAX_SEEDS: Final = 20
_MARK: Final = "\x1d"
_SAVES: Final = "memory_save"
"""The tool by which an agent keeps a text in Agent Zero's own memory."""
_FIRST_AGENT: Final = "A0"
"""The agent of a chat whose messages are the user's: those of subordinates are other agents'."""
_ANSWER: Final = "response"
"""The tool that answers and ends the turn."""
_DOWN: Final = frozenset({"bus_unavailable", "graph_unavailable", "internal_error", "overloaded", "timeout"})


@dataclass(slots=True)
class _Turn:
    """The state of one monologue of an agent."""

    loop_data: Any = None
    """Agent Zero's object, a new one for each monologue."""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Open tool calls: names and ids."""
    saved: dict[str, str] = field(default_factory=dict[str, str])
    """The texts that open tool calls save, by call id."""
    model_since_s: float | None = None
    model: str | None = None
    answered: bool = False
    response: Any = None
    failed: bool = False
    restarts: bool = False
    """Whether Agent Zero handled the error and restarts the monologue."""


def _quietly(body: Callable[P, None]) -> Callable[..., None]:
    """Log errors, including those of unexpected arguments, and suppress them."""

    @functools.wraps(body)
    def run(*args: Any, **named: Any) -> None:
        try:
            body(*args, **named)
        except Exception as error:  # noqa: BLE001 - an error would end the agent's message loop
            _log_failure(args[0], body.__name__, error)

    return run


class AgentZeroPlugin:
    """Adds facts of the graph to the agents' memories, and emits events. Its methods never raise.

    While ``GRAPHRAG_ENABLED`` is off it requests, publishes and connects nothing. ``adapter`` is for tests; by default
    it is made when it is first needed, with the settings of that moment.
    """

    def __init__(self, adapter: Adapter | None = None) -> None:
        self._adapter = adapter
        self._turns: WeakKeyDictionary[Any, _Turn] = WeakKeyDictionary()
        self._logged: set[str] = set()

    @property
    def core(self) -> Adapter | None:
        """The adapter, once it was needed."""
        return self._adapter

    def close(self, drain_s: float = 2.0) -> None:
        """See ``Adapter.close``; the next turn makes a new adapter."""
        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            adapter.close(drain_s)

    # Context

    @_quietly
    def begin(self, agent: Any, loop_data: Any = None, **_: Any) -> None:
        """At ``message_loop_prompts_after/_80``: log that the extension ran, and remove the block of the last step."""
        _log("GRAPHRAG_EXTENSION_EXECUTED")
        if loop_data is not None:
            loop_data.extras_persistent.pop(_KEY, None)

    async def inject(self, *args: Any, **named: Any) -> None:
        """At ``message_loop_prompts_after/_95``: add the facts of the turn below the memories."""
        try:
            await self._inject(*args, **named)
        except Exception as error:  # noqa: BLE001 - an error would end the agent's message loop
            _log_failure(self, "inject", error)

    async def _inject(self, agent: Any, loop_data: Any = None, **_: Any) -> None:
        if agent is None or loop_data is None or not graphrag_enabled():
            return
        extras = loop_data.extras_persistent
        core, variables = self._use(agent)
        question = _question(loop_data)
        asked = {**variables, "user_message": question, "recalled": _recalled(agent, extras)}
        reply = await core.acontext(asked, agent.agent_name, messages=[{"role": "user", "content": question}])
        if reply.text:
            extras[_KEY] = _block(agent, reply.text)
            _sort(extras)
            _log("GRAPHRAG_CONTEXT_INJECTED", tokens=reply.tokens)
        self._log_missing(reply)

    def _log_missing(self, reply: ContextReply) -> None:
        missing = {
            **({} if reply.reason is None else {reply.reason: reply.detail}),
            **{one.reason: one.detail for one in reply.missing},
        }
        down = sorted(_DOWN & missing.keys())
        if down and not reply.text:
            _log("GRAPHRAG_NOOP_NEO4J_DOWN", reason=",".join(down))
        for reason, detail in missing.items():
            if reason not in _DOWN:
                self.warn_once(f"graphrag: incomplete context: {reason} ({detail})", key=reason)

    # Events

    @_quietly
    def start_turn(self, agent: Any, loop_data: Any = None, **_: Any) -> None:
        """At ``monologue_start``. An open turn was abandoned."""
        if agent is None or not graphrag_enabled():
            return
        core, variables = self._use(agent)
        self._turns[agent] = _Turn(loop_data=loop_data)
        core.start_turn(variables, agent.agent_name, fresh=True)

    @_quietly
    def end_turn(self, agent: Any, loop_data: Any = None, **_: Any) -> None:
        """At ``monologue_end``, which also runs after a failure, and perhaps late for a stopped monologue.

        Without an answer the agent was stopped.
        """
        if agent is None:
            return
        turn = self._turns.get(agent)
        if turn is None or turn.loop_data is not loop_data:
            return
        del self._turns[agent]
        if turn.failed or turn.restarts or not graphrag_enabled():
            return
        core, variables = self._use(agent)
        if turn.answered:
            if agent.agent_name == _FIRST_AGENT:
                response = turn.response if isinstance(turn.response, str) else None
                self._remember(core, variables, agent, _question(loop_data), response)
            core.end_turn(variables, agent.agent_name, response=turn.response)
        else:
            self._break_off(core, variables, agent, turn, "CancelledError")
            core.fail_turn(variables, agent.agent_name, asyncio.CancelledError())

    @_quietly
    def start_tool(self, agent: Any, tool_args: Any = None, tool_name: str = "", **_: Any) -> None:
        """At ``tool_execute_before``, while secrets are still placeholders."""
        turn = self._turn(agent)
        if turn is None or tool_name == _ANSWER:
            return
        core, variables = self._use(agent)
        call_id = uuid4().hex
        turn.calls.append((tool_name, call_id))
        given: Mapping[str, Any] = tool_args or {}
        text = given.get("text") if tool_name == _SAVES else None
        if isinstance(text, str):
            turn.saved[call_id] = text
        core.start_tool(variables, tool_name, call_id, arguments=dict(given), agent=agent.agent_name)

    @_quietly
    def end_tool(self, agent: Any, response: Any = None, tool_name: str = "", **_: Any) -> None:
        """At ``tool_execute_after``, when secrets are masked; it does not run for a tool that raises."""
        turn = self._turn(agent)
        if turn is None:
            return
        message = getattr(response, "message", None)
        if getattr(response, "break_loop", False):
            turn.answered, turn.response = True, message
        if tool_name == _ANSWER:
            return
        core, variables = self._use(agent)
        call = next((call for call in reversed(turn.calls) if call[0] == tool_name), None)
        if call is not None:
            turn.calls.remove(call)
            if (saved := turn.saved.pop(call[1], None)) is not None:
                self._remember(core, variables, agent, None, saved)
            core.end_tool(variables, tool_name, call[1], result=message, success=True)

    @_quietly
    def start_model(self, agent: Any, call_data: Any = None, **_: Any) -> None:
        """At ``chat_model_call_before``."""
        turn = self._turn(agent)
        if turn is not None:
            turn.model_since_s = SYSTEM_CLOCK.monotonic()
            given: Mapping[str, Any] = call_data or {}
            name = getattr(given.get("model"), "model_name", None)
            turn.model = name if isinstance(name, str) else None

    @_quietly
    def end_model(self, agent: Any, **_: Any) -> None:
        """At ``chat_model_call_after``, which does not run for a call that raises."""
        turn = self._turn(agent)
        if turn is not None:
            core, variables = self._use(agent)
            core.model_call(variables, agent.agent_name, success=True, about=_about_model(turn))

    @_quietly
    def handle_exception(self, agent: Any, data: Any = None, **_: Any) -> None:
        """At the end of ``Agent.handle_exception``, after Agent Zero's own handlers, which may have handled the error.

        Events name only the type of the error: its text may hold secrets that Agent Zero has not masked.
        """
        turn = self._turn(agent)
        if turn is None or turn.failed:
            return
        core, variables = self._use(agent)
        given = {**data["kwargs"], **dict(zip(("agent", "location", "exception"), data["args"], strict=False))}
        kind = type(given["exception"]).__name__
        self._break_off(core, variables, agent, turn, kind)
        if data.get("exception") is not None:
            turn.failed = True
            core.fail_turn(variables, agent.agent_name, type(kind, (Exception,), {})())
            return
        turn.answered, turn.response = False, None
        turn.restarts = given["location"] == "monologue"

    def _break_off(self, core: Adapter, variables: Mapping[str, Any], agent: Any, turn: _Turn, kind: str) -> None:
        """End the tool calls and the model call that the error interrupted."""
        while turn.calls:
            tool, call_id = turn.calls.pop()
            core.end_tool(variables, tool, call_id, success=False, error=kind)
        if turn.model_since_s is not None:
            about = {**_about_model(turn), **data_of(ModelCallComplete, error_type=kind)}
            core.model_call(variables, agent.agent_name, success=False, about=about)

    def _remember(
        self, core: Adapter, variables: Mapping[str, Any], agent: Any, message: str | None, answer: str | None
    ) -> None:
        """Keep the user's message and an answer, or a text that an agent saves, as memories of the user."""
        scope = {"thread_id": str(variables["chat_id"])}
        if "user_id" in variables:
            scope["user_id"] = str(variables["user_id"])
        spoken = None if answer is None else core.spoken(answer)
        data = memory_of(scope, message, spoken) if {**DEFAULTS, **_settings(agent)}["remember"] else None
        if data is not None:
            core.emit(variables, MEMORY_ADD, data)

    # Settings and variables of an agent

    def _turn(self, agent: Any) -> _Turn | None:
        return None if agent is None or not graphrag_enabled() else self._turns.get(agent)

    def _use(self, agent: Any) -> tuple[Adapter, dict[str, Any]]:
        """Return the adapter and the agent's context variables. Raises if the settings are invalid."""
        settings = {**DEFAULTS, **_settings(agent)}
        if self._adapter is None:
            self._adapter = Adapter(
                budget_ms=int(settings["budget_ms"]),
                max_tokens=int(settings["max_tokens"]) or None,
                source="/graphweft/agent-zero",
            )
        variables = {
            "app_id": settings["app_id"],
            "chat_id": agent.context.id,
            "workflow_name": settings["workflow"],
            "user_id": settings["user_id"],
            "profile": getattr(agent.config, "profile", None),
        }
        return self._adapter, {name: value for name, value in variables.items() if value}

    def warn_once(self, text: str, *, key: str = "") -> None:
        """Log a warning once for each ``key``, by default the text."""
        if (key or text) not in self._logged:
            self._logged.add(key or text)
            logger.warning("%s", text)
            _show(text)


plugin: Final = AgentZeroPlugin()
"""The instance that Agent Zero's extensions call."""


def _settings(agent: Any) -> dict[str, Any]:
    """Return the plugin's settings for the agent's project and profile."""
    with contextlib.suppress(Exception):
        found: Mapping[str, Any] = importlib.import_module("helpers.plugins").get_plugin_config(PLUGIN, agent) or {}
        return {name: value for name, value in found.items() if value is not None}
    return {}


def _question(loop_data: Any) -> str:
    message = loop_data.user_message
    content = getattr(message, "content", None)
    if isinstance(content, Mapping):
        text: Any = content.get("user_message") or content.get("user_intervention")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if isinstance(text, str):
            return text
    return "" if message is None else str(message.output_text())


def _recalled(agent: Any, extras: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the recalled texts without their template; Agent Zero keeps no ids of them."""
    found: list[dict[str, str]] = []
    for key, template in _RECALLED.items():
        text = extras.get(key)
        if not isinstance(text, str):
            continue
        with contextlib.suppress(Exception):  # another template: use the whole text
            head, _, tail = str(agent.parse_prompt(template, **{key: _MARK})).partition(_MARK)
            text = text.removeprefix(head).removesuffix(tail)
        found += [{"text": part.strip()} for part in text.split("\n\n") if part.strip()]
    return found[:_MAX_SEEDS]


def _block(agent: Any, text: str) -> str:
    """Return the text in the plugin's template, escaped because Agent Zero executes ``{{include}}`` in values."""
    text = text.replace("{{", "{ {")
    if BLOCK_START not in text:
        text = f"{BLOCK_START}\n{text}\n{BLOCK_END}"
    return str(agent.parse_prompt("agent.system.graphrag.md", graph=text))


def _sort(extras: MutableMapping[str, Any]) -> None:
    """Move memories, solutions and facts to the front, in this order."""
    first = [name for name in _BEFORE if name in extras]
    for name in [*first, *(name for name in extras if name not in _BEFORE)]:
        extras[name] = extras.pop(name)


def _about_model(turn: _Turn) -> dict[str, Any]:
    took_ms = None if turn.model_since_s is None else ms_since(turn.model_since_s)
    turn.model_since_s = None
    return data_of(ModelCallComplete, model=known(turn.model), duration_ms=known(took_ms))


def _log(marker: str, **about: Any) -> None:
    line = " ".join([marker, *(f"{name}={value}" for name, value in about.items())])
    logger.info("%s", line)
    _show(line)


def _show(line: str) -> None:
    """Print with Agent Zero's printer: without logging set up, its container's log would lack the line."""
    with contextlib.suppress(Exception):
        importlib.import_module("helpers.print_style").PrintStyle.standard(line)


def _log_failure(owner: Any, where: str, error: Exception) -> None:
    with contextlib.suppress(Exception):
        logger.debug("the plugin failed in %s", where, exc_info=error)
        owner.warn_once(f"graphweft: the plugin failed in {where} with {type(error).__name__}: {error}")
        if where == "inject":
            _log("GRAPHRAG_NOOP_NEO4J_DOWN", reason="internal_error")
