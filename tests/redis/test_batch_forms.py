"""What FalkorDB makes of many rows in one query equals what it makes of one query per row.

Random queries, rows, start graphs and indexes. Each query that ``falkordb_batch_query`` accepts runs three times on the
same start: row by row, and all rows at once in both ways in which a store may write it. The graphs must end alike.
Where the batch query depends on the labels that share nodes, the start graph keeps to them, and only such batch queries
are tried. An error of the shared query is no difference: it leaves nothing behind, and the store then goes row by row.

``GRAPHWEFT_FUZZ_CASES=20000`` runs more cases than the suite does.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from graphweft_contracts import QueryFailed
from graphweft_rules.cypher.batch_query import BatchQuery
from graphweft_rules.cypher.clauses import outline
from graphweft_rules.cypher.node_labels import shared_labels
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.batch_query import falkordb_batch_query
from graphweft_workers.drivers.falkordb.statements import are_single, guarded
from graphweft_workers.engine.plan.digest import digest_of
from graphweft_workers.ports.graph_store import Checkpoint, Edge, Node, Write

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3_600)]

CASES = int(os.environ.get("GRAPHWEFT_FUZZ_CASES", "100"))
GUARD = (
    "MATCH (__gw:__Progress {partition: 0}) WHERE __gw.pos = $__gw_pos SET __gw.pos = $__gw_pos + 1 "
    "WITH __gw.pos AS __gw_moved"
)
CHECKPOINT = "MATCH (p:__Progress) SET p.pos = '0', p.plan = 'p', p.done = 0"
NODES = "MATCH (n) WHERE NOT n:__Progress RETURN id(n), labels(n)"
NODE_PROPERTIES = "MATCH (n) UNWIND keys(n) AS k RETURN id(n), k, typeOf(n[k]), toJSON(n[k])"
EDGES = "MATCH (a)-[r]->(b) RETURN id(r), id(a), id(b), type(r)"
EDGE_PROPERTIES = "MATCH ()-[r]->() UNWIND keys(r) AS k RETURN id(r), k, typeOf(r[k]), toJSON(r[k])"


@dataclass
class Case:
    """A query, the rows to run it for, and the graph that it finds."""

    statement: str
    names: list[str]
    rows: list[list[Any]]
    start: str
    indexes: list[str]
    shared: frozenset[str] | None
    """Labels that the graph may have on a node beside others; None: any."""


@dataclass
class Maker:
    """Makes a case out of the choices of ``rng``."""

    rng: random.Random
    told: bool = False
    """Nodes begin with the labels that the query says may share a node."""
    types: dict[str, str] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    edges: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    used: set[tuple[str, str]] = field(default_factory=set)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def param(self, kind: str) -> str:
        known = [name for name, other in self.types.items() if other == kind]
        if known and self.chance(0.15 if kind == "key" else 0.3):
            return "$" + self.rng.choice(known)
        name = f"p{len(self.types)}"
        self.types[name] = kind
        return "$" + name

    # --- patterns ---

    def labels(self, *, bare: bool = False) -> str:
        if self.told and self.chance(0.85):  # else two nodes rarely differ
            return ":" + "ABC"[len(self.nodes) % 3]
        dice = self.rng.random()
        if dice < 0.87 or not bare:
            return ":" + self.pick("A", "B", "C")
        return ":" + ":".join(self.rng.sample(["A", "B", "C"], 2)) if dice < 0.96 else ""

    def keys(self, *, free: bool = False) -> str:
        dice = self.rng.random()
        if dice < 0.72:
            return f" {{id: {self.param('key')}}}"
        if dice < 0.8:
            return f" {{id: {self.param('key')}, k: {self.param('key')}}}"
        if dice < 0.86:
            return f" {{id: {self.param('key')}, kind: '{self.pick('c', 'd')}'}}"
        if dice < 0.91:
            return f" {{k: {self.param('key')}}}"
        if dice < 0.95 and self.nodes:
            return f" {{id: {self.rng.choice(self.nodes)}.{self.pick('x', 'id', 'y')}}}"
        return "" if free else f" {{id: {self.param('key')}}}"

    def node(self, name: str, *, free: bool = False) -> str:
        return f"({name}{self.labels(bare=True)}{self.keys(free=free)})"

    def edge_keys(self) -> str:
        dice = self.rng.random()
        return "" if dice < 0.7 else f" {{t: {self.param('key')}}}" if dice < 0.92 else f" {{t: {self.param('value')}}}"

    def edge(self, name: str) -> str:
        return f"-[{name}:{self.pick('R', 'R', 'S')}{self.edge_keys()}]->"

    # --- expressions ---

    def expression(self, variable: str, name: str) -> str:
        own = f"{variable}.{name}"
        if name in ("id", "k"):
            return self.param("key")
        if name == "lst":
            return f"coalesce({own}, []) + [{self.param('value')}]"
        other = self.rng.choice(self.nodes + self.edges)
        options = [
            (6, lambda: self.param("value")),
            (4, lambda: f"coalesce({own}, 0) + 1"),
            (2, lambda: f"coalesce({own}, {self.param('value')})"),
            (2, lambda: self.case(variable, own)),
            (1, lambda: self.pick("'lit'", "1", "true", "toUpper('a') + 'b'")),
            (1, lambda: f"{variable}.{self.pick('x', 'y', 'z', 'cnt')}"),
            (1, lambda: f"{other}.{self.pick('x', 'y', 'cnt', 'id')}"),
            (1, lambda: f"CASE WHEN {self.param('maybe')} IS NULL THEN {own} ELSE {self.param('maybe')} END"),
            (1, lambda: self.param("maybe")),
            (1, lambda: f"size([e IN {self.param('list')} WHERE e > 1 | e + 1])"),
            (1, lambda: f"{self.param('map')}.v"),
            (1, lambda: f"toString(coalesce({own}, '')) + 'x'"),
        ]
        if self.values:
            options.append((4, lambda: self.rng.choice(self.values)))
        weights = [weight for weight, _ in options]
        return str(self.rng.choices([make for _, make in options], weights)[0]())

    def case(self, variable: str, own: str) -> str:
        by = self.pick("ver", own.rpartition(".")[2])
        low = self.param("number")
        return (
            f"CASE WHEN coalesce({variable}.{by}, 0) < {low} THEN {self.pick(low, self.param('number'))} ELSE {own} END"
        )

    def condition(self, names: list[str]) -> str:
        variable = self.rng.choice(names)
        return str(
            self.pick(
                f"coalesce({variable}.cnt, 0) < {self.param('number')}",
                f"{variable}.x <> {self.param('number')}",
                f"{variable}.ver IS NULL OR {variable}.ver < {self.param('number')}",
                f"{variable}.ver >= {self.param('number')} AND {self.param('number')} > 2",
                f"{self.param('number')} > 2",
                f"{variable}.y IS NOT NULL",
                f"any(e IN {self.param('list')} WHERE e = {variable}.x)",
            )
        )

    # --- clauses ---

    def property(self) -> str:
        if self.told and self.chance(0.7):
            return self.pick("x", "cnt")
        odd = ["id", "k"] if self.chance(0.1) else []
        return str(self.rng.choice(["x", "y", "z", "cnt", "lst", "ver", "x", "cnt", *odd]))

    def items(self, variables: list[str], count: int = 0) -> str:
        texts: list[str] = []
        for _ in range(count or self.pick(1, 1, 1, 2, 2, 3)):
            variable = self.rng.choice(variables)
            name = self.property()
            if (variable, name) in self.used and self.chance(0.85):
                continue
            self.used.add((variable, name))
            dice = self.rng.random()
            if dice < 0.86:
                texts.append(f"{variable}.{name} = {self.expression(variable, name)}")
            elif dice < 0.94:
                texts.append(f"{variable} += {{z: {self.param('maybe')}, ver: {self.expression(variable, 'ver')}}}")
            elif dice < 0.97:
                texts.append(f"{variable} += {self.param('map')}")
            elif variable in self.nodes:
                texts.append(f"{variable}:{self.pick('D', 'A')}")
        return ", ".join(texts) or f"{variables[0]}.z = {self.param('value')}"

    def on(self, variable: str) -> str:
        if self.chance(0.7):
            return ""
        parts: list[str] = []
        if self.chance(0.8):
            constant = self.chance(0.35)
            name = self.pick("x", "cnt", "ver")
            text = f"{variable}.{name} = {self.pick('0', '1', chr(39) + 'new' + chr(39))}" if constant else ""
            parts.append(f" ON CREATE SET {text or self.on_items(variable)}")
        if self.chance(0.6):
            parts.append(f" ON MATCH SET {self.on_items(variable)}")
        return "".join(parts)

    def on_items(self, variable: str) -> str:
        names = self.rng.sample(["x", "y", "z", "cnt", "lst", "ver"], self.pick(1, 1, 2))
        if self.chance(0.1):
            return f"{variable} += {{{', '.join(f'{name}: {self.expression(variable, name)}' for name in names)}}}"
        return ", ".join(f"{variable}.{name} = {self.expression(variable, name)}" for name in names)

    def delete(self) -> str:
        condition = f" WHERE coalesce(n.cnt, 0) < {self.param('number')}" if self.chance(0.3) else ""
        return str(
            self.pick(
                f"MATCH {self.node('n', free=True)}{condition} DETACH DELETE n",
                f"MATCH {self.node('n')}{self.edge('e')}({self.pick('', 'm')}{self.pick('', ':B')}) DELETE e",
                f"MATCH {self.node('n')}{self.edge('e')}(m) DETACH DELETE {self.pick('n', 'm')}",
            )
        )

    def entity(self, name: str, clauses: list[str]) -> str:
        """Return a clause that binds the name to a node."""
        dice = self.rng.random()
        self.nodes.append(name)
        if dice < 0.6:
            head = f"MERGE {self.node(name)}"
            return head + self.on(name)
        written = any(not clause.startswith(("MATCH", "OPTIONAL", "UNWIND", "WITH")) for clause in clauses)
        between = "WITH * " if written else ""
        if dice < 0.82:
            if self.chance(0.78):
                text = f"{between}MATCH {self.node(name, free=True)}"
            else:
                text = f"{between}MATCH {self.node(name)}{self.edge('f' + name)}({name}2{self.pick('', ':A', ':B')})"
                self.nodes.append(name + "2")
                self.edges.append("f" + name)
            return text + (f" WHERE {self.condition([name])}" if self.chance(0.3) else "")
        if dice < 0.9:
            return f"{'WITH * ' if clauses else ''}OPTIONAL MATCH {self.node(name)}"
        return f"CREATE ({name}{self.labels()} {{id: {self.param('key')}, x: {self.param('value')}}})"

    def link(self) -> Iterator[str]:
        first = self.rng.choice(self.nodes)
        second = first if len(self.nodes) == 1 else self.rng.choice([name for name in self.nodes if name != first])
        dice = self.rng.random()
        if dice < 0.6:
            yield f"MERGE ({first}){self.edge('e')}({second}){self.on('e')}"
        elif dice < 0.85:
            yield f"CREATE ({first})-[e:{self.pick('R', 'S')} {{t: {self.param('value')}}}]->({second})"
        elif dice < 0.92:
            yield f"MERGE ({first}){self.edge('e')}{self.node('g')}"
            self.nodes.append("g")
        else:
            yield f"WITH * MATCH ({first}){self.edge('e')}({self.pick(second, 'h:A', 'h')})"
        self.edges.append("e")
        if self.chance(0.12):
            yield f"MERGE ({second})-[e2:{self.pick('R', 'S')}]->({first})"

    def unwind(self) -> str:
        if self.chance(0.5):
            self.values.append("u")
            return f"UNWIND {self.param('list')} AS u"
        self.values += ["m.id", "m.v"]
        return f"UNWIND {self.param('maps')} AS m"

    def unwound(self) -> str:
        self.nodes.append("ub")
        return f"MERGE (ub{self.labels()} {{id: {self.values[0]}}})" + self.on("ub")

    def same(self) -> str:
        """Return a SET of one property of two nodes, or two of them, which show it when the nodes are one."""
        name = self.pick("x", "cnt", "ver")
        items = [f"{each}.{name} = {self.own(each, name)}" for each in self.rng.sample(self.nodes, 2)]
        return f"SET {self.pick(', ', ' SET ').join(items)}"

    def own(self, variable: str, name: str) -> str:
        own = f"{variable}.{name}"
        return str(self.pick(self.param("value"), f"coalesce({own}, 0) + 1", self.case(variable, own)))

    def last(self) -> Iterator[str]:
        if self.told and self.chance(0.6) and len(set(self.nodes)) > 1:
            yield self.same()
            return
        variables = self.nodes + self.edges
        if self.chance(0.5):
            variables = [self.rng.choice(variables)]
        dice = self.rng.random()
        if dice < 0.15:
            chosen = ", ".join(dict.fromkeys(variables)) if self.chance(0.7) else "*"
            yield f"WITH {chosen} WHERE {self.condition(variables)}"
        if dice < 0.93:
            yield f"SET {self.items(variables)}"
        if dice > 0.9:
            yield f"REMOVE {self.rng.choice(variables)}.{self.pick('x', 'y', 'cnt')}"
        if dice > 0.97:
            yield f"SET {self.items(variables)}"

    def statement(self) -> str:
        if self.chance(0.05):
            return self.delete()
        clauses: list[str] = []
        if self.chance(0.05):
            clauses.append(f"MERGE {self.node('a')}{self.edge('e')}{self.node('b')}")
            self.nodes += ["a", "b"]
            self.edges.append("e")
        else:
            if self.chance(0.12):
                clauses.append(self.unwind())
                if self.chance(0.8):
                    clauses.append(self.unwound())
            for name in "abc"[: self.pick(1, 1, 2, 2, 2, 3)]:
                clauses.append(self.entity(name, clauses))
                if self.chance(0.04):
                    clauses.append(f"WITH * WHERE {self.condition([name])}")
                if self.chance(0.04) and "q" not in self.values:
                    kept = ", ".join(self.nodes + self.edges)
                    made = self.pick(f"coalesce({name}.cnt, 0)", f"{self.param('number')} + 1")
                    clauses.append(f"WITH {kept}, {made} AS q")
                    self.values = ["q"]
            if self.chance(0.6):
                clauses += self.link()
        if self.chance(0.75):
            clauses += self.last()
        if self.chance(0.06):
            clauses.append(f"RETURN {self.rng.choice(self.nodes + self.edges)}{self.pick('', '.x AS x')}")
        return " ".join(clauses)

    # --- data ---

    def shared(self, statement: str) -> frozenset[str] | None:
        """Return the labels that share nodes by the query, and sometimes some more, as if by others of its rules."""
        found = shared_labels([parse(statement, role="mutation")])
        return found if found is None else found | {label for label in "ABC" if self.chance(0.2)}

    def case_of(self) -> Case:
        statement = self.statement()
        domain = self.pick(2, 3, 4, 8)
        strings, mixed = self.chance(0.25), self.chance(0.3)
        shared = self.shared(statement) if self.told else None
        rows = [
            [self.value(kind, domain, strings=strings, mixed=mixed) for kind in self.types.values()]
            for _ in range(self.pick(2, 3, 4, 6, 8, 12))
        ]
        start = self.start(domain, shared, strings=strings)
        indexes = [f"CREATE INDEX FOR (n:{label}) ON (n.id)" for label in "ABC" if self.chance(0.4)]
        return Case(statement, list(self.types), rows, start, indexes, shared)

    def key(self, domain: int, *, strings: bool) -> Any:
        number = self.rng.randrange(domain)
        return f"k{number}" if strings else number

    def value(self, kind: str, domain: int, *, strings: bool, mixed: bool) -> Any:
        rng = self.rng
        match kind:
            case "key":
                return self.key(domain, strings=strings)
            case "value":
                other = [f"s{rng.randrange(9)}", self.chance(0.5), 1.5] if mixed else []
                return rng.choice([rng.randrange(100), rng.randrange(100), *other])
            case "maybe":
                return None if self.chance(0.3) else rng.randrange(100)
            case "number":
                return rng.randrange(8)
            case "list":
                return [self.key(domain, strings=strings) for _ in range(self.pick(0, 1, 2, 3))]
            case "maps":
                keys = [self.key(domain, strings=strings) for _ in range(self.pick(0, 1, 2, 3))]
                return [{"id": key, "v": rng.randrange(100)} for key in keys]
            case _:
                return {"v": rng.randrange(100), "w": None if self.chance(0.2) else rng.randrange(9)}

    def start(self, domain: int, shared: frozenset[str] | None, *, strings: bool) -> str:
        if self.chance(0.25):
            return ""
        texts: list[str] = []
        seen: set[tuple[str, Any]] = set()
        for _ in range(self.pick(1, 3, 5, 7)):
            key = self.key(domain, strings=strings)
            labels = self.rng.sample("ABC", 2 if self.chance(0.15 if shared is None else 0.4) else 1)
            if shared is not None and shared.isdisjoint(labels):
                labels = labels[:1]
            if any((label, key) in seen for label in labels) and not self.chance(0.1):
                continue
            seen |= {(label, key) for label in labels}
            found: dict[str, Any] = {"id": key}
            for name in ("x", "y", "z", "cnt", "ver"):
                if self.chance(0.35):
                    text = name in "xyz" and self.chance(0.25)
                    found[name] = f"str{self.rng.randrange(9)}" if text else self.rng.randrange(9)
            if self.chance(0.3):
                found["lst"] = [7]
            if self.chance(0.2):
                found["k"] = self.key(domain, strings=strings)
            if self.chance(0.2):
                found["kind"] = "c"
            properties = ", ".join(f"{name}: {json.dumps(value)}" for name, value in found.items())
            texts.append(f"(n{len(texts)}:{':'.join(labels)} {{{properties}}})")
        nodes = len(texts)
        for _ in range(self.pick(0, 2, 4)):
            first, second = self.rng.randrange(nodes), self.rng.randrange(nodes)
            texts.append(f"(n{first})-[:{self.pick('R', 'S')} {{t: {self.rng.randrange(3)}, cnt: 1}}]->(n{second})")
        return "CREATE " + ", ".join(texts)


class Server:
    """Runs cases on the embedded server."""

    def __init__(self, socket: str) -> None:
        self.client = redis.Redis(unix_socket_path=socket, decode_responses=True)

    def query(self, graph: str, text: str, params: dict[str, Any] | None = None) -> Any:
        head = " ".join(f"`{name}`={literal(value)}" for name, value in (params or {}).items())
        return self.client.execute_command("GRAPH.QUERY", graph, f"CYPHER {head} {text}" if head else text)

    def prepare(self, graph: str, case: Case) -> None:
        self.client.delete(graph)
        for index in case.indexes:
            self.query(graph, index)
        self.query(graph, "CREATE (:__Progress {partition: 0, pos: 0})")
        if case.start:
            self.query(graph, case.start)

    def digest(self, graph: str) -> str:
        found = self.properties(graph, NODE_PROPERTIES)
        nodes = [
            Node(id=row[0], labels=tuple(row[1][1:-1].split(", ")), properties=found.get(row[0], {}))
            for row in self.query(graph, NODES)[1]
        ]
        found = self.properties(graph, EDGE_PROPERTIES)
        edges = [
            Edge(start=row[1], end=row[2], type=row[3], properties=found.get(row[0], {}))
            for row in self.query(graph, EDGES)[1]
        ]
        return digest_of(nodes, edges).sha256

    def properties(self, graph: str, query: str) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for number, name, kind, value in self.query(graph, query)[1]:
            found.setdefault(number, {})[name] = [kind, value]
        return found

    def one_each(self, case: Case, form: BatchQuery) -> str:
        """Return the digest after the form for one row after the other."""
        self.prepare("each", case)
        for position, row in enumerate(case.rows):
            try:
                self.together("each", case, form, [row], position, subquery=True)
            except redis.ResponseError:
                self.query("each", GUARD + " RETURN 1", {"__gw_pos": position})
        return self.digest("each")

    def row_by_row(self, case: Case) -> str:
        self.prepare("serial", case)
        for position, row in enumerate(case.rows):
            params = dict(zip(case.names, row, strict=True)) | {"__gw_pos": position}
            try:
                self.query("serial", f"{GUARD} CALL {{ {case.statement} }}{tail(case.statement)}", params)
            except redis.ResponseError:
                self.query("serial", GUARD + " RETURN 1", {"__gw_pos": position})
        return self.digest("serial")

    def at_once(self, graph: str, case: Case, form: BatchQuery, *, subquery: bool) -> str | None:
        """Return the digest; None when the server refuses the query."""
        self.prepare(graph, case)
        try:
            self.together(graph, case, form, case.rows, 0, subquery=subquery)
        except redis.ResponseError:
            return None
        return self.digest(graph)

    def in_sequence(self, cases: list[tuple[Case, BatchQuery]]) -> str | None:
        """Return the digest after one query for each case; None when one is refused."""
        self.prepare("sequence", cases[0][0])
        self.query("sequence", CHECKPOINT)
        try:
            for write in writes_of(cases):
                self.client.execute_command("GRAPH.QUERY", "sequence", guarded(0, [write]))
        except (QueryFailed, redis.ResponseError):
            return None
        return self.digest("sequence")

    def shared(self, cases: list[tuple[Case, BatchQuery]]) -> str | None:
        """Return the digest after one query for all cases; None when it is refused, which changes nothing."""
        self.prepare("shared", cases[0][0])
        self.query("shared", CHECKPOINT)
        # As the store does: a plan takes a name that is not there for one that no node has.
        self.query("shared", "CREATE (n:A:B:C:D)-[:R]->(m), (n)-[:S]->(m) DELETE n, m")
        before = self.digest("shared")
        writes = writes_of(cases)
        others = [replace(writes[0], before=Checkpoint(offset="7", plan="p")), *writes[1:]]
        try:
            with contextlib.suppress(redis.ResponseError):
                self.client.execute_command("GRAPH.QUERY", "shared", guarded(0, others))
            assert self.digest("shared") == before, "the guard does not match"
            self.client.execute_command("GRAPH.QUERY", "shared", guarded(0, writes))
        except (QueryFailed, redis.ResponseError):
            assert self.digest("shared") == before, "a refused query has an effect"
            return None
        assert self.query("shared", "MATCH (p:__Progress) RETURN p.done")[1] == [[len(cases)]]
        return self.digest("shared")

    def together(
        self, graph: str, case: Case, form: BatchQuery, rows: list[list[Any]], position: int, *, subquery: bool
    ) -> None:
        body = f"UNWIND $__gw_rows AS __gw_row {form.statement}"
        text = f"{GUARD} CALL {{ {body} }}" if subquery else f"{GUARD} {body}"
        self.query(graph, text, {"__gw_rows": rows_of(case, form, rows), "__gw_pos": position})


def rows_of(case: Case, form: BatchQuery, rows: list[list[Any]] | None = None) -> list[list[Any]]:
    """Return rows of a case as parameters of a form, all by default."""
    places = [case.names.index(name) for name in form.columns]
    given_rows = case.rows if rows is None else rows
    return [[number, *(row[place] for place in places)] for number, row in enumerate(given_rows)]


def writes_of(cases: list[tuple[Case, BatchQuery]]) -> list[Write]:
    """Return a write for each case, from the start of the plan on that ``prepare`` sets."""
    return [
        Write(
            query=parse(case.statement, role="mutation"), batch_query=form,
            rows=[dict(zip(case.names, row, strict=True)) for row in case.rows],
            before=Checkpoint(offset="0", plan="p", done=number),
            after=Checkpoint(offset="0", plan="p", done=number + 1),
        )
        for number, (case, form) in enumerate(cases)
    ]  # fmt: skip


def tail(statement: str) -> str:
    return " RETURN count(*)" if parse(statement, role="mutation").returns else ""


def literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {literal(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return json.dumps(value)


@dataclass
class Outcome:
    """What became of one case."""

    form: BatchQuery
    case: Case
    verdict: str
    """``equal``, ``refused by the server``, ``different`` or the mode when nothing was run."""


def judge(server: Server, rng: random.Random, *, told: bool, subquery: bool) -> Outcome:
    case = Maker(rng, told=told).case_of()
    form = falkordb_batch_query(outline(case.statement), case.names, shared=case.shared)
    if form.mode != "ordered":
        return Outcome(form, case, form.mode)
    if told and falkordb_batch_query(outline(case.statement), case.names).mode == form.mode:
        return Outcome(form, case, "as without being told")
    together = server.at_once("together", case, form, subquery=subquery)
    if together is None:
        return Outcome(form, case, "refused by the server")
    if together == server.row_by_row(case):
        return Outcome(form, case, "equal")
    # The server takes the items of one UNWIND from the last to the first, or not; the form takes them in their order.
    listed = "UNWIND" in case.statement and together == server.one_each(case, form)
    return Outcome(form, case, "equal in the order of lists" if listed else "different")


@pytest.fixture
def batches(server: EmbeddedServer, url: str) -> Iterator[Server]:
    running = Server(str(server.socket))
    yield running
    running.client.close()


@pytest.mark.parametrize(("told", "equal"), [(False, 0.2), (True, 0.2)], ids=["ordered", "ordered by labels"])
def test_rows_together_do_what_rows_one_by_one_do(batches: Server, told: bool, equal: float) -> None:
    verdicts: Counter[str] = Counter()

    @seed(20_260)
    @settings(
        max_examples=CASES * (4 if told else 1), deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.randoms(use_true_random=True), st.booleans())
    def check(rng: random.Random, subquery: bool) -> None:
        outcome = judge(batches, rng, told=told, subquery=subquery)
        verdicts[outcome.verdict] += 1
        assert outcome.verdict != "different", (outcome.case, outcome.form)

    check()
    assert verdicts["equal"] > CASES * equal, verdicts


def cases_of(rng: random.Random) -> list[tuple[Case, BatchQuery]]:
    """Return two or three cases whose rows may share a query, with few rows each."""
    told, wanted, most = rng.random() < 0.4, rng.choice([2, 2, 3]), rng.choice([1, 1, 2, 4])
    found: list[tuple[Case, BatchQuery]] = []
    while len(found) < wanted:
        case = Maker(rng, told=told).case_of()
        form = falkordb_batch_query(outline(case.statement), case.names, shared=case.shared)
        if form.mode == "ordered":
            case.rows[most:] = []
            found.append((case, form))
    return found


def test_mutations_that_share_a_query_do_what_they_do_one_after_the_other(batches: Server) -> None:
    verdicts: Counter[str] = Counter()

    @seed(20_261)
    @settings(max_examples=CASES // 2, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=True))
    def check(rng: random.Random) -> None:
        cases = cases_of(rng)
        shared, apart = batches.shared(cases), batches.in_sequence(cases)
        form = "with parameters" if are_single(writes_of(cases)) else "with lists"
        verdicts["refused" if shared is None else form] += 1
        assert shared == apart, cases

    check()
    assert verdicts["with lists"] > CASES * 0.1, verdicts
    assert verdicts["with parameters"] > CASES * 0.03, verdicts
