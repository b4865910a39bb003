"""Agent Zero: what the extensions of its plugin do. ``agent_zero_plugin`` has the files that call this.

Agent Zero finds extensions by folder and runs them in the order of their file names; one that raises, or cannot be
imported, ends the agent's message loop. Memory recall starts at ``_50`` in a task of its own and is waited for at
``_91``. So the hook of the contract, ``_80``, cannot see what was recalled, and what it added would stand before the
memories; it only says that it ran, and takes the last step's block away. Facts are asked for, and put in, at ``_95``.

Rejected: waiting for the recall at ``_80``. It would change when the agent waits in Agent Zero's delayed mode.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4
from weakref import WeakKeyDictionary

from graphweft.adapters.core import Adapter
from graphweft.adapters.values import ms_since
from graphweft.settings import graphrag_enabled
from graphweft_contracts import ContextReply

__all__ = ("BLOCK_END", "BLOCK_START", "DEFAULTS", "PLUGIN", "AgentZeroPlugin", "plugin")

logger = logging.getLogger("graphweft.adapters")

PLUGIN: Final = "graphweft"
"""The plugin's name, which is that of its folder."""
DEFAULTS: Final[Mapping[str, Any]] = {
    "app_id": "agentzero",
    "workflow": "AgentZero",
    "user_id": "user",
    "budget_ms": 500,
    "max_tokens": 2000,
}
"""The plugin's settings. What Agent Zero's own recall takes is seconds, as it asks a model: hence the budget."""
BLOCK_START: Final = "GRAPHRAG_CONTEXT_BLOCK_START"
BLOCK_END: Final = "GRAPHRAG_CONTEXT_BLOCK_END"

_KEY: Final = "graphrag"
_BEFORE: Final = ("memories", "solutions", _KEY)
"""The order of the contract; everything else comes behind."""
_RECALLED: Final = {"memories": "agent.system.memories.md", "solutions": "agent.system.solutions.md"}
"""What Agent Zero's recall leaves, and the templates that it puts it into."""
_MOST_SEEDS: Final = 20
_MARK: Final = "\x1d"
_ANSWER: Final = "response"
"""The tool by which an agent answers: the end of its turn."""
_DOWN: Final = frozenset({"bus_unavailable", "graph_unavailable", "internal_error", "overloaded", "timeout"})


