"""What a round is about, from its seed: rules that mind order and repetition, and events of several chats at a time.

Order is promised within a partition of the bus, so nothing that two partitions touch depends on it: every key begins
with the partition's number.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphweft import Event
from graphweft_contracts import channels

__all__ = ("TYPES", "WORKFLOW", "Case")

WORKFLOW = "Chaos"
TYPES = ("a.one", "a.two", "a.three")
_KEY = {"k": "$event.k"}
_ONE = {"k": "$event.k", "id": "$event.name"}
_TWO = {"k": "$event.k", "k2": "$event.k2"}
_PART = {"p": "$event.p"}
_MANY = {"xs": "$event.xs", "id": "$event.name"}
_WITNESS = (
    "MERGE (w:Witness {chat: $chat}) SET w.n = coalesce(w.n, 0) + 1, w.seen = coalesce(w.seen, []) + [$id]",
    {"chat": "$workflow.chat_id", "id": "$event.name"},
)
"""In every bundle: what it leaves can be told from the events alone. A list, because FalkorDB 4.22 loses the last
character of a text of 512 when something is added to it."""
# fmt: off
_MUTATIONS: tuple[tuple[str, dict[str, str]], ...] = (
    ("MERGE (c:Counter {k: $k}) ON CREATE SET c.n = 1, c.p = $p ON MATCH SET c.n = c.n + 1", {**_KEY, **_PART}),
    ("MERGE (l:List {k: $k}) SET l.xs = coalesce(l.xs, []) + [$id]", _ONE),
    ("MERGE (l:Text {k: $k}) SET l.text = coalesce(l.text, '') + $id + ','", _ONE),
    ("MERGE (a:A {k: $k}) MERGE (b:B {k: $k2}) MERGE (a)-[r:LINK]->(b)"
     " ON CREATE SET r.n = 1 ON MATCH SET r.n = r.n + 1", _TWO),
    ("MERGE (a:A {k: $k}) ON CREATE SET a.made = $id ON MATCH SET a.met = $id", _ONE),
    ("MATCH (c:Counter {k: $k}) SET c.seen = coalesce(c.seen, 0) + c.n", _KEY),
    ("MATCH (l:List {k: $k}) SET l.size = size(l.xs)", _KEY),
    ("MATCH (a:A {k: $k}) DETACH DELETE a", _KEY),
    ("MATCH (a:A {k: $k})-[r:LINK]->(:B {k: $k2}) DELETE r", _TWO),
    ("MATCH (c:Counter {p: $p}) WITH count(*) AS n, sum(c.n) AS s"
     " MERGE (t:Total {p: $p}) SET t.n = n, t.s = s, t.runs = coalesce(t.runs, 0) + 1", _PART),
    ("UNWIND $xs AS x MERGE (u:Item {k: x}) ON CREATE SET u.n = 1 ON MATCH SET u.n = u.n + 1", _MANY),
    ("FOREACH (x IN $xs | MERGE (f:Each {k: x}) SET f.last = $id)", _MANY),
    ("MATCH (c:Counter {k: $k}) WITH c WHERE c.n % 3 = 0 SET c.thirds = coalesce(c.thirds, 0) + 1", _KEY),
    ("OPTIONAL MATCH (a:A {k: $k}) WITH a IS NOT NULL AS had MERGE (s:Seen {k: $k})"
     " SET s.had = had, s.n = coalesce(s.n, 0) + CASE WHEN had THEN 1 ELSE 0 END", _KEY),
    ("MATCH (a:A {k: $k}) SET a:Hot", _KEY),
    ("MATCH (a:Hot {k: $k}) REMOVE a:Hot SET a.cooled = coalesce(a.cooled, 0) + 1", _KEY),
    ("MATCH (c:Counter {k: $k}) REMOVE c.seen", _KEY),
    ("MERGE (l:Last {k: $k}) WITH l, l.id AS old SET l.before = old, l.id = $id", _ONE),
    ("MERGE (e:Entity {k: $k}) SET e += $properties", {"k": "$event.k", "properties": "$event.properties"}),
    ("CREATE (:Log {id: randomUUID(), at: timestamp(), event: $id})", _ONE),
    ("CREATE (r:Row {id: $id})", _ONE),
)
# fmt: on


@dataclass(slots=True)
class Case:
    """Rules and events of one round; ``events`` holds what was made so far, in order."""

    rng: random.Random
    app: str
    partitions: int
    events: list[Event] = field(default_factory=list)
    chats: list[str] = field(init=False)
    """Two or three of each partition."""

    def __post_init__(self) -> None:
        found: dict[int, list[str]] = {number: [] for number in range(self.partitions)}
        number = 0
        while any(len(chats) < 2 for chats in found.values()):
            found[self._partition(f"c{number}")].append(f"c{number}")
            number += 1
        self.chats = [chat for chats in found.values() for chat in chats[:3]]

    def write_rules(self, root: Path) -> None:
        """Write the workflow's rules below ``root``."""
        parts = [_WITNESS, *self.rng.sample(_MUTATIONS, self.rng.randint(6, len(_MUTATIONS)))]
        rules: list[dict[str, Any]] = []
        for number, (cypher, params) in enumerate(parts):
            mutation = {"id": "m", "cypher": cypher, "params": params}
            events = list(TYPES) if number == 0 else self.rng.sample(TYPES, self.rng.randint(1, len(TYPES)))
            rule: dict[str, Any] = {"name": f"r{number}", "events": events, "mutations": [mutation]}
            if number and self.rng.random() < 0.2:
                rule["condition"] = "$event.n > 1"
            rules.append(rule)
        folder = root / WORKFLOW
        folder.mkdir(parents=True)
        (folder / "graph_injection.yaml").write_text(json.dumps({"version": "1.0", "mutation_rules": rules}))

    def event(self, *, without: Collection[str] = ()) -> Event:
        """Return the next event, of a user who is not among ``without``; one in twenty is a copy of an earlier one."""
        if self.events and self.rng.random() < 0.05:
            copy = self.rng.choice(self.events)
            if copy.userid not in without:
                return copy
        chat = self.rng.choice([chat for chat in self.chats if self.user_of(chat) not in without])
        part = f"p{self._partition(chat)}"
        number = len(self.events)
        data: dict[str, Any] = {
            "name": f"e{number}",
            "p": part,
            "k": part + self.rng.choice("xyz"),
            "k2": part + self.rng.choice("xy"),
            "n": self.rng.randint(0, 4),
            "xs": [part + self.rng.choice("pqr") for _ in range(self.rng.randint(0, 3))],
            "properties": self.rng.choice([{}, {"a": number}, {"a": None, "b": [1, 2]}, {"c": "ü"}]),
        }
        event = Event.create(
            self.rng.choice(TYPES), app_id=self.app, chat_id=chat, workflow=WORKFLOW, id=f"{self.app}-e{number}",
            source="/chaos", user_id=self.user_of(chat), data=data,
        )  # fmt: skip
        self.events.append(event)
        return event

    @staticmethod
    def user_of(chat: str) -> str:
        """Return the user who speaks in a chat."""
        return f"user-of-{chat}"

    def witnesses(self) -> dict[str, tuple[int, list[str]]]:
        """Return how often and in which order each chat's events took effect, if all did once and in order."""
        seen: dict[str, list[str]] = {}
        for event in self.events:
            seen.setdefault(event.chatid, []).append(event.data["name"])
        return {chat: (len(ids), ids) for chat, ids in seen.items()}

    def _partition(self, chat: str) -> int:
        return channels.partition_of(f"{self.app}/{chat}", self.partitions)
