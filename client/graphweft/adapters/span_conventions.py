"""Span attributes of OpenInference, OpenLLMetry and the Vercel AI SDK, in the names of the GenAI conventions.

Sources: https://github.com/Arize-ai/openinference (``spec/semantic_conventions.md``), https://github.com/traceloop/openllmetry
(``semconv_ai``), https://ai-sdk.dev/docs/ai-sdk-core/telemetry. What a span says itself in the GenAI conventions counts
first: several libraries write both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import from_json

OPERATION: Final = "gen_ai.operation.name"
_AGENT: Final = "gen_ai.agent.name"
_WORKFLOW: Final = "gen_ai.workflow.name"
_TOOL: Final = "gen_ai.tool.name"
_CONVERSATION: Final = "gen_ai.conversation.id"
_RESPONSE: Final = "gen_ai.output.messages"
_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
_RESULT: Final = "gen_ai.tool.call.result"
_CALL_ID: Final = "gen_ai.tool.call.id"
_USER: Final = "user.id"
_MODEL: Final = "gen_ai.request.model"
_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"

_OPENINFERENCE: Final = "openinference.span.kind"
_OPENLLMETRY: Final = "traceloop.span.kind"
_REQUEST_TYPE: Final = "llm.request.type"
_AI_SDK: Final = "ai.operationId"
_OF_KIND: Final[Mapping[str, str]] = {
    "agent": "invoke_agent", "tool": "execute_tool", "llm": "chat", "workflow": "invoke_workflow",
}  # fmt: skip
_OF_AI_SDK: Final[Mapping[str, str]] = {
    "ai.generateText": "invoke_agent", "ai.streamText": "invoke_agent", "ai.generateObject": "invoke_agent",
    "ai.streamObject": "invoke_agent", "ai.generateText.doGenerate": "chat", "ai.streamText.doStream": "chat",
    "ai.generateObject.doGenerate": "chat", "ai.streamObject.doStream": "chat", "ai.toolCall": "execute_tool",
}  # fmt: skip
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    # The first attribute that a span has counts.
    _CONVERSATION: (
        "session.id", "traceloop.association.properties.session_id", "traceloop.association.properties.chat_id",
        "traceloop.association.properties.thread_id", "ai.telemetry.metadata.chatId",
        "ai.telemetry.metadata.sessionId", "ai.telemetry.metadata.threadId",
    ),
    _USER: ("traceloop.association.properties.user_id", "ai.telemetry.metadata.userId"),
    _WORKFLOW: ("traceloop.workflow.name",),
    _CALL_ID: ("tool_call.id", "tool.id", "ai.toolCall.id"),
    _MODEL: ("llm.model_name", "ai.model.id"),
    _INPUT_TOKENS: (
        "llm.token_count.prompt", "gen_ai.usage.prompt_tokens", "ai.usage.inputTokens", "ai.usage.promptTokens",
    ),
    _OUTPUT_TOKENS: (
        "llm.token_count.completion", "gen_ai.usage.completion_tokens", "ai.usage.outputTokens",
        "ai.usage.completionTokens",
    ),
}  # fmt: skip
_OF_AGENTS: Final = ("agent.name", "ai.telemetry.functionId")
_OF_TOOLS: Final = ("tool.name", "ai.toolCall.name")
_ENTITY: Final = "traceloop.entity.name"
_INPUTS: Final = ("tool.parameters", "tool_call.function.arguments", "ai.toolCall.args", "ai.toolCall.input",
                  "input.value", "traceloop.entity.input")  # fmt: skip
_OUTPUTS: Final = ("ai.toolCall.result", "ai.toolCall.output", "output.value", "traceloop.entity.output")
_TEXTS: Final = ("ai.response.text", "output.value", "traceloop.entity.output")
_MAX_JSON: Final = 200_000

ATTRIBUTES: Final = frozenset(
    {
        _OPENINFERENCE, _OPENLLMETRY, _REQUEST_TYPE, _AI_SDK, _ENTITY, *_OF_AGENTS, *_OF_TOOLS, *_INPUTS, *_OUTPUTS,
        *_TEXTS, *(each for names in _NAMES.values() for each in names),
    }
)  # fmt: skip
"""The attributes that this module reads."""


def in_genai_names(attributes: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the attributes of a span called ``name``, with those of another convention under the GenAI names."""
    operation = _operation(attributes)
    if operation is None:
        return attributes
    found: dict[str, Any] = {OPERATION: operation}
    for genai, names in _NAMES.items():
        _take(found, genai, attributes, names)
    entity = attributes.get(_ENTITY)
    if operation == "invoke_agent":
        _take(found, _AGENT, attributes, _OF_AGENTS, entity or (None if _AI_SDK in attributes else name))
        if isinstance(text := _first(attributes, _TEXTS), str):
            found[_RESPONSE] = [{"role": "assistant", "parts": [{"type": "text", "content": _plain(text)}]}]
    elif operation == "execute_tool":
        _take(found, _TOOL, attributes, _OF_TOOLS, entity or name)
        _take(found, _AGENT, attributes, _OF_AGENTS)
        _take(found, _ARGUMENTS, attributes, _INPUTS)
        _take(found, _RESULT, attributes, _OUTPUTS)
    elif operation == "invoke_workflow":
        _take(found, _WORKFLOW, attributes, (), entity or name)
    return {**found, **attributes}


def _operation(attributes: Mapping[str, Any]) -> str | None:
    if OPERATION in attributes:
        return None
    if (kind := attributes.get(_OPENINFERENCE, attributes.get(_OPENLLMETRY))) is not None:
        return _OF_KIND.get(str(kind).lower())
    if (called := attributes.get(_AI_SDK)) is not None:
        return _OF_AI_SDK.get(str(called))
    return "chat" if attributes.get(_REQUEST_TYPE) in ("chat", "completion") else None


def _first(attributes: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((value for name in names if (value := attributes.get(name)) not in (None, "")), None)


def _take(
    found: dict[str, Any], genai: str, attributes: Mapping[str, Any], names: tuple[str, ...], default: Any = None
) -> None:
    value = _first(attributes, names)
    if (value := default if value is None else value) is not None:
        found.setdefault(genai, value)


def _plain(text: str) -> str:
    """Return the text of an answer, which OpenLLMetry writes as JSON with the key ``outputs``."""
    if not text.startswith(("{", '"')) or len(text) > _MAX_JSON:
        return text
    try:
        value: Any = from_json(text)
    except ValueError:
        return text
    value = value.get("outputs", value) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return value if isinstance(value, str) else text
