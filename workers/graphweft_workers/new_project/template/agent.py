"""Emits a few events, as an agent's runtime would, and prints the context of the agent's next turn.

Run `graphweft up` in this folder first, in another terminal.
"""

import asyncio
import sys

from graphweft import Client, Event

APP = "acme"  # the tenant; each app has a graph of its own
WORKFLOW = "support"  # the folder in workflows/ whose rules apply


def event(type: str, chat: str, **data: object) -> Event:
    return Event.create(type, app_id=APP, chat_id=chat, workflow=WORKFLOW, data=data)


async def main() -> None:
    async with Client(app_id=APP, workflow=WORKFLOW) as client:
        positions = await client.emit_all(
            [
                event("order.placed", "chat-1", customer="ann", order="o1", item="lamp"),
                event("order.placed", "chat-1", customer="ann", order="o2", item="desk"),
                event("order.delayed", "chat-1", order="o1", days=3),
                event("chat.started", "chat-2", customer="ann"),  # she comes back in a new chat
            ]
        )
        if positions[-1] is None:
            sys.exit(
                "The events are not confirmed yet. They are sent for two more seconds, and then they are lost. "
                "Does `graphweft up` run in this folder, and has it said that it is up? `graphweft events tail` shows "
                "the events that arrived: run this again only if there are none, because each run sends new events."
            )
        # `after` waits, within the budget, until the graph holds the last event.
        reply = await client.context(agent="planner", chat_id="chat-2", after=positions[-1], budget_ms=5000)
        if not reply.text:
            sys.exit(f"No context: {reply.reason or reply.missing}: {reply.detail}")
        print(reply.text)


if __name__ == "__main__":
    asyncio.run(main())
