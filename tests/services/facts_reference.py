"""The facts that a retrieval must return, worked out slowly from a graph in memory: the order and all caps, too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

FOLLOWED: Final = ("REFERENCES", "CONTAINS", "MENTIONS", "DEPENDS_ON", "RELATED_TO", "SUPERSEDES", "AMENDS")
SCOPES: Final = ("application_id", "agent_id", "user_id", "thread_id")


SEEDS: Final = ("Entity", "Document", "Chunk", "Memory")
"""Labels of what a document of the search may be."""


class ServerChooses(Exception):
    """A node has more relationships than are read, so a server chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A relationship as seen from one of its ends."""

    source: int
    edge: int
    type: str
    out: bool
    fact: str
    other: int


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A graph, and the limits of a retrieval from it."""

    nodes: Sequence[tuple[str, Mapping[str, Any]]]
    """Label and properties."""
    edges: Sequence[tuple[int, str, int, Mapping[str, Any]]]
    """The numbers of two nodes, with the type and the properties."""
    scope: Mapping[str, str]
    now: str
    hops: int = 2
    limit: int = 100
    results: int = 50

    def facts(self, names: Sequence[str], ids: Sequence[str]) -> list[str]:
        """Return the facts around the entities with some names, and those of the documents with some ids.

        Raises ``ServerChooses`` if they depend on the server.
        """
        pinned = self._pinned(names, ids)
        nodes, edges, frontier = list(pinned), dict[int, None](), list(pinned)
        for hop in range(1, self.hops + 1):
            room, wanted = self.limit - len(nodes), self.results - self._distinct(edges)
            if not frontier or (hop > 1 and min(room, wanted) <= 0):
                break
            rows = self._neighbours(frontier, min(room, max(wanted, 1)), hop)
            if hop == 1:
                edges |= dict.fromkeys(self._between(pinned[:10]))
            frontier = self._expanded(frontier, rows, nodes, edges)
        described = [line for node in pinned if (line := self._described(node))]
        most = -(-self.results // 3)
        others = [line for node in nodes if node not in pinned and (line := self._described(node))]
        lines = [*described[:most], *map(self._line, edges), *described[most:], *others]
        return list(dict.fromkeys(lines))[: self.results]

    def _pinned(self, names: Sequence[str], ids: Sequence[str]) -> list[int]:
        called = [node for name in dict.fromkeys(names) for node in self._same("name", name, {"Entity"})[:5]]
        found = [node for id in dict.fromkeys(ids) for node in self._same("id", id, SEEDS)[:5]]
        unlinked = [node for node in found if self.nodes[node][0] != "Entity"]
        rows = self._neighbours(unlinked, self.limit, 1) if unlinked else []
        beside = {
            node: [row.other for row in rows if row.source == node and self._is_entity(row.other)] for node in found
        }
        each = [[node] if self._is_entity(node) else sorted(beside[node], key=self._place) for node in found]
        recalled = list(dict.fromkeys(in_turns(each)))
        return list(dict.fromkeys(in_turns([called, recalled])))[: min(20, self.limit)]

    def _expanded(self, frontier: list[int], rows: list[Row], nodes: list[int], edges: dict[int, None]) -> list[int]:
        """Add what the rows lead to, and return the new nodes."""
        fresh: list[int] = []
        each = [
            list(in_turns([[row for row in rows if (row.source, row.type) == (source, kind)] for kind in FOLLOWED]))
            for source in frontier
        ]
        for row in in_turns(each):
            if row.other not in nodes:
                if len(nodes) >= self.limit:
                    continue
                nodes.append(row.other)
                fresh.append(row.other)
            edges[row.edge] = None
        return fresh

    def _neighbours(self, frontier: Sequence[int], room: int, hop: int) -> list[Row]:
        if room <= 0:
            return []
        scan = max((8, 4)[hop - 1], min(200, (4_000, 1_000)[hop - 1] // (7 * len(frontier))))
        each = max(3, min(room, -(-2 * room // len(frontier))))
        most = min(room, self.results + 10, 100)
        groups: list[list[Row]] = []
        for source, kind in product(frontier, sorted(FOLLOWED)):
            rows = [row for row in self._rows(source) if row.type == kind]
            if len(rows) > scan:
                raise ServerChooses
            shown = [row for row in rows if self.nodes[row.other][0] in {"Entity", "Document"}]
            shown.sort(key=lambda row: (self._name(row.other), row.out, row.fact, self.nodes[row.other][1]["id"]))
            groups.append(shown[:each])
        return list(in_turns(groups))[:most]

    def _rows(self, source: int) -> Iterator[Row]:
        for number, (a, kind, b, said) in enumerate(self.edges):
            if source in {a, b} and self._holds(said):
                other = b if source == a else a
                if self._sees(said) and self._sees(self.nodes[other][1]):
                    fact = text(said, "fact")
                    yield Row(source=source, edge=number, type=kind, out=a == source, fact=fact, other=other)

    def _between(self, pinned: Sequence[int]) -> list[int]:
        found: list[int] = []
        for a, b in product(pinned, pinned):
            same = [
                number
                for number, (one, kind, other, said) in enumerate(self.edges)
                if (one, other) == (a, b) and a != b and kind in FOLLOWED and self._sees(said) and self._holds(said)
            ]
            if len(same) > 5:
                raise ServerChooses
            found += sorted(same, key=lambda number: (self.edges[number][1], text(self.edges[number][3], "fact")))
        return found

    def _distinct(self, edges: Iterable[int]) -> int:
        each = [self.edges[edge] for edge in edges]
        return len({(self._name(a), kind, self._name(b), text(said, "fact")) for a, kind, b, said in each})

    def _line(self, edge: int) -> str:
        a, kind, b, said = self.edges[edge]
        fact = text(said, "fact")
        return f"{self._title(a)} {kind} {self._title(b)}" + (f": {fact}" if fact else "")

    def _described(self, node: int) -> str:
        said = text(self.nodes[node][1], "description")
        return f"{self._title(node)}: {said}" if said else ""

    def _title(self, node: int) -> str:
        kind = text(self.nodes[node][1], "type")
        return f"{self._name(node)} ({kind})" if kind else self._name(node)

    def _name(self, node: int) -> str:
        return text(self.nodes[node][1], "name", "title", "id")

    def _is_entity(self, node: int) -> bool:
        return self.nodes[node][0] == "Entity"

    def _same(self, key: str, value: str, labels: Collection[str]) -> list[int]:
        found = [
            number
            for number, (label, said) in enumerate(self.nodes)
            if said.get(key) == value and label in labels and self._sees(said)
        ]
        return sorted(found, key=self._place)

    def _place(self, node: int) -> tuple[Any, ...]:
        said = self.nodes[node][1]
        shared = all(said.get(name) is None for name in SCOPES)
        return shared, self._name(node), said["id"], text(said, "type"), text(said, "description")

    def _sees(self, said: Mapping[str, Any]) -> bool:
        own = {name: said[name] for name in SCOPES if said.get(name) is not None}
        same = [own[name] == value for name, value in self.scope.items() if name in own]
        return not own or (bool(same) and all(same))

    def _holds(self, said: Mapping[str, Any]) -> bool:
        since, until = said.get("valid_at", ""), said.get("invalid_at", "9")
        return since <= self.now < until


def text(said: Mapping[str, Any], *names: str) -> str:
    """Return the first of some properties that is a text or a whole number."""
    return next((str(said[name]) for name in names if type(said.get(name)) in {str, int}), "")


def in_turns[Item](lists: Sequence[Sequence[Item]]) -> Iterator[Item]:
    """Yield the first items of all lists, then the second ones, and so on."""
    for turn in range(max(map(len, lists), default=0)):
        yield from (items[turn] for items in lists if turn < len(items))
