"""Reads values of LangChain and LangGraph without raising. Imports nothing of LangChain.

The values may be of any class, so attributes are looked up by name.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, cast

from graphweft.adapters.context_place import below
from graphweft.adapters.values import IDS
from graphweft_contracts.events import ModelCallComplete, data_of


@dataclasses.dataclass(slots=True, kw_only=True)
class ChatAnswer:
    """A model's answer: its open tool calls, and further fields of ``model.call_complete``."""

    calls: set[str]
    about: dict[str, Any]


@dataclasses.dataclass(slots=True, kw_only=True)
class ChatToolResult:
    """A tool's result. ``error`` is set for a failure that became a message."""

    success: bool
    value: Any
    error: str | None = None


def context_variables(config: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
    """Return the context of a run as variables, with the ids of its chat.

    Each id comes from the first of ``context``, ``configurable`` and ``metadata`` that has it. The default chat id is
    ``thread_id``.
    """
    variables: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        variables = _fields(context)
    configurable: Mapping[str, Any] = config.get("configurable") or {}
    metadata: Mapping[str, Any] = config.get("metadata") or {}
    for name in IDS:
        for carrier in (variables, configurable, metadata):
            if carrier.get(name):
                variables[name] = carrier[name]
                break
    thread_id = configurable.get("thread_id") or metadata.get("thread_id")
    if thread_id and not variables.get("chat_id"):
        variables["chat_id"] = thread_id
    return variables


def _fields(context: Any) -> dict[str, Any]:
    if isinstance(context, Mapping):
        return {str(name): value for name, value in cast("Any", context).items()}
    if dataclasses.is_dataclass(context) and not isinstance(context, type):
        return {field.name: getattr(context, field.name) for field in dataclasses.fields(context)}
    return {name: value for name, value in vars(context).items() if not name.startswith("_")} if context else {}


def with_block(message: Any, block: str) -> Any:
    """Return a copy of a message with the block below it, after an empty line, or None for an unknown content."""
    content = below(message.content, f"\n\n{block}" if isinstance(message.content, list) else block)
    return None if content is None else message.model_copy(update={"content": content})


def answer(messages: Iterable[Any], model: Any = None) -> ChatAnswer:
    """Return the answer in a model's messages. Calls that they answer, as for structured output, are not open."""
    found = ChatAnswer(calls=set(), about={})
    with contextlib.suppress(Exception):
        name = getattr(model, "model_name", None) or getattr(model, "model", None)
        if isinstance(name, str):
            found.about.update(data_of(ModelCallComplete, model=name))
    with contextlib.suppress(Exception):
        for message in messages:
            found.calls |= {str(call["id"]) for call in getattr(message, "tool_calls", None) or () if call.get("id")}
            found.calls.discard(str(getattr(message, "tool_call_id", "")))
            usage: Mapping[str, Any] = getattr(message, "usage_metadata", None) or {}
            if "input_tokens" in usage:
                found.about.update(data_of(ModelCallComplete, input_tokens=usage["input_tokens"]))
            if "output_tokens" in usage:
                found.about.update(data_of(ModelCallComplete, output_tokens=usage["output_tokens"]))
            metadata: Mapping[str, Any] = getattr(message, "response_metadata", None) or {}
            if isinstance(metadata.get("model_name"), str):
                found.about.update(data_of(ModelCallComplete, model=metadata["model_name"]))
    return found


def response(outputs: Any) -> Any:
    """Return the output of a graph or node: its structured response, its last message's text, or all outputs."""
    output: Any = outputs
    with contextlib.suppress(Exception):
        if hasattr(output, "goto") and hasattr(output, "update") and not isinstance(output, Mapping):
            output = output.update
        if isinstance(output, Mapping):
            state = cast("Mapping[str, Any]", output)
            if state.get("structured_response") is not None:
                return state["structured_response"]
            if "messages" not in state:
                return state
            output = state["messages"]
        return _text(cast("Any", output)[-1] if isinstance(output, list) else output)
    return cast("Any", output)


def _text(message: Any) -> Any:
    if isinstance(message, Mapping):
        return cast("Mapping[str, Any]", message).get("content")
    return str(message.text) if hasattr(message, "text") else message


def tool_result(returned: Any, call_id: str) -> ChatToolResult:
    """Return the result of a tool call: a message, a command whose update may hold one, or a list of these."""
    with contextlib.suppress(Exception):
        message = _message(returned, call_id)
        if message is None:
            return ChatToolResult(success=True, value=None if hasattr(returned, "goto") else returned)
        value = message.content
        if getattr(message, "status", None) == "error":
            return ChatToolResult(success=False, value=value, error=str(message.text))
        return ChatToolResult(success=True, value=value)
    return ChatToolResult(success=True, value=returned)


def _message(returned: Any, call_id: str) -> Any:
    if isinstance(returned, list):
        found = (_message(one, call_id) for one in cast("Any", returned))
        return next((message for message in found if message is not None), None)
    update = getattr(returned, "update", None)
    if hasattr(returned, "goto") and isinstance(update, Mapping):
        return _message(list(cast("Mapping[str, Any]", update).get("messages") or ()), call_id)
    return returned if getattr(returned, "tool_call_id", None) == call_id else None


def goes_to(returned: Any, parent: str) -> str | None:
    """Return the first node of the parent graph that a tool's result goes to, or None."""
    with contextlib.suppress(Exception):
        several: list[Any] = cast("Any", returned) if isinstance(returned, list) else [returned]
        for one in several:
            goto: Any = getattr(one, "goto", None)
            if not goto or getattr(one, "graph", None) != parent:
                continue
            first: Any = cast("Any", goto[0]) if isinstance(goto, list | tuple) else goto
            name = str(getattr(first, "node", first))
            return None if name.startswith("__") else name
    return None
