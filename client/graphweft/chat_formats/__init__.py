"""Reads messages of chats in the forms that providers, runtimes and recordings use. No I/O; nothing is changed.

The forms are those of OpenAI (chat completions, Responses), Anthropic, Gemini, Ollama, Bedrock, the AI SDK, the GenAI
conventions of OpenTelemetry, tau-bench, SWE-agent and Claude Code. A value is a map of JSON or an object of a client.

* ``values``     items of maps, objects and lists
* ``parts``      what the parts of a content say
* ``messages``   one message, and a list of them
* ``results``    which call a result answers, and which message is the user's question
* ``reasoning``  what a model thinks aloud before its answer
"""

from graphweft.chat_formats.messages import ChatMessage, UnknownRole, read_message, read_messages
from graphweft.chat_formats.parts import ToolCall, ToolResult
from graphweft.chat_formats.reasoning import without_reasoning
from graphweft.chat_formats.results import CallPlace, Results, question_of, results_of

__all__ = (
    "CallPlace",
    "ChatMessage",
    "Results",
    "ToolCall",
    "ToolResult",
    "UnknownRole",
    "question_of",
    "read_message",
    "read_messages",
    "results_of",
    "without_reasoning",
)
