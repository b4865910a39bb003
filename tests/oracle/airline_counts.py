"""Counts that the graph of the airline demo must show, taken from the recorded runs by hand.

Shares nothing with the importer, the rules or the engine and knows of no events: it reads messages and counts. Run it
with the path of the recorded runs to see the counts as JSON. `queries.json` beside it asks a graph for the same names:
one row with one column for a number, rows of two columns (key, number) for a map.
"""

import gzip
import json
import sys
from collections import Counter
from pathlib import Path


def counts(path: str | Path) -> dict[str, int | dict[str, int]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        runs = [json.loads(line) for line in lines]

    users, owns, agent_turns, answers, handovers, handed_chats = set(), set(), 0, 0, 0, 0
    reservations: dict[str, dict | None] = {}
    flights, legs = set(), set()
    calls, failures, order, problems, outcomes, led_to, used = (Counter() for _ in range(7))
    failed_pairs, turn_lengths, members, requests = Counter(), Counter(), {}, set()

    for number, run in enumerate(runs):
        users.add(run["user_id"])
        messages = run["messages"]
        # A turn begins where the assistant speaks and was not merely waiting for a tool.
        begun = [
            i
            for i, message in enumerate(messages)
            if message["role"] == "assistant" and (i == 0 or messages[i - 1]["role"] != "tool")
        ]
        agent_turns += len(begun)
        turn_lengths[len(begun)] += 1
        answers += sum(1 for m in messages if m["role"] == "assistant" and not m.get("tool_calls"))
        requests.add(messages[0]["content"][:160])

        called: list[str] = []
        transfers = 0
        for i, message in enumerate(messages):
            for call in message.get("tool_calls") or []:
                name = call["function"]["name"]
                text = messages[i + 1]["content"]
                assert messages[i + 1]["role"] == "tool"  # these recordings have one call a message, answered at once
                calls[name] += 1
                used[number, name] += 1
                if called:
                    order[f"{called[-1]} > {name}"] += 1
                called.append(name)
                if text.startswith("Error"):
                    failures[name] += 1
                    problems[f"{name}: {text}"] += 1
                    failed_pairs[number, name] += 1
                    continue
                if name == "transfer_to_human_agents":
                    transfers += 1
                if name == "get_user_details":
                    user, profile = json.loads(call["function"]["arguments"])["user_id"], json.loads(text)
                    users.add(user)
                    members[user] = profile["membership"]
                    for reservation in profile["reservations"]:
                        owns.add((user, reservation))
                        reservations.setdefault(reservation, None)
                elif text.startswith("{") and '"reservation_id"' in text:
                    shown = json.loads(text)
                    users.add(shown["user_id"])
                    owns.add((shown["user_id"], shown["reservation_id"]))
                    reservations[shown["reservation_id"]] = shown
                    for leg in shown["flights"]:
                        flights.add(leg["flight_number"])
                        legs.add((shown["reservation_id"], leg["flight_number"], leg["date"]))
        handovers += transfers
        handed_chats += transfers > 0
        # A chat that stops at the hand-over has had its last turn answered by that.
        answers += messages[-1]["role"] == "tool" and called[-1] == "transfer_to_human_agents"
        outcome = "resolved" if run["reward"] == 1 else "unresolved"
        outcomes[outcome] += 1
        led_to.update(f"{name} > {outcome}" for name in set(called))

    seen = [shown for shown in reservations.values() if shown is not None]
    return {
        "users": len(users),
        "journeys": len(runs),
        "journeys_complete": len(runs),
        "started": len(runs),
        "agent_turns": agent_turns,
        "turns": agent_turns,
        "chats_by_turns": {str(length): chats for length, chats in turn_lengths.items()},
        "answers": answers,
        "requests": len(requests),
        "tools": len(calls),
        "calls": dict(calls),
        "failures": dict(failures),
        "called_relations": len(used),
        "called": sum(used.values()),
        "called_most_in_one_chat": max(used.values()),
        "failed_in_chats": sum(failed_pairs.values()),
        "followed_by": dict(order),
        "problems": len({text.partition(": ")[2] for text in problems}),
        "failed_with": dict(problems),
        "reservations": len(reservations),
        "reservations_seen": len(seen),
        "owns": len(owns),
        "flights": len(flights),
        "legs": len(legs),
        "legs_current": sum(len(shown["flights"]) for shown in seen),
        "cabins": dict(Counter(shown["cabin"] for shown in seen)),
        "statuses": dict(Counter(shown.get("status", "booked") for shown in seen)),
        "memberships": dict(Counter(members.values())),
        "handovers": handovers,
        "handed_over": handed_chats,
        "outcomes": dict(outcomes),
        "ended": dict(outcomes),
        "led_to": dict(led_to),
    }


if __name__ == "__main__":
    print(json.dumps(counts(sys.argv[1]), indent=2, sort_keys=True))
