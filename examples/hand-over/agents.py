"""Agents hand a chat over: the next one is told what failed, and agents of the next chat are told what helped."""

import sys

from graphweft import SyncClient

# For each chat, the turns of the agents: what they do, and what comes of it.
MONDAY = [
    ("Triage", [("tool", "find_order", None)]),
    ("Refunds", [("tool", "refund", "card expired"), ("hand over", "BankDesk", "no answer")]),
    ("Supervisor", [("tool", "send_voucher", None)]),
]
FRIDAY = [("Triage", [("tool", "find_order", None)]), ("Refunds", [])]


def show(chat: str, agent: str, text: str) -> None:
    print(f"{chat}, {agent} gets:\n{text or '(nothing yet)'}\n")


with SyncClient(app_id="refunds", workflow="Refunds", budget_ms=5_000) as client:  # the same on a busy machine
    for chat, user, turns in (("monday", "ana", MONDAY), ("friday", "ben", FRIDAY)):
        for agent, steps in turns:
            with client.turn(agent=agent, chat=chat, user=user) as turn:
                if turn.context.reason == "bus_unavailable":
                    sys.exit("The bus is unavailable. Is `graphweft up` running in this folder?")
                if agent != "Triage":
                    show(chat, agent, turn.context.text)
                for kind, name, error in steps:
                    if kind == "tool":
                        turn.tool(name, error=error)
                    else:
                        turn.emit("handover.failed", {"to": name, "error": error})
