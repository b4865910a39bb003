"""Three tickets about one problem: what worked for the first two is in the context of the third."""

import sys

from graphweft import SyncClient

TICKETS = [
    # ticket, customer, problem, fixes that the engineer tries, and whether they worked
    ("ticket-1", "ana", "printer offline", [("restart the printer", False), ("update the driver", True)]),
    ("ticket-2", "ben", "printer offline", [("update the driver", True)]),
    ("ticket-3", "ana", "printer offline", []),
]

with SyncClient(app_id="desk", workflow="SupportDesk", budget_ms=5_000) as client:  # the same on a busy machine
    for ticket, customer, problem, fixes in TICKETS:
        with client.turn(agent="Router", chat=ticket, user=customer) as turn:
            turn.emit("ticket.opened", {"problem": problem})
        # The context of a turn reflects what this client emitted before it in the chat and for the user.
        with client.turn(agent="Engineer", chat=ticket, user=customer) as turn:
            if turn.context.reason == "bus_unavailable":
                sys.exit("The bus is unavailable. Is `graphweft up` running in this folder?")
            for fix, worked in fixes:
                turn.emit("fix.tried", {"fix": fix, "worked": worked})
    print(turn.context.text)