@dataclass(slots=True)
class _Turn:
    """What is under way in one monologue of an agent."""

    loop_data: Any = None
    """Agent Zero's own, a new one for each monologue."""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Tools that are at work and the ids of their calls."""
    model_since_s: float | None = None
    model: str | None = None
    answered: bool = False
    response: Any = None
    failed: bool = False
    begins_anew: bool = False
    """Agent Zero has made good what ended the monologue, by beginning it once more."""


def _quietly[**P](body: Callable[P, None]) -> Callable[..., None]:
    """Count and log what goes wrong, also a call with arguments that it does not know; nothing is raised."""

    @functools.wraps(body)
    def run(*args: Any, **named: Any) -> None:
        try:
            body(*args, **named)
        except Exception as error:  # noqa: BLE001 - it would end the agent's message loop
            _say_failed(args[0], body.__name__, error)

    return run


class AgentZeroPlugin:
    """Gives agents facts of the graph beside their memories, and publishes what they do. Nothing here raises.

    While ``GRAPHRAG_ENABLED`` is off nobody is asked, nothing is published, and no connection is made. ``adapter`` is
    for tests; without it there is a new one when first needed, with the settings that hold then.
    """

    def __init__(self, adapter: Adapter | None = None) -> None:
        self._adapter = adapter
        self._turns: WeakKeyDictionary[Any, _Turn] = WeakKeyDictionary()
        self._said: set[str] = set()

    @property
    def core(self) -> Adapter | None:
        """The adapter core, if anything has needed it yet."""
        return self._adapter

    def close(self, drain_s: float = 2.0) -> None:
        """See ``Adapter.close``; the next turn begins with a new adapter."""
        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            adapter.close(drain_s)

    # Context

    @_quietly
    def begin(self, agent: Any, loop_data: Any = None, **_: Any) -> None:
        """At ``message_loop_prompts_after/_80``: say that the extension ran, and drop the block of the last step."""
        _tell("GRAPHRAG_EXTENSION_EXECUTED")
        if loop_data is not None:
            loop_data.extras_persistent.pop(_KEY, None)

    async def inject(self, *args: Any, **named: Any) -> None:
        """At ``message_loop_prompts_after/_95``, where the memories stand: add the facts of the turn behind them."""
        try:
            await self._inject(*args, **named)
        except Exception as error:  # noqa: BLE001 - it would end the agent's message loop
            _say_failed(self, "inject", error)

    async def _inject(self, agent: Any, loop_data: Any = None, **_: Any) -> None:
        if agent is None or loop_data is None or not graphrag_enabled():
            return
        extras = loop_data.extras_persistent
        core, variables = self._use(agent)
        asked = {**variables, "user_message": _question(loop_data), "recalled": _recalled(agent, extras)}
        reply = await core.acontext(asked, agent.agent_name)
        if reply.text:
            extras[_KEY] = _block(agent, reply.text)
            _sort(extras)
            _tell("GRAPHRAG_CONTEXT_INJECTED", tokens=reply.tokens)
        self._say_missing(reply)

    def _say_missing(self, reply: ContextReply) -> None:
        missing = {
            **({} if reply.reason is None else {reply.reason: reply.detail}),
            **{one.reason: one.detail for one in reply.missing},
        }
        down = sorted(_DOWN & missing.keys())
        if down and not reply.text:
            _tell("GRAPHRAG_NOOP_NEO4J_DOWN", reason=",".join(down))
        for reason, detail in missing.items():
            if reason not in _DOWN:
                self.say_once(f"graphrag: something is missing: {reason} ({detail})", key=reason)

    # Events

    @_quietly
    def start_turn(self, agent: Any, loop_data: Any = None, **_: Any) -> None:
        """At ``monologue_start``. A turn that is still open was abandoned."""
        if agent is None or not graphrag_enabled():
            return
        core, variables = self._use(agent)
        self._turns[agent] = _Turn(loop_data=loop_data)
        core.start_turn(variables, agent.agent_name, fresh=True)

    @_quietly
    def end_turn(self, agent: Any, loop_data: Any = None, **_: Any) -> None:
        """At ``monologue_end``, which also comes after a failure, and for a monologue that was stopped perhaps late.

        Without an answer the agent was stopped.
        """
        if agent is None:
            return
        turn = self._turns.get(agent)
        if turn is None or turn.loop_data is not loop_data:
            return
        del self._turns[agent]
        if turn.failed or turn.begins_anew or not graphrag_enabled():
            return
        core, variables = self._use(agent)
        if turn.answered:
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
        core.start_tool(variables, tool_name, call_id, arguments=dict(tool_args or {}), agent=agent.agent_name)

    @_quietly
    def end_tool(self, agent: Any, response: Any = None, tool_name: str = "", **_: Any) -> None:
        """At ``tool_execute_after``, when secrets are masked; it does not come for a tool that raises."""
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
            core.end_tool(variables, tool_name, call[1], result=message, success=True)

    @_quietly
    def start_model(self, agent: Any, call_data: Any = None, **_: Any) -> None:
        """At ``chat_model_call_before``."""
        turn = self._turn(agent)
        if turn is not None:
            turn.model_since_s = time.monotonic()
            given: Mapping[str, Any] = call_data or {}
            name = getattr(given.get("model"), "model_name", None)
            turn.model = name if isinstance(name, str) else None

    @_quietly
    def end_model(self, agent: Any, **_: Any) -> None:
        """At ``chat_model_call_after``, which does not come for a call that raises."""
        turn = self._turn(agent)
        if turn is not None:
            core, variables = self._use(agent)
            core.model_call(variables, agent.agent_name, success=True, about=_about_model(turn))

    @_quietly
    def handle_exception(self, agent: Any, data: Any = None, **_: Any) -> None:
        """At the end of ``Agent.handle_exception``, after Agent Zero's own handlers: they may have made it good.

        Of an error only the kind is told: its text may hold secrets that Agent Zero has not masked.
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
        turn.begins_anew = given["location"] == "monologue"

    def _break_off(self, core: Adapter, variables: Mapping[str, Any], agent: Any, turn: _Turn, kind: str) -> None:
        """End the tools and the model call that were at work when the error came."""
        while turn.calls:
            tool, call_id = turn.calls.pop()
            core.end_tool(variables, tool, call_id, success=False, error=kind)
        if turn.model_since_s is not None:
            about = {**_about_model(turn), "error_type": kind}
            core.model_call(variables, agent.agent_name, success=False, about=about)

    # Of an agent

    def _turn(self, agent: Any) -> _Turn | None:
        return None if agent is None or not graphrag_enabled() else self._turns.get(agent)

    def _use(self, agent: Any) -> tuple[Adapter, dict[str, Any]]:
        """Return the adapter, and what is said of each event of the agent. Raises what its settings raise."""
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

    def say_once(self, text: str, *, key: str = "") -> None:
        """Log a warning, the first time that there is one of this ``key``."""
        if (key or text) not in self._said:
            self._said.add(key or text)
            logger.warning("%s", text)
            _show(text)


