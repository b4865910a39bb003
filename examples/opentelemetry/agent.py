"""An agent of Microsoft Agent Framework. It knows nothing of graphweft and nothing of OpenTelemetry."""

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


@tool(approval_mode="never_require")
def flights(to: str) -> str:
    """List the flights to a city."""
    return f"No flight to {to} before Sunday: the airport is closed."


@tool(approval_mode="never_require")
def hotel(city: str) -> str:
    """Book a hotel."""
    raise TimeoutError("the hotel does not answer")


class StandIn(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, BaseChatClient):
    """In place of a model: it calls both tools, and then answers."""

    def __init__(self) -> None:
        super().__init__()
        calls = [("1", "flights", {"to": "Oslo"}), ("2", "hotel", {"city": "Oslo"})]
        asked = [Content.from_function_call(call_id=id, name=name, arguments=json.dumps(a)) for id, name, a in calls]
        self.script: list[list[Any]] = [asked, ["I cannot book the trip yet."]]

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **more: Any) -> Any:
        async def answer() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", self.script.pop(0))])

        return answer()


print(asyncio.run(Agent(StandIn(), name="Planner", tools=[flights, hotel]).run("Book a trip to Oslo.")).text)
