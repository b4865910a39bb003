"""A program that knows nothing of graphweft or OpenTelemetry: an agent of Agent Framework with a scripted model."""

import asyncio
import json
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)
from agent_framework.observability import ChatTelemetryLayer


class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, BaseChatClient):  # type: ignore[misc]
    """A model that calls a tool, and then answers."""

    def __init__(self) -> None:
        super().__init__()
        call = Content.from_function_call(call_id="t1", name="weather", arguments=json.dumps({"city": "Oslo"}))
        self.script: list[Any] = [[call], ["It is sunny."]]

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **named: Any) -> Any:
        async def answer() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", self.script.pop(0))])

        return answer()


@tool(approval_mode="never_require")
def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


print(asyncio.run(Agent(Scripted(), name="Planner", tools=[weather]).run("How is it?")).text)