plugin: Final = AgentZeroPlugin()
"""The one that Agent Zero's extensions call."""


def _settings(agent: Any) -> dict[str, Any]:
    """Return the plugin's settings for the agent's project and profile, as Agent Zero keeps them."""
    with contextlib.suppress(Exception):
        found: Mapping[str, Any] = importlib.import_module("helpers.plugins").get_plugin_config(PLUGIN, agent) or {}
        return {name: value for name, value in found.items() if value is not None}
    return {}


def _question(loop_data: Any) -> str:
    message = loop_data.user_message
    content = getattr(message, "content", None)
    if isinstance(content, Mapping):
        said: Any = content.get("user_message") or content.get("user_intervention")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if isinstance(said, str):
            return said
    return "" if message is None else str(message.output_text())


def _recalled(agent: Any, extras: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the texts that were recalled, without the template around them; Agent Zero keeps no ids of them."""
    found: list[dict[str, str]] = []
    for key, template in _RECALLED.items():
        text = extras.get(key)
        if not isinstance(text, str):
            continue
        with contextlib.suppress(Exception):  # another template: all of the text counts
            head, _, tail = str(agent.parse_prompt(template, **{key: _MARK})).partition(_MARK)
            text = text.removeprefix(head).removesuffix(tail)
        found += [{"text": part.strip()} for part in text.split("\n\n") if part.strip()]
    return found[:_MOST_SEEDS]


def _block(agent: Any, text: str) -> str:
    """Return the text in the plugin's template. Agent Zero would carry out ``{{include}}`` in what is put into one."""
    text = text.replace("{{", "{ {")
    if BLOCK_START not in text:
        text = f"{BLOCK_START}\n{text}\n{BLOCK_END}"
    return str(agent.parse_prompt("agent.system.graphrag.md", graph=text))


def _sort(extras: MutableMapping[str, Any]) -> None:
    """Put memories, solutions and facts in front, in this order, in place."""
    first = [name for name in _BEFORE if name in extras]
    for name in [*first, *(name for name in extras if name not in _BEFORE)]:
        extras[name] = extras.pop(name)


def _about_model(turn: _Turn) -> dict[str, Any]:
    about: dict[str, Any] = {} if turn.model is None else {"model": turn.model}
    if turn.model_since_s is not None:
        about["duration_ms"] = ms_since(turn.model_since_s)
        turn.model_since_s = None
    return about


def _tell(marker: str, **about: Any) -> None:
    line = " ".join([marker, *(f"{name}={value}" for name, value in about.items())])
    logger.info("%s", line)
    _show(line)


def _show(line: str) -> None:
    """Print to where Agent Zero prints: it sets up no logging, so its container's log would not have the line."""
    with contextlib.suppress(Exception):
        importlib.import_module("helpers.print_style").PrintStyle.standard(line)


def _say_failed(owner: Any, where: str, error: Exception) -> None:
    with contextlib.suppress(Exception):
        logger.debug("the plugin failed in %s", where, exc_info=error)
        owner.say_once(f"graphweft: the plugin failed in {where} with {type(error).__name__}: {error}")
        if where == "inject":
            _tell("GRAPHRAG_NOOP_NEO4J_DOWN", reason="internal_error")
