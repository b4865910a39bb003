"""A plain loop around OpenAI's client. One line gives it memory of all chats of the user."""

from typing import Any

from model import serve, told
from openai import OpenAI

import graphweft
from graphweft.adapters.core import Adapter

INSTRUCTIONS = {"role": "system", "content": "You help customers of a shop."}
REFUND: Any = {"type": "function", "function": {"name": "refund", "parameters": {"type": "object", "properties": {}}}}


def refund(arguments: str) -> str:
    return "error: the card has expired"


def chat(openai: OpenAI, memory: Adapter, name: str, question: str) -> str:
    # The one line. Leave it out, and the loop works as before, without memory.
    client = graphweft.wrap_openai(openai, adapter=memory, user="ada", chat=name)
    messages: list[Any] = [INSTRUCTIONS, {"role": "user", "content": question}]
    while True:
        reply = client.chat.completions.create(model="gpt-5-mini", messages=messages, tools=[REFUND])
        message = reply.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = refund(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


with serve() as url:  # with a key of OpenAI, leave this out, and write OpenAI()
    openai = OpenAI(base_url=url, api_key="none")
    memory = Adapter(app_id="shop", budget_ms=5_000)  # the same on a busy machine
    for name, question in (("monday", "Please refund my lamp."), ("friday", "What about my lamp?")):
        print(f"{name}: {question}\n> {chat(openai, memory, name, question)}\n")
    memory.close()
print(f"What the model was told on Friday:\n{told[-1]}")
